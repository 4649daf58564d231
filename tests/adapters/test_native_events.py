"""Native transitions: the same runs, records and derivatives as segment by segment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import casadi as ca
import numpy as np
import pytest
from random_systems import random_system

import dae_hybrid as dh
from dae_hybrid.adapters.sundials import compiled
from dae_hybrid.adapters.sundials.session import SundialsSession
from dae_hybrid.port.record_table import RecordTable

TIGHT = {"rtol": 1e-9, "atol": 1e-12}
METHODS = ["erk", "adams", "bdf"]


@contextmanager
def segment_by_segment() -> Iterator[None]:
    """No integrator goes on by itself."""
    alone = patch.object(SundialsSession, "_can_run_segments", lambda *given: False)
    with alone, patch.object(SundialsSession, "run", lambda *given: None):
        yield


def both(call: Callable[[], Any]) -> tuple[Any, Any]:
    """What a call gives in compiled code, and segment by segment."""
    one = call()
    with segment_by_segment():
        return one, call()


def native_events(run: dh.Trajectory) -> int:
    """Number of native events."""
    return sum(item.count for item in run.parts.given if isinstance(item, RecordTable))


CASES: dict[str, tuple[str, tuple[float, float], str]] = {
    "ball": ("ball", (0, 3), "height"),
    "em": ("em", (0, 3), "G"),
    "counter": ("counter", (0, 3.3), "area"),
    "switched": ("switched", (0, 9), "G"),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, built: Any, models: Any) -> tuple[dh.HybridSystem, tuple[float, float], str]:
    """A system, its time span and a functional."""
    name, span, functional = CASES[request.param]
    return built(getattr(models, name)), span, functional


@pytest.mark.parametrize("method", METHODS)
def test_the_same_run(case: Any, method: str) -> None:
    system, span, _ = case
    one, other = both(lambda: dh.simulate(system, span, method=method, **TIGHT))
    assert native_events(one) >= len(one.events) - 1 > 0
    assert native_events(other) == 0
    for name, value in one.functionals.items():
        np.testing.assert_allclose(value, other.functionals[name], rtol=1e-9, atol=1e-12)
    assert len(one.segments) == len(other.segments)
    assert one.ended_by_event is other.ended_by_event
    for a, b in zip(one.events, other.events, strict=True):
        for field in ("index", "transition", "source", "target", "order", "direction", "count", "follows"):
            assert getattr(a, field) == getattr(b, field)
        for field in ("time", "rate", "rate_scale", "x_minus", "x_plus", "xdot_minus", "xdot_plus", "memory_minus",
                      "memory_plus", "xi"):  # fmt: skip
            np.testing.assert_allclose(getattr(a, field), getattr(b, field), rtol=1e-7, atol=1e-9, err_msg=field)
        assert abs(a.guard) < 1e-13
    for a, b in zip(one.segments, other.segments, strict=True):
        assert a.mode is b.mode
        for field in ("t_start", "t_end", "x_start", "x_end", "xdot_start", "xdot_end", "memory"):
            np.testing.assert_allclose(getattr(a, field), getattr(b, field), rtol=1e-7, atol=1e-9, err_msg=field)
        assert a.t[0] == a.t_start
        assert a.t[-1] == a.t_end
    assert one.notes == other.notes
    assert str(one.diagnostics).splitlines()[0] == str(other.diagnostics).splitlines()[0]


@pytest.mark.parametrize("name", ["em", "circuit"])
def test_implicit_modes(name: str, models: Any) -> None:
    """Where the algebraic variables are continuous, and where they are solved for."""
    system = getattr(models, name)().build(eliminate=False)
    functional = {"em": "G", "circuit": "both"}[name]
    one, other = both(lambda: dh.simulate(system, (0, 3), **TIGHT))
    assert native_events(one) == len(one.events) > 0
    assert one.notes == other.notes
    np.testing.assert_allclose(one.functionals[functional], other.functionals[functional], rtol=1e-8)
    np.testing.assert_allclose([e.time for e in one.events], [e.time for e in other.events], rtol=1e-8)
    for a, b in zip(one.events, other.events, strict=True):
        np.testing.assert_allclose(a.x_plus, b.x_plus, rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(a.xdot_plus, b.xdot_plus, rtol=1e-5, atol=1e-6)
    one, other = both(lambda: dh.adjoint_gradient(system, (0, 3), functional, duality=True, **TIGHT))
    np.testing.assert_allclose(one.gradient, other.gradient, rtol=1e-5, atol=1e-7 * np.abs(other.gradient).max())


@pytest.mark.parametrize("method", METHODS)
def test_the_same_values_within(case: Any, method: str) -> None:
    """At output times, at the times of events from either side, and in dense output."""
    system, span, _ = case
    events = [e.time for e in dh.simulate(system, span, method=method, **TIGHT).events]
    times = np.unique([*np.linspace(*span, 41), *events[:2]])
    one, other = both(lambda: dh.simulate(system, span, method=method, t_eval=times, **TIGHT))
    np.testing.assert_array_equal(one.t, times)
    inner = [t for t in times if min(abs(t - np.array(events))) > 1e-6]
    for name in one.names:
        same = np.isin(times, inner)
        np.testing.assert_allclose(one[name][same], other[name][same], rtol=1e-6, atol=1e-8, err_msg=name)
        np.testing.assert_allclose(one(inner)[name], one[name][same], rtol=1e-6, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("method", METHODS)
def test_the_same_derivatives(case: Any, method: str) -> None:
    system, span, functional = case
    fsa = both(lambda: dh.forward_sensitivity(system, span, method=method, duality=True, **TIGHT))
    asa = both(lambda: dh.adjoint_gradient(system, span, functional, method=method, duality=True, **TIGHT))
    scale = np.abs(fsa[1].gradient[functional]).max()
    for found in (fsa[0].gradient[functional], asa[0].gradient, asa[1].gradient):
        np.testing.assert_allclose(found, fsa[1].gradient[functional], rtol=1e-4, atol=2e-6 * scale)
    taus = [run.event_time_sensitivity for run in fsa]
    np.testing.assert_allclose(*taus, rtol=1e-4, atol=1e-6 * np.abs(taus[1]).max())
    for a, b in zip(*(run.event_sensitivities for run in fsa), strict=True):
        for side in ("state_minus", "state_plus", "memory_minus", "memory_plus"):
            np.testing.assert_allclose(getattr(a, side), getattr(b, side), rtol=1e-3, atol=1e-4)
    for name in fsa[0].trajectory.names:
        first, last = fsa[0][name][[0, -1]], fsa[1][name][[0, -1]]
        np.testing.assert_allclose(first, last, rtol=1e-4, atol=1e-5)
    assert fsa[0].diagnostics.passed
    assert asa[0].diagnostics.passed
    times = np.linspace(*span, 7)[1:-1]
    for name, values in asa[0].adjoint(times).items():
        np.testing.assert_allclose(values, asa[1].adjoint(times)[name], rtol=1e-4, atol=1e-5 * max(scale, 1.0))


@pytest.mark.parametrize("method", METHODS)
def test_several_functionals_and_some_parameters(method: str, built: Any, models: Any) -> None:
    system = built(models.switched)
    whole = dh.adjoint_gradient(system, (0, 9), "G", method=method, **TIGHT)
    some = dh.adjoint_gradient(system, (0, 9), "G", wrt=["c", "a"], method=method, **TIGHT)
    np.testing.assert_allclose(some.gradient, whole.gradient[[2, 0]], rtol=1e-6)
    one, other = both(lambda: dh.adjoint_gradient(system, (0, 9), "V", method=method, **TIGHT))
    np.testing.assert_allclose(one.gradient, other.gradient, rtol=1e-6)


def test_events_are_certified_where_they_are_found(built: Any, models: Any) -> None:
    system = built(models.em)
    asa = dh.adjoint_gradient(system, (0, 3), "G", **TIGHT)
    assert asa.trajectory.uncertified == ()
    assert all(event.certified for event in asa.trajectory.events)
    assert not any(event.certified for event in dh.simulate(system, (0, 3), **TIGHT).events)


def failure(call: Callable[[], Any]) -> dh.DaeHybridError:
    """The error of a call."""
    with pytest.raises(dh.DaeHybridError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("limit", [{"max_events": 4}, {"max_steps": 15}])
def test_limits_count_what_is_carried_out_in_compiled_code(limit: Any, built: Any, models: Any) -> None:
    system = built(models.ball)
    one, other = both(lambda: failure(lambda: dh.simulate(system, (0, 3), **limit)))
    assert type(one) is type(other)
    assert one.trajectory is not None
    assert not one.trajectory.complete
    assert len(one.trajectory.events) == len(other.trajectory.events) > 0
    if "max_events" in limit:
        assert "max_events=4" in str(one)
        assert len(one.trajectory.events) == 4


def test_what_is_not_plain_is_left_to_the_automaton() -> None:
    """Two that are due together, one that is past its threshold on entry, one that fires at once."""
    m = dh.HybridModel("q")
    y, n = m.differential("y"), m.memory("n", initial=0.0)
    run, rest, last = (m.mode(name, ode={y: 1.0}) for name in ("run", "rest", "last"))
    for name in ("one", "two"):
        m.transition(run, run, guard=y - 0.5, direction="rising", memory={n: n + 1}, name=name)
    m.transition(run, rest, guard=y - 0.7, direction="rising", reset={y: 2 * y})
    m.transition(rest, run, guard=y - 1.0, direction="rising", name="passed")
    m.transition(rest, last, guard=y - 1.6, direction="rising", memory={n: n + 10})
    m.transition(last, run, guard=1.6 - y, direction="falling", reset={y: 0.9}, name="at once")
    m.initial(run, {y: 0.0})
    m.functional("G", integrand=y, terminal=n)
    one, other = both(lambda: dh.simulate(m.build(), (0, 3), **TIGHT))
    assert [(e.transition, e.order) for e in one.events] == [(e.transition, e.order) for e in other.events]
    assert [e.time for e in one.events] == pytest.approx([e.time for e in other.events])
    assert one.functionals == pytest.approx(dict(other.functionals))
    assert one.notes == other.notes != ()


@pytest.mark.parametrize("e", [0.5, 0.8])
def test_accumulating_events_are_seen(e: float, built: Any, models: Any) -> None:
    system, end = built(models.ball), np.sqrt(2 / 9.81) * (1 + 2 * e / (1 - e))
    for error in both(lambda: failure(lambda: dh.simulate(system, (0, 12), parameters={"e": e}))):
        assert isinstance(error, dh.ZenoError)
        assert error.transition == "bounce"
        assert error.time == pytest.approx(end, abs=1e-3)
        assert "accumulate" in str(error)


def test_a_shallow_crossing_is_refused() -> None:
    """(t - 1)^2 goes below a, by less than the accuracy of the run."""
    m = dh.HybridModel("q")
    a = m.parameter("a", 5e-11)
    y, n = m.differential("y"), m.memory("n", initial=0.0)
    run = m.mode("run", ode={y: 2 * (m.time - 1)})
    m.transition(run, run, guard=y - a, direction="falling", memory={n: n + 1})
    m.initial(run, {y: 1.0})
    m.functional("G", integrand=y * n)
    system = m.build()
    for analysis in (dh.forward_sensitivity, dh.adjoint_gradient):
        for error in both(lambda analysis=analysis: failure(lambda: analysis(system, (0, 2), **TIGHT))):
            assert isinstance(error, dh.GrazingError)
            assert "whether it crosses is chance" in str(error)


@pytest.mark.first(4)
@pytest.mark.parametrize("seed", range(12))
def test_random_systems(seed: int) -> None:
    """Whatever the compiled way does, the automaton does."""
    statement = random_system(1000 + seed)
    system = statement.model().build()
    options = {"parameters": statement.parameters, "rtol": 1e-8, "atol": 1e-10}

    def run() -> dh.Trajectory | dh.DaeHybridError:
        try:
            return dh.simulate(system, statement.span, **options)
        except dh.DaeHybridError as error:
            return error

    one, other = both(run)
    assert type(one) is type(other), (one, other)
    runs = [found.trajectory if isinstance(found, dh.DaeHybridError) else found for found in (one, other)]
    names = [[event.transition for event in found.events] for found in runs]
    assert names[0][:40] == names[1][:40]
    times = [[event.time for event in found.events][:40] for found in runs]
    np.testing.assert_allclose(*times, rtol=1e-4, atol=1e-5)
    if isinstance(one, dh.Trajectory) and isinstance(other, dh.Trajectory):
        for name, value in one.functionals.items():
            np.testing.assert_allclose(value, other.functionals[name], rtol=1e-4, atol=1e-5)


def test_a_path_that_is_too_long_is_integrated_again(built: Any, models: Any, monkeypatch: Any) -> None:
    kept = dh.adjoint_gradient(built(models.em), (0, 3), "G", method="bdf", **TIGHT)
    system = models.em().build()
    monkeypatch.setattr(compiled, "LARGEST_PATH", 10_000)
    again = dh.adjoint_gradient(system, (0, 3), "G", method="bdf", **TIGHT)
    assert kept.statistics["nfev"] == 0 < again.statistics["nfev"]
    assert all(segment.path is None for segment in kept.trajectory.segments)  # freed after the gradient
    np.testing.assert_allclose(again.gradient, kept.gradient, rtol=1e-5)
    explicit = dh.adjoint_gradient(system, (0, 3), "G", method="erk", **TIGHT)
    np.testing.assert_allclose(explicit.gradient, kept.gradient, rtol=1e-5)


def test_a_relation_that_slides_after_an_event_is_refused() -> None:
    """The sides of guards after compiled events are those of the segment that they have led to.

    What an event would have led to that was then left to Python is not to be taken for them: a relation whose sides
    point at each other held none, silently.
    """
    m = dh.HybridModel("slides")
    k, p, t = m.parameter("k", 0.36), m.parameter("p", 0.37), m.time
    x, y = m.differential("x"), m.differential("y")
    low = y < k
    drive = 0.8 * np.sin(p * t + 2.9) - 0.4 * x + ca.if_else(low, p * np.cos(1.5 * y), 1.1 * np.sin(p * t + 1.9))
    run = m.mode("run", ode={x: drive, y: 0.8 * np.sin(0.9 * t + x) - y + ca.if_else(low, 0.4, -0.2)})
    m.initial(run, {x: 0.15, y: 0.0})
    m.functional("G", terminal=x)
    slides = [dh.adjoint_gradient(m.build(), (0, 3), "G", native_events=native, **TIGHT) for native in (True, False)]
    assert '"y < k" slides' in [event.transition for event in slides[0].trajectory.events]
    assert slides[0].gradient == pytest.approx(slides[1].gradient, rel=1e-6)
    system = m.build(relations="cross")
    for native in (True, False):
        with pytest.raises(dh.ChatteringError, match="point at each other") as error:
            dh.simulate(system, (0, 3), native_events=native, **TIGHT)
        assert 2 < error.value.time < 2.5
        assert error.value.trajectory.events[0].time < 1


@pytest.mark.parametrize("gap", [0.0, 1e-12])
def test_a_guard_that_passes_zero_against_its_direction_does_not_matter(gap: float) -> None:
    """The zeros of cos(w t), counted in both directions: t_i = (i + 1/2) pi / w, w = sqrt(k)."""
    m = dh.HybridModel("section")
    k, x, v, total = m.parameter("k", 2.0), m.differential("x"), m.differential("v"), m.memory("total", initial=0.0)
    m.mode("swings", ode={x: v, v: -k * x})
    m.initial("swings", {x: 1.0, v: 0.0})
    m.transition("swings", "swings", name="down", guard=x, direction="falling", memory={total: total + m.time})
    m.transition("swings", "swings", name="up", guard=x + gap, direction="rising", memory={total: total + m.time})
    m.functional("G", terminal=total)
    system = m.build()
    forward, adjoint = (
        dh.forward_sensitivity(system, (0, 20), rtol=1e-10, atol=1e-12),
        dh.adjoint_gradient(system, (0, 20), "G", rtol=1e-10, atol=1e-12),
    )
    run = forward.trajectory
    exact = (np.arange(9) + 0.5) * np.pi / np.sqrt(2.0)
    assert [event.transition for event in run.events] == ["down", "up"] * 4 + ["down"]
    assert native_events(run) == 9
    assert run.parts.is_certified
    np.testing.assert_allclose([event.time for event in run.events], exact, rtol=1e-8)
    for found in (forward.gradient["G"], adjoint.gradient):
        np.testing.assert_allclose(found, -exact.sum() / 4.0, rtol=1e-7)


# -- conditions that another transition makes true ----------------------------------------------------------------


def counting(kind: str) -> dh.HybridSystem:
    """x' = 1 - k x; c counts times, and at c = 3 x increases by 1 at the same instant."""
    m = dh.HybridModel(f"counting {kind}")
    k, x, c = m.parameter("k", 0.8), m.differential("x"), m.memory("c", initial=0.0)
    run, rest = m.mode("run", ode={x: 1 - k * x}), m.mode("rest", ode={x: -k * x})
    count = m.transition(run, run, every=m.clock(0.5, offset=0.5), memory={c: c + 1}, name="count")
    guard = c > 2.5 if kind == "condition" else x - 10 * (c - 2.5) if kind == "falling" else c - 2.5
    given = {} if kind == "condition" else {"direction": "falling" if kind == "falling" else "rising"}
    to, when = rest if kind == "leaves" else run, {"when": x > 0} if kind == "when" else {}
    full = m.transition(run, to, guard=guard, reset={x: x + 1}, memory={c: 0.0}, name="full", **given, **when)
    if kind == "chain":
        m.transition(run, run, guard=x - 1.7, direction="rising", on_entry="fire", memory={c: c + 1}, name="high")
    elif kind == "two":
        m.transition(run, run, guard=c - 1.5, direction="rising", reset={x: x - 0.1}, name="more")
        m.transition(run, run, guard=c - 2.2, direction="rising", reset={x: 2 * x}, name="most")
    elif kind == "second clock":
        m.transition(run, run, every=m.clock(1.5, offset=1.5, name="slow"), reset={x: x - 0.2}, name="slow")
    m.initial(run, {x: 0.0})
    costs = {count: x * c} | ({full: x} if kind == "costs" else {})
    m.functional("G", terminal=x, integrand=x**2, at_events=costs, at_times={1.5: x} if kind == "measured" else None)
    return m.build()


NATIVE = ["guard", "condition", "measured"]
LEFT = ["falling", "leaves", "when", "chain", "two", "second clock", "costs"]


@pytest.mark.parametrize("kind", NATIVE + LEFT)
@pytest.mark.parametrize("end", [3.2, 1.5])
@pytest.mark.parametrize("method", METHODS)
def test_conditions_made_true_fire_at_once(kind: str, end: float, method: str) -> None:
    """By compiled code, or by the automaton if anything else is due, as if all had been left to it."""
    system = counting(kind)
    for t_eval in (None, np.linspace(0.0, end, 9)):
        one, other = (
            dh.simulate(system, (0.0, end), method=method, t_eval=t_eval, native_events=native, **TIGHT)
            for native in (True, False)
        )
        assert any(event.follows for event in other.events) or kind == "falling"
        for a, b in zip(one.events, other.events, strict=True):
            for field in ("time", "index", "transition", "source", "target", "order", "direction", "count", "follows",
                          "guard", "rate"):  # fmt: skip
                assert getattr(a, field) == getattr(b, field), field
            for field in ("rate_scale", "x_minus", "x_plus", "xdot_minus", "xdot_plus", "memory_minus", "memory_plus"):
                np.testing.assert_allclose(getattr(a, field), getattr(b, field), rtol=1e-8, err_msg=field)
            assert not a.follows or (a.earlier is not None and a.earlier.time == a.time)
        np.testing.assert_allclose(one.functionals["G"], other.functionals["G"], rtol=1e-8)
        np.testing.assert_allclose(one["x"], other["x"], rtol=1e-7, atol=1e-12)
        assert one.notes == other.notes
        if kind in NATIVE:
            assert one.statistics["native_events"] == len(one.events)


def test_a_count_in_a_batch_has_a_closed_form() -> None:
    rows = np.linspace(0.7, 0.9, 4)
    found = dh.batch(counting("guard"), (0.0, 2.2), parameters=rows[:, None], t_eval=[2.2], native_events=True, **TIGHT)
    assert found.native.all(), found.reasons
    assert (found.n_events == 5).all()
    exact = (1 - np.exp(-2.2 * rows)) / rows + np.exp(-0.7 * rows)
    np.testing.assert_allclose(found["x"][:, -1], exact, rtol=1e-8)


@pytest.mark.parametrize("analysis", ["forward", "adjoint"])
def test_derivatives_across_conditions_made_true_remain_with_the_automaton(analysis: str) -> None:
    system, span, h = counting("guard"), (0.0, 3.2), 1e-5
    if analysis == "forward":
        gradient = dh.forward_sensitivity(system, span, **TIGHT).gradient["G"].ravel()
    else:
        gradient = dh.adjoint_gradient(system, span, "G", **TIGHT).gradient.ravel()
    values = [dh.simulate(system, span, parameters={"k": 0.8 + d}, **TIGHT).functionals["G"] for d in (-h, h)]
    np.testing.assert_allclose(gradient, [(values[1] - values[0]) / (2 * h)], rtol=1e-6)
