"""Traps that other packages have fallen into, one test or more for each.

Every one has a closed form: of the value, of the event times with their derivatives, and of the gradient.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import copy
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh

TIGHT = {"rtol": 1e-10, "atol": 1e-12}
Closed = Callable[[Any], tuple[Any, list[Any]]]  # complex parameters -> value, event times


def derivatives(closed: Callable[[Any], Any], p: np.ndarray) -> np.ndarray:
    """By complex steps, one column per parameter."""
    return np.array([np.imag(closed(p + 1e-30j * unit)) / 1e-30 for unit in np.eye(p.size)]).T


def check(
    m: dh.HybridModel, span: tuple[float, float], closed: Closed, *, tolerance: float = 1e-7, **options: Any
) -> dh.ForwardSensitivity:
    """Value, event times, their derivatives and the gradient of G, forward and adjoint, against the closed form."""
    system = m.build(native=False)
    p, options = system.nominal.astype(complex), {**TIGHT, **options}
    value, times = closed(p)
    fsa = dh.forward_sensitivity(system, span, **options)
    own = [i for i, event in enumerate(fsa.events) if event.transition in m.transitions]  # not those of relations
    assert len(own) == len(times)
    np.testing.assert_allclose([fsa.events[i].time for i in own], np.real(times), rtol=1e-9, atol=1e-12)
    assert fsa.functionals["G"] == pytest.approx(np.real(value), rel=tolerance, abs=tolerance)
    exact = derivatives(lambda q: closed(q)[0], p)
    np.testing.assert_allclose(fsa.gradient["G"], exact, rtol=tolerance, atol=tolerance)
    if times:
        by_p = derivatives(lambda q: np.array(closed(q)[1]), p)
        np.testing.assert_allclose(fsa.event_time_sensitivity[own], by_p, rtol=tolerance, atol=tolerance)
    asa = dh.adjoint_gradient(system, span, "G", **options)
    assert asa.value == pytest.approx(np.real(value), rel=tolerance, abs=tolerance)
    np.testing.assert_allclose(asa.gradient, exact, rtol=tolerance, atol=tolerance)
    return fsa


# -- the trigger's derivative on the wrong side (AMICI#3257) ----------------------------------------------------


def test_trigger_time_derivative_on_the_wrong_side() -> None:
    """The event moves its own trigger state: the time's derivative takes the rate before (k c), not after (k r)."""
    m = dh.HybridModel("q")
    k, c, r = m.parameter("k", 1.3), m.parameter("c", 2.0), m.parameter("r", 0.7)
    y, x = m.differential("y"), m.differential("x")
    run = m.mode("run", ode={y: k * y, x: y})
    m.transition(run, run, guard=y - c, direction="rising", reset={y: r * y - 0.2 * m.time, x: x * y})
    m.initial(run, {y: 1.0, x: 0.0})
    m.functional("G", terminal=x + y**2)

    def closed(p: Any) -> Any:
        k, c, r = p
        y, x, t, times = 1.0, 0.0, 0.0, []
        while np.real(t + np.log(c / y) / k) < 1.5:
            t = t + np.log(c / y) / k
            x = (x + (c - y) / k) * c
            y = r * c - 0.2 * t
            times.append(t)
        end = y * np.exp(k * (1.5 - t))
        return x + (end - y) / k + end**2, times

    assert len(check(m, (0, 1.5), closed).events) == 3


# -- simultaneous events need a snapshot each (AMICI#2805) --------------------------------------------------------


@pytest.mark.parametrize("first", ["add", "scale"])
@pytest.mark.parametrize("shape", [(1.0, 3.0), (3.0, 1.0)])
def test_simultaneous_events_see_what_the_one_before_left(first: str, shape: tuple[float, float]) -> None:
    """Two guards that cross together for all parameters, resets that do not commute, in either order."""
    m = dh.HybridModel("q")
    a, c, r = m.parameter("a", 1.2), m.parameter("c", 0.6), m.parameter("r", 0.5)
    y, x = m.differential("y"), m.differential("x")
    run = m.mode("run", ode={y: a, x: x})
    resets = {"add": {x: x + y}, "scale": {x: r * x}}
    for factor, name in zip(shape, (first, "scale" if first == "add" else "add"), strict=True):
        m.transition(run, run, guard=factor * (y - c), direction="rising", reset=resets[name], name=name)
    m.initial(run, {y: 0.0, x: 1.0})
    m.functional("G", terminal=x)

    def closed(p: Any) -> Any:
        a, c, r = p
        t = c / a
        x = np.exp(t)
        x = r * (x + c) if first == "add" else r * x + c
        return x * np.exp(1 - t), [t, t]

    fsa = check(m, (0, 1), closed)
    assert [(e.transition, e.order) for e in fsa.events] == [(first, 0), ("scale" if first == "add" else "add", 1)]
    np.testing.assert_array_equal(fsa.events[0].x_plus, fsa.events[1].x_minus)


@pytest.mark.parametrize("swap", [False, True])
def test_simultaneous_events_of_different_parameters(swap: bool) -> None:
    """They meet at these parameters alone; each has its own time derivative, and resets that commute."""
    m = dh.HybridModel("q")
    a, c, d = m.parameter("a", 1.2), m.parameter("c", 0.6), m.parameter("d", 0.6)
    y, u, v = m.differential("y"), m.differential("u"), m.differential("v")
    run = m.mode("run", ode={y: a, u: -u, v: -2 * v})
    pairs = [(c, {u: u + 1}), (d, {v: v + 1})]
    for level, reset in reversed(pairs) if swap else pairs:
        m.transition(run, run, guard=y - level, direction="rising", reset=reset)
    m.initial(run, {y: 0.0, u: 1.0, v: 1.0})
    m.functional("G", terminal=u * v)

    def closed(p: Any) -> Any:
        a, c, d = p
        s, t = c / a, d / a
        value = (np.exp(-1) + np.exp(s - 1)) * (np.exp(-2) + np.exp(2 * (t - 1)))
        return value, [t, s] if swap else [s, t]

    check(m, (0, 1), closed)


@pytest.mark.parametrize("swap", [False, True])
def test_a_simultaneous_event_that_the_first_one_disarms(swap: bool) -> None:
    """The first takes y away from the threshold of the second, in whichever order they are declared."""
    m = dh.HybridModel("q")
    a, c, r = m.parameter("a", 1.2), m.parameter("c", 0.6), m.parameter("r", 0.4)
    y, x = m.differential("y"), m.differential("x")
    run = m.mode("run", ode={y: a, x: y})
    resets: list[Any] = [{y: r * y}, {y: r**2 * y}]
    for factor, reset in zip((1.0, 2.0), reversed(resets) if swap else resets, strict=True):
        m.transition(run, run, guard=factor * (y - c), direction="rising", reset=reset)
    m.initial(run, {y: 0.0, x: 0.0})
    m.functional("G", terminal=x)

    def closed(p: Any) -> Any:
        a, c, r = p
        y = (r**2 if swap else r) * c
        t, second = c / a, c / a + (c - y) / a
        x = c**2 / (2 * a)
        end = 0.75
        assert np.real(second) > end
        return x + y * (end - t) + a * (end - t) ** 2 / 2, [t]

    check(m, (0, 0.75), closed)


# -- backward restart close to a discontinuity (AMICI#3274) -----------------------------------------------------------

DISTANCES = [1e-3, 1e-5, 1e-7, 1e-9, 1e-11, 1e-12, 1e-13, 1e-14, 0.0]


def near_a_data_point(shift: float, *, movable: bool) -> dh.HybridModel:
    """Data at 1, and a jump of v at 1 + shift that x knows nothing of."""
    m = dh.HybridModel("q")
    k, d = m.parameter("k", 0.8), m.parameter("d", 0.5)
    when: Any = m.parameter("w", 1.0 + shift) if movable else 1.0 + shift
    x, v = m.differential("x"), m.differential("v")
    run = m.mode("run", ode={x: -k * x, v: -v})
    m.transition(run, run, at=when, reset={v: v + d})
    m.initial(run, {x: 1.0, v: 1.0})
    m.functional("G", at_times={0.5: x, 1.0: x**2 + v * x, 1.5: x}, terminal=v)
    return m


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("movable", [False, True])
def test_backward_restart_close_to_a_discontinuity(movable: bool, distance: float, side: int) -> None:
    """The measurement is on the side of the jump it is on, however near, and its adjoint as well."""
    shift = side * distance
    m = near_a_data_point(shift, movable=movable)
    jumped = 1.0 + shift <= 1.0  # at the time of an event the value after it counts

    def closed(p: Any) -> Any:
        k, d, w = p if movable else (*p, 1.0 + shift)
        x = np.exp(-k)
        v = np.exp(-1.0) + (d * np.exp(w - 1.0) if jumped else 0.0)
        value = np.exp(-k / 2) + x**2 + v * x + np.exp(-1.5 * k) + np.exp(-2.0) + d * np.exp(w - 2.0)
        return value, [w]

    if movable and abs((1.0 + shift) - 1.0) <= 4e-15 * 2:  # one instant: there are one-sided derivatives only
        system = m.build(native=False)
        assert dh.simulate(system, (0, 2), **TIGHT).functionals["G"] == pytest.approx(
            np.real(closed(system.nominal)[0]), rel=1e-8
        )
        for analysis in (dh.forward_sensitivity, dh.adjoint_gradient):
            with pytest.raises(dh.EventError, match="one-sided") as caught:
                analysis(system, (0, 2), **TIGHT)
            assert caught.value.time == pytest.approx(1.0)
            assert caught.value.remedy
        return
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        check(m, (0, 2), closed)
    assert all("has only one-sided derivatives there" in str(one.message) for one in said)
    if not movable or distance > 2e-9:  # ten rtol of the time that has passed
        assert not said
    elif distance < 5e-10:
        assert len(said) == 2


@pytest.mark.parametrize("distance", DISTANCES)
def test_the_adjoint_close_to_a_discontinuity(distance: float) -> None:
    """Samples of it next to an event that the adjoint jumps at, on the side where they are."""
    m = dh.HybridModel("q")
    k, r = m.parameter("k", 0.8), m.parameter("r", 0.5)
    x = m.differential("x")
    run = m.mode("run", ode={x: -k * x})
    m.transition(run, run, at=1.0, reset={x: r * x})
    m.initial(run, {x: 1.0})
    m.functional("G", terminal=x)
    asa = dh.adjoint_gradient(m.build(native=False), (0, 2), **TIGHT)
    for t in (1.0 - distance, 1.0 + distance):
        exact = np.exp(-0.8 * (2 - t)) * (0.5 if t < 1 else 1.0)
        assert asa.adjoint(t)["x"] == pytest.approx(exact, rel=1e-7)


# -- guards in one direction only (CasADi#4393) -----------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["rising", "falling", "both"])
def test_guards_fire_in_the_directions_they_ask_for(direction: Any) -> None:
    """x = cos(w t): every zero of the direction, and no other, whichever comes first."""
    m = dh.HybridModel("q")
    w = m.parameter("w", 2.0)
    x, v = m.differential("x"), m.differential("v")
    run = m.mode("run", ode={x: v, v: -(w**2) * x})
    hit = m.transition(run, run, guard=x, direction=direction)
    m.initial(run, {x: 1.0, v: 0.0})
    m.functional("G", at_events={hit: m.time**2})
    zeros = {"falling": [0.5, 2.5], "rising": [1.5], "both": [0.5, 1.5, 2.5]}[direction]

    def closed(p: Any) -> Any:
        times = [z * np.pi / p[0] for z in zeros]
        return sum(t**2 for t in times), times

    fsa = check(m, (0, 5), closed, max_step=0.2)
    assert [e.direction for e in fsa.events] == [-1 if z % 2 == 0.5 else 1 for z in zeros]


# -- an event time meets a save time (SciMLSensitivity#1447) --------------------------------------------------------


@pytest.mark.parametrize("roundings", [-8, -2, -1, 0, 1, 2, 8])
def test_event_time_meets_a_save_time(roundings: int) -> None:
    """Values at a save time are those after the event, and sensitivities; the functional there has those of no side."""
    m = dh.HybridModel("q")
    a, b, c, d = (m.parameter(name, value) for name, value in (("a", 1.0), ("b", 3.0), ("c", 0.5), ("d", 0.25)))
    y = m.differential("y")
    one, two = m.mode("one", ode={y: a}), m.mode("two", ode={y: b})
    m.transition(one, two, guard=y - c, direction="rising", reset={y: y + d})
    m.initial(one, {y: 0.0})
    m.functional("G", terminal=y)

    def closed(p: Any) -> Any:
        a, b, c, d = p
        return c + d + b * (1 - c / a), [c / a]

    save = 0.5 + roundings * np.spacing(0.5)
    fsa = check(m, (0, 1), closed, t_eval=[0.25, save, 0.75])
    event = fsa.events[0].time
    assert abs(save - event) <= 4e-15 * 0.5
    assert fsa.trajectory["y"][1] == pytest.approx(0.75, abs=1e-9)
    np.testing.assert_allclose(np.ravel(fsa["y"][1]), [3 * 0.5, 0.0, 1 - 3.0, 1.0], atol=1e-8)
    m.functional("H", at_times={save: y})
    system = m.build(native=False)
    for analysis, more in ((dh.forward_sensitivity, ()), (dh.adjoint_gradient, ("H",))):
        with pytest.raises(dh.EventError, match="one-sided"):
            analysis(system, (0, 1), *more, **TIGHT)


# -- after an event, in chained segments (diffrax#729) ------------------------------------------------------------


def test_gradient_after_an_event_in_chained_runs() -> None:
    """A bouncing ball in two runs, the second from where the first ended: the chain rule gives one run's gradient."""

    def ball(y0: float, v0: float) -> dh.HybridSystem:
        m = dh.HybridModel("ball")
        e, g = m.parameter("e", 0.8), m.parameter("g", 9.81)
        height, speed = m.parameter("y0", y0), m.parameter("v0", v0)
        y, v = m.differential("y"), m.differential("v")
        fly = m.mode("fly", ode={y: v, v: -g})
        m.transition(fly, fly, guard=y, direction="falling", reset={v: -e * v})
        m.initial(fly, {y: height, v: speed})
        m.functional("state", terminal=ca.vertcat(y, v))
        m.functional("G", terminal=y)
        return m.build(native=False)

    def closed(p: Any) -> Any:
        e, g, y0, v0 = p
        t = (v0 + np.sqrt(v0**2 + 2 * g * y0)) / g
        speed = e * (g * t - v0)
        while np.real(t + 2 * speed / g) < 1.5:
            t, speed = t + 2 * speed / g, e * speed
        return speed * (1.5 - t) - g * (1.5 - t) ** 2 / 2

    exact = derivatives(closed, np.array([0.8, 9.81, 1.0, 0.0], dtype=complex))
    whole = ball(1.0, 0.0)
    np.testing.assert_allclose(dh.adjoint_gradient(whole, (0, 1.5), "G", **TIGHT).gradient, exact, rtol=1e-7)
    for middle in (0.3, 0.7, 1.2):
        one = dh.forward_sensitivity(whole, (0, middle), **TIGHT)
        end = one.functionals["state"]
        second = ball(float(end[0]), float(end[1]))
        forward = dh.forward_sensitivity(second, (middle, 1.5), **TIGHT).gradient["G"]
        adjoint = dh.adjoint_gradient(second, (middle, 1.5), "G", **TIGHT).gradient
        first = dh.adjoint_gradient(whole, (0, middle), "state", **TIGHT).gradient
        for last, before in ((forward, one.gradient["state"]), (adjoint, first)):
            chained = last[2:] @ before + np.concatenate((last[:2], [0.0, 0.0]))
            np.testing.assert_allclose(chained, exact, rtol=1e-6)


# -- roots that stay at zero (SUNDIALS#81) --------------------------------------------------------------------------


def test_a_root_that_stays_at_zero_after_the_event() -> None:
    """A ball that lands rests at its guard's zero until it is thrown; then its guard works again."""
    m = dh.HybridModel("q")
    g, h, w, u = (m.parameter(name, value) for name, value in (("g", 8.0), ("h", 1.0), ("w", 0.8), ("u", 2.0)))
    y, v, n = m.differential("y"), m.differential("v"), m.memory("n", initial=0.0)
    fly, rest = m.mode("fly", ode={y: v, v: -g}), m.mode("rest", ode={y: 0.0, v: 0.0})
    m.transition(fly, rest, guard=y, direction="falling", reset={y: 0.0, v: 0.0}, memory={n: n + 1}, name="land")
    m.transition(rest, fly, guard=y, direction="both", name="float away")
    m.transition(rest, fly, at=w, reset={v: u}, name="throw")
    m.initial(fly, {y: h, v: 0.0})
    m.functional("G", integrand=y, terminal=n)

    def closed(p: Any) -> Any:
        g, h, w, u = p
        t = np.sqrt(2 * h / g)
        return 2 / 3 * h * t + u * (2 * u / g) ** 2 / 2 - g * (2 * u / g) ** 3 / 6 + 2, [t, w, w + 2 * u / g]

    fsa = check(m, (0, 2), closed)
    assert [e.transition for e in fsa.events] == ["land", "throw", "land"]


@pytest.mark.parametrize("adapter", ["sundials", "scipy"])
def test_a_guard_that_is_zero_over_an_interval(adapter: str) -> None:
    """It comes up to zero at 1, stays there until 2 and goes on: it fires where it comes.

    SUNDIALS takes the end of the step that reaches the zeros for the root, some time after 1. Taken as smooth, its rate
    there is zero, and derivatives are refused.
    """
    m = dh.HybridModel("q")
    a, y, n = m.parameter("a", 1.0), m.differential("y"), m.memory("n", initial=0.0)
    run = m.mode("run", ode={y: a})
    plateau = ca.fmin(y - 1, 0) + ca.fmax(y - 2, 0)
    m.initial(run, {y: 0.0})
    m.functional("G", terminal=n)
    other = copy(m)
    other.transitions = {}
    hit = m.transition(run, run, guard=plateau, direction="rising", memory={n: n + 1})
    m.functional("T", at_events={hit: m.time})
    fsa = dh.forward_sensitivity(m.build(native=False), (0, 3), adapter=adapter, **TIGHT)
    assert fsa.functionals["T"] == pytest.approx(1.0)
    assert fsa.gradient["T"] == pytest.approx(-1.0)
    other.transition(run, run, guard=dh.smooth(plateau), direction="rising", memory={n: n + 1})
    other.functionals = {"G": m.functionals["G"]}
    system = other.build(native=False)
    options: dict[str, Any] = {"adapter": adapter, "max_step": 0.1, **TIGHT}
    assert dh.simulate(system, (0, 3), **options).event_table.t == pytest.approx([1.0])
    for analysis in (dh.forward_sensitivity, dh.adjoint_gradient):
        with pytest.raises(dh.GrazingError, match="touches zero") as caught:
            analysis(system, (0, 3), **options)
        error = caught.value
        assert (error.transition, error.mode) == ("run->run", "run")
        assert error.time == pytest.approx(1.0)
        assert error.remedy


@pytest.mark.parametrize("adapter", ["sundials", "scipy"])
def test_a_guard_that_is_zero_from_the_start(adapter: str) -> None:
    """It is armed when it has left zero, at 1: the first crossing is where it comes back."""
    m = dh.HybridModel("q")
    a, y, n = m.parameter("a", 1.0), m.differential("y"), m.memory("n", initial=0.0)
    run = m.mode("run", ode={y: a})
    hump = ca.fmax(y - 1, 0) * (2 - y)
    hit = m.transition(run, run, guard=hump, direction="falling", memory={n: n + 1})
    m.initial(run, {y: 0.0})
    m.functional("G", at_events={hit: m.time})
    check(m, (0, 3), lambda p: (2 / p[0], [2 / p[0]]), adapter=adapter, max_step=0.1)


@pytest.mark.parametrize("adapter", ["sundials", "scipy"])
def test_a_guard_that_crosses_without_a_rate(adapter: str) -> None:
    """(y - 1)^3 is no plateau: it crosses. The event time has no derivative that could be had from it."""
    m = dh.HybridModel("q")
    a, y, n = m.parameter("a", 1.0), m.differential("y"), m.memory("n", initial=0.0)
    run = m.mode("run", ode={y: a})
    m.transition(run, run, guard=(y - 1) ** 3, direction="rising", memory={n: n + 1})
    m.initial(run, {y: 0.0})
    m.functional("G", terminal=n)
    system = m.build(native=False)
    sol = dh.simulate(system, (0, 3), adapter=adapter, **TIGHT)
    assert [e.time for e in sol.events] == [pytest.approx(1.0, abs=1e-4)]
    for analysis in (dh.forward_sensitivity, dh.adjoint_gradient):
        with pytest.raises(dh.GrazingError):
            analysis(system, (0, 3), adapter=adapter, **TIGHT)


# -- sensitivities that are stale after a jump (PyBNF#536) ------------------------------------------------------------


@pytest.mark.parametrize("method", ["adams", "bdf"])
@pytest.mark.parametrize("corrector", ["staggered", "simultaneous"])
def test_sensitivities_stale_after_a_state_jump(corrector: Any, method: str) -> None:
    """Doses: at, and just after, each jump the sensitivities are those after it."""
    m = dh.HybridModel("q")
    k, dose, tau = m.parameter("k", 0.9), m.parameter("dose", 1.5), m.parameter("tau", 0.5)
    y = m.differential("y")
    run = m.mode("run", ode={y: -k * y})
    m.transition(run, run, every=tau, reset={y: 0.5 * y + dose})
    m.initial(run, {y: dose})
    m.functional("G", terminal=y)

    def state(p: Any, t: float) -> Any:
        k, dose, tau = p
        y, last = dose, 0.0
        for i in range(1, int(np.real(t) / 0.5 + 1e-9) + 1):
            y, last = 0.5 * y * np.exp(-k * (i * tau - last)) + dose, i * tau
        return y * np.exp(-k * (t - last))

    times = np.array([0.25, 0.5, 0.5 + 1e-9, 0.75, 1.0 + 1e-9, 1.5 + 1e-6, 1.7])
    fsa = check(
        m, (0, 1.7), lambda p: (state(p, 1.7), [i * p[2] for i in (1, 2, 3)]), t_eval=times, method=method,
        sensitivity_method=corrector,
    )  # fmt: skip
    p = fsa.trajectory.system.nominal.astype(complex)
    for row, t in zip(fsa["y"], times, strict=True):
        np.testing.assert_allclose(np.ravel(row), derivatives(lambda q, t=t: state(q, t), p), rtol=1e-6, atol=1e-7)


# -- the initial term of the adjoint (sunode#35) --------------------------------------------------------------------


@pytest.mark.parametrize("start", [0.0, -3.0, 100.0])
@pytest.mark.parametrize("implicit", [False, True])
def test_missing_initial_term_of_the_adjoint(implicit: bool, start: float) -> None:
    """Initial values, initial memory and the clock (through a shift of time) depend on parameters."""
    m = dh.HybridModel("q")
    a, s = m.parameter("a", 0.7), m.parameter("s", 0.2)
    y, r = m.differential("y"), m.memory("r", initial=a**2)
    clock = m.time - start + s
    run = m.mode("run", ode={y: r * clock - y})
    m.transition(run, run, at=start + s, memory={r: 2 * r})
    if implicit:
        m.initial(run, equations=[y**3 + y - a * s - (a * s) ** 3])
    else:
        m.initial(run, {y: a * s})
    m.functional("G", terminal=y, integrand=r)

    def closed(p: Any) -> Any:
        a, s = p

        def advance(y: Any, r: Any, c0: Any, dt: Any) -> Any:  # y' = r c - y from clock c0
            return r * (c0 + dt - 1) + (y - r * (c0 - 1)) * np.exp(-dt)

        y = advance(a * s, a**2, s, s)
        y = advance(y, 2 * a**2, 2 * s, 1 - s)
        return y + a**2 * s + 2 * a**2 * (1 - s), [start + s]

    check(m, (start, start + 1), closed)


def test_an_event_at_the_initial_time() -> None:
    """It fires at once, on a guard whose zero is there for every value of the parameters."""
    m = dh.HybridModel("q")
    c = m.parameter("c", 1.0)
    y = m.differential("y")
    a, b = m.mode("a", ode={y: 1.0}), m.mode("b", ode={y: 2.0 * y})
    m.transition(a, b, guard=y - c, direction="rising")
    m.initial(a, {y: c})
    m.functional("G", terminal=y)
    check(m, (0, 1), lambda p: (p[0] * np.exp(2.0), [0 * p[0]]))


# -- a guard whose derivative depends on the mode -------------------------------------------------------------------


def test_a_guard_whose_derivative_depends_on_the_mode() -> None:
    """One expression, der(y) + y - c: its slope in y, and its rate, are those of the mode that it watches."""
    m = dh.HybridModel("q")
    a, b, c = m.parameter("a", 0.5), m.parameter("b", 0.3), m.parameter("c", 0.4)
    y, z = m.differential("y"), m.algebraic("z")
    guard = m.der(y) + y - c
    one, two = m.mode("one", ode={y: -a * y}), m.mode("two", ode={y: -z}, algebraic=[z - b * m.time])
    rest = m.mode("rest", ode={y: 1.0 - y})
    m.transition(one, two, guard=guard, direction="falling", reset={y: y + 1})
    m.transition(two, rest, guard=guard, direction="falling")
    m.initial(one, {y: 1.2})
    m.functional("G", integrand=y, terminal=y)

    def closed(p: Any) -> Any:
        a, b, c = p
        level = c / (1 - a)  # (1 - a) y = c
        t = np.log(1.2 / level) / a
        area, y = (1.2 - level) / a, level + 1
        # y - b (s^2 - t^2) / 2 - b s = c
        constant = y + b * t**2 / 2 - c
        s = -1 + np.sqrt(1 + 2 * constant / b)
        area = area + (y + b * t**2 / 2) * (s - t) - b * (s**3 - t**3) / 6
        y = y - b * (s**2 - t**2) / 2
        end = 1 + (y - 1) * np.exp(-(4 - s))
        return area + (4 - s) + (y - 1) * (1 - np.exp(-(4 - s))) + end, [t, s]

    check(m, (0, 4), closed)


# -- a reset to exactly the guard's zero ---------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["rising", "both"])
def test_a_reset_to_the_zero_of_its_own_guard(direction: Any) -> None:
    """y is put on its threshold, where it is already, and moves on: once, not again and again."""
    m = dh.HybridModel("q")
    a, c = m.parameter("a", 1.1), m.parameter("c", 0.7)
    y, x = m.differential("y"), m.differential("x")
    run = m.mode("run", ode={y: a * (1 + x), x: 0.0})
    m.transition(run, run, guard=y - c, direction=direction, reset={y: c, x: x + 1})
    m.initial(run, {y: 0.0, x: 0.0})
    m.functional("G", terminal=y)
    check(m, (0, 1), lambda p: (p[1] + 2 * p[0] * (1 - p[1] / p[0]), [p[1] / p[0]]))


@pytest.mark.parametrize("order", [1, -1])
def test_a_reset_to_the_zero_of_the_next_guard(order: int) -> None:
    """The next mode begins on its threshold and moves through it: it is left at the same instant; or moves away."""
    m = dh.HybridModel("q")
    a, c, r = m.parameter("a", 1.1), m.parameter("c", 0.7), m.parameter("r", 0.3)
    y = m.differential("y")
    one, two, three = m.mode("one", ode={y: a}), m.mode("two", ode={y: 2.0}), m.mode("three", ode={y: -y})
    m.transition(one, two, guard=y - c, direction="rising", reset={y: r})
    m.transition(two, three, guard=order * (y - r), direction="rising", reset={y: y + 1})
    m.initial(one, {y: 0.0})
    m.functional("G", terminal=y)

    def closed(p: Any) -> Any:
        a, c, r = p
        t = c / a
        if order < 0:
            return r + 2 * (1 - t), [t]
        return (r + 1) * np.exp(-(1 - t)), [t, t]

    check(m, (0, 1), closed)


def test_a_ball_that_is_put_on_the_floor() -> None:
    """y = 0 exactly after every bounce, with v upwards: as many bounces as there are."""
    m = dh.HybridModel("q")
    e, g = m.parameter("e", 0.8), m.parameter("g", 9.81)
    y, v = m.differential("y"), m.differential("v")
    fly = m.mode("fly", ode={y: v, v: -g})
    m.transition(fly, fly, guard=y, direction="falling", reset={y: 0.0, v: -e * v})
    m.initial(fly, {y: 1.0, v: 0.0})
    m.functional("G", terminal=y)

    def closed(p: Any) -> Any:
        e, g = p
        t, speed, times = np.sqrt(2 / g), e * np.sqrt(2 * g), []
        while True:
            times.append(t)
            if np.real(t + 2 * speed / g) > 2:
                return speed * (2 - t) - g * (2 - t) ** 2 / 2, times
            t, speed = t + 2 * speed / g, e * speed

    check(m, (0, 2), closed)
