"""Models in formats of other fields, converted to `HybridModel`."""

from __future__ import annotations

from dae_hybrid.importers.errors import ImporterError as ImporterError
from dae_hybrid.importers.errors import UnitWarning as UnitWarning
from dae_hybrid.importers.sbml_import import sbml as sbml
