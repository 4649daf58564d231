"""Shallow crossings, and crossings with the rate of fast modes, are refused with the right reason."""

from __future__ import annotations

import warnings
from functools import cache

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh


@cache
def charged(n: int = 50) -> dh.HybridSystem:
    """A cell that is charged at constant current, then at constant voltage until the current has fallen."""
    m = dh.HybridModel("charged")
    diffusivity, rate, current0 = m.parameter("D", 2e-2), m.parameter("k", 1.0), m.parameter("I0", 0.05)
    c, current, voltage = m.differential("c", size=n), m.algebraic("I", guess=0.05), m.algebraic("V", guess=0.6)
    h = 1.0 / n
    flux = ca.vertcat(0, diffusivity * (c[1:] - c[:-1]) / h, current)
    surface = c[n - 1] + current * h / 2 / diffusivity
    exchange = rate * 0.3 * ca.sqrt(surface * (1 - surface))
    law = surface + 0.1 * ca.log(surface / (1 - surface)) + 0.2 * ca.asinh(current / (2 * exchange)) - voltage
    ode = {c: (flux[1:] - flux[:-1]) / h}
    steady = m.mode("steady", ode=ode, algebraic=[current - current0, law])
    held = m.mode("held", ode=ode, algebraic=[voltage - 0.75, law])
    rest = m.mode("rest", ode=ode, algebraic=[current, law])
    m.transition(steady, held, guard=voltage - 0.75, direction="rising", name="full")
    m.transition(held, rest, guard=current - 2e-4, direction="falling", name="cut-off")
    m.initial(steady, {c: 0.3 * np.ones(n)})
    m.functional("G", integrand=current)
    return m.build()


@cache
def exact() -> np.ndarray:
    """The gradient of `charged` at a tolerance that resolves the rate."""
    with pytest.warns(dh.ConditionWarning, match="multiplies the error of fast states"):
        return dh.forward_sensitivity(charged(), (0, 400), rtol=1e-9, atol=1e-11).gradient["G"]


@pytest.mark.parametrize("rtol", [1e-5, 3e-6, 1e-6, 3e-7, 1e-7])
def test_a_rate_that_is_noise_of_fast_modes_is_refused_for_that(rtol: float) -> None:
    """At 1e-6 the rate of the current is wrong by a tenth where it reaches the cut-off, and so was the gradient."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dh.ConditionWarning)
        refused = ""
        try:
            fsa = dh.forward_sensitivity(charged(), (0, 400), rtol=rtol, atol=rtol / 100, method="bdf")
        except dh.EventError as error:
            refused = str(error)
    if refused:
        assert "crosses zero well, but its rate is that of fast states" in refused
        return
    np.testing.assert_allclose(fsa.gradient["G"], exact(), rtol=0, atol=1e-3 * np.abs(exact()).max())


def turning(depth: float, *, stiff: bool) -> dh.HybridSystem:
    """cos(t - 1) - 1 rises to zero at t = 1, which is `depth` beyond the threshold, and falls again."""
    m = dh.HybridModel("turning")
    p, y, count = m.parameter("p", depth), m.differential("y"), m.differential("n")
    wave, slope = ca.cos(m.time - 1) - 1, -ca.sin(m.time - 1)
    rate = -1e4 * (y - wave) + slope if stiff else slope
    run, after = m.mode("run", ode={y: rate, count: 0.0}), m.mode("after", ode={y: rate, count: 1.0})
    m.transition(run, after, guard=y + p, direction="rising", name="turn")
    m.initial(run, {y: np.cos(1) - 1, count: 0.0})
    m.functional("G", terminal=count)
    return m.build()


@pytest.mark.parametrize("stiff", [False, True], ids=["slow", "stiff"])
def test_a_crossing_that_time_turns_round_is_refused(stiff: bool) -> None:
    """The crossing is refused in a stiff mode, too, where the remaining curvature depends on time only."""
    with pytest.raises(dh.GrazingError):
        dh.forward_sensitivity(turning(2e-8, stiff=stiff), (0, 2), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("stiff", [False, True], ids=["slow", "stiff"])
def test_a_crossing_that_is_deep_enough_is_not(stiff: bool) -> None:
    """y rises to 1e-2 beyond the threshold: d(2 - t)/dp = 1 / sin(t - 1) with cos(t - 1) = 1 - p."""
    fsa = dh.forward_sensitivity(turning(1e-2, stiff=stiff), (0, 2), rtol=1e-7, atol=1e-9)
    assert fsa.gradient["G"][0] == pytest.approx(1 / np.sin(np.arccos(1 - 1e-2)), rel=1e-3)


@pytest.mark.parametrize("native_events", [True, False])
def test_a_guard_that_fires_slowly_at_once(native_events: bool) -> None:
    """x' = v, v' = -1 from x = 0, v = -1e-6: no segment comes before the event."""
    m = dh.HybridModel("at once")
    q = m.parameter("q", 1.0)
    x, v, f = (m.differential(name) for name in "xvf")
    wait, fall = m.mode("wait", ode={x: 0, v: 0, f: 1}), m.mode("fall", ode={x: v, v: -1, f: 0})
    m.transition(wait, fall, guard=f - q, direction="rising", reset={v: -1e-6 * q})
    m.transition(fall, None, guard=x, direction="falling")
    m.initial(wait, {x: 0.0, v: 0.0, f: 0.0})
    m.functional("G", terminal=x + f)
    system, given = m.build(), {"rtol": 1e-8, "atol": 1e-12, "native_events": native_events}
    with pytest.raises(dh.GrazingError, match="whether it crosses is chance"):
        dh.forward_sensitivity(system, (0, 3), **given)
