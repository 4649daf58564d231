"""Random systems with conditions, clocks, queues, priorities, tables of times, and indicators of modes.

A system of `random_systems` gets statements of one kind; seed mod the number of kinds chooses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from types import MappingProxyType
from typing import Any

import casadi as ca
import numpy as np
from random_statements import RandomSystem, Restatement
from random_systems import FORMS, Draw

import dae_hybrid as dh


class WithStatements(RandomSystem):
    """A random system with further statements; `x` is a state of every mode."""

    kinds: Mapping[str, str]  # with the class of each

    @property
    def kind(self) -> str:
        """Kind of the statements."""
        return list(self.kinds)[self.seed % len(self.kinds)]

    @property
    def forms(self) -> tuple[str, ...]:
        """The class and the kind, in place of the formulations."""
        return (self.kinds[self.kind], f"{self.kinds[self.kind]}: {self.kind}")

    def model(self, how: Restatement | None = None) -> dh.HybridModel:
        """Declare the system; its restatements are those of the system below."""
        m = super().model(how)
        getattr(self, f"_{self.kind.replace(' ', '_')}")(m, np.random.default_rng([2026, self.seed]))
        return m

    # -- pieces ---------------------------------------------------------------------------------------

    @staticmethod
    def _number(rng: np.random.Generator) -> float:
        return round(float(rng.uniform(-0.8, 0.8)), 3)

    @staticmethod
    def _x(m: dh.HybridModel) -> ca.MX:
        return m.declarations["x"].symbol

    @staticmethod
    def _signal(m: dh.HybridModel, rng: np.random.Generator) -> ca.MX:
        """A smooth expression in the state, time and one of the parameters."""
        x, p = m.declarations["x"].symbol, m.of_kind("parameter")[0].symbol
        a, b, c = (round(float(v), 3) for v in rng.uniform(-1, 1, 3))
        return x + a * ca.sin(3 * b * m.time + c) + 0.2 * x * p[0]

    def _counter(self, m: dh.HybridModel, rng: np.random.Generator) -> ca.MX:
        """A memory that counts the events of every transition."""
        count = m.memory("count", initial=float(rng.integers(0, 2)))
        for name, t in list(m.transitions.items()):
            if t.target is not None:
                m.transitions[name] = replace(t, memory=t.memory | {"count": count + 1})
        return count

    def _claim(self, m: dh.HybridModel, rng: np.random.Generator, count: ca.MX) -> ca.MX:
        """A condition on the state, time or the counter."""
        level, moment = self._number(rng), float(rng.uniform(*self.span))
        found = [self._x(m) > level, self._x(m) < level, m.time > moment, count >= 1, count < 3][int(rng.integers(5))]
        return dh.not_(found) if rng.random() < 0.2 else found

    def _drive(self, m: dh.HybridModel, force: ca.MX) -> None:
        """Add a force to the rate of x wherever it is explicit."""
        for name, mode in m.modes.items():
            if "x" in mode.ode:
                m.modes[name] = replace(mode, ode=mode.ode | {"x": mode.ode["x"] + force})
        moved = {name: m.modes[name] for name in m.modes}
        for name, t in m.transitions.items():
            target = None if t.target is None else moved[t.target.name]
            m.transitions[name] = replace(t, sources=tuple(moved[s.name] for s in t.sources), target=target)
        if m.start is not None:
            m.start = replace(m.start, mode=moved[m.start.mode.name])


class EventSystem(WithStatements):
    """A random system with conditions, clocks, queues or times in tables."""

    kinds = MappingProxyType({
        "condition": "conditions", "logic": "conditions", "indicator": "conditions",
        "clock": "times", "table of times": "times", "time in memory": "times",
        "delay": "queues", "values at the trigger": "queues", "priority": "queues",
    })  # fmt: skip

    def _condition(self, m: dh.HybridModel, rng: np.random.Generator) -> None:
        flag = self._counter(m, rng)
        for name, t in list(m.transitions.items()):
            if rng.random() < 0.8:
                m.transitions[name] = replace(t, when=ca.MX(self._claim(m, rng, flag)))

    def _logic(self, m: dh.HybridModel, rng: np.random.Generator) -> None:
        flag, x = self._counter(m, rng), self._x(m)
        for combine in (dh.all_of, dh.any_of):
            guard = combine(self._claim(m, rng, flag), self._claim(m, rng, flag))
            m.transition("all", "same", guard=guard, reset={x: 0.7 * x + self._number(rng)}, name=combine.__name__)

    def _table_of_times(self, m: dh.HybridModel, rng: np.random.Generator) -> None:
        x, n = self._x(m), int(rng.integers(2, 5))
        times = m.parameter("when", rng.uniform(*self.span, n).round(3))
        m.transition("all", "same", at=times, reset={x: 0.5 * x + rng.uniform(-1, 1, n).round(3)}, name="dose")

    def _clock(self, m: dh.HybridModel, rng: np.random.Generator) -> None:
        x, length = self._x(m), self.span[1] - self.span[0]
        u, w = m.discrete("u", initial=self._number(rng)), m.discrete("w", initial=0.1)
        period = m.parameter("period", round(float(rng.uniform(0.1, 0.3)) * length, 3))
        fast = m.clock(period, offset=round(float(rng.uniform(0.01, 0.1)) * length, 3), name="fast")
        slow = m.clock(fast, factor=int(rng.integers(2, 4)), name="slow")
        m.update(fast, {u: 0.6 * u + self._number(rng) * x})
        m.update(slow, {w: ca.tanh(u) + self._number(rng) * w})
        self._drive(m, u + w)

    def _time_in_memory(self, m: dh.HybridModel, rng: np.random.Generator) -> None:
        x, length = self._x(m), self.span[1] - self.span[0]
        first, pause = m.parameter("first", self.span[0] + 0.23 * length), m.parameter("pause", 0.31 * length)
        due = m.memory("due", initial=first)
        after = due + pause * (1 + 0.3 * ca.tanh(x))
        m.transition("all", "same", at=due, reset={x: x + self._number(rng)}, memory={due: after}, name="next")

    def _delay(self, m: dh.HybridModel, rng: np.random.Generator, values: Any = "execution") -> None:
        x, length = self._x(m), self.span[1] - self.span[0]
        lag, level = m.parameter("lag", round(0.17 * length, 3)), m.parameter("level", self._number(rng))
        m.transition(
            "all", "same", guard=x - level, direction="rising", delay=lag * (1.2 + ca.tanh(x)), values=values,
            persistent=bool(rng.random() < 0.5), pending=int(rng.integers(1, 5)),
            reset={x: 0.6 * x + self._number(rng)}, name="late",
        )  # fmt: skip

    def _values_at_the_trigger(self, m: dh.HybridModel, rng: np.random.Generator) -> None:
        self._delay(m, rng, "trigger")

    def _priority(self, m: dh.HybridModel, rng: np.random.Generator) -> None:
        for name, t in list(m.transitions.items()):
            m.transitions[name] = replace(t, priority=ca.MX(float(rng.integers(-2, 3))))

    def _indicator(self, m: dh.HybridModel, rng: np.random.Generator) -> None:
        first = m.active(next(iter(m.modes)))
        own = m.functionals["G"]
        for part in ("integrand", "terminal"):
            if getattr(own, part) is not None:
                own = replace(own, **{part: getattr(own, part) * (1 + self._number(rng) * first)})
        m.functionals["G"] = own
        self._drive(m, self._number(rng) * (1 - first))


def extended[System: WithStatements](kind: type[System], draw: Draw) -> System:
    """What was drawn, with further statements."""
    drawn = draw.declare()
    return kind(**{f.name: getattr(drawn, f.name) for f in fields(drawn)})


def event_system(seed: int, **limits: Any) -> EventSystem:
    """The system of a seed, without constraints."""
    return extended(EventSystem, Draw(seed, **({"sizes": 3, "forms": FORMS[:-1]} | limits)))
