"""Constraints, forces and inertias of a mechanism, or of one of its modes, in arbitrary coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import casadi as ca

from dae_hybrid.compile.lowering import split
from dae_hybrid.errors import ModelError
from dae_hybrid.mechanics.declared import Constraint, Inertia, Share
from dae_hybrid.statement.expressions import checked_name, expression, matrix

if TYPE_CHECKING:
    from dae_hybrid.mechanics.mechanism import Mechanism


class Components:
    """Methods common to a mechanism and its modes: constraints, forces, inertias."""

    share: Share

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism that owns the symbols."""
        raise NotImplementedError

    def constraint(self, name: str, phi: Any, *, bounds: tuple[Any, Any] | None = None) -> ca.MX:
        """Add holonomic constraints ``Phi(t, q, rho) = 0``.

        Parameters
        ----------
        name : str
            Name of the constraints, also in errors.
        phi : expression, shape (k,)
            In coordinates, time, parameters and memory, but no velocities.
        bounds : (lower, upper), optional
            Bounds of the multipliers, each a number, an array of shape (k,) or None: ``(0, inf)`` for a contact that
            only pushes along ``-Phi_q^T``. A run that violates them in a mode with the constraint is refused with a
            `BoundError`, unless an event leaves the mode there.

        Returns
        -------
        ca.MX, shape (k,)
            The multipliers: the force of the constraint is ``-Phi_q^T multipliers``. They are the variable
            ``lambda_<name>``, zero in modes without the constraint.
        """
        checked_name("constraint", name)
        rows = expression(f"constraint '{name}'", phi, None)
        known = self.mechanism.all_constraints()
        if name in known:
            raise ModelError(f"Constraint '{name}' is declared twice.")
        if not rows.numel():
            raise ModelError(f"Constraint '{name}' is empty.")
        multiplier = self.mechanism.algebraic(
            f"lambda_{name}",
            size=rows.numel(),
            bounds=bounds,
            description=f"multiplier of constraint '{name}'",
        )
        self.share.constraints[name] = Constraint(name, rows, multiplier)
        return multiplier

    def force(self, forces: Mapping[Any, Any]) -> None:
        """Add generalised forces by coordinate, or by its velocity."""
        if not isinstance(forces, Mapping):
            raise ModelError(f"force() takes a mapping of coordinate to force, got {type(forces).__name__}.")
        for key, value in forces.items():
            owner = self.mechanism.coordinate_of(key, "force()")
            self.share.forces.append((owner.q, expression(f"force on '{owner.name}'", value, owner.q.numel())))

    def potential(self, energy: Any) -> None:
        """Add the conservative forces ``-dV/dq`` of a potential energy V(t, q, rho)."""
        value = expression("potential energy", energy, 1)
        coordinates = list(self.mechanism.coordinates.values())
        bodies = [body for body in self.mechanism.bodies.values() if body.lifted is not None]
        places = [*(c.q for c in coordinates), *(body.lifted.pose for body in bodies if body.lifted is not None)]
        pieces = split(-ca.jacobian(value, ca.vertcat(*places)).T, [place.numel() for place in places])
        for coordinate, force in zip(coordinates, pieces, strict=False):
            if force.nnz():
                self.share.forces.append((coordinate.q, ca.densify(force)))
        for body, by_pose in zip(bodies, pieces[len(coordinates) :], strict=True):
            if by_pose.nnz():
                self.share.loads.append((body, body.pushed(ca.densify(by_pose))))

    def inertia(self, coordinates: Any, mass: Any) -> None:
        """Add a block to the mass matrix: ``kinetic energy += v^T mass v / 2`` for the velocities of `coordinates`.

        Parameters
        ----------
        coordinates : coordinate or sequence of coordinates
        mass : expression, shape (k, k) or scalar
            Symmetric; in coordinates, time and parameters. The statement must include the forces caused by a varying
            mass: ``M(t, q, rho) q'' = F(t, q, q', rho)``.
        """
        listed = [coordinates] if isinstance(coordinates, ca.MX | str) else list(coordinates)
        columns = ca.vertcat(*(self.mechanism.coordinate_of(c, "inertia()").q for c in listed))
        block = matrix("mass", mass)
        if block.numel() == 1:
            block = block * ca.MX.eye(columns.numel())
        if block.shape != (columns.numel(), columns.numel()):
            raise ModelError(f"mass has shape {block.shape}, expected {(columns.numel(),) * 2}.")
        self.share.inertias.append(Inertia(columns, block))
