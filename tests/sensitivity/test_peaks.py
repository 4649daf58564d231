"""Peaks: extrema, their times, overshoot, rise and settling times against closed forms, with exact gradients."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from functools import cache
from typing import Any

import casadi as ca
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import brentq

import dae_hybrid as dh
from dae_hybrid import DerivativeWarning, EventError, GrazingError, ModelError, NonFiniteError

STEP = {"zeta": 0.1, "w": 2.0}
OPTIONS: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}
RUNS: list[dict[str, Any]] = [
    {},
    {"native_events": False},
    {"method": "bdf"},
    {"method": "adams"},
    {"adapter": "scipy"},
    {"adapter": "casadi"},
]


def step_response() -> dh.HybridModel:
    """A damped oscillator after a step, x'' + 2 zeta w x' + w^2 (x - 1) = 0."""
    m = dh.HybridModel("step response")
    zeta, w = m.parameter("zeta", STEP["zeta"]), m.parameter("w", STEP["w"])
    x, v = m.differential("x"), m.differential("v")
    only = m.mode("only", ode={x: v, v: -(w**2) * (x - 1) - 2 * zeta * w * v})
    m.initial(only, {x: 0.0, v: 0.0})
    m.functional("peak", maximum=x)
    m.functional("peak time", time_of_maximum=x)
    m.functional("overshoot", overshoot=(x, 0.0, 1.0))
    m.functional("rise", rise_time=(x, 0.1, 0.9))
    m.functional("settling", settling_time=(x, 1.0, 0.05))
    m.functional("braking", minimum=m.der(v))
    m.functional("both", maximum=ca.vertcat(x, -x))
    return m


@cache
def system() -> dh.HybridSystem:
    return step_response().build()


def assert_agree(check: dh.GradientCheck, differences: float = 1e-5) -> None:
    """Forward and adjoint gradients agree, and finite differences to their accuracy."""
    assert check.same_events
    assert check.difference("adjoint", "forward") < 1e-5
    assert check.difference("finite_difference", "forward") < differences


class Exact:
    """The step response in closed form."""

    def __init__(self, zeta: float, w: float) -> None:
        self.zeta, self.w, self.wd = zeta, w, w * math.sqrt(1 - zeta**2)

    def x(self, t: float) -> float:
        share = self.zeta / math.sqrt(1 - self.zeta**2)
        return 1 - math.exp(-self.zeta * self.w * t) * (math.cos(self.wd * t) + share * math.sin(self.wd * t))

    @property
    def overshoot(self) -> float:
        return math.exp(-math.pi * self.zeta / math.sqrt(1 - self.zeta**2))

    @property
    def peak_time(self) -> float:
        return math.pi / self.wd

    @property
    def rise(self) -> float:
        low, high = (brentq(lambda t, c=c: self.x(t) - c, 0, self.peak_time, xtol=1e-14) for c in (0.1, 0.9))
        return high - low

    @property
    def settling(self) -> float:
        """The last crossing of the band is after the last extremum outside it."""
        k = math.floor(math.log(1 / 0.05) / -math.log(self.overshoot))
        side = 1 if k % 2 else -1
        start = k * self.peak_time
        return float(brentq(lambda t: side * (self.x(t) - 1) - 0.05, start, start + self.peak_time, xtol=1e-14))

    @property
    def braking(self) -> float:
        """The smallest acceleration: x''' = 0 at the time at which the phase of x'' is that of its extremum."""
        t = (math.pi - 2 * math.asin(self.zeta) + 0.0) / self.wd  # x'' = -w^2/wd d/dt(exp sin)
        found = [self._acceleration(s) for s in np.linspace(0.8 * t, 1.2 * t, 20_001)]
        return min(found)

    def _acceleration(self, t: float) -> float:
        decay, s, c = math.exp(-self.zeta * self.w * t), math.sin(self.wd * t), math.cos(self.wd * t)
        return self.w**2 / self.wd * decay * (self.wd * c - self.zeta * self.w * s)


def derivatives(of: Callable[[Exact], float], zeta: float, w: float) -> np.ndarray:
    """Central differences of a closed form."""
    h = 1e-5
    return np.array(
        [
            (of(Exact(zeta * (1 + h), w)) - of(Exact(zeta * (1 - h), w))) / (2 * h * zeta),
            (of(Exact(zeta, w * (1 + h))) - of(Exact(zeta, w * (1 - h)))) / (2 * h * w),
        ]
    )


CLOSED: dict[str, Callable[[Exact], float]] = {
    "peak": lambda e: 1 + e.overshoot,
    "peak time": lambda e: e.peak_time,
    "overshoot": lambda e: e.overshoot,
    "rise": lambda e: e.rise,
    "settling": lambda e: e.settling,
}


@pytest.mark.parametrize("run", RUNS, ids=lambda run: " ".join(map(str, run.values())) or "default")
def test_step_response_has_its_closed_form(run: dict[str, Any]) -> None:
    exact = run == {} or run == {"native_events": False}
    call = OPTIONS | run | ({} if exact else {"rtol": 1e-8, "atol": 1e-10})
    accuracy = 1e-8 if exact else 2e-5
    values = dh.simulate(system(), (0, 20), **call).functionals
    forward = dh.forward_sensitivity(system(), (0, 20), **call).gradient
    for name, closed in CLOSED.items():
        by_p = derivatives(closed, **STEP)
        scale = np.abs(by_p).max()
        assert values[name] == pytest.approx(closed(Exact(**STEP)), rel=accuracy)
        np.testing.assert_allclose(forward[name], by_p, rtol=0, atol=max(accuracy, 1e-7) * scale)
    for name in ("overshoot", "settling"):
        found = dh.adjoint_gradient(system(), (0, 20), name, **call)
        assert found.value == pytest.approx(values[name], rel=accuracy)
        np.testing.assert_allclose(found.gradient, forward[name], rtol=0, atol=accuracy * np.abs(forward[name]).max())


def test_extremum_of_an_acceleration() -> None:
    found = dh.adjoint_gradient(system(), (0, 20), "braking", **OPTIONS)
    assert found.value == pytest.approx(Exact(**STEP).braking, rel=1e-7)
    np.testing.assert_allclose(found.gradient, derivatives(lambda e: e.braking, **STEP), rtol=1e-4)


def test_entries_of_a_vector_have_places_of_their_own() -> None:
    found = dh.forward_sensitivity(system(), (0, 20), **OPTIONS)
    np.testing.assert_allclose(found.trajectory.functionals["both"], [1 + Exact(**STEP).overshoot, 0.0], atol=1e-9)
    np.testing.assert_allclose(found.gradient["both"], [found.gradient["peak"], [0.0, 0.0]], atol=1e-9)


def test_time_above_a_bound_and_what_exceeds_it() -> None:
    m = step_response()
    x = m.declarations["x"].symbol
    m.functionals = {}
    m.functional("above", time_above=(x, 1.2))
    m.functional("excess", exceedance=(x, 1.2))
    built = m.build()
    t = np.linspace(0, 20, 400_001)
    e = Exact(**STEP)
    over = np.maximum(np.array([e.x(s) for s in t]) - 1.2, 0)
    for name, value in (("above", np.mean(over > 0) * 20), ("excess", np.trapezoid(over, t))):
        check = dh.check_gradient(built, (0, 20), functional=name, rtol=1e-9, atol=1e-11)
        assert check.value == pytest.approx(value, abs=1e-4)
        assert_agree(check, differences=1e-3)


@cache
def overshooting() -> dh.HybridSystem:
    m = step_response()
    m.functionals = {"overshoot": m.functionals["overshoot"]}
    return m.build()


@settings(max_examples=15, deadline=None)
@given(zeta=st.floats(0.02, 0.9), w=st.floats(0.2, 20.0))
def test_overshoot_of_any_oscillator(zeta: float, w: float) -> None:
    p, e = {"zeta": zeta, "w": w}, Exact(zeta, w)
    found = dh.adjoint_gradient(overshooting(), (0, 60 / w), parameters=p, **OPTIONS)
    assert found.value == pytest.approx(e.overshoot, rel=1e-7, abs=1e-9)
    by_zeta = -math.pi / (1 - zeta**2) ** 1.5 * e.overshoot
    np.testing.assert_allclose(found.gradient, [by_zeta, 0.0], rtol=1e-5, atol=1e-7)


def test_the_integrator_is_not_restarted() -> None:
    m = step_response()
    m.functionals = {}
    plain = dh.simulate(m.build(), (0, 20), **OPTIONS)
    m = step_response()
    for name in ("rise", "settling"):
        del m.functionals[name]
    sol = dh.simulate(m.build(), (0, 20), **OPTIONS)
    assert sol.statistics["steps"] == plain.statistics["steps"]
    assert len(sol.events) == 0


# -- sides of events ---------------------------------------------------------------------------------------------


def ball() -> dh.HybridModel:
    """A ball that bounces; its speed is largest just before the first impact."""
    m = dh.HybridModel("ball")
    g, e, h = m.parameter("g", 9.81), m.parameter("e", 0.8), m.parameter("h", 1.0)
    y, v = m.differential("y"), m.differential("v")
    flight = m.mode("flight", ode={y: v, v: -g})
    m.transition(flight, flight, guard=y, direction="falling", reset={v: -e * v})
    m.initial(flight, {y: h, v: 0.0})
    m.functional("fastest", minimum=v)
    m.functional("rebound", maximum=v)
    m.functional("first impact", time_of_minimum=v)
    m.functional("top", maximum=y)
    m.functional("mixed", maximum=v, terminal=y, at_times={0.2: v})
    return m


@cache
def bouncing() -> dh.HybridSystem:
    return ball().build()


SPEED = math.sqrt(2 * 9.81)
IMPACTS = {
    "fastest": (-SPEED, [-SPEED / 2 / 9.81, 0.0, -SPEED / 2]),
    "rebound": (0.8 * SPEED, [0.8 * SPEED / 2 / 9.81, SPEED, 0.8 * SPEED / 2]),
    "first impact": (math.sqrt(2 / 9.81), [-math.sqrt(2 / 9.81) / 2 / 9.81, 0.0, math.sqrt(2 / 9.81) / 2]),
    "top": (1.0, [0.0, 0.0, 1.0]),
}


@pytest.mark.parametrize("run", RUNS, ids=lambda run: " ".join(map(str, run.values())) or "default")
def test_sides_of_an_impact(run: dict[str, Any]) -> None:
    forward = dh.forward_sensitivity(bouncing(), (0, 3.5), **OPTIONS, **run)
    for name, (value, by_p) in list(IMPACTS.items())[: 2 if "adapter" in run else 4]:
        backward = dh.adjoint_gradient(bouncing(), (0, 3.5), name, **OPTIONS, **run)
        for found in (backward.value, forward.trajectory.functionals[name]):
            assert found == pytest.approx(value, rel=1e-7)
        np.testing.assert_allclose(backward.gradient, by_p, atol=1e-6)
        np.testing.assert_allclose(forward.gradient[name], by_p, atol=1e-6)
    assert len(forward.trajectory.events) == 9


def test_peaks_beside_other_parts_and_duality_along_the_run() -> None:
    found = dh.adjoint_gradient(bouncing(), (0, 3.5), "mixed", duality=True, **OPTIONS)
    assert found.duality is not None
    assert np.ptp(found.duality.values) < 1e-7 * np.abs(found.duality.values).max()
    assert_agree(dh.check_gradient(bouncing(), (0, 1.5), functional="mixed", **OPTIONS))


def test_checkpoints_pickles_and_what_is_kept() -> None:
    gradient = dh.adjoint_gradient(bouncing(), (0, 3.5), "rebound", **OPTIONS)
    short = dh.adjoint_gradient(bouncing(), (0, 3.5), "rebound", adjoint_memory=1.0, **OPTIONS)
    np.testing.assert_allclose(short.gradient, gradient.gradient, rtol=1e-9)
    again = pickle.loads(pickle.dumps(gradient))
    np.testing.assert_array_equal(again.gradient, gradient.gradient)
    assert again.trajectory.functionals == gradient.trajectory.functionals
    for keep in ("events", "final"):
        sol = dh.simulate(bouncing(), (0, 3.5), keep=keep, **OPTIONS)
        assert sol.functionals["rebound"] == pytest.approx(0.8 * SPEED, rel=1e-9)
        assert sol.kept == keep
    sampled = dh.simulate(bouncing(), (0, 3.5), t_eval=[0.0, 3.0], **OPTIONS)
    assert sampled.functionals["rebound"] == pytest.approx(0.8 * SPEED, rel=1e-9)


def test_prepared_calls_batches_hessians_and_fits() -> None:
    heights = [1.0, 1.1, 1.2]
    table = [[9.81, 0.8, h] for h in heights]
    speeds = np.sqrt(2 * 9.81 * np.array(heights))
    prepared = dh.prepare(bouncing(), (0, 1.0), functional="fastest", derivatives="adjoint", **OPTIONS)
    runs = dh.batch(bouncing(), (0, 1.0), parameters=table, functional="fastest", gradient="adjoint", **OPTIONS)
    np.testing.assert_allclose(runs.functionals["fastest"], -speeds, rtol=1e-9)
    for row, gradient in zip(table, runs.gradient["fastest"], strict=True):
        np.testing.assert_array_equal(prepared(np.array(row)).gradient["fastest"], gradient)
    second = dh.hessian(bouncing(), (0, 1.0), "fastest", wrt="h", **OPTIONS)
    assert second.matrix[0, 0] == pytest.approx(SPEED / 4, rel=1e-4)
    data = dh.Experiment(functionals={"overshoot": 0.6, "peak time": 1.3}, t_span=(0, 20), sigma=0.01)
    found = dh.fit(system(), data, ["zeta", "w"], rtol=1e-9).parameters
    assert Exact(found["zeta"], found["w"]).overshoot == pytest.approx(0.6, rel=1e-6)
    assert Exact(found["zeta"], found["w"]).peak_time == pytest.approx(1.3, rel=1e-6)


# -- ends, knots, modes ------------------------------------------------------------------------------------------


def test_start_and_end() -> None:
    m = dh.HybridModel("decay")
    k, x0 = m.parameter("k", 0.5), m.parameter("x0", 2.0)
    x = m.differential("x")
    m.initial(m.mode("only", ode={x: -k * x}), {x: x0})
    m.functional("first", maximum=x)
    m.functional("last", minimum=x)
    m.functional("when", time_of_minimum=x)
    found = dh.forward_sensitivity(m.build(), (0, 3), **OPTIONS)
    end = 2 * math.exp(-1.5)
    np.testing.assert_allclose(found.trajectory.functionals["last"], end, rtol=1e-9)
    np.testing.assert_allclose(found.gradient["first"], [0.0, 1.0], atol=1e-12)
    np.testing.assert_allclose(found.gradient["last"], [-3 * end, end / 2], rtol=1e-8)
    np.testing.assert_allclose(found.gradient["when"], [0.0, 0.0])
    assert found.trajectory.functionals["when"] == 3.0


def test_end_by_an_event() -> None:
    m = dh.HybridModel("launch")
    a, c = m.parameter("a", 2.0), m.parameter("c", 3.0)
    x = m.differential("x")
    only = m.mode("only", ode={x: a})
    m.transition(only, None, guard=x - c, direction="rising")
    m.initial(only, {x: 0.0})
    m.functional("late", maximum=a * m.time)
    for run in ({}, {"native_events": False}):
        found = dh.adjoint_gradient(m.build(), (0, 9), **OPTIONS, **run)
        assert found.value == pytest.approx(3.0)
        np.testing.assert_allclose(found.gradient, [0.0, 1.0], atol=1e-9)


@pytest.mark.parametrize("kind", ["previous", "linear"])
def test_sides_of_knots(kind: Any) -> None:
    m = dh.HybridModel("input")
    a = m.parameter("a", 2.0)
    f = m.signal("f", [0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 0.2, 0.0], kind=kind)
    x = m.differential("x")
    m.initial(m.mode("only", ode={x: a * f - x}), {x: 0.0})
    m.functional("input", maximum=a * f)
    m.functional("slowest", minimum=m.der(x))
    m.functional("fastest", maximum=m.der(x))
    built = m.build()
    found = dh.forward_sensitivity(built, (0, 3), **OPTIONS)
    assert found.gradient["input"] == pytest.approx([1.0])
    x1 = {"previous": 0.0, "linear": math.exp(-1)}[kind]  # x(1) / a
    fastest = {"previous": 1.0, "linear": 1 - x1}[kind]  # the largest rate is behind the knot, or at it
    assert found.gradient["fastest"] == pytest.approx([fastest], rel=1e-8)
    for name in ("slowest", "fastest"):
        assert_agree(dh.check_gradient(built, (0, 3), functional=name, **OPTIONS))


def test_a_side_before_a_knot() -> None:
    m = dh.HybridModel("switch-off")
    a = m.parameter("a", 2.0)
    f = m.signal("f", [0.0, 1.0, 2.0], [1.0, 0.0, 0.0], kind="previous")
    x = m.differential("x")
    m.initial(m.mode("only", ode={x: a * f}), {x: 0.0})
    m.functional("force", maximum=f * (1 + x))
    m.functional("when", time_of_maximum=f * (1 + x))
    found = dh.forward_sensitivity(m.build(), (0, 2), **OPTIONS)
    assert found.trajectory.functionals["force"] == pytest.approx(3.0, rel=1e-9)
    np.testing.assert_allclose(found.gradient["force"], [1.0], rtol=1e-7)
    assert found.trajectory.functionals["when"] == 1.0


def test_algebraic_variables_and_constraints() -> None:
    m = dh.HybridModel("nonlinear")
    a, b = m.parameter("a", 1.0), m.parameter("b", 2.0)
    x, v, z = m.differential("x"), m.differential("v"), m.algebraic("z", guess=0.5)
    only = m.mode("only", ode={x: v, v: -b * x - 0.2 * v}, algebraic=[z**3 + z - a * x - 0.1 * v])
    m.initial(only, {x: 1.0, v: 0.5})
    m.functional("low", minimum=z)
    m.functional("when", time_of_minimum=z)
    m.functional("settled", settling_time=(z, 0.0, 0.2))
    system = m.build()
    for run in ({}, {"method": "bdf"}, {"adapter": "casadi"}):
        for name in ("low", "when", "settled")[: 1 if "adapter" in run else 3]:
            assert_agree(dh.check_gradient(system, (0, 10), functional=name, rtol=1e-9, atol=1e-11, **run))
    m = dh.HybridModel("pendulum")
    g = m.parameter("g", 9.81)
    x, y, u, w = (m.differential(name) for name in "xyuw")
    tension = m.algebraic("tension")
    only = m.mode("only", ode={x: u, y: w, u: -tension * x, w: -tension * y - g}, constraint=[x * u + y * w])
    m.initial(only, {x: 0.8, y: -0.6, u: 0.0, w: 0.0})
    m.functional("tension", maximum=tension)
    found = dh.adjoint_gradient(m.build(), (0, 1.3), rtol=1e-9)
    assert found.value == pytest.approx(1.8 * 9.81, rel=1e-7)  # g + v^2, with v^2 = 0.8 g
    np.testing.assert_allclose(found.gradient, [1.8], rtol=1e-6)


def test_implicit_equations() -> None:
    m = dh.HybridModel("implicit")
    a, x, v = m.parameter("a", 1.0), m.differential("x"), m.differential("v")
    only = m.mode("only", residual=[m.der(x) - v, (1 + x**2) * m.der(v) + a * x + 0.1 * v])
    m.initial(only, {x: 1.0, v: 0.0})
    m.functional("force", maximum=m.der(v))
    m.functional("when", time_of_maximum=m.der(v))
    for name in ("force", "when"):
        assert_agree(dh.check_gradient(m.build(), (0, 6), functional=name, **OPTIONS))


def test_kinks_are_events() -> None:
    m = step_response()
    x = m.declarations["x"].symbol
    m.functionals = {}
    m.functional("one", maximum=ca.fabs(x - 0.5))
    m.functional("two", maximum_abs=x - 0.5)
    found = dh.forward_sensitivity(m.build(), (0, 20), **OPTIONS)
    assert found.trajectory.n_events > 2
    assert found.trajectory.functionals["one"] == pytest.approx(found.trajectory.functionals["two"], rel=1e-9)
    np.testing.assert_allclose(found.gradient["one"], found.gradient["two"], atol=1e-8)


def test_kinks_of_tables_are_events() -> None:
    m = dh.HybridModel("table")
    a, x = m.parameter("a", 1.0), m.differential("x")
    table = m.table("f", [0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 0.5, 0.0])
    m.initial(m.mode("only", ode={x: a}), {x: 0.0})
    m.functional("high", maximum=table(x) * (1 + a))
    m.functional("when", time_of_maximum=table(x))
    found = dh.forward_sensitivity(m.build(), (0, 2.5), **OPTIONS)
    np.testing.assert_allclose([found.trajectory.functionals["high"], *found.gradient["high"]], [2.0, 1.0], rtol=1e-9)
    np.testing.assert_allclose([found.trajectory.functionals["when"], *found.gradient["when"]], [1.0, -1.0], rtol=1e-9)


def test_a_hidden_kink_is_refused() -> None:
    m = dh.HybridModel("hidden")
    a, x = m.parameter("a", 1.0), m.differential("x")
    m.initial(m.mode("only", ode={x: a}), {x: 0.0})
    m.functional("tip", maximum=-dh.smooth(ca.fabs(x - 1)))
    with pytest.raises(GrazingError, match="it has a kink there"):
        dh.adjoint_gradient(m.build(), (0, 2.5), **OPTIONS)


@pytest.mark.parametrize("method", ["erk", "bdf"])
def test_turns_within_steps_are_found(method: str) -> None:
    m = dh.HybridModel("ripple")
    a = m.parameter("a", 1.0)
    x = m.differential("x")
    m.initial(m.mode("only", ode={x: a}), {x: 0.0})
    m.functional("ripple", maximum=ca.sin(40 * x) * ca.exp(-((x - 2) ** 2)))
    t = np.linspace(0, 5, 2_000_001)
    expected = np.max(np.sin(40 * t) * np.exp(-((t - 2) ** 2)))
    sol = dh.simulate(m.build(), (0, 5), rtol=1e-8, method=method)
    assert sol.functionals["ripple"] == pytest.approx(expected, rel=1e-9)
    assert sol.statistics["steps"] < 200


@pytest.mark.parametrize("run", [{}, {"rtol": 1e-4}, {"method": "bdf"}, {"adapter": "scipy"}], ids=str)
def test_a_spike_within_a_long_step(run: dict[str, Any]) -> None:
    """The integrator takes a few steps through the decay, and knows nothing of the functional."""
    m = dh.HybridModel("spike")
    a, x, t = m.parameter("a", 1.3), m.differential("x"), m.time
    m.initial(m.mode("only", ode={x: -0.1 * x}), {x: 1.0})
    m.functional("spike", maximum=x + ca.exp(-1e4 * (t - a) ** 2))
    found = dh.adjoint_gradient(m.build(), (0, 5), **(OPTIONS | run))
    assert found.value == pytest.approx(1 + math.exp(-0.13), abs=1e-5)
    assert found.gradient == pytest.approx([-0.1 * math.exp(-0.13)], rel=1e-4)


def test_an_infinite_rate_at_the_start() -> None:
    m = dh.HybridModel("root")
    a, x = m.parameter("a", 1.0), m.differential("x")
    m.initial(m.mode("only", ode={x: a}), {x: 0.0})
    m.functional("high", maximum=ca.sqrt(x) - x)
    m.functional("rise", rise_time=(ca.sqrt(x), 0.1, 0.9))
    found = dh.forward_sensitivity(m.build(), (0, 5), **OPTIONS)
    np.testing.assert_allclose([found.trajectory.functionals["high"], *found.gradient["high"]], [0.25, 0.0], atol=1e-9)
    np.testing.assert_allclose([found.trajectory.functionals["rise"], *found.gradient["rise"]], [0.8, -0.8], rtol=1e-9)


def test_a_spike_whose_time_differs_from_run_to_run() -> None:
    m = dh.HybridModel("relaxation")
    mu, x, v = m.parameter("mu", 200.0), m.differential("x"), m.differential("v")
    m.initial(m.mode("only", ode={x: v, v: mu * (1 - x**2) * v - x}), {x: 2.0, v: 0.0})
    m.functional("spike", maximum_abs=v)
    m.functional("when", time_of_maximum_abs=v)
    built = m.build()
    for name, accuracy in (("spike", 1e-3), ("when", 1e-6)):
        check = dh.check_gradient(built, (0, 250), functional=name, rtol=1e-9, atol=1e-11, method="bdf")
        assert check.difference("adjoint", "forward") < accuracy
        assert check.difference("finite_difference", "forward") < 1e-3


def test_several_transitions_at_the_instant_of_a_peak() -> None:
    m = dh.HybridModel("two")
    a, b = m.parameter("a", 1.0), m.parameter("b", 2.0)
    x, y = m.differential("x"), m.differential("y")
    only = m.mode("only", ode={x: a, y: -y})
    m.transition(only, only, guard=x - 1, direction="rising", reset={y: b * x + y}, name="first")
    m.transition(only, only, guard=x - 1 + 0 * y, direction="rising", reset={y: y + a}, name="second")
    m.initial(only, {x: 0.0, y: 0.5})
    m.functional("high", maximum=y)
    m.functional("low", minimum=y)
    for run in ({}, {"native_events": False}):
        for name, value in (("high", 0.5 / math.e + 3.0), ("low", 0.5 / math.e)):
            check = dh.check_gradient(m.build(), (0, 1.5), functional=name, **OPTIONS, **run)
            assert check.value == pytest.approx(value, rel=1e-8)
            assert_agree(check)


def test_discrete_states() -> None:
    m = dh.HybridModel("sampled control")
    kp, ki = m.parameter("kp", 0.8), m.parameter("ki", 0.5)
    x, u, total = m.differential("x"), m.discrete("u", initial=0.0), m.discrete("total", initial=0.0)
    m.update(m.clock(0.2), {total: total + 0.2 * (1 - x), u: kp * (1 - x) + ki * total})
    m.initial(m.mode("only", ode={x: u - x}), {x: 0.0})
    m.functional("command", maximum=u)
    m.functional("settling", settling_time=(x, 1.0, 0.05))
    for name in ("command", "settling"):
        assert_agree(dh.check_gradient(m.build(), (0, 20), functional=name, **OPTIONS), differences=1e-4)


def test_initial_values_of_one_call() -> None:
    found = dh.adjoint_gradient(overshooting(), (0, 20), x0={"v": 0.3}, wrt=["v(0)"], **OPTIONS)
    h = 1e-4
    values = [
        dh.simulate(overshooting(), (0, 20), x0={"v": v}, **OPTIONS).functionals["overshoot"]
        for v in (0.3 - h, 0.3, 0.3 + h)
    ]
    assert found.value == pytest.approx(values[1], rel=1e-8)
    assert found.gradient[0] == pytest.approx((values[2] - values[0]) / (2 * h), rel=1e-5)


@pytest.mark.parametrize("native", [False, "later"])
def test_without_compiled_code(native: Any) -> None:
    built = ball().build(native=native)
    for name in ("rebound", "mixed"):
        own, compiled = (dh.adjoint_gradient(s, (0, 1.5), name, **OPTIONS) for s in (built, bouncing()))
        np.testing.assert_allclose(own.gradient, compiled.gradient, rtol=1e-8)


def test_deciding_sides_of_compiled_events() -> None:
    compiled = dh.adjoint_gradient(bouncing(), (0, 3.5), "rebound", **OPTIONS)
    python = dh.adjoint_gradient(bouncing(), (0, 3.5), "rebound", native_events=False, **OPTIONS)
    assert compiled.trajectory.statistics["native_events"] == 9
    np.testing.assert_allclose(compiled.gradient, python.gradient, rtol=1e-9)


# -- ties and plateaus -------------------------------------------------------------------------------------------


def test_equal_peaks_with_equal_derivatives_are_silent() -> None:
    m = dh.HybridModel("undamped")
    w, x0, v0 = m.parameter("w", 2.0), m.parameter("x0", 1.0), m.parameter("v0", 1.0)
    x, v = m.differential("x"), m.differential("v")
    m.initial(m.mode("only", ode={x: v, v: -(w**2) * x}), {x: x0, v: v0})
    m.functional("amplitude", maximum_abs=x)
    m.functional("when", time_of_maximum=x)
    amplitude = math.sqrt(1.25)
    found = dh.adjoint_gradient(m.build(), (0, 60), "amplitude", **OPTIONS)
    assert found.value == pytest.approx(amplitude, rel=1e-8)
    np.testing.assert_allclose(found.gradient, np.array([-0.125, 1.0, 0.25]) / amplitude, rtol=1e-6)
    with pytest.raises(GrazingError, match="the time jumps from one to the other"):
        dh.adjoint_gradient(m.build(), (0, 60), "when", **OPTIONS)


def two_bumps() -> dh.HybridSystem:
    m = dh.HybridModel("bumps")
    a, b, t = m.parameter("a", 1.0), m.parameter("b", 1.0), m.time
    x = m.differential("x")
    m.initial(m.mode("only", ode={x: -x}), {x: 0.0})
    m.functional("height", maximum=x + a * ca.exp(-10 * (t - 1) ** 2) + b * ca.exp(-10 * (t - 3) ** 2))
    return m.build()


@pytest.mark.uncertified
def test_ties_with_different_derivatives_are_not_silent() -> None:
    bumps = two_bumps()
    with pytest.raises(EventError, match=r"one-sided derivatives, .* by a stationary point at t = [13], and"):
        dh.adjoint_gradient(bumps, (0, 5), rtol=1e-9)
    with pytest.warns(DerivativeWarning, match="Several places have the maximum of functional 'height'"):
        found = dh.adjoint_gradient(bumps, (0, 5), rtol=1e-9, strict=False)
    with pytest.warns(DerivativeWarning, match="within the accuracy of the run"):
        found = dh.adjoint_gradient(bumps, (0, 5), parameters={"b": 1 + 1e-9}, rtol=1e-9)
    np.testing.assert_allclose(found.gradient, [0.0, 1.0], atol=1e-12)
    apart = dh.adjoint_gradient(bumps, (0, 5), parameters={"b": 1.001}, rtol=1e-9)
    np.testing.assert_allclose(apart.gradient, [0.0, 1.0], atol=1e-12)


def test_plateaus() -> None:
    m = dh.HybridModel("plateau")
    a, c = m.parameter("a", 1.0), m.parameter("c", 0.5)
    x = m.differential("x")
    up, hold, down = m.mode("up", ode={x: a}), m.mode("hold", ode={x: 0 * x}), m.mode("down", ode={x: -x})
    m.transition(up, hold, guard=x - c, direction="rising")
    m.transition(hold, down, at=2.0)
    m.initial(up, {x: 0.0})
    m.functional("level", maximum=x)
    m.functional("when", time_of_maximum=x)
    found = dh.adjoint_gradient(m.build(), (0, 4), "level", **OPTIONS)
    np.testing.assert_allclose([found.value, *found.gradient], [0.5, 0.0, 1.0], atol=1e-9)
    with pytest.raises(GrazingError, match=r"time jumps|has no time"):
        dh.adjoint_gradient(m.build(), (0, 4), "when", **OPTIONS)


# -- times at ends and events ------------------------------------------------------------------------------------


def throw() -> dh.HybridModel:
    """A throw whose height is largest at t = 4 / a."""
    m = dh.HybridModel("throw")
    a, x, v = m.parameter("a", 2.0), m.differential("x"), m.differential("v")
    up = m.mode("up", ode={x: v, v: -a})
    m.initial(up, {x: 0.0, v: 4.0})
    m.functional("when", time_of_maximum=x)
    return m


@pytest.mark.uncertified
def test_a_stationary_point_at_the_end_has_one_sided_times() -> None:
    built = throw().build()
    with pytest.warns(DerivativeWarning, match="-1 by the zero beside the end at t = 2"):
        dh.adjoint_gradient(built, (0, 2), strict=False, **OPTIONS)
    np.testing.assert_allclose(dh.adjoint_gradient(built, (0, 2.001), **OPTIONS).gradient, [-1.0], rtol=1e-6)
    np.testing.assert_allclose(dh.adjoint_gradient(built, (0, 1.999), **OPTIONS).gradient, [0.0])


@pytest.mark.parametrize(("pull", "by_a"), [(1.0, [-1.0, 0.0]), (0.3, None)])
def test_a_stationary_point_at_a_time_event(pull: float, by_a: list[float] | None) -> None:
    m = throw()
    a, x, v = (m.declarations[name].symbol for name in "axv")
    m.transition("up", m.mode("down", ode={x: v, v: -pull * a}), at=m.parameter("T", 2.0))
    if by_a is None:
        with pytest.raises(EventError, match=r"\[-1 0\] by the zero beside the state before the event"):
            dh.adjoint_gradient(m.build(), (0, 4), **OPTIONS)
    else:
        np.testing.assert_allclose(dh.adjoint_gradient(m.build(), (0, 4), **OPTIONS).gradient, by_a, atol=1e-8)


@pytest.mark.parametrize("target", ["down", None])
def test_an_event_at_the_stationary_point(target: str | None) -> None:
    m = throw()
    a, x, v = (m.declarations[name].symbol for name in "axv")
    down = m.mode("down", ode={x: v, v: -0.3 * a})
    m.transition("up", down if target else None, guard=v, direction="falling")
    np.testing.assert_allclose(dh.adjoint_gradient(m.build(), (0, 4), **OPTIONS).gradient, [-1.0], rtol=1e-8)


def test_a_stationary_point_at_a_knot_that_leaves_it_smooth() -> None:
    m = throw()
    m.functional("force", minimum=m.signal("f", [0.0, 2.0, 4.0], [0.0, 0.0, -1.0]))
    np.testing.assert_allclose(dh.adjoint_gradient(m.build(), (0, 4), "when", **OPTIONS).gradient, [-1.0], rtol=1e-8)


def relaxation(**levels: Any) -> dh.HybridSystem:
    m = dh.HybridModel("relaxation")
    x0, low, high = m.parameter("x0", 0.5), m.parameter("low", 0.1), m.parameter("high", 0.9)
    x = m.differential("x")
    m.initial(m.mode("only", ode={x: 1 - x}), {x: x0})
    m.functional("f", **{k: of(x, x0, low, high) for k, of in levels.items()})
    return m.build()


@pytest.mark.uncertified
def test_a_start_at_a_level() -> None:
    rise = relaxation(rise_time=lambda x, x0, low, high: (x, low, high))
    found = dh.adjoint_gradient(rise, (0, 5), **OPTIONS)  # starts above the lower level
    np.testing.assert_allclose(found.gradient, [-2.0, 0.0, 10.0], rtol=1e-7)
    for p in ({"low": 0.5}, {"high": 0.5}):
        with pytest.raises(EventError, match=r"one-sided derivatives, .* by the zero beside the start"):
            dh.adjoint_gradient(rise, (0, 5), parameters=p, **OPTIONS)
    from_start = relaxation(rise_time=lambda x, x0, low, high: (x, x0, high))
    np.testing.assert_allclose(dh.adjoint_gradient(from_start, (0, 5), **OPTIONS).gradient, [-2.0, 0.0, 10.0])
    settling = relaxation(settling_time=lambda x, x0, low, high: (x, 1.0, high))
    with pytest.raises(EventError, match=r"one-sided derivatives, .* by the zero beside the start"):
        dh.adjoint_gradient(settling, (0, 5), parameters={"high": 0.5}, **OPTIONS)


@pytest.mark.uncertified
def test_a_jump_to_the_edge_of_the_band() -> None:
    m = dh.HybridModel("kick")
    jump, x = m.parameter("jump", 0.5), m.differential("x")
    only = m.mode("only", ode={x: 1 - x})
    m.transition(only, only, at=m.parameter("T", 2.0), reset={x: x + jump})
    m.initial(only, {x: 0.0})
    m.functional("settling", settling_time=(x, 1.0, 0.1))
    built, before = m.build(), 1 - math.exp(-2)
    into = dh.adjoint_gradient(built, (0, 8), parameters={"jump": 1.05 - before}, **OPTIONS)
    np.testing.assert_allclose([into.value, *into.gradient], [2.0, 0.0, 1.0], atol=1e-9)
    with pytest.raises(EventError, match="by the zero beside the state after the event"):
        dh.adjoint_gradient(built, (0, 8), parameters={"jump": 1.1 - before}, **OPTIONS)


@pytest.mark.parametrize("after", [1.0, 2.0])
def test_a_level_at_a_knot(after: float) -> None:
    m = dh.HybridModel("ramp")
    a, x = m.parameter("a", 1.0), m.differential("x")
    f = m.signal("f", [0.0, 1.0, 2.0], [1.0, after, after], kind="previous")
    m.initial(m.mode("only", ode={x: a * f}), {x: 0.0})
    m.functional("rise", rise_time=(x, 0.25, 1.0))
    if after == 1.0:
        np.testing.assert_allclose(dh.adjoint_gradient(m.build(), (0, 2), **OPTIONS).gradient, [-0.75], rtol=1e-9)
    else:
        with pytest.raises(
            EventError, match=r"-0.5 by a crossing at t = 1, and -1 by the zero beside the state before"
        ):
            dh.adjoint_gradient(m.build(), (0, 2), **OPTIONS)


def test_a_level_at_which_the_mode_changes() -> None:
    m = dh.HybridModel("switch")
    a, c, x = m.parameter("a", 1.0), m.parameter("c", 0.9), m.differential("x")
    slow, fast = m.mode("slow", ode={x: a}), m.mode("fast", ode={x: 2 * a})
    m.transition(slow, fast, guard=x - c, direction="rising")
    m.initial(slow, {x: 0.0})
    m.functional("own", rise_time=(x, 0.0, c))
    found = dh.adjoint_gradient(m.build(), (0, 1.2), **OPTIONS)
    np.testing.assert_allclose(found.gradient, [-0.9, 1.0], rtol=1e-9)
    m.functionals = {}
    m.functional("another", rise_time=(x, 0.1, 0.9))
    with pytest.raises(EventError, match="one-sided derivatives"):
        dh.adjoint_gradient(m.build(), (0, 1.2), **OPTIONS)


# -- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.uncertified
def test_times_that_do_not_exist_are_nan() -> None:
    m = step_response()
    x = m.declarations["x"].symbol
    m.functionals = {}
    m.functional("high", rise_time=(x, 0.1, 1.9))
    m.functional("late", settling_time=(ca.vertcat(x, 0), 1.0, ca.vertcat(0.05, 2.0)), terminal=ca.vertcat(x, 1))
    m.functional("peak", maximum=x)
    built = m.build()
    for keep in ("all", "final"):
        sol = dh.simulate(built, (0, 2), keep=keep)
        assert np.isnan(sol.functionals["high"])
        np.testing.assert_array_equal(np.isnan(sol.functionals["late"]), [True, False])
        assert sol.functionals["peak"] == pytest.approx(1 + Exact(**STEP).overshoot, rel=1e-6)
    notes = dh.simulate(built, (0, 2)).diagnostics.notes
    assert any("'high' never reaches its level. Its value is NaN." in note for note in notes)
    assert any("'late', entry 0, is outside its band at the end of the run. Its value" in note for note in notes)
    assert np.isfinite(dh.adjoint_gradient(built, (0, 2), "peak").gradient).all()
    for name, said in (("high", "never reaches its level"), ("late", "outside its band at the end of the run")):
        with pytest.raises(EventError, match=said) as raised:
            dh.adjoint_gradient(built, (0, 2), name)
        assert raised.value.trajectory is not None
    with pytest.warns(DerivativeWarning, match="The gradient is not one"):
        forward = dh.forward_sensitivity(built, (0, 2), strict=False)
    assert np.isnan(forward.gradient["high"]).all()
    np.testing.assert_array_equal(np.isnan(forward.gradient["late"]), [[True, True], [False, False]])


def test_runs_of_batches_without_a_time_have_failed() -> None:
    m = dh.HybridModel("relaxation")
    a, x = m.parameter("a", 1.0), m.differential("x")
    m.initial(m.mode("only", ode={x: a - x}), {x: 0.0})
    m.functional("rise", rise_time=(x, 0.1, 1.9))
    m.functional("peak", maximum=x)
    built = m.build()
    for gradient in (None, "adjoint"):
        found = dh.batch(built, (0, 5), parameters={"a": [1.0, 2.5]}, functional="rise", gradient=gradient)
        assert isinstance(found.errors[0], EventError)
        assert found.errors[1] is None
        assert np.isnan(found.functionals["rise"]).tolist() == [True, False]
    assert not any(dh.batch(built, (0, 5), parameters={"a": [1.0, 2.5]}, functional="peak").errors)
    inputs = dh.Inputs(built, {"a": stats.norm(2.0, 0.3)})
    with pytest.warns(dh.UncertaintyWarning, match="never reaches its level"):
        sample = dh.monte_carlo(built, (0, 5), inputs, 64, functional="rise")
    with pytest.raises(dh.UncertaintyError, match="failed"):
        _ = sample.mean


def test_levels_that_are_only_touched() -> None:
    m = step_response()
    x = m.declarations["x"].symbol
    m.functionals = {}
    m.functional("touch", rise_time=(x, 0.1, 1 + Exact(**STEP).overshoot - 1e-8))
    with pytest.raises(GrazingError, match=r"goes beyond its level by about 1\.0e-08, within the accuracy of the run"):
        dh.adjoint_gradient(m.build(), (0, 20), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (lambda x: {"overshoot": (x, 1.0, 1.0)}, "maximum of functional 'f' is NaN or infinite"),
        (lambda x: {"maximum": ca.log(x - 0.5)}, "maximum of functional 'f' is NaN or infinite"),
        (lambda x: {"rise_time": (ca.log(x - 0.5), 0.1, 0.2)}, "rise_time of functional 'f' is NaN or infinite"),
        (lambda x: {"maximum": 1 / (x - 0.5)}, "maximum of functional 'f' jumps, or goes to infinity"),
    ],
    ids=["equal levels", "logarithm", "logarithm of a level", "pole"],
)
def test_expressions_that_are_not_finite(parts: Callable[[ca.MX], dict[str, Any]], said: str) -> None:
    m = dh.HybridModel("decay")
    x = m.differential("x")
    m.initial(m.mode("only", ode={x: -x}), {x: 1.0})
    m.functional("f", **parts(x))
    with pytest.raises(NonFiniteError, match=said) as raised:
        dh.simulate(m.build(), (0, 2))
    assert raised.value.trajectory is not None


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"maximun": 1}, "has no part 'maximun'"),
        ({"rise_time": 1}, "takes"),
        ({"rise_time": (1, 2)}, "takes"),
        ({"settling_time": (1, [1, 2], 3)}, "sizes must be 1 or that of the signal"),
        ({"maximum": [1, 2], "terminal": 1}, "one common size"),
        ({"maximum": 1, "overshoot": (1, 0, 2)}, "an overshoot and another maximum"),
    ],
)
def test_statements_that_are_refused(parts: dict[str, Any], said: str) -> None:
    m = dh.HybridModel("m")
    with pytest.raises(ModelError, match=said):
        m.functional("f", **parts)


def test_moving_measurements_beside_peaks_stay_within_their_table() -> None:
    """A peak at an event is no measurement, so that a run may have fewer of them than were compiled."""
    m = dh.HybridModel("sawtooth")
    rate, when, x = m.parameter("rate", 2.0), m.parameter("when", 0.7), m.differential("x")
    run = m.mode("run", ode={x: rate})
    m.transition(run, run, guard=x - 1, direction="rising", reset={x: 0.0})
    m.initial(run, {x: 0.0})
    m.functional("measured", at_times=[(when, x)])
    m.functional("peak", maximum=ca.vertcat(*(k * x for k in range(1, 30))))
    built = m.build()
    ends = built.graph.ends
    assert ends is not None
    assert ends.moves is not None
    column, _ = ends.moves.pattern(0)
    assert column.size - 1 == 1 < len(ends.measured)
    for _ in range(3):
        assert_agree(dh.check_gradient(built, (0, 1.2), "measured", **OPTIONS))


@pytest.mark.parametrize("chained", [False, True])
def test_a_run_that_ends_at_the_peak(chained: bool) -> None:
    """x = a t up to 1, where it is doubled and the run ends, or up to t = b, where the run ends."""
    m = dh.HybridModel("end")
    a, b, x = m.parameter("a", 1.6), m.parameter("b", 0.5), m.differential("x")
    run, last = m.mode("run", ode={x: a}), m.mode("last", ode={x: 0 * x})
    if chained:
        m.transition(run, last, guard=x - b, direction="rising", reset={x: 2 * x + a * m.time})
        m.transition(last, None, guard=x - 0.9, direction="rising", on_entry="fire")
    else:
        m.transition(run, None, guard=ca.sin(m.time) - ca.sin(b), direction="rising")
    m.initial(run, {x: 0.0})
    m.functional("peak", maximum=x + 0.3 * m.time)
    m.functional("time", time_of_maximum=x + 0.3 * m.time)
    check = dh.check_gradient(m.build(), (0, 2), "peak", **OPTIONS)
    assert_agree(check)
    found = check.gradients["forward"]
    # chained: 2 b + b + 0.3 b / a, otherwise a b + 0.3 b
    np.testing.assert_allclose(found, [-0.3 * 0.5 / 1.6**2, 3 + 0.3 / 1.6] if chained else [0.5, 1.9], rtol=1e-7)
    assert_agree(dh.check_gradient(m.build(), (0, 2), "time", **OPTIONS))
