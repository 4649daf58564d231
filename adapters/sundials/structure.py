"""The storage and factorisation of Newton's matrix for a set of equations.

The matrix is that of x alone; see linear.c for the components after x.
"""

from __future__ import annotations

import numpy as np

from dae_hybrid.numerics.factor_structure import Structure, decide
from dae_hybrid.port.integrator import Equations
from dae_hybrid.port.segment_rules import cached


def structure_of(equations: Equations, *, backward: bool, wanted: str) -> Structure:
    """Return the structure of the equations' Newton matrix, or of the adjoint's if `backward`; cached.

    `wanted` is the value of an option; "auto" selects the cheapest.
    """

    def make() -> Structure:
        pointers, rows = equations.functions["linearised"].pattern(2)  # F_x
        columns = np.repeat(np.arange(equations.n), np.diff(pointers))
        row, column = (columns, rows) if backward else (rows, columns)
        return decide(equations.n, row, column, wanted, differential=equations.n_differential)

    found: Structure = cached(equations, ("structure", backward, wanted), make)
    return found


def by_columns(equations: Equations) -> Structure:
    """A dense matrix, column by column."""
    pointers, rows = equations.functions["linearised"].pattern(2)
    n, all_of = equations.n, np.arange(equations.n)
    place = rows + n * np.repeat(all_of, np.diff(pointers))
    diagonal = all_of[: equations.n_differential] * (n + 1)
    return Structure("dense", n, place, diagonal, all_of, all_of, size=n * n)
