"""Sobol indices: which random parameters the variance of a functional comes from. Needs SALib (extra ``[uq]``)."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
from scipy.special import ndtri

from dae_hybrid.ensembles.scheduling import EnsembleProgress
from dae_hybrid.ensembles.workers import ExecutorLike
from dae_hybrid.errors import AssumptionError, DaeHybridError, OptionError, UnsupportedError
from dae_hybrid.interface.api import RunOptions
from dae_hybrid.interface.runs import Parameters
from dae_hybrid.numeric_input import shown
from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.options import Options, positive_integer
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.tables import align, html
from dae_hybrid.trajectory.datasets import optional
from dae_hybrid.uncertainty.errors import UncertaintyWarning
from dae_hybrid.uncertainty.inputs import (
    LARGEST,
    LEAST,
    Inputs,
    check_inputs,
    check_power_of_two,
    checked_seed,
)
from dae_hybrid.uncertainty.runs import (
    MAX_FAILED,
    Execution,
    check_continues,
    checked_call,
    checked_share,
    evaluate,
    refuse_failures,
    scalar_functional,
    warn_of_failures,
    warn_of_moments,
)
from dae_hybrid.uncertainty.statistics import CONSTANT, check_level

#: below one tolerance of the runs it is that of their errors, and below this multiple it may partly be
DOUBTFUL = 100.0
#: fewest complete groups of runs, and fewest bootstrap samples
FEWEST_GROUPS, FEWEST_RESAMPLES = 8, 10
#: entries of arrays of bootstrap samples that are computed at a time
RESAMPLED = 2**20


@dataclass(frozen=True, eq=False)
class SobolIndices:
    """Shares of the variance of a functional; made by `sobol_indices`.

    Attributes
    ----------
    functional : str
        Name of the functional.
    names : tuple of str
        Random parameters.
    first, total : ndarray, shape (k,)
        First-order indices: the share of the variance due to one parameter alone. Total indices: its share with all
        interactions. Estimates may be slightly negative or above one.
    second : ndarray, shape (k, k), or None
        Symmetric matrix of the shares due to the interaction of two parameters alone, if requested; its diagonal is
        NaN.
    first_error, total_error, second_error : ndarray
        Half widths of confidence intervals of `level`, by bootstrap. It treats the quasi-random points as independent:
        the intervals are wider than necessary.
    level : float
        Confidence level.
    mean, variance : float
        Of the functional, over the runs.
    n_runs, n_omitted : int
        Number of all runs, and of runs omitted: a failed run omits all runs of its group, which share base points.
    errors : tuple of DaeHybridError
        Errors of the failed runs.
    """

    functional: str
    names: tuple[str, ...]
    first: Array
    first_error: Array
    total: Array
    total_error: Array
    second: Array | None
    second_error: Array | None
    level: float
    mean: float
    variance: float
    n_runs: int
    n_omitted: int
    errors: tuple[DaeHybridError, ...]

    def plot(self, axes: Any = None) -> Any:
        """Draw the indices as bars with confidence intervals; a matplotlib Figure."""
        from dae_hybrid.uncertainty.pictures import plot_indices

        return plot_indices(self, axes)

    def __repr__(self) -> str:
        omitted = f", {self.n_omitted} omitted" if self.n_omitted else ""
        return f"<SobolIndices of '{self.functional}': {self.n_runs} runs{omitted}>"

    def _rows(self) -> list[list[str]]:
        rows = [["parameter", "first order", "+-", "total", "+-"]]
        columns = (self.first, self.first_error, self.total, self.total_error)
        for i, name in enumerate(self.names):
            rows.append([name, *(f"{column[i]:.4f}" for column in columns)])
        return rows

    def __str__(self) -> str:
        return "\n".join([repr(self), *align(self._rows())])

    def _repr_html_(self) -> str:
        return html(repr(self), self._rows())


def sobol_indices(
    system: HybridSystem,
    t_span: Sequence[float],
    inputs: Inputs,
    n: int,
    *,
    functional: str | None = None,
    second_order: bool = False,
    level: float = 0.95,
    resamples: int = 200,
    parameters: Parameters = None,
    seed: int | None = 0,
    max_failed: float = MAX_FAILED,
    executor: ExecutorLike | None = None,
    workers: int | None = None,
    store: str | os.PathLike[str] | None = None,
    progress: bool | Callable[[EnsembleProgress], object] = False,
    adapter: str = "sundials",
    **options: Unpack[RunOptions],
) -> SobolIndices:
    """Compute first-order and total Sobol indices of independent random parameters, through SALib.

    Parameters
    ----------
    system, t_span, adapter, **options
        As in `simulate`.
    inputs : Inputs
        Distributions of the random parameters, at least two and independent.
    n : int
        Number of base points, a power of two of at least 8. There are n (k + 2) runs, or n (2 k + 2) with
        `second_order`.
    functional : str, optional
        Name of a scalar functional; optional if the model has only one.
    second_order : bool
        Compute the interactions of pairs.
    level, resamples : float, int
        Confidence level, and number of bootstrap samples of its intervals, at least 10.
    parameters, seed, max_failed
        As in `monte_carlo`; `max_failed` limits the share of omitted groups of runs.
    executor, workers, store, progress
        As in `ensemble`; results of the runs are in folders of `store`, from which the same call continues.

    Returns
    -------
    SobolIndices
        Indices with confidence intervals.

    Raises
    ------
    ImportError
        SALib is not installed (extra ``[uq]``).
    UnsupportedError
        The parameters are correlated: the variance then has no decomposition into shares of single parameters.
    AssumptionError
        The functional does not vary by more than the tolerances of the runs.
    UncertaintyError
        Too many runs failed; ``values``, ``parameters`` and ``errors`` of the error contain the runs.
    ParameterError, OptionError
        An argument is invalid.

    Warns
    -----
    UncertaintyWarning
        Runs failed, a distribution has no finite variance, or the functional varies so little that its variance may
        partly be that of errors of the integration.

    References
    ----------
    A. Saltelli et al., Variance based sensitivity analysis of model output, Computer Physics Communications 181 (2010),
    259-270.

    Examples
    --------
    >>> from scipy import stats
    >>> import dae_hybrid as dh
    >>> m = dh.HybridModel("line")
    >>> a, b, y = m.parameter("a", 1.0), m.parameter("b", 1.0), m.differential("y")
    >>> m.initial(m.mode("run", ode={y: a}), {y: 2 * b})
    >>> m.functional("end", terminal=y)
    >>> line = m.build()
    >>> inputs = dh.Inputs(line, {"a": stats.norm(0, 1), "b": stats.norm(0, 1)})
    >>> found = dh.sobol_indices(line, (0, 1), inputs, 512)
    >>> found.names, found.first.round(1), found.total.round(1)  # y = a + 2 b; exact: 0.2, 0.8
    (('a', 'b'), array([0.2, 0.8]), array([0.2, 0.8]))
    """
    own, name = check_inputs(inputs, system), scalar_functional(system, functional)
    if not own.is_independent:
        raise UnsupportedError(
            "Sobol indices are defined for independent parameters; these are correlated.",
            remedy="linear_propagation gives shares of the variance of correlated parameters, to first order.",
        )
    if len(own) < 2:
        raise OptionError("Sobol indices compare at least two random parameters, got one.")
    if not isinstance(second_order, bool | np.bool_):
        raise OptionError(f"second_order must be True or False, got {shown(second_order)}.")
    count, draws = positive_integer("n", n), positive_integer("resamples", resamples)
    check_power_of_two("n", count)
    for what, number, fewest in (("n", count, FEWEST_GROUPS), ("resamples", draws, FEWEST_RESAMPLES)):
        if number < fewest:
            raise OptionError(f"{what} must be at least {fewest}, got {number}.")
    confidence, share = check_level("level", level, is_open=True), checked_share(max_failed)
    check_continues(store, seed)
    states, call = _seeds(seed, draws), checked_call(adapter, options)
    sampled, analysed = (optional(f"SALib.{part}.sobol", "sobol_indices()", "uq") for part in ("sample", "analyze"))
    problem = {"num_vars": len(own), "names": list(own.names), "bounds": [[0.0, 1.0]] * len(own)}
    pairs = bool(second_order)
    points = sampled.sample(problem, count, calc_second_order=pairs, seed=states[0])
    rows = own.table(ndtri(np.clip(points, LEAST, LARGEST)), parameters)
    warn_of_moments(own, 2)
    runs = evaluate(system, t_span, rows, name, None, None, call, Execution(executor, workers, store, progress))
    values, omitted = _complete_groups(runs.values.reshape(count, -1))
    warn_of_failures("run", runs.errors, 2)
    first_errors = [_first(runs.errors, i, omitted.size) for i in range(omitted.size)]
    try:
        refuse_failures("group of runs", first_errors, share if len(values) >= FEWEST_GROUPS else 0.0)
    except DaeHybridError as error:
        error.values, error.parameters, error.errors = runs.values, rows, runs.errors  # type: ignore[attr-defined]
        raise
    flat = values.ravel()
    _check_spread(flat, system, name, Options.of(options))
    found = _analysed(analysed, problem, flat, pairs, draws, confidence, states)
    return SobolIndices(
        functional=name, names=own.names, first=found["S1"], first_error=found["S1_conf"], total=found["ST"],
        total_error=found["ST_conf"], second=_symmetric(found["S2"]) if pairs else None,
        second_error=_symmetric(found["S2_conf"]) if pairs else None, level=confidence, mean=float(flat.mean()),
        variance=float(flat.var(ddof=1)), n_runs=len(rows), n_omitted=len(rows) - flat.size,
        errors=tuple(error for error in runs.errors if error is not None),
    )  # fmt: skip


def _seeds(given: object, count: int) -> list[int]:
    """Seeds for SALib, of the sample and of parts of the bootstrap; not 0, for which it draws from the global state."""
    states = np.random.SeedSequence(checked_seed(given)).generate_state(count)
    return [max(1, int(state)) for state in states]


def _check_spread(values: Array, system: HybridSystem, name: str, options: Options) -> None:
    """Refuse a functional that varies by no more than the errors of its runs, and warn of one that varies little.

    Raises
    ------
    AssumptionError
        The standard deviation is at most one tolerance of the runs.
    """
    largest, spread = np.abs(values).max(), values.std()
    tolerance = options.rtol * largest + float(options.absolute(system.functionals)[system.functionals[name]][0])
    if not spread > max(CONSTANT * EPS * largest, tolerance):
        raise AssumptionError(
            f"Functional '{name}' has the standard deviation {spread:.3g}, and the tolerance of its runs is "
            f"{tolerance:.3g}: it does not vary with the random parameters, or by less than the runs can tell.",
            remedy="If it varies, pass smaller rtol and atol.",
        )
    if spread <= DOUBTFUL * tolerance:
        warnings.warn(
            f"Functional '{name}' has the standard deviation {spread:.3g}, and the tolerance of its runs is "
            f"{tolerance:.3g}: part of the variance may be that of errors of the integration. Pass smaller rtol and "
            "atol.",
            UncertaintyWarning,
            stacklevel=3,
        )


def _analysed(
    analysed: Any, problem: Mapping[str, Any], values: Array, pairs: bool, draws: int, level: float,
    seeds: Sequence[int],
) -> dict[str, Array]:  # fmt: skip
    """The indices and their intervals by SALib, in parts of the bootstrap that fit into memory."""
    groups = values.size // (problem["num_vars"] * (1 + pairs) + 2)
    each = max(2, RESAMPLED // groups)
    sizes = [part.size for part in np.array_split(np.arange(draws), max(1, draws // each))]
    parts = [
        analysed.analyze(
            problem, values, calc_second_order=pairs, num_resamples=size, conf_level=level, seed=seed
        )
        for size, seed in zip(sizes, seeds, strict=False)
    ]  # fmt: skip
    found = {name: np.asarray(value) for name, value in parts[0].items()}
    weights = np.array(sizes) - 1.0
    for name in ("S1_conf", "ST_conf", *(("S2_conf",) if pairs else ())):  # multiples of standard deviations
        found[name] = np.sqrt(np.average([np.square(part[name]) for part in parts], axis=0, weights=weights))
    return found


def _complete_groups(values: Array) -> tuple[Array, Any]:
    """The groups without failed runs, and which groups have some."""
    omitted = ~np.isfinite(values).all(axis=1)
    return values[~omitted], omitted


def _first(errors: Sequence[DaeHybridError | None], group: int, groups: int) -> DaeHybridError | None:
    """The first error of a group."""
    size = len(errors) // groups
    return next((error for error in errors[group * size : (group + 1) * size] if error is not None), None)


def _symmetric(upper: Any) -> Array:
    found = np.array(upper, dtype=float)
    lower = np.tril_indices(len(found), -1)
    found[lower] = found.T[lower]
    return found
