"""Hessians: closed forms, errors that hold, refusals."""

from __future__ import annotations

import pickle
from functools import cache
from itertools import pairwise
from typing import Any

import casadi as ca
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dae_hybrid as dh
from dae_hybrid.problems import em_hysteresis, hybrid_ode

#: the error is an estimate: the true one may exceed it a little where the variation of the gradients dominates
SLACK = 3.0


@cache
def linear() -> dh.HybridSystem:
    m = dh.HybridModel("linear")
    a, b = m.parameter("a", 0.7), m.parameter("b", 2.0)
    k = m.parameter("k", np.array([1.0, 3.0]))
    x = m.differential("x")
    m.initial(m.mode("run", ode={x: -a * x}), {x: b})
    m.functional("end", terminal=x)
    m.functional("pair", terminal=ca.vertcat(x, k[0] * k[1] * x))
    return m.build()


@cache
def ball() -> dh.HybridSystem:
    m = dh.HybridModel("ball")
    g, e = m.parameter("g", 9.81), m.parameter("e", 0.8)
    y, v = m.differential("y"), m.differential("v")
    flight = m.mode("flight", ode={y: v, v: -g})
    m.transition(flight, flight, guard=y, direction="falling", reset={v: -e * v}, name="bounce")
    m.initial(flight, {y: 1.0, v: 0.0})
    m.functional("both", terminal=ca.vertcat(y, v))
    return m.build()


def of_ball(n: int, t: float, p: Any) -> np.ndarray:
    """Hessians of height and velocity of the ball at t, after n bounces."""
    g, e = ca.SX.sym("g"), ca.SX.sym("e")
    v, at = ca.sqrt(2 * g), ca.sqrt(2 / g)
    for k in range(n):
        v *= e
        at += 2 * v / g if k < n - 1 else 0
    s, q = t - at, ca.vertcat(g, e)
    hessians = [ca.hessian(own, q)[0] for own in (v * s - g * s**2 / 2, v - g * s)]
    return np.array([np.array(own) for own in ca.Function("h", [q], hessians)(p)])


@pytest.mark.parametrize("rtol", [1e-6, 1e-8, 1e-10, 1e-12])
def test_linear_equation(rtol: float) -> None:
    found = dh.hessian(linear(), (0, 1), "end", wrt=["a", "b"], rtol=rtol, atol=rtol)
    a, b = 0.7, 2.0
    exact = np.exp(-a) * np.array([[b, -1.0], [-1.0, 0.0]])
    assert (np.abs(found.matrix - exact) <= SLACK * found.error + 1e-11).all()
    assert found.error.max() < 10 * rtol**0.5
    assert found.gradient == pytest.approx(np.exp(-a) * np.array([-b, 1.0]), rel=100 * rtol)
    assert found.value == pytest.approx(b * np.exp(-a), rel=100 * rtol)
    np.testing.assert_array_equal(found.matrix, found.matrix.T)


@pytest.mark.parametrize(("t", "n"), [(0.8, 1), (2.0, 3)])
def test_bouncing_ball(t: float, n: int) -> None:
    found = dh.hessian(ball(), (0, t), "both", rtol=1e-10, atol=1e-12)
    exact = of_ball(n, t, [9.81, 0.8])
    assert found.matrix.shape == (2, 2, 2)
    assert (np.abs(found.matrix - exact) <= SLACK * found.error).all()
    assert found.matrix == pytest.approx(exact, rel=1e-7)
    assert found.sequence.names == ("bounce",) * n
    assert found.eigenvalues == pytest.approx(np.linalg.eigvalsh(exact), rel=1e-6)
    assert (np.abs(found.eigenvalues - np.linalg.eigvalsh(exact)).max(axis=1) <= found.eigenvalue_error).all()


def integral(p: float) -> float:
    """Closed form of G of `hybrid_ode`: x' = 4 - x, then 10 - 2 x between the roots of the threshold."""
    crossings = np.sort(np.roots([1.0, -5.0, 7.0, -p]).real)
    ends, total, time = [0.0, *crossings], 0.0, 0.0
    for k, (a, b) in enumerate(pairwise(ends)):
        top, rate = (10.0, 2.0) if k % 2 else (4.0, 1.0)
        spent = np.log((top - rate * a) / (top - rate * b)) / rate
        total, time = total + (a - b) / rate + top / rate * spent, time + spent
    left = 5.0 - time
    return float(total + 5 * left + (ends[-1] - 5) * (1 - np.exp(-2 * left)) / 2)


def test_hybrid_ode() -> None:
    h, reference = 1e-3, hybrid_ode.reference()
    assert integral(2.9) == pytest.approx(reference.value, rel=1e-13)
    exact = (
        16 * (integral(2.9 + h) + integral(2.9 - h))
        - integral(2.9 + 2 * h)
        - integral(2.9 - 2 * h)
        - 30 * integral(2.9)
    ) / (12 * h**2)
    found = dh.hessian(hybrid_ode.system(), hybrid_ode.t_span, "G", rtol=1e-11, atol=1e-13)
    assert found.matrix[0, 0] == pytest.approx(exact, rel=1e-6)
    assert abs(found.matrix[0, 0] - exact) <= found.error[0, 0]


def test_hysteresis_is_symmetric() -> None:
    found = dh.hessian(em_hysteresis.system(), (0, 10), "G", rtol=1e-11, atol=1e-14)
    assert found.matrix.shape == (4, 4)
    assert 0 < found.asymmetry < 1e-6
    assert (found.error[:2, :2] < 1e-4 * np.abs(found.matrix[:2, :2]).max()).all()
    assert len(found.sequence) == 19


@settings(max_examples=10, deadline=None)
@given(st.floats(0.77, 0.88), st.floats(9.6, 10.0))
def test_errors_hold(e: float, g: float) -> None:
    found = dh.hessian(ball(), (0, 2.0), "both", parameters={"e": e, "g": g}, step=1e-3, rtol=1e-8, atol=1e-11)
    if len(found.sequence) == 3:
        assert (np.abs(found.matrix - of_ball(3, 2.0, [g, e])) <= SLACK * found.error).all()


def test_a_change_of_the_sequence_is_refused() -> None:
    with pytest.raises(dh.EventError, match="sequence of events changes") as caught:
        dh.hessian(ball(), (0, 2), "both", wrt="e", parameters={"e": 0.9}, step=0.01)
    message = str(caught.value)
    assert "e = 0.90" in message
    assert "3 x bounce; and 2 x bounce" in message
    assert dh.hessian(ball(), (0, 2), "both", wrt="e", parameters={"e": 0.9}, step=1e-4).sequence.n_events == 3


def test_a_measurement_that_changes_sides_is_refused() -> None:
    m = dh.HybridModel("tooth")
    k, x = m.parameter("k", 1.0), m.differential("x")
    run = m.mode("run", ode={x: k})
    m.transition(run, run, guard=x - 0.75, direction="rising", reset={x: 0})
    m.initial(run, {x: 0.0})
    m.functional("fit", at_times={0.752: x**2})
    with pytest.raises(dh.EventError, match=r"at event 1: (measurement or run->run|run->run or measurement)"):
        dh.hessian(m.build(), (0, 1), "fit", step=0.01)


def test_a_failure_in_the_stencil_is_named() -> None:
    with pytest.raises(dh.ZenoError, match=r"stencil of the Hessian contains e = 0\.6"):
        dh.hessian(ball(), (0, 2), "both", wrt="e", parameters={"e": 0.7}, step=0.1)
    with pytest.raises(dh.ZenoError) as caught:
        dh.hessian(ball(), (0, 2), "both", wrt="e", parameters={"e": 0.5})
    assert "stencil" not in caught.value.message


def test_vectors_and_steps_by_name() -> None:
    found = dh.hessian(linear(), (0, 1), "pair", wrt="k", step={"k": 0.05})
    x = 2 * np.exp(-0.7)
    assert found.parameters == ("k[0]", "k[1]")
    assert found.matrix == pytest.approx(np.array([np.zeros((2, 2)), [[0, x], [x, 0]]]), abs=1e-6)
    assert found.steps == pytest.approx([0.05, 0.05])


def test_no_parameters() -> None:
    m = dh.HybridModel("none")
    x = m.differential("x")
    m.initial(m.mode("run", ode={x: -x}), {x: 1.0})
    m.functional("G", terminal=x)
    found = dh.hessian(m.build(), (0, 1))
    assert found.matrix.shape == found.error.shape == (0, 0)
    assert "0 parameters" in repr(found)
    assert str(found)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"step": 0.0}, dh.OptionError),
        ({"step": 1.0}, dh.OptionError),
        ({"step": True}, dh.OptionError),
        ({"step": 1e-17}, dh.OptionError),
        ({"step": {"z": 1.0}}, dh.ParameterError),
        ({"step": {"a": np.nan}}, dh.OptionError),
        ({"wrt": "z"}, dh.ParameterError),
        ({"rtol": 2.0}, dh.OptionError),
        ({"functional": None}, dh.ParameterError),
    ],
)
def test_bad_input(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        dh.hessian(linear(), (0, 1), **{"functional": "end", **options})


def test_reports_and_pickles() -> None:
    found = dh.hessian(ball(), (0, 0.8), "both")
    assert "both[1]: e" in str(found)
    assert "asymmetry" in found._repr_html_()
    again = pickle.loads(pickle.dumps(found))
    np.testing.assert_array_equal(again.matrix, found.matrix)
    assert again.sequence == found.sequence


@cache
def oscillator() -> dh.HybridSystem:
    m = dh.HybridModel("oscillator")
    w, x, v = m.parameter("w", 100.0), m.differential("x"), m.differential("v")
    m.initial(m.mode("run", ode={x: w * v, v: -w * x}), {x: 0.0, v: 1.0})
    m.functional("end", terminal=x)
    return m.build()


@pytest.mark.parametrize("w", [99.3, 100.0])
@pytest.mark.parametrize("rtol", [1e-6, 1e-9])
def test_steps_beyond_the_scale_of_the_gradient_are_shortened(w: float, rtol: float) -> None:
    found = dh.hessian(oscillator(), (0, 10), "end", parameters={"w": w}, rtol=rtol, atol=rtol / 100)
    exact = -100 * np.sin(10 * w)
    assert found.steps[0] < rtol**0.25 * w / 7
    assert abs(found.matrix[0, 0] - exact) <= found.error[0, 0] < 0.1 * abs(exact)


@pytest.mark.parametrize("rtol", [1e-4, 1e-6, 1e-8, 1e-10])
def test_a_peak_below_the_step_is_found(rtol: float) -> None:
    m = dh.HybridModel("peak")
    a, y = m.parameter("a", 1000.0), m.differential("y")
    m.initial(m.mode("run", ode={y: -y}), {y: 1.0})
    m.functional("end", terminal=y * ca.exp(-((a - 1000) ** 2)))
    found = dh.hessian(m.build(), (0, 1), rtol=rtol, atol=rtol / 1000)
    assert abs(found.matrix[0, 0] + 2 * np.exp(-1)) <= found.error[0, 0] < 0.2


@cache
def tent() -> dh.HybridSystem:
    """Measurements at t = a of a signal with a knot at 1, where it changes from t to 2 - t, and of its integral."""
    m = dh.HybridModel("tent")
    a, y = m.parameter("a", 1.001), m.differential("y")
    u = m.signal("u", [0, 1, 2, 3, 4], [0, 1, 0, 2, 0], outside="hold")
    m.initial(m.mode("run", ode={y: a * u}), {y: 0.0})
    m.functional("signal", at_times=[(a, u)])
    m.functional("integral", at_times=[(a, y)])
    return m.build()


@pytest.mark.parametrize("a", [0.985, 0.9999, 1.001, 1.008, 1.015])
@pytest.mark.parametrize("rtol", [1e-6, 1e-9])
def test_knots_of_signals(a: float, rtol: float) -> None:
    call: dict[str, Any] = {"parameters": {"a": a}, "rtol": rtol, "atol": rtol / 1000}
    found = dh.hessian(tent(), (0, 3), "signal", **call)
    assert abs(found.matrix[0, 0]) <= found.error[0, 0] < 0.02
    found = dh.hessian(tent(), (0, 3), "integral", **call)
    exact = 3 * a if a < 1 else 2 * (2 - a) - a
    assert abs(found.matrix[0, 0] - exact) <= found.error[0, 0] < 0.5


@pytest.mark.filterwarnings("ignore::dae_hybrid.errors.DerivativeWarning")
def test_at_a_knot_the_error_is_the_jump() -> None:
    found = dh.hessian(tent(), (0, 3), "integral", parameters={"a": 1.0}, rtol=1e-9, atol=1e-12)
    assert min(abs(found.matrix[0, 0] - side) for side in (1.0, 3.0)) <= found.error[0, 0]
    assert found.error[0, 0] > 0.9


def test_a_kink_of_the_gradient_is_refused() -> None:
    m = dh.HybridModel("root")
    a, y = m.parameter("a", 1.0), m.differential("y")
    m.initial(m.mode("run", ode={y: 0}), {y: 1.0})
    m.functional("end", terminal=y * ((a - 1) ** 2 + 1e-24) ** 0.75)  # second derivatives grow as |a - 1|^(-1/2)
    with pytest.raises(dh.AssumptionError, match="approach no limit"):
        dh.hessian(m.build(), (0, 1), rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("rtol", [1e-4, 1e-6, 1e-10])
def test_the_error_contains_the_noise(rtol: float) -> None:
    m = dh.HybridModel("damped")
    k, c, s = (m.parameter(name, value) for name, value in (("k", 4.0), ("c", 0.3), ("s", 1.0)))
    x, v = m.differential("x"), m.differential("v")
    m.initial(m.mode("run", ode={x: v, v: -k * x - c * v}), {x: s, v: 0.0})
    m.functional("end", terminal=x)
    p = ca.SX.sym("p", 3)
    w = ca.sqrt(p[0] - p[1] ** 2 / 4)
    closed = p[2] * ca.exp(-1.5 * p[1]) * (ca.cos(3 * w) + p[1] / (2 * w) * ca.sin(3 * w))
    exact = ca.Function("exact", [p], [ca.hessian(closed, p)[0]])
    system, rng = m.build(), np.random.default_rng(1)
    for _ in range(4):
        at = np.array([4.0, 0.3, 1.0]) * rng.uniform(0.6, 1.4, 3)
        found = dh.hessian(system, (0, 3), parameters=at, rtol=rtol, atol=rtol / 1000, step=4 * rtol**0.5)
        assert (np.abs(found.matrix - np.array(exact(at))) <= found.error).all()


def test_the_order_of_simultaneous_events_is_named() -> None:
    m = dh.HybridModel("two")
    heights = [m.parameter(f"h{i}", 1.0) for i in range(2)]
    y, v = m.differential("y", size=2), m.differential("v", size=2)
    fall = m.mode("fall", ode={y: v, v: ca.DM([-9.81, -9.81])})
    for i in range(2):
        m.transition(
            fall, fall, guard=y[i], direction="falling", name=f"bounce {i}",
            reset={v: ca.vertcat(*(-0.8 * v[k] if k == i else v[k] for k in range(2)))},
        )  # fmt: skip
    m.initial(fall, {y: ca.vertcat(*heights), v: ca.DM.zeros(2)})
    m.functional("end", terminal=y[0] + v[1])
    system = m.build()
    with pytest.raises(dh.EventError, match="order of events changes") as caught:
        dh.hessian(system, (0, 1), rtol=1e-9, atol=1e-12)
    assert "moves them together" in str(caught.value)
