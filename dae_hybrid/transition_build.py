"""The functions of one transition: trigger, jump and their derivatives."""

from __future__ import annotations

from typing import Any

import casadi as ca

from dae_hybrid.codegen import Kernel
from dae_hybrid.declarations import Transition
from dae_hybrid.errors import ModelError
from dae_hybrid.lowering import ModeLowering, Symbols, kind_for, split, symbols_for
from dae_hybrid.mode_build import ModeBuilder, term_sizes
from dae_hybrid.model import HybridModel
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
    schedule = ca.MX(0) if transition.at is None else transition.at
    if transition.every is not None:
        schedule = clock[0] + clock[1] * transition.every
    if kind != "guard":
        check_parameters_only(model, f"{kind} of transition '{name}'", schedule, clock)
    guard = transition.guard if transition.guard is not None else model.time - schedule
    trigger = source.lower("trigger", [(f"trigger of transition '{name}'", guard)], [clock])
    source_builder = builders[mode_index[transition.source.name]]
    target = None if transition.target is None else builders[mode_index[transition.target.name]]
    jump = None if target is None else _Jump(model, transition, source, target)
    kernels = {"tangent": _tangent(trigger, source_builder, jump)}
    if kind != "guard":
        kernels["time"] = Kernel(of_parameters(model, "time", [ca.densify(schedule)], [clock]))
    if jump is not None:
        kernels |= jump.kernels()
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


class _Jump:
    """What a transition does, as functions: y+ and z+ (continuous) of (t, x-, m-, p); m+ of these and x+."""

    def __init__(self, model: HybridModel, transition: Transition, source: ModeLowering, target: ModeBuilder) -> None:
        self.source, self.target = source, target
        name, own = transition.name, {d.name for d in target.lowering.variables}
        has = {d.name for d in source.variables}
        for key in transition.reset:
            if key not in target.lowering.differential:
                raise ModelError(
                    f"The reset gives a value to '{key}', which the target mode "
                    f"'{target.lowering.mode.name}' does not have.",
                    transition=name,
                    variables=[key],
                    remedy=f"States of the target: {', '.join(target.lowering.differential.names)}.",
                )
        states, starts = [], []
        for d in target.lowering.variables:
            if d.kind == "algebraic":
                starts.append((f"start of '{d.name}'", d.symbol if d.name in has else ca.MX(ca.DM(d.start))))
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
        posts = [
            model.posts.setdefault(d.name, ca.MX.sym(f"post({d.name})", d.size)) for d in target.lowering.variables
        ]
        updates = []
        for d in model.of_kind("memory"):
            if d.of is not None and d.of.name in own:
                updates.append((f"memory '{d.name}'", model.posts[d.of.name]))
            else:
                updates.append((f"memory update of '{d.name}'", transition.memory.get(d.name, d.symbol)))
        none = [("none", ca.MX(0, 1))]
        self.y = source.lower("jump_y", states)
        self.z = source.lower("jump_z", starts or none)
        self.m = source.lower("jump_m", updates or none, posts)

    def state(self, s: Symbols) -> tuple[Any, Any]:
        """y+ and continuous z+."""
        return ca.vertcat(*self.y.call(list(s.point))), ca.vertcat(*self.z.call(list(s.point)))

    def memory(self, s: Symbols, after: Any) -> Any:
        """m+."""
        sizes = [d.size for d in self.target.lowering.variables]
        return ca.vertcat(*self.m.call([*s.point, *split(after, sizes)]))

    def symbols(self) -> tuple[Symbols, Any, Any]:
        """Flat symbols before, and of x+ and m+."""
        s = symbols_for([self.y, self.z, self.m, self.target.flow], self.source.n, self.target.nm, self.target.np)
        return s, s.kind.sym("after", self.target.lowering.n), s.kind.sym("m_after", self.target.nm)

    def closure(self, s: Symbols, after: Any, m_after: Any) -> list[Any]:
        """k+, dk+/dz+ with m+ following, and the sizes of the terms of both."""
        target = self.target
        joint = Symbols(s.kind, s.t, after, s.xdot, m_after, s.p)
        k = target.algebraic_part(joint)
        k_u = ca.jacobian(k, joint.u)
        n = target.lowering.n
        k_z, k_m = k_u[:, target.ny : n], k_u[:, n : n + target.nm]
        m_z = ca.jacobian(self.memory(s, after), after)[:, target.ny :]
        size = ca.fabs(k_z) + ca.fabs(k_m) @ ca.fabs(m_z)
        return [k, k_z + k_m @ m_z, size, term_sizes(k, joint.u), k_u]

    def kernels(self) -> dict[str, Kernel]:
        """`jump`, `after` and `linear` of `TransitionMap`."""
        s, after, m_after = self.symbols()
        t, x, m, p = s.point
        y_new, z_new = self.state(s)
        m_new = self.memory(s, after)
        *closure, k_u = self.closure(s, after, m_after)
        at_new = ca.Function("at_new", [*s.point, after, m_after], closure)
        results = at_new.call([*s.point, after, m_new])
        by_u = [
            ca.jacobian(y_new, s.u),
            ca.jacobian(m_new, s.u),
            ca.jacobian(m_new, after),
            ca.jacobian(z_new, s.u),
            k_u,
        ]
        return {
            "jump": Kernel(self._arrival(s, after, [m_new, results[0], results[3]])),
            "after": Kernel(
                ca.Function("after", [t, x, m, after, p], [ca.densify(e) for e in (m_new, *results)]), [2, 3]
            ),
            "linear": Kernel(
                ca.Function("linear", [t, x, m, after, m_after, p], [ca.densify(e) for e in by_u]), range(5)
            ),
        }

    def _arrival(self, s: Symbols, after: Any, at_after: list[Any]) -> ca.Function:
        """The whole arrival in one call, for the usual case that continuous algebraic variables are consistent."""
        values = ca.Function("values", [*s.point, after], at_after)
        start = ca.vertcat(*self.state(s))
        arrive = ca.Function("arrive", list(s.point), [start, *values(*s.point, start)])
        entry = self.target.entry()
        kind = kind_for([arrive, entry])
        t, x, m, p = (kind.sym(n, v.numel()) for n, v in zip("txmp", s.point, strict=True))
        x_new, m_new, k, k_size = arrive(t, x, m, p)
        return ca.Function(
            "jump", [t, x, m, p], [ca.densify(e) for e in (x_new, m_new, k, k_size, *entry(t, x_new, m_new, p))]
        )


def _tangent(trigger: ca.Function, source: ModeBuilder, jump: _Jump | None) -> Kernel:
    """`tangent` of `TransitionMap`."""
    functions = [trigger, source.flow, source.integrands]
    if jump is not None:
        functions += [jump.y, jump.z, jump.m, jump.target.flow, jump.target.integrands]
    s = symbols_for(functions, source.lowering.n, source.nm, source.np)
    s = source.solvable(s)
    kind, n_after = s.kind, source.lowering.n if jump is None else jump.target.lowering.n
    after, m_after, clock = kind.sym("after", n_after), kind.sym("m_after", source.nm), kind.sym("clock", CLOCK)
    by_w = source.chain(s)
    h = trigger(*s.point, clock)
    flow_minus = ca.vertcat(source.flow(*s.point)[: source.ny, :], kind.zeros(source.nm))
    n_w = source.ny + source.nm
    g_minus = source.integrands(*s.point)
    if jump is None:
        derivative = ca.horzcat(kind.eye(n_w), kind.zeros(n_w, source.np + 1))
        arrival = [kind.zeros(n_w), kind.zeros(g_minus.numel()), kind(0, 0), kind(0, 0)]
    else:
        target = jump.target
        y_new, z_new = jump.state(s)
        m_new = jump.memory(s, after)
        dy, dz = ca.jacobian(y_new, s.u) @ by_w, ca.jacobian(z_new, s.u) @ by_w
        m_x = ca.jacobian(m_new, after)
        dm = ca.jacobian(m_new, s.u) @ by_w + m_x[:, : target.ny] @ dy + m_x[:, target.ny :] @ dz
        derivative = ca.vertcat(dy, dm)
        point = (s.t, after, m_after, s.p)
        _, k_z, k_z_size, _, _ = jump.closure(s, after, m_after)
        flow_plus = ca.vertcat(target.flow(*point)[: target.ny, :], kind.zeros(target.nm))
        arrival = [flow_plus, target.integrands(*point), k_z, k_z_size]
    outputs = [ca.jacobian(h, s.u) @ by_w, derivative, flow_minus, g_minus, *arrival]
    function = ca.Function("tangent", [s.t, s.x, s.m, after, m_after, s.p, clock], [ca.densify(o) for o in outputs])
    return Kernel(function, [0, 1, 6, 7])


def check_parameters_only(model: HybridModel, what: str, expression: Any, *more: ca.MX) -> None:
    """Refuse an expression that depends on anything but parameters."""
    allowed = {d.symbol.__hash__() for d in model.of_kind("parameter")} | {s.__hash__() for s in more}
    own = {d.symbol.__hash__() for d in model.declarations.values()} | {model.time.__hash__()}
    wrong = [s for s in ca.symvar(ca.MX(expression)) if s.__hash__() not in allowed]
    names = [s.name() for s in wrong]
    if any(s.__hash__() not in own for s in wrong):
        raise ModelError(
            f"{what} uses {', '.join(names)}, which model '{model.name}' does not declare.",
            variables=names,
            remedy="Use the symbols of this model.",
        )
    if wrong:
        raise ModelError(
            f"{what} uses {', '.join(names)}; it may depend on parameters only.",
            variables=names,
            remedy="Declare what it needs with m.parameter; for a condition on variables use guard=.",
        )


def of_parameters(model: HybridModel, name: str, outputs: list[Any], extra: list[ca.MX]) -> ca.Function:
    """A function of (p, *extra)."""
    parameters = model.of_kind("parameter")
    named = ca.Function(name, [*(d.symbol for d in parameters), *extra], outputs)
    p = ca.MX.sym("p", sum(d.size for d in parameters))
    more = [ca.MX.sym(f"extra{i}", e.numel()) for i, e in enumerate(extra)]
    pieces = split(p, [d.size for d in parameters])
    return ca.Function(name, [p, *more], [ca.densify(o) for o in named.call([*pieces, *more])])
