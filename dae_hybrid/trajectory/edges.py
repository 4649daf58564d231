"""Ends of the smooth parts of a run: its start, its end, and both sides of events and of knots."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.records import EventRecord, KnotRecord, MeasurementRecord
from dae_hybrid.system.peaks import Side
from dae_hybrid.system.system import ModeSystem
from dae_hybrid.trajectory.trajectory import Segment, Trajectory


class Edge(NamedTuple):
    """An end of a smooth part of the run: the start, the end, or one side of an event or of a knot."""

    kind: Literal["start", "end", "event", "knot"]
    mode: ModeSystem
    time: float
    x: Array
    m: Array
    event: int = -1  # index among the events of the run
    side: Side = "-"
    segment: int = -1  # of the run, for a knot


def edges_of(run: Trajectory) -> list[Edge]:
    """Return the ends of the smooth parts of a run, in order."""
    found: list[Edge] = []
    before: Segment | None = None
    gap: list[tuple[int, EventRecord | KnotRecord]] = []
    n_events = n_segments = 0
    for part in run.parts:
        if isinstance(part, Segment):
            if part.t_end > part.t_start:
                found += _between(run, before, gap, part, n_segments)
                before, gap = part, []
            n_segments += 1
        elif not isinstance(part, MeasurementRecord):
            gap.append((n_events, part))
            n_events += isinstance(part, EventRecord)
    return found + list(_between(run, before, gap, None, n_segments))


def _between(
    run: Trajectory,
    before: Segment | None,
    gap: list[tuple[int, EventRecord | KnotRecord]],
    after: Segment | None,
    index: int,
) -> Iterator[Edge]:
    """Yield the edges between two segments, of which `index` is the second."""
    system, events = run.system, [(i, part) for i, part in gap if isinstance(part, EventRecord)]
    if events:
        (i, first), (j, last) = events[0], events[-1]
        source, target = system.modes[system.transitions[first.index].source], system.transitions[last.index].target
        yield Edge("event", source, first.time, first.x_minus, first.memory_minus, i, "-")
        if target is not None:
            yield Edge("event", system.modes[target], last.time, last.x_plus, last.memory_plus, j, "+")
        elif j > i:  # the end of the run changes nothing: only events before it do
            source = system.modes[system.transitions[last.index].source]
            yield Edge("event", source, last.time, last.x_minus, last.memory_minus, j, "-")
        return
    if before is not None and gap:
        yield Edge("knot", before.mode, before.t_end, before.x_end, before.memory, -1, "-", index - 1)
    if before is None:
        start = run.start
        mode, x, m = (
            (start.mode, start.at.x, start.at.m) if after is None else (after.mode, after.x_start, after.memory)
        )
        yield Edge("start", mode, run.t_span[0], x, m)
    elif after is None:
        t, mode_index, x, m = run.final
        yield Edge("end", system.modes[mode_index], t, x, m)
    elif gap:
        yield Edge("knot", after.mode, after.t_start, after.x_start, after.memory, -1, "+", index)
