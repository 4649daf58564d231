"""Tables of parameters or initial values given by the user, one row per run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dae_hybrid.errors import ParameterError
from dae_hybrid.layout import Layout
from dae_hybrid.numeric_input import real_array
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.tables import counted

ParameterTable = Mapping[str, ArrayLike] | ArrayLike | None


def as_columns(given: Any) -> Any:
    """Return a table with named columns (a pandas DataFrame) as a mapping; other values unchanged.

    Raises
    ------
    ParameterError
        A name occurs twice.
    """
    if hasattr(given, "columns") and hasattr(given, "iloc"):
        if twice := [name for name, count in Counter(given.columns).items() if count > 1]:
            raise ParameterError(f"The table has {counted(len(twice), 'name')} twice: {', '.join(map(repr, twice))}.")
        return {name: given[name].to_numpy() for name in given.columns}
    return given


def read_table(what: str, given: ParameterTable, layout: Layout, default: Array | None) -> Array:
    """Return rows in the order of a layout, (N, size), or (1, size) if all runs share them.

    Non-finite numbers are accepted here and refused by the runs.

    Raises
    ------
    ParameterError
        Wrong names, shapes or types, or no value without a default.
    """
    given = as_columns(given)
    if given is None and default is not None:
        return default[None, :].copy()
    if isinstance(given, Mapping):
        return _by_name(what, given, layout, default)
    rows = _numbers(what, given)
    if rows.ndim != 2 or rows.shape[1] != layout.size:
        raise ParameterError(
            f"{what}: an array of shape (N, {layout.size}) is needed ({', '.join(layout.labels())}), got shape "
            f"{rows.shape}.",
            remedy="A row is for a run: reshape(1, -1) makes a table of a single one. By name, pass a mapping.",
        )
    return rows


def _by_name(what: str, given: Mapping[str, Any], layout: Layout, default: Array | None) -> Array:
    parts, columns, seen = dict[str, slice](), dict[str, Array](), set[int]()
    for name, value in given.items():
        part = layout.find(name)
        if part is None:
            raise ParameterError(
                f"{what}: unknown name {name!r}.", remedy=f"Names: {', '.join(layout.names) or 'none'}."
            )
        places = set(range(part.start, part.stop))
        if not seen.isdisjoint(places):
            raise ParameterError(f"{what}: {name!r} is given twice, as a whole and by its entries.")
        seen |= places
        parts[name], columns[name] = part, _column(what, name, value, layout)
    counts = {name: len(column) for name, column in columns.items() if len(column) != 1}
    if len(set(counts.values())) > 1:
        raise ParameterError(f"{what}: all names need the same number of values, got {counts}.")
    rows = np.full((next(iter(counts.values()), 1), layout.size), np.nan)
    if default is not None:
        rows[:] = default
    for name, column in columns.items():
        rows[:, parts[name]] = column
    return rows


def _column(what: str, name: str, value: Any, layout: Layout) -> Array:
    size = layout[name].stop - layout[name].start if name in layout else 1
    numbers = _numbers(f"{what}[{name!r}]", value)
    shape = layout.shape(name)
    if shape is not None and numbers.shape[-2:] == shape and numbers.ndim in (2, 3):
        return numbers.reshape(-1, size)
    if numbers.ndim <= 1 and size == 1:
        return numbers.reshape(-1, 1)
    if numbers.shape == (size,):
        return numbers[None, :]
    if numbers.ndim != 2 or numbers.shape[1] != size:
        legal = "a number or an array of shape (N,)" if size == 1 else f"an array of shape ({size},) or (N, {size})"
        raise ParameterError(f"{what}[{name!r}]: {legal} is needed, got shape {numbers.shape}.")
    return numbers


def _numbers(what: str, given: Any) -> Array:
    try:
        return real_array(given)
    except ValueError as reason:
        raise ParameterError(f"{what} {reason}.") from None


def side_by_side(sets: Array, values: Array | None) -> Array:
    """Join the parameters and the initial values of every run in one row.

    Raises
    ------
    ParameterError
        Their numbers of runs differ.
    """
    if values is None:
        return np.ascontiguousarray(sets)
    if 1 not in (len(sets), len(values)) and len(sets) != len(values):
        raise ParameterError(f"parameters are for {len(sets)} runs, and x0 for {len(values)}.")
    count = len(sets) if len(values) == 1 else len(values)
    whole = np.empty((count, sets.shape[1] + values.shape[1]))
    whole[:, : sets.shape[1]], whole[:, sets.shape[1] :] = sets, values
    return whole
