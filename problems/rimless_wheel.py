"""The rimless wheel: a wheel of spokes that rolls down a slope, one foothold after the other.

The hub (x, y) of a wheel of mass m and moment of inertia I stands on a spoke of length l at a foot (fx, fy); theta is
the angle of that spoke from the vertical, counted downhill, and 2 alpha the angle between spokes. Two constraints keep
the hub above the foot,

    x = fx + l sin(theta),    y = fy + l cos(theta),    theta = phi - turned.

Where theta reaches gamma + alpha, gamma the slope, the next spoke lands: the constraints change to those of the new
foot, and the impact is inelastic (Corner, Sandu and Sandu 2019, Remark 11, eq. 54; 2020, eq. 40). The foothold and the
angle turned so far are memory (Serban and Recuero 2019, section 4). It follows that

    theta+ = gamma - alpha,    w+ = w- (m l^2 cos(2 alpha) + I) / (m l^2 + I),

the well-known map of the wheel (McGeer 1990); the model does not state it.

References
----------
S. Corner, C. Sandu, A. Sandu, Modeling and sensitivity analysis methodology for hybrid dynamical system, Nonlinear
Analysis: Hybrid Systems 31, 19-40, 2019.

S. Corner, A. Sandu, C. Sandu, Adjoint sensitivity analysis of hybrid multibody dynamical systems, Multibody System
Dynamics 49, 395-420, 2020.

T. McGeer, Passive dynamic walking, International Journal of Robotics Research 9, 62-82, 1990.

R. Serban and A. Recuero, Sensitivity Analysis for Hybrid Systems and Systems with Memory, technical report
TR-2019-01, Simulation-Based Engineering Lab, University of Wisconsin-Madison, 2019.
"""

from __future__ import annotations

from functools import cache

import numpy as np

import dae_hybrid as dh
from dae_hybrid.mechanics import Mechanism
from dae_hybrid.problems._reference import FOLDER, Exact, read_exact

t_span = (0.0, 3.0)
DATA = FOLDER / "rimless_wheel" / "reference.json"
THETA, W = -0.1, 1.2  # initial values


def mechanism() -> Mechanism:
    """The mechanism."""
    mech = Mechanism("rimless_wheel")
    length = mech.parameter("l", 1.0, unit="m", description="length of a spoke")
    alpha = mech.parameter("alpha", 0.35, unit="rad", description="half the angle between spokes")
    gamma = mech.parameter("gamma", 0.12, unit="rad", description="slope")
    inertia = mech.parameter("I", 0.05, unit="kg m^2", description="moment of inertia about the hub")
    g = mech.parameter("g", 9.81, unit="m/s^2", description="gravity")
    hub = mech.point("")
    phi = mech.coordinate("phi", velocity="w", acceleration="w_dot", unit="rad")
    fx, fy = mech.memory("fx", initial=0.0), mech.memory("fy", initial=0.0)
    turned = mech.memory("turned", initial=0.0)
    theta, w = phi - turned, mech.velocity(phi)

    mech.point_mass(hub, 1.0)
    mech.inertia(phi, inertia)
    mech.gravity(g)
    mech.constraint("foot x", hub.x - fx - length * np.sin(theta))
    mech.constraint("foot y", hub.y - fy - length * np.cos(theta))
    roll = mech.mode("roll")
    landed = theta - 2 * alpha  # angle of the next spoke
    mech.event(
        roll,
        roll,
        guard=theta - gamma - alpha,
        direction="rising",
        memory={
            fx: hub.x - length * np.sin(landed),
            fy: hub.y - length * np.cos(landed),
            turned: turned + 2 * alpha,
        },
        name="step",
    )
    mech.initial(roll, {phi: THETA}, {w: W}, guess={hub.y: 1.0})
    mech.functional("theta", terminal=theta)
    mech.functional("w", terminal=w)
    mech.functional("J1", integrand=theta**2)
    mech.functional("J2", integrand=w**2)
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
    """Values and gradients to ten digits or more; derivatives of event times of the first and the last step."""
    return read_exact(DATA, "quadrature of the energy, multiple precision", 1e-11)
