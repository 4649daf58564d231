"""Tools for SX and MX expressions of CasADi: Jacobians, linear systems, operation counts."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import casadi as ca
import numpy as np
from numpy.typing import NDArray

POWERS = frozenset((ca.OP_POW, ca.OP_CONSTPOW))
#: largest linear system solved symbolically; larger ones use CasADi's sparse QR
SYMBOLIC_SOLVE = 4
#: largest block of affine equations for algebraic variables that is eliminated
MAX_ELIMINATED_BLOCK = 8
#: largest number of block determinants monitored as functions of time; above, only their signs at step ends
MAX_DETERMINANT_GUARDS = 8
#: equations with more elementary operations stay in MX form if one of its operations replaces this many of them
#: (measured: beyond this size their code takes a second to compile, and runs no faster than loops)
MIN_LOOP_OPERATIONS, OPERATIONS_REPLACED = 500, 8
#: C statements per vector operation, and largest number of elements for which the lengths of both texts are compared
STATEMENTS, MOST_WRITTEN = 5, 30_000
#: the limit if there are products with parameter matrices, whose derivatives by the entries give long texts
LARGE_PRODUCTS = 250
#: largest number of elements for which expressions are expanded to count their operations
MOST_EXPANDED = 200_000


def kind_for(functions: Sequence[ca.Function]) -> Any:
    """SX if every function allows it, else MX."""
    return ca.SX if all(f.is_a("SXFunction") for f in functions) else ca.MX


def dense(expression: Any) -> Any:
    """An SX or MX expression with all its entries; CasADi takes 30 microseconds to see that none is missing."""
    return expression if expression.is_dense() else ca.densify(expression)


def expanded(function: ca.Function) -> ca.Function:
    """Return the function in SX form if possible."""
    try:
        return function.expand()
    except RuntimeError:
        return function


def derivative_pattern(values: ca.MX, by: Sequence[ca.MX]) -> ca.Sparsity:
    """Sparsity of a derivative by symbols; terms with the factor zero do not count if `values` has a scalar form."""
    known = {s.__hash__() for s in by}
    inputs = [*by, *(s for s in ca.symvar(values) if s.__hash__() not in known)]
    function = expanded(ca.Function("values", inputs, [values]))
    if not function.is_a("SXFunction"):
        return ca.jacobian_sparsity(values, ca.veccat(*by))
    scalars = function.sx_in()
    return ca.jacobian_sparsity(function.call(scalars)[0], ca.veccat(*scalars[: len(by)]))


def renamed(function: ca.Function, name: str) -> ca.Function:
    """Return the function under another name."""
    kind: Any = ca.SX if function.is_a("SXFunction") else ca.MX
    inputs = [kind.sym(function.name_in(i), function.sparsity_in(i)) for i in range(function.n_in())]
    return ca.Function(name, inputs, function.call(inputs))


def jacobian(values: Any, by: Any) -> Any:
    """Differentiate a column by a column; the few rows with many dependencies are differentiated separately.

    The number of directions in CasADi's coloured differentiation is that of the fullest row's entries, even if all
    other rows are sparse.

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
    """Number of directional derivatives that `jacobian` takes for this pattern."""
    full = _full_rows(pattern)
    rest = pattern.sub(sorted(set(range(pattern.size1())) - set(full)), list(range(pattern.size2())))[0]
    return len(full) + min(int(p.uni_coloring(p.T).size2()) for p in (rest, rest.T))


def _full_rows(pattern: ca.Sparsity) -> list[int]:
    """Rows that are differentiated separately because this saves many directions; empty if there are none."""
    counts = np.bincount(np.array(pattern.row(), dtype=int), minlength=pattern.size1())
    order = np.argsort(-counts, kind="stable")
    needed = np.arange(counts.size) + counts[order]  # one direction per separate row, plus the next row's count
    k = int(np.argmin(needed))
    return sorted(order[:k].tolist()) if 2 * needed[k] < needed[0] else []


def is_vectorised(expression: ca.MX, held: Sequence[ca.MX] = (), by: Sequence[ca.MX] = ()) -> bool:
    """Whether an expression consists of few vector operations; its code is short and as fast as elementwise code.

    Expressions of the `held` symbols alone are computed once per segment and do not count. The Jacobian by the symbols
    `by` repeats vector operations for each direction, but elements only a few times: elementwise code is chosen if its
    text is shorter.
    """
    function = ca.Function("everything", ca.symvar(expression), [expression])
    if function.sz_w() * function.n_instructions() <= LARGE_PRODUCTS:  # no result is large enough
        return False
    products = bool(held) and _multiplies(function, ca.veccat(*held))
    own, elements = vector_operations(function)
    many = max(LARGE_PRODUCTS if products else MIN_LOOP_OPERATIONS, OPERATIONS_REPLACED * own)
    if many < elements < MOST_EXPANDED:  # many of them may be zeros, copies and constants
        rest = ca.extract_parametric([expression], ca.veccat(*held))[0] if held else [expression]
        elements = expanded(ca.Function("rest", ca.symvar(rest[0]), rest)).n_instructions()
    if many < elements < MOST_WRITTEN and by:
        point = ca.veccat(*by)
        needed = directions(ca.jacobian_sparsity(expression, point)) if point.numel() > 1 else 1
        many = max(many, own * STATEMENTS * needed)
    return elements > many


def _multiplies(function: ca.Function, held: ca.MX) -> bool:
    """Whether a function contains matrix products that depend on the held symbols."""
    places = [i for i in range(function.n_instructions()) if function.instruction_id(i) == ca.OP_MTIMES]
    return any(
        ca.depends_on(ca.veccat(*(node.dep(1), node.dep(2))), held) for node in map(function.instruction_MX, places)
    )


def vector_operations(function: ca.Function) -> tuple[int, int]:
    """Count the vector operations of an MX function and the elements they process, including called functions.

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


def without_numbers(
    expressions: Sequence[ca.MX], *, structural: Set[float] = frozenset(), longest: float = np.inf
) -> tuple[tuple[Any, ...], list[ca.MX], list[ca.MX], NDArray[np.float64]] | None:
    """Expressions with a symbol in place of every number, these symbols, and the numbers; None of more instructions.

    Before them a key: those of one key are the same functions of the same symbols and of their numbers. With
    `structural` numbers these, whatever their sign, stay where they are, and so do exponents, infinities and matrices.
    """
    inputs = ca.symvar(ca.veccat(ca.MX(0, 1), *expressions))
    function = ca.Function("f", inputs, list(expressions))
    if function.n_instructions() > longest:
        return None
    nodes = [(function.instruction_id(k), function.instruction_MX(k)) for k in range(function.n_instructions())]
    places = [node for op, node in nodes if op == ca.OP_CONST]
    if structural:
        exponents = {node.dep(1).__hash__() for op, node in nodes if op in POWERS}
        places = [c for c in places if c.numel() == c.nnz() == 1 and c.__hash__() not in exponents]
        places = [c for c in places if np.isfinite(v := float(c.to_DM())) and abs(v) not in structural]
    symbols = [ca.MX.sym("number", c.sparsity()) for c in places]
    found = list(ca.graph_substitute(list(expressions), places, symbols)) if places else list(expressions)
    stated = ca.Function("f", [*inputs, *symbols], found).serialize()
    numbers = np.concatenate([np.zeros(0), *(np.array(c.to_DM().nonzeros()) for c in places)])
    return (stated, *(s.__hash__() for s in inputs)), found, symbols, numbers


def with_numbers(expressions: Sequence[ca.MX], symbols: Sequence[ca.MX], column: ca.MX) -> list[ca.MX]:
    """Expressions of `without_numbers` with the entries of a column for their symbols."""
    if not symbols:
        return list(expressions)
    pieces = ca.vertsplit(column, [0, *np.cumsum([s.nnz() for s in symbols]).tolist()])
    pieces = [piece if s.is_scalar() else ca.MX(s.sparsity(), piece) for s, piece in zip(symbols, pieces, strict=True)]
    return list(ca.substitute(list(expressions), list(symbols), pieces))


def linear_solve(matrix: Any, right: Any) -> Any:
    """Return matrix^-1 right, solved symbolically for small systems and by sparse QR factorisation above."""
    n = matrix.shape[0]
    if n == 0:
        return right
    if n == 1:
        return right / matrix
    return ca.solve(matrix, right) if n <= SYMBOLIC_SOLVE else ca.solve(matrix, right, "qr")
