"""Matrices that are dense where they are small and sparse where they are large.

What the core evaluates at points is a NumPy array up to `LARGE` rows or columns, and beyond that a SciPy sparse array
wherever its structure leaves most of it empty. Both know ``@``, ``abs`` and slices; what else is needed is here.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import casadi as ca
import numpy as np
from scipy.linalg import qr
from scipy.sparse import csc_array, csr_array, eye_array, issparse
from scipy.sparse import hstack as sparse_hstack
from scipy.sparse import vstack as sparse_vstack
from scipy.sparse.csgraph import connected_components, min_weight_full_bipartite_matching
from scipy.sparse.linalg import LinearOperator, onenormest, splu

from dae_hybrid.numerics.arrays import Array

#: a matrix with at most so many rows or columns is dense
LARGE = 100
#: and one that is filled by more than this share
FULL = 0.3

#: a NumPy array or a SciPy sparse array
Matrix = Any


def compact(value: Any) -> Any:
    """A symbolic matrix with all its entries where it is small or full, else with those that it has."""
    return ca.densify(value) if not value.is_dense() and is_dense(value) else value


def is_dense(value: Any) -> bool:
    """Whether a symbolic matrix is small or full."""
    rows, columns = value.shape
    return bool(min(rows, columns) <= LARGE or value.nnz() > FULL * rows * columns)


def compacted(function: ca.Function) -> ca.Function:
    """The same function with compact outputs."""
    kind: Any = ca.SX if function.is_a("SXFunction") else ca.MX
    inputs = [kind.sym(function.name_in(i), function.size1_in(i)) for i in range(function.n_in())]
    return ca.Function(function.name(), inputs, [compact(o) for o in function.call(inputs)])


def identity(size: int) -> Matrix:
    """The identity."""
    return np.eye(size) if size <= LARGE else eye_array(size, format="csc")


def dense(matrix: Matrix) -> Array:
    """All entries."""
    return matrix if isinstance(matrix, np.ndarray) else np.asarray(matrix.toarray())


def column(matrix: Matrix, j: int) -> Array:
    """A column with all its entries."""
    if isinstance(matrix, np.ndarray):
        return matrix[:, j]
    unit = np.zeros(matrix.shape[1])
    unit[j] = 1.0
    return np.asarray(matrix @ unit)


def row_maxima(matrix: Matrix) -> Array:
    """Largest magnitude of every row."""
    if isinstance(matrix, np.ndarray):
        return np.asarray(np.abs(matrix).max(axis=1, initial=0.0))
    return dense(abs(matrix).max(axis=1)).ravel()


def is_finite(matrix: Matrix) -> bool:
    """Whether every entry is."""
    return bool(np.isfinite(entries(matrix)).all())


def entries(matrix: Matrix) -> Array:
    """What is stored of it, one-dimensional."""
    return np.asarray(matrix.data if issparse(matrix) else matrix.ravel())


def vstack(parts: Any) -> Matrix:
    """One above the other."""
    parts = [part for part in parts if part.shape[0]] or list(parts)[:1]
    return sparse_vstack(parts, format="csc") if any(map(issparse, parts)) else np.vstack(parts)


def hstack(parts: Any) -> Matrix:
    """One beside the other."""
    parts = [part for part in parts if part.shape[1]] or list(parts)[:1]
    return sparse_hstack(parts, format="csc") if any(map(issparse, parts)) else np.hstack(parts)


def solve(matrix: Matrix, right: Any) -> Any:
    """matrix^-1 right, dense where `right` is; raises `np.linalg.LinAlgError` where the matrix is singular."""
    if not issparse(matrix):
        return np.linalg.solve(matrix, dense(right))
    return Factors(matrix).solve(dense(right))


def independent_rows(matrix: Matrix) -> Array:
    """As many rows of a sparse matrix as it has columns, in order, that make it regular where there are such.

    Raises `np.linalg.LinAlgError` where there are not enough rows.
    """
    rows, columns = matrix.shape
    if rows < columns:
        raise np.linalg.LinAlgError(f"{rows} equations are left for {columns} values")
    if rows == columns:
        return np.arange(rows)
    largest = row_maxima(matrix)
    scaled = csr_array(matrix / np.where(largest > 0, largest, 1.0)[:, None])
    scaled.eliminate_zeros()
    weights = scaled.copy()
    weights.data = 1 - np.log(abs(scaled.data))  # of all ways the one whose product is the largest
    with suppress(ValueError, np.linalg.LinAlgError):
        chosen = np.sort(min_weight_full_bipartite_matching(weights)[0])
        Factors(scaled[chosen])
        return chosen
    return np.sort(qr(dense(scaled).T, mode="r", pivoting=True)[1][:columns])


def onto_null_space(matrix: Matrix, vectors: Array) -> Array:
    """The part of every column of `vectors` that a matrix makes nothing of."""
    if issparse(matrix):
        largest = row_maxima(matrix)
        rows = csc_array(matrix / np.where(largest > 0, largest, 1.0)[:, None])
        with suppress(np.linalg.LinAlgError):
            factors = Factors(rows @ rows.T)
            for _ in range(2):  # the second removes what rounding has left
                vectors = vectors - rows.T @ factors.solve(rows @ vectors)
            return vectors
    matrix = dense(matrix)
    return np.asarray(vectors - np.linalg.lstsq(matrix, matrix @ vectors, rcond=None)[0])


def sign_of_determinant(matrix: Matrix) -> float:
    """-1 or 1, and 0 where the matrix is singular."""
    if not issparse(matrix):
        return float(np.linalg.slogdet(matrix)[0])
    try:
        factors = splu(csc_array(matrix))
    except RuntimeError:
        return 0.0
    negative = int(np.count_nonzero(factors.U.diagonal() < 0))
    return float((-1) ** (negative + _swaps(factors.perm_r) + _swaps(factors.perm_c)))


def _swaps(permutation: Array) -> int:
    """How many exchanges of two entries make a permutation."""
    size = permutation.size
    cycles, _ = connected_components(csr_array((np.ones(size), (np.arange(size), permutation)), shape=(size, size)))
    return size - int(cycles)


class Factors:
    """A sparse factorisation; raises `np.linalg.LinAlgError` where the matrix is singular."""

    def __init__(self, matrix: Matrix) -> None:
        try:
            self._factors = splu(csc_array(matrix))
        except RuntimeError as reason:
            raise np.linalg.LinAlgError(str(reason)) from None

    def inverse_norm(self) -> float:
        """1-norm of the inverse, estimated."""
        shape = self._factors.shape
        operator = LinearOperator(
            shape, matvec=self._factors.solve, rmatvec=lambda v: self._factors.solve(v, "T"),
            matmat=self._factors.solve, rmatmat=lambda v: self._factors.solve(v, "T"), dtype=float,
        )  # fmt: skip
        return float(onenormest(operator))

    def solve(self, right: Array, *, transposed: bool = False) -> Array:
        """matrix^-1 right, or with the transpose."""
        return np.asarray(self._factors.solve(np.asfortranarray(right), "T" if transposed else "N"))
