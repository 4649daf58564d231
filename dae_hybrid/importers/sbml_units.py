"""Units of SBML quantities as text."""

from __future__ import annotations

from typing import Any

from dae_hybrid.importers.sbml_document import library

#: names of units whose exponents stand in the text
_SYMBOLS = {
    "ampere": "A", "becquerel": "Bq", "candela": "cd", "coulomb": "C", "farad": "F", "gram": "g", "gray": "Gy",
    "henry": "H", "hertz": "Hz", "joule": "J", "katal": "kat", "kelvin": "K", "kilogram": "kg", "litre": "L",
    "liter": "L", "lumen": "lm", "lux": "lx", "metre": "m", "meter": "m", "mole": "mol", "newton": "N", "ohm": "ohm",
    "pascal": "Pa", "radian": "rad", "second": "s", "siemens": "S", "sievert": "Sv", "steradian": "sr", "tesla": "T",
    "volt": "V", "watt": "W", "weber": "Wb",
}  # fmt: skip
_PREFIXES = {-12: "p", -9: "n", -6: "u", -3: "m", -2: "c", -1: "d", 3: "k", 6: "M", 9: "G"}


def unit_of(element: Any) -> str:
    """Return the unit of an element; empty if the document does not determine it."""
    definition = element.getDerivedUnitDefinition()
    return "" if definition is None or element.containsUndeclaredUnits() else _text(definition)


def species_unit(species: Any, container: Any, *, is_amount: bool) -> str:
    """Return the unit of the amount or the concentration of a species in its compartment; empty if it is unknown."""
    substance, size = (element.getDerivedUnitDefinition() for element in (species, container))
    if substance is None or size is None:
        return ""
    if species.getHasOnlySubstanceUnits() or container.getSpatialDimensionsAsDouble() == 0:
        combine = None if is_amount else library().UnitDefinition.divide
    else:
        combine = library().UnitDefinition.combine if is_amount else None
    found = substance if combine is None else combine(substance, size)
    return "" if found is None else _text(found)


def _text(definition: Any) -> str:
    parts = [_one(definition.getUnit(i)) for i in range(definition.getNumUnits())]
    return " ".join(part for part in parts if part)


def _one(unit: Any) -> str:
    kind = library().UnitKind_toString(unit.getKind())
    exponent = unit.getExponentAsDouble()
    if kind == "dimensionless" and unit.getMultiplier() == 1:
        return ""
    symbol = _SYMBOLS.get(kind, "" if kind == "dimensionless" else kind)
    scale = unit.getScale()
    factor = unit.getMultiplier() if scale in _PREFIXES or scale == 0 else unit.getMultiplier() * 10.0**scale
    text = f"{_PREFIXES.get(scale, '')}{symbol}"
    text = text if factor == 1 else f"({factor:.12g} {text})" if text else f"{factor:.12g}"
    return text if exponent == 1 or not text else f"{text}^{exponent:g}"
