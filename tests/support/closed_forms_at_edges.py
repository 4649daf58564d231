"""Random hybrid systems whose solution is known in closed form, with events at the edge of their conditions.

Clipped quantities in conditions, starts and entries at rest, thresholds at which states settle, rates that are singular
or vanish at the event, guards with kinks at their zeros, motion that is held on a surface, measurements at round
parameters. What is built depends on the shape of a system alone, and numbers are parameters: a thousand seeds share a
few dozen compiled systems.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import casadi as ca
import numpy as np
from closed_forms import ClosedForm, Vector, judge_closed_form
from scipy.special import exp1
from verdicts import Verdict

import dae_hybrid as dh

APART = 0.03  # least distance of events in time, and of extrema from levels
COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    ">": lambda q, b: q > b, ">=": lambda q, b: q >= b, "<": lambda q, b: q < b, "<=": lambda q, b: q <= b,
}  # fmt: skip


def real(rng: np.random.Generator, low: float, high: float) -> float:
    return round(float(rng.uniform(low, high)), 3)


def pick(rng: np.random.Generator, *of: Any) -> Any:
    return of[int(rng.integers(len(of)))]


# -- clipped quantities in conditions ----------------------------------------------------------------------------------

#: a clipped quantity of x and two levels c < d, and the threshold that it is compared with
CLIPS: dict[str, Callable[[Any, Any, Any], tuple[Any, Any]]] = {
    "fmax": lambda x, c, d: (ca.fmax(x - c, 0), 0),
    "fmin": lambda x, c, d: (ca.fmin(x - c, 0), 0),
    "limit above": lambda x, c, d: (ca.fmin(x, c), c),
    "limit below": lambda x, c, d: (ca.fmax(x, c), c),
    "clip at its lower end": lambda x, c, d: (ca.fmin(ca.fmax(x, c), d), c),
    "clip at its upper end": lambda x, c, d: (ca.fmin(ca.fmax(x, c), d), d),
    "dead zone": lambda x, c, d: (ca.fmax(x - d, 0) + ca.fmin(x - c, 0), 0),
    "branch": lambda x, c, d: (ca.if_else(x > c, x - c, 0), 0),
    "branch to a level": lambda x, c, d: (ca.if_else(x > c, x, c), c),
    "sum with its size": lambda x, c, d: (ca.fabs(x - c) + (x - c), 0),
    "size": lambda x, c, d: (ca.fabs(x - c), 0),  # touches
    "window": lambda x, c, d: (ca.fmin(ca.fmax(x - c, 0), ca.fmax(d - x, 0)), 0),
    "root": lambda x, c, d: (ca.sqrt(ca.fmax(x - c, 0)), 0),
}
#: those whose sign is not that of both sides: as a guard they fire where they reach the plateau, or leave it
ONE_SIDED = ("fmax", "fmin", "limit above", "limit below", "clip at its lower end", "clip at its upper end", "branch",
             "branch to a level", "sum with its size", "window")  # fmt: skip
#: what starts a piece of a motion: at a number or at a level, moving or held
PIECES = ("move", "hold", "hold c", "hold d", "move c", "move d")
SHAPES = 150  # of clipped conditions


@cache
def varies(name: str, compared: str) -> bool:
    """Whether a comparison is not seen to have one value: CasADi takes fabs(x) < 0 for false."""
    q, threshold = CLIPS[name](*(ca.MX.sym(key) for key in "xcd"))
    return not COMPARED[compared](q, threshold).is_constant()


def clipped(rng: np.random.Generator) -> ClosedForm:
    """Comparisons of clipped quantities, as a relation in a rate, a condition or an expression of a transition."""
    shape = np.random.default_rng(int(rng.integers(SHAPES)))
    name = pick(shape, *CLIPS)
    may: tuple[type[Exception], ...] = ()
    if name == "root":  # its rate is infinite where it leaves the plateau
        may = (dh.EventError, dh.IntegrationError)
    wave = bool(shape.random() < 0.3)
    pieces = ("move", *(pick(shape, *PIECES, "move", "move") for _ in range(0 if wave else shape.integers(0, 3))))
    compared, condition = (pick(shape, *(key for key in COMPARED if varies(name, key))) for _ in range(2))
    if name in ONE_SIDED and shape.random() < 0.3:
        condition = "expression"
    direction = pick(shape, "rising", "falling")
    end, n = 4.0, len(pieces)

    def number() -> Vector:
        c = real(rng, -1, 1)
        levels = [c, c + real(rng, 0.3, 1.5)]
        if wave:  # amplitude, frequency, phase
            return np.array([*levels, real(rng, 0.8, 2), real(rng, 1, 4), real(rng, -3, 3)])
        times = np.sort(rng.uniform(0.3, end - 0.3, n - 1)).round(3)
        return np.array([*levels, *rng.uniform(-2, 2, n), *rng.uniform(-2, 2, n), *rng.uniform(-2, 2, n), *times])

    def at_level(k: int) -> bool:
        return pieces[k].endswith((" c", " d"))

    def piece(p: Vector, k: int) -> tuple[Any, Any, Any]:
        """Position, speed and acceleration where a piece begins."""
        s, v, a = (p[2 + j * n + k] for j in range(3))
        s = p[0] if pieces[k].endswith(" c") else p[1] if pieces[k].endswith(" d") else s
        return (s, 0 * v, 0 * a) if pieces[k].startswith("hold") else (s, v, a)

    def position(p: Vector, k: int, t: Any) -> Any:
        if wave:
            return p[2] * np.cos(p[3] * t + p[4])
        s, v, a = piece(p, k)
        t = t - (p[2 + 3 * n + k - 1] if k else 0.0)
        return s + v * t + a * t**2 / 2

    def speed(p: Vector, k: int, t: Any) -> Any:
        if wave:
            return -p[2] * p[3] * np.sin(p[3] * t + p[4])
        _, v, a = piece(p, k)
        return v + a * (t - (p[2 + 3 * n + k - 1] if k else 0.0))

    def turns(p: Vector) -> Iterator[tuple[complex, int, float, str]]:
        """Times from which q may have another sign: with the piece, a time until the next one, and why."""
        starts = [0.0 + 0j, *p[2 + 3 * n :]] if not wave else [0.0 + 0j]
        for k, (begin, stop) in enumerate(zip(starts, [*starts[1:], end + 0j], strict=True)):
            found = [(begin, "start" if k == 0 else "jump")]
            grid = np.linspace(begin.real, stop.real, 4001)
            x = position(p.real, k, grid) + 0 * grid
            for level in p[:2]:
                side = x > level.real
                if np.ptp(x) == 0 or (at_level(k) and abs(x[0] - level.real) < 1e-12):
                    side[0] = side[1]
                for i in np.flatnonzero(side[1:] != side[:-1]):
                    t = complex((grid[i] + grid[i + 1]) / 2)
                    for _ in range(30):
                        t -= (position(p, k, t) - level) / speed(p, k, t)
                    found.append((t, "time"))
            found.sort(key=lambda turn: turn[0].real)
            for (t, why), after in zip(found, [*(t for t, _ in found[1:]), stop], strict=True):
                yield t, k, (t.real + after.real) / 2, why

    def sign(p: Vector, k: int, t: float) -> int:
        x = float(position(p, k, t))
        x = float(p[0]) if pieces[k] == "hold c" else float(p[1]) if pieces[k] == "hold d" else x
        q, threshold = CLIPS[name](x, float(p[0]), float(p[1]))
        return int(np.sign(float(q) - threshold))

    def is_put_to_zero(p: Vector, k: int) -> bool:
        q, threshold = CLIPS[name](float(piece(p, k)[0]), float(p[0]), float(p[1])) if at_level(k) else (1, 0)
        return pieces[k].startswith("move") and float(q) == threshold

    def is_clear(p: Vector) -> bool:
        """Whether events are apart, and extrema and starts away from levels."""
        found = list(turns(p.astype(complex)))
        if np.diff([t.real for t, *_ in found] + [end]).min() < APART:
            return False
        for k in range(n):
            begin = p[2 + 3 * n + k - 1] if k else 0.0
            stop = p[2 + 3 * n + k] if k + 1 < n else end
            x = position(p, k, np.linspace(begin, stop, 2001)) + np.zeros(2001)
            still = np.flatnonzero(np.diff(np.sign(np.diff(x)))) + 1
            at = [x[-1], *x[still]] if at_level(k) else [x[0], x[-1], *x[still]]
            if pieces[k].startswith("move") and min(abs(x - level) for x in at for level in p[:2]) < APART:
                return False
            if pieces[k] == "hold" and min(abs(x[0] - level) for level in p[:2]) < APART:
                return False
            if at_level(k) and pieces[k].startswith("move") and abs(speed(p, k, begin)) < APART:
                return False
        signs = [sign(p, k, t) for _, k, t, _ in found]
        return not any(  # put onto its threshold, and returned to the same side: whether that is an event is not told
            pieces[k].startswith("move ") and why == "jump" and before == after != 0
            for (_, k, _, why), before, after in zip(found[1:], signs, signs[1:], strict=False)
        )

    p0 = next((p for p in (number() for _ in range(300)) if is_clear(p)), None)
    if p0 is None:  # of some shapes there are none
        return clipped(rng)

    def truth(p: Vector) -> complex:
        found = list(turns(p.astype(complex)))
        signs = [sign(p.real, k, t) for _, k, t, _ in found]
        times = [t for t, *_ in found]
        total = 0j
        for begin, stop, s in zip(times, [*times[1:], end + 0j], signs, strict=True):
            total += (stop - begin) * bool(COMPARED[compared](s, 0))
        for (t, k, _, why), before, after in zip(found[1:], signs, signs[1:], strict=False):
            if condition == "expression":
                way = 1 if direction == "rising" else -1
                leaves = is_put_to_zero(p.real, k) and after == way  # moving in its direction
                fires = (after - before) * way > 0 and (why == "time" or leaves)
            else:
                was, is_ = (bool(COMPARED[condition](s, 0)) for s in (before, after))
                fires = is_ != was and is_ == (direction == "rising")
            total += t * fires
        return complex(total)

    def build(native: bool) -> dh.HybridSystem:
        return _clipped(name, pieces, wave, compared, condition, direction, native)

    family = "root of a clip in a condition" if may else "clipped condition"
    return ClosedForm(family, build, (0.0, end), p0, truth, refusals=may, unlike=may)


@cache
def _clipped(
    name: str, pieces: tuple[str, ...], wave: bool, compared: str, condition: str, direction: str, native: bool
) -> dh.HybridSystem:
    m, n = dh.HybridModel("clipped"), len(pieces)
    c, d = m.parameter("c", 0.0), m.parameter("d", 1.0)
    x, v, y = m.differential("x"), m.differential("v"), m.differential("y")
    q, threshold = CLIPS[name](x, c, d)
    rate = {y: ca.if_else(COMPARED[compared](q, threshold), 1, 0)}
    if wave:
        A, w, phi = m.parameter("A", 1.5), m.parameter("w", 2.0), m.parameter("phi", 0.3)
        run = m.mode("run", ode={x: v, v: -(w**2) * x, **rate})
        m.initial(run, {x: A * np.cos(phi), v: -A * w * np.sin(phi), y: 0.0})
    else:
        s, u, b = (m.parameter(key, np.full(n, value)) for key, value in (("s", 0.5), ("u", 0.1), ("b", 0.1)))
        T = m.parameter("T", np.linspace(1, 2, n)[: n - 1]) if n > 1 else None
        a = m.memory("a", initial=b[0])
        run = m.mode("run", ode={x: v, v: a, **rate})
        for k in range(1, n):
            begin = c if pieces[k].endswith(" c") else d if pieces[k].endswith(" d") else s[k]
            speed, bend = (0.0, 0.0) if pieces[k].startswith("hold") else (u[k], b[k])
            m.transition(run, run, at=T[k - 1], reset={x: begin, v: speed}, memory={a: bend}, name=f"piece {k}")
        m.initial(run, {x: s[0], v: u[0], y: 0.0})
    guard = q - threshold if condition == "expression" else COMPARED[condition](q, threshold)
    m.transition(run, run, guard=guard, direction=direction, reset={y: y + m.time}, name="observed")
    m.functional("G", terminal=y)
    return m.build(native=native)


# -- starts and entries at rest ----------------------------------------------------------------------------------------


def at_rest(rng: np.random.Generator) -> ClosedForm:
    """x = c + a s^n / n! - b s^(n+1) / (n+1)!, s the time since the start or the entry: what decides is the sign of a.

    y is the time since the transition has fired, or during which the relation holds.
    """
    n = int(rng.integers(2, 6))
    entry, way = pick(rng, "start", "time", "guard"), pick(rng, "guard", "condition", "relation")
    direction, on_entry = pick(rng, "rising", "falling", "both"), pick(rng, "wait", "fire")
    compared, level, chain = pick(rng, *COMPARED), bool(rng.integers(2)), bool(rng.integers(2))
    if way == "condition" and direction == "both":
        direction = "rising"
    if way == "relation":
        direction, on_entry = "rising", "wait"
    if way == "guard":
        compared = ">"
    end, T, c = 4.0, real(rng, 0.3, 1.2), real(rng, -1, 1)
    last = end - (0 if entry == "start" else T)
    side = pick(rng, 1, -1)
    back = real(rng, 0.5, last - 0.3) if rng.random() < 0.7 else real(rng, last + 0.3, last + 3)
    a = side * real(rng, 0.5, 3)
    p0 = np.array([round(a, 3), round((n + 1) * a / back, 3), T, c])

    def truth(p: Vector) -> complex:
        a, b = p[0], p[1]
        begin = 0.0 if entry == "start" else p[2]
        back = begin + (n + 1) * a / b
        first, second = (int(np.sign(a.real)), -int(np.sign(a.real)))
        returns = back.real < end
        if way == "relation":
            holds = [bool(COMPARED[compared](s, 0)) for s in (first, second)]
            before = 0.0 if entry == "start" else begin * bool(COMPARED[compared](-1, 0))
            turn = back if returns else end
            return complex(before + (turn - begin) * holds[0] + (end - turn) * holds[1])
        rises = {"rising": 1, "falling": -1, "both": 0}[direction]
        if way == "condition" and compared[0] == "<":
            rises = -rises
        if rises == first:
            return complex(end - begin)
        return complex(end - back) if returns else 0j

    def build(native: bool) -> dh.HybridSystem:
        return _at_rest(n, entry, way, direction, on_entry, compared, level, chain, native)

    family = "start at rest" if entry == "start" else "entry at rest"
    options = {"rtol": 1e-9, "atol": 1e-11} if n > 3 else {}  # x is small where it returns
    return ClosedForm(family, build, (0.0, end), p0, truth, options=options)


@cache
def _at_rest(
    n: int, entry: str, way: str, direction: str, on_entry: str, compared: str, level: bool, chain: bool, native: bool
) -> dh.HybridSystem:
    m = dh.HybridModel("at rest")
    a, b, T, c = (m.parameter(key, value) for key, value in (("a", 1.0), ("b", 2.0), ("T", 1.0), ("c", 0.5)))
    y, s = m.differential("y"), m.differential("s")  # s is the time since the entry
    if chain:
        links = [m.differential(f"x{i}") for i in range(n)]
        rates = dict(zip(links, [*links[1:], a - b * s], strict=True))
    else:
        links = [m.differential("x")]
        f = float(np.prod(np.arange(1, n)))
        rates = {links[0]: a * s ** (n - 1) / f - b * s**n / (f * n)}
    x, at = links[0], c if level else 0.0
    held = {y: ca.if_else(COMPARED[compared](x, at), 1, 0) if way == "relation" else 0}
    watch, done = (m.mode(name, ode={**rates, s: 1, **own}) for name, own in (("watch", held), ("done", {y: 1})))
    rest = dict(zip(links, [at] + [0.0] * (len(links) - 1), strict=True))
    guard = x - at if way == "guard" else COMPARED[compared](x, at)
    if way != "relation":
        m.transition(watch, done, guard=guard, direction=direction, on_entry=on_entry, name="observed")
    if entry == "start":
        m.initial(watch, {**rest, s: 0.0, y: 0.0})
    else:
        still = {**dict.fromkeys(links, 0), s: 1, y: held[y]}
        before = m.mode("before", ode=still)
        trigger = {"at": T} if entry == "time" else {"guard": s - T, "direction": "rising"}
        m.transition(before, watch, **trigger, reset={**rest, s: 0.0}, name="enters")
        m.initial(before, {**rest, x: at - 1.0, s: 0.0, y: 0.0})
    m.functional("G", terminal=y)
    return m.build(native=native)


# -- thresholds at which states settle ---------------------------------------------------------------------------------


def settles(rng: np.random.Generator) -> ClosedForm:
    """x' = -L (x - c), and z likewise: an alarm at the set point is never reached, however long the run."""
    watched, way = pick(rng, "one", "both"), pick(rng, "rising", "falling", "both", "relation", "condition")
    compared = pick(rng, *COMPARED)
    L, M, end = real(rng, 2, 10), real(rng, 1, 8), float(pick(rng, 1, 3, 6, 12, 25, 60))
    c, side = real(rng, -2, 2), pick(rng, 1, -1)
    if way == "condition":  # true until the set point, which is not reached, or false
        compared = "><"[int(rng.integers(2))]
    p0 = np.array([L, M, c, round(c + side * real(rng, 0.3, 3), 3), round(c + side * real(rng, 0.3, 3), 3)])

    def truth(p: Vector) -> complex:
        L, M, c, x0, z0 = p
        total = c * end + (x0 - c) * (1 - np.exp(-L * end)) / L + c + (z0 - c) * np.exp(-M * end)
        if way == "relation":
            total += end * (1 if COMPARED[compared](side, 0) else 0.5)
        return complex(total)

    def build(native: bool) -> dh.HybridSystem:
        return _settles(watched, way, compared, native)

    may = (dh.EventError, dh.DerivativeWarning)  # a typed refusal, or said to be chance
    return ClosedForm(f"settles, {way}", build, (0.0, end), p0, truth, refusals=(dh.EventError,), unlike=may)


@cache
def _settles(watched: str, way: str, compared: str, native: bool) -> dh.HybridSystem:
    m = dh.HybridModel("settles")
    L, M, c, x0, z0 = (m.parameter(key, 1.0 + i) for i, key in enumerate(("L", "M", "c", "x0", "z0")))
    x, z, y = m.differential("x"), m.differential("z"), m.differential("y")
    q = x - c if watched == "one" else (x - c) + 0.5 * (z - c)
    held = ca.if_else(COMPARED[compared](q, 0), 1, 0.5) if way == "relation" else 0
    rates = {x: -L * (x - c), z: -M * (z - c), y: x + held}
    quiet, alarm = m.mode("quiet", ode=rates), m.mode("alarm", ode=rates)
    if way == "condition":
        m.transition(quiet, alarm, guard=COMPARED[compared](q, 0), reset={y: y + 1}, name="alarm")
    elif way != "relation":
        m.transition(quiet, alarm, guard=q, direction=way, reset={y: y + 1}, name="alarm")
    m.initial(quiet, {x: x0, z: z0, y: 0.0})
    m.functional("G", terminal=y + z)
    return m.build(native=native)


# -- rates that are singular, or vanish, at the event ------------------------------------------------------------------

EXPONENTS = tuple(round(0.1 * k, 1) for k in range(-9, 10))


def singular_rate(rng: np.random.Generator) -> ClosedForm:
    """h' = -a r(h) ends where h is zero: the time, or the integral of h, with r = h^q, 1 - log h, 1 / h.

    The run ends at a last point before an infinite rate, and the derivative of its time has the relative error of h
    there: that of the run over h.
    """
    law = pick(rng, "log", "inverse", *EXPONENTS, 0.5)
    cost, ends = pick(rng, "time", "integral"), bool(rng.integers(2))
    p0 = np.array([real(rng, 0.2, 2), real(rng, 0.3, 2)])

    def moment(a: complex, h0: complex, k: int) -> complex:
        """The integral of h^k dt until h is zero."""
        if law == "log":
            u = 1 - np.log(h0)
            return complex(np.exp(k + 1) * exp1((k + 1) * u) / a)
        q = -1.0 if law == "inverse" else law
        return complex(h0 ** (k + 1 - q) / ((k + 1 - q) * a))

    def build(native: bool) -> dh.HybridSystem:
        return _singular_rate(law, cost, ends, native)

    end = 2 * moment(*p0, 0).real
    vanishes = law not in ("log", "inverse") and law > 0
    # a step across the zero may leave no state to go back to, and a solver that shows none of its steps stops before it
    lost = (dh.NonFiniteError, dh.StepSizeError) if law and not vanishes else ()
    family = f"rate that {'vanishes' if vanishes else 'is infinite' if law else 'is constant'} at the event"
    return ClosedForm(
        family, build, (0.0, end), p0, lambda p: moment(*p.astype(complex), int(cost == "integral")),
        refusals=lost,
        unlike=(dh.GrazingError,) if vanishes else lost,
        unlike_adjoint=(dh.EventError,) if law else (),
        amplifies=bool(law) and cost == "time",
    )  # fmt: skip


@cache
def _singular_rate(law: Any, cost: str, ends: bool, native: bool) -> dh.HybridSystem:
    m = dh.HybridModel("singular rate")
    a, h0 = m.parameter("a", 1.0), m.parameter("h0", 1.0)
    h, y = m.differential("h"), m.differential("y")
    r = 1 - ca.log(h) if law == "log" else 1 / h if law == "inverse" else h**law if law else 1
    full = m.mode("full", ode={h: -a * r, y: h if cost == "integral" else 1.0})
    if ends:
        m.transition(full, None, guard=h, direction="falling", name="empty")
    else:
        empty = m.mode("empty", ode={h: 0, y: 0})
        m.transition(full, empty, guard=h, direction="falling", reset={h: 0.0}, name="empty")
    m.initial(full, {h: h0, y: 0.0})
    m.functional("G", terminal=y)
    return m.build(native=native)


# -- guards with kinks at their zeros ----------------------------------------------------------------------------------

SIGNS: dict[str, Callable[[Any], Any]] = {
    "sign": lambda v: ca.sign(v),
    "branch": lambda v: ca.if_else(v > 0, 1, -1),
    "copysign": lambda v: ca.copysign(1, v),
    "quotient": lambda v: v / ca.fabs(v),  # a discontinuity that is no relation
}
KINKS: dict[str, Callable[[Any], Any]] = {
    "fabs": lambda v: ca.fabs(v),
    "root": lambda v: ca.sqrt(v**2),
    "fmax": lambda v: ca.fmax(v, 0),
    "fmax, mirrored": lambda v: ca.fmax(-v, 0),
    "both": lambda v: ca.fmax(v, 0) - ca.fmin(v, 0),
    "larger": lambda v: ca.fmax(v, -v),
}


def kink(rng: np.random.Generator) -> ClosedForm:
    """v' = -a sign(v) comes to rest after |v0| / a, where a guard with a kink has its zero."""
    law, guard, ends = pick(rng, *list(SIGNS)[:3]), pick(rng, *KINKS), bool(rng.integers(2))
    side = {"fmax": 1, "fmax, mirrored": -1}.get(guard) or pick(rng, 1, -1)
    a, v0 = real(rng, 0.5, 3), side * real(rng, 0.5, 3)
    p0 = np.array([a, v0])

    def truth(p: Vector) -> complex:
        a, v0 = p
        return complex(side * v0 / a + side * v0**2 / (2 * a))

    def build(native: bool) -> dh.HybridSystem:
        return _kink(law, guard, ends, native)

    end = round(abs(v0) / a + real(rng, 0.3, 1), 3)
    if rng.random() > 0.05:
        return ClosedForm("guard with a kink at its zero", build, (0.0, end), p0, truth)
    law, may = "quotient", (dh.EventError, dh.IntegrationError, dh.ConditionWarning)
    limits = {"max_steps": 20_000}
    return ClosedForm("hidden sign", build, (0.0, end), p0, truth, refusals=may[:2], unlike=may, options=limits)


@cache
def _kink(law: str, guard: str, ends: bool, native: bool) -> dh.HybridSystem:
    m = dh.HybridModel("kink")
    a, v0 = m.parameter("a", 1.0), m.parameter("v0", 1.0)
    v, x, y = m.differential("v"), m.differential("x"), m.differential("y")
    slides, rests = m.mode("slides", ode={v: -a * SIGNS[law](v), x: v, y: 1}), m.mode("rests", ode={v: 0, x: v, y: 0})
    stops = {"target": None} if ends else {"target": rests, "reset": {v: 0.0}}
    m.transition(slides, **stops, guard=KINKS[guard](v), direction="falling", name="stops")
    m.initial(slides, {v: v0, x: 0.0, y: 0.0})
    m.functional("G", terminal=x + y)
    return m.build(native=native)


# -- motion held on a surface ------------------------------------------------------------------------------------------

SLIPS: dict[str, Callable[[Any, Any], Any]] = {
    ">": lambda v, e: ca.fabs(v) > e,
    ">=": lambda v, e: ca.fabs(v) >= e,
    "<=": lambda v, e: ca.logic_not(ca.fabs(v) <= e),
    "or": lambda v, e: ca.logic_or(v > e, v < -e),
}


def held(rng: np.random.Generator) -> ClosedForm:
    """A block under s b (t - tau) is held at the edge of a band by friction, until the force exceeds it."""
    law, s = pick(rng, *SLIPS), pick(rng, 1, -1)
    while True:
        b, tau, mu, e, v0 = (real(rng, *own) for own in ((0.5, 2), (0.3, 2), (0.3, 1.5), (0.005, 0.05), (0.2, 1.5)))
        p0 = np.array([b, tau, mu, e, v0])
        inner = (s * b * tau + mu) ** 2 - 2 * s * b * (v0 - e)
        t1 = _arrival(s, p0).real if inner > 0 else -1.0
        if max(0.0, tau - mu / b) + APART < t1 < tau + mu / b - APART:
            break
    end = round(tau + mu / b + real(rng, 0.3, 2), 3)

    def truth(p: Vector) -> complex:
        b, tau, mu, e, v0 = p
        t1, later = _arrival(s, p), end - tau - mu / b
        x = v0 * t1 + s * b * (t1**3 / 6 - tau * t1**2 / 2) - mu * t1**2 / 2 + e * (end - t1) + s * b * later**3 / 6
        return complex(x + e + s * b * later**2 / 2)

    def build(native: bool) -> dh.HybridSystem:
        return _held(law, s, native)

    return ClosedForm("held on a surface", build, (0.0, end), p0, truth)


def _arrival(s: int, p: Vector) -> complex:
    """When v = v0 + s b (t^2 / 2 - tau t) - mu t arrives at e."""
    b, tau, mu, e, v0 = p
    half = s * b * tau + mu
    return complex(2 * (v0 - e) / (half + np.sqrt(half**2 - 2 * s * b * (v0 - e))))


@cache
def _held(law: str, s: int, native: bool) -> dh.HybridSystem:
    m = dh.HybridModel("held")
    b, tau, mu, e, v0 = (m.parameter(name, 1.0) for name in ("b", "tau", "mu", "e", "v0"))
    x, v = m.differential("x"), m.differential("v")
    force = s * b * (m.time - tau)
    friction = ca.if_else(SLIPS[law](v, e), mu * ca.sign(v), ca.fmax(-mu, ca.fmin(mu, force)))
    m.initial(m.mode("run", ode={x: v, v: force - friction}), {x: 0.0, v: v0})
    m.functional("G", terminal=x + v)
    return m.build(native=native)


# -- measurements at round parameters ----------------------------------------------------------------------------------

MEASURED = (0.5, 1.0, 1.5, 2.0, 3.0)
BESIDE = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)


def round_times(rng: np.random.Generator) -> ClosedForm:
    """A dose, or a change of the rate, at the very times of measurements: there derivatives are one-sided.

    Beside them, and of what the event does not change, they are as ever.
    """
    event, trigger = pick(rng, "dose", "switch"), pick(rng, "time", "guard", "every")
    seen = bool(rng.random() < 0.85)
    where = pick(rng, "at", "at", "before", "after")
    time = pick(rng, *(0.5, 1.0, 1.5, 2.0)) if trigger != "every" else pick(rng, 0.5, 1.0)
    shift = {"at": 0.0, "before": -1.0, "after": 1.0}[where] * pick(rng, *BESIDE)
    k, D = float(pick(rng, 0.5, 1.0, 2.0, real(rng, 0.2, 2))), float(pick(rng, 0.5, 1.0, real(rng, 0.2, 2)))
    p0 = np.array([time + shift, k, D])
    end = 4.0

    def truth(p: Vector) -> complex:
        """Measurements are made after an event at the same time."""
        lag, k, D = p
        if not seen:
            return complex(sum(np.exp(-k * t) for t in MEASURED))
        times = [j * lag for j in range(1, int(end / lag.real) + 2)] if trigger == "every" else [lag]
        total = 0j
        for t in MEASURED:
            due = [s for s in times if s.real <= t * (1 + 1e-14)]
            if event == "dose":
                total += np.exp(-k * t) + sum(D * np.exp(-k * (t - s)) for s in due)
            else:  # the rate D is added to 1 - k x for every switch
                total += np.exp(-k * t) + (1 - np.exp(-k * t)) / k
                total += sum(D * (1 - np.exp(-k * (t - s))) / k for s in due)
        return complex(total)

    def build(native: bool) -> dh.HybridSystem:
        return _round_times(event, trigger, seen, native)

    due = [j * p0[0] for j in range(1, int(end / p0[0]) + 2)] if trigger == "every" else [p0[0]]
    tied = seen and any(abs(s - t) < 1e-12 for s in due for t in MEASURED)
    family = "measurement at its event" if tied else "measurement next to its event" if seen else "measured apart"
    return ClosedForm(family, build, (0.0, end), p0, truth, is_one_sided=tied)


@cache
def _round_times(event: str, trigger: str, seen: bool, native: bool) -> dh.HybridSystem:
    m = dh.HybridModel("round times")
    lag, k, D = m.parameter("lag", 1.25), m.parameter("k", 1.0), m.parameter("D", 1.0)
    x, z, s = m.differential("x"), m.differential("z"), m.differential("s")
    u = m.memory("u", initial=0.0)
    rate = -k * x + (1 + u if event == "switch" else 0)
    run = m.mode("run", ode={x: rate, z: -k * z, s: 1})
    how = {"time": {"at": lag}, "every": {"every": lag}, "guard": {"guard": s - lag, "direction": "rising"}}[trigger]
    what = {"reset": {x: x + D}} if event == "dose" else {"memory": {u: u + D}}
    m.transition(run, run, **how, **what, name="event")
    m.initial(run, {x: 1.0, z: 1.0, s: 0.0})
    m.functional("G", at_times={t: x if seen else z for t in MEASURED})
    return m.build(native=native)


FAMILIES: tuple[Callable[[np.random.Generator], ClosedForm], ...] = (
    clipped, at_rest, settles, singular_rate, kink, round_times, held,
)  # fmt: skip


def judge_at_an_edge(seed: int) -> Verdict:
    """Judge a system of these families as those of `closed_forms`."""
    return judge_closed_form(seed, FAMILIES)
