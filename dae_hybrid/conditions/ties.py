"""Measurements, knots of signals and the end of the run that coincide with an event, to the accuracy of the run.

Their side of the event is then chance, and a change of the parameters may move them to the other side. Both outcomes
are evaluated. If they agree in value and derivative, the side is irrelevant; otherwise derivatives are one-sided.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from operator import attrgetter

import numpy as np

from dae_hybrid.conditions.instants import RunInspector, inaccuracy, knots_in, measured_in
from dae_hybrid.conditions.outcomes import Side, TangentComparison, replay
from dae_hybrid.errors import DaeHybridError, EventError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.records import EventRecord, KnotRecord, MeasurementRecord
from dae_hybrid.port.segment_rules import kernel
from dae_hybrid.simulation.stop_times import settle
from dae_hybrid.system.linearisation import chain
from dae_hybrid.system.measurement import Measurement, measurement_rate
from dae_hybrid.system.signals import coefficients, derivatives
from dae_hybrid.system.system import ModeSystem
from dae_hybrid.system.transition_map import STATE_ERROR_FACTOR

#: values (k,), derivatives along the directions (k, d), and negligible differences of the values (k,)
type Quantity = tuple[Array, Array, Array]


def is_beside(inspector: RunInspector) -> bool:
    """Whether a measurement or a knot coincides with an event, or a movable measurement with a knot."""
    system, given = inspector.system, inspector.run.parts.given
    if not (system.measurements or system.signals):
        return False
    events = inspector.times.tolist()
    moves = np.array([t.movable or not t.trigger.is_timed for t in system.transitions], dtype=bool)
    moving = inspector.times[moves[inspector.run.parts.event_transitions]].tolist()
    knots = [time for part in given for time in knots_in(part)]
    measured = [time for part in given for time in measured_in(part)]
    movable = any(measurement.movable for measurement in system.measurements)
    return _close(inspector, measured, events + knots if movable else moving) or _close(inspector, knots, moving)


def _close(inspector: RunInspector, some: list[float], others: list[float]) -> bool:
    """Whether two of these times coincide to the accuracy of the run."""
    if not some or not others:
        return False
    known = np.concatenate(([-np.inf], np.sort(others), [np.inf]))
    at = np.searchsorted(known, some)
    away = np.minimum(known[at] - some, some - known[at - 1])
    return any(distance <= inspector.slack(t) for distance, t in zip(away.tolist(), some, strict=True))


def ties(inspector: RunInspector, comparison: TangentComparison, functionals: tuple[str, ...]) -> list[str]:
    """Return warnings of one-sided derivatives; those at exactly equal times fail as conditions."""
    return list(_Ties(inspector, comparison, functionals).all())


class _Ties:
    def __init__(self, inspector: RunInspector, comparison: TangentComparison, functionals: tuple[str, ...]) -> None:
        self.inspector, self.comparison, self.functionals = inspector, comparison, functionals
        self.run, self.system, self.p = inspector.run, inspector.system, inspector.p
        self.directions, self.fixed = comparison.directions, np.zeros(comparison.directions.count)
        self.instants, self.ends = inspector.instants, inspector.times[np.array(inspector.begins[1:], int) - 1].tolist()
        self.given = [part for part, *_ in self.run.parts.chosen(frozenset(), frozenset())]
        self.knots = [part for part in self.given if isinstance(part, KnotRecord)]
        parts = [np.arange(*self._part(name)) for name in functionals]
        self.chosen = np.concatenate([np.zeros(0, int), *parts])  # components of the functionals

    def all(self) -> Iterator[str]:
        measured = iter(self.directions.measured_tangents)
        for part in self.given:
            if isinstance(part, MeasurementRecord):
                state, own = next(measured), self.system.measurements[part.index]
                if own.functional in self.functionals and not own.is_extremum:
                    yield from self._measured(part, state)
            elif isinstance(part, KnotRecord):
                yield from self._at_knot(part)
        yield from self._by_event() if self.run.ended_by_event else self._at_end()

    def _tied(self, t: float, moves: Array) -> Iterator[tuple[int, list[EventRecord]]]:
        """Yield instants whose side of a time with derivatives `moves` depends on errors or on the parameters."""
        slack = self.inspector.slack(t)
        for i in range(bisect_left(self.ends, t - slack), len(self.instants)):
            first, events = self.instants[i]
            if events[0].time - t > slack:
                return
            away = max(events[0].time - t, t - events[-1].time, 0.0)
            if self._moves_apart(first, events, moves) or away < inaccuracy(self.run, events[0]):
                yield first, events

    def _moves_apart(self, first: int, events: list[EventRecord], moves: Array) -> bool:
        """Whether a change of the parameters separates an instant from a time with derivatives `moves`."""
        taus = self.comparison.event_times[first : first + len(events)]
        return not all(self.comparison.moves_together(tau, moves) for tau in taus)

    def _sides(self, first: int, events: list[EventRecord]) -> tuple[Side, Side]:
        """Return the sides before and after an instant of the run."""
        sides, k = self.comparison.sides, self.system.functionals.size
        costs, gained = np.zeros(k), np.zeros((k, self.directions.count))
        for i, event in enumerate(events):
            transition = self.system.transitions[event.index]
            if "cost" in transition.kernels:
                args = event.time, event.x_minus, event.memory_minus, event.xi, self.p
                costs = costs + transition.kernels["cost"](*args)[0]
            map_ = self.system.linearise(event, self.p, self.run.t_span[0], self.directions.conditions)
            earlier = self.comparison.event_times[first + i - 1] if i else None
            gained = gained + map_.forward(sides[first + i][0], self.directions.directions, earlier)[2]
        before = self.comparison.before(self.inspector.before(events[0]), sides[first][0])
        return before, Side(self.inspector.after(events[-1]), sides[first + len(events) - 1][1], costs, gained)

    # -- measurements ----------------------------------------------------------------------------------------

    def _measured(self, record: MeasurementRecord, state: Array) -> Iterator[str]:
        for measurement in self.system.measurements[record.index].parts():
            yield from self._measured_part(record, measurement, state)

    def _measured_part(self, record: MeasurementRecord, measurement: Measurement, state: Array) -> Iterator[str]:
        t, moves = record.time, measurement.time_by(self.p) @ self.directions.directions
        for first, events in self._tied(t, moves):
            sides = [self._measure(measurement, side, moves) for side in self._sides(first, events)]
            exact = any(self.inspector.is_rounding(event.time, t) for event in events)
            exact = exact and self._moves_apart(first, events, moves)
            beside = f"'{events[0].transition}' at t = {events[0].time:.12g}"
            yield from self._said(measurement, beside, sides, exact, record, events[0].transition)
        if self.comparison.moves_together(moves, self.fixed):
            return
        slack, when = self.inspector.slack(t), attrgetter("time")
        first, last = bisect_left(self.knots, t - slack, key=when), bisect_right(self.knots, t + slack, key=when)
        for knot in self.knots[first:last]:
            sides = [
                self._measure(measurement, self._around(knot, record.mode, record.x, record.memory, state, k), moves)
                for k in (0, 1)
            ]
            exact = self.inspector.is_rounding(knot.time, t)
            yield from self._said(measurement, f"a knot at t = {knot.time:.12g}", sides, exact, record)

    def _measure(self, measurement: Measurement, side: Side, moves: Array) -> Quantity:
        mode, t, x, m = side.point
        value, by_u = measurement.at(mode.index, t, x, m, self.p)
        xdot = mode.kernels["entry"](t, x, m, self.p)[0]
        rate = measurement_rate(by_u, xdot)
        derivative = self._along_u(by_u, side) + np.outer(rate, moves)
        return value, derivative, self._nothing(by_u, side) + np.abs(rate) * self.inspector.slack(t)

    def _along_u(self, by_u: Array, side: Side) -> Array:
        by_wp = chain(*side.point, self.p)[:, :-1]
        return np.asarray(by_u @ np.asarray(by_wp @ np.vstack((side.state, self.directions.directions))))

    def _nothing(self, by_u: Array, side: Side) -> Array:
        mode, _, x, _ = side.point
        allowed = self.run.options.allowed(mode.variables, x)
        return STATE_ERROR_FACTOR * np.asarray(np.abs(by_u[:, : x.size]) @ allowed)

    def _said(
        self, measurement: Measurement, beside: str, sides: list[Quantity], exact: bool, record: MeasurementRecord,
        transition: str | None = None,
    ) -> Iterator[str]:  # fmt: skip
        """Yield a warning if two sides of a measurement differ; at exactly equal times the condition fails."""
        both, name = self._both(sides), f"{measurement.name[0].upper()}{measurement.name[1:]}"
        if both is None:
            return
        if not exact:
            yield (
                f"{name} is measured at t = {record.time:.12g}, within the accuracy of the run beside {beside}, and "
                f"has only one-sided derivatives there: {both}. Derivatives are those of the side on which it was "
                "taken."
            )
            return
        error = EventError(
            f"{name} is measured at the time of an event or a knot, and one of the two moves with the parameters: it "
            f"has only one-sided derivatives there, {both}.",
            mode=record.mode.name,
            transition=transition,
            time=record.time,
            remedy="Shift the measurement, or use at_events= to measure at the event.",
        )
        self.directions.conditions.fail_as_one_sided(error)

    def _both(self, sides: list[Quantity], names: tuple[str, str] = ("before it", "after it")) -> str | None:
        """Describe values and derivatives of two sides; None if they agree to the accuracy of the run."""
        (one, by_one, nothing), (two, by_two, _) = sides
        accuracy, p = self.comparison.accuracy, np.abs(self.p)
        scale = np.where(p != 0, p, 1.0) @ np.abs(self.directions.directions)
        same = np.abs(one - two) <= accuracy * np.maximum(np.abs(one), np.abs(two)) + nothing
        size = np.maximum(np.abs(by_one), np.abs(by_two)) * scale  # for a change of a parameter by its own size
        largest = size.max(axis=1, initial=0.0)
        alike = np.abs(by_one - by_two) * scale <= (accuracy * largest + nothing)[:, None]
        if same.all() and alike.all():
            return None
        texts = [f"{_shown(value)}, with derivatives {_shown(by)}" for value, by, _ in sides]
        return f"{texts[0]}, {names[0]}, and {texts[1]}, {names[1]}"

    # -- knots -----------------------------------------------------------------------------------------------

    def _around(self, knot: KnotRecord, mode: ModeSystem, x: Array, m: Array, state: Array, after: int) -> Side:
        """Return a point at a knot with the signals before it, or after it."""
        intervals = self._intervals(knot)[after]
        memory, changed, ny = m.copy(), state.copy(), mode.differential.size
        memory[knot.entries] = coefficients(self.system.signals, intervals, self.p)
        changed[ny + knot.entries] = derivatives(self.system.signals, intervals, self.p) @ self.directions.directions
        x = settle(mode, knot.time, x, memory, self.p, self.run.options)
        return self.comparison.before((mode, knot.time, x, memory), changed)

    def _intervals(self, knot: KnotRecord) -> tuple[tuple[int, ...], tuple[int, ...]]:
        earlier = np.nextafter(knot.time, -np.inf)
        return tuple(signal.interval(earlier) for signal in self.system.signals), knot.intervals

    def _at_knot(self, knot: KnotRecord) -> Iterator[str]:
        """Compare events at a knot with the signals before it and after it."""
        for first, events in self._tied(knot.time, self.fixed):
            event = events[0]
            if not self.system.transitions[event.index].movable or event.follows:
                continue
            mode, _, x, m = self.inspector.before(event)
            state, mine, found = self.comparison.sides[first][0], self.inspector.firing(event), []
            why: str | None = None
            try:
                for k in (0, 1):
                    side = self._around(knot, mode, x, m, state, k)
                    outcome = replay(self.inspector, side.point, mine, event.rate_scale, armed=True)
                    after = self.comparison.after(outcome, knot.time, side.state)
                    new = self._around(knot, *after.point[:1], *after.point[2:], after.state, 1)
                    found.append(Side(new.point, new.state, after.costs, after.gained))
            except DaeHybridError as reason:
                why = f"with the signals as they are on one side there is an error ({reason.message})"
            why = self.comparison.difference(*found) if why is None else why
            if why is None:
                continue
            if not self.inspector.is_rounding(event.time, knot.time):
                yield (
                    f"The event '{event.transition}' at t = {event.time:.12g} is, to the accuracy of the run, at a "
                    f"knot of a signal, t = {knot.time:.12g}: before it and after it {why}. Derivatives are those of "
                    "the side on which it fired."
                )
                continue
            error = EventError(
                "The event falls on a knot of a signal, to the last bit: there are only one-sided derivatives. Before "
                f"it and after it {why}.",
                transition=event.transition,
                mode=event.source,
                time=event.time,
                remedy="Change the parameters a little, or move the knot.",
            )
            self.directions.conditions.fail_as_one_sided(error)

    # -- the end ---------------------------------------------------------------------------------------------

    def _at_end(self) -> Iterator[str]:
        """Compare firing and not firing of a transition at the end of the run."""
        end = self.inspector.end
        for first, events in self._tied(end[1], self.fixed):
            before, after = self._sides(first, events)
            exact = self.inspector.is_rounding(events[-1].time, end[1]) and self._moves_apart(first, events, self.fixed)
            yield from self._of_end(events[-1].index, events[-1].time, [before, after], exact=exact)
        for firing in self.inspector.due_after_end(end, self.instants[-1][1] if self.instants else []):
            state = self.directions.state
            if firing.transition.trigger.is_timed and self.comparison.moves_together(
                self.comparison.time_of(end, firing, state), self.fixed
            ):
                continue  # does not move towards the end
            try:
                fired = self.comparison.after(replay(self.inspector, end, firing, armed=True), end[1], state)
            except DaeHybridError:
                continue  # such a run has no functionals
            yield from self._of_end(
                firing.transition.index, end[1], [self.comparison.before(end, state), fired], exact=False
            )

    def _by_event(self) -> Iterator[str]:
        """Compare the two ends of a run that a transition ends at its given final time."""
        first, events = self.instants[-1]
        last, (mode, t, x, m) = events[-1], self.inspector.end
        tau = self.comparison.event_times[first + len(events) - 1]
        if not self.inspector.is_beside_end(events) or self.comparison.moves_together(tau, self.fixed):
            return
        transition, by_u = self.system.transitions[last.index], mode.kernels["terminal"](t, x, m, self.p)[1]
        flow = np.concatenate((last.derivative_minus, np.zeros(m.size + self.p.size), [1.0]))
        rate = by_u @ (chain(mode, t, x, m, self.p) @ flow[:, None])[:, 0]
        rate = rate + kernel(mode.equations, "flow")(t, x[: mode.equations.n], m, self.p)[1]
        if np.any(rate[self.chosen]) or "cost" in transition.kernels:
            share = _shown(np.outer(rate, tau)[self.chosen])
            yield (
                f"Whether '{transition.name}' ends the run at t = {t:.12g}, or its given end does, is chance, to the "
                f"accuracy of the run: {share} is in the derivatives in the first case "
                "and not in the second. Derivatives are those of what the run did."
            )

    def _of_end(self, index: int, t: float, sides: list[Side], *, exact: bool) -> Iterator[str]:
        both = self._both([self._total(side) for side in sides], ("without it", "with it"))
        if both is None:
            return
        transition = self.system.transitions[index]
        name = f"'{transition.name}' fires at t = {t:.12g}, the end of the run"
        if not exact:
            yield (f"Whether {name} to its accuracy, is chance: {both}. Derivatives are those of what the run did.")
            return
        self.directions.conditions.fail_as_one_sided(
            EventError(
                "A transition fires at the very end of the run, and its time moves with the parameters: a change of "
                "the parameters one way moves the transition, the other way takes it away. What the run ends with is "
                f"{both}.",
                transition=transition.name,
                mode=self.system.modes[transition.source].name,
                time=t,
                remedy="End the run a little earlier or later, or by this transition (target=None).",
            )
        )

    def _total(self, side: Side) -> Quantity:
        """Return the contribution to the functionals from a side to the end."""
        mode, t, x, m = side.point
        value, by_u = mode.kernels["terminal"](t, x, m, self.p)
        derivative = self._along_u(by_u, side) + side.gained
        return (value + side.costs)[self.chosen], derivative[self.chosen], self._nothing(by_u, side)[self.chosen]

    def _part(self, name: str) -> tuple[int, int]:
        part = self.system.functionals[name]
        return part.start, part.stop


def _shown(values: Array) -> str:
    text = np.array2string(np.squeeze(values), precision=6, separator=", ", threshold=12)
    return " ".join(text.split())
