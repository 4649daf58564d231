"""Functions of x for an optimiser: objective, constraints and their derivatives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import LinearConstraint, NonlinearConstraint

from dae_hybrid.numerics.arrays import Array
from dae_hybrid.optimization.evaluations import Evaluator, Point
from dae_hybrid.optimization.ipopt import Stalled
from dae_hybrid.optimization.variables import Variables

#: IPOPT is stopped after so many evaluations in which no iterate moves further than this, relative to its size
STALLED, UNMOVED = 200, 1e-9


class Layout(NamedTuple):
    """Sign of the objective, places of the constraints behind it, and their limits, by name."""

    sign: float
    parts: Mapping[str, slice]
    limits: Mapping[str, tuple[Array, Array]]


@dataclass(frozen=True, eq=False)
class Target:
    """Functions of x that share an evaluator; arrays are copies."""

    evaluator: Evaluator
    variables: Variables
    layout: Layout

    def point(self, x: ArrayLike) -> Point:
        """Evaluate a point."""
        return self.evaluator(self.variables.given(x))

    def objective(self, x: ArrayLike) -> tuple[float, Array]:
        """Value and gradient of the function to minimise."""
        point, sign = self.point(x), self.layout.sign
        if point.evaluation.error is not None:
            return self.evaluator.penalty, np.zeros(point.gradients.shape[1])
        return sign * point.evaluation.objective, sign * point.gradients[0]

    def valid(self, x: ArrayLike) -> Point:
        """The point at x, or the last valid one if that failed."""
        point, latest = self.point(x), self.evaluator.latest
        return point if point.evaluation.error is None or latest is None else latest

    def constraints(self, start: Array | None = None) -> tuple[NonlinearConstraint | LinearConstraint, ...]:
        """The constraints that have a limit, and the orders, for SciPy; trust-constr stays in order from a start."""
        own = [(self.layout.parts[name], pair) for name, pair in self.layout.limits.items() if np.isfinite(pair).any()]
        found = tuple(NonlinearConstraint(_Values(self, part), *pair, jac=_Jacobian(self, part)) for part, pair in own)
        rows = self.variables.differences
        if not len(rows):
            return found
        inside = start is not None and bool((rows @ start < 0).all())
        return *found, LinearConstraint(rows, -np.inf, 0.0, keep_feasible=inside)


@dataclass(frozen=True)
class _Values:
    target: Target
    part: slice

    def __call__(self, x: ArrayLike) -> Array:
        return self.target.valid(x).evaluation.values[self.part].copy()


@dataclass(frozen=True)
class _Jacobian:
    target: Target
    part: slice

    def __call__(self, x: ArrayLike) -> Array:
        return self.target.valid(x).gradients[self.part].copy()


class IpoptTarget:
    """The functions as IPOPT takes them: NaN where a run fails, and an end where it makes no progress."""

    def __init__(self, target: Target, start: Array, m: int) -> None:
        self._target, self._anchor, self._unmoved = target, start, 0
        self._signs = np.ones(1 + m)
        self._signs[0] = target.layout.sign

    def values(self, x: Array) -> Array:
        """Objective and constraints, (1 + m,).

        Raises
        ------
        Stalled
            No iterate has moved for many evaluations.
        """
        self._unmoved += 1
        if self._unmoved > STALLED:
            raise Stalled(self._anchor)
        return np.asarray(self._signs * self._target.evaluator(x).evaluation.values)

    def derivatives(self, x: Array) -> Array:
        """Their derivatives (1 + m, n), of which IPOPT takes those of accepted points only."""
        point = self._target.evaluator(x)
        if point.evaluation.error is not None:
            return np.full_like(point.gradients, np.nan)
        self._target.evaluator.accept(x)
        if np.abs(x - self._anchor).max() > UNMOVED * (1 + np.abs(x).max()):
            self._anchor, self._unmoved = x.copy(), 0
        return np.asarray(self._signs[:, None] * point.gradients)
