"""Powers whose exponent is an expression, with derivatives where the base is zero."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import casadi as ca

from dae_hybrid.statement.discontinuities import instructions


def power(base: Any, exponent: Any) -> Any:
    """Return base ** exponent with its derivatives where the base is zero.

    d(x^n)/dn = x^n log x is NaN at x = 0 as CasADi writes it; it is 0 there for n > 0. d(x^n)/dx = n x^(n-1) is 0 for
    n > 1, 1 for n = 1, and infinite below.

    Examples
    --------
    >>> import casadi as ca
    >>> from dae_hybrid.compile.powers import power
    >>> x, n = ca.MX.sym("x"), ca.MX.sym("n")
    >>> derivatives = ca.Function("f", [x, n], [ca.gradient(power(x, n), ca.vertcat(x, n))])
    >>> [derivatives(0, k).toarray().ravel().tolist() for k in (2.5, 1.0, 0.5)]
    [[0.0, 0.0], [1.0, 0.0], [inf, 0.0]]
    >>> derivatives(2, 3).toarray().ravel().round(4).tolist()
    [12.0, 5.5452]
    """
    zero = base == 0
    away = ca.logic_not(zero)
    steep = ca.logic_and(zero, ca.logic_and(exponent > 0, exponent < 1))
    level = ca.logic_not(steep)
    root = ca.sqrt(_if(steep, base) + level) - level  # zero, with a slope where it is steep
    slope = _if(ca.logic_and(zero, exponent == 1), base)
    value = ca.logic_and(zero, exponent <= 0) / ca.logic_or(away, exponent >= 0)  # 1 for 0^0, infinite below
    return _if(away, (base + zero) ** exponent) + root + slope + value


def with_powers(function: ca.Function) -> ca.Function:
    """Return a function of MX with `power` in place of the powers whose exponent is an expression."""
    if ca.OP_POW not in map(function.instruction_id, range(function.n_instructions())):
        return function
    done: set[int] = set()
    inputs, outputs = function.mx_in(), function.call(function.mx_in())
    while found := _innermost(ca.Function("powers", inputs, outputs), done):
        written = [power(node.dep(0), node.dep(1)) for node in found]
        done |= {node.__hash__() for _, node in instructions(inputs, written, {ca.OP_POW})}
        outputs = ca.graph_substitute(outputs, found, written)
    return ca.Function(function.name(), inputs, outputs)


def _innermost(function: ca.Function, done: Set[int]) -> list[ca.MX]:
    """The powers that are not done yet and contain none of these."""
    found, containing = list[ca.MX](), set[int]()  # places of values that contain such powers
    for k in range(function.n_instructions()):
        operation, places = function.instruction_id(k), function.instruction_output(k)
        if operation in (ca.OP_INPUT, ca.OP_OUTPUT):
            containing.difference_update(places if operation == ca.OP_INPUT else ())
        elif not containing.isdisjoint(function.instruction_input(k)):
            containing.update(places)
        elif operation == ca.OP_POW and (node := function.instruction_MX(k)).__hash__() not in done:
            found.append(node)
            containing.update(places)
        else:
            containing.difference_update(places)
    return found


def _if(condition: Any, value: Any) -> Any:
    """The value where the condition holds, else 0; its derivative is that of the value, or 0."""
    return type(value).binary(ca.OP_IF_ELSE_ZERO, condition, value)
