"""Implicit modes through adapters that integrate ordinary differential equations only."""

from functools import cache

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh

SPAN = (0.0, 5.0)


@cache
def cubic() -> dh.HybridSystem:
    """y'^3 + y' + y = c'^3 + c' + c for c = p cos(5 t): y = c, and y' turns over within few steps."""
    m = dh.HybridModel("cubic")
    p, y = m.parameter("p", 1.0), m.differential("y")
    known, rate = p * ca.cos(5 * m.time), -5 * p * ca.sin(5 * m.time)
    dy = m.der(y)
    only = m.mode("only", residual=[dy**3 + dy + y - rate**3 - rate - known])
    m.initial(only, {y: p})
    m.functional("G", integrand=y**2)
    return m.build()


def integral(t_end: float) -> float:
    """Of cos(5 t)^2 from zero."""
    return t_end / 2 + np.sin(10 * t_end) / 20


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("rtol", "method"),
    [(1e-4, "dop853"), (1e-6, "dop853"), (1e-8, "dop853"), (1e-6, "rk45"), (1e-6, "radau")],
)
def test_stages_of_an_interpolant_follow_the_derivatives(rtol: float, method: str) -> None:
    """DOP853's take three evaluations within the step: from the values at its end Newton's method did not get there."""
    found = dh.adjoint_gradient(cubic(), SPAN, "G", adapter="scipy", method=method, rtol=rtol, atol=1e-2 * rtol)
    assert float(found.value) == pytest.approx(integral(SPAN[1]), rel=20 * rtol)
    assert found.gradient[0] == pytest.approx(2 * integral(SPAN[1]), rel=50 * rtol)


def test_outputs_within_long_steps() -> None:
    times = np.linspace(*SPAN, 301)
    found = dh.simulate(cubic(), SPAN, adapter="scipy", method="dop853", rtol=1e-7, atol=1e-9, t_eval=times)
    assert np.abs(found["y"] - np.cos(5 * times)).max() < 1e-5


def test_guards_within_long_steps() -> None:
    """Two crossings within one step are found by the interpolant."""
    m = dh.HybridModel("cubic with a guard")
    p, y = m.parameter("p", 1.0), m.differential("y")
    known, rate = p * ca.cos(5 * m.time), -5 * p * ca.sin(5 * m.time)
    dy = m.der(y)
    motion = [dy**3 + dy + y - rate**3 - rate - known]
    one, other = m.mode("one", residual=motion), m.mode("other", residual=motion)
    m.transition(one, other, guard=y - 0.3, direction="falling")
    m.transition(other, one, guard=y - 0.3, direction="rising")
    m.initial(one, {y: p})
    m.functional("G", integrand=y**2)
    found = dh.simulate(m.build(), SPAN, adapter="scipy", method="dop853", rtol=1e-6, atol=1e-8)
    turns = np.arccos(0.3) + 2 * np.pi * np.arange(5)
    exact = np.sort(np.concatenate((turns, 2 * np.pi - turns + 4 * np.pi * np.arange(5)))) / 5
    exact = exact[(exact > 0) & (exact < SPAN[1])]
    assert [event.time for event in found.events] == pytest.approx(exact.tolist(), abs=1e-5)


@pytest.mark.parametrize("adapter", ["sundials", "scipy", "casadi"])
def test_index_2_with_a_constant_matrix(adapter: str) -> None:
    """A bead on an incline, vy = s vx: the determinant that is watched has no rate, and vx' = -g s / (1 + s^2)."""
    m = dh.HybridModel("incline")
    s = m.parameter("s", 0.1)
    vx, vy, z = m.differential("vx"), m.differential("vy"), m.algebraic("z")
    run = m.mode("run", ode={vx: -s * z, vy: -9.81 + z}, constraint=[vy - s * vx])
    m.initial(run, {vx: 1.0, vy: s})
    m.functional("end", terminal=vx)
    asa = dh.adjoint_gradient(m.build(), (0, 1), adapter=adapter, rtol=1e-9, atol=1e-11)
    assert asa.value == pytest.approx(1 - 0.981 / 1.01, rel=1e-7)
    assert asa.gradient == pytest.approx([-9.81 * (1 - 0.01) / 1.01**2], rel=1e-6)
