"""The result of a fit: estimates, their accuracy, and predictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri, stdtrit

from dae_hybrid.errors import AssumptionError, DaeHybridError, OptionError, ParameterError
from dae_hybrid.fitting import figures
from dae_hybrid.fitting.bands import Bands, bands
from dae_hybrid.fitting.free_parameters import FreeParameters
from dae_hybrid.fitting.inference import Conditioning, covariance
from dae_hybrid.fitting.misfit import Evaluation, Misfit
from dae_hybrid.fitting.prediction import Prediction
from dae_hybrid.fitting.profile import Profile, profile
from dae_hybrid.fitting.search import Search
from dae_hybrid.numeric_input import shown
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.optimization.one_sided import OneSided, in_lines
from dae_hybrid.tables import align, html


@dataclass(frozen=True, eq=False)
class Fit:
    """Estimates from data; printing it gives a table.

    Attributes
    ----------
    labels : tuple of str
        Free parameters, in the order of all arrays: ``k``, ``k[0]`` of a vector, ``k(name)`` of an experiment.
    estimates : ndarray, shape (n,)
    cost : float
        Half the sum of the losses, priors and penalties included.
    success : bool
        Whether the optimizer reports convergence.
    message : str
        Its reason to stop.
    searches : tuple of Search
        Searches from all starts, best first.
    optimizer : str

    Notes
    -----
    Standard errors and intervals are linear approximations (Seber and Wild 1989, section 5.1); `profile` is not. They
    treat parameters at a bound as known.
    """

    misfit: Misfit = field(repr=False)
    searches: tuple[Search, ...] = field(repr=False)
    optimizer: str
    rtol: float = field(repr=False)
    sigma_is_known: bool = field(repr=False)

    # -- estimates --------------------------------------------------------------------------------------

    @property
    def _free(self) -> FreeParameters:
        return self.misfit.free

    @property
    def _best(self) -> Evaluation:
        found = self.searches[0].best
        assert found is not None
        return found

    @property
    def labels(self) -> tuple[str, ...]:
        """Free parameters."""
        return self._free.labels

    @property
    def estimates(self) -> Array:
        """Estimates, shape (n,)."""
        return self._best.q.copy()

    @property
    def parameters(self) -> Mapping[str, float]:
        """Estimates by label; ``simulate(parameters=fit.parameters)`` uses them if no parameter is local."""
        return MappingProxyType(dict(zip(self.labels, self.estimates.tolist(), strict=True)))

    @property
    def cost(self) -> float:
        """Half the sum of the losses."""
        return self._best.cost

    @property
    def success(self) -> bool:
        """Whether the optimizer reports convergence."""
        return self.searches[0].success

    @property
    def message(self) -> str:
        """Reason of the optimizer to stop."""
        return self.searches[0].message

    @property
    def experiments(self) -> tuple[str, ...]:
        """Names of the experiments."""
        return tuple(p.name for p in self.misfit.predictions)

    def parameters_of(self, experiment: str) -> dict[str, float]:
        """All parameter values of an experiment, by label, for `simulate`."""
        prediction = self._prediction(experiment)
        labels = prediction.system.parameters.labels()
        return dict(zip(labels, prediction.parameters(self._best.q).tolist(), strict=True))

    @property
    def failures(self) -> tuple[tuple[dict[str, float], DaeHybridError], ...]:
        """Points at which a run failed or has no derivatives, with the errors, over all starts."""
        found = (pair for search in self.searches for pair in search.failures)
        return tuple((dict(zip(self.labels, q.tolist(), strict=True)), error) for q, error in found)

    @property
    def one_sided(self) -> tuple[OneSided, ...]:
        """Points at which derivatives are one-sided, with the side that was taken, over all starts."""
        return tuple(own for search in self.searches for own in search.one_sided)

    @property
    def evaluations(self) -> int:
        """Points at which the experiments were run, over all starts."""
        return sum(search.evaluations for search in self.searches)

    # -- residuals --------------------------------------------------------------------------------------

    @property
    def residuals(self) -> Mapping[str, Array]:
        """Residuals (predicted - measured) / sigma by experiment."""
        parts = self.misfit.part
        return MappingProxyType({name: parts(self._best.residuals, i) for i, name in enumerate(self.experiments)})

    @property
    def chi2(self) -> float:
        """Sum of the squared residuals of the data."""
        return float((self._best.residuals[: self.misfit.n_data] ** 2).sum())

    @property
    def degrees_of_freedom(self) -> int:
        """Number of values less the number of combinations of parameters that they determine."""
        return self.misfit.n_data - self.conditioning.rank

    @property
    def variance(self) -> float:
        """Variance of a residual: one if sigma is given, else estimated from the residuals.

        Raises
        ------
        AssumptionError
            It has to be estimated from no more values than parameters.
        """
        if self.sigma_is_known:
            return 1.0
        if self.degrees_of_freedom < 1:
            raise AssumptionError(
                f"{self.misfit.n_data} values leave no degree of freedom to estimate their variance with.",
                remedy="Give sigma, the standard deviations of the values.",
            )
        return self.chi2 / self.degrees_of_freedom

    @property
    def log_likelihood(self) -> float:
        """Logarithm of the likelihood of the data for normal errors, at the maximum-likelihood variance if unknown.

        Raises
        ------
        AssumptionError
            The loss is robust, so that the estimates do not maximise it.
        """
        if self.misfit.loss != "linear":
            raise AssumptionError(f"Estimates with loss={self.misfit.loss!r} do not maximise a normal likelihood.")
        n, sigma = self.misfit.n_data, self.misfit.sigma
        scale = np.log(2 * np.pi) + 2 * np.log(sigma).mean()
        if self.sigma_is_known:
            return float(-0.5 * (n * scale + self.chi2))
        return float(-0.5 * n * (scale + np.log(self.chi2 / n) + 1))

    @property
    def aic(self) -> float:
        """Akaike's information criterion; an unknown variance counts as a parameter."""
        return 2 * (len(self.labels) + (not self.sigma_is_known)) - 2 * self.log_likelihood

    # -- accuracy ---------------------------------------------------------------------------------------

    @cached_property
    def at_bound(self) -> NDArray[np.bool_]:
        """Whether each estimate is at a bound, towards which the cost falls, (n,)."""
        return self._free.at_bounds(self._best.q, -self._gradient, np.abs(self._free.start))

    @cached_property
    def _linearised(self) -> Evaluation:
        if self._best.jacobian is not None:
            return self._best
        found = self.misfit.linearised(self._best.q)
        if found.error is not None:
            raise found.error
        self.refuse_one_sided(found.one_sided)
        return found

    def refuse_one_sided(self, found: OneSided | None) -> None:
        """Refuse estimates at which the derivatives that were taken are those of one of two sides.

        Raises
        ------
        OneSidedError
            They are, and bounds do not exclude the other side.
        """
        if found is None or not self.misfit.differs(np.array(list(found.parameters.values()))):
            return
        first, *others = self.searches
        ended = replace(first, success=False, message="Derivatives are one-sided at the optimum.")
        raise found.refusal(
            f"cost {self.cost:.6g}",
            replace(self, searches=(ended, *others)),
            "Leave out the values at that time (NaN, or weight zero), fit from other starts, or exclude one side by "
            "bounds.",
        )

    @property
    def _gradient(self) -> Array:
        gradient = self._linearised.gradient if self._best.gradient is None else self._best.gradient
        assert gradient is not None
        return gradient

    @property
    def jacobian(self) -> Array:
        """Derivatives of the residuals of data, priors and penalties by the parameters, shape (m, n)."""
        found = self._linearised.jacobian
        assert found is not None
        return found

    @property
    def information(self) -> Array:
        """Fisher information J^T J / variance, with priors and penalties, shape (n, n)."""
        return np.asarray(self.jacobian.T @ self.jacobian / self.variance)

    @cached_property
    def conditioning(self) -> Conditioning:
        """Condition indices and combinations of parameters that the data determine poorly."""
        inside = ~self.at_bound
        labels = tuple(label for label, kept in zip(self.labels, inside, strict=True) if kept)
        return Conditioning.of(self.jacobian[:, inside], labels, self.rtol)

    @cached_property
    def covariance(self) -> Array:
        """Covariance of the estimates, shape (n, n).

        Zero for parameters at a bound; infinite variances and NaN covariances for parameters that the data do not
        determine. For robust losses the estimate of Huber (1981, section 7.6).
        """
        inside = np.flatnonzero(~self.at_bound)
        found, jacobian = np.zeros((len(self.labels),) * 2), self.jacobian[:, inside]
        found[np.ix_(inside, inside)] = covariance(
            self.conditioning, self.misfit, jacobian, self._best.residuals, self.variance
        )
        return found

    def variances(self, rows: Array) -> Array:
        """Variances of combinations of the parameters, (k,), from their coefficients (k, n).

        Infinite where the data do not determine a combination; parameters at a bound are known.
        """
        inside = ~self.at_bound
        if self.misfit.loss == "linear":
            return self.conditioning.variances(rows[:, inside]) * self.variance
        return np.einsum("ij,jk,ik->i", rows[:, inside], self.covariance[np.ix_(inside, inside)], rows[:, inside])

    @property
    def standard_errors(self) -> Array:
        """Standard errors, shape (n,); zero at a bound, infinite if the data do not determine the parameter."""
        return np.sqrt(np.diag(self.covariance))

    @property
    def correlation(self) -> Array:
        """Correlations of the estimates, shape (n, n); NaN for parameters at a bound or not determined."""
        errors = self.standard_errors
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(self.covariance / np.outer(errors, errors))

    def quantile(self, level: float = 0.95) -> float:
        """Two-sided quantile of an estimate's error: Student's t, or normal if sigma is given."""
        _check_level(level)
        tail = 0.5 + 0.5 * level
        return float(ndtri(tail) if self.sigma_is_known else stdtrit(self.degrees_of_freedom, tail))

    def intervals(self, level: float = 0.95) -> Array:
        """Confidence intervals, shape (n, 2), symmetric in the scale of each parameter and within its bounds."""
        s, slope = self._free.scaled(self._best.q), self._free.slope(self._best.q)
        width = self.quantile(level) * self.standard_errors / slope
        return np.column_stack([self._free.natural(s + side * width) for side in (-1, 1)])

    def profile(self, label: str, *, level: float = 0.95, points: int = 40) -> Profile:
        """Profile likelihood of a parameter: the cost minimised over all others.

        Parameters
        ----------
        label : str
            Free parameter.
        level : float
            Level of the confidence interval.
        points : int
            Largest number of points on each side.

        Returns
        -------
        Profile
            The points and the interval.

        Raises
        ------
        ParameterError
            It is no free parameter, or is at a bound.
        AssumptionError
            The loss is robust, so that the cost is no likelihood.
        """
        _check_level(level)
        return profile(self, self._free.index(label), level, points)

    def predict(
        self,
        names: str | Sequence[str],
        t: ArrayLike,
        *,
        experiment: str | None = None,
        parameters: Mapping[str, ArrayLike] | None = None,
        t_span: Sequence[float] | None = None,
        level: float = 0.95,
    ) -> Bands:
        """Predict outputs with confidence bands, by the derivatives at the estimates.

        Parameters
        ----------
        names : str or sequence of str
            Variables, memory or signals.
        t : array, shape (n_t,)
            Increasing times.
        experiment : str, optional
            Name of the experiment whose system, initial values and parameters hold; by default the first one.
        parameters : mapping, optional
            Other values of parameters that are not free.
        t_span : (float, float), optional
            By default from the experiment's start to the last time.
        level : float
            Pointwise level of the bands.

        Returns
        -------
        Bands
            Outputs, their standard errors and bands.

        Raises
        ------
        ParameterError
            A name, time or parameter is not legal.

        Notes
        -----
        At the time of an event an output is the value on the experiment's side, after it by default.
        """
        _check_level(level)
        return bands(self, self._prediction(experiment), names, t, parameters, t_span, level)

    def _prediction(self, experiment: str | None) -> Prediction:
        if experiment is None:
            return self.misfit.predictions[0]
        if experiment not in self.experiments:
            raise ParameterError(
                f"There is no experiment {shown(experiment)}.", remedy=f"Experiments: {', '.join(self.experiments)}."
            )
        return self.misfit.predictions[self.experiments.index(experiment)]

    # -- pictures and tables ----------------------------------------------------------------------------

    def plot(self, *names: str, experiments: Sequence[str] | None = None, level: float | None = 0.95) -> Any:
        """Draw data and predictions, one panel per experiment and variable.

        Parameters
        ----------
        *names : str
            Variables; by default all with data.
        experiments : sequence of str, optional
            Names of experiments; by default all.
        level : float or None
            Level of the confidence bands; None draws none.

        Returns
        -------
        matplotlib.figure.Figure
        """
        chosen = [self._prediction(name) for name in (self.experiments if experiments is None else experiments)]
        return figures.plot_fit(self, chosen, names, level)

    def plot_residuals(self) -> Any:
        """Draw the residuals over time, and against normal quantiles."""
        return figures.plot_residuals(self)

    def plot_correlation(self) -> Any:
        """Draw the correlations of the estimates."""
        return figures.plot_correlation(self)

    def _rows(self) -> list[list[str]]:
        errors, (low, high) = self._errors()
        rows = [["parameter", "estimate", "standard error", "95 % interval", ""]]
        for i, (label, value) in enumerate(self.parameters.items()):
            at = "at a bound" if self.at_bound[i] else ""
            at = "not determined by the data" if np.isinf(errors[i]) else at
            interval = f"{low[i]:.5g} to {high[i]:.5g}" if np.isfinite(errors[i]) and not at else ""
            error = f"{errors[i]:.3g}" if np.isfinite(errors[i]) and not at else ""
            rows.append([label, f"{value:.6g}", error, interval, at])
        return rows

    def _errors(self) -> tuple[Array, Array]:
        """Standard errors and intervals, or NaN where they do not exist."""
        try:
            return self.standard_errors, self.intervals().T
        except DaeHybridError:
            return np.full(len(self.labels), np.nan), np.full((2, len(self.labels)), np.nan)

    def __repr__(self) -> str:
        ended = "" if self.success else f", not converged: {self.message}"
        return (
            f"<Fit of {len(self.labels)} parameters to {self.misfit.n_data} values: chi^2 = {self.chi2:.6g}, "
            f"{self.evaluations} evaluations{ended}>"
        )

    def __str__(self) -> str:
        lines = [repr(self), *align(self._rows(), left=(0, 4))]
        counts = Counter(str(error.message) for _, error in self.failures)
        lines += [f"{count} points without values or derivatives: {why}" for why, count in counts.most_common(3)]
        return "\n".join(lines + in_lines(self.one_sided))

    def _repr_html_(self) -> str:
        return html(repr(self), self._rows())


def _check_level(level: float) -> None:
    if isinstance(level, bool) or not isinstance(level, int | float | np.number) or not 0 < level < 1:
        raise OptionError(f"level must be between 0 and 1, got {shown(level)}.")
