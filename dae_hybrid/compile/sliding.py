"""Relations whose two sides drive the state onto their surface hold it there: sliding motion (Filippov).

On the surface h(y, m, p, t) = 0 of a relation let f^+ and f^- be the equations on the sides h > 0 and h < 0, and
L^+ = h_y f^+ + h_t, L^- = h_y f^- + h_t the rates of h. The motion crosses the surface where both have one sign. Where
L^+ < 0 < L^- it stays on it, with

    f_s = theta f^+ + (1 - theta) f^-,    theta = L^- / (L^- - L^+),

so that h' = 0, until theta reaches 0 or 1: there L^+ or L^- is zero, f_s is the field of that side, and the motion
leaves to it (A. F. Filippov, Differential equations with discontinuous righthand sides, 1988, section 4).
`with_sliding` states this with what models have: a memory holds the status of the motion at each surface, and theta is
the share of the values of its relations in the equations. Integrators, events, and forward and adjoint analysis know
nothing of it. The saltation of an entry from below is I + (f_s - f^-) h_y^T / L^-, whose image is tangential; that of
an exit is the identity. After an exit the motion is held to its side by the sign of the rate of h, not by that of h,
which is zero with its rate there: no tolerance decides.

Several surfaces slide at once where their rates are affine in the values of the relations that slide: these solve a
linear system.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce

import casadi as ca
import numpy as np

from dae_hybrid.compile.filippov import ABOVE, BELOW, CROSSES, SLIDES, Field, NotExpandedError, Surface
from dae_hybrid.layout import Layout
from dae_hybrid.statement.declarations import Declaration, Functional, Mode, Relation, Transition
from dae_hybrid.statement.expressions import free_name
from dae_hybrid.statement.model import HybridModel
from dae_hybrid.statement.triggers import StateTrigger

#: expressions of a model as stated -> the same by the memory of its relations, kinks as they are
type BySwitches = Callable[[Sequence[ca.MX]], list[ca.MX]]
#: value of guards that are not watched
AWAY = 1.0
#: points at which heights are compared
PLACES = 16


def places(heights: Sequence[ca.MX]) -> list[tuple[frozenset[int], tuple[str, ...], tuple[str, ...]]]:
    """What equal expressions have in common: symbols, values at some points, and values of the opposite sign there."""
    if not heights:
        return []
    symbols = ca.symvar(ca.vertcat(*heights))
    function = ca.Function("heights", symbols, [ca.vertcat(*heights)])
    draw, columns = np.random.default_rng(0), []
    for k in range(PLACES):
        signs = (1.0,) if k % 2 else (-1.0, 1.0)  # roots and logarithms want positive values
        points = [draw.choice(signs, s.shape) * 10.0 ** draw.uniform(-2, 3, s.shape) for s in symbols]
        columns.append(np.array(function.call(points)[0]))
    found = []
    for height, row in zip(heights, np.hstack(columns).tolist(), strict=True):
        own = frozenset(s.__hash__() for s in ca.symvar(height))
        found.append((own, tuple(f"{v:.10g}" for v in row), tuple(f"{-v:.10g}" for v in row)))
    return found


def with_sliding(model: HybridModel, surfaces: Sequence[Surface], by_switches: BySwitches) -> HybridModel:
    """Return the model with sliding motion on the surfaces on which its modes allow it.

    The relations of `model` are memory, which transitions change, except at instants: there `by_switches` gives
    expressions with that memory. Nothing slides if a relation is in an expression that calls what cannot be expanded.
    """
    try:
        return _with_sliding(model, surfaces, by_switches)
    except NotExpandedError:
        return model


def _with_sliding(model: HybridModel, surfaces: Sequence[Surface], by_switches: BySwitches) -> HybridModel:
    fields = {name: Field.of(model, mode, surfaces) for name, mode in model.modes.items()}
    used = {surface: None for field in fields.values() for surface in field.surfaces}
    if not used:
        return model
    found = copy.copy(model)
    found.declarations = dict(model.declarations)
    for surface in used:
        surface.name = free_name(f"{surface.text} slides", found.declarations)
        found.declarations[surface.name] = Declaration(
            surface.name, "memory", 1, surface.status, initial=ca.MX(CROSSES)
        )
    entries = Layout.of((d.name, d.size) for d in found.declarations.values() if d.kind == "memory")
    modes = found.modes = {name: _moved(mode, fields[name]) for name, mode in model.modes.items()}
    found.indicators = dict(model.indicators)
    found.functionals = {name: _everywhere(found, fields, f, by_switches) for name, f in model.functionals.items()}
    found.transitions = {}
    for name, t in model.transitions.items():
        own, target = fields[t.source.name], None if t.target is None else modes[t.target.name]
        changed = _left(t, fields, model) if t.relation is None else _flipped(t, t.relation, own, entries)
        found.transitions[name] = replace(changed, sources=(modes[t.source.name],), target=target)
    for name, field in fields.items():
        for exit_ in _exits(modes[name], field, entries):
            own_name = free_name(exit_.name, found.transitions)
            found.transitions[own_name] = replace(exit_, name=own_name)
    if model.start is not None:
        found.start = replace(model.start, mode=modes[model.start.mode.name])
    return found


def _everywhere(
    model: HybridModel, fields: Mapping[str, Field], functional: Functional, by_switches: BySwitches
) -> Functional:
    """The functional, whose expressions are evaluated in every mode."""

    def changed(expression: ca.MX, otherwise: ca.MX | None = None) -> ca.MX:
        result = expression if otherwise is None else otherwise
        for name, field in fields.items():
            own = [surface.status == SLIDES for surface in field.surfaces if surface.is_in(expression)]
            if not own:
                continue
            (moved,) = field.blended([expression])
            if otherwise is not None:
                moved = ca.if_else(reduce(ca.logic_or, own), moved, otherwise)
            if len(fields) == 1:
                return moved
            active = model.indicators.setdefault(name, ca.MX.sym(f"active({name})"))
            result = ca.if_else(active, moved, result)
        return result

    def at_instant(expression: ca.MX) -> ca.MX:
        (known,) = by_switches([expression])
        return changed(known, expression)

    return replace(
        functional,
        integrand=None if functional.integrand is None else changed(functional.integrand),
        terminal=None if functional.terminal is None else at_instant(functional.terminal),
        at_times=tuple((when, at_instant(value)) for when, value in functional.at_times),
        series=tuple(replace(series, value=at_instant(series.value)) for series in functional.series),
        peaks=tuple(replace(peak, watched=changed(peak.watched)) for peak in functional.peaks),
    )


def _moved(mode: Mode, field: Field) -> Mode:
    """A mode whose relations have their shares while the motion slides."""
    *flows, residual, algebraic = field.blended([*mode.ode.values(), mode.residual, mode.algebraic])
    return replace(mode, ode=dict(zip(mode.ode, flows, strict=True)), residual=residual, algebraic=algebraic)


def _flipped(transition: Transition, relation: Relation, field: Field, entries: Layout) -> Transition:
    """A transition that changes a relation: where both sides drive the state to its surface, it slides."""
    found = [i for i, surface in enumerate(field.surfaces) if relation.memory in surface.memory]
    if not found:
        return replace(transition, trigger=StateTrigger(*field.blended([transition.trigger.expression])))
    surface, sides = field.surfaces[found[0]], field.sides[found[0]]
    guard = ca.if_else(surface.status == CROSSES, transition.trigger.expression, AWAY)
    flipped = replace(transition, trigger=StateTrigger(guard))
    if relation.is_kink:  # the rates do not jump there
        return flipped
    slides = ca.MX(math.inf if field.undetermined[found[0]] else SLIDES)
    for rival in field.rivals(found[0]):
        slides = ca.if_else(rival.status == SLIDES, math.nan, slides)
    status = ca.if_else(ca.logic_and(sides.above < 0, sides.below > 0), slides, CROSSES)
    return replace(
        flipped,
        memory=transition.memory | {surface.name: status},
        relation=replace(relation, status=entries[surface.name].start),
    )


def _left(transition: Transition, fields: Mapping[str, Field], model: HybridModel) -> Transition:
    """A transition of the model: the motion goes on sliding if it leaves the height as it is."""
    own, found = fields[transition.source.name], transition
    if found.guard is not None:
        found = replace(found, trigger=StateTrigger(*own.blended([found.guard])))
    if found.target is None:
        return found
    memory, updates = dict(found.memory), found.reset | found.memory
    is_solved = bool(found.equations.numel() or found.project)
    for surface in own.surfaces:
        if is_solved or surface not in fields[found.target.name].surfaces:
            memory[surface.name] = ca.MX(CROSSES)
            continue
        symbols = {s.__hash__() for s in ca.symvar(surface.height)}
        names = [name for name in updates if model.declarations[name].symbol.__hash__() in symbols]
        if not names:
            continue
        old, new = [model.declarations[name].symbol for name in names], [updates[name] for name in names]
        stays = ca.substitute([surface.height], old, new)[0] == surface.height
        memory[surface.name] = ca.if_else(stays, surface.status, CROSSES)
        holds = ca.logic_and(stays, surface.status != CROSSES)
        for name in surface.memory.keys() & memory.keys():
            memory[name] = ca.if_else(holds, surface.memory[name], memory[name])
    return replace(found, memory=memory)


def _exits(mode: Mode, field: Field, entries: Layout) -> Iterator[Transition]:
    """Yield the transitions by which the motion leaves its surfaces, and is free to meet them again."""
    none: dict[str, ca.MX] = {}
    for surface, sides in zip(field.surfaces, field.sides, strict=True):
        entry, slides = entries[surface.name].start, surface.status == SLIDES
        for side, outward, stays, other, status, word in (
            (0.0, sides.above, sides.from_above, sides.from_below, ABOVE, "false"),
            (1.0, -sides.below, sides.from_below, sides.from_above, BELOW, "true"),
        ):
            guard = ca.if_else(slides, stays, ca.if_else(surface.status == status, outward, AWAY))
            values = dict(zip(surface.memory, map(ca.MX, surface.at(side)), strict=True))
            # where both sides lead away, which a transition has brought about, the motion is not unique
            leaves = ca.if_else(other < 0, math.nan, status)
            values[surface.name] = ca.if_else(slides, leaves, CROSSES)
            # a kink: the rates are those of the side that is entered
            relation = Relation(surface.text, entry, True, True, True, (1, 1, 1), ca.MX(AWAY), entry)
            yield Transition(
                f'"{surface.text}" leaves to {word} in {mode.name}', (mode,), mode, StateTrigger(guard), -1, "fire",
                math.inf, none, values, ca.MX(0, 1), (), (), None, none, freezes=False, relation=relation,
            )  # fmt: skip
