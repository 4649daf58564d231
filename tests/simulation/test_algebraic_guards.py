"""Guards on algebraic variables and multipliers: closed forms, costs, and the pieces they are computed from."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import casadi as ca
import numpy as np
import pytest
from scipy.optimize import brentq

import dae_hybrid as dh
from dae_hybrid.compile.mode_functions import NEWTON_STEPS

SPAN = (0.0, 7.0)
ADAPTERS = ["sundials", "scipy", "casadi", "scikits-odes"]


@cache
def implicit(*, native: bool = True) -> dh.HybridSystem:
    """z^3 + z = y, y = a sin t: z passes the level at sin t = (level^3 + level) / a, both ways."""
    m = dh.HybridModel("implicit")
    a, level, y, z = m.parameter("a", 2.0), m.parameter("level", 0.7), m.differential("y"), m.algebraic("z")
    n = m.memory("n", initial=0)
    run = m.mode("run", ode={y: a * ca.cos(m.time)}, algebraic=[z**3 + z - y])
    m.transition(run, run, guard=z - level, memory={n: n + 1}, name="passes")
    m.initial(run, {y: 0.0})
    m.functional("G", integrand=n * z, terminal=y * n)
    return m.build(native=native)


@cache
def multiplier(*, native: bool = True) -> dh.HybridSystem:
    """q_i' = b_i(t) + p, q_1 + q_2 = sin t: 2 p = cos t - b t; the guard is on p."""
    m = dh.HybridModel("multiplier")
    b, level, n = m.parameter("b", 0.05), m.parameter("level", 0.2), m.memory("n", initial=0)
    q, r, p = m.differential("q"), m.differential("r"), m.algebraic("p")
    run = m.mode("run", ode={q: b * m.time + p, r: p}, constraint=[q + r - ca.sin(m.time)])
    m.transition(run, run, guard=p - level, memory={n: n + 1}, name="passes")
    m.initial(run, {q: 0.3, r: -0.3})
    m.functional("G", integrand=n * p, terminal=q * n)
    return m.build(native=native, eliminate=False)


def crossings(function: Any) -> list[float]:
    """Zeros of a function of time within the span."""
    at = np.linspace(*SPAN, 20_001)
    values = function(at)
    turns = np.flatnonzero(values[:-1] * values[1:] < 0)
    return [float(brentq(function, at[i], at[i + 1], xtol=1e-15)) for i in turns]


def of_implicit(a: float, level: float) -> list[float]:
    return crossings(lambda t: a * np.sin(t) - level**3 - level)


def of_multiplier(b: float, level: float) -> list[float]:
    return crossings(lambda t: (np.cos(t) - b * t) / 2 - level)


CASES = {"implicit": (implicit, of_implicit, (2.0, 0.7)), "multiplier": (multiplier, of_multiplier, (0.05, 0.2))}


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("rtol", [1e-4, 1e-7, 1e-10])
@pytest.mark.parametrize("name", CASES)
def test_times_follow_the_tolerance(name: str, rtol: float, adapter: str) -> None:
    system, exact, nominal = CASES[name]
    sol = dh.simulate(system(), SPAN, rtol=rtol, atol=1e-2 * rtol, adapter=adapter)
    times = exact(*nominal)
    assert len(sol.events) == len(times) >= 2
    assert np.abs(np.array([e.time for e in sol.events]) - times).max() < 50 * rtol + 1e-12


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("name", CASES)
def test_derivatives(name: str, *, native: bool) -> None:
    """Derivatives of event times agree with differences of closed forms, and adjoint with forward analysis."""
    system, exact, nominal = CASES[name]
    options: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}
    fsa = dh.forward_sensitivity(system(native=native), SPAN, **options)
    asa = dh.adjoint_gradient(system(native=native), SPAN, "G", duality=True, **options)
    for i, value in enumerate(nominal):
        h = 1e-5
        up, down = (exact(*(value + s if j == i else v for j, v in enumerate(nominal))) for s in (h, -h))
        by_differences = (np.array(up) - np.array(down)) / (2 * h)
        assert fsa.event_time_sensitivity[:, i] == pytest.approx(by_differences, rel=1e-6)
    assert asa.gradient == pytest.approx(fsa.gradient["G"], rel=1e-6)


@pytest.mark.parametrize("adapter", ["sundials", "scipy"])
@pytest.mark.parametrize(("excess", "count"), [(1e-4, 4), (1e-7, 4), (-1e-4, 0), (-1e-7, 0)])
def test_guards_that_touch(excess: float, count: int, adapter: str) -> None:
    """The extremum of z is next to the level: far nearer than z is known without solving for it."""
    level = 0.7
    a = (level**3 + level) * (1 + excess)
    options: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12, "adapter": adapter, "max_step": 0.1}
    sol = dh.simulate(implicit(), (0.0, 9.0), parameters={"a": a, "level": level}, **options)
    assert len(sol.events) == count
    if count:
        first = np.arcsin(1 / (1 + excess))
        exact = [first, np.pi - first, 2 * np.pi + first, 3 * np.pi - first]
        assert np.abs(np.array([e.time for e in sol.events]) - exact).max() < 1e-8 / np.sqrt(excess)


@pytest.mark.parametrize("adapter", ["sundials", "scipy", "casadi"])
@pytest.mark.parametrize("width", [0.3, 1e-2, 1e-4])
def test_both_sides_of_a_fast_transient(width: float, adapter: str) -> None:
    """z goes from one plateau to the other within the width; a guard on each side of the middle."""
    m = dh.HybridModel("front")
    c, y, z, n = m.parameter("c", 1.3), m.differential("y"), m.algebraic("z"), m.memory("n", initial=0)
    run = m.mode("run", ode={y: 1.0}, algebraic=[z**3 + z - 2 * ca.tanh((y - c) / width)])
    for name, level in (("low", -0.9), ("high", 0.9)):
        m.transition(run, run, guard=z - level, direction="rising", memory={n: n + 1}, name=name)
    m.initial(run, {y: 0.0})
    sol = dh.simulate(m.build(), (0.0, 3.0), rtol=1e-7, atol=1e-9, adapter=adapter)
    half = width * np.arctanh((0.9**3 + 0.9) / 2)
    assert [event.transition for event in sol.events] == ["low", "high"]
    assert [e.time for e in sol.events] == pytest.approx([1.3 - half, 1.3 + half], abs=1e-6 * max(width, 1e-3))


def test_guards_of_z_that_jumps() -> None:
    """A relation in the equation makes z jump across the level, and back."""
    m = dh.HybridModel("jump")
    y, z, n = m.differential("y"), m.algebraic("z"), m.memory("n", initial=0)
    side = ca.if_else(y > 0.5, 2.0, 0.0)
    run = m.mode("run", ode={y: ca.cos(m.time)}, algebraic=[z**3 + z - y - side])
    m.transition(run, run, guard=z - 0.8, memory={n: n + 1}, name="passes")
    m.initial(run, {y: 0.0})
    sol = dh.simulate(m.build(), (0.0, 3.0), rtol=1e-9, atol=1e-11)
    times = [event.time for event in sol.events if event.transition == "passes"]
    assert times == pytest.approx([np.pi / 6, 5 * np.pi / 6], abs=1e-8)


def ladder(n: int) -> tuple[dh.HybridModel, Any, Any]:
    """Flows in a ladder of pipes: 3 n - 3 of them, and 2 n - 1 pressures as multipliers, which are not eliminated."""
    m = dh.HybridModel("ladder")
    pipes = [(2 * i + s, 2 * i + 2 + s) for i in range(n - 1) for s in (0, 1)]
    pipes += [(2 * i, 2 * i + 1) for i in range(n - 1)]
    incidence = np.zeros((2 * n, len(pipes)))
    for k, (a, b) in enumerate(pipes):
        incidence[a, k], incidence[b, k] = -1, 1
    inner = ca.sparsify(ca.DM(incidence[1:]))
    q, p = m.differential("q", size=len(pipes)), m.algebraic("p", size=2 * n - 1)
    demand = np.zeros(2 * n - 1)
    demand[-1], demand[0] = 1.0, 0.5
    rate, wanted = -inner.T @ p - q * ca.sqrt(q**2 + 0.01), demand * (1 - ca.cos(2 * m.time))
    mode = m.mode("run", ode={q: rate}, constraint=[inner @ q - wanted])
    m.initial(mode, {q: np.zeros(len(pipes))})
    return m, mode, p


def chain(n: int) -> tuple[dh.HybridModel, Any, Any]:
    """As many algebraic variables as states, coupled with their neighbours."""
    m = dh.HybridModel("chain")
    y, z = m.differential("y", size=n), m.algebraic("z", size=n)
    between = z[1:] - z[:-1]
    coupled = ca.vertcat(between, 0) - ca.vertcat(0, between)
    mode = m.mode("run", ode={y: z - 2 * y + ca.sin(m.time)}, algebraic=[coupled - z - z**3 + y])
    m.initial(mode, {y: np.linspace(-1, 1, n)})
    return m, mode, z


WATCHED = {"chain": (chain, 30), "ladder": (ladder, 10)}


@cache
def watched(name: str, guards: int) -> dh.HybridSystem:
    """One of them with guards far from zero."""
    make, size = WATCHED[name]
    m, mode, z = make(size)
    for i in range(guards):
        m.transition(mode, None, guard=z[i] * z[-1] - 1e3, direction="rising", name=f"limit {i}")
    return m.build()


@pytest.mark.parametrize("name", WATCHED)
def test_pieces_of_guards(name: str) -> None:
    """Corrections converge to `guards`; the weights predict the first one to first order."""
    system = watched(name, 3)
    e = system.modes[0].equations
    sketch, settle, weigh = (e.functions[key].function for key in ("sketch", "settle", "weigh"))
    p, m = system.nominal, np.zeros(e.n_memory)
    sol = dh.simulate(system, (0.0, 1.0))
    consistent = np.concatenate([np.atleast_1d(sol[v][-1]) for v in e.variables.names])
    off = np.random.default_rng(1).standard_normal(e.n)
    missed = []
    for size in (1e-3, 1e-4):
        x = consistent + size * off * np.abs(consistent).max()
        point = (1.0, x, m, p)
        at = x
        for _ in range(NEWTON_STEPS):
            at = settle(1.0, at, m, p)
        expected = np.array(e.functions["guards"].function(*point)).ravel()
        assert np.array(sketch(1.0, at, m, p)[0]).ravel() == pytest.approx(expected, rel=1e-10)
        guards, misses = sketch(*point)
        predicted = np.array(guards - weigh(*point).T @ misses).ravel()
        missed.append(np.abs(predicted - expected).max())
        assert missed[-1] < 0.2 * np.abs(np.array(guards).ravel() - expected).max()
    assert missed[1] < 0.03 * missed[0]  # squares: a hundredth


@pytest.mark.parametrize("name", WATCHED)
def test_a_guard_that_never_fires_is_cheap(name: str) -> None:
    """The steps stay the same; solving the equations at every evaluation would cost many times as much."""

    def least(guards: int) -> tuple[float, int]:
        system, found = watched(name, guards), []
        for _ in range(9):
            begin = time.process_time()
            sol = dh.simulate(system, (0.0, 10.0), rtol=1e-6, atol=1e-8)
            found.append(time.process_time() - begin)
        return min(found), sol.statistics["steps"]

    (without, steps), (one, same) = least(0), least(1)
    assert same == steps
    assert one < 4 * without
