"""`sbml`: a model in the Systems Biology Markup Language as a `HybridModel`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import casadi as ca

from dae_hybrid.importers.sbml_algebraic import solve_for
from dae_hybrid.importers.sbml_document import Units, read_document
from dae_hybrid.importers.sbml_events import add_events
from dae_hybrid.importers.sbml_mathml import Number
from dae_hybrid.importers.sbml_quantities import Inventory, Quantity
from dae_hybrid.importers.sbml_values import (
    RunValues,
    Texts,
    amount_name,
    concentration_name,
    element_texts,
    stored_name,
    texts_of,
)
from dae_hybrid.statement.model import HybridModel


def sbml(source: str | Path, *, units: Units = "warn", pending: int = 8) -> HybridModel:
    """Convert an SBML model, levels 1 to 3.

    Parameters
    ----------
    source : str or Path
        Path of a file, or the text of a document.
    units : {"warn", "error", "ignore"}
        What to do if libSBML finds the units inconsistent.
    pending : int
        Largest number of executions of an event that are pending at once.

    Returns
    -------
    HybridModel
        With one mode. A species ``S`` has its amount in ``S`` and its concentration in ``[S]``; other quantities and
        the rates of reactions have their id. Every number of the document is a parameter: of a constant under its id,
        of the start of a variable under ``S.initialAmount``, ``S.initialConcentration``, ``k.value``, ``C.size`` or
        ``r.stoichiometry``, and of a local parameter under ``reaction.k``.

    Raises
    ------
    ImporterError
        python-libsbml is not installed.
    ModelFileError
        The document is not valid.
    UnsupportedError
        The model contains what cannot be expressed; ``variables`` has the element.
    OSError
        The file cannot be read.

    Examples
    --------
    >>> import dae_hybrid as dh
    >>> text = '''<sbml xmlns="http://www.sbml.org/sbml/level3/version2/core" level="3" version="2"><model id="decay">
    ... <listOfParameters><parameter id="x" value="1" constant="false"/><parameter id="k" value="2" constant="true"/>
    ... </listOfParameters><listOfRules><rateRule variable="x"><math xmlns="http://www.w3.org/1998/Math/MathML">
    ... <apply><minus/><apply><times/><ci>k</ci><ci>x</ci></apply></apply></math></rateRule></listOfRules>
    ... </model></sbml>'''
    >>> sol = dh.simulate(dh.importers.sbml(text, units="ignore").build(), (0, 1), rtol=1e-9)
    >>> round(float(sol["x"][-1]), 6)
    0.135335
    """
    document = read_document(source, units)
    stated = document.getModel()
    inventory = Inventory(stated)
    solve_for(inventory)
    model = HybridModel(stated.getId() or stated.getName() or "sbml")
    values = RunValues(inventory, model)
    values.declare_stored()
    ode: dict[Any, Number] = {}
    starts: dict[Any, Number] = {}
    for quantity in inventory.quantities.values():
        if quantity.role in ("rate", "reaction"):
            symbol = values.symbol(quantity)
            where = f"{quantity.kind} '{quantity.name}'"
            is_ruled = quantity.role == "rate"
            ode[symbol] = values.rate_of(quantity.name, where) if is_ruled else values.amount_rate(quantity)
            starts[symbol] = values.start.stored(quantity, where)
    rules: list[Any] = []
    for i, rule in enumerate(inventory.algebraic):
        label = rule.getMetaId() or f"algebraic rule {i + 1}"
        rules.append((label, values.mathematics.number(rule.getMath(), values, label)))
    run = model.mode("run", ode=ode, algebraic=[*rules, *_reported(values)])
    model.initial(run, starts)
    add_events(values, run, pending)
    return model


def _reported(values: RunValues) -> list[Any]:
    """Declare what a run reports besides its stored variables, and return the equations."""
    model, found = values.model, list[Any]()

    def report(name: str, value: Number, texts: Texts) -> None:
        if name in model.declarations or (isinstance(value, float) and not math.isfinite(value)):
            return
        symbol = model.algebraic(name, **texts)
        found.append((name, ca.MX(value) - symbol))

    for quantity in values.inventory.quantities.values():
        where = f"{quantity.kind} '{quantity.name}'"
        if quantity.role in ("constant", "held", "rate", "reaction") and not values.start.is_known(quantity):
            continue
        if quantity.kind != "species":
            report(stored_name(quantity), values.lookup(quantity.name, where), element_texts(quantity.element))
            continue
        amount = values.amount(quantity, where)
        report(amount_name(quantity.name), amount, texts_of(quantity, is_amount=True))
        size = _size(values, quantity)
        if size is not None:
            report(concentration_name(quantity.name), amount / size, texts_of(quantity, is_amount=False))
    for name, reaction in values.inventory.reactions.items():
        report(amount_name(name), values.lookup(name, f"reaction '{name}'"), element_texts(reaction.element))
    return found


def _size(values: RunValues, species: Quantity) -> Number | None:
    """Size of the compartment of a species; None if it has none."""
    container = species.container
    if container is None or container.element.getSpatialDimensionsAsDouble() == 0:
        return None
    if container.role == "constant" and not values.start.is_known(container):
        return None
    return values.lookup(container.name, f"species '{species.name}'")
