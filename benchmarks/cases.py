"""The problems of `run.py`, stated once, for every peer: numbers, equations, exact values.

A problem is a state x that flows, constants m that change at events only (mode and memory), and one guard that falls
through zero:

    x' = rate(t, x, m, p),    an event where guard(t, x, m, p) falls to 0,    (x, m) <- jump(t, x, m, p),

and its result is either the integral of `cost(t, x, m, p)` or, where `terminal` is set, cost at the end. Equations take
sequences of scalars and a namespace `ns` with sin, exp and sinh, so that NumPy, CasADi and JAX read the same text.

This module imports nothing but the standard library: a peer may live in an interpreter without the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import pi
from typing import Any

Vector = Sequence[Any]


@dataclass(frozen=True)
class Case:
    """A problem with its exact result.

    Attributes
    ----------
    name, title : str
        Short name, and what it is.
    names, nominal : tuple
        Parameters.
    span : tuple of 2 floats
    x0, m0 : tuple of floats
        State and constants at the start; none of them depends on parameters.
    rate, guard, jump, cost : callable
        ``rate(ns, t, x, m, p)`` and so on; `jump` returns the pair (x, m) after the event.
    terminal : bool
        Whether the result is the cost at the end instead of its integral.
    stiff : bool
        Whether it wants an implicit method.
    value, gradient, events
        Exact result, its derivatives by the parameters, and the number of events.
    source : str
        Who says so.
    """

    name: str
    title: str
    names: tuple[str, ...]
    nominal: tuple[float, ...]
    span: tuple[float, float]
    x0: tuple[float, ...]
    m0: tuple[float, ...]
    rate: Callable[[Any, Any, Vector, Vector, Vector], list[Any]]
    guard: Callable[[Any, Any, Vector, Vector, Vector], Any]
    jump: Callable[[Any, Any, Vector, Vector, Vector], tuple[list[Any], list[Any]]]
    cost: Callable[[Any, Any, Vector, Vector, Vector], Any]
    value: float
    gradient: tuple[float, ...]
    events: int
    source: str
    terminal: bool = False
    stiff: bool = False


# -- P1: a hybrid ODE (Serban and Recuero 2019, section 5.1); m = (s), s = 1 below the threshold, -1 above ------------


def _threshold(x: Any, p: Any) -> Any:
    return ((x - 5) * x + 7) * x - p


P1 = Case(
    "P1",
    "hybrid ODE",
    names=("p",),
    nominal=(2.9,),
    span=(0.0, 5.0),
    x0=(0.0,),
    m0=(1.0,),
    # 4 - x below, 10 - 2 x above
    rate=lambda ns, t, x, m, p: [7 - 1.5 * x[0] + m[0] * (0.5 * x[0] - 3)],
    guard=lambda ns, t, x, m, p: -m[0] * _threshold(x[0], p[0]),
    jump=lambda ns, t, x, m, p: ([x[0]], [-m[0]]),
    cost=lambda ns, t, x, m, p: x[0],
    value=20.029074653359594,
    gradient=(-2.31195310744389051551053307446,),
    events=3,
    source="closed form",
)

# -- P2: an oscillator on hysteretic material (the same, section 5.2); m = (xi, u*, z*) -------------------------------


def stress(ns: Any, u: Any, m: Vector, p: Vector) -> Any:
    """The law of the material, see problems/em_hysteresis.py."""
    ka, kb, alpha, beta = (p[i] for i in range(4))
    c = m[0] * (ka - kb) / (2 * alpha)

    def limit(w: Any) -> Any:
        return -2 * beta * w + 2 * ns.sinh(beta * w) + kb * w

    return limit(u) + c - ns.exp(-alpha * m[0] * (u - m[1])) * (limit(m[1]) + c - m[2])


def force(ns: Any, t: Any) -> Any:
    """The load of P2."""
    return 0.5 * t * ns.sin(2 * pi * t)


P2 = Case(
    "P2",
    "hysteretic oscillator (EM)",
    names=("ka", "kb", "alpha", "beta"),
    nominal=(32 * pi**2, pi**2, 205.0, 0.0),
    span=(0.0, 10.0),
    x0=(0.0, 0.0),
    m0=(1.0, 0.0, 0.0),
    rate=lambda ns, t, x, m, p: [x[1], force(ns, t) - stress(ns, x[0], m, p)],
    guard=lambda ns, t, x, m, p: m[0] * x[1],
    jump=lambda ns, t, x, m, p: ([x[0], x[1]], [-m[0], x[0], stress(ns, x[0], m, p)]),
    cost=lambda ns, t, x, m, p: x[0] ** 2,
    value=0.049939788606382804,
    gradient=(-1.336643883957091555890e-5, 3.266790157646101446010e-3, -1.530224960043961405298e-6, 0.0),
    events=19,
    source="arithmetic with 20 digits",
)

# -- P3: a bouncing ball ----------------------------------------------------------------------------------------------

P3 = Case(
    "P3",
    "bouncing ball",
    names=("e", "g"),
    nominal=(0.8, 9.81),
    span=(0.0, 3.0),
    x0=(1.0, 0.0),
    m0=(),
    rate=lambda ns, t, x, m, p: [x[1], -p[1]],
    guard=lambda ns, t, x, m, p: x[0],
    jump=lambda ns, t, x, m, p: ([x[0], -p[0] * x[1]], []),
    cost=lambda ns, t, x, m, p: x[0],
    value=0.06870746096576572,
    gradient=(1.1638877209850786, -0.00234772681723926),
    events=6,
    source="closed form",
    terminal=True,
)

# -- P4: Robertson's kinetics; y3 is brought back to y1 while y1 is low; m = (s), s = 1 while it is --------------------


def _robertson(x: Vector, m: Vector, p: Vector) -> list[Any]:
    k1, k2, k3, r = (p[i] for i in range(4))
    slow, fast, back, regeneration = k1 * x[0], k2 * x[1] ** 2, k3 * x[1] * x[2], m[0] * r * x[2]
    return [-slow + back + regeneration, slow - back - fast, fast - regeneration]


P4 = Case(
    "P4",
    "Robertson with regeneration",
    names=("k1", "k2", "k3", "r"),
    nominal=(0.04, 3e7, 1e4, 0.2),
    span=(0.0, 200.0),
    x0=(1.0, 0.0, 0.0),
    m0=(0.0,),
    rate=lambda ns, t, x, m, p: _robertson(x, m, p),
    # falls to 0.7, or rises to 0.85
    guard=lambda ns, t, x, m, p: (1 - m[0]) * (x[0] - 0.7) + m[0] * (0.85 - x[0]),
    jump=lambda ns, t, x, m, p: ([x[0], x[1], x[2]], [1 - m[0]]),
    cost=lambda ns, t, x, m, p: x[2] ** 2,
    value=11.05978943678,
    gradient=(101.60181857, 5.11151857e-8, -3.066022732e-4, 2.293684764),
    events=8,
    source="independent runs at tight tolerances, 10 digits",
    stiff=True,
)

CASES = {case.name: case for case in (P1, P2, P3, P4)}

#: problems that only this library states as they are: name -> (module of problems/, functional, title, events)
FORMS = {
    "D1": ("rocket", "load", "rocket, fully implicit equations", 3),
    "D2": ("ball_on_rope", "G", "ball on a rope, index 2", 6),
}
TITLES = {name: case.title for name, case in CASES.items()} | {name: form[2] for name, form in FORMS.items()}
