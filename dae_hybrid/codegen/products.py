"""Jacobian-vector and vector-Jacobian products, for equations with expensive Jacobians.

Forward analysis needs F_x s + F_p dp + F_m dm for a few directions, the adjoint F_x^T v, F_p^T v and F_m^T v.
Algorithmic differentiation in forward and reverse mode computes either at a small multiple of the cost of F, regardless
of the number of Jacobian entries (Griewank and Walther, Evaluating Derivatives, 2nd ed., 2008, sections 3.2 to 4.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import casadi as ca

#: smallest number of entries of F_x, F_p and F_m for which products are considered
FEW_ENTRIES = 200
#: smallest number of entries per equation for which products with directions are considered
FULL = 12
#: vectors multiplied per point: directions; the weights of a method and of its embedded method
VECTORS = 2
#: cost of one entry in a sparse product, in additions (measured: straight-line code does four to eight additions in the
#: time needed to load and add one entry), and cost of an elementary function
PER_ENTRY, PER_FUNCTION = 6, 10
#: largest cost of products with directions, relative to the Jacobian
MAX_PRODUCT_COST_RATIO = 0.6
#: largest number of vector operations after inlining called functions
MOST_INLINED = 5_000
#: smallest outer product that is stored by its factors
LEAST_OUTER = 64
#: operations as cheap as an addition; for matrices this includes data movement
CHEAP_OPERATIONS = frozenset((
    ca.OP_MTIMES, ca.OP_CALL, ca.OP_DOT, ca.OP_HORZCAT, ca.OP_VERTCAT, ca.OP_DIAGCAT, ca.OP_HORZSPLIT,
    ca.OP_VERTSPLIT, ca.OP_DIAGSPLIT, ca.OP_RESHAPE, ca.OP_TRANSPOSE, ca.OP_SUBREF, ca.OP_GETNONZEROS,
    ca.OP_SETNONZEROS, ca.OP_ADDNONZEROS, ca.OP_PROJECT, ca.OP_HORZREPMAT, ca.OP_HORZREPSUM, ca.OP_ASSIGN, ca.OP_ADD,
    ca.OP_SUB, ca.OP_MUL, ca.OP_DIV, ca.OP_NEG, ca.OP_SQ, ca.OP_TWICE, ca.OP_INV, ca.OP_FABS, ca.OP_FMIN, ca.OP_FMAX,
    ca.OP_LT, ca.OP_LE, ca.OP_EQ, ca.OP_NE, ca.OP_NOT, ca.OP_AND, ca.OP_OR, ca.OP_IF_ELSE_ZERO, ca.OP_SIGN,
    ca.OP_SQRT,
))  # fmt: skip
FREE_OPERATIONS = frozenset((ca.OP_INPUT, ca.OP_OUTPUT, ca.OP_CONST, ca.OP_PARAMETER))


def inlined(function: ca.Function) -> ca.Function | None:
    """Inline the functions that a function calls; None if the result would be too long."""
    if not function.is_a("MXFunction"):
        return function
    inputs = [ca.MX.sym(function.name_in(i), function.sparsity_in(i)) for i in range(function.n_in())]
    values = function.call(inputs, True, False)
    while True:
        found = ca.Function(function.name(), inputs, values)
        if found.n_instructions() > MOST_INLINED:
            return None
        places = [k for k in range(found.n_instructions()) if found.instruction_id(k) == ca.OP_CALL]
        calls = [call for call in map(found.instruction_MX, places) if call.which_function().is_a("MXFunction")]
        if not calls:
            return found
        old, new = list[ca.MX](), list[ca.MX]()
        for call in calls:
            own = call.which_function()
            old += [call.get_output(i) for i in range(own.n_out())]
            new += own.call([call.dep(i) for i in range(own.n_in())], True, False)
        values = ca.graph_substitute(values, old, new)


def operations(function: ca.Function) -> int:
    """Count the scalar operations of a call; elementary functions are weighted.

    Examples
    --------
    >>> import casadi as ca
    >>> from dae_hybrid.codegen.products import operations
    >>> x = ca.SX.sym("x", 2)
    >>> operations(ca.Function("f", [x], [2 * x[0] + ca.sin(x[1])]))
    12
    """
    of = [function.instruction_id(k) for k in range(function.n_instructions())]
    if function.is_a("SXFunction"):
        return sum(_weight(op) for op in of)
    return sum(
        _weight(op) * _size(function.instruction_MX(k), op) for k, op in enumerate(of) if op not in FREE_OPERATIONS
    )


def _weight(op: int) -> int:
    return 0 if op in FREE_OPERATIONS else 1 if op in CHEAP_OPERATIONS else PER_FUNCTION


def _size(node: ca.MX, op: int) -> int:
    """Number of elements that a matrix operation processes."""
    if op == ca.OP_MTIMES:
        return 2 * int(node.dep(1).nnz()) * int(node.dep(2).size2())
    if op == ca.OP_CALL and (called := node.which_function()).is_a("SXFunction") | called.is_a("MXFunction"):
        return operations(called)
    return max(int(node.nnz()), 1)


def products(name: str, function: ca.Function, linearised: ca.Function, *, explicit: bool) -> dict[str, ca.Function]:
    """Return `pullback` and `tangent` of `function`, whose outputs are F and g; see `Equations`.

    `linearised` also returns their derivatives. `pullback` is omitted if products with these matrices are cheaper.
    `tangent` is returned only with `pullback`, for `explicit` rates with many entries; its actual cost is known
    only after hoisting.
    """
    entries = _entries(linearised)
    plain = inlined(function) if entries >= FEW_ENTRIES else None
    if plain is None:
        return {}
    kind: Any = ca.SX if plain.is_a("SXFunction") else ca.MX
    point = [kind.sym(key, plain.size1_in(i)) for i, key in enumerate("txmp")]
    v, e = (kind.sym(key, plain.size1_out(i)) for i, key in enumerate("ve"))
    values = plain.call(point, True, False)
    both, along = ca.vertcat(*values), ca.vertcat(v, e)
    transposed = [ca.jtimes(both, point[i], along, True) for i in (1, 3, 2)]
    outputs = ca.cse([ca.densify(value) for value in (*values, *transposed)])
    pullback = ca.Function(f"{name}_pullback", [*point, v, e], outputs)
    if VECTORS * operations(pullback) >= operations(linearised) + VECTORS * PER_ENTRY * entries:
        return {}
    found = {"pullback": pullback}
    if explicit and entries >= FULL * both.numel():
        t, *others = point
        directions = [kind.sym(f"d{key}", w.numel()) for key, w in zip("xmp", others, strict=True)]
        rates = plain.forward(1).call([*point, *values, kind(t.numel(), 1), *directions], True, False)
        found["tangent"] = ca.Function(f"{name}_tangent", [*point, *directions], [ca.densify(r) for r in rates])
    return found


def is_cheaper(taped: Mapping[str, ca.Function], linearised: ca.Function) -> bool:
    """Whether products with directions, using a tape, cost clearly less than the sparse Jacobian and its products.

    A direction is that of one parameter: of F_p it meets one column, of F_x and F_m all.
    """
    by_products = operations(taped["tape"]) + VECTORS * operations(taped["tangent"])
    by_p = linearised.nnz_out(3) + linearised.nnz_out(6)
    met = _entries(linearised) - by_p + by_p / max(linearised.size1_in(3), 1)
    return by_products <= MAX_PRODUCT_COST_RATIO * (operations(linearised) + VECTORS * PER_ENTRY * met)


def _entries(linearised: ca.Function) -> int:
    return sum(linearised.nnz_out(i) for i in range(2, linearised.n_out()))


def parts_of(values: Any) -> list[tuple[Any, ...]]:
    """Split a column of expressions into parts: columns, and a column and a row for each outer product.

    The derivatives by the weights of a layer are an outer product. The sum of such products over several points is one
    matrix product, which costs a fraction of the individual products.

    Examples
    --------
    >>> import casadi as ca
    >>> from dae_hybrid.codegen.products import parts_of
    >>> a, b, c = ca.MX.sym("a", 8), ca.MX.sym("b", 12), ca.MX.sym("c", 5)
    >>> [tuple(value.shape for value in part) for part in parts_of(ca.vertcat(c, ca.vec(a @ b.T)))]
    [((5, 1),), ((8, 1), (1, 12))]
    """
    stacked = isinstance(values, ca.MX) and values.is_op(ca.OP_VERTCAT)
    pieces = [values.dep(i) for i in range(values.n_dep())] if stacked else [values]
    return [_outer_product(piece) or (piece,) for piece in pieces]


def _outer_product(piece: Any) -> tuple[Any, ...]:
    """The two factors of a matrix if it is an outer product of sufficient size; otherwise empty."""
    if not isinstance(piece, ca.MX) or piece.numel() < LEAST_OUTER:
        return ()
    while piece.is_op(ca.OP_RESHAPE):
        piece = piece.dep(0)
    if not piece.is_op(ca.OP_MTIMES) or not piece.dep(0).is_zero():
        return ()
    _, column, row = (piece.dep(i) for i in range(3))
    outer = column.size2() == 1 and column.is_dense() and row.is_dense() and min(piece.shape) > 1
    return (column, row) if outer else ()
