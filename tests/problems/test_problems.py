"""The worked problems: their interface, and agreement of their models with the paper."""

from __future__ import annotations

import functools
import json

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid import problems
from dae_hybrid.problems import em_hysteresis, hybrid_ode

PUBLISHED = ("hybrid_ode", "em_hysteresis")  # with the paper's results, to be reproduced
MECHANISMS = ("five_bar", "five_bar_ali3p")  # test_five_bar.py, test_ali3p.py and test_cli.py
EXACT = tuple(name for name in problems.names() if name not in (*PUBLISHED, *MECHANISMS))


@pytest.fixture(params=problems.names())
def problem(request):
    return problems.load(request.param)


@pytest.fixture(params=PUBLISHED)
def published(request):
    return problems.load(request.param)


@pytest.fixture(params=EXACT)
def exact(request):
    return problems.load(request.param)


def test_a_problem_offers_what_the_registry_promises(problem):
    assert isinstance(problem.model(), dh.HybridModel)
    assert isinstance(problem.system(), dh.HybridSystem)
    assert problem.system() is problem.system(), "built once"
    assert problem.reference() is problem.reference(), "read once"
    start, end = problem.t_span
    assert start < end
    assert "Serban and Recuero" in problem.__doc__


def test_model_and_module_have_one_name(problem):
    assert problem.model().name == problem.__name__.rpartition(".")[2]


def test_reference_has_the_shape_of_the_system(published):
    system, reference = published.system(), published.reference()
    assert reference.functional in system.functionals
    assert reference.gradient.shape == (system.parameters.size,)
    assert reference.event_time_sensitivity.shape == (len(reference.event_times), system.parameters.size)
    assert len(reference.events) == len(reference.event_times)
    assert np.all(np.diff(reference.event_times) > 0)
    assert 0 < reference.accuracy < 1e-15
    assert reference.source
    assert reference.ode15s.gradient.shape == reference.ode15s.gradient_accuracy.shape == reference.gradient.shape


def test_ode15s_is_as_far_from_the_exact_values_as_its_readme_says(published):
    reference = published.reference()
    other, rounding = reference.ode15s, 1.02  # stated with two digits
    assert abs(other.value - reference.value) <= rounding * other.value_accuracy
    assert np.all(np.abs(other.gradient - reference.gradient) <= rounding * other.gradient_accuracy)
    assert np.abs(other.events["t_i"] - reference.event_times).max() <= rounding * other.events.accuracy["t_i"]


def test_the_gradient_check_agrees(published):
    check = dh.check_gradient(published.system(), published.t_span, "G", rtol=1e-10, atol=1e-13)
    assert check.same_events
    assert check.difference("forward", "adjoint") < 1e-8
    assert check.difference("forward", "finite_difference") < 1e-4


def off(value, exact):
    """Largest error of the known components, relative to the largest component."""
    value, exact = (np.asarray(v, dtype=float)[np.isfinite(exact)] for v in (value, exact))
    return np.abs(value - exact).max(initial=0.0) / max(np.abs(exact).max(initial=0.0), 1e-3)


@pytest.mark.parametrize("form", [{}, {"eliminate": False}, {"index2": "direct"}], ids=["default", "as DAE", "direct"])
def test_values_gradients_and_events_against_the_independent_ones(exact, form):
    """Every formulation of every problem, forward and adjoint, beside closed forms and other people's arithmetic."""
    system = exact.model().build(**form) if form else exact.system()
    # a step of the wheel makes of an error ten times as much
    rtol = 2e-11 if exact.__name__.endswith("rimless_wheel") else 1e-10
    reference, options = exact.reference(), {"rtol": rtol, "atol": 1e-11}
    forward = dh.forward_sensitivity(system, exact.t_span, **options)
    assert off([event.time for event in forward.events], reference.event_times) < 1e-9
    assert off(forward.event_time_sensitivity, reference.event_time_sensitivity) < 5e-8
    for name, value in reference.values.items():
        adjoint = dh.adjoint_gradient(system, exact.t_span, name, **options)
        for computed in (forward.functionals[name], adjoint.value):
            # theta swings by 0.7 and happens to be small at the end
            assert off(computed, value) < 1e-7 if name != "theta" else abs(computed - value) < 1e-8
        assert off(forward.gradient[name], reference.gradients[name]) < 1e-7
        assert off(adjoint.gradient, reference.gradients[name]) < 1e-7
    final = forward.trajectory(forward.trajectory.final[0])
    for name, value in reference.final.items():
        assert off(final[name], value) < 5e-8


def test_every_event_of_the_rope_beside_the_reference():
    rope = problems.load("ball_on_rope")
    sol = dh.simulate(rope.system(), rope.t_span, rtol=1e-11, atol=1e-12)
    for event, known in zip(sol.events, json.loads(rope.DATA.read_text())["events"], strict=True):
        assert event.transition == known["transition"]
        assert off(event.state_plus, np.array(known["state_after"], dtype=float)) < 1e-9
        if known["transition"] == "taut":
            assert event.unknowns["P"] == pytest.approx(float(known["impulse"]), rel=1e-9)


def test_an_unknown_problem_is_refused_with_the_names_there_are():
    with pytest.raises(problems.UnknownProblemError, match=r"'pendulum'.*hybrid_ode, em_hysteresis, rocket"):
        problems.load("pendulum")


def test_printed_numbers_are_the_papers():
    printed = em_hysteresis.reference().printed
    assert printed["finite_difference"] == ("-1.338e-5", "3.267e-3", "-1.534e-6", "-6.07e-9")
    assert printed["forward"] == ("-1.337e-5", "3.266e-3", "-1.518e-6", "0")
    assert printed["adjoint"] == ("-1.335e-5", "3.267e-3", "-1.540e-6", "0")
    assert hybrid_ode.reference().printed == {"forward": ("-2.31195",), "adjoint": ("-2.31195",)}


def test_the_two_programs_of_the_em_reference_agree():
    reference = em_hysteresis.reference()
    flint = json.loads((em_hysteresis.DATA / "ref52_flint.json").read_text(encoding="utf-8"))
    assert float(flint["G"]) == pytest.approx(reference.value, rel=1e-15, abs=0)
    assert [float(d) for d in flint["dG"]] == pytest.approx(reference.gradient, rel=1e-15, abs=1e-36)
    assert [float(e["t"]) for e in flint["events"]] == pytest.approx(reference.event_times, rel=1e-15, abs=0)


# -- the stress of the EM model -----------------------------------------------------------------------


@functools.cache
def residual(xi):
    """sigma - z of a mode, out of the declaration itself."""
    m = em_hysteresis.model()
    symbols = [m.declarations[name].symbol for name in ("z", "u", "u_star", "z_star", "ka", "kb", "alpha", "beta")]
    return ca.Function("residual", symbols, [m.modes["loading" if xi > 0 else "unloading"].algebraic])


def stress(xi, u, u_star, z_star, p):
    return float(residual(xi)(0.0, u, u_star, z_star, *p))


@pytest.fixture(scope="module")
def samples():
    """Displacements, reversal points inside the limiting curves, and parameters, beta not zero."""
    rng = np.random.default_rng(19)
    found = []
    for xi in (1, -1):
        for _ in range(100):
            p = np.array([320.0, 10.0, 205.0, 6.0]) * rng.uniform(0.8, 1.2, 4)
            ka, kb, alpha, beta = p
            u_star = rng.uniform(-0.2, 0.2)
            limit = -2 * beta * u_star + 2 * np.sinh(beta * u_star) + kb * u_star + xi * (ka - kb) / (2 * alpha)
            z_star = limit - xi * rng.uniform(0.05, 1.5)
            found.append((xi, u_star + xi * rng.uniform(0, 0.1), u_star, z_star, p))
    return found


def test_short_form_of_the_stress_is_the_papers(samples):
    for xi, u, u_star, z_star, p in samples:
        long = em_hysteresis.printed_stress(u, u_star, z_star, xi, p)
        assert stress(xi, u, u_star, z_star, p) == pytest.approx(long, rel=0, abs=2e-13)


def test_stress_is_continuous_at_a_reversal(samples):
    for xi, _, u_star, z_star, p in samples:
        assert stress(xi, u_star, u_star, z_star, p) == pytest.approx(z_star, rel=0, abs=1e-14)


def test_stress_as_misprinted_is_not(samples):
    jumps = [
        abs(em_hysteresis.printed_stress(u_star, u_star, z_star, xi, p, misprint=True) - z_star)
        for xi, _, u_star, z_star, p in samples
        if abs(u_star) > 0.05 and xi * u_star < 0  # where the logarithm has a positive argument either way
    ]
    assert min(jumps) > 0.1


# -- the adjoint of the EM model ----------------------------------------------------------------------


def test_adjoint_satisfies_the_papers_equation():
    """SR eq. 48, lambda_1' = sigma_u lambda_2 / m - 2 u and lambda_2' = -lambda_1, with the sign of eq. 36."""
    asa = dh.adjoint_gradient(em_hysteresis.system(), em_hysteresis.t_span, "G", rtol=1e-10, atol=1e-14)
    last = asa.trajectory.segments[-1]
    h = 2e-4
    t = np.linspace(last.t_start + 2 * h, last.t_end - 2 * h, 7)
    lam, after, before = asa.adjoint(t), asa.adjoint(t + h), asa.adjoint(t - h)
    u = asa.trajectory(t)["u"]
    ka, kb, alpha, _ = asa.trajectory.parameters
    u_star, z_star = last.memory
    c = -(ka - kb) / (2 * alpha)  # unloading
    sigma_u = kb - alpha * np.exp(alpha * (u - u_star)) * (kb * u_star + c - z_star)
    rate = {name: (after[name] - before[name]) / (2 * h) for name in ("u", "v")}
    assert rate["u"] == pytest.approx(sigma_u * lam["v"] - 2 * u, abs=5e-5)
    assert rate["v"] == pytest.approx(-lam["u"], abs=5e-5)
    end = asa.adjoint(10.0)
    assert end["u"] == end["v"] == 0
