"""Predictions with confidence bands, by the derivatives at the estimates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from dae_hybrid.errors import ParameterError
from dae_hybrid.fitting import figures
from dae_hybrid.fitting.prediction import Prediction
from dae_hybrid.layout import Layout
from dae_hybrid.numeric_input import real_array, shown
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

    Bands are infinite where an output depends on what the data do not determine.

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
        if name not in self._layout:
            raise ParameterError(f"There is no output {shown(name)}.", remedy=f"Outputs: {', '.join(self.names)}.")
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
    try:
        times = real_array(t)
    except ValueError as reason:
        raise ParameterError(f"t {reason}.") from None
    if times.ndim != 1 or not times.size:
        raise ParameterError(f"t must be an array of at least one time, got shape {times.shape}.")
    span = (prediction.experiment.t_span[0], float(times.max())) if t_span is None else t_span
    outputs = prediction.output_map(names, times, span)
    values, by_q = prediction.along(outputs, fit.estimates, parameters)
    errors = np.sqrt(fit.variances(by_q.reshape(-1, by_q.shape[-1]))).reshape(values.shape)
    return Bands(outputs.t, level, outputs.layout, values, errors, fit.quantile(level))
