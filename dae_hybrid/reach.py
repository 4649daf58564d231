"""How far a run may be off, in tolerances, as a second run at a tenth of them shows.

What a run makes of its tolerances depends on the method and on the system: steps of BDF leave errors that add up, and
perturbations may grow. Where something falls beside an event, and matters, that decides whether the two are one
instant.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from dae_hybrid.errors import DaeHybridError
from dae_hybrid.events import TOGETHER, WIDEST
from dae_hybrid.grazing import accuracy
from dae_hybrid.integrator import Array
from dae_hybrid.records import EventRecord
from dae_hybrid.trajectory import Trajectory

#: the second run is at this share of the tolerances; errors are taken to be so many times the difference
FINER, SAFETY = 0.1, 3.0


class Reach:
    """So many tolerances a run may be off by at a time, from TOGETHER to WIDEST; `again` is the run at finer ones."""

    def __init__(self, trajectory: Trajectory, again: Callable[[], Trajectory]) -> None:
        self.run, self._again = trajectory, again

    def __call__(self, t: float) -> float:
        """The largest up to a time, and to the next event after it."""
        times, found = self._measured
        return float(found[min(int(np.searchsorted(times, t)), len(times) - 1)])

    @cached_property
    def _measured(self) -> tuple[Array, Array]:
        run = self.run
        times: list[float] = []
        found: list[float] = []
        try:
            other = self._again()
        except DaeHybridError:
            return np.array([run.t_span[0]]), np.array([WIDEST])
        for one, two in zip(run.events, other.events, strict=False):
            times.append(one.time)
            same = one.index == two.index
            found.append(SAFETY * self._difference(one, two) if same else WIDEST)
            if not same:
                break
        else:
            times.append(run.final[0])
            found.append(WIDEST)
            if len(run.events) == len(other.events) and run.final[:2] == other.final[:2]:
                _, mode, x, _ = run.final
                found[-1] = SAFETY * self._in_tolerances(mode, x, other.final[2])
        return np.array(times), np.clip(np.maximum.accumulate(found), TOGETHER, WIDEST)

    def _difference(self, one: EventRecord, two: EventRecord) -> float:
        """The difference of one event in two runs: in its guard, and in the state where its time is given."""
        seen = accuracy(self.run, one) if one.direction and not one.follows else 0.0
        if seen:
            return abs(one.time - two.time) * abs(one.rate) / seen
        source = self.run.system.transitions[one.index].source
        return self._in_tolerances(source, one.x_minus, two.x_minus)

    def _in_tolerances(self, mode: int, x: Array, other: Array) -> float:
        layout = self.run.system.modes[mode].differential
        y, z = x[: layout.size], other[: layout.size]
        return float(np.max(np.abs(y - z) / self.run.options.allowed(layout, y), initial=0.0))
