"""Values of the quantities of an SBML model, during a run and at its start, as expressions of a `HybridModel`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypedDict

import casadi as ca

from dae_hybrid.importers.errors import unsupported
from dae_hybrid.importers.sbml_mathml import Mathematics, Number
from dae_hybrid.importers.sbml_quantities import Inventory, Quantity, Reaction, stoichiometry
from dae_hybrid.importers.sbml_units import species_unit, unit_of
from dae_hybrid.statement.model import HybridModel


class Texts(TypedDict):
    """Unit and description of a symbol."""

    unit: str
    description: str


def amount_name(name: str) -> str:
    """Name of an amount, or of any quantity that is no concentration, in the model."""
    return "id(t)" if name == "t" else name


def concentration_name(name: str) -> str:
    """Name of a concentration in the model."""
    return f"[{name}]"


def texts_of(quantity: Quantity, *, is_amount: bool) -> Texts:
    """Unit and description of a quantity; of a species, of its amount or its concentration."""
    element = quantity.element
    if quantity.container is None:
        unit = unit_of(element)
    else:
        unit = species_unit(element, quantity.container.element, is_amount=is_amount)
    return {"unit": unit, "description": element.getName()}


def element_texts(element: Any) -> Texts:
    """Unit and description of an element."""
    return {"unit": unit_of(element), "description": element.getName()}


def stored_name(quantity: Quantity) -> str:
    """Name of what a run stores of a quantity."""
    is_concentration = quantity.compartment is not None and not quantity.is_amount
    return concentration_name(quantity.name) if is_concentration else amount_name(quantity.name)


class _Cycles:
    """Values that depend on each other are refused."""

    def __init__(self) -> None:
        self._open: list[str] = []

    @contextmanager
    def inside(self, name: str, element: str) -> Iterator[None]:
        if name in self._open:
            cycle = " -> ".join([*self._open[self._open.index(name) :], name])
            raise unsupported(f"values depend on each other: {cycle}.", element)
        self._open.append(name)
        try:
            yield
        finally:
            self._open.pop()


class StartValues:
    """Values at the start, in terms of the parameters of the model. A scope of `Mathematics`."""

    def __init__(self, run: RunValues) -> None:
        self._run = run
        self._found: dict[str, Number] = {}
        self._cycles = _Cycles()

    @property
    def time(self) -> Number:
        """Time at the start: SBML defines it as 0."""
        return 0.0

    def lookup(self, name: str, element: str) -> Number:
        """Value at the start of what an id means in expressions."""
        if name not in self._found:
            with self._cycles.inside(name, element):
                self._found[name] = self._value(name, element)
        return self._found[name]

    def rate_of(self, name: str, element: str) -> Number:
        """Rate at the start."""
        value = self._run.rate_of(name, element)
        if not isinstance(value, ca.MX):
            return value
        used = {s.name() for s in ca.symvar(value)}
        stored = [q for q in self._run.stored() if stored_name(q) in used]
        old = [self._run.time, *(self._run.symbol(q) for q in stored)]
        new = [ca.MX(self.time), *(ca.MX(self.stored(q, element)) for q in stored)]
        return ca.substitute([value], old, new)[0]

    def stored(self, quantity: Quantity, element: str) -> Number:
        """Value at the start of what a run stores of a quantity."""
        if quantity.is_amount and quantity.amount_given and quantity.initial is None and quantity.value is not None:
            return self._run.attribute(quantity)
        value = self.lookup(quantity.name, element)
        if quantity.compartment is not None and quantity.is_amount:
            return value * self.lookup(quantity.compartment.name, element)
        return value

    def is_known(self, quantity: Quantity) -> bool:
        """Whether the model states a value of the quantity at the start."""
        return quantity.initial is not None or quantity.role == "assigned" or quantity.value is not None

    def _value(self, name: str, element: str) -> Number:
        run = self._run
        if name in run.inventory.reactions:
            return run.mathematics.number(run.inventory.reactions[name].law, run.law_scope(name, self), name)
        quantity = run.quantity(name, element)
        where = f"{quantity.kind} '{name}'"
        if quantity.role == "solved":
            raise unsupported(f"it depends on '{name}' at the start, which algebraic rules determine.", element)
        stated = quantity.initial if quantity.role != "assigned" else quantity.math
        if stated is not None:
            return run.mathematics.number(stated, self, where)
        if quantity.value is None:
            raise unsupported("it has no initial value.", where)
        value = run.attribute(quantity)
        if quantity.kind != "species":
            return value
        if quantity.compartment is not None:
            return value / self.lookup(quantity.compartment.name, where) if quantity.amount_given else value
        if quantity.amount_given or quantity.container is None:
            return value
        return value * self.lookup(quantity.container.name, where)


class _LawScope:
    """Scope of a kinetic law: its local parameters hide ids of the model."""

    def __init__(self, outer: Any, local: dict[str, Number]) -> None:
        self._outer = outer
        self._local = local

    @property
    def time(self) -> Number:
        return self._outer.time

    def lookup(self, name: str, element: str) -> Number:
        return self._local[name] if name in self._local else self._outer.lookup(name, element)

    def rate_of(self, name: str, element: str) -> Number:
        return 0.0 if name in self._local else self._outer.rate_of(name, element)


class RunValues:
    """Values during a run; declares the parameters and the stored variables. A scope of `Mathematics`."""

    def __init__(self, inventory: Inventory, model: HybridModel) -> None:
        self.inventory = inventory
        self.model = model
        self.time = model.time
        self.mathematics = Mathematics(inventory.model)
        self.start = StartValues(self)
        self._attributes: dict[str, Number] = {}
        self._symbols: dict[str, ca.MX] = {}
        self._local: dict[str, dict[str, Number]] = {}
        self._found: dict[str, Number] = {}
        self._rates: dict[str, Number] = {}
        self._cycles = _Cycles()
        self._rate_cycles = _Cycles()
        self._declare_parameters()

    # -- declarations -------------------------------------------------------------------------------

    def _declare_parameters(self) -> None:
        """Declare a parameter for every number that the document states."""
        for quantity in self.inventory.quantities.values():
            if quantity.value is None or quantity.initial is not None or quantity.role == "assigned":
                continue
            if quantity.role == "solved":
                continue
            name = f"{quantity.name}.{quantity.attribute}"
            if quantity.role == "constant":
                is_concentration = quantity.kind == "species" and not quantity.amount_given
                if not is_concentration:
                    name = amount_name(quantity.name)
                elif quantity.container is not None and quantity.container.role == "constant":
                    name = concentration_name(quantity.name)
            texts = texts_of(quantity, is_amount=quantity.amount_given)
            self._attributes[quantity.name] = self._parameter(name, quantity.value, texts)
        for reaction in self.inventory.reactions.values():
            self._local[reaction.name] = {
                name: self._parameter(f"{reaction.name}.{name}", own.getValue(), element_texts(own))
                for name, own in reaction.local.items()
                if own.isSetValue()
            }

    def _parameter(self, name: str, value: float, texts: Texts) -> Number:
        return self.model.parameter(name, value, **texts) if math.isfinite(value) else value

    def declare_stored(self) -> None:
        """Declare the variables of which a run consists."""
        for quantity in self.inventory.quantities.values():
            self._declare(quantity)

    def _declare(self, quantity: Quantity) -> None:
        name, model = stored_name(quantity), self.model
        texts = texts_of(quantity, is_amount=quantity.compartment is None or quantity.is_amount)
        where = f"{quantity.kind} '{quantity.name}'"
        match quantity.role:
            case "rate" | "reaction":
                self._symbols[quantity.name] = model.differential(name, **texts)
            case "held":
                start = self.start.stored(quantity, where)
                self._symbols[quantity.name] = model.memory(name, initial=start, **texts)
            case "solved":
                guess = self.start_guess(quantity)
                self._symbols[quantity.name] = model.algebraic(name, guess=guess, **texts)

    def start_guess(self, quantity: Quantity) -> float:
        """Return the number that the document states for an unknown of algebraic rules; 0 if it states none."""
        return quantity.value if quantity.value is not None and math.isfinite(quantity.value) else 0.0

    def nominal(self, value: Number) -> float:
        """Value of an expression in the parameters at their nominal values; NaN if it depends on anything else."""
        if not isinstance(value, ca.MX):
            return float(value)
        symbols = ca.symvar(value)
        declared = [self.model.declarations.get(s.name()) for s in symbols]
        if not all(d is not None and d.kind == "parameter" for d in declared):
            return math.nan
        starts = [d.start for d in declared if d is not None]
        return float(ca.Function("nominal", symbols, [value]).call(starts)[0])

    def stored(self) -> list[Quantity]:
        """Quantities that have a variable of their own."""
        return [self.inventory.quantities[name] for name in self._symbols]

    def symbol(self, quantity: Quantity) -> ca.MX:
        """Variable of a quantity."""
        return self._symbols[quantity.name]

    def attribute(self, quantity: Quantity) -> Number:
        """Value of the attribute of a quantity: a parameter, or a number that is not finite."""
        if quantity.name in self._attributes:
            return self._attributes[quantity.name]
        return math.nan if quantity.value is None else quantity.value

    # -- values -------------------------------------------------------------------------------------

    def quantity(self, name: str, element: str) -> Quantity:
        """Quantity of an id."""
        if name not in self.inventory.quantities:
            raise unsupported(f"'{name}' is neither a quantity nor a reaction.", element)
        return self.inventory.quantities[name]

    def lookup(self, name: str, element: str) -> Number:
        """Value of what an id means in expressions."""
        if name not in self._found:
            with self._cycles.inside(name, element):
                self._found[name] = self._value(name, element)
        return self._found[name]

    def _value(self, name: str, element: str) -> Number:
        if name in self.inventory.reactions:
            law = self.inventory.reactions[name].law
            return self.mathematics.number(law, self.law_scope(name, self), f"reaction '{name}'")
        quantity = self.quantity(name, element)
        if quantity.role == "assigned":
            return self.mathematics.number(quantity.math, self, f"{quantity.kind} '{name}'")
        if quantity.role == "constant":
            if quantity.compartment is None:
                return self.start.lookup(name, element)
            if quantity.compartment.role == "constant":
                return self.start.lookup(name, element)
            return self.amount(quantity, element) / self.lookup(quantity.compartment.name, element)
        value = self._symbols[name]
        if quantity.compartment is not None and quantity.is_amount:
            return value / self.lookup(quantity.compartment.name, element)
        return value

    def amount(self, quantity: Quantity, element: str) -> Number:
        """Amount of a species."""
        if quantity.role == "constant":
            return self.start.stored(quantity, element)
        if quantity.is_amount:
            return self._symbols[quantity.name]
        value = self.lookup(quantity.name, element)
        return value if quantity.compartment is None else value * self.lookup(quantity.compartment.name, element)

    def law_scope(self, reaction: str, outer: Any) -> _LawScope:
        """Scope of the kinetic law of a reaction."""
        return _LawScope(outer, self._local[reaction])

    # -- rates --------------------------------------------------------------------------------------

    def rate_of(self, name: str, element: str) -> Number:
        """Rate of what an id means in expressions."""
        if name not in self._rates:
            with self._rate_cycles.inside(name, element):
                self._rates[name] = self._rate(name, element)
        return self._rates[name]

    def _rate(self, name: str, element: str) -> Number:
        quantity = self.quantity(name, element)
        if quantity.role in ("assigned", "solved"):
            raise unsupported(f"rateOf of '{name}', which a rule of another kind than a rate rule determines.", element)
        if quantity.role == "rate":
            return self.mathematics.number(quantity.math, self, f"rate rule of '{name}'")
        rate = self.amount_rate(quantity)
        if quantity.compartment is None:
            return rate
        size = self.lookup(quantity.compartment.name, element)
        growth: Number = 0.0
        if quantity.compartment.role in ("rate", "assigned", "solved"):
            growth = self.rate_of(quantity.compartment.name, element)
        if isinstance(growth, float) and growth == 0:
            return 0.0 if isinstance(rate, float) and rate == 0 else rate / size
        return (rate - self.lookup(name, element) * growth) / size

    def amount_rate(self, quantity: Quantity) -> Number:
        """Rate of the amount of a species by reactions, or 0."""
        found: Number = 0.0
        for reaction, sign, reference in self.inventory.changes.get(quantity.name, ()):
            found = found + sign * self._share(reaction, quantity, reference)
        return found

    def _share(self, reaction: Reaction, species: Quantity, reference: Any) -> Number:
        """Rate of a species by one reference of a reaction."""
        where = f"reaction '{reaction.name}'"
        count: Number
        if reference.getLevel() < 3 and reference.isSetStoichiometryMath():
            count = self.mathematics.number(reference.getStoichiometryMath().getMath(), self, where)
        elif reference.isSetId():
            count = self.lookup(reference.getId(), where)
        else:
            stated = stoichiometry(reference)
            if stated is None:
                raise unsupported(f"the stoichiometry of '{species.name}' is not set.", where)
            count = stated
        rate = count * self.lookup(reaction.name, where)
        factor = species.element.getConversionFactor() or self.inventory.model.getConversionFactor()
        return rate * self.lookup(factor, where) if factor else rate
