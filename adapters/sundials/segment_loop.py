"""Advance a segment, or successive segments through native transitions, with periodic checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dae_hybrid.errors import DaeHybridError, NonFiniteError, StepSizeError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.failure_messages import is_starved, lost_crossing, singular, starved, step_limit
from dae_hybrid.port.integrator import SegmentOutcome, SegmentTask
from dae_hybrid.port.native_plan import RunContext, SegmentRun
from dae_hybrid.port.record_table import RecordTable
from dae_hybrid.port.replay import shortened
from dae_hybrid.port.segment_rules import DRIFT_CHECK_STEPS, has_drifted, is_pole, zero_at_the_end
from dae_hybrid.port.stiffness import STIFFNESS_CHECK_STEPS, determinant_sign

from . import driver
from .forward import Forward
from .methods import SundialsMethod

if TYPE_CHECKING:
    from .native_forward import NativeForward
    from .native_loop import NativeLoop
    from .session import SundialsSession

#: steps between checks for progress
BUDGET = 20_000
#: largest relative residual of multipliers in the direct form of index 2
LOOSE = 0.1
#: steps between checks of the sign of a determinant that no guard monitors
SIGN_LOOK = 50
#: number of no segment
NONE = -1
#: distances from the end of a segment at which its last finite state is searched for, relative to the time
BACK = (0.0, 1e-14, 1e-12, 1e-10, 1e-8, 1e-6)


ZeroAtTheEnd = tuple[float, Array, Array, tuple[int, float, float]] | None


class SegmentLoop:
    """One task in progress. With a `loop` it continues through native transitions; `task` and `mode` are the latest.

    `first` is the initial task. A paused `runner` has already started it.
    """

    def __init__(
        self, session: SundialsSession, task: SegmentTask, method: SundialsMethod, loop: NativeLoop | None = None,
        context: RunContext | None = None, runner: NativeForward | None = None,
    ) -> None:  # fmt: skip
        self.session, self.first, self.method = session, task, method
        self.loop, self.context, self._runner = loop, context, runner
        self._known: tuple[int, SegmentTask] = (0, task)
        self.mode = 0 if context is None else context.mode
        self.memories: dict[int, Forward] = {}
        self._starved: DaeHybridError | None = None
        self._sign, self._trusted = 0.0, np.inf  # last sign of the determinant, and when

    def run(self) -> SegmentRun:
        """Advance as far as possible."""
        self.before = self.session.counts["steps"]
        outcome: SegmentOutcome | None = None
        error: DaeHybridError | None = None
        if self._runner is None:
            self.memories[self.mode] = self.session.forward_memory(self.first, self.method)
        else:
            self._take_over(self._runner)
        try:
            if self._runner is None:
                self._begin()
            with self.memory.model.interruptible():
                status = self._advance() if self._again is None else self._repeat()
            self.memory.model.raise_pending()
            outcome = None if status == driver.COMPLETE else self._outcome(status)
        except DaeHybridError as found:
            error = found
            rows, error.method = self.memory.stepper.rows(self._row), self.memory.method
            error.rows = rows[rows[:, 0] <= self._trusted] if self._trusted < np.inf else rows
        finally:
            self._count()
        return SegmentRun(self._table(), self.mode, self.task, outcome, error)

    def _begin(self) -> None:
        session, loop = self.session, self.loop
        if loop is not None and self.context is not None:
            loop.begin(self.first, self.context, session.options, session.parameters)
        self.memory.begin(self.first)
        if loop is not None:
            loop.enter(self.mode, self.memory.stepper.run)

    def _take_over(self, runner: NativeForward) -> None:
        if self.context is None:
            raise AssertionError("a paused native run has a run context")
        runner.hand_over(self.context, self.session.options)
        self.memories, self.mode = runner.visited, runner.loop.mode

    @property
    def memory(self) -> Forward:
        """The memory of the current segment."""
        return self.memories[self.mode]

    @property
    def task(self) -> SegmentTask:
        """The task of the current segment."""
        if self.loop is not None and self.loop.n_events != self._known[0]:
            self._known = self.loop.n_events, self.loop.task(self.first)
        return self._known[1]

    @property
    def steps(self) -> int:
        """Steps of all segments so far."""
        return self.memory.stepper.steps + (self.loop.steps if self.loop is not None else 0)

    @property
    def _segment(self) -> int:
        """Number of the current segment."""
        return 0 if self.loop is None else self.loop.n_events

    @property
    def _leads_onto_constraints(self) -> bool:
        """Whether a mode entered on the way may have constraints on which the solution must be kept."""
        return self.context is not None and any(self.context.graph.constraints)

    @property
    def _row(self) -> int:
        """First row of the current segment."""
        return 0 if self.loop is None else self.loop.row

    # -- steps ----------------------------------------------------------------------------------------------

    def _advance(self) -> int:
        """Step until a result; PAUSED at the step limit, or if the segment must continue differently."""
        left = self.session.options.max_steps - self.before
        since, self.session.since_look = self.session.since_look, 0
        looked, begun = self.steps - since, (self.memory.stepper.t, self.steps, NONE if since else self._segment)
        while left > self.steps:
            before, taken, paused = self.memory.stepper.t, looked, None
            if self._runner is not None:
                begun = before, looked, _ = self._runner.stretch
                taken = looked
                paused, self._runner = self._runner.paused, None
            constrained = self.memory.equations.constrained or self._leads_onto_constraints
            budget = DRIFT_CHECK_STEPS if constrained else BUDGET
            patient = self._chooses and self.memory.method.implicit
            unwatched = self.memory.equations.unwatched and self.memory.equations.index == 1
            if unwatched:
                budget = SIGN_LOOK
                if not self._sign:
                    self._refuse_singular(before)
            status = self._go(taken, min(budget, left - taken), paused)
            if unwatched and status >= 0:
                self._refuse_singular(self.memory.stepper.t)
            if status == driver.AT_ROUNDING:
                if self._meets_zeros and self._zero_here() is not None:
                    return driver.STALLED
                continue
            if status not in (driver.PAUSED, driver.STALLED):
                if status == driver.COMPLETE:
                    self.session.since_look = self.steps - taken
                return status
            t, looked = self.memory.stepper.t, self.steps
            if self._automatic and status == driver.PAUSED and self._ought_to_change(t):
                return driver.PAUSED
            if status == driver.STALLED or not patient or self.steps - begun[1] >= BUDGET:  # otherwise steps may grow
                stalled, same = status == driver.STALLED, begun[2] == self._segment
                step = (t - begun[0]) / (self.steps - begun[1]) if same and not stalled else 0.0
                if same and is_starved(step, t, self.task):
                    mode, poisoned = self.memory.equations.name, self._is_poisoned()
                    self._starved = starved(step, mode=mode, time=t, not_finite=poisoned)
                    return driver.STALLED
                begun = t, self.steps, self._segment
            if self._look_around(t):
                return driver.PAUSED
        return driver.PAUSED

    def _repeat(self) -> int:
        """Repeat a record table; all checks were made in the first pass."""
        left, status = self.session.options.max_steps - self.before, driver.PAUSED
        while left > self.steps and status in (driver.PAUSED, driver.STALLED, driver.AT_ROUNDING):
            status = self._go(self.steps, left - self.steps, None)
        return status

    def _refuse_singular(self, t: float) -> None:
        """Refuse to continue if the determinant of the algebraic equations has changed sign since the last check."""
        e, memory = self.memory.equations, self.memory
        sign = determinant_sign(e, t, memory.x_data[: e.n], memory.model.memory, self.session.parameters)
        if self._sign and sign != self._sign:
            error = singular(mode=e.name, time=t, variables=e.algebraic_labels)
            error.message += f" That was after t = {self._trusted:.9g}."
            raise error
        self._sign, self._trusted = sign, t

    @property
    def _automatic(self) -> bool:
        return self.session.options.automatic and self.first.method is None and self._again is None

    @property
    def _again(self) -> RecordTable | None:
        """The record table to be repeated, if any."""
        return None if self.context is None else self.context.replayed

    @property
    def _chooses(self) -> bool:
        return self._automatic and self.session.choice.has(self.memory.equations)

    def _ought_to_change(self, t: float) -> bool:
        """Whether the method should change here; see `choice`."""
        choice, memory, steps = self.session.choice, self.memory, self.before + self.steps
        if choice.left(steps) > 0:
            return False
        e, t_stop = memory.equations, self.first.t_stop if self.loop is None else self.loop.stop
        return choice.changes(e, t, memory.x_data[: e.n], memory.model.memory, t_stop, steps)

    def _look_around(self, t: float) -> bool:
        """Whether the segment must continue differently, with the next task."""
        session, memory, e = self.session, self.memory, self.memory.equations
        if e.index == 2:
            memory.stepper.stop()
            refuse_loose(memory)
        x = memory.x_data[: e.n]
        drifts = e.constrained and self.first.record != "dense" and e.index == 1
        return drifts and has_drifted(self.task, t, x, session.parameters, session.options)

    def _end(self, taken: int, budget: int) -> int:
        """Step count at the next check: late enough after the last one to measure progress."""
        if self._chooses:
            budget = min(budget, max(STIFFNESS_CHECK_STEPS, self.session.choice.left(self.before + taken)))
        return taken + budget

    def _go(self, taken: int, budget: int, status: int | None) -> int:
        """Take at most `budget` steps after `taken`; `status` is that of steps already taken since, if any."""
        end = self._end(taken, budget)
        if self.loop is None:
            return self.memory.stepper.advance(end - self.steps)
        while True:
            if status is None:
                status = self.loop.advance(end - self.steps)
            self.mode = self.loop.mode
            if status == driver.ROWS_FULL:
                self.memory.stepper.enlarge()
            elif status in (driver.FOUND_ROOT, driver.REACHED_STOP) and self.loop.wanted >= 0:
                self._open(self.loop.wanted)
                end = self._end(taken, budget)
            else:
                return status
            status = None

    def _open(self, mode: int) -> None:
        """Create the memory of the mode to enter."""
        if self.loop is None:
            raise AssertionError("only the native loop requests modes")
        task = self.loop.ahead(self.first)
        method = self.session.method_for(task, self.before + self.steps, self.context)
        opened = self.memories[mode] = self.session.forward_memory(task, method)
        opened.prepare(task)
        self.loop.enter(mode, opened.stepper.run)
        self.loop.resume()

    # -- results --------------------------------------------------------------------------------------------

    def _outcome(self, status: int) -> SegmentOutcome:
        task, memory, stepper = self.task, self.memory, self.memory.stepper
        e = task.equations
        if status == driver.PAUSED and self.before + self.steps < self.session.options.max_steps:
            status = stepper.stop()
        lost = status == driver.FOUND_ROOT and not np.all(np.isfinite(stepper.completed[: 2 * e.n]))
        ended = self._zero_at_the_end() if status < 0 or status == driver.STALLED or lost else None
        if ended is None and (status == driver.PAUSED or status < 0 or self._starved is not None):
            raise self._starved or self._failure(status)
        if ended is None and lost:
            raise NonFiniteError(
                "The state is NaN or infinite where a guard crosses zero.",
                mode=e.name,
                time=stepper.t,
                remedy="Tighten rtol and atol, or move the guard to where the equations are defined on both sides.",
            )
        if status == driver.SINGULAR:
            raise singular(mode=e.name, time=stepper.t, variables=e.algebraic_labels)
        crossing = stepper.crossing if status in (driver.FOUND_ROOT, driver.LOST) else None
        t, n = stepper.t, e.n
        x, xdot = stepper.completed[:n].copy(), stepper.completed[n : 2 * n].copy()
        if crossing is not None and status == driver.LOST:
            pole = is_pole(task, t, x, xdot, crossing, self.session.parameters)
            raise lost_crossing(crossing, pole=pole, mode=e.name, time=t)
        path = stepper.path(0 if self.loop is None else self.loop.path_row)
        if ended is not None:
            if path is not None and not memory.explicit:  # values beyond it may not exist
                path = shortened(path, n, t)
            t, x, xdot, crossing = ended
        elif crossing is not None and is_pole(task, stepper.t, x, xdot, crossing, self.session.parameters):
            raise lost_crossing(crossing, pole=True, mode=e.name, time=stepper.t)
        refuse_loose(memory)
        found = None if task.sensitivities is None else memory.sensitivities
        of_integrals = None if found is None else found[:, n:] if e.integrates else task.integral_sensitivities
        return SegmentOutcome(
            t=t,
            x=x,
            xdot=xdot,
            zero_band=memory.model.zero_band.copy(),
            method=memory.method,
            crossing=crossing,
            integrals=memory.x_data[n : memory.block].copy() if e.integrates else task.integrals,
            rows=stepper.rows(self._row),
            sensitivities=None if found is None else found[:, :n],
            integral_sensitivities=of_integrals,
            next_step=stepper.next_step if memory.explicit else None,
            path=path,
        )

    def _zero_at_the_end(self) -> ZeroAtTheEnd:
        """The zero of a guard just before the segment's end, if the equations have no finite values beyond it."""
        task, stepper = self.task, self.memory.stepper
        if not self._meets_zeros:
            return None
        if not stepper.steps:  # a method that replaced a failed one has no step to interpolate
            return self._zero_here()
        end = stepper.t
        for back in BACK:  # the zero may lie beyond the last finite values
            stepper.move_to(end - back * max(abs(end), end - task.t0))
            if stepper.stop() >= 0 and np.all(np.isfinite(stepper.completed[: 2 * task.equations.n])):
                found = self._zero_here()
                if found is not None:
                    return found
        stepper.move_to(end)
        return None

    @property
    def _meets_zeros(self) -> bool:
        """Whether the segment may end at the zero of a guard."""
        return self.task.equations.n_guards > 0 and self.task.record != "dense"

    def _zero_here(self) -> ZeroAtTheEnd:
        task, memory, stepper = self.task, self.memory, self.memory.stepper
        t, x = (stepper.t, memory.x_data[: task.equations.n].copy()) if stepper.steps else (task.t0, task.x0)
        return zero_at_the_end(task, t, x, self.session.parameters, self.session.options, memory.model.zero_band)

    def _is_poisoned(self) -> bool:
        return self.memory.model.counters()["not_finite"] > self.memory.not_finite

    def _failure(self, status: int) -> DaeHybridError:
        memory, stepper = self.memory, self.memory.stepper
        error: DaeHybridError
        if status == driver.PAUSED:
            error = step_limit(self.session.options.max_steps, mode=memory.equations.name, time=stepper.t)
        else:
            try:
                memory.fail(status, stepper.t)
                raise AssertionError("fail() raises")
            except DaeHybridError as raised:
                error = raised
        if not isinstance(error, NonFiniteError) and self._is_poisoned():
            error.message += " On the way the equations gave NaN or infinity."
        return error

    def _count(self) -> None:
        counts, stepper = self.session.counts, self.memory.stepper
        failures = stepper.failures
        counts["steps"] += self.steps
        if self.loop is not None:
            counts["segments"] += self.loop.n_segments
            failures = (failures[0] + self.loop.failures[0], failures[1] + self.loop.failures[1])
        counts["error_test_failures"] += failures[0]
        counts["newton_failures"] += failures[1]

    def _table(self) -> RecordTable | None:
        if self.loop is None or self.context is None or not self.loop.n_events:
            return None
        rows, paths, methods = {}, {}, {}
        for mode, memory in self.memories.items():
            rows[mode], methods[mode] = memory.stepper.rows(), memory.method
            path = memory.stepper.path()
            if path is not None:
                paths[mode] = path
        tested = frozenset(i for i, own in self.memories.items() if id(own.equations) in self.session.tested)
        return self.loop.table(self.first, self.context.mode, self.context.start, rows, paths, methods, tested)


def refuse_loose(memory: Forward) -> None:
    """In the direct form of index 2 no test bounds the multipliers; see `Forward._free_algebraic`."""
    if memory.equations.index == 2 and not memory.stepper.loose <= LOOSE:
        raise StepSizeError(
            "The multipliers of index 2 have come loose from the equations.",
            mode=memory.equations.name,
            time=memory.stepper.t,
        )
