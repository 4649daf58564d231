"""Choices of `method="auto"` along a run whose stiffness begins and ends."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.adapters.sundials.methods import ADAMS, BDF, ERK

TIGHT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}


def methods(sol: dh.Trajectory) -> list[str]:
    """The methods of a run, without repetitions."""
    names = [segment.method for segment in sol.segments]
    return names[:1] + [later for earlier, later in pairwise(names) if later != earlier]


def following(rate: float) -> dh.HybridModel:
    """x' = -r (x - cos t)."""
    m = dh.HybridModel("following")
    r, y = m.parameter("r", rate), m.differential("y")
    m.initial(m.mode("run", ode={y: -r * (y - ca.cos(m.time))}), {y: 1.0})
    m.functional("G", integrand=y**2)
    return m


def van_der_pol(mu: float) -> dh.HybridModel:
    m = dh.HybridModel("van der Pol")
    k, x0 = m.parameter("mu", mu), m.parameter("x0", 2.0)
    x, v = m.differential("x"), m.differential("v")
    m.initial(m.mode("run", ode={x: v, v: k * (1 - x**2) * v - x}), {x: x0, v: 0.0})
    m.functional("G", integrand=x**2)
    return m


def catalyst() -> dh.HybridModel:
    """x follows an oscillation at the rate k c, and the catalyst c is used up."""
    m = dh.HybridModel("catalyst")
    k, w = m.parameter("k", 1e4), m.parameter("w", 1.0)
    x, c, y, v = (m.differential(name) for name in ("x", "c", "y", "v"))
    ode = {x: -(k * c + 0.1) * (x - y), c: -c, y: v, v: -(w**2) * y}
    m.initial(m.mode("run", ode=ode), {x: 0.0, c: 1.0, y: 1.0, v: 0.0})
    m.functional("G", integrand=x**2)
    return m


def tides(period: float, lowest: float, highest: float, *, counted: bool = False) -> dh.HybridModel:
    """x follows an oscillation at a rate that comes and goes, over powers of ten; an event counts its periods."""
    m = dh.HybridModel("tides")
    c, w = m.parameter("c", 1.0), m.parameter("w", 1.3)
    y, s, n = m.differential("y"), m.differential("s"), m.memory("n", initial=1.0)
    power = (lowest + highest) / 2 - (highest - lowest) / 2 * ca.cos(2 * np.pi / period * m.time)
    run = m.mode("run", ode={y: -(10**power) * (y - c * ca.cos(w * m.time)), s: n * (y - 0.01 * s)})
    if counted:
        m.transition(run, run, guard=y - 0.3, direction="rising", memory={n: 3 - n})
    m.initial(run, {y: 0.5, s: 0.0})
    m.functional("G", integrand=y**2 + s**2)
    return m


def steps(system: dh.HybridSystem, end: float, method: str, **options: Any) -> int:
    return dh.simulate(system, (0, end), method=method, **options).statistics["steps"]


@pytest.mark.parametrize("order", sorted(ERK.tables))
def test_how_far_explicit_steps_are_stable(order: int) -> None:
    """Steps of one length: what decays grows beyond it, and decays before."""
    options = dh.Options(max_order=order, method="erk")
    reach = ERK.reach(options)
    system = following(1.0).build()
    for share, grows in ((0.98, False), (1.05, True)):
        end = 400 * share * reach
        fixed = {"max_step": share * reach, "first_step": share * reach, "rtol": 0.9, "atol": 1e12}
        sol = dh.simulate(system, (0, end), method="erk", max_order=order, **fixed)
        assert (abs(sol["y"][-1]) > 100) == grows
    assert BDF.reach(options) == np.inf > ADAMS.reach(options)


def test_twice_as_long_costs_twice_as_much() -> None:
    """Whatever decays: x' = sin t - x is not stiff, however long it is followed."""
    system = following(1.0).build()
    short, long = (dh.simulate(system, (0, end)) for end in (400, 600))
    assert methods(short) == methods(long) == ["erk"]
    assert long.statistics["nfev"] < 1.6 * short.statistics["nfev"]


@pytest.mark.parametrize("rtol", [1e-4, 1e-8, 1e-12])
@pytest.mark.parametrize("rate", [1.0, 4.0, 20.0, 200.0])
def test_about_the_better_of_both(rate: float, rtol: float) -> None:
    """A step of BDF costs about half as much as an explicit one; the choice may be off by half as much again."""
    system = following(rate).build()
    options = {"rtol": rtol, "atol": rtol / 100, "max_steps": 10_000_000}
    weights = {"bdf": 1.0, "erk": 2.0}
    costs = {method: weight * steps(system, 1000, method, **options) for method, weight in weights.items()}
    sol = dh.simulate(system, (0, 1000), **options)
    assert sol.statistics["steps"] * weights[methods(sol)[-1]] < 1.5 * min(costs.values())
    assert len(methods(sol)) <= 2


@pytest.mark.parametrize("mu", [100.0, 1000.0])
def test_van_der_pol(mu: float) -> None:
    """Stiff on the way from one jump to the next; the jumps are too short to be worth a change."""
    system = van_der_pol(mu).build()
    sol = dh.simulate(system, (0, 3 * mu))
    assert sol.statistics["steps"] < 1.2 * steps(system, 3 * mu, "bdf")
    span = (0, 0.7 * mu)  # before the first jump
    adjoint = dh.adjoint_gradient(system, span, "G", **TIGHT).gradient
    forward = dh.forward_sensitivity(system, span, **TIGHT).gradient["G"]
    np.testing.assert_allclose(adjoint, forward, rtol=1e-4, atol=1e-6 * np.abs(forward).max())


def test_a_stiff_transient_before_a_long_oscillation() -> None:
    system = catalyst().build()
    sol = dh.simulate(system, (0, 1000))
    assert methods(sol) == ["bdf", "erk"]
    implicit = dh.simulate(system, (0, 1000), method="bdf")
    assert sol.statistics["steps"] < implicit.statistics["steps"] / 2
    for name in ("x", "y"):
        np.testing.assert_allclose(sol[name][-1], implicit[name][-1], atol=1e-4)


@pytest.mark.parametrize(("period", "end"), [(20.0, 600.0), (200.0, 600.0), (2000.0, 4000.0)])
def test_stiffness_that_comes_and_goes(period: float, end: float) -> None:
    """It costs little more than the better method, and does not flutter."""
    system = tides(period, 0, 4).build()
    sol = dh.simulate(system, (0, end))
    assert sol.statistics["steps"] < 1.2 * steps(system, end, "bdf")
    assert len(methods(sol)) <= 3 * end / period + 2
    assert "bdf" in methods(sol)


@pytest.mark.parametrize("native_events", [True, False])
@pytest.mark.parametrize("counted", [False, True])
def test_derivatives_across_changes_of_the_method(*, counted: bool, native_events: bool) -> None:
    """There and back, also between events: forward, adjoint and finite differences agree."""
    system, span = tides(300.0, -0.5, 3.5, counted=counted).build(), (0.0, 400.0)
    options: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12, "native_events": native_events}
    sol = dh.simulate(system, span, **options)
    assert methods(sol)[:3] == ["erk", "bdf", "erk"]
    assert bool(sol.events) == counted
    adjoint = dh.adjoint_gradient(system, span, "G", **options).gradient
    forward = dh.forward_sensitivity(system, span, **options)
    assert len(methods(forward.trajectory)) >= 3
    np.testing.assert_allclose(adjoint, forward.gradient["G"], rtol=1e-5)
    for i, name in enumerate(("c", "w")):
        nominal = {"c": 1.0, "w": 1.3}
        h = 1e-5
        beside = ({**nominal, name: nominal[name] + sign * h} for sign in (1, -1))
        up, down = (dh.simulate(system, span, parameters=p, **options).functionals["G"] for p in beside)
        assert forward.gradient["G"][i] == pytest.approx((up - down) / (2 * h), rel=1e-4, abs=1e-5)


def test_steps_that_something_else_keeps_short_are_explicit() -> None:
    """A longest step bounds implicit ones as much."""
    system = following(200.0).build()
    assert methods(dh.simulate(system, (0, 20), rtol=1e-6)) == ["bdf"]
    assert methods(dh.simulate(system, (0, 20), rtol=1e-6, max_step=1e-3)) == ["erk"]
