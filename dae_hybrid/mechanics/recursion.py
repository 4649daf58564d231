"""Equations of motion of bodies in joint coordinates, by recursion along the tree (semi-recursive).

With V_i = (velocity of the point of body i at its reference point, angular velocity), the joints give the recursions
``V_i = B_i V_h + b_i z_i'`` and ``V_i' = B_i V_h' + b_i z_i'' + d_i`` from the parent h (Lopez Varela, Dopico and
Luaces 2023, eq. 4). Masses and forces are accumulated from the tips to the ground (eq. 20 to 24), which gives
``M z'' = Q`` (eq. 8). The reference points are the centres of mass (RTdyn0) or the origin of the plane (RTdyn1); both
give the same equations, rounded differently.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import casadi as ca

from dae_hybrid.mechanics.bodies import Body, perpendicular

Reference = Literal["center", "origin"]


def _shift(arm: ca.MX) -> ca.MX:
    """The matrix that maps (velocity, angular velocity) at a point to those at the point displaced by `arm`."""
    return ca.blockcat([[ca.MX.eye(2), perpendicular(arm)], [ca.MX(1, 2), ca.MX(1)]])


@dataclass(frozen=True, eq=False)
class _Link:
    """The terms of one body: B and b (eq. 4), the accumulated d (eq. 24), its mass matrix and forces (eq. 22)."""

    place: ca.MX  # the reference point
    velocity: ca.MX  # of that point
    B: ca.MX
    b: ca.MX
    d: ca.MX
    mass: ca.MX
    force: ca.MX


def _link(body: Body, parent: _Link | None, reference: Reference, applied: ca.MX) -> _Link:
    center, joint, omega = body.center, body.joint, body.frame.omega
    zero = ca.MX.zeros(2)
    place, velocity = (center.position, center.velocity) if reference == "center" else (zero, zero)
    b, b_rate = joint.column(place), joint.column_rate(velocity)
    if parent is None:  # the ground may move, but does not turn
        B, d = ca.MX.eye(3), ca.vertcat(joint.at.acceleration, 0)
    else:
        B = _shift(place - parent.place)
        d = B @ parent.d + ca.vertcat(perpendicular(velocity - parent.velocity) * joint.parent.omega, 0)
    d += b_rate * body.velocity
    to_center = _shift(center.position - place)
    own = ca.diagcat(body.mass, body.mass, body.inertia)
    inertial = body.mass * omega * perpendicular(center.velocity - velocity)
    force = to_center.T @ (applied - ca.vertcat(inertial, 0))
    return _Link(place, velocity, B, b, d, to_center.T @ own @ to_center, force)


def _parents(bodies: list[Body]) -> list[int | None]:
    """Indices of the parents; None for the ground."""
    order = {id(body): i for i, body in enumerate(bodies)}
    return [None if body.parent is None else order[id(body.parent)] for body in bodies]


def equations_of_motion(bodies: list[Body], applied: list[ca.MX], reference: Reference) -> tuple[ca.MX, ca.MX]:
    """The mass matrix M (n, n) and the forces Q (n, 1) of the joint coordinates, in the order of the bodies.

    Parameters
    ----------
    bodies : list of Body
        Parents precede their children.
    applied : list of MX, shape (3, 1)
        Force and moment on every body, about its centre of mass.
    reference : {"center", "origin"}
        The reference points.
    """
    parents = _parents(bodies)
    links: list[_Link] = []
    for body, parent, own in zip(bodies, parents, applied, strict=True):
        links.append(_link(body, None if parent is None else links[parent], reference, own))
    masses, forces = [link.mass for link in links], [link.force - link.mass @ link.d for link in links]
    entries: dict[tuple[int, int], ca.MX] = {}
    force_rows = [ca.MX(1, 1)] * len(bodies)
    for i in reversed(range(len(bodies))):
        link, parent = links[i], parents[i]
        force_rows[i] = link.b.T @ forces[i]
        carried, at = masses[i] @ link.b, i
        entries[i, i] = link.b.T @ carried
        while (above := parents[at]) is not None:
            carried = links[at].B.T @ carried
            entries[i, above] = entries[above, i] = links[above].b.T @ carried
            at = above
        if parent is not None:
            masses[parent] += link.B.T @ masses[i] @ link.B
            forces[parent] += link.B.T @ forces[i]
    n = len(bodies)
    where = sorted(entries, key=lambda place: (place[1], place[0]))
    pattern = ca.Sparsity.triplet(n, n, [i for i, _ in where], [j for _, j in where])
    return ca.MX(pattern, ca.vertcat(*(entries[place] for place in where))), ca.vertcat(*force_rows)


class LargeTree:
    """The same equations for many bodies, with their motion and the wrenches on their joints as variables.

    Every equation contains a body and its neighbours only, so that the cost of matrices and of their factors grows in
    proportion to the number of bodies.
    """

    def __init__(self, bodies: list[Body], reference: Reference) -> None:
        self.bodies, self.parents = bodies, _parents(bodies)
        origin = ca.MX.zeros(2)
        self.places = [body.center.position if reference == "center" else origin for body in bodies]
        #: the centres of mass relative to the reference points; None where they coincide
        self.arms = [None if reference == "center" else body.center.position for body in bodies]
        #: shift from the reference point of the parent to that of the body
        self._from_parent = [
            None if parent is None else _shift(place - self.places[parent])
            for place, parent in zip(self.places, self.parents, strict=True)
        ]
        self._columns = [body.joint.column(place) for body, place in zip(bodies, self.places, strict=True)]
        self.variables = [body.lifted for body in bodies if body.lifted is not None]

    def motion(self) -> list[tuple[str, ca.MX]]:
        """The equations of all poses, of all twists, and of all rates of twists."""
        return [
            (f"{text} of body '{body.name}'", body.lifted.motion[kind] - body.lifted.stated[kind])
            for kind, text in enumerate(("pose", "twist", "rate of the twist"))
            for body in self.bodies
            if body.lifted is not None
        ]

    def inertial(self) -> list[ca.MX]:
        """Mass times acceleration of every body, and inertia times angular acceleration."""
        return [
            ca.vertcat(body.mass * body.center.acceleration, body.inertia * body.frame.alpha) for body in self.bodies
        ]

    def momenta(self, speeds: ca.MX, twists: list[ca.MX | None]) -> tuple[list[ca.MX], list[tuple[str, ca.MX]]]:
        """Momentum and spin of every body for joint velocities (n, 1) and resting ground.

        `twists` are variables for the twists of bodies at their reference points, or None; their equations follow.
        """
        found: list[ca.MX] = []
        moving: list[ca.MX] = []
        equations = []
        for i, body in enumerate(self.bodies):
            parent, shift = self.parents[i], self._from_parent[i]
            twist = self._columns[i] * speeds[i]
            if parent is not None and shift is not None:
                twist += shift @ moving[parent]
            if (variable := twists[i]) is not None:
                equations.append((f"jump of the twist of body '{body.name}'", variable - twist))
                twist = variable
            moving.append(twist)
            velocity = twist[:2]
            if self.arms[i] is not None:
                velocity += twist[2] * perpendicular(self.arms[i])
            found.append(ca.vertcat(body.mass * velocity, body.inertia * twist[2]))
        return found, equations

    def along_joints(self, wrenches: list[ca.MX], carried: list[ca.MX | None]) -> tuple[ca.MX, list[tuple[str, ca.MX]]]:
        """The forces along the joint coordinates, (n, 1), of wrenches about the centres of mass.

        `carried` are variables for the wrenches that joints transmit, or None; their equations follow.
        """
        total = [
            wrench if arm is None else _shift(arm).T @ wrench for arm, wrench in zip(self.arms, wrenches, strict=True)
        ]
        along, equations = [ca.MX(1, 1)] * len(self.bodies), []
        for i in reversed(range(len(self.bodies))):
            if (variable := carried[i]) is not None:
                equations.append((f"wrench on the joint of body '{self.bodies[i].name}'", variable - total[i]))
                total[i] = variable
            along[i] = self._columns[i].T @ total[i]
            parent, shift = self.parents[i], self._from_parent[i]
            if parent is not None and shift is not None:
                total[parent] += shift.T @ total[i]
        return ca.vertcat(*along), equations[::-1]
