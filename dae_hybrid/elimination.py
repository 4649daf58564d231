"""Unknowns that equations give as expressions: what is solved for at build."""

from __future__ import annotations

import casadi as ca

#: up to so many algebraic variables are solved for as expressions where single equations do not give them
MOST_AFFINE = 64
#: up to this size a determinant is written out
FEW = 4
#: operations that jump, or whose derivative is constant though they do
JUMPING = {
    ca.OP_SIGN, ca.OP_FLOOR, ca.OP_CEIL, ca.OP_LT, ca.OP_LE, ca.OP_EQ, ca.OP_NE, ca.OP_NOT, ca.OP_AND, ca.OP_OR,
    ca.OP_IF_ELSE_ZERO, ca.OP_FMOD, ca.OP_REMAINDER, ca.OP_COPYSIGN,
}  # fmt: skip
#: those that keep what is affine so
LINEAR = {ca.OP_ASSIGN, ca.OP_NEG, ca.OP_ADD, ca.OP_SUB, ca.OP_TWICE}
#: what an operation makes of the variables
CONSTANT, AFFINE, OTHER = range(3)


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
    values, jumps = ca.SX(left), has_jumps(rest)
    for block_rows, block in _blocks(ca.jacobian(rest, left).sparsity()):
        own = left[block]
        equations = ca.substitute(rest[block_rows], left, values)
        matrix = ca.jacobian(equations, own)
        if len(block) > largest or ca.depends_on(matrix, own) or (jumps and not is_affine(equations, own)):
            return None
        found, pole = _affine(matrix, ca.substitute(equations, own, 0))
        values[block], poles = found, ca.vertcat(poles, pole)
    return ca.substitute(solution, left, values), poles


def has_jumps(expression: ca.SX) -> bool:
    """Whether anything in it jumps: its derivative says nothing of that."""
    function = _of_its_symbols(expression)
    return any(function.instruction_id(k) in JUMPING for k in range(function.n_instructions()))


def is_affine(expression: ca.SX, variables: ca.SX) -> bool:
    """Whether it is, by its operations: a function that jumps has a constant derivative, too."""
    function = _of_its_symbols(expression, variables)
    kind = [CONSTANT] * function.sz_w()
    for k in range(function.n_instructions()):
        operation, inputs = function.instruction_id(k), function.instruction_input(k)
        if operation == ca.OP_OUTPUT:
            if kind[inputs[0]] == OTHER:
                return False
            continue
        if operation == ca.OP_INPUT:
            found = AFFINE if inputs[0] == 0 else CONSTANT
        else:
            of = [kind[i] for i in inputs] if operation != ca.OP_CONST else []
            found = max(of, default=CONSTANT)
            multiple = (
                (operation == ca.OP_MUL and CONSTANT in of)
                or (operation == ca.OP_DIV and of[1] == CONSTANT)
                or (operation == ca.OP_IF_ELSE_ZERO and of[0] == CONSTANT)
            )
            if found == AFFINE and not (operation in LINEAR or multiple):
                found = OTHER
        kind[function.instruction_output(k)[0]] = found
    return True


def _of_its_symbols(expression: ca.SX, variables: ca.SX | None = None) -> ca.Function:
    """As a function of these variables, and of all others."""
    first = ca.SX(0, 1) if variables is None else variables
    known = {symbol.element_hash() for symbol in ca.symvar(first)}
    others = [symbol for symbol in ca.symvar(expression) if symbol.element_hash() not in known]
    return ca.Function("f", [first, ca.vertcat(*others)], [ca.densify(expression)])


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
    jumps = has_jumps(k)
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
            if jumps and not is_affine(row, z[j]):
                continue
            value = ca.substitute(row, z[j], 0) / -float(factor)
            solution = ca.substitute(solution, z[j], value)
            equations.remove(i)
            unsolved.remove(j)
            break
        else:
            break
    return solution, equations, unsolved
