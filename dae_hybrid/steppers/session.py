"""Sessions of adapters that only integrate: segments, forward sensitivities and adjoints.

Forward sensitivities and integrals are further states of the adapter's problem; the adjoint is a separate problem that
contains the forward solution as a piecewise polynomial; see `augmented`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np

from dae_hybrid.errors import ConsistencyError, DaeHybridError, IntegrationError, NonFiniteError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.crossings import Pace, Turn
from dae_hybrid.numerics.step_polynomial import Step
from dae_hybrid.options import Options
from dae_hybrid.port.failure_messages import (
    is_starved,
    lost_crossing,
    not_finite_derivatives,
    singular,
    starved,
    step_limit,
)
from dae_hybrid.port.integrator import BackwardOutcome, BackwardTask, Equations, SegmentOutcome, SegmentTask, Tolerances
from dae_hybrid.port.native_plan import RunContext, SegmentRun, TableAdjoint
from dae_hybrid.port.record_table import RecordTable
from dae_hybrid.port.segment_rules import (
    DRIFT_CHECK_STEPS,
    ZERO_TOLERANCES,
    completed,
    has_drifted,
    is_pole,
    is_short,
    one_segment,
    standing_still,
    stretches,
    zero_at_the_end,
)
from dae_hybrid.port.stiffness import determinant_sign, is_stiff, state_jacobian
from dae_hybrid.steppers.augmented import SensitivitySystem, adjoint, with_sensitivities
from dae_hybrid.steppers.guard_monitor import EventPoint, GuardMonitor
from dae_hybrid.steppers.initial_value import InitialValueProblem, SteppedIntegrator
from dae_hybrid.steppers.output_rows import OutputRows
from dae_hybrid.steppers.step_walker import StepWalker

#: absolute tolerances of sensitivities are those of the states over the parameter, but at most this share of the
#: largest sensitivity, since a parameter may be small because it is close to zero
MAX_ATOL_SHARE = 1e-4
#: most steps between checks of the step size, and stiffness checks per check of the step size
STEP_SIZE_CHECK_STEPS, STIFFNESS_CHECKS = 500, 10
#: largest number of polynomials in one adjoint problem
MAX_POLYNOMIALS = 64
#: bisections of a step to locate the sign change of a determinant
BISECTIONS = 50
#: share of a segment that may remain if it ends at the zero of a guard beyond which the equations are not finite
REMAINING_SHARE = 1e-4


class SteppedPort:
    """Implements the port of `dae_hybrid.port.integrator` by an adapter that only integrates."""

    def __init__(self, adapter: SteppedIntegrator) -> None:
        self.adapter, self.name, self.capabilities = adapter, adapter.name, adapter.capabilities

    def open(
        self,
        options: Options,
        parameters: Array,
        *,
        parameter_directions: Array | None = None,
        scales: Array | None = None,
        wrt: Sequence[int] = (),
    ) -> SteppedSession:
        """See `dae_hybrid.port.integrator.Integrator.open`."""
        return SteppedSession(self.adapter, options, parameters, parameter_directions, scales, tuple(wrt))


class SteppedSession:
    """One run on one thread."""

    def __init__(
        self,
        adapter: SteppedIntegrator,
        options: Options,
        parameters: Array,
        directions: Array | None,
        scales: Array | None,
        wrt: tuple[int, ...],
    ) -> None:
        self.adapter, self.options, self.p, self._wrt = adapter, options, parameters, wrt
        self._directions = np.zeros((0, parameters.size)) if directions is None else directions
        self._scales = np.ones(len(self._directions)) if scales is None else scales
        self._largest = np.zeros(len(self._directions))  # magnitudes of the sensitivities so far
        self._counts: Counter[str] = Counter()
        self._auto: dict[int, str] = {}  # choices of method="auto", by equations
        self._turns: list[tuple[Equations, Turn]] = []
        self.paces: dict[int, Pace] = {}  # of guards in earlier segments of the run, by equations

    def close(self) -> None:
        """Do nothing: no resources are held between segments."""

    def statistics(self) -> dict[str, int]:
        """Return counters, with SciPy's names where SciPy has one."""
        names = ("steps", "nfev", "njev", "guard_evaluations", "segments")
        return {name: self._counts[name] for name in names}

    def turns(self) -> list[tuple[Equations, Turn]]:
        """See `dae_hybrid.port.integrator.Session.turns`."""
        return self._turns

    # -- forwards -------------------------------------------------------------------------------------

    def integrate(self, task: SegmentTask) -> SegmentOutcome:
        """See `dae_hybrid.port.integrator.Session.integrate`."""
        self._counts["segments"] += 1
        method = self._method(task)
        if is_short(task.t0, task.t_stop):
            return standing_still(task, method)
        d = 0 if task.sensitivities is None else len(task.sensitivities)
        system = with_sensitivities(task.equations, d)
        rows = OutputRows(task, system, self._constants(task))
        run = _Segment(self, task, system, rows, method)
        try:
            return run.outcome()
        except DaeHybridError as error:
            error.rows, error.method = rows.array(), self.adapter.capabilities.named.get(method)
            raise
        finally:
            self._counts["guard_evaluations"] += run.monitor.evaluations
            self._turns += [(task.equations, turn) for _, turn in run.monitor.turns.found]
            if run.walker is not None:
                self._count(run.walker)

    def _method(self, task: SegmentTask) -> str:
        if task.method or not self.options.automatic:
            return task.method or self.options.method
        e = task.equations
        if id(e) not in self._auto:
            stiff = (e.implicit and bool(self.adapter.capabilities.algebraic)) or is_stiff(
                e, task.t0, task.x0, task.memory, self.p, task.t_stop
            )
            self._auto[id(e)] = self.adapter.stiff if stiff else self.adapter.nonstiff
        return self._auto[id(e)]

    def switch_if_stiff(self, task: SegmentTask, t: float, x: Array) -> bool:
        """Change the choice of ``method="auto"`` if the equations have become stiff; return whether it changed."""
        chosen, e = self._auto.get(id(task.equations)), task.equations
        if task.method or chosen != self.adapter.nonstiff or chosen == self.adapter.stiff:
            return False
        if not is_stiff(e, t, x, task.memory, self.p, task.t_stop):
            return False
        self._auto[id(e)] = self.adapter.stiff
        return True

    def _constants(self, task: SegmentTask) -> Array:
        m = task.memory
        if task.sensitivities is None or task.memory_directions is None:
            return np.concatenate((m, self.p))
        return np.concatenate((m, self.p, task.memory_directions.ravel(), self._directions.ravel()))

    def problem(
        self, task: SegmentTask, system: SensitivitySystem, constants: Array, method: str
    ) -> InitialValueProblem:
        """Return the initial value problem of a task."""
        e, options = task.equations, self.options
        ny, nd = e.n_differential, system.n_differential
        x0 = system.pack(task.x0, task.integrals, task.sensitivities, task.integral_sensitivities)
        rates = system.kernel(task.t0, x0, constants)[0]
        rates[nd:] = task.xdot0[ny:]
        of_x = options.absolute(e.variables)
        of_state = np.concatenate((of_x[:ny], options.absolute(e.functionals)[: system.n_integrals]))
        blocks = [of_state]
        if task.sensitivities is not None:
            bounds = MAX_ATOL_SHARE * self._sizes(task, system, x0, rates)
            blocks += [np.minimum(of_state / p, bound) for p, bound in zip(self._scales, bounds, strict=True)]
        absolute = np.concatenate((*blocks, of_x[ny:]))
        return InitialValueProblem(
            system, constants, task.t0, task.t_stop, x0, rates, options.rtol, absolute, method,
            options.max_step or np.inf, options.first_step, options.max_order,
            options.suppress_algebraic or e.constrained, name=e.name,
        )  # fmt: skip

    def _sizes(self, task: SegmentTask, system: SensitivitySystem, x0: Array, rates: Array) -> Array:
        """Return estimated magnitudes of the sensitivities along each direction so far, inf if unknown.

        After an event those of the segment alone may be rounding errors.
        """
        nd, duration = system.n_differential, task.t_stop - task.t0

        def largest(values: Array) -> Array:
            found: Array = np.abs(values[:nd]).reshape(-1, system.width).max(axis=1)
            return found

        whole = largest(x0) + duration * largest(rates)
        self._largest = np.maximum(self._largest, whole[1:])
        return np.where(self._largest > 0, self._largest, np.inf)

    def count_step(self, walker: StepWalker) -> None:
        """Count a step of the run against `max_steps`."""
        self._counts["steps"] += 1
        if self._counts["steps"] > self.options.max_steps:
            raise step_limit(self.options.max_steps, mode=walker.problem.name, time=walker.t)

    def _count(self, walker: StepWalker) -> None:
        for name, value in walker.seen.counts.items():
            self._counts[name] += value

    # -- backwards ------------------------------------------------------------------------------------

    def run_segments(self, task: SegmentTask, context: RunContext) -> SegmentRun:
        """See `dae_hybrid.port.integrator.Session.run_segments`."""
        return one_segment(self, task, context.mode)

    def sweep(
        self, table: RecordTable, adjoints: Array, total: Array, components: tuple[int, ...],
        tolerances: Callable[[int], Tolerances], measured: Array, sides: Mapping[int, Array], *, at_events: bool,
    ) -> TableAdjoint | None:  # fmt: skip
        """See `dae_hybrid.port.integrator.Session.sweep`; this session produces no record tables."""
        del table, adjoints, total, components, tolerances, measured, sides, at_events
        return None

    def backward(self, task: BackwardTask) -> BackwardOutcome:
        """See `dae_hybrid.port.integrator.Session.backward`."""
        self._counts["segments"] += 1
        forward, k = task.forward, len(task.components)
        e, t0, t1 = forward.equations, forward.t0, forward.end
        ny, n_wrt = e.n_differential, len(self._wrt)
        times = np.zeros(0) if task.t_eval is None else task.t_eval
        starts = task.adjoints[:, :ny]
        if is_short(t0, t1):
            samples = np.tile(starts, (times.size, 1, 1))
            return BackwardOutcome(starts, np.zeros((k, n_wrt)), np.zeros((k, e.n_memory)), samples)
        steps = self._solution(forward)
        if not steps:
            return BackwardOutcome(
                starts, np.zeros((k, n_wrt)), np.zeros((k, e.n_memory)), np.tile(starts, (times.size, 1, 1))
            )
        t1 = min(t1, steps[-1].t1)
        width = n_wrt + e.n_memory
        tolerances = task.tolerances()
        absolute = np.concatenate((tolerances.absolute[:, :ny].ravel(), tolerances.integrals.ravel()))
        state = np.concatenate((starts.ravel(), np.zeros(k * width)))
        samples = np.zeros((times.size, k, ny))
        samples[times >= t1] = starts
        done = int(np.count_nonzero(times >= t1))
        method = self._method(forward)
        if self.options.automatic:
            method = self.adapter.for_adjoints.get(method, method)
        for part, later, earlier, longest in _backward_parts(t0, t1, steps):
            if is_short(later, earlier):
                continue
            system = adjoint(e, task.components, self._wrt, len(part))
            constants = system.constants(forward.memory, self.p, later, part)
            problem = InitialValueProblem(
                system, constants, 0.0, later - earlier, state, system.kernel(0.0, state, constants)[0],
                tolerances.rtol, absolute, method, min(longest, self.options.max_step or np.inf), None,
                self.options.max_order, name=e.name,
            )  # fmt: skip
            with _in_forward_time(later):
                walker = StepWalker(self.adapter, problem)
            while not walker.at_end:
                with _in_forward_time(later):
                    walker.advance()
                self.count_step(walker)
                last = done + int(np.count_nonzero(times[done:] >= later - walker.t))
                if last > done:
                    inner = np.minimum(later - times[done:last], walker.t)
                    samples[done:last] = walker.states(inner)[:, : k * ny].reshape(-1, k, ny)
                    done = last
            state = walker.x
            self._count(walker)
        adjoints, integrals = state[: k * ny].reshape(k, ny), state[k * ny :].reshape(k, width)
        samples[times <= t0] = adjoints
        return BackwardOutcome(adjoints, integrals[:, :n_wrt], integrals[:, n_wrt:], samples)

    def _solution(self, task: SegmentTask) -> list[Step]:
        """Return the forward solution of a segment as polynomials that are accurate to tolerance."""
        system, method = with_sensitivities(task.equations, 0), self._method(task)
        problem = self.problem(task, system, np.concatenate((task.memory, self.p)), method)
        problem = replace(problem, t_stop=task.end)  # a step beyond an event need not be accurate before it
        walker = StepWalker(self.adapter, problem)
        steps: list[Step] = []
        try:
            while walker.t < task.end:
                walker.advance()
                self.count_step(walker)
                for step in walker.parts(task.end, strict=True):
                    steps.append(Step(step.t0, step.t1, system.variables(step.coefficients)))
        except IntegrationError:
            if not self._is_negligible(task, steps):
                raise
        while len(steps) > 1 and not self._has_derivatives(task, min(task.end, steps[-1].t1), steps[-1]):
            steps.pop()
        self._count(walker)
        if not self._is_negligible(task, steps):
            raise not_finite_derivatives(mode=task.equations.name, time=steps[-1].t1)
        return steps

    def _is_negligible(self, task: SegmentTask, steps: list[Step]) -> bool:
        """Whether the rest of a segment is negligible by its tolerances; see `zero_at_the_end`."""
        t, x, rate = task.t0, task.x0, task.xdot0
        if steps:
            t = steps[-1].t1
            x, rate = steps[-1].at(t), steps[-1].rate(t)
        left, ny = task.end - t, task.equations.n_differential
        allowed = self.options.allowed(task.equations.variables, x)
        return left <= REMAINING_SHARE * (task.end - task.t0) or bool(
            np.all((left * np.abs(rate) <= ZERO_TOLERANCES * allowed)[:ny])
        )

    def _has_derivatives(self, task: SegmentTask, t: float, step: Step) -> bool:
        return bool(np.all(np.isfinite(state_jacobian(task.equations, t, step.at(t), task.memory, self.p))))


@contextmanager
def _in_forward_time(end: float) -> Iterator[None]:
    """Convert the time of errors from backward time to that of the run."""
    try:
        yield
    except DaeHybridError as error:
        if error.time is not None:
            error.time = end - error.time
        raise


def _backward_parts(t0: float, t1: float, steps: list[Step]) -> Iterator[tuple[list[Step], float, float, float]]:
    """Yield parts of a solution backwards: its steps, later and earlier time, and the longest backward step.

    A right-hand side contains the polynomials of a whole part, so that their number must be small.
    """
    bounds = stretches(np.array([t0, *(s.t1 for s in steps)])) or ((t0, np.inf),)
    later, last = t1, len(steps)
    for i, (end, longest) in enumerate(bounds):
        earlier = t0 if i + 1 == len(bounds) else min(end, later)  # the last step may go beyond the end
        first = next((j for j in range(last - 1, -1, -1) if steps[j].t0 <= earlier), 0)
        while last - first > MAX_POLYNOMIALS:
            yield steps[last - MAX_POLYNOMIALS : last], later, steps[last - MAX_POLYNOMIALS].t0, longest
            last -= MAX_POLYNOMIALS
            later = steps[last].t0
        yield steps[first:last], later, earlier, longest
        later = earlier
        last = first + 1 if steps[first].t0 < earlier else max(first, 1)


class _Segment:
    """One segment during its integration."""

    def __init__(
        self, session: SteppedSession, task: SegmentTask, system: SensitivitySystem, rows: OutputRows, method: str
    ) -> None:
        self.session, self.task, self.system, self.rows, self.method = session, task, system, rows, method
        self.monitor = GuardMonitor(task, system.variables, session.p, session.paces.get(id(task.equations)))
        session.paces[id(task.equations)] = self.monitor.pace
        self.walker: StepWalker | None = None
        self._sign = 0.0

    def outcome(self) -> SegmentOutcome:
        task, session, rows = self.task, self.session, self.rows
        adapter, monitor, p = session.adapter, self.monitor, session.p
        problem = session.problem(task, self.system, rows.constants, self.method)
        if adapter.capabilities.roots and task.equations.n_guards:
            problem.guards = monitor.root_function
        walker = self.walker = StepWalker(adapter, problem)
        rows.start(problem.x0)
        looked, every, last = task.t0, min(STEP_SIZE_CHECK_STEPS, STIFFNESS_CHECKS * adapter.look), 0.0
        drifts = task.equations.constrained and task.record != "dense"
        for taken in count(1):  # as many as `count_step` allows
            try:
                walker.advance()
            except IntegrationError:
                if (ended := self._at_zero(walker)) is None:
                    raise
                return ended
            session.count_step(walker)
            try:
                crossing = monitor.locate(walker)
            except (ConsistencyError, NonFiniteError):  # the equations have no solution within the step
                self._refuse_singular(walker)
                if task.equations.n_guards > task.equations.n_singularities:
                    raise
                monitor.note_end(walker)
                crossing = None
            if crossing is not None:
                return self._event(walker, monitor, *crossing)
            self._refuse_singular(walker)
            rows.step(walker, walker.t, inclusive=not walker.at_end or task.closed_end)
            if walker.at_end or walker.t >= task.until:
                return self._end(walker.t, walker.x, None)
            rows.point(walker.t, walker.x)
            x = self.system.variables(walker.x)
            if drifts and taken % DRIFT_CHECK_STEPS == 0 and has_drifted(task, walker.t, x, p, session.options):
                return self._end(walker.t, walker.x, None, recorded=True)
            if taken % adapter.look == 0 and session.switch_if_stiff(task, walker.t, x):
                return self._end(walker.t, walker.x, None, recorded=True)
            if taken % every == 0:
                step, looked = (walker.t - looked) / every, walker.t
                grows, last = step > last and taken < STEP_SIZE_CHECK_STEPS, step  # as in an initial layer
                if is_starved(step, walker.t, task) and not grows:
                    if (ended := self._at_zero(walker)) is not None:
                        return ended
                    poisoned = walker.seen.counts["not_finite"] > 0
                    raise starved(step, mode=task.equations.name, time=walker.t, not_finite=poisoned)
        raise AssertionError("a count does not end")

    def _at_zero(self, walker: StepWalker) -> SegmentOutcome | None:
        """Return the end of the segment at the zero of a guard that no step crosses; see `zero_at_the_end`."""
        session, x = self.session, self.system.variables(walker.x)
        found = zero_at_the_end(self.task, walker.t, x, session.p, session.options, self.monitor.band)
        if found is None:
            return None
        t, x, xdot, (index, value, rate) = found
        return self._end(t, walker.x, (index, EventPoint(x, xdot, value, rate)))

    def _refuse_singular(self, walker: StepWalker) -> None:
        """Refuse a step within which the determinant of the algebraic equations has changed sign."""
        e = self.task.equations
        if not e.implicit:
            return
        sign = self._determinant_sign(walker.t, walker.x)
        self._sign = self._sign or sign
        if sign == self._sign:
            return
        low, high = 0.0, 1.0  # along the chord: the equations may have no solution within the step
        for _ in range(BISECTIONS):
            s = (low + high) / 2
            here = self._determinant_sign(
                walker.t0 + s * (walker.t - walker.t0), walker.x0 + s * (walker.x - walker.x0)
            )
            low, high = (s, high) if here == self._sign else (low, s)
        raise singular(mode=e.name, time=walker.t0 + high * (walker.t - walker.t0), variables=e.algebraic_labels)

    def _determinant_sign(self, t: float, state: Array) -> float:
        return determinant_sign(self.task.equations, t, self.system.variables(state), self.task.memory, self.session.p)

    def _event(self, walker: StepWalker, monitor: GuardMonitor, index: int, approximate: float) -> SegmentOutcome:
        e = self.task.equations
        if index >= e.n_guards - e.n_singularities:
            self.rows.step(walker, approximate, inclusive=False)
            raise singular(mode=e.name, time=approximate, variables=e.algebraic_labels)
        index, t, state, point = monitor.integrate_to_zero(walker, index, approximate)
        crossing = (index, point.guard, point.rate)
        if is_pole(self.task, t, point.x, point.xdot, crossing, self.session.p):
            raise lost_crossing(crossing, pole=True, mode=e.name, time=t)
        self.rows.step(walker, t, inclusive=False)
        return self._end(t, state, (index, point))

    def _end(
        self, t: float, state: Array, crossing: tuple[int, EventPoint] | None, *, recorded: bool = False
    ) -> SegmentOutcome:
        task, system, p = self.task, self.system, self.session.p
        if crossing is None:
            x, xdot = completed(task.equations, t, system.variables(state), task.memory, p)
        else:
            x, xdot = crossing[1].x, crossing[1].xdot
        if not recorded:
            self.rows.point(t, state)
        more: dict[str, Any] = {}
        integrals, of_integrals = system.integrals(state)
        if task.sensitivities is not None:
            n = task.equations.n
            more["sensitivities"] = system.outputs(t, state, self.rows.constants)[0][n:].reshape(-1, n)
            more["integral_sensitivities"] = of_integrals if system.n_integrals else task.integral_sensitivities
        return SegmentOutcome(
            t=t,
            x=x,
            xdot=xdot,
            crossing=None if crossing is None else (crossing[0], crossing[1].guard, crossing[1].rate),
            zero_band=self.monitor.band,
            method=self.method,
            integrals=integrals if system.n_integrals else task.integrals,
            rows=self.rows.array(),
            **more,
        )
