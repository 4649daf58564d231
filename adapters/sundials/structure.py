"""How Newton's matrix of a set of equations is stored and factorised: decided once, from its structure.

The matrix is that of x alone; see linear.c for what stands behind x.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array, csr_array
from scipy.sparse.csgraph import min_weight_full_bipartite_matching, reverse_cuthill_mckee
from scipy.sparse.linalg import splu

from dae_hybrid.port.integrator import Equations
from dae_hybrid.port.segment_rules import kept

Indices = NDArray[np.int64]

#: below this size nothing is quicker than a dense matrix (measured, as are the costs; benchmarks/linear_solvers.py)
DENSE_BELOW = 12
#: seconds of a factorisation and the solutions that follow it: dense n^3 + n^2; band n, n p (p + q) and n (p + q);
#: sparse once, by entries of L and U and by what is multiplied. Only their ratios matter.
DENSE_COST = (8e-12, 4e-9)
BAND_COST = (60e-9, 0.25e-9, 2e-9)
SPARSE_COST = (60e-6, 60e-9, 0.4e-9)
#: up to so many products to an entry of the factors a sparse matrix is factorised entry by entry, in compiled code
FEW_PRODUCTS = 50.0
#: a quicker way has to be so much quicker than the dense one
WORTH = 0.9


@dataclass(frozen=True)
class Structure:
    """Where the entries of F_x, of the diagonal, of the equations and of the unknowns stand in what is factorised.

    Entry k of F_x is number `place[k]` of the values, that of row and column i on the diagonal number `diagonal[i]`,
    for the differential equations; equation `equations[i]` and unknown `order[i]` come as number i. A band stores its
    columns one after the other, with room for what pivoting fills in; a sparse matrix has its column pointers and row
    indices.
    """

    kind: str  # "dense", "band", "sparse" or "krylov"
    n: int
    place: Indices
    diagonal: Indices
    order: Indices
    equations: Indices
    size: int = 0
    upper: int = 0
    lower: int = 0
    pointers: NDArray[np.int32] | None = None
    rows: NDArray[np.int32] | None = None
    room: int = 0  # entries of the factors; zero where they have so many that dense blocks of them are worth while

    @property
    def stored(self) -> int:
        """Upper bandwidth of the factorised matrix, with what pivoting fills in."""
        return min(self.n - 1, self.upper + self.lower)

    def __str__(self) -> str:
        return f"band, {self.lower} below and {self.upper} above" if self.kind == "band" else self.kind


def structure_of(equations: Equations, *, backward: bool, wanted: str) -> Structure:
    """The structure of the equations' Newton matrix, backwards that of the adjoint; made once.

    `wanted` is an option's value: "auto" takes the one that costs least.
    """

    def make() -> Structure:
        pointers, rows = equations.functions["linearised"].pattern(2)  # F_x
        columns = np.repeat(np.arange(equations.n), np.diff(pointers))
        row, column = (columns, rows) if backward else (rows, columns)
        return decide(equations.n, row, column, wanted, differential=equations.n_differential)

    found: Structure = kept(equations, ("structure", backward, wanted), make)
    return found


def by_columns(equations: Equations) -> Structure:
    """A dense matrix, column by column."""
    pointers, rows = equations.functions["linearised"].pattern(2)
    n, all_of = equations.n, np.arange(equations.n)
    place = rows + n * np.repeat(all_of, np.diff(pointers))
    diagonal = all_of[: equations.n_differential] * (n + 1)
    return Structure("dense", n, place, diagonal, all_of, all_of, size=n * n)


def decide(
    n: int, rows: Indices, columns: Indices, wanted: str = "auto", *, differential: int | None = None
) -> Structure:
    """The structure for a pattern given by the rows and columns of its entries.

    The first `differential` equations, all by default, have an entry on the diagonal besides.
    """
    if wanted == "dense" or (wanted == "auto" and n < DENSE_BELOW):
        return _dense(n)
    diagonal = np.arange(n if differential is None or wanted == "krylov" else differential)
    pattern = Pattern.of(n, np.concatenate((rows, diagonal)), np.concatenate((columns, diagonal)), diagonal.size)
    banded = _band(pattern)
    if wanted == "band":
        return banded
    if wanted in ("sparse", "krylov"):
        return replace(sparse_structure(pattern)[0], kind=wanted)
    cost, best = WORTH * dense_cost(n), _dense(n)
    if (narrow := band_cost(banded)) < cost:
        cost, best = narrow, banded
    if sparse_cost(len(rows) + n, 0.0) < cost:
        found, fill, products = sparse_structure(pattern)
        if sparse_cost(fill, products) < cost:
            return found
    return best


@dataclass(frozen=True)
class Pattern:
    """Entries of a square matrix, the last `diagonal` of them those that F_x lacks on its diagonal.

    Each equation has an unknown of its own, by whose number `rows` count it: entries are on the diagonal, then, and
    next to it where equations use few unknowns. Equation `equations[j]` is that of unknown j.
    """

    n: int
    rows: Indices
    columns: Indices
    diagonal: int
    equations: Indices

    @classmethod
    def of(cls, n: int, rows: Indices, columns: Indices, diagonal: int) -> Pattern:
        """Equations keep their own number where it is among their unknowns; all do where the matrix is singular."""
        keys = np.unique(rows * n + columns)
        row, column = keys // n, keys % n
        unknown = np.arange(n)
        if np.count_nonzero(row == column) < n:
            weights = csr_array((np.where(row == column, 1.0, 2.0), (row, column)), shape=(n, n))
            with suppress(ValueError):
                unknown = min_weight_full_bipartite_matching(weights)[1]
        equations = np.argsort(unknown)
        return cls(n, unknown[rows].astype(np.int64), columns, diagonal, equations.astype(np.int64))

    def structure(self, kind: str, place: Indices, order: Indices, **stored: Any) -> Structure:
        """By the places of all entries."""
        split = len(place) - self.diagonal
        place = place.astype(np.int64)
        return Structure(kind, self.n, place[:split], place[split:], order, self.equations[order], **stored)


def dense_cost(n: int) -> float:
    """Estimated seconds."""
    return DENSE_COST[0] * n**3 + DENSE_COST[1] * n**2


def band_cost(s: Structure) -> float:
    """Estimated seconds."""
    width = s.lower + s.stored
    return s.n * (BAND_COST[0] + BAND_COST[1] * s.lower * width + BAND_COST[2] * width)


def sparse_cost(fill: float, products: float) -> float:
    """Estimated seconds for so many entries of L and U and so many products."""
    return SPARSE_COST[0] + SPARSE_COST[1] * fill + SPARSE_COST[2] * products


def _dense(n: int) -> Structure:
    return Structure("dense", n, *(np.zeros(0, dtype=np.int64),) * 4)


def _bandwidths(rows: Indices, columns: Indices) -> tuple[int, int]:
    return int((rows - columns).max(initial=0)), int((columns - rows).max(initial=0))


def _band(pattern: Pattern) -> Structure:
    """As it stands, or in the order of Cuthill and McKee where that is narrower."""
    n, rows, columns = pattern.n, pattern.rows, pattern.columns
    order = np.arange(n)
    lower, upper = _bandwidths(rows, columns)
    if lower + upper > 2:
        entries = csc_array((np.ones(len(rows), dtype=np.int8), (rows, columns)), shape=(n, n)).tocsr()
        tried = reverse_cuthill_mckee(entries, symmetric_mode=False).astype(np.int64)
        position = np.argsort(tried)
        narrow = _bandwidths(position[rows], position[columns])
        if sum(narrow) < lower + upper:
            (lower, upper), order = narrow, tried
            rows, columns = position[rows], position[columns]
    stored = min(n - 1, upper + lower)
    length = stored + lower + 1
    place = columns * length + stored + rows - columns
    return pattern.structure("band", place, order, size=n * length, upper=upper, lower=lower)


def sparse_structure(pattern: Pattern) -> tuple[Structure, float, float]:
    """In the order that fills in less, with how much it fills in and how much is multiplied; for most values."""
    n, rows, columns = pattern.n, pattern.rows, pattern.columns
    trial = _trial(n, rows, columns)
    best: Any = None
    for ordering in ("COLAMD", "MMD_AT_PLUS_A"):
        factors = splu(trial, permc_spec=ordering)
        fill = float(factors.nnz)
        if best is None or fill < best[0]:
            below, across = np.diff(factors.L.indptr).astype(float), np.bincount(factors.U.indices, minlength=n)
            best = fill, float(below @ across), factors.perm_c.astype(np.int64)
        if ordering == "COLAMD" and _has_full_rows(n, rows, columns):
            break  # minimum degree takes for ever over these
    fill, products, position = best
    unique, place = np.unique(position[columns] * n + position[rows], return_inverse=True)
    counts = np.bincount(unique // n, minlength=n)
    structure = pattern.structure(
        "sparse", place, np.argsort(position), size=len(unique),
        pointers=np.concatenate(([0], np.cumsum(counts))).astype(np.int32), rows=(unique % n).astype(np.int32),
        room=int(fill) + n if products <= FEW_PRODUCTS * fill else 0,
    )  # fmt: skip
    return structure, fill, products


def _has_full_rows(n: int, rows: Indices, columns: Indices) -> bool:
    most = max(np.bincount(rows, minlength=n).max(initial=0), np.bincount(columns, minlength=n).max(initial=0))
    return bool(most > 10 * np.sqrt(n))


def _trial(n: int, rows: Indices, columns: Indices) -> Any:
    """A regular matrix of the pattern; as regular as rows without a diagonal entry would be with some."""
    random = np.random.default_rng(0)
    values = random.uniform(-1.0, 1.0, len(rows))
    matrix = csc_array((values, (rows, columns)), shape=(n, n))
    weight = abs(matrix).sum(axis=1) + 1.0
    return csc_array(matrix + csc_array((weight, (np.arange(n), np.arange(n))), shape=(n, n)))
