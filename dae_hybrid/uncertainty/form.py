"""FORM: the first-order reliability method for a limit of a functional."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Unpack

import numpy as np
from scipy.special import logsumexp, ndtr

from dae_hybrid.ensembles.scheduling import EnsembleProgress
from dae_hybrid.ensembles.workers import ExecutorLike
from dae_hybrid.errors import DaeHybridError, OptionError
from dae_hybrid.interface.api import RunOptions
from dae_hybrid.interface.runs import Parameters
from dae_hybrid.numeric_input import shown
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.options import positive_integer
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.tables import align, counted, html
from dae_hybrid.uncertainty.design_point import (
    BESIDE,
    ON_RAY,
    LimitPoint,
    LimitState,
    Neighbourhood,
    check_nearest,
    design_points,
)
from dae_hybrid.uncertainty.errors import UncertaintyError, UncertaintyWarning
from dae_hybrid.uncertainty.inputs import Inputs, check_inputs, checked_seed, owners
from dae_hybrid.uncertainty.monte_carlo import replicate_points
from dae_hybrid.uncertainty.runs import (
    MAX_FAILED,
    Execution,
    check_continues,
    checked_call,
    checked_share,
    refuse_failures,
    scalar_functional,
    warn_of_failures,
)
from dae_hybrid.uncertainty.statistics import Estimate, by_replicates, threshold

#: distance of starts from the origin, in standard deviations
START = 2.0
#: the surface is taken for a sphere around the origin if 1 + beta kappa is below this, with a principal curvature kappa
SPHERE = 0.1
#: another design point matters if its index is larger by at most this
NEXT_BETA = 1.0
#: least effective number of runs in an estimate by importance sampling
FEW = 10


@dataclass(frozen=True, eq=False)
class DesignPoint:
    """A point of the limit state surface that is nearest to the origin, at least locally.

    Attributes
    ----------
    beta : float
        Its signed distance from the origin.
    u, x : ndarray, shape (k,)
        The point, as independent standard normal variables and as random parameters.
    """

    beta: float
    u: Array
    x: Array


@dataclass(frozen=True, eq=False)
class Form:
    """Result of the first-order reliability method; made by `form`.

    Attributes
    ----------
    functional : str
        Name of the functional.
    names : tuple of str
        Random parameters.
    beta : float
        Reliability index: distance of the limit state surface from the origin of standard normal space, negative if
        the origin fails.
    probability : float
        Probability of failure to first order, ``Phi(-beta)``.
    u, x : ndarray, shape (k,)
        Design point, as independent standard normal variables and as random parameters.
    alpha : ndarray, shape (k,)
        Unit normal of the surface at the design point, towards failure; ``u = beta alpha``.
    importance : ndarray, shape (k,)
        Importance factors; they add up to one. ``alpha_i^2`` for independent parameters, else those of the parameters
        linearised at the design point.
    gradient : ndarray, shape (n_wrt,)
        Gradient of beta: by design parameters, and by shifts of the distributions of random parameters.
    wrt : tuple of str
        Labels of its entries.
    others : tuple of DesignPoint
        Further design points that other starts found, nearest first.
    unsuccessful : tuple of DaeHybridError
        Why starts found none.
    beside : ndarray, shape (n, k)
        Points within 0.1 standard deviations of the design point, as standard normal variables, whose runs have another
        sequence of events or fail: the surface may have a kink or an edge there.
    n_runs : int
        Number of runs of the searches and checks.
    """

    functional: str
    names: tuple[str, ...]
    beta: float
    probability: float
    u: Array
    x: Array
    alpha: Array
    importance: Array
    gradient: Array
    wrt: tuple[str, ...]
    others: tuple[DesignPoint, ...]
    unsuccessful: tuple[DaeHybridError, ...]
    beside: Array
    n_runs: int
    _limit_state: LimitState = field(repr=False)

    @property
    def probability_gradient(self) -> Array:
        """Gradient of the probability of failure to first order, (n_wrt,)."""
        return np.asarray(-np.exp(-0.5 * self.beta**2) / np.sqrt(2 * np.pi) * self.gradient)

    @property
    def design_point(self) -> dict[str, float]:
        """The design point by name."""
        return dict(zip(self.names, self.x.tolist(), strict=True))

    def importance_sampling(
        self,
        n: int,
        *,
        replicates: int = 8,
        seed: int | None = 0,
        max_failed: float = MAX_FAILED,
        executor: ExecutorLike | None = None,
        workers: int | None = None,
        store: str | os.PathLike[str] | None = None,
        progress: bool | Callable[[EnsembleProgress], object] = False,
    ) -> Estimate:
        """Estimate the probability of failure from a sample around the design points, which sees curvature and kinks.

        Points are drawn from a mixture of standard normal distributions with equal shares: one around each of the
        design points found, and one around the origin, which sees failures elsewhere unless they are rare. If the
        origin fails, the probability of the complement is estimated. Runs that fail have no value beyond the limit: the
        estimate is the probability that a run succeeds and has one.

        Parameters
        ----------
        n, replicates, seed, max_failed, executor, workers, store, progress
            As in `monte_carlo`; scrambled Sobol points.

        Returns
        -------
        Estimate
            Its standard error is NaN if no run is on the other side of the limit from the origin.

        Raises
        ------
        OptionError
            An argument is invalid, or a replicate has fewer runs than the mixture has parts.
        UncertaintyError
            Too many runs failed, or `progress` ended them.

        Warns
        -----
        UncertaintyWarning
            Runs failed, or too few are on the other side of the limit from the origin.

        References
        ----------
        A. B. Owen, Y. Zhou, Safe and effective importance sampling, Journal of the American Statistical Association 95
        (2000), 135-143.
        """
        state, count, share = self._limit_state, positive_integer("n", n), checked_share(max_failed)
        parts = positive_integer("replicates", replicates)
        check_continues(store, seed)
        z = replicate_points(state.inputs, count, parts, "sobol", seed)
        centres = np.stack([np.zeros_like(self.u), self.u, *(point.u for point in self.others)])
        each = count // parts
        if each < len(centres):
            raise OptionError(
                f"n / replicates must be at least {len(centres)}, the number of design points and one; got {count} / "
                f"{parts}."
            )
        own = np.tile(np.arange(each) * len(centres) // each, parts)  # consecutive Sobol points are nearly balanced
        u, shares = z + centres[own], np.bincount(own) / count
        runs = state.sample(u, execution=Execution(executor, workers, store, progress))
        effect = "failed runs count as not beyond the limit."
        refuse_failures("run", runs.errors, share, effect)
        warn_of_failures("run", runs.errors, 2, effect.capitalize())
        weights = np.exp(-logsumexp(u @ centres.T - 0.5 * (centres**2).sum(axis=1), axis=1, b=shares))
        fails = state.of_values(runs.values) <= 0  # not where a run fails: its value is NaN
        is_safe = self.beta >= 0
        across = fails if is_safe else ~fails
        weights = np.where(across, weights, 0.0)
        found = by_replicates(weights, np.repeat(np.arange(parts), each), np.mean)
        effective = weights.sum() ** 2 / (weights @ weights) if across.any() else 0.0  # L. Kish, Survey Sampling, 1965
        if effective < FEW:
            warnings.warn(
                f"The estimate rests on an effective number of {effective:.2g} of {count} runs: it and its standard "
                "error are unreliable. Use more runs, or monte_carlo.",
                UncertaintyWarning,
                stacklevel=2,
            )
        error = found.standard_error if effective else np.nan
        return Estimate(found.value if is_safe else 1 - found.value, error)

    def __repr__(self) -> str:
        return f"<Form of '{self.functional}': beta {self.beta:.6g}, probability {self.probability:.4g}>"

    def _rows(self) -> list[list[str]]:
        rows = [["parameter", "design point", "u", "importance"]]
        for row in zip(self.names, self.x, self.u, self.importance, strict=True):
            rows.append([row[0], f"{row[1]:.6g}", f"{row[2]:.4f}", f"{row[3]:.4f}"])
        return rows

    def __str__(self) -> str:
        return "\n".join([repr(self), *align(self._rows())])

    def _repr_html_(self) -> str:
        return html(repr(self), self._rows())


def form(
    system: HybridSystem,
    t_span: Sequence[float],
    inputs: Inputs,
    *,
    above: float | None = None,
    below: float | None = None,
    functional: str | None = None,
    wrt: str | Sequence[str] | None = None,
    parameters: Parameters = None,
    starts: int = 3,
    tolerance: float = 1e-4,
    max_iterations: int = 100,
    seed: int | None = 0,
    adapter: str = "sundials",
    **options: Unpack[RunOptions],
) -> Form:
    """Probability that a functional exceeds a limit, by the first-order reliability method.

    Parameters
    ----------
    system, t_span, adapter, **options
        As in `simulate`.
    inputs : Inputs
        Distributions of the random parameters.
    above, below : float
        The limit; give one: failure is a value above, or below, it.
    functional : str, optional
        Name of a scalar functional; optional if the model has only one.
    wrt : str or sequence of str, optional
        Parameters to differentiate beta by, design or random, vectors as a whole; default all.
    parameters : mapping, labelled array or array, optional
        Values of the design parameters; default nominal.
    starts : int
        Number of first searches: from the origin (the medians), and from random points at distance 2.
    tolerance : float
        Allowed distance from the limit state surface and along it, in standard deviations, relative to max(1, |u|).
    max_iterations : int
        Limit for each search.
    seed : int or None
        Seed of the random starts.

    Returns
    -------
    Form
        Reliability index, probability, design point, importance factors and gradient.

    Raises
    ------
    UncertaintyError
        No search converged, or the limit state changes sign between the origin and the point found.
    ParameterError, OptionError, UnsupportedError
        An argument is invalid or not supported.

    Warns
    -----
    UncertaintyWarning
        The sequence of events changes beside the design point; runs fail beside it, or between it and the origin;
        another design point is almost as near; the surface curves around the origin almost like a sphere; or a search
        failed.

    Notes
    -----
    The search is sequential quadratic programming with exact gradients, the merit function of the improved HL-RF method
    [1]_ and damped BFGS updates [2]_ of the Hessian; a step to a point whose run fails is shortened. Principal
    curvatures of the surface, by differences of gradients, show whether a point found is a minimum of the distance; if
    not, searches go on from points nearer to the origin. The limit state surface is replaced by its tangent plane at
    the design point: `Form.importance_sampling` shows what that neglects.

    References
    ----------
    .. [1] Y. Zhang, A. Der Kiureghian, Two improved algorithms for reliability analysis, in: Reliability and
       Optimization of Structural Systems, Chapman & Hall, 1995, 297-304.
    .. [2] M. J. D. Powell, A fast algorithm for nonlinearly constrained optimization calculations, in: Numerical
       Analysis, Lecture Notes in Mathematics 630, Springer, 1978, 144-157.

    Examples
    --------
    >>> from scipy import stats
    >>> import dae_hybrid as dh
    >>> m = dh.HybridModel("strength")
    >>> r, s, y = m.parameter("r", 1.0), m.parameter("s", 1.0), m.differential("y")
    >>> m.initial(m.mode("run", ode={y: -s}), {y: r})
    >>> m.functional("margin", terminal=y)
    >>> strength = m.build()
    >>> inputs = dh.Inputs(strength, {"r": stats.norm(200, 10), "s": stats.norm(100, 20)})
    >>> found = dh.form(strength, (0, 1), inputs, below=0)
    >>> round(found.beta, 4), found.x.round(3), found.importance.round(3)  # exact: 100 / sqrt(10^2 + 20^2)
    (4.4721, array([180., 180.]), array([0.2, 0.8]))
    """
    own, name = check_inputs(inputs, system), scalar_functional(system, functional)
    limit, sign = threshold(above, below)
    count, most = positive_integer("starts", starts), positive_integer("max_iterations", max_iterations)
    number = isinstance(tolerance, int | float | np.number) and not isinstance(tolerance, bool)
    if not number or not 0 < tolerance < 1:
        raise OptionError(f"tolerance must be a number between 0 and 1, got {shown(tolerance)}.")
    call = checked_call(adapter, options)
    wanted, p = system.parameter_indices(wrt), own.design(parameters)
    state = LimitState(system, t_span, own, name, limit, sign, owners(system, {*wanted, *own.indices}), p, call)
    distinct, errors, searches = design_points(state, _starts(len(own), count, seed), float(tolerance), most)
    if not distinct:
        raise _unconverged(errors)
    best, *others = (one.point for one in distinct)
    failed_on_ray = check_nearest(state, best)
    _warn(distinct, errors, searches, failed_on_ray)
    labels = system.parameters.labels()
    return Form(
        functional=name, names=own.names, beta=best.beta, probability=float(ndtr(-best.beta)), u=best.u,
        x=own.from_normal(best.u), alpha=best.alpha, importance=_importance(own, best),
        gradient=best.by_parameters[[state.columns.index(i) for i in wanted]] / best.steepness,
        wrt=tuple(labels[i] for i in wanted),
        others=tuple(DesignPoint(other.beta, other.u, own.from_normal(other.u)) for other in others),
        unsuccessful=tuple(errors), beside=distinct[0].beside, n_runs=state.count, _limit_state=state,
    )  # fmt: skip


def _starts(k: int, count: int, seed: int | None) -> Array:
    found = np.random.default_rng(checked_seed(seed)).standard_normal((count, k))
    found *= START / np.linalg.norm(found, axis=1, keepdims=True)
    found[0] = 0.0
    return found


def _unconverged(errors: Sequence[DaeHybridError]) -> UncertaintyError:
    first = errors[0]
    found = UncertaintyError(
        f"No design point was found from {counted(len(errors), 'start')}. The first: {type(first).__name__}: "
        f"{first.message}",
        remedy="Compare with monte_carlo: the limit may be out of reach, or the functional may jump; tighter rtol and "
        "atol make gradients accurate; starts= gives more starts.",
    )
    found.errors = tuple(errors)  # type: ignore[attr-defined]
    return found


def _importance(inputs: Inputs, point: LimitPoint) -> Array:
    jacobian = inputs.jacobian(point.u)
    spread = np.linalg.norm(jacobian, axis=1)  # standard deviations of the linearised parameters
    gamma = np.linalg.solve(jacobian.T, point.alpha) * spread
    return np.asarray(gamma**2 / (gamma @ gamma))


def _warn(
    distinct: Sequence[Neighbourhood], errors: Sequence[DaeHybridError], searches: int, failed_on_ray: int
) -> None:
    best, others = distinct[0], [one.point.beta for one in distinct[1:]]
    beta = best.point.beta
    texts = list[str]()
    if count := len(best.beside):
        texts.append(
            f"The sequence of events changes within {BESIDE:g} standard deviations of the design point, or runs fail "
            f"there ({counted(count, 'point')}): the limit state surface may have a kink or an edge, which FORM "
            "ignores. Form.importance_sampling shows its effect."
        )
    if (best.curvature < SPHERE).any():
        texts.append(
            f"The limit state surface curves around the origin almost like a sphere of radius {abs(beta):.4g}: "
            "the probability of failure may be far from that of the tangent plane, and failures may lie far from the "
            "design point. Compare with monte_carlo."
        )
    if others and abs(others[0]) <= abs(beta) + NEXT_BETA:
        side = "larger" if beta > 0 else "smaller"  # the other surface bounds more failures, or more safety
        texts.append(
            f"Besides the nearest design point, with beta {beta:.4g}, there is another design point, with beta "
            f"{others[0]:.4g}: the probability of failure is {side} than that of one tangent plane."
        )
    if failed_on_ray:
        texts.append(
            f"{failed_on_ray} of {ON_RAY} runs between the origin and the design point fail: a nearer part of the "
            "limit state surface may be hidden there."
        )
    if errors:
        texts.append(
            f"{len(errors)} of {searches} searches found no design point, the first with "
            f"{type(errors[0]).__name__}: {errors[0].message} A nearer or another design point may be missing: "
            "increase starts=, or compare with monte_carlo."
        )
    for text in texts:
        warnings.warn(text, UncertaintyWarning, stacklevel=3)
