"""The adjoint memory: a checkpointed forward pass and the backward problems."""

from __future__ import annotations

from ctypes import byref, c_int
from typing import Any

import numpy as np

from dae_hybrid.errors import StepSizeError
from dae_hybrid.integrator import Array, BackwardOutcome, BackwardTask, Equations
from dae_hybrid.options import Options
from dae_hybrid.segments import is_short

from .driver import PAUSED
from .library import ADAMS, BDF, HERMITE, NORMAL
from .memory import MAX_ORDER, SMALLEST_STEP, SolverMemory

FORWARD_PASS_ORDER, CAUTIOUS_ORDER = 5, 3
#: cubic interpolation of the forward pass may be off by this many tolerances; where it is not, the pass is repeated in
#: shorter steps, at most this often; the next segment starts with steps that may be longer by a factor
INTERPOLATION, REPEATS, FORGET = 100.0, 20, 1.5
#: and where that would mean more steps than this, the order is reduced instead
MANY = 2e4


class Adjoint(SolverMemory):
    """A checkpointed forward pass without guards, and one backward problem per functional component.

    The forward pass runs to a stop time, segment by segment: CVODES and IDAS write past their data store
    when a pass that ended at a root is followed backwards.
    """

    def __init__(
        self,
        equations: Equations,
        options: Options,
        method: str,
        wrt: tuple[int, ...],
        components: tuple[int, ...],
        backend: Any,
    ) -> None:
        family = "IDA" if equations.implicit else "CVode"
        super().__init__(equations, method, 0, backend.Model(equations, family, 0, 0, wrt))
        self.components = components
        e, objects, k = equations, self.objects, len(components)
        self.nq = len(wrt) + e.n_memory
        size = e.n + 1  # the adjoint and its guide, see driver.c
        self.b, self.b_absolute = objects.vectors(k, size), objects.vectors(k, size)
        self.q_b, self.q_absolute = objects.vectors(k, max(self.nq, 1)), objects.vectors(k, max(self.nq, 1))
        self.bdot = objects.vectors(k, size) if e.implicit else None
        self.b_data, self.bdot_data, self.b_absolute_data = (
            [objects.data(v, size) for v in group or ()] for group in (self.b, self.bdot, self.b_absolute)
        )
        self.backward_rows = objects.vector(size)
        rows = np.arange(size)
        objects.data(self.backward_rows, size)[:] = (rows < e.n_differential) | (rows == e.n)
        self.q_data, self.q_absolute_data = (
            [objects.data(v, self.nq) for v in group] for group in (self.q_b, self.q_absolute)
        )
        self.solvers: list[Any] = [
            objects.fixed_point(v) if self.method == "adams" else objects.dense_solver(v, size) for v in self.b
        ]
        self.create(guarded=False)
        self.loop = backend.ForwardPass(
            self.model, self.absolute_data, memory=self.memory, x=self.x, xdot=self.xdot, work=self.work
        )
        self.call("AdjInit", options.checkpoint_steps, HERMITE)
        self.which: list[int] = []  # made after the first forward pass, whose interval they must start in
        self.scales: Array | None = None  # the absolute tolerances that are set, of the run's options

    def _backward_problem(self, j: int, t1: float) -> int:
        which, callback = c_int(), self.model.callback
        if self.bdot is not None:
            self.call("CreateB", byref(which))
            self.call("InitB", which.value, callback("ida_res_b"), t1, self.b[j], self.bdot[j])
            self.call("SetIdB", which.value, self.backward_rows)
            self.call("SetSuppressAlgB", which.value, 1)
        else:
            self.call("CreateB", ADAMS if self.method == "adams" else BDF, byref(which))
            self.call("InitB", which.value, callback("cv_rhs_b"), t1, self.b[j])
        index = which.value
        self.call("SetUserDataB", index, self.model.user_data_b(self.components[j]))
        if self.method == "adams":
            self.call("SetNonlinearSolverB", index, self.solvers[j])
        else:
            matrix, solver = self.solvers[j]
            self.call("SetLinearSolverB", index, solver, matrix)
            self.call("SetJacFnB", index, callback(f"{self.prefix}_jac_b"))
        if self.nq:
            self.call("QuadInitB", index, callback(f"{self.prefix}_quad_b"), self.q_b[j])
            self.call("SetQuadErrConB", index, 1)
        return index

    def configure_run(self, options: Options, parameters: Array) -> None:
        """Apply options and parameters of a run."""
        self.configure(options, parameters)
        self.options, self.scales, self.longest = options, None, np.inf
        self.cautious = False
        self._set_cautious(False)

    def _set_cautious(self, cautious: bool) -> None:
        """Choose the highest order of the forward pass: one whose error test covers cubic interpolation, or more.

        Orders above FORWARD_PASS_ORDER take steps too long for cubic interpolation, and the gradient does not follow
        the tolerance; SUNDIALS' polynomial interpolation fails now and then (both measured on SR 5.2).
        """
        self.cautious = cautious
        order = CAUTIOUS_ORDER if cautious else FORWARD_PASS_ORDER
        self.call("SetMaxOrd", min(order, self.options.max_order or order))

    def solve(self, task: BackwardTask) -> BackwardOutcome:
        """Integrate the segment forwards with checkpoints, then its adjoints backwards."""
        self._forward_pass(task)
        starts, rates = task.adjoints, task.adjoint_rates
        if task.restart is not None:
            starts, rates = task.restart(self.x_data.copy())
        n, k = self.equations.n, len(self.components)
        if not self.which:
            self.which = [self._backward_problem(j, task.t1) for j in range(k)]
        if task.absolute is not self.scales:
            self._configure_backward(task)
        for j, index in enumerate(self.which):
            self.b_data[j][:n], self.b_data[j][n] = starts[j], 0.0
            if self.bdot is None:
                self.call("ReInitB", index, task.t1, self.b[j])
            else:
                self.bdot_data[j][:n], self.bdot_data[j][n] = rates[j], 0.0
                self.call("ReInitB", index, task.t1, self.b[j], self.bdot[j])
            if self.nq:
                self.q_data[j][:] = 0.0
                self.call("QuadReInitB", index, self.q_b[j])
        self.stretches, self.bound = list(task.stretches), 0.0
        times = np.zeros(0) if task.t_eval is None else task.t_eval
        samples = np.zeros((times.size, k, n))
        for i, t in enumerate(times):
            samples[i] = starts if is_short(float(t), task.t1) else self._at(float(t))
        adjoints = samples[-1].copy() if times.size and times[-1] == task.t0 else self._at(task.t0)
        integrals = np.zeros((k, self.nq))
        for j, index in enumerate(self.which) if self.nq else ():
            self.call("GetQuadB", index, byref(self.time), self.q_b[j])
            integrals[j] = self.q_data[j]
        split = self.nq - self.equations.n_memory
        return BackwardOutcome(adjoints, integrals[:, :split], integrals[:, split:], samples)

    def _configure_backward(self, task: BackwardTask) -> None:
        """Apply the run's options and the task's tolerances, which SUNDIALS copies, to the backward problems."""
        n, options = self.equations.n, self.options
        if self.nq:  # all integrals on the scale of the first component's tolerances
            self.model.weights[:] = task.absolute_integrals[0].min() / task.absolute_integrals[0]
        for j, index in enumerate(self.which):
            self.b_absolute_data[j][:n] = task.absolute[j]
            self._free_algebraic(self.b_absolute_data[j])
            self.b_absolute_data[j][n] = task.absolute_integrals[j].min(initial=1.0)
            self.call("SetMaxNumStepsB", index, options.max_steps)
            self.call("SetMaxStepB", index, options.max_step or 0.0)
            if self.bdot is None:
                self.call("SetMinStepB", index, SMALLEST_STEP)
            self.call("SetMaxOrdB", index, options.max_order or MAX_ORDER[self.method])
            self.call("SVtolerancesB", index, options.rtol, self.b_absolute[j])
            if self.nq:
                self.q_absolute_data[j][:] = task.absolute_integrals[j]
                self.call("QuadSVtolerancesB", index, options.rtol, self.q_absolute[j])
        self.scales = task.absolute

    def _forward_pass(self, task: BackwardTask) -> None:
        """Integrate the segment with checkpoints, in steps that cubic interpolation is good enough for."""
        self.model.memory[:] = task.memory
        own = self.options.max_step or np.inf
        self.longest = min(own, FORGET * self.longest)
        for _ in range(REPEATS):
            self.call("SetMaxStep", 0.0 if self.longest == np.inf else self.longest)
            self.model.reset()
            self.x_data[:] = task.x0
            self.time.value = task.t0
            if self.xdot_data is None:
                self.call("ReInit", task.t0, self.x)
            else:
                self.xdot_data[:] = task.xdot0
                self.call("ReInit", task.t0, self.x, self.xdot)
            self.call("AdjReInit")
            self.call("SetStopTime", task.t1)
            budget = self.options.max_steps
            status, longest = self.loop.advance(task.t0, task.t1, self.options.rtol, INTERPOLATION, budget)
            if status < 0:
                self.fail(status, task.t0)
            if status != PAUSED:
                return
            if not self.cautious and task.t1 - task.t0 > MANY * longest:
                self._set_cautious(True)  # the trouble is local: a fast transient before a long smooth stretch
            else:
                self.longest = min(longest, self.longest / 2)
        raise StepSizeError(
            "The forward pass of the adjoint cannot be interpolated well enough, however short its steps.",
            mode=task.equations.name,
            time=task.t0,
            remedy="Loosen rtol, or look for a discontinuity that is not a transition.",
        )

    def _at(self, t: float) -> Array:
        """The adjoints at t, integrated stretch by stretch."""
        solve = "B" if self.xdot is None else "SolveB"
        while self.stretches:
            end, longest = self.stretches[0]
            if longest != self.bound:
                self.bound = longest
                for index in self.which:
                    self.call("SetMaxStepB", index, min(longest, self.options.max_step or longest))
            if end <= t:
                break
            self.call(solve, end, NORMAL)
            self.stretches.pop(0)
        self.call(solve, t, NORMAL)
        for j, index in enumerate(self.which):
            if self.bdot is None:
                self.call("GetB", index, byref(self.time), self.b[j])
            else:
                self.call("GetB", index, byref(self.time), self.b[j], self.bdot[j])
        return np.array([data[: self.equations.n] for data in self.b_data])
