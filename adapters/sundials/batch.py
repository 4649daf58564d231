"""Batches of native runs: the structs of `batch.c`, with the tables and solver memories of one thread."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_void_p
from dataclasses import fields, replace
from typing import Any

import numpy as np

from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.native_batch import NativeBatch, Outcomes
from dae_hybrid.port.native_plan import Listed, TransitionGraph
from dae_hybrid.port.segment_rules import DIGITS_LOST, fewest_steps

from .backend import raise_first
from .compiled import EquationCallbacks
from .driver import PAUSED, ROWS_FULL, address, loops
from .forward import Forward
from .header import CONSTANTS, STRUCTS
from .library import load
from .memory import UNTESTED
from .methods import SundialsMethod
from .native_backward import NativeBackward, table_back
from .native_forward import NativeForward

Batch, Resolution, Returning = (STRUCTS[name] for name in ("batch", "resolution", "returning"))
MARKS_FULL = CONSTANTS["MARKS_FULL"]
#: fields of `Outcomes` with a different name in the struct
NAMES = {"done": "outcomes"}


class SundialsCrew:
    """Tables and solver memories for successive runs on one thread; see `dae_hybrid.port.native_batch.Crew`."""

    def __init__(self, graph: TransitionGraph, fleet: NativeBatch, method: SundialsMethod) -> None:
        if graph.ends is not None and fleet.origin is not None:
            graph = replace(graph, ends=replace(graph.ends, origin=fleet.origin))
        self._graph, self._fleet, self._method = graph, fleet, method
        self._library = loops()
        self._library.dh_batch.restype = c_int
        self._absolute = fleet.request.options.absolute(graph.equations[0].functionals)
        self._chosen = [
            np.array(v, dtype=np.int64)
            for v in (fleet.integrated, fleet.wrt, [c for own in fleet.components for c in own], fleet.sides)
        ]
        self._aims: tuple[Array, Outcomes] | None = None
        self._alarms = (STRUCTS["alarms"] * len(graph.equations))()
        self._listed: tuple[int, Listed] | None = None
        self._starts: tuple[int, Array] | None = None
        self._make()

    def _make(self) -> None:
        """Allocate tables and solver memories."""
        graph, fleet, request = self._graph, self._fleet, self._fleet.request
        d = 0 if request.directions is None else len(request.directions)
        self._runner = runner = NativeForward(graph, request.options, self._method, d)
        self._parameters = np.zeros(fleet.n_given)  # the initial values follow the parameters
        runner._parameters = self._parameters[: request.parameters.size]
        for memory in runner.memories:
            memory.model.share(runner._parameters)
        by = fleet.components if request.keep_path else ()
        table = table_back(graph, request.options)
        self._back = (
            [] if table is None else [NativeBackward(graph, request.options, table, fleet.wrt, own) for own in by]
        )
        self._models: list[EquationCallbacks] = [memory.model for memory in runner.memories]
        self._models += [own.model for back in self._back for own in back.own]
        modes = [(c_void_p * len(x.own))(*(ctypes.addressof(own.struct) for own in x.own)) for x in self._back]
        pairs = zip(self._back, modes, strict=True)
        self._returning = (Returning * max(len(modes), 1))(
            *(Returning(ctypes.addressof(back.struct), ctypes.addressof(own)) for back, own in pairs)
        )
        integrated, wrt, components, sides = (own.ctypes.data for own in self._chosen)
        widest, n_t = max(graph.sizes), 0 if request.t_eval is None else request.t_eval.size
        counts = 2 * len(graph.directions), len(graph.sizes)
        self._work = np.zeros(d), np.zeros(d), *(np.zeros(count, np.int64) for count in counts), np.zeros(widest)
        work = zip(("scales", "found", "events", "begins", "largest"), self._work, strict=True)
        self._kept = modes
        self.struct = Batch(
            run=ctypes.addressof(runner.struct), back=ctypes.addressof(self._returning), n_back=len(modes),
            **{name: array.ctypes.data for name, array in work},
            integrated=integrated, wrt=wrt, components=components, sides=sides, n_sides=len(fleet.sides),
            absolute=self._absolute.ctypes.data,
            n_wrt=len(fleet.wrt), n_components=self._chosen[2].size, n_given=fleet.n_given, n_t=n_t, widest=widest,
            fewest_steps=fewest_steps(DIGITS_LOST / request.options.rtol), differentiates=request.certify,
            certify=fleet.certify,
        )  # fmt: skip
        self._reference = byref(self.struct)
        self._marks = np.zeros(0)
        self._tell()

    def _tell(self) -> None:
        """Set all inputs except the parameters."""
        runner, request = self._runner, self._fleet.request
        if request.certify and request.t_eval is not None:  # derivative checks need the steps
            request = request._replace(keep_path=True)
        runner._told = None
        runner._tell(request)
        for back in self._back:
            back._tell(request)
        if request.directions is not None:
            self._work[0][:] = 0.0
            self._resolutions = [_Resolved(memory, request.options) for memory in runner.memories]
            self._structs = (Resolution * len(self._resolutions))(*(own.struct for own in self._resolutions))
            self.struct.resolutions = ctypes.addressof(self._structs)

    def aim(self, given: Array, out: Outcomes) -> None:
        """See `dae_hybrid.port.native_batch.Crew.aim`."""
        if self.struct.stopped:
            self._tell()
        self._aims, s = (given, out), self.struct
        s.given, s.stopped = given.ctypes.data, 0
        for own in fields(out):
            setattr(s, NAMES.get(own.name, own.name), getattr(out, own.name).ctypes.data)

    def stop(self) -> None:
        """See `dae_hybrid.port.native_batch.Crew.stop`."""
        self.struct.stopped = 1
        self._runner.struct.max_steps = 0  # ends the current run

    def run(self, begin: int, end: int) -> None:
        """See `dae_hybrid.port.native_batch.Crew.run`."""
        timetable, starting = self._fleet.timetable, self._fleet.starting
        if starting is not None and self._aims is not None:
            self._starts = begin, starting(self._aims[0][begin:end])
            self._start_from(*self._starts)
        if timetable is None or self._aims is None:
            self._run(begin, end)
            return
        for first, last, listed in timetable.listed(self._aims[0][begin:end, : self._fleet.request.parameters.size]):
            self._listed = begin + first, listed
            self._list(*self._listed)
            self._run(begin + first, begin + last)
            if self.struct.stopped:
                return

    def _start_from(self, first: int, rows: Array) -> None:
        """Set the starts of runs from `first` on."""
        s = self.struct
        s.starts, s.started, s.start_size = rows.ctypes.data, first, rows.shape[1]

    def _list(self, first: int, listed: Listed) -> None:
        """Set the due times of time events, for runs from `first` on."""
        s = self.struct
        for own, (times, links, counts) in zip(self._alarms, listed.alarms, strict=True):
            own.n, own.next = times.shape[1], 0
            own.times, own.links, own.counts = times.ctypes.data, links.ctypes.data, counts.ctypes.data
        s.listed, s.listed_until = ctypes.addressof(self._alarms), listed.until.ctypes.data
        s.first, s.is_shared = first, listed.until.size == 1

    def _run(self, begin: int, end: int) -> None:
        s = self.struct
        s.next, s.until, s.stage = begin, end, 0
        while (status := self._library.dh_batch(self._reference)) and status != PAUSED:
            if status == ROWS_FULL:
                if not self._runner.loop.make_room():
                    self._runner.memories[self._runner.loop.mode].stepper.enlarge()
            elif status == MARKS_FULL:
                size = 2 * self._runner.loop.n_events * s.n_components * (self._back[0].width + s.n_wrt)
                self._marks = np.zeros(size)
                s.marks, s.room = self._marks.ctypes.data, size
            else:
                self._begin_anew()
                s = self.struct
        raise_first(*self._models)  # kept in a run that was left to a single call

    def _begin_anew(self) -> None:
        """Continue with the next run after one that was aborted."""
        raise_first(*self._models)
        old = self.struct
        if old.broken:
            for memory in self._runner.memories:
                memory.free()
            self._make()
            if self._aims is not None:
                self.aim(*self._aims)
            if self._listed is not None:
                self._list(*self._listed)
            if self._starts is not None:
                self._start_from(*self._starts)
        else:
            self._tell()
        s = self.struct
        s.next, s.until, s.stage, s.broken, s.stopped = old.next + 1, old.until, 0, 0, old.stopped


class _Resolved:
    """The struct with the tolerances of a memory's sensitivities, and the arrays it points to."""

    def __init__(self, memory: Forward, options: Any) -> None:
        e, n = memory.equations, memory.equations.n
        tested = e.n_differential if memory.implicit else n
        name = memory.family + ("SVtolerances" if memory.explicit else "SensSVtolerances")
        if memory.explicit:
            of_functionals = options.absolute(e.functionals)[: memory.block - n]
            self._of_states = np.concatenate((options.absolute(e.variables), of_functionals))
            share = (memory.absolute_data.size // memory.block) ** -0.5
        else:
            self._of_states, share = memory.absolute_data, 1.0
        self.struct = Resolution(
            tell=address(load(), name), absolute=memory.absolute if memory.explicit else None,
            values=memory.absolute_data.ctypes.data if memory.explicit else None,
            of_states=self._of_states.ctypes.data, block=memory.block, n_tested=tested, rtol=options.rtol * share,
            share=share, untested=UNTESTED,
        )  # fmt: skip
