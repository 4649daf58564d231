"""A pendulum that hits a stop, in natural coordinates: a constraint, and an impact that satisfies it.

A bob of mass m at (x, y) hangs on a rod of length L. A stop stands at the angle -b from the downward vertical:

    m x'' = -2 x lambda,  m y'' = -m g - 2 y lambda,  0 = x^2 + y^2 - L^2,
    x cos(b) - y sin(b) >= 0,

and where this distance becomes zero, an impulse of the stop and one in the rod reverse the velocity along its normal
with a coefficient of restitution e (Newton's law within the constraints). 2 L lambda is the tension.

The equations have index 3; `Mechanism` reduces it in any of its formulations (Corner, Sandu and Sandu 2020, eq. 27 to
32; the form of Serban and Recuero 2019, section 3.3, by default). `reference` contains values, gradients and event
times from Taylor series of the angle in 60-digit arithmetic (``reference/impacts/make_reference.py``).

References
----------
S. Corner, A. Sandu, C. Sandu, Adjoint sensitivity analysis of hybrid multibody dynamical systems, Multibody System
Dynamics 49, 395-420, 2020.

R. Serban and A. Recuero, Sensitivity Analysis for Hybrid Systems and Systems with Memory, technical report
TR-2019-01, Simulation-Based Engineering Lab, University of Wisconsin-Madison, 2019.
"""

from __future__ import annotations

from functools import cache

import numpy as np

import dae_hybrid as dh
from dae_hybrid.mechanics import Mechanism, Restitution
from dae_hybrid.problems._reference import FOLDER, Exact, read_exact

t_span = (0.0, 5.0)
DATA = FOLDER / "impacts" / "pendulum_with_stop.json"


def mechanism() -> Mechanism:
    """The mechanism."""
    mech = Mechanism("pendulum_with_stop")
    g = mech.parameter("g", 9.81, unit="m/s^2", description="gravity")
    L = mech.parameter("L", 1.2, unit="m", description="length of the rod")
    m = mech.parameter("m", 0.5, unit="kg", description="mass of the bob")
    b = mech.parameter("b", 0.35, unit="rad", description="angle of the stop")
    e = mech.parameter("e", 0.8, description="coefficient of restitution")
    start = mech.parameter("start", 0.9, unit="rad", description="initial angle")
    bob = mech.point("")
    rod = mech.constraint("rod", bob.x**2 + bob.y**2 - L**2)
    mech.point_mass(bob, m)
    mech.gravity(g)

    swing = mech.mode("swing")
    distance = bob.x * np.cos(b) - bob.y * np.sin(b)
    hit = mech.event(swing, swing, guard=distance, direction="falling", impact=Restitution(e), name="stop")
    mech.initial(swing, {bob.x: L * np.sin(start), bob.y: -L * np.cos(start)})
    mech.functional("load", integrand=(2 * L * rod) ** 2)
    mech.functional("impulses", at_events={hit: mech.impulse(hit)})
    mech.functional("height", terminal=bob.y)
    return mech


def model() -> dh.HybridModel:
    """The declaration."""
    return mechanism().model()


@cache
def system() -> dh.HybridSystem:
    """The built model."""
    return model().build()


@cache
def reference() -> Exact:
    """Values, gradients and events to 20 digits."""
    return read_exact(DATA, "Taylor series of the angle, 60 digits", 1e-19)
