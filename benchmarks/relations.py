"""Cost of relations in expressions compared with modes, and of kinks without events.

    python benchmarks/relations.py

The first table states a PI controller that saturates and a thermostat with hysteresis twice, by relations and by modes:
times of both in one run, and by how much their values or gradients differ. The second has an oscillator with a spring
that has a kink, as an event and integrated across: errors of gradients, relative to those at rtol 1e-12.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import casadi as ca
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from switched import controller, thermostat

import dae_hybrid as dh
from dae_hybrid.tables import align

METHODS = ("bdf", "adams", "erk")
REPETITIONS = 15


def spring() -> dh.HybridModel:
    """x'' = -4 x - x' / 10 - 3 q |x - p|."""
    m = dh.HybridModel("spring")
    p, q, x, v = m.parameter("p", 0.3), m.parameter("q", 1.0), m.differential("x"), m.differential("v")
    run = m.mode("run", ode={x: v, v: -4 * x - 0.1 * v - 3 * q * ca.fabs(x - p)})
    m.initial(run, {x: 1.0, v: 0.0})
    m.functional("G", integrand=x**2, terminal=x)
    return m


def solve(system: dh.HybridSystem, **options: Any) -> float:
    """The value."""
    return float(dh.simulate(system, (0, 10), **options).functionals["G"])


def forward(system: dh.HybridSystem, **options: Any) -> Any:
    """The gradient by forward analysis."""
    return dh.forward_sensitivity(system, (0, 10), **options).gradient["G"]


def adjoint(system: dh.HybridSystem, **options: Any) -> Any:
    """The gradient by adjoint analysis."""
    return dh.adjoint_gradient(system, (0, 10), "G", **options).gradient


def error(found: Any, truth: Any) -> float:
    """The largest difference, relative to the largest entry."""
    return float(np.max(np.abs(np.subtract(found, truth))) / np.max(np.abs(truth)))


def main() -> None:
    """Print both tables."""
    rows = [["model", "call", "method", "by relations, ms", "times that by modes", "difference"]]
    for model in (controller, thermostat):
        systems = [model(relations=relations).build() for relations in (True, False)]
        for call in (solve, forward, adjoint):
            for method in METHODS:
                best, results = [np.inf, np.inf], [None, None]
                for _ in range(REPETITIONS):
                    for k, system in enumerate(systems):
                        start = time.perf_counter()
                        results[k] = call(system, rtol=1e-8, atol=1e-10, method=method)
                        best[k] = min(best[k], time.perf_counter() - start)
                ratio, apart = best[0] / best[1], error(*results)
                rows.append(
                    [model.__name__, call.__name__, method, f"{1e3 * best[0]:.2f}", f"{ratio:.2f}", f"{apart:.0e}"]
                )
    print("\n".join(align(rows, left=(0, 1, 2))))
    kinks = [["method", "rtol", "forward: event", "integrated", "adjoint: event", "integrated"]]
    event, blunt = spring().build(kinks="events"), spring().build()
    truth = forward(event, rtol=1e-12, atol=1e-14)
    for method in METHODS:
        for rtol in (1e-5, 1e-7, 1e-9):
            options: dict[str, Any] = {"rtol": rtol, "atol": 1e-2 * rtol, "method": method}
            errors = [error(call(system, **options), truth) for call in (forward, adjoint) for system in (event, blunt)]
            kinks.append([method, f"{rtol:.0e}", *(f"{e:.0e}" for e in errors)])
    print("", *align(kinks), sep="\n")


if __name__ == "__main__":
    main()
