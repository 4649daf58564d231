"""One step of an integrator as a polynomial."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from dae_hybrid.numerics.arrays import Array

#: number of coefficients of a step polynomial, and its interpolation nodes: Chebyshev-Lobatto points on [-1, 1]
COEFFICIENTS = 8
NODES = -np.cos(np.pi * np.arange(COEFFICIENTS) / (COEFFICIENTS - 1))
_FROM_VALUES = np.linalg.inv(np.vander(NODES, increasing=True))
#: roundings of the values that a coefficient may contain
COEFFICIENT_ROUNDINGS = float(np.abs(_FROM_VALUES).sum(axis=1).max())


@dataclass(frozen=True, eq=False)
class Step:
    """A solution on [t0, t1]: `coefficients` (8, n) of a polynomial in s, with s = -1 at t0 and s = 1 at t1.

    Examples
    --------
    >>> import numpy as np
    >>> from dae_hybrid.numerics.step_polynomial import Step
    >>> step = Step.through(0.0, 2.0, lambda t: t[:, None] ** 3)
    >>> step(np.array([1.0, 1.5])).round(12).tolist()
    [[1.0], [3.375]]
    """

    t0: float
    t1: float
    coefficients: Array

    @classmethod
    def through(cls, t0: float, t1: float, values: Callable[[Array], Array]) -> Step:
        """Interpolate `values(times)`, shape (len(times), n), at the nodes."""
        return cls(t0, t1, _FROM_VALUES @ values(node_times(t0, t1)))

    @property
    def middle(self) -> float:
        """Midpoint of the step."""
        return self.t0 + (self.t1 - self.t0) / 2

    def _powers(self, t: Array) -> Array:
        return np.vander((t - self.middle) * (2 / (self.t1 - self.t0)), COEFFICIENTS, increasing=True)

    def __call__(self, t: Array) -> Array:
        """Evaluate at times; returns (len(t), n)."""
        return self._powers(t) @ self.coefficients

    def at(self, t: float) -> Array:
        """Evaluate at one time; returns (n,)."""
        value: Array = self(np.array([t]))[0]
        return value

    def rate(self, t: float) -> Array:
        """Derivative at one time; returns (n,)."""
        by_s = self.coefficients[1:] * np.arange(1, COEFFICIENTS)[:, None]
        rate: Array = self._powers(np.array([t]))[0, :-1] @ by_s * (2 / (self.t1 - self.t0))
        return rate

    def dense_row(self) -> Array:
        """Return a row of `Interpolant`: t1, h, order, and the derivatives at t1."""
        h = self.t1 - self.t0
        derivatives = end_derivatives() @ self._powers(node_times(self.t0, self.t1)) @ self.coefficients
        scaled = derivatives / h ** np.arange(COEFFICIENTS)[:, None]
        return np.concatenate(([self.t1, h, COEFFICIENTS - 1.0], scaled.ravel()))


@cache
def end_derivatives() -> Array:
    """Matrix (8, 8) from values at the nodes of a step of unit length to derivatives 0 to 7 at its end."""
    rows, c = [], _FROM_VALUES
    for k in range(COEFFICIENTS):
        rows.append(c.sum(axis=0) * 2.0**k)
        c = c[1:] * np.arange(1, len(c))[:, None]
    return np.array(rows)


def node_times(t0: float, t1: float) -> Array:
    """Times of a step's nodes; the end time is exact."""
    times = t0 + (t1 - t0) * (NODES + 1) / 2
    times[-1] = t1
    return np.asarray(times)
