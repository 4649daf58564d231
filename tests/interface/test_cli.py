"""The command line, in this process."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid import command, problems, progress
from dae_hybrid.cli import main
from dae_hybrid.problems import em_hysteresis, five_bar, five_bar_ali3p, hybrid_ode
from dae_hybrid.report import plotting

FIGURES = {
    "hybrid_ode": ["hybrid_ode_fig2.png", "hybrid_ode_fig3.png"],
    "em_hysteresis": [f"em_hysteresis_fig{n}.png" for n in (5, 6, 7, 8)],
    "five_bar": [
        "five_bar.gif",
        *(
            f"five_bar_{name}.png"
            for name in ("latch", "mechanism", "point2", "quadrature_sensitivities", "quadratures", "residuals")
        ),
        "five_bar_sensitivities.png",
    ],
    "five_bar_ali3p": ["five_bar_ali3p_energy.png", "five_bar_ali3p_residuals.png"],
}
#: the problems of Serban and Recuero, whose results have one form
SCALAR = ("hybrid_ode", "em_hysteresis")


def reproduction(folder, *what):
    """`reproduce`: exit code, what it printed, its folder, its JSON."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(
            ["reproduce", *what, "--output", str(folder / "pictures"), "--json", str(folder / "numbers" / "all.json"),
             "--markdown", str(folder / "all.md")]
        )  # fmt: skip
    return SimpleNamespace(
        code=code,
        out=out.getvalue(),
        err=err.getvalue(),
        folder=folder,
        json=json.loads((folder / "numbers" / "all.json").read_text(encoding="utf-8")),
        markdown=(folder / "all.md").read_text(encoding="utf-8"),
    )


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    """The problems of Serban and Recuero."""
    return reproduction(tmp_path_factory.mktemp("papers"), *SCALAR)


@pytest.fixture(scope="module")
def reproduced(tmp_path_factory):
    """All problems."""
    return reproduction(tmp_path_factory.mktemp("reproduced"), "--all")


# -- list, run -----------------------------------------------------------------------------------


def test_list(capsys):
    assert main(["list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(problems.names())


def test_run_prints_functionals_and_events(capsys):
    assert main(["run", "hybrid_ode", "--rtol", "1e-10"]) == 0
    captured = capsys.readouterr()
    rows = [line.split() for line in captured.out.splitlines()]
    (value,) = (float(row[1]) for row in rows if row and row[0] == "G")
    assert value == pytest.approx(hybrid_ode.reference().value, rel=1e-8)
    events = [row for row in rows if len(row) == 4 and row[0].isdigit()]
    assert [row[2] for row in events] == ["below->above", "above->below", "below->above"]
    assert [float(row[1]) for row in events] == pytest.approx(hybrid_ode.reference().event_times, rel=1e-7)
    assert [float(row[3]) for row in events] == pytest.approx(hybrid_ode.reference().events["x"], rel=1e-7)
    assert captured.err == ""


def test_run_takes_tolerances_an_end_and_parameters(capsys):
    assert main(["run", "hybrid_ode", "--rtol", "1e-6", "--atol", "1e-9", "--t-end", "0.5", "--set", "p=2.95"]) == 0
    out = capsys.readouterr().out
    assert "t from 0 to 0.5, rtol 1e-06, atol 1e-09" in out
    expected = dh.simulate(hybrid_ode.system(), (0, 0.5), parameters={"p": 2.95}, rtol=1e-6, atol=1e-9)
    assert f"{expected.functionals['G']:.15g}" in out


def test_run_without_events(capsys):
    assert main(["run", "hybrid_ode", "--t-end", "0.1"]) == 0
    assert "no events" in capsys.readouterr().out


def test_run_writes_the_trajectory(tmp_path, capsys):
    table, picture = tmp_path / "new" / "run.csv", tmp_path / "run.svg"
    assert main(["run", "em_hysteresis", "--csv", str(table), "--plot", str(picture)]) == 0
    sol = dh.simulate(em_hysteresis.system(), em_hysteresis.t_span, rtol=1e-8, atol=1e-12)
    with table.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["t", "mode", "u", "v", "z", "u_star", "z_star"]
    assert np.array_equal([float(row["t"]) for row in rows], sol.t)
    assert np.array_equal([float(row["z"]) for row in rows], sol["z"])
    assert [row["mode"] for row in rows] == sol.modes.tolist()
    assert picture.stat().st_size > 10_000
    assert str(table) in capsys.readouterr().out


# -- reproduce ---------------------------------------------------------------------------------------


@pytest.mark.campaign
def test_reproduce_succeeds_quietly(reproduced):
    assert reproduced.code == 0
    assert reproduced.err == "", "stderr is not a terminal here"


@pytest.mark.campaign
def test_reproduce_draws_the_papers_figures(reproduced):
    pictures = sorted(path.name for path in (reproduced.folder / "pictures").iterdir())
    assert pictures == sorted(name for names in FIGURES.values() for name in names)
    for name in pictures:
        path = reproduced.folder / "pictures" / name
        film = path.suffix == ".gif"
        assert path.read_bytes().startswith(b"GIF89a" if film else b"\x89PNG")
        assert 10_000 < path.stat().st_size < (1_500_000 if film else 250_000)
        assert str(path) in reproduced.out


@pytest.mark.campaign
def test_json_has_exactly_the_promised_form(reproduced):
    assert list(reproduced.json) == list(FIGURES)
    ways = ["finite_difference", "forward", "adjoint"]
    for name in SCALAR:
        result = reproduced.json[name]
        reference = problems.load(name).reference()
        assert list(result) == ["G", "gradient", "event_times", "event_time_sensitivity"]
        assert list(result["gradient"]) == (ways if name == "hybrid_ode" else [*ways, "algorithm_1"])
        assert isinstance(result["G"], float)
        for gradient in result["gradient"].values():
            assert np.shape(gradient) == reference.gradient.shape
        assert np.shape(result["event_times"]) == reference.event_times.shape
        assert np.shape(result["event_time_sensitivity"]) == reference.event_time_sensitivity.shape


@pytest.mark.campaign
def test_json_of_the_five_bar_has_the_promised_form_and_the_right_numbers(reproduced):
    found = reproduced.json["five_bar"]
    assert list(found) == ["smooth", "elastic", "latch"]
    for case, functional, columns in (("smooth", "psi", 5), ("elastic", "z", 2), ("latch", "psi", 5)):
        result, reference = found[case], five_bar.reference(case)
        expected = reference.gradients[functional][:, :columns]
        assert list(result) == ["value", "gradient", *["event_times"] * (case != "smooth")]
        assert result["value"] == pytest.approx(reference.values[functional], rel=1e-7, abs=0)
        gradients = result["gradient"] if case == "elastic" else {"forward": result["gradient"]}
        assert list(gradients) == (["forward", "adjoint"] if case == "elastic" else ["forward"])
        for gradient in gradients.values():
            assert np.shape(gradient) == (3, columns)
            np.testing.assert_allclose(gradient, expected, rtol=1e-7, atol=0)
        if case != "smooth":
            np.testing.assert_allclose(result["event_times"], reference.event_times, rtol=0, atol=1e-9)
    forward, adjoint = (np.array(found["elastic"]["gradient"][way]) for way in ("forward", "adjoint"))
    np.testing.assert_allclose(forward, adjoint, rtol=1e-8, atol=0)


@pytest.mark.campaign
def test_json_of_ali3p_has_the_printed_digits(reproduced):
    found = reproduced.json["five_bar_ali3p"]
    assert list(found) == ["RTdyn0", "RTdyn1", "global", "reference", "cpu_s"]
    far = []
    for column, rows in five_bar_ali3p.printed().items():
        for i, row in enumerate(rows):
            for j, text in enumerate(row):
                unit = 10.0 ** -len(text.partition(".")[2])
                if abs(found[column][i][j] - float(text)) > unit * (1 + 1e-9):
                    far.append((column, i, j))
    # 3.35983 where 3.3597 is printed: the continuous value is 3.35981
    assert far == [("RTdyn0", 0, 4), ("RTdyn1", 0, 4)]
    exact = five_bar.reference("smooth").gradients["psi"]
    np.testing.assert_allclose(found["reference"], exact, rtol=1e-7)
    for column in ("RTdyn0", "RTdyn1", "global"):
        np.testing.assert_allclose(found[column], exact, rtol=2e-4)


def test_json_has_the_right_numbers(papers):
    for name, accuracy in (("hybrid_ode", 5e-8), ("em_hysteresis", 2e-7)):
        result, reference = papers.json[name], problems.load(name).reference()
        assert result["G"] == pytest.approx(reference.value, rel=accuracy, abs=0)
        assert result["event_times"] == pytest.approx(reference.event_times, rel=accuracy, abs=0)
        for way, gradient in result["gradient"].items():
            # where the derivative is zero, finite differences leave their rounding
            zero = 1e-9 if way == "finite_difference" else 1e-11
            for value, exact in zip(gradient, reference.gradient, strict=True):
                assert abs(value - exact) <= (accuracy * abs(exact) if exact else zero), way
        rates = np.array(result["event_time_sensitivity"])
        largest = np.abs(reference.event_time_sensitivity).max(axis=0)
        assert np.all(np.abs(rates - reference.event_time_sensitivity) <= accuracy * largest)


def test_table_has_the_papers_numbers_and_every_error(papers):
    assert papers.code == 0
    assert papers.err == "", "stderr is not a terminal here"
    lines = papers.out.splitlines()
    printed = em_hysteresis.reference().printed
    for text in (*printed["finite_difference"], *printed["forward"][:3], *printed["adjoint"][:3]):
        assert any(line.endswith(f"  {text}") for line in lines), text
    errors = [float(line.split()[-2 if line.split()[-1] in printed["forward"] else -1]) for line in lines
              if "forward (FSA)" in line]  # fmt: skip
    assert len(errors) == 5
    assert max(errors) < 2e-7
    events = [line for line in lines if line.split() and line.split()[0].isdigit()]
    assert len(events) == 3 + 19


@pytest.mark.campaign
def test_markdown_has_a_row_for_every_number(reproduced):
    rows = reproduced.markdown.splitlines()
    assert len({row.count("|") for row in rows}) == 1
    assert sum("largest error" in row for row in rows) == len(FIGURES)
    assert len(rows) == 2 + 3 + 6 + 10 + 16


def test_reproduce_one_writes_json_beside_the_figures(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "hybrid_ode"]) == 0
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == [*FIGURES["hybrid_ode"], "results.json"]
    assert list(json.loads((tmp_path / "results" / "results.json").read_text(encoding="utf-8"))) == ["hybrid_ode"]


def test_without_matplotlib_the_numbers_are_there_all_the_same(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["reproduce", "hybrid_ode", "--output", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert "matplotlib" in captured.err
    assert "dG/dp" in captured.out
    assert (tmp_path / "results.json").exists()


def test_all_leaves_out_what_has_nothing_to_reproduce(tmp_path, capsys, monkeypatch):
    plain = ModuleType("plain")
    modules = {"plain": plain, "hybrid_ode": hybrid_ode}
    monkeypatch.setattr(problems, "TITLES", {"plain": "a model", "hybrid_ode": "a hybrid ODE"})
    monkeypatch.setattr(problems, "load", modules.__getitem__)
    assert main(["reproduce", "plain", "--output", str(tmp_path)]) == 2
    assert "'plain' has no published results" in capsys.readouterr().err
    assert main(["reproduce", "--all", "--output", str(tmp_path)]) == 0
    assert list(json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))) == ["hybrid_ode"]


def test_a_run_with_other_events_than_the_reference_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(hybrid_ode, "t_span", (0.0, 1.0))
    assert main(["reproduce", "hybrid_ode", "--output", str(tmp_path)]) == 1
    assert "2 events, the reference 3" in capsys.readouterr().err


def test_finite_differences_over_another_sequence_of_events_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(hybrid_ode, "difference_step", 0.05)  # beyond p = 3, where two crossings vanish
    assert main(["reproduce", "hybrid_ode", "--output", str(tmp_path)]) == 1
    assert "other transitions" in capsys.readouterr().err


# -- what goes wrong ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        pytest.param(["run", "pendulum"], "no problem 'pendulum'; there are hybrid_ode, em_hysteresis", id="run"),
        pytest.param(["reproduce", "pendulum"], "no problem 'pendulum'", id="reproduce"),
        pytest.param(["reproduce"], "takes the name of a problem, or --all", id="reproduce nothing"),
        pytest.param(["reproduce", "--all", "hybrid_ode"], "takes the name of a problem, or --all", id="both"),
        pytest.param(["run", "hybrid_ode", "--set", "p"], "--set takes NAME=VALUE", id="no value"),
        pytest.param(["run", "hybrid_ode", "--set", "p=two"], "--set takes NAME=VALUE", id="no number"),
        pytest.param(["run", "hybrid_ode", "--rtol", "small"], "invalid float value", id="rtol"),
        pytest.param(["walk"], "invalid choice", id="command"),
        pytest.param([], "required", id="nothing"),
    ],
)
def test_what_is_not_understood_is_exit_code_2(arguments, sentence, capsys):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert sentence in captured.err
    assert captured.out == ""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        pytest.param(["--rtol", "-1"], "rtol must be finite and positive", id="rtol"),
        pytest.param(["--rtol", "2e-313"], "rtol must be at least 1e-300", id="reciprocal of rtol"),
        pytest.param(["--t-end", "-1"], "reversed", id="t-end"),
        pytest.param(["--set", "q=1"], "Unknown parameter 'q'", id="parameter"),
        pytest.param(["--plot", "run.doc"], "Legal suffixes", id="plot"),
    ],
)
def test_a_run_that_fails_is_exit_code_1(arguments, sentence, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "hybrid_ode", *arguments]) == 1
    assert sentence in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_exit_code_1(capsys, tmp_path):
    (tmp_path / "file").touch()
    assert main(["run", "hybrid_ode", "--csv", str(tmp_path / "file" / "run.csv")]) == 1
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_an_interrupt_is_one_line(capsys, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "simulate", interrupt)
    assert main(["run", "hybrid_ode"]) == 130
    assert capsys.readouterr().err == "dae-hybrid: interrupted\n"


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_are_exit_code_0(option, capsys):
    assert main([option]) == 0
    assert "dae-hybrid" in capsys.readouterr().out


# -- progress ----------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_shows_the_stage_and_leaves_no_trace(monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0.01)
    monkeypatch.setattr(progress, "PERIOD", 0.01)
    stream = Terminal()
    shown = progress.threading.Event()
    write = stream.write

    def told(text):
        if "adjoint" in text:
            shown.set()
        return write(text)

    stream.write = told
    with progress.Progress("em", stream) as display:
        display.stage("adjoint")
        assert shown.wait(10)
    text = stream.getvalue()
    assert "\rem: adjoint, 0 s" in text
    assert text.endswith("\r")
    assert text.rstrip("\r").rpartition("\r")[2].strip() == ""


def test_progress_is_quiet_for_a_fast_run_and_where_nobody_looks(monkeypatch):
    stream = Terminal()
    with progress.Progress("em", stream):
        pass
    assert stream.getvalue() == ""
    monkeypatch.setattr(progress, "DELAY", 0.0)
    with progress.Progress("em", io.StringIO()) as display:
        assert display._thread is None


def test_plotting_is_not_needed_to_list(monkeypatch, capsys):
    monkeypatch.setattr(plotting, "new_figure", None)
    assert main(["list"]) == 0
