"""What a mechanism consists of: coordinates, bodies, constraints, modes, events, impacts. Plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import casadi as ca

from dae_hybrid.errors import ModelError
from dae_hybrid.statement.declarations import Direction, OnEntry, Statement


@dataclass(frozen=True, eq=False)
class Coordinate(Statement):
    """Generalised coordinates of one name: position q, velocity v, acceleration a."""

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
    """A block of the mass matrix: it belongs to the columns `rows` of coordinates."""

    rows: ca.MX
    matrix: ca.MX


@dataclass(eq=False)
class Share:
    """What a mechanism, or one mode of it, is made of; every part adds to what is there already."""

    constraints: dict[str, Constraint] = field(default_factory=dict)
    forces: list[tuple[ca.MX, ca.MX]] = field(default_factory=list)  # velocities or coordinates, and forces on them
    inertias: list[Inertia] = field(default_factory=list)
    weights: list[tuple[ca.MX, ca.MX]] = field(default_factory=list)  # gravity and its direction
    bodies: list[tuple[ca.MX, ca.MX]] = field(default_factory=list)  # planar places, and masses that are weighed there


# -- impacts ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Impact:
    """What happens to velocities at an event; positions are continuous. See the subclasses."""


@dataclass(frozen=True)
class Inelastic(Impact):
    """The constraints of the target hold from now on, by impulses along them.

    ``M (v+ - v-) + Phi+_q^T dlambda = 0``, ``Phi+_q v+ + Phi+_t = 0``, M that of the target (Corner, Sandu and Sandu
    2019, eq. 54; 2020, eq. 40). It is the default where the target has constraints that the source has not.
    """


@dataclass(frozen=True)
class Restitution(Impact):
    """Newton's law of restitution along a normal.

    ``g' + = -coefficient g' -`` for the distance g, by an impulse along ``g_q`` and impulses that keep the target's
    constraints. An impact without friction; with coefficient 1 it conserves the energy.

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

    The others follow from the velocity constraints (Corner, Sandu and Sandu 2019, eq. 52 and 53; 2020, eq. 38 and 39).

    Parameters
    ----------
    values : mapping of velocity to expression
        One for every degree of freedom of the target, such as ``{vx: vx, vy: -vy}``.
    """

    values: Mapping[Any, Any]


@dataclass(frozen=True)
class Continuous(Impact):
    """Nothing happens to velocities, even where the target has further constraints.

    Those must then hold already; or the formulation is `Penalty`, which pulls towards them (Corner, Sandu and Sandu
    2019, section 6).
    """


# -- events and starts ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Event(Statement):
    """A transition of a mechanism."""

    name: str
    source: str
    target: str | None
    trigger: Mapping[str, Any]  # guard, at or every
    direction: Direction
    on_entry: OnEntry
    resolution: float | None
    impact: Impact | None
    reset: Mapping[str, ca.MX]
    memory: Mapping[str, ca.MX]


@dataclass(frozen=True, eq=False)
class Start:
    """Where a run starts."""

    mode: str
    positions: Mapping[str, ca.MX]
    velocities: Mapping[str, ca.MX] | None
    guess: Mapping[str, Any]
    project: bool
