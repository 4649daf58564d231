"""Adjoints of explicit Runge-Kutta steps, and the backward sweep through native events: the structs of `sweep.c`."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import POINTER, byref, c_void_p
from typing import Any

import numpy as np

from dae_hybrid.method import POINT_COLUMNS
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.failure_messages import not_finite_derivatives
from dae_hybrid.port.integrator import Equations, Tolerances
from dae_hybrid.port.native_plan import TableAdjoint
from dae_hybrid.port.record_table import RecordTable

from .adjoint import Adjoint
from .backend import raise_first
from .compiled import EquationCallbacks
from .driver import BLOCKS, loops
from .header import CONSTANTS, STRUCTS
from .native_loop import NativeLoop
from .runge_kutta import ButcherTable

PARTS, UNRESOLVED = CONSTANTS["PARTS"], CONSTANTS["UNRESOLVED"]
ExplicitAdjoint, SweepStruct = STRUCTS["explicit_adjoint"], STRUCTS["sweep"]


class DiscreteAdjoint:
    """The discrete adjoint of one set of equations; needs no SUNDIALS memory."""

    pool: list[Any]
    not_finite = 0

    def __init__(self, equations: Equations, wrt: tuple[int, ...], table: ButcherTable) -> None:
        e = equations
        self.equations, self.table, self.nq = e, table, len(wrt) + e.n_memory
        self.model = EquationCallbacks(e, "ARKode", 0, 0, wrt)
        patterns = [e.functions["linearised"].pattern(2 + i)[1].size for i in range(len(BLOCKS))]
        stages, self._count = table.b.size, 0
        nonzeros = self.model.context.n_tape + e.n if self.model.uses_products else sum(patterns)
        products = (stages * self.model.context.n_product, e.n_parameters + e.n_memory)
        sizes = (e.n, stages * e.n, stages * max(nonzeros, 1), (PARTS + 1) * e.n, *products)
        self._work = [np.zeros(size) for size in sizes]
        names = ("states", "slopes", "values", "middle", "products", "sum")
        self.struct = ExplicitAdjoint(
            model=self.model.user_data, table=table.struct, width=POINT_COLUMNS + e.n, nonzeros=nonzeros,
            **{name: work.ctypes.data for name, work in zip(names, self._work, strict=True)},
        )  # fmt: skip
        self._library = loops()

    def choose(self, components: tuple[int, ...], parameters: Array, tolerances: Tolerances, max_steps: int) -> None:
        """Set the components of functionals, parameters, tolerances and step limit of a sweep."""
        self.model.parameters[:] = parameters
        self.model.reset()
        k, e = len(components), self.equations
        if k != self._count:
            self.adjoint, self.totals, self._count = np.zeros((k, e.n)), np.zeros((k, self.nq)), k
            sizes = (self.table.b.size * e.n, e.n, e.n + self.nq)
            self._lanes = [np.zeros(2 * k * size) for size in sizes]
        self._components = np.array(components, dtype=np.int64)
        s = self.struct
        s.n_components, s.components = k, self._components.ctypes.data
        self._tolerances = tuple(np.ascontiguousarray(v) for v in (tolerances.absolute, tolerances.integrals))
        s.absolute, s.absolute_totals = (v.ctypes.data for v in self._tolerances)
        s.adjoint, s.totals = self.adjoint.ctypes.data, self.totals.ctypes.data
        s.nu, s.theta, s.found = (work.ctypes.data for work in self._lanes)
        s.steps, s.max_steps, s.rtol = 0, max_steps, tolerances.rtol

    def back(self, path: Array, memory: Array, adjoints: Array) -> int:
        """Run from the end of a path, with `adjoints` (k, n), to its start; return SUNDIALS' code."""
        self.model.memory[:] = memory
        self.model.reset()
        self.adjoint[:], self.totals[:] = adjoints, 0.0
        self.struct.path, self.struct.n_rows = path.ctypes.data, len(path)
        return int(self._library.dh_back_steps(byref(self.struct)))

    def free(self) -> None:
        """Nothing native is owned."""


class TableSweep:
    """The adjoint swept backward through a record table.

    `discrete` holds the modes with explicit steps; other modes have one memory per component in `integrated`.
    """

    def __init__(
        self, loop: NativeLoop, table: RecordTable, discrete: dict[int, DiscreteAdjoint], integrated: dict[int,
        list[Adjoint]], wrt: tuple[int, ...], components: tuple[int, ...], *, at_events: bool,
    ) -> None:  # fmt: skip
        self.at_events: Array | None
        self.table, self.wrt, self.components = table, wrt, components
        self._discrete, self._integrated, self._marcher = discrete, integrated, loop
        e, k, count = table.graph.equations, len(components), len(table.graph.equations)
        self.width = table.width
        self._wrt, self._components = (np.array(v, dtype=np.int64) for v in (wrt, components))
        self.adjoint, self.at_events = np.zeros((k, self.width)), None
        if at_events:
            self.at_events = np.zeros((table.count, k, self.width + len(wrt)))
        longest = max((len(path) for path in table.paths.values()), default=0)
        self._work, self._longest = np.zeros(3 * self.width + e[0].n_parameters + 1), np.zeros(longest)
        self._modes: Any = (POINTER(ExplicitAdjoint) * count)()
        self._memories: Any = (c_void_p * (count * k))()
        self._paths: Any = (c_void_p * count)()
        for mode, path in table.paths.items():
            self._paths[mode] = path.ctypes.data
        for mode, own in discrete.items():
            self._modes[mode] = ctypes.pointer(own.struct)
        for mode, memories in integrated.items():
            for j, memory in enumerate(memories):
                memory.model.set_path(table.paths[mode], components[j])
                memory.loop.run.max_step = memory.options.max_step or np.inf
                self._memories[mode * k + j] = ctypes.addressof(memory.loop.run)

    def run(
        self,
        adjoints: Array,
        total: Array,
        measured: Array,
        sides: Mapping[int, Array],
        precision: float,
        max_steps: int,
    ) -> tuple[TableAdjoint | None, int]:
        """Sweep from dG/d(y, m) (k, n_w) at the end and dG/dp; return None if an integration fails, and its steps.

        `precision` is that of the adjoints at the start of an integration, `measured` the contributions of
        measurements, `sides` those after and before events, by record.
        """
        sided = np.full(self.table.count, -1, dtype=np.int64)
        sided[list(sides)] = np.arange(len(sides))
        gained = np.array(list(sides.values()))
        self.adjoint[:, : adjoints.shape[1]], totals = adjoints, total.copy()
        addresses = {
            name: value.ctypes.data for name, value in (
                ("offsets", self.table.offsets), ("records", self.table.records), ("wrt", self._wrt),
                ("components", self._components), ("adjoint", self.adjoint), ("totals", totals),
                ("measured", measured), ("work", self._work), ("longest", self._longest),
            )
        }  # fmt: skip
        struct = SweepStruct(
            tables=ctypes.addressof(self._marcher.struct), modes=ctypes.addressof(self._modes),
            integrated=ctypes.addressof(self._memories), paths=ctypes.addressof(self._paths),
            n_events=self.table.count, n_measured=len(measured), n_components=len(self.components), n_wrt=len(self.wrt),
            marks_width=self.width, marks=None if self.at_events is None else self.at_events.ctypes.data,
            sided=sided.ctypes.data if sides else None, sides=gained.ctypes.data if sides else None,
            begin=self.table.task.t0, precision=2.0 ** np.floor(-np.log2(precision)), steps=0, max_steps=max_steps,
            **addresses,
        )  # fmt: skip
        flag = loops().dh_sweep(byref(struct))
        models = [own.model for own in self._discrete.values()]
        models += [memory.model for memories in self._integrated.values() for memory in memories]
        for model in models:
            model.leave()
        raise_first(*models)
        e = self.table.graph.equations
        if flag:
            mode = int(self.table.column("mode")[struct.failed])
            if mode in self._integrated or flag == UNRESOLVED:
                return None, struct.steps
            raise not_finite_derivatives(mode=e[mode].name, time=float(self.table.column("time")[struct.failed]))
        before = self.adjoint[:, : e[self.table.mode].n_differential + e[self.table.mode].n_memory]
        steps = struct.steps + sum(own.struct.steps for own in self._discrete.values())
        return TableAdjoint(before, totals, self.at_events, self.width), steps
