"""Errors of runs as plain values that a table can hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dae_hybrid import errors
from dae_hybrid.errors import DaeHybridError, IntegrationError


class FailedRun(NamedTuple):
    """Number of a run, and the report of its error."""

    run: int
    report: Mapping[str, Any]

    @property
    def in_words(self) -> str:
        """Type and message of the error."""
        return f"{self.report['kind']}: {self.report['message']}"

    @property
    def error(self) -> DaeHybridError:
        """The error, of its own type, without its trajectory."""
        kind = getattr(errors, self.report["kind"], IntegrationError)
        found: DaeHybridError = kind(
            self.report["message"], mode=self.report["mode"], transition=self.report["transition"],
            time=self.report["time"], variables=self.report["variables"], remedy=self.report["remedy"],
        )  # fmt: skip
        return found


def report_of(error: Exception) -> dict[str, Any]:
    """Return an error as values that JSON can hold."""
    if not isinstance(error, DaeHybridError):
        error = IntegrationError(f"{type(error).__name__}: {error}")
    return {
        "kind": type(error).__name__, "message": error.message, "mode": error.mode, "transition": error.transition,
        "time": None if error.time is None else float(error.time), "variables": list(error.variables),
        "remedy": error.remedy,
    }  # fmt: skip
