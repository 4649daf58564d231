"""Correlation matrices given by the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from dae_hybrid.errors import OptionError
from dae_hybrid.numeric_input import real_array, shown
from dae_hybrid.numerics.arrays import Array

#: allowed asymmetry and error of the diagonal, and the least eigenvalue
ROUNDED, LEAST_EIGENVALUE = 1e-12, 1e-10


def correlation_matrix(names: Sequence[str], given: Mapping[tuple[str, str], float] | ArrayLike | None) -> Array:
    """Return a correlation matrix, (k, k), from pairs of names, a matrix or None (independent).

    Raises
    ------
    OptionError
        It is not a positive definite correlation matrix of these names.
    """
    if given is None:
        return np.eye(len(names))
    found = _of_pairs(names, given) if isinstance(given, Mapping) else _of_matrix(names, given)
    least = float(np.linalg.eigvalsh(found)[0])
    if least < LEAST_EIGENVALUE:
        raise OptionError(
            f"The correlation matrix must be positive definite; its least eigenvalue is {least:.3g}.",
            remedy="If one parameter is a function of others, compute it in the model and give distributions to the "
            "others only.",
        )
    return found


def _of_pairs(names: Sequence[str], given: Mapping[Any, Any]) -> Array:
    found = np.eye(len(names))
    seen = set[frozenset[str]]()
    for pair, value in given.items():
        if not isinstance(pair, tuple) or len(pair) != 2 or pair[0] == pair[1] or not set(pair) <= set(names):
            raise OptionError(
                f"correlation has the key {shown(pair)}, which is not a pair of names of two random parameters.",
                remedy=f"Random parameters: {', '.join(names)}.",
            )
        if frozenset(pair) in seen:
            raise OptionError(f"correlation gives the pair {shown(pair)} twice.")
        seen.add(frozenset(pair))
        try:
            number = real_array(value)
        except ValueError as reason:
            raise OptionError(f"correlation[{pair!r}] {reason}.") from None
        if number.shape != () or not abs(number) < 1:  # NaN is refused
            raise OptionError(f"correlation[{pair!r}] must be a number between -1 and 1, got {shown(value)}.")
        i, k = names.index(pair[0]), names.index(pair[1])
        found[i, k] = found[k, i] = number
    return found


def _labels(given: Any) -> list[list[Any]]:
    """Labels of rows and columns of a DataFrame or a DataArray with coordinates; none of an array."""
    if hasattr(given, "index") and hasattr(given, "columns"):
        return [list(given.index), list(given.columns)]
    if hasattr(given, "dims") and hasattr(given, "coords"):
        return [list(given[name].values) for name in given.dims]  # 0, 1, ... without coordinates
    return []


def _of_matrix(names: Sequence[str], given: ArrayLike) -> Array:
    try:
        found = real_array(given)
    except ValueError as reason:
        raise OptionError(f"correlation {reason}.") from None
    k = len(names)
    for axis, labels in enumerate(_labels(given)):
        if labels == list(range(k)):
            continue
        if sorted(map(str, labels)) != sorted(names):
            raise OptionError(
                f"correlation has the labels {shown(labels)}, which are not those of the random parameters.",
                remedy=f"Label its rows and columns {', '.join(names)}, in any order, or pass an array without labels.",
            )
        found = found.take([labels.index(name) for name in names], axis)
    if found.shape != (k, k):
        raise OptionError(
            f"correlation must have shape ({k}, {k}), for {', '.join(names)} in this order; got {found.shape}."
        )
    if not np.isfinite(found).all():
        raise OptionError("correlation must be finite.")
    if np.abs(found - found.T).max() > ROUNDED or np.abs(np.diag(found) - 1).max() > ROUNDED:
        raise OptionError("correlation must be symmetric with a unit diagonal.")
    found = (found + found.T) / 2
    np.fill_diagonal(found, 1.0)
    return found
