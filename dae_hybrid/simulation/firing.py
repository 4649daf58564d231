"""Application of one transition: the state after it, and its record."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from dae_hybrid.errors import ConsistencyError, DaeHybridError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.options import Options
from dae_hybrid.port.failure_messages import bound_passed, guard_passed
from dae_hybrid.port.point import StatePoint
from dae_hybrid.port.records import EventRecord
from dae_hybrid.system.system import HybridSystem, ModeSystem
from dae_hybrid.system.transition_map import TransitionMap


@dataclass(frozen=True, slots=True)
class Firing:
    """A transition to be applied, with value and rate of its guard.

    `follows` says that its time is that of an earlier transition of the same instant, not that of its own guard;
    `returns` that motion which was held on a surface has left it to the side that it came from.
    """

    transition: TransitionMap
    guard: float = 0.0
    rate: float = 1.0
    count: int = 0
    follows: bool = False
    returns: bool = False

    @property
    def corrects(self) -> bool:
        """Whether it updates a relation after another transition; the state is not valid before it has."""
        return self.follows and self.transition.relation is not None

    def decided(self, system: HybridSystem, t: float, at: StatePoint, p: Array) -> Firing:
        """Return the firing of the transition without effect if the condition of this one does not hold."""
        transition = self.transition
        if transition.holds(t, at.x, at.m, p):
            return self
        return replace(self, transition=system.transitions[transition.otherwise])

    def refused(self, mode: ModeSystem, t: float, at: StatePoint) -> DaeHybridError:
        """Return the error of a failed condition on the mode."""
        transition, bound = self.transition, self.transition.bound
        if bound is not None:
            value = float(at.x[mode.variables[bound.variable]][bound.entry])
            return bound_passed(bound, value, mode=mode.name, transition=transition.name, time=t, entering=self.follows)
        if self.follows and not transition.jumps:  # a transition has led beyond it
            return guard_passed(transition.name, mode.name, t)
        return ConsistencyError(transition.refusal, mode=mode.name, transition=transition.name, time=t)

    def apply(
        self,
        system: HybridSystem,
        t: float,
        before: StatePoint,
        p: Array,
        options: Options,
        *,
        order: int,
        rate_scale: float,
        earlier: EventRecord | None = None,
    ) -> tuple[ModeSystem, StatePoint, EventRecord, Array]:
        """Return the mode and the point after the transition, its record, and its contribution to the functionals.

        `earlier` is the previous event of the same instant.
        """
        transition = self.transition
        source = system.modes[transition.source]
        if transition.refuses:
            raise self.refused(source, t, before)
        target, after, xi = source, before, np.zeros(0)
        if transition.target is not None:
            target = system.modes[transition.target]
            transition.refuse_unmet(source, t, before, p, options)
            rates = _rates(source, target, before) if target.invariants else None
            after, xi = transition.apply(target, t, before.x, before.m, p, options, rates)
        costs = np.zeros(system.functionals.size)
        if "cost" in transition.kernels:
            costs = transition.kernels["cost"](t, before.x, before.m, xi, p)[0]
        for array in (after.x, after.xdot, after.m):
            array.flags.writeable = False
        record = EventRecord(
            time=t,
            index=transition.index,
            transition=transition.title(after.m),
            source=source.name,
            target=None if transition.target is None else target.name,
            order=order,
            guard=self.guard,
            direction=transition.trigger.sign(self.rate),
            rate=self.rate,
            rate_scale=rate_scale,
            count=self.count,
            follows=self.follows,
            x_minus=before.x,
            x_plus=after.x,
            xdot_minus=before.xdot,
            xdot_plus=after.xdot,
            memory_minus=before.m,
            memory_plus=after.m,
            n_differential=(source.differential.size, target.differential.size),
            xi=xi,
            unknowns=transition.named_unknowns(target, xi),
            earlier=earlier,
            returns=self.returns,
        )
        return target, after, record, costs


def _rates(source: ModeSystem, target: ModeSystem, before: StatePoint) -> Array:
    """Return the rates before the event of the target's states, zero for states that the source does not have."""
    rates = np.zeros(target.differential.size)
    for name in target.differential.names:
        if name in source.differential:
            rates[target.differential[name]] = before.xdot[source.differential[name]]
    return rates
