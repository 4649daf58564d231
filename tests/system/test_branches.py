"""Roots of algebraic equations after a jump: from the values before, else from the guess, with their derivatives."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

import dae_hybrid as dh

WAYS: list[dict[str, Any]] = [{}, {"method": "bdf"}, {"adapter": "scipy"}]


def gradients(system: dh.HybridSystem, end: float, **options: Any) -> list[np.ndarray]:
    options = {"rtol": 1e-9, **options}
    forward = dh.forward_sensitivity(system, (0, end), **options)
    return [forward.gradient["G"], dh.adjoint_gradient(system, (0, end), "G", **options).gradient]


@cache
def switched(*, native: bool, guess: float, share: float) -> dh.HybridSystem:
    """z = share k until t = 1, and then one of 0, x and -x, with x = t first and x' = k from there."""
    m = dh.HybridModel("switched")
    k, x, s, z = m.parameter("k", 0.5), m.differential("x"), m.differential("s"), m.algebraic("z", guess=guess)
    first = m.mode("first", ode={x: 1.0, s: z}, algebraic=[z - share * k])
    then = m.mode("then", ode={x: k, s: z}, algebraic=[z * (z**2 - x**2)])
    m.transition(first, then, at=1.0, name="over")
    m.initial(first, {x: 0.0, s: 0.0})
    m.functional("G", terminal=s)
    return m.build(native=native)


@pytest.mark.parametrize("options", WAYS)
@pytest.mark.parametrize(("native", "guess", "sign"), [(True, 2.0, 1), (False, 2.0, 1), (True, -3.0, -1)])
def test_the_guess_decides_where_the_values_before_lead_nowhere(
    options: dict[str, Any], native: bool, guess: float, sign: int
) -> None:
    """From z = x / sqrt(3), where the equation has its extremum, Newton's method finds no direction."""
    system = switched(native=native, guess=guess, share=2 / np.sqrt(3))
    sol = dh.simulate(system, (0, 2), rtol=1e-9, **options)
    k, jump = 0.5, 0.5 * 2 / np.sqrt(3)
    assert sol.functionals["G"] == pytest.approx(jump + sign * (1 + k / 2), rel=1e-6)
    for gradient in gradients(system, 2, **options):
        np.testing.assert_allclose(gradient, [2 / np.sqrt(3) + sign / 2], rtol=1e-6)
    assert [point.branch for point in sol.solvability()] == ["", "guess"]


def test_the_values_before_come_first() -> None:
    system = switched(native=True, guess=-3.0, share=0.4)
    sol = dh.simulate(system, (0, 2))
    assert sol.events[0].x_plus[-1] == pytest.approx(0.0)  # the nearest root of three
    assert sol.solvability()[1].branch == "values before"
    assert "values before" in str(sol.solvability())
