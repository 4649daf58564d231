"""Collect the relations that are not events and the places where they are evaluated; see `conditions.branches`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.compile.builders import Builders
from dae_hybrid.compile.lowering import moving_symbols
from dae_hybrid.compile.reset_functions import Jump, event_costs
from dae_hybrid.compile.sliding import BySwitches
from dae_hybrid.conditions.branches import Branches, BranchTable
from dae_hybrid.conditions.resting import Kinks
from dae_hybrid.conditions.slopes import Slopes
from dae_hybrid.port.records import EventRecord
from dae_hybrid.statement.discontinuities import are_smooth, jumps, margin, opaque_calls, unmarked, unsmooth
from dae_hybrid.statement.model import HybridModel
from dae_hybrid.statement.norms import DIVISIONS, norms_as_divisors
from dae_hybrid.system.watched import Watched


def branch_table(stated: HybridModel, model: HybridModel, builders: Builders, by_switches: BySwitches) -> BranchTable:
    """Build the branch table. `stated` is the model as declared; in `model` its relations are events."""
    fixed, time = _fixed(stated, model), {stated.time.__hash__()}
    moving = moving_symbols(stated)
    functionals = stated.functionals.values()

    transitions, permits = {}, set[int]()
    acting = unsmooth({name: _values(stated, name) for name in model.transitions if name in stated.transitions})
    for i, name in enumerate(model.transitions):
        if name in acting and (found := _of_transition(stated, model, name, builders, fixed)) is not None:
            transitions[i] = found
            if _is_permit(stated, name, found[0]):
                permits.add(i)
    # where the motion slides, they have the share of a relation
    at_instants = model.functionals.values()
    measured = [(f.name, when, value) for f in at_instants for when, value in f.at_times]
    evaluated = unsmooth({i: [value] for i, (_, _, value) in enumerate(measured)})
    measurements = {
        i: _measured(
            f"a measurement of functional '{name}'", value, builders, fixed if ca.symvar(when) else fixed | time
        )
        for i, (name, when, value) in enumerate(measured)
        if i in evaluated and Branches("", [value], builders.lowering(0).lower, fixed | time)
    }
    ends, constants, equations, called, slopes, directions, quiet = {}, {}, {}, {}, {}, {}, set[int]()
    at_end = fixed if any(t.target is None for t in stated.transitions.values()) else fixed | time
    terminal = [f.terminal for f in at_instants if f.terminal is not None]
    integrands = [f.integrand for f in functionals if f.integrand is not None]
    measured_when = [when for _, when, _ in measured if not when.is_constant() and ca.symvar(when)]
    for i, name in enumerate(builders.names):
        timed = [t.trigger.expression for t in builders.outgoing[i] if t.trigger.is_timed]
        if builders.unit[i] in quiet and not timed:
            continue  # modes with the same functions have the same relations
        lowering, mode, unlifted = builders.lowering(i), model.modes[name], stated.modes[name]
        guarded = (_guard(stated, model, t.name, moving) for t in builders.outgoing[i])
        triggers = [*timed, *(guard for guard in guarded if guard is not None)]
        parts = [mode.everything, *integrands, *(when for when in triggers if ca.symvar(when)), *measured_when]
        rates = [unlifted.ode[n] if n in unlifted.ode else model.rates[n] for n in lowering.differential.names]
        ends[i] = Branches("a terminal value", terminal, lowering.lower, at_end)
        constants[i] = Branches(f"mode '{name}'", parts, lowering.lower, fixed, moving)
        if builders.is_shared(i) and are_smooth([*terminal, *parts, *rates]):
            quiet.add(builders.unit[i])
        slopes[i] = Slopes(f"mode '{name}'", [unlifted.everything, *integrands], lowering.lower)
        nodes = unmarked([unlifted.everything, *integrands], {ca.OP_CALL, *DIVISIONS})
        if divisors := norms_as_divisors(nodes):
            directions[i] = Watched(divisors, lowering.lower)
        if calls := opaque_calls(nodes):
            called[i] = Watched(calls, lowering.lower)
        equations[i] = Kinks(
            f"mode '{name}'",
            rates,
            [ca.MX.zeros(f.size) if f.integrand is None else f.integrand for f in functionals],
            [unlifted.residual, unlifted.algebraic, unlifted.constraint],
            by_switches,
            lowering.lower,
            moving,
        )
    stated_guards = {name: _guard(stated, model, name, moving) for name in model.transitions}
    guarding = unsmooth({name: [guard] for name, guard in stated_guards.items() if guard is not None})
    guards = {}
    for i, (name, t) in enumerate(model.transitions.items()):
        if name in guarding:
            lower = builders.lowering(builders.index[t.source.name]).lower
            guards[i] = Branches(f"the guard of '{name}'", guarding[name], lower, fixed, moving, kinks=True)
    start = None
    if stated.start is not None:
        own = stated.start
        values = [*own.values.values(), own.equations]
        values += [ca.MX(d.initial) for d in stated.of_kind("memory") if d.initial is not None]
        values += [d.signal.values for d in stated.of_kind("memory") if d.signal is not None]
        lowering = builders.lowering(builders.index[own.mode.name])
        start = Branches("the initial values", values, lowering.lower, fixed | time)
    return BranchTable(
        transitions,
        measurements,
        {i: b for i, b in ends.items() if b},
        {i: b for i, b in constants.items() if b},
        start if start else None,
        {i: b for i, b in guards.items() if b},
        equations,
        called,
        slopes,
        directions,
        frozenset(permits),
    )


def _guard(stated: HybridModel, model: HybridModel, name: str, moving: set[int]) -> ca.MX | None:
    """The guard of a transition with its kinks; for a condition, the margin by which it is false."""
    transition = model.transitions[name]
    if transition.relation is not None:
        return transition.relation.stated
    guard = stated.transitions[name].guard
    found = None if guard is None else margin(guard, moving)
    return guard if found is None else found[0]


def _measured(what: str, value: ca.MX, builders: Builders, fixed: set[int]) -> Callable[[int], Branches]:
    return lambda mode: Branches(what, [value], builders.lowering(mode).lower, fixed)


def _values(stated: HybridModel, name: str) -> list[ca.MX]:
    """The expressions that a transition evaluates."""
    transition = stated.transitions[name]
    values = [*transition.reset.values(), *transition.memory.values(), transition.equations]
    values += [value for value in (transition.when, transition.priority) if value is not None]
    return values + [value for _, value in event_costs(stated, name)]


def _is_permit(stated: HybridModel, name: str, branches: Branches) -> bool:
    """Whether the relations of a transition are those of its condition, and none of them is of fixed symbols."""
    when = stated.transitions[name].when
    if when is None or any(jumps([value]) for value in _values(stated, name) if value is not when):
        return False
    return branches.count == len(jumps([when]))


def _fixed(stated: HybridModel, model: HybridModel) -> set[int]:
    """Memory without derivatives: counters, flags, values of relations."""
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
    stated: HybridModel, model: HybridModel, name: str, builders: Builders, fixed: set[int]
) -> tuple[Branches, Callable[[EventRecord], list[Any]]] | None:
    transition, values = stated.transitions[name], _values(stated, name)
    if not Branches("", values, builders.lowering(0).lower, fixed):
        return None
    source, target, jump = builders.lowering(builders.index[transition.source.name]), transition.target, None
    if target is not None:
        jump = Jump(model, model.transitions[name], source, builders.own(builders.index[target.name]))
    extra = [] if jump is None else [*jump.posts, *(d.symbol for d in jump.unknowns), *jump.post_rates]

    def lower(what: str, rows: Sequence[tuple[str, ca.MX]]) -> ca.Function:
        return source.lower(what, rows, extra)

    def more(event: EventRecord) -> list[Any]:
        if jump is None:
            return []
        sizes = [d.size for d in jump.target.lowering.variables]
        layout = jump.target.lowering.differential
        unknowns = [np.atleast_1d(event.unknowns[d.name]) for d in jump.unknowns]
        rates = [event.xdot_plus[layout[n]] for n in jump.rated]
        return [*np.split(event.x_plus, np.cumsum(sizes)[:-1]), *unknowns, *rates]

    return Branches(f"transition '{name}'", values, lower, fixed), more
