"""Explicit Runge-Kutta methods of ARKODE: their tables, and the data to evaluate states within a step."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_double, c_int, c_void_p
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np

from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.step_polynomial import COEFFICIENTS, NODES, end_derivatives

from .driver import ExplicitStep
from .header import STRUCTS
from .library import load

#: range and resolution of the search for the limit of stability
FARTHEST, PER_UNIT = 100, 100


class _TableStruct(Structure):
    """`ARKodeButcherTableMem` of SUNDIALS."""

    _fields_ = [
        *((name, c_int) for name in ("q", "p", "stages")),
        ("a", POINTER(POINTER(c_double))),
        *((name, POINTER(c_double)) for name in ("c", "b", "d")),
    ]  # fmt: skip


@dataclass(frozen=True, eq=False)
class ButcherTable:
    """Coefficients of one method: a (stages, stages), b, c, d (stages), and SUNDIALS' handle.

    d are the weights of the embedded method.
    """

    name: str
    handle: int
    a: Array
    b: Array
    c: Array
    d: Array

    @classmethod
    @cache
    def of(cls, name: str) -> ButcherTable:
        """Load ARKODE's table of this name; cached."""
        handle = load().ARKodeButcherTable_LoadERKByName(name.encode())
        if not handle:
            raise AssertionError(f"ARKODE has no table {name}")
        table = ctypes.cast(c_void_p(handle), POINTER(_TableStruct)).contents
        stages = range(table.stages)
        a = np.array([[table.a[i][j] for j in stages] for i in stages])
        b, c, d = (np.array([row[i] for i in stages]) for row in (table.b, table.c, table.d))
        return cls(name, handle, a, b, c, d)

    @cached_property
    def reach(self) -> float:
        """Length of the stability interval on the negative real axis."""
        z = -np.arange(1, FARTHEST * PER_UNIT) / PER_UNIT
        growth, power = np.ones_like(z), np.ones_like(self.b)
        for k in range(1, self.b.size + 1):
            growth += (self.b @ power) * z**k
            power = self.a @ power
        return float(-z[np.argmax(np.abs(growth) > 1)])

    @property
    def struct(self) -> Any:
        """`tableau` of declarations.h; tables live as long as the process."""
        return STRUCTS["tableau"](stages=self.b.size, **{key: getattr(self, key).ctypes.data for key in "abcd"})


class RungeKuttaStep:
    """The struct of a memory's last step, with the arrays it points to."""

    def __init__(self, table: ButcherTable, n: int, size: int) -> None:
        self.table = table
        self._nodes = np.ascontiguousarray((NODES + 1) / 2)
        self._to_derivatives = np.ascontiguousarray(end_derivatives())
        self._states = np.zeros((2, size))
        self._work = [np.zeros(table.b.size * size), np.zeros(size + COEFFICIENTS * n)]
        self.struct = ExplicitStep(
            table=table.struct,
            to_derivatives=self._to_derivatives.ctypes.data,
            nodes=self._nodes.ctypes.data,
            size=size,
            begin=self._states[0].ctypes.data,
            end=self._states[1].ctypes.data,
            stages=self._work[0].ctypes.data,
            trial=self._work[1].ctypes.data,
        )
