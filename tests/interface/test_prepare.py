"""Prepared calls: bitwise equal to ordinary calls, with almost no time in Python."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.problems import hybrid_ode

TIGHT = {"rtol": 1e-8, "atol": 1e-10, "native_events": True}
CASES = {"ball": (0.0, 3.0), "em": (0.0, 2.0), "switched": (0.0, 9.0), "decay": (0.5, 3.0), "circuit": (0.0, 2.0)}


@pytest.mark.parametrize("name", CASES)
def test_simulations(name: str, built: Any, models: Any) -> None:
    system, span = built(getattr(models, name)), CASES[name]
    run = dh.prepare(system, span, **TIGHT)
    for share in (1.0, 1.01, 0.98, 1.0):
        p = share * system.nominal
        found, sol = run(p), dh.simulate(system, span, parameters=p, **TIGHT)
        assert list(found.functionals) == list(sol.functionals)
        for key, value in sol.functionals.items():
            np.testing.assert_array_equal(found.functionals[key], value)
        assert (found.n_events, found.t_end) == (len(sol.events), sol.final[0])
        assert found.n_steps == sol.statistics["steps"]
        assert not found.gradient
        assert found.is_native
        np.testing.assert_array_equal(found.parameters, p)
        assert isinstance(found.single, dh.Trajectory)
        for variable in sol.names:
            np.testing.assert_array_equal(found.trajectory[variable], sol[variable])


@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str, built: Any, models: Any) -> None:
    system, span = built(getattr(models, name)), CASES[name]
    forward = dh.prepare(system, span, derivatives="forward", **TIGHT)
    adjoint = dh.prepare(system, span, derivatives="adjoint", **TIGHT)
    for share in (1.0, 1.02):
        p = share * system.nominal
        fsa = dh.forward_sensitivity(system, span, parameters=p, **TIGHT)
        found, back = forward(p), adjoint(p)
        for functional, gradient in fsa.gradient.items():
            np.testing.assert_array_equal(found.gradient[functional], gradient)
            np.testing.assert_array_equal(found.functionals[functional], fsa.functionals[functional])
            asa = dh.adjoint_gradient(system, span, functional, parameters=p, **TIGHT)
            np.testing.assert_array_equal(back.gradient[functional], asa.gradient)
            np.testing.assert_array_equal(back.functionals[functional], asa.value)
        assert isinstance(found.single, dh.ForwardSensitivity)
        np.testing.assert_array_equal(found.single.event_time_sensitivity, fsa.event_time_sensitivity)
        assert set(back.single) == set(fsa.gradient)


def test_a_functional_by_some_parameters(built: Any, models: Any) -> None:
    system = built(models.decay)
    run = dh.prepare(system, (0, 2), functional="end", derivatives="adjoint", wrt="y0", rtol=1e-10)
    for given in ({"k": 0.5}, [0.5, 2.0], np.array([0.5, 2.0]), (0.5, 2)):
        found = run(given)
        assert found.value == pytest.approx(2 * np.exp(-1), rel=1e-8)
        np.testing.assert_allclose(found.gradient["end"], [np.exp(-1)], rtol=1e-8)
        assert list(found.gradient) == ["end"]
    assert run().value == pytest.approx(2 * np.exp(-1.4), rel=1e-8)
    both = dh.prepare(system, (0, 2))()
    with pytest.raises(dh.ParameterError, match="Name the functional"):
        both.value  # noqa: B018


@pytest.mark.parametrize("derivatives", ["forward", "adjoint"])
def test_results_are_the_callers_own(derivatives: Any, built: Any, models: Any) -> None:
    system = built(models.decay)
    run, given = dh.prepare(system, (0, 2), derivatives=derivatives), np.array([0.7, 2.0])
    first = run(given)
    kept = first.functionals["end"], first.gradient["end"].copy()
    given[:] = 0.1, 5.0
    second = run(given)
    assert first.functionals["end"] == kept[0] != second.functionals["end"]
    np.testing.assert_array_equal(first.gradient["end"], kept[1])
    np.testing.assert_array_equal(first.parameters, [0.7, 2.0])
    first.gradient["end"][:] = 0.0
    np.testing.assert_array_equal(run([0.7, 2.0]).gradient["end"], kept[1])


def test_errors_are_those_of_single_calls(built: Any, models: Any) -> None:
    system = built(models.ball)
    run = dh.prepare(system, (0, 3), derivatives="adjoint", **TIGHT)
    good = run([0.8, 9.81]).value
    for p, error in (([np.nan, 9.81], dh.ParameterError), ([0.8], dh.ParameterError), ([0.2, 1e5], dh.EventError)):
        for given in (p, np.array(p)):
            with pytest.raises(error):
                run(given)
    with pytest.raises(dh.ParameterError, match="Unknown parameter"):
        run({"q": 1.0})
    assert run([0.8, 9.81]).value == good
    with pytest.raises(dh.OptionError, match="'forward' or 'adjoint'"):
        dh.prepare(system, (0, 3), derivatives="both")
    with pytest.raises(dh.OptionError, match="Unknown option"):
        dh.prepare(system, (0, 3), tolerance=1e-3)
    with pytest.raises(dh.OptionError, match="built HybridSystem"):
        dh.prepare(models.ball(), (0, 3))
    with pytest.raises(dh.OptionError):
        dh.prepare(system, (3, 0))


def test_conditions_are_those_of_single_calls() -> None:
    """The guard only touches zero."""
    m = dh.HybridModel("touching")
    a, x, v = m.parameter("a", 1.0), m.differential("x"), m.differential("v")
    swing = m.mode("swing", ode={x: v, v: -x})
    m.transition(swing, swing, guard=x - 1, direction="rising", reset={v: 0.5 * v})
    m.initial(swing, {x: 0.0, v: a})
    m.functional("G", integrand=x**2)
    system = m.build()
    for derivatives in ("forward", "adjoint"):
        run = dh.prepare(system, (0, 4), derivatives=derivatives, **TIGHT)
        assert run([0.5]).is_native
        with pytest.raises(dh.GrazingError):
            run([1.0 + 1e-12])
        with pytest.warns(dh.DerivativeWarning):
            dh.prepare(system, (0, 4), derivatives=derivatives, strict=False, **TIGHT)([1.0 + 1e-12])


@pytest.mark.parametrize("adapter", ["scipy", "casadi"])
def test_every_adapter(adapter: str, built: Any, models: Any) -> None:
    system = built(models.decay)
    found = dh.prepare(system, (0, 2), derivatives="forward", adapter=adapter, rtol=1e-8)([0.5, 2.0])
    assert not found.is_native
    np.testing.assert_allclose(found.gradient["end"], [-4 * np.exp(-1), np.exp(-1)], rtol=1e-5)


def test_where_nothing_is_compiled(models: Any) -> None:
    found = dh.prepare(models.decay().build(native=False), (0, 2), rtol=1e-8)([0.5, 2.0])
    assert not found.is_native
    assert found.functionals["end"] == pytest.approx(2 * np.exp(-1), rel=1e-6)


def test_threads_share_it(built: Any) -> None:
    run = dh.prepare(built(hybrid_ode.model), (0, 5), derivatives="adjoint", rtol=1e-8)
    values = np.linspace(2.8, 3.2, 40)[:, None]
    expected = [run(p).gradient["G"] for p in values]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda p: run(p).gradient["G"], values))
    np.testing.assert_array_equal(found, expected)


def test_it_costs_less_than_a_single_call(built: Any, models: Any) -> None:
    system, p = built(models.decay), np.array([0.7, 2.0])
    run = dh.prepare(system, (0, 1), native_events=True)

    def cost(call: Any) -> float:
        times = []
        for _ in range(30):
            begin = time.process_time()
            for _ in range(20):
                call(p)
            times.append(time.process_time() - begin)
        return min(times)

    assert cost(run) < 0.5 * cost(lambda p: dh.simulate(system, (0, 1), parameters=p, native_events=True))
    assert repr(run).startswith("<Prepared simulation of 'decay'")
    assert repr(run(p)).startswith("<Run of 'decay' to 1: 0 events, area = ")
