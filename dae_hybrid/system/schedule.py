"""Due times of the time events of a run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np
from numpy.typing import NDArray

from dae_hybrid.codegen.kernels import Kernel
from dae_hybrid.errors import NonFiniteError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.native_plan import MEASURES, TURNS, Alarms, Knots
from dae_hybrid.system.transition_map import CLOCK, TransitionMap, schedule_state

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
    kernel, numbers = _family(transition)
    rows = np.repeat(np.hstack((p, np.tile(numbers, (len(p), 1)))), counts.size, axis=0).T
    clocks = np.vstack((np.full(rows.shape[1], start), np.tile(counts, len(p))))
    return np.array(kernel.function(rows, clocks))[0].reshape(len(p), counts.size)


def depends_on_parameters(transition: TransitionMap, n_p: int) -> bool:
    """Whether the times of a transition depend on any of the parameters (n_p,)."""
    return any(column < n_p for column in _family(transition)[0].function.jac_sparsity(0, 0).get_col())


def _family(transition: TransitionMap) -> tuple[Kernel, Array]:
    """The kernel that gives the times of a transition, and the numbers behind the parameters."""
    own = transition.kernels["time"]
    return own.family or (own, np.zeros(0))


class TimesOnce:
    """The times of all `at=` of a mode; transitions that differ in numbers are evaluated together.

    Attributes
    ----------
    links : ndarray of int64
        Links of the transitions.
    moves : bool
        Whether any time depends on parameters.
    in_order : tuple of ndarray or None
        Times in order and their links, once they are known, if none depends on parameters.
    """

    in_order: tuple[Array, NDArray[np.int64]] | None = None

    def __init__(self, system: HybridSystem, mode: ModeSystem) -> None:
        timed = [system.transitions[i] for i in mode.timed]
        once = [(link, t) for link, t in enumerate(timed, start=len(mode.guarded)) if not t.trigger.is_periodic]
        self.links = np.array([link for link, _ in once], dtype=np.int64)
        alike: dict[Kernel, list[int]] = {}
        for i, (_, transition) in enumerate(once):
            alike.setdefault(_family(transition)[0], []).append(i)
        self.moves = any(depends_on_parameters(once[own[0]][1], system.parameters.size) for own in alike.values())
        self._parts = [(places, once[places[0]][1].kernels["time"], np.zeros(0)) for places in alike.values()]
        for k, (kernel, places) in enumerate(alike.items()):
            if len(places) > 1:
                numbers = np.concatenate([_family(once[i][1])[1] for i in places])
                self._parts[k] = places, _together(kernel, system.parameters.size, len(places)), numbers

    def at(self, p: Array) -> Array:
        """The times (n,) at parameters (n_p,)."""
        found = np.empty(self.links.size)
        for places, kernel, numbers in self._parts:
            found[places] = kernel(p, 0.0, *([numbers] if len(places) > 1 else []))[0]
        return found

    def of_runs(self, p: Array) -> Array:
        """The times (N, n) at parameters (N, n_p)."""
        found = np.empty((len(p), self.links.size))
        for places, kernel, numbers in self._parts:
            if len(places) > 1:
                found[:, places] = [kernel(own, 0.0, numbers)[0] for own in p]
            else:
                found[:, places[0]] = np.array(kernel.function(p.T, 0.0))[0]
        return found


def once_of(system: HybridSystem, mode: ModeSystem) -> TimesOnce:
    """The times of all `at=` of a mode; made once for a system."""
    cache, key = system.graph.cache, ("times", mode.index)
    if key not in cache:
        cache[key] = TimesOnce(system, mode)
    found: TimesOnce = cache[key]
    return found


def _together(kernel: Kernel, n_p: int, count: int) -> Kernel:
    """A kernel (p, clock, numbers) -> times for `count` transitions that differ in numbers."""
    function = kernel.function
    p, clock = ca.MX.sym("p", n_p), ca.MX.sym("clock", CLOCK)
    numbers = ca.MX.sym("numbers", function.size1_in(0) - n_p)
    one = ca.Function("time", [p, clock, numbers], [function(ca.vertcat(p, numbers), clock)])
    every = one.map("times", "serial", count, [0, 1], [])
    own = ca.MX.sym("numbers", numbers.numel() * count)
    found = every(p, clock, ca.reshape(own, numbers.numel(), count))
    return Kernel(ca.Function("times", [p, clock, own], [ca.vec(found)]))


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
        self._once: dict[int, tuple[Array, NDArray[np.int64]]] = {}
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
        link_of = {index: link for link, index in enumerate(mode.timed, start=len(mode.guarded))}
        others = len(mode.guarded) + len(mode.timed)
        once, own = self._sorted(mode)
        turns = np.zeros(0) if knots is None else knots.times
        times = [turns, once, np.array([when for when, _ in measured])]  # at equal times knots come first
        counts = [
            np.arange(turns.size),
            np.zeros(once.size, dtype=np.int64),
            np.array([i for _, i in measured], dtype=np.int64),
        ]
        links = [np.full(turns.size, others + TURNS), own, np.full(len(measured), others + MEASURES)]
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

    def _sorted(self, mode: ModeSystem) -> tuple[Array, NDArray[np.int64]]:
        """Times of the `at=` of a mode, in order, and their links."""
        if mode.index not in self._once:
            stated = once_of(self.system, mode)
            self._once[mode.index] = stated.in_order or self._at_parameters(mode, stated)
        return self._once[mode.index]

    def _at_parameters(self, mode: ModeSystem, stated: TimesOnce) -> tuple[Array, NDArray[np.int64]]:
        times = stated.at(self.p)
        for link in stated.links[~np.isfinite(times)].tolist():
            self.time(self.system.transitions[mode.timed[link - len(mode.guarded)]], 0)  # raises
        order = np.argsort(times, kind="stable")
        found = times[order], stated.links[order]
        if not stated.moves:
            stated.in_order = found
        return found
