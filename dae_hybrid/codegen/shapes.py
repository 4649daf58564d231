"""Find expressions that are the same function of the same symbols and differ only in their numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Set
from typing import Any, NamedTuple

import casadi as ca
import numpy as np

from dae_hybrid.codegen.casadi_tools import POWERS, vector_operations, with_numbers, without_numbers
from dae_hybrid.numerics.arrays import Array

#: expressions examined at a time, and largest number of entries, and of operations for each of them
EXPRESSIONS_PER_CALL, MAX_ENTRIES, MAX_OPERATIONS = 1000, 100, 100
#: entry of a symbol: indices of the symbol and of the entry
Place = tuple[int, int]


class Elements(NamedTuple):
    """The elementary operations of an expression; those with equal keys differ in numbers and places only.

    `places` are the entries of the chosen symbols, in the order in which the operations use them first.
    """

    key: Any
    numbers: Array
    places: tuple[Place, ...]


class Shape(NamedTuple):
    """An expression with its numbers replaced by a column of symbols. Equal expressions have equal keys."""

    key: Any
    expression: ca.MX
    column: ca.MX


def shapes_of(values: Sequence[ca.MX]) -> list[tuple[Shape, Array]]:
    """Return the shape and the numbers of every expression.

    Short expressions are examined together, as elementary operations.

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
            key, numbers, _ = own
            if key not in shared:
                column = ca.MX.sym("numbers", numbers.size)
                shared[key] = Shape(key, written_out(key, symbols, column), column)
            shape = shared[key]
        found.append((shape, numbers))
    return found


def in_elements(
    symbols: Sequence[ca.MX],
    values: Sequence[ca.MX],
    *,
    structural: Set[float] = frozenset(),
    chosen: Set[int] = frozenset(),
) -> list[Elements | None]:
    """Return the operations of every expression.

    Each operation lists its operands: the index of a previous operation, of an entry of the symbols, or of a number.
    `structural` numbers, of either sign, and exponents if there are any are operands themselves. Entries of the symbols
    with `chosen` indices are numbered like numbers. The result is None for an expression that is long or calls
    functions (an interpolant).
    """
    found: list[Elements | None] = [None] * len(values)
    short = [i for i, value in enumerate(values) if value.nnz() <= MAX_ENTRIES]
    same: dict[Any, Any] = {}  # equal operations become one object
    for k in range(0, len(short) if len(short) > 1 else 0, EXPRESSIONS_PER_CALL):
        places = short[k : k + EXPRESSIONS_PER_CALL]
        some = _in_elements(symbols, [values[i] for i in places], structural, chosen, same)
        for i, own in zip(places, some, strict=True):
            found[i] = own
    return found


def _in_elements(
    symbols: Sequence[ca.MX],
    values: Sequence[ca.MX],
    structural: Set[float],
    chosen: Set[int],
    same: dict[Any, Any],
) -> list[Elements | None]:
    none: list[Elements | None] = [None] * len(values)
    function = ca.Function("values", symbols, values)
    if vector_operations(function)[1] > MAX_OPERATIONS * function.nnz_out():
        return none
    try:
        flat = function.expand()
    except RuntimeError:
        return none
    operations, outputs = _operations(flat)
    found = none
    for i, (value, results) in enumerate(zip(values, outputs, strict=True)):
        own = _Reduction(operations, structural, chosen)
        if own.add(results, MAX_OPERATIONS * len(results)):
            key = (_pattern(value.sparsity()), tuple(own.operations), tuple(own.results))
            found[i] = Elements(same.setdefault(key, key), np.array(own.numbers), tuple(own.places))
    return found


def _pattern(sparsity: ca.Sparsity) -> tuple[Any, ...]:
    """Arguments of `ca.Sparsity`, or of `ca.Sparsity.dense`."""
    return sparsity.shape if sparsity.is_dense() else (*sparsity.shape, tuple(sparsity.colind()), tuple(sparsity.row()))


def _operations(flat: ca.Function) -> tuple[list[tuple[Any, ...]], list[list[Any]]]:
    """The operations of an SX function, and the operands that are the entries of its outputs.

    Operands are ("value", number), ("input", symbol, entry), ("operation", index) or ("call",), a function's result.
    """
    known: dict[int, Any] = {}  # by index in the work vector
    operations = list[tuple[Any, ...]]()
    outputs: list[list[Any]] = [[("value", 0.0)] * flat.nnz_out(i) for i in range(flat.n_out())]
    of, arguments, results = flat.instruction_id, flat.instruction_input, flat.instruction_output
    for k in range(flat.n_instructions()):
        op = of(k)
        if op == ca.OP_CONST:
            known[results(k)[0]] = ("value", float(flat.instruction_constant(k)))
        elif op == ca.OP_INPUT:
            known[results(k)[0]] = ("input", *arguments(k))
        elif op == ca.OP_CALL:  # the operation does not identify the function
            known |= dict.fromkeys(results(k), ("call",))
        elif op == ca.OP_OUTPUT:
            output, entry = results(k)
            outputs[output][entry] = known[arguments(k)[0]]
        else:
            operations.append((op, *(known[place] for place in arguments(k))))
            known[results(k)[0]] = ("operation", len(operations) - 1)
    return operations, outputs


class _Reduction:
    """The operations on which some results depend, with numbers and chosen entries lifted from them."""

    def __init__(self, every: Sequence[tuple[Any, ...]], structural: Set[float], chosen: Set[int]) -> None:
        self._every, self._structural, self._chosen = every, structural, chosen
        self._done: dict[int, int] = {}
        self.operations, self.results, self.numbers = list[Any](), list[Any](), list[float]()
        self.places: dict[Place, int] = {}

    def add(self, results: Sequence[Any], most: int) -> bool:
        """Add the operations of all results, in an order that follows from these; False if they are too many."""
        pending = [result[1] for result in reversed(results) if result[0] == "operation"]
        while pending:
            k = pending[-1]
            op, *operands = self._every[k]
            missing = [o[1] for o in operands if o[0] == "operation" and o[1] not in self._done]
            if k in self._done:
                pending.pop()
            elif ("call",) in operands or len(self.operations) >= most:
                return False
            elif missing:
                pending += reversed(missing)
            else:
                exponents = bool(self._structural) and op in POWERS
                stated = [self._operand(o, fixed=exponents and i == 1) for i, o in enumerate(operands)]
                self._done[k] = len(self.operations)
                self.operations.append((op, *stated))
                pending.pop()
        self.results = [self._operand(result) for result in results]
        return ("call",) not in results

    def _operand(self, operand: Any, *, fixed: bool = False) -> Any:
        kind, *place = operand
        if kind == "operation":
            return kind, self._done[place[0]]
        if kind == "input" and place[0] in self._chosen:
            return "chosen", self.places.setdefault((place[0], place[1]), len(self.places))
        if kind != "value" or fixed or abs(place[0]) in self._structural or not math.isfinite(place[0]):
            return operand
        self.numbers.append(place[0])
        return "number", len(self.numbers) - 1


def written_out(key: Any, symbols: Sequence[ca.MX], column: ca.MX, places: Sequence[Sequence[Place]] = ()) -> ca.MX:
    """Rebuild an expression from its operations, with a column in place of its numbers.

    Each chosen entry is one of `places`; if these are several, the column continues with the index of the right one.
    """
    inputs = [ca.SX.sym("x", *s.shape) for s in symbols]
    numbers, results = ca.SX.sym("numbers", column.numel()), list[ca.SX]()
    indices = iter(range(column.numel() - sum(len(among) > 1 for among in places), column.numel()))
    chosen = [
        inputs[among[0][0]].nz[among[0][1]]
        if len(among) == 1
        else _entry([inputs[i].nz[k] for i, k in among], numbers[next(indices)])
        for among in places
    ]

    def operand(kind: str, *place: Any) -> ca.SX:
        if kind == "value":
            return ca.SX(place[0])
        if kind == "input":
            return inputs[place[0]].nz[place[1]]
        if kind == "number":
            return numbers[place[0]]
        return (chosen if kind == "chosen" else results)[place[0]]

    pattern, operations, outputs = key
    for op, *given in operations:
        operands = [operand(*one) for one in given]
        if len(operands) == 1:
            results.append(ca.SX.unary(op, operands[0]))
        else:
            results.append(ca.SX.binary(op, operands[0], operands[1]))
    sparsity = ca.Sparsity.dense(*pattern) if len(pattern) == 2 else ca.Sparsity(*pattern)
    value = ca.SX(sparsity, ca.vertcat(ca.SX(0, 1), *(operand(*one) for one in outputs)))
    used = sorted(set(_inputs(operations, outputs)) | {i for among in places for i, _ in among})
    shape = ca.Function("shape", [*(inputs[i] for i in used), numbers], [value])
    found: ca.MX = shape(*(symbols[i] for i in used), column)
    return found


def _entry(entries: Sequence[ca.SX], index: ca.SX) -> ca.SX:
    """The entry with an index, by a function call: compilers take long over as many selections one after the other."""
    place, column = ca.MX.sym("place", 1), ca.MX.sym("column", len(entries))
    entry = ca.Function("entry", [place, column], [column[place]], {"never_inline": True})
    found: ca.SX = entry(index, ca.vertcat(*entries))
    return found


def _inputs(operations: Sequence[Any], outputs: Sequence[Any]) -> Iterable[int]:
    """Indices of the symbols that operations and outputs use."""
    return (place[0] for kind, *place in (*(o for _, *own in operations for o in own), *outputs) if kind == "input")
