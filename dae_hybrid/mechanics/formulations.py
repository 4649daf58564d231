"""Formulations of the equations of motion of a mechanism.

All have the solutions of ``M a + Phi_q^T lambda = F``, ``Phi(t, q) = 0`` (Corner, Sandu and Sandu 2020, eq. 1 and 27);
they differ in the integrated equations and in the drift from the constraints. The variables of every formulation are
positions, velocities, accelerations and multipliers, so that costs and guards are the same in all formulations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, get_args

import casadi as ca

from dae_hybrid.errors import OptionError
from dae_hybrid.mechanics.kinematics import Motion
from dae_hybrid.mechanics.recursion import Reference


def checked(owner: str, name: str, value: Any, *, positive: bool) -> None:
    """Refuse values other than expressions and finite numbers that are positive (or non-negative)."""
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
    """Base class of all formulations; its own equations are those of a mechanism without constraints, ``M a = F``.

    Parameters
    ----------
    reference : {"center", "origin"}
        Reference points of bodies in joint coordinates: their centres of mass (default), or the origin of the plane.
        The equations are the same but for rounding.
    """

    reference: Reference = field(default="center", kw_only=True)

    def __post_init__(self) -> None:
        if self.reference not in get_args(Reference):
            legal = " or ".join(map(repr, get_args(Reference)))
            raise OptionError(f"{type(self).__name__}: reference must be {legal}, got {self.reference!r}.")

    def velocity_rates(self, motion: Motion) -> ca.MX:
        """The rates v' of all coordinates."""
        return motion.a

    def closure(self, motion: Motion) -> ca.MX:
        """Equations for the accelerations and multipliers."""
        return motion.index1(-motion.gamma)

    def constraint(self, motion: Motion) -> list[tuple[str, ca.MX]]:  # noqa: ARG002 - for those that keep constraints
        """Named equations without accelerations and multipliers."""
        return []


@dataclass(frozen=True)
class Unconstrained(Formulation):
    """``M a = F``: an ODE, for mechanisms without constraints."""


@dataclass(frozen=True)
class Penalty(Formulation):
    """The penalty ODE: a spring and damper for every constraint.

    ``(M + Phi_q^T alpha Phi_q) a = F - Phi_q^T alpha (gamma + 2 xi omega Phi' + omega^2 Phi)``, and the estimates
    ``lambda* = alpha (Phi'' + 2 xi omega Phi' + omega^2 Phi)`` of the multipliers (Corner, Sandu and Sandu 2019,
    eq. 40; 2020, eq. 29 to 31). The constraints hold up to O(1/alpha), and so do the results. It is solved in the
    equivalent form ``M a + Phi_q^T lambda* = F``, ``Phi'' + 2 xi omega Phi' + omega^2 Phi = lambda* / alpha``, which
    loses no digits for large alpha.

    Parameters
    ----------
    alpha : float or expression in parameters
        Penalty, in units of mass; large compared with the masses.
    xi : float or expression
        Damping ratio of the constraints.
    omega : float or expression
        Their natural frequency, in 1/time.
    """

    alpha: Any = 1e7
    xi: Any = 1.0
    omega: Any = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checked("Penalty", "alpha", self.alpha, positive=True)
        checked("Penalty", "xi", self.xi, positive=False)
        checked("Penalty", "omega", self.omega, positive=False)

    def closure(self, motion: Motion) -> ca.MX:
        """Equations for the accelerations and estimates of the multipliers."""
        damped = motion.gamma + 2 * self.xi * self.omega * motion.velocity + self.omega**2 * motion.phi
        return motion.index1(-damped, compliance=1 / self.alpha)


@dataclass(frozen=True)
class Index1(Formulation):
    """Constraints on accelerations: an ODE, because the accelerations and multipliers are eliminated.

    ``M a + Phi_q^T lambda = F``, ``Phi'' + 2 xi omega Phi' + omega^2 Phi = 0`` (Corner, Sandu and Sandu 2020, eq. 32,
    with Baumgarte's stabilisation). Without stabilisation, positions and velocities drift from the constraints by the
    size of the tolerance.

    Parameters
    ----------
    xi : float or expression in parameters
        Damping ratio of the stabilisation.
    omega : float or expression
        Its frequency, in 1/time; 0 (default) means no stabilisation.
    """

    xi: Any = 1.0
    omega: Any = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checked("Index1", "xi", self.xi, positive=False)
        checked("Index1", "omega", self.omega, positive=False)

    def closure(self, motion: Motion) -> ca.MX:
        """Equations for the accelerations and multipliers."""
        pull = 2 * self.xi * self.omega * motion.velocity + self.omega**2 * motion.phi
        return motion.index1(-motion.gamma - pull)


@dataclass(frozen=True)
class Index2(Formulation):
    """Constraints on velocities and, by Gear, Gupta and Leimkuhler, on positions: Hessenberg index 2.

    ``q' = v + Phi_q^T mu``, ``M v' + Phi_q^T lambda = F``, ``0 = Phi``, ``0 = Phi_q v + Phi_t``; mu is zero up to
    integration errors. The state is projected onto the constraints, to rounding wherever it is reported.

    Parameters
    ----------
    positions : bool
        Enforce the constraints on positions too (default). Otherwise positions drift by the size of the tolerance.
    """

    positions: bool = True

    def velocity_rates(self, motion: Motion) -> ca.MX:
        """The rates v' of all coordinates for given multipliers."""
        return motion.rates

    def closure(self, motion: Motion) -> ca.MX:
        """Equations for the accelerations; multipliers follow from the constraints."""
        return motion.balance

    def constraint(self, motion: Motion) -> list[tuple[str, ca.MX]]:
        """Constraints on positions and velocities."""
        return [*(motion.named() if self.positions else []), *motion.named(rates=True)]


@dataclass(frozen=True)
class Reduced(Formulation):
    """Coordinate partitioning: velocities of independent coordinates are integrated, the others follow from them.

    With a matrix B that selects independent coordinates, ``w = B v`` are the states, ``w' = B a``, and v solves
    ``Phi_q v + Phi_t = 0``, ``B v = w`` (Wehage and Haug 1982; Corner, Sandu and Sandu 2020, section 3.4 and eq. 39).
    Dependent positions are integrated and projected onto ``Phi = 0`` by Newton's method with fixed independent
    positions, to rounding wherever they are reported. Velocities satisfy their constraints at all times.

    Parameters
    ----------
    independent : sequence of coordinates, optional
        Independent coordinates, for the modes with as many degrees of freedom. By default pivoting selects them at the
        start and at every change of mode, and again, at an additional event named ``"<mode>: coordinates"``, when
        ``det(Phi_q,dep)^2 / det(Phi_q Phi_q^T)`` falls to a tenth of its value at the selection.
    """

    independent: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.independent, str | ca.MX):
            raise OptionError("Reduced: independent must be a sequence of coordinates.")
        object.__setattr__(self, "independent", tuple(self.independent))

    def constraint(self, motion: Motion) -> list[tuple[str, ca.MX]]:
        """Constraints on positions."""
        return motion.named()


@dataclass(frozen=True)
class ALI3P(Formulation):
    """Augmented Lagrangian index-3 formulation with velocity and acceleration projections, for ``adapter="ali3p"``.

    Positions satisfy their constraints at every step; velocities and accelerations are projected onto theirs with the
    penalty varsigma alpha (Lopez Varela, Dopico and Luaces 2023, eq. 9 to 11, without iterations of the projections).
    Results contain the multipliers ``lambda + kappa``, which balance the projected accelerations.
    Other adapters integrate the accelerations of `Index1` without stabilisation.

    Parameters
    ----------
    alpha : float
        Penalty. The multipliers are iterated to convergence, so that only the projections depend on it.
    varsigma : float
        Weight of the projections; 0 leaves them out. Accelerations of the trapezoidal rule then oscillate, and do not
        converge after an event.
    projection : matrix or None
        P, symmetric and positive definite, an expression in positions, time and parameters; None (default) is the mass
        matrix. Any other matrix reduces the order of the trapezoidal and generalised-alpha rules to one.
    newmark : (beta, gamma)
        Parameters of ``method="newmark"``.
    spectral_radius : float
        High-frequency spectral radius of ``method="generalized-alpha"``, between 0 and 1 (Chung and Hulbert 1993).
    """

    alpha: float = 1e9
    varsigma: float = 1.0
    projection: Any = None
    newmark: tuple[float, float] = (0.3025, 0.6)
    spectral_radius: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("alpha", "varsigma"):
            if isinstance(value := getattr(self, name), ca.MX):
                raise OptionError(f"ALI3P: {name} must be a positive number, got an expression.")
            checked("ALI3P", name, value, positive=name == "alpha")
        checked("ALI3P", "spectral_radius", self.spectral_radius, positive=False)
        if self.spectral_radius > 1:
            raise OptionError(f"ALI3P: spectral_radius must be at most 1, got {self.spectral_radius!r}.")
        if not isinstance(self.newmark, tuple) or len(self.newmark) != 2:
            raise OptionError(f"ALI3P: newmark must be a pair of numbers, beta and gamma, got {self.newmark!r}.")
        for name, value in zip(("beta", "gamma"), self.newmark, strict=True):
            checked("ALI3P", f"{name} of newmark", value, positive=True)
        beta, gamma = self.newmark
        if not (gamma >= 0.5 and 2 * beta >= gamma):
            raise OptionError(f"ALI3P: newmark needs 2 beta >= gamma >= 1/2 for stability, got {self.newmark!r}.")

    def closure(self, motion: Motion) -> ca.MX:
        """Equations for the accelerations and multipliers, which initial values and events satisfy."""
        return motion.saddle_point(-motion.gamma)

    def velocity_rates(self, motion: Motion) -> ca.MX:
        """The rates v' of all coordinates."""
        return motion.a
