"""Due times of time events, measurements and knots in many runs that differ in their parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.native_plan import Alarms, Knots, Listed
from dae_hybrid.system.schedule import listed_until, merged, resolution, ticks_within, timed_transitions, times_of

if TYPE_CHECKING:
    from dae_hybrid.system.system import HybridSystem, ModeSystem
    from dae_hybrid.system.transition_map import TransitionMap

#: numbers in one list of due times
MAX_DUE_NUMBERS = 1_000_000


class Timetable:
    """The time events, measurements and knots of all runs of a system over one span.

    `waiting` are the measurements of one run, `knots` the knots of all.
    """

    def __init__(
        self, system: HybridSystem, span: tuple[float, float], waiting: Sequence[tuple[float, int]], knots: Knots | None
    ) -> None:
        self._system, self._span, self._knots = system, span, knots
        self._is_shifted = any(m.movable for m in system.measurements)
        self._waiting = [(np.nan, i) for i in range(len(waiting))] if self._is_shifted else waiting
        timed = (timed_transitions(system, mode, periodic=each) for mode in system.modes for each in (False, True))
        self._moves = self._is_shifted or any(own.moves for own in timed)
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
        if self._knots is not None:
            until[:] = np.minimum(until, self._knots.until)
        once, clocks = (timed_transitions(self._system, mode, periodic=each) for each in (False, True))
        times, measured, ticks = once.of_runs(p, self._span[0]), self._measured(p), []
        until[~np.isfinite(times).all(axis=1)] = np.nan
        until[((measured < self._span[0]) | ~(measured <= self._span[1])).any(axis=1)] = np.nan
        for link, transition in zip(clocks.links.tolist(), clocks.transitions, strict=True):
            counts = np.arange(1, 1 + self._ticks(transition, p))
            when = self._times(transition, p, counts)
            first = when[:, 0]
            resolved = (first > self._span[0] + resolution(*self._span)) | (first == self._span[0])
            until[:] = np.where(resolved, np.minimum(until, listed_until(when)), np.nan)
            ticks.append((link, counts, when))
        taken = measured, [i for _, i in self._waiting]
        return merged(mode, self._span, self._knots, (times, once.links), taken, ticks)

    def _measured(self, p: Array) -> Array:
        """Times of the measurements, (N, n)."""
        if not self._is_shifted:
            return np.tile([t for t, _ in self._waiting], (len(p), 1))
        found = np.empty((len(p), len(self._waiting)))
        for i, measurement in enumerate(self._system.measurements):
            time = measurement.time
            found[:, i] = time if isinstance(time, float) else np.array(time.function(p.T)[0]).ravel()
        return found

    def _times(self, transition: TransitionMap, p: Array, counts: NDArray[Any]) -> Array:
        """Times of the ticks of a transition with given numbers, (N, n)."""
        return times_of(transition, self._span[0], p, counts)

    def _ticks(self, transition: TransitionMap, p: Array) -> int:
        """Return the largest number of periods in a run."""
        periods = np.diff(self._times(transition, p, np.arange(1, 3)))[:, 0]
        return max((ticks_within(period, self._span[1] - self._span[0]) for period in periods.tolist()), default=2)

    def _most(self, p: Array) -> int:
        """Return the largest number of alarms of a run."""
        timed = [self._system.transitions[i] for mode in self._system.modes for i in mode.timed]
        return len(self._system.measurements) + sum(self._ticks(t, p) if t.trigger.is_periodic else 1 for t in timed)
