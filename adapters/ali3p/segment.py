"""One segment of a run: steps, events, outputs and direct sensitivities."""

from __future__ import annotations

from typing import Any

import numpy as np

from dae_hybrid.adapters.ali3p.compiled import CompiledSteps
from dae_hybrid.adapters.ali3p.control import Walk
from dae_hybrid.adapters.ali3p.outputs import Outputs, Point, between
from dae_hybrid.adapters.ali3p.scheme import Integrands, MotionStep
from dae_hybrid.method import Method
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.step_polynomial import Step as Polynomial
from dae_hybrid.port.failure_messages import lost_crossing, singular
from dae_hybrid.port.integrator import SegmentOutcome, SegmentTask
from dae_hybrid.port.segment_rules import completed, is_pole, is_short, kernel
from dae_hybrid.steppers.guard_monitor import EventPoint, GuardMonitor


class MotionSegment:
    """One segment during its integration: the last point, and the step that led to it.

    Sensitivities have a row for each direction: `ds` (d, 4 n), `dx` (d, n_x), `dp` and `dm`.
    """

    at_root = False

    def __init__(self, task: SegmentTask, walk: Walk, monitor: GuardMonitor, directions: Array, method: Method) -> None:
        self.task, self.walk, self.monitor, self.method = task, walk, monitor, method
        self.scheme = scheme = walk.scheme
        e = task.equations
        self.t0 = self.t = task.t0
        self.x0 = self.x = task.x0
        self.step: MotionStep | None = None
        d = 0 if task.sensitivities is None else len(task.sensitivities)
        self.dp = directions[:d]
        self.dm = np.zeros((d, e.n_memory)) if task.memory_directions is None else task.memory_directions
        self.dx = np.zeros((d, e.n)) if task.sensitivities is None else task.sensitivities
        self.ds = scheme.state(self.dx)
        self.dx0 = self.dx
        self.integrands = Integrands(e, scheme.memory, scheme.p)
        self.integrals = task.integrals.copy()
        self.of_integrals = np.zeros((d, self.integrals.size))
        if task.integral_sensitivities is not None:
            self.of_integrals = task.integral_sensitivities.copy()
        self.g, self.dg = self.integrands.along(task.t0, task.x0, self.dx, self.dp, self.dm)
        self.outputs = Outputs(task, scheme.motion)
        self.compiled = CompiledSteps.of(walk, d, monitored=True)

    # -- the last step, for `GuardMonitor` --------------------------------------------------------------------

    @property
    def span(self) -> tuple[float, float]:
        """Start and end of the segment."""
        return self.task.t0, self.task.t_stop

    def rates(self, t: float, x: Array) -> Array:
        """Return the rates of positions and velocities."""
        e = self.task.equations
        found: Array = kernel(e, "flow")(t, x, self.scheme.memory, self.scheme.p)[0][: e.n_differential]
        return found

    def polynomial(self) -> Polynomial:
        """Return the last step as a polynomial."""
        t0, t1 = np.array([self.t0]), np.array([self.t])
        return Polynomial.through(
            self.t0, self.t, lambda t: between(self.scheme.motion, t, t0, t1, self.x0[None], self.x[None])
        )

    def integrated_to(self, t: float) -> Array:
        """Return the variables at t by a step from the start of the last one."""
        return self._shortened(t).x

    def _shortened(self, t: float) -> MotionStep:
        if self.step is None:
            raise AssertionError("no step has been taken")
        return self.scheme.step(self.t0, t, self.step.planned, self.step.start, self.x0)

    # -- the loop -------------------------------------------------------------------------------------------

    def outcome(self) -> SegmentOutcome:
        """Integrate the segment."""
        self.outputs.start(self.x, self.dx)
        while not self.walk.arrived:
            if self.compiled is not None and self.monitor.is_clear and self._take_compiled_steps(self.compiled):
                continue
            step = self.walk.step()
            self.t0, self.x0, self.dx0, self.step = self.t, self.x, self.dx, step
            self.t, self.x = step.t, step.x
            crossing = self.monitor.locate(self)
            if crossing is not None:
                return self._event(*crossing)
            self._accept(step)
            self._output(inclusive=self.t < self.task.end or self.task.closed_end)
        return self._end(None)

    def _take_compiled_steps(self, compiled: CompiledSteps) -> bool:
        """Take as many steps in compiled code as possible; return whether there were any."""
        rows = compiled.forward(self)
        if not len(rows):
            return False
        t, x, dx = compiled.columns(rows)
        due = bool(t[-1] < self.task.end or self.task.closed_end)
        self.outputs.add(Point(self.t, self.x, self.dx), t, x, dx, inclusive=due)
        self.t, self.x, self.dx = float(t[-1]), x[-1].copy(), dx[-1].copy()
        self.monitor.resume(self.t, self.x, compiled.pace, compiled.largest_guards)
        return True

    def _accept(self, step: MotionStep) -> None:
        """Propagate sensitivities and integrals over a step."""
        if len(self.dx):
            ds, dx = self.scheme.linearised(step).forward(self.ds.T, self.dp.T, self.dm.T)
            self.ds, self.dx = ds.T, dx.T
        g, dg = self.integrands.along(step.t, step.x, self.dx, self.dp, self.dm)
        self.integrals += step.h / 2 * (self.g + g)
        self.of_integrals += step.h / 2 * (self.dg + dg)
        self.g, self.dg = g, dg

    def _output(self, *, inclusive: bool) -> None:
        before = Point(self.t0, self.x0, self.dx0)
        self.outputs.add(before, np.array([self.t]), self.x[None], self.dx[None], inclusive=inclusive)

    def _event(self, index: int, approximate: float) -> SegmentOutcome:
        task, p, e = self.task, self.scheme.p, self.task.equations
        if index >= e.n_guards - e.n_singularities:
            raise singular(mode=e.name, time=approximate, variables=e.algebraic_labels)
        index, t, _, point = self.monitor.integrate_to_zero(self, index, approximate)
        crossing = (index, point.guard, point.rate)
        if is_pole(task, t, point.x, point.xdot, crossing, p):
            raise lost_crossing(crossing, pole=True, mode=e.name, time=t)
        if not is_short(self.t0, t):
            step = self._shortened(t)
            self.t, self.x = step.t, step.x
            self._accept(step)
            self._output(inclusive=False)
        else:
            self.t, self.x, self.dx = self.t0, self.x0, self.dx0
        return self._end((index, point))

    def _end(self, crossing: tuple[int, EventPoint] | None) -> SegmentOutcome:
        task, t = self.task, self.t
        if crossing is None:
            x, xdot = completed(task.equations, t, self.x, task.memory, self.scheme.p)
        else:
            x, xdot = crossing[1].x, crossing[1].xdot
        d: dict[str, Any] = {}
        if task.sensitivities is not None:
            d["sensitivities"] = self.dx.copy()
        if task.integral_sensitivities is not None:
            d["integral_sensitivities"] = self.of_integrals
        return SegmentOutcome(
            t=t,
            x=x,
            xdot=xdot,
            crossing=None if crossing is None else (crossing[0], crossing[1].guard, crossing[1].rate),
            zero_band=self.monitor.band,
            method=self.method,
            integrals=self.integrals,
            rows=self.outputs.array(),
            **d,
        )
