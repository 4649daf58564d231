"""The index-3 scheme with projections: closed forms of the discrete scheme, order, exact derivatives, events."""

from __future__ import annotations

from functools import cache

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.adapters.ali3p.compiled import CompiledSteps
from dae_hybrid.mechanics import (
    ALI3P,
    Index2,
    Inelastic,
    Mechanism,
    Prismatic,
    Restitution,
    Revolute,
    constraint_residuals,
)
from dae_hybrid.problems import five_bar, rimless_wheel

RULES = ("trapezoidal", "newmark", "generalized-alpha")


def run(system, t_end, h, **more):
    return dh.simulate(system, (0, t_end), adapter="ali3p", fixed_step=h, **more)


def oscillator(**more):
    mech = Mechanism("oscillator")
    w = mech.parameter("w", 3.0)
    x = mech.coordinate("x")
    mech.inertia(x, 1.0)
    mech.force({x: -(w**2) * x})
    mech.initial(mech.mode("free"), {x: 1.0})
    mech.functional("x", terminal=x)
    return mech.build(ALI3P(**more))


def pit():
    """A force that is not finite beyond x = 0."""
    mech = Mechanism("pit")
    x = mech.coordinate("x")
    mech.inertia(x, 1.0)
    mech.force({x: -1 / ca.sqrt(x)})
    mech.initial(mech.mode("m"), {x: 1.0})
    return mech.build(ALI3P())


@cache
def bars(case="smooth", coordinates="natural"):
    return five_bar.mechanism(case, coordinates=coordinates).build(ALI3P())


def test_the_trapezoidal_rule_turns_an_oscillator_by_its_closed_form():
    # tan(theta / 2) = w h / 2 per step, without damping
    system, h, steps = oscillator(), 0.05, 60
    fsa = dh.forward_sensitivity(system, (0, h * steps), adapter="ali3p", fixed_step=h)
    asa = dh.adjoint_gradient(system, (0, h * steps), "x", adapter="ali3p", fixed_step=h)
    theta = 2 * np.arctan(3.0 * h / 2)
    by_w = h / (1 + (3.0 * h / 2) ** 2)
    assert abs(fsa.functionals["x"] - np.cos(steps * theta)) < 1e-12
    for gradient in (fsa.gradient["x"], asa.gradient):
        assert abs(gradient[0] + steps * by_w * np.sin(steps * theta)) < 1e-11


def test_the_spectral_radius_damps_a_fast_mode():
    # for large w h the amplification has a triple eigenvalue of size rho: n^2 rho^n
    for rho in (0.9, 0.5):
        sol = run(oscillator(spectral_radius=rho), 60.0, 0.5, method="generalized-alpha", parameters={"w": 1e6})
        size = np.abs(sol["x"].ravel())
        assert abs((size[120] / size[60] / 4) ** (1 / 60) - rho) < 0.02 * rho


@pytest.mark.parametrize(("rule", "order"), [("trapezoidal", 2), ("newmark", 1), ("generalized-alpha", 2)])
def test_values_and_derivatives_converge_at_the_order_of_the_rule(rule, order):
    exact = dh.forward_sensitivity(five_bar.mechanism("smooth").build(Index2()), (0, 1), rtol=1e-11, atol=1e-13)
    errors = []
    for h in (0.01, 0.005):
        fsa = dh.forward_sensitivity(bars(), (0, 1), adapter="ali3p", fixed_step=h, method=rule)
        value = np.abs(fsa.functionals["psi"] - exact.functionals["psi"])
        slope = np.abs(fsa.gradient["psi"] - exact.gradient["psi"]).max(axis=1)
        errors.append(np.concatenate((value, slope)))
    assert np.log2(errors[0] / errors[1]) == pytest.approx(np.full(6, order), abs=0.25)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("coordinates", ["natural", "joint"])
def test_derivatives_are_those_of_the_discrete_scheme(rule, coordinates):
    system, h, t_end = bars("smooth", coordinates), 0.01, 0.8
    options = {"adapter": "ali3p", "fixed_step": h, "method": rule}
    fsa = dh.forward_sensitivity(system, (0, t_end), **options)
    asa = dh.adjoint_gradient(system, (0, t_end), "psi", **options)
    exact = fsa.gradient["psi"]
    np.testing.assert_allclose(asa.gradient, exact, rtol=1e-9, atol=1e-9 * np.abs(exact).max())
    for j, name in enumerate(five_bar.PARAMETERS):
        p = float(system.nominal[j])

        def psi(change, name=name, p=p):
            return run(system, t_end, h, method=rule, parameters={name: p + change}).functionals["psi"]

        d = 1e-2 * p  # rounding errors of accelerations are those of positions over h^2
        coarse, fine, finest = ((psi(d / k) - psi(-d / k)) * k / (2 * d) for k in (1, 2, 4))
        once, twice = (4 * fine - coarse) / 3, (4 * finest - fine) / 3
        difference = (16 * twice - once) / 15
        np.testing.assert_allclose(exact[:, j], difference, rtol=1e-8, atol=1e-8 * np.abs(exact).max(axis=1).min())


def test_sensitivities_of_positions_multipliers_velocities_and_accelerations():
    system, h, t = bars(), 0.01, [0.25, 0.5]
    fsa = dh.forward_sensitivity(system, (0, 0.5), adapter="ali3p", fixed_step=h, t_eval=t)
    d = 1e-3

    def at(change):
        return run(system, 0.5, h, t_eval=t, parameters={"L_s2": float(np.sqrt(17 / 4)) + change})

    sols = {k: at(k * d) for k in (-2, -1, 1, 2)}
    for name in ("x2", "vy2", "ax3", "lambda_1-2"):
        values = {k: sol[name] for k, sol in sols.items()}
        difference = (8 * (values[1] - values[-1]) - (values[2] - values[-2])) / (12 * d)
        np.testing.assert_allclose(fsa[name][..., 1].ravel(), difference.ravel(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("case", "coordinates"), [("elastic", "natural"), ("newton", "natural"), ("latch", "joint")])
def test_hybrid_runs_converge_to_the_reference(case, coordinates):
    system, exact, errors = bars(case, coordinates), five_bar.reference(case), []
    for h in (4e-3, 2e-3):
        fsa = dh.forward_sensitivity(system, five_bar.t_span, adapter="ali3p", fixed_step=h)
        asa = dh.adjoint_gradient(system, five_bar.t_span, "z", adapter="ali3p", fixed_step=h)
        assert len(fsa.events) == len(exact.event_times)
        scale = np.abs(fsa.gradient["z"]).max()
        np.testing.assert_allclose(asa.gradient, fsa.gradient["z"], rtol=1e-9, atol=1e-9 * scale)
        found = (
            np.abs([event.time for event in fsa.events] - exact.event_times).max(),
            np.abs(fsa.functionals["z"] - exact.values["z"]).max(),
            np.nanmax(np.abs(fsa.gradient["z"] - exact.gradients["z"])),
        )
        errors.append(np.array(found))
    assert np.log2(errors[0] / errors[1]) == pytest.approx(np.full(3, 2.0), abs=0.3)


def test_a_foothold_that_is_memory():
    mech = rimless_wheel.mechanism()
    exact, system = rimless_wheel.reference(), mech.build(ALI3P())
    errors = []
    for h in (0.01, 0.005):
        fsa = dh.forward_sensitivity(system, rimless_wheel.t_span, adapter="ali3p", fixed_step=h)
        assert len(fsa.events) == len(exact.event_times)
        errors.append(np.abs([e.time for e in fsa.events] - exact.event_times).max())
        for name, gradient in exact.gradients.items():
            asa = dh.adjoint_gradient(system, rimless_wheel.t_span, name, adapter="ali3p", fixed_step=h)
            np.testing.assert_allclose(asa.gradient, fsa.gradient[name], rtol=1e-8, atol=1e-8 * np.abs(gradient).max())
    assert np.log2(errors[0] / errors[1]) == pytest.approx(2.0, abs=0.3)


def test_constraints_hold_by_the_projections():
    sol = run(bars(), 1.0, 0.01)
    positions, velocities = constraint_residuals(five_bar.mechanism("smooth"), sol)
    assert positions.max() < 1e-12
    assert velocities.max() < 1e-6  # impulse of the projection over the penalty
    loose = run(five_bar.mechanism("smooth").build(ALI3P(alpha=1e5)), 1.0, 0.01)
    assert constraint_residuals(five_bar.mechanism("smooth"), loose)[1].max() > 100 * velocities.max()


def test_without_projections_only_positions_meet_their_constraints():
    system, h, t_end = five_bar.mechanism("smooth").build(ALI3P(varsigma=0.0)), 0.01, 0.5
    positions, velocities = constraint_residuals(five_bar.mechanism("smooth"), run(system, t_end, h))
    assert positions.max() < 1e-12
    assert velocities.max() > 1e-4
    fsa = dh.forward_sensitivity(system, (0, t_end), adapter="ali3p", fixed_step=h)
    asa = dh.adjoint_gradient(system, (0, t_end), "psi", adapter="ali3p", fixed_step=h)
    np.testing.assert_allclose(asa.gradient, fsa.gradient["psi"], rtol=1e-9, atol=1e-8)


def test_a_projection_that_is_not_orthogonal_in_the_mass_matrix_costs_an_order():
    exact = dh.simulate(five_bar.mechanism("smooth").build(Index2()), (0, 1), rtol=1e-11).functionals["psi"]
    system, errors = five_bar.mechanism("smooth").build(ALI3P(projection=ca.MX.eye(6))), []
    for h in (0.005, 0.0025):
        errors.append(abs(run(system, 1.0, h).functionals["psi"] - exact)[2])
    assert np.log2(errors[0] / errors[1]) == pytest.approx(1.0, abs=0.25)
    fsa = dh.forward_sensitivity(system, (0, 1), adapter="ali3p", fixed_step=0.01)
    asa = dh.adjoint_gradient(system, (0, 1), "psi", adapter="ali3p", fixed_step=0.01)
    np.testing.assert_allclose(asa.gradient, fsa.gradient["psi"], rtol=1e-9, atol=1e-7)


@pytest.mark.parametrize("rule", RULES)
def test_steps_with_error_control_follow_the_tolerance(rule):
    exact = dh.simulate(five_bar.mechanism("smooth").build(Index2()), (0, 1), rtol=1e-11, atol=1e-13)
    errors = []
    for rtol in (1e-4, 1e-6):
        sol = dh.simulate(bars(), (0, 1), adapter="ali3p", method=rule, rtol=rtol, atol=rtol)
        errors.append(abs(sol["y2"].ravel()[-1] - exact["y2"].ravel()[-1]))
    assert errors[1] < errors[0] / 4
    assert errors[1] < 1e-3


def test_error_control_has_an_adjoint_of_its_own_steps():
    options = {"adapter": "ali3p", "rtol": 1e-6, "atol": 1e-6}
    fsa = dh.forward_sensitivity(bars("latch"), (0, 0.6), **options)
    asa = dh.adjoint_gradient(bars("latch"), (0, 0.6), "psi", **options)
    np.testing.assert_allclose(asa.gradient, fsa.gradient["psi"], rtol=1e-9, atol=1e-9 * np.abs(asa.gradient).max())


def test_moving_ground_signals_and_measurements():
    mech = Mechanism("shaken")
    a, length = mech.parameter("a", 0.1), mech.parameter("L", 1.0)
    load = mech.signal("load", np.linspace(0, 2, 9), np.sin(np.arange(9.0)), kind="linear")
    pivot = mech.ground(a * ca.sin(3 * mech.time), 0)
    arm = mech.body("arm", Revolute(pivot), mass=1.0, center=(length / 2, 0), inertia=length**2 / 12)
    tip = arm.point(length)
    mech.force({arm.coordinate: load})
    mech.gravity(9.81)
    mech.initial(mech.mode("swing"), {arm.coordinate: 0.0})
    mech.functional("G", integrand=tip.ay**2, at_times={0.7: tip.x, 1.3: tip.vy})
    exact = dh.adjoint_gradient(mech.build(), (0, 2), "G", rtol=1e-10)
    system, errors = mech.build(ALI3P()), []
    for h in (0.01, 0.005):
        fsa = dh.forward_sensitivity(system, (0, 2), adapter="ali3p", fixed_step=h)
        asa = dh.adjoint_gradient(system, (0, 2), "G", adapter="ali3p", fixed_step=h)
        np.testing.assert_allclose(asa.gradient, fsa.gradient["G"], rtol=1e-10)
        errors.append(np.abs(np.append(asa.gradient - exact.gradient, asa.value - exact.value)))
    assert np.log2(errors[0] / errors[1]) == pytest.approx(np.full(3, 2.0), abs=0.3)


def test_the_adjoint_can_be_sampled():
    # along directions that meet the constraints, derivatives with fixed lengths; the other ones depend on the scheme
    t, names = 0.333, [f"{v}{axis}{i}" for v in ("", "v") for axis in "xy" for i in "123"]
    fsa = dh.forward_sensitivity(bars(), (0, 1), t_eval=[t], rtol=1e-10)
    along = []
    for options in ({"rtol": 1e-10}, {"adapter": "ali3p", "fixed_step": 0.004}):
        adjoint = dh.adjoint_gradient(bars(), (0, 1), "psi", **options).adjoint(t)
        along.append(sum(np.outer(adjoint[name], fsa[name].ravel()[:4]) for name in names))
    np.testing.assert_allclose(along[1], along[0], rtol=2e-2)


def test_the_same_system_through_two_adapters():
    one = dh.simulate(bars("latch"), (0, 2), adapter="ali3p", fixed_step=5e-4)
    other = dh.simulate(bars("latch"), (0, 2), rtol=1e-9)
    np.testing.assert_allclose([e.time for e in one.events], [e.time for e in other.events], atol=1e-5)
    np.testing.assert_allclose(one.functionals["psi"], other.functionals["psi"], rtol=1e-4)


# -- refusals -----------------------------------------------------------------------------------------------


def test_only_equations_of_motion_are_integrated():
    m = dh.HybridModel("decay")
    x = m.differential("x")
    m.initial(m.mode("run", ode={x: -x}), {x: 1.0})
    with pytest.raises(dh.UnsupportedError, match=r"equations of motion only.*\n.*ALI3P"):
        dh.simulate(m.build(), (0, 1), adapter="ali3p")
    with pytest.raises(dh.UnsupportedError, match="no fixed steps"):
        dh.simulate(m.build(), (0, 1), fixed_step=0.1)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"alpha": 0.0}, "alpha must be a positive number"),
        ({"varsigma": -1.0}, "varsigma must be a non-negative number"),
        ({"alpha": ca.MX.sym("alpha")}, "got an expression"),
        ({"spectral_radius": 1.5}, "at most 1"),
        ({"newmark": (0.2, 0.5)}, "for stability"),
        ({"newmark": (0.25,)}, "beta and gamma"),
    ],
)
def test_options_of_the_formulation_are_checked(arguments, match):
    with pytest.raises(dh.OptionError, match=match):
        ALI3P(**arguments)


def test_statements_that_the_formulation_has_no_place_for():
    mech = five_bar.mechanism("smooth", quadratures=True)
    with pytest.raises(dh.ModelError, match="additional state 'z1'"):
        mech.build(ALI3P())
    with pytest.raises(dh.ModelError, match=r"projection has shape \(2, 2\), expected \(6, 6\)"):
        five_bar.mechanism("smooth").build(ALI3P(projection=np.eye(2)))


def test_a_step_that_does_not_converge_keeps_the_run():
    mech = Mechanism("spring")
    x = mech.coordinate("x")
    mech.inertia(x, 1.0)
    mech.force({x: -ca.exp(40 * x) + 1.0 + 20 * mech.time**2})
    mech.initial(mech.mode("m"), {x: 0.0})
    with pytest.raises(dh.IntegrationError, match="did not converge") as caught:
        run(mech.build(ALI3P()), 50.0, 2.0)
    assert caught.value.variables == ("x",)
    assert caught.value.time is not None
    assert len(caught.value.trajectory.t) >= 1


def test_equations_that_are_not_finite_are_refused_with_the_time():
    with pytest.raises(dh.NonFiniteError) as caught:
        run(pit(), 10.0, 0.01)
    assert 0.5 < caught.value.time < 2.0
    assert len(caught.value.trajectory.t) > 50


def test_the_step_limit_is_respected():
    with pytest.raises(dh.StepLimitError, match="max_steps=20"):
        run(bars(), 1.0, 0.01, max_steps=20)


def test_an_impact_that_ends_in_rest():
    mech = Mechanism("drop")
    bob = mech.point("")
    mech.point_mass(bob, 1.0)
    mech.gravity(9.81)
    fall, rest = mech.mode("fall"), mech.mode("rest")
    rest.constraint("floor", bob.y)
    mech.event(fall, rest, guard=bob.y, direction="falling", impact=Inelastic())
    mech.initial(fall, {bob.x: 0.0, bob.y: 1.0}, {bob.vx: 1.0, bob.vy: 0.0})
    sol = run(mech.build(ALI3P()), 1.0, 0.01)
    # parabolas are exact for the trapezoidal rule
    assert abs(sol.events[0].time - np.sqrt(2 / 9.81)) < 1e-12
    assert abs(sol["y"].ravel()[-1]) < 1e-12
    assert abs(sol["lambda_floor"].ravel()[-1] + 9.81) < 1e-7


def test_a_bouncing_ball_is_exact():
    mech = Mechanism("ball")
    e = mech.parameter("e", 0.8)
    y = mech.coordinate("y")
    mech.inertia(y, 1.0)
    mech.force({y: -9.81})
    fly = mech.mode("fly")
    mech.event(fly, fly, guard=y, direction="falling", impact=Restitution(e))
    mech.initial(fly, {y: 1.0})
    mech.functional("y", terminal=y)
    fsa = dh.forward_sensitivity(mech.build(ALI3P()), (0, 2), adapter="ali3p", fixed_step=0.05)
    other = dh.forward_sensitivity(mech.build(), (0, 2), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(fsa.functionals["y"], other.functionals["y"], atol=1e-9)
    np.testing.assert_allclose(fsa.gradient["y"], other.gradient["y"], rtol=1e-8)


@pytest.mark.parametrize("parts", [1, 10])
@pytest.mark.parametrize("offset", [0.0, 1e-12, -1e-12, 1e-9, -1e-9, -1e-6])
def test_an_event_next_to_the_end_of_a_step(parts, offset):
    mech = Mechanism("ball")
    e, g = mech.parameter("e", 0.8), mech.parameter("g", 9.81)
    y = mech.coordinate("y")
    mech.inertia(y, 1.0)
    mech.force({y: -g})
    fly = mech.mode("fly")
    mech.event(fly, fly, guard=y, direction="falling", impact=Restitution(e))
    mech.initial(fly, {y: 1.0})
    mech.functional("f", terminal=y, integrand=mech.acceleration(y) ** 2)
    system, h = mech.build(ALI3P()), np.sqrt(2 / 9.81) / parts + offset
    fsa = dh.forward_sensitivity(system, (0, 2), adapter="ali3p", fixed_step=h)
    asa = dh.adjoint_gradient(system, (0, 2), "f", adapter="ali3p", fixed_step=h)
    exact = dh.forward_sensitivity(mech.build(), (0, 2), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(fsa.gradient["f"], exact.gradient["f"], rtol=1e-9)
    np.testing.assert_allclose(asa.gradient, exact.gradient["f"], rtol=1e-9)


@pytest.mark.parametrize("offset", [1e-8, 1e-6])
def test_a_short_step_of_a_constrained_mechanism(offset):
    mech = five_bar.mechanism("smooth")
    vx2, ax2 = mech.velocity("x2"), mech.acceleration("x2")
    mech.functional("late", at_times={0.05 + offset: vx2, 0.1: ax2}, integrand=ax2**2)
    system = mech.build(ALI3P())
    fsa = dh.forward_sensitivity(system, (0, 0.1), adapter="ali3p", fixed_step=0.01)
    asa = dh.adjoint_gradient(system, (0, 0.1), "late", adapter="ali3p", fixed_step=0.01)
    np.testing.assert_allclose(asa.gradient, fsa.gradient["late"], rtol=1e-9)
    exact = dh.adjoint_gradient(mech.build(), (0, 0.1), "late", rtol=1e-9)
    np.testing.assert_allclose(asa.gradient, exact.gradient, rtol=2e-3)


@pytest.mark.parametrize("rtol", [1e-12, 1e-2])
def test_the_adjoint_of_fixed_steps_does_not_depend_on_rtol(rtol):
    """The discrete adjoint is not rounded before a segment, unlike one that is integrated with a tolerance."""
    mech = Mechanism("double pendulum")
    m, length = mech.parameter("m", 1.3), mech.parameter("l", 1.0)
    upper = mech.body("upper", Revolute(mech.ground(0, 0)), mass=m, center=(length / 2, 0), inertia=m * length**2 / 12)
    lower = mech.body("lower", Revolute(upper.point(length)), mass=0.6, center=(0.25, 0), inertia=0.0125)
    mech.gravity(9.81)
    swing = mech.mode("swing")
    locked = mech.mode("locked")
    locked.constraint("lock", lower.coordinate - 0.3)
    mech.event(locked, swing, at=0.13)
    mech.initial(locked, {upper.coordinate: -0.2 * length, lower.coordinate: 0.3})
    tip = lower.point(0.5)
    mech.functional("G", terminal=tip.x * tip.vy)
    system = mech.build(ALI3P())
    options = {"adapter": "ali3p", "fixed_step": 0.004, "rtol": rtol}
    forward = dh.forward_sensitivity(system, (0, 0.37), **options)
    adjoint = dh.adjoint_gradient(system, (0, 0.37), "G", **options)
    assert adjoint.gradient == pytest.approx(np.ravel(forward.gradient["G"]), rel=1e-9)


@pytest.mark.parametrize(
    ("projection", "match"),
    [(-np.eye(3), "positive definite"), (np.zeros((3, 3)), "positive definite"), (np.tri(3), "symmetric")],
)
def test_projection_matrices_are_checked_at_the_start(projection, match):
    mech = five_bar.mechanism()
    n = sum(coordinate.q.numel() for coordinate in mech.coordinates.values())
    with pytest.raises(dh.ModelError, match=match):
        mech.build(ALI3P(projection=np.kron(np.eye(n), projection)[:n, :n]))


# -- compiled steps -----------------------------------------------------------------------------------------


def both(monkeypatch, call):
    """The results of a call with compiled steps and with steps in Python."""
    compiled = call()
    with monkeypatch.context() as patch:
        patch.setattr(CompiledSteps, "of", classmethod(lambda *_, **__: None))
        return compiled, call()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("case", "coordinates"), [("smooth", "natural"), ("latch", "joint"), ("newton", "natural")])
@pytest.mark.parametrize("steps", [{"fixed_step": 0.01}, {"rtol": 1e-3, "atol": 1e-4}], ids=["fixed", "controlled"])
def test_compiled_steps_are_those_of_python(rule, case, coordinates, steps, monkeypatch):
    system = bars(case, coordinates)
    options = {"adapter": "ali3p", "method": rule, **steps}
    name = "psi"

    def forward():
        return dh.forward_sensitivity(system, (0, 0.5), t_eval=np.linspace(0, 0.5, 11), **options)

    one, other = both(monkeypatch, forward)
    assert one.trajectory.statistics["steps"] == other.trajectory.statistics["steps"]
    np.testing.assert_allclose([e.time for e in one.events], [e.time for e in other.events], rtol=1e-9)
    for variable in system.modes[0].differential.names:
        np.testing.assert_allclose(one.trajectory[variable], other.trajectory[variable], atol=1e-8)
    scale = np.abs(other.gradient[name]).max()
    np.testing.assert_allclose(one.gradient[name], other.gradient[name], rtol=1e-6, atol=1e-6 * scale)
    one, other = both(monkeypatch, lambda: dh.adjoint_gradient(system, (0, 0.5), name, **options))
    np.testing.assert_allclose(one.gradient, other.gradient, rtol=1e-6, atol=1e-6 * scale)


def test_dense_output_and_samples_of_the_adjoint_are_those_of_python(monkeypatch):
    system, t = bars(), np.linspace(0, 1, 17)
    options = {"adapter": "ali3p", "fixed_step": 0.01}
    one, other = both(monkeypatch, lambda: dh.simulate(system, (0, 1), **options)(t)["ay2"])
    np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8)
    one, other = both(monkeypatch, lambda: dh.adjoint_gradient(system, (0, 1), "psi", **options).adjoint(t[3])["x2"])
    np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-8 * np.abs(other).max())


@pytest.mark.parametrize(("case", "engine"), [("smooth", "python"), ("latch", "compiled")])
def test_the_adjoint_is_the_same_for_any_memory(case, engine, monkeypatch):
    h = 5e-4 if engine == "compiled" else 0.01
    if engine == "python":
        monkeypatch.setattr(CompiledSteps, "of", classmethod(lambda *_, **__: None))
    found = [
        dh.adjoint_gradient(bars(case), (0, 0.6), "psi", adapter="ali3p", fixed_step=h, adjoint_memory=memory)
        for memory in (np.inf, 1e5, 1.0)
    ]
    for other in found[1:]:
        np.testing.assert_array_equal(other.gradient, found[0].gradient)


def test_without_a_compiler_the_steps_are_the_same():
    mech = five_bar.mechanism("latch")
    one, other = (
        dh.forward_sensitivity(mech.build(ALI3P(), native=native), (0, 0.5), adapter="ali3p", fixed_step=0.01)
        for native in (True, False)
    )
    np.testing.assert_allclose(one.gradient["psi"], other.gradient["psi"], rtol=1e-8)


def test_compiled_steps_leave_failures_to_python():
    """A force that is not finite beyond x = 0 ends the run at the step that reaches it, after many compiled ones."""
    with pytest.raises(dh.NonFiniteError) as caught:
        run(pit(), 10.0, 1e-4)
    assert len(caught.value.trajectory.t) > 5000


def test_a_guard_between_the_ends_of_a_step_is_not_missed():
    """A guard that dips below zero and returns within one step is found, and so is one that is explicit in time."""
    mech = Mechanism("glider")
    x = mech.coordinate("x")
    mech.inertia(x, 1.0)
    mode = mech.mode("m")
    dip = (x - 0.52) ** 2 - 1e-4  # below zero for 0.51 < x < 0.53
    mech.event(mode, mode, guard=dip, direction="falling", name="dip")
    mech.event(mode, mode, guard=1.02 + ca.sin(2 * np.pi * mech.time) - 0.04, direction="falling", name="beat")
    mech.initial(mode, {x: 0.0}, {mech.velocity(x): 1.0})
    sol = run(mech.build(ALI3P()), 1.0, 0.125)
    assert [e.transition for e in sol.events] == ["dip", "beat"]
    np.testing.assert_allclose([e.time for e in sol.events], [0.51, 0.75 - np.arccos(0.98) / (2 * np.pi)], rtol=1e-10)


# -- found by a reader ----------------------------------------------------------------------------------------


def slider_crank():
    """Crank and rod of one length: both solutions of the loop meet where they are folded."""
    mech = Mechanism("folded")
    at = mech.ground(0, 0)
    crank = mech.body("crank", Revolute(at), mass=1.0, center=(0.5, 0), inertia=0.1)
    rod = mech.body("rod", Revolute(crank.point(1.0)), mass=1.0, center=(0.5, 0), inertia=0.1)
    slider = mech.body("slider", Prismatic(at), mass=0.5)
    mech.pin(rod.point(1.0), slider.point(0, 0), name="wrist")
    mech.gravity(9.81)
    angle = np.arctan2(0.8, 0.6)
    guess = {rod.coordinate: -2 * angle, slider.coordinate: 1.2}
    mech.initial(mech.mode("turn"), {crank.coordinate: angle}, guess=guess)
    return mech


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("steps", [{"fixed_step": 5e-3}, {"rtol": 1e-4, "atol": 1e-5}], ids=["fixed", "controlled"])
def test_a_singular_configuration_of_bodies_is_refused_with_the_time(native, steps):
    system = slider_crank().build(ALI3P(), native=native)
    with pytest.raises(dh.ConsistencyError, match="lambda_wrist") as caught:
        dh.simulate(system, (0, 3), adapter="ali3p", **steps)
    assert caught.value.time == pytest.approx(1.2182, abs=0.02)
    assert caught.value.trajectory.t[-1] > 1.1


def test_the_step_that_an_event_cuts_is_tested_as_in_the_run():
    """The local error estimate of the cut step would reject it: its ends have other accelerations."""
    mech = Mechanism("shaken")
    amplitude, height = mech.parameter("amplitude", 50.0), mech.parameter("height", 1.0)
    bob = mech.point("")
    mech.point_mass(bob, 1.0)
    mech.gravity(9.81)
    mech.force({bob.y: amplitude * ca.sin(2 * np.pi * mech.time / 0.01)})
    fall, rest = mech.mode("fall"), mech.mode("rest")
    mech.event(fall, rest, guard=bob.y - 0.5, direction="falling")
    mech.initial(fall, {bob.x: 0.0, bob.y: height}, {bob.vx: 1.0, bob.vy: 0.0})
    mech.functional("I", integrand=bob.y**2)
    options = {"adapter": "ali3p", "rtol": 1e-4, "atol": 1e-4, "first_step": 0.01, "max_step": 0.01}
    for native in (True, False):
        system = mech.build(ALI3P(), native=native)
        forward = dh.forward_sensitivity(system, (0, 0.6), **options).gradient["I"]
        np.testing.assert_allclose(dh.adjoint_gradient(system, (0, 0.6), "I", **options).gradient, forward, rtol=1e-9)


@pytest.mark.first(2)
@pytest.mark.parametrize("periods", [3, 100, 200])
def test_a_guard_that_resonates_with_the_steps_is_seen(periods):
    """All samples of every step have the same phase; the rate where the steps begin tells."""
    mech = Mechanism("resonance")
    x = mech.coordinate("x")
    mech.inertia(x, 1.0)
    mode, h = mech.mode("m"), 1e-3
    guard = 2 + 3 * ca.sin(2 * np.pi * periods / h * mech.time + 0.3)
    mech.event(mode, mode, guard=guard, direction="falling")
    mech.initial(mode, {x: 0.0}, {mech.velocity(x): 1.0})
    assert len(run(mech.build(ALI3P()), 2 * h, h).events) > periods / 2


def test_an_integrand_that_is_not_finite_is_named_with_its_time():
    mech = Mechanism("free")
    x = mech.coordinate("x")
    mech.inertia(x, 1.0)
    mech.initial(mech.mode("m"), {x: 0.0}, {mech.velocity(x): 1.0})
    mech.functional("J", integrand=dh.smooth(ca.sqrt(0.5 - x)))
    with pytest.raises(dh.NonFiniteError, match="the integrand of J") as caught:
        run(mech.build(ALI3P()), 1.0, 1e-3)
    assert caught.value.time == pytest.approx(0.5, abs=2e-3)


def test_constraints_that_cannot_be_met_are_named():
    mech = Mechanism("torn")
    left, right, bob = mech.ground(0, 0), mech.ground(1.0 + mech.time**2, 0), mech.point("1")
    mech.point_mass(bob, 1.0)
    mech.bar(left, bob, length=1.0, name="left")
    mech.bar(right, bob, length=1.0, name="right")
    mech.initial(mech.mode("m"), {}, guess={bob.x: 0.5, bob.y: 0.8})
    with pytest.raises(dh.DaeHybridError, match=r"left|right") as caught:
        run(mech.build(ALI3P()), 2.0, 0.01)
    assert 0.9 < caught.value.time < 1.1
    assert caught.value.trajectory.t[-1] > 0.9


@pytest.mark.parametrize(
    ("options", "match"),
    [({"fixed_step": 1001.0}, "longer than the run"), ({"max_step": 1e-3}, "longer than max_step")],
)
def test_fixed_steps_are_checked(options, match):
    with pytest.raises(dh.OptionError, match=match):
        dh.simulate(bars(), (0, 1), adapter="ali3p", **{"fixed_step": 0.01, **options})
