"""Due times of the time events of a run."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.errors import NonFiniteError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.native_plan import MEASURES, TURNS, Alarms, Knots
from dae_hybrid.system.transition_map import TransitionMap, schedule_state

if TYPE_CHECKING:
    from dae_hybrid.system.system import HybridSystem, ModeSystem

#: ticks listed at a time if the end of the run is unknown, or if more than the second number remain
TICKS, MOST_TICKS = 1000, 100_000


def ticks_within(period: float, duration: float) -> int:
    """Number of ticks of a clock to list at a time; slightly more than the rest of the run has."""
    left = duration / period if period > 0 else np.inf
    return int(left) + 3 if left < MOST_TICKS else TICKS


def times_of(transition: TransitionMap, start: float, p: Array, counts: NDArray[Any]) -> Array:
    """Times of the ticks with numbers `counts`, (N, n), in runs from `start` with parameters (N, n_p)."""
    rows = np.repeat(p, counts.size, axis=0).T
    clocks = np.vstack((np.full(rows.shape[1], start), np.tile(counts, len(p))))
    return np.array(transition.kernels["time"].function(rows, clocks))[0].reshape(len(p), counts.size)


def listed_until(ticks: Array) -> Array:
    """Time until which ticks (N, n) are complete, between the last two."""
    return np.asarray(1.5 * ticks[:, -1] - 0.5 * ticks[:, -2])


def in_order(times: Sequence[Array], links: Sequence[NDArray[np.int64]], counts: Sequence[NDArray[np.int64]]) -> Alarms:
    """Merge the times (N, n) of each kind; equal times in the order of the kinds."""
    every, of, after = np.hstack(times), np.concatenate(links), np.concatenate(counts)
    order = np.argsort(every, axis=1, kind="stable")
    return Alarms(np.take_along_axis(every, order, axis=1), of[order], after[order])


class Schedule:
    """The time events of a run over [`start`, `end`]. Times of `at=` are evaluated once."""

    def __init__(self, system: HybridSystem, start: float, p: Array, end: float = np.inf) -> None:
        self.system, self.start, self.p, self.end = system, start, p, end
        self._once: dict[int, tuple[list[float], list[TransitionMap]]] = {}
        self._alarms: tuple[Alarms, ...] = ()
        self._until = np.inf

    def time(self, transition: TransitionMap, count: int) -> float:
        """Time of a transition; for `every=`, after `count` periods."""
        time = float(transition.kernels["time"](self.p, schedule_state(self.start, count))[0][0])
        if not np.isfinite(time) or (transition.trigger.is_periodic and count and time <= self.start):
            what = "period is not positive" if transition.trigger.is_periodic else "time is not finite"
            raise NonFiniteError(
                f"The {what}: scheduled {time}.",
                transition=transition.name,
                mode=self.system.modes[transition.source].name,
                time=self.start,
                remedy="Check at= or every= of the transition at these parameters.",
            )
        return time

    def once(self, mode: ModeSystem, first: float, last: float = np.inf) -> Iterator[tuple[float, TransitionMap]]:
        """Yield the `at=` transitions of a mode within [first, last], by time, then in order of declaration."""
        times, transitions = self._sorted(mode)
        for i in range(bisect_left(times, first), len(times)):
            if times[i] > last:
                return
            yield times[i], transitions[i]

    def alarms(
        self, t: float, measured: Sequence[tuple[float, int]], knots: Knots | None
    ) -> tuple[tuple[Alarms, ...], float]:
        """All time events, measurements and knots by mode, and the time up to which the lists are complete."""
        if t >= self._until or not self._alarms:
            self._until = np.inf if knots is None else knots.until
            self._alarms = tuple(self._of_mode(mode, t, measured, knots) for mode in self.system.modes)
        return self._alarms, self._until

    def _of_mode(
        self, mode: ModeSystem, t: float, measured: Sequence[tuple[float, int]], knots: Knots | None
    ) -> Alarms:
        link_of = {index: link for link, index in enumerate(mode.timed, start=len(mode.guarded))}
        others = len(mode.guarded) + len(mode.timed)
        once, transitions = self._sorted(mode)
        turns = np.zeros(0) if knots is None else knots.times
        times = [turns, np.array(once), np.array([when for when, _ in measured])]  # at equal times knots come first
        counts = [
            np.arange(turns.size),
            np.zeros(len(once), dtype=np.int64),
            np.array([i for _, i in measured], dtype=np.int64),
        ]
        links = [
            np.full(turns.size, others + TURNS),
            np.array([link_of[t.index] for t in transitions], dtype=np.int64),
            np.full(len(measured), others + MEASURES),
        ]
        for transition in self.periodic(mode):
            ticks, when = self._ticks(transition, t)
            times.append(when)
            counts.append(ticks)
            links.append(np.full(ticks.size, link_of[transition.index]))
            self._until = min(self._until, float(listed_until(when[None])[0]))
        found = in_order([each[None] for each in times], links, counts)
        return found._replace(times=found.times[0], links=found.links[0], counts=found.counts[0])

    def _ticks(self, transition: TransitionMap, t: float) -> tuple[NDArray[np.int64], Array]:
        """Counts and times of the ticks of a transition from time t on."""
        period = self.time(transition, 1) - self.start
        first = max(1, int((t - self.start) // period))
        counts = np.arange(first, first + ticks_within(period, self.end - t))
        return counts, times_of(transition, self.start, self.p[None], counts)[0]

    def periodic(self, mode: ModeSystem) -> list[TransitionMap]:
        """The `every=` transitions of a mode."""
        return [self.system.transitions[i] for i in mode.timed if self.system.transitions[i].trigger.is_periodic]

    def _sorted(self, mode: ModeSystem) -> tuple[list[float], list[TransitionMap]]:
        cache, key = self.system.graph.cache, ("times", mode.index)
        if key in cache:
            fixed: tuple[list[float], list[TransitionMap]] = cache[key]
            return fixed
        if mode.index not in self._once:
            single = [t for t in (self.system.transitions[i] for i in mode.timed) if not t.trigger.is_periodic]
            pairs = sorted(((self.time(t, 0), i) for i, t in enumerate(single)))
            self._once[mode.index] = [time for time, _ in pairs], [single[i] for _, i in pairs]
            if not any(t.kernels["time"].function.jac_sparsity(0, k).nnz() for t in single for k in (0, 1)):
                cache[key] = self._once[mode.index]  # at any parameters
        return self._once[mode.index]
