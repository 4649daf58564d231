"""Evaluations of an optimisation: one run for the objective and all constraints at a point."""

from __future__ import annotations

import warnings
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from warnings import WarningMessage

import numpy as np

from dae_hybrid.errors import DaeHybridError
from dae_hybrid.interface.prepared import Prepared, Run
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.optimization.one_sided import OneSided, Sides
from dae_hybrid.optimization.variables import Variables

#: points whose gradients are kept, at least and at most, and their bytes: IPOPT returns to points of its line search
CACHED, MAX_CACHED, MAX_CACHED_BYTES = 8, 1000, 1e8
#: evaluations in the history, and bytes of their parameters
MAX_HISTORY, MAX_HISTORY_BYTES = 10_000, 1e8
#: factor of `failure_penalty`
PENALTY = 1e3


def failure_penalty(largest: float) -> float:
    """Value for an optimiser at a point that failed, from the largest magnitude of the objective so far.

    With a zero gradient, the methods of SciPy shorten their step there.
    """
    return PENALTY * (1 + largest)


@dataclass(eq=False)
class Evaluation:
    """One evaluated point of an optimisation.

    Attributes
    ----------
    index : int
        Number of earlier evaluations.
    x : ndarray, shape (n,)
        Optimisation variables.
    parameters : ndarray, shape (n_parameters,)
        All parameters of the model.
    values : ndarray, shape (k,)
        The objective, and the components of all constraints; NaN if the run failed.
    digest, n_events : int
        Digest of the sequence of events, see `Run`, and the number of events; 0 if the run failed.
    error : DaeHybridError or None
        Why the run failed or a derivative was refused.
    is_iterate : bool
        Whether the optimiser accepted the point.
    warnings : tuple of warnings.WarningMessage
        Warnings of the run. `OptimizationProblem.minimize` issues those of the start.
    one_sided : OneSided or None
        If derivatives are one-sided at x: which side was taken. `parameters` and `values` are those of that side.
    """

    index: int
    x: Array
    parameters: Array
    values: Array
    digest: int = 0
    n_events: int = 0
    error: DaeHybridError | None = None
    is_iterate: bool = False
    warnings: tuple[WarningMessage, ...] = ()
    one_sided: OneSided | None = None

    @property
    def objective(self) -> float:
        """Value of the objective."""
        return float(self.values[0])

    def in_words(self) -> str:
        """The evaluation on a line that shows progress."""
        return f"evaluation {self.index}, objective {self.objective:.6g}"

    def __repr__(self) -> str:
        if self.error is not None:
            return f"<Evaluation {self.index}: {type(self.error).__name__}: {self.error.message}>"
        return f"<Evaluation {self.index}: objective {self.objective:.9g}, {self.n_events} events>"


@dataclass(frozen=True, eq=False)
class Point:
    """An evaluation with its gradients by x, (k, n)."""

    evaluation: Evaluation
    gradients: Array


class Evaluator:
    """Evaluate points, once each, and remember what happened. Arrays are read-only."""

    def __init__(self, run: Prepared, names: tuple[str, ...], variables: Variables, sides: Sides) -> None:
        self._run, self._names, self._variables, self.sides = run, names, variables, sides
        self._cache: OrderedDict[bytes, Point] = OrderedDict()
        kept = int(MAX_HISTORY_BYTES / (8 * (variables.x0.size + variables.n_parameters)))
        self.history: deque[Evaluation] = deque(maxlen=max(CACHED, min(kept, MAX_HISTORY)))
        self.count, self.largest = 0, 0.0
        self.latest: Point | None = None
        self.on_evaluation: Callable[[Evaluation], object] | None = None

    def __call__(self, x: Array) -> Point:
        """Evaluate a point, unless it was one of the last."""
        key = x.tobytes()
        found = self._cache.get(key)
        if found is None:
            found = self._evaluate(x.copy())
            self._cache[key] = found
            kept = MAX_CACHED_BYTES / max(found.gradients.nbytes, 1)
            while len(self._cache) > max(CACHED, min(kept, MAX_CACHED)):
                self._cache.popitem(last=False)
        return found

    def _evaluate(self, x: Array) -> Point:
        own = self._variables
        q = own.natural(x)
        try:
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                run, q, one_sided = self.sides.take(q, lambda q: self._run(own.completed(q)))
        except DaeHybridError as error:
            if self.latest is None:
                raise
            error.release()
            unknown = np.full_like(self.latest.evaluation.values, np.nan)
            p = own.completed(q)
            found = Point(Evaluation(self.count, x, p, unknown, error=error), np.zeros_like(self.latest.gradients))
        else:
            p, (values, rows) = own.completed(q), self._numbers(run)
            evaluation = Evaluation(self.count, x, p, values, run.digest, run.n_events)
            evaluation.warnings, evaluation.one_sided = tuple(said), one_sided
            found = self.latest = Point(evaluation, own.by_x(rows, p))
            self.largest = max(self.largest, abs(evaluation.objective))
        for array in (x, p, found.evaluation.values, found.gradients):
            array.flags.writeable = False  # they serve later calls
        self.count += 1
        self.history.append(found.evaluation)
        if self.on_evaluation is not None:
            self.on_evaluation(found.evaluation)
        return found

    def _numbers(self, run: Run) -> tuple[Array, Array]:
        """Values (k,) and their derivatives by the optimised parameters, (k, n)."""
        values = np.concatenate([np.atleast_1d(run.functionals[name]) for name in self._names])
        return values, np.vstack([np.atleast_2d(run.gradient[name]) for name in self._names])

    def differs(self, x: Array) -> bool:
        """Whether values or derivatives differ on two sides of x within bounds and orders, see `Sides.differ`."""
        own = self._variables
        return self.sides.differ(own.natural(x), lambda q: np.column_stack(self._numbers(self._run(own.completed(q)))))

    def accept(self, x: Array) -> Evaluation:
        """Mark a point as an iterate."""
        evaluation = self(x).evaluation
        evaluation.is_iterate = True
        return evaluation

    @property
    def penalty(self) -> float:
        """Value of the objective, to be minimised, at a point that failed."""
        return failure_penalty(self.largest)
