"""The times at which the time events of a run are due."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from dae_hybrid.errors import NonFiniteError
from dae_hybrid.integrator import Array
from dae_hybrid.transition import TransitionMap, clock

if TYPE_CHECKING:
    from dae_hybrid.system import HybridSystem, ModeSystem


class Schedule:
    """The time events of a run that began at `start`; the times of `at=` are evaluated once, and sorted by mode."""

    def __init__(self, system: HybridSystem, start: float, p: Array) -> None:
        self.system, self.start, self.p = system, start, p
        self._once: dict[int, tuple[list[float], list[TransitionMap]]] = {}

    def time(self, transition: TransitionMap, count: int) -> float:
        """The time of a transition, of an `every=` after so many periods."""
        time = float(transition.kernels["time"](self.p, clock(self.start, count))[0][0])
        if not np.isfinite(time) or (transition.kind == "every" and count and time <= self.start):
            what = "period is not positive" if transition.kind == "every" else "time is not finite"
            raise NonFiniteError(
                f"The {what}: scheduled {time}.",
                transition=transition.name,
                mode=self.system.modes[transition.source].name,
                time=self.start,
                remedy="Check at= or every= of the transition at these parameters.",
            )
        return time

    def once(self, mode: ModeSystem, first: float, last: float = np.inf) -> Iterator[tuple[float, TransitionMap]]:
        """The `at=` transitions of a mode from one time to another, by time and in order of declaration."""
        times, transitions = self._sorted(mode)
        for i in range(bisect_left(times, first), len(times)):
            if times[i] > last:
                return
            yield times[i], transitions[i]

    def periodic(self, mode: ModeSystem) -> list[TransitionMap]:
        """The `every=` transitions of a mode."""
        return [self.system.transitions[i] for i in mode.timed if self.system.transitions[i].kind == "every"]

    def _sorted(self, mode: ModeSystem) -> tuple[list[float], list[TransitionMap]]:
        if mode.index not in self._once:
            every = (self.system.transitions[i] for i in mode.timed)
            found = [(self.time(t, 0), t) for t in every if t.kind == "at"]
            found.sort(key=lambda pair: pair[0])
            self._once[mode.index] = [time for time, _ in found], [t for _, t in found]
        return self._once[mode.index]
