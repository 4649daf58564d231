"""Projection onto constraints: the nearest point, by a search among local minima of the distance.

The unknowns are the projected entries, y first and then those that follow from it, and the multipliers nu; the first
equations are the stationarity of the Lagrangian 1/2 (y - y~)^T M (y - y~) - nu^T k, followed by k = 0. The leading
block of their Jacobian is the Hessian of the Lagrangian, with k_y below it.

Newton's method on all equations converges to some stationary point, which may be far from the nearest. Points around
the start are therefore restored to the constraints by minimum-norm corrections and moved along the constraints as long
as the distance decreases; Newton's method then refines them. Trial points lie within the distance of the nearest
minimum found, and the search is repeated with smaller radii until it finds nothing nearer.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np

from dae_hybrid.errors import ConsistencyError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.matrices import Matrix, dense, is_finite

#: smallest eigenvalue of a positive definite reduced Hessian, relative to the metric
DEFINITE_RTOL = 1e-8
#: largest relative change of the Hessian and of the constraints' derivatives for constraints treated as linear
LINEAR_RTOL = 1e-12
#: displacements below this multiple of the point's size need no comparison with other minima,
MIN_DISPLACEMENT = 1e-6
#: if the constraint is flat over that distance: largest relative change of the Hessian
FLAT_RTOL = 1e-3
#: largest relative change of the Hessian for a distance small against the radius of curvature
MAX_BENDING = 0.05
#: relative tolerance for equal distances
EQUAL_RTOL = 1e-7
#: number of search directions of each kind, with more than three unknowns
SEARCH_DIRECTIONS = 8
#: distances of trial points, relative to that of the nearest minimum
RADIUS_RATIOS = (0.125, 0.25, 0.5, 0.75, 1.0)
#: number of searches, each from a nearer minimum or, without one, with a larger radius
MAX_SEARCHES = 8
#: points on the constraints closer than this, relative to their distance, lead to the same minimum
SAME_RTOL = 0.02
#: iterations of the restoration, and steps along the constraints
MAX_ITERATIONS = 25
#: relative size of the correction at which the restoration has converged
RESTORED_RTOL = 1e-9


def nearest_point(
    solve: Callable[[Array], Array],
    system: Callable[[Array], tuple[Array, Matrix]],
    start: Array,
    *,
    count: int,
    moved: int,
    multipliers: int,
    fail: Callable[[str], ConsistencyError],
) -> Array:
    """Return the stationary point nearest to the start, among those found by a search.

    Parameters
    ----------
    solve : callable
        Newton's method from given unknowns; raises `ConsistencyError`.
    system : callable
        Residuals of the equations and their Jacobian at given unknowns.
    start : ndarray
        Initial unknowns: the point to be projected, followed by multipliers equal to zero.
    count, moved, multipliers : int
        Number of unknowns in the Lagrangian, of leading unknowns that enter the distance, and of multipliers.
    fail : callable
        Creates the error from a reason.

    Raises
    ------
    ConsistencyError
        No minimum was found, two minima are equally near, or a nearer point leads to no minimum.
    """
    first, reason, across = None, None, np.zeros((count, 0))
    try:
        first = solve(start)
    except ConsistencyError as error:
        reason = error
    if not is_finite(system(start)[1]):
        raise reason or fail("the equations have no finite derivatives where it starts")
    search = _Search(solve, system, start, count, moved, multipliers)
    if first is not None:
        smallest, across = search.curvature(system(first)[1])
        if smallest > 0:
            if search.needs_no_search(first) or search.is_nearly_flat(first):
                return first
            search.minima.append(first)
    search.look_around(first, across)
    if not search.minima:
        raise reason or fail(
            "the point that Newton's method reaches is not the nearest one: it is a maximum or a saddle of the "
            "distance, or one of many that are equally near"
        )
    search.minima.sort(key=search.distance)
    best = search.minima[0]
    if search.nearest < search.distance(best) * (1 - MIN_DISPLACEMENT):
        raise fail("there is a nearer point than the one that Newton's method reaches, and it reaches none from there")
    scale = np.abs(best[:moved]).max() + np.abs(start[:moved]).max()
    for other in search.minima[1:]:
        equal = search.distance(other) ** 2 - search.distance(best) ** 2 <= EQUAL_RTOL * search.distance(best) ** 2
        if equal and np.abs(other[:count] - best[:count]).max() > np.sqrt(EQUAL_RTOL) * scale:
            raise fail("two points of the constraints are equally near")
    return best


class _Search:
    """Stationary points of the distance from the start; see `nearest_point`.

    Points are represented by v, their offset from the start in coordinates in which the metric is the identity.
    """

    def __init__(
        self, solve: Callable[[Array], Array], system: Callable[[Array], tuple[Array, Matrix]], start: Array,
        count: int, moved: int, multipliers: int,
    ) -> None:  # fmt: skip
        self._solve, self._system, self._start = solve, system, start
        self._count, self._moved, self._multipliers = count, moved, multipliers
        self.metric = _hessian(system(start)[1], count)
        self.minima: list[Array] = []
        self.nearest = np.inf  # distance of the nearest point found on the constraints, whether or not it is a minimum
        self._ends: list[Array] = []
        values, vectors = np.linalg.eigh(self.metric[:moved, :moved])
        largest = float(values.max(initial=0.0)) or 1.0
        values = np.where(values > DEFINITE_RTOL * largest, values, largest)
        self._by_v = np.eye(count) / np.sqrt(values.min())  # entries that are not projected have no weight
        self._by_v[:moved, :moved] = vectors / np.sqrt(values)
        self._to_v = np.linalg.inv(self._by_v)

    def distance(self, xi: Array) -> float:
        """Distance from the start, in the metric."""
        offset, moved = (xi - self._start)[: self._moved], self._moved
        return float(np.sqrt(max(float(offset @ self.metric[:moved, :moved] @ offset), 0.0)))

    def needs_no_search(self, xi: Array) -> bool:
        """Whether no search is needed: the constraints are linear, or the minimum is close to the start."""
        metric, count = np.abs(self.metric).max(), self._count
        matrix = dense(self._system(xi)[1])
        bends = np.abs(_hessian(matrix, count) - self.metric).max()
        offset = np.abs(xi - self._start)[: self._moved]
        size = float(np.abs(self._start[: self._moved]).max(initial=0.0)) or 1.0
        if bends <= FLAT_RTOL * metric and np.all(offset <= MIN_DISPLACEMENT * size):
            return True
        rows = slice(count, count + self._multipliers)
        between = self._start + (xi - self._start) * 0.381966
        turns = [abs(dense(self._system(at)[1]) - matrix)[rows, :count].max() for at in (self._start, between)]
        allowed = LINEAR_RTOL * np.abs(matrix[rows, :count]).max()
        return bool(bends <= LINEAR_RTOL * metric and all(turn <= allowed for turn in turns))

    def is_nearly_flat(self, xi: Array) -> bool:
        """Whether the distance is small against the radius of curvature, and restoration finds nothing nearer."""
        bends = np.abs(_hessian(self._system(xi)[1], self._count) - self.metric).max()
        if not bends <= MAX_BENDING * np.abs(self.metric).max():
            return False
        landed = self._restored(np.zeros(self._count))
        return landed is not None and self.distance(xi) <= float(np.linalg.norm(landed[: self._moved])) * (
            1 + SAME_RTOL
        )

    def curvature(self, matrix: Matrix) -> tuple[float, Array]:
        """Smallest eigenvalue of the Hessian along the constraints (zero if it is rounding), and the eigenvectors."""
        count = self._count
        if not is_finite(matrix):
            return 0.0, np.zeros((count, 0))
        hessian, constraints = _hessian(matrix, count), dense(matrix)[count : count + self._multipliers, :count]
        along = _null_space(constraints)
        if not along.shape[1]:
            return 1.0, along
        reduced = along.T @ hessian @ along
        values, vectors = np.linalg.eigh(reduced)
        scale = max(np.abs(reduced).max(), np.abs(along.T @ self.metric @ along).max())
        smallest = float(values[0])
        return (smallest if abs(smallest) > DEFINITE_RTOL * scale else 0.0), along @ vectors

    def look_around(self, first: Array | None, across: Array) -> None:
        """Collect minima from trial points around the start; `across` are directions that may leave `first`."""
        directions = self._directions(self._to_v @ across)
        nothing = np.zeros(self._count)
        origins = [nothing]
        landed = self._restored(nothing)
        for v in [] if landed is None else [landed]:
            self._follow(v)
        if first is not None:
            v = self._to_v @ (first - self._start)[: self._count]
            reach = float(np.linalg.norm(v[: self._moved]))
            for share, direction in product(RADIUS_RATIOS, (self._to_v @ across).T[:SEARCH_DIRECTIONS]):
                for sign in (1.0, -1.0):
                    self._try(v + sign * share * reach * direction / np.linalg.norm(direction))
            for share in RADIUS_RATIOS[:-1]:
                self._try(share * v)
            if self._count > self._moved:  # alternative values of the entries without weight
                origins.append(np.concatenate((nothing[: self._moved], v[self._moved :])))
        size = float(np.abs(self._to_v @ self._start[: self._count])[: self._moved].max(initial=0.0)) or 1.0
        radius = self._reach() if np.isfinite(self._reach()) else 2 * size
        for _ in range(MAX_SEARCHES):
            for share, direction in product(RADIUS_RATIOS, directions):
                for origin in origins:
                    self._try(origin + share * radius * direction)
            if self.minima and self._reach() > (1 - MIN_DISPLACEMENT) * radius:
                return
            radius = self._reach() if self.minima else 2 * radius

    def _reach(self) -> float:
        """Distance of the nearest minimum; without one, of the nearest point."""
        if self.minima:
            return min(self.distance(found) for found in self.minima)
        return self.nearest if 0 < self.nearest < np.inf else np.inf

    def _directions(self, across: Array) -> list[Array]:
        """Unit search directions in the space of the projected entries."""
        moved, rng = self._moved, np.random.default_rng(1)
        if moved == 1:
            units = np.array([[1.0], [-1.0]])
        elif moved == 2:
            angles = np.arange(16) * np.pi / 8
            units = np.stack((np.cos(angles), np.sin(angles)), axis=1)
        elif moved == 3:
            units = np.array([u for u in product((-1.0, 0.0, 1.0), repeat=3) if any(u)])
        else:
            ways = np.vstack(
                (
                    np.eye(moved)[:SEARCH_DIRECTIONS],
                    across.T[:SEARCH_DIRECTIONS, :moved],
                    rng.normal(size=(SEARCH_DIRECTIONS, moved)),
                )
            )
            units = np.vstack((ways, -ways))
        sizes = np.linalg.norm(units, axis=1)
        units = units[sizes > 0] / sizes[sizes > 0, None]
        return [np.concatenate((unit, np.zeros(self._count - moved))) for unit in units]

    def _try(self, v: Array) -> None:
        """Restore v to the constraints, and descend from there if that may find a new minimum."""
        landed = self._restored(v)
        if landed is None:
            return
        far, known = self._length(landed), self._reach()
        if far > 2 * known:
            return
        nearer = far < (1 - MIN_DISPLACEMENT) * min(known, self.nearest)
        if nearer or self._apart(landed) > SAME_RTOL * known:
            self._follow(landed)

    def _follow(self, v: Array) -> None:
        """Descend from a point on the constraints and record the minimum reached."""
        end = self._descended(v)
        self.nearest = min(self.nearest, self._length(end))
        if self._apart(end) > MIN_DISPLACEMENT * self._length(end):
            found = self._minimum(self._start[: self._count] + self._by_v @ end)
            if found is not None:
                self.minima.append(found)
            self._ends.append(end)
        self._ends.append(v)

    def _apart(self, v: Array) -> float:
        """Distance to the nearest point already visited."""
        if not self._ends:
            return np.inf
        return float(np.sqrt(((np.array(self._ends) - v) ** 2).sum(axis=1).min()))

    def _length(self, v: Array) -> float:
        return float(np.linalg.norm(v[: self._moved]))

    def _at(self, v: Array, nu: Array | None = None) -> tuple[Array, Array, Array] | None:
        """Constraints, their derivatives by v, rows scaled to unit length, and the Hessian; None if not finite."""
        count, rows = self._count, slice(self._count, self._count + self._multipliers)
        trial = self._start.copy()
        trial[:count] += self._by_v @ v
        if nu is not None:
            trial[trial.size - self._multipliers :] = nu
        values, matrix = self._system(trial)
        if not (np.all(np.isfinite(values)) and is_finite(matrix)):
            return None
        matrix = dense(matrix)
        by_v = matrix[rows, :count] @ self._by_v
        sizes = np.linalg.norm(by_v, axis=1)
        sizes[sizes == 0] = 1.0
        hessian = self._by_v.T @ _hessian(matrix, count) @ self._by_v
        return values[rows] / sizes, by_v / sizes[:, None], hessian

    def _restored(self, v: Array) -> Array | None:
        """Restore v to the constraints by minimum-norm corrections; None if that does not converge."""
        at = self._at(v)
        for _ in range(MAX_ITERATIONS):
            if at is None:
                return None
            k, by_v, _ = at
            step = np.linalg.lstsq(by_v, -k, rcond=DEFINITE_RTOL)[0]
            size = float(np.linalg.norm(step))
            if size <= RESTORED_RTOL * float(np.linalg.norm(v + step)):
                off = np.abs(by_v @ step + k).max(initial=0.0)
                return v + step if off <= RESTORED_RTOL * float(np.linalg.norm(v + step)) else None
            damping = 1.0
            while True:
                trial = v + damping * step
                at = self._at(trial)
                if at is not None and np.linalg.norm(at[0]) < 2 * np.linalg.norm(k):
                    v = trial
                    break
                damping /= 2
                if damping < 0.01:
                    return None
        return None

    def _descended(self, v: Array) -> Array:
        """Move along the constraints until the distance stops decreasing.

        Newton's method on the tangent space, with the absolute values of the Hessian's eigenvalues, followed by a
        restoration to the constraints.
        """
        for _ in range(MAX_ITERATIONS):
            nu = self._nu(self._start[: self._count] + self._by_v @ v)
            at = None if nu is None else self._at(v, nu)
            if at is None:
                return v
            _, by_v, hessian = at
            along = _null_space(by_v)
            slope = along.T @ np.concatenate((v[: self._moved], np.zeros(self._count - self._moved)))
            length = self._length(v)
            if not slope.size or np.linalg.norm(slope) <= MIN_DISPLACEMENT * length:
                return v
            values, vectors = np.linalg.eigh(along.T @ hessian @ along)
            step = -along @ vectors @ ((vectors.T @ slope) / np.maximum(np.abs(values), 0.1))
            step *= min(1.0, length / 2 / float(np.linalg.norm(step)))
            for _ in range(8):
                trial = self._restored(v + step)
                if trial is not None and self._length(trial) < length:
                    v = trial
                    break
                step /= 2
            else:
                return v
        return v

    def _nu(self, moved: Array) -> Array | None:
        """Least-squares multipliers at a point."""
        count, first = self._count, self._start.size - self._multipliers
        matrix = dense(self._system(np.concatenate((moved, self._start[count:])))[1])
        if not np.all(np.isfinite(matrix)):
            return None
        right = self.metric @ (moved - self._start[:count])
        return np.asarray(np.linalg.lstsq(-matrix[:count, first:], right, rcond=None)[0])

    def _minimum(self, moved: Array) -> Array | None:
        """The minimum reached by Newton's method from a point; None if it converges to no minimum."""
        trial = np.concatenate((moved, self._start[self._count :]))
        try:
            nu = self._nu(moved)
            if nu is None:
                return None
            trial[trial.size - self._multipliers :] = nu
            found = self._solve(trial)
        except (ConsistencyError, np.linalg.LinAlgError):
            return None
        return found if self.curvature(self._system(found)[1])[0] > 0 else None


def _null_space(matrix: Array) -> Array:
    """Basis of the null space, as columns."""
    _, sizes, right = np.linalg.svd(matrix)
    return np.asarray(right[int(np.count_nonzero(sizes > DEFINITE_RTOL * sizes.max(initial=0.0))) :].T)


def _hessian(matrix: Matrix, count: int) -> Array:
    """Symmetric part of the leading block."""
    block = dense(matrix)[:count, :count]
    return np.asarray(block + block.T) / 2
