"""Accuracy of estimates: covariance, and the combinations of parameters that the data determine.

The formulas are those of nonlinear regression: Seber and Wild, Nonlinear Regression (1989), sections 2.1 and 5.1;
Belsley, Kuh and Welsch, Regression Diagnostics (1980), chapter 3, for the condition indices; Huber, Robust Statistics
(1981), section 7.6, for robust losses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.fitting import figures
from dae_hybrid.fitting.misfit import Misfit
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.tables import align, html, in_short

#: condition index from which a combination is poorly determined (Belsley, Kuh and Welsch, section 3.2)
LARGE_INDEX = 30.0
#: a singular value below this multiple of rtol of the largest one is an error of the derivatives
RANK_FACTOR = 10.0
#: entry of a unit vector that counts as zero
NEGLIGIBLE = 1e-6


@dataclass(frozen=True, eq=False)
class Conditioning:
    """How well data determine combinations of the parameters: singular values of the Jacobian with columns of length 1.

    Attributes
    ----------
    labels : tuple of str
        Parameters that are not at a bound.
    lengths : ndarray, shape (n,)
        Lengths of the columns: the change of all residuals by a unit change of each parameter.
    singular : ndarray, shape (n,)
        Singular values, decreasing.
    directions : ndarray, shape (n, n)
        Unit vectors of the combinations, one row per singular value: eigenvectors of the scaled Fisher information.
    rank : int
        Number of combinations that the data determine at the accuracy of the derivatives.
    """

    labels: tuple[str, ...]
    lengths: Array
    singular: Array
    directions: Array
    rank: int

    @classmethod
    def of(cls, jacobian: Array, labels: tuple[str, ...], rtol: float) -> Conditioning:
        """Analyse a Jacobian whose entries are accurate to `rtol`."""
        lengths = np.linalg.norm(jacobian, axis=0)
        scaled = jacobian / np.where(lengths > 0, lengths, 1.0)
        short, directions = np.linalg.svd(scaled, full_matrices=len(scaled) < len(labels))[1:]
        singular = np.concatenate((short, np.zeros(len(labels) - len(short))))
        rank = int((singular > RANK_FACTOR * rtol * singular.max(initial=0.0)).sum())
        return cls(labels, lengths, singular, directions, rank)

    @property
    def indices(self) -> Array:
        """Condition indices, increasing: the largest singular value over each; above 30 poorly determined."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(self.singular.max(initial=0.0) / self.singular)

    @property
    def proportions(self) -> Array:
        """Shares of every parameter's variance (columns) that come from each combination (rows), (n, n)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = (self.directions / self.singular[:, None]) ** 2
            lost = self.directions[self.rank :] ** 2
            shares[: self.rank, ~self.determined] = 0.0
            shares[self.rank :] = np.where(self.determined, 0.0, lost)
            return np.asarray(shares / shares.sum(axis=0))

    @property
    def determined(self) -> NDArray[np.bool_]:
        """Whether the data determine each parameter, (n,)."""
        return np.asarray(np.abs(self.directions[self.rank :]).max(axis=0, initial=0.0) <= NEGLIGIBLE)

    def inverse(self) -> Array:
        """(J^T J)^-1; infinite variances and NaN covariances of parameters that the data do not determine."""
        kept, lost = self.directions[: self.rank] / self.singular[: self.rank, None], ~self.determined
        lengths = np.where(lost, 1.0, self.lengths)
        found = kept.T @ kept / np.outer(lengths, lengths)
        found[lost], found[:, lost] = np.nan, np.nan
        found[lost, lost] = np.inf
        return np.asarray(found)

    def variances(self, rows: Array) -> Array:
        """Variances of combinations of the parameters, (k,), from their coefficients (k, n).

        For residuals of unit variance; infinite where the data do not determine a combination.
        """
        along = rows / np.where(self.lengths > 0, self.lengths, 1.0) @ self.directions.T
        found = ((along[:, : self.rank] / self.singular[: self.rank]) ** 2).sum(axis=1)
        lost = np.abs(along[:, self.rank :]).max(axis=1, initial=0.0)
        return np.asarray(np.where(lost > NEGLIGIBLE * np.linalg.norm(along, axis=1), np.inf, found))

    def plot(self) -> Any:
        """Draw the condition indices and the combinations; a matplotlib Figure."""
        return figures.plot_conditioning(self)

    def _rows(self) -> list[list[str]]:
        heading = ["condition index", *self.labels]
        rows = zip(self.indices[::-1], self.directions[::-1], strict=True)
        return [heading, *([in_short(index), *(f"{v:.2f}" for v in row)] for index, row in rows)]

    def __repr__(self) -> str:
        largest = in_short(self.indices.max(initial=0.0))
        return f"<Conditioning of {len(self.labels)} parameters: rank {self.rank}, largest condition index {largest}>"

    def __str__(self) -> str:
        return "\n".join(align(self._rows()))

    def _repr_html_(self) -> str:
        return html(repr(self), self._rows())


def covariance(conditioning: Conditioning, misfit: Misfit, jacobian: Array, residuals: Array, variance: float) -> Array:
    """Covariance of the parameters that are not at a bound.

    Parameters
    ----------
    jacobian : ndarray, shape (m, n)
        Derivatives of the residuals by these parameters.
    variance : float
        Variance of the residuals of data.

    Notes
    -----
    With a robust loss rho(z), z = (r / C)^2: H^-1 B H^-1 with H = J^T diag(rho' + 2 rho'' z) J and
    B = J^T diag((rho' r)^2) J, where the rows of n data count n / (n - p) times for p parameters, and priors and
    penalties have unit variance.
    """
    if misfit.loss == "linear":
        return conditioning.inverse() * variance
    z = (residuals / misfit.f_scale) ** 2
    _, first, second = misfit.rho(z)
    factor = misfit.n_data / max(misfit.n_data - conditioning.rank, 1)
    of_data = factor * (first * residuals)[: misfit.n_data] ** 2
    spread = np.concatenate((of_data, np.ones(len(residuals) - misfit.n_data)))
    curvature = jacobian.T @ ((first + 2 * second * z)[:, None] * jacobian)
    middle = jacobian.T @ (spread[:, None] * jacobian)
    if conditioning.rank < len(curvature) or np.linalg.eigvalsh(curvature).min() <= 0:
        return np.full_like(curvature, np.nan) + np.diag(np.full(len(curvature), np.inf))
    inverse = np.linalg.inv(curvature)
    return np.asarray(inverse @ middle @ inverse)
