"""Conversion of a mechanism to a `HybridModel` in one of the formulations."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.errors import ModelError, OptionError
from dae_hybrid.mechanics.bodies import WRITTEN_OUT
from dae_hybrid.mechanics.configuration import Configuration
from dae_hybrid.mechanics.crossing import LoweredEvent
from dae_hybrid.mechanics.equations import EquationsOfMotion
from dae_hybrid.mechanics.formulations import ALI3P, Formulation, Index2, Penalty, Reduced, Unconstrained
from dae_hybrid.mechanics.kinematics import Motion, partition_function
from dae_hybrid.mechanics.mechanism import Mechanism
from dae_hybrid.mechanics.reduction import Partition, selection_of
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.statement.declarations import Declaration, MotionStatement
from dae_hybrid.statement.expressions import matrix
from dae_hybrid.statement.model import HybridModel

#: smallest determinant of the constraints' directions, relative to its initial value
SINGULAR = 1e-6
#: largest difference of a symmetric matrix and its transpose, relative to its largest entry
SYMMETRIC = 1e-12


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
        self.equations = EquationsOfMotion(mech, formulation.reference)

    # -- the model ----------------------------------------------------------------------------------------

    def model(self) -> HybridModel:
        """The finished model."""
        self.configuration.check()
        mech, model = self.mechanism, HybridModel(self.mechanism.name)
        model.time, model.signals, model.rates, model.posts = mech.time, mech.signals, mech.rates, mech.posts
        model.inputs = dict(mech.signals)  # its statements differentiate them by time
        model.tables, model.indicators = mech.tables, mech.indicators
        for name, declared in mech.declarations.items():
            model.declarations[name] = self._declared(declared)
        partitions = self._partitions(model) if isinstance(self.formulation, Reduced) else {}
        for name in mech.modes:
            self._mode(model, name, partitions.get(name))
        for event in mech.events.values():
            transition = (
                {}
                if event.target is None
                else LoweredEvent(self.equations, self.formulation, model, event, partitions).declared()
            )
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
        for name, motion in self.equations.motions.items():
            # a single constraint is always independent, and the penalty formulation is regular
            if motion.bends and motion.m > 1 and not isinstance(self.formulation, Penalty):
                self._require_regular(model, name, motion)
        self._initial(model)
        for name, parts in mech.functionals.items():
            model.functional(name, **parts)
        return model

    @cached_property
    def configuration(self) -> Configuration:
        """The nominal initial configuration."""
        return Configuration(self.equations, self.start)

    def _declared(self, declared: Declaration) -> Declaration:
        """A declaration of the mechanism in this formulation; in reduced coordinates v is algebraic."""
        if declared.of is not None:
            return replace(declared, of=self._declared(declared.of))
        if not isinstance(self.formulation, Reduced) or declared.kind != "differential":
            return declared
        if declared.name in self.mechanism.states or declared.name in self.mechanism.coordinates:
            return declared
        return replace(declared, kind="algebraic", value=np.zeros(declared.size))

    def _partitions(self, model: HybridModel) -> dict[str, Partition]:
        found = {}
        for name, motion in self.equations.motions.items():
            start = None
            fixed = np.eye(motion.n) if not motion.m else self._stated_selection(name, motion)
            if name == self.start.mode and fixed is None:
                start = self._first_choice(motion)
            found[name] = Partition.declare(model, name, motion, fixed, start)
        return found

    def _first_choice(self, motion: Motion) -> tuple[Any, Any]:
        """B and its quality at the start of a run; at the nominal start if they depend on memory."""
        memory = ca.vertcat(*(d.symbol for d in self.mechanism.of_kind("memory")))
        by_q: Any = ca.densify(motion.phi_q)
        if memory.numel() and ca.depends_on(by_q, memory):
            (by_q,) = self.configuration.evaluate([motion.phi_q], self.configuration.q)
            flat, quality = partition_function(motion.m, motion.n)(by_q)
            return np.asarray(flat).ravel(), float(quality)
        flat, quality = partition_function(motion.m, motion.n)(by_q)
        return flat, quality

    def _stated_selection(self, name: str, motion: Motion) -> Array | None:
        if not isinstance(self.formulation, Reduced) or not self.formulation.independent:
            return None
        owners = [self.mechanism.coordinate_of(c, "Reduced: independent") for c in self.formulation.independent]
        return selection_of(motion, self.equations.places(ca.vertcat(*(o.q for o in owners))), name)

    def _mode(self, model: HybridModel, name: str, partition: Partition | None) -> None:
        motion = self.equations.motions[name]
        ode: dict[Any, Any] = {state: rate for state, (rate, _) in self.mechanism.states.items()}
        # multipliers of inactive constraints are zero, so that costs may use them in every mode
        active = self.equations.active(name)
        idle = [c.multiplier for key, c in self.mechanism.all_constraints().items() if key not in active]
        algebraic = [*idle, *motion.sparse.definitions, self.formulation.closure(motion.sparse)]
        along = motion.phi_q.T if partition is None else partition.along
        if motion.m and (
            partition is not None or (isinstance(self.formulation, Index2) and self.formulation.positions)
        ):
            text = "correction of positions, zero up to integration errors"
            along = along @ model.algebraic(f"mu_{name}", size=motion.m, description=text)
        else:
            along = ca.MX.zeros(motion.n)
        ode |= self.equations.by_name(motion.v + along, "q")
        if partition is None:
            ode |= self.equations.by_name(self.formulation.velocity_rates(motion.sparse), "v")
        else:
            ode |= partition.about(partition.selection @ motion.a)
            algebraic.append(motion.v - partition.velocities)
        model.mode(name, ode=ode, algebraic=algebraic, constraint=self.formulation.constraint(motion))
        model.modes[name] = replace(
            model.modes[name], idle=tuple(multiplier.name() for multiplier in idle), motion=self._motion(name, motion)
        )

    def _motion(self, name: str, motion: Motion) -> MotionStatement | None:
        """The equations of motion for an integrator of index 3."""
        form = self.formulation
        if not isinstance(form, ALI3P):
            return None
        if self.mechanism.states:
            raise ModelError(
                f"ALI3P() integrates coordinates only, and mechanism '{self.mechanism.name}' has the additional state "
                f"'{next(iter(self.mechanism.states))}'.",
                remedy="State a cost as a functional instead, or take Index2().",
            )
        projection = None if form.projection is None else matrix("projection", form.projection)
        if projection is not None:
            self._check_projection(name, motion, projection)
        names = {key: tuple(getattr(c, key).name() for c in self.equations.coordinates) for key in "qva"}
        return MotionStatement(
            **names,
            multipliers=tuple(c.multiplier.name() for c in self.equations.active(name).values()),
            inner=motion.sparse.inner,
            phi=motion.sparse.phi,
            projection=projection,
            projection_penalty=float(form.alpha) * float(form.varsigma),
            newmark=form.newmark,
            spectral_radius=float(form.spectral_radius),
        )

    def _check_projection(self, name: str, motion: Motion, projection: ca.MX) -> None:
        """Refuse a projection matrix that is not symmetric and positive definite at the start."""
        if projection.shape != (motion.n, motion.n):
            raise ModelError(f"projection has shape {projection.shape}, expected {(motion.n, motion.n)}.", mode=name)
        if motion.large is not None:
            raise ModelError(
                f"ALI3P: projection must be None, the mass matrix, for more than {WRITTEN_OUT} bodies.", mode=name
            )
        self.equations.check_places("The projection matrix of ALI3P", projection, name)
        (at_start,) = self.configuration.evaluate([projection], self.configuration.q)
        symmetric = np.abs(at_start - at_start.T).max() <= SYMMETRIC * np.abs(at_start).max()
        if not symmetric or np.linalg.eigvalsh(at_start)[0] <= 0:
            what = "positive definite" if symmetric else "symmetric"
            raise ModelError(f"ALI3P: projection is not {what} at the start.", mode=name)

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
        start, motion = self.start, self.equations.motions[self.start.mode]
        speeds = start.velocities
        if speeds is None:  # at rest
            speeds = {c.v.name(): ca.MX.zeros(c.v.numel()) for c in self.equations.coordinates}
        values: dict[str, ca.MX] = {**start.positions, **speeds}
        equations: list[Any] = []
        if start.project:
            equations, values = self._nearest(motion, values), {}
        guess = self.equations.by_name(ca.MX(ca.DM(self.configuration.q)), "q")
        starts = {name: start.guess.get(name, value) for name, value in guess.items() if name not in values}
        starts |= self.configuration.poses
        if start.project and motion.large is None:  # the poses of bodies belong to the nominal configuration
            starts |= start.positions
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
        """Equations of the nearest positions and velocities: the given ones move normal to the constraints only."""
        missing = [c.name for c in self.equations.coordinates if c.name not in values or c.v.name() not in values]
        if missing:
            raise ModelError(
                f"initial(project=True) needs the position and velocity of every coordinate; of {', '.join(missing)} "
                "there is none.",
                variables=missing,
            )
        along = motion.free_directions
        stated = [ca.vertcat(*(values[getattr(c, kind).name()] for c in self.equations.coordinates)) for kind in "qv"]
        return [
            ("given positions along the constraints", along @ (self.equations.q - stated[0])),
            ("given velocities along the constraints", along @ (self.equations.v - stated[1])),
        ]
