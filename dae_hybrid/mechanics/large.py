"""Equations of motion of large trees of bodies, sparse because the motion of bodies has variables of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import casadi as ca

from dae_hybrid.compile.lowering import split
from dae_hybrid.mechanics.kinematics import Declare, Labelled, Motion, Push
from dae_hybrid.mechanics.recursion import LargeTree


@dataclass(frozen=True, eq=False)
class LargeMotion(Motion):
    """`Motion` with constraints in terms of coordinates and poses; `mass` and `force` are those besides the bodies'."""

    tree: LargeTree = field(kw_only=True)
    applied: list[ca.MX] = field(kw_only=True)  # force and moment on every body, about its centre of mass
    select: ca.DM = field(kw_only=True)  # (n, n_bodies), from joint coordinates to all

    def _stacked(self, own: ca.MX, kind: int) -> ca.MX:
        return ca.vertcat(own, *(lifted.motion[kind] for lifted in self.tree.variables))

    @cached_property
    def places(self) -> ca.MX:
        """See `Motion.places`: coordinates and poses."""
        return self._stacked(self.q, 0)

    @cached_property
    def speeds(self) -> ca.MX:
        """See `Motion.speeds`."""
        return self._stacked(self.v, 1)

    @cached_property
    def accelerations(self) -> ca.MX:
        """See `Motion.accelerations`."""
        return self._stacked(self.a, 2)

    @cached_property
    def by_places(self) -> ca.MX:
        """See `Motion.by_places`."""
        return ca.jacobian(self.phi, self.places)

    @property
    def is_small(self) -> bool:
        """See `Motion.is_small`."""
        return False

    @cached_property
    def _balance(self) -> tuple[ca.MX, list[Labelled]]:
        wrenches = [inertial - applied for inertial, applied in zip(self.tree.inertial(), self.applied, strict=True)]
        carried = [None if body.lifted is None else body.lifted.wrench for body in self.tree.bodies]
        along, equations = self._along([(self.phi, self.multipliers)], wrenches, carried)
        return self.mass @ self.a - self.force + along, equations

    def _along(
        self, pushes: list[Push], wrenches: list[ca.MX], carried: list[ca.MX | None]
    ) -> tuple[ca.MX, list[Labelled]]:
        """Wrenches on the bodies and phi_q^T multipliers as forces along all coordinates, with further equations."""
        nothing = ca.MX(self.places.numel(), 1)
        pushed = sum((ca.jacobian(phi, self.places).T @ multipliers for phi, multipliers in pushes), nothing)
        direct, *by_pose = split(pushed, [self.n, *[3] * len(self.tree.variables)])
        pieces = iter(by_pose)
        wrenches = [
            wrench if body.lifted is None else wrench + body.pushed(next(pieces))
            for body, wrench in zip(self.tree.bodies, wrenches, strict=True)
        ]
        along, equations = self.tree.along_joints(wrenches, carried)
        return direct + self.select @ along, equations

    @property
    def forces(self) -> ca.MX:
        """See `Motion.forces`."""
        return self._balance[0]

    @property
    def definitions(self) -> list[Labelled]:
        """See `Motion.definitions`."""
        return [*self.tree.motion(), *self._balance[1]]

    @property
    def inner(self) -> tuple[tuple[str, ...], ...]:
        """See `Motion.inner`."""
        columns = zip(*((*lifted.motion, lifted.wrench) for lifted in self.tree.variables), strict=True)
        return tuple(tuple(symbol.name() for symbol in column) for column in columns)

    def impulse_balance(
        self, jump: ca.MX, pushes: list[Push], declare: Declare | None = None
    ) -> tuple[ca.MX, list[Labelled]]:
        """See `Motion.impulse_balance`."""
        twists, carried = (
            [
                None if body.lifted is None or declare is None else declare(f"{what}_{body.name}", 3)
                for body in self.tree.bodies
            ]
            for what in ("twist_jump", "wrench_impulse")
        )
        momenta, equations = self.tree.momenta(self.select.T @ jump, twists)
        along, further = self._along(pushes, momenta, carried)
        return self.mass @ jump + along, [*equations, *further]
