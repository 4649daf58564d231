"""Gradients whose digits a chaotic motion has taken are called so; large ones that are well determined are not."""

from __future__ import annotations

import math
import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest

import dae_hybrid as dh

GROWTH = "growth of perturbations"
CALLS = {
    "forward": lambda *args, **more: dh.forward_sensitivity(*args, **more),
    "adjoint": lambda *args, **more: dh.adjoint_gradient(*args, "G", **more),
}


@cache
def lorenz(unit: float = 1.0, terminal: bool = False) -> dh.HybridSystem:
    m = dh.HybridModel("lorenz")
    sigma, rho, beta = m.parameter("sigma", 10.0 * unit), m.parameter("rho", 28.0), m.parameter("beta", 8 / 3)
    x, y, z = (m.differential(name) for name in "xyz")
    run = m.mode("run", ode={x: sigma / unit * (y - x), y: x * (rho - z) - y, z: x * y - beta * z})
    m.initial(run, {x: 1.0, y: 1.0, z: 1.0})
    m.functional("G", **{"terminal" if terminal else "integrand": z})
    return m.build()


def gradient(found: Any) -> np.ndarray:
    return found.gradient["G"] if isinstance(found.gradient, dict) else found.gradient


@pytest.mark.uncertified
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize(("end", "unit"), [(30, 1.0), (50, 1.0), (50, 1e-8)])
def test_a_chaotic_run_is_called_so(call, terminal, end, unit):
    """Forward and adjoint analysis give anything from -1e15 to 1e15 there."""
    with pytest.warns(dh.ConditionWarning, match=r"rtol=1e-08 does not determine it") as said:
        found = CALLS[call](lorenz(unit, terminal), (0, end), rtol=1e-8, atol=1e-8)
    assert len(said) == 1
    assert not found.diagnostics.check(GROWTH).passed
    assert str(said[0].message) in found.diagnostics.notes


@pytest.mark.parametrize("call", CALLS)
def test_a_short_run_of_the_same_is_not(call):
    found = CALLS[call](lorenz(), (0, 10), rtol=1e-8, atol=1e-8)
    assert found.diagnostics.check(GROWTH).passed
    assert np.allclose(gradient(found)[1], 10.4747065, rtol=1e-6)


def unstable(rate: float, kind: str) -> tuple[dh.HybridSystem, float]:
    """A system with a large gradient, and d end / d y0 of it at t = 20 / rate."""
    m = dh.HybridModel(kind)
    k, y0 = m.parameter("k", rate), m.parameter("y0", 1.0)
    y = m.differential("y")
    run = m.mode("run", ode={y: k * y if kind == "grows" else k * (y - 1)})
    m.initial(run, {y: y0})
    m.functional("G", terminal=y)
    return m.build(), math.exp(20.0)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ["grows", "leaves a balance"])
@pytest.mark.parametrize("rate", [1.0, 1e-6])
def test_a_large_gradient_that_is_determined(call, kind, rate):
    """y grows by exp(20), as its derivative does; or it stays at 1, with a derivative of 5e8."""
    system, expected = unstable(rate, kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = CALLS[call](system, (0, 20 / rate), rtol=1e-9, atol=1e-12)
    check = found.diagnostics.check(GROWTH)
    assert check.passed
    assert "at 2 times the tolerance" in check.detail
    assert gradient(found)[1] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("call", CALLS)
def test_a_small_gradient_is_not_looked_at_again(call):
    found = CALLS[call](unstable(1.0, "grows")[0], (0, 3), rtol=1e-9, atol=1e-12)
    assert "no functional" in found.diagnostics.check(GROWTH).detail
    assert gradient(found)[1] == pytest.approx(math.exp(3.0), rel=1e-6)


@pytest.mark.uncertified
@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("options", [{"rtol": 1e-6, "atol": 1e-8}, {"rtol": 1e-8, "atol": 1e-10, "method": "bdf"}])
def test_gradients_that_differ_are_called_so_before_all_digits_are_lost(terminal, options):
    """Derivatives are no more than five to forty times the functional there, and off by 3 % to 170 %."""
    exact = gradient(dh.forward_sensitivity(lorenz(1.0, terminal), (0, 20), rtol=1e-12, atol=1e-14))
    with pytest.warns(dh.ConditionWarning, match="does not determine it"):
        found = gradient(dh.adjoint_gradient(lorenz(1.0, terminal), (0, 20), "G", **options))
    assert abs(found - exact).max() > 0.02 * abs(exact).max()


@pytest.mark.parametrize("call", CALLS)
def test_a_stiff_decay(call):
    """y' = -1e6 (y - cos t): nothing grows."""
    m = dh.HybridModel("decay")
    k, a = m.parameter("k", 1e6), m.parameter("a", 1.0)
    y = m.differential("y")
    m.initial(m.mode("run", ode={y: -k * (y - a * np.cos(m.time))}), {y: 2.0})
    m.functional("G", terminal=y)
    found = CALLS[call](m.build(), (0, 10), rtol=1e-8)
    assert found.diagnostics.check(GROWTH).detail.startswith("a parameter that doubles")
    assert gradient(found)[1] == pytest.approx(math.cos(10), rel=1e-5)


@pytest.mark.uncertified
def test_a_run_that_fails_at_another_tolerance(monkeypatch):
    """What cannot be compared is not taken to be determined."""
    monkeypatch.setattr("dae_hybrid.interface.runs.RunBuilder.adjoint_gradients", _fail)
    system, _ = unstable(1.0, "leaves a balance")
    with pytest.warns(dh.ConditionWarning, match=r"cannot be had at 2 times the tolerance \(no\)"):
        dh.adjoint_gradient(system, (0, 20), "G", rtol=1e-9)


def _fail(*args: Any) -> Any:
    raise dh.IntegrationError("no")
