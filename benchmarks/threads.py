"""How gradients over a set of parameters scale with threads.

    python benchmarks/threads.py [--count 400] [--repeats 5]

Wall time of the same adjoint gradients of the EM model, one after the other and on a pool of threads, in turn; what
counts is the ratio.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import numpy as np

import dae_hybrid as dh
from dae_hybrid.problems import em_hysteresis


def seconds(threads: int, values: np.ndarray, system: dh.HybridSystem) -> float:
    """Wall time of the gradients at these values of a parameter."""

    def gradient(ka: float) -> np.ndarray:
        span = em_hysteresis.t_span
        return dh.adjoint_gradient(system, span, "G", parameters={"ka": ka}, rtol=1e-8, atol=1e-12).gradient

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(gradient, values[: 4 * threads]))
        start = time.perf_counter()
        list(pool.map(gradient, values))
        return time.perf_counter() - start


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_args()
    system = em_hysteresis.system()
    values = np.linspace(300.0, 330.0, arguments.count)
    times = {n: [] for n in arguments.threads}
    for _ in range(arguments.repeats):
        for n, found in times.items():
            found.append(seconds(n, values, system))
    base = median(times[arguments.threads[0]])
    print(f"{'threads':>7} {'ms per gradient':>16} {'speed-up':>9}")
    for n, found in times.items():
        print(f"{n:7d} {1e3 * median(found) / arguments.count:16.3f} {base / median(found):9.2f}")


if __name__ == "__main__":
    main()
