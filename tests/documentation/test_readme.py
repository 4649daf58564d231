"""Code blocks of README.md run, links resolve, its table agrees with the program."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from dae_hybrid import problems
from dae_hybrid.problems import em_hysteresis
from dae_hybrid.report.reproduce import reproduce, summary

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


NAMES = ("hybrid_ode", "em_hysteresis", "five_bar")


def cells(table: str) -> dict[str, list[str]]:
    """Cells of a Markdown table by the first of each row."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()]
    return {row[0]: row[1:] for row in rows}


def test_code_of_the_readme_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) == 4
    names: dict = {}
    exec(blocks[0], names)
    assert capsys.readouterr().out == re.findall(r"```text\n(.*?)```", README, re.DOTALL)[0]
    for block in blocks[1:]:
        exec(block, names)
    reference = em_hysteresis.reference()
    assert names["sol"].functionals["G"] == pytest.approx(reference.value, rel=3e-7)
    assert len(names["sol"].events) == 19
    for gradient in (names["fsa"].gradient["G"], names["asa"].gradient):
        assert gradient[:3] == pytest.approx(reference.gradient[:3], rel=1e-5, abs=0)
        assert gradient[3] == 0
    assert "dG/dalpha" in capsys.readouterr().out
    assert names["found"].gradient["G"].shape == (8, 4)
    assert names["found"].ok.all()
    assert names["run"](em_hysteresis.system().nominal).value == names["asa"].value


def test_model_of_the_readme_is_about_25_lines():
    block = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[1]
    lines = [line for line in block.splitlines() if line.strip()]
    assert len(lines) <= 26


@pytest.mark.parametrize("names", [NAMES[:2], pytest.param(NAMES, marks=pytest.mark.campaign)], ids=" ".join)
def test_table_of_the_readme_is_what_the_program_computes(names):
    whole = re.search(r"<!-- results: begin[^\n]*\n(.*?)<!-- results: end -->", README, re.DOTALL)
    written = {
        label: row for label, row in cells(whole[1]).items() if label.partition(":")[0] not in set(NAMES) - {*names}
    }
    computed = cells(summary([reproduce(name, problems.TITLES[name], problems.load(name)) for name in names]))
    assert list(written) == list(computed), "run: python docs/update_readme.py"
    for label, row in written.items():
        for there, here in zip(row, computed[label], strict=True):
            if "error" in label:
                # errors differ from machine to machine; better than written is fine
                assert (there == "") == (here == "")
                assert not here or float(here) <= 5 * float(there), (label, there, here)
            elif "e" in there and there[-3:].strip("e+-0").isdigit():
                assert float(here) == pytest.approx(float(there), rel=1e-6, abs=1e-9), (label, there, here)
            else:
                assert there == here, label


def test_links_and_pictures_of_the_readme_exist():
    targets = re.findall(r"\]\(([^)#:]+)\)", README)
    assert len(targets) > 8
    for target in targets:
        assert (ROOT / target).is_file(), target
    for picture in (ROOT / "docs" / "images").iterdir():
        assert f"docs/images/{picture.name}" in targets, "unused"
        assert picture.stat().st_size < 150_000


def test_readme_names_no_machine():
    assert not re.search(r"/(home|work|tmp|root)/|https?://(localhost|[\d.]+)", README)


def test_example_bouncing_ball(tmp_path, capsys):
    fsa = runpy.run_path(str(ROOT / "examples" / "bouncing_ball.py"))["main"](picture=str(tmp_path / "ball.png"))
    first = np.sqrt(2 / 9.81)
    assert [event.transition for event in fsa.events] == ["bounce"] * 4 + ["edge"]
    assert fsa.events[0].time == pytest.approx(first, rel=1e-9)
    assert fsa.event_time_sensitivity[0] == pytest.approx([-first / (2 * 9.81), 0, 0, 0], rel=1e-7, abs=1e-12)
    assert fsa.event_time_sensitivity[-1] == pytest.approx([0, 0, -1.5 / 0.36, 1 / 0.6], rel=1e-7, abs=1e-12)
    assert (tmp_path / "ball.png").stat().st_size > 10_000
    assert "energy 1.64584488" in capsys.readouterr().out


def test_example_fit_hysteresis(capsys):
    off = runpy.run_path(str(ROOT / "examples" / "fit_hysteresis.py"))["main"](samples=100)
    assert np.all(np.abs(off) < 4), "in standard deviations"
    assert "chi^2" in capsys.readouterr().out


def test_example_design_cushion(capsys):
    by_slsqp, by_ipopt = runpy.run_path(str(ROOT / "examples" / "design_cushion.py"))["main"]()
    assert by_slsqp.success
    assert by_ipopt.success
    assert by_ipopt.value == pytest.approx(by_slsqp.value, rel=1e-5)
    assert by_slsqp.constraints["rest"] == pytest.approx(1e-3, rel=1e-3)
    assert by_slsqp.constraints["travel"] < 0.11
    assert "events: touch, stop turns, release" in capsys.readouterr().out
