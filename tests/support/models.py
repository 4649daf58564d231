"""Small models that many tests share."""

import casadi as ca
import numpy as np

import dae_hybrid as dh

PI = np.pi


def decay() -> dh.HybridModel:
    """y' = -k y from y0; y = y0 exp(-k t)."""
    m = dh.HybridModel("decay")
    k, y0 = m.parameter("k", 0.7), m.parameter("y0", 2.0)
    y = m.differential("y")
    run = m.mode("run", ode={y: -k * y})
    m.initial(run, {y: y0})
    m.functional("area", integrand=y)
    m.functional("end", terminal=y)
    return m


def oscillator() -> dh.HybridModel:
    """x'' = -w^2 x from (a, 0); x = a cos(w t)."""
    m = dh.HybridModel("oscillator")
    w, a = m.parameter("w", 2.0), m.parameter("a", 1.5)
    x, v = m.differential("x"), m.differential("v")
    run = m.mode("run", ode={x: v, v: -(w**2) * x})
    m.initial(run, {x: a, v: 0.0})
    m.functional("end", terminal=x)
    return m


def ball() -> dh.HybridModel:
    """Problem P3 of the speed comparison: y0 = 1, v0 = 0, e = 0.8, g = 9.81."""
    m = dh.HybridModel("ball")
    e, g = m.parameter("e", 0.8), m.parameter("g", 9.81)
    y, v = m.differential("y"), m.differential("v")
    flight = m.mode("flight", ode={y: v, v: -g})
    m.transition(flight, flight, guard=y, direction="falling", reset={v: -e * v}, name="bounce")
    m.initial(flight, {y: 1.0, v: 0.0})
    m.functional("height", terminal=y)
    return m


def circuit() -> dh.HybridModel:
    """Index 1: y' = -z with 0 = z - k y, until y falls to c; then 0 = z + z^3 - q y."""
    m = dh.HybridModel("circuit")
    k, c, q = m.parameter("k", 1.2), m.parameter("c", 0.5), m.parameter("q", 2.0)
    y, z = m.differential("y"), m.algebraic("z")
    first = m.mode("first", ode={y: -z}, algebraic=[z - k * y])
    second = m.mode("second", ode={y: -z}, algebraic=[z + z**3 - q * y])
    m.transition(first, second, guard=y - c, direction="falling", name="switch")
    m.initial(first, {y: 1.0})
    m.functional("work", integrand=z**2)
    m.functional("both", integrand=ca.vertcat(z * y**2, y * z), terminal=ca.vertcat(y, z))
    return m


def em() -> dh.HybridModel:
    """Serban and Recuero's second example with the short form of the stress."""
    m = dh.HybridModel("em")
    t = m.time
    ka, kb = m.parameter("ka", 32 * PI**2), m.parameter("kb", PI**2)
    alpha, beta = m.parameter("alpha", 205.0), m.parameter("beta", 0.0)
    u, v, z = m.differential("u"), m.differential("v"), m.algebraic("z")
    u_star, z_star = m.memory("u_star", of=u, initial=0.0), m.memory("z_star", of=z, initial=0.0)

    def limit(w: ca.MX) -> ca.MX:
        return -2 * beta * w + 2 * np.sinh(beta * w) + kb * w

    def stress(xi: int) -> ca.MX:
        c = xi * (ka - kb + 1e-20) / (2 * alpha)
        return limit(u) + c - np.exp(-alpha * xi * (u - u_star)) * (limit(u_star) + c - z_star)

    force = 0.5 * t * np.sin(2 * PI * t)
    loading = m.mode("loading", ode={u: v, v: force - z}, algebraic=[stress(1) - z])
    unloading = m.mode("unloading", ode={u: v, v: force - z}, algebraic=[stress(-1) - z])
    m.transition(loading, unloading, guard=v, direction="falling")
    m.transition(unloading, loading, guard=v, direction="rising")
    m.initial(loading, {u: 0.0, v: 0.0})
    m.functional("G", integrand=u**2)
    return m


def counter() -> dh.HybridModel:
    """A ramp that is reset at a threshold, with a memory that counts: y' = k, y -> r y at y = c, n -> n + 1."""
    m = dh.HybridModel("counter")
    k, c, r = m.parameter("k", 1.0), m.parameter("c", 0.75), m.parameter("r", 0.2)
    y, n = m.differential("y"), m.memory("n", initial=0.0)
    run = m.mode("run", ode={y: k})
    m.transition(run, run, guard=y - c, direction="rising", reset={y: r * y}, memory={n: n + 1}, name="tooth")
    m.initial(run, {y: 0.0})
    m.functional("end", terminal=y)
    m.functional("area", integrand=y)
    m.functional("count", terminal=n)
    return m


def switched() -> dh.HybridModel:
    """Modes with 1, 2, .. states of their own, a memory that counts, an integrand that jumps; parameters everywhere."""
    m = dh.HybridModel("switched")
    a, b, c = m.parameter("a", 1.3), m.parameter("b", 0.4), m.parameter("c", 0.2)
    y, z, w = m.differential("y"), m.differential("z"), m.algebraic("w")
    count = m.memory("count", initial=a * 0.1)
    modes = [
        m.mode("up", ode={y: a - w}, algebraic=[w - b * y]),
        m.mode("down", ode={y: -b * y - w, z: count - z}, algebraic=[w - c * z]),
    ]
    m.transition(
        modes[0], modes[1], guard=y - 1 - count, direction="rising", reset={z: a * y}, memory={count: count + c * y}
    )
    m.transition(modes[1], modes[0], guard=y - c, direction="falling", reset={y: y + b * z})
    m.initial(modes[0], {y: b})
    m.functional("G", integrand=y**2 + w, terminal=y * a)
    m.functional("V", integrand=ca.vertcat(y * w, count))
    m.functional("end", terminal=w * count)
    return m
