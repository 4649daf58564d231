"""Orders of parameters, such as t1 <= t2 <= t3, as linear constraints."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.errors import OptionError, ParameterError
from dae_hybrid.numeric_input import shown
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.optimization.scaling import Scale

#: names of parameters of which none may exceed the next, or several such sequences
type Order = str | Sequence[str] | Sequence[Sequence[str]]


def order_names(given: Order | None) -> list[list[str]]:
    """Names of the parameters of every order.

    Raises
    ------
    OptionError
        They are not names.
    ParameterError
        A name is there twice.
    """
    if given is None:
        return []
    is_one = isinstance(given, str) or (isinstance(given, Sequence) and all(isinstance(own, str) for own in given))
    chains: Any = [given] if is_one else given
    found = []
    for chain in chains if isinstance(chains, Sequence) else [chains]:
        names = [chain] if isinstance(chain, str) else chain
        if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
            raise OptionError(f"order must be names of parameters, or several such sequences, got {shown(given)}.")
        if len(set(names)) < len(names):
            raise ParameterError(f"order has a parameter twice: {shown(chain)}.")
        found.append(list(names))
    return found


def order_places(
    parts: Sequence[tuple[str, slice, Any]], labels: Sequence[str], indices: Sequence[int]
) -> NDArray[np.intp]:
    """Places of the parameters of an order among the optimised ones, which are `indices`.

    Raises
    ------
    ParameterError
        There are fewer than two, one is there twice, or an entry is not optimised.
    """
    places = [i for _, part, _ in parts for i in range(part.start, part.stop)]
    names = [labels[i] for i in places]
    if len(places) < 2:
        raise ParameterError(
            f"order needs at least two parameters, or a vector, got {shown(names)}.",
            remedy="For example order=['t1', 't2'], which means t1 <= t2.",
        )
    if len(set(places)) < len(places):
        raise ParameterError(f"order has a parameter twice: {shown(names)}.")
    if fixed := [labels[i] for i in places if i not in indices]:
        raise ParameterError(f"order names '{fixed[0]}', which is not among wrt.")
    return np.array([indices.index(i) for i in places], dtype=np.intp)


def check_linear(
    labels: Sequence[str], chain: NDArray[np.intp], scales: Sequence[Scale], lower: Array, upper: Array
) -> None:
    """Check that an order is linear in terms of the optimisation variables.

    Raises
    ------
    OptionError
        Scales differ in kind, or bounds of a logistic scale differ.
    """
    kinds = {own if isinstance(own, str) else "linear" for own in scales}
    if len(kinds) > 1 or ("logit" in kinds and (np.ptp(lower) > 0 or np.ptp(upper) > 0)):
        names = ", ".join(labels[i] for i in chain)
        raise OptionError(
            f"The scales of {names}, which are in an order, differ: {shown(list(scales))}.",
            remedy="Give all the same kind of scale, and with 'logit' the same bounds.",
        )


def check_order(labels: Sequence[str], chain: NDArray[np.intp], start: Array) -> None:
    """Check that a start is in order.

    Raises
    ------
    ParameterError
        It is not.
    """
    for i in np.flatnonzero(~(np.diff(start) >= 0)).tolist():  # NaN is out of order
        one, two = labels[chain[i]], labels[chain[i + 1]]
        raise ParameterError(
            f"The start {one} = {start[i]:g}, {two} = {start[i + 1]:g} is out of order: {one} <= {two} is needed.",
            remedy="Choose another start, by parameters= or x0=; by default it is the nominal value.",
        )


def differences(orders: Sequence[NDArray[np.intp]], scales: Sequence[Scale]) -> Array:
    """Rows D with ``D @ x <= 0``, (k, n); units of linear scales are in terms of the larger one of two."""
    units = np.array([1.0 if isinstance(own, str) else own for own in scales])
    pairs = [(i, j) for chain in orders for i, j in pairwise(chain.tolist())]
    found = np.zeros((len(pairs), len(scales)))
    for row, (i, j) in zip(found, pairs, strict=True):
        row[[i, j]] = np.array([units[i], -units[j]]) / max(units[i], units[j])
    return found
