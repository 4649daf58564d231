"""The parts of a run: segments, events, knots and measurements, created from record tables on access."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.lazily import Lazily
from dae_hybrid.method import Method
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.integrator import OpenSession, SegmentTask
from dae_hybrid.port.native_plan import NativeRun
from dae_hybrid.port.record_table import HEADER, RECORDS, RecordHeader, RecordTable
from dae_hybrid.port.records import EventRecord, KnotRecord, MeasurementRecord
from dae_hybrid.port.replay import SegmentReplay
from dae_hybrid.system.packing import Portable

if TYPE_CHECKING:
    from dae_hybrid.system.system import HybridSystem
    from dae_hybrid.trajectory.trajectory import Part, Segment, SegmentSensitivities

#: properties that remain known of parts that are not kept
TALLIED = ("n_segments", "n_events", "is_certified", "ends_with_event", "modes")
#: number of members, and the function that creates one
type Source = tuple[int, Callable[[int], Any]]


class Expansion:
    """Creates the segments and events of a record table, one by one."""

    def __init__(
        self, table: RecordTable, system: HybridSystem, p: Array, open_session: OpenSession, directions: Array | None
    ) -> None:  # fmt: skip
        self.table, self.system, self.p, self.open_session = table, system, p, open_session
        self.directions = directions if directions is not None and directions.shape[1] else None

    def parts(self) -> list[Part]:
        """Return all parts."""
        found: list[Part] = []
        for k, is_segment in enumerate(self.table.is_segments.tolist()):
            if is_segment:
                found.append(self.segment(k))
            found.append(self.record(k))
        return found

    def _start(self, k: int) -> tuple[Array, Array]:
        """Return x and x' at the start of a segment, eliminated variables included."""
        if not k:
            return self.table.start
        head = self.table.header(k - 1)
        return self._part(head, "x_after"), self._part(head, "xdot_after")

    def _part(self, head: RecordHeader, name: str) -> Array:
        part = head.layout[name]
        return self.table.records[head.at + part.start : head.at + part.stop]

    def segment(self, k: int) -> Segment:
        """Return the segment before a record."""
        from dae_hybrid.trajectory.trajectory import Segment

        table, head = self.table, self.table.header(k)
        header = dict(zip(HEADER, table.records[head.at : head.at + len(HEADER)].tolist(), strict=True))
        mode, task = self.system.modes[head.mode], table.task
        n, n_guards, method = mode.equations.n, mode.equations.n_guards, table.methods[head.mode]
        (x, xdot), memory, t = self._start(k), self._part(head, "memory"), float(table.begins[k])
        rows = table.rows[head.mode][int(header["row"]) : int(header["row_end"])]
        kept: SegmentSensitivities = {}
        if self.directions is not None:
            ny, before = mode.differential.size, table.state_derivatives(self._part(head, "before"), head.mode)
            kept = {
                "sensitivity_rows": rows[:, 1 + n :].reshape(len(rows), self.directions.shape[1], n),
                "memory_sensitivities": before[ny:],
                "directions": self.directions,
            }
        own = SegmentTask(
            mode.equations, t, header["stop"], x[:n], xdot[:n], memory, task.integrals, np.zeros(n_guards),
            np.zeros(n_guards), t_eval=task.t_eval, first_step=header["first_step"] or None,
        )  # fmt: skip
        path = table.paths.get(head.mode)
        if path is not None:
            path = path[int(table.path_begins[k]) : int(header["path_end"])]
        return Segment(
            mode, self.p, t, header["time"], x, self._part(head, "x"), xdot, self._part(head, "xdot"), memory, method,
            rows[:, 0], rows[:, 1 : 1 + n], SegmentReplay(self.open_session, own, header["time"], method.name),
            path=path, **kept,
        )  # fmt: skip

    def record(self, k: int) -> EventRecord | KnotRecord | MeasurementRecord:
        """Return the record of an event, a measurement or a knot."""
        table, head = self.table, self.table.header(k)
        header = dict(zip(HEADER, table.records[head.at : head.at + len(HEADER)].tolist(), strict=True))
        source, time = self.system.modes[head.mode], header["time"]
        x, xdot, memory = (self._part(head, name) for name in ("x", "xdot", "memory"))
        if table.is_measurement[k]:
            return MeasurementRecord(time, int(header["count"]), source, x, xdot, memory)
        if not table.is_event[k]:
            intervals = tuple(signal.interval(time) for signal in self.system.signals)
            return KnotRecord(time, table.graph.entries, intervals)
        target, transition = (
            self.system.modes[head.target],
            self.system.transitions[table.graph.exits[head.mode][head.guard]],
        )
        memory_after, x_after = self._part(head, "memory_after"), self._part(head, "x_after")
        xi = x_after[target.differential.size :]
        if not transition.simple:
            xi = self._part(head, "xi")[: len(transition.labels)]
        order = int(table.orders[k])
        follows = order > 0 and not transition.trigger.is_timed
        return EventRecord(
            time=time,
            index=transition.index,
            transition=transition.title(memory_after),
            source=source.name,
            target=target.name,
            order=order,
            guard=header["value"],
            direction=transition.trigger.sign(header["rate"]),
            rate=header["rate"],
            rate_scale=header["rate_scale"],
            count=int(header["count"]),
            follows=follows,
            x_minus=x,
            x_plus=x_after,
            xdot_minus=xdot,
            xdot_plus=self._part(head, "xdot_after"),
            memory_minus=memory,
            memory_plus=memory_after,
            n_differential=(source.differential.size, target.differential.size),
            xi=xi,
            unknowns=transition.named_unknowns(target, xi),
            earlier=cast(EventRecord, self.record(k - 1)) if follows else None,
            certified=bool(header["clean"]),
        )


class TrajectoryParts(Portable, Sequence["Part"]):
    """The parts of a run, created on first access.

    `native_run` is set if the native loop completed the run; `dropped` are the numbers of segments and events that were
    dropped before the parts.
    """

    def __init__(
        self,
        make: Callable[[], Sequence[Part | RecordTable]],
        expand: Callable[[RecordTable], Expansion],
        native_run: NativeRun | None = None,
        dropped: tuple[int, int] = (0, 0),
    ) -> None:
        self._make, self._expand, self.native_run, self._dropped = make, expand, native_run, dropped
        self._parts: tuple[Part, ...] | None = None
        self._expanded: dict[int, list[Part]] = {}

    def _state(self) -> dict[str, Any]:
        """Return the state of a pickle: all parts, without the paths that only an adjoint needs."""
        given = [item.thinned(outputs=True) if isinstance(item, RecordTable) else item for item in self._given]
        known = {name: getattr(self, name) for name in TALLIED}
        empty: dict[str, Any] = {"native_run": None, "_parts": None, "_expanded": {}}
        return {"_given": tuple(given), "_expand": self._expand, "_dropped": self._dropped} | empty | known

    @cached_property
    def _given(self) -> tuple[Part | RecordTable, ...]:
        return tuple(self._make())

    def _all(self) -> tuple[Part, ...]:
        if self._parts is None:
            parts: list[Part] = []
            for item in self._given:
                parts += self.of(item) if isinstance(item, RecordTable) else [item]
            self._parts = tuple(parts)
        return self._parts

    def forget_paths(self) -> None:
        """Drop the paths, which only an adjoint needs; a further adjoint integrates the segments again."""
        if self.native_run is not None:
            self.native_run.forget_paths()
            if "_given" not in self.__dict__:
                return
        for item in self._given:
            if isinstance(item, RecordTable):
                item.forget_paths()
        segments = [item for item in self._given if not isinstance(item, RecordTable | RECORDS)]
        segments += [part for parts in self._expanded.values() for part in parts if not isinstance(part, RECORDS)]
        for segment in segments:
            object.__setattr__(segment, "path", None)
        self.__dict__.pop("segments", None)  # its members refer to their paths

    def of(self, table: RecordTable) -> list[Part]:
        """Return the parts of a record table; those of a dropped table are not cached."""
        if table.complete() is not table:
            return self._expand(table.complete()).parts()
        if id(table) not in self._expanded:
            self._expanded[id(table)] = self._expand(table).parts()
        return self._expanded[id(table)]

    @cached_property
    def segments(self) -> Lazily[Segment]:
        """The segments, created on access."""

        def of(table: RecordTable) -> Source:
            places, expansion = np.flatnonzero(table.is_segments), self._expand(table)
            return places.size, lambda i: expansion.segment(int(places[i]))

        return Lazily(self._sources(lambda item: not isinstance(item, RECORDS), of))

    @cached_property
    def events(self) -> Lazily[EventRecord]:
        """The events, created on access."""

        def of(table: RecordTable) -> Source:
            places, expansion = np.flatnonzero(table.is_event), self._expand(table)
            return places.size, lambda i: expansion.record(int(places[i]))

        return Lazily(self._sources(lambda item: isinstance(item, EventRecord), of))

    def chosen(self, modes: Set[int], transitions: Set[int]) -> Iterator[tuple[Part, int, int]]:
        """Yield the segments in some modes, the events of some transitions, measurements and knots, in order.

        Each comes with the numbers of events and of measurements before it.
        """
        n_events, n_measured = 0, 0
        for item in self._given:
            if isinstance(item, RecordTable):
                expansion = self._expand(item)
                of_mode = np.isin(item.column("mode"), list(modes)) & item.is_segments
                of_event = np.zeros(item.is_event.size, dtype=bool)
                of_event[item.is_event] = np.isin(item.transitions, list(transitions))
                recorded = of_event | ~item.is_event
                events, measured = (np.cumsum(kind) - kind for kind in (item.is_event, item.is_measurement))
                for k in np.flatnonzero(of_mode | recorded).tolist():
                    before = n_events + int(events[k]), n_measured + int(measured[k])
                    if of_mode[k]:
                        yield expansion.segment(k), *before
                    if recorded[k]:
                        yield expansion.record(k), *before
                n_events, n_measured = n_events + int(item.is_event.sum()), n_measured + int(item.is_measurement.sum())
                continue
            if isinstance(item, EventRecord):
                wanted = item.index in transitions
            else:
                wanted = isinstance(item, RECORDS) or item.mode.index in modes
            if wanted:
                yield item, n_events, n_measured
            n_events += isinstance(item, EventRecord)
            n_measured += isinstance(item, MeasurementRecord)

    def outputs_before_events(self) -> NDArray[np.intp]:
        """Return the number of outputs before each event, (n_events,)."""
        counts, size = [np.zeros(0, np.intp)], 0
        for item in self._given:
            if isinstance(item, RecordTable):
                lengths = (item.column("row_end") - item.column("row")).astype(np.intp)
                counts.append(size + np.cumsum(lengths)[item.is_event])
                size += item.n_rows
            elif isinstance(item, EventRecord):
                counts.append(np.array([size]))
            elif not isinstance(item, RECORDS):
                size += len(item.t)
        return np.concatenate(counts)

    def _sources(self, belongs: Callable[[Part], bool], of: Callable[[RecordTable], Source]) -> Iterator[Source]:
        """Yield the sources of one kind of part: record tables, and the parts between them."""
        for is_table, items in groupby(self._given, lambda item: isinstance(item, RecordTable)):
            if is_table:
                yield from (of(item) for item in items if isinstance(item, RecordTable))
            else:
                own = [item for item in items if not isinstance(item, RecordTable) and belongs(item)]
                yield len(own), own.__getitem__

    @cached_property
    def starts(self) -> Array:
        """Start times of the segments, (n_segments,)."""
        pieces = (
            item.begins[item.is_segments] if isinstance(item, RecordTable) else [item.t_start]
            for item in self._segments_given()
        )
        return np.concatenate([np.zeros(0), *pieces])

    def _segments_given(self) -> Iterator[Segment | RecordTable]:
        return (item for item in self._given if not isinstance(item, RECORDS))

    @property
    def uncertified(self) -> tuple[EventRecord, ...]:
        """The events whose derivatives need further checks."""
        return tuple(self.events[i] for i in np.flatnonzero(~self.certified).tolist())

    @cached_property
    def event_times(self) -> Array:
        """Times of the events, (n_events,)."""
        return self._of_events(lambda table: table.times, lambda event: event.time, float)

    @cached_property
    def event_transitions(self) -> NDArray[np.int64]:
        """Indices of the events' transitions, (n_events,)."""
        return self._of_events(lambda table: table.transitions, lambda event: event.index, np.int64)

    @cached_property
    def event_orders(self) -> NDArray[np.int64]:
        """Numbers of earlier events at the instants of the events, (n_events,)."""
        return self._of_events(lambda table: table.orders[table.is_event], lambda event: event.order, np.int64)

    @cached_property
    def certified(self) -> NDArray[np.bool_]:
        """Whether the derivatives of each event need no further checks, (n_events,)."""
        return self._of_events(lambda table: table.certified, lambda event: event.certified, np.bool_)

    def _of_events(
        self, of_table: Callable[[RecordTable], Any], of_event: Callable[[EventRecord], Any], kind: Any
    ) -> Any:
        found = [np.zeros(0, kind)]
        for item in self._given:
            if isinstance(item, RecordTable):
                found.append(np.asarray(of_table(item), kind))
            elif isinstance(item, EventRecord):
                found.append(np.array([of_event(item)], kind))
        return np.concatenate(found)

    def thinned(self, *, events: bool, outputs: bool) -> TrajectoryParts:
        """Return the parts without segments (except those with outputs) or events; their `TALLIED` data remain."""
        given: list[Part | RecordTable] = []
        for item in self._given if events else ():
            if isinstance(item, RecordTable):
                given.append(item.thinned(outputs=outputs))
            elif outputs or isinstance(item, RECORDS):
                given.append(item)
        other = TrajectoryParts(lambda: given, self._expand)
        other.__dict__ |= {name: getattr(self, name) for name in TALLIED}
        return other

    @property
    def given(self) -> Sequence[Part | RecordTable]:
        """The parts, with those of a record table as one item."""
        return self._given

    @cached_property
    def is_certified(self) -> bool:
        """Whether the derivatives of no event need further checks."""
        if self.native_run is not None:
            return self.native_run.is_certified
        return all(
            item.is_clean if isinstance(item, RecordTable) else not isinstance(item, EventRecord)
            for item in self._given
        )

    @cached_property
    def n_segments(self) -> int:
        """Number of segments."""
        return self._dropped[0] + sum(
            int(np.count_nonzero(item.is_segments)) if isinstance(item, RecordTable) else not isinstance(item, RECORDS)
            for item in self._given
        )

    @cached_property
    def n_events(self) -> int:
        """Number of events."""
        return self._dropped[1] + sum(
            item.n_events if isinstance(item, RecordTable) else isinstance(item, EventRecord) for item in self._given
        )

    @cached_property
    def modes(self) -> frozenset[int]:
        """The modes of the segments."""
        tables = (
            item.methods if isinstance(item, RecordTable) else (item.mode.index,) for item in self._segments_given()
        )
        return frozenset(mode for modes in tables for mode in modes)

    @cached_property
    def methods(self) -> frozenset[Method]:
        """The methods of the segments."""
        tables = (
            item.methods.values() if isinstance(item, RecordTable) else (item.how,) for item in self._segments_given()
        )
        return frozenset(method for methods in tables for method in methods)

    @cached_property
    def ends_with_event(self) -> bool:
        """Whether the last event has no target mode; those in a record table always have one."""
        events = (item for item in reversed(self._given) if isinstance(item, EventRecord | RecordTable))
        last = next(events, None)
        return isinstance(last, EventRecord) and last.target is None

    @overload
    def __getitem__(self, index: int) -> Part: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Part, ...]: ...
    def __getitem__(self, index: int | slice) -> Part | tuple[Part, ...]:
        return self._all()[index]

    def __len__(self) -> int:
        return len(self._all())
