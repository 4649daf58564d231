"""The parts of a run: segments, events, knots and measurements, those of legs made when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.codegen import OfThisProcess
from dae_hybrid.dense import Redo
from dae_hybrid.integrator import Array, SegmentTask
from dae_hybrid.journey import Straight
from dae_hybrid.lazily import Lazily
from dae_hybrid.leg import HEADER, RECORDS, Head, Leg
from dae_hybrid.method import Method
from dae_hybrid.records import EventRecord, KnotRecord, MeasurementRecord

if TYPE_CHECKING:
    from dae_hybrid.system import HybridSystem
    from dae_hybrid.trajectory import Part, Segment

#: what is known of parts that are not kept
TALLIED = ("n_segments", "n_events", "is_certified", "ends_with_event", "modes")
#: how many members there are, and what makes them
type Source = tuple[int, Callable[[int], Any]]


class Expansion:
    """Segments and events of a leg, made one by one."""

    def __init__(
        self, leg: Leg, system: HybridSystem, p: Array, reopen: Any, directions: Array | None
    ) -> None:  # fmt: skip
        self.leg, self.system, self.p, self.reopen = leg, system, p, reopen
        self.directions = directions if directions is not None and directions.shape[1] else None

    def parts(self) -> list[Part]:
        """All of them."""
        found: list[Part] = []
        for k, is_segment in enumerate(self.leg.is_segments.tolist()):
            if is_segment:
                found.append(self.segment(k))
            found.append(self.record(k))
        return found

    def _start(self, k: int) -> tuple[Array, Array]:
        """The whole x and x' that a segment begins with."""
        if not k:
            return self.leg.start
        head = self.leg.head(k - 1)
        return self._part(head, "x_after"), self._part(head, "xdot_after")

    def _part(self, head: Head, name: str) -> Array:
        part = head.layout[name]
        return self.leg.records[head.at + part.start : head.at + part.stop]

    def segment(self, k: int) -> Segment:
        """The segment before a record."""
        from dae_hybrid.trajectory import Segment

        leg, head = self.leg, self.leg.head(k)
        header = dict(zip(HEADER, leg.records[head.at : head.at + len(HEADER)].tolist(), strict=True))
        mode, task = self.system.modes[head.mode], leg.task
        n, n_guards, method = mode.equations.n, mode.equations.n_guards, leg.methods[head.mode]
        (x, xdot), memory, t = self._start(k), self._part(head, "memory"), float(leg.begins[k])
        rows = leg.rows[head.mode][int(header["row"]) : int(header["row_end"])]
        kept: dict[str, Any] = {}
        if self.directions is not None:
            ny, before = mode.differential.size, leg.state_derivatives(self._part(head, "before"), head.mode)
            kept = {
                "sensitivity_rows": rows[:, 1 + n :].reshape(len(rows), self.directions.shape[1], n),
                "memory_sensitivities": before[ny:],
                "directions": self.directions,
            }
        own = SegmentTask(
            mode.equations, t, header["stop"], x[:n], xdot[:n], memory, task.integrals, np.zeros(n_guards),
            np.zeros(n_guards), t_eval=task.t_eval, first_step=header["first_step"] or None,
        )  # fmt: skip
        path = leg.paths.get(head.mode)
        if path is not None:
            path = path[int(leg.path_begins[k]) : int(header["path_end"])]
        return Segment(
            mode, self.p, t, header["time"], x, self._part(head, "x"), xdot, self._part(head, "xdot"), memory, method,
            rows[:, 0], rows[:, 1 : 1 + n], Redo(self.reopen, own, header["time"], method.name), path=path, **kept,
        )  # fmt: skip

    def record(self, k: int) -> EventRecord | KnotRecord | MeasurementRecord:
        """The record of an event, of a measurement, or of a knot."""
        leg, head = self.leg, self.leg.head(k)
        header = dict(zip(HEADER, leg.records[head.at : head.at + len(HEADER)].tolist(), strict=True))
        source, time = self.system.modes[head.mode], header["time"]
        x, xdot, memory = (self._part(head, name) for name in ("x", "xdot", "memory"))
        if leg.is_measurement[k]:
            return MeasurementRecord(time, int(header["count"]), source, x, xdot, memory)
        if not leg.is_event[k]:
            intervals = tuple(signal.interval(time) for signal in self.system.signals)
            return KnotRecord(time, leg.network.entries, intervals)
        target, transition = (
            self.system.modes[head.target],
            self.system.transitions[leg.network.exits[head.mode][head.guard]],
        )
        memory_after, x_after = self._part(head, "memory_after"), self._part(head, "x_after")
        xi = x_after[target.differential.size :]
        if not transition.simple:
            xi = self._part(head, "xi")[: len(transition.labels)]
        return EventRecord(
            time=time,
            index=transition.index,
            transition=transition.title(memory_after),
            source=source.name,
            target=target.name,
            order=0,
            guard=header["value"],
            direction=0 if transition.kind != "guard" else 1 if header["rate"] > 0 else -1,
            rate=header["rate"],
            rate_scale=header["rate_scale"],
            count=int(header["count"]),
            follows=False,
            x_minus=x,
            x_plus=x_after,
            xdot_minus=xdot,
            xdot_plus=self._part(head, "xdot_after"),
            memory_minus=memory,
            memory_plus=memory_after,
            n_differential=(source.differential.size, target.differential.size),
            xi=xi,
            unknowns=transition.named_unknowns(target, xi),
            certified=bool(header["clean"]),
        )


class Parts(OfThisProcess, Sequence["Part"]):
    """The parts of a run, made when they are first asked for.

    `whole` is the run as an integrator has left it that has carried it out as a whole, `gone` how many segments and
    events there were before the parts.
    """

    def __init__(
        self,
        make: Callable[[], Sequence[Part | Leg]],
        expand: Callable[[Leg], Expansion],
        whole: Straight | None = None,
        gone: tuple[int, int] = (0, 0),
    ) -> None:
        self._make, self._expand, self.whole, self._gone = make, expand, whole, gone
        self._parts: tuple[Part, ...] | None = None
        self._expanded: dict[int, list[Part]] = {}

    @cached_property
    def _given(self) -> tuple[Part | Leg, ...]:
        return tuple(self._make())

    def _all(self) -> tuple[Part, ...]:
        if self._parts is None:
            parts: list[Part] = []
            for item in self._given:
                parts += self.of(item) if isinstance(item, Leg) else [item]
            self._parts = tuple(parts)
        return self._parts

    def forget_paths(self) -> None:
        """Let go of what only an adjoint needs; a further one integrates the segments again."""
        if self.whole is not None:
            self.whole.forget_paths()
            if "_given" not in self.__dict__:
                return
        for item in self._given:
            if isinstance(item, Leg):
                item.forget_paths()
        segments = [item for item in self._given if not isinstance(item, Leg | RECORDS)]
        segments += [part for parts in self._expanded.values() for part in parts if not isinstance(part, RECORDS)]
        for segment in segments:
            object.__setattr__(segment, "path", None)
        self.__dict__.pop("segments", None)  # they hold on to their paths

    def of(self, leg: Leg) -> list[Part]:
        """The parts of a leg; those of one that has been let go of are not kept."""
        if leg.whole() is not leg:
            return self._expand(leg.whole()).parts()
        if id(leg) not in self._expanded:
            self._expanded[id(leg)] = self._expand(leg).parts()
        return self._expanded[id(leg)]

    @cached_property
    def segments(self) -> Lazily[Segment]:
        """The segments, made when they are asked for."""

        def of(leg: Leg) -> Source:
            places, expansion = np.flatnonzero(leg.is_segments), self._expand(leg)
            return places.size, lambda i: expansion.segment(int(places[i]))

        return Lazily(self._sources(lambda item: not isinstance(item, RECORDS), of))

    @cached_property
    def events(self) -> Lazily[EventRecord]:
        """The events, made when they are asked for."""

        def of(leg: Leg) -> Source:
            places, expansion = np.flatnonzero(leg.is_event), self._expand(leg)
            return places.size, lambda i: expansion.record(int(places[i]))

        return Lazily(self._sources(lambda item: isinstance(item, EventRecord), of))

    def _sources(self, belongs: Callable[[Part], bool], of: Callable[[Leg], Source]) -> Iterator[Source]:
        """Where parts of a kind come from, those of legs and those between them."""
        for is_leg, items in groupby(self._given, lambda item: isinstance(item, Leg)):
            if is_leg:
                yield from (of(item) for item in items if isinstance(item, Leg))
            else:
                own = [item for item in items if not isinstance(item, Leg) and belongs(item)]
                yield len(own), own.__getitem__

    @cached_property
    def starts(self) -> Array:
        """When the segments begin, (n_segments,)."""
        pieces = (
            item.begins[item.is_segments] if isinstance(item, Leg) else [item.t_start]
            for item in self._segments_given()
        )
        return np.concatenate([np.zeros(0), *pieces])

    def _segments_given(self) -> Iterator[Segment | Leg]:
        return (item for item in self._given if not isinstance(item, RECORDS))

    @property
    def uncertified(self) -> tuple[EventRecord, ...]:
        """The events that need a closer look for derivatives."""
        return tuple(self.events[i] for i in np.flatnonzero(~self.certified).tolist())

    @cached_property
    def event_times(self) -> Array:
        """Times of the events, (n_events,)."""
        return self._of_events(lambda leg: leg.times, lambda event: event.time, float)

    @cached_property
    def event_transitions(self) -> NDArray[np.int64]:
        """Numbers of their transitions, (n_events,)."""
        return self._of_events(lambda leg: leg.transitions, lambda event: event.index, np.int64)

    @cached_property
    def certified(self) -> NDArray[np.bool_]:
        """Whether they need no closer look for derivatives, (n_events,)."""
        return self._of_events(lambda leg: leg.certified, lambda event: event.certified, np.bool_)

    def _of_events(self, of_leg: Callable[[Leg], Any], of_event: Callable[[EventRecord], Any], kind: Any) -> Any:
        found = [np.zeros(0, kind)]
        for item in self._given:
            if isinstance(item, Leg):
                found.append(np.asarray(of_leg(item), kind))
            elif isinstance(item, EventRecord):
                found.append(np.array([of_event(item)], kind))
        return np.concatenate(found)

    def thinned(self, *, events: bool, outputs: bool) -> Parts:
        """Parts without segments, but for those with outputs, and without events; what they were is still known."""
        given: list[Part | Leg] = []
        for item in self._given if events else ():
            if isinstance(item, Leg):
                given.append(item.thinned(outputs=outputs))
            elif outputs or isinstance(item, RECORDS):
                given.append(item)
        other = Parts(lambda: given, self._expand)
        other.__dict__ |= {name: getattr(self, name) for name in TALLIED}
        return other

    @property
    def given(self) -> Sequence[Part | Leg]:
        """The parts, those in a leg together."""
        return self._given

    @cached_property
    def is_certified(self) -> bool:
        """Whether no event needs a closer look for derivatives."""
        if self.whole is not None:
            return self.whole.is_certified
        return all(
            item.is_clean if isinstance(item, Leg) else not isinstance(item, EventRecord) for item in self._given
        )

    @cached_property
    def n_segments(self) -> int:
        """How many of them are segments."""
        return self._gone[0] + sum(
            item.count if isinstance(item, Leg) else not isinstance(item, RECORDS) for item in self._given
        )

    @cached_property
    def n_events(self) -> int:
        """How many of them are events."""
        return self._gone[1] + sum(
            item.n_events if isinstance(item, Leg) else isinstance(item, EventRecord) for item in self._given
        )

    @cached_property
    def modes(self) -> frozenset[int]:
        """The modes of the segments."""
        legs = (item.methods if isinstance(item, Leg) else (item.mode.index,) for item in self._segments_given())
        return frozenset(mode for modes in legs for mode in modes)

    @cached_property
    def methods(self) -> frozenset[Method]:
        """The methods of the segments."""
        legs = (item.methods.values() if isinstance(item, Leg) else (item.how,) for item in self._segments_given())
        return frozenset(method for methods in legs for method in methods)

    @cached_property
    def ends_with_event(self) -> bool:
        """Whether the last event led to no mode; those in a leg always do."""
        events = (item for item in reversed(self._given) if isinstance(item, EventRecord | Leg))
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
