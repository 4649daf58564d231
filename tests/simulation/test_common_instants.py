"""Ticks, knots and measurements at one time: the order of an instant, in compiled code and in Python."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import dae_hybrid as dh

OPTIONS: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}
SPAN = (0.0, 1.07)
#: 0.1 * 3 is larger than 0.3 by a rounding error
KNOTS = np.arange(12) * 0.1
FORMS = (
    "two clocks",
    "rounded clocks",
    "three clocks",
    "moving clocks",
    "measured",
    "measured rounded",
    "knots",
    "modes",
    "guard",
    "costs",
)


@cache
def sampled(form: str) -> dh.HybridSystem:
    """A sampled feedback whose ticks coincide with other times."""
    m = dh.HybridModel(form)
    k, a = m.parameter("k", 1.2), m.parameter("a", 0.4)
    x, u, v = m.differential("x"), m.differential("u"), m.differential("v")
    f = m.signal("f", KNOTS, np.cos(KNOTS), kind="previous") if form == "knots" else 0.0
    go = m.mode("go", ode={x: -k * x + u + f, u: 0 * x, v: x})
    m.initial(go, {x: 1.0, u: 0.1, v: 0.0})
    period = a / 4 if form == "moving clocks" else 0.1
    m.transition(go, go, every=period, reset={u: a * (1 - x)}, name="inner")
    if form == "moving clocks":
        m.transition(go, go, every=2 * period, reset={u: 0.5 * u, v: 0.5 * v + u}, name="outer")
        m.transition(go, go, at=5 * period, reset={v: v + k * u}, name="dose")
    if form in ("two clocks", "costs", "guard"):
        m.transition(go, go, every=0.2, reset={u: 0.5 * u, v: 0.5 * v + u}, name="outer")
    if form == "rounded clocks":
        m.transition(go, go, every=0.3, reset={u: 0.5 * u, v: 0.5 * v + u}, name="outer")
    if form == "three clocks":
        m.transition(go, go, every=0.2, reset={u: 0.5 * u + v}, name="second")
        m.transition(go, go, at=0.6, reset={v: v + k * u}, name="third")
    if form == "modes":
        rest = m.mode("rest", ode={x: -x, u: 0 * x, v: k * x})
        m.transition(go, rest, every=0.5, name="leave")
        m.transition(rest, go, every=0.73, reset={u: u + a}, name="return")
    if form == "guard":  # crossed by the second tick of an instant
        m.transition(go, go, guard=v - 0.3, direction="rising", reset={x: 0.5 * x}, on_entry="fire", name="cross")
    every = np.round(KNOTS[1:-1], 10) if "rounded" in form else KNOTS[1:-1]
    parts: dict[str, Any] = {"terminal": x * x + v * v, "integrand": u * u}
    if form not in ("two clocks", "moving clocks", "guard"):
        parts["at_times"] = {float(t): (x + u - 0.3) ** 2 for t in every}
    if form == "costs":
        parts["at_events"] = {"outer": x * u + a}
    m.functional("G", **parts)
    return m.build()


@cache
def adjoint(form: str, method: str = "erk", *, native: bool = True) -> np.ndarray:
    """The gradient of a form."""
    options = {"method": method, "native_events": native, **OPTIONS}
    return np.asarray(dh.adjoint_gradient(sampled(form), SPAN, functional="G", **options).gradient)


def seen(sol: dh.Trajectory) -> list[tuple[float, str, int, int]]:
    """What a run did, without the rounding of its event times."""
    return [(round(e.time, 8), e.transition, e.order, e.count) for e in sol.events]


@pytest.mark.parametrize("method", ["erk", "bdf"])
@pytest.mark.parametrize("form", FORMS)
def test_compiled_code_and_python_carry_out_the_same_instants(form: str, method: str) -> None:
    system = sampled(form)
    runs = [
        dh.simulate(system, SPAN, method=method, native_events=native, t_eval=np.linspace(0, 1, 11), **OPTIONS)
        for native in (True, False)
    ]
    ours, theirs = runs
    assert seen(ours) == seen(theirs)
    assert ours.event_table.order.tolist() == [event.order for event in ours.events]
    assert len(ours.segments) == len(theirs.segments)
    assert ours.statistics["segments"] == theirs.statistics["segments"]
    np.testing.assert_allclose(ours["u"], theirs["u"], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(ours.functionals["G"], theirs.functionals["G"], rtol=1e-7)
    if form != "guard":
        assert ours.statistics["native_events"] == len(ours.events)
    gradients = []
    for native in (True, False):
        how = {"method": method, "native_events": native, **OPTIONS}
        gradients.append(dh.forward_sensitivity(system, SPAN, **how).gradient["G"])
        gradients.append(adjoint(form, method, native=native))
    for gradient in gradients[1:]:
        np.testing.assert_allclose(gradient, gradients[0], rtol=2e-5)


@pytest.mark.parametrize("form", FORMS)
def test_gradients_at_common_instants_are_those_of_differences(form: str) -> None:
    system, found = sampled(form), adjoint(form)
    p, h = np.array(system.parameter_vector(None)), 1e-5
    for i in range(p.size):
        values = []
        for sign in (1, -1):
            moved = p.copy()
            moved[i] += sign * h
            values.append(dh.simulate(system, SPAN, parameters=moved, method="erk", **OPTIONS).functionals["G"])
        np.testing.assert_allclose(found[i], (values[0] - values[1]) / (2 * h), rtol=2e-5, atol=1e-7)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "guard"])
def test_batches_carry_out_common_instants_natively(form: str) -> None:
    system, p = sampled(form), np.array([[1.2, 0.4], [1.1, 0.5]])
    batch = dh.batch(system, SPAN, parameters=p, functional="G", gradient="adjoint", method="erk", **OPTIONS)
    assert batch.native.all(), batch.reasons
    for own, gradient in zip(p, batch.gradient["G"], strict=True):
        alone = dh.adjoint_gradient(system, SPAN, functional="G", parameters=own, method="erk", **OPTIONS)
        np.testing.assert_array_equal(np.ravel(gradient), np.ravel(alone.gradient))


def test_the_order_of_an_instant_is_knot_transitions_measurement() -> None:
    """A setpoint that steps, is sampled and recorded at one time, known to each clock with its own rounding error."""
    for knot, period, measured in ((0.3, 0.1, 3 * 0.1), (3 * 0.1, 0.3, 0.3), (0.3, 0.3, 3 * 0.1), (3 * 0.1, 0.1, 0.3)):
        m = dh.HybridModel("sampled setpoint")
        p = m.parameter("p", 2.0)
        x, held = m.differential("x"), m.differential("held")
        setpoint = m.signal("setpoint", [0.0, knot, 1.0], [1.0, 5.0, 5.0], kind="previous")
        go = m.mode("go", ode={x: p - x, held: 0 * x})
        m.initial(go, {x: 0.0, held: 0.0})
        m.transition(go, go, every=period, reset={held: p * setpoint})
        m.functional("G", at_times={measured: held})
        for native in (True, False):
            sol = dh.simulate(m.build(), (0, 0.35), native_events=native, **OPTIONS)
            assert sol.functionals["G"] == 10.0
            assert [event.order for event in sol.events] == [0] * len(sol.events)


def test_reversed_instants_fire_the_last_transition_first() -> None:
    system = sampled("two clocks")
    for native in (True, False):
        sol = dh.simulate(system, (0, 0.25), simultaneous="reversed", native_events=native, **OPTIONS)
        names = [event.transition for event in sol.events]
        assert names == ["inner", "outer", "inner"]


def test_periods_that_move_apart_are_one_sided() -> None:
    m = dh.HybridModel("moving clock")
    period = m.parameter("period", 0.2)
    x = m.differential("x")
    go = m.mode("go", ode={x: 1.0 + 0 * x})
    m.initial(go, {x: 1.0})
    m.transition(go, go, every=period, reset={x: 2 * x}, name="moving")
    m.transition(go, go, every=0.1, reset={x: x - 0.3}, name="given")
    m.functional("G", terminal=x)
    for native in (True, False):
        with pytest.warns(dh.DerivativeWarning, match="due at one instant"):
            dh.adjoint_gradient(m.build(), (0, 0.25), functional="G", native_events=native, **OPTIONS)


def test_the_limit_of_transitions_per_instant_holds_in_compiled_code() -> None:
    m = dh.HybridModel("many doses")
    x = m.differential("x")
    go = m.mode("go", ode={x: -x})
    m.initial(go, {x: 1.0})
    for i in range(5):
        m.transition(go, go, at=1.0, reset={x: x + 0.1}, name=f"dose {i}")
    system = m.build()
    assert dh.simulate(system, (0, 2), **OPTIONS).event_table.order.tolist() == [0, 1, 2, 3, 4]
    for native in (True, False):
        with pytest.raises(dh.ChatteringError, match="More than 4 transitions") as caught:
            dh.simulate(system, (0, 2), max_transitions_per_instant=4, native_events=native, **OPTIONS)
        assert len(caught.value.trajectory.events) == 4


@pytest.mark.parametrize("what", ["doses", "measurements", "one dose"])
def test_times_a_few_roundings_apart_all_count(what: str) -> None:
    """Sums of 0.1 are up to 200 roundings off its multiples: neither one time with them nor skipped."""
    n = 400
    m = dh.HybridModel("sums")
    p = m.parameter("p", 1.0)
    x, c = m.differential("x"), m.differential("c")
    go = m.mode("go", ode={x: -p * x, c: 0 * x})
    m.initial(go, {x: 1.0, c: 0.0})
    m.transition(go, go, every=0.1, reset={x: 0.9 * x})
    times = [0.4 + 29 * 2.0**-54] if what == "one dose" else np.cumsum(np.full(n, 0.1)).tolist()
    for time in times if what != "measurements" else ():
        m.transition(go, go, at=time, reset={c: c + p})
    m.functional("G", terminal=c, at_times=[(time, p + 0 * x) for time in times if what == "measurements"])
    system, span = m.build(), (0, 40.05)
    for native in (True, False):
        sol = dh.simulate(system, span, rtol=1e-6, native_events=native)
        assert sol.functionals["G"] == pytest.approx(len(times), rel=1e-12)
        found = dh.adjoint_gradient(system, span, functional="G", rtol=1e-6, native_events=native)
        assert found.gradient[0] == pytest.approx(len(times), rel=1e-12)
    batch = dh.batch(system, span, parameters={"p": [1.0, 2.0]}, rtol=1e-6)
    np.testing.assert_allclose(np.ravel(batch.values), [len(times), 2 * len(times)], rtol=1e-12)


@pytest.mark.parametrize("first", [0.3, 3 * 0.1])
def test_knots_of_two_signals_that_differ_by_rounding_are_one(first: float) -> None:
    second = 3 * 0.1 if first == 0.3 else 0.3
    m = dh.HybridModel("two inputs")
    p = m.parameter("p", 1.0)
    x, held = m.differential("x"), m.differential("held")
    f = m.signal("f", [0.0, first, 1.0], [1.0, 5.0, 5.0], kind="previous")
    g = m.signal("g", [0.0, second, 1.0], [1.0, 7.0, 7.0], kind="previous")
    go = m.mode("go", ode={x: p * (f + 10 * g), held: 0 * x})
    m.initial(go, {x: 0.0, held: 0.0})
    m.transition(go, go, at=0.3, reset={held: f + 10 * g})
    m.functional("G", terminal=x)
    m.functional("sampled", terminal=held, at_times={0.3: f + 10 * g, 3 * 0.1: f + 10 * g})
    system = m.build()
    for native in (True, False):
        sol = dh.simulate(system, (0, 0.9), native_events=native, **OPTIONS)
        assert sol.functionals["G"] == pytest.approx(48.3, rel=1e-9)
        assert sol.functionals["sampled"] == 3 * 75
        found = dh.adjoint_gradient(system, (0, 0.9), functional="G", native_events=native, **OPTIONS)
        assert found.gradient[0] == pytest.approx(48.3, rel=1e-9)


def test_signals_on_rounded_grids_keep_all_knots() -> None:
    grid = np.arange(21) * 0.1
    m = dh.HybridModel("two inputs")
    p, x = m.parameter("p", 1.0), m.differential("x")
    f = m.signal("f", grid, np.sin(3 * grid), kind="linear")
    g = m.signal("g", np.round(grid, 10), np.cos(3 * grid), kind="linear")
    m.initial(m.mode("go", ode={x: p * (f + g)}), {x: 0.0})
    m.functional("G", terminal=x)
    inside = np.append(grid[grid < 1.95], 1.95)
    expected = np.trapezoid(np.interp(inside, grid, np.sin(3 * grid) + np.cos(3 * grid)), inside)
    for native in (True, False):
        sol = dh.simulate(m.build(), (0, 1.95), native_events=native, **OPTIONS)
        assert sol.functionals["G"] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("period", "span"), [(1e-9, (1e6, 1e6 + 1e-6)), (1e-6, (1.7e9, 1.7e9 + 1e-3))])
def test_periods_below_the_resolution_of_times_are_refused(period: float, span: tuple[float, float]) -> None:
    m = dh.HybridModel("tick")
    b, x, c = m.parameter("b", 0.5), m.differential("x"), m.differential("c")
    go = m.mode("go", ode={x: -b * x, c: 0 * x})
    m.initial(go, {x: 1.0, c: 0.0})
    m.transition(go, go, every=period, reset={c: c + 1})
    m.functional("G", terminal=c)
    for native in (True, False):
        with pytest.raises(dh.EventError, match="below the resolution of times"):
            dh.simulate(m.build(), span, native_events=native)
    assert isinstance(dh.batch(m.build(), span, parameters={"b": [0.5]}).errors[0], dh.EventError)


def test_an_instant_that_python_completes_stays_one() -> None:
    m = dh.HybridModel("stop at a tick")
    x = m.differential("x")
    go = m.mode("go", ode={x: -x})
    m.initial(go, {x: 1.0})
    m.transition(go, go, every=0.1, reset={x: x + 0.1}, name="a")
    m.transition(go, go, every=0.15, reset={x: x + 0.1}, name="b")
    m.transition(go, None, at=3 * 0.1, name="stop")
    for native in (True, False):
        sol = dh.simulate(m.build(), (0, 1), native_events=native, **OPTIONS)
        assert len(sol.segments) == sol.statistics["segments"] == 4
        assert [event.time for event in sol.events[-3:]] == [0.3] * 3


def test_dense_output_at_the_end_follows_the_event_there() -> None:
    m = dh.HybridModel("end")
    p, x = m.parameter("p", 1.0), m.differential("x")
    go = m.mode("go", ode={x: p})
    m.initial(go, {x: 0.0})
    m.transition(go, go, at=1.0, reset={x: x + 10})
    m.functional("G", at_times={1.0: x})
    sol = dh.simulate(m.build(), (0, 1.0), **OPTIONS)
    assert sol(1.0)["x"] == pytest.approx(sol.functionals["G"]) == pytest.approx(11.0)


@pytest.mark.parametrize("doses", range(0, 30, 3))
def test_an_instant_may_begin_where_the_table_of_records_is_full(doses: int) -> None:
    """The table grows within the instant; Python carries out the second tick, which moves with the period."""
    m = dh.HybridModel("growing table")
    k, period = m.parameter("k", 0.5), m.parameter("period", 0.25)
    x = m.differential("x")
    go, rest = m.mode("go", ode={x: -k * x}), m.mode("rest", ode={x: -x})
    m.initial(go, {x: 1.0})
    for i in range(doses):
        m.transition(go, go, at=0.01 * (i + 1), reset={x: x + 0.1}, name=f"dose {i}")
    m.transition(go, go, every=0.5, reset={x: x + 0.2}, name="given")
    m.transition(go, go, every=period, reset={x: 0.5 * x}, name="moving")
    m.transition(go, rest, at=2.0, name="leave")
    m.transition(rest, rest, every=0.5, reset={x: x + 0.3}, name="later")
    m.functional("G", terminal=x, at_times={1.0: x, 2.0: x, 2.5: x})
    system = m.build()
    found = dh.forward_sensitivity(system, (0, 2.7), wrt=["k"], **OPTIONS)
    expected = dh.forward_sensitivity(system, (0, 2.7), wrt=["k"], native_events=False, **OPTIONS)
    assert seen(found.trajectory) == seen(expected.trajectory)
    np.testing.assert_allclose(found.gradient["G"], expected.gradient["G"], rtol=1e-7)
