"""Interface of adapters that only integrate: the initial value problem and the stepper."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from dae_hybrid.numerics.arrays import Array
from dae_hybrid.options import Options
from dae_hybrid.port.integrator import Capabilities
from dae_hybrid.port.stiffness import STIFFNESS_CHECK_STEPS, reduced_jacobian
from dae_hybrid.steppers.augmented import SmoothSystem

#: Newton's iteration for algebraic variables inside a right-hand side: it has converged at a correction of this share
#: of the tolerance, and failed after this number of iterations
CONVERGED_SHARE, MAX_CORRECTIONS = 1e-2, 12
#: largest ratio of successive corrections: above it the step is too long to identify the branch of the solution
MAX_CONTRACTION = 0.25


@dataclass(eq=False)
class InitialValueProblem:
    """``M x' = F(t, x)`` from (t0, x0), to be advanced to `t_stop` and not beyond.

    Attributes
    ----------
    n : int
        Number of states.
    n_differential : int
        The first rows have ``M = 1``, the others are algebraic, ``0 = F_i``. An adapter that does not declare
        `algebraic` sees differential rows only: `rhs` solves for the algebraic variables.
    t0, t_stop : float
        Start and end; ``t_stop > t0``.
    x0, xdot0 : ndarray, shape (n,)
        Consistent start values and rates (zero for unknown rates of algebraic states).
    rtol : float
        Relative tolerance.
    absolute : ndarray, shape (n,)
        Absolute tolerances.
    method : str
        One of the adapter's methods.
    max_step : float
        Longest step, infinite if unlimited.
    first_step : float or None
        Length of the first step, None if the solver chooses.
    max_order : int or None
        Highest order, None if the solver chooses.
    suppress_algebraic : bool
        Whether to leave algebraic states out of the error test.
    guards : callable or None
        ``guards(t, x)``, shape (n_guards,), for adapters that declare `roots`; a step ends at a zero of any guard.
    system, constants
        F as a CasADi function (t, x, c) and its constants c, for adapters that take expressions; `system` has all
        rows, including the algebraic ones. The same `system` is used with different constants.
    name : str
        Name of the mode, for messages.
    counts : dict of int
        Evaluations so far: ``nfev``, ``njev`` and, of those, ``not_finite``.
    """

    system: SmoothSystem
    constants: Array
    t0: float
    t_stop: float
    x0: Array
    xdot0: Array
    rtol: float
    absolute: Array
    method: str
    max_step: float = np.inf
    first_step: float | None = None
    max_order: int | None = None
    suppress_algebraic: bool = False
    guards: Callable[[float, Array], Array] | None = None
    name: str = ""
    counts: dict[str, int] = field(default_factory=lambda: {"nfev": 0, "njev": 0, "not_finite": 0})

    @property
    def n(self) -> int:
        """Number of states."""
        return self.x0.size

    @property
    def n_differential(self) -> int:
        """Number of differential states."""
        return min(self.system.n_differential, self.n)

    def rhs(self, t: float, x: Array) -> Array:
        """Return F(t, x), shape (n,); not finite if the equations are not finite or cannot be solved."""
        self.counts["nfev"] += 1
        values: Array = self.system.kernel(t, self.full_state(t, x), self.constants)[0][: self.n]
        if not np.all(np.isfinite(values)):
            self.counts["not_finite"] += 1
        return values

    def jacobian(self, t: float, x: Array) -> Array:
        """Return dF/dx, shape (n, n)."""
        self.counts["njev"] += 1
        n, full = self.n, self.full_state(t, x)
        matrix = self.system.jacobian_kernel(t, full, self.constants)[0]
        if not np.all(np.isfinite(matrix)):
            return matrix[:n, :n]
        try:
            return reduced_jacobian(matrix, n)
        except np.linalg.LinAlgError:
            return np.full((n, n), np.nan)

    # -- algebraic states of a reduced problem -----------------------------------------------------------

    def reduced(self) -> InitialValueProblem:
        """Return the problem in its differential states alone."""
        n = self.system.n_differential
        again = InitialValueProblem(
            self.system, self.constants, self.t0, self.t_stop, self.x0[:n], self.xdot0[:n], self.rtol,
            self.absolute[:n], self.method, self.max_step, self.first_step, self.max_order, False, None, self.name,
        )  # fmt: skip
        again._algebraic_absolute = self.absolute[n:]
        again.set_guess(self.x0)
        return again

    def set_guess(self, whole: Array) -> None:
        """Set the initial guess of Newton's iteration for the algebraic states to those of a complete state."""
        self._algebraic, self._line = whole[self.n :], None

    def set_guess_between(self, t0: float, start: Array, t1: float, end: Array) -> None:
        """Set the initial guess within an interval by linear interpolation between two complete states."""
        self._line = t0, start[self.n :], t1, end[self.n :]

    def _guess(self, t: float) -> Array:
        if self._line is None or not self._line[0] <= t <= self._line[2]:
            return self._algebraic
        t0, start, t1, end = self._line
        return start + (t - t0) / (t1 - t0) * (end - start)

    _algebraic: Array = field(default_factory=lambda: np.zeros(0))
    _line: tuple[float, Array, float, Array] | None = None
    _algebraic_absolute: Array = field(default_factory=lambda: np.zeros(0))

    def full_state(self, t: float, x: Array) -> Array:
        """Return all states of `system` from the states of this problem."""
        if self.n == self.system.n:
            return x
        return self._solved(t, x, self._guess(t), self._algebraic_absolute)

    def consistent(self, t: float, x: Array) -> Array:
        """Return a state with its algebraic part solved again; NaN on failure."""
        n = self.system.n_differential
        return x if n == self.n else self._solved(t, x[:n], x[n:], self.absolute[n:])

    def _converges_fast(self, t: float, x: Array, z: Array, by_z: Array, first: Array) -> bool:
        """Whether the simplified Newton correction after the first one is much smaller than the first."""
        residual = self.system.kernel(t, np.concatenate((x, z)), self.constants)[0][x.size :]
        if not np.all(np.isfinite(residual)):
            return False
        return bool(np.linalg.norm(np.linalg.solve(by_z, residual)) <= MAX_CONTRACTION * np.linalg.norm(first))

    def _solved(self, t: float, x: Array, z: Array, absolute: Array) -> Array:
        """Return (x, z) with z from the algebraic rows, by Newton's iteration."""
        n, before = x.size, np.inf
        for _ in range(MAX_CORRECTIONS):
            full = np.concatenate((x, z))
            residual = self.system.kernel(t, full, self.constants)[0][n:]
            by_z = self.system.jacobian_kernel(t, full, self.constants)[0][n:, n:]
            if not (np.all(np.isfinite(residual)) and np.all(np.isfinite(by_z))):
                break
            try:
                correction = np.linalg.solve(by_z, residual)
            except np.linalg.LinAlgError:
                break
            z = z - correction
            size = float((np.abs(correction) / (absolute + self.rtol * np.abs(z))).max(initial=0.0))
            if size <= CONVERGED_SHARE:
                return np.concatenate((x, z))
            if size > MAX_CONTRACTION * before:  # converges to another solution, or not at all
                break
            if before == np.inf and not self._converges_fast(t, x, z, by_z, correction):
                break
            before = size
        return np.concatenate((x, np.full_like(z, np.nan)))


class Stepper(Protocol):
    """Integrates an initial value problem step by step.

    Attributes
    ----------
    t : float
        Current time.
    x : ndarray, shape (n,)
        Current state.
    at_root : bool
        Whether the last step ended at a zero of a guard; always False without guards.
    """

    t: float
    x: Array
    at_root: bool

    def step(self) -> None:
        """Advance by one step, at most to `t_stop`.

        Raises
        ------
        IntegrationError
            Or a more specific subclass: `StepSizeError`, `NonFiniteError`. `t` and `x` are unchanged.
        """

    def at(self, t: Array) -> Array:
        """Return states at times within the last step, shape (len(t), n), if possible as accurate as the steps."""


class SteppedIntegrator(ABC):
    """Base of adapters that only integrate: events, output, forward and adjoint analysis come from the core.

    A subclass sets `name`, `capabilities`, `nonstiff` and `stiff` (its methods for ``method="auto"``) and implements
    `start`. The constructor may raise `AdapterError` if the solver library is missing.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]
    nonstiff: ClassVar[str]
    stiff: ClassVar[str]
    #: number of steps between stiffness checks of ``method="auto"``
    look: ClassVar[int] = STIFFNESS_CHECK_STEPS
    #: methods that replace others for adjoints, under ``method="auto"``
    for_adjoints: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def start(self, problem: InitialValueProblem) -> Stepper:
        """Start at ``(problem.t0, problem.x0)``."""

    @classmethod  # noqa: B027 - most have nothing to refuse
    def check(cls, options: Options) -> None:
        """Refuse options without a counterpart in the solver library, with an `UnsupportedError`."""
