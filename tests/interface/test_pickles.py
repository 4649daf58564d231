"""Pickled models, systems and results are bitwise equal, also across processes."""

from __future__ import annotations

import copy
import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import casadi as ca
import numpy as np
import pytest
from growing import bars, impacts, sampled
from mechanisms import pendulum

import dae_hybrid as dh
from dae_hybrid.compile import origin
from dae_hybrid.mechanics import Index1, Mechanism, Reduced

TIGHT: dict[str, Any] = {"rtol": 1e-8, "atol": 1e-11}


def again(thing: Any) -> Any:
    """Unpickle as in a fresh process."""
    content = pickle.dumps(thing)
    origin._made.clear()
    return pickle.loads(content)


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays are bitwise equal."""
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


# -- models ---------------------------------------------------------------------------------------------------


def measured() -> dh.HybridModel:
    """A signal, measurements, a relation that becomes an event, a table that is called, and costs at events."""
    m = dh.HybridModel("measured")
    p, q = m.parameter("p", 0.7, unit="1/s"), m.parameter("q", [0.2, 0.4])
    x = m.differential("x", unit="m", description="level")
    push = m.signal("push", np.linspace(0, 2, 5), [0.0, 1.0, 0.5, 0.2, 0.0])
    curve = ca.interpolant("curve", "bspline", [np.linspace(-2, 3, 11).tolist()], np.linspace(-2, 3, 11).tolist())
    run = m.mode("run", ode={x: push - p * curve(x) + ca.if_else(x > 0.3, q[0], q[1])})
    m.transition(run, run, at=0.9, reset={x: 0.5 * x}, name="half")
    m.initial(run, {x: 0.1})
    m.functional("G", at_times={0.5: (x - 0.2) ** 2, 1.5: (x - 0.3) ** 2}, at_events={"half": x * p})
    m.functional("end", terminal=dh.smooth(x**2))
    return m


def wide() -> dh.HybridModel:
    """Operations on vectors, and an implicit algebraic variable."""
    m = dh.HybridModel("wide")
    k, x, z = m.parameter("k", 2.0), m.differential("x", size=400), m.algebraic("z")
    run = m.mode("run", ode={x: -k * x + ca.sin(x) * z}, algebraic=[z + 0.1 * z**3 - x[0]])
    m.initial(run, {x: np.linspace(0, 1, 400)})
    m.functional("G", terminal=ca.sumsqr(x))
    return m


MODELS: dict[str, tuple[Callable[[], dh.HybridModel], tuple[float, float]]] = {
    "sampled": (sampled, (0, 3.3)),
    "impacts": (impacts, (0, 4)),
    "measured": (measured, (0, 2)),
    "wide": (wide, (0, 1)),
}
every_model = pytest.mark.parametrize("name", MODELS)


def everything(system: dh.HybridSystem, span: tuple[float, float]) -> list[np.ndarray]:
    """All numbers of a forward analysis and of the adjoint of its first functional."""
    functional = system.functionals.names[0]
    fsa = dh.forward_sensitivity(system, span, **TIGHT)
    asa = dh.adjoint_gradient(system, span, functional, **TIGHT)
    names = fsa.trajectory.names
    return [asa.gradient, *fsa.gradient.values(), *(fsa[n] for n in names), *(fsa.trajectory[n] for n in names)]


@every_model
def test_a_model_builds_the_same_system(name: str) -> None:
    make, span = MODELS[name]
    m = make()
    twin = again(m)
    assert repr(twin) == repr(m)
    for one, other in zip(everything(m.build(), span), everything(twin.build(), span), strict=True):
        assert same(one, other)


def test_a_model_that_is_unpickled_goes_on() -> None:
    """A restored model has its own symbols: new declarations use them, and symbols of the original are refused."""
    m = sampled()
    twin: dh.HybridModel = again(m)
    u = twin.declarations["u"].symbol
    twin.functional("further", terminal=u**2)
    assert "further" not in m.functionals
    assert dh.simulate(twin.build(native=False), (0, 1)).functionals["further"] > 0
    twin.functional("foreign", terminal=m.declarations["u"].symbol)
    with pytest.raises(dh.ModelError, match="does not declare"):
        twin.build(native=False)


@pytest.mark.parametrize("mechanism", [pendulum, partial(bars, 2)], ids=["pendulum", "bars"])
@pytest.mark.parametrize("formulation", [Index1, Reduced])
def test_a_mechanism_is_pickled(mechanism: Callable[[], Mechanism], formulation: Any) -> None:
    mech = mechanism()
    systems = [one.build(formulation()) for one in (mech, again(mech))]
    systems.append(again(systems[0]))
    values = [dh.simulate(system, (0, 0.8), **TIGHT).functionals for system in systems]
    assert values[0] == values[1] == values[2]


def test_code_outside_of_the_expressions_is_refused() -> None:
    class Twice(ca.Callback):
        def __init__(self) -> None:
            ca.Callback.__init__(self)
            self.construct("twice", {"enable_fd": True})

        def eval(self, arguments: Any) -> Any:
            return [2 * arguments[0]]

    twice = Twice()
    m = dh.HybridModel("callback")
    x = m.differential("x")
    m.initial(m.mode("run", ode={x: -ca.sin(twice(x))}), {x: 1.0})
    with pytest.raises(dh.UnsupportedError, match="calls twice, which is code outside") as caught:
        pickle.dumps(m)
    assert "each worker process" in str(caught.value.remedy)
    m.note = lambda: None  # type: ignore[attr-defined]
    with pytest.raises(dh.UnsupportedError, match="HybridModel cannot be pickled"):
        pickle.dumps(m)


# -- systems --------------------------------------------------------------------------------------------------


@every_model
@pytest.mark.parametrize("options", [{}, {"native": False}, {"eliminate": False}, {"kinks": "events"}], ids=str)
def test_a_system_is_built_again_as_it_was(name: str, options: dict[str, Any]) -> None:
    make, span = MODELS[name]
    system = make().build(**options)
    twin: dh.HybridSystem = again(system)
    assert twin is not system
    assert (twin.native, twin.describe()) == (system.native, system.describe())
    assert (twin.units, twin.descriptions) == (system.units, system.descriptions)
    p = system.nominal * 1.01
    runs = [dh.simulate(one, span, parameters=p, **TIGHT) for one in (system, twin)]
    assert runs[0].functionals == runs[1].functionals
    assert all(same(runs[0][key], runs[1][key]) for key in runs[0].names)


def test_the_statement_travels_as_it_was_when_the_system_was_built() -> None:
    m = measured()
    system = m.build(native=False)
    m.functional("later", terminal=m.declarations["x"].symbol)
    m.transition("run", None, at=1.0)
    assert again(system).functionals.names == ("G", "end")
    assert len(again(system).transitions) == len(system.transitions)


def test_compiled_code_comes_from_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    from dae_hybrid.codegen import compiler

    system = sampled().build()

    def nothing(*_: Any, **__: Any) -> bytes:
        raise AssertionError("compiled again")

    monkeypatch.setattr(compiler, "_compile", nothing)
    assert again(system).native


def test_pickles_of_one_system_share_what_is_built() -> None:
    system = sampled().build(native=False)
    first, second = pickle.loads(pickle.dumps(system)), pickle.loads(pickle.dumps(system))
    assert first is second
    other = pickle.loads(pickle.dumps(sampled().build(native=False, kinks="events")))
    assert other is not first
    one, two = again((dh.simulate(system, (0, 1)), system))
    assert one.system is two


def test_a_system_that_is_compiled_later_is_pickled() -> None:
    system = sampled().build(native="later")
    twin = again(system)
    system.wait()
    twin.wait()
    values = [dh.simulate(one, (0, 2), **TIGHT).functionals for one in (system, twin, again(twin))]
    assert values[0] == values[1] == values[2]


def test_parts_of_a_system_are_refused() -> None:
    system = sampled().build(native=False)
    sol = dh.simulate(system, (0, 1))
    for thing in (system.modes[0], system.modes[0].kernels["entry"], sol.segments[0], sol.segments):
        with pytest.raises(dh.UnsupportedError, match="cannot be pickled") as caught:
            pickle.dumps(thing)
        assert "result" in str(caught.value.remedy)


# -- results --------------------------------------------------------------------------------------------------


@every_model
def test_a_trajectory_is_what_it_was(name: str) -> None:
    make, span = MODELS[name]
    sol = dh.simulate(make().build(), span, **TIGHT)
    other: dh.Trajectory = again(sol)
    assert repr(other) == repr(sol)
    assert other._repr_html_() == sol._repr_html_()
    assert (other.functionals, other.statistics, other.complete) == (sol.functionals, sol.statistics, sol.complete)
    assert str(other.diagnostics) == str(sol.diagnostics)
    assert same(other.t, sol.t)
    assert same(other.modes, sol.modes)
    assert all(same(other[key], sol[key]) for key in sol.names)
    assert all(same(v, sol.event_table.columns()[key]) for key, v in other.event_table.columns().items())
    assert [str(event) for event in other.events] == [str(event) for event in sol.events]
    assert str(other.solvability()) == str(sol.solvability())
    inside = np.linspace(*span, 23)
    for side in ("left", "right"):  # dense output integrates again
        values = sol(inside, side)
        assert all(same(v, values[key]) for key, v in other(inside, side).items())
    assert not other.parameters.flags.writeable
    assert same(again(other).t, sol.t)


@every_model
def test_sensitivities_are_what_they_were(name: str) -> None:
    make, span = MODELS[name]
    system, times = make().build(), np.linspace(*span, 7)
    functional = system.functionals.names[0]
    fsa = dh.forward_sensitivity(system, span, t_eval=times, duality=True, **TIGHT)
    asa = dh.adjoint_gradient(system, span, functional, duality=True, **TIGHT)
    for keep in ("all", "events", "final"):
        more: dict[str, Any] = {} if keep == "final" else {"t_eval": times}
        kept = fsa if keep == "all" else dh.forward_sensitivity(system, span, keep=keep, **more, **TIGHT)
        other: dh.ForwardSensitivity = again(kept)
        assert repr(other) == repr(kept)
        assert all(same(g, kept.gradient[key]) for key, g in other.gradient.items())
        assert str(other.diagnostics) == str(kept.diagnostics)
        if keep != "final":
            assert all(same(other[key], kept[key]) for key in kept.trajectory.names)
            assert same(other.event_time_sensitivity, kept.event_time_sensitivity)
            for one, two in zip(other.event_sensitivities, kept.event_sensitivities, strict=True):
                assert same(one.state_plus, two.state_plus)
        else:
            with pytest.raises(dh.NotKeptError):
                _ = other[kept.trajectory.names[0]]
    back: dh.Gradient = again(asa)
    assert same(back.gradient, asa.gradient)
    assert (back.duality is None) == (asa.duality is None)
    assert back.statistics == asa.statistics
    values = asa.adjoint(times[1:-1])
    for key, found in back.adjoint(times[1:-1]).items():  # by a further sweep, along steps that are taken again
        assert found == pytest.approx(values[key], rel=1e-6, abs=1e-9, nan_ok=True)


def test_batches_prepared_calls_and_checks_are_what_they_were() -> None:
    system = sampled().build()
    found = dh.batch(
        system, (0, 2), parameters={"gain": [0.1, 0.2, np.nan]}, x0={"u": [0.0, 0.1, 0.2]}, gradient="forward",
        t_eval=[0.5, 1.5], rtol=1e-8,
    )  # fmt: skip
    other: dh.Batch = again(found)
    assert repr(other) == repr(found)
    assert same(other.values, found.values)
    assert same(other["u"], found["u"])
    assert same(other.final["duty"], found.final["duty"])
    assert [str(error) for error in other.errors] == [str(error) for error in found.errors]
    single, here = other.single(1), found.single(1)
    assert isinstance(single, dh.ForwardSensitivity)
    assert isinstance(here, dh.ForwardSensitivity)
    assert same(single.gradient["G"], here.gradient["G"])
    moved: dh.Trajectory = again(here.trajectory)  # of a system with other initial values than the model's
    assert same(moved["u"], here.trajectory["u"])
    assert moved["u"][0] != dh.simulate(system, (0, 2), t_eval=[0.5, 1.5], rtol=1e-8)["u"][0]
    prepared = dh.prepare(system, (0, 2), derivatives="adjoint", rtol=1e-8)
    run = prepared([0.2, 1.1])
    twin = again(prepared)([0.2, 1.1])
    assert same(twin.gradient["G"], run.gradient["G"])
    assert again(run).functionals == run.functionals
    check = dh.check_gradient(system, (0, 2), "G", rtol=1e-9)
    assert str(again(check)) == str(check)


def test_what_a_failed_run_has_left_is_pickled() -> None:
    with pytest.raises(dh.StepLimitError) as caught:
        dh.simulate(sampled().build(), (0, 5), max_steps=5)
    left = caught.value.trajectory
    assert left is not None
    other = again(left)
    assert not other.complete
    assert same(other["u"], left["u"])


def test_options_that_pickle_refuses_are_named() -> None:
    sol = dh.simulate(
        wide().build(), (0, 0.1), linear_solver="krylov", method="bdf", preconditioner=lambda _: lambda right: right
    )
    with pytest.raises(dh.UnsupportedError, match="Trajectory cannot be pickled") as caught:
        pickle.dumps(sol)
    assert "function" in str(caught.value.remedy)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy])
def test_results_are_shared_by_copies(how: Any) -> None:
    system = sampled().build(native=False)
    sol, fsa = dh.simulate(system, (0, 1)), dh.forward_sensitivity(system, (0, 1))
    asa = dh.adjoint_gradient(system, (0, 1), "G")
    for thing in (system, sol, fsa, asa, sol.event_table):
        assert how(thing) is thing  # nothing of it changes
    assert same(how(dh.batch(system, (0, 1), parameters=[[0.2, 1.0]])).values, np.array([[sol.functionals["G"]]]))


# -- other processes ------------------------------------------------------------------------------------------


def run(system: dh.HybridSystem, gain: float) -> dh.Gradient:
    """What a worker does."""
    return dh.adjoint_gradient(system, (0, 2), "G", parameters={"gain": gain}, **TIGHT)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_systems_go_to_workers_and_results_come_back(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    monkeypatch.setitem(sys.modules, "test_pickles", sys.modules[__name__])
    monkeypatch.setattr(run, "__module__", "test_pickles")
    monkeypatch.setattr(sys, "path", [os.path.dirname(__file__), *sys.path])
    system, gains = sampled().build(), [0.15, 0.2, 0.25]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
        found = list(pool.map(partial(run, system), gains, timeout=200))
    for gain, there in zip(gains, found, strict=True):
        here = run(system, gain)
        assert same(there.gradient, here.gradient)
        assert same(there.trajectory["u"], here.trajectory["u"])
        assert there.trajectory(0.7)["u"] == here.trajectory(0.7)["u"]


def test_mappings_and_columns_of_a_result_travel_by_themselves() -> None:
    sol = dh.simulate(impacts().build(), (0, 1))
    for given in (sol.functionals, sol.statistics, sol.event_table.x_minus, sol.event_table.memory_plus):
        for other in (again(given), copy.deepcopy(given)):
            assert type(other) is type(given)
            assert list(other) == list(given)
            assert all(np.array_equal(other[name], given[name]) for name in given)


def test_an_error_is_pickled_with_its_partial_result() -> None:
    with pytest.raises(dh.StepLimitError) as caught:
        dh.simulate(impacts().build(), (0, 1), max_steps=3)
    error = again(caught.value)
    assert str(error) == str(caught.value)
    assert same(error.trajectory.t, caught.value.trajectory.t)
