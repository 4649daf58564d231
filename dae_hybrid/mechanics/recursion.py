"""Equations of motion of bodies in joint coordinates, by recursion along the tree (semi-recursive).

With V_i = (velocity of the point of body i at its reference point, angular velocity), the joints give the recursions
``V_i = B_i V_h + b_i z_i'`` and ``V_i' = B_i V_h' + b_i z_i'' + d_i`` from the parent h (Lopez Varela, Dopico and
Luaces 2023, eq. 4). Masses and forces are accumulated from the tips to the ground (eq. 20 to 24), which gives
``M z'' = Q`` (eq. 8). The reference points are the centres of mass (RTdyn0) or the origin of the plane (RTdyn1); both
give the same equations, rounded differently.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import casadi as ca

from dae_hybrid.mechanics.bodies import Body, perpendicular

Reference = Literal["center", "origin"]


def _cross(arm: ca.MX, force: ca.MX) -> ca.MX:
    """Moment of a force."""
    return arm[0] * force[1] - arm[1] * force[0]


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


def _link(body: Body, parent: _Link | None, reference: Reference, loads: Iterable[tuple[ca.MX, ca.MX]]) -> _Link:
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
    force = -to_center.T @ ca.vertcat(inertial, 0)
    for point, pull in loads:
        force += ca.vertcat(pull, _cross(point - place, pull))
    return _Link(place, velocity, B, b, d, to_center.T @ own @ to_center, force)


def equations_of_motion(
    bodies: Mapping[str, Body], loads: Iterable[tuple[Body, ca.MX, ca.MX]], reference: Reference
) -> tuple[ca.MX, ca.MX]:
    """The mass matrix M (n, n) and the forces Q (n, 1) of the joint coordinates, in the order of the bodies.

    Parameters
    ----------
    bodies : mapping of name to Body
        Parents precede their children.
    loads : iterable of (body, point, force)
        Forces on the bodies, and the points on which they act.
    reference : {"center", "origin"}
        The reference points.
    """
    listed = list(bodies.values())
    order = {id(body): i for i, body in enumerate(listed)}
    parents = [None if body.parent is None else order[id(body.parent)] for body in listed]
    pulls: list[list[tuple[ca.MX, ca.MX]]] = [[] for _ in listed]
    for body, point, force in loads:
        pulls[order[id(body)]].append((point, force))
    links: list[_Link] = []
    for body, parent, own in zip(listed, parents, pulls, strict=True):
        links.append(_link(body, None if parent is None else links[parent], reference, own))
    masses, forces = [link.mass for link in links], [link.force - link.mass @ link.d for link in links]
    entries: dict[tuple[int, int], ca.MX] = {}
    force_rows = [ca.MX(1, 1)] * len(listed)
    for i in reversed(range(len(listed))):
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
    n = len(listed)
    where = sorted(entries, key=lambda place: (place[1], place[0]))
    pattern = ca.Sparsity.triplet(n, n, [i for i, _ in where], [j for _, j in where])
    return ca.MX(pattern, ca.vertcat(*(entries[place] for place in where))), ca.vertcat(*force_rows)
