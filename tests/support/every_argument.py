"""A model that uses every argument of every declaration."""

import casadi as ca
import numpy as np

import dae_hybrid as dh


def everything() -> dh.HybridModel:
    """A model that uses every argument of every declaration, with awkward names."""
    m = dh.HybridModel('every "thing"\\')
    k = m.parameter("k", [1.0, 2.0], unit="1/s", description="rates \u00e9")
    pi, lam, data = m.parameter("pi", 3.0), m.parameter("lambda", 0.5), m.parameter("data", 1.5)
    x, y = m.differential("x", size=2, unit="m"), m.differential("y*")
    z = m.algebraic("z", guess=[1.0, 2.0], size=2, bounds=(None, [5.0, np.inf]))
    force = m.algebraic("f.1", guess=0.5, bounds=(0, None))
    j = m.unknown("impulse[1]", guess=2.0)
    held = m.memory("held", of=x)
    count = m.memory("count", initial=pi, size=2, description="counts")
    push = m.signal("push", [0.0, 1.0, 2.0], k[0] * np.array([0.0, 1.0, 0.5]), outside="hold")
    steps = m.signal("a step", [0.0, 1.0], [1.0, 2.0], kind="previous")
    curve = m.signal("curve", np.linspace(0, 3, 30), np.sin(np.linspace(0, 3, 30)), kind="cubic")
    one = m.mode(
        "one", ode={x: k * x + push}, residual=[("balance", m.der(y) + ca.sin(y) - lam), z - ca.vertcat(x[1], y)],
        algebraic=[("force", force - data * steps)],
    )  # fmt: skip
    two = m.mode("two", ode={x: 0, y: curve + m.der(push)}, algebraic=[("pair", z - x), force - m.time])
    hit = m.transition(
        one, two, guard=y - dh.smooth(ca.fmax(x[0], 0)), direction="falling", memory={count: count + m.post(z)},
        reset=[("law", m.post(y) + lam * m.pre(y)), m.post(x) - x - j, ("unknown", j - m.post(m.der(y)) * 0 - 1)],
        guess={y: 1.0, j: 3.0}, on_entry="fire", resolution=0.1, name="a hit",
    )  # fmt: skip
    m.transition(two, one, at=lam, project=[y], metric=ca.vertcat(2.0), reset={x: 2 * x})
    m.transition(two, None, every=2 * lam, on_entry="error")
    m.transition(two, one, guard=ca.logic_and(x[0] > 1, ca.logic_not(y < 2)))
    m.require(one, x[0] + 10, 'Too "far".')
    m.initial(one, {x: ca.vertcat(pi, 1)}, equations=[("rest", m.der(y) - 1)], guess={y: 0.1, m.der(y): 1.0})
    m.functional("whole", integrand=ca.if_else(x[0] < y, x[0], y), terminal=z[0], at_events={hit: j**2 + m.post(y)},
                 at_times=[(lam, y), (np.linspace(0, 1, 30), (y - np.linspace(1, 2, 30)) ** 2)])  # fmt: skip
    m.functional("pair", terminal=ca.vertcat(data, held[1]))
    for kind in ("maximum", "minimum", "maximum_abs", "time_of_maximum", "time_of_minimum", "time_of_maximum_abs"):
        m.functional(f"{kind} of y", **{kind: y + lam})
    m.functional("rise", rise_time=(y, 0.1, lam), settling_time=(y, 1.0, 0.05 * lam))
    m.functional("above", overshoot=(x, 0.0, lam), time_above=(x, lam), exceedance=(x, y))
    return m
