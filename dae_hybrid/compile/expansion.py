"""Expand statements about several modes, times and instants into transitions between two modes.

=============================== ==========================================================================
statement                       expansion
=============================== ==========================================================================
several sources, ``"all"``      a transition per source mode
several times ``at=``           a transition per time
``at=`` that depends on memory  the guard ``t - at``
``delay=``                      a queue in memory, and transitions that enter and leave it
guard of memory alone           a condition, which a transition makes true
``when=``                       a second transition without effect, carried out instead where the condition
                                does not hold
shared equations                part of each mode
mode indicators                 1 or 0 in the equations of each mode
=============================== ==========================================================================
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import casadi as ca

from dae_hybrid.compile.lowering import in_mode
from dae_hybrid.compile.queues import Queue, queue_of
from dae_hybrid.errors import ModelError
from dae_hybrid.statement.conditions import is_condition
from dae_hybrid.statement.declarations import Declaration, Mode, Transition
from dae_hybrid.statement.expressions import free_name
from dae_hybrid.statement.model import HybridModel
from dae_hybrid.statement.triggers import StateTrigger, TimesTrigger, TimeTrigger


def expanded(model: HybridModel) -> HybridModel:
    """Return the model with single transitions between two modes.

    Raises
    ------
    ModelError
        An indicator names no mode.
    """
    held = _Held(model)
    simple = all(len(t.sources) == 1 and _is_simple(t, held) for t in model.transitions.values())
    if simple and not model.indicators and not model.shared:
        return model
    return _Expansion(model).model


def _is_simple(transition: Transition, held: _Held) -> bool:
    special = transition.when is not None or transition.delay is not None
    return not (special or isinstance(transition.trigger, TimesTrigger) or held.decides(transition))


class _Held:
    """Symbols that are constant between transitions: `memory`, and `fixed`, with the parameters."""

    def __init__(self, model: HybridModel) -> None:
        self.memory = {d.symbol.__hash__() for d in model.of_kind("memory") if d.signal is None}
        self.fixed = self.memory | {d.symbol.__hash__() for d in model.of_kind("parameter")}

    def decides(self, transition: Transition) -> bool:
        """Whether the time of a transition depends on memory, or its guard on memory and parameters alone."""
        if transition.trigger.is_periodic:
            return False
        symbols = {s.__hash__() for s in ca.symvar(transition.trigger.expression)}
        return not self.memory.isdisjoint(symbols) and (transition.trigger.is_timed or symbols <= self.fixed)


@dataclass(eq=False)
class _Expansion:
    """The expanded model, and the names of the transitions of each statement."""

    stated: HybridModel
    names: dict[str, list[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model = copy.copy(self.stated)
        self.model.modes = {name: self._mode(mode) for name, mode in self.stated.modes.items()}
        self.model.declarations = dict(self.stated.declarations)
        self.model.transitions = {}
        self._taken = set(self.stated.transitions)
        delayed = [t for t in self.stated.transitions.values() if t.delay is not None]
        self._queues = {t.name: queue_of(self.stated, t, self._declare) for t in delayed}
        self._held = _Held(self.model)
        ordered = [entry for queue in self._queues.values() for entry in queue.entries()]
        for stated in self.stated.transitions.values():
            own = self._queues.get(stated.name)
            ordered += _at_each_time(stated) if own is None else own.executions()
        for part in ordered:
            for guarded in self._guarded(part):
                for transition in self._between(guarded):
                    self._add(transition)
        self._leave()
        self.model.functionals = {
            name: replace(f, at_events=tuple((own, cost) for key, cost in f.at_events for own in self.names[key]))
            for name, f in self.stated.functionals.items()
        }
        if self.stated.start is not None:
            self.model.start = replace(self.stated.start, mode=self.model.modes[self.stated.start.mode.name])

    # -- modes ------------------------------------------------------------------------------------

    def _mode(self, mode: Mode) -> Mode:
        for shared in self.stated.shared.values():
            if not shared.modes or mode.name in shared.modes:
                mode = _joined(mode, shared.stated)
        indicators = self.stated.indicators
        if unknown := [name for name in indicators if name not in self.stated.modes]:
            raise ModelError(
                f"active() names {', '.join(unknown)}, which is not a mode of model '{self.stated.name}'.",
                remedy=f"Modes: {', '.join(self.stated.modes)}.",
            )
        if not indicators:
            return mode
        given = [*mode.ode.values(), mode.residual, mode.algebraic, mode.constraint]
        *rates, residual, algebraic, constraint = in_mode(self.stated, mode.name, given)
        ode, mass = dict(zip(mode.ode, rates, strict=True)), mode.mass
        if mass is not None:
            matrix, rhs = in_mode(self.stated, mode.name, [mass.matrix, mass.rhs])
            mass = replace(mass, matrix=matrix, rhs=rhs)
        return replace(mode, ode=ode, residual=residual, algebraic=algebraic, constraint=constraint, mass=mass)

    # -- transitions ------------------------------------------------------------------------------

    def _sources(self, transition: Transition) -> list[Mode]:
        """The source modes of a statement, expanded."""
        names = [mode.name for mode in transition.sources] or list(self.model.modes)
        return [self.model.modes[name] for name in names]

    def _between(self, transition: Transition) -> Iterator[Transition]:
        """Yield a transition for each source mode."""
        target = None if transition.target is None else self.model.modes[transition.target.name]
        several = len(transition.sources) != 1
        for mode in self._sources(transition):
            name = f"{transition.name} in {mode.name}" if several else transition.name
            goal = mode if transition.stays else target
            statement = transition.statement or (transition.name if several else "")
            shared = f"{transition.statement}: {transition.name}" if several else ""
            yield replace(transition, name=name, sources=(mode,), target=goal, statement=statement, shared=shared)

    def _add(self, transition: Transition) -> None:
        """Add a transition of the expanded model, with the one that replaces it where `when` does not hold."""
        stated = transition.statement or transition.name
        if transition.statement:  # one of several
            transition = replace(transition, name=self._free(transition.name))
        self.names.setdefault(stated, []).append(transition.name)
        self.model.transitions[transition.name] = transition
        if transition.when is None:
            return
        none: dict[str, ca.MX] = {}
        name = self._free(f"{transition.name} not taken")
        skip = replace(
            transition, name=name, target=transition.source, reset=none, memory=none, equations=ca.MX(0, 1),
            labels=(), project=(), metric=None, guess=none, priority=None, freezes=False,
            statement=f"{stated} not taken", skips=transition.name,
        )  # fmt: skip
        self.model.transitions[skip.name] = skip

    def _guarded(self, transition: Transition) -> list[Transition]:
        """Return a transition whose time or guard changes with memory alone with guards that events may move."""
        if not self._held.decides(transition):
            return [transition]
        value = transition.trigger.expression
        if transition.trigger.is_timed:
            if wrong := [s.name() for s in ca.symvar(value) if s.__hash__() not in self._held.fixed]:
                name = transition.statement or transition.name
                raise ModelError(
                    f"at= of transition '{name}' uses {', '.join(wrong)}; it may depend on parameters and memory only.",
                    transition=name,
                    variables=wrong,
                    remedy="Keep the value of a variable at the last event in memory, m.memory(of=...); for a "
                    "condition on variables use guard=.",
                )
            return [replace(transition, trigger=StateTrigger(self.model.time - value), direction=1)]
        if transition.refusal:
            return [replace(transition, jumps=True)]
        if is_condition(value):
            return [transition]
        sides = {1: value > 0, -1: value < 0}
        crossed = [side for sign, side in sides.items() if transition.direction in (0, sign)]
        statement = transition.statement or transition.name * (len(crossed) > 1)
        return [replace(transition, trigger=StateTrigger(s), direction=1, statement=statement) for s in crossed]

    def _free(self, name: str) -> str:
        """Return a name that no transition has."""
        name = free_name(name, self._taken)
        self._taken.add(name)
        return name

    def _leave(self) -> None:
        """Let transitions that leave the sources of a delayed one empty its queue."""
        inside: dict[str, list[tuple[set[str], Queue]]] = {}
        for queue in self._queues.values():
            modes = {mode.name for mode in self._sources(queue.stated)}
            for name in modes:
                inside.setdefault(name, []).append((modes, queue))

        @cache
        def emptied(source: str, target: str) -> dict[str, ca.MX]:
            left = (queue.emptied() for modes, queue in inside.get(source, ()) if target not in modes)
            return {name: value for values in left for name, value in values.items()}

        for name, transition in self.model.transitions.items():
            target = transition.target
            if target is None or target.name == transition.source.name or transition.skips:
                continue
            if lost := emptied(transition.source.name, target.name):
                self.model.transitions[name] = replace(transition, memory=transition.memory | lost)

    def _declare(self, name: str, initial: Any) -> Declaration:
        """Declare a memory of the expanded model."""
        start = ca.MX(ca.DM(initial))
        name = free_name(name, self.model.declarations)
        found = Declaration(name, "memory", start.numel(), ca.MX.sym(name, start.numel()), initial=start)
        self.model.declarations[name] = found
        return found


def _joined(mode: Mode, shared: Mode) -> Mode:
    """Return a mode with further equations."""
    twice = [name for name in shared.ode if name in mode.ode]
    if twice:
        raise ModelError(
            f"The rate of {', '.join(twice)} is given twice: by mode '{mode.name}' and by equations '{shared.name}'.",
            mode=mode.name,
            variables=twice,
            remedy="Leave it out of one of them, or name the modes of the equations by modes=.",
        )
    columns, labels, starts = list[ca.MX](), list[str](), [0, 0]
    for kind in ("residual", "algebraic", "constraint"):
        own = [getattr(part, kind) for part in (mode, shared)]
        columns.append(ca.vertcat(*own))
        for i, part in enumerate((mode, shared)):
            labels += part.labels[starts[i] : starts[i] + own[i].numel()]
            starts[i] += own[i].numel()
    residual, algebraic, constraint = columns
    return replace(
        mode, ode={**mode.ode, **shared.ode}, residual=residual, algebraic=algebraic, constraint=constraint,
        labels=tuple(labels),
    )  # fmt: skip


def _at_each_time(stated: Transition) -> Iterator[Transition]:
    """Yield a transition for each time of a statement."""
    trigger = stated.trigger
    if not isinstance(trigger, TimesTrigger):
        yield stated
        return
    for i in range(trigger.count):
        yield replace(
            stated,
            name=f"{stated.name} {i}",
            statement=stated.name,
            trigger=TimeTrigger(trigger.expression[i], times=trigger.expression, place=i),
            reset={name: value[i, :].T for name, value in stated.reset.items()},
            memory={name: value[i, :].T for name, value in stated.memory.items()},
        )
