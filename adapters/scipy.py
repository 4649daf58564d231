"""Adapter of SciPy's solvers: in Python, independent of SUNDIALS.

The steppers of `scipy.integrate.solve_ivp` integrate ordinary differential equations; algebraic variables are solved
for within the right-hand side. LSODA is excluded: its Fortran state is shared by all solvers of a process.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from scipy.integrate import BDF, DOP853, RK45, OdeSolver, Radau

from dae_hybrid.errors import StepSizeError, UnsupportedError
from dae_hybrid.method import AUTO, Method
from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.options import Options
from dae_hybrid.port.failure_messages import SHORT_STEPS
from dae_hybrid.port.integrator import Capabilities
from dae_hybrid.steppers.initial_value import InitialValueProblem, SteppedIntegrator

METHODS: dict[str, type[OdeSolver]] = {"dop853": DOP853, "rk45": RK45, "radau": Radau, "bdf": BDF}
#: implicit methods
IMPLICIT = (Radau, BDF)
#: smallest relative tolerance accepted by SciPy
SMALLEST_RTOL = 100 * EPS


class SciPyIntegrator(SteppedIntegrator):
    """The steppers of `scipy.integrate.solve_ivp`.

    ``method="auto"`` selects DOP853 (Dormand and Prince 8(5,3)) for nonstiff modes and Radau (IIA, order 5) for stiff
    ones.
    """

    name = "scipy"
    capabilities: ClassVar[Capabilities] = Capabilities(
        methods=(AUTO, *(Method(name=name, implicit=kind in IMPLICIT) for name, kind in METHODS.items())),
        dense=True,
        exact_times=True,
    )
    nonstiff, stiff = "dop853", "radau"

    @classmethod
    def check(cls, options: Options) -> None:
        """See `SteppedIntegrator.check`."""
        if options.max_order is not None:
            raise UnsupportedError(
                "SciPy's solvers have no max_order.", remedy="Leave max_order out, or use adapter='sundials'."
            )
        if options.rtol < SMALLEST_RTOL:
            raise UnsupportedError(
                f"SciPy's solvers need rtol of at least {SMALLEST_RTOL:.2g}, got {options.rtol!r}.",
                remedy="Loosen rtol, or use adapter='sundials'.",
            )

    def start(self, problem: InitialValueProblem) -> _OdeSolverStepper:
        """See `SteppedIntegrator.start`."""
        return _OdeSolverStepper(problem)


class _OdeSolverStepper:
    """A solver of SciPy."""

    at_root = False

    def __init__(self, problem: InitialValueProblem) -> None:
        kind = METHODS[problem.method]
        more: dict[str, Any] = {"jac": problem.jacobian} if kind in IMPLICIT else {}
        first = None if problem.first_step is None else min(problem.first_step, problem.t_stop - problem.t0)
        with np.errstate(all="ignore"):
            self._solver = kind(
                problem.rhs, problem.t0, problem.x0, problem.t_stop, rtol=problem.rtol, atol=problem.absolute,
                max_step=problem.max_step, first_step=first, **more,
            )  # fmt: skip
        self._name = problem.name
        self.t: float = problem.t0
        self.x: Array = problem.x0

    def step(self) -> None:
        """See `Stepper.step`."""
        try:
            with np.errstate(all="ignore"):  # non-finite values are checked afterwards
                message = self._solver.step()
        except ValueError as error:  # of the factorisation of a matrix that is not finite
            raise StepSizeError(
                f"A step failed ({error}).", mode=self._name, time=self.t, remedy=SHORT_STEPS
            ) from error
        if self._solver.status == "failed":
            raise StepSizeError(
                f"The step size became too small ({message})",
                mode=self._name,
                time=self.t,
                remedy=SHORT_STEPS,
            )
        self.t, self.x = float(self._solver.t), self._solver.y
        self._dense: Any = None

    def at(self, t: Array) -> Array:
        """See `Stepper.at`."""
        with np.errstate(all="ignore"):
            if self._dense is None:
                self._dense = self._solver.dense_output()
            values: Array = self._dense(t).T
        return values
