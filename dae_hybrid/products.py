"""Products of a mode's derivatives with vectors, for equations whose Jacobian costs more than these.

Forward analysis needs (F_x s + F_p dp + F_m dm) for a few directions, an adjoint (F_x^T lambda, F_p^T lambda,
F_m^T lambda); where rows are full, and the Jacobian with them, automatic differentiation in forward and in reverse mode
gives these at a small multiple of F (Griewank and Walther, Evaluating Derivatives, 2nd ed., 2008, sections 3.2 and
3.3). What depends on the point alone is computed once for all vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import casadi as ca
import numpy as np

#: entries of all derivatives, and per equation, from which on products are looked at
MANY, FULL = 200, 12
#: operations that a sparse product takes for each entry, and an elementary function; directions that are compared for
#: (measured: straight code does four to eight additions in the time that one entry is looked up and added)
PER_ENTRY, PER_FUNCTION, DIRECTIONS = 6, 10, 2
#: products have to be so much cheaper
WORTH = 0.6
#: called functions that are written out
MOST_CALLS = 50
#: what takes about as long as an addition; of matrices also what moves numbers
CHEAP = frozenset((
    ca.OP_MTIMES, ca.OP_CALL, ca.OP_DOT, ca.OP_HORZCAT, ca.OP_VERTCAT, ca.OP_DIAGCAT, ca.OP_HORZSPLIT,
    ca.OP_VERTSPLIT, ca.OP_DIAGSPLIT, ca.OP_RESHAPE, ca.OP_TRANSPOSE, ca.OP_SUBREF, ca.OP_GETNONZEROS,
    ca.OP_SETNONZEROS, ca.OP_ADDNONZEROS, ca.OP_PROJECT, ca.OP_HORZREPMAT, ca.OP_HORZREPSUM, ca.OP_ASSIGN, ca.OP_ADD,
    ca.OP_SUB, ca.OP_MUL, ca.OP_DIV, ca.OP_NEG, ca.OP_SQ, ca.OP_TWICE, ca.OP_INV, ca.OP_FABS, ca.OP_FMIN, ca.OP_FMAX,
    ca.OP_LT, ca.OP_LE, ca.OP_EQ, ca.OP_NE, ca.OP_NOT, ca.OP_AND, ca.OP_OR, ca.OP_IF_ELSE_ZERO, ca.OP_SIGN,
    ca.OP_SQRT,
))  # fmt: skip
FREE = frozenset((ca.OP_INPUT, ca.OP_OUTPUT, ca.OP_CONST, ca.OP_PARAMETER))


def operations(function: ca.Function) -> int:
    """Operations on numbers that a call takes, elementary functions weighted.

    Examples
    --------
    >>> import casadi as ca
    >>> from dae_hybrid.products import operations
    >>> x = ca.SX.sym("x", 2)
    >>> operations(ca.Function("f", [x], [2 * x[0] + ca.sin(x[1])]))
    12
    """
    of = [function.instruction_id(k) for k in range(function.n_instructions())]
    if function.is_a("SXFunction"):
        return sum(_weight(op) for op in of)
    return sum(_weight(op) * _size(function.instruction_MX(k), op) for k, op in enumerate(of) if op not in FREE)


def _weight(op: int) -> int:
    return 0 if op in FREE else 1 if op in CHEAP else PER_FUNCTION


def _size(node: ca.MX, op: int) -> int:
    """How often a matrix operation does what it does."""
    if op == ca.OP_MTIMES:
        return 2 * int(node.dep(1).nnz()) * int(node.dep(2).size2())
    if op == ca.OP_CALL and (called := node.which_function()).is_a("SXFunction") | called.is_a("MXFunction"):
        return operations(called)
    return max(int(node.nnz()), 1)


def cost_of_jacobian(linearised: ca.Function) -> int:
    """Operations of forward analysis at a point by the sparse Jacobian, for some directions."""
    return operations(linearised) + DIRECTIONS * PER_ENTRY * _entries(linearised)


def cost_of_products(functions: Mapping[str, ca.Function]) -> int:
    """The same by products."""
    return operations(functions["partials"]) + DIRECTIONS * operations(functions["tangent"])


def products(
    name: str, inputs: Sequence[Any], equations: Any, integrands: Any, linearised: ca.Function
) -> dict[str, ca.Function]:
    """`partials`, `tangent` and `cotangent` where they are cheaper than the Jacobian, else nothing; see `Equations`.

    The equations are explicit rates.
    """
    if _entries(linearised) < max(MANY, FULL * (equations.numel() + integrands.numel())):
        return {}
    kind, (t, x, m, p) = type(equations), inputs
    sizes = [v.numel() for v in (x, m, p)]
    places = np.cumsum([0, *sizes]).tolist()
    rows, u = ca.vertcat(equations, integrands), ca.vertcat(x, m, p)
    if kind is ca.MX:  # which differentiates by symbols alone
        u = kind.sym("u", places[-1])
        (rows,) = ca.Function("own", list(inputs), [rows]).call([t, *ca.vertsplit(u, places)], True, False)
        rows = _written_out(rows, [t, u])
    along = [kind.sym(f"d{key}", size) for key, size in zip("xmp", sizes, strict=True)]
    theta = [kind.sym(key, v.numel()) for key, v in (("theta", equations), ("eta", integrands))]
    forward = ca.jtimes(rows, u, ca.vertcat(*along))
    reverse = ca.jtimes(rows, u, ca.vertcat(*theta), True)
    if kind is ca.MX:
        forward, reverse = (_written_out(v, [t, u, *along, *theta]) for v in (forward, reverse))
    rows, forward, reverse = ca.cse([rows, forward, reverse])
    (forward, reverse), symbols, values = _hoisted([forward, reverse], ca.vertcat(t, u))
    partials = kind.sym("partials", sum(s.nnz() for s in symbols))
    ends = np.cumsum([0, *(s.nnz() for s in symbols)]).tolist()
    restored = [kind(s.sparsity(), part) for s, part in zip(symbols, ca.vertsplit(partials, ends), strict=True)]
    by_point: Any = ca.vertcat(kind(0, 1), *(ca.vec(v).nz[:] for v in values))

    def function(key: str, more: Sequence[Any], outputs: Sequence[Any]) -> ca.Function:
        found = list(outputs)
        if symbols and more:
            found = ca.substitute(found, symbols, restored)
        if kind is ca.MX:
            inner = ca.Function(key, [t, u, *more], [ca.densify(v) for v in found])
            found = inner.call([t, ca.vertcat(x, m, p), *more], True, False)
        return ca.Function(f"{name}_{key}", [*inputs, *more], [ca.densify(v) for v in ca.cse(found)])

    n = equations.numel()
    found = {
        "partials": function("partials", (), [rows[:n], rows[n:], by_point]),
        "tangent": function("tangent", (partials, *along), [forward[:n], forward[n:]]),
        "cotangent": function("cotangent", (partials, *theta), ca.vertsplit(ca.densify(reverse), places)),
    }
    return found if cost_of_products(found) <= WORTH * cost_of_jacobian(linearised) else {}


def _hoisted(expressions: Sequence[Any], point: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """Expressions in symbols for what depends on the point alone, these symbols, and what they stand for."""
    if isinstance(point, ca.SX):
        found, symbols, values = ca.extract_parametric(list(expressions), point)
        return list(found), list(symbols), list(values)
    results, symbols, values = list[Any](), list[Any](), list[Any]()
    for expression in expressions:  # of several at once CasADi loses their order
        found, own, what = ca.extract_parametric(expression, point, {"offset": len(symbols)})
        results.append(found)
        symbols += own
        values += what
    return results, symbols, values


def _entries(linearised: ca.Function) -> int:
    return sum(linearised.nnz_out(i) for i in range(2, linearised.n_out()))


def _written_out(value: Any, inputs: Sequence[Any]) -> Any:
    """An expression without calls of functions that have expressions themselves, as far as these are few."""
    for _ in range(MOST_CALLS if isinstance(value, ca.MX) else 0):
        function = ca.Function("f", list(inputs), [value])
        nodes = (
            function.instruction_MX(k) for k in range(function.n_instructions())
            if function.instruction_id(k) == ca.OP_CALL
        )  # fmt: skip
        node = next((v for v in nodes if v.which_function().is_a("MXFunction")), None)
        if node is None:
            break
        called = node.which_function()
        outputs = called.call([node.dep(i) for i in range(node.n_dep())], True, False)
        value = ca.graph_substitute(value, [node.get_output(i) for i in range(called.n_out())], outputs)
    return value
