"""Modes that are entered by the second event of an instant, or with new names for coordinates."""

from __future__ import annotations

from functools import cache

import casadi as ca
import numpy as np
import pytest
from mechanisms import FORMS

import dae_hybrid as dh
from dae_hybrid.mechanics import Continuous, Index2, Mechanism, Penalty, Reduced, Restitution

ALL = pytest.mark.parametrize("form", [*FORMS.values(), Penalty(alpha=1e8)], ids=[*FORMS, "penalty"])
EXACT = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
TIGHT = {"rtol": 1e-9, "atol": 1e-11}
MASS, SLOW, END = 1.5, 1.2, 3.0
NOMINAL = {"e": 0.6, "g": 9.81, "h": 1.0, "c": 0.4, "d": 2.0}


def bouncing(clearance=0.0):
    """A ball that bounces until it comes down slowly, and slides to a stop; a mode without duration decides."""
    mech = Mechanism("ball")
    e, g, h, c, d = (mech.parameter(name, value) for name, value in NOMINAL.items())
    ball = mech.point("")
    mech.point_mass(ball, MASS)
    mech.gravity(g)
    mech.force({ball.x: -c * ball.vx})
    fly, decide, rest = mech.mode("fly"), mech.mode("decide"), mech.mode("rest")
    rest.constraint("floor", ball.y - clearance)
    rest.force({ball.x: -d * ball.vx})
    slow = ball.vy + SLOW
    mech.event(fly, decide, guard=ball.y, direction="falling", name="touches")
    mech.event(decide, rest, guard=slow, direction="rising", on_entry="fire", name="rests")
    impact = Restitution(e, distance=ball.y)
    mech.event(decide, fly, guard=slow, direction="falling", on_entry="fire", impact=impact, name="bounces")
    mech.initial(fly, {ball.x: 0.0, ball.y: h}, {ball.vx: 1.0, ball.vy: 0.0})
    mech.functional("reach", terminal=ball.x)
    return mech


@cache
def built(form, *, native=True):
    return bouncing().build(form, native=native)


def reach():
    """Where the ball of `bouncing` is at the end, and the derivative; it rests at the fourth touch."""
    e, g, h, c, d = symbols = [ca.SX.sym(name) for name in NOMINAL]
    rest = ca.sqrt(2 * h / g) * (1 + 2 * (e + e**2 + e**3))
    slide = (1 - ca.exp(-c * rest / MASS)) * MASS / c
    slide += ca.exp(-c * rest / MASS) * (1 - ca.exp(-(c + d) * (END - rest) / MASS)) * MASS / (c + d)
    p = ca.vertcat(*symbols)
    value, gradient = ca.Function("reach", [p], [slide, ca.gradient(slide, p)])(list(NOMINAL.values()))
    return float(value), np.array(gradient).ravel()


@ALL
def test_bounce_or_rest_by_a_deciding_mode(form):
    system, (value, gradient) = built(form), reach()
    check = dh.check_gradient(system, (0, END), "reach", **TIGHT)
    assert check.same_events
    assert check.value == pytest.approx(value, rel=1e-8)
    for way, accuracy in (("forward", 1e-7), ("adjoint", 1e-7), ("finite_difference", 1e-5)):
        assert check.gradients[way] == pytest.approx(gradient, rel=accuracy, abs=accuracy), way
    sol = dh.simulate(system, (0, END), **TIGHT)
    assert [event.transition for event in sol.events] == [*["touches", "bounces"] * 3, "touches", "rests"]


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
@pytest.mark.parametrize("method", ["adams", "bdf"])
def test_bounce_or_rest_whatever_the_method(method, native):
    value, gradient = reach()
    for form in (Index2(), Reduced()):
        system = built(form, native=native)
        asa = dh.adjoint_gradient(system, (0, END), method=method, duality=True, **TIGHT)
        assert asa.value == pytest.approx(value, rel=1e-6)
        assert asa.gradient == pytest.approx(gradient, rel=1e-5, abs=1e-5)


@ALL
def test_a_constraint_that_does_not_hold_at_the_second_event_is_refused(form):
    with pytest.raises(dh.ConsistencyError, match="constraint 'floor'") as caught:
        dh.simulate(bouncing(clearance=1e-3).build(form), (0, END), **TIGHT)
    assert caught.value.transition == "rests"
    assert caught.value.trajectory is not None


def caught(offset):
    """A particle that is held at the second event of an instant by a constraint that is met there by chance."""
    m = dh.HybridModel("caught")
    a, b = m.parameter("a", 1.0), m.parameter("b", 1.0 + offset)
    x, y = m.differential("x"), m.differential("y")
    z = m.algebraic("z")
    free, decide = m.mode("free", ode={x: a, y: b}), m.mode("decide", ode={x: a, y: b})
    held = m.mode("held", ode={x: z, y: 1.0}, constraint=[x - y])
    m.transition(free, decide, guard=x - 1, direction="rising", name="first")
    m.transition(decide, held, guard=y - 0.5, direction="rising", on_entry="fire", name="second")
    m.initial(free, {x: 0.0, y: 0.0})
    m.functional("G", terminal=y)
    return m


def test_a_constraint_that_is_met_by_chance_at_the_second_event_has_no_derivative():
    """x = y at the instant for a = b alone."""
    system = caught(0.0).build()
    assert dh.simulate(system, (0, 2)).functionals["G"] == pytest.approx(2.0)
    for analysis in (dh.forward_sensitivity, dh.adjoint_gradient):
        with pytest.raises(dh.ConsistencyError, match="at these parameters, but not at others"):
            analysis(system, (0, 2))


def dumbbell(renamed, impact=None):
    """Two equal masses on a rod in flight, which change names on the way."""
    mech = Mechanism("dumbbell")
    length, drag = mech.parameter("L", 1.0), mech.parameter("drag", 0.3)
    a, b = mech.point("1"), mech.point("2")
    for end in (a, b):
        mech.point_mass(end, 1.0)
        mech.force({end.x: -drag * end.vx**3})
    mech.gravity(9.81)
    mech.constraint("rod", (a.x - b.x) ** 2 + (a.y - b.y) ** 2 - length**2)
    fly = mech.mode("fly")
    if renamed:
        swapped = {a.x: b.x, a.y: b.y, b.x: a.x, b.y: a.y, a.vx: b.vx, a.vy: b.vy, b.vx: a.vx, b.vy: a.vy}
        mech.event(fly, fly, guard=a.y + b.y + 1, direction="falling", reset=swapped, impact=impact, name="rename")
    mech.initial(fly, {a.x: 0.0, a.y: 0.0, b.x: length, b.y: 0.0}, {a.vx: 1.0, a.vy: 2.0, b.vx: 1.0, b.vy: -1.0})
    mech.functional("G", terminal=b.x + 2 * b.y if renamed else a.x + 2 * a.y, integrand=a.x * b.x)
    return mech


@cache
def without_a_change():
    return dh.forward_sensitivity(dumbbell(renamed=False).build(), (0, 1), **TIGHT)


@EXACT
def test_a_change_of_names_changes_nothing(form):
    expected = without_a_change()
    for impact in (None, Continuous()):
        system = dumbbell(renamed=True, impact=impact).build(form)
        fsa = dh.forward_sensitivity(system, (0, 1), **TIGHT)
        asa = dh.adjoint_gradient(system, (0, 1), **TIGHT)
        assert [e.transition for e in fsa.events if not e.transition.endswith(": coordinates")] == ["rename"]
        assert fsa.functionals["G"] == pytest.approx(expected.functionals["G"], abs=1e-7)
        assert fsa.gradient["G"] == pytest.approx(expected.gradient["G"], abs=1e-6)
        assert asa.gradient == pytest.approx(expected.gradient["G"], abs=1e-6)


@EXACT
@pytest.mark.parametrize("what", ["positions", "velocities"])
def test_a_reset_off_the_constraints_is_refused(what, form):
    mech = dumbbell(renamed=False)
    a, b = (
        mech.lookup(name, "differential").symbol for name in (("x1", "x2") if what == "positions" else ("vx1", "vx2"))
    )
    mech.event("fly", "fly", at=0.5, reset={a: b, b: 2 * a}, impact=Continuous(), name="wrong")
    with pytest.raises(dh.ConsistencyError, match=r"rod|velocity constraints") as caught:
        dh.simulate(mech.build(form), (0, 1), **TIGHT)
    assert caught.value.transition == "wrong"


@EXACT
def test_tolerances_below_rounding_refuse_no_contact(form):
    sol = dh.simulate(built(form), (0, END), rtol=1e-10, atol=1e-18)
    assert sol.events[-1].transition == "rests"
    assert sol.functionals["reach"] == pytest.approx(reach()[0], rel=1e-8)
