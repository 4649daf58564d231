"""Cost of runs in batches and prepared calls, compared with single calls and a pool of threads.

    python benchmarks/batch.py [--repeats 3] [--only threads] [--write]

CPU time, and wall time for threads; other load affects wall times, not CPU times. Repeats of the compared calls
alternate, and the least time of each counts. ``--write`` puts the tables
into docs/batches.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any, Self

import casadi as ca
import numpy as np
from cases import P3
from measuring import put
from peers.ours import ball

import dae_hybrid as dh
from dae_hybrid.problems import em_hysteresis, hybrid_ode
from dae_hybrid.tables import align

PAGE = Path(__file__).resolve().parent.parent / "docs" / "batches.md"
OPTIONS: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-12}
LOOSE: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-9}
ANALYSES: dict[str | None, Callable[..., Any]] = {
    None: dh.simulate,
    "forward": dh.forward_sensitivity,
    "adjoint": dh.adjoint_gradient,
}
type Call = Callable[[], Any]


def linear() -> dh.HybridSystem:
    """x' = -a x."""
    m = dh.HybridModel("linear")
    a, x = m.parameter("a", 1.0), m.differential("x")
    m.initial(m.mode("run", ode={x: -a * x}), {x: 1.0})
    m.functional("G", terminal=x)
    return m.build()


def net(width: int = 50) -> dh.HybridSystem:
    """A relay that a small network of 203 parameters drives: x'' + x' / 10 + x = w . tanh(u x + b) + side."""
    m = dh.HybridModel("net")
    weights = {
        name: m.parameter(name, np.linspace(-1, 1, width) * k) for name, k in (("u", 1.0), ("q", 0.7), ("b", 0.4))
    }
    out = m.parameter("w", np.linspace(-1, 1, width) / width)
    push, damping, cost = m.parameter("push", 0.3), m.parameter("damping", 0.1), m.parameter("cost", 1.0)
    x, v = m.differential("x"), m.differential("v")
    force = ca.dot(out, ca.tanh(weights["u"] * x + weights["q"] * v + weights["b"]))
    up, down = (
        m.mode(name, ode={x: v, v: force - x - damping * v + side * push}) for name, side in (("up", 1), ("down", -1))
    )
    m.transition(up, down, guard=x - 0.5, direction="rising")
    m.transition(down, up, guard=x + 0.5, direction="falling")
    m.initial(up, {x: 0.0, v: 0.0})
    m.functional("G", integrand=cost * x**2)
    return m.build()


def calibration(count: int = 50) -> dh.HybridSystem:
    """A damped oscillator with a stop and `count` measurements: the sum of squared residuals."""
    m = dh.HybridModel("calibration")
    k, c, e, x0 = (m.parameter(name, value) for name, value in (("k", 4.0), ("c", 0.3), ("e", 0.8), ("x0", 1.0)))
    x, v = m.differential("x"), m.differential("v")
    run = m.mode("run", ode={x: v, v: -k * x - c * v})
    m.transition(run, run, guard=x + 0.5, direction="falling", reset={v: -e * v})
    m.initial(run, {x: x0, v: 0.0})
    times = np.linspace(0.0, 10.0, count)
    m.functional("G", at_times=[(t, (x - np.cos(1.9 * t)) ** 2) for t in times.tolist()])
    return m.build()


def clock() -> dh.HybridSystem:
    """A lag under a controller that looks at it once in a period, a parameter; looking costs."""
    m = dh.HybridModel("clock")
    period, gain, x, u = (
        m.parameter("period", 0.0997),
        m.parameter("gain", 2.0),
        m.differential("x"),
        m.memory("u", initial=1.0),
    )
    run = m.mode("run", ode={x: u - x})
    tick = m.transition(run, run, every=period, memory={u: gain * (ca.sin(m.time) - x)})
    m.initial(run, {x: 0.0})
    m.functional("G", integrand=(x - ca.sin(m.time)) ** 2, at_events={tick: 1e-3 * u**2})
    return m.build()


def again(count: int, call: Call) -> None:
    """So many calls."""
    for _ in range(count):
        call()


def least(calls: dict[str, Call], repeats: int, clock: Callable[[], float]) -> dict[str, float]:
    """The least time of each, taken in turn after one round that does not count."""
    found = dict.fromkeys(calls, np.inf)
    for k in range(repeats + 1):
        for name, call in calls.items():
            begin = clock()
            call()
            if k:
                found[name] = min(found[name], clock() - begin)
    return found


def prepared(repeats: int) -> list[list[str]]:
    """Prepared calls compared with ordinary ones, in microseconds of CPU time."""
    rows = [["problem", "analysis", "single call, us", "prepared, us", "ratio"]]
    problems = {
        "a linear equation": (linear(), (0.0, 1.0)),
        "P1, 3 events": (hybrid_ode.system(), (0.0, 5.0)),
        "P3, 6 events": (ball(P3).build(), P3.span),
    }
    for title, (system, span) in problems.items():
        for analysis, call in ANALYSES.items():
            run = dh.prepare(system, span, derivatives=analysis, **LOOSE)
            calls = {
                "single": partial(again, 20, partial(call, system, span, parameters=system.nominal, **LOOSE)),
                "prepared": partial(again, 200, partial(run, system.nominal)),
            }
            found = least(calls, repeats, time.process_time)
            one, other = 1e6 * found["single"] / 20, 1e6 * found["prepared"] / 200
            rows.append([title, analysis or "simulate", f"{one:.0f}", f"{other:.1f}", f"{one / other:.1f}"])
    return rows


def batches(repeats: int) -> list[list[str]]:
    """Batches on one thread compared with single calls: CPU time of a run, and the number of native runs."""
    rows = [["batch", "analysis", "single call, us", "batch, us a run", "ratio", "native"]]
    rng = np.random.default_rng(0)
    system, relay, em = ball(P3).build(), net(), em_hysteresis.system()
    balls = np.stack((rng.uniform(0.8, 0.9, 10_000), rng.uniform(9.0, 10.0, 10_000)), axis=1)
    problems = [
        ("10,000 bouncing balls", system, P3.span, {"parameters": balls}),
        ("32 starts, 203 parameters", relay, (0.0, 10.0), {"x0": rng.uniform(-0.3, 0.3, (32, 2))}),
        ("1,000 calibrations, 50 data", calibration(), (0.0, 10.0), {"parameters": {"k": rng.uniform(3.0, 5.0, 1000)}}),
        ("1,000 clocks, 50 ticks", clock(), (0.0, 5.0), {"parameters": {"period": rng.uniform(0.09, 0.1, 1000)}}),
        ("200 hysteretic oscillators", em, em_hysteresis.t_span, {"parameters": {"ka": np.linspace(300, 330, 200)}}),
    ]
    for title, own, span, given in problems:
        for analysis in ("forward", "adjoint"):
            if own is relay and analysis == "forward":
                continue
            many_runs = partial(dh.batch, own, span, gradient=analysis, workers=1, **given, **OPTIONS)
            found = many_runs()
            calls = {
                "single": partial(again, 5, partial(ANALYSES[analysis], own, span, **OPTIONS)),
                "batch": many_runs,
            }
            took = least(calls, repeats, time.process_time)
            one, many = 1e6 * took["single"] / 5, 1e6 * took["batch"] / len(found)
            share = f"{found.statistics['native']} of {len(found)}"
            rows.append([title, analysis, f"{one:.0f}", f"{many:.0f}", f"{one / many:.1f}", share])
    return rows


def threads(repeats: int, count: int) -> list[list[str]]:
    """Gradients of the hysteretic oscillator on one thread and on more, in wall time."""
    system, values = em_hysteresis.system(), np.linspace(300.0, 330.0, count)
    span = em_hysteresis.t_span

    def pool(n: int) -> None:
        def gradient(ka: float) -> Any:
            return dh.adjoint_gradient(system, span, "G", parameters={"ka": ka}, **OPTIONS).gradient

        with ThreadPoolExecutor(n) as own:
            list(own.map(gradient, values))

    def batch(n: int) -> None:
        dh.batch(system, span, parameters={"ka": values}, gradient="adjoint", workers=n, **OPTIONS)

    calls: dict[str, Call] = {}
    with Processes(count) as processes:
        for n in (1, 2):
            calls[f"batch on {n}"] = partial(batch, n)
            calls[f"single calls in a pool of {n}"] = partial(pool, n)
            calls[f"batches on 1 in processes, {n}"] = partial(processes.run, n)
        wall = least(calls, repeats, time.perf_counter)
        cpu = least(calls, repeats, lambda: time.process_time() + processes.cpu)
    rows = [["EM gradients", "wall, ms each", "CPU, ms each", "rate beside one", "CPU beside one"]]
    for name in wall:
        done, one = count * (int(name[-1]) if "processes" in name else 1), f"{name[:-1]}1"
        each = [clock[name] / done for clock in (wall, cpu)]
        alone = [clock[one] / count for clock in (wall, cpu)]
        ratios = f"{alone[0] / each[0]:.2f}", f"{each[1] / alone[1]:.2f}"
        rows.append([name, *(f"{1e3 * seconds:.2f}" for seconds in each), *ratios])
    return rows


class Processes:
    """Processes that each run the same batch on one thread on request: the throughput limit of the machine."""

    def __init__(self, count: int) -> None:
        command = [sys.executable, __file__, "--count", str(count), "--on-command"]
        self._processes = [Popen(command, stdin=PIPE, stdout=PIPE, text=True) for _ in range(2)]
        self.cpu = 0.0  # seconds of all of them

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.communicate("")

    def run(self, n: int) -> None:
        """A batch in each of n processes at a time."""
        for process in self._processes[:n]:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in self._processes[:n]:
            assert process.stdout is not None
            self.cpu += float(process.stdout.readline())


def on_command(count: int) -> None:
    """For every line that is read make a batch, and say how much CPU time it took."""
    system, values = em_hysteresis.system(), np.linspace(300.0, 330.0, count)
    for _ in sys.stdin:
        begin = time.process_time()
        dh.batch(system, em_hysteresis.t_span, parameters={"ka": values}, gradient="adjoint", workers=1, **OPTIONS)
        print(time.process_time() - begin, flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--count", type=int, default=200, help="gradients of the table of threads")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/batches.md")
    parser.add_argument("--only", nargs="+", choices=("prepared", "batches", "threads"), help="make these tables alone")
    parser.add_argument("--on-command", action="store_true", help="make a batch for every line that is read")
    arguments = parser.parse_args()
    if arguments.on_command:
        on_command(arguments.count)
        return
    makers: dict[str, Callable[[], list[list[str]]]] = {
        "prepared": partial(prepared, arguments.repeats),
        "batches": partial(batches, arguments.repeats),
        "threads": partial(threads, arguments.repeats, arguments.count),
    }
    tables = {name: makers[name]() for name in arguments.only or makers}
    texts = {name: "\n".join(align(rows, left=range(2 if name != "threads" else 1))) for name, rows in tables.items()}
    print("\n\n".join(texts.values()))
    if arguments.write:
        put(PAGE, {name: f"```\n{text}\n```" for name, text in texts.items()})


if __name__ == "__main__":
    main()
