"""The command that runs the SBML semantic test suite, on cases of our own."""

import subprocess
import sys
from pathlib import Path

from sbml_text import document

COMMAND = Path(__file__).parents[2] / "benchmarks" / "sbml_suite.py"
SETTINGS = """start: 0
duration: 2
steps: 2
variables: x
absolute: 0.0001
relative: 0.0001
amount:
concentration:
"""


def case(folder: Path, formula: str, values: tuple[float, ...], kind: str = "TimeCourse") -> None:
    """Write a case: x' = formula from 1, and expected values of x at 0, 1, 2."""
    folder.mkdir(parents=True)
    text = document(parameters={"x": {"value": 1.0, "constant": False}}, rules=[("rate", "x", formula)])
    name = folder.name
    (folder / f"{name}-sbml-l3v2.xml").write_text('<?xml version="1.0" encoding="UTF-8"?>' + text)
    (folder / f"{name}-settings.txt").write_text(SETTINGS)
    (folder / f"{name}-model.m").write_text(f"componentTags: RateRule\ntestTags: \ntestType: {kind}\n")
    rows = "".join(f"{t},{value}\n" for t, value in enumerate(values))
    (folder / f"{name}-results.csv").write_text(f"time,x\n{rows}")


def test_cases_are_counted_by_outcome(tmp_path: Path) -> None:
    top = tmp_path / "cases" / "semantic"
    case(top / "00001", "2", (1, 3, 5))
    case(top / "00002", "2", (1, 3, 6))
    case(top / "00003", "factorial(x)", (1, 3, 5))
    case(top / "00004", "x^2", (1, 3, 5))
    case(top / "00005", "2", (1, 3, 5), kind="FluxBalanceSteadyState")
    done = subprocess.run(
        [sys.executable, str(COMMAND), str(tmp_path), "--jobs", "1", "--details", str(tmp_path / "details")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr  # a wrong case
    assert "| all 4 | 1 | 1 | 1 | 1 |" in done.stdout
    assert "x(2) = 5, expected 6" in done.stdout
    outcomes = [line.split()[:2] for line in (tmp_path / "details").read_text().splitlines()]
    assert outcomes == [["00001", "passed"], ["00002", "wrong"], ["00003", "refused"], ["00004", "failed"]]
