"""The rates of motion along the surfaces of relations; see `dae_hybrid.compile.sliding`.

Everything is in scalar symbols, entry by entry: an entry of a vector acts on its own surface only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

import casadi as ca
import numpy as np
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from dae_hybrid.codegen.casadi_tools import expanded
from dae_hybrid.compile.elimination import is_affine, solve_in_blocks
from dae_hybrid.statement.declarations import Declaration, Mode
from dae_hybrid.statement.model import HybridModel

#: status of the motion at a surface: crosses it where it meets it, slides on it, has left it to h > 0, to h < 0
CROSSES, SLIDES, ABOVE, BELOW = 0.0, 1.0, 2.0, 3.0
#: largest numbers of unknowns that are solved for symbolically, of surfaces of a mode, and of those that slide together
MOST_SOLVED, MOST_SURFACES, MOST_TOGETHER = 16, 100, 4
#: points at which rates are compared, and the share of them within which they are equal
SAMPLES, MIXED = 64, 1e-9
#: height at which a rate that vanishes on a surface, as a root or faster, is below this share of what it is elsewhere;
#: steps to the surface, and samples that are needed
BESIDE, VANISHED, NEWTON_STEPS, ENOUGH = 1e-12, 1e-2, 50, 8
#: operations by which a rate can vanish on a surface that is reached
ROOTS = frozenset((ca.OP_SQRT, ca.OP_POW, ca.OP_CONSTPOW))


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
        own = {symbol.__hash__() for symbol in self.memory.values()}
        return not own.isdisjoint(symbol.__hash__() for symbol in ca.symvar(expression))


class Sides(NamedTuple):
    """The rates of a height above and below its surface, while the motion does not slide on it.

    And, while it does, two values that are positive, and zero where it leaves to above and below.
    """

    above: ca.MX
    below: ca.MX
    from_above: ca.MX
    from_below: ca.MX


class NotExpandedError(Exception):
    """An expression calls a function that cannot be written out in scalars."""


class Scalars:
    """Symbols of a model, and scalar ones that stand for them."""

    def __init__(self) -> None:
        self.symbols: dict[int, tuple[ca.MX, ca.SX]] = {}

    def of(self, symbol: ca.MX) -> ca.SX:
        """The scalar symbols of a symbol."""
        key = symbol.__hash__()
        if key not in self.symbols:
            self.symbols[key] = symbol, ca.SX.sym(symbol.name(), symbol.shape)
        return self.symbols[key][1]

    def column(self, symbols: Sequence[ca.MX]) -> ca.SX:
        """The scalar symbols of several symbols."""
        return ca.vertcat(ca.SX(0, 1), *map(self.of, symbols))

    def expanded(self, expressions: Sequence[ca.MX]) -> list[ca.SX]:
        """Expressions in scalar symbols.

        Raises
        ------
        NotExpandedError
            They call functions that cannot be expanded.
        """
        symbols = ca.symvar(ca.veccat(*expressions))
        function = expanded(ca.Function("scalars", symbols, list(expressions)))
        if not function.is_a("SXFunction"):
            raise NotExpandedError
        found: list[ca.SX] = function.call([self.of(symbol) for symbol in symbols], True, False)
        return found

    def restored(self, expressions: Sequence[ca.SX]) -> list[ca.MX]:
        """Expressions in the symbols of the model."""
        symbols, scalars = zip(*self.symbols.values(), strict=True)
        found: list[ca.MX] = ca.Function("motion", scalars, ca.cse(list(expressions))).call(symbols, True, False)
        return found


class Equations:
    """The equations of a mode: states, their rates, and what the equations are solved for."""

    def __init__(self, model: HybridModel, mode: Mode) -> None:
        named = [name for name in mode.ode if name in model.rates]
        *rates, self.equations = ca.substitute(
            [*mode.ode.values(), ca.vertcat(mode.residual, mode.algebraic)],
            [model.rates[name] for name in named],
            [mode.ode[name] for name in named],
        )
        used = {s.__hash__() for s in ca.symvar(ca.veccat(*rates, self.equations, mode.constraint))}
        implicit = {n: rate for n, rate in model.rates.items() if n not in mode.ode and rate.__hash__() in used}
        every = dict(zip(mode.ode, rates, strict=True)) | implicit
        self.states, self.rates = [model.declarations[name].symbol for name in every], list(every.values())
        algebraic = [d.symbol for d in model.of_kind("algebraic") if d.symbol.__hash__() in used]
        self.unknowns = [*algebraic, *implicit.values()]
        self.constrained = mode.constraint.numel() > 0  # it determines unknowns by its derivatives

    def rates_of(self, surfaces: Sequence[Surface], time: ca.MX, scalars: Scalars) -> dict[Surface, ca.SX]:
        """The rates of those of the heights that the motion may hold at zero, without unknowns.

        They depend on the relations of their own surface; and the mean of the equations on its sides is solved by the
        mean of the unknowns, which holds if they are linear in these, and no relation multiplies them.
        """
        stated = [ca.vertcat(*(s.height for s in surfaces)), ca.veccat(*self.rates), self.equations]
        heights, rates, equations = scalars.expanded(stated)
        flows = ca.jtimes(heights, scalars.of(time), ca.SX(1))
        flows += ca.jacobian(heights, scalars.column(self.states)) @ rates
        unknowns = scalars.column(self.unknowns)
        by, values = ca.jacobian(equations, unknowns), self._solved(equations, unknowns)
        reduced = flows if values is None else ca.substitute(flows, unknowns, values)
        in_equations, in_factors, open_ = _names(equations), _names(by), _names(unknowns)
        found = {}
        for surface, flow, rate in zip(surfaces, ca.vertsplit(flows), ca.vertsplit(reduced), strict=True):
            own = _names(scalars.column(list(surface.memory.values())))
            is_mean = own.isdisjoint(in_equations) or (values is not None and own.isdisjoint(in_factors))
            is_known = values is not None or open_.isdisjoint(_names(flow))
            if is_mean and is_known and not own.isdisjoint(_names(rate)):
                found[surface] = rate
        return found

    def _solved(self, equations: ca.SX, unknowns: ca.SX) -> ca.SX | None:
        """The unknowns; None if the equations are not linear in them."""
        n = unknowns.numel()
        if self.constrained or n != equations.numel() or n > MOST_SOLVED or not is_affine(equations, unknowns):
            return None
        by = ca.jacobian(equations, unknowns)
        if ca.sprank(by) < n:
            return None
        return -solve_in_blocks(by, ca.substitute(equations, unknowns, 0))


@dataclass(eq=False)
class Field:
    """The rates of a mode on and beside the surfaces on which its motion may slide."""

    surfaces: list[Surface]
    rates: list[ca.SX]  # of the heights
    scalars: Scalars
    stated: list[ca.MX]  # all equations and integrands

    @classmethod
    def of(cls, model: HybridModel, mode: Mode, surfaces: Sequence[Surface]) -> Field:
        """Keep the surfaces on which the motion of a mode may slide."""
        found, scalars = dict[Surface, ca.SX](), Scalars()
        if surfaces:
            equations = Equations(model, mode)
            given = [d.symbol for d in model.of_kind("parameter")]
            given += [d.symbol for d in model.of_kind("memory") if not _jumps(d)]
            known = {s.__hash__() for s in (model.time, *equations.states, *given)}
            own = [s for s in surfaces if {symbol.__hash__() for symbol in ca.symvar(s.height)} <= known]
            found = equations.rates_of(own, model.time, scalars) if own else found
        if len(found) > MOST_SURFACES:
            found = {}
        integrands = [f.integrand for f in model.functionals.values() if f.integrand is not None]
        stated = [*mode.ode.values(), mode.residual, mode.algebraic, *integrands]
        return cls(list(found), list(found.values()), scalars, stated)

    def slides(self, i: int) -> ca.SX:
        """Whether the motion slides on a surface."""
        return self.scalars.of(self.surfaces[i].status) == SLIDES

    @cached_property
    def _own(self) -> list[list[ca.SX]]:
        """The memory of the relations of each surface."""
        return [[self.scalars.of(symbol) for symbol in surface.memory.values()] for surface in self.surfaces]

    def _acting(self, expression: ca.SX) -> list[int]:
        """The surfaces whose relations are in an expression."""
        names = _names(expression)
        return [i for i, own in enumerate(self._own) if not names.isdisjoint(_names(ca.vertcat(*own)))]

    @cached_property
    def _by(self) -> list[list[int]]:
        """The surfaces whose relations act on each height."""
        return [self._acting(rate) for rate in self.rates]

    def _on(self, i: int, side: float, expression: ca.SX) -> ca.SX:
        """An expression below a surface (1) or above it (0), whatever the memory says."""
        found: ca.SX = ca.substitute([expression], self._own[i], [ca.SX(v) for v in self.surfaces[i].at(side)])[0]
        return found

    # -- which slide together -----------------------------------------------------------------------

    @cached_property
    def _groups(self) -> list[list[int]]:
        """Surfaces that act on each other by sums may slide together, if they are few; the others slide alone."""
        groups = []
        for members in self._connected:
            alone = len(members) > MOST_TOGETHER or any(self._is_mixed(i, j) for i, j in combinations(members, 2))
            groups += [[i] for i in members] if alone else [members]
        return groups

    @cached_property
    def _connected(self) -> list[list[int]]:
        """Surfaces that act on each other, directly or by others."""
        acts = np.zeros((len(self.surfaces), len(self.surfaces)), dtype=bool)
        for i, by in enumerate(self._by):
            acts[i, by] = True
        count, labels = connected_components(acts, directed=False)
        return [np.flatnonzero(labels == label).tolist() for label in range(count)]

    def rivals(self, i: int) -> list[Surface]:
        """The surfaces beside which the motion must not slide on a surface."""
        (connected,) = (members for members in self._connected if i in members)
        (group,) = (members for members in self._groups if i in members)
        return [self.surfaces[j] for j in connected if j not in group]

    def _is_mixed(self, one: int, other: int) -> bool:
        """Whether the relations of one surface change how those of another one act; judged by samples."""
        corners = [
            self._on(one, a, self._on(other, b, rate))
            for rate, by in zip(self.rates, self._by, strict=True)
            if one in by and other in by
            for a, b in ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (1.0, 1.0))
        ]
        if not corners:
            return False
        column = ca.vertcat(*corners)
        symbols = ca.symvar(column)
        function = ca.Function("corners", [ca.vertcat(*symbols)], [column])
        values = np.array(function.map(SAMPLES)(_samples(len(symbols)))).reshape(-1, 4, SAMPLES)
        values = values[:, :, np.all(np.isfinite(values), axis=(0, 1))]
        differences = np.abs(np.einsum("ijk,j->ik", values, (1.0, -1.0, -1.0, 1.0)))
        return values.shape[2] == 0 or bool(np.any(differences > MIXED * np.abs(values).max(axis=1)))

    # -- rest -----------------------------------------------------------------------------------------

    @cached_property
    def undetermined(self) -> list[bool]:
        """Whether the motion comes to rest on each surface from both sides, where something else jumps.

        As with h' = -c sign(h) sqrt(|h|): every share keeps it there. Judged by samples, beside the surface and away.
        """
        functions = [ca.Function("rate", ca.symvar(rate), [rate]) for rate in self.rates]
        rooted = [not ROOTS.isdisjoint(map(f.instruction_id, range(f.n_instructions()))) for f in functions]
        if not any(rooted):
            return rooted
        heights, stated = (
            ca.vertsplit(ca.densify(ca.veccat(*self.scalars.expanded(columns))))
            for columns in ([surface.height for surface in self.surfaces], self.stated)
        )
        return [own and self._jumps_at_rest(i, heights[i], stated) for i, own in enumerate(rooted)]

    def _jumps_at_rest(self, i: int, height: ca.SX, entries: Sequence[ca.SX]) -> bool:
        jumps = [self._on(i, 0.0, e) - self._on(i, 1.0, e) for e in entries if i in self._acting(e)]
        column = ca.vertcat(*(self._on(i, side, self.rates[i]) for side in (0.0, 1.0)), *jumps)
        symbols = ca.vertcat(*ca.symvar(ca.vertcat(height, column)))
        place = ca.Function("place", [symbols], [height, ca.densify(ca.gradient(height, symbols))]).map(SAMPLES)
        values, away = ca.Function("values", [symbols], [column]).map(SAMPLES), _samples(symbols.numel())
        with np.errstate(all="ignore"):
            here, there = (np.abs(np.array(values(points))) for points in (_beside(place, away), away))
            vanish = (here <= VANISHED * there)[:, np.all(np.isfinite(here) & np.isfinite(there), axis=0)]
        always = vanish.all(axis=1)
        return vanish.shape[1] >= ENOUGH and bool(always[:2].all() and not always.all())

    # -- shares ---------------------------------------------------------------------------------------

    @cached_property
    def _solved(self) -> list[tuple[ca.SX, ca.SX]]:
        """The share of each surface at which its height stays zero, and how its rate falls from below to above."""
        found = [(ca.SX(0), ca.SX(1))] * len(self.surfaces)
        for group in self._groups:
            matrix, right, falls = ca.SX(len(group), len(group)), list[ca.SX](), dict[int, ca.SX]()
            for row, i in enumerate(group):
                above = self._held(i, group, None)
                for column, j in enumerate(group):
                    if j in self._by[i]:
                        fall = self._held(i, group, j) - above
                        matrix[row, column] = ca.if_else(ca.logic_and(self.slides(i), self.slides(j)), fall, i == j)
                        if i == j:
                            falls[i] = fall
                right.append(ca.if_else(self.slides(i), -above, 0))
            shares = ca.vertsplit(solve_in_blocks(matrix, ca.vertcat(*right)))
            for i, share in zip(group, shares, strict=True):
                found[i] = share, falls[i]
        return found

    def _held(self, i: int, group: Sequence[int], below: int | None) -> ca.SX:
        """A rate above all surfaces of a group on which the motion slides, but below one."""
        old, new = list[ca.SX](), list[ca.SX]()
        for j in group:
            old += self._own[j]
            new += self._while_sliding(j, float(j == below))
        rate: ca.SX = ca.substitute([self.rates[i]], old, new)[0]
        return rate

    def _while_sliding(self, i: int, share: Any) -> list[ca.SX]:
        """Values of the relations of a surface: those of a share while the motion slides on it, else the memory."""
        pairs = zip(self.surfaces[i].at(share), self._own[i], strict=True)
        return [ca.if_else(self.slides(i), value, memory) for value, memory in pairs]

    def _blended(self, columns: Sequence[ca.SX]) -> list[ca.SX]:
        """Expressions whose relations have their shares while the motion slides."""
        shares = [ca.SX.sym(f"share{i}") for i in range(len(self.surfaces))]

        def blend(entry: ca.SX) -> ca.SX:
            for i in self._acting(entry):
                if is_affine(entry, ca.vertcat(*self._own[i])):
                    (entry,) = ca.substitute([entry], self._own[i], self._while_sliding(i, shares[i]))
                else:
                    above, below = (self._on(i, side, entry) for side in (0.0, 1.0))
                    entry = ca.if_else(self.slides(i), above + shares[i] * (below - above), entry)
            return entry

        found = []
        for column in columns:
            entries = ca.vertsplit(ca.vec(ca.densify(column)))
            found.append(ca.reshape(ca.vertcat(*map(blend, entries)), column.shape))
        blended: list[ca.SX] = ca.substitute(found, shares, [share for share, _ in self._solved])
        return blended

    # -- in the symbols of the model ------------------------------------------------------------------

    def blended(self, expressions: Sequence[ca.MX]) -> list[ca.MX]:
        """Expressions whose relations have their shares while the motion slides.

        Raises
        ------
        NotExpandedError
            One with a relation calls a function that cannot be expanded.
        """
        found = list(expressions)
        jumping = [k for k, e in enumerate(found) if any(surface.is_in(e) for surface in self.surfaces)]
        if jumping:
            columns = self._blended(self.scalars.expanded([found[k] for k in jumping]))
            for k, new in zip(jumping, self.scalars.restored(columns), strict=True):
                found[k] = new
        return found

    @cached_property
    def sides(self) -> list[Sides]:
        """The sides of each surface; on the other surfaces the motion slides as it does."""
        if not self.surfaces:
            return []
        found = list[ca.SX]()
        for i, (rate, (share, fall)) in enumerate(zip(self._blended(self.rates), self._solved, strict=True)):
            found += [self._on(i, 0.0, rate), self._on(i, 1.0, rate), fall * share, fall * (1 - share)]
        values = self.scalars.restored(found)
        return [Sides(*values[k : k + 4]) for k in range(0, len(values), 4)]


def _samples(n: int) -> NDArray[np.float64]:
    """Values of both signs and several sizes for n symbols, (n, SAMPLES)."""
    draw = np.random.default_rng(0)
    signs, sizes = draw.choice((-1.0, 1.0), (n, SAMPLES)), draw.uniform(-1, 1, (n, SAMPLES))
    return np.asarray(signs * 10.0**sizes)


def _beside(place: ca.Function, points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return points beside a surface, on the sides of others: `place` gives the heights and their gradients."""
    side = np.copysign(1.0, np.array(place(points)[0]))
    for _ in range(NEWTON_STEPS):
        height, slope = map(np.array, place(points))
        points = points - (height - side * BESIDE) / (slope**2).sum(axis=0) * slope
    return points


def _jumps(declared: Declaration) -> bool:
    """Whether a memory jumps without a transition that says so."""
    return declared.of is not None or (declared.signal is not None and declared.signal.kind == "previous")


def _names(expression: ca.SX) -> set[int]:
    """What identifies the symbols of an expression."""
    return {symbol.element_hash() for symbol in ca.symvar(expression)}
