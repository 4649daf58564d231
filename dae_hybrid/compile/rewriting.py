"""Rewrite a model into the statements that functions are built from."""

from __future__ import annotations

from dae_hybrid.compile.bounds import with_bounds
from dae_hybrid.compile.expansion import expanded
from dae_hybrid.compile.idle_modes import with_idle_states
from dae_hybrid.compile.lookup import with_tables
from dae_hybrid.compile.mass import with_mass
from dae_hybrid.compile.signal_inputs import with_signals
from dae_hybrid.statement.model import HybridModel


def rewritten(model: HybridModel, *, kinks: bool) -> HybridModel:
    """Return the model with single transitions, a state in every mode, and conditions of bounds."""
    return with_bounds(with_idle_states(with_single_states(model, kinks=kinks)))


def with_single_states(model: HybridModel, *, kinks: bool) -> HybridModel:
    """Return the model without tables and mass matrices: its differential variables are those of the system."""
    return with_mass(with_tables(expanded(with_signals(model)), kinks=kinks))
