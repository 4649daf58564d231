"""Augmented and adjoint systems of a mode as smooth initial value problems, for adapters that only integrate.

``M x' = F(t, x, c)`` with ``M = diag(1, ..., 1, 0, ..., 0)`` and constants ``c``:

* `with_sensitivities`: the equations of a mode with the functionals' integrals and the derivatives of both along
  directions (SR eq. 5, 18, 25) as further states;
* `adjoint`: SR eq. 36 with the integrals of eq. 33 to 35 as further states, in backward time from the end of the
  segment. The forward solution enters as a piecewise polynomial, whose coefficients are constants.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.codegen.casadi_tools import SYMBOLIC_SOLVE, kind_for, linear_solve
from dae_hybrid.codegen.kernels import Kernel
from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.numerics.step_polynomial import COEFFICIENT_ROUNDINGS, COEFFICIENTS, Step
from dae_hybrid.port.integrator import Equations
from dae_hybrid.port.replay import PATH_ROUNDINGS
from dae_hybrid.port.segment_rules import cached


@dataclass(frozen=True, eq=False)
class SmoothSystem:
    """``M x' = F(t, x, c)``, the differential rows first.

    `flow` maps (t, x, c) to F, dense (n). `kept` is a cache for adapters, by keys of their own.
    """

    n: int
    n_differential: int
    n_constants: int
    flow: ca.Function
    kept: dict[Any, Any] = field(default_factory=dict, repr=False, kw_only=True)

    @cached_property
    def jacobian(self) -> ca.Function:
        """(t, x, c) -> F_x, dense (n, n)."""
        t, x, c = _symbols(kind_for([self.flow]), 1, self.n, self.n_constants)
        return ca.Function("jacobian", [t, x, c], [ca.densify(ca.jacobian(self.flow(t, x, c), x))])

    @cached_property
    def kernel(self) -> Kernel:
        """`flow` as a kernel."""
        return Kernel(self.flow)

    @cached_property
    def jacobian_kernel(self) -> Kernel:
        """`jacobian` as a kernel."""
        return Kernel(self.jacobian, [0])


@dataclass(frozen=True, eq=False)
class SensitivitySystem(SmoothSystem):
    """State (y, q, S_1, ..., S_d, z): q the integrals, S_i the derivatives of (y, q); constants (m, p, dm, dp).

    `outputs` maps (t, x, c) to (y, z) and its derivatives (d, n), flat.
    """

    outputs: Kernel
    width: int  # of (y, q)
    n_integrals: int

    def pack(self, x: Array, integrals: Array, sensitivities: Array | None, of_integrals: Array | None) -> Array:
        """Return the state from x = (y, z), q and their derivatives (d, n), (d, k)."""
        ny = x.size - (self.n - self.n_differential)
        q = self.width - ny
        rows = [x[:ny], integrals[:q]]
        if sensitivities is not None and of_integrals is not None:
            for s, of_q in zip(sensitivities, of_integrals, strict=True):
                rows += [s[:ny], of_q[:q]]
        return np.concatenate([*rows, x[ny:]])

    def variables(self, states: Array) -> Array:
        """Return x = (y, z) from states (..., n)."""
        ny = self.width - self.n_integrals
        return np.concatenate((states[..., :ny], states[..., self.n_differential :]), axis=-1)

    def integrals(self, state: Array) -> tuple[Array, Array]:
        """Return q and its derivatives (d, n_integrals)."""
        rows = state[: self.n_differential].reshape(-1, self.width)[:, self.width - self.n_integrals :]
        return rows[0].copy(), rows[1:].copy()


def _symbols(kind: Any, *sizes: int) -> list[Any]:
    return [kind.sym(f"s{i}", size) for i, size in enumerate(sizes)]


def _kind(e: Equations) -> Any:
    """Return SX if the functions and the size of the linear systems allow it, otherwise MX."""
    small = e.n - e.n_differential <= SYMBOLIC_SOLVE
    return kind_for([f.function for f in e.functions.values()][:1]) if small else ca.MX


def with_sensitivities(e: Equations, directions: int) -> SensitivitySystem:
    """Return the equations with the functionals' integrals and derivatives along a number of directions."""
    return cached(e, ("sensitivities", directions), lambda: _with_sensitivities(e, directions))


def _with_sensitivities(e: Equations, d: int) -> SensitivitySystem:
    kind, ny, nz = _kind(e), e.n_differential, e.n - e.n_differential
    nq = e.functionals.size if e.integrates else 0
    width, nm, n_p = ny + nq, e.n_memory, e.n_parameters
    state_size = width * (1 + d) + nz
    t, state, c = _symbols(kind, 1, state_size, (nm + n_p) * (1 + d))
    split = np.cumsum([0, nm, n_p, d * nm, d * n_p]).tolist()
    m, p, dm, dp = (c[a:b, :] for a, b in pairwise(split))
    y, z = state[:ny, :], state[width * (1 + d) :, :]
    x = ca.vertcat(y, z)
    point = [t, x, m, p]
    equations, g = e.functions["flow"].function(*point)
    rows = [equations[:ny, :], g[:nq, :]]
    sensitivities = []
    if d:
        f_x, f_p, f_m, g_x, g_p, g_m = e.functions["linearised"].function(*point)[2:]
        dm, dp = ca.reshape(dm, nm, d), ca.reshape(dp, n_p, d)
        s_y = ca.horzcat(*(state[width * (1 + i) : width * (1 + i) + ny, :] for i in range(d)))
        by_constants = f_p @ dp + f_m @ dm
        s_z = -linear_solve(f_x[ny:, ny:], f_x[ny:, :ny] @ s_y + by_constants[ny:, :]) if nz else kind(0, d)
        s = ca.vertcat(s_y, s_z)
        ds = f_x[:ny, :] @ s + by_constants[:ny, :]
        dq = (g_x.T @ s + g_p.T @ dp + g_m.T @ dm)[:nq, :]
        for i in range(d):
            rows += [ds[:, i], dq[:, i]]
            sensitivities.append(s[:, i])
    flow = ca.Function("flow", [t, state, c], [ca.densify(ca.vertcat(*rows, equations[ny:, :]))])
    outputs = ca.Function("outputs", [t, state, c], [ca.densify(ca.vertcat(x, *sensitivities))])
    return SensitivitySystem(
        n=state_size, n_differential=state_size - nz, n_constants=c.numel(), flow=flow, outputs=Kernel(outputs),
        width=width, n_integrals=nq,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class AdjointSystem(SmoothSystem):
    """State (L_1, ..., L_k, I_1, ..., I_k): adjoints dG/dy and their integrals for parameters and memory.

    Time runs from zero at the end t1 of the segment back to its start; constants (m, p, t1, pieces).
    """

    pieces: int

    def constants(self, m: Array, p: Array, t1: float, steps: list[Step]) -> Array:
        """Return the constants of a segment with these steps."""
        n = steps[0].coefficients.shape[1]
        starts = np.full(self.pieces + 1, np.inf)
        starts[: len(steps)] = [s.t0 for s in steps]
        table = np.zeros((self.pieces, 2 + COEFFICIENTS * n))
        for row, s in zip(table, steps, strict=False):
            row[0], row[1], row[2:] = s.middle, 2.0 / (s.t1 - s.t0), s.coefficients.ravel()
        return np.concatenate((m, p, [t1], starts, table.ravel()))


def adjoint(e: Equations, components: tuple[int, ...], wrt: tuple[int, ...], steps: int) -> AdjointSystem:
    """Return the adjoint of the functional components, for a solution with a number of steps."""
    pieces = 1 << max(3, (steps - 1).bit_length())
    return cached(e, ("adjoint", components, wrt, pieces), lambda: _adjoint(e, components, wrt, pieces))


def _adjoint(e: Equations, components: tuple[int, ...], wrt: tuple[int, ...], pieces: int) -> AdjointSystem:
    n, ny, nm, n_p, k = e.n, e.n_differential, e.n_memory, e.n_parameters, len(components)
    count, width = len(wrt) + nm, 2 + COEFFICIENTS * n
    at_point = cached(e, ("adjoint rates", components, wrt), lambda: _adjoint_rates(e, components, wrt))
    back, state, c = _symbols(ca.MX, 1, k * (ny + count), nm + n_p + 1 + pieces + 1 + pieces * width)
    split = np.cumsum([0, nm, n_p, 1, pieces + 1, pieces * width]).tolist()
    m, p, t1, starts, table = (c[a:b, :] for a, b in pairwise(split))
    t = t1 - back
    column = ca.MX.get_nz(table, False, ca.low(starts, t) * width + ca.DM(range(width)))
    s = (t - column[0]) * column[1]
    coefficients = ca.reshape(column[2:, :], n, COEFFICIENTS)
    guess = coefficients[:, -1]
    for i in range(COEFFICIENTS - 2, -1, -1):
        guess = guess * s + coefficients[:, i]
    sizes = ca.fabs(coefficients)
    slopes = column[1] * sizes @ ca.DM(range(COEFFICIENTS))
    rounding = EPS * (COEFFICIENT_ROUNDINGS * ca.sum2(sizes) + PATH_ROUNDINGS * ca.fabs(t) * slopes)
    guess = guess * ca.logic_or(guess > 0, guess < -rounding)  # see `PATH_ROUNDINGS`
    x = guess
    if n > ny or e.constrained:
        x = e.functions["complete"].function(t, guess, m, p)[0]
    flow = ca.Function("flow", [back, state, c], [ca.densify(at_point(t, x, state[: k * ny, :], m, p))])
    return AdjointSystem(n=state.numel(), n_differential=state.numel(), n_constants=c.numel(), flow=flow, pieces=pieces)


def _adjoint_rates(e: Equations, components: tuple[int, ...], wrt: tuple[int, ...]) -> ca.Function:
    """Return (t, x, L (k ny), m, p) -> rates of (L, I) in backward time, with mu eliminated (SR eq. 36)."""
    kind, n, ny, k = _kind(e), e.n, e.n_differential, len(components)
    t, x, flat, m, p = _symbols(kind, 1, n, k * ny, e.n_memory, e.n_parameters)
    f_x, f_p, f_m, g_x, g_p, g_m = e.functions["linearised"].function(t, x, m, p)[2:]
    chosen = list(components)
    g_x, g_p, g_m = g_x[:, chosen], g_p[list(wrt), chosen], g_m[:, chosen]
    lam = ca.reshape(flat, ny, k)
    if n > ny:
        right = f_x[:ny, ny:].T @ lam + g_x[ny:, :]
        lam = ca.vertcat(lam, -linear_solve(f_x[ny:, ny:].T, right))
    rates = f_x[:, :ny].T @ lam + g_x[:ny, :]
    integrals = ca.vertcat(f_p[:, list(wrt)].T @ lam + g_p, f_m.T @ lam + g_m)
    value = ca.densify(ca.vertcat(ca.vec(rates), ca.vec(integrals)))
    return ca.Function("rates", [t, x, flat, m, p], [value])
