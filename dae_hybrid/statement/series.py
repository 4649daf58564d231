"""Measurements stated as arrays: many times, and values that differ only in their data."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import casadi as ca
import numpy as np
from numpy.typing import NDArray

from dae_hybrid.errors import ModelError
from dae_hybrid.numeric_input import real_array
from dae_hybrid.statement.declarations import Declaration, Series
from dae_hybrid.statement.discontinuities import are_smooth
from dae_hybrid.statement.expressions import expression, matrix, numbers

#: elementwise operations
ELEMENTWISE = frozenset(
    (
        ca.OP_ADD, ca.OP_SUB, ca.OP_MUL, ca.OP_DIV, ca.OP_NEG, ca.OP_SQ, ca.OP_SQRT, ca.OP_TWICE, ca.OP_INV, ca.OP_EXP,
        ca.OP_LOG, ca.OP_POW, ca.OP_CONSTPOW, ca.OP_SIN, ca.OP_COS, ca.OP_TAN, ca.OP_TANH, ca.OP_ERF, ca.OP_ATAN,
    )
)  # fmt: skip


def is_series(when: Any) -> bool:
    """Whether a time is an array."""
    if isinstance(when, int | float | ca.MX | ca.DM):
        return False
    try:
        return real_array(when).size != 1
    except ValueError:
        return False


def stated(
    functional: str, when: Any, given: Any, moving: Iterable[Declaration]
) -> tuple[Series | None, list[tuple[ca.MX, ca.MX]]]:
    """Measurements at many times: a series if their values differ in data alone, otherwise one by one.

    `moving` are the variables of the model.

    Raises
    ------
    ModelError
        There is neither one value for all times nor one for each, or the rows may be entries of a vector variable
        instead of times.
    """
    times = numbers(f"measurement times of functional '{functional}'", when)
    what = f"measurement of functional '{functional}'"
    value = matrix(what, given)
    if value.size1() not in (1, times.size):
        raise ModelError(f"{what} has {value.size1()} rows for {times.size} times; expected one for each, or one.")
    column = value.is_column()
    found = _template(value, times.size) if column and value.numel() == times.size > 1 and are_smooth([value]) else None
    if found is not None:
        if not np.isfinite(found[2]).all():
            raise ModelError(f"The data of a {what} must be finite.")
        return Series(times, *found), []
    for vector in moving:
        if vector.size == value.size1() > 1 and _differs_by_row(ca.jacobian_sparsity(value, vector.symbol)):
            raise ModelError(
                f"The {what} at {times.size} times has a row for each time, but uses the vector '{vector.name}' of "
                f"{vector.size} entries: rows may mean either. State it entry by entry, "
                f"[(times, ({vector.name}[0] - data)**2), ...], or one pair for each time."
            )
    rows = ca.vertsplit(value) if value.size1() > 1 else [value] * times.size
    return None, [(ca.MX(t), expression(what, row, None)) for t, row in zip(times.tolist(), rows, strict=True)]


def _differs_by_row(pattern: ca.Sparsity) -> bool:
    """Whether the rows of a matrix have different nonzero columns: those of equal rows are full."""
    return bool(pattern.nnz() != pattern.size1() * len(set(pattern.get_col())))


def _template(value: ca.MX, n: int) -> tuple[ca.MX, ca.MX, NDArray[np.float64]] | None:
    """A value with n entries as one of a column of data, and that data; None unless it is made entry by entry."""
    symbols = ca.symvar(value)
    function = ca.Function("value", symbols, [value])
    data: list[NDArray[np.float64]] = []
    at: dict[int, tuple[ca.MX, bool]] = {}  # place of work: expression, and whether it is one of many
    numbers: list[ca.MX] = []
    for k in range(function.n_instructions()):
        op, node = function.instruction_id(k), function.instruction_MX(k)
        if op == ca.OP_OUTPUT:
            (place,) = function.instruction_input(k)
            final, many = at[place]
            if not many or not data:
                return None
            column = ca.MX.sym("data", len(data))
            return ca.substitute([final], numbers, ca.vertsplit(column))[0], column, np.column_stack(data)
        if len(places := function.instruction_output(k)) != 1:
            return None
        place = places[0]
        if op == ca.OP_CONST and node.shape == (n, 1):
            data.append(np.array(node.to_DM().full()).ravel())
            numbers.append(ca.MX.sym("number"))
            at[place] = numbers[-1], True
            continue
        operands = [] if op in (ca.OP_INPUT, ca.OP_CONST) else [at[i] for i in function.instruction_input(k) if i in at]
        if op == ca.OP_INPUT:
            at[place] = symbols[function.instruction_input(k)[0]], False
        elif not any(many for _, many in operands):
            at[place] = node, False
        elif op not in ELEMENTWISE or any(not many and not part.is_scalar() for part, many in operands):
            return None
        else:
            made: Any = ca.MX.binary if len(operands) == 2 else ca.MX.unary
            at[place] = made(ca.OP_POW if op == ca.OP_CONSTPOW else op, *(part for part, _ in operands)), True
    return None
