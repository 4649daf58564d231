"""The runs of a sample: values, gradients, and why some are missing."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.ensembles.ensemble import ensemble
from dae_hybrid.ensembles.result import Ensemble
from dae_hybrid.ensembles.results_store import store_path
from dae_hybrid.ensembles.scheduling import EnsembleProgress
from dae_hybrid.ensembles.workers import ExecutorLike
from dae_hybrid.errors import DaeHybridError, OptionError, UnsupportedError
from dae_hybrid.interface.batch import ADJOINT_PARAMETER_RATIO
from dae_hybrid.interface.prepared_case import Analysis
from dae_hybrid.numeric_input import shown
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.options import Options
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.tables import counted
from dae_hybrid.uncertainty.errors import UncertaintyError, UncertaintyWarning
from dae_hybrid.uncertainty.inputs import Inputs, named

type GradientChoice = Analysis | Literal[True] | None
#: largest share of failed runs that statistics may omit, by default
MAX_FAILED = 0.05


@dataclass(frozen=True, eq=False)
class Runs:
    """Runs of a scalar functional, one row per run.

    Attributes
    ----------
    parameters : ndarray, shape (N, n_parameters)
    values : ndarray, shape (N,)
        Values of the functional; NaN where the run failed.
    gradients : ndarray, shape (N, n_wrt), or None
        Gradients, if requested; NaN where the run failed or the gradient was refused.
    errors : tuple of DaeHybridError or None
        Why a value is missing.
    refusals : tuple of DaeHybridError or None
        Why a gradient is missing; contains `errors`.
    digest : ndarray of int, shape (N,)
        Digests of the sequences of events, see `Batch`; 0 where a value or a requested gradient is missing.
    wrt : tuple of str
        Labels of the columns of `gradients`.
    """

    parameters: Array
    values: Array
    gradients: Array | None
    errors: tuple[DaeHybridError | None, ...]
    refusals: tuple[DaeHybridError | None, ...]
    digest: NDArray[np.int64]
    wrt: tuple[str, ...]

    @property
    def ok(self) -> NDArray[np.bool_]:
        """Whether each run has a value, shape (N,)."""
        return np.array([error is None for error in self.errors], dtype=bool)

    @property
    def has_gradient(self) -> NDArray[np.bool_]:
        """Whether each run has a gradient, shape (N,)."""
        return np.array([error is None for error in self.refusals], dtype=bool)


@dataclass(frozen=True, eq=False)
class Execution:
    """How runs are carried out: the options of `ensemble`."""

    executor: ExecutorLike | None = None
    workers: int | None = None
    store: str | os.PathLike[str] | None = None
    progress: bool | Callable[[EnsembleProgress], object] = False

    def named(self, part: str) -> dict[str, Any]:
        """The options for one ensemble of an analysis, with a folder of the store of its own."""
        store = None if self.store is None else store_path(self.store) / part
        return {"executor": self.executor, "workers": self.workers, "store": store, "progress": self.progress}


def many(
    system: HybridSystem, t_span: Sequence[float], rows: Array, functional: str, gradient: GradientChoice,
    wrt: str | Sequence[str] | None, call: Mapping[str, Any], execution: Execution | None = None, part: str = "runs",
) -> Ensemble:  # fmt: skip
    """Make the runs of a sample.

    Raises
    ------
    UncertaintyError
        The runs were ended by `progress`.
    """
    how = {} if execution is None else execution.named(part)
    found = ensemble(system, t_span, parameters=rows, functional=functional, gradient=gradient, wrt=wrt, **how, **call)
    if not found.complete:
        error = UncertaintyError(
            f"progress= ended the runs after {int(found.done.sum())} of {len(found)}.",
            remedy="With store=, the same call continues.",
        )
        error.ensemble = found  # type: ignore[attr-defined]
        raise error
    return found


def evaluate(
    system: HybridSystem, t_span: Sequence[float], rows: Array, functional: str, gradient: GradientChoice,
    wrt: str | Sequence[str] | None, call: Mapping[str, Any], execution: Execution | None = None,
) -> Runs:  # fmt: skip
    """Run all rows; those whose gradient is refused are repeated for their values."""
    found = many(system, t_span, rows, functional, gradient, wrt, call, execution)
    values, errors, digest = found.values[:, 0].copy(), _errors(found), np.where(found.ok, found.digest, 0)
    if gradient is None:
        return Runs(rows, values, None, tuple(errors), tuple(errors), digest, ())
    refusals, missing = tuple(errors), np.flatnonzero(~found.ok)
    if missing.size:
        again = many(system, t_span, rows[missing], functional, None, None, call, execution, "values")
        values[missing] = again.values[:, 0]
        for i, error in zip(missing.tolist(), _errors(again), strict=True):
            errors[i] = error
    return Runs(rows, values, found.gradients[:, 0], tuple(errors), refusals, digest, tuple(found.wrt))


def _errors(found: Ensemble) -> list[DaeHybridError | None]:
    """The error of each run, or None."""
    errors: list[DaeHybridError | None] = [None] * len(found)
    for failure in found.failures:
        errors[failure.run] = failure.error
    return errors


def scalar_functional(system: HybridSystem, functional: str | None) -> str:
    """Check the name of a scalar functional; None means the model's only functional."""
    name = system.functional_name(functional)
    part = system.functionals[name]
    if part.stop - part.start != 1:
        raise UnsupportedError(
            f"Functional '{name}' is a vector: statistics take a scalar.",
            remedy="Declare the component as a functional of its own.",
        )
    return name


def cheapest(n_wrt: int) -> Analysis:
    """The analysis that computes a gradient by n parameters at the least cost, by the rule of `batch`."""
    return "adjoint" if n_wrt > ADJOINT_PARAMETER_RATIO else "forward"


def checked_call(adapter: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the runs; unknown ones are refused before anything is computed."""
    Options.of(options)
    return {"adapter": adapter, **options}


def check_continues(store: object, seed: object) -> None:
    """Refuse a store for a sample that no other call repeats."""
    if store is not None and seed is None:
        raise OptionError(
            "store= needs a seed: with seed=None every call draws another sample, and none continues.",
            remedy="Pass an integer as seed=, or leave out store=.",
        )


def checked_share(given: object) -> float:
    """Check a largest share of failed runs."""
    if isinstance(given, bool) or not isinstance(given, int | float | np.number) or not 0 <= given < 1:
        raise OptionError(f"max_failed must be a share of at least 0 and below 1, got {shown(given)}.")
    return float(given)


def failures_in_words(what: str, errors: Sequence[DaeHybridError | None]) -> str:
    """How many runs or gradients are missing, and why the first is; empty if none are."""
    failed = [error for error in errors if error is not None]
    if not failed:
        return ""
    share = len(failed) / len(errors)
    return (
        f"{counted(len(failed), what)} of {len(errors)} failed ({share:.2%}), the first with "
        f"{type(failed[0]).__name__}: {failed[0].message}"
    )


def refuse_failures(
    what: str, errors: Sequence[DaeHybridError | None], limit: float,
    effect: str = "results that omit these runs are conditional on success.",
) -> None:  # fmt: skip
    """Refuse a result that lacks too many runs; `effect` says what a result without them is.

    Raises
    ------
    UncertaintyError
        The share of failed runs is above the limit.
    """
    if sum(error is not None for error in errors) > limit * len(errors):
        raise UncertaintyError(
            f"{failures_in_words(what, errors)} At most {limit:.2%} may be omitted.",
            remedy=f"Limit the distributions to the domain of the model, or set max_failed=: {effect}",
        )


def warn_of_failures(
    what: str, errors: Sequence[DaeHybridError | None], level: int, effect: str = "Statistics omit them."
) -> None:
    """Warn the caller of a public function of missing runs, and of the effect."""
    if text := failures_in_words(what, errors):
        warnings.warn(f"{text} {effect}", UncertaintyWarning, stacklevel=level + 1)


def warn_of_moments(inputs: Inputs, level: int) -> None:
    """Warn the caller of a public function of distributions without a finite variance."""
    with np.errstate(all="ignore"):
        without = [name for name, std in zip(inputs.names, inputs.std.tolist(), strict=True) if not np.isfinite(std)]
    if without:
        warnings.warn(
            f"{named(without)} {'has' if len(without) == 1 else 'have'} no finite variance. Unless the functional has "
            "one nevertheless, moments, CVaR, Sobol indices and their standard errors do not converge; quantiles and "
            "probabilities do.",
            UncertaintyWarning,
            stacklevel=level + 1,
        )
