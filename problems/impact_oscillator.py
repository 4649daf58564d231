"""An impact oscillator: a driven mass that hits a stop.

    m x'' + c x' + k x = F cos(W t),    x <= d,    v+ = -e v-  where x = d.

Corner, Sandu and Sandu (2020), section 2.4: an unconstrained mechanical system with an elastic impact. The impact
law and the impulse are those of `Restitution`; with one coordinate the law is the jump function v+ = -e v- of eq. 21.
Serban and Recuero (2019) state the sensitivities of general transitions (eq. 27, 28).

`reference` contains values, gradients and event times from the closed form between impacts, in 60-digit arithmetic
(``reference/impacts/make_reference.py``).

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

t_span = (0.0, 12.0)
DATA = FOLDER / "impacts" / "impact_oscillator.json"


def mechanism() -> Mechanism:
    """The mechanism."""
    mech = Mechanism("impact_oscillator")
    m = mech.parameter("m", 1.0, unit="kg", description="mass")
    c = mech.parameter("c", 0.1, unit="N s/m", description="damping")
    k = mech.parameter("k", 4.0, unit="N/m", description="stiffness")
    F = mech.parameter("F", 1.0, unit="N", description="amplitude of the load")
    W = mech.parameter("W", 1.5, unit="1/s", description="frequency of the load")
    d = mech.parameter("d", 0.3, unit="m", description="position of the stop")
    e = mech.parameter("e", 0.7, description="coefficient of restitution")
    x = mech.coordinate("x", velocity="v", acceleration="a", unit="m")
    v = mech.velocity(x)

    mech.inertia(x, m)
    mech.force({x: F * np.cos(W * mech.time) - c * v - k * x})
    free = mech.mode("free")
    hit = mech.event(free, free, guard=x - d, direction="rising", impact=Restitution(e), name="stop")
    mech.initial(free, {x: 0.0})
    mech.functional("work", integrand=v**2)
    mech.functional("impulses", at_events={hit: mech.impulse(hit) ** 2})
    mech.functional("place", terminal=x)
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
    return read_exact(DATA, "closed form between impacts, 60 digits", 1e-19)
