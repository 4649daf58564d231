"""Compiled sparse LU factorisation, shared by the adapters: its C text, and the storage of the factors."""

from __future__ import annotations

import ctypes
from functools import cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.codegen.c_declarations import declarations


@cache
def source() -> str:
    """Return the C text, which declares `sparse_lu`, `factorise_sparse` and the solutions with the factors."""
    return files("dae_hybrid.codegen").joinpath("native", "sparse_lu.c").read_text()


#: a diagonal pivot is kept down to this share of the column's largest entry (measured on chains of bodies: with 0.1 the
#: factors of an adjoint lose their digits at 50 bodies, with 0.5 at 100)
PIVOT = 0.5
CONSTANTS, STRUCTS = declarations(source())
SparseLU: Any = STRUCTS["sparse_lu"]


class SparseFactors:
    """The storage of one factorisation; `struct` is the struct `sparse_lu`.

    Parameters
    ----------
    pointers, rows : arrays of int32
        Pattern of the matrix, in compressed columns.
    room : int
        Capacity for entries of L and of U, each.
    keeps : float
        A diagonal pivot is kept down to this share of the column's largest entry, by default `PIVOT`.
    """

    def __init__(self, pointers: NDArray[np.int32], rows: NDArray[np.int32], room: int, keeps: float = PIVOT) -> None:
        n = len(pointers) - 1
        integers = {"l_column": n + 1, "u_column": n + 1, "l_row": room, "u_row": room, "pivot": n, "work": 3 * n}
        self._arrays: dict[str, Any] = {name: np.zeros(size, dtype=np.int64) for name, size in integers.items()}
        self._arrays |= {name: np.zeros(size) for name, size in (("l_value", room), ("u_value", room), ("x", n))}
        self._arrays |= {"column": pointers, "row": rows}
        addresses = {name: array.ctypes.data for name, array in self._arrays.items()}
        self.struct = SparseLU(n=n, room=room, keeps=keeps, **addresses)

    @property
    def address(self) -> int:
        """Address of the struct."""
        return ctypes.addressof(self.struct)
