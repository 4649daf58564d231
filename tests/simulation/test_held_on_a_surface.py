"""Motion that is held on the surface of a relation, and leaves it to either side when a force has grown.

Friction by a clipped net force (Karnopp 1985) holds a block at the edge of its band, a limit holds an integrator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh

WAYS = [{}, {"method": "bdf"}, {"method": "adams"}, {"adapter": "scipy"}, {"adapter": "casadi"}]
SPAN = (0.0, 4.0)


def clip(force: Any, limit: Any) -> Any:
    return ca.fmax(-limit, ca.fmin(limit, force))


def block(sign: int, *, by_clock: bool, static: float = 1.0, native: bool = True, counts: str = "") -> dh.HybridSystem:
    """A block under the force sign * b * (t - tau), at first in motion; its time of slipping may be counted.

    With t a state the clip of the force is no event.
    """
    m = dh.HybridModel("block")
    b, tau, mu, eps = (m.parameter(*own) for own in (("b", 1.0), ("tau", 1.0), ("mu", 0.8), ("eps", 1e-2)))
    v, clock = m.differential("v"), m.differential("clock") if by_clock else m.time
    force = sign * b * (clock - tau)
    friction = ca.if_else(ca.fabs(v) > eps, mu * ca.sign(v), clip(force, static * mu))
    ode, start = {v: force - friction}, {v: m.parameter("v0", 1.0)}
    if by_clock:
        ode, start = {**ode, clock: 1}, {**start, clock: 0}
    slips = ca.if_else(ca.fabs(v) > eps, 1, 0)
    if counts == "as a state":
        away, time = m.differential("away"), m.differential("time")
        ode |= {away: 1e6, time: slips}
        start |= {away: 0.0, time: 0.0}
    elif counts:
        m.functional("time", integrand=slips if counts == "as an integrand" else ca.if_else(v**2 > eps**2, 1, 0))
    m.initial(m.mode("run", ode=ode), start)
    m.functional("V", terminal=v)
    return m.build(native=native)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("by_clock", [True, False])
def test_friction_by_a_clipped_net_force(by_clock: bool, sign: int, way: dict[str, Any], native: bool) -> None:
    """From t_2 = tau + mu / b on v is eps + sign b (t - t_2)^2 / 2, whatever was before."""
    system, span = block(sign, by_clock=by_clock, native=native), (0.0, 3.0)
    later = 3.0 - 1.8
    right = sign * np.array([later**2 / 2 + later * 0.8, -later, -later, sign, 0.0])
    for rtol in (1e-8,) if by_clock else (1e-5, 1e-8):
        options = {"rtol": rtol, "atol": 1e-2 * rtol, **way}
        fsa = dh.forward_sensitivity(system, span, **options)
        assert fsa.trajectory.functionals["V"] == pytest.approx(1e-2 + sign * later**2 / 2, rel=100 * rtol)
        np.testing.assert_allclose(fsa.gradient["V"], right, rtol=1e3 * rtol, atol=100 * rtol)
        times = fsa.event_time_sensitivity
        if not by_clock:  # the clip lets go at t_2
            letting_go = int(np.abs(fsa.trajectory.event_table.t - 1.8).argmin())
            np.testing.assert_allclose(times[letting_go], [-0.8, 1.0, 1.0, 0.0, 0.0], atol=1e-9)
        elif sign > 0:  # noticed when it has left, as the time in the record says
            assert np.isfinite(times[0]).all()
            assert np.isnan(times[1]).all()
        asa = dh.adjoint_gradient(system, span, "V", **options)
        np.testing.assert_allclose(asa.gradient, right, rtol=1e3 * rtol, atol=100 * rtol)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_level_that_is_held_and_rises_again(way: dict[str, Any]) -> None:
    """A reservoir with the inflow b t, and the outflow c while there is water: empty at t_1, it fills from c/b on."""
    m = dh.HybridModel("reservoir")
    b, c, h0, h = m.parameter("b", 1.0), m.parameter("c", 2.0), m.parameter("h0", 1.0), m.differential("h")
    net = b * m.time - c
    m.initial(m.mode("run", ode={h: ca.if_else(h > 0, net, ca.fmax(net, 0))}), {h: h0})
    m.functional("G", integrand=h)
    m.functional("wet", integrand=ca.if_else(h > 0, 1, 0))
    system, t1, later = m.build(), 2 - 2**0.5, 2.0
    value = t1 + t1**3 / 6 - t1**2 + later**3 / 6
    right = [t1**3 / 6 + later**3 / 6 + later**2 / 2 * 2, -(t1**2) / 2 - later**2 / 2, t1]
    dt1 = np.array([-(t1**2) / 2, t1, -1.0]) / (t1 - 2)
    for rtol in (1e-5, 1e-8):
        options = {"rtol": rtol, "atol": 1e-2 * rtol, **way}
        fsa = dh.forward_sensitivity(system, (0, 4), **options)
        assert fsa.trajectory.functionals["G"] == pytest.approx(value, rel=100 * rtol)
        assert fsa.trajectory.functionals["wet"] == pytest.approx(t1 + 2, rel=100 * rtol)
        for name, gradient in (("G", right), ("wet", dt1 + np.array([2.0, -1.0, 0.0]))):
            np.testing.assert_allclose(fsa.gradient[name], gradient, rtol=1e3 * rtol)
            asa = dh.adjoint_gradient(system, (0, 4), name, **options)
            np.testing.assert_allclose(asa.gradient, gradient, rtol=1e3 * rtol)


#: rates of an integrator of e whose value I is not to exceed L, however that is written
LIMITED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "<": lambda I, L, e: ca.if_else(I < L, e, ca.fmin(e, 0)),
    ">=": lambda I, L, e: ca.if_else(I >= L, ca.fmin(e, 0), e),
    "<=": lambda I, L, e: ca.if_else(I <= L, e, ca.fmin(e, 0)),
    ">": lambda I, L, e: ca.if_else(I > L, ca.fmin(e, 0), e),
    "and": lambda I, L, e: ca.if_else(ca.logic_and(I >= L, e > 0), 0, e),
    "and, strictly": lambda I, L, e: ca.if_else(ca.logic_and(I > L, e > 0), 0, e),
    "both ends": lambda I, L, e: ca.if_else(I >= L, ca.fmin(e, 0), ca.if_else(I <= -3 * L, ca.fmax(e, 0), e)),
}


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("law", LIMITED)
def test_an_integrator_with_a_limit(law: str, way: dict[str, Any], native: bool) -> None:
    """I = a sin t up to L, at t_1, held until pi / 2, then L + a (sin t - 1)."""
    m = dh.HybridModel("integrator")
    a, limit, I, y = m.parameter("a", 2.0), m.parameter("L", 1.0), m.differential("I"), m.differential("y")
    m.initial(m.mode("run", ode={I: LIMITED[law](I, limit, a * ca.cos(m.time)), y: I}), {I: 0.0, y: 0.0})
    m.functional("G", terminal=y)
    system, options = m.build(native=native), {"rtol": 1e-8, "atol": 1e-10, **way}
    t1, rest = math.pi / 6, 4 - math.pi / 2
    value = 2 * (1 - math.cos(t1)) + (math.pi / 2 - t1) - rest - 2 * math.cos(4)
    right = [1 - math.cos(t1) - rest - math.cos(4), math.pi / 2 - t1 + rest]
    fsa = dh.forward_sensitivity(system, (0, 4), **options)
    assert fsa.trajectory.functionals["G"] == pytest.approx(value, rel=1e-6)
    np.testing.assert_allclose(fsa.gradient["G"], right, rtol=1e-6)
    np.testing.assert_allclose(dh.adjoint_gradient(system, (0, 4), "G", **options).gradient, right, rtol=1e-5)


def stop_and_go(blocks: int, native: bool) -> dh.HybridSystem:
    """One block under a force with kinks, or two that are coupled; a force may move them for less than a step."""
    m = dh.HybridModel("stop and go")
    mu, k, eps = m.parameter("mu", 0.5), m.parameter("k", 1.0), m.parameter("eps", 1e-3)
    x, v, t = m.differential("x", size=blocks), m.differential("v", size=blocks), m.time
    if blocks == 1:
        forces = [m.signal("u", [0, 2, 4, 6, 9, 12, 20], [0, 1, -1, 0.7, -0.8, 0.4, 0]) - k * x + 0.2 * ca.sin(3 * t)]
    else:
        pull = 0.3 * (x[1] - x[0])
        forces = [ca.sin(0.7 * t) - k * x[0] + pull, 0.8 * ca.cos(0.9 * t) - k * x[1] - pull]
    rates = [
        force - ca.if_else(ca.fabs(v[i]) > eps, limit * ca.sign(v[i]), clip(force, limit))
        for i, (force, limit) in enumerate(zip(forces, (mu, 1.1 * mu), strict=False))
    ]
    start = {x: 0.5, v: 0.3} if blocks == 1 else {x: [1.2, -0.5], v: [0.3, 0.2]}
    m.initial(m.mode("run", ode={x: v, v: ca.vertcat(*rates)}), start)
    m.functional("G", integrand=ca.sumsqr(x))
    return m.build(native=native)


@pytest.mark.first(2)
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("way", WAYS[:-1], ids=str)  # CasADi's integrators stop at some kinks at such tolerances
@pytest.mark.parametrize(("blocks", "events"), [(1, 15), (2, 26)])
def test_blocks_that_stop_and_go(blocks: int, events: int, way: dict[str, Any], native: bool) -> None:
    system, options = stop_and_go(blocks, native), {"rtol": 1e-8, "atol": 1e-11, **way}
    fsa = dh.forward_sensitivity(system, (0, 15), **options)
    assert len(fsa.events) == events
    asa = dh.adjoint_gradient(system, (0, 15), "G", **options)
    np.testing.assert_allclose(asa.gradient, fsa.gradient["G"], rtol=1e-5)
    more, less = (dh.simulate(system, (0, 15), parameters={"mu": 0.5 + h}, **options) for h in (1e-4, -1e-4))
    slope = (more.functionals["G"] - less.functionals["G"]) / 2e-4
    assert slope == pytest.approx(fsa.gradient["G"][0], rel=1e-3)


@pytest.mark.parametrize("counts", ["as an integrand", "as a state", "by its square"])
def test_what_counts_the_time_of_slipping_is_refused(counts: str) -> None:
    """Its rate jumps where the block leaves, at a time that is noticed late, and has no derivative in the record."""
    with pytest.raises(dh.EventError, match="when it does so is not determined by the surface"):
        dh.forward_sensitivity(block(1, by_clock=True, counts=counts), (0, 3))


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("counts", ["as an integrand", "by its square"])
def test_the_time_of_slipping_where_a_clip_of_time_lets_go(counts: str, way: dict[str, Any], native: bool) -> None:
    """It slips until t_1, where v = v0 + b ((t - tau)^2 - tau^2) / 2 - mu t is eps, and from t_2 = tau + mu / b on.

    Before 1 - 0.8 the friction is that of the clip, -0.8, which is mu of the branch as well.
    """
    system, options = block(1, by_clock=False, native=native, counts=counts), {"rtol": 1e-8, "atol": 1e-10, **way}
    b, tau, mu, eps, v0 = 1.0, 1.0, 0.8, 1e-2, 1.0
    lead = np.roots([b / 2, -b * tau - mu, v0 - eps])
    t1, t2 = float(lead[lead < 1][0]), tau + mu / b
    by_time = b * (t1 - tau) - mu
    dt1 = -np.array([t1**2 / 2 - tau * t1, -b * t1, -t1, -1.0, 1.0]) / by_time
    right = dt1 - np.array([-mu / b**2, 1.0, 1 / b, 0.0, 0.0])
    fsa = dh.forward_sensitivity(system, (0, 3), **options)
    assert fsa.trajectory.functionals["time"] == pytest.approx(t1 + 3 - t2, rel=1e-6)
    np.testing.assert_allclose(fsa.gradient["time"], right, rtol=1e-6)
    np.testing.assert_allclose(dh.adjoint_gradient(system, (0, 3), "time", **options).gradient, right, rtol=1e-6)


def test_breaking_away_above_the_limit_of_sliding_is_not_determined() -> None:
    """Held until the force exceeds twice the friction, at a velocity at which both hold."""
    with pytest.raises(dh.EventError, match="leaves it to the side that it came from, where the rates are others"):
        dh.simulate(block(1, by_clock=True, static=2.0), SPAN)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_breaking_away_above_the_limit_of_sliding_at_a_known_time(way: dict[str, Any]) -> None:
    """Held until t_2 = tau + 2 mu / b, then v' = b (t - tau) - mu: dV/dmu = -2 * 1.6 - 1.4 + 2 * 0.8."""
    fsa = dh.forward_sensitivity(block(1, by_clock=False, static=2.0), SPAN, rtol=1e-8, atol=1e-10, **way)
    assert fsa.trajectory.functionals["V"] == pytest.approx(1e-2 + (3**2 - 1.6**2) / 2 - 0.8 * 1.4, rel=1e-7)
    assert fsa.gradient["V"][2] == pytest.approx(-3.0, rel=1e-7)
