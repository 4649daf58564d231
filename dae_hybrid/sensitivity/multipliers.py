"""Adjoint variables at a point: consistent multipliers, and the index-2 adjoint of Serban and Recuero."""

from __future__ import annotations

import math

import numpy as np

from dae_hybrid.errors import ConsistencyError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.matrices import solve
from dae_hybrid.system.system import ModeSystem


def round_relative(values: Array, relative: float) -> Array:
    """Round values to a relative precision, a power of two.

    Step size decisions depend on the last bit of the start values. With values rounded well below the tolerance, two
    sweeps that agree to rounding before a segment agree bit by bit after it.
    """
    factor = 2.0 ** math.floor(-math.log2(max(relative, 2.0**-52)))
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.rint(mantissa * factor) / factor, exponent))


def consistent_adjoint(
    mode: ModeSystem, t: float, x: Array, m: Array, adjoint: Array, p: Array, components: tuple[int, ...]
) -> tuple[Array, Array]:
    """Return (lambda, mu) and their rates at a point from lambda: SR eq. 36b for mu, 36a for lambda'."""
    ny = mode.differential.size
    f_x, g_x = mode.kernels["adjoint_point"](t, x, m, p)
    g_x = g_x[list(components)]
    full = adjoint
    if mode.algebraic.size:
        right = -(adjoint @ f_x[:ny, ny:] + g_x[:, ny:])
        try:
            mu = solve(f_x[ny:, ny:].T, right.T).T
        except np.linalg.LinAlgError:
            raise ConsistencyError("k_z is singular.", mode=mode.name, time=t) from None
        full = np.hstack((adjoint, mu))
    rates = np.zeros_like(full)
    rates[:, :ny] = -(full @ f_x + g_x)[:, :ny]
    return full, rates


def stated_adjoint(
    mode: ModeSystem, t: float, x: Array, m: Array, adjoint: Array, p: Array, components: tuple[int, ...]
) -> tuple[Array, Array, Array]:
    """Return (lambda, mu) of SR eq. 20, their rates (zero for mu) and zeta from any admissible dG/dy.

    lambda = dG/dy + k_y^T zeta satisfies eq. 20b; zeta^T (k_p, k_m) compensates for the difference. See
    `ModeFunctions`.
    """
    ny, full, rates, zetas = mode.differential.size, [], [], []
    for row, component in zip(adjoint, components, strict=True):
        weights = np.zeros(mode.equations.functionals.size)
        weights[component] = 1.0
        lam, mu, zeta, rate = mode.kernels["multipliers"](t, x, m, p, row, weights)
        full.append(np.concatenate((lam, mu)))
        rates.append(np.concatenate((rate, np.zeros(x.size - ny))))
        zetas.append(zeta)
    return np.array(full), np.array(rates), np.array(zetas)
