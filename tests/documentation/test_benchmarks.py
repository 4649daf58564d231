"""benchmarks/run.py: exact values are those of problems/, every row is in the table, nothing wrong passes for right."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from dae_hybrid.problems import em_hysteresis, hybrid_ode

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"
MODULES = ("cases", "peers", "outcomes", "report", "run")

FAKE = '''
"""A peer with answers that it has not computed."""
import os, time
from cases import P3
from peers import Answer, Task, UnsupportedError

name = "fake"
version = lambda: "fake 0"


def rows(case):
    if case != "P3":
        raise UnsupportedError("it plays with balls only")
    return ["right", "liar", "overlooks", "raises", "refuses", "crashes", "hangs"]


def prepare(case, row, rtol, atol):
    def call():
        if row == "raises":
            raise ValueError("cannot do it")
        if row == "refuses":
            raise UnsupportedError("it has no adjoint")
        if row == "crashes":
            os._exit(3)
        if row == "hangs":
            time.sleep(60)
        gradient = [g * (1 + 1e-3 * (row == "liar")) for g in P3.gradient]
        return P3.value, gradient, P3.events - (row == "overlooks")

    read = lambda r: Answer(r[0], r[1], r[2])
    return {"solve": Task(call, lambda r: Answer(r[0], None, r[2])), "adjoint": Task(call, read)}
'''


@pytest.fixture(scope="module")
def bench():
    """The modules of the folder, under the names that its scripts use."""
    sys.path.insert(0, str(FOLDER))
    before = set(sys.modules)
    try:
        yield SimpleNamespace(**{name: importlib.import_module(name) for name in MODULES})
    finally:
        sys.path.remove(str(FOLDER))
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(FOLDER)):
                del sys.modules[name]


@pytest.fixture(scope="module")
def quick(bench):
    """P1 and P3 by the library itself, in its default way."""
    settings = bench.run.Settings(peers=("ours",), **bench.run.QUICK, cold=False, rows=("auto",))
    return bench.run.run(settings)


@pytest.fixture(scope="module")
def faked(bench, tmp_path_factory):
    """P3 by a fake, and a peer that is not there."""
    folder = tmp_path_factory.mktemp("peer")
    (folder / "fake_peer.py").write_text(FAKE, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", ""))))
        settings = bench.run.Settings(
            peers=("fake_peer", "no_such_peer"), cases=("P3",), rtols=(), seconds=0.001, timeout=3.0, cold=False
        )
        return bench.run.run(settings)


def test_exact_values_are_those_of_the_problems(bench):
    for case, problem in (("P1", hybrid_ode), ("P2", em_hysteresis)):
        stated, reference = bench.cases.CASES[case], problem.reference()
        assert stated.value == pytest.approx(reference.value, rel=1e-14)
        assert stated.gradient == pytest.approx(reference.gradient, rel=1e-13)
        assert stated.events == reference.event_times.size
        assert stated.span == problem.t_span
        parameters = problem.model().of_kind("parameter")
        assert stated.names == tuple(d.name for d in parameters)
        assert np.concatenate([d.start for d in parameters]) == pytest.approx(stated.nominal, rel=1e-15)


@pytest.mark.campaign
def test_every_row_has_solve_and_gradients_and_is_right(bench, quick):
    assert [(way.case, way.row) for way in quick.ways] == [("P1", "auto"), ("P3", "auto")]
    for case in bench.cases.TITLES:
        assert "auto" in quick.packages[0].rows[case]
    assert not quick.left_out
    for way in quick.ways:
        assert not way.note
        assert way.build["first"] > 0
        for task in ("solve", "forward", "adjoint"):
            for rtol in (bench.outcomes.RTOL, 1e-6):
                point = way.at(task, rtol)
                assert point.right
                assert point.cpu_ms > 0
                assert point.error < 3e3 * rtol


@pytest.mark.campaign
def test_the_page_has_every_row(bench, quick, tmp_path):
    text = bench.report.text(quick)
    for way in quick.ways:
        assert f"| {way.label} |" in text
        assert f"| {way.label}, adjoint |" in text
    assert "**wrong** " not in text.split("## Summary")[1]
    quick.save(tmp_path / "numbers.json")
    assert bench.report.text(bench.outcomes.Results.load(tmp_path / "numbers.json")) == text


@pytest.mark.campaign
def test_pictures(bench, quick, tmp_path):
    bench.report.page(quick, tmp_path)
    for name in ("benchmarks_solve.png", "benchmarks_gradient.png"):
        assert (tmp_path / name).stat().st_size > 10_000


def test_a_missing_peer_is_reported(bench, faked):
    assert "no_such_peer is not installed here: No module named 'no_such_peer'." in bench.report.absent(faked)
    assert all(way.package == "fake" for way in faked.ways)


def test_wrong_answers_are_flagged_as_wrong(bench, faked):
    ways = {way.row: way for way in faked.ways}
    assert ways["right"].at("adjoint").right
    assert ways["liar"].at("solve").right
    assert ways["liar"].at("adjoint").wrong
    assert ways["overlooks"].at("solve").wrong
    rows = {row[0]: row[1:] for row in bench.report.detail(faked.ways)}
    assert rows["fake liar"][-1] == "**wrong** 1e-03"
    assert rows["fake overlooks"][1] == "**wrong** 0e+00, events seen: 5"
    best = bench.outcomes.fastest(faked.ways, ("adjoint",))
    assert best[0].row == "right"


def test_failures_cost_a_row_and_are_told(bench, faked):
    said = bench.report.absent(faked)
    rows = {row[0]: row[1:] for row in bench.report.detail(faked.ways)}
    assert rows["fake raises"][-1] == "failed"
    assert rows["fake refuses"][-1] == "not supported"
    assert any("ValueError: cannot do it" in line for line in said)
    assert any("fake crashes: the process ended with status 3" in line for line in said)
    assert any("fake hangs: the process stopped after 3 s" in line for line in said)
    assert any("fake does not take P1, P2" in line and "balls" in line for line in said)


def test_the_page_in_docs_is_of_this_form(bench):
    text = (FOLDER.parent / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    rows = importlib.import_module("peers.ours").rows
    for case, title in bench.cases.TITLES.items():
        section = text.split(f"### {case}: {title}")[1].split("###")[0]
        assert all(f"| dae_hybrid {row} |" in section for row in rows(case)), "run: python benchmarks/run.py"
    assert not re.search(r"/(home|work|tmp|root|usr)/", text)


def test_peers_say_what_they_need(bench):
    for name in bench.peers.NAMES:
        assert (FOLDER / "peers" / f"{name}.py").is_file()
        if name != "ours":
            lines = (FOLDER / "requirements" / f"{name}.txt").read_text(encoding="utf-8").splitlines()
            assert lines
            assert not any("://" in line or line.startswith("-") for line in lines)


#: modules that are no part of the extra [test], or only there within pytest
ELSEWHERE = ("pybamm", "diffrax")
#: runs every script of a folder as a module that is imported, and prints what has failed
IMPORT_ALL = """
import pathlib, runpy, sys, traceback
folder, *elsewhere = sys.argv[1:]
sys.path.insert(0, folder)
for script in sorted(pathlib.Path(folder).glob("*.py")):
    try:
        runpy.run_path(str(script), run_name="imported")
    except ModuleNotFoundError as error:
        if error.name not in elsewhere:
            traceback.print_exc()
    except BaseException:
        traceback.print_exc()
"""


def test_every_script_can_be_imported() -> None:
    command = [sys.executable, "-c", IMPORT_ALL, str(FOLDER), *ELSEWHERE]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    assert not done.stderr
