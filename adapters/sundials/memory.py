"""CVODES and IDAS memories: created once for a set of equations, restarted for every segment.

The two libraries have parallel interfaces; `_Solver` names the functions by family and the few
differences (IDAS carries x' and an identification of the algebraic rows) are spelled out here.
"""

from __future__ import annotations

from ctypes import byref, c_double, c_int, c_void_p
from typing import Any

import numpy as np

from dae_hybrid.codegen import Kernel, densified
from dae_hybrid.errors import StepSizeError
from dae_hybrid.failures import unresolved_guard
from dae_hybrid.integrator import Array, BackwardOutcome, BackwardTask, Equations, SegmentTask
from dae_hybrid.options import Options

from .driver import PAUSED
from .flags import integration_error
from .library import ADAMS, BDF, HERMITE, NORMAL, SIMULTANEOUS, STAGGERED, Objects

MAX_ORDER = {"bdf": 5, "adams": 12}
FORWARD_PASS_ORDER, CAUTIOUS_ORDER = 5, 3
#: cubic interpolation of the forward pass may be off by this many tolerances; where it is not, the pass is repeated in
#: shorter steps, at most this often; the next segment starts with steps that may be longer by a factor
INTERPOLATION, REPEATS, FORGET = 100.0, 20, 1.5
#: and where that would mean more steps than this, the order is reduced instead
MANY = 2e4
#: absolute tolerance of what takes no part in any test
UNTESTED = 1e100


class _Solver:
    """What the forward and the adjoint memory share."""

    def __init__(self, equations: Equations, method: str, n_integrals: int, model: Any) -> None:
        self.equations, self.model, self.size = equations, model, equations.n + n_integrals
        self.family = "IDA" if equations.implicit else "CVode"
        self.prefix = self.family.removesuffix("ode").lower()  # callbacks are called cv_* and ida_*
        self.method = method
        n = self.size
        self.objects = Objects()
        self.lib = self.objects.library
        self.x, self.work, self.absolute = (self.objects.vector(n) for _ in range(3))
        self.xdot = self.objects.vector(n) if equations.implicit else None
        self.x_data = self.objects.data(self.x, n)
        self.xdot_data = None if self.xdot is None else self.objects.data(self.xdot, n)
        self.absolute_data = self.objects.data(self.absolute, n)
        self.time = c_double()
        self._functions: dict[str, Any] = {}

    def name(self, suffix: str) -> Any:
        """The library function of this family."""
        function = self._functions.get(suffix)
        if function is None:
            function = self._functions[suffix] = getattr(self.lib, self.family + suffix)
        return function

    def call(self, suffix: str, *arguments: Any) -> int:
        """Call it on this memory; negative return codes become errors."""
        flag: int = self.name(suffix)(self.memory, *arguments)
        if flag < 0:
            self.fail(flag, self.time.value)
        return flag

    def fail(self, flag: int, time: float) -> None:
        """Raise what a return code means, or the exception a callback left behind."""
        self.model.raise_pending()
        returned = self.model.take_returned()
        if returned is not None:
            raise unresolved_guard(returned, mode=self.equations.name, time=time)
        name = self.name("GetReturnFlagName")(flag)
        raise integration_error(
            flag,
            name.decode() if name else str(flag),
            not_finite=self.model.counters()["not_finite"] > self.not_finite,
            mode=self.equations.name,
            time=time,
        )

    not_finite = 0

    def create(self, *, guarded: bool) -> None:
        """Create the memory with its right-hand side, linear solver and guards."""
        lib, e, free = self.lib, self.equations, self.name("Free")
        callback = self.model.callback
        matrix, solver = (None, None) if self.method == "adams" else self.objects.dense_solver(self.x, self.size)
        fixed_point = self.objects.fixed_point(self.x) if self.method == "adams" else None
        if e.implicit:
            handle = lib.IDACreate(self.objects.context)
        else:
            handle = lib.CVodeCreate(ADAMS if self.method == "adams" else BDF, self.objects.context)
        pointer = _Pointer(handle)
        self.memory = self.objects.own(handle, lambda: free(pointer.reference), "solver memory")
        self.x_data[:] = 0.0
        if self.xdot_data is not None:
            self.xdot_data[:] = 0.0
            self.call("Init", callback("ida_res"), 0.0, self.x, self.xdot)
        else:
            self.call("Init", callback("cv_rhs"), 0.0, self.x)
            self.call("SetMaxHnilWarns", -1)
        self.call("SetUserData", self.model.user_data)
        if fixed_point is None:
            self.call("SetLinearSolver", solver, matrix)
            self.call("SetJacFn", callback(f"{self.prefix}_jac"))
        else:
            self.call("SetNonlinearSolver", fixed_point)
        if e.implicit:
            self.differential_rows = self.objects.vector(self.size)
            rows = np.arange(self.size)
            self.objects.data(self.differential_rows, self.size)[:] = (rows < e.n_differential) | (rows >= e.n)
            self.call("SetId", self.differential_rows)
        if guarded and e.n_guards:
            self.call("RootInit", e.n_guards, callback(f"{self.prefix}_root"))
            self.call("SetRootDirection", (c_int * e.n_guards)(*e.directions))
            self.call("SetNoInactiveRootWarn")

    def configure(self, options: Options, parameters: Array) -> None:
        """Apply the options and parameters of a run."""
        self.model.parameters[:] = parameters
        self.model.reset()
        self.absolute_data[: self.equations.n] = options.absolute(self.equations.variables)
        self._free_algebraic(self.absolute_data)
        if self.size > self.equations.n:
            self.absolute_data[self.equations.n :] = options.absolute(self.equations.functionals)
        self.call("SVtolerances", options.rtol, self.absolute)
        if self.equations.implicit:
            self.call("SetSuppressAlg", int(options.suppress_algebraic or self.equations.constrained))
        self.call("SetMaxStep", options.max_step or 0.0)
        self.call("SetInitStep", options.first_step or 0.0)
        self.call("SetMaxOrd", options.max_order or MAX_ORDER[self.method])
        self.call("SetMaxNumSteps", options.max_steps)
        self.not_finite = self.model.counters()["not_finite"]

    def _free_algebraic(self, absolute: Array) -> None:
        """Take algebraic variables that follow from constraints out of every test.

        The corrector's error reaches them divided by the step size, or through the derivatives of the constraints, and
        tests on them fail at small steps. What they do to y is tested there, and they are solved for again wherever
        they are reported.
        """
        if self.equations.index == 2:
            absolute[self.equations.n_differential : self.equations.n] = UNTESTED

    def free(self) -> None:
        """Free everything native now."""
        self.objects.free()


class _Pointer:
    """A handle and a reference to it, for the functions that free through ``void **``."""

    def __init__(self, handle: int | None) -> None:
        self.cell = c_void_p(handle)
        self.reference = byref(self.cell)


class Forward(_Solver):
    """Integration with guards, the functionals' integrals and, with `n_directions`, forward sensitivities.

    The solver's state is (x, q) with q' = g, the integrands; see driver.c.
    """

    def __init__(self, equations: Equations, options: Options, method: str, n_directions: int, backend: Any) -> None:
        e, ns = equations, n_directions
        family = "IDA" if e.implicit else "CVode"
        n_integrals = e.functionals.size if e.integrates else 0
        super().__init__(e, method, n_integrals, backend.Model(e, family, n_integrals, ns, ()))
        objects, size = self.objects, self.size
        self.s = objects.vectors(ns, size) if ns else None
        self.sdot = objects.vectors(ns, size) if ns and e.implicit else None
        self.s_data = [objects.data(v, size) for v in self.s or ()]
        self.sdot_data = [objects.data(v, size) for v in self.sdot or ()]
        self.corrector = SIMULTANEOUS if options.sensitivity_method == "simultaneous" else STAGGERED
        sensitivity_solver = None
        if ns and self.method == "adams":
            sensitivity_solver = objects.fixed_point(self.x, ns + (self.corrector == SIMULTANEOUS))
        self.create(guarded=True)
        if ns:
            for data in (*self.s_data, *self.sdot_data):
                data[:] = 0.0
            start = (self.s, self.sdot) if e.implicit else (self.s,)
            self.call("SensInit", ns, self.corrector, self.model.callback(f"{self.prefix}_sens"), *start)
            self.call("SensEEtolerances")
            self.call("SetSensErrCon", 1)
            if sensitivity_solver is not None:
                which = "Sim" if self.corrector == SIMULTANEOUS else "Stg"
                self.call(f"SetNonlinearSolverSens{which}", sensitivity_solver)
        if e.implicit and n_integrals:
            self._flow = Kernel(densified(e.functions["flow"].function))
        self.dense_order = MAX_ORDER[self.method]
        self.stepper = backend.Stepper(
            self.model, memory=self.memory, x=self.x, xdot=self.xdot, work=self.work, sensitivities=self.s,
            sensitivity_rates=self.sdot, corrector=self.corrector,
        )  # fmt: skip

    def configure_run(
        self, options: Options, parameters: Array, directions: Array | None, scales: Array | None
    ) -> None:
        """Apply options, parameters and directions of a run."""
        self.configure(options, parameters)
        if directions is not None and scales is not None and self.s is not None:
            self.model.parameter_directions[:] = directions
            self.call("SetSensParams", None, (c_double * scales.size)(*scales), None)

    def begin(self, task: SegmentTask) -> None:
        """Start the segment of a task."""
        n, width = task.equations.n, 1 + task.equations.n
        self.model.memory[:] = task.memory
        self.model.zero_band[:], self.model.departure[:] = task.zero_band, task.departure
        self.x_data[:n], self.x_data[n:] = task.x0, task.integrals[: self.size - n]
        if self.xdot_data is not None:
            self.xdot_data[:n] = task.xdot0
            if self.size > n:  # IDA takes its first step from the rates, those of the integrals too
                self.xdot_data[n:] = self._flow(task.t0, task.x0, task.memory, self.model.parameters)[1]
        if task.sensitivities is not None:
            self._begin_sensitivities(task)
            width += n * len(self.s_data)
        if task.record == "dense":
            width = 3 + (self.dense_order + 1) * n
        flag = self.stepper.begin(
            task.t0, task.t_stop, task.record, task.t_eval, task.closed_end, width, self.dense_order
        )
        if flag < 0:
            self.fail(flag, task.t0)

    def _begin_sensitivities(self, task: SegmentTask) -> None:
        # a task with sensitivities has the other fields too, which its type does not say
        n, count = task.equations.n, self.size - task.equations.n
        self.model.memory_directions[:] = task.memory_directions
        for i, data in enumerate(self.s_data):
            data[:n], data[n:] = task.sensitivities[i], task.integral_sensitivities[i][:count]  # type: ignore[index]
        for i, data in enumerate(self.sdot_data):
            data[:n], data[n:] = task.sensitivity_rates[i], 0.0  # type: ignore[index]


class Adjoint(_Solver):
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
            samples[i] = starts if t == task.t1 else self._at(float(t))
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
