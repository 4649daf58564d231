"""Relations in expressions become events, as in Modelica.

A comparison in an equation makes its right-hand side jump, as do `floor`, `sign` and `fmod`; `fabs`, `fmin` and
`fmax` make its derivative jump. An integrator that steps across a jump loses accuracy, and a derivative that ignores
the jump is that of one branch: the switching time depends on the parameters.

`with_relations` replaces every such node in the equations, integrands and guards of a model by an expression in a
memory that holds the current branch, and adds the transition that updates it. Between transitions all functions are
smooth. Expressions evaluated only at an instant (resets, initial values, terminal costs) keep their relations, and so
do expressions that depend only on parameters and memory.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import casadi as ca

from dae_hybrid.compile.filippov import Surface
from dae_hybrid.compile.lowering import moving_symbols
from dae_hybrid.compile.reset_functions import event_costs
from dae_hybrid.compile.sliding import BySwitches, places, with_sliding
from dae_hybrid.errors import ModelError
from dae_hybrid.layout import Layout
from dae_hybrid.statement.declarations import Declaration, Functional, Mode, Relation, Transition
from dae_hybrid.statement.discontinuities import Discontinuities, are_smooth, margin, unsmooth
from dae_hybrid.statement.discontinuous_nodes import JUMPS, KINKS, RELATIONS, Node, bare
from dae_hybrid.statement.expressions import free_name
from dae_hybrid.statement.model import HybridModel
from dae_hybrid.statement.triggers import StateTrigger

#: longest quotation of a relation, in characters
MAX_RELATION_TEXT = 60


class Lifted(NamedTuple):
    """A model with its relations lifted into memory and transitions."""

    model: HybridModel
    spared: tuple[str, ...]  # expressions marked by `smooth`
    by_switches: BySwitches


def with_relations(model: HybridModel, *, kinks: bool, slides: bool) -> Lifted:
    """Lift the relations of a model into memory and transitions.

    `kinks` tells whether kinks of equations and integrands become events, as those of guards always do; `slides`,
    whether the motion slides where both sides of a relation drive it to their surface.

    Raises
    ------
    ModelError
        A discontinuity cannot be lifted; the message names it and the remedy.
    """
    if not unsmooth(_stated(model)):
        return Lifted(model, (), list)
    lifting = _Lifting(model, JUMPS | KINKS if kinks else JUMPS)
    modes = {name: lifting.mode(mode) for name, mode in model.modes.items()}
    functionals = {name: lifting.functional(f) for name, f in model.functionals.items()}
    guards = {name: lifting.guard(t) for name, t in model.transitions.items()}
    spared = tuple(lifting.spared)
    if not lifting.switches and not any("direction" in more for more in guards.values()):
        return Lifted(model, spared, lifting.by_switches)
    found = copy.copy(model)
    found.modes, found.functionals = modes, functionals
    found.transitions = {
        name: replace(
            t,
            sources=(modes[t.source.name],),
            target=None if t.target is None else modes[t.target.name],
            memory=lifting.memory(t),
            **guards[name],
        )
        for name, t in model.transitions.items()
    }
    if model.start is not None:
        found.start = replace(model.start, mode=modes[model.start.mode.name])
    found.declarations = {**model.declarations, **lifting.declarations()}
    for mode in modes.values():
        for transition in lifting.transitions(mode, found.transitions):
            found.transitions[transition.name] = transition
    if slides:
        found = with_sliding(found, lifting.surfaces(), lifting.by_switches)
    return Lifted(found, spared, lifting.by_switches)


def _stated(model: HybridModel) -> dict[Any, list[ca.MX]]:
    """Expressions evaluated between transitions."""
    found: dict[Any, list[ca.MX]] = {("mode", name): mode.equations for name, mode in model.modes.items()}
    found |= {("guard", name): [t.guard] for name, t in model.transitions.items() if t.guard is not None}
    found |= {("G", f.name): [f.integrand] for f in model.functionals.values() if f.integrand is not None}
    return found | {("peak", f.name): [p.watched for p in f.peaks] for f in model.functionals.values() if f.peaks}


@dataclass(eq=False)
class _Switch:
    """A memory that holds the current branch of a relation, and its guards.

    The memory is 1 if the relation ``margin < 0`` is true, else 0; for a step function it is the function's value.
    """

    text: str
    symbol: ca.MX
    value: ca.MX  # in terms of the expression itself
    #: (guard falling through zero, new value, zero sides, guard as stated)
    changes: list[tuple[ca.MX, ca.MX, tuple[int, int, int], ca.MX]]
    is_relation: bool
    is_kink: bool
    rests: bool  # whether its value while the guard stays at zero is that of one side


@dataclass
class _Lifting:
    """The switches of a model, shared by all expressions that contain the same relation."""

    model: HybridModel
    ops: frozenset[int]  # operations lifted from equations and integrands
    switches: dict[str, _Switch] = field(default_factory=dict)
    used: dict[str, dict[str, None]] = field(default_factory=dict)  # keys of switches by mode
    spared: dict[str, None] = field(default_factory=dict)  # expressions assumed smooth

    def __post_init__(self) -> None:
        model = self.model
        self.names = set(model.declarations)
        self.inner: dict[str, dict[str, None]] = {}  # switch -> switches of the kinks in its guards
        self.everywhere: dict[str, None] = {}  # switches of integrands
        #: symbols that the equations of a mode are solved for
        self.solved = ca.veccat(ca.MX(0, 1), *(d.symbol for d in model.of_kind("algebraic")), *model.rates.values())
        self.moving = moving_symbols(model)
        #: what kinks of time do not depend on: an input may rest at its kink, to rounding
        self.unforeseen = moving_symbols(model, inputs=True) - {model.time.__hash__()}

    # -- expressions ------------------------------------------------------------------------------

    def mode(self, mode: Mode) -> Mode:
        """Return the mode with smooth equations."""
        where, used = f"mode '{mode.name}'", self.used_in(mode)
        parts = [*mode.ode.values(), mode.residual, mode.algebraic, mode.constraint]
        patterns = [ca.jacobian_sparsity(part, self.solved) for part in parts[-3:]]
        coupled = patterns[-1].nnz() > 0  # a constraint is differentiated through the equations of its variables
        hidden = [coupled or part.numel() > len({*by.row()}) for part, by in zip(parts[-3:], patterns, strict=True)]
        # a differentiated equation jumps at its kinks
        parts[-3:] = [
            self._lift(where, [part], used, JUMPS | KINKS, sharp=True)[0] if is_hidden else part
            for part, is_hidden in zip(parts[-3:], hidden, strict=True)
        ]
        *rates, residual, algebraic, constraint = self._lift(where, parts, used, self.ops)
        return replace(
            mode,
            ode=dict(zip(mode.ode, rates, strict=True)),
            residual=residual,
            algebraic=algebraic,
            constraint=constraint,
        )

    def functional(self, functional: Functional) -> Functional:
        """Return the functional with a smooth integrand and smooth peaks, whose kinks are events."""
        if functional.peaks:
            where = f"a peak of functional '{functional.name}'"
            watched = self._lift(where, [p.watched for p in functional.peaks], self.everywhere, JUMPS | KINKS)
            peaks = (replace(p, watched=w) for p, w in zip(functional.peaks, watched, strict=True))
            functional = replace(functional, peaks=tuple(peaks))
        if functional.integrand is None:
            return functional
        where = f"the integrand of functional '{functional.name}'"
        (integrand,) = self._lift(where, [functional.integrand], self.everywhere, self.ops)
        return replace(functional, integrand=integrand)

    def guard(self, transition: Transition) -> dict[str, Any]:
        """Return the fields of a transition that lifting changes: its guard, smooth between events, and its flags."""
        if transition.guard is None or transition.refusal or transition.bound is not None:
            return {}  # nothing is integrated or differentiated beyond a violated condition
        where = f"the guard of transition '{transition.name}'"
        guard, more = transition.guard, dict[str, Any]()
        if (found := margin(guard, self.moving)) is not None:
            guard, side = found
            direction = 1 if transition.direction < 0 else -1
            more = {"direction": direction, "becomes": True, "jumps": True, "zero_side": side}
        own: dict[str, None] = {}
        (guard,) = self._lift(where, [guard], own, JUMPS | KINKS, clips=found is not None)
        self.used_in(transition.source).update(own)
        symbols = {s.__hash__() for s in ca.symvar(ca.veccat(guard, *more.values()))}
        solved = {s.__hash__() for s in ca.symvar(self.solved)}
        jumping = [key for key in self.used_in(transition.source) if not self.switches[key].is_kink]
        if not {*own}.isdisjoint(jumping) or (jumping and not solved.isdisjoint(symbols)):
            more["jumps"] = True
        return {"trigger": StateTrigger(guard), **more}

    def used_in(self, mode: Mode) -> dict[str, None]:
        """Keys of the switches used in a mode, in order."""
        return self.used.setdefault(mode.name, {})

    def _lift(
        self, where: str, parts: Sequence[ca.MX], used: dict[str, None], ops: frozenset[int], *, sharp: bool = False,
        clips: bool = False,
    ) -> list[ca.MX]:  # fmt: skip
        """Replace the relations of expressions by memory; with `sharp`, their kinks make other expressions jump.

        Kinks that keep an argument in its domain are left, unless `clips`: what is compared may have its threshold
        there. They are events then, but stay in the expression: a branch may leave the domain by rounding.
        """
        if are_smooth(parts):
            return list(parts)
        found = Discontinuities(where, parts, self.moving, clips=clips)
        while nodes := found.innermost(ops) or self._of_time(found):
            kept = found.clips() if clips else set()
            replaced = [(node, self._replacement(node, used, sharp=sharp)) for node in nodes]
            found.replace(
                [(node, found.hidden(node) if node.node.__hash__() in kept else new) for node, new in replaced]
            )
        found.refuse_rest()
        self.spared.update(dict.fromkeys(found.spared))
        return found.expressions

    def _of_time(self, found: Discontinuities) -> list[Node]:
        """Kinks of functions of time: nothing else shows an integrator that resolves its states when a clip lets go."""
        return [
            node
            for node in found.innermost(KINKS)
            if self.unforeseen.isdisjoint(s.__hash__() for argument in node.arguments for s in ca.symvar(argument))
        ]

    def by_switches(self, expressions: Sequence[ca.MX]) -> list[ca.MX]:
        """Expressions by the switches of their relations, as far as there are any."""
        if are_smooth(expressions):
            return list(expressions)
        found = Discontinuities("a value at an instant", expressions, self.moving)
        while nodes := found.innermost(JUMPS):
            replaced = []
            for node in nodes:
                known = [self.switches.get(node.entry(i).key) for i in range(node.size)]
                symbols = [switch.symbol for switch in known if switch is not None]
                replaced.append((node, _by(node, symbols) if len(symbols) == node.size else found.hidden(node)))
            found.replace(replaced)
        return found.expressions

    def _replacement(self, node: Node, used: dict[str, None], *, sharp: bool) -> ca.MX:
        """The expression that replaces a node, entry by entry for a vector."""
        return _by(node, [self._switch(node.entry(i), used, sharp=sharp) for i in range(node.size)])

    def _switch(self, node: Node, used: dict[str, None], *, sharp: bool) -> ca.MX:
        """The memory of a node's switch, created on first use."""
        key = node.key
        if key not in self.switches:
            text = node.text if len(node.text) <= MAX_RELATION_TEXT else f"{node.text[:MAX_RELATION_TEXT]}..."
            name = free_name(text, self.names)
            self.names.add(name)
            symbol = ca.MX.sym(name)
            inner: dict[str, None] = {}
            changes = node.changes(symbol)
            stated, to, sides = zip(*changes, strict=True)
            guards = self._lift(f"the relation {text}", stated, inner, KINKS, clips=True)
            self.inner[key] = inner
            self.switches[key] = _Switch(
                name, symbol, node.value, list(zip(guards, to, sides, stated, strict=True)),
                node.is_relation, node.is_kink and not sharp, not node.is_sign,
            )  # fmt: skip
        switch = self.switches[key]
        switch.is_kink &= node.is_kink and not sharp
        switch.rests &= not node.is_sign
        used.update({**self.inner[key], key: None})
        return switch.symbol

    # -- declarations -----------------------------------------------------------------------------

    def declarations(self) -> dict[str, Declaration]:
        """Declare a memory for each switch."""
        start = self.model.start
        at_start = {} if start is None else self.used_in(start.mode) | self.everywhere
        return {
            switch.text: Declaration(
                switch.text, "memory", 1, switch.symbol, initial=self._initial(switch) if key in at_start else ca.MX(0)
            )
            for key, switch in self.switches.items()
        }

    def memory(self, transition: Transition) -> dict[str, ca.MX]:
        """Return the memory updates of a transition, with those of the target's switches that it may change."""
        target, is_late = transition.target, self._reads_solved(transition)
        is_given = not (transition.equations.numel() or transition.project)
        if target is None or not (is_given or is_late):
            return transition.memory
        found = dict(transition.memory)
        kept = self.used_in(transition.source) | self.everywhere
        crossed = self._crossed(transition)
        for key in self.used_in(target) | self.everywhere:
            switch = self.switches[key]
            if key in crossed and not transition.reset and is_given:
                found[switch.text] = crossed[key]
                continue
            value = self._unfold(switch.value)
            known = self._after(transition, value, is_kept=key in kept) if is_given else None
            if known is None and is_late:
                known = self._afterwards(transition, value)
            if known is not None:
                found[switch.text] = known
        return found

    def _reads_solved(self, transition: Transition) -> bool:
        """Whether a transition uses values solved for after it: its switches must then be correct at once."""
        solved = {d.name for d in self.model.of_kind("algebraic")} | {f"der({name})" for name in self.model.rates}
        posts = {s.__hash__() for name, s in self.model.posts.items() if name in solved}
        values = [transition.equations, *transition.memory.values()]
        values += [value for _, value in event_costs(self.model, transition.name)]
        if not posts.isdisjoint(s.__hash__() for s in ca.symvar(ca.veccat(*values))):
            return True
        frozen = (d.of for d in self.model.of_kind("memory"))
        return transition.freezes and any(of is not None and of.name in solved for of in frozen)

    def _afterwards(self, transition: Transition, value: ca.MX) -> ca.MX:
        """Value of a switch after a transition, in post-transition quantities."""
        symbols = {s.__hash__() for s in ca.symvar(value)}
        if not symbols.isdisjoint(rate.__hash__() for rate in self.model.rates.values()):
            raise ModelError(
                f"The relation {bare(str(value))} uses a derivative, and the transition uses algebraic variables after "
                "it, which depend on it.",
                transition=transition.name,
                remedy="State the relation by variables, or the derivative as an algebraic variable.",
            )
        used = [d for d in self.model.declarations.values() if d.symbol.__hash__() in symbols]
        moving = [d for d in used if d.kind in ("differential", "algebraic")]
        updated = [d for d in used if d.name in transition.memory]
        posts = [self.model.posts.setdefault(d.name, ca.MX.sym(f"post({d.name})", d.size)) for d in moving]
        old = [d.symbol for d in (*moving, *updated)]
        new = [*posts, *(transition.memory[d.name] for d in updated)]
        found: ca.MX = ca.substitute([value], old, new)[0]
        return found

    def _crossed(self, transition: Transition) -> dict[str, ca.MX]:
        """The switch of the relation that guards a transition, with its value where the transition fires."""
        if transition.guard is None or transition.guard.op() not in RELATIONS:
            return {}
        node = Node(transition.guard.op(), tuple(map(transition.guard.dep, range(2))), (1, 1))
        fires_true = transition.direction >= 0
        return {node.key: ca.MX(float(fires_true == (node.op == ca.OP_LT)))}

    def _after(self, transition: Transition, value: ca.MX, *, is_kept: bool) -> ca.MX | None:
        """Value of a switch after a transition, in pre-transition quantities; None if it does not change.

        Also None if the value depends on anything but states, parameters, memory and time: such a switch is corrected
        by its own transitions.
        """
        symbols = {s.__hash__() for s in ca.symvar(value)} - {self.model.time.__hash__()}
        used = [d for d in self.model.declarations.values() if d.symbol.__hash__() in symbols]
        updates = transition.reset | transition.memory
        own = [d for d in used if d.name in updates]
        if (is_kept and not own) or len(used) < len(symbols):
            return None
        states = self._states(transition.source)
        for d in used:
            known = d.name in states if d.kind == "differential" else d.kind in ("parameter", "memory")
            if d not in own and not (known and d.of is None):
                return None
        return ca.substitute([value], [d.symbol for d in own], [updates[d.name] for d in own])[0]

    def _states(self, mode: Mode) -> set[str]:
        """Names of the differential variables of a mode."""
        used = {s.__hash__() for s in ca.symvar(mode.everything)}
        rates = {name for name, rate in self.model.rates.items() if rate.__hash__() in used}
        return set(mode.ode) | rates

    def _unfold(self, value: ca.MX) -> ca.MX:
        """Substitute the memory of switches by the relations themselves."""
        for _ in self.switches:
            symbols = {s.__hash__() for s in ca.symvar(value)}
            inner = [s for s in self.switches.values() if s.symbol.__hash__() in symbols]
            if not inner:
                break
            (value,) = ca.substitute([value], [s.symbol for s in inner], [s.value for s in inner])
        return value

    def _initial(self, switch: _Switch) -> ca.MX:
        """Initial value of a switch; where it is unknown, its transitions correct it."""
        value = self._unfold(switch.value)
        symbols = {s.__hash__() for s in ca.symvar(value)}
        own = [d for d in self.model.of_kind("memory") if d.symbol.__hash__() in symbols]
        return ca.substitute([value], [d.symbol for d in own], [_start_of(d) for d in own])[0]

    def surfaces(self) -> list[Surface]:
        """The surfaces of the relations, with all that change there."""
        jumping = {switch.symbol.__hash__() for switch in self.switches.values() if not switch.is_kink}
        relations = [
            switch
            for switch in self.switches.values()
            # the height of no other may jump where the motion slides; as stated: at a kink in it, it does not jump
            if switch.is_relation
            and {s.__hash__() for s in ca.symvar(switch.changes[0][3])} & jumping <= {switch.symbol.__hash__()}
        ]
        heights = [ca.substitute([s.changes[0][0]], [s.symbol], [ca.MX(0)])[0] for s in relations]
        found: dict[Any, Surface] = {}
        for switch, height, (symbols, values, opposite) in zip(relations, heights, places(heights), strict=True):
            place, mirrored = (symbols, values), (symbols, opposite)
            is_high = place not in found and mirrored in found
            surface = found[mirrored] if is_high else found.setdefault(place, Surface(switch.text, height))
            (surface.high if is_high else surface.low)[switch.text] = switch.symbol
            surface.jumps |= not switch.is_kink
        return [surface for surface in found.values() if surface.jumps]

    def transitions(self, mode: Mode, taken: Mapping[str, Transition]) -> Iterable[Transition]:
        """Yield the transitions that update the switches of a mode."""
        none: dict[str, ca.MX] = {}
        names = set(taken)
        every = {**self.model.declarations, **self.declarations()}.values()
        entries = Layout.of((d.name, d.size) for d in every if d.kind == "memory")
        for key in self.used_in(mode) | self.everywhere:
            switch = self.switches[key]
            for k, (guard, value, sides, stated) in enumerate(switch.changes):
                suffix = "" if switch.is_relation else (" rises", " falls")[k]
                name = free_name(f'"{switch.text}"{suffix} in {mode.name}', names)
                names.add(name)
                yield Transition(
                    name, (mode,), mode, StateTrigger(guard), -1, "fire", math.inf, none, {switch.text: value},
                    ca.MX(0, 1), (), (), None, none, freezes=False,
                    relation=Relation(
                        switch.text, entries[switch.text].start, switch.is_relation, switch.is_kink, switch.rests,
                        (1, 1, 1) if switch.is_kink else sides, stated,
                    ),
                )  # fmt: skip


def _by(node: Node, switches: Sequence[ca.MX]) -> ca.MX:
    """A node by the switches of its entries."""
    values = [node.entry(i).by(switch) for i, switch in enumerate(switches)]
    return values[0] if node.size == 1 else ca.reshape(ca.vertcat(*values), node.shape)


def _start_of(declared: Declaration) -> ca.MX:
    """Initial value of a memory; zero for the coefficients of a signal."""
    if declared.initial is not None:
        return ca.MX(declared.initial)
    return ca.MX.zeros(declared.size) if declared.of is None else declared.of.symbol
