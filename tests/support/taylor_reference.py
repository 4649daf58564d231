"""Reference solutions of small hybrid systems by Taylor series in 100 bits; nothing is shared with the library.

Systems are stated in a language of a few operations, `Expr`. Between events every relation in an expression is frozen:
what remains is smooth and is expanded by Picard's iteration on power series (python-flint). Zeros of what relations
compare, and of guards, are roots of such series, solved for by Newton's method. Derivatives are differences with steps
of 1e-13 to either side, exact to nine digits: the two differ where the solution has a kink.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import casadi as ca
import numpy as np
from flint import arb, arb_poly, arb_series, ctx
from scipy.optimize import brentq

BITS, ORDER = 110, 24
STEP_ERROR = 1e-24
LONGEST = 0.5  # a step; guards are looked at at LOOKS places within it
LOOKS = 17
ZERO = arb(10) ** -17  # smaller values count as zero
NUDGE = 1e-13  # of parameters, for differences


class Unsettled(Exception):
    """The statement has no unique solution: motion along a surface, or too many events."""


# -- the language -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expr:
    """An operation and its operands."""

    op: str
    args: tuple[Any, ...] = ()

    def __add__(self, other: Any) -> Expr:
        return Expr("+", (self, wrap(other)))

    def __radd__(self, other: Any) -> Expr:
        return Expr("+", (wrap(other), self))

    def __sub__(self, other: Any) -> Expr:
        return Expr("-", (self, wrap(other)))

    def __rsub__(self, other: Any) -> Expr:
        return Expr("-", (wrap(other), self))

    def __mul__(self, other: Any) -> Expr:
        return Expr("*", (self, wrap(other)))

    def __rmul__(self, other: Any) -> Expr:
        return Expr("*", (wrap(other), self))

    def __truediv__(self, other: Any) -> Expr:
        return Expr("/", (self, wrap(other)))

    def __neg__(self) -> Expr:
        return 0.0 - self

    def __str__(self) -> str:
        if self.op in ("const", "x", "p", "m"):
            return f"{self.args[0]:g}" if self.op == "const" else f"{self.op}{self.args[0]}"
        if self.op in ("+", "-", "*", "/", ">", "<", ">=", "<="):
            return f"({self.args[0]} {self.op} {self.args[1]})"
        return f"{self.op}({', '.join(map(str, self.args))})" if self.args else self.op


def wrap(value: Any) -> Expr:
    """A number as an expression."""
    return value if isinstance(value, Expr) else Expr("const", (float(value),))


def call(op: str, *args: Any) -> Expr:
    """sin, cos, exp, abs, sign, floor, ceil, fmod, fmin, fmax, if_else, and, or, not, >, <, >=, <=, number."""
    return Expr(op, tuple(wrap(a) for a in args))


T = Expr("t")
RELATIONS = (">", "<", ">=", "<=")
_CASADI: dict[str, Callable[..., Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
    "sin": ca.sin,
    "cos": ca.cos,
    "exp": ca.exp,
    "abs": ca.fabs,
    "sign": ca.sign,
    "floor": ca.floor,
    "ceil": ca.ceil,
    "fmod": ca.fmod,
    "fmin": ca.fmin,
    "fmax": ca.fmax,
    "if_else": ca.if_else,
    "and": ca.logic_and,
    "or": ca.logic_or,
    "not": ca.logic_not,
    "number": lambda a: a,
}


def to_casadi(e: Expr, symbols: dict[str, Any]) -> Any:
    """The expression for the library; `symbols` has t and lists x, p, m."""
    if e.op == "const":
        return e.args[0]
    if e.op == "t":
        return symbols["t"]
    if e.op in ("x", "p", "m"):
        return symbols[e.op][e.args[0]]
    return _CASADI[e.op](*(to_casadi(a, symbols) for a in e.args))


# -- expressions with frozen relations --------------------------------------------------------------------------------


class Frozen:
    """Expressions as functions of x, t, p, m and the choices of their relations.

    A choice is a truth value, of a quantity being positive, or an integer, the quantity rounded down; those of inner
    relations come before those of outer ones.
    """

    def __init__(self, expressions: list[Expr]) -> None:
        self.constants: list[arb] = []
        self.whole: list[bool] = []  # whether a choice is an integer
        self._sources: list[str] = []
        self._known: dict[tuple[bool, str], int] = {}
        sources = [self._emit(e) for e in expressions]
        self._space = {"C": self.constants}
        self.values = self._function(f"[{', '.join(sources)}]")
        self.each = [self._function(source) for source in sources]
        self.quantities = [self._function(source) for source in self._sources]

    def _function(self, source: str) -> Callable[..., Any]:
        return eval(f"lambda x, t, p, m, b: {source}", self._space)

    def _choice(self, whole: bool, source: str) -> str:
        key = (whole, source)
        if key not in self._known:
            self._known[key] = len(self._sources)
            self._sources.append(source)
            self.whole.append(whole)
        return f"b[{self._known[key]}]"

    def _emit(self, e: Expr) -> str:
        if e.op == "const":
            self.constants.append(arb(e.args[0]))
            return f"C[{len(self.constants) - 1}]"
        if e.op == "t":
            return "t"
        if e.op in ("x", "p", "m"):
            return f"{e.op}[{e.args[0]}]"
        a = [self._emit(arg) for arg in e.args]
        if e.op in ("+", "-", "*", "/"):
            return f"({a[0]} {e.op} {a[1]})"
        if e.op in ("sin", "cos", "exp"):
            return f"{a[0]}.{e.op}()"
        if e.op in (">", ">="):
            return self._choice(False, f"({a[0]} - {a[1]})")
        if e.op in ("<", "<="):
            return self._choice(False, f"({a[1]} - {a[0]})")
        if e.op in ("and", "or"):
            return f"({a[0]} {e.op} {a[1]})"
        return {
            "not": lambda: f"(not {a[0]})",
            "number": lambda: f"(1 if {a[0]} else 0)",
            "if_else": lambda: f"({a[1]} if {a[0]} else {a[2]})",
            "abs": lambda: f"({a[0]} if {self._choice(False, a[0])} else -{a[0]})",
            "sign": lambda: f"(1 if {self._choice(False, a[0])} else -1)",
            "floor": lambda: self._choice(True, a[0]),
            "ceil": lambda: f"(-{self._choice(True, f'(-{a[0]})')})",
            "fmod": lambda: f"({a[0]} - {self._choice(True, f'({a[0]} / {a[1]})')} * {a[1]})",  # of what is positive
            "fmin": lambda: f"({a[1]} if {self._choice(False, f'({a[0]} - {a[1]})')} else {a[0]})",
            "fmax": lambda: f"({a[0]} if {self._choice(False, f'({a[0]} - {a[1]})')} else {a[1]})",
        }[e.op]()

    def decide(self, x: Any, t: Any, p: Any, m: Any) -> tuple[list[Any], list[int]]:
        """Choices at a point, and which of them are made at zero."""
        b: list[Any] = []
        close = []
        for i, quantity in enumerate(self.quantities):
            value = arb(quantity(x, t, p, m, b)).mid()
            if not self.whole[i]:
                b.append(value > 0)
                if abs(value) < ZERO:
                    close.append(i)
                continue
            nearest = round(float(value))
            if abs(value - nearest) < ZERO:
                close.append(i)
                b.append(nearest)
            else:
                b.append(nearest if value > nearest else nearest - 1)
        return b, close

    def at(self, x: Any, t: Any, p: Any, m: Any) -> list[Any]:
        """Values at an instant."""
        b, _ = self.decide(x, t, p, m)
        return self.values(x, t, p, m, b)


# -- statements -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Jump:
    """A transition; `guard` is an expression in `direction`, or a relation that becomes true, or a time."""

    source: int
    target: int | None
    kind: str  # guard, becomes, at
    trigger: Expr
    direction: str = "both"
    reset: tuple[tuple[int, Expr], ...] = ()
    memory: tuple[tuple[int, Expr], ...] = ()
    cost: Expr | None = None  # at the event, of values before


@dataclass(frozen=True)
class Statement:
    """A hybrid system with one functional."""

    parameters: tuple[float, ...]
    start: tuple[Expr, ...]
    memories: tuple[Expr, ...]
    modes: tuple[tuple[Expr, ...], ...]
    jumps: tuple[Jump, ...]
    end: float
    integrand: Expr | None = None
    terminal: Expr | None = None
    measured: tuple[tuple[Expr, Expr], ...] = ()  # (time, of parameters; value)

    @cached_property
    def frozen(self) -> _Compiled:
        """Compiled functions of the system."""
        return _Compiled(self)

    def __str__(self) -> str:
        lines = [f"p = {self.parameters}", f"x(0) = {[str(e) for e in self.start]}, until {self.end!r}"]
        lines += [f"m = {[str(e) for e in self.memories]}"] if self.memories else []
        lines += [f"mode {i}: x' = {[str(e) for e in mode]}" for i, mode in enumerate(self.modes)]
        for j in self.jumps:
            lines.append(f"{j.source} -> {j.target} {j.kind} {j.direction} {j.trigger}")
            lines += [f"   x{i} := {e}" for i, e in j.reset] + [f"   m{i} := {e}" for i, e in j.memory]
            lines += [f"   cost {j.cost}"] if j.cost is not None else []
        lines.append(f"integrand {self.integrand}, terminal {self.terminal}")
        lines += [f"measured at {t}: {e}" for t, e in self.measured]
        return "\n".join(lines)


class _Compiled:
    def __init__(self, s: Statement) -> None:
        self.modes: list[Frozen] = []
        self.leaving: list[list[int]] = []
        for i, mode in enumerate(s.modes):
            leaving = [k for k, jump in enumerate(s.jumps) if jump.source == i]
            follow = [s.jumps[k].trigger for k in leaving if s.jumps[k].kind != "at"]
            self.modes.append(Frozen([*mode, s.integrand or wrap(0.0), *follow]))
            self.leaving.append(leaving)
        self.resets = [Frozen([*(e for _, e in j.reset), *(e for _, e in j.memory)]) for j in s.jumps]
        self.costs = [None if j.cost is None else Frozen([j.cost]) for j in s.jumps]
        self.times = Frozen([j.trigger if j.kind == "at" else wrap(-1.0) for j in s.jumps])
        self.start = Frozen([*s.start, *s.memories])
        self.terminal = None if s.terminal is None else Frozen([s.terminal])
        self.measured = [(Frozen([t]), Frozen([e])) for t, e in s.measured]


@dataclass
class Solution:
    """The functional's value, and when what happened."""

    value: arb
    events: list[tuple[float, str]] = field(default_factory=list)
    grazes: float = np.inf  # how near a quantity has come to zero without crossing it
    states: list[list[float]] = field(default_factory=list)  # at events, before
    rates: list[list[float]] = field(default_factory=list)


def solve(s: Statement, parameters: list[arb] | None = None) -> Solution:
    """One run; raises `Unsettled`."""
    before = ctx.prec, ctx.cap
    ctx.prec = BITS
    try:
        return _Run(s, [arb(v) for v in s.parameters] if parameters is None else parameters).go()
    finally:
        ctx.prec, ctx.cap = before


_GRID = np.linspace(0, 1, LOOKS)
_POWERS = _GRID[:, None] ** np.arange(ORDER + 1)
_RATES = np.arange(ORDER + 1) * _GRID[:, None] ** np.maximum(np.arange(ORDER + 1) - 1, 0)


TOUCHES = 1e-12  # turning points nearer to zero are not told from it
SMALL_RATE, SAME_TIME, ROUNDING = arb("1e-12"), arb("1e-22"), arb("1e-28")


def _roots(series: list[arb], h: float) -> tuple[list[tuple[arb, int]], float]:
    """Zeros in (0, h] with their directions, and the smallest turning point without one; a zero at 0 is divided out."""
    skip = 0
    while skip < len(series) and abs(series[skip]) < (SMALL_RATE if skip else ZERO):
        skip += 1
        if skip > 3:
            break
    c = series[skip:]
    if not c:
        return [], 0.0
    scaled = np.array([float(v) for v in c]) * h ** np.arange(len(c))
    values, rates = _POWERS[:, : len(c)] @ scaled, _RATES[:, : len(c)] @ scaled
    places = [0.0]
    graze = np.inf
    polynomial = scaled[::-1]
    for i in range(LOOKS - 1):
        if rates[i] * rates[i + 1] < 0 and values[i] * rates[i] < 0 and values[i] * values[i + 1] > 0:
            slope = np.polyder(polynomial)
            turn = brentq(lambda u, slope=slope: np.polyval(slope, u), _GRID[i], _GRID[i + 1])
            extreme = float(np.polyval(polynomial, turn))
            if abs(extreme) < TOUCHES:
                raise Unsettled("touches zero")
            if extreme * values[i] <= 0:
                places.append(turn)
            graze = min(graze, abs(extreme))
        places.append(_GRID[i + 1])
    levels = [float(np.polyval(polynomial, u)) for u in places] if len(places) > LOOKS else values.tolist()
    found: list[tuple[arb, int]] = []
    p = None
    for (a, b), (va, vb) in zip(pairwise(places), pairwise(levels), strict=True):
        if va * vb > 0 or (va == 0 and a == 0.0):
            continue
        u = brentq(lambda u: np.polyval(polynomial, u), a, b, xtol=1e-300, rtol=1e-14) if va * vb < 0 else b
        p = arb_poly(c) if p is None else p
        rate = p.derivative()
        tau = arb(u * h)
        for _ in range(6):
            move = (p(tau) / rate(tau)).mid()
            tau = (tau - move).mid()
            if abs(move) < ROUNDING:
                break
        if not found or abs(found[-1][0] - tau) > ZERO:
            found.append((tau, 1 if float(rate(tau)) > 0 else -1))
    return found, graze


class _Run:
    def __init__(self, s: Statement, p: list[arb]) -> None:
        self.s, self.p, self.f = s, p, s.frozen
        first = [arb(v).mid() for v in self.f.start.at([], arb(0), p, [])]
        n = len(s.start)
        self.n, self.x, self.m = n, first[:n], first[n:]
        self.t, self.mode, self.value = arb(0), 0, arb(0)
        self.times = [arb(v).mid() for v in self.f.times.at([], arb(0), p, [])]
        self.measure = sorted(((arb(t.at([], arb(0), p, [])[0]).mid(), k) for k, (t, _) in enumerate(self.f.measured)))
        self.found = Solution(arb(0))
        self.choices: list[Any] | None = None
        self.flipped: set[int] = set()
        self.latest: int | None = None  # to have fired at this instant
        self.truth: dict[int, bool] = {}  # of guards that are relations, since their mode was entered
        self.signs: dict[int, int] = {}  # of guards at the end of it
        self.done = False

    # -- one step ------------------------------------------------------------------------------------------------------

    def expand(self, rules: Frozen, b: list[Any]) -> list[arb_series]:
        """The solution as power series in time from here."""
        n = self.n
        x = [arb_series([v], prec=1) for v in self.x]
        for order in range(1, ORDER + 1):
            ctx.cap = order
            t = arb_series([self.t, 1], prec=order)
            flow = [rules.each[i](x, t, self.p, self.m, b) for i in range(n)]
            ctx.cap = order + 1
            x = [_series(f, order).integral() + v for f, v in zip(flow, self.x, strict=True)]
        return x

    def series(self, rules: Frozen, b: list[Any], x: list[arb_series], function: Any) -> list[arb]:
        ctx.cap = ORDER + 1
        t = arb_series([self.t, 1], prec=ORDER + 1)
        return [v.mid() for v in _series(function(x, t, self.p, self.m, b), ORDER + 1).coeffs()]

    def settle(self, rules: Frozen) -> tuple[list[Any], list[arb_series], list[list[arb]], bool]:
        """Choices from here on, the solution and what the choices look at: at zero its rate decides.

        Where no choice holds, those that have been crossed into are given, and False.
        """
        b, close = rules.decide(self.x, self.t, self.p, self.m)
        if self.choices is not None:
            for i in close:
                old = self.choices[i]
                if not rules.whole[i]:
                    b[i] = not old if i in self.flipped else old
        tried: list[Any] = []
        while True:
            x = self.expand(rules, b)
            quantities = [self.series(rules, b, x, q) for q in rules.quantities]
            wanted = list(b)
            for i in range(len(b)):
                c = quantities[i]
                if rules.whole[i]:
                    nearest = round(float(c[0])) if c else 0
                    rest = [c[0] - nearest, *c[1:]] if c else []
                    if rest and abs(rest[0]) > ZERO:
                        wanted[i] = nearest if rest[0] > 0 else nearest - 1
                    elif (sign := _sign(rest)) != 0:
                        wanted[i] = nearest if sign > 0 else nearest - 1
                elif (sign := _sign(c)) != 0:
                    wanted[i] = sign > 0
            if wanted == b:
                return b, x, quantities, True
            tried.append((b, x, quantities))
            b = wanted
            if any(b == choices for choices, _, _ in tried):
                return (*tried[0], False)

    def go(self) -> Solution:
        entered, spent = True, set()
        for _ in range(2000):
            rules = self.f.modes[self.mode]
            b, x, quantities, holds = self.settle(rules)
            leaving = self.f.leaving[self.mode]
            triggers = [k for k in leaving if self.s.jumps[k].kind != "at"]
            now: dict[int, Any] = {}
            due: list[int] = []
            for k, function in zip(triggers, rules.each[self.n + 1 :], strict=True):
                jump = self.s.jumps[k]
                if jump.kind == "becomes":
                    now[k] = bool(function(self.x, self.t, self.p, self.m, b))
                    if now[k] and self.truth.get(k) is False and k != self.latest:  # by a reset as well as in time
                        due.append(k)
                    continue
                now[k] = self.series(rules, b, x, function)
                sign = _sign(now[k])
                at_zero = not now[k] or abs(now[k][0]) < ZERO
                if at_zero and k not in spent and _heads(jump.direction, sign) and (entered or self.flipped):
                    due.append(k)
                elif not entered and not at_zero and self.signs.get(k, 0) * sign < 0 and _heads(jump.direction, sign):
                    due.append(k)  # it has jumped across zero with a relation
            for k in leaving:
                if self.s.jumps[k].kind == "at" and abs(self.times[k] - self.t) < SAME_TIME and k not in spent:
                    due.append(k)
            self.truth = {k: v for k, v in now.items() if isinstance(v, bool)}
            if due:
                self.note(f"transition {min(due)}", rules, b)
                self.fire(min(due), spent)
                entered = True
                if self.done:
                    break
                continue
            if not holds:
                raise Unsettled("sliding")
            entered = False
            h = self.length(x)
            h, events = self.next(rules, b, quantities, now, h)
            self.advance(rules, b, x, h)
            self.signs = {k: _side(c, h) for k, c in now.items() if not isinstance(c, bool)}
            self.choices, self.flipped = b, {i for kind, i in events if kind == "flip"}
            spent, self.latest = set(), None
            for _, i in (e for e in events if e[0] == "flip"):
                self.note(f"relation {i} of mode {self.mode}", rules, b)
            fired = sorted(i for kind, i in events if kind == "jump")
            if fired:
                self.note(f"transition {fired[0]}", rules, b)
                self.fire(fired[0], spent)
                entered = True
            if ("end", 0) in events and not self.done:
                self.close()
            if self.done:
                break
            if len(self.found.events) > 60:
                raise Unsettled("too many events")
        else:
            raise Unsettled("too many steps")
        self.found.value = self.value.mid()
        return self.found

    def note(self, what: str, rules: Frozen, b: list[Any]) -> None:
        self.found.events.append((float(self.t), what))
        self.found.states.append([float(v) for v in self.x])
        flow = [rules.each[i](self.x, self.t, self.p, self.m, b) for i in range(self.n)]
        self.found.rates.append([float(arb(v)) for v in flow])

    def length(self, x: list[arb_series]) -> float:
        """A step that makes an error of STEP_ERROR."""
        h = LONGEST
        for series in x:
            c = [abs(float(v)) for v in series.coeffs()[-2:]]
            for k, v in zip(range(ORDER + 1 - len(c), ORDER + 1), c, strict=True):
                if v > 1e-300 and len(series.coeffs()) == ORDER + 1:
                    h = min(h, (STEP_ERROR / v) ** (1 / k))
        if h < 1e-3 or max(abs(float(v)) for v in self.x) > 1e3:
            raise Unsettled("no bounds")
        return h

    def next(self, rules: Frozen, b: list[Any], quantities: list[list[arb]], now: dict[int, Any], h: float) -> Any:
        """The first thing to happen within h: when, and all that happen then."""
        candidates: list[tuple[arb, tuple[str, int]]] = [(arb(h), ("step", 0)), (arb(self.s.end) - self.t, ("end", 0))]
        candidates += [(t - self.t, ("measure", k)) for t, k in self.measure]
        jumps = self.s.jumps
        for k in self.f.leaving[self.mode]:
            if jumps[k].kind == "at" and self.times[k] - self.t > SAME_TIME:
                candidates.append((self.times[k] - self.t, ("jump", k)))
        reach = h
        for i, c in enumerate(quantities):
            for level in (b[i], b[i] + 1) if rules.whole[i] else (0,):
                roots, graze = _roots([(c[0] if c else arb(0)) - level, *c[1:]], reach)
                self.found.grazes = min(self.found.grazes, graze)
                if roots:
                    candidates.append((roots[0][0], ("flip", i)))
        for k, c in now.items():
            if isinstance(c, bool):
                continue
            roots, graze = _roots(c, reach)
            self.found.grazes = min(self.found.grazes, graze)
            hits = [tau for tau, sign in roots if _heads(jumps[k].direction, sign)]
            if hits:
                candidates.append((hits[0], ("jump", k)))
        first = min((tau for tau, _ in candidates), key=lambda tau: (float(tau), float(tau - arb(float(tau)))))
        return first, [what for tau, what in candidates if abs(tau - first) < SAME_TIME]

    def advance(self, rules: Frozen, b: list[Any], x: list[arb_series], h: arb) -> None:
        if self.s.integrand is not None:
            gain = arb_poly(
                [arb(0), *(v / (k + 1) for k, v in enumerate(self.series(rules, b, x, rules.each[self.n])))]
            )
            self.value += gain(h).mid()
        self.x = [arb_poly([v.mid() for v in series.coeffs()])(h).mid() for series in x]
        self.t = (self.t + h).mid()
        while self.measure and abs(self.measure[0][0] - self.t) < SAME_TIME:
            _, k = self.measure.pop(0)
            self.value += arb(self.f.measured[k][1].at(self.x, self.t, self.p, self.m)[0])

    def fire(self, k: int, spent: set[int]) -> None:
        if len(spent) > 20:
            raise Unsettled("a chain")
        jump = self.s.jumps[k]
        spent.add(k)
        self.latest = k
        if (cost := self.f.costs[k]) is not None:
            self.value += arb(cost.at(self.x, self.t, self.p, self.m)[0])
        new = [arb(v).mid() for v in self.f.resets[k].at(self.x, self.t, self.p, self.m)]
        x, m = list(self.x), list(self.m)
        for (i, _), v in zip(jump.reset, new, strict=False):
            x[i] = v
        for (i, _), v in zip(jump.memory, new[len(jump.reset) :], strict=True):
            m[i] = v
        self.x, self.m = x, m
        if jump.target is None:
            self.close()
            return
        if jump.target != self.mode:
            self.choices, self.flipped, self.truth = None, set(), {}
        self.mode = jump.target

    def close(self) -> None:
        self.done = True
        if self.measure:
            raise Unsettled("measured after the end")
        if self.f.terminal is not None:
            self.value += arb(self.f.terminal.at(self.x, self.t, self.p, self.m)[0])


def _series(value: Any, order: int) -> arb_series:
    return value if isinstance(value, arb_series) else arb_series([value], prec=order)


def _sign(c: list[arb]) -> int:
    """Sign of a series right after its start."""
    for k, v in enumerate(c[:6]):
        if abs(v) > (SMALL_RATE if k else ZERO):
            return 1 if v > 0 else -1
    return 0


def _side(c: list[arb], h: arb) -> int:
    value = arb_poly(c)(h).mid()
    return 0 if abs(value) < ZERO else (1 if value > 0 else -1)


def _heads(direction: str, sign: int) -> bool:
    return sign != 0 and (direction == "both" or (direction == "rising") == (sign > 0))


def moved(s: Statement, shift: np.ndarray | list[float]) -> Solution:
    """A run at other parameters, the sum taken in full precision."""
    before, ctx.prec = ctx.prec, BITS
    try:
        p = [arb(v) + arb(float(d)) for v, d in zip(s.parameters, shift, strict=True)]
    finally:
        ctx.prec = before
    return solve(s, p)


def one_sided(s: Statement, base: Solution, nudge: float = NUDGE) -> tuple[np.ndarray, np.ndarray]:
    """dG/dp by differences to the left and to the right."""
    sides = []
    for side in (-nudge, nudge):
        gradient = []
        for i in range(len(s.parameters)):
            shift = np.zeros(len(s.parameters))
            shift[i] = side
            ctx.prec, before = BITS, ctx.prec
            gradient.append(float((moved(s, shift).value - base.value) / arb(side)))
            ctx.prec = before
        sides.append(np.array(gradient))
    return sides[0], sides[1]
