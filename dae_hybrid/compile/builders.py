"""Builders for all modes and transitions of a model; those that differ only in numbers share one, see `families`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

import casadi as ca
import numpy as np

from dae_hybrid.codegen.casadi_tools import SYMBOLIC_SOLVE
from dae_hybrid.codegen.kernels import NativeFunction
from dae_hybrid.compile.families import Family, families, kernels_of
from dae_hybrid.compile.lowering import ModeLowering
from dae_hybrid.compile.mode_system import ModeBuilder, of_member
from dae_hybrid.compile.native_transitions import crossing_functions, has_slopes, native_eligible
from dae_hybrid.compile.transition_functions import as_stated, build_transition, parameters_of
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.statement.declarations import Transition
from dae_hybrid.statement.model import HybridModel
from dae_hybrid.statement.triggers import StateTrigger, TimeTrigger
from dae_hybrid.system.system import ModeSystem
from dae_hybrid.system.transition_map import TransitionMap

#: smallest number of modes, or transitions, that share their functions
MIN_FAMILY_SIZE = 4


class Builders:
    """Builders for the modes and transitions of a model.

    Attributes
    ----------
    units : dict of int to ModeBuilder
        Builders, keyed by the first mode that uses them.
    unit : list of int
        Unit of each mode.
    numbers : list of ndarray
        Numbers of each mode, appended to the parameters of its unit; empty for a mode that shares nothing.
    """

    def __init__(self, model: HybridModel, *, eliminate: bool, direct: bool) -> None:
        self.model, self._eliminate, self._direct = model, eliminate, direct
        self.names = list(model.modes)
        self.index = {name: i for i, name in enumerate(self.names)}
        self.outgoing: list[list[Transition]] = [[] for _ in self.names]
        for transition in model.transitions.values():
            if not transition.skips:
                self.outgoing[self.index[transition.source.name]].append(transition)
        self.lowering, self.own, self._ends = cache(self._lowering), cache(self._own), cache(self._ends_of)
        self.unit, self.numbers = list(range(len(self.names))), [np.zeros(0)] * len(self.names)
        self._families: dict[int, Family[int]] = {}
        for family in families({i: self._mode(i) for i in range(len(self.names))}, MIN_FAMILY_SIZE):
            if not self.lowering(family.members[0]).algebraic.size:
                self._families[family.members[0]] = family
                for i, numbers in zip(family.members, family.numbers, strict=True):
                    self.unit[i], self.numbers[i] = family.members[0], numbers
        self.units = {i: self._unit(i) for i in dict.fromkeys(self.unit)}

    def _lowering(self, mode: int) -> ModeLowering:
        return ModeLowering(self.model, self.model.modes[self.names[mode]])

    def _own(self, mode: int) -> ModeBuilder:
        """The builder of a single mode, without shared functions."""
        if self.unit[mode] == mode and mode not in self._families:
            return self.units[mode]
        return self._builder(self.lowering(mode), mode, self.outgoing[mode])

    def _builder(self, lowering: ModeLowering, mode: int, outgoing: Sequence[Transition]) -> ModeBuilder:
        return ModeBuilder(self.model, lowering, mode, outgoing, eliminate=self._eliminate, direct=self._direct)

    def _mode(self, mode: int) -> tuple[Hashable, list[ca.MX]]:
        """Return a key that similar modes share, and the expressions that may differ in numbers."""
        stated = self.model.modes[self.names[mode]]
        guarded = [t for t in self.outgoing[mode] if t.guard is not None]
        if stated.residual.numel() or stated.algebraic.numel() or stated.constraint.numel() or not stated.ode:
            return mode, []
        if self.model.indicators:  # functionals and transitions may differ
            return mode, []
        key = (*stated.ode, *((t.direction, t.jumps, t.resolution) for t in guarded))
        return key, [*stated.ode.values(), *(t.guard for t in guarded if t.guard is not None)]

    def is_shared(self, mode: int) -> bool:
        """Whether a mode shares its functions with others."""
        return self.unit[mode] in self._families

    def _unit(self, mode: int) -> ModeBuilder:
        if mode not in self._families:
            return self._builder(self.lowering(mode), mode, self.outgoing[mode])
        numbers = ca.MX.sym("numbers", self._families[mode].size)
        return self._with_numbers(mode, numbers, numbers)

    def _with_numbers(self, unit: int, numbers: ca.MX, own: ca.MX) -> ModeBuilder:
        """Build a unit with symbols appended to the parameters; `own` are those of the unit itself."""
        mode, outgoing = self.model.modes[self.names[unit]], list(self.outgoing[unit])
        if unit in self._families:
            values = self._families[unit].stated(own)
            guards = iter(values[len(mode.ode) :])
            mode = replace(mode, ode=dict(zip(mode.ode, values, strict=False)))
            outgoing = [t if t.guard is None else replace(t, trigger=StateTrigger(next(guards))) for t in outgoing]
        return self._builder(ModeLowering(self.model, mode, numbers), unit, outgoing)

    def modes(
        self,
        functions: Mapping[int, dict[str, ca.Function]],
        compiled: Mapping[int, dict[str, NativeFunction]],
        of_motion: Mapping[int, dict[str, NativeFunction]],
    ) -> tuple[ModeSystem, ...]:
        """Build all modes from the functions of the units, and those of the steps of equations of motion."""
        number = {name: i for i, name in enumerate(self.model.transitions)}
        units: dict[int, ModeSystem] = {}
        found = []
        untaken: dict[str, list[int]] = {}
        for transition in self.model.transitions.values():
            if transition.skips:
                untaken.setdefault(transition.source.name, []).append(number[transition.name])
        for i, (unit, numbers) in enumerate(zip(self.unit, self.numbers, strict=True)):
            guarded = tuple(number[t.name] for t in self.outgoing[i] if t.guard is not None)
            timed = tuple(number[t.name] for t in self.outgoing[i] if t.guard is None)
            if unit not in units:
                units[unit] = self.units[unit].system(
                    functions[unit], compiled[unit], of_motion.get(unit, {}), guarded, timed
                )
            own = units[unit]
            own = of_member(own, self.names[i], i, guarded, timed, numbers) if self.is_shared(i) else own
            found.append(replace(own, untaken=tuple(untaken[self.names[i]])) if self.names[i] in untaken else own)
        return tuple(found)

    # -- transitions --------------------------------------------------------------------------------

    def _ends_of(
        self, source: int, target: int | None, is_loop: bool, size: int
    ) -> tuple[ModeBuilder, ModeBuilder | None, ca.MX]:
        """Return the builders of the units at both ends of a transition, and symbols for the transition's own numbers.

        The builders' parameters are followed by the numbers of both units and `size` numbers of the transition.
        """
        own = ca.MX.sym("numbers", size)
        at = [source] if target is None or is_loop else [source, target]
        sizes = [self._families[unit].size if unit in self._families else 0 for unit in at]
        if not size and not any(unit in self._families for unit in at):
            return self.units[source], None if target is None else self.units[target], own
        column = ca.MX.sym("numbers", sum(sizes) + size)
        pieces = ca.vertsplit(column, np.cumsum([0, *sizes, size]).tolist())
        found = [self._with_numbers(unit, column, piece) for unit, piece in zip(at, pieces, strict=False)]
        return found[0], None if target is None else found[-1], pieces[-1]

    def _transition(self, transition: Transition, costs: Sequence[ca.MX | None]) -> tuple[Hashable, list[ca.MX]]:
        """Return a key that similar transitions share, and the expressions that may differ in numbers."""
        source, target = self._at(transition)
        modes = [self.units[unit] for unit in (source, target) if unit is not None]
        if any(mode.nz > SYMBOLIC_SOLVE for mode in modes):
            return transition.name, []
        side = None if isinstance(transition.zero_side, int) else transition.zero_side
        same = transition.when, transition.priority, transition.equations, transition.metric, side
        key = (
            source, target, transition.source is transition.target, transition.trigger.argument, *transition.reset,
            None, *transition.memory, None, *transition.project, *transition.guess, transition.labels,
            transition.freezes, *map(_hash, (*same, *transition.guess.values(), *costs)),
        )  # fmt: skip
        return key, _expressions(transition)

    def _at(self, transition: Transition) -> tuple[int, int | None]:
        """The units of the source and target modes."""
        source, target = self.index[transition.source.name], transition.target
        return self.unit[source], None if target is None else self.unit[self.index[target.name]]

    def transitions(self) -> Transitions:
        """Build all transitions."""
        found = Transitions(self)
        stated = list(self.model.transitions.values())
        costs = [dict(f.at_events) for f in self.model.functionals.values()]
        parameters = [d.symbol for d in self.model.of_kind("parameter")]
        given = {i: self._transition(t, [own.get(t.name) for own in costs]) for i, t in enumerate(stated)}
        alike = families(given, MIN_FAMILY_SIZE, parameters)
        alone = set(given).difference(*(family.members for family in alike))
        alike += _families_by_place({i: given[i] for i in sorted(alone)}, stated, parameters)
        family_of = {i: (family, k) for family in alike for k, i in enumerate(family.members)}
        first: dict[Hashable, int] = {}
        for i, transition in enumerate(stated):
            family, k = family_of.get(i, (None, 0))
            kind = i if family is None else family.members[0]
            source, target = self._at(transition)
            is_loop = transition.source is transition.target
            begin, end, own = self._ends(source, target, is_loop, 0 if family is None else family.size)
            if family is None or k == 0:
                template = transition if family is None else _with(transition, family.stated(own))
                found.built[kind] = build_transition(self.model, template, i, self.index, begin, end)
                found.ends[kind] = begin, end
            first.setdefault(kind, i)
            numbers = [self.numbers[self.index[transition.source.name]]]
            if transition.target is not None and not is_loop:
                numbers.append(self.numbers[self.index[transition.target.name]])
            found.add(
                transition, kind, np.concatenate((*numbers, np.zeros(0) if family is None else family.numbers[k]))
            )
        found.connect(stated)
        return found


class Transitions:
    """The transitions of a model.

    `built` holds one transition per family, keyed by its first member; `kind` is this key for each transition of `all`.
    `numbers` are appended to the parameters of the functions.
    """

    def __init__(self, builders: Builders) -> None:
        self._builders = builders
        self.built: dict[int, TransitionMap] = {}
        self.ends: dict[int, tuple[ModeBuilder, ModeBuilder | None]] = {}
        self.kind: list[int] = []
        self.numbers: list[Array] = []
        self.all: list[TransitionMap] = []

    def add(self, transition: Transition, kind: int, numbers: Array) -> None:
        """Append a transition whose kind has been built."""
        own = self.built[kind]
        if kind != len(self.all) or numbers.size:
            stated = as_stated(self._builders.model, transition, len(self.all), self._builders.index)
            own = replace(own, **stated, kernels=kernels_of(own.kernels, parameters_of, numbers))
        self.kind.append(kind)
        self.numbers.append(numbers)
        self.all.append(own)

    def connect(self, stated: Sequence[Transition]) -> None:
        """Connect the transitions that are replaced by others where their condition does not hold."""
        number = {t.name: i for i, t in enumerate(stated)}
        for i, transition in enumerate(stated):
            if transition.skips:
                owner = number[transition.skips]
                self.all[i] = replace(self.all[i], owner=owner)
                self.all[owner] = replace(self.all[owner], otherwise=i)

    def slopes(self) -> list[bool]:
        """Whether each transition has slopes; see `has_slopes`."""
        found = {kind: has_slopes(own) for kind, own in self.built.items() if own.target is not None}
        return [found.get(kind, False) for kind in self.kind]

    def crossings(self) -> dict[int, dict[str, ca.Function]]:
        """The compiled functions of native transitions, by kind."""
        eligible = {k: ends for k, ends in self.ends.items() if native_eligible(self.built[k], *ends)}
        return {k: crossing_functions(self.built[k], *ends) for k, ends in eligible.items()}


def _families_by_place(
    given: Mapping[int, tuple[Hashable, list[ca.MX]]], stated: Sequence[Transition], parameters: Sequence[ca.MX]
) -> list[Family[int]]:
    """Return families of transitions with times of one statement, which differ in structure, such as running sums."""
    symbols: dict[int, tuple[ca.MX, ca.MX]] = {}  # symbols for the times of each statement, and these
    placed = {}
    for i, (key, values) in given.items():
        trigger = stated[i].trigger
        if not (isinstance(trigger, TimeTrigger) and values and trigger.times is not None):
            continue
        symbol, _ = symbols.setdefault(
            trigger.times.__hash__(), (ca.MX.sym("times", trigger.times.numel()), ca.vec(trigger.times))
        )
        placed[i] = (key, trigger.times.__hash__()), [symbol[trigger.place], *values[1:]]
    own = [symbol for symbol, _ in symbols.values()]
    times = [values for _, values in symbols.values()]
    alike = families(placed, MIN_FAMILY_SIZE, [*parameters, *own])

    def written(family: Family[int], column: ca.MX) -> list[ca.MX]:
        found: list[ca.MX] = ca.substitute(family.write(column), own, times)
        return found

    return [replace(family, write=partial(written, family)) for family in alike]


def _expressions(transition: Transition) -> list[ca.MX]:
    """The expressions of a transition that similar ones may state with other numbers."""
    return [transition.trigger.expression, *transition.reset.values(), *transition.memory.values()]


def _hash(expression: ca.MX | None) -> int | None:
    """Identity of an expression, which transitions of one statement share."""
    return None if expression is None or not expression.numel() else int(expression.__hash__())


def _with(transition: Transition, values: list[ca.MX]) -> Transition:
    """Replace the expressions of a transition; see `_expressions`."""
    rest = iter(values)
    return replace(
        transition,
        trigger=replace(transition.trigger, expression=next(rest)),
        reset={name: next(rest) for name in transition.reset},
        memory={name: next(rest) for name in transition.memory},
    )
