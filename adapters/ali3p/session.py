"""Segments of a run by the index-3 scheme: steps, events, outputs, sensitivities and the discrete adjoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dae_hybrid.adapters.ali3p.scheme import RULES, AlgebraicDerivatives, MotionStep, Scheme, derivatives
from dae_hybrid.errors import DaeHybridError, StepSizeError
from dae_hybrid.method import AUTO, DENSE_COLUMNS, Method
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.crossings import Pace, Turn
from dae_hybrid.numerics.matrices import dense
from dae_hybrid.numerics.step_polynomial import COEFFICIENTS
from dae_hybrid.numerics.step_polynomial import Step as Polynomial
from dae_hybrid.options import Options
from dae_hybrid.port.failure_messages import lost_crossing, step_limit
from dae_hybrid.port.integrator import BackwardOutcome, BackwardTask, Equations, SegmentOutcome, SegmentTask, Tolerances
from dae_hybrid.port.native_plan import RunContext, SegmentRun, TableAdjoint
from dae_hybrid.port.record_table import RecordTable
from dae_hybrid.port.segment_rules import (
    completed,
    is_pole,
    is_short,
    kernel,
    one_segment,
    standing_still,
)
from dae_hybrid.steppers.guard_monitor import EventPoint, GuardMonitor

#: the methods by name
METHODS = {name: Method(name=name, final_outputs=True, retakes_steps=True) for name in RULES}
#: a last step that is longer than the others by this share is not divided
LAST_STEP_SHARE = 1e-9
#: step-size control: safety factor, least and largest change, first step as a share of the segment
SAFETY, LEAST_CHANGE, MOST_CHANGE, FIRST_SHARE = 0.9, 0.2, 2.0, 1e-3
#: shortest step under error control, as a share of the segment
MIN_STEP_SHARE = 1e-12


class Ali3pSession:
    """One run on one thread."""

    def __init__(self, options: Options, parameters: Array, directions: Array | None, wrt: tuple[int, ...]) -> None:
        self.options, self.p, self._wrt = options, parameters, list(wrt)
        self._directions = np.zeros((0, parameters.size)) if directions is None else directions
        self._counts: Counter[str] = Counter()
        self._turns: list[tuple[Equations, Turn]] = []
        self._paces: dict[int, Pace] = {}  # of guards in earlier segments of the run, by equations

    def close(self) -> None:
        """Do nothing: no resources are held between segments."""

    def statistics(self) -> dict[str, int]:
        """Return counters."""
        names = ("steps", "iterations", "factorisations", "error_test_failures", "guard_evaluations", "segments")
        return {name: self._counts[name] for name in names}

    def turns(self) -> list[tuple[Equations, Turn]]:
        """See `dae_hybrid.port.integrator.Session.turns`."""
        return self._turns

    def run_segments(self, task: SegmentTask, context: RunContext) -> SegmentRun:
        """See `dae_hybrid.port.integrator.Session.run_segments`."""
        return one_segment(self, task, context.mode)

    def sweep(
        self, table: RecordTable, adjoints: Array, total: Array, components: tuple[int, ...],
        tolerances: Callable[[int], Tolerances], measured: Array, *, at_events: bool,
    ) -> TableAdjoint | None:  # fmt: skip
        """See `dae_hybrid.port.integrator.Session.sweep`; this session produces no record tables."""
        del table, adjoints, total, components, tolerances, measured, at_events
        return None

    # -- forwards ---------------------------------------------------------------------------------------

    def method(self, task: SegmentTask) -> str:
        """Return the name of the rule that integrates a task."""
        chosen = task.method or self.options.method
        return next(iter(RULES)) if chosen == AUTO else chosen

    def steps(self, task: SegmentTask, scheme: Scheme, end: float) -> Iterator[MotionStep]:
        """Take the steps of a segment, fixed or with error control, up to `end`."""
        control = self.options.fixed_step is None
        t, start, x = task.t0, scheme.state(task.x0), task.x0
        longest = self.options.max_step or np.inf
        h = self.options.fixed_step or self.options.first_step or FIRST_SHARE * (task.t_stop - task.t0)
        count = 0
        while t < end:
            if control:
                h = min(h, longest)
            else:
                t_next = task.t0 + (count + 1) * h
            last = (end - t) <= h * (1 + LAST_STEP_SHARE)
            target = end if last else t + h if control else t_next
            try:
                step = scheme.step(t, target, h, start, x)
                error = self._error(task, scheme, step) if control else 0.0
            except DaeHybridError:
                if not control or h <= MIN_STEP_SHARE * (task.t_stop - task.t0):
                    raise
                error = np.inf
            if control:
                change = SAFETY * error ** (-1 / 3) if error > 0 else MOST_CHANGE
                proposed = min(max(change, LEAST_CHANGE), MOST_CHANGE) * min(h, target - t)
                if error > 1:
                    h = proposed
                    self._counts["error_test_failures"] += 1
                    if h <= MIN_STEP_SHARE * (task.t_stop - task.t0):
                        raise StepSizeError(
                            "The step size fell to its minimum: the error test keeps failing.",
                            mode=task.equations.name,
                            time=t,
                            remedy="Loosen rtol, or look for a discontinuity that is not an event.",
                        )
                    continue
                h = proposed if not last else h
            count += 1
            self._counts["steps"] += 1
            if self._counts["steps"] > self.options.max_steps:
                raise step_limit(self.options.max_steps, mode=task.equations.name, time=t)
            yield step
            t, start, x = step.t, step.end, step.x

    def _error(self, task: SegmentTask, scheme: Scheme, step: MotionStep) -> float:
        """Return the estimated local error of positions and velocities, in tolerances (Zienkiewicz and Xie 1991)."""
        n, h, rule = scheme.n, step.h, scheme.rule
        change = step.end[2 * n : 3 * n] - step.start[2 * n : 3 * n]
        allowed = self.options.allowed(task.equations.variables, step.x)
        positions = abs(rule.beta - 1 / 6) * h**2 * np.abs(change) / allowed[scheme.motion.q]
        velocities = abs(rule.gamma - 0.5) * h * np.abs(change) / allowed[scheme.motion.v]
        return float(max(positions.max(initial=0.0), velocities.max(initial=0.0)))

    def integrate(self, task: SegmentTask) -> SegmentOutcome:
        """See `dae_hybrid.port.integrator.Session.integrate`."""
        self._counts["segments"] += 1
        method = self.method(task)
        if is_short(task.t0, task.t_stop):
            return standing_still(task, METHODS[method])
        scheme = Scheme(task.equations, method, task.memory, self.p)
        run = _MotionSegment(self, task, scheme, self._directions)
        try:
            return run.outcome()
        except DaeHybridError as error:
            error.rows, error.method = run.array(), METHODS[method]
            raise
        finally:
            self._count(scheme)
            self._counts["guard_evaluations"] += run.monitor.evaluations
            self._turns += [(task.equations, turn) for _, turn in run.monitor.turns.found]

    def pace(self, equations: Equations) -> Pace | None:
        """Return the pace of the guards in earlier segments."""
        return self._paces.get(id(equations))

    def set_pace(self, equations: Equations, pace: Pace) -> None:
        """Keep the pace of the guards for later segments."""
        self._paces[id(equations)] = pace

    def _count(self, scheme: Scheme) -> None:
        self._counts["iterations"] += scheme.iterations
        self._counts["factorisations"] += scheme.factorisations

    # -- backwards --------------------------------------------------------------------------------------

    def backward(self, task: BackwardTask) -> BackwardOutcome:
        """The discrete adjoint: the transpose of the steps of the run, which are taken again."""
        self._counts["segments"] += 1
        forward, k = task.forward, len(task.components)
        e, end = forward.equations, forward.end
        ny, n_p = e.n_differential, self.p.size
        times = np.zeros(0) if task.t_eval is None else task.t_eval
        adjoint = task.adjoints[:, :ny]
        if is_short(forward.t0, end):
            nothing = np.zeros((k, len(self._wrt))), np.zeros((k, e.n_memory))
            return BackwardOutcome(adjoint, *nothing, np.tile(adjoint, (times.size, 1, 1)))
        scheme = Scheme(e, self.method(forward), forward.memory, self.p)
        taken = list(self.steps(forward, scheme, end))
        q, v, n = scheme.motion.q, scheme.motion.v, scheme.n
        of_end = np.zeros((k, 4 * n))
        of_end[:, :n], of_end[:, n : 2 * n] = adjoint[:, q], adjoint[:, v]
        of_p, of_m = np.zeros((k, n_p)), np.zeros((k, e.n_memory))
        integrands, samples, later = _Integrands(e, task.components), [adjoint], 0.0
        for step in reversed(taken):
            g_x, g_p, g_m = integrands.weighed((step.h + later) / 2, step.t, step.x, forward.memory, self.p)
            of_end, by_p, by_m = scheme.linearised(step).backward(of_end, g_x)
            of_p, of_m, later = of_p + g_p + by_p, of_m + g_m + by_m, step.h
            if times.size:
                samples.append(_at_start(scheme, step.t - step.h, step.start, of_end, forward.memory, self.p))
        g_x, g_p, g_m = integrands.weighed(later / 2, forward.t0, forward.x0, forward.memory, self.p)
        of_x = g_x
        of_x[:, q] += of_end[:, :n]
        of_x[:, v] += of_end[:, n : 2 * n]
        of_x[:, scheme.motion.a] += of_end[:, 2 * n : 3 * n] + of_end[:, 3 * n :]
        by_y, by_p, by_m = _through_algebraic(e, forward.t0, forward.x0, forward.memory, self.p, of_x)
        self._count(scheme)
        nodes = np.array([forward.t0, *(step.t for step in taken)])
        values = np.array([by_y, *reversed(samples[:-1])]) if times.size else np.zeros((0, k, ny))
        sampled = _interpolated(nodes, values, times, (times.size, k, ny))
        return BackwardOutcome(by_y, (of_p + g_p + by_p)[:, self._wrt], of_m + g_m + by_m, sampled)


def _interpolated(nodes: Array, values: Array, times: Array, shape: tuple[int, ...]) -> Array:
    """Linear interpolation of the adjoint between its nodes."""
    if not times.size:
        return np.zeros(shape)
    columns = values.reshape(len(values), -1).T
    return np.array([np.interp(times, nodes, column) for column in columns]).T.reshape(shape)


def _through_algebraic(e: Equations, t: float, x: Array, m: Array, p: Array, of_x: Array) -> tuple[Array, Array, Array]:
    """Cotangents of y, p and m from those of x = (y, z), with z from the algebraic equations."""
    by_y, by_p, by_m = AlgebraicDerivatives(e, t, x, m, p).backward(of_x[:, e.n_differential :])
    return of_x[:, : e.n_differential] + by_y, by_p, by_m


def _at_start(scheme: Scheme, t: float, start: Array, of_start: Array, m: Array, p: Array) -> Array:
    """The adjoint in state space at the start of a step, with the accelerations of a consistent point."""
    e, n, motion = scheme.equations, scheme.n, scheme.motion
    x = np.zeros(e.n)
    x[motion.q], x[motion.v], x[motion.a] = start[:n], start[n : 2 * n], start[2 * n : 3 * n]
    x = completed(e, t, x, m, p)[0]
    of_x = np.zeros((len(of_start), e.n))
    of_x[:, motion.q], of_x[:, motion.v] = of_start[:, :n], of_start[:, n : 2 * n]
    of_x[:, motion.a] = of_start[:, 2 * n : 3 * n] + of_start[:, 3 * n :]
    return _through_algebraic(e, t, x, m, p, of_x)[0]


class _Integrands:
    """Derivatives of the integrands of some functional components."""

    def __init__(self, e: Equations, components: tuple[int, ...]) -> None:
        self.e, self.components = e, list(components)

    def weighed(self, weight: float, t: float, x: Array, m: Array, p: Array) -> tuple[Array, Array, Array]:
        """g_x, g_p and g_m times a weight, (k, .) each."""
        if not self.e.integrates:
            return tuple(np.zeros((len(self.components), size)) for size in (x.size, p.size, m.size))  # type: ignore[return-value]
        parts = derivatives(self.e)(t, x, m, p)[5:8]
        return tuple(weight * dense(part).T[self.components] for part in parts)  # type: ignore[return-value]


class _MotionSegment:
    """One segment during its integration."""

    at_root = False

    def __init__(self, session: Ali3pSession, task: SegmentTask, scheme: Scheme, directions: Array) -> None:
        self.session, self.task, self.scheme = session, task, scheme
        e = task.equations
        self.monitor = GuardMonitor(task, lambda x: x, session.p, session.pace(e))
        session.set_pace(e, self.monitor.pace)
        self.t0 = self.t = task.t0
        self.x0 = self.x = task.x0
        self.step: MotionStep | None = None
        self._rows: list[Array] = []
        self._next = 0
        d = 0 if task.sensitivities is None else len(task.sensitivities)
        self._dp = directions.T
        self._dm = np.zeros((e.n_memory, d)) if task.memory_directions is None else task.memory_directions.T
        self.dx = np.zeros((e.n, 0)) if task.sensitivities is None else task.sensitivities.T
        self.ds = np.vstack([self.dx[at] for at in self._places]) if d else np.zeros((4 * scheme.n, 0))
        self.dx0 = self.dx
        self.integrals = task.integrals.copy()
        self.of_integrals = None if task.integral_sensitivities is None else task.integral_sensitivities.copy()
        self._g, self._dg = self._integrand(task.t0, task.x0, self.dx)

    @property
    def _places(self) -> tuple[Any, ...]:
        motion = self.scheme.motion
        return motion.q, motion.v, motion.a, motion.a

    def _flow(self, t: float, x: Array) -> list[Array]:
        """The equations and the integrands."""
        return kernel(self.task.equations, "flow")(t, x, self.task.memory, self.session.p)

    # -- the last step, for `GuardMonitor` --------------------------------------------------------------------

    @property
    def span(self) -> tuple[float, float]:
        """Start and end of the segment."""
        return self.task.t0, self.task.t_stop

    def rates(self, t: float, x: Array) -> Array:
        """Return the rates of positions and velocities."""
        return self._flow(t, x)[0][: self.task.equations.n_differential]

    def polynomial(self) -> Polynomial:
        """Return the last step as a polynomial."""
        return Polynomial.through(self.t0, self.t, lambda t: self.between(t, self.x0, self.x))

    def integrated_to(self, t: float) -> Array:
        """Return the variables at t by a step from the start of the last one."""
        return self.shortened(t).x

    def shortened(self, t: float) -> MotionStep:
        """Return the last step, cut at t."""
        if self.step is None:
            raise AssertionError("no step has been taken")
        return self.scheme.step(self.t0, t, self.step.planned, self.step.start, self.x0)

    # -- the loop -------------------------------------------------------------------------------------------

    def outcome(self) -> SegmentOutcome:
        """Integrate the segment."""
        task, monitor = self.task, self.monitor
        self._point(task.t0, first=True)
        for step in self.session.steps(task, self.scheme, task.end):
            self.t0, self.x0, self.dx0, self.step = self.t, self.x, self.dx, step
            self.t, self.x = step.t, step.x
            crossing = monitor.locate(self)
            if crossing is not None:
                return self._event(*crossing)
            self._accept(step)
            self._outputs(inclusive=self.t < task.end or task.closed_end)
        return self._end(None)

    def _accept(self, step: MotionStep) -> None:
        """Propagate sensitivities and integrals over a step."""
        if self.ds.shape[1]:
            self.ds, self.dx = self.scheme.linearised(step).forward(self.ds, self._dp, self._dm)
        if self.task.equations.integrates:
            g, dg = self._integrand(step.t, step.x, self.dx)
            self.integrals += step.h / 2 * (self._g + g)
            if self.of_integrals is not None:
                self.of_integrals += step.h / 2 * (self._dg + dg)
            self._g, self._dg = g, dg

    def _integrand(self, t: float, x: Array, dx: Array) -> tuple[Array, Array]:
        """The integrands and their derivatives along the directions, (k) and (d, k)."""
        e, m, p = self.task.equations, self.task.memory, self.session.p
        if not e.integrates:
            return np.zeros(0), np.zeros((0, 0))
        if self.of_integrals is None:
            return self._flow(t, x)[1], np.zeros((0, 0))
        _, g, *_, g_x, g_p, g_m = derivatives(e)(t, x, m, p)
        by = dense(g_x).T @ dx + dense(g_p).T @ self._dp + dense(g_m).T @ self._dm
        return g, by.T

    def _event(self, index: int, approximate: float) -> SegmentOutcome:
        e, task, p = self.task.equations, self.task, self.session.p
        whole = self.step
        index, t, _, point = self.monitor.integrate_to_zero(self, index, approximate)
        crossing = (index, point.guard, point.rate)
        if is_pole(task, t, point.x, point.xdot, crossing, p):
            raise lost_crossing(crossing, pole=True, mode=e.name, time=t)
        if whole is not None and not is_short(self.t0, t):
            step = self.shortened(t)
            self.t, self.x = step.t, step.x
            self._accept(step)
            self._outputs(inclusive=False)
        else:
            self.t, self.x, self.dx = self.t0, self.x0, self.dx0
        return self._end((index, point))

    def _end(self, crossing: tuple[int, EventPoint] | None) -> SegmentOutcome:
        task, t = self.task, self.t
        if crossing is None:
            x, xdot = completed(task.equations, t, self.x, task.memory, self.session.p)
        else:
            x, xdot = crossing[1].x, crossing[1].xdot
        return SegmentOutcome(
            t=t,
            x=x,
            xdot=xdot,
            crossing=None if crossing is None else (crossing[0], crossing[1].guard, crossing[1].rate),
            zero_band=self.monitor.band,
            method=METHODS[self.session.method(task)],
            integrals=self.integrals,
            rows=self.array(),
            sensitivities=None if task.sensitivities is None else self.dx.T.copy(),
            integral_sensitivities=self.of_integrals,
        )

    # -- outputs ----------------------------------------------------------------------------------------------

    def between(self, t: Array, start: Array, end: Array) -> Array:
        """States within the last step, (len(t), ...): positions by cubics, velocities by quadratics, others linear.

        Velocities are cubic, too, with the accelerations as slopes.
        """
        h, s = self.t - self.t0, ((t - self.t0) / (self.t - self.t0)).reshape(-1, *[1] * start.ndim)
        motion = self.scheme.motion
        found = start + s * (end - start)
        poses, twists, rates, _ = motion.inner
        for at, rate in ((motion.q, motion.v), (motion.v, motion.a), (poses, twists), (twists, rates)):
            change = end[at] - start[at]
            first, last = h * start[rate] - change, change - h * end[rate]
            found[:, at] += s * (1 - s) * ((1 - s) * first + s * last)
        return found

    def _row(self, t: float, x: Array, dx: Array) -> None:
        self._rows.append(np.concatenate(([t], x, dx.T.ravel())))

    def _point(self, t: float, *, first: bool = False) -> None:
        if self.task.record == "steps" and self.task.t_eval is None:
            self._row(t, self.x, self.dx)
        elif first and self.task.record == "steps" and self.task.t_eval is not None:
            for _ in range(int(np.count_nonzero(self.task.t_eval <= t))):
                self._row(t, self.x, self.dx)
                self._next += 1

    def _outputs(self, *, inclusive: bool) -> None:
        """Add the outputs of the last step."""
        task = self.task
        self._point(self.t)
        if task.record == "dense":
            self._rows.append(self.polynomial().dense_row())
        elif task.record == "steps" and task.t_eval is not None:
            ahead = task.t_eval[self._next :]
            times = ahead[ahead <= self.t if inclusive else ahead < self.t]
            if times.size:
                states = self.between(times, self.x0, self.x)
                slopes = self.between(times, self.dx0, self.dx)
                for t, x, dx in zip(times.tolist(), states, slopes, strict=True):
                    self._row(t, x, dx)
                self._next += times.size

    def array(self) -> Array:
        """Return all rows."""
        n, d = self.task.equations.n, self.dx.shape[1]
        width = DENSE_COLUMNS + COEFFICIENTS * n if self.task.record == "dense" else 1 + n * (1 + d)
        return np.array(self._rows).reshape(len(self._rows), width)
