"""Inputs are accepted in documented forms or refused by name."""

from __future__ import annotations

import copy
import pickle
from collections import namedtuple
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import casadi as ca
import numpy as np
import pandas as pd
import pytest
from mechanisms import pendulum

import dae_hybrid as dh

NAN, INF = np.nan, np.inf
CALLS: dict[str, Callable[..., Any]] = {
    "simulate": dh.simulate,
    "forward": dh.forward_sensitivity,
    "adjoint": lambda system, span, **more: dh.adjoint_gradient(system, span, "G", **more),
    "check": lambda system, span, **more: dh.check_gradient(system, span, "G", **more),
}
everywhere = pytest.mark.parametrize("call", list(CALLS.values()), ids=list(CALLS))


def relaxation() -> dh.HybridModel:
    """y' = -a y + c . (1, 2) from y0 = b."""
    m = dh.HybridModel("relaxation")
    a, b, c = m.parameter("a", 0.5), m.parameter("b", 2.0), m.parameter("c", [0.3, 0.1])
    y = m.differential("y")
    m.initial(m.mode("run", ode={y: -a * y + c[0] + 2 * c[1]}), {y: b})
    m.functional("G", terminal=y)
    return m


def truth(a: float = 0.5, b: float = 2.0, c: Any = (0.3, 0.1), t: float = 1.0) -> float:
    rest = (c[0] + 2 * c[1]) / a
    return float(rest + (b - rest) * np.exp(-a * t))


@pytest.fixture(scope="module")
def system() -> dh.HybridSystem:
    return relaxation().build(native=False)


def value_of(result: Any) -> float:
    if isinstance(result, dh.Gradient | dh.GradientCheck):
        return float(result.value)
    return float(result.functionals["G"])


def refusal(act: Callable[[], Any], *words: str, error: type[Exception] = dh.DaeHybridError) -> Any:
    """The error, in one sentence that has all of these words."""
    with pytest.raises(error) as caught:
        act()
    for word in words:
        assert word in str(caught.value)
    return caught.value


# -- parameters with labels -------------------------------------------------------------------------------

Row = namedtuple("Row", ["b", "a"])
RECORD = np.array([(4.0, 0.25)], dtype=[("b", float), ("a", float)])
LABELLED: dict[str, tuple[Any, dict[str, Any]]] = {
    "in order": (pd.Series({"a": 0.25, "b": 4.0}), {"a": 0.25, "b": 4.0}),
    "in another order": (pd.Series({"b": 4.0, "a": 0.25}), {"a": 0.25, "b": 4.0}),
    "a part": (pd.Series({"b": 4.0}), {"b": 4.0}),
    "none": (pd.Series([], index=pd.Index([], dtype=object), dtype=float), {}),
    "entries of a vector": (pd.Series({"c[1]": 0.7, "a": 0.25}), {"c": (0.3, 0.7), "a": 0.25}),
    "all entries": (
        pd.Series([0.7, 0.2, 4.0, 0.25], index=["c[1]", "c[0]", "b", "a"]),
        {"a": 0.25, "b": 4.0, "c": (0.2, 0.7)},
    ),
    "vectors in a series": (pd.Series({"c": [0.2, 0.7], "b": 4.0}), {"b": 4.0, "c": (0.2, 0.7)}),
    "integers": (pd.Series({"b": 4, "a": 1}), {"b": 4.0, "a": 1.0}),
    "a row of a table": (pd.DataFrame({"b": [1.0, 4.0], "a": [2.0, 0.25]}).iloc[1], {"a": 0.25, "b": 4.0}),
    "a table of one row": (pd.DataFrame({"b": [4.0], "a": [0.25]}), {"a": 0.25, "b": 4.0}),
    "a named tuple": (Row(4.0, 0.25), {"a": 0.25, "b": 4.0}),
    "a record": (RECORD[0], {"a": 0.25, "b": 4.0}),
    "an array of one record": (RECORD, {"a": 0.25, "b": 4.0}),
    "a mapping with an entry": ({"c[0]": 0.2, "b": 4.0}, {"b": 4.0, "c": (0.2, 0.1)}),
}


class DataArray:
    """What an xarray DataArray of one dimension looks like."""

    def __init__(self, values: Any, labels: Any) -> None:
        self.values, self.dims = np.array(values), ("parameter",)
        coordinate = type("Coordinate", (), {"values": np.array(labels)})()
        self.coords = {} if labels is None else {"parameter": coordinate}

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.values if dtype is None else self.values.astype(dtype)


@everywhere
@pytest.mark.parametrize(("given", "meant"), list(LABELLED.values()), ids=list(LABELLED))
def test_parameters_are_taken_by_label(call: Any, given: Any, meant: dict[str, Any], system: dh.HybridSystem) -> None:
    result = call(system, (0, 1), parameters=given, rtol=1e-9)
    assert value_of(result) == pytest.approx(truth(**meant), rel=1e-7)


def test_a_data_array_is_taken_by_its_coordinates(system: dh.HybridSystem) -> None:
    labelled = DataArray([4.0, 0.25], ["b", "a"])
    assert system.parameter_vector(labelled).tolist() == [0.25, 4.0, 0.3, 0.1]
    assert system.parameter_vector(DataArray([1, 2, 3, 4], None)).tolist() == [1.0, 2.0, 3.0, 4.0]
    refusal(lambda: system.parameter_vector(DataArray([4.0, 0.25], ["b", "b"])), "label", "'b'", "twice")


@pytest.mark.parametrize(
    "given", [pd.Series([0.25, 4, 0.2, 0.7]), (0.25, 4, 0.2, 0.7), pd.Index([0.25, 4, 0.2, 0.7]),
              pd.Series([0.25, 4, 0.2, 0.7], dtype="Float64"), np.array([0.25, 4, 0.2, 0.7])[::-1][::-1],
              [Fraction(1, 4), 4, 0.2, 0.7], np.array([0.25, 9, 4, 9, 0.2, 9, 0.7, 9])[::2]],
)  # fmt: skip
def test_values_without_labels_are_taken_by_position(given: Any, system: dh.HybridSystem) -> None:
    assert system.parameter_vector(given).tolist() == pytest.approx([0.25, 4.0, 0.2, 0.7], rel=1e-15)


def test_results_name_parameters_as_they_are_taken(system: dh.HybridSystem) -> None:
    """A gradient labelled by its parameters is a step in the space of parameters."""
    found = dh.adjoint_gradient(system, (0, 1), "G", rtol=1e-9)
    step = pd.Series(found.gradient, index=found.parameters).sort_index(ascending=False)
    assert system.parameter_vector(step).tolist() == found.gradient.tolist()


FOREIGN: dict[str, tuple[Any, tuple[str, ...]]] = {
    "a foreign label": (pd.Series({"a": 1.0, "k": 2.0}), ("'k'", "a, b, c")),
    "a repeated label": (pd.Series([1.0, 2.0], index=["a", "a"]), ("'a'", "twice")),
    "a vector and an entry of it": ({"c": [1, 2], "c[0]": 3}, ("'c[0]'", "twice")),
    "an entry that is not there": ({"c[2]": 3}, ("'c[2]'",)),
    "positions in another order": (pd.Series([1.0, 2.0, 3.0, 4.0], index=[3, 2, 1, 0]), ("Unknown parameter 3",)),
    "positions from one": (pd.Series([1.0, 2.0, 3.0, 4.0], index=[1, 2, 3, 4]), ("Unknown parameter 1", "position")),
    "a table of two rows": (pd.DataFrame({"a": [1.0, 2.0]}), ("one row", "got 2")),
    "two records": (np.zeros(2, dtype=RECORD.dtype), ("one record", "got 2")),
    "too few without labels": (pd.Series([1.0, 2.0]), ("4 values", "a, b, c[0], c[1]", "(2,)")),
    "symbols": ({ca.MX.sym("a"): 1.0}, ("Unknown parameter MX(a)",)),
}


@everywhere
@pytest.mark.parametrize(("given", "words"), list(FOREIGN.values()), ids=list(FOREIGN))
def test_labels_that_do_not_fit(call: Any, given: Any, words: tuple[str, ...], system: dh.HybridSystem) -> None:
    refusal(lambda: call(system, (0, 1), parameters=given), *words, error=dh.ParameterError)


# -- numbers that are none --------------------------------------------------------------------------------

NO_NUMBERS: dict[str, tuple[Any, str]] = {
    "masked": (np.ma.array([0.5, 2.0], mask=[False, True]), "masked"),
    "nothing masked": (np.ma.array([0.5, 2.0]), "masked"),
    "a masked entry": ([0.5, np.ma.masked], "masked"),
    "complex": ([0.5, 2 + 0j], "complex"),
    "objects": (np.array([0.5, 2.0], dtype=object), "objects"),
    "truth values": ([True, False], "truth"),
    "a truth value": ([0.5, True], "truth"),
    "strings": (["0.5", "2.0"], "strings"),
    "a string": ("0.5", "strings"),
    "bytes": (b"12", "strings"),
    "dates": (np.array(["2020", "2021"], dtype="datetime64"), "dates"),
    "nothing": ([None, 1.0], "None"),
    "not available": ([pd.NA, 1.0], "NA"),
    "ragged": ([[0.5], [1.0, 2.0]], "numeric"),
    "a set": ({0.5, 2.0}, "numeric"),
    "a generator": ((x for x in (0.5, 2.0)), "numeric"),
    "symbols of CasADi": ([ca.MX.sym("x"), 1.0], "numeric"),
    "too large": ([10**400, 1], "float"),
}
no_numbers = pytest.mark.parametrize(("value", "word"), list(NO_NUMBERS.values()), ids=list(NO_NUMBERS))


@no_numbers
def test_no_numbers_as_parameters(value: Any, word: str, system: dh.HybridSystem) -> None:
    refusal(lambda: system.parameter_vector(value), "parameters of 'relaxation'", word, error=dh.ParameterError)
    refusal(lambda: system.parameter_vector({"c": value}), "'c'", word, error=dh.ParameterError)


@no_numbers
def test_no_numbers_as_times(value: Any, word: str, system: dh.HybridSystem) -> None:
    refusal(lambda: dh.simulate(system, (0, 3), t_eval=value), "t_eval", word, error=dh.OptionError)
    sol = dh.simulate(system, (0, 3))
    refusal(lambda: sol(value), "dense output", word, error=dh.OptionError)
    if word != "nothing":
        refusal(lambda: dh.simulate(system, value), "t_span", error=dh.OptionError)


@no_numbers
def test_no_numbers_in_declarations(value: Any, word: str) -> None:
    m = dh.HybridModel("m")
    refusal(lambda: m.parameter("p", value), "'p'", word, error=dh.ModelError)
    refusal(lambda: m.algebraic("z", size=2, guess=value), "'z'", word, error=dh.ModelError)
    refusal(lambda: m.signal("s", value, [1.0, 2.0]), "knots of signal 's'", word, error=dh.ModelError)
    if "CasADi" not in str(word) and not (isinstance(value, list) and isinstance(value[0], ca.MX)):
        refusal(lambda: m.signal("s", [0.0, 1.0], value), "values of signal 's'", word, error=dh.ModelError)
        y = m.differential("y", size=2)
        refusal(lambda: m.mode("run", ode={y: value}), "'y'", error=dh.ModelError)
    assert "p" not in m.declarations


@pytest.mark.parametrize("value", [np.ma.array(1e-8), True, "1e-8", 1e-8j, [1e-8, 1e-8], NAN, 0, -1e-8, None, 1e-310])
def test_tolerances_that_are_none(value: Any, system: dh.HybridSystem) -> None:
    for given in (value, {"y": value}, {"*": value}):
        refusal(lambda given=given: dh.simulate(system, (0, 1), atol=given), "atol", error=dh.OptionError)
    refusal(lambda: dh.simulate(system, (0, 1), rtol=value), "rtol", error=dh.OptionError) if value != 1e-310 else None


def test_tolerances_by_label(system: dh.HybridSystem) -> None:
    given = {"y": 1e-3, "*": 1e-12}
    sol, same = (dh.simulate(system, (0, 1), atol=atol, rtol=1e-9) for atol in (given, pd.Series(given)))
    assert sol.functionals["G"] == same.functionals["G"]
    given["y"] = 1e5
    assert sol.options.atol == {"y": 1e-3, "*": 1e-12}
    refusal(lambda: dh.simulate(system, (0, 1), atol=pd.Series({"x": 1e-3})), "'x'", error=dh.OptionError)


# -- lengths, NaN, names ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([1.0, NAN, 1.0, INF], ("'b' (index 1) is nan", "'c[1]' (index 3) is inf")),
        ({"c": [1.0, NAN]}, ("'c'", "'c[1]' (index 1) is nan")),
        ({"b": INF}, ("'b'", "inf")),
        ([1.0, 2.0, 3.0], ("4 values needed", "a, b, c[0], c[1]", "(3,)")),
        ([[1.0], [2.0], [3.0], [4.0]], ("4 values needed", "(4, 1)")),
        ({"c": 1.0}, ("'c'", "2 values needed", "c[0], c[1]")),
        ({"a": [1.0, 2.0]}, ("'a'", "1 value needed", "(2,)")),
    ],
)
def test_errors_name_the_parameter(given: Any, words: tuple[str, ...], system: dh.HybridSystem) -> None:
    refusal(lambda: dh.simulate(system, (0, 1), parameters=given), *words, error=dh.ParameterError)


def test_many_parameters_are_not_all_listed() -> None:
    m = dh.HybridModel("many")
    k, y = m.parameter("k", np.ones(1000)), m.differential("y")
    m.initial(m.mode("run", ode={y: -k[0]}), {y: 1.0})
    system = m.build(native=False)
    error = refusal(lambda: system.parameter_vector(np.full(1000, NAN)), "'k[0]' (index 0)", "992 more")
    assert len(str(error)) < 1000
    assert len(str(refusal(lambda: system.parameter_vector([1.0]), "1000 values"))) < 1000


def test_arrays_that_change_afterwards(system: dh.HybridSystem) -> None:
    """Arguments are neither stored nor modified."""
    p, times = np.array([0.5, 2.0, 0.3, 0.1]), np.array([0.25, 0.75])
    for array in (p, times):
        array.flags.writeable = False
    sol = dh.simulate(system, (0, 1), parameters=p, t_eval=times, rtol=1e-9)
    for array in (p, times):
        array.flags.writeable = True
        array[:] = 0.9
    assert sol.t.tolist() == [0.25, 0.75]
    assert sol(0.5)["y"] == pytest.approx(truth(t=0.5), rel=1e-7)
    assert sol.parameters.tolist() == [0.5, 2.0, 0.3, 0.1]


# -- declarations with labels -----------------------------------------------------------------------------


def test_series_in_declarations() -> None:
    """Initial values by label, measurements by their times, signals and output times by their order."""
    m = dh.HybridModel("series")
    table = pd.DataFrame({"t": [0.0, 1.0, 3.0], "u": [0.0, 2.0, 2.0]}, index=[7, 8, 9])
    u, x, y = m.signal("u", table["t"], table["u"]), m.differential("x"), m.differential("y")
    run = m.mode("run", ode={x: u, y: 1.0})
    m.initial(run, pd.Series({"y": 5.0, "x": 1.0}))
    m.functional("G", at_times=pd.Series([x, y], index=[1.0, 2.0]))
    times = pd.Series([0.5, 1.0, 2.0], index=["a", "b", "c"])
    sol = dh.simulate(m.build(native=False), (0, 3), t_eval=times, rtol=1e-9)
    assert sol["x"] == pytest.approx([1.25, 2.0, 4.0], rel=1e-8)
    assert sol.functionals["G"] == pytest.approx(2.0 + 7.0, rel=1e-8)
    other = dh.HybridModel("other")
    y = other.differential("y")
    run = other.mode("run", ode=pd.Series({"y": 1.0}))
    refusal(lambda: other.initial(run, pd.Series({"x": 1.0})), "x is not declared", error=dh.ModelError)
    refusal(lambda: other.initial(run, pd.Series([1.0, 2.0], index=["y", "y"])), "twice", error=dh.ModelError)


# -- times of dense output --------------------------------------------------------------------------------


def test_times_of_two_dimensions_are_refused(system: dh.HybridSystem) -> None:
    sol, asa = dh.simulate(system, (0, 1)), dh.adjoint_gradient(system, (0, 1))
    for dense in (sol, asa.adjoint):
        refusal(
            lambda dense=dense: dense([[0.25, 0.5], [0.75, 1.0]]), "(2, 2)", "one-dimensional", error=dh.OptionError
        )
        for shape in ((), (1,), (3,)):
            assert dense(np.full(shape, 0.5))["y"].shape == shape
    assert sol([])["y"].shape == (0,)
    for side in ("left", "right"):
        assert sol([0.5, 0.25, 0.5], side)["y"] == pytest.approx([truth(t=t) for t in (0.5, 0.25, 0.5)], rel=1e-6)


# -- counts of events -------------------------------------------------------------------------------------


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(("limit", "paced"), [(1, False), (3, False), (7, True)])
def test_the_limit_of_events_speaks_of_a_pace_where_there_is_one(
    limit: int, paced: bool, native: bool, models: Any, built: Any
) -> None:
    system = built(models.ball, native=native)
    error = refusal(lambda: dh.simulate(system, (0, 4), max_events=limit), f"max_events={limit} transition")
    assert ("about every" in str(error)) == ("bounce about" in str(error)) == paced
    assert ("transitions" in error.message) == (limit > 1)
    assert error.transition == "bounce"
    assert len(error.trajectory.events) == limit


# -- options of the integrators ---------------------------------------------------------------------------


@pytest.mark.uncertified  # the integrand is far below the absolute tolerance
@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("method", ["auto", "bdf", "adams", "erk"])
def test_options_at_the_ends_of_their_range(method: str, native: bool, models: Any, built: Any) -> None:
    """Right, or refused in words."""
    if method == "erk" and not native:
        pytest.skip("explicit Runge-Kutta steps are compiled")
    system = built(models.decay, native=native)
    area = 2 * (1 - np.exp(-0.7)) / 0.7
    fine: list[dict[str, Any]] = [
        {"first_step": 1e-30}, {"first_step": 10.0}, {"first_step": 1e300}, {"max_step": 1e300},
        {"first_step": 0.5, "max_step": 0.01}, {"max_steps": 2**70}, {"max_events": 2**70},
        {"max_transitions_per_instant": 2**70}, {"max_steps": np.int32(10**6)}, {"rtol": np.float32(1e-8)},
    ]  # fmt: skip
    for options in fine:
        assert dh.simulate(system, (0, 1), method=method, **options).functionals["area"] == pytest.approx(
            area, rel=1e-6
        )
    for span in ((0, 1e-139), (1.0, np.nextafter(1.0, 2)), (1.0, 1.0 + 1e-14), (1e10, 1e10 + 0.5)):
        loose = {"rtol": 1e-5} if span[0] == 1e10 else {}  # times are 2e-6 apart
        sol = dh.simulate(system, span, method=method, **loose)
        exact = -2 * np.expm1(-0.7 * (span[1] - span[0])) / 0.7
        assert sol.functionals["area"] == pytest.approx(exact, rel=1e-4, abs=1e-10)
        dh.forward_sensitivity(system, span, method=method, **loose)
        dh.adjoint_gradient(system, span, "area", method=method, **loose)
    refusal(lambda: dh.simulate(system, (1e10, 1e10 + 0.5), method=method), "rounding", error=dh.StepSizeError)
    refused: list[tuple[tuple[float, float], dict[str, Any], str]] = [
        ((0, 5e-324), {}, "too short"),
        ((1e10, 1e10 + 1e-5), {}, "rounding"), ((-1e10, -1e10 + 1e-3), {}, "rounding"),
        ((0, 1e-150), {}, "too short"), ((-1e308, 1e308), {}, "too long"),
        ((0, 1), {"max_step": 1e-30}, "max_step"), ((1e20, 2e20), {"max_step": 1.0}, "max_step"),
        ((0, 1), {"atol": 1e-320}, "atol"), ((0, 1), {"max_steps": 1e3}, "max_steps"),
    ]  # fmt: skip
    for refused_span, options, word in refused:
        refusal(
            lambda s=refused_span, o=options: dh.simulate(system, s, method=method, **o), word, error=dh.OptionError
        )


# -- pickles and copies -----------------------------------------------------------------------------------


def test_parts_of_models_cannot_be_pickled_and_say_so(models: Any) -> None:
    m = models.ball()
    mech = pendulum()
    system = m.build(native=False)
    sol = dh.simulate(system, (0, 1))
    symbols = (*m.modes.values(), *m.transitions.values(), *m.declarations.values(), *mech.modes.values())
    for thing in (*symbols, *mech.events.values(), sol.start, sol.segments[0], system.transitions[0]):
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
            refusal(lambda t=thing, p=protocol: pickle.dumps(t, p), "cannot be pickled", error=dh.UnsupportedError)
    error = refusal(lambda: pickle.dumps(m.modes["flight"]), "Mode", "Pickle the whole model")
    assert pickle.loads(pickle.dumps(error)).message == error.message


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy])
def test_models_can_be_copied(how: Any, models: Any) -> None:
    m = models.decay()
    twin = how(m)
    assert type(twin) is dh.HybridModel
    if how is copy.deepcopy:
        z = twin.differential("z")
        twin.mode("more", ode={twin.declarations["y"].symbol: z, z: 0.0})
        assert "z" not in m.declarations
        assert "more" not in m.modes
    for one in (m, twin):
        values = dh.simulate(one.build(native=False), (0, 1), rtol=1e-9).functionals
        assert values["end"] == pytest.approx(2 * np.exp(-0.7), rel=1e-7)
    system = m.build(native=False)
    assert how(system) is system
    mech = pendulum()
    twins = [dh.simulate(one.build(native=False), (0, 1), rtol=1e-8).functionals for one in (mech, how(mech))]
    assert twins[0]["height"] == twins[1]["height"]


# -- which component is not finite ------------------------------------------------------------------------


def broken(place: str) -> dh.HybridModel:
    """y = 1 - t and w = (0, -t); one quantity has no number from t = 0.5 on."""
    m = dh.HybridModel(place)
    k, y, w = m.parameter("k", 1.0), m.differential("y"), m.differential("w", size=2)
    bad = ca.sqrt(y - 0.5)
    equations: dict[str, Any] = {}
    if place == "equation":
        z = m.algebraic("z", guess=0.5)
        equations = {"algebraic": [z + z**3 - bad]}
    start = 2.5 * bad if place == "start" else 0.0
    run = m.mode("run", ode={y: -k, w: ca.vertcat(0, -k + (1e-3 * bad if place == "rate" else start))}, **equations)
    m.transition(run, None, guard=y + 5, name="harmless")
    if place == "guard":
        m.transition(run, None, guard=y + 7 + bad * 1e-9, name="broken")
    m.initial(run, {y: 0.0 if place == "start" else 1.0, w: 0.0})
    m.functional("fine", integrand=y)
    m.functional("G", integrand=bad if place == "integrand" else w)
    return m


@pytest.mark.parametrize("adapter", ["compiled", "interpreted", "scipy"])
@pytest.mark.parametrize(
    ("place", "what"),
    [
        ("rate", "the rate of w[1]"),
        ("integrand", "the integrand of G"),
        ("guard", "guard"),
        ("start", "the rate of w[1]"),
        ("equation", "for z"),
    ],
)
def test_the_component_that_is_not_finite_is_named(place: str, what: str, adapter: str) -> None:
    system = broken(place).build(native=adapter == "compiled")
    more: dict[str, Any] = {"adapter": "scipy"} if adapter == "scipy" else {}
    if place == "equation" and adapter == "scipy":  # where Newton's method has no number the trial is given up
        refusal(
            lambda: dh.simulate(system, (0, 1), rtol=1e-6, **more), "algebraic variables", error=dh.ConsistencyError
        )
        return
    error = refusal(lambda: dh.simulate(system, (0, 1), rtol=1e-6, **more), what, error=dh.IntegrationError)
    assert isinstance(error, dh.NonFiniteError | dh.StepSizeError)
    assert error.mode == "run"
    if place != "guard":  # which is looked at between steps, and these are long
        assert error.time == pytest.approx(0.0 if place == "start" else 0.5, abs=0.2)
    assert error.transition == ("broken" if place == "guard" else None)
    assert "the rate of y" not in str(error)
    assert "w[0]" not in str(error)
    assert "fine" not in str(error)


def test_the_component_that_is_not_finite_after_a_reset_is_named() -> None:
    m = dh.HybridModel("reset")
    y, w = m.differential("y"), m.differential("w")
    one, two = m.mode("one", ode={y: 1.0, w: 1.0}), m.mode("two", ode={y: 1.0, w: ca.sqrt(y)})
    m.transition(one, two, guard=y - 0.5, reset={y: -1.0}, name="hop")
    m.initial(one, {y: 0.0, w: 0.0})
    m.functional("G", terminal=y)
    for native in (True, False):
        error = refusal(
            lambda n=native: dh.simulate(m.build(native=n), (0, 1)), "the rate of w", error=dh.NonFiniteError
        )
        assert error.transition == "hop"
        assert error.time == pytest.approx(0.5, rel=1e-9)


# -- whatever else is passed ------------------------------------------------------------------------------

THINGS: dict[str, Any] = {
    "a truth value": True,
    "nan": NAN,
    "a string": "abc",
    "a list": [],
    "a mapping": {1: 2},
    "a complex number": 1j,
    "an object": object(),
    "a matrix": np.ones((2, 2)),
    "a large number": 2**70,
    "a huge number": 10**400,
    "an SX": ca.SX.sym("s"),
    "a foreign symbol": ca.MX.sym("q"),
    "a DM": ca.DM([1, 2, 3]),
    "a type": int,
    "a table": pd.DataFrame({"q": [1, 2]}),
}
things = pytest.mark.parametrize("thing", list(THINGS.values()), ids=list(THINGS))


#: unusual but valid inputs
MEANT = {
    "a truth value": ("suppress_algebraic", "strict", "duality"),
    "a large number": ("max_step", "first_step", "max_steps", "max_events", "duality"),
    "a huge number": ("max_steps", "max_events"),
}


@pytest.mark.parametrize("kind", THINGS)
def test_things_that_are_no_option(kind: str, system: dh.HybridSystem) -> None:
    """A typed error, or a value that means something."""
    thing, meant = THINGS[kind], MEANT.get(kind, ())
    names = ["t_eval", "adapter", "method", "max_step", "first_step", "max_order", "simultaneous", "linear_solver"]
    names += ["preconditioner", "on_zeno", "sensitivity_method", "suppress_algebraic", "max_steps", "max_events"]
    for name in set(names) - set(meant):
        refusal(lambda n=name: dh.simulate(system, (0, 1), **{n: thing}), error=dh.DaeHybridError)
    for name in {"wrt", "strict", "duality"} - set(meant):
        refusal(lambda n=name: dh.adjoint_gradient(system, (0, 1), "G", **{n: thing}), error=dh.DaeHybridError)
    sol = dh.simulate(system, (0, 1))
    refusal(lambda: dh.adjoint_gradient(system, (0, 1), thing), error=dh.ParameterError)
    refusal(lambda: dh.check_gradient(system, (0, 1), "G", step=thing), "step", error=dh.OptionError)
    refusal(lambda: dh.simulate(thing, (0, 1)), "HybridSystem", error=dh.OptionError)
    refusal(lambda: sol(0.5, thing), "side", error=dh.OptionError)
    with pytest.raises(KeyError, match="there are y"):
        sol[thing]


@things
def test_things_that_are_no_declaration(thing: Any) -> None:
    m = dh.HybridModel("m")
    y = m.differential("y")
    run = m.mode("run", ode={y: -y})
    for what in ("native", "eliminate", "index2"):
        if thing is not True or what == "index2":
            refusal(lambda w=what: m.build(**{w: thing}), what, error=dh.ModelError)
    if not isinstance(thing, str):
        refusal(lambda: dh.HybridModel(thing), "name", error=dh.ModelError)
        refusal(lambda: m.differential(thing), "name", error=dh.ModelError)
    refusal(lambda: m.differential("x", size=thing), "size", error=dh.ModelError) if thing is not True else None
    for what in ("kind", "outside"):
        refusal(lambda w=what: m.signal("s", [0.0, 1.0], [0.0, 1.0], **{w: thing}), what, error=dh.ModelError)
    for what in ("project", "direction", "on_entry"):
        if what == "project" and isinstance(thing, list):
            continue
        refusal(lambda w=what: m.transition(run, run, guard=y, **{w: thing}), what, error=dh.ModelError)
    refusal(lambda: m.initial(thing, {y: 1.0}), "initial mode", error=dh.ModelError)
    assert not m.transitions


def _of_b(given: Any) -> float:
    m = dh.HybridModel("vector")
    b, x = m.parameter("b", [1.0, 2.0]), m.differential("x")
    m.initial(m.mode("run", ode={x: b[0] - 10 * b[1]}), {x: 0.0})
    return float(dh.simulate(m.build(native=False), (0, 1), parameters={"b": given})["x"][-1])


@pytest.mark.parametrize("index", [["b[1]", "b[0]"], [1, 0]])
def test_entries_of_a_vector_are_taken_by_label(index: list[Any]) -> None:
    assert _of_b(pd.Series([3.0, 7.0], index=index)) == pytest.approx(7.0 - 30.0)
    m = dh.HybridModel("declared")
    a = m.parameter("b", pd.Series([3.0, 7.0], index=index))
    assert m.lookup(a, "parameter").start.tolist() == [7.0, 3.0]


@pytest.mark.parametrize("index", [["u", "v"], [5, 7], ["b[0]", "u"]])
def test_foreign_labels_of_entries_are_refused(index: list[Any]) -> None:
    with pytest.raises(dh.ParameterError, match=r"has the labels .*; legal are b\[0\], b\[1\] or 0, 1"):
        _of_b(pd.Series([3.0, 7.0], index=index))
    m = dh.HybridModel("declared")
    x = m.differential("b", size=2)
    with pytest.raises(dh.ModelError, match=r"has the labels .*; legal are b\[0\], b\[1\] or 0, 1"):
        m.initial(m.mode("run", ode={x: [0, 0]}), {x: pd.Series([3.0, 7.0], index=index)})


@pytest.mark.parametrize("bounds", [(np.ma.masked, 1), (np.ma.array([0.0], mask=[True]), None)])
def test_masked_bounds_are_refused(bounds: Any) -> None:
    with pytest.raises(dh.ModelError, match="must be a pair"):
        dh.HybridModel("bounds").algebraic("z", bounds=bounds)
