"""Networks of pipes: index 2 by their junctions, laminar or turbulent by modes of friction, flows that turn round."""

from __future__ import annotations

from functools import cache
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh

#: from node to node; 0 and 1 have buffers, at 2 and 3 flows add up to zero
BRIDGE = [(0, 2), (0, 3), (2, 3), (2, 1), (3, 1)]
TRIANGLES = [(0, 2), (2, 3), (3, 1), (0, 3), (2, 1)]
END = 5.0


@cache
def network(
    pipes: tuple[tuple[int, int], ...], *, tilt: float = 0.0, jump: bool = True, **build: Any
) -> dh.HybridSystem:
    """q' = (dp - R q) / L with R = r where |q| < 1 and k |q| beyond, or k |q| throughout."""
    m = dh.HybridModel("network")
    r, k, c, inertia = m.parameter("r", 1.0), m.parameter("k", 1.3), m.parameter("c", 0.5), m.parameter("L", 1.0)
    rougher = m.parameter("rougher", tilt)
    q, buffers = m.differential("q", size=5), m.differential("P", size=2)
    nodes = ca.vertcat(buffers, m.algebraic("p", size=2))
    turbulent = [m.memory(f"turbulent{i}", initial=0.0) if jump else 1.0 for i in range(5)]
    rates, surplus = [], [2 + 4 * ca.sin(2 * m.time), -buffers[1], 0, 0]
    for i, (a, b) in enumerate(pipes):
        friction = ((1 - turbulent[i]) * r + turbulent[i] * k * ca.fabs(q[i])) * q[i] * (1 + (rougher if i == 0 else 0))
        rates.append((nodes[a] - nodes[b] - friction) / inertia)
        surplus[a], surplus[b] = surplus[a] - q[i], surplus[b] + q[i]
    run = m.mode(
        "run", ode={q: ca.vertcat(*rates), buffers: ca.vertcat(*surplus[:2]) / c}, constraint=[surplus[2], surplus[3]]
    )
    for i in range(5 if jump else 0):
        for direction, value in (("rising", 1.0), ("falling", 0.0)):
            m.transition(run, run, guard=q[i] ** 2 - 1, direction=direction, memory={turbulent[i]: value})
    m.initial(run, {q: np.zeros(5), buffers: np.zeros(2)})
    m.functional("G", integrand=ca.sumsqr(q), terminal=buffers[0])
    m.functional("across", integrand=q[pipes.index((2, 3))], terminal=q[pipes.index((2, 3))])
    return m.build(**build)


def agree(system: dh.HybridSystem, name: str, rtol: float, **options: Any) -> np.ndarray:
    """The gradient of forward analysis, and that of the adjoint beside it."""
    options |= {"rtol": rtol, "atol": rtol / 100}
    fsa = dh.forward_sensitivity(system, (0, END), **options)
    asa = dh.adjoint_gradient(system, (0, END), name, **options)
    np.testing.assert_allclose(
        asa.gradient, fsa.gradient[name], rtol=0, atol=300 * rtol * abs(fsa.gradient[name]).max()
    )
    return np.asarray(fsa.gradient[name])


@pytest.mark.parametrize("jump", [True, False])
@pytest.mark.parametrize("build", [{}, {"eliminate": False}])
@pytest.mark.parametrize("rtol", [1e-6, 1e-8])
def test_flows_turn_round(jump: bool, build: dict[str, Any], rtol: float) -> None:
    system = network(tuple(TRIANGLES), tilt=0.1, jump=jump, **build)
    found = agree(system, "G", rtol)
    for i, name in enumerate(("r", "k", "c", "L", "rougher")):
        nominal, h = system.parameter_vector(None)[i], 1e-4
        one, other = (
            float(
                dh.simulate(system, (0, END), parameters={name: nominal + step}, rtol=1e-11, atol=1e-13).functionals[
                    "G"
                ]
            )
            for step in (h, -h)
        )
        assert found[i] == pytest.approx((one - other) / (2 * h), rel=1e-5, abs=1e-5)


@pytest.mark.filterwarnings("ignore:.*order matters:dae_hybrid.DerivativeWarning")
@pytest.mark.parametrize("build", [{}, {"eliminate": False}])
@pytest.mark.parametrize("options", [{}, {"method": "bdf"}])
@pytest.mark.parametrize("rtol", [1e-6, pytest.param(1e-8, marks=pytest.mark.campaign), 1e-10])
def test_what_a_symmetry_keeps_at_zero_has_an_adjoint(
    build: dict[str, Any], options: dict[str, Any], rtol: float
) -> None:
    """Nothing flows through the bridge, but for a pipe that is rougher than the others; its flow is rounding."""
    gradient = agree(network(tuple(BRIDGE), **build), "across", rtol, max_steps=100_000, **options)
    np.testing.assert_allclose(gradient[:4], 0, atol=1e-9)
    assert abs(gradient[4]) > 1
