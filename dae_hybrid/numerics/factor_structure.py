"""Choose the storage and factorisation of a square matrix from the pattern of its entries."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array, csr_array
from scipy.sparse.csgraph import min_weight_full_bipartite_matching, reverse_cuthill_mckee
from scipy.sparse.linalg import splu

Indices = NDArray[np.int64]

#: below this size a dense matrix is fastest (measured, as are the costs; benchmarks/linear_solvers.py)
DENSE_BELOW = 12
#: seconds per factorisation and the solves that follow: dense n^3 + n^2; band n, n p (p + q) and n (p + q);
#: sparse constant, entries of L and U, and multiplications. Only their ratios matter.
DENSE_COST = (8e-12, 4e-9)
BAND_COST = (60e-9, 0.25e-9, 2e-9)
SPARSE_COST = (60e-6, 60e-9, 0.4e-9)
#: largest number of multiplications per entry of the factors for the compiled sparse factorisation
FEW_PRODUCTS = 50.0
#: another kind of matrix must cost less than this share of the dense one
MAX_COST_RATIO = 0.9


@dataclass(frozen=True)
class Structure:
    """Positions of the entries, the diagonal, the equations and the unknowns in the factorised matrix.

    Entry k is value `place[k]`, an additional entry on the diagonal of row i is value `diagonal[i]`; equation
    `equations[i]` and unknown `order[i]` are number i. A band is stored by columns, with room for the fill-in of
    pivoting; a sparse matrix has column pointers and row indices.
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
    room: int = 0  # capacity for entries of the factors; zero if they are so full that a supernodal method is faster

    @property
    def stored(self) -> int:
        """Upper bandwidth of the factorised matrix, including the fill-in of pivoting."""
        return min(self.n - 1, self.upper + self.lower)

    def __str__(self) -> str:
        return f"band, {self.lower} below and {self.upper} above" if self.kind == "band" else self.kind


def decide(
    n: int, rows: Indices, columns: Indices, wanted: str = "auto", *, differential: int | None = None
) -> Structure:
    """Choose the structure for a pattern given by the rows and columns of its entries.

    The first `differential` equations, by default all, have an additional entry on the diagonal.
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
    cost, best = MAX_COST_RATIO * dense_cost(n), _dense(n)
    if (narrow := band_cost(banded)) < cost:
        cost, best = narrow, banded
    if sparse_cost(len(rows) + n, 0.0) < cost:
        found, fill, products = sparse_structure(pattern)
        if sparse_cost(fill, products) < cost:
            return found
    return best


@dataclass(frozen=True)
class Pattern:
    """Entries of a square matrix; the last `diagonal` of them are additional entries on the diagonal.

    Each equation is matched with an unknown, whose number replaces the row's: entries are then on the diagonal, and
    close to it if equations use few unknowns. Equation `equations[j]` is matched with unknown j.
    """

    n: int
    rows: Indices
    columns: Indices
    diagonal: int
    equations: Indices

    @classmethod
    def of(cls, n: int, rows: Indices, columns: Indices, diagonal: int) -> Pattern:
        """Match equations with unknowns, preferring their own number; keep the order if the matrix is singular."""
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
        """Build the structure from the positions of all entries."""
        split = len(place) - self.diagonal
        place = place.astype(np.int64)
        return Structure(kind, self.n, place[:split], place[split:], order, self.equations[order], **stored)


def dense_cost(n: int) -> float:
    """Estimated cost in seconds."""
    return DENSE_COST[0] * n**3 + DENSE_COST[1] * n**2


def band_cost(s: Structure) -> float:
    """Estimated cost in seconds."""
    width = s.lower + s.stored
    return s.n * (BAND_COST[0] + BAND_COST[1] * s.lower * width + BAND_COST[2] * width)


def sparse_cost(fill: float, products: float) -> float:
    """Estimated cost in seconds, given the entries of L and U and the multiplications."""
    return SPARSE_COST[0] + SPARSE_COST[1] * fill + SPARSE_COST[2] * products


def _dense(n: int) -> Structure:
    return Structure("dense", n, *(np.zeros(0, dtype=np.int64),) * 4)


def _bandwidths(rows: Indices, columns: Indices) -> tuple[int, int]:
    return int((rows - columns).max(initial=0)), int((columns - rows).max(initial=0))


def _band(pattern: Pattern) -> Structure:
    """Band structure, in Cuthill-McKee order if that is narrower."""
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
    """Structure with the less filling of two orderings, with its fill and multiplications."""
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
            break  # minimum degree is very slow for these
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
    """A nonsingular sample matrix with the pattern."""
    random = np.random.default_rng(0)
    values = random.uniform(-1.0, 1.0, len(rows))
    matrix = csc_array((values, (rows, columns)), shape=(n, n))
    weight = abs(matrix).sum(axis=1) + 1.0
    return csc_array(matrix + csc_array((weight, (np.arange(n), np.arange(n))), shape=(n, n)))
