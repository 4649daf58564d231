"""Runs that an integrator has carried out from their start to their end, made into what the automaton makes of them."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from dae_hybrid.automaton import scalar
from dae_hybrid.companion import Companion
from dae_hybrid.dense import Redo
from dae_hybrid.events import resting
from dae_hybrid.initial import Start
from dae_hybrid.journey import Errand, Straight
from dae_hybrid.leg import Leg, Parts
from dae_hybrid.system import HybridSystem
from dae_hybrid.trajectory import Part, Segment, Trajectory


def is_whole(found: Straight, errand: Errand) -> bool:
    """Whether every output time has been met."""
    if errand.t_eval is None:
        return True
    return len(found.outcome.rows) + (0 if found.leg is None else found.leg.n_rows) == errand.t_eval.size


def trajectory_of(
    system: HybridSystem, found: Straight, errand: Errand, companion: Companion | None, reopen: Any
) -> Trajectory:
    """The trajectory of a whole run; the companion gets to see what it would have seen on the way."""
    p, outcome, task = errand.parameters, found.outcome, found.task
    first, mode = system.modes[system.initial.mode], system.modes[found.mode]
    start = Start(system.initial, first, errand.span[0], found.start, p, found.by_p)
    kept: dict[str, Any] = {}
    begin = (found.start.x, found.start.xdot)
    if found.leg is not None:
        event, _ = found.leg.last
        begin = (event["x_after"], event["xdot_after"])
    if companion is not None:
        companion.start(start)
        if found.leg is not None:
            companion.absorb(found.leg)
        kept = companion.advance(outcome, found.end.x, task.memory)
    for array in (p, outcome.rows, outcome.integrals, found.values, *begin, found.end.x, found.end.xdot, task.memory):
        array.flags.writeable = False
    segment = Segment(
        mode, p, task.t0, outcome.t, begin[0], found.end.x, begin[1], found.end.xdot, task.memory, outcome.method,
        outcome.rows[:, 0], outcome.rows[:, 1 : 1 + task.equations.n], Redo(reopen, task, outcome.t, outcome.method),
        path=outcome.path, **kept,
    )  # fmt: skip
    directions = getattr(companion, "directions", None)

    def expand(leg: Leg) -> list[Part]:
        return leg.parts(system, p, reopen, directions)

    return Trajectory(
        system=system,
        t_span=errand.span,
        options=errand.options,
        parameters=p,
        parts=Parts((segment,) if found.leg is None else (found.leg, segment), expand),
        integrals=outcome.integrals,
        functionals=MappingProxyType(
            {name: scalar(found.values[system.functionals[name]]) for name in system.functionals.names}
        ),
        statistics=MappingProxyType(found.statistics),
        notes=tuple(resting(system, found.rested)),
        start=start,
        final=(outcome.t, found.mode, found.end.x, task.memory),
    )

