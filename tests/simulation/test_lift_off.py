"""Contacts that let go: the distance has a triple zero there, and the next touchdown comes when it comes."""

from __future__ import annotations

import casadi as ca
import numpy as np
import pytest
from scipy.optimize import brentq

import dae_hybrid as dh
from dae_hybrid.mechanics import Index1, Index2, Mechanism, Reduced

A, W, G = 0.02, 30.0, 9.81
#: an eccentric mass on a base, driven at a constant speed
BASE, ECCENTRIC, RADIUS, SPEED = 2.0, 0.3, 0.1, 40.0
FORMS = {
    "index 2": Index2(),
    "index 2, velocities only": Index2(positions=False),
    "reduced": Reduced(),
    "index 1": Index1(),
    "index 1, stabilised": Index1(omega=10.0),
}
TOLERANCES = (1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 3e-10, 1e-10, 1e-11)


def table():
    """A block that slides along a table which moves up and down, and hops."""
    mech = Mechanism("table")
    amplitude, omega, g = (mech.parameter(name, value) for name, value in (("A", A), ("omega", W), ("g", G)))
    block = mech.point("")
    mech.point_mass(block, 2.0)
    mech.gravity(g)
    mech.force({block.x: 0.7})
    gap = block.y - amplitude * ca.sin(omega * mech.time)
    down, free = mech.mode("down"), mech.mode("free")
    multiplier = down.constraint("contact", gap)
    mech.event(down, free, guard=-multiplier, direction="falling", name="lift")
    mech.event(free, down, guard=gap, direction="falling", name="land")
    mech.initial(down, {block.x: 0.3, block.y: 0.0}, {block.vx: 0.1, block.vy: amplitude * omega})
    mech.functional("G", integrand=block.y**2, terminal=block.y)
    return mech


def shaker():
    """A base on the ground with an eccentric mass that a drive turns; its height is zero but for rounding of others."""
    mech = Mechanism("shaker")
    g, r = mech.parameter("g", G), mech.parameter("r", RADIUS)
    base, mass = mech.point("1"), mech.point("2")
    mech.point_mass(base, BASE)
    mech.point_mass(mass, ECCENTRIC)
    mech.gravity(g)
    arm = r * ca.vertcat(ca.cos(SPEED * mech.time), ca.sin(SPEED * mech.time))
    mech.constraint("arm", ca.vertcat(mass.x - base.x, mass.y - base.y) - arm)
    stand, hop = mech.mode("stand"), mech.mode("hop")
    multiplier = stand.constraint("ground", base.y)
    mech.event(stand, hop, guard=-multiplier, direction="falling", name="lift")
    mech.event(hop, stand, guard=base.y, direction="falling", name="land")
    mech.initial(
        stand,
        {base.x: 0.0, base.y: 0.0, mass.x: r, mass.y: 0.0},
        {base.vx: 0.0, base.vy: 0.0, mass.vx: 0.0, mass.vy: SPEED * r},
    )
    mech.functional("G", integrand=mass.y**2, terminal=base.y)
    return mech


def hops(lift, omega, end, g=G):
    """Times of what rests on a ground that moves as lift sin(omega t), or is lifted so by something inside."""
    events, t = [], 0.0
    while True:
        times = np.linspace(t, t + 4 * np.pi / omega, 4001)
        force = g - lift * omega**2 * np.sin(omega * times)
        k = np.flatnonzero((force[:-1] > 0) & (force[1:] <= 0))[0]
        up = brentq(lambda s: g - lift * omega**2 * np.sin(omega * s), times[k], times[k + 1], xtol=1e-15)
        if up > end:
            return events
        events.append(("lift", up))

        def gap(s, up=up):
            moved = np.sin(omega * s) - np.sin(omega * up) - omega * np.cos(omega * up) * (s - up)
            return -g / 2 * (s - up) ** 2 - lift * moved

        times = np.linspace(up, up + 20 * np.pi / omega, 40001)[5:]
        k = np.flatnonzero((gap(times[:-1]) > 0) & (gap(times[1:]) <= 0))[0]
        t = brentq(gap, times[k], times[k + 1], xtol=1e-15)
        if t > end:
            return events
        events.append(("land", t))


CASES = {
    "table": (table, hops(A, W, 1.0), 1.0),
    "shaker": (shaker, hops(ECCENTRIC * RADIUS / (BASE + ECCENTRIC), SPEED, 0.5), 0.5),
}


def mechanical(events):
    return [event for event in events if not event.transition.endswith(": coordinates")]


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_lift_off_and_touchdown_at_every_tolerance(case, form, native):
    statement, exact, end = case
    system = statement().build(form, native=native)
    assert len(exact) >= 7
    for method in ("erk", "adams", "bdf") if native else ("adams", "bdf"):
        for rtol in TOLERANCES if native else TOLERANCES[::3]:
            sol = dh.simulate(system, (0, end), rtol=rtol, atol=1e-2 * rtol, method=method)
            events = mechanical(sol.events)
            assert [event.transition for event in events] == [name for name, _ in exact], (method, rtol)
            off = max(abs(event.time - time) for event, (_, time) in zip(events, exact, strict=True))
            assert off < 20 * rtol, (method, rtol)
            assert not [note for note in sol.diagnostics if "past" in note]


@pytest.mark.parametrize("adapter", ["scipy", "casadi"])
def test_other_adapters_lift_off_too(adapter):
    system, exact = shaker().build(), CASES["shaker"][1]
    sol = dh.simulate(system, (0, 0.5), rtol=1e-8, atol=1e-10, adapter=adapter)
    assert [event.transition for event in sol.events] == [name for name, _ in exact]
    assert max(abs(event.time - time) for event, (_, time) in zip(sol.events, exact, strict=True)) < 1e-6


@pytest.mark.parametrize("method", ["auto", "bdf"])
@pytest.mark.parametrize("form", [Index2(), Reduced(), Index1()], ids=["index 2", "reduced", "index 1"])
def test_the_gradient_across_hops(form, method):
    system = table().build(form)
    check = dh.check_gradient(system, (0, 1.0), "G", rtol=1e-9, atol=1e-11, method=method)
    assert check.same_events
    assert check.difference("forward", "adjoint") < 1e-7
    assert check.difference("forward", "finite_difference") < 1e-4


def stuck(strength):
    """A block that sticks until a spring pulls as hard as friction, the same at rest and in motion."""
    m = dh.HybridModel("stick")
    mu, speed = m.parameter("mu", strength), m.parameter("v0", 0.1)
    x, v = m.differential("x"), m.differential("v")
    pull = 50.0 * (speed * m.time - x)
    stick, slip = m.mode("stick", ode={x: 0, v: 0}), m.mode("slip", ode={x: v, v: pull - mu})
    m.transition(stick, slip, guard=pull - mu, direction="rising", name="slips")
    m.transition(slip, stick, guard=v, direction="falling", name="sticks")
    m.initial(stick, {x: 0.0, v: 0.0})
    m.functional("G", terminal=x)
    return m


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
def test_the_end_of_sticking_is_one(native):
    """The velocity is v0 (1 - cos(w s)) after it, which has a double zero at s = 0."""
    system, omega = stuck(2.0).build(native=native), np.sqrt(50.0)
    for method in ("adams", "bdf"):
        for rtol in (1e-4, 1e-6, 1e-8, 1e-10):
            sol = dh.simulate(system, (0, 1.1), rtol=rtol, atol=1e-2 * rtol, method=method)
            assert [event.transition for event in sol.events] == ["slips"], (method, rtol)
            exact = 0.1 * (0.7 - np.sin(0.7 * omega) / omega)
            assert sol.functionals["G"] == pytest.approx(exact, abs=1e3 * rtol)


def micro(rate):
    """A guard that leaves zero by next to nothing and comes back, where the state is known to 1e-8."""
    m = dh.HybridModel("micro")
    k = m.parameter("k", rate)
    y, v = m.differential("y"), m.differential("v")
    wait, hop = m.mode("wait", ode={y: 0, v: 0}), m.mode("hop", ode={y: v, v: k * (m.time - 1) - 3 * (m.time - 1) ** 2})
    m.transition(wait, hop, at=1.0, name="up")
    m.transition(hop, wait, guard=y, direction="falling", name="down")
    m.initial(wait, {y: 0.0, v: 0.0})
    return m.build()


def test_a_hop_below_the_tolerance_is_never_a_fall_through_the_floor():
    """y = k s^3 / 6 - s^4 / 4 has left by 2 k^4 / 3 at most, and comes back at s = 2 k / 3."""
    for k in (1.0, 0.1, 0.01, 0.001):
        system = micro(k)
        for method in ("erk", "adams", "bdf"):
            if k < 0.1:
                with pytest.raises(dh.ZenoError, match="left zero and came back"):
                    dh.simulate(system, (0, 3), rtol=1e-8, atol=1e-8, method=method)
                continue
            sol = dh.simulate(system, (0, 3), rtol=1e-8, atol=1e-8, method=method)
            assert [event.transition for event in sol.events] == ["up", "down"], (k, method)
            rate = 2 * k**3 / 27  # with which it comes back
            assert sol.events[1].time == pytest.approx(1 + 2 * k / 3, abs=1e-7 / rate)
