"""What a model consists of: declared symbols, modes, transitions, functionals. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import casadi as ca
import numpy as np
from numpy.typing import NDArray

Kind = Literal["parameter", "differential", "algebraic", "memory"]
Direction = Literal["rising", "falling", "both"]
OnEntry = Literal["wait", "fire", "error"]
DIRECTIONS: dict[str, int] = {"rising": 1, "falling": -1, "both": 0}


@dataclass(frozen=True, eq=False)
class Declaration:
    """A named symbol of a model."""

    name: str
    kind: Kind
    size: int
    symbol: ca.MX
    value: NDArray[np.float64] | None = None  # parameters: nominal value; algebraic: guess
    initial: Any = None  # memory: initial value, an expression in parameters
    of: Declaration | None = None  # memory: the variable it freezes
    unit: str = ""
    description: str = ""

    @property
    def start(self) -> NDArray[np.float64]:
        """Nominal value or guess."""
        if self.value is None:
            raise AssertionError(f"'{self.name}' has no value")
        return self.value


@dataclass(frozen=True, eq=False)
class Mode:
    """Smooth equations, active until a transition fires."""

    name: str
    ode: dict[str, ca.MX]
    algebraic: ca.MX


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
    reset: dict[str, ca.MX]
    memory: dict[str, ca.MX]
    on_entry: OnEntry


@dataclass(frozen=True, eq=False)
class Functional:
    """A cost: integral over the run plus terminal value."""

    name: str
    size: int
    integrand: ca.MX | None
    terminal: ca.MX | None
