"""Cost of outputs, dense output and events of a result, and memory of a run by `keep`.

    python benchmarks/outputs.py [--largest N] [--events N] [--only TABLE ...] [--write]

CPU time of a run, and of what is asked of a fresh one; warm, the least of a few calls. The exponents of growth are
those of the two largest sizes. Memory is the peak of a process of its own beyond that of a short run (on Linux).
`--write` puts the tables into docs/speed.md.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from growth import ANALYSES, OPTIONS, PAGE, PROBLEMS
from measuring import exponent, least_ms, put

import dae_hybrid as dh
from dae_hybrid.problems import em_hysteresis
from dae_hybrid.tables import align, markdown

LIMITS: dict[str, Any] = {"max_events": 10**8, "max_steps": 10**9}
#: queries of a result with outputs at n times
ASKED: dict[str, Callable[[Any, np.ndarray], Any]] = {
    "sol.t, three columns": lambda sol, times: (sol.t, [sol[name] for name in sol.names[:3]]),
    "sol(times)": lambda sol, times: sol(times),
    "to_dataframe": lambda sol, times: sol.to_dataframe(),
    "len(sol.events)": lambda sol, times: len(sol.events),
    "event_table": lambda sol, times: sol.event_table.columns(),
}
#: values of `keep` whose memory is measured
KEPT = ("all", "events", "final")
#: values of `adjoint_memory` whose memory is measured
BOUNDS: dict[str, dict[str, float]] = {
    "all kept": {"adjoint_memory": 1e300},
    "default": {},
    "8e6": {"adjoint_memory": 8e6},
}


def hysteresis(_: int) -> tuple[dh.HybridSystem, float]:
    """19 reversals, whatever the outputs."""
    return em_hysteresis.system(), 10.0


def with_events(name: str) -> Callable[[int], tuple[dh.HybridSystem, float]]:
    """As many events as outputs, and as many segments."""

    def make(n: int) -> tuple[dh.HybridSystem, float]:
        model, end, _ = PROBLEMS[name][0](n)
        return model.build(), end

    return make


CASES = {"hysteresis, 19 events": hysteresis, "ball": with_events("ball"), "thermostat": with_events("thermostat")}


def measure(largest: int) -> list[list[str]]:
    """The table of times."""
    rows = [["problem", "outputs", "run, ms", *(f"{what}, ms" for what in ASKED), "exponents"]]
    for title, make in CASES.items():
        before: tuple[int, list[float]] | None = None
        for n in [size for size in (10, 100, 1000, 10_000, 100_000) if size <= largest]:
            system, end = make(n)
            times = np.linspace(0, end, n)

            def run(system: dh.HybridSystem = system, end: float = end, times: np.ndarray = times) -> Any:
                return dh.simulate(system, (0, end), t_eval=times, **OPTIONS, **LIMITS)

            found = [least_ms(run)]
            for ask in ASKED.values():
                found.append(min(asking_ms(ask, run(), times) for _ in range(5 if n < largest else 2)))
            exponents = ""
            if before is not None and n == largest:
                pairs = zip(before[1], found, strict=True)
                exponents = " ".join(f"{growth(a, b, n / before[0]):.2f}" for a, b in pairs)
            rows.append([title, str(n), *(f"{t:.2f}" for t in found), exponents])
            print("  ".join(rows[-1]), flush=True)
            before = n, found
    return rows


def asking_ms(ask: Callable[[Any, np.ndarray], Any], sol: Any, times: np.ndarray) -> float:
    """CPU time of asking a result for something, in milliseconds."""
    start = time.process_time()
    ask(sol, times)
    return 1e3 * (time.process_time() - start)


def growth(a: float, b: float, factor: float) -> float:
    """Exponent of the growth of a time; zero if the time is too short to be measured."""
    return exponent(a, b, factor) if min(a, b) > 0.05 else 0.0


def peak_mb() -> float:
    """The most memory that this process has had since it began."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return float(status.partition("VmHWM:")[2].split()[0]) / 1e3


def apart(problem: str, analysis: str, n: int, **options: Any) -> tuple[float, float]:
    """Peak memory of an analysis with n events, in MB, and its CPU time, in s, measured in a process of its own."""
    code = f"import outputs; print(*outputs.peak_of({problem!r}, {analysis!r}, {n}, **{options!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    peak, seconds = map(float, done.stdout.split())
    return peak, seconds


def peak_of(problem: str, analysis: str, n: int, **options: Any) -> tuple[float, float]:
    """The same in this process, which has to be a fresh one."""
    system, end = with_events(problem)(n)
    run = partial(ANALYSES[analysis], system, **options, **OPTIONS, **LIMITS)
    run(10.0)
    before, begun = peak_mb(), time.process_time()
    run(end)
    return peak_mb() - before, time.process_time() - begun


def measure_memory(n: int) -> list[list[str]]:
    """The table of memory; of an adjoint with a tenth of the events."""
    rows = [["analysis", "events", *(f"keep={keep!r}, MB" for keep in KEPT)]]
    for analysis, size in (("simulate", n // 10), ("simulate", n), ("adjoint", n // 10)):
        found = (apart("ball", analysis, size, keep=keep)[0] for keep in KEPT)
        rows.append([analysis, f"{size:,}", *(f"{peak:.0f}" for peak in found)])
        print("  ".join(rows[-1]), flush=True)
    return rows


def measure_bounds(n: int) -> list[list[str]]:
    """The table of memory and time of adjoints by `adjoint_memory`; of a thermostat with a tenth of the events."""
    rows = [["problem", "events", *(f"{name}, {unit}" for name in BOUNDS for unit in ("MB", "s"))]]
    for problem, size in (("thermostat", n // 10), ("ball", n)):
        found = [apart(problem, "adjoint", size, keep="final", **more) for more in BOUNDS.values()]
        rows.append([problem, f"{size:,}", *(text for peak, s in found for text in (f"{peak:.0f}", f"{s:.1f}"))])
        print("  ".join(rows[-1]), flush=True)
    return rows


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", type=int, default=100_000, help="most outputs and events")
    parser.add_argument("--events", type=int, default=1_000_000, help="events of the runs whose memory is measured")
    parser.add_argument(
        "--only", nargs="+", choices=("outputs", "kept", "bounded"), help="which tables; by default all"
    )
    parser.add_argument("--write", action="store_true", help="put the tables into docs/speed.md")
    given = parser.parse_args()
    makers = {
        "outputs": lambda: measure(given.largest),
        "kept": lambda: measure_memory(given.events),
        "bounded": lambda: measure_bounds(given.events),
    }
    tables = {name: make() for name, make in makers.items() if name in (given.only or makers)}
    for rows in tables.values():
        print("", *align(rows), sep="\n")
    if given.write:
        put(PAGE, {name: markdown(rows) for name, rows in tables.items()})


if __name__ == "__main__":
    main()
