"""Parts of a random hybrid system, and the ways to declare it.

Expressions are functions of a `Scope`, so that one system can be declared in several equivalent ways: renamed,
permuted, in stretched time, ODEs as DAEs, with transitions that never fire or do nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import casadi as ca
import numpy as np

import dae_hybrid as dh

Expression = Callable[["Scope"], Any]
FAR = 1e3  # states stay well below


@dataclass(frozen=True)
class Restatement:
    """How a system is declared; the default is as it was drawn."""

    prefix: str = ""  # of every name
    shuffle: int | None = None  # seed of the order of declarations
    stretch: float = 1.0  # time units per unit of the new time
    cuts: tuple[float, ...] = ()  # times of events that do nothing
    never: bool = False  # transitions that do not fire, and a mode that is not entered
    rates: str | None = None  # "algebraic" or "residual": what ODEs are restated as
    updates: bool = False  # memory of a variable as an update by every transition


class Scope:
    """The symbols of one declaration under the names of the drawn system, in its time."""

    def __init__(self, model: dh.HybridModel, how: Restatement) -> None:
        self.model, self.how = model, how
        self.symbols: dict[str, ca.MX] = {}
        self.t = how.stretch * model.time

    def __getitem__(self, name: str) -> ca.MX:
        return self.symbols[name]

    def der(self, name: str) -> ca.MX:
        return self.model.der(self.symbols[name]) / self.how.stretch

    def post(self, name: str) -> ca.MX:
        return self.model.post(self.symbols[name])


@dataclass(frozen=True)
class Entry:
    """One coordinate of a variable."""

    name: str
    index: int | None  # None: the variable is a scalar

    def of(self, value: Any) -> Any:
        return value if self.index is None else value[self.index]

    def __call__(self, s: Scope) -> Any:
        return self.of(s[self.name])


@dataclass(frozen=True)
class RandomMode:
    """States, algebraic variables and equations of a mode."""

    name: str
    form: str
    states: tuple[str, ...]
    algebraics: tuple[str, ...]
    rates: dict[str, list[Expression]]
    residual: list[Expression] = field(default_factory=list)
    algebraic: list[Expression] = field(default_factory=list)
    constraint: list[Expression] = field(default_factory=list)
    held: tuple[Entry, ...] = ()  # what the multiplier acts on
    onto: Callable[[Any, Scope], Any] | None = None  # the first held coordinate on the constraint, given the second

    @property
    def constrained(self) -> bool:
        return bool(self.constraint)


@dataclass(frozen=True)
class RandomTransition:
    """Trigger and jump."""

    name: str
    source: str
    target: str | None
    kind: str  # guard, at, every
    trigger: Expression
    what: str
    direction: Any = "both"
    on_entry: Any = "wait"
    how: str = "none"
    reset: dict[str, Expression] = field(default_factory=dict)
    equations: list[Expression] = field(default_factory=list)
    project: tuple[str, ...] = ()
    metric: Expression | None = None
    memory: dict[str, Expression] = field(default_factory=dict)
    uses: str | None = None  # an unknown


@dataclass(frozen=True)
class RandomMemory:
    """A memory; `of` None means that transitions update it."""

    size: int
    of: str | None
    initial: Expression | None


@dataclass(frozen=True)
class RandomSignal:
    """An input from data."""

    knots: np.ndarray
    values: str  # the vector parameter
    kind: Any


@dataclass
class RandomSystem:
    """What was drawn; `model` declares it."""

    seed: int
    span: tuple[float, float] = (0.0, 1.0)
    parameters: dict[str, np.ndarray] = field(default_factory=dict)
    states: dict[str, int] = field(default_factory=dict)
    algebraics: list[str] = field(default_factory=list)
    unknowns: list[str] = field(default_factory=list)
    memories: dict[str, RandomMemory] = field(default_factory=dict)
    signals: dict[str, RandomSignal] = field(default_factory=dict)
    modes: dict[str, RandomMode] = field(default_factory=dict)
    transitions: list[RandomTransition] = field(default_factory=list)
    initial: dict[str, Expression] = field(default_factory=dict)
    equations: list[Expression] = field(default_factory=list)
    functionals: dict[str, dict[str, Any]] = field(default_factory=dict)
    build: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def forms(self) -> tuple[str, ...]:
        """Formulations of the modes."""
        return tuple(mode.form for mode in self.modes.values())

    @property
    def splits_freely(self) -> bool:
        """Whether entering a mode again changes nothing: no guard looks at where it is on entry."""
        return all(transition.on_entry == "wait" for transition in self.transitions)

    def model(self, how: Restatement | None = None) -> dh.HybridModel:
        """Declare the system."""
        how = how or Restatement()
        m = dh.HybridModel(f"{how.prefix}random{self.seed}")
        s = Scope(m, how)
        self._symbols(m, s)
        modes = {name: m.mode(how.prefix + name, **self._equations(mode, s)) for name, mode in self.modes.items()}
        fired: dict[str, Any] = {}
        for transition in self.transitions:
            fired[transition.name] = self._transition(m, s, modes, transition)
        for mode in modes.values():
            for cut in how.cuts:
                m.transition(mode, mode, at=cut / how.stretch)
        if how.never:
            self._never(m, s, modes)
        first = next(iter(self.modes))
        values = {s[name]: value(s) for name, value in self.initial.items()}
        m.initial(modes[first], values, equations=[e(s) for e in self.equations] or None)
        for name, parts in self.functionals.items():
            self._functional(m, s, name, parts, fired)
        return m

    def system(self, *, native: bool, how: Restatement | None = None) -> dh.HybridSystem:
        """Declare and build the system."""
        return self.model(how).build(native=native, **self.build)

    def _symbols(self, m: dh.HybridModel, s: Scope) -> None:
        how = s.how
        everything: list[tuple[str, Callable[[str], ca.MX]]] = [
            *((n, lambda name, v=v: m.parameter(name, v)) for n, v in self.parameters.items()),
            *((n, lambda name, k=k: m.differential(name, size=k)) for n, k in self.states.items()),
            *((n, lambda name: m.algebraic(name)) for n in self.algebraics),
            *((n, lambda name: m.unknown(name)) for n in self.unknowns),
        ]
        if how.shuffle is not None:
            np.random.default_rng(how.shuffle).shuffle(everything)
        for name, declare in everything:
            s.symbols[name] = declare(how.prefix + name)
        for name, memory in self.memories.items():
            frozen = memory.of is not None and not how.updates
            start = memory.initial
            given = None if start is None else ca.vertcat(start(s))
            if given is None and not frozen:
                given = s[memory.of]
            s.symbols[name] = m.memory(
                how.prefix + name, of=s[memory.of] if frozen else None, initial=given, size=memory.size
            )
        for name, signal in self.signals.items():
            s.symbols[name] = m.signal(
                how.prefix + name, signal.knots / how.stretch, s[signal.values], kind=signal.kind, outside="hold"
            )

    def _equations(self, mode: RandomMode, s: Scope) -> dict[str, Any]:
        how, m = s.how, s.model
        ode = {s[name]: how.stretch * ca.vertcat(*(r(s) for r in rates)) for name, rates in mode.rates.items()}
        residual = [row(s) for row in mode.residual]
        algebraic = [row(s) for row in mode.algebraic]
        if how.rates == "residual" and ode:
            residual += [m.der(y) - rate for y, rate in ode.items()]
            ode = {}
        if how.rates == "algebraic":
            for y, rate in list(ode.items()):
                extra = m.algebraic(f"{how.prefix}rate of {y.name()} in {mode.name}", size=y.numel())
                ode[y] = extra
                algebraic.append(extra - rate)
        if how.shuffle is not None:
            rng = np.random.default_rng(how.shuffle + 1)
            pairs = list(ode.items())
            ode = dict(pairs[i] for i in rng.permutation(len(pairs)))
            residual = [residual[i] for i in rng.permutation(len(residual))]
        return {
            "ode": ode,
            "residual": residual,
            "algebraic": algebraic,
            "constraint": [row(s) for row in mode.constraint],
        }

    def _transition(self, m: dh.HybridModel, s: Scope, modes: dict[str, Any], given: RandomTransition) -> Any:
        how = s.how
        trigger = given.trigger(s)
        if given.kind != "guard":
            trigger = trigger / how.stretch
        memory = {s[name]: update(s) for name, update in given.memory.items()}
        if how.updates and given.target is not None:
            here = self.modes[given.target]
            for name, kept in self.memories.items():
                if kept.of in (*here.states, *here.algebraics):
                    memory[s[name]] = s.post(kept.of)
        if given.kind == "guard":
            more: dict[str, Any] = {"direction": given.direction, "on_entry": given.on_entry}
        else:
            more = {}
        if given.project:
            more["project"] = [s[name] for name in given.project]
            more["metric"] = None if given.metric is None else given.metric(s)
        reset: Any = {s[name]: value(s) for name, value in given.reset.items()} or None
        if given.equations:
            reset = [row(s) for row in given.equations]
        target = None if given.target is None else modes[given.target]
        return m.transition(
            modes[given.source],
            target,
            reset=reset,
            memory=memory or None,
            name=how.prefix + given.name,
            **{given.kind: trigger},
            **more,
        )

    def _never(self, m: dh.HybridModel, s: Scope, modes: dict[str, Any]) -> None:
        first, late = next(iter(self.states)), (self.span[1] + 10) / s.how.stretch
        for name, mode in modes.items():
            nowhere = m.mode(f"beyond {name}", **self._equations(self.modes[name], s))
            m.transition(mode, nowhere, guard=s[first] - FAR)
            m.transition(mode, nowhere, at=late)
            m.transition(nowhere, mode, guard=s[first])

    def _functional(self, m: dh.HybridModel, s: Scope, name: str, parts: dict[str, Any], fired: dict[str, Any]) -> None:
        given: dict[str, Any] = {}
        if "integrand" in parts:
            given["integrand"] = s.how.stretch * parts["integrand"](s)
        if "terminal" in parts:
            given["terminal"] = parts["terminal"](s)
        if "at_times" in parts:
            given["at_times"] = [(when(s) / s.how.stretch, value(s)) for when, value in parts["at_times"]]
        if "at_events" in parts:
            given["at_events"] = {fired[key]: value(s) for key, value in parts["at_events"].items()}
        m.functional(s.how.prefix + name, **given)
