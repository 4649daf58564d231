"""Adjoints of native runs: the structs of `native_run.c` and their work arrays."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_void_p
from typing import Any

import numpy as np

from dae_hybrid.options import Options
from dae_hybrid.port.integrator import Tolerances
from dae_hybrid.port.native_plan import NativeGradient, NativeRun, RunRequest, TransitionGraph

from .backend import raise_first
from .driver import COUNTERS, loops, statistics_of
from .header import STRUCTS
from .memory import taken
from .methods import chosen
from .native_forward import RecordedRun
from .native_loop import NativeLoop
from .runge_kutta import ButcherTable
from .sweep import DiscreteAdjoint, SweepStruct

NativeGradientStruct = STRUCTS["native_gradient"]


def table_back(graph: TransitionGraph, options: Options) -> ButcherTable | None:
    """Coefficients of the steps for adjoints of native runs; None unless all modes take explicit steps."""
    method = chosen(options)
    return method.table(options) if all(method.takes(e) for e in graph.equations) else None


def carry_back(
    graph: TransitionGraph, run: NativeRun, components: tuple[int, ...], wrt: tuple[int, ...], *, at_events: bool
) -> NativeGradient | None:
    """Compute the adjoint of a native run, and before each event if `at_events`; None if its steps do not allow it."""
    options = run.request.options
    table = table_back(graph, options)
    if table is None:
        return None
    idle = graph.cache.setdefault(("sundials", "back", table, components, wrt), [])
    returner = taken(idle, lambda: NativeBackward(graph, options, table, wrt, components))
    found: NativeGradient | None = returner.run(run.raw, at_events=at_events)
    idle.append(returner)
    return found


class NativeBackward:
    """Tables and work arrays for the adjoints of a graph's runs by some parameters; for one run at a time."""

    def __init__(
        self,
        graph: TransitionGraph,
        options: Options,
        table: ButcherTable,
        wrt: tuple[int, ...],
        components: tuple[int, ...],
    ) -> None:
        ends, e, k = graph.ends, graph.equations, len(components)
        if ends is None:
            raise AssertionError("the network has neither a start nor an end")
        self.graph, self.wrt, self.components = graph, wrt, components
        self.loop = NativeLoop(graph, 0)
        self.loop.measure(by_itself=True)
        self.own = [DiscreteAdjoint(mode, wrt, table) for mode in e]
        slots = {name: i for i, name in enumerate(dict.fromkeys(n for mode in e for n in mode.variables.labels()))}
        self._widest, nm, nf = max(mode.n for mode in e), e[0].n_memory, e[0].functionals.size
        self._slots = np.zeros((len(e), self._widest), np.int64)
        for row, mode in zip(self._slots, e, strict=True):
            row[: mode.n] = [slots[label] for label in mode.variables.labels()]
        self._parameters = np.zeros(e[0].n_parameters)
        for own, mode in zip(self.own, e, strict=True):
            tolerances = Tolerances(np.zeros((k, mode.n)), np.zeros((k, len(wrt) + nm)), options.rtol)  # set in C
            own.choose(components, self._parameters, tolerances, options.max_steps)
            own.model.share(self._parameters)
        self._told: RunRequest | None = None
        self._modes: Any = (c_void_p * len(e))()
        self._final: Any = (c_void_p * len(e))(*(f.address for f in ends.final))
        self._paths: Any = (c_void_p * len(e))()
        self._path_rows, self.width = np.zeros(len(e), np.int64), self._widest + nm
        self._given = [np.array(v, dtype=np.int64) for v in (wrt, components)]
        self._adjoint, self._totals = np.zeros((k, self.width)), np.zeros((k, len(wrt)))
        self._work = [np.zeros(size) for size in (3 * self.width + e[0].n_parameters + 1, len(slots) + nm, k + 2 * nf)]
        wanted, chosen = (v.ctypes.data for v in self._given)
        self.sweep = SweepStruct(
            tables=ctypes.addressof(self.loop.struct), modes=ctypes.addressof(self._modes),
            paths=ctypes.addressof(self._paths), n_components=k, n_wrt=len(wrt), marks_width=self.width, wrt=wanted,
            components=chosen, adjoint=self._adjoint.ctypes.data, totals=self._totals.ctypes.data,
            work=self._work[0].ctypes.data,
        )  # fmt: skip
        self.struct = NativeGradientStruct(
            back=ctypes.addressof(self.sweep), final=ctypes.addressof(self._final), slots=self._slots.ctypes.data,
            path_rows=self._path_rows.ctypes.data, extent=self._work[1].ctypes.data, costs=self._work[2].ctypes.data,
            n_modes=len(e), n_slots=len(slots), widest=self._widest, first=ends.mode,
        )  # fmt: skip
        self._library = loops()

    def _tell(self, request: RunRequest) -> None:
        """Set all inputs except the parameters."""
        if self._told is not None and request.is_like(self._told):
            return
        nothing = np.zeros(0), np.zeros(0, np.int64)
        self.loop.tell(request.context(self.graph, self.struct.first, *nothing), request.options, self._parameters)
        for own in self.own:
            own.struct.max_steps = request.options.max_steps
        self._told = request

    def advance(self) -> int:
        """Run from the end to the start; return SUNDIALS' code."""
        return int(self._library.dh_run_back(byref(self.struct)))

    def run(self, left: RecordedRun, *, at_events: bool) -> NativeGradient | None:
        """Compute the adjoint of a run from its raw data; None if its steps do not allow it."""
        if not left.paths or any(path is None for path in left.paths.values()):
            return None
        request = left.request
        self._parameters[:] = request.parameters
        self._tell(request)
        sweep, s, count, last = self.sweep, self.struct, left.offsets.size, left.mode
        for mode, own in enumerate(self.own):
            path = left.paths.get(mode)
            self._modes[mode] = None if path is None else ctypes.addressof(own.struct)
            self._paths[mode], self._path_rows[mode] = (None, 0) if path is None else (path.ctypes.data, len(path))
        marks = np.empty((count, len(self.components), self.width + len(self.wrt))) if at_events else None
        sweep.marks = None if marks is None else marks.ctypes.data
        sweep.n_events, sweep.begin = count, request.span[0]
        sweep.offsets, sweep.records = left.offsets.ctypes.data, left.records.ctypes.data
        s.start, s.end, s.last, s.path_row = left.start.ctypes.data, left.end.ctypes.data, last, left.path_row
        s.moved = left.t - (left.records[left.offsets[-1]] if count else request.span[0])
        flag = self.advance()
        raise_first(*(own.model for own in self.own))
        if flag:
            return None
        counts = dict(zip(COUNTERS, s.counts, strict=True))
        counts["steps"], counts["segments"] = s.steps, count + 1
        return NativeGradient(self._totals.copy(), marks, self.width, statistics_of(counts))
