"""Many runs in compiled code: `batch.c`, its structs mirrored, with the tables and memories of one thread."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_void_p
from dataclasses import fields, replace
from typing import Any

import numpy as np

from dae_hybrid.amplification import LOST
from dae_hybrid.fleet import Fleet, Outcomes
from dae_hybrid.integrator import Array
from dae_hybrid.journey import Network
from dae_hybrid.passages import fewest_steps
from dae_hybrid.timetable import Listed

from .compiled import Model
from .driver import PAUSED, ROWS_FULL, address, loops
from .forward import Forward
from .header import CONSTANTS, STRUCTS
from .library import load
from .memory import UNTESTED
from .methods import SundialsMethod
from .plain import Runner
from .plain_adjoint import Returner, table_back

Batch, Resolution, Returning = (STRUCTS[name] for name in ("batch", "resolution", "returning"))
MARKS_FULL = CONSTANTS["MARKS_FULL"]
#: the fields of the struct that `Outcomes` has under another name
NAMES = {"done": "outcomes"}


class Crew:
    """Tables and memories for run after run, on one thread at a time; see `dae_hybrid.fleet.Crew`."""

    def __init__(self, network: Network, fleet: Fleet, method: SundialsMethod) -> None:
        if network.ends is not None and fleet.origin is not None:
            network = replace(network, ends=replace(network.ends, origin=fleet.origin))
        self._network, self._fleet, self._method = network, fleet, method
        self._library = loops()
        self._library.dh_batch.restype = c_int
        self._absolute = fleet.errand.options.absolute(network.equations[0].functionals)
        self._chosen = [
            np.array(v, dtype=np.int64)
            for v in (fleet.integrated, fleet.wrt, [c for own in fleet.components for c in own])
        ]
        self._aims: tuple[Array, Outcomes] | None = None
        self._alarms = (STRUCTS["alarms"] * len(network.equations))()
        self._listed: tuple[int, Listed] | None = None
        self._make()

    def _make(self) -> None:
        """Tables and memories."""
        network, fleet, errand = self._network, self._fleet, self._fleet.errand
        d = 0 if errand.directions is None else len(errand.directions)
        self._runner = runner = Runner(network, errand.options, self._method, d)
        self._parameters = np.zeros(fleet.n_given)  # the initial values stand behind those that the runner knows
        runner._parameters = self._parameters[: errand.parameters.size]
        for memory in runner.memories:
            memory.model.share(runner._parameters)
        by = fleet.components if errand.keep_path else ()
        table = table_back(network, errand.options)
        self._back = [] if table is None else [Returner(network, errand.options, table, fleet.wrt, own) for own in by]
        self._models: list[Model] = [memory.model for memory in runner.memories]
        self._models += [own.model for back in self._back for own in back.own]
        modes = [(c_void_p * len(x.own))(*(ctypes.addressof(own.struct) for own in x.own)) for x in self._back]
        pairs = zip(self._back, modes, strict=True)
        self._returning = (Returning * max(len(modes), 1))(
            *(Returning(ctypes.addressof(back.struct), ctypes.addressof(own)) for back, own in pairs)
        )
        integrated, wrt, components = (own.ctypes.data for own in self._chosen)
        widest, n_t = max(network.sizes), 0 if errand.t_eval is None else errand.t_eval.size
        counts = 2 * len(network.directions), len(network.sizes)
        self._work = np.zeros(d), np.zeros(d), *(np.zeros(count, np.int64) for count in counts), np.zeros(widest)
        work = zip(("scales", "found", "events", "begins", "largest"), self._work, strict=True)
        self._kept = modes
        self.struct = Batch(
            run=ctypes.addressof(runner.struct), back=ctypes.addressof(self._returning), n_back=len(modes),
            **{name: array.ctypes.data for name, array in work},
            integrated=integrated, wrt=wrt, components=components, absolute=self._absolute.ctypes.data,
            n_wrt=len(fleet.wrt), n_components=self._chosen[2].size, n_given=fleet.n_given, n_t=n_t, widest=widest,
            fewest_steps=fewest_steps(LOST / errand.options.rtol), differentiates=errand.certify,
            certify=fleet.certify,
        )  # fmt: skip
        self._reference = byref(self.struct)
        self._marks = np.zeros(0)
        self._tell()

    def _tell(self) -> None:
        """Everything but the parameters."""
        runner, errand = self._runner, self._fleet.errand
        if errand.certify and errand.t_eval is not None:  # its steps are looked at, and outputs are none
            errand = errand._replace(keep_path=True)
        runner._told = None
        runner._tell(errand)
        for back in self._back:
            back._tell(errand)
        if errand.directions is not None:
            self._work[0][:] = 0.0
            self._resolutions = [_Resolved(memory, errand.options) for memory in runner.memories]
            self._structs = (Resolution * len(self._resolutions))(*(own.struct for own in self._resolutions))
            self.struct.resolutions = ctypes.addressof(self._structs)

    def aim(self, given: Array, out: Outcomes) -> None:
        """See `dae_hybrid.fleet.Crew.aim`."""
        if self.struct.stopped:
            self._tell()
        self._aims, s = (given, out), self.struct
        s.given, s.stopped = given.ctypes.data, 0
        for own in fields(out):
            setattr(s, NAMES.get(own.name, own.name), getattr(out, own.name).ctypes.data)

    def stop(self) -> None:
        """See `dae_hybrid.fleet.Crew.stop`."""
        self.struct.stopped = 1
        self._runner.struct.max_steps = 0  # of the run that is under way

    def run(self, begin: int, end: int) -> None:
        """See `dae_hybrid.fleet.Crew.run`."""
        timetable = self._fleet.timetable
        if timetable is None or self._aims is None:
            self._run(begin, end)
            return
        for first, last, listed in timetable.listed(self._aims[0][begin:end, : self._fleet.errand.parameters.size]):
            self._listed = begin + first, listed
            self._list(*self._listed)
            self._run(begin + first, begin + last)
            if self.struct.stopped:
                return

    def _list(self, first: int, listed: Listed) -> None:
        """When time events are due, in runs from one on."""
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
                if not self._runner.marcher.make_room():
                    self._runner.memories[self._runner.marcher.mode].stepper.enlarge()
            elif status == MARKS_FULL:
                size = 2 * self._runner.marcher.n_events * s.n_components * (self._back[0].width + s.n_wrt)
                self._marks = np.zeros(size)
                s.marks, s.room = self._marks.ctypes.data, size
            else:
                self._begin_anew()
                s = self.struct

    def _begin_anew(self) -> None:
        """Go on with the next run after one that has been left under way."""
        for model in self._models:
            model.raise_pending()
        old = self.struct
        if old.broken:
            for memory in self._runner.memories:
                memory.free()
            self._make()
            if self._aims is not None:
                self.aim(*self._aims)
            if self._listed is not None:
                self._list(*self._listed)
        else:
            self._tell()
        s = self.struct
        s.next, s.until, s.stage, s.broken, s.stopped = old.next + 1, old.until, 0, 0, old.stopped


class _Resolved:
    """The struct by which sensitivities of a memory are resolved, with the arrays it points at."""

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
