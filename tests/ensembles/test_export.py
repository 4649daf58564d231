"""Ensembles as labelled arrays, data frames, NetCDF and Parquet: every number to the last bit, and failures marked."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import casadi as ca
import h5netcdf  # noqa: F401  # of the files
import h5py  # noqa: F401
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr  # noqa: F401  # of the stores
from pyarrow import parquet

import dae_hybrid as dh
from dae_hybrid.ensembles import export

TIMES, RATES = [0.0, 1.0, 2.0], [0.1, 0.4, -1.0, 0.7, 1.0]


def tank(k: str = "k", x: str = "x", functional: str = "G") -> dh.HybridSystem:
    """Two tanks that empty; the square root of a negative rate is not a number, and the run fails."""
    m = dh.HybridModel("tank")
    rate = m.parameter(k, 0.5, unit="1/s2", description="square of the rate")
    start = m.parameter("q", [1.0, 2.0])
    level, count = m.differential(x, size=2, unit="m", description="levels"), m.memory("n", initial=0.0)
    run = m.mode("run", ode={level: -ca.sqrt(rate) * level})
    m.transition(run, run, guard=level[0] - 0.5, direction="falling", memory={count: count + 1})
    m.initial(run, {level: start})
    m.functional(functional, terminal=level[0] ** 2)
    m.functional("H", terminal=level)
    return m.build(native=False)


@pytest.fixture(scope="module", params=["memory", "store"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dh.Ensemble:
    store = tmp_path_factory.mktemp("ensemble") / "tank" if request.param == "store" else None
    return dh.ensemble(
        tank(), (0, 2), parameters={"k": RATES}, gradient="forward", t_eval=TIMES, store=store, chunk=2, workers=1
    )  # fmt: skip


def same(a: Any, b: Any) -> bool:
    return np.array_equal(a, b, equal_nan=np.asarray(a).dtype.kind == "f")


def test_labelled_arrays_have_every_number(found: dh.Ensemble) -> None:
    content = found.to_xarray()
    assert content.sizes == {"run": 5, "t": 3, "parameter": 3, "x_entry": 2, "H_component": 2}
    assert content["x"].dims == ("run", "t", "x_entry")
    assert content["n"].dims == ("run", "t")
    assert content["gradient(H)"].dims == ("run", "H_component", "parameter")
    assert list(content["parameter"].values) == ["k", "q[0]", "q[1]"]
    assert list(content["parameter_unit"].values) == ["1/s2", "", ""]
    for name in ("G", "H"):
        assert same(content[name], found.functionals[name])
        assert same(content[f"gradient({name})"], found.gradient[name])
    for name in ("x", "n"):
        assert same(content[name], found[name])
        assert same(content[f"final({name})"], found.final[name])
    for name in ("t", "t_end", "ok", "done", "n_events", "n_steps", "digest", "native"):
        assert same(content[name], getattr(found, name)), name
    assert same(content["q[1]"], found.parameters[:, 2])
    assert np.array_equal(content["k"], RATES)
    assert content["k"].attrs == {"units": "1/s2", "long_name": "square of the rate"}
    assert content["x"].attrs == content["final(x)"].attrs == {"units": "m", "long_name": "levels"}
    assert content.attrs == {"model": "tank", "runs_done": 5}


def test_failed_runs_are_marked_with_their_errors(found: dh.Ensemble) -> None:
    content = found.to_xarray()
    assert list(content["ok"].values) == [True, True, False, True, True]
    error = found.failures[0].error
    assert list(content["error"].values) == ["", "", f"{type(error).__name__}: {error.message}", "", ""]
    assert np.isnan(content["G"].values).tolist() == [False, False, True, False, False]
    assert list(found.to_dataframe()["error"]) == list(content["error"].values)


def test_netcdf_returns_the_same_dataset(found: dh.Ensemble, tmp_path: Path) -> None:
    found.to_netcdf(tmp_path / "tank.nc")
    assert xr.load_dataset(tmp_path / "tank.nc", engine="h5netcdf").identical(found.to_xarray())
    assert [path.name for path in tmp_path.iterdir()] == ["tank.nc"]


@pytest.mark.parametrize("rows", [2, 3, 100])
def test_parquet_returns_the_same_table(
    found: dh.Ensemble, tmp_path: Path, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "ROWS_OF_GROUP", rows)
    found.to_parquet(tmp_path / "tank.parquet")
    frame = found.to_dataframe()
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "tank.parquet"), frame, check_exact=True)
    assert same(frame["dH[1]/dq[1]"], found.gradient["H"][:, 1, 2])
    assert same(frame["dG/dk"], found.gradient["G"][:, 0])
    assert same(frame["final(x[1])"], found.final["x"][:, 1])
    file = parquet.ParquetFile(tmp_path / "tank.parquet")
    assert file.num_row_groups == -(-5 // rows)
    about = file.schema_arrow
    assert about.metadata[b"model"] == b"tank"
    assert about.field("k").metadata[b"units"] == b"1/s2"
    assert about.field("final(x[0])").metadata[b"long_name"] == b"levels"


def test_a_store_opened_without_its_model_exports_the_same(tmp_path: Path) -> None:
    found = dh.ensemble(tank(), (0, 2), x0={"x": np.ones((2, 2))}, store=tmp_path / "tank")
    opened = dh.Ensemble.open(tmp_path / "tank")
    assert opened.to_xarray().identical(found.to_xarray())
    assert list(opened.to_xarray()["x[0](0)"].values) == [1.0, 1.0]
    assert opened.to_xarray()["x[0](0)"].attrs == {"units": "m", "long_name": "levels"}


def test_xarray_opens_the_arrays_of_a_store(tmp_path: Path) -> None:
    found = dh.ensemble(tank(), (0, 2), parameters={"k": RATES}, t_eval=TIMES, store=tmp_path / "tank", chunk=2)
    content = xr.open_zarr(tmp_path / "tank" / "results.zarr", consolidated=False)
    assert same(content["values"], found.values)
    assert same(content["outputs"][:, :, found.layout.outputs["n"]].squeeze(), found["n"])
    assert same(content["t"], TIMES)


class StopsAfterTwo(Executor):
    """Carries out two calls at once, then cancels the ensemble."""

    def __init__(self, cancellation: dh.Cancellation) -> None:
        self._cancellation, self._left = cancellation, 2

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **more: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(work(*arguments, **more) if self._left > 0 else None)
        self._left -= 1
        if self._left == 0:
            self._cancellation.cancel()
        return future


def test_an_incomplete_ensemble_exports_what_is_done(tmp_path: Path) -> None:
    cancellation = dh.Cancellation()
    found = dh.ensemble(
        tank(), (0, 2), parameters={"k": [0.1, 0.2, 0.3, 0.4, 0.5]}, executor=StopsAfterTwo(cancellation),
        cancellation=cancellation, workers=1, chunk=1, store=tmp_path / "tank",
    )  # fmt: skip
    assert not found.complete
    content, frame = found.to_xarray(), found.to_dataframe()
    done = content["done"].values
    assert content.attrs["runs_done"] == done.sum() == np.isfinite(content["G"].values).sum()
    assert 0 < done.sum() < 5
    assert np.array_equal(frame["done"], done)
    assert not content["ok"].values[~done].any()
    assert list(content["error"].values) == [""] * 5


def test_an_ensemble_without_functionals_and_outputs(tmp_path: Path) -> None:
    m = dh.HybridModel("decay")
    x = m.differential("x")
    m.initial(m.mode("run", ode={x: -x}), {x: 1.0})
    found = dh.ensemble(m.build(native=False), (0, 1), x0={"x": [1.0, 2.0]})
    assert same(found.to_xarray()["final(x)"], found.final["x"])
    found.to_parquet(tmp_path / "decay.parquet")
    assert same(pd.read_parquet(tmp_path / "decay.parquet")["x(0)"], [1.0, 2.0])


@pytest.mark.parametrize(
    ("names", "twice"),
    [({"functional": "x"}, "x"), ({"functional": "k"}, "k"), ({"x": "run"}, "run"), ({"k": "x_entry"}, "x_entry")],
)
def test_names_that_occur_twice_are_refused(names: dict[str, str], twice: str, tmp_path: Path) -> None:
    found = dh.ensemble(tank(**names), (0, 1), t_eval=[0.0, 1.0])
    with pytest.raises(dh.OptionError, match=f"columns of one name: '{twice}'"):
        found.to_xarray()
    with pytest.raises(dh.OptionError, match=f"columns of one name: '{twice}'"):
        found.to_netcdf(tmp_path / "tank.nc")
    assert not list(tmp_path.iterdir())


def test_columns_that_occur_twice_are_refused(tmp_path: Path) -> None:
    found = dh.ensemble(tank(functional="k"), (0, 1))
    for call in (found.to_dataframe, lambda: found.to_parquet(tmp_path / "tank.parquet")):
        with pytest.raises(dh.OptionError, match="columns of one name: 'k'"):
            call()
    assert not list(tmp_path.iterdir())


def test_a_slash_in_a_name_is_refused_by_netcdf_alone(tmp_path: Path) -> None:
    found = dh.ensemble(tank(k="a/b"), (0, 1))
    assert "a/b" in found.to_xarray()
    with pytest.raises(dh.OptionError, match="'a/b'"):
        found.to_netcdf(tmp_path / "tank.nc")
    assert not list(tmp_path.iterdir())


def test_a_failed_export_leaves_the_old_file(found: dh.Ensemble, tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "tank.parquet"
    path.write_bytes(b"old")
    monkeypatch.setattr(export, "ROWS_OF_GROUP", 2)
    parts, columns = [], export.Source.columns

    def failing(self: export.Source, *rows: Any) -> Any:
        parts.append(rows)
        if len(parts) > 2:
            raise OSError("No space left on device")
        return columns(self, *rows)

    monkeypatch.setattr(export.Source, "columns", failing)
    with pytest.raises(OSError, match="No space left"):
        found.to_parquet(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("library", "method"),
    [
        ("xarray", "to_xarray"), ("pandas", "to_dataframe"), ("h5netcdf", "to_netcdf"), ("h5py", "to_netcdf"),
        ("pyarrow", "to_parquet"),
    ],
)  # fmt: skip
def test_a_missing_library_is_named(
    found: dh.Ensemble, library: str, method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    arguments = [tmp_path / "file"] if method in ("to_netcdf", "to_parquet") else []
    with pytest.raises(ImportError, match=rf"needs {library}.*pip install 'dae-hybrid\[ensemble\]'"):
        getattr(found, method)(*arguments)
