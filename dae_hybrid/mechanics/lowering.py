"""From a mechanism to a `HybridModel` in one of the formulations."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.declarations import Declaration
from dae_hybrid.errors import ModelError, OptionError
from dae_hybrid.integrator import Array
from dae_hybrid.lowering import split
from dae_hybrid.mechanics.configuration import Configuration
from dae_hybrid.mechanics.crossing import Crossing
from dae_hybrid.mechanics.declared import Constraint, Share
from dae_hybrid.mechanics.formulations import Formulation, Index2, Penalty, Reduced, Unconstrained
from dae_hybrid.mechanics.kinematics import Motion, null_space, partition_function, rows_of
from dae_hybrid.mechanics.mechanism import Mechanism
from dae_hybrid.mechanics.reduction import Partition, selection_of
from dae_hybrid.model import HybridModel

#: share of its value at the start that det(Phi_q Phi_q^T) may fall to
SINGULAR = 1e-6


class Lowering:
    """One mechanism in one formulation."""

    def __init__(self, mechanism: Mechanism, formulation: Formulation | None) -> None:
        self.mechanism = mech = mechanism
        if formulation is None:
            formulation = Index2() if mech.all_constraints() else Unconstrained()
        if not isinstance(formulation, Formulation):
            raise OptionError(f"formulation must be a Formulation, such as Index1(), got {formulation!r}.")
        if type(formulation) is Unconstrained and mech.all_constraints():
            raise ModelError(
                f"Mechanism '{mech.name}' has constraints, which the formulation Unconstrained() has no place for.",
                remedy="Take Index1(), Index2(), Penalty() or Reduced().",
            )
        for what, missing in (("coordinates", not mech.coordinates), ("modes", not mech.modes)):
            if missing:
                raise ModelError(f"Mechanism '{mech.name}' has no {what}.")
        if mech.start is None:
            raise ModelError(f"Mechanism '{mech.name}' has no start.", remedy="Call initial().")
        self.formulation, self.start = formulation, mech.start
        self.coordinates = list(mech.coordinates.values())
        self.q, self.v, self.a = (ca.vertcat(*(getattr(c, k) for c in self.coordinates)) for k in "qva")
        self.labels = [n for c in self.coordinates for n in entry_names(c.name, c.q.numel())]

    # -- the equations of motion --------------------------------------------------------------------------

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
        return {name: self._motion(name) for name in self.mechanism.modes}

    def _motion(self, mode: str) -> Motion:
        shares = [self.mechanism.share, self.mechanism.modes[mode].share]
        constraints = self.active(mode).values()
        motion = Motion(
            t=self.mechanism.time,
            q=self.q,
            v=self.v,
            a=self.a,
            mass=self._mass(shares),
            force=self._force(shares),
            phi=ca.vertcat(*(c.phi for c in constraints)) if constraints else ca.MX(0, 1),
            multipliers=ca.vertcat(*(c.multiplier for c in constraints)) if constraints else ca.MX(0, 1),
            labels=tuple(n for c in constraints for n in entry_names(c.name, c.phi.numel())),
        )
        for constraint in constraints:
            moving = [s.name() for s in ca.symvar(constraint.phi) if s.__hash__() in self._not_places]
            if moving:
                raise ModelError(
                    f"Constraint '{constraint.name}' uses {', '.join(moving)}: constraints are on positions.",
                    mode=mode,
                    variables=moving,
                )
            self._check_signals(constraint, mode)
        return motion

    def _check_signals(self, constraint: Constraint, mode: str) -> None:
        """Where an input has a kink, velocities would have to jump: nothing says how."""
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
        """Where columns of coordinates stand in q."""
        selected = ca.Function("place", [self.q], [columns])(ca.DM(range(self.q.numel())))
        return [int(i) for i in np.asarray(selected).ravel()]

    def _mass(self, shares: list[Share]) -> ca.MX:
        total = ca.MX(self.q.numel(), self.q.numel())
        for inertia in (i for share in shares for i in share.inertias):
            rows = self.places(inertia.rows)
            select = ca.DM.zeros(self.q.numel(), len(rows))
            for column, row in enumerate(rows):
                select[row, column] = 1
            select = ca.sparsify(select)
            total = total + select @ inertia.matrix @ select.T
        return total

    def _force(self, shares: list[Share]) -> ca.MX:
        total, mech = ca.MX.zeros(self.q.numel(), 1), self.mechanism
        pulls = [pull for share in shares for pull in share.forces]
        for owner, point, mass in mech.bodies:
            if any(owner is share for share in shares):
                pulls += [(ca.vertcat(point.x, point.y), mass * g * towards) for g, towards in mech.weights]
        for columns, force in pulls:
            for row, value in zip(self.places(columns), rows_of(force), strict=True):
                total[row] += value
        return total

    # -- the model ----------------------------------------------------------------------------------------

    def model(self) -> HybridModel:
        """The finished model."""
        self.configuration.check()
        mech, model = self.mechanism, HybridModel(self.mechanism.name)
        model.time, model.signals, model.rates, model.posts = mech.time, mech.signals, mech.rates, mech.posts
        for name, declared in mech.declarations.items():
            model.declarations[name] = self._declared(declared)
        partitions = self._partitions(model) if isinstance(self.formulation, Reduced) else {}
        for name in mech.modes:
            self._mode(model, name, partitions.get(name))
        for event in mech.events.values():
            transition = {} if event.target is None else Crossing(self, model, event, partitions).declared()
            model.transition(
                event.source,
                event.target,
                **event.trigger,
                direction=event.direction,
                on_entry=event.on_entry,
                resolution=event.resolution,
                name=event.name,
                **transition,
            )
        for partition in partitions.values():
            partition.choose_again(model)
        for name, motion in self.motions.items():
            if motion.bends and not isinstance(self.formulation, Penalty):  # which is regular there too
                self._require_regular(model, name, motion)
        self._initial(model)
        for name, parts in mech.functionals.items():
            model.functional(name, **parts)
        return model

    @cached_property
    def configuration(self) -> Configuration:
        """The nominal configuration at the start."""
        return Configuration(self)

    def _declared(self, declared: Declaration) -> Declaration:
        """A declaration of the mechanism as this formulation has it: in reduced coordinates v is algebraic."""
        if declared.of is not None:
            return replace(declared, of=self._declared(declared.of))
        if not isinstance(self.formulation, Reduced) or declared.kind != "differential":
            return declared
        if declared.name in self.mechanism.states or declared.name in self.mechanism.coordinates:
            return declared
        return replace(declared, kind="algebraic", value=np.zeros(declared.size))

    def _partitions(self, model: HybridModel) -> dict[str, Partition]:
        found = {}
        for name, motion in self.motions.items():
            start = None
            fixed = np.eye(motion.n) if not motion.m else self._stated_selection(name, motion)
            if name == self.start.mode and fixed is None:
                (by_q,) = self.configuration.evaluate([motion.phi_q], self.configuration.q)
                flat, quality = partition_function(motion.m, motion.n)(by_q)
                start = np.asarray(flat).reshape(-1, motion.n, order="F"), float(quality)
            found[name] = Partition.declare(model, name, motion, fixed, start)
        return found

    def _stated_selection(self, name: str, motion: Motion) -> Array | None:
        if not isinstance(self.formulation, Reduced) or not self.formulation.independent:
            return None
        owners = [self.mechanism.coordinate_of(c, "Reduced: independent") for c in self.formulation.independent]
        return selection_of(motion, self.places(ca.vertcat(*(o.q for o in owners))), name)

    def _mode(self, model: HybridModel, name: str, partition: Partition | None) -> None:
        motion = self.motions[name]
        ode: dict[Any, Any] = {state: rate for state, (rate, _) in self.mechanism.states.items()}
        # multipliers of constraints that do not hold here are zero, so that costs may use them everywhere
        active = self.active(name)
        idle = [c.multiplier for key, c in self.mechanism.all_constraints().items() if key not in active]
        algebraic = [*idle, self.formulation.closure(motion)]
        along = motion.phi_q.T if partition is None else partition.along
        if motion.m and (
            partition is not None or (isinstance(self.formulation, Index2) and self.formulation.positions)
        ):
            text = "correction of positions, zero but for what the integrator gets wrong"
            along = along @ model.algebraic(f"mu_{name}", size=motion.m, description=text)
        else:
            along = ca.MX.zeros(motion.n)
        ode |= self._by_name(motion.v + along, "q")
        if partition is None:
            ode |= self._by_name(self.formulation.velocity_rates(motion), "v")
        else:
            ode[partition.w] = partition.selection @ motion.a
            algebraic.append(motion.v - partition.velocities)
        model.mode(name, ode=ode, algebraic=algebraic, constraint=self.formulation.constraint(motion))

    def _by_name(self, column: ca.MX, kind: str) -> dict[str, ca.MX]:
        """A column of all coordinates, by name of their positions or velocities."""
        symbols = [getattr(c, kind) for c in self.coordinates]
        pieces = split(column, [s.numel() for s in symbols])
        return {s.name(): piece for s, piece in zip(symbols, pieces, strict=True)}

    def _require_regular(self, model: HybridModel, name: str, motion: Motion) -> None:
        (start,) = self.configuration.evaluate([motion.spread], self.configuration.q)
        size = float(start[0, 0]) if np.isfinite(start[0, 0]) and start[0, 0] > 0 else 1.0
        model.require(
            name,
            motion.spread / size - SINGULAR,
            f"A singular configuration: constraints {', '.join(motion.labels)} become dependent on each other.",
            name=f"{name}: singular configuration",
        )

    # -- the start ----------------------------------------------------------------------------------------

    def _initial(self, model: HybridModel) -> None:
        start, motion = self.start, self.motions[self.start.mode]
        speeds = start.velocities
        if speeds is None:  # at rest
            speeds = {c.v.name(): ca.MX.zeros(c.v.numel()) for c in self.coordinates}
        values: dict[str, ca.MX] = {**start.positions, **speeds}
        equations: list[Any] = []
        if start.project:
            equations, values = self._nearest(motion, values), {}
        guess = self._by_name(ca.MX(ca.DM(self.configuration.q)), "q")
        starts = {name: np.asarray(ca.evalf(value)).ravel() for name, value in guess.items() if name not in values}
        if isinstance(self.formulation, Reduced):  # velocities are algebraic
            equations += [
                (f"initial value of '{name}'", model.declarations[name].symbol - value)
                for name, value in speeds.items()
                if name in values
            ]
            values = {name: value for name, value in values.items() if name not in speeds}
        elif not isinstance(self.formulation, Index2):
            equations += [*motion.named(), *motion.named(rates=True)]
        elif not self.formulation.positions:
            equations += motion.named()
        further = {name: value for name, (_, value) in self.mechanism.states.items()}
        model.initial(start.mode, values | further, equations=equations or None, guess=starts)

    def _nearest(self, motion: Motion, values: dict[str, ca.MX]) -> list[tuple[str, ca.MX]]:
        """Equations that leave given positions and velocities where they are, along the constraints.

        Directions along them are those at the nominal start: what is given moves across them only.
        """
        missing = [c.name for c in self.coordinates if c.name not in values or c.v.name() not in values]
        if missing:
            raise ModelError(
                f"initial(project=True) needs the position and velocity of every coordinate; of {', '.join(missing)} "
                "there is none.",
                variables=missing,
            )
        (by_q,) = self.configuration.evaluate([motion.phi_q], self.configuration.q)
        along = ca.DM(null_space(by_q)) if motion.m else ca.DM.eye(motion.n)
        stated = [ca.vertcat(*(values[getattr(c, kind).name()] for c in self.coordinates)) for kind in "qv"]
        return [
            ("given positions along the constraints", along @ (self.q - stated[0])),
            ("given velocities along the constraints", along @ (self.v - stated[1])),
        ]


def entry_names(name: str, size: int) -> list[str]:
    """Names of the entries of a vector."""
    return [name] if size == 1 else [f"{name}[{i}]" for i in range(size)]
