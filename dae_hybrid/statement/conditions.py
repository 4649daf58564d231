"""Conditions: comparisons of expressions, combined by and, or, not."""

from __future__ import annotations

from functools import reduce
from typing import Any

import casadi as ca

from dae_hybrid.errors import ModelError
from dae_hybrid.statement.discontinuous_nodes import EQUALITIES, LOGIC, RELATIONS
from dae_hybrid.statement.expressions import expression


def is_condition(value: ca.MX) -> bool:
    """Whether an expression is a comparison or a combination of comparisons."""
    return value.op() in (*RELATIONS, *EQUALITIES, *LOGIC)


def all_of(*conditions: Any) -> ca.MX:
    """Return the condition that all of the conditions hold.

    As a guard it triggers at the instant at which all have become true.

    Parameters
    ----------
    *conditions : scalar expressions
        Comparisons, combinations of them, or flags, which hold where they are not zero.

    Raises
    ------
    ModelError
        No condition is given, or one is not a scalar expression.

    Examples
    --------
    >>> import dae_hybrid as dh
    >>> m = dh.HybridModel("heater")
    >>> x = m.differential("x")
    >>> run, off = m.mode("run", ode={x: 1.0}), m.mode("off", ode={x: -1.0})
    >>> stop = m.transition(run, off, guard=dh.all_of(x > 1, m.time > 2))
    >>> m.initial(run, {x: 0.0})
    >>> [round(event.time, 9) for event in dh.simulate(m.build(), (0, 3)).events if event.transition == "run->off"]
    [2.0]
    """
    return _combined("all_of()", ca.logic_and, conditions)


def any_of(*conditions: Any) -> ca.MX:
    """Return the condition that at least one of the conditions holds; see `all_of`."""
    return _combined("any_of()", ca.logic_or, conditions)


def not_(value: Any) -> ca.MX:
    """Return the condition that a condition does not hold; see `all_of`."""
    return ca.logic_not(expression("condition of not_()", value, 1))


def _combined(what: str, operation: Any, conditions: tuple[Any, ...]) -> ca.MX:
    if not conditions:
        raise ModelError(f"{what} needs at least one condition.")
    found: ca.MX = reduce(operation, [expression(f"condition {i} of {what}", c, 1) for i, c in enumerate(conditions)])
    return found
