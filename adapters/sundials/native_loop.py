"""Integrate through successive segments and transitions in compiled code: the structs of `event_loop.c`."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import byref, c_void_p
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.codegen.kernels import NativeFunction
from dae_hybrid.method import Method
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.options import UNLIMITED, Options
from dae_hybrid.port.integrator import SegmentTask
from dae_hybrid.port.native_plan import MEASURES, TURNS, Alarms, Knots, RunContext, TransitionGraph
from dae_hybrid.port.record_table import COLUMN, RecordTable, layout_of

from .driver import Run, loops
from .header import CONSTANTS, STRUCTS

RECENT, REST_STATES, REST_GUARDS = (CONSTANTS[name] for name in ("RECENT", "REST_STATES", "REST_GUARDS"))
NONE, NO_TRANSITION = np.zeros(0), -1
#: larger records are given away instead of copied
MAX_COPIED_SIZE = 100_000
LinkStruct, ModeTables, AlarmsStruct = (STRUCTS[name] for name in ("link", "mode_tables", "alarms"))
Measuring, EventLoopStruct = STRUCTS["measuring"], STRUCTS["event_loop"]


def rates_of(completed: Array, ny: int, n: int) -> Array:
    """Rates of the derivatives of (y, z), from a record's completed part; those of z are zero."""
    rates = np.zeros((len(completed), n))
    rates[:, :ny] = completed[:, n - ny :]
    return rates


def _by_mode(functions: tuple[NativeFunction | None, ...]) -> Any:
    """Addresses of functions, per mode."""
    return (c_void_p * len(functions))(*(None if f is None else f.address for f in functions))


class NativeLoop:
    """The tables of a transition graph for one number of directions; created once, used by one run at a time."""

    pool: list[NativeLoop] | None = None

    def __init__(self, graph: TransitionGraph, n_directions: int) -> None:
        first = graph.equations[0]
        self.graph, self.n_directions = graph, n_directions
        self.n_integrals = first.functionals.size if first.integrates else 0
        self._absolute = [np.zeros(size) for size in graph.sizes]
        self._links = [self._of_mode(i) for i in range(len(graph.equations))]
        self._widest = max((link.width for links in self._links for link in links), default=0)
        self.modes = (ModeTables * len(graph.equations))()
        for i, (e, links) in enumerate(zip(graph.equations, self._links, strict=True)):
            self.modes[i] = ModeTables(
                run=None, n_x=graph.sizes[i], n_y=e.n_differential, n_z=graph.sizes[i] - e.n_differential,
                implicit=e.implicit, fragile=e.is_fragile, n_held=graph.constraints[i],
                n_guards=len(graph.guarded[i]),
                links=ctypes.addressof(links), absolute=self._absolute[i].ctypes.data,
                numbers=e.numbers.ctypes.data,
            )  # fmt: skip
        every = [x for links in graph.links for x in links if x is not None]
        functions = [
            f for x in every for f in (x.cross, x.tangent, x.cost, x.permit, x.sides, x.begin, x.solve) if f is not None
        ]
        if graph.ends is not None:
            functions += [f for f in (graph.ends.origin, *graph.ends.final, graph.ends.moves) if f is not None]
            functions += [f for measured in graph.ends.measured for f in measured.of_mode if f is not None]
        functions = list({id(f): f for f in functions}.values())  # similar modes share functions
        sizes = np.max([f.work_sizes for f in functions], axis=0)
        kinds = (np.intp, np.intp, np.int64, float)
        self._work = [np.zeros(max(int(s), 16), kind) for s, kind in zip(sizes, kinds, strict=True)]
        largest = max(f.function.nnz_out() for f in functions)
        most = max(e.n_guards for e in graph.equations)
        self._bands, self._entered = np.zeros(2 * most), np.zeros(2 * most)
        self._schedule = (AlarmsStruct * len(graph.equations))()
        self._alarms: tuple[Alarms, ...] = ()
        self._atol: Any = None  # tolerance last written to the modes
        unknowns, widest = max((x.unknowns for x in every), default=0), max(e.n_differential for e in graph.equations)
        n = max(e.n for e in graph.equations)
        rest = REST_STATES * n + REST_GUARDS * most
        width = widest + first.n_memory + first.n_parameters + 1
        self._scratch = [np.zeros(size) for size in (n + 4 * most, rest, largest, max(largest, 2 * width))]
        solved = max(unknowns, *(nx - e.n_differential for nx, e in zip(graph.sizes, graph.equations, strict=True)))
        self._solving = np.zeros(solved * (10 + 6 * solved))
        self._slopes = np.zeros(unknowns * width)
        self._gained, self._sampled = np.zeros((2, 1 + n_directions, first.functionals.size))
        self._ticked = np.zeros(first.n_parameters)
        self._measured: Any = None
        self._records, self._offsets, self._given_away = np.zeros(256), np.zeros(16, dtype=np.int64), False
        self.struct = EventLoopStruct(
            modes=ctypes.addressof(self.modes),
            **{name: array.ctypes.data for name, array in zip(("arg", "res", "iw", "w"), self._work, strict=True)},
            **{name: v.ctypes.data for name, v in zip(("work", "rest", "tangent", "cost"), self._scratch, strict=True)},
            solving=self._solving.ctypes.data, slopes=self._slopes.ctypes.data, n_unknowns=graph.n_unknowns,
            gained=self._gained.ctypes.data, gained_directions=self._gained[1:].ctypes.data,
            taken=self._sampled.ctypes.data, taken_directions=self._sampled[1:].ctypes.data,
            ticked=self._ticked.ctypes.data,
            bands=self._bands.ctypes.data, entered=self._entered.ctypes.data, schedule=ctypes.addressof(self._schedule),
            n_memory=first.n_memory, n_parameters=first.n_parameters, n_functionals=first.functionals.size,
            n_integrals=self.n_integrals, n_directions=n_directions, charges=graph.charges,
            entries=graph.entries.ctypes.data, n_entries=graph.entries.size,
            moving=graph.shifted or not all(graph.fixed[i] for own in graph.timed for i in own),
        )  # fmt: skip
        self._library = loops()

    def _of_mode(self, mode: int) -> Any:
        graph = self.graph
        first = len(graph.exits[mode]) - len(graph.untaken[mode])
        others = {graph.triggers[index]: first + k for k, index in enumerate(graph.untaken[mode])}
        links = (LinkStruct * max(len(graph.links[mode]), 1))()
        for i, link in enumerate(graph.links[mode]):
            transition = graph.exits[mode][i] if i < len(graph.exits[mode]) else NO_TRANSITION
            kind = i - len(graph.exits[mode])
            links[i] = LinkStruct(
                transition=transition, index=i, clock=-1, shared=-1, measures=kind == MEASURES, turns=kind == TURNS
            )
            links[i].fixed = kind == TURNS or not graph.shifted
            if transition != NO_TRANSITION:
                links[i].fixed = graph.fixed[transition]
                links[i].clock, links[i].direction = graph.clocks[transition], graph.directions[transition]
                links[i].waits, links[i].toggles = graph.waits[transition], graph.toggles[transition]
                links[i].jumps, links[i].keeps = graph.jumps[transition], graph.keeps[transition]
                links[i].becomes = graph.becomes[transition]
                owner, links[i].recorded = graph.triggers[transition], transition
                links[i].transition, links[i].index = owner, graph.exits[mode].index(owner)
                links[i].shared = graph.shared[transition]
                links[i].otherwise = others.get(transition, i)
            if link is not None:
                links[i].numbers = link.numbers.ctypes.data
                for name in ("cross", "tangent", "cost", "permit", "sides", "begin", "solve"):
                    function = getattr(link, name)
                    setattr(links[i], name, None if function is None else function.address)
                for name in ("target", "unknowns", "simple", "slopes", "others"):
                    setattr(links[i], name, getattr(link, name))
                links[i].n_sides = 0 if link.sides is None else link.sides.function.size1_out(0)
                if link.tangent is not None:
                    column, row = link.tangent.pattern(1)
                    links[i].jump.column, links[i].jump.row = column.ctypes.data, row.ctypes.data
                _, links[i].width = layout_of(graph, mode, link.target, self.n_integrals, self.n_directions)
        return links

    def measure(self, *, by_itself: bool) -> None:
        """Choose whether measurements, and events at the end of the run, are taken here or left to the core."""
        self.struct.closes, ends = by_itself, self.graph.ends
        if by_itself and self._measured is None and ends is not None and ends.measured:
            functions = {own: _by_mode(own) for own in dict.fromkeys(given.of_mode for given in ends.measured)}
            self._measured = functions, (Measuring * len(ends.measured))()
            for own, given in zip(self._measured[1], ends.measured, strict=True):
                own.of_mode, own.data = ctypes.addressof(functions[given.of_mode]), given.data.ctypes.data
                own.first, own.count = given.components.start, given.components.stop - given.components.start
            if ends.moves is not None:
                self._moved = np.zeros((len(ends.measured), self.struct.n_parameters))
                self.struct.moves, self.struct.moved = ends.moves.address, self._moved.ctypes.data
        self.struct.measured = ctypes.addressof(self._measured[1]) if by_itself and self._measured else None

    def tell(self, context: RunContext, options: Options, parameters: Array) -> None:
        """Set all inputs that are constant along a run."""
        m = self.struct
        self._held = (parameters, np.ascontiguousarray(context.directions), context.ranges, context.stayed_at_zero)
        m.parameters, m.directions, m.ranges, m.rested = (v.ctypes.data for v in self._held)
        if options.atol != self._atol:
            self._atol = dict(options.atol) if isinstance(options.atol, Mapping) else options.atol
            for absolute, e in zip(self._absolute, self.graph.equations, strict=True):
                absolute[: e.n] = options.absolute(e.variables)
                absolute[e.n :] = options.absolute(e.algebraic)[: absolute.size - e.n]
        m.certify, m.max_events, m.first_step = context.certify, context.max_events, options.first_step or 0.0
        m.last, bound = UNLIMITED if context.replayed is None else context.replayed.count, context.bound
        m.bound, m.counts_rows, m.counts_records = bound.size / NONE.itemsize, bound.rows, bound.records
        m.t0 = m.clock[0] = context.span[0]
        m.t_end = m.t1 = context.span[1]
        m.t_stop = context.t_stop
        m.slack, m.rtol, m.reversed = context.slack, options.rtol, options.simultaneous == "reversed"
        m.max_fired = options.max_transitions_per_instant
        self.rest()
        self._make_room(0)

    def begin(self, task: SegmentTask, context: RunContext, options: Options, parameters: Array) -> None:
        """Initialise the tables for a run that begins with a segment."""
        self.tell(context, options, parameters)
        m, recent = self.struct, context.recent[: -RECENT - 1 : -1]
        for tables in self.modes:
            tables.run = None
        m.at = context.mode
        m.used = m.n_events = m.n_passed = m.n_segments = m.steps = m.failures = m.newton_failures = 0
        m.row = m.path_row = m.full = m.resumed = m.placed = 0
        m.n_times, m.wanted = len(recent), -1
        m.recent[: len(recent)] = recent
        m.begun, m.kept = task.t0, 0.0
        self._gained[:] = 0.0
        if self.set_alarms(context.alarms, context.knots):
            for i, (own, alarms) in enumerate(zip(self._schedule, context.alarms, strict=True)):
                own.next = int(np.searchsorted(alarms.times, task.t_stop if i == context.mode else task.t0))
        m.began_with = m.first_step or task.first_step or 0.0

    def set_alarms(self, alarms: tuple[Alarms, ...], knots: Knots | None = None) -> bool:
        """Set the due times of time events and knots; return whether there are any."""
        if alarms is not self._alarms:
            for i, own in enumerate(self._schedule):
                times, links, counts = alarms[i] if alarms else (NONE, NONE, NONE)
                own.n, own.next = times.size, 0
                own.times, own.links, own.counts = times.ctypes.data, links.ctypes.data, counts.ctypes.data
            self._alarms = alarms
        if knots is not None:
            self._knots = knots
            self.struct.knots, self.struct.knot_directions = (v.ctypes.data for v in knots[1:3])
        return bool(alarms)

    def look_back(self, parameters: Array, start: float) -> None:
        """Initialise the tables for a backward sweep over a run that began at `start`."""
        self._of_sweep = parameters
        self.struct.parameters, self.struct.clock[0] = parameters.ctypes.data, start

    def enter(self, mode: int, run: Any) -> None:
        """Register the solver memory of a mode."""
        self.modes[mode].run = ctypes.addressof(run)

    @property
    def _now(self) -> float:
        return float(self.struct.now)

    def _make_room(self, more: int) -> None:
        needed = self.struct.used + more
        if needed > self._records.size > MAX_COPIED_SIZE:  # realloc moves pages; a copy would need twice the memory
            self._records.resize(5 * needed // 4, refcheck=False)
        elif needed > self._records.size:
            larger = np.zeros(2 * needed)
            larger[: self.struct.used] = self._records[: self.struct.used]
            self._records = larger
        if self.struct.n_events + max(self.struct.full, 1) > self._offsets.size:
            self._offsets = np.concatenate((self._offsets, np.zeros_like(self._offsets)))
        self.struct.records, self.struct.capacity = self._records.ctypes.data, self._records.size
        self.struct.offsets, self.struct.room = self._offsets.ctypes.data, self._offsets.size

    def advance(self, budget: int) -> int:
        """Take at most `budget` steps; see `dh_run_events`. It stops with `wanted` at a mode without solver memory."""
        m = self.struct
        end = self._taken() + budget
        while True:
            m.budget = end - self._taken()
            status = int(self._library.dh_run_events(byref(m)))
            if not self.make_room():
                return status

    def _taken(self) -> int:
        """Steps of all segments, including the current one."""
        under_way = Run.from_address(self.modes[self.struct.at].run)
        return int(self.struct.steps + under_way.steps)

    def make_room(self) -> bool:
        """Enlarge the record buffers if `dh_run_events` stopped for lack of room; return whether it did."""
        m = self.struct
        if not m.full:
            return False
        self._make_room(m.full * self._widest)
        m.full, m.resumed = 0, 1
        return True

    def resume(self) -> None:
        """Continue with the pending transition, whose target mode now has a memory."""
        self.struct.wanted, self.struct.resumed = -1, 1

    # -- state ----------------------------------------------------------------------------------------------

    @property
    def mode(self) -> int:
        """The current mode."""
        return int(self.struct.at)

    @property
    def n_events(self) -> int:
        """Number of records: transitions, measurements and knots."""
        return int(self.struct.n_events)

    @property
    def n_passed(self) -> int:
        """Number of records that are not transitions: measurements and knots."""
        return int(self.struct.n_passed)

    @property
    def n_segments(self) -> int:
        """Number of completed segments."""
        return int(self.struct.n_segments)

    @property
    def wanted(self) -> int:
        """Mode that needs a solver memory before the event can be taken; -1 if none."""
        return int(self.struct.wanted)

    @property
    def steps(self) -> int:
        """Steps of completed segments."""
        return int(self.struct.steps)

    @property
    def stop(self) -> float:
        """Stop time of the current segment."""
        return float(Run.from_address(self.modes[self.struct.at].run).t_stop)

    def _next_stop(self, mode: int, t: float) -> float:
        """Stop time of a segment that begins at a time in a mode."""
        end, times = float(self.struct.t_stop), self._alarms[mode].times if self._alarms else NONE
        i = int(np.searchsorted(times, t, side="right"))
        return min(float(times[i]), end) if i < times.size else end

    @property
    def failures(self) -> tuple[int, int]:
        """Failed error tests and Newton iterations of completed segments."""
        return int(self.struct.failures), int(self.struct.newton_failures)

    @property
    def row(self) -> int:
        """First row of the current segment."""
        return int(self.struct.row)

    @property
    def path_row(self) -> int:
        """First path row of the current segment."""
        return int(self.struct.path_row)

    def _record(self, at: int, source: int, target: int) -> dict[str, Array]:
        layout, _ = layout_of(self.graph, source, target, self.n_integrals, self.n_directions)
        record = self._records[at:]
        return {name: record[part] for name, part in layout.items()}

    def ahead(self, first: SegmentTask) -> SegmentTask:
        """The task of a segment in the mode `wanted`, as far as its memory needs it."""
        m = self.struct
        found, target = self._record(m.used, m.at, m.wanted), self.graph.equations[m.wanted]
        nothing = np.zeros(target.n_guards)
        return replace(
            first, equations=target, t0=self._now, t_stop=self._next_stop(m.wanted, self._now),
            x0=found["x_after"][: target.n].copy(), memory=found["memory_after"].copy(),
            zero_band=nothing, leaving_sign=nothing,
        )  # fmt: skip

    def task(self, first: SegmentTask) -> SegmentTask:
        """The task of the current segment."""
        m, d = self.struct, self.n_directions
        if not m.n_events:
            return first
        last = int(self._offsets[m.n_events - 1])
        source = int(self._records[last + COLUMN["mode"]])
        found, e = self._record(last, source, m.at), self.graph.equations[m.at]
        ny, n_guards = e.n_differential, e.n_guards
        sensitive: dict[str, Any] = {}
        if d:
            after, completed = found["after"].reshape(d, ny + e.n_memory), found["completed"].reshape(d, -1)
            sensitive = {
                "sensitivities": np.hstack((after[:, :ny], completed[:, : e.n - ny])),
                "memory_directions": after[:, ny:].copy(),
                "sensitivity_rates": rates_of(completed, ny, e.n) if e.implicit else None,
                "integral_sensitivities": found["costs_after"].reshape(d, self.n_integrals).copy()
                if self.n_integrals
                else first.integral_sensitivities,
            }
        return replace(
            first, equations=e, t0=float(self._records[last]),
            t_stop=self.stop, x0=found["x_after"][: e.n].copy(),
            xdot0=found["xdot_after"][: e.n].copy(), memory=found["memory_after"].copy(),
            integrals=found["integrals"].copy() if self.n_integrals else first.integrals,
            zero_band=self._bands[:n_guards].copy(), leaving_sign=self._bands[n_guards : 2 * n_guards].copy(),
            first_step=m.began_with or None, **sensitive,
        )  # fmt: skip

    @property
    def gained(self) -> Array:
        """Costs of the events, followed by their derivatives along the directions."""
        return self._gained.copy()

    def left(self) -> tuple[Array, NDArray[np.int64]]:
        """The records and their offsets: copies, or the buffers themselves if they are large."""
        used, self._given_away = self.struct.used, self.struct.used > MAX_COPIED_SIZE
        if self._given_away:
            self._records.resize(used, refcheck=False)
            self._offsets.resize(self.n_events, refcheck=False)
            records, offsets = self._records, self._offsets
        else:
            records, offsets = self._records[:used].copy(), self._offsets[: self.n_events].copy()
        records.flags.writeable = False
        return records, offsets

    def rest(self) -> None:
        """Release buffers that were given to a run."""
        if self._given_away:
            self._given_away = False
            self._records, self._offsets = np.zeros(256), np.zeros(16, dtype=np.int64)
            self.struct.used = 0
            self._make_room(0)

    def table(
        self, task: SegmentTask, mode: int, start: tuple[Array, Array], rows: dict[int, Array],
        paths: dict[int, Array], methods: Mapping[int, Method], tested: frozenset[int],
    ) -> RecordTable:  # fmt: skip
        """The record table of the completed segments."""
        return RecordTable(
            self.graph,
            mode,
            task,
            start,
            *self.left(),
            rows,
            paths,
            methods,
            self.n_integrals,
            self.n_directions,
            float(self.struct.t0),
            self.gained[0],
            self.gained[1:],
            tested,
        )
