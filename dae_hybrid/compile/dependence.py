"""Implicit equations whose matrix [F_y' | F_z] is singular whatever the values, found at build and taken apart."""

from __future__ import annotations

from collections.abc import Sequence

import casadi as ca
import numpy as np
from scipy.sparse.csgraph import connected_components

from dae_hybrid.errors import FormulationError
from dae_hybrid.numerics.algebraic import NAMED
from dae_hybrid.numerics.arrays import Array

#: how large the values are that the matrix is looked at with, and how many looks have to be possible
SIZES, LOOKS = (1.0, 0.1, 10.0, 1.0, 100.0, 1e-2), 3
#: singular values below this share of the largest one are zero, rows and columns brought to one size
SINGULAR = 1e-13
#: a row or column with less of the null space belongs to none
SHARE = 1e-9
#: names in a list, and groups
MOST = 8


def refuse_dependent_equations(
    mode: str, by_z: ca.Function, variables: Sequence[str], equations: Sequence[str], parameters: Array
) -> None:
    """Refuse equations that depend on each other for all values, in groups that have nothing to do with each other.

    `by_z` maps (t, x, m, p) to [F_y' | F_z]. Singular matrices of capacitances or masses are the usual case: as many
    combinations of the equations contain no derivative as the rank falls short. What is singular at some values only
    is found where a run gets there.
    """
    n = len(variables)
    if not 1 < n <= NAMED:
        return
    rng, found = np.random.default_rng(0), []
    for size in SIZES:
        x, m = (size * rng.uniform(0.5, 1.5, by_z.size1_in(i)) for i in (1, 2))
        p = np.where(parameters != 0, parameters, 1.0) * rng.uniform(0.5, 1.5, parameters.size)
        if size != SIZES[0]:
            x *= rng.choice((-1.0, 1.0), x.size)
        matrix = np.array(by_z(size * rng.uniform(), x, m, p))
        if not np.all(np.isfinite(matrix)):
            continue
        spaces = _null_spaces(matrix)
        if spaces is None:
            return
        found.append((matrix, *spaces))
    supports = {tuple(np.flatnonzero(_shares(left))) for _, left, _ in found}
    if len(found) < LOOKS or len(supports) > 1:
        return
    groups = _groups(*found[0])
    sentences = []
    for rows, columns, missing in groups:
        those, names = _list([equations[i] for i in rows]), _list([variables[j] for j in columns])
        sentences.append(f"{those} depend on each other and leave {names} open ({missing} too few)")
    raise FormulationError(
        f"[F_y' | F_z] is singular whatever the values: {_list(sentences, '; ')}.",
        mode=mode,
        variables=[variables[j] for _, columns, _ in groups for j in columns],
        remedy="Derivatives enter each group through fewer combinations than it has variables. Declare those "
        "combinations as differential variables (in a circuit the voltages across its capacitors) and the others as "
        "algebraic ones, and keep the equations: those without derivatives determine the algebraic variables.",
    )


def _null_spaces(matrix: Array) -> tuple[Array, Array] | None:
    """Bases of the left and the right null space, as columns; None where the matrix is regular."""
    scaled = matrix
    for _ in range(3):
        for axis in (0, 1):
            largest = np.abs(scaled).max(axis=axis, keepdims=True)
            scaled = scaled / np.where(largest > 0, largest, 1.0)
    left, values, right = np.linalg.svd(scaled)
    rank = int(np.count_nonzero(values > SINGULAR * len(matrix) * values[0]))
    return None if rank == len(matrix) else (left[:, rank:], right[rank:].T)


def _shares(basis: Array) -> Array:
    """Whether each row or column takes part in the null space."""
    return np.asarray((basis**2).sum(axis=1) > SHARE)


def _groups(matrix: Array, left: Array, right: Array) -> list[tuple[list[int], list[int], int]]:
    """Rows, columns and by how much the rank falls short, of the parts that the null spaces fall into."""
    n, rows, columns = len(matrix), _shares(left), _shares(right)
    graph = np.zeros((2 * n, 2 * n), dtype=bool)
    graph[:n, :n] = np.abs(left @ left.T) > SHARE
    graph[n:, n:] = np.abs(right @ right.T) > SHARE
    graph[:n, n:] = (matrix != 0) & rows[:, None] & columns
    _, part = connected_components(graph, directed=False)
    groups = []
    for label in dict.fromkeys(part[:n][rows].tolist() + part[n:][columns].tolist()):
        own = np.flatnonzero(columns & (part[n:] == label)).tolist()
        missing = round(float((right[own] ** 2).sum()))
        groups.append((np.flatnonzero(rows & (part[:n] == label)).tolist(), own, missing))
    return groups


def _list(names: Sequence[str], separator: str = ", ") -> str:
    more = len(names) - MOST
    return separator.join(names[:MOST]) + (f"{separator}and {more} more" if more > 0 else "")
