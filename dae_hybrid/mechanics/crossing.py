"""The effect of an event on positions and velocities, as the reset of a transition."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.errors import ModelError
from dae_hybrid.mechanics.declared import (
    Continuous,
    Event,
    Impact,
    Inelastic,
    Restitution,
    VelocityJump,
    shown_velocity,
)
from dae_hybrid.mechanics.equations import EquationsOfMotion
from dae_hybrid.mechanics.formulations import Formulation, Index2, Penalty
from dae_hybrid.mechanics.kinematics import Labelled, Push
from dae_hybrid.mechanics.reduction import Partition
from dae_hybrid.statement.expressions import expression
from dae_hybrid.statement.model import HybridModel

#: sample points for testing whether two expressions agree, and the tolerance for zero
PLACES, NOTHING = 3, 1e-10


class LoweredEvent:
    """One event of a mechanism, lowered.

    Impacts are implicit resets T(post, pre, rho, t) = 0 with impulses for unknowns (Serban and Recuero 2019, eq. 16c):

        M (v+ - v-) + Phi+_q^T dlambda = E P,    Phi+_q v+ + Phi+_t = 0,

    where E P are the impulses of the impact itself, zero for `Inelastic` (Corner, Sandu and Sandu 2019, eq. 54). The
    derivatives are those of the transition; the formulas of sections 3.4 and 5 of the papers are not transcribed.
    """

    def __init__(
        self,
        equations: EquationsOfMotion,
        formulation: Formulation,
        model: HybridModel,
        event: Event,
        partitions: Mapping[str, Partition],
    ) -> None:
        self.equations, self.formulation, self.model, self.event = equations, formulation, model, event
        self.mechanism, self.target = equations.mechanism, event.target or ""
        self.motion, self.partition = equations.motions[self.target], partitions.get(self.target)
        self._check()

    # -- what changes -----------------------------------------------------------------------------------

    @cached_property
    def _moved(self) -> dict[str, ca.MX]:
        """New positions, by name of the coordinate."""
        return {name: v for name, v in self.event.reset.items() if name in self.mechanism.coordinates}

    @cached_property
    def _accelerated(self) -> dict[str, ca.MX]:
        """New velocities, by name."""
        names = {c.v.name() for c in self.equations.coordinates}
        return {name: v for name, v in self.event.reset.items() if name in names}

    @cached_property
    def _others(self) -> dict[str, ca.MX]:
        """New values of additional states."""
        return {name: v for name, v in self.event.reset.items() if name in self.mechanism.states}

    @cached_property
    def updates(self) -> dict[str, ca.MX]:
        """Memory after the event: updates of the event, and values stored on entry into a mode."""
        frozen = {}
        for d in self.mechanism.of_kind("memory"):
            if d.of is not None and d.of.name in self.mechanism.coordinates:
                frozen[d.name] = self._moved.get(d.of.name, d.of.symbol)
            elif d.of is not None:
                frozen[d.name] = self.model.post(d.of.name)
        return frozen | dict(self.event.memory)

    @cached_property
    def gained(self) -> list[str]:
        """Constraints of the target that need not hold before the event: new ones, and those that memory moves."""
        before = self.equations.active(self.event.source)
        return [
            name
            for name, constraint in self.equations.active(self.target).items()
            if name not in before or self.updates.keys() & {s.name() for s in ca.symvar(constraint.phi)}
        ]

    @cached_property
    def impact(self) -> Impact:
        """The impact law."""
        return self.event.impact or (Inelastic() if self.gained or (self._moved and self.motion.m) else Continuous())

    def _check(self) -> None:
        event = self.event
        wrong = [n for n in event.reset if n not in self._moved | self._accelerated | self._others]
        if wrong:
            raise ModelError(f"reset= names {', '.join(wrong)}, which is no state.", transition=event.name)
        given = self._moved | self._accelerated if isinstance(self.impact, Continuous) else self._moved
        if given and self.motion.m and isinstance(self.formulation, Penalty):
            raise ModelError(
                f"reset= gives {', '.join(given)} a value, and Penalty(), where constraints hold up to 1 / alpha, "
                f"cannot tell whether those of mode '{self.target}' hold there.",
                transition=event.name,
                remedy="Take Index2(), Reduced() or Index1().",
            )
        if isinstance(self.impact, Continuous) and self.gained and not isinstance(self.formulation, Penalty):
            raise ModelError(
                f"Velocities cannot be continuous where mode '{self.target}' has constraints "
                f"({', '.join(self.gained)}) that do not hold before, except with Penalty().",
                transition=event.name,
                remedy="State an impact instead: Restitution, VelocityJump or Inelastic.",
            )

    # -- at the target ------------------------------------------------------------------------------------

    @cached_property
    def places(self) -> ca.MX:
        """q+ in terms of the values before."""
        return ca.vertcat(*(self._moved.get(c.name, c.q) for c in self.equations.coordinates))

    @cached_property
    def speeds(self) -> ca.MX:
        """The velocities on which the impact acts, in terms of the values before."""
        return ca.vertcat(*(self._accelerated.get(c.v.name(), c.v) for c in self.equations.coordinates))

    def _at_target(self, value: ca.MX) -> ca.MX:
        """An expression evaluated with the positions and the memory after the event."""
        updated = [self.mechanism.lookup(name, "memory").symbol for name in self.updates]
        if self._moves_bodies:
            (value,) = self.equations.written_out([value])
        return ca.substitute([value], [*updated, self.equations.q], [*self.updates.values(), self.places])[0]

    # -- the reset ----------------------------------------------------------------------------------------

    def declared(self) -> dict[str, Any]:
        """The arguments reset= and memory= of the transition."""
        memory: dict[Any, Any] = dict(self.event.memory)
        stays = self.event.source == self.target and not self._moved
        selection = None if self.partition is None else self.partition.selection
        if self.partition is not None and not stays:
            selection, chosen = self.partition.chosen(self._at_target(self.motion.phi_q))
            memory |= chosen
        if isinstance(self.impact, Continuous):
            return {"reset": self._continuous(selection, stays=stays), "memory": memory}
        return {"reset": self._impact(selection), "memory": memory}

    def _continuous(self, selection: ca.MX | None, *, stays: bool) -> dict[Any, ca.MX] | list[Any]:
        reset: dict[Any, ca.MX] = dict(self.event.reset)
        if self.partition is not None and selection is not None:
            reset = {**self._others, **self._moved}
            if not stays or self._accelerated:
                reset |= self.partition.about(selection @ self.speeds)
        # Index2 projects velocities onto their constraints; other formulations would lose the values of the reset
        conditions = [] if self._keeps_positions else self._conditions()
        if self._accelerated and self.motion.m and not isinstance(self.formulation, Index2):
            phi_q, phi_t = (self._at_target(e) for e in (self.motion.phi_q, self.motion.phi_t))
            rates = phi_q @ self.speeds + phi_t
            if not self._is_met(rates):
                conditions.append(("velocity constraints", rates))
        if not conditions:
            return reset
        return [*((f"reset of '{name}'", self.model.post(name) - v) for name, v in reset.items()), *conditions]

    @property
    def _keeps_positions(self) -> bool:
        """Whether the formulation enforces the constraints on positions, and detects violations."""
        return self.partition is not None or (isinstance(self.formulation, Index2) and self.formulation.positions)

    def _impact(self, selection: ca.MX | None) -> list[Any]:
        model, motion, partition = self.model, self.motion, self.partition
        moved = self._others | self._moved
        equations: list[Any] = [(f"reset of '{name}'", model.post(name) - value) for name, value in moved.items()]
        if partition is None or selection is None:
            after = ca.vertcat(*(model.post(c.v.name()) for c in self.equations.coordinates))
        else:
            after = model.unknown(f"v_after_{self.event.name}", size=motion.n)
            equations += [model.post(w) - value for w, value in partition.about(selection @ after).items()]
        phi_q, phi_t = (self._at_target(e) for e in (motion.phi_q, motion.phi_t))
        impulses = [self._impulse(name) for name in self.equations.active(self.target)]
        pushes = [(motion.sparse.phi, ca.vertcat(*impulses))] if impulses else []
        own, further, laws = self._own_impulse(after)
        balance, definitions = self._balance(after - self.speeds, [*pushes, *further])
        equations += [*definitions, ("balance of impulses", balance - own)]
        equations += [("law of the impact", law) for law in laws]
        form = self.formulation
        if not isinstance(form, Index2):
            equations.append(("velocity constraints after the impact", phi_q @ after + phi_t))
        if not self._keeps_positions:
            equations += self._conditions()
        return equations

    def _balance(self, jump: ca.MX, pushes: list[Push]) -> tuple[ca.MX, list[Labelled]]:
        """M jump + sum of phi_q^T impulses at the target, and equations of further unknowns."""
        name = self.event.name
        of_jump = ca.MX.sym("jump", jump.shape)  # keeps the values before the event out of `_at_target`
        balance, definitions = self.motion.sparse.impulse_balance(
            of_jump, pushes, lambda what, size: self.model.unknown(f"{what}_{name}", size=size)
        )
        labels = [label for label, _ in definitions]
        rows = [balance, *(row for _, row in definitions)]
        balance, *rows = ca.substitute([self._at_target(row) for row in rows], [of_jump], [jump])
        return balance, list(zip(labels, rows, strict=True))

    @cached_property
    def _moves_bodies(self) -> bool:
        """Whether poses of bodies jump: by a reset of positions, or by memory that places the ground."""
        stated = ca.veccat(
            ca.MX(0, 1), *(s for b in self.mechanism.bodies.values() if b.lifted for s in b.lifted.stated)
        )
        return bool(self._moved) or bool(self.updates.keys() & {s.name() for s in ca.symvar(stated)})

    def _conditions(self) -> list[tuple[str, ca.MX]]:
        """New constraints that no other part of the transition checks."""
        if isinstance(self.impact, Continuous) and isinstance(self.formulation, Penalty):
            return []  # the penalty forces pull the mechanism onto them
        after = self.equations.active(self.target)
        rows = []
        for name in after if self._moved else self.gained:
            phi = self._at_target(*self.equations.written_out([after[name].phi]))
            if not self._is_met(phi):
                rows.append((f"constraint '{name}'", phi))
        return rows

    def _is_met(self, phi: ca.MX) -> bool:
        """Whether constraints are multiples of expressions that are zero at the event, or are identically zero.

        The guard is zero to rounding, and the constraints of the source up to the drift of the formulation.
        """
        guard = self.event.trigger.get("guard")
        zeros = [ca.MX(0)] if guard is None else self.equations.written_out([expression("guard", guard, 1)])
        before = self.equations.motions[self.event.source]
        if before.m:
            zeros += [*ca.vertsplit(before.phi), *ca.vertsplit(before.velocity)]
        return all(any(is_multiple(row, zero) for zero in zeros) for row in ca.vertsplit(phi))

    def _impulse(self, of: Any) -> ca.MX:
        """The impulse, an unknown of the mechanism, declared in the model too."""
        symbol = self.mechanism.impulse(of)
        self.model.declarations[symbol.name()] = self.mechanism.declarations[symbol.name()]
        return symbol

    def _own_impulse(self, after: ca.MX) -> tuple[ca.MX, list[Push], list[ca.MX]]:
        """E P of coordinates, functions of positions with impulses along their normals, and the law of the impact."""
        event, impact = self.event, self.impact
        nothing = ca.MX.zeros(self.motion.n, 1)
        if isinstance(impact, Restitution):
            distance, by_q, by_t = self._normal(impact)
            impulse = self._impulse(event)
            before = by_q @ self.speeds + by_t
            coefficient = expression(f"coefficient of event '{event.name}'", impact.coefficient, 1)
            return nothing, [(distance, -impulse)], [by_q @ after + by_t + coefficient * before]
        if isinstance(impact, VelocityJump):
            own, laws = self._jump(impact, after)
            return own, [], laws
        return nothing, [], []

    def _normal(self, impact: Restitution) -> tuple[ca.MX, ca.MX, ca.MX]:
        """The distance, and its derivatives by q and t at the target."""
        distance = self.event.trigger.get("guard") if impact.distance is None else impact.distance
        if distance is None:
            raise ModelError(
                "Restitution needs a distance: the event has no guard.",
                transition=self.event.name,
                remedy="Give Restitution(coefficient, distance=...).",
            )
        distance = expression(f"distance of event '{self.event.name}'", distance, 1)
        self.equations.check_places(f"The distance of the impact of event '{self.event.name}'", distance)
        (written_out,) = self.equations.written_out([distance])
        by_q, by_t = (ca.jacobian(written_out, s) for s in (self.equations.q, self.mechanism.time))
        if not by_q.nnz():
            raise ModelError(
                "Restitution: the guard does not depend on positions, so it gives no normal.",
                transition=self.event.name,
                remedy="Give Restitution(coefficient, distance=...), a distance that becomes zero at the impact.",
            )
        return distance, self._at_target(by_q), self._at_target(by_t)

    def _jump(self, impact: VelocityJump, after: ca.MX) -> tuple[ca.MX, list[ca.MX]]:
        name, freedoms = self.event.name, self.motion.n - self.motion.m
        own, laws, size = ca.MX.zeros(self.motion.n, 1), [], 0
        impulses = ca.vertsplit(self._impulse(self.event))
        for speed, value in self.mechanism.velocities(impact.values, f"velocity jump of event '{name}'"):
            (written_out,) = self.equations.written_out([speed])
            by_v = ca.jacobian(written_out, self.equations.v)
            if not by_v.nnz() or ca.depends_on(by_v, self.equations.v):
                raise ModelError(f"VelocityJump names {shown_velocity(speed)}, which is no velocity.", transition=name)
            still = ca.substitute(written_out, self.equations.v, ca.MX.zeros(self.motion.n, 1))
            self.equations.check_places(f"Besides velocities, {shown_velocity(speed)} of event '{name}'", still)
            by_v, still = (self._at_target(e) for e in (by_v, still))
            own += by_v.T @ ca.vertcat(*impulses[size : size + speed.numel()])
            laws.append(by_v @ after + still - value)
            size += speed.numel()
        if size != freedoms:
            raise ModelError(
                f"VelocityJump gives {size} velocities; mode '{self.target}' has {freedoms} degrees of freedom.",
                transition=name,
                remedy="Give as many independent velocities, {vx: vx, ...} for those that stay as they are.",
            )
        return own, laws


def is_multiple(value: ca.MX, of: ca.MX) -> bool:
    """Whether an expression is a constant multiple of another one, tested at fixed random points."""
    symbols = ca.symvar(ca.vertcat(value, of))
    function = ca.Function("both", symbols, [ca.densify(value), ca.densify(of)])
    generator = np.random.default_rng(0)
    found = []
    for _ in range(PLACES):
        at = [ca.DM(generator.uniform(0.3, 1.7, s.shape)) for s in symbols]
        found.append([float(entry) for entry in function.call(at)])
    first, base = found[0]
    factor = first / base if base else 0.0
    return all(abs(one - factor * other) <= NOTHING * (1 + abs(one)) for one, other in found)
