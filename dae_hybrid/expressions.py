"""What users give as numbers, sizes and expressions: checked, and brought into one form."""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from itertools import count
from typing import Any, NamedTuple

import casadi as ca
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dae_hybrid.errors import ModelError


class Rows(NamedTuple):
    """Equations ``0 = e`` in a column, and what errors call them."""

    equations: ca.MX
    labels: tuple[str, ...]


def checked_name(what: str, name: object) -> None:
    """Refuse what is not a name."""
    if not isinstance(name, str) or not name:
        raise ModelError(f"A {what} needs a non-empty name, got {name!r}.")


def free_name(base: str, taken: Container[str]) -> str:
    """`base`, or numbered where that is taken: ``base#2``."""
    if base not in taken:
        return base
    return next(name for i in count(2) if (name := f"{base}#{i}") not in taken)


def positive_size(name: str, size: Any) -> int:
    """A positive integer."""
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
        raise ModelError(f"size of '{name}' must be a positive integer, got {size!r}.")
    return int(size)


def numbers(what: str, value: ArrayLike, size: int | None = None) -> NDArray[np.float64]:
    """A flat array of finite numbers; one number stands for all `size` of them."""
    try:
        array = np.array(value, dtype=float, ndmin=1)
    except (TypeError, ValueError):
        raise ModelError(f"{what} must be a number or an array of numbers, got {value!r}.") from None
    if array.ndim != 1 or array.size == 0:
        raise ModelError(f"{what} must be a number or a non-empty one-dimensional array, got shape {array.shape}.")
    if size is not None:
        if array.size not in (1, size):
            raise ModelError(f"{what} has {array.size} values, expected {size}.")
        array = np.broadcast_to(array, (size,)).copy()
    if not np.all(np.isfinite(array)):
        raise ModelError(f"{what} must be finite, got {value!r}.")
    return array


def matrix(what: str, value: Any) -> ca.MX:
    """A dense CasADi expression of any shape from a number, an array or an expression."""
    if isinstance(value, ca.SX):
        raise ModelError(f"{what} is a CasADi SX expression; the symbols of a model are MX.")
    try:
        if isinstance(value, list | tuple) and any(isinstance(v, ca.MX) for v in value):
            value = ca.vertcat(*value)
        result = value if isinstance(value, ca.MX) else ca.MX(ca.DM(np.array(value, dtype=float)))
    except Exception as reason:
        raise ModelError(
            f"{what} must be a number, an array or an expression of this model, got {value!r}."
        ) from reason
    if result.is_constant() and not all(math.isfinite(v) for v in np.asarray(ca.evalf(result)).ravel()):
        raise ModelError(f"{what} must be finite, got {value!r}.")
    return ca.densify(result)


def expression(what: str, value: Any, size: int | None) -> ca.MX:
    """A dense column; a scalar stands for all `size` entries."""
    column = ca.vec(matrix(what, value))
    if size is not None and column.numel() != size:
        if column.numel() != 1:
            raise ModelError(f"{what} has {column.numel()} entries, expected {size}.")
        column = ca.repmat(column, size, 1)
    return ca.densify(column)


def equation_rows(what: str, given: Any) -> Rows:
    """Equations ``0 = e``, one below the other, from an expression or a sequence of them.

    An equation, or several, may come as a pair of a name and an expression: errors speak of it by that name.
    """
    if given is None:
        return Rows(ca.MX(0, 1), ())
    rows = [given] if isinstance(given, ca.MX) or not isinstance(given, Sequence) else list(given)
    columns: list[ca.MX] = []
    labels: list[str] = []
    for i, row in enumerate(rows):
        name, value = row if isinstance(row, tuple) and len(row) == 2 and isinstance(row[0], str) else ("", row)
        column = expression(f"{what} {name or i}", value, None)
        count, start = column.numel(), len(labels)
        kind = what.split(" of ")[0]
        if name:
            labels += [name] if count == 1 else [f"{name}[{j}]" for j in range(count)]
        else:
            labels += [f"{kind} {start + j}" for j in range(count)]
        columns.append(column)
    return Rows(ca.vertcat(*columns) if columns else ca.MX(0, 1), tuple(labels))
