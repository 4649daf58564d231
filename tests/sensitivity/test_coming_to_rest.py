"""Motion that comes to rest on the surface of a relation by itself, such as a tank that empties through an orifice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh

WAYS = [{}, {"method": "bdf"}, {"method": "adams"}, {"adapter": "scipy"}]
SPAN = (0.0, 5.0)
OUTFLOWS: dict[str, Callable[[Any], Any]] = {
    "a branch": lambda h: ca.if_else(h > 0, ca.sqrt(h), 0),
    "the root of a branch": lambda h: ca.sqrt(ca.if_else(h > 0, h, 0)),
}


def tank(outflow: str, *, native: bool = True, extra: Any = 0.0) -> dh.HybridSystem:
    """h' = -c sqrt(h) while there is water; y is the integral of h, and of `extra` while there is."""
    m = dh.HybridModel("tank")
    c, h0 = m.parameter("c", 1.0), m.parameter("h0", 1.5)
    h, y = m.differential("h"), m.differential("y")
    run = m.mode("run", ode={h: -c * OUTFLOWS[outflow](h), y: h + (ca.if_else(h > 0, extra, 0) if extra else 0)})
    m.initial(run, {h: h0, y: 0.0})
    m.functional("G", terminal=y)
    return m.build(native=native)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("outflow", OUTFLOWS)
def test_a_tank_that_empties(outflow: str, way: dict[str, Any], native: bool) -> None:
    """The integral of h is 2 h0^1.5 / (3 c); the derivative of the time, 2 sqrt(h0) / c, is 0 / 0 at the event."""
    system, options = tank(outflow, native=native), {"rtol": 1e-7, "atol": 1e-9, **way}
    fsa = dh.forward_sensitivity(system, SPAN, **options)
    value = 1.5**1.5 / 1.5
    assert fsa.trajectory.functionals["G"] == pytest.approx(value, rel=1e-6)
    np.testing.assert_allclose(fsa.gradient["G"], [-value, 1.5**0.5], rtol=1e-6)
    (event,) = fsa.events
    assert event.time == pytest.approx(2 * 1.5**0.5, rel=1e-3)
    assert np.isnan(fsa.event_time_sensitivity).all()
    with pytest.raises(dh.EventError, match="A backward sweep would start there"):
        dh.adjoint_gradient(system, SPAN, "G", **options)


@pytest.mark.parametrize("extra", [1.0, 1e-5])
def test_a_rate_that_jumps_there_needs_the_time(extra: float) -> None:
    with pytest.raises(dh.GrazingError, match="touches zero instead of crossing it"):
        dh.forward_sensitivity(tank("a branch", extra=extra), SPAN)


def test_a_second_tank_takes_what_the_first_one_loses() -> None:
    """g' = q - k g with q = c sqrt(h): after h is empty, g decays from the convolution of q = c (s0 - c t / 2)."""
    m = dh.HybridModel("cascade")
    c, h0, k = m.parameter("c", 1.0), m.parameter("h0", 1.5), m.parameter("k", 0.7)
    h, g = m.differential("h"), m.differential("g")
    q = ca.if_else(h > 0, c * ca.sqrt(h), 0)
    m.initial(m.mode("run", ode={h: -q, g: q - k * g}), {h: h0, g: 0.0})
    m.functional("G", terminal=g)

    def exact(c: complex, h0: complex, k: complex) -> complex:
        s0, t1 = np.sqrt(h0), 2 * np.sqrt(h0) / c
        # the integral of c (s0 - c t / 2) exp(-k (T - t)) from 0 to t1, where the bracket is zero
        return complex(c * np.exp(-k * 5.0) * (-s0 / k + c / (2 * k**2) * (np.exp(k * t1) - 1)))

    right = [exact(*(np.array([1.0, 1.5, 0.7]) + 1e-30j * row)).imag / 1e-30 for row in np.eye(3)]
    fsa = dh.forward_sensitivity(m.build(), SPAN, rtol=1e-8, atol=1e-10)
    assert fsa.trajectory.functionals["G"] == pytest.approx(exact(1.0, 1.5, 0.7).real, rel=1e-7)
    np.testing.assert_allclose(fsa.gradient["G"], right, rtol=1e-6)


COUNTS: dict[str, Callable[[Any, Any], Any]] = {
    "a > b": lambda a, b: ca.if_else(a > b, 1, 0),
    "sign": lambda a, b: ca.sign(b - a),
}


def two_tanks(counts: Any = None, *, native: bool = True) -> dh.HybridSystem:
    """Levels a and b that come together through an orifice."""
    m = dh.HybridModel("two tanks")
    c, a, b, y = m.parameter("c", 1.0), m.differential("a"), m.differential("b"), m.differential("y")
    flow = c * ca.sign(a - b) * ca.sqrt(ca.fabs(a - b))
    run = m.mode("run", ode={a: -flow, b: flow, y: a - b + (0 if counts is None else counts(a, b))})
    m.initial(run, {a: 2.0, b: 0.0, y: 0.0})
    m.functional("G", terminal=y)
    return m.build(native=native)


@pytest.mark.parametrize("way", [way for way in WAYS if "bdf" not in way.values()], ids=str)
def test_two_levels_that_meet(way: dict[str, Any]) -> None:
    """a - b is (sqrt(2) - t)^2 until sqrt(2). BDF finds them equal to the last bit, where `sign` is refused."""
    sol = dh.simulate(two_tanks(), SPAN, rtol=1e-6, atol=1e-9, **way)
    assert sol.functionals["G"] == pytest.approx(2**1.5 / 3, rel=1e-6)
    np.testing.assert_allclose([sol["a"][-1], sol["b"][-1]], 1.0, atol=1e-6)
    assert [event.transition for event in sol.events] == ['"a-b < 0" slides']
    assert sol.events[0].time == pytest.approx(2**0.5, rel=1e-3)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("counts", COUNTS)
def test_what_jumps_where_both_sides_come_to_rest_is_undetermined(counts: str, native: bool) -> None:
    """Every share of the two sides keeps the levels equal; half of the time was counted."""
    with pytest.raises(dh.EventError, match=r"comes to rest on the surface|sign rests at zero"):
        dh.simulate(two_tanks(COUNTS[counts], native=native), SPAN)
