"""Errors and warnings of uncertainty analyses."""

from __future__ import annotations

from dae_hybrid.errors import DaeHybridError


class UncertaintyError(DaeHybridError, RuntimeError):
    """An analysis has no trustworthy result: too many runs failed, or a search did not converge."""


class UncertaintyWarning(UserWarning):
    """A statistic omits runs that failed, or a result of first order may be far from the truth."""
