"""Cost of a dense, banded or sparse Newton matrix: the measurement behind ``linear_solver="auto"``.

    python benchmarks/linear_solvers.py

One factorisation and eight solutions with it, which is what stiff runs come to, in microseconds, of a tridiagonal
matrix, of a five-point grid and of an arrow; beside them what `dae_hybrid.numerics.factor_structure` estimates, and
what it chooses. Its constants are those of a machine on which the two agreed, but that a dense factorisation takes
longer than the estimate, which is that of a grid, where it fills in more. The time of the nine calls from Python is
taken off.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from ctypes import c_void_p
from typing import Any

import numpy as np
from scipy.sparse import csc_array, diags_array, eye_array, kron

from dae_hybrid.adapters.sundials.library import load
from dae_hybrid.adapters.sundials.linear import SuperLU
from dae_hybrid.numerics import factor_structure as structure

SOLUTIONS = 8


def tridiagonal(n: int) -> Any:
    return diags_array([np.ones(n - 1), -2.0 * np.ones(n), np.ones(n - 1)], offsets=[-1, 0, 1])


def grid(n: int) -> Any:
    side = round(np.sqrt(n))
    return kron(tridiagonal(side), eye_array(side)) + kron(eye_array(side), tridiagonal(side))


def arrow(n: int) -> Any:
    matrix = eye_array(n, format="lil")
    matrix[0, :], matrix[:, 0] = 1.0, 1.0
    return matrix


def microseconds(work: Callable[[], Any]) -> float:
    """The shortest of some times."""
    times = []
    while len(times) < 5 or (sum(times) < 0.2 and len(times) < 200):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return 1e6 * min(times)


def dense_work(matrix: csc_array) -> Callable[[], None]:
    lib, n = load(), matrix.shape[0]
    lib.SUNDlsMat_denseGETRF.argtypes, lib.SUNDlsMat_denseGETRF.restype = (
        [c_void_p, *[ctypes.c_int64] * 2, c_void_p],
        None,
    )
    lib.SUNDlsMat_denseGETRS.argtypes, lib.SUNDlsMat_denseGETRS.restype = (
        [c_void_p, ctypes.c_int64, c_void_p, c_void_p],
        None,
    )
    full, values, right = np.asfortranarray(matrix.toarray()), np.zeros((n, n), order="F"), np.ones(n)
    columns = values.ctypes.data + 8 * n * np.arange(n, dtype=np.intp)
    pivots = np.zeros(n, dtype=np.int64)

    def work() -> None:
        values[:] = full
        lib.SUNDlsMat_denseGETRF(columns.ctypes.data, n, n, pivots.ctypes.data)
        for _ in range(SOLUTIONS):
            lib.SUNDlsMat_denseGETRS(columns.ctypes.data, n, pivots.ctypes.data, right.ctypes.data)

    return work


def other_work(matrix: csc_array, s: structure.Structure) -> Callable[[], None]:
    lib, n, length = load(), s.n, s.stored + s.lower + 1
    values, right, pivots = np.zeros(s.size), np.ones(n), np.zeros(n, dtype=np.int64)
    superlu = SuperLU(s, values, right, incomplete=False) if s.kind == "sparse" else None
    columns = values.ctypes.data + 8 * length * np.arange(n, dtype=np.intp)

    def work() -> None:
        values[:] = 0.0
        values[s.place] = matrix.data
        values[s.diagonal] += 1.0
        if superlu is not None:
            superlu.factor()
            for _ in range(SOLUTIONS):
                superlu.solve()
            return
        lib.SUNDlsMat_bandGBTRF(columns.ctypes.data, n, s.upper, s.lower, s.stored, pivots.ctypes.data)
        for _ in range(SOLUTIONS):
            lib.SUNDlsMat_bandGBTRS(columns.ctypes.data, n, s.stored, s.lower, pivots.ctypes.data, right.ctypes.data)

    return work


def main() -> None:
    calls = microseconds(dense_work(csc_array(eye_array(1))))
    print(f"{'':12}{'n':>8}{'dense':>20}{'band':>20}{'sparse':>20}  chosen       (measured / estimated, us)")
    for name, make in (("tridiagonal", tridiagonal), ("grid", grid), ("arrow", arrow)):
        for n in (9, 16, 25, 49, 100, 196, 400, 900, 2500, 10_000):
            matrix = csc_array(make(n))
            matrix.sort_indices()
            rows, columns = matrix.indices.astype(np.int64), np.repeat(np.arange(n), np.diff(matrix.indptr))
            cells = []
            for kind in ("dense", "band", "sparse"):
                if kind == "dense":
                    estimate, work = structure.dense_cost(n), dense_work(matrix) if n <= 900 else None
                elif kind == "band":
                    s = structure.decide(n, rows, columns, "band")
                    estimate = structure.band_cost(s)
                    work = other_work(matrix, s) if estimate < 1 else None
                else:
                    diagonal = np.arange(n)
                    both = [np.concatenate((part, diagonal)) for part in (rows, columns)]
                    s, fill, products = structure.sparse_structure(structure.Pattern.of(n, *both, n))
                    estimate, work = structure.sparse_cost(fill, products), other_work(matrix, s)
                measured = f"{max(microseconds(work) - calls, 0.0):.1f}" if work else "-"
                cells.append(f"{measured:>9} /{1e6 * estimate:>9.1f}")
            print(f"{name:12}{n:>8}{''.join(cells)}  {structure.decide(n, rows, columns)}")


if __name__ == "__main__":
    main()
