"""Equations in which nothing moves until a clip lets go: an error test at rest sees nothing of what follows."""

from __future__ import annotations

from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh

WAYS = [{}, {"method": "bdf"}, {"method": "adams"}, {"adapter": "scipy"}, {"adapter": "casadi"}]
C = 0.9


def bursts(*, by_clock: bool = False, smooth: bool = False, **build: Any) -> dh.HybridSystem:
    """y' = max(sin t - c, 0), with the time or with a state that grows as the time does."""
    m = dh.HybridModel("bursts")
    c, y = m.parameter("c", C), m.differential("y")
    clock = m.differential("clock") if by_clock else m.time
    rate = ca.fmax(ca.sin(clock) - c, 0)
    ode, start = {y: dh.smooth(rate) if smooth else rate}, {y: 0.0}
    if by_clock:
        ode, start = {**ode, clock: 1.0}, {**start, clock: 0.0}
    m.initial(m.mode("run", ode=ode), start)
    m.functional("G", terminal=y)
    return m.build(**build)


def exact(end: float) -> tuple[float, float]:
    """Each burst has the width 2 arccos(c), and the integral 2 sin(width / 2) - c width."""
    count, width = int((end - np.pi / 2) // (2 * np.pi)) + 1, 2 * np.arccos(C)
    return count * (2 * np.sin(width / 2) - C * width), -count * width


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_clip_of_time_is_an_event(way: dict[str, Any], native: bool) -> None:
    end = 400.0 if native and "adapter" not in way else 60.0
    system, (value, slope) = bursts(native=native), exact(end)
    fsa = dh.forward_sensitivity(system, (0, end), **way)
    assert len(fsa.events) == 2 * round(end / (2 * np.pi))
    assert fsa.trajectory.functionals["G"] == pytest.approx(value, rel=1e-3)
    assert fsa.gradient["G"][0] == pytest.approx(slope, rel=1e-4)
    assert dh.adjoint_gradient(system, (0, end), "G", **way).gradient[0] == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_a_run_with_other_clips_takes_a_hundred_steps(way: dict[str, Any]) -> None:
    system, (value, slope) = bursts(by_clock=True), exact(40.0)
    fsa = dh.forward_sensitivity(system, (0, 40), **way)
    assert fsa.trajectory.functionals["G"] == pytest.approx(value, rel=1e-3)
    assert fsa.gradient["G"][0] == pytest.approx(slope, rel=1e-3)
    assert dh.adjoint_gradient(system, (0, 40), "G", **way).gradient[0] == pytest.approx(slope, rel=1e-3)


def test_nothing_else_limits_the_steps() -> None:
    """A largest step that is given, clips that are events, marked, or of parameters alone."""
    assert dh.simulate(bursts(by_clock=True), (0, 40)).options.max_step == pytest.approx(0.4)
    assert dh.simulate(bursts(by_clock=True), (0, 40), max_step=2.0).options.max_step == 2.0
    assert dh.simulate(bursts(by_clock=True, kinks="events"), (0, 40)).options.max_step is None
    assert dh.simulate(bursts(by_clock=True, smooth=True), (0, 40)).options.max_step is None
    assert dh.simulate(bursts(), (0, 40)).options.max_step is None
    m = dh.HybridModel("constant")
    c, y = m.parameter("c", C), m.differential("y")
    m.initial(m.mode("run", ode={y: -ca.fmax(c, 0) * y}), {y: 1.0})
    assert dh.simulate(m.build(), (0, 40)).options.max_step is None
