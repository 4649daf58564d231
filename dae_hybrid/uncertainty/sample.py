"""A sample of a functional of random parameters: its statistics and their gradients."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.ensembles.export import refuse_twice
from dae_hybrid.errors import AssumptionError, DaeHybridError, DerivativeWarning, OptionError, UnsupportedError
from dae_hybrid.numeric_input import shown
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.optimization.changes import Change
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.tables import align, counted, html
from dae_hybrid.trajectory.datasets import optional
from dae_hybrid.uncertainty import statistics as of_values
from dae_hybrid.uncertainty.inputs import Inputs
from dae_hybrid.uncertainty.jumps import Points, Search, changes_in
from dae_hybrid.uncertainty.runs import refuse_failures
from dae_hybrid.uncertainty.statistics import (
    Estimate,
    Tail,
    by_replicates,
    check_level,
    check_tail,
    jackknife,
    threshold,
)

type Statistic = Literal["mean", "variance", "std", "cvar"]
STATISTICS = ("mean", "variance", "std", "cvar")
#: two derivatives are equal within this relative difference
EQUAL = 1e-9


@dataclass(frozen=True, eq=False)
class MonteCarlo:
    """A sample of a functional, its statistics and their gradients; made by `monte_carlo`.

    Attributes
    ----------
    system : HybridSystem
        The system that was run.
    inputs : Inputs
        Distributions of the random parameters.
    functional : str
        Name of the functional.
    parameters : ndarray, shape (N, n_parameters)
        Parameters of each run.
    values : ndarray, shape (N,)
        Values of the functional; NaN where the run failed.
    gradients : ndarray, shape (N, n_wrt), or None
        Gradients, if requested; NaN where the run failed or the gradient was refused.
    wrt : tuple of str
        Labels of the columns of `gradients`.
    errors, refusals : tuple of DaeHybridError or None
        Why values and gradients are missing.
    digest : ndarray of int, shape (N,)
        Digests of the sequences of events, see `Batch`; 0 where a value or a requested gradient is missing.
    replicate : ndarray of int, shape (N,)
        Replicate that each run belongs to.

    Statistics are those of the runs that succeeded: if runs failed, they are conditional on success. Their share is
    `failed_share`; a warning names it, and statistics above ``max_failed`` are refused with an `UncertaintyError`.
    The values, parameters and errors remain available. Statistics are `Estimate` objects with a standard error by the
    jackknife over the R independent replicates: from the statistics t_r of the sample without replicate r, it is
    ``sqrt((R - 1) / R sum_r (t_r - mean(t))^2)``, with R - 1 degrees of freedom. For the mean this is the standard
    deviation of the means of the replicates, divided by sqrt(R).

    References
    ----------
    B. Efron, C. Stein, The jackknife estimate of variance, Annals of Statistics 9 (1981), 586-596.
    """

    system: HybridSystem
    inputs: Inputs
    functional: str
    parameters: Array
    values: Array
    gradients: Array | None
    wrt: tuple[str, ...]
    errors: tuple[DaeHybridError | None, ...]
    refusals: tuple[DaeHybridError | None, ...]
    digest: NDArray[np.int64]
    replicate: NDArray[np.int64]
    _max_failed: float = field(repr=False)
    _u: Array = field(repr=False)
    _t_span: Sequence[float] = field(repr=False)
    _call: Mapping[str, Any] = field(repr=False)
    _by_random: Array | None = field(repr=False)
    _searches: dict[Any, Search] = field(default_factory=dict, repr=False)

    @property
    def ok(self) -> NDArray[np.bool_]:
        """Whether each run has a value, shape (N,)."""
        return np.isfinite(self.values)

    @property
    def failed_share(self) -> float:
        """Share of the runs that failed."""
        return float(1 - self.ok.mean())

    @property
    def mean(self) -> Estimate:
        """Mean."""
        return self._estimate(np.mean)

    @property
    def variance(self) -> Estimate:
        """Unbiased variance."""
        return self._estimate(lambda values: values.var(ddof=1))

    @property
    def std(self) -> Estimate:
        """Standard deviation, the root of `variance`."""
        return self._estimate(lambda values: values.std(ddof=1))

    @property
    def skewness(self) -> Estimate:
        """Third standardised moment; NaN if all values are equal."""
        return self._estimate(of_values.skewness)

    @property
    def kurtosis(self) -> Estimate:
        """Excess kurtosis: the fourth standardised moment minus 3; NaN if all values are equal."""
        return self._estimate(of_values.kurtosis)

    def quantile(self, q: float) -> Estimate:
        """The smallest value at or below which a share q of the sample lies, 0 < q < 1.

        The standard error is NaN if less than one run is expected on a side: the sample does not determine it.
        """
        level = check_level("q", q, is_open=True)
        found = self._estimate(lambda values: of_values.quantile(values, level))
        return self._if_resolved(found, min(level, 1 - level))

    def cvar(self, level: float, tail: Tail = "upper") -> Estimate:
        """Conditional value at risk: the mean of the worst share 1 - level.

        Parameters
        ----------
        level : float
            0 <= level < 1; 0 gives the mean. The tail contains ``n (1 - level)`` runs; a fraction of a run has that
            share of its weight. The standard error is NaN if it contains less than one run.
        tail : {"upper", "lower"}
            Whether large or small values are the worst.

        References
        ----------
        R. T. Rockafellar, S. Uryasev, Conditional value-at-risk for general loss distributions, Journal of Banking &
        Finance 26 (2002), 1443-1471.
        """
        own, which = check_level("level", level, is_open=False), check_tail(tail)
        found = self._estimate(lambda values: of_values.cvar(values, own, which))
        return self._if_resolved(found, 1 - own)

    def probability(self, *, above: float | None = None, below: float | None = None) -> Estimate:
        """Probability that the functional is above, or below, a value.

        The standard error is NaN if all or no runs exceed the value: the sample does not determine it.
        """
        limit, sign = threshold(above, below)
        found = self._estimate(lambda values: (sign * (values - limit) > 0).mean())
        return found if 0 < found.value < 1 else Estimate(found.value, np.nan)

    def gradient(
        self, of: Statistic, *, level: float | None = None, tail: Tail = "upper", strict: bool = True
    ) -> Estimate:
        """Gradient of a statistic of the sample by the parameters `wrt`.

        For a design parameter it is the derivative at fixed random parameters; for a random parameter, the derivative
        by a shift of its distribution. It is exact for the sample: differences of the statistic with the same random
        numbers converge to it.

        Parameters
        ----------
        of : {"mean", "variance", "std", "cvar"}
        level, tail
            Those of `cvar`.
        strict : bool
            Refuse a gradient where the functional jumps between runs of the sample, or runs failed (default): the
            derivative of the statistic over the distribution then has a term that the sample lacks. False makes it a
            `DerivativeWarning`.

        Returns
        -------
        Estimate
            value and standard_error, shape (n_wrt,).

        Raises
        ------
        UnsupportedError
            A quantile or a probability: the gradient of a sample's quantile is that of a single run, and that of a
            probability is zero; neither converges to that of the distribution. `form` gives that of a probability.
        AssumptionError
            The functional jumps within the sample, runs failed, or runs with equal values at the edge of the tail have
            different gradients.
        UncertaintyError
            Too many gradients are missing.
        OptionError
            No gradients were requested, or an argument is invalid.

        Notes
        -----
        Jumps are looked for on the lines between runs that are neighbours and have different sequences of events: of
        all runs, or of those in the tail. The gradients at both ends bound the jump on a line without further runs.
        Others are searched by bisection, up to 20 for each pair of adjacent sequences, alternately the most suspicious
        and one at random, with at most N / 4 further runs (400 if N is below 1600). If pairs remain, a
        `DerivativeWarning` names their number; if values beside them differ by more than the gradients explain, the
        gradient is refused. Jumps that together are below 1 % of the standard deviation may be passed over. `changes`
        returns what was found. A jump on a part of a border that no such line crosses, to a sequence that no run has,
        or within one sequence is not seen.
        """
        if not isinstance(strict, bool | np.bool_):
            raise OptionError(f"strict must be True or False, got {shown(strict)}.")
        weights, used = self._weights(of, level, tail)
        gradients = self.gradients
        assert gradients is not None
        self._check_borders(of, level, tail, strict)
        parts = []
        for r in range(int(self.replicate.max()) + 1):
            without = used & (self.replicate != r)
            parts.append(
                self._weighed(of, level, tail, without) if without.sum() > 1 else np.full(len(self.wrt), np.nan)
            )
        return Estimate(weights @ gradients[used], jackknife(parts))

    def changes(
        self, of: Statistic = "mean", *, level: float | None = None, tail: Tail = "upper"
    ) -> tuple[Change, ...]:
        """Changes of the sequence of events between neighbours in the sample, as `gradient` looks for them.

        Positions are along the line through two runs, which are at 1 and 2. Takes further runs on first access.
        """
        return self._search(of, level, tail).changes

    def _search(self, of: object, level: float | None, tail: object) -> Search:
        weights, used = self._weights(of, level, tail)
        key = (of == "cvar", level, tail) if of == "cvar" else False
        if key not in self._searches:
            assert self._by_random is not None
            points = Points(
                self._u[used], self.parameters[used], self.values[used], self._by_random[used], self.inputs.indices,
                self.digest[used], weights != 0 if of == "cvar" else np.ones(weights.size, dtype=bool),
            )  # fmt: skip
            self._searches[key] = changes_in(self.system, self._t_span, self.functional, points, self._call)
        return self._searches[key]

    @property
    def _has_gradient(self) -> NDArray[np.bool_]:
        return np.array([error is None for error in self.refusals], dtype=bool)

    def _estimate(self, of: Any) -> Estimate:
        refuse_failures("run", self.errors, self._max_failed)
        return by_replicates(self.values, self.replicate, of)

    def _if_resolved(self, found: Estimate, share: float) -> Estimate:
        """The estimate, without a standard error if a share of the distribution contains less than one run."""
        return found if share * int(self.ok.sum()) >= 1 else Estimate(found.value, np.nan)

    def _weights(self, of: object, level: float | None, tail: object) -> tuple[Array, NDArray[np.bool_]]:
        """Derivatives of a statistic by the values of the runs that have gradients, and which runs these are."""
        if not isinstance(of, str) or of not in (*STATISTICS, "quantile", "probability"):
            raise OptionError(f"Unknown statistic {shown(of)}.", remedy=f"Legal are {', '.join(STATISTICS)}.")
        if of not in STATISTICS:
            raise UnsupportedError(
                f"The gradient of a {of} of a sample does not converge to that of the distribution.",
                remedy="Gradients of cvar converge; form gives the gradient of a probability to first order.",
            )
        if self.gradients is None:
            raise OptionError("No gradients were requested.", remedy="Pass gradient=True to monte_carlo.")
        which = check_tail(tail)
        if of != "cvar" and (level is not None or which != "upper"):
            raise OptionError(f"level and tail are options of cvar, not of {of}.")
        refuse_failures("gradient", self.refusals, self._max_failed)
        used = self._has_gradient
        return self._derivatives(of, level, tail, used), used

    def _derivatives(self, of: object, level: float | None, tail: object, used: NDArray[np.bool_]) -> Array:
        values, gradients = self.values[used], self.gradients
        assert gradients is not None
        if of == "cvar":
            own, which = check_level("level", level, is_open=False), check_tail(tail)
            weights, split = of_values.tail_weights(values, own, which)
            tied = gradients[used][split]
            if tied.size and np.ptp(tied, axis=0).max() > EQUAL * np.abs(tied).max():
                raise AssumptionError(
                    f"{counted(len(tied), 'run')} with the same value at the edge of the tail have different "
                    "gradients: the gradient of the CVaR does not exist.",
                    remedy="Another level moves the edge.",
                )
            return weights
        by_name = {
            "mean": of_values.mean_weights, "variance": of_values.variance_weights, "std": of_values.std_weights
        }  # fmt: skip
        if of == "std" and values.std() == 0:
            raise AssumptionError("All values are equal: the standard deviation has no gradient.")
        return by_name[str(of)](values)

    def _weighed(self, of: object, level: float | None, tail: object, own: NDArray[np.bool_]) -> Array:
        assert self.gradients is not None
        try:
            return np.asarray(self._derivatives(of, level, tail, own) @ self.gradients[own])
        except AssumptionError:  # of these replicates alone
            return np.full(len(self.wrt), np.nan)

    def _check_borders(self, of: Statistic, level: float | None, tail: Tail, strict: bool) -> None:
        edge = sign = None
        if of == "cvar":
            assert level is not None
            sign = 1 if tail == "upper" else -1
            edge = of_values.quantile(sign * self.values[self._has_gradient], level) if level > 0 else -np.inf
        search = self._search(of, level, tail)
        near = [
            change for change in search.changes
            if edge is None or (np.asarray(sign) * change.values[:, 0]).max() > edge
        ]  # fmt: skip
        jumps = [change for change in near if change.kind == "jump"]
        unresolved = [change for change in near if change.kind == "unresolved"]
        refused, doubts = list[tuple[str, str]](), list[str]()
        if failed := int((~self.ok).sum()):
            refused.append((
                f"{counted(failed, 'run')} of {len(self)} failed: the {of} is conditional on success. Its gradient "
                "lacks the contribution of the border beyond which runs fail.",
                "Limit the distributions to the domain of the model; strict=False returns the gradient of the sample, "
                "without this contribution.",
            ))  # fmt: skip
        if jumps:
            largest = max(jumps, key=lambda change: float(np.abs(np.diff(change.values[:, 0]))[0]))
            refused.append((
                self._jump(of, "jumps", largest),
                "strict=False returns the gradient of the sample, without this contribution. A functional that is "
                "continuous at the event has no jump.",
            ))  # fmt: skip
        if search.suspicion is not None:
            one, two = search.suspicion
            refused.append((
                f"'{self.functional}' may jump between values {one:.6g} and {two:.6g} of neighbours with different "
                f"sequences of events: they differ by more than the gradients of the runs explain. {_limited(search)}",
                "A larger n allows more runs; strict=False makes this a warning.",
            ))  # fmt: skip
        if unresolved:
            doubts.append(f"{self._jump(of, 'may jump', unresolved[0])} It is not resolved: {unresolved[0].reason}.")
        if search.unexamined and search.suspicion is None:
            doubts.append(f"Jumps of '{self.functional}' may have been missed. {_limited(search)}")
        if refused and strict:
            raise AssumptionError(refused[0][0], remedy=refused[0][1])
        for text in [text for text, _ in refused] + doubts:
            warnings.warn(text, DerivativeWarning, stacklevel=3)

    def _jump(self, of: str, what: str, change: Change) -> str:
        one, two = change.values[:, 0]
        return (
            f"'{self.functional}' {what} from {one:.6g} to {two:.6g} where the sequence of events changes within the "
            f"sample ({change.sequences[0].difference(change.sequences[1])}). The gradient of the {of} lacks the "
            "contribution of the jump."
        )

    def to_dataframe(self) -> Any:
        """Return the sample as a pandas DataFrame: parameters, value, replicate, error, one row per run.

        Raises
        ------
        ImportError
            pandas (extra ``[data]``) is not installed.
        OptionError
            Two columns would have the same name.
        """
        labels = self.system.parameters.labels()
        refuse_twice([*labels, self.functional, "replicate", "error"])
        columns: dict[str, Any] = {name: self.parameters[:, i] for i, name in enumerate(labels)}
        columns |= {
            self.functional: self.values, "replicate": self.replicate,
            "error": [None if error is None else error.message for error in self.errors],
        }  # fmt: skip
        return optional("pandas", "to_dataframe()").DataFrame(columns)

    def plot(self, level: float | None = None, tail: Tail = "upper", axes: Any = None) -> Any:
        """Draw a histogram, with the mean and the quantile and CVaR of a level, if given.

        Returns
        -------
        matplotlib.figure.Figure
            The figure.
        """
        from dae_hybrid.uncertainty.pictures import plot_sample

        return plot_sample(self, level, tail, axes)

    def __len__(self) -> int:
        return self.values.size

    def __repr__(self) -> str:
        failed = int((~self.ok).sum())
        return f"<MonteCarlo of '{self.functional}': {counted(len(self), 'run')}, {failed} failed>"

    def _rows(self) -> list[list[str]]:
        own = {
            "mean": self.mean, "standard deviation": self.std, "skewness": self.skewness,
            "quantile 5 %": self.quantile(0.05), "quantile 95 %": self.quantile(0.95),
        }  # fmt: skip
        rows = [[name, f"{found.value:.6g}", f"{found.standard_error:.2g}"] for name, found in own.items()]
        return [["statistic", "estimate", "standard error"], *rows]

    def __str__(self) -> str:
        if self.failed_share > self._max_failed:
            return repr(self)
        return "\n".join([repr(self), *align(self._rows())])

    def _repr_html_(self) -> str:
        return html(repr(self), [["statistics refused"]] if self.failed_share > self._max_failed else self._rows())


def _limited(search: Search) -> str:
    return (
        f"{search.unexamined} of {counted(search.pairs, 'pair')} of adjacent sequences could not be searched: the "
        "limit on the number of runs was reached, or runs could not be repeated."
    )
