"""Quantities of an SBML model: what determines each of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from dae_hybrid.importers.errors import unsupported

Kind = Literal["compartment", "species", "parameter", "reference"]
Role = Literal["constant", "held", "rate", "reaction", "assigned", "solved"]
#: what the description of a species adds to that of its amount
IN_LEVEL_1 = 1


@dataclass(eq=False)
class Quantity:
    """A compartment, species, parameter or species reference.

    Attributes
    ----------
    name : str
        Its id.
    element : libsbml.SBase
    value : float or None
        Value of its attribute; None if it is not set.
    attribute : str
        Name of the attribute.
    role : str
        What determines it after the start: nothing (``"constant"``), event assignments alone (``"held"``), a rate
        rule, reactions, an assignment rule, or algebraic rules (``"solved"``).
    math : libsbml.ASTNode or None
        Right-hand side of its rate rule or assignment rule.
    initial : libsbml.ASTNode or None
        Right-hand side of its initial assignment.
    compartment : Quantity or None
        Compartment of a species whose symbol is a concentration in the model's expressions.
    """

    name: str
    kind: Kind
    element: Any
    value: float | None
    attribute: str
    role: Role = "constant"
    math: Any = None
    initial: Any = None
    compartment: Quantity | None = None
    container: Quantity | None = None

    @property
    def is_amount(self) -> bool:
        """Whether the amount is what the run stores; otherwise it stores what the symbol means."""
        return self.role in ("constant", "held", "reaction")

    @property
    def amount_given(self) -> bool:
        """Whether the attribute gives an amount."""
        return self.attribute == "initialAmount"


@dataclass(eq=False)
class Reaction:
    """A reaction with a kinetic law, and the elements of its local parameters."""

    name: str
    element: Any
    law: Any
    local: dict[str, Any]


@dataclass(eq=False)
class Inventory:
    """All quantities and reactions of a model, with the role of each."""

    model: Any
    quantities: dict[str, Quantity] = field(default_factory=dict)
    reactions: dict[str, Reaction] = field(default_factory=dict)
    changes: dict[str, list[tuple[Reaction, float, Any]]] = field(
        default_factory=dict
    )  # by species, with its reference
    algebraic: list[Any] = field(default_factory=list)  # rules

    def __post_init__(self) -> None:
        for found in self._stated():
            self.quantities[found.name] = found
        for found in self.quantities.values():
            if found.kind == "species":
                found.container = self.quantities[found.element.getCompartment()]
                has_size = found.container.element.getSpatialDimensionsAsDouble() != 0
                if has_size and not found.element.getHasOnlySubstanceUnits():
                    found.compartment = found.container
        for own in self.model.getListOfInitialAssignments():
            if own.isSetMath() and own.getSymbol() in self.quantities:
                self.quantities[own.getSymbol()].initial = own.getMath()
        self._rules()
        self._reactions()
        for event in self.model.getListOfEvents():
            for own in event.getListOfEventAssignments():
                target = self.quantities.get(own.getVariable())
                if own.isSetMath() and target is not None and target.role == "constant":
                    target.role = "held"

    def _stated(self) -> Iterator[Quantity]:
        """Yield the quantities in the order of the document."""
        model = self.model
        for c in model.getListOfCompartments():
            size = c.getSize() if c.isSetSize() else None
            if size is None and model.getLevel() == IN_LEVEL_1:
                size = 1.0
            yield Quantity(c.getId(), "compartment", c, _finite(size), "size")
        for s in model.getListOfSpecies():
            if s.isSetInitialConcentration():
                yield Quantity(s.getId(), "species", s, _finite(s.getInitialConcentration()), "initialConcentration")
            else:
                amount = s.getInitialAmount() if s.isSetInitialAmount() else None
                yield Quantity(s.getId(), "species", s, _finite(amount), "initialAmount")
        for p in model.getListOfParameters():
            yield Quantity(p.getId(), "parameter", p, _finite(p.getValue() if p.isSetValue() else None), "value")
        for r in model.getListOfReactions():
            for reference in (*r.getListOfReactants(), *r.getListOfProducts()):
                if reference.isSetId():
                    yield Quantity(reference.getId(), "reference", reference, stoichiometry(reference), "stoichiometry")

    def _rules(self) -> None:
        for rule in self.model.getListOfRules():
            if not rule.isSetMath():
                continue
            if rule.isAlgebraic():
                self.algebraic.append(rule)
                continue
            found = self.quantities[rule.getVariable()]
            found.role, found.math = "rate" if rule.isRate() else "assigned", rule.getMath()

    def _reactions(self) -> None:
        for r in self.model.getListOfReactions():
            if r.isSetFast() and r.getFast():
                raise unsupported("a fast reaction is not supported.", f"reaction '{r.getId()}'")
            law = r.getKineticLaw()
            if law is None or not law.isSetMath():
                raise unsupported("it has no kinetic law, and its rate is undefined.", f"reaction '{r.getId()}'")
            own = [*law.getListOfLocalParameters(), *law.getListOfParameters()]
            found = Reaction(r.getId(), r, law.getMath(), {p.getId(): p for p in own})
            for sign, references in ((-1.0, r.getListOfReactants()), (1.0, r.getListOfProducts())):
                for reference in references:
                    species = self.quantities[reference.getSpecies()]
                    if species.element.getBoundaryCondition():
                        continue
                    if species.role not in ("constant", "reaction"):
                        raise unsupported("a rule and reactions determine it.", f"species '{species.name}'")
                    species.role = "reaction"
                    self.changes.setdefault(species.name, []).append((found, sign, reference))
            self.reactions[found.name] = found

    def undetermined(self) -> list[Quantity]:
        """Quantities that algebraic rules may determine, those that no event changes first."""
        found = [q for q in self.quantities.values() if q.role in ("constant", "held") and not _is_constant(q)]
        return sorted(found, key=lambda q: q.role == "held")


def stoichiometry(reference: Any) -> float | None:
    """Return the stoichiometry that a species reference states; 1 by default before level 3."""
    if reference.isSetStoichiometry() or reference.getLevel() < 3:
        return float(reference.getStoichiometry())
    return None


def _is_constant(quantity: Quantity) -> bool:
    """Whether a quantity is declared constant."""
    return bool(quantity.element.getConstant())


def _finite(value: float | None) -> float | None:
    """Return the value of an attribute; NaN counts as not set."""
    return None if value is None or math.isnan(value) else float(value)
