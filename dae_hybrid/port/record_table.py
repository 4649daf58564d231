"""The record table: native events and the segments before them, as arrays.

Segments and event records are created from its rows on access.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.lazily import Lazily
from dae_hybrid.method import Method
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.integrator import SegmentTask
from dae_hybrid.port.native_plan import MEASURES, TURNS, MemoryBound, TransitionGraph
from dae_hybrid.port.records import EventRecord, KnotRecord, MeasurementRecord

if TYPE_CHECKING:
    from dae_hybrid.system.system import HybridSystem

RECORDS = EventRecord | KnotRecord | MeasurementRecord


class HeaderFields(TypedDict):
    """Header of a record, in the order of its columns."""

    time: float
    mode: float
    guard: float
    value: float
    rate: float
    rate_scale: float
    row: float
    row_end: float
    first_step: float
    clean: float
    steps: float
    path_end: float
    count: float
    stop: float


class EventFields(HeaderFields):
    """An event of a record table: header, parts of its record (`parts_of`), transition and mode before it."""

    x: Array
    xdot: Array
    guards: Array
    x_after: Array
    memory_after: Array
    xdot_after: Array
    guards_after: Array
    xi: Array
    open: Array
    memory: Array
    integrals: Array
    tau: Array
    before: Array
    after: Array
    costs_before: Array
    costs_after: Array
    gained: Array
    completed: Array
    transition: int | None
    source: int


#: columns of the header of a record
HEADER = tuple(HeaderFields.__annotations__)
#: position of each column
COLUMN = {name: i for i, name in enumerate(HEADER)}


def parts_of(graph: TransitionGraph, source: int, target: int, n_integrals: int, n_directions: int) -> dict[str, int]:
    """Return names and sizes of the parts of a record after its header."""
    e, ng = graph.equations, {i: len(graph.guarded[i]) for i in (source, target)}
    nx, ny, nm = graph.sizes, {i: e[i].n_differential for i in (source, target)}, e[0].n_memory
    return {
        "x": nx[source],
        "xdot": nx[source],
        "guards": 3 * ng[source],
        "x_after": nx[target],
        "memory_after": nm,
        "xdot_after": nx[target],
        "guards_after": 3 * ng[target],
        "xi": graph.n_unknowns,
        "open": (nx[target] - ny[target]) * nx[target] if e[target].is_fragile else 0,
        "memory": nm,
        "integrals": n_integrals,
        "tau": n_directions,
        "before": n_directions * (ny[source] + nm),
        "after": n_directions * (ny[target] + nm),
        "costs_before": n_directions * n_integrals,
        "costs_after": n_directions * n_integrals,
        "gained": n_directions * e[0].functionals.size if graph.charges else 0,
        "completed": n_directions * nx[target] if e[target].implicit else 0,
    }


def layout_of(
    graph: TransitionGraph, source: int, target: int, n_integrals: int, n_directions: int
) -> tuple[dict[str, slice], int]:
    """Return the positions of the parts of a record, and its length."""
    key = ("layout", source, target, n_integrals, n_directions)
    if key not in graph.cache:
        found, end = {}, len(HEADER)
        for name, size in parts_of(graph, *key[1:]).items():
            found[name], end = slice(end, end + size), end + size
        graph.cache[key] = found, end
    layout: tuple[dict[str, slice], int] = graph.cache[key]
    return layout


#: every record
ALL = slice(None)


class RecordHeader(NamedTuple):
    """Position of a record, its mode, guard and target, and the relative positions of its parts."""

    at: int
    mode: int
    guard: int
    target: int
    layout: dict[str, slice]


class Kind(NamedTuple):
    """Records of one mode and link, with the same parts; `places` are their indices among all records."""

    mode: int
    guard: int
    target: int
    layout: dict[str, slice]
    places: NDArray[np.int64]


@dataclass(frozen=True, eq=False, repr=False)
class RecordTable:
    """Segments, each with the native event that ended it.

    `task` is that of the first segment, `start` the complete x and x' at its start; `records` are the concatenated
    records, which begin at `offsets`; `rows`, `paths` and `methods` are outputs, steps and method by mode.
    """

    graph: TransitionGraph
    mode: int
    task: SegmentTask
    start: tuple[Array, Array]
    records: Array
    offsets: NDArray[np.int64]
    rows: Mapping[int, Array]
    paths: dict[int, Array]
    methods: Mapping[int, Method]
    n_integrals: int
    n_directions: int
    begin: float  # of the run
    gained: Array  # costs of the events, (n_functionals,)
    gained_directions: Array  # derivatives of these costs, (n_directions, n_functionals)
    tested: frozenset[int] = frozenset()  # modes whose multipliers were in the error test

    @property
    def count(self) -> int:
        """Number of records: events, measurements and knots."""
        return self.offsets.size

    @property
    def n_events(self) -> int:
        """Number of events."""
        return int(np.count_nonzero(self.is_event))

    @property
    def width(self) -> int:
        """Size of the largest (x, m)."""
        return max(own.n + own.n_memory for own in self.graph.equations)

    def __repr__(self) -> str:
        return f"<RecordTable: {self.count} segments from t = {self.task.t0:g}>"

    @property
    def passage(self) -> tuple[float, float] | None:
        """Its fastest passage (`dae_hybrid.simulation.passages`), if known."""
        return None

    def complete(self) -> RecordTable:
        """Return the complete record table."""
        return self

    def release(self) -> None:
        """Release the table after its adjoint; a table without a checkpoint stays."""

    def forget_paths(self) -> None:
        """Drop the paths, which only an adjoint needs."""
        self.paths.clear()

    def thinned(self, *, outputs: bool) -> RecordTable:
        """Return a copy without paths, and without rows unless these are outputs."""
        rows = self.rows if outputs else {mode: own[:0].copy() for mode, own in self.rows.items()}
        return replace(self, rows=rows, paths={})

    def size(self, bound: MemoryBound) -> int:
        """Return the bytes that count towards the bound."""
        rows, paths = (sum(own.nbytes for own in of.values()) for of in (self.rows, self.paths))
        return bound.counted(self.records.nbytes, rows, paths)

    @property
    def _kinds(self) -> NDArray[np.int64]:
        """Kind of every record: MEASURES, TURNS, or a negative number for an event."""
        exits = np.array([len(own) for own in self.graph.exits])
        modes, guards = (self.column(name).astype(int) for name in ("mode", "guard"))
        return np.asarray(guards - exits[modes])

    @cached_property
    def is_event(self) -> NDArray[np.bool_]:
        """Whether each record is an event, (count,)."""
        return self._kinds < MEASURES

    @cached_property
    def is_measurement(self) -> NDArray[np.bool_]:
        """Whether each record is a measurement, (count,)."""
        return self._kinds == MEASURES

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """The records grouped by mode and link."""
        modes, links = (self.column(name).astype(int) for name in ("mode", "guard"))
        most = max(map(len, self.graph.links))
        keys, found = modes * most + links, []
        own, counts = np.unique(keys, return_counts=True)
        places = np.split(np.argsort(keys, kind="stable"), np.cumsum(counts)[:-1])
        for key, those in zip(own.tolist(), places, strict=True):
            header = self._header({}, 0, *divmod(key, most))
            found.append(Kind(header.mode, header.guard, header.target, header.layout, those))
        return tuple(found)

    def values(self, kind: Kind, name: str, which: Any = ALL) -> Array:
        """Return a part of the records of a kind, or of some of these, (n, size)."""
        part = kind.layout[name]
        return self.records[self.offsets[kind.places[which]][:, None] + np.arange(part.start, part.stop)]

    @cached_property
    def largest(self) -> dict[int, Array]:
        """Largest magnitudes by mode, (n_x,), at segment ends and at the integrator's outputs."""
        found = {mode: np.zeros(self.graph.sizes[mode]) for mode in self.methods}

        def note(mode: int, points: Array) -> None:
            own = found[mode][: points.shape[1]]
            np.maximum(own, np.abs(points).max(axis=0, initial=0.0), out=own)

        note(self.mode, self.start[0][None])
        for kind in self.kinds:
            note(kind.mode, self.values(kind, "x"))
            note(kind.target, self.values(kind, "x_after"))
        for mode, rows in self.rows.items():
            note(mode, rows[:, 1 : 1 + self.graph.equations[mode].n])
        return found

    @cached_property
    def memory(self) -> Array:
        """Memory in every segment, (count, n_memory)."""
        found = np.zeros((self.count, self.graph.equations[0].n_memory))
        for kind in self.kinds:
            found[kind.places] = self.values(kind, "memory")
        return found

    @property
    def memory_derivatives(self) -> Array:
        """Derivatives of the memory in every segment, (count, n_memory, n_directions)."""
        nm = self.graph.equations[0].n_memory
        found = np.zeros((self.count, nm, self.n_directions))
        for kind in self.kinds if nm * self.n_directions else ():
            before = self.values(kind, "before").reshape(kind.places.size, self.n_directions, -1)
            found[kind.places] = np.swapaxes(before[:, :, before.shape[2] - nm :], 1, 2)
        return found

    @property
    def begins(self) -> Array:
        """Start times of the segments, (count,)."""
        return np.concatenate(([self.task.t0], self.column("time")[:-1]))

    @cached_property
    def is_segments(self) -> NDArray[np.bool_]:
        """Whether a segment precedes each record, (count,); several measurements may be at one time."""
        return (self.column("time") > self.begins) | (self.column("row_end") > self.column("row"))

    @cached_property
    def orders(self) -> NDArray[np.int64]:
        """Number of earlier events at the instant of each record, (count,)."""
        earlier = np.cumsum(self.is_event) - self.is_event
        return earlier - np.maximum.accumulate(np.where(self.is_segments, earlier, 0))

    @property
    def last_instant(self) -> list[tuple[int, int]]:
        """Transitions and counts of the events at the last record's time."""
        n = int(self.orders[-1] + self.is_event[-1])
        counts = self.column("count")[self.is_event].astype(int)
        return list(zip(self.transitions[-n:].tolist(), counts[-n:].tolist(), strict=True)) if n else []

    @cached_property
    def path_begins(self) -> NDArray[np.int64]:
        """First rows of the segments' paths, (count,)."""
        ends, modes = self.column("path_end").astype(np.int64), self.column("mode").astype(int)
        found = np.zeros_like(ends)
        for mode in self.methods:
            places = np.flatnonzero(modes == mode)
            found[places[1:]] = ends[places[:-1]]
        return found

    @cached_property
    def event_headers(self) -> tuple[RecordHeader, ...]:
        """The headers of the events."""
        return self._headers(self.is_event)

    def events(self) -> Iterator[tuple[EventFields, int]]:
        """Yield every event, and the mode after it."""
        return map(self._event, self.event_headers)

    @property
    def measured_times(self) -> list[float]:
        """Times of the measurements."""
        found: list[float] = self.column("time")[self.is_measurement].tolist()
        return found

    def measurements(self, system: HybridSystem) -> list[MeasurementRecord]:
        """Return the measurements."""
        times, counts = self.column("time").tolist(), self.column("count").astype(int).tolist()
        return [
            MeasurementRecord(times[place], counts[place], system.modes[mode], *point)
            for place, mode, point in self._measured("x", "xdot", "memory")
        ]

    def measured_derivatives(self) -> list[Array]:
        """Return the derivatives of (y, m) at every measurement."""
        return [self.state_derivatives(part, mode) for _, mode, (part,) in self._measured("before")]

    def _measured(self, *names: str) -> list[tuple[int, int, list[Array]]]:
        """Return indices and modes of the measurements, with the named parts of their records."""
        kinds = (kind for kind in self.kinds if self.is_measurement[kind.places[0]])
        return sorted(
            (
                (place, kind.mode, parts)
                for kind in kinds
                for place, *parts in zip(
                    kind.places.tolist(), *(self.values(kind, name) for name in names), strict=True
                )
            ),
            key=itemgetter(0),
        )

    @cached_property
    def knots(self) -> NDArray[np.intp]:
        """Indices of the records of knots."""
        return np.flatnonzero(self._kinds == TURNS)

    @property
    def knot_times(self) -> list[float]:
        """Times of the knots."""
        found: list[float] = self.column("time")[self.knots].tolist()
        return found

    def knot_sides(self) -> list[tuple[Array, Array]]:
        """Return the derivatives of (y, m) before and after every knot."""
        named = ((header.mode, self._named(header)) for header in self._headers(self.knots))
        return [
            (self.state_derivatives(part["before"], mode), self.state_derivatives(part["after"], mode))
            for mode, part in named
        ]

    def _event(self, header: RecordHeader) -> tuple[EventFields, int]:
        event: dict[str, Any] = dict(
            zip(HEADER, self.records[header.at : header.at + len(HEADER)].tolist(), strict=True), **self._named(header)
        )
        exits = self.graph.exits[header.mode]
        event["transition"] = exits[header.guard] if header.guard < len(exits) else None
        event["source"] = header.mode
        return cast("EventFields", event), header.target

    def _named(self, header: RecordHeader) -> dict[str, Array]:
        """Return the parts of a record after its header."""
        record = self.records[header.at :]
        return {name: record[part] for name, part in header.layout.items()}

    @cached_property
    def headers(self) -> tuple[RecordHeader, ...]:
        """The headers of all records."""
        return self._headers(slice(None))

    def _headers(self, which: slice | NDArray[Any]) -> tuple[RecordHeader, ...]:
        """Return the headers of selected records."""
        known: dict[tuple[int, int], tuple[int, dict[str, slice]]] = {}
        columns = (self.offsets, *(self.column(name).astype(int) for name in ("mode", "guard")))
        rows = zip(*(column[which].tolist() for column in columns), strict=True)
        return tuple(self._header(known, *row) for row in rows)

    def _header(
        self, known: dict[tuple[int, int], tuple[int, dict[str, slice]]], at: int, mode: int, guard: int
    ) -> RecordHeader:
        if (mode, guard) not in known:
            link = self.graph.links[mode][guard]
            if link is None:
                raise AssertionError("an event without a link was carried out")
            layout, _ = layout_of(self.graph, mode, link.target, self.n_integrals, self.n_directions)
            known[mode, guard] = link.target, layout
        return RecordHeader(at, mode, guard, *known[mode, guard])

    def column(self, name: str, which: Any = ALL) -> Array:
        """Return one column of the headers, for all or some records."""
        return self.records[self.offsets[which] + COLUMN[name]]

    @property
    def times(self) -> Array:
        """Times of the events."""
        return self.column("time")[self.is_event]

    @property
    def transitions(self) -> NDArray[np.int64]:
        """Indices of the events' transitions."""
        exits = self.graph.exits
        begins = np.cumsum([0, *map(len, exits)])[self.column("mode").astype(int)]
        known = np.array([index for own in exits for index in own] + [-1])
        return known[(begins + self.column("guard").astype(int))[self.is_event]]

    @property
    def certified(self) -> NDArray[np.bool_]:
        """Whether the derivatives of each event need no further checks."""
        return self.column("clean")[self.is_event] != 0

    def header(self, k: int) -> RecordHeader:
        """Return the head of one record."""
        at = int(self.offsets[k])
        return self._header({}, at, *(int(self.records[at + COLUMN[name]]) for name in ("mode", "guard")))

    @cached_property
    def last(self) -> tuple[EventFields, int]:
        """The last event, and the mode after it; copied, so that its arrays do not keep all records alive."""
        fields, mode = self._event(self.header(-1))
        event: dict[str, Any] = dict(fields)
        for name, part in event.items():
            if isinstance(part, np.ndarray):
                event[name] = part.copy()
                event[name].flags.writeable = False
        return cast("EventFields", event), mode

    def ends(self, first: int, stride: int) -> Iterator[tuple[int, float, Array, Array]]:
        """Yield mode, time, x and memory at the end of every `stride`-th segment, from `first` on."""
        found = []
        for kind in self.kinds:
            own = np.flatnonzero((kind.places - first) % stride == 0)
            times = self.column("time", kind.places[own]).tolist()
            found += [
                (time, kind.mode, x, m)
                for time, x, m in zip(times, *(self.values(kind, name, own) for name in ("x", "memory")), strict=True)
            ]
        for time, mode, x, m in sorted(found, key=itemgetter(0)):
            yield mode, time, x, m

    @cached_property
    def extents(self) -> dict[int, Array]:
        """Largest magnitudes of the integrated states by mode, (n,)."""
        found = {}
        for mode, rows in self.rows.items():
            first = self.methods[mode].path.first if mode in self.paths else 1
            points = self.paths.get(mode, rows)[:, first : first + self.graph.equations[mode].n]
            found[mode] = np.abs(points).max(axis=0, initial=0.0)
        return found

    @cached_property
    def memory_extent(self) -> Array:
        """Largest magnitudes of the memory, (n_memory,)."""
        size = self.graph.equations[0].n_memory
        if not size:
            return np.zeros(0)
        modes, guards = (self.column(name).astype(int) for name in ("mode", "guard"))
        most, known = guards.max() + 1, dict[tuple[int, int], tuple[int, dict[str, slice]]]()
        kinds, which = np.unique(modes * most + guards, return_inverse=True)
        layouts = [self._header(known, 0, *divmod(kind, most)).layout for kind in kinds.tolist()]
        found = np.zeros(size)
        for name in ("memory", "memory_after"):
            starts = self.offsets + np.array([layout[name].start for layout in layouts])[which]
            np.maximum(found, np.abs(self.records[starts[:, None] + np.arange(size)]).max(axis=0), out=found)
        return found

    @property
    def n_rows(self) -> int:
        """Number of rows of all segments."""
        return int((self.column("row_end") - self.column("row")).sum())

    @cached_property
    def is_clean(self) -> bool:
        """Whether the derivatives of no event need further checks."""
        return bool(self.column("clean").all())

    def derivatives(self) -> Lazily[tuple[Array, Array, Array]]:
        """The derivatives of the time, and of (y, m) before and after, of every event, created on access."""
        places = np.flatnonzero(self.is_event)

        def of(i: int) -> tuple[Array, Array, Array]:
            event, after = self._event(self.header(int(places[i])))
            before = self.state_derivatives(event["before"], event["source"])
            return event["tau"], before, self.state_derivatives(event["after"], after)

        return Lazily([(places.size, of)])

    def state_derivatives(self, part: Array, mode: int) -> Array:
        """Return a part of a record as d(y, m), (n_w, d)."""
        e = self.graph.equations[mode]
        return part.reshape(self.n_directions, e.n_differential + e.n_memory).T
