"""Bodies in joint coordinates: Lagrange's equations of random trees, closed forms, the five-bar, refusals."""

from __future__ import annotations

import pickle

import casadi as ca
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanisms import FORMS, assert_gradients
from trees import joints, lagrange, tree

import dae_hybrid as dh
from dae_hybrid.mechanics import (
    Index1,
    Index2,
    Joint,
    Mechanism,
    Penalty,
    Prismatic,
    Reduced,
    Revolute,
    Unconstrained,
    draw_mechanism,
    places,
)
from dae_hybrid.mechanics.equations import EquationsOfMotion
from dae_hybrid.problems import five_bar

OPTIONS = {"rtol": 1e-10, "atol": 1e-12}


@given(st.lists(joints, min_size=1, max_size=5), st.sampled_from([0.0, 0.7]), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_random_trees_have_lagranges_equations_for_both_reference_points(stated, moving, seed):
    mech, bodies = tree(stated, moving)
    expected = lagrange(mech, bodies)
    rng = np.random.default_rng(seed)
    point = [rng.normal(), rng.normal(size=len(bodies)), rng.normal(size=len(bodies))]
    for reference in ("center", "origin"):
        equations = EquationsOfMotion(mech, reference)
        motion = equations.motion("move")
        own = ca.Function("own", [mech.time, equations.q, equations.v], [motion.mass, motion.force])
        for value, exact in zip(own(*point), expected(*point), strict=True):
            exact = np.asarray(exact)
            np.testing.assert_allclose(np.asarray(value), exact, rtol=1e-9, atol=1e-10 * (1 + np.abs(exact).max()))


@given(st.lists(joints, min_size=1, max_size=4), st.integers(0, 2**32 - 1))
@settings(max_examples=20, deadline=None)
def test_velocities_and_accelerations_of_points_are_derivatives_of_positions(stated, seed):
    mech, bodies = tree(stated, 0.7)
    equations, rng = EquationsOfMotion(mech), np.random.default_rng(seed)
    point = bodies[-1].point(0.4, -0.9)
    z, v, a, t = equations.q, equations.v, equations.a, mech.time

    def rate(value):
        return ca.jtimes(value, z, v) + ca.jtimes(value, v, a) + ca.jtimes(value, t, ca.MX(1))

    once = rate(point.position)
    f = ca.Function("f", [t, z, v, a], [point.velocity - once, point.acceleration - rate(once), point.acceleration])
    off_v, off_a, size = f(rng.normal(), *rng.normal(size=(3, len(bodies))))
    assert np.abs(off_v).max() < 1e-10 * (1 + np.abs(np.asarray(size)).max())
    assert np.abs(off_a).max() < 1e-10 * (1 + np.abs(np.asarray(size)).max())


def test_a_compound_pendulum_has_its_closed_form_period():
    # small oscillations about the hanging position: omega^2 = m g d / (J + m d^2)
    mech = Mechanism("pendulum")
    d = mech.parameter("d", 0.4)
    rod = mech.body("rod", Revolute(mech.ground(0, 0)), mass=2.0, center=(d, 0), inertia=0.1)
    mech.gravity(9.81)
    swing = mech.mode("swing")
    down = mech.event(swing, swing, guard=rod.coordinate + np.pi / 2, direction="falling", name="down")
    mech.initial(swing, {rod.coordinate: -np.pi / 2 + 1e-5})
    mech.functional("T", at_events={down: mech.time})
    system = mech.build()
    fsa = dh.forward_sensitivity(system, (0, 2), **OPTIONS)
    inertia, weight = 0.1 + 2 * 0.4**2, 2 * 9.81 * 0.4
    quarter = np.pi / 2 * np.sqrt(inertia / weight)
    assert abs(fsa.events[0].time - quarter) < 1e-8
    slope = np.pi / 4 * np.sqrt(weight / inertia) * (4 * 0.4 * weight - inertia * 2 * 9.81) / weight**2
    assert abs(fsa.event_time_sensitivity[0, 0] - slope) < 1e-7


def test_a_slider_on_an_axis_falls_with_the_component_of_gravity():
    mech = Mechanism("slider")
    angle = mech.parameter("angle", 0.3)
    block = mech.body("block", Prismatic(mech.ground(0, 0), axis=(ca.cos(angle), -ca.sin(angle))), mass=3.0)
    mech.gravity(9.81)
    mech.initial(mech.mode("fall"), {block.coordinate: 0.0})
    mech.functional("x", terminal=block.coordinate)
    asa = dh.adjoint_gradient(mech.build(), (0, 2), "x", **OPTIONS)
    assert abs(asa.value - 9.81 * np.sin(0.3) * 2) < 1e-8
    assert abs(asa.gradient[0] - 9.81 * np.cos(0.3) * 2) < 1e-8


def test_a_slider_crank_follows_its_kinematics():
    # the crank turns at a constant rate (a constraint in time): x = cos(t) + sqrt(L^2 - sin(t)^2)
    mech = Mechanism("slider crank")
    length = mech.parameter("L", 2.5)
    ground = mech.ground(0, 0)
    crank = mech.body("crank", Revolute(ground), mass=1.0, center=(0.5, 0), inertia=1 / 12)
    rod = mech.body("rod", Revolute(crank.point(1.0)), mass=2.0, center=(length / 2, 0), inertia=1.0)
    slider = mech.body("slider", Prismatic(ground), mass=1.5)
    mech.pin(rod.point(length), slider.point(0.0), name="wrist")
    mech.constraint("drive", crank.coordinate - mech.time)
    run = mech.mode("run")
    mech.initial(
        run, {crank.coordinate: 0.0, rod.coordinate: 0.0}, {mech.velocity(crank.coordinate): 1.0},
        guess={slider.coordinate: 3.5},
    )  # fmt: skip
    mech.functional("x", integrand=slider.coordinate)
    for formulation in (Index2(), Index1(omega=10.0)):
        fsa = dh.forward_sensitivity(mech.build(formulation), (0, 3), t_eval=[0.5, 1.7, 3.0], **OPTIONS)
        exact = np.cos(fsa.t) + np.sqrt(2.5**2 - np.sin(fsa.t) ** 2)
        np.testing.assert_allclose(fsa.trajectory["slide_slider"].ravel(), exact, atol=1e-8)
        by_length = 2.5 / np.sqrt(2.5**2 - np.sin(fsa.t) ** 2)
        np.testing.assert_allclose(fsa["slide_slider"].ravel(), by_length, atol=1e-8)


@pytest.mark.first(1)
@pytest.mark.parametrize("reference", ["center", "origin"])
@pytest.mark.parametrize(
    "case", ["elastic", "latch", *(pytest.param(case, marks=pytest.mark.campaign) for case in ("smooth", "newton"))]
)
def test_the_five_bar_in_joint_coordinates_has_the_gradients_of_the_reference(case, reference):
    exact = five_bar.reference(case)
    for formulation in (Index1(omega=10.0, reference=reference), Index2(reference=reference)):
        system = five_bar.system(case, formulation, "joint")
        assert_gradients(system, exact, OPTIONS, times=1e-9, rtol=1e-7)


@pytest.mark.first(1)
@pytest.mark.parametrize("form", [*FORMS.values(), Penalty(1e8)], ids=[*FORMS, "penalty"])
def test_every_formulation_takes_joint_coordinates(form):
    exact = five_bar.reference("latch").gradients["z"]
    asa = dh.adjoint_gradient(five_bar.system("latch", form, "joint"), five_bar.t_span, "z", **OPTIONS)
    np.testing.assert_allclose(asa.gradient, exact, rtol=1e-4 if isinstance(form, Penalty) else 1e-7)


def test_bodies_and_free_points_may_be_combined():
    # a bob on a massless rope from the tip of an arm: the same as a second body with a point mass
    def stated(natural):
        mech = Mechanism("arm and bob")
        arm = mech.body("arm", Revolute(mech.ground(0, 0)), mass=1.0, center=(0.5, 0), inertia=0.1)
        tip = arm.point(1.0)
        if natural:
            bob = mech.point("b")
            mech.point_mass(bob, 0.7)
            mech.bar(tip, bob, length=0.8)
            given = {bob.x: 1.8, bob.y: 0.0}
        else:
            link = mech.body("link", Revolute(tip), mass=0.7, center=(0.8, 0))
            bob, given = link.point(0.8), {link.coordinate: 0.0}
        mech.gravity(9.81)
        mech.initial(mech.mode("swing"), {arm.coordinate: 0.0} | given)
        mech.functional("G", terminal=ca.vertcat(bob.x, bob.y, bob.vx))
        return dh.simulate(mech.build(), (0, 1.5), **OPTIONS).functionals["G"]

    np.testing.assert_allclose(stated(natural=True), stated(natural=False), atol=1e-8)


def shaken(held, *, natural):
    """A body of any shape below a pivot that moves at 0.6 m/s, held at either end or by a rod; its lower end."""
    length, along, across = 0.8, 0.3, -0.25
    shape = {"mass": 1.4, "inertia": 0.11}
    mech = Mechanism("shaken")
    at = mech.ground(0.2 * ca.sin(3 * mech.time), 0.1 * mech.time**2)
    positions, velocities, guess = {}, {}, {}
    if held == "by a rod":
        rod = mech.body("rod", Revolute(at), mass=0.5, center=(0.2, 0), inertia=0.01)
        positions[rod.coordinate], velocities[rod.velocity], at = -np.pi / 2, 0.0, rod.point(0.4)
    if natural:
        upper, lower = at, mech.point("lower")
        if held == "by a rod":
            upper = mech.point("upper")
            mech.pin(at, upper)
            guess |= {upper.x: 0.0, upper.y: -0.4}
        start, end = (lower, upper) if held == "at its end" else (upper, lower)
        mech.bar(start, end, length=length, center=(along, across), **shape)
        positions[lower.x], velocities[lower.vx] = 0.0, 0.7
        guess[lower.y] = -1.2 if held == "by a rod" else -0.8
    else:
        center = (length - along, -across) if held == "at its end" else (along, across)
        body = mech.body("body", Revolute(at), center=center, **shape)
        lower = body.point(length)
        positions[body.coordinate], velocities[body.velocity] = -np.pi / 2 * (held != "by a rod"), 0.1 / length
    mech.gravity(9.81)
    mech.initial(mech.mode("swing"), positions, velocities, guess=guess)
    mech.functional("G", terminal=ca.vertcat(lower.x, lower.y, lower.vx, lower.vy))
    return dh.simulate(mech.build(), (0, 1.2), **OPTIONS).functionals["G"]


@pytest.mark.parametrize("held", ["at its start", "at its end", "by a rod"])
def test_a_bar_with_its_centre_of_mass_beside_its_line_is_a_body(held):
    np.testing.assert_allclose(shaken(held, natural=True), shaken(held, natural=False), rtol=1e-7)


def test_a_tree_without_loops_is_an_ode():
    mech, bodies = tree([(0, True, (0, 0), (0, 0), (1, 0), (0.5, 0), 0.3)] * 3, 0.0)
    mech.initial("move", {body.coordinate: 0.1 for body in bodies})
    assert "ODE" in mech.build(Unconstrained()).describe()


def test_a_mechanism_of_bodies_can_be_pickled_and_drawn():
    mech = five_bar.mechanism("smooth", coordinates="joint")
    again = pickle.loads(pickle.dumps(mech))
    sol = dh.simulate(again.build(), (0, 1), **OPTIONS)
    three = next(link.end for link in again.links if link.end.name == "3")
    at = places(again, sol, [three], [0.0])
    np.testing.assert_allclose(at[0, 0], [1.5, -1.0], atol=1e-12)
    assert draw_mechanism(again, sol, 0.5) is not None


def test_a_long_chain_can_be_pickled():
    mech = Mechanism("chain")
    at = mech.ground(0, 0)
    for i in range(200):
        at = mech.body(f"b{i}", Revolute(at), mass=1.0, center=(0.5, 0), inertia=0.1).point(1.0)
    assert len(pickle.loads(pickle.dumps(mech)).bodies) == 200


# -- refusals ---------------------------------------------------------------------------------------------


def refused(match, action):
    with pytest.raises(dh.DaeHybridError, match=match):
        action()


def test_refusals():
    mech = Mechanism("bad")
    ground = mech.ground(0, 0)
    arm = mech.body("arm", Revolute(ground), mass=1.0)
    bob, elsewhere = mech.point("b"), Mechanism("other")
    stranger = elsewhere.body("arm", Revolute(elsewhere.ground(0, 0)))
    refused("declared twice", lambda: mech.body("arm", Revolute(ground)))
    refused("must be a Joint", lambda: mech.body("b", ground))
    refused("must be a Joint", lambda: mech.body("b", Joint(ground)))
    refused("must be at a Point", lambda: mech.body("b", Revolute((0, 0))))
    refused("belongs to no body", lambda: mech.body("b", Revolute(bob)))
    refused("belongs to no body", lambda: mech.body("b", Revolute(stranger.point(1.0))))
    refused("center of body 'c'", lambda: mech.body("c", Revolute(ground), center=(1, 2, 3)))
    refused("axis of a joint", lambda: mech.body("d", Prismatic(ground, axis=(1, 2, 3))))
    refused("axis of a joint has no length", lambda: mech.body("d", Prismatic(ground, axis=(0, 0))))
    refused("has a mass and ends on a body", lambda: mech.bar(arm.point(1.0), bob, length=1.0, mass=1.0))
    refused("not a free point", lambda: mech.point_mass(arm.point(1.0), 1.0))
    refused("reference must be", lambda: Index1(reference="tip"))
    refused("non-empty name", lambda: mech.body("", Revolute(ground)))
    assert list(mech.bodies) == ["arm"]
    assert list(mech.coordinates) == ["angle_arm", "xb", "yb"]


def test_a_body_without_inertia_is_refused_by_name():
    mech = Mechanism("light")
    mech.initial(mech.mode("m"), {mech.body("arm", Revolute(mech.ground(0, 0))).coordinate: 0.0})
    refused("motion of angle_arm has no inertia", mech.build)


@pytest.mark.parametrize("formulation", [Index1(), Index2(), Reduced()], ids=lambda f: type(f).__name__)
def test_a_loop_that_does_not_close_is_refused_by_name(formulation):
    mech = Mechanism("open")
    left = mech.body("left", Revolute(mech.ground(0, 0)), mass=1.0, center=(0.5, 0), inertia=0.1)
    middle = mech.body("middle", Revolute(left.point(1.0)), mass=1.0, center=(0.5, 0), inertia=0.1)
    right = mech.body("right", Revolute(mech.ground(5, 0)), mass=1.0, center=(0.5, 0), inertia=0.1)
    mech.pin(middle.point(1.0), right.point(1.0), name="loop")
    mech.initial(mech.mode("move"), {left.coordinate: 0.5}, guess={middle.coordinate: -0.2, right.coordinate: 3.0})
    refused("loop", lambda: dh.simulate(mech.build(formulation), (0, 1)))


@pytest.mark.parametrize("value", [0.5, "ab", (1.0, 2.0, 3.0)])
def test_points_and_axes_are_pairs(value):
    mech = Mechanism("m")
    ground = mech.ground(0, 0)
    with pytest.raises(dh.ModelError, match="pair"):
        mech.body("a", Revolute(ground), mass=1.0, center=value, inertia=1.0)
    with pytest.raises(dh.ModelError, match="pair"):
        mech.body("a", Revolute(ground, value), mass=1.0, inertia=1.0)
    with pytest.raises(dh.ModelError, match="pair"):
        mech.body("a", Prismatic(ground, axis=value), mass=1.0)


def test_negative_masses_and_pins_of_bodies_are_refused():
    mech = Mechanism("m")
    ground = mech.ground(0, 0)
    with pytest.raises(dh.ModelError, match="inertia of body 'a' must not be negative"):
        mech.body("a", Revolute(ground), mass=1.0, center=(0.5, 0), inertia=-0.1)
    body = mech.body("b", Revolute(ground), mass=1.0, inertia=0.1)
    with pytest.raises(dh.ModelError, match="two points"):
        mech.pin(body, ground)


def test_constraints_that_hold_and_leave_no_motion_are_redundant():
    mech = Mechanism("pinned twice")
    body = mech.body("a", Revolute(mech.ground(0, 0)), mass=1.0, center=(0.5, 0), inertia=0.1)
    mech.pin(body.point(1.0), mech.ground(1.0, 0.0))
    held = mech.mode("held")
    mech.initial(held, {body.coordinate: 0.0})
    with pytest.raises(dh.FormulationError, match="redundant"):
        mech.build(Index1())
