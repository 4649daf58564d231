"""The linearisation of a transition, forward and transposed.

With ``w = (y, m)``, the differential state and the memory, a transition is ``h(w-, p, t) = 0`` for the
event time and ``w+ = R(w-, p, t)``. Total derivatives run through the algebraic equations on both
sides by the implicit function theorem. Then (SR eq. 6 and 28, solved; tau = dt/dp, S = dw/dp)

    D   = h_w wdot- + h_t                                              SR eq. 4
    tau = -(h_w S- + h_p) / D                                          SR eq. 6b, 27
    S+  = R_w (S- + wdot- tau) + R_p + R_t tau - wdot+ tau             SR eq. 6c
    dG  = (g- - g+) tau                                                SR eq. 8

and its transpose, with L = dG/dw,

    c   = L+ . (R_w wdot- + R_t - wdot+) + g- - g+
    L-  = R_w^T L+ - h_w^T c / D,      dG/dp += R_p^T L+ - h_p^T c / D

`TransitionLinearisation` holds these quantities and applies the map in both directions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import csc_array

from dae_hybrid.errors import ConsistencyError
from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.numerics.matrices import MAX_DENSE_ROWS, Matrix, hstack, identity
from dae_hybrid.numerics.operators import Operator, solution
from dae_hybrid.port.failure_messages import refuse_not_finite

if TYPE_CHECKING:
    from dae_hybrid.port.records import EventRecord
    from dae_hybrid.system.system import ModeSystem

#: a drift within this many roundings of its terms is zero
DRIFT_ROUNDINGS = 64.0


def chain(mode: ModeSystem, t: float, x: Array, m: Array, p: Array) -> Matrix:
    """Derivative of u = (y, z, m, p, t) by (w, p, t) = (y, m, p, t) along the mode's algebraic equations.

    Shape (n + n_memory + n_parameters + 1, n_differential + n_memory + n_parameters + 1).
    """
    ny, nz = mode.differential.size, mode.algebraic.size
    size = ny + nz + m.size + p.size + 1
    if nz == 0:
        return identity(size)
    by_u = mode.kernels["closure_by_u"](t, x, m, p)[0]
    if nz > MAX_DENSE_ROWS:
        return _chain_of_many(mode, t, by_u)
    kept = np.r_[0:ny, ny + nz : size]
    result = np.zeros((size, size - nz))
    result[kept, np.arange(kept.size)] = 1.0
    try:
        result[ny : ny + nz] = -np.linalg.solve(by_u[:, ny : ny + nz], by_u[:, kept])
    except np.linalg.LinAlgError:
        raise _not_differentiable(mode, t) from None
    refuse_not_finite("an equation for algebraic variables", (result,), mode=mode.name, time=t)
    return result


def _not_differentiable(mode: ModeSystem, t: float) -> ConsistencyError:
    return ConsistencyError(
        "k_z is singular: the algebraic variables are not differentiable here.",
        mode=mode.name,
        time=t,
        variables=mode.algebraic.names,
    )


def _chain_of_many(mode: ModeSystem, t: float, by_u: Matrix) -> Operator:
    """The chain for many algebraic variables, as an operator."""
    ny, nz = mode.differential.size, mode.algebraic.size
    refuse_not_finite("an equation for algebraic variables", (by_u,), mode=mode.name, time=t)
    end, by_u = ny + nz, csc_array(by_u)
    try:
        solved = solution(by_u[:, ny:end], hstack((by_u[:, :ny], by_u[:, end:])))
    except np.linalg.LinAlgError:
        raise _not_differentiable(mode, t) from None
    return Operator(
        (by_u.shape[1], by_u.shape[1] - nz),
        lambda v: np.vstack((v[:ny], solved @ v, v[ny:])),
        lambda v: np.hstack((v[:, :ny], v[:, end:])) + v[:, ny:end] @ solved,
    )


@dataclass(frozen=True)
class TransitionLinearisation:
    """A transition linearised at one firing; see the module docstring for the symbols.

    Shapes: h_w (n_w-), h_p (n_p), R_w (n_w+, n_w-), R_p (n_w+, n_p), R_t (n_w+), flow_minus (n_w-),
    flow_plus (n_w+), integrand_minus and integrand_plus (k). `cost` (k, n_w- + n_p + 1) is the derivative of the
    event's costs by (w-, p, t), None if it has none.
    """

    h_w: Array
    h_p: Array
    rate: float  # D
    R_w: Matrix
    R_p: Matrix
    R_t: Array
    flow_minus: Array
    flow_plus: Array
    integrand_minus: Array
    integrand_plus: Array
    follows: bool = False  # the event time is that of the preceding event, not of the guard
    cost: Array | None = None

    def select(self, components: list[int]) -> TransitionLinearisation:
        """The same linearisation for selected components of the functionals."""
        return replace(
            self,
            integrand_minus=self.integrand_minus[components],
            integrand_plus=self.integrand_plus[components],
            cost=None if self.cost is None else self.cost[components],
        )

    def refuse_not_finite(self, event: EventRecord) -> None:
        """Refuse non-finite entries, including those of the selected functionals."""
        given = (self.h_w, self.h_p, self.R_w, self.R_p, self.R_t, self.flow_minus, self.flow_plus)
        what = f"transition '{event.transition}'"
        of: dict[str, Any] = {"transition": event.transition, "time": event.time}
        refuse_not_finite(what, given, mode=event.source, **of)
        integrands = (self.integrand_minus, self.integrand_plus)
        refuse_not_finite(f"an integrand at {what}", integrands, mode=event.target or event.source, **of)
        if self.cost is not None:
            refuse_not_finite(f"a cost of {what}", (self.cost,), mode=event.source, **of)

    @property
    def time_shift(self) -> Array:
        """R_w wdot- + R_t - wdot+: derivative of the post-transition state by the event time."""
        return self.R_w @ self.flow_minus + self.R_t - self.flow_plus

    def forward(self, before: Array, directions: Array, earlier: Array | None = None) -> tuple[Array, Array, Array]:
        """Map dw- (n_w-, d) and dp (n_p, d) to tau (d,), dw+ (n_w+, d) and dG (k, d).

        `earlier` is tau of the preceding event at the same instant; zero if None.
        """
        if self.follows:
            tau = np.zeros(directions.shape[1]) if earlier is None else earlier
        else:
            tau = self._time(before, directions)
        after = self.R_w @ before + self.R_p @ directions + self.time_shift[:, None] * tau
        gained = (self.integrand_minus - self.integrand_plus)[:, None] * tau
        if self.cost is not None:
            nw = before.shape[0]
            gained = gained + self.cost[:, :nw] @ before + self.cost[:, nw:-1] @ directions
            gained = gained + self._cost_rate[:, None] * tau
        return tau, after, gained

    @property
    def _cost_rate(self) -> Array:
        """Derivative of the event's costs by the event time."""
        if self.cost is None:
            return np.zeros_like(self.integrand_minus)
        return np.asarray(self.cost[:, : self.flow_minus.size] @ self.flow_minus + self.cost[:, -1])

    def _time(self, before: Array, directions: Array) -> Array:
        """dt/dp along the directions (SR eq. 27)."""
        return np.asarray((self.h_w @ before + self.h_p @ directions) / -self.rate)

    def backward(self, after: Array, time_cotangent: Array) -> tuple[Array, Array, Array]:
        """Map L+ = dG/dw+ (k, n_w+) to L- (k, n_w-), its part of dG/dp (k, n_p), and dG/dt of the preceding event.

        `time_cotangent` (k,) is dG/dt of whatever depends on the time of this event: a terminal value, or a following
        event.
        """
        c = after @ self.time_shift + self.integrand_minus - self.integrand_plus + time_cotangent
        before, share = after @ self.R_w, after @ self.R_p
        if self.cost is not None:
            nw = before.shape[1]
            c, before, share = c + self._cost_rate, before + self.cost[:, :nw], share + self.cost[:, nw:-1]
        sizes = (
            abs(after) @ self._drift_size + abs(self.integrand_minus) + abs(self.integrand_plus) + abs(time_cotangent)
        )
        c[abs(c) <= DRIFT_ROUNDINGS * EPS * sizes] = 0.0  # rounding only: rates and integrand are continuous
        if self.follows:
            return before, share, c
        if c.any():
            weight = (c / self.rate)[:, None]
            before, share = before - weight * self.h_w, share - weight * self.h_p
        return before, share, np.zeros_like(c)

    @property
    def _drift_size(self) -> Array:
        """Sum of the magnitudes of the drift's terms."""
        return np.asarray(abs(self.R_w) @ abs(self.flow_minus) + abs(self.R_t) + abs(self.flow_plus))
