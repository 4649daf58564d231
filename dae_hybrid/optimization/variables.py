"""Variables of an optimisation: parameters, scaled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dae_hybrid.errors import OptionError, ParameterError
from dae_hybrid.numeric_input import real_array, shown
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.optimization.one_sided import Sides
from dae_hybrid.optimization.orders import Order, check_linear, check_order, differences, order_names, order_places
from dae_hybrid.optimization.scaling import Bound, Scale, Scaling, bound_pair, scale_of
from dae_hybrid.system.system import HybridSystem


class Variables:
    """The map from optimisation variables x (n,), which are scaled parameters, to parameters p.

    Attributes
    ----------
    labels : tuple of str
        Labels of the parameters, n of them.
    n_parameters : int
        Number of all parameters of the model.
    x0, lower, upper : ndarray, shape (n,)
        Start and bounds in terms of x.
    differences : ndarray, shape (k, n)
        ``differences @ x <= 0`` states the orders.
    """

    def __init__(
        self, system: HybridSystem, wrt: str | Sequence[str] | None, fixed: Array,
        bounds: Mapping[str, Bound] | None, scale: Scale | Mapping[str, Scale] | None, order: Order | None = None,
    ) -> None:  # fmt: skip
        self._system, self._fixed = system, fixed
        self.n_parameters = fixed.size
        self.indices = list(system.parameter_indices(wrt))
        labels = system.parameters.labels()
        self.labels = tuple(labels[i] for i in self.indices)
        own: dict[int, Any] = {} if isinstance(scale, Mapping) else dict.fromkeys(self.indices, scale)
        if isinstance(scale, Mapping):
            own = {i: s for _, part, s in _named("scale", system, scale, self.indices) for i in _places(part)}
        lower, upper = np.full(fixed.size, -np.inf), np.full(fixed.size, np.inf)
        for name, part, pair in _named("bounds", system, bounds, self.indices):
            lower[part], upper[part] = bound_pair(f"bounds[{name!r}]", pair, part.stop - part.start)
        scales = tuple(scale_of(labels[i], own.get(i)) for i in self.indices)
        chains = [_named("order", system, dict.fromkeys(names), self.indices) for names in order_names(order)]
        self.orders = tuple(order_places(parts, labels, self.indices) for parts in chains)
        for chain in self.orders:  # the bounds of one imply bounds of the others
            among = np.array(self.indices)[chain]
            check_linear(self.labels, chain, [scales[i] for i in chain], lower[among], upper[among])
            check_order(self.labels, chain, fixed[among])
            lower[among] = np.maximum.accumulate(lower[among])
            upper[among] = np.minimum.accumulate(upper[among][::-1])[::-1]
        self.differences = differences(self.orders, scales)
        self._scaling = Scaling(lower[self.indices], upper[self.indices], scales)
        self.x0 = self._scaling.scaled(self._scaling.checked_start(self.labels, fixed[self.indices]))
        self.lower, self.upper = self._scaling.scaled_bounds

    def given(self, x: ArrayLike) -> Array:
        """Check x and return it as an array, (n,)."""
        try:
            found = real_array(x)
        except ValueError as reason:
            raise ParameterError(f"x {reason}.") from None
        if found.shape != (len(self.indices),):
            raise ParameterError(f"x must have shape ({len(self.indices)},), got {found.shape}.")
        return found

    def start(self, x: ArrayLike | Mapping[str, ArrayLike]) -> Array:
        """Check a start, in terms of x or by the names of parameters, and return it as an array, (n,)."""
        if isinstance(x, Mapping):
            start = self._by_name(x)
            self._check_orders(start)
            return self._scaling.scaled(self._scaling.checked_start(self.labels, start))
        found = self.given(x)
        outside = np.flatnonzero(~((self.lower <= found) & (found <= self.upper)))  # NaN is outside
        if outside.size:
            i = int(outside[0])
            raise ParameterError(
                f"x0[{i}], of {self.labels[i]}, is {found[i]:g}, outside its bounds {self.lower[i]:g} to "
                f"{self.upper[i]:g} in terms of x."
            )
        self._check_orders(self._scaling.natural(found))
        return found

    def _check_orders(self, start: Array) -> None:
        for chain in self.orders:
            check_order(self.labels, chain, start[chain])

    def _by_name(self, given: Mapping[str, ArrayLike]) -> Array:
        """Values of the optimised parameters: those given, and the default start of the others."""
        all_given, found = self._system.parameter_vector(given), self._fixed.copy()
        for _, entries, _ in _named("x0", self._system, given, self.indices):
            found[entries] = all_given[entries]
        return np.asarray(found[self.indices])

    def sides(self, rtol: float) -> Sides:
        """The sides of points, in terms of the optimised parameters."""
        start, own = self._fixed[self.indices], self._scaling
        return Sides(self.labels, own.lower, own.upper, np.abs(start), rtol, self.orders)

    def natural(self, x: Array) -> Array:
        """The optimised parameters at x, within the bounds and in order."""
        found = self._scaling.natural(x)
        for chain in self.orders:
            found[chain] = np.maximum.accumulate(found[chain])
        return found

    def completed(self, q: Array) -> Array:
        """All parameters of the model, from the optimised ones."""
        found = self._fixed.copy()
        found[self.indices] = q
        return found

    def parameters(self, x: Array) -> Array:
        """All parameters of the model at x."""
        return self.completed(self.natural(x))

    def by_x(self, gradients: Array, p: Array) -> Array:
        """Gradients by x of gradients by the parameters, (k, n)."""
        return gradients * self._scaling.slope(p[self.indices])

    def named(self, p: Array) -> dict[str, Any]:
        """Values of the optimised parameters by name."""
        chosen, layout = set(self.indices), self._system.parameters
        parts = {name: layout[name] for name in layout.names if not chosen.isdisjoint(_places(layout[name]))}
        shapes = {n: layout.shape(n) or (s.stop - s.start,) for n, s in parts.items()}
        return {n: float(p[s][0]) if shapes[n] == (1,) else p[s].reshape(shapes[n]).copy() for n, s in parts.items()}


def _named(what: str, system: HybridSystem, given: Any, indices: Sequence[int]) -> list[tuple[str, slice, Any]]:
    """Names, slices and values of a mapping by parameters, or entries of these, of which some have to be optimised."""
    if given is None:
        return []
    if not isinstance(given, Mapping):
        raise OptionError(f"{what} must be a mapping by the names of parameters, got {shown(given)}.")
    found = []
    for name, value in given.items():
        part = system.parameters.find(name)
        if part is None:
            raise ParameterError(
                f"{what} names {shown(name)}, which is not a parameter of '{system.name}'.",
                remedy=f"Parameters: {', '.join(system.parameters.names) or 'none'}.",
            )
        if set(_places(part)).isdisjoint(indices):
            raise ParameterError(f"{what} names '{name}', which is not among wrt.")
        found.append((name, part, value))
    return found


def _places(part: slice) -> range:
    return range(part.start, part.stop)
