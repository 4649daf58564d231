"""Conditions under which derivatives of a run exist. A failed condition raises, or is noted on request."""

from __future__ import annotations

from dae_hybrid.errors import DaeHybridError, EventError


class Conditions:
    """Conditions for a gradient. `failed` lists the reasons why it does not exist, in order of detection.

    `doubts` lists reasons why it may have lost digits.
    """

    def __init__(self, *, strict: bool = True) -> None:
        self.strict = strict
        self.failed: list[str] = []
        self.doubts: list[str] = []

    def fail_as_one_sided(self, error: EventError) -> None:
        """Record that there are only one-sided derivatives; raise it if `strict`."""
        error.is_one_sided = True
        self.fail(error)

    def fail(self, error: DaeHybridError) -> None:
        """Record a failed condition; raise it if `strict`."""
        if self.strict:
            raise error
        reason = str(error).partition("\n")[0]
        if reason not in self.failed:
            self.failed.append(reason)
