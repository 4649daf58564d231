"""Conditions under which derivatives of a run exist: one that fails is an error, or a note where that was asked for."""

from __future__ import annotations

from dae_hybrid.errors import DaeHybridError


class Conditions:
    """What has to hold for a gradient. `failed` are the reasons why it is not one, in the order they were met.

    `doubts` are reasons why digits of it may be missing.
    """

    def __init__(self, *, strict: bool = True) -> None:
        self.strict = strict
        self.failed: list[str] = []
        self.doubts: list[str] = []

    def refuse(self, error: DaeHybridError) -> None:
        """A condition has failed."""
        if self.strict:
            raise error
        reason = str(error).partition("\n")[0]
        if reason not in self.failed:
            self.failed.append(reason)
