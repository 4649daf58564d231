"""Sharing of derivatives: functions at a point call `linearised`, as integrators do, instead of their own copies."""

from __future__ import annotations

from collections.abc import Mapping

import casadi as ca


def shared(functions: Mapping[str, ca.Function], flow: ca.Function, by_u: ca.Function) -> dict[str, ca.Function]:
    """Replace calls of `flow` and of its derivative by u = (x, m, p, t) with calls of `linearised`.

    `linearised` returns the results of both. If it was `hoisted`, rewritten functions get its additional input. Code
    common to two functions is compiled once. The equations do not depend on time.

    Examples
    --------
    >>> import casadi as ca
    >>> from dae_hybrid.codegen.sharing import shared
    >>> t, x, m, p = (ca.SX.sym(name) for name in "txmp")
    >>> f, own = x * m - p, [t, x, m, p]
    >>> flow, by_u = ca.Function("flow", own, [f]), ca.Function("by_u", own, [ca.jacobian(f, ca.vertcat(x, m, p, t))])
    >>> everything = [f, 0, *(ca.jacobian(f, v) for v in (x, p, m))]
    >>> linearised = ca.Function("linearised", own, everything)
    >>> t, x, m, p = own = [ca.MX.sym(name) for name in "txmp"]
    >>> newton = ca.Function("newton", own, [x - flow(*own) / by_u(*own)[0]])
    >>> found = shared({"linearised": linearised, "newton": newton}, flow, by_u)
    >>> found["newton"](0, 2, 3, 1), newton(0, 2, 3, 1)
    (DM(0.333333), DM(0.333333))
    """
    if "linearised" not in functions:
        return dict(functions)
    sharing = _Sharing(functions["linearised"], flow, by_u)
    return {key: sharing.rewritten(function) for key, function in functions.items()}


class _Sharing:
    def __init__(self, linearised: ca.Function, flow: ca.Function, by_u: ca.Function) -> None:
        self._linearised, self._flow, self._by_u = linearised, flow.__hash__(), by_u.__hash__()
        self._known: dict[int, ca.Function] = {}

    def rewritten(self, function: ca.Function) -> ca.Function:
        """Return a function with its calls rewritten; the same function if there are none to rewrite."""
        if function.__hash__() not in self._known:
            self._known[function.__hash__()] = self._rewrite(function) if function.is_a("MXFunction") else function
        return self._known[function.__hash__()]

    def _rewrite(self, function: ca.Function) -> ca.Function:
        inputs = [ca.MX.sym(function.name_in(i), function.sparsity_in(i)) for i in range(function.n_in())]
        values = function.call(inputs, True, False)
        found = ca.Function(function.name(), inputs, values)
        further = [ca.MX.sym("c", self._linearised.size1_in(4))] if self._linearised.n_in() > 4 else []
        old, new = list[ca.MX](), list[ca.MX]()
        derivatives: dict[tuple[int, ...], tuple[list[ca.MX], list[ca.MX]]] = {}
        for k in range(found.n_instructions()):
            if found.instruction_id(k) != ca.OP_CALL:
                continue
            call = found.instruction_MX(k)
            own, given = call.which_function(), [call.dep(i) for i in range(call.n_dep())]
            kind, place = own.__hash__(), tuple(v.__hash__() for v in given)
            there = ca.graph_substitute(given, old, new) if old else given
            if kind in (self._flow, self._by_u):
                if place not in derivatives:
                    f, _, by_x, by_p, by_m, *_ = self._linearised.call([*there, *further], False, True)
                    derivatives[place] = [f], [ca.horzcat(by_x, by_m, by_p, ca.MX(f.numel(), 1))]
                results = derivatives[place][kind == self._by_u]
            elif (other := self.rewritten(own)).__hash__() != kind:
                results = other.call([*there, *further], False, True)
            else:
                continue
            old += [call.get_output(i) for i in range(own.n_out())]
            new += results
        if not old:
            return function
        return ca.Function(function.name(), [*inputs, *further], ca.graph_substitute(values, old, new))
