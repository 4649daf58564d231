"""Random hybrid systems with relations and with ties, judged by the reference of taylor_reference.py.

A seed fixes a system: one to three states and modes, two to four parameters, bounded right-hand sides; comparisons,
their logical combinations, sign, floor, ceil, fmod, abs, fmin and fmax in equations, integrands, resets and guards. In
every other system something is moved to where something else happens, at a distance of 0 to 1e-6: a measurement, the
end, a time event, a guard or a relation.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from closed_forms import GRADIENT_ERROR, TOLERANCES, VALUE_ERROR
from taylor_reference import (
    RELATIONS,
    Expr,
    Jump,
    Solution,
    Statement,
    T,
    Unsettled,
    call,
    moved,
    one_sided,
    solve,
    to_casadi,
    wrap,
)
from verdicts import Verdict

import dae_hybrid as dh

KINDS = (
    "comparison", "nested", "shared", "logical", "sign", "rounding", "abs, min, max", "in integrand", "in reset",
    "in guard", "guard becomes true", "in guard and equation", "transitions alone",
)  # fmt: skip
TIES = (0.0, 1e-15, 1e-12, 1e-10, 1e-6)
TIED = ("measurement", "end", "time event", "guard", "relation")
#: adapters and methods that systems go through in turn, and whether their equations are compiled
WAYS: tuple[tuple[bool, dict[str, str]], ...] = (
    (True, {"method": "auto"}),
    (False, {"method": "auto"}),
    (False, {"method": "bdf"}),
    (False, {"method": "adams"}),
    (False, {"adapter": "scipy"}),
    (True, {"method": "erk"}),
    (False, {"method": "auto"}),
    (False, {"adapter": "casadi"}),
    (False, {"adapter": "scikits-odes"}),
    (True, {"method": "bdf"}),
)
#: smallest detected kink, relative to the derivative; largest distance of the cause of a refusal, in rtol
KINK, NEAR = 1e-6, 1e3
#: a gradient is coarse if its error is below this multiple of rtol and vanishes at this share of the tolerances
COARSE, FINER = 1e4, 1e-2


@dataclass(frozen=True)
class Drawn:
    """A statement, what it is about, and its reference."""

    statement: Statement
    labels: tuple[str, ...]
    base: Solution | None  # None: it slides, and has to be refused

    @cached_property
    def sides(self) -> tuple[np.ndarray, np.ndarray] | None:
        """dG/dp from the left and from the right; None where one does not exist."""
        assert self.base is not None
        try:
            return one_sided(self.statement, self.base)
        except Unsettled:
            return None

    @property
    def gradient(self) -> np.ndarray | None:
        """dG/dp, None at a kink."""
        if self.sides is None:
            return None
        left, right = self.sides
        scale = max(1.0, float(np.abs(left).max()))
        return (left + right) / 2 if np.abs(left - right).max() <= KINK * scale else None

    def near(self, rtol: float) -> bool:
        """Whether the functional has a kink or a jump within the accuracy of a run."""
        gradient = self.gradient
        if gradient is None or self.base is None or self.base.grazes < NEAR * rtol:
            return True
        rng = np.random.default_rng(0)
        for _ in range(2):
            direction = rng.choice([-1.0, 1.0], gradient.size) * rng.uniform(0.5, 1, gradient.size)
            for side in (-1, 1):
                off = []
                for reach in (NEAR * rtol, NEAR * rtol / 10):
                    shift = side * reach * direction
                    try:
                        gain = float(moved(self.statement, shift).value - self.base.value)
                    except Unsettled:
                        return True
                    off.append(abs(gain - gradient @ shift) / reach)
                if off[0] > 3e-8 * max(1.0, float(np.abs(gradient).max())) and not 5 < off[0] / max(off[1], 1e-30) < 20:
                    return True
        return False


class _Drawer:
    """Draws expressions of a system with n states and k parameters."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.n, self.k = int(rng.integers(1, 4)), int(rng.integers(2, 5))
        self.remembers = bool(rng.random() < 0.4)
        self.p0 = rng.uniform(0.2, 1.2, self.k).round(3)

    def number(self, low: float, high: float) -> float:
        return round(float(self.rng.uniform(low, high)), 3)

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def x(self) -> Expr:
        return Expr("x", (int(self.rng.integers(self.n)),))

    def p(self) -> Expr:
        return Expr("p", (int(self.rng.integers(self.k)),))

    def smooth(self) -> Expr:
        """Bounded."""
        a, w = self.number(0.3, 1.5), self.number(0.5, 3)
        what = int(self.rng.integers(7))
        if what == 0:
            return a * call("sin", w * T + self.x())
        if what == 1:
            return self.p() * call("cos", w * self.x())
        if what == 2:
            return a * call("exp", -(self.x() * self.x()))
        if what == 3:
            return self.p() * call("sin", w * T)
        if what == 4:
            return a * call("sin", self.p() * T + self.number(0, 3))
        if what == 5 and self.remembers:
            return a * call("sin", Expr("m", (0,)) + self.x())
        return self.p() - self.number(0, 1) * call("sin", self.x())

    def quantity(self) -> tuple[Expr, Expr]:
        """Two sides of a comparison."""
        what = int(self.rng.integers(5))
        if what == 0:
            return T, self.number(0.8, 2.5) * self.p() + self.number(0, 0.5)
        if what == 1:
            return self.x() * self.x(), self.p() * self.number(0.1, 0.8)
        if what == 2:
            return self.x(), self.number(0.2, 0.8) * call("sin", self.number(1, 4) * T)
        return self.x(), self.p() * self.number(-0.3, 0.8)

    def relation(self, nested: bool = False) -> Expr:
        left, right = self.quantity()
        if nested:
            right = right + call("if_else", self.relation(), self.number(-0.3, 0.3), self.p() * self.number(-0.3, 0.3))
        return call(self.pick(*RELATIONS), left, right)

    def logical(self) -> Expr:
        one, two = self.relation(), self.relation()
        return self.pick(
            call("and", one, two), call("or", one, two), call("and", one, call("not", two)),
            call("not", call("or", one, two)),
        )  # fmt: skip

    def branch(self, condition: Expr) -> Expr:
        if self.rng.random() < 0.3:
            return self.smooth() * call("number", condition)
        return call("if_else", condition, self.smooth(), self.smooth())

    def term(self, kind: str) -> Expr:
        """With relations of a kind."""
        if kind == "nested":
            return self.branch(self.relation(nested=True))
        if kind == "logical":
            return self.branch(self.logical())
        if kind == "sign":
            return self.p() * call("sign", self.x() - self.p() * self.number(-0.3, 0.8))
        if kind == "rounding":
            time = T * self.number(0.8, 3) / self.p() if self.rng.random() < 0.7 else (1.2 + self.x() * self.x()) * 2
            a = self.number(0.1, 0.3)
            return self.pick(
                a * call("floor", time), a * call("ceil", time), a * call("floor", 3 * self.x()),
                self.number(0.5, 1) * call("fmod", T + 0.1, self.p()), a * call("fmod", time, 1.5),
            )  # fmt: skip
        if kind == "abs, min, max":
            level = self.p() * self.number(-0.3, 0.8)
            return self.number(0.3, 1) * self.pick(
                call("abs", self.x() - level), call("fmin", self.x(), level), call("fmax", self.x(), level),
                call("fmin", call("fmax", self.x(), -self.p() * 0.3), self.p() * 0.3),
                call("fmax", self.smooth(), self.x()),
            )  # fmt: skip
        return self.branch(self.relation())

    def rates(self, kind: str | None) -> tuple[Expr, ...]:
        rates = [self.smooth() - self.number(0.2, 1) * Expr("x", (i,)) for i in range(self.n)]
        if kind is not None:
            i = int(self.rng.integers(self.n))
            term = self.term(kind)
            rates[i] = rates[i] + term
            if kind == "shared":  # one relation at two places, in two states if there are
                j = (i + 1) % self.n
                rates[j] = rates[j] + call("if_else", term.args[-1] if term.op == "*" else term.args[0], 0.4, -0.2)
                if term.op == "*":
                    rates[j] = rates[j].args[0] + 0.3 * term.args[-1]
        return tuple(rates)

    def jump(self, source: int, target: int | None, kind: str) -> Jump:
        i = int(self.rng.integers(self.n))
        x, level = Expr("x", (i,)), self.p() * self.number(0.1, 0.8)
        trigger, how, direction = x - level, "guard", self.pick("rising", "falling", "both", "rising")
        if kind == "in guard":
            trigger = self.pick(
                call("fmin", self.x(), self.smooth()) - level, call("abs", x) - level,
                call("fmax", x, self.x()) - level, x - level - self.number(0.1, 0.4) * call("abs", self.x()),
                call("if_else", self.relation(), x - level, x - level - 0.2),
            )  # fmt: skip
        elif kind == "guard becomes true":
            trigger, how = (self.logical() if self.rng.random() < 0.5 else self.relation()), "becomes"
        elif self.rng.random() < 0.2:
            trigger, how = self.number(0.3, 2) * self.p() + self.number(0.1, 1), "at"
        if how != "guard":
            direction = "both"
        new = self.number(-0.5, 0.6) * x - self.pick(0.0, 0.1, 0.2) + self.pick(0.0, 0.2) * self.p()
        if kind == "in reset":
            new = self.pick(
                call("if_else", self.relation(), new, self.number(-0.5, 0.5) * x), 0.5 * call("abs", x - level) - 0.2,
                call("fmin", new, self.x()), call("fmax", new, -level), new - 0.2 * call("sign", self.x()),
                new + 0.1 * call("floor", 3 * self.x() + T),
            )  # fmt: skip
        reset = ((i, new),) if kind == "in reset" or self.rng.random() < 0.8 else ()
        memory: tuple[tuple[int, Expr], ...] = ()
        if target is None:
            reset = ()
        elif self.remembers:
            m = Expr("m", (0,))
            memory = (
                (
                    0,
                    self.pick(
                        m + 1, self.x(), m * 0.5 + T, *([call("fmax", m, self.x())] if kind == "in reset" else [])
                    ),
                ),
            )
        return Jump(source, target, how, trigger, direction, reset, memory, self.smooth() if reset else None)

    def statement(self, kind: str) -> Statement:
        rng = self.rng
        alone = kind == "transitions alone"
        in_equations = kind in KINDS[:7]
        jumps_wanted = not in_equations and kind != "in integrand"
        modes = int(rng.integers(1, 4)) if jumps_wanted or rng.random() < 0.5 else 1
        other = self.pick(*KINDS[:7])
        content = [
            kind if in_equations and i == 0 else (other if not alone and rng.random() < 0.3 else None)
            for i in range(modes)
        ]
        jumps = []
        if modes > 1 or jumps_wanted:
            for i in range(modes):
                target = None if rng.random() < 0.05 else (i + 1) % modes
                jumps.append(self.jump(i, target, kind))
        if jumps and rng.random() < 0.4:
            jumps.append(self.jump(0, 0, kind))
        for i, jump in enumerate(jumps):
            cost = None if jump.cost is None or rng.random() < 0.7 else jump.cost
            if cost is not None and kind == "in reset":
                cost = self.branch(self.relation())
            jumps[i] = replace(jump, cost=cost)
        integrand = None
        if kind == "in integrand":
            integrand = self.term(self.pick(*KINDS[:7]))
        elif rng.random() < 0.5:
            integrand = self.smooth() if alone or rng.random() < 0.7 else self.term(other)
        weights = rng.uniform(-1, 1, self.n).round(2)
        terminal = sum((w * Expr("x", (i,)) for i, w in enumerate(weights[1:], 1)), float(weights[0]) * Expr("x", (0,)))
        if not alone and rng.random() < 0.15:
            terminal = terminal + 0.5 * call("fmax", self.x(), self.p() * 0.3)
        measured = []
        if rng.random() < 0.3:
            time = self.number(0.4, 2) if rng.random() < 0.5 else self.number(0.5, 1.5) * self.p() + 0.1
            value = self.branch(self.relation()) if not alone and rng.random() < 0.3 else self.x() * self.x()
            measured.append((wrap(time), value))
        start = [self.number(-0.8, 0.9) + self.pick(0.0, 0.0, 0.5) * self.p() for _ in range(self.n)]
        if kind == "in reset" and rng.random() < 0.5:
            start[0] = call("fmin", start[0], self.p() - self.number(0.2, 0.8))
        rates = [self.rates(c) for c in content]
        if kind == "in guard and equation":  # what a guard looks at changes the equations, too
            i = int(rng.integers(modes))
            left, right = jumps[i].trigger.args[:2] if jumps[i].kind == "guard" else self.quantity()
            j = int(rng.integers(self.n))
            alike = call("if_else", call(self.pick(*RELATIONS), left, right), self.smooth(), self.smooth())
            rates[i] = tuple(rate + alike if k == j else rate for k, rate in enumerate(rates[i]))
        return Statement(
            parameters=tuple(float(v) for v in self.p0), start=tuple(start),
            memories=(wrap(self.number(0, 1)),) if self.remembers else (),
            modes=tuple(rates), jumps=tuple(jumps), end=self.number(2, 4),
            integrand=integrand, terminal=terminal, measured=tuple(measured),
        )  # fmt: skip

    def tie(self, s: Statement, base: Solution, distance: float, what: str) -> Statement:
        """Something else at (or next to) the time of an event."""
        k = int(self.rng.integers(len(base.events)))
        time = float(base.events[k][0] + self.pick(-1, 1) * distance)
        mode = int(self.rng.integers(len(s.modes)))
        if what == "measurement":
            return replace(s, measured=(*s.measured, (wrap(time), self.x() * self.x())))
        if what == "end":
            return replace(s, end=time)
        if what == "time event" or (what == "relation" and self.rng.random() < 0.5):
            moment, parameters = wrap(time), s.parameters
            if self.rng.random() < 0.5:
                moment, parameters = Expr("p", (len(parameters),)), (*parameters, time)
            s = replace(s, parameters=parameters)
            if what == "relation":
                return _with_term(s, mode, 0, call("if_else", call(">", T, moment), self.smooth(), self.smooth()))
            i = int(self.rng.integers(self.n))
            reset = ((i, self.pick(Expr("x", (i,)) + 0.3 * self.p(), 0.5 * Expr("x", (i,)), self.smooth())),)
            return replace(s, jumps=(*s.jumps, Jump(mode, mode, "at", moment, reset=reset)))
        i = int(self.rng.integers(self.n))
        level = base.states[k][i] + (time - base.events[k][0]) * base.rates[k][i]
        here = int(base.events[k][1].split()[-1]) if "mode" in base.events[k][1] else mode
        p = Expr("p", (len(s.parameters),))
        s = replace(s, parameters=(*s.parameters, float(level)))
        if what == "relation":
            return _with_term(s, here, (i + 1) % self.n, call("if_else", call("<", Expr("x", (i,)), p), 0.3, -0.4 * p))
        direction = "rising" if base.rates[k][i] > 0 else "falling"
        reset = ((i, 0.5 * Expr("x", (i,)) - 0.2 * self.p()),)
        target = int(self.rng.integers(len(s.modes)))
        return replace(s, jumps=(*s.jumps, Jump(here, target, "guard", Expr("x", (i,)) - p, direction, reset=reset)))


def _with_term(s: Statement, mode: int, state: int, term: Expr) -> Statement:
    rates = list(s.modes[mode])
    rates[state] = rates[state] + term
    return replace(s, modes=tuple(tuple(rates) if i == mode else m for i, m in enumerate(s.modes)))


def relations_system(seed: int) -> Drawn:
    """The system of a seed."""
    rng = np.random.default_rng([2027, seed])
    kind = KINDS[seed % len(KINDS)]
    tied = bool(rng.random() < 0.5)
    while True:
        drawer = _Drawer(rng)
        s = drawer.statement(kind)
        labels: tuple[str, ...] = (kind,)
        try:
            base = solve(s)
            if not base.events:
                continue
            if tied:
                distance, what = TIES[int(rng.integers(len(TIES)))], TIED[int(rng.integers(len(TIED)))]
                s = drawer.tie(s, base, distance, what)
                labels = (kind, f"tie at {distance:g}", f"tie of {what}")
                base = solve(s)
            return Drawn(s, labels, base)
        except Unsettled as error:
            if str(error) == "sliding" and rng.random() < 0.5:
                return Drawn(s, (*labels, "sliding"), None)


def declare(s: Statement, **options: Any) -> dh.HybridSystem:
    """The statement as the library's model."""
    m = dh.HybridModel("relations")
    p = [m.parameter(f"p{i}", v) for i, v in enumerate(s.parameters)]
    x = [m.differential(f"x{i}") for i in range(len(s.start))]
    symbols: dict[str, Any] = {"t": m.time, "p": p, "x": x, "m": []}

    def of(e: Expr) -> Any:
        return to_casadi(e, symbols)

    symbols["m"] = [m.memory(f"m{i}", initial=of(e)) for i, e in enumerate(s.memories)]
    modes = [m.mode(f"mode{i}", ode={x[j]: of(e) for j, e in enumerate(mode)}) for i, mode in enumerate(s.modes)]
    costs = {}
    for i, jump in enumerate(s.jumps):
        more: dict[str, Any] = {"at": of(jump.trigger)} if jump.kind == "at" else {"guard": of(jump.trigger)}
        if jump.kind == "guard":
            more["direction"] = jump.direction
        t = m.transition(
            modes[jump.source], None if jump.target is None else modes[jump.target], name=f"jump{i}",
            reset={x[j]: of(e) for j, e in jump.reset} or None,
            memory={symbols["m"][j]: of(e) for j, e in jump.memory} or None, **more,
        )  # fmt: skip
        if jump.cost is not None:
            costs[t] = of(jump.cost)
    m.initial(modes[0], {x[j]: of(e) for j, e in enumerate(s.start)})
    m.functional(
        "G", integrand=None if s.integrand is None else of(s.integrand),
        terminal=None if s.terminal is None else of(s.terminal),
        at_times=[(of(t), of(e)) for t, e in s.measured] or None, at_events=costs or None,
    )  # fmt: skip
    return m.build(**options)


def judge_relations(seed: int) -> Verdict:
    """Run, differentiate both ways and compare with the reference; seeds go through all `WAYS` in turn."""
    drawn = relations_system(seed)
    count = seed // len(KINDS)
    (native, way), rtol = WAYS[count % len(WAYS)], TOLERANCES[count // len(WAYS) % len(TOLERANCES)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            outcome, stage = _judge(drawn, rtol, way, native)
        except Exception as error:  # whatever else comes out is a defect, and the verdict says which
            outcome, stage = f"DEFECT: {type(error).__name__}: {error}", ""
    by = f"by {'compiled ' if native else ''}{way.get('adapter') or way['method']}"
    return Verdict(
        seed=seed, outcome=outcome, stage=stage, events=0 if drawn.base is None else len(drawn.base.events),
        forms=(*drawn.labels, by), notes=(f"{way}, rtol {rtol:g}, native {native}",) if outcome != "agree" else (),
    )  # fmt: skip


def _judge(drawn: Drawn, rtol: float, way: dict[str, Any], native: bool) -> tuple[str, str]:
    options = {"rtol": rtol, "atol": rtol / 100, "max_steps": 100_000, **way}
    span = (0.0, drawn.statement.end)
    stage = "build"

    def refused(error: Exception) -> str:
        known = isinstance(error, dh.UnsupportedError | dh.AdapterError) or drawn.base is None
        known = known or (stage != "build" and drawn.near(rtol))
        return f"{'refused' if known else 'needless'}: {type(error).__name__}: {error}"

    try:
        # the reference does not slide
        system = declare(drawn.statement, native=native, relations="cross" if drawn.base is None else "slide")
        stage = "simulate"
        found = float(dh.simulate(system, span, **options).functionals["G"])
        if drawn.base is None:
            return f"DISAGREE slides, and is not refused: G is {found}", stage
        value = float(drawn.base.value)
        off = abs(found - value) / (1 + abs(value))
        doubtful = not off <= VALUE_ERROR and drawn.near(rtol)
        if not off <= VALUE_ERROR and not doubtful:
            return f"DISAGREE G is off by {off:.1e}: {found} instead of {value}", stage
        gradients: dict[str, Callable[..., Any]] = {
            "forward": lambda **options: dh.forward_sensitivity(system, span, **options).gradient["G"],
            "adjoint": lambda **options: dh.adjoint_gradient(system, span, "G", **options).gradient,
        }
        said = coarse = ""
        for stage, gradient in gradients.items():
            try:
                got = np.asarray(gradient(**options))
            except (dh.DaeHybridError, dh.DerivativeWarning, dh.ConditionWarning) as error:
                said = said or refused(error)
                continue
            if doubtful:
                return f"DISAGREE G is off by {off:.1e} next to a jump, and nothing is said", stage
            if drawn.gradient is None and (drawn.sides is None or not _within(got, drawn.sides)):
                return f"DISAGREE one side of a kink, and nothing is said: {got}, sides {drawn.sides}", stage
            if drawn.gradient is None:
                continue  # its sides are one gradient to the accuracy that is asked for
            off = _off(got, drawn.gradient)
            if off <= GRADIENT_ERROR:
                continue
            finer = {**options, "rtol": FINER * rtol, "atol": FINER * rtol / 100}
            if not (off <= COARSE * rtol and _off(gradient(**finer), drawn.gradient) <= GRADIENT_ERROR):
                return f"DISAGREE dG/dp is off by {off:.1e}: {got} instead of {drawn.gradient}", stage
            coarse = f"coarse: dG/dp is off by {off:.1e}, and right at a hundredth of the tolerances"
        return said or coarse or "agree", "compare" if not said else stage
    except (dh.DaeHybridError, dh.DerivativeWarning, dh.ConditionWarning) as error:
        return refused(error), stage


def _off(got: Any, gradient: Any) -> float:
    return float(np.abs(got - gradient).max()) / max(1.0, float(np.abs(gradient).max()))


def _within(got: Any, sides: Any) -> bool:
    """Whether a gradient is that of both sides, to the accuracy that is asked for."""
    return all(np.abs(got - side).max() <= GRADIENT_ERROR * max(1.0, float(np.abs(side).max())) for side in sides)
