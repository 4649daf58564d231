"""What falls on one instant by coincidence, and what that does to derivatives.

Two transitions that are due together fire one after the other. A change of the parameters tells their times apart, and
then the other one may be first: where that makes a difference there are two one-sided derivatives. A guard that is zero
where its mode is entered or where the run starts or ends may, after a change of the parameters, be past zero already or
not get there. None of this matters where the times move together.

Times within the accuracy of the run are one instant here: which of them comes first is chance.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dae_hybrid.conditions import Conditions
from dae_hybrid.departure import at_rest
from dae_hybrid.errors import DaeHybridError, EventError
from dae_hybrid.events import TOGETHER, Instant, same_instant
from dae_hybrid.firing import Firing
from dae_hybrid.forward import Directions
from dae_hybrid.integrator import Array
from dae_hybrid.records import EventRecord
from dae_hybrid.system import ModeSystem
from dae_hybrid.trajectory import Trajectory
from dae_hybrid.transition import KNOWN, Arrival, clock

#: states and derivatives that agree to this share are the same, or to so many rtol
SAME, ACCURACY = 1e-6, 1e3
#: times that differ by less than this share of the run for a change of the parameters by their own size are the same
SAME_TIME = 1e-9

#: a mode, and t, x, m in it
_Point = tuple[ModeSystem, float, Array, Array]


@dataclass(frozen=True)
class _Outcome:
    """What an instant leads to: the mode and the point after it, its costs, and the records on the way."""

    mode: ModeSystem
    at: Arrival
    costs: Array
    records: list[EventRecord]

    def agrees(self, other: _Outcome, accuracy: float) -> bool:
        """Whether the other outcome is the same state at the same cost."""
        pairs = ((self.at.x, other.at.x), (self.at.m, other.at.m), (self.costs, other.costs))
        return self.mode is other.mode and all(_close(a, b, accuracy) for a, b in pairs)


def is_suspicious(trajectory: Trajectory) -> bool:
    """Whether anything falls on one instant, or on an end of the run, that may move."""
    look = _Look(trajectory)
    if look.moving_at_start(np.eye(trajectory.parameters.size)):
        return True
    if look.at_rest(look.end):
        return True
    if not trajectory.uncertified:
        return False
    for _, events in look.instants():
        if len(events) == 1 and events[0].certified:
            continue
        if len(events) > 1 or look.others(events[0]) or look.at_rest(look.before(events[0])):
            return True
        movable = look.system.transitions[events[0].index].movable
        if movable and (look.is_first(events) or look.is_last(events)):
            return True
        if look.undecided_after(events[-1]):
            return True
    return False


def coincidences(trajectory: Trajectory, directions: Directions) -> tuple[str, ...]:
    """One-sided derivatives of a run along its directions, as sentences; others are refused as conditions."""
    look, found = _Look(trajectory), []
    along = _Along(trajectory, directions)
    for index in look.moving_at_start(directions.directions):
        _refuse_start(look, index, directions.conditions)
    for first, events in look.instants():
        found += _at_an_instant(look, along, first, events)
    if look.at_rest(look.end):
        _refuse_rest(look, directions, look.end, directions.state)
    return tuple(dict.fromkeys(found))


def _at_an_instant(look: _Look, along: _Along, first: int, events: list[EventRecord]) -> list[str]:
    conditions = along.directions.conditions
    taus = along.directions.event_times[first : first + len(events)]
    before, after = along.directions.sides[first][0], along.directions.sides[first + len(events) - 1][1]
    if look.is_first(events) and not along.together(taus[0], np.zeros_like(taus[0])):
        _refuse_start(look, events[0].index, conditions)
    if look.is_last(events) and not along.together(taus[-1], np.zeros_like(taus[-1])):
        what = "A transition fires at the very end of the run, and its time moves with the parameters"
        remedy = "End the run a little earlier or later, or by this transition (target=None)."
        _refuse(look, events[-1].index, events[-1].time, conditions, what, remedy)
    others = look.others(events[0])
    due = {firing.transition.index for firing in others}
    times = [along.time_of(look, events[0], other, before) for other in others]
    fired = {events[0].index}
    for event, tau, earlier in zip(events[1:], taus[1:], taus[:-1], strict=True):
        # in another mode the same may be due by another transition
        known = any(along.together(tau, time) for time in (earlier, *times))
        open_ = event.order and not event.follows and event.index not in due and event.index not in fired
        if open_ and not known:
            _refuse_entry(look, event.index, event.time, conditions)
        fired.add(event.index)
    _refuse_rest(look, along.directions, look.before(events[0]), before)
    last = events[-1]
    settled = due | {event.index for event in events[:-1]}  # those are a matter of order
    for index in [i for i in look.undecided_after(last) if i not in settled]:
        point = (look.target(last), last.time, last.x_plus, last.memory_plus)
        if look.moves(index, *point, after, along.directions.directions, taus[-1]):
            _refuse_entry(look, index, last.time, conditions)
    found = []
    for other, time in zip(others, times, strict=True):
        why = None if along.together(taus[0], time) else along.order_matters(look, events[0], other, before)
        if why is not None:
            names = " and ".join(dict.fromkeys(f"'{name}'" for name in (events[0].transition, other.transition.name)))
            found.append(
                f"Transitions {names} are due at one instant, t = {events[0].time:.12g}, and their order matters: "
                f"{why}. Derivatives are those of the order in which they fired; simultaneous='reversed' gives the "
                "others."
            )
    return found


class _Look:
    """The instants of a run, and what is due or open at them."""

    def __init__(self, trajectory: Trajectory) -> None:
        self.run, self.system, self.p = trajectory, trajectory.system, trajectory.parameters
        self.accuracy = max(SAME, ACCURACY * trajectory.options.rtol)

    def slack(self, t: float) -> float:
        """Times that differ by no more are one instant."""
        return TOGETHER * self.run.options.rtol * max(abs(t), t - self.run.t_span[0])

    def instant(self, t: float) -> Instant:
        """A fresh instant of the run."""
        return Instant(self.system, self.run.t_span, self.run.options, slack=self.slack(t))

    def instants(self) -> Iterator[tuple[int, list[EventRecord]]]:
        """The events of the run by instant, with the number of the first."""
        events, first = self.run.events, 0
        for i in range(1, len(events) + 1):
            if i == len(events) or not (
                events[i].order or events[i].time - events[first].time <= self.slack(events[i].time)
            ):
                yield first, list(events[first:i])
                first = i

    def is_first(self, events: list[EventRecord]) -> bool:
        """Whether an instant is the start of the run."""
        start = self.run.t_span[0]
        return same_instant(events[0].time, start, start)

    def is_last(self, events: list[EventRecord]) -> bool:
        """Whether an instant is the end of the run, given as such."""
        start, end = self.run.t_span
        return same_instant(events[-1].time, end, start) and not self.run.ended_by_event

    def source(self, event: EventRecord) -> ModeSystem:
        """The mode that an event left."""
        return self.system.modes[self.system.transitions[event.index].source]

    def target(self, event: EventRecord) -> ModeSystem:
        """The mode that an event led to."""
        target = self.system.transitions[event.index].target
        return self.system.modes[self.run.final[1] if target is None else target]

    def others(self, event: EventRecord) -> list[Firing]:
        """The other transitions that are due where the first event of an instant fired."""
        mode, t = self.source(event), event.time
        if len(mode.guarded) + len(mode.timed) < 2:
            return []
        at = Arrival(event.x_minus, event.memory_minus, *self.entry(mode, t, event.x_minus, event.memory_minus))
        instant, found = self.instant(t), []
        for index, h, rate in instant.zeros(mode, t, at):
            transition = self.system.transitions[index]
            if transition.direction * rate >= 0 and index != event.index and transition.matters:
                found.append(Firing(transition, h, rate))
        for when, timed, count in instant.timetable(mode, t, self.p):
            if when - t <= self.slack(t) and timed.index != event.index:
                found.append(Firing(timed, count=count))
        return found

    def undecided_after(self, event: EventRecord) -> list[int]:
        """The same after an event."""
        if event.target is None:
            return []
        same = event.source == event.target and np.array_equal(event.x_minus, event.x_plus)
        own = event.index if same and np.array_equal(event.memory_minus, event.memory_plus) else None
        mode, point = self.target(event), (event.time, event.x_plus, event.memory_plus)
        found = self.undecided(mode, *point, own)
        if not found or event.source == event.target:
            return found
        resting = self._at_rest(mode, *point)  # whichever side they begin on, they do not cross
        return [i for i in found if i not in resting or not self._waits(i)]

    def _waits(self, index: int) -> bool:
        """Whether a guard that is past its threshold on entry, and moves on, is left alone."""
        transition = self.system.transitions[index]
        return transition.direction != 0 and transition.on_entry == "wait"

    def _at_rest(self, mode: ModeSystem, t: float, x: Array, m: Array) -> set[int]:
        """Transitions whose guards leave zero away from where they fire; see `departure`."""
        i = int(np.searchsorted(self._times, t - self.slack(t)))
        past = t - (self._times[i - 1] if i else self.run.t_span[0])
        places = {i: self.system.transitions[index] for i, index in enumerate(mode.guarded)}
        at = Arrival(x, m, *self.entry(mode, t, x, m))
        return {mode.guarded[i] for i in at_rest(places, mode, t, at, self.p, self.run.options, past)}

    @cached_property
    def _times(self) -> Array:
        return np.array([event.time for event in self.run.events])

    def undecided(self, mode: ModeSystem, t: float, x: Array, m: Array, own: int | None) -> list[int]:
        """Transitions whose guards are zero where a mode is entered and do not fire, but would be met from beside.

        `own` is the one that has just fired where nothing has changed but the clock.
        """
        if not mode.guarded:
            return []
        return self._undecided(mode, t, Arrival(x, m, *self.entry(mode, t, x, m)), own)

    def _undecided(self, mode: ModeSystem, t: float, at: Arrival, own: int | None) -> list[int]:
        instant, found = Instant(self.system, self.run.t_span, self.run.options), []
        for index, rate in instant.touching(mode, t, at):
            transition = self.system.transitions[index]
            meets = transition.direction * rate >= 0 or transition.on_entry != "wait"
            if meets and transition.movable and index != own and transition.matters:
                found.append(index)
        return found

    def before(self, event: EventRecord) -> _Point:
        """Where an event fired."""
        return self.source(event), event.time, event.x_minus, event.memory_minus

    @property
    def end(self) -> _Point:
        """The mode and the point that the run ends with."""
        t, mode, x, m = self.run.final
        return self.system.modes[mode], t, x, m

    def at_rest(self, point: _Point) -> list[int]:
        """Transitions whose guards rest at zero and depend on more than time."""
        mode, t, x, m = point
        if not (mode.guarded and self.run.notes):  # a note says which guards have rested
            return []
        instant = Instant(self.system, self.run.t_span, self.run.options)
        at = Arrival(x, m, *self.entry(mode, t, x, m))
        moving = {index for index, _, _ in instant.zeros(mode, t, at)}
        touching = [index for index, _ in instant.touching(mode, t, at) if index not in moving]
        return [i for i in touching if (transition := self.system.transitions[i]).movable and not transition.is_kink]

    def moving_at_start(self, directions: Array) -> list[int]:
        """Transitions whose guards are zero at the start without firing, and move with the parameters."""
        start = self.run.start
        open_ = self._undecided(start.mode, start.t, start.at, None)
        if not open_:
            return []
        point, state = (start.mode, start.t, start.x, start.at.m), start.derivatives @ directions
        return [index for index in open_ if self.moves(index, *point, state, directions, None)]

    def moves(
        self, index: int, mode: ModeSystem, t: float, x: Array, m: Array, state: Array, dp: Array, tau: Array | None
    ) -> bool:
        """Whether a guard that is zero at a point moves away from there, with the time of the point.

        By more than the run is accurate: what changes a state by less than that when a parameter doubles is nothing.
        """
        transition = self.system.transitions[index]
        h_w, h_p, rate = transition.guard_derivatives(mode, t, x, m, self.p, clock(self.run.t_span[0], 0))
        terms = [h_w[:, None] * state, h_p[:, None] * dp]
        if tau is not None:
            terms.append(rate * tau[None, :])
        if not any(term.any() for term in terms):
            return False
        change, size = (sum(f(term).sum(axis=0) for term in terms) for f in (np.asarray, np.abs))
        y = x[: mode.differential.size]
        accuracy = self.run.options.absolute(mode.differential) + KNOWN * self.run.options.rtol * np.abs(y)
        unseen = np.abs(h_w[: y.size]) @ accuracy
        scale = np.where(self.p != 0, np.abs(self.p), 1.0) @ np.abs(dp)
        return bool(np.any(np.abs(change) > self.accuracy * size + unseen / np.where(scale > 0, scale, 1.0)))

    def entry(self, mode: ModeSystem, t: float, x: Array, m: Array) -> list[Array]:
        """Rates, guards, their rates and sizes at a point."""
        return mode.kernels["entry"](t, x, m, self.p)


@dataclass
class _Along:
    """Derivatives of a run along its directions."""

    run: Trajectory
    directions: Directions

    def __post_init__(self) -> None:
        p = self.run.parameters
        scale = np.where(p != 0, np.abs(p), 1.0) @ abs(self.directions.directions)
        duration = self.run.final[0] - self.run.t_span[0]
        self.still = SAME_TIME * duration / np.where(scale > 0, scale, 1.0)
        self.accuracy = max(SAME, ACCURACY * self.run.options.rtol)

    def together(self, a: Array, b: Array) -> bool:
        """Whether two times move together."""
        return bool(np.all(np.abs(a - b) <= self.still + self.accuracy * np.maximum(np.abs(a), np.abs(b))))

    def time_of(self, look: _Look, event: EventRecord, other: Firing, before: Array) -> Array:
        """Derivative of the time at which another transition is due where an instant begins."""
        args = look.source(event), event.time, event.x_minus, event.memory_minus, self.run.parameters
        h_w, h_p, rate = other.transition.guard_derivatives(*args, clock(self.run.t_span[0], other.count))
        return np.asarray((h_w @ before + h_p @ self.directions.directions) / -rate)

    def order_matters(self, look: _Look, event: EventRecord, other: Firing, before: Array) -> str | None:
        """What another order of an instant changes, None where it is nothing."""
        system = self.run.system
        mine = Firing(system.transitions[event.index], event.guard, event.rate, event.count, event.follows)
        try:
            one, two = (_replay(look, event, firing) for firing in (mine, other))
            sides = [self._derivatives(outcome.records, before) for outcome in (one, two)]
        except DaeHybridError as error:
            return f"in the other order there is an error ({error.message})"
        if not one.agrees(two, self.accuracy):
            return "they lead to different states"
        same = all(_close(a, b, self.accuracy) for a, b in zip(*sides, strict=True))
        return None if same else "they lead to the same state with other derivatives"

    def _derivatives(self, records: list[EventRecord], before: Array) -> tuple[Array, Array]:
        """Derivatives of the state after an instant, and what it adds to those of the functionals."""
        system, p, start = self.run.system, self.run.parameters, self.run.t_span[0]
        earlier: Array | None = None
        state, gained = before, np.zeros((system.functionals.size, before.shape[1]))
        for record in records:
            map_ = system.linearise(record, p, start, self.directions.conditions)
            earlier, state, cost = map_.forward(state, self.directions.directions, earlier)
            gained = gained + cost
        return state, gained


def _replay(look: _Look, event: EventRecord, begin: Firing) -> _Outcome:
    """Go through an instant, from the point before its first event, with some transition first."""
    system, p, t, options = look.system, look.p, event.time, look.run.options
    mode, instant = look.source(event), look.instant(t)
    at = Arrival(event.x_minus, event.memory_minus, event.xdot_minus, *(np.zeros(0) for _ in range(3)))
    records: list[EventRecord] = []
    costs, firing = np.zeros(system.functionals.size), begin
    if not look.is_first([event]):
        arrived = Arrival(event.x_minus, event.memory_minus, *look.entry(mode, t, event.x_minus, event.memory_minus))
        instant.arrive(mode, t, arrived, armed=frozenset(mode.guarded))
    while True:
        source = mode
        if firing.transition.kind == "every":
            instant.counts[firing.transition.index] = firing.count
        order = instant.fired(firing.transition, t)
        mode, at, record, cost = firing.carry_out(
            system, t, at, p, options, order=order, rate_scale=event.rate_scale, is_knot=event.at_knot,
            earlier=records[-1] if records else event.earlier,
        )  # fmt: skip
        records.append(record)
        costs = costs + cost
        if record.target is None:
            return _Outcome(mode, at, costs, records)
        armed = frozenset(mode.guarded) if mode is source else frozenset()
        resting = instant.at_rest(mode, t, at, p, armed)
        following = instant.look(mode, t, at, entering=True, resting=resting).fires
        if following is None:
            when, timed, count = instant.due(mode, t, p)
            following = Firing(timed, count=count) if timed is not None and when - t <= look.slack(t) else None
        if following is None:
            return _Outcome(mode, at, costs, records)
        firing = following


def _close(a: Array, b: Array, accuracy: float) -> bool:
    scale = max(float(np.abs(a).max(initial=0.0)), float(np.abs(b).max(initial=0.0)))
    return bool(np.all(np.abs(a - b) <= accuracy * scale))


def _refuse_start(look: _Look, index: int, conditions: Conditions) -> None:
    what = "A guard is zero at the start of the run, to the last bit, and moves with the parameters"
    remedy = "Start the run earlier, or in the mode after the transition."
    _refuse(look, index, look.run.t_span[0], conditions, what, remedy)


def _refuse_rest(look: _Look, directions: Directions, point: _Point, state: Array) -> None:
    """Guards that have rested at zero, and leave it to one side or the other with the parameters."""
    for index in look.at_rest(point):
        if look.moves(index, *point, state, directions.directions, None):
            what = "The guard rests at zero, but leaves it with the parameters"
            remedy = "Change the parameters a little, or give what rests a mode of its own, without the guard."
            _refuse(look, index, point[1], directions.conditions, what, remedy)


def _refuse_entry(look: _Look, index: int, t: float, conditions: Conditions) -> None:
    what = "The guard is zero, to the last bit, where its mode is entered, but moves apart from the entry"
    remedy = "Change the parameters a little, or the reset so that it leads to either side of zero."
    _refuse(look, index, t, conditions, what, remedy)


def _refuse(look: _Look, index: int, t: float, conditions: Conditions, what: str, remedy: str) -> None:
    transition = look.system.transitions[index]
    conditions.refuse(
        EventError(
            f"{what}: a change of the parameters one way moves the transition, the other way takes it away.",
            transition=transition.name,
            mode=look.system.modes[transition.source].name,
            time=t,
            remedy=remedy,
        )
    )
