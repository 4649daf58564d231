"""Whole runs in compiled code: the same, to the last bit, as those that the automaton carries out."""

from __future__ import annotations

import ctypes
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any
from unittest.mock import patch

import casadi as ca
import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import dae_hybrid as dh
from dae_hybrid.adapters.ali3p import compiled as ali3p
from dae_hybrid.adapters.sundials.header import CONSTANTS, STRUCTS, source
from dae_hybrid.adapters.sundials.segment_loop import SegmentLoop
from dae_hybrid.adapters.sundials.session import SundialsSession
from dae_hybrid.codegen.compiler import compile_source
from dae_hybrid.port.record_table import HEADER
from dae_hybrid.problems import em_hysteresis, hybrid_ode
from dae_hybrid.system.transition_map import GRAZING_RATE_SHARE

TIGHT = {"rtol": 1e-9, "atol": 1e-12}
METHODS = ["auto", "erk", "adams", "bdf"]


@contextmanager
def by_the_automaton() -> Iterator[None]:
    """No run is carried out as a whole."""
    with patch.object(SundialsSession, "run", lambda *given: None):
        yield


def both(call: Callable[[], Any]) -> tuple[Any, Any]:
    """Results of a native run and of the automaton."""
    one = call()
    assert is_whole(one)
    with by_the_automaton():
        other = call()
    assert not is_whole(other)
    return one, other


def is_whole(result: Any) -> bool:
    """Whether the run was native."""
    run: dh.Trajectory = getattr(result, "trajectory", result)
    return run.parts.native_run is not None


def same(one: Any, other: Any, *, native_events: bool = True) -> None:
    """Two runs are equal to the bit, `native_events` by their number, too."""
    a, b = (getattr(run, "trajectory", run) for run in (one, other))
    for name in ("t", "integrals", "parameters"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=name)
    for name in a.names:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)
    for name, value in a.functionals.items():
        np.testing.assert_array_equal(value, b.functionals[name], err_msg=name)
    assert a.statistics | {"native_events": 0} == b.statistics | {"native_events": 0}
    assert not native_events or a.statistics["native_events"] == b.statistics["native_events"]
    assert (a.notes, a.t_span, a.final[:2], a.ended_by_event) == (b.notes, b.t_span, b.final[:2], b.ended_by_event)
    assert str(one.diagnostics) == str(other.diagnostics)
    for end in (2, 3):
        np.testing.assert_array_equal(a.final[end], b.final[end])
    for field in ("x", "m", "xdot", "guards", "rates", "sizes"):
        np.testing.assert_array_equal(getattr(a.start.at, field), getattr(b.start.at, field), err_msg=field)
    np.testing.assert_allclose(a.start.derivatives, b.start.derivatives, rtol=1e-15)
    assert len(a.segments) == len(b.segments)
    for p, q in zip(a.segments, b.segments, strict=True):
        assert (p.mode, p.method, p.t_start, p.t_end) == (q.mode, q.method, q.t_start, q.t_end)
        for field in ("x_start", "x_end", "xdot_start", "xdot_end", "memory", "t", "values"):
            np.testing.assert_array_equal(getattr(p, field), getattr(q, field), err_msg=field)
            assert not getattr(p, field).flags.writeable, field
    assert len(a.events) == len(b.events)
    for e, f in zip(a.events, b.events, strict=True):
        for field in ("time", "transition", "source", "target", "guard", "rate", "count", "order"):
            assert getattr(e, field) == getattr(f, field), field
        assert e.certified == f.certified or (e.certified and not native_events)
    times = np.linspace(a.t_span[0], a.final[0], 23)
    known = 0 if native_events else 10 * TIGHT["rtol"]  # segments of a table are repeated with other first steps
    for name, values in a(times).items():
        np.testing.assert_allclose(values, b(times)[name], rtol=known, err_msg=name)


def _sampled() -> dh.HybridModel:
    """A clock, times, and costs of both."""
    m = dh.HybridModel("sampled")
    x, u, k = m.differential("x"), m.memory("u", initial=0.3), m.parameter("k", 0.8)
    go, slow = m.mode("go", ode={x: u - x}), m.mode("slow", ode={x: u - 0.2 * x})
    tick = m.transition(go, go, every=0.5, memory={u: k * (1 - x)}, name="tick")
    m.transition(go, slow, at=2.2 + 0.1 * k, name="brake")
    m.transition(slow, go, at=3.3, reset={x: 0.5 * x})
    m.transition(slow, slow, every=0.35, reset={x: x + 0.1 * k})
    m.transition(go, go, guard=x - 0.45, direction="falling", memory={u: u + 0.5})
    m.initial(go, {x: 0.9})
    m.functional("G", integrand=x**2, terminal=x, at_events={tick: u * x})
    m.functional("ticks", at_events={tick: x**2 + k})
    return m


CASES: dict[str, tuple[Callable[[Any], Callable[[], dh.HybridModel]], tuple[float, float], str]] = {
    "ball": (lambda models: models.ball, (0.0, 3.0), "height"),
    "em": (lambda models: em_hysteresis.model, em_hysteresis.t_span, "G"),
    "ode": (lambda models: hybrid_ode.model, (0.0, 5.0), "G"),
    "switched": (lambda models: models.switched, (0.0, 9.0), "V"),
    "clocks": (lambda models: _sampled, (0.0, 7.4), "G"),
    "no events": (lambda models: models.decay, (0.5, 3.0), "area"),
    "circuit": (lambda models: models.circuit, (0.0, 3.0), "work"),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, built: Any, models: Any) -> tuple[dh.HybridSystem, tuple[float, float], str]:
    """A system, its time span and a functional."""
    make, span, functional = CASES[request.param]
    system = built(make(models))
    if system.modes[-1].equations.implicit and request.node.callspec.params.get("method") == "adams":
        pytest.skip("it has algebraic variables")
    return system, span, functional


@pytest.mark.parametrize("method", METHODS)
def test_the_same_run(case: Any, method: str) -> None:
    system, span, _ = case
    same(*both(lambda: dh.simulate(system, span, method=method, **TIGHT)))


@pytest.mark.parametrize("method", ["auto", "bdf"])
def test_the_same_outputs(case: Any, method: str) -> None:
    """Also at the times of events, at the start and at the end, and where there are none in a segment."""
    system, span, _ = case
    events = [e.time for e in dh.simulate(system, span, **TIGHT).events]
    for times in (np.unique([*np.linspace(*span, 31), *events[:2]]), [span[0]], [span[1]], [sum(span) / 2]):
        one, other = both(lambda times=times: dh.simulate(system, span, t_eval=times, method=method, **TIGHT))
        np.testing.assert_array_equal(one.t, times)
        same(one, other)


@pytest.mark.parametrize("method", METHODS)
def test_the_same_sensitivities(case: Any, method: str) -> None:
    system, span, functional = case
    one, other = both(lambda: dh.forward_sensitivity(system, span, method=method, **TIGHT))
    same(one, other)
    for name in one.gradient:
        np.testing.assert_allclose(one.gradient[name], other.gradient[name], rtol=1e-12, atol=1e-14)
    for name in one.trajectory.names:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)
    np.testing.assert_array_equal(one.event_time_sensitivity, other.event_time_sensitivity)
    for a, b in zip(one.event_sensitivities, other.event_sensitivities, strict=True):
        for field in ("time", "state_minus", "state_plus", "memory_minus", "memory_plus"):
            np.testing.assert_array_equal(getattr(a, field), getattr(b, field), err_msg=field)
    last = system.parameters.names[-1]
    few = dh.forward_sensitivity(system, span, wrt=last, method=method, **TIGHT)
    assert is_whole(few)
    np.testing.assert_allclose(few.gradient[functional], one.gradient[functional][..., -1:], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_the_same_adjoint(case: Any, method: str) -> None:
    """With explicit steps in one go; the sums are taken in another order."""
    system, span, functional = case
    one, other = both(lambda: dh.adjoint_gradient(system, span, functional, method=method, duality=True, **TIGHT))
    same(one.trajectory, other.trajectory)
    assert dict(one.statistics) == dict(other.statistics)
    scale = np.abs(other.gradient).max()
    np.testing.assert_allclose(one.gradient, other.gradient, rtol=1e-12, atol=1e-13 * scale)
    np.testing.assert_allclose(one.duality.values, other.duality.values, rtol=1e-10, atol=1e-12 * scale)
    times = np.linspace(*span, 5)
    for name, values in one.adjoint(times).items():
        np.testing.assert_allclose(values, other.adjoint(times)[name], rtol=1e-9, atol=1e-12 * scale, err_msg=name)
    wrt = system.parameters.names[::-1][:2]
    few = dh.adjoint_gradient(system, span, functional, wrt=wrt, method=method, **TIGHT)
    where = [system.parameters.names.index(name) for name in wrt]
    np.testing.assert_allclose(few.gradient, one.gradient[..., where], rtol=1e-5, atol=1e-7 * scale)


def test_runs_one_after_the_other_do_not_see_each_other(case: Any) -> None:
    """Cached runs are updated after any change of parameters, options, span, outputs or directions."""
    system, span, functional = case
    nominal = system.nominal
    calls = [
        lambda: dh.simulate(system, span, **TIGHT),
        lambda: dh.simulate(system, span, parameters=1.01 * nominal, **TIGHT),
        lambda: dh.forward_sensitivity(system, span, parameters=1.01 * nominal, **TIGHT),
        lambda: dh.simulate(system, (span[0], 0.8 * span[1]), rtol=1e-5),
        lambda: dh.forward_sensitivity(system, span, wrt=system.parameters.names[-1], rtol=1e-7, max_step=0.05),
        lambda: dh.adjoint_gradient(system, span, functional, rtol=1e-7, max_order=5),
        lambda: dh.simulate(system, span, t_eval=[span[1]], **TIGHT),
        lambda: dh.adjoint_gradient(system, span, functional, parameters=0.99 * nominal, **TIGHT),
    ]
    with by_the_automaton():
        expected = [call() for call in calls]
    order = [*range(len(calls)), *reversed(range(len(calls)))]
    for which in order:
        found = calls[which]()
        assert is_whole(found), which
        same(getattr(found, "trajectory", found), getattr(expected[which], "trajectory", expected[which]))


def slack() -> dh.HybridModel:
    """Two modes with an algebraic variable that is continuous, memory and costs."""
    m = dh.HybridModel("slack")
    a, b, c = m.parameter("a", 1.3), m.parameter("b", 0.4), m.parameter("c", 0.2)
    y, z, w = m.differential("y"), m.differential("z"), m.algebraic("w")
    count = m.memory("count", initial=0.1 * a)
    modes = [
        m.mode("up", ode={y: a - w, z: w - z}, algebraic=[2 * w - b * y - z]),
        m.mode("down", ode={y: -b * y - w, z: count - z}, algebraic=[2 * w - b * y - z]),
    ]
    m.transition(modes[0], modes[1], guard=w - 0.6 - count, direction="rising", memory={count: count + c * y})
    m.transition(modes[1], modes[0], guard=y - c, direction="falling")
    m.initial(modes[0], {y: b, z: 0.1 * b})
    m.functional("G", integrand=y**2 + w, terminal=w * a)
    m.functional("V", integrand=ca.vertcat(y * w, count))
    return m


@pytest.mark.parametrize("name", ["em", "slack"])
def test_implicit_modes(name: str, built: Any) -> None:
    """IDAS: the start of its sensitivities is solved for in another way, to rounding."""
    make, span, functional = {"em": (em_hysteresis.model, (0.0, 6.0), "G"), "slack": (slack, (0.0, 9.0), "V")}[name]
    system, eliminated = make().build(eliminate=False), built(make)
    same(*both(lambda: dh.simulate(system, span, **TIGHT)))
    fsa = both(lambda: dh.forward_sensitivity(system, span, duality=True, **TIGHT))
    asa = both(lambda: dh.adjoint_gradient(system, span, functional, duality=True, **TIGHT))
    exact = dh.adjoint_gradient(eliminated, span, functional, rtol=1e-11, atol=1e-13).gradient
    scale = np.abs(exact).max()
    for found in fsa:
        np.testing.assert_allclose(found.gradient[functional], exact, rtol=1e-5, atol=1e-6 * scale)
        assert all(event.certified for event in found.events)
    for found in asa:
        np.testing.assert_allclose(found.gradient, exact, rtol=1e-5, atol=1e-6 * scale)
    one, other = fsa
    taus = other.event_time_sensitivity
    np.testing.assert_allclose(one.event_time_sensitivity, taus, rtol=1e-5, atol=1e-6 * np.abs(taus).max())
    for a, b in zip(one.event_sensitivities, other.event_sensitivities, strict=True):
        for field in ("state_minus", "state_plus", "memory_minus", "memory_plus"):
            size = np.abs(getattr(b, field)).max(initial=1e-9)
            np.testing.assert_allclose(getattr(a, field), getattr(b, field), rtol=1e-5, atol=1e-5 * size)
    times = np.linspace(*span, 11)
    one, other = both(lambda: dh.forward_sensitivity(system, span, t_eval=times, **TIGHT))
    for key in one.trajectory.names:
        size = np.abs(other[key][~np.isnan(other[key])]).max()
        np.testing.assert_allclose(one[key], other[key], rtol=1e-5, atol=1e-5 * size, err_msg=key)


# -- special cases --------------------------------------------------------------------------------------------


def ends_alike(make: Callable[[dh.HybridModel], Any], *, whole: bool = False) -> dh.Trajectory:
    """A run that is not whole, or is, and ends as it does by the automaton."""
    m = dh.HybridModel("special")
    span = make(m) or (0.0, 2.0)
    system = m.build()
    one = dh.simulate(system, span, **TIGHT)
    assert is_whole(one) == whole
    with by_the_automaton():
        same(one, dh.simulate(system, span, **TIGHT))
    return one


def test_a_guard_that_fires_at_the_start() -> None:
    def make(m: dh.HybridModel) -> None:
        x = m.differential("x")
        a, b = m.mode("a", ode={x: 1}), m.mode("b", ode={x: -1})
        m.transition(a, b, guard=x, direction="rising")
        m.initial(a, {x: 0.0})

    assert ends_alike(make).events[0].time == 0.0


def test_a_guard_past_its_threshold_at_the_start() -> None:
    def make(m: dh.HybridModel) -> None:
        x = m.differential("x")
        a, b = m.mode("a", ode={x: 1}), m.mode("b", ode={x: -1})
        m.transition(a, b, guard=x, direction="rising")
        m.initial(a, {x: 1.0})

    assert "waits for its next crossing" in ends_alike(make, whole=True).notes[0]


def test_a_guard_at_zero_at_the_end() -> None:
    def make(m: dh.HybridModel) -> tuple[float, float]:
        x = m.differential("x")
        a, b = m.mode("a", ode={x: 1}), m.mode("b", ode={x: -1})
        m.transition(a, b, guard=x - 1, direction="rising")
        m.initial(a, {x: 0.0})
        return 0.0, 1.0

    ends_alike(make)


@pytest.mark.parametrize("rates", [[1.4], [0.5, 1.4], [0.5, 1.0, 1.4]])
def test_many_decays_that_steps_resolve(rates: list[float]) -> None:
    """Explicit steps that are short for their accuracy go on by themselves, however many times something decays."""
    m = dh.HybridModel("lags")
    xs = [m.differential(f"x{i}") for i in range(len(rates))]
    k = m.parameter("k", 1.0)
    flows = {x: r * (k * ca.cos(np.pi * m.time) - x) for x, r in zip(xs, rates, strict=True)}
    m.initial(m.mode("run", ode=flows), dict.fromkeys(xs, 0.0))
    m.functional("G", terminal=xs[-1], at_times={100.0: xs[0] ** 2})
    system = m.build()
    run = dh.simulate(system, (0, 500), rtol=1e-8, atol=1e-10, native_events=True)
    assert run.parts.native_run is not None
    assert {segment.method for segment in run.segments} == {"erk"}
    other = dh.simulate(system, (0, 500), rtol=1e-8, atol=1e-10, native_events=False)
    assert {segment.method for segment in other.segments} == {"erk"}
    assert run.functionals["G"] == pytest.approx(other.functionals["G"], rel=1e-6)


@pytest.mark.parametrize("what", ["measurement", "signal", "implicit", "index 2", "end", "stiff"])
def test_special_systems(what: str) -> None:
    def make(m: dh.HybridModel) -> tuple[float, float]:
        k = m.parameter("k", 2.0)
        x, v = m.differential("x"), m.differential("v")
        if what == "implicit":
            z = m.algebraic("z")
            a = m.mode("a", ode={x: v, v: -k * z}, algebraic=[z + z**3 - x])
        elif what == "index 2":
            z = m.algebraic("z")
            a = m.mode("a", ode={x: v + z, v: -k * x}, constraint=[x - 1])
        elif what == "signal":
            u = m.signal("u", [0.0, 0.7, 4.0], [1.0, 2.0, 0.0])
            a = m.mode("a", ode={x: v, v: -k * x + u})
        elif what == "stiff":
            a = m.mode("a", ode={x: v, v: -1e6 * v - k * 1e6 * x})
        else:
            a = m.mode("a", ode={x: v, v: -k * x})
        if what == "end":
            m.transition(a, None, guard=x, direction="falling")
        more: dict[str, Any] = {"at_times": [(0.3 * k, v)]} if what == "measurement" else {}
        m.functional("G", integrand=x**2, **more)
        m.initial(a, {x: 1.0, v: 0.0})
        return 0.0, 4.0

    ends_alike(make, whole=what in ("measurement", "signal", "implicit"))


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"max_steps": 20}, dh.StepLimitError),
        ({"max_events": 2}, dh.EventError),
    ],
)
def test_limits_keep_what_there_was(options: dict[str, Any], kind: type[Exception]) -> None:
    system = em_hysteresis.system()
    with pytest.raises(kind) as one:
        dh.simulate(system, em_hysteresis.t_span, **options)
    with by_the_automaton(), pytest.raises(kind) as other:
        dh.simulate(system, em_hysteresis.t_span, **options)
    assert str(one.value) == str(other.value)
    a, b = (getattr(error.value, "trajectory") for error in (one, other))  # noqa: B009
    np.testing.assert_array_equal(a.t, b.t)
    assert not a.complete
    assert is_whole(dh.simulate(system, em_hysteresis.t_span)) or is_whole(dh.simulate(system, em_hysteresis.t_span))


def test_what_is_not_finite_is_said() -> None:
    m = dh.HybridModel("lost")
    k, x = m.parameter("k", 1.0), m.differential("x")
    run = m.mode("run", ode={x: -ca.sqrt(x - k)})
    m.initial(run, {x: 1.5 + k})
    m.functional("end", terminal=ca.log(x - 1.5))
    system = m.build()
    with pytest.raises(dh.NonFiniteError, match="functional end is NaN or infinite"):
        dh.simulate(system, (0.0, 1.5), parameters={"k": 0.5})


def test_nothing_to_integrate_nothing_to_vary() -> None:
    """No functional, no parameter, no guard, no memory: every array may be empty."""
    m = dh.HybridModel("bare")
    x = m.differential("x")
    m.initial(m.mode("run", ode={x: -x}), {x: 1.0})
    system = m.build()
    one, other = both(lambda: dh.simulate(system, (0.0, 1.0), **TIGHT))
    same(one, other)
    assert one["x"][-1] == pytest.approx(np.exp(-1), rel=1e-8)


def test_a_start_in_equilibrium_on_a_guard() -> None:
    """Whether the guard moves is rounding: it has to be the same rounding."""
    m = dh.HybridModel("balance")
    a, b = m.parameter("a", 0.3), m.parameter("b", 0.7)
    x, t = m.differential("x"), m.time
    still = m.mode("still", ode={x: a - b * x + ca.fmax(t - 1, 0) / (1 + t**2)})
    moving = m.mode("moving", ode={x: 0 * x + 0.1})
    m.transition(still, moving, guard=x - a / b, direction="both")
    m.initial(still, {x: a / b})
    m.functional("G", terminal=x)
    system = m.build()
    rng = np.random.default_rng(3)
    for p in rng.uniform(0.1, 2.0, (20, 2)):

        def outcome(p: np.ndarray = p) -> Any:
            system.graph.cache.clear()
            try:
                return dh.simulate(system, (0, 1e3), parameters=p, rtol=1e-6, max_steps=20_000).functionals["G"]
            except dh.DaeHybridError as error:
                return str(error)

        one = outcome()
        with by_the_automaton():
            assert one == outcome()


def test_what_is_simplified_in_the_whole_is_not_in_parts() -> None:
    """The functional of an eliminated variable: 0.7 (0.3 x) is not 0.21 x."""
    m = dh.HybridModel("product")
    k, x, w = m.parameter("k", 0.7), m.differential("x"), m.algebraic("w")
    m.initial(m.mode("run", ode={x: 0.3 - 0.1 * x - w}, algebraic=[w - 0.3 * x]), {x: 0.2 * k})
    m.functional("G", terminal=0.7 * w)
    system = m.build()
    for p in np.linspace(0.1, 3, 20):
        same(*both(lambda p=p: dh.simulate(system, (0, 1), parameters=[p], **TIGHT)))


def test_spans_of_roundings() -> None:
    m = dh.HybridModel("brief")
    k, x = m.parameter("k", 1.0), m.differential("x")
    m.initial(m.mode("run", ode={x: -k * x}), {x: 1.0})
    m.functional("G", integrand=x)
    system = m.build()
    with pytest.raises(dh.OptionError, match="a few roundings of 1e"):  # G is 1e-9, and would be given as 0
        dh.adjoint_gradient(system, (1e6, 1e6 + 1e-9), "G")
    found = dh.adjoint_gradient(system, (1e6, 1e6 + 1e-9), "G", atol=1e-8)
    assert not is_whole(found)
    assert found.value == found.gradient[0] == 0.0


def test_a_terminal_value_without_derivative() -> None:
    """Also where what it depends on does not move."""
    m = dh.HybridModel("root")
    a, x, w = m.parameter("a", 1.0), m.differential("x"), m.algebraic("w")
    m.initial(m.mode("run", ode={x: -a * x}, algebraic=[w - 0 * x]), {x: 1.0})
    m.functional("G", terminal=ca.sqrt(w) + x)
    system = m.build()
    assert is_whole(dh.simulate(system, (0, 1)))
    for analysis in (dh.forward_sensitivity, lambda *given: dh.adjoint_gradient(*given, "G")):
        with pytest.raises(dh.NonFiniteError, match="no finite derivative"):
            analysis(system, (0, 1))


def test_gradients_are_the_callers_own(case: Any) -> None:
    system, span, functional = case
    fsa, asa = dh.forward_sensitivity(system, span), dh.adjoint_gradient(system, span, functional)
    again = dh.forward_sensitivity(system, span).gradient[functional].copy()
    fsa.gradient[functional][:] = 0.0
    asa.gradient[:] = 0.0
    np.testing.assert_array_equal(dh.forward_sensitivity(system, span).gradient[functional], again)


def test_a_path_that_was_too_long_is_kept_again_when_it_is_not(models: Any, monkeypatch: Any) -> None:
    system = models.oscillator().build()
    run = {"wrt": "w", "method": "erk", "rtol": 1e-6}
    first = dh.adjoint_gradient(system, (0, 3), "end", **run)
    monkeypatch.setattr("dae_hybrid.adapters.sundials.compiled.LARGEST_PATH", 4000)
    long = dh.adjoint_gradient(system, (0, 3), "end", parameters={"w": 200.0}, duality=False, **run)
    assert long.statistics["nfev"] + long.statistics["linearisations"] > 0
    again = dh.adjoint_gradient(system, (0, 3), "end", **run)
    assert dict(again.statistics) == dict(first.statistics)
    np.testing.assert_array_equal(again.gradient, first.gradient)


@pytest.mark.parametrize(
    ("structs", "text", "known"),
    [
        (STRUCTS, source(), {"run", "event_loop", "context", "event"}),
        (ali3p.STRUCTS, ali3p.source(), {"motion_run", "factorisation", "sparse_lu"}),
    ],
    ids=["sundials", "ali3p"],
)
def test_structs_are_laid_out_as_in_c(structs: dict[str, Any], text: str, known: set[str]) -> None:
    """The classes that are read from the declarations, by the offsets of their fields as a compiler has them."""
    places = [(name, field[0]) for name, kind in structs.items() for field in kind._fields_]
    expected = [getattr(structs[name], field).offset for name, field in places]
    expected += [ctypes.sizeof(kind) for kind in structs.values()]
    offsets = [f"offsetof({name}, {field})" for name, field in places] + [f"sizeof({name})" for name in structs]
    header = "#include <stddef.h>\n" + text.partition("/* ----")[0]
    library = compile_source(f"{header}\nconst size_t offsets[] = {{{', '.join(offsets)}}};")
    assert library is not None
    assert list((ctypes.c_size_t * len(expected)).in_dll(library, "offsets")) == expected
    assert known <= set(structs)


def test_constants_of_rules_are_those_of_the_core() -> None:
    known = {
        "GRAZING": GRAZING_RATE_SHARE,
        "ADJOINT_ROUNDING": 10 * np.finfo(float).eps,
        "HEADER": len(HEADER),
        "CLEAN_AT": 9,
    }
    assert {name: CONSTANTS[name] for name in known} == known


# -- closed forms ---------------------------------------------------------------------------------------------


@settings(derandomize=True, deadline=None, max_examples=25, phases=(Phase.explicit, Phase.generate))
@given(
    k=st.floats(0.3, 2.0), low=st.floats(0.1, 0.4), high=st.floats(0.6, 0.9), start=st.floats(0.45, 0.55),
    end=st.floats(3.0, 9.0),
)  # fmt: skip
def test_a_thermostat(k: float, low: float, high: float, start: float, end: float) -> None:
    """x' = k (1 - x) or -k x, switched at `high` and `low`: every time, value and derivative in closed form."""
    run = dh.adjoint_gradient(thermostat(), (0.0, end), "end", parameters=[k, low, high, start], rtol=1e-10, atol=1e-13)
    assert is_whole(run)
    times, on, t, x = [], True, 0.0, start
    # x and dx by (k, low, high, start) at the last switch, t and dt
    dx, dt = np.array([0.0, 0.0, 0.0, 1.0]), np.zeros(4)
    while True:
        goal, level = (1.0, high) if on else (0.0, low)
        duration = np.log((goal - x) / (goal - level)) / k
        if t + duration >= end:
            break
        d_level = np.eye(4)[2 if on else 1]
        d_duration = (-dx / (goal - x) + d_level / (goal - level)) / k - duration / k * np.eye(4)[0]
        t, dt, x, dx, on = t + duration, dt + d_duration, level, d_level, not on
        times.append(t)
    goal, decay = (1.0 if on else 0.0), np.exp(-k * (end - t))
    value = goal + (x - goal) * decay
    gradient = dx * decay + (x - goal) * decay * (k * dt - (end - t) * np.eye(4)[0])
    np.testing.assert_allclose([event.time for event in run.trajectory.events], times, rtol=1e-9)
    assert run.value == pytest.approx(value, rel=1e-9)
    np.testing.assert_allclose(run.gradient, gradient, rtol=1e-7, atol=1e-8)


def thermostat() -> dh.HybridSystem:
    """Built once."""
    if not BUILT:
        m = dh.HybridModel("thermostat")
        k, low, high, start = (m.parameter(*pair) for pair in zip("klhs", (1.0, 0.3, 0.7, 0.5), strict=True))
        x = m.differential("x")
        on, off = m.mode("on", ode={x: k * (1 - x)}), m.mode("off", ode={x: -k * x})
        m.transition(on, off, guard=x - high, direction="rising")
        m.transition(off, on, guard=x - low, direction="falling")
        m.initial(on, {x: start})
        m.functional("end", terminal=x)
        BUILT.append(m.build())
    return BUILT[0]


BUILT: list[dh.HybridSystem] = []


# -- cached runs ----------------------------------------------------------------------------------------------


def test_runs_are_freed_when_they_are_let_go() -> None:
    """Without the garbage collector: nothing refers to itself."""
    system = em_hysteresis.system()
    gc.collect()
    gc.disable()
    try:
        for call in (
            lambda: dh.simulate(system, (0, 2)),
            lambda: dh.forward_sensitivity(system, (0, 2)),
            lambda: dh.adjoint_gradient(system, (0, 2), "G"),
        ):
            found = call()
            assert is_whole(found)
            run = getattr(found, "trajectory", found)
            _ = run["u"], run.events
            there = weakref.ref(run)
            del found, run
            assert there() is None
    finally:
        gc.enable()


def test_paths_are_let_go_after_an_adjoint() -> None:
    """And a further adjoint integrates the segments again."""
    found = dh.adjoint_gradient(em_hysteresis.system(), (0, 2), "G", **TIGHT)
    whole = found.trajectory.parts.native_run
    assert whole is not None
    assert not getattr(whole.raw, "paths")  # noqa: B009
    assert all(segment.path is None for segment in found.trajectory.segments)
    assert np.all(np.isfinite(found.adjoint(1.0)["u"]))


def test_bits_do_not_depend_on_the_room_there_was() -> None:
    """A run that has to make room on its way looks how stiff it is where another one does, and takes the same steps."""
    m = dh.HybridModel("regenerating")
    k1, k2, k3, r = (m.parameter(*pair) for pair in zip("abcd", (0.04, 3e7, 1e4, 0.2), strict=True))
    y1, y2, y3 = (m.differential(name) for name in ("y1", "y2", "y3"))

    def kinetics(s: int) -> dict[Any, Any]:
        slow, fast, back, more = k1 * y1, k2 * y2**2, k3 * y2 * y3, s * r * y3
        return {y1: -slow + back + more, y2: slow - back - fast, y3: fast - more}

    off, on = m.mode("off", ode=kinetics(0)), m.mode("on", ode=kinetics(1))
    m.transition(off, on, guard=y1 - 0.7, direction="falling")
    m.transition(on, off, guard=y1 - 0.85, direction="rising")
    m.initial(off, {y1: 1.0, y2: 0.0, y3: 0.0})
    m.functional("G", integrand=y3**2)
    system = m.build()
    first = dh.adjoint_gradient(system, (0, 60), "G", rtol=1e-8, atol=1e-12)
    for _ in range(2):
        again = dh.adjoint_gradient(system, (0, 60), "G", rtol=1e-8, atol=1e-12)
        assert dict(again.trajectory.statistics) == dict(first.trajectory.statistics)
        np.testing.assert_array_equal(again.gradient, first.gradient)
        np.testing.assert_array_equal(again.trajectory.t, first.trajectory.t)


# -- events at the end --------------------------------------------------------------------------------------


@cache
def ticking(kind: str) -> dh.HybridSystem:
    """x' = s - k x with ticks at 0.3 i (or 0.1 i), which add to x and n, or switch s."""
    m = dh.HybridModel(f"ticking {kind}")
    k, x, n = m.parameter("k", 0.8), m.differential("x"), m.memory("n", initial=0.0)
    period = m.parameter("period", 0.3) if kind == "moves" else 0.1 if kind == "tenths" else 0.3
    on, off = m.mode("on", ode={x: 1 - k * x}), m.mode("off", ode={x: -k * x})
    clock = m.clock(period, offset=period)
    if kind == "leaves":
        m.transition(on, off, every=clock, memory={n: n + k}, name="down")
        m.transition(off, on, every=clock, reset={x: x + 0.1 * k}, name="up")
    elif kind == "times":
        for i in (2, 3, 5, 7):
            m.transition(on, on, at=0.3 * i, reset={x: x + 0.1 * k}, memory={n: n + x}, name=f"dose {i}")
    else:
        m.transition(on, on, every=clock, reset={x: x + 0.1 * k}, memory={n: n + x}, name="dose")
        m.transition(on, on, every=clock, reset={x: x - 0.05 * n}, name="second")
    if kind == "lands":  # a guard is zero after the last tick
        level = m.memory("level", initial=-1.0)
        m.transition(on, on, at=1.5, memory={level: x}, name="raise")
        m.transition(on, on, guard=level - x, direction="rising", memory={n: 0.5}, name="meet")
    elif kind == "at once":  # the last of three is not native
        m.transition(on, off, at=1.5, name="leave")
        m.transition(off, off, at=1.5, reset={x: 0.5 * x}, name="half")
    m.initial(on, {x: 0.2})
    m.functional("G", integrand=x**2, terminal=x * n, at_times={1.5: x} if kind == "measured" else None)
    return m.build()


#: the last ticks precede 0.9 and 2.1 by rounding, and follow 0.3
ENDS = [(kind, end) for kind in ("plain", "leaves", "times") for end in (0.9, 1.5, 2.1)] + [("tenths", 0.3)]


@pytest.mark.parametrize(("kind", "end"), ENDS)
@pytest.mark.parametrize("method", METHODS)
def test_ticks_at_the_end_of_a_run(kind: str, end: float, method: str) -> None:
    system = ticking(kind)
    for t_eval in (None, np.linspace(0.0, end, 7), np.array([end])):
        options: dict[str, Any] = {"method": method, "t_eval": t_eval, **TIGHT}
        same(*both(lambda o=options: dh.simulate(system, (0.0, end), **o)), native_events=False)
        one, other = both(lambda o=options: dh.forward_sensitivity(system, (0.0, end), **o))
        same(one, other, native_events=False)
        np.testing.assert_allclose(one.gradient["G"], other.gradient["G"], rtol=1e-14)
        run = one.trajectory
        assert run.events[-1].time == pytest.approx(end, rel=1e-15)
        assert run.statistics["native_events"] == len(run.events)
        one, other = (dh.simulate(system, (0.0, end), native_events=native, **options) for native in (True, False))
        same(one, other, native_events=False)


@pytest.mark.parametrize(("kind", "end"), ENDS)
@pytest.mark.parametrize("method", ["auto", "bdf"])
def test_adjoints_of_ticks_at_the_end_of_a_run(kind: str, end: float, method: str) -> None:
    system = ticking(kind)
    one, other = both(lambda: dh.adjoint_gradient(system, (0.0, end), "G", method=method, duality=True, **TIGHT))
    same(one.trajectory, other.trajectory, native_events=False)
    np.testing.assert_allclose(one.gradient, other.gradient, rtol=10 * TIGHT["rtol"])
    forward = dh.forward_sensitivity(system, (0.0, end), method=method, **TIGHT)
    np.testing.assert_allclose(one.gradient, forward.gradient["G"][0], rtol=1e-7)
    h = 1e-5
    values = [dh.simulate(system, (0.0, end), parameters={"k": 0.8 + d}, **TIGHT).functionals["G"] for d in (-h, h)]
    np.testing.assert_allclose(one.gradient[0], (values[1] - values[0]) / (2 * h), rtol=1e-6)


def test_a_measurement_and_ticks_at_the_end_of_a_run() -> None:
    system = ticking("measured")
    same(*both(lambda: dh.simulate(system, (0.0, 1.5), t_eval=[1.0, 1.5], **TIGHT)), native_events=False)
    one, other = both(lambda: dh.adjoint_gradient(system, (0.0, 1.5), "G", **TIGHT))
    np.testing.assert_allclose(one.gradient, other.gradient, rtol=10 * TIGHT["rtol"])


@pytest.mark.parametrize("kind", ["lands", "at once"])
def test_special_events_at_the_end_of_a_run_are_left_to_the_automaton(kind: str) -> None:
    """Although ticks that precede them there are native."""
    system, span = ticking(kind), (0.0, 1.5)
    one, other = (dh.simulate(system, span, native_events=native, **TIGHT) for native in (True, False))
    same(one, other, native_events=False)
    assert not is_whole(one)
    assert [event.time for event in one.events].count(1.5) == 3 + (kind == "at once")
    found = dh.batch(system, span, parameters=[[0.8], [0.81]], native_events=True, **TIGHT)
    assert not found.native.any()
    assert "the end" in str(found.reasons[0])
    np.testing.assert_array_equal(found.functionals["G"][0], one.functionals["G"])


@pytest.mark.parametrize("analysis", ["forward", "adjoint"])
def test_a_tick_that_moves_past_the_end_is_refused(analysis: str) -> None:
    """Its transition happens on one side of these parameters only; the values are native."""
    system, span = ticking("moves"), (0.0, 1.5)
    same(*both(lambda: dh.simulate(system, span, **TIGHT)), native_events=False)
    call = {"forward": dh.forward_sensitivity, "adjoint": partial(dh.adjoint_gradient, functional="G")}[analysis]
    with pytest.raises(dh.EventError, match="very end"):
        call(system, span, **TIGHT)
    with pytest.raises(dh.EventError, match="very end"), by_the_automaton():
        call(system, span, **TIGHT)


# -- runs that pause ----------------------------------------------------------------------------------------


def _events_at_the_end() -> dh.HybridModel:
    m = dh.HybridModel("at the end")
    x, n = m.differential("x"), m.memory("n", initial=0.0)
    p = m.parameter("p", 1.0)
    go = m.mode("go", ode={x: p})
    m.transition(go, go, guard=x - 1, direction="rising", reset={x: 0.0}, memory={n: n + 1})
    m.initial(go, {x: 0.0})
    m.functional("G", integrand=x**2, terminal=x * n)
    return m


def _together() -> dh.HybridModel:
    m = dh.HybridModel("together")
    x, y, p = m.differential("x"), m.differential("y"), m.parameter("p", 1.0)
    go = m.mode("go", ode={x: p, y: p})
    m.transition(go, go, guard=x - 1, direction="rising", reset={x: 0.0})
    m.transition(go, go, guard=y - 2, direction="rising", reset={y: 0.5})
    m.initial(go, {x: 0.0, y: 0.0})
    m.functional("G", integrand=x * y)
    return m


def _stiff_later() -> dh.HybridModel:
    m = dh.HybridModel("stiff later")
    x, p = m.differential("x"), m.parameter("p", 2.0)
    slow = m.mode("slow", ode={x: p})
    fast = m.mode("fast", ode={x: -1e5 * (x - ca.cos(m.time)) - p})
    m.transition(slow, fast, guard=x - 1, direction="rising")
    m.transition(fast, slow, guard=x - 0.1, direction="falling", reset={x: -1.0})
    m.initial(slow, {x: 0.0})
    m.functional("G", integrand=x)
    return m


def _van_der_pol() -> dh.HybridModel:
    m = dh.HybridModel("van der Pol")
    x, v, mu = m.differential("x"), m.differential("v"), m.parameter("mu", 200.0)
    go = m.mode("go", ode={x: v, v: mu * (1 - x**2) * v - x})
    m.initial(go, {x: 1e-3, v: 0.0})
    m.functional("G", integrand=x**2)
    return m


def _ends_by_event() -> dh.HybridModel:
    m = dh.HybridModel("ends")
    x, v, g = m.differential("x"), m.differential("v"), m.parameter("g", 9.81)
    fall = m.mode("fall", ode={x: v, v: -g})
    m.transition(fall, fall, guard=x, direction="falling", reset={v: -0.8 * v})
    m.transition(fall, None, guard=m.time - 2.5, direction="rising")
    m.initial(fall, {x: 1.0, v: 0.0})
    m.functional("G", integrand=x, terminal=x + v)
    return m


PAUSING: dict[str, tuple[Callable[[], dh.HybridModel], tuple[float, float]]] = {
    "event at the end": (_events_at_the_end, (0.0, 5.0)),
    "two at once": (_together, (0.0, 7.3)),
    "stiff later": (_stiff_later, (0.0, 6.0)),
    "stiff on the way": (_van_der_pol, (0.0, 300.0)),
    "ends by an event": (_ends_by_event, (0.0, 9.0)),
}


@contextmanager
def counting_pauses() -> Iterator[list[int]]:
    """The statuses with which runs have paused and gone on in their sessions."""
    found, take_over = [], SegmentLoop._take_over

    def noted(course: SegmentLoop, runner: Any) -> None:
        found.append(runner.paused)
        take_over(course, runner)

    with patch.object(SegmentLoop, "_take_over", noted):
        yield found


@pytest.mark.parametrize("which", PAUSING)
@pytest.mark.parametrize("analysis", ["simulate", "forward", "adjoint"])
@pytest.mark.filterwarnings("ignore::dae_hybrid.DerivativeWarning")
def test_a_run_that_pauses_goes_on_as_if_it_had_not(which: str, analysis: str, built: Any) -> None:
    """Not a step is taken twice: trajectories, gradients and counters are those of the automaton."""
    make, span = PAUSING[which]
    system = built(make)
    call: Callable[[], Any] = {
        "simulate": lambda: dh.simulate(system, span, t_eval=np.linspace(*span, 9), **TIGHT),
        "forward": lambda: dh.forward_sensitivity(system, span, strict=False, **TIGHT),
        "adjoint": lambda: dh.adjoint_gradient(system, span, "G", strict=False, duality=False, **TIGHT),
    }[analysis]
    for _ in range(2):  # the memories of a run that has paused serve another one
        with counting_pauses() as pauses:
            one = call()
        assert pauses
    with by_the_automaton():
        other = call()
    if analysis == "simulate":
        same(one, other)
    elif analysis == "forward":
        np.testing.assert_allclose(one.gradient["G"], other.gradient["G"], rtol=1e-10)
    else:
        np.testing.assert_array_equal(one.gradient, other.gradient)


@pytest.mark.parametrize(
    ("flow", "options", "error"),
    [
        (lambda x, t: 1 / (t - 2), {}, dh.DaeHybridError),
        (lambda x, t: ca.sqrt(2 - t) + 0 * x, {}, dh.DaeHybridError),
        (lambda x, t: x**2, {}, dh.DaeHybridError),
        (lambda x, t: -x + ca.sin(1e3 * t), {"max_steps": 700}, dh.StepLimitError),
    ],
    ids=["pole", "no number", "infinite", "too many steps"],
)
def test_a_run_that_fails_says_so_as_if_it_had_not_begun_in_compiled_code(
    flow: Any, options: dict[str, Any], error: type[Exception]
) -> None:
    m = dh.HybridModel("fails")
    x = m.differential("x")
    go = m.mode("go", ode={x: flow(x, m.time) + m.parameter("p", 0.0)})
    m.transition(go, go, guard=m.time - 0.3, direction="rising", reset={x: x})
    m.initial(go, {x: 1.0})
    system = m.build()
    found: list[Any] = []
    for where in (counting_pauses, by_the_automaton):
        with pytest.raises(error) as raised, where():
            dh.simulate(system, (0.0, 3.0), **options)
        found.append(raised.value)
    assert str(found[0]) == str(found[1])
    same(*(e.trajectory for e in found))
