"""Relations that slide: closed forms, other ways to state them, random systems against regularised ones, refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import casadi as ca
import numpy as np
import pytest
from random_sliding import SPAN, RandomSliding

import dae_hybrid as dh

TIGHT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}
WAYS: dict[str, tuple[bool, dict[str, Any]]] = {
    "erk": (True, {}),
    "bdf": (True, {"method": "bdf"}),
    "adams": (True, {"method": "adams"}),
    "interpreted": (False, {}),
    "scipy": (False, {"adapter": "scipy"}),
    "casadi": (False, {"adapter": "casadi"}),
    "scikits-odes": (False, {"adapter": "scikits-odes"}),
}
#: ways to write the sign of v
SIGNS: dict[str, Callable[[Any], Any]] = {
    "sign": ca.sign,
    "branches": lambda v: ca.if_else(v > 0, 1, -1),
    "the other branch": lambda v: ca.if_else(v <= 0, -1, 1),
    "two relations": lambda v: (v > 0) - (v < 0),
    "a quotient": lambda v: v / ca.fabs(v),
    "copysign": lambda v: ca.copysign(1, v),
    "backwards": lambda v: -ca.sign(-v),
    "both": lambda v: (ca.sign(v) - ca.sign(-v)) / 2,
    "peaked": lambda v: ca.sign(v) * ca.exp(0 * ca.fabs(v)),
    "square": lambda v: ca.sign(v) ** 3,
    "nested": lambda v: ca.if_else(v > 0, ca.if_else(v > -5, 1, 7), -1),
}


def block(sign: Callable[[Any], Any] = ca.sign, **options: Any) -> dh.HybridSystem:
    """v' = -mu sign(v) from v0: it rests at v0/mu, having moved by v0^2/(2 mu)."""
    m = dh.HybridModel("block")
    mu, v0 = m.parameter("mu", 3.0), m.parameter("v0", 5.0)
    x, v = m.differential("x"), m.differential("v")
    run = m.mode("run", ode={x: v, v: -mu * sign(v)})
    m.initial(run, {x: 0.0, v: v0})
    m.functional("X", terminal=x)
    m.functional("heat", integrand=mu * sign(v) * v)  # v0^2 / 2
    m.functional("push", integrand=sign(v))  # v0 / mu
    return m.build(**options)


@pytest.mark.parametrize("way", WAYS)
def test_a_block_comes_to_rest(way: str) -> None:
    native, options = WAYS[way]
    system = block(native=native)
    found = dh.forward_sensitivity(system, (0, 4), **TIGHT, **options)
    values = found.functionals
    assert (values["X"], values["heat"], values["push"]) == pytest.approx((25 / 6, 12.5, 5 / 3), rel=1e-8)
    assert [event.transition for event in found.trajectory.events] == ['"v < 0" slides']
    assert found.trajectory.events[0].time == pytest.approx(5 / 3, rel=1e-8)
    for name, exact in (("X", (-25 / 18, 5 / 3)), ("heat", (0, 5)), ("push", (-5 / 9, 1 / 3))):
        assert found.gradient[name] == pytest.approx(exact, abs=1e-7)
        assert dh.adjoint_gradient(system, (0, 4), name, **TIGHT, **options).gradient == pytest.approx(exact, abs=1e-7)


@pytest.mark.parametrize("kinks", ["integrate", "events"])
@pytest.mark.parametrize("form", SIGNS)
def test_ways_to_write_it_are_one(form: str, kinks: Any) -> None:
    found = dh.adjoint_gradient(block(SIGNS[form], native=False, kinks=kinks), (0, 4), "push", **TIGHT)
    assert found.value == pytest.approx(5 / 3, abs=1e-8)
    assert found.gradient == pytest.approx((-5 / 9, 1 / 3), abs=1e-7)


@pytest.mark.parametrize("start", [-0.3, 0.4, -1.5])
def test_a_surface_with_a_kink_shares_its_branch_with_a_sign(start: float) -> None:
    """|x| is driven to 1 at the rate b from within, a from beyond: G, the integral of a x, follows."""
    m = dh.HybridModel("level")
    a, b, x, y = m.parameter("a", 0.7), m.parameter("b", 2.0), m.differential("x"), m.differential("y")
    run = m.mode("run", ode={x: ca.if_else(ca.fabs(x) > 1, -a, b) * ca.sign(x), y: a * x})
    m.initial(run, {x: start, y: 0})
    m.functional("G", terminal=y)
    found = dh.adjoint_gradient(m.build(native=False), (0, 4), **TIGHT, duality=True)
    side, size = math.copysign(1, start), abs(start)
    rate = 2.0 if size < 1 else -0.7
    met = (1 - size) / rate
    area = 4 - met + (1 + size) / 2 * met  # the integral of |x|
    by_rate = met * (1 - size) / (2 * rate)  # its derivative
    assert found.value == pytest.approx(side * 0.7 * area, rel=1e-8)
    by_a, by_b = (0, by_rate) if size < 1 else (-by_rate, 0)
    assert found.gradient == pytest.approx((side * (area + 0.7 * by_a), side * 0.7 * by_b), abs=1e-7)


def test_the_value_of_a_relation_is_that_which_holds_the_surface() -> None:
    """x' = c - sign(x): at rest sign(x) is c on average."""
    m = dh.HybridModel("held")
    c, x = m.parameter("c", 0.3), m.differential("x")
    m.initial(m.mode("run", ode={x: c - ca.sign(x)}), {x: 0.5})
    m.functional("G", integrand=ca.sign(x))
    first, end = 0.5 / 0.7, 2.0
    found = dh.adjoint_gradient(m.build(), (0, end), "G", **TIGHT)
    assert found.value == pytest.approx(first + 0.3 * (end - first), abs=1e-9)
    assert found.gradient == pytest.approx(end, abs=1e-7)


def test_it_leaves_along_the_surface() -> None:
    """The field above turns away at x = c: y = (t - c)^2 / 2 from there, as for the modes in docs/events.md."""
    m = dh.HybridModel("plane")
    c, h = m.parameter("c", 1.0), m.parameter("h", 0.58)
    x, y = m.differential("x"), m.differential("y")
    m.initial(m.mode("run", ode={x: 1.0, y: ca.if_else(y > 0, x - c, 3.0 - x)}), {x: 0.0, y: -h})
    m.functional("G", terminal=y)
    system = m.build()
    found = dh.adjoint_gradient(system, (0, 3), "G", **TIGHT)
    assert found.value == pytest.approx(2.0, abs=1e-8)
    assert found.gradient == pytest.approx((-2.0, 0.0), abs=1e-7)
    assert [event.transition for event in found.trajectory.events] == ['"0 < y" slides', '"0 < y" leaves to true']
    across = dh.simulate(system, (0, 3), parameters={"c": 0.1}, **TIGHT)
    assert [event.transition for event in across.events] == ['"0 < y" became true']


def belt(friction: Callable[[Any], Any] = ca.sign) -> dh.HybridModel:
    """x'' = -x - mu sign(x' - u) from rest: it meets the speed u of the belt, moves with it, and slips at x = mu."""
    m = dh.HybridModel("belt")
    mu, u = m.parameter("mu", 1.0), m.parameter("u", 0.5)
    x, v = m.differential("x"), m.differential("v")
    m.initial(m.mode("run", ode={x: v, v: -x - mu * friction(v - u)}), {x: 0.0, v: 0.0})
    m.functional("G", terminal=x)
    return m


def test_a_block_on_a_belt_sticks_and_slips() -> None:
    mu, u, end = 1.0, 0.5, 5.0
    root = math.sqrt(mu**2 - u**2)
    slips = math.asin(u / mu) + root / u
    by_mu, by_u = -u / (mu * root) + mu / (u * root), 1 / root - 1 / root - root / u**2
    found = dh.adjoint_gradient(belt().build(), (0, end), "G", **TIGHT)
    s, c = math.sin(end - slips), math.cos(end - slips)
    assert found.value == pytest.approx(mu + u * s, abs=1e-8)
    assert found.gradient == pytest.approx((1 - u * c * by_mu, s - u * c * by_u), abs=1e-6)


#: friction that falls with the speed, with its kink on the surface, however it is written
PEAKED: dict[str, Callable[[Any], Any]] = {
    "of w": lambda w: ca.sign(w) / (1 + ca.fabs(w)),
    "of -w": lambda w: ca.sign(w) / (1 + ca.fabs(-w)),
    "branches": lambda w: ca.if_else(w > 0, 1 / (1 + w), -1 / (1 - w)),
    "larger": lambda w: ca.sign(w) / (1 + ca.fmax(w, -w)),
}


@pytest.mark.parametrize("kinks", ["integrate", "events"])
def test_kinks_on_the_surface(kinks: Any, compare_gradients: Any) -> None:
    found = {}
    for name, friction in PEAKED.items():
        system = belt(friction).build(native=False, kinks=kinks)
        found[name] = dh.adjoint_gradient(system, (0, 9), "G", **TIGHT)
        assert '"v-u < 0" leaves to true' in [e.transition for e in found[name].trajectory.events] or name == "branches"
    for other in found.values():
        assert other.value == pytest.approx(found["of w"].value, abs=1e-7)
        assert other.gradient == pytest.approx(found["of w"].gradient, abs=2e-6)
    compare_gradients(belt(PEAKED["of -w"]).build(kinks=kinks), (0, 9), "G")


def rest(**options: Any) -> dh.HybridModel:
    """A block at rest that a force, a kick or a start may move: v' = f - mu sign(v), with f in memory."""
    m = dh.HybridModel("rest")
    mu, push, when = m.parameter("mu", 1.0), m.parameter("push", 2.0), m.parameter("when", 1.0)
    x, v, f = m.differential("x"), m.differential("v"), m.memory("f", initial=0.5)
    run = m.mode("run", ode={x: v, v: f - mu * ca.sign(v)})
    reset = {"reset": {v: v + push}} if options.get("kick") else {"memory": {f: push}}
    m.transition(run, run, at=when, **reset, name="act")
    m.initial(run, {x: 0.0, v: 0.0})
    m.functional("G", terminal=x)
    return m


def test_a_force_starts_it(compare_gradients: Any) -> None:
    """From `when` on its rate is push - mu: x = (push - mu)(T - when)^2 / 2."""
    found = compare_gradients(rest().build(), (0, 3), "G", value=2.0, exact=(-2.0, 2.0, -2.0))
    said = [event.transition for event in found.forward.trajectory.events]
    assert said == ['"v < 0" slides', "act", '"v < 0" leaves to false']


def test_a_kick_starts_it_and_friction_stops_it(compare_gradients: Any) -> None:
    """It comes to rest after push^2 / (2 (mu - f))."""
    found = compare_gradients(rest(kick=True).build(), (0, 9), "G", value=4.0, exact=(-8.0, 4.0, 0.0))
    assert [event.transition for event in found.forward.trajectory.events] == [
        '"v < 0" slides',
        "act",
        '"v < 0" slides',
    ]


def pile() -> dh.HybridModel:
    """A force t on a block on a block on the ground: both rest, move together, and slip, at t = mu2 and 2 mu1 - mu2."""
    m = dh.HybridModel("pile")
    mu1, mu2 = m.parameter("mu1", 2.0), m.parameter("mu2", 1.0)
    x, v, y, w = (m.differential(name) for name in ("x", "v", "y", "w"))
    between = mu1 * ca.sign(v - w)
    run = m.mode("run", ode={x: v, v: m.time - between, y: w, w: between - mu2 * ca.sign(w)})
    m.initial(run, dict.fromkeys((x, v, y, w), 0.0))
    m.functional("X", terminal=x)
    m.functional("Y", terminal=y)
    return m


@pytest.mark.parametrize("options", [{}, {"method": "bdf"}], ids=["erk", "bdf"])
def test_two_surfaces_slide_at_once(options: dict[str, Any], compare_gradients: Any) -> None:
    system = pile().build()
    compare_gradients(system, (0, 5), "X", value=6.0, **options)
    compare_gradients(system, (0, 5), "Y", value=14 / 3, **options)


def test_it_slides_in_the_modes_that_allow_it(compare_gradients: Any) -> None:
    """A block is held for a second, then slides down a slope, then meets ground with friction: three modes."""
    m = dh.HybridModel("modes")
    mu, until = m.parameter("mu", 2.0), m.parameter("until", 1.0)
    x, v = m.differential("x"), m.differential("v")
    held = m.mode("held", ode={x: 0.0, v: 0.0})
    slope = m.mode("slope", ode={x: v, v: 1.0 - 0.5 * ca.sign(v)})
    ground = m.mode("ground", ode={x: v, v: -mu * ca.sign(v)})
    m.transition(held, slope, at=until)
    m.transition(slope, ground, guard=x - 1.0, direction="rising")
    m.initial(held, {x: 0.0, v: 0.0})
    m.functional("G", terminal=x)
    # v = 1/2 s reaches x = 1 at s = 2; then v = 1 - mu r rests at r = 1/mu, x = 1 + 1/(2 mu)
    compare_gradients(m.build(), (0, 5), "G", value=1.25, exact=(-1 / 8, 0.0))


def test_surfaces_that_are_equal_in_a_part_of_the_space_are_two() -> None:
    """x = 1 + t crosses y = fmin(x, 2) when it reaches 2, and y slides at x - y = 0 before, at 2 after."""
    m = dh.HybridModel("clipped")
    x, y, z = m.differential("x"), m.differential("y"), m.differential("z")
    low = ca.fmin(x, 2.0)
    run = m.mode("run", ode={x: 1.0, y: -3 * ca.sign(y - low), z: ca.if_else(y < x, 1.0, 0.0)})
    m.initial(run, {x: 1.0, y: 0.0, z: 0.0})
    m.functional("G", terminal=z)
    found = dh.simulate(m.build(), (0, 4), **TIGHT)
    assert found["y"][-1] == pytest.approx(2.0, abs=1e-8)
    assert found["z"][-1] > 3.0  # y is below x until they meet at t = 1/2, and from t = 1 on


def test_prepared_and_batched_runs_slide() -> None:
    system = belt().build()
    rows = np.array([[1.0, 0.5], [1.2, 0.4]])
    batch = dh.batch(system, (0, 5), parameters=rows, functional="G", gradient="adjoint", **TIGHT)
    for row, gradient in zip(rows, batch.gradients, strict=True):
        single = dh.adjoint_gradient(system, (0, 5), "G", parameters=row, **TIGHT).gradient
        assert gradient.ravel() == pytest.approx(single, rel=1e-6)


def test_the_force_of_friction_at_an_instant() -> None:
    """At rest it is the force that it opposes, f = 0.5, and before that mu."""
    m = dh.HybridModel("force")
    mu, f = m.parameter("mu", 3.0), m.parameter("f", 0.5)
    x, v = m.differential("x"), m.differential("v")
    run = m.mode("run", ode={x: v, v: f - mu * ca.sign(v)})
    m.mode("another", ode={x: v, v: f})
    m.initial(run, {x: 0.0, v: 5.0})
    force = mu * ca.sign(v)
    m.functional("at the end", terminal=force)
    m.functional("on the way", at_times=[(1.0, 2 * force), (3.0, force)])
    system = m.build()
    for name, value, exact in (("at the end", 0.5, (0, 1)), ("on the way", 6.5, (2, 1))):
        found = dh.adjoint_gradient(system, (0, 4), name, **TIGHT)
        assert found.value == pytest.approx(value, abs=1e-8)
        assert found.gradient == pytest.approx(exact, abs=1e-7)


def test_describe_says_what_may_slide() -> None:
    text = block(native=False).describe()
    assert "event: v < 0, may slide" in text
    m = dh.HybridModel("carrier")
    x, duty = m.differential("x"), m.parameter("duty", 0.4)
    m.initial(m.mode("run", ode={x: ca.if_else(ca.sin(m.time) < duty, 1, 0) - x}), {x: 0.0})
    assert "slide" not in m.build(native=False).describe()  # the state does not move the surface


# -- random systems ---------------------------------------------------------------------------------------------


def examine(seed: int) -> bool:
    """Compare a random system with its regularisation, and its gradients; whether it slides."""
    made = RandomSliding(seed)
    system = made.model().build()
    found = dh.forward_sensitivity(system, SPAN, **TIGHT)
    slides = any("slides" in event.transition for event in found.trajectory.events)
    coarse, fine = made.regularised(1e-4), made.regularised(1e-5)
    limit = fine + (fine - coarse) / 9
    assert found.functionals["G"] == pytest.approx(limit, abs=max(1e-4, abs(fine - coarse)))
    for name in ("G", "W"):
        adjoint = dh.adjoint_gradient(system, SPAN, name, duality=False, **TIGHT).gradient
        scale = 1 + np.abs(adjoint).max()
        assert adjoint == pytest.approx(found.gradient[name], abs=1e-5 * scale)
        differences = []
        for i in range(3):
            values = []
            for shift in (1e-5, -1e-5):
                shifted = np.ones(3)
                shifted[i] += shift
                values.append(dh.simulate(system, SPAN, parameters=shifted, rtol=1e-11).functionals[name])
            differences.append((values[0] - values[1]) / 2e-5)
        assert adjoint == pytest.approx(np.array(differences), abs=1e-4 * scale)
    return slides


@pytest.mark.parametrize("seed", [3, 9, 36])
def test_random_systems(seed: int) -> None:
    assert examine(seed)


@pytest.mark.campaign
@pytest.mark.uncertified
def test_many_random_systems() -> None:
    assert sum(examine(seed) for seed in range(12)) > 4


# -- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("native", [True, False])
def test_surfaces_are_crossed_on_request(native: bool) -> None:
    with pytest.raises(dh.ChatteringError, match="sliding mode"):
        dh.simulate(block(native=native, relations="cross"), (0, 4))
    with pytest.raises(dh.ModelError, match="relations must be 'slide' or 'cross', got 'stick'"):
        block(relations="stick")


@pytest.mark.parametrize("by_signal", [True, False])
def test_surfaces_that_jump_are_refused(by_signal: bool) -> None:
    """They do with another relation, and with a signal that is held between its knots."""
    m = dh.HybridModel("jumping surfaces")
    x, y = m.differential("x"), m.differential("y")
    held = m.signal("held", [0.0, 2.0, 9.0], [0.0, 1.0, 1.0], kind="previous")
    level = held if by_signal else ca.if_else(y > 1, 0.5, 0)
    m.initial(m.mode("run", ode={x: -2 * ca.sign(x - level), y: 1.0}), {x: 1.0, y: 0.0})
    with pytest.raises(dh.ChatteringError):
        dh.simulate(m.build(native=False), (0, 5))


def test_a_surface_that_comes_to_repel_is_refused() -> None:
    """From t = 1 on the motion may leave to either side: it is not unique."""
    m = dh.HybridModel("repelling")
    x, side = m.differential("x"), m.memory("side", initial=-1.0)
    run = m.mode("run", ode={x: side * ca.sign(x)})
    m.transition(run, run, at=1.0, memory={side: 1.0}, name="turn")
    m.initial(run, {x: 0.5})
    for native in (True, False):
        with pytest.raises(dh.DaeHybridError, match="not unique") as caught:
            dh.simulate(m.build(native=native), (0, 2))
        assert caught.value.time == pytest.approx(1.0)
        assert caught.value.trajectory.t[-1] == pytest.approx(1.0)
