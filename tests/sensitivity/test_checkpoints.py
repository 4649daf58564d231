"""``adjoint_memory=``: of a long run only checkpoints are kept, and its gradient is the same to the last bit."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import casadi as ca
import numpy as np
import pytest
from growing import impacts, sampled
from peak_memory import peak
from switched import thermostat

import dae_hybrid as dh
from dae_hybrid.port.record_table import RecordTable
from dae_hybrid.problems import em_hysteresis, hybrid_ode, menegotto_pinto
from dae_hybrid.simulation import checkpoints
from dae_hybrid.simulation.checkpoints import Checkpoint, DroppableTable

SMALL: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-10}


def ball() -> tuple[dh.HybridModel, float]:
    """A ball whose impacts restore its energy, with costs of all kinds."""
    m = dh.HybridModel("ball")
    g, x, v = m.parameter("g", 10.0), m.differential("x"), m.differential("v")
    run = m.mode("run", ode={x: v, v: -g})
    impact = m.transition(run, run, guard=x, direction="falling", reset={v: ca.sqrt(2 * g)}, name="impact")
    m.initial(run, {x: 1.0, v: 0.0})
    m.functional("G", integrand=x**2, terminal=x * v, at_events={impact: v**2 / g}, at_times={5.0: x, 11.0: v})
    return m, 20.0


def element() -> tuple[dh.HybridModel, float]:
    """An implicit algebraic variable that is switched: IDAS."""
    m = dh.HybridModel("element")
    k, u, i, s = m.parameter("k", 1.0), m.differential("u"), m.algebraic("i"), m.memory("s", initial=1.0)
    run = m.mode("run", ode={u: k - i}, algebraic=[i + i**3 - s * u])
    m.transition(run, run, every=1.0, memory={s: 3 - s})
    m.initial(run, {u: 1.0})
    m.functional("G", integrand=u**2)
    return m, 20.5


def driven() -> tuple[dh.HybridModel, float]:
    """An input from data, that moves."""
    m = dh.HybridModel("driven")
    k, x = m.parameter("k", 1.0), m.differential("x")
    values = m.parameter("values", np.sin(0.9 * np.arange(31.0)))
    f = m.signal("f", np.arange(31.0), values, kind="linear")
    m.initial(m.mode("run", ode={x: f - k * x}), {x: 0.0})
    m.functional("G", integrand=x**2)
    return m, 30.0


CASES: dict[str, tuple[Callable[[], tuple[dh.HybridSystem, tuple[float, float]]], tuple[str, ...]]] = {
    "thermostat": (lambda: (thermostat(relations=False).build(), (0.0, 15.0)), ("auto", "adams", "bdf")),
    "hysteresis": (lambda: (em_hysteresis.system(), em_hysteresis.t_span), ("auto", "adams", "bdf")),
    "hybrid ODE": (lambda: (hybrid_ode.system(), (0.0, 5.0)), ("auto", "adams", "bdf")),
    "reversals": (lambda: (menegotto_pinto.system(), menegotto_pinto.t_span), ("auto",)),
    "ball": (lambda: _built(*ball()), ("erk", "adams", "bdf")),
    "converter": (lambda: _built(sampled(), 20.2), ("erk", "adams", "bdf")),
    "pendulum": (lambda: _built(impacts(), 30.0), ("erk", "adams", "bdf")),
    "element": (lambda: _built(*element()), ("bdf",)),
    "driven": (lambda: _built(*driven()), ("erk", "bdf")),
}


def _built(model: dh.HybridModel, end: float) -> tuple[dh.HybridSystem, tuple[float, float]]:
    return model.build(), (0.0, end)


@pytest.fixture(autouse=True)
def short_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record tables of any length are dropped."""
    monkeypatch.setattr(checkpoints, "MIN_DROPPABLE_SIZE", 0)


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> list[RecordTable]:
    """Recomputed record tables."""
    found: list[RecordTable] = []
    once = Checkpoint.recompute

    def counted(self: Checkpoint, leg: RecordTable, end: bytes) -> RecordTable:
        found.append(leg)
        return once(self, leg, end)

    monkeypatch.setattr(Checkpoint, "recompute", counted)
    return found


@pytest.mark.uncertified  # what is compared is of one kind
@pytest.mark.parametrize("keep", ["all", "events", "final"])
@pytest.mark.parametrize(
    ("case", "method"), [(case, method) for case, (_, methods) in CASES.items() for method in methods]
)
def test_a_gradient_is_the_same_to_the_last_bit_whatever_is_kept_on_the_way(
    case: str, method: str, keep: Any, again: list[RecordTable]
) -> None:
    system, span = CASES[case][0]()
    name = next(iter(system.functionals.names))
    options: dict[str, Any] = {**SMALL, "method": method, "keep": keep}
    full = dh.adjoint_gradient(system, span, name, adjoint_memory=math.inf, **options)
    assert not again
    for size in (3000, 1):
        found = dh.adjoint_gradient(system, span, name, adjoint_memory=size, **options)
        np.testing.assert_array_equal(found.gradient, full.gradient)
        np.testing.assert_allclose(found.value, full.value, rtol=1e-14)
        assert str(found.diagnostics) == str(full.diagnostics)
        assert found.trajectory.n_events == full.trajectory.n_events
        assert found.trajectory.statistics["native_events"] == full.trajectory.statistics["native_events"]
        if keep != "final":
            np.testing.assert_array_equal(found.trajectory.event_table.t, full.trajectory.event_table.t)
            assert str(found.trajectory.events[:]) == str(full.trajectory.events[:])
        if keep == "all":
            np.testing.assert_array_equal(found.trajectory.t, full.trajectory.t)
            for key, value in full.adjoint(span[1] / 3).items():  # integrated by itself, to the tolerance
                np.testing.assert_allclose(found.adjoint(span[1] / 3)[key], value, rtol=1e-4)
    assert again


@pytest.mark.parametrize("case", ["ball", "thermostat", "hysteresis", "converter"])
def test_forward_analysis_agrees_with_an_adjoint_of_checkpoints(case: str, again: list[RecordTable]) -> None:
    system, span = CASES[case][0]()
    name = next(iter(system.functionals.names))
    found = dh.adjoint_gradient(system, span, name, adjoint_memory=1, duality=True, **SMALL)
    assert again
    assert found.duality is not None
    assert found.duality.passed
    full = dh.adjoint_gradient(system, span, name, duality=True, **SMALL)
    assert full.duality is not None
    np.testing.assert_array_equal(found.duality.values, full.duality.values)
    forward = dh.forward_sensitivity(system, span, **SMALL).gradient[name]
    np.testing.assert_allclose(found.gradient, forward, rtol=1e-5, atol=1e-7 * np.abs(forward).max())


@pytest.mark.parametrize("case", ["thermostat", "ball", "converter"])
def test_a_run_is_carried_out_at_most_once_more(case: str, again: list[RecordTable]) -> None:
    system, span = CASES[case][0]()
    dh.adjoint_gradient(system, span, keep="final", adjoint_memory=3000, **SMALL)
    assert len(set(map(id, again))) == len(again) > 3


def test_a_run_that_is_not_long_keeps_all(again: list[RecordTable]) -> None:
    system, span = CASES["thermostat"][0]()
    found = dh.adjoint_gradient(system, span, **SMALL)
    assert not again
    assert found.trajectory.parts.native_run is not None
    assert not any(isinstance(part, DroppableTable) for part in found.trajectory.parts.given)


def test_the_memory_of_an_adjoint_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    system = thermostat(relations=False).build()

    def of(end: float, size: float) -> float:
        more: dict[str, Any] = {"keep": "final", "max_events": 10**6, "adjoint_memory": size, **SMALL}
        return peak(lambda: dh.adjoint_gradient(system, (0, end), **more))

    bounded, all_kept = of(4000.0, 8e5), of(4000.0, math.inf)
    assert bounded < 0.4 * all_kept
    assert bounded - of(2000.0, 8e5) < 0.3 * (all_kept - of(2000.0, math.inf))


def test_a_part_that_is_not_the_same_again_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    system, span = CASES["ball"][0]()
    once = Checkpoint.recompute

    def off(self: Checkpoint, leg: RecordTable, end: bytes) -> RecordTable:
        self.task.x0[0] = np.nextafter(self.task.x0[0], 2.0)
        return once(self, leg, end)

    def elsewhere(self: Checkpoint, leg: RecordTable, end: bytes) -> RecordTable:
        self.task.x0[:] = 0.5
        return once(self, leg, end)

    for changed in (off, elsewhere):
        monkeypatch.setattr(Checkpoint, "recompute", changed)
        monkeypatch.setattr(
            Checkpoint, "of", classmethod(lambda cls, reopen, task, context: cls(reopen, _own(task), context))
        )
        with pytest.raises(dh.CheckpointError, match="was not the same"):
            dh.adjoint_gradient(system, span, adjoint_memory=1, **SMALL)


def _own(task: Any) -> Any:
    return replace(task, x0=task.x0.copy())


def test_errors_on_the_way_are_as_ever() -> None:
    system, span = CASES["thermostat"][0]()
    for more in ({"max_events": 11}, {"max_steps": 60}):
        said = []
        for size in (math.inf, 1):
            with pytest.raises(dh.DaeHybridError) as error:
                dh.adjoint_gradient(system, span, adjoint_memory=size, **more, **SMALL)
            run = error.value.trajectory
            assert run is not None
            said.append((type(error.value), str(error.value), run.n_events, run.final[0]))
        assert said[0] == said[1]


@pytest.mark.parametrize("keep", ["all", "final"])
def test_what_a_run_has_kept_goes_with_it(keep: Any, again: list[RecordTable]) -> None:
    system, span = CASES["ball"][0]()
    gc.collect()
    gc.disable()
    try:
        found = dh.adjoint_gradient(system, span, keep=keep, adjoint_memory=500, **SMALL)
        legs = [weakref.ref(leg) for leg in again]
        again.clear()
        del found
        assert legs
        assert not any(leg() for leg in legs)
    finally:
        gc.enable()


@pytest.mark.parametrize("size", [0, -1.0, "much", True, math.nan])
def test_an_impossible_bound_is_refused(size: Any) -> None:
    system, span = CASES["thermostat"][0]()
    with pytest.raises(dh.OptionError, match="adjoint_memory"):
        dh.adjoint_gradient(system, span, adjoint_memory=size)
