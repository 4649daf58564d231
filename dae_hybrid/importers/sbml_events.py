"""Events of SBML as transitions."""

from __future__ import annotations

from dae_hybrid.importers.errors import unsupported
from dae_hybrid.importers.sbml_values import RunValues
from dae_hybrid.statement.declarations import Mode


def add_events(values: RunValues, run: Mode) -> None:
    for event in values.inventory.model.getListOfEvents():
        raise unsupported("todo", f"event '{event.getId()}'")
