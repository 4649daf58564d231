"""The equations of motion of a mechanism, mode by mode, independent of the formulation."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.compile.lowering import split
from dae_hybrid.errors import ModelError
from dae_hybrid.layout import Layout
from dae_hybrid.mechanics.bodies import WrittenOut
from dae_hybrid.mechanics.declared import Constraint, Share
from dae_hybrid.mechanics.kinematics import Motion
from dae_hybrid.mechanics.large import LargeMotion
from dae_hybrid.mechanics.mechanism import Mechanism
from dae_hybrid.mechanics.recursion import LargeTree, Reference, equations_of_motion

#: coordinates and a value for them
Part = tuple[ca.MX, ca.MX]


class EquationsOfMotion:
    """The coordinates of a mechanism as columns, and the `Motion` of every mode."""

    def __init__(self, mechanism: Mechanism, reference: Reference = "center") -> None:
        self.mechanism, self.reference = mechanism, reference
        self.coordinates = list(mechanism.coordinates.values())
        self.q, self.v, self.a = (ca.vertcat(*(getattr(c, k) for c in self.coordinates)) for k in "qva")
        self.labels = Layout.of((c.name, c.q.numel()) for c in self.coordinates).labels()
        self.written_out = WrittenOut(mechanism.bodies.values())

    def active(self, mode: str) -> dict[str, Constraint]:
        """The constraints of a mode, by name."""
        own, base = self.mechanism.modes[mode], self.mechanism.share.constraints
        unknown = [name for name in own.released if name not in base]
        if unknown:
            raise ModelError(
                f"without= of mode '{mode}' names {', '.join(unknown)}, which is no constraint of the mechanism.",
                remedy=f"Constraints: {', '.join(base) or 'none'}.",
            )
        return {name: c for name, c in base.items() if name not in own.released} | own.share.constraints

    @cached_property
    def motions(self) -> dict[str, Motion]:
        """The equations of motion of every mode."""
        return {name: self.motion(name) for name in self.mechanism.modes}

    def motion(self, mode: str) -> Motion:
        """The equations of motion of one mode."""
        shares = [self.mechanism.share, self.mechanism.modes[mode].share]
        constraints = self.active(mode).values()
        empty = ca.MX(0, 1)
        stated = ca.vertcat(*(c.phi for c in constraints)) if constraints else empty
        (phi,) = self.written_out([stated])
        common: dict[str, Any] = {
            "t": self.mechanism.time, "q": self.q, "v": self.v, "a": self.a,
            "multipliers": ca.vertcat(*(c.multiplier for c in constraints)) if constraints else empty,
            "labels": Layout.of((c.name, c.phi.numel()) for c in constraints).labels(),
        }  # fmt: skip
        inertias, pulls, applied = self._parts(shares)
        bodies = list(self.mechanism.bodies.values())
        joints = ca.vertcat(empty, *(body.coordinate for body in bodies))
        large = None
        if any(body.lifted is not None for body in bodies):
            tree, select = LargeTree(bodies, self.reference), self._selection([(joints, joints)])
            mass, force = self._total(inertias, pulls)
            large = LargeMotion(**common, phi=stated, mass=mass, force=force, tree=tree, applied=applied, select=select)
            mass = force = empty  # those of the bodies are not written out
        else:
            if bodies:
                own = equations_of_motion(bodies, applied, self.reference)
                inertias, pulls = [*inertias, (joints, own[0])], [*pulls, (joints, own[1])]
            mass, force = self._total(inertias, pulls)
        motion = Motion(**common, phi=phi, mass=mass, force=force, large=large)
        for constraint in constraints:
            self.check_places(f"Constraint '{constraint.name}'", constraint.phi, mode)
            self._check_signals(constraint, mode)
        self.check_places("A mass", motion.sparse.momentum[1], mode)
        return motion

    def check_places(self, what: str, value: ca.MX, mode: str | None = None) -> None:
        """Refuse an expression that depends on more than positions, time, parameters and memory."""
        (value,) = self.written_out([value])
        others = [s.name() for s in ca.symvar(value) if s.__hash__() in self._not_places]
        if others:
            raise ModelError(
                f"{what} uses {', '.join(others)}: it may use positions, time, parameters and memory.",
                mode=mode,
                variables=others,
            )

    def _check_signals(self, constraint: Constraint, mode: str) -> None:
        """Refuse signals with kinks in a constraint: velocities would have to jump without an impact law."""
        used = {s.name() for s in ca.symvar(constraint.phi)}
        signals = [d.signal for d in self.mechanism.of_kind("memory") if d.name in used and d.signal is not None]
        rough = [signal.name for signal in signals if signal.kind != "cubic"]
        if rough:
            raise ModelError(
                f"Constraint '{constraint.name}' follows {', '.join(rough)}, whose rate jumps at its knots.",
                mode=mode,
                variables=rough,
                remedy='Give the signal kind="cubic".',
            )

    @cached_property
    def _not_places(self) -> set[int]:
        declared, kinds = self.mechanism.declarations.values(), ("differential", "algebraic", "unknown")
        return {d.symbol.__hash__() for d in declared if d.kind in kinds and d.name not in self.mechanism.coordinates}

    def places(self, columns: ca.MX) -> list[int]:
        """The indices of coordinates in q."""
        selected = ca.Function("place", [self.q], [columns])(ca.DM(range(self.q.numel())))
        return [int(i) for i in np.asarray(selected).ravel()]

    def _parts(self, shares: list[Share]) -> tuple[list[Part], list[Part], list[ca.MX]]:
        """Blocks of the mass matrix and forces, by coordinates, and the wrench on every body."""
        inertias = [(i.rows, i.matrix) for share in shares for i in share.inertias]
        pulls = [pull for share in shares for pull in share.forces]
        bodies = self.mechanism.bodies
        applied = {id(body): ca.MX.zeros(3) for body in bodies.values()}
        for body, wrench in (load for share in shares for load in share.loads):
            applied[id(body)] += wrench
        for g, towards in (weight for share in shares for weight in share.weights):
            pulls += [(place, mass @ (g * towards)) for share in shares for place, mass in share.weighed]
            for body in bodies.values():
                applied[id(body)] += body.wrench(body.center.position, body.mass * g * towards)
        return inertias, pulls, list(applied.values())

    def _total(self, inertias: list[Part], pulls: list[Part]) -> tuple[ca.MX, ca.MX]:
        """The mass matrix (n, n) and the forces (n, 1) of all coordinates."""
        n = self.q.numel()
        select = self._selection(inertias)
        mass = select @ ca.diagcat(*(matrix for _, matrix in inertias)) @ select.T if inertias else ca.MX(n, n)
        force = self._selection(pulls) @ ca.vertcat(*(force for _, force in pulls)) if pulls else ca.MX(n, 1)
        return mass, ca.densify(force)

    def _selection(self, parts: list[Part]) -> ca.DM:
        """The matrix that adds the values of parts, stacked, to those of all coordinates."""
        rows = [row for columns, _ in parts for row in self.places(columns)]
        return ca.DM.triplet(rows, list(range(len(rows))), ca.DM.ones(len(rows)), self.q.numel(), len(rows))

    def by_name(self, column: ca.MX, kind: str) -> dict[str, ca.MX]:
        """Entries of a column of all coordinates, by name of the positions ("q") or velocities ("v")."""
        symbols = [getattr(c, kind) for c in self.coordinates]
        pieces = split(column, [s.numel() for s in symbols])
        return {s.name(): piece for s, piece in zip(symbols, pieces, strict=True)}
