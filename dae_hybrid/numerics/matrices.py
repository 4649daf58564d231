"""Matrix operations for dense and sparse arrays: dense up to `MAX_DENSE_ROWS` rows or columns, sparse above.

Matrices evaluated at points are NumPy arrays up to `MAX_DENSE_ROWS` rows or columns, and SciPy sparse arrays above if
their structure is sparse. Both support ``@``, ``abs`` and slices; this module provides the other operations.
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
from scipy.sparse.csgraph import min_weight_full_bipartite_matching
from scipy.sparse.linalg import LinearOperator, onenormest, splu

from dae_hybrid.numerics.arrays import Array

#: largest number of rows or columns of a dense matrix
MAX_DENSE_ROWS = 100
#: matrices with a larger share of nonzeros are dense
FULL = 0.3

#: a NumPy array or a SciPy sparse array
Matrix = Any


def compact(value: Any) -> Any:
    """Densify a symbolic matrix if it is small or mostly full."""
    return ca.densify(value) if not value.is_dense() and is_dense(value) else value


def is_dense(value: Any) -> bool:
    """Whether a symbolic matrix is small or mostly full."""
    rows, columns = value.shape
    return bool(min(rows, columns) <= MAX_DENSE_ROWS or value.nnz() > FULL * rows * columns)


def compacted(function: ca.Function) -> ca.Function:
    """Return the function with `compact` outputs."""
    kind: Any = ca.SX if function.is_a("SXFunction") else ca.MX
    inputs = [kind.sym(function.name_in(i), function.size1_in(i)) for i in range(function.n_in())]
    return ca.Function(function.name(), inputs, [compact(o) for o in function.call(inputs)])


def identity(size: int) -> Matrix:
    """The identity matrix, sparse if large."""
    return np.eye(size) if size <= MAX_DENSE_ROWS else eye_array(size, format="csc")


def dense(matrix: Matrix) -> Array:
    """Convert to a dense array."""
    return matrix if isinstance(matrix, np.ndarray) else np.asarray(matrix.toarray())


def column(matrix: Matrix, j: int) -> Array:
    """One column as a dense array."""
    if isinstance(matrix, np.ndarray):
        return matrix[:, j]
    unit = np.zeros(matrix.shape[1])
    unit[j] = 1.0
    return np.asarray(matrix @ unit)


def row_maxima(matrix: Matrix) -> Array:
    """Largest magnitude of each row."""
    if isinstance(matrix, np.ndarray):
        return np.asarray(np.abs(matrix).max(axis=1, initial=0.0))
    return dense(abs(matrix).max(axis=1)).ravel()


def is_finite(matrix: Matrix) -> bool:
    """Whether all entries are finite."""
    return bool(np.isfinite(entries(matrix)).all())


def entries(matrix: Matrix) -> Array:
    """Stored entries, as a one-dimensional array."""
    return np.asarray(matrix.data if issparse(matrix) else matrix.ravel())


def vstack(parts: Any) -> Matrix:
    """Stack matrices vertically."""
    parts = [part for part in parts if part.shape[0]] or list(parts)[:1]
    return sparse_vstack(parts, format="csc") if any(map(issparse, parts)) else np.vstack(parts)


def hstack(parts: Any) -> Matrix:
    """Stack matrices horizontally."""
    parts = [part for part in parts if part.shape[1]] or list(parts)[:1]
    return sparse_hstack(parts, format="csc") if any(map(issparse, parts)) else np.hstack(parts)


def solve(matrix: Matrix, right: Any) -> Any:
    """Return matrix^-1 right, dense. Raises `np.linalg.LinAlgError` if the matrix is singular."""
    if not issparse(matrix):
        return np.linalg.solve(matrix, dense(right))
    return Factors(matrix).solve(dense(right))


def independent_rows(matrix: Matrix) -> Array:
    """Select as many rows of a sparse matrix as it has columns, in order, that form a regular matrix if possible.

    Raises `np.linalg.LinAlgError` if there are too few rows.
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
    weights.data = 1 - np.log(abs(scaled.data))  # maximises the product of the matched entries
    with suppress(ValueError, np.linalg.LinAlgError):
        chosen = np.sort(min_weight_full_bipartite_matching(weights)[0])
        Factors(scaled[chosen])
        return chosen
    return np.sort(qr(dense(scaled).T, mode="r", pivoting=True)[1][:columns])


def onto_null_space(matrix: Matrix, vectors: Array) -> Array:
    """Project the columns of `vectors` onto the null space of a matrix."""
    if issparse(matrix):
        largest = row_maxima(matrix)
        rows = csc_array(matrix / np.where(largest > 0, largest, 1.0)[:, None])
        with suppress(np.linalg.LinAlgError):
            factors = Factors(rows @ rows.T)
            for _ in range(2):  # the second pass removes rounding
                vectors = vectors - rows.T @ factors.solve(rows @ vectors)
            return vectors
    matrix = dense(matrix)
    return np.asarray(vectors - np.linalg.lstsq(matrix, matrix @ vectors, rcond=None)[0])


def sign_of_determinant(matrix: Matrix) -> float:
    """Sign of the determinant: -1, 0 or 1."""
    if not issparse(matrix):
        return float(np.linalg.slogdet(matrix)[0])
    try:
        factors = splu(csc_array(matrix))
    except RuntimeError:
        return 0.0
    negative = int(np.count_nonzero(factors.U.diagonal() < 0))
    return float((-1) ** (negative + _swaps(factors.perm_r) + _swaps(factors.perm_c)))


def _swaps(permutation: Array) -> int:
    """Number of transpositions in a permutation."""
    places, count = permutation.tolist(), 0
    for i in range(len(places)):
        while (j := places[i]) != i:
            places[i], places[j], count = places[j], j, count + 1
    return count


class Factors:
    """A sparse LU factorisation. Raises `np.linalg.LinAlgError` if the matrix is singular."""

    def __init__(self, matrix: Matrix) -> None:
        try:
            self._factors = splu(csc_array(matrix))
        except RuntimeError as reason:
            raise np.linalg.LinAlgError(str(reason)) from None

    def inverse_norm(self) -> float:
        """Estimated 1-norm of the inverse."""
        shape = self._factors.shape
        operator = LinearOperator(
            shape, matvec=self._factors.solve, rmatvec=lambda v: self._factors.solve(v, "T"),
            matmat=self._factors.solve, rmatmat=lambda v: self._factors.solve(v, "T"), dtype=float,
        )  # fmt: skip
        return float(onenormest(operator))

    def solve(self, right: Array, *, transposed: bool = False) -> Array:
        """Return matrix^-1 right, or matrix^-T right."""
        return np.asarray(self._factors.solve(np.asfortranarray(right), "T" if transposed else "N"))


def blocks(pattern: ca.Sparsity) -> list[tuple[list[int], list[int]]]:
    """Return rows and columns of the block triangular form; each block depends only on those before it."""
    count, row, column, row_block, column_block, _, _ = pattern.btf()
    return [
        (list(row[row_block[i] : row_block[i + 1]]), list(column[column_block[i] : column_block[i + 1]]))
        for i in range(count)
    ]
