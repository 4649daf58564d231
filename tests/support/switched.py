"""Systems stated twice, by relations in their expressions and by modes: for tests, and for benchmarks/relations.py."""

from __future__ import annotations

import casadi as ca

import dae_hybrid as dh


def controller(*, relations: bool) -> dh.HybridModel:
    """A PI controller whose output saturates, with its integral held meanwhile."""
    m = dh.HybridModel("controller")
    kp, ki, most, r = m.parameter("kp", 2.0), m.parameter("ki", 3.0), m.parameter("most", 0.8), m.parameter("r", 1.0)
    y, i = m.differential("y"), m.differential("i")
    e = r * ca.sin(2 * m.time) - y
    u = kp * e + ki * i
    if relations:
        clipped = ca.if_else(u > most, most, ca.if_else(u < -most, -most, u))
        saturated = ca.logic_or(u > most, u < -most)
        first = m.mode("run", ode={y: -y + clipped, i: ca.if_else(saturated, 0, e)})
    else:
        first = m.mode("linear", ode={y: -y + u, i: e})
        high, low = m.mode("high", ode={y: -y + most, i: 0}), m.mode("low", ode={y: -y - most, i: 0})
        m.transition(first, high, guard=u - most, direction="rising")
        m.transition(high, first, guard=u - most, direction="falling")
        m.transition(first, low, guard=u + most, direction="falling")
        m.transition(low, first, guard=u + most, direction="rising")
    m.initial(first, {y: 0.0, i: 0.0})
    m.functional("G", integrand=e**2, terminal=y)
    return m


def thermostat(*, relations: bool) -> dh.HybridModel:
    """A heater that goes off above one temperature and on below another."""
    m = dh.HybridModel("thermostat")
    c, low, high, power = (m.parameter(n, v) for n, v in (("c", 0.5), ("low", 19.0), ("high", 21.0), ("power", 20.0)))
    T = m.differential("T")
    loss = -c * (T - 5 * ca.sin(m.time))
    if relations:
        on = m.memory("on", initial=1.0)
        first = m.mode("run", ode={T: loss + ca.if_else(on > 0.5, power, 0)})
        m.transition(first, first, guard=high < T, memory={on: 0})
        m.transition(first, first, guard=low > T, memory={on: 1})
    else:
        first, off = m.mode("on", ode={T: loss + power}), m.mode("off", ode={T: loss})
        m.transition(first, off, guard=T - high, direction="rising")
        m.transition(off, first, guard=T - low, direction="falling")
    m.initial(first, {T: 20.0})
    m.functional("G", integrand=(T - 20) ** 2, terminal=T)
    return m
