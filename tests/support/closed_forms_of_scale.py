"""Random systems whose solution is known in closed form, in which numbers vanish, cancel or are large.

Rates that cancel in their parameters, modes on IDAS that start at rest, powers of zero, algebraic equations that follow
from each other and are singular from zeros, spans that begin far from zero. What is built depends on the shape of a
system alone; see `closed_forms_at_edges`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from closed_forms import ClosedForm, Vector, judge_closed_form
from closed_forms_at_edges import pick, real
from verdicts import Verdict

import dae_hybrid as dh


def _cubic(z: Any, value: Any) -> Any:
    """0 = z + z^3 - (value + value^3), which no elimination solves: z is the value."""
    return z + z**3 - value - value**3


# -- rates that cancel -------------------------------------------------------------------------------------------------

#: rates of a, b and two sums u, w of algebraic variables that do not change with all parameters, or vanish
CANCELLING: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "difference": lambda a, b, u, w: (a - b) * u,
    "balance": lambda a, b, u, w: a * u + b * (1 - u),
    "ratio": lambda a, b, u, w: a / b * u,
    "exchange": lambda a, b, u, w: a * u - b * w,
}


def cancelling(rng: np.random.Generator) -> ClosedForm:
    """x' is a rate of this kind, with u and w sums of sines that are solutions of algebraic equations."""
    name, n = pick(rng, *CANCELLING), int(rng.integers(1, 3))
    size = real(rng, 0.5, 2)
    p0 = np.array([size, size if rng.random() < 0.7 else real(rng, 0.5, 2)])
    end, method = real(rng, 3, 8), pick(rng, "bdf", "bdf", "auto")

    def truth(p: Vector) -> complex:
        whole = sum((1 + 0.1 * k) * (1 - np.cos(end)) for k in range(n))
        other = sum((1 + 0.1 * k) * np.sin(end) for k in range(n))
        a, b = p
        return complex({
            "difference": (a - b) * whole, "balance": a * whole + b * (end - whole), "ratio": a / b * whole,
            "exchange": a * whole - b * other,
        }[name])  # fmt: skip

    def build(native: bool) -> dh.HybridSystem:
        return _cancelling(name, n, native)

    return ClosedForm(f"rates that cancel, {name}", build, (0.0, end), p0, truth, options={"method": method})


@cache
def _cancelling(name: str, n: int, native: bool) -> dh.HybridSystem:
    m = dh.HybridModel("cancelling")
    a, b, x, t = m.parameter("a", 1.0), m.parameter("b", 1.0), m.differential("x"), m.time
    u, w = ([m.algebraic(f"{key}{k}") for k in range(n)] for key in "uw")
    algebraic = [_cubic(u[k], (1 + 0.1 * k) * np.sin(t)) for k in range(n)]
    algebraic += [_cubic(w[k], (1 + 0.1 * k) * np.cos(t)) for k in range(n)]
    run = m.mode("run", ode={x: CANCELLING[name](a, b, sum(u), sum(w))}, algebraic=algebraic)
    m.initial(run, {x: 0.0})
    m.functional("G", terminal=x)
    return m.build(native=native)


# -- at rest on IDAS ---------------------------------------------------------------------------------------------------


def rest(rng: np.random.Generator) -> ClosedForm:
    """A coil at a resistor that is switched on: i' = E sin w t - v, v = k i, from rest, for many time constants."""
    k, entered = float(10 ** rng.uniform(0, 5)), bool(rng.random() < 0.4)
    span = float(10 ** rng.uniform(0.3, 1.3))
    p0 = np.array([real(rng, 0.5, 10), real(rng, 0.5, 3), k])
    late = 0.5 if entered else 0.0

    def truth(p: Vector) -> complex:
        E, w, k = p
        s = span - late
        return complex(E * (k * np.sin(w * s) - w * np.cos(w * s) + w * np.exp(-k * s)) / (k**2 + w**2) * k)

    def build(native: bool) -> dh.HybridSystem:
        return _rest(entered, native)

    limits = {"method": "bdf", "max_steps": 200_000}
    return ClosedForm("at rest on IDAS", build, (0.0, span), p0, truth, options=limits)


@cache
def _rest(entered: bool, native: bool) -> dh.HybridSystem:
    m = dh.HybridModel("rest")
    E, w, k = m.parameter("E", 1.0), m.parameter("w", 1.0), m.parameter("k", 1.0)
    i, v, s = m.differential("i"), m.algebraic("v"), m.differential("s")
    on = m.mode("on", ode={i: E * np.sin(w * s) - v, s: 1.0}, algebraic=[_cubic(v, k * i)])
    off = m.mode("off", ode={i: 0.0, s: 0.0}, algebraic=[_cubic(v, k * i)])
    if entered:
        m.transition(off, on, at=0.5, name="switch")
    m.initial(off if entered else on, {i: 0.0, s: 0.0})
    m.functional("G", terminal=v)
    return m.build(native=native)


# -- powers of zero ----------------------------------------------------------------------------------------------------


def powers(rng: np.random.Generator) -> ClosedForm:
    """y' = k x^n with x = c s, s the time since the start or an event that has put x to zero."""
    n = pick(rng, 1.0, 2.0, 3.0, real(rng, 1, 3), real(rng, 1, 3))
    entered, end = bool(rng.random() < 0.5), real(rng, 1, 3)
    p0 = np.array([real(rng, 0.3, 2), n, real(rng, 0.3, 2)])

    def truth(p: Vector) -> complex:
        k, n, c = p
        return complex(sum(k * c**n * s ** (n + 1) / (n + 1) for s in ((0.5, end - 0.5) if entered else (end,))))

    def build(native: bool) -> dh.HybridSystem:
        return _powers(entered, native)

    return ClosedForm("powers of zero", build, (0.0, end), p0, truth)


@cache
def _powers(entered: bool, native: bool) -> dh.HybridSystem:
    m = dh.HybridModel("powers")
    k, n, c = m.parameter("k", 1.0), m.parameter("n", 2.0), m.parameter("c", 1.0)
    x, y = m.differential("x"), m.differential("y")
    run = m.mode("run", ode={x: c, y: k * x**n})
    if entered:
        m.transition(run, run, at=0.5, reset={x: 0.0}, name="again")
    m.initial(run, {x: 0.0, y: 0.0})
    m.functional("G", terminal=y)
    return m.build(native=native)


# -- equations that follow from each other -----------------------------------------------------------------------------


def chain(rng: np.random.Generator) -> ClosedForm:
    """b = c x, b q = P and x' = q: x^2 = x0^2 + 2 P t / c. With b = q = 0 the matrix of both is singular."""
    shape = int(rng.integers(8))
    p0, end = np.array([real(rng, 0.5, 2), real(rng, 0.3, 2), real(rng, 0.3, 2)]), real(rng, 0.5, 2)

    def truth(p: Vector) -> complex:
        c, P, x0 = p
        return complex(np.sqrt(x0**2 + 2 * P * end / c))

    def build(native: bool) -> dh.HybridSystem:
        return _chain(shape, native)

    return ClosedForm("equations in a chain", build, (0.0, end), p0, truth)


@cache
def _chain(shape: int, native: bool) -> dh.HybridSystem:
    m = dh.HybridModel("chain")
    c, P, x0 = m.parameter("c", 1.0), m.parameter("P", 1.0), m.parameter("x0", 1.0)
    x, b, q = m.differential("x"), m.algebraic("b"), m.algebraic("q")
    equations = [_cubic(b, c * x) if shape & 1 else b - c * x, b * q - P]
    m.initial(m.mode("run", ode={x: q}, algebraic=equations[:: -1 if shape & 2 else 1]), {x: x0})
    m.functional("G", terminal=x)
    return m.build(native=native, eliminate=bool(shape & 4))


# -- far from zero -----------------------------------------------------------------------------------------------------


def clock(rng: np.random.Generator) -> ClosedForm:
    """x'' = -k^2 x in spans that begin at large times: right, or refused because times are too coarse."""
    begin, k = float(10 ** rng.uniform(2, 9.5)), float(10 ** rng.uniform(-5, 3))
    end = begin + real(rng, 1, 20) / k
    p0, span = np.array([k, real(rng, 0.5, 2)]), end - begin

    def truth(p: Vector) -> complex:
        return complex(p[1] * np.cos(p[0] * span))

    def build(native: bool) -> dh.HybridSystem:
        return _clock(native)

    may = (dh.StepSizeError,)
    return ClosedForm("far from zero", build, (begin, end), p0, truth, refusals=may, unlike=may)


@cache
def _clock(native: bool) -> dh.HybridSystem:
    m = dh.HybridModel("clock")
    k, start, x, v = m.parameter("k", 1.0), m.parameter("start", 1.0), m.differential("x"), m.differential("v")
    m.initial(m.mode("run", ode={x: k * v, v: -k * x}), {x: start, v: 0.0})
    m.functional("G", terminal=x)
    return m.build(native=native)


FAMILIES: tuple[Callable[[np.random.Generator], ClosedForm], ...] = (cancelling, rest, powers, chain, clock)


def judge_of_scale(seed: int) -> Verdict:
    """Judge a system of these families as those of `closed_forms`."""
    return judge_closed_form(seed, FAMILIES)
