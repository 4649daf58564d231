"""Bodies in equilibrium at the start: the rate of a guard on their velocity is zero to the rounding of the forces."""

from __future__ import annotations

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh

#: stiffness and weight whose spring force at the deflection weight/stiffness is not equal to the weight
STIFFNESS, WEIGHT = 107.0, 29.43
WAYS = {"compiled": {}, "interpreted events": {"native_events": False}, "scipy": {"adapter": "scipy"}}
TOLERANCES = {"rtol": 1e-9, "atol": 1e-12}


def load(direction, *, keeps=True, push=None, measured=False):
    """A load on a spring that changes its law at a reversal; it follows its equilibrium if `keeps`."""
    m = dh.HybridModel("load")
    k, w, d = m.parameter("k", STIFFNESS), m.parameter("w", WEIGHT), m.parameter("d", 0.5)
    x, v, s = m.differential("x"), m.differential("v"), m.differential("s")
    force = w - k * x + (0.0 if push is None else push(m.time))
    first = m.mode("first", ode={x: v, v: force, s: -d * s})
    second = m.mode("second", ode={x: v, v: force - v, s: -d * s})
    m.transition(first, second, guard=v, direction=direction)
    m.initial(first, {x: w / k if keeps else WEIGHT / STIFFNESS, v: 0.0, s: 1.0})
    more = {"at_times": {0.5: x}} if measured else {}
    m.functional("G", integrand=x**2 + s, **more)
    return m.build()


def test_the_equilibrium_has_a_rounding_error():
    assert WEIGHT - STIFFNESS * (WEIGHT / STIFFNESS) != 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("direction", ["rising", "falling", "both"])
@pytest.mark.parametrize("measured", [False, True])
def test_rounding_moves_no_guard(direction, measured, way):
    system, call = load(direction, measured=measured), WAYS[way] | TOLERANCES
    sol = dh.simulate(system, (0, 2), **call)
    assert not sol.events
    assert sol(2.0)["x"] == pytest.approx(WEIGHT / STIFFNESS, rel=1e-12)
    check = dh.check_gradient(system, (0, 2), "G", **call)
    assert check.difference("forward", "adjoint") < 1e-7
    assert check.difference("forward", "finite_difference") < 1e-5


@pytest.mark.parametrize("way", WAYS)
def test_parameters_that_move_the_load_are_refused(way):
    system, call = load("rising", keeps=False), WAYS[way] | TOLERANCES
    assert not dh.simulate(system, (0, 2), **call).events
    with pytest.raises(dh.EventError, match="rests at zero, but leaves it with the parameters"):
        dh.forward_sensitivity(system, (0, 2), wrt=["k", "w"], **call)
    with pytest.raises(dh.EventError, match="rests at zero, but leaves it with the parameters"):
        dh.adjoint_gradient(system, (0, 2), "G", wrt=["k", "w"], **call)
    assert dh.adjoint_gradient(system, (0, 2), "G", wrt="d", **call).gradient < 0


@pytest.mark.product
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_load_that_is_moved_later_reverses_as_it_should(sign, way):
    """The push begins at zero with the third derivative of the motion; it reverses when v is zero next."""
    system = load("falling" if sign > 0 else "rising", push=lambda t: sign * 10.0 * t * ca.sin(3 * t))
    sol = dh.simulate(system, (0, 2), **(WAYS[way] | TOLERANCES))
    assert [event.transition for event in sol.events] == ["first->second"]
    t = np.linspace(1e-3, float(sol.events[0].time) - 1e-6, 200)
    assert np.all(sign * np.interp(t, sol.t, sol["v"]) > 0)
    assert abs(sol.events[0].x_minus[1]) < 1e-9
