"""The five-bar mechanism: smooth, with elastic impacts, and with a latch.

Four bars A1, 12, 23, 3B between the fixed points A = (-1/2, 0) and B = (1/2, 0) and the points 1, 2, 3, with two
springs from B to 1 and 2; natural coordinates q = (x1, y1, x2, y2, x3, y3), four constraints, two degrees of freedom.
It starts at rest and falls; point 2 swings about y = -2.3.

``"smooth"``
    no further events.
``"elastic"``
    point 2 hits the ground at y = -2.35: (vx2, vy2)+ = (vx2, -vy2)-, the other velocities follow from the constraints
    (Corner, Sandu and Sandu 2019, eq. 52 and 53; 2020, eq. 38 and 39). Nine impacts in five seconds.
``"newton"``
    the same with Newton's law of restitution, e = 1, which conserves the energy: the rule above does not, because the
    mass matrix couples x2 and y2.
``"latch"``
    the impact is inelastic and the ground holds point 2, which slides in x (2019, Remark 11, eq. 54; 2020, eq. 40),
    until vx2 = 0.

The costs are psi = (integral of |r2 - r20|^2, |r2'|^2, |r2''|^2), with r20 = (0, -2), and
z = (integral of y2', y2'', y2'^2 + y2''^2); for the latch also the force of the ground N and its impulses. They
are vector functionals (those of Serban and Recuero 2019, eq. 7, are scalar): one backward sweep gives all gradients.

The papers specify neither the positions of the springs nor the inertia of bar A1. ``reference/five_bar/README.md``
states the values found by matching the table of Lopez Varela, Dopico and Luaces: the moment of inertia about the centre
of mass is constant when the other properties of A1 change, and the initial angles of bars A1 and 12 do not depend on
the length of A1.

References
----------
S. Corner, C. Sandu, A. Sandu, Modeling and sensitivity analysis methodology for hybrid dynamical system, Nonlinear
Analysis: Hybrid Systems 31, 19-40, 2019.

S. Corner, A. Sandu, C. Sandu, Adjoint sensitivity analysis of hybrid multibody dynamical systems, Multibody System
Dynamics 49, 395-420, 2020.

R. Serban and A. Recuero, Sensitivity Analysis for Hybrid Systems and Systems with Memory, technical report
TR-2019-01, Simulation-Based Engineering Lab, University of Wisconsin-Madison, 2019.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

import casadi as ca
import numpy as np

import dae_hybrid as dh
from dae_hybrid.interface.api import RunOptions
from dae_hybrid.mechanics import Formulation, Mechanism, Point, Restitution, Revolute, VelocityJump
from dae_hybrid.problems._reference import FOLDER, Exact, read_json

if TYPE_CHECKING:
    from dae_hybrid.problems._five_bar_results import FiveBarReproduction

Case = Literal["smooth", "elastic", "newton", "latch"]
CASES: tuple[Case, ...] = ("smooth", "elastic", "newton", "latch")
Coordinates = Literal["natural", "joint"]
type Positions = dict[ca.MX, Any]

t_span = (0.0, 5.0)
tolerances: RunOptions = {"rtol": 1e-10, "atol": 1e-12}
#: parameters of the reference gradients, in their order
PARAMETERS = ("L_s1", "L_s2", "m_A1", "xG_A1", "L_A1")
GROUND = -2.35
DATA = FOLDER / "five_bar" / "reference.json"
#: lengths of all bars except the first, and masses of all bars
LENGTHS = (np.sqrt(13 / 4), np.sqrt(13 / 4), np.sqrt(2))
MASSES = (1.0, 1.5, 1.5, 1.0)


def mechanism(case: Case = "elastic", *, coordinates: Coordinates = "natural", quadratures: bool = False) -> Mechanism:
    """The mechanism in natural coordinates, or in joint coordinates with one loop.

    With `quadratures` the integrals z are states too, ``sol["z1"]`` to ``sol["z3"]``.
    """
    mech = Mechanism("five_bar")
    L_s1 = mech.parameter("L_s1", np.sqrt(5), unit="m", description="natural length of spring B1")
    L_s2 = mech.parameter("L_s2", np.sqrt(17 / 4), unit="m", description="natural length of spring B2")
    m_A1 = mech.parameter("m_A1", MASSES[0], unit="kg", description="mass of bar A1")
    xG_A1 = mech.parameter("xG_A1", np.sqrt(2) / 2, unit="m", description="centre of mass of bar A1, from A")
    L_A1 = mech.parameter("L_A1", np.sqrt(2), unit="m", description="length of bar A1")
    A, B = mech.ground(-0.5, 0.0, "A"), mech.ground(0.5, 0.0, "B")
    bars = _Bars(A, B, L_A1, m_A1, xG_A1)
    one, two, start = (bars.in_joint_coordinates if coordinates == "joint" else bars.in_natural_coordinates)(mech)
    mech.spring(B, one, stiffness=100.0, natural_length=L_s1)
    mech.spring(B, two, stiffness=100.0, natural_length=L_s2)
    mech.gravity(9.81)

    free = mech.mode("free")
    distance = two.y - GROUND
    if case == "elastic":
        bounce = VelocityJump({two.vx: two.vx, two.vy: -two.vy})
        mech.event(free, free, guard=distance, direction="falling", impact=bounce, name="impact")
    elif case == "newton":
        mech.event(free, free, guard=distance, direction="falling", impact=Restitution(1.0), name="impact")
    elif case == "latch":
        latched = mech.mode("latched")
        force = -latched.constraint("ground", distance)
        latch = mech.event(free, latched, guard=distance, direction="falling", name="latch")
        mech.event(latched, free, guard=two.vx, name="release")
        mech.functional("force", integrand=force)
        mech.functional("impulse", at_events={latch: -mech.impulse("ground")})

    positions, guess = start
    mech.initial(free, positions, guess=guess)
    z = (two.vy, two.ay, two.vy**2 + two.ay**2)
    mech.functional(
        "psi",
        integrand=ca.vertcat(two.x**2 + (two.y + 2.0) ** 2, two.vx**2 + two.vy**2, two.ax**2 + two.ay**2),
    )
    mech.functional("z", integrand=ca.vertcat(*z))
    if quadratures:
        for i, rate in enumerate(z, 1):
            mech.state(f"z{i}", rate)
    return mech


@dataclass(frozen=True)
class _Bars:
    """The four bars: they return points 1 and 2, and the initial positions with a guess of the others."""

    A: Point
    B: Point
    length: ca.MX
    mass: ca.MX
    center: ca.MX
    inertia: float = MASSES[0] * 2 / 12

    def in_natural_coordinates(self, mech: Mechanism) -> tuple[Point, Point, tuple[Positions, Positions]]:
        """Points 1, 2 and 3 with constraints of constant length."""
        one, two, three = (mech.point(name) for name in "123")
        mech.bar(self.A, one, length=self.length, mass=self.mass, center=self.center, inertia=self.inertia)
        ends = ((one, two), (two, three), (self.B, three))
        for (start, end), length, mass in zip(ends, LENGTHS, MASSES[1:], strict=True):
            mech.bar(start, end, length=length, mass=mass)
        along = self.length * np.array([-1.0, -1.0]) / np.sqrt(2)
        given = {one.x: -0.5 + along[0], one.y: along[1], two.x: 1.0 + along[0], two.y: -1.0 + along[1]}
        return one, two, (given, {three.x: 1.5, three.y: -1.0})

    def in_joint_coordinates(self, mech: Mechanism) -> tuple[Point, Point, tuple[Positions, Positions]]:
        """Bodies A1, 12, 23 and B3 with revolute joints, cut at point 3."""
        rods = [
            {"mass": mass, "center": (length / 2, 0), "inertia": mass * length**2 / 12}
            for mass, length in zip(MASSES[1:], LENGTHS, strict=True)
        ]
        first = mech.body("A1", Revolute(self.A), mass=self.mass, center=(self.center, 0), inertia=self.inertia)
        one = first.point(self.length, name="1")
        second = mech.body("12", Revolute(one), **rods[0])
        two = second.point(LENGTHS[0], name="2")
        third = mech.body("23", Revolute(two), **rods[1])
        last = mech.body("B3", Revolute(self.B), **rods[2])
        mech.pin(third.point(LENGTHS[1], name="3"), last.point(LENGTHS[2], name="3"), name="loop")
        angles = -3 * np.pi / 4, np.arctan2(-1, 1.5), np.arctan2(1, 1.5), np.arctan2(-1, 1)
        given = {first.coordinate: angles[0], second.coordinate: angles[1] - angles[0]}
        return one, two, (given, {third.coordinate: angles[2] - angles[1], last.coordinate: angles[3]})


def model() -> dh.HybridModel:
    """The declaration, with elastic impacts."""
    return mechanism().model()


@cache
def system(
    case: Case = "elastic", formulation: Formulation | None = None, coordinates: Coordinates = "natural"
) -> dh.HybridSystem:
    """The built mechanism, cached for every case, formulation and choice of coordinates."""
    return mechanism(case, coordinates=coordinates).build(formulation)


@cache
def reference(case: Case = "elastic") -> Exact:
    """Values and gradients to ten digits or more; NaN if unknown."""
    data = read_json(DATA)
    own, count = data[case], len(data["parameters"])
    names = {"force": ("z4",), "impulse": ("z5",), "psi": ("psi1", "psi2", "psi3"), "z": ("z1", "z2", "z3")}
    known = {key: parts for key, parts in names.items() if all(part in own["functionals"] for part in parts)}

    def row(values: list[float]) -> list[float]:
        return [*values, *[np.nan] * (count - len(values))]

    gradients = {key: [row(own["functionals"][part]["gradient"]) for part in parts] for key, parts in known.items()}
    times = own.get("event_times", [])
    sensitivity = np.full((len(times), count), np.nan)
    for place, values in own.get("event_time_sensitivity", {}).items():
        sensitivity[int(place) - 1] = row(values)
    return Exact(
        values={key: _flat([own["functionals"][part]["value"] for part in parts]) for key, parts in known.items()},
        gradients={key: _flat(rows) for key, rows in gradients.items()},
        event_times=np.array(times),
        event_time_sensitivity=sensitivity,
        final=own.get("final", {}),
        source="quadruple precision, two independent codes",
        accuracy=1e-10,
    )


def _flat(values: Any) -> Any:
    """An array; a number, or one row, for a scalar."""
    return np.array(values, dtype=float) if len(values) > 1 else np.array(values[0], dtype=float)


def printed() -> dict[str, list[str]]:
    """dpsi/drho as Lopez Varela, Dopico and Luaces print it, in the order of the parameters."""
    found: dict[str, list[str]] = read_json(DATA)["printed"]
    return found


def reproduce(name: str, title: str, stage: Callable[[str], None]) -> FiveBarReproduction:
    """Recompute the values of `reference`, forward and adjoint; see `dae_hybrid.report.reproduce`."""
    from dae_hybrid.problems import _five_bar_results as results

    return results.compute(name, title, stage)


def figures(result: FiveBarReproduction) -> Iterator[tuple[str, str, Any]]:
    """The figures of the papers, and an animation."""
    from dae_hybrid.problems import _five_bar_figures as drawing

    return drawing.draw(result)
