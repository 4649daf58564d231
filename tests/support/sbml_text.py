"""SBML documents from formulas."""

from collections.abc import Mapping, Sequence
from typing import Any

import libsbml


def _math(formula: str) -> str:
    node = libsbml.parseL3Formula(formula)
    assert node is not None, libsbml.getLastParseL3Error()
    text = libsbml.writeMathMLToString(node)
    return text[text.index("<math") :]


def _element(tag: str, attributes: Mapping[str, Any], inside: str = "") -> str:
    own = {k.rstrip("_"): str(v).lower() if isinstance(v, bool) else v for k, v in attributes.items()}
    return f"<{tag} {' '.join(f'{k}="{v}"' for k, v in own.items())}>{inside}</{tag}>"


def _list(kind: str, members: Sequence[str]) -> str:
    return f"<listOf{kind}>{''.join(members)}</listOf{kind}>" if members else ""


def _references(kind: str, given: Mapping[str, Any]) -> str:
    found = []
    for species, count in given.items():
        own = count if isinstance(count, Mapping) else {"stoichiometry": count, "constant": True}
        found.append(_element("speciesReference", {"species": species, **own}))
    return _list(kind, found)


def document(
    *,
    parameters: Mapping[str, Any] | None = None,
    compartments: Mapping[str, Any] | None = None,
    species: Mapping[str, Mapping[str, Any]] | None = None,
    functions: Mapping[str, str] | None = None,
    initial: Mapping[str, str] | None = None,
    rules: Sequence[tuple[str, str | None, str]] = (),
    reactions: Mapping[str, Mapping[str, Any]] | None = None,
    events: Mapping[str, Mapping[str, Any]] | None = None,
    model: Mapping[str, Any] | None = None,
) -> str:
    """Return the text of a document of level 3, version 2.

    Parameters
    ----------
    parameters, compartments : mapping of id to number or attributes
        A number is a constant.
    rules : sequence of (kind, variable, formula)
    reactions : mapping of id to mapping
        ``reactants`` and ``products`` (species = stoichiometry or attributes), ``law`` and ``local``.
    events : mapping of id to mapping
        ``trigger``, ``assign`` (variable = formula), ``delay``, ``priority``, ``initial``, ``persistent``, ``values``
        (``"trigger"`` or ``"execution"``).
    """

    def quantity(value: Any, attribute: str) -> dict[str, Any]:
        return {**value} if isinstance(value, Mapping) else {attribute: value, "constant": True}

    parts = [
        _list(
            "FunctionDefinitions",
            [_element("functionDefinition", {"id": k}, _math(v)) for k, v in (functions or {}).items()],
        ),
        _list(
            "Compartments",
            [
                _element("compartment", {"spatialDimensions": 3, **quantity(v, "size"), "id": k})
                for k, v in (compartments or {}).items()
            ],
        ),
        _list(
            "Species",
            [
                _element(
                    "species",
                    {"hasOnlySubstanceUnits": False, "boundaryCondition": False, "constant": False, **v, "id": k},
                )
                for k, v in (species or {}).items()
            ],
        ),
        _list(
            "Parameters",
            [_element("parameter", {**quantity(v, "value"), "id": k}) for k, v in (parameters or {}).items()],
        ),
        _list(
            "InitialAssignments",
            [_element("initialAssignment", {"symbol": k}, _math(v)) for k, v in (initial or {}).items()],
        ),
        _list(
            "Rules",
            [
                _element(f"{kind}Rule", {} if variable is None else {"variable": variable}, _math(formula))
                for kind, variable, formula in rules
            ],
        ),
        _list("Reactions", [_reaction(k, v) for k, v in (reactions or {}).items()]),
        _list("Events", [_event(k, v) for k, v in (events or {}).items()]),
    ]
    space = "http://www.sbml.org/sbml/level3/version2/core"
    inside = _element("model", {"id": "example", **(model or {})}, "".join(parts))
    return f'<sbml xmlns="{space}" level="3" version="2">{inside}</sbml>'


def _reaction(name: str, given: Mapping[str, Any]) -> str:
    local = [_element("localParameter", {"id": k, "value": v}) for k, v in given.get("local", {}).items()]
    law = f"<kineticLaw>{_math(given['law'])}{_list('LocalParameters', local)}</kineticLaw>"
    parts = _references("Reactants", given.get("reactants", {})) + _references("Products", given.get("products", {}))
    modifiers = [_element("modifierSpeciesReference", {"species": k}) for k in given.get("modifiers", ())]
    own = {"reversible": False, **given.get("attributes", {}), "id": name}
    return _element("reaction", own, parts + _list("Modifiers", modifiers) + law)


def _event(name: str, given: Mapping[str, Any]) -> str:
    state = {"initialValue": given.get("initial", True), "persistent": given.get("persistent", True)}
    parts = [_element("trigger", state, _math(given["trigger"]))]
    parts += [f"<{tag}>{_math(given[tag])}</{tag}>" for tag in ("priority", "delay") if tag in given]
    assigned = [_element("eventAssignment", {"variable": k}, _math(v)) for k, v in given["assign"].items()]
    at_trigger = given.get("values", "trigger") == "trigger"
    own = {"id": name, "useValuesFromTriggerTime": at_trigger}
    return _element("event", own, "".join(parts) + _list("EventAssignments", assigned))
