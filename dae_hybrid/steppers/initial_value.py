"""What an adapter needs that only integrates: an initial value problem, and steps through it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from dae_hybrid.numerics.arrays import Array
from dae_hybrid.options import Options
from dae_hybrid.port.integrator import Capabilities
from dae_hybrid.port.stiffness import LOOK, reduced_jacobian
from dae_hybrid.steppers.augmented import SmoothSystem

#: Newton's iteration for algebraic variables inside a right-hand side: a correction of this share of the tolerance is
#: the last one; after so many it has failed
LAST_CORRECTION, CORRECTIONS = 1e-2, 12
#: corrections have to become smaller by this factor: else the step is too long to say which solution is to be followed
CONTRACTION = 0.25


@dataclass(eq=False)
class InitialValueProblem:
    """``M x' = F(t, x)`` from (t0, x0), to be advanced to `t_stop` and not beyond.

    Attributes
    ----------
    n : int
        Number of states.
    n_differential : int
        The first rows have ``M = 1``, the others are algebraic, ``0 = F_i``. An adapter that does not declare
        `algebraic` sees differential rows only: what the others determine is solved for within `rhs`.
    t0, t_stop : float
        Start and end; ``t_stop > t0``.
    x0, xdot0 : ndarray, shape (n,)
        Consistent start values and rates (rates of algebraic states are zero where they are not known).
    rtol : float
        Relative tolerance.
    absolute : ndarray, shape (n,)
        Absolute tolerances.
    method : str
        One of the adapter's methods.
    max_step : float
        Longest step, infinite where it is free.
    first_step : float or None
        Length of the first step, None where the solver may choose.
    max_order : int or None
        Highest order, None where the solver may choose.
    suppress_algebraic : bool
        Whether algebraic states are to be left out of the error test.
    guards : callable or None
        ``guards(t, x)``, shape (n_guards,), for adapters that declare `roots`; a step ends at a zero of any.
    system, constants
        F as a CasADi function (t, x, c) and its constants c, for adapters that take expressions; `system` has all
        rows, the algebraic ones included. The same `system` comes back with other constants.
    name : str
        The mode, for messages.
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
        """F(t, x), shape (n,); not finite where the equations are not, or cannot be solved."""
        self.counts["nfev"] += 1
        values: Array = self.system.kernel(t, self.whole(t, x), self.constants)[0][: self.n]
        if not np.all(np.isfinite(values)):
            self.counts["not_finite"] += 1
        return values

    def jacobian(self, t: float, x: Array) -> Array:
        """dF/dx, shape (n, n)."""
        self.counts["njev"] += 1
        n, full = self.n, self.whole(t, x)
        matrix = self.system.jacobian_kernel(t, full, self.constants)[0]
        if not np.all(np.isfinite(matrix)):
            return matrix[:n, :n]
        try:
            return reduced_jacobian(matrix, n)
        except np.linalg.LinAlgError:
            return np.full((n, n), np.nan)

    # -- algebraic states of a reduced problem -----------------------------------------------------------

    def reduced(self) -> InitialValueProblem:
        """The same problem in its differential states alone."""
        n = self.system.n_differential
        again = InitialValueProblem(
            self.system, self.constants, self.t0, self.t_stop, self.x0[:n], self.xdot0[:n], self.rtol,
            self.absolute[:n], self.method, self.max_step, self.first_step, self.max_order, False, None, self.name,
        )  # fmt: skip
        again._algebraic_absolute = self.absolute[n:]
        again.near(self.x0)
        return again

    def near(self, whole: Array) -> None:
        """Where Newton's iteration for the algebraic states starts from now on: at those of a whole state."""
        self._algebraic, self._line = whole[self.n :], None

    def between(self, t0: float, start: Array, t1: float, end: Array) -> None:
        """The same within an interval: on the line between two whole states."""
        self._line = t0, start[self.n :], t1, end[self.n :]

    def _guess(self, t: float) -> Array:
        if self._line is None or not self._line[0] <= t <= self._line[2]:
            return self._algebraic
        t0, start, t1, end = self._line
        return start + (t - t0) / (t1 - t0) * (end - start)

    _algebraic: Array = field(default_factory=lambda: np.zeros(0))
    _line: tuple[float, Array, float, Array] | None = None
    _algebraic_absolute: Array = field(default_factory=lambda: np.zeros(0))

    def whole(self, t: float, x: Array) -> Array:
        """All states of `system`, from the states of this problem."""
        if self.n == self.system.n:
            return x
        return self._solved(t, x, self._guess(t), self._algebraic_absolute)

    def consistent(self, t: float, x: Array) -> Array:
        """A state with its algebraic part solved for again; NaN where that fails."""
        n = self.system.n_differential
        return x if n == self.n else self._solved(t, x[:n], x[n:], self.absolute[n:])

    def _is_near(self, t: float, x: Array, z: Array, by_z: Array, first: Array) -> bool:
        """Whether the first correction led to a point where the same matrix asks for a much smaller one."""
        residual = self.system.kernel(t, np.concatenate((x, z)), self.constants)[0][x.size :]
        if not np.all(np.isfinite(residual)):
            return False
        return bool(np.linalg.norm(np.linalg.solve(by_z, residual)) <= CONTRACTION * np.linalg.norm(first))

    def _solved(self, t: float, x: Array, z: Array, absolute: Array) -> Array:
        """(x, z) with z from the algebraic rows, by Newton's iteration."""
        n, before = x.size, np.inf
        for _ in range(CORRECTIONS):
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
            if size <= LAST_CORRECTION:
                return np.concatenate((x, z))
            if size > CONTRACTION * before:  # on the way to another solution, or to none
                break
            if before == np.inf and not self._is_near(t, x, z, by_z, correction):
                break
            before = size
        return np.concatenate((x, np.full_like(z, np.nan)))


class Stepper(Protocol):
    """Goes through an initial value problem step by step.

    Attributes
    ----------
    t : float
        Where it stands.
    x : ndarray, shape (n,)
        The state there.
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
            Or a subclass that says more: `StepSizeError`, `NonFiniteError`. `t` and `x` stay where they are.
        """

    def at(self, t: Array) -> Array:
        """States at times within the last step, shape (len(t), n), as accurate as the steps where possible."""


class SteppedIntegrator(ABC):
    """Base of adapters that only integrate: events, output, forward and adjoint analysis come from the core.

    A subclass sets `name`, `capabilities`, `nonstiff` and `stiff` (its methods for ``method="auto"``) and implements
    `start`. The constructor may raise `AdapterError` where the solver library is missing.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]
    nonstiff: ClassVar[str]
    stiff: ClassVar[str]
    #: after how many steps ``method="auto"`` looks whether the equations have become stiff
    look: ClassVar[int] = LOOK
    #: methods to take in place of others for adjoints, under ``method="auto"``
    for_adjoints: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def start(self, problem: InitialValueProblem) -> Stepper:
        """Start at ``(problem.t0, problem.x0)``."""

    @classmethod  # noqa: B027 - most have nothing to refuse
    def check(cls, options: Options) -> None:
        """Refuse options that the solver library has no counterpart of, with an `UnsupportedError`."""
