"""What falls on one instant by coincidence, and what that does to derivatives.

Two transitions that are due together fire one after the other. A change of the parameters tells their times apart, and
then the other one may be first: where that makes a difference there are two one-sided derivatives. A guard that is zero
where its mode is entered or where the run starts or ends may, after a change of the parameters, be past zero already or
not get there. None of this matters where the times move together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dae_hybrid.conditions import Conditions
from dae_hybrid.errors import DaeHybridError, EventError
from dae_hybrid.events import Instant, same_instant
from dae_hybrid.firing import Firing
from dae_hybrid.forward import Directions
from dae_hybrid.integrator import Array
from dae_hybrid.records import EventRecord
from dae_hybrid.system import ModeSystem
from dae_hybrid.trajectory import Trajectory
from dae_hybrid.transition import Arrival

#: states and derivatives that agree to this share are the same
SAME = 1e-6
#: times that differ by less than this share of the run for a change of the parameters by their own size are the same
SAME_TIME = 1e-9


@dataclass(frozen=True)
class _Outcome:
    """What an instant leads to: the mode and the point after it, its costs, and the records on the way."""

    mode: ModeSystem
    at: Arrival
    costs: Array
    records: list[EventRecord]

    def agrees(self, other: _Outcome) -> bool:
        """Whether the other outcome is the same state at the same cost."""
        pairs = ((self.at.x, other.at.x), (self.at.m, other.at.m), (self.costs, other.costs))
        return self.mode is other.mode and all(_close(a, b) for a, b in pairs)


def instants(trajectory: Trajectory) -> Iterator[tuple[int, list[EventRecord]]]:
    """The events of a run by instant, with the number of the first."""
    events, first = trajectory.events, 0
    for i in range(1, len(events) + 1):
        if i == len(events) or not events[i].order:
            yield first, list(events[first:i])
            first = i


def is_suspicious(trajectory: Trajectory) -> bool:
    """Whether anything falls on one instant, or on an end of the run, that may move."""
    for _, events in instants(trajectory):
        movable = [trajectory.system.transitions[e.index].movable for e in events]
        at_start = _is_first(trajectory, events)
        if any(movable) and (len(events) > 1 or at_start or _is_last(trajectory, events)):
            return True
    return False


def coincidences(trajectory: Trajectory, directions: Directions) -> tuple[str, ...]:
    """One-sided derivatives of a run along its directions, as sentences; others are refused as conditions."""
    found: list[str] = []
    conditions = directions.conditions
    scale = np.where(trajectory.parameters != 0, np.abs(trajectory.parameters), 1.0) @ abs(directions.directions)
    duration = trajectory.final[0] - trajectory.t_span[0]
    still = SAME_TIME * duration / np.where(scale > 0, scale, 1.0)
    accuracy = max(SAME, 1e3 * trajectory.options.rtol)

    def together(a: Array, b: Array) -> bool:
        return bool(np.all(np.abs(a - b) <= still + accuracy * np.maximum(np.abs(a), np.abs(b))))

    before = dict((directions.latest,)) | directions.before
    for first, events in instants(trajectory):
        if first not in before:
            continue
        taus = directions.event_times[first : first + len(events)]
        source = trajectory.system.modes[trajectory.system.transitions[events[0].index].source]
        if _is_first(trajectory, events) and not together(taus[0], np.zeros_like(taus[0])):
            what = "A guard is zero at the start of the run, to the last bit, and moves with the parameters"
            _refuse(events[0], conditions, what, "Start the run earlier, or in the mode after the transition.")
        if _is_last(trajectory, events) and not together(taus[-1], np.zeros_like(taus[-1])):
            what = "A transition fires at the very end of the run, and its time moves with the parameters"
            remedy = "End the run a little earlier or later, or by this transition (target=None)."
            _refuse(events[-1], conditions, what, remedy)
        due = {firing.transition.index for firing in _due(trajectory, source, events[0])}
        for event, tau, earlier in zip(events[1:], taus[1:], taus[:-1], strict=True):
            if event.follows or together(tau, earlier):
                continue
            if event.index not in due:
                what = "The guard is zero, to the last bit, where its mode is entered, but moves apart from the entry"
                remedy = "Change the parameters a little, or the reset so that it leads to either side of zero."
                _refuse(event, conditions, what, remedy)
            elif (why := _order_matters(trajectory, directions, before[first], events, event)) is not None:
                names = " and ".join(dict.fromkeys(f"'{e.transition}'" for e in (events[0], event)))
                found.append(
                    f"Transitions {names} are due at one instant, t = {event.time:.12g}, and their order matters: "
                    f"{why}. "
                    "Derivatives are those of the order in which they fired; simultaneous='reversed' gives the others."
                )
    return tuple(dict.fromkeys(found))


def _is_first(trajectory: Trajectory, events: list[EventRecord]) -> bool:
    start = trajectory.t_span[0]
    return same_instant(events[0].time, start, start)


def _is_last(trajectory: Trajectory, events: list[EventRecord]) -> bool:
    start, end = trajectory.t_span
    return same_instant(events[-1].time, end, start) and not trajectory.ended_by_event


def _due(trajectory: Trajectory, mode: ModeSystem, event: EventRecord) -> list[Firing]:
    """The other transitions that are due before the first event of an instant."""
    system, p, t = trajectory.system, trajectory.parameters, event.time
    at = Arrival(event.x_minus, event.memory_minus, *mode.kernels["entry"](t, event.x_minus, event.memory_minus, p))
    instant = Instant(system, trajectory.t_span, trajectory.options)
    found = []
    for index, h, rate in instant.zeros(mode, t, at):
        transition = system.transitions[index]
        if transition.direction * rate >= 0:
            found.append(Firing(transition, h, rate))
    when, timed, count = instant.due(mode, t, p)
    if timed is not None and when == t:
        found.append(Firing(timed, count=count))
    return found


def _order_matters(
    trajectory: Trajectory, directions: Directions, before: Array, events: list[EventRecord], other: EventRecord
) -> str | None:
    """What another order of an instant changes, None where it is nothing."""
    system = trajectory.system
    mode = system.modes[system.transitions[events[0].index].source]
    begin = next(f for f in _due(trajectory, mode, events[0]) if f.transition.index == other.index)
    try:
        one = _replay(trajectory, mode, events[0], _firing(trajectory, events[0]))
        two = _replay(trajectory, mode, events[0], begin)
        if not one.agrees(two):
            return "they lead to different states"
        sides = [_derivatives(trajectory, directions, outcome.records, before) for outcome in (one, two)]
    except DaeHybridError as error:
        return f"in the other order there is an error ({error.message})"
    same = all(_close(a, b) for a, b in zip(*sides, strict=True))
    return None if same else "they lead to the same state with other derivatives"


def _firing(trajectory: Trajectory, event: EventRecord) -> Firing:
    return Firing(trajectory.system.transitions[event.index], event.guard, event.rate, event.count, event.follows)


def _replay(trajectory: Trajectory, mode: ModeSystem, event: EventRecord, begin: Firing) -> _Outcome:
    """Go through an instant, from the point before its first event, with some transition first."""
    system, p, t, options = trajectory.system, trajectory.parameters, event.time, trajectory.options
    instant = Instant(system, trajectory.t_span, options)
    at = Arrival(event.x_minus, event.memory_minus, event.xdot_minus, *(np.zeros(0) for _ in range(3)))
    costs, records, firing = np.zeros(system.functionals.size), [], begin
    while True:
        source = mode
        if firing.transition.kind == "every":
            instant.counts[firing.transition.index] = firing.count
        order = instant.fired(firing.transition, t)
        mode, at, record, cost = firing.carry_out(
            system, t, at, p, options, order=order, rate_scale=event.rate_scale, is_knot=event.at_knot
        )
        records.append(record)
        costs = costs + cost
        if record.target is None:
            return _Outcome(mode, at, costs, records)
        armed = frozenset(mode.guarded) if mode is source else frozenset()
        following = instant.look(mode, t, at, entering=True, armed=armed).fires
        if following is None:
            when, timed, count = instant.due(mode, t, p)
            following = Firing(timed, count=count) if timed is not None and when <= t else None
        if following is None:
            return _Outcome(mode, at, costs, records)
        firing = following


def _derivatives(
    trajectory: Trajectory, directions: Directions, records: list[EventRecord], before: Array
) -> tuple[Array, Array]:
    """Derivatives of the state after an instant, and what it adds to those of the functionals."""
    system, p, start = trajectory.system, trajectory.parameters, trajectory.t_span[0]
    earlier: Array | None = None
    state, gained = before, np.zeros((system.functionals.size, before.shape[1]))
    for record in records:
        map_ = system.linearise(record, p, start, directions.conditions)
        earlier, state, cost = map_.forward(state, directions.directions, earlier)
        gained = gained + cost
    return state, gained


def _close(a: Array, b: Array) -> bool:
    scale = max(float(np.abs(a).max(initial=0.0)), float(np.abs(b).max(initial=0.0)))
    return bool(np.all(np.abs(a - b) <= SAME * scale))


def _refuse(event: EventRecord, conditions: Conditions, what: str, remedy: str) -> None:
    conditions.refuse(
        EventError(
            f"{what}: a change of the parameters one way moves the transition, the other way takes it away.",
            transition=event.transition,
            mode=event.source,
            time=event.time,
            remedy=remedy,
        )
    )
