"""Solution and differentiation of algebraic equations, with rank decisions.

Every mode is brought to ``y' = f(x, m, p, t)``, ``0 = K(x, m, p, t)`` with x = (y, z) and K_z nonsingular:

* an ODE has no K;
* in Hessenberg index 1 (SR eq. 22) K is the equation as stated;
* implicit equations 0 = F(y', y, z, m, p, t) (SR eq. 1) take y' = v with v an additional algebraic variable and
  K = F, so that K_z is [F_y' | F_z];
* in Hessenberg index 2 (SR eq. 15) K is the hidden constraint k_y f + k_t; k itself is an invariant, enforced by
  projection along D = f_z K_z^-1 E (E selects the rows of the hidden constraint), for which k_y D = I. Without
  index-1 rows D is B (CB)^-1 in SR's notation. A constraint k(y, z_1), with z_1 determined by h(y, z_1) = 0, is taken
  as k(y, z_1 - h_z^-1 h): its derivatives at h = 0 are total ones, and by z_1 they vanish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import casadi as ca
import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.sparse import csc_array, csr_array, issparse

from dae_hybrid.errors import ConsistencyError
from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.numerics.matrices import Factors, Matrix, blocks, dense, independent_rows, is_finite, row_maxima, solve

#: singular values below this multiple of the size of the matrix's terms are zero
RANK_TOLERANCE = 1e-11
#: between RANK_TOLERANCE and this value the rank is undecidable
DOUBTFUL_TOLERANCE = 1e-8
#: when Newton's method stagnates, residuals below this multiple of the largest value are rounding
STAGNATION_TOLERANCE = 1e-13
#: a matrix below this multiple of its entries' terms belongs to a multiple root
MULTIPLE_ROOT = 1e-5
#: a matrix whose smallest singular value drops by this factor is becoming singular
COLLAPSED = 1e-5
#: residuals within this many roundings of their terms are zero
RESIDUAL_ROUNDINGS = 1e4
#: relative distance from a root at which its neighbourhood is sampled
NEIGHBOUR_DISTANCE = 1e-3
#: number of corrections of a sample
CORRECTIONS = 8
#: relative change of the matrix within the rounding of a root that indicates a multiple root
UNSETTLED = 0.1
#: Newton's method: largest number of steps, smallest damping factor, relative size of a converged step in roundings
MAX_NEWTON_STEPS = 50
#: undamped steps tried first for systems with more unknowns than the second number
FULL_STEPS, FULL_STEPS_SIZE = 8, 40
LEAST_DAMPING = 1e-6
STEP_ROUNDINGS = 4.0
#: relative distances of points at which the pattern of equations is seen that are solved block by block
PATTERN_SCALES = (1e-3, 1.0)
#: largest singular matrix that is decomposed to name the equations at fault, or into blocks that are solved in turn
NAMED = 1000


def solve_algebraic(
    system: Callable[[Array], tuple[Array, Array, Array]],
    start: Array,
    *,
    mode: str,
    variables: Sequence[str],
    time: float,
    equations: Sequence[str] = (),
) -> Array:
    """Solve k(z) = 0 by damped Newton's method, of all equations or, if that fails, of one block after the other.

    `system(z)` returns the residual, its Jacobian (with more rows than columns if consistent equations are redundant)
    and the sizes of the residual's terms; `equations` are labels for error messages. Raises `ConsistencyError` if the
    Jacobian is singular or the iteration does not converge, of the first block in which that is so.
    """
    try:
        return _solve_together(system, start, mode, variables, time, equations)
    except ConsistencyError:
        order = _blocks(system, start) if start.size <= NAMED else []
        if len(order) < 2:
            raise
    z = start.copy()
    for rows, columns in order:

        def block(values: Array, rows: list[int] = rows, columns: list[int] = columns) -> tuple[Array, Array, Array]:
            z[columns] = values
            residual, jacobian, size = system(z)
            return residual[rows], dense(jacobian)[np.ix_(rows, columns)], size[rows]

        names, labels = [variables[i] for i in columns], [equations[i] for i in rows if i < len(equations)]
        z[columns] = _solve_together(block, z[columns], mode, names, time, labels)
    return _solve_together(system, z, mode, variables, time, equations)


def first_solution(solve: Callable[[Array], Array], starts: Iterable[Array]) -> Array:
    """Return what `solve` finds from the first start from which it succeeds; otherwise raise the first error."""
    first: ConsistencyError | None = None
    for start in starts:
        try:
            return solve(start)
        except ConsistencyError as error:  # the equations are singular there, or the iteration did not converge
            first = first or error
    raise first or AssertionError("no start")


def _blocks(system: Callable[[Array], tuple[Array, Array, Array]], z: Array) -> list[tuple[list[int], list[int]]]:
    """Blocks of the equations, by what is not zero at a point or at others about it, where nothing vanishes by chance.

    A single one, or none, if the equations are redundant or determine too little.
    """
    random, found = np.random.default_rng(0), np.zeros((0, 0), dtype=bool)
    for scale in (0.0, *PATTERN_SCALES):
        trial = z + scale * np.maximum(np.abs(z), 1.0) * random.uniform(-1.0, 1.0, z.size)
        with np.errstate(all="ignore"):
            entries = dense(system(trial)[1]) != 0
        found = found | entries if found.size else entries
    order = blocks(ca.sparsify(ca.DM(found.astype(float))).sparsity()) if found.size else []
    return order if all(len(rows) == len(columns) for rows, columns in order) else []


def _solve_together(
    system: Callable[[Array], tuple[Array, Array, Array]],
    start: Array,
    mode: str,
    variables: Sequence[str],
    time: float,
    equations: Sequence[str],
) -> Array:
    """Solve k(z) = 0 by damped Newton's method; see `solve_algebraic`."""
    z = start.copy()

    def evaluate(trial: Array) -> tuple[Array, Array, Array]:
        """Terms without a finite size, such as a root at zero, require exact zeros."""
        k, by_z, terms = system(trial)
        return k, by_z, np.where(np.isfinite(terms), terms, np.abs(k))

    residual, jacobian, size = evaluate(z)

    def zero() -> bool:
        """Whether every residual is rounding of its own terms, or of the values from which it is computed.

        Used only when Newton's method stagnates. Terms that all vanish provide no scale.
        """
        if not (np.all(np.isfinite(residual)) and is_finite(jacobian)):
            return False
        allowed = RESIDUAL_ROUNDINGS * EPS * size + STAGNATION_TOLERANCE * _carried(jacobian, z)
        return bool(np.all(np.abs(residual) <= allowed))

    def fail(reason: str = "") -> ConsistencyError:
        fixed = row_maxima(jacobian) == 0.0  # no unknown affects these equations: the given values contradict them
        conflict = np.any(fixed & (np.abs(residual) > RESIDUAL_ROUNDINGS * EPS * size))
        return _inconsistent(
            np.where(fixed, residual, 0.0) if conflict else residual, size, reason, equations, mode, variables, time
        )

    def iterate(*, damped: bool, most: int = MAX_NEWTON_STEPS) -> bool:
        """Run Newton's method from the current point; return whether it converged."""
        nonlocal z, residual, jacobian, size
        for _ in range(most):
            if not (np.all(np.isfinite(residual)) and is_finite(jacobian)):
                break
            step = _newton_step(jacobian, residual)
            if step is None or not np.all(np.isfinite(step)):
                if zero() and is_isolated(z, jacobian, evaluate):
                    return True
                raise fail(singular_names(jacobian, equations, variables))
            small = np.all(np.abs(residual) <= RESIDUAL_ROUNDINGS * EPS * size)
            settled = small and np.all(np.abs(step) <= STEP_ROUNDINGS * EPS * np.abs(z))
            if settled or np.all(np.abs(residual) <= EPS * size):
                z = z + step
                return True
            damping, norm = 1.0, float(np.abs(residual).max())
            while True:
                trial = z + damping * step
                new = evaluate(trial)
                if np.all(np.isfinite(new[0])) and (not damped or float(np.abs(new[0]).max()) < norm):
                    z, (residual, jacobian, size) = trial, new
                    if not damped and float(np.abs(residual).max()) > norm / 2 and zero():
                        return True
                    break
                damping /= 2
                if damping < LEAST_DAMPING or not damped or zero():
                    return zero()
        return zero()

    # equations that are linear in some unknowns and quadratic in the others (velocities, then accelerations) are solved
    # by full steps through larger residuals; with many equations of this kind damped steps are very slow
    if z.size > FULL_STEPS_SIZE:
        with suppress(ConsistencyError):
            if iterate(damped=False, most=FULL_STEPS):
                return z
        z = start.copy()
        residual, jacobian, size = evaluate(z)
    if iterate(damped=True):
        return z
    error = fail()
    z = start.copy()
    residual, jacobian, size = evaluate(z)
    with suppress(ConsistencyError):
        if iterate(damped=False):
            return z
    raise error


def _carried(jacobian: Matrix, z: Array) -> Array:
    """Bound on the terms of each equation due to the largest unknown, in the given units or in balanced ones."""
    columns = row_maxima((jacobian / _row_sizes(jacobian)).T)
    columns, size, value = np.where(columns > 0, columns, 1.0), abs(jacobian), np.abs(z)
    scaled = (size @ (1 / columns)) * (columns * value).max(initial=0.0)
    return np.asarray(np.minimum(size.sum(axis=1) * value.max(initial=0.0), scaled))


def is_isolated(z: Array, jacobian: Array, evaluate: Callable[[Array], tuple[Array, Array, Array]]) -> bool:
    """Whether a root with a singular Jacobian is an isolated multiple root, and not part of a curve of roots.

    Near a multiple root the equations cannot be satisfied, on either side, by corrections in the other directions.
    """
    if max(jacobian.shape) > NAMED:
        return False
    matrix = dense(jacobian)
    scale = row_maxima(matrix)
    _, sizes, right = np.linalg.svd(matrix / np.where(scale > 0, scale, 1.0)[:, None])
    open_to = right[np.count_nonzero(sizes > RANK_TOLERANCE * sizes.max(initial=0.0)) :]
    if len(open_to) != 1:
        return False
    length = NEIGHBOUR_DISTANCE * max(float(np.abs(z).max(initial=0.0)), 1.0)
    return all(not _reaches_root(z + side * length * open_to[0], open_to, evaluate) for side in (1.0, -1.0))


def _reaches_root(z: Array, fixed: Array, evaluate: Callable[[Array], tuple[Array, Array, Array]]) -> bool:
    """Whether Newton's method, restricted to directions orthogonal to `fixed`, finds a root."""
    for _ in range(CORRECTIONS):
        residual, jacobian, size = evaluate(z)
        if not (np.all(np.isfinite(residual)) and is_finite(jacobian)):
            return False
        if np.all(np.abs(residual) <= RESIDUAL_ROUNDINGS * EPS * size):
            return True
        rows = np.vstack((dense(jacobian), fixed))
        z = z - np.linalg.lstsq(rows, np.append(residual, np.zeros(len(fixed))), rcond=None)[0]
    return False


def _newton_step(jacobian: Array, residual: Array) -> Array | None:
    """Return the Newton step; None if the matrix is singular."""
    rows, columns = jacobian.shape
    if rows == columns or issparse(jacobian):
        try:
            own = slice(None) if rows == columns else independent_rows(jacobian)
            return np.asarray(-solve(jacobian[own], residual[own]))
        except np.linalg.LinAlgError:
            return None
    try:
        step, _, rank, _ = np.linalg.lstsq(dense(jacobian), -residual, rcond=None)
    except np.linalg.LinAlgError:
        return None
    return None if rank < columns else np.asarray(step)


def _row_sizes(matrix: Matrix) -> Array:
    """Largest magnitude of each row, as a column; one for zero rows."""
    scale = row_maxima(matrix)
    return np.where(scale > 0, scale, 1.0)[:, None]


def _one_size(matrix: Array, sizes: Array) -> Array:
    """Equilibrated matrix: rows and columns scaled so that the sizes of its entries are close to one.

    The logarithms of the factors solve a least-squares problem over the nonzero entries (Curtis and Reid,
    On the automatic scaling of matrices for Gaussian elimination, 1972, eq. 2.4). The result is therefore the same in
    all units of equations and unknowns.
    """
    if not np.all(np.isfinite(sizes)):
        return matrix
    i, j = np.nonzero(sizes)
    entries, (n, m) = np.arange(i.size), matrix.shape
    pattern = np.zeros((i.size, n + m))
    pattern[entries, i] = pattern[entries, n + j] = 1.0
    factors = np.exp(np.linalg.lstsq(pattern.T @ pattern, pattern.T @ np.log(np.abs(sizes[i, j])), rcond=None)[0])
    return matrix / factors[:n, None] / factors[n:]


def _rank(matrix: Array) -> int:
    singular = np.linalg.svd(matrix, compute_uv=False)
    return int(np.count_nonzero(singular > RANK_TOLERANCE * singular.max(initial=0.0)))


def is_regular(matrix: Matrix, sizes: Callable[[], Array]) -> bool:
    """Whether the columns of a matrix are independent, in some units of rows and columns.

    `sizes` returns the sizes of the terms summed in each entry of a dense matrix. If the matrix is singular in its own
    units, they determine the scaling: a column of small numbers is accepted, a column that cancels is not.
    """
    rows, columns = matrix.shape
    if rows == columns and reciprocal_condition(matrix) > RANK_TOLERANCE:
        return True
    if issparse(matrix) or rows < columns or not is_finite(matrix):
        return False
    return _rank(matrix / _row_sizes(matrix)) == columns or _rank(_one_size(matrix, dense(sizes()))) == columns


def solve_linear(matrix: Array, right: Array, right_size: Array, sizes: Array) -> tuple[Array, Array, Array]:
    """Least-squares solution of a linear system, the residual of each row, and its scale.

    `right_size` bounds the terms summed in the right-hand side, `sizes` those of the matrix. Rows are scaled to one
    size; the residual refers to the scaled rows. Raises `np.linalg.LinAlgError` if the matrix is singular.
    """
    scale = _row_sizes(matrix)
    rows, columns = matrix.shape
    right, right_size = dense(right) / scale, dense(right_size) / scale
    matrix = csc_array(matrix / scale) if issparse(matrix) else matrix / scale
    if rows == columns or (issparse(matrix) and columns):
        own = slice(None) if rows == columns else independent_rows(matrix)
        if not is_regular(matrix[own], lambda: (sizes / scale)[own]):
            raise np.linalg.LinAlgError("their matrix is singular")
        solution = solve(matrix[own], right[own])
        if rows == columns:
            return solution, np.zeros_like(right), np.ones_like(right)
        terms = abs(matrix) @ abs(solution) + right_size
        return solution, matrix @ solution - right, np.broadcast_to(terms.max(axis=0), terms.shape)
    if not columns:
        return np.zeros((0, right.shape[1])), -right, right_size
    solution, _, rank, _ = np.linalg.lstsq(matrix, right, rcond=RANK_TOLERANCE)
    if rank < columns:
        if not is_regular(matrix, lambda: sizes / scale):
            raise np.linalg.LinAlgError(f"their matrix has rank {rank} of {columns}")
        units = np.abs(matrix).max(axis=0)
        solution = np.linalg.lstsq(matrix / units, right, rcond=None)[0] / units[:, None]
    terms = np.abs(matrix) @ np.abs(solution) + right_size
    return solution, matrix @ solution - right, np.broadcast_to(terms.max(axis=0, initial=0.0), terms.shape)


def _distance_to_singular(matrix: Array, sizes: Array) -> float:
    """A lower bound of the least d for which changes of the entries by d `sizes` make the matrix singular.

    It is 1 / rho(|A^-1| sizes), which does not depend on the units of rows and columns (Demmel 1992, The
    componentwise distance to the nearest singular matrix).
    """
    try:
        change = np.abs(np.linalg.inv(matrix)) @ sizes
    except np.linalg.LinAlgError:
        return 0.0
    radius = float(np.abs(np.linalg.eigvals(change)).max()) if np.isfinite(change).all() else np.inf
    return 1 / radius if radius > 0 else np.inf


def refuse_multiple_root(matrix: Array, sizes: Array) -> None:
    """Raise `np.linalg.LinAlgError` if a matrix is singular relative to the terms of its entries.

    At a multiple root Newton's method stops at about the square root of rounding. The Jacobian, which should be
    singular there, is still regular, but its entries have almost cancelled. The test does not depend on the units of
    the unknowns: derivatives may exceed variables by any factor when the unit of time changes. Sparse matrices are not
    tested: the discretisation of a smooth problem approaches a singular matrix as it is refined.
    """
    if issparse(matrix):
        return
    if matrix.shape == (1, 1):
        smallest = abs(float(matrix[0, 0])) / (abs(float(sizes[0, 0])) or 1.0)
    else:
        rows = _row_sizes(sizes)
        columns = _row_sizes((sizes / rows).T).T
        smallest = np.linalg.svd(matrix / rows / columns, compute_uv=False)[-1]
        if not smallest > MULTIPLE_ROOT:  # or a regular matrix of bad condition: that of a long chain
            smallest = _distance_to_singular(matrix, sizes)
    if not smallest > MULTIPLE_ROOT:
        raise np.linalg.LinAlgError(f"their matrix almost cancels (to {smallest:.1e} of its terms), a multiple root")


def refuse_unsettled_root(matrix: Array, sizes: Array, z: Array, jacobian: Callable[[Array], Array]) -> None:
    """Raise `np.linalg.LinAlgError` if rounding of the equations makes their matrix undetermined.

    `sizes` are those of the equations' terms; `jacobian` returns the matrix at other values. At a multiple root at
    zero, such as that of z^2 = p at p = 0, no terms cancel in the matrix, but it consists of rounding alone.
    """
    if issparse(matrix) or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        return
    inverse = np.linalg.inv(matrix)
    off = np.abs(inverse) @ (EPS * np.where(np.isfinite(sizes), sizes, 0.0))
    moved = np.abs(inverse @ (dense(jacobian(z + off)) - matrix)) * off
    if np.any(moved.sum(axis=1) > UNSETTLED * off):
        raise np.linalg.LinAlgError("rounding decides about their matrix, a multiple root")


def reciprocal_condition(matrix: Matrix) -> float:
    """Ratio of the smallest to the largest singular value after row scaling; 0 if the matrix is not finite."""
    if not min(matrix.shape):
        return 1.0
    if not is_finite(matrix):
        return 0.0
    if matrix.shape == (1, 1):
        return float(matrix[0, 0] != 0)
    if issparse(matrix):
        scaled = csc_array(matrix / _row_sizes(matrix))
        try:
            return float(1 / (abs(scaled).sum(axis=0).max() * Factors(scaled).inverse_norm()))
        except np.linalg.LinAlgError:
            return 0.0
    singular = np.linalg.svd(matrix / _row_sizes(matrix), compute_uv=False)
    return float(singular[-1] / singular[0]) if singular[0] > 0 else 0.0


def collapsed(matrix: Array, before: Array, share: float = COLLAPSED) -> bool:
    """Whether the smallest singular value of a matrix has dropped below `share` of its value in `before`."""
    if not (is_finite(matrix) and is_finite(before)):
        return True
    if issparse(matrix):
        return reciprocal_condition(matrix) < share * reciprocal_condition(before)
    scale = _row_sizes(before)
    now, then = (np.linalg.svd(m / scale, compute_uv=False)[-1] for m in (matrix, before))
    return bool(now < share * then)


def singular_names(matrix: Array, equations: Sequence[str], variables: Sequence[str]) -> str:
    """Name the dependent equations and the undetermined variables, from the null vectors."""
    if not is_finite(matrix):
        return "the derivatives of the equations are not finite"
    if max(matrix.shape) > NAMED:
        return "their matrix is singular"
    matrix = dense(matrix)
    left, _, right = np.linalg.svd(matrix)
    text = f"their matrix is singular (condition {1 / max(reciprocal_condition(matrix), 1e-300):.1e})"

    def large(vector: Array, names: Sequence[str]) -> list[str]:
        return [name for name, share in zip(names, np.abs(vector), strict=False) if share > 0.1 * np.abs(vector).max()]

    text += f", it leaves {', '.join(large(right[-1], variables))} open"
    dependent = large(left[:, -1], equations)
    return text + (f"; {', '.join(dependent)} {are_dependent(len(dependent))}" if dependent else "")


def are_dependent(count: int) -> str:
    """What is said of equations whose combination vanishes."""
    return "is degenerate" if count == 1 else "depend on each other"


def _inconsistent(
    residual: Array,
    size: Array,
    reason: str,
    equations: Sequence[str],
    mode: str,
    variables: Sequence[str],
    time: float,
) -> ConsistencyError:
    off = ~(np.abs(residual) <= RESIDUAL_ROUNDINGS * EPS * size)
    named = ", ".join(f"{name} ({r:.3g})" for name, r, bad in zip(equations, residual, off, strict=False) if bad)
    if not np.all(np.isfinite(residual)):
        text = f"the equations are not finite at a point of Newton's method: {named or residual}"
    else:
        text = f"Newton's method stops at residual {residual}" + (f"; not satisfied: {named}" if named else "")
    return ConsistencyError(
        f"No consistent values of {', '.join(variables) or 'anything'} found: {reason or text}.",
        mode=mode,
        time=time,
        variables=variables,
        remedy="Give a better guess= for the algebraic variables, or check that k_z is nonsingular there (index 1).",
    )


def closed_by_continuity(matrix: Matrix, size: Matrix, algebraic: slice = slice(None)) -> Array:
    """Return the algebraic variables that an arrival leaves to continuity, as rows of the identity.

    `matrix` is the derivative of the arrival's equations by its unknowns, with the memory a function of them, `size`
    bounds its terms, and `algebraic` is the position of z+ among the unknowns. An equation whose row cancels (SR's
    z* = z+ may have this effect) is satisfied by every z+; the variable that it determines between transitions is then
    continuous. Raises `np.linalg.LinAlgError` if the remaining equations do not determine the other variables, or if it
    is undecidable whether a row cancels.
    """
    n = matrix.shape[1]
    scale = row_maxima(size)
    relative = row_maxima(matrix) / np.maximum(scale, np.finfo(float).tiny)
    cancels = (relative <= RANK_TOLERANCE) & (scale > 0)
    if np.any(~cancels & (relative < DOUBTFUL_TOLERANCE)):
        raise np.linalg.LinAlgError(f"rows of relative size {relative} leave it undecided")
    if issparse(matrix) and not cancels.any():
        matrix = csr_array(matrix)[scale > 0]
        if reciprocal_condition(matrix[independent_rows(matrix)]) <= RANK_TOLERANCE:
            raise np.linalg.LinAlgError("the equations are singular")
        return np.zeros((0, n))
    matrix, size = dense(matrix), dense(size)
    rows, candidates = np.flatnonzero(cancels), np.arange(n)[algebraic]
    own = size[np.ix_(rows, candidates)] / scale[rows, None]
    if rows.size > candidates.size:
        raise np.linalg.LinAlgError("more equations cancel than there are algebraic variables")
    _, chosen = linear_sum_assignment(-own)
    if np.any(own[np.arange(rows.size), chosen] <= RANK_TOLERANCE):
        raise np.linalg.LinAlgError("an equation that cancels contains no variable of its own")
    columns = candidates[chosen]
    determining = ~cancels & (scale > 0)
    rest = np.delete(matrix[determining] / scale[determining, None], columns, axis=1)
    if rest.shape[0] < rest.shape[1]:
        raise np.linalg.LinAlgError(f"{rest.shape[0]} equations are left for {rest.shape[1]} values")
    singular = np.linalg.svd(rest, compute_uv=False)
    own_size = np.delete(size[determining] / scale[determining, None], columns, axis=1)
    if singular.size and singular[-1] <= RANK_TOLERANCE * singular[0] and not is_regular(rest, lambda: own_size):
        raise np.linalg.LinAlgError(
            f"the equations are singular (condition {singular[0] / max(singular[-1], 1e-300):.1e})"
        )
    return np.eye(n)[columns]
