"""Sample a mass matrix, to find out what vanishes, what is constant, and what the rank is.

Values at random points tell the sizes of the entries. An identity that holds at all of these points may fail elsewhere:
a smooth bump vanishes, to working precision, away from its place. Surrogate values show it: every transcendental
function takes sin(a) instead of its argument a, and every table becomes a wave, while sums, products and quotients are
those of the matrix. Identities of rational functions remain true for surrogates, and so does exp(a) exp(-a) = 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import casadi as ca
import numpy as np
from scipy.sparse import csc_array

from dae_hybrid.codegen.casadi_tools import expanded
from dae_hybrid.compile.dependence import SAMPLE_MAGNITUDES
from dae_hybrid.numerics import algebraic
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.matrices import Matrix, is_finite, row_maxima
from dae_hybrid.statement.discontinuities import Discontinuities, instructions
from dae_hybrid.statement.discontinuous_nodes import JUMPS, KINKS, RELATIONS

#: magnitudes of further samples, beyond the thresholds of smooth switches in any unit
FAR = (1e4, 1e7)
#: functions that may be constant, to working precision, wherever they are sampled
TRANSCENDENTAL = frozenset(
    (ca.OP_EXP, ca.OP_EXPM1, ca.OP_ERF, ca.OP_SIN, ca.OP_COS, ca.OP_TAN, ca.OP_SINH, ca.OP_COSH, ca.OP_TANH,
     ca.OP_ASIN, ca.OP_ACOS, ca.OP_ATAN, ca.OP_ASINH)
)  # fmt: skip
#: functions whose argument may become negative by that
POSITIVE = frozenset((ca.OP_SQRT, ca.OP_LOG, ca.OP_LOG1P))


def sampled(mode: str, matrix: ca.MX, parameters: dict[int, Array]) -> tuple[list[Array], list[Array]]:
    """The finite values of M at sample points, near ones, and far ones with surrogates, on all branches.

    `parameters` has the nominal values of the parameters by hash of their symbols.
    """
    symbols = ca.symvar(matrix)
    found = Discontinuities(f"the mass matrix of mode '{mode}'", [matrix], {s.__hash__() for s in symbols})
    switches: list[ca.MX] = []
    while nodes := found.innermost(JUMPS | KINKS):
        new = [ca.MX.sym("switch", node.size) for node in nodes]
        branches = [[node.entry(i).by(s[i]) for i in range(node.size)] for node, s in zip(nodes, new, strict=True)]
        found.replace([(n, ca.reshape(ca.vertcat(*b), n.shape)) for n, b in zip(nodes, branches, strict=True)])
        switches += new
    inputs, (plain,) = [*symbols, *switches], found.expressions
    real, surrogate = (expanded(ca.Function("mass", inputs, [m])) for m in (plain, _without_calls(plain)))
    rng = np.random.default_rng(0)

    def values(function: ca.Function, magnitudes: Sequence[float]) -> list[Array]:
        found = list[Array]()
        for k, point in enumerate(points(symbols, parameters, magnitudes)):
            settings = (np.full(s.numel(), k) if k < 2 else rng.integers(0, 2, s.numel()) for s in switches)
            value = np.array(function.call([*point, *map(ca.DM, settings)])[0].full())
            found.extend([value] if is_finite(value) else [])
        return found

    near = values(real, SAMPLE_MAGNITUDES)
    if not symbols:
        return near, []
    far = values(_surrogate(surrogate), SAMPLE_MAGNITUDES) if surrogate.is_a("SXFunction") else []
    if not far:  # nothing is known of the entries
        pattern = np.array(ca.DM(matrix.sparsity(), 1).full())
        far = [pattern * rng.uniform(0.5, 1.5, pattern.shape) for _ in SAMPLE_MAGNITUDES]
    return near, values(real, FAR) + far


def _without_calls(expression: ca.MX) -> ca.MX:
    """Replace the calls of functions that have no scalar form, which are tables, by waves."""
    numbers: dict[int, int] = {}
    while calls := _calls(expression):
        inner = [node for node in calls if not any(_calls(node.dep(i)) for i in range(node.n_dep()))]
        old, new = list[ca.MX](), list[ca.MX]()
        for node in inner:
            function = node.which_function()
            number = numbers.setdefault(function.__hash__(), len(numbers))
            given = ca.veccat(*(node.dep(i) for i in range(node.n_dep())))
            rng = np.random.default_rng(number)
            phase = ca.dot(given, ca.DM(rng.uniform(0.5, 1.5, given.numel())))
            for i in range(function.n_out()):
                old.append(node.get_output(i))
                pattern = function.sparsity_out(i)
                waves = 1.5 + ca.sin(ca.DM(rng.uniform(0.0, 6.0, pattern.nnz())) + phase)
                new.append(ca.MX(pattern, waves))
        expression = ca.graph_substitute([expression], old, new)[0]
    return expression


def _calls(expression: ca.MX) -> list[ca.MX]:
    """Calls of functions that have no scalar form."""
    nodes = [node for _, node in instructions(ca.symvar(expression), [expression], {ca.OP_CALL})]
    return [node for node in nodes if not expanded(node.which_function()).is_a("SXFunction")]


def _surrogate(function: ca.Function) -> ca.Function:
    """The SX function with bounded arguments of its transcendental functions."""
    inputs = function.sx_in()
    outputs = [ca.SX(function.sparsity_out(i)) for i in range(function.n_out())]
    work: dict[int, ca.SX] = {}
    for k in range(function.n_instructions()):
        op, given, results = function.instruction_id(k), function.instruction_input(k), function.instruction_output(k)
        if op == ca.OP_INPUT:
            work[results[0]] = inputs[given[0]].nz[given[1]]
        elif op == ca.OP_CONST:
            work[results[0]] = ca.SX(function.instruction_constant(k))
        elif op == ca.OP_OUTPUT:
            outputs[results[0]].nz[results[1]] = work[given[0]]
        else:
            operands = [work[place] for place in given]
            if op in TRANSCENDENTAL:
                operands = [ca.sin(operands[0])]
            elif op in POSITIVE:
                operands = [ca.fabs(operands[0])]
            elif op in RELATIONS:
                operands = [ca.sin(operands[0] - operands[1]), ca.SX(0)]
            work[results[0]] = ca.SX.unary(op, *operands) if len(operands) == 1 else ca.SX.binary(op, *operands)
    return ca.Function("surrogate", inputs, outputs)


def is_regular(matrix: ca.MX, parameters: dict[int, Array]) -> bool:
    """Whether a square sparse matrix is regular at some of the sampled values of its variables."""
    symbols = ca.symvar(matrix)
    function = expanded(ca.Function("matrix", symbols, [matrix]))
    for point in points(symbols, parameters, SAMPLE_MAGNITUDES):
        value: Matrix = csc_array(function.call(point)[0].sparse())
        for _ in range(6):  # equilibrates the rows and the columns, three times
            largest = row_maxima(value)
            value = csc_array(value / np.where(largest > 0, largest, 1.0)[:, None]).T
        if is_finite(value) and algebraic.is_regular(value, lambda: np.empty(0)):
            return True
    return False


def points(
    symbols: Sequence[ca.MX], parameters: dict[int, Array], magnitudes: Sequence[float]
) -> Iterator[list[ca.DM]]:
    """Random values of the symbols, positive and of both signs, and of parameters around their nominal values."""
    rng = np.random.default_rng(0)
    for size in (*magnitudes, *(-size for size in magnitudes)) if symbols else magnitudes[:1]:
        point = []
        for symbol in symbols:
            nominal, n = parameters.get(symbol.__hash__()), symbol.numel()
            signs = rng.choice((-1.0, 1.0), n) if size < 0 else np.ones(n)
            scale = abs(size) * signs if nominal is None else np.where(nominal != 0, nominal, 1.0)
            point.append(ca.DM(scale * rng.uniform(0.5, 1.5, n)))
        yield point
