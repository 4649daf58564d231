"""Bring M of M y' = f to echelon form by row operations: rates that M determines, and equations without rates.

A regular row operation T keeps the solutions of M y' = f. Rows of T M that vanish leave algebraic equations, 0 = T f.
The others, [I C] after a permutation of the columns, are the rates of the combinations y_1 + C y_2, which become the
states if C is constant between transitions. The rank is that of all sampled values: one that changes along a run is a
singularity, which the run reports.

In a block of M that varies, M_1 (y_1 + C y_2)' = f with M_1 of full column rank may be kept without row operations,
whose pivots may vanish where the rank does not change; so may a large constant block, whose inverse is full. The rates
stay unknowns then. This serves if f and constraints determine the other variables (index 1 or 2); otherwise rows
without rates have to be found, which are constraints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import casadi as ca
import numpy as np
from scipy.sparse.csgraph import connected_components

from dae_hybrid.codegen.casadi_tools import expanded
from dae_hybrid.compile.dependence import MIN_SAMPLES
from dae_hybrid.compile.mass_samples import sampled
from dae_hybrid.errors import FormulationError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.statement.discontinuities import are_smooth

#: a difference smaller than this multiple of its operands, at all samples, is zero
CANCELLATION = 1e-12
#: digits after the point of constant factors; the first that serve are taken
DIGITS = (6, 9, 12)
#: largest blocks of M that are inverted, with constant entries and with parameters
MAX_INVERTED, MAX_INVERTED_SYMBOLS = 16, 3
#: largest singular block of M that is not constant
MAX_SINGULAR_SYMBOLS = 32

#: factors by index of a row or column, each a number or an expression
Weights = dict[int, Any]


@dataclass
class MassStructure:
    """Equations equivalent to M y' = f.

    Attributes
    ----------
    states : list of (columns, rows)
        ``(sum of columns y)' = sum of rows f``; the first column has the factor 1.
    rates : list of columns
        ``(sum of columns y)'`` that stay unknowns. The column of M with the factor 1, the first one, multiplies it.
    implicit : list of rows
        ``sum of rows (M y' - f) = 0``.
    algebraic : list of rows
        ``0 = sum of rows f``.
    needs_index_1 : bool
        Whether rows without rates may be hidden in `implicit`.
    """

    states: list[tuple[Weights, Weights]] = field(default_factory=list)
    rates: list[Weights] = field(default_factory=list)
    implicit: list[Weights] = field(default_factory=list)
    algebraic: list[Weights] = field(default_factory=list)
    needs_index_1: bool = False


@dataclass(frozen=True)
class _Entries:
    """The entries of M: numbers or expressions, and values at sample points (samples, n, n), far ones last."""

    values: Any  # object array
    samples: Array
    near: int  # number of samples that are not far
    nonzero: Any  # bool array
    moving: Any  # bool array: entries that may change between transitions
    smooth: bool

    def block(self, rows: Sequence[int], columns: Sequence[int]) -> tuple[Any, Array]:
        values = self.values[np.ix_(rows, columns)]
        if all(isinstance(v, float) for v in values.flat):
            values = values.astype(float)
        return values, self.samples[:, rows, :][:, :, columns]


def mass_structure(
    mode: str,
    matrix: ca.MX,
    parameters: dict[int, Array],
    labels: Sequence[str],
    columns: Sequence[str],
    *,
    index_1: bool,
) -> MassStructure:
    """Split M into blocks that share no row and no column, and reduce each.

    Parameters
    ----------
    mode : str
        Name of the mode, for errors.
    matrix : MX, shape (n, n)
    parameters : dict
        Nominal values of the parameters by hash of their symbols.
    labels, columns : sequence of str
        Labels of the equations and of the entries of y.
    index_1 : bool
        Combine the columns of blocks that vary instead of their rows where that is possible.

    Raises
    ------
    FormulationError
        A singular block is too large to be reduced, or the matrix is not finite.
    """
    entries, n, found = _entries(mode, matrix, parameters), matrix.shape[0], MassStructure()
    graph = np.block([[np.zeros((n, n)), entries.nonzero], [np.zeros((n, n)), np.zeros((n, n))]])
    count, part = connected_components(graph, directed=False)
    for k in range(count):
        rows, own = np.flatnonzero(part[:n] == k).tolist(), np.flatnonzero(part[n:] == k).tolist()
        if not own:  # no entry of M: an algebraic equation; a column without one is an algebraic variable
            found.algebraic.append({rows[0]: 1.0})
        elif rows and not _reduce(found, entries, rows, own, index_1=index_1):
            _refuse(mode, [labels[i] for i in rows], [columns[j] for j in own])
    return found


def _refuse(mode: str, rows: Sequence[str], columns: Sequence[str]) -> None:
    raise FormulationError(
        f"{', '.join(rows[:4])}, ...: {len(rows)} rows of the mass matrix are coupled, singular and not constant.",
        mode=mode,
        variables=list(columns),
        remedy="Declare the combinations of variables whose rates occur (in a circuit, the charges or the voltages "
        "across its capacitors) as differential variables and the others as algebraic ones, with ode= and algebraic=.",
    )


def without_zeros(matrix: ca.MX) -> ca.MX:
    """A constant matrix with its nonzeros only; any other is unchanged."""
    return ca.MX(ca.sparsify(matrix.to_DM())) if matrix.is_constant() else matrix


def _entries(mode: str, matrix: ca.MX, parameters: dict[int, Array]) -> _Entries:
    symbols, matrix = ca.symvar(matrix), without_zeros(matrix)
    function = expanded(ca.Function("mass", symbols, [matrix]))
    n = matrix.shape[0]
    values = np.full((n, n), 0.0, dtype=object)
    nonzero, moving = np.zeros((n, n), dtype=bool), np.zeros((n, n), dtype=bool)
    held = [s.__hash__() in parameters for s in symbols]
    if function.is_a("SXFunction"):
        inputs = function.sx_in()
        scalar: Any = ca.sparsify(ca.vertcat(*function.call(inputs)))
        others = ca.vertcat(ca.SX(0, 1), *(ca.vec(s) for s, is_held in zip(inputs, held, strict=True) if not is_held))
    else:
        scalar, others = matrix, None
    for k, (i, j) in enumerate(zip(*scalar.sparsity().get_triplet(), strict=True)):
        entry = scalar.nz[k]
        nonzero[i, j] = True
        values[i, j] = float(entry) if others is not None and entry.is_constant() else matrix[i, j]
        moving[i, j] = others is None or ca.depends_on(entry, others)
    near, far = sampled(mode, matrix, parameters)
    if not near:
        raise FormulationError(
            "The mass matrix is not finite at any of the values of its variables that were tried.",
            mode=mode,
            remedy="Check it for divisions by zero, and logarithms and roots of negative numbers.",
        )
    return _Entries(values, np.array(near + far), len(near), nonzero, moving, are_smooth([matrix]))


def _reduce(found: MassStructure, entries: _Entries, rows: list[int], columns: list[int], *, index_1: bool) -> bool:
    """Append the equations of one block, unless it is too large."""
    values, samples = entries.block(rows, columns)
    is_constant, is_moving = values.dtype == float, bool(entries.moving[np.ix_(rows, columns)].any())
    is_regular = len(rows) == len(columns) and _rank(samples) == len(rows)
    if is_regular and (is_moving or len(rows) > (MAX_INVERTED if is_constant else MAX_INVERTED_SYMBOLS)):
        found.rates.extend({j: 1.0} for j in columns)
        found.implicit.extend({i: 1.0} for i in rows)
        return True
    are_enough = is_constant or len(samples) >= MIN_SAMPLES
    combine = index_1 and are_enough and (is_moving or len(rows) > MAX_INVERTED)
    combined = _combined(samples, columns) if combine else None
    if is_moving or combined is not None:
        found.needs_index_1 |= combined is not None
        found.rates.extend([{j: 1.0} for j in columns] if combined is None else combined)
        dependencies = constant_dependencies(samples) if are_enough else None
        if dependencies is not None or combined is not None:
            dependencies = dependencies or {}
            found.implicit.extend({i: 1.0} for k, i in enumerate(rows) if k not in dependencies)
            found.algebraic.extend({rows[k]: float(w) for k, w in enumerate(row) if w} for row in dependencies.values())
            return True
    if not is_constant and len(rows) > MAX_SINGULAR_SYMBOLS:
        return False
    echelon = _Echelon(values, samples, entries.near, is_smooth=entries.smooth)
    echelon.reduce(divide=not is_moving)
    for k in range(len(rows)):
        weights = {rows[i]: w for i, w in enumerate(echelon.rows[k]) if not _is_zero(w)}
        pivot = echelon.pivots.get(k)
        if pivot is None:
            found.algebraic.append(weights)
        elif is_moving:
            found.implicit.append(weights)
        else:
            others = {columns[j]: w for j, w in enumerate(echelon.values[k]) if j != pivot and not _is_zero(w)}
            found.states.append(({columns[pivot]: 1.0} | others, weights))
    return True


def _combined(samples: Array, columns: list[int]) -> list[Weights] | None:
    """Combinations of columns, y_1 + C y_2 with a constant C, that M multiplies; None if C varies."""
    n = len(columns)
    dependencies = constant_dependencies(samples.transpose(0, 2, 1)[:, ::-1])  # y_2 are the last columns
    if dependencies is None:
        return None
    dependent = {n - 1 - k: row[::-1] for k, row in dependencies.items()}
    return [
        {columns[k]: 1.0} | {columns[other]: -float(row[k]) for other, row in dependent.items() if row[k]}
        for k in range(n) if k not in dependent
    ]  # fmt: skip


def constant_dependencies(samples: Array) -> dict[int, Array] | None:
    """Combinations of rows that vanish at all samples, by a row that each has alone, with the factor 1; None if others.

    In a circuit they are sums of currents.
    """
    n = samples.shape[1]
    together = np.hstack([sample / (np.abs(sample).max() or 1.0) for sample in samples])
    left, values, _ = np.linalg.svd(np.linalg.qr(together.T, mode="r").T)
    rank = int(np.count_nonzero(values > CANCELLATION * n * values[0]))
    if rank != _rank(samples):
        return None
    echelon = _Echelon(left[:, rank:].T, left[:, rank:].T[None], 1, is_smooth=False)
    echelon.reduce(divide=True)
    for digits in DIGITS:
        found = np.round(np.array(echelon.values, dtype=float), digits)
        if np.all(np.abs(found @ samples) <= CANCELLATION * (np.abs(found) @ np.abs(samples))):
            break
    else:
        return None
    alone = found[:, list(echelon.pivots.values())]
    if len(echelon.pivots) < len(found) or np.any(np.count_nonzero(alone, axis=0) != 1):
        return None
    return {column: found[k] for k, column in echelon.pivots.items() if found[k, column] == 1.0}


def _rank(samples: Array) -> int:
    """Largest rank of the samples, after equilibration of rows and columns."""
    scaled = samples
    for _ in range(3):
        for axis in (1, 2):
            largest = np.abs(scaled).max(axis=axis, keepdims=True)
            scaled = scaled / np.where(largest > 0, largest, 1.0)
    return int(np.max(np.linalg.matrix_rank(scaled, tol=CANCELLATION)))


class _Echelon:
    """Row operations on a block: `values` = `rows` M, with the pivot column of each row in `pivots`."""

    def __init__(self, values: Any, samples: Array, near: int, *, is_smooth: bool) -> None:
        self.values, self.samples, self.near, self.is_smooth = values.copy(), samples.copy(), near, is_smooth
        self.rows = np.eye(len(values)).astype(values.dtype)
        self.pivots: dict[int, int] = {}

    def reduce(self, *, divide: bool) -> None:
        """Eliminate each pivot from all rows, or without division from those below it."""
        left = set(range(len(self.values)))
        scale = np.abs(self.samples).max(axis=2, keepdims=True)
        while left and self.samples[:, list(left)].any():
            row, column = self._pivot(left, scale)
            left.remove(row)
            self.pivots[row] = column
            if divide:
                regular = self.samples[:, row, column] != 0
                self.samples, scale, self.near = self.samples[regular], scale[regular], int(regular[: self.near].sum())
                factor = 1.0 / self.values[row, column]
                self.values[row], self.rows[row] = _scaled(factor, self.values[row]), _scaled(factor, self.rows[row])
                self.samples[:, row] /= self.samples[:, row, column][:, None]
                self._settle(row)
                self.values[row, column] = 1.0
            for other in (k for k in range(len(self.values)) if k != row) if divide else left:
                if np.any(self.samples[:, other, column]):
                    self._eliminate(other, row, column, divide=divide)

    def _pivot(self, left: set[int], scale: Array) -> tuple[int, int]:
        """The row and column of the entry whose least share of its row, before elimination, is largest."""
        share = np.abs(self.samples / np.where(scale > 0, scale, 1.0))
        share[:, [k for k in range(len(self.values)) if k not in left]] = 0.0
        least = np.where(share.all(axis=0), share[: self.near].min(axis=0, initial=np.inf), 0.0)
        size = np.round(least if least.any() else share.max(axis=0), 9)
        row, column = np.unravel_index(np.argmax(size if size.any() else share.max(axis=0)), size.shape)
        return int(row), int(column)

    def _eliminate(self, row: int, pivot: int, column: int, *, divide: bool) -> None:
        own, other = self.samples[:, pivot, column], self.samples[:, row, column]
        if divide:
            ours, theirs, a, b = 1.0, -self.values[row, column], np.ones(len(own)), other.copy()
        else:  # numbers of the size of the entries stay so
            sizes = np.maximum(np.abs(own), np.abs(other))
            scale = float(sizes[np.flatnonzero(sizes)[0]])
            ours, theirs = self.values[pivot, column] / scale, -self.values[row, column] / scale
            a, b = own / scale, other / scale
        first, second = a[:, None] * self.samples[:, row], b[:, None] * self.samples[:, pivot]
        self.samples[:, row] = first - second
        none = np.all(np.abs(first - second) <= CANCELLATION * (np.abs(first) + np.abs(second)), axis=0)
        self.samples[:, row, none] = 0.0
        self.values[row] = _sum(ours, self.values[row], theirs, self.values[pivot])
        self.values[row, none] = 0.0
        self.rows[row] = _sum(ours, self.rows[row], theirs, self.rows[pivot])
        self._settle(row)

    def _settle(self, row: int) -> None:
        """Replace expressions that have the same value at all samples, such as C / C, by that number."""
        if not self.is_smooth or self.values.dtype == float or len(self.samples) == 1:
            return
        for j, value in enumerate(self.values[row]):
            own = self.samples[:, row, j]
            if not isinstance(value, float) and np.ptp(own) <= CANCELLATION * np.abs(own).max():
                rounded = float(np.round(own[0], 12))
                self.values[row, j] = rounded if abs(rounded - own[0]) <= CANCELLATION * abs(own[0]) else float(own[0])


def _is_zero(value: Any) -> bool:
    return isinstance(value, float) and value == 0.0


def _product(a: Any, b: Any) -> Any:
    if _is_zero(a) or _is_zero(b):
        return 0.0
    if isinstance(a, float) and a == 1.0:
        return b
    return a if isinstance(b, float) and b == 1.0 else a * b


def _scaled(factor: Any, row: Any) -> Any:
    if row.dtype == float:
        return factor * row
    found = np.empty(len(row), dtype=object)
    for i, value in enumerate(row):
        found[i] = _product(factor, value)
    return found


def _sum(a: Any, first: Any, b: Any, second: Any) -> Any:
    """A combination of two rows."""
    if first.dtype == float:
        return a * first + b * second
    found = np.empty(len(first), dtype=object)
    for i, (x, y) in enumerate(zip(_scaled(a, first), _scaled(b, second), strict=True)):
        found[i] = y if _is_zero(x) else x if _is_zero(y) else x + y
    return found
