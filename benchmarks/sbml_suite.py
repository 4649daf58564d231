"""The time courses of the SBML semantic test suite, by outcome.

python benchmarks/sbml_suite.py PATH_TO_CHECKOUT [--jobs N] [--only 00001,00002] [--details FILE] [--write]

PATH_TO_CHECKOUT is a checkout of github.com/sbmlteam/sbml-test-suite, or its folder cases/semantic. A case passes if
every value is within the absolute and relative tolerances of its settings. --details writes one line for each case;
--write writes the tables to docs/sbml_suite.md.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import signal
import sys
import time
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import dae_hybrid as dh

#: versions of a case, the first one that exists is run
VERSIONS = ("l3v2", "l3v1", "l2v5", "l2v4", "l2v3", "l2v2", "l2v1", "l1v2")
#: seconds of processor time for one case
PATIENCE = 45
#: cases that a table names for one reason
MAX_NAMED = 8
RTOL = 1e-8
#: share of the absolute tolerance of a case that the integrator gets
ATOL_SHARE = 1e-6
PAGE = """# SBML semantic test suite

The time courses of the [SBML Test Suite](https://github.com/sbmlteam/sbml-test-suite), run on a checkout by

```
python benchmarks/sbml_suite.py CHECKOUT --write
```

A case is run in the latest level and version that it has, with adapter `scipy`, and passes if all values are within the
absolute and relative tolerances of its settings. At the time of an event a value before it counts as well; the last
table names the cases. Refused: `sbml` or `build` names what has no counterpart ([sbml.md](sbml.md)). Failed: the run
ended with an error. Wrong: a value differs. A case may have several tags.
"""
#: heading of the section that sbml_gradients.py writes
SECTION = "## Gradients"
OUTCOMES = ("passed", "refused", "wrong", "failed")


@dataclass(frozen=True)
class Outcome:
    """Outcome of a case."""

    case: str
    result: str
    reason: str
    tags: tuple[str, ...]
    seconds: float


def settings_of(folder: Path) -> dict[str, str]:
    """The entries of a settings file."""
    lines = (folder / f"{folder.name}-settings.txt").read_text().splitlines()
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def names_in(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def header_of(folder: Path) -> tuple[str, tuple[str, ...]]:
    """The kind of a case, and its tags."""
    text = (folder / f"{folder.name}-model.m").read_text(encoding="utf-8", errors="replace")
    kind = re.search(r"testType:\s*(\S+)", text)
    tags = [re.search(rf"{key}:(.*)", text) for key in ("componentTags", "testTags")]
    return kind.group(1) if kind else "", tuple(tag for found in tags if found for tag in names_in(found.group(1)))


def folders_in(checkout: Path) -> list[Path]:
    """The folders of the time courses."""
    top = checkout / "cases" / "semantic"
    top = top if top.is_dir() else checkout
    folders = [folder for folder in sorted(top.iterdir()) if folder.is_dir() and folder.name.isdigit()]
    return [folder for folder in folders if header_of(folder)[0] == "TimeCourse"]


def expected_in(folder: Path) -> dict[str, np.ndarray]:
    """The columns of a results file."""
    with (folder / f"{folder.name}-results.csv").open(newline="") as file:
        heads, *rows = [row for row in csv.reader(file) if row]
    values = np.array([[float(entry) for entry in row] for row in rows])
    return {head.strip(): values[:, i] for i, head in enumerate(heads)}


def simulated(folder: Path, settings: dict[str, str], times: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The wanted variables at the output times, after and before events at these times."""
    paths = (folder / f"{folder.name}-sbml-{version}.xml" for version in VERSIONS)
    model = dh.importers.sbml(next(path for path in paths if path.exists()), units="ignore")
    system = model.build(native=False)
    sol = dh.simulate(
        system,
        (0, times[-1]),
        t_eval=times,
        adapter="scipy",
        rtol=RTOL,
        atol=ATOL_SHARE * float(settings["absolute"]),
        max_transitions_per_instant=10_000,
    )
    before = sol(times, side="left")
    concentrations = names_in(settings.get("concentration", ""))
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name in names_in(settings["variables"]):
        own = f"[{name}]" if name in concentrations else "id(t)" if name == "t" else name
        if own in sol.names:
            found[name] = sol[own], before[own]
        else:
            nominal = [d.start for d in model.of_kind("parameter") if d.name == own]
            if not nominal:
                raise dh.UnsupportedError(f"'{own}' is not finite, and not reported")
            found[name] = (np.full(times.size, nominal[0][0]),) * 2
    return found


def compared(folder: Path, settings: dict[str, str]) -> tuple[bool, str]:
    """Whether the values are within the tolerances, and the first difference.

    At the time of an event a value before it is accepted as well: the suite has both.
    """
    start, duration = float(settings["start"]), float(settings["duration"])
    times = np.linspace(start, start + duration, int(settings["steps"]) + 1)
    found, expected = simulated(folder, settings, times), expected_in(folder)
    said = ""
    for name, sides in found.items():
        after, before = (differs(own, expected[name], settings) for own in sides)
        if after.any():
            i = int(np.flatnonzero(after)[0])
            said = said or f"{name}({times[i]:g}) = {sides[0][i]:.8g}, expected {expected[name][i]:.8g}"
            if (after & before).any():
                return False, said
    return True, said and f"before an event: {said}"


def differs(own: np.ndarray, expected: np.ndarray, settings: dict[str, str]) -> np.ndarray:
    """Where values differ by more than the tolerances."""
    allowed = float(settings["absolute"]) + float(settings["relative"]) * np.abs(expected)
    same = (own == expected) | (np.isnan(own) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        return ~same & ~(np.abs(own - expected) <= allowed)


def _stop(*_: object) -> None:
    raise TimeoutError(f"more than {PATIENCE} s")


def run(folder: Path) -> Outcome:
    """Run one case."""
    _, tags = header_of(folder)
    began = time.process_time()
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            is_same, said = compared(folder, settings_of(folder))
        result = "passed" if is_same else "wrong"
    except (dh.UnsupportedError, dh.ModelError) as error:
        result, said = "refused", f"{type(error).__name__}: {error.message}"
    except Exception as error:  # whatever happens in one case, the others are run
        result, said = "failed", f"{type(error).__name__}: {error}".replace("\n", " ")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return Outcome(folder.name, result, said, tags, time.process_time() - began)


def kind_of(outcome: Outcome) -> str:
    """The reason without names and numbers."""
    if outcome.result in ("passed", "wrong"):
        return outcome.reason.partition(":")[0] if outcome.result == "passed" else outcome.reason
    reason = re.sub(r"'[^']*'|\"[^\"]*\"", "'...'", outcome.reason)
    reason = re.sub(r"\S+\.xml:\d+:\d+: ", "", reason).replace("<", "&lt;")
    reason = re.sub(r"^(\w+): [a-z ]+ '...': ", r"\1: ", reason)
    return re.sub(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?", "#", reason.partition(" [mode")[0])[:120]


def tables(outcomes: list[Outcome]) -> str:
    """The tables by outcome, tag and reason."""
    count = Counter(o.result for o in outcomes)
    lines = ["| time courses | " + " | ".join(OUTCOMES) + " |", "|---" + "|---:" * len(OUTCOMES) + "|"]
    lines.append(f"| all {len(outcomes)} | " + " | ".join(str(count[result]) for result in OUTCOMES) + " |")
    for tag in sorted({tag for o in outcomes for tag in o.tags}):
        own = Counter(o.result for o in outcomes if tag in o.tags)
        lines.append(f"| {tag} | " + " | ".join(str(own[result]) for result in OUTCOMES) + " |")
    lines += ["", "| outcome | reason | cases | |", "|---|---|---:|---|"]
    reasons: dict[tuple[str, str], list[str]] = {}
    for o in outcomes:
        if o.reason:
            reasons.setdefault((o.result, kind_of(o)), []).append(o.case)
    ordered = sorted(reasons.items(), key=lambda item: (item[0][0], -len(item[1]), item[0][1]))
    for (result, reason), cases in ordered:
        more = ", ..." if len(cases) > MAX_NAMED else ""
        lines.append(f"| {result} | {reason} | {len(cases)} | {', '.join(cases[:MAX_NAMED])}{more} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--details", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    wanted = names_in(given.only)
    folders = [f for f in folders_in(given.checkout) if f.name in wanted or not wanted]
    began = time.perf_counter()
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(given.jobs) as pool, open(given.details or os.devnull, "w") as details:
        for o in pool.map(run, folders, chunksize=4):
            outcomes.append(o)
            print(f"{o.case} {o.result} {o.seconds:.2f} s {o.reason}", file=details, flush=True)
    text = tables(outcomes)
    print(text)
    print(f"\n{time.perf_counter() - began:.0f} s with {given.jobs} processes")
    if given.write:
        page = Path(__file__).parents[1] / "docs" / "sbml_suite.md"
        _, _, gradients = (page.read_text(encoding="utf-8") if page.exists() else "").partition(SECTION)
        more = f"\n{SECTION}{gradients}" if gradients else ""
        page.write_text(f"{PAGE}\n{text}\n{more}", encoding="utf-8")
    return int(any(o.result == "wrong" for o in outcomes))


if __name__ == "__main__":
    sys.exit(main())
