"""Costs at given times: measurements along a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from dae_hybrid.codegen.kernels import Kernel
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.records import MeasurementRecord

if TYPE_CHECKING:
    from dae_hybrid.port.native_plan import NativeRun
    from dae_hybrid.system.system import HybridSystem


@dataclass(frozen=True, eq=False)
class Measurement:
    """One cost of a functional at one time."""

    functional: str
    components: slice  # indices among all functionals
    time: Kernel | float  # a number, or p -> time and its derivative by p
    of_mode: Callable[[int], Kernel] = field(repr=False)  # (t, x, m, p, data) -> value and derivative by (x, m, p, t)
    data: Array = field(repr=False)  # constants; measurements that differ only in them share their functions
    is_extremum: bool = False  # whether it is an extremum, which is compared with those at edges, see `system.peaks`
    outputs: tuple[str, ...] = ()  # of a sum of outputs, whose weights are the data: their labels

    @property
    def name(self) -> str:
        """What is measured, as the user calls it."""
        if not self.outputs:
            return f"functional '{self.functional}'"
        return f"output{'s' * (len(self.outputs) > 1)} {', '.join(map(repr, self.outputs))}"

    def parts(self) -> Iterator[Measurement]:
        """What is compared on two sides of an event: the measurement, or each output that has a weight."""
        if not self.outputs:
            yield self
            return
        for label, row, weight in zip(self.outputs, np.eye(len(self.outputs)), self.data, strict=True):
            if weight:
                yield replace(self, outputs=(label,), data=row)

    def at(self, mode: int, t: float, x: Array, m: Array, p: Array) -> list[Array]:
        """Measured value at a point of a mode, and its derivative by u = (x, m, p, t)."""
        return self.of_mode(mode)(t, x, m, p, self.data)

    def value(self, record: MeasurementRecord, p: Array) -> list[Array]:
        """Measured value at a record, and its derivative by u."""
        return self.at(record.mode.index, record.time, record.x, record.memory, p)

    @cached_property
    def movable(self) -> bool:
        """Whether the time depends on the parameters."""
        return isinstance(self.time, Kernel) and bool(self.time.function.jac_sparsity(0, 0).nnz())

    def when(self, p: Array) -> float:
        """Time of the measurement."""
        return float(self.time(p)[0][0]) if isinstance(self.time, Kernel) else self.time

    def time_by(self, p: Array) -> Array:
        """Derivative of the time by p."""
        return np.asarray(self.time(p)[1][0]) if isinstance(self.time, Kernel) else np.zeros(p.size)

    def moved(self, by_u: Array, record: MeasurementRecord, p: Array) -> Array:
        """Derivative of a value by p through the measurement time, given the value's derivative by u = (x, m, p, t)."""
        return np.outer(measurement_rate(by_u, record.xdot), self.time_by(p))


def measurement_rate(by_u: Array, xdot: Array) -> Array:
    """Rate of a measured value along the run, given its derivative by u = (x, m, p, t)."""
    return np.asarray(by_u[:, : xdot.size] @ xdot + by_u[:, -1])


def measured(measurements: Sequence[Measurement], records: Sequence[MeasurementRecord], p: Array) -> list[list[Array]]:
    """Evaluate `Measurement.value` at records; records that share a kernel are evaluated in one call."""
    places: dict[Kernel, list[int]] = {}
    for i, record in enumerate(records):
        places.setdefault(measurements[record.index].of_mode(record.mode.index), []).append(i)
    found: list[list[Array]] = [[] for _ in records]
    for kernel, own in places.items():
        points = [records[i] for i in own]
        t, x, m = (np.array([getattr(r, name) for r in points]) for name in ("time", "x", "memory"))
        data = np.array([measurements[r.index].data for r in points])
        for i, values in zip(own, kernel.over(t[:, None], x, m, p, data), strict=True):
            found[i] = values
    return found


def measured_at_ends(system: HybridSystem, run: NativeRun) -> tuple[list[MeasurementRecord], list[MeasurementRecord]]:
    """Return the measurements at the start and at the end of a native run; the others are in its record table."""
    t0, points = run.request.span[0], (run.start, run.end)
    modes = system.modes[system.initial.mode], system.modes[run.mode]
    at_start, at_end = (
        [MeasurementRecord(t, i, mode, at.x, at.xdot, at.m) for when, i in run.request.waiting if when == t]
        for t, mode, at in zip((t0, run.t), modes, points, strict=True)
    )
    return at_start, at_end
