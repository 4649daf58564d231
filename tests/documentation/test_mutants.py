"""benchmarks/mutants.py: seeded faults are programs, each group has its share, and caught faults are counted."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
try:
    import faults
finally:
    sys.path.remove(str(ROOT / "benchmarks"))


def test_faults_are_small_changes_of_what_they_name(tmp_path: Path) -> None:
    room = tmp_path / "dae_hybrid" / "simulation"
    room.mkdir(parents=True)
    text = '''"""A module."""

RTOL = 1e-9


def side(x_minus, x_plus, n):
    """Return a side."""
    if n > 1 and x_minus:
        raise ValueError("n + 1 is never changed")
    n += 1
    return -x_minus + 2 * n
'''
    (room / "sides.py").write_text(text)
    found = faults.faults_of(tmp_path, room / "sides.py", "events and adjoints")
    assert all(faults.is_valid(fault, tmp_path) for fault in found)
    assert {fault.applied(text.encode()) for fault in found} >= {
        text.replace("1e-9", "1e-06").encode(),
        text.replace("n > 1", "n >= 1").encode(),
        text.replace("n > 1", "n < 1").encode(),
        text.replace(" and ", " or ").encode(),
        text.replace("    n += 1", "    pass").encode(),
        text.replace("-x_minus", "(x_minus)").encode(),
        text.replace("minus + 2", "minus - 2").encode(),
        text.replace("return -x_minus", "return -x_plus").encode(),
        text.replace("-x_minus + 2 * n", "(-x_minus)").encode(),
        text.replace("2 * n", "3 * n").encode(),
    }
    assert not any("never changed" in fault.old or '"' in fault.new for fault in found)


def test_the_draw_is_repeatable_and_each_group_has_its_share() -> None:
    groups = ("C", "service and ensembles")
    drawn = faults.draw(ROOT, 3, 0.1, groups)
    assert drawn == faults.draw(ROOT, 3, 0.1, groups)
    assert Counter(fault.group for fault in drawn) == {"C": 6, "service and ensembles": 4}
    assert len({(fault.file, fault.line) for fault in drawn}) == len(drawn)


@pytest.mark.campaign
def test_a_fault_in_the_transition_is_caught(tmp_path: Path) -> None:
    """The whole way, on one file of tests: the sign of a saltation, and a fault that these tests do not pass."""
    file = ROOT / "dae_hybrid" / "system" / "linearisation.py"
    found = [f for f in faults.faults_of(ROOT, file, "events and adjoints") if f.kind == "sign"]
    elsewhere = faults.faults_of(ROOT, ROOT / "dae_hybrid" / "service" / "guards.py", "service and ensembles")[:1]
    (tmp_path / "faults.json").write_text(json.dumps([vars(fault) for fault in [*found, *elsewhere]]))
    for task in ("trace", "judge"):
        command = [sys.executable, "benchmarks/mutants.py", task, str(tmp_path), "--jobs", "1"]
        subprocess.run([*command, "--only", "tests/mathematics/test_transition.py"], cwd=ROOT, check=True)
    outcomes = [json.loads(line)["outcome"] for line in (tmp_path / "verdicts.jsonl").read_text().splitlines()]
    assert outcomes.count("caught") > len(found) / 2
    assert outcomes[-1] == "not passed"
