"""pydiffsol: the problem in DiffSL, with `stop` for the guard and `reset` for the jump.

Forward sensitivities carry the integral as a state, because its solver does not integrate outputs along with them; the
adjoint takes it as an integrated output, and the height of the ball (P3) as the integral of its velocity: that is more
accurate than its discrete adjoint. Sensitivities are under error control, without which they lose two digits on P2.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pydiffsol as ds
from cases import CASES, Case

from peers import Answer, Task, UnsupportedError
from peers._text import NS, Text, write

name = "pydiffsol"


def version() -> str:
    return f"pydiffsol {ds.version()}, diffsol {ds.diffsol_version()}"


def rows(case: str) -> list[str]:
    if case not in CASES:
        raise UnsupportedError("one set of equations and states for all modes, semi-explicit, index 1")
    return ["bdf", "bdf, sens_atol=rtol", "esdirk34"] if CASES[case].stiff else ["bdf", "tsit45"]


def code(case: Case, *, integral: bool) -> str:
    """DiffSL; the integral is the last state if `integral`, otherwise the integrand is the output."""
    x = [Text(f"x{i}") for i in range(len(case.x0))]
    m = [Text(f"m{i}") for i in range(len(case.m0))]
    p = [Text(name) for name in case.names]
    t = Text("t")
    x_plus, m_plus = case.jump(NS, t, x, m, p)
    start = [f"{s.text} = {write(v)}" for s, v in zip([*x, *m], [*case.x0, *case.m0], strict=True)]
    rate = [write(v) for v in case.rate(NS, t, x, m, p)] + ["0.0"] * len(m)
    post = [write(v) for v in (*x_plus, *m_plus)]
    cost = write(case.cost(NS, t, x, m, p))
    guard = write(case.guard(NS, t, x, m, p))
    if case.terminal:  # P3
        # its roots count in both directions, and a ball that has just bounced is at a root: look while it falls only
        guard += " + heaviside(x1)"
    if integral and not case.terminal:
        start, rate, post = [*start, "q = 0.0"], [*rate, cost], [*post, "q"]
    blocks = {
        "in_i": [f"{n} = {write(v)}" for n, v in zip(case.names, case.nominal, strict=True)],
        "u_i": start,
        "F_i": rate,
        "stop_i": [guard],
        "reset_i": post,
    }
    if not integral:
        blocks["out_i"] = [rate[0] if case.terminal else cost]
    return "\n".join(f"{block} {{ {', '.join(lines)} }}" for block, lines in blocks.items())


def prepare(case: str, row: str, rtol: float, atol: float) -> Mapping[str, Task]:
    stated = CASES[case]
    p, end = np.array(stated.nominal), np.array([stated.span[1]])
    solver = {"bdf": ds.bdf, "tsit45": ds.tsit45, "esdirk34": ds.esdirk34}[row.split(",")[0]]
    ahead, back = (
        ds.Ode(code(stated, integral=integral), matrix_type=ds.nalgebra_dense, ode_solver=solver)
        for integral in (True, False)
    )
    for ode in (ahead, back):
        ode.rtol, ode.atol = rtol, atol
        ode.sens_rtol, ode.sens_atol = rtol, rtol if "sens_atol" in row else atol
    back.integrate_out = True
    back.out_rtol, back.out_atol = rtol, atol
    back.param_rtol, back.param_atol = rtol, atol
    i, start = (0, stated.x0[0]) if stated.terminal else (-1, 0.0)
    return {
        "solve": Task(lambda: ahead.solve_dense(p, end), lambda sol: Answer(float(sol.ys[i, -1]))),
        "forward": Task(
            lambda: ahead.solve_fwd_sens(p, end),
            lambda sol: Answer(float(sol.ys[i, -1]), [float(column[i, -1]) for column in sol.sens]),
        ),
        "adjoint": Task(
            lambda: back.solve_continuous_adjoint(p, stated.span[1]),
            lambda r: Answer(start + float(np.ravel(r[0])[0]), [float(g) for g in np.ravel(r[1])]),
        ),
    }
