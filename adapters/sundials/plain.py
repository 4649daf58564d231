"""Whole runs in compiled code: `plain.c`, its struct mirrored, with the memories and tables that it works on."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import byref, c_void_p
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.integrator import Array, Equations, Record, SegmentOutcome, SegmentTask
from dae_hybrid.journey import Errand, Network, Pieces, Straight
from dae_hybrid.leg import Leg
from dae_hybrid.options import Options
from dae_hybrid.transition import Arrival

from . import compiled
from .compiled import WIDE
from .driver import COUNTERS, REACHED_STOP, ROWS_FULL, loops, statistics_of
from .forward import Forward
from .header import STRUCTS
from .march import Marcher

#: so many runs are left out at most before whole ones are tried again
MOST_LEFT_OUT = 64
PlainStruct = STRUCTS["plain"]


def method_of(equations: Equations, method: str) -> str:
    """The method for a mode, of runs by one method for explicit equations."""
    return "bdf" if equations.implicit else method


class Luck:
    """Whether whole runs are worth a try: the more of them in a row have failed, the more are left out."""

    def __init__(self) -> None:
        self._left, self._next = 0, 1

    @property
    def is_in(self) -> bool:
        """Whether the next run is to be tried."""
        self._left -= 1
        return self._left < 0

    def note(self, worked: bool) -> None:
        """One has been tried."""
        self._left, self._next = (0, 1) if worked else (self._next, min(2 * self._next, MOST_LEFT_OUT))


class Runner:
    """Tables and memories for the whole runs of a network, by one method; used by one run at a time."""

    failed = False  # whether a solver has given up, whose memory is not to be used any more

    def __init__(self, network: Network, options: Options, method: str, n_directions: int) -> None:
        ends, e = network.ends, network.equations
        if ends is None:
            raise AssertionError("the network has neither a start nor an end")
        self.network, count = network, len(e)
        self.marcher = Marcher(network, n_directions)
        methods = tuple(method_of(own, method) for own in e)
        self.memories = [
            Forward(own, options, how, n_directions, compiled) for own, how in zip(e, methods, strict=True)
        ]
        self._kind = _Kind(network, methods, ends.mode, self.marcher.n_integrals)
        self._told: Errand | None = None  # what tables and memories have been told
        shapes = [_shape(network, mode) for mode in range(count)]
        n_p, nf = e[0].n_parameters, e[0].functionals.size
        own, d = shapes[ends.mode], n_directions
        self._n_w, self._n_directions = own.n_w, d
        self._of_start = _slices(own.n, own.n_memory, own.n, *3 * [own.n_guards], own.n_w * n_p)
        self._of_end = [
            _slices(k.n, k.n, *3 * [k.n_guards], nf, nf * (k.n_w + n_p + 3), k.n_integrated, nf, k.n_memory, nf * d)
            for k in shapes
        ]
        self._start = np.zeros(self._of_start[-1].stop)
        self._end = np.zeros(max(parts[-1].stop for parts in self._of_end))
        self._by_u = np.zeros(nf * max(k.n + k.n_memory + n_p + 1 for k in shapes))
        self._ranges, self._rested = np.zeros(len(network.directions)), np.zeros(len(network.directions), np.int64)
        self._parameters, self._visited = np.zeros(n_p), np.zeros(count, np.int64)
        self._runs: Any = (c_void_p * count)(*(ctypes.addressof(m.stepper.run) for m in self.memories))
        self._final: Any = (c_void_p * count)(*(f.address for f in ends.final))
        for memory in self.memories:
            memory.model.share(self._parameters)
        self.struct = PlainStruct(
            tables=ctypes.addressof(self.marcher.struct), stations=ctypes.addressof(self.marcher.stations),
            runs=ctypes.addressof(self._runs), origin=ends.origin.address, final=ctypes.addressof(self._final),
            start=self._start.ctypes.data, end=self._end.ctypes.data, by_u=self._by_u.ctypes.data,
            visited=self._visited.ctypes.data, mode=ends.mode, n_modes=count, n_transitions=len(network.directions),
        )  # fmt: skip
        self._library = loops()

    def _tell(self, errand: Errand) -> None:
        """Everything but the parameters."""
        told, options = self._told, errand.options
        if told is not None and errand.is_like(told):
            return
        self._told = None
        for memory in self.memories:
            memory.configure_run(
                options, self._parameters, errand.directions, errand.scales, suppress=options.suppress_algebraic
            )
            record: Record = "nothing" if errand.t_eval is not None and not errand.t_eval.size else "steps"
            memory.keep(errand.span[1], np.inf, record, errand.t_eval, closed=True, path=errand.keep_path)
        self.marcher.tell(
            errand.journey(self.network, self.struct.mode, self._ranges, self._rested), options, self._parameters
        )
        self.struct.max_steps, self.struct.watch = options.max_steps, options.method == "auto"
        if all(memory.stepper.run.width < WIDE for memory in self.memories):  # else rows are given away
            self._told = errand

    def run(self, errand: Errand) -> Straight | None:
        """Carry out a run; None where it is not plain all the way."""
        s = self.struct
        self._parameters[:] = errand.parameters
        self._tell(errand)
        s.under_way = 0
        status = self.advance()
        for memory in self.memories:
            memory.model.raise_pending()
        if status != REACHED_STOP:
            self.failed, self._told = status < 0, None
            return None
        return self._found(errand)

    def advance(self) -> int:
        """From the start to the end, or to where it is not plain; SUNDIALS' return code."""
        while (status := int(self._library.dh_run(byref(self.struct)))) == ROWS_FULL:
            if not self.marcher.make_room():
                self.memories[self.marcher.mode].stepper.enlarge()
        return status

    def _found(self, errand: Errand) -> Straight:
        marcher, mode, s = self.marcher, self.marcher.mode, self.struct
        memory = self.memories[mode]
        stepper = memory.stepper
        visited = [i for i, seen in enumerate(self._visited.tolist()) if seen]
        steppers = [self.memories[i].stepper for i in visited]
        left = Left(
            self._kind, errand, self._start.copy(), self._end.copy(), mode, stepper.t,
            memory.sensitivities if errand.directions is not None else None, *marcher.left(),
            dict(zip(visited, [own.rows() for own in steppers], strict=True)),
            dict(zip(visited, [own.path() for own in steppers], strict=True)) if errand.keep_path else {},
            marcher.row, marcher.path_row, float(marcher.struct.began_with) or None,
        )  # fmt: skip
        marcher.rest()
        if any(path is None for path in left.paths.values()):
            self._told = None  # they are to be kept again
        left.start.flags.writeable = left.end.flags.writeable = False
        x, m, xdot, guards, rates, sizes, by_p = (left.start[part] for part in self._of_start)
        end_x, end_xdot, end_guards, end_rates, end_sizes, values, _, _, integrals, memory_end, gradient = (
            left.end[part] for part in self._of_end[mode]
        )
        failed, failed_newton = stepper.failures
        failed_before, failed_newton_before = marcher.failures
        counts = dict(zip(COUNTERS, s.counts, strict=True))
        counts["steps"], counts["segments"] = stepper.steps + marcher.steps, marcher.n_events + 1
        counts["error_test_failures"] = failed + failed_before
        counts["newton_failures"] = failed_newton + failed_newton_before
        return Straight(
            errand=errand, start=Arrival(x, m, xdot, guards, rates, sizes),
            by_p=by_p.reshape(self._parameters.size, self._n_w).T, mode=mode, t=left.t,
            end=Arrival(end_x, memory_end, end_xdot, end_guards, end_rates, end_sizes), integrals=integrals,
            values=values, gradient=gradient.reshape(self._n_directions, values.size).T,
            statistics=statistics_of(counts), rested=self._rested.copy() if s.resting else None,
            is_certified=not s.doubtful, left=left,
            turns=[(own.equations, turn) for own in self.memories for turn in own.stepper.take_turns()],
        )  # fmt: skip


class _Shape(NamedTuple):
    """Sizes of what a mode has."""

    n: int
    n_integrated: int
    n_y: int
    n_memory: int
    n_guards: int

    @property
    def n_w(self) -> int:
        """Of (y, m)."""
        return self.n_y + self.n_memory


def _shape(network: Network, mode: int) -> _Shape:
    e = network.equations[mode]
    return _Shape(network.sizes[mode], e.n, e.n_differential, e.n_memory, len(network.guarded[mode]))


def _slices(*sizes: int) -> list[slice]:
    """Parts of these sizes, one after the other."""
    ends = np.cumsum(sizes).tolist()
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


class _Kind(NamedTuple):
    """What runs of one runner have in common."""

    network: Network
    methods: tuple[str, ...]  # by mode
    mode: int  # the first
    n_integrals: int


class Left(NamedTuple):
    """What a run has left behind, as numbers; what they mean is made of them when it is asked for."""

    kind: _Kind
    errand: Errand
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

    def forget_paths(self) -> None:
        """Let go of what only an adjoint needs."""
        self.paths.clear()

    def pieces(self, start: Arrival, by_p: Array, end: Arrival, integrals: Array) -> Pieces:
        """All segments but the last with their events; of the last one the task and the outcome."""
        errand, (network, methods, mode, n_integrals) = self.errand, self.kind
        first, last, d = network.equations[mode], network.equations[self.mode], errand.directions
        task = SegmentTask(
            first, errand.span[0], errand.span[1], start.x[: first.n], start.xdot[: first.n], start.m,
            np.zeros(first.functionals.size), np.zeros(first.n_guards), np.zeros(first.n_guards), "steps",
            errand.t_eval, closed_end=True, keep_path=errand.keep_path, **self._sensitive(first, by_p, None),
        )  # fmt: skip
        leg, paths = None, {i: path for i, path in self.paths.items() if path is not None}
        if self.offsets.size:
            nothing = np.zeros((1 if d is None else 1 + len(d), first.functionals.size))
            leg = Leg(
                network, mode, task, (start.x, start.xdot), self.records, self.offsets, self.rows, paths,
                {i: methods[i] for i in self.rows}, n_integrals, 0 if d is None else len(d), errand.span[0],
                nothing[0], nothing[1:],
            )  # fmt: skip
            event, _ = leg.last
            task = SegmentTask(
                last, leg.times[-1], errand.span[1], event["x_after"][: last.n], event["xdot_after"][: last.n],
                event["memory_after"], event["integrals"] if last.integrates else task.integrals,
                np.zeros(last.n_guards), np.zeros(last.n_guards), "steps", errand.t_eval, closed_end=True,
                first_step=self.first_step, keep_path=errand.keep_path, **self._sensitive(last, by_p, event),
            )  # fmt: skip
        n, found, path = last.n, self.sensitivities, paths.get(self.mode)
        outcome = SegmentOutcome(
            self.t, end.x[:n], end.xdot[:n], None, np.zeros(last.n_guards), methods[self.mode], integrals,
            self.rows[self.mode][self.row :], None if found is None else found[:, :n],
            None if found is None else found[:, n:] if last.integrates else task.integral_sensitivities,
            path=None if path is None else path[self.path_row :],
        )  # fmt: skip
        return leg, task, outcome

    def _sensitive(self, e: Equations, by_p: Array, event: Mapping[str, Array] | None) -> dict[str, Any]:
        """Of the sensitivities that a segment begins with, at the start or after an event, what its record needs."""
        d = self.errand.directions
        if d is None:
            return {}
        costs = np.zeros((len(d), e.functionals.size))
        after = d @ by_p.T
        if event is not None:
            after = event["after"].reshape(len(d), -1)
            costs = event["costs_after"].reshape(costs.shape) if e.integrates else costs
        return {"memory_directions": after[:, e.n_differential :], "integral_sensitivities": costs}
