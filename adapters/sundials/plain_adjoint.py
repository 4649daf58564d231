"""The adjoint of a whole run in compiled code: `plain.c`, its struct mirrored, with the work arrays it needs."""

from __future__ import annotations

import ctypes
from collections import Counter
from ctypes import POINTER, Structure, byref, c_double, c_int64, c_void_p
from typing import Any

import numpy as np

from dae_hybrid.integrator import Tolerances
from dae_hybrid.journey import Errand, Network, Straight, StraightAdjoint
from dae_hybrid.options import Options

from .driver import loops, statistics_of
from .march import Marcher
from .runge_kutta import Table, order_of
from .sweep import DiscreteAdjoint, ExplicitAdjoint, SweepStruct


class PlainAdjoint(Structure):
    """`plain_adjoint` of driver.h."""

    _fields_ = [
        *((name, c_void_p) for name in ("back", "final", "slots", "path_rows", "by_p", "by_w", "sizes_end",
                                        "weights_end", "integrals", "memory", "rates_begin", "rates_end", "extent",
                                        "costs")),
        *((name, c_int64) for name in ("n_modes", "n_slots", "widest", "first", "last", "path_row")),
        ("moved", c_double),
    ]  # fmt: skip


class Returner:
    """Tables and work for the adjoints of a network's whole runs by some parameters; used by one at a time."""

    def __init__(self, network: Network, options: Options, wrt: tuple[int, ...], components: tuple[int, ...]) -> None:
        ends, e, k = network.ends, network.equations, len(components)
        if ends is None:
            raise AssertionError("the network has neither a start nor an end")
        self.network, self.wrt, self.components = network, wrt, components
        self.marcher = Marcher(network, 0)
        self.own = [DiscreteAdjoint(mode, wrt, Table.of(order_of(options))) for mode in e]
        slots = {name: i for i, name in enumerate(dict.fromkeys(n for mode in e for n in mode.variables.labels()))}
        self._widest, nm, nf = max(mode.n for mode in e), e[0].n_memory, e[0].functionals.size
        self._slots = np.zeros((len(e), self._widest), np.int64)
        for row, mode in zip(self._slots, e, strict=True):
            row[: mode.n] = [slots[label] for label in mode.variables.labels()]
        self._tolerances = [Tolerances(np.zeros((k, m.n)), np.zeros((k, len(wrt) + nm)), options.rtol) for m in e]
        self._modes: Any = (POINTER(ExplicitAdjoint) * len(e))()
        self._final: Any = (c_void_p * len(e))(*(f.address for f in ends.final))
        self._paths: Any = (c_void_p * len(e))()
        self._path_rows, self.width = np.zeros(len(e), np.int64), self._widest + nm
        self._given = [np.array(v, dtype=np.int64) for v in (wrt, components)]
        self._adjoint, self._totals = np.zeros((k, self.width)), np.zeros((k, len(wrt)))
        self._work = [np.zeros(size) for size in (self.width + e[0].n_parameters + 1, len(slots) + nm, k + 2 * nf)]
        wanted, chosen = (v.ctypes.data for v in self._given)
        self.sweep = SweepStruct(
            tables=ctypes.addressof(self.marcher.struct), modes=ctypes.addressof(self._modes),
            paths=ctypes.addressof(self._paths), n_components=k, n_wrt=len(wrt), marks_width=self.width, wrt=wanted,
            components=chosen, adjoint=self._adjoint.ctypes.data, totals=self._totals.ctypes.data,
            work=self._work[0].ctypes.data,
        )  # fmt: skip
        self.struct = PlainAdjoint(
            back=ctypes.addressof(self.sweep), final=ctypes.addressof(self._final), slots=self._slots.ctypes.data,
            path_rows=self._path_rows.ctypes.data, extent=self._work[1].ctypes.data, costs=self._work[2].ctypes.data,
            n_modes=len(e), n_slots=len(slots), widest=self._widest, first=ends.mode,
        )  # fmt: skip
        self._library = loops()

    def run(self, errand: Errand, found: Straight) -> StraightAdjoint | None:
        """The adjoint of a run; None where its steps do not carry it."""
        (leg, task, outcome), last, options = found.pieces, found.mode, errand.options
        paths = {last: outcome.path} if leg is None else leg.paths
        if outcome.path is None or any(mode not in paths for mode in ({} if leg is None else leg.methods)):
            return None
        count = 0 if leg is None else leg.count
        for mode, own in enumerate(self.own):
            path = paths.get(mode)
            self._modes[mode] = None
            if path is not None:
                own.choose(self.components, errand.parameters, self._tolerances[mode], options.max_steps)
                own.model.forget_counts()
                self._modes[mode] = ctypes.pointer(own.struct)
            self._paths[mode], self._path_rows[mode] = (None, 0) if path is None else (path.ctypes.data, len(path))
        marks = np.empty((count, len(self.components), self.width + len(self.wrt)))
        self.marcher.tell(errand.journey(self.network, last, np.zeros(0), np.zeros(0, np.int64)), options, errand.parameters)
        sweep, s = self.sweep, self.struct
        sweep.n_events, sweep.begin, sweep.marks = count, errand.span[0], marks.ctypes.data
        if leg is not None:
            sweep.offsets, sweep.records = leg.offsets.ctypes.data, leg.records.ctypes.data
        given = {
            "by_p": found.by_p.T, "by_w": found.by_w.T, "sizes_end": found.sizes, "weights_end": found.weights,
            "integrals": outcome.integrals, "memory": task.memory, "rates_begin": task.xdot0, "rates_end": outcome.xdot,
        }  # fmt: skip
        for name, values in given.items():
            setattr(s, name, values.ctypes.data)
        s.last, s.moved = last, outcome.t - task.t0
        s.path_row = self._path_rows[last] - len(outcome.path)
        try:
            flag = self._library.dh_run_back(byref(s))
        finally:
            for own in self.own:
                own.model.raise_pending()
        if flag:
            return None
        used = [own for own, pointer in zip(self.own, self._modes, strict=True) if pointer]
        counts = Counter(segments=count + 1)
        for own in used:
            counts.update(own.model.counters(), steps=own.struct.steps)
        return StraightAdjoint(self._totals.copy(), marks, self.width, statistics_of(counts))
