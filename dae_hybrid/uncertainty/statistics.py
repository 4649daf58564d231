"""Statistics of a sample, with their derivatives by the values of the sample."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from dae_hybrid.errors import OptionError
from dae_hybrid.numeric_input import shown
from dae_hybrid.numerics.arrays import EPS, Array

#: values that differ by less than this multiple of rounding are equal
CONSTANT = 1e3

type Tail = Literal["upper", "lower"]


@dataclass(frozen=True, eq=False)
class Estimate:
    """An estimate with its standard error.

    Attributes
    ----------
    value : float or ndarray
    standard_error : float or ndarray
        Standard error from the independent replicates of the sample; NaN where they do not determine it.
    """

    value: Any
    standard_error: Any

    def __float__(self) -> float:
        return float(self.value)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.value, dtype=dtype)

    def __repr__(self) -> str:
        if np.ndim(self.value) == 0:
            return f"<Estimate {self.value:.6g} +- {self.standard_error:.2g}>"
        pairs = zip(self.value, self.standard_error, strict=True)
        return f"<Estimate {', '.join(f'{value:.6g} +- {error:.2g}' for value, error in pairs)}>"


def by_replicates(values: Array, replicate: NDArray[np.int64], of: Callable[[Array], Any]) -> Estimate:
    """A statistic of all finite values, with its standard error by the jackknife over the replicates."""
    ok = np.isfinite(values)
    if not ok.any():
        return Estimate(np.nan, np.nan)
    without = [values[ok & (replicate != r)] for r in range(int(replicate.max()) + 1)]
    return Estimate(
        float(of(values[ok])), float(jackknife([of(part) if part.size > 1 else np.nan for part in without]))
    )


def jackknife(estimates: ArrayLike) -> Any:
    """Standard errors, (...), from the estimates without one replicate each, (R, ...).

    References
    ----------
    B. Efron, C. Stein, The jackknife estimate of variance, Annals of Statistics 9 (1981), 586-596.
    """
    given = np.asarray(estimates, dtype=float)
    return np.sqrt((len(given) - 1) * given.var(axis=0))


def skewness(values: Array) -> float:
    """Third standardised moment; NaN if the values are equal within rounding."""
    return np.nan if _is_constant(values) else float(scipy.stats.skew(values))


def kurtosis(values: Array) -> float:
    """Fourth standardised moment minus 3; NaN if the values are equal within rounding."""
    return np.nan if _is_constant(values) else float(scipy.stats.kurtosis(values))


def _is_constant(values: Array) -> bool:
    return bool(np.ptp(values) <= CONSTANT * EPS * np.abs(values).max())


def quantile(values: Array, q: float) -> float:
    """The smallest value at or below which a share q of the sample lies."""
    return float(np.quantile(values, q, method="inverted_cdf"))


def mean_weights(values: Array) -> Array:
    """Derivatives of the mean by the values."""
    return np.full(values.size, 1 / values.size)


def variance_weights(values: Array) -> Array:
    """Derivatives of the unbiased variance by the values."""
    return np.asarray(2 * (values - values.mean()) / (values.size - 1))


def std_weights(values: Array) -> Array:
    """Derivatives of the standard deviation by the values."""
    return np.asarray(variance_weights(values) / (2 * values.std(ddof=1)))


def tail_weights(values: Array, level: float, tail: Tail) -> tuple[Array, NDArray[np.bool_]]:
    """Weights of the values in the conditional value at risk, and which equal values share the last of them.

    The worst ``n (1 - level)`` values have the same weight; a fraction of a value has that share of it. Equal values
    that only partly belong to the tail share their weight; the second result marks them, if there are several.
    """
    rank = np.empty(values.size, dtype=np.int64)
    rank[np.argsort(-values if tail == "upper" else values, kind="stable")] = np.arange(values.size)
    count = values.size * (1 - level)
    weights = np.clip(count - rank, 0, 1)
    last = values[rank == min(int(np.ceil(count)), values.size) - 1][0]
    shared = values == last
    is_split = shared.sum() > 1 and np.ptp(weights[shared]) > 0
    weights[shared] = weights[shared].mean()
    return weights / weights.sum(), shared if is_split else np.zeros_like(shared)


def cvar(values: Array, level: float, tail: Tail) -> float:
    """Conditional value at risk: the mean of the worst share 1 - level."""
    return float(tail_weights(values, level, tail)[0] @ values)


def check_level(what: str, level: object, *, is_open: bool) -> float:
    """Check a level: within (0, 1), or [0, 1)."""
    legal = isinstance(level, int | float | np.number) and not isinstance(level, bool)
    if not legal or not (0 < level < 1 or (level == 0 and not is_open)):  # type: ignore[operator]
        raise OptionError(f"{what} must be a number between 0 and 1{'' if is_open else ', or 0'}, got {shown(level)}.")
    return float(level)  # type: ignore[arg-type]


def check_tail(tail: object) -> Tail:
    """Check the name of a tail."""
    if tail not in ("upper", "lower"):
        raise OptionError(f"tail must be 'upper' or 'lower', got {shown(tail)}.")
    return tail


def threshold(above: float | None, below: float | None) -> tuple[float, int]:
    """The threshold of a failure, and +1 if values above it fail or -1 if those below it do."""
    if (above is None) == (below is None):
        raise OptionError("Give either above= or below=.")
    given = below if above is None else above
    number = isinstance(given, int | float | np.number) and not isinstance(given, bool)
    if not number or not np.isfinite(given):  # type: ignore[arg-type]
        raise OptionError(f"{'below' if above is None else 'above'} must be a finite number, got {shown(given)}.")
    return float(given), -1 if above is None else 1  # type: ignore[arg-type]
