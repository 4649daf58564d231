"""Jacobians with few full rows, and the decision to keep vector operations."""

from __future__ import annotations

from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.codegen.casadi_tools import directions, is_vectorised, jacobian, vector_operations


def arrow(x: Any) -> Any:
    """Two full rows among bands, and a full column."""
    return ca.vertcat(x[0] * x, ca.sumsqr(x), x[1:] - x[:-1] ** 2, ca.sum1(ca.sin(x)))


@pytest.mark.parametrize("kind", [ca.SX, ca.MX])
@pytest.mark.parametrize(
    "values", [arrow, ca.sin, ca.sumsqr, lambda x: x @ ca.sum1(x)], ids=["arrow", "diagonal", "row", "full"]
)
def test_a_jacobian_is_that_of_casadi_whatever_its_pattern(kind: Any, values: Any) -> None:
    x = kind.sym("x", 30)
    found, expected = jacobian(values(x), x), ca.jacobian(values(x), x)
    assert found.sparsity() == expected.sparsity()
    numbers = ca.Function("f", [x], [found, expected])(np.linspace(0.1, 2.0, 30))
    np.testing.assert_allclose(*(np.array(n) for n in numbers), rtol=1e-14)


def test_full_rows_cost_a_direction_each() -> None:
    pattern = [ca.jacobian_sparsity(arrow(x), x) for x in (ca.MX.sym("x", 30), ca.MX.sym("x", 300))]
    assert directions(pattern[0]) == directions(pattern[1]) <= 5
    assert directions(ca.Sparsity.dense(20, 20)) == 20


def test_a_called_function_counts_as_what_it_does() -> None:
    x = ca.MX.sym("x", 50)
    inner = ca.Function("inner", [x], [ca.exp(ca.sin(x)) * x])
    outer = ca.Function("outer", [x], [inner(inner(x))])
    assert vector_operations(outer) == (6, 300)
    assert vector_operations(ca.Function("scalar", [x], [inner.expand()(x)])) == vector_operations(inner.expand())


@pytest.mark.parametrize("wide", [True, False])
def test_equations_with_wide_jacobians_are_taken_apart(wide: bool) -> None:
    x = ca.MX.sym("x", 60)
    rate, flux = -x, ca.sin(x)
    for _ in range(3):
        rate = rate + ca.exp(-(flux**2)) * ca.cos(flux)
        flux = ca.sqrt(1 + (flux * (ca.sum1(flux) if wide else flux)) ** 2)
    assert is_vectorised(rate)
    assert is_vectorised(rate, by=[x]) == (not wide)


def test_an_arrow_of_algebraic_variables_gives_the_same_gradient_either_way() -> None:
    def build(n: int) -> dh.HybridSystem:
        m = dh.HybridModel("arrow")
        k, y, z = m.parameter("k", 0.8), m.differential("y", size=n), m.algebraic("z", guess=1.0)
        run = m.mode("run", ode={y: -k * y * z}, algebraic=[z**3 + z - ca.sumsqr(y) / n - 1])
        m.transition(run, run, guard=z - 0.9, direction="falling", reset={y: y + 0.5})
        m.initial(run, {y: np.linspace(0.5, 1.5, n)})
        m.functional("G", integrand=z, terminal=ca.sum1(y) / n)
        return m.build()

    system = build(40)
    forward = dh.forward_sensitivity(system, (0, 2), rtol=1e-9, atol=1e-11).gradient["G"]
    adjoint = dh.adjoint_gradient(system, (0, 2), "G", rtol=1e-9, atol=1e-11)
    above, below = (
        dh.simulate(system, (0, 2), parameters={"k": 0.8 + s}, rtol=1e-11, atol=1e-13).functionals["G"]
        for s in (1e-4, -1e-4)
    )
    np.testing.assert_allclose(adjoint.gradient, forward, rtol=1e-6)
    np.testing.assert_allclose(forward, (above - below) / 2e-4, rtol=1e-5)
