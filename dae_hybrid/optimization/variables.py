"""Variables of an optimisation: parameters, scaled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dae_hybrid.errors import OptionError, ParameterError
from dae_hybrid.numeric_input import real_array, shown
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.system.system import HybridSystem

#: lower and upper bound: numbers or arrays, None for no bound
type Bound = tuple[ArrayLike | None, ArrayLike | None]
type Scale = Literal["linear", "log"] | float


class Variables:
    """The map from optimisation variables x (n,) to parameters p.

    ``p = unit x`` where the scale is linear, ``p = exp(x)`` where it is logarithmic.

    Attributes
    ----------
    labels : tuple of str
        Labels of the parameters, n of them.
    x0, lower, upper : ndarray, shape (n,)
        Start and bounds in terms of x.
    """

    def __init__(
        self, system: HybridSystem, wrt: str | Sequence[str] | None, fixed: Array,
        bounds: Mapping[str, Bound] | None, scale: Mapping[str, Scale] | None,
    ) -> None:  # fmt: skip
        self._system, self._fixed = system, fixed
        self.indices = list(system.parameter_indices(wrt))
        labels = system.parameters.labels()
        self.labels = tuple(labels[i] for i in self.indices)
        self._log, self._unit = np.zeros(fixed.size, dtype=bool), np.ones(fixed.size)
        for name, own in _named("scale", system, scale, self.indices):
            part = system.parameters[name]
            if own == "log":
                self._log[part] = True
            elif own != "linear":
                self._unit[part] = _unit(name, own)
        lower, upper = np.full(fixed.size, -np.inf), np.full(fixed.size, np.inf)
        for name, pair in _named("bounds", system, bounds, self.indices):
            part = system.parameters[name]
            lower[part], upper[part] = bound_pair(f"bounds[{name!r}]", pair, part.stop - part.start)
        self._check(lower, upper)
        self.x0, self.lower, self.upper = (self._to_x(own) for own in (fixed, lower, upper))

    def _check(self, lower: Array, upper: Array) -> None:
        for i, label in zip(self.indices, self.labels, strict=True):
            start = self._fixed[i]
            if self._log[i] and start <= 0:
                raise ParameterError(f"{label} has a logarithmic scale, and its start {start:g} is not positive.")
            if not lower[i] <= start <= upper[i]:
                raise ParameterError(
                    f"The start {label} = {start:g} is outside its bounds {lower[i]:g} to {upper[i]:g}.",
                    remedy="Pass another start by parameters=.",
                )

    def _to_x(self, p: Array) -> Array:
        own, log = p[self.indices], self._log[self.indices]
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(log, np.log(np.maximum(own, 0.0)), own / self._unit[self.indices])

    def given(self, x: ArrayLike) -> Array:
        """Check x and return it as an array, (n,)."""
        found = np.asarray(x, dtype=float)
        if found.shape != (len(self.indices),):
            raise ParameterError(f"x must have shape ({len(self.indices)},), got {found.shape}.")
        return found

    def parameters(self, x: Array) -> Array:
        """All parameters of the model at x."""
        found = self._fixed.copy()
        with np.errstate(over="ignore"):
            found[self.indices] = np.where(self._log[self.indices], np.exp(x), x * self._unit[self.indices])
        return found

    def by_x(self, gradients: Array, p: Array) -> Array:
        """Gradients by x of gradients by the parameters, (k, n)."""
        return gradients * np.where(self._log, p, self._unit)[self.indices]

    def named(self, p: Array) -> dict[str, Any]:
        """Values of the optimised parameters by name."""
        chosen, layout = set(self.indices), self._system.parameters
        parts = {name: layout[name] for name in layout.names if layout[name].start in chosen}
        return {n: float(p[s][0]) if s.stop - s.start == 1 else p[s].copy() for n, s in parts.items()}


def _named(what: str, system: HybridSystem, given: Any, indices: Sequence[int]) -> list[tuple[str, Any]]:
    """The entries of a mapping by parameter, of which all have to be optimised."""
    if given is None:
        return []
    if not isinstance(given, Mapping):
        raise OptionError(f"{what} must be a mapping by the names of parameters, got {shown(given)}.")
    for name in given:
        if name not in system.parameters:
            raise ParameterError(
                f"{what} names {shown(name)}, which is not a parameter of '{system.name}'.",
                remedy=f"Parameters: {', '.join(system.parameters.names) or 'none'}.",
            )
        if system.parameters[name].start not in indices:
            raise ParameterError(f"{what} names '{name}', which is not among wrt.")
    return list(given.items())


def _unit(name: str, given: object) -> float:
    is_number = isinstance(given, int | float | np.number) and not isinstance(given, bool | np.bool_)
    if is_number and 0 < float(given) < np.inf:  # type: ignore[arg-type]
        return float(given)  # type: ignore[arg-type]
    raise OptionError(f"scale[{name!r}] must be 'linear', 'log' or a positive number, got {shown(given)}.")


def bound_pair(what: str, pair: Any, size: int) -> tuple[Array, Array]:
    """Lower and upper bounds, (size,) each."""
    if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
        raise OptionError(f"{what} must be a pair (lower, upper), got {shown(pair)}.")
    found: list[NDArray[np.float64]] = []
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
