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
#: statements of C that an operation on vectors takes, and elements up to which their text is worth comparing with
STATEMENTS, MOST_WRITTEN = 5, 30_000
#: with products of matrices of parameters among them, whose derivatives by their entries make long texts, from here on
LARGE_PRODUCTS = 250
#: elements up to which expressions are expanded to see how many operations they really are
MOST_EXPANDED = 200_000


def kind_for(functions: Sequence[ca.Function]) -> Any:
    """CasADi's SX where every function allows it, MX otherwise."""
    return ca.SX if all(f.is_a("SXFunction") for f in functions) else ca.MX


def dense(expression: Any) -> Any:
    """An SX or MX expression with all its entries; CasADi takes 30 microseconds to see that none is missing."""
    return expression if expression.is_dense() else ca.densify(expression)


def expanded(function: ca.Function) -> ca.Function:
    """The function in SX form where it has one."""
    try:
        return function.expand()
    except RuntimeError:
        return function


def jacobian(values: Any, by: Any) -> Any:
    """Derivative of a column by a column; the few rows that depend on much are differentiated apart from the others.

    CasADi's coloured products take as many directions as the fullest row has entries, where all else is sparse too.

    Examples
    --------
    >>> import casadi as ca
    >>> from dae_hybrid.codegen.casadi_tools import jacobian
    >>> x = ca.MX.sym("x", 1000)
    >>> arrow = ca.vertcat(x[0] * ca.sin(x), ca.sumsqr(x))
    >>> one, other = (ca.Function("f", [x], [j(arrow, x)]) for j in (jacobian, ca.jacobian))
    >>> one.n_instructions() < other.n_instructions() / 50
    True
    """
    full = _full_rows(ca.jacobian_sparsity(values, by)) if values.numel() > 1 and by.numel() > 1 else []
    if not full:
        return ca.jacobian(values, by)
    own = sorted(set(range(values.numel())) - set(full))
    parts = ca.vertcat(*(ca.jacobian(values[rows], by) for rows in (own, full)))
    return parts[np.argsort([*own, *full]).tolist(), :]


def directions(pattern: ca.Sparsity) -> int:
    """How many directional derivatives give a Jacobian of this pattern, as `jacobian` takes them."""
    full = _full_rows(pattern)
    rest = pattern.sub(sorted(set(range(pattern.size1())) - set(full)), list(range(pattern.size2())))[0]
    return len(full) + min(int(p.uni_coloring(p.T).size2()) for p in (rest, rest.T))


def _full_rows(pattern: ca.Sparsity) -> list[int]:
    """Rows without which the others take much fewer directions; none where there are no such rows."""
    counts = np.bincount(np.array(pattern.row(), dtype=int), minlength=pattern.size1())
    order = np.argsort(-counts, kind="stable")
    needed = np.arange(counts.size) + counts[order]  # one for each of the fullest rows, and as many as the next one has
    k = int(np.argmin(needed))
    return sorted(order[:k].tolist()) if 2 * needed[k] < needed[0] else []


def is_vectorised(expression: ca.MX, held: Sequence[ca.MX] = (), by: Sequence[ca.MX] = ()) -> bool:
    """Whether much is done with few operations on vectors: such code is short, and as fast as element by element.

    What depends on the `held` symbols alone is computed once per segment and does not count. The Jacobian by the
    symbols `by` takes the operations once more for every direction, and the elements a few times more whatever the
    directions: where that makes the longer text, elements it is.
    """
    function = ca.Function("everything", ca.symvar(expression), [expression])
    if function.sz_w() * function.n_instructions() <= LARGE_PRODUCTS:  # no result is large enough
        return False
    products = bool(held) and _multiplies(function, ca.veccat(*held))
    own, elements = vector_operations(function)
    many = max(LARGE_PRODUCTS if products else LARGE, VECTORISED * own)
    if many < elements < MOST_EXPANDED:  # of which more than a few may be zeros, copies and constants
        rest = ca.extract_parametric([expression], ca.veccat(*held))[0] if held else [expression]
        elements = expanded(ca.Function("rest", ca.symvar(rest[0]), rest)).n_instructions()
    if many < elements < MOST_WRITTEN and by:
        point = ca.veccat(*by)
        needed = directions(ca.jacobian_sparsity(expression, point)) if point.numel() > 1 else 1
        many = max(many, own * STATEMENTS * needed)
    return elements > many


def _multiplies(function: ca.Function, held: ca.MX) -> bool:
    """Whether there are products with matrices that depend on symbols."""
    places = [i for i in range(function.n_instructions()) if function.instruction_id(i) == ca.OP_MTIMES]
    return any(
        ca.depends_on(ca.veccat(*(node.dep(1), node.dep(2))), held) for node in map(function.instruction_MX, places)
    )


def vector_operations(function: ca.Function) -> tuple[int, int]:
    """How many operations on vectors a function of MX has, and on how many elements; those of what it calls included.

    Examples
    --------
    >>> import casadi as ca
    >>> from dae_hybrid.codegen.casadi_tools import vector_operations
    >>> x = ca.MX.sym("x", 10)
    >>> called = ca.Function("called", [x], [ca.exp(ca.sin(x))])
    >>> vector_operations(ca.Function("f", [x], [x + called(x)]))
    (3, 30)
    """
    if function.is_a("SXFunction"):
        return function.n_instructions(), function.n_instructions()
    if not function.is_a("MXFunction"):
        return 1, 1
    own = elements = 0
    for k in range(function.n_instructions()):
        operation = function.instruction_id(k)
        if operation in (ca.OP_INPUT, ca.OP_OUTPUT):
            continue
        if operation == ca.OP_CALL:
            inner = vector_operations(function.instruction_MX(k).which_function())
            own, elements = own + inner[0], elements + inner[1]
        else:
            own, elements = own + 1, elements + function.instruction_MX(k).nnz()
    return own, elements


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
