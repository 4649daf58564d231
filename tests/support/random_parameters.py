"""Models whose functional is a closed form of the parameters, for tests of uncertainty."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import casadi as ca

import dae_hybrid as dh

#: a time span and tolerances for runs that only evaluate a functional
SPAN: tuple[float, float] = (0.0, 1.0)
TIGHT: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}


def closed_form(nominal: Mapping[str, Any], of: Callable[..., Any]) -> dh.HybridSystem:
    """A system whose functional "G" at the end of SPAN is a function of the parameters, by their names."""
    m = dh.HybridModel("closed form")
    parameters = {name: m.parameter(name, value) for name, value in nominal.items()}
    unit = m.differential("unit")
    m.initial(m.mode("run", ode={unit: 1.0}), {unit: 0.0})
    m.functional("G", terminal=unit * of(**parameters))  # unit = 1 at the end
    return m.build()


def ishigami(a: float = 7.0, b: float = 0.1) -> dh.HybridSystem:
    """The function of Ishigami and Homma (1990)."""
    return closed_form(
        {"x": 0.0, "y": 0.0, "z": 0.0}, lambda x, y, z: ca.sin(x) + a * ca.sin(y) ** 2 + b * z**4 * ca.sin(x)
    )


def ball() -> dh.HybridSystem:
    """A bouncing ball: the height at the end is continuous in the restitution, the velocity jumps with it."""
    m = dh.HybridModel("ball")
    g, e, h = m.parameter("g", 9.81), m.parameter("e", 0.8), m.parameter("h", 1.0)
    y, v = m.differential("y"), m.differential("v")
    flight = m.mode("flight", ode={y: v, v: -g})
    m.transition(flight, flight, guard=y, direction="falling", reset={v: -e * v}, name="bounce")
    m.initial(flight, {y: h, v: 0.0})
    m.functional("height", terminal=y)
    m.functional("speed", terminal=v)
    return m.build()


def fragile() -> dh.HybridSystem:
    """y' = sqrt(a - 1/2): runs fail for a < 1/2."""
    m = dh.HybridModel("fragile")
    a, y = m.parameter("a", 1.0), m.differential("y")
    b = m.parameter("b", 1.0)
    m.initial(m.mode("run", ode={y: ca.sqrt(a - 0.5) * b}), {y: 0.0})
    m.functional("G", terminal=y)
    return m.build()


def crossings(
    random: Mapping[str, Any], places: Mapping[str, float], slopes: Any, jumps: Mapping[str, Any]
) -> dh.HybridSystem:
    """A functional "G" of k that has kinks at some places and jumps at others.

    Its slope before the i-th place is the i-th of `slopes`; `jumps` are functions of the further random parameters, by
    the names of the places.
    """
    m = dh.HybridModel("crossings")
    k = m.parameter("k", 1.0)
    others = [m.parameter(name, value) for name, value in random.items()]
    th, y = m.differential("th"), m.differential("y")
    modes = [m.mode(f"m{i}", ode={th: k, y: slope * k}) for i, slope in enumerate(slopes)]
    for i, (name, place) in enumerate(places.items()):
        reset = {y: y + jumps[name](*others)} if name in jumps else {}
        m.transition(modes[i], modes[i + 1], guard=th - place, direction="rising", reset=reset, name=name)
    m.initial(modes[0], {th: 0.0, y: 0.0})
    m.functional("G", terminal=y)
    return m.build()
