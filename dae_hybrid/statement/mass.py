"""Check the arguments of a mode that is stated with a mass matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import casadi as ca

from dae_hybrid.errors import ModelError
from dae_hybrid.numeric_input import shown
from dae_hybrid.statement.declarations import MassStatement
from dae_hybrid.statement.expressions import equation_rows, matrix
from dae_hybrid.statement.symbols import Symbols


def mass_statement(
    model: Symbols, mode: str, mass: Any, rhs: Any, variables: Sequence[Any] | None, named: Sequence[str]
) -> MassStatement | None:
    """Return the statement of `HybridModel.mode`; `named` are the names of the variables of its ``ode``.

    Raises
    ------
    ModelError
        One of `mass` and `rhs` is missing, or variables, matrix and right-hand side differ in size.
    """
    if mass is None and rhs is None:
        if variables is not None:
            raise ModelError(f"Mode '{mode}' has variables= without mass= and rhs=.")
        return None
    if mass is None or rhs is None:
        missing, given = ("mass", "rhs") if mass is None else ("rhs", "mass")
        raise ModelError(
            f"Mode '{mode}' has {given}= without {missing}=.", remedy="State M y' = f by both, mass=M and rhs=f."
        )
    where = f"variables of mode '{mode}'"
    if variables is None:
        declared = [d for d in model.of_kind("differential") if d.name not in named]
    elif isinstance(variables, list | tuple):
        declared = [model.lookup(v, where) for v in variables]
    else:
        raise ModelError(f"{where} must be a list of variables, got {shown(variables)}.")
    names = [d.name for d in declared]
    wrong = [d.name for d in declared if d.kind != "differential" or d.name in named or names.count(d.name) > 1]
    if wrong or not names:
        raise ModelError(
            f"{where} must be differential variables, once each, without an equation in ode=; got "
            f"{', '.join(wrong or names) or 'none'}.",
            variables=wrong,
        )
    found, rows = _matrix(f"mass of mode '{mode}'", mass), equation_rows("mass equation", rhs)
    n = sum(d.size for d in declared)
    if found.shape == (n, 1):
        found = ca.diag(found)
    if found.shape != (n, n) or rows.equations.numel() != n:
        raise ModelError(
            f"Mode '{mode}': mass is {found.shape[0]}x{found.shape[1]} and rhs of length {rows.equations.numel()}, "
            f"expected {n}x{n} and length {n} for {', '.join(names)}.",
            remedy="Name the variables of M, in the order of its columns, by variables=.",
        )
    return MassStatement(tuple(names), found, rows.equations, rows.labels)


def _matrix(what: str, given: Any) -> ca.MX:
    """A matrix from an expression, an array, a sparse matrix of SciPy, or rows of numbers and expressions."""
    if hasattr(given, "tocsc"):
        given = given.toarray()
    rows = given if isinstance(given, list | tuple) else []
    if any(isinstance(row, list | tuple) and any(isinstance(v, ca.MX) for v in row) for row in rows):
        joined = [matrix(what, row).T for row in rows]
        if len({row.shape for row in joined}) > 1:
            raise ModelError(f"{what}: the rows differ in length, {', '.join(str(row.numel()) for row in joined)}.")
        return matrix(what, ca.vertcat(*joined))
    return matrix(what, given)
