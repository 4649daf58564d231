"""Events at the edge of their conditions: what random systems (tests/support/closed_forms_at_edges.py) have found."""

from __future__ import annotations

from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh

COMPARED = {">": lambda q: q > 0, ">=": lambda q: q >= 0, "<": lambda q: q < 0, "<=": lambda q: q <= 0}


@pytest.mark.parametrize("compared", COMPARED)
@pytest.mark.parametrize("clip", [ca.fmax, ca.fmin])
@pytest.mark.parametrize("start", [1.0, -1.0])
@pytest.mark.parametrize("speed", [1.0, -1.0])
def test_what_is_put_onto_its_threshold_is_judged_by_the_branch_that_it_goes_to(
    speed: float, start: float, clip: Any, compared: str
) -> None:
    """x is put to zero, where its clip begins: a condition that holds on both sides, or on none, is no event."""
    holds = [bool(COMPARED[compared](float(clip(x, 0)))) for x in (start, speed)]
    if float(clip(start, 0)) and float(clip(speed, 0)):
        pytest.skip("it leaves its threshold as it has come")
    m = dh.HybridModel("put")
    x, v, rises, falls = m.differential("x"), m.memory("v", initial=0.0), m.differential("r"), m.differential("f")
    run = m.mode("run", ode={x: v, rises: 0, falls: 0})
    m.transition(run, run, at=1.0, reset={x: 0.0}, memory={v: speed})
    condition = COMPARED[compared](clip(x, 0))
    if condition.is_constant():
        pytest.skip("CasADi knows that it never holds")
    m.transition(run, run, guard=condition, reset={rises: rises + 1})
    m.transition(run, run, guard=condition, direction="falling", reset={falls: falls + 1})
    m.initial(run, {x: start, rises: 0.0, falls: 0.0})
    system = m.build(native=False)
    for native_events in (True, False):
        final = dh.simulate(system, (0, 2), native_events=native_events).final[2]
        assert final[1:].tolist() == [holds == [False, True], holds == [True, False]]


@pytest.mark.parametrize(
    "options", [{}, {"method": "bdf"}, {"native_events": False}], ids=["compiled", "BDF", "Python"]
)
@pytest.mark.parametrize("order", [4, 5])
@pytest.mark.parametrize("side", [1, -1])
def test_noise_does_not_fire_what_leaves_zero_slowly(side: int, order: int, options: Any) -> None:
    """x = c + a s^n / n! - b s^(n+1) / (n+1)! from an entry: smaller than the error of the state for some time."""
    m = dh.HybridModel("slow")
    c, y, s = m.parameter("c", 0.7), m.differential("y"), m.differential("s")
    chain = [m.differential(f"x{i}") for i in range(order)]
    rates = dict(zip(chain, [*chain[1:], side * (2 - 6 * s)], strict=True))
    before = m.mode("before", ode={**dict.fromkeys(chain, 0), s: 1, y: 0})
    watch, done = m.mode("watch", ode={**rates, s: 1, y: 0}), m.mode("done", ode={**rates, s: 1, y: 1})
    m.transition(before, watch, at=0.5, reset={**dict.fromkeys(chain, 0.0), chain[0]: c, s: 0.0})
    m.transition(watch, done, guard=chain[0] - c, direction="rising")
    m.initial(before, {**dict.fromkeys(chain, 0.0), chain[0]: c - 1, s: 0.0, y: 0.0})
    m.functional("G", terminal=y)
    sol = dh.simulate(m.build(native=not options), (0, 4), rtol=1e-9, **options)
    back = 0 if side > 0 else (order + 1) / 3
    assert sol.functionals["G"] == pytest.approx(3.5 - back, abs=1e-5)


@pytest.mark.parametrize(
    "options", [{}, {"method": "bdf"}, {"native_events": False}], ids=["compiled", "BDF", "Python"]
)
@pytest.mark.parametrize("direction", ["rising", "both"])
def test_a_set_point_is_not_reached_in_a_long_run(direction: str, options: Any) -> None:
    """The rate of what has settled is its error times the rate of the decay: over a long run that seems to be a way."""
    m = dh.HybridModel("long")
    c, x, z, y = m.parameter("c", 1.7), m.differential("x"), m.differential("z"), m.differential("y")
    quiet, alarm = (m.mode(name, ode={x: -8 * (x - c), z: 3 * (c - z), y: x}) for name in ("quiet", "alarm"))
    m.transition(quiet, alarm, guard=x - c + (z - c) / 2, direction=direction, reset={y: y + 1})
    m.initial(quiet, {x: -1.0, z: 0.0, y: 0.0})
    m.functional("G", terminal=y)
    system = m.build(native=not options)
    told = []
    for rtol in (1e-6, 1e-8):
        try:
            sol = dh.simulate(system, (0, 60), rtol=rtol, **options)
        except dh.EventError as error:
            told.append(str(error))
            continue
        assert not sol.events
        assert sol.functionals["G"] == pytest.approx(60 * 1.7 - 2.7 / 8, rel=1e-5)
    assert all("within its accuracy" in text for text in told)


@pytest.mark.parametrize("adapter", ["scipy", "casadi"])
def test_a_plateau_without_a_kink_is_reached_where_it_begins(adapter: str) -> None:
    """Kinks that keep the argument of a root in its domain are no events."""
    m = dh.HybridModel("root")
    x, y = m.differential("x"), m.differential("y")
    run = m.mode("run", ode={x: -0.5, y: ca.if_else(ca.sqrt(ca.fmax(x, 0)) > 0, 1, 0)})
    m.initial(run, {x: 1.0, y: 0.0})
    sol = dh.simulate(m.build(native=False), (0, 7), adapter=adapter)
    assert sol["y"][-1] == pytest.approx(2.0, abs=1e-6)


def test_a_kink_at_the_zero_of_its_guard_has_derivatives() -> None:
    """What cancels at an event leaves rounding, for parameters on which the guard does not depend."""
    m = dh.HybridModel("cancels")
    a, v0 = m.parameter("a", 1.4243), m.parameter("v0", 1.2592)
    v, x = m.differential("v"), m.differential("x")
    slides = m.mode("slides", ode={v: -a * ca.sign(v), x: v})
    m.transition(slides, None, guard=ca.fmax(v, -v), direction="falling")
    m.initial(slides, {v: v0, x: 0.0})
    m.functional("G", terminal=x)
    system = m.build(native=False)
    for a_, v_ in ((1.4243, 1.2592), (1.3, 0.7), (2.1, -1.1)):
        p = {"a": a_, "v0": v_}
        asa = dh.adjoint_gradient(system, (0, 3), parameters=p, method="bdf")
        np.testing.assert_allclose(asa.gradient, [-v_ * abs(v_) / (2 * a_**2), abs(v_) / a_], rtol=1e-5)


def test_a_zero_that_time_does_not_resolve_is_refused() -> None:
    """h' = -a h^-3: h is 1e-4 where the rest of its way takes less than a rounding error of the time."""
    m = dh.HybridModel("empties")
    a, h = m.parameter("a", 0.345), m.differential("h")
    m.transition(m.mode("full", ode={h: -a * h**-3}), None, guard=h, direction="falling", name="empty")
    m.initial("full", {h: 1.458})
    m.functional("T", terminal=m.time)
    system = m.build()
    for analysis in (dh.simulate, dh.forward_sensitivity, dh.adjoint_gradient):
        with pytest.raises(dh.StepSizeError):
            analysis(system, (0, 9), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("method", ["bdf", "adams"])
def test_the_root_of_a_clip_is_met_where_it_leaves_zero(method: str) -> None:
    """x leaves zero at 0.5, and is put back before a step has ended: the condition holds for 0.05 and 0.45."""
    m = dh.HybridModel("root of a clip")
    c, x, y = m.parameter("c", 0.0), m.differential("x"), m.differential("y")
    run = m.mode("run", ode={x: 1.0, y: ca.if_else(2 * ca.sqrt(ca.fmax(x - c, 0)) > 0, 1, 0)})
    m.transition(run, run, at=0.55, reset={x: -1.0}, name="moves")
    m.initial(run, {x: -0.5, y: 0.0})
    m.functional("G", terminal=y)
    system = m.build()
    assert dh.simulate(system, (0, 2), method=method, rtol=1e-9).functionals["G"] == pytest.approx(0.5, abs=1e-8)
    with pytest.raises((dh.EventError, dh.NonFiniteError)):  # the slope of the root is infinite
        dh.adjoint_gradient(system, (0, 2), method=method, rtol=1e-9)


@pytest.mark.parametrize("clip", [lambda x: ca.fmax(x, 0), lambda x: ca.sqrt(ca.fmax(x, 0))], ids=["clip", "root"])
def test_a_condition_fires_once_where_a_branch_changes_with_it(clip: Any) -> None:
    """x reaches zero, is put onto it from then on, and the branch of its clip is corrected at the same instant."""
    m = dh.HybridModel("once")
    x, v, fired = m.differential("x"), m.memory("v", initial=-1.0), m.differential("fired")
    run = m.mode("run", ode={x: v, fired: 0})
    m.transition(run, run, guard=clip(x) > 0, direction="falling", reset={fired: fired + 1}, name="observed")
    m.transition(run, run, at=1.0, reset={x: -2.0}, name="moves")
    m.initial(run, {x: 1.0, fired: 0.0})
    for native_events in (True, False):
        sol = dh.simulate(m.build(native=False), (0, 2), native_events=native_events)
        assert sol.final[2][-1] == 1.0
