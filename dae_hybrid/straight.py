"""Runs that an integrator has carried out from their start to their end, made into what the automaton makes of them."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from dae_hybrid.automaton import scalar
from dae_hybrid.companion import Companion
from dae_hybrid.dense import Redo
from dae_hybrid.events import resting
from dae_hybrid.initial import Start
from dae_hybrid.integrator import Array
from dae_hybrid.journey import Straight
from dae_hybrid.leg import Leg
from dae_hybrid.measurement import measured_at_ends
from dae_hybrid.method import Method
from dae_hybrid.parts import Expansion, Parts
from dae_hybrid.system import HybridSystem
from dae_hybrid.trajectory import Part, Segment, Trajectory


def trajectory_of(system: HybridSystem, found: Straight, companion: Companion | None, reopen: Any) -> Trajectory:
    """The trajectory of a whole run; the companion gets to see what it would have seen on the way."""
    errand = found.errand
    p, mode = errand.parameters, system.modes[system.initial.mode]
    start = Start(system.initial, mode, errand.span[0], found.start, p, found.by_p)
    further = dict if companion is None else companion.follow(start, found)
    directions = getattr(companion, "directions", None)
    p.flags.writeable = False
    return Trajectory(
        system=system,
        t_span=errand.span,
        options=errand.options,
        parameters=p,
        parts=Parts(
            lambda: _parts(system, found, p, reopen, further()),
            lambda leg: Expansion(leg, system, p, reopen, directions),
            found,
        ),
        integrals=found.integrals,
        functionals=MappingProxyType(
            {name: scalar(found.values[system.functionals[name]]) for name in system.functionals.names}
        ),
        sampled=errand.t_eval is not None and errand.t_eval.size > 0,
        statistics=MappingProxyType(found.statistics | {"native_events": found.n_events}),
        notes=() if found.rested is None else tuple(resting(system, found.rested)),
        start=start,
        final=(found.t, found.mode, found.end.x, found.end.m),
        turns=system.turns(found.turns),
    )


def _parts(
    system: HybridSystem, found: Straight, p: Array, reopen: Any, kept: dict[str, Any]
) -> tuple[Part | Leg, ...]:
    (leg, task, outcome), end = found.pieces, found.end
    begin, how = (found.start.x, found.start.xdot), Method.of(outcome.method)
    if leg is not None:
        event, _ = leg.last
        begin = (event["x_after"], event["xdot_after"])
    for array in (outcome.rows, *(leg.rows.values() if leg is not None else ())):
        array.flags.writeable = False
    segment = Segment(
        system.modes[found.mode], p, task.t0, found.t, begin[0], end.x, begin[1], end.xdot, end.m, how,
        outcome.rows[:, 0], outcome.rows[:, 1 : 1 + task.equations.n], Redo(reopen, task, found.t, how.name),
        path=outcome.path, **kept,
    )  # fmt: skip
    at_start, at_end = measured_at_ends(system, found)
    return (*at_start, *(() if leg is None else (leg,)), segment, *at_end)
