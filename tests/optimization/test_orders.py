"""Orders between times: closed forms with an active and an inactive order, by every method that has constraints."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import LinearConstraint, minimize

import dae_hybrid as dh

OPTIONS: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}
METHODS = ["SLSQP", "trust-constr", "ipopt"]


def slopes() -> dh.HybridModel:
    """x(4) = (s1 - s0) - (s2 - s1) if s0 <= s1 <= s2, by three switches stated in the opposite order."""
    m = dh.HybridModel("slopes")
    s, wish = m.parameter("s", [1.0, 1.5, 2.5]), m.parameter("wish", [1.4, 1.2, 2.0])
    fixed = m.parameter("fixed", 3.0)
    x = m.differential("x")
    modes = [m.mode(f"m{i}", ode={x: rate}) for i, rate in enumerate((0.0, 1.0, -1.0, 0.0))]
    for i in (2, 1, 0):
        m.transition(modes[i], modes[i + 1], at=s[i])
    m.initial(modes[0], {x: 0.0})
    m.functional("cost", terminal=(x + 0.5) ** 2 + sum((s[i] - wish[i]) ** 2 for i in range(3)) + 0 * fixed)
    return m


#: wishes for the times, and the optimum with s0 <= s1 <= s2, from the conditions of Karush, Kuhn and Tucker
INACTIVE = [1.4, 1.2, 2.0], np.array([1.4 - 1 / 14, 1.2 + 2 / 14, 2.0 - 1 / 14])
ACTIVE = [1.6, 1.2, 2.0], np.array([1.42, 1.42, 1.96])
SCALES = [None, "log", {"s": 2.0}, "logit"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", ["inactive", "active"])
def test_times_stay_in_order(built, method: str, case: str) -> None:
    wish, best = ACTIVE if case == "active" else INACTIVE
    for start, scale in zip(([1.0, 1.5, 2.5], [1.0, 1.0, 1.0], [1.3, 1.3, 2.0], [1.0, 1.5, 2.5]), SCALES, strict=True):
        problem = dh.OptimizationProblem(
            built(slopes), (0, 4), "cost", wrt="s", order="s", bounds={"s": (0, 4)} if scale != "log" else None,
            parameters={"wish": wish}, scale=scale, **OPTIONS,
        )  # fmt: skip
        found = problem.minimize(method, x0={"s": start})
        assert found.success
        assert not found.failures
        assert_allclose(found.parameters["s"], best, atol=2e-3)
        assert all((np.diff(own.parameters[:3]) >= 0).all() for own in found.history)


def test_orders_are_linear_constraints_for_scipy(built) -> None:
    problem = dh.OptimizationProblem(
        built(slopes), (0, 4), "cost", wrt="s", order=[["s[0]", "s[1]"], ["s[1]", "s[2]"]],
        parameters={"wish": ACTIVE[0]}, scale={"s[0]": 2.0}, **OPTIONS,
    )  # fmt: skip
    (linear,) = problem.constraints
    assert isinstance(linear, LinearConstraint)
    assert_allclose(linear.A, [[1.0, -0.5, 0.0], [0.0, 1.0, -1.0]])
    found = minimize(problem, problem.x0, jac=True, method="SLSQP", constraints=problem.constraints)
    assert_allclose(found.x * [2.0, 1.0, 1.0], ACTIVE[1], atol=2e-3)
    with pytest.raises(dh.OptionError, match="does not support constraints"):
        problem.minimize("L-BFGS-B")


def test_bounds_of_one_imply_those_of_others(built) -> None:
    problem = dh.OptimizationProblem(
        built(slopes), (0, 4), "cost", wrt="s", order="s", bounds={"s[0]": (0.5, None), "s[2]": (None, 2.7)}
    )
    assert_allclose(problem.bounds.lb, 0.5)
    assert_allclose(problem.bounds.ub, 2.7)
    p = problem._variables.parameters(np.array([2.0, 1.0, 3.0]))  # what a method asks for beside the limits
    assert_allclose(p[:3], [2.0, 2.0, 2.7])


@pytest.mark.parametrize(
    ("order", "error", "said"),
    [
        (["s[0]", "nobody"], dh.ParameterError, "'nobody', which is not a parameter"),
        (["s[0]"], dh.ParameterError, "at least two"),
        (["fixed"], dh.ParameterError, "not among wrt"),
        ("s[1]", dh.ParameterError, "at least two"),
        ([], dh.ParameterError, "at least two"),
        ([[]], dh.ParameterError, "at least two"),
        (["s[0]", "s[0]"], dh.ParameterError, "twice"),
        (["s", "s[0]"], dh.ParameterError, "twice"),
        (["s[0]", "fixed"], dh.ParameterError, "'fixed', which is not among wrt"),
        (["s[1]", "s[0]"], dh.ParameterError, r"s\[1\] = 1\.5, s\[0\] = 1 is out of order"),
        (3, dh.OptionError, "must be names"),
        ({"s[0]": "s[1]"}, dh.OptionError, "must be names"),
        ([["s[0]", 3]], dh.OptionError, "must be names"),
    ],
)
def test_refusals(built, order: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        dh.OptimizationProblem(built(slopes), (0, 4), "cost", wrt="s", order=order)


def test_scales_of_an_order_are_alike(built) -> None:
    for scale, bounds in (({"s[0]": "log"}, None), ("logit", {"s": ([0, 0, 1.0], 4)})):
        with pytest.raises(dh.OptionError, match=r"The scales of s\[0\], s\[1\], s\[2\], which are in an order"):
            dh.OptimizationProblem(built(slopes), (0, 4), "cost", wrt="s", order="s", scale=scale, bounds=bounds)


def test_a_start_is_in_order(built) -> None:
    problem = dh.OptimizationProblem(built(slopes), (0, 4), "cost", wrt="s", order="s", **OPTIONS)
    for start in ({"s": [1.0, 2.0, 1.5]}, [1.0, 2.0, 1.5]):
        with pytest.raises(dh.ParameterError, match=r"s\[1\] = 2, s\[2\] = 1\.5 is out of order"):
            problem.minimize(x0=start)
