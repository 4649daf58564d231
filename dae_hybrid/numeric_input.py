"""Conversion of user input to numbers: arrays, series, rows of tables."""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: NumPy type kinds of numbers, and names of the others
_NUMBERS = "iuf"
_OTHERS = {
    "b": "truth values", "c": "complex numbers", "S": "strings", "U": "strings", "T": "strings",
    "m": "time differences", "M": "dates", "V": "records",
}  # fmt: skip
_LONGEST = 200
#: labels named in an error
MAX_LABELS = 8


def shown(value: object) -> str:
    """Return the repr of a value for an error message, truncated if long."""
    try:
        text = repr(value)
    except Exception:  # repr of a foreign class may fail
        text = f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def listed(labels: Sequence[str], most: int = MAX_LABELS) -> str:
    """The first labels, for a message."""
    return ", ".join(labels[:most]) + ", ..." * (len(labels) > most)


def real_array(value: Any) -> NDArray[np.float64]:
    """Return a new array of floats of any shape, by position.

    Labels are ignored. Masked arrays, truth values, complex numbers, strings, dates and arrays of objects are refused,
    even if NumPy would convert them to floats.

    Raises
    ------
    ValueError
        The message continues the name of the argument: "must be numeric, got ...".
    """
    if type(value) is float or (type(value) is np.ndarray and value.dtype == np.float64):
        return np.array(value, dtype=float)
    if reason := _oddity(value):
        raise ValueError(reason)
    try:
        array = np.asarray(value)
        if array.dtype.kind in _NUMBERS:
            return np.array(array, dtype=float)
        if array.dtype.kind == "O" and not isinstance(value, np.ndarray) and all(map(_is_real, array.flat)):
            return np.array(array, dtype=float)  # integers beyond 64 bits, fractions, decimals
    except OverflowError:
        raise ValueError(f"must fit into a float, got {shown(value)}") from None
    except Exception:  # a foreign class may raise anything when converted
        raise ValueError(f"must be numeric, got {shown(value)}") from None
    kind = _OTHERS.get(array.dtype.kind)
    if kind is None and isinstance(value, np.ndarray):
        kind = "an array of objects"
    raise ValueError(f"must be numeric, got {kind}: {shown(value)}" if kind else f"must be numeric, got {shown(value)}")


def by_label(value: Any) -> dict[Any, Any] | None:
    """Return the entries of a labelled value by label; None for values with positions only.

    Labelled values are a pandas Series whose index is not the default 0, 1, 2, ..., a DataFrame of one row (by column),
    a one-dimensional xarray DataArray with coordinates, a named tuple, and a NumPy record.

    Raises
    ------
    ValueError
        A label occurs twice, or a table does not have exactly one row; message as in `real_array`.
    """
    if isinstance(value, tuple):
        return dict(zip(value._fields, value, strict=True)) if hasattr(value, "_fields") else None
    if isinstance(value, np.ndarray | np.void):
        return _record(value)
    if hasattr(value, "iloc") and hasattr(value, "columns"):
        if len(value) != 1:
            raise ValueError(f"must be one row of a table, got {len(value)}: pass table.iloc[0], for example")
        return _unique(value.columns, value.iloc[0])
    if hasattr(value, "iloc") and hasattr(value, "index"):
        return _unless_positions(value.index, [value.iloc[i] for i in range(len(value))])
    if hasattr(value, "dims") and hasattr(value, "coords") and len(value.dims) == 1 and value.dims[0] in value.coords:
        return _unless_positions(value.coords[value.dims[0]].values, value.values)
    return None


def as_mapping(value: Any) -> Any:
    """Return a labelled value as a mapping, any other value unchanged."""
    if isinstance(value, Mapping):
        return value
    found = by_label(value)
    return value if found is None else found


def in_order(value: Any, labels: Sequence[str]) -> Any:
    """Return the entries of a labelled value in the order of `labels` or of 0, 1, ...; any other value unchanged.

    Raises
    ------
    ValueError
        The labels differ; message as in `real_array`.
    """
    found = None if isinstance(value, float | int) else by_label(value)
    if found is None:
        return value
    places = {label: i for i, label in enumerate(labels)} | {i: i for i in range(len(labels))}
    entries = {places[label]: entry for label, entry in found.items() if label in places}
    if len(entries) < max(len(found), len(labels)):
        raise ValueError(
            f"has the labels {shown(list(found))}; legal are {listed(labels)} or 0, 1, ...: pass an array without "
            "labels to go by position"
        )
    return [entries[i] for i in range(len(labels))]


def _record(value: Any) -> dict[Any, Any] | None:
    if value.dtype.names is None:
        return None
    if value.size != 1:
        raise ValueError(f"must be one record, got {value.size}")
    entry = value.reshape(-1)[0] if isinstance(value, np.ndarray) else value
    return {name: entry[name] for name in value.dtype.names}


def _unless_positions(index: Any, values: Iterable[Any]) -> dict[Any, Any] | None:
    labels = list(index)
    counted = all(isinstance(label, int | np.integer) and label == i for i, label in enumerate(labels))
    return None if counted and (labels or hasattr(index, "start")) else _unique(labels, values)


def _unique(labels: Iterable[Any], values: Iterable[Any]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for label, value in zip(labels, values, strict=True):
        if label in found:
            raise ValueError(f"must not have the label {label!r} twice")
        found[label] = value
    return found


def _oddity(value: Any) -> str | None:
    """Return the message for values that NumPy converts silently: masked arrays, and truth values among numbers."""
    if isinstance(value, list | tuple):
        return next((found for entry in value if (found := _oddity(entry))), None)
    if isinstance(value, np.ma.MaskedArray):
        return "must not be a masked array: fill what is masked, or leave it out"
    return f"must be numeric, got a truth value: {value}" if isinstance(value, bool | np.bool_) else None


def _is_real(value: Any) -> bool:
    return isinstance(value, numbers.Real | Decimal) and not isinstance(value, bool | np.bool_)
