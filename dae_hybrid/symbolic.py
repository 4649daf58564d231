"""CasADi's two kinds of expressions, and linear systems in them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import casadi as ca

#: up to this many unknowns a linear system is solved symbolically, above by CasADi's sparse QR
SYMBOLIC_SOLVE = 4


def kind_for(functions: Sequence[ca.Function]) -> Any:
    """CasADi's SX where every function allows it, MX otherwise."""
    return ca.SX if all(f.is_a("SXFunction") for f in functions) else ca.MX


def expanded(function: ca.Function) -> ca.Function:
    """The function in SX form where it has one."""
    try:
        return function.expand()
    except RuntimeError:
        return function


def linear_solve(matrix: Any, right: Any) -> Any:
    """matrix^-1 right, symbolically for small systems and by a sparse QR factorisation above."""
    n = matrix.shape[0]
    if n == 0:
        return right
    if n == 1:
        return right / matrix
    return ca.solve(matrix, right) if n <= SYMBOLIC_SOLVE else ca.solve(matrix, right, "qr")
