"""Records of a model's declarations: symbols, modes, transitions, functionals. Plain data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Self, SupportsIndex

import casadi as ca
import numpy as np
from numpy.typing import NDArray

from dae_hybrid.errors import ModelError, UnsupportedError

if TYPE_CHECKING:
    from dae_hybrid.statement.triggers import Trigger

Kind = Literal["parameter", "differential", "algebraic", "memory", "unknown"]
Direction = Literal["rising", "falling", "both"]
OnEntry = Literal["wait", "fire", "error"]
Interpolation = Literal["linear", "previous", "cubic"]
#: what messages call a symbol of each kind
NOUNS: dict[Kind, str] = {
    "parameter": "a parameter",
    "differential": "a differential variable",
    "algebraic": "an algebraic variable",
    "memory": "a memory",
    "unknown": "an unknown",
}
DIRECTIONS: dict[str, int] = {"rising": 1, "falling": -1, "both": 0}


class Statement:
    """Mixin for objects with CasADi symbols: copyable, pickled as part of their model."""

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
            remedy="Pickle the whole model, and take the part from the unpickled model.",
        )

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return self.__reduce__()


def no_equations() -> ca.MX:
    """Return an empty column."""
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
    matrix: ca.MX | None = None  # parameter that is a matrix: the entries of `symbol`, row by row
    unit: str = ""
    description: str = ""

    @property
    def noun(self) -> str:
        """What messages call it: "an algebraic variable"."""
        return NOUNS[self.kind]

    def require(self, kinds: Sequence[Kind], where: str = "") -> None:
        """Raise `ModelError` unless it is of one of these kinds."""
        if self.kind not in kinds:
            legal = " or ".join(NOUNS[kind] for kind in kinds)
            place = f"{where}: " if where else ""
            raise ModelError(f"{place}'{self.name}' is {self.noun}, expected {legal}.")

    @property
    def start(self) -> NDArray[np.float64]:
        """Nominal value or guess, shape (size,)."""
        if self.value is None:
            raise AssertionError(f"'{self.name}' has no value")
        return self.value


@dataclass(frozen=True, eq=False)
class SignalData(Statement):
    """Data of an input signal: knots, values there (an expression in parameters), interpolation and extrapolation."""

    name: str
    knots: NDArray[np.float64]
    values: ca.MX
    kind: Interpolation
    hold: bool  # hold the first and the last value outside the data


@dataclass(frozen=True, eq=False)
class MotionStatement(Statement):
    """Marks the equations of a mode as equations of motion, ``M a + Phi_q^T lambda = F`` and ``Phi_q a = -gamma``.

    The last rows of its algebraic equations, n + m, are ``M a + Phi_q^T lambda - F`` and ``Phi_q a + gamma``. Before
    them come the equations of `inner` variables, in four groups of equal size: poses as functions of q, and of the
    poses before them; likewise twists, of v; rates of twists, of a; wrenches, affine in all of these rates.
    """

    q: tuple[str, ...]  # names of the variables
    v: tuple[str, ...]
    a: tuple[str, ...]
    multipliers: tuple[str, ...]
    inner: tuple[tuple[str, ...], ...]  # poses, twists, rates of twists, wrenches
    phi: ca.MX  # in q and poses
    projection: ca.MX | None  # matrix of the projections; None for the mass matrix
    projection_penalty: float
    newmark: tuple[float, float]  # beta and gamma
    spectral_radius: float


@dataclass(frozen=True, eq=False)
class MassStatement(Statement):
    """Equations ``M y' = f``; `compile.mass` rewrites them into the other forms."""

    variables: tuple[str, ...]  # names of the differential variables that make up y
    matrix: ca.MX
    rhs: ca.MX
    labels: tuple[str, ...]  # labels of the rows


@dataclass(frozen=True, eq=False)
class Mode(Statement):
    """Smooth equations, active until a transition fires."""

    name: str
    ode: dict[str, ca.MX] = field(default_factory=dict)
    residual: ca.MX = field(default_factory=no_equations)
    algebraic: ca.MX = field(default_factory=no_equations)
    constraint: ca.MX = field(default_factory=no_equations)
    labels: tuple[str, ...] = ()  # labels of residual, algebraic and constraint equations, in this order
    idle: tuple[str, ...] = ()  # algebraic variables that this mode does not use; their bounds are not checked
    motion: MotionStatement | None = None
    mass: MassStatement | None = None

    @property
    def equations(self) -> list[ca.MX]:
        """Right-hand sides and residuals."""
        of_mass = [] if self.mass is None else [ca.vec(self.mass.matrix), self.mass.rhs]
        return [*self.ode.values(), self.residual, self.algebraic, self.constraint, *of_mass]

    @cached_property
    def everything(self) -> ca.MX:
        """All equations in one column."""
        return ca.vertcat(*self.equations)


@dataclass(frozen=True, eq=False)
class SharedEquations(Statement):
    """Equations of several modes, stated once."""

    modes: tuple[str, ...]  # empty for all
    stated: Mode


@dataclass(frozen=True)
class VariableBound:
    """One bound of one entry of an algebraic variable."""

    variable: str
    entry: int
    label: str
    lower: float
    upper: float
    is_lower: bool

    @property
    def limit(self) -> float:
        """The active limit: `lower` or `upper`."""
        return self.lower if self.is_lower else self.upper


@dataclass(frozen=True)
class Relation:
    """The relation or step function (such as `floor`) whose memory a transition updates."""

    memory: str
    entry: int  # index into the memory vector
    is_condition: bool  # boolean-valued
    is_kink: bool  # the expression is continuous at the switch
    rests: bool  # while the guard stays at zero, the relation has the value of one side
    zero_sides: tuple[int, int, int]  # the side to which such a guard counts, by the sign of the memory
    stated: ca.MX  # the guard before its kinks are lifted
    status: int | None = None  # index of the memory that holds the status of sliding motion, see `compile.sliding`

    @property
    def is_exit(self) -> bool:
        """Whether what it updates is the status alone: motion leaves the surface, or is free to meet it again."""
        return self.status == self.entry


@dataclass(frozen=True, eq=False)
class Clock(Statement):
    """Ticks at start time + offset + k period, k = 0, 1, ..."""

    name: str
    period: ca.MX
    offset: ca.MX


@dataclass(frozen=True, eq=False)
class Delay(Statement):
    """The delay between the trigger of a transition and its execution."""

    time: ca.MX  # in values at the trigger
    at_trigger: bool  # whether reset and memory have the values of the trigger, not those of the execution
    persistent: bool  # whether it is carried out even if the trigger has turned false
    pending: int  # largest number that may be pending at once


@dataclass(frozen=True, eq=False)
class Transition(Statement):
    """A transition: its trigger, its target and its reset."""

    name: str
    sources: tuple[Mode, ...]  # empty for all modes
    target: Mode | None
    trigger: Trigger
    direction: int
    on_entry: OnEntry
    resolution: float
    reset: dict[str, ca.MX]
    memory: dict[str, ca.MX]
    equations: ca.MX  # implicit resets, T(post, pre, p, t) = 0
    labels: tuple[str, ...]  # labels of the reset equations
    project: tuple[Declaration, ...]  # variables projected onto the target's constraints
    metric: ca.MX | None
    guess: dict[str, ca.MX]  # initial guess of Newton's method for values after the transition
    refusal: str = ""  # reason why the run cannot continue after it; empty for ordinary transitions
    bound: VariableBound | None = None  # the bound that is violated there
    freezes: bool = True  # whether memory declared with ``of=`` takes the values after it
    becomes: bool = False  # the guard is a condition, which a reset may make true as well as time
    jumps: bool = False  # the guard may jump across zero when a relation switches
    zero_side: ca.MX | int = 0  # of a condition: the side, 1 or -1, to which a guard counts that stays at zero
    relation: Relation | None = None  # the relation whose switching it carries out
    stays: bool = False  # the target is the mode that is active
    when: ca.MX | None = None  # condition at the event
    priority: ca.MX | None = None
    delay: Delay | None = None
    statement: str = ""  # name of the stated transition that it belongs to, if that is another one
    shared: str = ""  # what it has in common with the same transition from other modes
    overdue: str = ""  # what is wrong if the guard is past its threshold on entry
    skips: str = ""  # name of the transition that it replaces where the condition `when` does not hold

    @property
    def source(self) -> Mode:
        """The source mode; a stated transition may have several."""
        (source,) = self.sources
        return source

    @property
    def guard(self) -> ca.MX | None:
        """The guard, None for time events."""
        return None if self.trigger.is_timed else self.trigger.expression


@dataclass(frozen=True, eq=False)
class Initial(Statement):
    """Initial conditions: explicit values, equations T0 = 0, and initial guesses of Newton's method."""

    mode: Mode
    values: dict[str, ca.MX]
    equations: ca.MX
    labels: tuple[str, ...]  # labels of the equations
    guess: dict[str, ca.MX]
    project: tuple[Declaration, ...] = ()  # variables projected onto the constraints and equations
    metric: ca.MX | None = None


@dataclass(frozen=True, eq=False)
class Series(Statement):
    """Measurements of one thing at many times: a value with a column of data in it, and a row of these for each."""

    times: NDArray[np.float64]
    value: ca.MX
    column: ca.MX
    data: NDArray[np.float64]  # (n_times, n_data)


@dataclass(frozen=True, eq=False)
class Peak(Statement):
    """A part of a functional that the whole run decides: an extremum, its time, or the time of a crossing.

    `parts` are the expressions of the keyword `kind`, see `dae_hybrid.statement.peaks`; `watched` are those whose
    extrema or zeros are searched, one or two for each component.
    """

    kind: str
    parts: tuple[ca.MX, ...]
    watched: ca.MX


@dataclass(frozen=True, eq=False)
class Functional(Statement):
    """A cost functional: the sum of its parts."""

    name: str
    size: int
    integrand: ca.MX | None
    terminal: ca.MX | None
    at_times: tuple[tuple[ca.MX, ca.MX], ...] = ()  # (time, value)
    at_events: tuple[tuple[str, ca.MX], ...] = ()  # (transition, value)
    series: tuple[Series, ...] = ()  # further measurements, many at once
    peaks: tuple[Peak, ...] = ()
