"""The event loop: integrate, locate, apply, reinitialise, record. Contains no sensitivity code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from dae_hybrid.cancellation import raise_if_cancelled
from dae_hybrid.errors import DaeHybridError, EventError, NonFiniteError, OptionError, ZenoError
from dae_hybrid.method import AUTO, Method
from dae_hybrid.numerics.arrays import Array, scalar
from dae_hybrid.options import Keep, Options
from dae_hybrid.port.failure_messages import SUSPECTS, event_limit, lost_crossing, unresolved_guard
from dae_hybrid.port.integrator import OpenSession, SegmentOutcome, SegmentTask, Session
from dae_hybrid.port.native_plan import UNBOUNDED, Alarms, MemoryBound, RunContext
from dae_hybrid.port.point import StatePoint
from dae_hybrid.port.record_table import RecordTable
from dae_hybrid.port.records import KnotRecord, MeasurementRecord
from dae_hybrid.port.replay import SegmentReplay
from dae_hybrid.port.segment_rules import has_limit, is_unresolved, kernel, one_segment, same_instant
from dae_hybrid.simulation.checkpoints import Checkpoint
from dae_hybrid.simulation.event_logic import SIMULTANEITY_RTOLS, EventLogic, SegmentEntry, signs
from dae_hybrid.simulation.failure_diagnosis import explain
from dae_hybrid.simulation.firing import Firing
from dae_hybrid.simulation.observer import RunObserver
from dae_hybrid.simulation.recording import Recording
from dae_hybrid.simulation.stop_times import StopTimes, settle
from dae_hybrid.simulation.touching import touched
from dae_hybrid.system.initial import RunStart
from dae_hybrid.system.measurement import measured
from dae_hybrid.system.schedule import Schedule
from dae_hybrid.system.system import HybridSystem, ModeSystem
from dae_hybrid.system.transition_map import TransitionMap
from dae_hybrid.trajectory.event_accuracy import noisy
from dae_hybrid.trajectory.parts import Expansion, TrajectoryParts
from dae_hybrid.trajectory.trajectory import Segment, SegmentSensitivities, Trajectory

NO_TRANSITIONS: frozenset[int] = frozenset()
#: native events per call of the integrator with keep="final", so that their records can be dropped in between
NATIVE_EVENTS_PER_CALL = 2000
#: event times that are retained with keep="final"
RETAINED_EVENT_TIMES = 1000
#: event times that the native loop needs for its Zeno test
RECENT_EVENT_TIMES = 4
#: at a failed condition, times closer than ten times this share of the run count as simultaneous
CONDITION_SLACK = 1e-14
#: a guard that is zero at an event and at this share of the run's time scale before it rests at zero
PLATEAU_STEP = 1e-7
#: steps a run, at least, while motion is held on a surface or by a clip: what moves it may last shorter than a step
LEAST_STEPS = 100
#: share of a segment before a crossing that could not be located at which its guard is looked at
SETTLED_SHARE = 1e-3
#: a guard whose value at the crossing exceeds this share of its change in the segment is discontinuous
DISCONTINUOUS_CROSSING_SHARE = 1e-3


class Automaton:
    """One run of a system; holds the state of the run between segments."""

    def __init__(
        self,
        system: HybridSystem,
        session: Session,
        parameters: Array,
        t_span: tuple[float, float],
        t_eval: Array | None,
        options: Options,
        observer: RunObserver | None,
        open_session: OpenSession,
        schedule: Schedule,
        *,
        certify: bool = False,
        keep_path: bool = False,
        keep: Keep = "all",
        bound: MemoryBound = UNBOUNDED,
    ) -> None:
        self.system, self.session, self.p = system, session, parameters
        self.span, self.t_eval, self.options, self.observer = t_span, t_eval, options, observer
        self.open_session, self.certify, self.keep_path = open_session, certify, keep_path
        self.rules = EventLogic(system, t_span, options, schedule)
        self.stops = StopTimes(system, t_span, parameters)
        self.keep, self.recording = keep, Recording(system, t_eval, bound, options.rtol)
        self.integrals, self.costs = np.zeros((2, system.functionals.size))
        self.t = t_span[0]
        self.mode = system.modes[system.initial.mode]
        self.at = StatePoint(*(np.zeros(0) for _ in StatePoint._fields))
        self.start = RunStart(system.initial, self.mode, self.t, self.at, parameters)
        self.n_events = 0
        self.plateau_sides: dict[int, int] = {}  # of guards that a signal holds at zero: the side they came from
        self.recheck_time = np.inf  # time at which a postponed condition is checked again
        self.settled: int | None = None  # the transition whose guard has come to rest at zero in this segment
        self.suspect: tuple[int, EventError] | None = None  # a guard that may have, and the error if it has not
        self.returning: int | None = None  # a relation whose surface was at zero, and is left to where it came from
        self.next_step: float | None = None  # of an explicit method, from the previous segment

    def run(self) -> Trajectory:
        """Run to the end; an error carries the partial trajectory."""
        try:
            self.at = self.system.initial.apply(self.mode, self.t, self.p)
            self.start = replace(self.start, at=self.at)
            if is_unresolved(*self.span):
                self._check_movement()
            if self.observer is not None:
                self.observer.on_start(self.start)
            self._loop()
            self._measure()
            self.stops.finish(self.t)
            self._last_output()
        except DaeHybridError as error:
            error.trajectory = self._trajectory(complete=False)
            raise
        return self._trajectory(complete=True)

    def _check_movement(self) -> None:
        """Refuse a time span of a few rounding errors over which the solution changes by more than its tolerances."""
        mode, x, layout = self.mode, self.at.x, self.system.functionals
        moved = self._rates(self.at) * (self.span[1] - self.span[0])
        allowed = (self.options.allowed(mode.differential, x[: mode.differential.size]), self.options.absolute(layout))
        if np.any(np.abs(moved) > np.concatenate(allowed)):
            raise OptionError(
                f"t_span {self.span} is too short to integrate: its ends are a few roundings of {self.t:g} apart, in "
                "which variables or functionals change by more than their tolerances.",
                remedy="Count time from a start that is closer.",
            )

    def _rates(self, at: StatePoint) -> Array:
        """Return the rates of the differential variables and of the functionals at a point of the mode."""
        e = self.mode.equations
        gained = kernel(e, "flow")(self.t, at.x[: e.n], at.m, self.p)[1]
        return np.concatenate((at.xdot[: self.mode.differential.size], gained))

    def _loop(self) -> None:
        end, rules = self.span[1], self.rules
        entering, armed, jumped = True, NO_TRANSITIONS, NO_TRANSITIONS
        while True:
            raise_if_cancelled()
            if self.keep == "final":
                self.recording.drop_old()
                del rules.event_times.known[:-RETAINED_EVENT_TIMES]
            if self.stops.signals and self.stops.pass_knots(self.t):
                jumped = self._pass_knots(armed)
            returning, self.returning = self.returning, None
            if returning is not None:
                jumped |= {returning}
                rules.still[returning] /= 2  # it has left by as much, give or take the error of its last step
            resting = self._at_rest(armed)
            entry = rules.evaluate(
                self.mode, self.t, self.at, entering=entering, jumped=jumped, resting=resting, armed=armed
            )
            firing, jumped = entry.fires, NO_TRANSITIONS
            firing = self._or_time_event(firing)
            overdue = self._overdue()
            firing = overdue if firing is None else firing
            if firing is not None and (firing is overdue or not self._postpones(firing)):
                source, before = self.mode, self.at
                if returning == firing.transition.index:
                    firing = replace(firing, returns=True)
                if self._fire(firing):
                    return
                if returning is not None:
                    self._check_return(returning, firing, before)
                    del rules.still[returning]
                entering, armed = True, armed if self.mode is source else NO_TRANSITIONS
                continue
            if returning is not None:  # an interpolant has left zero, the motion has not
                rules.still[returning] *= 2
            self._measure()
            if self.t >= end:
                return
            last = min(end, self.recheck_time)
            try:
                crossing, entry = self._segment(last, entry)
                while crossing is None and self.t < last and not self._stops_here():  # paused without an event
                    crossing, entry = self._segment(last, entry)
            except ZenoError:
                if rules.event_times.limit is None:
                    raise
                return
            entering, source, pending = False, self.mode, entry.zero_band
            rules.note_resting(source, pending)
            armed = frozenset(i for i, band in zip(source.guarded, pending.tolist(), strict=True) if not band)
            armed -= {self.settled}
            if crossing is not None and self._stayed_at_zero(crossing, entry):
                armed -= {source.guarded[crossing[0]]}
            elif crossing is not None:
                firing = self._first_due(crossing, armed, entry)
                if self._postpones(firing):
                    armed -= {firing.transition.index}
                    continue
                if self._fire(firing):
                    return
                entering, armed = True, armed if self.mode is source else NO_TRANSITIONS
            elif source.guarded:
                armed -= self._settled_here(armed)
                rules.note_sides(source, self.t, self.at, armed=armed, leaving=self._leaving_signs(entry))

    def _or_time_event(self, firing: Firing | None) -> Firing | None:
        """Return the time event that is due, if it precedes a transition: by priority, or if that is a condition."""
        is_last, rules = firing is None or firing.transition.refuses, self.rules
        if not self.mode.timed or not (is_last or rules.reversed or self.system.has_priorities):
            return firing
        if firing is not None and firing.corrects:
            return firing
        due, timed, count = rules.due(self.mode, self.t, self.at)
        if timed is None or not (due <= self.t or self._is_now(due)):
            return firing
        if firing is not None and not is_last:
            point = self.t, self.at.x, self.at.m, self.p
            own, other = timed.priority(*point), firing.transition.priority(*point)
            if own < other or (own == other and not rules.reversed):
                return firing
        return Firing(timed, count=count)

    def _due(self) -> float:
        """Return the time of the mode's next time event."""
        return self.rules.due(self.mode, self.t)[0] if self.mode.timed else np.inf

    def _is_due(self) -> bool:
        """Whether a time event of the mode is due."""
        due = self._due()
        return due <= self.t or self._is_now(due)

    def _stops_here(self) -> bool:
        """Whether a guard has come to rest or is left, or a time event, a knot or a measurement is due."""
        is_found = self.settled is not None or self.returning is not None
        return is_found or self._is_due() or self.stops.is_due(self.t)

    def _is_now(self, t: float) -> bool:
        """Whether a time equals the present one to rounding."""
        return same_instant(t, self.t, self.span[0])

    def _leaving_signs(self, entry: SegmentEntry) -> dict[int, int]:
        """Return the side to which each guard was leaving zero in the last segment."""
        return dict(zip(self.mode.guarded, map(int, entry.leaving_sign.tolist()), strict=True))

    def _postpones(self, firing: Firing) -> bool:
        """Whether a failed condition on the mode gives precedence to another event that is due within rounding.

        A bound may be reached just when a transition leaves the mode or the run ends; which of the two is located first
        is then chance. The condition is checked again after that event.
        """
        if not firing.transition.refuses or self.t < self.recheck_time < np.inf:
            return firing.transition.refuses
        if firing.guard == 0.0 == firing.rate:  # it stays at its bound
            return True
        mode, t, at, rules = self.mode, self.t, self.at, self.rules
        moment = SIMULTANEITY_RTOLS * max(
            self.options.rtol * rules.elapsed(t), CONDITION_SLACK * (self.span[1] - self.span[0])
        )
        ahead = min(self._due(), self.stops.next_knot(t), self.stops.next_measurement(t))
        postponed = min(self.span[1], ahead) - t <= moment
        if not postponed:
            at = StatePoint(at.x, at.m, *mode.kernels["entry"](t, at.x, at.m, self.p))
            postponed = rules.is_due_within(moment, firing.transition, mode, at)
        if postponed:
            self.recheck_time = t + 2 * moment
        return postponed or self._touched(firing.transition) is not None

    def _touched(self, condition: TransitionMap) -> float | None:
        """Return the zero band of a bound that is only touched; conditions of `require` are strict and have none."""
        if condition.bound is None:
            return None
        return touched(condition, self.mode, self.t, self.at, self.p, self.options, self.span)

    def _at_rest(self, armed: frozenset[int]) -> Mapping[int, tuple[float, float]]:
        """Return zero band and leaving sign of the guards that have not left zero yet, by transition."""
        found = dict(self.rules.at_rest(self.mode, self.t, self.at, self.p, armed))
        for index in self.mode.guarded:
            condition = self.system.transitions[index]
            band = None if index in armed else self._touched(condition)
            if band is not None:
                found[index] = band, -float(condition.direction)
        return found

    def _overdue(self) -> Firing | None:
        """Return a postponed condition that still fails."""
        if self.t < self.recheck_time:
            return None
        self.recheck_time = np.inf
        mode, at = self.mode, self.at
        at = StatePoint(at.x, at.m, *mode.kernels["entry"](self.t, at.x, at.m, self.p))
        past = (self.system.transitions[i] for i in sorted(self.rules.past_threshold(mode, self.t, at)))
        failed = (condition for condition in past if condition.refuses)
        return next((Firing(condition) for condition in failed if self._touched(condition) is None), None)

    def _first_due(self, crossing: tuple[int, float, float], armed: frozenset[int], entry: SegmentEntry) -> Firing:
        """Return the first of the transitions that are due at a crossing."""
        index, guard, rate = crossing
        if guard == 0.0 == rate and not self.system.transitions[self.mode.guarded[index]].refuses:
            self._refuse_plateau(index)
        mode, at = self.mode, self.at
        found = Firing(self.system.transitions[mode.guarded[index]], guard, rate)
        if guard != 0.0 != rate and not self._has_limit(index, -guard / rate, rate):
            self.rules.singular.add((found.transition.name, mode.name))
        if len(mode.guarded) > 1 or mode.timed:
            at = self.at = StatePoint(at.x, at.m, *mode.kernels["entry"](self.t, at.x, at.m, self.p))
            self.rules.note_sides(mode, self.t, at, armed=armed, leaving=self._leaving_signs(entry), crossing=found)
            found = self.rules.first_due(mode, self.t, at, found, armed)
        return found if found.transition.refuses else self._or_time_event(found) or found

    def _has_limit(self, index: int, moment: float, rate: float) -> bool:
        """Whether the rates at the zero of a guard, a moment from here, are a limit of those here."""
        mode, at = self.mode, self.at
        n = mode.equations.n
        with np.errstate(all="ignore"):
            there = at.x[:n] + moment * at.xdot[:n], at.m, self.p
            rates = kernel(mode.equations, "complete")(self.t + moment, *there)[1]
            moving = kernel(mode.equations, "rates")(self.t + moment, *there)[0][index]
        slow = np.linalg.norm(self.options.allowed(mode.equations.variables, at.x[:n])) / (self.span[1] - self.span[0])
        return has_limit(
            (at.xdot[:n], rate), (rates, moving), self.options.rtol, vanishes=False, negligible=float(slow)
        )

    @staticmethod
    def _stayed_at_zero(crossing: tuple[int, float, float], entry: SegmentEntry) -> bool:
        """Whether a guard has stayed at zero, to rounding, since the segment began."""
        index, guard, rate = crossing
        return guard == 0.0 == rate and bool(entry.began_at_zero[index])

    def _refuse_plateau(self, index: int) -> None:
        """Refuse a guard that reaches zero and stays there: its zero has no well-defined time."""
        mode, at = self.mode, self.at
        h = PLATEAU_STEP * max(abs(self.t), self.span[1] - self.span[0])
        before = (self.t - h, at.x - h * at.xdot, at.m, self.p)
        if mode.kernels["entry"](*before)[1][index] == 0.0:
            raise EventError(
                "The guard has come to zero and stays there: it does not cross, and there is no time for the event.",
                transition=self.system.transitions[mode.guarded[index]].name,
                mode=mode.name,
                time=self.t,
                remedy="State the guard without minima, maxima and branches that hold it at zero.",
            )

    def _pass_knots(self, armed: frozenset[int]) -> frozenset[int]:
        """Advance the signals to their next interval; return the transitions whose guards changed sign."""
        self.recording.remove_outputs(self._is_now)
        mode, before = self.mode, self.at
        intervals = self.stops.intervals
        entries, values = self.stops.coefficients()
        memory = before.m.copy()
        memory[entries] = values
        x = settle(mode, self.t, before.x, memory, self.p, self.options)
        memory.flags.writeable = False
        knot = KnotRecord(self.t, entries, tuple(intervals))
        self.recording.add(knot)
        if self.observer is not None:
            self.observer.on_knot(knot)
        self.at = StatePoint(x, memory, *mode.kernels["entry"](self.t, x, memory, self.p))
        return self._jumped(before, armed)

    def _jumped(self, before: StatePoint, armed: frozenset[int]) -> frozenset[int]:
        """Return the transitions whose guards changed sign at a knot, or over a plateau at zero that ended there."""
        jumped = set()
        for i, old, new in zip(self.mode.guarded, signs(before), signs(self.at), strict=True):
            side = old if old and i in armed else self.plateau_sides.pop(i, 0)
            if not new:
                self.plateau_sides[i] = side
            elif side * new < 0 and self.system.transitions[i].direction * new >= 0:
                jumped.add(i)
        return frozenset(jumped)

    def _measure(self) -> None:
        """Take the measurements due now, after all transitions of this instant."""
        for index in self.stops.measurements_at(self.t):
            record = MeasurementRecord(self.t, index, self.mode, self.at.x, self.at.xdot, self.at.m)
            measurement = self.system.measurements[index]
            self.costs[measurement.components] += measurement.value(record, self.p)[0]
            self.recording.add(record)
            if self.observer is not None:
                self.observer.on_measurement(record)

    def _segment(self, last: float, entry: SegmentEntry) -> tuple[tuple[int, float, float] | None, SegmentEntry]:
        """Integrate to the next event or stop; return the crossing, if any, and the guards that never left zero.

        The native loop may handle events up to `last`; the segment is then the one after them.
        """
        at, due, measured = self.at, self._due(), self.stops.next_measurement(self.t)
        knot, graph = self.stops.next_knot(self.t), self.system.graph
        passes = (measured, graph.measures), (knot, graph.turns)
        if any(map(self._is_held, np.flatnonzero(entry.zero_band).tolist())):  # nothing else may ask for short steps
            last = min(last, self.t + (self.span[1] - self.span[0]) / LEAST_STEPS)
        context = self._context(min([last, *(t for t, by_itself in passes if not by_itself)]))
        t_stop = min(last if context is None else context.t_stop, due, measured, knot)
        if not self._is_now(t_stop):
            self.rules.advance_time()
        task = self._task(
            t_stop, entry, self.recording.outputs_until(t_stop), closed=t_stop >= self.span[1] and due > t_stop
        )
        checkpoint = None
        if context is None:
            passage = one_segment(self.session, task, self.mode.index)
        else:
            if self.recording.ledger.bound.size < np.inf:
                checkpoint = Checkpoint.of(self.open_session, task, context)
            passage = self.session.run_segments(task, context)
        if passage.table is not None:
            self._resume(passage.table, passage.task, checkpoint)
        mode, at, task, outcome = self.mode, self.at, passage.task, passage.outcome
        count = len(mode.guarded)
        began = task.zero_band[:count] > 0
        if outcome is None and passage.error is None:
            self.next_step = task.first_step
            if self.observer is not None:
                self.observer.on_native_pause()
            self.at = StatePoint(at.x, at.m, *mode.kernels["entry"](self.t, at.x, at.m, self.p))
            return None, SegmentEntry(None, task.zero_band[:count], task.leaving_sign[:count], began)
        if passage.table is not None:
            self.rules.advance_time()
        self.settled = None
        again, moment = task.zero_band[:count].copy(), self._before_noise(task, passage.error)
        if (place := self._returns(task, outcome, passage.error)) is not None:
            moment, self.returning = place[1], mode.guarded[place[0]]
            again[place[0]] = np.inf
        if moment is not None:
            return self._segment(moment, SegmentEntry(None, again, task.leaving_sign[:count], began))
        if outcome is None:
            raise self._failed(task, passage.error)
        crossing = outcome.crossing
        if crossing is not None:
            self.returning = None
        if self._settles(task, outcome):
            crossing = None
        x, xdot = mode.complete(outcome.t, outcome.x, outcome.xdot, at.m, self.p)
        kept = {} if self.observer is None else self.observer.on_segment(outcome, x, at.m)
        self._record(task, outcome.t, x, xdot, outcome.rows, outcome.method, kept, outcome.path)
        self.t, self.integrals, self.next_step = outcome.t, outcome.integrals, outcome.next_step
        if crossing is None:  # end of the run or time event: the guards are evaluated again
            self.at = StatePoint(x, at.m, *mode.kernels["entry"](self.t, x, at.m, self.p))
        else:
            self.at = StatePoint(x, at.m, xdot, at.guards, at.rates, at.sizes)
        return crossing, SegmentEntry(None, outcome.zero_band[:count], task.leaving_sign[:count], began)

    def _settles(self, task: SegmentTask, outcome: SegmentOutcome) -> bool:
        """Whether a segment ends where a guard has come to rest at zero, so that rounding moves it across.

        Other crossings against the direction of the flow are refused; a condition that does so has only been touched.
        """
        suspect, self.suspect = self.suspect, None
        if outcome.crossing is not None:
            index, value, rate = outcome.crossing
        elif suspect is not None:
            index, value, rate = suspect[0], 0.0, 0.0
        else:
            return False
        transition = self.system.transitions[self.mode.guarded[index]]
        against = transition.direction * rate < 0
        if transition.refuses:
            return False
        at = self.at._replace(x=outcome.x)
        still = rate == 0.0 and abs(value) <= task.zero_band[index]
        if self.rules.settle(self.mode, index, outcome.t, at, self.p, back=against or still):
            self.settled = transition.index
            return True
        if outcome.crossing is not None and against:
            place: dict[str, Any] = {"mode": self.mode.name, "time": outcome.t}
            jumps = abs(value) > DISCONTINUOUS_CROSSING_SHARE * abs(rate) * (outcome.t - task.t0)
            error = lost_crossing(outcome.crossing, pole=False, **place) if jumps else unresolved_guard(index, **place)
            error.rows = outcome.rows
            raise self._failed(task, error)
        if outcome.crossing is None and suspect is not None:
            raise self._failed(task, suspect[1])
        return False

    def _settled_here(self, armed: frozenset[int]) -> frozenset[int]:
        """Return the guards, of those that have left zero, that have come to rest there at the end of a segment."""
        mode, at = self.mode, self.at
        near = [i for i, rate in self.rules.at_zero(mode, self.t, at) if i in armed and rate]
        places = ((i, mode.guarded.index(i)) for i in near if not self.system.transitions[i].refuses)
        return frozenset(i for i, k in places if self.rules.settle(mode, k, self.t, at, self.p, back=False))

    def _before_noise(self, task: SegmentTask, error: DaeHybridError | None) -> float | None:
        """Return a time before a crossing that could not be located, at which its guard may have come to rest."""
        if not isinstance(error, EventError) or error.guard is None or error.time is None or self.suspect is not None:
            return None
        moment = error.time - SETTLED_SHARE * (error.time - task.t0)
        if error.guard >= len(self.mode.guarded) or not task.t0 < moment < error.time:
            return None
        if self.mode.guarded[error.guard] in self.rules.still:  # it leaves to the other side
            return None
        self.suspect = error.guard, error
        return moment

    def _returns(
        self, task: SegmentTask, outcome: SegmentOutcome | None, error: DaeHybridError | None
    ) -> tuple[int, float] | None:
        """The guard of a relation on whose surface the motion was held, and the time at which it is left again.

        It is left to the side that it came from: the branch that holds there takes over, which is no crossing.
        """
        if isinstance(error, ZenoError) and error.guard is not None and error.time is not None:
            i, t = error.guard, error.time
        elif outcome is not None and outcome.crossing is not None:
            i, t = outcome.crossing[0], outcome.t
            if abs(outcome.crossing[1]) <= task.zero_band[i]:  # it has left to the side that was expected before
                return None
        else:
            return None
        return (i, t) if self._is_held(i) and not self._is_now(t) else None

    def _is_held(self, i: int) -> bool:
        """Whether a guard of the mode is that of a relation on whose surface the motion rests."""
        index = self.mode.guarded[i] if i < len(self.mode.guarded) else None
        return index in self.rules.still and self.system.transitions[index].relation is not None

    def _check_return(self, index: int, firing: Firing, before: StatePoint) -> None:
        """Refuse a motion that leaves a surface on which it was held with a jump of any rate: no guard tells when."""
        share = np.sqrt(self.options.rtol)
        goes_on = np.abs(self._rates(self.at) - self._rates(before)) <= share * np.abs(self._rates(before))
        if firing.transition.index != index or not np.all(goes_on):
            raise EventError(
                "The motion was held on this surface and leaves it to the side that it came from, where the rates are "
                "others: when it does so is not determined by the surface.",
                transition=self.system.transitions[index].name,
                mode=self.mode.name,
                time=self.t,
                remedy="State rest as a mode of its own, left by a transition; friction by sign(v) sticks by itself.",
            )

    def _failed(self, task: SegmentTask, error: DaeHybridError | None) -> DaeHybridError:
        """Return the error of a segment with its diagnosis; the computed part of the segment is recorded."""
        mode, at = self.mode, self.at
        if error is None:
            raise AssertionError("a segment has an outcome or an error")
        if isinstance(error, ZenoError) and self.rules.event_times.end_at_limit(error):
            return error
        self._keep_partial(task, error.rows, error.method or self.options.method)
        error.mode = error.mode or mode.name
        explain(error, mode, self.p, self.options, task.t_stop, (task.t0, at), (self.t, self.at))
        if error.guard is not None and error.guard < len(mode.guarded):
            transition = self.system.transitions[mode.guarded[error.guard]]
            if transition.refuses:  # was at its bound and has left it to the wrong side
                return Firing(transition).refused(mode, self.t, self.at)
            error.transition = transition.name
            if isinstance(error, ZenoError):
                return noisy(self._trajectory(complete=False), error, (self.t, self.at.x, self.at.m)) or error
        return error

    def _context(self, last: float) -> RunContext | None:
        """Return the context for native events up to a time; None if the segment must be integrated alone."""
        graph, alarms, knots = self.system.graph, tuple[Alarms, ...](), None
        directions = getattr(self.observer, "directions", None)
        if not (self.options.native_events and (graph.links_anything or graph.ends is not None)):
            return None
        if any(graph.timed) or graph.measures or graph.turns:
            if graph.turns:
                knots = self.stops.knots(self.t, directions)
            try:
                measured = self.stops.waiting if graph.measures else []
                alarms, until = self.rules.schedule.alarms(self.t, measured, knots)
            except (NonFiniteError, EventError):  # possibly of a mode that is never entered
                return None
            last = min(last, until)
        left = self.options.max_events - self.n_events
        return RunContext(
            graph=graph,
            mode=self.mode.index,
            span=self.span,
            max_events=min(left, NATIVE_EVENTS_PER_CALL) if self.keep == "final" else left,
            start=(self.at.x, self.at.xdot),
            recent=self.rules.event_times.known[-RECENT_EVENT_TIMES:],
            ranges=self.rules.ranges,
            stayed_at_zero=self.rules.stayed_at_zero,
            directions=np.zeros((0, self.p.size)) if directions is None else directions.T,
            t_stop=last,
            t_eval=self.recording.outputs_until(last),
            alarms=alarms,
            knots=knots,
            certify=self.certify,
            slack=SIMULTANEITY_RTOLS * self.options.rtol if self.certify else 0.0,
            bound=self.recording.ledger.next,
        )

    def _resume(self, table: RecordTable, task: SegmentTask, checkpoint: Checkpoint | None) -> None:
        """Resume after events handled natively."""
        self.recording.add_table(table, checkpoint)
        event, mode = table.last
        self.rules.on_native_events(table, task)
        self.n_events += table.n_events
        self.stops.taken(int(table.is_measurement.sum()), table.last[0]["time"])
        self.recheck_time = np.inf
        self.mode, self.t, self.integrals = self.system.modes[mode], task.t0, task.integrals
        none = np.zeros(0)
        self.at = StatePoint(event["x_after"], event["memory_after"], event["xdot_after"], none, none, none)
        self.plateau_sides.clear()
        if self.observer is not None:
            self.observer.on_native_events(table)
        self.costs = self.costs + table.gained
        records = table.measurements(self.system) if self.system.measurements else []
        for record, (value, _) in zip(records, measured(self.system.measurements, records, self.p), strict=True):
            self.costs[self.system.measurements[record.index].components] += value
        if self.recording.ledger.is_dropping:
            del self.rules.event_times.known[:-RETAINED_EVENT_TIMES]

    def _task(self, t_stop: float, entry: SegmentEntry, t_eval: Array | None, *, closed: bool) -> SegmentTask:
        mode, at = self.mode, self.at
        n = mode.equations.n
        more = {} if self.observer is None else self.observer.segment_fields(mode, self.t, at.x, at.m)
        return SegmentTask(
            equations=mode.equations,
            t0=self.t,
            t_stop=t_stop,
            x0=at.x[:n],
            xdot0=at.xdot[:n],
            memory=at.m,
            integrals=self.integrals,
            zero_band=_padded(entry.zero_band, mode.equations.n_guards),
            leaving_sign=_padded(entry.leaving_sign, mode.equations.n_guards),
            record="steps" if t_eval is None or t_eval.size else "nothing",
            t_eval=t_eval,
            closed_end=closed,
            first_step=self.next_step,
            keep_path=self.keep_path,
            **more,
        )

    def _record(
        self, task: SegmentTask, t: float, x: Array, xdot: Array, rows: Array, method: Method | str,
        kept: SegmentSensitivities, path: Array | None = None,
    ) -> None:  # fmt: skip
        at, n, how = self.at, task.x0.size, Method.of(method)
        for array in (rows, at.x, x, at.xdot, xdot, task.memory):
            array.flags.writeable = False
        self.recording.add(
            Segment(
                self.mode,
                self.p,
                task.t0,
                t,
                at.x,
                x,
                at.xdot,
                xdot,
                task.memory,
                how,
                rows[:, 0],
                rows[:, 1 : 1 + n],
                SegmentReplay(self.open_session, task, t, None if how.name == AUTO else how.name),
                path=path,
                **kept,
            )
        )

    def _keep_partial(self, task: SegmentTask, rows: Array | None, method: Method | str) -> None:
        """Record the computed part of a failed segment."""
        if rows is None or not len(rows):
            return
        t, state = float(rows[-1, 0]), rows[-1, 1 : 1 + task.x0.size]
        x, xdot = self.mode.complete(t, state, np.full_like(state, np.nan), task.memory, self.p)
        self._record(task, t, x, xdot, rows, method, {})
        self.t, self.at = t, self.at._replace(x=x, xdot=xdot)

    def _last_output(self) -> None:
        """Write outputs at the end of the run, after a transition there."""
        nothing = not self.recording.has_segments
        left = np.zeros(0) if self.t_eval is None else self.t_eval[self.recording.n_outputs :]
        left = left[[self._is_now(t) for t in left.tolist()]] if left.size else left
        if not (nothing or left.size):
            return
        none = np.zeros(len(self.mode.guarded))
        task = self._task(self.t, SegmentEntry(None, none, none), None, closed=True)
        outcome = self.session.integrate(task)
        kept = {} if self.observer is None else self.observer.on_segment(outcome, self.at.x, self.at.m)
        times = left if left.size else outcome.rows[:1, 0]
        rows = np.repeat(outcome.rows[:1], times.size, axis=0)
        rows[:, 0] = times
        if "sensitivity_rows" in kept:
            kept["sensitivity_rows"] = np.repeat(kept["sensitivity_rows"][:1], times.size, axis=0)
        self._record(task, self.t, self.at.x, self.at.xdot, rows, outcome.method, kept)

    def _fire(self, firing: Firing) -> bool:
        """Apply a transition and record it; return whether the run ends."""
        firing = firing.decided(self.system, self.t, self.at, self.p)
        t, transition = self.t, firing.transition
        self.recording.remove_outputs(self._is_now)
        if transition.trigger.is_periodic:
            self.rules.counts[transition.trigger_index] = firing.count
        order = self.rules.fired(firing, t, 0.0 if firing.follows else firing.guard)
        self.n_events += 1
        if self.n_events > self.options.max_events:
            raise event_limit(
                self.options.max_events,
                self.recording.latest_transitions(),
                transition.name,
                mode=self.mode.name,
                time=t,
            )
        self.mode, self.at, event, costs = firing.apply(
            self.system, t, self.at, self.p, self.options,
            order=order, rate_scale=self.rules.rate_scale(transition, t),
            earlier=self.recording.latest_event if order else None,
        )  # fmt: skip
        self.costs = self.costs + costs
        self.recheck_time = np.inf
        self.recording.add(event)
        if self.observer is not None:
            self.observer.on_transition(transition, event)
        self.plateau_sides.clear()
        return transition.target is None or self.rules.event_times.limit is not None

    def _trajectory(self, *, complete: bool) -> Trajectory:
        self.recording.ledger.close()
        integrals = self.integrals + self.costs
        for array in (integrals, self.p):
            array.flags.writeable = False
        end, parts = (self.t, self.mode, self.at.x, self.at.m), tuple(self.recording.parts)
        directions = getattr(self.observer, "directions", None)
        expand = partial(Expansion, system=self.system, p=self.p, open_session=self.open_session, directions=directions)
        functionals: dict[str, Any] = {}
        if complete:
            try:
                functionals = values_of(self.system, end, self.p, integrals)
            except NonFiniteError as error:
                error.trajectory = self._trajectory(complete=False)
                raise
        return Trajectory(
            system=self.system,
            t_span=self.span,
            options=self.options,
            parameters=self.p,
            parts=TrajectoryParts(lambda: parts, expand, dropped=self.recording.dropped),
            sampled=self.t_eval is not None and self.t_eval.size > 0,
            integrals=integrals,
            functionals=MappingProxyType(functionals),
            statistics=MappingProxyType(self.session.statistics() | {"native_events": self.recording.n_native}),
            notes=self.rules.notes(),
            turns=self.system.turns(self.session.turns()),
            accumulation=self.rules.event_times.limit,
            start=self.start,
            final=(self.t, self.mode.index, self.at.x, self.at.m),
            complete=complete,
        ).thinned(self.keep)


def values_of(
    system: HybridSystem, end: tuple[float, ModeSystem, Array, Array], p: Array, integrals: Array
) -> dict[str, Any]:
    """Return the functionals of a run that ended at (t, mode, x, m)."""
    t, mode, x, m = end
    values = integrals + mode.kernels["terminal"](t, x, m, p)[0]
    parts = {name: values[system.functionals[name]] for name in system.functionals.names}
    lost = [name for name, part in parts.items() if not np.all(np.isfinite(part))]
    if lost:
        raise NonFiniteError(
            f"The functional {', '.join(lost)} is NaN or infinite.",
            variables=lost,
            time=t,
            mode=mode.name,
            remedy=f"Check its parts, at the values that the run came through, for {SUSPECTS}.",
        )
    return {name: scalar(part) for name, part in parts.items()}


def _padded(values: Array, size: int) -> Array:
    """Pad values with zeros to a size."""
    return values if values.size == size else np.concatenate((values, np.zeros(size - values.size)))
