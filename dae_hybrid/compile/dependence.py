"""Detect implicit equations whose matrix [F_y' | F_z] is singular for all values, and split them into groups."""

from __future__ import annotations

from collections.abc import Sequence

import casadi as ca
import numpy as np
from scipy.sparse.csgraph import connected_components

from dae_hybrid.errors import FormulationError
from dae_hybrid.numerics.algebraic import NAMED, are_dependent
from dae_hybrid.numerics.arrays import Array

#: magnitudes of the sample points, and the number of samples that must be finite
SAMPLE_MAGNITUDES, MIN_SAMPLES = (1.0, 0.1, 10.0, 1.0, 100.0, 1e-2), 3
#: singular values below this multiple of the largest are zero, after rows and columns are equilibrated
NULL_SPACE_RTOL = 1e-13
#: a row or column with a smaller share of the null space does not take part in it
MIN_PARTICIPATION = 1e-9
#: longest list of names, or groups, in a message
MAX_LISTED_NAMES = 8


def refuse_dependent_equations(
    mode: str, by_z: ca.Function, variables: Sequence[str], equations: Sequence[str], parameters: Array
) -> None:
    """Refuse equations that are dependent for all values, split into independent groups.

    `by_z` maps (t, x, m, p) to [F_y' | F_z]. The usual cause is a singular capacitance or mass matrix: as many
    combinations of the equations contain no derivative as the matrix lacks in rank. Equations that are singular only at
    some values are found when a run reaches them.
    """
    n = len(variables)
    if not 1 < n <= NAMED:
        return
    rng, found = np.random.default_rng(0), []
    for size in SAMPLE_MAGNITUDES:
        x, m = (size * rng.uniform(0.5, 1.5, by_z.size1_in(i)) for i in (1, 2))
        p = np.where(parameters != 0, parameters, 1.0) * rng.uniform(0.5, 1.5, parameters.size)
        if size != SAMPLE_MAGNITUDES[0]:
            x *= rng.choice((-1.0, 1.0), x.size)
        matrix = np.array(by_z(size * rng.uniform(), x, m, p))
        if not np.all(np.isfinite(matrix)):
            continue
        spaces = _null_spaces(matrix)
        if spaces is None:
            return
        found.append((matrix, *spaces))
    supports = {tuple(np.flatnonzero(_shares(left))) for _, left, _ in found}
    if len(found) < MIN_SAMPLES or len(supports) > 1:
        return
    groups = _groups(*found[0])
    sentences = []
    for rows, columns, missing in groups:
        names = _list([variables[j] for j in columns])
        those = f"{_list([equations[i] for i in rows])} {are_dependent(len(rows))}"
        sentences.append(f"{those}, which leaves {names} open ({missing} too few)")
    raise FormulationError(
        f"[F_y' | F_z] is singular whatever the values: {_list(sentences, '; ')}.",
        mode=mode,
        variables=[variables[j] for _, columns, _ in groups for j in columns],
        remedy="Derivatives enter each group through fewer combinations than it has variables. Declare those "
        "combinations as differential variables (in a circuit the voltages across its capacitors) and the others as "
        "algebraic ones, and keep the equations: those without derivatives determine the algebraic variables.",
    )


def _null_spaces(matrix: Array) -> tuple[Array, Array] | None:
    """Return bases of the left and the right null space as columns, or None if the matrix is regular."""
    scaled = matrix
    for _ in range(3):
        for axis in (0, 1):
            largest = np.abs(scaled).max(axis=axis, keepdims=True)
            scaled = scaled / np.where(largest > 0, largest, 1.0)
    left, values, right = np.linalg.svd(scaled)
    rank = int(np.count_nonzero(values > NULL_SPACE_RTOL * len(matrix) * values[0]))
    return None if rank == len(matrix) else (left[:, rank:], right[rank:].T)


def _shares(basis: Array) -> Array:
    """Whether each row or column takes part in the null space."""
    return np.asarray((basis**2).sum(axis=1) > MIN_PARTICIPATION)


def _groups(matrix: Array, left: Array, right: Array) -> list[tuple[list[int], list[int], int]]:
    """Split the null spaces into connected parts; return the rows, columns and rank deficiency of each.

    A row or column of zeros is not connected to what it leaves open: then all is one part.
    """
    n, rows, columns = len(matrix), _shares(left), _shares(right)
    graph = np.zeros((2 * n, 2 * n), dtype=bool)
    graph[:n, :n] = np.abs(left @ left.T) > MIN_PARTICIPATION
    graph[n:, n:] = np.abs(right @ right.T) > MIN_PARTICIPATION
    graph[:n, n:] = (matrix != 0) & rows[:, None] & columns
    _, part = connected_components(graph, directed=False)
    groups = []
    for label in dict.fromkeys(part[:n][rows].tolist() + part[n:][columns].tolist()):
        own = np.flatnonzero(columns & (part[n:] == label)).tolist()
        missing = round(float((right[own] ** 2).sum()))
        groups.append((np.flatnonzero(rows & (part[:n] == label)).tolist(), own, missing))
    if all(group[0] and group[1] for group in groups):
        return groups
    return [(np.flatnonzero(rows).tolist(), np.flatnonzero(columns).tolist(), left.shape[1])]


def _list(names: Sequence[str], separator: str = ", ") -> str:
    more = len(names) - MAX_LISTED_NAMES
    return separator.join(names[:MAX_LISTED_NAMES]) + (f"{separator}and {more} more" if more > 0 else "")
