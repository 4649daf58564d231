"""Guards at the edge of their domain: empty tanks, and poles."""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh

LOOPS = [
    ("sundials", "erk", True), ("sundials", "adams", True), ("sundials", "bdf", True), ("scipy", "auto", True),
    ("sundials", "adams", False), ("sundials", "bdf", False),
]  # fmt: skip
EVERY_LOOP = [
    *LOOPS, ("sundials", "auto", True), ("sundials", "auto", False), ("casadi", "auto", True),
    ("scikits-odes", "auto", True),
]  # fmt: skip


def by_turns(loops: list[tuple[str, str, bool]], *values: Any) -> list[Any]:
    """Every loop with every value, in the first size each with one of them."""
    return [
        pytest.param(*loop, value, marks=pytest.mark.campaign if (i + k) % len(values) else [])
        for i, loop in enumerate(loops)
        for k, value in enumerate(values)
    ]


@cache
def tank(*, native: bool, leak: float) -> dh.HybridSystem:
    """h' = -a sqrt(h) - c until it is empty."""
    m = dh.HybridModel("tank")
    a, h0, c = m.parameter("a", 1.0), m.parameter("h0", 1.0), m.parameter("c", leak)
    h = m.differential("h")
    full = m.mode("full", ode={h: -a * np.sqrt(h) - c})
    empty = m.mode("empty", ode={h: 0 * h})
    m.transition(full, empty, guard=h, direction="falling", reset={h: 0.0}, name="empties")
    m.initial(full, {h: h0})
    m.functional("volume", integrand=h)
    return m.build(native=native)


@pytest.mark.parametrize(("adapter", "method", "native"), LOOPS)
def test_a_tank_that_is_pumped_empty(adapter: str, method: str, native: bool) -> None:
    a, c = 1.0, 0.3
    empty_at = 2 * (1.0 - c / a * np.log((a + c) / c)) / a
    options = {"adapter": adapter, "method": method, "rtol": 1e-8}
    system = tank(native=native, leak=c)
    sol = dh.simulate(system, (0, 3), **options)
    assert len(sol.events) == 1
    assert sol.events[0].time == pytest.approx(empty_at, abs=1e-6)
    assert sol.final[2] == [0.0]
    fsa = dh.forward_sensitivity(system, (0, 3), **options)
    asa = dh.adjoint_gradient(system, (0, 3), "volume", **options)
    # of the volume by h0: h / (a sqrt(h) + c) at the start
    assert fsa.gradient["volume"][1] == pytest.approx(1 / 1.3, rel=1e-6)
    assert fsa.event_time_sensitivity[0, 1] == pytest.approx(1 / 1.3, rel=1e-5)
    assert np.allclose(fsa.gradient["volume"], asa.gradient, rtol=1e-6)


@pytest.mark.parametrize(("adapter", "method", "native", "leak"), by_turns(EVERY_LOOP, 0.1, 1e-3))
def test_a_tank_runs_empty_at_every_tolerance(adapter: str, method: str, native: bool, leak: float) -> None:
    """Trial steps go where h < 0, and the last ones are as short as rounding; what is known is known to tolerance."""
    empty_at = 2 * (1.0 - leak * np.log((1.0 + leak) / leak))
    system = tank(native=native, leak=leak)
    for rtol in (1e-4, 1e-6, 1e-8) if native and adapter == "sundials" else (1e-4, 1e-7):
        options = {"adapter": adapter, "method": method, "rtol": rtol, "atol": 1e-2 * rtol}
        sol = dh.simulate(system, (0, 3), **options)
        assert [event.transition for event in sol.events] == ["empties"]
        assert sol.events[0].time == pytest.approx(empty_at, abs=200 * rtol)
        fsa = dh.forward_sensitivity(system, (0, 3), **options)
        asa = dh.adjoint_gradient(system, (0, 3), "volume", **options)
        for gradient in (fsa.gradient["volume"], asa.gradient):
            assert gradient[1] == pytest.approx(1 / (1 + leak), rel=50 * rtol)
        assert fsa.event_time_sensitivity[0, 1] == pytest.approx(1 / (1 + leak), rel=5 * rtol**0.5)


def test_the_adjoint_does_not_keep_the_jacobian_of_an_empty_tank() -> None:
    """CVODES kept it for 51 steps, in which its corrections passed for convergence; rounding of atol decided."""
    for atol in np.nextafter(1e-6, [0.0, 1.0]).tolist():
        asa = dh.adjoint_gradient(tank(native=True, leak=0.3), (0, 3), "volume", method="bdf", rtol=1e-4, atol=atol)
        assert asa.gradient[1] == pytest.approx(1 / 1.3, rel=1e-3)


@pytest.mark.parametrize(("adapter", "method", "native"), EVERY_LOOP)
def test_a_tank_that_empties_by_itself_touches_zero(adapter: str, method: str, native: bool) -> None:
    """h = (1 - t / 2)^2: the rate is zero where h is, and the time is known to the root of the tolerance."""
    system = tank(native=native, leak=0.0)
    options = {"adapter": adapter, "method": method, "rtol": 1e-8, "atol": 1e-10}
    sol = dh.simulate(system, (0, 3), **options)
    assert [event.transition for event in sol.events] == ["empties"]
    assert sol.events[0].time == pytest.approx(2.0, abs=1e-4)
    before = sol.t < sol.events[0].time
    assert np.allclose(sol["h"][before], (1 - sol.t[before] / 2) ** 2, atol=1e-7)
    for analysis in (dh.forward_sensitivity, dh.adjoint_gradient):
        with pytest.raises(dh.GrazingError, match=r"touches zero|beyond zero"):
            analysis(system, (0, 3), **options)


@pytest.mark.parametrize("method", ["bdf", "adams", "erk"])
def test_an_adjoint_does_not_begin_where_its_coefficients_are_infinite(method: str) -> None:
    """h' = -a h^0.1: T = h0^0.9 / (0.9 a). The rate vanishes where h does, and its derivative is infinite there."""
    m = dh.HybridModel("empties")
    a, h0, h = m.parameter("a", 0.345), m.parameter("h0", 1.458), m.differential("h")
    full = m.mode("full", ode={h: -a * h**0.1})
    m.transition(full, None, guard=h, direction="falling", name="empty")
    m.initial(full, {h: h0})
    m.functional("T", terminal=m.time)
    system, options = m.build(), {"rtol": 1e-8, "atol": 1e-10, "method": method}
    fsa = dh.forward_sensitivity(system, (0, 9), **options)
    end = 1.458**0.9 / (0.9 * 0.345)
    assert fsa.functionals["T"] == pytest.approx(end, rel=1e-6)
    np.testing.assert_allclose(fsa.gradient["T"], [-end / 0.345, 0.9 * end / 1.458], rtol=1e-4)
    with pytest.raises(dh.EventError, match="coefficients are infinite"):
        dh.adjoint_gradient(system, (0, 9), **options)


@pytest.mark.parametrize(("rest", "rtol", "is_refused"), [(1e-4, 1e-4, True), (1e-2, 1e-7, False)])
def test_a_guard_is_not_looked_at_where_the_model_is_undefined(rest: float, rtol: float, is_refused: bool) -> None:
    """Two tanks level out, a - b = (1 - k t)^2; the event is just before, and the root is not real soon after."""
    m = dh.HybridModel("level")
    k, a, b = m.parameter("k", 1.0), m.differential("a"), m.differential("b")
    flow = m.mode("flow", ode={a: -k * np.sqrt(a - b), b: k * np.sqrt(a - b)})
    m.transition(flow, None, guard=a - b - rest, direction="falling", name="level")
    m.initial(flow, {a: 1.0, b: 0.0})
    m.functional("T", terminal=m.time)
    system = m.build(native=False)
    for analysis in (dh.forward_sensitivity, dh.adjoint_gradient):
        if is_refused:
            with pytest.raises(dh.GrazingError, match="within the accuracy of the run"):
                analysis(system, (0, 5), rtol=rtol)
        else:
            gradient = analysis(system, (0, 5), rtol=rtol).gradient
            found = gradient["T"] if isinstance(gradient, dict) else gradient
            np.testing.assert_allclose(found, [-0.9], rtol=1e-5)


#: h' = -a r(h) from 1 ends where h is zero; its duration times a
INFINITE_RATES = {
    "-a h^-0.1": (lambda h: h**-0.1, 1 / 1.1),
    "-a h^-0.5": (lambda h: h**-0.5, 1 / 1.5),
    "-a / h": (lambda h: 1 / h, 1 / 2),
    "-a (1 - log h)": (lambda h: 1 - np.log(h), 0.5963473623231941),  # e E1(1)
}


@pytest.mark.parametrize("rtol", [1e-4, 1e-6, 1e-9])
@pytest.mark.parametrize("name", INFINITE_RATES)
def test_a_rate_that_is_infinite_at_the_event_has_its_derivative_or_none(name: str, rtol: float) -> None:
    """From h_0: dt/dh_0 = 1 / (a r(h_0)), and dt/da = -t/a."""
    rate, duration = INFINITE_RATES[name]
    m = dh.HybridModel("to infinity")
    a, start, h = m.parameter("a", 0.3), m.parameter("start", 1.0), m.differential("h")
    m.transition(m.mode("fall", ode={h: -a * rate(h)}), None, guard=h, direction="falling", name="empty")
    m.initial(m.modes["fall"], {h: start})
    m.functional("T", terminal=m.time)
    system = m.build()
    fsa = dh.forward_sensitivity(system, (0, 9), rtol=rtol)
    assert fsa.events[0].time == pytest.approx(duration / 0.3, rel=10 * rtol)
    np.testing.assert_allclose(fsa.gradient["T"], [-duration / 0.09, 1 / 0.3], rtol=20 * rtol)
    with pytest.raises(dh.EventError):  # what it would start from is infinite
        dh.adjoint_gradient(system, (0, 9), "T", rtol=rtol)


@pytest.mark.parametrize("method", ["bdf", "adams", "erk"])
def test_no_run_goes_on_past_an_infinite_rate(method: str) -> None:
    """Steps of one rounding of time, next to the zero, have come back from it as noise, and h grew with any rate."""
    m = dh.HybridModel("to infinity")
    a, start, h = m.parameter("a", 0.371), m.parameter("start", 1.0), m.differential("h")
    full, empty = m.mode("full", ode={h: -a / np.sqrt(h)}), m.mode("empty", ode={h: 0.0})
    m.transition(full, empty, guard=h, direction="falling", reset={h: 0.0}, name="empty")
    m.initial(full, {h: start})
    system = m.build()
    for height in np.linspace(0.3, 1.9, 33):
        end = height**1.5 / (1.5 * 0.371)
        options = {"parameters": {"start": height}, "rtol": 1e-7, "atol": 1e-9, "method": method}
        with suppress(dh.IntegrationError, dh.EventError):
            events = dh.simulate(system, (0, 2 * end), **options).events
            assert [event.time for event in events] == pytest.approx([end], rel=1e-4), height


def test_equations_without_values_away_from_guards_are_still_refused() -> None:
    m = dh.HybridModel("nowhere")
    x = m.differential("x")
    run = m.mode("run", ode={x: -np.sqrt(x) - 0.3})
    m.transition(run, run, guard=x - 2.0, direction="rising", reset={x: 1.0})
    m.initial(run, {x: 1.0})
    with pytest.raises(dh.NonFiniteError):
        dh.simulate(m.build(), (0, 3), rtol=1e-8)


@pytest.mark.parametrize(("adapter", "method", "native", "direction"), by_turns(LOOPS, "rising", "falling", "both"))
def test_a_pole_is_no_crossing(adapter: str, method: str, native: bool, direction: str) -> None:
    for pole in (lambda x: 1 / (x - 0.5), lambda x: 1 / (x - 0.5) ** 3, lambda x: -np.tan(np.pi * x)):
        m = dh.HybridModel("pole")
        x = m.differential("x")
        run = m.mode("run", ode={x: 1.0})
        m.transition(run, run, guard=pole(x) * (1 if direction == "rising" else -1), direction=direction, name="pole")
        m.initial(run, {x: 0.1})
        with pytest.raises(dh.EventError, match="has a pole here") as caught:
            dh.simulate(m.build(native=native), (0, 0.9), adapter=adapter, method=method)
        assert not isinstance(caught.value, dh.ZenoError)
        assert caught.value.time == pytest.approx(0.4, abs=1e-9)
        assert caught.value.transition == "pole"


def test_guards_with_poles_elsewhere_cross_as_ever() -> None:
    m = dh.HybridModel("tangent")
    x = m.differential("x")
    run = m.mode("run", ode={x: 1.0})
    m.transition(run, run, guard=np.tan(x - 1), direction="rising", name="zero")
    m.initial(run, {x: 0.0})
    for native in (True, False):
        sol = dh.simulate(m.build(native=native), (0, 2))
        assert [event.time for event in sol.events] == pytest.approx([1.0], abs=1e-12)


@pytest.mark.parametrize(("adapter", "method", "native"), [*LOOPS, ("casadi", "auto", True)])
def test_a_right_hand_side_with_a_pole_says_so(adapter: str, method: str, native: bool) -> None:
    """y = log|x - 1| is not large next to the pole, its rate is; y = -1 / (2 (x - 1)^2) is."""
    for power, what in (
        (1, "Near t = 1 the equations become infinite: the rate of y"),
        (3, "the solution blows up: y"),
    ):
        m = dh.HybridModel("pole")
        x, y = m.differential("x"), m.differential("y")
        m.initial(m.mode("run", ode={x: 1.0, y: 1 / (x - 1) ** power}), {x: 0.0, y: 0.0})
        with pytest.raises(dh.StepSizeError, match=what) as caught:
            dh.simulate(m.build(native=native), (0, 2), adapter=adapter, method=method)
        assert caught.value.mode == "run"
        assert caught.value.variables == ("y",)
        assert caught.value.time == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize(("adapter", "method", "native"), [*LOOPS, ("casadi", "auto", True)])
def test_a_level_with_a_power_that_negative_numbers_do_not_have(adapter: str, method: str, native: bool) -> None:
    """x' = -c - x^1.5: of the time, the derivative by x0 is that of the way from there, 1 / (c + x0^1.5)."""
    m = dh.HybridModel("power")
    c, x0 = m.parameter("c", 0.2), m.parameter("x0", 1.0)
    x = m.differential("x")
    run, done = m.mode("run", ode={x: -c - x**1.5}), m.mode("done", ode={x: 0 * x})
    m.transition(run, done, guard=x, direction="falling", reset={x: 0.0}, name="ends")
    m.initial(run, {x: x0})
    m.functional("G", integrand=x**1.5)
    system = m.build(native=native)
    for rtol in (1e-5, 1e-8):
        options = {"adapter": adapter, "method": method, "rtol": rtol, "atol": 1e-2 * rtol}
        fsa = dh.forward_sensitivity(system, (0, 6), **options)
        asa = dh.adjoint_gradient(system, (0, 6), "G", **options)
        assert fsa.event_time_sensitivity[0, 1] == pytest.approx(1 / 1.2, rel=100 * rtol)
        for gradient in (fsa.gradient["G"], asa.gradient):
            assert gradient[1] == pytest.approx(1 / 1.2, rel=100 * rtol)


@pytest.mark.parametrize("options", [{}, {"method": "bdf"}, {"method": "adams"}])
def test_a_sign_that_changes_at_a_jump_is_no_crossing(options: Any) -> None:
    """Without the mark the cut is an event, and the guard jumps across zero there; see `test_hidden_jumps`."""
    m = dh.HybridModel("jumps")
    x = m.differential("x")
    one, other = m.mode("one", ode={x: 1.0}), m.mode("other", ode={x: 1.0})
    m.transition(one, other, guard=-dh.smooth(ca.atan2(ca.sin(x), ca.cos(x))), direction="rising", name="never")
    m.initial(one, {x: 0.1})
    with pytest.raises(dh.EventError, match="changes sign here, but"):
        dh.simulate(m.build(), (0, 4), **options)
