"""Time events, costs and measurements in compiled code agree with Python."""

from __future__ import annotations

import warnings
from typing import Any

import casadi as ca
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dae_hybrid as dh
from dae_hybrid.port.records import EventRecord, MeasurementRecord

TIGHT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}


def both(model: dh.HybridModel, t_end: float, **options: Any) -> list[tuple[Any, Any]]:
    """Forward and adjoint analysis of a model with compiled events, and through Python."""
    found, system = [], model.build()
    for native in (True, False):
        run: dict[str, Any] = {**TIGHT, **options, "native_events": native}
        forward = dh.forward_sensitivity(system, (0, t_end), **run)
        assert bool(forward.trajectory.statistics["native_events"]) is native
        found.append((forward, dh.adjoint_gradient(system, (0, t_end), "G", **run)))
    return found


def compare(model: dh.HybridModel, t_end: float, **options: Any) -> Any:
    """Compare the two, and return the compiled run."""
    (forward, adjoint), (other, back) = both(model, t_end, **options)
    run, same = forward.trajectory, other.trajectory
    assert [(e.transition, e.count, e.direction, e.order) for e in run.events] == [
        (e.transition, e.count, e.direction, e.order) for e in same.events
    ]
    np.testing.assert_allclose([e.time for e in run.events], [e.time for e in same.events], rtol=1e-8)
    np.testing.assert_allclose(run.t, same.t, rtol=1e-8) if "t_eval" in options else None
    for name in run.names if "t_eval" in options else ():
        np.testing.assert_allclose(run[name], same[name], rtol=1e-6, atol=1e-8)
    scale = np.abs(other.gradient["G"]).max() + 1e-6
    for gradient in (forward.gradient["G"], adjoint.gradient, back.gradient):
        np.testing.assert_allclose(gradient, other.gradient["G"], rtol=1e-5, atol=1e-6 * scale)
    np.testing.assert_allclose(forward.event_time_sensitivity, other.event_time_sensitivity, rtol=1e-5, atol=1e-6)
    return forward


def doses(**trigger: Any) -> dh.HybridModel:
    m = dh.HybridModel("doses")
    k, period = m.parameter("k", 0.5), m.parameter("period", 0.75)
    x, n = m.differential("x"), m.memory("n", initial=0)
    run = m.mode("run", ode={x: -k * x})
    given = trigger or {"every": period}
    m.transition(run, run, reset={x: x + 1}, memory={n: n + 1}, name="dose", **given)
    m.initial(run, {x: 1.0})
    m.functional("G", integrand=x, terminal=x**2)
    return m


@pytest.mark.parametrize("method", ["bdf", "adams", "auto"])
@pytest.mark.parametrize("t_end", [7.3, 7.6])
def test_periodic_doses_have_a_closed_form(method: str, t_end: float) -> None:
    """x = exp(-k t) + sum of exp(-k (t - i T)) over i T < t; the last one is at the end, or is not."""
    k, period = 0.5, 0.75
    when = period * np.arange(1, 11)
    found = compare(doses(), t_end, method=method)
    ticks = when[when <= t_end + 1e-12]
    assert [e.time for e in found.trajectory.events] == pytest.approx(ticks)
    assert [e.count for e in found.trajectory.events] == list(range(1, len(ticks) + 1))
    np.testing.assert_allclose(found.event_time_sensitivity[:, 1], range(1, len(ticks) + 1))
    end = np.exp(-k * (t_end - np.append(0.0, ticks))).sum()
    assert found.trajectory.final[2][0] == pytest.approx(end, rel=1e-7)
    assert found.trajectory["n"][-1] == len(ticks)


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_clocks_times_and_guards_in_several_modes(data: st.DataObject) -> None:
    """Modes with clocks of one or several periods, single times, and guards that cross between them."""
    m = dh.HybridModel("clocks")
    k = m.parameter("k", data.draw(st.floats(0.2, 1.0)))
    period = m.parameter("period", data.draw(st.sampled_from([0.5, 0.3, 0.7])))
    when = m.parameter("when", data.draw(st.sampled_from([0.9, 1.0, 1.55])))
    x, y, n = m.differential("x"), m.differential("y"), m.memory("n", initial=0)
    modes = [m.mode(name, ode={x: 1 - i * k, y: -k * y + x * (i + 1)}) for i, name in enumerate(("a", "b"))]
    for i in range(data.draw(st.integers(1, 4))):
        source, target = (modes[data.draw(st.integers(0, 1))] for _ in range(2))
        every = data.draw(st.sampled_from([period, 2 * period, period + 0.1]))
        m.transition(source, target, every=every, reset={y: 0.9 * y + 0.1 * x}, memory={n: n + 1}, name=f"tick {i}")
    for i in range(data.draw(st.integers(0, 3))):
        source, target = (modes[data.draw(st.integers(0, 1))] for _ in range(2))
        at = data.draw(st.sampled_from([when, 2 * when, when + 0.05, 1.2345]))
        m.transition(source, target, at=at, reset={x: 0.5 * x}, name=f"time {i}")
    level = data.draw(st.floats(1.1, 1.4))
    m.transition(modes[0], modes[1], guard=x - level, direction="rising", reset={x: x - 1}, name="guard")
    m.initial(modes[0], {x: 0.0, y: 1.0})
    m.functional("G", integrand=y, terminal=x)
    options: dict[str, Any] = {"method": data.draw(st.sampled_from(["bdf", "adams", "auto"]))}
    if data.draw(st.booleans()):
        options["t_eval"] = np.linspace(0, 3.2, 33)
    system, t_eval = m.build(), options.get("t_eval")
    one, two = (
        dh.simulate(system, (0, 3.2), method=options["method"], t_eval=t_eval, native_events=native, **TIGHT)
        for native in (True, False)
    )
    assert [(e.transition, e.count, e.order) for e in one.events] == [
        (e.transition, e.count, e.order) for e in two.events
    ]
    np.testing.assert_allclose([e.time for e in one.events], [e.time for e in two.events], rtol=1e-8)
    np.testing.assert_allclose(one.final[2], two.final[2], rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(one.final[3], two.final[3])
    np.testing.assert_allclose(one.functionals["G"], two.functionals["G"], rtol=1e-6)
    if t_eval is not None:
        np.testing.assert_allclose(one.t, t_eval)
        for name in one.names:
            np.testing.assert_allclose(one[name], two[name], rtol=1e-6, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("kind", ["every", "at"])
def test_outputs_at_time_events_are_those_after_them(kind: str) -> None:
    t_eval = np.linspace(0, 4.5, 7)
    model = doses() if kind == "every" else doses(at=1.5)
    found = compare(model, 4.6, t_eval=t_eval)
    x, n = found.trajectory["x"], found.trajectory["n"]
    ticks = 0.75 * np.arange(1, 7) if kind == "every" else np.array([1.5])
    expected = [np.exp(-0.5 * t) + sum(np.exp(-0.5 * (t - s)) for s in ticks if s <= t + 1e-9) for t in t_eval]
    np.testing.assert_allclose(x, expected, rtol=1e-7)
    np.testing.assert_array_equal(n, [np.sum(ticks <= t + 1e-9) for t in t_eval])


def test_measurements_and_knots_between_ticks() -> None:
    m = dh.HybridModel("sampled")
    k, x, held = m.parameter("k", 0.5), m.differential("x"), m.memory("held", initial=0.0)
    f = m.signal("f", np.linspace(0, 6, 13), np.sin(np.arange(13.0)), kind="linear")
    run = m.mode("run", ode={x: f - held - k * x})
    m.transition(run, run, every=0.4, memory={held: 0.5 * x}, name="sample")
    m.initial(run, {x: 1.0})
    m.functional("G", integrand=x**2, at_times={1.1: x, 2.3: x**2, 5.9: x})
    found = compare(m, 6.0)
    assert len(found.trajectory.events) == 15


def test_a_tick_that_ends_the_run_and_one_at_its_end() -> None:
    m = dh.HybridModel("ends")
    k, period, x = m.parameter("k", 0.5), m.parameter("period", 0.7), m.differential("x")
    n = m.memory("n", initial=0)
    run = m.mode("run", ode={x: -k * x})
    m.transition(run, run, every=period, reset={x: x + 1}, memory={n: n + 1}, name="dose")
    m.transition(run, None, at=5 * period + 0.1, name="stop")
    m.initial(run, {x: 1.0})
    m.functional("G", terminal=x)
    found = compare(m, 10.0)
    assert [e.transition for e in found.trajectory.events] == ["dose"] * 5 + ["stop"]
    assert found.trajectory.final[0] == pytest.approx(3.6)


def test_the_limit_of_events_holds() -> None:
    for native in (True, False):
        with pytest.raises(dh.EventError, match="max_events") as caught:
            dh.simulate(doses().build(), (0, 100.0), max_events=10, native_events=native)
        assert len(caught.value.trajectory.events) == 10


@pytest.mark.parametrize("given", [0, "no", None])
def test_the_option_is_true_or_false(given: Any) -> None:
    with pytest.raises(dh.OptionError, match="native_events must be True or False"):
        dh.simulate(doses().build(native=False), (0, 1.0), native_events=given)


@pytest.mark.parametrize("functional", ["cost", "cost and integrand", "vector"])
@pytest.mark.parametrize("trigger", ["every", "guard"])
def test_costs_at_events(functional: str, trigger: str) -> None:
    """x' = 1 falls from a to 0 every a; what is charged is (k + a x t, t) before, for t = a, 2 a, ..."""
    m = dh.HybridModel("costs")
    a, k = m.parameter("a", 0.75), m.parameter("k", 2.0)
    x, n = m.differential("x"), m.memory("n", initial=0)
    run = m.mode("run", ode={x: 1})
    when: dict[str, Any] = {"every": a} if trigger == "every" else {"guard": x - a, "direction": "rising"}
    fall = m.transition(run, run, reset={x: x - a}, memory={n: n + 1}, name="fall", **when)
    m.initial(run, {x: 0.0})
    cost = k + a * x * m.time
    more: dict[str, Any] = {"integrand": x, "terminal": k * x} if functional == "cost and integrand" else {}
    m.functional("G", at_events={fall: ca.vertcat(cost, m.time) if functional == "vector" else cost}, **more)
    m.functional("H", terminal=x)
    t_end, p, q, i = 4.0, 0.75, 2.0, np.arange(1, 6)
    value, by_a, by_k = (q + p**3 * i).sum(), (3 * p**2 * i).sum(), 5.0
    if functional == "cost and integrand":
        left = t_end - 5 * p
        value += 5 * p**2 / 2 + left**2 / 2 + q * left
        by_a, by_k = by_a + 5 * p - 5 * left - 5 * q, by_k + left
    system = m.build()
    for native in (True, False):
        options: dict[str, Any] = {**TIGHT, "native_events": native}
        forward = dh.forward_sensitivity(system, (0, t_end), **options)
        assert forward.trajectory.statistics["native_events"] == (5 if native else 0)
        adjoint = dh.adjoint_gradient(system, (0, t_end), "G", duality=True, **options)
        values = adjoint.duality.values
        assert np.abs(values - values[0]).max() <= 1e-6 * np.abs(values).max()
        if functional == "vector":
            assert forward.functionals["G"] == pytest.approx([value, (p * i).sum()])
            exact: Any = [[by_a, by_k], [i.sum(), 0.0]]
        else:
            assert forward.functionals["G"] == pytest.approx(value)
            exact = [by_a, by_k]
        np.testing.assert_allclose(forward.gradient["G"], exact, rtol=1e-7, atol=1e-8)
        np.testing.assert_allclose(adjoint.gradient, exact, rtol=1e-7, atol=1e-8)


def test_events_that_leave_their_guard_at_zero_are_certified_at_once() -> None:
    """A section of an oscillator: the guard is zero after the event, as it is in any neighbouring run."""
    m = dh.HybridModel("section")
    w, x, v, n = m.parameter("w", 1.5), m.differential("x"), m.differential("v"), m.memory("n", initial=0)
    run = m.mode("run", ode={x: v, v: -(w**2) * x})
    m.transition(run, run, guard=v, direction="falling", memory={n: n + 1}, name="maximum")
    m.initial(run, {x: 0.0, v: 1.0})
    m.functional("G", terminal=x)
    found = compare(m, 20.0)
    assert [e.time for e in found.trajectory.events] == pytest.approx((np.arange(5) * 2 + 0.5) * np.pi / 1.5)
    assert all(e.certified for e in found.trajectory.events)


# -- measurements ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["bdf", "adams", "auto"])
def test_measurements_have_a_closed_form(method: str) -> None:
    """x = cos(k t): measured at 1, 2, ..., at one of them twice, and at a time that moves with k."""
    m = dh.HybridModel("measured")
    k, x, y = m.parameter("k", 0.7), m.differential("x"), m.differential("y")
    m.initial(m.mode("run", ode={x: -k * y, y: k * x}), {x: 1.0, y: 0.0})
    m.functional("G", at_times={1.0 * i: x for i in range(1, 6)})
    m.functional("H", at_times={3.0: ca.vertcat(x, y), 2 * k: ca.vertcat(k * x, m.time)}, terminal=ca.vertcat(x, 0))
    system, t, q = m.build(), np.arange(1.0, 6), 0.7
    exact = {
        "G": (np.cos(q * t).sum(), [(-t * np.sin(q * t)).sum()]),
        "H": (
            [np.cos(3 * q) + q * np.cos(2 * q**2) + np.cos(6 * q), np.sin(3 * q) + 2 * q],
            [
                [-3 * np.sin(3 * q) + np.cos(2 * q**2) - 4 * q**2 * np.sin(2 * q**2) - 6 * np.sin(6 * q)],
                [3 * np.cos(3 * q) + 2],
            ],
        ),
    }
    for native in (True, False):
        run: dict[str, Any] = {**TIGHT, "method": method, "native_events": native}
        forward = dh.forward_sensitivity(system, (0, 6.0), **run)
        for name, (value, gradient) in exact.items():
            np.testing.assert_allclose(forward.functionals[name], value, rtol=1e-6)
            np.testing.assert_allclose(forward.gradient[name], gradient, rtol=1e-6)
            found = dh.adjoint_gradient(system, (0, 6.0), name, **run)
            np.testing.assert_allclose(found.gradient, gradient, rtol=1e-6)
        assert [p.time for p in forward.trajectory.parts if isinstance(p, MeasurementRecord)] == pytest.approx(
            [1, 2 * q, 2, 3, 3, 4, 5]
        )


@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_measurements_between_events_are_the_same_through_python(data: st.DataObject) -> None:
    m = dh.HybridModel("between")
    k, p = m.parameter("k", data.draw(st.floats(0.3, 1.5))), m.parameter("p", 0.37)
    x, y, n = m.differential("x"), m.differential("y"), m.memory("n", initial=0)
    one = m.mode("one", ode={x: -k * y, y: k * x})
    two = m.mode("two", ode={x: -y, y: k * x - 0.1 * y})
    m.transition(one, two, every=p, reset={x: x + 0.1}, memory={n: n + 1}, name="tick")
    m.transition(two, one, guard=x, reset={y: y + 0.1 * k}, name="crossing")
    m.transition(two, one, at=1.9, name="back")
    m.initial(one, {x: 1.0, y: 0.0})
    times = data.draw(st.lists(st.floats(0.01, 3.99), min_size=1, max_size=8, unique=True))
    times += data.draw(st.sampled_from([[], [4.0], [times[0], 0.37], [1.9], [0.0]]))
    values = [ca.vertcat(x * y + k, n), ca.vertcat(x, p)]
    measured = [(t, values[i % 2]) for i, t in enumerate(times)]
    m.functional("G", at_times=measured, terminal=ca.vertcat(x, y))
    m.functional("H", integrand=x**2, at_times=measured[:1] and [(measured[0][0], x)])
    system, method = m.build(), data.draw(st.sampled_from(["bdf", "adams", "auto"]))
    found: list[Any] = []
    for native in (True, False):
        run: dict[str, Any] = {**TIGHT, "method": method, "native_events": native, "strict": False}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", dh.DerivativeWarning)  # ties
            forward = dh.forward_sensitivity(system, (0, 4.0), **run)
            analyses = [dh.adjoint_gradient(system, (0, 4.0), name, duality=True, **run) for name in ("G", "H")]
        for analysis in analyses:  # what forward and adjoint analysis say together is the same before every event
            values = analysis.duality.values
            assert np.abs(values - values[0]).max() <= 1e-5 * np.abs(values).max() + 1e-7
        adjoints = [analysis.gradient for analysis in analyses]
        parts = [part for part in forward.trajectory.parts if isinstance(part, MeasurementRecord | EventRecord)]
        found.append((forward, adjoints, parts))
    (one_run, one_adjoint, one_parts), (other, other_adjoint, parts) = found
    assert [(type(part), part.index) for part in one_parts] == [(type(part), part.index) for part in parts]
    np.testing.assert_allclose([part.time for part in one_parts], [part.time for part in parts], rtol=1e-8)
    for name, a, b in zip(("G", "H"), one_adjoint, other_adjoint, strict=True):
        scale = np.abs(other.gradient[name]).max() + 1e-3
        np.testing.assert_allclose(one_run.functionals[name], other.functionals[name], rtol=1e-6, atol=1e-7)
        for gradient in (one_run.gradient[name], a, b):
            np.testing.assert_allclose(gradient, other.gradient[name], rtol=1e-5, atol=1e-5 * scale)


def test_outputs_and_dense_output_where_measurements_do_not_interrupt_the_steps() -> None:
    m = dh.HybridModel("outputs")
    k, x, y = m.parameter("k", 0.7), m.differential("x"), m.differential("y")
    m.initial(m.mode("run", ode={x: -k * y, y: k * x}), {x: 1.0, y: 0.0})
    m.functional("G", at_times={1.0: x, 1.5: x, 1.5 + 1e-9: y, 4.0: x})
    system, t = m.build(), np.linspace(0, 4, 9)
    for method in ("bdf", "adams", "auto"):
        sol = dh.simulate(system, (0, 4.0), t_eval=t, method=method, **TIGHT)
        np.testing.assert_array_equal(sol.t, t)
        np.testing.assert_allclose(sol["x"], np.cos(0.7 * t), rtol=1e-6, atol=1e-7)
        free = dh.simulate(system, (0, 4.0), method=method, **TIGHT)
        between = np.linspace(0.0, 4.0, 101)
        np.testing.assert_allclose(free(between)["x"], np.cos(0.7 * between), rtol=1e-6, atol=1e-7)
        assert np.all(np.diff(free.t) >= 0)
        forward = dh.forward_sensitivity(system, (0, 4.0), t_eval=t, method=method, **TIGHT)
        np.testing.assert_allclose(forward["x"][:, 0], -t * np.sin(0.7 * t), rtol=1e-5, atol=1e-6)
        adjoint = dh.adjoint_gradient(system, (0, 4.0), "G", method=method, **TIGHT)
        assert adjoint.adjoint(np.array([0.5, 3.0]))["x"].shape == (2,)


def test_clocks_are_listed_in_pieces() -> None:
    """A fast clock of a mode that is entered late, and one that ticks more often than is listed at once."""
    m = dh.HybridModel("late")
    k, x, n = m.parameter("k", 0.5), m.differential("x"), m.memory("n", initial=0)
    wait, run = m.mode("wait", ode={x: 0 * x}), m.mode("run", ode={x: -k * x})
    m.transition(wait, run, every=30.0, name="begin")
    m.transition(run, run, every=0.01, memory={n: n + 1}, name="tick")
    m.transition(run, run, guard=x - 0.5, reset={x: 2 * x}, name="half")
    m.initial(wait, {x: 1.0})
    m.functional("G", integrand=x)
    system = m.build()
    runs = [dh.simulate(system, (0, 45.005), native_events=native, **TIGHT) for native in (True, False)]
    assert [run["n"][-1] for run in runs] == [1501, 1501]  # with the tick at 30, the time of the entry
    names, others = ([(e.transition, e.count) for e in run.events] for run in runs)
    assert names == others
    assert runs[0].statistics["native_events"] > 1500 - 10
    assert runs[0].functionals["G"] == pytest.approx(runs[1].functionals["G"], rel=1e-8)


def test_a_period_that_is_not_positive_does_no_harm_in_a_mode_that_is_not_entered() -> None:
    m = dh.HybridModel("idle")
    p, x = m.parameter("p", -1.0), m.differential("x")
    run, idle = m.mode("run", ode={x: 1}), m.mode("idle", ode={x: 0 * x})
    m.transition(idle, run, every=p, name="never")
    m.transition(run, run, every=0.5, reset={x: 0}, name="tick")
    m.initial(run, {x: 0.0})
    m.functional("G", integrand=x)
    assert dh.simulate(m.build(), (0, 2.25)).functionals["G"] == pytest.approx(4 * 0.125 + 0.03125)


@pytest.mark.parametrize("later", [1e-16, 2e-16, 1e-15, 1e-12])
@pytest.mark.parametrize("native", [True, False])
def test_a_measurement_waits_for_an_event_that_is_a_rounding_later(later: float, native: bool) -> None:
    m = dh.HybridModel("waits")
    a, x = m.parameter("a", 1.0), m.differential("x")
    run = m.mode("run", ode={x: a})
    m.transition(run, run, at=0.7 + later, reset={x: x + 1}, name="jump")
    m.initial(run, {x: 0.0})
    m.functional("G", at_times={0.7: x, 1.5: x})
    sol = dh.simulate(m.build(), (0, 2.0), native_events=native)
    assert sol.functionals["G"] == pytest.approx(0.7 + 2.5 + (later < 1e-14))


@pytest.mark.parametrize("gradient", ["forward", "adjoint"])
def test_the_order_of_due_times_differs_between_the_runs_of_a_batch(gradient: Any) -> None:
    """A dose comes before or after a measurement and another dose, depending on its lag."""
    m = dh.HybridModel("order")
    lag, size, x = m.parameter("lag", 0.6), m.parameter("size", 2.0), m.differential("x")
    run = m.mode("run", ode={x: -x})
    m.transition(run, run, at=lag, reset={x: x + size})
    m.transition(run, run, at=0.45, reset={x: 3 * x})
    m.initial(run, {x: 1.0})
    m.functional("G", at_times=[(t, x) for t in (0.4, 0.5, 0.8)])
    lags = np.random.default_rng(0).permutation(np.linspace(0.31, 0.72, 40))
    found = dh.batch(m.build(), (0, 1), parameters={"lag": lags}, gradient=gradient, workers=1, **TIGHT)
    assert found.statistics["native"] == 40

    def exact(lag: complex, size: complex) -> complex:
        start = [np.exp(-t) * (3 if t > 0.45 else 1) for t in (0.4, 0.5, 0.8)]
        times = [t for t in (0.4, 0.5, 0.8) if t > lag.real]
        dose = [size * np.exp(lag - t) * (3 if lag.real < 0.45 < t else 1) for t in times]
        return sum(start) + sum(dose)

    np.testing.assert_allclose(found.functionals["G"], [exact(p, 2.0).real for p in lags], rtol=1e-7)
    by_p = [[exact(p + 1e-30j, 2.0).imag, exact(p, 2.0 + 1e-30j).imag] for p in lags]
    np.testing.assert_allclose(found.gradient["G"], np.array(by_p) / 1e-30, rtol=1e-6)
