"""The times at which the time events of a run are due."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from dae_hybrid.errors import NonFiniteError
from dae_hybrid.integrator import Array
from dae_hybrid.journey import Alarms
from dae_hybrid.transition import TransitionMap, clock

if TYPE_CHECKING:
    from dae_hybrid.system import HybridSystem, ModeSystem


class Schedule:
    """The time events of a run that began at `start`; the times of `at=` are evaluated once, and sorted by mode."""

    def __init__(self, system: HybridSystem, start: float, p: Array) -> None:
        self.system, self.start, self.p = system, start, p
        self._once: dict[int, tuple[list[float], list[TransitionMap]]] = {}
        self._alarms: dict[int, Alarms] = {}

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

    def alarms(self, mode: ModeSystem, last: float, most: int) -> Alarms:
        """All time events of a mode until the last time, no more than so many of each; kept."""
        if mode.index not in self._alarms:
            columns: list[list[Any]] = [[np.zeros(0)], [np.zeros(0)], [np.zeros(0)]]
            for link, index in enumerate(mode.timed, start=len(mode.guarded)):
                times, counts = self._all(self.system.transitions[index], last, most)
                for column, values in zip(columns, (times, np.full(times.size, link), counts), strict=True):
                    column.append(values)
            times, links, counts = map(np.concatenate, columns)
            order = np.argsort(times, kind="stable")
            order = order[times[order] <= last]
            self._alarms[mode.index] = Alarms(
                times[order], links[order].astype(np.int64), counts[order].astype(np.int64)
            )
        return self._alarms[mode.index]

    def _all(self, transition: TransitionMap, last: float, most: int) -> tuple[Array, Array]:
        """The times of a transition, and after how many periods they come."""
        if transition.kind == "at":
            return np.array([self.time(transition, 0)]), np.zeros(1)
        period = self.time(transition, 1) - self.start
        counts = np.arange(1.0, 1 + min((last - self.start) // period + 1, most))
        clocks = np.vstack((np.full(counts.size, self.start), counts))
        p = np.tile(self.p[:, None], counts.size)
        return np.array(transition.kernels["time"].function(p, clocks))[0], counts

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
