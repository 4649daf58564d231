"""Planar mechanisms in natural coordinates: points, bars, springs and dampers, gravity.

Natural coordinates are the Cartesian coordinates of points of the bodies; a bar between two points has a constant mass
matrix, and its length is a constraint (Garcia de Jalon and Bayo 1994).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import casadi as ca

from dae_hybrid.errors import ModelError
from dae_hybrid.mechanics.parts import Components
from dae_hybrid.statement.declarations import Statement
from dae_hybrid.statement.expressions import expression

if TYPE_CHECKING:
    from dae_hybrid.mechanics.bodies import Body


@dataclass(frozen=True, eq=False)
class Point(Statement):
    """A point of the plane: coordinates of the mechanism, a point of a body, or a given position."""

    name: str
    x: ca.MX
    y: ca.MX
    vx: ca.MX
    vy: ca.MX
    ax: ca.MX
    ay: ca.MX
    free: bool
    body: Body | None = None

    @classmethod
    def on(cls, name: str, motion: tuple[ca.MX, ca.MX, ca.MX], body: Body | None = None) -> Point:
        """A point with given position, velocity and acceleration, each of shape (2,)."""
        x, y, vx, vy, ax, ay = (row for column in motion for row in ca.vertsplit(column))
        return cls(name, x, y, vx, vy, ax, ay, free=False, body=body)

    @property
    def position(self) -> ca.MX:
        """(x, y)."""
        return ca.vertcat(self.x, self.y)

    @property
    def velocity(self) -> ca.MX:
        """(vx, vy)."""
        return ca.vertcat(self.vx, self.vy)

    @property
    def acceleration(self) -> ca.MX:
        """(ax, ay)."""
        return ca.vertcat(self.ax, self.ay)


@dataclass(frozen=True, eq=False)
class Link:
    """A bar or a spring between two points, for drawings."""

    kind: Literal["bar", "spring"]
    start: Point
    end: Point


class Planar(Components):
    """Methods for planar bodies, common to a mechanism and its modes."""

    def point(self, name: str, *, unit: str = "m") -> Point:
        """Declare a free point: coordinates x<name>, y<name>, velocities vx<name>, ..., accelerations ax<name>, ..."""
        m = self.mechanism
        x, y = (
            m.coordinate(f"{axis}{name}", velocity=f"v{axis}{name}", acceleration=f"a{axis}{name}", unit=unit)
            for axis in "xy"
        )
        return Point(name, x, y, m.velocity(x), m.velocity(y), m.acceleration(x), m.acceleration(y), free=True)

    def ground(self, x: Any, y: Any, name: str = "ground") -> Point:
        """A point of the ground, at a position that may depend on parameters and time."""
        place = [expression(f"{axis} of {name}", value, 1) for axis, value in (("x", x), ("y", y))]
        speed = [ca.jacobian(value, self.mechanism.time) for value in place]
        ax, ay = (ca.jacobian(value, self.mechanism.time) for value in speed)
        return Point(name, place[0], place[1], speed[0], speed[1], ax, ay, free=False)

    def point_mass(self, point: Point, mass: Any) -> None:
        """Add a mass at a free point."""
        if not point.free:
            raise ModelError(
                f"A mass at {point.name}, which is not a free point.",
                remedy="A mass on a body is part of mass=, center= and inertia= of the body.",
            )
        value = expression("mass", mass, 1)
        self.inertia([point.x, point.y], value)
        self._weigh(point, value)

    def bar(
        self,
        start: Point,
        end: Point,
        *,
        length: Any,
        mass: Any = 0.0,
        center: Any = None,
        inertia: Any = None,
        bounds: tuple[Any, Any] | None = None,
        name: str | None = None,
    ) -> ca.MX:
        """Add a rigid bar between two points, of constant length.

        Parameters
        ----------
        start, end : Point
        length : expression
            Its constraint is ``|end - start|^2 - length^2 = 0``.
        mass : expression
            Total mass, 0 by default.
        center : expression or pair of expressions, optional
            The centre of mass: its distance from `start` along the bar and, for a body of another shape than a bar, its
            distance to the left of the line from `start` to `end`; ``length / 2`` by default.
        inertia : expression, optional
            Moment of inertia about the centre of mass; that of a uniform bar, ``mass length^2 / 12``, by default.
        bounds : (lower, upper), optional
            Bounds of the multiplier, as in `constraint`: ``(0, inf)`` for a massless rope, which only pulls.
        name : str, optional
            Name of the constraint; by default the names of the two points.

        Returns
        -------
        ca.MX
            The multiplier: ``2 length multiplier`` is the tension in a massless bar.
        """
        length = expression("length of a bar", length, 1)
        mass = expression("mass of a bar", mass, 1)
        center, across = self._center(length, center)
        inertia = mass * length**2 / 12 if inertia is None else expression("inertia of a bar", inertia, 1)
        along = end.position - start.position
        ends = (start, end)
        if all(point.body is None and not point.free for point in ends):
            raise ModelError(f"A bar between {start.name} and {end.name} has no free point.")
        if any(point.body is not None for point in ends) and not (mass.is_zero() and inertia.is_zero()):
            raise ModelError(
                f"A bar between {start.name} and {end.name} has a mass and ends on a body.",
                remedy="Declare the bar as a body() with a joint; a bar without mass is a constraint.",
            )
        multiplier = self.constraint(
            name or f"{start.name}-{end.name}", ca.dot(along, along) - length**2, bounds=bounds
        )
        self.mechanism.links.append(Link("bar", start, end))
        about = (inertia + mass * (center**2 + across**2)) / length**2
        self._bar_inertia(start, end, mass, (center / length, across / length), about)
        return multiplier

    def _center(self, length: ca.MX, center: Any) -> tuple[ca.MX, ca.MX]:
        """The centre of mass of a bar, along and across."""
        if center is None:
            return length / 2, ca.MX(1, 1)
        given = ca.vertcat(*center) if isinstance(center, tuple | list) else center
        value = expression("center of a bar", given, None)
        if value.numel() > 2:
            raise ModelError(
                f"center of a bar has {value.numel()} entries, expected one distance or two: along, across."
            )
        return value[0], value[1] if value.numel() == 2 else ca.MX(1, 1)

    def pin(self, first: Point, second: Point, *, name: str | None = None) -> ca.MX:
        """Hold two points together: the constraint that closes a loop of bodies.

        Returns
        -------
        ca.MX, shape (2,)
            The multipliers: minus the force on the first point, and the force on the second.
        """
        for point in (first, second):
            if not isinstance(point, Point):
                raise ModelError(f"pin() holds two points together, got {point!r}.", remedy="Pass body.point(...).")
        return self.constraint(name or f"{first.name}={second.name}", first.position - second.position)

    def spring(
        self, start: Point, end: Point, *, stiffness: Any = 0.0, natural_length: Any = 0.0, damping: Any = 0.0
    ) -> None:
        """Add a spring and damper in parallel between two points.

        Parameters
        ----------
        stiffness : expression
            Force per elongation.
        natural_length : expression
        damping : expression
            Force per rate of elongation.
        """
        k, rest, c = (
            expression(f"{what} of a spring", value, 1)
            for what, value in (("stiffness", stiffness), ("natural length", natural_length), ("damping", damping))
        )
        self.mechanism.links.append(Link("spring", start, end))
        along, closing = end.position - start.position, end.velocity - start.velocity
        length = ca.sqrt(ca.dot(along, along))
        pull = k * along  # avoids the length, so that a spring of natural length 0 may shrink to a point
        if not rest.is_zero():
            pull -= k * rest * along / length
        if not c.is_zero():
            pull += c * ca.dot(along, closing) * along / length**2
        self._push(start, pull)
        self._push(end, -pull)

    def gravity(self, g: Any, direction: tuple[float, float] = (0.0, -1.0)) -> None:
        """Add gravity to all planar bodies, including those declared later; for a mode, in that mode only."""
        self.share.weights.append((expression("gravity", g, 1), ca.MX(ca.DM(direction))))

    def _push(self, point: Point, force: ca.MX) -> None:
        if point.free:
            self.force({point.x: force[0], point.y: force[1]})
        elif point.body is not None:
            self.share.loads.append((point.body, point.body.wrench(point.position, force)))

    def _weigh(self, point: Point, mass: ca.MX) -> None:
        if point.free:
            self.share.weighed.append((point.position, mass))

    def _bar_inertia(self, start: Point, end: Point, mass: ca.MX, center: tuple[ca.MX, ca.MX], about: ca.MX) -> None:
        """Add the kinetic energy of a bar as a quadratic form in the velocities of its ends.

        `center` is the centre of mass, along and across, as a share of the length, `about` the moment of inertia about
        the start over the squared length. With r = start + (s + u J) (end - start) in the bar, where J turns by a right
        angle, the blocks are the integrals of (1 - s)^2 + u^2, s (1 - s) - u^2 + u J and s^2 + u^2 over the mass.
        """
        along, across = center
        turn = mass * across * ca.MX(ca.DM([[0, -1], [1, 0]]))  # zero for a centre of mass on the line
        coupling = (mass * along - about) * ca.MX.eye(2) + turn  # start by end
        for point, other, own, weight, by_other in (
            (start, end, mass - 2 * mass * along + about, mass * (1 - along) * ca.MX.eye(2) + turn, coupling),
            (end, start, about, mass * along * ca.MX.eye(2) - turn, coupling.T),
        ):
            self._weigh(point, weight)
            if point.free:
                self.inertia([point.x, point.y], own)
                if not other.free:  # its prescribed motion causes an inertial force
                    self._push(point, -by_other @ other.acceleration)
        if start.free and end.free:
            zero = ca.MX(2, 2)
            self.inertia([start.x, start.y, end.x, end.y], ca.blockcat([[zero, coupling], [coupling.T, zero]]))
