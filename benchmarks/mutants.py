"""The power of the tests: seed faults in the library, and count those that the tests catch.

    python benchmarks/mutants.py draw FOLDER              the faults, into FOLDER/faults.json
    python benchmarks/mutants.py trace FOLDER             which tests of the first size pass which fault
    python benchmarks/mutants.py judge FOLDER             run them, for each fault until one fails
    python benchmarks/mutants.py table FOLDER [FOLDER]    the table, beside that of another suite

``--tests DIR`` takes the tests of another checkout, ``--all`` those of every size, ``--survivors FOLDER`` only faults
that another suite has missed. The library that is changed is a copy in the folder of scratch files.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import faults as seeding
from faults import Fault

from dae_hybrid.tables import markdown

ROOT = Path(__file__).resolve().parent.parent
MARKS = "dh_passed"


def copy_library(tree: Path) -> None:
    """The library as it is installed."""
    for name in ("dae_hybrid", "adapters", "problems"):
        place = tree / name if name == "dae_hybrid" else tree / "dae_hybrid" / name
        shutil.copytree(ROOT / name, place, ignore=shutil.ignore_patterns("__pycache__"))


def pytest_process(arguments: argparse.Namespace, tree: Path, task: dict[str, Any], *more: str) -> subprocess.Popen:
    """Pytest in the folder of the tests, with the library of `tree`."""
    settings = tree / "task.json"
    settings.write_text(json.dumps(task))
    path = os.pathsep.join([str(tree), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "DAE_HYBRID_MUTANTS": str(settings)}
    environment["DAE_HYBRID_CACHE"] = str(arguments.folder.resolve() / "cache")
    sizes = ("-m", "") if arguments.all else ()
    pytest = str(
        Path(sys.executable).with_name("pytest")
    )  # `python -m pytest` would import from the folder of the tests
    command = [pytest, "-p", "mutant_plugin", "-p", "no:cacheprovider", "-q", *sizes, *more, *arguments.only]
    log = (arguments.folder / f"{task['task']}-{task.get('share', 0)}.log").open("w")
    return subprocess.Popen(command, cwd=arguments.tests, env=environment, stdout=log, stderr=subprocess.STDOUT)


def load(folder: Path) -> list[Fault]:
    """The faults that were drawn."""
    content = json.loads((folder / "faults.json").read_text())
    return [Fault(**{**own, "passed": tuple(own["passed"])}) for own in content]


# -- draw and trace ------------------------------------------------------------------------------------------------


def draw(arguments: argparse.Namespace) -> None:
    """Choose the faults."""
    arguments.folder.mkdir(parents=True, exist_ok=True)
    drawn = seeding.draw(ROOT, arguments.seed, arguments.scale)
    (arguments.folder / "faults.json").write_text(json.dumps([asdict(fault) for fault in drawn], indent=1))
    print(f"{len(drawn)} faults", dict(Counter(fault.group for fault in drawn)))


def users(constant: str, tree: Path) -> list[tuple[str, int, int]]:
    """Lines that name a constant."""
    found = []
    for file in (tree / "dae_hybrid").rglob("*.py"):
        for number, line in enumerate(file.read_text().splitlines(), 1):
            if constant in line and not line.startswith((constant, "from", "import", "#")):
                found.append((file.relative_to(tree).as_posix(), number, number))
    return found


def mark(drawn: list[Fault], tree: Path) -> dict[int, list[int]]:
    """Let every C function with a fault note that it was entered; faults by the number of the mark."""
    functions: dict[tuple[str, int], list[int]] = defaultdict(list)
    for i, fault in enumerate(drawn):
        if fault.file.endswith(".c"):
            functions[fault.installed, fault.passed[0]].append(i)
    marks = {}
    for file in {file for file, _ in functions}:
        text = (tree / file).read_text()
        for begin, _ in reversed(seeding.c_functions(text)):
            own = functions.get((file, text.count("\n", 0, begin) + 1))
            if own:
                marks[len(marks)] = own
                text = f"{text[:begin]}  {MARKS}[{len(marks) - 1}] = 1;\n{text[begin:]}"
        (tree / file).write_text(f"char {MARKS}[4096];\n{text}")
    return marks


def trace(arguments: argparse.Namespace) -> None:
    """Run the tests once, and write which fault each of them passes."""
    drawn = load(arguments.folder)
    for old in arguments.folder.glob("trace-*.json"):
        old.unlink()
    with TemporaryDirectory() as scratch:
        tree = Path(scratch)
        copy_library(tree)
        marks = mark(drawn, tree)
        places = [
            users(fault.constant, tree) if fault.constant
            else [] if fault.file.endswith(".c") else [(fault.installed, *fault.passed)]
            for fault in drawn
        ]  # fmt: skip
        task = {"task": "trace", "tree": str(tree), "out": str(arguments.folder.resolve()), "places": places}
        pytest_process(arguments, tree, task | {"marks": marks}, "-n", str(arguments.jobs)).wait()
    print(f"{len(traced(arguments.folder))} tests; failures are in {arguments.folder}/trace-0.log")


def traced(folder: Path) -> dict[str, dict[str, Any]]:
    """What `trace` has found."""
    found: dict[str, dict[str, Any]] = {}
    for path in folder.glob("trace-*.json"):
        found |= json.loads(path.read_text())
    return found


# -- judge ---------------------------------------------------------------------------------------------------------


def order(tests: dict[str, dict[str, Any]], fault: int, budget: float) -> tuple[list[str], float]:
    """Tests that pass a fault, and then the others of their files: files with cheap tests first, within the budget."""
    passing = {name for name, own in tests.items() if fault in own["faults"]}
    files: dict[str, list[str]] = defaultdict(list)
    for name in passing:
        files[name.partition("::")[0]].append(name)

    def cheapest(names: list[str]) -> list[str]:
        return sorted(names, key=lambda name: tests[name]["seconds"])

    def mean(file: str) -> float:
        return sum(tests[name]["seconds"] for name in files[file]) / len(files[file])

    listed = [name for file in sorted(files, key=mean) for name in cheapest(files[file])]
    beside = [n for n in tests if n.partition("::")[0] in files and n not in passing]
    chosen, seconds = [], 0.0
    for name in [*listed, *sorted(beside)]:
        if seconds + tests[name]["seconds"] <= budget:
            chosen.append(name)
            seconds += tests[name]["seconds"]
    return chosen, seconds


def judge(arguments: argparse.Namespace) -> None:
    """Seed one fault after the other; outcomes go into verdicts.jsonl, one line each, and are kept by a restart."""
    drawn, tests = load(arguments.folder), traced(arguments.folder)
    out = arguments.folder.resolve() / "verdicts.jsonl"
    done = set(verdicts(arguments.folder)) if out.exists() else set()
    if arguments.survivors:
        other = verdicts(arguments.survivors)
        done |= {i for i in range(len(drawn)) if other[i]["outcome"] not in ("survived", "not passed")}
    left = [i for i in range(len(drawn)) if i not in done]
    with TemporaryDirectory() as scratch:
        processes = []
        for share in range(arguments.jobs):
            tree = Path(scratch) / str(share)
            copy_library(tree)
            own = left[share :: arguments.jobs]
            orders = {i: order(tests, i, arguments.budget) for i in own}
            task = {
                "task": "judge", "share": share, "tree": str(tree), "out": str(out),
                "faults": [(i, asdict(drawn[i])) for i in own], "tests": {i: orders[i][0] for i in own},
                "limits": {i: 60.0 + 4 * orders[i][1] for i in own},
            }  # fmt: skip
            processes.append(pytest_process(arguments, tree, task))
        if any([process.wait() not in (0, 5) for process in processes]):  # 5: pytest has run no test itself
            raise SystemExit(f"pytest has failed: see {arguments.folder}/judge-*.log")
    print(table(arguments.folder, None))


def verdicts(folder: Path) -> dict[int, dict[str, Any]]:
    """Outcomes by fault."""
    lines = (folder / "verdicts.jsonl").read_text().splitlines()
    return {own["fault"]: own for own in map(json.loads, lines)}


def table(folder: Path, other: Path | None) -> str:
    """Faults, valid ones, and caught ones by group and by kind; `other` is a suite that saw the survivors."""
    drawn, found = load(folder), verdicts(folder)
    more = verdicts(other) if other else {}
    rows = [["faults in", "seeded", "caught", *(["caught by the suite before"] if other else [])]]
    names = [*seeding.GROUPS, *sorted({fault.kind for fault in drawn})]
    for name in [*names, "all"]:
        own = [i for i, f in enumerate(drawn) if name in (f.group, f.kind, "all") and i in found]
        own = [i for i in own if found[i]["outcome"] != "invalid"]
        caught = [i for i in own if found[i]["outcome"] == "caught"]
        also = [i for i in own if i in caught or more.get(i, {}).get("outcome") == "caught"]
        rows.append([name, str(len(own)), str(len(caught)), *([str(len(also))] if other else [])])
    return markdown(rows)


def survivors(folder: Path) -> str:
    """The faults that nothing caught."""
    drawn, found = load(folder), verdicts(folder)
    return "\n".join(
        f"{i}: {drawn[i]} ({own['outcome']} of {own['tests']} tests)"
        for i, own in sorted(found.items()) if own["outcome"] in ("survived", "not passed", "invalid")
    )  # fmt: skip


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=["draw", "trace", "judge", "table", "survivors"])
    parser.add_argument("folder", type=Path, help="for faults, traces and verdicts")
    parser.add_argument("other", type=Path, nargs="?", help="the folder of the suite to compare with")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of faults")
    parser.add_argument("--tests", type=Path, default=ROOT, help="the checkout whose tests are run")
    parser.add_argument("--only", nargs="*", default=[], help="files of tests, default all")
    parser.add_argument("--all", action="store_true", help="tests of every size")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--budget", type=float, default=120.0, help="seconds of tests per fault")
    parser.add_argument("--survivors", type=Path, help="only the faults that this suite missed")
    arguments = parser.parse_args()
    if arguments.task == "table":
        print(table(arguments.folder, arguments.other))
    elif arguments.task == "survivors":
        print(survivors(arguments.folder))
    else:
        {"draw": draw, "trace": trace, "judge": judge}[arguments.task](arguments)


if __name__ == "__main__":
    sys.exit(main())
