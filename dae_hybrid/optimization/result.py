"""Results of an optimisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from dae_hybrid.conditions.sequences import EventSequence
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.optimization.changes import Change
from dae_hybrid.optimization.evaluations import Evaluation
from dae_hybrid.optimization.one_sided import OneSided, in_lines
from dae_hybrid.tables import align, counted, html, in_short


@dataclass(frozen=True, eq=False)
class SequenceChange:
    """A change of the sequence of events between two successive iterates.

    Attributes
    ----------
    iterates : (int, int)
        Their numbers, from 0 for the start.
    before, after : EventSequence
        Sequences of both.
    """

    iterates: tuple[int, int]
    before: EventSequence
    after: EventSequence

    def __repr__(self) -> str:
        one, two = self.iterates
        return f"<SequenceChange between iterates {one} and {two}: {self.before.difference(self.after)}>"


@dataclass(frozen=True, eq=False)
class ChangeAtOptimum:
    """A change of the sequence of events next to the final point.

    Attributes
    ----------
    change : Change
        The change along a line on which the final point is at 1, and its distances are relative to the sizes of the
        parameters.
    parameters : ndarray, shape (n_parameters,)
        Parameters at the change.
    distance : float
        Largest distance of a parameter from the final point, relative to its size or to its range over the iterates.
    """

    change: Change
    parameters: Array
    distance: float

    def __repr__(self) -> str:
        return f"<ChangeAtOptimum at distance {self.distance:.1e}: {self.change.kind}>"


@dataclass(frozen=True, eq=False)
class OptimizationResult:
    """Result of `OptimizationProblem.minimize`.

    Attributes
    ----------
    x : ndarray, shape (n,)
        Final optimisation variables.
    parameters : dict of str to float or ndarray
        Final values of the optimised parameters.
    value : float
        Objective at the final point.
    gradient : ndarray, shape (n,)
        Its gradient by x.
    constraints : dict of str to float or ndarray
        Values of the constraints.
    success : bool
        Whether the optimiser reports success and the final point is valid.
    message, method : str
        Message and name of the optimiser.
    n_iterations, n_evaluations : int
        Number of iterations, and of runs with gradients.
    history : tuple of Evaluation
        All evaluations, in order.
    change_at_optimum : ChangeAtOptimum or None
        A change of the sequence of events closer to the final point than 1e-3, found towards the nearest evaluation
        with another sequence.
    raw : Any
        Result of SciPy, or statistics of IPOPT.
    """

    x: Array
    parameters: Mapping[str, Any]
    value: float
    gradient: Array
    constraints: Mapping[str, Any]
    success: bool
    message: str
    method: str
    n_iterations: int
    n_evaluations: int
    history: tuple[Evaluation, ...]
    change_at_optimum: ChangeAtOptimum | None
    raw: Any = field(repr=False)
    _sequence: Callable[[Evaluation], EventSequence] = field(repr=False)

    @property
    def failures(self) -> tuple[Evaluation, ...]:
        """Evaluations that failed, with parameters and reason."""
        return tuple(own for own in self.history if own.error is not None)

    @property
    def one_sided(self) -> tuple[OneSided, ...]:
        """Points at which derivatives are one-sided, with the side that was taken."""
        return tuple(own.one_sided for own in self.history if own.one_sided is not None)

    @property
    def iterates(self) -> tuple[Evaluation, ...]:
        """The points that the optimiser accepted, from the start on."""
        return tuple(own for own in self.history if own.is_iterate)

    @cached_property
    def sequences(self) -> tuple[EventSequence, ...]:
        """Sequence of events of every iterate; each distinct one takes a run on first access."""
        return tuple(self._sequence(own) for own in self.iterates)

    @cached_property
    def sequence_changes(self) -> tuple[SequenceChange, ...]:
        """Changes of the sequence of events between iterates."""
        digests = np.array([own.digest for own in self.iterates], dtype=np.int64)
        places = np.flatnonzero(np.diff(digests) != 0).tolist()
        own = self.iterates
        return tuple(SequenceChange((i, i + 1), self._sequence(own[i]), self._sequence(own[i + 1])) for i in places)

    def _rows(self) -> list[list[str]]:
        rows = [["", "value"], ["objective", f"{self.value:.9g}"]]
        rows += [[f"constraint {name}", in_short(value)] for name, value in self.constraints.items()]
        rows += [[name, in_short(value)] for name, value in self.parameters.items()]
        rows.append(["iterations", str(self.n_iterations)])
        warned = sum(bool(own.warnings) for own in self.history)
        rows.append(["evaluations", f"{self.n_evaluations}, {len(self.failures)} failed, {warned} with warnings"])
        if sided := self.one_sided:
            rows.append(["one-sided derivatives", counted(len(sided), "evaluation")])
        rows.append(["changes of the sequence of events", str(len(self.sequence_changes))])
        if self.change_at_optimum is not None:
            rows.append(["change next to the final point", self.change_at_optimum.change.kind])
        return rows

    def __repr__(self) -> str:
        state = "success" if self.success else "no success"
        return (
            f"<OptimizationResult by {self.method}: {state}, objective {self.value:.9g} after "
            f"{counted(self.n_evaluations, 'evaluation')}>"
        )

    def _repr_html_(self) -> str:
        return html(repr(self), self._rows())

    def __str__(self) -> str:
        return "\n".join([repr(self), self.message, *align(self._rows()), *in_lines(self.one_sided)])
