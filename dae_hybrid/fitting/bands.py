"""Predictions with confidence bands, by the derivatives at the estimates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from dae_hybrid.errors import AssumptionError
from dae_hybrid.fitting import figures
from dae_hybrid.fitting.prediction import Prediction
from dae_hybrid.layout import Layout
from dae_hybrid.numeric_input import real_array
from dae_hybrid.numerics.arrays import Array

if TYPE_CHECKING:
    from dae_hybrid.fitting.result import Fit


@dataclass(frozen=True, eq=False)
class Bands:
    """Predicted outputs with pointwise confidence bands.

    Attributes
    ----------
    t : ndarray, shape (n_t,)
    level : float

    ``bands["x"]`` is the prediction, (n_t,) or (n_t, size); `standard_error`, `lower` and `upper` take names as well.
    """

    t: Array
    level: float
    _layout: Layout = field(repr=False)
    _values: Array = field(repr=False)
    _errors: Array = field(repr=False)
    _quantile: float = field(repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return self._layout.names

    def _column(self, name: str, values: Array) -> Array:
        found = values[:, self._layout[name]]
        return found[:, 0] if found.shape[1] == 1 else found

    def __getitem__(self, name: str) -> Array:
        return self._column(name, self._values)

    def standard_error(self, name: str) -> Array:
        """Standard error of the prediction."""
        return self._column(name, self._errors)

    def lower(self, name: str) -> Array:
        """Lower end of the band."""
        return self._column(name, self._values - self._quantile * self._errors)

    def upper(self, name: str) -> Array:
        """Upper end of the band."""
        return self._column(name, self._values + self._quantile * self._errors)

    def plot(self) -> Any:
        """Draw predictions and bands, one panel per output; a matplotlib Figure."""
        return figures.plot_bands(self)


def bands(
    fit: Fit, prediction: Prediction, names: str | Sequence[str], t: ArrayLike,
    parameters: Mapping[str, ArrayLike] | None, t_span: Sequence[float] | None, level: float,
) -> Bands:  # fmt: skip
    """See `Fit.predict`."""
    times = real_array(t)
    span = (prediction.experiment.t_span[0], times.max(initial=-np.inf)) if t_span is None else t_span
    outputs = prediction.output_map(names, times, span)
    values, by_q = prediction.along(outputs, fit.estimates, parameters)
    n_free = by_q.shape[-1]
    covariance = fit.covariance
    lost = np.isinf(np.diag(covariance))
    if lost.any() and by_q[..., lost].any():
        labels = ", ".join(label for label, is_lost in zip(fit.labels, lost, strict=True) if is_lost)
        raise AssumptionError(
            f"The outputs depend on parameters that the data do not determine: {labels}.",
            remedy="Give them priors, fix them, or add data.",
        )
    finite = np.where(lost[:, None] | lost, 0.0, covariance)
    rows = by_q.reshape(-1, n_free)
    variances = np.einsum("ij,jk,ik->i", rows, finite, rows)
    errors = np.sqrt(np.maximum(variances, 0.0)).reshape(values.shape)
    return Bands(outputs.t, level, outputs.layout, values, errors, fit.quantile(level))
