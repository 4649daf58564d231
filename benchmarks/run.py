"""Every problem through every package that is installed, side by side: ``python benchmarks/run.py``.

It writes docs/benchmarks.md and its pictures: value and gradient, their errors and what they cost, by tolerance. Peers
are optional. ``benchmarks/requirements/`` has a file for each; what is not installed is reported and left out. Packages
that do not go together live in environments of their own::

    python benchmarks/run.py --python diffrax=~/diffrax/bin/python --python amici=~/amici/bin/python

Every row of the tables is a process of its own, with a limit on its time: one that crashes or hangs loses that row.

``--quick`` takes less than a minute: P1 and P3 at two tolerances, and what it does not come to is left out; it prints
the summary and writes nothing unless it is told where. ``--json`` keeps the numbers, and ``--report`` writes the page
from such a file again. ``benchmarks/strip.py``, if it is there, is called with ``--markdown`` (and ``--quick``), and
what it prints becomes a section of the page.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cases import TITLES
from outcomes import ATOL, RTOL, Package, Results, Way, point
from peers import NAMES
from report import page, summary

HERE = Path(__file__).resolve().parent
RTOLS = tuple(10.0**-k for k in range(4, 12))
#: peers that take long to build: last where time is short
SLOW = ("diffrax", "amici")
QUICK = {"cases": ("P1", "P3"), "rtols": (1e-6,), "seconds": 0.05, "total": 50.0}


@dataclass(frozen=True)
class Settings:
    """Selection of the runs, and their limits of time.

    `pythons` are interpreters of peers that do not live in this one; `seconds` is how long a call is repeated;
    `timeout` is for one row and `total` for all; `cold` builds in a process of its own first; `rows` are all if empty;
    `keep` is a file for the numbers.
    """

    peers: Sequence[str] = NAMES
    cases: Sequence[str] = tuple(TITLES)
    rtols: Sequence[float] = RTOLS
    pythons: dict[str, str] = field(default_factory=dict)
    seconds: float = 1.0
    timeout: float = 300.0
    total: float = float("inf")
    cold: bool = True
    rows: Sequence[str] = ()
    keep: Path | None = None


def run(settings: Settings) -> Results:
    """Run all rows, and report progress."""
    results, end = Results(machine()), time.monotonic() + settings.total
    for peer in settings.peers:
        results.packages.append(survey(peer, settings))
        print(f"{peer}: {results.packages[-1].missing or results.packages[-1].version}", flush=True)
    with tempfile.TemporaryDirectory() as cache:
        jobs = [(case, package, row) for case in settings.cases for package, row in _rows(results, case, settings)]
        if settings.total < float("inf"):
            jobs.sort(key=lambda job: job[1].module in SLOW)
        for case, package, row in jobs:
            left = end - time.monotonic()
            if left <= 1:
                results.left_out.append(f"{case}, {package.name} {row}")
                continue
            print(f"{case}: {package.name} {row}", flush=True)
            results.ways.append(measure(package, case, row, settings, min(left, settings.timeout), Path(cache)))
            if settings.keep is not None:
                results.save(settings.keep)  # as it comes: a run takes long
    return results


def _rows(results: Results, case: str, settings: Settings) -> Iterator[tuple[Package, str]]:
    for package in results.packages:
        for row in package.rows.get(case, []):
            if not settings.rows or row in settings.rows:
                yield package, row


def survey(peer: str, settings: Settings) -> Package:
    """Capabilities of a peer."""
    replies, note = _worker(peer, None, settings, 60.0, None)
    for reply in replies:
        return Package(peer, **({"name": peer} | reply))
    return Package(peer, name=peer, missing=note)


def measure(package: Package, case: str, row: str, settings: Settings, timeout: float, cache: Path) -> Way:
    """Measure one row, in two processes if the first build is measured separately."""
    from peers.ours import exact

    way, truth = Way(package.name, case, row), exact(case)
    others = [rtol for rtol in settings.rtols if rtol != RTOL]
    tolerances = [(RTOL, ATOL), *((rtol, rtol * ATOL / RTOL) for rtol in others)]
    folder = Path(tempfile.mkdtemp(dir=cache))
    for build_only in (True, False) if settings.cold else (False,):
        job = {
            "case": case,
            "row": row,
            "tolerances": tolerances,
            "build_only": build_only,
            "seconds": settings.seconds,
        }
        replies, way.note = _worker(package.module, job, settings, timeout, folder)
        seconds = [reply["seconds"] for reply in replies if "first" in reply]
        builds = [reply["build"] for reply in replies if "build" in reply]
        if builds:
            way.build["first" if build_only or not settings.cold else "again"] = builds[0] + sum(seconds)
        way.points += [point(reply, truth) for reply in replies if "task" in reply]
        if way.note:
            break
    return way


def _worker(
    peer: str, job: dict[str, Any] | None, settings: Settings, timeout: float, cache: Path | None
) -> tuple[list[dict[str, Any]], str]:
    """Replies of a process, and what became of it if it did not end well."""
    command = [
        settings.pythons.get(peer, sys.executable),
        str(HERE / "worker.py"),
        peer,
        *([json.dumps(job)] if job else []),
    ]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    if cache is not None:
        environment |= {"BENCHMARK_CACHE": str(cache), "DAE_HYBRID_CACHE": str(cache)}
    try:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=cache,
            start_new_session=True,
        )
    except OSError as error:
        return [], f"its interpreter does not start: {error.strerror}"
    note = ""
    try:
        output, said = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # compilers that it has started, too
        output, said = process.communicate()
        note = f"stopped after {timeout:.0f} s"
    if not note and process.returncode:
        last = (said.strip().splitlines() or ["without a word"])[-1]
        died = f"signal {-process.returncode}" if process.returncode < 0 else f"status {process.returncode}"
        note = f"ended with {died}: {last[:150]}"
    return list(_parsed(output)), note


def _parsed(output: str) -> Iterator[dict[str, Any]]:
    for line in output.splitlines():
        try:
            yield json.loads(line)
        except ValueError:  # cut off in the middle
            return


def machine() -> dict[str, str]:
    """Properties of the machine that affect timings, without its name."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = lines[0] if lines else model
    compiler = os.environ.get("CC", "cc").split()[0]
    try:
        found = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        found = ["none"]
    return {
        "CPU": f"{model}, {os.cpu_count()} cores",
        "system": f"{platform.system()} {platform.machine()}",
        "Python": platform.python_version(),
        "compiler": found[0],
        "load before the run": f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown",
    }


def strip(quick: bool) -> str:
    """The section that strip.py writes, if it is there."""
    script = HERE / "strip.py"
    if not script.exists():
        return ""
    command = [sys.executable, str(script), "--markdown", *(["--quick"] if quick else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else f"It failed: {(done.stderr.strip().splitlines() or [''])[-1]}\n"


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="Peers: " + ", ".join(NAMES) + ".")
    parser.add_argument("--quick", action="store_true", help="less than a minute; writes nothing without --output")
    parser.add_argument("--peers", default=",".join(NAMES), help="which, separated by commas (default: all)")
    parser.add_argument("--cases", help=f"which of {', '.join(TITLES)} (default: all; quick: P1, P3)")
    parser.add_argument("--python", action="append", default=[], metavar="PEER=PATH", help="interpreter of a peer")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for a row of the tables")
    parser.add_argument("--output", type=Path, help="folder (default: docs, unless quick)")
    parser.add_argument("--json", type=Path, help="keep the numbers in this file")
    parser.add_argument("--report", type=Path, metavar="JSON", help="write the page from this file, measure nothing")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print the summary, write the page."""
    given = arguments(argv)
    options: dict[str, Any] = {
        "peers": given.peers.split(","),
        "pythons": {
            peer: str(Path(path).expanduser().absolute())
            for peer, path in (pair.split("=", 1) for pair in given.python)
        },
        "timeout": given.timeout,
        "keep": given.json,
    }
    if given.quick:
        options |= QUICK | {"cold": False}
    if given.cases:
        options["cases"] = given.cases.split(",")
    if given.report:
        results = Results.load(given.report)
    else:
        results = run(Settings(**options))
        results.strip = strip(given.quick)
    print(summary(results))
    if given.json:
        results.save(given.json)
    folder = given.output or (None if given.quick else HERE.parent / "docs")
    if folder is not None:
        page(results, folder)


if __name__ == "__main__":
    main()
