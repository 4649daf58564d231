"""What a model consists of: declared symbols, modes, transitions, functionals. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import casadi as ca
import numpy as np
from numpy.typing import NDArray

Kind = Literal["parameter", "differential", "algebraic", "memory", "unknown"]
Direction = Literal["rising", "falling", "both"]
OnEntry = Literal["wait", "fire", "error"]
Interpolation = Literal["linear", "previous", "cubic"]
DIRECTIONS: dict[str, int] = {"rising": 1, "falling": -1, "both": 0}


def no_equations() -> ca.MX:
    """An empty column."""
    return ca.MX(0, 1)


@dataclass(frozen=True, eq=False)
class Declaration:
    """A named symbol of a model."""

    name: str
    kind: Kind
    size: int
    symbol: ca.MX
    value: NDArray[np.float64] | None = None  # parameters: nominal value; algebraic, unknown: guess
    initial: Any = None  # memory: initial value
    of: Declaration | None = None  # memory: the variable it freezes
    signal: SignalData | None = None  # memory: the signal whose coefficients it holds
    unit: str = ""
    description: str = ""

    @property
    def start(self) -> NDArray[np.float64]:
        """Nominal value or guess."""
        if self.value is None:
            raise AssertionError(f"'{self.name}' has no value")
        return self.value


@dataclass(frozen=True, eq=False)
class SignalData:
    """Data of an input: knots, values there (an expression in parameters), how to interpolate and to extrapolate."""

    name: str
    knots: NDArray[np.float64]
    values: ca.MX
    kind: Interpolation
    hold: bool  # the first and the last value hold outside the data


@dataclass(frozen=True, eq=False)
class Mode:
    """Smooth equations, active until a transition fires."""

    name: str
    ode: dict[str, ca.MX] = field(default_factory=dict)
    residual: ca.MX = field(default_factory=no_equations)
    algebraic: ca.MX = field(default_factory=no_equations)
    constraint: ca.MX = field(default_factory=no_equations)
    labels: tuple[str, ...] = ()  # of residual, algebraic and constraint, one below the other

    @property
    def everything(self) -> ca.MX:
        """All equations in one column."""
        return ca.vertcat(*self.ode.values(), self.residual, self.algebraic, self.constraint)


@dataclass(frozen=True, eq=False)
class Transition:
    """What makes the system leave a mode, and what happens then."""

    name: str
    source: Mode
    target: Mode | None
    guard: ca.MX | None
    at: ca.MX | None
    every: ca.MX | None
    direction: int
    on_entry: OnEntry
    resolution: float
    reset: dict[str, ca.MX]
    memory: dict[str, ca.MX]
    equations: ca.MX  # implicit resets, T(post, pre, p, t) = 0
    labels: tuple[str, ...]  # of these
    project: tuple[Declaration, ...]  # variables that move onto the target's constraint
    metric: ca.MX | None
    guess: dict[str, ca.MX]  # where Newton's method starts for values after the transition
    refusal: str = ""  # why a run cannot go on where it fires
    freezes: bool = True  # whether memory ``of=`` takes the values after it


@dataclass(frozen=True, eq=False)
class Initial:
    """How a run starts: explicit values, equations T0 = 0, and where Newton's method starts."""

    mode: Mode
    values: dict[str, ca.MX]
    equations: ca.MX
    labels: tuple[str, ...]  # of the equations
    guess: dict[str, ca.MX]


@dataclass(frozen=True, eq=False)
class Functional:
    """A cost: the sum of its parts."""

    name: str
    size: int
    integrand: ca.MX | None
    terminal: ca.MX | None
    at_times: tuple[tuple[ca.MX, ca.MX], ...] = ()  # time, value
    at_events: tuple[tuple[str, ca.MX], ...] = ()  # transition, value
