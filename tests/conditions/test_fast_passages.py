"""Gradients that the fast passages of a run have spoilt are called so; those that have come through them are not."""

from __future__ import annotations

import re
import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.problems.ivp_test_set import PROBLEMS
from dae_hybrid.simulation.passages import fastest_passage

GROWTH = "growth of perturbations"
#: mu d x / d mu of van der Pol's oscillator at the end, by differences of runs at rtol=1e-13
JUMPS = 1.78480


def gradient(call: str, system: dh.HybridSystem, end: float, **more: Any) -> Any:
    if call == "forward":
        return dh.forward_sensitivity(system, (0, end), **more)
    return dh.adjoint_gradient(system, (0, end), "G", **more)


def values(found: Any) -> np.ndarray:
    return found.gradient["G"] if isinstance(found.gradient, dict) else found.gradient


@cache
def jumping(unit: float = 1.0, switched: bool = False) -> dh.HybridSystem:
    """Van der Pol's oscillator in another unit of time; or with a transition at the end that changes nothing."""
    m = dh.HybridModel("jumping")
    mu, x, v = m.parameter("mu", 1000.0), m.differential("x"), m.differential("v")
    ode = {x: v / unit, v: (mu * (1 - x**2) * v - x) / unit}
    run = m.mode("run", ode=ode)
    m.initial(run, {x: 2.0, v: 0.0})
    if switched:
        m.transition(run, m.mode("late", ode=ode), guard=m.time / unit - 1999.0)
    m.functional("G", terminal=x)
    return m.build()


@pytest.mark.parametrize("rtol", [1e-6, 1e-8])
@pytest.mark.parametrize("unit", [1.0, 1e-6])
@pytest.mark.parametrize("call", ["forward", "adjoint"])
@pytest.mark.uncertified
def test_jumps_spoil_a_gradient(call, unit, rtol):
    """The derivatives are 1e6 times as large in a jump as after it, and errors of theirs are left behind.

    What is left is noise: of 24 adjoints near rtol=1e-8 six were right to 1 %. Of 48, four agreed to 1 % with those at
    twice the tolerance by chance, and one with those at four times it, too.
    """
    system, errors, warned = jumping(unit), [], 0
    for close in rtol * (1 + np.arange(9) / 100):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = gradient(call, system, 2000.0 * unit, rtol=close, atol=1e-4 * close)
        assert bool(said) != found.diagnostics.check(GROWTH).passed
        warned += any(f"rtol={close:g} does not determine it" in str(one.message) for one in said)
        errors.append(abs(1000 * values(found)[0] / JUMPS - 1))
    assert max(errors) > 1e-2
    assert warned >= 7


@pytest.mark.parametrize("t_eval", [None, (0.0, 1000.0, 2000.0)])
@pytest.mark.parametrize("switched", [False, True])
@pytest.mark.uncertified
def test_jumps_are_seen_between_outputs_and_before_events(switched, t_eval):
    with pytest.warns(dh.ConditionWarning, match="slows down again"):
        gradient("adjoint", jumping(switched=switched), 2000.0, rtol=1e-6, atol=1e-10, t_eval=t_eval)


@pytest.mark.uncertified
def test_jumps_are_seen_between_outputs_of_forward_analysis():
    with pytest.warns(dh.ConditionWarning, match="slows down again"):
        gradient("forward", jumping(), 2000.0, rtol=1e-6, atol=1e-10, t_eval=[2000.0])


@pytest.mark.uncertified
def test_a_tight_tolerance_resolves_the_jumps():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = gradient("forward", jumping(), 2000.0, rtol=1e-10, atol=1e-14)
    assert found.diagnostics.check(GROWTH).passed
    assert 1000 * values(found)[0] == pytest.approx(JUMPS, rel=1e-2)


@pytest.mark.parametrize("rtol", [1e-11, 5e-12, 2e-12, 1e-12])
@pytest.mark.uncertified
def test_roundings_of_time_spoil_an_adjoint_however_tight_the_tolerance(rtol):
    """A jump at t = 1600 takes 1e-3 of time, and its derivatives are 2e6 times those that are left.

    At 64 tolerances near 1e-8, 1e-9, 1e-10 and 1e-11 the median error was 1.5 %, and from 1e-9 on the largest 3.4 %.
    """
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = gradient("adjoint", jumping(), 2000.0, rtol=rtol, atol=1e-2 * rtol)
    wrong = abs(1000 * values(found)[0] / JUMPS - 1)
    assert wrong < 4e-2 or "Roundings of time" in str(said[0].message)
    assert re.match("at [24] times the tolerance", found.diagnostics.check(GROWTH).detail)


@pytest.mark.uncertified
def test_the_oregonator_at_a_loose_tolerance():
    """Its adjoint has no digit there."""
    problem = PROBLEMS["oregonator"]
    with pytest.warns(dh.ConditionWarning, match="does not determine it"):
        gradient("adjoint", problem.model().build(), problem.end, wrt=problem.wrt, **problem.tolerances(1e-3))


@pytest.mark.parametrize("unit", [1.0, 1e-9])
@pytest.mark.parametrize("call", ["forward", "adjoint"])
def test_a_passage_that_spoils_nothing(call, unit):
    """x' = 1 / (d + x^2) from -1 to 1: d x + x^3 / 3 = t + c, and dx(t)/dx0 = (d + x0^2) / (d + x^2)."""
    m = dh.HybridModel("passage")
    x0, d, x = m.parameter("x0", -unit), m.parameter("d", 1e-5), m.differential("x")
    run = m.mode("run", ode={x: unit / (d + (x / unit) ** 2)})
    m.initial(run, {x: x0})
    m.functional("G", terminal=x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = gradient(call, m.build(), 2 / 3 + 2e-5, rtol=1e-6, atol=1e-9 * unit)
    assert fastest_passage(found.trajectory)[0] > 1e4
    check = found.diagnostics.check(GROWTH)
    assert check.passed
    assert check.detail.startswith("at 4 times the tolerance")
    assert values(found) == pytest.approx([1.0, -2.0 * unit], rel=1e-4)
