"""Structural checks of a mode's algebraic equations."""

from __future__ import annotations

from collections.abc import Sequence

import casadi as ca
import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import maximum_bipartite_matching

from dae_hybrid.errors import FormulationError
from dae_hybrid.tables import counted


def check_structure(mode: str, algebraic: Sequence[str], rows: Sequence[str], hidden: int, by_z: ca.Sparsity) -> None:
    """Refuse equations that cannot determine the algebraic variables, and name those that do not match.

    `rows` describes each equation; the last `hidden` of them are time derivatives of constraints.
    """
    n_rows, n_columns = by_z.shape
    if n_rows != n_columns:
        listed = ", ".join(rows) or "none"
        raise FormulationError(
            f"{counted(n_rows, 'equation')} ({listed}) for {n_columns} algebraic variables and derivatives "
            f"({', '.join(algebraic) or 'none'}).",
            mode=mode,
            variables=algebraic,
            remedy="Give one equation per algebraic variable, and per derivative of a residual, that the mode's "
            "equations use; a constraint counts as one.",
        )
    if n_rows == 0 or ca.sprank(ca.DM(by_z, 1)) == n_rows:
        return
    loose_rows, loose_columns = unmatched(by_z)
    names = [algebraic[j] for j in loose_columns]
    message = (
        f"The equations cannot determine {', '.join(names)}: structurally, nothing is left for "
        f"{', '.join(rows[i] for i in loose_rows)} to determine."
    )
    if any(i >= n_rows - hidden for i in loose_rows):
        raise FormulationError(
            message + " The time derivative of a constraint contains no variable that could keep it: the index is 3 "
            "or higher.",
            mode=mode,
            variables=names,
            remedy="Reduce the index: replace the constraint by its time derivative (in mechanics, the velocity "
            "constraint for the position constraint), or add both with a further multiplier (Gear, Gupta and "
            "Leimkuhler).",
        )
    raise FormulationError(
        message,
        mode=mode,
        variables=names,
        remedy="[F_y' | F_z] is structurally singular: an equation is missing for these variables, and another one "
        "is too much.",
    )


def determined_by(pattern: ca.Sparsity, wanted: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Rows that determine the wanted columns without any others, the columns of these rows, and those left loose."""
    columns_of: list[list[int]] = [[] for _ in range(pattern.shape[0])]
    for i, j in zip(*pattern.get_triplet(), strict=True):
        columns_of[i].append(j)
    graph = csr_matrix((np.ones(pattern.nnz()), pattern.get_triplet()), shape=pattern.shape)
    matched = maximum_bipartite_matching(graph, perm_type="column")  # column matched to each row, -1 if none
    row_of = {int(j): i for i, j in enumerate(matched) if j >= 0}
    loose = set(range(pattern.shape[1])) - row_of.keys()
    while more := {int(matched[i]) for i, own in enumerate(columns_of) if not loose.isdisjoint(own)} - loose - {-1}:
        loose |= more  # a row with a loose column leaves the column matched to it loose
    needed, left = set[int](), list(wanted)
    while left:
        j = left.pop()
        if j not in needed and j not in loose:
            needed.add(j)
            left += columns_of[row_of[j]]
    columns = sorted(needed)
    return [row_of[j] for j in columns], columns, [j for j in wanted if j in loose]


def unmatched(pattern: ca.Sparsity) -> tuple[list[int], list[int]]:
    """Rows and columns left over by a maximum matching."""
    columns, rows = pattern.get_col(), pattern.row()
    graph = csr_matrix((np.ones(len(rows)), (rows, columns)), shape=pattern.shape)
    matched = maximum_bipartite_matching(graph, perm_type="column")  # column matched to each row, -1 if none
    free = set(range(pattern.shape[1])) - set(matched.tolist())
    return [i for i, j in enumerate(matched) if j < 0], sorted(free)
