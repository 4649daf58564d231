"""The functions of one transition: trigger, jump and their derivatives."""

from __future__ import annotations

from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.codegen import Kernel
from dae_hybrid.errors import ModelError
from dae_hybrid.lowering import ModeLowering, Symbols, symbols_for
from dae_hybrid.mode_build import ModeBuilder, term_sizes
from dae_hybrid.model import HybridModel, Transition
from dae_hybrid.transition import TransitionMap

CLOCK = 2  # (start time, count)


def build_transition(
    model: HybridModel,
    transition: Transition,
    index: int,
    mode_index: dict[str, int],
    lowerings: dict[str, ModeLowering],
    builders: list[ModeBuilder],
) -> TransitionMap:
    """One transition of the built system; see `TransitionMap` for its kernels."""
    name = transition.name
    source = lowerings[transition.source.name]
    kind = "guard" if transition.guard is not None else "at" if transition.at is not None else "every"
    clock = ca.MX.sym("clock", CLOCK)
    schedule = {"guard": ca.MX(0), "at": transition.at, "every": None}[kind]
    if transition.every is not None:
        schedule = clock[0] + clock[1] * transition.every
    if kind != "guard":
        check_parameters_only(model, f"{kind} of transition '{name}'", schedule, clock)
    guard = transition.guard if transition.guard is not None else model.time - schedule
    trigger = source.lower("trigger", [(f"trigger of transition '{name}'", guard)], [clock])
    kernels: dict[str, Kernel] = {}
    s = symbols_for([trigger], source.n, builders[0].nm, builders[0].np)
    c = s.kind.sym("clock", CLOCK)
    h = trigger(*s.point, c)
    kernels["trigger"] = Kernel(ca.Function("trigger", [*s.point, c], [h, ca.densify(ca.jacobian(h, s.u))]), [1])
    if kind != "guard":
        kernels["time"] = Kernel(of_parameters(model, "time", [ca.densify(ca.MX(schedule))], [clock]))
    if transition.target is not None:
        target = builders[mode_index[transition.target.name]]
        kernels |= _jump_kernels(model, transition, source, target)
    return TransitionMap(
        name=name,
        index=index,
        source=mode_index[transition.source.name],
        target=None if transition.target is None else mode_index[transition.target.name],
        direction=transition.direction,
        on_entry=transition.on_entry,
        kind=kind,
        kernels=kernels,
    )


def _jump_kernels(
    model: HybridModel, transition: Transition, source: ModeLowering, target: ModeBuilder
) -> dict[str, Kernel]:
    """`jump`, `after` and `linear` of `TransitionMap`."""
    name, declared = transition.name, model.declarations
    has = {d.name for d in source.variables}
    for key in transition.reset:
        if key not in target.lowering.differential:
            raise ModelError(
                f"The reset gives a value to '{key}', which the target mode '{target.lowering.mode.name}' does not have.",
                transition=name,
                variables=[key],
                remedy=f"States of the target: {', '.join(target.lowering.differential.names)}.",
            )
    states, starts = [], []
    for d in target.lowering.variables:
        if d.kind == "algebraic":
            starts.append((f"start of '{d.name}'", d.symbol if d.name in has else ca.MX(ca.DM(d.value))))
        elif d.name in transition.reset:
            states.append((f"reset of '{d.name}'", transition.reset[d.name]))
        elif d.name in has:
            states.append((f"value of '{d.name}'", d.symbol))
        else:
            raise ModelError(
                f"State '{d.name}' of the target mode has no value: the source mode does not have it.",
                transition=name,
                variables=[d.name],
                remedy="Give it one in reset=.",
            )
    posts = [model.posts.setdefault(d.name, ca.MX.sym(f"post({d.name})", d.size)) for d in target.lowering.variables]
    own = {d.name for d in target.lowering.variables}
    updates = []
    for d in model.of_kind("memory"):
        if d.of is not None and d.of.name in own:
            updates.append((f"memory '{d.name}'", model.posts[d.of.name]))
        else:
            updates.append((f"memory update of '{d.name}'", transition.memory.get(d.name, declared[d.name].symbol)))
    y_f = source.lower("jump_y", states)
    z_f = source.lower("jump_z", starts or [("none", ca.MX(0, 1))])
    m_f = source.lower("jump_m", updates or [("none", ca.MX(0, 1))], posts)
    s = symbols_for([y_f, z_f, m_f, target.flow], source.n, target.nm, target.np)
    after = s.kind.sym("after", target.lowering.n)
    m_after = s.kind.sym("m_after", target.nm)
    pieces = list(ca.vertsplit(after, [0, *np.cumsum([d.size for d in target.lowering.variables]).tolist()]))
    y_new, z_new = ca.vertcat(*y_f.call(list(s.point))), ca.vertcat(*z_f.call(list(s.point)))
    m_new = ca.vertcat(*m_f.call([*s.point, *pieces]))
    joint = Symbols(s.kind, s.t, after, s.xdot, m_after, s.p)
    k = target.algebraic_part(joint)
    k_u = ca.jacobian(k, joint.u)
    ny, n = target.ny, target.lowering.n
    m_z = ca.jacobian(m_new, after[ny:])
    k_z, k_m = k_u[:, ny:n], k_u[:, n : n + target.nm]
    at_new = ca.Function(
        "at_new",
        [*s.point, after, m_after],
        [k, k_z + k_m @ m_z, ca.fabs(k_z) + ca.fabs(k_m) @ ca.fabs(m_z), term_sizes(k, joint.u)],
    )
    results = at_new.call([*s.point, after, m_new])
    by_u = [ca.jacobian(y_new, s.u), ca.jacobian(m_new, s.u), ca.jacobian(m_new, after), ca.jacobian(z_new, s.u), k_u]
    t, x, m, p = s.point
    return {
        "jump": Kernel(_jump(s, y_new, z_new, m_new, after, results, target)),
        "after": Kernel(ca.Function("after", [t, x, m, after, p], [ca.densify(e) for e in (m_new, *results)]), [2, 3]),
        "linear": Kernel(ca.Function("linear", [t, x, m, after, m_after, p], [ca.densify(e) for e in by_u]), range(5)),
    }


def _jump(s: Symbols, y: Any, z: Any, m: Any, after: Any, results: list[Any], target: ModeBuilder) -> ca.Function:
    """The whole arrival in one call, for the usual case that continuous algebraic variables are consistent."""
    values = ca.Function("values", [*s.point, after], [m, results[0], results[3]])
    start = ca.vertcat(y, z)
    memory, k, k_size = values(*s.point, start)
    entry = target.entry()
    kind = ca.SX if s.kind is ca.SX and entry.is_a("SXFunction") else ca.MX
    arrive = ca.Function("arrive", list(s.point), [start, memory, k, k_size])
    t, x, m_before, p = (kind.sym(n, v.numel()) for n, v in zip("txmp", s.point, strict=True))
    x_new, m_new, k, k_size = arrive(t, x, m_before, p)
    return ca.Function(
        "jump", [t, x, m_before, p], [ca.densify(e) for e in (x_new, m_new, k, k_size, *entry(t, x_new, m_new, p))]
    )


def check_parameters_only(model: HybridModel, what: str, expression: Any, *more: ca.MX) -> None:
    """Refuse an expression that depends on anything but parameters."""
    allowed = {d.symbol.__hash__() for d in model.of_kind("parameter")} | {s.__hash__() for s in more}
    wrong = [s.name() for s in ca.symvar(ca.MX(expression)) if s.__hash__() not in allowed]
    if wrong:
        raise ModelError(
            f"{what} uses {', '.join(wrong)}; it may depend on parameters only.",
            variables=wrong,
            remedy="Declare what it needs with m.parameter; for a condition on variables use guard=.",
        )


def of_parameters(model: HybridModel, name: str, outputs: list[Any], extra: list[ca.MX]) -> ca.Function:
    """A function of (p, *extra)."""
    parameters = model.of_kind("parameter")
    named = ca.Function(name, [*(d.symbol for d in parameters), *extra], outputs)
    p = ca.MX.sym("p", sum(d.size for d in parameters))
    more = [ca.MX.sym(f"extra{i}", e.numel()) for i, e in enumerate(extra)]
    pieces = ca.vertsplit(p, [0, *np.cumsum([d.size for d in parameters]).tolist()]) if parameters else []
    return ca.Function(name, [p, *more], [ca.densify(o) for o in named.call([*pieces, *more])])
