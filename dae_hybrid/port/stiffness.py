"""How fast the fastest decay of explicit equations is, for ``method="auto"``."""

from __future__ import annotations

import math
from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.codegen.casadi_tools import kind_for
from dae_hybrid.codegen.kernels import Kernel, densified
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.matrices import LARGE, Matrix, entries, identity, sign_of_determinant
from dae_hybrid.port.integrator import Equations
from dae_hybrid.port.segment_rules import kept, kernel

#: above this size a bound replaces the eigenvalues
EIGENVALUES = 30
#: ``method="auto"`` takes a method for non-stiff equations where fewer than this many of the fastest decay times are
#: left,
DECAYS = 500.0
#: and looks again after so many explicit steps, twice as many and so on, up to so many
LOOK, MOST = 100, 1000
#: a segment is no longer than so many times the time to its event, by the rates of its guards, of up to so many
EVENTS_AHEAD, FEW_GUARDS = 10.0, 64
#: of the state, by which it moves in trials of a first step; and the order of the errors that choose it
SHARE, ACCURATE = 1e-2, 8
#: up to so many entries of a matrix Python's own sums are faster than NumPy's
FEW = 25


def state_jacobian(equations: Equations, t: float, x: Array, m: Array, p: Array) -> Array:
    """F_x, dense."""
    function = equations.functions["jacobian"].function
    kernel: Kernel = kept(equations, "dense jacobian", lambda: Kernel(densified(function, outputs=1), [0]))
    jacobian: Array = kernel(t, x, m, p)[0]
    return jacobian


def determinant_sign(equations: Equations, t: float, x: Array, m: Array, p: Array) -> float:
    """Sign of the determinant of the algebraic equations by the algebraic variables; 0 where it has none."""
    n, size = equations.n_differential, equations.n
    if size - n <= LARGE:
        return float(np.linalg.slogdet(state_jacobian(equations, t, x, m, p)[n:, n:])[0])
    kernel: Kernel = kept(equations, "algebraic jacobian", lambda: Kernel(_algebraic_jacobian(equations), [0]))
    return sign_of_determinant(kernel(t, x, m, p)[0])


def _algebraic_jacobian(equations: Equations) -> ca.Function:
    """The derivative of the algebraic equations by the algebraic variables, and nothing else."""
    function, n = equations.functions["jacobian"].function, equations.n_differential
    kind: Any = kind_for([function])
    point = [kind.sym(name, function.size1_in(i)) for i, name in enumerate("txmp")]
    return ca.Function("algebraic_jacobian", point, [function.call(point, True, False)[0][n:, n:]])


def reduced_jacobian(jacobian: Array, n: int) -> Array:
    """That of the first n equations, the others solved for the states behind; LinAlgError where that cannot be."""
    if n == len(jacobian):
        return jacobian
    return np.asarray(jacobian[:n, :n] - jacobian[:n, n:] @ np.linalg.solve(jacobian[n:, n:], jacobian[n:, :n]))


def is_stiff(equations: Equations, t: float, x: Array, m: Array, p: Array, t_stop: float) -> bool:
    """Whether ``method="auto"`` takes a method for stiff equations from t to t_stop, or to events long before."""
    return stiff_rate(equations, t, x, m, p, t_stop) > 0


def stiff_rate(equations: Equations, t: float, x: Array, m: Array, p: Array, t_stop: float) -> float:
    """The rate of the fastest decay where there is as much left to decay as for `is_stiff`, else 0."""
    if equations.n > LARGE:
        rate = decay_rate(equations, t, x, m, p)
    else:
        jacobian = state_jacobian(equations, t, x, m, p)
        if not equations.implicit and norm_bound(jacobian) * (t_stop - t) <= DECAYS:  # without the eigenvalues
            return 0.0
        rate = _decay_rate(equations, jacobian)
    return rate if rate * _horizon(equations, t, x, m, p, t_stop) > DECAYS else 0.0


def accurate_step(equations: Equations, t: float, x: Array, m: Array, p: Array, allowed: Array, span: float) -> float:
    """A step within which explicit equations change by no more than high orders resolve, by x' and x''.

    That of Hairer, Norsett and Wanner, Solving ordinary differential equations I, II.4; `allowed` are the tolerances of
    x, and `span` is the time that the equations are integrated over.
    """
    flow = kernel(equations, "reduced" if equations.implicit else "flow")
    rate = flow(t, x, m, p)[0]
    sizes = [float(np.abs(v / allowed).max(initial=0.0)) for v in (x, rate)]
    probe = SHARE * sizes[0] / sizes[1] if min(sizes) > 0 else 0.0
    probe = min(probe, span) or SHARE**3 * span
    with np.errstate(all="ignore"):
        bend = flow(t + probe, x + probe * rate, m, p)[0] - rate
        largest = max(sizes[1], float(np.abs(bend / allowed).max(initial=0.0)) / probe)
        return float((SHARE / largest) ** (1 / ACCURATE)) if largest > 0 else np.inf


def _horizon(e: Equations, t: float, x: Array, m: Array, p: Array, t_stop: float) -> float:
    """The time to look ahead for: EVENTS_AHEAD times that to the next event by the guards' rates, or to t_stop."""
    n = e.n_guards - e.n_singularities
    if (e.implicit and not e.reducible) or not 0 < n <= FEW_GUARDS:
        return t_stop - t
    h, rate = kernel(e, "guards")(t, x, m, p)[0][:n], kernel(e, "rates")(t, x, m, p)[0][:n]
    with np.errstate(invalid="ignore", over="ignore"):
        nearing = h * rate < 0
        return min(t_stop - t, EVENTS_AHEAD * float(np.min(-h[nearing] / rate[nearing], initial=np.inf)))


def decay_rate(equations: Equations, t: float, x: Array, m: Array, p: Array) -> float:
    """Largest -Re of the eigenvalues of F_x (above 30 states: the smaller of its 1- and infinity-norm).

    Of the equations for y, the algebraic variables solved for. Without a finite Jacobian explicit equations count as
    not stiff, because methods for stiff ones need it; others have no choice. Large equations with algebraic variables
    count as stiff: to solve for them would take a matrix of all states.
    """
    if equations.n > LARGE:
        return np.inf if equations.implicit else norm_bound(_sparse_jacobian(equations, t, x, m, p))
    return _decay_rate(equations, state_jacobian(equations, t, x, m, p))


def _decay_rate(equations: Equations, jacobian: Array) -> float:
    if not np.all(np.isfinite(jacobian)):
        return np.inf if equations.implicit else 0.0
    ny = equations.n_differential
    if equations.implicit:
        try:
            jacobian = reduced_jacobian(jacobian, ny)
        except np.linalg.LinAlgError:
            return np.inf
    if ny == 2:  # without a call of LAPACK
        return _fastest_of_two(*jacobian.ravel().tolist())
    if ny > EIGENVALUES:
        return norm_bound(jacobian)
    return max(0.0, float(-np.linalg.eigvals(jacobian).real.min(initial=0.0)))


def _fastest_of_two(a: float, b: float, c: float, d: float) -> float:
    """Largest -Re of the eigenvalues of [[a, b], [c, d]]; 0 where they are not finite or do not decay."""
    scale = max(map(abs, (a, b, c, d)))
    if not 0 < scale < math.inf:
        return 0.0
    half, gap = (a / 2 + d / 2) / scale, (a / 2 - d / 2) / scale
    square = gap * gap + (b / scale) * (c / scale)
    rate = -half + math.sqrt(square) if square > 0 else -half
    return max(0.0, rate * scale)


def _sparse_jacobian(equations: Equations, t: float, x: Array, m: Array, p: Array) -> Matrix:
    """F_x as it is stored; all zero where it is not finite."""
    function = equations.functions["jacobian"].function
    kernel: Kernel = kept(equations, "sparse jacobian", lambda: Kernel(function, range(2)))
    jacobian = kernel(t, x, m, p)[0]
    return jacobian if np.all(np.isfinite(entries(jacobian))) else 0.0 * identity(equations.n)


def norm_bound(jacobian: Matrix) -> float:
    """The smaller of the 1- and the infinity-norm, which no eigenvalue exceeds."""
    sizes = abs(jacobian)
    if isinstance(jacobian, np.ndarray) and jacobian.size <= FEW:
        rows = sizes.tolist()
        return min(max(map(sum, rows), default=0.0), max(map(sum, zip(*rows, strict=True)), default=0.0))
    return float(min(sizes.sum(axis=0).max(), sizes.sum(axis=1).max())) if sizes.shape[0] else 0.0
