"""sensitivity_error_control=False: steps follow the states alone, and what that does to derivatives is reported."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.problems.ivp_test_set import PROBLEMS

END = 3.0
METHODS: list[dict[str, Any]] = [
    {"method": "erk"},
    {"method": "adams"},
    {"method": "bdf"},
    {"method": "bdf", "sensitivity_method": "simultaneous"},
]


def unseen(fast: float, *, algebraic: bool = False) -> dh.HybridModel:
    """x' = (p - 1) cos(fast t) with p = 1: x stays where it is, dx/dp = sin(fast t) / fast; y' = -k y besides."""
    m = dh.HybridModel("unseen")
    p, k = m.parameter("p", 1.0), m.parameter("k", 0.5)
    x, y = m.differential("x"), m.differential("y")
    ode: dict[Any, Any] = {x: (p - 1) * np.cos(fast * m.time), y: -k * y}
    equations = []
    if algebraic:
        z = m.algebraic("z")
        ode[y], equations = -z, [z + 0.1 * (z**3 - (k * y) ** 3) - k * y]
    m.initial(m.mode("run", ode=ode, algebraic=equations), {x: 0.3, y: 1.0})
    m.functional("X", terminal=x)
    m.functional("Y", terminal=y)
    return m


@pytest.fixture(scope="module")
def calm() -> dh.HybridSystem:
    """Sensitivities move as the states do."""
    return unseen(1.0).build()


@pytest.mark.parametrize("options", METHODS, ids=lambda o: "-".join(o.values()))
def test_derivatives_and_their_errors(calm: dh.HybridSystem, options: dict[str, Any]) -> None:
    loose = {"rtol": 1e-7, "atol": 1e-9, "wrt": "k"} | options
    run = dh.simulate(calm, (0, END), **{k: v for k, v in loose.items() if k != "wrt"})
    tested = dh.forward_sensitivity(calm, (0, END), **loose)
    free = dh.forward_sensitivity(calm, (0, END), sensitivity_error_control=False, **loose)
    steps, most = (f.trajectory.statistics["steps"] for f in (free, tested))
    assert steps <= most
    assert steps <= 1.1 * run.statistics["steps"] + 2
    assert "sensitivity_error" not in tested.trajectory.statistics
    error = free.trajectory.statistics["sensitivity_error"]
    exact = -END * np.exp(-0.5 * END)
    assert abs(free.gradient["Y"][0] - exact) <= 1e-7 * max(error, 1) * abs(exact) + 1e-9
    np.testing.assert_allclose(free.gradient["Y"], exact, rtol=1e-5)


@pytest.mark.parametrize("algebraic", [False, True], ids=["ODE", "DAE"])
@pytest.mark.parametrize("options", METHODS, ids=lambda o: "-".join(o.values()))
def test_what_states_do_not_see_is_said(options: dict[str, Any], algebraic: bool) -> None:
    if algebraic and options["method"] != "bdf":
        pytest.skip("explicit modes only")
    fast = 40.0
    system = unseen(fast, algebraic=algebraic).build(eliminate=not algebraic)
    loose = {"rtol": 1e-6, "atol": 1e-9, "wrt": "p"} | options
    exact = np.sin(fast * END) / fast
    tested = dh.forward_sensitivity(system, (0, END), **loose)
    np.testing.assert_allclose(tested.gradient["X"], exact, rtol=2e-3)
    with pytest.warns(dh.ConditionWarning, match="left out of the error test, and their local errors"):
        free = dh.forward_sensitivity(system, (0, END), sensitivity_error_control=False, **loose)
    assert abs(free.gradient["X"][0] / exact - 1) > 1e-2  # it would have looked right
    assert 1e-6 * free.trajectory.statistics["sensitivity_error"] > 0.1  # of its size
    check = next(c for c in free.diagnostics.checks if c.name == "resolution of sensitivities")
    assert not check.passed
    assert "left out" in str(free.diagnostics)


def test_errors_that_add_up_over_many_steps_are_said() -> None:
    m = dh.HybridModel("swing")
    p, y, u, v = m.parameter("p", 1.0), *map(m.differential, "yuv")
    m.initial(m.mode("run", ode={y: np.cos(m.time) - 0.1 * y, u: v, v: -(19.6**2) * u}), {y: 0.0, u: p - 1, v: 0.0})
    m.functional("U", terminal=u)
    options: dict[str, Any] = {"method": "adams", "rtol": 1e-6, "atol": 1e-9}
    with pytest.warns(dh.ConditionWarning, match="left out of the error test"):
        fsa = dh.forward_sensitivity(m.build(), (0, 20), sensitivity_error_control=False, **options)
    assert abs(fsa.gradient["U"][0] - np.cos(19.6 * 20)) > 1e-2  # or there would be nothing to say


@pytest.mark.parametrize("rtol", [1e-6, 1e-8])
def test_derivatives_of_the_amplifier_are_stable_on_the_steps_of_its_states(rtol: float) -> None:
    """No test of convergence sees its algebraic variables: their derivatives have to be solved for."""
    problem = PROBLEMS["transistor"]
    system = problem.model().build()
    exact = dh.adjoint_gradient(system, (0, problem.end), "G", wrt=problem.wrt, **problem.tolerances(1e-9)).gradient
    options: dict[str, Any] = problem.tolerances(rtol) | {"wrt": problem.wrt, "sensitivity_error_control": False}
    free = dh.forward_sensitivity(system, (0, problem.end), **options)
    np.testing.assert_allclose(free.gradient["G"], exact, rtol=100 * rtol)


def test_a_failed_duality_check_names_the_option() -> None:
    system = unseen(40.0).build()
    options: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-9, "wrt": "p", "method": "bdf", "duality": True}
    dh.forward_sensitivity(system, (0, END), **options)
    with pytest.raises(dh.DualityError, match="sensitivity_error_control=False"):
        dh.forward_sensitivity(system, (0, END), sensitivity_error_control=False, **options)


def test_errors_are_those_of_each_run(calm: dh.HybridSystem) -> None:
    loose: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-9, "method": "bdf", "sensitivity_error_control": False}
    run = dh.prepare(calm, (0, END), derivatives="forward", **loose)
    first = dh.forward_sensitivity(calm, (0, END), **loose).trajectory.statistics["sensitivity_error"]
    again = dh.forward_sensitivity(calm, (0, END), **loose).trajectory.statistics["sensitivity_error"]
    assert 0 < first == again
    np.testing.assert_allclose(run({"k": 0.6}).gradient["Y"][1], -END * np.exp(-0.6 * END), rtol=1e-4)
    found = dh.batch(calm, (0, END), parameters={"k": [0.5, 0.7]}, gradient="forward", **loose)
    np.testing.assert_allclose(found.gradient["Y"][:, 1], -END * np.exp(-np.array([0.5, 0.7]) * END), rtol=1e-4)


def test_across_events() -> None:
    m = dh.HybridModel("switched")
    k, x = m.parameter("k", 0.5), m.differential("x")
    up, down = m.mode("up", ode={x: k}), m.mode("down", ode={x: -k * x})
    m.transition(up, down, guard=x - 1, direction="rising")
    m.transition(down, up, guard=x - 0.5, direction="falling")
    m.initial(up, {x: 0.0})
    m.functional("X", terminal=x)
    system = m.build()
    free = dh.forward_sensitivity(system, (0, 9.0), sensitivity_error_control=False, rtol=1e-8, atol=1e-10)
    rate = 0.5 if free.trajectory.segments[-1].mode.name == "up" else -0.5 * free.trajectory["x"][-1]
    np.testing.assert_allclose(free["x"][-1], [rate * 9.0 / 0.5], rtol=1e-6)  # x depends on k t alone
    assert len(free.events) > 3
    assert "sensitivity_error" in free.trajectory.statistics


def test_idle_parameters_are_named(calm: dh.HybridSystem) -> None:
    small = {"p": 1e-12, "k": 0.5}
    with pytest.warns(dh.ConditionWarning, match="next to their absolute tolerances"):
        dh.forward_sensitivity(
            calm,
            (0, END),
            parameters=small,
            wrt="p",
            method="bdf",
            sensitivity_error_control=False,
            rtol=1e-6,
            atol=1e-6,
        )


def test_refusals(calm: dh.HybridSystem) -> None:
    with pytest.raises(dh.OptionError, match="sensitivity_error_control must be True or False"):
        dh.simulate(calm, (0, END), sensitivity_error_control="no")
    with pytest.raises(dh.UnsupportedError, match="sensitivity_error_control"):
        dh.forward_sensitivity(calm, (0, END), adapter="scipy", sensitivity_error_control=False)
    interpreted = unseen(1.0).build(native=False)
    with pytest.raises(dh.UnsupportedError, match="needs compiled equations"):
        dh.forward_sensitivity(interpreted, (0, END), sensitivity_error_control=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dh.simulate(interpreted, (0, END), sensitivity_error_control=False)  # there are none
