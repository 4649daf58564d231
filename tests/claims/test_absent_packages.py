"""What is not installed skips the tests that need it, and no others, by the rule in tests/conftest.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
#: files that import an optional package at their top, and tests that need one in a call or through the library
AFFECTED = (
    "ensembles/test_export.py",
    "bridges/test_jax.py",
    "trajectory/test_results.py",
    "optimization/test_scan.py",
)
HIDDEN = ("jax", "pandas", "matplotlib")


def outcome(*arguments: str) -> tuple[int, str, dict[str, int]]:
    """Exit code, report and counts of the tests of a process of its own."""
    command = [str(Path(sys.executable).with_name("pytest")), "-p", "no:cacheprovider", "-q", *arguments]
    environment = os.environ | {"PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=TESTS.parent, env=environment, capture_output=True, text=True, check=False)
    counts = {
        kind: int(n) for n, kind in re.findall(r"(\d+) (passed|failed|error|skipped)", done.stdout.splitlines()[-1])
    }
    return done.returncode, done.stdout, counts


@pytest.mark.operation
def test_tests_of_an_adapter_are_skipped_without_its_package() -> None:
    files = [str(path) for path in sorted(TESTS.rglob("test_*.py")) if "scikits-odes" in path.read_text("utf-8")]
    code, report, counts = outcome("--hide", "scikits_odes_sundials", "-k", "scikits-odes", *files)
    assert code == 0, report
    assert counts["skipped"] > 30, report
    assert "passed" not in counts, report
    assert "scikits_odes_sundials is not installed: python -m dae_hybrid.adapters.install_scikits_odes" in report


def test_what_needs_a_package_is_skipped_and_the_rest_runs() -> None:
    files = [str(TESTS / file) for file in AFFECTED]
    code, report, counts = outcome("--hide", ",".join(HIDDEN), "-k", "bad_input or table or pictures", *files)
    assert code == 0, report
    assert counts["passed"] > 3, report
    assert counts["skipped"] > 3, report
    for package in HIDDEN:
        assert f"{package} is not installed" in report, report


def test_packages_that_must_be_there_are_missed() -> None:
    file = str(TESTS / "ensembles" / "test_export.py")
    code, report, counts = outcome("--hide", "zarr", "--absent", "torch,scikits_odes_sundials", file)
    assert code not in (0, 5), report
    assert "skipped" not in counts
