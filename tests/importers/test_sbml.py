"""SBML: quantities, rules, reactions, mathematics."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sbml_text import document

import dae_hybrid as dh

VARIABLE = {"constant": False}


def run(text: str, end: float = 1.0, **options: Any) -> dh.Trajectory:
    system = dh.importers.sbml(text, units="error").build(native=False)
    return dh.simulate(system, (0, end), rtol=1e-10, atol=1e-12, adapter="scipy", **options)


def decay(**species: Any) -> str:
    """S -> 2 P with the law k S V, in a compartment of size 4."""
    return document(
        parameters={"k": 0.5},
        compartments={"V": 4.0},
        species={"S": {"compartment": "V", **species}, "P": {"compartment": "V", "initialAmount": 0}},
        reactions={"decay": {"reactants": {"S": 1}, "products": {"P": 2}, "law": "k * S * V"}},
    )


def test_a_symbol_is_a_concentration_and_both_are_reported() -> None:
    sol = run(decay(initialConcentration=3.0))
    left = 3 * math.exp(-0.5)
    assert np.isclose(sol["[S]"][-1], left)
    assert np.isclose(sol["S"][-1], 4 * left)
    assert np.isclose(sol["P"][-1], 2 * (12 - 4 * left))
    assert np.isclose(sol["decay"][-1], 0.5 * 4 * left)


def test_a_symbol_is_an_amount_with_substance_units() -> None:
    sol = run(decay(initialAmount=3.0, hasOnlySubstanceUnits=True))
    assert np.isclose(sol["S"][-1], 3 * math.exp(-0.5 * 4))
    assert np.isclose(sol["[S]"][-1], 0.75 * math.exp(-0.5 * 4))


def test_a_boundary_species_is_not_changed_by_reactions() -> None:
    sol = run(decay(initialAmount=8.0, boundaryCondition=True))
    assert np.isclose(sol["P"][-1], 2 * 0.5 * 8)


def test_every_number_is_a_parameter() -> None:
    model = dh.importers.sbml(
        document(
            parameters={"k": 0.5, "x": {"value": 2.0, **VARIABLE}},
            compartments={"V": 4.0},
            species={
                "S": {"compartment": "V", "initialConcentration": 3.0},
                "B": {"compartment": "V", "initialConcentration": 1.5, "boundaryCondition": True},
            },
            rules=[("rate", "x", "-k * x")],
            reactions={"decay": {"reactants": {"S": 1}, "law": "c * S * B", "modifiers": ["B"], "local": {"c": 7.0}}},
        )
    )
    values = {d.name: float(d.start[0]) for d in model.of_kind("parameter")}
    assert values == {"V": 4, "S.initialConcentration": 3, "[B]": 1.5, "k": 0.5, "x.value": 2, "decay.c": 7}


def test_units_of_amounts_and_concentrations() -> None:
    text = decay(initialConcentration=3.0).replace(
        'id="example"', 'id="example" substanceUnits="mole" volumeUnits="litre" timeUnits="second" extentUnits="mole"'
    )
    found = {d.name: d.unit for d in dh.importers.sbml(text, units="ignore").declarations.values()}
    assert found["S"] == "mol"
    assert found["[S]"] == found["S.initialConcentration"] == "mol L^-1"
    assert found["V"] == "L"


def test_inconsistent_units_are_reported() -> None:
    text = document(
        parameters={
            "x": {"value": 1.0, "units": "mole", **VARIABLE},
            "k": {"value": 1.0, "units": "metre", "constant": True},
        },
        rules=[("assignment", "x", "k")],
    )
    with pytest.warns(dh.importers.UnitWarning, match=r"<text>:\d+: "):
        dh.importers.sbml(text)
    with pytest.raises(dh.ModelFileError, match="libSBML 105"):
        dh.importers.sbml(text, units="error")
    dh.importers.sbml(text, units="ignore")
    with pytest.raises(dh.OptionError, match="'warn', 'error' or 'ignore'"):
        dh.importers.sbml(text, units="off")  # type: ignore[arg-type]


@pytest.mark.parametrize("source", ["", " ", 5, None])
def test_what_is_neither_a_path_nor_a_text(source: Any) -> None:
    with pytest.raises(dh.OptionError, match="the path of a file, or the text of a document"):
        dh.importers.sbml(source)


def test_rules_initial_assignments_and_functions() -> None:
    sol = run(
        document(
            parameters={
                "a": 2.0,
                "x": VARIABLE,
                "y": VARIABLE,
                "z": {"value": 0.5, **VARIABLE},
                "c": {"constant": True},
            },
            functions={"square": "lambda(u, u^2)"},
            initial={"x": "a + c", "c": "square(a)"},
            rules=[
                ("rate", "x", "-a * x"),
                ("assignment", "y", "square(x) + time"),
                ("algebraic", None, "z + z^3 - y"),
            ],
        )
    )
    x = 6 * np.exp(-2 * sol.t)
    y = x**2 + sol.t
    assert np.allclose(sol["x"], x)
    assert np.allclose(sol["y"], y)
    assert np.allclose(sol["z"] + sol["z"] ** 3, y)
    assert np.allclose(sol["c"], 4)


def test_stoichiometries_may_vary() -> None:
    sol = run(
        document(
            parameters={"k": 3.0},
            compartments={"V": 1.0},
            species={"S": {"compartment": "V", "initialAmount": 0}},
            rules=[("rate", "count", "1")],
            reactions={
                "feed": {"products": {"S": {"id": "count", "stoichiometry": 2, "constant": False}}, "law": "k"},
            },
        )
    )
    assert np.allclose(sol["S"], 3 * (2 * sol.t + sol.t**2 / 2))


def test_conversion_factors_scale_what_reactions_add() -> None:
    sol = run(
        document(
            parameters={"k": 3.0, "ten": 10.0, "two": 2.0},
            compartments={"V": 1.0},
            species={
                "S": {"compartment": "V", "initialAmount": 0},
                "P": {"compartment": "V", "initialAmount": 0, "conversionFactor": "two"},
            },
            reactions={"feed": {"products": {"S": 1, "P": 1}, "law": "k"}},
            model={"conversionFactor": "ten"},
        )
    )
    assert np.isclose(sol["S"][-1], 30)
    assert np.isclose(sol["P"][-1], 6)


def test_a_growing_compartment_dilutes() -> None:
    sol = run(
        document(
            parameters={"q": 0.5},
            compartments={"V": {"size": 2.0, **VARIABLE}},
            species={
                "S": {"compartment": "V", "initialConcentration": 1.0},
                "R": {"compartment": "V", "initialConcentration": 1.0},
            },
            rules=[("rate", "V", "q"), ("rate", "R", "-R")],
        )
    )
    size = 2 + 0.5 * sol.t
    assert np.allclose(sol["S"], 2)
    assert np.allclose(sol["[S]"], 2 / size)
    assert np.allclose(sol["[R]"], np.exp(-sol.t))
    assert np.allclose(sol["R"], np.exp(-sol.t) * size)


def test_rate_of_is_the_rate_of_what_the_symbol_means() -> None:
    sol = run(
        document(
            parameters={"y": {"value": 0.0, **VARIABLE}},
            compartments={"V": {"size": 2.0, **VARIABLE}},
            species={"S": {"compartment": "V", "initialConcentration": 1.0}},
            rules=[("rate", "V", "0.5"), ("assignment", "y", "rateOf(S)")],
            reactions={"feed": {"products": {"S": 1}, "law": "3"}},
        )
    )
    size, amount = 2 + 0.5 * sol.t, 2 + 3 * sol.t
    assert np.allclose(sol["y"], 3 / size - 0.5 * amount / size**2)


@pytest.mark.parametrize(
    ("formula", "value"),
    [
        ("piecewise(1, x > 3, 2, x > 1, 3)", 2),
        ("piecewise(true, x > 1, false) + 1", 2),
        ("quotient(-7, x) + 10 * rem(-7, x)", -3 - 10),
        ("root(3, 8) + log10(100) + log(x, 8)", 2 + 2 + 3),
        ("factorial(5) + avogadro * 0", 120),
        ("(x > 1) + (x < 1) + not(x > 1) + xor(x > 1, true) + implies(x > 1, false)", 1),
        ("and(1 < x, x < 3) + or() + and()", 2),
        ("piecewise(1, and(0 < x, x < infinity), 2)", 1),
        ("ceil(1.5) + floor(-1.5) + abs(-x) + max(1, x, 3) + min(x, 1)", 2 - 2 + 2 + 3 + 1),
        (
            "arccot(x) + arcsec(x) + sech(x) - coth(x)",
            math.atan(0.5) + math.acos(0.5) + 1 / math.cosh(2) - 1 / math.tanh(2),
        ),
        ("exponentiale ^ x + pi", math.exp(2) + math.pi),
    ],
    ids=lambda value: None if isinstance(value, float | int) else value,
)
def test_mathematics(formula: str, value: float) -> None:
    sol = run(document(parameters={"x": 2.0, "y": VARIABLE}, rules=[("assignment", "y", formula)]))
    assert np.allclose(sol["y"], value)


def test_ids_that_the_library_uses_are_renamed() -> None:
    sol = run(document(parameters={"t": {"value": 1.0, **VARIABLE}, "exp": 2.0}, rules=[("rate", "t", "exp")]))
    assert np.allclose(sol["id(t)"], 1 + 2 * sol.t)


def test_files_and_earlier_levels(tmp_path: Path) -> None:
    text = """<?xml version="1.0" encoding="UTF-8"?>
    <sbml xmlns="http://www.sbml.org/sbml/level1" level="1" version="2"><model name="old">
    <listOfCompartments><compartment name="V"/></listOfCompartments>
    <listOfSpecies><species name="S" compartment="V" initialAmount="1"/></listOfSpecies>
    <listOfReactions><reaction name="r" reversible="false"><listOfReactants><speciesReference species="S"/>
    </listOfReactants><kineticLaw formula="k * S"><listOfParameters><parameter name="k" value="2"/></listOfParameters>
    </kineticLaw></reaction></listOfReactions></model></sbml>"""
    path = tmp_path / "old.xml"
    path.write_text(text)
    for source in (path, str(path), text):
        sol = dh.simulate(dh.importers.sbml(source, units="ignore").build(), (0, 1), rtol=1e-9)
        assert np.isclose(sol["S"][-1], math.exp(-2))


def test_submodels_are_flattened() -> None:
    core, comp = (
        "http://www.sbml.org/sbml/level3/version1/core",
        "http://www.sbml.org/sbml/level3/version1/comp/version1",
    )
    text = f"""<sbml xmlns="{core}" xmlns:comp="{comp}" level="3" version="1" comp:required="true"><model>
    <comp:listOfSubmodels><comp:submodel comp:id="one" comp:modelRef="growth"/></comp:listOfSubmodels></model>
    <comp:listOfModelDefinitions><comp:modelDefinition id="growth"><listOfParameters>
    <parameter id="x" value="1" constant="false"/></listOfParameters><listOfRules><rateRule variable="x">
    <math xmlns="http://www.w3.org/1998/Math/MathML"><ci>x</ci></math></rateRule></listOfRules></comp:modelDefinition>
    </comp:listOfModelDefinitions></sbml>"""
    sol = run(text)
    assert np.isclose(sol["one__x"][-1], math.e)


def test_an_imported_model_is_written_to_a_model_file() -> None:
    model = dh.importers.sbml(decay(initialConcentration=3.0))
    assert dh.HybridModel.from_text(model.to_text()).to_text() == model.to_text()


@pytest.mark.parametrize("native_events", [True, False])
@pytest.mark.parametrize("adapter", ["sundials", "scipy"])
def test_gradients_by_numbers_of_the_document(adapter: str, *, native_events: bool) -> None:
    model = dh.importers.sbml(decay(initialConcentration=3.0))
    model.functional("G", terminal=model.declarations["P"].symbol)
    options: dict[str, Any] = {"rtol": 1e-9, "native_events": native_events, "adapter": adapter}
    gradient = dh.adjoint_gradient(model.build(), (0, 1), "G", wrt=["k", "S.initialConcentration"], **options).gradient
    # P(1) = 2 V c (1 - exp(-k))
    assert np.allclose(gradient, [2 * 4 * 3 * math.exp(-0.5), 2 * 4 * (1 - math.exp(-0.5))], rtol=1e-6)
