"""Due times of time events and measurements in many runs that differ in their parameters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.native_plan import MEASURES, Alarms, Listed
from dae_hybrid.system.schedule import in_order, listed_until, ticks_within, timed_transitions, times_of

if TYPE_CHECKING:
    from dae_hybrid.system.system import HybridSystem, ModeSystem
    from dae_hybrid.system.transition_map import TransitionMap

#: numbers in one list of due times
MAX_DUE_NUMBERS = 1_000_000


class Timetable:
    """The time events and measurements of all runs of a system over one span."""

    def __init__(self, system: HybridSystem, span: tuple[float, float]) -> None:
        self._system, self._span = system, span
        self._moves = any(timed_transitions(system, m, periodic=e).moves for m in system.modes for e in (False, True))
        self._fixed: Listed | None = None

    def listed(self, p: Array) -> Iterator[tuple[int, int, Listed]]:
        """Yield first run, last run and their alarms for parameters (N, n_p), as many runs as memory allows."""
        if not self._moves:
            if self._fixed is None:
                self._fixed = self._of(p[:1])
            yield 0, len(p), self._fixed
            return
        begin = 0
        while begin < len(p):
            end = min(len(p), begin + max(1, MAX_DUE_NUMBERS // self._most(p[begin:])))
            yield begin, end, self._of(p[begin:end])
            begin = end

    def _of(self, p: Array) -> Listed:
        until = np.full(len(p), np.inf)
        alarms = tuple(self._of_mode(mode, p, until) for mode in self._system.modes)
        return Listed(alarms, until)

    def _of_mode(self, mode: ModeSystem, p: Array, until: Array) -> Alarms:
        times, links, counts = [np.zeros((len(p), 0))], [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        once, clocks = (timed_transitions(self._system, mode, periodic=e) for e in (False, True))
        if once.links.size:  # first of equal times
            times.append(once.of_runs(p, self._span[0]))
            until[~np.isfinite(times[-1]).all(axis=1)] = np.nan
            links.append(once.links)
            counts.append(np.zeros_like(once.links))
        ends = self._system.graph.ends
        if ends is not None and ends.measured:
            times.append(np.tile([t for t, _ in ends.waiting], (len(p), 1)))
            links.append(np.full(len(ends.waiting), len(mode.guarded) + len(mode.timed) + MEASURES))
            counts.append(np.array([i for _, i in ends.waiting]))
        for link, transition in zip(clocks.links.tolist(), clocks.transitions, strict=True):
            ticks = np.arange(1, 1 + self._ticks(transition, p))
            when = self._times(transition, p, ticks)
            until[:] = np.where(when[:, 0] > self._span[0], np.minimum(until, listed_until(when)), np.nan)
            times.append(when)
            links.append(np.full(ticks.size, link))
            counts.append(ticks)
        return in_order(times, links, counts)

    def _times(self, transition: TransitionMap, p: Array, counts: NDArray[Any]) -> Array:
        """Times of the ticks of a transition with given numbers, (N, n)."""
        return times_of(transition, self._span[0], p, counts)

    def _ticks(self, transition: TransitionMap, p: Array) -> int:
        """Return the largest number of periods in a run."""
        periods = self._times(transition, p, np.ones(1))[:, 0] - self._span[0]
        return max((ticks_within(period, self._span[1] - self._span[0]) for period in periods.tolist()), default=2)

    def _most(self, p: Array) -> int:
        """Return the largest number of alarms of a run."""
        timed = [self._system.transitions[i] for mode in self._system.modes for i in mode.timed]
        return len(self._system.measurements) + sum(self._ticks(t, p) if t.trigger.is_periodic else 1 for t in timed)
