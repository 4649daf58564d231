"""Build a `Trajectory` from a run that the native loop completed."""

from __future__ import annotations

from functools import partial
from types import MappingProxyType

from dae_hybrid.method import Method
from dae_hybrid.numerics.arrays import Array, scalar
from dae_hybrid.port.integrator import OpenSession
from dae_hybrid.port.native_plan import NativeRun
from dae_hybrid.port.record_table import RecordTable
from dae_hybrid.port.replay import SegmentReplay
from dae_hybrid.simulation.event_logic import past_on_entry, resting, signs
from dae_hybrid.simulation.observer import RunObserver
from dae_hybrid.system.initial import RunStart
from dae_hybrid.system.measurement import measured_at_ends
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.trajectory.parts import Expansion, TrajectoryParts
from dae_hybrid.trajectory.trajectory import Part, Segment, SegmentSensitivities, Trajectory


def trajectory_of(
    system: HybridSystem, found: NativeRun, observer: RunObserver | None, open_session: OpenSession
) -> Trajectory:
    """Return the trajectory of a native run and notify the observer of it."""
    request = found.request
    p, mode = request.parameters, system.modes[system.initial.mode]
    by_p = found.by_p if request.start is None or request.certify else None
    start = RunStart(system.initial, mode, request.span[0], found.start, p, by_p)
    further = SegmentSensitivities if observer is None else observer.on_native_run(start, found)
    directions = getattr(observer, "directions", None)
    p.flags.writeable = False
    return Trajectory(
        system=system,
        t_span=request.span,
        options=request.options,
        parameters=p,
        parts=TrajectoryParts(
            lambda: _parts(system, found, p, open_session, further()),
            partial(Expansion, system=system, p=p, open_session=open_session, directions=directions),
            found,
        ),
        integrals=found.integrals,
        functionals=MappingProxyType(
            {name: scalar(found.values[system.functionals[name]]) for name in system.functionals.names}
        ),
        sampled=request.t_eval is not None and request.t_eval.size > 0,
        statistics=MappingProxyType(found.statistics | {"native_events": found.n_events}),
        notes=tuple(_notes(system, found)),
        start=start,
        final=(found.t, found.mode, found.end.x, found.end.m),
        turns=system.turns(found.turns),
    )


def _notes(system: HybridSystem, found: NativeRun) -> list[str]:
    """Notes on guards that were past their thresholds at the start, or stayed at zero."""
    mode = system.modes[system.initial.mode]
    sides = zip((system.transitions[i] for i in mode.guarded), signs(found.start), strict=False)
    notes = sorted(past_on_entry(t.name, mode.name) for t, side in sides if t.direction and side == t.direction)
    return notes + ([] if found.stayed_at_zero is None else resting(system, found.stayed_at_zero))


def _parts(
    system: HybridSystem, found: NativeRun, p: Array, open_session: OpenSession, kept: SegmentSensitivities
) -> tuple[Part | RecordTable, ...]:
    (table, task, outcome), end = found.segments, found.end
    begin, how = (found.start.x, found.start.xdot), Method.of(outcome.method)
    if table is not None:
        event, _ = table.last
        begin = (event["x_after"], event["xdot_after"])
    for array in (outcome.rows, *(table.rows.values() if table is not None else ())):
        array.flags.writeable = False
    segment = Segment(
        system.modes[found.mode], p, task.t0, found.t, begin[0], end.x, begin[1], end.xdot, end.m, how,
        outcome.rows[:, 0], outcome.rows[:, 1 : 1 + task.equations.n],
        SegmentReplay(open_session, task, found.t, how.name), path=outcome.path, **kept,
    )  # fmt: skip
    at_start, at_end = measured_at_ends(system, found)
    before = *at_start, *(() if table is None else (table,))
    if task.t0 == found.t:  # an event ends the run: a segment exists for outputs only
        return (*before, *at_end, *((segment,) if segment.t.size else ()))
    return (*before, segment, *at_end)
