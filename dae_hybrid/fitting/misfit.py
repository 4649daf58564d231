"""Residuals of all experiments, priors and penalties, with their Jacobian or the gradient of their cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import casadi as ca
import numpy as np
from scipy import sparse

from dae_hybrid.cancellation import carried
from dae_hybrid.errors import (
    ConsistencyError,
    DaeHybridError,
    DualityError,
    EventError,
    IntegrationError,
    ModelError,
    NonFiniteError,
    OptionError,
)
from dae_hybrid.fitting.free_parameters import FreeParameters
from dae_hybrid.fitting.losses import LOSSES
from dae_hybrid.fitting.prediction import Prediction
from dae_hybrid.numeric_input import shown
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.optimization.one_sided import OneSided, Sides

#: errors of a run that depend on the parameters: a fit avoids such points
RUN_ERRORS = (IntegrationError, ConsistencyError, EventError, DualityError, ModelError)
#: residuals from the free parameters, as CasADi expressions by label
Penalty = Callable[[Mapping[str, Any]], Any]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Residuals at a point; NaN if a run failed or has no derivatives.

    Attributes
    ----------
    q : ndarray, shape (n,)
        Free parameters.
    cost : float
        Half the sum of the losses.
    residuals : ndarray, shape (m,)
        Residuals of data, then of priors and penalties, divided by standard deviations.
    jacobian : ndarray, shape (m, n), or None
        Their derivatives by q.
    gradient : ndarray, shape (n,), or None
        Derivative of the cost by q.
    error : DaeHybridError or None
        Reason for NaN.
    one_sided : OneSided or None
        The point that was asked for, if derivatives are one-sided there; `q` is where they were taken.
    """

    q: Array
    cost: float
    residuals: Array
    jacobian: Array | None = None
    gradient: Array | None = None
    error: DaeHybridError | None = None
    one_sided: OneSided | None = None


class Misfit:
    """The cost of a fit: predictions against data, priors and penalties.

    Attributes
    ----------
    n_data, size : int
        Number of residuals of data, and of all.
    """

    def __init__(
        self, predictions: Sequence[Prediction], free: FreeParameters, penalty: Penalty | None, loss: str,
        f_scale: float, workers: int, rtol: float,
    ) -> None:  # fmt: skip
        self.sides = Sides(free.labels, free.lower, free.upper, np.abs(free.start), rtol)
        self.predictions, self.free, self.f_scale, self.loss = tuple(predictions), free, f_scale, loss
        self.targets = np.concatenate([p.targets for p in predictions])
        self.sigma = np.concatenate([p.sigma for p in predictions])
        self.n_data = len(self.targets)
        self._ends = np.cumsum([0, *(len(p.targets) for p in predictions)])
        self._rows = None if penalty is None else _compiled(penalty, free.labels)
        self._prior = np.flatnonzero(np.isfinite(free.prior_sd))
        self._workers = min(workers, len(predictions))
        self.size = self.n_data + len(self._prior) + (0 if self._rows is None else self._rows.size1_out(0))

    def threaded(self, workers: int) -> Misfit:
        """The same misfit with the experiments on this number of threads."""
        other = copy(self)
        other._workers = min(workers, len(self.predictions))
        return other

    def part(self, values: Array, i: int) -> Array:
        """The rows of experiment i."""
        return values[self._ends[i] : self._ends[i + 1]]

    def rho(self, z: Array) -> Array:
        """Loss of the squares of all residuals and its derivatives, (3, m); priors and penalties enter as they are."""
        found = LOSSES["linear"](z)
        found[:, : self.n_data] = LOSSES[self.loss](z[: self.n_data])
        return found

    def cost(self, residuals: Array) -> float:
        """Half the sum of the losses."""
        return float(0.5 * self.f_scale**2 * self.rho((residuals / self.f_scale) ** 2)[0].sum())

    def slopes(self, residuals: Array) -> Array:
        """Derivative of the cost by the residuals."""
        return np.asarray(residuals * self.rho((residuals / self.f_scale) ** 2)[1])

    def values(self, q: Array) -> Evaluation:
        """Residuals without derivatives."""
        return self._guarded(q, lambda q: self._evaluation(q)[0])

    def linearised(self, q: Array) -> Evaluation:
        """Residuals with their Jacobian, by forward analysis."""
        return self._guarded(q, self._linearised)

    def differs(self, q: Array) -> bool:
        """Whether residuals or their Jacobian differ on two sides of a point within the bounds, see `Sides.differ`."""

        def rows(q: Array) -> Array:
            found = self._linearised(q)
            return np.column_stack((found.residuals, np.asarray(found.jacobian)))

        return self.sides.differ(q, rows)

    def _linearised(self, q: Array) -> Evaluation:
        pairs = self._each(lambda p, _: p.derivatives(q))
        found, by_q = self._evaluation(q, np.concatenate([values for values, _ in pairs]))
        jacobian = np.zeros((self.size, len(q)))
        jacobian[self.n_data :] = by_q.toarray()
        for i, (prediction, (_, slopes)) in enumerate(zip(self.predictions, pairs, strict=True)):
            self.part(jacobian, i)[:, prediction.free] = slopes / prediction.sigma[:, None]
        return replace(found, jacobian=jacobian, gradient=self.slopes(found.residuals) @ jacobian)

    def differentiated(self, q: Array) -> Evaluation:
        """Residuals with the gradient of the cost, by adjoint analysis."""

        def evaluate(q: Array) -> Evaluation:
            found, by_q = self._evaluation(q)
            slopes = self.slopes(found.residuals)
            seeds = slopes[: self.n_data] / self.sigma
            gradient = slopes[self.n_data :] @ by_q
            parts = self._each(lambda p, i: p.pullback(q, self.part(seeds, i)))
            for prediction, own in zip(self.predictions, parts, strict=True):
                gradient[prediction.free] += own
            return replace(found, gradient=gradient)

        return self._guarded(q, evaluate)

    def _each[T](self, function: Callable[[Prediction, int], T]) -> list[T]:
        """Call a function for every experiment, on several threads."""
        pairs = list(self.predictions), range(len(self.predictions))
        if self._workers < 2:
            return list(map(function, *pairs))
        with ThreadPoolExecutor(self._workers) as pool:
            return list(pool.map(carried(function), *pairs))

    def _guarded(self, q: Array, evaluate: Callable[[Array], Evaluation]) -> Evaluation:
        """Evaluate, beside the point if derivatives are one-sided there; NaN with the reason if a run fails."""
        blank = np.full(self.size, np.nan)
        if not np.isfinite(q).all():
            return Evaluation(q, np.nan, blank, error=NonFiniteError("A free parameter is not finite."))
        try:
            found, _, one_sided = self.sides.take(q, evaluate)
        except RUN_ERRORS as error:
            error.release()
            return Evaluation(q, np.nan, blank, error=error)
        parts = (found.residuals, found.jacobian, found.gradient)
        if all(part is None or np.isfinite(part).all() for part in parts):
            return replace(found, one_sided=one_sided)
        reason = NonFiniteError("A residual or its derivative is not finite.")
        return Evaluation(q, np.nan, blank, error=reason)

    def _evaluation(self, q: Array, values: Array | None = None) -> tuple[Evaluation, sparse.csr_array]:
        """Residuals from predicted values, and the derivatives of those of priors and penalties."""
        values = np.concatenate(self._each(lambda p, _: p.values(q))) if values is None else values
        further, by_q = self._further(q)
        residuals = np.concatenate(((values - self.targets) / self.sigma, further))
        return Evaluation(q, self.cost(residuals), residuals), by_q

    def _further(self, q: Array) -> tuple[Array, sparse.csr_array]:
        """Residuals of priors and penalties, and their derivatives by q."""
        free, chosen = self.free, self._prior
        priors = (free.scaled(q)[chosen] - free.prior_mean[chosen]) / free.prior_sd[chosen]
        with np.errstate(divide="ignore"):
            entries = 1 / (free.slope(q)[chosen] * free.prior_sd[chosen])
        slopes = sparse.csr_array((entries, (range(len(chosen)), chosen)), shape=(len(chosen), free.size))
        if self._rows is None:
            return priors, slopes
        rows, by_q = self._rows(q)
        return np.concatenate((priors, rows.full()[:, 0])), sparse.vstack((slopes, by_q.sparse()), format="csr")


def _compiled(penalty: Penalty, labels: Sequence[str]) -> ca.Function:
    """The residuals of a penalty and their Jacobian."""
    symbols = [ca.SX.sym(label) for label in labels]
    try:
        rows = penalty(dict(zip(labels, symbols, strict=True)))
        rows = ca.vertcat(*rows) if isinstance(rows, list | tuple) else ca.vec(ca.SX(rows))
        q = ca.vertcat(*symbols)
        return ca.Function("penalty", [q], [ca.densify(rows), ca.jacobian(rows, q)])
    except Exception as reason:
        raise OptionError(
            f"penalty must return CasADi expressions of the parameters by label ({', '.join(labels)}): "
            f"{type(reason).__name__}: {shown(str(reason))}",
            remedy="For example: penalty=lambda q: [0.1 * (q['a'] - q['b'])].",
        ) from reason
