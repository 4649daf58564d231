"""A heated strip with a thermostat, 200 to 200,000 states: growth of the cost with the size.

Reaction and diffusion on a strip, u_t = (k u_x)_x - u - u^3/5 + heat, with one conductivity for each of 50 pieces: 50
parameters. A quarter of the strip is heated while the thermostat, farther along, is on; it switches off where it reads
0.4 and on again where it reads 0.3. The gradient of G = the integral of the mean of (u - 1/2)^2 is that by all 50.

    python benchmarks/strip.py                the table, 200 to 200,000 states; each size in a process of its own
    python benchmarks/strip.py 200 2000       other sizes
    python benchmarks/strip.py --write        also into docs/large_systems.md
    python benchmarks/strip.py --solver band  with another linear solver than the one that the structure suggests

Times are wall clock on one thread, the first build (compilation included) from an empty cache, memory the peak of the
process over what it has after its imports. The adjoint is the call as a whole: the run, and the sweep back over it.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import casadi as ca
import numpy as np
from measuring import put

import dae_hybrid as dh

SIZES = (200, 2_000, 20_000, 200_000)
PIECES = 50
END = 4.0
OPTIONS: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-8, "t_eval": np.linspace(0.0, END, 5)}
DOCUMENT = Path(__file__).parents[1] / "docs" / "large_systems.md"


def strip(n: int, pieces: int = PIECES) -> dh.HybridModel:
    """The strip in n cells, by finite volumes."""
    m = dh.HybridModel("strip")
    k = m.parameter("k", 0.05 * (1 + 0.5 * np.sin(np.arange(pieces))), description="conductivities")
    u = m.differential("u", size=n, description="temperatures")
    in_cell = k[(np.arange(n) * pieces // n).tolist()]
    flux = n**2 * (in_cell[1:] + in_cell[:-1]) / 2 * (u[1:] - u[:-1])
    rate = ca.vertcat(flux, 0) - ca.vertcat(0, flux) - u - u**3 / 5
    heat = np.where(np.arange(n) < n // 4, 8.0, 0.0)
    off, on = m.mode("off", ode={u: rate}), m.mode("on", ode={u: rate + heat})
    reading = u[2 * n // 5]
    m.transition(on, off, guard=reading - 0.4, direction="rising")
    m.transition(off, on, guard=reading - 0.3, direction="falling")
    m.initial(on, {u: np.zeros(n)})
    m.functional("G", integrand=ca.sumsqr(u - 0.5) / n)
    return m


def peak() -> float:
    """Largest memory of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(n: int, solver: str) -> dict[str, Any]:
    """Cost of one size."""
    dh.simulate(strip(PIECES).build(), (0.0, 0.1))  # compiles the parts common to all models
    before = peak()
    times = [time.perf_counter()]
    system = strip(n).build()
    times.append(time.perf_counter())
    sol = dh.simulate(system, (0.0, END), linear_solver=solver, **OPTIONS)
    times.append(time.perf_counter())
    simulated = peak() - before
    asa = dh.adjoint_gradient(system, (0.0, END), linear_solver=solver, **OPTIONS)
    times.append(time.perf_counter())
    build, forward, adjoint = np.diff(times).tolist()
    return {
        "states": n,
        "steps": sol.statistics["steps"],
        "events": len(sol.events),
        "build": build,
        "simulate": forward,
        "adjoint": adjoint,
        "memory of simulate": simulated,
        "memory": peak() - before,
        "G": asa.value,
        "dG": np.linalg.norm(asa.gradient),
    }


def in_processes(sizes: Sequence[int], solver: str) -> list[dict[str, Any]]:
    """Measure every size in a separate process with its own cache."""
    found = []
    for n in sizes:
        with tempfile.TemporaryDirectory() as cache:
            environment = {**os.environ, "DAE_HYBRID_CACHE": cache, "OPENBLAS_NUM_THREADS": "1"}
            done = subprocess.run(
                [sys.executable, __file__, "--one", str(n), "--solver", solver],
                env=environment, capture_output=True, text=True, check=False,
            )  # fmt: skip
        if done.returncode:
            print(
                f"{n} states: {done.stderr.strip().splitlines()[-1] if done.stderr else done.returncode}",
                file=sys.stderr,
            )
            continue
        found.append(json.loads(done.stdout))
        print(f"{n} states: {found[-1]['adjoint']:.2f} s for the gradient", file=sys.stderr)
    return found


def table(found: list[dict[str, Any]]) -> str:
    """Format the results as Markdown."""
    rows = [["states", "events", "steps", "build, s", "simulate, s", "adjoint, s", "adjoint, us per state and step",
             "adjoint / simulate", "memory simulate, MB", "memory adjoint, MB", "G"]]  # fmt: skip
    for row in found:
        work = 1e6 * row["adjoint"] / row["states"] / row["steps"]
        rows.append([
            f"{row['states']:,}", f"{row['events']}", f"{row['steps']}", f"{row['build']:.2f}",
            f"{row['simulate']:.3f}", f"{row['adjoint']:.3f}", f"{work:.3f}", f"{row['adjoint'] / row['simulate']:.1f}",
            f"{row['memory of simulate']:.0f}", f"{row['memory']:.0f}", f"{row['G']:.6f}",
        ])  # fmt: skip
    bar = "|" + "|".join("---:" for _ in rows[0]) + "|"
    return "\n".join(["| " + " | ".join(rows[0]) + " |", bar, *("| " + " | ".join(r) + " |" for r in rows[1:])]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", type=int)
    parser.add_argument("--quick", action="store_true", help="up to 2,000 states only")
    parser.add_argument("--markdown", action="store_true", help="nothing but the table")
    parser.add_argument("--solver", default="auto")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.one, given.solver)))
        return
    text = table(in_processes(given.sizes or (SIZES[:2] if given.quick else SIZES), given.solver))
    print(text if given.markdown else f"{text}\nTimes are wall clock, with whatever else the machine does.")
    if given.write:
        put(DOCUMENT, {"strip": text})


if __name__ == "__main__":
    main()
