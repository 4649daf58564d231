"""Symbolic solution of algebraic equations at build time."""

from __future__ import annotations

import math

import casadi as ca

from dae_hybrid.numerics.matrices import blocks

#: largest number of algebraic variables solved for symbolically when single equations do not determine them
MAX_AFFINE_UNKNOWNS = 64
#: largest size for which a determinant is written out
MAX_COFACTOR_SIZE = 4
#: operations that jump, including those with a constant derivative
JUMPING = {
    ca.OP_SIGN, ca.OP_FLOOR, ca.OP_CEIL, ca.OP_LT, ca.OP_LE, ca.OP_EQ, ca.OP_NE, ca.OP_NOT, ca.OP_AND, ca.OP_OR,
    ca.OP_IF_ELSE_ZERO, ca.OP_FMOD, ca.OP_REMAINDER, ca.OP_COPYSIGN,
}  # fmt: skip
#: operations that preserve affinity
LINEAR = {ca.OP_ASSIGN, ca.OP_NEG, ca.OP_ADD, ca.OP_SUB, ca.OP_TWICE}
#: classification of a result with respect to the variables
CONSTANT, AFFINE, OTHER = range(3)


def solve_explicitly(k: ca.SX, z: ca.SX, largest: int) -> tuple[ca.SX, ca.SX] | None:
    """Solve 0 = k(z) symbolically. Return z and a column of quantities that must not vanish, or None.

    An equation determines a variable if that is the only one left in it and enters linearly with a constant factor,
    as in ``sigma(...) - z``. If this does not determine all variables, the rest is decomposed into block triangular
    form; blocks of up to `largest` equations that are affine in their variables are solved together.
    """
    if k.numel() > MAX_AFFINE_UNKNOWNS and any(len(rows) > largest for rows, _ in blocks(ca.jacobian_sparsity(k, z))):
        return None  # substitution would leave such a block as it is
    solution, rows, columns = by_substitution(k, z)
    poles = ca.SX(0, 1)
    if not columns:
        return solution, poles
    if len(rows) != len(columns) or len(columns) > MAX_AFFINE_UNKNOWNS:
        return None
    rest, left = ca.substitute(k[rows], z, solution), z[columns]
    values, jumps = ca.SX(left), has_jumps(rest)
    for block_rows, block in blocks(ca.jacobian(rest, left).sparsity()):
        own = left[block]
        equations = ca.substitute(rest[block_rows], left, values)
        matrix = ca.jacobian(equations, own)
        if len(block) > largest or ca.depends_on(matrix, own) or (jumps and not is_affine(equations, own)):
            return None
        found, pole = _affine(matrix, ca.substitute(equations, own, 0))
        values[block], poles = found, ca.vertcat(poles, pole)
    return ca.substitute(solution, left, values), poles


def has_jumps(expression: ca.SX) -> bool:
    """Whether an expression contains operations that jump, which its derivative does not show."""
    function = _of_its_symbols(expression)
    return any(function.instruction_id(k) in JUMPING for k in range(function.n_instructions()))


def is_affine(expression: ca.SX, variables: ca.SX) -> bool:
    """Whether an expression is affine, judged by its operations: step functions have constant derivatives, too."""
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
        for place in function.instruction_output(k):
            kind[place] = found
    return True


def _of_its_symbols(expression: ca.SX, variables: ca.SX | None = None) -> ca.Function:
    """Return the expression as a function of the given variables and of all others."""
    first = ca.SX(0, 1) if variables is None else variables
    known = {symbol.element_hash() for symbol in ca.symvar(first)}
    others = [symbol for symbol in ca.symvar(expression) if symbol.element_hash() not in known]
    return ca.Function("f", [first, ca.vertcat(*others)], [ca.densify(expression)])


def _affine(matrix: ca.SX, constant: ca.SX) -> tuple[ca.SX, ca.SX]:
    """Return -matrix^-1 constant and the determinant."""
    return -_solved(matrix, constant), determinant(matrix)


def _solved(matrix: ca.SX, right: ca.SX) -> ca.SX:
    if matrix.shape[0] == 1:
        return right / matrix
    if matrix.shape[0] <= MAX_COFACTOR_SIZE:
        return ca.solve(matrix, right)
    q, r = ca.qr(matrix)
    return ca.solve(r, q.T @ right)


def solve_in_blocks(matrix: ca.SX, right: ca.SX) -> ca.SX:
    """Solve matrix x = right block by block, which keeps structural zeros."""
    solution = ca.SX(*right.shape)
    for rows, columns in blocks(matrix.sparsity()):
        rest = right[rows, :] - matrix[rows, :] @ solution
        used = sorted(set(rest.sparsity().get_col()))
        if used:
            solution[columns, used] = _solved(matrix[rows, columns], rest[:, used])
    return solution


def determinant(matrix: ca.SX) -> ca.SX:
    """Return the signed determinant of a small matrix, by cofactors or by elimination with row pivoting.

    The product of the diagonal of a QR factorisation has no sign: it touches zero where the determinant crosses it.
    """
    n = matrix.shape[0]
    if n <= MAX_COFACTOR_SIZE:
        return ca.det(matrix)
    rows = [[matrix[i, j] for j in range(n)] for i in range(n)]
    result = ca.SX(1)
    for k in range(n):
        for i in range(k + 1, n):
            swap = ca.fabs(rows[i][k]) > ca.fabs(rows[k][k])
            for j in range(k, n):
                upper, lower = rows[k][j], rows[i][j]
                rows[k][j], rows[i][j] = ca.if_else(swap, lower, upper), ca.if_else(swap, upper, lower)
            result = ca.if_else(swap, -result, result)
        pivot = rows[k][k]
        result = result * pivot
        for i in range(k + 1, n):
            factor = ca.if_else(pivot == 0, 0, rows[i][k] / pivot)
            for j in range(k + 1, n):
                rows[i][j] = rows[i][j] - factor * rows[k][j]
    return result


def singularities(by_z: ca.SX, moving: ca.SX, largest: int, most: int) -> ca.SX | None:
    """Return the determinants, as a column, of the diagonal blocks of K_z that depend on `moving`.

    K_z is singular where one of them vanishes. Those that cannot vanish, such as 1 + z^2, are omitted. Returns None if
    more than `most` remain, or if one is larger than `largest`.
    """
    found: list[ca.SX] = []
    for rows, columns in blocks(by_z.sparsity()):
        block = by_z[rows, columns]
        if not ca.depends_on(block, moving):
            continue
        value = determinant(block) if len(rows) <= largest else None
        if value is not None and keeps_sign(value):
            continue
        if value is None or len(found) == most:
            return None
        found.append(value)
    return ca.vertcat(ca.SX(0, 1), *found)


def keeps_sign(expression: ca.SX) -> bool:
    """Whether interval arithmetic proves that an expression is nonzero for all values of its symbols."""
    function = _of_its_symbols(expression)
    found = [(-math.inf, math.inf)] * function.sz_w()
    multiples = [(-1, 0.0)] * function.sz_w()  # per work index: the instruction of a base value, and the multiple of it
    for k in range(function.n_instructions()):
        operation, inputs = function.instruction_id(k), function.instruction_input(k)
        if operation == ca.OP_OUTPUT:
            low, high = found[inputs[0]]
            return low > 0 or high < 0
        place = function.instruction_output(k)[0]
        if operation == ca.OP_CONST:
            value = float(function.instruction_constant(k))
            found[place], multiples[place] = (value, value), (k, 1.0)
            continue
        if operation == ca.OP_INPUT:
            found[place], multiples[place] = (-math.inf, math.inf), (k, 1.0)
            continue
        of, multiple = [found[i] for i in inputs], (k, 1.0)
        (base, factor), (other, times) = multiples[inputs[0]], multiples[inputs[-1]]
        if operation == ca.OP_MUL and base == other:
            ends = of[0][0] / factor, of[0][1] / factor
            low, high = _range(ca.OP_SQ, [(min(ends), max(ends))])
            found[place] = (factor * times * low, factor * times * high)
            found[place] = (min(found[place]), max(found[place]))
        else:
            found[place] = _range(operation, of)
            if operation in (ca.OP_TWICE, ca.OP_NEG):
                multiple = (base, factor * (2.0 if operation == ca.OP_TWICE else -1.0))
            elif operation == ca.OP_MUL and of[0][0] == of[0][1] != 0:
                multiple = (other, times * of[0][0])
            elif operation == ca.OP_MUL and of[1][0] == of[1][1] != 0:
                multiple = (base, factor * of[1][0])
        multiples[place] = multiple
    return False


def _range(operation: int, of: list[tuple[float, float]]) -> tuple[float, float]:
    """Interval that contains the result of an operation; the real line if unknown."""
    (low, high), other = of[0], of[-1]
    if operation == ca.OP_ASSIGN:
        return low, high
    if operation == ca.OP_NEG:
        return -high, -low
    if operation == ca.OP_ADD:
        return low + other[0], high + other[1]
    if operation == ca.OP_SUB:
        return low - other[1], high - other[0]
    if operation == ca.OP_TWICE:
        return 2 * low, 2 * high
    if operation == ca.OP_SQ:
        return (0.0 if low <= 0 <= high else min(low * low, high * high)), max(low * low, high * high)
    if operation == ca.OP_MUL:
        products = [0.0 if 0.0 in (a, b) else a * b for a in (low, high) for b in other]
        return min(products), max(products)
    if operation == ca.OP_DIV and other[0] == other[1] != 0:
        return min(low / other[0], high / other[0]), max(low / other[0], high / other[0])
    return {
        ca.OP_EXP: (0.0, math.inf), ca.OP_FABS: (0.0, math.inf), ca.OP_SQRT: (0.0, math.inf),
        ca.OP_COSH: (1.0, math.inf), ca.OP_SIN: (-1.0, 1.0), ca.OP_COS: (-1.0, 1.0), ca.OP_TANH: (-1.0, 1.0),
    }.get(operation, (-math.inf, math.inf))  # fmt: skip


def by_substitution(k: ca.SX, z: ca.SX) -> tuple[ca.SX, list[int], list[int]]:
    """Solve for z from single equations; return z and the equations and variables that remain."""
    unsolved, equations, solution = dict.fromkeys(range(z.numel())), list(range(k.numel())), ca.SX(z)
    jumps = has_jumps(k)
    while unsolved:
        pattern = ca.jacobian(ca.substitute(k, z, solution), z)
        used: list[list[int]] = [[] for _ in range(k.numel())]
        for i, j in zip(*pattern.sparsity().get_triplet(), strict=True):
            used[i].append(j)
        for i in equations:
            left = [j for j in used[i] if j in unsolved]
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
            del unsolved[j]
            break
        else:
            break
    return solution, equations, list(unsolved)
