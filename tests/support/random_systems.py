"""Random hybrid systems: a seed fixes equations, events, resets, memory, costs, parameters and how it is run.

Rates are damped or bounded, so that most runs succeed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import casadi as ca
import numpy as np
from random_statements import (
    Entry,
    Expression,
    RandomMemory,
    RandomMode,
    RandomSignal,
    RandomSystem,
    RandomTransition,
    Restatement,
    Scope,
)

FORMS = ("linear ODE", "smooth ODE", "index 1", "nonlinear index 1", "implicit", "nonlinear implicit", "index 2")
HESSENBERG_2 = ("index 2", "implicit index 2")
__all__ = ["FORMS", "RandomSystem", "Restatement", "random_system"]


class Draw:
    """Draws a system from a seed."""

    def __init__(self, seed: int, *, sizes: int = 5, forms: Sequence[str] = (*FORMS, "implicit index 2")) -> None:
        self.rng = np.random.default_rng([2019, seed])
        self.system = RandomSystem(seed)
        self.sizes, self.forms = sizes, tuple(forms)

    # -- pieces -------------------------------------------------------------------------------------

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def pick(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def number(self, low: float, high: float) -> float:
        return round(float(self.rng.uniform(low, high)), 4)

    def parameter(self, value: float) -> Expression:
        """A new parameter, scalar or a component of a vector."""
        p = self.system.parameters
        if self.chance(0.15):
            name, other = f"q{len(p)}", self.number(-1, 1)
            p[name] = np.array([value, other])
            return lambda s: s[name][0]
        name = f"p{len(p)}"
        p[name] = np.array([value])
        return lambda s: s[name]

    def coefficient(self, low: float, high: float, probability: float = 0.3) -> Expression:
        """A number or a parameter, now and then one that was used before."""
        value = self.number(low, high)
        if not self.chance(probability) or len(self.system.parameters) >= 12:
            return lambda s: value
        used = [n for n, v in self.system.parameters.items() if v.size == 1 and low <= v[0] <= high]
        if used and self.chance(0.2):
            name = self.pick(used)
            return lambda s: s[name]
        return self.parameter(value)

    def entries(self, names: Sequence[str]) -> list[Entry]:
        sizes = self.system.states
        return [
            Entry(name, None if sizes.get(name, 1) == 1 else i) for name in names for i in range(sizes.get(name, 1))
        ]

    def remembered(self) -> list[Entry]:
        return [Entry(name, None if memory.size == 1 else 0) for name, memory in self.system.memories.items()]

    def bounded(self, inputs: Sequence[Expression], size: float = 0.8) -> Expression:
        """A smooth bounded function of some of the inputs and, now and then, of time."""
        terms: list[Expression] = []
        for _ in range(int(self.rng.integers(1, 3))):
            a, b = self.coefficient(-size, size), self.number(-1, 1)
            source: Expression = self.pick(list(inputs)) if inputs and not self.chance(0.2) else (lambda s: s.t)
            wave = self.pick([np.tanh, np.sin, np.cos])
            terms.append(lambda s, a=a, b=b, source=source, wave=wave: a(s) * wave(source(s) + b))
        return lambda s: sum(term(s) for term in terms)

    # -- modes --------------------------------------------------------------------------------------

    def declare(self) -> RandomSystem:
        """Draw the whole system."""
        system = self.system
        start = 0.0 if self.chance(0.7) else self.number(-2, 2)
        system.span = (start, start + self.number(1.0, 4.0))
        count = int(self.rng.integers(1, 4))
        drawn = [self.pick(self.forms) for _ in range(count)]
        system.states["x"] = 1
        total = int(self.rng.integers(1, self.sizes + 1))
        while (left := total - sum(system.states.values())) > 0:
            size = int(self.rng.integers(1, min(left, 3) + 1)) if self.chance(0.3) else 1
            system.states[f"y{len(system.states)}"] = size
        for i in range(2):
            if self.chance(0.4):
                name, of = f"r{i}", None
                if self.chance(0.5):
                    of = self.pick(list(system.states))
                value = None if of is not None and self.chance(0.5) else self.coefficient(-1, 1)
                size = 1 if of is None else system.states[of]
                if value is not None and size > 1:
                    value = lambda s, value=value, size=size: value(s) * np.ones(size)
                system.memories[name] = RandomMemory(size, of, value)
        if self.chance(0.15):
            self.signal()
        names = list(system.states)
        for i, form in enumerate(drawn):
            seen = {n for mode in system.modes.values() for n in mode.states}
            last = i == count - 1  # takes what no other mode has
            own = tuple(n for n in names if n == "x" or (last and n not in seen) or self.chance(0.75))
            system.modes[f"mode{i}"] = self.mode(f"mode{i}", form, own)
        for i in range(count):
            for _ in range(int(self.rng.integers(1, 5))):
                self.transition(f"mode{i}")
        self.start()
        self.costs()
        if any(mode.constrained for mode in system.modes.values()) and self.chance(0.3):
            system.build["index2"] = "direct"
        if self.chance(0.2):
            system.build["eliminate"] = False
        if self.chance(0.15):
            system.options["method"] = "bdf"
        if self.chance(0.15):
            system.options["sensitivity_method"] = "simultaneous"
        return system

    def signal(self) -> None:
        system = self.system
        count = int(self.rng.integers(4, 7))
        values = self.rng.uniform(-1, 1, count).round(3)
        system.parameters["data"] = values
        knots = np.linspace(system.span[0] - 0.1, system.span[1] + 0.1, count)
        system.signals["push"] = RandomSignal(knots, "data", self.pick(["linear", "previous", "cubic"]))

    def mode(self, name: str, form: str, states: tuple[str, ...]) -> RandomMode:
        entries = self.entries(states)
        algebraics: list[str] = []
        index1 = form in ("index 1", "nonlinear index 1")
        extra = int(self.rng.integers(1, 3)) if index1 else int(form not in FORMS[:2] and self.chance(0.35))
        for i in range(extra):
            algebraics.append(f"z{i}")
        inputs: list[Expression] = [*entries, *self.remembered()]
        if self.system.signals:
            inputs.append(lambda s: s["push"])
        algebraic = []
        nonlinear = form != "index 1"
        for z in algebraics:
            level, others = self.bounded(inputs), [o for o in algebraics if o != z]
            a, b = self.coefficient(0.1, 0.6), self.number(-0.3, 0.3)

            def row(s: Scope, z: str = z, level: Any = level, others: Any = others, a: Any = a, b: Any = b) -> Any:
                value = s[z] - level(s)
                if nonlinear:
                    value += a(s) * s[z] ** 3 + sum(b * np.sin(s[o]) for o in others)
                else:
                    value += a(s) * s[z] + sum(b * s[o] for o in others)
                return value

            algebraic.append(row)
        rates = self.rates(form, entries, [*inputs, *(Entry(z, None) for z in algebraics)])
        held: tuple[Entry, ...] = ()
        constraint: list[Expression] = []
        onto = None
        if form in HESSENBERG_2:
            held, constraint, onto, rates = self.hold(states, rates, algebraics)
        for z in algebraics:
            if z not in self.system.algebraics:
                self.system.algebraics.append(z)
        grouped: dict[str, list[Expression]] = {}
        for entry, rate in zip(entries, rates, strict=True):
            grouped.setdefault(entry.name, []).append(rate)
        residual: list[Expression] = []
        if "implicit" in form:
            residual, grouped = self.implicit(form, entries, grouped, algebraics if form != "implicit index 2" else [])
            if form != "implicit index 2" and self.chance(0.5):
                residual, algebraic = residual + algebraic, []
        return RandomMode(name, form, states, tuple(algebraics), grouped, residual, algebraic, constraint, held, onto)

    def rates(self, form: str, entries: list[Entry], inputs: list[Expression]) -> list[Expression]:
        n = len(entries)
        speed = self.pick([2, 4, 8])
        turn = np.triu(self.rng.uniform(-speed, speed, (n, n)).round(3), 1)
        turn -= turn.T
        rates: list[Expression] = []
        for i, entry in enumerate(entries):
            damping, drive = self.coefficient(0.05, 0.8), self.bounded(inputs, 2.0)
            weights = [(float(w), other) for w, other in zip(turn[i], entries, strict=True) if w]
            growth = form == "smooth ODE" and self.chance(0.4)
            wave, pace, phase = self.coefficient(-speed, speed), self.coefficient(1, 6), self.number(-3, 3)

            def rate(
                s: Scope, entry: Entry = entry, damping: Any = damping, drive: Any = drive, weights: Any = weights,
                growth: bool = growth, wave: Any = wave, pace: Any = pace, phase: float = phase,
            ) -> Any:  # fmt: skip
                x = entry(s)
                if form == "linear ODE":
                    free = -damping(s) * x + sum(w * other(s) for w, other in weights)
                elif growth:
                    free = x * (1 - damping(s) * x**2) + sum(np.sin(w * other(s)) for w, other in weights)
                else:
                    free = -damping(s) * x + sum(w * np.tanh(other(s)) for w, other in weights)
                forced = wave(s) * np.sin(pace(s) * s.t + phase)
                return free + forced + (drive(s) if form != "linear ODE" else 0)

            rates.append(rate)
        return rates

    def hold(
        self, states: tuple[str, ...], rates: list[Expression], algebraics: list[str]
    ) -> tuple[tuple[Entry, ...], list[Expression], Any, list[Expression]]:
        """A constraint on one or two scalars, and a multiplier that keeps it."""
        scalars = [n for n in states if self.system.states[n] == 1]
        self.rng.shuffle(scalars)
        held = tuple(Entry(n, None) for n in scalars[:2])
        level, a, b = self.bounded([], 0.5), self.coefficient(0.2, 0.6), self.coefficient(0.2, 0.8)
        offset, bent, cubic = self.coefficient(-0.5, 0.5), self.chance(0.5), self.chance(0.2)
        force = f"z{len(algebraics)}"
        algebraics.append(force)
        with_memory = bool(self.system.memories) and self.chance(0.2)
        kept = self.pick(self.remembered()) if with_memory else None

        def onto(second: Any, s: Scope) -> Any:
            value = level(s) + offset(s)
            if second is not None:
                value -= a(s) * (np.tanh(second) if bent else second)
            return value if kept is None else value + 0.3 * np.tanh(kept(s))

        def equation(s: Scope) -> Any:
            return held[0](s) - onto(held[1](s) if len(held) > 1 else None, s)

        def push(s: Scope) -> Any:
            return s[force] + 0.1 * s[force] ** 3 if cubic else s[force]

        pushed = []
        for entry, rate in zip(self.entries(states), rates, strict=True):
            if entry == held[0]:
                pushed.append(lambda s, rate=rate: rate(s) + push(s))
            elif len(held) > 1 and entry == held[1]:
                pushed.append(lambda s, rate=rate: rate(s) - b(s) * push(s))
            else:
                pushed.append(rate)
        return held, [equation], None if with_memory else onto, pushed

    def implicit(
        self, form: str, entries: list[Entry], rates: dict[str, list[Expression]], algebraics: list[str]
    ) -> tuple[list[Expression], dict[str, list[Expression]]]:
        """Rows of a residual for some or all of the variables."""
        names = [n for n in rates if self.chance(0.8)] or list(rates)
        rows: list[Expression] = []
        for name in names:
            for entry, rate in zip([e for e in entries if e.name == name], rates[name], strict=True):
                a, b = self.coefficient(0.05, 0.4), self.number(-0.3, 0.3)
                other = self.pick([e for e in entries if e.name in names])
                z = self.pick(algebraics) if algebraics and self.chance(0.5) else None

                def row(
                    s: Scope, entry: Entry = entry, rate: Any = rate, a: Any = a, b: float = b, other: Entry = other,
                    z: str | None = z,
                ) -> Any:  # fmt: skip
                    v, w = entry.of(s.der(entry.name)), other.of(s.der(other.name))
                    if form == "implicit index 2":
                        return v - rate(s)
                    if form == "implicit":
                        value = (1 + a(s) * entry(s) ** 2) * v + (b * w if other != entry else 0)
                    else:
                        value = v + a(s) * v**3 + (b * np.tanh(w) if other != entry else 0)
                    return value - rate(s) + (0 if z is None else 0.2 * s[z])

                rows.append(row)
        return rows, {n: r for n, r in rates.items() if n not in names}

    # -- transitions ----------------------------------------------------------------------------------

    def transition(self, source: str) -> None:
        system = self.system
        mode = system.modes[source]
        target = None if self.chance(0.06) else self.pick(list(system.modes))
        kind = self.pick(["guard"] * 6 + ["at", "every"])
        length = system.span[1] - system.span[0]
        what = kind
        same = [t.trigger for t in system.transitions if t.kind == kind]
        if same and kind == "at" and self.chance(0.3):
            trigger = self.pick(same)
        elif same and kind == "guard" and self.chance(0.05) and system.transitions[-1].source == source:
            trigger, what = same[-1], "the same guard"
            if system.transitions[-1].kind != "guard":
                what, trigger = self.guard(mode)
        elif kind == "at":
            trigger = self.coefficient(system.span[0] + 0.1 * length, system.span[1] - 0.1 * length, 0.8)
        elif kind == "every":
            trigger = self.coefficient(0.2 * length, 0.6 * length, 0.8)
        else:
            what, trigger = self.guard(mode)
        count = sum(t.source == source and t.target == target for t in system.transitions)
        name = f"{source} to {target or 'end'}{f' ({count + 1})' if count else ''}"
        more: dict[str, Any] = {}
        if target is not None:
            more = self.jump(mode, system.modes[target])
            more["uses"] = more.pop("impulse", None)
            more["memory"] = self.updates(mode, system.modes[target], more["uses"])
        system.transitions.append(
            RandomTransition(
                name,
                source,
                target,
                kind,
                trigger,
                what,
                self.pick(["rising", "falling", "both"]),
                "wait" if target == source else self.pick(["wait"] * 15 + ["fire"] * 4 + ["error"]),
                **more,
            )
        )

    def guard(self, mode: RandomMode) -> tuple[str, Expression]:
        entries = self.entries(mode.states)
        reach = 0.2 if self.chance(0.4) else 0.6
        level = self.coefficient(-reach, reach, 0.8)
        kinds = ["state"] * 4 + ["product", "time", "scaled", "rate"]
        kinds += ["memory"] * 2 if self.system.memories else []
        kinds += ["algebraic"] * 2 if mode.algebraics else []
        kinds += ["signal"] if self.system.signals else []
        what = self.pick(kinds)
        x, y = self.pick(entries), self.pick(entries)
        if what == "product":
            return what, lambda s: x(s) * y(s) - level(s) / 2
        if what == "time":
            pace = self.number(2, 7)
            return what, lambda s: np.sin(pace * s.t) - level(s)
        if what == "scaled":
            return what, lambda s: (x(s) - level(s)) * (1 + s.t**2) * 10
        if what == "rate":
            return what, lambda s: x.of(s.der(x.name)) - level(s)
        if what == "memory":
            r = self.pick(self.remembered())
            return what, lambda s: x(s) - r(s) / 2 - level(s)
        if what == "algebraic":
            z = self.pick(mode.algebraics)
            return what, lambda s: s[z] - level(s)
        if what == "signal":
            return what, lambda s: x(s) - s["push"] - level(s) / 2
        return what, lambda s: x(s) - level(s)

    def arrival(self, mode: RandomMode, name: str) -> Expression:
        """New values of a variable, from values before."""
        before: list[Expression] = [*self.entries(mode.states), *self.remembered()]
        before += [Entry(z, None) for z in mode.algebraics]
        if self.chance(0.2):
            x = self.pick(self.entries(mode.states))
            before.append(lambda s: x.of(s.der(x.name)))
        parts = []
        for entry in self.entries([name]):
            shift, keep = self.bounded(before), self.coefficient(-0.9, 0.9, 0.5)
            kept = entry if name in mode.states and self.chance(0.7) else None
            parts.append(lambda s, shift=shift, keep=keep, kept=kept: shift(s) + (keep(s) * kept(s) if kept else 0))
        return lambda s: ca.vertcat(*(part(s) for part in parts))

    def jump(self, source: RandomMode, target: RandomMode) -> dict[str, Any]:
        new = [n for n in target.states if n not in source.states]
        shared = [n for n in target.states if n in source.states]
        if target.constrained:
            return self.landing(source, target, new, shared)
        how = self.pick(["none", "explicit", "explicit", "implicit"])
        if how == "none" and new:
            how = "explicit"
        moved = new + [n for n in shared if self.chance(0.5)]
        if how == "none" or not moved:
            return {}
        values = {n: self.arrival(source, n) for n in moved}
        if how == "explicit":
            return {"how": how, "reset": values}
        impulse = self.unknown() if self.chance(0.4) else None
        rows: list[Expression] = []
        for n, value in values.items():
            a, b = self.coefficient(0.05, 0.4), self.number(-0.3, 0.3)
            other = self.pick(self.entries(moved))
            z = self.pick(target.algebraics) if target.algebraics and self.chance(0.4) else None

            def row(
                s: Scope, n: str = n, value: Any = value, a: Any = a, b: float = b, other: Entry = other,
                z: str | None = z,
            ) -> Any:  # fmt: skip
                after = s.post(n)
                left = after + a(s) * after**3 - value(s) + b * np.tanh(other.of(s.post(other.name)))
                left += 0 if z is None else 0.2 * s.post(z)
                return left if impulse is None else left + 0.2 * s[impulse]

            rows.append(row)
        if impulse is not None:
            pull = self.bounded([*self.entries(source.states)])
            first = self.entries(moved)[0]
            rows.append(
                lambda s: s[impulse] + 0.2 * s[impulse] ** 3 + 0.3 * np.sin(first.of(s.post(first.name))) - pull(s)
            )
        return {"how": how, "equations": rows, "impulse": impulse}

    def unknown(self) -> str:
        name = f"P{len(self.system.unknowns)}"
        self.system.unknowns.append(name)
        return name

    def landing(self, source: RandomMode, target: RandomMode, new: list[str], shared: list[str]) -> dict[str, Any]:
        """A jump onto the target's constraint."""
        held = [entry.name for entry in target.held]
        free = [n for n in shared if n not in held and self.chance(0.4)]
        values = {n: self.arrival(source, n) for n in [*new, *free]}
        ways = ["project", "impulse", *(["onto"] if target.onto is not None else [])]
        if source is target and target.onto is not None and self.chance(0.3):
            return {"how": "none"}
        how = self.pick(ways)
        if how == "project":
            kind = self.pick(["none", "number", "diagonal"])
            metric = None
            if kind == "number":
                weight = self.coefficient(0.5, 2)
                metric = lambda s: weight(s)
            elif kind == "diagonal":
                weights = [self.coefficient(0.5, 2) for _ in held]
                metric = lambda s: ca.vertcat(*(w(s) for w in weights))
            return {"how": how, "reset": values, "project": tuple(held), "metric": metric}
        if how == "onto":
            second = values.get(held[1], lambda s: s[held[1]]) if len(held) > 1 else None
            onto = target.onto
            assert onto is not None
            values[held[0]] = lambda s: ca.vertcat(onto(None if second is None else second(s), s))
            return {"how": how, "reset": values}
        impulse = self.unknown()
        rows: list[Expression] = []
        for n in [*held, *(n for n in values if n not in held)]:
            base = values.get(n, lambda s, n=n: s[n])
            sign = 1.0 if n == held[0] else -0.5 if n in held else 0.0
            rows.append(lambda s, n=n, base=base, sign=sign: s.post(n) - base(s) - sign * s[impulse])
        return {"how": how, "equations": rows, "impulse": impulse}

    def updates(self, source: RandomMode, target: RandomMode, impulse: str | None) -> dict[str, Expression]:
        found: dict[str, Expression] = {}
        for name, memory in self.system.memories.items():
            if memory.of is not None or self.chance(0.3):
                continue
            x, y = self.pick(self.entries(target.states)), self.pick(self.entries(source.states))
            keep, gain = self.coefficient(-0.7, 0.9), self.coefficient(-0.6, 0.6)
            before = self.chance(0.5)

            def update(
                s: Scope, name: str = name, x: Entry = x, y: Entry = y, keep: Any = keep, gain: Any = gain,
                before: bool = before,
            ) -> Any:  # fmt: skip
                value = keep(s) * s[name] + gain(s) * (y(s) if before else x.of(s.post(x.name)))
                return value if impulse is None else value + 0.2 * s[impulse]

            found[name] = update
        return found

    # -- start and costs ------------------------------------------------------------------------------

    def start(self) -> None:
        system = self.system
        mode = next(iter(system.modes.values()))
        for name in mode.states:
            if mode.held and name == mode.held[0].name:
                continue
            size = system.states[name]
            values = [self.coefficient(-1, 1, 0.6) for _ in range(size)]
            if mode.form == "linear ODE" and size == 1 and self.chance(0.05):
                system.equations.append(lambda s, name=name, v=values[0]: s.der(name) - v(s))  # a rate to start with
            elif size == 1 and self.chance(0.15):
                system.equations.append(lambda s, name=name, v=values[0]: s[name] + 0.2 * s[name] ** 3 - v(s))
            else:
                system.initial[name] = lambda s, values=values: ca.vertcat(*(v(s) for v in values))

    def costs(self) -> None:
        system = self.system
        shared = [n for n in system.states if all(n in mode.states for mode in system.modes.values())]
        everywhere = [z for z in system.algebraics if all(z in mode.algebraics for mode in system.modes.values())]
        inputs: list[Expression] = [*self.entries(shared), *self.remembered()]
        inputs += [Entry(z, None) for z in everywhere]
        if system.signals:
            inputs.append(lambda s: s["push"])
        x = self.pick(self.entries(shared))
        kind, part = self.pick(["integrand", "terminal", "both"]), self.bounded(inputs)
        one: dict[str, Any] = {}
        if kind != "terminal":
            one["integrand"] = lambda s: x(s) ** 2 + part(s)
        if kind != "integrand":
            one["terminal"] = lambda s: x(s) + part(s) * x(s)
        system.functionals["G"] = one
        kinds = ["vector", "at_times", "rate"] + (["at_events"] if system.transitions else [])
        kind = self.pick(kinds)
        a, b = self.bounded(inputs, 2.0), self.bounded(inputs, 2.0)
        if kind == "vector":
            system.functionals["H"] = {
                "integrand": lambda s: ca.vertcat(a(s), b(s) * x(s)),
                "terminal": lambda s: ca.vertcat(x(s), a(s)),
            }
        elif kind == "rate":
            system.functionals["H"] = {"integrand": lambda s: np.tanh(x.of(s.der(x.name))) * a(s)}
        elif kind == "at_times":
            t0, t1 = system.span
            whens = [self.coefficient(t0 + f * (t1 - t0), t0 + (f + 0.3) * (t1 - t0), 0.4) for f in (0.1, 0.5)]
            system.functionals["H"] = {"at_times": [(whens[0], a), (whens[1], lambda s: x(s) * b(s))]}
        else:
            fired = self.pick(system.transitions)
            local = self.entries(system.modes[fired.source].states)
            y = self.pick(local)
            after: Expression = lambda s: 0.0
            if fired.target is not None:
                w = self.pick(self.entries(system.modes[fired.target].states))
                pulls = [P for P in system.unknowns if fired.uses == P]
                after = lambda s: w.of(s.post(w.name)) * 0.7 + sum(s[P] ** 2 for P in pulls)
            system.functionals["H"] = {
                "at_events": {fired.name: lambda s: y(s) ** 2 + a(s) + after(s)},
                "terminal": lambda s: b(s),
            }
        if not system.parameters:
            # a system without parameters has no derivatives: its initial value becomes one
            system.parameters["start"] = np.array([0.3])
            value = system.initial.get("x")
            if value is not None:
                system.initial["x"] = lambda s: value(s) + s["start"]
            else:
                inner = system.functionals["G"]
                key = next(iter(inner))
                old = inner[key]
                inner[key] = lambda s: s["start"] * old(s)


def random_system(seed: int, **limits: Any) -> RandomSystem:
    """The system of a seed; `limits` are `sizes`, the largest number of coordinates, and `forms`."""
    return Draw(seed, **limits).declare()
