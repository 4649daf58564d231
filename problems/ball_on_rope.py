"""A ball on a rope that is reeled in: an ODE that gains a constraint by an impact and loses it again.

A point ball flies in a vertical plane. A rope ties it to the origin; it is reeled in, L(t) = L0 - w t. When the
distance reaches L the rope takes an impulse P along itself, and the ball swings:

    flight   x' = vx,        y' = vy,        vx' = 0,     vy' = -g,         z = 0
    swing    x' = vx - x mu, y' = vy - y mu, vx' = -x z,  vy' = -g - y z,
             0 = (x^2 + y^2 - L^2) / 2,      0 = x vx + y vy - L L'

The swing is a DAE of Hessenberg index 2 (Serban and Recuero 2019, section 3.3, the form that they name for "stabilized
index reduction of the index-3 equations of motion in multibody system problems", after Gear, Gupta and Leimkuhler): the
constraints contain neither the tension z nor the multiplier mu, they depend on time and on the parameters L0 and w, and
their time derivatives determine z and mu (which is zero). The impact is an implicit reset T(post, pre, p, t) = 0 (eq.
16c) with the impulse as an unknown,

    v+ = v- + P (x, y),     x vx+ + y vy+ = L L',

where the second equation is the constraint of the swing and is not stated again. The rope goes slack when its tension,
an algebraic variable, falls to zero. The parameters are g, L0, w and the initial speed v0.

The costs are the integral of x^2 + z^2/10 over both modes, the sum of the squared impulses, and a terminal value.
`reference` contains them, their gradients, and the event times with their derivatives, to 20 digits, by Taylor series
in polar coordinates with 60-digit arithmetic (``reference/ball_on_rope/make_reference.py``).

References
----------
R. Serban and A. Recuero, Sensitivity Analysis for Hybrid Systems and Systems with Memory, technical report
TR-2019-01, Simulation-Based Engineering Lab, University of Wisconsin-Madison, 2019.

C. W. Gear, B. Leimkuhler, G. K. Gupta, Automatic integration of Euler-Lagrange equations with constraints, Journal of
Computational and Applied Mathematics 12-13, 77-90, 1985.
"""

from __future__ import annotations

from functools import cache

import numpy as np

import dae_hybrid as dh
from dae_hybrid.problems._reference import FOLDER, Exact, read_json

#: the interval of the reference
t_span = (0.0, 3.75)

DATA = FOLDER / "ball_on_rope" / "reference.json"
START = (0.5, 0.4)


def model() -> dh.HybridModel:
    """The declaration."""
    m = dh.HybridModel("ball_on_rope")
    t = m.time
    g = m.parameter("g", 9.81, unit="m/s^2", description="gravity")
    L0 = m.parameter("L0", 1.0, unit="m", description="length of the rope at t = 0")
    w = m.parameter("w", 0.05, unit="m/s", description="speed of reeling in")
    v0 = m.parameter("v0", 1.0, unit="m/s", description="initial horizontal speed")
    x, y = m.differential("x", unit="m"), m.differential("y", unit="m")
    vx, vy = m.differential("vx", unit="m/s"), m.differential("vy", unit="m/s")
    z = m.algebraic("z", unit="1/s^2", description="tension per mass and length")
    mu = m.algebraic("mu", unit="1/s", description="multiplier of the position constraint")
    P = m.unknown("P", unit="1/s", description="impulse per mass and length")
    length = L0 - w * t

    flight = m.mode("flight", ode={x: vx, y: vy, vx: 0.0, vy: -g}, algebraic=[z])
    swing = m.mode(
        "swing",
        ode={x: vx - x * mu, y: vy - y * mu, vx: -x * z, vy: -g - y * z},
        constraint=[(x**2 + y**2 - length**2) / 2, x * vx + y * vy + length * w],
    )
    impact = [m.post(vx) - (vx + P * x), m.post(vy) - (vy + P * y)]
    taut = m.transition(flight, swing, guard=x**2 + y**2 - length**2, direction="rising", reset=impact, name="taut")
    m.transition(swing, flight, guard=z, direction="falling", name="slack")

    m.initial(flight, {x: START[0], y: START[1], vx: v0, vy: 0.0})
    m.functional("G", integrand=x**2 + 0.1 * z**2)
    m.functional("H", at_events={taut: P**2})
    m.functional("K", terminal=x + 2 * vy)
    return m


@cache
def system() -> dh.HybridSystem:
    """The built model."""
    return model().build()


@cache
def reference() -> Exact:
    """Values, gradients and events to 20 digits; the states after the events are x, y, vx, vy."""
    data = read_json(DATA)
    return Exact(
        values={name: float(value) for name, value in data["values"].items()},
        gradients={name: np.array(row, dtype=float) for name, row in data["gradients"].items()},
        event_times=np.array([float(event["time"]) for event in data["events"]]),
        event_time_sensitivity=np.array([[float(d) for d in event["by_parameter"]] for event in data["events"]]),
        final={name: float(v) for name, v in zip(("x", "y", "vx", "vy"), data["final_state"], strict=True)},
        source="Taylor series in polar coordinates, 60 digits",
        accuracy=1e-19,
    )
