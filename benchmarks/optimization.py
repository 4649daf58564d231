"""Optimisation with exact gradients compared with SciPy's finite differences, and the pictures of docs/optimization.md.

    python benchmarks/optimization.py [--write] [--pictures]

Both start at the same point with the same method and options. A run is counted once for the objective and all
constraints at a point; runs with gradients count like others. CPU time.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from batch import net
from measuring import show
from scipy.optimize import NonlinearConstraint, minimize

import dae_hybrid as dh
from dae_hybrid.report.plotting import new_figure, save

ROOT = Path(__file__).resolve().parent.parent
PAGE, PICTURE = ROOT / "docs" / "optimization.md", ROOT / "docs" / "optimization_scan.png"
sys.path.insert(0, str(ROOT / "examples"))
TIGHT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}


def cushion() -> tuple[dh.OptimizationProblem, str, dict[str, Any]]:
    """The example: two parameters, two constraints."""
    from design_cushion import LIMIT, model

    limits: Any = {"travel": (None, LIMIT), "rest": (None, 1e-3)}
    bounds: Any = {"k": (50, 5000), "c": (1, 100)}
    problem = dh.OptimizationProblem(
        model().build(), (0.0, 0.25), "harshness", constraints=limits, wrt=["k", "c"], bounds=bounds,
        scale={"k": "log", "c": "log"}, **TIGHT,
    )  # fmt: skip
    return problem, "SLSQP", {}


def relay(width: int) -> tuple[dh.OptimizationProblem, str, dict[str, Any]]:
    """A small network that drives a relay, with 4 width + 3 parameters."""
    problem = dh.OptimizationProblem(net(width), (0.0, 6.0), "G", **TIGHT)
    return problem, "L-BFGS-B", {"maxiter": 30}


CASES = {
    "cushion, 2 parameters, 2 constraints": cushion,
    "relay, 23 parameters": lambda: relay(5),
    "relay, 203 parameters": lambda: relay(50),
}


def by_differences(problem: dh.OptimizationProblem, method: str, options: Mapping[str, Any]) -> tuple[float, int]:
    """Objective and number of runs with forward differences of runs without gradients."""
    names = [problem.objective, *problem.limits]
    run = dh.prepare(problem.system, problem.t_span, functional=names, **TIGHT)
    known: dict[bytes, np.ndarray] = {}

    def values(x: np.ndarray) -> np.ndarray:
        if x.tobytes() not in known:
            found = run(problem.parameters(x)).functionals
            known[x.tobytes()] = np.array([found[name] for name in names])
        return known[x.tobytes()]

    limits = [
        NonlinearConstraint(lambda x, i=i: values(x)[i], *pair, jac="2-point")
        for i, pair in enumerate(problem.limits.values(), start=1)
    ]
    found = minimize(
        lambda x: values(x)[0], problem.x0, jac="2-point", method=method, bounds=problem.bounds, constraints=limits,
        options=dict(options),
    )  # fmt: skip
    return float(found.fun), len(known)


def compared() -> list[list[str]]:
    """A row for each case and kind of gradient."""
    rows = [["problem", "gradients", "runs", "CPU, ms", "objective"]]
    for name, make in CASES.items():
        problem, method, options = make()
        problem.minimize(method, **options)  # warm
        start = time.process_time()
        found = problem.minimize(method, **options)
        exact = 1e3 * (time.process_time() - start)
        rows.append([name, problem.derivatives, str(found.n_evaluations), f"{exact:.0f}", f"{found.value:.6g}"])
        start = time.process_time()
        value, runs = by_differences(problem, method, options)
        spent = 1e3 * (time.process_time() - start)
        rows.append(["", "2-point", str(runs), f"{spent:.0f}", f"{value:.6g}"])
    return rows


def ball() -> dh.HybridSystem:
    """The ball of the page."""
    m = dh.HybridModel("ball")
    g, e = m.parameter("g", 9.81), m.parameter("e", 0.8)
    y, v = m.differential("y"), m.differential("v")
    flight = m.mode("flight", ode={y: v, v: -g})
    m.transition(flight, flight, guard=y, direction="falling", reset={v: -e * v}, name="bounce")
    m.initial(flight, {y: 1.0, v: 0.0})
    m.functional("height", terminal=y)
    m.functional("velocity", terminal=v)
    return m.build()


def draw() -> None:
    """The height and the velocity of a bouncing ball at t = 2, over its restitution."""
    system, figure = ball(), new_figure(2, 2, sharex=True, size=(9.0, 4.8))
    for i, name in enumerate(("height", "velocity")):
        scan = dh.scan(system, (0.0, 2.0), name, along="e", values=np.linspace(0.7, 0.98, 57), **TIGHT)
        scan.plot([figure.axes[i], figure.axes[2 + i]])
    save(figure, PICTURE, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into docs/optimization.md")
    parser.add_argument("--pictures", action="store_true", help="draw the picture of the page")
    given = parser.parse_args()
    if given.pictures:
        draw()
    show(compared(), PAGE if given.write else None, "gradients")


if __name__ == "__main__":
    main()
