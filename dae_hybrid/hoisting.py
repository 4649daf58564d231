"""What depends on parameters and memory alone is computed once per segment, not at every call of the integrator."""

from __future__ import annotations

from collections.abc import Mapping

import casadi as ca

#: functions that are called at every step
HOT = ("flow", "reduced", "settle", "jacobian", "linearised", "guards", "sketch")
#: larger functions are left as they are: the integration is expensive enough, and so is looking through them
LARGEST = 100_000


def hoisted(functions: Mapping[str, ca.Function]) -> dict[str, ca.Function]:
    """The same functions with a further input c, and `constants`, which gives c from the inputs (t, x, m, p).

    Common subexpressions are shared within each function. Only SX functions are rewritten; the others ignore c.

    Examples
    --------
    >>> import casadi as ca
    >>> from dae_hybrid.hoisting import hoisted
    >>> t, x, m, p = (ca.SX.sym(name) for name in "txmp")
    >>> found = hoisted({"flow": ca.Function("flow", [t, x, m, p], [x * ca.sin(p * m)])})
    >>> found["constants"](0, 0, 2, 3), found["flow"].n_in()
    (DM(-0.279415), 5)
    """
    result = dict(functions)
    hot = [key for key in HOT if key in functions and functions[key].is_a("SXFunction")]
    hot = [key for key in hot if functions[key].n_nodes() <= LARGEST]
    if not hot:
        return result
    first = functions[hot[0]]
    point = [ca.SX.sym(name, first.size1_in(i)) for i, name in enumerate("txmp")]
    outputs = [(key, value) for key in hot for value in functions[key].call(point)]
    rewritten, symbols, values = ca.extract_parametric([v for _, v in outputs], ca.vertcat(point[2], point[3]))
    c = ca.SX.sym("c", len(symbols))
    if symbols:
        rewritten = ca.substitute(rewritten, list(symbols), ca.vertsplit(c))
    if any(new.sparsity() != old.sparsity() for new, (_, old) in zip(rewritten, outputs, strict=True)):
        return result
    for key in hot:
        own = [new for (owner, _), new in zip(outputs, rewritten, strict=True) if owner == key]
        result[key] = ca.Function(functions[key].name(), [*point, c], own if len(own) == 1 else ca.cse(own))
    name = f"{first.name()}_constants"
    held: ca.SX = ca.cse(ca.densify(ca.vertcat(*values)))
    result["constants"] = ca.Function(name, point, [held])
    return result
