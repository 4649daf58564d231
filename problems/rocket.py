"""A sounding rocket: fully implicit equations, guarded by an acceleration.

Mass M, velocity v and height h obey the balance of momentum and the definition of the fuel flow f,

    M v' - c f + M g = 0,      M' + f = 0,      h' - v = 0,

stated in implicit form, F(y', y, z, p, t) = 0 (Serban and Recuero 2019, eq. 1), where F_y' depends on the state. In
mode "full" the flow f is an algebraic variable with f = q. When the acceleration v' has risen to a, a limit for the
payload, the engine is throttled: in mode "throttled" v' = a replaces f = q and determines f. The guard is a derivative,
so that its rate contains v'' (SR eq. 4, 6b). When the mass has fallen to M_b the tank is empty, the first stage, of
mass M_s, is dropped, and the payload coasts, an ODE without mass; the run ends at the highest point.

The solution has a closed form. With a + g = b:

    full       v = c ln(M0/M) - g t,  h = (c/q) (M0 - M - M ln(M0/M)) - g t^2/2,  until M1 = c q / b
    throttled  M = M1 exp(-b (t - t1)/c),  v = v1 + a (t - t1)
    coast      v = v2 - g (t - t2),  highest at t2 + v2/g

The costs are the height reached, the time to reach it, and the integral of (v')^2 + f^2 while the engine burns.

References
----------
R. Serban and A. Recuero, Sensitivity Analysis for Hybrid Systems and Systems with Memory, technical report
TR-2019-01, Simulation-Based Engineering Lab, University of Wisconsin-Madison, 2019.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

import dae_hybrid as dh
from dae_hybrid.problems._reference import Exact, complex_step

#: longer than the flight: the run ends at the highest point
t_span = (0.0, 400.0)

NOMINAL = {"c": 2.0, "q": 2.5, "g": 0.00981, "a": 0.04, "M0": 200.0, "Mb": 60.0}


def model() -> dh.HybridModel:
    """The declaration; kilometres, kilograms and seconds."""
    m = dh.HybridModel("rocket")
    c = m.parameter("c", NOMINAL["c"], unit="km/s", description="speed of the exhaust")
    q = m.parameter("q", NOMINAL["q"], unit="kg/s", description="full flow")
    g = m.parameter("g", NOMINAL["g"], unit="km/s^2", description="gravity")
    a = m.parameter("a", NOMINAL["a"], unit="km/s^2", description="largest acceleration")
    M0 = m.parameter("M0", NOMINAL["M0"], unit="kg", description="initial mass")
    Mb = m.parameter("Mb", NOMINAL["Mb"], unit="kg", description="mass with empty tank")
    M, v, h = m.differential("M", unit="kg"), m.differential("v", unit="km/s"), m.differential("h", unit="km")
    f = m.algebraic("f", guess=2.0, unit="kg/s", description="flow")
    balance = [M * m.der(v) - c * f + M * g, m.der(M) + f, m.der(h) - v]

    full = m.mode("full", residual=[*balance, f - q])
    throttled = m.mode("throttled", residual=[*balance, m.der(v) - a])
    coast = m.mode("coast", ode={v: -g, h: v}, algebraic=[f])
    m.transition(full, throttled, guard=m.der(v) - a, direction="rising", name="throttle")
    m.transition(throttled, coast, guard=M - Mb, direction="falling", name="burnout")
    m.transition(coast, None, guard=v, direction="falling", name="highest")

    m.initial(full, {M: M0, v: 0.0, h: 0.0})
    m.functional("height", terminal=h)
    m.functional("time", terminal=m.time)
    m.functional("load", integrand=(m.der(v) + g) ** 2 + 1e-3 * f**2)
    return m


@cache
def system() -> dh.HybridSystem:
    """The built model."""
    return model().build()


def closed_form(p: Any) -> dict[str, Any]:
    """Event times and costs from (c, q, g, a, M0, Mb), which may be complex."""
    c, q, g, a, start, empty = p
    b = a + g
    mass = c * q / b
    t1 = (start - mass) / q
    v1 = c * np.log(start / mass) - g * t1
    h1 = c / q * (start - mass - mass * np.log(start / mass)) - g * t1**2 / 2
    burn = c / b * np.log(mass / empty)
    v2, h2 = v1 + a * burn, h1 + v1 * burn + a * burn**2 / 2
    # with v' + g = c q / M, M = M0 - q t: integral c^2 q (1/M1 - 1/M0), and the flow q
    load = c**2 * q * (1 / mass - 1 / start) + 1e-3 * q**2 * t1
    # with v' + g = b and f = M b / c
    load = load + b**2 * burn + 1e-3 * b / (2 * c) * (mass**2 - empty**2)
    t2 = t1 + burn
    return {
        "height": h2 + v2**2 / (2 * g),
        "time": t2 + v2 / g,
        "load": load,
        "events": np.array([t1, t2, t2 + v2 / g]),
    }


@cache
def reference() -> Exact:
    """The closed form, differentiated by complex steps."""
    p = np.array(list(NOMINAL.values()))
    exact = closed_form(p)
    by_p = complex_step(closed_form, p)
    names = ("height", "time", "load")
    return Exact(
        values={name: float(exact[name]) for name in names},
        gradients={name: by_p[name] for name in names},
        event_times=exact["events"],
        event_time_sensitivity=by_p["events"].T,
        final={"h": float(exact["height"]), "v": 0.0},
        source="closed form",
        accuracy=1e-14,
    )
