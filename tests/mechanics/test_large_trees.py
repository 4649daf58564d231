"""Large trees of bodies, whose motion has variables of its own: the same results as with equations written out."""

from __future__ import annotations

import pickle
from unittest import mock

import casadi as ca
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mechanisms import assert_gradients
from trees import joints, lagrange, tree

import dae_hybrid as dh
from dae_hybrid.mechanics import (
    ALI3P,
    Index1,
    Index2,
    Mechanism,
    Penalty,
    Prismatic,
    Reduced,
    Restitution,
    Revolute,
    bodies,
    places,
)
from dae_hybrid.mechanics.equations import EquationsOfMotion
from dae_hybrid.problems import five_bar

OPTIONS = {"rtol": 1e-9, "atol": 1e-10}
STEPS = {"adapter": "ali3p", "fixed_step": 0.01}


def written_out(count):
    """Let the motion of this many bodies be expressions."""
    return mock.patch.object(bodies, "WRITTEN_OUT", count)


@given(
    st.lists(joints, min_size=1, max_size=5),
    st.sampled_from([0.0, 0.7]),
    st.sampled_from([0, 2]),
    st.sampled_from(["center", "origin"]),
)
@settings(max_examples=10, deadline=None)
def test_random_trees_have_lagranges_accelerations(stated, moving, count, reference):
    with written_out(count):
        mech, listed = tree(stated, moving)
    plain, same = tree(stated, moving)
    mech.initial("move", {b.coordinate: 0.3 for b in listed}, {mech.velocity(b.coordinate): -0.4 for b in listed})
    system = mech.build(dh.mechanics.Unconstrained(reference=reference), native=False)
    sol = dh.simulate(system, (0.2, 0.2 + 1e-9))
    mass, force = lagrange(plain, same)(0.2, 0.3, -0.4)
    exact = np.linalg.solve(np.asarray(mass), np.asarray(force)).ravel()
    names = [mech.acceleration(b.coordinate).name() for b in listed]
    found = np.array([float(np.ravel(sol[name])[0]) for name in names])
    np.testing.assert_allclose(found, exact, rtol=1e-7, atol=1e-8 * (1 + np.abs(exact).max()))


@pytest.mark.first(2)
@pytest.mark.parametrize(
    "case", ["elastic", *(pytest.param(case, marks=pytest.mark.campaign) for case in ("latch", "smooth", "newton"))]
)
@pytest.mark.parametrize(
    "form", [Index1(omega=10.0), Index2(reference="origin"), Reduced()], ids=["index 1", "index 2", "reduced"]
)
def test_the_five_bar_has_the_gradients_of_the_reference(case, form):
    exact = five_bar.reference(case)
    with written_out(1):
        system = five_bar.mechanism(case, coordinates="joint").build(form)
    assert_gradients(system, exact, OPTIONS, times=1e-7, rtol=1e-5, share=1e-6)


@pytest.mark.first(1)
@pytest.mark.parametrize("case", ["elastic", "latch", "smooth", "newton"])
def test_ali3p_takes_the_same_steps(case):
    results = []
    for count in (0, 8):
        with written_out(count):
            system = five_bar.mechanism(case, coordinates="joint").build(ALI3P())
        fsa = dh.forward_sensitivity(system, five_bar.t_span, **STEPS)
        results.append((fsa, dh.adjoint_gradient(system, five_bar.t_span, next(iter(fsa.gradient)), **STEPS)))
    (sparse, adjoint), (dense, _) = results
    np.testing.assert_allclose([e.time for e in sparse.events], [e.time for e in dense.events], rtol=0, atol=1e-10)
    for name, gradient in dense.gradient.items():
        np.testing.assert_allclose(sparse.functionals[name], dense.functionals[name], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(sparse.gradient[name], gradient, rtol=1e-7, atol=1e-8 * np.abs(gradient).max())
    name = next(iter(sparse.gradient))
    scale = np.abs(adjoint.gradient).max()
    np.testing.assert_allclose(np.ravel(adjoint.gradient), np.ravel(sparse.gradient[name]), rtol=0, atol=1e-9 * scale)


def chain(n, *, hit=False):
    """Bars and sliders that hang on one another, with springs and dampers in the joints."""
    mech = Mechanism("chain")
    length, e = mech.parameter("L", 0.4), mech.parameter("e", 0.5)
    at = mech.ground(0, 0)
    for i in range(n):
        joint = Prismatic(at, axis=(0.3, 1.0)) if i % 5 == 4 else Revolute(at)
        body = mech.body(f"b{i}", joint, mass=1.0, center=(length / 2, 0), inertia=0.02)
        mech.force({body.coordinate: -2.0 * mech.velocity(body.coordinate) - 3.0 * body.coordinate})
        at = body.point(length)
    mech.gravity(9.81)
    swing = mech.mode("swing")
    if hit:
        away = mech.mode("away")
        mech.event(swing, away, guard=at.y + 0.5, direction="falling", impact=Restitution(e), name="hit")
    mech.initial(swing, {b.coordinate: 0.05 for b in mech.bodies.values()})
    mech.functional("G", terminal=ca.vertcat(at.x, at.vy))
    mech.functional("energy", integrand=at.vx**2)
    return mech, at


@pytest.mark.first(1)
@pytest.mark.parametrize(("form", "adapter"), [(None, {}), (ALI3P(), STEPS)], ids=["BDF", "ALI3-P"])
def test_a_chain_that_hits_the_ground(form, adapter):
    results = []
    options = adapter or OPTIONS
    for count in (2, 8):
        with written_out(count):
            mech, _ = chain(5, hit=True)
        system = mech.build(form)
        fsa = dh.forward_sensitivity(system, (0, 0.6), **options)
        results.append(fsa)
        assert len(fsa.events) == 1
        asa = dh.adjoint_gradient(system, (0, 0.6), "energy", **options)
        np.testing.assert_allclose(asa.gradient, fsa.gradient["energy"], rtol=1e-6)
    sparse, dense = results
    np.testing.assert_allclose([e.time for e in sparse.events], [e.time for e in dense.events], rtol=0, atol=1e-8)
    for name, gradient in dense.gradient.items():
        np.testing.assert_allclose(sparse.gradient[name], gradient, rtol=1e-5, atol=1e-6)


def test_a_potential_acts_on_bodies_as_the_spring_does():
    def final(potential):
        with written_out(2):
            mech, at = chain(5)
        if potential:
            mech.potential(7.0 / 2 * ((at.x - 1.0) ** 2 + (at.y - 0.2) ** 2))
        else:
            mech.spring(at, mech.ground(1.0, 0.2), stiffness=7.0)
        return dh.simulate(mech.build(), (0, 0.7), **OPTIONS).functionals["G"]

    np.testing.assert_allclose(final(potential=True), final(potential=False), rtol=1e-8)


def test_positions_are_projected_onto_closed_loops():
    values = []
    for count in (0, 8):
        with written_out(count):
            mech = Mechanism("loop")
            at, speeds = mech.ground(0, 0), {}
            for i in range(3):
                body = mech.body(f"b{i}", Revolute(at), mass=1.0, center=(0.5, 0), inertia=0.1)
                speeds[mech.velocity(body.coordinate)] = 0.1
                at = body.point(1.0)
        mech.pin(at, mech.ground(1.9, 0.1))
        swing = mech.mode("swing")
        stated = dict(zip((b.coordinate for b in mech.bodies.values()), (1.0, -0.9, -0.9), strict=True))
        mech.initial(swing, stated, speeds, project=True)
        mech.functional("G", terminal=next(iter(mech.bodies.values())).coordinate)
        values.append(dh.adjoint_gradient(mech.build(Index1(omega=5.0)), (0, 0.5), "G", **OPTIONS).value)
    assert abs(values[0] - values[1]) < 1e-7


def test_penalties_and_poses_among_the_results():
    with written_out(2):
        system = five_bar.mechanism("latch", coordinates="joint").build(Penalty(1e8))
    exact = five_bar.reference("latch").gradients["z"]
    asa = dh.adjoint_gradient(system, five_bar.t_span, "z", **OPTIONS)
    np.testing.assert_allclose(asa.gradient, exact, rtol=1e-4)
    with written_out(2):
        mech, at = chain(4)
    again = pickle.loads(pickle.dumps(mech))
    sol = dh.simulate(again.build(), (0, 0.3), **OPTIONS)
    tip = next(link.end for link in again.links if link.end.name == at.name)
    x, y, angle = sol["pose_b3"][-1]
    np.testing.assert_allclose(
        places(again, sol, [tip], [0.3])[0, 0], [x + 0.4 * np.cos(angle), y + 0.4 * np.sin(angle)], atol=1e-9
    )


def test_the_size_of_the_equations_is_proportional_to_the_number_of_bodies():
    sizes = []
    for n in (20, 40, 80):
        mech, _ = chain(n)
        motion = EquationsOfMotion(mech).motions["swing"].sparse
        rows = ca.vertcat(*(row for _, row in motion.definitions), motion.saddle_point(-motion.gamma))
        symbols = ca.symvar(rows)
        rates = ca.jacobian(rows, ca.vertcat(*symbols))
        sizes.append((ca.Function("rates", symbols, [rates]).expand().n_instructions(), rates.nnz()))
    for one, other, last in zip(*sizes, strict=True):
        assert last - other < 2.2 * (other - one)


def test_a_projection_matrix_is_refused():
    mech, _ = chain(9)
    with pytest.raises(dh.ModelError, match="more than 8 bodies"):
        mech.build(ALI3P(projection=np.eye(9)))


def test_a_mass_that_depends_on_velocities_is_refused():
    with written_out(1):
        mech, at = chain(3)
        speed = mech.velocity(next(iter(mech.coordinates)))
        mech.body("heavy", Revolute(at), mass=1 + speed**2, inertia=0.1)
    mech.start = None
    mech.initial("swing", {b.coordinate: 0.0 for b in mech.bodies.values()})
    with pytest.raises(dh.ModelError, match="A mass uses"):
        mech.build()
