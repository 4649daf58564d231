"""Relations in expressions are events: closed forms, differences, and the same system stated by modes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import casadi as ca
import numpy as np
import pytest
from switched import controller

import dae_hybrid as dh

TIGHT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}
#: compiled and interpreted, implicit and explicit, and an integrator of its own
WAYS: dict[str, tuple[bool, dict[str, Any]]] = {
    "bdf": (True, {"method": "bdf"}),
    "adams": (True, {"method": "adams"}),
    "erk": (True, {"method": "erk"}),
    "interpreted": (False, {}),
    "scipy": (False, {"adapter": "scipy"}),
    "casadi": (False, {"adapter": "casadi"}),
}

State = Callable[[Any, Any, Any, Any, Any], Any]


def oscillator(
    force: State,
    integrand: State | None = None,
    terminal: State | None = None,
    values: tuple[float, float] = (0.3, 0.2),
) -> dh.HybridModel:
    """x'' = -4 x + force from x = 1 at rest; the expressions are of t, x, v, p, q."""
    m = dh.HybridModel("oscillator")
    p, q = m.parameter("p", values[0]), m.parameter("q", values[1])
    x, v = m.differential("x"), m.differential("v")
    of = (m.time, x, v, p, q)
    run = m.mode("run", ode={x: v, v: -4 * x + force(*of)})
    m.initial(run, {x: 1.0, v: 0.0})
    parts = {} if integrand is None else {"integrand": integrand(*of)}
    m.functional("G", terminal=x if terminal is None else terminal(*of), **parts)
    return m


def line(rate: Callable[[Any, Any, Any, Any], Any], values: tuple[float, float] = (0.5, 2.5)) -> dh.HybridModel:
    """x' = rate(t, x, p, q) from 0, and G = x at the end."""
    m = dh.HybridModel("line")
    p, q, x = m.parameter("p", values[0]), m.parameter("q", values[1]), m.differential("x")
    m.initial(m.mode("run", ode={x: rate(m.time, x, p, q)}), {x: 0.0})
    m.functional("G", terminal=x)
    return m


def jumper(guard: Callable[[Any, Any, Any], Any], **options: Any) -> dh.HybridModel:
    """x' = 1 from 0; where the guard of x, p, q fires, q x is added to G."""
    m = dh.HybridModel("jumper")
    p, q = m.parameter("p", 0.5), m.parameter("q", 2.5)
    x, y = m.differential("x"), m.differential("y")
    run = m.mode("run", ode={x: 1, y: 0})
    m.transition(run, run, guard=guard(x, p, q), reset={y: y + q * x}, **options)
    m.initial(run, {x: 0.0, y: 0.0})
    m.functional("G", terminal=y)
    return m


def both(system: dh.HybridSystem, end: float, **options: Any) -> tuple[float, np.ndarray[Any, Any]]:
    """Value and gradient, by forward and adjoint analysis, which agree."""
    fsa = dh.forward_sensitivity(system, (0, end), **{**TIGHT, **options})
    asa = dh.adjoint_gradient(system, (0, end), "G", **{**TIGHT, **options})
    np.testing.assert_allclose(asa.gradient, fsa.gradient["G"], rtol=2e-6, atol=5e-8)
    assert asa.value == pytest.approx(fsa.functionals["G"], rel=1e-7, abs=1e-7)
    return asa.value, fsa.gradient["G"]


def differences(system: dh.HybridSystem, end: float) -> np.ndarray[Any, Any]:
    """Central differences."""
    found = []
    for i in range(system.parameters.size):
        values = [system.nominal + side * 1e-5 * np.eye(system.parameters.size)[i] for side in (1, -1)]
        runs = [dh.simulate(system, (0, end), parameters=v, rtol=1e-11, atol=1e-13) for v in values]
        found.append((runs[0].functionals["G"] - runs[1].functionals["G"]) / 2e-5)
    return np.array(found)


# -- closed forms ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_the_gradient_knows_of_the_branch_that_ends(way: str) -> None:
    """x' = 1 below p and 2 above: x(1) = 2 - p."""
    native, method = WAYS[way]
    system = line(lambda t, x, p, q: ca.if_else(x < p, 1, 2)).build(native=native)
    value, gradient = both(system, 1.0, **method)
    assert value == pytest.approx(1.5, abs=1e-8)
    np.testing.assert_allclose(gradient, [-1, 0], atol=1e-7)


@pytest.mark.parametrize("way", WAYS)
def test_steps_of_time(way: str) -> None:
    """The integral of floor(t/p) from 0 to 1 with p = 0.3: the sum of 1 - 0.3 k."""
    native, method = WAYS[way]
    system = line(lambda t, x, p, q: ca.floor(t / p), values=(0.3, 0.0)).build(native=native)
    value, gradient = both(system, 1.0, **method)
    assert value == pytest.approx(1.2, abs=1e-8)
    np.testing.assert_allclose(gradient, [-6, 0], atol=1e-6)


#: rates of t, x, p, q with x(1) and its derivatives at p = 0.4, q = 2.5
RATES: dict[str, tuple[Any, float, list[float]]] = {
    "at least": (lambda t, x, p, q: ca.if_else(x >= p, q, 1), 1.9, [-1.5, 0.6]),
    "not": (lambda t, x, p, q: ca.if_else(ca.logic_not(p > x), q, 1), 1.9, [-1.5, 0.6]),
    "time": (lambda t, x, p, q: ca.if_else(t < p, 1, q), 1.9, [-1.5, 0.6]),
    "short circuit": (lambda t, x, p, q: ca.if_else(t < p, 1, q, True), 1.9, [-1.5, 0.6]),
    "conditional": (lambda t, x, p, q: ca.conditional(t > p, [1], q), 1.9, [-1.5, 0.6]),
    "sign": (lambda t, x, p, q: 1 + ca.sign(t - p), 1.2, [-2, 0]),
    "fabs": (lambda t, x, p, q: ca.fabs(t - p), 0.26, [-0.2, 0]),
    "fmax": (lambda t, x, p, q: ca.fmax(t, p), 0.58, [0.4, 0]),
    "fmin": (lambda t, x, p, q: ca.fmin(t, p), 0.32, [0.6, 0]),
    "fmod": (lambda t, x, p, q: ca.fmod(t, p) * q, 0.45, [1.0, 0.18]),
    "remainder": (lambda t, x, p, q: ca.remainder(t + 0.1, p) * q, 0.0, [0.75, 0]),
    "ceil": (lambda t, x, p, q: ca.ceil(t / p - 0.4), 1.32, [-4.2, 0]),
    "copysign": (lambda t, x, p, q: ca.copysign(q, t - p), 0.5, [-5, 0.2]),
    "window": (lambda t, x, p, q: ca.if_else(ca.logic_and(t > p, t < p + 0.25), q, 0), 0.625, [0, 0.25]),
    "pulse": (lambda t, x, p, q: ca.if_else(ca.logic_and(t > p, t < p + 1e-4), 1e4 * q, 0), 2.5, [0, 1]),
}


@pytest.mark.parametrize("name", RATES)
def test_rates_in_closed_form(name: str) -> None:
    rate, value, gradient = RATES[name]
    got = both(line(rate, values=(0.4, 2.5)).build(native=False), 1.0)
    assert got[0] == pytest.approx(value, abs=1e-7)
    np.testing.assert_allclose(got[1], gradient, atol=1e-6)


#: guards of x, p, q that fire once, at x = p
GUARDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "relation": (lambda x, p, q: x > p, {}),
    "and": (lambda x, p, q: ca.logic_and(x > p, x * x < q), {}),
    "or": (lambda x, p, q: ca.logic_or(x > 2, ca.logic_not(x <= p)), {}),
    "becomes false": (lambda x, p, q: x < p, {"direction": "falling"}),
    "plateau": (lambda x, p, q: ca.fmax(x - p, 0), {"direction": "rising"}),
    "clip": (lambda x, p, q: ca.fmin(ca.fmax(x - p, -0.1), 0.1), {}),
    "jump": (lambda x, p, q: ca.if_else(x < p, -1, 1), {"direction": "rising"}),
    "jump either way": (lambda x, p, q: ca.if_else(x < p, -1, 1), {}),
    "jump of what moves": (lambda x, p, q: ca.if_else(x < p, x - 2, x + 2), {}),
    "sign": (lambda x, p, q: ca.sign(x - p), {}),
}


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("name", GUARDS)
def test_guards_with_relations_and_clips(name: str, native: bool) -> None:
    guard, options = GUARDS[name]
    value, gradient = both(jumper(guard, **options).build(native=native), 1.0)
    assert value == pytest.approx(1.25, abs=1e-8)
    np.testing.assert_allclose(gradient, [2.5, 0.5], atol=1e-7)


def test_a_dip_with_a_kink_is_found() -> None:
    """It is a thousandth wide, and no step ends in it."""
    system = jumper(lambda x, p, q: ca.fabs(x - p) - 1e-5, direction="falling").build(native=False)
    value, gradient = both(system, 1.0)
    assert value == pytest.approx(2.5 * (0.5 - 1e-5), abs=1e-8)
    np.testing.assert_allclose(gradient, [2.5, 0.5 - 1e-5], atol=1e-7)


@pytest.mark.parametrize("native", [True, False])
def test_a_condition_becomes_true_by_a_reset(native: bool) -> None:
    m = dh.HybridModel("by reset")
    p, q = m.parameter("p", 0.5), m.parameter("q", 2.5)
    x, y = m.differential("x"), m.differential("y")
    run = m.mode("run", ode={x: 1, y: 0})
    m.transition(run, run, guard=x > p, reset={y: y + q}, name="passed")
    m.transition(run, run, at=0.3, reset={x: x + p}, name="hop")
    m.initial(run, {x: 0.0, y: 0.0})
    m.functional("G", terminal=x * y)
    system = m.build(native=native)
    value, gradient = both(system, 1.0)
    assert value == pytest.approx(1.5 * 2.5)
    np.testing.assert_allclose(gradient, [2.5, 1.5], atol=1e-7)
    names = [event.transition for event in dh.simulate(system, (0, 1)).events]
    assert names == ["hop", "passed"]


#: of x and p, with the sign of x - p
SIGNED: dict[str, Any] = {
    "plain": lambda x, p: x - p,
    "a branch that stays": lambda x, p: ca.if_else(x < 5, x - p, x + 5),
    "a branch that changes with it": lambda x, p: ca.if_else(x < 0.6, x - p, 2 * (x - p)),
    "steps": lambda x, p: ca.if_else(x < p, -1, 1),
    "sign": lambda x, p: ca.sign(x - p),
    "floor": lambda x, p: ca.floor(x / p) - 0.5,
}


@pytest.mark.parametrize("name", [*SIGNED, "algebraic"])
@pytest.mark.parametrize(
    ("way", "native_events", "direction"),
    [("bdf", True, "both"), ("bdf", False, "rising"), ("interpreted", True, "rising"), ("scipy", False, "both")],
)
def test_what_a_reset_takes_across_is_past(name: str, direction: str, way: str, native_events: bool) -> None:
    """x = t is beyond p between two hops, and comes to p at t = p + 1/2: that alone fires, branch or none."""
    m = dh.HybridModel("hops")
    p, q = m.parameter("p", 0.5), m.parameter("q", 2.5)
    x, y, u = m.differential("x"), m.differential("y"), m.algebraic("u")
    run = m.mode("run", ode={x: 1, y: 0}, algebraic=[u - ca.if_else(x < p, x - 1, x + 1)])
    guard = u if name == "algebraic" else SIGNED[name](x, p)
    m.transition(run, run, guard=guard, direction=direction, reset={y: y + q * m.time}, name="passed")
    m.transition(run, run, at=0.3, reset={x: x + 0.6}, name="there")
    m.transition(run, run, at=0.7, reset={x: x - 1.1}, name="back")
    m.initial(run, {x: 0.0, y: 0.0})
    m.functional("G", terminal=y)
    native, options = WAYS[way]
    value, gradient = both(m.build(native=native), 1.2, native_events=native_events, **options)
    assert value == pytest.approx(2.5)
    np.testing.assert_allclose(gradient, [2.5, 1.0], atol=1e-7)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("direction", ["rising", "both"])
def test_all_guards_that_jump_with_a_relation_fire(direction: str, native: bool) -> None:
    """The first to fire resets something, which takes nothing from the other one."""
    m = dh.HybridModel("two")
    p, q = m.parameter("p", 0.5), m.parameter("q", 2.5)
    x, y = m.differential("x"), m.differential("y")
    run = m.mode("run", ode={x: 1, y: 0})
    m.transition(run, run, guard=ca.if_else(x < p, -1, 1), direction=direction, reset={y: y + q * x}, name="one")
    m.transition(run, run, guard=ca.if_else(x < p, -2, x), direction=direction, reset={y: y + x}, name="two")
    m.initial(run, {x: 0.0, y: 0.0})
    m.functional("G", terminal=y)
    system = m.build(native=native)
    value, gradient = both(system, 1.0)
    assert value == pytest.approx(1.75)
    np.testing.assert_allclose(gradient, [3.5, 0.5], atol=1e-7)
    assert [event.transition for event in dh.simulate(system, (0, 1)).events][1:] == ["one", "two"]


LOOPS: dict[str, dict[str, Any]] = {"native": {}, "python": {"native_events": False}, "scipy": {"adapter": "scipy"}}


def branched(name: str) -> tuple[dh.HybridModel, Any, Any, Any, Any, dict[str, Any]]:
    """u = 2 where w = x^2 is beyond 1, else 0: what a reset of x makes of that is not known before w is."""
    m = dh.HybridModel(name)
    q, x, y = m.parameter("q", 2.5), m.differential("x"), m.differential("y")
    w, u = m.algebraic("w"), m.algebraic("u")
    m.functional("G", terminal=y)
    return m, q, x, y, u, {"ode": {x: 1, y: 0}, "algebraic": [w - x**2, u - ca.if_else(w > 1, 2, 0)]}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("hop", [3.0, 0.3])
def test_a_condition_that_holds_where_its_mode_is_entered_waits(hop: float, loop: str) -> None:
    """Relations are right before anything else is looked at; with the short hop u > 1 comes true at t = 0.7."""
    m, q, x, y, u, equations = branched("entered")
    first, second = m.mode("first", ode={x: 1, y: 0}), m.mode("second", **equations)
    m.transition(first, second, at=0.3, reset={x: x + hop})
    m.transition(second, second, guard=u > 1, reset={y: y + q * m.time}, name="hit")
    m.initial(first, {x: 0.0, y: 0.0})
    value, gradient = both(m.build(native=False), 1.0, **LOOPS[loop])
    assert value == pytest.approx(0 if hop > 1 else 2.5 * 0.7)
    np.testing.assert_allclose(gradient, [0 if hop > 1 else 0.7], atol=1e-7)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("order", ["declared", "reversed"])
def test_relations_follow_before_the_next_time_event(order: str, loop: str) -> None:
    m, q, x, y, u, equations = branched("times")
    run = m.mode("run", **equations)
    events = {"hop": {x: x + 3}, "add": {y: y + q * u}}
    for name in events if order == "declared" else reversed(events):
        m.transition(run, run, at=0.3, reset=events[name], name=name)
    m.initial(run, {x: 0.0, y: 0.0})
    value, gradient = both(m.build(native=False), 1.0, simultaneous=order, **LOOPS[loop])
    assert value == pytest.approx(5.0)
    np.testing.assert_allclose(gradient, [2.0], atol=1e-7)


@pytest.mark.parametrize("native", [True, False])
def test_a_condition_on_memory(native: bool) -> None:
    m = dh.HybridModel("counter")
    p, q = m.parameter("p", 0.3), m.parameter("q", 2.5)
    x, y, n = m.differential("x"), m.differential("y"), m.memory("n", initial=0)
    run = m.mode("run", ode={x: 1 + ca.if_else(n >= 2, q, 0), y: 0})
    m.transition(run, run, every=p, memory={n: n + 1})
    m.transition(run, run, guard=n >= 3, reset={y: y + x})
    m.initial(run, {x: 0.0, y: 0.0})
    m.functional("G", terminal=y)  # at t = 3 p, when x = 3 p + q p
    value, gradient = both(m.build(native=native), 1.0)
    assert value == pytest.approx(0.9 + 0.75)
    np.testing.assert_allclose(gradient, [5.5, 0.3], atol=1e-7)


def test_sides_are_right_from_the_start() -> None:
    """x = 5 t^2 / 4 begins on its relation with no rate, and leaves it by its second derivative."""
    m = dh.HybridModel("from rest")
    p, q = m.parameter("p", 0.5), m.parameter("q", 2.5)
    x, v, s = m.differential("x"), m.differential("v"), m.differential("s")
    m.initial(m.mode("run", ode={x: v, v: q, s: ca.if_else(x > 0, p, 0)}), {x: 0, v: 0, s: 0})
    m.functional("G", terminal=s)
    for native in (True, False):
        value, gradient = both(m.build(native=native), 1.0)
        assert value == pytest.approx(0.5)
        np.testing.assert_allclose(gradient, [1, 0], atol=1e-8)


def test_sign_at_rest_is_refused() -> None:
    m = dh.HybridModel("rest")
    x, s = m.differential("x"), m.differential("s")
    m.initial(m.mode("run", ode={x: 0, s: 1 + ca.sign(x)}), {x: 0, s: 0})
    m.functional("G", terminal=s)
    with pytest.raises(dh.EventError, match="sign rests at zero"):
        dh.simulate(m.build(native=False), (0, 1))


# -- differences ----------------------------------------------------------------------------------------------------

FORCES: dict[str, dict[str, Any]] = {
    "nested": {"force": lambda t, x, v, p, q: ca.if_else(x < p, ca.if_else(v < q, -1, 1), t)},
    "shared": {"force": lambda t, x, v, p, q: ca.if_else(x < p, 1, 0) + ca.if_else(p > x, q, 0)},
    "threshold": {"force": lambda t, x, v, p, q: ca.if_else(x < ca.if_else(v < 0, p, q), 1, 0), "values": (0.3, 0.6)},
    "logic": {"force": lambda t, x, v, p, q: ca.if_else(ca.logic_and(x < p, ca.logic_not(v < q)), 1, 0)},
    "sign": {"force": lambda t, x, v, p, q: -p * ca.sign(x - q)},
    "floor": {"force": lambda t, x, v, p, q: ca.floor(t / p) * q},
    "ceil": {"force": lambda t, x, v, p, q: ca.ceil(3 * x + p) * q},
    "fmod": {"force": lambda t, x, v, p, q: ca.fmod(3 * x, p) * q, "values": (0.7, 0.5)},
    "remainder": {"force": lambda t, x, v, p, q: ca.remainder(3 * x, p) * q, "values": (0.7, 0.5)},
    "pulses": {"force": lambda t, x, v, p, q: ca.if_else(ca.fmod(t, p) < 0.4 * p, q, -q), "values": (0.7, 0.5)},
    "clip": {"force": lambda t, x, v, p, q: ca.fmin(p, ca.fmax(q * v, -p)), "values": (0.3, 0.9)},
    "kink of a jump": {"force": lambda t, x, v, p, q: ca.fabs(ca.if_else(x < p, -1, 2 * q)), "values": (0.3, 0.9)},
    "integrand": {
        "force": lambda t, x, v, p, q: -q * v,
        "integrand": lambda t, x, v, p, q: ca.if_else(x < p, 1, x) + ca.floor(x / p),
    },
    "function": {
        "force": lambda t, x, v, p, q: ca.Function("f", [x, p], [ca.if_else(x < p, 1, 0)])(x, p) * q,
    },
    "SX function": {"force": lambda t, x, v, p, q: _step(x, p) * q},
}


def _step(x: Any, p: Any) -> Any:
    a, b = ca.SX.sym("a"), ca.SX.sym("b")
    return ca.Function("step", [a, b], [ca.if_else(a < b, 1, 0)])(x, p)


@cache
def sharp(name: str) -> tuple[dh.HybridSystem, np.ndarray[Any, Any]]:
    """The oscillator with kinks as events, and its gradient by differences."""
    system = oscillator(**FORCES[name]).build(kinks="events")
    return system, differences(system, 5.0)


@pytest.mark.parametrize(
    ("name", "native"),
    [
        *((name, True) for name in FORCES),
        *(pytest.param(name, False, marks=[] if i % 5 == 0 else pytest.mark.campaign) for i, name in enumerate(FORCES)),
    ],
)
def test_forces_against_differences(name: str, native: bool) -> None:
    system, expected = sharp(name)
    if not native:
        system = oscillator(**FORCES[name]).build(native=False, kinks="integrate")
    np.testing.assert_allclose(both(system, 5.0)[1], expected, rtol=2e-5, atol=2e-7)


@pytest.mark.parametrize("native", [True, False])
def test_vectors_are_taken_by_entries(native: bool) -> None:
    m = dh.HybridModel("vector")
    p, q = m.parameter("p", 0.9), m.parameter("q", 2.5)
    x = m.differential("x", size=4)
    m.initial(m.mode("run", ode={x: ca.if_else(x < p * ca.DM([0.2, 0.4, 0.6, 0.8]), 1, q)}), {x: [0, 0.1, 0.2, 0.3]})
    m.functional("G", terminal=ca.sum1(x))
    system = m.build(native=native)
    value, gradient = both(system, 1.0)
    assert value == pytest.approx(8.8)
    np.testing.assert_allclose(gradient, [-3, 2.8], atol=1e-7)
    assert len(dh.simulate(system, (0, 1)).events) == 4


def test_algebraic_variables_and_signals() -> None:
    m = dh.HybridModel("dae")
    p, q = m.parameter("p", 0.3), m.parameter("q", 0.5)
    x, z = m.differential("x"), m.algebraic("z", guess=1.0)
    push = m.signal("push", [0, 1, 2, 3], [0.0, 1.0, 0.0, 1.0])
    run = m.mode("run", ode={x: -z}, algebraic=[z**3 + z - x - ca.if_else(z > p, q, 0) - ca.if_else(push > p, 1, 0)])
    m.initial(run, {x: 1.0})
    m.functional("G", terminal=x, integrand=z)
    system = m.build(native=False)
    _, gradient = both(system, 2.7)
    np.testing.assert_allclose(gradient, differences(system, 2.7), rtol=1e-4, atol=1e-7)


def test_a_relation_of_one_mode_is_right_when_the_mode_is_entered_again() -> None:
    m = dh.HybridModel("two modes")
    p, q, x = m.parameter("p", 0.5), m.parameter("q", 2.5), m.differential("x")
    up = m.mode("up", ode={x: 1 + ca.if_else(x < p, 0, 1)})
    down = m.mode("down", ode={x: -1})
    m.transition(up, down, guard=x - 1, direction="rising")
    m.transition(down, up, guard=x - 0.3, direction="falling")
    m.initial(up, {x: 0.0})
    m.functional("G", terminal=x, integrand=q * x)
    system = m.build(native=False)
    _, gradient = both(system, 3.3)
    np.testing.assert_allclose(gradient, differences(system, 3.3), rtol=1e-5)
    names = [event.transition for event in dh.simulate(system, (0, 3.3)).events]
    assert names[:5] == ['"x < p" became false', "up->down", "down->up", '"x < p" became false', "up->down"]


# -- the same system stated by modes --------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["bdf", "adams", "erk"])
def test_relations_give_what_modes_give(method: str) -> None:
    options: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-10, "method": method}
    one, other = (
        dh.forward_sensitivity(controller(relations=relations).build(), (0, 10), **options)
        for relations in (True, False)
    )
    assert len(one.events) == len(other.events) > 5
    np.testing.assert_allclose([e.time for e in one.events], [e.time for e in other.events], rtol=1e-13)
    np.testing.assert_allclose(one.functionals["G"], other.functionals["G"], rtol=1e-13)
    np.testing.assert_allclose(one.gradient["G"], other.gradient["G"], rtol=1e-12)


# -- kinks ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["adams", "erk"])
def test_kinks_are_events_that_keep_the_accuracy(method: str) -> None:
    """Integrated across, the same kink costs orders of magnitude."""
    model = oscillator(lambda t, x, v, p, q: -0.1 * v - 3 * ca.fabs(x - p) * q, values=(0.3, 1.0))
    sharp, blunt = model.build(kinks="events"), model.build()
    truth = dh.forward_sensitivity(sharp, (0, 10), rtol=1e-12, atol=1e-14).gradient["G"]
    options: dict[str, Any] = {"rtol": 1e-7, "atol": 1e-9, "method": method}
    errors = [
        np.abs(dh.forward_sensitivity(system, (0, 10), **options).gradient["G"] - truth).max() / np.abs(truth).max()
        for system in (sharp, blunt)
    ]
    assert errors[0] < 3e-6
    assert errors[1] > 10 * errors[0]


def test_a_kink_that_is_only_touched_has_a_derivative() -> None:
    """|t - 1/2|^2 as the square of a distance: it touches its kink at t = 1/2."""
    system = line(lambda t, x, p, q: p * ca.fabs((t - 0.5) ** 2)).build(native=False, kinks="events")
    value, gradient = both(system, 1.0)
    assert value == pytest.approx(1 / 24)
    np.testing.assert_allclose(gradient, [1 / 12, 0], atol=1e-8)


def test_clips_that_keep_a_root_in_its_domain_stay() -> None:
    system = line(lambda t, x, p, q: ca.sqrt(ca.fmax(x + p, 0)) + ca.log(ca.fmax(x + 1, 1e-9))).build(
        native=False, kinks="events"
    )
    assert not system.transitions
    np.testing.assert_allclose(both(system, 1.0)[1], differences(system, 1.0), rtol=1e-5)


# -- messages and refusals ------------------------------------------------------------------------------------------


def test_relations_are_listed_and_their_events_are_named() -> None:
    system = oscillator(**FORCES["clip"]).build(native=False, kinks="events")
    assert "kink" in system.describe()
    assert "run" in system.describe()
    system = line(lambda t, x, p, q: ca.if_else(x < p, 1, 2) + 1e-3 * ca.floor(t / 0.7)).build(native=False)
    assert "event: x < p" in system.describe()
    assert "event: floor(t/0.7)" in system.describe()
    sol = dh.simulate(system, (0, 0.9), parameters={"p": 0.6}, rtol=1e-9)
    assert [event.transition for event in sol.events] == ['"x < p" became false', '"floor(t/0.7)" became 1']
    assert sol["x < p"][0] == 1
    assert sol["x < p"][-1] == 0


def test_smooth_leaves_a_relation_as_it_is_and_says_so() -> None:
    system = line(lambda t, x, p, q: 1 + dh.smooth(ca.fmax(x - p, 0) ** 2)).build(native=False)
    assert not system.transitions
    assert "taken as smooth" in system.describe()
    assert "fmax" in system.describe()
    sol = dh.simulate(system, (0, 1))
    assert any("Taken as smooth" in note for note in sol.diagnostics)
    assert dh.smooth(2.0) == 2.0
    with pytest.raises(dh.ModelError, match="SX"):
        dh.smooth(ca.SX.sym("x"))


@pytest.mark.parametrize("native", [True, False])
def test_smooth_in_vectorised_code(native: bool) -> None:
    m = dh.HybridModel("large")
    x = m.differential("x", size=1000)
    m.initial(m.mode("run", ode={x: -x + dh.smooth(ca.fmax(x, 0))}), {x: np.linspace(-1, 1, 1000)})
    m.functional("G", terminal=ca.sum1(x))
    value = dh.simulate(m.build(native=native), (0, 1)).functionals["G"]
    assert value == pytest.approx(250.25 * (1 - np.exp(-1)), rel=1e-4)


@pytest.mark.parametrize("name", ["equal", "unequal", "number", "logic"])
def test_what_cannot_be_an_event_is_refused(name: str) -> None:
    rate, said = {
        "equal": (lambda t, x, p, q: ca.if_else(x == p, 0, 1), "for equality"),
        "unequal": (lambda t, x, p, q: ca.if_else(x != p, 0, 1), "for equality"),
        "number": (lambda t, x, p, q: ca.if_else(x, 0, 1), "as a condition"),
        "logic": (lambda t, x, p, q: ca.logic_and(x, t), "as a condition"),
    }[name]
    with pytest.raises(dh.ModelError, match=said):
        line(rate).build(native=False)


# -- constraints, algebraic variables, and what a transition needs of the equations after it ---------------------

#: y = q phi(x - p), y' = z, x' = 1 with p = q = 1, 0 < t < 3: integral of (z - 3)^2, and its derivatives by (p, q)
PATHS: dict[str, tuple[Callable[[ca.MX], ca.MX], float, list[float]]] = {
    "fmax": (lambda d: ca.fmax(d, 0), 1 * 9 + 2 * 4.0, [5.0, -8.0]),
    "if_else": (lambda d: ca.if_else(d > 0, d, 0), 1 * 9 + 2 * 4.0, [5.0, -8.0]),
    "fabs": (lambda d: (ca.fabs(d) + d) / 2, 1 * 9 + 2 * 4.0, [5.0, -8.0]),
    "clip": (lambda d: ca.fmin(ca.fmax(d, 0), 0.25), 0.25 * 4 + 2.75 * 9, [0.0, -1.0]),
}


@pytest.mark.parametrize("kinks", ["integrate", "events"])
@pytest.mark.parametrize("statement", ["constraint", "algebraic"])
@pytest.mark.parametrize("name", PATHS)
def test_kinks_of_constraints_make_multipliers_jump(name: str, statement: str, kinks: Any) -> None:
    phi, value, exact = PATHS[name]
    m = dh.HybridModel("path")
    p, q = m.parameter("p", 1.0), m.parameter("q", 1.0)
    x, y, z = m.differential("x"), m.differential("y"), m.algebraic("z")
    equations: dict[str, Any] = {statement: [y - q * phi(x - p)]}
    m.initial(m.mode("run", ode={x: 1, y: z}, **equations), {x: 0.0, y: 0.0})
    m.functional("G", integrand=(z - 3) ** 2)
    system = m.build(native=False, kinks=kinks)
    run: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}
    forward = dh.forward_sensitivity(system, (0, 3), **run)
    assert forward.functionals["G"] == pytest.approx(value, rel=1e-7)
    assert forward.gradient["G"] == pytest.approx(exact, rel=1e-6, abs=1e-6)
    assert dh.adjoint_gradient(system, (0, 3), "G", **run).gradient == pytest.approx(exact, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("guard", ["expression", "algebraic", "condition", "der"])
def test_a_guard_that_jumps_with_an_algebraic_variable_fires(guard: str) -> None:
    """x = t; u jumps across 1 at x = p, and y' is 1 from there on: G = 3 - p."""
    m = dh.HybridModel("jumping")
    p, x, y, u = m.parameter("p", 1.25), m.differential("x"), m.differential("y"), m.algebraic("u")
    w = m.differential("w")
    value = ca.if_else(x < p, 0.25 + 0.1 * x, 2 + 0.1 * x)
    first = m.mode("first", ode={x: 1, y: 0 * x, w: value}, algebraic=[u - value])
    second = m.mode("second", ode={x: 1, y: 1, w: 0 * x})
    guards = {"expression": value - 1, "algebraic": u - 1, "condition": u > 1, "der": m.der(w) - 1}
    m.transition(first, second, guard=guards[guard], direction="rising", name="T")
    m.initial(first, {x: 0.0, y: 0.0, w: 0.0})
    m.functional("G", terminal=y)
    system = m.build(native=False)
    forward = dh.forward_sensitivity(system, (0, 3))
    assert forward.functionals["G"] == pytest.approx(1.75)
    assert forward.gradient["G"] == pytest.approx([-1.0])
    assert dh.adjoint_gradient(system, (0, 3), "G").gradient == pytest.approx([-1.0])


@pytest.mark.parametrize("kind", ["reset", "of", "memory", "cost"])
@pytest.mark.parametrize("of", ["x", "w"])
def test_a_transition_uses_algebraic_variables_of_the_side_that_holds_after_it(kind: str, of: str) -> None:
    """x = t up to 1/2, where q = 3/4 is added: z = 2 + x from there on, 2 + 1/2 + q = 13/4."""
    m = dh.HybridModel("after")
    q, x, y = m.parameter("q", 0.75), m.differential("x"), m.differential("y")
    z, w = m.algebraic("z"), m.algebraic("w")
    r = m.memory("r", initial=0.0, **({"of": z} if kind == "of" else {}))
    relation = (x if of == "x" else w) < 1
    rates = {x: 1, y: r if kind != "cost" else 0 * x}
    run = m.mode("run", ode=rates, algebraic=[w - x**2, z - ca.if_else(relation, 1, 2 + x)])
    reset: Any = {x: x + q}
    if kind == "reset":
        reset = [m.post(x) - (x + q), m.post(y) - (y + m.post(z))]
    jump = m.transition(run, run, at=0.5, reset=reset, memory={r: m.post(z)} if kind == "memory" else {}, name="T")
    m.initial(run, {x: 0.0, y: 0.0})
    m.functional("G", terminal=y, **({"at_events": {jump: m.post(z)}} if kind == "cost" else {}))
    value, exact = {"reset": (3.25, 1.0), "cost": (3.25, 1.0), "memory": (1.625, 0.5), "of": (1.625, 0.5)}[kind]
    system = m.build(native=False)
    forward = dh.forward_sensitivity(system, (0, 1))
    assert forward.functionals["G"] == pytest.approx(value)
    assert forward.gradient["G"] == pytest.approx([exact])
    assert dh.adjoint_gradient(system, (0, 1), "G").gradient == pytest.approx([exact])
