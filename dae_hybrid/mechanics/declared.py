"""The parts of a mechanism: coordinates, bodies, constraints, modes, events, impacts. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import casadi as ca

from dae_hybrid.errors import ModelError
from dae_hybrid.statement.declarations import Direction, OnEntry, Statement

if TYPE_CHECKING:
    from dae_hybrid.mechanics.bodies import Body

#: characters of an expression in a message
MAX_SHOWN = 60


@dataclass(frozen=True, eq=False)
class Coordinate(Statement):
    """A vector of generalised coordinates: position q, velocity v, acceleration a."""

    name: str
    q: ca.MX
    v: ca.MX
    a: ca.MX


@dataclass(frozen=True, eq=False)
class Constraint:
    """A holonomic constraint ``Phi(t, q, rho) = 0`` and its multipliers, whose force is ``-Phi_q^T multiplier``."""

    name: str
    phi: ca.MX
    multiplier: ca.MX


@dataclass(frozen=True, eq=False)
class Inertia:
    """A block of the mass matrix, for the coordinates `rows`."""

    rows: ca.MX
    matrix: ca.MX


@dataclass(eq=False)
class Share:
    """The parts of a mechanism, or those that one of its modes adds."""

    constraints: dict[str, Constraint] = field(default_factory=dict)
    forces: list[tuple[ca.MX, ca.MX]] = field(default_factory=list)  # velocities or coordinates, and forces on them
    inertias: list[Inertia] = field(default_factory=list)
    weights: list[tuple[ca.MX, ca.MX]] = field(default_factory=list)  # gravity and its direction
    weighed: list[tuple[ca.MX, ca.MX]] = field(default_factory=list)  # positions and shares of mass, for gravity
    loads: list[tuple[Body, ca.MX]] = field(default_factory=list)  # bodies, and wrenches about their centres of mass


# -- impacts ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Impact:
    """Base class of the impact laws for velocities; positions are continuous."""


@dataclass(frozen=True)
class Inelastic(Impact):
    """The constraints of the target hold after the event, by impulses along them.

    ``M (v+ - v-) + Phi+_q^T dlambda = 0``, ``Phi+_q v+ + Phi+_t = 0``, with M of the target (Corner, Sandu and
    Sandu 2019, eq. 54; 2020, eq. 40). It is the default if the target has constraints that the source lacks.
    """


@dataclass(frozen=True)
class Restitution(Impact):
    """Newton's law of restitution along a normal.

    ``g' + = -coefficient g' -`` for the distance g, by an impulse along ``g_q`` and impulses that maintain the
    target's constraints. The impact is frictionless; with coefficient 1 it conserves the energy.

    Parameters
    ----------
    coefficient : expression
        Between 0 and 1.
    distance : expression, optional
        The distance g(t, q), by default the event's guard.
    """

    coefficient: Any
    distance: Any = None

    def __post_init__(self) -> None:
        number = isinstance(self.coefficient, int | float) and not isinstance(self.coefficient, bool)
        if number and not 0 <= self.coefficient <= 1:
            raise ModelError(f"Restitution: coefficient must be between 0 and 1, got {self.coefficient!r}.")


@dataclass(frozen=True, eq=False)
class VelocityJump(Impact):
    """New values of independent velocities in terms of the old ones, by impulses on them.

    The other velocities follow from the velocity constraints (Corner, Sandu and Sandu 2019, eq. 52 and 53; 2020, eq. 38
    and 39).

    Parameters
    ----------
    values : mapping of velocity to expression
        One for every degree of freedom of the target, such as ``{vx: vx, vy: -vy}``. A velocity is that of a
        coordinate, or an expression that is affine in these, such as ``tip.vy`` for a point of a body.
    """

    values: Mapping[Any, Any]


def shown_velocity(speed: ca.MX) -> str:
    """A velocity in a message: its name, or its expression, shortened."""
    text = speed.name() if speed.is_symbolic() else str(speed)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


@dataclass(frozen=True)
class Continuous(Impact):
    """Velocities are continuous, even if the target has additional constraints.

    These constraints must already hold, or the formulation is `Penalty`, whose forces pull towards them (Corner, Sandu
    and Sandu 2019, section 6).
    """


# -- events and starts ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Event(Statement):
    """A transition of a mechanism."""

    name: str
    source: str
    target: str | None
    trigger: Mapping[str, Any]  # guard, at or every; when and priority
    direction: Direction
    on_entry: OnEntry
    resolution: float | None
    impact: Impact | None
    reset: Mapping[str, ca.MX]
    memory: Mapping[str, ca.MX]


@dataclass(frozen=True, eq=False)
class InitialConditions:
    """The initial conditions of a run."""

    mode: str
    positions: Mapping[str, ca.MX]
    velocities: Mapping[str, ca.MX] | None
    guess: Mapping[str, Any]
    project: bool
