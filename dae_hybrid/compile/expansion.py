"""Expand statements about several modes, times and instants into transitions between two modes.

=============================== ==========================================================================
statement                       expansion
=============================== ==========================================================================
several sources, ``"all"``      a transition per source mode
several times ``at=``           a transition per time
``at=`` that depends on memory  the guard ``t - at``
``delay=``                      a queue in memory, a transition that enters it, and one per place of the
                                queue that is carried out at its time
guard of memory alone           a condition, which a transition makes true
``when=``                       a second transition without effect, carried out instead where the condition
                                does not hold
shared equations                part of each mode
mode indicators                 1 or 0 in the equations of each mode
=============================== ==========================================================================
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.errors import ModelError
from dae_hybrid.statement.declarations import Declaration, Mode, Transition
from dae_hybrid.statement.expressions import free_name
from dae_hybrid.statement.model import HybridModel
from dae_hybrid.statement.triggers import StateTrigger, TimesTrigger, TimeTrigger

#: guard of an empty place of a queue, which never crosses zero; small, since it counts to the range of the guard
EMPTY = -1e-9
#: priority of transitions that enter or leave a queue: they precede all others of their instant
FIRST = 1e300


def expanded(model: HybridModel) -> HybridModel:
    """Return the model with single transitions between two modes.

    Raises
    ------
    ModelError
        An indicator names no mode.
    """
    simple = all(len(t.sources) == 1 and _is_simple(model, t) for t in model.transitions.values())
    if simple and not model.indicators and not model.shared:
        return model
    return _Expansion(model).model


def _is_simple(model: HybridModel, transition: Transition) -> bool:
    special = transition.when is not None or transition.delay is not None
    return not (special or isinstance(transition.trigger, TimesTrigger) or _is_of_memory(model, transition))


def _is_of_memory(model: HybridModel, transition: Transition) -> bool:
    """Whether the time of a transition depends on memory, or its guard on memory and parameters alone."""
    if transition.trigger.is_periodic:
        return False
    symbols = {s.__hash__() for s in ca.symvar(transition.trigger.expression)}
    held = {d.symbol.__hash__() for d in model.of_kind("memory")}
    fixed = held | {d.symbol.__hash__() for d in model.of_kind("parameter")}
    return not held.isdisjoint(symbols) and (transition.trigger.is_timed or symbols <= fixed)


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
        self._queues: list[_Queue] = []
        for stated in self.stated.transitions.values():
            if stated.delay is not None:
                self._queues.append(_Queue(self, stated))
        ordered = [entry for queue in self._queues for entry in queue.entries()]
        queues = {queue.stated.name: queue for queue in self._queues}
        for stated in self.stated.transitions.values():
            own = queues.get(stated.name)
            ordered += self._parts(stated) if own is None else list(own.executions())
        for transition in ordered:
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
        is_active = [ca.MX(float(name == mode.name)) for name in indicators]
        given = [*mode.ode.values(), mode.residual, mode.algebraic, mode.constraint]
        *rates, residual, algebraic, constraint = ca.substitute(given, list(indicators.values()), is_active)
        ode, mass = dict(zip(mode.ode, rates, strict=True)), mode.mass
        if mass is not None:
            matrix, rhs = ca.substitute([mass.matrix, mass.rhs], list(indicators.values()), is_active)
            mass = replace(mass, matrix=matrix, rhs=rhs)
        return replace(mode, ode=ode, residual=residual, algebraic=algebraic, constraint=constraint, mass=mass)

    # -- transitions ------------------------------------------------------------------------------

    def sources(self, transition: Transition) -> list[Mode]:
        """The source modes of a statement, expanded."""
        names = [mode.name for mode in transition.sources] or list(self.model.modes)
        return [self.model.modes[name] for name in names]

    def _parts(self, stated: Transition) -> list[Transition]:
        """The transitions of a statement without delay."""
        return [part for one in _at_each_time(stated) for part in self.between(one, self.sources(stated))]

    def between(self, transition: Transition, sources: Iterable[Mode]) -> Iterator[Transition]:
        """Yield a transition for each source mode."""
        target = None if transition.target is None else self.model.modes[transition.target.name]
        several = len(transition.sources) != 1
        for mode in sources:
            name = f"{transition.name} in {mode.name}" if several else transition.name
            goal = mode if transition.stays else target
            statement = transition.statement or (transition.name if several else "")
            shared = transition.name if several else ""
            yield replace(transition, name=name, sources=(mode,), target=goal, statement=statement, shared=shared)

    def _add(self, transition: Transition) -> None:
        """Add a transition of the expanded model, with the one that replaces it where `when` does not hold."""
        stated = transition.statement or transition.name
        if transition.name not in self.stated.transitions:
            transition = replace(transition, name=self.free(transition.name))
        if _is_of_memory(self.model, transition):
            transition = self._guarded(transition)
        self.names.setdefault(stated, []).append(transition.name)
        self.model.transitions[transition.name] = transition
        if transition.when is None:
            return
        none: dict[str, ca.MX] = {}
        name = self.free(f"{transition.name} not taken")
        skip = replace(
            transition, name=name, target=transition.source, reset=none, memory=none, equations=ca.MX(0, 1),
            labels=(), project=(), metric=None, guess=none, priority=None, freezes=False,
            statement=f"{stated} not taken", skips=transition.name,
        )  # fmt: skip
        self.model.transitions[skip.name] = skip

    def _guarded(self, transition: Transition) -> Transition:
        """Return a transition whose time or guard changes with memory alone, with a guard that events may move."""
        if transition.trigger.is_timed:
            return replace(
                transition, trigger=StateTrigger(self.model.time - transition.trigger.expression), direction=1
            )
        return replace(transition, becomes=not transition.refusal, jumps=True)

    def free(self, name: str) -> str:
        """Return a name that no transition has."""
        name = free_name(name, self._taken)
        self._taken.add(name)
        return name

    def _leave(self) -> None:
        """Let transitions that leave the sources of a delayed one empty its queue."""
        for queue in self._queues:
            inside = {mode.name for mode in self.sources(queue.stated)}
            for name, transition in self.model.transitions.items():
                target = transition.target
                leaves = target is not None and target.name not in inside and transition.source.name in inside
                if leaves and not transition.skips:
                    memory = transition.memory | {queue.pending.name: ca.MX.zeros(queue.size)}
                    self.model.transitions[name] = replace(transition, memory=memory)

    def declare(self, name: str, initial: Any) -> Declaration:
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
    columns, labels = dict[str, ca.MX](), list[str]()
    starts = [0, 0]
    for kind in ("residual", "algebraic", "constraint"):
        own = [getattr(part, kind) for part in (mode, shared)]
        columns[kind] = ca.vertcat(*own)
        for i, part in enumerate((mode, shared)):
            labels += part.labels[starts[i] : starts[i] + own[i].numel()]
            starts[i] += own[i].numel()
    return replace(mode, ode={**mode.ode, **shared.ode}, labels=tuple(labels), **columns)


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
            trigger=TimeTrigger(trigger.expression[i]),
            reset={name: value[i, :].T for name, value in stated.reset.items()},
            memory={name: value[i, :].T for name, value in stated.memory.items()},
        )


class _Queue:
    """The pending executions of a delayed transition: a ring of places in memory.

    `due` are their times, `pending` says which places are taken, `place` marks the next one, and `held` are the values
    at the trigger, by variable.
    """

    def __init__(self, expansion: _Expansion, stated: Transition) -> None:
        if stated.delay is None:
            raise AssertionError("a queue belongs to a delayed transition")
        if isinstance(stated.trigger, TimesTrigger):
            raise ModelError(
                f"Transition '{stated.name}' has a delay= and several times at=.", remedy="Add the delay to the times."
            )
        self.expansion, self.stated, self.delay, self.size = expansion, stated, stated.delay, stated.delay.pending
        name, n = stated.name, self.size
        self.due = expansion.declare(f"{name} due", np.zeros(n))
        self.pending = expansion.declare(f"{name} pending", np.zeros(n))
        self.place = expansion.declare(f"{name} place", np.eye(n)[0])
        self.held: dict[str, Declaration] = {}
        if self.delay.at_trigger:
            for variable, value in (stated.reset | stated.memory).items():
                self.held[variable] = expansion.declare(f"{name} {variable}", np.zeros(value.numel() * n))

    def entries(self) -> Iterator[Transition]:
        """Yield the transitions that enter the queue, empty it, and refuse more than it holds."""
        stated, none = self.stated, dict[str, ca.MX]()
        place, pending, n = self.place.symbol, self.pending.symbol, self.size
        memory = {
            self.due.name: self.due.symbol * (1 - place) + place * (self.expansion.stated.time + self.delay.time),
            self.pending.name: pending + place,
        }
        if n > 1:
            memory[self.place.name] = ca.vertcat(place[n - 1], place[: n - 1])
        for variable, held in self.held.items():
            value = (stated.reset | stated.memory)[variable]
            at = ca.kron(place, ca.MX.ones(value.numel()))
            memory[held.name] = held.symbol * (1 - at) + at * ca.repmat(value, n)
        base = replace(
            stated, target=None, stays=True, reset=none, memory=memory, equations=ca.MX(0, 1), labels=(), project=(),
            metric=None, guess=none, delay=None, priority=ca.MX(FIRST), freezes=False,
        )  # fmt: skip
        sources = self.expansion.sources(stated)
        yield from self.expansion.between(self._named(base, "triggered"), sources)
        if not self.delay.persistent:
            falls = replace(
                base, direction=-1 if stated.direction >= 0 else 1, on_entry="wait", when=None,
                memory={self.pending.name: ca.MX.zeros(n)},
            )  # fmt: skip
            yield from self.expansion.between(self._named(falls, "released"), sources)
        full = replace(
            base, trigger=StateTrigger(1 - ca.dot(pending, pending - 1)), direction=-1, on_entry="error", when=None,
            memory=none, stays=False, priority=None,
            refusal=f"More than {n} executions of transition '{stated.name}' are pending; give it a larger pending=.",
        )  # fmt: skip
        yield from self.expansion.between(self._named(full, "queue"), sources)

    def executions(self) -> Iterator[Transition]:
        """Yield the transitions that are carried out at the times of the queue."""
        stated, n = self.stated, self.size
        time, due, pending = self.expansion.stated.time, self.due.symbol, self.pending.symbol
        for k in range(n):
            empty = {self.pending.name: pending * ca.DM(1 - np.eye(n)[k])}
            guard = pending[k] * (time - due[k]) + (1 - pending[k]) * EMPTY
            own = replace(
                stated, name=f"{stated.name} {k}", statement=stated.name, trigger=StateTrigger(guard), direction=1,
                on_entry="error", when=None, delay=None, reset=self._values(stated.reset, k),
                memory=self._values(stated.memory, k) | empty,
            )  # fmt: skip
            if stated.target is None and not stated.stays:
                own = replace(own, memory={})
            yield from self.expansion.between(own, self.expansion.sources(stated))

    def _values(self, given: Mapping[str, ca.MX], k: int) -> dict[str, ca.MX]:
        """The values of a place of the queue, or those stated."""
        if not self.delay.at_trigger:
            return dict(given)
        sizes = {name: value.numel() for name, value in given.items()}
        return {name: self.held[name].symbol[k * size : (k + 1) * size] for name, size in sizes.items()}

    def _named(self, transition: Transition, what: str) -> Transition:
        name = f"{self.stated.name} {what}"
        return replace(transition, name=name, statement=name)
