"""Cost and gain of the C compiler: builds, optimisation levels, and compiled against interpreted runs.

    python benchmarks/compiler.py [--only TABLE ...] [--write]

The EM oscillator and the loop around all models in processes of their own, from nothing and from the cache; texts of
straight statements compiled by ``-O1`` and ``-O2``, with warm calls in pairs; interpreted and compiled runs at rtol
1e-8. `--write` puts the tables into docs/speed.md.
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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from measuring import put

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from growing import ring
from models import ball, circuit

import dae_hybrid as dh
from dae_hybrid.codegen import compiler
from dae_hybrid.problems import em_hysteresis, hybrid_ode
from dae_hybrid.tables import markdown

PAGE = Path(__file__).resolve().parent.parent / "docs" / "speed.md"
OPTIONS: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-12}
PAIRS = 100
#: statement, span and functional
MODELS: dict[str, tuple[Callable[[], dh.HybridModel], tuple[float, float], str]] = {
    "EM oscillator": (em_hysteresis.model, (0.0, 10.0), "G"),
    "hybrid ODE": (hybrid_ode.model, (0.0, 5.0), "G"),
    "ring of 20 modes": (lambda: ring(20), (0.0, 1.0), "G"),
    "ball": (ball, (0.0, 3.0), "height"),
    "circuit": (circuit, (0.0, 2.0), "work"),
}


def compilers() -> float:
    """CPU time of child processes so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def child() -> None:
    """A build and a first run of the EM oscillator, each in seconds of CPU time: Python, compiler."""
    found = []

    def clock() -> np.ndarray:
        return np.array([time.process_time(), compilers()])

    start = clock()
    system = em_hysteresis.model().build()
    found.append((clock() - start).tolist())
    start = clock()
    dh.simulate(system, (0, 10), **OPTIONS)
    found.append((clock() - start).tolist())
    start = clock()
    em_hysteresis.model().build()
    print(json.dumps([*found, (clock() - start).tolist()]))


def builds() -> list[list[str]]:
    """From nothing and from the cache."""
    rows = [["EM oscillator", "Python, s", "compiler, s"]]
    names = ("first build", "first run, with the loop", "second build in a process")
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"DAE_HYBRID_CACHE": cache, "OPENBLAS_NUM_THREADS": "1"}
        for when in ("nothing in the cache", "from the cache"):
            command = [sys.executable, str(Path(__file__).resolve()), "--child"]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
            for name, numbers in zip(names, json.loads(done.stdout), strict=True):
                rows.append([f"{name}, {when}", *(f"{x:.3f}" for x in numbers)])
    return rows[:3] + rows[4:]


def calls(span: tuple[float, float], name: str, **more: Any) -> dict[str, Callable[[dh.HybridSystem], Any]]:
    """The compared calls, by name."""
    given = OPTIONS | more
    return {
        "simulate": lambda s: dh.simulate(s, span, **given).functionals[name],
        "forward": lambda s: dh.forward_sensitivity(s, span, **given).gradient[name],
        "adjoint": lambda s: dh.adjoint_gradient(s, span, name, **given).gradient,
    }


def effort() -> list[list[str]]:
    """CPU time of the compiler, and of warm calls in pairs: medians of -O1 over those of -O2."""
    rows = [["model", "-O2, s", "-O1, s", "simulate", "forward", "adjoint", "same bits"]]
    less = compiler.STRAIGHT
    for title in ("EM oscillator", "hybrid ODE", "ring of 20 modes"):
        state, span, name = MODELS[title]
        systems, seconds = [], []
        for flags in (compiler.FLAGS, less):
            compiler.STRAIGHT = flags
            start = compilers()
            systems.append(state().build())
            seconds.append(f"{compilers() - start:.2f}")
        ratios, same = [], True
        for call in calls(span, name).values():
            times: tuple[list[float], list[float]] = ([], [])
            same = same and np.array_equal(*map(call, systems))
            for i in range(PAIRS):
                for which in (i % 2, 1 - i % 2):
                    start = time.process_time()
                    call(systems[which])
                    times[which].append(time.process_time() - start)
            ratios.append(f"{median(times[1]) / median(times[0]):.3f}")
        rows.append([title, *seconds, *ratios, "yes" if same else "no"])
    return rows


def engines() -> list[list[str]]:
    """Largest relative differences of interpreted and compiled runs."""
    rows = [["model", "method", "value", "forward", "adjoint"]]
    for title in ("EM oscillator", "hybrid ODE", "ball", "circuit"):
        state, span, name = MODELS[title]
        systems = state().build(), state().build(native=False)
        for method in ("bdf", "adams", "auto"):
            with suppress(dh.UnsupportedError):
                found = []
                for call in calls(span, name, method=method).values():
                    one, other = (np.atleast_1d(call(system)) for system in systems)
                    found.append(f"{np.abs(one - other).max() / np.abs(one).max():.0e}")
                rows.append([title, method, *found])
    return rows


TABLES = {"first_builds": builds, "effort": effort, "engines": engines}


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=TABLES, default=list(TABLES), metavar="TABLE")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/speed.md")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child()
        return
    tables = {}
    with tempfile.TemporaryDirectory() as cache:
        os.environ["DAE_HYBRID_CACHE"] = cache
        dh.simulate(ball().build(), (0, 1))  # the loop
        for name in given.only:
            tables[name] = TABLES[name]()
    texts = {name: markdown(rows) for name, rows in tables.items()}
    print(*texts.values(), sep="\n\n")
    if given.write:
        put(PAGE, texts)


if __name__ == "__main__":
    main()
