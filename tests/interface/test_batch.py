"""Batches: to the last bit what single calls return, each with its own errors, on all cores."""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Timer
from typing import Any

import casadi as ca
import numpy as np
import pytest
from batches import agree, sets

import dae_hybrid as dh
from dae_hybrid.adapters.sundials.session import SundialsIntegrator
from dae_hybrid.problems import ball_on_rope, em_hysteresis, hybrid_ode

TIGHT = {"rtol": 1e-8, "atol": 1e-10, "native_events": True}
ANALYSES = ["forward", "adjoint"]


@cache
def pulses() -> dh.HybridSystem:
    """A switch by the clock, whose times are parameters; measured on the way."""
    m = dh.HybridModel("pulses")
    a, period, at = m.parameter("a", 1.0), m.parameter("period", 0.3), m.parameter("at", 0.45)
    x = m.differential("x")
    on, off = m.mode("on", ode={x: a - x}), m.mode("off", ode={x: -x})
    m.transition(on, off, every=period)
    m.transition(off, on, at=at)
    m.initial(on, {x: 0.2})
    m.functional("G", integrand=x**2, at_times={0.7: x})
    return m.build()


CASES: dict[str, tuple[Callable[[Any], Callable[[], dh.HybridModel]], Any, tuple[str, ...], bool]] = {
    "ball": (lambda models: models.ball, (0.0, 3.0), ("auto", "adams", "bdf"), True),
    "em": (lambda models: models.em, (0.0, 3.0), ("auto",), True),
    "ode": (lambda models: hybrid_ode.model, (0.0, 5.0), ("auto", "bdf"), True),
    "switched": (lambda models: models.switched, (0.0, 9.0), ("auto", "bdf"), True),
    "decay": (lambda models: models.decay, (0.5, 3.0), ("auto", "bdf"), True),
    "dae": (lambda models: models.circuit, (0.0, 2.0), ("auto", "bdf"), True),
    "rope": (lambda models: ball_on_rope.model, (0.0, 0.8), ("auto",), False),
}


@pytest.mark.parametrize("gradient", [None, *ANALYSES])
@pytest.mark.parametrize("name", CASES)
def test_to_the_last_bit(name: str, gradient: str | None, built: Any, models: Any) -> None:
    make, span, methods, plain = CASES[name]
    system = built(make(models))
    for method in methods:
        found = agree(system, span, sets(system, 5), gradient, method=method, t_eval=np.linspace(*span, 5), **TIGHT)
        if plain and (gradient != "adjoint" or method == "auto"):
            assert found.statistics["native"] >= 3, (method, found)


@cache
def clocked() -> dh.HybridSystem:
    """Times and periods given by parameters, with costs at their events, and a guard."""
    m = dh.HybridModel("clocked")
    a, period, at = m.parameter("a", 1.0), m.parameter("period", 0.3), m.parameter("at", 0.47)
    x, n = m.differential("x"), m.memory("n", initial=0)
    on, off = m.mode("on", ode={x: a * m.time - x}), m.mode("off", ode={x: -x})
    tick = m.transition(on, on, every=period, reset={x: x + 0.1 * a}, memory={n: n + 1}, name="tick")
    m.transition(on, off, at=at, name="once")
    back = m.transition(off, on, guard=x - 0.1 * a, direction="falling", name="back")
    m.transition(on, on, at=2.123, reset={x: 0.9 * x}, name="fixed")
    m.initial(on, {x: 0.2})
    m.functional("G", integrand=x**2, terminal=n + x, at_events={tick: x**2 * period, back: m.time * a})
    m.functional("H", terminal=a * x)
    return m.build()


@pytest.mark.parametrize("gradient", [None, *ANALYSES])
@pytest.mark.parametrize("method", ["auto", "bdf"])
def test_time_events_and_their_costs(gradient: str | None, method: str) -> None:
    rows = np.concatenate((sets(clocked(), 6), [[1.0, np.nan, 0.47], [1.0, 0.0, 0.47], [1.0, -0.3, 0.47]]))
    for t_eval in (None, np.linspace(0.0, 3.0, 7)):
        found = agree(clocked(), (0.0, 3.0), rows, gradient, method=method, t_eval=t_eval, **TIGHT)
        kinds = [type(error) for error in found.errors[6:]]
        assert kinds == [dh.ParameterError, dh.NonFiniteError, dh.NonFiniteError]
        assert (found.n_events[:6] > 8).all()
        assert found.native[:6].all() == (gradient != "adjoint" or method == "auto")


def test_more_periods_than_are_listed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of times are made for as many runs as memory allows, and as long as runs need them."""
    monkeypatch.setattr("dae_hybrid.system.timetable.MAX_DUE_NUMBERS", 3000)
    m = dh.HybridModel("counting")
    k, period, x = m.parameter("k", 1.0), m.parameter("period", 0.01), m.differential("x")
    run = m.mode("run", ode={x: -k * x})
    m.transition(run, run, every=period, reset={x: x + 0.01})
    m.initial(run, {x: 1.0})
    m.functional("G", terminal=x)
    found = agree(m.build(), (0.0, 12.0), np.array([[1.0, 0.0101], [1.1, 0.0083], [0.9, 0.51]]), "adjoint", **TIGHT)
    assert found.n_events.tolist() == [1188, 1445, 23]
    assert found.native.all()


@pytest.mark.parametrize("gradient", ANALYSES)
def test_times_next_to_each_other(gradient: str) -> None:
    """Where a time is next to a guard's zero, to another one or to the end, it is looked at more closely."""
    m = dh.HybridModel("meeting")
    a, b, x = m.parameter("a", 1.0), m.parameter("b", 1.5), m.differential("x")
    one, two, three = (m.mode(name, ode={x: rate}) for name, rate in (("one", 1.0), ("two", -1.0), ("three", 2.0 * a)))
    m.transition(one, two, at=a)
    m.transition(one, three, guard=x - 1, direction="rising")
    m.transition(two, three, at=b)
    m.transition(two, three, guard=x + 0.5, direction="falling")
    m.initial(one, {x: 0.0})
    m.functional("G", integrand=x, terminal=x)
    system = m.build()
    for rows in (beside([1.0, 1.5], 0), beside([0.7, 1.9], 1), beside([0.7, 0.7], 1), beside([0.9, 2.0], 1)):
        found = agree(system, (0.0, 2.0), rows, gradient, **TIGHT)
        assert not found.native[:5].any()
        assert found.native.any()


@pytest.mark.parametrize("gradient", [None, *ANALYSES])
def test_times_and_measurements(gradient: str | None) -> None:
    found = agree(pulses(), (0.0, 1.0), sets(pulses(), 4), gradient, **TIGHT)
    assert found.ok.all()
    assert found.native.all()
    assert (found.n_events > 2).all()


@cache
def calibrated(of_time: str = "given") -> dh.HybridSystem:
    """Measurements of two modes with an algebraic variable and memory, at the start, on the way, and at the end."""
    m = dh.HybridModel("calibrated")
    k, s, late = m.parameter("k", 0.7), m.parameter("s", 1.3), m.parameter("late", 0.37)
    x, v, n, z = m.differential("x"), m.differential("v"), m.memory("n", initial=0.5), m.algebraic("z")
    ode = {x: v, v: -k * x - 0.1 * z}
    fast, slow = (m.mode(f"m{c}", ode=ode, algebraic=[z - (c * v + s) / (1 + 0.1 * x**2)]) for c in (1, 2))
    m.transition(fast, slow, guard=x, direction="falling", reset={v: -0.9 * v}, memory={n: n + s})
    m.transition(slow, fast, every=late, name="tick")
    m.initial(fast, {x: s, v: 0.2 * k})
    times = [0.0, 0.0, 0.3, 1.1, 1.1, 4.2, 6.7, 8.0]
    data = np.cos(times) + 0.1
    shift = late if of_time == "moves" else 0.0
    pairs = list(zip(times, data.tolist(), strict=True))
    m.functional(
        "G", integrand=x**2, terminal=x * v, at_times=[(t + shift * (t == 1.1), (x - y) ** 2 + n * z) for t, y in pairs]
    )
    m.functional("H", at_times=[(t, ca.vertcat(x * s, z)) for t in times[2:]])
    return m.build()


@pytest.mark.parametrize("gradient", [None, *ANALYSES])
@pytest.mark.parametrize("method", ["auto", "bdf"])
def test_measurements(gradient: str | None, method: str) -> None:
    system = calibrated()
    for t_eval in (None, np.linspace(0.0, 8.0, 9)):
        found = agree(system, (0.0, 8.0), sets(system, 5), gradient, method=method, t_eval=t_eval, **TIGHT)
        assert found.native.all() == (gradient != "adjoint" or method == "auto")
    agree(system, (0.0, 7.5), sets(system, 2), gradient, **TIGHT)


@pytest.mark.parametrize("gradient", ANALYSES)
def test_measurements_are_those_of_events_in_python(gradient: str) -> None:
    """Values and gradients by compiled code beside those of the automaton, and by both analyses."""
    system, rows = calibrated(), sets(calibrated(), 2)
    found = dh.batch(system, (0.0, 8.0), parameters=rows, gradient=gradient, **TIGHT)
    other = dh.batch(
        system, (0.0, 8.0), parameters=rows, gradient=gradient, duality=True, **TIGHT | {"native_events": False}
    )
    assert found.native.all()
    np.testing.assert_allclose(found.values, other.values, rtol=1e-6)
    np.testing.assert_allclose(found.gradients, other.gradients, rtol=1e-5, atol=1e-6)
    single = dh.forward_sensitivity(system, (0.0, 8.0), duality=True, **TIGHT)
    assert single.trajectory.statistics["native_events"] == len(single.trajectory.events)
    assert all(check.passed for check in single.duality.values())


def test_measurements_that_move_or_are_outside(built: Any) -> None:
    system = calibrated("moves")
    for gradient in ANALYSES:
        assert agree(system, (0.0, 8.0), sets(system, 2), gradient, **TIGHT).native.all()
    found = dh.batch(calibrated(), (0.0, 6.0), parameters=sets(calibrated(), 2), gradient="adjoint", **TIGHT)
    assert [type(error) for error in found.errors] == [dh.OptionError] * 2


@pytest.mark.parametrize("gradient", ANALYSES)
def test_measurements_next_to_events(gradient: str) -> None:
    m = dh.HybridModel("beside")
    a, x = m.parameter("a", 1.0), m.differential("x")
    one, two = m.mode("one", ode={x: 1.0}), m.mode("two", ode={x: -2.0 * a})
    m.transition(one, two, guard=x - a, direction="rising", reset={x: x + 0.1})
    m.initial(one, {x: 0.0})
    m.functional("G", at_times={1.0: x**2, 1.7: x})
    rows = beside([1.0], 0)
    found = agree(m.build(), (0.0, 1.7), rows, gradient, **TIGHT)
    assert not found.native[:5].any()
    assert found.native.any()


@pytest.mark.parametrize("gradient", ANALYSES)
def test_the_closed_form_of_measurements(gradient: str) -> None:
    """y = y0 exp(-k t), measured at 0, 0.5, ..., 2."""
    m = dh.HybridModel("measured decay")
    k, y0, y = m.parameter("k", 0.7), m.parameter("y0", 2.0), m.differential("y")
    m.initial(m.mode("run", ode={y: -k * y}), {y: y0})
    times = np.arange(5) / 2
    m.functional("G", at_times=[(t, (y - 1 / (1 + t)) ** 2) for t in times])
    ks = np.linspace(0.5, 1.5, 4)
    found = dh.batch(
        m.build(), (0, 2), parameters={"k": ks}, gradient=gradient, rtol=1e-10, atol=1e-13, native_events=True
    )
    e = np.exp(-np.outer(ks, times))
    off = 2 * e - 1 / (1 + times)
    assert found.native.all()
    np.testing.assert_allclose(found.functionals["G"], (off**2).sum(axis=1), rtol=1e-8)
    exact = np.stack(((-4 * times * e * off).sum(axis=1), (2 * e * off).sum(axis=1)), axis=1)
    np.testing.assert_allclose(found.gradient["G"], exact, rtol=1e-7)


@pytest.mark.parametrize("gradient", ANALYSES)
def test_the_closed_form(gradient: str, built: Any, models: Any) -> None:
    """y = y0 exp(-k t)."""
    system = built(models.decay)
    k, y0 = np.linspace(0.5, 1.5, 7), np.linspace(1.0, 3.0, 7)
    found = dh.batch(system, (0, 2), parameters={"k": k, "y0": y0}, gradient=gradient, functional="end", rtol=1e-10)
    np.testing.assert_allclose(found.functionals["end"], y0 * np.exp(-2 * k), rtol=1e-9)
    exact = np.stack((-2 * y0 * np.exp(-2 * k), np.exp(-2 * k)), axis=1)
    np.testing.assert_allclose(found.gradient["end"], exact, rtol=1e-8)
    assert list(found.gradient) == list(found.functionals) == ["end"]
    assert found.wrt == ("k", "y0")
    assert found.values.shape == (7, 1)
    assert found.gradients.shape == (7, 1, 2)
    np.testing.assert_allclose(found.final["y"], y0 * np.exp(-2 * k), rtol=1e-9)


# -- every condition of single calls ----------------------------------------------------------------------------


def beside(nominal: list[float], which: int, scale: float = 1.0) -> np.ndarray:
    """Parameters from next to a critical value to away from it."""
    away = scale * 10.0 ** np.arange(-15, -0.9, 1.0)
    rows = np.tile(np.array(nominal), (1 + 2 * away.size, 1))
    rows[1:, which] += np.concatenate((away, -away))
    return rows


@cache
def edges() -> dict[str, tuple[dh.HybridSystem, float, np.ndarray, int]]:
    """Where conditions of derivatives fail: system, end, parameters, and how many runs at least fail or warn."""
    m = dh.HybridModel("touching")
    a, c = m.parameter("a", 1.0), m.parameter("c", 1.0)
    x, v = m.differential("x"), m.differential("v")
    run = m.mode("run", ode={x: v, v: -x})
    m.transition(run, run, guard=x - c, direction="rising", reset={v: 0.5 * v})
    m.initial(run, {x: 0.0, v: a})
    m.functional("G", integrand=x**2, terminal=x)
    touching = m.build()
    m = dh.HybridModel("together")
    a, c = m.parameter("a", 1.0), m.parameter("c", 1.0)
    x, y = m.differential("x"), m.differential("y")
    one = m.mode("one", ode={x: 1.0, y: 1.0})
    up, down = m.mode("up", ode={x: 2.0 * a, y: -1.0}), m.mode("down", ode={x: -1.0, y: 3.0 * a})
    m.transition(one, up, guard=x - a, direction="rising")
    m.transition(one, down, guard=y - c, direction="rising")
    m.initial(one, {x: 0.0, y: 0.0})
    m.functional("G", terminal=x * y + a)
    together = m.build()
    m = dh.HybridModel("fall")
    g, e, h0 = m.parameter("g", 9.81), m.parameter("e", 0.8), m.parameter("h0", 1.0)
    h, v = m.differential("h"), m.differential("v")
    flight = m.mode("flight", ode={h: v, v: -g})
    m.transition(flight, flight, guard=h, direction="falling", reset={v: -e * v})
    m.initial(flight, {h: h0, v: 0.0})
    m.functional("G", terminal=h)
    fall = m.build()
    m = dh.HybridModel("lorenz")
    s, r = m.parameter("s", 10.0), m.parameter("r", 28.0)
    x, y, z = (m.differential(name) for name in "xyz")
    m.initial(m.mode("run", ode={x: s * (y - x), y: x * (r - z) - y, z: x * y - 8 / 3 * z}), {x: 1.0, y: 1.0, z: 1.0})
    m.functional("G", integrand=z)
    lorenz = m.build()
    landing = [9.81, 0.8, 1.0]
    return {
        "a guard that touches": (touching, 4.0, beside([1.0, 1.0], 0), 5),
        "two at once": (together, 2.0, beside([1.0, 1.0], 1), 5),
        "an event at the end": (fall, float(np.sqrt(2 / 9.81)), beside(landing, 0), 5),
        "an event at the start": (fall, 0.3, beside([9.81, 0.8, 1e-3], 2, 1e-3)[1:16], 1),
        "growth": (lorenz, 14.0, sets(lorenz, 2, 0.01), 0),
        "chaos": (lorenz, 25.0, sets(lorenz, 1, 0.01), 1),
    }


@pytest.mark.parametrize("gradient", ANALYSES)
@pytest.mark.parametrize("edge", range(6))
def test_nothing_is_handed_out_that_a_single_call_refuses(edge: int, gradient: str) -> None:
    system, end, rows, least = list(edges().values())[edge]
    found = agree(system, (0.0, end), rows, gradient, **TIGHT)
    assert len(rows) - found.native.sum() >= least


def test_sensitivities_that_are_not_resolved_at_first(built: Any, models: Any) -> None:
    """A parameter next to nothing: forward analysis is carried out again at other tolerances."""
    system = built(models.decay)
    rows = np.array([[0.7, 2.0], [1e-9, 2.0], [0.0, 2.0], [0.7, 1e-7], [0.7, 0.0]])
    found = agree(system, (0, 2), rows, "forward", **TIGHT)
    assert not found.native.all()


def test_strict_and_duality_are_those_of_single_calls() -> None:
    system, end, rows, _ = edges()["a guard that touches"]
    with pytest.warns(dh.DerivativeWarning):
        found = dh.batch(system, (0, end), parameters=rows[:2], gradient="adjoint", strict=False, **TIGHT)
    assert found.ok.all()
    found = dh.batch(system, (0, end), parameters=[[0.8, 1.0]], gradient="adjoint", duality=True, **TIGHT)
    assert not found.native.any()
    assert found.single(0)["G"].duality.passed


# -- errors ---------------------------------------------------------------------------------------------------


def test_errors_are_those_of_their_run(built: Any, models: Any) -> None:
    system = built(models.ball)
    rows = np.array([[0.8, 9.81], [np.nan, 9.81], [0.8, np.inf], [0.79, 9.81], [0.2, 1e5]])
    found = dh.batch(system, (0, 3), parameters=rows, gradient="adjoint", t_eval=[0.0, 1.0], **TIGHT)
    kinds = [type(error) for error in found.errors]
    assert kinds[:4] == [type(None), dh.ParameterError, dh.ParameterError, type(None)]
    assert issubclass(kinds[4], dh.EventError)
    assert found.ok.tolist() == [True, False, False, True, False]
    for values in (found.values, found.gradients, found.t_end, found.final["y"], found["v"]):
        np.testing.assert_array_equal(np.isfinite(values).reshape(5, -1).all(axis=1), found.ok)
    assert found.statistics["failed"] == 3
    with pytest.raises(dh.ParameterError, match="finite"):
        found.single(1)


def test_a_run_that_ends_early() -> None:
    m = dh.HybridModel("ends")
    k, x = m.parameter("k", 1.0), m.differential("x")
    m.initial(run := m.mode("run", ode={x: k}), {x: 0.0})
    m.transition(run, None, guard=x - 1, direction="rising")
    m.functional("G", integrand=x)
    found = agree(m.build(), (0, 2), np.array([[0.4], [0.8]]), "forward", **TIGHT)
    np.testing.assert_allclose(found.t_end, [2.0, 1.25])
    with pytest.raises(dh.OptionError, match="t_eval"):
        found["x"]
    with_outputs = dh.batch(m.build(), (0, 2), parameters=[[0.4], [0.8]], t_eval=[0.5, 1.5], **TIGHT)
    np.testing.assert_allclose(with_outputs["x"], [[0.2, 0.6], [0.4, np.nan]])


@pytest.mark.parametrize(
    ("given", "error", "match"),
    [
        ({"parameters": [0.7, 2.0]}, dh.ParameterError, r"shape \(N, 2\)"),
        ({"parameters": np.ones((3, 4))}, dh.ParameterError, r"got shape \(3, 4\)"),
        ({"parameters": {"q": [1.0]}}, dh.ParameterError, "unknown name 'q'"),
        ({"parameters": {"k": [1.0, 2.0], "y0": [1.0, 2.0, 3.0]}}, dh.ParameterError, "same number"),
        ({"parameters": {"k": np.ones((2, 2))}}, dh.ParameterError, r"shape \(N,\)"),
        ({"parameters": [["a", "b"]]}, dh.ParameterError, "numeric"),
        ({"x0": {"k": [1.0]}}, dh.ParameterError, "no variable"),
        ({"x0": [[1.0, 2.0]]}, dh.ParameterError, r"shape \(N, 1\)"),
        ({"x0": [[1.0], [2.0]], "parameters": np.ones((3, 2))}, dh.ParameterError, "3 runs"),
        ({"gradient": "backward"}, dh.OptionError, "'adjoint' or True"),
        ({"gradient": "adjoint", "wrt": "z"}, dh.ParameterError, "unknown parameter"),
        ({"wrt": "k"}, dh.OptionError, "no gradients were requested"),
        ({"functional": "H"}, dh.ParameterError, "Unknown functional"),
        ({"functional": ["end", "end"]}, dh.ParameterError, "each once"),
        ({"workers": 0}, dh.OptionError, "workers"),
        ({"rtol": -1.0}, dh.OptionError, "rtol"),
        ({"adapter": "none"}, dh.OptionError, "no adapter"),
    ],
)
def test_wrong_arguments_are_refused(given: Any, error: type[Exception], match: str, built: Any, models: Any) -> None:
    with pytest.raises(error, match=match):
        dh.batch(built(models.decay), (0, 1), **given)


def test_tables_by_name(built: Any, models: Any) -> None:
    import pandas as pd

    system, rows = built(models.ball), np.array([[0.8, 9.81], [0.7, 9.6]])
    expected = dh.batch(system, (0, 2), parameters=rows).values
    for given in (
        {"g": [9.81, 9.6], "e": [0.8, 0.7]},
        pd.DataFrame({"g": rows[:, 1], "e": rows[:, 0]}),
        np.asfortranarray(rows),
        rows.tolist(),
    ):
        np.testing.assert_array_equal(dh.batch(system, (0, 2), parameters=given).values, expected)
    np.testing.assert_array_equal(dh.batch(system, (0, 2), parameters={"e": [0.8]}).values, expected[:1])
    assert len(dh.batch(system, (0, 2), parameters=np.zeros((0, 2)), gradient=True)) == 0
    assert dh.batch(system, (0, 2)).values.shape == (1, 1)


# -- initial values -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gradient", ANALYSES)
def test_initial_values(gradient: str, built: Any, models: Any) -> None:
    """They take the place of those of the model, whatever these depend on; derivatives are those at fixed values."""
    system, starts = built(models.decay), np.array([0.5, 1.0, 4.0])
    found = dh.batch(
        system, (0, 2), x0={"y": starts}, gradient=gradient, functional="end", rtol=1e-10, native_events=True
    )
    np.testing.assert_allclose(found.functionals["end"], starts * np.exp(-1.4), rtol=1e-9)
    exact = np.stack((-2 * starts * np.exp(-1.4), np.zeros(3)), axis=1)
    np.testing.assert_allclose(found.gradient["end"], exact, rtol=1e-8)
    assert found.native.all()
    singly = dh.batch(
        system, (0, 2), x0=starts[:, None], gradient=gradient, functional="end", rtol=1e-10, native_events=False
    )
    assert not singly.native.any()
    np.testing.assert_allclose(singly.gradients, found.gradients, rtol=1e-13)
    np.testing.assert_array_equal(singly.values, found.values)


def test_algebraic_variables_and_memory_follow_initial_values(built: Any, models: Any) -> None:
    system = built(models.em)
    found = dh.batch(system, (0, 1), x0={"u": [0.0, 0.01]}, t_eval=[0.0, 1.0], rtol=1e-8, atol=1e-12)
    alone = found.single(1)
    assert found["u"][:, 0].tolist() == [0.0, 0.01]
    np.testing.assert_array_equal(found["z"][1], alone["z"])
    assert found["z"][1, 0] == pytest.approx(9.869604401 * 0.01 + 0.7463 * (1 - np.exp(-2.05)), rel=2e-2)
    nominal = dh.simulate(system, (0, 1), t_eval=[0.0, 1.0], rtol=1e-8, atol=1e-12)
    np.testing.assert_array_equal(found["z"][0], nominal["z"])


# -- threads --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gradient", [None, *ANALYSES])
def test_any_number_of_threads(gradient: str | None, built: Any, models: Any) -> None:
    system = built(models.ball)
    rows = np.concatenate((sets(system, 60), [[0.2, 1e5]]))
    one = dh.batch(system, (0, 2), parameters=rows, gradient=gradient, workers=1, **TIGHT)
    for workers in (2, 3, 7):
        other = dh.batch(system, (0, 2), parameters=rows, gradient=gradient, workers=workers, **TIGHT)
        np.testing.assert_array_equal(one.values, other.values)
        np.testing.assert_array_equal(one.gradients, other.gradients)
        assert other.statistics["workers"] == workers
    assert [type(e) for e in one.errors] == [type(e) for e in other.errors]


def test_several_batches_at_a_time(built: Any, models: Any) -> None:
    systems = [built(models.ball), built(models.em), built(models.switched)]

    def call(k: int) -> np.ndarray:
        return dh.batch(
            systems[k % 3], (0, 2), parameters=sets(systems[k % 3], 12), gradient="adjoint", workers=2
        ).values

    expected = [call(k) for k in range(3)]
    with ThreadPoolExecutor(4) as pool:
        for k, found in enumerate(pool.map(call, range(9))):
            np.testing.assert_array_equal(found, expected[k % 3])


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_ends_a_batch(workers: int, built: Any) -> None:
    system = built(em_hysteresis.model)
    rows = sets(system, 20_000, 0.01)
    timer, begin = Timer(0.5, _thread.interrupt_main), time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        dh.batch(system, (0, 10), parameters=rows, gradient="adjoint", workers=workers, rtol=1e-8, atol=1e-12)
    assert time.monotonic() - begin < 30
    assert dh.batch(system, (0, 1), parameters=rows[:3], workers=workers).ok.all()


# -- wherever it runs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("adapter", ["scipy", "casadi"])
def test_every_adapter(adapter: str, built: Any, models: Any) -> None:
    system = built(models.ball)
    for gradient in (None, "forward"):
        found = dh.batch(system, (0, 1), parameters=sets(system, 2), gradient=gradient, adapter=adapter, rtol=1e-6)
        assert not found.native.any()
        alone = found.single(1)
        np.testing.assert_array_equal(found.functionals["height"][1], alone.functionals["height"])


def test_where_nothing_is_compiled(models: Any) -> None:
    system = models.ball().build(native=False)
    found = dh.batch(system, (0, 1), parameters=[[0.8, 9.81]], x0={"y": [0.5]}, gradient="forward", rtol=1e-6)
    assert not found.native.any()
    first = np.sqrt(2 * 0.5 / 9.81)
    left = 1 - first
    hops = 0.8 * 9.81 * first
    assert found.n_events.tolist() == [2]
    second = left - 2 * hops / 9.81
    assert found.functionals["height"][0] == pytest.approx(0.8 * hops * second - 9.81 * second**2 / 2, rel=1e-4)


def test_a_crew_is_used_where_it_can_be(models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    system = models.ball().build()  # one without crews of other tests
    original = SundialsIntegrator.crew
    monkeypatch.setattr(SundialsIntegrator, "crew", lambda *given: made.append(original(*given)) or made[-1])
    dh.batch(system, (0, 2), parameters=np.tile([0.8, 9.81], (9, 1)), workers=2, **TIGHT)
    dh.batch(system, (0, 2), parameters=np.tile([0.8, 9.81], (9, 1)), method="bdf", gradient="adjoint", **TIGHT)
    assert [isinstance(crew, str) for crew in made] == [False, False, True]
