"""Find expressions that are the same function of the same symbols and differ only in their numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from typing import Any, NamedTuple

import casadi as ca
import numpy as np

from dae_hybrid.codegen.casadi_tools import POWERS, with_numbers, without_numbers
from dae_hybrid.numerics.arrays import Array

#: expressions examined at a time, and largest number of instructions of each
EXPRESSIONS_PER_CALL, MAX_INSTRUCTIONS = 1000, 100


class Shape(NamedTuple):
    """An expression with its numbers replaced by a column of symbols. Equal expressions have equal keys."""

    key: Any
    expression: ca.MX
    column: ca.MX


def shapes_of(values: Sequence[ca.MX]) -> list[tuple[Shape, Array]]:
    """Return the shape and the numbers of every expression.

    Scalar expressions that share no operations are examined together, as elementary operations.

    Examples
    --------
    >>> import casadi as ca
    >>> from dae_hybrid.codegen.shapes import shapes_of
    >>> x = ca.MX.sym("x")
    >>> (one, first), (other, second) = shapes_of([(x - 0.3) ** 2, (x - 0.4) ** 2])
    >>> one is other, first, second
    (True, array([0.3]), array([0.4]))
    """
    symbols = ca.symvar(ca.veccat(ca.MX(0, 1), *values))
    shared = dict[Any, Shape]()
    found = []
    for value, own in zip(values, in_elements(symbols, values), strict=True):
        if own is None:
            stated = without_numbers([value])
            assert stated is not None
            key, expressions, places, numbers = stated
            if key not in shared:
                column = ca.MX.sym("numbers", numbers.size)
                shared[key] = Shape(key, with_numbers(expressions, places, column)[0], column)
            shape = shared[key]
        else:
            key, numbers = own
            if key not in shared:
                column = ca.MX.sym("numbers", numbers.size)
                shared[key] = Shape(key, written_out(key, symbols, column), column)
            shape = shared[key]
        found.append((shape, numbers))
    return found


def in_elements(
    symbols: Sequence[ca.MX], values: Sequence[ca.MX], *, structural: Set[float] = frozenset()
) -> list[tuple[Any, Array] | None]:
    """Return the operations of every expression and its numbers.

    Each operation lists its operands: the index of a previous operation, of an entry of the symbols, or of a number.
    `structural` numbers, of either sign, and exponents if there are any are operands themselves. The result is None for
    an expression that is not scalar, is long, calls functions (an interpolant), or shares operations with others.
    """
    if len(values) < 2 or not all(value.is_scalar() for value in values):
        return [None] * len(values)
    some = (
        ca.Function("values", symbols, values[i : i + EXPRESSIONS_PER_CALL])
        for i in range(0, len(values), EXPRESSIONS_PER_CALL)
    )
    same: dict[Any, Any] = {}  # equal operations become one object
    return [found for function in some for found in _in_elements(function, structural, same)]


def _in_elements(function: ca.Function, structural: Set[float], same: dict[Any, Any]) -> list[tuple[Any, Array] | None]:
    none: list[tuple[Any, Array] | None] = [None] * function.n_out()
    if function.n_instructions() > MAX_INSTRUCTIONS * function.n_out():
        return none
    try:
        flat = function.expand()
    except RuntimeError:
        return none
    found = none
    known: dict[int, Any] = {}  # work index -> number, input or operation
    of, arguments, results = flat.instruction_id, flat.instruction_input, flat.instruction_output
    operations, numbers, alone, first = list[Any](), list[float](), True, 0
    for k in range(flat.n_instructions()):
        op = of(k)
        if op == ca.OP_CONST:
            known[results(k)[0]] = float(flat.instruction_constant(k))
        elif op == ca.OP_INPUT:
            known[results(k)[0]] = ("input", *arguments(k))
        elif op == ca.OP_CALL:  # the operation does not identify the function
            alone = False
            known |= dict.fromkeys(results(k), k)
        else:
            operands = []
            for i, place in enumerate(arguments(k)):
                value = known[place]
                if isinstance(value, float) and (
                    abs(value) in structural or (structural and i == 1 and op in POWERS) or not math.isfinite(value)
                ):
                    operands.append(("value", value))
                elif isinstance(value, float):
                    operands.append(("number", len(numbers)))
                    numbers.append(value)
                elif isinstance(value, int):
                    alone &= value >= first
                    operands.append(("operation", value - first))
                else:
                    operands.append(value)
            operations.append((op, *operands))
            if op == ca.OP_OUTPUT:
                if alone:
                    stated = tuple(operations)
                    found[results(k)[0]] = same.setdefault(stated, stated), np.array(numbers)
                first, operations, numbers, alone = k + 1, [], [], True
            else:
                known[results(k)[0]] = first + len(operations) - 1
    return found


def written_out(key: Any, symbols: Sequence[ca.MX], column: ca.MX) -> ca.MX:
    """Rebuild an expression from its operations, with a column in place of its numbers."""
    inputs = [ca.SX.sym("x", *s.shape) for s in symbols]
    numbers, results = ca.SX.sym("numbers", column.numel()), list[ca.SX]()

    def operand(kind: str, *place: Any) -> ca.SX:
        if kind == "value":
            return ca.SX(place[0])
        if kind == "input":
            return inputs[place[0]].nz[place[1]]
        return numbers[place[0]] if kind == "number" else results[place[0]]

    for op, *given in key:
        operands = [operand(*one) for one in given]
        if op == ca.OP_OUTPUT:
            results.append(operands[0])
        elif len(operands) == 1:
            results.append(ca.SX.unary(op, operands[0]))
        else:
            results.append(ca.SX.binary(op, operands[0], operands[1]))
    used = sorted({place[0] for _, *given in key for kind, *place in given if kind == "input"})
    shape = ca.Function("shape", [*(inputs[i] for i in used), numbers], [results[-1]])
    found: ca.MX = shape(*(symbols[i] for i in used), column)
    return found
