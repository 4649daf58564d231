"""Measurements stated as arrays: times in one, data in another."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.mechanics import Mechanism

TIGHT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}
TIMES = np.linspace(0.1, 1.9, 37)
DATA = np.cos(7 * TIMES)


def model(state: Callable[[dh.HybridModel, Any, Any], None]) -> dh.HybridModel:
    """x' = -k x, halved at t = ln 2 or so by a guard, and what is measured of it."""
    m = dh.HybridModel("decay")
    k, x, y = m.parameter("k", 0.7), m.differential("x"), m.differential("y", size=2)
    run = m.mode("run", ode={x: -k * x, y: ca.vertcat(x, -y[0])})
    m.transition(run, run, guard=x - 0.5, direction="falling", reset={x: 2 * x})
    m.initial(run, {x: 1.0, y: [0.2, 0.3]})
    state(m, k, (x, y))
    return m


def both(at_once: Callable[[Any, Any, Any, Any], Any], every: int = 1) -> list[dh.HybridModel]:
    """The same stated at once, and one by one; of the times every few."""
    times, data = TIMES[::every], DATA[::every]

    def series(m: dh.HybridModel, k: Any, v: Any) -> None:
        m.functional("G", at_times=[(times, at_once(m, k, v, data))])

    def singles(m: dh.HybridModel, k: Any, v: Any) -> None:
        m.functional("G", at_times=[(t, at_once(m, k, v, float(d))) for t, d in zip(times, data, strict=True)])

    return [model(series), model(singles)]


STATED: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "squares": lambda m, k, v, d: (v[0] - d) ** 2,
    "weights": lambda m, k, v, d: ca.exp(-d) * (v[0] * k - d) ** 2 / (2 + d) - ca.sqrt(3 + d),
    "entry": lambda m, k, v, d: (ca.sumsqr(v[1]) + m.time - d) ** 3,
    "power": lambda m, k, v, d: (v[0] + 2) ** (2 + d),
    "rates": lambda m, k, v, d: m.der(v[0]) * d,
    "numbers": lambda m, k, v, d: d + 0 * k,
}


@pytest.mark.parametrize("name", STATED)
def test_at_once_is_what_it_is_one_by_one(name: str) -> None:
    one, other = both(STATED[name])
    assert len(one.functionals["G"].series) == 1
    assert not one.functionals["G"].at_times
    systems = [m.build() for m in (one, other)]
    for call in (
        lambda s: dh.simulate(s, (0, 2), **TIGHT).functionals["G"],
        lambda s: dh.forward_sensitivity(s, (0, 2), **TIGHT).gradient["G"],
        lambda s: dh.adjoint_gradient(s, (0, 2), "G", **TIGHT).gradient,
    ):
        values = [call(system) for system in systems]
        assert values[0] == pytest.approx(values[1], rel=1e-13, abs=1e-14)


def test_a_closed_form() -> None:
    """sum (exp(-k t) - d)^2, without events, and its derivative by k."""
    m = dh.HybridModel("decay")
    k, x = m.parameter("k", 0.7), m.differential("x")
    m.initial(m.mode("run", ode={x: -k * x}), {x: 1.0})
    m.functional("G", at_times=[(TIMES, (x - DATA) ** 2), (2.5, x)])
    value = np.exp(-0.7 * TIMES)
    asa = dh.adjoint_gradient(m.build(), (0, 3), "G", **TIGHT)
    assert asa.value == pytest.approx(np.sum((value - DATA) ** 2) + np.exp(-1.75), rel=1e-8)
    slope = np.sum(-2 * TIMES * value * (value - DATA)) - 2.5 * np.exp(-1.75)
    assert asa.gradient == pytest.approx([slope], rel=1e-7)


@pytest.mark.parametrize(
    "at_once",
    [
        lambda m, k, v, d: ca.fabs(v[0] - d),  # has a kink
        lambda m, k, v, d: ca.vertcat(*([(v[0] - d) ** 2] if isinstance(d, float) else [(v[0] - e) ** 2 for e in d])),
        lambda m, k, v, d: v[0] * k,  # one value for all times
    ],
    ids=["kink", "rows", "one"],
)
def test_what_is_no_series_is_stated_one_by_one(at_once: Any) -> None:
    one, other = both(at_once, every=6)
    assert not one.functionals["G"].series
    assert len(one.functionals["G"].at_times) == 7
    values = [dh.adjoint_gradient(m.build(native=False), (0, 2), "G", **TIGHT).gradient for m in (one, other)]
    assert np.array_equal(*values)


def test_entries_that_depend_on_those_before_are_no_series() -> None:
    def state(m: dh.HybridModel, k: Any, v: Any) -> None:
        misfits = v[0] - DATA
        m.functional("G", at_times=[(TIMES, misfits * ca.vertcat(0, misfits[:-1]))])

    m = model(state)
    assert not m.functionals["G"].series
    run = dh.simulate(m.build(native=False), (0, 2), t_eval=TIMES, **TIGHT)
    x, before = run["x"], np.concatenate(([0.0], DATA[:-1]))
    expected = np.sum(((x - DATA) * (x - before))[1:])
    assert run.functionals["G"] == pytest.approx(expected, rel=1e-8)


def test_vectors_have_a_row_for_every_time() -> None:
    def state(m: dh.HybridModel, k: Any, v: Any) -> None:
        m.functional("G", at_times=[(TIMES, ca.horzcat(v[0] - DATA, v[0] * DATA)), (2.0, v[1])])

    system = model(state).build()
    run = dh.simulate(system, (0, 2), t_eval=[*TIMES, 2.0], **TIGHT)
    x, last = run["x"][:-1], run["y"][-1]
    expected = [np.sum(x - DATA) + last[0], np.sum(x * DATA) + last[1]]
    assert run.functionals["G"] == pytest.approx(expected, rel=1e-8)


def test_several_functionals_with_branches_and_series() -> None:
    """Branches count the measurements that are stated one by one."""

    def state(m: dh.HybridModel, k: Any, v: Any) -> None:
        m.functional("A", at_times=[(TIMES, (v[0] - DATA) ** 2)])
        m.functional("B", at_times={1.0: ca.if_else(v[1][0] > 0.2, v[0], -v[0]), 1.5: k * v[0]})

    system = model(state).build()
    run = dh.simulate(system, (0, 2), t_eval=[1.0, 1.5], **TIGHT)
    assert run["y"][0, 0] > 0.2
    assert run.functionals["B"] == pytest.approx(run["x"][0] + 0.7 * run["x"][1], rel=1e-8)
    for name in "AB":
        check = dh.check_gradient(system, (0, 2), name, **TIGHT)
        assert check.difference("adjoint", "forward") < 1e-7
        assert check.difference("finite_difference", "forward") < 1e-4


def test_a_series_is_pickled_and_copied() -> None:
    system = both(STATED["squares"])[0].build()
    again = pickle.loads(pickle.dumps(system))
    values = [dh.simulate(s, (0, 2), **TIGHT).functionals["G"] for s in (system, again)]
    assert values[0] == values[1]


def test_mechanisms_take_them() -> None:
    def stated(at_times: Any) -> float:
        mech = Mechanism("fall")
        bob = mech.point("")
        mech.point_mass(bob, 1.0)
        mech.gravity(9.81)
        mech.initial(mech.mode("fall"), {bob.x: 0.0, bob.y: 0.0})
        mech.functional("G", at_times=at_times(bob))
        return float(dh.simulate(mech.build(), (0, 2), **TIGHT).functionals["G"])

    expected = float(np.sum((-9.81 * TIMES**2 / 2 - DATA) ** 2))
    assert stated(lambda bob: [(TIMES, (bob.y - DATA) ** 2)]) == pytest.approx(expected, rel=1e-8)


def test_refusals() -> None:
    m = dh.HybridModel("refused")
    x = m.differential("x")
    with pytest.raises(dh.ModelError, match="has 36 rows for 37 times"):
        m.functional("G", at_times=[(TIMES, x - DATA[1:])])
    with pytest.raises(dh.ModelError, match="must be finite"):
        m.functional("G", at_times=[([0.1, np.nan], x)])
    with pytest.raises(dh.ModelError, match="must be finite"):
        m.functional("G", at_times=[([0.1, 0.2], x - np.array([0.1, np.inf]))])
    with pytest.raises(dh.ModelError, match="one common size"):
        m.functional("G", at_times=[(TIMES, x - DATA)], terminal=ca.vertcat(x, x))
    with pytest.raises(dh.ModelError, match="measurement times"):
        m.functional("G", at_times=[([], x)])
    m.initial(m.mode("run", ode={x: -x}), {x: 1.0})
    m.functional("G", at_times=[(TIMES, x - DATA)])
    with pytest.raises(dh.DaeHybridError, match="outside"):
        dh.simulate(m.build(native=False), (0, 1))
    other = dh.HybridModel("other").differential("y")
    m.functional("H", at_times=[(TIMES, other - DATA)])
    with pytest.raises(dh.ModelError, match="does not declare"):
        dh.simulate(m.build(native=False), (0, 2))


def test_a_vector_of_as_many_entries_as_times_is_ambiguous() -> None:
    """Rows may be its entries, or the times."""
    m = dh.HybridModel("vector")
    x = m.differential("x", size=3)
    m.initial(m.mode("run", ode={x: -x}), {x: np.ones(3)})
    times, data = np.array([0.1, 0.2, 0.3]), np.array([1.0, 2.0, 3.0])
    with pytest.raises(dh.ModelError, match="rows may mean either"):
        m.functional("both", at_times=[(times, (x - data) ** 2)])
    m.functional("first", at_times=[(times, ca.fabs(x[0] - data))])
    found = dh.simulate(m.build(), (0, 1), rtol=1e-9, atol=1e-12).functionals["first"]
    assert found == pytest.approx(np.abs(np.exp(-times) - data).sum())
