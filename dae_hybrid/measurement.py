"""Costs at given times: measurements along a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dae_hybrid.codegen import Kernel
from dae_hybrid.conditions import Conditions
from dae_hybrid.errors import EventError
from dae_hybrid.integrator import Array

if TYPE_CHECKING:
    from dae_hybrid.records import MeasurementRecord
    from dae_hybrid.system import HybridSystem


@dataclass(frozen=True, eq=False)
class Measurement:
    """One cost of a functional at one time."""

    functional: str
    components: slice  # of all functionals
    time: Kernel  # p -> time and its derivative by p
    make: Callable[[int], Kernel] = field(repr=False)
    _made: dict[int, Kernel] = field(default_factory=dict, repr=False)

    def at(self, mode: int) -> Kernel:
        """(t, x, m, p) -> value and its derivative by u = (x, m, p, t); made when the mode is first met."""
        if mode not in self._made:
            self._made[mode] = self.make(mode)
        return self._made[mode]

    @property
    def movable(self) -> bool:
        """Whether the time depends on the parameters."""
        return bool(self.time.function.jac_sparsity(0, 0).nnz())

    def when(self, p: Array) -> float:
        """The time."""
        return float(self.time(p)[0][0])


def measurement_rate(by_u: Array, record: MeasurementRecord) -> Array:
    """Rate of a measured value along the run, from its derivative by u = (x, m, p, t)."""
    n = record.x.size
    return np.asarray(by_u[:, :n] @ record.xdot + by_u[:, -1])


def refuse_disturbed(system: HybridSystem, record: MeasurementRecord, conditions: Conditions) -> None:
    """A measurement at the very time of an event that moves with the parameters has no derivative."""
    if record.disturbed:
        error = EventError(
            f"Functional '{system.measurements[record.index].functional}' is measured at the time of an event or "
            "a knot, and one of the two moves with the parameters: it has only one-sided derivatives there.",
            mode=record.mode.name,
            time=record.time,
            remedy="Shift the measurement, or use at_events= to measure at the event.",
        )
        conditions.refuse(error)
