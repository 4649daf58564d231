"""Build the functions of one transition: trigger, jump and their derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import casadi as ca

from dae_hybrid.codegen.casadi_tools import dense
from dae_hybrid.codegen.kernels import Kernel
from dae_hybrid.compile.lowering import split, symbols_for
from dae_hybrid.compile.mode_system import ModeBuilder
from dae_hybrid.compile.reset_functions import Jump, cost_kernel, event_costs
from dae_hybrid.conditions.branches import Branches
from dae_hybrid.errors import ModelError
from dae_hybrid.layout import Layout
from dae_hybrid.numerics.matrices import MAX_DENSE_ROWS, compact
from dae_hybrid.statement.declarations import Transition
from dae_hybrid.statement.model import HybridModel
from dae_hybrid.statement.triggers import TimeTrigger
from dae_hybrid.system.transition_map import CLOCK, TransitionMap

#: longest quotation of a guard, in characters
MAX_GUARD_TEXT = 80


def parameters_of(kernel: str) -> int:
    """Index of the parameter input, with numbers appended, of a transition's kernel."""
    return {"time": 0, "tangent": 5, "slopes": 5, "after": 4, "linear": 4, "cost": 4}.get(kernel, 3)


def as_stated(model: HybridModel, transition: Transition, index: int, mode_index: dict[str, int]) -> dict[str, Any]:
    """Return the fields of `TransitionMap` that are not functions."""
    return {
        "name": transition.statement or transition.name,
        "index": index,
        "source": mode_index[transition.source.name],
        "target": None if transition.target is None else mode_index[transition.target.name],
        "direction": transition.direction,
        "on_entry": transition.on_entry,
        "surface": _text(transition.guard),
        "refusal": transition.refusal,
        "bound": transition.bound,
        "becomes": transition.becomes,
        "jumps": transition.jumps,
        "relation": transition.relation,
        "own_zero_side": side if isinstance(side := transition.zero_side, int) else 0,
        "shared": transition.shared,
        "overdue": transition.overdue,
        "keeps": _keeps_its_guard(model, transition),
        "clock": _clock(model, transition),
    }


def _clock(model: HybridModel, transition: Transition) -> str:
    """Text that periodic transitions share if they tick together; empty for others."""
    if not transition.trigger.is_periodic:
        return ""
    parameters = [d.symbol for d in model.of_kind("parameter")]
    try:
        period = ca.Function("period", parameters, [ca.vec(transition.trigger.expression)])
    except RuntimeError:  # depends on something else, which `check_parameters_only` reports
        return ""
    return str(period.serialize())


def build_transition(
    model: HybridModel,
    transition: Transition,
    index: int,
    mode_index: dict[str, int],
    source_builder: ModeBuilder,
    target: ModeBuilder | None,
) -> TransitionMap:
    """Build one transition; see `TransitionMap` for its kernels."""
    name, source = transition.name, source_builder.lowering
    trigger, clock = transition.trigger, ca.MX.sym("clock", CLOCK)
    if isinstance(trigger, TimeTrigger):
        what = f"{trigger.argument} of transition '{name}'"
        check_parameters_only(model, what, trigger.schedule(clock), clock, *source.numbers)
    residual = source.lower(
        "trigger", [(f"trigger of transition '{name}'", trigger.residual(model.time, clock))], [clock]
    )
    jump = None if target is None else Jump(model, transition, source, target)
    kernels = _tangent(residual, source_builder, jump)
    if jump is None and (cost := _costs_at_the_end(model, transition, source_builder)) is not None:
        kernels["cost"] = cost
    if isinstance(trigger, TimeTrigger):
        kernels["time"] = Kernel(
            of_parameters(model, "time", [dense(trigger.schedule(clock))], [clock], source.numbers)
        )
    if jump is not None:
        kernels |= jump.kernels()
    if transition.when is not None and not transition.skips:
        kernels["when"] = Kernel(source.lower("when", [(f"when of transition '{name}'", transition.when)]))
    if transition.when is not None:
        permit = Branches(f"when of transition '{name}'", [transition.when], source.lower, frozenset())
        kernels |= {"sides": permit.margins} if permit else {}
    if not isinstance(side := transition.zero_side, int):
        kernels["zero side"] = Kernel(source.lower("zero_side", [(f"guard of transition '{name}'", side)]))
    if transition.priority is not None and not transition.skips:
        priority = source.lower("priority", [(f"priority of transition '{name}'", transition.priority)])
        s = symbols_for([priority], source.n, source_builder.nm, source_builder.np)
        (value,) = priority.call(list(s.point))
        outputs = [dense(v) for v in (value, ca.jacobian(value, s.u))]
        kernels["priority"] = Kernel(ca.Function("priority", list(s.point), outputs), [1])
    return TransitionMap(
        **as_stated(model, transition, index, mode_index),
        trigger=trigger,
        kernels=kernels,
        free=() if jump is None else tuple(jump.free),
        unknowns=Layout.of(() if jump is None else ((d.name, d.size) for d in jump.unknowns)),
        labels=() if jump is None else jump.labels,
        simple=jump is None or jump.simple,
        helping=() if jump is None else jump.helping,
        equations=() if jump is None else jump.equation_labels,
        conditions=() if jump is None else jump.condition_labels,
        movable=_is_movable(residual, source_builder.np),
        projects=jump is not None and bool(transition.project),
    )


def _keeps_its_guard(model: HybridModel, transition: Transition) -> bool:
    """Whether a guard is independent of everything that its transition changes."""
    if transition.guard is None or transition.source is not transition.target or transition.equations.numel():
        return False
    changed = {*transition.reset, *transition.memory, *(d.name for d in transition.project)}
    kept = [
        d.symbol for d in model.declarations.values()
        if d.kind == "parameter" or (d.kind in ("differential", "memory") and d.of is None and d.name not in changed)
    ]  # fmt: skip
    known = {s.__hash__() for s in (model.time, *kept)}
    return all(s.__hash__() in known for s in ca.symvar(transition.guard))


def _text(guard: ca.MX | None) -> str:
    """Text of a guard, shortened to fit into a message."""
    text = "" if guard is None else str(guard)
    return text if len(text) <= MAX_GUARD_TEXT else f"{text[:MAX_GUARD_TEXT]}..."


def _is_movable(trigger: ca.Function, n_parameters: int) -> bool:
    """Whether the time of a transition depends on anything but time and constants."""
    by_p = any(column < n_parameters for column in trigger.jac_sparsity(0, 3).get_col())
    return by_p or any(trigger.jac_sparsity(0, i).nnz() for i in (1, 2))


def _costs_at_the_end(model: HybridModel, transition: Transition, source: ModeBuilder) -> Kernel | None:
    """Return `cost` of a transition that ends the run, in pre-transition values."""
    rows = event_costs(model, transition.name)
    if not rows:
        return None
    function = source.lowering.lower("cost", rows)
    s = symbols_for([function], source.lowering.n, source.nm, source.np)
    return cost_kernel(s, s.kind.sym("xi", 0), ca.vertcat(*function.call(list(s.point))))


def _tangent(trigger: ca.Function, source: ModeBuilder, jump: Jump | None) -> dict[str, Kernel]:
    """Return `tangent` and `slopes` of `TransitionMap`."""
    functions = [trigger, source.flow, source.integrands]
    if jump is not None:
        functions += [jump.given, jump.z_before, jump.u, jump.m, jump.t, jump.metric]
        functions += [jump.target.flow, jump.target.integrands]
        functions.append(jump.target.invariants)
    s = symbols_for(functions, source.lowering.n, source.nm, source.np)
    s = source.solvable(s)
    kind, n_after = s.kind, source.lowering.n if jump is None else jump.target.lowering.n
    after, m_after, clock = kind.sym("after", n_after), kind.sym("m_after", source.nm), kind.sym("clock", CLOCK)
    # with many algebraic variables, derivatives stay by u: only products with their chain are computed
    by_w = source.chain(s) if source.nz <= MAX_DENSE_ROWS else kind.eye(s.u.numel())
    h = trigger(*s.point, clock)
    flow_minus = ca.vertcat(source.flow(*s.point)[: source.ny, :], kind.zeros(source.nm))
    n_w = source.ny + source.nm
    g_minus = source.integrands(*s.point)
    if jump is None:
        derivative = ca.horzcat(kind.eye(n_w), kind.zeros(n_w, source.np + 1))
        arrival = [kind.zeros(n_w), kind.zeros(g_minus.numel()), kind(0, 0), kind(0, 0)]
    else:
        target = jump.target
        point = (s.t, after, m_after, s.p)
        flow_plus = ca.vertcat(target.flow(*point)[: target.ny, :], kind.zeros(target.nm))
        derivative, k_z, k_z_size = kind(0, 0), kind(0, 0), kind(0, 0)
        if jump.simple:  # xi is z+, which is continuous where the equations leave it open
            xi = kind.sym("z", target.nz)
            y_new, before = jump.values_given(s), ca.vertcat(*jump.z_before.call(list(s.point)))
            m_new = jump.memory(s, xi)
            z = after[target.ny :, :]
            _, k_z, k_z_size = (ca.substitute(v, xi, z) for v in jump.phi_by_xi(s, xi, m_after))
            dm = ca.substitute(ca.jacobian(m_new, s.u) + ca.jacobian(m_new, xi) @ ca.jacobian(before, s.u), xi, z)
            derivative = ca.vertcat(ca.jacobian(y_new, s.u) @ by_w, dm @ by_w)
        arrival = [flow_plus, target.integrands(*point), k_z, k_z_size]
    outputs = [ca.jacobian(h, s.u) @ by_w, derivative, flow_minus, g_minus, *arrival]
    inputs = [s.t, s.x, s.m, after, m_after, s.p, clock]
    slopes = Kernel(ca.Function("slopes", inputs, [dense(outputs[0]), outputs[1]]), [0, 1])
    outputs = [compact(o) if i in (1, 6, 7) else dense(o) for i, o in enumerate(outputs)]
    return {"tangent": Kernel(ca.Function("tangent", inputs, outputs), [0, 1, 6, 7]), "slopes": slopes}


def check_parameters_only(model: HybridModel, what: str, expression: Any, *more: ca.MX) -> None:
    """Raise a `ModelError` if an expression depends on anything but parameters."""
    allowed = {d.symbol.__hash__() for d in model.of_kind("parameter")} | {s.__hash__() for s in more}
    wrong = [s for s in ca.symvar(ca.MX(expression)) if s.__hash__() not in allowed]
    if not wrong:
        return
    own = {d.symbol.__hash__() for d in model.declarations.values()} | {model.time.__hash__()}
    names = [s.name() for s in wrong]
    if any(s.__hash__() not in own for s in wrong):
        raise ModelError(
            f"{what} uses {', '.join(names)}, which model '{model.name}' does not declare.",
            variables=names,
            remedy="Use the symbols of this model.",
        )
    raise ModelError(
        f"{what} uses {', '.join(names)}; it may depend on parameters only.",
        variables=names,
        remedy="Declare what it needs with m.parameter; for a condition on variables use guard=.",
    )


def of_parameters(
    model: HybridModel, name: str, outputs: list[Any], extra: list[ca.MX], numbers: Sequence[ca.MX] = ()
) -> ca.Function:
    """Return a function of (p, *extra); `numbers` follow the parameters in p."""
    known = [*(d.symbol for d in model.of_kind("parameter")), *numbers]
    named = ca.Function(name, [*known, *extra], outputs)
    p = ca.MX.sym("p", sum(symbol.numel() for symbol in known))
    more = [ca.MX.sym(f"extra{i}", e.numel()) for i, e in enumerate(extra)]
    pieces = split(p, [symbol.numel() for symbol in known])
    return ca.Function(name, [p, *more], [dense(o) for o in named.call([*pieces, *more])])
