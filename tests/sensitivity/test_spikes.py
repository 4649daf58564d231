"""Adjoints through motions as fast as rounding of time: spikes, and runs that end next to a singularity."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import dae_hybrid as dh

LOOPS = [("erk", True), ("bdf", True), ("bdf", False)]


@cache
def neuron(*, native: bool) -> dh.HybridSystem:
    """v' = a exp(v) from r to a peak, again and again."""
    m = dh.HybridModel("neuron")
    a, r, peak, v = m.parameter("a", 1.0), m.parameter("r", -1.0), m.parameter("peak", 22.0), m.differential("v")
    mode = m.mode("fire", ode={v: a * np.exp(v)})
    m.transition(mode, mode, guard=v - peak, direction="rising", reset={v: r}, name="spike")
    m.initial(mode, {v: r})
    m.functional("G", terminal=v)
    return m.build(native=native)


@pytest.mark.parametrize(("method", "native"), LOOPS)
def test_adjoints_pass_spikes(method: str, native: bool) -> None:
    """Near a peak a step is a few hundred roundings of time, of which differences of times know two digits."""
    span, values = (100.0, 106.0), np.array([1.0, -1.0, 22.0])
    found = dh.adjoint_gradient(neuron(native=native), span, rtol=1e-8, atol=1e-10, method=method)
    assert len(found.trajectory.events) == 2

    def end(p: np.ndarray) -> complex:
        a, r, peak = p
        return complex(-np.log(np.exp(-r) - a * (6 - 2 * (np.exp(-r) - np.exp(-peak)) / a)))

    exact = np.array([end(values + 1e-30j * unit).imag / 1e-30 for unit in np.eye(3)])
    np.testing.assert_allclose(found.gradient, exact, atol=1e-4 * abs(exact[0]))


@pytest.mark.parametrize(("method", "native"), LOOPS)
def test_an_adjoint_begins_next_to_a_singularity(method: str, native: bool) -> None:
    """r' = -c / r^2 until r = 1e-3: the last steps are 1e-9 of the time, T = (r0^3 - 1e-9) / (3 c)."""
    m = dh.HybridModel("collapse")
    c, r0, r = m.parameter("c", 1.0), m.parameter("r0", 1.0), m.differential("r")
    m.transition(m.mode("fall", ode={r: -c / r**2}), None, guard=r - 1e-3, direction="falling", name="end")
    m.initial(m.modes["fall"], {r: r0})
    m.functional("T", terminal=m.time)
    system = m.build(native=native)
    gradient = dh.adjoint_gradient(system, (100.0, 101.0), rtol=1e-9, atol=1e-12, method=method).gradient
    np.testing.assert_allclose(gradient, [-1 / 3, 1.0], atol=1e-5)
