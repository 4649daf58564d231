"""Stiffness test of ``method="auto"``: the fastest decay rate of the equations."""

from __future__ import annotations

import math
from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.codegen.casadi_tools import kind_for
from dae_hybrid.codegen.kernels import Kernel, densified
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.matrices import MAX_DENSE_ROWS, Matrix, entries, identity, sign_of_determinant
from dae_hybrid.port.integrator import Equations
from dae_hybrid.port.segment_rules import cached, kernel

#: above this size a norm replaces the eigenvalues
EIGENVALUES = 30
#: ``method="auto"`` takes a method for non-stiff equations if the remaining time is below this number of decay times of
#: the fastest mode,
NONSTIFF_DECAY_TIMES = 500.0
#: and checks again after this number of explicit steps, then at doubled intervals up to the second number
STIFFNESS_CHECK_STEPS, MAX_STIFFNESS_CHECK_STEPS = 100, 1000
#: the remaining time is at most this multiple of the time to the next event by the rates of the guards, if there are no
#: more guards than the second number
EVENTS_AHEAD, FEW_GUARDS = 10.0, 64
#: change of the state in the trial of a first step, as a share of it; order of the error that determines the step
TRIAL_SHARE, ACCURATE_ORDER = 1e-2, 8
#: matrix entries up to which Python's own sums are faster than NumPy's
MAX_PYTHON_ENTRIES = 25


def state_jacobian(equations: Equations, t: float, x: Array, m: Array, p: Array) -> Array:
    """Return F_x, dense."""
    function = equations.functions["jacobian"].function
    kernel: Kernel = cached(equations, "dense jacobian", lambda: Kernel(densified(function, outputs=1), [0]))
    jacobian: Array = kernel(t, x, m, p)[0]
    return jacobian


def determinant_sign(equations: Equations, t: float, x: Array, m: Array, p: Array) -> float:
    """Return the sign of the determinant of the algebraic equations by the algebraic variables; 0 if singular."""
    n, size = equations.n_differential, equations.n
    if size - n <= MAX_DENSE_ROWS:
        return float(np.linalg.slogdet(state_jacobian(equations, t, x, m, p)[n:, n:])[0])
    kernel: Kernel = cached(equations, "algebraic jacobian", lambda: Kernel(_algebraic_jacobian(equations), [0]))
    return sign_of_determinant(kernel(t, x, m, p)[0])


def _algebraic_jacobian(equations: Equations) -> ca.Function:
    """Return the derivative of the algebraic equations with respect to the algebraic variables."""
    function, n = equations.functions["jacobian"].function, equations.n_differential
    kind: Any = kind_for([function])
    point = [kind.sym(name, function.size1_in(i)) for i, name in enumerate("txmp")]
    return ca.Function("algebraic_jacobian", point, [function.call(point, True, False)[0][n:, n:]])


def reduced_jacobian(jacobian: Array, n: int) -> Array:
    """Return the Jacobian of the first n equations with the others solved for their states (Schur complement).

    Raises LinAlgError if the others are singular.
    """
    if n == len(jacobian):
        return jacobian
    return np.asarray(jacobian[:n, :n] - jacobian[:n, n:] @ np.linalg.solve(jacobian[n:, n:], jacobian[n:, :n]))


def is_stiff(equations: Equations, t: float, x: Array, m: Array, p: Array, t_stop: float) -> bool:
    """Whether ``method="auto"`` takes a method for stiff equations from t to t_stop or to a much earlier event."""
    return stiff_rate(equations, t, x, m, p, t_stop) > 0


def stiff_rate(equations: Equations, t: float, x: Array, m: Array, p: Array, t_stop: float) -> float:
    """Return the fastest decay rate if the equations are stiff as in `is_stiff`, else 0."""
    if equations.n > MAX_DENSE_ROWS:
        rate = decay_rate(equations, t, x, m, p)
    else:
        jacobian = state_jacobian(equations, t, x, m, p)
        if (
            not equations.implicit and norm_bound(jacobian) * (t_stop - t) <= NONSTIFF_DECAY_TIMES
        ):  # no eigenvalues needed
            return 0.0
        rate = _decay_rate(equations, jacobian)
    return rate if rate * _horizon(equations, t, x, m, p, t_stop) > NONSTIFF_DECAY_TIMES else 0.0


def accurate_step(equations: Equations, t: float, x: Array, m: Array, p: Array, allowed: Array, span: float) -> float:
    """Return a first step for explicit methods of high order from x' and x''.

    The rule is that of Hairer, Norsett and Wanner, Solving ordinary differential equations I, II.4; `allowed` are the
    tolerances of x, and `span` is the duration of the integration.
    """
    flow = kernel(equations, "reduced" if equations.implicit else "flow")
    rate = flow(t, x, m, p)[0]
    sizes = [float(np.abs(v / allowed).max(initial=0.0)) for v in (x, rate)]
    probe = TRIAL_SHARE * sizes[0] / sizes[1] if min(sizes) > 0 else 0.0
    probe = min(probe, span) or TRIAL_SHARE**3 * span
    with np.errstate(all="ignore"):
        bend = flow(t + probe, x + probe * rate, m, p)[0] - rate
        largest = max(sizes[1], float(np.abs(bend / allowed).max(initial=0.0)) / probe)
        return float((TRIAL_SHARE / largest) ** (1 / ACCURATE_ORDER)) if largest > 0 else np.inf


def _horizon(e: Equations, t: float, x: Array, m: Array, p: Array, t_stop: float) -> float:
    """Return the remaining time: EVENTS_AHEAD times that to the next event by the guards' rates, or to t_stop."""
    n = e.n_guards - e.n_singularities
    if (e.implicit and not e.reducible) or not 0 < n <= FEW_GUARDS:
        return t_stop - t
    h, rate = kernel(e, "guards")(t, x, m, p)[0][:n], kernel(e, "rates")(t, x, m, p)[0][:n]
    with np.errstate(invalid="ignore", over="ignore"):
        nearing = h * rate < 0
        return min(t_stop - t, EVENTS_AHEAD * float(np.min(-h[nearing] / rate[nearing], initial=np.inf)))


def decay_rate(equations: Equations, t: float, x: Array, m: Array, p: Array) -> float:
    """Return the largest -Re of the eigenvalues of F_x (above 30 states: the smaller of its 1- and infinity-norm).

    F_x is that of the equations for y with the algebraic variables eliminated. Explicit equations without a finite
    Jacobian count as not stiff, because methods for stiff ones need it; for others there is no alternative. Large
    equations with algebraic variables count as stiff, because their elimination would need a matrix of all states.
    """
    if equations.n > MAX_DENSE_ROWS:
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
    if ny == 2:  # avoids LAPACK
        return _fastest_of_two(*jacobian.ravel().tolist())
    if ny > EIGENVALUES:
        return norm_bound(jacobian)
    return max(0.0, float(-np.linalg.eigvals(jacobian).real.min(initial=0.0)))


def _fastest_of_two(a: float, b: float, c: float, d: float) -> float:
    """Return the largest -Re of the eigenvalues of [[a, b], [c, d]]; 0 if they are not finite or do not decay."""
    scale = max(map(abs, (a, b, c, d)))
    if not 0 < scale < math.inf:
        return 0.0
    half, gap = (a / 2 + d / 2) / scale, (a / 2 - d / 2) / scale
    square = gap * gap + (b / scale) * (c / scale)
    rate = -half + math.sqrt(square) if square > 0 else -half
    return max(0.0, rate * scale)


def _sparse_jacobian(equations: Equations, t: float, x: Array, m: Array, p: Array) -> Matrix:
    """Return F_x, sparse if it is stored so; zero if it is not finite."""
    function = equations.functions["jacobian"].function
    kernel: Kernel = cached(equations, "sparse jacobian", lambda: Kernel(function, range(2)))
    jacobian = kernel(t, x, m, p)[0]
    return jacobian if np.all(np.isfinite(entries(jacobian))) else 0.0 * identity(equations.n)


def norm_bound(jacobian: Matrix) -> float:
    """Return the smaller of the 1- and the infinity-norm, which bounds the eigenvalues."""
    sizes = abs(jacobian)
    if isinstance(jacobian, np.ndarray) and jacobian.size <= MAX_PYTHON_ENTRIES:
        rows = sizes.tolist()
        return min(max(map(sum, rows), default=0.0), max(map(sum, zip(*rows, strict=True)), default=0.0))
    return float(min(sizes.sum(axis=0).max(), sizes.sum(axis=1).max())) if sizes.shape[0] else 0.0
