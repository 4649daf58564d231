"""One step of an integrator as a polynomial through its values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from dae_hybrid.numerics.arrays import Array

#: coefficients of the polynomial of a step, and where its values are taken: Chebyshev-Lobatto points on [-1, 1]
COEFFICIENTS = 8
NODES = -np.cos(np.pi * np.arange(COEFFICIENTS) / (COEFFICIENTS - 1))
_FROM_VALUES = np.linalg.inv(np.vander(NODES, increasing=True))


@dataclass(frozen=True, eq=False)
class Step:
    """A solution on [t0, t1]: `coefficients` (8, n) of a polynomial in s, which is -1 at t0 and 1 at t1.

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
        """The polynomial through `values(times)`, shape (len(times), n)."""
        return cls(t0, t1, _FROM_VALUES @ values(node_times(t0, t1)))

    @property
    def middle(self) -> float:
        """Where s is zero."""
        return self.t0 + (self.t1 - self.t0) / 2

    def _powers(self, t: Array) -> Array:
        return np.vander((t - self.middle) * (2 / (self.t1 - self.t0)), COEFFICIENTS, increasing=True)

    def __call__(self, t: Array) -> Array:
        """Values at times, (len(t), n)."""
        return self._powers(t) @ self.coefficients

    def at(self, t: float) -> Array:
        """Value at one time, (n,)."""
        value: Array = self(np.array([t]))[0]
        return value

    def rate(self, t: float) -> Array:
        """Derivative at one time, (n,)."""
        by_s = self.coefficients[1:] * np.arange(1, COEFFICIENTS)[:, None]
        rate: Array = self._powers(np.array([t]))[0, :-1] @ by_s * (2 / (self.t1 - self.t0))
        return rate

    def dense_row(self) -> Array:
        """A row of `Interpolant`: t1, h, order, and the derivatives at t1."""
        h = self.t1 - self.t0
        derivatives = end_derivatives() @ self._powers(node_times(self.t0, self.t1)) @ self.coefficients
        scaled = derivatives / h ** np.arange(COEFFICIENTS)[:, None]
        return np.concatenate(([self.t1, h, COEFFICIENTS - 1.0], scaled.ravel()))


@cache
def end_derivatives() -> Array:
    """Values at the nodes of a step of length one to the derivatives 0 to 7 at its end, (8, 8)."""
    rows, c = [], _FROM_VALUES
    for k in range(COEFFICIENTS):
        rows.append(c.sum(axis=0) * 2.0**k)
        c = c[1:] * np.arange(1, len(c))[:, None]
    return np.array(rows)


def node_times(t0: float, t1: float) -> Array:
    """Times of the nodes of a step; its ends are exact."""
    times = t0 + (t1 - t0) * (NODES + 1) / 2
    times[-1] = t1
    return np.asarray(times)
