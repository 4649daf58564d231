"""scikit-sundae: CVODE with its roots, started anew for every segment, IDA for P2 as a DAE; central differences."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib import metadata
from types import SimpleNamespace
from typing import Any

from cases import CASES, Case, force, stress
from sksundae.cvode import CVODE
from sksundae.ida import IDA

from peers import Answer, Task, UnsupportedError, differences

name = "scikit-sundae"
NS = SimpleNamespace(sin=math.sin, exp=math.exp, sinh=math.sinh)
STEPS = 1_000_000


def version() -> str:
    return f"scikit-sundae {metadata.version('scikit-sundae')}"


def rows(case: str) -> list[str]:
    if case not in CASES:
        raise UnsupportedError("the modes of these problems would be written by hand, and the initial values found")
    if CASES[case].stiff:
        return ["CVODE BDF, differences"]
    return ["CVODE Adams, differences", *(["IDA on the DAE, differences"] if case == "P2" else [])]


def ode(case: Case, p: Any, options: dict[str, Any], row: str) -> Callable[..., Any]:
    """A segment of the problem as an ODE: from t, x with the integral, and m to the event or the end."""
    n = len(case.x0)

    def rate(t: float, y: Any, yp: Any, m: Any) -> None:
        y = y.tolist()
        yp[:n] = case.rate(NS, t, y, m, p)
        yp[n] = 0.0 if case.terminal else case.cost(NS, t, y, m, p)

    def guard(t: float, y: Any, g: Any, m: Any) -> None:
        g[0] = case.guard(NS, t, y, m, p)

    guard.terminal, guard.direction = [True], [-1]  # type: ignore[attr-defined]
    method = "Adams" if "Adams" in row else "BDF"

    def segment(t: float, y: Any, m: Any) -> Any:
        solver = CVODE(rate, userdata=m, method=method, eventsfn=guard, num_events=1, **options)
        return solver.solve([t, case.span[1]], y)

    return segment


def dae(case: Case, p: Any, options: dict[str, Any]) -> Callable[..., Any]:
    """The same for P2 with the stress as an algebraic variable."""

    def residual(t: float, y: Any, yp: Any, res: Any, m: Any) -> None:
        u, v, _, z = y.tolist()
        res[:] = yp[0] - v, yp[1] - force(NS, t) + z, yp[2] - u**2, stress(NS, u, m, p) - z

    def guard(_t: float, y: Any, _yp: Any, g: Any, m: Any) -> None:
        g[0] = m[0] * y[1]

    guard.terminal, guard.direction = [True], [-1]  # type: ignore[attr-defined]

    def segment(t: float, y: Any, m: Any) -> Any:
        u, v, q = y
        z = stress(NS, u, m, p)
        # z' is not needed: z is algebraic and left out of the error test
        solver = IDA(residual, userdata=m, eventsfn=guard, num_events=1, algebraic_idx=[3], **options)
        return solver.solve([t, case.span[1]], [u, v, q, z], [v, force(NS, t) - z, u**2, 0.0])

    return segment


def prepare(case: str, row: str, rtol: float, atol: float) -> Mapping[str, Task]:
    stated = CASES[case]
    n = len(stated.x0)
    options = {"rtol": rtol, "atol": atol, "max_num_steps": STEPS}

    def run(p: Any) -> tuple[float, int]:
        segment = dae(stated, p, options) if "DAE" in row else ode(stated, p, options, row)
        t, y, m, count = stated.span[0], [*stated.x0, 0.0], list(stated.m0), 0
        while True:
            sol = segment(t, y, m)
            t, y = float(sol.t[-1]), sol.y[-1, : n + 1].tolist()
            if not sol.success:
                raise RuntimeError(sol.message)
            if t >= stated.span[1]:
                break
            count += 1
            x, m = stated.jump(NS, t, y[:n], m, p)
            y = [*x, y[n]]
        return float(stated.cost(NS, t, y, m, p) if stated.terminal else y[n]), count

    def gradient() -> tuple[float, int, list[float]]:
        value, count = run(stated.nominal)
        return value, count, differences(lambda p: run(p)[0], stated, rtol)

    return {
        "solve": Task(lambda: run(stated.nominal), lambda r: Answer(r[0], None, r[1])),
        "forward": Task(gradient, lambda r: Answer(r[0], r[2], r[1])),
    }
