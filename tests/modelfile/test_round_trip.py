"""Written and read again, a model has the same operations in the same order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import casadi as ca
import event_models
import growing
import mechanisms
import models
import numpy as np
import pytest
import random_systems
import switched
from every_argument import everything

import dae_hybrid as dh
from dae_hybrid import problems
from dae_hybrid.modelfile.writing import written
from dae_hybrid.problems import five_bar, ivp_circuits, ivp_test_set


def inline(_: str, columns: dict[str, np.ndarray]) -> dict[str, Any]:
    """Data in the document."""
    return {key: values.tolist() for key, values in columns.items()}


def assert_same(model: dh.HybridModel, restored: dh.HybridModel) -> None:
    """Same operations, numbers and words."""
    assert written(restored, inline) == written(model, inline)
    assert list(restored.modes) == list(model.modes)
    assert list(restored.transitions) == list(model.transitions)
    assert list(restored.functionals) == list(model.functionals)
    for kind in ("parameter", "differential", "algebraic", "memory", "unknown"):
        pairs = zip(model.of_kind(kind), restored.of_kind(kind), strict=True)  # type: ignore[arg-type]
        for one, other in pairs:
            assert (one.name, one.size, one.unit, one.description) == (
                other.name,
                other.size,
                other.unit,
                other.description,
            )
            if one.value is not None:
                np.testing.assert_array_equal(one.value, other.value)
            if one.bounds is not None:
                np.testing.assert_array_equal(one.bounds, other.bounds)
    for name, mode in model.modes.items():
        other = restored.modes[name]
        assert (mode.labels, mode.idle, list(mode.ode)) == (other.labels, other.idle, list(other.ode))
    for name, one in model.transitions.items():
        other = restored.transitions[name]
        for key in ("direction", "on_entry", "resolution", "labels", "refusal", "freezes", "stays"):
            assert getattr(one, key) == getattr(other, key)


#: problems with interpreted adjoints that take long, or very long
LONG, VERY_LONG = ["five_bar", "repeated_doses"], ["cyclic_steel", "menegotto_pinto"]


def results(model: dh.HybridModel, problem: Any, *, gradient: bool) -> list[np.ndarray]:
    """Final values and functionals, or the value and the gradient of a functional."""
    system = model.build(native=False)
    if problem.__name__.endswith("ali3p"):
        sol = dh.simulate(system, (0.0, 0.3), adapter="ali3p", fixed_step=1e-2)
        return [np.asarray(value) for value in sol.final[1:] if isinstance(value, np.ndarray)]
    start, end = problem.t_span
    measured = any(f.series or f.at_times for f in model.functionals.values())
    span = (start, end if measured else start + 0.3 * (end - start))
    if not gradient:
        sol = dh.simulate(system, span)
        return [sol.final[1], *(np.asarray(value) for value in sol.functionals.values())]
    found = dh.adjoint_gradient(system, span, system.functionals.names[0])
    return [np.asarray(found.value), np.asarray(found.gradient)]


@pytest.mark.parametrize(
    ("name", "gradient"),
    [
        *((name, name not in LONG + VERY_LONG) for name in problems.names() if name != "cyclic_steel"),
        pytest.param("cyclic_steel", False, marks=pytest.mark.campaign),
        *(pytest.param(name, True, marks=pytest.mark.campaign) for name in LONG),
    ],
)
def test_restored_problems_have_the_same_results_to_the_last_bit(name: str, gradient: bool) -> None:
    problem = problems.load(name)
    model = problem.model()
    restored = dh.HybridModel.from_text(model.to_text())
    values, again = (results(m, problem, gradient=gradient) for m in (model, restored))
    assert values
    assert all(np.isfinite(value).all() for value in values)
    for one, other in zip(values, again, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", problems.names())
def test_worked_problems_are_restored(name: str) -> None:
    model = problems.load(name).model()
    text = model.to_text()
    restored = dh.HybridModel.from_text(text)
    assert restored.to_text() == text
    assert_same(model, restored)


@pytest.mark.parametrize("name", problems.names())
def test_json_says_the_same_as_toml(name: str) -> None:
    model = problems.load(name).model()
    text = model.to_text("json")
    assert dh.HybridModel.from_text(text, "json").to_text() == model.to_text()
    assert json.loads(text)["name"] == model.name


@pytest.mark.parametrize("form", mechanisms.FORMS)
@pytest.mark.parametrize("mechanism", [mechanisms.pendulum, five_bar.mechanism])
def test_mechanisms(mechanism: Callable[[], Any], form: str) -> None:
    model = mechanism().model(mechanisms.FORMS[form])
    assert_same(model, dh.HybridModel.from_text(model.to_text()))


OTHERS: dict[str, Callable[[], dh.HybridModel]] = {
    **{name: getattr(models, name) for name in ("ball", "circuit", "counter", "em", "switched")},
    "controller": lambda: switched.controller(relations=True),
    "thermostat": lambda: switched.thermostat(relations=True),
    "sampled": growing.sampled,
    "impacts": growing.impacts,
    "exits": lambda: growing.exits(10),
    "rod": lambda: growing.rod(8, elements=True),
    "bars": lambda: growing.bars(5, contacts=True).model(),
    "tree": lambda: growing.tree(5).model(),
    "pleiades": ivp_test_set.pleiades,
    "robertson": ivp_test_set.robertson,
    "transistor_amplifier": ivp_circuits.transistor_amplifier,
    **{name: make for name, (make, _, _) in event_models.MODELS.items()},
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_models(name: str) -> None:
    model = OTHERS[name]()
    assert_same(model, dh.HybridModel.from_text(model.to_text()))


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.campaign if seed >= 10 else []) for seed in range(40)]
)
def test_random_systems(seed: int) -> None:
    model = random_systems.random_system(seed).model()
    assert_same(model, dh.HybridModel.from_text(model.to_text()))


def test_everything_that_can_be_declared() -> None:
    model = everything()
    text = model.to_text()
    restored = dh.HybridModel.from_text(text)
    assert restored.to_text() == text
    assert_same(model, restored)
    assert restored.start is not None
    assert list(restored.start.guess) == ["y*", "der(y*)"]
    assert restored.start.labels == ("rest",)
    series, copy = model.functionals["whole"].series, restored.functionals["whole"].series
    np.testing.assert_array_equal(series[0].data, copy[0].data)
    assert [t.trigger.argument for t in restored.transitions.values()] == ["guard", "at", "every", "guard", "guard"]
    assert restored.declarations["held"].of is restored.declarations["x"]


# -- files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("data", ["inline", "csv"])
@pytest.mark.parametrize("form", ["toml", "json"])
def test_files(tmp_path: Path, form: str, data: Any) -> None:
    model = everything()
    path = model.to_file(tmp_path / "new" / f"model.{form}", data=data)
    files = sorted(file.name for file in path.parent.iterdir())
    assert files == ([path.name] if data == "inline" else sorted([path.name, "model_curve.csv", "model_whole_0.csv"]))
    assert dh.HybridModel.from_file(path).to_text() == model.to_text()
    if data == "csv":
        with pytest.raises(dh.ModelFileError, match="data files are not allowed"):
            dh.HybridModel.from_file(path, data=False)


def test_other_endings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(dh.ModelFileError, match=r"\*\.toml or \*\.json"):
        models.ball().to_file(tmp_path / "ball.yaml")
    with pytest.raises(dh.ModelFileError, match=r"\*\.toml or \*\.json"):
        dh.HybridModel.from_file(tmp_path / "ball.yaml")
    with pytest.raises(FileNotFoundError):
        dh.HybridModel.from_file(tmp_path / "ball.toml")


# -- size -------------------------------------------------------------------------------------------------------


def test_the_text_grows_with_the_number_of_nodes() -> None:
    sizes = []
    for n in (500, 1000):
        m = dh.HybridModel("nested")
        x = m.differential("x")
        e = x
        for _ in range(n):
            e = ca.sin(e) * e + 1  # written out, this doubles at each step
        m.initial(m.mode("run", ode={x: -e}), {x: 1.0})
        sizes.append(len(m.to_text()))
    assert sizes[1] < 2.2 * sizes[0] < 2.2 * 50 * 500


def test_deep_expressions_are_split() -> None:
    m = dh.HybridModel("deep")
    x = m.differential("x")
    e = x
    for _ in range(5_000):
        e = ca.sin(e)
    m.initial(m.mode("run", ode={x: e}), {x: 1.0})
    assert_same(m, dh.HybridModel.from_text(m.to_text()))


# -- what no file can state -------------------------------------------------------------------------------------


class Squared(ca.Callback):
    """Code of Python."""

    def __init__(self) -> None:
        ca.Callback.__init__(self)
        self.construct("squared", {"enable_fd": True})

    def eval(self, arg: Any) -> Any:
        """The square."""
        return [arg[0] ** 2]


def calling(function: ca.Function) -> dh.HybridModel:
    """A model that calls a function of one number."""
    m = dh.HybridModel("calling")
    x = m.differential("x")
    m.initial(m.mode("run", ode={x: function(x)}), {x: 1.0})
    return m


def test_code_is_refused_by_name() -> None:
    squared = Squared()
    with pytest.raises(dh.UnsupportedError, match="squared"):
        calling(squared).to_text()
    table = ca.interpolant("table", "linear", [[0.0, 1.0]], [0.0, 1.0])
    with pytest.raises(dh.UnsupportedError, match="table"):
        calling(table).to_text()


def test_functions_with_derivatives_of_their_own_are_refused() -> None:
    x, y = ca.MX.sym("x"), ca.MX.sym("y")
    jacobian = ca.Function("jac_own", [x, y], [ca.DM(7)])
    own = ca.Function("own", [x], [x**2], {"custom_jacobian": jacobian, "never_inline": True, "jac_penalty": 0})
    with pytest.raises(dh.UnsupportedError, match=r"calls own .* has options"):
        calling(own).to_text()


@pytest.mark.parametrize("name", ["sin", "inv", "mac", "der", "vertcat", "smooth", "range"])
@pytest.mark.parametrize("of", [ca.SX, ca.MX])
def test_functions_of_expressions_are_written_as_functions(of: Any, name: str) -> None:
    x = of.sym("x")
    function = ca.Function(name, [x], [ca.sin(x) + x**2], ["x"], ["y"])
    m = calling(ca.Function("outer", [x], [function(x) * 2]) if of is ca.SX else function)
    text = m.to_text()
    restored = dh.HybridModel.from_text(text)
    assert "[functions]" in text
    assert_same(m, restored)


def test_operations_outside_the_grammar_are_refused_by_name() -> None:
    m = dh.HybridModel("search")
    x, grid = m.differential("x"), m.parameter("grid", [0.0, 1.0])
    m.initial(m.mode("run", ode={x: ca.low(grid, x)}), {x: 1.0})
    with pytest.raises(dh.UnsupportedError, match="operation low"):
        m.to_text()


def test_solvers_other_than_the_default_are_refused() -> None:
    for plugin, legal in (("qr", True), ("ldl", False)):
        m = dh.HybridModel("solve")
        x, k = m.differential("x", size=2), m.parameter("k", 2.0)
        matrix = ca.vertcat(ca.horzcat(k, 1), ca.horzcat(1, k))
        m.initial(m.mode("run", ode={x: ca.solve(matrix, x, plugin)}), {x: 1.0})
        if legal:
            assert_same(m, dh.HybridModel.from_text(m.to_text()))
        else:
            with pytest.raises(dh.UnsupportedError, match="operation solve"):
                m.to_text()


def test_data_beside_a_file_overwrites_only_data_of_that_file(tmp_path: Path) -> None:
    m = dh.HybridModel("driven")
    t = np.linspace(0.0, 1.0, 30)
    push, y = m.signal("push", t, np.sin(t)), m.differential("y")
    m.initial(m.mode("run", ode={y: push}), {y: 0.0})
    path, data = tmp_path / "driven.toml", tmp_path / "driven_push.csv"
    data.write_text("measured,values\n")
    with pytest.raises(dh.ModelError, match="exists already"):
        m.to_file(path, data="csv")
    assert data.read_text() == "measured,values\n"
    data.unlink()
    m.to_file(path, data="csv")
    m.to_file(path, data="csv")
    assert dh.HybridModel.from_file(path).to_text() == m.to_text()
