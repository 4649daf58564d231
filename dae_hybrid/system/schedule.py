"""Due times of the time events of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np
from numpy.typing import NDArray

from dae_hybrid.codegen.kernels import Kernel
from dae_hybrid.errors import EventError, NonFiniteError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.native_plan import MEASURES, TURNS, Alarms, Knots
from dae_hybrid.port.segment_rules import SAME_INSTANT
from dae_hybrid.system.signals import at_knot
from dae_hybrid.system.transition_map import CLOCK, TransitionMap, schedule_state

if TYPE_CHECKING:
    from dae_hybrid.system.system import HybridSystem, ModeSystem

#: ticks listed at a time if the end of the run is unknown, or if more than the second number remain
TICKS, MOST_TICKS = 1000, 100_000


def ticks_within(period: float, duration: float) -> int:
    """Number of ticks of a clock to list at a time; slightly more than the rest of the run has."""
    left = duration / period if period > 0 else np.inf
    return int(left) + 3 if left < MOST_TICKS else TICKS


def resolution(start: float, end: float) -> float:
    """Return the largest difference of two times of a run that counts as rounding."""
    return SAME_INSTANT * (max(abs(start), abs(end), end - start) if np.isfinite(end) else abs(start))


def times_of(transition: TransitionMap, start: float, p: Array, counts: NDArray[Any]) -> Array:
    """Times of the ticks with numbers `counts`, (N, n), in runs from `start` with parameters (N, n_p)."""
    kernel, numbers = _family(transition)
    rows = np.repeat(np.hstack((p, np.tile(numbers, (len(p), 1)))), counts.size, axis=0)
    return _evaluate(kernel, rows, start, np.tile(counts, len(p))).reshape(len(p), counts.size)


def _evaluate(kernel: Kernel, rows: Array, start: float, counts: NDArray[Any]) -> Array:
    """Times (n,) for rows of parameters and numbers, after the given numbers of periods (n,)."""
    clocks = np.vstack((np.full(len(rows), start), counts))
    return np.asarray(np.array(kernel.function(rows.T, clocks))[0])


def _family(transition: TransitionMap) -> tuple[Kernel, Array]:
    """The kernel that gives the times of a transition, and the numbers behind the parameters."""
    own = transition.kernels["time"]
    return own.family or (own, np.zeros(0))


class TimedTransitions:
    """The `at=` of a mode, or its `every=`; the times of those that differ in numbers are evaluated together.

    Attributes
    ----------
    links : ndarray of int64
        Links of the transitions.
    moves : bool
        Whether any time depends on parameters.
    in_order : tuple of ndarray or None
        Times of `at=` in order and their links, once they are known, if none depends on parameters.
    """

    in_order: tuple[Array, NDArray[np.int64]] | None = None

    def __init__(self, system: HybridSystem, mode: ModeSystem, *, periodic: bool) -> None:
        timed = enumerate((system.transitions[i] for i in mode.timed), start=len(mode.guarded))
        own = [(link, t) for link, t in timed if t.trigger.is_periodic == periodic]
        self.links, self.transitions = np.array([link for link, _ in own], dtype=np.int64), [t for _, t in own]
        self._alike: dict[Kernel, list[int]] = {}
        for i, transition in enumerate(self.transitions):
            self._alike.setdefault(_family(transition)[0], []).append(i)
        n_p = system.parameters.size
        self.moves = any(column < n_p for k in self._alike for column in k.function.jac_sparsity(0, 0).get_col())
        self._parts = [(places, self._times(kernel, n_p, places)) for kernel, places in self._alike.items()]

    def _times(self, kernel: Kernel, n_p: int, places: list[int]) -> Callable[..., list[Array]]:
        """A function (p, clock) that gives the times of transitions with the same kernel."""
        if len(places) == 1:
            return self.transitions[places[0]].kernels["time"]
        return partial(_together(kernel, n_p, len(places)), np.concatenate(self._numbers(places)))

    def _numbers(self, places: list[int]) -> list[Array]:
        return [_family(self.transitions[i])[1] for i in places]

    def at(self, p: Array, start: float, count: int) -> Array:
        """Times (n,) at parameters (n_p,); those of `every=` after `count` periods."""
        found, clock = np.empty(self.links.size), schedule_state(start, count)
        for places, times in self._parts:
            found[places] = times(p, clock)[0]
        return found

    def of_runs(self, p: Array, start: float) -> Array:
        """Times (N, n) of `at=` at parameters (N, n_p)."""
        found = np.empty((len(p), self.links.size))
        for places, times in self._parts:
            if len(places) > 1:
                found[:, places] = [times(own, schedule_state(start, 0))[0] for own in p]
            else:
                found[:, places] = times_of(self.transitions[places[0]], start, p, np.zeros(1))
        return found

    def ticks(self, p: Array, start: float, counts: Sequence[NDArray[np.int64]]) -> list[Array]:
        """Times of all `every=` after the given numbers of periods, at parameters (n_p,)."""
        found = [np.zeros(0)] * self.links.size
        for kernel, places in self._alike.items():
            sizes = [counts[i].size for i in places]
            numbers = np.repeat(self._numbers(places), sizes, axis=0)
            rows = np.hstack((np.tile(p, (len(numbers), 1)), numbers))
            times = _evaluate(kernel, rows, start, np.concatenate([counts[i] for i in places]))
            for i, own in zip(places, np.split(times, np.cumsum(sizes)[:-1]), strict=True):
                found[i] = own
        return found


def timed_transitions(system: HybridSystem, mode: ModeSystem, *, periodic: bool) -> TimedTransitions:
    """The `at=` or the `every=` of a mode; made once for a system."""
    cache, key = system.graph.cache, ("timed", mode.index, periodic)
    if key not in cache:
        cache[key] = TimedTransitions(system, mode, periodic=periodic)
    found: TimedTransitions = cache[key]
    return found


def _together(kernel: Kernel, n_p: int, count: int) -> Kernel:
    """A kernel (numbers, p, clock) -> times for `count` transitions that differ in numbers."""
    function = kernel.function
    p, clock = ca.MX.sym("p", n_p), ca.MX.sym("clock", CLOCK)
    numbers = ca.MX.sym("numbers", function.size1_in(0) - n_p)
    one = ca.Function("time", [p, clock, numbers], [function(ca.vertcat(p, numbers), clock)])
    every = one.map("times", "serial", count, [0, 1], [])
    own = ca.MX.sym("numbers", numbers.numel() * count)
    found = every(p, clock, ca.reshape(own, numbers.numel(), count))
    return Kernel(ca.Function("times", [own, p, clock], [ca.vec(found)]))


def listed_until(ticks: Array) -> Array:
    """Time until which ticks (N, n) are complete, between the last two."""
    with np.errstate(invalid="ignore"):
        return np.asarray(1.5 * ticks[:, -1] - 0.5 * ticks[:, -2])


def merged(
    mode: ModeSystem,
    span: tuple[float, float],
    knots: Knots | None,
    once: tuple[Array, NDArray[np.int64]],
    measured: tuple[Array, Sequence[int]],
    ticks: Iterable[tuple[int, NDArray[np.int64], Array]],
) -> Alarms:
    """Merge the due times of a mode in N runs; at one time a knot precedes transitions, and these a measurement.

    Times are (N, n): `once` with the links of `at=`, `measured` with indices of measurements, `ticks` by clock with its
    link and the numbers of periods. Times that are equal to rounding become the same, and those that follow the end by
    rounding the end.
    """
    others = len(mode.guarded) + len(mode.timed) + len(mode.untaken)
    turns = np.zeros(0) if knots is None else knots.times
    kinds = [
        (np.tile(turns, (len(once[0]), 1)), np.full(turns.size, others + TURNS), np.arange(turns.size)),
        (*once, np.zeros_like(once[1])),
        (measured[0], np.full(len(measured[1]), others + MEASURES), np.array(measured[1], dtype=np.int64)),
        *((times, np.full(counts.size, link), counts) for link, counts, times in ticks),
    ]
    times, links, counts = zip(*kinds, strict=True)
    of, after = np.concatenate(links), np.concatenate(counts)
    ranks = np.where(of == others + TURNS, -1, of)
    order = np.argsort(ranks, kind="stable")
    every, of, after, ranks = np.hstack(times)[:, order], of[order], after[order], ranks[order]
    order = np.argsort(every, axis=1, kind="stable")
    every, of, after = np.take_along_axis(every, order, axis=1), of[order], after[order]
    equal = _equalised(every, ranks[order] < 0, *span)
    if equal is not every:
        order = np.lexsort((ranks[order], equal))
        every, of, after = (np.take_along_axis(own, order, axis=1) for own in (equal, of, after))
    return Alarms(every, of, after)


def _equalised(times: Array, is_knot: NDArray[np.bool_], start: float, end: float) -> Array:
    """Sorted times (N, n); those equal to rounding become the same, that of a knot if any is."""
    with np.errstate(invalid="ignore"):
        beyond = (times > end) & (times - end <= SAME_INSTANT * np.maximum(np.abs(times), times - start))
        times = np.where(beyond, end, times) if beyond.any() else times
        gaps = np.diff(times, axis=1, prepend=-np.inf)
        close = (gaps <= SAME_INSTANT * np.maximum(np.abs(times), times - start)).ravel()
    if np.array_equal(close, gaps.ravel() == 0):
        return times
    flat, group = times.ravel(), np.cumsum(~close) - 1
    common = flat[~close]
    common[group[is_knot.ravel()]] = flat[is_knot.ravel()]
    return np.asarray(common[group].reshape(times.shape))


class Schedule:
    """The time events of a run over [`start`, `end`]. Times of `at=` are evaluated once."""

    def __init__(self, system: HybridSystem, start: float, p: Array, end: float = np.inf) -> None:
        self.system, self.start, self.p, self.end = system, start, p, end
        self._once: dict[int, tuple[Array, NDArray[np.int64]]] = {}
        self._ticks_of: dict[int, tuple[float, float]] = {}
        self._alarms: tuple[Alarms, ...] = ()
        self._until = np.inf
        self._resolution = resolution(start, end)

    def time(self, transition: TransitionMap, count: int) -> float:
        """Time of a transition; for `every=`, after `count` periods."""
        time = float(transition.kernels["time"](self.p, schedule_state(self.start, count))[0][0])
        time = at_knot(self.system.signals, time, self.start)
        if not np.isfinite(time):
            raise self._not_due(transition, f"time is not finite: scheduled {time}")
        return time

    def ticks(self, transition: TransitionMap) -> tuple[float, float]:
        """First tick and period of an `every=`.

        Raises
        ------
        NonFiniteError
            The period is not positive, or the first tick precedes the start of the run.
        EventError
            The period is below the resolution of times.
        """
        if transition.index in self._ticks_of:
            return self._ticks_of[transition.index]
        first, second = self.time(transition, 1), self.time(transition, 2)
        period = second - first
        if not period > 0:
            raise self._not_due(transition, f"period is not positive: {period}")
        if first < self.start - self._resolution:
            raise self._not_due(transition, f"first tick, at {first}, precedes the start of the run")
        if period <= self._resolution:
            raise EventError(
                f"The period {period:.3g} is below the resolution of times, {self._resolution:.1e}.",
                transition=transition.name,
                mode=self.system.modes[transition.source].name,
                time=self.start,
                remedy="Count time from a start that is closer, or use a longer period.",
            )
        self._ticks_of[transition.index] = first, period
        return first, period

    def _not_due(self, transition: TransitionMap, what: str) -> NonFiniteError:
        return NonFiniteError(
            f"The {what}.",
            transition=transition.name,
            mode=self.system.modes[transition.source].name,
            time=self.start,
            remedy="Check at= or every= of the transition at these parameters.",
        )

    def once(self, mode: ModeSystem, first: float, last: float = np.inf) -> Iterator[tuple[float, TransitionMap]]:
        """Yield the `at=` transitions of a mode within [first, last], by time, then in order of declaration."""
        times, links = self._sorted(mode)
        for i in range(int(np.searchsorted(times, first)), times.size):
            if times[i] > last:
                return
            yield float(times[i]), self.system.transitions[mode.timed[links[i] - len(mode.guarded)]]

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
        once, links = self._sorted(mode)
        ticks = [(link, counts, times[None]) for link, counts, times in self._ticks(mode, t)]
        self._until = min(self._until, *(float(listed_until(times)[0]) for _, _, times in ticks), np.inf)
        when, indices = zip(*measured, strict=True) if measured else ((), ())
        taken = np.array([when], dtype=float), indices
        found = merged(mode, (self.start, self.end), knots, (once[None], links), taken, ticks)
        return found._replace(times=found.times[0], links=found.links[0], counts=found.counts[0])

    def _ticks(self, mode: ModeSystem, t: float) -> Iterator[tuple[int, NDArray[np.int64], Array]]:
        """Yield link, counts and times of the ticks of every clock of a mode from time t on."""
        stated = timed_transitions(self.system, mode, periodic=True)
        first, second = (stated.at(self.p, self.start, count) for count in (1, 2))
        if self.system.signals:
            first, second = (
                np.array([at_knot(self.system.signals, time, self.start) for time in own.tolist()])
                for own in (first, second)
            )
        usual = np.isfinite(first) & (first >= self.start - self._resolution) & (second - first > self._resolution)
        for i in np.flatnonzero(usual).tolist():
            self._ticks_of[stated.transitions[i].index] = float(first[i]), float(second[i] - first[i])
        own = [self.ticks(transition) for transition in stated.transitions]
        begins = [max(1, int((t - first) // period) + 1) for first, period in own]
        counts = [np.arange(n, n + ticks_within(d, self.end - t)) for n, (_, d) in zip(begins, own, strict=True)]
        yield from zip(stated.links.tolist(), counts, stated.ticks(self.p, self.start, counts), strict=True)

    def periodic(self, mode: ModeSystem) -> list[TransitionMap]:
        """The `every=` transitions of a mode."""
        return timed_transitions(self.system, mode, periodic=True).transitions

    def _sorted(self, mode: ModeSystem) -> tuple[Array, NDArray[np.int64]]:
        """Times of the `at=` of a mode, in order, and their links."""
        if mode.index not in self._once:
            stated = timed_transitions(self.system, mode, periodic=False)
            self._once[mode.index] = stated.in_order or self._at_parameters(stated)
        return self._once[mode.index]

    def _at_parameters(self, stated: TimedTransitions) -> tuple[Array, NDArray[np.int64]]:
        times = stated.at(self.p, self.start, 0)
        for i in np.flatnonzero(~np.isfinite(times)).tolist():
            self.time(stated.transitions[i], 0)  # raises
        if self.system.signals:
            times = np.array([at_knot(self.system.signals, time, self.start) for time in times.tolist()])
        order = np.argsort(times, kind="stable")
        found = times[order], stated.links[order]
        if not stated.moves:
            stated.in_order = found
        return found
