"""Which relations of a model are no events, and where they are evaluated; see `dae_hybrid.branches`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.branches import Branches, BranchTable
from dae_hybrid.declarations import Transition
from dae_hybrid.discontinuities import margin
from dae_hybrid.jump import Jump, event_costs
from dae_hybrid.mode_build import ModeBuilder
from dae_hybrid.model import HybridModel
from dae_hybrid.records import EventRecord
from dae_hybrid.resting import Kinks


def branch_table(stated: HybridModel, model: HybridModel, builders: Sequence[ModeBuilder]) -> BranchTable:
    """The table of a model as it was stated; in `model` its relations are events."""
    fixed, time = _fixed(stated, model), {stated.time.__hash__()}
    moving = {d.symbol.__hash__() for d in stated.declarations.values() if d.kind in ("differential", "algebraic")}
    moving |= time | {rate.__hash__() for rate in stated.rates.values()}
    functionals = stated.functionals.values()

    transitions = {}
    for i, name in enumerate(model.transitions):
        if name in stated.transitions and (found := _of_transition(stated, model, name, builders, fixed)) is not None:
            transitions[i] = found
    measured = [(f.name, when, value) for f in functionals for when, value in f.at_times]
    measurements = {
        i: _measured(
            f"a measurement of functional '{name}'", value, builders, fixed if ca.symvar(when) else fixed | time
        )
        for i, (name, when, value) in enumerate(measured)
        if Branches("", [value], builders[0].lowering.lower, fixed | time)
    }
    ends, constants, equations = {}, {}, {}
    at_end = fixed if any(t.target is None for t in stated.transitions.values()) else fixed | time
    for builder in builders:
        mode, lower = builder.lowering.mode, builder.lowering.lower
        terminal = [f.terminal for f in functionals if f.terminal is not None]
        ends[builder.index] = Branches("a terminal value", terminal, lower, at_end)
        parts = [mode.everything, *(f.integrand for f in functionals if f.integrand is not None)]
        outgoing = {name: t for name, t in model.transitions.items() if t.source.name == mode.name}
        triggers = [trigger for t in outgoing.values() for trigger in (t.at, t.every) if trigger is not None]
        triggers += [guard for name in outgoing if (guard := _guard(stated, model, name, moving)) is not None]
        parts += [when for when in (*triggers, *(when for _, when, _ in measured)) if ca.symvar(when)]
        constants[builder.index] = Branches(f"mode '{mode.name}'", parts, lower, fixed, moving)
        unlifted = stated.modes[mode.name]
        equations[builder.index] = Kinks(
            f"mode '{mode.name}'",
            [
                unlifted.ode[name] if name in unlifted.ode else model.rates[name]
                for name in builder.lowering.differential.names
            ],
            [ca.MX.zeros(f.size) if f.integrand is None else f.integrand for f in functionals],
            [unlifted.residual, unlifted.algebraic, unlifted.constraint],
            lower,
            moving,
        )
    numbers = {name: i for i, name in enumerate(model.transitions)}
    lowerings = {b.lowering.mode.name: b.lowering.lower for b in builders}
    guards = {
        numbers[name]: Branches(f"the guard of '{name}'", [guard], lowerings[t.source.name], fixed, moving, kinks=True)
        for name, t in model.transitions.items()
        if (guard := _guard(stated, model, name, moving)) is not None
    }
    start = None
    if stated.start is not None:
        own = stated.start
        values = [*own.values.values(), own.equations]
        values += [ca.MX(d.initial) for d in stated.of_kind("memory") if d.initial is not None]
        values += [d.signal.values for d in stated.of_kind("memory") if d.signal is not None]
        builder = next(b for b in builders if b.lowering.mode.name == own.mode.name)
        start = Branches("the initial values", values, builder.lowering.lower, fixed | time)
    return BranchTable(
        transitions,
        measurements,
        {i: b for i, b in ends.items() if b},
        {i: b for i, b in constants.items() if b},
        start if start else None,
        {i: b for i, b in guards.items() if b},
        equations,
    )


def _guard(stated: HybridModel, model: HybridModel, name: str, moving: set[int]) -> ca.MX | None:
    """The guard of a transition with its kinks, of a condition how far it is from becoming true."""
    transition = model.transitions[name]
    if transition.relation is not None:
        return transition.relation.stated
    guard = stated.transitions[name].guard
    found = None if guard is None else margin(guard, moving)
    return guard if found is None else found


def _measured(what: str, value: ca.MX, builders: Sequence[ModeBuilder], fixed: set[int]) -> Callable[[int], Branches]:
    return lambda mode: Branches(what, [value], builders[mode].lowering.lower, fixed)


def _fixed(stated: HybridModel, model: HybridModel) -> set[int]:
    """Memory that has no derivatives: counters, flags, and what relations have become."""
    memory = {d.name: d for d in model.of_kind("memory") if d.signal is None and d.of is None}
    fixed = {name for name, d in memory.items() if name not in stated.declarations or not ca.symvar(ca.MX(d.initial))}
    while True:
        known = {memory[name].symbol.__hash__() for name in fixed}
        loose = {
            name
            for t in stated.transitions.values()
            for name, value in t.memory.items()
            if name in fixed and any(s.__hash__() not in known for s in ca.symvar(value))
        }
        if not loose:
            return known
        fixed -= loose


def _of_transition(
    stated: HybridModel, model: HybridModel, name: str, builders: Sequence[ModeBuilder], fixed: set[int]
) -> tuple[Branches, Callable[[EventRecord], list[Any]]] | None:
    transition: Transition = stated.transitions[name]
    values = [*transition.reset.values(), *transition.memory.values(), transition.equations]
    values += [value for _, value in event_costs(stated, name)]
    if not Branches("", values, builders[0].lowering.lower, fixed):
        return None
    modes = {b.lowering.mode.name: b for b in builders}
    source, target, jump = modes[transition.source.name], transition.target, None
    if target is not None:
        jump = Jump(model, model.transitions[name], source.lowering, modes[target.name])
    extra = [] if jump is None else [*jump.posts, *(d.symbol for d in jump.unknowns), *jump.post_rates]

    def lower(what: str, rows: Sequence[tuple[str, ca.MX]]) -> ca.Function:
        return source.lowering.lower(what, rows, extra)

    def more(event: EventRecord) -> list[Any]:
        if jump is None:
            return []
        sizes = [d.size for d in jump.target.lowering.variables]
        layout = jump.target.lowering.differential
        unknowns = [np.atleast_1d(event.unknowns[d.name]) for d in jump.unknowns]
        rates = [event.xdot_plus[layout[n]] for n in jump.rated]
        return [*np.split(event.x_plus, np.cumsum(sizes)[:-1]), *unknowns, *rates]

    return Branches(f"transition '{name}'", values, lower, fixed), more
