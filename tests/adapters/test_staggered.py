"""Simultaneous solution for all sensitivities of a step, with new factors or by iteration with earlier ones."""

from __future__ import annotations

from functools import cache
from typing import Any

import casadi as ca
import numpy as np
import pytest
from scipy.linalg import expm

import dae_hybrid as dh
from dae_hybrid.adapters.sundials.structure import structure_of

END, RTOL = 2.0, 1e-6


@cache
def spread(n: int, kind: str, count: int, algebraic: bool) -> dh.HybridSystem:
    """y' = a A y from s times given numbers; the rates are algebraic variables where they are to be."""
    m = dh.HybridModel("spread")
    a, s = m.parameter("a", 30.0), m.parameter("s", 1.5, size=count)
    y = m.differential("y", size=n)
    rate = a * (ca.DM(matrix(n, kind)) @ y)
    if algebraic:
        z = m.algebraic("z", size=n)
        run = m.mode("run", ode={y: z}, algebraic=[z + 0.1 * ca.tanh(z - rate) - rate])
    else:
        run = m.mode("run", ode={y: rate})
    m.initial(run, {y: ca.sum1(s) / count * ca.DM(first(n))})
    m.functional("G", integrand=ca.sum1(y), terminal=y[0])
    return m.build(eliminate=not algebraic)


def matrix(n: int, kind: str) -> Any:
    if kind == "band":
        return np.diag(np.full(n, -2.0)) + np.diag(np.ones(n - 1), 1) + np.diag(np.ones(n - 1), -1)
    if kind == "sparse":  # an arrow
        found = np.diag(np.full(n, -1.0))
        found[0, 1:], found[1:, 0] = 0.5 / n, 0.25
        return found
    random = np.random.default_rng(0).normal(size=(n, n)) / np.sqrt(n)
    return random - random.T - 2.0 * np.eye(n) - np.diag(np.linspace(0, 20, n))


def first(n: int) -> Any:
    return np.cos(np.arange(n)) + 2.0


CASES = [
    ("dense", 5, 2, False),  # factors of every step
    ("dense", 3, 1, True),
    ("dense", 40, 1, False),  # iterated with
    ("dense", 30, 1, True),
    ("dense", 9, 13, False),  # more directions than are taken together
    ("band", 60, 3, False),
    ("band", 60, 3, True),
    ("sparse", 60, 5, False),
    ("sparse", 60, 1, True),
    ("dense", 36, 1, False),  # iterated with; as the last row it is taken with tested=False
]


@pytest.mark.parametrize("tested", [True, False])
@pytest.mark.parametrize(("kind", "n", "count", "algebraic"), CASES)
def test_a_linear_system_is_its_own_derivative(kind: str, n: int, count: int, algebraic: bool, tested: bool) -> None:
    """With the same steps, what a start that is scaled leads to is scaled too, whatever the steps are off by."""
    system = spread(n, kind, count, algebraic)
    found = structure_of(system.modes[0].equations, backward=False, wanted=kind)
    assert found.kind == kind
    options: dict[str, Any] = {"rtol": RTOL, "atol": 1e-9, "method": "bdf", "linear_solver": kind, "wrt": "s"}
    fsa = dh.forward_sensitivity(system, (0, END), sensitivity_error_control=tested, **options)
    sol = fsa.trajectory
    scaled = np.asarray(fsa["y"]).reshape(len(sol.t), n, count).sum(axis=2) * 1.5
    largest = np.abs(sol["y"]).max()
    np.testing.assert_allclose(scaled, sol["y"], rtol=0, atol=2 * RTOL * largest)
    np.testing.assert_allclose(np.sum(fsa.gradient["G"]) * 1.5, sol.functionals["G"], rtol=20 * RTOL)


@pytest.mark.parametrize(("kind", "n", "count", "algebraic"), CASES)
def test_closed_forms(kind: str, n: int, count: int, algebraic: bool) -> None:
    system = spread(n, kind, count, algebraic)
    options: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-11, "method": "bdf", "linear_solver": kind}
    fsa = dh.forward_sensitivity(system, (0, END), wrt="a", **options)
    rate = matrix(n, kind)
    exact = END * rate @ expm(30.0 * END * rate) @ first(n) * 1.5
    np.testing.assert_allclose(np.asarray(fsa["y"])[-1].ravel(), exact, rtol=1e-5, atol=1e-8)
    asa = dh.adjoint_gradient(system, (0, END), "G", wrt="a", **options)
    np.testing.assert_allclose(fsa.gradient["G"], asa.gradient, rtol=1e-5, atol=1e-9)
