"""Networks and many parameters in right-hand sides: cost of builds, runs and adjoint gradients.

    python benchmarks/neural.py [--write]

An oscillator of four states switches about once per unit of time between two modes; a network of n weights drives it
in both. `mean` has the mean of n parameters as a rate, `dense` n coupled states and two parameters.
Every row is a process of its own that finds nothing in the cache. CPU time of Python and of the compiler, the larger of
their peak memories; calls at rtol 1e-6 over 20 units of time. `--write` puts the table into docs/large_systems.md.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import casadi as ca
import numpy as np
from measuring import least_ms, show

import dae_hybrid as dh

PAGE = Path(__file__).resolve().parent.parent / "docs" / "large_systems.md"
SPAN, STATES = (0.0, 20.0), 4
HEADINGS = (
    "right-hand side", "size", "method", "build, s", "compiler, s", "peak, MB", "simulate, ms", "adjoint, ms",
    "adjoint / simulate",
)  # fmt: skip
ROWS = [
    *[(f"{layers} hidden", size, "auto") for size in (200, 1_000, 5_000) for layers in (1, 2)],
    ("2 hidden", 5_000, "bdf"),
    *[("mean", size, "auto") for size in (300, 500)],
    *[("dense", size, "auto") for size in (30, 60, 100)],
]  # fmt: skip


def switching(n: int, push: str, size: int) -> dh.HybridModel:
    """An oscillator that switches, with a push that both modes share."""
    m, rng = dh.HybridModel("switching"), np.random.default_rng(0)
    x = m.differential("x", size=n)
    if push == "mean":
        force = -ca.sum1(m.parameter("p", np.linspace(0.5, 1.5, size))) / size * x
    elif push == "dense":
        a, b = m.parameter("a", 1.0), m.parameter("b", 0.5)
        force = a * ca.tanh(b * (ca.DM(rng.normal(size=(n, n)) / np.sqrt(n)) @ x))
    else:
        layers = int(push.partition(" ")[0])
        hidden = size // (2 * n) if layers == 1 else round(np.sqrt(n**2 + size)) - n
        force, widths = x, [n, *[hidden] * layers, n]
        for i, (columns, rows) in enumerate(pairwise(widths)):
            w = m.parameter(f"w{i}", 0.5 * rng.normal(size=rows * columns) / np.sqrt(columns))
            force = ca.reshape(w, rows, columns) @ force
            force = ca.tanh(force) if i < layers else force
    turn = ca.kron(ca.DM.eye(n // 2), ca.DM([[0.0, 3.0], [-3.0, 0.0]]))
    up = m.mode("up", ode={x: turn @ x - 0.1 * x + 0.1 * force})
    down = m.mode("down", ode={x: turn @ x + 0.05 * x + 0.1 * force})
    m.transition(up, down, guard=x[0], direction="falling")
    m.transition(down, up, guard=x[0], direction="rising")
    m.initial(up, {x: np.linspace(1.0, 0.5, n)})
    m.functional("G", integrand=ca.sumsqr(x))
    return m


def spent() -> tuple[float, float]:
    """CPU time of this process and of the compiler."""
    own, compiler = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime, compiler.ru_utime + compiler.ru_stime


def measured(push: str, size: int, method: str) -> list[str]:
    """A row of the table, in this process."""
    start = spent()
    system = switching(size if push == "dense" else STATES, push, size).build()
    build, compiler = (after - before for after, before in zip(spent(), start, strict=True))
    options = {"rtol": 1e-6, "atol": 1e-8, "method": method, "t_eval": [SPAN[1]]}
    simulate = least_ms(lambda: dh.simulate(system, SPAN, **options))
    adjoint = least_ms(lambda: dh.adjoint_gradient(system, SPAN, "G", **options))
    peak = max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)) / 1024
    cells = [f"{build:.2f}", f"{compiler:.2f}", f"{peak:.0f}", f"{simulate:.3g}", f"{adjoint:.3g}"]
    return [push, str(size), method, *cells, f"{adjoint / simulate:.1f}"]


def apart(row: tuple[str, int, str]) -> list[str]:
    """Measure in a separate process whose cache contains the driver only."""
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"DAE_HYBRID_CACHE": cache, "OPENBLAS_NUM_THREADS": "1"}
        for given in (("mean", 1, "auto"), row):  # the first compiles the parts common to all models
            command = [sys.executable, str(Path(__file__).resolve()), "--child", json.dumps(given)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: list[str] = json.loads(done.stdout)
    print(*found, flush=True)
    return found


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the table into docs/large_systems.md")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measured(*json.loads(given.child))))
        return
    show([list(HEADINGS), *map(apart, ROWS)], PAGE if given.write else None, "neural")


if __name__ == "__main__":
    main()
