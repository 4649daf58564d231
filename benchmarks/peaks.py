"""Cost of peaks beside that of measurements, and its growth with steps, events and components.

A chain of masses is shaken; a ball bounces. Prints milliseconds of CPU, the least of several runs.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import casadi as ca
import numpy as np

import dae_hybrid as dh
from dae_hybrid.tables import align

REPEATS = 5
OPTIONS: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-10}


def chain(n: int, part: Callable[[ca.MX], Mapping[str, Any]]) -> dh.HybridSystem:
    """n masses in a row on a shaken base; `part` of their displacements is the functional."""
    m = dh.HybridModel("chain")
    k, c = m.parameter("k", 30.0), m.parameter("c", 0.3)
    u, v = m.differential("u", size=n), m.differential("v", size=n)
    drift, rate = (ca.vertcat(x[0], x[1:] - x[:-1]) if n > 1 else x for x in (u, v))
    force = k * drift + c * rate
    above = ca.vertcat(force[1:], 0) if n > 1 else 0
    m.initial(m.mode("only", ode={u: v, v: above - force - ca.sin(3 * m.time)}), {u: np.zeros(n), v: np.zeros(n)})
    m.functional("G", **part(drift))
    return m.build()


def ball(part: Callable[[ca.MX, ca.MX], Mapping[str, Any]]) -> dh.HybridSystem:
    """A ball that loses little at an impact."""
    m = dh.HybridModel("ball")
    g, e = m.parameter("g", 9.81), m.parameter("e", 0.9999)
    y, v = m.differential("y"), m.differential("v")
    flight = m.mode("flight", ode={y: v, v: -g})
    m.transition(flight, flight, guard=y, direction="falling", reset={v: -e * v})
    m.initial(flight, {y: 1.0, v: 0.0})
    m.functional("G", **part(y, v))
    return m.build()


def least(call: Callable[[], Any]) -> float:
    """Least CPU time of a call, in milliseconds, after one that is not counted."""
    call()
    found = []
    for _ in range(REPEATS):
        start = time.process_time()
        call()
        found.append(1e3 * (time.process_time() - start))
    return min(found)


def costs(system: dh.HybridSystem, end: float, **options: Any) -> list[float]:
    """Cost of a simulation, of forward and of adjoint analysis."""
    options = OPTIONS | options
    return [
        least(lambda: dh.simulate(system, (0, end), **options)),
        least(lambda: dh.forward_sensitivity(system, (0, end), **options)),
        least(lambda: dh.adjoint_gradient(system, (0, end), "G", **options)),
    ]


def row(name: str, measured: dh.HybridSystem, peak: dh.HybridSystem, end: float, **options: Any) -> list[str]:
    """A row of the table: the cost of both, and their ratio, by analysis."""
    pairs = zip(costs(measured, end, **options), costs(peak, end, **options), strict=True)
    return [name, *(f"{one:.1f} / {two:.1f} = {two / one:.1f}" for one, two in pairs)]


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    rows = [["peak / measurement", "simulation", "forward", "adjoint"]]
    for n in (1, 10, 40):
        for method in ("erk", "bdf"):
            measured, peak = chain(n, lambda d: {"at_times": {7.3: d[0]}}), chain(n, lambda d: {"maximum_abs": d[0]})
            rows.append(row(f"{n} masses, {method}", measured, peak, 20.0, method=method))
    measured, peak = chain(10, lambda d: {"at_times": {7.3: d}}), chain(10, lambda d: {"maximum_abs": d})
    rows.append(row("10 masses, 10 peaks", measured, peak, 20.0))
    for end in (30.0, 300.0, 3000.0):
        measured = ball(lambda y, _: {"at_times": {0.5: y}})
        for name, peak in (
            ("inside", ball(lambda y, v: {"maximum": y * v})),
            ("at an impact", ball(lambda _, v: {"maximum": v})),
        ):
            n = dh.simulate(measured, (0, end), **OPTIONS).n_events
            rows.append(row(f"{n} impacts, peak {name}", measured, peak, end))
    print("\n".join(align(rows)))


if __name__ == "__main__":
    main()
