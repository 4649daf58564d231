"""The forward memory: integration with guards, integrals and forward sensitivities."""

from __future__ import annotations

from ctypes import c_int, c_void_p

import numpy as np

from dae_hybrid.codegen.kernels import Kernel, densified
from dae_hybrid.method import DENSE_COLUMNS, POINT_COLUMNS
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.step_polynomial import COEFFICIENTS
from dae_hybrid.options import Options
from dae_hybrid.port.integrator import Equations, Record, SegmentTask

from . import compiled
from .backend import Backend
from .compiled import WIDEST_PATH
from .library import SIMULTANEOUS, STAGGERED
from .memory import UNTESTED, SolverMemory
from .methods import SundialsMethod
from .runge_kutta import ButcherTable, RungeKuttaStep
from .staggered import KINDS, Staggered

#: tolerance of Newton's method relative to the error test. SUNDIALS' defaults are 0.1 and 0.33 (IDAS). The remaining
#: error is noise in the error test: steps become shorter by a fifth to a half, for as many evaluations. And where
#: an exponential has overshot, its small corrections pass for convergence
NEWTON_COEFFICIENT = 0.02
#: limit on failed attempts of one step, for example by overflow in an exponential; each is a quarter of the last. IDA
#: begins with a thousandth of the way where all rates are zero, as in a circuit at rest
MAX_STEP_FAILURES = 20


class Forward(SolverMemory):
    """Integration with guards, the functionals' integrals and, with `n_directions`, forward sensitivities.

    The solver's state is (x, q) with q' = g, the integrands; see declarations.h.
    """

    def __init__(
        self, equations: Equations, options: Options, method: SundialsMethod, n_directions: int, backend: Backend
    ) -> None:
        e, ns = equations, n_directions
        n_integrals = e.functionals.size if e.integrates else 0
        model = backend.EquationCallbacks(e, method.family(e), n_integrals, ns, ())
        size = self.block = e.n + n_integrals
        self.explicit, table = method.explicit, method.table(options)
        super().__init__(e, method, size * (1 + ns) if self.explicit else size, model)
        objects = self.objects
        if table is not None:
            self._create_explicit_method(backend, ns, table)
            return
        self.s = objects.vectors(ns, size) if ns else None
        self.sdot = objects.vectors(ns, size) if ns and self.implicit else None
        self.s_data = [objects.data(v, size) for v in self.s or ()]
        self.sdot_data = [objects.data(v, size) for v in self.sdot or ()]
        # IDAS tests the errors of sensitivities only with the staggered corrector
        simultaneous = options.sensitivity_method == "simultaneous" and not self.implicit
        self.corrector = SIMULTANEOUS if simultaneous else STAGGERED
        sensitivity_solver = None
        if ns and not method.implicit:
            sensitivity_solver = objects.fixed_point(self.x, ns + (self.corrector == SIMULTANEOUS))
        if ns and self.implicit:
            objects.replace_operations(self.x, model.norms())
        self.create(options.linear_solver)
        if e.n_guards:
            self.call("RootInit", e.n_guards, self.model.callback(f"{self.prefix}_root"))
            self.call("SetRootDirection", (c_int * e.n_guards)(*e.directions))
            self.call("SetNoInactiveRootWarn")
        if ns:
            for data in (*self.s_data, *self.sdot_data):
                data[:] = 0.0
            start = (self.s, self.sdot) if self.implicit else (self.s,)
            self.call("SensInit", ns, self.corrector, self.model.callback(f"{self.prefix}_sens"), *start)
            together = method.implicit and self.corrector == STAGGERED and self.linear_solver in KINDS
            if backend is compiled and together and e.index < 2:  # the matrix of index 2 is next to singular
                sensitivity_solver = Staggered(self, ns).solver
            if sensitivity_solver is not None:
                which = "Sim" if self.corrector == SIMULTANEOUS else "Stg"
                self.call(f"SetNonlinearSolverSens{which}", sensitivity_solver)
        if self.implicit and n_integrals:
            self._flow = Kernel(densified(e.functions["flow"].function))
        self.dense_order = 0 if method.orders is None else method.orders[1]
        self.stepper = backend.ForwardLoop(
            self.model, memory=self.memory, x=self.x, xdot=self.xdot, work=self.work, sensitivities=self.s,
            sensitivity_rates=self.sdot, corrector=self.corrector,
        )  # fmt: skip

    def _create_explicit_method(self, backend: Backend, ns: int, table: ButcherTable) -> None:
        """Make the sensitivities part of the state; their vectors are views of it."""
        objects, size = self.objects, self.block
        self.s_data, self.sdot_data, self.dense_order = [], [], COEFFICIENTS - 1
        blocks = self.x_data.reshape(1 + ns, size)
        self.s_data = list(blocks[1:])
        self.s = (c_void_p * ns)(*(objects.view(block, size) for block in self.s_data)) if ns else None
        objects.replace_operations(self.x, compiled.short_vectors())
        self.create_explicit(table)
        self.parts = RungeKuttaStep(table, self.equations.n, self.size)
        self.stepper = backend.ForwardLoop(
            self.model, step=self.parts.struct, memory=self.memory, x=self.x, xdot=None, work=self.work,
            sensitivities=self.s, sensitivity_rates=None, corrector=0,
        )  # fmt: skip

    def _set_explicit_tolerances(self, options: Options, scales: Array | None) -> None:
        """Set the states' tolerances for every block, scaled so that the mean over blocks bounds each of them."""
        n, size, blocks = self.equations.n, self.block, self.absolute_data.reshape(-1, self.block)
        blocks[0, :n] = options.absolute(self.equations.variables)
        blocks[0, n:] = options.absolute(self.equations.functionals)[: size - n]
        if scales is not None:
            blocks[1:] = blocks[0] / scales[:, None]
            self._test_sensitivities(options, blocks[1:])
            if not options.sensitivity_error_control:
                blocks[1:] = UNTESTED
        share = len(blocks) ** -0.5
        self.absolute_data[:] *= share
        self.call("SVtolerances", options.rtol * share, self.absolute)
        self.model.test(self.absolute_data, options.rtol * share)

    def _test_sensitivities(self, options: Options, absolute: Array) -> None:
        """Include sensitivities in the error test, or accumulate their errors."""
        if options.sensitivity_error_control and not self._left_out:
            return
        self._left_out = not options.sensitivity_error_control
        self.model.leave_out(self.memory if self._left_out else None, absolute, options.rtol)
        if self._left_out and self.explicit and not self.stepper.run.errors:
            self.stepper.run.errors = self.objects.vector(self.size)

    def _set_sensitivity_tolerances(self, options: Options, scales: Array) -> None:
        """Set the states' tolerances scaled by the parameters, without pbar, which IDASensReInit resets to one.

        Derivatives of algebraic variables contain the errors of the states through second derivatives of the equations,
        which would dominate the test. Their effect on those of states and integrals is tested there, and they are
        solved for again wherever they are reported.
        """
        e = self.equations
        for data, scale in zip(self.s_data, scales.tolist(), strict=True):  # SUNDIALS copies it
            data[:] = self.absolute_data / scale
            if self.implicit:
                data[e.n_differential : e.n] = UNTESTED
        self.call("SensSVtolerances", options.rtol, self.s)
        self.call("SetSensErrCon", int(options.sensitivity_error_control))
        self._test_sensitivities(options, np.array(self.s_data))

    _left_out = False  # whether sensitivities are excluded from the error test
    _suppressed = False  # value at the last configuration
    _scales: Array | None = None

    def configure_run(
        self, options: Options, parameters: Array, directions: Array | None, scales: Array | None, *, suppress: bool
    ) -> None:
        """Apply options, parameters, directions; `suppress` leaves algebraic variables out of the error test."""
        self.stepper.take_turns()  # those of the previous run
        if self._left_out:
            self.model.forget_errors()
        told = options is self._configured and suppress == self._suppressed and _same(scales, self._scales)
        self.configure(options, parameters)
        e = self.equations
        if directions is not None and scales is not None:
            self.model.set_directions(directions)
        if told:
            return
        self._suppressed, self._scales = suppress, scales
        if self.method.implicit and e.index < 2:
            self.call("SetNonlinConvCoef", NEWTON_COEFFICIENT)
            self.call("SetMaxConvFails", MAX_STEP_FAILURES)
            self.call("SetMaxErrTestFails", MAX_STEP_FAILURES)
        if self.explicit:
            self._set_explicit_tolerances(options, scales if self.s_data else None)
            self._first_step = options.first_step
            return
        self.absolute_data[: e.n] = options.absolute(e.variables)
        self._free_algebraic(self.absolute_data)
        if self.size > e.n:
            self.absolute_data[e.n :] = options.absolute(e.functionals)
        if self.implicit and e.index < 2:
            self.model.weigh(self.absolute_data, options.rtol)
            self.call("WFtolerances", self.model.callback("ida_weights"))
        else:
            self.call("SVtolerances", options.rtol, self.absolute)
        if self.implicit:
            self.call("SetSuppressAlg", int(suppress))
            rows = self.objects.data(self.differential_rows, self.size)  # IDAS uses them only for the error test
            rows[e.n_differential + np.array(e.tested, dtype=int)] = not options.suppress_algebraic
            self.call("SetId", self.differential_rows)
        if scales is not None and self.s is not None:
            self._set_sensitivity_tolerances(options, scales)

    def prepare(self, task: SegmentTask) -> None:
        """Set the quantities that the segments of a task record."""
        self.keep(task.t_stop, task.until, task.record, task.t_eval, closed=task.closed_end, path=task.keep_path)

    def keep(
        self, t_stop: float, until: float, record: Record, t_eval: Array | None, *, closed: bool, path: bool
    ) -> None:
        """Set the quantities to record up to a time; see `SegmentTask`."""
        n = self.equations.n
        dense = DENSE_COLUMNS + (self.dense_order + 1) * n
        of_path = POINT_COLUMNS + n if self.explicit else dense
        width = dense if record == "dense" else 1 + n * (1 + len(self.s_data))
        self.stepper.prepare(
            t_stop, until, record, t_eval, closed, width, self.dense_order,
            of_path if path and of_path <= WIDEST_PATH else 0,
        )  # fmt: skip

    def begin(self, task: SegmentTask) -> None:
        """Start the segment of a task."""
        n = task.equations.n
        self.model.memory[:] = task.memory
        self.model.zero_band[:], self.model.leaving_sign[:] = task.zero_band, task.leaving_sign
        self.x_data[:n], self.x_data[n : self.block] = task.x0, task.integrals[: self.block - n]
        if self.xdot_data is not None:
            self.xdot_data[:n] = task.xdot0
            if self.size > n:  # IDA takes its first step from the rates, including those of the integrals
                self.xdot_data[n:] = self._flow(task.t0, task.x0, task.memory, self.model.parameters)[1]
        if task.sensitivities is not None:
            self._begin_sensitivities(task)
        self.prepare(task)
        flag = self.stepper.begin(task.t0, *((self.first_step(task),) if self.explicit else ()))
        if flag < 0:
            self.fail(flag, task.t0)

    @property
    def sensitivities(self) -> Array:
        """A copy of d(x, q) along each direction, (n_directions, n + n_integrals)."""
        if self.explicit:
            blocks: Array = self.x_data.reshape(-1, self.block)[1:]
            return blocks.copy()
        return np.array(self.s_data)

    def first_step(self, task: SegmentTask) -> float:
        """First step of an explicit method; 0 leaves the choice to ARKODE."""
        return self._first_step or task.first_step or 0.0

    def _begin_sensitivities(self, task: SegmentTask) -> None:
        # a task with sensitivities has the other fields as well, which its type does not express
        n, count = task.equations.n, self.block - task.equations.n
        self.model.memory_directions[:] = task.memory_directions
        for i, data in enumerate(self.s_data):
            data[:n], data[n:] = task.sensitivities[i], task.integral_sensitivities[i][:count]  # type: ignore[index]
        for i, data in enumerate(self.sdot_data):
            data[:n], data[n:] = task.sensitivity_rates[i], 0.0  # type: ignore[index]


def _same(one: Array | None, other: Array | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other)
