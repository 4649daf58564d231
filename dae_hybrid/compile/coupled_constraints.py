"""Constraints of index 2 that contain algebraic variables of index 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import casadi as ca

from dae_hybrid.codegen.casadi_tools import MAX_ELIMINATED_BLOCK, jacobian, linear_solve
from dae_hybrid.compile.elimination import solve_explicitly
from dae_hybrid.compile.lowering import Flat, ModeLowering
from dae_hybrid.compile.structure import determined_by
from dae_hybrid.errors import FormulationError


def without_index1(
    given: ca.Function, s: Flat, lowering: ModeLowering, index1: Sequence[int], coupled: Sequence[int]
) -> Any:
    """Return equations in which the constraints `coupled` depend on y alone, to first order at consistent points.

    Their variables z_1 are those of equations h(y, z_1) = 0. They are replaced by the solution, if h gives it
    explicitly, or by z_1 - h_z^-1 h, whose derivatives at h = 0 are those of the solution by the implicit function
    theorem.

    Parameters
    ----------
    given : Function
        All equations of the mode, as a function of (t, x, m, p).
    s : Flat
        Symbols of the result.
    lowering : ModeLowering
    index1, coupled : sequence of int
        Rows that may determine z_1, and constraints that contain it.

    Raises
    ------
    FormulationError
        The rows do not determine z_1 without further variables.
    """
    algebraic, mode = lowering.algebraic, lowering.mode
    ny, nz = lowering.differential.size, algebraic.size
    rows = given(*s.point)
    by_z = jacobian(rows, s.x)[:, ny:].sparsity()
    used = sorted({j for i, j in zip(*by_z.get_triplet(), strict=True) if i in set(coupled)})
    own, columns, loose = determined_by(by_z.sub(list(index1), list(range(nz)))[0], used)
    if loose:
        names, label = [algebraic.labels()[j] for j in loose], mode.labels[coupled[0]]
        raise FormulationError(
            f"{label[0].upper()}{label[1:]} contains {', '.join(names)}, which the equations without multipliers "
            "do not determine.",
            mode=mode.name,
            variables=names,
            remedy="The algebraic variables of a constraint are those that equations in algebraic= determine from "
            "states and time. An equation that itself determines an algebraic variable belongs to algebraic=.",
        )
    h, places = rows[[index1[i] for i in own], :], [ny + j for j in columns]
    z = s.x[places, :]
    found = solve_explicitly(h, z, MAX_ELIMINATED_BLOCK) if s.kind is ca.SX else None
    x = s.kind(s.x)
    x[places, :] = found[0] if found and not found[1].numel() else z - linear_solve(jacobian(h, s.x)[:, places], h)
    replaced, result = given(s.t, x, s.m, s.p), s.kind(rows)
    result[list(coupled), :] = replaced[list(coupled), :]
    return result
