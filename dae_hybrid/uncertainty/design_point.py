"""The design point: the point of the limit state surface that is nearest to the origin of standard normal space."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dae_hybrid.errors import DaeHybridError
from dae_hybrid.interface.prepared import prepare
from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.uncertainty.errors import UncertaintyError
from dae_hybrid.uncertainty.inputs import Inputs
from dae_hybrid.uncertainty.runs import Execution, Runs, cheapest, evaluate

#: of the line search: share of the expected decrease, factor of the penalty, longest step, number of halvings
DECREASE, PENALTY, LONGEST, HALVINGS = 1e-4, 2.0, 4.0, 25
#: least curvature along a step, relative to the Hessian before (M. J. D. Powell, 1978)
DAMPED = 0.2
#: rounding of the merit: below it, steps cannot be compared
ROUNDED = 10 * EPS
#: distances in standard deviations: of probes beside a point, of those that look for a nearer part of the surface, and
#: of distinct points
BESIDE, FARTHER, DISTINCT = 0.1, (0.1, 0.2, 0.4, 0.8), 0.05
#: largest number of searches from such nearer parts
MOST_FURTHER = 100
#: points between the origin and the design point at which the sign of the limit state is checked, unless it is so near
ON_RAY, AT_ORIGIN = 16, 1e-3
#: points whose sequences are compared if a search does not converge
LAST = 30


@dataclass(frozen=True, eq=False)
class LimitPoint:
    """The limit state at one point: g > 0 is safe, g <= 0 fails.

    Attributes
    ----------
    u : ndarray, shape (k,)
        Independent standard normal variables.
    g : float
    slope : ndarray, shape (k,)
        Derivatives of g by u.
    by_parameters : ndarray, shape (n,)
        Derivatives of g by the parameters that the limit state is differentiated by.
    digest : int
        Digest of the sequence of events.
    """

    u: Array
    g: float
    slope: Array
    by_parameters: Array
    digest: int

    @property
    def steepness(self) -> float:
        """Norm of the slope."""
        return float(np.linalg.norm(self.slope))

    @property
    def alpha(self) -> Array:
        """Unit normal of the surface, towards failure, (k,)."""
        return -self.slope / self.steepness

    @property
    def beta(self) -> float:
        """Signed distance of the tangent plane from the origin, positive if the origin is safe."""
        return float(self.alpha @ self.u + self.g / self.steepness)

    @property
    def errors(self) -> tuple[float, float]:
        """Distance to the surface to first order, and the part of u along the surface."""
        return abs(self.g) / self.steepness, float(np.linalg.norm(self.u - (self.alpha @ self.u) * self.alpha))

    def residual(self, multiplier: float) -> Array:
        """Gradient of |u|^2 / 2 + multiplier g."""
        return np.asarray(self.u + multiplier * self.slope)


class LimitState:
    """g(u) = sign (limit - functional), with derivatives; counts its runs."""

    def __init__(
        self, system: HybridSystem, t_span: Sequence[float], inputs: Inputs, functional: str, limit: float, sign: int,
        wrt: Sequence[str], p: Array, call: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.inputs, self.count = inputs, 0
        self._system, self._t_span, self._wrt, self._call = system, t_span, wrt, call
        self._limit, self._sign, self._p = limit, sign, p
        self.columns = list(system.parameter_indices(wrt))
        self._random = [self.columns.index(i) for i in inputs.indices]
        self.analysis, self._functional = cheapest(len(self.columns)), functional
        self._run = prepare(system, t_span, functional=functional, derivatives=self.analysis, wrt=wrt, **call)

    def parameters(self, u: Array) -> Array:
        """All parameters, (..., n_parameters), at u, (..., k)."""
        found = np.tile(self._p, (*u.shape[:-1], 1))
        found[..., self.inputs.indices] = self.inputs.from_normal(u)
        return found

    def of_values(self, values: Array) -> Array:
        """The limit state of values of the functional."""
        return np.asarray(self._sign * (self._limit - values))

    def sample(self, u: Array, *, gradient: bool = False, execution: Execution | None = None) -> Runs:
        """Runs at many points u, (n, k)."""
        self.count += len(u)
        analysis, wrt = (self.analysis, self._wrt) if gradient else (None, None)
        return evaluate(
            self._system, self._t_span, self.parameters(u), self._functional, analysis, wrt, self._call, execution
        )

    def slopes(self, u: Array, gradients: Array | None) -> Array:
        """Derivatives of the limit state by u, (..., k), from gradients of the functional by parameters."""
        own = -self._sign * np.asarray(gradients)[..., self._random]
        with np.errstate(over="ignore", invalid="ignore"):  # where a density vanishes
            return np.asarray((own[..., None, :] @ self.inputs.jacobian(u))[..., 0, :])

    def __call__(self, u: Array) -> LimitPoint:
        """Evaluate a point.

        Raises
        ------
        DaeHybridError
            The run fails or its gradient is refused.
        """
        self.count += 1
        run = self._run(self.parameters(u))
        gradient = np.asarray(run.gradient[self._functional])
        slope = self.slopes(u, gradient)
        if not np.isfinite(slope).all():
            raise UncertaintyError("The derivatives of the distributions are not finite at this point.")
        return LimitPoint(u, float(self.of_values(run.value)), slope, -self._sign * gradient, run.digest)


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """Runs around a point of the limit state surface, along its normal and the surface.

    Attributes
    ----------
    point : LimitPoint
    beside : ndarray, shape (n, k)
        Points whose runs have another sequence of events, or fail.
    curvature : ndarray, shape (k - 1,)
        ``1 + beta kappa`` with the principal curvatures kappa of the surface, ascending: below zero, the distance from
        the origin decreases along the surface. NaN where runs fail.
    tangents : ndarray, shape (k - 1, k)
        Principal directions.
    """

    point: LimitPoint
    beside: Array
    curvature: Array
    tangents: Array


def neighbourhood(limit_state: LimitState, point: LimitPoint) -> Neighbourhood:
    """Look around a point of the limit state surface, by 2 k runs."""
    k = point.u.size
    frame = np.linalg.qr(np.column_stack([point.alpha, np.eye(k)]))[0].T[:k]
    probes = point.u + BESIDE * np.vstack([frame, -frame])
    runs = limit_state.sample(probes, gradient=True)
    slopes = limit_state.slopes(probes, runs.gradients)
    hessian = frame[1:] @ (slopes[1:k] - slopes[k + 1 :]).T / (2 * BESIDE)
    beside, relative = probes[runs.digest != point.digest], point.beta / point.steepness * (hessian + hessian.T) / 2
    if not np.isfinite(relative).all():
        return Neighbourhood(point, beside, np.full(k - 1, np.nan), frame[1:])
    values, vectors = np.linalg.eigh(relative)
    return Neighbourhood(point, beside, 1 + values, vectors.T @ frame[1:])


def nearer_points(limit_state: LimitState, found: Neighbourhood, tolerance: float) -> Array:
    """Points with the other sign of the limit state nearer to the origin, (n, k), at most one per direction.

    They show that the distance has no minimum at the point found, and lie along directions in which it decreases.
    """
    point, size = found.point, float(np.linalg.norm(found.point.u))
    radius = size - 2 * tolerance * max(1.0, size)
    if radius <= 0:
        return np.empty((0, point.u.size))
    nearer = list[Array]()
    for tangent in found.tangents[found.curvature < 0]:
        for direction in (tangent, -tangent):
            probes = point.u + np.outer(FARTHER, direction)
            probes *= radius / np.linalg.norm(probes, axis=1, keepdims=True)
            across = limit_state.of_values(limit_state.sample(probes).values) * point.beta < 0
            nearer += list(probes[np.flatnonzero(across)[-1:]])
    return np.array(nearer).reshape(-1, point.u.size)


def search(limit_state: LimitState, start: Array, tolerance: float, max_iterations: int) -> LimitPoint:
    """Find a stationary point of the distance on the limit state surface.

    Sequential quadratic programming with the merit function of the improved HL-RF method; the Hessian of
    ``|u|^2 / 2 + lambda g``, which is the identity in HL-RF, has damped BFGS updates.

    Raises
    ------
    UncertaintyError
        The search does not converge.
    DaeHybridError
        The run at the start fails.
    """
    point, digests, hessian = limit_state(start), list[int](), np.eye(start.size)
    for _ in range(max_iterations):
        digests.append(point.digest)
        if point.steepness == 0:
            raise UncertaintyError(
                "The functional does not depend on the random parameters here: its gradient is zero."
            )
        off, along = point.errors
        if max(off, along) <= tolerance * max(1.0, float(np.linalg.norm(point.u))):
            return point
        direction, multiplier = _quadratic_step(point, hessian)
        following = _line_search(limit_state, point, direction, multiplier, digests)
        if following is not None:
            change = following.residual(multiplier) - point.residual(multiplier)
            hessian = _updated(hessian, following.u - point.u, change)
            point = following
        elif (hessian == np.eye(start.size)).all():
            raise UncertaintyError(_stuck("No step along the search direction reduces the merit", point, digests))
        else:
            hessian = np.eye(start.size)
    raise UncertaintyError(_stuck(f"{max_iterations} iterations were made", point, digests))


def _quadratic_step(point: LimitPoint, hessian: Array) -> tuple[Array, float]:
    """The step d to the minimum of u d + d^T H d / 2 with g + slope d = 0, and its Lagrange multiplier."""
    to_origin, across = np.linalg.solve(hessian, np.column_stack([point.u, point.slope])).T
    multiplier = float((point.g - point.slope @ to_origin) / (point.slope @ across))
    return -to_origin - multiplier * across, multiplier


def _line_search(
    limit_state: LimitState, point: LimitPoint, direction: Array, multiplier: float, digests: list[int]
) -> LimitPoint | None:
    """A point along the direction that reduces the merit function |u|^2 / 2 + c |g|; None if there is none.

    Digests of rejected points are added to those given.
    """
    u, g = point.u, point.g
    foot = float(abs(point.slope @ u - g)) / point.steepness  # distance of the tangent plane from the origin
    c = PENALTY * max(abs(multiplier), max(float(np.linalg.norm(u)), foot) / point.steepness)
    merit, expected = 0.5 * float(u @ u) + c * abs(g), float(u @ direction) - c * abs(g)
    length = min(1.0, LONGEST / float(np.linalg.norm(direction)))
    for _ in range(HALVINGS):
        try:
            other = limit_state(u + length * direction)
        except DaeHybridError:  # beyond the domain of the model, or beside an event that has no derivative
            other = None
        if other is not None:
            reached = 0.5 * float(other.u @ other.u) + c * abs(other.g)
            if reached <= merit + DECREASE * length * expected + ROUNDED * merit:
                return other
            digests.append(other.digest)
        length /= 2
    return None


def _updated(hessian: Array, step: Array, change: Array) -> Array:
    """The Hessian after a damped BFGS update, positive definite, by a step and the change of the gradient along it."""
    own = hessian @ step
    before, after = float(step @ own), float(step @ change)
    if after < DAMPED * before:
        weight = (1 - DAMPED) * before / (before - after)
        change = weight * change + (1 - weight) * own
        after = DAMPED * before
    found = hessian - np.outer(own, own) / before + np.outer(change, change) / after
    is_definite = np.isfinite(found).all() and np.linalg.eigvalsh(found)[0] > EPS * np.trace(found)
    return found if is_definite else np.eye(step.size)


def _stuck(what: str, point: LimitPoint, digests: Sequence[int]) -> str:
    off, along = point.errors
    changes = len(set(digests[-LAST:])) > 1
    why = " The sequence of events changes between the last points: the functional has a kink or a jump there."
    return (
        f"{what}; the last point is {off:.3g} standard deviations from the limit state surface, and {along:.3g} along "
        f"it from the foot of the normal.{why if changes else ''}"
    )


def design_points(
    state: LimitState, starts: Array, tolerance: float, max_iterations: int
) -> tuple[list[Neighbourhood], list[DaeHybridError], int]:
    """Distinct design points, nearest first, why searches found none, and the number of searches.

    From a stationary point at which the distance has no minimum, searches go on in the directions in which it
    decreases.
    """
    found, errors, searches = list[Neighbourhood](), list[DaeHybridError](), 0
    queue = [(start, np.inf) for start in starts]
    while queue and searches < len(starts) + MOST_FURTHER:
        (start, bound), searches = queue.pop(0), searches + 1
        try:
            point = search(state, start, tolerance, max_iterations)
            if abs(point.beta) >= bound:
                raise UncertaintyError(
                    f"The search found no point nearer than {bound:.4g}, although the limit state changes sign there."
                )
            if all(np.linalg.norm(point.u - other.point.u) > DISTINCT for other in found):
                around = neighbourhood(state, point)
                nearer = nearer_points(state, around, tolerance)
                queue += [(u, abs(point.beta)) for u in nearer]
                found += [] if len(nearer) else [around]
        except DaeHybridError as error:
            error.release()
            errors.append(error)
    if queue:
        errors.append(UncertaintyError(f"{len(queue)} searches from points nearer to the origin were not made."))
    return sorted(found, key=lambda one: abs(one.point.beta)), errors, searches + len(queue)


def check_nearest(state: LimitState, best: LimitPoint) -> int:
    """Refuse a point if the limit state changes sign between the origin and it; return how many runs fail there."""
    places = np.linspace(0, 1, ON_RAY, endpoint=False)
    values = state.of_values(state.sample(np.outer(places, best.u)).values)
    crossed = np.flatnonzero(values * best.beta < 0)
    if crossed.size and abs(best.beta) > AT_ORIGIN:
        distance = abs(best.beta)
        raise UncertaintyError(
            f"The searches found a point of the limit state surface at distance {distance:.4g}, but in its direction "
            f"the limit state has the other sign at distance {places[crossed[0]] * distance:.4g}: the point is not the "
            "nearest.",
            remedy="Increase starts=. If the functional jumps across the limit there, no design point exists: use "
            "monte_carlo.",
        )
    return int(np.isnan(values).sum())
