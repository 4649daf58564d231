"""Systems used by tests and benchmarks, some of any size."""

from __future__ import annotations

import math

import casadi as ca

import dae_hybrid as dh
from dae_hybrid.mechanics import Mechanism, Restitution, Revolute


def sampled() -> dh.HybridModel:
    """A converter under a controller that samples: a clock, a guard at the end of every pulse, and a memory."""
    m = dh.HybridModel("sampled")
    gain, load = m.parameter("gain", 0.2), m.parameter("load", 1.0)
    i, u, s = m.differential("i"), m.differential("u"), m.differential("s")
    duty = m.memory("duty", initial=0.4)
    on = m.mode("on", ode={i: 1 - u, u: i - u / load, s: 1})
    off = m.mode("off", ode={i: -u, u: i - u / load, s: 1})
    m.transition(on, off, guard=s - duty, direction="rising", name="open")
    m.transition(off, on, every=1.0, reset={s: 0}, memory={duty: 0.4 + gain * (0.4 - u) / (1 + u**2)}, name="sample")
    m.initial(on, {i: 0.0, u: 0.0, s: 0.0})
    m.functional("G", integrand=(u - 0.4) ** 2)
    return m


def impacts() -> dh.HybridModel:
    """A pendulum in Cartesian coordinates that a wall throws back: index 2, impulses of the wall and of the rod."""
    m = dh.HybridModel("impacts")
    e, x, y, vx, vy = m.parameter("e", 1.0), *(m.differential(name) for name in ("x", "y", "vx", "vy"))
    tension, mu, wall, rod = m.algebraic("tension"), m.algebraic("mu"), m.unknown("wall"), m.unknown("rod")
    run = m.mode(
        "run", ode={x: vx - x * mu, y: vy - y * mu, vx: -x * tension, vy: -1 - y * tension},
        constraint=[(x**2 + y**2 - 1) / 2, x * vx + y * vy],
    )  # fmt: skip
    thrown = [m.post(vx) - vx - wall - x * rod, m.post(vy) - vy - y * rod, m.post(vx) + e * vx]
    m.transition(run, run, guard=x, direction="falling", reset=thrown, name="impact")
    m.initial(run, {x: math.sin(0.5), y: -math.cos(0.5), vx: 0.0, vy: 0.0})
    m.functional("G", integrand=x**2)
    return m


def guards(n: int) -> dh.HybridModel:
    """One mode with many guards."""
    m = dh.HybridModel("guards")
    x, p = m.differential("x"), m.parameter("p", 1.0)
    run = m.mode("run", ode={x: 1 - p * x})
    for i in range(n):
        m.transition(run, run, guard=x - 0.6 * (i + 1) / n, direction="rising", reset={x: x + 1e-3 * p / n})
    m.initial(run, {x: 0.0})
    m.functional("G", terminal=x**2)
    return m


def spikes(n: int) -> dh.HybridModel:
    """States that integrate and fire, each reset by a transition of its own."""
    m = dh.HybridModel("spikes")
    p = m.parameter("p", 1.0)
    states = [m.differential(f"x{i}") for i in range(n)]
    run = m.mode("run", ode={x: p * (1 + i / n) - x for i, x in enumerate(states)})
    for i, x in enumerate(states):
        m.transition(run, run, guard=x - 0.3 * (1 + i / n / 7), direction="rising", reset={x: 0.1 * p})
    m.initial(run, dict.fromkeys(states, 0.0))
    m.functional("G", terminal=sum(states))
    return m


def ring(n: int) -> dh.HybridModel:
    """Modes in a ring."""
    m = dh.HybridModel("ring")
    x, p = m.differential("x"), m.parameter("p", 1.0)
    modes = [m.mode(f"m{i}", ode={x: (20.5 + i) * p}) for i in range(n)]
    for here, there in zip(modes, (*modes[1:], modes[0]), strict=True):
        m.transition(here, there, guard=x - 1, direction="rising", reset={x: 0 * x})
    m.initial(modes[0], {x: 0.0})
    m.functional("G", terminal=x)
    return m


def exits(n: int) -> dh.HybridModel:
    """Modes in a ring with five ways out of each, to the next ones and with other thresholds and resets."""
    m = dh.HybridModel("exits")
    x, y, p = m.differential("x"), m.differential("y"), m.parameter("p", 1.0)
    modes = [m.mode(f"m{i}", ode={x: (20.3 + 10 * i / n) * p, y: 1.5 - (0.31 + i / n) * y}) for i in range(n)]
    for i in range(n):
        for k in range(5):
            threshold, kept = 1.03 + 0.13 * ((i + k) % 5) + 0.1 * i / n, 0.11 + 0.1 * k
            there = modes[(i + 1 + k) % n]
            m.transition(modes[i], there, guard=x - threshold * p, direction="rising", reset={x: kept * y})
    m.initial(modes[0], {x: 0.0, y: 1.0})
    m.functional("G", integrand=x * y, terminal=y)
    return m


def bars(n: int, *, contacts: bool = False) -> Mechanism:
    """A pendulum of bars of length and mass one, held level at the start.

    With contacts its tip bounces off the ground, and its second joint has a stop; `work` is what that does.
    """
    mech = Mechanism("bars")
    mass, g, start = mech.parameter("mass", 1.0), mech.parameter("g", 9.81), {}
    last, energy, points = mech.ground(0.0, 0.0, "pivot"), 0, []
    for i in range(n):
        point = mech.point(str(i))
        own = mass if i == n - 1 else 1.0
        mech.bar(last, point, length=1.0, mass=own)
        start |= {point.x: float(i + 1), point.y: 0.0}
        (vx, vy), (wx, wy) = ((0.0, 0.0) if not i else (last.vx, last.vy)), (point.vx, point.vy)
        height = (point.y + (last.y if i else 0.0)) / 2
        energy += own * (g * height + (vx**2 + vx * wx + wx**2 + vy**2 + vy * wy + wy**2) / 6)
        last = point
        points.append(point)
    mech.gravity(g)
    swing = mech.mode("swing")
    mech.initial(swing, start)
    if contacts:
        e, (first, second, *_) = mech.parameter("e", 0.9), points
        across = first.x * (second.y - first.y) - first.y * (second.x - first.x)  # sine of the angle between two bars
        impact = Restitution(e)
        ground = mech.event(swing, swing, guard=last.y + 2, direction="falling", impact=impact, name="ground")
        stop = mech.event(swing, swing, guard=0.1 - across, direction="falling", impact=impact, name="stop")
        speeds = {ground: last.vy, stop: sum(-ca.jacobian(across, p.position) @ p.velocity for p in (first, second))}
        after = {s: mech.post(s) for p in points for s in (p.vx, p.vy)}
        work = {}
        for event, speed in speeds.items():
            later = ca.graph_substitute(speed, list(after), list(after.values()))
            work[event] = mech.impulse(event) * (speed + later) / 2
        mech.functional("work", at_events=work)
    mech.functional("G", terminal=last.x)
    mech.functional("energy", terminal=energy)
    return mech


def tree(n: int, *, contact: bool = False) -> Mechanism:
    """A damped chain of n bodies in joint coordinates, with ground under its tip if there is a `contact`."""
    mech = Mechanism("tree")
    mass, length, e = mech.parameter("m", 1.0), mech.parameter("L", 1.0), mech.parameter("e", 0.9)
    tip = mech.ground(0, 0)
    for i in range(n):
        joint = Revolute(tip)
        body = mech.body(f"b{i}", joint, mass=mass, center=(length / 2, 0), inertia=mass * length**2 / 12)
        mech.force({body.coordinate: -5.0 * mech.velocity(body.coordinate)})
        tip = body.point(length)
    mech.gravity(9.81)
    swing, away = mech.mode("swing"), mech.mode("away")
    if contact:
        mech.event(swing, away, guard=tip.y + 1, direction="falling", impact=Restitution(e), name="ground")
    mech.initial(swing, {body.coordinate: 0.0 for body in mech.bodies.values()})
    mech.functional("G", terminal=tip.x)
    return mech


def rod(n: int, *, elements: bool = False, probe: bool = False) -> dh.HybridModel:
    """A rod of n cells with a thermostat in its first one, stated with vectors or element by element.

    Turning it off cools two cells and counts; with `elements`, turning it on solves for the first cell. With a `probe`,
    the thermostat sees an algebraic variable.
    """
    m = dh.HybridModel("rod")
    k, low, power = m.parameter("k", 1.0), m.parameter("low", 0.3), m.parameter("power", 3.0)
    names = [m.differential(f"u{i}") for i in range(n)] if elements else [m.differential("u", size=n)]
    u, count = ca.vertcat(*names), m.memory("count", initial=0.0)
    cells = ca.vertsplit(u) if elements else u
    flow = [k * (cells[i + 1] - cells[i]) for i in range(n - 1)] if elements else [k * (u[1:] - u[:-1])]
    rate = ca.vertcat(*flow, 0) - ca.vertcat(0, *flow) - 0.5 * u
    heated = ca.vertcat(ca.MX.ones(n // 4), ca.MX.zeros(n - n // 4))
    rates = {"on": rate + power * heated, "off": rate}
    seen, algebraic = u[0], []
    if probe:
        seen = m.algebraic("seen")
        algebraic = [seen + seen**3 / 10 - k * u[0]]
    modes = {}
    for name, value in rates.items():
        parts = ca.vertsplit(value) if elements else [value]
        modes[name] = m.mode(name, ode=dict(zip(names, parts, strict=True)), algebraic=algebraic)
    cooled = ca.vertcat(u[:1], 0.9 * u[1:3], u[3:])
    reset = dict(zip(names, ca.vertsplit(cooled) if elements else [cooled], strict=True))
    off = m.transition(
        modes["on"], modes["off"], guard=seen - 0.45, direction="rising", reset=reset,
        memory={count: count + u[1]}, name="off",
    )  # fmt: skip
    first = {"reset": [m.post(names[0]) + 0.1 * m.post(names[0]) ** 3 - k * u[0]]} if elements else {}
    m.transition(modes["off"], modes["on"], guard=seen - low, direction="falling", name="on", **first)
    m.initial(modes["on"], {name: 0.0 if elements else [0.0] * n for name in names})
    m.functional("G", integrand=u[0] ** 2, terminal=ca.sumsqr(u) / n + count, at_events={off: u[2] ** 2})
    return m
