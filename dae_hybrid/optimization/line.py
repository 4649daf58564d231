"""Functionals along a line in parameter space, with their derivatives and the sequence of events."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dae_hybrid.conditions.sequences import EventSequence
from dae_hybrid.errors import DaeHybridError, DerivativeWarning
from dae_hybrid.interface.api import simulate
from dae_hybrid.interface.prepared import Prepared, prepare
from dae_hybrid.interface.prepared_case import Analysis, trajectory_of
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.system.system import HybridSystem


@dataclass(frozen=True, eq=False)
class LinePoint:
    """Functionals and their derivatives along the line at one point.

    Attributes
    ----------
    at : float
        Position on the line.
    values, slopes : ndarray, shape (k,)
        Values of the functionals and their derivatives along the line; NaN where these are refused.
    digest : int
        Digest of the sequence of events.
    reason : DaeHybridError or None
        Why derivatives are refused.
    """

    at: float
    values: Array
    slopes: Array
    digest: int
    reason: DaeHybridError | None = None

    @property
    def has_slopes(self) -> bool:
        """Whether all derivatives are known."""
        return bool(np.isfinite(self.slopes).all())


class Line:
    """The points ``origin + s direction`` of a parameter space.

    Parameters
    ----------
    functionals : sequence of str
        Functionals to evaluate; their components are joined.
    analysis : {"forward", "adjoint"}
        Analysis that computes the derivatives.
    """

    def __init__(
        self, system: HybridSystem, t_span: Sequence[float], functionals: Sequence[str], origin: Array,
        direction: Array, analysis: Analysis, adapter: str, options: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.system, self.t_span, self.functionals = system, t_span, tuple(functionals)
        self.origin, self.direction, self.analysis = origin, direction, analysis
        self.call: dict[str, Any] = {"adapter": adapter, **options}
        parts = system.parameters
        self.wrt = tuple(name for name in parts.names if direction[parts[name]].any())
        self._sequences: dict[int, EventSequence] = {}

    @cached_property
    def _prepared(self) -> Prepared:
        return prepare(
            self.system, self.t_span, functional=self.functionals, derivatives=self.analysis, wrt=self.wrt, **self.call
        )

    @cached_property
    def _moves(self) -> Array:
        """The direction by the parameters of `wrt`."""
        return self.direction[list(self.system.parameter_indices(self.wrt))]

    def parameters(self, s: float) -> Array:
        """All parameters at a position."""
        return np.asarray(self.origin + s * self.direction)

    def slopes(self, gradients: Array) -> Array:
        """Derivatives along the line, (..., k), of gradients (..., k, n_wrt)."""
        return np.asarray(gradients @ self._moves)

    def __call__(self, s: float) -> LinePoint:
        """Evaluate a point; if only the derivatives are refused, they are NaN.

        Raises
        ------
        DaeHybridError
            The run fails.
        """
        p = self.parameters(s)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DerivativeWarning)  # at most one-sided, as is the purpose here
            try:
                run = self._prepared(p)
            except DaeHybridError as error:
                return self.without_slopes(s, error)
        values = np.concatenate([np.atleast_1d(run.functionals[name]) for name in self.functionals])
        gradients = np.vstack([np.atleast_2d(run.gradient[name]) for name in self.functionals])
        return LinePoint(s, values, self.slopes(gradients), run.digest)

    def without_slopes(self, s: float, reason: DaeHybridError) -> LinePoint:
        """Evaluate a point whose derivatives are refused for this reason."""
        run = simulate(self.system, self.t_span, parameters=self.parameters(s), **self.call)
        sequence = EventSequence.of(run)
        self._sequences[sequence.digest] = sequence
        values = np.concatenate([np.atleast_1d(run.functionals[name]) for name in self.functionals])
        if np.isnan(values).any():  # a time that does not exist
            raise reason
        reason.release()
        return LinePoint(s, values, np.full(values.size, np.nan), sequence.digest, reason)

    def sequence(self, point: LinePoint) -> EventSequence:
        """The sequence of events at an evaluated point, by another run unless it is known."""
        if point.digest not in self._sequences:
            self._sequences[point.digest] = self._sequence(point.at)
        return self._sequences[point.digest]

    def _sequence(self, s: float) -> EventSequence:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DerivativeWarning)
            return EventSequence.of(trajectory_of(self._prepared(self.parameters(s)).single))
