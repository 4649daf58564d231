"""Stiff forward analysis: ``python benchmarks/stiff_forward.py --write`` puts its table into docs/speed.md.

CPU time over that of a solve, steps, the error of the gradient and the errors that the run reports, with and without
sensitivities in the error test; problems of the Test Set for IVP Solvers, and a reaction with diffusion.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import casadi as ca
import numpy as np
from measuring import least_ms, show

import dae_hybrid as dh
from dae_hybrid.problems.ivp_test_set import PROBLEMS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "speed.md"
OF_TEST_SET, RTOLS, CELLS = ("hires", "pollution", "akzo_nobel", "transistor"), (1e-4, 1e-6, 1e-8), (50, 100, 200)
HEAD = [
    "problem", "states", "parameters", "rtol", "steps of a solve", "error test", "steps", "forward / solve", "error",
    "reported", "warns",
]  # fmt: skip
type Problem = tuple[str, dh.HybridSystem, float, tuple[str, ...], float, dict[str, Any], dict[str, Any]]


def strip(n: int) -> dh.HybridModel:
    """A reaction with diffusion under a load that swings, in n cells."""
    m = dh.HybridModel("strip")
    names = ("diffusion", "decay", "load", "speed", "edge")
    d, k, f, w, e = (m.parameter(*own) for own in zip(names, (0.01, 50.0, 40.0, 3.0, 0.1), strict=True))
    x = m.differential("x", size=n)
    around = [e, *(x[i] for i in range(n)), e]
    rates = [
        d * (n + 1) ** 2 * (around[i] - 2 * x[i] + around[i + 2]) - k * x[i] ** 3 + f * ca.sin(w * m.time)
        for i in range(n)
    ]
    m.initial(m.mode("run", ode={x: ca.vertcat(*rates)}), {x: np.zeros(n)})
    m.functional("G", integrand=ca.sumsqr(x) / n)
    return m


def problems() -> Iterator[Problem]:
    """Title, system, end, parameters, rtol, options, and options of the reference."""
    for name in OF_TEST_SET:
        problem = PROBLEMS[name]
        system = problem.model().build()
        for rtol in RTOLS:
            options, tight = problem.tolerances(rtol), problem.tolerances(1e-10)
            yield problem.title, system, problem.end, problem.wrt, rtol, options, tight
    for n in CELLS:
        system = strip(n).build()
        options, tight = {"rtol": 1e-6, "atol": 1e-8}, {"rtol": 1e-10, "atol": 1e-12}
        yield "strip", system, 5.0, system.parameters.names, 1e-6, options, tight


def rows(problem: Problem) -> Iterator[list[str]]:
    """With sensitivities in the error test, and without."""
    title, system, end, wrt, rtol, options, tight = problem
    options = options | {"max_steps": 500_000, "t_eval": [end], "method": "bdf"}
    exact = dh.adjoint_gradient(system, (0, end), "G", wrt=wrt, **tight).gradient
    steps = dh.simulate(system, (0, end), **options).statistics["steps"]
    solve = least_ms(lambda: dh.simulate(system, (0, end), **options))
    head = [title, str(system.modes[0].equations.n), str(len(wrt)), f"{rtol:.0e}", str(steps)]
    for tested in (True, False):
        own = options | {"wrt": wrt, "sensitivity_error_control": tested}
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = dh.forward_sensitivity(system, (0, end), **own)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            took = least_ms(lambda own=own: dh.forward_sensitivity(system, (0, end), **own))  # type: ignore[misc]
        statistics = found.trajectory.statistics
        reported = statistics.get("sensitivity_error", 0) / statistics["steps"]
        yield [
            *(head if tested else [""] * len(head)), "with" if tested else "without", str(statistics["steps"]),
            f"{took / solve:.1f}", f"{np.abs(found.gradient['G'] / exact - 1).max():.0e}",
            "" if tested else f"{reported:.1e}", "yes" if said else "",
        ]  # fmt: skip


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/speed.md")
    given = parser.parse_args()
    table = [HEAD]
    for problem in problems():
        for row in rows(problem):
            print(*row, flush=True)
            table.append(row)
    show(table, PAGE if given.write else None, "stiff_forward")


if __name__ == "__main__":
    main()
