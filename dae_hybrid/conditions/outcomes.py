"""Possible outcomes of an instant: point, costs and derivatives after it, for each order of its transitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from dae_hybrid.conditions.instants import EQUALITY_RTOL, EQUALITY_RTOLS, SAME_TIME, Point, RunInspector
from dae_hybrid.errors import ChatteringError, DaeHybridError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.point import StatePoint
from dae_hybrid.port.records import EventRecord
from dae_hybrid.sensitivity.forward import TangentState
from dae_hybrid.simulation.firing import Firing
from dae_hybrid.system.system import ModeSystem
from dae_hybrid.system.transition_map import schedule_state
from dae_hybrid.trajectory.trajectory import Trajectory

type Sides = Mapping[int, int]
#: guards within this multiple of the first one's distance from zero count as zero at the instant
INSTANT_FACTOR = 2.0
NOWHERE: Sides = MappingProxyType({})


@dataclass(frozen=True)
class Outcome:
    """Outcome of an instant: the mode and the point after it, its costs, and its records."""

    mode: ModeSystem
    at: StatePoint
    costs: Array
    records: list[EventRecord]


@dataclass(frozen=True)
class Side:
    """One of two possible points of a run, with the costs since the two differ, and the derivatives of both.

    `state` are the derivatives of (y, m) at fixed time, (n_w, d); `gained` those of the costs, (k, d).
    """

    point: Point
    state: Array
    costs: Array
    gained: Array


@dataclass
class TangentComparison:
    """Derivatives of a run along its directions."""

    run: Trajectory
    directions: TangentState

    def __post_init__(self) -> None:
        p = self.run.parameters
        scale = np.where(p != 0, np.abs(p), 1.0) @ abs(self.directions.directions)
        duration = self.run.final[0] - self.run.t_span[0]
        self.smallest_change = SAME_TIME * duration / np.where(scale > 0, scale, 1.0)
        self.accuracy = max(EQUALITY_RTOL, EQUALITY_RTOLS * self.run.options.rtol)
        self.event_times, self.sides = self.directions.event_times, self.directions.sides

    def moves_together(self, a: Array, b: Array) -> bool:
        """Whether two times move together."""
        return bool(np.all(np.abs(a - b) <= self.smallest_change + self.accuracy * np.maximum(np.abs(a), np.abs(b))))

    def time_of(self, point: Point, firing: Firing, state: Array) -> Array:
        """Return the derivative of the time at which a transition is due at a point."""
        start = schedule_state(self.run.t_span[0], firing.count)
        h_w, h_p, rate = firing.transition.guard_derivatives(*point, self.run.parameters, start)
        return np.asarray((h_w @ state + h_p @ self.directions.directions) / -rate)

    def before(self, point: Point, state: Array) -> Side:
        """Return a point without an event."""
        k = self.run.system.functionals.size
        return Side(point, state, np.zeros(k), np.zeros((k, state.shape[1])))

    def after(self, outcome: Outcome, t: float, state: Array, tau: Array | None = None) -> Side:
        """Return the side after an instant from derivatives before it; `tau` is that of the previous event's time."""
        state, gained = self._derivatives(outcome.records, state, tau)
        return Side((outcome.mode, t, outcome.at.x, outcome.at.m), state, outcome.costs, gained)

    def difference(self, one: Side, two: Side) -> str | None:
        """Describe the difference of two sides; None if they agree to the accuracy of the run."""
        (mode, _, x, m), (other, _, x2, m2) = one.point, two.point
        if mode is not other:
            return f"they lead to different states (mode '{mode.name}' on one side, '{other.name}' on the other)"
        system, used = self.run.system, self._used(mode)
        memory, costs = system.memory.labels(), [f"the costs of {name}" for name in system.functionals.labels()]
        pairs = (
            (x, x2, mode.variables.labels()),
            (m[used], m2[used], [memory[i] for i in used]),
            (one.costs, two.costs, costs),
        )
        for a, b, labels in pairs:
            if not close(a, b, self.accuracy):
                i = int(np.argmax(np.abs(a - b)))
                return f"they lead to different states ({labels[i]} = {a[i]:.6g} on one side, {b[i]:.6g} on the other)"
        states = (*mode.differential.labels(), *memory)
        for a, b, labels in ((one.state, two.state, states), (one.gained, two.gained, costs)):
            if not close(a, b, self.accuracy):
                i, j = divmod(int(np.argmax(np.abs(a - b))), a.shape[1])
                by = f"{labels[i]} by {self.parameter(j)}"
                both = f"{a[i, j]:.6g} on one side, {b[i, j]:.6g} on the other"
                return f"they lead to the same state with other derivatives ({by}: {both})"
        return None

    def _used(self, mode: ModeSystem) -> list[int]:
        """Return the entries of the memory that matter in a mode: not relations, which other modes update on entry."""
        every = self.run.system.transitions
        relations = {t.relation.entry for t in every if t.relation is not None}
        own = {r.entry for r in (every[i].relation for i in mode.guarded) if r is not None}
        return [i for i in range(self.run.system.memory.size) if i in own or i not in relations]

    def parameter(self, direction: int) -> str:
        """Return the name of a direction."""
        entries = np.flatnonzero(self.directions.directions[:, direction])
        return self.run.system.parameters.labels()[entries[0]] if entries.size == 1 else f"direction {direction}"

    def fires_or_not(
        self, inspector: RunInspector, point: Point, firing: Firing, state: Array, tau: Array | None = None,
        past: Sequence[EventRecord] = (),
    ) -> str | None:  # fmt: skip
        """Describe the difference between a transition firing at a point and not firing; None if there is none.

        `tau` is the derivative of the time of the point, `past` are the events of the instant before it.
        """
        try:
            sides = inspector.sides_after(past, firing)
            outcome = replay(inspector, point, firing, armed=False, sides=sides, past=past)
            fired = self.after(outcome, point[1], state, tau)
        except DaeHybridError as error:
            return f"there is an error ({error.message})"
        return self.difference(self.before(point, state), fired)

    def order_matters(self, inspector: RunInspector, event: EventRecord, other: Firing, before: Array) -> str | None:
        """Describe the effect of another order of an instant; None if there is none."""
        return self._either(inspector, event, before, (inspector.firing(event), {}), (other, {}))

    def holding_matters(self, inspector: RunInspector, event: EventRecord, condition: int, before: Array) -> str | None:
        """Describe the effect of a condition that still holds when an event fires; None if there is none."""
        mine, holds = inspector.firing(event), self.run.system.transitions[condition].direction
        return self._either(inspector, event, before, (mine, {condition: -holds}), (mine, {condition: holds}))

    def _either(
        self, inspector: RunInspector, event: EventRecord, before: Array, *ways: tuple[Firing, Sides]
    ) -> str | None:
        point = inspector.before(event)
        try:
            armed, scale, earlier = not inspector.is_first([event]), event.rate_scale, event.earlier
            past = inspector.earlier(event)
            outcomes = [
                replay(inspector, point, first, scale, armed=armed, earlier=earlier, sides=sides, past=past)
                for first, sides in ways
            ]
            one, two = (self.after(outcome, event.time, before) for outcome in outcomes)
        except DaeHybridError as error:
            return f"in one of them there is an error ({error.message})"
        return self.difference(one, two)

    def _derivatives(self, records: list[EventRecord], before: Array, earlier: Array | None) -> tuple[Array, Array]:
        """Return the derivatives of the state after an instant, and its contribution to those of the functionals."""
        system, p, start = self.run.system, self.run.parameters, self.run.t_span[0]
        state, gained = before, np.zeros((system.functionals.size, before.shape[1]))
        for record in records:
            map_ = system.linearise(record, p, start, self.directions.conditions)
            earlier, state, cost = map_.forward(state, self.directions.directions, earlier)
            gained = gained + cost
        return state, gained


def replay(
    inspector: RunInspector, point: Point, begin: Firing, rate_scale: float = 0.0, *, armed: bool,
    earlier: EventRecord | None = None, sides: Sides = NOWHERE, past: Sequence[EventRecord] = (),
) -> Outcome:  # fmt: skip
    """Repeat an instant from a point with a given first transition; `armed` says that the mode was active before.

    `sides` are the assumed sides of zero of guards at the point, by transition; `past` are the events before it.
    """
    system, p, options = inspector.system, inspector.p, inspector.run.options
    mode, t, x, m = point
    rules, at = inspector.event_logic(t), StatePoint(x, m, *inspector.entry(*point))
    if begin.guard and begin.rate:
        rules.slack = max(rules.slack, INSTANT_FACTOR * abs(begin.guard / begin.rate))
    for event in past:
        if (transition := system.transitions[event.index]).trigger.is_timed:
            rules.note_time(transition, event.count)
    records: list[EventRecord] = []
    costs, firing, left = np.zeros(system.functionals.size), begin, False
    if armed:
        rules.note_sides(mode, t, at, armed=frozenset(mode.guarded))
    rules.sides.update(sides)
    while True:
        source, firing = mode, firing.decided(system, t, at, p)
        if firing.transition.trigger.is_periodic:
            rules.counts[firing.transition.trigger_index] = firing.count
        order, reached = rules.fired(firing, t), at
        mode, at, record, cost = firing.apply(
            system, t, at, p, options, order=order, rate_scale=rate_scale,
            earlier=records[-1] if records else earlier,
        )  # fmt: skip
        if mode is source and not mode.algebraic.size:
            at, record = _not_passed(inspector, mode, reached, at, record)
        records.append(record)
        costs = costs + cost
        here = mode is point[0] and close(at.x, x, EQUALITY_RTOL) and close(at.m, m, EQUALITY_RTOL)
        if here and left and not begin.transition.trigger.is_timed:
            raise _chattering(records)
        left = left or not here
        if record.target is None:
            return Outcome(mode, at, costs, records)
        kept = frozenset(mode.guarded) if mode is source else frozenset()
        resting = rules.at_rest(mode, t, at, p, kept)
        following = rules.evaluate(mode, t, at, entering=True, resting=resting).fires
        if following is None:
            when, timed, count = rules.due(mode, t)
            following = Firing(timed, count=count) if timed is not None and when - t <= inspector.slack(t) else None
        if following is None:
            return Outcome(mode, at, costs, records)
        firing = following


def _chattering(records: Sequence[EventRecord]) -> ChatteringError:
    """Return the error of a transition that is due again after it has been undone."""
    names = dict.fromkeys(record.transition for record in records)
    return ChatteringError(
        f"Transitions follow each other without end: {' -> '.join(names)}.",
        transition=records[0].transition,
        mode=records[0].source,
        time=records[0].time,
    )


def _not_passed(
    inspector: RunInspector, mode: ModeSystem, before: StatePoint, at: StatePoint, record: EventRecord
) -> tuple[StatePoint, EventRecord]:
    """Return point and record of a transition with the sides of relations restored that stayed at their thresholds.

    A reset evaluates the relations of the variables that it changes; at a threshold rounding decides their side.
    """
    t, m, slack = record.time, at.m, inspector.slack(record.time)
    for i, index in enumerate(mode.guarded):
        relation = inspector.system.transitions[index].relation
        if relation is None or index == record.index or m[relation.entry] == before.m[relation.entry]:
            continue
        if all(abs(point.guards[i]) <= slack * abs(point.rates[i]) for point in (before, at)):
            m = m.copy()
            m[relation.entry] = before.m[relation.entry]
    if m is at.m:
        return at, record
    at = StatePoint(at.x, m, *mode.kernels["entry"](t, at.x, m, inspector.p))
    return at, replace(record, memory_plus=m, xdot_plus=at.xdot)


def close(a: Array, b: Array, accuracy: float) -> bool:
    """Whether two arrays agree to a share of their largest entry."""
    scale = max(float(np.abs(a).max(initial=0.0)), float(np.abs(b).max(initial=0.0)))
    return bool(np.all(np.abs(a - b) <= accuracy * scale))
