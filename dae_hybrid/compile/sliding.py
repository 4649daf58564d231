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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import casadi as ca
import numpy as np

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
#: largest number of unknowns that are solved for symbolically
MOST_SOLVED = 16
#: points at which rates are compared, and the share of them within which they are equal
SAMPLES, MIXED = 64, 1e-9


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

    def at(self, share: ca.MX | float) -> list[ca.MX]:
        """Values of the relations: share 1 is below the surface, share 0 above it."""
        return [ca.MX(share)] * len(self.low) + [1 - ca.MX(share)] * len(self.high)

    def on(self, share: ca.MX | float, expressions: Sequence[ca.MX]) -> list[ca.MX]:
        """Expressions at a share, whatever the memory says."""
        found: list[ca.MX] = ca.substitute(list(expressions), list(self.memory.values()), self.at(share))
        return found

    def held(self, share: ca.MX | float, expression: ca.MX) -> ca.MX:
        """An expression at a share while the motion slides, else at the memory."""
        own = list(self.memory.values())
        values = [ca.if_else(self.status == SLIDES, a, m) for a, m in zip(self.at(share), own, strict=True)]
        return ca.substitute([expression], own, values)[0]

    def is_in(self, expression: ca.MX) -> bool:
        """Whether an expression depends on its relations."""
        own = {symbol.__hash__() for symbol in self.memory.values()}
        return not own.isdisjoint(s.__hash__() for s in ca.symvar(expression))


def places(heights: Sequence[ca.MX]) -> list[tuple[float, ...]]:
    """Values of expressions at a few points, by which those are recognised that are equal or differ by their sign."""
    if not heights:
        return []
    symbols = ca.symvar(ca.vertcat(*heights))
    function = ca.Function("heights", symbols, [ca.vertcat(*heights)])
    draw = np.random.default_rng(0)
    values = np.hstack([np.array(function.call([draw.uniform(0.5, 2, s.shape) for s in symbols])[0]) for _ in range(3)])
    return [tuple(float(f"{value:.10g}") for value in row) for row in values]


def with_sliding(model: HybridModel, surfaces: Sequence[Surface]) -> HybridModel:
    """Return the model with sliding motion on the surfaces on which its modes allow it.

    The relations of `model` are memory, which transitions change.
    """
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
    found.functionals = {name: _everywhere(model, motions, f) for name, f in model.functionals.items()}
    found.transitions = {}
    for name, t in model.transitions.items():
        own = motions[t.source.name]
        target = None if t.target is None else modes[t.target.name]
        changed = own.flipped(t, entries) if t.relation is not None else own.left(t, motions)
        found.transitions[name] = replace(changed, sources=(modes[t.source.name],), target=target)
    for name, motion in motions.items():
        for exit_ in motion.exits(modes[name], entries):
            own_name = free_name(exit_.name, found.transitions)
            found.transitions[own_name] = replace(exit_, name=own_name)
    if model.start is not None:
        found.start = replace(model.start, mode=modes[model.start.mode.name])
    return found


def _everywhere(model: HybridModel, motions: Mapping[str, _Motion], functional: Functional) -> Functional:
    """The functional, whose expressions are evaluated in every mode."""

    def changed(expression: ca.MX) -> ca.MX:
        result = expression
        for name, motion in motions.items():
            if any(surface.is_in(expression) for surface in motion.surfaces):
                moved = motion.blended(expression)
                if len(motions) == 1:
                    return moved
                active = model.indicators.setdefault(name, ca.MX.sym(f"active({name})"))
                result = ca.if_else(active, moved, result)
        return result

    peaks = tuple(replace(peak, watched=changed(peak.watched)) for peak in functional.peaks)
    integrand = None if functional.integrand is None else changed(functional.integrand)
    return replace(functional, integrand=integrand, peaks=peaks)


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
        """Whether relations multiply unknowns: a mean of the equations is then not that of the rates."""
        return bool(self.unknowns) and surface.is_in(ca.jacobian(self.equations, ca.vertcat(*self.unknowns)))


@dataclass(eq=False)
class _Motion:
    """The motion of a mode, on the surfaces on which it may slide, with the rates of their heights."""

    mode: Mode
    rates: dict[Surface, ca.MX]

    @classmethod
    def of(cls, model: HybridModel, mode: Mode, surfaces: Sequence[Surface]) -> _Motion:
        """Keep the surfaces whose rates depend on their own relations."""
        solved = _Solved.of(model, mode)
        given = [d.symbol for d in model.declarations.values() if d.kind in ("memory", "parameter") and not _jumps(d)]
        known = {s.__hash__() for s in (model.time, *(symbol for symbol, _ in solved.flows), *given)}
        rates: dict[Surface, ca.MX] = {}
        for surface in surfaces:
            symbols = {s.__hash__() for s in ca.symvar(surface.height)}
            if not symbols <= known:
                continue
            rate = ca.jtimes(surface.height, model.time, ca.MX(1))
            for symbol, flow in solved.flows:
                if symbol.__hash__() in symbols:
                    rate += ca.jtimes(surface.height, symbol, flow)
            found = solved.without_unknowns(rate)
            if found is not None and surface.is_in(found) and not solved.is_mixed(surface):
                rates[surface] = found
        return cls(mode, rates)

    def _mixed(self, surface: Surface) -> list[Surface]:
        """The other surfaces whose relations multiply those of a surface in rates: no linear system holds both."""
        found = []
        for other in self.surfaces:
            both = [rate for rate in self.rates.values() if surface.is_in(rate) and other.is_in(rate)]
            if other is not surface and any(_is_mixed(rate, surface, other) for rate in both):
                found.append(other)
        return found

    @property
    def surfaces(self) -> list[Surface]:
        """The surfaces on which it may slide."""
        return list(self.rates)

    @cached_property
    def _shares(self) -> list[ca.MX]:
        """Symbols of the shares."""
        return [ca.MX.sym(f"share{i}") for i in range(len(self.surfaces))]

    @cached_property
    def _values(self) -> list[ca.MX]:
        """The shares at which the heights of all surfaces stay zero that slide."""
        return self._solved(self.surfaces)

    def _solved(self, surfaces: Sequence[Surface]) -> list[ca.MX]:
        """Shares of surfaces; the motion slides on none of the others."""

        def rate_of(surface: Surface, below: Surface | None) -> ca.MX:
            rate = self.rates[surface]
            for other in surfaces:
                rate = other.held(1.0 if other is below else 0.0, rate)
            return rate

        rows, rest = [], []
        for i, own in enumerate(surfaces):
            above, row, slides = rate_of(own, None), {}, own.status == SLIDES
            for j, other in enumerate(surfaces):
                if other.is_in(self.rates[own]):
                    both = slides if i == j else ca.logic_and(slides, other.status == SLIDES)
                    row[j] = ca.if_else(both, rate_of(own, other) - above, float(i == j))
            rows.append(row)
            rest.append(ca.if_else(slides, -above, 0.0))
        return _eliminated(rows, rest)

    def blended(self, expression: ca.MX) -> ca.MX:
        """An expression whose relations have their shares while the motion slides."""
        return self._blended(expression, self.surfaces, self._shares, self._values)

    @staticmethod
    def _blended(
        expression: ca.MX, surfaces: Sequence[Surface], symbols: Sequence[ca.MX], values: Sequence[ca.MX]
    ) -> ca.MX:
        found = expression
        for surface, share in zip(surfaces, symbols, strict=True):
            if not surface.is_in(found):
                continue
            if _is_affine(found, list(surface.memory.values())):
                found = surface.held(share, found)
            else:
                (above,), (below,) = surface.on(0.0, [found]), surface.on(1.0, [found])
                found = ca.if_else(surface.status == SLIDES, above + share * (below - above), found)
        return ca.substitute([found], list(symbols), list(values))[0] if surfaces else found

    def moved(self) -> Mode:
        """The mode."""
        if not self.rates:
            return self.mode
        mode = self.mode
        stated = [*mode.ode.values(), mode.residual, mode.algebraic]
        *flows, residual, algebraic = ca.cse([self.blended(e) for e in stated])
        ode = dict(zip(mode.ode, flows, strict=True))
        return replace(mode, ode=ode, residual=residual, algebraic=algebraic)

    @cached_property
    def _sides(self) -> dict[Surface, tuple[ca.MX, ca.MX]]:
        """The rates of the heights above and below their surfaces; on the others the motion slides as it does."""
        found: list[ca.MX] = []
        for surface in self.surfaces:
            others = [other for other in self.surfaces if other is not surface]
            symbols, values = self._shares[: len(others)], self._solved(others)
            for side in (0.0, 1.0):
                (rate, *own) = surface.on(side, [self.rates[surface], *values])
                found.append(self._blended(rate, others, symbols, own))
        found = ca.cse(found) if found else []
        return dict(zip(self.surfaces, zip(found[::2], found[1::2], strict=True), strict=True))

    def flipped(self, transition: Transition, entries: Layout) -> Transition:
        """A transition that changes a relation: where both sides drive the state to its surface, it slides."""
        assert transition.relation is not None
        surface = next((s for s in self.surfaces if transition.relation.memory in s.memory), None)
        guard = self.blended(transition.trigger.expression)
        if surface is None:
            return replace(transition, trigger=StateTrigger(guard))
        above, below = self._sides[surface]
        slides = ca.MX(SLIDES)
        for other in self._mixed(surface):
            slides = ca.if_else(other.status == SLIDES, math.nan, slides)
        status = ca.if_else(ca.logic_and(above < 0, below > 0), slides, CROSSES)
        guard = ca.if_else(surface.status == CROSSES, transition.trigger.expression, AWAY)
        return replace(
            transition,
            trigger=StateTrigger(guard),
            memory=transition.memory | {surface.name: status},
            relation=replace(transition.relation, status=entries[surface.name].start),
        )

    def left(self, transition: Transition, motions: Mapping[str, _Motion]) -> Transition:
        """A transition of the model: the motion goes on sliding if it leaves the height as it is."""
        found = transition
        if found.guard is not None and any(surface.is_in(found.guard) for surface in self.surfaces):
            found = replace(found, trigger=StateTrigger(self.blended(found.guard)))
        if found.target is None:
            return found
        memory, updates = dict(found.memory), found.reset | found.memory
        is_solved = bool(found.equations.numel() or found.project)
        for surface in self.surfaces:
            if surface not in motions[found.target.name].rates:
                memory[surface.name] = ca.MX(CROSSES)
                continue
            symbols = {s.name() for s in ca.symvar(surface.height)}
            own = [name for name in updates if name in symbols]
            if is_solved:
                memory[surface.name] = ca.MX(CROSSES)
            if is_solved or not own:
                continue
            old = [s for name in own for s in ca.symvar(surface.height) if s.name() == name]
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
        for surface, (above, below) in self._sides.items():
            entry, slides = entries[surface.name].start, surface.status == SLIDES
            for side, inward, outward, status, word in (
                (0.0, -above, -below, ABOVE, "false"),
                (1.0, below, above, BELOW, "true"),
            ):
                guard = ca.if_else(slides, inward, ca.if_else(surface.status == status, -inward, AWAY))
                values = dict(zip(surface.memory, surface.at(side), strict=True))
                # where both sides lead away, which a transition has brought about, the motion is not unique
                leaves = ca.if_else(outward > 0, math.nan, status)
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


def _is_affine(expression: ca.MX, symbols: Sequence[ca.MX]) -> bool:
    """Whether an expression is affine in symbols, which are no conditions in it: those have no derivatives."""
    own = {s.__hash__() for s in symbols}
    others = [s for s in ca.symvar(expression) if s.__hash__() not in own]
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


def _is_mixed(rate: ca.MX, one: Surface, other: Surface) -> bool:
    """Whether the relations of one surface change how those of another one act; judged by samples."""
    corners = [one.on(a, other.on(b, [rate]))[0] for a, b in ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0))]
    symbols = ca.symvar(ca.vertcat(*corners))
    function = ca.Function("corners", symbols, [ca.vertcat(*corners)])
    draw = np.random.default_rng(0)
    at = [
        draw.choice((-1.0, 1.0), (n, SAMPLES)) * 10.0 ** draw.uniform(-1, 1, (n, SAMPLES))
        for n in (symbol.numel() for symbol in symbols)
    ]
    values = np.array(function.map(SAMPLES).call([ca.DM(sample) for sample in at])[0])
    values = values[:, np.all(np.isfinite(values), axis=0)]
    differences = np.abs(values.T @ (1.0, -1.0, -1.0, 1.0))
    return values.shape[1] == 0 or bool(np.any(differences > MIXED * np.abs(values).max(axis=0)))


def _eliminated(rows: list[dict[int, ca.MX]], rest: list[ca.MX]) -> list[ca.MX]:
    """Solve a linear system by Gaussian elimination without a search for pivots."""
    n = len(rows)
    for k in range(n):
        for i in range(k + 1, n):
            if k not in rows[i]:
                continue
            factor = rows[i].pop(k) / rows[k][k]
            for j, entry in rows[k].items():
                if j > k:
                    rows[i][j] = rows[i].get(j, ca.MX(0)) - factor * entry
            rest[i] = rest[i] - factor * rest[k]
    for i in reversed(range(n)):
        for j in range(i + 1, n):
            if j in rows[i]:
                rest[i] = rest[i] - rows[i][j] * rest[j]
        rest[i] = rest[i] / rows[i][i]
    return rest
