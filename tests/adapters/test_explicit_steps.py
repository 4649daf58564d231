"""Explicit Runge-Kutta steps of ARKODE: order, events, outputs, derivatives, refusals."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import casadi as ca
import numpy as np
import pytest
from scipy.optimize import brentq

import dae_hybrid as dh
from dae_hybrid.adapters.sundials.methods import ERK as METHOD
from dae_hybrid.adapters.sundials.runge_kutta import ButcherTable
from dae_hybrid.problems import em_hysteresis

ERK: dict[str, Any] = {"method": "erk"}
TIGHT: dict[str, Any] = {"method": "erk", "rtol": 1e-10, "atol": 1e-12}
#: no error test: steps of one size
FREE: dict[str, Any] = {"method": "erk", "rtol": 0.9, "atol": 1e6}


def table_of(order: int) -> ButcherTable:
    """The coefficients that `method="erk"` takes for an order."""
    found = METHOD.table(dh.Options(max_order=order, method=METHOD.name))
    assert found is not None
    return found


def swing() -> dh.HybridModel:
    """y' = k cos(t) y, y = exp(k sin t); a memory switches the sign of the integrand whenever y rises through 1."""
    m = dh.HybridModel("swing")
    k, y0, c = m.parameter("k", 1.1), m.parameter("y0", 0.9), m.parameter("c", 1.0)
    y, s = m.differential("y"), m.memory("s", initial=1.0)
    run = m.mode("run", ode={y: k * ca.cos(m.time) * y})
    m.transition(run, run, guard=y - c, direction="rising", memory={s: -s}, name="up")
    m.initial(run, {y: y0})
    m.functional("G", integrand=s * y**2, terminal=c * y)
    return m


@pytest.fixture(scope="module")
def system() -> dh.HybridSystem:
    """Built once."""
    return swing().build()


@pytest.mark.parametrize("order", sorted(METHOD.tables))
def test_tables(order: int) -> None:
    """Quadrature conditions b c^(k-1) = 1/k, and rows that sum to c."""
    table = table_of(order)
    for k in range(1, order + 1):
        assert table.b @ table.c ** (k - 1) == pytest.approx(1 / k, abs=2e-14)
    np.testing.assert_allclose(table.a.sum(axis=1), table.c, atol=5e-14)
    assert not np.triu(table.a).any()


@pytest.mark.filterwarnings("ignore::dae_hybrid.DerivativeWarning")  # nothing is accurate to a tolerance of 0.9
@pytest.mark.parametrize("order", [2, 3, 4, 5, 6])
def test_order(order: int, system: dh.HybridSystem) -> None:
    """The error at the end, of the state, of the event and of both gradients, falls as the order says."""
    exact = dh.forward_sensitivity(system, (0, 5), parameters={"y0": 0.5}, method="erk", rtol=1e-13, atol=1e-14)
    errors = []
    for h in (0.2, 0.1, 0.05):
        more: dict[str, Any] = {"max_order": order, "max_step": h, "first_step": h, "strict": False, **FREE}
        fsa = dh.forward_sensitivity(system, (0, 5), parameters={"y0": 0.5}, **more)
        asa = dh.adjoint_gradient(system, (0, 5), parameters={"y0": 0.5}, **more)
        found = (fsa.trajectory["y"][-1], fsa.events[0].time, fsa.gradient["G"], asa.gradient)
        true = (exact.trajectory["y"][-1], exact.events[0].time, exact.gradient["G"], exact.gradient["G"])
        errors.append([np.abs(np.subtract(a, b)).max() for a, b in zip(found, true, strict=True)])
    slopes = np.log2(np.array(errors[0]) / np.array(errors[-1])) / 2
    assert np.all(slopes > order - 0.6), slopes
    assert np.median(slopes) < order + 1.5, slopes


@pytest.mark.filterwarnings("ignore::dae_hybrid.DerivativeWarning")
def test_the_adjoint_is_the_transpose_of_the_steps(system: dh.HybridSystem) -> None:
    """On the same coarse steps forward and adjoint analysis agree to rounding, wrong as both are."""
    more: dict[str, Any] = {"max_step": 0.5, "first_step": 0.5, "strict": False, **FREE}
    forward = dh.forward_sensitivity(system, (0, 9), **more).gradient["G"]
    adjoint = dh.adjoint_gradient(system, (0, 9), **more).gradient
    exact = dh.forward_sensitivity(system, (0, 9), **TIGHT).gradient["G"]
    np.testing.assert_allclose(adjoint, forward, rtol=1e-9)
    assert np.abs(forward / exact - 1).max() > 1e-7


def test_it_is_the_derivative_of_what_was_computed() -> None:
    """Without events: central differences of the very steps, to their own accuracy."""
    m = dh.HybridModel("q")
    k, y0 = m.parameter("k", 1.1), m.parameter("y0", 0.9)
    y = m.differential("y")
    m.initial(m.mode("run", ode={y: k * ca.cos(m.time) * y - 0.1 * y**2}), {y: y0})
    m.functional("G", integrand=y**2, terminal=y)
    built = m.build()
    more: dict[str, Any] = {"max_step": 0.5, "first_step": 0.5, "max_order": 4, **FREE}
    asa = dh.adjoint_gradient(built, (0, 5), **more)
    for i, name in enumerate(("k", "y0")):
        value = built.nominal[i]
        side = [
            dh.simulate(built, (0, 5), parameters={name: value * (1 + d)}, **more).functionals["G"]
            for d in (-1e-5, 1e-5)
        ]
        assert asa.gradient[i] == pytest.approx((side[1] - side[0]) / (2e-5 * value), rel=1e-7)


@pytest.mark.parametrize("rtol", [1e-6, 1e-9])
def test_events_are_as_accurate_as_the_steps(rtol: float, system: dh.HybridSystem) -> None:
    sol = dh.simulate(system, (0, 20), rtol=rtol, atol=rtol * 1e-2, **ERK)
    exact = []
    for turn in range(4):
        exact.append(
            brentq(lambda t: 0.9 * np.exp(1.1 * np.sin(t)) - 1, 2 * np.pi * turn - 1.5, 2 * np.pi * turn + 1.5)
        )
    exact = [t for t in exact if 0 < t < 20]
    assert len(sol.events) == len(exact)
    np.testing.assert_allclose([e.time for e in sol.events], exact, atol=30 * rtol)
    for event in sol.events:
        assert abs(event.x_minus[0] - 1) < 1e-14


def test_outputs_are_as_accurate_as_the_steps(system: dh.HybridSystem) -> None:
    """Many within one step; the same from dense output."""
    times = np.linspace(0, 9, 500)
    sol = dh.simulate(system, (0, 9), t_eval=times, **TIGHT)
    assert sol.statistics["steps"] < 200
    exact = 0.9 * np.exp(1.1 * np.sin(times))
    np.testing.assert_allclose(sol["y"], exact, rtol=3e-9)
    np.testing.assert_allclose(sol(times)["y"], exact, rtol=1e-7)
    fsa = dh.forward_sensitivity(system, (0, 9), t_eval=times, **TIGHT)
    np.testing.assert_allclose(fsa["y"][:, 0], np.sin(times) * exact, atol=1e-8)
    np.testing.assert_allclose(fsa["y"][:, 1], exact / 0.9, atol=1e-8)


def test_the_adjoint_over_time() -> None:
    """Between the points of the steps it is integrated along their polynomials."""
    m = dh.HybridModel("decay")
    k = m.parameter("k", 0.7)
    y = m.differential("y")
    m.initial(m.mode("run", ode={y: -k * y}), {y: 2.0})
    m.functional("area", integrand=y)
    asa = dh.adjoint_gradient(m.build(), (0, 3), **TIGHT)
    times = np.linspace(0, 3, 13)
    np.testing.assert_allclose(asa.adjoint(times)["y"], (1 - np.exp(-0.7 * (3 - times))) / 0.7, atol=1e-8)


def test_steps_go_round_what_has_no_numbers() -> None:
    """Beyond the event the equations are not defined: a step that goes there is made again, shorter."""
    m = dh.HybridModel("q")
    y, n = m.differential("y"), m.memory("n", initial=0.0)
    fall, rise = m.mode("fall", ode={y: -ca.sqrt(y)}), m.mode("rise", ode={y: ca.sqrt(y)})
    m.transition(fall, rise, guard=y - 0.01, direction="falling", memory={n: n + 1})
    m.transition(rise, fall, guard=y - 1, direction="rising")
    m.initial(fall, {y: 1.0})
    sol = dh.simulate(m.build(), (0, 20), **TIGHT)
    np.testing.assert_allclose([e.time for e in sol.events], 1.8 * np.arange(1, len(sol.events) + 1), rtol=1e-8)
    assert len(sol.events) == 11


def test_equations_that_fail_say_so(built: Any) -> None:
    def model() -> dh.HybridModel:
        m = dh.HybridModel("q")
        y = m.differential("y")
        m.initial(m.mode("run", ode={y: -1 / ca.sqrt(y)}), {y: 1.0})
        return m

    with pytest.raises(dh.IntegrationError, match="NaN") as caught:
        dh.simulate(built(model), (0, 2), **ERK)
    assert caught.value.trajectory.t[-1] == pytest.approx(2 / 3, abs=1e-3)


def test_a_first_step_does_not_jump_over_the_next_event(built: Any, models: Any) -> None:
    """Steps go on after an event as they were before; flights become shorter than that."""
    sol = dh.simulate(built(models.ball), (0, 4), parameters={"e": 0.3}, rtol=1e-3, atol=1e-3, on_zeno="end", **ERK)
    flights = np.diff([e.time for e in sol.events])
    assert len(flights) > 5
    np.testing.assert_allclose(flights[1:4] / flights[:3], 0.3, rtol=1e-6)


@pytest.mark.parametrize("roots", [(6.47, 6.85, 8.07), (2.44, 2.49, 20.0), (3.0, 3.1, 20.0), (1.0, 1.2, 8.9)])
def test_crossings_within_one_step(roots: tuple[float, ...]) -> None:
    m = dh.HybridModel("q")
    s, n = m.differential("s"), m.differential("n")
    run = m.mode("run", ode={s: 1.0, n: 0.0})
    guard = (s - roots[0]) * (s - roots[1]) * (s - roots[2])
    m.transition(run, run, guard=guard, direction="both", reset={n: n + 1})
    m.initial(run, {s: 0.0, n: 0.0})
    sol = dh.simulate(m.build(), (0, 10), rtol=1e-6, **ERK)
    np.testing.assert_allclose([e.time for e in sol.events], [r for r in roots if r < 10], atol=1e-6)


def test_auto_takes_explicit_steps_and_changes_over_where_it_is_stiff(built: Any, models: Any) -> None:
    assert {s.method for s in dh.simulate(built(models.ball), (0, 2)).segments} == {"erk"}
    m = dh.HybridModel("q")
    rate = m.parameter("rate", 1e5)
    y = m.differential("y")
    m.initial(m.mode("run", ode={y: -rate * (y - ca.cos(m.time))}), {y: 0.0})
    m.functional("G", integrand=y)
    sol = dh.simulate(m.build(), (0, 10))
    assert {s.method for s in sol.segments} == {"bdf"}
    late = dh.HybridModel("late")
    z = late.differential("z")
    late.initial(late.mode("run", ode={z: -ca.exp(late.time) * (z - ca.cos(late.time))}), {z: 0.0})
    methods = [s.method for s in dh.simulate(late.build(), (0, 12)).segments]
    assert methods == ["erk", "bdf"]


@pytest.mark.parametrize("order", [1, 10])
def test_orders_there_are_not(order: int, system: dh.HybridSystem) -> None:
    with pytest.raises(dh.OptionError, match="max_order is at"):
        dh.simulate(system, (0, 1), max_order=order, **ERK)


def test_refusals(built: Any, models: Any) -> None:
    implicit = models.circuit().build(eliminate=False)
    with pytest.raises(dh.UnsupportedError, match="method='erk' needs modes without algebraic variables"):
        dh.simulate(implicit, (0, 1), **ERK)
    with pytest.raises(dh.UnsupportedError, match="needs compiled equations") as caught:
        dh.simulate(built(models.ball, native=False), (0, 1), **ERK)
    assert "adams" in str(caught.value)
    with pytest.raises(dh.UnsupportedError, match="no method 'erk'"):
        dh.simulate(built(models.ball), (0, 1), adapter="scipy", **ERK)


def test_orders_do_not_get_in_each_other_s_way(system: dh.HybridSystem) -> None:
    """Tables of few and of many stages in turn, in every analysis."""
    values = {}
    for order in (9, 2, 5, 9, 2, 5):
        found = dh.adjoint_gradient(system, (0, 3), max_order=order, **TIGHT).gradient
        forward = dh.forward_sensitivity(system, (0, 3), max_order=order, **TIGHT).gradient["G"]
        np.testing.assert_allclose(found, forward, rtol=1e-6)
        assert values.setdefault(order, found.tobytes()) == found.tobytes()


# -- where steps that suit the state do not suit the rest -----------------------------------------------------------


@pytest.mark.parametrize(("rate", "at", "end"), [(10.0, 2.0, 20.0), (40.0, 3.0, 10.0), (3.0, 7.0, 30.0)])
def test_a_guard_of_many_decades(rate: float, at: float, end: float) -> None:
    """Its values at the ends of a step say nothing about how large it is where it crosses."""
    m = dh.HybridModel("diode")
    a = m.parameter("a", at)
    x, n = m.differential("x"), m.memory("n", initial=0.0)
    off, on = m.mode("off", ode={x: 1.0}), m.mode("on", ode={x: 1.0})
    m.transition(off, on, guard=ca.exp(rate * (x - a)) - 1, direction="rising", memory={n: n + 1})
    m.initial(off, {x: 0.0})
    m.functional("G", integrand=n * x, terminal=n)
    system = m.build()
    fsa = dh.forward_sensitivity(system, (0, end), **ERK)
    assert [e.time for e in fsa.events] == pytest.approx([at], rel=1e-12)
    assert abs(fsa.events[0].guard) < 1e-10
    assert fsa.gradient["G"][0] == pytest.approx(-at, rel=1e-6)
    assert dh.adjoint_gradient(system, (0, end), **ERK).gradient[0] == pytest.approx(-at, rel=1e-6)


def test_a_guard_may_jump_through_zero() -> None:
    m = dh.HybridModel("q")
    x = m.differential("x")
    run = m.mode("run", ode={x: 1.0})
    m.transition(run, None, guard=ca.if_else(x < 2.5, -1.0, 1.0) + 0 * x, direction="rising")
    m.initial(run, {x: 0.0})
    system = m.build()
    for method in ("erk", "adams"):
        assert dh.simulate(system, (0, 5), method=method).events[0].time == pytest.approx(2.5, rel=1e-12)


def test_a_pole_is_no_zero() -> None:
    m = dh.HybridModel("q")
    x = m.differential("x")
    run = m.mode("run", ode={x: 1.0})
    m.transition(run, None, guard=1 / (x - 2.5), direction="both")
    m.initial(run, {x: 0.0})
    with pytest.raises((dh.EventError, dh.NonFiniteError)):
        dh.simulate(m.build(), (0, 5), **ERK)


def at_rest() -> dict[str, tuple[Any, float, Any]]:
    """Name: model, end, exact gradient. The nominal solution has long steps; what the parameters do does not."""

    def oscillator() -> dh.HybridModel:
        m = dh.HybridModel("oscillator")
        x0 = m.parameter("x0", 0.0)
        x, v = m.differential("x"), m.differential("v")
        m.initial(m.mode("run", ode={x: v, v: -9 * x}), {x: x0, v: 0.0})
        m.functional("G", terminal=x)
        return m

    def forced() -> dh.HybridModel:
        m = dh.HybridModel("forced")
        p = m.parameter("p", 0.0)
        x = m.differential("x")
        m.initial(m.mode("run", ode={x: -x + p * ca.cos(20 * m.time)}), {x: 1.0})
        m.functional("G", terminal=x)
        return m

    def cost() -> dh.HybridModel:
        m = dh.HybridModel("cost")
        p = m.parameter("p", 0.0)
        x = m.differential("x")
        m.initial(m.mode("run", ode={x: 1.0}), {x: 0.0})
        m.functional("G", integrand=p * ca.sin(7 * m.time) ** 2)
        return m

    end = 10.0
    response = (np.cos(20 * end) + 20 * np.sin(20 * end) - np.exp(-end)) / 401
    return {
        "oscillator": (oscillator, end, np.cos(3 * end)),
        "forced": (forced, end, response),
        "cost": (cost, end, end / 2 - np.sin(14 * end) / 28),
    }


@pytest.mark.parametrize("name", at_rest())
def test_the_adjoint_is_resolved_where_the_state_stands_still(name: str) -> None:
    model, end, exact = at_rest()[name]
    system = model().build()
    for rtol in (1e-6, 1e-9):
        more: dict[str, Any] = {"rtol": rtol, "atol": rtol * 1e-2, **ERK}
        asa = dh.adjoint_gradient(system, (0, end), **more)
        assert asa.gradient[0] == pytest.approx(exact, abs=200 * rtol)
        assert dh.forward_sensitivity(system, (0, end), **more).gradient["G"][0] == pytest.approx(exact, abs=200 * rtol)
        assert asa.statistics["steps"] > asa.trajectory.statistics["steps"]


def test_the_steps_of_an_adjoint_have_a_limit() -> None:
    """The effect of a parameter with the value zero needs far more steps than the run."""
    m = dh.HybridModel("q")
    p = m.parameter("p", 0.0)
    x = m.differential("x")
    m.initial(m.mode("run", ode={x: -x}), {x: 1.0})
    m.functional("G", integrand=p * ca.cos(1e4 * m.time) ** 2)
    with pytest.raises(dh.StepLimitError):
        dh.adjoint_gradient(m.build(), (0, 10), max_steps=2000, **TIGHT)


def test_runs_are_the_same_to_the_bit_whatever_came_before(built: Any, models: Any) -> None:
    """First and later calls, a call after a failure, and a call with a memory used with other options."""
    system = models.em().build()
    first: dict[str, Any] = {"method": "erk", "first_step": 1e-3}
    base = dh.simulate(system, (0, 3), **first)
    for _ in range(3):
        with pytest.raises(dh.StepLimitError):
            dh.simulate(system, (0, 3), max_steps=30, **first)
        dh.adjoint_gradient(system, (0, 3), rtol=1e-4, atol=1e-7, method="erk")
        again = dh.simulate(system, (0, 3), **first)
        assert again.functionals == base.functionals
        np.testing.assert_array_equal(again.t, base.t)


def test_what_a_step_evaluates(system: dh.HybridSystem) -> None:
    """One right-hand side per stage in accepted and rejected steps; few steps are rejected."""
    em = em_hysteresis.system()
    smooth = dh.simulate(system, (0, 5), parameters={"c": 50.0}, method="erk", rtol=1e-8, atol=1e-12)
    assert not smooth.events
    counts = smooth.statistics
    stages = table_of(7).b.size
    assert counts["nfev"] <= stages * (counts["steps"] + counts["error_test_failures"]) + 4 * stages
    counts = dh.simulate(em, em_hysteresis.t_span, method="erk", rtol=1e-8, atol=1e-12).statistics
    assert counts["error_test_failures"] < 0.12 * counts["steps"]
    # locating an event takes a few additional steps
    events = counts["nfev"] - stages * (counts["steps"] + counts["error_test_failures"])
    assert events < 9 * stages * 19


@pytest.mark.parametrize("method", ["erk", "adams", "bdf"])
def test_a_guard_that_comes_back_within_a_long_step(method: str) -> None:
    """Slow equations, long steps: a guard of time that dips below zero for a hundredth of the run is found."""
    for depth in (1e-2, 1e-4):
        m = dh.HybridModel("dip")
        k, y = m.parameter("k", 0.1), m.differential("y")
        run = m.mode("run", ode={y: -k * y})
        after = m.mode("after", ode={y: -2 * k * y})
        m.transition(run, after, guard=(m.time - 2.0) ** 2 - depth + 0 * y, direction="falling")
        m.initial(run, {y: 1.0})
        m.functional("G", terminal=y)
        sol = dh.simulate(m.build(), (0, 4), method=method, rtol=1e-6, atol=1e-8)
        assert [event.time for event in sol.events] == [pytest.approx(2.0 - np.sqrt(depth), abs=1e-9)]
        assert sol.functionals["G"] == pytest.approx(np.exp(-0.1 * (4 + 2 + np.sqrt(depth))), rel=1e-5)


@pytest.mark.parametrize("order", [5, 6, 7, 8, 9])
@pytest.mark.parametrize("c", [0.9, 0.999])
def test_short_excursions_between_long_steps(order: int, c: float) -> None:
    """x = sin t is above c for a moment in every period: seen once each, where the tolerance keeps the amplitude."""
    m = dh.HybridModel("excursions")
    w, x, v, k = m.parameter("w", 1.0), *(m.differential(name) for name in "xvk")
    run = m.mode("run", ode={x: v, v: -w * x, k: 0 * k})
    m.transition(run, run, guard=x - c, direction="rising", reset={k: k + 1})
    m.initial(run, {x: 0.0, v: 1.0, k: 0.0})
    system = m.build()
    for rtol in (1e-4, 1e-6, 1e-8) if c > 0.99 else (1e-3, 1e-5, 1e-8, 1e-11):
        sol = dh.simulate(system, (0, 60), rtol=rtol, atol=rtol, method="erk", max_order=order)
        assert [event.time for event in sol.events] == pytest.approx(
            np.arcsin(c) + 2 * np.pi * np.arange(10), abs=200 * rtol / np.sqrt(1 - c**2)
        )


def test_an_order_without_a_table() -> None:
    assert table_of(8).name == table_of(7).name
    assert table_of(9).b.size == 16


DIVES = (
    (0.8638215550708457, 5.6563628900876, -0.7292585119024927, 3.733270911945194, 5.218005384720632e-4),
    (4.625120571574116, 1.918692476886141, -0.6951001957794782, 8.918201095637217, 3.865981479766023e-06),
)


@pytest.mark.parametrize(("c", "phase", "a", "end", "tolerance"), DIVES)
def test_a_dive_within_one_step(c: float, phase: float, a: float, end: float, tolerance: float) -> None:
    """A guard linear in x goes below zero and back between two steps; the cubics of x and of the guard are one."""
    m = dh.HybridModel("dive")
    s, x, n = m.parameter("s", phase), m.differential("x"), m.differential("n")
    run = m.mode("run", ode={x: ca.sin(m.time + s) + a, n: 0 * x})
    m.transition(run, run, guard=x, direction="falling", reset={n: n + 1 + m.time})
    m.initial(run, {x: c, n: 0.0})
    m.functional("G", terminal=n)

    def value(t: float) -> float:
        return c + np.cos(phase) - np.cos(t + phase) + a * t

    grid = np.linspace(0, end, 4001)
    falls = [(p, q) for p, q in pairwise(grid.tolist()) if value(p) > 0 >= value(q)]
    exact = [brentq(value, *bracket) for bracket in falls]
    assert len(exact) == 2
    system, options = m.build(), {"method": "erk", "rtol": tolerance, "atol": tolerance}
    sol = dh.simulate(system, (0, end), **options)
    assert [event.time for event in sol.events] == pytest.approx(exact, abs=100 * tolerance)
    # dt/ds of every crossing, from x(t, s) = 0
    rates = [-(np.sin(t + phase) - np.sin(phase)) / (np.sin(t + phase) + a) for t in exact]
    asa = dh.adjoint_gradient(system, (0, end), **options)
    assert asa.gradient[0] == pytest.approx(sum(rates), rel=1e-2)


@pytest.mark.parametrize("first_step", [None, 0.3, 1.0])
@pytest.mark.parametrize("rtol", [1e-4, 1e-6, 1e-8])
def test_one_shallow_crossing_fires_once(first_step: float | None, rtol: float) -> None:
    """x'' = exp(-t): the state at the event carries more rounding than a guard that is almost zero is worth."""
    m = dh.HybridModel("shallow")
    c, x, v, n = m.parameter("c", 0.0), *(m.differential(name) for name in "xvn")
    run = m.mode("run", ode={x: v, v: ca.exp(-m.time), n: 0 * x})
    m.transition(run, run, guard=x, direction="falling", reset={n: n + 1})
    m.initial(run, {x: c, v: -0.5, n: 0.0})
    system = m.build()
    for depth in (1e-3, 3e-3, 1e-2):
        for end in (1.5, 2.5, 8.0):
            start = {"c": 0.5 - np.log(2) / 2 - depth}
            sol = dh.simulate(
                system, (0, end), parameters=start, method="erk", rtol=rtol, atol=rtol / 100, first_step=first_step
            )
            assert len(sol.events) == sol["n"][-1] == 1
