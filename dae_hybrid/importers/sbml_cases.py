"""Whether the conditions of a `piecewise` without `otherwise` leave anything out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import casadi as ca

from dae_hybrid.statement.discontinuous_nodes import EQUALITIES, RELATIONS

#: depth to which expressions are compared
DEPTH = 20
_COMPARED = (*RELATIONS, *EQUALITIES)


def cover(conditions: Sequence[ca.MX]) -> bool:
    """Whether one of the conditions holds, whatever the variables are.

    That is shown for comparisons of one expression with numbers, or with one other expression; False if it cannot be.

    Examples
    --------
    >>> x = ca.MX.sym("x")
    >>> cover([x > 0, x <= 0]), cover([x > 0, x < 0]), cover([x < 1, ca.logic_and(x >= 1, x < 2), x >= 2])
    (True, False, True)
    """
    pairs = [pair for condition in conditions for pair in _comparisons(condition)]
    for compared in pairs[0] if pairs else ():
        others = [b if _same(a, compared) else a for a, b in pairs if _same(a, compared) or _same(b, compared)]
        if len(others) < len(pairs):
            continue
        if all(_same(other, others[0]) for other in others):
            return _holds(conditions, compared, [(side, 0.0) for side in (-1.0, 0.0, 1.0)])
        if all(other.is_constant() for other in others):
            levels = sorted({float(other) for other in others})
            between = [one / 2 + two / 2 for one, two in pairwise(levels)]
            places = [-math.inf, *levels, *between, math.inf]
            return _holds(conditions, compared, [(place, None) for place in places])
    return False


def _same(one: ca.MX, other: ca.MX) -> bool:
    return bool(ca.is_equal(one, other, DEPTH))


def _comparisons(condition: ca.MX) -> Iterator[tuple[ca.MX, ca.MX]]:
    """Yield the two sides of every comparison; of what is none, a pair that is like no other."""
    if condition.op() in _COMPARED:
        yield condition.dep(0), condition.dep(1)
    elif condition.op() in (ca.OP_AND, ca.OP_OR, ca.OP_NOT):
        for i in range(condition.n_dep()):
            yield from _comparisons(condition.dep(i))
    else:
        yield ca.MX.sym("unknown"), ca.MX.sym("unknown")


def _holds(conditions: Sequence[ca.MX], compared: ca.MX, places: Sequence[tuple[float, float | None]]) -> bool:
    """Whether one condition holds at each place: values of what is compared, and of the other side unless a number."""

    def value(condition: ca.MX, here: float, there: float | None) -> bool:
        sides = [condition.dep(i) for i in range(condition.n_dep())]
        if condition.op() in _COMPARED:
            one, two = (here if _same(s, compared) else float(s) if there is None else there for s in sides)
            return {ca.OP_LT: one < two, ca.OP_LE: one <= two, ca.OP_EQ: one == two}.get(condition.op(), one != two)
        parts = [value(side, here, there) for side in sides]
        return not parts[0] if condition.op() == ca.OP_NOT else (all if condition.op() == ca.OP_AND else any)(parts)

    return all(any(value(condition, *place) for condition in conditions) for place in places)
