"""Jumps that no relation shows are events: u/|u|, the cut of atan2, poles inside atan, the ends of B-splines."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh

TIGHT = {"rtol": 1e-9, "atol": 1e-11}
PI = math.pi
TABLE = ca.interpolant("table", "bspline", [[0.0, 1.0, 2.0, 3.0]], [0.0, 1.0, 4.0, 9.0])
PLANE = ca.interpolant("plane", "bspline", [[0.0, 1.0, 2.0, 3.0]] * 2, np.arange(16.0))  # a + 4 b
CURVE = ca.Function.bspline("curve", [[0, 0, 0, 0, 1, 2, 3, 3, 3, 3]], [0, 1 / 3, 1, 2, 8 / 3, 3], [3], 1)  # u
u = ca.MX.sym("u")
#: f(x), its integral from -1 to 4 and its value at 4
JUMPS: dict[str, tuple[Callable[[Any], Any], float, float]] = {
    "a quotient": (lambda x: (x - 0.3) / ca.fabs(x - 0.3), 2.4, 1.0),
    "a force": (lambda x: -2 * (x - 0.3) * 1.5 / ca.fabs(x - 0.3), -7.2, -3.0),
    "a root of a square": (lambda x: (x - 0.3) / ca.sqrt((x - 0.3) ** 2), 2.4, 1.0),
    "a root of a product": (lambda x: (x - 0.3) / ca.sqrt((x - 0.3) * (x - 0.3)), 2.4, 1.0),
    "an inverse": (lambda x: (x - 0.3) * (1 / ca.fabs(x - 0.3)), 2.4, 1.0),
    "the other side": (lambda x: (x - 0.3) / ca.fabs(0.3 - x), 2.4, 1.0),
    "a norm": (lambda x: (x - 0.3) / ca.norm_2(x - 0.3), 2.4, 1.0),
    "a called function": (
        lambda x: (u := ca.SX.sym("u"), ca.Function("drag", [u], [u / ca.fabs(u)]))[1](x - 0.3),
        2.4,
        1.0,
    ),
    "a sum": (lambda x: ((x - 0.3) + 2 * (x - 0.3)) / ca.fabs(x - 0.3), 7.2, 3.0),
    "an angle": (lambda x: ca.atan2(ca.sin(2 * x), ca.cos(2 * x)), 15 - 2 * PI * (4 - PI / 2), 8 - 2 * PI),
    "atan of tan": (lambda x: ca.atan(ca.tan(x)), 7.5 - PI * (4 - PI / 2), 4 - PI),
    "atan of a quotient": (lambda x: ca.atan(ca.sin(x) / ca.cos(x)), 7.5 - PI * (4 - PI / 2), 4 - PI),
    "atan of an inverse": (
        lambda x: ca.atan(1 / (x - 0.3)),
        3.7 * math.atan(1 / 3.7) - 1.3 * math.atan(1 / 1.3) + math.log((1 + 3.7**2) / (1 + 1.3**2)) / 2,
        math.atan(1 / 3.7),
    ),
    "acos of cos": (lambda x: ca.acos(ca.cos(2 * x)), 1 + PI**2 / 2 + (4 - PI) ** 2, 8 - 2 * PI),
    "asin of sin": (
        lambda x: ca.asin(ca.sin(x)),
        PI**2 / 8 - 0.5 + PI * (4 - PI / 2) - (16 - PI**2 / 4) / 2,
        PI - 4,
    ),
    "a spline": (TABLE, 9.0, 0.0),
    "a called spline": (ca.Function("called", [u], [2 * TABLE(u)]), 18.0, 0.0),
    "a mapped spline": (lambda x: ca.sum2(TABLE.map(2)(ca.horzcat(x, x - 10))), 9.0, 0.0),
    "a spline in two": (lambda x: PLANE(ca.vertcat(x, 0.5 * x + 0.75)), 22.5, 0.0),
    "a spline by its knots": (CURVE, 4.5, 0.0),
}
#: jumps of the rate, not of its derivative alone
EVENTS = [name for name in JUMPS if name not in ("acos of cos", "asin of sin")]


def moved_along(function: Callable[[Any], Any], *, integrand: bool = False) -> dh.HybridSystem:
    """x' = p from -1, and G the integral of f(x) over time: dG/dp = -G + 5 f(4) at p = 1."""
    m = dh.HybridModel("hidden")
    p, x, y = m.parameter("p", 1.0), m.differential("x"), m.differential("y")
    run = m.mode("run", ode={x: p, y: 0.0 if integrand else function(x)})
    m.initial(run, {x: -1.0, y: 0.0})
    m.functional("G", **({"integrand": function(x)} if integrand else {"terminal": y}))
    return m.build()


@pytest.mark.parametrize(
    "options", [{}, {"method": "bdf"}, {"adapter": "scipy"}, {"integrand": True}], ids=["", "bdf", "scipy", "integrand"]
)
@pytest.mark.parametrize("name", JUMPS)
def test_derivatives_are_those_of_the_closed_form(name: str, options: dict[str, Any]) -> None:
    function, integral, end = JUMPS[name]
    more = dict(options)
    system = moved_along(function, integrand=more.pop("integrand", False))
    forward = dh.forward_sensitivity(system, (0, 5), **TIGHT, **more)
    adjoint = dh.adjoint_gradient(system, (0, 5), "G", duality=True, **TIGHT, **more)
    assert forward.trajectory.functionals["G"] == pytest.approx(integral, abs=1e-7)
    assert forward.gradient["G"] == pytest.approx(-integral + 5 * end, abs=2e-6)
    assert adjoint.gradient == pytest.approx(-integral + 5 * end, abs=2e-6)
    if name in EVENTS:  # sin 2x has three zeros, a grid two ends
        assert len(forward.trajectory.events) == (3 if name == "an angle" else 2 if "spline" in name else 1)


def test_an_angle_is_that_of_atan2_on_all_sides() -> None:
    """The cut is an event, and so is the other half of the line, where nothing happens; around once and a half."""
    m = dh.HybridModel("around")
    w, phi, seen = m.parameter("w", 1.0), m.differential("phi"), m.differential("seen")
    run = m.mode("run", ode={phi: w, seen: ca.atan2(2 * ca.sin(phi), 2 * ca.cos(phi))})
    m.initial(run, {phi: -3.0, seen: 0.0})
    found = dh.simulate(m.build(), (0, 10), t_eval=np.linspace(0, 10, 201), **TIGHT)
    assert [event.time for event in found.events] == pytest.approx([3.0, 3 + PI, 3 + 2 * PI], abs=1e-8)
    phi, rates = found["phi"], np.gradient(found["seen"], found.t)
    smooth = np.min(np.abs(phi[:, None] - PI * np.arange(-1, 4)), axis=1) > 0.1
    smooth[[0, -1]] = False
    assert rates[smooth] == pytest.approx(np.arctan2(np.sin(phi), np.cos(phi))[smooth], abs=1e-3)


@pytest.mark.parametrize(
    ("argument", "relations"),
    [
        (lambda x: ca.fmin(ca.fmax(x, 0), 3), 0),
        (lambda x: 1.5 + 1.5 * ca.sin(x), 0),
        (lambda x: 1.5 + 1.6 * ca.sin(x), 2),
        (lambda x: ca.fmax(x, 0.5), 2),  # the kink of what is compared is an event
    ],
    ids=["clipped", "a wave", "a larger wave", "half clipped"],
)
def test_arguments_that_stay_on_the_grid_need_no_event(argument: Callable[[Any], Any], relations: int) -> None:
    system = moved_along(lambda x: TABLE(argument(x)))
    assert len([t for t in system.transitions if t.relation is not None]) == relations
    dh.check_gradient(system, (0, 5), "G")


@pytest.mark.parametrize("end", [2.0, 3.0, 5.0])
def test_a_spline_of_time(end: float) -> None:
    """A run may begin and end at the ends of the grid."""
    m = dh.HybridModel("driven")
    p, y = m.parameter("p", 1.0), m.differential("y")
    run = m.mode("run", ode={y: p * TABLE(m.time)})
    m.initial(run, {y: 0.0})
    m.functional("G", terminal=y)
    found = dh.forward_sensitivity(m.build(), (0, end), **TIGHT)
    assert found.gradient["G"] == pytest.approx(min(end, 3) ** 3 / 3, rel=1e-8)


def test_splines_that_extrapolate_and_those_that_are_refused() -> None:
    inlined = ca.interpolant("inlined", "bspline", [[0.0, 1.0, 2.0, 3.0]], [0.0, 1.0, 4.0, 9.0], {"inline": True})
    system = moved_along(inlined)  # x**2 everywhere
    assert not [t for t in system.transitions if t.relation is not None]
    assert dh.forward_sensitivity(system, (0, 5), **TIGHT).gradient["G"] == pytest.approx(-65 / 3 + 80, rel=1e-8)
    for knots, degree, match in (
        ([0.0, 1.0, 2.0], 0, "jumps within its grid"),
        ([0.0, 1.0, 2.0, 3.0, 4.0], 1, "are not repeated 2 times"),
    ):
        function = ca.Function.bspline("refused", [knots], [1.0] * (len(knots) - degree - 1), [degree], 1)
        with pytest.raises(dh.ModelError, match=match):
            moved_along(function)


@pytest.mark.parametrize("spared", [False, True])
def test_guards_entries_and_marks(spared: bool) -> None:
    """Entries of vectors switch one by one; a guard that jumps fires where it does; smooth() leaves everything."""
    m = dh.HybridModel("entries")
    p, x = m.parameter("p", 1.0), m.differential("x", size=2)
    hits = m.memory("hits", initial=0.0)
    direction = x / ca.fabs(x)
    run = m.mode("run", ode={x: ca.vertcat(p, 2 * p)})
    guard = ca.sum1(dh.smooth(direction) if spared else direction) - 1
    m.transition(run, run, guard=guard, direction="rising", memory={hits: hits + 1})
    m.initial(run, {x: [-1.0, -3.0]})
    m.functional("G", at_events={"run->run": m.time})
    system = m.build()
    assert len([t for t in system.transitions if t.relation is not None]) == (0 if spared else 2)
    if not spared:  # x[0] is zero at 1, x[1] at 1.5
        found = dh.forward_sensitivity(system, (0, 3), **TIGHT)
        assert found.trajectory.functionals["G"] == pytest.approx(1.5, abs=1e-8)
        assert found.gradient["G"] == pytest.approx(-1.5, abs=1e-6)


def test_a_guard_that_jumps_across_zero_fires_there() -> None:
    """-atan2 jumps from -pi to pi, as any guard with a relation may."""
    m = dh.HybridModel("wrapped")
    p, x = m.parameter("p", 1.0), m.differential("x")
    run = m.mode("run", ode={x: p})
    m.transition(run, run, guard=-ca.atan2(ca.sin(x), ca.cos(x)), direction="rising", name="around")
    m.initial(run, {x: 0.1})
    m.functional("G", at_events={"around": m.time})
    found = dh.forward_sensitivity(m.build(), (0, 4), **TIGHT)
    assert found.trajectory.functionals["G"] == pytest.approx(PI - 0.1, abs=1e-9)
    assert found.gradient["G"] == pytest.approx(-(PI - 0.1), abs=1e-8)


def test_a_direction_in_a_reset_is_a_relation_there() -> None:
    """v/|v| at an impact where v = 0 to the accuracy of the run is refused; elsewhere it is a sign."""
    for v0, refused in ((0.5, False), (1.0, True)):
        m = dh.HybridModel("reset")
        a, v, y = m.parameter("a", 1.0), m.differential("v"), m.differential("y")
        run = m.mode("run", ode={v: -a, y: 0.0})
        m.transition(run, run, at=1.0, reset={y: v / ca.fabs(v)})
        m.initial(run, {v: v0, y: 0.0})
        m.functional("G", terminal=y)
        if refused:
            with pytest.raises(dh.EventError):
                dh.forward_sensitivity(m.build(), (0, 2), **TIGHT)
        else:
            found = dh.forward_sensitivity(m.build(), (0, 2), **TIGHT)
            assert found.trajectory.functionals["G"] == -1.0
            assert found.gradient["G"] == 0.0


def test_a_pole_stays_a_pole() -> None:
    """1/|u| and u/(|u| + 1) hide no jump."""
    m = dh.HybridModel("poles")
    x, y = m.differential("x"), m.differential("y")
    run = m.mode("run", ode={x: 1.0, y: 1 / ca.fabs(x) + x / (ca.fabs(x) + 1) + ca.sqrt(x**2 + 1)})
    m.initial(run, {x: 1.0, y: 0.0})
    assert not m.build(native=False).transitions
