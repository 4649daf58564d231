"""Simulation against closed forms: modes, resets, memory, time events, output, accuracy."""

from __future__ import annotations

import dataclasses
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.port import stiffness

TIGHT = {"rtol": 1e-10, "atol": 1e-12}


# -- smooth problems --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["auto", "bdf", "adams"])
def test_linear_decay(built: Any, models: Any, method: Any) -> None:
    sol = dh.simulate(built(models.decay), (0, 3), method=method, t_eval=np.linspace(0, 3, 31), **TIGHT)
    np.testing.assert_allclose(sol["y"], 2 * np.exp(-0.7 * sol.t), rtol=5e-9)
    assert sol.functionals["area"] == pytest.approx(2 * (1 - np.exp(-2.1)) / 0.7, rel=1e-8)
    assert sol.functionals["end"] == pytest.approx(2 * np.exp(-2.1), rel=1e-8)


@pytest.mark.parametrize("method", ["bdf", "adams"])
def test_harmonic_oscillator(built: Any, models: Any, method: Any) -> None:
    sol = dh.simulate(built(models.oscillator), (0, 10), method=method, rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(sol["x"], 1.5 * np.cos(2 * sol.t), atol=2e-8)
    np.testing.assert_allclose(sol["v"], -3 * np.sin(2 * sol.t), atol=2e-8)


def test_start_time_other_than_zero_and_explicit_time() -> None:
    m = dh.HybridModel("clock")
    t, y = m.time, m.differential("y")
    m.initial(m.mode("run", ode={y: 2 * t}), {y: 0.0})
    m.functional("G", integrand=t, terminal=t)
    system = m.build()
    for t0, tf in ((-3.0, 2.0), (5.0, 6.0), (1e6, 1e6 + 1)):
        sol = dh.simulate(system, (t0, tf), **TIGHT)
        assert sol["y"][-1] == pytest.approx(tf**2 - t0**2, rel=1e-8)
        assert sol.functionals["G"] == pytest.approx((tf**2 - t0**2) / 2 + tf, rel=1e-8)


def test_initial_values_from_parameters() -> None:
    m = dh.HybridModel("q")
    a = m.parameter("a", 2.0)
    y, s = m.differential("y"), m.memory("s", initial=a**2)
    m.initial(m.mode("run", ode={y: s}), {y: np.sin(a)})
    system = m.build()
    for value in (2.0, 3.0):
        sol = dh.simulate(system, (0, 1), parameters={"a": value}, **TIGHT)
        assert sol["y"][0] == np.sin(value)
        assert sol["y"][-1] == pytest.approx(np.sin(value) + value**2, rel=1e-10)
        np.testing.assert_array_equal(sol["s"], value**2)


def test_index_one_with_a_closed_solution() -> None:
    """y' = -z, 0 = z^3 - k y^3, so z = k^(1/3) y. The error stays within 100 rtol."""
    m = dh.HybridModel("q")
    k = m.parameter("k", 8.0)
    y, z = m.differential("y"), m.algebraic("z", guess=1.0)
    m.initial(m.mode("run", ode={y: -z}, algebraic=[z**3 - k * y**3]), {y: 1.0})
    m.functional("G", integrand=z)
    sol = dh.simulate(m.build(), (0, 1), **TIGHT)
    np.testing.assert_allclose(sol["y"], np.exp(-2 * sol.t), rtol=1e-8)
    np.testing.assert_allclose(sol["z"], 2 * np.exp(-2 * sol.t), rtol=1e-8)
    assert sol.functionals["G"] == pytest.approx(1 - np.exp(-2), rel=1e-8)


def test_index_one_with_coupled_algebraic_variables() -> None:
    """Six algebraic variables: more than are eliminated symbolically."""
    n = 6
    a = np.eye(n) * 3 + np.diag(np.ones(n - 1), 1) - np.diag(np.ones(n - 1), -1)
    m = dh.HybridModel("q")
    y, z = m.differential("y"), m.algebraic("z", size=n)
    m.initial(m.mode("run", ode={y: -ca.sum1(z)}, algebraic=[ca.DM(a) @ z - y * np.arange(1.0, n + 1)]), {y: 1.0})
    rate = np.linalg.solve(a, np.arange(1.0, n + 1))
    sol = dh.simulate(m.build(), (0, 1), **TIGHT)
    np.testing.assert_allclose(sol["y"], np.exp(-rate.sum() * sol.t), rtol=1e-7)
    np.testing.assert_allclose(sol["z"], np.outer(np.exp(-rate.sum() * sol.t), rate), rtol=1e-7)


def test_stiff() -> None:
    m = dh.HybridModel("q")
    t, y = m.time, m.differential("y")
    m.initial(m.mode("run", ode={y: -1e6 * (y - np.cos(t)) - np.sin(t)}), {y: 1.0})
    sol = dh.simulate(m.build(), (0, 10), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(sol["y"], np.cos(sol.t), atol=1e-6)
    assert sol.statistics["steps"] < 2000


# -- accuracy -----------------------------------------------------------------------------------------------


def exact_circuit() -> float:
    """Where the circuit's second mode is at t = 2: y as a function of z is in closed form, and so is t."""
    from scipy.optimize import brentq

    start = np.log(2) / 1.2

    def z_of(y: float) -> float:
        return brentq(lambda z: z + z**3 - 2 * y, 0, 10, xtol=1e-16, rtol=1e-15)

    def elapsed(z: float) -> float:  # dt = -dy / z with 2 dy = (1 + 3 z^2) dz
        return -0.5 * (np.log(z) + 1.5 * z**2)

    z0 = z_of(0.5)
    z = brentq(lambda z: elapsed(z) - elapsed(z0) - (2 - start), 1e-6, z0, xtol=1e-16, rtol=1e-15)
    return (z + z**3) / 2


TOLERANCES = 10.0 ** -np.arange(4, 12)


@pytest.mark.parametrize("case", ["oscillator bdf", "oscillator adams", "ball bdf", "circuit bdf"])
def test_error_falls_with_the_tolerance(built: Any, models: Any, case: str) -> None:
    """Fitted slope of log error against log rtol; the hybrid cases cross events."""
    name, method = case.split()
    system = built(getattr(models, name))
    span, variable, exact = {
        "oscillator": ((0, 5), "x", 1.5 * np.cos(10.0)),
        "ball": ((0, 3), "y", 0.06870746096576572),
        "circuit": ((0, 2), "y", exact_circuit()),
    }[name]
    errors = []
    for rtol in TOLERANCES:
        sol = dh.simulate(system, span, rtol=rtol, atol=rtol * 1e-2, method=method)
        errors.append(abs(sol[variable][-1] - exact))
    slope = np.polyfit(np.log10(TOLERANCES), np.log10(np.maximum(errors, 1e-15)), 1)[0]
    report = "\n".join(f"rtol {r:.0e}: error {e:.2e}" for r, e in zip(TOLERANCES, errors, strict=True))
    assert 0.75 < slope < 1.3, f"slope {slope:.2f}\n{report}"
    assert errors[-1] < 1e-8, report


def test_absolute_tolerance_by_name(built: Any, models: Any) -> None:
    system = built(models.oscillator)
    steps = [
        dh.simulate(system, (0, 5), rtol=1e-6, atol=atol, method="bdf").statistics["steps"]
        for atol in ({"*": 1e-2}, {"x": 1e-2, "v": 1e-2}, {"*": 1e-2, "v": 1e-10}, 1e-10)
    ]
    assert steps[0] == steps[1] < min(steps[2:])


# -- events ---------------------------------------------------------------------------------------------------


def test_bouncing_ball(built: Any, models: Any) -> None:
    sol = dh.simulate(built(models.ball), (0, 3), rtol=1e-11, atol=1e-13)
    assert sol.functionals["height"] == pytest.approx(0.06870746096576572, abs=1e-9)
    fall = np.sqrt(2 / 9.81)
    times = fall * (1 + 2 * np.concatenate(([0], np.cumsum(0.8 ** np.arange(1, 6)))))
    np.testing.assert_allclose([e.time for e in sol.events], times, rtol=1e-9)
    assert [e.direction for e in sol.events] == [-1] * 6
    assert all(abs(e.guard) < 1e-14 for e in sol.events)


def test_event_record_names_both_sides(built: Any, models: Any) -> None:
    event = dh.simulate(built(models.ball), (0, 0.6), **TIGHT).events[0]
    speed = np.sqrt(2 * 9.81)
    assert (event.transition, event.source, event.target, event.order) == ("bounce", "flight", "flight", 0)
    np.testing.assert_allclose(event.state_minus, [0, -speed], rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(event.state_plus, [0, 0.8 * speed], rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(event.derivative_minus, [-speed, -9.81], rtol=1e-8)
    np.testing.assert_allclose(event.derivative_plus, [0.8 * speed, -9.81], rtol=1e-8)
    assert event.rate == pytest.approx(-speed)
    assert event.algebraic_minus.size == event.memory_minus.size == 0
    assert "bounce" in repr(event)


def test_the_end_of_a_run_by_a_transition() -> None:
    m = dh.HybridModel("drop")
    h = m.parameter("h", 2.0)
    y, v = m.differential("y"), m.differential("v")
    fall = m.mode("fall", ode={y: v, v: -9.81})
    m.transition(fall, None, guard=y, direction="falling", name="landed")
    m.initial(fall, {y: h, v: 0.0})
    m.functional("duration", integrand=1)
    m.functional("speed", terminal=v)
    m.functional("when", terminal=m.time)
    sol = dh.simulate(m.build(), (0, 10), t_eval=np.linspace(0, 10, 101), **TIGHT)
    end = np.sqrt(2 * 2 / 9.81)
    assert sol.complete
    assert sol.final[0] == pytest.approx(end, rel=1e-10)
    assert sol.functionals["duration"] == pytest.approx(end, rel=1e-9)
    assert sol.functionals["when"] == pytest.approx(end, rel=1e-9)
    assert sol.functionals["speed"] == pytest.approx(-9.81 * end, rel=1e-9)
    assert sol.events[-1].target is None
    np.testing.assert_allclose(sol.t, np.linspace(0, 10, 101)[: sol.t.size])
    assert sol.t[-1] <= end < sol.t[-1] + 0.1
    with pytest.raises(dh.OptionError):
        sol(end + 1e-6)


@pytest.fixture(scope="module")
def doses() -> dh.HybridSystem:
    """y' = -k y with y + d at every tau, and everything washed out at w."""
    m = dh.HybridModel("doses")
    k, d, tau, w = m.parameter("k", 0.5), m.parameter("d", 1.0), m.parameter("tau", 0.25), m.parameter("w", 1.6)
    y = m.differential("y")
    run = m.mode("run", ode={y: -k * y})
    m.transition(run, run, every=tau, reset={y: y + d}, name="dose")
    m.transition(run, run, at=2 * w - w, reset={y: 0.1 * y}, name="wash")
    m.initial(run, {y: 0.0})
    m.functional("end", terminal=y)
    return m.build()


@pytest.mark.parametrize(("tau", "w", "t0"), [(0.25, 1.6, 0.0), (0.3, 0.7, 0.0), (0.3, 1.7, 1.0)])
def test_time_events(doses: dh.HybridSystem, tau: float, w: float, t0: float) -> None:
    tf = t0 + 2.0
    sol = dh.simulate(doses, (t0, tf), parameters={"tau": tau, "w": w}, **TIGHT)
    times = t0 + tau * np.arange(1, int(np.floor(2.0 / tau + 1e-9)) + 1)
    exact = sum(np.exp(-0.5 * (tf - t)) * (0.1 if t < w else 1.0) for t in times)
    assert sol.functionals["end"] == pytest.approx(exact, rel=1e-8)
    assert [e.time for e in sol.events if e.transition == "dose"] == [t0 + i * tau for i in range(1, times.size + 1)]
    assert [e.time for e in sol.events if e.transition == "wash"] == [2 * w - w]
    assert [e.count for e in sol.events if e.transition == "dose"] == list(range(1, times.size + 1))
    assert {e.direction for e in sol.events} == {0}


def test_a_period_that_is_not_positive(doses: dh.HybridSystem) -> None:
    for tau in (0.0, -1.0):
        with pytest.raises(dh.NonFiniteError, match="period is not positive") as caught:
            dh.simulate(doses, (0, 1), parameters={"tau": tau})
        assert caught.value.transition == "dose"


def test_many_periodic_firings_do_not_drift(doses: dh.HybridSystem) -> None:
    sol = dh.simulate(doses, (0, 100), parameters={"tau": 0.1, "w": 1e3}, rtol=1e-6, t_eval=[100.0])
    assert len(sol.events) == 1000
    assert [e.time for e in sol.events] == [i * 0.1 for i in range(1, 1001)]


# -- variables that come and go -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pendulum() -> dh.HybridSystem:
    """Three modes with different variables: free (y, v), contact (y, v, algebraic force), rest (y)."""
    m = dh.HybridModel("visit")
    k = m.parameter("k", 40.0)
    y, v, force = m.differential("y"), m.differential("v"), m.algebraic("force")
    free = m.mode("free", ode={y: v, v: -10.0})
    contact = m.mode("contact", ode={y: v, v: -10.0 + force}, algebraic=[force + k * y])
    rest = m.mode("rest", ode={y: -y})
    m.transition(free, contact, guard=y, direction="falling")
    m.transition(contact, rest, guard=v, direction="rising")
    m.transition(rest, free, at=1.4, reset={v: 2 * y + 1})
    m.initial(free, {y: 1.0, v: 0.0})
    m.functional("end", terminal=y)
    return m.build()


def test_modes_with_different_variables(pendulum: dh.HybridSystem) -> None:
    sol = dh.simulate(pendulum, (0, 1.6), **TIGHT)
    assert [e.transition for e in sol.events] == ["free->contact", "contact->rest", "rest->free"]
    first, second, third = (e.time for e in sol.events)
    assert first == pytest.approx(np.sqrt(0.2), rel=1e-9)
    w, speed = np.sqrt(40), np.sqrt(20)
    # y'' = -10 - w^2 y from (0, -speed): v = A cos(w s + phi) vanishes at the lowest point
    stop = np.arctan2(speed * w, -10) / w
    lowest = 10 / w**2 * (np.cos(w * stop) - 1) - speed / w * np.sin(w * stop)
    velocity = -10 / w * np.sin(w * stop) - speed * np.cos(w * stop)
    assert velocity == pytest.approx(0, abs=1e-12)
    assert second - first == pytest.approx(stop, rel=1e-8)
    assert third == 1.4
    y = lowest * np.exp(-(1.4 - second))
    tau = 0.2
    assert sol.functionals["end"] == pytest.approx(y + (2 * y + 1) * tau - 5 * tau**2, rel=1e-7)
    names = sol.modes
    for name, present in (("v", names != "rest"), ("force", names == "contact"), ("y", names != "nowhere")):
        np.testing.assert_array_equal(np.isfinite(sol[name]), present)
    np.testing.assert_allclose(sol["force"][names == "contact"], -40 * sol["y"][names == "contact"], rtol=1e-10)
    at = sol([0.1, first + 1e-3, 1.3])
    np.testing.assert_array_equal(np.isfinite(at["v"]), [True, True, False])
    np.testing.assert_array_equal(np.isfinite(at["force"]), [False, True, False])
    with pytest.raises(KeyError, match="y, v, force"):
        sol["speed"]


# -- memory -------------------------------------------------------------------------------------------------------


def test_memory_of_states_and_general_memory() -> None:
    """`of=` takes the value after the transition; a general memory sees the old memory, both sides and time."""
    m = dh.HybridModel("q")
    t, c = m.time, m.parameter("c", 0.4)
    y, x = m.differential("y"), m.differential("x")
    last = m.memory("last", of=y)
    total = m.memory("total", initial=c)
    both = m.memory("both", initial=0.0, size=2)
    run = m.mode("run", ode={y: 1.0, x: last})
    m.transition(
        run, run, guard=y - 1, direction="rising", reset={y: y - c},
        memory={total: total + t, both: ca.vertcat(m.pre(y), m.post(y))},
    )  # fmt: skip
    m.initial(run, {y: 0.5, x: 0.0})
    sol = dh.simulate(m.build(), (0, 1), **TIGHT)
    assert [e.time for e in sol.events] == pytest.approx([0.5, 0.9])
    np.testing.assert_allclose([e.memory_plus for e in sol.events], [[0.6, 0.9, 1, 0.6], [0.6, 1.8, 1, 0.6]], rtol=1e-9)
    np.testing.assert_array_equal(sol.events[0].memory_minus, [0.5, 0.4, 0, 0])
    assert sol["x"][-1] == pytest.approx(0.5 * 0.5 + 0.6 * 0.5)
    assert sol["both"].shape == (sol.t.size, 2)
    assert sol(0.7)["last"] == pytest.approx(0.6)


def test_an_algebraic_variable_jumps_with_regular_equations(built: Any, models: Any) -> None:
    sol = dh.simulate(built(models.circuit), (0, 2), **TIGHT)
    event = sol.events[0]
    assert event.time == pytest.approx(np.log(2) / 1.2, rel=1e-9)
    assert event.algebraic_minus == pytest.approx(0.6)
    z = event.algebraic_plus[0]
    assert z + z**3 == pytest.approx(1.0, rel=1e-12)
    assert sol["y"][-1] == pytest.approx(exact_circuit(), rel=1e-8)
    np.testing.assert_allclose(event.state_plus, event.state_minus)


def test_memory_of_an_algebraic_variable_that_jumps() -> None:
    """0 = z - y - z*/2 with z* the value after: z+ = 2 y, although z- was y."""
    m = dh.HybridModel("q")
    y, z = m.differential("y"), m.algebraic("z")
    frozen = m.memory("frozen", of=z, initial=0.0)
    run = m.mode("run", ode={y: 1.0}, algebraic=[z - y - frozen / 2])
    m.transition(run, run, at=1.0)
    m.initial(run, {y: 1.0})
    event = dh.simulate(m.build(), (0, 1.5), **TIGHT).events[0]
    assert event.algebraic_minus == pytest.approx(2.0)
    assert event.algebraic_plus == pytest.approx(4.0)
    assert event.memory_plus == pytest.approx(4.0)


def test_the_degenerate_case_keeps_the_algebraic_variable(built: Any, models: Any) -> None:
    """With z* = z+ the EM law holds for every z+: continuity closes it."""
    sol = dh.simulate(built(models.em), (0, 10), rtol=1e-8, atol=1e-12)
    assert len(sol.events) == 19
    assert sol.functionals["G"] == pytest.approx(0.0499397886063828, rel=3e-7)
    for event in sol.events:
        np.testing.assert_array_equal(event.x_minus, event.x_plus)
        np.testing.assert_allclose(event.memory_plus, event.x_plus[[0, 2]], atol=0)


def test_neither_equations_nor_continuity() -> None:
    """With z* = z+ nothing determines z+, and the reset of y makes continuity inconsistent."""
    m = dh.HybridModel("q")
    y, z = m.differential("y"), m.algebraic("z")
    frozen = m.memory("frozen", of=z, initial=0.0)
    run = m.mode("run", ode={y: 1.0}, algebraic=[z - frozen - (y - 1)])
    m.transition(run, run, at=1.0, reset={y: 2.0}, name="jump")
    m.initial(run, {y: 1.0})
    system = m.build(native=False)
    with pytest.raises(dh.ConsistencyError, match="continuity") as caught:
        dh.simulate(system, (0, 2))
    assert caught.value.transition == "jump"
    assert caught.value.trajectory is not None
    assert caught.value.trajectory.t[-1] == 1.0


# -- output ----------------------------------------------------------------------------------------------------------


def test_output_times_are_exactly_those_asked_for(built: Any, models: Any) -> None:
    system = built(models.ball)
    event = dh.simulate(system, (0, 3), **TIGHT).events[0].time
    times = [0.0, 0.2, event, np.nextafter(event, 1), 1.0, 2.5, 3.0]
    sol = dh.simulate(system, (0, 3), t_eval=times, **TIGHT)
    np.testing.assert_array_equal(sol.t, times)
    assert sol["v"][2] > 0  # the value after the event
    assert sol["y"][0] == 1.0
    assert sol["y"][-1] == pytest.approx(0.06870746096576572, abs=1e-8)
    one = dh.simulate(system, (0, 3), t_eval=1.0, **TIGHT)
    np.testing.assert_allclose(one["y"], sol["y"][4:5], rtol=1e-12)


@pytest.mark.parametrize("times", [[0.0], [1.0], [0.5], [0.25, 0.5, 0.75], [0.5, 1.0], [0.0, 1.0]], ids=str)
def test_output_at_time_events(times: list[float]) -> None:
    m = dh.HybridModel("q")
    y = m.differential("y")
    run = m.mode("run", ode={y: 1.0})
    for when in (0.0, 0.5, 1.0):
        m.transition(run, run, at=when, reset={y: y + 10})
    m.initial(run, {y: 0.0})
    system = m.build(native=False)
    sol = dh.simulate(system, (0, 1), t_eval=times)
    np.testing.assert_array_equal(sol.t, times)
    exact = np.array(times) + 10 + 10 * (np.array(times) >= 0.5) + 10 * (np.array(times) >= 1.0)
    np.testing.assert_allclose(sol["y"], exact, rtol=1e-12)
    assert sol(1.0)["y"] == pytest.approx(31)
    assert sol(1.0, side="left")["y"] == pytest.approx(21)
    assert sol(0.5)["y"] == pytest.approx(20.5)
    assert sol(0.5, side="left")["y"] == pytest.approx(10.5)
    assert sol(0.0)["y"] == 10


def test_events_a_rounding_apart_lose_no_output() -> None:
    """0.1 + 0.2 is one rounding above 0.3: the same time, and what is after both events is shown for either."""
    m = dh.HybridModel("q")
    y = m.differential("y")
    run = m.mode("run", ode={y: 1.0})
    m.transition(run, run, at=0.3, reset={y: y + 1})
    m.transition(run, run, at=0.1 + 0.2, reset={y: y + 10})
    m.initial(run, {y: 0.0})
    m.functional("end", terminal=y)
    system = m.build(native=False)
    for times in ([0.0, 0.3, 1.0], [0.3, 0.1 + 0.2, 1.0], [0.1 + 0.2, 0.5]):
        sol = dh.simulate(system, (0, 1), t_eval=times)
        np.testing.assert_array_equal(sol.t, times)
        exact = [t + 11 * (t >= 0.3) for t in times]
        np.testing.assert_allclose(sol["y"], exact, rtol=1e-12)
        fsa = dh.forward_sensitivity(system, (0, 1), t_eval=times)
        np.testing.assert_array_equal(fsa.t, times)


def test_dense_output_is_as_good_as_output_times(built: Any, models: Any) -> None:
    system = built(models.ball)
    times = np.linspace(0, 3, 301)
    sol = dh.simulate(system, (0, 3), **TIGHT)
    asked = dh.simulate(system, (0, 3), t_eval=times, **TIGHT)
    dense = sol(times)
    np.testing.assert_allclose(dense["y"], asked["y"], atol=1e-11)
    np.testing.assert_allclose(dense["v"], asked["v"], atol=1e-10)
    exact = np.array([ball_at(t) for t in times])
    np.testing.assert_allclose(dense["y"], exact, atol=5e-9)


def ball_at(t: float, e: float = 0.8, g: float = 9.81) -> float:
    start, speed, t0 = 0.0, -1.0, np.sqrt(2 / g)
    if t < t0:
        return 1 - g * t**2 / 2
    speed, start = e * np.sqrt(2 * g), t0
    while t >= start + 2 * speed / g:
        start, speed = start + 2 * speed / g, e * speed
    return speed * (t - start) - g * (t - start) ** 2 / 2


@pytest.mark.parametrize("name", ["circuit", "em"])
def test_dense_output_of_an_index_one_system(built: Any, models: Any, name: str) -> None:
    system = built(getattr(models, name))
    times = np.linspace(0, 2, 67)
    options = {"rtol": 1e-9, "atol": 1e-12}
    dense = dh.simulate(system, (0, 2), **options)(times)
    asked = dh.simulate(system, (0, 2), t_eval=times, **options)
    for variable in dense:
        scale = np.abs(asked[variable]).max()
        np.testing.assert_allclose(dense[variable], asked[variable], atol=1e-8 * scale, err_msg=variable)


def test_both_sides_of_an_event(built: Any, models: Any) -> None:
    sol = dh.simulate(built(models.ball), (0, 3), **TIGHT)
    event = sol.events[0]
    left, right = sol(event.time, side="left"), sol(event.time)
    assert left["v"] == event.state_minus[1]
    assert right["v"] == event.state_plus[1]
    assert np.ndim(left["v"]) == 0
    np.testing.assert_array_equal(sol(3.0)["y"], sol["y"][-1])
    np.testing.assert_array_equal(sol(0.0, side="left")["y"], 1.0)
    for bad in ({"t": -0.1}, {"t": 3.1}, {"t": float("nan")}, {"t": 1.0, "side": "both"}):
        with pytest.raises(dh.OptionError):
            sol(**bad)


def test_steps_show_both_sides_of_every_event(built: Any, models: Any) -> None:
    sol = dh.simulate(built(models.ball), (0, 3), **TIGHT)
    assert np.all(np.diff(sol.t) >= 0)
    assert sol.t[0] == 0.0
    assert sol.t[-1] == 3.0
    twice = sol.t[:-1][np.diff(sol.t) == 0]
    np.testing.assert_array_equal(twice, [e.time for e in sol.events])


def test_to_dataframe(built: Any, models: Any) -> None:
    sol = dh.simulate(built(models.em), (0, 1), t_eval=[0.0, 0.5, 1.0])
    frame = sol.to_dataframe()
    assert list(frame.columns) == ["t", "mode", "u", "v", "z", "u_star", "z_star"]
    assert list(frame["t"]) == [0.0, 0.5, 1.0]
    assert set(frame["mode"]) <= {"loading", "unloading"}
    np.testing.assert_array_equal(frame["u"], sol["u"])


def test_a_trajectory_cannot_be_changed(built: Any, models: Any) -> None:
    sol = dh.simulate(built(models.ball), (0, 1), **TIGHT)
    for thing, name in ((sol, "functionals"), (sol.segments[0], "t_end"), (sol.events[0], "time")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(thing, name, 1.0)


def test_the_arrays_of_a_trajectory_cannot_be_changed(built: Any, models: Any) -> None:
    sol = dh.simulate(built(models.ball), (0, 1), **TIGHT)
    arrays = {
        "t": sol.t, "parameters": sol.parameters, "integrals": sol.integrals, "values": sol.segments[0].values,
        "x_end": sol.segments[0].x_end, "x_minus": sol.events[0].x_minus, "x_plus": sol.events[0].x_plus,
    }  # fmt: skip
    writable = [name for name, array in arrays.items() if array.flags.writeable]
    assert not writable
    with pytest.raises(TypeError):
        sol.functionals["height"] = 1.0  # type: ignore[index]


def test_results_do_not_share_memory_with_arguments(built: Any, models: Any) -> None:
    p = np.array([0.8, 9.81])
    sol = dh.simulate(built(models.ball), (0, 1), parameters=p)
    p[:] = 0
    np.testing.assert_array_equal(sol.parameters, [0.8, 9.81])
    np.testing.assert_array_equal(built(models.ball).nominal, [0.8, 9.81])


def test_statistics_and_repr(built: Any, models: Any) -> None:
    sol = dh.simulate(built(models.ball), (0, 3), **TIGHT)
    assert sol.statistics["segments"] == 7
    assert 20 < sol.statistics["steps"] < 1000
    assert sol.statistics["nfev"] >= sol.statistics["steps"]
    assert sol.diagnostics.notes == ()
    text = repr(sol)
    assert "ball" in text
    assert "6 events" in text
    assert "height" in text


def test_output_does_not_change_the_run(built: Any, models: Any) -> None:
    """Outputs come from within the steps: these are the same with and without them."""
    system = built(models.em)
    plain = dh.simulate(system, (0, 3))
    asked = dh.simulate(system, (0, 3), t_eval=np.linspace(0, 3, 1000))
    assert plain.functionals == asked.functionals
    steps = [{k: v for k, v in sol.statistics.items() if k != "nfev"} for sol in (plain, asked)]
    assert steps[0] == steps[1]
    assert [e.time for e in plain.events] == [e.time for e in asked.events]


def test_step_options(built: Any, models: Any) -> None:
    system = built(models.decay)
    free = dh.simulate(system, (0, 3))
    fine = dh.simulate(system, (0, 3), max_step=0.01)
    assert np.diff(fine.t).max() <= 0.01 * (1 + 1e-12)
    assert free.statistics["steps"] < 300 <= fine.statistics["steps"]
    first = dh.simulate(system, (0, 3), first_step=1e-5)
    assert first.t[1] == pytest.approx(1e-5, rel=1e-6)
    low = dh.simulate(system, (0, 3), max_order=1, rtol=1e-5)
    assert low.statistics["steps"] > 2 * dh.simulate(system, (0, 3), rtol=1e-5).statistics["steps"]
    # the memories are reused: nothing of these options stays behind
    assert dh.simulate(system, (0, 3)).statistics == free.statistics


def test_a_first_step_longer_than_the_run(built: Any, models: Any) -> None:
    for name in ("decay", "circuit"):
        sol = dh.simulate(built(getattr(models, name)), (0, 0.1), first_step=100.0, **TIGHT)
        assert sol.t[-1] == 0.1


@pytest.mark.parametrize("length", [1e-9, 1e-12, 1e-15], ids=str)
def test_very_short_runs(built: Any, models: Any, length: float) -> None:
    for name, variable in (("decay", "y"), ("circuit", "y")):
        sol = dh.simulate(built(getattr(models, name)), (0, length), t_eval=[0.0, length])
        np.testing.assert_array_equal(sol.t, [0.0, length])
        np.testing.assert_allclose(sol[variable], sol[variable][0], rtol=2 * length)
    end = 1.0 + 4e-16
    sol = dh.simulate(built(models.decay), (1.0, end), t_eval=[1.0, end])
    np.testing.assert_array_equal(sol.t, [1.0, end])


# -- options that have been checked --------------------------------------------------------------------------------


def test_what_has_been_checked_is_no_licence_for_something_like_it(built: Any, models: Any) -> None:
    """1 is True and 1.0 to Python, a mapping may change between calls, and a name may get another adapter."""
    system = built(models.ball)
    dh.simulate(system, (0, 0.3), max_events=1, rtol=1e-6)
    for wrong in (True, 1.0):
        with pytest.raises(dh.OptionError, match="max_events"):
            dh.simulate(system, (0, 0.3), max_events=wrong, rtol=1e-6)
    atol: dict[str, Any] = {"*": 1e-8}
    dh.simulate(system, (0, 0.3), atol=atol)
    atol["nothing"] = 1e-8
    with pytest.raises(dh.OptionError, match="nothing"):
        dh.simulate(system, (0, 0.3), atol=atol)
    for span in ((0, 0.3), (0.0, 0.3), [0, 0.3], np.array([0.0, 0.3])):
        assert dh.simulate(system, span, rtol=1e-6).t_span == (0.0, 0.3)
    for i in range(150):  # more than are kept
        dh.simulate(system, (0, 0.1 + 1e-3 * i), rtol=1e-5)


def test_the_fastest_of_two_decays() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        matrix = random.normal(size=(2, 2)) * 10.0 ** random.uniform(-3, 6)
        expected = max(0.0, -np.linalg.eigvals(matrix).real.min())
        assert stiffness._fastest_of_two(*matrix.ravel()) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert stiffness._fastest_of_two(np.nan, 0.0, 1.0, 2.0) == 0.0
    assert stiffness._fastest_of_two(np.inf, 0.0, 1.0, 2.0) == 0.0
