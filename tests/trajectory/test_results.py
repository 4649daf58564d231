"""Display of results: one line, a table in a notebook, data frames, labelled arrays; and the names of `dh.<TAB>`."""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.mechanics import Mechanism

TIGHT: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-11}


def tank(**names: str) -> dh.HybridModel:
    """x' = -k x + (0, q) with a level that is memory, emptied when x[0] falls to 0.5."""
    m = dh.HybridModel("tank <1>")
    k = m.parameter(names.get("k", "k"), 0.7, unit="1/s", description="outflow")
    q = m.parameter("q", [0.1, 0.2], unit="m/s")
    x = m.differential(names.get("x", "x"), size=2, unit="m", description="levels")
    y = m.differential("y")
    seen = m.memory("seen", initial=0.0, unit="m")
    run = m.mode("run", ode={x: -k * x + q, y: x[0]})
    m.transition(run, run, guard=x[0] - 0.5, direction="falling", reset={x: 2 * x}, memory={seen: x[1]}, name="fill")
    m.initial(run, {x: [1.0, 1.0], y: 0.0})
    m.functional("G", integrand=x[0] ** 2)
    m.functional("H", terminal=x)
    return m


@pytest.fixture(scope="module")
def system() -> dh.HybridSystem:
    """The tank, built."""
    return tank().build()


@pytest.fixture(scope="module")
def results(system: dh.HybridSystem) -> dict[str, Any]:
    """One object of each kind."""
    span = (0, 3)
    sol = dh.simulate(system, span, **TIGHT)
    return {
        "model": tank(),
        "mechanism": Mechanism("arm"),
        "system": system,
        "sol": sol,
        "fsa": dh.forward_sensitivity(system, span, t_eval=[0.0, 1.0, 2.0], **TIGHT),
        "asa": dh.adjoint_gradient(system, span, "G", **TIGHT),
        "vector": dh.adjoint_gradient(system, span, "H", **TIGHT),
        "table": sol.event_table,
        "diagnostics": sol.diagnostics,
        "solvability": sol.solvability(),
        "jump": sol.jump_sensitivity(0),
        "check": dh.check_gradient(system, span, "G", **TIGHT),
        "batch": dh.batch(system, span, parameters={"k": [0.6, np.nan]}, gradient="forward", **TIGHT),
        "run": dh.prepare(system, span, functional="G", derivatives="adjoint", **TIGHT)(),
    }


class Cells(HTMLParser):
    """The cells of a table; fails if a tag stays open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.open: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        assert not attrs
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


NAMES = (
    "model", "mechanism", "system", "sol", "fsa", "asa", "vector", "table", "diagnostics", "solvability", "jump",
    "check", "batch", "run",
)  # fmt: skip


def test_parts_of_results_have_one_line(results: dict[str, Any], system: dh.HybridSystem) -> None:
    sol, fsa = results["sol"], results["fsa"]
    checked = dh.adjoint_gradient(system, (0, 3), "G", duality=True, **TIGHT)
    assert repr(sol.segments[0]).startswith("<Segment in 'run' from 0 to ")
    assert repr(fsa.event_sensitivities[0]).startswith("<EventSensitivity dt/dp = [")
    assert repr(checked.duality).startswith("<Duality of 'G': passed, difference ")
    for part in (sol.segments[0], sol.events[0], fsa.event_sensitivities[0], checked.duality):
        assert len(repr(part)) < 120
        assert "\n" not in repr(part)


@pytest.mark.parametrize("name", NAMES)
def test_results_show_themselves(name: str, results: dict[str, Any]) -> None:
    thing = results[name]
    line = repr(thing)
    assert len(line) < 250
    assert line.startswith("<")
    assert "\n" not in line
    cells = Cells(thing._repr_html_())
    assert cells.rows
    assert {len(row) for row in cells.rows} == {len(cells.rows[0])}


def test_tables_have_the_numbers(results: dict[str, Any]) -> None:
    sol, asa = results["sol"], results["asa"]
    rows = Cells(sol._repr_html_()).rows
    assert ["functional G", f"{sol.functionals['G']:.6g}", ""] == rows[1]
    assert ["y", f"{sol['y'][-1]:.6g}", ""] in rows
    assert ["seen", f"{sol['seen'][-1]:.6g}", "m"] in rows
    assert Cells(asa._repr_html_()).rows[1] == ["G", *(f"{value:.6g}" for value in asa.gradient)]
    assert [row[0] for row in Cells(results["vector"]._repr_html_()).rows[1:]] == ["H[0]", "H[1]"]
    declared = Cells(results["model"]._repr_html_()).rows
    assert ["k", "parameter", "1", "0.7", "1/s", "outflow"] in declared
    assert len(Cells(results["batch"]._repr_html_()).rows) == 3


def test_public_names_and_nothing_else() -> None:
    assert sorted(dir(dh)) == sorted([*dh.__all__, "__version__"])
    assert all(hasattr(dh, name) for name in dh.__all__)
    assert [name for name in dh.__all__ if type(getattr(dh, name)) is type(sys)] == ["importers"]
    assert {"HybridModel", "simulate", "forward_sensitivity", "adjoint_gradient", "Options"} <= set(dh.__all__)


# -- data frames and labelled arrays --------------------------------------------------------------------------


def test_a_missing_library_is_named(results: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for library, calls in (
        ("xarray", (results["sol"].to_xarray, results["fsa"].to_xarray)),
        ("pandas", (results["sol"].to_dataframe, results["fsa"].to_dataframe, results["table"].to_dataframe)),
    ):
        monkeypatch.setitem(sys.modules, library, None)
        for call in calls:
            with pytest.raises(ImportError, match=rf"needs {library}.*pip install 'dae-hybrid\[data\]'"):
                call()


def test_columns_of_sensitivities(results: dict[str, Any]) -> None:
    fsa = results["fsa"]
    columns = fsa.columns()
    assert list(columns)[:5] == ["t", "mode", "dx[0]/dk", "dx[1]/dk", "dx[0]/dq[0]"]
    assert np.array_equal(columns["dx[1]/dq[1]"], fsa["x"][:, 1, 2])
    assert np.array_equal(columns["dy/dk"], fsa["y"][:, 0])
    assert list(fsa.to_dataframe().columns) == list(columns)


def test_labelled_arrays_of_a_trajectory(results: dict[str, Any]) -> None:
    sol = results["sol"]
    found = sol.to_xarray()
    assert found["x"].dims == ("t", "x_entry")
    assert found["y"].dims == ("t",)
    assert found["x"].attrs == {"units": "m", "long_name": "levels"}
    assert not found["y"].attrs
    for name in sol.names:
        assert np.array_equal(found[name].values, sol[name])
    assert np.array_equal(found["mode"].values, sol.modes)
    assert found.attrs["functional G"] == sol.functionals["G"]
    assert found.attrs["parameter q[1]"] == 0.2
    assert found.attrs["n_events"] == len(sol.events) > 0


def test_labelled_arrays_of_sensitivities(results: dict[str, Any]) -> None:
    fsa = results["fsa"]
    found = fsa.to_xarray()
    assert found["x"].dims == ("t", "x_entry", "parameter")
    assert list(found["parameter"].values) == ["k", "q[0]", "q[1]"]
    assert list(found["parameter_unit"].values) == ["1/s", "m/s", "m/s"]
    assert np.array_equal(found["y"].sel(parameter="k").values, fsa["y"][:, 0])
    assert found["x"].attrs["units"] == "m per unit of the parameter"
    assert np.array_equal(found["gradient(G)"].values, fsa.gradient["G"])
    assert found["gradient(H)"].dims == ("H_component", "parameter")
    assert np.array_equal(found["event_time"].values, fsa.event_time_sensitivity)


def test_names_that_the_dataset_needs_are_refused() -> None:
    built = tank(x="mode", k="t0").build(native=False)
    with pytest.raises(dh.OptionError, match="in tables of results: 'mode'"):
        dh.simulate(built, (0, 1)).to_xarray()
    built = tank(x="parameter").build(native=False)
    assert "parameter" in dh.simulate(built, (0, 1)).to_xarray()
    with pytest.raises(dh.OptionError, match="in tables of results: 'parameter'"):
        dh.forward_sensitivity(built, (0, 1)).to_xarray()


@pytest.mark.parametrize("name", ["mode", "event", "v_entry"])
def test_names_of_the_model_that_a_dataset_needs_are_refused(name):
    m = dh.HybridModel("m")
    x, v, k = m.differential(name), m.differential("v", size=2), m.parameter("k", 0.5)
    run = m.mode("run", ode={x: -k * x, v: -v})
    m.initial(run, {x: 1.0, v: [1.0, 2.0]})
    m.functional("G", terminal=x)
    result = dh.forward_sensitivity(m.build(), (0, 1))
    with pytest.raises(dh.OptionError, match="reserved"):
        result.to_xarray()
    if name == "mode":
        with pytest.raises(dh.OptionError, match="reserved"):
            result.trajectory.columns()
