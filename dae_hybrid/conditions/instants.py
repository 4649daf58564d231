"""Instants of a run: the transitions that are due at them, and the guards whose firing is undecided."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.conditions.error_estimate import ErrorEstimate
from dae_hybrid.errors import EventError
from dae_hybrid.lazily import Lazily
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.point import StatePoint
from dae_hybrid.port.record_table import RecordTable
from dae_hybrid.port.records import EventRecord, KnotRecord, MeasurementRecord
from dae_hybrid.port.segment_rules import same_instant
from dae_hybrid.simulation.event_logic import MAX_SIMULTANEITY_RTOLS, SIMULTANEITY_RTOLS, EventLogic
from dae_hybrid.simulation.firing import Firing
from dae_hybrid.simulation.resting_guards import at_rest
from dae_hybrid.system.derivative_conditions import Conditions
from dae_hybrid.system.schedule import Schedule
from dae_hybrid.system.system import ModeSystem
from dae_hybrid.system.transition_map import STATE_ERROR_FACTOR, schedule_state
from dae_hybrid.trajectory.grazing import CLOSE_SHARE, accuracy, close_to_zero
from dae_hybrid.trajectory.trajectory import Trajectory

#: relative difference below which states and derivatives are equal, and the same in multiples of rtol
EQUALITY_RTOL, EQUALITY_RTOLS = 1e-6, 1e3
#: times are equal if a change of the parameters by their own size moves them apart by less than this share of the run
SAME_TIME = 1e-9
#: a mode, and t, x, m in it
type Point = tuple[ModeSystem, float, Array, Array]


class RunInspector:
    """Groups the events of a run into instants, and finds due and undecided transitions at them."""

    def __init__(self, trajectory: Trajectory, estimate: ErrorEstimate) -> None:
        self.estimate = estimate
        self.run, self.system, self.p = trajectory, trajectory.system, trajectory.parameters
        self.accuracy = max(EQUALITY_RTOL, EQUALITY_RTOLS * trajectory.options.rtol)
        self.schedule = Schedule(self.system, trajectory.t_span[0], self.p)

    def slack(self, t: float) -> float:
        """Return the largest difference of simultaneous times at t."""
        return float(self._slacks(t))

    def _slacks(self, t: float | Array) -> Array:
        known = self.nominal_slack(t)
        return (
            known
            if self.is_robust
            else np.clip(self.estimate.event_time_error(t), known, MAX_SIMULTANEITY_RTOLS / SIMULTANEITY_RTOLS * known)
        )

    def nominal_slack(self, t: float | Array) -> Array:
        """Return the same for a run whose error is that of its tolerances."""
        return SIMULTANEITY_RTOLS * self.run.options.rtol * np.maximum(np.abs(t), t - self.run.t_span[0])

    @property
    def times(self) -> Array:
        """Event times."""
        return self.run.parts.event_times

    @cached_property
    def is_regular(self) -> NDArray[np.bool_]:
        """Whether each event is certified and alone at its instant, with the accuracy of the tolerances."""
        times, slack = self.times, self._slacks(self.times)
        alone = np.diff(times, prepend=-np.inf) > slack
        alone[:-1] &= alone[1:]
        return np.asarray(self.run.parts.certified & alone & (slack == self.nominal_slack(times)))

    @cached_property
    def is_robust(self) -> bool:
        """Whether the grouping into instants is independent of the global error, up to MAX_SIMULTANEITY_RTOLS.

        This holds if no crossing of a guard is next to another time, and no uncertified event next to the zero of
        another guard.
        """
        run, start = self.run, self.run.t_span[0]
        if not self.times.size:
            return True
        fired = set(self.times.tolist())
        at = [time for mode in self.system.modes for time, _ in self.schedule.once(mode, start) if time not in fired]
        given = [run.t_span[1], *at, *(time for part in run.parts.given for time in measured_in(part))]
        others = np.sort(np.concatenate(([-np.inf], self.times, given, [np.inf])))
        timed = np.array([transition.trigger.is_timed for transition in self.system.transitions])
        events = self.times[~timed[run.parts.event_transitions]]
        first, after = (np.searchsorted(others, events, side=side) for side in ("left", "right"))
        away = np.minimum(events - others[first - 1], others[after] - events)
        near = MAX_SIMULTANEITY_RTOLS * run.options.rtol * np.maximum(np.abs(events), events - start)
        if np.any((away <= near) | (after - first > 1)):
            return False
        return not any(
            self._apart(event) <= MAX_SIMULTANEITY_RTOLS / SIMULTANEITY_RTOLS * self.nominal_slack(event.time)
            for event in run.uncertified
        )

    def _apart(self, event: EventRecord) -> float:
        """Return the time between an event and the nearest zero of another guard, by the rates of the guards."""
        mode = self.source(event)
        if len(mode.guarded) < 2:
            return np.inf
        _, guards, rates, _ = self.entry(*self.before(event))
        other = np.array(mode.guarded) != self.trigger(event)
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(np.nanmin(np.abs(guards / rates)[other], initial=np.inf))

    def event_logic(self, t: float) -> EventLogic:
        """Return event rules for an instant of the run, in their initial state."""
        return self._event_logic(self.slack(t))

    def _event_logic(self, slack: float = 0.0) -> EventLogic:
        return EventLogic(self.system, self.run.t_span, self.run.options, self.schedule, slack)

    @cached_property
    def begins(self) -> list[int]:
        """Indices of the first events of the instants, and the number of events."""
        times, slack, orders = self.times.tolist(), self._slacks(self.times).tolist(), self.run.parts.event_orders
        found = [0]
        for i, order in enumerate(orders.tolist()):
            if i and not (order or times[i] - times[found[-1]] <= slack[i]):
                found.append(i)
        return [*found, len(times)] if times else [0]

    @cached_property
    def instants(self) -> Lazily[tuple[int, list[EventRecord]]]:
        """The events of the run by instant, with the index of the first."""
        begins, events = self.begins, self.run.events
        return Lazily([(len(begins) - 1, lambda i: (begins[i], list(events[begins[i] : begins[i + 1]])))])

    def unsure(self) -> Iterator[tuple[int, list[EventRecord]]]:
        """Yield the instants, except those of one event that `is_regular`."""
        begins = np.array(self.begins)
        sure = self.is_regular[begins[:-1]] & (np.diff(begins) == 1)
        yield from (self.instants[i] for i in np.flatnonzero(~sure).tolist())

    def is_first(self, events: list[EventRecord]) -> bool:
        """Whether an instant is the start of the run."""
        start = self.run.t_span[0]
        return same_instant(events[0].time, start, start)

    def is_beside_end(self, events: list[EventRecord]) -> bool:
        """Whether the given end of the run coincides with an instant to the accuracy of the run."""
        t, end = events[-1].time, self.run.t_span[1]
        return abs(end - t) <= self.slack(t)

    def ends_beside_an_event(self) -> bool:
        """Whether the given end of the run coincides with an event that moves, to the accuracy of the run."""
        t, end = self.times, self.run.t_span[1]
        movable = np.array([transition.movable for transition in self.system.transitions], dtype=bool)
        return bool(np.any((np.abs(end - t) <= self._slacks(t)) & movable[self.run.parts.event_transitions]))

    def is_rounding(self, one: float, other: float) -> bool:
        """Whether two times are equal to rounding."""
        return same_instant(one, other, self.run.t_span[0])

    def source(self, event: EventRecord) -> ModeSystem:
        """Return the mode before an event."""
        return self.system.modes[self.system.transitions[event.index].source]

    def target(self, event: EventRecord) -> ModeSystem:
        """Return the mode after an event."""
        target = self.system.transitions[event.index].target
        return self.system.modes[self.run.final[1] if target is None else target]

    def others(self, event: EventRecord) -> list[Firing]:
        """Return the other transitions that are due at the first event of an instant."""
        mode = self.source(event)
        if len(mode.guarded) + len(mode.timed) < 2:
            return []
        return [firing for firing in self.due(self.before(event)) if firing.transition.index != self.trigger(event)]

    def move_apart(self, events: Sequence[EventRecord], others: Sequence[Firing]) -> bool:
        """Whether simultaneous transitions may move apart: there are several, and not all of their times are fixed."""
        indices = [event.index for event in events] + [firing.transition.index for firing in others]
        return len(indices) > 1 and any(self.system.transitions[index].movable for index in indices)

    def ceasing_conditions(self, event: EventRecord) -> list[Firing]:
        """Return transitions whose conditions cease to hold at an event, to the accuracy of the run."""
        mode, _, x, m = point = self.before(event)
        every = self.system.transitions
        conditions = {i for i in mode.guarded if every[i].jumps}
        if event.source != event.target or not conditions:
            return []
        return [
            Firing(every[index], h, rate)
            for index, h, rate in self._within_accuracy(point, StatePoint(x, m, *self.entry(*point)))
            if index in conditions and every[index].direction * rate < 0
        ]

    def trigger(self, event: EventRecord) -> int:
        """Return the index of the transition that triggered an event."""
        return self.system.transitions[event.index].trigger_index

    def firing(self, event: EventRecord) -> Firing:
        """Return the firing of an event."""
        transition = self.system.transitions[self.trigger(event)]
        return Firing(transition, event.guard, event.rate, event.count, event.follows)

    def with_siblings(self, indices: set[int]) -> set[int]:
        """Return these transitions, and those that change the same relation or step function."""
        keys = {self._key(index) for index in indices}
        return {t.index for t in self.system.transitions if self._key(t.index) in keys}

    def _key(self, index: int) -> Any:
        """Return a key that the transitions of one relation share."""
        relation = self.system.transitions[index].relation
        return index if relation is None else relation.memory

    def sides_after(self, events: Sequence[EventRecord], but: Firing) -> dict[int, int]:
        """Return the sides of the events' guards after them, except that of a transition that is to fire again."""
        if not events or events[-1].target is None:
            return {}
        fired = {self.trigger(event) for event in events} - self.with_siblings({but.transition.index})
        mode, t, x, m = self.after(events[-1])
        at = StatePoint(x, m, *self.entry(mode, t, x, m))
        zero = {index: rate for index, rate in self._event_logic(self.slack(t)).at_zero(mode, t, at)}
        guards = zip(mode.guarded, at.guards.tolist(), strict=True)
        return {index: int(np.sign(zero.get(index, h))) for index, h in guards if index in fired}

    def settled(self, due: set[int], events: Sequence[EventRecord], conditions: Conditions) -> set[int]:
        """Return the transitions of an instant whose order alone is open: those that fired or were due.

        Relations, and transitions that were due but did not fire, are excluded if an event has moved their guards.
        """
        fired = self.with_siblings({self.trigger(event) for event in events})
        kept = {index for index in fired if self.system.transitions[index].relation is None}
        return kept | (fired | self.with_siblings(due)) & self.untouched(events, conditions)

    def untouched(self, events: Sequence[EventRecord], conditions: Conditions) -> set[int]:
        """Return the transitions whose guards move alike before and after events, relations shared.

        Their derivatives are the same, and so are the signs of their rates; one that vanishes to the accuracy of the
        run, as at a touch, has none.
        """
        first, last = events[0], events[-1]
        if last.target is None:
            return set()
        n = self.source(first).differential.size + first.memory_minus.size
        state, none = np.eye(n), np.zeros((self.p.size, n))
        taus: list[Array] = []
        for event in events:
            map_ = self.system.linearise(event, self.p, self.run.t_span[0], conditions)
            tau, state, _ = map_.forward(state, none, taus[-1] if taus else None)
            taus.append(tau)
        before = self._seen(self.before(first), np.eye(n), taus[-1])
        after = self._seen(self.after(last), state, taus[-1])
        keys = {self._key(index): index for index in self.source(first).guarded}
        found = set()
        for index, (seen, rate) in after.items():
            earlier = keys.get(self._key(index), -1)
            if earlier not in before:
                continue
            other, rate_before = before[earlier]
            nothing = EQUALITY_RTOL * np.abs(other).max(initial=0.0)
            still = self.accuracy * max(abs(rate), abs(rate_before))
            signs = [np.sign(v) if abs(v) > still else 0.0 for v in (rate, rate_before)]
            turns = self.system.transitions[index].relation is not None  # its guard changes sign with its side
            for sign in (1, -1) if turns else (1,):
                same = np.abs(seen - sign * other).max(initial=0.0) <= nothing
                if same and signs[0] == sign * signs[1]:
                    found.add(index)
        return found

    def _seen(self, point: Point, state: Array, tau: Array) -> dict[int, tuple[Array, float]]:
        """Return the derivatives of the guards of a mode at a moving time, and their rates."""
        found, start = {}, schedule_state(self.run.t_span[0], 0)
        for index in point[0].guarded:
            h_w, _, rate = self.system.transitions[index].guard_derivatives(*point, self.p, start)
            with np.errstate(invalid="ignore"):  # of a root at zero; it is like nothing else
                found[index] = h_w @ state + rate * tau, float(rate)
        return found

    def entered_beside(self, index: int, guard: float = 0.0, rate: float = 1.0) -> Firing:
        """Return the firing of a transition whose guard is zero on entry, to the accuracy of the run, and leaves zero.

        A neighbouring run begins on the other side. There the relation of such a transition has changed at the entry,
        and changes back when its guard crosses.
        """
        transition = self.system.transitions[index]
        return Firing(transition, guard, rate, follows=transition.relation is not None)

    def near_after(self, event: EventRecord) -> list[Firing]:
        """Return `near` after an event, without its own transition and those whose guards it has not moved."""
        if event.target is None:
            return []
        found = [firing for firing in self.near(self.after(event)) if firing.transition.index != self.trigger(event)]
        mode, t, *_ = self.after(event)
        if event.source != event.target:
            return found + self._times_near(mode, t, event)
        left_alone = self.untouched([event], Conditions(strict=False)) if found else set()
        return [firing for firing in found if firing.transition.index not in left_alone]

    def _times_near(self, mode: ModeSystem, t: float, event: EventRecord) -> list[Firing]:
        """Return other time events that coincide with a mode's entry by an event to the accuracy of the run.

        The events of the instant use up the ticks of their clocks.
        """
        found, slack, used = [], self.slack(t), self._ticks_until(event)
        for transition in self.schedule.periodic(mode):
            first, period = self.schedule.ticks(transition)
            count = round((t - first) / period) + 1
            is_used = (transition.shared or transition.clock, count) in used
            if count > 0 and not is_used and abs(self.schedule.time(transition, count) - t) <= slack:
                found.append(Firing(transition, count=count))
        once = (transition for _, transition in self.schedule.once(mode, t - slack, t + slack))
        return found + [Firing(transition) for transition in once if (transition.key, 0) not in used]

    def _ticks_until(self, event: EventRecord) -> set[tuple[int | str, int]]:
        """Return clocks and counts of the ticks, and keys of the times, that an instant has used up with an event."""
        own = [(self.system.transitions[e.index], e.count) for e in (*self.earlier(event), event)]
        return {(key, count) for transition, count in own for key in (transition.clock, transition.key) if key != ""}

    def earlier(self, event: EventRecord) -> list[EventRecord]:
        """Return the events of the instant of an event before it."""
        if not event.order:
            return []
        first = int(np.searchsorted(self._times, event.time - self.slack(event.time)))
        last = int(np.searchsorted(self._times, event.time, side="right"))
        events = self.run.events[first:last]
        return [e for e in events if self.is_rounding(e.time, event.time) and e.order < event.order]

    def due(self, point: Point) -> list[Firing]:
        """Return the transitions that are due at a point of a mode that stays active."""
        mode, t, x, m = point
        instant, at = self.event_logic(t), StatePoint(x, m, *self.entry(*point))
        zeros = instant.moving_zeros(mode, t, at)
        known = {index for index, _, _ in zeros}
        zeros += [zero for zero in self._within_accuracy(point, at) if zero[0] not in known]
        found = []
        for index, h, rate in zeros:
            transition = self.system.transitions[index]
            if transition.direction * rate >= 0 and not transition.refuses:
                found.append(Firing(transition, h, rate))
        last = t + self.slack(t)
        found += [Firing(timed, count=count) for when, timed, count in instant.timetable(mode, t, last) if when <= last]
        return found

    def due_after_end(self, point: Point, happened: list[EventRecord]) -> list[Firing]:
        """Return the transitions that would be due if a run continued from its last point, after the events there."""
        mode, t, *_ = point
        if not mode.guarded and not mode.timed:
            return []
        _, guards, rates, sizes = (values.tolist() for values in self.entry(*point))
        slack, near = self.slack(t), zip(guards, rates, sizes, strict=True)
        if not mode.timed and not any(abs(h) <= slack * abs(rate) + CLOSE_SHARE * size for h, rate, size in near):
            return []
        done = {(self.trigger(event), event.count) for event in happened}
        return [
            firing
            for firing in self.due(point)
            if (firing.guard * firing.rate < 0)
            or (firing.transition.trigger.is_timed and (firing.transition.index, firing.count) not in done)
        ]

    def is_exact(self, firing: Firing, point: Point) -> bool:
        """Whether a transition is due exactly at a point, to rounding."""
        mode, t, x, m = point
        if firing.transition.trigger.is_timed:
            exact = self._event_logic().timetable(mode, t, t)
            return any(timed.index == firing.transition.index and when <= t for when, timed, _ in exact)
        instant = self._event_logic()
        zeros = instant.moving_zeros(mode, t, StatePoint(x, m, *self.entry(*point)))
        return any(index == firing.transition.index for index, _, _ in zeros)

    def undecided_after(self, event: EventRecord) -> list[int]:
        """Return `undecided` after an event."""
        if event.target is None:
            return []
        same = event.source == event.target and np.array_equal(event.x_minus, event.x_plus)
        own = self.trigger(event) if same and np.array_equal(event.memory_minus, event.memory_plus) else None
        mode, point = self.target(event), (event.time, event.x_plus, event.memory_plus)
        found = self.undecided(mode, *point, own)
        if not found or event.source == event.target:
            return found
        resting = self._at_rest(mode, *point)  # they do not cross from either side
        return [i for i in found if i not in resting or not self._waits(i)]

    def _waits(self, index: int) -> bool:
        """Whether a guard that is past its threshold on entry does not fire."""
        transition = self.system.transitions[index]
        return transition.direction != 0 and transition.on_entry == "wait"

    def _at_rest(self, mode: ModeSystem, t: float, x: Array, m: Array) -> set[int]:
        """Return transitions whose guards leave zero to the side on which they do not fire; see `resting_guards`."""
        i = int(np.searchsorted(self._times, t - self.slack(t)))
        past = t - (self._times[i - 1] if i else self.run.t_span[0])
        places = {i: self.system.transitions[index] for i, index in enumerate(mode.guarded)}
        at = StatePoint(x, m, *self.entry(mode, t, x, m))
        return {mode.guarded[i] for i in at_rest(places, mode, t, at, self.p, self.run.options, past)}

    @cached_property
    def _times(self) -> Array:
        return np.array([event.time for event in self.run.events])

    def undecided(self, mode: ModeSystem, t: float, x: Array, m: Array, own: int | None) -> list[int]:
        """Return transitions whose guards are zero on entry without firing, but would fire in a neighbouring run.

        `own` is the transition that has just fired, if it has changed nothing but the clock.
        """
        if not mode.guarded:
            return []
        return self._undecided(mode, t, StatePoint(x, m, *self.entry(mode, t, x, m)), own)

    def _undecided(self, mode: ModeSystem, t: float, at: StatePoint, own: int | None) -> list[int]:
        instant, found = self._event_logic(), []
        for index, rate in instant.at_zero(mode, t, at):
            transition = self.system.transitions[index]
            meets = transition.direction * rate >= 0 or transition.on_entry != "wait"
            if meets and transition.movable and index != own and transition.matters:
                found.append(index)
        return found

    def near(self, point: Point) -> list[Firing]:
        """Return transitions whose firing on entry into a mode depends on the error of the state.

        Their guards are within a few tolerances of zero, but not zero to rounding.
        """
        mode, t, x, m = point
        if not mode.guarded:
            return []
        start = self.run.start
        at = start.at if m is start.at.m and t == start.t else StatePoint(x, m, *self.entry(*point))
        close = self._within_accuracy(point, at)
        if not close:
            return []
        exact = self._event_logic()
        touching, found = {index for index, _ in exact.at_zero(mode, t, at)}, []
        for index, h, rate in close:
            transition = self.system.transitions[index]
            meets = transition.direction * rate >= 0 or transition.on_entry != "wait"
            if meets and transition.movable and transition.matters and index not in touching:
                away = transition.direction * rate < 0
                found.append(self.entered_beside(index, h, rate) if away else Firing(transition, h, rate))
        return found

    def _within_accuracy(self, point: Point, at: StatePoint) -> list[tuple[int, float, float]]:
        """Return transitions whose guards are within a few tolerances of zero and move, with value and rate."""
        mode, t, x, _ = point
        close = close_to_zero(self.run, mode, at.guards, at.sizes)
        values = zip(mode.guarded, at.guards.tolist(), at.rates.tolist(), close.tolist(), strict=True)
        found, duration, slack = [], self.run.t_span[1] - self.run.t_span[0], self.slack(t)
        allowed = self.run.options.allowed(mode.differential, x[: mode.differential.size])
        for index, h, rate, is_close in values:
            if is_close:
                derivatives = self.system.transitions[index].guard_derivatives
                by_y = derivatives(*point, self.p, schedule_state(self.run.t_span[0], 0))[0]
                tolerance = float(np.abs(by_y[: allowed.size]) @ allowed) + slack / SIMULTANEITY_RTOLS * abs(rate)
                known, most = SIMULTANEITY_RTOLS * tolerance, abs(rate) * duration
                if known < abs(h) <= MAX_SIMULTANEITY_RTOLS * tolerance and known < most:
                    known = self.estimate.state_error(t) * tolerance
                if abs(h) <= known < most:
                    found.append((index, h, rate))
        return found

    def before(self, event: EventRecord) -> Point:
        """Return the point before an event."""
        return self.source(event), event.time, event.x_minus, event.memory_minus

    def after(self, event: EventRecord) -> Point:
        """Return the point after an event."""
        return self.target(event), event.time, event.x_plus, event.memory_plus

    @property
    def end(self) -> Point:
        """Mode and point at the end of the run."""
        t, mode, x, m = self.run.final
        return self.system.modes[mode], t, x, m

    def at_rest(self, point: Point) -> list[int]:
        """Return transitions whose guards rest at zero and do not depend on time alone."""
        mode, t, x, m = point
        if not (mode.guarded and self.run.notes):  # a note says which guards have rested
            return []
        instant = self._event_logic()
        instant.still = dict(self._still)
        at = StatePoint(x, m, *self.entry(mode, t, x, m))
        moving = {index for index, _, _ in instant.moving_zeros(mode, t, at)}
        touching = [index for index, _ in instant.at_zero(mode, t, at) if index not in moving]
        return [i for i in touching if (transition := self.system.transitions[i]).movable and not transition.is_kink]

    @cached_property
    def _still(self) -> dict[int, float]:
        """Zero bands of guards that are at rest at the start."""
        logic, start = self._event_logic(), self.run.start
        logic.note_still(start.mode, start.t, start.at, self.p)
        return logic.still

    def moving_at_start(self, directions: Array | None = None) -> list[int]:
        """Return transitions whose guards are zero at the start without firing, and change with the parameters.

        The changes are along the columns of directions, or by each parameter.
        """
        start = self.run.start
        open_ = self._undecided(start.mode, start.t, start.at, None)
        if not open_:
            return []
        directions = np.eye(self.p.size) if directions is None else directions
        state = start.derivatives @ directions
        return [index for index in open_ if self.moves(index, *self.start, state, directions, None)]

    @property
    def start(self) -> Point:
        """Mode and point at the start of the run."""
        start = self.run.start
        return start.mode, start.t, start.x, start.at.m

    def moves(
        self, index: int, mode: ModeSystem, t: float, x: Array, m: Array, state: Array, dp: Array, tau: Array | None
    ) -> bool:
        """Whether a guard that is zero at a point changes there with the parameters, at the moving time of the point.

        Changes below the accuracy of the run when a parameter doubles are neglected. A guard whose derivatives are not
        finite, such as a root that is zero, moves.
        """
        transition = self.system.transitions[index]
        h_w, h_p, rate = transition.guard_derivatives(mode, t, x, m, self.p, schedule_state(self.run.t_span[0], 0))
        if not np.all(np.isfinite([*h_w, *h_p, rate])):
            return True
        terms = [h_w[:, None] * state, h_p[:, None] * dp]
        if tau is not None:
            terms.append(rate * tau[None, :])
        if not any(term.any() for term in terms):
            return False
        change, size = (sum(f(term).sum(axis=0) for term in terms) for f in (np.asarray, np.abs))
        y = x[: mode.differential.size]
        accuracy = self.run.options.absolute(mode.differential) + STATE_ERROR_FACTOR * self.run.options.rtol * np.abs(y)
        unseen = max(float(np.abs(h_w[: y.size]) @ accuracy), self._still.get(index, 0.0))
        scale = np.where(self.p != 0, np.abs(self.p), 1.0) @ np.abs(dp)
        return bool(np.any(np.abs(change) > self.accuracy * size + unseen / np.where(scale > 0, scale, 1.0)))

    def entry(self, mode: ModeSystem, t: float, x: Array, m: Array) -> list[Array]:
        """Return rates, guards, their rates and sizes at a point."""
        return mode.kernels["entry"](t, x, m, self.p)


def measured_in(part: object) -> list[float]:
    """Return the times of the measurements in a part of a run."""
    if isinstance(part, RecordTable):
        return part.measured_times
    return [part.time] if isinstance(part, MeasurementRecord) else []


def knots_in(part: object) -> list[float]:
    """Return the times of the knots in a part of a run."""
    if isinstance(part, RecordTable):
        return part.knot_times
    return [part.time] if isinstance(part, KnotRecord) else []


def inaccuracy(trajectory: Trajectory, event: EventRecord) -> float:
    """Return the error of an event time; given times are exact."""
    if not event.direction or event.follows or not event.rate:
        return 0.0
    return SIMULTANEITY_RTOLS * accuracy(trajectory, event) / abs(event.rate)


def refuse(inspector: RunInspector, index: int, t: float, conditions: Conditions, what: str, remedy: str) -> None:
    """Refuse a transition whose existence depends on a change of the parameters."""
    transition = inspector.system.transitions[index]
    conditions.fail_as_one_sided(
        EventError(
            f"{what}: a change of the parameters one way moves the transition, the other way takes it away.",
            transition=transition.name,
            mode=inspector.system.modes[transition.source].name,
            time=t,
            remedy=remedy,
        )
    )
