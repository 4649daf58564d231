"""Error of the bridges."""

from __future__ import annotations

from dae_hybrid.errors import DaeHybridError


class BridgeError(DaeHybridError, ImportError):
    """The framework of a bridge is not installed."""
