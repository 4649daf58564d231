"""Functions that copy most of their outputs from inputs, with one statement of C per block instead of one per entry."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import groupby
from typing import Any

import casadi as ca

#: the source of entries that are neither copies nor constants
COMPUTED = "computed"


def in_blocks(function: ca.Function, sparse: Collection[int] = ()) -> ca.Function:
    """Return the function with copied inputs and constants as blocks; only the other entries stay element by element.

    Functions of matrix expressions are returned unchanged. Results have the same bits.

    Parameters
    ----------
    function : ca.Function
        Its inputs are dense columns.
    sparse : collection of int
        The outputs whose zeros are dropped from their sparsity.

    Examples
    --------
    >>> import casadi as ca
    >>> from dae_hybrid.codegen.copies import in_blocks
    >>> x = ca.SX.sym("x", 100)
    >>> reset = ca.vertcat(x[:50], x[50] ** 2, x[51:])
    >>> function = in_blocks(ca.Function("reset", [x], [reset]))
    >>> function.is_a("MXFunction"), function(range(100))[49:52]
    (True, DM([49, 2500, 51]))
    """
    if not function.is_a("SXFunction"):
        return function
    symbols: list[Any] = [ca.SX.sym(function.name_in(i), function.size1_in(i)) for i in range(function.n_in())]
    outputs: list[Any] = [ca.sparsify(v) if i in sparse else v for i, v in enumerate(function.call(symbols))]
    places = {e.element_hash(): (i, j) for i, s in enumerate(symbols) for j, e in enumerate(s.nonzeros())}
    entries: list[list[Any]] = [value.nonzeros() for value in outputs]
    own = [e for column in entries for e in column if not e.is_constant() and e.element_hash() not in places]
    values = ca.Function(f"{function.name()}_values", symbols, [ca.vertcat(*own)])
    inputs = [ca.MX.sym(function.name_in(i), s.numel()) for i, s in enumerate(symbols)]
    computed, first = values(*inputs), 0
    found = []
    for value, column in zip(outputs, entries, strict=True):
        pieces = []
        for kind, start, size in _blocks(column, places):
            if kind == COMPUTED:
                pieces.append(computed[first : first + size])
                first += size
            elif isinstance(kind, str):
                pieces.append(ca.MX(ca.Sparsity.dense(size), float(kind)))
            else:
                pieces.append(inputs[kind][start : start + size])
        found.append(ca.MX(value.sparsity(), ca.vertcat(ca.MX(0, 1), *pieces)))
    return ca.Function(function.name(), inputs, found)


def _blocks(column: list[Any], places: dict[int, tuple[int, int]]) -> Iterator[tuple[int | str, int, int]]:
    """Consecutive entries of one source, with the place there and their number.

    The source is the index of an input, the text of a constant, or `COMPUTED`.
    """

    def source(numbered: tuple[int, Any]) -> tuple[Any, int]:
        at, entry = numbered
        if entry.is_constant():
            return repr(float(entry)), 0
        place = places.get(entry.element_hash())
        return (COMPUTED, 0) if place is None else (place[0], place[1] - at)

    for (kind, shift), block in groupby(enumerate(column), source):
        numbers = [at for at, _ in block]
        yield kind, numbers[0] + shift, len(numbers)
