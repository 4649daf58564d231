"""What a model consists of: declared symbols, modes, transitions, functionals. Plain data."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Self, SupportsIndex

import casadi as ca
import numpy as np
from numpy.typing import NDArray

from dae_hybrid.errors import UnsupportedError

Kind = Literal["parameter", "differential", "algebraic", "memory", "unknown"]
Direction = Literal["rising", "falling", "both"]
OnEntry = Literal["wait", "fire", "error"]
Interpolation = Literal["linear", "previous", "cubic"]
DIRECTIONS: dict[str, int] = {"rising": 1, "falling": -1, "both": 0}


class Statement:
    """What holds symbols of CasADi: it can be copied, and is pickled as part of its model."""

    def __copy__(self) -> Self:
        return self._copied(lambda value: value)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self._copied(lambda value: deepcopy(value, memo), memo)

    def _copied(self, of: Callable[[Any], Any], memo: dict[int, Any] | None = None) -> Self:
        twin = object.__new__(type(self))
        if memo is not None:
            memo[id(self)] = twin
        twin.__dict__.update({name: of(value) for name, value in self.__dict__.items()})
        return twin

    def __reduce__(self) -> tuple[Any, ...]:
        raise UnsupportedError(
            f"A {type(self).__name__} cannot be pickled by itself: its expressions are in the symbols of its model.",
            remedy="Pickle the whole model, and take the part from what is unpickled.",
        )

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return self.__reduce__()


def no_equations() -> ca.MX:
    """An empty column."""
    return ca.MX(0, 1)


@dataclass(frozen=True, eq=False)
class Declaration(Statement):
    """A named symbol of a model."""

    name: str
    kind: Kind
    size: int
    symbol: ca.MX
    value: NDArray[np.float64] | None = None  # parameters: nominal value; algebraic, unknown: guess
    initial: Any = None  # memory: initial value
    of: Declaration | None = None  # memory: the variable it freezes
    signal: SignalData | None = None  # memory: the signal whose coefficients it holds
    bounds: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None  # algebraic: lower and upper
    unit: str = ""
    description: str = ""

    @property
    def start(self) -> NDArray[np.float64]:
        """Nominal value or guess."""
        if self.value is None:
            raise AssertionError(f"'{self.name}' has no value")
        return self.value


@dataclass(frozen=True, eq=False)
class SignalData(Statement):
    """Data of an input: knots, values there (an expression in parameters), how to interpolate and to extrapolate."""

    name: str
    knots: NDArray[np.float64]
    values: ca.MX
    kind: Interpolation
    hold: bool  # the first and the last value hold outside the data


@dataclass(frozen=True, eq=False)
class Mode(Statement):
    """Smooth equations, active until a transition fires."""

    name: str
    ode: dict[str, ca.MX] = field(default_factory=dict)
    residual: ca.MX = field(default_factory=no_equations)
    algebraic: ca.MX = field(default_factory=no_equations)
    constraint: ca.MX = field(default_factory=no_equations)
    labels: tuple[str, ...] = ()  # of residual, algebraic and constraint, one below the other
    idle: tuple[str, ...] = ()  # algebraic variables without a part in it, whose bounds it does not look at

    @cached_property
    def everything(self) -> ca.MX:
        """All equations in one column."""
        return ca.vertcat(*self.ode.values(), self.residual, self.algebraic, self.constraint)


@dataclass(frozen=True)
class Bound:
    """A bound of an algebraic variable: which entry, its lower and upper bounds, and which of the two is meant."""

    variable: str
    entry: int
    label: str
    lower: float
    upper: float
    is_lower: bool

    @property
    def limit(self) -> float:
        """The value that is not to be passed."""
        return self.lower if self.is_lower else self.upper


@dataclass(frozen=True)
class Relation:
    """What a transition changes the memory of: a relation of an expression, or a step function such as `floor`."""

    memory: str
    entry: int  # of all memory
    is_condition: bool  # true or false
    is_kink: bool  # the expression is continuous where it changes
    rests: bool  # it has the value of a side where its guard stays at zero
    stated: ca.MX  # the guard, with its kinks


@dataclass(frozen=True, eq=False)
class Transition(Statement):
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
    bound: Bound | None = None  # what is passed there
    freezes: bool = True  # whether memory ``of=`` takes the values after it
    becomes: bool = False  # the guard is a condition that becomes true, by a reset as well as in time
    jumps: bool = False  # the guard may jump across zero where a relation changes
    relation: Relation | None = None  # what it follows


@dataclass(frozen=True, eq=False)
class Initial(Statement):
    """How a run starts: explicit values, equations T0 = 0, and where Newton's method starts."""

    mode: Mode
    values: dict[str, ca.MX]
    equations: ca.MX
    labels: tuple[str, ...]  # of the equations
    guess: dict[str, ca.MX]
    project: tuple[Declaration, ...] = ()  # variables that move onto the constraints and equations
    metric: ca.MX | None = None


@dataclass(frozen=True, eq=False)
class Series(Statement):
    """Measurements of one thing at many times: a value with a column of data in it, and a row of these for each."""

    times: NDArray[np.float64]
    value: ca.MX
    column: ca.MX
    data: NDArray[np.float64]  # (n_times, n_data)


@dataclass(frozen=True, eq=False)
class Functional(Statement):
    """A cost: the sum of its parts."""

    name: str
    size: int
    integrand: ca.MX | None
    terminal: ca.MX | None
    at_times: tuple[tuple[ca.MX, ca.MX], ...] = ()  # time, value
    at_events: tuple[tuple[str, ca.MX], ...] = ()  # transition, value
    series: tuple[Series, ...] = ()  # further measurements, many at once
