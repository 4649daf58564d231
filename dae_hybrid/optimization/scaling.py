"""Scales in which optimisers see parameters: linear with a unit, logarithmic, or logistic between bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dae_hybrid.errors import OptionError, ParameterError
from dae_hybrid.numeric_input import real_array, shown
from dae_hybrid.numerics.arrays import Array

#: lower and upper bound: numbers or arrays, None for no bound
type Bound = tuple[ArrayLike | None, ArrayLike | None]
type Scale = Literal["linear", "log", "logit"] | float
#: share of the interval between the bounds of a logistic scale that a start leaves free on each side
EDGE = 1e-3
#: distance from a bound at which a value is at it, in terms of the distance of the bounds, or of its size
AT_BOUND = 1e-6


@dataclass(frozen=True, eq=False)
class Scaling:
    """The map between natural values q and scaled values s of a vector, entry by entry.

    ``q = unit s``, ``q = exp(s)``, or ``q = lower + (upper - lower) / (1 + exp(-s))``.

    Attributes
    ----------
    lower, upper : ndarray, shape (n,)
        Bounds of the natural values.
    scales : tuple of "log", "logit" or float
        Scale of every entry; a number is the unit of a linear one.
    """

    lower: Array
    upper: Array
    scales: tuple[Scale, ...]

    def _of(self, scale: Scale) -> NDArray[np.bool_]:
        return np.array([own == scale for own in self.scales], dtype=bool)

    @property
    def _units(self) -> Array:
        return np.array([1.0 if isinstance(own, str) else own for own in self.scales])

    def scaled(self, q: Array) -> Array:
        """Scaled values of natural ones."""
        s, log, logit = q / self._units, self._of("log"), self._of("logit")
        with np.errstate(divide="ignore", invalid="ignore"):
            s[log] = np.log(np.maximum(q[log], 0.0))
            s[logit] = np.log((q[logit] - self.lower[logit]) / (self.upper[logit] - q[logit]))
        return s

    def natural(self, s: Array) -> Array:
        """Natural values of scaled ones, within the bounds."""
        q, log, logit = s * self._units, self._of("log"), self._of("logit")
        with np.errstate(over="ignore"):
            q[log] = np.exp(s[log])
            q[logit] = self.lower[logit] + (self.upper[logit] - self.lower[logit]) / (1 + np.exp(-s[logit]))
        return np.clip(q, self.lower, self.upper)

    def slope(self, q: Array) -> Array:
        """dq/ds at natural values."""
        found, log, logit = self._units, self._of("log"), self._of("logit")
        found[log] = q[log]
        low, high = self.lower[logit], self.upper[logit]
        found[logit] = (q[logit] - low) * (high - q[logit]) / (high - low)
        return found

    @property
    def scaled_bounds(self) -> tuple[Array, Array]:
        """Bounds of the scaled values."""
        return self.scaled(self.lower), self.scaled(self.upper)

    def at_bounds(self, q: Array, fall: Array, size: Array) -> NDArray[np.bool_]:
        """Whether natural values of typical size are at bounds towards which a function falls, in the direction `fall`.

        All arrays have the shape (n,).
        """
        found, width = np.zeros(q.size, bool), self.upper - self.lower
        for bound, sign in ((self.lower, -1), (self.upper, 1)):
            with np.errstate(invalid="ignore"):
                reach = AT_BOUND * np.where(np.isfinite(width), width, np.maximum(np.abs(bound), size))
                found |= np.isfinite(bound) & (np.abs(q - bound) <= reach) & (sign * fall > 0)
        return found

    @property
    def _margin(self) -> Array:
        return np.where(self._of("logit"), EDGE * (self.upper - self.lower), 0.0)

    @property
    def sampled_bounds(self) -> tuple[Array, Array]:
        """Bounds of scaled values for random starts: within those of a logistic scale."""
        return self.scaled(self.lower + self._margin), self.scaled(self.upper - self._margin)

    def checked_start(self, labels: Sequence[str], start: Array) -> Array:
        """Return a start within the bounds; on a logistic scale it is moved off them.

        Raises
        ------
        ParameterError
            The start is outside the bounds or the scale, or a logistic scale has an infinite bound.
        """
        for label, value, low, high, scale in zip(labels, start, self.lower, self.upper, self.scales, strict=True):
            if scale == "log" and value <= 0:
                raise ParameterError(f"{label} has a logarithmic scale, and its start {value:g} is not positive.")
            if scale == "logit" and not np.isfinite([low, high]).all():
                raise ParameterError(f"{label} has the scale 'logit', which needs finite bounds.")
            if not low <= value <= high:
                raise ParameterError(
                    f"The start {label} = {value:g} is outside its bounds {low:g} to {high:g}.",
                    remedy="Choose another start; by default it is the nominal value.",
                )
        return np.clip(start, self.lower + self._margin, self.upper - self._margin)


def scale_of(name: str, given: Scale | Mapping[str, Scale] | None) -> Scale:
    """Check the scale of a parameter, from one for all or a mapping by name; the default is the unit 1.

    Raises
    ------
    OptionError
        The scale is unknown.
    """
    own: Any = given.get(name, "linear") if isinstance(given, Mapping) else given
    if own in (None, "linear"):
        return 1.0
    if own in ("log", "logit"):
        return "log" if own == "log" else "logit"
    if isinstance(own, int | float | np.number) and not isinstance(own, bool | np.bool_) and 0 < float(own) < np.inf:
        return float(own)
    raise OptionError(f"The scale of '{name}' must be 'linear', 'log', 'logit' or a positive number, got {shown(own)}.")


def bound_pair(what: str, pair: Any, size: int) -> tuple[Array, Array]:
    """Lower and upper bounds, (size,) each.

    Raises
    ------
    OptionError
        They are no pair of numbers or None, or decrease.
    """
    if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
        raise OptionError(f"{what} must be a pair (lower, upper), got {shown(pair)}.")
    found: list[Array] = []
    for own, none in zip(pair, (-np.inf, np.inf), strict=True):
        try:
            value = np.array(none) if own is None else real_array(own)
            found.append(np.broadcast_to(value, (size,)).copy())
        except ValueError as reason:
            raise OptionError(f"{what}: a bound does not fit: {reason}.") from None
    lower, upper = found
    if not np.all(lower <= upper):  # NaN fails, too
        raise OptionError(f"{what}: the lower bound must not exceed the upper one, got {shown(pair)}.")
    return lower, upper
