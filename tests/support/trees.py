"""Random trees of bodies, and Lagrange's equations for them."""

from __future__ import annotations

import casadi as ca
import numpy as np
from hypothesis import strategies as st

from dae_hybrid.mechanics import Mechanism, Prismatic, Revolute
from dae_hybrid.mechanics.equations import EquationsOfMotion

numbers = st.floats(-1.5, 1.5).map(lambda value: round(value, 3))
pairs = st.tuples(numbers, numbers)
axes = pairs.filter(lambda axis: np.hypot(*axis) > 0.1)
joints = st.tuples(st.integers(0, 9), st.booleans(), pairs, pairs, axes, pairs, numbers)


def tree(stated, moving):
    """A tree of bodies; `stated` are (parent, kind, place on the parent, place on the body, axis, centre, mass)."""
    mech = Mechanism("tree")
    t = mech.time
    shift = moving * ca.sin(2 * t)
    bodies = []
    for i, (parent, turning, at, local, axis, center, mass) in enumerate(stated):
        own = mech.ground(at[0] + shift, at[1]) if not bodies or parent == 0 else bodies[parent % i].point(*at)
        joint = Revolute(own, local) if turning else Prismatic(own, local, axis=axis)
        bodies.append(mech.body(f"b{i}", joint, mass=1 + mass**2, center=center, inertia=0.1 + abs(mass)))
    mech.gravity(9.81)
    mech.spring(mech.ground(1.0, 2.0), bodies[-1].point(0.3, -0.2), stiffness=5.0, natural_length=0.1, damping=0.4)
    mech.mode("move")
    return mech, bodies


def lagrange(mech, bodies):
    """M and F of Lagrange's equations: energies, potentials and the spring's damper as functions of z, z', t."""
    equations = EquationsOfMotion(mech)
    z, speed, t = equations.q, equations.v, mech.time
    place = {b.name: (b.center.position, b.frame.angle) for b in bodies}
    kinetic, potential = 0, 0
    for body in bodies:
        position, angle = place[body.name]
        velocity = ca.jtimes(position, z, speed) + ca.jacobian(position, t)
        kinetic += body.mass * ca.sumsqr(velocity) / 2 + body.inertia * ca.jtimes(angle, z, speed) ** 2 / 2
        potential += 9.81 * body.mass * position[1]
    end = bodies[-1].frame.point(ca.DM([0.3, -0.2]), "end").position - ca.DM([1.0, 2.0])
    length = ca.norm_2(end)
    potential += 5.0 * (length - 0.1) ** 2 / 2
    stretch = ca.jtimes(length, z, speed) + ca.jacobian(length, t)
    momentum = ca.jacobian(kinetic, speed).T
    mass = ca.jacobian(momentum, speed)
    force = (
        ca.jacobian(kinetic - potential, z).T
        - ca.jtimes(momentum, z, speed)
        - ca.jacobian(momentum, t)
        - 0.4 * stretch * ca.jacobian(length, z).T
    )
    return ca.Function("lagrange", [t, z, speed], [mass, force])
