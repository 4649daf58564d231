"""SciPy: solve_ivp with a terminal event for every segment, and central differences for the gradient.

The event is located on the dense output; the solver starts anew from the state after the jump.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy
from cases import CASES
from scipy.integrate import solve_ivp

from peers import Answer, Task, UnsupportedError, differences

name = "SciPy"
NS = SimpleNamespace(sin=math.sin, exp=math.exp, sinh=math.sinh)


def version() -> str:
    return f"scipy {scipy.__version__}"


def rows(case: str) -> list[str]:
    if case not in CASES:
        raise UnsupportedError("solve_ivp takes ODEs only")
    if CASES[case].stiff:
        return ["Radau, differences", "BDF, differences"]
    return ["DOP853, differences", *(["DOP853, max_step=0.05, differences"] if case == "P1" else [])]


def prepare(case: str, row: str, rtol: float, atol: float) -> Mapping[str, Task]:
    stated, method = CASES[case], row.split(",")[0]
    n, longest = len(stated.x0), 0.05 if "max_step" in row else math.inf
    options = {"method": method, "rtol": rtol, "atol": atol, "max_step": longest}

    def run(p: Any) -> tuple[float, int]:
        t, y, m, count = stated.span[0], np.array([*stated.x0, 0.0]), list(stated.m0), 0

        def rate(t: float, y: Any) -> list[Any]:
            y = y.tolist()
            cost = 0.0 if stated.terminal else stated.cost(NS, t, y, m, p)
            return [*stated.rate(NS, t, y, m, p), cost]

        def guard(t: float, y: Any) -> Any:
            return stated.guard(NS, t, y, m, p)

        guard.terminal, guard.direction = True, -1  # type: ignore[attr-defined]
        while True:
            sol = solve_ivp(rate, (t, stated.span[1]), y, events=guard, **options)
            if not sol.success:
                raise RuntimeError(sol.message)
            t, y = sol.t[-1], sol.y[:, -1]
            if sol.status == 0:
                break
            count += 1
            x, m = stated.jump(NS, t, y[:n].tolist(), m, p)
            y = np.array([*x, y[n]])
        return float(stated.cost(NS, t, y, m, p) if stated.terminal else y[n]), count

    nominal = list(stated.nominal)

    def gradient() -> tuple[float, int, list[float]]:
        value, count = run(nominal)
        return value, count, differences(lambda p: run(p)[0], stated, rtol)

    return {
        "solve": Task(lambda: run(nominal), lambda r: Answer(r[0], None, r[1])),
        "forward": Task(gradient, lambda r: Answer(r[0], r[2], r[1])),
    }
