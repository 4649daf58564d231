"""Native runs: the structs of `native_run.c`, with their solver memories and tables."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_void_p
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.numerics.arrays import Array
from dae_hybrid.options import Options
from dae_hybrid.port.integrator import Equations, Record, SegmentOutcome, SegmentTask
from dae_hybrid.port.native_plan import NativeRun, NativeSegments, RunContext, RunRequest, TransitionGraph
from dae_hybrid.port.point import StatePoint
from dae_hybrid.port.record_table import EventFields, RecordTable

from . import compiled
from .backend import raise_first
from .choice import BOUND, reach_of
from .compiled import WIDE
from .driver import COUNTERS, FINISHED, NOT_STARTED, ROWS_FULL, driver, loops, statistics_of
from .forward import Forward
from .header import STRUCTS
from .memory import taken
from .methods import SundialsMethod, chosen, method_of
from .native_loop import NativeLoop
from .structure import structure_of

#: with more modes, solver memories are created as modes are entered (measured: a millisecond each)
MOST_MODES = 256
NativeRunStruct = STRUCTS["native_run"]


def is_native(equations: Equations) -> bool:
    """Whether the functions of a mode and the loop are compiled."""
    return bool(equations.compiled) and driver() is not None


def method_of_runs(graph: TransitionGraph, request: RunRequest) -> SundialsMethod | None:
    """The method for explicit equations in native runs; None if the run is not eligible."""
    if graph.ends is None or not all(is_native(e) and not e.unwatched for e in graph.equations):
        return None
    if (any(graph.timed) or graph.ends.measured or graph.turns) and not request.alarms:
        return None
    method, wanted = chosen(request.options), request.options.linear_solver
    newton = (e for e in graph.equations if method_of(e, method).implicit)
    is_dense = all(structure_of(e, backward=False, wanted=wanted).kind == "dense" for e in newton)
    return method if is_dense else None


def carry_out(graph: TransitionGraph, request: RunRequest) -> tuple[NativeRun | None, PausedRun | None]:
    """Start a native run; return its result, or where it has paused; neither if it is not eligible."""
    options = request.options
    method = method_of_runs(graph, request) if len(graph.equations) <= MOST_MODES else None
    if method is None:
        return None, None
    count = 0 if request.directions is None else len(request.directions)
    detail = (method.table(options), options.sensitivity_method if count else None)
    idle = graph.cache.setdefault(("sundials", "whole", method, count, detail, options.linear_solver), [])
    runner: NativeForward = taken(idle, lambda: NativeForward(graph, options, method, count))
    found = runner.run(request)
    if runner.paused is not None:
        return None, PausedRun(runner, idle)
    idle.append(runner)
    return found, None


class NativeForward:
    """Tables and solver memories for native runs of a graph by one method; for one run at a time.

    `paused` is the status of a run that has started and not finished.
    """

    paused: int | None = None

    def __init__(self, graph: TransitionGraph, options: Options, method: SundialsMethod, n_directions: int) -> None:
        ends, e = graph.ends, graph.equations
        if ends is None:
            raise AssertionError("the network has neither a start nor an end")
        self.graph, self._method, count = graph, method, len(e)
        self.loop = NativeLoop(graph, n_directions)
        methods = tuple(method_of(own, method) for own in e)
        self.memories = [
            Forward(own, options, how, n_directions, compiled) for own, how in zip(e, methods, strict=True)
        ]
        self._kind = _Kind(graph, methods, ends.mode, self.loop.n_integrals)
        self._told: RunRequest | None = None  # the request that tables and memories are set for
        shapes = [_shape(graph, mode) for mode in range(count)]
        n_p, nf = e[0].n_parameters, e[0].functionals.size
        own, d = shapes[ends.mode], n_directions
        self._n_w, self._n_directions = own.n_w, d
        of_measured = nf * (own.n_w + n_p + 1) if ends.measured else 0
        self._of_start = _slices(own.n, own.n_memory, own.n, *3 * [own.n_guards], own.n_w * n_p, of_measured)
        self._of_end = [
            _slices(k.n, k.n, *3 * [k.n_guards], nf, nf * (k.n_w + n_p + 3), k.n_integrated, nf, k.n_memory, nf * d)
            for k in shapes
        ]
        self._start = np.zeros(self._of_start[-1].stop)
        self._end = np.zeros(max(parts[-1].stop for parts in self._of_end))
        self._by_u = np.zeros(nf * max(k.n + k.n_memory + n_p + 1 for k in shapes))
        self._ranges, self._rested = np.zeros(len(graph.directions)), np.zeros(len(graph.directions), np.int64)
        self._parameters, self._counted = np.zeros(n_p), np.zeros((count, len(COUNTERS)), np.int64)
        self._runs: Any = (c_void_p * count)(*(ctypes.addressof(m.stepper.run) for m in self.memories))
        self._final: Any = (c_void_p * count)(*(f.address for f in ends.final))
        for memory in self.memories:
            memory.model.share(self._parameters)
        self.struct = NativeRunStruct(
            tables=ctypes.addressof(self.loop.struct), modes=ctypes.addressof(self.loop.modes),
            runs=ctypes.addressof(self._runs), final=ctypes.addressof(self._final),
            start=self._start.ctypes.data, end=self._end.ctypes.data, by_u=self._by_u.ctypes.data,
            counted=self._counted.ctypes.data, mode=ends.mode, n_modes=count, n_transitions=len(graph.directions),
        )  # fmt: skip
        if ends.origin is not None:
            self.struct.origin = ends.origin.address
        self._library = loops()
        self.loop.measure(by_itself=True)

    def _tell(self, request: RunRequest) -> None:
        """Set all inputs except the parameters."""
        told, options = self._told, request.options
        if told is not None and request.is_like(told):
            return
        self._told = None
        for memory in self.memories:
            memory.configure_run(
                options, self._parameters, request.directions, request.scales, suppress=options.suppress_algebraic
            )
            record: Record = "nothing" if request.t_eval is not None and not request.t_eval.size else "steps"
            memory.keep(request.span[1], np.inf, record, request.t_eval, closed=True, path=request.keep_path)
        self.loop.tell(
            request.context(self.graph, self.struct.mode, self._ranges, self._rested), options, self._parameters
        )
        self.loop.set_alarms(request.alarms, request.knots)
        self.struct.max_steps, self.struct.watch = options.max_steps, options.automatic
        self.struct.reach, self.struct.longest = BOUND * reach_of(options, self._method), options.max_step or 0.0
        if all(memory.stepper.run.width < WIDE for memory in self.memories):  # otherwise rows are given away
            self._told = request

    def run(self, request: RunRequest) -> NativeRun | None:
        """Carry out a run; None if it has paused or has not started."""
        s = self.struct
        self._parameters[:] = request.parameters
        if request.start is not None:
            self._start[: request.start.size] = request.start
        self._tell(request)
        s.under_way, self.paused = 0, None
        self.loop.measure(by_itself=True)
        status = self.advance()
        raise_first(*(memory.model for memory in self.memories))
        if status == FINISHED:
            return self._found(request)
        self._told = None
        if status != NOT_STARTED:
            self.paused = status
            for memory, counts in zip(self.memories, self._counted.tolist(), strict=True):
                memory.not_finite = counts[COUNTERS.index("not_finite")]
        return None

    @property
    def visited(self) -> dict[int, Forward]:
        """The memories of the modes that have been entered."""
        return {i: own for i, own in enumerate(self.memories) if self.loop.modes[i].run}

    def began_with(self, task: SegmentTask) -> bool:
        """Whether the first segment is that of a task, started without derivatives of costs."""
        x, m = (self._start[part] for part in self._of_start[:2])
        e = self.graph.equations[self.struct.mode]
        gained = task.integral_sensitivities  # from measurements at the start
        same = task.equations is e and task.t0 == self.loop.struct.t0 and (gained is None or not gained.any())
        return same and np.array_equal(task.x0, x[: e.n]) and np.array_equal(task.memory, m)

    @property
    def look(self) -> tuple[int, int]:
        """Number of steps until the next check of the method is due, and the interval between checks."""
        return int(self.struct.look), int(self.struct.interval)

    @property
    def stretch(self) -> tuple[float, int, int]:
        """Time, steps and events at the last check."""
        return float(self.struct.before), int(self.struct.taken), int(self.struct.events)

    def counted(self, mode: int) -> dict[str, int]:
        """The counters of a memory at the start of the run."""
        return dict(zip(COUNTERS, self._counted[mode].tolist(), strict=True))

    def hand_over(self, context: RunContext, options: Options) -> None:
        """Continue the paused run as part of a context."""
        context.ranges[:], context.stayed_at_zero[:] = self._ranges, self._rested
        self.loop.measure(by_itself=False)
        self.loop.tell(context, options, self._parameters)

    def advance(self) -> int:
        """Run from the start to the end or to a pause; return the status."""
        while (status := int(self._library.dh_run(byref(self.struct)))) == ROWS_FULL:
            if not self.loop.make_room():
                self.memories[self.loop.mode].stepper.enlarge()
        return status

    def _found(self, request: RunRequest) -> NativeRun:
        loop, mode, s = self.loop, self.loop.mode, self.struct
        memory = self.memories[mode]
        stepper = memory.stepper
        visited = {i: own.stepper for i, own in self.visited.items()}
        left = RecordedRun(
            self._kind, request, self._start.copy(), self._end.copy(), mode, stepper.t,
            memory.sensitivities if request.directions is not None else None, *loop.left(),
            {i: own.rows() for i, own in visited.items()},
            {i: own.path() for i, own in visited.items()} if request.keep_path else {},
            loop.row, loop.path_row, float(loop.struct.began_with) or None,
            memory.x_data[memory.equations.n : memory.block].copy(), loop.gained,
        )  # fmt: skip
        loop.rest()
        if any(path is None for path in left.paths.values()):
            self._told = None  # the next run must allocate new ones
        left.start.flags.writeable = left.end.flags.writeable = False
        x, m, xdot, guards, rates, sizes, by_p, _ = (left.start[part] for part in self._of_start)
        end_x, end_xdot, end_guards, end_rates, end_sizes, values, _, _, integrals, memory_end, gradient = (
            left.end[part] for part in self._of_end[mode]
        )
        failed, failed_newton = stepper.failures
        failed_before, failed_newton_before = loop.failures
        counts = dict(zip(COUNTERS, s.counts, strict=True))
        counts["steps"], counts["segments"] = stepper.steps + loop.steps, loop.n_segments + left.has_last
        counts["error_test_failures"] = failed + failed_before
        counts["newton_failures"] = failed_newton + failed_newton_before
        return NativeRun(
            request=request, start=StatePoint(x, m, xdot, guards, rates, sizes),
            by_p=by_p.reshape(self._parameters.size, self._n_w).T, mode=mode, t=left.t,
            end=StatePoint(end_x, memory_end, end_xdot, end_guards, end_rates, end_sizes), integrals=integrals,
            values=values, gradient=gradient.reshape(self._n_directions, values.size).T,
            statistics=statistics_of(counts), stayed_at_zero=self._rested.copy() if s.resting else None,
            is_certified=not s.doubtful, raw=left,
            turns=[(own.equations, turn) for own in self.memories for turn in own.stepper.take_turns()],
            n_events=loop.n_events - loop.n_passed,
        )  # fmt: skip


@dataclass
class PausedRun:
    """A paused run, with the pool of its runner; `adopted` if a session continues it."""

    runner: NativeForward
    idle: list[NativeForward]
    adopted: bool = False

    def give_back(self, alive: list[Forward]) -> None:
        """Return the runner to the pool, unless one of its memories has been given up."""
        if not self.adopted or all(memory in alive for memory in self.runner.memories):
            self.idle.append(self.runner)


class _Shape(NamedTuple):
    """Sizes of a mode's vectors."""

    n: int
    n_integrated: int
    n_y: int
    n_memory: int
    n_guards: int

    @property
    def n_w(self) -> int:
        """Size of (y, m)."""
        return self.n_y + self.n_memory


def _shape(graph: TransitionGraph, mode: int) -> _Shape:
    e = graph.equations[mode]
    return _Shape(graph.sizes[mode], e.n, e.n_differential, e.n_memory, len(graph.guarded[mode]))


def _slices(*sizes: int) -> list[slice]:
    """Consecutive slices of the given sizes."""
    ends = np.cumsum(sizes).tolist()
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


class _Kind(NamedTuple):
    """Properties shared by all runs of a runner."""

    graph: TransitionGraph
    methods: tuple[SundialsMethod, ...]  # per mode
    mode: int  # the initial mode
    n_integrals: int


class RecordedRun(NamedTuple):
    """Raw data of a native run, from which segments and events are built on demand."""

    kind: _Kind
    request: RunRequest
    start: Array
    end: Array
    mode: int
    t: float
    sensitivities: Array | None
    records: Array
    offsets: NDArray[np.int64]
    rows: dict[int, Array]
    paths: dict[int, Array | None]
    row: int
    path_row: int
    first_step: float | None
    integrals: Array
    gained: Array  # costs of events, followed by their derivatives

    @property
    def begin(self) -> float:
        """Start of the last segment."""
        return float(self.records[self.offsets[-1]]) if self.offsets.size else self.request.span[0]

    @property
    def has_last(self) -> bool:
        """Whether there is a segment, or an output, after the last record."""
        return self.begin < self.t or self.row < len(self.rows[self.mode])

    def forget_paths(self) -> None:
        """Release the paths, which only an adjoint needs."""
        self.paths.clear()

    def segments(self, start: StatePoint, by_p: Array, end: StatePoint) -> NativeSegments:
        """Return the record table of all segments but the last, and the task and the outcome of the last."""
        request, (graph, methods, mode, n_integrals) = self.request, self.kind
        first, last, d = graph.equations[mode], graph.equations[self.mode], request.directions
        task = SegmentTask(
            first, request.span[0], request.span[1], start.x[: first.n], start.xdot[: first.n], start.m,
            np.zeros(first.functionals.size), np.zeros(first.n_guards), np.zeros(first.n_guards), "steps",
            request.t_eval, closed_end=True, keep_path=request.keep_path, **self._sensitive(first, by_p, None),
        )  # fmt: skip
        table, paths = None, {i: path for i, path in self.paths.items() if path is not None}
        if self.offsets.size:
            table = RecordTable(
                graph, mode, task, (start.x, start.xdot), self.records, self.offsets, self.rows, paths,
                {i: methods[i] for i in self.rows}, n_integrals, 0 if d is None else len(d), request.span[0],
                self.gained[0], self.gained[1:],
            )  # fmt: skip
            event, _ = table.last
            task = SegmentTask(
                last, event["time"], request.span[1], event["x_after"][: last.n], event["xdot_after"][: last.n],
                event["memory_after"], event["integrals"] if last.integrates else task.integrals,
                np.zeros(last.n_guards), np.zeros(last.n_guards), "steps", request.t_eval, closed_end=True,
                first_step=self.first_step, keep_path=request.keep_path, **self._sensitive(last, by_p, event),
            )  # fmt: skip
        n, found, path = last.n, self.sensitivities, paths.get(self.mode)
        rows = self.rows[self.mode][self.row :]
        if not rows.size and request.t_eval is None and task.t0 < self.t:  # they differ by rounding
            values = np.concatenate((end.x[:n], *(() if found is None else found[:, :n])))
            rows = np.array([[t, *values] for t in (task.t0, self.t)])
        outcome = SegmentOutcome(
            self.t, end.x[:n], end.xdot[:n], None, np.zeros(last.n_guards), methods[self.mode],
            self.integrals if last.integrates else task.integrals, rows,
            None if found is None else found[:, :n],
            None if found is None else found[:, n:] if last.integrates else task.integral_sensitivities,
            path=None if path is None else path[self.path_row :],
        )  # fmt: skip
        return table, task, outcome

    def _sensitive(self, e: Equations, by_p: Array, event: EventFields | None) -> dict[str, Any]:
        """Fields of a task for the sensitivities at the start of a segment, as far as its record needs them."""
        d = self.request.directions
        if d is None:
            return {}
        costs = np.zeros((len(d), e.functionals.size))
        after = d @ by_p.T
        if event is not None:
            after = event["after"].reshape(len(d), -1)
            costs = event["costs_after"].reshape(costs.shape) if e.integrates else costs
        return {"memory_directions": after[:, e.n_differential :], "integral_sensitivities": costs}
