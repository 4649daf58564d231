"""Batches: which runs are native, why others are single calls, and closed forms of what is native."""

from __future__ import annotations

import pickle
from functools import cache
from typing import Any

import casadi as ca
import numpy as np
import pytest
from batches import agree, sets

import dae_hybrid as dh
from dae_hybrid.adapters.sundials.native_loop import NativeLoop

LOOSE = {"rtol": 1e-8, "atol": 1e-10}
TIGHT = {**LOOSE, "native_events": True}
ANALYSES = ["forward", "adjoint"]
T_KNOTS = np.linspace(0.0, 4.0, 9)


def root() -> dh.HybridModel:
    """x' = -z with exp(z) = k: x = x0 - t log(k), from Newton's method at the start."""
    m = dh.HybridModel("root")
    k, x0 = m.parameter("k", 2.0), m.parameter("x0", 1.0)
    x, z = m.differential("x"), m.algebraic("z", guess=1.0)
    run = m.mode("run", ode={x: -z}, algebraic=[np.exp(z) - k])
    m.initial(run, {x: x0})
    m.functional("end", terminal=x)
    return m


@cache
def forced(kind: Any) -> dh.HybridSystem:
    """x' = a f(t) - k x with data for f; x falls by 0.2 whenever it reaches 0.3."""
    m = dh.HybridModel(f"forced {kind}")
    k, a = m.parameter("k", 0.5), m.parameter("a", 1.0)
    x, f = m.differential("x"), m.signal("f", T_KNOTS, np.cos(T_KNOTS) ** 2, kind=kind)
    run = m.mode("run", ode={x: a * f - k * x})
    m.transition(run, run, guard=x - 0.3, direction="rising", reset={x: x - 0.2})
    m.initial(run, {x: 0.1})
    m.functional("G", integrand=x**2, terminal=x, at_times={1.2: x})
    return m.build()


def delayed() -> dh.HybridModel:
    """x = exp(-k t), measured at 1 + lag and 3 lag."""
    m = dh.HybridModel("delayed")
    k, lag, x = m.parameter("k", 0.5), m.parameter("lag", 0.3), m.differential("x")
    run = m.mode("run", ode={x: -k * x})
    m.initial(run, {x: 1.0})
    m.functional("G", at_times=[(1 + lag, x), (3 * lag, 2 * x)])
    return m


@cache
def dropped(at: float) -> dh.HybridSystem:
    """An oscillator whose falling guard is past zero at the start."""
    m = dh.HybridModel("dropped")
    k, e = m.parameter("k", 1.3), m.parameter("e", 0.9)
    x, v = m.differential("x"), m.differential("v")
    run = m.mode("run", ode={x: v, v: -k * x})
    m.transition(run, run, guard=x - 0.2, direction="falling", reset={v: e * v}, name="impact")
    m.initial(run, {x: at, v: 1.0})
    m.functional("G", integrand=x**2, terminal=x)
    return m.build()


@pytest.mark.parametrize("gradient", [None, *ANALYSES])
def test_starts_that_are_solved_for(gradient: Any, built: Any) -> None:
    rows = np.array([[2.0, 1.0], [1.7, 1.1], [-1.0, 1.0], [3.0, 0.4]])
    found = agree(built(root), (0.0, 1.5), rows, gradient, **TIGHT)
    assert found.native.tolist() == [True, True, False, True]
    assert type(found.errors[2]) is dh.ConsistencyError
    assert "the start" in str(found.reasons[2])
    k, x0 = rows[found.ok].T
    np.testing.assert_allclose(found.functionals["end"][found.ok], x0 - 1.5 * np.log(k), rtol=1e-12)
    if gradient is not None:
        exact = np.column_stack((-1.5 / k, np.ones(3)))
        np.testing.assert_allclose(found.gradient["end"][found.ok], exact, rtol=1e-10)


def test_given_values_beside_a_start_that_is_solved_for(built: Any) -> None:
    found = dh.batch(built(root), (0.0, 1.0), x0={"x": [1.0, 3.0]}, gradient="forward", **TIGHT)
    assert found.native.all()
    np.testing.assert_allclose(found.functionals["end"], np.array([1.0, 3.0]) - np.log(2), rtol=1e-12)
    np.testing.assert_allclose(found.gradient["end"], [[-0.5, 0.0]] * 2, rtol=1e-10)
    for i in range(2):
        np.testing.assert_array_equal(found.single(i).gradient["end"], found.gradient["end"][i])


@pytest.mark.parametrize("gradient", [None, *ANALYSES])
@pytest.mark.parametrize("kind", ["linear", "previous", "cubic"])
def test_signals(kind: str, gradient: Any) -> None:
    system = forced(kind)
    for t_eval in (None, np.linspace(0.0, 3.7, 5)):
        found = agree(system, (0.0, 3.7), sets(system, 4), gradient, t_eval=t_eval, **TIGHT)
        assert found.native.all()
        assert (found.n_events > 2).all()
    found = agree(system, (0.0, 4.0), sets(system, 3), gradient, **TIGHT)  # a knot at the end
    assert found.native.all() == (kind != "previous")


@pytest.mark.parametrize("kind", ["linear", "previous", "cubic"])
def test_gradients_with_signals_are_those_of_events_in_python_and_of_differences(kind: str) -> None:
    system, h = forced(kind), 1e-5
    found = dh.batch(system, (0.0, 3.7), gradient="adjoint", rtol=1e-10, atol=1e-12, native_events=True)
    assert found.native.all()
    other = dh.forward_sensitivity(system, (0.0, 3.7), rtol=1e-10, atol=1e-12, native_events=False)
    np.testing.assert_allclose(found.gradient["G"][0], other.gradient["G"], rtol=1e-8)
    beside = np.vstack([system.nominal + side * h * row for row in np.eye(2) for side in (1, -1)])
    values = dh.batch(system, (0.0, 3.7), parameters=beside, rtol=1e-10, atol=1e-12).functionals["G"]
    np.testing.assert_allclose((values[::2] - values[1::2]) / (2 * h), found.gradient["G"][0], rtol=1e-6)


def test_the_end_of_a_signal_in_closed_form() -> None:
    """A linear signal is integrated by the trapezoidal rule."""
    m = dh.HybridModel("trapezoids")
    a, x = m.parameter("a", 1.5), m.differential("x")
    data = np.array([0.0, 2.0, -1.0, 0.5, 3.0])
    run = m.mode("run", ode={x: a * m.signal("f", np.arange(5.0), data)})
    m.initial(run, {x: 0.0})
    m.functional("end", terminal=x)
    for gradient in ANALYSES:
        found = dh.batch(m.build(), (0.0, 4.0), parameters={"a": [1.0, 2.0]}, gradient=gradient, **TIGHT)
        assert found.native.all()
        area = np.trapezoid(data)
        np.testing.assert_allclose(found.functionals["end"], [area, 2 * area], rtol=1e-12)
        np.testing.assert_allclose(found.gradient["end"][:, 0], area, rtol=1e-12)


@pytest.mark.parametrize("gradient", [None, *ANALYSES])
def test_measurement_times_that_depend_on_parameters(gradient: Any, built: Any) -> None:
    system = built(delayed)
    rows = np.vstack((sets(system, 4), [0.5, 1.9], [0.5, np.inf]))
    found = agree(system, (0.0, 2.5), rows, gradient, **TIGHT)
    assert found.native.tolist() == [True] * 4 + [False] * 2
    assert [type(error) for error in found.errors[4:]] == [dh.OptionError, dh.ParameterError]
    k, lag = rows[:4].T
    one, two = np.exp(-k * (1 + lag)), 2 * np.exp(-3 * k * lag)
    np.testing.assert_allclose(found.functionals["G"][:4], one + two, rtol=1e-7)
    if gradient is not None:
        exact = np.column_stack((-(1 + lag) * one - 3 * lag * two, -k * (one + 3 * two)))
        np.testing.assert_allclose(found.gradient["G"][:4], exact, rtol=1e-6)


@pytest.mark.parametrize("gradient", ANALYSES)
def test_a_measurement_that_moves_onto_an_event_is_left_to_a_single_call(gradient: str) -> None:
    m = dh.HybridModel("crossing")
    a, late, x = m.parameter("a", 1.0), m.parameter("late", 0.4), m.differential("x")
    run = m.mode("run", ode={x: a})
    m.transition(run, run, guard=x - 1, direction="rising", reset={x: 0.5 * x})
    m.initial(run, {x: 0.0})
    m.functional("G", at_times=[(0.6 + late, x)])
    found = agree(m.build(), (0.0, 1.3), np.array([[1.0, 0.4], [1.0, 0.4 + 1e-9], [1.0, 0.3]]), gradient, **TIGHT)
    assert found.native.tolist() == [False, False, True]
    np.testing.assert_allclose(found.gradient["G"][2], [0.9, 1.0], rtol=1e-8)


@pytest.mark.parametrize("gradient", [None, *ANALYSES])
def test_a_guard_past_its_threshold_at_the_start(gradient: Any) -> None:
    system = dropped(0.0)
    found = agree(system, (0.0, 10.0), sets(system, 4), gradient, **TIGHT)
    assert found.native.all()
    notes = [dh.simulate(system, (0.0, 10.0), native_events=native).diagnostics.notes for native in (True, False)]
    assert notes[0] == notes[1]
    assert "past its threshold" in notes[0][0]


@pytest.mark.parametrize("gradient", ANALYSES)
def test_a_guard_on_its_threshold_at_the_start_needs_a_closer_look(gradient: str) -> None:
    system = dropped(0.2)
    found = agree(system, (0.0, 10.0), sets(system, 2), gradient, **TIGHT)
    assert not any(native and reason for native, reason in zip(found.native, found.reasons, strict=True))


def test_reasons_of_runs(built: Any, models: Any) -> None:
    ball = built(models.ball)
    rows = np.array([[0.8, 9.81], [0.8, np.nan], [0.1, 9.81]])
    found = dh.batch(ball, (0.0, 2.0), parameters=rows, gradient="forward", **TIGHT)
    assert found.native.tolist() == [True, False, False]
    assert found.reasons[0] is None
    assert "not finite" in str(found.reasons[1])
    assert found.reasons[2] == "events that may accumulate (transition 'bounce')"
    assert "mostly because of: " in repr(found)
    assert "accumulate" in found._repr_html_()
    assert pickle.loads(pickle.dumps(found)).reasons == found.reasons


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"native_events": False}, "native_events=False"),
        ({"adapter": "scipy"}, "adapter 'scipy' has no batches"),
        ({"gradient": "forward", "duality": True}, "duality"),
        ({"gradient": "adjoint", "method": "bdf"}, "adjoints of implicit steps"),
    ],
)
def test_reasons_of_whole_batches(given: dict[str, Any], reason: str, built: Any, models: Any) -> None:
    found = dh.batch(built(models.ball), (0.0, 1.0), parameters=[[0.8, 9.81]] * 2, **given)
    assert not found.native.any()
    assert all(str(own).startswith(reason) for own in found.reasons)
    assert reason in repr(found)


@pytest.mark.parametrize("keep", ["all", "final"])
def test_keep_is_refused_with_what_to_do(keep: str, built: Any, models: Any) -> None:
    for call in (dh.batch, dh.prepare):
        with pytest.raises(dh.OptionError, match="t_eval"):
            call(built(models.ball), (0.0, 1.0), keep=keep)


@pytest.mark.parametrize("gradient", [None, *ANALYSES])
def test_an_algebraic_equation_that_may_become_singular(gradient: Any) -> None:
    """z^2 = x, x' = -a; z jumps with x: the run ends where x becomes zero."""
    m = dh.HybridModel("fold")
    a, x0 = m.parameter("a", 1.0), m.parameter("x0", 3.0)
    x, z, y = m.differential("x"), m.algebraic("z", guess=1.0), m.differential("y")
    run = m.mode("run", ode={x: -a, y: z}, algebraic=[z**2 - x])
    m.transition(run, run, guard=x - 1.5, direction="falling", reset={x: x + 1.0})
    m.initial(run, {x: x0, y: 0.0})
    m.functional("G", terminal=y)
    rows = np.array([[1.0, 3.0], [1.1, 2.8], [1.0, 1.2], [1.0, -1.0]])
    found = agree(m.build(), (0.0, 2.0), rows, gradient, **TIGHT)
    assert found.native.tolist() == [True, True, False, False]
    assert found.ok.tolist() == [True, True, False, False]
    exact = 2 / 3 * ((3.0**1.5 - 1.5**1.5) + (2.5**1.5 - 2.0**1.5))
    np.testing.assert_allclose(found.functionals["G"][0], exact, rtol=1e-7)


@pytest.mark.parametrize("eliminate", [True, False])
@pytest.mark.parametrize("gradient", ANALYSES)
def test_a_linear_equation_with_a_divisor(gradient: str, eliminate: bool) -> None:
    """(x - b) z = 1: z = 1 / (x - b)."""
    m = dh.HybridModel("divided")
    b, x, z = m.parameter("b", 0.5), m.differential("x"), m.algebraic("z")
    run = m.mode("run", ode={x: -1.0}, algebraic=[(x - b) * z - 1])
    m.initial(run, {x: 2.0})
    m.functional("G", integrand=z)
    system = m.build(eliminate=eliminate)
    found = agree(system, (0.0, 1.0), np.array([[0.5], [0.7], [2.0], [2.0 - 1e-14], [1.5]]), gradient, **TIGHT)
    assert found.ok.tolist() == [True, True, False, False, False]
    b_ = np.array([0.5, 0.7])
    np.testing.assert_allclose(found.functionals["G"][:2], np.log((2 - b_) / (1 - b_)), rtol=1e-7)
    np.testing.assert_allclose(found.gradient["G"][:2, 0], 1 / (1 - b_) - 1 / (2 - b_), rtol=1e-6)


@cache
def permitted() -> dh.HybridSystem:
    """Doses and switches that a condition on states, memory and parameters permits, in two modes."""
    m = dh.HybridModel("permitted")
    k, most = m.parameter("k", 0.6), m.parameter("most", 1.1)
    x, y, z = m.differential("x"), m.differential("y"), m.algebraic("z")
    count, flag = m.memory("count", initial=k), m.memory("flag", initial=1)
    fast, slow = (m.mode(n, ode={x: 0.3 - s * k * z, y: x}, algebraic=[z - x]) for n, s in (("fast", 1), ("slow", 0.5)))
    dosed = {"reset": {x: x + 0.4}, "memory": {count: count + 0.2}}
    m.transition(fast, fast, at=[0.3, 0.8, 1.3, 1.9], when=dh.all_of(z < most, count < 1.15), name="dose", **dosed)
    m.transition(slow, slow, at=[0.9, 1.4], when=flag > 0.5, name="flagged", **dosed)
    m.transition(fast, slow, guard=y - 0.5, direction="rising", when=x * k < 0.7, name="slower")
    m.transition(slow, fast, guard=y - most, direction="rising", reset={y: 0}, name="faster")
    m.initial(fast, {x: 0.7, y: 0.0})
    m.functional("G", integrand=x**2, terminal=y * count)
    return m.build()


@pytest.mark.parametrize("gradient", [None, *ANALYSES])
def test_conditions_at_events_are_checked_in_compiled_code(gradient: Any) -> None:
    rows = sets(permitted(), 12, spread=0.15)
    found = agree(permitted(), (0.0, 2.5), rows, gradient, **TIGHT)
    assert found.statistics["native"] >= 10, found
    untaken = [e.transition for i in range(12) for e in dh.simulate(permitted(), (0.0, 2.5), parameters=rows[i]).events]
    assert "dose not taken" in {name.removesuffix(f" {i}") for name in untaken for i in range(4)}
    alone = [dh.batch(permitted(), (0.0, 2.5), parameters=rows, gradient=gradient, native_events=False, **LOOSE)]
    np.testing.assert_array_equal(found.digest, alone[0].digest)


@pytest.mark.parametrize("gradient", ANALYSES)
def test_a_condition_next_to_its_threshold_is_left_to_a_single_call(gradient: str) -> None:
    m = dh.HybridModel("threshold")
    p, x = m.parameter("p", 1.0), m.differential("x")
    run = m.mode("run", ode={x: 1.0})
    m.transition(run, run, at=1.0, when=x < p, reset={x: 2 * x}, name="double")
    m.initial(run, {x: 0.0})
    m.functional("G", terminal=x)
    rows = np.array([[1.0], [1.0 + 1e-9], [1.0 - 1e-6], [0.5], [1.5]])
    found = agree(m.build(), (0.0, 2.0), rows, gradient, **TIGHT)
    assert found.native.tolist() == [False, False, False, True, True]
    assert isinstance(found.errors[0], dh.EventError)
    assert found.reasons[1] == "a condition next to its threshold (transition 'double')"


def test_work_space_suffices_for_long_conditions() -> None:
    m = dh.HybridModel("long")
    x = m.differential("x", size=40)
    run = m.mode("run", ode={x: -x})
    terms = [ca.sin(x[i] * x[j]) for i in range(40) for j in range(i)]
    while len(terms) > 1:  # many terms are alive at once
        terms = [one * other + one for one, other in zip(terms[::2], terms[1::2], strict=False)]
    m.transition(run, run, at=0.5, when=terms[0] < 1, reset={x: 2 * x})
    m.initial(run, {x: np.linspace(0.1, 1.0, 40)})
    graph = m.build().graph
    (link,) = (link for links in graph.links for link in links if link is not None and link.permit is not None)
    space = [array.size for array in NativeLoop(graph, 0)._work]
    for function in (link.permit, link.sides):
        assert function is not None
        assert all(size >= needed for size, needed in zip(space, function.work_sizes, strict=True))


@cache
def sampled(kind: str) -> dh.HybridSystem:
    """A loop with two clocks that tick at the start, costs at the ticks, and a guard."""
    m = dh.HybridModel(f"sampled {kind}")
    k, gain = m.parameter("k", 0.9), m.parameter("gain", 0.4)
    x, z = m.differential("x"), m.algebraic("z")
    u, n = m.discrete("u", initial=0.1), m.memory("n", initial=0.0)
    run = m.mode("run", ode={x: u - k * z}, algebraic=[z + 0.1 * z**3 - x])
    other = m.mode("other", ode={x: u - z}, algebraic=[z + 0.1 * z**3 - x])
    fast = m.clock(0.3)
    tick = m.transition(run, run, every=fast, reset={x: x - 0.01 * k}, memory={n: n + k}, name="tick")
    m.update(m.clock(fast, factor=3, name="slow"), {u: u + gain * (1 - x)})
    m.transition(run, run, guard=x - 0.6, direction="rising", reset={x: x - 0.2}, name="drop")
    if kind == "leaves":
        m.transition(run, other, every=fast, name="leave")
    m.initial(run, {x: 0.2})
    measured = {0.0: x} if kind == "measured" else None
    m.functional("G", terminal=x + n, integrand=z**2, at_events={tick: x**2 * gain}, at_times=measured)
    return m.build()


@pytest.mark.parametrize("gradient", [None, *ANALYSES])
@pytest.mark.parametrize("method", ["auto", "bdf"])
def test_ticks_at_the_start(gradient: Any, method: str) -> None:
    system = sampled("plain")
    for span in ((0.0, 2.0), (1.0, 3.0)):
        t_eval, rows = np.linspace(*span, 6), sets(sampled("plain"), 5)
        found = agree(system, span, rows, gradient, method=method, t_eval=t_eval, **TIGHT)
        if gradient != "adjoint" or method == "auto":
            assert found.native.all(), found
        python = dh.batch(
            system, span, parameters=rows, gradient=gradient, method=method, t_eval=t_eval, native_events=False, **LOOSE
        )
        np.testing.assert_array_equal(found.digest, python.digest)
        np.testing.assert_allclose(found.values, python.values, rtol=10 * LOOSE["rtol"])  # other steps, with BDF
        np.testing.assert_allclose(found["x"], python["x"], rtol=10 * LOOSE["rtol"])
        if gradient:
            np.testing.assert_allclose(found.gradients, python.gradients, rtol=1e-7, atol=1e-9)
        run = dh.simulate(system, span, parameters=rows[0], method=method, **TIGHT)
        assert [(e.transition, e.time, e.order) for e in run.events[:2]] == [("tick", span[0], 0), ("slow", span[0], 1)]
        assert run.statistics["native_events"] == len(run.events)


def test_ticks_at_the_start_have_room_for_their_records() -> None:
    """x = (1 - exp(-k t)) / k + 0.4 exp(-k t), with records larger than the buffer at first."""
    m = dh.HybridModel("many")
    k, x = m.parameter("k", 0.8), m.differential("x", size=30)
    run = m.mode("run", ode={x: 1 - k * x})
    for name in "abcd":
        m.transition(run, run, every=m.clock(3.0, name=name), reset={x: x + 0.1})
    m.initial(run, {x: np.zeros(30)})
    m.functional("G", terminal=x[0])
    found = dh.simulate(m.build(), (0.0, 2.0), **TIGHT)
    assert found.statistics["native_events"] == len(found.events) == 4
    assert found.functionals["G"] == pytest.approx((1 - np.exp(-1.6)) / 0.8 + 0.4 * np.exp(-1.6), rel=1e-7)


@pytest.mark.parametrize("kind", ["leaves", "measured"])
@pytest.mark.parametrize("gradient", [None, *ANALYSES])
def test_other_time_events_at_the_start_are_left_to_single_calls(kind: str, gradient: Any) -> None:
    found = agree(sampled(kind), (0.0, 2.0), sets(sampled(kind), 3), gradient, **TIGHT)
    assert not found.native.any()


@pytest.mark.parametrize("gradient", [None, *ANALYSES])
@pytest.mark.parametrize("method", ["auto", "bdf"])
def test_ticks_at_the_end(gradient: Any, method: str) -> None:
    """Also where the last tick precedes the end by rounding: 6 * 0.3 < 1.8."""
    system = sampled("plain")
    for span in ((0.0, 1.8), (0.0, 2.1), (1.0, 3.1)):
        for t_eval in (None, np.linspace(*span, 6)):
            rows = sets(system, 5)
            found = agree(system, span, rows, gradient, method=method, t_eval=t_eval, **TIGHT)
            if gradient != "adjoint" or method == "auto":
                assert found.native.all(), found
        python = dh.batch(
            system, span, parameters=rows, gradient=gradient, method=method, t_eval=t_eval, native_events=False, **LOOSE
        )
        np.testing.assert_array_equal(found.digest, python.digest)
        np.testing.assert_array_equal(found.t_end, span[1])
        np.testing.assert_allclose(found.values, python.values, rtol=10 * LOOSE["rtol"])
        np.testing.assert_allclose(found["x"], python["x"], rtol=10 * LOOSE["rtol"])
        if gradient:
            np.testing.assert_allclose(found.gradients, python.gradients, rtol=1e-7, atol=1e-9)
