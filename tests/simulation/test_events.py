"""The rules of transitions: arming, direction, order within an instant, limits, coincidences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh

TIGHT = {"rtol": 1e-10, "atol": 1e-12}


def on_ramp(
    *guards: tuple[Callable[[Any, Any], Any], str],
    start: float = 0.0,
    slope: float = 1.0,
    span: tuple[float, float] = (0.0, 1.0),
    max_step: float | None = None,
    **options: Any,
) -> dh.Trajectory:
    """y' = slope; each guard (a function of y and t) only counts, under the names g0, g1, ..."""
    m = dh.HybridModel("ramp")
    y, n = m.differential("y"), m.memory("n", initial=0.0)
    run = m.mode("run", ode={y: slope})
    for i, (guard, direction) in enumerate(guards):
        m.transition(
            run, run, guard=guard(y, m.time), direction=direction, memory={n: 10 * n + i + 1}, name=f"g{i}", **options
        )
    m.initial(run, {y: start})
    m.functional("order", terminal=n)
    return dh.simulate(m.build(native=False), span, max_step=max_step, **TIGHT)


# -- the table, on entry at t0 -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "slope", "direction", "expected"),
    [
        (-0.5, 1.0, "rising", [0.5]),  # armed
        (-0.5, 1.0, "both", [0.5]),
        (-0.5, 1.0, "falling", []),  # crosses the other way
        (0.5, -1.0, "falling", [0.5]),
        (0.5, -1.0, "both", [0.5]),
        (0.5, -1.0, "rising", []),
        (0.0, 1.0, "rising", [0.0]),  # zero and moving in its direction: at once
        (0.0, -1.0, "falling", [0.0]),
        (0.0, 1.0, "falling", []),  # zero and moving away
        (0.0, -1.0, "rising", []),
    ],
)
def test_a_guard_crosses_in_its_direction(start: float, slope: float, direction: str, expected: list[float]) -> None:
    sol = on_ramp((lambda y, t: y, direction), start=start, slope=slope)
    np.testing.assert_allclose([e.time for e in sol.events], expected, rtol=1e-12)
    past = start * {"rising": 1, "falling": -1, "both": 0}[direction] > 0
    assert bool(sol.diagnostics) == past
    assert all(e.direction == np.sign(slope) for e in sol.events)


def test_past_its_threshold_it_waits_for_the_next_crossing_and_says_so() -> None:
    """sin rises through zero at 2 pi only; from 0.5 on it is past."""
    sol = on_ramp((lambda y, t: np.sin(y), "rising"), start=0.5, span=(0, 10), max_step=0.5)
    np.testing.assert_allclose([e.time for e in sol.events], [2 * np.pi - 0.5], rtol=1e-12)
    assert len(sol.diagnostics) == 1
    assert "'g0'" in sol.diagnostics[0]
    assert "'run'" in sol.diagnostics[0]
    asa = dh.adjoint_gradient(sol.system, (0, 10), max_step=0.5)
    assert asa.diagnostics.notes == sol.diagnostics.notes


def test_past_its_threshold_it_may_fire() -> None:
    m = dh.HybridModel("q")
    y = m.differential("y")
    run, rest = m.mode("run", ode={y: 1.0}), m.mode("rest", ode={y: 0.0})
    m.transition(run, rest, guard=y - 1, direction="rising", on_entry="fire", name="full")
    m.initial(run, {y: 5.0})
    sol = dh.simulate(m.build(native=False), (0, 1))
    assert [(e.transition, e.time) for e in sol.events] == [("full", 0.0)]
    assert sol["y"][-1] == 5.0


@pytest.mark.parametrize("on_entry", ["wait", "fire", "error"])
def test_on_entry_is_about_entry_alone(on_entry: Any) -> None:
    """Not about the end of the run, nor about a time event that the mode survives."""
    m = dh.HybridModel("q")
    y, n = m.differential("y"), m.memory("n", initial=0.0)
    run, other = m.mode("run", ode={y: 1.0}), m.mode("other", ode={y: 1.0})
    m.transition(run, run, guard=y - 0.3, direction="rising", memory={n: n + 1}, on_entry=on_entry, name="level")
    m.transition(run, other, at=0.6, name="leave")
    m.initial(run, {y: 0.0})
    system = m.build(native=False)
    for end in (0.5, 1.0):
        sol = dh.simulate(system, (0, end), t_eval=[0.1, end])
        assert [e.transition for e in sol.events] == ["level", "leave"][: 1 + (end > 0.6)]
        assert sol.diagnostics.notes == ()


def test_zero_with_zero_rate_is_left_by_a_higher_derivative() -> None:
    """t^3 leaves zero upwards, which fires at t0 if that is the direction; then (t - 1)-like crossings count."""
    for direction, expected in (("rising", [0.0]), ("falling", [2.0]), ("both", [2.0])):
        sol = on_ramp((lambda y, t: t**3 * (2 - t), direction), span=(0, 3))
        np.testing.assert_allclose([e.time for e in sol.events], expected, rtol=1e-10)


def test_direction_is_seen_from_the_flow_not_from_the_formula() -> None:
    up = on_ramp((lambda y, t: np.cos(y), "rising"), span=(0, 10), max_step=0.5)
    down = on_ramp((lambda y, t: np.cos(y), "falling"), span=(0, 10), max_step=0.5)
    both = on_ramp((lambda y, t: np.cos(y), "both"), span=(0, 10), max_step=0.5)
    np.testing.assert_allclose([e.time for e in up.events], [1.5 * np.pi], rtol=1e-12)
    np.testing.assert_allclose([e.time for e in down.events], [0.5 * np.pi, 2.5 * np.pi], rtol=1e-12)
    np.testing.assert_allclose([e.time for e in both.events], np.array([0.5, 1.5, 2.5]) * np.pi, rtol=1e-12)
    assert [e.direction for e in both.events] == [-1, 1, -1]


def test_a_guard_that_only_touches_zero_does_not_fire() -> None:
    assert on_ramp((lambda y, t: (y - 0.5) ** 2, "both")).events == ()


def test_guards_in_every_pre_transition_quantity() -> None:
    """State, algebraic variable, derivative, memory, parameter and time."""
    m = dh.HybridModel("q")
    t, c = m.time, m.parameter("c", 0.25)
    y, z, r = m.differential("y"), m.algebraic("z"), m.memory("r", initial=0.0)
    a = m.mode("a", ode={y: 2 * t}, algebraic=[z - y - 1])
    m.transition(a, a, guard=z - 1 - c, memory={r: 1.0}, name="algebraic")  # t^2 = 0.25
    m.transition(a, a, guard=m.der(y) - 6 * c, name="derivative")  # 2 t = 1.5
    m.transition(a, a, guard=t - r, direction="rising", name="memory and time")  # t = r = 1
    m.initial(a, {y: 0.0})
    sol = dh.simulate(m.build(native=False), (0.1, 1.2), **TIGHT)
    start = 0.1**2
    times = {e.transition: e.time for e in sol.events}
    assert times["algebraic"] == pytest.approx(np.sqrt(0.25 + start), rel=1e-9)
    assert times["derivative"] == pytest.approx(0.75, rel=1e-12)
    assert times["memory and time"] == pytest.approx(1.0, rel=1e-12)


# -- the same instant -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("directions", [("rising", "rising"), ("both", "both"), ("rising", "both"), ("both", "rising")])
def test_guards_that_cross_together_fire_in_order_of_declaration(directions: tuple[str, str]) -> None:
    for first, second in ((1.0, 3.0), (3.0, 1.0), (1.0, 0.1)):
        sol = on_ramp(
            (lambda y, t, a=first: a * (y - 0.3), directions[0]),
            (lambda y, t, a=second: a * (y**3 - 0.027), directions[1]),
        )
        assert [e.transition for e in sol.events] == ["g0", "g1"]
        assert [e.order for e in sol.events] == [0, 1]
        assert sol.events[0].time == sol.events[1].time == pytest.approx(0.3, rel=1e-12)
        assert sol.functionals["order"] == 12
        np.testing.assert_array_equal(sol.events[0].memory_plus, sol.events[1].memory_minus)


@pytest.mark.parametrize("separate", [1e-13, 1e-9])
def test_guards_that_cross_almost_together_both_fire(separate: float) -> None:
    sol = on_ramp((lambda y, t: y - 0.3 - separate, "rising"), (lambda y, t: y - 0.3, "rising"))
    assert sorted(e.transition for e in sol.events) == ["g0", "g1"]
    times = [e.time for e in sol.events]
    assert times[0] <= times[1] <= 0.3 + 2 * separate


def test_a_transition_may_disarm_the_next_of_the_same_instant() -> None:
    """The second guard is seen with the result of the first, which has moved y away."""
    m = dh.HybridModel("q")
    y = m.differential("y")
    run = m.mode("run", ode={y: 1.0})
    m.transition(run, run, guard=y - 0.5, direction="rising", reset={y: 0.0}, name="back")
    m.transition(run, None, guard=2 * y - 1, direction="rising", name="end")
    m.initial(run, {y: 0.0})
    sol = dh.simulate(m.build(native=False), (0, 1.7), **TIGHT)
    assert [e.transition for e in sol.events] == ["back"] * 3
    assert sol.complete
    assert sol.final[0] == 1.7


def test_a_chain_through_several_modes() -> None:
    """a -> b by its guard; in b and c the guards are zero and moving: three records of one instant."""
    m = dh.HybridModel("q")
    y = m.differential("y")
    a, b, c, d = (m.mode(name, ode={y: rate}) for name, rate in (("a", 1.0), ("b", 2.0), ("c", 3.0), ("d", 4.0)))
    m.transition(a, b, guard=y - 1, direction="rising")
    m.transition(b, c, guard=2 * y - 2, direction="rising")
    m.transition(c, d, guard=y**2 - 1, direction="rising")
    m.initial(a, {y: 0.0})
    sol = dh.simulate(m.build(native=False), (0, 2), **TIGHT)
    assert [(e.source, e.target, e.order) for e in sol.events] == [("a", "b", 0), ("b", "c", 1), ("c", "d", 2)]
    assert len({e.time for e in sol.events}) == 1
    assert sol["y"][-1] == pytest.approx(5.0)
    assert [s.t_end for s in sol.segments] == [sol.events[0].time, 2.0]


def test_a_self_transition_without_reset_does_not_fire_again() -> None:
    for direction in ("rising", "both"):
        sol = on_ramp((lambda y, t: y - 0.4, direction))
        assert len(sol.events) == 1
        assert sol.diagnostics.notes == ()


def test_it_fires_again_after_it_has_left() -> None:
    sol = on_ramp((lambda y, t: np.sin(10 * y), "both"), start=0.05, span=(0, 1), max_step=0.05)
    np.testing.assert_allclose(sol["y"][-1], 1.05)
    np.testing.assert_allclose([e.time + 0.05 for e in sol.events], np.arange(1, 4) * np.pi / 10, rtol=1e-12)


# -- limits -------------------------------------------------------------------------------------------------------


def sliding() -> dh.HybridSystem:
    m = dh.HybridModel("relay")
    y = m.differential("y")
    up, down = m.mode("up", ode={y: 1.0}), m.mode("down", ode={y: -1.0})
    m.transition(up, down, guard=y - 1, direction="rising", name="off")
    m.transition(down, up, guard=y - 1, direction="falling", name="on")
    m.initial(up, {y: 0.0})
    return m.build(native=False)


def test_chattering_names_the_cycle_and_the_sliding_mode() -> None:
    """`index not in chain` must not hide it: the two modes point at each other across one surface."""
    with pytest.raises(dh.ChatteringError) as caught:
        dh.simulate(sliding(), (0, 2), **TIGHT)
    text = str(caught.value)
    assert "off" in text
    assert "on" in text
    assert "across the surface (y-1) = 0: a sliding mode" in caught.value.remedy
    assert caught.value.time == pytest.approx(1.0)
    assert caught.value.trajectory.final[0] == pytest.approx(1.0)
    assert not caught.value.trajectory.complete


def test_chattering_of_three_modes() -> None:
    m = dh.HybridModel("q")
    y = m.differential("y")
    modes = [m.mode(name, ode={y: 1.0}) for name in "abc"]
    for i in range(3):
        m.transition(modes[i], modes[(i + 1) % 3], guard=y - 1, direction="rising", reset={y: 1.0}, on_entry="fire")
    m.initial(modes[0], {y: 2.0})
    with pytest.raises(dh.ChatteringError, match="max_transitions_per_instant") as caught:
        dh.simulate(m.build(native=False), (0, 2), max_transitions_per_instant=7)
    assert "7" in str(caught.value)


@pytest.mark.compiled("by interpreted Adams the last bounces before the limit are refused as no crossing")
def test_zeno(built: Any, models: Any) -> None:
    """The ball comes to rest at sqrt(2 h / g) (1 + e) / (1 - e); past it nothing is meant."""
    system = built(models.ball)
    for e in (0.5, 0.8, 0.9, 0.2, 0.05):
        rest = np.sqrt(2 / 9.81) * (1 + e) / (1 - e)
        with pytest.raises(dh.ZenoError, match="accumulate") as caught:
            dh.simulate(system, (0, rest + 1), parameters={"e": e}, **TIGHT)
        error = caught.value
        assert error.transition == "bounce"
        assert error.time == pytest.approx(rest, rel=1e-4)
        assert np.all(error.trajectory["y"] > -1e-9)


@pytest.mark.compiled("by interpreted Adams the last bounces before the limit are refused as no crossing")
def test_a_ball_never_falls_through_the_floor_in_silence(built: Any, models: Any) -> None:
    """Flights shorter than a step, at loose tolerance too: an error or a ball above the floor."""
    for e in (0.9, 0.7, 0.3, 0.1, 0.01):
        for rtol in (1e-3, 1e-4, 1e-6, 1e-8):
            try:
                sol = dh.simulate(built(models.ball), (0, 12), parameters={"e": e}, rtol=rtol, atol=rtol)
            except dh.ZenoError:
                continue
            assert np.all(sol["y"] > -1e-3), f"e = {e}, rtol = {rtol}: y = {sol['y'].min()}"


@pytest.mark.parametrize("analysis", [dh.simulate, dh.forward_sensitivity, dh.adjoint_gradient])
def test_a_flight_too_short_to_resolve_names_its_transition(analysis: Any, built: Any, models: Any) -> None:
    with pytest.raises(dh.ZenoError) as caught:
        analysis(built(models.ball), (0, 12), parameters={"e": 0.9}, rtol=1e-4, atol=1e-4)
    error = caught.value
    assert error.transition == "bounce"
    assert error.mode == "flight"
    assert 8.3 < error.time < np.sqrt(2 / 9.81) * (1 + 2 * 0.9 / 0.1)  # where the bounces accumulate
    assert len(error.trajectory.events) > 30


def test_limit_of_events(built: Any, models: Any) -> None:
    with pytest.raises(dh.EventError, match="max_events=3") as caught:
        dh.simulate(built(models.ball), (0, 3), max_events=3)
    assert len(caught.value.trajectory.events) == 3
    assert len(dh.simulate(built(models.ball), (0, 3), max_events=6).events) == 6


def test_a_guard_that_is_not_finite() -> None:
    with pytest.raises(dh.NonFiniteError, match="guard") as caught:
        on_ramp((lambda y, t: np.log(y), "rising"), start=-1.0)
    assert caught.value.mode == "run"
    assert caught.value.time == 0.0
    with pytest.raises(dh.NonFiniteError) as caught:
        on_ramp((lambda y, t: np.log(0.5 - y) + 100, "rising"), start=0.0)
    assert 0.3 < caught.value.time <= 0.51


def test_a_reset_that_is_not_finite() -> None:
    m = dh.HybridModel("q")
    y = m.differential("y")
    run = m.mode("run", ode={y: 1.0})
    m.transition(run, run, at=0.5, reset={y: ca.log(-y)}, name="jump")
    m.initial(run, {y: 0.0})
    with pytest.raises(dh.NonFiniteError, match="reset") as caught:
        dh.simulate(m.build(native=False), (0, 1))
    assert (caught.value.transition, caught.value.time) == ("jump", 0.5)
    assert caught.value.trajectory.t[-1] == 0.5


def test_equations_that_are_not_finite_after_a_transition() -> None:
    m = dh.HybridModel("q")
    y = m.differential("y")
    run, bad = m.mode("run", ode={y: 1.0}), m.mode("bad", ode={y: ca.sqrt(-y)})
    m.transition(run, bad, at=0.5, name="go")
    m.initial(run, {y: 0.0})
    with pytest.raises(dh.NonFiniteError, match="after the transition") as caught:
        dh.simulate(m.build(native=False), (0, 1))
    assert (caught.value.transition, caught.value.mode) == ("go", "bad")


# -- coincidences -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [0.0, 1e-16, -1e-16, 1e-15, -1e-15, 1e-13, -1e-13])
@pytest.mark.parametrize("direction", ["rising", "both"])
@pytest.mark.parametrize("when", [0.3, 0.7])
def test_a_guard_and_a_time_event_at_one_instant(shift: float, direction: Any, when: float) -> None:
    m = dh.HybridModel("q")
    y, n, k = m.differential("y"), m.memory("n", initial=0.0), m.memory("k", initial=0.0)
    run = m.mode("run", ode={y: 1.0})
    m.transition(run, run, at=when, memory={k: k + 1}, name="time")
    m.transition(run, run, guard=y - when - shift, direction=direction, memory={n: n + 1}, name="guard")
    m.initial(run, {y: 0.0})
    sol = dh.simulate(m.build(native=False), (0, 1), **TIGHT)
    assert sorted(e.transition for e in sol.events) == ["guard", "time"]


@pytest.mark.parametrize("direction", ["rising", "both"])
@pytest.mark.parametrize("shift", [0.0, 1e-15, -1e-15])
def test_a_guard_at_the_end_of_the_run(direction: Any, shift: float) -> None:
    """At tf the crossing may or may not count, but values, records and outputs agree with each other."""
    sol = on_ramp((lambda y, t: y - 1 - shift, direction))
    assert sol.functionals["order"] == len(sol.events)
    assert sol.final[0] == 1.0 or sol.final[0] == pytest.approx(1.0)
    if shift < 0:
        assert len(sol.events) == 1


def test_time_events_at_both_ends_fire() -> None:
    m = dh.HybridModel("q")
    y = m.differential("y")
    run = m.mode("run", ode={y: 1.0})
    for when in (0.0, 2.0, -1.0, 3.0):
        m.transition(run, run, at=when, reset={y: y + 10}, name=str(when))
    m.initial(run, {y: 0.0})
    m.functional("end", terminal=y)
    sol = dh.simulate(m.build(native=False), (0, 2))
    assert [e.transition for e in sol.events] == ["0.0", "2.0"]
    assert sol.functionals["end"] == pytest.approx(22)


def test_a_run_that_ends_where_it_starts() -> None:
    m = dh.HybridModel("q")
    y = m.differential("y")
    run = m.mode("run", ode={y: 1.0})
    m.transition(run, None, guard=y, direction="rising", name="end")
    m.initial(run, {y: 0.0})
    m.functional("G", integrand=1, terminal=y)
    sol = dh.simulate(m.build(native=False), (0, 2))
    assert len(sol.events) == 1
    assert sol.final[0] == 0.0
    assert sol.functionals["G"] == 0.0
    assert sol(0.0)["y"] == 0.0
    assert sol["y"].size == sol.t.size


def test_time_events_at_one_instant_fire_in_order_of_declaration() -> None:
    m = dh.HybridModel("q")
    y = m.differential("y")
    run = m.mode("run", ode={y: 0.0})
    m.transition(run, run, every=0.5, reset={y: 10 * y + 1}, name="a")
    m.transition(run, run, at=1.0, reset={y: 10 * y + 2}, name="b")
    m.transition(run, run, every=0.25, reset={y: 10 * y + 3}, name="c")
    m.initial(run, {y: 0.0})
    sol = dh.simulate(m.build(native=False), (0, 1))
    assert [e.transition for e in sol.events] == list("cacc") + list("abc")
    assert [e.order for e in sol.events] == [0, 0, 1, 0, 0, 1, 2]


def test_periodic_events_skip_what_passed_in_another_mode() -> None:
    m = dh.HybridModel("q")
    y = m.differential("y")
    on, off = m.mode("on", ode={y: 0.0}), m.mode("off", ode={y: 0.0})
    m.transition(on, on, every=0.1, reset={y: y + 1}, name="tick")
    m.transition(on, off, at=0.35)
    m.transition(off, on, at=0.75)
    m.initial(on, {y: 0.0})
    sol = dh.simulate(m.build(native=False), (0, 1.05))
    ticks = [e for e in sol.events if e.transition == "tick"]
    assert [e.count for e in ticks] == [1, 2, 3, 8, 9, 10]
    np.testing.assert_allclose([e.time for e in ticks], [0.1, 0.2, 0.3, 0.8, 0.9, 1.0])


def test_a_fast_oscillation_loses_no_crossing() -> None:
    """1,000 crossings of a guard in time alone: the steps are long, the guard is not."""
    m = dh.HybridModel("q")
    x, v, n = m.differential("x"), m.differential("v"), m.memory("n", initial=0.0)
    run = m.mode("run", ode={x: v, v: -((2 * np.pi) ** 2) * x})
    m.transition(run, run, guard=x, direction="rising", memory={n: n + 1})
    m.initial(run, {x: 1.0, v: 0.0})
    sol = dh.simulate(m.build(), (0, 200), rtol=1e-6, atol=1e-8)
    assert len(sol.events) == 200


# -- crossings within a step ----------------------------------------------------------------------------------------


def thrown(ceiling: float, *, native: bool) -> dh.HybridSystem:
    """Thrown at 20 m/s under 10 m/s^2: the apex is at 20 m, and the whole flight is one or two steps."""
    m = dh.HybridModel("thrown")
    h = m.parameter("h", ceiling)
    y, v = m.differential("y"), m.differential("v")
    flight = m.mode("flight", ode={y: v, v: -10.0})
    m.transition(flight, flight, guard=y - h, direction="rising", reset={v: -v}, name="ceiling")
    m.initial(flight, {y: 0.0, v: 20.0})
    m.functional("G", terminal=y)
    return m.build(native=native)


@pytest.mark.uncertified  # next to the apex two runs as accurate differ by more than the check allows
@pytest.mark.parametrize(
    ("adapter", "native"), [("sundials", True), ("sundials", False), ("scipy", True), ("casadi", True)]
)
@pytest.mark.parametrize("below", [5.0, 1.0, 1e-2, 1e-4, 1e-6])
def test_a_guard_that_passes_zero_and_comes_back_within_a_step(below: float, adapter: str, native: bool) -> None:
    system = thrown(20 - below, native=native)
    when = 2 - np.sqrt(below / 5)
    down = 3.5 - when
    exact = 20 - below - (20 - 10 * when) * down - 5 * down**2
    # y = h - v- (3.5 - t1) - 5 (3.5 - t1)^2, with v- = sqrt(400 - 20 h), t1 = 2 - v- / 10
    speed = 20 - 10 * when
    slope = 1 + (10 / speed) * down + (speed + 10 * down) / speed
    sol = dh.simulate(system, (0, 3.5), adapter=adapter, **TIGHT)
    # an error of the height is one of the time by the speed, and of the speed by the gravity
    assert [e.time for e in sol.events] == [pytest.approx(when, abs=1e-8 / speed)]
    assert sol.functionals["G"] == pytest.approx(exact, abs=1e-6 / speed)
    asa = dh.adjoint_gradient(system, (0, 3.5), adapter=adapter, **TIGHT)
    assert asa.gradient == pytest.approx(slope, rel=1e-7 / speed**2 + 1e-7)


@pytest.mark.parametrize("adapter", ["sundials", "scipy"])
@pytest.mark.parametrize("direction", ["rising", "falling"])
def test_the_direction_counts_within_a_step_too(direction: Any, adapter: str) -> None:
    """y - 19 rises at t = 2 - sqrt(0.2) and falls at 2 + sqrt(0.2), between the same two steps."""
    m = dh.HybridModel("q")
    y, v, n = m.differential("y"), m.differential("v"), m.memory("n", initial=0.0)
    flight = m.mode("flight", ode={y: v, v: -10.0})
    m.transition(flight, flight, guard=y - 19, direction=direction, memory={n: n + 1})
    m.initial(flight, {y: 0.0, v: 20.0})
    sol = dh.simulate(m.build(native=False), (0, 3.5), adapter=adapter, **TIGHT)
    when = 2 + (-1 if direction == "rising" else 1) * np.sqrt(0.2)
    np.testing.assert_allclose([e.time for e in sol.events], [when], rtol=1e-8)


@pytest.mark.parametrize("native", [True, False])
def test_the_first_of_several_guards_within_a_step(native: bool) -> None:
    """Ceilings declared in another order than they are met."""
    m = dh.HybridModel("q")
    y, v = m.differential("y"), m.differential("v")
    flight = m.mode("flight", ode={y: v, v: -10.0})
    for height in (19.9, 19.0, 19.5):
        m.transition(flight, None, guard=y - height, direction="rising", name=f"{height}")
    m.initial(flight, {y: 0.0, v: 20.0})
    sol = dh.simulate(m.build(native=native), (0, 3.5), **TIGHT)
    assert [e.transition for e in sol.events] == ["19.0"]
    assert sol.final[0] == pytest.approx(2 - np.sqrt(0.2), rel=1e-9)


def fast(resolution: float | None, *, native: bool, rate: float = 200.0) -> dh.HybridSystem:
    m = dh.HybridModel("fast")
    y, n = m.differential("y"), m.memory("n", initial=0.0)
    run = m.mode("run", ode={y: 1.0})
    m.transition(run, run, guard=np.sin(rate * y), memory={n: n + 1}, resolution=resolution)
    m.initial(run, {y: 1e-3 / rate})
    m.functional("n", terminal=n)
    return m.build(native=native)


@pytest.mark.parametrize(
    ("adapter", "native"), [("sundials", True), ("sundials", False), ("scipy", False), ("casadi", False)]
)
def test_a_resolution_finds_every_crossing_of_a_fast_guard(adapter: str, native: bool) -> None:
    crossings = int(np.floor((200 * 3 + 1e-3) / np.pi))
    system = fast(0.01, native=native)
    assert dh.simulate(system, (0, 3), adapter=adapter).functionals["n"] == crossings


def test_a_resolution_does_not_shorten_the_steps_and_max_step_does() -> None:
    """A guard that is never zero, looked at five hundred times: ten steps or so all the same."""
    m = dh.HybridModel("q")
    y = m.differential("y")
    run = m.mode("run", ode={y: 1.0})
    m.transition(run, run, guard=2 + np.sin(200 * y), resolution=0.002)
    m.initial(run, {y: 0.0})
    system = m.build(native=False)
    assert dh.simulate(system, (0, 1)).statistics["steps"] < 50
    assert dh.simulate(system, (0, 1)).statistics["guard_evaluations"] > 500
    assert dh.simulate(system, (0, 1), max_step=0.002).statistics["steps"] >= 500
    assert dh.simulate(fast(None, native=False), (0, 1), max_step=0.005).functionals["n"] == 63


@pytest.mark.parametrize("resolution", [0, -1.0, np.inf, "often"])
def test_what_a_resolution_may_be(resolution: Any) -> None:
    with pytest.raises(dh.ModelError, match="resolution must be a positive time"):
        fast(resolution, native=False)


@pytest.mark.parametrize("span", [1.0, 1e4, 3e10])
def test_how_long_a_run_is_does_not_decide_what_is_zero(span: float) -> None:
    """y = exp(-1000 t) meets 0.5 at log(2) / 1000, whether the run lasts a second or a thousand years."""
    m = dh.HybridModel("q")
    y, n = m.differential("y"), m.memory("n", initial=0.0)
    run = m.mode("run", ode={y: -1e3 * y})
    m.transition(run, run, guard=y - 0.5, direction="falling", memory={n: n + 1})
    m.initial(run, {y: 1.0})
    sol = dh.simulate(m.build(native=False), (0, span), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose([e.time for e in sol.events], [np.log(2) / 1000], rtol=1e-8)


# -- diagnostics of a run, and the reason of its end --------------------------------------------------------------


def test_fast_switching_about_a_surface_names_the_cycle_and_its_pace() -> None:
    m = dh.HybridModel("relay")
    y = m.differential("y")
    up, down = m.mode("up", ode={y: 1.0}), m.mode("down", ode={y: -1.0})
    m.transition(up, down, guard=y - 0.2501, direction="rising")
    m.transition(down, up, guard=y - 0.25, direction="falling")
    m.initial(up, {y: 0.0})
    with pytest.raises(dh.EventError, match=r"the last ones .*up->down.* about every 0\.0001 units") as caught:
        dh.simulate(m.build(native=False), (0, 1), max_events=100)
    assert len(caught.value.trajectory.events) == 100


def test_a_guard_that_never_leaves_zero_is_mentioned() -> None:
    m = dh.HybridModel("q")
    y = m.differential("y")
    run = m.mode("run", ode={y: 0.0})
    m.transition(run, None, guard=y - 1, name="still")
    m.initial(run, {y: 1.0})
    sol = dh.simulate(m.build(native=False), (0, 1))
    assert sol.events == ()
    assert sol.diagnostics.notes == (
        "Guard of 'still' stayed at zero in mode 'run'; it does not fire before it has left.",
    )


@pytest.mark.parametrize("adapter", ["sundials", "scipy"])
def test_a_solution_that_blows_up_is_named(adapter: str) -> None:
    m = dh.HybridModel("q")
    y, z = m.differential("y"), m.differential("z")
    run = m.mode("run", ode={y: y**2, z: 1.0})
    m.initial(run, {y: 1.0, z: 0.0})
    with pytest.raises(dh.StepSizeError, match="the solution blows up: y from 1 to") as caught:
        dh.simulate(m.build(native=False), (0, 2), adapter=adapter)
    assert caught.value.variables == ("y",)
    assert caught.value.time == pytest.approx(1.0, abs=1e-4)


def test_stiffness_that_starves_the_step_is_named() -> None:
    m = dh.HybridModel("q")
    y = m.differential("y")
    run = m.mode("run", ode={y: -1e6 * (y - m.time)})
    m.initial(run, {y: 1.0})
    system = m.build(native=False)
    with pytest.raises(dh.StepLimitError, match=r"stiff there: .* 1e\+06 per unit of time") as caught:
        dh.simulate(system, (0, 10), method="adams", max_steps=2000)
    assert caught.value.remedy == "Use method='auto', which changes over by itself, or a method for stiff equations."
    assert dh.simulate(system, (0, 10)).complete


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("eliminate", [True, False])
@pytest.mark.parametrize("roots", [(6.47, 6.85, 8.07), (2.44, 2.49, 20.0), (3.0, 3.1, 20.0), (1.0, 1.2, 8.9)])
def test_several_crossings_within_a_step(roots: tuple[float, ...], eliminate: bool, native: bool) -> None:
    """Ends of one sign or of two; the state moves evenly, so steps are as long as they can be."""
    m = dh.HybridModel("q")
    s, n, w = m.differential("s"), m.differential("n"), m.algebraic("w")
    run = m.mode("run", ode={s: w, n: 0.0}, algebraic=[w - 1.0])
    guard = (s - roots[0]) * (s - roots[1]) * (s - roots[2])
    m.transition(run, run, guard=guard, direction="both", reset={n: n + 1})
    m.initial(run, {s: 0.0, n: 0.0})
    sol = dh.simulate(m.build(native=native, eliminate=eliminate), (0, 10))
    np.testing.assert_allclose([e.time for e in sol.events], [r for r in roots if r < 10], atol=1e-6)


@pytest.mark.parametrize("on_entry", ["wait", "fire", "error"])
def test_an_idle_event_is_no_new_entry(on_entry: Any) -> None:
    """A guard that was past its threshold before a transition from the mode to itself is not met anew."""
    m = dh.HybridModel("q")
    y, n = m.differential("y"), m.memory("n", initial=0.0)
    run = m.mode("run", ode={y: 1.0})
    m.transition(run, run, guard=y - 0.55, direction="rising", memory={n: n + 1}, on_entry=on_entry, name="once")
    m.transition(run, run, every=0.1, name="idle")
    m.initial(run, {y: 0.0})
    sol = dh.simulate(m.build(native=False), (0, 1.05))
    assert [e.transition for e in sol.events].count("once") == 1
    assert sol.diagnostics.notes == ()


@pytest.mark.parametrize("slowest", [1e-3, 1e-4])
def test_a_mode_of_rest_ends_what_would_accumulate(slowest: float) -> None:
    """As the page on events advises: the ball settles when it bounces slowly, however long the run."""
    m = dh.HybridModel("ball")
    y, v, hit = m.differential("y"), m.differential("v"), m.differential("hit")
    flight, rest = m.mode("flight", ode={y: v, v: -9.81, hit: 0}), m.mode("rest", ode={y: 0, v: 0, hit: 0})
    m.transition(flight, flight, guard=y, direction="falling", reset={v: -0.5 * v, hit: -0.5 * v})
    m.transition(flight, rest, guard=slowest - hit, direction="rising", on_entry="fire", reset={v: 0.0, y: 0.0})
    m.initial(flight, {y: 1.0, v: 0.0, hit: 1.0})
    sol = dh.simulate(m.build(native=False), (0, 100), rtol=1e-10, atol=1e-12)
    assert sol.events[-1].transition == "flight->rest"
    assert sol.events[-1].time == pytest.approx(np.sqrt(2 / 9.81) * 3, abs=4 * slowest / 9.81)


def test_a_resolution_that_would_take_for_ever_is_refused() -> None:
    with pytest.raises(dh.OptionError, match="would be looked at"):
        dh.simulate(fast(1e-12, native=False), (0, 3))


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("extra", [0, 41])  # events of modes with more than 40 states are left to Python
def test_bursts_that_are_cut_short_do_not_accumulate(native: bool, extra: int) -> None:
    """A ball that is hit again before it comes to rest: intervals shrink, and grow again, in every burst."""
    m = dh.HybridModel("kept up")
    e, u = m.parameter("e", 0.9), m.parameter("u", 1.0)
    y, v = m.differential("y"), m.differential("v")
    ode = {y: v, v: -10.0}
    if extra:
        h = m.differential("h", size=extra)
        ode[h] = -h
    fall = m.mode("fall", ode=ode)
    m.transition(fall, fall, guard=y, direction="falling", reset={v: -e * v}, name="floor")
    m.transition(fall, fall, every=1.5, reset={v: u}, name="racket")
    m.initial(fall, {y: 0.0, v: u} | ({h: np.ones(extra)} if extra else {}))
    m.functional("G", integrand=y, terminal=y)
    sol = dh.simulate(m.build(), (0, 2.9), rtol=1e-9, native_events=native)
    assert len(sol.events) == 25
    assert sol.functionals["G"] == pytest.approx(0.05085437, rel=1e-6)
