"""Error and warning of the importers."""

from __future__ import annotations

from dae_hybrid.errors import DaeHybridError, UnsupportedError


class ImporterError(DaeHybridError, ImportError):
    """The library that reads a format is not installed."""


class UnitWarning(UserWarning):
    """The units of a model are inconsistent, or the model does not state them."""


def unsupported(what: str, element: str, remedy: str | None = None) -> UnsupportedError:
    """Return the error for a construct that has no counterpart; `variables` contains the id of the element."""
    return UnsupportedError(f"{element}: {what}", variables=(element,), remedy=remedy)
