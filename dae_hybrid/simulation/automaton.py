"""The mode loop: integrate, locate, apply, reinitialise, record. No sensitivity code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from dae_hybrid.errors import DaeHybridError, EventError, NonFiniteError, OptionError, ZenoError
from dae_hybrid.method import AUTO, Method
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.options import Keep, Options
from dae_hybrid.port.failure_messages import LATEST, SUSPECTS, event_limit, lost_crossing, unresolved_guard
from dae_hybrid.port.integrator import SegmentOutcome, SegmentTask, Session
from dae_hybrid.port.native_plan import UNBOUNDED, Alarms, Bound, RunContext
from dae_hybrid.port.point import StatePoint
from dae_hybrid.port.record_table import RecordTable
from dae_hybrid.port.records import EventRecord, KnotRecord, MeasurementRecord
from dae_hybrid.port.replay import SegmentReplay
from dae_hybrid.port.segment_rules import SAME_INSTANT, is_unresolved, kernel, one_segment
from dae_hybrid.simulation.checkpoints import Checkpoint, Ledger
from dae_hybrid.simulation.event_accuracy import noisy
from dae_hybrid.simulation.event_logic import TOGETHER, Entry, EventLogic, signs
from dae_hybrid.simulation.failure_diagnosis import explain
from dae_hybrid.simulation.firing import Firing
from dae_hybrid.simulation.observer import RunObserver
from dae_hybrid.simulation.passages import path_passage
from dae_hybrid.simulation.stop_times import StopTimes, settle
from dae_hybrid.simulation.touching import touched
from dae_hybrid.system.initial import Start
from dae_hybrid.system.measurement import measured
from dae_hybrid.system.schedule import Schedule
from dae_hybrid.system.system import HybridSystem, ModeSystem
from dae_hybrid.system.transition_map import TransitionMap
from dae_hybrid.trajectory.parts import Expansion, TrajectoryParts
from dae_hybrid.trajectory.trajectory import Part, Segment, Trajectory

NONE: frozenset[int] = frozenset()
#: transitions that an integrator carries out by itself before it is looked at again, where only the end is kept
STRETCH = 2000
#: times of events that are looked back to
TIMES = 1000
#: events that an integrator needs to know of
RECENT = 4
#: times that differ by less than ten times this share of the run are one where a condition fails
MOMENT = 1e-14
#: a guard that is zero at an event, and this share of the run's time scale before it, has been zero for a while
PLATEAU = 1e-7
#: a guard that is farther from zero where it crosses than this share of its way in the segment jumps
JUMP = 1e-3


class Automaton:
    """One run of a system. Holds the state of the run between segments."""

    def __init__(
        self,
        system: HybridSystem,
        session: Session,
        parameters: Array,
        t_span: tuple[float, float],
        t_eval: Array | None,
        options: Options,
        observer: RunObserver | None,
        reopen: Any,
        schedule: Schedule,
        *,
        certify: bool = False,
        keep_path: bool = False,
        keep: Keep = "all",
        bound: Bound = UNBOUNDED,
    ) -> None:
        self.system, self.session, self.p = system, session, parameters
        self.span, self.t_eval, self.options, self.observer = t_span, t_eval, options, observer
        self.reopen, self.certify, self.keep_path = reopen, certify, keep_path
        self.instant = EventLogic(system, t_span, options, schedule)
        self.stops = StopTimes(system, t_span, parameters)
        self.keep, self.ledger = keep, Ledger(bound, partial(path_passage, rtol=options.rtol))
        self.parts: list[Part | RecordTable] = []
        self.gone = Counter[str]()  # what there was before the parts
        self.integrals, self.costs = np.zeros((2, system.functionals.size))
        self.t = t_span[0]
        self.mode = system.modes[system.initial.mode]
        self.at = StatePoint(*(np.zeros(0) for _ in StatePoint._fields))
        self.start = Start(system.initial, self.mode, self.t, self.at, parameters)
        self.n_events = 0
        self.sides: dict[int, int] = {}  # of guards that a signal holds at zero: which side they came from
        self.spared = np.inf  # when conditions that fail are looked at again
        self.next_step: float | None = None  # of an explicit method, from the segment before
        self.outputs = 0  # how many of the output times are done

    def run(self) -> Trajectory:
        """Run to the end; an error carries the trajectory up to it."""
        try:
            self.at = self.system.initial.apply(self.mode, self.t, self.p)
            self.start = replace(self.start, at=self.at)
            if is_unresolved(*self.span):
                self._check_movement()
            if self.observer is not None:
                self.observer.start(self.start)
            self._loop()
            self._measure()
            self.stops.finish(self.t)
            self._last_output()
        except DaeHybridError as error:
            error.trajectory = self._trajectory(complete=False)
            raise
        return self._trajectory(complete=True)

    def _check_movement(self) -> None:
        """Refuse a run over nothing but roundings of its times in which more than rounding would happen."""
        mode, at, span = self.mode, self.at, self.span[1] - self.span[0]
        n = mode.equations.n
        gained = kernel(mode.equations, "flow")(self.t, at.x[:n], at.m, self.p)[1]
        ny, layout = mode.differential.size, self.system.functionals
        moved = np.concatenate((at.xdot[:ny], gained)) * span
        allowed = (self.options.allowed(mode.differential, at.x[:ny]), self.options.absolute(layout))
        if np.any(np.abs(moved) > np.concatenate(allowed)):
            raise OptionError(
                f"t_span {self.span} is too short to integrate: its ends are a few roundings of {self.t:g} apart, in "
                "which variables or functionals change by more than their tolerances.",
                remedy="Count time from a start that is closer.",
            )

    def _loop(self) -> None:
        end, instant = self.span[1], self.instant
        entering, armed, jumped = True, NONE, NONE
        while True:
            if self.keep == "final":
                self._forget()
            if self.stops.signals and self.stops.pass_knots(self.t):
                jumped = self._turn(armed)
            resting = self._at_rest(armed)
            entry = instant.look(self.mode, self.t, self.at, entering=entering, jumped=jumped, resting=resting)
            firing, jumped = entry.fires, NONE
            due = np.inf
            late = firing is None or firing.transition.refuses or (instant.reversed and not firing.corrects)
            if self.mode.timed and late:
                due, timed, count = instant.due(self.mode, self.t)
                if timed is not None and (due <= self.t or (self.t >= end and self._is_now(due))):
                    firing = Firing(timed, count=count)
            overdue = self._overdue()
            firing = overdue if firing is None else firing
            if firing is not None and (firing is overdue or not self._spares(firing)):
                source = self.mode
                if self._fire(firing):
                    return
                entering, armed = True, armed if self.mode is source else NONE
                continue
            if not self._is_now(due):  # else it fires first, whatever rounding says
                self._measure()
            if self.t >= end:
                return
            last = min(end, self.spared)
            try:
                crossing, entry = self._segment(last, entry)
                while crossing is None and self.t < min(last, self._due()) and not self.stops.is_due(self.t):
                    crossing, entry = self._segment(last, entry)  # it paused, and nothing has happened
            except ZenoError:
                if instant.accumulation is None:
                    raise
                return
            entering, source, pending = False, self.mode, entry.zero_band
            instant.rest(source, pending)
            armed = frozenset(i for i, band in zip(source.guarded, pending.tolist(), strict=True) if not band)
            if crossing is not None and self._stayed_at_zero(crossing, entry):
                armed -= {source.guarded[crossing[0]]}
            elif crossing is not None:
                firing = self._first(crossing, armed, entry)
                if self._spares(firing):
                    armed -= {firing.transition.index}
                    continue
                if self._fire(firing):
                    return
                entering, armed = True, armed if self.mode is source else NONE
            elif source.guarded:
                instant.arrive(source, self.t, self.at, armed=armed, leaving=self._leaving(entry))

    def _due(self) -> float:
        """When the next time event of the mode is due."""
        return self.instant.due(self.mode, self.t)[0] if self.mode.timed else np.inf

    def _is_now(self, t: float) -> bool:
        """Whether a time is the present one but for rounding."""
        return abs(t - self.t) <= SAME_INSTANT * self.instant.elapsed(self.t)

    def _leaving(self, entry: Entry) -> dict[int, int]:
        """To which side guards were leaving zero in the segment that has ended."""
        return dict(zip(self.mode.guarded, map(int, entry.departure.tolist()), strict=True))

    def _spares(self, firing: Firing) -> bool:
        """Whether a condition on the mode fails so close to something else that is due that this goes first.

        A bound is reached where a transition leaves the mode, or at the end of the run: which of them is seen first is
        chance. The condition is looked at again when that moment is over.
        """
        if not firing.transition.refuses or self.t < self.spared < np.inf:
            return firing.transition.refuses
        if firing.guard == 0.0 == firing.rate:  # it stays at its bound
            return True
        mode, t, at, instant = self.mode, self.t, self.at, self.instant
        moment = TOGETHER * max(self.options.rtol * instant.elapsed(t), MOMENT * (self.span[1] - self.span[0]))
        ahead = min(self._due(), self.stops.next_knot(t), self.stops.next_measurement(t))
        spared = min(self.span[1], ahead) - t <= moment
        if not spared:
            at = StatePoint(at.x, at.m, *mode.kernels["entry"](t, at.x, at.m, self.p))
            spared = instant.is_due_within(moment, firing.transition, mode, at)
        if spared:
            self.spared = t + 2 * moment
        return spared or self._touched(firing.transition) is not None

    def _touched(self, condition: TransitionMap) -> float | None:
        """The zero band of a bound that is only touched; what a mode requires to be positive must not vanish."""
        if condition.bound is None:
            return None
        return touched(condition, self.mode, self.t, self.at, self.p, self.options, self.span)

    def _at_rest(self, armed: frozenset[int]) -> Mapping[int, tuple[float, float]]:
        """Guards that have not left zero yet, by their transitions: zero band, and the sign to leave it with."""
        found = dict(self.instant.at_rest(self.mode, self.t, self.at, self.p, armed))
        for index in self.mode.guarded:
            condition = self.system.transitions[index]
            band = None if index in armed else self._touched(condition)
            if band is not None:
                found[index] = band, -float(condition.direction)
        return found

    def _overdue(self) -> Firing | None:
        """A condition that still fails when its moment is over."""
        if self.t < self.spared:
            return None
        self.spared = np.inf
        mode, at = self.mode, self.at
        at = StatePoint(at.x, at.m, *mode.kernels["entry"](self.t, at.x, at.m, self.p))
        past = (self.system.transitions[i] for i in sorted(self.instant.past(mode, self.t, at)))
        failed = (condition for condition in past if condition.refuses)
        return next((Firing(condition) for condition in failed if self._touched(condition) is None), None)

    def _first(self, crossing: tuple[int, float, float], armed: frozenset[int], entry: Entry) -> Firing:
        """Which transition is the first of those that are due where a guard has crossed."""
        index, guard, rate = crossing
        if guard == 0.0 == rate and not self.system.transitions[self.mode.guarded[index]].refuses:
            self._refuse_plateau(index)
        mode, at = self.mode, self.at
        found = Firing(self.system.transitions[mode.guarded[index]], guard, rate)
        if len(mode.guarded) > 1 or mode.timed:
            at = self.at = StatePoint(at.x, at.m, *mode.kernels["entry"](self.t, at.x, at.m, self.p))
            self.instant.arrive(mode, self.t, at, armed=armed, leaving=self._leaving(entry), crossing=found)
            found = self.instant.first(mode, self.t, at, found, armed)
        due, timed, count = self.instant.due(mode, self.t) if self.instant.reversed else (np.inf, None, 0)
        return found if timed is None or due > self.t else Firing(timed, count=count)

    @staticmethod
    def _stayed_at_zero(crossing: tuple[int, float, float], entry: Entry) -> bool:
        """Whether nothing but rounding has taken a guard away from zero since the segment began."""
        index, guard, rate = crossing
        return guard == 0.0 == rate and bool(entry.began_at_zero[index])

    def _refuse_plateau(self, index: int) -> None:
        """A guard that comes to zero and stays there is seen somewhere on the way, not where it crosses."""
        mode, at = self.mode, self.at
        h = PLATEAU * max(abs(self.t), self.span[1] - self.span[0])
        before = (self.t - h, at.x - h * at.xdot, at.m, self.p)
        if mode.kernels["entry"](*before)[1][index] == 0.0:
            raise EventError(
                "The guard has come to zero and stays there: it does not cross, and there is no time for the event.",
                transition=self.system.transitions[mode.guarded[index]].name,
                mode=mode.name,
                time=self.t,
                remedy="State the guard without minima, maxima and branches that hold it at zero.",
            )

    def _turn(self, armed: frozenset[int]) -> frozenset[int]:
        """Signals take their next coefficients; the transitions whose guards changed sign with them."""
        self._retract()
        mode, before = self.mode, self.at
        intervals = self.stops.intervals
        entries, values = self.stops.coefficients()
        memory = before.m.copy()
        memory[entries] = values
        x = settle(mode, self.t, before.x, memory, self.p, self.options)
        memory.flags.writeable = False
        knot = KnotRecord(self.t, entries, tuple(intervals))
        self.parts.append(knot)
        if self.observer is not None:
            self.observer.turn(knot)
        self.at = StatePoint(x, memory, *mode.kernels["entry"](self.t, x, memory, self.p))
        return self._jumped(before, armed)

    def _jumped(self, before: StatePoint, armed: frozenset[int]) -> frozenset[int]:
        """Transitions whose guards have changed sign at a knot, or on a plateau at zero that ended there."""
        jumped = set()
        for i, old, new in zip(self.mode.guarded, signs(before), signs(self.at), strict=True):
            side = old if old and i in armed else self.sides.pop(i, 0)
            if not new:
                self.sides[i] = side
            elif side * new < 0 and self.system.transitions[i].direction * new >= 0:
                jumped.add(i)
        return frozenset(jumped)

    def _measure(self) -> None:
        """Take the measurements of this time; all its transitions have fired."""
        for index in self.stops.measurements_at(self.t):
            record = MeasurementRecord(self.t, index, self.mode, self.at.x, self.at.xdot, self.at.m)
            measurement = self.system.measurements[index]
            self.costs[measurement.components] += measurement.value(record, self.p)[0]
            self.parts.append(record)
            if self.observer is not None:
                self.observer.measure(record)

    def _segment(self, last: float, entry: Entry) -> tuple[tuple[int, float, float] | None, Entry]:
        """Integrate to the next event or stop; which guard crossed, if any, and which never left zero.

        The integrator may carry out transitions on the way, until `last`: the segment is then the one after them.
        """
        at, due, measured = self.at, self._due(), self.stops.next_measurement(self.t)
        knot, graph = self.stops.next_knot(self.t), self.system.graph
        passes = (measured, graph.measures), (knot, graph.turns)
        context = self._context(min([last, *(t for t, by_itself in passes if not by_itself)]))
        t_stop = min(last if context is None else context.t_stop, due, measured, knot)
        if t_stop - self.t > self.instant.elapsed(t_stop) * SAME_INSTANT:
            self.instant.leave()
        task = self._task(t_stop, entry, self._outputs_until(t_stop), closed=t_stop >= self.span[1] and due > t_stop)
        checkpoint = None
        if context is None:
            passage = one_segment(self.session, task, self.mode.index)
        else:
            if self.ledger.bound.size < np.inf:
                checkpoint = Checkpoint.of(self.reopen, task, context)
            passage = self.session.march(task, context)
        if passage.table is not None:
            self._catch_up(passage.table, passage.task, checkpoint)
        mode, at, task, outcome = self.mode, self.at, passage.task, passage.outcome
        count = len(mode.guarded)
        began = task.zero_band[:count] > 0
        if outcome is None and passage.error is None:
            self.next_step = task.first_step
            return None, Entry(None, task.zero_band[:count], task.departure[:count], began)
        if outcome is None:
            raise self._failed(task, passage.error)
        if outcome.crossing is not None:
            self._refuse_noise(task, outcome, outcome.crossing)
        x, xdot = mode.complete(outcome.t, outcome.x, outcome.xdot, at.m, self.p)
        kept = {} if self.observer is None else self.observer.advance(outcome, x, at.m)
        self._record(task, outcome.t, x, xdot, outcome.rows, outcome.method, {"path": outcome.path, **kept})
        self.t, self.integrals, self.next_step = outcome.t, outcome.integrals, outcome.next_step
        if outcome.crossing is None:  # the end of the run or a time event: the guards are looked at again
            self.at = StatePoint(x, at.m, *mode.kernels["entry"](self.t, x, at.m, self.p))
        else:
            self.at = StatePoint(x, at.m, xdot, at.guards, at.rates, at.sizes)
        return outcome.crossing, Entry(None, outcome.zero_band[:count], task.departure[:count], began)

    def _refuse_noise(self, task: SegmentTask, outcome: SegmentOutcome, crossing: tuple[int, float, float]) -> None:
        """A guard that has crossed zero where the flow takes it the other way; a condition has only been touched."""
        index, value, rate = crossing
        transition = self.system.transitions[self.mode.guarded[index]]
        if transition.direction * rate < 0 and not transition.refuses:
            place: dict[str, Any] = {"mode": self.mode.name, "time": outcome.t}
            jumps = abs(value) > JUMP * abs(rate) * (outcome.t - task.t0)
            error = lost_crossing(crossing, pole=False, **place) if jumps else unresolved_guard(index, **place)
            error.rows = outcome.rows
            raise self._failed(task, error)

    def _failed(self, task: SegmentTask, error: DaeHybridError | None) -> DaeHybridError:
        """The error of a segment, with what is known about it and what had been computed."""
        mode, at = self.mode, self.at
        if error is None:
            raise AssertionError("a segment has an outcome or an error")
        if isinstance(error, ZenoError) and self.instant.lose(error):
            return error
        self._keep_partial(task, error.rows, error.method or self.options.method)
        error.mode = error.mode or mode.name
        explain(error, mode, self.p, self.options, task.t_stop, (task.t0, at), (self.t, self.at))
        if error.guard is not None and error.guard < len(mode.guarded):
            transition = self.system.transitions[mode.guarded[error.guard]]
            if transition.refuses:  # it was at its bound, and has left it to the wrong side
                return Firing(transition).refused(mode, self.t, self.at)
            error.transition = transition.name
            if isinstance(error, ZenoError):
                return noisy(self._trajectory(complete=False), error, (self.t, self.at.x, self.at.m)) or error
        return error

    def _context(self, last: float) -> RunContext | None:
        """What the integrator needs to know to go on by itself, up to a time; None where it is not to do so."""
        graph, alarms, knots = self.system.graph, tuple[Alarms, ...](), None
        directions = getattr(self.observer, "directions", None)
        if not (self.options.native_events and (graph.links_anything or graph.ends is not None)):
            return None
        if any(graph.timed) or graph.measures or graph.turns:
            if graph.turns:
                knots = self.stops.knots(self.t, directions)
            try:
                measured = self.stops.waiting if graph.measures else []
                alarms, until = self.instant.schedule.alarms(self.t, measured, knots)
            except NonFiniteError:  # of a mode that may never be entered
                return None
            last = min(last, until)
        left = self.options.max_events - self.n_events
        return RunContext(
            graph=graph,
            mode=self.mode.index,
            span=self.span,
            max_events=min(left, STRETCH) if self.keep == "final" else left,
            start=(self.at.x, self.at.xdot),
            recent=self.instant.times[-RECENT:],
            ranges=self.instant.ranges,
            rested=self.instant.rested,
            directions=np.zeros((0, self.p.size)) if directions is None else directions.T,
            t_stop=last,
            t_eval=self._outputs_until(last),
            alarms=alarms,
            knots=knots,
            certify=self.certify,
            slack=TOGETHER * self.options.rtol if self.certify else 0.0,
            bound=self.ledger.next,
        )

    def _outputs_until(self, t: float) -> Array | None:
        """The output times that are left, up to a time."""
        if self.t_eval is None:
            return None
        return np.ascontiguousarray(self.t_eval[self.outputs : np.searchsorted(self.t_eval, t, side="right")])

    def _catch_up(self, table: RecordTable, task: SegmentTask, checkpoint: Checkpoint | None) -> None:
        """Go on after what the integrator has carried out."""
        for array in (*table.rows.values(), *table.start, table.task.memory):
            array.flags.writeable = False
        self.parts.append(table)
        event, mode = table.last
        self.instant.catch_up(table, task)
        self.n_events += table.n_events
        self.stops.taken(int(table.is_measurement.sum()), table.last[0]["time"])
        self.spared = np.inf
        self.outputs += table.n_rows
        self.mode, self.t, self.integrals = self.system.modes[mode], task.t0, task.integrals
        none = np.zeros(0)
        self.at = StatePoint(event["x_after"], event["memory_after"], event["xdot_after"], none, none, none)
        self.sides.clear()
        if self.observer is not None:
            self.observer.absorb(table)
        self.costs = self.costs + table.gained
        records = table.measurements(self.system) if self.system.measurements else []
        for record, (value, _) in zip(records, measured(self.system.measurements, records, self.p), strict=True):
            self.costs[self.system.measurements[record.index].components] += value
        if checkpoint is not None:
            self.parts[-1] = self.ledger.entered(table, checkpoint)
            if self.ledger.lets_go:
                del self.instant.times[:-TIMES]

    def _task(self, t_stop: float, entry: Entry, t_eval: Array | None, *, closed: bool) -> SegmentTask:
        mode, at = self.mode, self.at
        n = mode.equations.n
        more = {} if self.observer is None else self.observer.extend(mode, self.t, at.x, at.m)
        return SegmentTask(
            equations=mode.equations,
            t0=self.t,
            t_stop=t_stop,
            x0=at.x[:n],
            xdot0=at.xdot[:n],
            memory=at.m,
            integrals=self.integrals,
            zero_band=_padded(entry.zero_band, mode.equations.n_guards),
            departure=_padded(entry.departure, mode.equations.n_guards),
            record="steps" if t_eval is None or t_eval.size else "nothing",
            t_eval=t_eval,
            closed_end=closed,
            first_step=self.next_step,
            keep_path=self.keep_path,
            **more,
        )

    def _record(
        self, task: SegmentTask, t: float, x: Array, xdot: Array, rows: Array, method: Method | str,
        kept: dict[str, Any],
    ) -> None:  # fmt: skip
        at, n, how = self.at, task.x0.size, Method.of(method)
        self.outputs += len(rows)
        for array in (rows, at.x, x, at.xdot, xdot, task.memory):
            array.flags.writeable = False
        self.parts.append(
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
                SegmentReplay(self.reopen, task, t, None if how.name == AUTO else how.name),
                **kept,
            )
        )

    def _keep_partial(self, task: SegmentTask, rows: Array | None, method: Method | str) -> None:
        """What a failed segment had computed."""
        if rows is None or not len(rows):
            return
        t, state = float(rows[-1, 0]), rows[-1, 1 : 1 + task.x0.size]
        x, xdot = self.mode.complete(t, state, np.full_like(state, np.nan), task.memory, self.p)
        self._record(task, t, x, xdot, rows, method, {})
        self.t, self.at = t, self.at._replace(x=x, xdot=xdot)

    def _retract(self) -> None:
        """Outputs that rounding alone puts before an event, or a knot, are at its time: they show what is after it."""
        if self.t_eval is None:
            return
        for i in range(len(self.parts) - 1, -1, -1):
            part = self.parts[i]
            if isinstance(part, Segment):
                kept = len(part.t)
                while kept and self._is_now(part.t[kept - 1]):
                    kept -= 1
                self.outputs -= len(part.t) - kept
                self.parts[i] = part.first(kept)
            if isinstance(part, RecordTable) or (isinstance(part, Segment) and not self._is_now(part.t_start)):
                return

    def _last_output(self) -> None:
        """Output times at the very end, where a transition fired: the value after it."""
        nothing = not any(isinstance(part, Segment | RecordTable) for part in self.parts)
        left = np.zeros(0) if self.t_eval is None else self.t_eval[self.outputs :]
        left = left[[self._is_now(t) for t in left.tolist()]] if left.size else left
        if not (nothing or left.size):
            return
        none = np.zeros(len(self.mode.guarded))
        task = self._task(self.t, Entry(None, none, none), None, closed=True)
        outcome = self.session.integrate(task)
        kept = {} if self.observer is None else self.observer.advance(outcome, self.at.x, self.at.m)
        times = left if left.size else outcome.rows[:1, 0]
        rows = np.repeat(outcome.rows[:1], times.size, axis=0)
        rows[:, 0] = times
        if "sensitivity_rows" in kept:
            kept["sensitivity_rows"] = np.repeat(kept["sensitivity_rows"][:1], times.size, axis=0)
        self._record(task, self.t, self.at.x, self.at.xdot, rows, outcome.method, kept)

    def _forget(self) -> None:
        """Let go of the parts that nothing looks back to."""
        old = self.parts[:-LATEST]
        del self.parts[:-LATEST], self.instant.times[:-TIMES]
        self._tally(old)

    def _tally(self, parts: list[Part | RecordTable]) -> None:
        for part in parts:
            if isinstance(part, RecordTable):
                self.gone.update(segments=part.count, events=part.n_events, native=part.n_events)
            else:
                self.gone.update(segments=isinstance(part, Segment), events=isinstance(part, EventRecord))

    def _latest(self) -> list[tuple[str, float]]:
        """Names and times of the last transitions, carried out here or by the integrator."""
        found: list[tuple[str, float]] = []
        for part in reversed(self.parts):
            if isinstance(part, EventRecord):
                found.append((part.transition, part.time))
            elif isinstance(part, RecordTable):
                heads = zip(part.event_heads[-LATEST:], part.times[-LATEST:].tolist(), strict=True)
                names = [(part.graph.exits[head.mode][head.guard], time) for head, time in heads]
                found += [(self.system.transitions[i].name, time) for i, time in reversed(names)]
            if len(found) >= LATEST:
                break
        return found[LATEST - 1 :: -1] if len(found) >= LATEST else found[::-1]

    def _fire(self, firing: Firing) -> bool:
        """Apply a transition and record it; whether the run ends."""
        t, transition = self.t, firing.transition
        self._retract()
        if transition.kind == "every":
            self.instant.counts[transition.index] = firing.count
        order = self.instant.fired(firing, t, 0.0 if firing.follows else firing.guard)
        self.n_events += 1
        if self.n_events > self.options.max_events:
            raise event_limit(self.options.max_events, self._latest(), transition.name, mode=self.mode.name, time=t)
        self.mode, self.at, event, costs = firing.carry_out(
            self.system, t, self.at, self.p, self.options,
            order=order, rate_scale=self.instant.rate_scale(transition, t),
            earlier=self._earlier() if order else None,
        )  # fmt: skip
        self.costs = self.costs + costs
        self.spared = np.inf
        self.parts.append(event)
        if self.observer is not None:
            self.observer.cross(transition, event)
        self.sides.clear()
        return transition.target is None or self.instant.accumulation is not None

    def _earlier(self) -> EventRecord | None:
        """The latest event, None where signals have turned since."""
        for part in reversed(self.parts):
            if isinstance(part, EventRecord | KnotRecord | RecordTable):
                return part if isinstance(part, EventRecord) else None
        return None

    def _trajectory(self, *, complete: bool) -> Trajectory:
        self.ledger.close()
        integrals = self.integrals + self.costs
        for array in (integrals, self.p):
            array.flags.writeable = False
        end, parts = (self.t, self.mode, self.at.x, self.at.m), tuple(self.parts)
        directions = getattr(self.observer, "directions", None)
        expand = partial(Expansion, system=self.system, p=self.p, reopen=self.reopen, directions=directions)
        native = self.gone["native"] + sum(part.n_events for part in parts if isinstance(part, RecordTable))
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
            parts=TrajectoryParts(lambda: parts, expand, gone=(self.gone["segments"], self.gone["events"])),
            sampled=self.t_eval is not None and self.t_eval.size > 0,
            integrals=integrals,
            functionals=MappingProxyType(functionals),
            statistics=MappingProxyType(self.session.statistics() | {"native_events": native}),
            notes=self.instant.notes(),
            turns=self.system.turns(self.session.turns()),
            accumulation=self.instant.accumulation,
            start=self.start,
            final=(self.t, self.mode.index, self.at.x, self.at.m),
            complete=complete,
        ).thinned(self.keep)


def values_of(
    system: HybridSystem, end: tuple[float, ModeSystem, Array, Array], p: Array, integrals: Array
) -> dict[str, Any]:
    """Values of the functionals of a run that ended at (t, mode, x, m)."""
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
    """Zeros behind the values, up to a size."""
    return values if values.size == size else np.concatenate((values, np.zeros(size - values.size)))


def scalar(values: Array) -> Any:
    """A float for one entry, the array otherwise."""
    values.flags.writeable = False
    return float(values[0]) if values.size == 1 else values
