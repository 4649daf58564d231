"""Formulations of a mode: structure, consistent values, derivatives of the algebraic part.

ODE modes have no algebraic equations. Hessenberg index-1 modes have as many algebraic equations
``0 = k(y, z, m, p, t)`` as algebraic variables z, with k_z nonsingular (SR eq. 22).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import casadi as ca
import numpy as np
from scipy.optimize import linear_sum_assignment

from dae_hybrid.errors import ConsistencyError, FormulationError
from dae_hybrid.integrator import Array

#: singular values below this, relative to the size of what was summed to form the matrix, are zero
RANK_TOLERANCE = 1e-11
#: between RANK_TOLERANCE and this the rank cannot be decided
DOUBTFUL_TOLERANCE = 1e-8
#: a residual below this many roundings of its terms is zero
RESIDUAL_ROUNDINGS = 1e4
EPS = float(np.finfo(float).eps)


def check_structure(mode: str, algebraic: Sequence[str], k_by_z: ca.Sparsity) -> None:
    """Refuse algebraic equations that cannot determine the algebraic variables, naming what does not match."""
    rows, columns = k_by_z.shape
    if rows != columns:
        raise FormulationError(
            f"{rows} algebraic equations for {columns} algebraic variables ({', '.join(algebraic) or 'none'}).",
            mode=mode,
            variables=algebraic,
            remedy="Give one equation per algebraic variable that the mode's equations use.",
        )
    if rows == 0 or ca.sprank(ca.DM(k_by_z, 1)) == rows:
        return
    row_index = set(k_by_z.row())
    empty_rows = [i for i in range(rows) if i not in row_index]
    column_pointer = k_by_z.colind()
    empty_columns = [algebraic[j] for j in range(columns) if column_pointer[j] == column_pointer[j + 1]]
    details = []
    if empty_rows:
        details.append(f"equation(s) {', '.join(map(str, empty_rows))} contain no algebraic variable")
    if empty_columns:
        details.append(f"no algebraic equation contains {', '.join(empty_columns)}")
    raise FormulationError(
        "The algebraic equations cannot determine the algebraic variables: k_z is structurally singular"
        + (f" ({'; '.join(details)})." if details else "."),
        mode=mode,
        variables=empty_columns or algebraic,
        remedy="This is a DAE of index 2 or higher: differentiate the constraint until it contains the variable.",
    )


def solve_explicitly(k: ca.SX, z: ca.SX) -> ca.SX | None:
    """Solution of 0 = k(z) by substitution, None where the equations do not give z one after the other.

    An equation is used for the one variable that is left in it, if that variable enters linearly with a
    constant factor, as in ``sigma(...) - z``.
    """
    unsolved, equations, solution = list(range(z.numel())), list(range(k.numel())), ca.SX(z)
    while unsolved:
        pattern = ca.jacobian(ca.substitute(k, z, solution), z)
        for i in equations:
            left = [j for j in unsolved if pattern.sparsity().has_nz(i, j)]
            if len(left) != 1:
                continue
            factor = ca.simplify(pattern[i, left[0]])
            if not factor.is_constant() or float(factor) == 0.0:
                continue
            j = left[0]
            row = ca.substitute(k, z, solution)[i]
            value = ca.substitute(row, z[j], 0) / -float(factor)
            solution = ca.substitute(solution, z[j], value)
            equations.remove(i)
            unsolved.remove(j)
            break
        else:
            return None
    return solution


def solve_algebraic(
    system: Callable[[Array], tuple[Array, Array, Array]],
    start: Array,
    *,
    mode: str,
    variables: Sequence[str],
    time: float,
) -> Array:
    """Damped Newton for k(z) = 0.

    `system(z)` gives the residual, its Jacobian (it may have more rows than columns, when the equations
    are consistent) and the size of the residual's terms. Raises
    `ConsistencyError` when the Jacobian is singular or the iteration does not converge.
    """
    z = start.copy()
    residual, jacobian, size = system(z)
    for _ in range(50):
        if not (np.all(np.isfinite(residual)) and np.all(np.isfinite(jacobian))):
            break
        try:
            step = _newton_step(jacobian, residual)
        except np.linalg.LinAlgError:
            break
        if not np.all(np.isfinite(step)):
            break
        small = np.all(np.abs(residual) <= RESIDUAL_ROUNDINGS * EPS * size)
        if np.all(np.abs(residual) <= EPS * size) or (small and np.all(np.abs(step) <= 4 * EPS * np.abs(z))):
            return z + step
        damping, norm = 1.0, float(np.abs(residual).max())
        while True:
            trial = z + damping * step
            new = system(trial)
            if np.all(np.isfinite(new[0])) and float(np.abs(new[0]).max()) < norm:
                z, (residual, jacobian, size) = trial, new
                break
            damping /= 2
            if damping < 1e-6:
                if np.all(np.abs(residual) <= RESIDUAL_ROUNDINGS * EPS * size):
                    return z
                raise _inconsistent(residual, mode, variables, time)
    if np.all(np.isfinite(residual)) and np.all(np.abs(residual) <= RESIDUAL_ROUNDINGS * EPS * size):
        return z
    raise _inconsistent(residual, mode, variables, time)


def _newton_step(jacobian: Array, residual: Array) -> Array:
    rows, columns = jacobian.shape
    if rows == columns:
        return np.asarray(-np.linalg.solve(jacobian, residual))
    step, _, rank, _ = np.linalg.lstsq(jacobian, -residual, rcond=None)
    if rank < columns:
        raise np.linalg.LinAlgError("rank deficient")
    return np.asarray(step)


def _inconsistent(residual: Array, mode: str, variables: Sequence[str], time: float) -> ConsistencyError:
    return ConsistencyError(
        f"No consistent values of {', '.join(variables)} found: Newton's method stops at residual {residual}.",
        mode=mode,
        time=time,
        variables=variables,
        remedy="Give a better guess= for the algebraic variables, or check that k_z is nonsingular there (index 1).",
    )


def closed_by_continuity(matrix: Array, size: Array) -> Array:
    """Which algebraic variables an arrival leaves to continuity, as rows of the identity.

    `matrix` is dk+/dz+ with the memory following z+, `size` bounds the terms it was summed from. An equation
    whose row cancels (SR's z* = z+ can do that) is satisfied by every z+; the variable that it determines
    between transitions is then continuous. Raises `np.linalg.LinAlgError` where the equations that are left
    do not determine the other variables, or where it cannot be decided whether a row cancels.
    """
    n = len(matrix)
    scale = size.max(axis=1, initial=0.0)
    relative = np.abs(matrix).max(axis=1, initial=0.0) / np.maximum(scale, np.finfo(float).tiny)
    cancels = (relative <= RANK_TOLERANCE) & (scale > 0)
    if np.any(~cancels & (relative < DOUBTFUL_TOLERANCE)):
        raise np.linalg.LinAlgError(f"rows of relative size {relative} leave it undecided")
    rows = np.flatnonzero(cancels)
    own = size[rows] / scale[rows, None]
    _, columns = linear_sum_assignment(-own)
    if np.any(own[np.arange(rows.size), columns] <= RANK_TOLERANCE):
        raise np.linalg.LinAlgError("an equation that cancels contains no variable of its own")
    rest = np.delete(matrix[~cancels] / scale[~cancels, None], columns, axis=1)
    singular = np.linalg.svd(rest, compute_uv=False)
    if singular.size and singular[-1] <= RANK_TOLERANCE * singular[0]:
        raise np.linalg.LinAlgError("the other equations are singular")
    return np.eye(n)[columns]
