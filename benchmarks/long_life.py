"""Memory of a process over 200,000 solves of all kinds, some of which fail.

    python benchmarks/long_life.py [--solves 200000]

Each solve is one of simulate, forward_sensitivity, adjoint_gradient, and a run that fails: at its step limit, at a
NaN or in an argument; on a hybrid ODE (CVODES) and a hybrid DAE (IDAS), with changing parameters. Prints the resident
memory on the way and its growth per thousand solves after the warm-up, and fails where the results of the first
solves do not come back to the bit at the end, or the memory has grown by more than 4 MB. Linux only: it reads /proc.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import casadi as ca
import numpy as np

import dae_hybrid as dh

ALLOWED = 4e6  # bytes
SPAN = (0.0, 1.0)
PARTS = 20


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def ball() -> dh.HybridSystem:
    m = dh.HybridModel("ball")
    e, g = m.parameter("e", 0.8), m.parameter("g", 9.81)
    y, v = m.differential("y"), m.differential("v")
    flight = m.mode("flight", ode={y: v, v: -g - 0.1 * v * ca.fabs(v)})
    m.transition(flight, flight, guard=y, direction="falling", reset={v: -e * v}, name="bounce")
    m.initial(flight, {y: 1.0, v: 0.0})
    m.functional("height", integrand=y)
    return m.build()


def circuit() -> dh.HybridSystem:
    m = dh.HybridModel("circuit")
    k, q = m.parameter("k", 1.2), m.parameter("q", 2.0)
    y, z = m.differential("y"), m.algebraic("z")
    first = m.mode("first", ode={y: -z}, algebraic=[z - k * y])
    second = m.mode("second", ode={y: -z}, algebraic=[z + z**3 - q * y])
    m.transition(first, second, guard=y - 0.5, direction="falling", name="switch")
    m.initial(first, {y: 1.0})
    m.functional("work", integrand=z**2)
    return m.build(eliminate=False)


def breakdown() -> dh.HybridSystem:
    m = dh.HybridModel("breakdown")
    a = m.parameter("a", 1.0)
    y = m.differential("y")
    run = m.mode("run", ode={y: -a / ca.sqrt(y)})
    m.transition(run, run, at=0.25)
    m.initial(run, {y: 1.0})
    m.functional("area", integrand=y)
    return m.build()


def fails(run: Callable[[], object]) -> float:
    try:
        run()
    except dh.DaeHybridError as error:
        return float(error.time or 0.0)
    raise AssertionError("the run was to fail")


class Work:
    """The i-th solve, and a number that came out of it."""

    def __init__(self) -> None:
        self.systems = ball(), circuit()
        self.breaking = breakdown()

    def __call__(self, i: int) -> float:
        kind, i = i % 10, i // 10
        system = self.systems[i % 2]
        p = np.asarray(system.nominal) * (1 + 1e-3 * (i % 7))
        if kind < 4:
            run = dh.simulate(system, SPAN, parameters=p, t_eval=[0.5, 1.0] if kind == 3 else None)
            return float(run.functionals[system.functionals.names[0]])
        if kind < 6:
            return float(dh.forward_sensitivity(system, SPAN, parameters=p).gradient[system.functionals.names[0]][0])
        if kind < 8:
            return float(dh.adjoint_gradient(system, SPAN, parameters=p).gradient[0])
        if kind == 8:
            return fails(lambda: dh.simulate(system, SPAN, parameters=p, max_steps=3 + i % 5))
        ways = (
            lambda: dh.simulate(self.breaking, SPAN),
            lambda: dh.forward_sensitivity(self.breaking, SPAN),
            lambda: dh.adjoint_gradient(self.breaking, SPAN),
            lambda: dh.simulate(system, SPAN, parameters={"nothing": 1.0}),
        )
        return fails(ways[i % 4])


def main(solves: int = 200_000) -> int:
    work = Work()
    warm = min(max(solves // 20, 280), 4000)
    first = [work(i) for i in range(280)]
    for i in range(warm - 280):
        work(i)
    before, start, points = resident(), time.perf_counter(), []
    print(f"{0:8d} solves  {before / 1e6:8.2f} MB  after a warm-up of {warm}", flush=True)
    for part in range(1, PARTS + 1):
        for i in range((part - 1) * solves // PARTS, part * solves // PARTS):
            work(i)
        points.append((part * solves // PARTS, resident()))
        print(
            f"{points[-1][0]:8d} solves  {points[-1][1] / 1e6:8.2f} MB  {time.perf_counter() - start:7.1f} s",
            flush=True,
        )
    counts, sizes = np.array(points, dtype=float).T
    slope = float(np.polyfit(counts / 1e3, sizes, 1)[0])
    same = [work(i) for i in range(280)] == first
    print(f"growth {(sizes[-1] - before) / 1e6:.2f} MB in all, {slope:.0f} bytes per thousand solves (least squares)")
    print("the first solves come back to the bit" if same else "the first solves do NOT come back to the bit")
    return int(not same or sizes[-1] - before > ALLOWED)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--solves", type=int, default=200_000)
    sys.exit(main(**vars(parser.parse_args())))
