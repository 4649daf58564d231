"""One step of the augmented Lagrangian index-3 scheme with projections, as functions (ALI3-P).

At convergence the multipliers of Lopez Varela, Dopico and Luaces (2023), eq. 9, satisfy ``M a* + Phi_q^T lambda = F``
and ``Phi = 0`` with a* and v* from the integration rule; the penalty alone determines the speed of convergence. Here
both equations are solved by Newton's method with the exact tangent. The projections (eq. 10 and 11, without iteration)
are saddle-point systems with the matrix ``[P, Phi_q^T; Phi_q, -1 / (varsigma alpha)]``: the matrix
``P + varsigma alpha Phi_q^T Phi_q`` of the paper would lose nine digits for alpha = 1e9.

In a large tree of bodies M and Phi_q are not written out: products with them are the recursions of the tree, whose
intermediate results, poses to wrenches, are further unknowns of each of the three systems.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import casadi as ca
import numpy as np
from numpy.typing import NDArray

from dae_hybrid.codegen.casadi_tools import dense, jacobian
from dae_hybrid.compile.lowering import symbols_for
from dae_hybrid.compile.mode_functions import ModeFunctions
from dae_hybrid.layout import Layout
from dae_hybrid.port.motion import MotionEquations, unknowns
from dae_hybrid.statement.declarations import MotionStatement


def motion_equations(mode: ModeFunctions, stated: MotionStatement) -> MotionEquations:
    """The step of a mode's equations of motion."""
    lowering = mode.lowering
    where = f"of mode '{lowering.mode.name}'"
    given = [(f"constraints {where}", stated.phi)]
    if stated.projection is not None:
        given.append((f"projection matrix {where}", ca.vec(ca.densify(stated.projection))))
    own = lowering.lower("constraints", given)
    s = symbols_for([mode.flow, mode.integrands, own], lowering.n, mode.nm, mode.np)
    kind = s.kind
    layout = Layout.of((d.name, d.size) for d in lowering.variables)

    def places(names: Sequence[str]) -> NDArray[np.intp]:
        parts = [np.arange(layout[k].start, layout[k].stop) for k in names]
        return np.concatenate([np.zeros(0, dtype=np.intp), *parts])

    q_at, v_at, a_at, l_at = (places(names) for names in (stated.q, stated.v, stated.a, stated.multipliers))
    inner_at = tuple(places(names) for names in stated.inner)
    n, m, k = q_at.size, l_at.size, inner_at[0].size

    def equations(q: Any, v: Any, a: Any, multipliers: Any, inner: Any) -> tuple[Any, Any, list[Any], list[Any]]:
        """Balance of forces, constraints on accelerations, equations of inner variables by group, and [phi, P]."""
        x = kind.zeros(lowering.n, 1)
        for at, value in zip((q_at, v_at, a_at, l_at, *inner_at), (q, v, a, multipliers, *inner), strict=True):
            x = _placed(kind, x, at, value)
        rows = mode.flow(s.t, x, s.m, s.p)
        last = rows.numel() - n - m
        groups = [rows[last - (4 - i) * k : last - (3 - i) * k, :] for i in range(4)]
        return rows[last : last + n, :], rows[last + n :, :], groups, list(own.call([s.t, x, s.m, s.p]))

    start, rule = kind.sym("s", 4 * n), kind.sym("c", 5)
    every = [kind.sym(name, size) for name, size in unknowns(n, m, k).items()]
    one, two, three, at_a_new = every[:6], every[6:10], every[10:14], every[14]
    h, beta, gamma, alpha_m, alpha_f = (rule[i] for i in range(5))
    q0, v0, a0, b0 = (start[i * n : (i + 1) * n] for i in range(4))
    q, mu, X, U_new, A_new, R_new = one
    v, _, U, _ = two
    scale = beta * h**2
    b_new = (q - q0 - h * v0) / scale - (0.5 / beta - 1) * b0
    v_new = v0 + h * ((1 - gamma) * b0 + gamma * b_new)
    a_new = ((1 - alpha_m) * b_new + alpha_m * b0 - alpha_f * a0) / (1 - alpha_f)
    u_new = U_new / h
    inner = (X, u_new, A_new / scale, R_new / scale)
    balance, _, groups, (phi, *matrix) = equations(q, v_new, a_new, mu / scale, inner)
    scaled = [scale_of * group for scale_of, group in zip((1, h, scale, scale), groups, strict=True)]
    first = ca.vertcat(scale * balance, phi, *scaled)
    penalty = stated.projection_penalty  # 0 leaves the projections out
    firm, soft = penalty / (1 + penalty), 1 / (1 + penalty)
    phi_t = jacobian(phi, s.t)

    def projected(change: Any, off: Any) -> Any:
        """Equations of a projection: its change (of v or a, multipliers, inner variables), and the violation before."""
        a, multipliers, *inner_rates = three  # at any values, since the equations are affine in them
        forces, along, (_, _, rates, wrenches), _ = equations(q, v, a, multipliers, (X, U, *inner_rates))
        rows = ca.vertcat(forces, firm * along, rates, wrenches)
        found = ca.jtimes(rows, ca.vertcat(*three), change)
        if matrix:
            other = ca.reshape(matrix[0], n, n) @ change[:n, :] - ca.jtimes(forces, a, change[:n, :])
            found += ca.vertcat(other, kind.zeros(m + 2 * k, 1))
        return found + ca.vertcat(kind.zeros(n, 1), firm * off - soft * change[n : n + m, :], kind.zeros(2 * k, 1))

    def before(rates: Any, inner_rates: Any) -> Any:
        """The unknowns of a projection if nothing is projected."""
        return ca.vertcat(rates, kind.zeros(m, 1), inner_rates, kind.zeros(k, 1))

    of_v = ca.jtimes(phi, ca.vertcat(q, X), ca.vertcat(v_new, u_new)) + phi_t
    of_a = equations(q, v, a_new, kind.zeros(m, 1), (X, U, at_a_new, kind.zeros(k, 1)))
    second = projected(ca.vertcat(*two) - before(v_new, u_new), of_v)
    third = projected(ca.vertcat(*three) - before(a_new, at_a_new), of_a[1])
    recursion = of_a[2][2]  # of the rates of twists that belong to a_new
    explicit = _by_recursion(recursion, at_a_new)
    change = kind.sym("change", n + m + 2 * k)
    of_change = [projected(change, off) for off in (of_v, ca.substitute(of_a[1], at_a_new, explicit))]
    right = [-ca.substitute(value, change, kind.zeros(change.numel(), 1)) for value in of_change]

    def function(name: str, parts: list[Any], columns: list[Any], matrices: list[Any]) -> ca.Function:
        inputs = [s.t, rule, start, ca.vertcat(*parts), s.m, s.p]
        return ca.Function(f"s{mode.index}_{name}", inputs, ca.cse([*map(dense, columns), *matrices]))

    g = dense(mode.integrands(*s.point))
    slopes = [jacobian(g, by).T for by in (s.x, s.parameters, s.m)]
    whole = ca.vertcat(first, second, third, recursion)
    coupling = _without_blocks(jacobian(whole, ca.vertcat(*every)), [first.numel(), second.numel(), third.numel()])
    names = layout.labels()
    return MotionEquations(
        q_at, v_at, a_at, l_at, inner_at,
        functions={
            "newton": function("newton", one, [first], [jacobian(first, ca.vertcat(*one))]),
            "velocities": function(
                "velocities", one, [right[0], before(v_new, u_new)], [jacobian(of_change[0], change)]
            ),
            "accelerations": function(
                "accelerations", [*one, *two], [right[1], before(a_new, explicit), explicit], []
            ),
            "linearised": function(
                "linearised", every, [], [coupling, *(jacobian(whole, u) for u in (start, s.parameters, s.m))]
            ),
            "integrand": ca.Function(f"s{mode.index}_integrand", list(s.point), [g]),
            "integrand_slopes": ca.Function(f"s{mode.index}_integrand_slopes", list(s.point), [g, *slopes]),
        },
        newmark=stated.newmark,
        spectral_radius=stated.spectral_radius,
        labels=tuple(names[i] for i in np.concatenate((q_at, l_at, *inner_at))),
    )  # fmt: skip


def _by_recursion(equations: Any, variables: Any) -> Any:
    """The solution of affine equations in which every variable depends on those before it."""
    if not variables.numel():
        return variables
    at_zero = ca.substitute(equations, variables, type(variables).zeros(variables.numel()))
    return -ca.solve(ca.jacobian(equations, variables), at_zero)


def _without_blocks(matrix: Any, sizes: Sequence[int]) -> Any:
    """A matrix without the entries in blocks of these sizes on its diagonal."""
    n = matrix.size1()
    block = np.append(np.repeat(np.arange(len(sizes)), sizes), np.full(n - sum(sizes), -1))
    rows, columns = (np.array(places, dtype=np.intp) for places in matrix.sparsity().get_triplet())
    kept = (block[rows] != block[columns]) | (block[rows] < 0)
    return ca.project(matrix, ca.Sparsity.triplet(n, n, rows[kept].tolist(), columns[kept].tolist()))


def _placed(kind: Any, x: Any, at: Any, value: Any) -> Any:
    """x with the entries `at` set."""
    if not at.size:
        return x
    selection = ca.DM.triplet(at.tolist(), list(range(at.size)), ca.DM.ones(at.size), x.numel(), at.size)
    return x + kind(selection) @ value
