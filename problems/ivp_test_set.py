"""Problems of the Test Set for IVP Solvers, stated from their public definitions, with its reference values.

The test set (F. Mazzia, C. Magherini and others, University of Bari, before that CWI Amsterdam) gives for each problem
the equations, the initial and final time, and the solution at the end, computed with tolerances far below those used
here. `PROBLEMS` contains them by name; circuits are in `ivp_circuits`, the water tubes in `ivp_tubes`.

References
----------
F. Mazzia and C. Magherini, Test Set for Initial Value Problem Solvers, release 2.4, Department of Mathematics,
University of Bari, 2008. Definitions and reference values are taken from the sources of the R package deTestSet (K.
Soetaert, J. Cash, F. Mazzia), those of Chemical Akzo Nobel in the test set's own Fortran file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dae_hybrid as dh
from dae_hybrid.problems import ivp_circuits, ivp_tubes


@dataclass(frozen=True)
class IvpProblem:
    """A problem with the final values of its solution.

    Attributes
    ----------
    title : str
        Its name in the test set.
    kind : str
        Kind of equations: a stiff ODE, an index-1 DAE, ...
    model : callable
        The declaration, with a functional ``G``.
    end : float
        Final time; the initial time is zero.
    reference : dict of str to float
        Final values, by labels of entries: ``"y"``, ``"y[0]"``.
    source : str
        Author and accuracy.
    floor : float
        Ratio of the absolute to the relative tolerance, for the run and for the digits.
    wrt : tuple of str
        Parameters of the gradient; empty if the problem has no natural parameter.
    """

    title: str
    kind: str
    model: Callable[[], dh.HybridModel]
    end: float
    reference: dict[str, float]
    source: str
    floor: float = 1e-2
    wrt: tuple[str, ...] = ()

    def tolerances(self, rtol: float) -> dict[str, float]:
        """Relative and absolute tolerance."""
        return {"rtol": rtol, "atol": rtol * self.floor}

    def digits(self, found: dict[str, float]) -> float:
        """Correct digits of the worst entry: the test set's mixed error, relative to `floor` plus the value."""
        error = max(abs(found[k] - v) / (self.floor + abs(v)) for k, v in self.reference.items())
        return float(-np.log10(max(error, 1e-16)))


def final(trajectory: dh.Trajectory) -> dict[str, float]:
    """Final values of a run, by label."""
    values: dict[str, float] = {}
    for name in trajectory.names:
        last = np.atleast_1d(trajectory[name][-1])
        values |= {name if last.size == 1 else f"{name}[{i}]": float(v) for i, v in enumerate(last)}
    return values


def numbered(name: str, values: NDArray[np.float64] | list[float]) -> dict[str, float]:
    """Entries of a vector by label."""
    return {f"{name}[{i}]": float(v) for i, v in enumerate(values)}


def reactions(
    name: str, start: dict[int, float], size: int, rates: Callable[[Any, dict[str, Any]], list[Any]], **constants: float
) -> dh.HybridModel:
    """A model y' = rates(y, constants), whose constants are parameters."""
    m = dh.HybridModel(name)
    k = {key: m.parameter(key, value) for key, value in constants.items()}
    y = m.differential("y", size=size)
    run = m.mode("run", ode={y: rates(y, k)})
    first = np.zeros(size)
    first[list(start)] = list(start.values())
    m.initial(run, {y: first})
    m.functional("G", terminal=y[0])
    return m


def hires() -> dh.HybridModel:
    """High irradiance responses of photomorphogenesis (Schaefer 1975): 8 reactions in a chain."""

    def rates(y: Any, k: dict[str, Any]) -> list[Any]:
        bound = k["k7"] * y[5] * y[7]
        lost = (k["k2"] + k["k8"] + k["k9"]) * y[6]
        return [
            -k["k1"] * y[0] + k["k2"] * y[1] + k["k6"] * y[2] + k["oks"],
            k["k1"] * y[0] - (k["k2"] + k["k3"]) * y[1],
            -(k["k6"] + k["k1"]) * y[2] + k["k2"] * y[3] + k["k5"] * y[4],
            k["k3"] * y[1] + k["k1"] * y[2] - (k["k4"] + k["k2"]) * y[3],
            -(k["k5"] + k["k1"]) * y[4] + k["k2"] * (y[5] + y[6]),
            -bound + k["k8"] * (y[3] + y[6]) + k["k1"] * y[4] - k["k2"] * y[5],
            bound - lost,
            lost - bound,
        ]

    return reactions(
        "hires", {0: 1.0, 7: 0.0057}, 8, rates,
        k1=1.71, k2=0.43, k3=8.32, k4=0.69, k5=0.035, k6=8.32, k7=280.0, k8=0.69, k9=0.69, oks=0.0007,
    )  # fmt: skip


def robertson() -> dh.HybridModel:
    """An autocatalytic reaction (Robertson 1966), over eleven decades of time."""

    def rates(y: Any, k: dict[str, Any]) -> list[Any]:
        slow, fast, back = k["k1"] * y[0], k["k2"] * y[1] ** 2, k["k3"] * y[1] * y[2]
        return [back - slow, slow - back - fast, fast]

    return reactions("robertson", {0: 1.0}, 3, rates, k1=0.04, k2=3e7, k3=1e4)


def oregonator() -> dh.HybridModel:
    """The Belousov-Zhabotinskii reaction (Field and Noyes 1974): relaxation oscillations."""

    def rates(y: Any, k: dict[str, Any]) -> list[Any]:
        return [
            k["s"] * (y[1] + y[0] * (1 - k["q"] * y[0] - y[1])),
            (y[2] - (1 + y[0]) * y[1]) / k["s"],
            k["w"] * (y[0] - y[2]),
        ]

    return reactions("oregonator", {0: 1.0, 1: 2.0, 2: 3.0}, 3, rates, s=77.27, q=8.375e-6, w=0.161)


def pollution() -> dh.HybridModel:
    """25 reactions of 20 substances in the air (Verwer 1994)."""
    constants = [
        0.35, 26.6, 1.23e4, 8.6e-4, 8.2e-4, 1.5e4, 1.3e-4, 2.4e4, 1.65e4, 9e3, 0.022, 1.2e4, 1.88, 1.63e4, 4.8e6,
        3.5e-4, 0.0175, 1e8, 4.44e11, 1.24e3, 2.1, 5.78, 0.0474, 1.78e3, 3.12,
    ]  # fmt: skip
    # reactants (once each) and products of each reaction, by substance number
    table: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
        ((1,), (2, 3)), ((2, 4), (1,)), ((5, 2), (6, 1)), ((7,), (5, 5, 8)), ((7,), (8,)), ((7, 6), (5, 8)),
        ((9,), (5, 8, 10)), ((9, 6), (11,)), ((11, 2), (1, 10, 12)), ((11, 1), (13,)), ((13,), (11, 1)),
        ((10, 2), (14, 1)), ((14,), (7, 5)), ((1, 6), (15,)), ((3,), (4,)), ((4,), (16,)), ((4,), (3,)),
        ((16,), (6, 6)), ((16,), (3,)), ((17, 6), (18, 5)), ((19,), (2,)), ((19,), (1, 3)), ((1, 4), (19,)),
        ((19, 1), (20,)), ((20,), (19, 1)),
    ]  # fmt: skip

    def rates(y: Any, k: dict[str, Any]) -> list[Any]:
        sums: list[Any] = [0.0] * 20
        for (used, made), constant in zip(table, k.values(), strict=True):
            rate = constant
            for i in used:
                rate = rate * y[i - 1]
            for i in used:
                sums[i - 1] -= rate
            for i in made:
                sums[i - 1] += rate
        return sums

    start = {1: 0.2, 3: 0.04, 6: 0.1, 7: 0.3, 8: 0.01, 16: 0.007}
    return reactions("pollution", start, 20, rates, **{f"k{i}": value for i, value in enumerate(constants, 1)})


def van_der_pol() -> dh.HybridModel:
    """mu = 1000: a slow drift with a jump at either end."""
    m = dh.HybridModel("van der pol")
    mu, x, v = m.parameter("mu", 1000.0), m.differential("x"), m.differential("v")
    m.initial(m.mode("run", ode={x: v, v: mu * (1 - x**2) * v - x}), {x: 2.0, v: 0.0})
    m.functional("G", terminal=x)
    return m


def pleiades() -> dh.HybridModel:
    """Seven stars in a plane with masses 1 to 7 (Hairer, Norsett and Wanner), with close encounters."""
    m = dh.HybridModel("pleiades")
    mass = [m.parameter(f"m{i}", float(i)) for i in range(1, 8)]
    x, y, u, v = (m.differential(name, size=7) for name in "xyuv")
    du: list[Any] = [0.0] * 7
    dv: list[Any] = [0.0] * 7
    for i in range(7):
        for j in range(7):
            if i != j:
                cubed = ((x[i] - x[j]) ** 2 + (y[i] - y[j]) ** 2) ** 1.5
                du[i] += mass[j] * (x[j] - x[i]) / cubed
                dv[i] += mass[j] * (y[j] - y[i]) / cubed
    run = m.mode("run", ode={x: u, y: v, u: du, v: dv})
    start = {
        x: [3.0, 3.0, -1.0, -3.0, 2.0, -2.0, 2.0], y: [3.0, -3.0, 2.0, 0.0, 0.0, -4.0, 4.0],
        u: [0.0, 0.0, 0.0, 0.0, 0.0, 1.75, -1.5], v: [0.0, 0.0, 0.0, -1.25, 1.0, 0.0, 0.0],
    }  # fmt: skip
    m.initial(run, start)
    m.functional("G", terminal=x[0])
    return m


def akzo_nobel() -> dh.HybridModel:
    """Two species and carbon dioxide mixed (Stortelder 1998): the last concentration is in equilibrium."""
    m = dh.HybridModel("chemical akzo nobel")
    k = [m.parameter(f"k{i}", value) for i, value in enumerate((18.7, 0.58, 0.09, 0.42), 1)]
    inflow, equilibrium = m.parameter("klA", 3.3), m.parameter("Ks", 115.83)
    y, z = m.differential("y", size=5), m.algebraic("z", guess=0.36)
    r1 = k[0] * y[0] ** 4 * np.sqrt(y[1])
    r2, r3 = k[1] * y[2] * y[3], k[1] / 34.4 * y[0] * y[4]
    r4, r5 = k[2] * y[0] * y[3] ** 2, k[3] * z**2 * np.sqrt(y[1])
    rates = [
        -2 * r1 + r2 - r3 - r4, -r1 / 2 - r4 - r5 / 2 + inflow * (0.9 / 737 - y[1]), r1 - r2 + r3,
        -r2 + r3 - 2 * r4, r2 - r3 + r5,
    ]  # fmt: skip
    run = m.mode("run", ode={y: rates}, algebraic=[equilibrium * y[0] * y[3] - z])
    m.initial(run, {y: [0.444, 0.00123, 0.0, 0.007, 0.0]})
    m.functional("G", terminal=y[2], integrand=z)
    return m


def car_axis() -> dh.HybridModel:
    """A car on a bumpy road (Schneider 1994): two points on springs at a fixed distance, here with index 2.

    The velocities satisfy the derivatives of the two constraints, and two more multipliers keep the positions on the
    constraints themselves (Gear, Gupta and Leimkuhler).
    """
    m = dh.HybridModel("car axis")
    length, rest, height, omega, t = 1.0, 0.5, 0.1, 10.0, m.time
    mass, gravity = m.parameter("M", 10.0), m.parameter("g", 1.0)
    k = mass * 1e-4 / 2
    q, v = m.differential("q", size=4), m.differential("v", size=4)
    force, shift = m.algebraic("force", size=2), m.algebraic("shift", size=2)
    yb = height * np.sin(omega * t)
    xb = np.sqrt(length**2 - yb**2)
    dyb = height * omega * np.cos(omega * t)
    dxb = -yb * dyb / xb
    left, right = np.sqrt(q[0] ** 2 + q[1] ** 2), np.sqrt((q[2] - xb) ** 2 + (q[3] - yb) ** 2)
    dx, dy = q[0] - q[2], q[1] - q[3]

    def along(multipliers: Any) -> list[Any]:
        one, two = multipliers[0], multipliers[1]
        return [one * xb + 2 * two * dx, one * yb + 2 * two * dy, -2 * two * dx, -2 * two * dy]

    spring = [
        (rest - left) * q[0] / left, (rest - left) * q[1] / left,
        (rest - right) * (q[2] - xb) / right, (rest - right) * (q[3] - yb) / right,
    ]  # fmt: skip
    weight, kept, pushed = [0.0, -k * gravity, 0.0, -k * gravity], along(shift), along(force)
    run = m.mode(
        "run",
        ode={
            q: [v[i] + kept[i] for i in range(4)],
            v: [(spring[i] + pushed[i] + weight[i]) / k for i in range(4)],
        },
        constraint=[
            xb * q[0] + yb * q[1],
            dx**2 + dy**2 - length**2,
            xb * v[0] + yb * v[1] + dxb * q[0] + dyb * q[1],
            dx * (v[0] - v[2]) + dy * (v[1] - v[3]),
        ],
    )
    m.initial(run, {q: [0.0, rest, length, rest], v: [-rest / length, 0.0, -rest / length, 0.0]})
    m.functional("G", terminal=q[1])
    return m


PROBLEMS = {
    "hires": IvpProblem(
        "HIRES", "stiff ODE", hires, 321.8122,
        numbered("y", [
            0.7371312573325668e-3, 0.1442485726316185e-3, 0.5888729740967575e-4, 0.1175651343283149e-2,
            0.2386356198831331e-2, 0.6238968252742796e-2, 0.2849998395185769e-2, 0.2850001604814231e-2,
        ]),
        "RADAU5, true double precision of a Cray C90, tolerance 1.1e-18", 1e-4, ("k7", "oks"),
    ),
    "robertson": IvpProblem(
        "ROBER", "stiff ODE", robertson, 1e11,
        numbered("y", [0.2083340149701255e-7, 0.8333360770334713e-13, 0.9999999791665050]),
        "values of the test set as deTestSet has them, 16 digits", 1e-8, ("k1", "k2", "k3"),
    ),
    "oregonator": IvpProblem(
        "OREGO", "stiff ODE", oregonator, 360.0,
        numbered("y", [0.1000814870318523e1, 0.1228178521549917e4, 0.1320554942846706e3]),
        "values of the test set as deTestSet has them, 16 digits", 1e-2, ("s", "w"),
    ),
    "pollution": IvpProblem(
        "Pollution", "stiff ODE", pollution, 60.0,
        numbered("y", [
            0.5646255480022769e-1, 0.1342484130422339, 0.4139734331099427e-8, 0.5523140207484359e-2,
            0.2018977262302196e-6, 0.1464541863493966e-6, 0.7784249118997964e-1, 0.3245075353396018,
            0.7494013383880406e-2, 0.1622293157301561e-7, 0.1135863833257075e-7, 0.2230505975721359e-2,
            0.2087162882798630e-3, 0.1396921016840158e-4, 0.8964884856898295e-2, 0.4352846369330103e-17,
            0.6899219696263405e-2, 0.1007803037365946e-3, 0.1772146513969984e-5, 0.5682943292316392e-4,
        ]),
        "RADAU5, true double precision of a Cray C90, tolerance 1.1e-18", 1e-4, ("k1", "k2", "k15"),
    ),
    "van_der_pol": IvpProblem(
        "VDPOL", "stiff ODE", van_der_pol, 2000.0,
        {"x": 1.706167732170469, "v": -0.8928097010248125e-3},
        "values of the test set as deTestSet has them, 16 digits", 1e-4, ("mu",),
    ),
    "pleiades": IvpProblem(
        "Pleiades", "ODE", pleiades, 3.0,
        numbered("x", [0.3706139143970502, 3.237284092057233, -3.222559032418324, 0.6597091455775310,
                       0.3425581707156584, 1.562172101400631, -0.7003092922212495])
        | numbered("y", [-3.943437585517392, -3.271380973972550, 5.225081843456543, -2.590612434977470,
                         1.198213693392275, -0.2429682344935824, 1.091449240428980])
        | numbered("u", [3.417003806314313, 1.354584501625501, -2.590065597810775, 2.025053734714242,
                         -1.155815100160448, -0.8072988170223021, 0.5952396354208710])
        | numbered("v", [-3.741244961234010, 0.3773459685750630, 0.9386858869551073, 0.3667922227200571,
                         -0.3474046353808490, 2.344915448180937, -1.947020434263292]),
        "PSIDE, Cray double precision, tolerance 1e-16", 1e-2, ("m1", "m7"),
    ),
    "akzo_nobel": IvpProblem(
        "Chemical Akzo Nobel", "index 1", akzo_nobel, 180.0,
        numbered("y", [0.1150794920661702, 0.1203831471567715e-2, 0.1611562887407974, 0.3656156421249283e-3,
                       0.1708010885264404e-1]) | {"z": 0.4873531310307455e-2},
        "PSIDE, true double precision of a Cray C90, tolerance 1e-19", 1e-4, ("k1", "klA", "Ks"),
    ),
    "car_axis": IvpProblem(
        "Car axis", "index 2, stabilised", car_axis, 3.0,
        numbered("q", [0.493455784275402809122e-1, 0.496989460230171153861, 0.104174252488542151681e1,
                       0.373911027265361256927])
        | numbered("v", [-0.770583684040972357970e-1, 0.744686658723778553466e-2, 0.175568157537232222276e-1,
                         0.770341043779251976443])
        | {"force[0]": -0.473688659084893324729e-2, "force[1]": -0.110468033125734368808e-2},
        "values of the test set as deTestSet has them, 21 digits", 1e-2, ("M", "g"),
    ),
    "water_tubes": IvpProblem(
        "Water tubes", "index 2, 18 switches", ivp_tubes.water_tubes, 61_200.0,
        numbered("phi", [
            0.2298488296477430e-2, 0.1188984650746585e-2, 0.1109503645730845e-2, 0.1589620100314825e-3,
            0.1030022640715102e-2, 0.8710606306836165e-3, 0.3243571480903489e-2, 0.1109503645730845e-2,
            0.7120986206521341e-3, 0.6414613963833099e-3, 0.9416978549524347e-3, 0.3403428519096511e-2,
            0.2397639310739395e-2, 0.2397639310739395e-2, 0.3348581430454180e-2, 0.1353560017035444e-2,
            0.1995021413418736e-2, 0.5746220741193575e-2,
        ])
        | numbered("lambda", [
            0.4751940452918529e-1, 0.4751940452918529e-1, 0.4751940452918529e-1, 0.4751940452918529e-1,
            0.4751940452918529e-1, 0.4751940452918529e-1, 0.4311196778792902e-1, 0.4751940452918529e-1,
            0.4751940452918529e-1, 0.4751940452918529e-1, 0.4751940452918529e-1, 0.4249217433601160e-1,
            0.4732336439609648e-1, 0.4732336439609648e-1, 0.4270002118868241e-1, 0.4751940452918529e-1,
            0.4751940452918529e-1, 0.3651427026675656e-1,
        ])
        | numbered("p_tank", [0.1111268591478108e6, 0.1111270045592387e6])
        | numbered("p", [
            0.1111271078730254e6, 0.1111269851929858e6, 0.1111269255355337e6, 0.1111269322658045e6,
            0.1111269221703983e6, 0.1111270121140691e6, 0.1111274419515807e6, 0.1111255158881087e6,
            0.1111278793439227e6, 0.1111270995171642e6, 0.1111298338971779e6,
        ]),
        "values of the test set as deTestSet has them, 16 digits", 1e-4, ("nu", "k", "b"),
    ),
    "transistor": IvpProblem(
        "Transistor amplifier", "index 1", ivp_circuits.transistor_amplifier, 0.2,
        {
            "U1": -0.5562145012262709e-2, "U2": 3.006522471903042, "U3": 2.849958788608128, "U4": 2.926422536206241,
            "U5": 2.704617865010554, "U6": 2.761837778393145, "U7": 4.770927631616772, "U8": 1.236995868091548,
        },
        "PSIDE, Cray double precision, tolerance 1e-14", 1e-2, ("ub", "alpha", "beta"),
    ),
    "ring_modulator": IvpProblem(
        "Ring modulator", "stiff ODE", ivp_circuits.ring_modulator, 1e-3,
        numbered("U", [-0.2339057358486745e-1, -0.7367485485540825e-2, 0.2582956709291169, -0.4064465721283450,
                       -0.4039455665149794, 0.2607966765422943, 0.1106761861269975])
        | numbered("I", [0.2939904342435596e-6, -0.2840029933642329e-7, 0.7267198267264553e-3, 0.7929487196960840e-3,
                         -0.7255283495698965e-3, -0.7941401968526521e-3, 0.7088495416976114e-4,
                         0.2390059075236570e-4]),
        "RADAU, tolerance 1e-12", 1e-2,
    ),
}  # fmt: skip
