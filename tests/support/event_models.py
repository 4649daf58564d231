"""Models with conditions, clocks, queues and tables of times; each has a functional G."""

from __future__ import annotations

from collections.abc import Callable

import casadi as ca

import dae_hybrid as dh


def counted_bounces() -> dh.HybridModel:
    """A ball that is caught at the top after three bounces: y = e^6 y0 there."""
    m = dh.HybridModel("counted bounces")
    e, y0 = m.parameter("e", 0.8), m.parameter("y0", 1.0)
    y, v, k = m.differential("y"), m.differential("v"), m.memory("k", initial=0.0)
    flight = m.mode("flight", ode={y: v, v: -9.81})
    m.transition(flight, flight, guard=y, direction="falling", reset={v: -e * v}, memory={k: k + 1}, name="bounce")
    m.transition(flight, None, guard=v, direction="falling", when=k >= 3, name="caught")
    m.initial(flight, {y: y0, v: 0.1})
    m.functional("G", terminal=y)
    return m


def guarded_ticks() -> dh.HybridModel:
    """State and time events with conditions on states, memory and other conditions; costs at events."""
    m = dh.HybridModel("guarded ticks")
    a, b = m.parameter("a", 0.3), m.parameter("b", 2.0)
    x, y, c = m.differential("x"), m.differential("y"), m.memory("c", initial=0.0)
    run = m.mode("run", ode={x: 5 * ca.cos(5 * m.time) - a * x, y: 0.2 * x**2 - 0.1 * y})
    other = m.mode("other", ode={x: -3 * x, y: b})
    m.transition(run, run, guard=x, direction="rising", when=y > 0.1, reset={y: 0.5 * y}, memory={c: c + 1}, name="cut")
    m.transition(run, other, every=0.37, when=dh.all_of(c > 3, x > 0), name="tick")
    m.initial(run, {x: -0.1, y: 0.0})
    m.functional("G", integrand=y, at_events={"cut": x + a})
    return m


def doses() -> dh.HybridModel:
    """A table of doses in no order, in two modes with a cost of their own."""
    m = dh.HybridModel("doses")
    k, amounts, times = (
        m.parameter("k", 0.5),
        m.parameter("amounts", [1.0, 2.0, 3.0]),
        m.parameter("times", [1, 0.5, 2]),
    )
    x = m.differential("x")
    fast, slow = m.mode("fast", ode={x: -k * x}), m.mode("slow", ode={x: -0.1 * x})
    m.transition(slow, fast, guard=x > 2.2)
    m.transition("all", "same", at=times, reset={x: x + amounts}, name="dose")
    m.initial(slow, {x: 0.0})
    m.functional("G", integrand=x * (1 + m.active("fast")), at_events={"dose": x * k})
    return m


def sampled_controller() -> dh.HybridModel:
    """Two clocks, the slower one every fifth tick of the faster one; period and gain are parameters."""
    m = dh.HybridModel("sampled controller")
    gain, period, first = m.parameter("gain", 0.5), m.parameter("period", 0.1), m.parameter("first", 0.05)
    x, u, w = m.differential("x"), m.discrete("u", initial=0.0), m.discrete("w", initial=1.0)
    run = m.mode("run", ode={x: u * w - x})
    fast = m.clock(period, offset=first, name="fast")
    slow = m.clock(fast, factor=5, name="slow")
    m.update(fast, {u: u + gain * period * (1 - x)})
    m.update(slow, {w: 0.9 * w + 0.1 * x})
    m.initial(run, {x: 0.0})
    m.functional("G", terminal=x, integrand=u)
    return m


def modulated() -> dh.HybridModel:
    """Pulse width modulation: switched on by a clock and off at a time in memory."""
    m = dh.HybridModel("modulated")
    period, gain = m.parameter("period", 0.1), m.parameter("gain", 0.7)
    x, end = m.differential("x"), m.discrete("end", initial=-1.0)
    on, off = m.mode("on", ode={x: 1 - x}), m.mode("off", ode={x: -x})
    clock = m.clock(period, offset=0.03)
    m.transition("all", on, every=clock, memory={end: m.time + period * gain * (1.2 - x)}, name="on")
    m.transition(on, off, at=end, name="off")
    m.initial(off, {x: 0.2})
    m.functional("G", integrand=x, terminal=m.active("on") * x)
    return m


def _delayed(values: str) -> dh.HybridModel:
    """Two or three executions pending at once."""
    m = dh.HybridModel(f"delayed, values at {values}")
    d, a = m.parameter("d", 0.7), m.parameter("a", 1.0)
    x, q, k = m.differential("x"), m.differential("q", size=2), m.memory("k", initial=0.0)
    run = m.mode("run", ode={x: 12 * a * ca.cos(12 * m.time), q: -0.1 * q})
    m.transition(
        run, run, guard=x, direction="rising", delay=d + 0.05 * k, values=values, pending=3,
        reset={q: q + ca.vertcat(x + 0.2 * m.time, a)}, memory={k: k + 1}, name="pulse",
    )  # fmt: skip
    m.initial(run, {x: -0.1, q: [0.0, 0.1]})
    m.functional("G", integrand=q[0] + q[1] ** 2)
    return m


def delayed() -> dh.HybridModel:
    """Values taken at the execution."""
    return _delayed("execution")


def delayed_values() -> dh.HybridModel:
    """Values taken at the trigger."""
    return _delayed("trigger")


def cancelled() -> dh.HybridModel:
    """A delay longer than the last of three intervals of its condition."""
    m = dh.HybridModel("cancelled")
    d, a, level = m.parameter("d", 0.4), m.parameter("a", 1.0), m.parameter("level", 0.2)
    x, q = m.differential("x"), m.differential("q")
    run = m.mode("run", ode={x: a * 2 * m.time * ca.cos(m.time**2), q: -0.1 * q})
    m.transition("all", "same", guard=x > level, delay=d, persistent=False, reset={q: q + x}, name="alarm", pending=1)
    m.initial(run, {x: 0.0, q: 0.0})
    m.functional("G", integrand=q)
    return m


def left_early() -> dh.HybridModel:
    """A delayed transition that is dropped where another one leaves its source."""
    m = dh.HybridModel("left early")
    d, c = m.parameter("d", 0.5), m.parameter("c", 1.5)
    x, q = m.differential("x"), m.differential("q")
    a, b = m.mode("a", ode={x: 1, q: -q}), m.mode("b", ode={x: -2, q: q})
    m.transition(a, b, guard=x > 0.8, delay=d, reset={q: q + x}, name="late")
    m.transition(a, b, guard=dh.all_of(x > 1.2, m.time < c), reset={q: 2 * q}, name="early")
    m.transition(b, a, guard=x, direction="falling", name="back")
    m.initial(a, {x: 0.0, q: 0.3})
    m.functional("G", integrand=q)
    return m


def logic() -> dh.HybridModel:
    """Conditions of states, time and memory; a guard of memory alone; equations with indicators."""
    m = dh.HybridModel("logic")
    a, b = m.parameter("a", 1.1), m.parameter("b", 2.0)
    x, n, r = m.differential("x"), m.differential("n"), m.memory("r", initial=0.0)
    hot = m.active("hot")
    cold, warm = m.mode("cold"), m.mode("hot", ode={n: 0.1})
    m.equations("temperature", ode={x: a * (1 - 2 * hot) - 0.3 * x})
    m.equations("rest", modes=[cold], ode={n: 0.0})
    m.transition(cold, warm, guard=dh.any_of(dh.all_of(x > 1, m.time > b), x > 2.2), memory={r: r + 1}, name="heated")
    m.transition(warm, cold, guard=dh.not_(x > 0.4), reset={n: n + x}, name="cooled")
    m.transition("all", "same", guard=r - 1.5, direction="rising", reset={n: n + a * x}, name="twice")
    m.initial(cold, {x: 0.0, n: 0.0})
    m.functional("G", terminal=n, integrand=x * hot)
    return m


#: models with the span of a run, and the number of records of an event
MODELS: dict[str, tuple[Callable[[], dh.HybridModel], tuple[float, float], dict[str, int]]] = {
    "counted bounces": (counted_bounces, (0, 4), {"bounce": 3, "caught": 1, "caught not taken": 3}),
    "guarded ticks": (guarded_ticks, (0, 10), {"cut": 4, "cut not taken": 1, "tick": 1, "tick not taken": 13}),
    "doses": (doses, (0, 4), {"dose": 3, "slow->fast": 1}),
    "sampled controller": (sampled_controller, (0, 2.03), {"fast": 20, "slow": 4}),
    "modulated": (modulated, (0, 0.98), {"on": 10, "off": 9}),
    "delayed": (delayed, (0, 4), {"pulse triggered": 8, "pulse": 6}),
    "delayed values": (delayed_values, (0, 3.9), {"pulse triggered": 8, "pulse": 6}),
    "cancelled": (cancelled, (0, 4), {"alarm triggered": 3, "alarm": 2, "alarm released": 3}),
    "left early": (left_early, (0, 4), {"late triggered": 2, "late": 1, "early": 1, "back": 2}),
    "logic": (logic, (0, 9), {"heated": 6, "cooled": 6, "twice": 1}),
}
