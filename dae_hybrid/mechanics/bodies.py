"""Rigid bodies in the plane, connected by joints: a mechanism in joint coordinates.

Every body has one joint, to a body declared before or to the ground; closed loops are constraints. `recursion` derives
the equations of motion. A joint states the motion of its body relative to the parent, so that another kind of joint is
another class (Lopez Varela, Dopico and Luaces 2023, section 3 and appendix D).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import casadi as ca

from dae_hybrid.errors import ModelError
from dae_hybrid.mechanics.planar import Link, Point
from dae_hybrid.statement.declarations import Statement
from dae_hybrid.statement.expressions import checked_name, expression

if TYPE_CHECKING:
    from dae_hybrid.mechanics.mechanism import Mechanism


#: number of bodies whose motion is an expression in the joint coordinates; further ones have variables for it
WRITTEN_OUT = 8


def perpendicular(vector: Any) -> ca.MX:
    """The vector turned by a right angle: the velocity ``omega x r`` for omega = 1."""
    return ca.vertcat(-vector[1], vector[0])


def cross(arm: ca.MX, force: ca.MX) -> ca.MX:
    """Moment of a force."""
    return arm[0] * force[1] - arm[1] * force[0]


def pair(what: str, value: Any) -> ca.MX:
    """The coordinates of a point or direction in the plane, (2,).

    Raises
    ------
    ModelError
        It is not a pair of numbers or expressions.
    """
    if isinstance(value, str) or not isinstance(value, ca.MX | ca.DM | Iterable):
        raise ModelError(f"The {what} must be a pair (x, y), got {value!r}.")
    entries = list(ca.vertsplit(value)) if isinstance(value, ca.MX | ca.DM) else list(value)
    if len(entries) != 2:
        raise ModelError(f"The {what} must be a pair (x, y), got {len(entries)} entries.")
    return ca.vertcat(*(expression(what, entry, 1) for entry in entries))


def rotated(angle: ca.MX, vector: ca.MX) -> ca.MX:
    """The vector turned by an angle."""
    return ca.cos(angle) * vector + ca.sin(angle) * perpendicular(vector)


@dataclass(frozen=True, eq=False)
class Frame(Statement):
    """A moving frame: angle, angular velocity, angular acceleration, and the motion of its origin."""

    angle: ca.MX
    omega: ca.MX
    alpha: ca.MX
    origin: Point

    def point(self, local: ca.MX, name: str, body: Body | None = None) -> Point:
        """The point with these coordinates in the frame."""
        arm = rotated(self.angle, local)
        motion = (
            self.origin.position + arm,
            self.origin.velocity + self.omega * perpendicular(arm),
            self.origin.acceleration + self.alpha * perpendicular(arm) - self.omega**2 * arm,
        )
        return Point.on(name, motion, body)


@dataclass(frozen=True, eq=False)
class Joint(Statement):
    """Base class of joints.

    Parameters
    ----------
    at : Point
        A point of the parent: of a body (`Body.point`), or of the ground.
    local : (x, y)
        The point of the new body at the joint, in its own frame; by default the origin of that frame.
    """

    at: Point
    local: Any = (0.0, 0.0)

    #: names of the coordinate, its velocity and its acceleration, each followed by that of the body; unit
    names: ClassVar[tuple[str, str, str, str]]

    @property
    def parent(self) -> Frame:
        """The frame of the parent at the joint."""
        still = ca.MX(1, 1)
        frame = Frame(still, still, still, self.at) if self.at.body is None else self.at.body.frame
        return Frame(frame.angle, frame.omega, frame.alpha, self.at)

    def moved(self, z: ca.MX, speed: ca.MX, acceleration: ca.MX) -> Frame:
        """The frame of the new body, with the joint as its origin, for a joint coordinate and its derivatives."""
        raise NotImplementedError

    def column(self, place: ca.MX) -> ca.MX:
        """b, (3, 1): velocity at `place` of the new body, and its angular velocity, per joint velocity."""
        raise NotImplementedError

    def column_rate(self, velocity: ca.MX) -> ca.MX:
        """The time derivative of `column` for a place that moves with this velocity, (3, 1)."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Revolute(Joint):
    """A revolute joint; its coordinate ``angle_<body>`` is the angle of the body relative to its parent, in radians."""

    names = ("angle", "omega", "alpha", "rad")

    def moved(self, z: ca.MX, speed: ca.MX, acceleration: ca.MX) -> Frame:
        """See `Joint.moved`."""
        frame = self.parent
        return Frame(frame.angle + z, frame.omega + speed, frame.alpha + acceleration, frame.origin)

    def column(self, place: ca.MX) -> ca.MX:
        """See `Joint.column`."""
        return ca.vertcat(perpendicular(place - self.at.position), 1)

    def column_rate(self, velocity: ca.MX) -> ca.MX:
        """See `Joint.column_rate`."""
        return ca.vertcat(perpendicular(velocity - self.at.velocity), 0)


@dataclass(frozen=True, eq=False)
class Prismatic(Joint):
    """A prismatic joint; its coordinate ``slide_<body>`` is the distance along the axis, in metres.

    Parameters
    ----------
    axis : (x, y)
        Direction of the axis in the frame of the parent, of any length. Default (1, 0).
    """

    axis: Any = (1.0, 0.0)

    names = ("slide", "speed", "thrust", "m")

    @property
    def direction(self) -> ca.MX:
        """The axis."""
        axis = pair("axis of a joint", self.axis)
        if axis.is_zero():
            raise ModelError("The axis of a joint has no length.")
        return rotated(self.parent.angle, axis / ca.norm_2(axis))

    def moved(self, z: ca.MX, speed: ca.MX, acceleration: ca.MX) -> Frame:
        """See `Joint.moved`."""
        frame, along = self.parent, self.direction
        across = perpendicular(along)
        motion = (
            self.at.position + along * z,
            self.at.velocity + along * speed + frame.omega * across * z,
            self.at.acceleration
            + along * (acceleration - frame.omega**2 * z)
            + across * (2 * frame.omega * speed + frame.alpha * z),
        )
        return Frame(frame.angle, frame.omega, frame.alpha, Point.on("slider", motion))

    def column(self, place: ca.MX) -> ca.MX:  # noqa: ARG002 - all points move alike
        """See `Joint.column`."""
        return ca.vertcat(self.direction, 0)

    def column_rate(self, velocity: ca.MX) -> ca.MX:  # noqa: ARG002 - all points move alike
        """See `Joint.column_rate`."""
        return ca.vertcat(self.parent.omega * perpendicular(self.direction), 0)


@dataclass(frozen=True, eq=False)
class Lifted(Statement):
    """The motion of a body as variables of its own, each (3, 1): of its frame's origin, and angular.

    In a large tree they keep the equations sparse: each depends on the parent alone, not on the whole path to the
    ground.
    """

    pose: ca.MX
    twist: ca.MX  # the rate of the pose
    twist_rate: ca.MX
    wrench: ca.MX  # force and moment on the body from its joint, about the reference point
    stated: tuple[ca.MX, ca.MX, ca.MX]  # the first three in terms of the motion of the parent and of the joint

    @classmethod
    def declare(cls, mechanism: Mechanism, name: str, frame: Frame) -> Lifted:
        """Declare the variables of a body, whose frame is given in terms of the parent."""
        of, origin = f"of body '{name}'", frame.origin
        pose, twist, twist_rate, wrench = (
            mechanism.algebraic(f"{what}_{name}", size=3, description=f"{text} {of}")
            for what, text in (
                ("pose", "position and angle"),
                ("twist", "velocity and angular velocity"),
                ("twist_rate", "acceleration and angular acceleration"),
                ("wrench", "force and moment on the joint"),
            )
        )
        stated = (
            ca.vertcat(origin.position, frame.angle),
            ca.vertcat(origin.velocity, frame.omega),
            ca.vertcat(origin.acceleration, frame.alpha),
        )
        return cls(pose, twist, twist_rate, wrench, stated)

    @property
    def motion(self) -> tuple[ca.MX, ca.MX, ca.MX]:
        """The pose and its first two derivatives."""
        return self.pose, self.twist, self.twist_rate

    def frame(self, name: str) -> Frame:
        """The frame of the body in terms of the variables."""
        angle, omega, alpha = (value[2] for value in self.motion)
        origin = Point.on(name, (self.pose[:2], self.twist[:2], self.twist_rate[:2]))
        return Frame(angle, omega, alpha, origin)


@dataclass(frozen=True, eq=False)
class Body(Statement):
    """A rigid body; created by `Mechanism.body`."""

    name: str
    owner: Mechanism
    joint: Joint
    coordinate: ca.MX
    velocity: ca.MX
    mass: ca.MX
    inertia: ca.MX
    frame: Frame
    center: Point
    lifted: Lifted | None

    @property
    def parent(self) -> Body | None:
        """The body at the other side of the joint; None for the ground."""
        return self.joint.at.body

    def point(self, x: Any, y: Any = 0.0, *, name: str = "") -> Point:
        """A point of the body with given coordinates in its frame, for joints, springs, constraints and costs."""
        local = ca.vertcat(*(expression(f"a point of body '{self.name}'", value, 1) for value in (x, y)))
        point = self.frame.point(local, name or f"{self.name}({x}, {y})", self)
        self.owner.links.append(Link("bar", self.joint.at, point))
        return point

    def wrench(self, place: ca.MX, force: ca.MX) -> ca.MX:
        """Force and moment about the centre of mass, (3, 1), of a force that acts at a place."""
        return ca.vertcat(force, cross(place - self.center.position, force))

    def pushed(self, by_pose: ca.MX) -> ca.MX:
        """The wrench (3, 1) of a force on the pose, such as the derivative of a potential."""
        force = by_pose[:2]
        return self.wrench(self.frame.origin.position, force) + ca.vertcat(0, 0, by_pose[2])


class WrittenOut:
    """Expressions in terms of the joint coordinates and their rates, without the variables of bodies."""

    def __init__(self, bodies: Iterable[Body]) -> None:
        self._values: dict[int, tuple[ca.MX, ca.MX]] = {}  # by hash: symbol and its value
        for lifted in (body.lifted for body in bodies):
            if lifted is not None:
                values = self(list(lifted.stated))
                self._values |= {s.__hash__(): (s, v) for s, v in zip(lifted.motion, values, strict=True)}

    def __call__(self, expressions: list[ca.MX]) -> list[ca.MX]:
        """The expressions with the motion of every body written out."""
        used = {s.__hash__() for s in ca.symvar(ca.veccat(ca.MX(0, 1), *expressions))} & self._values.keys()
        if not used:
            return expressions
        old, new = zip(*(self._values[key] for key in used), strict=True)
        return list(ca.substitute(expressions, list(old), list(new)))


class Tree:
    """Methods of a mechanism that declare its bodies."""

    bodies: dict[str, Body]

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism that owns the bodies."""
        raise NotImplementedError

    def body(self, name: str, joint: Joint, *, mass: Any = 0.0, center: Any = (0.0, 0.0), inertia: Any = 0.0) -> Body:
        """Declare a rigid body and the joint that connects it to its parent.

        Parameters
        ----------
        name : str
        joint : Joint
            `Revolute` or `Prismatic`. Declares the coordinate of the body.
        mass : expression
        center : (x, y)
            Centre of mass in the frame of the body, which has its origin at the joint unless the joint says otherwise.
        inertia : expression
            Moment of inertia about the centre of mass.

        Examples
        --------
        A pendulum of two bars, with the mass matrix of the joint coordinates:

        >>> import dae_hybrid as dh
        >>> from dae_hybrid.mechanics import Mechanism, Revolute
        >>> mech = Mechanism("double pendulum")
        >>> upper = mech.body("upper", Revolute(mech.ground(0, 0)), mass=1.0, center=(0.5, 0), inertia=1 / 12)
        >>> lower = mech.body("lower", Revolute(upper.point(1.0)), mass=1.0, center=(0.5, 0), inertia=1 / 12)
        >>> mech.gravity(9.81)
        >>> swing = mech.mode("swing")
        >>> mech.initial(swing, {upper.coordinate: -0.1, lower.coordinate: 0.0})
        >>> mech.functional("height", terminal=lower.point(1.0).y)
        >>> asa = dh.adjoint_gradient(mech.build(), (0, 1), "height")
        """
        mechanism: Mechanism = self.mechanism
        checked_name("body", name)
        if name in self.bodies:
            raise ModelError(f"Body '{name}' is declared twice.")
        if not isinstance(joint, Joint) or type(joint) is Joint:
            raise ModelError(
                f"The joint of body '{name}' must be a Joint, got {joint!r}.",
                remedy="Pass Revolute(point) or Prismatic(point, axis=...), with a point of a body or of the ground.",
            )
        if not isinstance(joint.at, Point):
            raise ModelError(f"The joint of body '{name}' must be at a Point, got {joint.at!r}.")
        if joint.at.free or (joint.at.body is not None and self.bodies.get(joint.at.body.name) is not joint.at.body):
            raise ModelError(
                f"The joint of body '{name}' is at point {joint.at.name}, which belongs to no body of mechanism "
                f"'{mechanism.name}' and not to the ground.",
                remedy="Use body.point(...) or ground(...); hold a free point with pin().",
            )
        local = pair(f"local point of the joint of body '{name}'", joint.local)
        middle = pair(f"center of body '{name}'", center)
        mass = expression(f"mass of body '{name}'", mass, 1)
        inertia = expression(f"inertia of body '{name}'", inertia, 1)
        for what, value in (("mass", mass), ("inertia", inertia)):
            if value.is_constant() and not float(value.to_DM()) >= 0:
                raise ModelError(f"The {what} of body '{name}' must not be negative, got {float(value.to_DM())}.")
        joint.column(local)  # checks the joint
        place, speed, rate, unit = joint.names
        z = mechanism.coordinate(
            f"{place}_{name}", velocity=f"{speed}_{name}", acceleration=f"{rate}_{name}", unit=unit,
            description=f"joint coordinate of body '{name}'",
        )  # fmt: skip
        moved = joint.moved(z, mechanism.velocity(z), mechanism.acceleration(z))
        frame = Frame(moved.angle, moved.omega, moved.alpha, moved.point(-local, name))
        lifted = Lifted.declare(mechanism, name, frame) if len(self.bodies) >= WRITTEN_OUT else None
        if lifted is not None:
            frame = lifted.frame(name)
        at = frame.point(middle, f"center of {name}")
        self.bodies[name] = Body(name, mechanism, joint, z, mechanism.velocity(z), mass, inertia, frame, at, lifted)
        return self.bodies[name]
