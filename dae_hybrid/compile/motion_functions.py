"""One step of the augmented Lagrangian index-3 scheme with projections, as functions (ALI3-P).

At convergence the multipliers of Lopez Varela, Dopico and Luaces (2023), eq. 9, satisfy ``M a* + Phi_q^T lambda = F``
and ``Phi = 0`` with a* and v* from the integration rule; the penalty alone determines the speed of convergence. Here
both equations are solved by Newton's method with the exact tangent. The projections (eq. 10 and 11, without iteration)
are saddle-point systems with the matrix ``[P, Phi_q^T; Phi_q, -1 / (varsigma alpha)]``: the matrix
``P + varsigma alpha Phi_q^T Phi_q`` of the paper would lose nine digits for alpha = 1e9.
"""

from __future__ import annotations

from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.codegen.casadi_tools import dense, jacobian
from dae_hybrid.codegen.kernels import Kernel
from dae_hybrid.compile.lowering import symbols_for
from dae_hybrid.compile.mode_functions import ModeFunctions
from dae_hybrid.layout import Layout
from dae_hybrid.numerics.matrices import compact
from dae_hybrid.port.motion import MotionEquations
from dae_hybrid.statement.declarations import MotionStatement


def motion_equations(mode: ModeFunctions, stated: MotionStatement) -> MotionEquations:
    """The step of a mode's equations of motion."""
    lowering = mode.lowering
    where = f"of mode '{lowering.mode.name}'"
    given = [(f"constraints {where}", stated.phi)]
    if stated.projection is not None:
        given.append((f"projection matrix {where}", ca.vec(ca.densify(stated.projection))))
    own = lowering.lower("constraints", given)
    s = symbols_for([mode.flow, own], lowering.n, mode.nm, mode.np)
    kind = s.kind
    layout = Layout.of((d.name, d.size) for d in lowering.variables)
    q_at, v_at, a_at, l_at = (
        np.concatenate([np.zeros(0, dtype=np.intp), *(np.arange(layout[k].start, layout[k].stop) for k in names)])
        for names in (stated.q, stated.v, stated.a, stated.multipliers)
    )
    n, m = q_at.size, l_at.size

    def equations(q: Any, v: Any, a: Any, multipliers: Any) -> tuple[Any, Any, list[Any]]:
        """Balance of forces, constraints on accelerations, and [phi, P] at a point."""
        x = kind.zeros(lowering.n, 1)
        for at, value in ((q_at, q), (v_at, v), (a_at, a), (l_at, multipliers)):
            x = _placed(kind, x, at, value)
        rows = mode.flow(s.t, x, s.m, s.p)
        last = rows.numel()
        return rows[last - n - m : last - m, :], rows[last - m :, :], list(own.call([s.t, x, s.m, s.p]))

    start, rule = kind.sym("s", 4 * n), kind.sym("c", 5)
    h, beta, gamma, alpha_m, alpha_f = (rule[i] for i in range(5))
    q0, v0, a0, b0 = (start[i * n : (i + 1) * n] for i in range(4))
    q, mu, v, sigma, a, kappa = (
        kind.sym(name, size) for name, size in zip(("q", "mu", "v", "sigma", "a", "kappa"), (n, m) * 3, strict=True)
    )
    scale = beta * h**2
    b_new = (q - q0 - h * v0) / scale - (0.5 / beta - 1) * b0
    v_new = v0 + h * ((1 - gamma) * b0 + gamma * b_new)
    a_new = ((1 - alpha_m) * b_new + alpha_m * b0 - alpha_f * a0) / (1 - alpha_f)
    balance, _, (phi, *matrix) = equations(q, v_new, a_new, mu / scale)
    phi_q, phi_t = jacobian(phi, q), jacobian(phi, s.t)
    projection = ca.reshape(matrix[0], n, n) if matrix else jacobian(equations(q, v, a, mu)[0], a)
    penalty = stated.projection_penalty  # 0 leaves the projections out
    firm, soft = penalty / (1 + penalty), 1 / (1 + penalty)
    of_a = equations(q, v, a, mu)[1]
    first = ca.vertcat(scale * balance, phi)
    second = ca.vertcat(projection @ (v - v_new) + phi_q.T @ sigma, firm * (phi_q @ v + phi_t) - soft * sigma)
    third = ca.vertcat(projection @ (a - a_new) + phi_q.T @ kappa, firm * of_a - soft * kappa)

    def kernel(name: str, parts: list[Any], columns: list[Any], matrices: list[Any]) -> Kernel:
        values = [*map(dense, columns), *map(compact, matrices)]
        inputs = [s.t, rule, start, ca.vertcat(*parts), s.m, s.p]
        return Kernel(ca.Function(name, inputs, values), range(len(columns), len(values)))

    def at_zero(equation: Any, *unknowns: Any) -> Any:
        return -ca.substitute(equation, ca.vertcat(*unknowns), kind.zeros(n + m, 1))

    every = [q, mu, v, sigma, a, kappa]
    whole = ca.vertcat(first, second, third)
    return MotionEquations(
        q_at, v_at, a_at, l_at,
        newton=kernel("newton", [q, mu], [first], [jacobian(first, ca.vertcat(q, mu))]),
        velocities=kernel(
            "velocities", [q, mu], [at_zero(second, v, sigma)], [jacobian(second, ca.vertcat(v, sigma))]
        ),
        accelerations=kernel("accelerations", [q, mu, v], [at_zero(third, a, kappa)], []),
        linearised=kernel(
            "linearised", every, [], [jacobian(whole, u) for u in (ca.vertcat(*every), start, s.parameters, s.m)]
        ),
        newmark=stated.newmark,
        spectral_radius=stated.spectral_radius,
        labels=(*(layout.labels()[i] for i in q_at), *(layout.labels()[i] for i in l_at)),
    )  # fmt: skip


def _placed(kind: Any, x: Any, at: Any, value: Any) -> Any:
    """x with the entries `at` set."""
    if not at.size:
        return x
    selection = ca.DM.triplet(at.tolist(), list(range(at.size)), ca.DM.ones(at.size), x.numel(), at.size)
    return x + kind(selection) @ value
