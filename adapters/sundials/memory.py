"""Base of CVODES, IDAS and ARKODE memories: created once per set of equations, restarted for every segment.

The libraries have parallel interfaces. `SolverMemory` calls functions by family name; the few
differences (IDAS has x' and an identification of the algebraic rows) are explicit.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_double, c_void_p
from functools import cache
from typing import Any

import numpy as np

from dae_hybrid.numerics.arrays import Array
from dae_hybrid.options import Options
from dae_hybrid.port.failure_messages import unresolved_guard
from dae_hybrid.port.integrator import Equations

from .flags import integration_error
from .library import Objects, load
from .linear import prepare
from .methods import SundialsMethod
from .runge_kutta import ButcherTable

#: absolute tolerance of components excluded from the error test
UNTESTED = 1e100
#: explicit steps: factor on the error estimate (measured: a third of the failed steps of ARKODE's default, at a tenth
#: of the error), and degree of the interpolant, which needs no evaluations up to 3
ERROR_BIAS, INTERPOLANT = 2.0, 3


def taken[T](idle: list[T], make: Callable[[], T]) -> T:
    """Take an idle object, or make one. Thread-safe."""
    try:
        return idle.pop()
    except IndexError:
        return make()


class SolverMemory:
    """Base of the forward and the adjoint memory."""

    def __init__(self, equations: Equations, method: SundialsMethod, size: int, model: Any) -> None:
        self.equations, self.model, self.size = equations, model, size
        self.family = method.family(equations)
        self.implicit = self.family == "IDA"  # whether the solver has x' in addition to x
        self.prefix = self.family.removesuffix("ode").lower()  # of callbacks: cv_* and ida_*
        self.method = method
        n = size
        self.objects = Objects()
        self.lib = self.objects.library
        self.x, self.work, self.absolute = (self.objects.vector(n) for _ in range(3))
        self.xdot = self.objects.vector(n) if self.implicit else None
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
        """Call a function on this memory; negative return codes raise errors."""
        flag: int = self.name(suffix)(self.memory, *arguments)
        if flag < 0:
            self.fail(flag, self.time.value)
        return flag

    def fail(self, flag: int, time: float) -> None:
        """Raise the error of a return code, or the exception of a callback."""
        self.model.raise_pending()
        returned = self.model.take_returned()
        if returned is not None:
            raise unresolved_guard(returned, mode=self.equations.name, time=time)
        raise integration_error(
            flag,
            _flag_name(self.family, flag),
            not_finite=self.model.counters()["not_finite"] > self.not_finite,
            mode=self.equations.name,
            time=time,
        )

    not_finite = 0
    pool: list[Any] | None = None  # pool to which a session returns it; memories of a runner stay with the runner
    _configured: Options | None = None  # the options set in the memory

    def create_explicit(self, table: ButcherTable) -> None:
        """Create the memory of a Runge-Kutta method."""
        lib, free = self.lib, self.name("Free")
        self.x_data[:] = 0.0
        handle = lib.ERKStepCreate(self.model.callback("ark_rhs"), 0.0, self.x, self.objects.context)
        pointer = _Pointer(handle)
        self.memory = self.objects.own(handle, lambda: free(pointer.reference), "solver memory")
        if lib.ERKStepSetTable(self.memory, table.handle) < 0:
            raise AssertionError(f"ARKODE does not take {table.name}")
        self.call("SetAdaptController", self.objects.step_controller(ERROR_BIAS))
        self.call("SetInterpolantDegree", INTERPOLANT)
        self.call("SetMaxHnilWarns", -1)
        self.call("SetUserData", self.model.user_data)
        if self.equations.implicit:
            self.call("SetPostprocessStepFn", self.model.callback("ark_settle"))

    linear_solver = "none"  # kind of the linear solver
    superlu: Any = None  # SciPy's solver, if used; see `linear.SuperLU`

    def create(self, linear_solver: str, suffix: str = "") -> None:
        """Create the memory with its right-hand side and linear solver; `suffix` is that of the callbacks."""
        lib, e, free = self.lib, self.equations, self.name("Free")
        callback = self.model.callback
        connect = prepare(self, linear_solver, suffix) if self.method.implicit else None
        fixed_point = None if self.method.implicit else self.objects.fixed_point(self.x)
        if self.implicit:
            handle = lib.IDACreate(self.objects.context)
        else:
            handle = lib.CVodeCreate(self.method.formula, self.objects.context)
        pointer = _Pointer(handle)
        self.memory = self.objects.own(handle, lambda: free(pointer.reference), "solver memory")
        self.x_data[:] = 0.0
        if self.xdot_data is not None:
            self.xdot_data[:] = 0.0
            self.call("Init", callback(f"ida_res{suffix}"), 0.0, self.x, self.xdot)
        else:
            self.call("Init", callback(f"cv_rhs{suffix}"), 0.0, self.x)
            self.call("SetMaxHnilWarns", -1)
        self.call("SetUserData", self.model.user_data)
        if connect is not None:
            connect()
        else:
            self.call("SetNonlinearSolver", fixed_point)
        if self.implicit:
            self.differential_rows = self.objects.vector(self.size)
            rows = np.arange(self.size)
            self.objects.data(self.differential_rows, self.size)[:] = (rows < e.n_differential) | (rows >= e.n)
            self.call("SetId", self.differential_rows)

    def configure(self, options: Options, parameters: Array) -> None:
        """Apply options and parameters common to all memories."""
        self.model.parameters[:] = parameters
        self.model.reset()
        self.not_finite = self.model.counters()["not_finite"]
        if options is self._configured:
            return
        if self.superlu is not None:
            self.superlu.preconditioner = options.preconditioner
        self.call("SetMaxStep", options.max_step or 0.0)
        self.call("SetInitStep", options.first_step or 0.0)
        if not self.method.explicit and self.method.orders is not None:
            self.call("SetMaxOrd", options.max_order or self.method.orders[1])
        self.call("SetMaxNumSteps", options.max_steps)
        self._configured = options

    def _free_algebraic(self, absolute: Array) -> None:
        """Exclude algebraic variables determined by constraints from every test.

        The corrector's error reaches them divided by the step size, or through the derivatives of the constraints, and
        tests on them fail at small steps. Their effect on y is tested there, and they are solved for again wherever
        they are reported.
        """
        if self.equations.index == 2:
            absolute[self.equations.n_differential : self.equations.n] = UNTESTED

    def free(self) -> None:
        """Free all native objects now."""
        self.objects.free()


@cache
def _flag_name(family: str, flag: int) -> str:
    """SUNDIALS' name of a return code; cached, since every call allocates a string that is never freed."""
    name = getattr(load(), f"{family}GetReturnFlagName")(flag)
    return name.decode() if name else str(flag)


class _Pointer:
    """A handle and a reference to it, for functions that free through ``void **``."""

    def __init__(self, handle: int | None) -> None:
        self.cell = c_void_p(handle)
        self.reference = byref(self.cell)
