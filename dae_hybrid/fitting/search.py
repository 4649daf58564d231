"""Searches for the minimum of a misfit: SciPy's least squares, scalar methods, and the algorithms of optimagic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy
from scipy.optimize import least_squares, minimize

from dae_hybrid.errors import DaeHybridError, OptionError
from dae_hybrid.fitting.misfit import Evaluation, Misfit
from dae_hybrid.numeric_input import shown
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.optimization.evaluations import failure_penalty
from dae_hybrid.optimization.one_sided import OneSided

#: methods of `scipy.optimize.least_squares`, which take a Jacobian
LEAST_SQUARES = ("trf", "dogbox")
#: methods of `scipy.optimize.minimize` with a gradient and bounds
SCALAR = ("L-BFGS-B", "SLSQP")
#: slope of the cost, in terms of the largest one, at which a search that ends beside failing points has converged
STATIONARY = 1e-3
#: share of the largest cost below which residuals are errors of the runs
EXACT = 1e-10
#: options of optimizers that `fit` sets itself
RESERVED = ("fun", "x0", "jac", "bounds", "method", "loss", "f_scale", "callback", "args", "kwargs")
#: default tolerances of least squares and of scalar methods: the estimates then are about as accurate as the runs
FIT_TOLERANCE, SCALAR_TOLERANCE = 1e-11, 1e-9
#: analysis that gives the derivatives; None for methods without any
Derivatives = Literal["forward", "adjoint"] | None


class FitProgress(NamedTuple):
    """State of a running fit, passed to a function given as ``progress``.

    Attributes
    ----------
    start : int
        Number of the start, from 0.
    evaluations : int
        Evaluations of this start so far.
    cost, best : float
        Half the sum of the losses of the last evaluation (NaN if it failed), and the least one of this start.
    parameters : dict of float
        Free parameters of the last evaluation.
    """

    start: int
    evaluations: int
    cost: float
    best: float
    parameters: dict[str, float]


@dataclass(frozen=True, eq=False)
class Search:
    """Outcome of the search from one start.

    Attributes
    ----------
    start : ndarray, shape (n,)
    best : Evaluation or None
        The point of least cost; None if the start itself failed.
    success : bool
        Whether the optimizer reports convergence.
    message : str
    evaluations : int
        Number of points at which the experiments were run.
    failures : tuple of pair
        Points without values or derivatives, and the reasons.
    one_sided : tuple of OneSided
        Points at which derivatives are one-sided.
    """

    start: Array
    best: Evaluation | None
    success: bool
    message: str
    evaluations: int
    failures: tuple[tuple[Array, DaeHybridError], ...]
    one_sided: tuple[OneSided, ...]

    @property
    def cost(self) -> float:
        """Least cost; infinite if the start failed."""
        return np.inf if self.best is None else self.best.cost


class _StopSearch(Exception):
    """The progress function asked for a stop."""


@dataclass(eq=False)
class Track:
    """The evaluations of one search, at scaled values, and the functions that the optimizers call."""

    misfit: Misfit
    derivatives: Derivatives
    number: int
    report: Callable[[FitProgress], object] | None
    best: Evaluation | None = None
    largest: float = 0.0
    steepest: float = 0.0
    count: int = 0
    failures: list[tuple[Array, DaeHybridError]] = field(default_factory=list)
    one_sided: list[OneSided] = field(default_factory=list)
    _last: tuple[bytes, Evaluation] | None = None

    def at(self, s: Array) -> Evaluation:
        """Evaluate at scaled values; the last evaluation is kept."""
        key = np.asarray(s, dtype=float).tobytes()
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        q, misfit = self.misfit.free.natural(s), self.misfit
        evaluate = {"forward": misfit.linearised, "adjoint": misfit.differentiated, None: misfit.values}
        found = evaluate[self.derivatives](q)
        self._last, self.count = (key, found), self.count + 1
        if found.one_sided is not None:
            self.one_sided.append(found.one_sided)
        if found.error is not None:
            self.failures.append((q, found.error))
        else:
            self.largest = max(self.largest, found.cost)
            if found.gradient is not None:
                slopes = np.abs(found.gradient * misfit.free.slope(q))
                self.steepest = max(self.steepest, float(slopes.max(initial=0.0)))
            if self.best is None or found.cost < self.best.cost:
                self.best = found
        self._tell(found)
        return found

    def _tell(self, found: Evaluation) -> None:
        best = np.inf if self.best is None else self.best.cost
        parameters = dict(zip(self.misfit.free.labels, found.q.tolist(), strict=True))
        try:
            if self.report is not None:
                self.report(FitProgress(self.number, self.count, found.cost, best, parameters))
        except StopIteration:
            raise _StopSearch from None

    def is_stationary(self) -> bool:
        """Whether the cost has no slope at the best point, except towards bounds at which that is."""
        best, free = self.best, self.misfit.free
        if best is None or best.gradient is None or best.cost <= EXACT * self.largest:
            return True
        gradient = best.gradient * free.slope(best.q)
        inside = ~free.at_bounds(best.q, -best.gradient, np.abs(free.start))
        if best.jacobian is None:
            return bool(np.abs(gradient[inside]).max(initial=0.0) <= STATIONARY * self.steepest)
        # cosines between the residuals and their derivatives, with the weights of a robust loss
        lengths = np.linalg.norm(best.jacobian * free.slope(best.q), axis=0) * np.sqrt(2 * best.cost)
        return bool((np.abs(gradient) <= STATIONARY * lengths)[inside].all())

    # -- functions of the optimizers -----------------------------------------------------------------------

    def residuals(self, s: Array) -> Array:
        """Residuals; NaN at failures, where trust regions shrink."""
        return self.at(s).residuals

    def jacobian(self, s: Array) -> Array:
        """Derivative of the residuals by s."""
        found = self.at(s)
        if found.jacobian is None:
            return np.zeros((self.misfit.size, s.size))
        return found.jacobian * self.misfit.free.slope(found.q)

    def cost(self, s: Array) -> tuple[float, Array]:
        """Cost and its derivative by s; a large cost without a slope at failures."""
        found = self.at(s)
        if found.error is not None:
            return failure_penalty(self.largest), np.zeros(s.size)
        slope = np.zeros(0) if found.gradient is None else found.gradient * self.misfit.free.slope(found.q)
        return found.cost, slope

    def penalised(self, s: Array) -> Array:
        """Residuals; equal ones with a large cost at failures."""
        found = self.at(s)
        if found.error is None:
            return found.residuals
        return np.full(self.misfit.size, np.sqrt(2 * failure_penalty(self.largest) / self.misfit.size))


def search(
    misfit: Misfit, start: Array, optimizer: str, derivatives: Derivatives, options: Mapping[str, Any], number: int = 0,
    report: Callable[[FitProgress], object] | None = None,
) -> Search:  # fmt: skip
    """Search from one start, in natural values."""
    track, free = Track(misfit, derivatives, number, report), misfit.free
    s = free.scaled(start)
    success, message = False, ""
    if not isinstance(options, Mapping) or set(options) & set(RESERVED):
        raise OptionError(
            f"optimizer_options must be a mapping of options of {optimizer!r}, without those that fit sets itself "
            f"({', '.join(RESERVED)}), got {shown(options)}."
        )
    try:
        first = track.at(s)
        if first.error is not None:
            message = f"The start failed: {first.error.message}"
        elif optimizer in LEAST_SQUARES:
            success, message = _by_least_squares(track, s, optimizer, options)
        elif optimizer in SCALAR:
            success, message = _by_scalar(track, s, optimizer, options)
        else:
            success, message = _by_optimagic(track, s, optimizer, options)
    except _StopSearch:
        message = "Stopped by progress."
    except (TypeError, ValueError) as reason:
        if isinstance(reason, DaeHybridError) or not options:
            raise
        raise OptionError(f"{optimizer!r} refuses optimizer_options {shown(dict(options))}: {reason}") from reason
    if success and track.failures and not track.is_stationary():
        success, message = False, f"Stopped beside points that fail: {track.failures[-1][1].message}"
    return Search(start, track.best, success, message, track.count, tuple(track.failures), tuple(track.one_sided))


def _by_least_squares(track: Track, s: Array, optimizer: str, options: Mapping[str, Any]) -> tuple[bool, str]:
    misfit = track.misfit
    loss: dict[str, Any] = {} if misfit.loss == "linear" else {"loss": misfit.rho, "f_scale": misfit.f_scale}
    bounds = misfit.free.scaled_bounds
    call: dict[str, Any] = {"x_scale": "jac", "ftol": FIT_TOLERANCE, "xtol": FIT_TOLERANCE, **loss, **options}
    found = least_squares(track.residuals, s, track.jacobian, bounds=bounds, method=optimizer, **call)
    return bool(found.success), str(found.message)


def _by_scalar(track: Track, s: Array, optimizer: str, options: Mapping[str, Any]) -> tuple[bool, str]:
    bounds = np.column_stack(track.misfit.free.scaled_bounds)
    found = minimize(
        track.cost, s, jac=True, method=optimizer, bounds=bounds, tol=SCALAR_TOLERANCE, options=dict(options)
    )
    return bool(found.success), str(found.message)


def optimagic_algorithm(name: str) -> Any:
    """The information on an algorithm of optimagic.

    Raises
    ------
    ImportError
        optimagic is not installed.
    OptionError
        The name is unknown, or the algorithm's own package is not installed.
    """
    legal = f"Optimizers: {', '.join((*LEAST_SQUARES, *SCALAR))}, or an algorithm of optimagic"
    try:
        from optimagic.algorithms import ALL_ALGORITHMS
    except ImportError as reason:
        raise OptionError(
            f"Unknown optimizer {shown(name)}, and optimagic is not installed.",
            remedy=f"{legal}, which needs: pip install 'dae-hybrid[fit]'.",
        ) from reason
    algorithms: dict[str, Any] = dict(ALL_ALGORITHMS)
    available = sorted(key for key, own in algorithms.items() if own.__algo_info__.is_available)
    if not isinstance(name, str) or name not in algorithms:
        raise OptionError(f"Unknown optimizer {shown(name)}.", remedy=f"{legal}: {', '.join(available)}.")
    info = algorithms[name].__algo_info__
    if not info.is_available:
        raise OptionError(f"The package of optimagic's algorithm {name!r} is not installed.", remedy=f"{legal}.")
    if info.solver_type.name not in ("SCALAR", "LEAST_SQUARES"):
        raise OptionError(f"Algorithm {name!r} maximises likelihoods, not least squares.", remedy=f"{legal}.")
    return info


def _by_optimagic(track: Track, s: Array, optimizer: str, options: Mapping[str, Any]) -> tuple[bool, str]:
    import optimagic as om

    info, free = optimagic_algorithm(optimizer), track.misfit.free
    lower, upper = free.scaled_bounds
    bounds = om.Bounds(lower=lower, upper=upper) if info.supports_bounds else None
    if bounds is None and np.isfinite([lower, upper]).any():
        raise OptionError(f"Algorithm {optimizer!r} takes no bounds.", remedy="A log or logit scale needs none.")
    fun: Any
    if info.solver_type.name == "LEAST_SQUARES":
        if track.misfit.loss != "linear":
            raise OptionError(f"Algorithm {optimizer!r} takes plain least squares, not loss={track.misfit.loss!r}.")
        fun, jac = om.mark.least_squares(track.penalised), om.mark.least_squares(track.jacobian)
    else:
        fun, jac = om.mark.scalar(lambda s: track.cost(s)[0]), lambda s: track.cost(s)[1]
    found = om.minimize(
        fun=fun, params=s, algorithm=optimizer, jac=jac if info.needs_jac else None, bounds=bounds,
        algo_options=dict(options), collect_history=False,
    )  # fmt: skip
    return bool(found.success), str(found.message)


def latin_hypercube(lower: Array, upper: Array, count: int, seed: int | None) -> Array:
    """Points within bounds, shape (count, n)."""
    qmc = scipy.stats.qmc
    return np.asarray(qmc.scale(qmc.LatinHypercube(len(lower), rng=seed).random(count), lower, upper))
