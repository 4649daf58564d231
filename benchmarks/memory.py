"""Memory of the process over 20,000 solves and 5,000 gradients of the hysteretic oscillator.

    python benchmarks/memory.py [--solves 20000] [--gradients 5000]

Prints the resident memory after a warm-up, on the way and at the end, and fails when it has grown by more
than 4 MB. Half of the gradients are by forward, half by adjoint analysis; one solve in ten fails on
purpose, at its step limit. Linux only: it reads /proc.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import dae_hybrid as dh
from dae_hybrid.problems import em_hysteresis

ALLOWED = 4e6  # bytes
SPAN = (0.0, 1.0)  # two reversals: what leaks, leaks per segment, not per step


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def solve(system: dh.HybridSystem, i: int) -> None:
    parameters = {"ka": system.nominal[0] * (1 + 1e-3 * (i % 7))}
    if i % 10:
        dh.simulate(system, SPAN, parameters=parameters)
        return
    try:
        dh.simulate(system, SPAN, parameters=parameters, max_steps=20)
    except dh.StepLimitError:
        return
    raise AssertionError("the step limit was not reached")


def differentiate(system: dh.HybridSystem, i: int) -> None:
    if i % 2:
        dh.adjoint_gradient(system, SPAN, "G")
    else:
        dh.forward_sensitivity(system, SPAN)


def watch(what: str, work: Callable[[dh.HybridSystem, int], None], system: dh.HybridSystem, count: int) -> None:
    start = time.perf_counter()
    for i in range(count):
        work(system, i)
        if (i + 1) % max(count // 5, 1) == 0:
            print(
                f"  {i + 1:6d} {what:10s} {resident() / 1e6:8.2f} MB  {time.perf_counter() - start:6.1f} s", flush=True
            )


def main(solves: int = 20_000, gradients: int = 5_000) -> int:
    system = em_hysteresis.system()
    for i in range(500):
        solve(system, i)
        differentiate(system, i)
    before = resident()
    print(f"after the warm-up {before / 1e6:8.2f} MB")
    watch("solves", solve, system, solves)
    watch("gradients", differentiate, system, gradients)
    grown = resident() - before
    print(f"grown by          {grown / 1e6:8.2f} MB over {solves} solves and {gradients} gradients")
    return int(grown > ALLOWED)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--solves", type=int, default=20_000)
    parser.add_argument("--gradients", type=int, default=5_000)
    sys.exit(main(**vars(parser.parse_args())))
