"""Jumps that no relation shows, written as relations: u/|u| is sign(u), atan(tan(u)) is u less multiples of pi.

Roots in the branch of a relation that keeps their arguments positive get a clip: where the branch is entered, an
argument may be below zero by rounding.

Each replacement equals the expression wherever that is defined. The jump of `atan2` is that of a node, see
`discontinuous_nodes`; the ends of B-splines are in `splines`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import casadi as ca

from dae_hybrid.statement.splines import with_ends_shown

#: operations that may be a magnitude, and those without which nothing is hidden
MAGNITUDES = frozenset((ca.OP_FABS, ca.OP_SQRT, ca.OP_NORM2, ca.OP_NORMF))
SIGNIFICANT = MAGNITUDES | {ca.OP_ATAN, ca.OP_ACOS, ca.OP_ASIN, ca.OP_BSPLINE, ca.OP_CALL, ca.OP_POW, ca.OP_CONSTPOW}
#: operations at which something may be hidden, and those of one of their arguments
PLACES = {
    ca.OP_DIV: MAGNITUDES,
    ca.OP_MUL: {ca.OP_INV},
    ca.OP_SQRT: {ca.OP_SQ, ca.OP_MUL, ca.OP_POW, ca.OP_CONSTPOW},
    ca.OP_ATAN: {ca.OP_TAN, ca.OP_DIV, ca.OP_INV},
    ca.OP_ACOS: {ca.OP_COS},
    ca.OP_ASIN: {ca.OP_SIN},
}
ALONE = (ca.OP_NORM2, ca.OP_NORMF, ca.OP_BSPLINE, ca.OP_CALL)
#: operations that are undefined for arguments below zero, and finite at zero
ROOTS = (ca.OP_SQRT, ca.OP_POW, ca.OP_CONSTPOW)
#: depth to which expressions are compared
DEPTH = 8


def with_jumps_shown(symbols: Sequence[ca.MX], expressions: Sequence[ca.MX]) -> list[ca.MX] | None:
    """Return expressions in these symbols with what they hide shown; None if they hide nothing."""
    function = ca.Function("expressions", symbols, expressions)
    ids = [function.instruction_id(k) for k in range(function.n_instructions())]
    if SIGNIFICANT.isdisjoint(ids):
        return None
    made: dict[int, int] = {}  # the operation behind each work index
    nodes: list[ca.MX] = []
    roots = [function.instruction_MX(k).dep(0) for k, op in enumerate(ids) if op in ROOTS]
    for k, op in enumerate(ids):
        if op == ca.OP_IF_ELSE_ZERO:
            branch = function.instruction_MX(k)
            if _are_kept_positive(roots, branch.dep(0)):
                nodes.append(branch)
        elif op in ALONE or (
            op in PLACES and not PLACES[op].isdisjoint(made.get(i, -1) for i in function.instruction_input(k))
        ):
            nodes.append(function.instruction_MX(k))
        made.update(dict.fromkeys(function.instruction_output(k) if op != ca.OP_OUTPUT else (), op))
    pairs = [(node, new) for node in reversed(nodes) if (new := _shown(node)) is not None]
    found = list(expressions)
    for node, new in pairs:  # outer ones first: they contain the others
        value = node.get_output(0) if node.op() == ca.OP_CALL else node
        found = ca.graph_substitute(found, [value], [new])
    return found if pairs else None


def _shown(node: ca.MX) -> ca.MX | None:
    """Return an expression that shows the jump of a node by relations and kinks; None if there is nothing to show."""
    op = node.op()
    if op in (ca.OP_BSPLINE, ca.OP_CALL):
        return with_ends_shown(node)
    if op == ca.OP_IF_ELSE_ZERO:
        return _with_clips(node)
    if op == ca.OP_ATAN:
        return _arc_tangent(node.dep(0))
    if op in (ca.OP_ACOS, ca.OP_ASIN) and node.dep(0).op() == (ca.OP_COS if op == ca.OP_ACOS else ca.OP_SIN):
        wave = node.dep(0).dep(0) - (0.0 if op == ca.OP_ACOS else math.pi / 2)
        away = ca.fabs(wave - 2 * math.pi * ca.floor(wave / (2 * math.pi) + 0.5))
        return away if op == ca.OP_ACOS else math.pi / 2 - away
    if op == ca.OP_DIV:
        u = _absolute(node.dep(1))
        return None if u is None else _by_absolute(node.dep(0), u)
    if op == ca.OP_MUL:
        for a, b in ((0, 1), (1, 0)):
            u = _absolute(node.dep(b).dep(0)) if node.dep(b).op() == ca.OP_INV else None
            if u is not None:
                return _by_absolute(node.dep(a), u)
        return None
    u = _absolute(node)
    return None if u is None else ca.fabs(u)


def _with_clips(branch: ca.MX) -> ca.MX | None:
    """The branch of a relation, with the arguments of roots clipped that the relation keeps positive; None without."""
    condition, value = branch.dep(0), branch.dep(1)
    function = ca.Function("value", ca.symvar(value), [value])
    roots = [
        function.instruction_MX(k) for k in range(function.n_instructions()) if function.instruction_id(k) in ROOTS
    ]
    found = value
    for root in reversed(roots):
        if _are_kept_positive([root.dep(0)], condition):
            clipped = ca.fmax(root.dep(0), 0)
            new = ca.sqrt(clipped) if root.op() == ca.OP_SQRT else ca.MX.binary(root.op(), clipped, root.dep(1))
            found = ca.graph_substitute([found], [root], [new])[0]
    return None if found is value else ca.MX.binary(ca.OP_IF_ELSE_ZERO, condition, found)


def _are_kept_positive(arguments: Sequence[ca.MX], condition: ca.MX) -> bool:
    """Whether a condition keeps one of these arguments positive."""
    return bool(arguments) and any(
        _is_difference(of, more, less) for more, less in _positive(condition) for of in arguments
    )


def _positive(condition: ca.MX, *, holds: bool = True) -> Iterator[tuple[ca.MX, ca.MX]]:
    """Yield pairs of expressions of which the first is at least the second where a condition holds, or does not."""
    op = condition.op()
    if op in (ca.OP_LT, ca.OP_LE):
        less, more = condition.dep(0), condition.dep(1)
        yield (more, less) if holds else (less, more)
    elif op == ca.OP_NOT:
        yield from _positive(condition.dep(0), holds=not holds)
    elif op == (ca.OP_AND if holds else ca.OP_OR):
        for i in range(2):
            yield from _positive(condition.dep(i), holds=holds)


def _is_difference(of: ca.MX, more: ca.MX, less: ca.MX) -> bool:
    """Whether an expression is the difference of two others."""
    if less.is_constant() and less.is_zero() and _are_equal(of, more):
        return True
    if of.op() == ca.OP_NEG:
        return more.is_constant() and more.is_zero() and _are_equal(of.dep(0), less)
    return of.op() == ca.OP_SUB and _are_equal(of.dep(0), more) and _are_equal(of.dep(1), less)


def _arc_tangent(of: ca.MX) -> ca.MX | None:
    if of.op() == ca.OP_TAN:
        u = of.dep(0)
        return u - math.pi * ca.floor(u / math.pi + 0.5)
    if of.op() not in (ca.OP_DIV, ca.OP_INV):
        return None
    n, d = (of.dep(0), of.dep(1)) if of.op() == ca.OP_DIV else (ca.MX(1), of.dep(0))
    if d.is_constant():
        return None
    side = 1 - 2 * (d < 0)  # half the angle has no pole where d is zero
    return 2 * ca.atan(side * n * ca.constpow(ca.hypot(n, d) + side * d, -1))


def _absolute(node: ca.MX) -> ca.MX | None:
    """The scalar or vector u of which a node is the magnitude, by entries."""
    op = node.op()
    if op == ca.OP_FABS:
        return node.dep(0)
    if op in (ca.OP_NORM2, ca.OP_NORMF):
        return node.dep(0) if node.dep(0).numel() == 1 else None
    if op != ca.OP_SQRT:
        return None
    square = node.dep(0)
    if square.op() == ca.OP_SQ:
        return square.dep(0)
    if square.op() == ca.OP_MUL and _are_equal(square.dep(0), square.dep(1)):
        return square.dep(0)
    is_power = square.op() in (ca.OP_POW, ca.OP_CONSTPOW) and square.dep(1).is_constant()
    return square.dep(0) if is_power and float(square.dep(1).to_DM()) == 2 else None


def _by_absolute(of: ca.MX, u: ca.MX) -> ca.MX | None:
    """The quotient of an expression and |u|; None if u is no factor of it, so that the quotient has a pole."""
    if _are_equal(of, u):
        return ca.sign(u)
    op = of.op()
    if op == ca.OP_SUB and u.op() == ca.OP_SUB and _are_equal(of.dep(0), u.dep(1)) and _are_equal(of.dep(1), u.dep(0)):
        return -ca.sign(u)
    if op == ca.OP_SQ and _are_equal(of.dep(0), u):
        return ca.fabs(u)
    if op in (ca.OP_NEG, ca.OP_TWICE):
        part = _by_absolute(of.dep(0), u)
        return None if part is None else (-part if op == ca.OP_NEG else 2 * part)
    if op == ca.OP_DIV:
        part = _by_absolute(of.dep(0), u)
        return None if part is None else part / of.dep(1)
    if op == ca.OP_MUL:
        for a, b in ((0, 1), (1, 0)):
            part = _by_absolute(of.dep(a), u)
            if part is not None:
                return part * of.dep(b)
        return None
    if op in (ca.OP_ADD, ca.OP_SUB):
        one, other = (_by_absolute(of.dep(i), u) for i in range(2))
        if one is not None and other is not None:
            return one + other if op == ca.OP_ADD else one - other
    return None


def _are_equal(a: ca.MX, b: ca.MX) -> bool:
    return a.shape == b.shape and bool(ca.is_equal(a, b, DEPTH))
