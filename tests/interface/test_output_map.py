"""Outputs at times: values, forward and adjoint derivatives of a map, and its refusals."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dae_hybrid as dh
from dae_hybrid.interface.output_map import OutputMap
from dae_hybrid.problems import ball_on_rope, em_hysteresis

TIGHT = {"rtol": 1e-9, "atol": 1e-12}
ENGINES = pytest.mark.parametrize("native_events", [True, False], ids=["native", "python"])


def linear() -> dh.HybridModel:
    m = dh.HybridModel("linear")
    k, a = m.parameter("k", 0.7), m.parameter("a", 1.3)
    x = m.differential("x")
    m.initial(m.mode("run", ode={x: -k * x}), {x: a})
    return m


def ball() -> dh.HybridModel:
    m = dh.HybridModel("ball")
    g, e, h = m.parameter("g", 9.81), m.parameter("e", 0.8), m.parameter("h", 1.0)
    y, v = m.differential("y"), m.differential("v")
    hits = m.memory("hits", initial=0.0)
    flight = m.mode("flight", ode={y: v, v: -g})
    m.transition(flight, flight, guard=y, direction="falling", reset={v: -e * v}, memory={hits: hits + 1}, name="hit")
    m.initial(flight, {y: h, v: 0.0})
    m.functional("height", terminal=y)
    return m


def height(t: float, p: np.ndarray) -> complex:
    """Height of the ball in complex arithmetic."""
    g, e, h = p
    speed, due = e * np.sqrt(2 * g * h), np.sqrt(2 * h / g)
    if t <= due.real:
        return h - g * t**2 / 2
    while t > (due + 2 * speed / g).real:
        due, speed = due + 2 * speed / g, e * speed
    return speed * (t - due) - g * (t - due) ** 2 / 2


def by_complex_step(function: Callable[[np.ndarray], complex], p: np.ndarray) -> np.ndarray:
    return np.array([function(p + 1e-30j * row).imag / 1e-30 for row in np.eye(p.size)])


def check(outputs: OutputMap, parameters: Any = None, *, rtol: float = 1e-6) -> tuple[np.ndarray, np.ndarray]:
    """Check that jvp and vjp are products with the derivatives, for random factors of any size."""
    values, by_p = outputs.derivatives(parameters)
    assert values.shape == outputs.shape
    assert by_p.shape == (*outputs.shape, len(outputs.wrt))
    scale = np.abs(values).max(axis=0)
    assert np.all(np.abs(outputs.values(parameters) - values) <= 1e-6 * scale)
    rng = np.random.default_rng(3)
    for size in (1.0, 1e-9, 1e9):
        c, v = size * rng.normal(size=outputs.shape), size * rng.normal(size=len(outputs.wrt))
        terms = np.einsum("ij,ijk->ijk", c, by_p)
        error = np.abs(outputs.vjp(parameters, c) - terms.sum(axis=(0, 1)))
        assert np.all(error <= rtol * np.abs(terms).sum(axis=(0, 1)).max())
        again, along = outputs.jvp(parameters, v)
        assert np.all(np.abs(again - values) <= 1e-6 * scale)
        assert np.all(np.abs(along - by_p @ v) <= rtol * np.abs(by_p @ v).max(axis=0))
    return values, by_p


# -- closed forms -------------------------------------------------------------------------------------------


@ENGINES
def test_of_a_linear_equation(native_events: bool) -> None:
    t = np.array([0.0, 0.3, 1.0, 2.0])  # both ends are outputs
    outputs = OutputMap(linear().build(), (0, 2), t, "x", native_events=native_events, **TIGHT)
    values, by_p = check(outputs, [0.9, 2.0])
    exact = 2.0 * np.exp(-0.9 * t)
    np.testing.assert_allclose(values[:, 0], exact, rtol=1e-8)
    np.testing.assert_allclose(by_p[:, 0, 0], -t * exact, atol=1e-8)
    np.testing.assert_allclose(by_p[:, 0, 1], exact / 2.0, rtol=1e-8)
    c = np.array([[3.0], [0.0], [-1.0], [0.5]])
    np.testing.assert_allclose(
        outputs.vjp({"k": 0.9, "a": 2.0}, c), [-(c[:, 0] * t) @ exact, c[:, 0] @ exact / 2.0], rtol=1e-7
    )


@ENGINES
def test_of_bounces(native_events: bool) -> None:
    t, p = np.array([0.2, 0.6, 1.0, 1.5, 1.9]), np.array([9.5, 0.75, 1.1])
    outputs = OutputMap(ball().build(), (0, 2), t, ["y", "hits"], native_events=native_events, **TIGHT)
    values, by_p = outputs.derivatives(p)
    np.testing.assert_allclose(values[:, 0], [height(s, p + 0j).real for s in t], rtol=1e-8)
    np.testing.assert_array_equal(values[:, 1], [0, 1, 1, 2, 3])
    exact = np.array([by_complex_step(lambda q, s=s: height(s, q), p) for s in t])
    np.testing.assert_allclose(by_p[:, 0], exact, rtol=1e-7, atol=1e-8)
    assert not by_p[:, 1].any()
    c = np.random.default_rng(0).normal(size=outputs.shape)
    np.testing.assert_allclose(outputs.vjp(p, c), c[:, 0] @ exact, rtol=1e-7)
    np.testing.assert_allclose(outputs.jvp(p, [1.0, -2.0, 0.5])[1][:, 0], exact @ [1.0, -2.0, 0.5], rtol=1e-7)


@settings(max_examples=15, deadline=None)
@given(st.floats(8, 11), st.floats(0.6, 0.9), st.lists(st.floats(-1, 1), min_size=3, max_size=3))
def test_of_bounces_with_any_cotangents(g: float, e: float, c: list[float]) -> None:
    t, p = np.array([0.3, 0.9, 1.3]), np.array([g, e, 1.0])
    hits = np.cumsum([np.sqrt(2 / g), *(2 * e**k * np.sqrt(2 / g) for k in range(1, 8))])
    if np.abs(hits[:, None] - t).min() < 1e-3:
        return  # an output next to an impact has another derivative on its other side
    exact = sum(weight * by_complex_step(lambda q, s=s: height(s, q), p) for weight, s in zip(c, t, strict=True))
    found = BALL.vjp(p, np.array(c)[:, None])
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-7 * np.abs(c).max())


BALL = OutputMap(ball().build(), (0, 1.4), [0.3, 0.9, 1.3], "y", **TIGHT)


# -- every kind of output -----------------------------------------------------------------------------------


@ENGINES
def test_variables_and_memory_of_a_material_with_memory(native_events: bool) -> None:
    t = np.linspace(0, 10, 31)
    names = ["z", "u", "u_star"]
    outputs = OutputMap(em_hysteresis.system(), (0, 10), t, names, native_events=native_events, rtol=1e-9, atol=1e-13)
    values, by_p = check(outputs)
    fsa = dh.forward_sensitivity(em_hysteresis.system(), (0, 10), t_eval=t, rtol=1e-9, atol=1e-13)
    for i, name in enumerate(names):
        np.testing.assert_allclose(by_p[:, i], fsa[name], atol=1e-6 * np.abs(fsa[name]).max())
        np.testing.assert_allclose(values[:, i], fsa.trajectory[name], atol=1e-8)


@pytest.mark.parametrize("eliminate", [True, False])
@ENGINES
def test_an_algebraic_variable(native_events: bool, eliminate: bool) -> None:
    m = dh.HybridModel("implicit")
    a, b = m.parameter("a", 1.2), m.parameter("b", 0.4)
    x, z = m.differential("x"), m.algebraic("z", guess=1.0)
    m.initial(m.mode("run", ode={x: -z}, algebraic=[z + b * z**3 - a * x]), {x: 1.0})
    outputs = OutputMap(
        m.build(eliminate=eliminate), (0, 2), np.linspace(0, 2, 9), ["z", "x"], native_events=native_events, **TIGHT
    )
    check(outputs)


@ENGINES
def test_index_2_vectors_and_rates(native_events: bool) -> None:
    outputs = OutputMap(
        ball_on_rope.system(),
        (0, 0.5),
        np.linspace(0.05, 0.5, 7),
        ["x", "z", "vy"],
        native_events=native_events,
        **TIGHT,
    )
    check(outputs, rtol=1e-5)


@ENGINES
def test_vectors_signals_and_derivatives_as_outputs(native_events: bool) -> None:
    m = dh.HybridModel("driven")
    k = m.parameter("k", [1.0, 2.0], size=2)
    force = m.signal("force", [0.0, 0.5, 1.0, 2.0], [0.0, 1.0, -1.0, 0.5], kind="linear")
    x, w = m.differential("x", size=2), m.differential("w")
    m.initial(m.mode("run", ode={x: force - k * x}, residual=[m.der(w) + k[0] * w**3 - x[0]]), {x: [0.2, 0.4], w: 0.1})
    outputs = OutputMap(
        m.build(), (0, 2), [0.0, 0.25, 0.5, 1.7, 2.0], ["force", "x", "der(w)"], native_events=native_events, **TIGHT
    )
    assert outputs.labels == ("force", "x[0]", "x[1]", "der(w)")
    values, by_p = check(outputs)
    np.testing.assert_allclose(values[:, 0], [0.0, 0.5, 1.0, 0.05, 0.5], atol=1e-12)
    assert not by_p[:, 0].any()


def test_other_parameters_initial_values_and_builds() -> None:
    m = ball()
    system = m.build()
    call: dict[str, Any] = {"wrt": ["e", "g"], "x0": {"y": 0.5, "v": 1.0}, **TIGHT}
    outputs = OutputMap(system, (0, 1.5), [0.4, 0.8, 1.4], ["v"], **call)
    assert outputs.wrt == ("g", "e") or outputs.wrt == ("e", "g")
    _, by_p = check(outputs, {"e": 0.7})
    q = m.build(native=False)
    again = OutputMap(q, (0, 1.5), [0.4, 0.8, 1.4], ["v"], **call)
    np.testing.assert_allclose(again.derivatives({"e": 0.7})[1], by_p, rtol=1e-6)
    step, p = 1e-6, np.array([9.81, 0.7, 1.0])
    pair = [outputs.values(p + s * np.array([0, step, 0])) for s in (1, -1)]
    np.testing.assert_allclose((pair[0] - pair[1]) / (2 * step), by_p[..., outputs.wrt.index("e")], rtol=1e-4)


@pytest.mark.parametrize("adapter", ["scipy", "casadi"])
def test_other_adapters(adapter: str) -> None:
    outputs = OutputMap(ball().build(), (0, 1), [0.2, 0.9], "y", adapter=adapter, rtol=1e-8, atol=1e-10)
    check(outputs, rtol=1e-4)


def test_tolerances_by_name_of_functionals_that_the_copy_lacks() -> None:
    atol = {"*": 1e-12, "height": 1e-8}
    outputs = OutputMap(ball().build(), (0, 1), [0.2, 0.9], "y", rtol=1e-9, atol=atol)
    check(outputs)


# -- numbers of a call stay its own -------------------------------------------------------------------------


@ENGINES
def test_cotangents_of_earlier_calls_leave_no_trace(native_events: bool) -> None:
    system = em_hysteresis.system()
    call: dict[str, Any] = {"native_events": native_events, "rtol": 1e-8, "atol": 1e-12}
    t, rng = np.linspace(0.5, 4, 8), np.random.default_rng(1)
    outputs = OutputMap(system, (0, 4), t, ["u", "z"], **call)
    for k in range(3):
        c, p = rng.normal(size=outputs.shape), system.nominal * (1 + 0.01 * k)
        fresh = OutputMap(system, (0, 4), t, ["u", "z"], **call)
        np.testing.assert_array_equal(outputs.vjp(p, c), fresh.vjp(p, c))


def test_threads_share_a_map() -> None:
    outputs = OutputMap(em_hysteresis.system(), (0, 4), np.linspace(0.5, 4, 8), ["u", "z"], rtol=1e-8, atol=1e-12)
    c = np.random.default_rng(2).normal(size=(24, *outputs.shape))
    alone = [outputs.vjp(None, own) for own in c]
    with ThreadPoolExecutor(4) as pool:
        np.testing.assert_array_equal(list(pool.map(lambda own: outputs.vjp(None, own), c)), alone)


def test_cotangents_after_a_refusal() -> None:
    outputs = OutputMap(touching(), (0, 2), [0.5, 1.5], "x", **TIGHT)
    c = np.ones(outputs.shape)
    before = outputs.vjp([0.9], c)
    for _ in range(2):
        with pytest.raises(dh.GrazingError):
            outputs.vjp([1.0], 2 * c)
    np.testing.assert_array_equal(outputs.vjp([0.9], c), before)


def test_a_pickle() -> None:
    outputs = OutputMap(linear().build(), (0, 1), [0.5], ["x"], wrt="k", **TIGHT)
    again = pickle.loads(pickle.dumps(outputs))
    np.testing.assert_array_equal(again.vjp(None, [[1.0]]), outputs.vjp(None, [[1.0]]))


def test_zero_factors() -> None:
    outputs = OutputMap(linear().build(), (0, 1), [0.5], ["x"], **TIGHT)
    np.testing.assert_array_equal(outputs.vjp(None, [[0.0]]), [0.0, 0.0])
    np.testing.assert_array_equal(outputs.jvp(None, [0.0, 0.0])[1], [[0.0]])


# -- refusals -----------------------------------------------------------------------------------------------


def touching() -> dh.HybridSystem:
    """x = t (2 - t) touches p = 1 at t = 1."""
    m = dh.HybridModel("touching")
    p, x, s = m.parameter("p", 1.0), m.differential("x"), m.differential("s")
    run = m.mode("run", ode={x: 2 * (1 - m.time), s: 1.0})
    m.transition(run, run, guard=x - p, direction="rising", reset={s: s + 1})
    m.initial(run, {x: 0.0, s: 0.0})
    return m.build()


@ENGINES
def test_an_output_at_the_time_of_an_event_that_moves(native_events: bool) -> None:
    m = dh.HybridModel("ramp")
    p, x, y = m.parameter("p", 1.0), m.differential("x"), m.differential("y")
    run = m.mode("run", ode={x: 1.0, y: 0.0})
    m.transition(run, run, guard=x - p, direction="rising", reset={y: y + 2.0}, name="jump")
    m.initial(run, {x: 0.0, y: 0.0})
    outputs = OutputMap(m.build(), (0, 2), [0.5, 1.0, 1.5], ["y"], native_events=native_events, **TIGHT)
    for analysis in (
        lambda: outputs.derivatives(), lambda: outputs.jvp(None, [1.0]), lambda: outputs.vjp(None, np.ones((3, 1)))
    ):  # fmt: skip
        with pytest.raises(dh.EventError, match="measured at the time of an event"):
            analysis()
    np.testing.assert_array_equal(outputs.values([0.9])[:, 0], [0, 2, 2])
    check(outputs, [0.9])


@ENGINES
def test_an_output_at_the_time_of_an_event_that_is_fixed(native_events: bool) -> None:
    m = dh.HybridModel("dose")
    d, x = m.parameter("d", 0.5), m.differential("x")
    run = m.mode("run", ode={x: -x})
    m.transition(run, run, at=1.0, reset={x: x + d}, name="dose")
    m.initial(run, {x: 1.0})
    outputs = OutputMap(m.build(), (0, 2), [0.5, 1.0], ["x"], native_events=native_events, **TIGHT)
    values, by_p = check(outputs)
    np.testing.assert_allclose(values[:, 0], [np.exp(-0.5), np.exp(-1) + 0.5], rtol=1e-8)
    np.testing.assert_allclose(by_p[:, 0, 0], [0.0, 1.0], atol=1e-12)


@ENGINES
def test_a_run_that_ends_before_the_last_output(native_events: bool) -> None:
    m = dh.HybridModel("stops")
    p, x = m.parameter("p", 1.0), m.differential("x")
    run = m.mode("run", ode={x: 1.0})
    m.transition(run, None, guard=x - p, direction="rising", name="full")
    m.initial(run, {x: 0.0})
    outputs = OutputMap(m.build(), (0, 2), [0.5, 1.5], "x", native_events=native_events, **TIGHT)
    for analysis in (
        lambda: outputs.values(), lambda: outputs.derivatives(), lambda: outputs.jvp(None, [1.0]),
        lambda: outputs.vjp(None, np.ones((2, 1))), lambda: outputs.vjp(None, np.zeros((2, 1))),
    ):  # fmt: skip
        with pytest.raises(dh.EventError, match=r"ends at t = 1, before the last output time") as caught:
            analysis()
        assert caught.value.transition == "full"
    check(outputs, [1.7])


@ENGINES
def test_a_variable_that_the_active_mode_lacks(native_events: bool) -> None:
    m = dh.HybridModel("lacks")
    p, x, z = m.parameter("p", 1.0), m.differential("x"), m.algebraic("z")
    one = m.mode("one", ode={x: 1.0}, algebraic=[z - p * x])
    two = m.mode("two", ode={x: p})
    m.transition(one, two, guard=x - p, direction="rising")
    m.initial(one, {x: 0.0})
    outputs = OutputMap(m.build(), (0, 2), [0.5, 1.5], "z", native_events=native_events, **TIGHT)
    for analysis in (
        lambda: outputs.values(), lambda: outputs.derivatives(), lambda: outputs.jvp(None, [1.0]),
        lambda: outputs.vjp(None, np.ones((2, 1))), lambda: outputs.vjp(None, [[1.0], [0.0]]),
    ):  # fmt: skip
        with pytest.raises(dh.ModelError, match=r"'z' does not exist") as caught:
            analysis()
        assert (caught.value.mode, caught.value.time) == ("two", 1.5)
    check(outputs, [1.7])


@ENGINES
def test_a_grazing_guard(native_events: bool) -> None:
    outputs = OutputMap(touching(), (0, 2), [0.5, 1.5], "x", native_events=native_events, **TIGHT)
    assert outputs.values([1.0]).shape == (2, 1)
    for analysis in (lambda: outputs.derivatives(), lambda: outputs.jvp(None, [1.0]),
                     lambda: outputs.vjp(None, np.ones((2, 1)))):  # fmt: skip
        with pytest.raises(dh.GrazingError):
            analysis()


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"names": "w"}, dh.ParameterError, "unknown name 'w'"),
        ({"names": ["y", "y"]}, dh.ParameterError, "each once"),
        ({"names": []}, dh.ParameterError, "each once"),
        ({"names": "g"}, dh.ParameterError, "unknown name 'g'"),
        ({"t_eval": [1.0, 0.5]}, dh.OptionError, "increase"),
        ({"t_eval": None}, dh.OptionError, "t_eval"),
        ({"t_eval": [3.0]}, dh.OptionError, "within t_span"),
        ({"wrt": "w"}, dh.ParameterError, "unknown parameter"),
        ({"x0": {"w": 1.0}}, dh.ParameterError, "no variable"),
        ({"x0": {"y": [1.0, 2.0]}}, dh.ParameterError, "one run"),
        ({"x0": {"y": np.nan}}, dh.ParameterError, "finite"),
        ({"keep": "all"}, dh.OptionError, "keep="),
        ({"rtol": -1.0}, dh.OptionError, "rtol"),
        ({"strict": 1}, dh.OptionError, "strict"),
    ],
)
def test_invalid_arguments(change: dict[str, Any], error: type[Exception], said: str) -> None:
    call: dict[str, Any] = {"t_eval": [0.5, 1.0], "names": "y"} | change
    with pytest.raises(error, match=said):
        OutputMap(BALL._system, (0, 1.4), call.pop("t_eval"), call.pop("names"), **call)


@pytest.mark.parametrize("bad", [np.ones(3), np.ones((2, 1)), [[np.nan], [0], [0]], "text", None])
def test_invalid_factors(bad: Any) -> None:
    with pytest.raises(dh.ParameterError, match="cotangents"):
        BALL.vjp(None, bad)
    with pytest.raises(dh.ParameterError, match="direction"):
        BALL.jvp(None, bad if np.shape(bad) != (3,) else np.ones(2))


@pytest.mark.parametrize("wrt", [None, ["y(0)", "e"]])
def test_a_system_that_starts_elsewhere(wrt: list[str] | None) -> None:
    """The start of `started` is that of x0=."""
    call: dict[str, Any] = {"wrt": wrt, **TIGHT}
    own = OutputMap(dh.started(BALL._system, x0={"y": 1.1, "v": 0.2}, wrt=wrt), (0, 1), [0.3, 0.9], "y", **call)
    other = OutputMap(BALL._system, (0, 1), [0.3, 0.9], "y", x0={"y": 1.1, "v": 0.2}, **call)
    assert own.wrt == other.wrt
    np.testing.assert_allclose(own.values(), other.values(), rtol=1e-12)
    np.testing.assert_allclose(own.vjp(None, [[1.0], [2.0]]), other.vjp(None, [[1.0], [2.0]]), rtol=1e-10)


def test_a_system_that_is_derived_from_another() -> None:
    with pytest.raises(dh.UnsupportedError, match="derived"):
        OutputMap(replace(BALL._system, remake=None), (0, 1), [0.5], "y")


# -- size ---------------------------------------------------------------------------------------------------


def test_many_outputs_share_one_function() -> None:
    t = np.linspace(0, 2, 1000)
    outputs = OutputMap(linear().build(), (0, 2), t, "x", **TIGHT)
    built = outputs._functional.system
    assert len(built.measurements) == 1000
    assert len({own.of_mode for own in built.measurements}) == 1
    c = np.random.default_rng(5).normal(size=1000)
    exact = 1.3 * np.exp(-0.7 * t)
    np.testing.assert_allclose(outputs.vjp(None, c[:, None]), [-(c * t) @ exact, c @ exact / 1.3], rtol=1e-6)
