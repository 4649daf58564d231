"""Linear operators: derivatives through large algebraic equations, whose inverse is dense."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
from scipy.sparse import issparse

from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.matrices import Factors, Matrix, dense

Product = Callable[[Array], Array]


class Operator:
    """A matrix of shape (rows, columns), given by its products.

    `forward` multiplies it by a dense matrix (columns, k), `backward` multiplies a dense matrix (k, rows) by it.
    """

    __array_ufunc__ = None  # makes ``array @ operator`` call __rmatmul__

    def __init__(self, shape: tuple[int, int], forward: Product, backward: Product) -> None:
        self.shape, self._forward, self._backward = shape, forward, backward

    def __matmul__(self, right: Any) -> Any:
        if isinstance(right, Operator):
            return Operator(
                (self.shape[0], right.shape[1]), lambda v: self._forward(right._forward(v)),
                lambda v: right._backward(self._backward(v)),
            )  # fmt: skip
        right = dense(right)
        return self._forward(right[:, None])[:, 0] if right.ndim == 1 else self._forward(right)

    def __rmatmul__(self, left: Any) -> Any:
        if issparse(left):
            return of(left) @ self
        return self._backward(left[None, :])[0] if left.ndim == 1 else self._backward(left)

    def __add__(self, other: Self) -> Operator:
        return Operator(
            self.shape, lambda v: self._forward(v) + other._forward(v), lambda v: self._backward(v) + other._backward(v)
        )

    def __getitem__(self, where: tuple[slice, slice]) -> Operator:
        """Select rows and columns by two slices."""
        rows, columns = (range(size)[part] for size, part in zip(self.shape, where, strict=True))

        def forward(v: Array) -> Array:
            whole = np.zeros((self.shape[1], v.shape[1]))
            whole[columns.start : columns.stop] = v
            return self._forward(whole)[rows.start : rows.stop]

        def backward(v: Array) -> Array:
            whole = np.zeros((len(v), self.shape[0]))
            whole[:, rows.start : rows.stop] = v
            return self._backward(whole)[:, columns.start : columns.stop]

        return Operator((len(rows), len(columns)), forward, backward)

    def __abs__(self) -> Operator:
        """Return |product| as an operator: an estimate of sizes without access to the entries."""
        return Operator(self.shape, lambda v: np.abs(self._forward(v)), lambda v: np.abs(self._backward(v)))

    def toarray(self) -> Array:
        """Return the dense matrix."""
        return self._forward(np.eye(self.shape[1]))


def of(matrix: Matrix) -> Operator:
    """Wrap a matrix as an operator."""
    return Operator(matrix.shape, lambda v: np.asarray(matrix @ v), lambda v: np.asarray(v @ matrix))


def below(upper: Operator, lower: Operator) -> Operator:
    """Stack two operators vertically."""
    size = upper.shape[0]
    return Operator(
        (size + lower.shape[0], upper.shape[1]),
        lambda v: np.vstack((upper @ v, lower @ v)),
        lambda v: v[:, :size] @ upper + v[:, size:] @ lower,
    )


def solution(matrix: Matrix, right: Any) -> Operator:
    """Return -matrix^-1 right as an operator. Raises `np.linalg.LinAlgError` if the matrix is singular."""
    factors = Factors(matrix)
    return Operator(
        (matrix.shape[0], right.shape[1]),
        lambda v: -factors.solve(np.asarray(right @ v)),
        lambda v: -np.asarray(factors.solve(v.T, transposed=True).T @ right),
    )
