"""What CVODES, IDAS and ARKODE memories share: created once for a set of equations, restarted for every segment.

The libraries have parallel interfaces; `SolverMemory` names the functions by family and the few
differences (IDAS carries x' and an identification of the algebraic rows) are spelled out here.
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
from .runge_kutta import Table

#: absolute tolerance of what takes no part in any test
UNTESTED = 1e100
#: explicit steps: errors are taken to be so many times as large as estimated (measured: a third of the failed steps of
#: ARKODE's own choice, at a tenth of the error); and the degree of the interpolant, which evaluates nothing up to 3
ERROR_BIAS, INTERPOLANT = 2.0, 3


def taken[T](idle: list[T], make: Callable[[], T]) -> T:
    """One of those that are idle, or another one; threads may take from the same pool."""
    try:
        return idle.pop()
    except IndexError:
        return make()


class SolverMemory:
    """What the forward and the adjoint memory share."""

    def __init__(self, equations: Equations, method: SundialsMethod, size: int, model: Any) -> None:
        self.equations, self.model, self.size = equations, model, size
        self.family = method.family(equations)
        self.implicit = self.family == "IDA"  # whether its solver has x' beside x
        self.prefix = self.family.removesuffix("ode").lower()  # callbacks are called cv_* and ida_*
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
        raise integration_error(
            flag,
            _flag_name(self.family, flag),
            not_finite=self.model.counters()["not_finite"] > self.not_finite,
            mode=self.equations.name,
            time=time,
        )

    not_finite = 0
    pool: list[Any] | None = None  # where it goes when a session is over; that of a runner stays with it
    _configured: Options | None = None  # what the memory has been told

    def create_explicit(self, table: Table) -> None:
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

    linear_solver = "none"  # which one there is
    superlu: Any = None  # where it is SciPy's, see `linear.SuperLU`

    def create(self, linear_solver: str, suffix: str = "") -> None:
        """Create the memory with its right-hand side and linear solver; the suffix is that of the callbacks."""
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
        """Apply the options and parameters of a run that every memory has."""
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


@cache
def _flag_name(family: str, flag: int) -> str:
    """SUNDIALS' name of a return code; kept, since every call makes a string that nobody frees."""
    name = getattr(load(), f"{family}GetReturnFlagName")(flag)
    return name.decode() if name else str(flag)


class _Pointer:
    """A handle and a reference to it, for the functions that free through ``void **``."""

    def __init__(self, handle: int | None) -> None:
        self.cell = c_void_p(handle)
        self.reference = byref(self.cell)
