"""Growth of the cost of a build with guards, times, modes, transitions, measurements, nested terms and bodies.

    python benchmarks/builds.py [--only NAME ...] [--largest N] [--write]

Every model is built in a process of its own that finds nothing in the cache, and once more from the cache. CPU time of
Python and of the C compiler, peak memory of both; the first call of `simulate` and later calls of all analyses. The
exponent is that of the CPU time of the first build from the size above. `--write` puts the table into
docs/large_systems.md, where rows of other models than those measured stay as they are.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import casadi as ca
import numpy as np
from measuring import exponent, least_ms, show

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from growing import bars, exits, guards, ring, spikes, tree

import dae_hybrid as dh
from dae_hybrid.mechanics import ALI3P, Index1, Mechanism

PAGE = Path(__file__).resolve().parent.parent / "docs" / "large_systems.md"
OPTIONS: dict[str, Any] = {"rtol": 1e-6}
TIMEOUT = 600


def doses(n: int) -> dh.HybridModel:
    """Doses of several sizes at times that a parameter stretches, one transition for each."""
    m = dh.HybridModel("doses")
    x, p, tau = m.differential("x"), m.parameter("p", 1.0), m.parameter("tau", 0.9)
    run = m.mode("run", ode={x: 1 - p * x})
    for i in range(n):
        m.transition(run, run, at=(i + 0.7) / n * tau, reset={x: x + (0.21 + i % 7) / n})
    m.initial(run, {x: 0.0})
    m.functional("G", terminal=x)
    return m


def measurements(n: int) -> dh.HybridModel:
    """A sum of squares over many times."""
    m = dh.HybridModel("measurements")
    x, p = m.differential("x"), m.parameter("p", 1.0)
    run = m.mode("run", ode={x: 1 - p * x})
    m.initial(run, {x: 0.0})
    times, data = np.linspace((0.0, 0.0), (1.0, 0.6), n + 2)[1:-1].T
    m.functional("G", at_times={float(t): (x - d) ** 2 for t, d in zip(times, data, strict=True)})
    return m


def series(n: int) -> dh.HybridModel:
    """The same measurements, stated as one array."""
    m = dh.HybridModel("series")
    x, p = m.differential("x"), m.parameter("p", 1.0)
    run = m.mode("run", ode={x: 1 - p * x})
    m.initial(run, {x: 0.0})
    times, data = np.linspace((0.0, 0.0), (1.0, 0.6), n + 2)[1:-1].T
    m.functional("G", at_times=[(times, (x - data) ** 2)])
    return m


def nested(n: int) -> dh.HybridModel:
    """A chain of nested terms."""
    m = dh.HybridModel("nested")
    x, p = m.differential("x"), m.parameter("p", 1.0)
    term = x
    for _ in range(n):
        term = ca.sin(term) / 2 + p * x
    run = m.mode("run", ode={x: 1 - term})
    m.initial(run, {x: 0.0})
    m.functional("G", terminal=x)
    return m


def chain(n: int) -> Mechanism:
    """A pendulum of bars with ground under its tip and a stop in its second joint."""
    return bars(n, contacts=True)


def contact(n: int) -> Mechanism:
    """A chain of bodies in joint coordinates with ground under its tip."""
    return tree(n, contact=True)


#: model, arguments of `build`, and sizes
PROBLEMS: dict[str, tuple[Callable[[int], dh.HybridModel | Mechanism], tuple[Any, ...], tuple[int, ...]]] = {
    "guards": (guards, (), (25, 50, 100, 200, 400)),
    "spikes": (spikes, (), (25, 50, 100, 200)),
    "doses": (doses, (), (100, 300, 600, 1_000, 1_500, 3_000, 10_000)),
    "ring": (ring, (), (25, 50, 100, 200, 500, 1_000, 2_000)),
    "exits": (exits, (), (100, 500, 2_000)),
    "measurements": (measurements, (), (100, 1_000, 5_000, 20_000, 100_000)),
    "series": (series, (), (100, 1_000, 5_000, 20_000, 100_000)),
    "nested": (nested, (), (125, 250, 500, 1_000)),
    "bars": (bars, (), (3, 6, 12, 25, 50, 100)),
    "bars_index1": (bars, (Index1(),), (3, 6, 12, 25, 50, 100)),
    "contacts": (chain, (), (12, 20, 40, 100)),
    "tree": (tree, (), (3, 6, 12, 25, 50, 100, 200)),
    "tree_contact": (contact, (), (3, 6, 12, 25, 50)),
    "tree_ali3p": (tree, (ALI3P(),), (3, 6, 12, 25, 50, 100, 200)),
    "contacts_index1": (chain, (Index1(),), (12, 20, 40, 100)),
}
#: further options of runs
FURTHER: dict[str, dict[str, Any]] = {"tree_ali3p": {"adapter": "ali3p", "fixed_step": 0.01}}
HEADINGS = (
    "model", "size", "Python, s", "compiler, s", "cached, s", "peak, MB", "exponent", "first simulate, ms",
    "simulate, ms", "forward, ms", "adjoint, ms",
)  # fmt: skip


def measured(name: str, n: int) -> dict[str, float]:
    """One build and its calls, in this process."""
    start, (statement, arguments, _) = time.process_time(), PROBLEMS[name]
    system = statement(n).build(*arguments)
    found = {"python": time.process_time() - start}
    compiler = resource.getrusage(resource.RUSAGE_CHILDREN)
    found["compiler"] = compiler.ru_utime + compiler.ru_stime
    found["peak"] = max(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, compiler.ru_maxrss) / 1024
    span, options = (0.0, 1.0), OPTIONS | FURTHER.get(name, {})
    start = time.process_time()
    dh.simulate(system, span, **options)
    found["first"] = 1e3 * (time.process_time() - start)
    for key, call in (
        ("simulate", lambda: dh.simulate(system, span, **options)),
        ("forward", lambda: dh.forward_sensitivity(system, span, **options)),
        ("adjoint", lambda: dh.adjoint_gradient(system, span, "G", **options)),
    ):
        found[key] = least_ms(call)
    start = time.process_time()
    statement(n).build(*arguments)
    return found | {"cached": time.process_time() - start}


def apart(name: str, n: int) -> dict[str, float]:
    """Measure in a separate process whose cache contains the driver only."""
    with tempfile.TemporaryDirectory() as scratch:
        cache = Path(scratch) / "cache"
        shutil.copytree(driver_alone(), cache)
        found: dict[str, float] = json.loads(in_a_process(cache, name, n))
    return found


@functools.cache
def driver_alone() -> Path:
    """A cache with the libraries common to all models."""
    scratch = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, scratch)
    in_a_process(Path(scratch), "ring", 1)
    return Path(scratch)


def in_a_process(cache: Path, name: str, n: int) -> str:
    """Output of a child process."""
    environment = os.environ | {"DAE_HYBRID_CACHE": str(cache), "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).resolve()), "--child", name, str(n)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=True).stdout


def table(names: Sequence[str], largest: int) -> list[list[str]]:
    """A row for every size."""
    rows = [list(HEADINGS)]
    for name in names:
        before: tuple[int, float] | None = None
        for n in PROBLEMS[name][2]:
            if n > largest:
                break
            found = apart(name, n)
            cost = found["python"] + found["compiler"]
            grown = "" if before is None else f"{exponent(before[1], cost, n / before[0]):.2f}"
            before = n, cost
            seconds = [f"{found[key]:.2f}" for key in ("python", "compiler", "cached")]
            calls = [f"{found[key]:.3g}" for key in ("first", "simulate", "forward", "adjoint")]
            rows.append([name, str(n), *seconds, f"{found['peak']:.0f}", grown, *calls])
            print(*rows[-1], flush=True)
    return rows


def written(page: Path) -> list[list[str]]:
    """The rows that stand in the page."""
    lines = page.read_text(encoding="utf-8").partition("<!-- builds: begin")[2].partition("<!-- builds: end")[0]
    _, _, dashes, *rows = lines.splitlines()
    spans = [found.span() for found in re.finditer("-+", dashes)]
    return [[row[begin:end].strip() for begin, end in spans] for row in rows if row.strip()]


def sorted_by_model(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Headings, and the rows in the order of `PROBLEMS`."""
    headings, *others = map(list, rows)
    order = {name: i for i, name in enumerate(PROBLEMS)}
    return [headings, *sorted(others, key=lambda row: order[row[0]])]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", choices=PROBLEMS, default=list(PROBLEMS), metavar="NAME")
    parser.add_argument("--largest", type=int, default=10**9, help="leave out larger sizes")
    parser.add_argument("--write", action="store_true", help="put the table into docs/large_systems.md")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measured(given.child[0], int(given.child[1]))))
        return
    rows = table(given.only, given.largest)
    if given.write:
        rows = sorted_by_model([*rows, *(row for row in written(PAGE) if row[0] not in given.only)])
    show(rows, PAGE if given.write else None, "builds")


if __name__ == "__main__":
    main()
