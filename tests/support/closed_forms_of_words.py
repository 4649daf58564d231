"""Random hybrid systems whose equations jump in words that no relation shows, with their solution in closed form.

Every word is a function of one moving quantity x(t) = a sin(w t + b) + s t, and smooth between known levels of it. The
cost is the integral of their sum, piece by piece.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any

import casadi as ca
import numpy as np
from closed_forms import ClosedForm, Vector, judge_closed_form
from verdicts import Verdict

import dae_hybrid as dh

APART, PI = 0.05, np.pi
NODES, WEIGHTS = np.polynomial.legendre.leggauss(24)
NODES, WEIGHTS = (NODES + 1) / 2, WEIGHTS / 2
LEVELS = np.arange(-9.0, 10.0)


@dataclass(frozen=True)
class Word:
    """A function of x and a parameter c as it is stated, its levels of x, and its branch around a real x."""

    stated: Callable[[Any, Any], Any]
    levels: Callable[[Any], Any]
    branch: Callable[[Any, float, Any], Any]


def _wave(x: Any, around: float) -> Any:
    k = np.round(around / PI)
    return (-1) ** k * (x - k * PI)


def _arc(x: Any, around: float) -> Any:
    turns = 2 * PI * np.round(around / (2 * PI))
    return (x - turns) * np.sign(around - turns)


def direction(x: Any, around: float, c: Any) -> Any:
    return np.sign(around - c.real) + 0 * x


def _on_grid(value: Callable[[Any], Any]) -> Callable[[Any, float, Any], Any]:
    """The branch of a B-spline on [0, 3], which is zero outside."""
    return lambda x, around, c: value(x - c) if 0 < around - c.real < 3 else 0 * x


TABLE = ca.interpolant("table", "bspline", [[0.0, 1.0, 2.0, 3.0]], [0.0, 1.0, 4.0, 9.0])  # u**2
PLANE = ca.interpolant("plane", "bspline", [[0.0, 1.0, 2.0, 3.0]] * 2, np.arange(16.0))  # u + 4 v
#: the last two have kinks only, which are integrated across
WORDS = {
    "u/|u|": Word(lambda x, c: (x - c) / ca.fabs(x - c), lambda c: c, direction),
    "k u/sqrt(u^2)": Word(lambda x, c: 2 * c * (x - c) / ca.sqrt((x - c) ** 2), lambda c: c,
                          lambda x, around, c: 2 * c * direction(x, around, c)),
    "u (1/|v|)": Word(lambda x, c: (c - x) * (1 / ca.fabs(x - c)), lambda c: c,
                      lambda x, around, c: -direction(x, around, c)),
    "angle": Word(lambda x, c: ca.atan2(3 * ca.sin(x - c), 3 * ca.cos(x - c)), lambda c: c + PI * LEVELS,
                  lambda x, around, c: x - c - 2 * PI * np.round((around - c.real) / (2 * PI))),
    "atan tan": Word(lambda x, c: ca.atan(ca.tan(x - c)), lambda c: c + PI * (LEVELS + 0.5),
                     lambda x, around, c: x - c - PI * np.round((around - c.real) / PI)),
    "atan 1/u": Word(lambda x, c: ca.atan(1 / (x - c)), lambda c: c, lambda x, around, c: np.arctan(1 / (x - c))),
    "atan n/u": Word(lambda x, c: ca.atan((1 + x**2) / (x - c)), lambda c: c,
                     lambda x, around, c: np.arctan((1 + x**2) / (x - c))),
    "spline": Word(lambda x, c: TABLE(x - c), lambda c: c + np.array([0.0, 3.0]), _on_grid(lambda u: u**2)),
    "spline of two": Word(lambda x, c: PLANE(ca.vertcat(x - c, (x - c) / 2 + 0.75)), lambda c: c + np.array([0.0, 3.0]),
                          _on_grid(lambda u: 3 * u + 3)),
    "acos cos": Word(lambda x, c: ca.acos(ca.cos(x - c)), lambda c: c + PI * LEVELS,
                     lambda x, around, c: _arc(x - c, around - c.real)),
    "asin sin": Word(lambda x, c: ca.asin(ca.sin(x - c)), lambda c: c + PI * (LEVELS + 0.5),
                     lambda x, around, c: _wave(x - c, around - c.real)),
}  # fmt: skip
SHAPES = 40


def words(rng: np.random.Generator) -> ClosedForm:
    """One to three words, in a rate or in an integrand."""
    shape = np.random.default_rng(int(rng.integers(SHAPES)))
    names = tuple(str(name) for name in shape.choice(list(WORDS), int(shape.integers(1, 4)), replace=False))
    place, end = str(shape.choice(["rate", "integrand"])), 3.0

    def position(p: Vector, t: Any) -> tuple[Any, Any]:
        a, w, b, s = p[:4]
        return a * np.sin(w * t + b) + s * t, a * w * np.cos(w * t + b) + s

    def switches(p: Vector) -> list[complex]:
        """Times at which a word has another branch."""
        grid, found = np.linspace(0, end, 4001), []
        x = position(p.real, grid)[0]
        for name, c in zip(names, p[4:], strict=True):
            for level in np.atleast_1d(WORDS[name].levels(c)):
                for i in np.flatnonzero((x[1:] > level.real) != (x[:-1] > level.real)):
                    t = complex((grid[i] + grid[i + 1]) / 2)
                    for _ in range(30):
                        where, speed = position(p, t)
                        t -= (where - level) / speed
                    found.append(t)
        return sorted(found, key=lambda t: t.real)

    def is_clear(p: Vector) -> bool:
        times = [0.0, *(t.real for t in switches(p.astype(complex))), end]
        x, speed = position(p, np.linspace(0, end, 4001))
        turning = [x[0], x[-1], *x[1:][np.diff(np.sign(speed)) != 0]]
        levels = np.concatenate([np.atleast_1d(WORDS[n].levels(c)) for n, c in zip(names, p[4:], strict=True)])
        return bool(np.diff(times).min() > APART and np.abs(np.subtract.outer(turning, levels)).min() > APART)

    def number() -> Vector:
        wave = [rng.uniform(0.5, 3), rng.uniform(0.5, 4), rng.uniform(-3, 3), rng.uniform(-1, 1)]
        return np.array([*wave, *rng.uniform(-1.5, 1.5, len(names))]).round(3)

    p0 = next((p for p in (number() for _ in range(500)) if is_clear(p)), None)
    if p0 is None:
        return words(rng)

    def truth(p: Vector) -> complex:
        p = p.astype(complex)
        times = [0j, *switches(p), end + 0j]
        total = 0j
        for begin, stop in pairwise(times):
            parts = np.linspace(0, 1, 9)
            around = float(position(p.real, (begin.real + stop.real) / 2)[0])
            for one, other in pairwise(parts):
                t = begin + (stop - begin) * (one + (other - one) * NODES)
                x = position(p, t)[0]
                values = sum(WORDS[name].branch(x, around, c) for name, c in zip(names, p[4:], strict=True))
                total += (stop - begin) * (other - one) * (WEIGHTS @ values)
        return complex(total)

    return ClosedForm("words", partial(_built, names, place), (0.0, end), p0, truth)


@cache
def _built(names: tuple[str, ...], place: str, native: bool) -> dh.HybridSystem:
    m = dh.HybridModel("words")
    a, w, b, s = (m.parameter(name, 1.0) for name in ("a", "w", "b", "slope"))
    c = [m.parameter(f"c{i}", 0.1 * i) for i in range(len(names))]
    x, y = m.differential("x"), m.differential("y")
    total = sum(WORDS[name].stated(x, level) for name, level in zip(names, c, strict=True))
    ode = {x: a * w * ca.cos(w * m.time + b) + s, y: total if place == "rate" else 0.0}
    m.initial(m.mode("run", ode=ode), {x: a * ca.sin(b), y: 0.0})
    m.functional("G", **({"terminal": y} if place == "rate" else {"integrand": total}))
    return m.build(native=native)


def judge_words(seed: int) -> Verdict:
    """See `closed_forms.judge_closed_form`."""
    return judge_closed_form(seed, (words,))
