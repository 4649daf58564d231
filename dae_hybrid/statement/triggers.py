"""Triggers of transitions: a guard crosses zero, a time is reached, a clock ticks.

A new kind of time event is a new class here; `system/schedule.py` lists the times of all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import casadi as ca

from dae_hybrid.statement.declarations import Statement


@dataclass(frozen=True, eq=False)
class Trigger(Statement, ABC):
    """An expression passed to `HybridModel.transition`, and its meaning."""

    expression: ca.MX
    argument: ClassVar[str]  # keyword of `HybridModel.transition`
    is_timed: ClassVar[bool]  # the times follow from parameters
    is_periodic: ClassVar[bool] = False  # there are many times, numbered from 1

    @abstractmethod
    def residual(self, time: ca.MX, clock: ca.MX) -> ca.MX:
        """The expression that is zero when the transition fires; `clock` is (start time of the run, number)."""

    @abstractmethod
    def sign(self, rate: float) -> int:
        """The direction of an event whose guard changes at this rate: 1 or -1, 0 for time events."""


@dataclass(frozen=True, eq=False)
class StateTrigger(Trigger):
    """A guard crosses zero."""

    argument = "guard"
    is_timed = False

    def residual(self, time: ca.MX, clock: ca.MX) -> ca.MX:  # noqa: ARG002 - for time events
        """The guard."""
        return self.expression

    def sign(self, rate: float) -> int:
        """The sign of the rate."""
        return 1 if rate > 0 else -1


@dataclass(frozen=True, eq=False)
class TimeTrigger(Trigger):
    """A time is reached.

    `times` are those of the statement if it is one of several, and `place` is its index among them.
    """

    times: ca.MX | None = field(default=None, kw_only=True)
    place: int = field(default=0, kw_only=True)

    argument = "at"
    is_timed = True

    def schedule(self, clock: ca.MX) -> ca.MX:  # noqa: ARG002 - for periodic ones
        """The time."""
        return self.expression

    def residual(self, time: ca.MX, clock: ca.MX) -> ca.MX:
        """Time since the scheduled one."""
        return time - self.schedule(clock)

    def sign(self, rate: float) -> int:  # noqa: ARG002 - for state events
        """Zero."""
        return 0


@dataclass(frozen=True, eq=False)
class TimesTrigger(TimeTrigger):
    """Each of several times is reached; `dae_hybrid.compile.expansion` makes a transition of each."""

    @property
    def count(self) -> int:
        """Number of times."""
        return int(self.expression.numel())


@dataclass(frozen=True, eq=False)
class PeriodicTrigger(TimeTrigger):
    """Ticks numbered from 1.

    `expression` is the period of ticks that begin one period after the start of the run, or the period and the offset
    of the first tick of a clock.
    """

    clock: str = ""  # name of the clock

    argument = "every"
    is_periodic = True

    def schedule(self, clock: ca.MX) -> ca.MX:
        """Time of a tick."""
        if self.expression.numel() == 1:
            return clock[0] + clock[1] * self.expression
        period, offset = ca.vertsplit(self.expression)
        return clock[0] + offset + (clock[1] - 1) * period
