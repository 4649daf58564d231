"""Many expressions at once: which of them are the same function of the same symbols and of their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import casadi as ca
import numpy as np

from dae_hybrid.codegen import Array
from dae_hybrid.symbolic import without_numbers

#: so many expressions are looked through at a time
MANY = 1000


class Shape(NamedTuple):
    """An expression with a column of symbols in place of its numbers; its key is that of all that are like it."""

    key: Any
    expression: ca.MX
    column: ca.MX


def shapes_of(values: Sequence[ca.MX]) -> list[tuple[Shape, Array]]:
    """The shape of every expression, and its numbers.

    Scalar ones that share no operation with others are looked through together, in elementary operations.

    Examples
    --------
    >>> import casadi as ca
    >>> from dae_hybrid.shapes import shapes_of
    >>> x = ca.MX.sym("x")
    >>> (one, first), (other, second) = shapes_of([(x - 0.3) ** 2, (x - 0.4) ** 2])
    >>> one is other, first, second
    (True, array([0.3]), array([0.4]))
    """
    symbols = ca.symvar(ca.veccat(ca.MX(0, 1), *values))
    together: list[tuple[Any, Array] | None] = [None] * len(values)
    if len(values) > 1 and all(value.is_scalar() for value in values):
        some = (ca.Function("values", symbols, values[i : i + MANY]) for i in range(0, len(values), MANY))
        together = [found for function in some for found in _in_elements(function)]
    shared = dict[Any, Shape]()
    found = []
    for value, own in zip(values, together, strict=True):
        if own is None:
            key, expression, column, numbers = without_numbers(value)
            shape = shared.setdefault(key, Shape(key, expression, column))
        else:
            key, numbers = own
            if key not in shared:
                shared[key] = _written_out(key, symbols, numbers.size)
            shape = shared[key]
        found.append((shape, numbers))
    return found


def _in_elements(function: ca.Function) -> list[tuple[Any, Array] | None]:
    """Of every output the operations that it takes, and the numbers in them; None of one that uses those of others.

    The key is a sequence of operations with their operands: the place of an operation before it, of an input, or of a
    number.
    """
    none: list[tuple[Any, Array] | None] = [None] * function.n_out()
    try:
        flat = function.expand()
    except RuntimeError:
        return none
    found = none
    known: dict[int, Any] = {}  # what stands at a place of the work vector: a number, an input, or an operation
    operations, numbers, alone, first = list[Any](), list[float](), True, 0
    for k in range(flat.n_instructions()):
        op = flat.instruction_id(k)
        if op == ca.OP_CONST:
            known[flat.instruction_output(k)[0]] = float(flat.instruction_constant(k))
        elif op == ca.OP_INPUT:
            known[flat.instruction_output(k)[0]] = ("input", *flat.instruction_input(k))
        else:
            operands = []
            for place in flat.instruction_input(k):
                value = known[place]
                if isinstance(value, float):
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
                    found[flat.instruction_output(k)[0]] = tuple(operations), np.array(numbers)
                first, operations, numbers, alone = k + 1, [], [], True
            else:
                known[flat.instruction_output(k)[0]] = first + len(operations) - 1
    return found


def _written_out(key: Any, symbols: Sequence[ca.MX], size: int) -> Shape:
    """The expression that a key describes."""
    inputs = [ca.SX.sym("x", *s.shape) for s in symbols]
    numbers, results = ca.SX.sym("numbers", size), list[ca.SX]()

    def operand(kind: str, *place: int) -> ca.SX:
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
    column = ca.MX.sym("numbers", size)
    function = ca.Function("shape", [*inputs, numbers], [results[-1]])
    return Shape(key, function(*symbols, column), column)
