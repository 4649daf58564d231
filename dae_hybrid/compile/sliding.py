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
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from typing import Any

import casadi as ca
import numpy as np
from scipy.sparse.csgraph import connected_components

from dae_hybrid.layout import Layout
from dae_hybrid.statement.declarations import Declaration, Functional, Mode, Relation, Transition
from dae_hybrid.statement.discontinuous_nodes import ALL
from dae_hybrid.statement.expressions import free_name
from dae_hybrid.statement.model import HybridModel
from dae_hybrid.statement.triggers import StateTrigger

#: status of the motion at a surface: crosses it where it meets it, slides on it, has left it to h > 0, to h < 0
CROSSES, SLIDES, ABOVE, BELOW = 0.0, 1.0, 2.0, 3.0
#: value of guards that are not watched
AWAY = 1.0
#: operations that decide by their arguments
DECISIONS = ALL - {ca.OP_IF_ELSE_ZERO}
#: largest numbers of unknowns that are solved for symbolically, of surfaces of a mode, and of those that slide together
MOST_SOLVED, MOST_SURFACES, MOST_TOGETHER = 16, 100, 4
#: points at which rates are compared, and the share of them within which they are equal; points for heights
SAMPLES, MIXED, PLACES = 64, 1e-9, 16


@dataclass(eq=False)
class Surface:
    """The zero set of `height`, with the memory of the relations that change there, by name."""

    text: str  # of one of its relations
    height: ca.MX
    low: dict[str, ca.MX] = field(default_factory=dict)  # 1 below the surface, 0 above it
    high: dict[str, ca.MX] = field(default_factory=dict)  # 0 below it, 1 above it
    jumps: bool = False  # whether equations jump there
    name: str = ""  # of the memory that holds the status

    def __post_init__(self) -> None:
        self.status = ca.MX.sym(f"{self.text} slides")

    @property
    def memory(self) -> dict[str, ca.MX]:
        """The memory of all relations."""
        return self.low | self.high

    def at(self, share: Any) -> list[Any]:
        """Values of the relations: share 1 is below the surface, share 0 above it."""
        return [share] * len(self.low) + [1 - share] * len(self.high)

    def is_in(self, expression: ca.MX) -> bool:
        """Whether an expression depends on its relations."""
        return _is_in(expression, list(self.memory.values()))


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
        own = frozenset(_key(s) for s in ca.symvar(height))
        found.append((own, tuple(f"{v:.10g}" for v in row), tuple(f"{-v:.10g}" for v in row)))
    return found


def with_sliding(model: HybridModel, surfaces: Sequence[Surface], by_switches: Callable[[ca.MX], ca.MX]) -> HybridModel:
    """Return the model with sliding motion on the surfaces on which its modes allow it.

    The relations of `model` are memory, which transitions change, except at instants: there `by_switches` gives an
    expression with that memory. Nothing slides if a relation is in an expression that calls what cannot be expanded.
    """
    try:
        return _with_sliding(model, surfaces, by_switches)
    except _NotExpandedError:
        return model


def _with_sliding(
    model: HybridModel, surfaces: Sequence[Surface], by_switches: Callable[[ca.MX], ca.MX]
) -> HybridModel:
    motions = {name: _Motion.of(model, mode, surfaces) for name, mode in model.modes.items()}
    used = {surface: None for motion in motions.values() for surface in motion.surfaces}
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
    modes = found.modes = {name: motion.moved() for name, motion in motions.items()}
    found.indicators = dict(model.indicators)
    found.functionals = {name: _everywhere(found, motions, f, by_switches) for name, f in model.functionals.items()}
    found.transitions = {}
    for name, t in model.transitions.items():
        own = motions[t.source.name]
        target = None if t.target is None else modes[t.target.name]
        changed = own.flipped(t, entries) if t.relation is not None else own.left(t, motions, model)
        found.transitions[name] = replace(changed, sources=(modes[t.source.name],), target=target)
    for name, motion in motions.items():
        for exit_ in motion.exits(modes[name], entries):
            own_name = free_name(exit_.name, found.transitions)
            found.transitions[own_name] = replace(exit_, name=own_name)
    if model.start is not None:
        found.start = replace(model.start, mode=modes[model.start.mode.name])
    return found


def _everywhere(
    model: HybridModel, motions: Mapping[str, _Motion], functional: Functional, by_switches: Callable[[ca.MX], ca.MX]
) -> Functional:
    """The functional, whose expressions are evaluated in every mode."""

    def changed(expression: ca.MX, otherwise: ca.MX | None = None) -> ca.MX:
        result = expression if otherwise is None else otherwise
        for name, motion in motions.items():
            own = [surface.status == SLIDES for surface in motion.surfaces if surface.is_in(expression)]
            if not own:
                continue
            (moved,) = motion.blended([expression])
            if otherwise is not None:
                moved = ca.if_else(reduce(ca.logic_or, own), moved, otherwise)
            if len(motions) == 1:
                return moved
            active = model.indicators.setdefault(name, ca.MX.sym(f"active({name})"))
            result = ca.if_else(active, moved, result)
        return result

    def at_instant(expression: ca.MX) -> ca.MX:
        return changed(by_switches(expression), expression)

    return replace(
        functional,
        integrand=None if functional.integrand is None else changed(functional.integrand),
        terminal=None if functional.terminal is None else at_instant(functional.terminal),
        at_times=tuple((when, at_instant(value)) for when, value in functional.at_times),
        series=tuple(replace(series, value=at_instant(series.value)) for series in functional.series),
        peaks=tuple(replace(peak, watched=changed(peak.watched)) for peak in functional.peaks),
    )


@dataclass
class _Solved:
    """What the equations of a mode are solved for, with the differential variables and their rates."""

    flows: list[tuple[ca.MX, ca.MX]]
    equations: ca.MX
    unknowns: list[ca.MX]
    values: list[ca.MX] | None  # of the unknowns; None if the equations are not linear in them

    @classmethod
    def of(cls, model: HybridModel, mode: Mode) -> _Solved:
        """Solve the equations."""
        named = [name for name in mode.ode if name in model.rates]
        *rates, equations = ca.substitute(
            [*mode.ode.values(), ca.vertcat(mode.residual, mode.algebraic)],
            [model.rates[name] for name in named],
            [mode.ode[name] for name in named],
        )
        used = {s.__hash__() for s in ca.symvar(ca.veccat(*rates, equations, mode.constraint))}
        implicit = {n: rate for n, rate in model.rates.items() if n not in mode.ode and rate.__hash__() in used}
        every = dict(zip(mode.ode, rates, strict=True)) | implicit
        flows = [(model.declarations[name].symbol, rate) for name, rate in every.items()]
        algebraic = [d.symbol for d in model.of_kind("algebraic") if d.symbol.__hash__() in used]
        unknowns = [*algebraic, *implicit.values()]
        column, values = ca.vertcat(ca.MX(0, 1), *unknowns), None
        is_square = 0 < column.numel() == equations.numel() <= MOST_SOLVED
        # a constraint determines unknowns by its derivatives
        if is_square and not mode.constraint.numel() and _is_affine(equations, unknowns):
            by = ca.jacobian(equations, column)
            a, b = ca.SX.sym("a", by.sparsity()), ca.SX.sym("b", column.numel())
            (rest,) = ca.substitute([equations], unknowns, [ca.MX.zeros(s.shape) for s in unknowns])
            (found,) = ca.Function("solved", [a, b], [ca.solve(a, b)]).call([by, -rest], True, False)
            values = ca.vertsplit(found, np.cumsum([0, *(s.numel() for s in unknowns)]).tolist())
        return cls(flows, equations, unknowns, values)

    def without_unknowns(self, rate: ca.MX) -> ca.MX | None:
        """A rate with the unknowns solved for; None if that is not possible."""
        if not self.unknowns or not ca.depends_on(rate, ca.vertcat(*self.unknowns)):
            return rate
        return None if self.values is None else ca.substitute([rate], self.unknowns, self.values)[0]

    def is_mixed(self, surface: Surface) -> bool:
        """Whether a mean of the equations is not solved by that of the unknowns.

        It is if they are linear in the unknowns, and no relation multiplies these.
        """
        if not surface.is_in(self.equations):
            return False
        return self.values is None or surface.is_in(ca.jacobian(self.equations, ca.vertcat(*self.unknowns)))


class _NotExpandedError(Exception):
    """An expression calls a function that cannot be written out in scalars."""


class _Scalars:
    """Symbols of a model, and scalar ones that stand for them."""

    def __init__(self) -> None:
        self.symbols: dict[int, tuple[ca.MX, ca.SX]] = {}

    def of(self, symbol: ca.MX) -> ca.SX:
        """The scalar symbols of a symbol."""
        key = symbol.__hash__()
        if key not in self.symbols:
            self.symbols[key] = symbol, ca.SX.sym(symbol.name(), symbol.shape)
        return self.symbols[key][1]

    def expanded(self, expressions: Sequence[ca.MX]) -> list[ca.SX]:
        """Expressions in scalar symbols.

        Raises
        ------
        _NotExpandedError
            They call functions that cannot be expanded.
        """
        symbols = ca.symvar(ca.veccat(*expressions))
        try:
            function = ca.Function("scalars", symbols, list(expressions)).expand()
        except RuntimeError:
            raise _NotExpandedError from None
        found: list[ca.SX] = function.call([self.of(symbol) for symbol in symbols], True, False)
        return found

    def restored(self, expressions: Sequence[ca.SX]) -> list[ca.MX]:
        """Expressions in the symbols of the model."""
        symbols, scalars = zip(*self.symbols.values(), strict=True)
        found: list[ca.MX] = ca.Function("motion", scalars, ca.cse(list(expressions))).call(symbols, True, False)
        return found


@dataclass(eq=False)
class _Motion:
    """The motion of a mode, on the surfaces on which it may slide, with the rates of their heights."""

    mode: Mode
    surfaces: list[Surface]
    rates: list[ca.SX]
    scalars: _Scalars

    @classmethod
    def of(cls, model: HybridModel, mode: Mode, surfaces: Sequence[Surface]) -> _Motion:
        """Keep the surfaces whose rates depend on their own relations."""
        scalars = _Scalars()
        if not surfaces:
            return cls(mode, [], [], scalars)
        solved = _Solved.of(model, mode)
        given = [d.symbol for d in model.declarations.values() if d.kind in ("memory", "parameter") and not _jumps(d)]
        known = {s.__hash__() for s in (model.time, *(symbol for symbol, _ in solved.flows), *given)}
        found: dict[Surface, ca.MX] = {}
        for surface in surfaces:
            symbols = {s.__hash__() for s in ca.symvar(surface.height)}
            if not symbols <= known or solved.is_mixed(surface):
                continue
            rate = ca.jtimes(surface.height, model.time, ca.MX(1))
            for symbol, flow in solved.flows:
                if symbol.__hash__() in symbols:
                    rate += ca.jtimes(surface.height, symbol, flow)
            reduced = solved.without_unknowns(rate)
            if reduced is not None and surface.is_in(reduced):
                found[surface] = reduced
        if not found or len(found) > MOST_SURFACES:
            return cls(mode, [], [], scalars)
        rates = scalars.expanded(list(found.values()))
        kept = [(s, rate) for s, rate in zip(found, rates, strict=True) if _is_in(rate, cls._own(scalars, s))]
        return cls(mode, [s for s, _ in kept], [rate for _, rate in kept], scalars)

    @staticmethod
    def _own(scalars: _Scalars, surface: Surface) -> list[ca.SX]:
        return [scalars.of(symbol) for symbol in surface.memory.values()]

    def own(self, i: int) -> list[ca.SX]:
        """The memory of the relations of a surface."""
        return self._own(self.scalars, self.surfaces[i])

    def slides(self, i: int) -> ca.SX:
        """Whether the motion slides on a surface."""
        return self.scalars.of(self.surfaces[i].status) == SLIDES

    @cached_property
    def _groups(self) -> tuple[list[list[int]], list[set[int]]]:
        """Surfaces that may slide together, and for each surface those beside which it must not slide.

        The first act on each other by sums; the others by products, or too many do.
        """
        n = len(self.surfaces)
        by = np.array([[_is_in(rate, self.own(j)) for j in range(n)] for rate in self.rates]).reshape(n, n)
        count, labels = connected_components(by, directed=False)
        groups, rivals = list[list[int]](), [set[int]() for _ in range(n)]
        for label in range(count):
            members = np.flatnonzero(labels == label).tolist()
            pairs = [(i, j) for i in members for j in members if i < j]
            if len(members) > MOST_TOGETHER or any(self._is_mixed(i, j) for i, j in pairs):
                groups += [[i] for i in members]
                for i in members:
                    rivals[i] = {*members} - {i}
            else:
                groups.append(members)
        return groups, rivals

    def _is_mixed(self, one: int, other: int) -> bool:
        """Whether the relations of one surface change how those of another one act; judged by samples."""
        own = [*self.own(one), *self.own(other)]
        corners = [
            ca.substitute([rate], own, [ca.SX(v) for v in (*self.surfaces[one].at(a), *self.surfaces[other].at(b))])[0]
            for rate in self.rates
            if _is_in(rate, self.own(one)) and _is_in(rate, self.own(other))
            for a, b in ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0))
        ]
        if not corners:
            return False
        column = ca.vertcat(*corners)
        symbols, draw = ca.symvar(column), np.random.default_rng(0)
        signs, sizes = draw.choice((-1.0, 1.0), (len(symbols), SAMPLES)), draw.uniform(-1, 1, (len(symbols), SAMPLES))
        function = ca.Function("corners", [ca.vertcat(*symbols)], [column])
        values = np.array(function.map(SAMPLES)(signs * 10.0**sizes)).reshape(-1, 4, SAMPLES)
        values = values[:, :, np.all(np.isfinite(values), axis=(0, 1))]
        differences = np.abs(np.einsum("ijk,j->ik", values, (1.0, -1.0, -1.0, 1.0)))
        return values.shape[2] == 0 or bool(np.any(differences > MIXED * np.abs(values).max(axis=1)))

    @cached_property
    def _solved(self) -> list[tuple[ca.SX, ca.SX]]:
        """The share of each surface at which its height stays zero, and how its rate falls from below to above."""
        found = [(ca.SX(0), ca.SX(1))] * len(self.surfaces)
        for group in self._groups[0]:
            rows, rest, falls = [], [], []
            for place, i in enumerate(group):
                above, row = self._held(i, group, None), dict[int, ca.SX]()
                for k, j in enumerate(group):
                    if _is_in(self.rates[i], self.own(j)):
                        both = self.slides(i) if i == j else ca.logic_and(self.slides(i), self.slides(j))
                        by = self._held(i, group, j) - above
                        row[k] = ca.if_else(both, by, float(place == k))
                        if i == j:
                            falls.append(by)
                rows.append(row)
                rest.append(ca.if_else(self.slides(i), -above, 0.0))
            for i, share, fall in zip(group, _eliminated(rows, rest), falls, strict=True):
                found[i] = share, fall
        return found

    def _held(self, i: int, group: Sequence[int], below: int | None) -> ca.SX:
        """A rate above all surfaces of a group on which the motion slides, but below one."""
        old, new = list[ca.SX](), list[ca.SX]()
        for j in group:
            values = self.surfaces[j].at(float(j == below))
            old += self.own(j)
            new += [ca.if_else(self.slides(j), a, m) for a, m in zip(values, self.own(j), strict=True)]
        rate: ca.SX = ca.substitute([self.rates[i]], old, new)[0]
        return rate

    def _blend(self, entry: ca.SX, shares: Mapping[int, ca.SX]) -> ca.SX:
        """A scalar expression whose relations have their shares while the motion slides."""
        for i, share in shares.items():
            own, slides = self.own(i), self.slides(i)
            if not _is_in(entry, own):
                continue
            if _is_affine(entry, own):
                values = [ca.if_else(slides, a, m) for a, m in zip(self.surfaces[i].at(share), own, strict=True)]
                (entry,) = ca.substitute([entry], own, values)
            else:
                above, below = (
                    ca.substitute([entry], own, [ca.SX(v) for v in self.surfaces[i].at(side)])[0] for side in (0.0, 1.0)
                )
                entry = ca.if_else(slides, above + share * (below - above), entry)
        return entry

    def blended(self, expressions: Sequence[ca.MX]) -> list[ca.MX]:
        """Expressions whose relations have their shares while the motion slides."""
        places = [k for k, e in enumerate(expressions) if any(surface.is_in(e) for surface in self.surfaces)]
        if not places:
            return list(expressions)
        symbols = {i: ca.SX.sym(f"share{i}") for i in range(len(self.surfaces))}
        columns = self.scalars.expanded([expressions[k] for k in places])
        for k, column in enumerate(columns):
            entries = ca.vertsplit(ca.vec(ca.densify(column)))
            columns[k] = ca.reshape(ca.vertcat(*(self._blend(e, symbols) for e in entries)), column.shape)
        columns = ca.substitute(columns, list(symbols.values()), [share for share, _ in self._solved])
        found = list(expressions)
        for k, new in zip(places, self.scalars.restored(columns), strict=True):
            found[k] = new
        return found

    def moved(self) -> Mode:
        """The mode."""
        mode = self.mode
        if not self.surfaces:
            return mode
        *flows, residual, algebraic = self.blended([*mode.ode.values(), mode.residual, mode.algebraic])
        ode = dict(zip(mode.ode, flows, strict=True))
        return replace(mode, ode=ode, residual=residual, algebraic=algebraic)

    @cached_property
    def _sides(self) -> list[tuple[ca.MX, ca.MX, ca.MX, ca.MX]]:
        """The rates of the heights above and below their surfaces, while the motion does not slide on them.

        And, while it does, two values that are positive, and zero where it leaves to above and below.
        """
        shares, found = {i: share for i, (share, _) in enumerate(self._solved)}, list[ca.SX]()
        for i, (rate, (share, fall)) in enumerate(zip(self.rates, self._solved, strict=True)):
            moved = self._blend(rate, shares)
            for side in (0.0, 1.0):
                found += ca.substitute([moved], self.own(i), [ca.SX(v) for v in self.surfaces[i].at(side)])
            found += [fall * share, fall * (1 - share)]
        values = self.scalars.restored(found) if found else []
        return [(values[k], values[k + 1], values[k + 2], values[k + 3]) for k in range(0, len(values), 4)]

    def flipped(self, transition: Transition, entries: Layout) -> Transition:
        """A transition that changes a relation: where both sides drive the state to its surface, it slides."""
        assert transition.relation is not None
        own = [i for i, s in enumerate(self.surfaces) if transition.relation.memory in s.memory]
        (guard,) = self.blended([transition.trigger.expression])
        if not own:
            return replace(transition, trigger=StateTrigger(guard))
        surface, (above, below, _, _) = self.surfaces[own[0]], self._sides[own[0]]
        guard = ca.if_else(surface.status == CROSSES, transition.trigger.expression, AWAY)
        if transition.relation.is_kink:  # the rates do not jump there
            return replace(transition, trigger=StateTrigger(guard))
        slides = ca.MX(SLIDES)
        for i in self._groups[1][own[0]]:
            slides = ca.if_else(self.surfaces[i].status == SLIDES, math.nan, slides)
        status = ca.if_else(ca.logic_and(above < 0, below > 0), slides, CROSSES)
        return replace(
            transition,
            trigger=StateTrigger(guard),
            memory=transition.memory | {surface.name: status},
            relation=replace(transition.relation, status=entries[surface.name].start),
        )

    def left(self, transition: Transition, motions: Mapping[str, _Motion], model: HybridModel) -> Transition:
        """A transition of the model: the motion goes on sliding if it leaves the height as it is."""
        found = transition
        if found.guard is not None and any(surface.is_in(found.guard) for surface in self.surfaces):
            found = replace(found, trigger=StateTrigger(*self.blended([found.guard])))
        if found.target is None:
            return found
        memory, updates = dict(found.memory), found.reset | found.memory
        is_solved = bool(found.equations.numel() or found.project)
        for surface in self.surfaces:
            if surface not in motions[found.target.name].surfaces:
                memory[surface.name] = ca.MX(CROSSES)
                continue
            symbols = {s.__hash__() for s in ca.symvar(surface.height)}
            own = [name for name in updates if model.declarations[name].symbol.__hash__() in symbols]
            if is_solved:
                memory[surface.name] = ca.MX(CROSSES)
            if is_solved or not own:
                continue
            old = [model.declarations[name].symbol for name in own]
            after = ca.substitute([surface.height], old, [updates[name] for name in own])[0]
            stays = after == surface.height
            memory[surface.name] = ca.if_else(stays, surface.status, CROSSES)
            stays = ca.logic_and(stays, surface.status != CROSSES)
            for name, symbol in surface.memory.items():
                if name in memory:
                    memory[name] = ca.if_else(stays, symbol, memory[name])
        return replace(found, memory=memory)

    def exits(self, mode: Mode, entries: Layout) -> Iterator[Transition]:
        """Yield the transitions by which the motion leaves its surfaces, and is free to meet them again."""
        none: dict[str, ca.MX] = {}
        for surface, (above, below, from_above, from_below) in zip(self.surfaces, self._sides, strict=True):
            entry, slides = entries[surface.name].start, surface.status == SLIDES
            for side, outward, stays, other, status, word in (
                (0.0, above, from_above, from_below, ABOVE, "false"),
                (1.0, -below, from_below, from_above, BELOW, "true"),
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


def _jumps(declared: Declaration) -> bool:
    """Whether a memory jumps without a transition that says so."""
    return declared.of is not None or (declared.signal is not None and declared.signal.kind == "previous")


def _key(symbol: Any) -> int:
    """What a symbol and its copies have in common."""
    return int(symbol.__hash__() if isinstance(symbol, ca.MX) else symbol.element_hash())


def _is_in(expression: Any, symbols: Sequence[Any]) -> bool:
    """Whether one of the symbols is in an expression."""
    return not {_key(symbol) for symbol in symbols}.isdisjoint(map(_key, ca.symvar(expression)))


def _is_affine(expression: Any, symbols: Sequence[Any]) -> bool:
    """Whether an expression is affine in symbols, which are no conditions in it: those have no derivatives."""
    own = {_key(symbol) for symbol in symbols}
    others = [symbol for symbol in ca.symvar(expression) if _key(symbol) not in own]
    try:
        function = ca.Function("affine", [*symbols, *others], [expression]).expand()
    except RuntimeError:  # functions that cannot be expanded
        return False
    depends: dict[int, bool] = {}
    for k in range(function.n_instructions()):
        op, into, out = function.instruction_id(k), function.instruction_input(k), function.instruction_output(k)
        if op == ca.OP_OUTPUT:
            continue
        on = (
            [op == ca.OP_INPUT and into[0] < len(symbols)]
            if op in (ca.OP_INPUT, ca.OP_CONST)
            else [depends[i] for i in into]
        )
        if any(on) and (op in DECISIONS or (op == ca.OP_IF_ELSE_ZERO and on[0])):
            return False
        depends[out[0]] = any(on)
    return bool(ca.is_linear(ca.vec(expression), ca.vertcat(*symbols)))


def _eliminated(rows: list[dict[int, ca.SX]], rest: list[ca.SX]) -> list[ca.SX]:
    """Solve a linear system by Gaussian elimination without a search for pivots."""
    n = len(rows)
    for k in range(n):
        for i in range(k + 1, n):
            if k not in rows[i]:
                continue
            factor = rows[i].pop(k) / rows[k][k]
            for j, entry in rows[k].items():
                if j > k:
                    rows[i][j] = rows[i].get(j, ca.SX(0)) - factor * entry
            rest[i] = rest[i] - factor * rest[k]
    for i in reversed(range(n)):
        for j in range(i + 1, n):
            if j in rows[i]:
                rest[i] = rest[i] - rows[i][j] * rest[j]
        rest[i] = rest[i] / rows[i][i]
    return rest
