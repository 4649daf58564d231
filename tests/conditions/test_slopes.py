"""Roots, powers and logarithms at zero: values are right, and the error of a derivative names the expression."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh


def moved(function: Callable[[Any], Any]) -> dh.HybridSystem:
    """x' = p from -1, and the integral of f(x) to t = 5."""
    m = dh.HybridModel("steep")
    p, x, y = m.parameter("p", 1.0), m.differential("x"), m.differential("y")
    run = m.mode("run", ode={x: p, y: function(x)})
    m.initial(run, {x: -1.0, y: 0.0})
    m.functional("G", terminal=y)
    return m.build()


STEEP: dict[str, tuple[Callable[[Any], Any], float]] = {
    "sqrt(fmax(0,(x-0.3)))": (lambda x: ca.sqrt(ca.fmax(x - 0.3, 0)), 2 / 3 * 3.7**1.5),
    "sqrt(fabs((x-0.3)))": (lambda x: ca.sign(x - 0.3) * ca.sqrt(ca.fabs(x - 0.3)), 2 / 3 * (3.7**1.5 - 1.3**1.5)),
    "pow(fabs((x-0.3)),0.333333)": (lambda x: ca.fabs(x - 0.3) ** (1 / 3), 3 / 4 * (3.7 ** (4 / 3) + 1.3 ** (4 / 3))),
    "log(fabs((x-0.3)))": (
        lambda x: ca.log(ca.fabs(x - 0.3)),
        3.7 * math.log(3.7) + 1.3 * math.log(1.3) - 5,
    ),
}


@pytest.mark.parametrize("text", STEEP)
def test_the_slope_is_named_and_values_are_right(text: str) -> None:
    function, integral = STEEP[text]
    system = moved(function)
    tight = {"rtol": 1e-9, "atol": 1e-11}
    assert dh.simulate(system, (0, 5), **tight).functionals["G"] == pytest.approx(integral, abs=1e-6)
    said = re.escape(f"The slope of {text} is infinite where its argument is zero, as it is here")
    with pytest.raises(dh.IntegrationError, match=said):
        dh.forward_sensitivity(system, (0, 5), **tight)
    with pytest.raises(dh.IntegrationError, match=said) as caught:
        dh.adjoint_gradient(system, (0, 5), "G", **tight)
    assert caught.value.trajectory is not None


@pytest.mark.parametrize("options", [{}, {"method": "bdf"}, {"adapter": "scipy"}], ids=str)
@pytest.mark.parametrize("level", [0.1, 0.3, 0.7, 1.0, 1.1])
def test_roots_in_the_branch_of_a_relation(level: float, options: dict[str, Any]) -> None:
    """Where its branch is entered, the argument may be below zero by rounding; no value is NaN for that."""
    powers = moved(
        lambda x: (
            ca.if_else(x > level, ca.sqrt(x - level), 0)
            + ca.if_else(x - level < 0, 0, (x - level) ** 0.75)
            + ca.if_else(ca.logic_and(x > level, x <= 3), ca.sqrt(x - level) * ca.sqrt(3 - x), 0)
        )
    )
    width = 4 - level
    integral = width**1.5 / 1.5 + width**1.75 / 1.75 + math.pi / 8 * (3 - level) ** 2
    found = dh.simulate(powers, (0, 5), rtol=1e-8, atol=1e-10, **options)
    assert found.functionals["G"] == pytest.approx(integral, rel=1e-6)
    orifice = moved(lambda x: ca.if_else(x > level, ca.sqrt(x - level), -ca.sqrt(level - x)))
    found = dh.simulate(orifice, (0, 5), rtol=1e-8, atol=1e-10, **options)
    assert found.functionals["G"] == pytest.approx((width**1.5 - (1 + level) ** 1.5) / 1.5, abs=1e-5)  # steep for BDF


def test_roots_of_negative_numbers_are_errors_in_other_branches() -> None:
    with pytest.raises(dh.NonFiniteError):
        dh.simulate(moved(lambda x: ca.if_else(x > 1, 0, ca.sqrt(x - 1))), (0, 5))


def test_a_tank_that_empties() -> None:
    """h = (1 - c t / 2)**2 until 2 / c, then at rest."""
    m = dh.HybridModel("tank")
    c, h = m.parameter("c", 1.0), m.differential("h")
    run = m.mode("run", ode={h: -c * ca.sqrt(ca.fmax(h, 0))})
    m.initial(run, {h: 1.0})
    m.functional("G", integrand=h)
    system = m.build()
    assert dh.simulate(system, (0, 5), rtol=1e-8).functionals["G"] == pytest.approx(2 / 3, rel=1e-6)
    with pytest.raises(dh.NonFiniteError, match=re.escape("The slope of sqrt(fmax(0,h)) is infinite")):
        dh.forward_sensitivity(system, (0, 5))
    assert dh.forward_sensitivity(system, (0, 1), rtol=1e-8).gradient["G"] == pytest.approx(-0.5 + 1 / 6, rel=1e-5)


NORMS: dict[str, Callable[[Any], Any]] = {
    "||v||_F": ca.norm_2,
    "sqrt(dot(v, v))": lambda v: ca.sqrt(ca.sumsqr(v)),
    "sqrt((sq(v[0])+sq(v[1])))": lambda v: ca.sqrt(v[0] ** 2 + v[1] ** 2),
    "hypot(v[0],v[1])": lambda v: ca.hypot(v[0], v[1]),
}


@pytest.mark.parametrize("text", NORMS)
def test_a_direction_is_lost_where_its_vector_vanishes(text: str) -> None:
    """A block that comes to rest in the plane, after 5/3; one on a spring that turns on a line, after about pi."""
    said = re.escape(f"{text} is zero here: where it appears as a divisor, the direction of its vector jumps")
    m = dh.HybridModel("block")
    mu, x, v = m.parameter("mu", 3.0), m.differential("x", size=2), m.differential("v", size=2)
    run = m.mode("run", ode={x: v, v: -mu * v / NORMS[text](v)})
    m.initial(run, {x: [0, 0], v: [4.0, 3.0]})
    m.functional("G", terminal=x[0])
    block = m.build()
    assert dh.forward_sensitivity(block, (0, 1)).gradient["G"] == pytest.approx(-0.4, rel=1e-5)
    with pytest.raises(dh.StepSizeError, match=said) as caught:
        dh.simulate(block, (0, 3))
    assert caught.value.time == pytest.approx(5 / 3, abs=1e-6)


@pytest.mark.parametrize("options", [{}, {"method": "bdf"}, {"adapter": "scipy"}], ids=str)
@pytest.mark.parametrize("aside", [0.0, 0.3])
@pytest.mark.parametrize("text", NORMS)
def test_a_vector_that_passes_zero(text: str, aside: float, options: dict[str, Any]) -> None:
    """A block on springs that moves on a line turns, twice, with both velocities zero; beside the line they are not."""
    m = dh.HybridModel("springs")
    mu, x, v = m.parameter("mu", 0.1), m.differential("x", size=2), m.differential("v", size=2)
    run = m.mode("run", ode={x: v, v: -x - mu * v / NORMS[text](v)})
    m.initial(run, {x: [0.8, 0.6], v: [-0.4 - aside, -0.3 + aside]})
    m.functional("G", terminal=x[0])
    system = m.build()
    if aside:
        dh.check_gradient(system, (0, 5), "G", **options)
        return
    for call in (dh.forward_sensitivity, lambda *a, **k: dh.adjoint_gradient(*a, "G", **k)):
        with pytest.raises(dh.DaeHybridError) as caught:
            call(system, (0, 7), rtol=1e-6, **options)
        assert f"{text} is zero" in str(caught.value)
    case = dh.prepare(system, (0, 7), functional="G", derivatives="forward", **options)
    with pytest.raises(dh.DaeHybridError, match=re.escape(f"{text} is zero")):
        case([0.1])


def test_a_vector_that_arrives_at_zero_where_an_event_takes_over() -> None:
    """A block that slides to rest along a line, ended by its clock: the direction is not needed any more."""
    m = dh.HybridModel("arrives")
    mu, x, v = m.parameter("mu", 3.0), m.differential("x", size=2), m.differential("v", size=2)
    slide = m.mode("slide", ode={x: v, v: -mu * v / ca.norm_2(v)})
    rest = m.mode("rest", ode={x: [0, 0], v: [0, 0]})
    m.transition(slide, rest, guard=ca.sumsqr(v) - 1e-12, direction="falling", reset={v: [0, 0]}, name="stops")
    m.initial(slide, {x: [0, 0], v: [4.0, 3.0]})
    m.functional("G", terminal=x[0])
    found = dh.forward_sensitivity(m.build(), (0, 3), method="bdf", rtol=1e-5, atol=1e-8)
    assert found.trajectory.functionals["G"] == pytest.approx(10 / 3, rel=1e-5)
    assert found.gradient["G"] == pytest.approx(-10 / 9, rel=1e-4)


@pytest.mark.parametrize("text", NORMS)
def test_a_norm_crosses_zero_nowhere(text: str) -> None:
    """As a guard it is refused; a length that counts as none has its derivatives, by the closed form."""
    m = dh.HybridModel("stops")
    mu, start, eps = m.parameter("mu", 3.0), m.parameter("start", 5.0), m.parameter("eps", 1e-5)
    v = m.differential("v", size=2)
    run = m.mode("run", ode={v: -mu * v / NORMS[text](v)})
    for guard in (NORMS[text](v), mu * NORMS[text](v)):
        with pytest.raises(dh.ModelError, match="crosses zero nowhere"):
            m.transition(run, None, guard=guard, direction="falling")
    m.transition(run, None, guard=NORMS[text](v) - eps, direction="falling", name="stops")
    m.initial(run, {v: start * ca.DM([0.8, 0.6])})
    m.functional("T", terminal=m.time)
    system = m.build()
    right = [-(5 - 1e-5) / 9, 1 / 3, -1 / 3]
    for rtol in (1e-4, 1e-6, 1e-9):
        np.testing.assert_allclose(dh.forward_sensitivity(system, (0, 3), rtol=rtol).gradient["T"], right, rtol=1e-6)
        np.testing.assert_allclose(dh.adjoint_gradient(system, (0, 3), "T", rtol=rtol).gradient, right, rtol=1e-6)
    for method in ("bdf", "adams", "erk"):  # steps of no length that go to and fro across the point
        options = {"parameters": {"eps": 0.0}, "rtol": 1e-4, "method": method, "max_steps": 2_000}
        with pytest.raises(dh.DaeHybridError, match=f"{re.escape(text)} is zero"):
            dh.forward_sensitivity(system, (0, 3), **options)


def test_drag_by_the_norm_passes_zero() -> None:
    """|v| v has a derivative where v is zero."""
    m = dh.HybridModel("drag")
    c, x, v = m.parameter("c", 0.1), m.differential("x", size=2), m.differential("v", size=2)
    run = m.mode("run", ode={x: v, v: -x - c * ca.norm_2(v) * v})
    m.initial(run, {x: [0.8, 0.6], v: [-0.4, -0.3]})
    m.functional("G", terminal=x[0])
    dh.check_gradient(m.build(), (0, 5), "G")


def test_other_errors_keep_their_words() -> None:
    """Poles, and roots that are not near zero, are not slopes."""
    system = moved(lambda x: ca.sqrt(x + 2) + 1 / (x - 0.3) ** 2)
    with pytest.raises(dh.IntegrationError) as caught:
        dh.forward_sensitivity(system, (0, 5))
    assert "slope" not in str(caught.value)
