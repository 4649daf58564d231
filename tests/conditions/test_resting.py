"""Kinks of equations and integrands at which a run rests: one-sided derivatives are refused, others are given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.conditions import resting
from dae_hybrid.port.record_table import RecordTable
from dae_hybrid.trajectory.trajectory import Segment

TIGHT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}
#: rates of z in x' = -a x, y' = -b y with x(0) = y(0) = a = b = 1, and dz/d(a, b) at 1, None where there are two
F = np.exp(-1.0)
BY_A = -(1 - 2 * F)  # of the integral of x
RATES: dict[str, tuple[Callable[[ca.MX, ca.MX], ca.MX], tuple[float, float] | None]] = {
    "fmax": (ca.fmax, None),
    "fabs": (lambda x, y: ca.fabs(x - y), None),
    "norm_1": (lambda x, y: ca.norm_1(ca.vertcat(x - y, x)), None),
    "mmax": (lambda x, y: ca.mmax(ca.vertcat(x, y, -y)), None),
    "under a root": (lambda x, y: ca.sqrt(ca.fmax(x, y)), None),
    "a denominator": (lambda x, y: 1 / ca.fmax(x, y), None),
    "norm_inf": (lambda x, y: ca.norm_inf(ca.vertcat(x, y)), None),
    "within another": (lambda x, y: ca.fmax(ca.fabs(x - y), x - 2), None),
    "in a function": (lambda x, y: ca.Function("f", [a := ca.SX.sym("a")], [ca.fabs(a)])(x - y), None),
    "hidden by another": (lambda x, y: ca.fmax(ca.fabs(x - y) + y, 2 + x), (BY_A, 0.0)),
    "cancelled": (lambda x, y: ca.fmax(x, y) + ca.fmin(y, x), (BY_A, BY_A)),
    "squared": (lambda x, y: x + ca.fmax(x - y, 0) ** 2, (BY_A, 0.0)),
    "marked": (lambda x, y: x + dh.smooth(ca.fabs(x - y) ** 1.0 * 0), (BY_A, 0.0)),
    "passed": (lambda x, y: x + ca.fabs(x - y + x - 0.5) - ca.fabs(0.5 - 2 * x + y), (BY_A, 0.0)),
    "constant": (lambda x, y: x + ca.fabs(x - x), (BY_A, 0.0)),
}


def model(rate: Callable[[ca.MX, ca.MX], ca.MX], where: str) -> dh.HybridModel:
    m = dh.HybridModel("resting")
    a, b = m.parameter("a", 1.0), m.parameter("b", 1.0)
    x, y = m.differential("x"), m.differential("y")
    ode, start, more = {x: -a * x, y: -b * y}, {x: 1.0, y: 1.0}, dict[str, Any]()
    if where == "ode":
        z = m.differential("z")
        ode[z], start[z] = rate(x, y), 0.0
        m.functional("G", terminal=z)
    elif where == "algebraic":
        w = m.algebraic("w")
        more["algebraic"] = w + 0.1 * w**3 - rate(x, y) - 0.1 * rate(x, y) ** 3
        m.functional("G", integrand=w)
    else:
        m.functional("G", integrand=rate(x, y))
    m.functional("H", integrand=x * y)
    m.initial(m.mode("run", ode=ode, **more), start)
    return m


def both(system: dh.HybridSystem, t_end: float = 1.0, **options: Any) -> list[np.ndarray]:
    forward = dh.forward_sensitivity(system, (0, t_end), **TIGHT, **options)
    return [forward.gradient["G"], dh.adjoint_gradient(system, (0, t_end), functional="G", **TIGHT, **options).gradient]


@pytest.mark.parametrize("where", ["ode", "integrand", "algebraic"])
@pytest.mark.parametrize("name", RATES)
def test_kinks_of_equations_and_integrands(name: str, where: str) -> None:
    rate, exact = RATES[name]
    system = model(rate, where).build(native=False)
    if exact is not None:
        for gradient in both(system):
            assert gradient == pytest.approx(exact, rel=1e-6, abs=1e-7)
        return
    for analyse in (dh.forward_sensitivity, dh.adjoint_gradient):
        options: dict[str, Any] = {"functional": "G"} if analyse is dh.adjoint_gradient else {}
        with pytest.raises(dh.EventError, match="rests at the kink"):
            analyse(system, (0, 1), **TIGHT, **options)
        with pytest.warns(dh.DerivativeWarning, match="one-sided"):
            analyse(system, (0, 1), strict=False, **TIGHT, **options)


def test_a_functional_that_does_not_see_the_kink_has_a_derivative() -> None:
    system = model(lambda x, y: ca.fabs(x - y), "integrand").build(native=False)
    found = dh.adjoint_gradient(system, (0, 1), functional="H", **TIGHT).gradient
    exact = -(1 - 3 * F**2) / 4
    assert found == pytest.approx([exact, exact], rel=1e-6)


def test_directions_that_keep_the_kink_have_a_derivative() -> None:
    m = dh.HybridModel("kept")
    a, c = m.parameter("a", 1.0), m.parameter("c", 1.0)
    x, y = m.differential("x"), m.differential("y")
    m.initial(m.mode("run", ode={x: -a * x, y: -a * y}), {x: c, y: c})
    m.functional("G", integrand=ca.fmax(x, y))
    for gradient in both(m.build(native=False)):
        assert gradient == pytest.approx([BY_A, 1 - F], rel=1e-6)


@pytest.mark.parametrize("kinks", ["integrate", "events"])
@pytest.mark.parametrize("method", ["bdf", "adams"])
@pytest.mark.parametrize("t_eval", [None, [0.0, 3.0]])
def test_rest_in_the_middle_of_a_segment(kinks: Any, method: str, t_eval: list[float] | None) -> None:
    """x = (1 - t)^2 up to 1, (t - 2)^2 from 2 on, and 0 between: one-sided derivatives 3/2 and 9/2 by b."""
    m = dh.HybridModel("middle")
    b, x, t = m.parameter("b", 0.0), m.differential("x"), m.time
    rate = -2 * ca.if_else(t < 1, 1 - t, 0) + 2 * ca.if_else(t < 2, 0, t - 2) if kinks == "events" else None
    rate = -2 * ca.fmax(1 - t, 0) + 2 * ca.fmax(t - 2, 0) if rate is None else rate
    m.initial(m.mode("run", ode={x: rate + b}), {x: 1.0})
    m.functional("G", integrand=ca.fabs(x))
    system = m.build(native=False, kinks=kinks)
    for rtol in (1e-6, 1e-9):
        with pytest.raises(dh.EventError, match="rests at the kink"):
            dh.forward_sensitivity(system, (0, 3), rtol=rtol, method=method, t_eval=t_eval)
        with pytest.raises(dh.EventError, match="rests at the kink"):
            dh.adjoint_gradient(system, (0, 3), "G", rtol=rtol, method=method)


def test_rest_in_the_middle_of_a_segment_before_an_event() -> None:
    m = dh.HybridModel("before an event")
    b, x, n, t = m.parameter("b", 0.0), m.differential("x"), m.memory("n", initial=0), m.time
    run = m.mode("run", ode={x: -2 * ca.fmax(1 - t, 0) + 2 * ca.fmax(t - 2, 0) + b})
    m.transition(run, run, at=2.75, memory={n: n + 1}, name="T")
    m.initial(run, {x: 1.0})
    m.functional("G", integrand=ca.fabs(x))
    system = m.build()
    for native in (True, False):
        for t_eval in (None, [0.0, 3.0]):
            with pytest.raises(dh.EventError, match="rests at the kink"):
                dh.forward_sensitivity(system, (0, 3), t_eval=t_eval, native_events=native, **TIGHT)


@pytest.mark.parametrize("start", [0.0, 1.0])
def test_a_kink_that_is_left_at_once_has_a_derivative(start: float) -> None:
    """x = start + a + t^2 / 2 starts at the kink of |x - start| with rate zero, and leaves it."""
    m = dh.HybridModel("take-off")
    a, x, v = m.parameter("a", 0.0), m.differential("x"), m.differential("v")
    m.initial(m.mode("run", ode={x: v, v: 1}), {x: start + a, v: 0.0})
    m.functional("G", integrand=ca.fabs(x - start))
    for gradient in both(m.build()):
        assert gradient == pytest.approx([1.0], rel=1e-6)


@pytest.mark.parametrize("t_eval", [None, [1.0]])
@pytest.mark.parametrize(("rate", "rests"), [(ca.fabs, True), (lambda v: ca.fabs(v + 0.1), False)])
def test_rest_at_a_kink_of_a_variable_that_integrators_leave_off(rate: Any, rests: bool, t_eval: Any) -> None:
    m = dh.HybridModel("resting")
    x, y, z, w = *(m.differential(name) for name in "xyz"), m.algebraic("w")
    own = w + 0.1 * w**3 - x - 0.1 * x**3  # w = x
    m.initial(m.mode("run", ode={x: -x, y: -y, z: rate(w - y)}, algebraic=[own]), {x: 1.0, y: 1.0, z: 0.0})
    m.functional("G", terminal=z)
    run = dh.simulate(m.build(native=False), (0, 1), method="bdf", rtol=1e-6, atol=1e-8, t_eval=t_eval)
    assert bool(resting._rests(run, run.system.branches.equations, ("G",))) is rests


def test_rest_between_events_knots_and_measurements() -> None:
    """x = y until an event at t = 1, where y jumps; the kink matters before it alone."""
    for jump, late in ((0.5, False), (0.0, True)):
        m = dh.HybridModel("between")
        a, x, y = m.parameter("a", 1.0), m.differential("x"), m.differential("y")
        first = m.mode("first", ode={x: -a * x, y: -y if not late else -a * y})
        second = m.mode("second", ode={x: -a * x, y: -y})
        m.transition(first, second, at=1.0, reset={y: y + jump}, name="T")
        m.initial(first, {x: 1.0, y: 1.0})
        m.functional("G", integrand=ca.fabs(x - y), at_times={0.5: x, 1.5: x})
        with pytest.raises(dh.EventError, match="rests at the kink") as caught:
            dh.forward_sensitivity(m.build(native=False), (0, 2), **TIGHT)
        assert caught.value.mode == ("second" if late else "first")


@pytest.mark.parametrize("method", ["bdf", "adams"])
@pytest.mark.parametrize("rtol", [1e-4, 1e-6, 1e-9])
def test_a_terminal_kink_next_to_zero_is_judged_by_the_accuracy_of_the_run(method: str, rtol: float) -> None:
    """x = cos t at 5 pi / 2, where x is nothing and its error is not; the kink is as far away as the error."""
    m = dh.HybridModel("oscillator")
    p, x, v = m.parameter("p", 0.0), m.differential("x"), m.differential("v")
    m.initial(m.mode("run", ode={x: v, v: -x}), {x: 1.0, v: 0.0})
    m.functional("G", terminal=ca.fabs(x - p), at_times={5 * np.pi / 2: ca.fabs(x - p)})
    system, span = m.build(native=False), (0, 2.5 * np.pi + 1)
    for share in (0.25, 0.5, 0.75):  # where the sign is that of the error
        for t_span in (span, (0, 5 * np.pi / 2)):
            off = float(dh.simulate(system, t_span, rtol=rtol, method=method)(5 * np.pi / 2)["x"])
            with pytest.raises(dh.EventError, match="is where it changes"):
                dh.forward_sensitivity(system, t_span, parameters={"p": share * off}, rtol=rtol, method=method)
    away = dh.forward_sensitivity(system, span, parameters={"p": 0.1}, rtol=rtol, method=method)
    assert away.gradient["G"] == pytest.approx([2.0])


def test_points_of_record_tables_are_those_of_segments() -> None:
    """Two modes with states of different sizes, an eliminated variable and memory; a third one is never entered."""
    m = dh.HybridModel("tables")
    a, x, y, z, n = (
        m.parameter("a", 0.5),
        m.differential("x"),
        m.differential("y"),
        m.algebraic("z"),
        m.memory("n", initial=0.0),
    )
    one = m.mode("one", ode={x: z - x}, algebraic=[z - ca.fmax(x, a) - 1])
    two = m.mode("two", ode={x: -x + n * 0.01, y: ca.fabs(x - y)})
    m.transition(one, two, guard=x - 1.4, direction="rising", reset={x: x, y: 0.0}, memory={n: n + 1}, name="on")
    m.transition(two, one, guard=x - 0.2, direction="falling", reset={x: x}, name="off")
    never = m.mode("never", ode={x: ca.fabs(x)})
    m.transition(two, never, guard=x - 100, direction="rising", reset={x: x}, name="never")
    m.initial(one, {x: 0.0})
    m.functional("G", terminal=x)
    system = m.build()
    assert np.isfinite(dh.forward_sensitivity(system, (0, 20)).gradient["G"]).all()
    run = dh.simulate(system, (0, 20), rtol=1e-8)
    (table,) = (item for item in run.parts.given if isinstance(item, RecordTable))
    for mode in run.system.modes[:2]:
        found = resting._of_table(run, table, mode)
        segments = [s for s in run.parts.of(table) if isinstance(s, Segment) and s.mode is mode]
        expected = resting._joined([resting._of_segment(run, s, k) for k, s in enumerate(segments)])
        assert len(segments) > 3
        for own, other in zip(found[:4], expected[:4], strict=True):
            np.testing.assert_array_equal(own, other)
        numbers = [resting._segment_of(run, table, int(k)) for k in dict.fromkeys(found.owner.tolist())]
        assert [id(s) for s in numbers] == [id(s) for s in segments]
