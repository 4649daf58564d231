"""Models of the tests of bridges."""

from __future__ import annotations

import math

import casadi as ca

import dae_hybrid as dh


def touching_ball() -> dh.HybridModel:
    """A ball that is thrown up to the height 1 and bounces, below a ceiling at `top`, which it touches for top = 1."""
    m = dh.HybridModel("touching ball")
    g, e, top = m.parameter("g", 9.81), m.parameter("e", 0.8), m.parameter("top", 1.4)
    y, v = m.differential("y"), m.differential("v")
    flight = m.mode("flight", ode={y: v, v: -g})
    m.transition(flight, flight, guard=y, direction="falling", reset={v: -e * v}, name="bounce")
    m.transition(flight, flight, guard=y - top, direction="rising", reset={v: -e * v}, name="ceiling")
    m.initial(flight, {y: 0.5, v: 9.81**0.5})
    m.functional("height", terminal=y)
    return m


def folded() -> dh.HybridModel:
    """x' = -x from x(0) = p, with the terminal |x - exp(-1)| + 1, which has a value and no derivative for p = 1."""
    m = dh.HybridModel("folded")
    p, x = m.parameter("p", 1.0), m.differential("x")
    m.initial(m.mode("run", ode={x: -x}), {x: p})
    m.functional("distance", terminal=ca.fabs(x - math.exp(-1)) + 1)
    return m
