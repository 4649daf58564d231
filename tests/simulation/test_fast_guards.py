"""Guards that turn many times while the state, which the steps follow, hardly moves."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import dae_hybrid as dh

SPAN = 10.0


@cache
def model(motion: str, direction: Any, *, native: bool) -> dh.HybridSystem:
    m = dh.HybridModel("fast")
    w, phase = m.parameter("w", 100.0), m.parameter("phase", 0.3)
    x, y, n = m.differential("x"), m.differential("y"), m.memory("n", initial=0.0)
    ode = {
        "straight": {x: 1.0, y: 0.0},
        "decay": {x: 1.0, y: -0.1 * y},
        "swing": {x: y, y: -x},
    }[motion]
    run = m.mode("run", ode=ode)
    angle = w * (m.time if motion == "swing" else x) + phase
    m.transition(run, run, guard=np.sin(angle), direction=direction, memory={n: n + 1}, name="crossing")
    m.initial(run, {x: 0.0, y: 1.0})
    m.functional("n", terminal=n)
    return m.build(native=native)


def times(w: float, phase: float, direction: str) -> np.ndarray:
    """When sin(w t + phase) crosses zero."""
    k = np.arange(int(phase / np.pi) + 1, int((w * SPAN + phase) / np.pi) + 1)
    rising = k % 2 == 0
    k = k if direction == "both" else k[rising] if direction == "rising" else k[~rising]
    return (np.pi * k - phase) / w


#: periods over the run: 300 to 500 were lost in between, and more were called Zeno behaviour
CASES = [(1.3, 3.0), (30.7, 0.4), (335.1, 5.36), (427.4, 1.709), (482.6, 3.781), (849.9, 4.82)]


MOTIONS, DIRECTIONS, METHODS = ("straight", "decay", "swing"), ("both", "rising", "falling"), ("erk", "adams", "bdf")
#: in the first size every pair of two of them
TRIPLES = [
    pytest.param(MOTIONS[i], DIRECTIONS[j], METHODS[k], marks=[] if (i + j + k) % 3 == 0 else pytest.mark.campaign)
    for i, j, k in np.ndindex(3, 3, 3)
]


@pytest.mark.parametrize(("motion", "direction", "method"), TRIPLES)
def test_no_crossing_of_a_fast_guard_is_lost(motion: str, direction: str, method: str) -> None:
    system = model(motion, direction, native=True)
    for periods, phase in CASES:
        w = 2 * np.pi * periods / SPAN
        for rtol in (1e-4, 1e-8):
            sol = dh.simulate(system, (0, SPAN), parameters={"w": w, "phase": phase}, rtol=rtol, method=method)
            expected = times(w, phase, direction)
            assert len(sol.events) == expected.size
            np.testing.assert_allclose([e.time for e in sol.events], expected, rtol=0, atol=10 * rtol / w + 1e-12)


@pytest.mark.parametrize(("adapter", "method"), [("sundials", "bdf"), ("sundials", "adams"), ("scipy", "auto")])
def test_nor_is_one_where_nothing_is_compiled(adapter: str, method: str) -> None:
    system = model("decay", "both", native=False)
    for periods, phase in ((10.3, 3.0), (48.4, 1.7)):
        w = 2 * np.pi * periods / SPAN
        sol = dh.simulate(
            system, (0, SPAN), parameters={"w": w, "phase": phase}, adapter=adapter, method=method, rtol=1e-6
        )
        np.testing.assert_allclose([e.time for e in sol.events], times(w, phase, "both"), rtol=0, atol=1e-5)


@pytest.mark.parametrize("native", [True, False])
def test_a_slow_guard_is_looked_at_no_more_often(native: bool) -> None:
    """Per step a look at its end and one within, as before there was a pace (and one more where none is compiled)."""
    m = dh.HybridModel("slow")
    x, y = m.differential("x"), m.differential("y")
    run = m.mode("run", ode={x: y, y: -x})
    m.transition(run, None, guard=x - 2, direction="rising")
    m.initial(run, {x: 0.0, y: 1.0})
    sol = dh.simulate(m.build(native=native), (0, 50), method="bdf", rtol=1e-8)
    assert sol.statistics["guard_evaluations"] < (2.5 if native else 3.5) * sol.statistics["steps"]


def test_rates_that_the_values_do_not_bear_out_cost_little() -> None:
    """The derivative of a stiff state is its error times the stiffness: no reason to look for ever."""
    m = dh.HybridModel("stiff")
    t = m.time
    x, n = m.differential("x"), m.memory("n", initial=0.0)
    run = m.mode("run", ode={x: -1e7 * (x - np.cos(t)) - np.sin(t)})
    m.transition(run, run, guard=x, memory={n: n + 1}, name="zero")
    m.initial(run, {x: 1.0})
    sol = dh.simulate(m.build(native=False), (0, 20), method="bdf", rtol=1e-6)
    np.testing.assert_allclose([e.time for e in sol.events], np.pi * (np.arange(6) + 0.5), atol=1e-4)
    assert sol.statistics["guard_evaluations"] < 30 * sol.statistics["steps"]


#: a step that begins and is looked at within next to extrema of the guard: what its rates are there is not its speed
LATE = [(240.0, 0.45), (31.0, 0.62), (203.0, -0.31)]


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(
    ("adapter", "method"),
    [
        ("sundials", "bdf"),
        ("sundials", "adams"),
        ("scipy", "auto"),
        ("casadi", "auto"),
        ("scikits-odes", "auto"),
    ],
)
def test_none_is_lost_before_the_pace_of_a_guard_is_known(adapter: str, method: str, native: bool) -> None:
    """A rising crossing of sin(w x) - level; the first ones went by in one long step, or before a root in one."""
    m = dh.HybridModel("level")
    w, level = m.parameter("w", 1.0), m.parameter("level", 0.0)
    x, n = m.differential("x"), m.memory("n", initial=0.0)
    run = m.mode("run", ode={x: 1.0})
    m.transition(run, run, guard=np.sin(w * x) - level, direction="rising", memory={n: n + x}, name="count")
    m.initial(run, {x: 0.0})
    m.functional("G", terminal=n)
    system = m.build(native=native)
    for periods, height in LATE:
        parameters = {"w": 2 * np.pi * periods / SPAN, "level": -height}
        expected = (np.arange(periods + 1) - np.arcsin(height) / (2 * np.pi)) * SPAN / periods
        expected = expected[(expected > 0) & (expected < SPAN)]
        for rtol in (1e-5, 1e-8) if adapter == "sundials" and native else (1e-5,):
            sol = dh.simulate(system, (0, SPAN), parameters=parameters, adapter=adapter, method=method, rtol=rtol)
            np.testing.assert_allclose([e.time for e in sol.events], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("adapter", ["scipy", "sundials", "casadi"])
def test_the_pace_of_a_guard_is_not_forgotten_at_events(adapter: str) -> None:
    """sin(200 t) beyond 0.99 exp(-t/10) for a tenth of each period: steps after events were 2.5 periods long."""
    m = dh.HybridModel("narrow")
    x, n = m.differential("x"), m.differential("n")
    run = m.mode("run", ode={x: -0.1 * x, n: 0.0})
    guard = np.sin(200 * m.time) - 0.99 * x
    m.transition(run, run, guard=guard, direction="rising", reset={n: n + 1}, name="count")
    m.initial(run, {x: 1.0, n: 0.0})
    sol = dh.simulate(m.build(), (0, SPAN), adapter=adapter)
    expected = np.zeros(320)
    for _ in range(50):  # a contraction
        expected = (2 * np.pi * np.arange(320) + np.arcsin(0.99 * np.exp(-0.1 * expected))) / 200
    expected = expected[expected < SPAN]
    np.testing.assert_allclose([e.time for e in sol.events], expected, rtol=0, atol=1e-6)
