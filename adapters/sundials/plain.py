"""Whole runs in compiled code: `plain.c`, its struct mirrored, with the memories and tables that it works on."""

from __future__ import annotations

import ctypes
from ctypes import Structure, byref, c_double, c_int64, c_void_p
from typing import Any

import numpy as np

from dae_hybrid.integrator import Array, SegmentOutcome, SegmentTask
from dae_hybrid.journey import Errand, Network, Straight
from dae_hybrid.options import Options
from dae_hybrid.transition import Arrival

from . import compiled
from .driver import COUNTERS, REACHED_STOP, ROWS_FULL, loops, statistics_of
from .forward import Forward
from .march import Marcher


#: so many runs are left out at most before whole ones are tried again
MOST_LEFT_OUT = 64


class PlainStruct(Structure):
    """`plain` of driver.h."""

    _fields_ = [
        *((name, c_void_p) for name in ("tables", "stations", "runs", "origin", "final", "start", "end")),
        *((name, c_int64) for name in ("mode", "n_modes", "n_transitions", "max_steps", "watch", "under_way",
                                       "look", "taken", "events")),
        ("before", c_double),
        ("counts", c_int64 * len(COUNTERS)),
    ]  # fmt: skip


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

    def __init__(self, network: Network, options: Options, method: str, n_directions: int) -> None:
        ends, e = network.ends, network.equations
        if ends is None:
            raise AssertionError("the network has neither a start nor an end")
        self.network, self.n_directions = network, n_directions
        self.marcher = Marcher(network, n_directions)
        self.memories = [Forward(own, options, method, n_directions, compiled) for own in e]
        count = len(e)
        self._runs: Any = (c_void_p * count)(*(ctypes.addressof(m.stepper.run) for m in self.memories))
        self._final: Any = (c_void_p * count)(*(f.address for f in ends.final))
        self._start, self._end = (
            np.zeros(max(_length(f.function) for f in functions)) for functions in ([ends.origin], ends.final)
        )
        self._ranges, self._rested = np.zeros(len(network.directions)), np.zeros(len(network.directions), np.int64)
        self.struct = PlainStruct(
            tables=ctypes.addressof(self.marcher.struct), stations=ctypes.addressof(self.marcher.stations),
            runs=ctypes.addressof(self._runs), origin=ends.origin.address, final=ctypes.addressof(self._final),
            start=self._start.ctypes.data, end=self._end.ctypes.data, mode=ends.mode, n_modes=count,
            n_transitions=len(network.directions),
        )  # fmt: skip
        self._library = loops()

    def run(self, errand: Errand) -> Straight | None:
        """Carry out a run; None where it is not plain all the way."""
        options, s, marcher = errand.options, self.struct, self.marcher
        for memory in self.memories:
            memory.configure_run(
                options, errand.parameters, errand.directions, errand.scales, suppress=options.suppress_algebraic
            )
            memory.keep(errand.span[1], np.inf, "steps", errand.t_eval, closed=True, path=errand.keep_path)
        marcher.tell(errand.journey(self.network, s.mode, self._ranges, self._rested), options, errand.parameters)
        s.max_steps, s.watch, s.under_way = options.max_steps, options.method == "auto", 0
        try:
            while (status := self._library.dh_run(byref(s))) == ROWS_FULL:
                if not marcher.make_room():
                    self.memories[marcher.mode].stepper.enlarge()
        finally:
            for memory in self.memories:
                memory.model.raise_pending()
        return self._found(errand) if status == REACHED_STOP else None

    def _found(self, errand: Errand) -> Straight:
        network, marcher, options = self.network, self.marcher, errand.options
        first, own, e = network.equations[self.struct.mode], self.struct.mode, network.equations
        nm, n_p = first.n_memory, first.n_parameters
        start, by_p = _arrival(self._start.copy(), network.sizes[own], len(network.guarded[own]), nm)
        integrals = np.zeros(first.functionals.size)
        sensitive: dict[str, Any] = {}
        by_p = by_p.reshape(n_p, first.n_differential + nm).T
        if errand.directions is not None:
            moved = errand.directions @ by_p.T
            sensitive = {
                "sensitivities": moved[:, : first.n],
                "memory_directions": moved[:, first.n :],
                "integral_sensitivities": np.zeros((self.n_directions, first.functionals.size)),
            }
        task = SegmentTask(
            first, errand.span[0], errand.span[1], start.x[: first.n], start.xdot[: first.n], start.m, integrals,
            np.zeros(first.n_guards), np.zeros(first.n_guards), "steps", errand.t_eval, closed_end=True,
            keep_path=errand.keep_path, **sensitive,
        )  # fmt: skip
        visited = [i for i, station in enumerate(marcher.stations) if station.run]
        leg = None
        if marcher.n_events:
            steppers = {i: self.memories[i].stepper for i in visited}
            paths = {i: stepper.path() for i, stepper in steppers.items()}
            leg = marcher.leg(
                task, own, (start.x, start.xdot), {i: stepper.rows() for i, stepper in steppers.items()},
                {i: path for i, path in paths.items() if path is not None},
                {i: self.memories[i].method for i in visited},
            )  # fmt: skip
        mode = marcher.mode
        last, memory = marcher.task(task), self.memories[mode]
        n, stepper = e[mode].n, memory.stepper
        completed = stepper.completed.copy()
        found = memory.sensitivities if errand.directions is not None else None
        outcome = SegmentOutcome(
            stepper.t, completed[:n], completed[n : 2 * n], None, memory.model.zero_band, memory.method,
            memory.x_data[n : memory.block].copy() if first.integrates else integrals, stepper.rows(marcher.row),
            None if found is None else found[:, :n],
            None if found is None else found[:, n:] if first.integrates else sensitive["integral_sensitivities"],
            path=stepper.path(marcher.path_row),
        )  # fmt: skip
        end, rest = _arrival(self._end.copy(), network.sizes[mode], len(network.guarded[mode]), 0)
        nf, width = first.functionals.size, e[mode].n_differential + nm + n_p + 1
        failures = [a + b for a, b in zip(stepper.failures, marcher.failures, strict=True)]
        counts = {
            "steps": stepper.steps + marcher.steps, "error_test_failures": failures[0], "newton_failures": failures[1],
            "segments": marcher.n_events + 1, **dict(zip(COUNTERS, self.struct.counts, strict=True)),
        }  # fmt: skip
        return Straight(
            start=start, by_p=by_p, leg=leg, mode=mode, task=last, outcome=outcome, end=end._replace(m=last.memory),
            values=rest[:nf], by_w=rest[nf : nf + nf * width].reshape(width, nf).T,
            sizes=rest[nf * (width + 1) : nf * (width + 2)], weights=rest[nf * (width + 2) : nf * (width + 3)],
            statistics=statistics_of(counts), rested=self._rested,
        )  # fmt: skip


def _length(function: Any) -> int:
    return sum(function.numel_out(i) for i in range(function.n_out()))


def _arrival(values: Array, n: int, n_guards: int, n_memory: int) -> tuple[Arrival, Array]:
    """The point at which values begin, and what comes after it."""
    bounds = np.cumsum([n, n_memory, n, n_guards, n_guards, n_guards]).tolist()
    parts = [values[a:b] for a, b in zip([0, *bounds], bounds, strict=False)]
    return Arrival(*parts), values[bounds[-1] :]
