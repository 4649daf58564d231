"""Sobol indices: which random parameters the variance of a functional comes from. Needs SALib (extra ``[uq]``)."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
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
from dae_hybrid.options import positive_integer
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.tables import align, html
from dae_hybrid.trajectory.datasets import optional
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
    checked_share,
    evaluate,
    refuse_failures,
    scalar_functional,
    warn_of_failures,
)
from dae_hybrid.uncertainty.statistics import check_level

#: a spread of the values below this multiple of rounding is none
CONSTANT = 1e3
#: fewest complete groups of runs
FEWEST_GROUPS = 8


@dataclass(frozen=True, eq=False)
class SobolIndices:
    """Shares of the variance of a functional; made by `sobol_indices`.

    Attributes
    ----------
    functional : str
    names : tuple of str
        Random parameters.
    first, total : ndarray, shape (k,)
        First-order indices: the share of the variance due to one parameter alone. Total indices: its share with all
        interactions. Estimates may be slightly negative or above one.
    second : ndarray, shape (k, k), or None
        Symmetric matrix of the shares due to the interaction of two parameters alone, if requested; its diagonal is
        NaN.
    first_error, total_error, second_error : ndarray
        Half widths of confidence intervals of `level`, by bootstrap.
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
        Number of base points, a power of two. There are n (k + 2) runs, or n (2 k + 2) with `second_order`.
    functional : str, optional
        Name of a scalar functional; optional if the model has only one.
    second_order : bool
        Compute the interactions of pairs.
    level, resamples : float, int
        Confidence level, and number of bootstrap samples of its intervals.
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
        The functional does not vary.
    UncertaintyError
        Too many runs failed; ``values``, ``parameters`` and ``errors`` of the error contain the runs.
    ParameterError, OptionError
        An argument is invalid.

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
    confidence, share = check_level("level", level, is_open=True), checked_share(max_failed)
    number = _seed(seed)
    sampled, analysed = (optional(f"SALib.{part}.sobol", "sobol_indices()", "uq") for part in ("sample", "analyze"))
    problem = {"num_vars": len(own), "names": list(own.names), "bounds": [[0.0, 1.0]] * len(own)}
    pairs = bool(second_order)
    points = sampled.sample(problem, count, calc_second_order=pairs, seed=number)
    rows = own.table(ndtri(np.clip(points, LEAST, LARGEST)), parameters)
    how = Execution(executor, workers, store, progress)
    runs = evaluate(system, t_span, rows, name, None, None, {"adapter": adapter, **options}, how)
    values, omitted = _complete_groups(runs.values.reshape(count, -1))
    warn_of_failures("run", runs.errors, 2)
    first_errors = [_first(runs.errors, i, omitted.size) for i in range(omitted.size)]
    try:
        refuse_failures("group of runs", first_errors, share if len(values) >= FEWEST_GROUPS else 0.0)
    except DaeHybridError as error:
        error.values, error.parameters, error.errors = runs.values, rows, runs.errors  # type: ignore[attr-defined]
        raise
    flat = values.ravel()
    if not np.ptp(flat) > CONSTANT * EPS * np.abs(flat).max():
        raise AssumptionError(f"Functional '{name}' does not vary with the random parameters: it has no shares.")
    found = analysed.analyze(
        problem, flat, calc_second_order=pairs, num_resamples=draws, conf_level=confidence, seed=number
    )
    return SobolIndices(
        functional=name, names=own.names, first=np.asarray(found["S1"]), first_error=np.asarray(found["S1_conf"]),
        total=np.asarray(found["ST"]), total_error=np.asarray(found["ST_conf"]),
        second=_symmetric(found["S2"]) if pairs else None, second_error=_symmetric(found["S2_conf"]) if pairs else None,
        level=confidence, mean=float(flat.mean()), variance=float(flat.var(ddof=1)), n_runs=len(rows),
        n_omitted=len(rows) - flat.size, errors=tuple(error for error in runs.errors if error is not None),
    )  # fmt: skip


def _seed(given: object) -> int:
    """A seed for SALib, which draws the sample and the bootstrap with it."""
    return int(np.random.SeedSequence(checked_seed(given)).generate_state(1)[0])


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
