"""How the equations of motion of a mechanism are stated to the integrator.

All have the solutions of ``M a + Phi_q^T lambda = F``, ``Phi(t, q) = 0`` (Corner, Sandu and Sandu 2020, eq. 1 and 27);
they differ in what they integrate and in how far off the constraints they may get. Every formulation has positions,
velocities, accelerations and multipliers for variables, so that costs and guards read the same in all of them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import casadi as ca

from dae_hybrid.errors import OptionError
from dae_hybrid.mechanics.kinematics import Motion


def checked(owner: str, name: str, value: Any, *, positive: bool) -> None:
    """Refuse what is neither an expression nor a finite number, positive or not negative."""
    if isinstance(value, ca.MX):
        return
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number) or number < 0 or (positive and number == 0):
        raise OptionError(
            f"{owner}: {name} must be a {'positive' if positive else 'non-negative'} number, got {value!r}."
        )


@dataclass(frozen=True)
class Formulation:
    """Base of all formulations; by itself that of a mechanism without constraints, ``M a = F``."""

    def velocity_rates(self, motion: Motion) -> ca.MX:
        """v' of all coordinates."""
        return motion.a

    def closure(self, motion: Motion) -> ca.MX:
        """Equations that give accelerations and multipliers."""
        return motion.index1(-motion.gamma)

    def constraint(self, motion: Motion) -> list[tuple[str, ca.MX]]:  # noqa: ARG002 - for those that keep constraints
        """Equations without accelerations and multipliers, with their names."""
        return []


@dataclass(frozen=True)
class Unconstrained(Formulation):
    """``M a = F``: an ODE, for mechanisms without constraints."""


@dataclass(frozen=True)
class Penalty(Formulation):
    """The penalty ODE: constraints are pulled at by springs and dampers of their own.

    ``(M + Phi_q^T alpha Phi_q) a = F - Phi_q^T alpha (gamma + 2 xi omega Phi' + omega^2 Phi)``, and the estimates
    ``lambda* = alpha (Phi'' + 2 xi omega Phi' + omega^2 Phi)`` of the multipliers (Corner, Sandu and Sandu 2019,
    eq. 40; 2020, eq. 29 to 31). The constraints hold up to O(1/alpha), and so do the results. It is solved in the
    equivalent form ``M a + Phi_q^T lambda* = F``, ``Phi'' + 2 xi omega Phi' + omega^2 Phi = lambda* / alpha``, in
    which a large alpha cancels nothing.

    Parameters
    ----------
    alpha : float or expression in parameters
        Penalty, in units of mass; large against the masses.
    xi : float or expression
        Damping ratio of the constraints.
    omega : float or expression
        Their natural frequency, in 1/time.
    """

    alpha: Any = 1e7
    xi: Any = 1.0
    omega: Any = 10.0

    def __post_init__(self) -> None:
        checked("Penalty", "alpha", self.alpha, positive=True)
        checked("Penalty", "xi", self.xi, positive=False)
        checked("Penalty", "omega", self.omega, positive=False)

    def closure(self, motion: Motion) -> ca.MX:
        """Equations that give accelerations and estimates of the multipliers."""
        damped = motion.gamma + 2 * self.xi * self.omega * motion.velocity + self.omega**2 * motion.phi
        return motion.index1(-damped, compliance=1 / self.alpha)


@dataclass(frozen=True)
class Index1(Formulation):
    """Constraints on accelerations: an ODE, for accelerations and multipliers are solved for at once.

    ``M a + Phi_q^T lambda = F``, ``Phi'' + 2 xi omega Phi' + omega^2 Phi = 0`` (Corner, Sandu and Sandu 2020, eq. 32,
    with Baumgarte's stabilisation). Without it positions and velocities drift off the constraints by as much as the
    tolerance allows.

    Parameters
    ----------
    xi : float or expression in parameters
        Damping ratio of the stabilisation.
    omega : float or expression
        Its frequency, in 1/time; 0 (default) is without stabilisation.
    """

    xi: Any = 1.0
    omega: Any = 0.0

    def __post_init__(self) -> None:
        checked("Index1", "xi", self.xi, positive=False)
        checked("Index1", "omega", self.omega, positive=False)

    def closure(self, motion: Motion) -> ca.MX:
        """Equations that give accelerations and multipliers."""
        pull = 2 * self.xi * self.omega * motion.velocity + self.omega**2 * motion.phi
        return motion.index1(-motion.gamma - pull)


@dataclass(frozen=True)
class Index2(Formulation):
    """Constraints on velocities and, by Gear, Gupta and Leimkuhler, on positions: Hessenberg index 2.

    ``q' = v + Phi_q^T mu``, ``M v' + Phi_q^T lambda = F``, ``0 = Phi``, ``0 = Phi_q v + Phi_t``; mu is zero but for
    what the integrator gets wrong. The state is kept on the constraints, to rounding wherever it is reported.

    Parameters
    ----------
    positions : bool
        Keep positions on their constraints too (default). Otherwise they drift by the size of the tolerance.
    """

    positions: bool = True

    def velocity_rates(self, motion: Motion) -> ca.MX:
        """v' of all coordinates, for given multipliers."""
        return motion.rates

    def closure(self, motion: Motion) -> ca.MX:
        """Equations that give accelerations; multipliers follow from the constraints."""
        return motion.balance

    def constraint(self, motion: Motion) -> list[tuple[str, ca.MX]]:
        """Constraints on positions and velocities."""
        return [*(motion.named() if self.positions else []), *motion.named(rates=True)]


@dataclass(frozen=True)
class Reduced(Formulation):
    """Coordinate partitioning: velocities of independent coordinates are integrated, the others follow from them.

    With a matrix B that selects independent coordinates, ``w = B v`` are the states, ``w' = B a``, and v solves
    ``Phi_q v + Phi_t = 0``, ``B v = w`` (Wehage and Haug 1982; Corner, Sandu and Sandu 2020, section 3.4 and eq. 39).
    Dependent positions are carried along and put back on ``Phi = 0`` by Newton's method with the independent ones held,
    to rounding wherever they are reported. Velocities satisfy their constraints throughout.

    Parameters
    ----------
    independent : sequence of coordinates, optional
        Which ones, for the modes of as many degrees of freedom. By default they are chosen at the start and at every
        change of mode by pivoting, and chosen anew, at an event of its own named ``"<mode>: coordinates"``, when
        ``det(Phi_q,dep)^2 / det(Phi_q Phi_q^T)`` falls to a tenth of what it was.
    """

    independent: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.independent, str | ca.MX):
            raise OptionError("Reduced: independent must be a sequence of coordinates.")
        object.__setattr__(self, "independent", tuple(self.independent))

    def constraint(self, motion: Motion) -> list[tuple[str, ca.MX]]:
        """Constraints on positions."""
        return motion.named()
