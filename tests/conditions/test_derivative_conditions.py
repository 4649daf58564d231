"""Checks that a gradient must pass before it is returned, and diagnostics of results."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.adapters.sundials.session import SundialsSession
from dae_hybrid.system import transition_map as transition_module

TIGHT = {"rtol": 1e-10, "atol": 1e-12}


# -- duality ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["decay", "oscillator", "ball", "circuit", "em", "counter"])
def test_lambda_times_sensitivity_is_constant_along_a_run(name: str, built: Any, models: Any) -> None:
    system = built(getattr(models, name))
    span = (0.0, 3.0)
    for functional in system.functionals.names:
        asa = dh.adjoint_gradient(system, span, functional, duality=True, **TIGHT)
        check = asa.duality
        assert check.passed
        assert check.allowed == pytest.approx(1e-5)
        assert check.times.size == len({e.time for e in asa.trajectory.events}) + 2
        size = np.abs(np.atleast_2d(asa.gradient)) @ np.abs(check.direction)
        drift = np.abs(check.values - check.values[-1]).max(axis=0) / np.where(size > 0, size, 1.0)
        assert np.all(drift < 1e-6)
        np.testing.assert_allclose(np.atleast_2d(asa.gradient) @ check.direction, check.adjoint)
        assert asa.diagnostics.check("duality").passed


def test_forward_analysis_is_checked_by_the_adjoint(built: Any, models: Any) -> None:
    system = built(models.circuit)
    fsa = dh.forward_sensitivity(system, (0, 2), duality=True, **TIGHT)
    assert set(fsa.duality) == {"work", "both"}
    for name, check in fsa.duality.items():
        assert check.passed
        np.testing.assert_allclose(np.atleast_2d(fsa.gradient[name]) @ check.direction, check.forward)


@pytest.fixture
def wrong_transpose(monkeypatch: pytest.MonkeyPatch) -> None:
    """An adjoint that omits the effect of the guard on the event time, a known error of implementations."""
    original = transition_module.TransitionLinearisation.backward

    def backward(self: Any, after: Any, clock: Any) -> Any:
        before, share, rest = original(self, after, clock)
        c = after @ self.time_shift + self.integrand_minus - self.integrand_plus
        return before + np.outer(c / self.rate, self.h_w), share, rest

    monkeypatch.setattr(transition_module.TransitionLinearisation, "backward", backward)
    monkeypatch.setattr(SundialsSession, "sweep", lambda *_, **__: None)  # or it would go back in compiled code
    monkeypatch.setattr(SundialsSession, "back", lambda *_, **__: None)


def test_a_wrong_adjoint_is_refused_and_the_place_is_named(built: Any, models: Any, wrong_transpose: None) -> None:
    system = built(models.ball)
    event = dh.simulate(system, (0, 1), **TIGHT).events[0].time
    for analysis in (
        lambda **more: dh.adjoint_gradient(system, (0, 1), duality=True, **TIGHT, **more),
        lambda **more: dh.forward_sensitivity(system, (0, 1), duality=True, **TIGHT, **more),
    ):
        with pytest.raises(dh.DualityError, match="differ by") as caught:
            analysis()
        assert isinstance(caught.value, dh.DaeHybridError)
        assert caught.value.time == pytest.approx(event)
        assert caught.value.trajectory.complete
        with pytest.warns(dh.DerivativeWarning, match="differ by"):
            found = analysis(strict=False)
        assert not found.diagnostics.passed
        assert any("differ by" in note for note in found.diagnostics)


@pytest.mark.parametrize("allowed", [0, -1.0, "yes", np.inf])
def test_what_duality_may_be(allowed: Any, built: Any, models: Any) -> None:
    with pytest.raises(dh.OptionError, match="duality must be True, False or a positive number"):
        dh.adjoint_gradient(built(models.counter), (0, 1), "end", duality=allowed)


def test_a_run_too_sensitive_for_its_tolerance_does_not_pass() -> None:
    """A van der Pol oscillator in its limit of instant jumps: at rtol 1e-4 the gradient has no digit."""
    m = dh.HybridModel("relaxation")
    mu, y0 = m.parameter("mu", 1e5), m.parameter("y0", 2.0)
    y, w = m.differential("y"), m.differential("w")
    run = m.mode("run", ode={y: w, w: mu * ((1 - y**2) * w - y)})
    m.initial(run, {y: y0, w: 0.0})
    m.functional("G", integrand=y**2)
    system = m.build()
    with pytest.raises(dh.DualityError, match="Tighten rtol"):
        dh.adjoint_gradient(system, (0, 1), rtol=1e-5, atol=1e-8, duality=1e-4)


@cache
def relaxation(mu: float, adapter: str, *, event: bool) -> np.ndarray:
    """The gradient of van der Pol's oscillator, with or without an event in its jump."""
    m = dh.HybridModel("relaxation")
    p, y0 = m.parameter("mu", mu), m.parameter("y0", 2.0)
    y, w = m.differential("y"), m.differential("w")
    run = m.mode("run", ode={y: w, w: p * ((1 - y**2) * w - y)})
    if event:
        m.transition(run, run, guard=y, direction="both")
    m.initial(run, {y: y0, w: 0.0})
    m.functional("G", integrand=y**2)
    asa = dh.adjoint_gradient(m.build(), (0, 1), adapter=adapter, rtol=1e-8, atol=1e-12, duality=0.1)
    assert len(asa.trajectory.events) == event
    return np.asarray(asa.gradient)


@pytest.mark.parametrize(
    ("mu", "adapter"),
    [
        (1e4, "sundials"),
        (1e5, "sundials"),
        *(pytest.param(mu, "scipy", marks=pytest.mark.campaign) for mu in (1e4, 1e5)),
    ],
)
def test_an_event_that_does_nothing_in_a_fast_layer_changes_nothing(mu: float, adapter: str) -> None:
    """The adjoint follows the run itself: another run as accurate crosses the layer at another time."""
    expected = relaxation(mu, "sundials", event=False)
    np.testing.assert_allclose(relaxation(mu, adapter, event=True), expected, rtol=0.02)


def test_an_adjoint_that_stands_still_does_not_step_over_a_pulse() -> None:
    """An integrand that depends on the parameter alone, in a pulse of 3 ms within 10 s: dG/da = 2 a."""
    m = dh.HybridModel("pulse")
    a, y = m.parameter("a", 1.0), m.differential("y")
    run = m.mode("run", ode={y: -a * y})
    m.initial(run, {y: 1.0})
    m.functional("G", integrand=a**2 * np.exp(-(((m.time - 2.3) / 3e-3) ** 2)) / (3e-3 * np.sqrt(np.pi)))
    m.functional("H", integrand=(1 + np.tanh((m.time - 2.3) / 3e-3)) / 2)  # which makes the forward run look there
    for t_eval in (None, [0.0, 10.0]):
        asa = dh.adjoint_gradient(m.build(), (0, 10), "G", t_eval=t_eval)
        assert asa.gradient == pytest.approx(2.0, rel=1e-6)


# -- transitions that are due together ----------------------------------------------------------------------------


def together(kind: str) -> dh.HybridSystem:
    """x' = a and y' = b reach 1 together at t = 1; what A and B do to z commutes or not."""
    m = dh.HybridModel("together")
    a, b = m.parameter("a", 1.0), m.parameter("b", 1.0)
    x, y, z = m.differential("x"), m.differential("y"), m.differential("z")
    run = m.mode("run", ode={x: a, y: b, z: 0})
    resets = {
        "commute": (z + 2, z + 3),
        "order": (z + 2, 3 * z),
        "rates": (z + x - y, 2 * z),  # x - y is zero where both are due, whatever comes first
    }[kind]
    m.transition(run, run, guard=x - 1, direction="rising", reset={z: resets[0]}, name="A")
    m.transition(run, run, guard=y - 1, direction="rising", reset={z: resets[1]}, name="B")
    m.initial(run, {x: 0.0, y: 0.0, z: 0.0 if kind == "rates" else 1.0})
    m.functional("G", terminal=z)
    return m.build(native=False)


@pytest.mark.filterwarnings("error::dae_hybrid.DerivativeWarning")
@pytest.mark.parametrize("order", ["declared", "reversed"])
def test_where_the_order_does_not_matter_the_derivative_is_right(order: Any) -> None:
    system = together("commute")
    asa = dh.adjoint_gradient(system, (0, 2), simultaneous=order, **TIGHT)
    fsa = dh.forward_sensitivity(system, (0, 2), simultaneous=order, **TIGHT)
    assert [e.transition for e in fsa.events] == (["A", "B"] if order == "declared" else ["B", "A"])
    assert [e.order for e in fsa.events] == [0, 1]
    assert asa.value == 6.0
    np.testing.assert_allclose(asa.gradient, 0.0, atol=1e-12)
    np.testing.assert_allclose(fsa.gradient["G"], 0.0, atol=1e-12)
    np.testing.assert_allclose(
        fsa.event_time_sensitivity, [[-1, 0], [0, -1]] if order == "declared" else [[0, -1], [-1, 0]], atol=1e-9
    )
    assert asa.diagnostics.check("one-sided derivatives").passed
    assert asa.diagnostics.check("simultaneous").detail.startswith("1 transitions followed")


@pytest.mark.parametrize(
    ("kind", "order", "value", "gradient"),
    [
        ("order", "declared", 9.0, [0.0, 0.0]),
        ("order", "reversed", 5.0, [0.0, 0.0]),
        # A first: x - y at x = 1 is 1 - b/a, doubled by B; else what A adds, a/b - 1, is not doubled
        ("rates", "declared", 0.0, [2.0, -2.0]),
        ("rates", "reversed", 0.0, [1.0, -1.0]),
    ],
)
def test_where_the_order_matters_both_sides_are_there_and_a_warning(
    kind: str, order: Any, value: float, gradient: list[float]
) -> None:
    system = together(kind)
    why = "different states" if kind == "order" else "other derivatives"
    with pytest.warns(dh.DerivativeWarning, match=f"'A' and 'B'|'B' and 'A'.*{why}"):
        asa = dh.adjoint_gradient(system, (0, 2), simultaneous=order, **TIGHT)
    with pytest.warns(dh.DerivativeWarning, match=why):
        fsa = dh.forward_sensitivity(system, (0, 2), simultaneous=order, **TIGHT)
    assert asa.value == pytest.approx(value, abs=1e-9)
    np.testing.assert_allclose(asa.gradient, gradient, atol=1e-7)
    np.testing.assert_allclose(fsa.gradient["G"], gradient, atol=1e-7)
    assert not asa.diagnostics.check("one-sided derivatives").passed
    h = 1e-4  # the side on which A comes first: a a little larger
    sign = 1 if order == "declared" else -1
    if kind == "rates":
        aside = dh.simulate(system, (0, 2), parameters={"a": 1.0 + sign * h}, **TIGHT).functionals["G"]
        assert sign * aside / h == pytest.approx(gradient[0], abs=1e-3)


@pytest.mark.filterwarnings("error::dae_hybrid.DerivativeWarning")
def test_transitions_that_stay_together_need_no_warning() -> None:
    """Both guards are the same crossing, so no change of the parameters tells their times apart."""
    m = dh.HybridModel("one")
    a = m.parameter("a", 1.0)
    x, z = m.differential("x"), m.differential("z")
    run = m.mode("run", ode={x: a, z: 0})
    m.transition(run, run, guard=x - 1, direction="rising", reset={z: z + 2})
    m.transition(run, run, guard=2 * x - 2, direction="rising", reset={z: 3 * z * x})
    m.initial(run, {x: 0.0, z: 1.0})
    m.functional("G", terminal=z * x)
    asa = dh.adjoint_gradient(m.build(native=False), (0, 2), **TIGHT)
    np.testing.assert_allclose(asa.gradient, 9 * 2.0, rtol=1e-8)


def test_a_guard_that_meets_a_time_event_by_chance() -> None:
    """x reaches 1 at the fixed time of a transition that doubles z: before or after it, z + x differs."""
    m = dh.HybridModel("chance")
    a = m.parameter("a", 1.0)
    x, z = m.differential("x"), m.differential("z")
    run = m.mode("run", ode={x: a, z: 0})
    m.transition(run, run, at=1.0, reset={z: 2 * z}, name="clock")
    m.transition(run, run, guard=x - 1, direction="rising", reset={z: z + x}, name="reach")
    m.initial(run, {x: 0.0, z: 1.0})
    m.functional("G", terminal=z)
    system = m.build(native=False)
    values = set()
    for order in ("declared", "reversed"):
        with pytest.warns(dh.DerivativeWarning, match="order matters"):
            values.add(round(dh.adjoint_gradient(system, (0, 2), simultaneous=order).value, 9))
    assert values == {3.0, 4.0}


# -- what else falls on one instant by chance -------------------------------------------------------------------


def entered(offset: float) -> dh.HybridSystem:
    """A reset leads to y = 1 + offset, where the guard y - c of the next mode is zero for c = 1 and offset = 0."""
    m = dh.HybridModel("entered")
    c, r = m.parameter("c", 1.0), m.parameter("r", 1.0 + offset)
    y = m.differential("y")
    first, second, third = m.mode("first", ode={y: 1.0}), m.mode("second", ode={y: 1.0}), m.mode("third", ode={y: -1.0})
    m.transition(first, second, guard=y - 0.5, direction="rising", reset={y: r})
    m.transition(second, third, guard=y - c, direction="rising", name="chance")
    m.initial(first, {y: 0.0})
    m.functional("G", terminal=y)
    return m.build(native=False)


def test_a_guard_that_is_zero_on_entry_by_chance_has_one_side() -> None:
    system = entered(0.0)
    assert [e.transition for e in dh.simulate(system, (0, 2)).events] == ["first->second", "chance"]
    for analysis in (dh.forward_sensitivity, dh.adjoint_gradient):
        with pytest.raises(dh.EventError, match="zero, to the last bit, where its mode is entered") as caught:
            analysis(system, (0, 2))
        assert caught.value.transition == "chance"
        assert caught.value.mode == "second"
    # y(2) = c - (2 - 0.5 - (c - r)) = 2 c - r - 1.5 on the side where it is crossed
    with pytest.warns(dh.DerivativeWarning):
        asa = dh.adjoint_gradient(system, (0, 2), strict=False)
    np.testing.assert_allclose(asa.gradient, [2.0, -1.0], rtol=1e-7)
    np.testing.assert_allclose(dh.adjoint_gradient(entered(-0.01), (0, 2)).gradient, [2.0, -1.0], rtol=1e-7)


@pytest.mark.filterwarnings("error::dae_hybrid.DerivativeWarning")
def test_a_reset_to_exactly_the_guard_of_the_next_mode_is_no_chance(compare_gradients: Any) -> None:
    """The reset says y = c, and so does the guard: they move together."""
    m = dh.HybridModel("exact")
    c, k = m.parameter("c", 1.0), m.parameter("k", 0.5)
    y = m.differential("y")
    first, second, third = m.mode("first", ode={y: 1.0}), m.mode("second", ode={y: 1.0}), m.mode("third", ode={y: -y})
    m.transition(first, second, guard=y - k, direction="rising", reset={y: c})
    m.transition(second, third, guard=y - c, direction="rising")
    m.initial(first, {y: 0.0})
    m.functional("G", terminal=y)
    decay = np.exp(-1.5)  # y(2) = c exp(-(2 - k))
    compare_gradients(m.build(native=False), (0, 2), "G", exact=[decay, decay])


def test_an_event_at_the_very_end_has_one_side() -> None:
    """x = a t reaches 1 at t = 1 and z jumps: with a little less it does not."""
    m = dh.HybridModel("end")
    a = m.parameter("a", 1.0)
    x, z = m.differential("x"), m.differential("z")
    run = m.mode("run", ode={x: a, z: 0})
    m.transition(run, run, guard=x - 1, direction="rising", reset={z: z + 1}, name="late")
    m.initial(run, {x: 0.0, z: 0.0})
    m.functional("G", terminal=x + z)
    system = m.build(native=False)
    with pytest.raises(dh.EventError, match="at the very end of the run") as caught:
        dh.adjoint_gradient(system, (0, 1))
    assert caught.value.transition == "late"
    with pytest.raises(dh.EventError, match="at the very end of the run"):
        dh.forward_sensitivity(system, (0, 1))
    assert dh.adjoint_gradient(system, (0, 1.001)).gradient == pytest.approx(1.001, rel=1e-6)


def test_a_measurement_at_an_event_has_both_sides_by_name() -> None:
    """x' = k resets to r x at c: the derivatives of x on both sides of the event, at its fixed time."""
    m = dh.HybridModel("sides")
    k, c, r = m.parameter("k", 1.0), m.parameter("c", 0.75), m.parameter("r", 0.2)
    x = m.differential("x")
    run = m.mode("run", ode={x: k})
    m.transition(run, run, guard=x - c, direction="rising", reset={x: r * x})
    m.initial(run, {x: 0.0})
    m.functional("G", at_times={0.75: x})
    system = m.build(native=False)
    with pytest.raises(dh.EventError, match="only one-sided derivatives"):
        dh.forward_sensitivity(system, (0, 1), **TIGHT)
    with pytest.warns(dh.DerivativeWarning, match="one-sided"):
        fsa = dh.forward_sensitivity(system, (0, 1), strict=False, **TIGHT)
    sides = fsa.event_sensitivities[0]
    # x- = k t; x+ = r c + k (t - c / k), at t = c / k
    np.testing.assert_allclose(sides.state_minus, [[0.75, 0, 0]], atol=1e-9)
    np.testing.assert_allclose(sides.state_plus, [[0.75, 0.2 - 1, 0.75]], atol=1e-9)
    np.testing.assert_allclose(sides.time, fsa.event_time_sensitivity[0])
    np.testing.assert_allclose(sides.time, [-0.75, 1.0, 0.0], atol=1e-9)
    assert sides.memory_minus.shape == sides.memory_plus.shape == (0, 3)


# -- runs that end where events accumulate ------------------------------------------------------------------------


@pytest.mark.parametrize("e", [0.9, 0.8, 0.5, 0.2, 0.05, 0.01])
@pytest.mark.parametrize("rtol", [1e-6, 1e-8, 1e-10])
def test_a_run_may_end_where_events_accumulate(e: float, rtol: float, built: Any, models: Any) -> None:
    rest = np.sqrt(2 / 9.81) * (1 + e) / (1 - e)
    options: dict[str, Any] = {"parameters": {"e": e}, "rtol": rtol, "atol": rtol / 100, "on_zeno": "end"}
    sol = dh.simulate(built(models.ball), (0, rest + 1), **options)
    assert sol.complete
    assert sol.ended_by_event
    accuracy = 2e-3 if rtol > 1e-7 else 1e-4
    assert sol.final[0] == pytest.approx(rest, rel=accuracy)
    assert sol.accumulation == pytest.approx(rest, rel=accuracy)
    assert np.all(sol["y"] > -rtol)
    assert any("events accumulate at about" in note for note in sol.diagnostics)
    assert not sol.diagnostics.check("accumulation").passed


@pytest.mark.uncertified  # the height at the last bounce is zero: there is nothing to compare with
def test_no_gradient_of_a_run_that_ended_there_unless_asked_for(built: Any, models: Any) -> None:
    system, options = built(models.ball), {"on_zeno": "end", "parameters": {"e": 0.5}, **TIGHT}
    for analysis in (dh.forward_sensitivity, dh.adjoint_gradient):
        with pytest.raises(dh.ZenoError, match="the derivative is that of the run up to there") as caught:
            analysis(system, (0, 3), **options)
        assert caught.value.time == pytest.approx(3 * np.sqrt(2 / 9.81), rel=1e-6)
        with warnings.catch_warnings(record=True) as said:  # of the last bounces too, which are shallow
            warnings.simplefilter("always")
            found = analysis(system, (0, 3), strict=False, **options)
        assert any("up to there" in str(warning.message) for warning in said)
        assert not found.diagnostics.passed


# -- diagnostics of results ---------------------------------------------------------------------------------------


def test_a_result_states_what_was_checked(built: Any, models: Any) -> None:
    sol = dh.simulate(built(models.em), (0, 10), rtol=1e-8, atol=1e-12)
    assert {check.name for check in sol.diagnostics.checks} >= {
        "run",
        "transversality",
        "guards on entry",
        "accumulation",
    }
    assert sol.diagnostics.passed
    asa = dh.adjoint_gradient(built(models.em), (0, 10), duality=True, rtol=1e-8, atol=1e-12)
    text = str(asa.diagnostics)
    for word in ("transversality", "slowest guard crosses at", "duality", "forward and adjoint differ by", "passed"):
        assert word in text
    with pytest.raises(KeyError, match="No check 'x'; there are run"):
        asa.diagnostics.check("x")


def test_a_grazing_event_is_refused_or_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ceiling 1e-6 below the apex: with a coarse idea of grazing, that is grazing; dv/dh is g / v all the same."""
    monkeypatch.setattr("dae_hybrid.system.transition_map.GRAZING_RATE_SHARE", 1e-2)
    monkeypatch.setattr("dae_hybrid.trajectory.diagnostics.GRAZING_RATE_SHARE", 1e-2)
    m = dh.HybridModel("grazing")
    h = m.parameter("h", 20 - 1e-6)
    y, v = m.differential("y"), m.differential("v")
    run = m.mode("run", ode={y: v, v: -10.0})
    m.transition(run, None, guard=y - h, direction="rising", name="touch")
    m.initial(run, {y: 0.0, v: 20.0})
    m.functional("G", terminal=v)
    system = m.build(native=False)
    with pytest.raises(dh.GrazingError) as caught:
        dh.adjoint_gradient(system, (0, 3), **TIGHT)
    assert caught.value.transition == "touch"
    assert caught.value.remedy
    assert caught.value.trajectory.events
    with pytest.warns(dh.DerivativeWarning, match="touches zero"):
        asa = dh.adjoint_gradient(system, (0, 3), strict=False, **TIGHT)
    assert asa.gradient == pytest.approx(-10 / np.sqrt(2 * 10 * 1e-6), rel=1e-4)
    assert not asa.diagnostics.check("transversality").passed
    assert not asa.diagnostics.check("conditions").passed


def test_errors_of_the_analysis_carry_the_run(built: Any, models: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise dh.NonFiniteError("no")

    monkeypatch.setattr("dae_hybrid.interface.runs.adjoint_analysis.gradient", fail)
    monkeypatch.setattr("dae_hybrid.interface.runs.RunBuilder._back", lambda *_, **__: None)
    with pytest.raises(dh.NonFiniteError) as caught:
        dh.adjoint_gradient(built(models.decay), (0, 1), "area")
    assert caught.value.trajectory.functionals["area"] > 0


def test_nothing_is_warned_of_without_reason(built: Any, models: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: dh.adjoint_gradient(built(models.em), (0, 10), duality=True),
        lambda: dh.forward_sensitivity(built(models.ball), (0, 2), duality=True),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for call in calls:
            assert call().diagnostics.passed


# -- further conditions -------------------------------------------------------------------------------------------


def due_together(kind: str) -> dh.HybridSystem:
    """x' = a and y' = b are 1 together, and what A does keeps B from firing."""
    m = dh.HybridModel(kind)
    a, b = m.parameter("a", 1.0), m.parameter("b", 1.0)
    x, y, z = m.differential("x"), m.differential("y"), m.differential("z")
    run = m.mode("run", ode={x: a, y: b, z: 0})
    if kind == "it leaves the mode":
        left, right = m.mode("left", ode={x: 0, y: 0, z: 1}), m.mode("right", ode={x: 0, y: 0, z: 5})
        m.transition(run, left, guard=x - 1, direction="rising", name="A")
        m.transition(run, right, guard=y - 1, direction="rising", name="B")
    else:
        m.transition(run, run, guard=x - 1, direction="rising", reset={y: 0.0}, name="A")
        m.transition(run, run, guard=y - 1, direction="rising", reset={z: z + 1}, name="B")
    m.initial(run, {x: 0.0, y: 0.0, z: 0.0})
    m.functional("G", terminal=z)
    return m.build(native=False)


@pytest.mark.parametrize("kind", ["it leaves the mode", "it takes the other guard away"])
def test_a_transition_that_would_have_fired_counts(kind: str) -> None:
    system = due_together(kind)
    assert [e.transition for e in dh.simulate(system, (0, 1.5)).events] == ["A"]
    for analysis in (dh.forward_sensitivity, dh.adjoint_gradient):
        with pytest.warns(dh.DerivativeWarning, match="'A' and 'B' are due .* different states"):
            analysis(system, (0, 1.5))


@pytest.mark.filterwarnings("error::dae_hybrid.DerivativeWarning")
@pytest.mark.parametrize("order", ["declared", "reversed"])
def test_two_switches_as_one_automaton(order: Any) -> None:
    """In the mode that the first one leads to the second is due by another transition: nothing depends on the order."""
    m = dh.HybridModel("switches")
    a, b = m.parameter("a", 1.0), m.parameter("b", 1.0)
    x, y, u, w = (m.differential(n) for n in "xyuw")
    modes = {(i, j): m.mode(f"m{i}{j}", ode={x: a, y: b, u: float(i), w: float(j)}) for i in (0, 1) for j in (0, 1)}
    for k in (0, 1):
        m.transition(modes[0, k], modes[1, k], guard=x - 1, direction="rising")
        m.transition(modes[k, 0], modes[k, 1], guard=y - 1, direction="rising")
    m.initial(modes[0, 0], {x: 0.0, y: 0.0, u: 0.0, w: 0.0})
    m.functional("G", terminal=u + w)  # 2 T - 1 / a - 1 / b
    asa = dh.adjoint_gradient(m.build(native=False), (0, 1.5), simultaneous=order)
    np.testing.assert_allclose(asa.gradient, [1.0, 1.0], rtol=1e-8)


@pytest.mark.parametrize("commute", [True, False])
def test_two_times_that_are_one_by_chance(commute: bool) -> None:
    m = dh.HybridModel("times")
    one, two = m.parameter("one", 1.0), m.parameter("two", 1.0)
    z, w = m.differential("z"), m.differential("w")
    run = m.mode("run", ode={z: 1.0, w: 0.0})
    m.transition(run, run, at=one, reset={z: 2 * z}, name="A")
    m.transition(run, run, at=two, reset={w: w + m.time} if commute else {z: z + 1}, name="B")
    m.initial(run, {z: 0.0, w: 0.0})
    m.functional("G", terminal=z + w)
    system = m.build(native=False)
    if commute:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            asa = dh.adjoint_gradient(system, (0, 1.5))
        np.testing.assert_allclose(asa.gradient, [1.0, 1.0], rtol=1e-8)  # z: 2 one + T - one, w: two
    else:
        with pytest.warns(dh.DerivativeWarning, match="order matters"):
            dh.adjoint_gradient(system, (0, 1.5))


def test_times_within_the_accuracy_of_the_run_are_one() -> None:
    """cos t and exp(-t) meet their thresholds together at t = 1; which one the integrator sees first is chance."""
    m = dh.HybridModel("near")
    a, b = m.parameter("a", 1.0), m.parameter("b", 1.0)
    x, v, y, z = (m.differential(n) for n in ("x", "v", "y", "z"))
    run = m.mode("run", ode={x: v, v: -a * a * x, y: -b * y, z: 0})
    m.transition(run, run, guard=x - np.cos(1.0), direction="falling", reset={z: z + 1}, name="A")
    m.transition(run, run, guard=y - np.exp(-1.0), direction="falling", reset={z: 2 * z}, name="B")
    m.initial(run, {x: 1.0, v: 0.0, y: 1.0, z: 0.0})
    m.functional("G", terminal=z)
    with pytest.warns(dh.DerivativeWarning, match="order matters"):
        dh.adjoint_gradient(m.build(native=False), (0, 1.5), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("where", ["start", "entry"])
@pytest.mark.parametrize("direction", ["rising", "both"])
def test_a_guard_that_is_zero_and_at_rest_on_entry_fires_on_one_side_only(where: str, direction: Any) -> None:
    """x = p + (t - t0)^2 / 2: met on the way up below zero, and where it rises from zero for p = 0; past it above."""
    m = dh.HybridModel("beside")
    p = m.parameter("p", 0.0)
    x, v, z = m.differential("x"), m.differential("v"), m.differential("z")
    run = m.mode("run", ode={x: v, v: 1.0, z: 0})
    m.transition(run, run, guard=x, direction=direction, reset={z: z + 1}, name="met")
    if where == "start":
        m.initial(run, {x: p, v: 0.0, z: 0.0})
    else:
        first = m.mode("first", ode={x: 0, v: 0, z: 0})
        m.transition(first, run, at=0.5, reset={x: p})
        m.initial(first, {x: -1.0, v: 0.0, z: 0.0})
    m.functional("G", terminal=z)
    system = m.build(native=False)
    for value, met in ((0.0, direction == "rising"), (-1e-4, True), (1e-4, False)):
        assert dh.simulate(system, (0, 1.5), parameters={"p": value}).functionals["G"] == met
    with pytest.raises(dh.EventError, match="zero") as caught:
        dh.adjoint_gradient(system, (0, 1.5))
    assert caught.value.transition == "met"


@pytest.mark.parametrize("strict", [None, "yes", 0, np.nan])
def test_what_strict_may_be(strict: Any, built: Any, models: Any) -> None:
    with pytest.raises(dh.OptionError, match="strict must be True or False"):
        dh.adjoint_gradient(built(models.counter), (0, 1), "end", strict=strict)


@pytest.mark.parametrize("adapter", ["sundials", "scipy"])
@pytest.mark.parametrize("rtol", [1e-4, 1e-6, 1e-8])
def test_a_touch_that_the_integration_turns_into_a_crossing_is_refused(rtol: float, adapter: str) -> None:
    """sin t touches 1: whether the computed one gets beyond is chance, and the gradient would be anything."""
    m = dh.HybridModel("touch")
    a = m.parameter("a", 1.0)
    x, v, z = m.differential("x"), m.differential("v"), m.differential("z")
    run, other = m.mode("run", ode={x: v, v: -x, z: 0}), m.mode("other", ode={x: 0, v: 0, z: 1})
    m.transition(run, other, guard=x - 1, direction="rising")
    m.initial(run, {x: 0.0, v: a, z: 0.0})
    m.functional("G", terminal=z)
    system = m.build(native=False)
    with suppress(dh.GrazingError, dh.ZenoError):
        asa = dh.adjoint_gradient(system, (0, 10), adapter=adapter, rtol=rtol, atol=rtol / 100)
        assert asa.trajectory.events == ()
        assert asa.gradient == 0.0


def test_thousands_of_restarts_do_not_add_up() -> None:
    """x' = -x with x + h every h: what a restart gets wrong is multiplied by the number of firings so far."""
    m = dh.HybridModel("often")
    h = m.parameter("h", 1e-3)
    x, y = m.differential("x"), m.differential("y")
    run = m.mode("run", ode={x: -x, y: x})
    m.transition(run, run, every=h, reset={x: x + h})
    m.initial(run, {x: 1.0, y: 0.0})
    m.functional("G", terminal=y)
    system = m.build()

    def closed(period: complex, end: float) -> complex:
        now, area, begin = 1 + 0j, 0j, 0j
        for k in range(1, int(end / period.real) + 1):
            now, area, begin = (
                now * np.exp(begin - k * period) + period,
                area + now * (1 - np.exp(begin - k * period)),
                k * period,
            )
        return area + now * (1 - np.exp(begin - end))

    for end, allowed in ((0.5005, 3e-4), (5.0005, 2e-3)):
        exact = closed(1e-3 + 1e-30j, end).imag / 1e-30
        asa = dh.adjoint_gradient(system, (0, end))
        assert len(asa.trajectory.events) == int(end / 1e-3)
        assert asa.gradient == pytest.approx(exact, rel=allowed)
        assert dh.forward_sensitivity(system, (0, end)).gradient["G"] == pytest.approx(exact, rel=allowed)
