"""Adjoints of segments that are long relative to their fastest time scale.

Robertson's problem (Mazzia and Magherini, Test Set for Initial Value Problem Solvers; Hairer and Wanner, Solving
Ordinary Differential Equations II, IV.1): its adjoint falls onto the slow manifold within 1e-4 of the end, which at
1e11 is ten times the distance of two numbers.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh

NAMES = ("terminal", "integral", "fast")


@cache
def robertson(form: str, native: bool = True) -> dh.HybridSystem:
    """Robertson's problem as ODE, with y1 + y2 + y3 = 1 solved for y3, or with that as an implicit equation."""
    m = dh.HybridModel("robertson")
    k1, k2, k3 = m.parameter("k1", 0.04), m.parameter("k2", 3e7), m.parameter("k3", 1e4)
    y1, y2 = m.differential("y1"), m.differential("y2")
    y3 = m.differential("y3") if form == "ode" else m.algebraic("y3", guess=0.0)
    loss, gain, fast = k1 * y1, k3 * y2 * y3, k2 * y2**2
    rates = {y1: gain - loss, y2: loss - gain - fast}
    if form == "ode":
        only = m.mode("only", ode=rates | {y3: fast})
        m.initial(only, {y1: 1.0, y2: 0.0, y3: 0.0})
    else:
        only = m.mode("only", ode=rates, algebraic=[y1 + y2 + y3 - 1])
        m.initial(only, {y1: 1.0, y2: 0.0})
    m.functional("terminal", terminal=y1)
    m.functional("integral", integrand=y1)
    m.functional("fast", integrand=y2)
    return m.build(native=native, eliminate=form != "implicit")


@cache
def by_forward_analysis(t_end: float) -> dict[str, Any]:
    found = dh.forward_sensitivity(robertson("ode"), (0, t_end), rtol=1e-11, atol=1e-18)
    return dict(found.gradient)


def relative_error(system: dh.HybridSystem, t_end: float, name: str, rtol: float, atol: float, **more: Any) -> float:
    found = dh.adjoint_gradient(system, (0, t_end), name, rtol=rtol, atol=atol, **more)
    return float(np.abs(found.gradient / by_forward_analysis(t_end)[name] - 1).max())


@pytest.mark.parametrize("t_end", [40.0, 1e4, 1e7, 1e10, 1e11])
@pytest.mark.parametrize("form", ["ode", "eliminated", "implicit"])
def test_an_end_far_from_the_start_leaves_the_adjoint_its_layer(form: str, t_end: float) -> None:
    """Counted from zero, the steps of the layer were shorter than what time resolves there: `StepSizeError`."""
    atol = 1e-6 if form == "implicit" else 1e-8  # y3 = 1 - y1 - y2 is known to rounding only
    for rtol in (1e-4, 1e-6, 1e-8):
        errors = [relative_error(robertson(form), t_end, name, rtol, atol * rtol) for name in NAMES]
        assert max(errors) < 300 * rtol, (rtol, errors)


def test_tight_tolerances_too() -> None:
    for form, atol in (("ode", 1e-17), ("implicit", 1e-14)):
        errors = [relative_error(robertson(form), 1e10, name, 1e-10, atol) for name in NAMES]
        assert max(errors) < 1e-7


def test_the_python_loop_counts_time_alike() -> None:
    for form in ("ode", "implicit"):
        assert relative_error(robertson(form, native=False), 1e10, "integral", 1e-6, 1e-12) < 3e-4


def relaxation(rate: Callable[..., Any]) -> dh.HybridSystem:
    """x' = -k (x - c), slow' = x / 1e9, from x = c."""
    m = dh.HybridModel("relaxation")
    k, c = m.parameter("k", 1e6), m.parameter("c", 2.0)
    x, slow = m.differential("x"), m.differential("slow")
    only = m.mode("only", ode={x: -k * (x - c), slow: x / 1e9})
    m.initial(only, {x: 2.0, slow: 0.0})
    m.functional("G", terminal=rate(x, slow))
    return m.build()


@pytest.mark.parametrize("start", [0.0, -1.0, 1.0, 100.0])
def test_where_the_segment_starts_does_not_matter(start: float) -> None:
    found = dh.adjoint_gradient(relaxation(lambda x, slow: x + slow), (start, 1e9), "G", method="bdf", rtol=1e-9)
    assert found.gradient[1] == pytest.approx(1 + (1e9 - start) / 1e9, rel=1e-7)
    assert found.gradient[0] == pytest.approx(0.0, abs=1e-12)


def test_samples_within_the_layer() -> None:
    """The adjoint at times is that of the true time, whatever the solver counts from."""
    t_end, k = 1e9, 1e6
    found = dh.adjoint_gradient(relaxation(lambda x, slow: x), (0, t_end), "G", method="bdf", rtol=1e-8)
    times = t_end - np.array([0.0, 2e-7 * 5, 5e-6, 1e-3, 5e8])
    for t in times.tolist():
        assert found.adjoint(t)["x"] == pytest.approx(np.exp(-k * (t_end - t)), abs=1e-6)


def _contact(name: str, native: bool) -> tuple[dh.HybridSystem, float, float]:
    """Motion along x that something short changes: a system, the time of its end and d x / d parameter there."""
    m = dh.HybridModel(name)
    c, x = m.parameter("c", 0.5), m.differential("x")
    m.functional("G", terminal=x)
    if name == "penalty":  # x is thrown back: x(t) = 2 c + pi v / omega - ... , at the speed it came with
        v = m.differential("v")
        m.initial(m.mode("run", ode={x: v, v: -1e4 * ca.fmax(x - c, 0)}), {x: 0.0, v: 1.0})
        return m.build(native=native), 1.5, 2.0
    where = m.time if name == "pulse" else x
    rise = (1 + ca.tanh(1000 * (x - c))) / 2 if name == "step" else ca.fmin(ca.fmax(10 * (where - c), 0), 1)
    m.initial(m.mode("run", ode={x: 1 + rise}), {x: 0.0})
    return m.build(native=native), 1.0, -1.0


@pytest.mark.parametrize(
    ("method", "native"), [("bdf", True), ("bdf", False), ("adams", True), ("adams", False), ("erk", True)]
)
@pytest.mark.parametrize("name", ["ramp", "pulse", "step", "penalty"])
@pytest.mark.uncertified
def test_the_adjoint_meets_what_the_run_has_resolved(name: str, method: str, native: bool) -> None:
    """The whole gradient comes from a short part of the run, behind a long one where the adjoint stands still."""
    system, end, truth = _contact(name, native)
    for rtol, accuracy in (1e-5, 5e-2), (1e-7, 1e-3), (1e-9, 1e-4):
        asa = dh.adjoint_gradient(system, (0, end), rtol=rtol, atol=rtol / 100, method=method)
        np.testing.assert_allclose(asa.gradient, [truth], rtol=accuracy, err_msg=str(rtol))


@pytest.mark.parametrize(
    ("method", "rtol"), [("bdf", 1e-6), ("bdf", 1e-7), ("adams", 1e-6), ("erk", 1e-6), ("erk", 1e-7)]
)
@pytest.mark.uncertified
def test_the_adjoint_meets_a_pulse_soon_after_an_event(method: str, rtol: float) -> None:
    """Forward steps have grown from nothing since the event, and backward steps were as long as they became later."""
    m = dh.HybridModel("late pulse")
    c, y = m.parameter("c", 2.0), m.differential("y")
    run = m.mode("run", ode={y: 200 * ca.exp(-(((m.time - c) / 0.005) ** 2)) * (1 + 0.1 * y) - 0.1 * y})
    m.transition(run, run, at=1.945, reset={y: 1.1 * y})
    m.initial(run, {y: 0.5})
    m.functional("G", terminal=y)
    asa = dh.adjoint_gradient(m.build(), (0, 6), rtol=rtol, atol=rtol / 100, method=method)
    np.testing.assert_allclose(asa.gradient, [0.12998888], rtol=1e-2)


@pytest.mark.parametrize("adapter", ["casadi", "scipy", "scikits-odes"])
@pytest.mark.uncertified
def test_other_adapters_meet_it(adapter: str) -> None:
    for name in ("ramp", "step", "penalty"):
        system, end, truth = _contact(name, True)
        asa = dh.adjoint_gradient(system, (0, end), rtol=1e-6, atol=1e-8, adapter=adapter)
        np.testing.assert_allclose(asa.gradient, [truth], rtol=1e-2, err_msg=name)
