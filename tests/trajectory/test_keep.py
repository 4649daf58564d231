"""``keep=``: parts of a run kept by a result, refusals, and memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from peak_memory import peak
from switched import thermostat

import dae_hybrid as dh
from dae_hybrid.problems import ball_on_rope, em_hysteresis
from dae_hybrid.trajectory.trajectory import Trajectory

TIGHT: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-12}
TIMES = np.linspace(0, 3.5, 8)


def simulate(**more: Any) -> Trajectory:
    return dh.simulate(em_hysteresis.system(), (0, 4), **TIGHT, **more)


def forward(**more: Any) -> Any:
    return dh.forward_sensitivity(em_hysteresis.system(), (0, 4), **TIGHT, **more)


def adjoint(**more: Any) -> Any:
    return dh.adjoint_gradient(em_hysteresis.system(), (0, 4), "G", **TIGHT, **more)


def run_of(result: Any) -> Trajectory:
    return result if isinstance(result, Trajectory) else result.trajectory


#: queries of a trajectory, and the values of `keep` that support them, with outputs at times and without
DEMANDS: dict[str, tuple[Callable[[Trajectory], Any], set[str], set[str]]] = {
    "outputs": (lambda run: run["z"], {"all", "events"}, {"all"}),
    "times": (lambda run: run.t, {"all", "events"}, {"all"}),
    "modes": (lambda run: run.modes, {"all", "events"}, {"all"}),
    "columns": (lambda run: run.columns(), {"all", "events"}, {"all"}),
    "dense output": (lambda run: run(1.0), {"all"}, {"all"}),
    "segments": (lambda run: run.segments, {"all"}, {"all"}),
    "events": (lambda run: run.events, {"all", "events"}, {"all", "events"}),
    "event table": (lambda run: run.event_table, {"all", "events"}, {"all", "events"}),
    "jump": (lambda run: run.jump_sensitivity(0), {"all", "events"}, {"all", "events"}),
    "conditions": (lambda run: run.solvability(), {"all", "events"}, {"all", "events"}),
    "end": (lambda run: run.final[2], {"all", "events", "final"}, {"all", "events", "final"}),
    "functionals": (lambda run: run.functionals["G"], {"all", "events", "final"}, {"all", "events", "final"}),
}


@pytest.mark.parametrize("analysis", [simulate, forward, adjoint])
@pytest.mark.parametrize("keep", ["all", "events", "final"])
@pytest.mark.parametrize("t_eval", [None, TIMES], ids=["steps", "t_eval"])
def test_what_is_kept_is_as_ever_and_the_rest_is_refused(
    analysis: Callable[..., Any], keep: str, t_eval: np.ndarray | None
) -> None:
    if keep == "final" and t_eval is not None:
        with pytest.raises(dh.OptionError, match="keeps no outputs"):
            analysis(keep=keep, t_eval=t_eval)
        return
    run, full = run_of(analysis(keep=keep, t_eval=t_eval)), run_of(analysis(t_eval=t_eval))
    for ask, with_times, without in DEMANDS.values():
        enough = without if t_eval is None else with_times
        if keep in enough:
            assert str(ask(run)) == str(ask(full))
            continue
        with pytest.raises(dh.NotKeptError, match=f"keep='{keep}'") as refused:
            ask(run)
        assert refused.value.remedy is not None
        assert all(f"'{better}'" in refused.value.remedy for better in enough & {"all", "events"} if better == "all")
    assert (run.n_events, run.kept, run.t_span) == (full.n_events, keep, full.t_span)
    assert repr(run) == repr(full)
    assert run.statistics["steps"] == full.statistics["steps"]


@pytest.mark.uncertified  # what is compared is of one kind
def test_the_diagnostics_of_an_analysis_do_not_depend_on_what_is_kept() -> None:
    for analysis in (forward, adjoint):
        assert str(analysis(keep="final").diagnostics) == str(analysis(keep="events").diagnostics)
        assert str(analysis(keep="final").diagnostics) == str(analysis().diagnostics)
    assert str(simulate(keep="events").diagnostics) == str(simulate().diagnostics)
    with pytest.raises(dh.NotKeptError, match="diagnostics"):
        _ = simulate(keep="final").diagnostics


def test_derivatives_are_kept_with_what_they_are_of() -> None:
    full = forward(t_eval=TIMES)
    events, final = forward(t_eval=TIMES, keep="events"), forward(keep="final")
    np.testing.assert_array_equal(events["z"], full["z"])
    np.testing.assert_array_equal(events.event_time_sensitivity, full.event_time_sensitivity)
    np.testing.assert_array_equal(final.gradient["G"], forward().gradient["G"])
    for ask in (lambda fsa: fsa.event_time_sensitivity, lambda fsa: fsa.event_sensitivities, lambda fsa: fsa["z"]):
        with pytest.raises(dh.NotKeptError):
            ask(final)
    for keep in ("events", "final"):
        with pytest.raises(dh.NotKeptError, match="keep='all'"):
            adjoint(keep=keep).adjoint(1.0)
        np.testing.assert_array_equal(adjoint(keep=keep).gradient, adjoint().gradient)


@pytest.mark.parametrize("more", [{}, {"native_events": False}, {"method": "bdf"}, {"adapter": "scipy"}])
def test_a_long_run_ends_the_same_whatever_is_kept(more: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "dae_hybrid.simulation.automaton.NATIVE_EVENTS_PER_CALL", 7
    )  # so often the compiled loop is left
    monkeypatch.setattr("dae_hybrid.simulation.recording.LATEST_TRANSITIONS", 3)
    system = thermostat(relations=False).build()
    full = dh.simulate(system, (0, 30), **more)
    assert full.n_events == len(full.events) > 14
    for keep in ("events", "final"):
        run = dh.simulate(system, (0, 30), keep=keep, **more)
        assert run.functionals == full.functionals
        np.testing.assert_array_equal(run.final[2], full.final[2])
        assert run.n_events == full.n_events
        assert run.parts.n_segments == full.parts.n_segments
        assert repr(run) == repr(full)


def test_a_run_with_impacts_and_knots_keeps_its_end() -> None:
    full = dh.simulate(ball_on_rope.system(), ball_on_rope.t_span, **TIGHT)
    run = dh.simulate(ball_on_rope.system(), ball_on_rope.t_span, keep="final", **TIGHT)
    assert (run.final[0], run.n_events) == (full.final[0], full.n_events)
    assert run.ended_by_event == full.ended_by_event


def test_an_error_carries_what_was_to_be_kept() -> None:
    system = thermostat(relations=False).build()
    for keep in ("events", "final"):
        with pytest.raises(dh.EventError, match="max_events") as found:
            dh.simulate(system, (0, 60), keep=keep, max_events=11)
        assert found.value.trajectory is not None
        assert found.value.trajectory.kept == keep
        assert found.value.trajectory.n_events == 11


def test_the_memory_of_a_long_run_is_what_is_kept() -> None:
    system = thermostat(relations=False).build()

    def of(keep: str, end: float) -> float:
        return peak(lambda: dh.simulate(system, (0, end), keep=keep, max_events=10**6))

    final, events = ([of(keep, end) for end in (3000.0, 12000.0)] for keep in ("final", "events"))
    assert final[1] < 1.5 * final[0]
    assert events[1] > 2.5 * events[0]  # else the lines around say nothing
    assert final[1] < 0.3 * events[1]


def test_steps_take_memory_only_where_they_are_kept() -> None:
    m = dh.HybridModel("pendulum")
    x, v = m.differential("x"), m.differential("v")
    m.initial(m.mode("run", ode={x: v, v: -np.sin(x)}), {x: 1.0, v: 0.0})
    m.functional("G", integrand=x**2)
    system = m.build()
    all_steps, none, end = (
        peak(lambda k=k: dh.simulate(system, (0, 20000), keep=k)) for k in ("all", "events", "final")
    )
    assert max(none, end) < 0.2 * all_steps


@pytest.mark.parametrize("keep", ["everything", None, True])
def test_an_unknown_value_is_refused(keep: Any) -> None:
    for analysis in (simulate, forward, adjoint):
        with pytest.raises(dh.OptionError, match="keep must be one of 'all', 'events', 'final'"):
            analysis(keep=keep)
