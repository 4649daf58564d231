"""Commands that take a model by name: a model file, a function, a worked problem."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dae_hybrid.cli import main

DECAY = """
name = "decay"
[run]
t_span = [0, 2]
[parameters]
k = {value = 0.7, lower = 0.5}
y0 = [2.0]
c = [1.0, 2.0]
[variables]
y = {}
[modes.run]
ode = {y = "-k * y"}
[initial]
mode = "run"
values = {y = "y0"}
[functionals]
end = {terminal = "y"}
both = {terminal = ["y", "c[1] * y"]}
"""


@pytest.fixture
def decay(tmp_path: Path) -> str:
    """Path of a model file."""
    path = tmp_path / "decay.toml"
    path.write_text(DECAY, encoding="utf-8")
    return str(path)


def numbers(text: str) -> dict[str, float]:
    """The second word of every line of two, by the first."""
    rows = [line.split() for line in text.splitlines()]
    return {row[0]: float(row[1]) for row in rows if len(row) == 2 and row[1][-1].isdigit()}


def test_run_a_file(decay: str, capsys: Any) -> None:
    assert main(["run", decay, "--set", "k=1", "--set", "c=1,3"]) == 0
    found = numbers(capsys.readouterr().out)
    assert found["end"] == pytest.approx(2 * math.exp(-2), rel=1e-7)
    assert found["both[1]"] == pytest.approx(6 * math.exp(-2), rel=1e-7)


def test_the_interval_is_replaced_and_checked(decay: str, capsys: Any) -> None:
    assert main(["run", decay, "--t-span", "1", "3", "--rtol", "1e-6"]) == 0
    assert "t from 1 to 3, rtol 1e-06, atol 1e-12" in capsys.readouterr().out
    assert main(["run", decay, "--t-end", "0.5"]) == 0
    assert "t from 0 to 0.5" in capsys.readouterr().out
    assert main(["run", decay, "--t-end", "0.5", "--t-span", "0", "1"]) == 2
    assert "exclude each other" in capsys.readouterr().err
    assert main(["run", "models:ball"]) == 2
    assert "--t-span" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["csv", "json", "nc", "parquet"])
def test_outputs(decay: str, tmp_path: Path, form: str) -> None:
    path = tmp_path / "new" / f"run.{form}"
    assert main(["run", decay, "--output", str(path)]) == 0
    if form == "csv":
        with path.open(newline="", encoding="utf-8") as file:
            found = [float(row["y"]) for row in csv.DictReader(file)]
    elif form == "json":
        found = json.loads(path.read_text(encoding="utf-8"))["y"]
    elif form == "nc":
        import xarray

        with xarray.open_dataset(path, engine="h5netcdf") as content:
            found = content["y"].to_numpy().tolist()
    else:
        import pandas as pd

        found = pd.read_parquet(path)["y"].tolist()
    assert found[0] == 2.0
    assert found[-1] == pytest.approx(2 * math.exp(-1.4), rel=1e-7)


def test_outputs_of_unknown_forms_are_refused_before_the_run(decay: str, capsys: Any) -> None:
    assert main(["run", decay, "--output", "run.xlsx"]) == 2
    assert ".csv" in capsys.readouterr().err


def test_values_of_modes_without_a_variable_are_null_in_json(tmp_path: Path) -> None:
    path = tmp_path / "rope.json"
    assert main(["run", "ball_on_rope", "--output", str(path)]) == 0
    values = json.loads(path.read_text(encoding="utf-8"))["mu"]
    assert None in values
    assert any(value is not None for value in values)


def test_gradient(decay: str, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "gradient.csv"
    assert main(["gradient", decay, "--functional", "both", "--wrt", "k", "--wrt", "c", "--output", str(path)]) == 0
    found, y = numbers(capsys.readouterr().out), 2 * math.exp(-1.4)
    assert found["dboth[0]/dk"] == pytest.approx(-2 * y, rel=1e-6)
    assert found["dboth[1]/dc[1]"] == pytest.approx(y, rel=1e-6)
    with path.open(newline="", encoding="utf-8") as file:
        assert [row["derivative"] for row in csv.DictReader(file)] == list(found)


def test_check(decay: str, capsys: Any, monkeypatch: Any) -> None:
    assert main(["check", decay, "--functional", "end", "--wrt", "k"]) == 0
    assert "dend/dk" in capsys.readouterr().out
    monkeypatch.setattr("dae_hybrid.command.AGREEMENT", 0.0)
    assert main(["check", decay, "--functional", "end", "--wrt", "k"]) == 1
    assert "differ by" in capsys.readouterr().err


def test_fit_respects_the_limits_of_the_file(decay: str, tmp_path: Path, capsys: Any) -> None:
    data, path = tmp_path / "data.csv", tmp_path / "fit.json"
    t = np.linspace(0.1, 2, 20)
    for k, expected in ((0.9, 0.9), (0.3, 0.5)):
        rows = "\n".join(f"{when},{value}" for when, value in zip(t, 2 * np.exp(-k * t), strict=True))
        data.write_text(f"s,height\n{rows}\n1.5,\n", encoding="utf-8")
        arguments = ["--data", str(data), "--time", "s", "--measured", "y=height", "--free", "k", "--output", str(path)]
        assert main(["fit", decay, *arguments]) == 0
        assert "estimate" in capsys.readouterr().out
        found = json.loads(path.read_text(encoding="utf-8"))
        assert found["parameter"] == ["k"]
        assert found["estimate"] == pytest.approx([expected], rel=1e-5)
    assert main(["fit", decay, "--data", str(data), "--measured", "y", "--free", "k"]) == 2
    assert "no column t, y; its columns are s, height" in capsys.readouterr().err


def test_other_starts(decay: str, tmp_path: Path, capsys: Any) -> None:
    """y' = -k y from 4 in place of 2; the initial value is a parameter by which to differentiate, and to be fitted."""
    start = ["--t-span", "0", "1", "--x0", "y=4", "--set", "k=1"]
    assert main(["run", decay, *start]) == 0
    ran = numbers(capsys.readouterr().out)
    assert main(["run", decay, "--t-span", "0", "1", "--set", "k=1"]) == 0
    assert ran == pytest.approx({name: 2 * value for name, value in numbers(capsys.readouterr().out).items()})
    assert main(["gradient", decay, *start, "--wrt", "y(0)", "--functional", next(iter(ran))]) == 0
    assert "y(0)" in capsys.readouterr().out
    data, path, t = tmp_path / "data.csv", tmp_path / "fit.json", np.linspace(0.1, 2, 20)
    rows = "\n".join(f"{when},{value}" for when, value in zip(t, 3 * np.exp(-0.9 * t), strict=True))
    data.write_text(f"t,y\n{rows}\n", encoding="utf-8")
    free = ["--data", str(data), "--measured", "y", "--free", "k", "--free", "y(0)", "--output", str(path)]
    assert main(["fit", decay, *free, "--x0", "y=2.5"]) == 0
    assert json.loads(path.read_text(encoding="utf-8"))["estimate"] == pytest.approx([0.9, 3.0], rel=1e-5)
    assert main(["run", decay, "--t-span", "0", "1", "--start-mode", "none"]) == 1
    assert "start_mode='none' is not a mode" in capsys.readouterr().err
    assert main(["run", decay, "--t-span", "0", "1", "--x0", "y"]) == 2
    assert "--x0 takes NAME=VALUE" in capsys.readouterr().err


def test_functions_by_name(capsys: Any) -> None:
    assert main(["run", "models:ball", "--t-span", "0", "1"]) == 0
    assert "bounce" in capsys.readouterr().out
    for name, word in (
        ("models:none", "cannot be imported"),
        ("models:PI", "must return"),
        (":", "cannot be imported"),
    ):
        assert main(["run", name, "--t-span", "0", "1"]) == 2
        assert word in capsys.readouterr().err


def test_errors_of_files_have_a_place(decay: str, capsys: Any) -> None:
    Path(decay).write_text(DECAY.replace('"-k * y"', '"-k * z"'), encoding="utf-8")
    assert main(["run", decay]) == 1
    assert capsys.readouterr().err.startswith(f"dae-hybrid: {decay}:12:18: modes.run.ode.y: 'z' is not declared")
    assert main(["run", "none.toml"]) == 1
    assert "none.toml" in capsys.readouterr().err


def test_tables_in_other_encodings(decay: str, tmp_path: Path, capsys: Any) -> None:
    table = tmp_path / "table.csv"
    table.write_text("t,y\n0.5,1.2\n1,0.7\n", encoding="utf-8-sig")
    arguments = ["fit", decay, "--data", str(table), "--measured", "y", "--free", "k"]
    assert main(arguments) == 0
    table.write_bytes(b"t,y\n0.5,\xff\n")
    assert main(arguments) == 2
    assert "is not a CSV file in UTF-8" in capsys.readouterr().err


def test_rows_that_are_too_short_are_refused(decay: str, tmp_path: Path, capsys: Any) -> None:
    table = tmp_path / "table.csv"
    table.write_text("t,y\n0.5,1.2\n1\n")
    assert main(["fit", decay, "--data", str(table), "--measured", "y", "--free", "k"]) == 2
    assert "data row 2 has too few cells" in capsys.readouterr().err


def test_a_picture_of_no_known_format_is_refused_before_the_run(
    decay: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", decay, "--plot", str(tmp_path / "run.xyz"), "--csv", str(tmp_path / "run.csv")]) == 1
    assert "names no known format" in capsys.readouterr().err
    assert not (tmp_path / "run.csv").exists()
