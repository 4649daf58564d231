"""CasADi's two kinds of expressions, and linear systems in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import casadi as ca
import numpy as np
from numpy.typing import NDArray

#: up to this many unknowns a linear system is solved symbolically, above by CasADi's sparse QR
SYMBOLIC_SOLVE = 4
#: up to this size a block of affine equations for algebraic variables is eliminated
ELIMINATED = 8
#: up to so many determinants of such blocks are watched as functions of time; of more the signs at the ends of steps
WATCHED = 8
#: equations of more elementary operations stay in MX form where one operation of theirs stands for so many of them
#: (measured: their code takes a second to compile, and runs no faster than loops from about there on)
LARGE, VECTORISED = 500, 8
#: with matrix products among them, whose derivatives by the entries of the matrix make long texts, from here on
LARGE_PRODUCTS = 250
#: elements up to which expressions are expanded to see how many operations they really are
MOST_EXPANDED = 200_000


def kind_for(functions: Sequence[ca.Function]) -> Any:
    """CasADi's SX where every function allows it, MX otherwise."""
    return ca.SX if all(f.is_a("SXFunction") for f in functions) else ca.MX


def expanded(function: ca.Function) -> ca.Function:
    """The function in SX form where it has one."""
    try:
        return function.expand()
    except RuntimeError:
        return function


def is_vectorised(expression: ca.MX, held: Sequence[ca.MX] = ()) -> bool:
    """Whether much is done with few operations on vectors: such code is short, and as fast as element by element.

    What depends on the `held` symbols alone is computed once per segment and does not count.
    """
    function = ca.Function("everything", ca.symvar(expression), [expression])
    operations = function.n_instructions()
    if function.sz_w() * operations <= LARGE_PRODUCTS:  # no result is large enough
        return False
    own = [i for i in range(operations) if function.instruction_id(i) not in (ca.OP_INPUT, ca.OP_OUTPUT)]
    products = any(function.instruction_id(i) == ca.OP_MTIMES for i in own)
    elements = sum(function.instruction_MX(i).nnz() for i in own)
    many = max(LARGE_PRODUCTS if products else LARGE, VECTORISED * len(own))
    if many < elements < MOST_EXPANDED:  # of which more than a few may be zeros, copies and constants
        rest = ca.extract_parametric([expression], ca.veccat(*held))[0] if held else [expression]
        elements = expanded(ca.Function("rest", ca.symvar(rest[0]), rest)).n_instructions()
    return elements > many


def without_numbers(expression: ca.MX) -> tuple[tuple[Any, ...], ca.MX, ca.MX, NDArray[np.float64]]:
    """An expression with a column of symbols in place of its numbers, that column, and the numbers.

    Before them a key: those of one key are the same function of the same symbols and of their numbers.
    """
    symbols = ca.symvar(expression)
    function = ca.Function("f", symbols, [expression])
    places = [k for k in range(function.n_instructions()) if function.instruction_id(k) == ca.OP_CONST]
    constants = [function.instruction_MX(k) for k in places]
    numbers = np.concatenate([np.zeros(0), *(np.array(c.to_DM().nonzeros()) for c in constants)])
    column = ca.MX.sym("numbers", numbers.size)
    if constants:
        pieces = ca.vertsplit(column, [0, *np.cumsum([c.nnz() for c in constants]).tolist()])
        named = [ca.MX(c.sparsity(), piece) for c, piece in zip(constants, pieces, strict=True)]
        expression = ca.graph_substitute(expression, constants, named)
    stated = ca.Function("f", [*symbols, column], [expression]).serialize()
    return (stated, *(s.__hash__() for s in symbols)), expression, column, numbers


def linear_solve(matrix: Any, right: Any) -> Any:
    """matrix^-1 right, symbolically for small systems and by a sparse QR factorisation above."""
    n = matrix.shape[0]
    if n == 0:
        return right
    if n == 1:
        return right / matrix
    return ca.solve(matrix, right) if n <= SYMBOLIC_SOLVE else ca.solve(matrix, right, "qr")
