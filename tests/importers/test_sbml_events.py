"""SBML: events, and what is refused."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from sbml_text import document

import dae_hybrid as dh

TIMES = np.linspace(0, 4, 9) + 0.1


def changing(**values: float) -> dict[str, Any]:
    return {name: {"value": value, "constant": False} for name, value in values.items()}


def after(events: Mapping[str, Mapping[str, Any]], *, pending: int = 8, **values: float) -> dict[str, Any]:
    """Values at the end of a run over 4 units of time of a model of parameters and events."""
    model = dh.importers.sbml(document(parameters=changing(**values), events=events), pending=pending)
    sol = dh.simulate(model.build(native=False), (0, 4), adapter="scipy")
    return {name: float(sol[name][-1]) for name in values if name in sol.names}


def test_values_at_the_trigger_and_at_the_execution() -> None:
    def delayed(values: str) -> float:
        events = {
            "late": {"trigger": "time > 1", "delay": "1", "values": values, "assign": {"x": "y + 1"}},
            "between": {"trigger": "time > 1.5", "assign": {"y": "10"}},
        }
        return after(events, x=0.0, y=2.0)["x"]

    assert delayed("trigger") == 3
    assert delayed("execution") == 11


def test_events_of_one_instant_use_the_values_of_their_trigger() -> None:
    events = {
        "swap": {"trigger": "time > 1", "assign": {"x": "y"}},
        "back": {"trigger": "time > 1", "assign": {"y": "x"}},
    }
    assert after(events, x=1.0, y=2.0) == {"x": 2, "y": 1}


def test_assignments_of_one_event_are_simultaneous() -> None:
    events = {"swap": {"trigger": "time > 1", "assign": {"x": "y", "y": "x"}}}
    assert after(events, x=1.0, y=2.0) == {"x": 2, "y": 1}


@pytest.mark.parametrize(("first", "second", "x"), [("2", "1", 12.0), ("1", "2", 21.0), ("y", "2 * y", 21.0)])
def test_priorities_order_the_events_of_one_instant(first: str, second: str, x: float) -> None:
    shared = {"trigger": "time > 1", "values": "execution"}
    events = {
        "one": {**shared, "priority": first, "assign": {"x": "10 * x + 1"}},
        "two": {**shared, "priority": second, "assign": {"x": "10 * x + 2"}},
    }
    assert after(events, x=0.0, y=3.0)["x"] == x


@pytest.mark.parametrize(("persistent", "x"), [(True, 5.0), (False, 0.0)])
def test_an_event_that_does_not_persist_is_cancelled(*, persistent: bool, x: float) -> None:
    events = {
        "late": {"trigger": "y > 1", "delay": "1", "persistent": persistent, "assign": {"x": "5"}},
        "on": {"trigger": "time > 1", "assign": {"y": "2"}},
        "off": {"trigger": "time > 1.5", "assign": {"y": "0"}},
    }
    assert after(events, x=0.0, y=0.0)["x"] == x


@pytest.mark.parametrize(("initial", "x"), [(True, 0.0), (False, 1.0)])
@pytest.mark.parametrize("trigger", ["time >= 0", "y > 1", "true"])
def test_the_value_of_a_trigger_before_the_start(trigger: str, *, initial: bool, x: float) -> None:
    events = {"once": {"trigger": trigger, "initial": initial, "assign": {"x": "x + 1"}}}
    assert after(events, x=0.0, y=2.0)["x"] == x


def test_events_begin_with_the_run_and_are_written_to_model_files() -> None:
    events = {"once": {"trigger": "y > 1", "initial": False, "delay": "0.5", "assign": {"x": "x + 1", "y": "0"}}}
    model = dh.importers.sbml(document(parameters=changing(x=0.0, y=2.0), events=events))
    text = model.to_text()
    again = dh.HybridModel.from_text(text)
    assert again.to_text() == text
    sol = dh.simulate(again.build(native=False), (3, 4), adapter="scipy")
    assert sol["x"][-1] == 1
    assert np.allclose([event.time for event in sol.events if event.transition.startswith("once")][-1], 3.5)


def test_a_trigger_that_is_true_at_the_start_fires_when_it_is_true_again() -> None:
    events = {"again": {"trigger": "sin(time * pi) > -0.5", "assign": {"x": "x + 1"}}}
    assert after(events, x=0.0)["x"] == 2


def test_executions_overlap() -> None:
    events = {
        "late": {"trigger": "sin(2 * pi * time) > 0.5", "delay": "2.5", "values": "execution", "assign": {"x": "x + 1"}}
    }
    assert after(events, x=0.0)["x"] == 2
    with pytest.raises(dh.ConsistencyError, match="More than 2 executions"):
        after(events, x=0.0, pending=2)


def test_a_trigger_that_is_put_back_to_its_threshold_stays_true() -> None:
    text = document(
        parameters=changing(x=0.0),
        rules=[("rate", "x", "1")],
        events={"back": {"trigger": "x >= 0.5", "delay": "1", "assign": {"x": "x"}}},
    )
    sol = dh.simulate(dh.importers.sbml(text).build(native=False), (0, 4), adapter="scipy")
    assert np.isclose(sol["x"][-1], 0.5 + 2.5)  # once, at 1.5


def test_an_event_triggers_another_one() -> None:
    events = {
        "first": {"trigger": "time > 1", "assign": {"x": "1"}},
        "second": {"trigger": "x > 0.5", "delay": "0.5", "assign": {"y": "time"}},
    }
    assert np.isclose(after(events, x=0.0, y=0.0)["y"], 1.0)  # the value at the trigger


def test_an_event_keeps_amounts_if_it_changes_a_compartment() -> None:
    text = document(
        compartments={"V": {"size": 2.0, "constant": False}},
        species={
            "S": {"compartment": "V", "initialConcentration": 1.0},
            "R": {"compartment": "V", "initialConcentration": 1.0},
        },
        rules=[("rate", "R", "1")],
        events={"widen": {"trigger": "time > 1", "assign": {"V": "4"}}},
    )
    sol = dh.simulate(dh.importers.sbml(text).build(native=False), (0, 2), adapter="scipy", rtol=1e-9)
    assert np.isclose(sol["[S]"][-1], 0.5)
    assert np.isclose(sol["[R]"][-1], 2 / 2 + 1)


def dosing(values: str = "trigger", **event: Any) -> dh.HybridModel:
    """x' = -k x; whenever x falls below `low`, `dose` is added after a lag."""
    given = {"trigger": "x < low", "delay": "lag", "values": values, "assign": {"x": "x + dose"}, **event}
    model = dh.importers.sbml(
        document(
            parameters={"k": 1.0, "low": 0.5, "dose": 1.0, "lag": 0.2, **changing(x=1.0)},
            rules=[("rate", "x", "-k * x")],
            events={"dosing": given},
        )
    )
    model.functional("G", terminal=model.declarations["x"].symbol, integrand=model.declarations["x"].symbol ** 2)
    return model


@pytest.mark.parametrize("values", ["trigger", "execution"])
@pytest.mark.parametrize("adapter", ["sundials", "scipy"])
def test_gradients_through_delayed_events(values: str, adapter: str) -> None:
    check = dh.check_gradient(dosing(values).build(), (0, 1.8), "G", rtol=1e-8, adapter=adapter)
    assert check.same_events
    assert check.difference("forward", "adjoint") < 1e-6
    assert check.difference("forward", "finite_difference") < 1e-4


def test_events_in_python_give_the_same() -> None:
    system = dosing().build()
    results = [dh.adjoint_gradient(system, (0, 3), "G", native_events=native) for native in (True, False)]
    assert np.isclose(results[0].value, results[1].value)
    assert np.allclose(results[0].gradient, results[1].gradient)


def test_a_dose_after_a_lag() -> None:
    # x falls to 1/2 at t = ln 2 and continues for the lag
    sol = dh.simulate(dosing("execution").build(), (0, 1), rtol=1e-10)
    due = math.log(2) + 0.2
    assert np.isclose(sol["x"][-1], (math.exp(-due) + 1) * math.exp(due - 1))


DELAY = """<apply><csymbol definitionURL="http://www.sbml.org/sbml/symbols/delay" encoding="text">delay</csymbol>
<ci>x</ci><cn>1</cn></apply>"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (document(parameters=changing(x=1.0), rules=[("rate", "x", "x + 7")])
         .replace('<cn type="integer"> 7 </cn>', DELAY), "rate rule of 'x': the csymbol delay"),
        (document(compartments={"V": {"size": 1.0, "constant": False}},
                  species={"S": {"compartment": "V", "initialAmount": 1.0}}, rules=[("rate", "V", "1")],
                  events={"e": {"trigger": "time > 1", "delay": "1", "assign": {"S": "2"}}}),
         "event 'e': it changes the concentration of 'S'"),
        (document(parameters={"x": {"constant": True}, "y": {"constant": False}}, rules=[("assignment", "y", "x")]),
         "parameter 'x': it has no initial value"),
        (document(parameters=changing(x=1.0), rules=[("rate", "x", "piecewise(1, x > 2)")]),
         "rate rule of 'x': a piecewise expression without otherwise"),
        (document(parameters={"x": 1.0}, rules=[("algebraic", None, "x - 1")]),
         "algebraic rule 1 of 1: no quantity is left"),
        (document(parameters=changing(x=1.0), rules=[("rate", "x", "factorial(x)")]), "rate rule of 'x': factorial"),
        (document(parameters=changing(x=1.0, y=1.0), rules=[("algebraic", None, "x - 1")],
                  events={"e": {"trigger": "time > 1", "assign": {"x": "2"}}}), "event 'e': it assigns 'x'"),
        (document(parameters=changing(x=1.0), events={
            name: {"trigger": "time > 1", "priority": "1", "assign": {"x": formula}}
            for name, formula in (("a", "1"), ("b", "2"))}),
         "event 'b': it has the trigger and the priority of event 'a'"),
    ],
    ids=["delay", "size", "no value", "piecewise", "overdetermined", "factorial", "assigns algebraic", "random order"],
)  # fmt: skip
def test_what_cannot_be_expressed_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(dh.UnsupportedError, match=said) as found:
        dh.importers.sbml(text)
    assert found.value.variables


def test_a_reaction_without_a_kinetic_law_is_refused() -> None:
    text = document(
        compartments={"V": 1.0},
        species={"S": {"compartment": "V", "initialAmount": 1.0}},
        reactions={"r": {"reactants": {"S": 1}, "law": "S"}},
    )
    begin, end = text.index("<kineticLaw>"), text.index("</kineticLaw>") + len("</kineticLaw>")
    with pytest.raises(dh.UnsupportedError, match="reaction 'r': it has no kinetic law"):
        dh.importers.sbml(text[:begin] + text[end:])


def test_a_fast_reaction_is_refused() -> None:
    text = document(
        compartments={"V": 1.0},
        species={"S": {"compartment": "V", "initialAmount": 1.0}},
        reactions={"r": {"reactants": {"S": 1}, "law": "S", "attributes": {"fast": True}}},
    )
    with pytest.raises(dh.UnsupportedError, match="reaction 'r': a fast reaction"):
        dh.importers.sbml(text.replace("level3/version2", "level3/version1").replace('version="2"', 'version="1"'))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<sbml", "libSBML"),
        (document(rules=[("rate", "x", "1")]), "x"),
        (document(parameters=changing(x=1.0), rules=[("rate", "x", "y")]), "y"),
        (document().replace('<model id="example"></model>', ""), "no model"),
    ],
    ids=["syntax", "unknown variable", "unknown id", "no model"],
)
def test_a_document_that_is_not_valid_is_refused(text: str, said: str) -> None:
    with pytest.raises(dh.ModelFileError, match=said):
        dh.importers.sbml(text)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "libsbml", None)
    with pytest.raises(dh.importers.ImporterError, match="python-libsbml") as found:
        dh.importers.sbml("<sbml/>")
    assert "dae-hybrid[sbml]" in str(found.value)


@pytest.mark.parametrize(("compared", "time"), [("gt", 2.0), ("geq", 4.0), ("lt", 0.0), ("leq", 2.0)])
def test_a_comparison_at_a_clipped_quantity_stays_strict_or_weak(compared: str, time: float) -> None:
    rules = [("rate", "x", "-1"), ("rate", "y", f"piecewise(1, {compared}(max(x, 0), 0), 0)")]
    model = dh.importers.sbml(document(parameters=changing(x=2.0, y=0.0), rules=rules))
    for adapter in ("sundials", "scipy"):
        assert dh.simulate(model.build(), (0, 4), adapter=adapter)["y"][-1] == pytest.approx(time, abs=1e-5)


@pytest.mark.parametrize(
    ("pieces", "rate"),
    [
        ("1, x > 1, 2, x <= 1", 2.0),
        ("1, x < 0, 5, and(x >= 0, x < 3), 2, x >= 3", 5.0),
        ("1, x > k, 4, k >= x", 4.0),
        ("1, not(x < 2), 3, x < 2", 3.0),
    ],
)
def test_pieces_that_leave_nothing_out_need_no_otherwise(pieces: str, rate: float) -> None:
    rules = [("rate", "y", f"piecewise({pieces})")]
    model = dh.importers.sbml(document(parameters=changing(x=0.5, y=0.0, k=2.0), rules=rules))
    assert dh.simulate(model.build(native=False), (0, 1), adapter="scipy")["y"][-1] == pytest.approx(rate)


@pytest.mark.parametrize(
    "pieces",
    ["1, x > 1, 2, x < 1", "1, x > 1, 2, y <= 1", "1, x < 0, 2, x > 0, 3, k == 0", "1, x < 1e20, 2, x == 1e20"],
)
def test_pieces_that_may_leave_something_out_are_refused(pieces: str) -> None:
    rules = [("rate", "x", f"piecewise({pieces})")]
    with pytest.raises(dh.UnsupportedError, match="without otherwise"):
        dh.importers.sbml(document(parameters=changing(x=0.5, y=0.0, k=2.0), rules=rules))
