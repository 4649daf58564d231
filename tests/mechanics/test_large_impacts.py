"""Impacts of large mechanisms, and implicit resets and projections of many unknowns: values and derivatives."""

from __future__ import annotations

import sys
from itertools import pairwise

import casadi as ca
import numpy as np
import pytest
from growing import bars

import dae_hybrid as dh
from dae_hybrid.mechanics import Formulation, Index1, Index2, Mechanism, Penalty, Restitution
from dae_hybrid.numerics import matrices

TIGHT = {"rtol": 1e-9, "atol": 1e-11}


@pytest.fixture
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small systems take the way of large ones: sparse matrices, products, nothing compiled for events."""
    large = matrices.MAX_DENSE_ROWS
    for name, module in list(sys.modules.items()):
        if name.startswith("dae_hybrid.") and getattr(module, "MAX_DENSE_ROWS", None) == large:
            monkeypatch.setattr(module, "MAX_DENSE_ROWS", 2)
    monkeypatch.setattr(matrices, "FULL", 0.99)
    monkeypatch.setattr("dae_hybrid.compile.native_transitions.MAX_POINT_ENTRIES", 0)


def falling(n: int) -> Mechanism:
    """A straight chain of bars of mass one that falls flat from a height onto something under its last point."""
    mech = Mechanism("falling")
    height, g, e = mech.parameter("height", 1.3), mech.parameter("g", 9.81), mech.parameter("e", 0.6)
    points = [mech.point(str(i)) for i in range(n + 1)]
    for one, other in pairwise(points):
        mech.bar(one, other, length=1.0, mass=1.0)
    mech.gravity(g)
    fall, tip = mech.mode("fall"), points[-1]
    hit = mech.event(fall, fall, guard=tip.y, direction="falling", impact=Restitution(e), name="hit")
    mech.initial(fall, {c: v for i, p in enumerate(points) for c, v in ((p.x, float(i)), (p.y, height))})
    mech.functional("after", at_events={hit: ca.vertcat(*(mech.post(p.vy) for p in points))})
    mech.functional("impulse", at_events={hit: mech.impulse(hit)})
    mech.functional("tip", terminal=tip.y)
    return mech


@pytest.mark.parametrize(
    ("form", "n"), [(Index2(), 16), (Index1(), 14), (Penalty(), 18)], ids=["index 2", "index 1", "penalty"]
)
def test_a_straight_chain_that_falls_flat(form: Formulation, n: int) -> None:
    """Velocities jump by M dv = P e_n, M the tridiagonal matrix of m/6 (1, 4, 1): dv_i ~ (-1)^i cosh(i arccosh 2)."""
    system = falling(n).build(form)
    height, g, e = 1.3, 9.81, 0.6
    speed, mu = np.sqrt(2 * g * height), np.arccosh(2.0)
    share = (-1.0) ** (n - np.arange(n + 1)) * np.exp((np.arange(n + 1) - n) * mu)
    share = share * (1 + np.exp(-2 * np.arange(n + 1) * mu)) / (1 + np.exp(-2 * n * mu))  # cosh(i mu) / cosh(n mu)
    after = -speed + (1 + e) * speed * share
    impulse = (1 + e) * speed * (2 * share[-1] + share[-2]) / 6
    by_speed = np.array([g, height, 0.0]) / speed
    by_p = np.outer(after / speed, by_speed) + np.outer(share * speed, [0, 0, 1])
    impulse_by_p = impulse * (by_speed / speed + np.array([0, 0, 1 / (1 + e)]))
    end = 1.01 * np.sqrt(2 * height / g)
    fsa = dh.forward_sensitivity(system, (0, end), **TIGHT)
    np.testing.assert_allclose(fsa.functionals["after"], after, rtol=1e-7)
    np.testing.assert_allclose(fsa.functionals["impulse"], impulse, rtol=1e-7)
    np.testing.assert_allclose(fsa.gradient["after"], by_p, rtol=1e-6, atol=1e-7)
    for name, exact in (("after", by_p), ("impulse", impulse_by_p)):
        asa = dh.adjoint_gradient(system, (0, end), name, **TIGHT)
        np.testing.assert_allclose(asa.gradient, exact, rtol=1e-6, atol=1e-7)
    asa = dh.adjoint_gradient(system, (0, end), "tip", **TIGHT)
    np.testing.assert_allclose(asa.gradient, fsa.gradient["tip"], rtol=1e-5, atol=1e-8)


@pytest.mark.campaign
@pytest.mark.parametrize("form", [Index2(), Index1()], ids=["index 2", "index 1"])
def test_a_chain_of_forty_bars_with_contacts(form: Formulation) -> None:
    """What its energy loses is the work of its impulses, whatever the parameters; and all ways agree on its tip."""
    system = bars(40, contacts=True).build(form)
    span, options = (0, 0.66), {"rtol": 1e-8, "atol": 1e-10}
    fsa = dh.forward_sensitivity(system, span, **options)
    assert [event.transition for event in fsa.trajectory.events] == ["stop", "stop", "stop", "ground"]
    assert fsa.functionals["energy"] == pytest.approx(fsa.functionals["work"], abs=1e-5)
    assert abs(fsa.functionals["work"]) > 1.0
    np.testing.assert_allclose(fsa.gradient["energy"], fsa.gradient["work"], atol=2e-4)
    asa = dh.adjoint_gradient(system, span, "G", **options)
    np.testing.assert_allclose(asa.gradient, fsa.gradient["G"], rtol=1e-4, atol=1e-6)
    step = 1e-4
    for i, name in enumerate(system.parameters.names):
        ends = [
            dh.simulate(system, span, parameters={name: system.nominal[i] + s}, **options).functionals["G"]
            for s in (-step, step)
        ]
        assert float(np.diff(np.ravel(ends))[0]) / (2 * step) == pytest.approx(fsa.gradient["G"][i], rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("form", [Index2(), Index1(), Penalty()], ids=["index 2", "index 1", "penalty"])
def test_products_give_what_entries_give(request: pytest.FixtureRequest, form: Formulation) -> None:
    def found() -> list[np.ndarray]:
        system = bars(2, contacts=True).build(form)
        fsa = dh.forward_sensitivity(system, (0, 0.8), **TIGHT)
        asa = dh.adjoint_gradient(system, (0, 0.8), "G", **TIGHT)
        return [*fsa.gradient.values(), asa.gradient, fsa.trajectory.events[-1].time]

    entries = found()
    request.getfixturevalue("everything_is_large")
    for one, other in zip(entries, found(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-9)


def pairs(*, agree: bool) -> dh.HybridModel:
    """120 pairs x = p y, y' = 2 / (1 + p) from 1/2, set to 1/5 at 1 by more equations than are needed."""
    m, n = dh.HybridModel("pairs"), 120
    p = m.parameter("p", 1.0)
    x, y, z = m.differential("x", size=n), m.differential("y", size=n), m.algebraic("z", size=n)
    run = m.mode("run", ode={x: 1 + z, y: 1 - z}, constraint=x - p * y)
    reset = [m.post(x) - 0.2 * (p if agree else 1.0), m.post(y) - 0.2]
    m.transition(run, run, guard=y[0] - 1, direction="rising", reset=reset, name="set")
    m.initial(run, {y: 0.5 * np.ones(n)})
    m.functional("G", terminal=y[n - 1])
    return m


@pytest.mark.parametrize("analysis", ["forward", "adjoint"])
def test_more_equations_than_unknowns(analysis: str) -> None:
    """y(1) = 2 / (1 + p) - 3 / 10; equations that agree at the nominal parameters only have no derivative."""

    def gradient(system: dh.HybridSystem) -> np.ndarray:
        if analysis == "forward":
            return dh.forward_sensitivity(system, (0, 1), **TIGHT).gradient["G"]
        return dh.adjoint_gradient(system, (0, 1), "G", **TIGHT).gradient

    system = pairs(agree=True).build()
    assert dh.simulate(system, (0, 1), **TIGHT).functionals["G"] == pytest.approx(0.7, rel=1e-8)
    np.testing.assert_allclose(gradient(system), -0.5, rtol=1e-7)
    system = pairs(agree=False).build()
    assert dh.simulate(system, (0, 1), **TIGHT).functionals["G"] == pytest.approx(0.7, rel=1e-8)
    with pytest.raises(dh.ConsistencyError, match="but not at others") as caught:
        gradient(system)
    assert caught.value.transition == "set"
