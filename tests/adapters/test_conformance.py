"""Adapters that only integrate: the same answers, the same failures, and refusals that name who can."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import casadi as ca
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dae_hybrid as dh
from dae_hybrid.cli import main
from dae_hybrid.interface import registry
from dae_hybrid.numerics.step_polynomial import COEFFICIENTS, Step
from dae_hybrid.problems import em_hysteresis, hybrid_ode, load
from dae_hybrid.problems.conformance import CASES, ConformanceError, conformance, errors, slopes

TIGHT = {"rtol": 1e-9, "atol": 1e-12}
STEPPED = ["scipy", "casadi", "scikits-odes"]
stepped = pytest.mark.parametrize("adapter", STEPPED)


# -- conformance --------------------------------------------------------------------------------------------


@stepped
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_every_problem_through_every_adapter(case: Any, adapter: str) -> None:
    found = conformance(adapter, cases=[case], rtol=1e-6, rtols=())
    found.check()
    assert bool(found.results[0].refused) == (case.form == {"index2": "direct"})


@stepped
@pytest.mark.parametrize("index", [5, 0])
def test_errors_follow_the_tolerance(index: int, adapter: str) -> None:
    found = conformance(adapter, cases=[CASES[index]], rtols=(1e-5, 1e-6, 1e-7, 1e-8, 1e-9))
    found.check()
    assert np.nanmax(found.results[0].slopes) > 0.7


def test_the_suite_finds_an_adapter_that_is_not_accurate() -> None:
    from dae_hybrid.adapters.scipy import SciPyIntegrator

    class Sloppy(SciPyIntegrator):
        name = "sloppy"

        def start(self, problem: Any) -> Any:
            problem.method, problem.rtol, problem.absolute = "rk45", 1e-3, 1e-3 + 0 * problem.absolute
            return super().start(problem)

    dh.register_adapter(Sloppy, replace=True)
    found = conformance("sloppy", cases=CASES[:1], rtols=(1e-5, 1e-6, 1e-7))
    with pytest.raises(ConformanceError, match="sloppy: hybrid_ode: ODE: error of the value is"):
        found.check()
    assert any("falls with a slope" in text for text in found.objections)


def test_an_adapter_that_fails_is_an_objection_and_not_the_end_of_the_suite() -> None:
    from dae_hybrid.adapters.scipy import SciPyIntegrator

    class Fails(SciPyIntegrator):
        name = "fails"

        def start(self, problem: Any) -> Any:
            raise dh.StepSizeError("No step is right.", mode=problem.name)

    dh.register_adapter(Fails, replace=True)
    found = conformance("fails", "scipy", cases=CASES[:1], rtols=())
    assert found.objections == ["fails: hybrid_ode: ODE: StepSizeError: No step is right."]


def test_slopes_leave_out_rounding() -> None:
    rtols = np.array([1e-4, 1e-5, 1e-6, 1e-7])
    table = np.array([[1e-3, 1e-16], [1e-4, 0.0], [1e-5, 1e-16], [1e-15, 1e-16]])
    found = slopes(rtols, table)
    assert found[0] == pytest.approx(1.0)
    assert np.isnan(found[1])


def test_scipy_needs_no_sundials() -> None:
    code = (
        "import sys, dae_hybrid as dh\n"
        "from dae_hybrid.problems import hybrid_ode as p\n"
        "g = dh.adjoint_gradient(p.system(), p.t_span, 'G', adapter='scipy', rtol=1e-9, atol=1e-12).gradient[0]\n"
        "assert abs(g + 2.31195310744389) < 1e-7, g\n"
        "assert not any('sundials' in name for name in sys.modules)\n"
        "assert 'sundials4py' not in open('/proc/self/maps').read()\n"
    )
    if not Path("/proc/self/maps").exists():
        pytest.skip("shows no maps")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# -- everything a result offers -------------------------------------------------------------------------------


@stepped
@pytest.mark.parametrize("name", ["counter", "ball", "circuit", "em"])  # in this order, SciPy takes counter
def test_results_agree_with_the_native_adapter(name: str, adapter: str, built: Any, models: Any) -> None:
    system, span = built(getattr(models, name)), (0.0, 1.2)
    functional = {"ball": "height", "circuit": "both", "counter": "area", "em": "G"}[name]
    t_eval = np.linspace(*span, 38)  # none of them is the time of an event
    ours, native = (
        SimpleNamespace(
            sol=dh.simulate(system, span, adapter=a, t_eval=t_eval, **TIGHT),
            fsa=dh.forward_sensitivity(system, span, adapter=a, t_eval=t_eval, **TIGHT),
            asa=dh.adjoint_gradient(system, span, functional, adapter=a, **TIGHT),
        )
        for a in (adapter, "sundials")
    )
    assert [e.transition for e in ours.sol.events] == [e.transition for e in native.sol.events]
    assert [e.time for e in ours.sol.events] == pytest.approx([e.time for e in native.sol.events], abs=1e-7)
    assert np.array_equal(ours.sol.t, t_eval)
    for variable in native.sol.names:
        assert ours.sol[variable] == pytest.approx(native.sol[variable], rel=1e-6, abs=1e-6)
        assert ours.fsa[variable] == pytest.approx(native.fsa[variable], rel=1e-5, abs=1e-5)
    times = np.array([0.1, 0.55, 1.1])
    for a, b in ((ours.sol(times), native.sol(times)), (ours.asa.adjoint(times), native.asa.adjoint(times))):
        for variable in native.sol.system.modes[0].differential.names:
            assert a[variable] == pytest.approx(b[variable], rel=1e-5, abs=1e-5)
    assert ours.fsa.event_time_sensitivity == pytest.approx(native.fsa.event_time_sensitivity, rel=1e-5, abs=1e-6)
    assert ours.fsa.gradient[functional] == pytest.approx(native.fsa.gradient[functional], rel=1e-6, abs=1e-7)
    assert ours.asa.gradient == pytest.approx(native.asa.gradient, rel=1e-6, abs=1e-7)


@stepped
def test_algorithm_1(adapter: str) -> None:
    system, exact = em_hysteresis.system(), em_hysteresis.reference()
    ways = [
        dh.adjoint_gradient(system, (0, 10), "G", adapter=adapter, algorithm=a, rtol=1e-9, atol=1e-13).gradient
        for a in ("general", "serban-recuero")
    ]
    assert ways[0] == pytest.approx(ways[1], rel=1e-12, abs=1e-18)
    assert ways[1][:3] == pytest.approx(exact.gradient[:3], rel=1e-5)


@stepped
def test_check_gradient(adapter: str) -> None:
    check = dh.check_gradient(hybrid_ode.system(), (0, 5), "G", adapter=adapter, rtol=1e-9, atol=1e-12)
    assert check.same_events
    assert check.difference("forward", "adjoint") < 1e-6
    assert check.difference("forward", "finite_difference") < 1e-3


@stepped
def test_knots_measurements_and_time_events(adapter: str) -> None:
    m = dh.HybridModel("data")
    a, when = m.parameter("a", 0.7), m.parameter("when", 0.8)
    y = m.differential("y")
    f = m.signal("f", [0.0, 0.5, 1.0, 2.0], [1.0, 2.0, 0.0, 1.0], kind="linear")
    run = m.mode("run", ode={y: f - a * y})
    m.transition(run, run, at=when, reset={y: 0.5 * y})
    m.initial(run, {y: 1.0})
    m.functional("G", integrand=y**2, at_times={0.5: y, 0.9: 2 * y, 1.7: y**3})
    system = m.build()
    native = dh.forward_sensitivity(system, (0, 2), wrt="a", **TIGHT)
    fsa = dh.forward_sensitivity(system, (0, 2), wrt="a", adapter=adapter, **TIGHT)
    asa = dh.adjoint_gradient(system, (0, 2), "G", wrt="a", adapter=adapter, **TIGHT)
    assert asa.value == pytest.approx(native.functionals["G"], rel=1e-7)
    assert fsa.gradient["G"] == pytest.approx(native.gradient["G"], rel=1e-7)
    assert asa.gradient == pytest.approx(native.gradient["G"], rel=1e-7)


@stepped
@settings(max_examples=5, deadline=None)
@given(
    a=st.floats(0.2, 3.0), b=st.floats(-1.5, 1.5), level=st.floats(0.2, 0.8), r=st.floats(-1.5, 1.5), z0=st.booleans()
)
def test_random_systems_have_one_gradient(adapter: str, a: float, b: float, level: float, r: float, z0: bool) -> None:
    """Decay to a level, a reset by a parameter, then an oscillation driven by an algebraic variable."""
    m = dh.HybridModel("random")
    p = m.parameter("p", [a, b, level, r], size=4)
    x, w = m.differential("x"), m.differential("w")
    z = m.algebraic("z")
    first = m.mode("first", ode={x: -p[0] * x, w: p[1] * z}, algebraic=[z + 0.1 * z**3 - x - w])
    then = m.mode("then", ode={x: w, w: -p[0] * x}, algebraic=[z - x])
    m.transition(first, then, guard=x - p[2], direction="falling", reset={w: w + p[3] * x})
    m.initial(first, {x: 1.0, w: 0.3})
    m.functional("G", integrand=z**2, terminal=x * w)
    system = m.build(eliminate=z0)
    options: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-10}
    native = dh.adjoint_gradient(system, (0, 3), "G", **options)
    fsa = dh.forward_sensitivity(system, (0, 3), adapter=adapter, **options)
    asa = dh.adjoint_gradient(system, (0, 3), "G", adapter=adapter, **options)
    scale = np.abs(native.gradient).max()
    assert asa.value == pytest.approx(native.value, rel=1e-5, abs=1e-6)
    assert fsa.gradient["G"] == pytest.approx(native.gradient, rel=1e-5, abs=2e-6 * scale)
    assert asa.gradient == pytest.approx(native.gradient, rel=1e-5, abs=2e-6 * scale)


# -- stiffness, interpolation -----------------------------------------------------------------------------------


def van_der_pol() -> dh.HybridSystem:
    m = dh.HybridModel("van der Pol")
    mu = m.parameter("mu", 1e3)
    y, w = m.differential("y"), m.differential("w")
    run = m.mode("run", ode={y: w, w: mu * (1 - y**2) * w - y})
    m.initial(run, {y: 2.0, w: 0.0})
    m.functional("G", integrand=y**2)
    return m.build()


@stepped
def test_stiff_equations_and_their_adjoint(adapter: str) -> None:
    system = van_der_pol()
    asa = dh.adjoint_gradient(system, (0, 500), "G", adapter=adapter, rtol=1e-7, atol=1e-9)
    native = dh.adjoint_gradient(system, (0, 500), "G", rtol=1e-9, atol=1e-11)
    assert asa.trajectory.segments[-1].method in ("radau", "bdf")
    assert asa.value == pytest.approx(native.value, rel=1e-5)
    assert asa.gradient == pytest.approx(native.gradient, rel=1e-4)


@stepped
def test_auto_changes_to_a_stiff_method_on_the_way(adapter: str) -> None:
    m = dh.HybridModel("turns stiff")
    k = m.parameter("k", 1.0)
    y, s = m.differential("y"), m.differential("s")
    run = m.mode("run", ode={y: -k * (s**8) * (y - ca.cos(m.time)), s: 1.0})
    m.initial(run, {y: 0.0, s: 0.0})
    m.functional("G", integrand=y)
    system = m.build()
    sol = dh.simulate(system, (0, 8), adapter=adapter, rtol=1e-7, atol=1e-10)
    assert [segment.method for segment in sol.segments][-1] in ("radau", "bdf")
    assert len({segment.method for segment in sol.segments}) == 2
    assert sol.functionals["G"] == pytest.approx(dh.simulate(system, (0, 8), **TIGHT).functionals["G"], rel=1e-4)


@stepped
@pytest.mark.parametrize("t_eval", [None, [10.0]])
def test_an_integrand_that_is_a_pulse(t_eval: Any, adapter: str) -> None:
    m = dh.HybridModel("pulse")
    a = m.parameter("a", 0.2)
    y = m.differential("y")
    m.initial(m.mode("run", ode={y: -a * y}), {y: 1.0})
    m.functional("G", integrand=y * ca.exp(-(((m.time - 5) / 0.1) ** 2)))
    system = m.build()
    t = np.linspace(4, 6, 4001)
    weight = np.exp(-(((t - 5) / 0.1) ** 2) - 0.2 * t)
    exact, slope = np.trapezoid(weight, t), np.trapezoid(-t * weight, t)
    options: dict[str, Any] = {"adapter": adapter, "rtol": 1e-7, "atol": 1e-9, "max_step": 0.5, "t_eval": t_eval}
    asa = dh.adjoint_gradient(system, (0, 10), "G", **options)
    fsa = dh.forward_sensitivity(system, (0, 10), **options)
    assert asa.value == pytest.approx(exact, rel=1e-5)
    assert fsa.gradient["G"] == pytest.approx([slope], rel=1e-5)
    assert asa.gradient == pytest.approx([slope], rel=1e-5)


@stepped
def test_guards_that_cross_zero_and_come_back_within_a_step(adapter: str) -> None:
    m = dh.HybridModel("arc")
    x, v, n = m.differential("x"), m.differential("v"), m.memory("n", initial=0.0)
    run = m.mode("run", ode={x: v, v: -1.0})
    above = m.mode("above", ode={x: v, v: -1.0})
    m.transition(run, above, guard=x - 0.499, direction="rising", memory={n: n + 1})
    m.transition(above, run, guard=x - 0.499, direction="falling", memory={n: n + 1})
    m.initial(run, {x: 0.0, v: 1.0})  # x has its maximum of 1/2 at t = 1, and the steps are as long as they like
    m.functional("passages", terminal=n)
    sol = dh.simulate(m.build(), (0, 2), adapter=adapter, rtol=1e-6, atol=1e-8)
    if adapter != "scikits-odes":  # whose solver looks for roots itself, at the ends of steps
        times = 1 + np.sqrt(2 * 0.001) * np.array([-1, 1])
        assert [event.time for event in sol.events] == pytest.approx(times, abs=1e-4)
    assert len(sol.events) in (0, 2)


@stepped
def test_an_event_in_a_fast_decay_is_located_in_it(adapter: str) -> None:
    m = dh.HybridModel("decay")
    k, y = m.parameter("k", 1e6), m.differential("y")
    run, slow = m.mode("run", ode={y: -k * y}), m.mode("slow", ode={y: 0 * y})
    m.transition(run, slow, guard=y - 0.5, direction="falling")
    m.initial(run, {y: 1.0})
    m.functional("G", terminal=y * k)
    system = m.build()
    asa = dh.adjoint_gradient(system, (0, 10), "G", adapter=adapter)
    fsa = dh.forward_sensitivity(system, (0, 10), adapter=adapter)
    event = asa.trajectory.events[0]
    assert event.time == pytest.approx(np.log(2) / 1e6, rel=1e-6)
    assert event.state_minus == pytest.approx([0.5], rel=1e-12)
    assert fsa.event_time_sensitivity[0] == pytest.approx([-np.log(2) / 1e12], rel=1e-6)
    assert asa.gradient == pytest.approx([0.5], rel=1e-6)


@stepped
def test_an_initial_layer_before_a_long_run(adapter: str) -> None:
    """Robertson's problem to 4e10 (Hairer and Wanner 1996): y2 in the layer."""
    m = dh.HybridModel("Robertson")
    y = m.differential("y", size=3)
    r1, r2, r3 = 0.04 * y[0], 1e4 * y[1] * y[2], 3e7 * y[1] ** 2
    m.initial(m.mode("run", ode={y: ca.vertcat(-r1 + r2, r1 - r2 - r3, r3)}), {y: ca.DM([1, 0, 0])})
    t = np.array([1e-4, 1e-3, 1e-2, 4e10])
    options: dict[str, Any] = {"rtol": 1e-7, "atol": 1e-13, "t_eval": t}
    sol = dh.simulate(m.build(), (0, 4e10), adapter=adapter, **options)
    native = dh.simulate(m.build(), (0, 4e10), **options)
    assert sol["y"][:, 1] == pytest.approx(native["y"][:, 1], rel=1e-4)
    assert sol["y"][0, 1] == pytest.approx(3.98406846e-06, rel=1e-6)


@stepped
def test_a_mode_at_rest_and_a_long_run(adapter: str) -> None:
    m = dh.HybridModel("rest")
    k, y = m.parameter("k", 2.0), m.differential("y")
    m.initial(m.mode("run", ode={y: 0.0}), {y: k})
    m.functional("G", terminal=y)
    assert dh.adjoint_gradient(m.build(), (0, 1), "G", adapter=adapter).gradient == pytest.approx([1.0])
    m = dh.HybridModel("oscillator")
    w, y, v = m.parameter("w", 1.0), m.differential("y"), m.differential("v")
    m.initial(m.mode("run", ode={y: w * v, v: -w * y}), {y: 1.0, v: 0.0})
    m.functional("G", terminal=y)
    asa = dh.adjoint_gradient(m.build(), (0, 100), "G", adapter=adapter)
    assert asa.gradient == pytest.approx([-100 * np.sin(100)], rel=1e-4)
    assert asa.adjoint(50.0)["y"] == pytest.approx(np.cos(50), abs=1e-4)


@pytest.mark.first(2)
@pytest.mark.parametrize("rtol", [1e-5, 1e-7, 1e-6, 3e-7])
def test_algebraic_variables_keep_to_their_branch(rtol: float) -> None:
    """z = arcsin y has other values 2 pi apart: an inner Newton iteration must not change over to them."""
    m = dh.HybridModel("angle")
    y, z = m.differential("y"), m.algebraic("z", guess=0.0)
    m.initial(m.mode("run", ode={y: 0.99 * ca.cos(m.time)}, algebraic=[ca.sin(z) - y]), {y: 0.0})
    t = np.linspace(0, 20, 41)
    sol = dh.simulate(m.build(), (0, 20), adapter="scipy", rtol=rtol, t_eval=t)
    assert sol["z"] == pytest.approx(np.arcsin(0.99 * np.sin(t)), abs=100 * rtol)


@stepped
def test_a_step_that_would_leave_where_the_algebraic_equations_hold(adapter: str) -> None:
    m = dh.HybridModel("tank")
    a, y, z = m.parameter("a", 1.0), m.differential("y"), m.algebraic("z", guess=1.0)
    run = m.mode("run", ode={y: -a}, algebraic=[z**2 - y])
    m.transition(run, None, guard=y - 0.05, direction="falling")
    m.initial(run, {y: 1.0})
    m.functional("G", terminal=y * m.time)
    assert dh.adjoint_gradient(m.build(), (0, 3), "G", adapter=adapter).value == pytest.approx(0.0475, rel=1e-8)


@pytest.mark.parametrize("adapter", ["scipy", "casadi"])
@pytest.mark.parametrize("height", [19.0, 19.999])
def test_a_ceiling_met_within_a_step(height: float, adapter: str) -> None:
    m = dh.HybridModel("ceiling")
    v0, y, v = m.parameter("v0", 20.0), m.differential("y"), m.differential("v")
    fly = m.mode("fly", ode={y: v, v: -10.0})
    m.transition(fly, fly, guard=y - height, direction="rising", reset={v: -v})
    m.initial(fly, {y: 0.0, v: v0})
    m.functional("G", terminal=y)
    up = (20 - np.sqrt(400 - 20 * height)) / 10
    rest = 3.5 - up
    exact = height - np.sqrt(400 - 20 * height) * rest - 5 * rest**2
    asa = dh.adjoint_gradient(m.build(), (0, 3.5), "G", adapter=adapter)
    assert len(asa.trajectory.events) == 1
    assert asa.value == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize("method", ["dop853", "rk45", "radau", "bdf"])
def test_every_method_of_scipy(method: str) -> None:
    exact = hybrid_ode.reference()
    options: dict[str, Any] = {"adapter": "scipy", "method": method, "rtol": 1e-7, "atol": 1e-9}
    fsa = dh.forward_sensitivity(hybrid_ode.system(), (0, 5), **options)
    asa = dh.adjoint_gradient(hybrid_ode.system(), (0, 5), "G", **options)
    assert {segment.method for segment in asa.trajectory.segments} == {method}
    assert fsa.gradient["G"] == pytest.approx(exact.gradient, rel=1e-5)
    assert asa.gradient == pytest.approx(exact.gradient, rel=1e-5)


def test_outputs_do_not_depend_on_a_poor_interpolant() -> None:
    """Radau's cubic is much less accurate than its steps: outputs and dense output repeat them in shorter ones."""
    m = dh.HybridModel("oscillator")
    y, w = m.differential("y"), m.differential("w")
    run = m.mode("run", ode={y: w, w: -y})
    m.initial(run, {y: 1.0, w: 0.0})
    system, t = m.build(), np.linspace(0, 6, 301)
    sol = dh.simulate(system, (0, 6), adapter="scipy", method="radau", t_eval=t, rtol=1e-8, atol=1e-10)
    assert np.abs(sol["y"] - np.cos(t)).max() < 1e-6
    assert np.abs(sol(t)["y"] - np.cos(t)).max() < 1e-6


@stepped
def test_dense_output_with_nonlinear_algebraic_variables(adapter: str) -> None:
    """A replay watches no determinants: their zero bands are infinite."""
    m = dh.HybridModel("cubic")
    x, y = m.differential("x"), m.algebraic("y", guess=0.5)
    m.initial(m.mode("run", ode={x: -y}, algebraic=[y + y**3 - x]), {x: 1.0})
    m.functional("peak", maximum=y)
    system = m.build()
    sol, native = (dh.simulate(system, (0, 5), adapter=name, **TIGHT) for name in (adapter, "sundials"))
    times = np.linspace(0, 5, 23)
    assert sol(times)["y"] == pytest.approx(native(times)["y"], rel=1e-5)
    assert sol.functionals["peak"] == pytest.approx(native.functionals["peak"], rel=1e-6)


@stepped
def test_a_replay_that_fails_early_is_no_dense_output(adapter: str) -> None:
    m = dh.HybridModel("decay")
    x = m.differential("x")
    m.initial(m.mode("run", ode={x: -x}), {x: 1.0})
    (segment,) = dh.simulate(m.build(), (0, 5), adapter=adapter, **TIGHT).segments
    error = dh.IntegrationError("stopped")
    error.rows = segment.steps()[:3]
    replay = replace(segment.interpolate, open_session=lambda: Mock(integrate=Mock(side_effect=error)))
    with pytest.raises(dh.IntegrationError, match="stopped"):
        replay()


def test_a_step_is_the_polynomial_through_its_values() -> None:
    def solution(t: np.ndarray) -> np.ndarray:
        return np.stack((t**7 - 3 * t**2, np.ones_like(t)), axis=1)

    step = Step.through(0.5, 1.25, solution)
    t = np.linspace(0.5, 1.25, 17)
    assert step(t) == pytest.approx(solution(t), rel=1e-12)
    assert step.rate(0.7) == pytest.approx([7 * 0.7**6 - 6 * 0.7, 0.0], abs=1e-11)
    row = step.dense_row()
    assert row[:3] == pytest.approx([1.25, 0.75, COEFFICIENTS - 1])
    assert row[3:7] == pytest.approx([1.25**7 - 3 * 1.25**2, 1.0, 7 * 1.25**6 - 6 * 1.25, 0.0], abs=1e-10)


# -- failures ---------------------------------------------------------------------------------------------------


def breaks_down(*, algebraic: bool) -> dh.HybridSystem:
    """y' = -1/sqrt(y) from 1: y = 0 and NaN past it at t = 2/3; an event on the way."""
    m = dh.HybridModel("breakdown")
    a = m.parameter("a", 1.0)
    y = m.differential("y")
    if algebraic:
        z = m.algebraic("z", guess=1.0)
        run = m.mode("run", ode={y: -a / z}, algebraic=[z**2 - y])
    else:
        run = m.mode("run", ode={y: -a / ca.sqrt(y)})
    m.transition(run, run, at=0.25)
    m.initial(run, {y: 1.0})
    m.functional("G", integrand=y)
    return m.build()


@stepped
@pytest.mark.parametrize("algebraic", [False, True], ids=["ODE", "DAE"])
def test_what_was_computed_stays_on_the_error(algebraic: bool, adapter: str) -> None:
    system = breaks_down(algebraic=algebraic)
    for analysis in (dh.simulate, dh.forward_sensitivity, dh.adjoint_gradient):
        with pytest.raises((dh.IntegrationError, dh.ConsistencyError)) as caught:
            analysis(system, (0, 1), adapter=adapter, **TIGHT)
        error = caught.value
        assert error.mode == "run"
        assert error.time == pytest.approx(2 / 3, abs=1e-3)
        assert not error.trajectory.complete
        assert error.trajectory.t[-1] == pytest.approx(2 / 3, abs=1e-3)
        assert len(error.trajectory.events) == 1
    assert dh.simulate(system, (0, 0.5), adapter=adapter, **TIGHT).complete


@stepped
def test_a_solution_that_blows_up(adapter: str) -> None:
    m = dh.HybridModel("blow-up")
    y = m.differential("y")
    m.initial(m.mode("run", ode={y: y**2}), {y: 1.0})
    with pytest.raises(dh.IntegrationError) as caught:
        dh.simulate(m.build(), (0, 2), adapter=adapter)
    assert caught.value.time == pytest.approx(1.0, abs=1e-3)
    assert caught.value.remedy
    with pytest.raises(dh.StepLimitError, match="max_steps=3"):
        dh.simulate(m.build(), (0, 0.9), adapter=adapter, max_steps=3)


class UserError(Exception):
    """Of a user's own function."""


class Trouble(ca.Callback):
    """The identity, which fails beyond a value."""

    def __init__(self) -> None:
        super().__init__()
        self.construct("trouble", {"enable_fd": True})

    def eval(self, arguments: Any) -> Any:
        if float(arguments[0]) > 1.5:
            raise UserError("beyond 1.5")
        return [arguments[0]]


@pytest.mark.parametrize("adapter", [a for a in STEPPED if a != "casadi"])
def test_exceptions_in_callbacks_stop_the_run_and_the_next_one_is_clean(adapter: str) -> None:
    trouble = Trouble()
    m = dh.HybridModel("user")
    y = m.differential("y")
    m.initial(m.mode("run", ode={y: trouble(y)}), {y: 1.0})
    system = m.build(native=False)
    with pytest.raises((UserError, RuntimeError)):
        dh.simulate(system, (0, 1), adapter=adapter)
    assert dh.simulate(system, (0, 0.3), adapter=adapter)["y"][-1] == pytest.approx(np.exp(0.3), rel=1e-6)


@stepped
def test_runs_repeat_to_the_bit_alone_and_in_threads(adapter: str, built: Any, models: Any) -> None:
    system = built(models.em)

    def run(_: int) -> bytes:
        return dh.adjoint_gradient(system, (0, 1.2), "G", adapter=adapter, rtol=1e-5, atol=1e-9).gradient.tobytes()

    first = run(0)
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(run, range(4))) == {first}


# -- refusals ----------------------------------------------------------------------------------------------------


def test_combinations_that_cannot_work_name_who_can() -> None:
    rope = load("ball_on_rope").model().build(index2="direct")
    with pytest.raises(dh.UnsupportedError, match="'scipy' does not integrate the direct form of index 2") as caught:
        dh.simulate(rope, (0, 1), adapter="scipy")
    assert "'sundials'" in str(caught.value)
    with pytest.raises(dh.UnsupportedError, match="'scipy' has no method 'adams'") as caught:
        dh.simulate(hybrid_ode.system(), (0, 1), adapter="scipy", method="adams")
    assert "'sundials', 'scikits-odes', 'casadi'" in str(caught.value)
    with pytest.raises(dh.UnsupportedError, match="'sundials' has no method 'radau'") as caught:
        dh.adjoint_gradient(hybrid_ode.system(), (0, 1), "G", method="radau")
    assert "'scipy'" in str(caught.value)
    with pytest.raises(dh.OptionError, match="method must be one of 'auto', 'dop853'"):
        dh.simulate(hybrid_ode.system(), (0, 1), adapter="scipy", method="euler")
    implicit = em_hysteresis.model().build(eliminate=False)
    for adapter in ("sundials", "casadi"):
        with pytest.raises(dh.UnsupportedError, match="without algebraic variables") as caught:
            dh.simulate(implicit, (0, 1), adapter=adapter, method="adams")
        assert "'auto'" in str(caught.value)
    with pytest.raises(dh.UnsupportedError, match="no max_order"):
        dh.simulate(hybrid_ode.system(), (0, 1), adapter="scipy", max_order=3)
    with pytest.raises(dh.UnsupportedError, match="rtol of at least"):
        dh.simulate(hybrid_ode.system(), (0, 1), adapter="scipy", rtol=1e-15)


def test_unknown_adapter() -> None:
    with pytest.raises(dh.OptionError, match="no adapter 'lsoda'") as caught:
        dh.simulate(hybrid_ode.system(), (0, 1), adapter="lsoda")
    for name in registry.BUILT_IN:
        assert name in str(caught.value)


@pytest.fixture
def clean_registry(monkeypatch: Any) -> Iterator[None]:
    monkeypatch.setattr(registry, "_registered", {})
    registry.find_integrator.cache_clear()
    yield
    registry.find_integrator.cache_clear()


def test_scikits_odes_missing(clean_registry: None, monkeypatch: Any) -> None:
    from dae_hybrid.adapters import scikits_odes

    def missing(name: str) -> Any:
        raise ImportError(f"No module named '{name}'")

    monkeypatch.setattr(scikits_odes, "import_module", missing)
    with pytest.raises(dh.AdapterError, match="scikits-odes cannot be used") as caught:
        dh.simulate(hybrid_ode.system(), (0, 1), adapter="scikits-odes")
    assert "python -m dae_hybrid.adapters.install_scikits_odes" in str(caught.value)
    assert "sundials, casadi, scipy" in str(caught.value)


def test_other_packages_may_fail_in_any_way(clean_registry: None, monkeypatch: Any, capsys: Any) -> None:
    class Point:
        name = "bad"

        @staticmethod
        def load() -> Any:
            raise RuntimeError("libfoo.so: wrong version")

    monkeypatch.setattr(registry, "entry_points", lambda group: [Point])
    assert main(["adapters"]) == 0
    assert "libfoo.so: wrong version" in capsys.readouterr().out
    with pytest.raises(dh.AdapterError, match="libfoo"):
        dh.simulate(hybrid_ode.system(), (0, 1), adapter="bad")
    with pytest.raises(dh.OptionError, match="adapter must be a name"):
        dh.simulate(hybrid_ode.system(), (0, 1), adapter=["scipy"])  # type: ignore[arg-type]


def test_registration(clean_registry: None) -> None:
    from dae_hybrid.adapters.scipy import SciPyIntegrator

    class Mine(SciPyIntegrator):
        name = "mine"

    assert dh.register_adapter(Mine) is Mine
    assert dh.register_adapter(Mine) is Mine  # again: nothing happens
    assert dh.adapter_names()[-1] == "mine"
    assert dh.simulate(hybrid_ode.system(), (0, 5), adapter="mine").complete

    class Other(SciPyIntegrator):
        name = "mine"

    with pytest.raises(dh.OptionError, match="'mine' already"):
        dh.register_adapter(Other)
    assert dh.register_adapter(Other, replace=True) is Other
    with pytest.raises(dh.OptionError, match="'scipy' already"):
        dh.register_adapter(type("Third", (SciPyIntegrator,), {"name": "scipy"}))
    with pytest.raises(dh.OptionError, match="needs a `name` and `capabilities`"):
        dh.register_adapter(dict)  # type: ignore[type-var]


def test_entry_points(clean_registry: None, monkeypatch: Any) -> None:
    from importlib.metadata import EntryPoint

    points = [
        EntryPoint("elsewhere", "dae_hybrid.adapters.scipy:SciPyIntegrator", registry.GROUP),
        EntryPoint("broken", "no_such_package:Integrator", registry.GROUP),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    assert {"elsewhere", "broken"} < set(dh.adapter_names())
    assert dh.simulate(hybrid_ode.system(), (0, 5), adapter="elsewhere").complete
    with pytest.raises(dh.AdapterError, match="'broken' cannot be loaded: No module named 'no_such_package'") as caught:
        dh.simulate(hybrid_ode.system(), (0, 5), adapter="broken")
    assert "sundials" in str(caught.value)
    assert "no: Adapter 'broken' cannot be loaded" in dh.describe_adapters()


def test_an_adapter_with_a_session_of_its_own_and_no_sensitivities(clean_registry: None) -> None:
    class Bare:
        name = "bare"
        capabilities = dh.Capabilities(methods=("auto",))

        def open(self, *arguments: Any, **more: Any) -> Any:
            raise AssertionError("refused before")

    dh.register_adapter(Bare)
    with pytest.raises(dh.UnsupportedError, match="'bare' has no forward sensitivity analysis") as caught:
        dh.forward_sensitivity(hybrid_ode.system(), (0, 5), adapter="bare")
    assert "'sundials'" in str(caught.value)
    with pytest.raises(dh.UnsupportedError, match="'bare' has no adjoint sensitivity analysis"):
        dh.adjoint_gradient(hybrid_ode.system(), (0, 5), "G", adapter="bare")


# -- the command line ----------------------------------------------------------------------------------------------


def test_command_adapters(capsys: Any) -> None:
    assert main(["adapters"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in registry.BUILT_IN)


def test_command_conformance(clean_registry: None, capsys: Any, tmp_path: Path, monkeypatch: Any) -> None:
    from dae_hybrid.problems import conformance as suite

    monkeypatch.setattr(suite.conformance, "__kwdefaults__", {**suite.conformance.__kwdefaults__, "cases": CASES[:1]})
    page = tmp_path / "page.md"
    assert main(["conformance", "sundials", "dae_hybrid.adapters.scipy:SciPyIntegrator", "--markdown", str(page)]) == 0
    assert "2 of 2 combinations conform" in capsys.readouterr().out
    assert "| hybrid_ode: ODE | sundials |" in page.read_text(encoding="utf-8")
    assert main(["conformance", "nothing:Nobody"]) == 2
    assert main(["conformance", "nobody"]) == 1


def test_errors_are_those_of_the_reference() -> None:
    found = errors(CASES[0], 1e-6, adapter="scipy")
    assert found.shape == (5,)
    assert np.all(found < 1e-5)
    assert json.dumps(found.tolist())
