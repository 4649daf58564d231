"""The adjoint of explicit Runge-Kutta steps, and back through plain events: `sweep.c`, its structs mirrored."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, byref, c_int64, c_void_p
from typing import Any

import numpy as np

from dae_hybrid.errors import NonFiniteError
from dae_hybrid.failures import SUSPECTS
from dae_hybrid.integrator import Array, Equations
from dae_hybrid.leg import Leg

from .driver import BLOCKS, Model, compiled
from .march import Marcher
from .runge_kutta import Table


class ExplicitAdjoint(Structure):
    """`explicit_adjoint` of driver.h."""

    _fields_ = [
        ("model", c_void_p),
        ("n_stages", c_int64),
        *((name, c_void_p) for name in ("a", "b", "c")),
        *((name, c_int64) for name in ("n_components", "n_rows", "width")),
        *((name, c_void_p) for name in ("components", "path", "adjoint", "totals", "states", "slopes", "nu", "theta",
                                        "values")),
        ("nonzeros", c_int64),
    ]  # fmt: skip


class SweepStruct(Structure):
    """`sweep` of driver.h."""

    _fields_ = [
        *((name, c_void_p) for name in ("tables", "modes", "paths", "path_ends", "path_begins", "offsets", "records")),
        *((name, c_int64) for name in ("n_events", "n_components", "n_wrt", "marks_width", "failed")),
        *((name, c_void_p) for name in ("wrt", "components", "adjoint", "totals", "marks", "work")),
    ]  # fmt: skip


class DiscreteAdjoint:
    """The adjoint of the steps of one set of equations; needs no memory of SUNDIALS."""

    pool: list[Any]
    not_finite = 0

    def __init__(self, equations: Equations, wrt: tuple[int, ...], table: Table) -> None:
        e = equations
        self.equations, self.table, self.nq = e, table, len(wrt) + e.n_memory
        self.model = Model(e, "ARKode", 0, 0, wrt)
        patterns = [e.functions["linearised"].pattern(2 + i)[1].size for i in range(len(BLOCKS))]
        stages, self._count = table.b.size, 0
        self._work = [np.zeros(n) for n in (e.n, stages * e.n, stages * e.n, e.n, stages * max(sum(patterns), 1))]
        names = ("states", "slopes", "nu", "theta", "values")
        self.struct = ExplicitAdjoint(
            model=self.model.user_data, n_stages=stages, a=table.a.ctypes.data, b=table.b.ctypes.data,
            c=table.c.ctypes.data, width=1 + e.n, nonzeros=sum(patterns),
            **{name: work.ctypes.data for name, work in zip(names, self._work, strict=True)},
        )  # fmt: skip
        self._library = compiled()

    def choose(self, components: tuple[int, ...], parameters: Array) -> None:
        """The functionals' components and the parameters of a sweep."""
        self.model.parameters[:] = parameters
        self.model.reset()
        k, e = len(components), self.equations
        if k != self._count:
            self.adjoint, self.totals, self._count = np.zeros((k, e.n)), np.zeros((k, self.nq)), k
        self._components = np.array(components, dtype=np.int64)
        s = self.struct
        s.n_components, s.components = k, self._components.ctypes.data
        s.adjoint, s.totals = self.adjoint.ctypes.data, self.totals.ctypes.data

    def back(self, path: Array, memory: Array, adjoints: Array) -> int:
        """From the end of a path, with `adjoints` (k, n), to its start; SUNDIALS' return code."""
        self.model.memory[:] = memory
        self.model.reset()
        self.adjoint[:], self.totals[:] = adjoints, 0.0
        self.struct.path, self.struct.n_rows = path.ctypes.data, len(path)
        return int(self._library.dh_back_steps(byref(self.struct)))

    def free(self) -> None:
        """Nothing native is owned."""


def not_finite_derivatives(*, mode: str, time: float) -> NonFiniteError:
    """The error of equations whose derivatives have no numbers."""
    return NonFiniteError(
        "The derivatives of the equations give NaN or infinity.",
        mode=mode,
        time=time,
        remedy=f"Check the mode's equations and integrands before this point for {SUSPECTS}.",
    )


def sweep(
    marcher: Marcher, leg: Leg, modes: dict[int, DiscreteAdjoint], adjoints: Array, wrt: tuple[int, ...],
    components: tuple[int, ...],
) -> tuple[Array, Array, Array]:  # fmt: skip
    """Back through a leg from dG/d(y, m) (k, n_w) after it.

    dG/d(y, m) before it, its share of dG/dp (k, n_wrt), and both, side by side, before every event, the
    shares counted from the end of the leg: (n_events, k, width + n_wrt).
    """
    network, k, n_wrt = leg.network, len(components), len(wrt)
    width = max(e.n + e.n_memory for e in network.equations)
    n_parameters = network.equations[0].n_parameters
    heads = list(leg.heads())
    offsets = np.array([at for at, _, _ in heads], dtype=np.int64)
    ends, begins, reached = np.zeros(len(heads), np.int64), np.zeros(len(heads), np.int64), dict.fromkeys(modes, 0)
    for i, (at, mode, _) in enumerate(heads):
        begins[i], ends[i] = reached[mode], int(leg.records[at + 11])
        reached[mode] = ends[i]
    adjoint, totals = np.zeros((k, width)), np.zeros((k, n_wrt))
    adjoint[:, : adjoints.shape[1]] = adjoints
    marks = np.zeros((len(heads), k, width + n_wrt))
    work, chosen = np.zeros(width + n_parameters + 1), np.array(wrt, dtype=np.int64)
    which = np.array(components, dtype=np.int64)
    count = len(network.equations)
    structs: Any = (POINTER(ExplicitAdjoint) * count)()
    paths: Any = (c_void_p * count)()
    for mode, own in modes.items():
        structs[mode], paths[mode] = ctypes.pointer(own.struct), leg.paths[mode].ctypes.data
    struct = SweepStruct(
        tables=ctypes.addressof(marcher.struct), modes=ctypes.addressof(structs), paths=ctypes.addressof(paths),
        path_ends=ends.ctypes.data, path_begins=begins.ctypes.data, offsets=offsets.ctypes.data,
        records=leg.records.ctypes.data, n_events=len(heads), n_components=k, n_wrt=n_wrt, marks_width=width,
        wrt=chosen.ctypes.data, components=which.ctypes.data, adjoint=adjoint.ctypes.data, totals=totals.ctypes.data,
        marks=marks.ctypes.data, work=work.ctypes.data,
    )  # fmt: skip
    if compiled().dh_sweep(byref(struct)):
        for own in modes.values():
            own.model.raise_pending()
        at, mode, _ = heads[struct.failed]
        raise not_finite_derivatives(mode=network.equations[mode].name, time=float(leg.records[at]))
    first = network.equations[leg.mode]
    return adjoint[:, : first.n + first.n_memory], totals, marks
