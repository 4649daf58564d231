"""Products with transposed derivatives, which an adjoint needs of equations, in place of their Jacobians.

The reverse mode of algorithmic differentiation gives F_x^T v, F_p^T v and F_m^T v together at the cost of a few
evaluations of F, however many parameters there are (Griewank and Walther, Evaluating Derivatives, 2008, section 4.2).
"""

from __future__ import annotations

from typing import Any

import casadi as ca

#: entries of F_x, F_p and F_m below which their product with a vector is not worth the attention
FEW_ENTRIES = 200
#: operations on vectors up to which functions that are called are written out
MOST_INLINED = 5_000
#: vectors that are multiplied at one point: the weights of a method and of its embedded one
VECTORS = 2
#: entries of an outer product from which on its factors are kept instead
LEAST_OUTER = 64


def inlined(function: ca.Function) -> ca.Function | None:
    """The same function with the expressions of those it calls; None where that would be long."""
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
    """How many operations on numbers a function takes, with those it calls."""
    if not function.is_a("MXFunction"):
        return int(function.n_instructions())
    total = 0
    for k in range(function.n_instructions()):
        kind = function.instruction_id(k)
        if kind in (ca.OP_INPUT, ca.OP_OUTPUT, ca.OP_CONST, ca.OP_PARAMETER):
            continue
        node = function.instruction_MX(k)
        if kind == ca.OP_CALL:
            total += operations(node.which_function())
        elif kind == ca.OP_MTIMES:  # z + x y
            total += 2 * node.dep(1).nnz() * node.dep(2).size2()
        else:
            total += node.nnz()
    return total


def pullback(name: str, function: ca.Function, linearised: ca.Function) -> ca.Function | None:
    """(t, x, m, p, v, e) -> F, g, F_x^T v + g_x^T e, F_p^T v + g_p^T e, F_m^T v + g_m^T e.

    `function` gives F and g, `linearised` their derivatives besides. None where products with its matrices are cheaper.
    """
    entries = sum(linearised.nnz_out(i) for i in range(2, linearised.n_out()))
    plain = inlined(function) if entries >= FEW_ENTRIES else None
    if plain is None:
        return None
    kind: Any = ca.SX if plain.is_a("SXFunction") else ca.MX
    point = [kind.sym(key, plain.size1_in(i)) for i, key in enumerate("txmp")]
    v, e = (kind.sym(key, plain.size1_out(i)) for i, key in enumerate("ve"))
    values = plain.call(point, True, False)
    both, along = ca.vertcat(*values), ca.vertcat(v, e)
    products = [ca.jtimes(both, point[i], along, True) for i in (1, 3, 2)]
    outputs = ca.cse([ca.densify(value) for value in (*values, *products)])
    found: ca.Function = ca.Function(name, [*point, v, e], outputs)
    return found if VECTORS * operations(found) < operations(linearised) + 2 * VECTORS * entries else None


def parts_of(values: Any) -> list[tuple[Any, ...]]:
    """The parts of a column of expressions: columns, and for outer products a column and a row.

    The derivatives by the weights of a layer are an outer product. The sum of such products at several points is a
    product of two matrices, and takes a fraction of what they take one by one.

    Examples
    --------
    >>> import casadi as ca
    >>> from dae_hybrid.pullback import parts_of
    >>> a, b, c = ca.MX.sym("a", 8), ca.MX.sym("b", 12), ca.MX.sym("c", 5)
    >>> [tuple(value.shape for value in part) for part in parts_of(ca.vertcat(c, ca.vec(a @ b.T)))]
    [((5, 1),), ((8, 1), (1, 12))]
    """
    stacked = isinstance(values, ca.MX) and values.is_op(ca.OP_VERTCAT)
    pieces = [values.dep(i) for i in range(values.n_dep())] if stacked else [values]
    return [_outer_product(piece) or (piece,) for piece in pieces]


def _outer_product(piece: Any) -> tuple[Any, ...]:
    """The column and the row that a matrix is the product of, where it is one of any size; else nothing."""
    if not isinstance(piece, ca.MX) or piece.numel() < LEAST_OUTER:
        return ()
    while piece.is_op(ca.OP_RESHAPE):
        piece = piece.dep(0)
    if not piece.is_op(ca.OP_MTIMES) or not piece.dep(0).is_zero():
        return ()
    _, column, row = (piece.dep(i) for i in range(3))
    outer = column.size2() == 1 and column.is_dense() and row.is_dense() and min(piece.shape) > 1
    return (column, row) if outer else ()
