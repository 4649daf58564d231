"""Unknowns that equations give as expressions: what is solved for at build."""

from __future__ import annotations

import casadi as ca

#: up to so many algebraic variables are solved for as expressions where single equations do not give them
MOST_AFFINE = 64
#: up to this size a determinant is written out
FEW = 4


def solve_explicitly(k: ca.SX, z: ca.SX, largest: int) -> tuple[ca.SX, ca.SX] | None:
    """Solution of 0 = k(z) as an expression, and what must not become zero for it (a column); None if there is none.

    An equation is used for the one variable that is left in it, if that variable enters linearly with a
    constant factor, as in ``sigma(...) - z``. Where that does not lead to the end, what is left is taken apart into
    blocks that follow from each other; up to `largest` equations that are affine in their variables are solved
    together.
    """
    solution, rows, columns = by_substitution(k, z)
    poles = ca.SX(0, 1)
    if not columns:
        return solution, poles
    if len(rows) != len(columns) or len(columns) > MOST_AFFINE:
        return None
    rest, left = ca.substitute(k[rows], z, solution), z[columns]
    values = ca.SX(left)
    for block_rows, block in _blocks(ca.jacobian(rest, left).sparsity()):
        own = left[block]
        equations = ca.substitute(rest[block_rows], left, values)
        matrix = ca.jacobian(equations, own)
        if len(block) > largest or ca.depends_on(matrix, own):
            return None
        found, pole = _affine(matrix, ca.substitute(equations, own, 0))
        values[block], poles = found, ca.vertcat(poles, pole)
    return ca.substitute(solution, left, values), poles


def _affine(matrix: ca.SX, constant: ca.SX) -> tuple[ca.SX, ca.SX]:
    """-matrix^-1 constant, and the determinant but for its sign."""
    if matrix.shape[0] <= FEW:
        return -ca.solve(matrix, constant), ca.det(matrix)
    q, r = ca.qr(matrix)
    pole = ca.SX(1)
    for i in range(matrix.shape[0]):
        pole = pole * r[i, i]
    return -ca.solve(r, q.T @ constant), pole


def _blocks(pattern: ca.Sparsity) -> list[tuple[list[int], list[int]]]:
    """Rows and columns of the blocks of a square pattern, each of which needs those before it only."""
    count, row, column, row_block, column_block, _, _ = pattern.btf()
    return [
        (list(row[row_block[i] : row_block[i + 1]]), list(column[column_block[i] : column_block[i + 1]]))
        for i in range(count)
    ]


def by_substitution(k: ca.SX, z: ca.SX) -> tuple[ca.SX, list[int], list[int]]:
    """z as far as single equations give it, and the equations and variables that are left."""
    unsolved, equations, solution = list(range(z.numel())), list(range(k.numel())), ca.SX(z)
    while unsolved:
        pattern = ca.jacobian(ca.substitute(k, z, solution), z)
        for i in equations:
            left = [j for j in unsolved if pattern.sparsity().has_nz(i, j)]
            if len(left) != 1:
                continue
            factor = ca.simplify(pattern[i, left[0]])
            if not factor.is_constant() or float(factor) == 0.0:
                continue
            j = left[0]
            row = ca.substitute(k, z, solution)[i]
            value = ca.substitute(row, z[j], 0) / -float(factor)
            solution = ca.substitute(solution, z[j], value)
            equations.remove(i)
            unsolved.remove(j)
            break
        else:
            break
    return solution, equations, unsolved
