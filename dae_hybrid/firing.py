"""One transition fires: the state after it, and its record."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dae_hybrid.errors import ConsistencyError
from dae_hybrid.integrator import Array
from dae_hybrid.options import Options
from dae_hybrid.records import EventRecord
from dae_hybrid.system import HybridSystem, ModeSystem
from dae_hybrid.transition import Arrival, TransitionMap


@dataclass(frozen=True, slots=True)
class Firing:
    """A transition that fires, with value and rate of its guard.

    `follows` says that its time is not that of its guard but that of what came before it at the instant.
    """

    transition: TransitionMap
    guard: float = 0.0
    rate: float = 1.0
    count: int = 0
    follows: bool = False

    def carry_out(
        self,
        system: HybridSystem,
        t: float,
        before: Arrival,
        p: Array,
        options: Options,
        *,
        order: int,
        rate_scale: float,
        is_knot: bool,
    ) -> tuple[ModeSystem, Arrival, EventRecord, Array]:
        """The mode and the point after it, its record, and what it adds to the functionals."""
        transition = self.transition
        source = system.modes[transition.source]
        if transition.refusal:
            raise ConsistencyError(transition.refusal, mode=source.name, transition=transition.name, time=t)
        target, after, xi = source, before, np.zeros(0)
        if transition.target is not None:
            target = system.modes[transition.target]
            after, xi = transition.apply(target, t, before.x, before.m, p, options)
        costs = np.zeros(system.functionals.size)
        if "cost" in transition.kernels:
            costs = transition.kernels["cost"](t, before.x, before.m, xi, p)[0]
        for array in (after.x, after.xdot, after.m):
            array.flags.writeable = False
        record = EventRecord(
            time=t,
            index=transition.index,
            transition=transition.name,
            source=source.name,
            target=None if transition.target is None else target.name,
            order=order,
            guard=self.guard,
            direction=0 if transition.kind != "guard" else (1 if self.rate > 0 else -1),
            rate=self.rate,
            rate_scale=rate_scale,
            count=self.count,
            follows=self.follows,
            at_knot=transition.movable and not self.follows and is_knot,
            x_minus=before.x,
            x_plus=after.x,
            xdot_minus=before.xdot,
            xdot_plus=after.xdot,
            memory_minus=before.m,
            memory_plus=after.m,
            n_differential=(source.differential.size, target.differential.size),
            xi=xi,
            unknowns=transition.named_unknowns(target, xi),
        )
        return target, after, record, costs
