"""Optimisations whose starts, iterates or optima are where derivatives are one-sided."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

import dae_hybrid as dh
from dae_hybrid.optimization.one_sided import Sides
from dae_hybrid.system.derivative_conditions import Conditions

OPTIONS: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}
TIMES = np.array([0.5, 1.0, 1.5, 2.0, 3.0, 4.0])
BOUNDS = {"t1": (0, 4), "t2": (0, 4)}
METHODS = ["SLSQP", "trust-constr", "L-BFGS-B", "ipopt"]


def level(t, t1: float, t2: float):
    """x grows towards 1 between t1 and t2, from 0, and decays after t2."""
    up = 1 - np.exp(-(np.minimum(t, t2) - t1))
    return np.where(t < t1, 0.0, up * np.exp(-np.maximum(t - t2, 0.0)))


def heater(*, t1: float = 0.8, t2: float = 2.6) -> dh.HybridSystem:
    """A heater that is on between two times; the cost compares it with one that has other times."""
    m = dh.HybridModel("heater")
    one, two = m.parameter("t1", 1.0), m.parameter("t2", 2.0)
    x = m.differential("x")
    cold, on, off = (m.mode(name, ode={x: u - x}) for name, u in (("cold", 0.0), ("on", 1.0), ("off", 0.0)))
    m.transition(cold, on, at=one, name="start")
    m.transition(on, off, at=two, name="stop")
    m.initial(cold, {x: 0.0})
    m.functional("cost", at_times={t: (x - d) ** 2 for t, d in zip(TIMES, level(TIMES, t1, t2), strict=True)})
    m.functional("heat", terminal=x)
    return m.build()


def ramp() -> dh.HybridModel:
    """The cost 3 x(1) + t1^2 / 2 with x(1) = max(1 - t1, 0): slopes t1 - 3 before t1 = 1 and t1 after it."""
    m = dh.HybridModel("ramp")
    t1, x = m.parameter("t1", 1.0), m.differential("x")
    rest, run = m.mode("rest", ode={x: 0.0}), m.mode("run", ode={x: 1.0})
    m.transition(rest, run, at=t1, name="go")
    m.initial(rest, {x: 0.0})
    m.functional("cost", at_times={1.0: 3 * x}, terminal=t1**2 / 2)
    return m


HEATER = heater()


@pytest.mark.parametrize("method", METHODS)
def test_switching_times_are_found_from_round_numbers(method: str) -> None:
    problem = dh.OptimizationProblem(HEATER, (0, 4), "cost", bounds=BOUNDS, **OPTIONS)
    for start in ({"t1": 1.0, "t2": 2.0}, {"t1": 0.0, "t2": 1.5}, {"t1": 1.0, "t2": 1.0}, {"t1": 0.9, "t2": 2.1}):
        found = problem.minimize(method, x0=start)
        assert found.success
        assert_allclose(list(found.parameters.values()), [0.8, 2.6], atol=2e-3)
        assert not found.failures
        assert bool(found.one_sided) == (start["t1"] != 0.9)
        for own in found.one_sided[:1]:
            assert own.parameters == start
            assert all(0 < abs(moved) < 1e-5 for moved in own.moved.values())
            assert str(own) in str(found)
            first = found.history[0]
            assert first.one_sided is own
            assert_allclose(first.parameters, list(own.taken_at.values()), rtol=0)


def test_values_and_gradient_are_those_of_the_point_beside() -> None:
    problem = dh.OptimizationProblem(HEATER, (0, 4), "cost", bounds=BOUNDS, **OPTIONS)
    value, gradient = problem([1.0, 2.0])
    beside = list(problem.history[0].one_sided.taken_at.values())
    exact = dh.forward_sensitivity(HEATER, (0, 4), parameters=dict(zip(("t1", "t2"), beside, strict=True)), **OPTIONS)
    assert value == exact.trajectory.functionals["cost"]
    assert_allclose(gradient, exact.gradient["cost"], rtol=1e-12)


def test_an_optimum_there_is_refused_with_what_was_found(built) -> None:
    problem = dh.OptimizationProblem(built(ramp), (0, 3), "cost", bounds={"t1": (0.2, 3)}, **OPTIONS)
    with pytest.raises(dh.OneSidedError, match=r"ends at t1 = 1 with objective 0\.5.*'cost' is measured") as caught:
        problem.minimize("L-BFGS-B")
    found = caught.value.result
    assert (found.success, found.x.tolist()) == (False, [1.0])
    assert found.value == pytest.approx(0.5, abs=1e-6)
    assert found.history
    assert "one-sided" in found.message
    assert isinstance(caught.value, dh.EventError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with pytest.raises(dh.EventError, match="'cost' is measured at the time of an event"):  # a single gradient there
        dh.forward_sensitivity(built(ramp), (0, 3), **OPTIONS)


def test_an_optimum_beside_it_is_a_kink(built) -> None:
    problem = dh.OptimizationProblem(built(ramp), (0, 3), "cost", bounds={"t1": (0.2, 3)}, **OPTIONS)
    with pytest.warns(dh.DerivativeWarning, match="has a kink"):
        found = problem.minimize("L-BFGS-B", x0=[1.5])
    assert found.parameters["t1"] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("method", ["SLSQP", "L-BFGS-B", "trust-constr"])
def test_a_bound_there_excludes_one_side(built, method: str) -> None:
    for bounds, start, slope in (((1.0, 3.0), 1.0, 1.0), ((1.0, 3.0), 2.5, 1.0), ((0.2, 1.0), 1.0, -2.0)):
        problem = dh.OptimizationProblem(built(ramp), (0, 3), "cost", bounds={"t1": bounds}, **OPTIONS)
        with warnings.catch_warnings():  # trust-constr may end a little within the bound, and see both sides
            warnings.simplefilter("error" if method != "trust-constr" else "ignore")
            found = problem.minimize(method, x0=[start])
        assert found.success
        assert found.parameters["t1"] == pytest.approx(1.0, abs=2e-3)
        if method != "trust-constr":
            assert found.gradient[0] == pytest.approx(slope, abs=1e-6)
            assert bounds[0] <= found.one_sided[-1].taken_at["t1"] <= bounds[1]


def test_a_point_without_derivatives_on_any_side_fails() -> None:
    """x rests at the kink of fabs wherever p is: no point beside it helps."""

    def run(q):
        if q[0] < 2:
            Conditions().fail_as_one_sided(dh.EventError("Both sides.", time=1.0))
        return q

    sides = Sides(("p",), np.array([-np.inf]), np.array([np.inf]), np.ones(1), 1e-6)
    with pytest.raises(dh.EventError, match="Both sides"):
        sides.take(np.ones(1), run)
    found, at, said = sides.take(np.array([2.0 - 1e-7]), run)
    assert found is at
    assert said is not None
    assert said.parameters == {"p": 2.0 - 1e-7}
    assert said.reason == "Both sides. [t = 1.0]"


def test_points_beside_respect_limits_and_separate_times() -> None:
    lower, upper = np.array([0.0, 0.0, -np.inf]), np.array([np.inf, 1.0, np.inf])
    sides = Sides(("a", "b", "c"), lower, upper, np.ones(3), 1e-6, (np.array([0, 1]),))
    for q in ([0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.5, 0.5, 0.5]):
        a, b, c = found = sides.beside(np.array(q))
        assert 0.0 <= a < b <= 1.0
        assert len({*found}) == 3
        assert c != q[2]
        assert sides.is_at_limit(np.array(q))
    assert not sides.is_at_limit(np.array([0.2, 0.5, 0.0]))


def test_a_kink_of_a_constraint_at_a_bound() -> None:
    """The sides agree at the bound if the coincidence is at it, and differ if it is beside another parameter."""
    sides = Sides(("a", "b"), np.zeros(2), np.full(2, np.inf), np.ones(2), 1e-6)

    def rows(kink):
        def values(q):
            by = np.zeros(2)
            by[kink] = float(q[kink] > (0.0 if kink == 0 else 1.0))
            return np.concatenate(([q.sum()], np.ones(2) + by))[None]

        return values

    assert not sides.differ(np.array([0.0, 1.0]), rows(0))
    assert sides.differ(np.array([0.0, 1.0]), rows(1))
    assert sides.differ(np.array([0.5, 1.0]), rows(0))
