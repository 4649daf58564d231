"""Fits with starts, iterates or optima where derivatives are one-sided: a dose or a switch at a datum, or at t = 0."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

import dae_hybrid as dh

TIMES = np.array([0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0])
STARTS = [0.5, 1.0, 0.51, 0.0]
TRUTH = {"lag": 0.73, "ka": 1.7, "k": 0.4}
TIGHT = {"rtol": 1e-9, "atol": 1e-12}


def oral() -> dh.HybridModel:
    """A dose of 10 after a lag, absorbed at the rate ka, eliminated at the rate k."""
    m = dh.HybridModel("oral")
    lag, ka, k = m.parameter("lag", 0.5), m.parameter("ka", 1.0), m.parameter("k", 0.3)
    gut, conc = m.differential("gut"), m.differential("conc")
    run = m.mode("run", ode={gut: -ka * gut, conc: ka * gut - k * conc})
    m.transition(run, run, at=lag, reset={gut: gut + 10.0}, name="dose")
    m.initial(run, {gut: 0.0, conc: 0.0})
    return m


def absorbed(t, lag: float, ka: float, k: float):
    after = np.maximum(t - lag, 0.0)
    return 10 * ka / (ka - k) * (np.exp(-k * after) - np.exp(-ka * after))


def bolus() -> dh.HybridModel:
    """A dose of 4 after a lag, at which the concentration itself jumps."""
    m = dh.HybridModel("bolus")
    lag, k, conc = m.parameter("lag", 0.5), m.parameter("k", 1.0), m.differential("conc")
    run = m.mode("run", ode={conc: -k * conc})
    m.transition(run, run, at=lag, reset={conc: conc + 4.0}, name="dose")
    m.initial(run, {conc: 0.0})
    return m


def switch() -> dh.HybridModel:
    """x grows at the rate r until it is `top`, or until the time `until`, and decays from there on."""
    m = dh.HybridModel("switch")
    top, until, r = m.parameter("top", 2.0), m.parameter("until", 50.0), m.parameter("r", 1.0)
    x = m.differential("x")
    up, down = m.mode("up", ode={x: r}), m.mode("down", ode={x: -x})
    m.transition(up, down, guard=x - top, direction="rising", name="reached")
    m.transition(up, down, at=until, name="switch")
    m.initial(up, {x: 0.0})
    return m


def switched(t, until: float, r: float):
    return np.where(t < until, r * t, r * until * np.exp(-np.maximum(t - until, 0.0)))


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("optimizer", ["trf", "L-BFGS-B"])
def test_a_lag_is_found_from_round_numbers(built, optimizer: str, start: float) -> None:
    data = dh.Experiment({"conc": absorbed(TIMES, **TRUTH)}, TIMES)
    bounds = {"lag": (0, None)} if optimizer == "L-BFGS-B" else None
    fit = dh.fit(
        built(oral), data, {"lag": start, "ka": 1.0, "k": 0.3}, bounds=bounds, optimizer=optimizer, **TIGHT
    )  # fmt: skip
    assert fit.success
    assert_allclose(fit.estimates, list(TRUTH.values()), rtol=1e-8 if optimizer == "trf" else 1e-3)
    assert not fit.failures
    is_exact = optimizer == "L-BFGS-B" and start == 0.5  # the residual there is zero, and has no weight in a gradient
    assert bool(fit.one_sided) == (start != 0.51 and not is_exact)
    for own in fit.one_sided[:1]:
        assert own.parameters == {"lag": start, "ka": 1.0, "k": 0.3}
        assert own.taken_at["lag"] > start
        assert own.taken_at["lag"] == pytest.approx(start, abs=1e-6)
        assert "'dose'" in own.reason
        assert ("Output 'conc' is measured" in own.reason) == (start > 0)
        assert str(own) in str(fit)
        assert "'outputs" not in str(fit)


@pytest.mark.parametrize("start", STARTS)
def test_a_lag_at_which_the_measured_variable_jumps(built, start: float) -> None:
    """The side of a value needs no `at_events` if the coincidence at the start is chance."""
    times = TIMES if start else TIMES[2:]  # with the first two lag = 0 is a minimum
    values = np.where(times > 0.73, 4 * np.exp(-0.4 * (times - 0.73)), 0.0)
    for side in (None, "before", "after"):
        data = dh.Experiment({"conc": values}, times, at_events=side)
        fit = dh.fit(built(bolus), data, {"lag": start, "k": 0.5}, bounds={"lag": (0, 2)}, **TIGHT)
        assert fit.success
        assert_allclose(fit.estimates, [0.73, 0.4], rtol=1e-7)
        assert bool(fit.one_sided) == (start != 0.51)


def test_a_jump_that_is_not_chance_needs_a_side(built) -> None:
    """The lag is fixed: the value is at the very time of the dose for all parameters."""
    data = dh.Experiment({"conc": np.ones(8)}, TIMES)
    with pytest.raises(dh.ParameterError, match=r"'conc' jumps at t = 0\.5"):
        dh.fit(built(bolus), data, "k", **TIGHT)


@pytest.mark.parametrize("start", [2.0, 1.0, 3.0, 1.6])
@pytest.mark.parametrize("name", ["top", "until"])
def test_a_switch_at_a_datum(built, name: str, start: float) -> None:
    data = dh.Experiment({"x": switched(TIMES, 1.7, 0.8)}, TIMES)
    fixed = {"top": 100.0} if name == "until" else {"until": 50.0}
    fit = dh.fit(built(switch), data, {name: start, "r": 1.0}, parameters=fixed, **TIGHT)
    assert fit.success
    assert_allclose(fit.estimates, [0.8 * 1.7 if name == "top" else 1.7, 0.8], rtol=1e-7)
    assert (start in {own.parameters[name] for own in fit.one_sided}) == (start != 1.6)


@pytest.mark.parametrize("start", [0.5, 0.51, 1.0])
def test_an_optimum_at_a_datum_is_refused_with_what_was_found(built, start: float) -> None:
    exact = {**TRUTH, "lag": 0.5}
    data = dh.Experiment({"conc": absorbed(TIMES, **exact)}, TIMES)
    with pytest.raises(dh.OneSidedError, match=r"ends at lag = 0\.5.* with cost .*Output 'conc'") as caught:
        dh.fit(built(oral), data, {"lag": start, "ka": 1.0, "k": 0.3}, **TIGHT)
    fit = caught.value.result
    assert_allclose(fit.estimates, list(exact.values()), rtol=1e-7)
    assert fit.cost < 1e-12
    assert not fit.success
    assert "one-sided" in fit.message
    assert isinstance(caught.value, dh.EventError)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)


def test_without_the_value_there_the_optimum_is_one(built) -> None:
    exact = {**TRUTH, "lag": 0.5}
    data = dh.Experiment({"conc": np.where(TIMES == 0.5, np.nan, absorbed(TIMES, **exact))}, TIMES)
    fit = dh.fit(built(oral), data, {"lag": 0.6, "ka": 1.0, "k": 0.3}, **TIGHT)
    assert_allclose(fit.estimates, list(exact.values()), rtol=1e-7)


@pytest.mark.parametrize(("optimizer", "start"), [("trf", 0.5), ("trf", 0.8), ("L-BFGS-B", 0.8)])
def test_a_bound_at_a_datum_excludes_one_side(built, optimizer: str, start: float) -> None:
    """The cost falls towards the bound, and derivatives there are those from within."""
    data = dh.Experiment({"conc": absorbed(TIMES, 0.1, 1.7, 0.4)}, TIMES)
    fit = dh.fit(
        built(oral), data, {"lag": start, "ka": 2.0, "k": 0.3}, bounds={"lag": (0.5, 3)}, optimizer=optimizer, **TIGHT
    )
    assert_allclose(fit.parameters["lag"], 0.5, atol=1e-6)
    assert fit.at_bound.tolist() == [True, False, False]
    assert fit.one_sided
    assert all(own.taken_at["lag"] >= 0.5 for own in fit.one_sided)
    near = [0.5 + 1e-5, *fit.estimates[1:]]  # the derivatives of the residual at 0.5 by lag vanish on this side
    assert_allclose(fit.jacobian, fit.misfit.linearised(np.array(near)).jacobian, atol=1e-2)
    assert fit.jacobian[1, 0] == 0.0


def test_without_derivatives_such_an_optimum_has_no_standard_errors(built) -> None:
    data = dh.Experiment({"conc": absorbed(TIMES, 0.5, 1.7, 0.4)}, TIMES)
    with pytest.raises(dh.OneSidedError) as caught:
        dh.fit(built(oral), data, {"lag": 0.5}, parameters={"ka": 1.7, "k": 0.4}, **TIGHT)
    search = caught.value.result.searches[0]  # as if a method without derivatives had found it
    search = replace(search, best=replace(search.best, jacobian=None, gradient=None))
    with pytest.raises(dh.OneSidedError, match="'conc'"):
        _ = replace(caught.value.result, searches=(search,)).standard_errors


def test_a_single_gradient_there_is_still_refused(built) -> None:
    from dae_hybrid.interface.output_map import OutputMap

    outputs = OutputMap(built(oral), (0, 8), TIMES, ["gut", "conc"], **TIGHT)
    with pytest.raises(dh.EventError, match=r"^Output 'gut' is measured at the time of an event") as caught:
        outputs.derivatives()
    assert (caught.value.time, caught.value.transition) == (0.5, "dose")
    assert caught.value.is_one_sided
    with pytest.raises(dh.EventError, match=r"^Output 'conc'"):
        outputs.vjp(None, np.outer(np.ones(8), [0.0, 1.0]))  # the weight of gut is zero
