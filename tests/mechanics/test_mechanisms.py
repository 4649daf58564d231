"""Mechanisms: closed forms in every formulation, and refusals."""

from __future__ import annotations

import casadi as ca
import mechanisms
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad

import dae_hybrid as dh
from dae_hybrid.mechanics import (
    Continuous,
    Index1,
    Index2,
    Inelastic,
    Mechanism,
    Penalty,
    Reduced,
    Restitution,
    Unconstrained,
    VelocityJump,
    animate,
    constraint_residuals,
    draw_mechanism,
    places,
)
from dae_hybrid.mechanics.equations import EquationsOfMotion
from dae_hybrid.mechanics.kinematics import partition_function, quality_function
from dae_hybrid.problems import ball_on_rope, impact_oscillator, pendulum_with_stop, rimless_wheel

EXACT_FORMS = mechanisms.FORMS | {"index 1, stabilised": Index1(omega=5.0)}
FORMS = pytest.mark.parametrize("form", EXACT_FORMS.values(), ids=EXACT_FORMS.keys())
TIGHT = {"rtol": 1e-10, "atol": 1e-12}


def off(value, exact):
    """Largest error of the known components, relative to the largest component."""
    value, exact = np.asarray(value, dtype=float), np.asarray(exact, dtype=float)
    known = np.isfinite(exact)
    return np.abs(value[known] - exact[known]).max(initial=0.0) / max(np.abs(exact[known]).max(initial=0.0), 1e-3)


def mechanical(events):
    """Places of the events that are not choices of coordinates."""
    return [i for i, event in enumerate(events) if not event.transition.endswith(": coordinates")]


def pendulum(extra=None, *, start=None, velocities=None, project=False):
    """A bob on a rod; `extra` adds to the statement."""
    mech = Mechanism("pendulum")
    L = mech.parameter("L", 1.0)
    bob = mech.point("")
    mech.point_mass(bob, 2.0)
    mech.gravity(9.81)
    mech.constraint("rod", bob.x**2 + bob.y**2 - L**2)
    swing = mech.mode("swing")
    if extra is not None:
        extra(mech, bob, swing)
    x, y = start or (0.6 * L, -0.8 * L)
    speeds = None if velocities is None else dict(zip((bob.vx, bob.vy), velocities, strict=True))
    mech.initial(swing, {bob.x: x, bob.y: y}, speeds, project=project)
    mech.functional("G", terminal=bob.x)
    return mech


# -- worked problems in every formulation -------------------------------------------------------------------


@FORMS
@pytest.mark.parametrize("problem", [pendulum_with_stop, rimless_wheel], ids=lambda p: p.__name__.rpartition(".")[2])
def test_problems_in_every_formulation(problem, form):
    system, reference = problem.mechanism().build(form), problem.reference()
    fsa = dh.forward_sensitivity(system, problem.t_span, **TIGHT)
    seen = mechanical(fsa.events)
    assert off([fsa.events[i].time for i in seen], reference.event_times) < 1e-10
    assert off(fsa.event_time_sensitivity[seen], reference.event_time_sensitivity) < 1e-9
    for name, value in reference.values.items():
        asa = dh.adjoint_gradient(system, problem.t_span, name, **TIGHT)
        assert abs(fsa.functionals[name] - value) < 1e-9 * max(abs(value), 1)
        assert off(fsa.gradient[name], reference.gradients[name]) < 1e-9
        assert off(asa.gradient, reference.gradients[name]) < 1e-8


@pytest.mark.parametrize("problem", [pendulum_with_stop, rimless_wheel], ids=lambda p: p.__name__.rpartition(".")[2])
def test_the_penalty_form_of_problems_with_impacts(problem):
    """The impacts are the same; between them errors are of the size of 1/alpha."""
    system, reference = problem.mechanism().build(Penalty(alpha=1e8)), problem.reference()
    fsa = dh.forward_sensitivity(system, problem.t_span, **TIGHT)
    for name in reference.values:
        assert off(fsa.gradient[name], reference.gradients[name]) < 2e-7


@pytest.mark.parametrize("adapter", ["scipy", "casadi"])
def test_other_adapters_agree(adapter):
    for problem, name in ((pendulum_with_stop, "load"), (impact_oscillator, "work")):
        reference = problem.reference()
        options = {"rtol": 1e-9, "atol": 1e-11, "adapter": adapter}
        asa = dh.adjoint_gradient(problem.system(), problem.t_span, name, **options)
        assert off(asa.value, reference.values[name]) < 1e-6
        assert off(asa.gradient, reference.gradients[name]) < 1e-6


def rope():
    """`ball_on_rope` as a mechanism: a unilateral constraint that comes by an impact and goes when its force does."""
    mech, start = Mechanism("rope"), ball_on_rope.START
    g, L0 = mech.parameter("g", 9.81), mech.parameter("L0", 1.0)
    w, v0 = mech.parameter("w", 0.05), mech.parameter("v0", 1.0)
    ball = mech.point("")
    mech.point_mass(ball, 1.0)
    mech.gravity(g)
    flight, swing = mech.mode("flight"), mech.mode("swing")
    length = L0 - w * mech.time
    pull = swing.constraint("rope", (ball.x**2 + ball.y**2 - length**2) / 2)
    taut = mech.event(flight, swing, guard=ball.x**2 + ball.y**2 - length**2, direction="rising", name="taut")
    mech.event(swing, flight, guard=pull, direction="falling", name="slack")
    mech.initial(flight, {ball.x: start[0], ball.y: start[1]}, {ball.vx: v0, ball.vy: 0.0})
    mech.functional("G", integrand=ball.x**2 + 0.1 * pull**2)
    mech.functional("H", at_events={taut: mech.impulse("rope") ** 2})
    mech.functional("K", terminal=ball.x + 2 * ball.vy)
    return mech


@FORMS
def test_a_rheonomic_constraint_that_comes_and_goes(form):
    reference, system = ball_on_rope.reference(), rope().build(form)
    fsa = dh.forward_sensitivity(system, ball_on_rope.t_span, **TIGHT)
    seen = mechanical(fsa.events)
    assert off([fsa.events[i].time for i in seen], reference.event_times) < 1e-9
    for name, value in reference.values.items():
        assert off(fsa.functionals[name], value) < 1e-8
        assert off(fsa.gradient[name], reference.gradients[name]) < 1e-8
        asa = dh.adjoint_gradient(system, ball_on_rope.t_span, name, **TIGHT)
        assert off(asa.gradient, reference.gradients[name]) < 1e-7


# -- what statements mean -----------------------------------------------------------------------------------


@given(
    places=st.lists(st.floats(-2, 2), min_size=4, max_size=4),
    speeds=st.lists(st.floats(-2, 2), min_size=4, max_size=4),
    mass=st.floats(0.1, 10), center=st.floats(-1, 2), inertia=st.floats(0, 5),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_a_bar_has_the_kinetic_energy_of_a_rigid_body(places, speeds, mass, center, inertia):
    mech = Mechanism("bar")
    a, b = mech.point("a"), mech.point("b")
    r = np.array(places).reshape(2, 2)
    along = r[1] - r[0]
    length = np.linalg.norm(along)
    if length < 0.1:
        return
    mech.bar(a, b, length=length, mass=mass, center=center * length, inertia=inertia)
    mech.mode("free")
    mech.initial("free", {a.x: 0, a.y: 0, b.x: length, b.y: 0})
    v = np.array(speeds).reshape(2, 2)
    v[1] += along * ((v[0] - v[1]) @ along) / length**2  # rigid
    spin = (along[0] * (v[1] - v[0])[1] - along[1] * (v[1] - v[0])[0]) / length**2
    at_center = v[0] + center * (v[1] - v[0])
    expected = mass * at_center @ at_center / 2 + inertia * spin**2 / 2
    matrix = ca.evalf(EquationsOfMotion(mech).motion("free").mass)
    assert float(v.ravel() @ np.array(matrix) @ v.ravel()) / 2 == pytest.approx(expected, rel=1e-9, abs=1e-12)


@FORMS
def test_a_bar_on_a_moving_pivot(form):
    """theta'' (I + m c^2) = -m c (g sin(theta) + X'' cos(theta)), a compound pendulum whose pivot moves as X(t)."""
    mech = Mechanism("moving pivot")
    A, c = mech.parameter("A", 0.2), mech.parameter("c", 0.4)
    pivot = mech.ground(A * np.sin(3 * mech.time), 0.0, "pivot")
    tip = mech.point("")
    mech.bar(pivot, tip, length=1.0, mass=2.0, center=c, inertia=0.1)
    mech.gravity(9.81)
    mech.mode("swing")
    mech.initial("swing", {tip.x: 0.0, tip.y: -1.0}, {tip.vx: 0.0})
    mech.functional("place", terminal=ca.vertcat(tip.x, tip.y))

    m = dh.HybridModel("angle")
    A, c = m.parameter("A", 0.2), m.parameter("c", 0.4)
    theta, w = m.differential("theta"), m.differential("w")
    push = -9 * A * np.sin(3 * m.time)
    rate = -2.0 * c * (9.81 * np.sin(theta) + push * np.cos(theta)) / (0.1 + 2.0 * c**2)
    run = m.mode("run", ode={theta: w, w: rate})
    m.initial(run, {theta: 0.0, w: -3 * A})  # the tip is at rest in x
    m.functional("place", terminal=ca.vertcat(A * np.sin(3 * m.time) + np.sin(theta), -np.cos(theta)))
    one = dh.forward_sensitivity(mech.build(form), (0, 3), **TIGHT)
    other = dh.forward_sensitivity(m.build(), (0, 3), **TIGHT)
    assert off(one.functionals["place"], other.functionals["place"]) < 1e-9
    assert off(one.gradient["place"], other.gradient["place"]) < 1e-8


def test_springs_dampers_and_potentials_are_forces():
    """x'' = -k (x - 1) - c x' - 0.3, stated three ways."""
    found = []
    for way in ("spring", "potential", "force"):
        mech = Mechanism("spring")
        k, c = mech.parameter("k", 3.0), mech.parameter("c", 0.4)
        p, wall = mech.point(""), mech.ground(0.0, 0.0)
        mech.point_mass(p, 1.0)
        mech.constraint("rail", p.y)
        if way == "spring":
            mech.spring(wall, p, stiffness=k, natural_length=1.0, damping=c)
            mech.potential(0.3 * p.x)
        elif way == "potential":
            mech.potential(k * (p.x - 1.0) ** 2 / 2 + 0.3 * p.x)
            mech.force({p.x: -c * p.vx})
        else:
            mech.force({p.x: -k * (p.x - 1.0) - c * p.vx - 0.3})
        mech.mode("run")
        mech.initial("run", {p.x: 1.5, p.y: 0.0})
        mech.functional("G", integrand=p.ax**2)
        fsa = dh.forward_sensitivity(mech.build(), (0, 2), rtol=1e-10)
        found.append([fsa.functionals["G"], *fsa.gradient["G"]])
    np.testing.assert_allclose(found[1:], [found[0]] * 2, rtol=1e-8)


@FORMS
def test_stick_and_slip(form):
    """A block slides with friction and sticks where it stops: an event on a velocity, and a foothold as memory.

    It stops at t = v0 / (mu g) and x = v0^2 / (2 mu g).
    """
    mech = Mechanism("block")
    mu, v0 = mech.parameter("mu", 0.3), mech.parameter("v0", 2.0)
    block = mech.point("")
    mech.point_mass(block, 1.5)
    mech.gravity(9.81)
    normal = mech.constraint("table", block.y)
    other = mech.coordinate("s")  # goes on moving, so that there is a freedom left
    mech.inertia(other, 1.0)
    place = mech.memory("place", initial=0.0)
    slip, stick = mech.mode("slip"), mech.mode("stick")
    slip.force({block.x: mu * normal})  # -multiplier is the force of the table
    friction = stick.constraint("friction", block.x - place)
    stop = mech.event(slip, stick, guard=block.vx, direction="falling", memory={place: block.x}, name="stop")
    mech.initial(slip, {block.x: 0.0, block.y: 0.0, other: 0.0}, {block.vx: v0, block.vy: 0.0, "v_s": 1.0})
    mech.functional("x", terminal=block.x)
    mech.functional("held", integrand=friction**2, at_events={stop: mech.impulse("friction") ** 2})
    fsa = dh.forward_sensitivity(mech.build(form), (0, 2), **TIGHT)
    assert fsa.events[mechanical(fsa.events)[0]].time == pytest.approx(2 / (0.3 * 9.81), rel=1e-10)
    assert fsa.functionals["x"] == pytest.approx(4 / (2 * 0.3 * 9.81), rel=1e-10)
    np.testing.assert_allclose(fsa.gradient["x"], [-4 / (2 * 0.09 * 9.81), 2 / (0.3 * 9.81)], rtol=1e-9)
    assert abs(fsa.functionals["held"]) < 1e-15


@FORMS
def test_a_foothold_that_is_frozen_on_entry(form):
    """As above, with memory ``of=`` the place: what holds the block is where it stopped."""
    mech = Mechanism("block")
    v0 = mech.parameter("v0", 2.0)
    x, s = mech.coordinate("x"), mech.coordinate("s")
    mech.inertia([x, s], np.eye(2))
    place = mech.memory("place", of=x, initial=0.0)
    slip, stick = mech.mode("slip"), mech.mode("stick")
    slip.force({x: -1.0})
    stick.constraint("friction", x - place)
    mech.event(slip, stick, guard=mech.velocity(x), direction="falling", name="stop")
    away = mech.mode("away")
    away.force({x: -1.0})
    mech.event(stick, away, at=3.0, name="push")
    mech.initial(slip, {x: 0.0, s: 0.0}, {"v_x": v0, "v_s": 1.0})
    mech.functional("x", terminal=x)
    fsa = dh.forward_sensitivity(mech.build(form), (0, 4), **TIGHT)
    assert fsa.functionals["x"] == pytest.approx(2.0 - 0.5, rel=1e-9)  # v0^2 / 2, and one unit of time of pushing back
    np.testing.assert_allclose(fsa.gradient["x"], [2.0], rtol=1e-8)


def test_a_released_joint_lets_go():
    """The rod breaks at t = 1: from there on the bob falls freely."""

    def breaks(mech, bob, swing):
        free = mech.mode("free", without="rod")
        mech.event(swing, free, at=0.5, name="breaks")

    for form in (*EXACT_FORMS.values(), Penalty()):
        sol = dh.simulate(pendulum(breaks).build(form), (0, 1), **TIGHT)
        (event,) = (e for e in sol.events if e.transition == "breaks")
        at, end = sol(0.5), sol(1.0)
        assert end["vx"] == pytest.approx(at["vx"], abs=1e-12)
        assert end["y"] == pytest.approx(at["y"] + 0.5 * at["vy"] - 9.81 / 8, rel=1e-9)
        assert end["lambda_rod"] == 0
        assert event.time == 0.5


@FORMS
def test_further_states_may_drive_the_mechanism(form):
    """A motor of first order pushes the bob, u' = (5 - u) / tau; its work is the gain of energy."""
    found = {}

    def motor(mech, bob, swing):
        tau = mech.parameter("tau", 0.3)
        u = mech.state("u", lambda u: (5.0 - u) / tau)
        mech.force({bob.x: u})
        found["work"] = mech.state("work", u * bob.vx)

    mech = pendulum(motor)
    bob = mech.lookup("vx", "test").symbol, mech.lookup("vy", "test").symbol, mech.lookup("y", "test").symbol
    mech.functional("E", terminal=bob[0] ** 2 + bob[1] ** 2 + 2.0 * 9.81 * bob[2] - found["work"])
    sol = dh.simulate(mech.build(form), (0, 1), **TIGHT)
    assert sol.functionals["E"] == pytest.approx(-0.8 * 2.0 * 9.81, rel=1e-9)


def test_the_elastic_impact_is_explicit_about_its_impulses():
    system = pendulum_with_stop.system()
    sol = dh.simulate(system, pendulum_with_stop.t_span, **TIGHT)
    event, e, b = sol.events[0], 0.8, 0.35
    normal = np.array([np.cos(b), -np.sin(b)])
    before, after = (
        dict(zip(system.modes[0].variables.labels(), x, strict=True)) for x in (event.x_minus, event.x_plus)
    )
    v, v_plus = (np.array([side["vx"], side["vy"]]) for side in (before, after))
    assert normal @ v_plus == pytest.approx(-e * normal @ v, rel=1e-12)
    r = np.array([before["x"], before["y"]])
    change = 0.5 * (v_plus - v)
    impulse = event.unknowns["impulse_stop"] * normal - event.unknowns["impulse_rod"] * 2 * r
    np.testing.assert_allclose(change, impulse, atol=1e-12)


# -- independent coordinates --------------------------------------------------------------------------------


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_the_measure_of_a_choice_is_the_share_of_its_squared_determinant(seed):
    generator = np.random.default_rng(seed)
    m, n = 3, 5
    J = generator.standard_normal((m, n)) * 10.0 ** generator.uniform(-3, 3, (m, 1))  # units do not matter
    flat, quality = partition_function(m, n)(J)
    B = np.array(flat).reshape(n - m, n, order="F")
    assert np.all((B == 0) | (B == 1))
    assert np.all(B.sum(axis=1) == 1)
    assert np.all(B.sum(axis=0) <= 1)
    dependent = np.flatnonzero(B.sum(axis=0) == 0)
    share = np.linalg.det(J[:, dependent]) ** 2 / np.linalg.det(J @ J.T)
    assert float(quality) == pytest.approx(share, rel=1e-6)
    assert float(quality_function(m, n)(J, flat)) == pytest.approx(share, rel=1e-6)
    assert float(quality) > 0.01


def test_coordinates_are_chosen_anew_and_nothing_else_happens():
    """A pendulum that goes over the top: neither x nor y can describe all of it."""
    mech = Mechanism("loop")
    L, v0 = mech.parameter("L", 1.0), mech.parameter("v0", 8.0)
    bob = mech.point("")
    mech.point_mass(bob, 1.0)
    mech.gravity(9.81)
    mech.constraint("rod", bob.x**2 + bob.y**2 - L**2)
    mech.mode("loop")
    mech.initial("loop", {bob.x: 0.0, bob.y: -L}, {bob.vx: v0, bob.vy: 0.0})
    mech.functional("G", integrand=bob.x**2, terminal=bob.y)
    one = dh.forward_sensitivity(mech.build(Reduced()), (0, 3), **TIGHT)
    other = dh.forward_sensitivity(mech.build(Index2()), (0, 3), **TIGHT)
    assert len(one.events) >= 8
    assert {event.transition for event in one.events} == {"loop: coordinates"}
    assert off(one.functionals["G"], other.functionals["G"]) < 1e-9
    assert off(one.gradient["G"], other.gradient["G"]) < 1e-8
    asa = dh.adjoint_gradient(mech.build(Reduced()), (0, 3), "G", **TIGHT)
    assert off(asa.gradient, other.gradient["G"]) < 1e-8
    for event, side in zip(one.events, one.event_sensitivities, strict=True):
        names = list(one.trajectory.system.modes[0].differential.labels())
        place = [names.index("x"), names.index("y")]
        np.testing.assert_allclose(event.state_plus[place], event.state_minus[place], atol=1e-13)
        np.testing.assert_allclose(side.state_plus[place], side.state_minus[place], atol=1e-7)


def test_given_coordinates_stay():
    sol = dh.simulate(pendulum().build(Reduced(independent=["x"])), (0, 1), **TIGHT)
    assert not sol.events
    assert "B_swing" not in sol.names


# -- starts -------------------------------------------------------------------------------------------------


@FORMS
def test_a_start_off_the_constraints_is_refused_by_name_or_moved_onto_them(form):
    with pytest.raises(dh.ConsistencyError, match="constraint 'rod'"):
        dh.simulate(pendulum(start=(0.6, -0.7)).build(form), (0, 1))
    with pytest.raises(dh.ConsistencyError, match=r"velocity constraint 'rod'|initial value of 'vx'"):
        dh.simulate(pendulum(velocities=(1.0, 0.0)).build(form), (0, 1))
    moved = pendulum(start=(0.6, -0.7), velocities=(1.0, 0.0), project=True)
    fsa = dh.forward_sensitivity(moved.build(form), (0, 1), **TIGHT)
    at = fsa.trajectory(0.0)
    assert np.hypot(at["x"], at["y"]) == pytest.approx(1.0, rel=1e-12)
    assert abs(at["x"] * at["vx"] + at["y"] * at["vy"]) < 1e-12
    assert np.hypot(at["x"] - 0.6, at["y"] + 0.7) < 1.01 * (1 - np.hypot(0.6, 0.7))
    check = dh.check_gradient(moved.build(form), (0, 1), "G", rtol=1e-9)
    assert check.difference("forward", "finite_difference") < 1e-5


def test_a_start_that_agrees_only_at_these_parameters_has_no_derivative():
    with pytest.raises(dh.ConsistencyError, match="at these parameters, but not at others"):
        dh.forward_sensitivity(pendulum(start=(0.6, -0.8)).build(), (0, 1))


def test_what_is_not_given_follows():
    mech = Mechanism("half")
    L = mech.parameter("L", 1.0)
    bob = mech.point("")
    mech.point_mass(bob, 1.0)
    mech.constraint("rod", bob.x**2 + bob.y**2 - L**2)
    mech.mode("swing")
    mech.initial("swing", {bob.x: 0.6}, {bob.vx: 0.8}, guess={bob.y: -0.5})
    for form in EXACT_FORMS.values():
        fsa = dh.forward_sensitivity(mech.build(form), (0, 0.1), **TIGHT)
        at = fsa.trajectory(0.0)
        assert (at["y"], at["vy"]) == (pytest.approx(-0.8), pytest.approx(0.6))
        assert fsa["y"][0, 0] == pytest.approx(-1 / 0.8)  # dy/dL = L / y


# -- refusals -----------------------------------------------------------------------------------------------


def parallelogram():
    mech = Mechanism("parallelogram")
    A, B, C = (mech.ground(x, 0.0, n) for x, n in ((0.0, "A"), (1.0, "B"), (0.5, "C")))
    one, two, mid = (mech.point(n) for n in "123")
    for start, end, length in ((A, one, 1), (B, two, 1), (one, two, 1), (C, mid, 1), (one, mid, 0.5), (mid, two, 0.5)):
        mech.bar(start, end, length=length, mass=1.0)
    mech.mode("run")
    mech.initial("run", {one.x: 0, one.y: -1, two.x: 1, two.y: -1, mid.x: 0.5, mid.y: -1})
    return mech


def stretched():
    mech = Mechanism("stretched")
    A, B, one, two = mech.ground(0, 0, "A"), mech.ground(3, 0, "B"), mech.point("1"), mech.point("2")
    for start, end in ((A, one), (one, two), (two, B)):
        mech.bar(start, end, length=1.0, mass=1.0)
    mech.mode("run")
    mech.initial("run", {one.x: 1, one.y: 0, two.x: 2, two.y: 0})
    return mech


def massless():
    mech = pendulum()
    mech.coordinate("s")
    return mech


def late(what):
    """Something that the statement only shows when it is lowered."""
    return lambda: pendulum(what).model()


REFUSED = {
    "redundant": (lambda: pendulum(lambda m, b, s: m.constraint("twice", 2 * (b.x**2 + b.y**2 - 1))).model(),
                  dh.FormulationError, "rod, twice are redundant"),
    "inconsistent": (lambda: pendulum(lambda m, b, s: m.constraint("longer", b.x**2 + b.y**2 - 4)).model(),
                     dh.FormulationError, "rod, longer are inconsistent"),
    "redundant where it counts": (lambda: parallelogram().model(), dh.FormulationError, "1-2, 1-3, 3-2 are redundant"),
    "singular": (lambda: stretched().model(), dh.FormulationError, "a singular configuration: there, constraints A-1"),
    "no mass": (lambda: massless().model(), dh.FormulationError, "motion of s has no inertia"),
    "constraint on velocities": (late(lambda m, b, s: s.constraint("v", b.vx)), dh.ModelError, "uses vx"),
    "twice": (late(lambda m, b, s: s.constraint("rod", b.x)), dh.ModelError, "'rod' is declared twice"),
    "unknown joint": (late(lambda m, b, s: m.mode("free", without="hinge")), dh.ModelError, "hinge.*no constraint"),
    "no place for constraints": (lambda: pendulum().model(Unconstrained()), dh.ModelError, "no place for"),
    "not a formulation": (lambda: pendulum().model("index1"), dh.OptionError, "got 'index1'"),
    "negative penalty": (lambda: Penalty(alpha=-1), dh.OptionError, "alpha must be a positive"),
    "nan frequency": (lambda: Index1(omega=float("nan")), dh.OptionError, "omega must be a non-negative"),
    "one coordinate": (lambda: Reduced(independent="x"), dh.OptionError, "sequence"),
    "not a coordinate": (lambda: pendulum().model(Reduced(independent=["L"])), dh.ModelError, "not a coordinate"),
    "moved unseen": (lambda: pendulum(lambda m, b, s: m.event(s, s, guard=b.x, reset={b.x: -b.x})).model(Penalty()),
                     dh.ModelError, "Penalty.., where constraints hold up to 1 / alpha, cannot tell"),
    "velocity unseen": (lambda: pendulum(lambda m, b, s: m.event(s, s, guard=b.x, reset={b.vx: 0})).model(Penalty()),
                        dh.ModelError, "reset= gives vx a value, and Penalty"),
    "no normal": (late(lambda m, b, s: m.event(s, s, guard=b.x, impact=Restitution(1.0, m.time - 1))), dh.ModelError,
                  "no normal"),
    "no distance but velocities": (late(lambda m, b, s: m.event(s, s, guard=b.x - b.vx, impact=Restitution(1.0))),
                                   dh.ModelError, "distance of the impact.*uses vx"),
    "negative restitution": (lambda: Restitution(-0.5), dh.ModelError, "between 0 and 1, got -0.5"),
    "mass with a velocity": (late(lambda m, b, s: m.inertia(b.x, 1 + b.vx**2)), dh.ModelError, "mass uses vx"),
    "no distance": (late(lambda m, b, s: m.event(s, s, at=1.0, impact=Restitution(1.0))), dh.ModelError, "no guard"),
    "too many velocities": (late(lambda m, b, s: m.event(s, s, guard=b.x, impact=VelocityJump({b.vx: 0, b.vy: 0}))),
                            dh.ModelError, "gives 2 velocities; mode 'swing' has 1"),
    "product as velocity": (late(lambda m, b, s: m.event(s, s, guard=b.x, impact=VelocityJump({b.vx * b.vy: 0}))),
                            dh.ModelError, "which is no velocity"),
    "acceleration as velocity": (late(lambda m, b, s: m.event(s, s, guard=b.x, impact=VelocityJump({b.ax + 0: 0}))),
                                 dh.ModelError, "which is no velocity"),
    "acceleration added": (late(lambda m, b, s: m.event(s, s, guard=b.x, impact=VelocityJump({b.vx + b.ax: 0}))),
                           dh.ModelError, "Besides velocities, .* uses ax"),
    "jump that is no mapping": (late(lambda m, b, s: m.event(s, s, guard=b.x, impact=VelocityJump(b.vx))),
                                dh.ModelError, "must be a mapping"),
    "center in space": (late(lambda m, b, s: m.bar(b, m.point("c"), length=1, mass=1, center=(0, 0, 0))), dh.ModelError,
                        "has 3 entries, expected one distance or two"),
    "jump of nothing": (late(lambda m, b, s: m.event(s, s, guard=b.x, impact=VelocityJump({}))), dh.ModelError,
                        "gives no velocity"),
    "position as velocity": (late(lambda m, b, s: m.event(s, s, guard=b.x, impact=VelocityJump({b.x: 0}))),
                             dh.ModelError, "x, which is no velocity"),
    "not an impact": (late(lambda m, b, s: m.event(s, s, guard=b.x, impact=0.8)), dh.ModelError, "must be an Impact"),
    "impact at the end": (late(lambda m, b, s: m.event(s, None, guard=b.x, impact=Inelastic())), dh.ModelError,
                          "ends the run"),
    "impulse of nothing": (late(lambda m, b, s: m.impulse("hinge")), dh.ModelError, "no constraint 'hinge'"),
    "impulse of its own": (late(lambda m, b, s: m.impulse(m.event(s, s, guard=b.x))), dh.ModelError, "of its own"),
    "wrong position": (lambda: pendulum_with("vx"), dh.ModelError, "positions of initial.*vx"),
    "mass at the ground": (late(lambda m, b, s: m.point_mass(m.ground(0, 0), 1.0)), dh.ModelError, "not a free point"),
    "wrong size of a mass": (late(lambda m, b, s: m.inertia([b.x, b.y], np.eye(3))), dh.ModelError, r"shape \(3, 3\)"),
    "kinks": (late(lambda m, b, s: m.constraint("push", b.x - m.signal("f", [0, 1, 2], [0.6, 0.5, 0.9]))),
              dh.ModelError, "follows f, whose rate jumps"),
    "no drawing": (lambda: draw_mechanism(pendulum(), dh.simulate(pendulum().build(), (0, 1))), dh.OptionError,
                   "no bars or springs"),
    "no film": (lambda: animate(pendulum(), dh.simulate(pendulum().build(), (0, 1))), dh.OptionError,
                "nothing to draw"),
}  # fmt: skip


def pendulum_with(name):
    mech = Mechanism("m")
    bob = mech.point("")
    mech.point_mass(bob, 1.0)
    mech.mode("run")
    mech.initial("run", {name: 1.0, bob.y: 0.0})


@pytest.mark.parametrize("what", REFUSED)
def test_refusals_name_what_is_wrong(what):
    do, error, text = REFUSED[what]
    with pytest.raises(error, match=text):
        do()


@pytest.mark.parametrize("missing", ["coordinates", "modes", "start"])
def test_an_incomplete_mechanism_is_refused(missing):
    mech = Mechanism("empty")
    if missing != "coordinates":
        mech.coordinate("x")
    if missing == "start":
        mech.mode("run")
    with pytest.raises(dh.ModelError, match=f"has no {missing}"):
        mech.model()


def closing(offset):
    """A block on a rail that is caught at x = 1 by a constraint that holds `offset` away from there."""
    mech = Mechanism("catch")
    v0 = mech.parameter("v0", 1.0)
    x, s = mech.coordinate("x"), mech.coordinate("s")
    mech.inertia([x, s], np.eye(2))
    free, held = mech.mode("free"), mech.mode("held")
    held.constraint("catch", x - 1.0 - offset)
    mech.event(free, held, guard=x - 1.0, direction="rising", name="catch")
    mech.initial(free, {x: 0.0, s: 0.0}, {"v_x": v0, "v_s": 1.0})
    mech.functional("G", terminal=x)
    return mech


@FORMS
def test_a_new_constraint_that_does_not_hold_at_the_event_is_refused(form):
    sol = dh.simulate(closing(0.0).build(form), (0, 2), **TIGHT)
    assert sol.functionals["G"] == pytest.approx(1.0, abs=1e-12)
    with pytest.raises(dh.ConsistencyError, match="constraint 'catch'") as caught:
        dh.simulate(closing(1e-3).build(form), (0, 2), **TIGHT)
    assert caught.value.transition == "catch"
    assert caught.value.time == pytest.approx(1.0)
    assert caught.value.trajectory is not None


def test_a_continuous_velocity_with_further_constraints_needs_the_penalty_form():
    """Corner, Sandu and Sandu (2019), section 6: the penalty form is pulled towards what it gains."""
    mech = Mechanism("pulled")
    x, s = mech.coordinate("x"), mech.coordinate("s")
    mech.inertia([x, s], np.eye(2))
    free, held = mech.mode("free"), mech.mode("held")
    held.constraint("catch", x - 1.0)
    mech.event(free, held, guard=x - 0.9, direction="rising", impact=Continuous(), name="catch")
    mech.initial(free, {x: 0.0, s: 0.0}, {"v_x": 1.0, "v_s": 1.0})
    mech.functional("G", terminal=x)
    sol = dh.simulate(mech.build(Penalty(alpha=1e6, omega=20.0)), (0, 3), **TIGHT)
    assert sol.functionals["G"] == pytest.approx(1.0, abs=1e-6)
    for form in EXACT_FORMS.values():
        with pytest.raises(dh.ModelError, match="Velocities cannot be continuous"):
            mech.model(form)


def test_an_impact_without_normal_velocity_has_no_derivative():
    """x = cos(t) touches the stop at -1: at these parameters there is no impact, next to them there is one."""
    mech = Mechanism("touch")
    d = mech.parameter("d", 1.0)
    x = mech.coordinate("x")
    mech.inertia(x, 1.0)
    mech.force({x: -x})
    mech.mode("run")
    mech.event("run", "run", guard=x + d, direction="falling", impact=Restitution(0.5), name="stop")
    mech.initial("run", {x: 1.0})
    mech.functional("G", terminal=x)
    system = mech.build()
    with pytest.raises(dh.GrazingError) as caught:
        dh.forward_sensitivity(system, (0, 5), rtol=1e-9, atol=1e-11)
    assert caught.value.transition == "stop"
    for d, count in ((0.99, 1), (1.01, 0)):
        assert len(dh.simulate(system, (0, 5), parameters={"d": d}, rtol=1e-9).events) == count


def test_a_singular_configuration_on_the_way_is_refused():
    """A slider-crank of equal bars: at 90 degrees the slider may go either way."""
    mech = Mechanism("crank")
    A, tip = mech.ground(0.0, 0.0, "A"), mech.point("1")
    s = mech.coordinate("s")
    mech.inertia(s, 1.0)
    mech.bar(A, tip, length=1.0, mass=1.0)
    mech.constraint("rod", (tip.x - s) ** 2 + tip.y**2 - 1.0)
    mech.mode("run")
    mech.initial("run", {tip.x: np.cos(1.0), tip.y: np.sin(1.0), s: 2 * np.cos(1.0)}, {tip.vx: -np.sin(1.0)})
    inertia = lambda angle: np.sqrt(1 / 3 + 4 * np.sin(angle) ** 2)  # of the crank and of the slider at -2 sin(angle)
    expected = quad(inertia, 1.0, np.pi / 2)[0] / inertia(1.0)
    for form in EXACT_FORMS.values():
        with pytest.raises(dh.ConsistencyError, match="singular configuration: constraints A-1, rod") as caught:
            dh.simulate(mech.build(form), (0, 2), **TIGHT)
        assert caught.value.time == pytest.approx(expected, abs=2e-3)
        assert caught.value.trajectory is not None


@pytest.mark.first(1, 5, 3)
@FORMS
def test_a_mass_matrix_that_depends_on_the_coordinates(form):
    """A double pendulum in angles, M(q) q'' = F(q, q'), and in natural coordinates, with an impact of its tip."""
    minimal = Mechanism("angles")
    L, e = minimal.parameter("L", 0.8), minimal.parameter("e", 0.7)
    one, two = minimal.coordinate("one"), minimal.coordinate("two")
    w1, w2 = minimal.velocity(one), minimal.velocity(two)
    m1, m2, l1, g = 1.0, 0.6, 1.0, 9.81
    cosine, sine = np.cos(one - two), np.sin(one - two)
    coupling = m2 * l1 * L
    minimal.inertia([one, two], ca.blockcat([[(m1 + m2) * l1**2, coupling * cosine], [coupling * cosine, m2 * L**2]]))
    minimal.force({one: -coupling * sine * w2**2 - (m1 + m2) * g * l1 * np.sin(one),
                   two: coupling * sine * w1**2 - m2 * g * L * np.sin(two)})  # fmt: skip
    minimal.mode("run")
    wall = l1 * np.sin(one) + L * np.sin(two)
    minimal.event("run", "run", guard=wall, direction="falling", impact=Restitution(e), name="hit")
    minimal.initial("run", {one: 0.5, two: 0.9})
    minimal.functional("end", terminal=ca.vertcat(wall, -l1 * np.cos(one) - L * np.cos(two)))

    natural = Mechanism("points")
    L, e = natural.parameter("L", 0.8), natural.parameter("e", 0.7)
    pivot, a, b = natural.ground(0, 0, "O"), natural.point("1"), natural.point("2")
    natural.point_mass(a, m1)
    natural.point_mass(b, m2)
    natural.gravity(g)
    natural.bar(pivot, a, length=l1)
    natural.bar(a, b, length=L)
    natural.mode("run")
    natural.event("run", "run", guard=b.x, direction="falling", impact=Restitution(e), name="hit")
    place = np.array([np.sin(0.5), -np.cos(0.5)])
    natural.initial("run", {a.x: place[0], a.y: place[1], b.x: place[0] + L * np.sin(0.9),
                            b.y: place[1] - L * np.cos(0.9)})  # fmt: skip
    natural.functional("end", terminal=ca.vertcat(b.x, b.y))
    expected = dh.forward_sensitivity(minimal.build(), (0, 2), **TIGHT)
    found = dh.forward_sensitivity(natural.build(form), (0, 2), **TIGHT)
    assert len(expected.events) == len(mechanical(found.events)) >= 2
    assert off(found.functionals["end"], expected.functionals["end"]) < 1e-8
    assert off(found.gradient["end"], expected.gradient["end"]) < 1e-8
    asa = dh.adjoint_gradient(natural.build(form), (0, 2), "end", **TIGHT)
    assert off(asa.gradient, expected.gradient["end"]) < 1e-7
    if isinstance(form, Reduced):
        check = dh.check_gradient(minimal.build(), (0, 2), "end", rtol=1e-10, atol=1e-12)
        assert check.difference("forward", "finite_difference") < 1e-4


# -- degenerate motions -------------------------------------------------------------------------------------


def hill(v0):
    """A bead slides off a cylinder and might land on it again: its distance has a triple zero where it lifts off."""
    mech = Mechanism("hill")
    V = mech.parameter("V", v0)
    bead = mech.point("")
    mech.point_mass(bead, 1.0)
    mech.gravity(9.81)
    on, fly = mech.mode("on"), mech.mode("fly")
    distance = bead.x**2 + bead.y**2 - 1
    normal = on.constraint("hill", -distance)
    mech.event(on, fly, guard=normal, direction="falling", name="lift")
    mech.event(fly, on, guard=distance, direction="falling", name="land")
    mech.initial(on, {bead.x: 0.0, bead.y: 1.0}, {bead.vx: V, bead.vy: 0.0})
    mech.functional("x", terminal=bead.x)
    return mech


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
@pytest.mark.parametrize("method", ["bdf", "adams"])
def test_what_lifts_off_does_not_land_at_once(method, native):
    """It leaves where cos(a) = (2 + v0^2 / g) / 3; then it is in free flight."""
    for form in (Index2(), Reduced()):
        system = hill(1.0).build(form, native=native)
        for v0 in (0.3, 0.6, 1.0, 1.5, 2.0):
            sol = dh.simulate(system, (0, 1.5), parameters={"V": v0}, rtol=1e-8, atol=1e-10, method=method)
            (lift,) = (e for e in sol.events if e.transition != "on: coordinates")
            cosine = (2 + v0**2 / 9.81) / 3
            speed, sine = np.sqrt(9.81 * cosine), np.sqrt(1 - cosine**2)
            assert lift.transition == "lift"
            assert sol.functionals["x"] == pytest.approx(sine + speed * cosine * (1.5 - lift.time), rel=1e-5)


def test_a_choice_of_coordinates_does_not_freeze_memory():
    mech = Mechanism("p")
    k = mech.parameter("k", 3.0)
    bob = mech.point("")
    mech.point_mass(bob, 1.0)
    mech.gravity(9.81)
    mech.constraint("rod", bob.x**2 + bob.y**2 - 1)
    x0 = mech.memory("x0", of=bob.x, initial=0.6)
    mech.force({bob.x: -k * (bob.x - x0)})
    mech.mode("s")
    mech.initial("s", {bob.x: 0.6, bob.y: -0.8}, {bob.vx: 6.4, bob.vy: 4.8})
    mech.functional("X", terminal=bob.x)
    one, other = (dh.forward_sensitivity(mech.build(form), (0, 2), **TIGHT) for form in (Index2(), Reduced()))
    assert len(other.events) > 2
    assert off(other.functionals["X"], one.functionals["X"]) < 1e-8
    assert off(other.gradient["X"], one.gradient["X"]) < 1e-7


@pytest.mark.parametrize("rtol", [1e-4, 1e-6, 1e-8])
def test_given_coordinates_that_fail_on_the_way_are_refused(rtol):
    system = pendulum(start=(0.0, -1.0), velocities=(8.0, 0.0)).build(Reduced(independent=("x",)))
    with pytest.raises(dh.ConsistencyError, match="independent coordinates do not determine"):
        dh.simulate(system, (0, 0.5), rtol=rtol)


@FORMS
def test_projection_is_to_the_nearest_point_whatever_the_parameters(form):
    mech = Mechanism("ellipse")
    angle = mech.parameter("angle", 0.2)
    bob = mech.point("")
    mech.point_mass(bob, 1.0)
    mech.constraint("ellipse", bob.x**2 / 4 + bob.y**2 - 1)
    mech.mode("s")
    mech.initial(
        "s", {bob.x: 2.5 * np.sin(angle), bob.y: -1.4 * np.cos(angle)}, {bob.vx: 1.0, bob.vy: 0.0}, project=True
    )
    mech.functional("G", terminal=bob.x)
    system = mech.build(form)
    for value in (0.2, 1.0, 1.4, 2.0):
        fsa = dh.forward_sensitivity(system, (0, 0.1), parameters={"angle": value}, **TIGHT)
        at = fsa.trajectory(0.0)
        where, given_at = np.array([at["x"], at["y"]]), np.array([2.5 * np.sin(value), -1.4 * np.cos(value)])
        along = np.linspace(0, 2 * np.pi, 200_001)
        distances = np.hypot(2 * np.cos(along) - given_at[0], np.sin(along) - given_at[1])
        assert np.linalg.norm(where - given_at) == pytest.approx(distances.min(), rel=1e-7)
        moved = [
            dh.simulate(system, (0, 0.1), parameters={"angle": value + h}, **TIGHT)(0.0)["x"] for h in (1e-5, -1e-5)
        ]
        assert fsa["x"][0, 0] == pytest.approx((moved[0] - moved[1]) / 2e-5, rel=1e-5)


def test_gravity_of_a_mode_acts_in_that_mode():
    mech = Mechanism("fall")
    bob = mech.point("")
    mech.point_mass(bob, 1.0)
    mech.mode("weightless")
    fall = mech.mode("fall")
    fall.gravity(10.0)
    mech.event("weightless", fall, at=1.0)
    mech.initial("weightless", {bob.x: 0.0, bob.y: 0.0})
    sol = dh.simulate(mech.build(), (0, 2), **TIGHT)
    assert sol(2.0)["y"] == pytest.approx(-5.0)


def four_bar(guess):
    mech = Mechanism("four-bar")
    S = mech.parameter("S", 1.0)
    A, B, p, q = mech.ground(0, 0, "A"), mech.ground(2 * S, 0, "B"), mech.point("p"), mech.point("q")
    for start, end, length in ((A, p, 1.0), (p, q, 2.0), (B, q, 1.5)):
        mech.bar(start, end, length=length * S, mass=1.0)
    mech.mode("run")
    mech.initial("run", {p.x: 0.0, p.y: S}, guess={q.x: guess[0] * (S if guess[2] else 1), q.y: guess[1]})
    mech.functional("tip", terminal=q.y / S)
    return mech.build()


def test_neither_scale_nor_units_make_a_configuration_singular_and_a_guess_may_follow():
    system = four_bar((1.9, 1.2, True))
    for S in (0.02, 0.1, 1.0):
        assert dh.simulate(system, (0, 0.1), parameters={"S": S}).functionals["tip"] > 0


def test_a_leg_whose_foot_moves_in_memory():
    mech = Mechanism("leg")
    L = mech.parameter("L", 1.0)
    hub = mech.point("")
    mech.point_mass(hub, 1.0)
    mech.gravity(9.81)
    fx = mech.memory("fx", initial=0.0)
    mech.constraint("leg", (hub.x - fx) ** 2 + hub.y**2 - L**2)
    mech.mode("s")
    mech.event("s", "s", guard=hub.x - fx - 0.3, direction="rising", memory={fx: 2 * hub.x - fx}, name="step")
    mech.initial("s", {hub.x: -0.3}, {hub.vx: 1.5}, guess={hub.y: 0.9})
    mech.functional("x", terminal=hub.x)
    found = [dh.forward_sensitivity(mech.build(form), (0, 1), **TIGHT) for form in EXACT_FORMS.values()]
    for fsa in found:
        assert len(mechanical(fsa.events)) == len(mechanical(found[0].events)) >= 1
        assert off(fsa.gradient["x"], found[0].gradient["x"]) < 1e-7


def test_a_mode_at_rest_has_no_freedom():
    """A mass that drops on a floor and stays there, until the floor lets go."""
    mech = Mechanism("drop")
    g = mech.parameter("g", 10.0)
    y = mech.coordinate("y")
    mech.inertia(y, 2.0)
    mech.force({y: -2.0 * g})
    fall, rest = mech.mode("fall"), mech.mode("rest")
    push = rest.constraint("floor", y)
    mech.event(fall, rest, guard=y, direction="falling", name="land")
    mech.event(rest, mech.mode("below"), at=0.8, name="open")
    mech.initial(fall, {y: 0.5})
    mech.functional("N", integrand=-push)
    mech.functional("y", terminal=y)
    for form in (Index1(), Index2(), Index2(positions=False), Reduced()):
        system, t = mech.build(form), np.sqrt(0.1)
        fsa = dh.forward_sensitivity(system, (0, 1), **TIGHT)
        assert fsa.functionals["N"] == pytest.approx(20.0 * (0.8 - t), rel=1e-9)
        assert fsa.gradient["N"][0] == pytest.approx(2.0 * (0.8 - t) + 20.0 * t / 20.0, rel=1e-9)
        assert fsa.gradient["y"][0] == pytest.approx(-0.02, rel=1e-8)
        np.testing.assert_allclose(dh.adjoint_gradient(system, (0, 1), "y", **TIGHT).gradient, [-0.02], rtol=1e-8)


def test_a_caught_crank_waits_in_reduced_coordinates():
    """It is caught by an impact on a floor that rises, is carried by it, and falls off: q follows the floor."""
    mech = Mechanism("crank")
    u, J = mech.parameter("u", 0.3), mech.parameter("J", 2.0)
    angle = mech.coordinate("angle")
    mech.inertia(angle, J)
    mech.force({angle: -1.0})
    swing, caught = mech.mode("swing"), mech.mode("caught")
    floor = u * (mech.time - 1) - 1
    push = caught.constraint("floor", angle - floor)
    hit = mech.event(swing, caught, guard=angle - floor, direction="falling", name="hit")
    mech.event(caught, mech.mode("gone"), at=2.5, name="off")
    mech.initial(swing, {angle: 0.0})
    mech.functional("speed", at_events={hit: mech.velocity(angle) ** 2})
    mech.functional("end", terminal=angle)
    mech.functional("push", integrand=push)
    found = [dh.forward_sensitivity(mech.build(form), (0, 3), **TIGHT) for form in (Reduced(), Index1(), Index2())]
    for fsa in found:
        assert [e.transition for e in fsa.events if not e.transition.startswith("swing")] == ["hit", "off"]
        assert fsa.functionals["end"] == pytest.approx(0.3 * 2 - 1 - 0.25 / 4, rel=1e-8)
        np.testing.assert_allclose(fsa.gradient["end"], [2.0, 0.25 / 8], rtol=1e-6)
        for name in ("speed", "push"):
            assert off(fsa.gradient[name], found[1].gradient[name]) < 1e-6
    asa = dh.adjoint_gradient(mech.build(Reduced()), (0, 3), "push", **TIGHT)
    assert off(asa.gradient, found[1].gradient["push"]) < 1e-6


def test_inputs_in_masses_and_constraints_and_pictures_of_feet():
    mech = Mechanism("inputs")
    u = mech.signal("u", [0.0, 1.0, 2.0, 3.0], [1.0, 2.0, 3.0, 2.0], kind="cubic")
    x, s = mech.coordinate("x"), mech.coordinate("s")
    mech.inertia(x, u)
    mech.inertia(s, 1.0)
    mech.constraint("slot", u * (x - s))
    mech.mode("run")
    mech.initial("run", {x: 0.0, s: 0.0}, {"v_x": 1.0, "v_s": 1.0})
    sol = dh.simulate(mech.build(), (0, 2))
    assert max(r.max() for r in constraint_residuals(mech, sol)) < 1e-9

    walker = Mechanism("walker")
    fx = walker.memory("fx", initial=0.0)
    hub, foot = walker.point("h"), walker.ground(fx, 0.0, "foot")
    walker.bar(foot, hub, length=1.0, mass=0.0)
    walker.point_mass(hub, 1.0)
    walker.mode("s")
    walker.event("s", "s", at=0.2, memory={fx: 2 * hub.x - fx})
    walker.initial("s", {hub.x: -0.3}, {hub.vx: 1.0}, guess={hub.y: 1.0})
    run = dh.simulate(walker.build(), (0, 0.4))
    at = places(walker, run, [foot, hub], [0.1, 0.3])
    assert at[0, 0, 0] == 0.0 != at[1, 0, 0]
    np.testing.assert_allclose(np.linalg.norm(at[:, 1] - at[:, 0], axis=1), 1.0, rtol=1e-9)
    assert animate(walker, run).frames > 2


def test_a_spring_of_no_length_pulls_along_nothing():
    mech = Mechanism("spring")
    p = mech.point("")
    mech.point_mass(p, 1.0)
    mech.spring(mech.ground(0, 0), p, stiffness=4.0)
    mech.mode("run")
    mech.initial("run", {p.x: 0.0, p.y: 0.0}, {p.vx: 1.0, p.vy: 0.0})
    assert dh.simulate(mech.build(), (0, 1), **TIGHT)(1.0)["x"] == pytest.approx(np.sin(2.0) / 2, rel=1e-9)


@FORMS
def test_a_jump_of_a_velocity_that_is_not_independent_is_refused(form):
    """At the lowest point of a pendulum vy is zero, whatever vx is."""

    def jump(mech, bob, swing):
        mech.event(swing, swing, guard=bob.x, direction="falling", impact=VelocityJump({bob.vy: -bob.vy}), name="jump")

    with pytest.raises(dh.ConsistencyError, match="impulse_jump") as caught:
        dh.simulate(pendulum(jump).build(form), (0, 1), **TIGHT)
    assert caught.value.transition == "jump"


def test_coordinates_are_chosen_where_the_run_starts():
    """At the nominal start x is a coordinate, at a quarter turn it is none."""
    mech = Mechanism("turned")
    a = mech.parameter("a", 0.0)
    bob = mech.point("")
    mech.point_mass(bob, 1.0)
    mech.gravity(9.81)
    mech.constraint("rod", bob.x**2 + bob.y**2 - 1)
    mech.mode("swing")
    mech.initial("swing", {bob.x: np.sin(a), bob.y: -np.cos(a)}, {bob.vx: np.cos(a), bob.vy: np.sin(a)})
    mech.functional("y", terminal=bob.y)
    one, other = mech.build(Index2()), mech.build(Reduced())
    for value in (0.0, 1.5, np.pi / 2, 2.5, -np.pi / 2):
        found, expected = (
            dh.forward_sensitivity(system, (0, 0.5), parameters={"a": value}, **TIGHT) for system in (other, one)
        )
        assert off(found.functionals["y"], expected.functionals["y"]) < 1e-9
        assert off(found.gradient["y"], expected.gradient["y"]) < 1e-8


@pytest.mark.first(1, 5, 3)
@FORMS
def test_an_event_with_a_condition(form):
    """A pendulum that hits a wall, which is taken away after two impacts; the cost counts one mode only."""
    mech = Mechanism("pendulum")
    length, e = mech.parameter("L", 1.0), mech.parameter("e", 0.8)
    bob, hits = mech.point(""), mech.memory("hits", initial=0.0)
    mech.point_mass(bob, 2.0)
    mech.gravity(9.81)
    mech.constraint("rod", bob.x**2 + bob.y**2 - length**2)
    swing = mech.mode("swing")
    mech.event(
        swing, swing, guard=bob.x, direction="falling", impact=Restitution(e), when=hits < 2, memory={hits: hits + 1},
        name="hit",
    )  # fmt: skip
    mech.initial(swing, {bob.x: 0.6 * length, bob.y: -0.8 * length})
    mech.functional("G", integrand=bob.x**2 * mech.active("swing"))
    system = mech.model(form).build(native=False)
    sol = dh.simulate(system, (0, 3), rtol=1e-9, atol=1e-11)
    assert [event.transition for event in sol.events][:3] == ["hit", "hit", "hit not taken"]
    found = dh.check_gradient(system, (0, 3), "G", rtol=1e-9, atol=1e-11)
    assert found.difference("adjoint", "forward") < 1e-6
    assert found.difference("finite_difference", "forward") < 1e-4
