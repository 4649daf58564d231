"""Algebraic rules of SBML: the quantities that they determine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dae_hybrid.importers.errors import unsupported
from dae_hybrid.importers.sbml_quantities import Inventory, Quantity


def solve_for(inventory: Inventory) -> None:
    """Assign an undetermined quantity to every algebraic rule, and give it the role ``"solved"``.

    Raises
    ------
    UnsupportedError
        A rule contains no quantity that could be determined by it.
    """
    free = {q.name: q for q in inventory.undetermined()}
    wanted = [[name for name in free if name in used] for used in map(set, _names_by_rule(inventory))]
    taken: dict[str, int] = {}
    for i, rule in enumerate(inventory.algebraic):
        if not _matched(i, wanted, taken, set()):
            what = rule.getMetaId() or f"{i + 1} of {len(inventory.algebraic)}"
            raise unsupported("no quantity is left that it could determine.", f"algebraic rule {what}")
    for name in taken:
        free[name].role = "solved"


def _matched(rule: int, wanted: list[list[str]], taken: dict[str, int], seen: set[str]) -> bool:
    """Find an augmenting path of the matching of rules and quantities."""
    for name in wanted[rule]:
        if name not in seen:
            seen.add(name)
            if name not in taken or _matched(taken[name], wanted, taken, seen):
                taken[name] = rule
                return True
    return False


def _names_by_rule(inventory: Inventory) -> Iterator[set[str]]:
    for rule in inventory.algebraic:
        found: set[str] = set()
        _collect(rule.getMath(), inventory, found)
        yield found


def _collect(node: Any, inventory: Inventory, found: set[str]) -> None:
    """Collect the ids in an expression, with those that its assigned quantities and reactions use."""
    name = node.getName() if node.isName() else None
    if name is not None and name not in found:
        found.add(name)
        quantity = inventory.quantities.get(name)
        for math in _meanings(name, quantity, inventory):
            _collect(math, inventory, found)
    for i in range(node.getNumChildren()):
        _collect(node.getChild(i), inventory, found)


def _meanings(name: str, quantity: Quantity | None, inventory: Inventory) -> Iterator[Any]:
    if quantity is not None and quantity.role == "assigned":
        yield quantity.math
    if name in inventory.reactions:
        yield inventory.reactions[name].law
