"""Calls that start elsewhere: `x0`, `start_mode`, and derivatives by initial values."""

from __future__ import annotations

import pickle
from typing import Any

import casadi as ca
import numpy as np
import pytest
from scipy import stats

import dae_hybrid as dh
from dae_hybrid.interface.output_map import OutputMap

TIGHT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}
WAYS = {"compiled": {}, "interpreted events": {"native_events": False}, "scipy": {"adapter": "scipy"}}
CALLS: dict[str, dict[str, Any]] = {
    "added to the model's": {"wrt": ["y(0)", "v(0)", "h"]},
    "in place of the model's": {"x0": {"y": 1.5}, "wrt": ["y(0)", "w(0)[2]", "g"], "parameters": {"h": 1.1}},
    "of a memory": {"x0": {"v": -0.5, "n": 2.0}, "wrt": ["n(0)", "w(0)", "v(0)"]},
    "beside a given one": {"x0": {"y": 2.0}, "wrt": "h"},
    "of an entry": {"x0": {"w[0]": 2.0}, "wrt": ["w(0)", "h"], "parameters": [9.0, 0.7, 1.2]},
    "in another mode": {"start_mode": "slow", "wrt": ["h", "y(0)"]},
    "that the mode needs": {"start_mode": "glide", "x0": {"s": 0.3}, "wrt": ["s(0)", "y(0)", "g"]},
}


def ball() -> dh.HybridModel:
    """A ball that is thrown, falls slowly or glides, and bounces; w and n are carried along."""
    m = dh.HybridModel("ball")
    g, e, h = m.parameter("g", 9.81), m.parameter("e", 0.8), m.parameter("h", 1.0)
    y, v, w, s = m.differential("y"), m.differential("v"), m.differential("w", size=3), m.differential("s")
    n, z = m.memory("n", initial=0.0), m.algebraic("z")
    flight = m.mode("flight", ode={y: v, v: -g - 0.1 * z, w: -w * h + y}, algebraic=[z - v * ca.sqrt(1 + v**2)])
    slow = m.mode("slow", ode={y: v, v: -g * 0.5, w: -w})
    glide = m.mode("glide", ode={y: v - s, v: -g * 0.2, w: -w, s: -s})
    hit = {"guard": y, "direction": "falling"}
    m.transition(flight, flight, **hit, reset={v: -e * v}, memory={n: n + 1}, name="bounce")
    m.transition(slow, flight, **hit, reset={v: -e * v})
    m.transition(glide, flight, at=0.2)
    m.initial(flight, {y: h, v: 0.0, w: ca.vertcat(h, 1, 2)})
    m.functional("G", terminal=y + n * v + ca.sum1(w) / 10, integrand=y**2)
    return m


@pytest.fixture(scope="module")
def system() -> dh.HybridSystem:
    return ball().build()


# -- values -----------------------------------------------------------------------------------------------------


def test_the_start_is_the_given_one(system: dh.HybridSystem) -> None:
    sol = dh.simulate(system, (0, 1), x0={"y": 2.0, "w[1]": 5.0, "n": 3.0}, **TIGHT)
    assert (sol["y"][0], sol["v"][0], sol["n"][0], sol["w"][0].tolist()) == (2.0, 0.0, 3.0, [1.0, 5.0, 2.0])
    assert sol.statistics["native_events"] == len(sol.events) == 1
    assert sol["n"][-1] == 4.0
    assert sol.parameters.tolist() == [9.81, 0.8, 1.0]


def test_an_array_gives_all_stated_values(system: dh.HybridSystem) -> None:
    sol = dh.simulate(system, (0, 0.1), x0=[2.0, -1.0, 1.0, 2.0, 3.0])
    assert (sol["y"][0], sol["v"][0], sol["w"][0].tolist()) == (2.0, -1.0, [1.0, 2.0, 3.0])


def test_a_model_with_that_start_gives_the_same(system: dh.HybridSystem) -> None:
    model = ball()
    values = {"y": 1.4, "v": 0.3, "w": np.array([0.1, 0.2, 0.3])}
    model.start = None
    model.initial("slow", values)
    stated = dh.adjoint_gradient(model.build(), (0, 1), "G", **TIGHT)
    called = dh.adjoint_gradient(system, (0, 1), "G", start_mode="slow", x0=values, **TIGHT)
    assert called.value == pytest.approx(stated.value, rel=1e-12)
    np.testing.assert_allclose(called.gradient, stated.gradient, rtol=1e-10)


def test_nothing_changes_without_a_start(system: dh.HybridSystem) -> None:
    assert dh.started(system) is system
    assert dh.started(system, wrt=["g", "h"]) is system
    assert dh.started(system, x0={}) is system
    assert dh.started(system, start_mode="flight") is system
    assert system.parameters.names == ("g", "e", "h")


def test_the_copy_is_kept(system: dh.HybridSystem) -> None:
    one, other = (dh.started(system, x0={"y": y}, wrt="y(0)") for y in (1.0, 2.0))
    assert one.modes is other.modes
    assert one.nominal.tolist() == [9.81, 0.8, 1.0, 1.0]
    assert other.parameter_vector([1.0, 2.0, 3.0]).tolist() == [1.0, 2.0, 3.0, 2.0]
    assert other.parameter_indices(None) == (0, 1, 2)


# -- derivatives ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("call", CALLS)
def test_derivatives(system: dh.HybridSystem, call: str, way: str) -> None:
    check = dh.check_gradient(system, (0, 1), "G", **CALLS[call], **WAYS[way], **TIGHT)
    assert check.difference("forward", "adjoint") < 2e-7
    assert check.difference("forward", "finite_difference") < 1e-5


def test_a_closed_form() -> None:
    """x = (x0 + n) exp(-k t): by x0, by n, and by k at the given values."""
    m = dh.HybridModel("decay")
    k, x, n = m.parameter("k", 0.7), m.differential("x"), m.memory("n", initial=0.5)
    m.initial(m.mode("run", ode={x: -k * x}), {x: 2.0 * k})
    m.functional("G", terminal=x * (1 + n))
    found = dh.adjoint_gradient(
        m.build(), (0, 2), x0={"x": 3.0}, wrt=["k", "x(0)", "n(0)"], rtol=1e-11, atol=1e-13
    ).gradient
    decay = np.exp(-1.4)
    np.testing.assert_allclose(found, [-2 * 3 * 1.5 * decay, 1.5 * decay, 3 * decay], rtol=1e-9)


def test_constraints_follow_initial_values() -> None:
    m = dh.HybridModel("pendulum")
    length, g = m.parameter("length", 1.0), m.parameter("g", 9.81)
    x, y, u, v = (m.differential(name) for name in "xyuv")
    pull = m.algebraic("pull")
    swing = m.mode("swing", ode={x: u, y: v, u: -pull * x, v: -pull * y - g}, constraint=[x * u + y * v])
    m.initial(swing, {x: 0.6 * length, u: 0.0}, equations=[x**2 + y**2 - length**2], guess={y: -0.8})
    m.functional("G", terminal=x)
    system = m.build()
    check = dh.check_gradient(system, (0, 1), x0={"x": 0.3}, wrt=["x(0)", "g"], **TIGHT)
    assert check.difference("forward", "adjoint") < 1e-8
    assert check.difference("forward", "finite_difference") < 1e-5
    agreeing = dh.simulate(system, (0, 1), x0={"y": -0.8}, **TIGHT)
    assert agreeing.functionals["G"] == pytest.approx(dh.simulate(system, (0, 1), **TIGHT).functionals["G"], abs=1e-9)
    with pytest.raises(dh.ConsistencyError, match="x0 gives y, which the model determines"):
        dh.simulate(system, (0, 1), x0={"y": -0.7})
    with pytest.raises(dh.ConsistencyError, match="agree at these parameters, but not at others"):
        dh.adjoint_gradient(system, (0, 1), x0={"y": -0.8}, wrt="length")
    with pytest.raises(dh.ParameterError, match="the model gives y no initial value as a whole"):
        dh.adjoint_gradient(system, (0, 1), wrt="y(0)")


def test_values_to_be_projected() -> None:
    """From (1, 0.2) to the nearest x on the circle of radius r."""
    m = dh.HybridModel("circle")
    r, x, y = m.parameter("r", 1.0), m.differential("x"), m.differential("y")
    m.initial(m.mode("run", ode={x: -y, y: x}), {x: 1.0, y: 0.1}, project=[x], equations=[x**2 + y**2 - r**2])
    m.functional("G", terminal=x)
    system = m.build()
    check = dh.check_gradient(system, (0, 1), x0={"y": 0.2}, wrt=["r", "y(0)"], **TIGHT)
    side = np.sqrt(0.96)
    np.testing.assert_allclose(
        check.gradients["forward"], [np.cos(1) / side, -np.sin(1) - np.cos(1) * 0.2 / side], rtol=1e-7
    )
    assert check.difference("forward", "adjoint") < 1e-9
    found = dh.batch(system, (0, 1), x0={"y": [0.2, 0.3]}, gradient="forward", **TIGHT)
    assert found.parameters.shape == (2, 2)
    np.testing.assert_allclose(found.gradient["G"][0], [np.cos(1) / side], rtol=1e-7)


# -- many runs --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["in place of the model's", "of a memory", "of an entry", "that the mode needs"])
@pytest.mark.parametrize("gradient", ["forward", "adjoint"])
def test_batches_and_prepared_calls_give_the_same(system: dh.HybridSystem, call: str, gradient: Any) -> None:
    more = dict(CALLS[call])
    p, x0 = more.pop("parameters", None), more.pop("x0")
    single = dh.forward_sensitivity(system, (0, 1), parameters=p, x0=x0, **more, **TIGHT).gradient["G"]
    run = dh.prepare(system, (0, 1), x0=x0, derivatives=gradient, **more, **TIGHT)(p)
    assert run.is_native
    np.testing.assert_allclose(run.gradient["G"], single, rtol=1e-6)
    table = {name: [value, 1.1 * value] for name, value in x0.items()}
    sets = None if p is None else np.tile(system.parameter_vector(p), (2, 1))
    many = dh.batch(system, (0, 1), parameters=sets, x0=table, gradient=gradient, **more, **TIGHT)
    assert many.ok.all()
    assert many.native.all()
    np.testing.assert_allclose(many.gradient["G"][0], single, rtol=1e-6)
    assert np.abs(many.gradient["G"][1] - single).max() > 1e-3
    again = pickle.loads(pickle.dumps(many))
    np.testing.assert_array_equal(again.gradients, many.gradients)


def test_systems_with_other_starts_share_no_runs(system: dh.HybridSystem) -> None:
    """They share a graph, and must not share what was prepared for the start of one of them."""
    for value in (1.0, 2.0, 1.5):
        own = dh.started(system, x0={"y": value, "n": value}, start_mode="slow")
        single = dh.adjoint_gradient(own, (0, 1), "G", **TIGHT)
        many = dh.batch(own, (0, 1), parameters={"g": [9.81, 9.81]}, gradient="adjoint", **TIGHT)
        np.testing.assert_allclose(many.functionals["G"], single.value, rtol=1e-9)
        np.testing.assert_allclose(many.gradient["G"], [single.gradient] * 2, rtol=1e-7)
        prepared = dh.prepare(own, (0, 1), derivatives="forward", **TIGHT)()
        assert prepared.functionals["G"] == pytest.approx(single.value, rel=1e-9)


@pytest.mark.parametrize("derivatives", ["forward", "adjoint"])
def test_a_fit_of_initial_values(system: dh.HybridSystem, derivatives: Any) -> None:
    """One value for each experiment, beside other values that are fixed."""
    own, t = dh.started(system, x0={"v": 0.5, "n": 1.0, "y": 1.0}, wrt=["y(0)"]), np.linspace(0.05, 0.3, 6)
    truth = {"g": 8.0}
    runs = [dh.simulate(own, (0, 0.3), parameters={**truth, "y(0)": y}, t_eval=t, **TIGHT) for y in (1.2, 1.7)]
    data = [dh.Experiment({"y": run["y"], "v": run["v"]}, t) for run in runs]
    found = dh.fit(own, data, ["g", "y(0)"], local=["y(0)"], derivatives=derivatives, **TIGHT).parameters
    assert found == pytest.approx({**truth, "y(0)(1)": 1.2, "y(0)(2)": 1.7}, rel=1e-6)


def test_outputs_as_functions_of_initial_values(system: dh.HybridSystem) -> None:
    outputs = OutputMap(system, (0, 1), [0.3, 0.9], ["y", "w"], x0={"y": 1.5, "n": 1.0}, wrt=["y(0)", "g"], **TIGHT)
    values, derivatives = outputs.derivatives()
    np.testing.assert_allclose(values, outputs.values(), rtol=1e-9)
    weights = np.random.default_rng(1).normal(size=outputs.shape)
    np.testing.assert_allclose(outputs.vjp(None, weights), np.einsum("ti,tip->p", weights, derivatives), rtol=1e-6)
    plus, minus = (
        OutputMap(system, (0, 1), [0.3, 0.9], ["y", "w"], x0={"y": y, "n": 1.0}, **TIGHT).values()
        for y in (1.5 + 1e-5, 1.5 - 1e-5)
    )
    np.testing.assert_allclose(derivatives[:, :, 0], (plus - minus) / 2e-5, atol=1e-5)


@pytest.mark.parametrize("call", CALLS)
def test_results_are_pickled_with_their_start(system: dh.HybridSystem, call: str) -> None:
    found = dh.forward_sensitivity(system, (0, 1), **CALLS[call], **TIGHT)
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.gradient["G"], found.gradient["G"])
    more = {key: value for key, value in CALLS[call].items() if key == "parameters"}
    repeated = dh.simulate(again.trajectory.system, (0, 1), **more, **TIGHT)
    assert repeated.functionals["G"] == pytest.approx(found.functionals["G"], rel=1e-8)


def test_second_derivatives_lines_and_optima() -> None:
    """x = x0 exp(-k t): the derivatives of (x(1) - 1)^2 by x0."""
    m = dh.HybridModel("decay")
    k, x = m.parameter("k", 0.7), m.differential("x")
    m.initial(m.mode("run", ode={x: -k * x}), {x: 2.0})
    m.functional("G", terminal=(x - 1) ** 2)
    system, decay = m.build(), np.exp(-0.7)
    second = dh.hessian(system, (0, 1), x0={"x": 3.0}, wrt=["x(0)"], **TIGHT)
    assert second.matrix[0, 0] == pytest.approx(2 * decay**2, rel=1e-6)
    line = dh.scan(system, (0, 1), along="x(0)", values=[1.0, 2.0, 3.0], **TIGHT)
    at = np.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(line.derivatives, 2 * decay * (at * decay - 1), rtol=1e-7)
    problem = dh.OptimizationProblem(system, (0, 1), "G", wrt="x(0)", **TIGHT)
    assert problem.x0 == [2.0]
    assert problem.minimize("BFGS").parameters["x(0)"] == pytest.approx(1 / decay, rel=1e-5)
    rest = dh.started(system, x0={"x": 0.0})
    estimate = dh.fit(dh.started(system, wrt="x(0)"), dh.Experiment({"x": 3 * np.exp(-0.5 * at)}, at), ["k", "x(0)"])
    np.testing.assert_allclose(estimate.estimates, [0.5, 3.0], rtol=1e-5)
    sample = dh.monte_carlo(rest, (0, 1), dh.Inputs(rest, {"k": stats.uniform(0.6, 0.2)}), 16)
    np.testing.assert_allclose(sample.values, 1.0)


def test_a_parameter_is_a_value_and_no_shift(system: dh.HybridSystem) -> None:
    """Of a value that depends on parameters there is a derivative by a shift, and no parameter."""
    own = dh.started(system, wrt=["v(0)", "w(0)"], x0={"w[0]": 2.0})
    assert own.nominal.tolist() == [9.81, 0.8, 1.0, 0.0, 2.0, 1.0, 2.0]
    assert dh.simulate(own, (0, 1), parameters={"v(0)": 0.3})["v"][0] == 0.3
    for wrt in ("y(0)", "w(0)"):
        with pytest.raises(dh.ParameterError, match=r"the model's initial value of (y|w\[0\]) depends on parameters"):
            dh.started(system, wrt=wrt)
    with pytest.raises(dh.ParameterError, match="depends on parameters"):
        dh.scan(system, (0, 1), "G", along="y(0)", values=[1.0, 2.0])
    with pytest.raises(dh.ParameterError, match="whose initial value is a parameter"):
        dh.simulate(own, (0, 1), x0={"v": 1.0})


# -- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"start_mode": "fly"}, "start_mode='fly' is not a mode"),
        ({"start_mode": 1}, "start_mode=1 is not a mode"),
        ({"start_mode": "glide"}, "cannot start in mode 'glide': No initial value for s"),
        ({"x0": {"z": 1.0}}, "'z' is no variable or memory with an initial value"),
        ({"x0": {"s": 1.0}}, "'s' is no variable"),
        ({"x0": {"q": 1.0}}, "'q' is no variable"),
        ({"x0": {"y": 1.0, "w": [1.0, 2.0]}}, r"x0\['w'\]: an array of shape \(3,\)"),
        ({"x0": {"w": [1.0, 2.0, 3.0], "w[1]": 2.0}}, "x0 gives a value twice"),
        ({"x0": {"y": np.nan}}, "finite initial values"),
        ({"x0": {"y": [1.0, 2.0]}}, "initial values of one run"),
        ({"x0": [1.0, 2.0]}, "an array of shape"),
        ({"x0": {"y": "high"}}, "x0"),
    ],
)
def test_starts_that_do_not_exist(system: dh.HybridSystem, call: dict[str, Any], said: str) -> None:
    with pytest.raises(dh.ParameterError, match=said):
        dh.simulate(system, (0, 1), **call)


@pytest.mark.parametrize("call", [{"x0": {"y": 1.0}}, {"x0": {"n": 1.0}}, {"start_mode": "slow"}, {"wrt": "y(0)"}])
def test_values_are_replaced_once(system: dh.HybridSystem, call: dict[str, Any]) -> None:
    """Further values would drop those that were given before."""
    for own in (dh.started(system, x0={"w": [1.0, 2.0, 3.0]}), dh.started(system, x0={"v": 1.0, "n": 2.0})):
        with pytest.raises(dh.UnsupportedError, match="they cannot be replaced again"):
            dh.started(own, **call)
        if "wrt" not in call:
            with pytest.raises(dh.UnsupportedError, match="they cannot be replaced again"):
                dh.batch(own, (0, 1), **call)


def test_a_mode_before_its_values(system: dh.HybridSystem) -> None:
    own = dh.started(system, start_mode="slow")
    for value in (1.0, 2.0):
        then = dh.simulate(own, (0, 1), x0={"y": value}, **TIGHT).functionals["G"]
        assert then == dh.simulate(system, (0, 1), x0={"y": value}, start_mode="slow", **TIGHT).functionals["G"]


def test_truth_values_of_relations_are_no_initial_values() -> None:
    m = dh.HybridModel("switch")
    p, x = m.parameter("p", 0.5), m.differential("x")
    m.initial(m.mode("run", ode={x: ca.if_else(x < p, 1, 2)}), {x: 0.0})
    system = m.build()
    assert "x < p" in system.memory
    with pytest.raises(dh.ParameterError, match="'x < p' is no variable or memory with an initial value"):
        dh.simulate(system, (0, 1), x0={"x < p": 0.0})
    with pytest.raises(dh.ParameterError, match="unknown parameter 'x < p\\(0\\)'"):
        dh.forward_sensitivity(system, (0, 1), wrt="x < p(0)")


def test_a_variable_with_the_name_of_an_initial_value() -> None:
    m = dh.HybridModel("names")
    x, y = m.differential("x"), m.differential("x(0)")
    m.initial(m.mode("run", ode={x: -x, y: -y}), {x: 1.0, y: 2.0})
    with pytest.raises(dh.ParameterError, match=r"'x\(0\)' is a variable of the model"):
        dh.forward_sensitivity(m.build(), (0, 1), wrt="x(0)")


def test_initial_values_that_are_none(system: dh.HybridSystem) -> None:
    for name in ("z(0)", "s(0)", "q(0)"):
        with pytest.raises(dh.ParameterError, match="unknown parameter"):
            dh.forward_sensitivity(system, (0, 1), wrt=name)
