"""The native adapter: failures keep the partial result, fallbacks agree, nothing leaks."""

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.adapters.sundials import interpreted, library
from dae_hybrid.interface.registry import find_integrator

TIGHT = {"rtol": 1e-9, "atol": 1e-12}


# -- failures during a run -------------------------------------------------------------------------------


def breaks_down(*, native: bool, algebraic: bool = False, event: bool = True) -> dh.HybridSystem:
    """y' = -1/sqrt(y) from 1: y = 0 and NaN past it at t = 2/3; an event on the way."""
    m = dh.HybridModel("breakdown")
    a = m.parameter("a", 1.0)
    y = m.differential("y")
    if algebraic:
        z = m.algebraic("z", guess=1.0)
        run = m.mode("run", ode={y: -a / z}, algebraic=[z - ca.sqrt(y)])
    else:
        run = m.mode("run", ode={y: -a / ca.sqrt(y)})
    if event:
        m.transition(run, run, at=0.25)
    m.initial(run, {y: 1.0})
    m.functional("G", integrand=y)
    return m.build(native=native)


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
@pytest.mark.parametrize("algebraic", [False, True], ids=["ODE", "DAE"])
@pytest.mark.parametrize("event", [False, True], ids=["no event", "event"])
def test_what_was_computed_stays_on_the_error(native: bool, algebraic: bool, event: bool) -> None:
    system = breaks_down(native=native, algebraic=algebraic, event=event)
    for analysis in (dh.simulate, dh.forward_sensitivity, dh.adjoint_gradient):
        with pytest.raises(dh.IntegrationError) as caught:
            analysis(system, (0, 1), **TIGHT)
        error = caught.value
        assert error.mode == "run"
        assert error.time == pytest.approx(2 / 3, abs=1e-3)
        assert "NaN" in str(error) or "step" in str(error)
        assert "Check" in str(error) or "Look" in str(error)
        trajectory = error.trajectory
        assert trajectory is not None
        assert not trajectory.complete
        assert "incomplete" in repr(trajectory)
        assert dict(trajectory.functionals) == {}
        assert len(trajectory.events) == event
        assert trajectory.t[-1] == pytest.approx(2 / 3, abs=1e-2)
        exact = np.maximum(1 - 1.5 * trajectory.t[1:-1], 0) ** (2 / 3)
        np.testing.assert_allclose(trajectory["y"][1:-1], exact, atol=1e-4)


def test_a_partial_trajectory_is_as_useful_as_a_whole_one() -> None:
    system = breaks_down(native=False)
    with pytest.raises(dh.IntegrationError) as caught:
        dh.simulate(system, (0, 1), **TIGHT)
    trajectory = caught.value.trajectory
    assert trajectory.final[0] == trajectory.t[-1] > 0.6
    assert trajectory(0.5)["y"] == pytest.approx(0.25 ** (2 / 3), rel=1e-6)
    assert len(trajectory.to_dataframe()) == trajectory.t.size
    with pytest.raises(dh.IntegrationError) as caught:
        dh.simulate(system, (0, 1), t_eval=[0.1, 0.2, 0.5, 0.9], **TIGHT)
    np.testing.assert_array_equal(caught.value.trajectory.t, [0.1, 0.2, 0.5])


def test_not_finite_from_the_start() -> None:
    for equation in (lambda y: ca.log(y), lambda y: 1 / (y + 1)):
        m = dh.HybridModel("q")
        y = m.differential("y")
        m.initial(m.mode("run", ode={y: equation(y)}), {y: -1.0})
        with pytest.raises(dh.NonFiniteError) as caught:
            dh.simulate(m.build(native=False), (0, 1))
        assert caught.value.mode == "run"
        assert caught.value.time == 0.0
        assert caught.value.trajectory.t.size <= 1


def test_a_functional_that_is_not_finite() -> None:
    for part in ("integrand", "terminal"):
        m = dh.HybridModel("q")
        y = m.differential("y")
        m.initial(m.mode("run", ode={y: 1.0}), {y: -0.5})
        m.functional("G", **{part: ca.log(0.2 - y)})
        with pytest.raises(dh.NonFiniteError) as caught:
            dh.simulate(m.build(native=False), (0, 1))
        assert "G" in caught.value.variables or caught.value.time < 0.8
        assert caught.value.trajectory is not None


def test_a_solution_that_blows_up() -> None:
    m = dh.HybridModel("q")
    y = m.differential("y")
    m.initial(m.mode("run", ode={y: y**2}), {y: 1.0})
    with pytest.raises(dh.IntegrationError) as caught:
        dh.simulate(m.build(native=False), (0, 2))
    assert caught.value.time == pytest.approx(1.0, abs=1e-3)
    assert caught.value.trajectory["y"][-1] > 1e3


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
def test_step_limit(native: bool, built: Any, models: Any) -> None:
    system = built(models.em, native=native)
    for analysis in (dh.simulate, dh.forward_sensitivity, dh.adjoint_gradient):
        with pytest.raises(dh.StepLimitError, match="max_steps=50") as caught:
            analysis(system, (0, 10), max_steps=50)
        assert caught.value.remedy is not None
        assert caught.value.trajectory.t.size >= 50
        assert 0 < caught.value.time < 10


def circuit_at_rest(k: float, *, implicit: bool) -> dh.HybridModel:
    """i' = 10 sin t - v with k i = v + v^3 / 1000, from t = 0 or from an event at t = pi; without i it is an ODE."""
    m = dh.HybridModel("at rest")
    v = m.algebraic("v") if implicit else m.differential("v")
    rate = 10 * ca.sin(m.time) - v
    if implicit:
        i = m.differential("i")
        wait = m.mode("wait", ode={i: 0.0}, algebraic=[v + 1e-3 * v**3 - k * i])
        run = m.mode("run", ode={i: rate}, algebraic=[v + 1e-3 * v**3 - k * i])
    else:
        wait, run = m.mode("wait", ode={v: 0.0}), m.mode("run", ode={v: k * rate / (1 + 3e-3 * v**2)})
    m.transition(wait, run, at=m.parameter("when", np.pi))
    m.initial(wait, {i if implicit else v: 0.0})
    m.functional("G", terminal=v)
    return m


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
@pytest.mark.parametrize(("k", "end"), [(100.0, 300.0), (1e6, 10.0)])
def test_a_mode_on_ida_starts_from_rest(k: float, end: float, native: bool) -> None:
    """All rates are zero there: IDA begins with a thousandth of the way, which fails more often than ten times."""
    exact = dh.simulate(circuit_at_rest(k, implicit=False).build(), (np.pi, end), rtol=1e-9, atol=1e-12)
    system = circuit_at_rest(k, implicit=True).build(native=native)
    for begin in (0.0, np.pi):
        run = dh.simulate(system, (begin, end), rtol=1e-7, atol=1e-10)
        assert run.functionals["G"] == pytest.approx(exact.functionals["G"], rel=1e-4)


@pytest.mark.first(1)
@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
def test_an_adjoint_that_restarts_on_a_fine_clock_keeps_to_the_step_limit(native: bool) -> None:
    m = dh.HybridModel("measured")
    p, x = m.parameter("p", 1.0), m.differential("x")
    m.initial(m.mode("run", ode={x: 1 - p * x}), {x: 0.0})
    m.functional("G", at_times=[(1 - 1e-5 * np.arange(20, 0, -1), (x - 0.5) ** 2)])
    system = m.build(native=native)
    steps = dh.adjoint_gradient(system, (0, 1), "G", method="bdf").statistics["steps"]
    for limit in range(steps - 30, steps):
        with pytest.raises(dh.StepLimitError):
            dh.adjoint_gradient(system, (0, 1), "G", method="bdf", max_steps=limit)


def test_the_step_limit_is_of_the_whole_run(built: Any, models: Any) -> None:
    system = built(models.ball)
    steps = dh.simulate(system, (0, 3)).statistics["steps"]
    assert dh.simulate(system, (0, 3), max_steps=steps).complete
    with pytest.raises(dh.StepLimitError):
        dh.simulate(system, (0, 3), max_steps=steps - 1)


def test_tolerances_beyond_double_precision(built: Any, models: Any) -> None:
    with pytest.raises(dh.StepSizeError) as caught:
        dh.simulate(built(models.decay), (0, 3), rtol=1e-30, atol=1e-30)
    assert "tolerance" in str(caught.value)


def test_the_next_solve_is_clean(built: Any, models: Any) -> None:
    """A failed run leaves nothing behind: not in the pooled memories, not in the statistics."""
    system = breaks_down(native=True)
    good = dh.simulate(system, (0, 0.5), **TIGHT)
    for _ in range(3):
        with pytest.raises(dh.IntegrationError):
            dh.simulate(system, (0, 1), **TIGHT)
        again = dh.simulate(system, (0, 0.5), **TIGHT)
        np.testing.assert_array_equal(again["y"], good["y"])
        assert again.statistics == good.statistics


# -- exceptions inside callbacks --------------------------------------------------------------------------


class UserError(Exception):
    pass


@pytest.mark.parametrize(
    "error", [UserError("mine"), KeyboardInterrupt(), ZeroDivisionError("mine"), FloatingPointError("mine")], ids=repr
)
@pytest.mark.parametrize("name", ["ball", "circuit"], ids=["ODE", "DAE"])
@pytest.mark.parametrize("function", ["flow", "jacobian", "guards", "linearised", "complete", "rates"])
def test_exceptions_in_callbacks_reach_the_caller_unchanged(
    function: str, name: str, error: BaseException, monkeypatch: Any, built: Any, models: Any
) -> None:
    system = built(getattr(models, name), native=False)
    functional = {"ball": "height", "circuit": "work"}[name]
    analyses = [lambda: dh.simulate(system, (0, 1), method="bdf")]
    if function == "linearised":
        analyses = [
            lambda: dh.forward_sensitivity(system, (0, 1)), lambda: dh.adjoint_gradient(system, (0, 1), functional)
        ]  # fmt: skip
    evaluate = interpreted.EquationCallbacks.evaluate
    for analysis in analyses:
        before = analysis()
        calls = 0

        def failing(self: Any, what: str, *arguments: Any) -> Any:
            nonlocal calls
            calls += what == function
            if what == function and calls == 3:
                raise error
            if what == function and calls > 3:
                raise AssertionError("called again after the exception")
            return evaluate(self, what, *arguments)

        monkeypatch.setattr(interpreted.EquationCallbacks, "evaluate", failing)
        reached = None
        try:
            analysis()
        except BaseException as caught:
            reached = caught
        monkeypatch.setattr(interpreted.EquationCallbacks, "evaluate", evaluate)
        assert (reached is error) if calls >= 3 else (reached is None)
        after = analysis()
        one, other = (r.functionals if hasattr(r, "functionals") else {functional: r.gradient} for r in (before, after))
        for key in one:
            np.testing.assert_array_equal(one[key], other[key])


def test_an_exception_in_a_callback_is_not_swallowed(monkeypatch: Any, built: Any, models: Any) -> None:
    system = built(models.ball, native=False)
    mine = UserError("mine")

    def failing(*_: Any) -> Any:
        raise mine

    monkeypatch.setattr(interpreted.EquationCallbacks, "evaluate", failing)
    with pytest.raises(UserError) as caught:
        dh.simulate(system, (0, 1))
    assert caught.value is mine


# -- interpreted and compiled -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ball", "circuit", "counter", "em"])
def test_interpreted_and_compiled_agree(name: str, built: Any, models: Any) -> None:
    functional = {"ball": "height", "circuit": "both", "counter": "area", "em": "G"}[name]
    span = (0, 1.2)
    one, other = (built(getattr(models, name), native=native) for native in (True, False))
    assert one.native
    assert not other.native
    assert "compiled" in repr(one)
    assert "interpreted" in repr(other)
    explicit = not any(mode.equations.implicit for mode in one.modes)
    same: dict[str, Any] = {**TIGHT, "method": "adams" if explicit else "bdf"}  # explicit steps are for compiled ones
    a, b = (dh.simulate(s, span, t_eval=np.linspace(0, 1.2, 7), **same) for s in (one, other))
    assert [e.transition for e in a.events] == [e.transition for e in b.events]
    for variable in a.names:
        np.testing.assert_allclose(a[variable], b[variable], rtol=1e-10, atol=1e-13, err_msg=variable)
    np.testing.assert_allclose(a.functionals[functional], b.functionals[functional], rtol=1e-11)
    times = [0.1, 0.7]
    for variable in a.names:
        np.testing.assert_allclose(a(times)[variable], b(times)[variable], rtol=1e-9, atol=1e-12)
    methods: list[dict[str, Any]] = [{}, {"sensitivity_method": "simultaneous"}]
    for more in methods:
        a, b = (dh.forward_sensitivity(s, span, **same, **more) for s in (one, other))
        np.testing.assert_allclose(a.gradient[functional], b.gradient[functional], rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(a.event_time_sensitivity, b.event_time_sensitivity, rtol=1e-7, atol=1e-9)
    a, b = (dh.adjoint_gradient(s, span, functional, **same) for s in (one, other))
    np.testing.assert_allclose(a.gradient, b.gradient, rtol=1e-7, atol=1e-9)


def test_interpreted_adams(built: Any, models: Any) -> None:
    one, other = (built(models.ball, native=native) for native in (True, False))
    options = {"method": "adams", **TIGHT}
    a, b = (dh.simulate(s, (0, 2), **options).functionals["height"] for s in (one, other))
    assert a == pytest.approx(b, rel=1e-11)
    a, b = (dh.adjoint_gradient(s, (0, 2), **options).gradient for s in (one, other))
    np.testing.assert_allclose(a, b, rtol=1e-8)


# -- SUNDIALS itself --------------------------------------------------------------------------------------


@pytest.fixture
def unloaded() -> Iterator[None]:
    """The library and the adapter before their first use."""
    library.load.cache_clear()
    find_integrator.cache_clear()
    yield
    library.load.cache_clear()
    find_integrator.cache_clear()


def test_sundials4py_missing(unloaded: None, monkeypatch: Any, built: Any, models: Any) -> None:
    system = built(models.ball)
    monkeypatch.setattr(library, "find_spec", lambda name: None)
    with pytest.raises(dh.AdapterError, match="not installed") as caught:
        dh.simulate(system, (0, 1))
    assert "sundials4py >= 7" in str(caught.value)
    assert isinstance(caught.value, ImportError)
    monkeypatch.undo()
    assert dh.simulate(system, (0, 1)).complete


@pytest.mark.parametrize("found", ["6.7.0", "8.0.0", "70.1"])
def test_sundials4py_of_another_major_version(
    found: str, unloaded: None, monkeypatch: Any, built: Any, models: Any
) -> None:
    system = built(models.ball)
    monkeypatch.setattr(library, "version", lambda name: found)
    with pytest.raises(dh.AdapterError, match=found) as caught:
        dh.simulate(system, (0, 1))
    assert "7" in str(caught.value.remedy)


def test_sundials4py_without_its_metadata(unloaded: None, monkeypatch: Any, built: Any, models: Any) -> None:
    system = built(models.ball)

    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(library, "version", missing)
    with pytest.raises(dh.AdapterError, match="sundials4py"):
        dh.simulate(system, (0, 1))


def test_a_library_without_the_functions(unloaded: None, monkeypatch: Any, built: Any, models: Any) -> None:
    system = built(models.ball)
    other = importlib.util.find_spec("_ctypes").origin
    if other in (None, "built-in"):
        pytest.skip("no other shared library at hand")
    monkeypatch.setattr(library, "find_spec", lambda name: SimpleNamespace(origin=other))
    with pytest.raises(dh.AdapterError, match="C functions"):
        dh.simulate(system, (0, 1))


def test_importing_the_library_loads_no_solver() -> None:
    code = "import sys, dae_hybrid; sys.exit(any('sundials' in name for name in sys.modules))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


# -- repetition, threads, memory ----------------------------------------------------------------------------


def everything(system: dh.HybridSystem, functional: str, parameters: Any = None) -> list[bytes]:
    """All numbers of three analyses, to the bit."""
    sol = dh.simulate(system, (0, 1.2), parameters=parameters, **TIGHT)
    fsa = dh.forward_sensitivity(system, (0, 1.2), parameters=parameters, **TIGHT)
    asa = dh.adjoint_gradient(system, (0, 1.2), functional, parameters=parameters, **TIGHT)
    arrays = [sol.t, *(sol[n] for n in sol.names), *(fsa[n] for n in sol.names), fsa.gradient[functional], asa.gradient]
    return [np.ascontiguousarray(a).tobytes() for a in arrays]


CASES = {"ball": "height", "circuit": "both", "counter": "area", "em": "G"}


@pytest.mark.parametrize("name", list(CASES))
def test_repeated_runs_are_identical(name: str, built: Any, models: Any) -> None:
    """Also when other parameters, spans, tolerances, orders and steps were used in between."""
    system = built(getattr(models, name))
    first = everything(system, CASES[name])
    other = {system.parameters.names[0]: system.nominal[0] * 1.05}
    dh.simulate(system, (0, 0.7), parameters=other, rtol=1e-5, max_order=2, max_step=0.01, first_step=1e-4)
    dh.forward_sensitivity(system, (0, 0.7), parameters=other, rtol=1e-5, max_order=2, max_step=0.01)
    dh.adjoint_gradient(system, (0, 0.7), CASES[name], parameters=other, rtol=1e-5, max_order=2, max_step=0.01)
    assert everything(system, CASES[name]) == first
    assert everything(getattr(models, name)().build(), CASES[name]) == first


@pytest.mark.parametrize("name", list(CASES))
def test_threads_give_the_same_bits(name: str, built: Any, models: Any) -> None:
    system = built(getattr(models, name))
    sets = [{system.parameters.names[0]: system.nominal[0] * (1 + 0.01 * i)} for i in range(8)]
    serial = [everything(system, CASES[name], p) for p in sets]
    with ThreadPoolExecutor(4) as pool:
        parallel = list(pool.map(lambda p: everything(system, CASES[name], p), sets * 2))
    assert parallel == serial * 2


def test_threads_and_interpreted_callbacks(built: Any, models: Any) -> None:
    system = built(models.circuit, native=False)
    sets = [{"k": 1.2 + 0.01 * i} for i in range(4)]
    serial = [everything(system, "work", p) for p in sets]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda p: everything(system, "work", p), sets)) == serial


def test_a_failing_thread_does_not_disturb_the_others(built: Any, models: Any) -> None:
    system = breaks_down(native=True)
    good = dh.simulate(system, (0, 0.5), **TIGHT)["y"].tobytes()

    def work(i: int) -> Any:
        try:
            return dh.simulate(system, (0, 0.5 if i % 2 else 1.0), **TIGHT)["y"].tobytes()
        except dh.IntegrationError as error:
            return error.trajectory is not None

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(40))) == [True, good] * 20


def resident() -> int:
    """Resident memory in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_memory_is_flat(built: Any, models: Any) -> None:
    """2,000 solves and 500 gradients; benchmarks/long_life.py does a hundred times that."""
    ball, circuit = built(models.ball), built(models.circuit)

    def work(solves: int, gradients: int) -> None:
        for i in range(solves):
            dh.simulate(ball if i % 2 else circuit, (0, 1))
        for i in range(gradients):
            system, functional = (ball, "height") if i % 2 else (circuit, "work")
            if i % 4 < 2:
                dh.adjoint_gradient(system, (0, 1), functional)
            else:
                dh.forward_sensitivity(system, (0, 1))

    work(400, 100)
    gc.collect()
    before = resident()
    work(2000, 500)
    gc.collect()
    assert resident() - before < 2e6


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_memory_is_flat_over_failures_and_builds(models: Any) -> None:
    system = breaks_down(native=True)

    def work(count: int) -> None:
        for _ in range(count):
            with pytest.raises(dh.IntegrationError):
                dh.simulate(system, (0, 1))
            with pytest.raises(dh.IntegrationError):
                dh.adjoint_gradient(system, (0, 1))

    work(100)
    gc.collect()
    before = resident()
    work(300)
    gc.collect()
    assert resident() - before < 4e6


def test_systems_are_released(models: Any) -> None:
    import weakref

    system = models.decay().build(native=False)
    dh.adjoint_gradient(system, (0, 1), "area")
    gone = weakref.ref(system)
    del system
    gc.collect()
    assert gone() is None
