"""Costs at given times: measurements along a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from dae_hybrid.codegen import Kernel
from dae_hybrid.integrator import Array

if TYPE_CHECKING:
    from dae_hybrid.records import MeasurementRecord


@dataclass(frozen=True, eq=False)
class Measurement:
    """One cost of a functional at one time."""

    functional: str
    components: slice  # of all functionals
    time: Kernel  # p -> time and its derivative by p
    make: Callable[[int], Kernel] = field(repr=False)
    known: dict[tuple[int, str], Kernel] = field(repr=False)  # of all measurements, by modes and contents
    _made: dict[int, Kernel] = field(default_factory=dict, repr=False)

    def at(self, mode: int) -> Kernel:
        """(t, x, m, p) -> value and its derivative by u = (x, m, p, t); made when the mode is first met.

        Measurements of the same thing share one.
        """
        if mode not in self._made:
            kernel = self.make(mode)
            self._made[mode] = self.known.setdefault((mode, kernel.function.serialize()), kernel)
        return self._made[mode]

    def value(self, record: MeasurementRecord, p: Array) -> list[Array]:
        """What is measured at a point, and its derivative by u = (x, m, p, t)."""
        return self.at(record.mode.index)(record.time, record.x, record.memory, p)

    @cached_property
    def movable(self) -> bool:
        """Whether the time depends on the parameters."""
        return bool(self.time.function.jac_sparsity(0, 0).nnz())

    @cached_property
    def _given(self) -> float:
        """A time that does not depend on the parameters."""
        return float(self.time(np.zeros(self.time.function.numel_in(0)))[0][0])

    def when(self, p: Array) -> float:
        """The time."""
        return float(self.time(p)[0][0]) if self.movable else self._given

    def moved(self, by_u: Array, record: MeasurementRecord, p: Array) -> Array:
        """Derivative of a value by p through its time, from that of the value by u = (x, m, p, t)."""
        return np.outer(measurement_rate(by_u, record), self.time(p)[1][0])


def measurement_rate(by_u: Array, record: MeasurementRecord) -> Array:
    """Rate of a measured value along the run, from its derivative by u = (x, m, p, t)."""
    n = record.x.size
    return np.asarray(by_u[:, :n] @ record.xdot + by_u[:, -1])


def measured(measurements: Sequence[Measurement], records: Sequence[MeasurementRecord], p: Array) -> list[list[Array]]:
    """`Measurement.value` of records; of the same thing at many points in one call."""
    places: dict[Kernel, list[int]] = {}
    for i, record in enumerate(records):
        places.setdefault(measurements[record.index].at(record.mode.index), []).append(i)
    found: list[list[Array]] = [[] for _ in records]
    for kernel, own in places.items():
        points = [records[i] for i in own]
        t, x, m = (np.array([getattr(r, name) for r in points]) for name in ("time", "x", "memory"))
        for i, values in zip(own, kernel.over(t[:, None], x, m, p), strict=True):
            found[i] = values
    return found
