"""Outputs, dense output and events as columns: the numbers of the records, made in one pass."""

from __future__ import annotations

from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.port.records import EventRecord
from dae_hybrid.problems import ball_on_rope, em_hysteresis, hybrid_ode
from dae_hybrid.trajectory.event_table import HEADINGS
from dae_hybrid.trajectory.trajectory import Segment, Trajectory

TIGHT: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-12}


def mixed() -> dh.HybridSystem:
    """Vectors, a signal, memory, modes with different variables, measurements, and times that fall together."""
    m = dh.HybridModel("mixed")
    k = m.parameter("k", 1.0)
    x, w = m.differential("x", size=2), m.differential("w")
    z = m.algebraic("z")
    hits, last = m.memory("hits", initial=0), m.memory("last", of=z, initial=0.0)
    knots = np.linspace(0, 12, 5)
    f = m.signal("f", knots, np.cos(knots), kind="linear")
    swing = ca.vertcat(x[1], -k * x[0] + 0.01 * f)
    free = m.mode("free", ode={x: swing}, algebraic=[z - x[0] - last / 10])
    bound = m.mode("bound", ode={x: swing, w: -w})
    m.transition(free, bound, guard=x[0], direction="falling", reset={w: x[1]}, memory={hits: hits + 1})
    m.transition(bound, free, guard=x[0], direction="rising")
    m.transition(free, free, every=3.0, reset={x: 0.9 * x}, name="tick")
    m.initial(free, {x: [1.0, 0.0]})
    m.functional("G", integrand=x[0] ** 2, at_times={2.0: x[0], 2.5: x[1]})
    return m.build()


RUNS = {
    "whole": lambda **more: dh.simulate(em_hysteresis.system(), (0, 10), **TIGHT, **more),
    "no algebraic variables": lambda **more: dh.simulate(hybrid_ode.system(), (0, 5), **TIGHT, **more),
    "index 2": lambda **more: dh.simulate(ball_on_rope.system(), ball_on_rope.t_span, **TIGHT, **more),
    "mixed": lambda **more: dh.simulate(mixed(), (0, 12), **TIGHT, **more),
    "in Python": lambda **more: dh.simulate(mixed(), (0, 12), native_events=False, **TIGHT, **more),
    "scipy": lambda **more: dh.simulate(hybrid_ode.system(), (0, 5), adapter="scipy", **TIGHT, **more),
}


@pytest.fixture(params=RUNS)
def run(request: pytest.FixtureRequest) -> Any:
    return RUNS[request.param]


def by_segments(sol: Trajectory, name: str) -> np.ndarray:
    """A column, segment by segment."""
    blocks = []
    for segment in sol.segments:
        layout = segment.mode.variables
        if name in layout:
            blocks.append(segment.values[:, layout[name]])
        elif name in sol.system.memory:
            blocks.append(sol.held(name, segment.memory, segment.t))
        else:
            blocks.append(np.full((segment.t.size, sol.width(name)), np.nan))
    found = np.concatenate(blocks)
    return found[:, 0] if found.shape[1] == 1 else found


@pytest.mark.parametrize("t_eval", [None, np.linspace(0, 3.5, 37)], ids=["steps", "t_eval"])
def test_columns_are_the_rows_of_the_segments(run: Any, t_eval: np.ndarray | None) -> None:
    sol = run(t_eval=t_eval)
    np.testing.assert_array_equal(sol.t, np.concatenate([segment.t for segment in sol.segments]))
    assert sol.modes.tolist() == [segment.mode.name for segment in sol.segments for _ in segment.t]
    assert {"t", "mode"} < set(sol.columns())
    for name in sol.names:
        np.testing.assert_array_equal(sol[name], by_segments(sol, name))


def test_the_event_table_has_what_the_records_have(run: Any) -> None:
    sol = run()
    table, events, modes = sol.event_table, list(sol.events), {mode.name: mode for mode in sol.system.modes}
    assert len(table) == len(sol.events) == len(events) > 0
    assert table.t.tolist() == [event.time for event in events]
    for name in ("transition", "source", "target", "order", "direction", "guard", "rate", "count"):
        assert getattr(table, name).tolist() == [getattr(event, name) for event in events]
    for part in ("x_minus", "x_plus", "xdot_minus", "xdot_plus"):
        columns = getattr(table, part)
        for i, event in enumerate(events):
            mode = modes[event.source if part.endswith("minus") or event.target is None else event.target]
            for name, column in columns.items():
                if name in mode.variables:
                    np.testing.assert_array_equal(column[i], getattr(event, part)[mode.variables[name]].squeeze())
                else:
                    assert np.all(np.isnan(column[i]))
    for part in ("memory_minus", "memory_plus"):
        for name, column in getattr(table, part).items():
            expected = [getattr(event, part)[sol.system.memory[name]].squeeze() for event in events]
            np.testing.assert_array_equal(column, expected)


def test_dense_output_in_many_segments_is_that_of_each(run: Any) -> None:
    sol, times = run(), np.linspace(0, run().final[0], 203)
    for side in ("right", "left"):
        together, alone = sol(times, side), [sol(t, side) for t in times.tolist()]
        for name, values in together.items():
            np.testing.assert_allclose(values, [one[name] for one in alone], rtol=1e-7, atol=1e-9)


def test_dense_output_at_events_shows_the_side_asked_for(run: Any) -> None:
    sol = run()
    table = sol.event_table
    alone = np.append(np.diff(table.t) > 0, True) & (table.order == 0)
    before, after = sol(table.t, "left"), sol(table.t)
    last = np.append(table.t[1:] > table.t[:-1], True)  # of an instant
    for name, column in table.x_minus.items():
        np.testing.assert_array_equal(before[name][alone], column[alone])
    for name, column in table.x_plus.items():
        np.testing.assert_allclose(after[name][last], column[last], rtol=1e-14, atol=1e-15)


def test_dense_output_does_not_depend_on_the_order_of_times() -> None:
    sol = RUNS["whole"]()
    times = np.array([7.0, 1.0, 9.0, 1.0, 3.0, 5.0, 2.0])
    found, ordered = sol(times), sol(np.unique(times))
    np.testing.assert_array_equal(found["z"], ordered["z"][np.searchsorted(np.unique(times), times)])
    assert {values.shape for values in sol(np.zeros(0)).values()} == {(0,)}


def test_dense_output_is_what_outputs_at_these_times_are() -> None:
    times = np.linspace(0, 10, 401)
    for name, values in RUNS["whole"]()(times).items():
        np.testing.assert_array_equal(values, RUNS["whole"](t_eval=times)[name])


def test_events_and_segments_are_made_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for kind in (EventRecord, Segment):
        original = kind.__init__

        def counting(self: Any, *args: Any, kind: type = kind, original: Any = original, **named: Any) -> None:
            made.append(kind)
            original(self, *args, **named)

        monkeypatch.setattr(kind, "__init__", counting)
    sol = RUNS["whole"](t_eval=np.linspace(0, 10, 50))
    assert len(sol.events) == len(sol.event_table) == 19
    assert sol.t.size == sol["z"].size == 50
    assert "19 events" in repr(sol)
    assert EventRecord not in made
    assert made.count(Segment) <= 1  # the last one is no part of the compiled records
    assert sol.events[3] is sol.events[3]
    assert made.count(EventRecord) == 1
    assert sol.events[-1].time == sol.event_table.t[-1]
    assert [event.time for event in sol.events[2:5]] == sol.event_table.t[2:5].tolist()
    assert made.count(EventRecord) == 4  # 3, -1, 2, 4
    with pytest.raises(IndexError):
        sol.events[19]


def test_a_table_is_read_only_and_names_what_it_has() -> None:
    table = RUNS["no algebraic variables"]().event_table
    for column in (table.t, table.transition, table.rate, table.x_minus["x"]):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = column[0]
    with pytest.raises(KeyError, match="'y'; there are x"):
        table.x_minus["y"]
    assert list(table.columns()) == [*HEADINGS, "x-", "x+"]
    assert str(table).count("\n") == 1 + len(table)


def test_a_run_without_events_has_an_empty_table() -> None:
    table = dh.simulate(hybrid_ode.system(), (0, 0.1), **TIGHT).event_table
    assert len(table) == table.t.size == table.x_plus["x"].size == 0
    assert "no members" in repr(dh.simulate(hybrid_ode.system(), (0, 0.1)).events)


def test_a_data_frame_of_events_has_a_row_for_each() -> None:
    sol = RUNS["mixed"]()
    frame = sol.event_table.to_dataframe()
    assert len(frame) == len(sol.events)
    np.testing.assert_array_equal(frame["x[1]-"], sol.event_table.x_minus["x"][:, 1])
    assert len(sol.to_dataframe()) == sol.t.size


def test_sensitivities_at_outputs_are_those_of_the_segments() -> None:
    for system, end in ((mixed(), 12), (em_hysteresis.system(), 10)):
        fsa = dh.forward_sensitivity(system, (0, end), **TIGHT)
        run = fsa.trajectory
        for name in run.names:
            blocks = []
            for segment in run.segments:
                layout, signal, shape = segment.mode.variables, system.signal(name), (segment.t.size, run.width(name))
                dm = segment.memory_sensitivities
                if name in layout:
                    blocks.append(np.swapaxes(segment.sensitivities[:, :, layout[name]], 1, 2))
                elif signal is not None:
                    blocks.append(signal.sensitivities(segment.memory, dm, segment.t)[:, None])
                elif name in system.memory:
                    blocks.append(np.tile(dm[system.memory[name]], (segment.t.size, 1, 1)))
                else:
                    blocks.append(np.full((*shape, len(fsa.parameters)), np.nan))
            expected = np.concatenate(blocks)
            expected = expected[:, 0] if expected.shape[1] == 1 else expected
            np.testing.assert_allclose(fsa[name], expected, rtol=1e-13, atol=1e-15)
