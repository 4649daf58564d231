"""Validate numbers, sizes and expressions given by the user, and convert them to a canonical form."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

import casadi as ca
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dae_hybrid.errors import ModelError
from dae_hybrid.numeric_input import as_mapping, by_label, in_order, real_array, shown

#: largest size of a vector, far above any model that can be built
LARGEST_SIZE = 10**9


class EquationRows(NamedTuple):
    """Equations ``0 = e`` in one column, with their labels for error messages."""

    equations: ca.MX
    labels: tuple[str, ...]


def checked_name(what: str, name: object) -> None:
    """Raise a `ModelError` unless `name` is a non-empty string."""
    if not isinstance(name, str) or not name:
        raise ModelError(f"A {what} needs a non-empty name, got {name!r}.")


def free_name(base: str, taken: Container[str]) -> str:
    """Return `base`, or the first free ``base#2``, ``base#3``, ... if it is taken."""
    if base not in taken:
        return base
    taken_up_to, free = 1, 2
    while f"{base}#{free}" in taken:
        taken_up_to, free = free, 2 * free
    while free - taken_up_to > 1:
        middle = (taken_up_to + free) // 2
        taken_up_to, free = (middle, free) if f"{base}#{middle}" in taken else (taken_up_to, middle)
    return f"{base}#{free}"


def positive_size(name: str, size: Any) -> int:
    """Return `size` as a positive int, or raise a `ModelError`."""
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
        raise ModelError(f"size of '{name}' must be a positive integer, got {shown(size)}.")
    if size > LARGEST_SIZE:
        raise ModelError(f"size of '{name}' must be at most {LARGEST_SIZE}, got {shown(size)}.")
    return int(size)


def labelled(what: str, value: Any) -> Any:
    """Convert a labelled value, such as a pandas Series, to a mapping; return other values unchanged."""
    try:
        return as_mapping(value)
    except ValueError as reason:
        raise ModelError(f"{what} {reason}.") from None


def items(what: str, given: Any) -> list[tuple[Any, Any]]:
    """Return the items of a mapping or labelled value; None gives an empty list."""
    given = {} if given is None else labelled(what, given)
    if not isinstance(given, Mapping):
        raise ModelError(f"{what} must be a mapping, got {shown(given)}.")
    return list(given.items())


def numbers(what: str, value: ArrayLike, size: int | None = None) -> NDArray[np.float64]:
    """Return a flat array of finite numbers; a scalar is broadcast to `size`."""
    try:
        array = np.atleast_1d(real_array(value))
    except ValueError as reason:
        raise ModelError(f"{what} {reason}.") from None
    if array.ndim != 1 or array.size == 0:
        raise ModelError(f"{what} must be a number or a non-empty one-dimensional array, got shape {array.shape}.")
    if size is not None:
        if array.size not in (1, size):
            raise ModelError(f"{what} has {array.size} values, expected {size}.")
        array = np.broadcast_to(array, (size,)).copy()
    if not np.all(np.isfinite(array)):
        first = int(np.flatnonzero(~np.isfinite(array))[0])
        entry = f" at index {first}" if array.size > 1 else ""
        raise ModelError(f"{what} must be finite, got {array[first]}{entry}.")
    return array


def as_matrix(what: str, value: Any) -> NDArray[np.float64] | None:
    """Return a two-dimensional array of finite numbers; None if the value is none."""
    if not hasattr(value, "shape") and not (isinstance(value, list | tuple) and value and np.ndim(value[0]) == 1):
        return None
    try:
        if by_label(value) is not None:
            return None
        array = real_array(value)
        if array.ndim != 2:
            return None
    except ValueError as reason:
        raise ModelError(f"{what} {reason}.") from None
    if not array.size or not np.all(np.isfinite(array)):
        raise ModelError(f"{what} must have finite entries, got {shown(value)}.")
    return array


def limits(what: str, bounds: Any, size: int) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Return lower and upper bounds, each (size,), infinite where one is missing; None if `bounds` is None."""
    if bounds is None:
        return None
    sides: list[NDArray[np.float64]] = []
    try:
        pair = tuple(bounds)
        for side, none in zip(pair, (-math.inf, math.inf), strict=True):
            values = real_array(none if side is None else side)
            sides.append(np.broadcast_to(values, (size,)).copy())
    except (TypeError, ValueError):
        raise ModelError(
            f"{what} must be a pair (lower, upper) of numbers, arrays of {size} or None, got {bounds!r}.",
            remedy="State bounds that depend on parameters or on the state by HybridModel.require.",
        ) from None
    lower, upper = sides
    if not np.all(lower < upper):
        raise ModelError(f"{what}: every lower bound must be below its upper bound, got {bounds!r}.")
    return lower, upper


def entries(what: str, name: str, size: int | None, value: Any) -> Any:
    """Return a variable's value with labelled entries sorted into the variable's order; see `in_order`."""
    try:
        found = None if isinstance(value, float | int) else by_label(value)
        if found is None:
            return value
        count = size or len(found)
        return in_order(value, [name] if count == 1 else [f"{name}[{i}]" for i in range(count)])
    except ValueError as reason:
        raise ModelError(f"{what} {reason}.") from None


def matrix(what: str, value: Any) -> ca.MX:
    """Convert a number, an array or an expression to a dense CasADi expression of the same shape."""
    if isinstance(value, ca.SX):
        raise ModelError(f"{what} is a CasADi SX expression; the symbols of a model are MX.")
    if type(value) is float and math.isfinite(value):
        return ca.MX(value)
    try:
        if isinstance(value, list | tuple) and any(isinstance(v, ca.MX) for v in value):
            value = ca.vertcat(*value)
        result = value if isinstance(value, ca.MX) else ca.MX(ca.DM(real_array(value)))
    except Exception as reason:
        said = f": {reason}" if "masked" in str(reason) else ""
        raise ModelError(
            f"{what} must be a number, an array or an expression of this model, got {shown(value)}{said}."
        ) from reason
    if result.is_constant() and not all(map(math.isfinite, result.to_DM().nonzeros())):
        raise ModelError(f"{what} must be finite, got {value!r}.")
    return result if result.is_dense() else ca.densify(result)


def expression(what: str, value: Any, size: int | None) -> ca.MX:
    """Convert a value to a dense column; a scalar is repeated `size` times."""
    found = matrix(what, value)
    column = found if found.is_column() else ca.vec(found)
    if size is not None and column.numel() != size:
        if column.numel() != 1:
            raise ModelError(f"{what} has {column.numel()} entries, expected {size}.")
        column = ca.repmat(column, size, 1)
    return column if column.is_dense() else ca.densify(column)


def in_rows(what: str, value: Any, count: int, size: int) -> ca.MX:
    """Convert values at several times to a matrix with a row for each; one row is repeated."""
    found = matrix(what, value)
    if found.shape in ((size, 1), (1, size), (1, 1)):
        found = ca.repmat(found.T if found.shape == (size, 1) else found, count, size // found.numel())
    if found.shape != (count, size):
        raise ModelError(
            f"{what} has shape {found.shape}, expected {(count, size)}: one row for each time, or {size} for all."
        )
    return found


def equation_rows(what: str, given: Any) -> EquationRows:
    """Stack equations ``0 = e`` from an expression or a sequence of expressions into one column.

    An item may be a pair of a name and an expression; error messages then use the name.
    """
    if given is None:
        return EquationRows(ca.MX(0, 1), ())
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
    return EquationRows(ca.vertcat(*columns) if columns else ca.MX(0, 1), tuple(labels))
