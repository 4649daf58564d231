"""Runs that are cancelled from another thread stop soon, and leave everything as it was."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.adapters.sundials import compiled
from dae_hybrid.adapters.sundials.native_backward import NativeBackward
from dae_hybrid.cancellation import Cancellation, Cancelled, carried, raise_if_cancelled
from dae_hybrid.codegen import compiler
from dae_hybrid.errors import DaeHybridError
from dae_hybrid.interface.crews import Completed, carry_out
from dae_hybrid.interface.prepared_case import Analysis, CheckedCall
from dae_hybrid.mechanics import ALI3P, Mechanism

#: seconds from `cancel` to the end of a run that would take minutes; a tenth is promised, the rest is the machine's
PROMPT = 2.0
#: two models of conftest.py, an ODE and a DAE with a transition each, and a functional
CASES = {"ball": "height", "circuit": "work"}
TIGHT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}


def everything(system: dh.HybridSystem, functional: str, **options: Any) -> list[bytes]:
    """All numbers of three analyses, to the bit."""
    options = TIGHT | options
    sol = dh.simulate(system, (0, 1.2), **options)
    fsa = dh.forward_sensitivity(system, (0, 1.2), **options)
    asa = dh.adjoint_gradient(system, (0, 1.2), functional, **options)
    arrays = [sol.t, *(sol[name] for name in sol.names), fsa.gradient[functional], asa.gradient]
    return [np.ascontiguousarray(a).tobytes() for a in arrays]


def long_runs(system: dh.HybridSystem, functional: str, step: float, **more: Any) -> dict[str, Callable[[], Any]]:
    """Runs of minutes, whatever the machine."""
    options: dict[str, Any] = {"max_step": step, "max_steps": 10**9, **TIGHT, **more}
    span = (0, 1e8 * step)
    return {
        "simulate": lambda: dh.simulate(system, span, t_eval=span, **options),
        "forward": lambda: dh.forward_sensitivity(system, span, t_eval=span, **options),
        "adjoint": lambda: dh.adjoint_gradient(system, span, functional, t_eval=span, **options),
    }


def latency(run: Callable[[], Any], after: float = 0.15, *, ready: threading.Event | None = None) -> float:
    """Seconds from `cancel` to `Cancelled` of a run on another thread; sent when it has begun, or is `ready`."""
    stop, begun = Cancellation(), threading.Event() if ready is None else ready

    def work() -> Any:
        with stop:
            if ready is None:
                begun.set()
            return run()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        assert begun.wait(60)
        time.sleep(after)
        assert not future.done(), future.exception()
        sent = time.perf_counter()
        stop.cancel()
        assert type(future.exception(60)) is Cancelled
        return time.perf_counter() - sent


# -- the object ------------------------------------------------------------------------------------------------


def test_cancelled_is_no_failure_of_a_run() -> None:
    assert issubclass(Cancelled, BaseException)
    assert not issubclass(Cancelled, Exception | DaeHybridError)


def test_wait_and_state() -> None:
    stop = Cancellation()
    assert not stop.is_cancelled
    assert not stop.wait(0.01)
    assert "not cancelled" in repr(stop)
    timer = threading.Timer(0.05, stop.cancel)
    timer.start()
    assert stop.wait(60)
    timer.join()
    stop.cancel()
    assert stop.is_cancelled
    assert "not" not in repr(stop)


def test_any_of_the_entered_objects_stops() -> None:
    for i in range(3):
        stops = [Cancellation() for _ in range(3)]
        with stops[0], stops[1]:
            with stops[2]:
                raise_if_cancelled()
                stops[i].cancel()
                with pytest.raises(Cancelled):
                    raise_if_cancelled()
            if i == 2:
                raise_if_cancelled()
        raise_if_cancelled()


def test_a_cancelled_object_is_not_entered() -> None:
    stop, outer, reached = Cancellation(), Cancellation(), False
    stop.cancel()
    with outer:
        with pytest.raises(Cancelled), stop:
            reached = True
        raise_if_cancelled()
        outer.cancel()
        with pytest.raises(Cancelled):
            raise_if_cancelled()
    assert not reached


def test_threads_enter_on_their_own() -> None:
    with Cancellation() as stop, ThreadPoolExecutor(1) as pool:
        work = carried(raise_if_cancelled)
        pool.submit(work).result()
        stop.cancel()
        with pytest.raises(Cancelled):
            pool.submit(work).result()
        pool.submit(raise_if_cancelled).result()
    raise_if_cancelled()


# -- single calls ------------------------------------------------------------------------------------------------


@pytest.mark.covering(size="operation")
@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
@pytest.mark.parametrize("name", ["ball", "circuit"])
def test_single_calls(name: str, native: bool, models: Any) -> None:
    """In every analysis; the next runs are right to the bit."""
    system, functional = getattr(models, name)().build(native=native, eliminate=False), CASES[name]
    first = everything(system, functional)
    for method in ("bdf", "auto") if native else ("bdf",):
        for run in long_runs(system, functional, 1e-6 if native else 1e-4, method=method).values():
            assert latency(run) < PROMPT
    assert everything(system, functional) == first


@pytest.mark.parametrize("adapter", ["scipy", "casadi"])
def test_other_adapters(adapter: str, models: Any, built: Any) -> None:
    system = built(models.circuit)
    first = everything(system, "work", adapter=adapter, rtol=1e-6, atol=1e-9)
    for run in long_runs(system, "work", 1e-4, adapter=adapter).values():
        assert latency(run) < PROMPT
    assert everything(system, "work", adapter=adapter, rtol=1e-6, atol=1e-9) == first


def test_events_in_python() -> None:
    """Many short segments, with the native loop switched off."""
    m = dh.HybridModel("clock")
    k, c = m.parameter("k", 0.5), m.differential("c")
    run = m.mode("run", ode={c: -k * c})
    m.transition(run, run, every=1.0, reset={c: c + 1})
    m.initial(run, {c: 1.0})
    m.functional("sum", integrand=c)
    system = m.build()
    span, options = (0, 1e5), {"native_events": False, "max_steps": 10**9}
    first = everything(system, "sum")
    for run_it in (
        lambda: dh.simulate(system, span, **options),
        lambda: dh.forward_sensitivity(system, span, **options),
        lambda: dh.adjoint_gradient(system, span, "sum", **options),
    ):
        assert latency(run_it) < PROMPT
    assert everything(system, "sum") == first


@pytest.mark.covering(size="operation")
@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
@pytest.mark.parametrize("solver", ["sparse", "krylov"])
def test_large_systems(solver: str, native: bool) -> None:
    """Factorisations by SciPy are callbacks of their own."""
    n = 60
    m = dh.HybridModel("rod")
    k, u = m.parameter("k", 1.0), m.differential("u", size=n)
    flow = [k * (u[max(i - 1, 0)] - 2 * u[i] + u[min(i + 1, n - 1)]) for i in range(n)]
    run = m.mode("run", ode={u: ca.vertcat(*flow)})
    m.initial(run, {u: np.linspace(0, 1, n)})
    m.functional("end", terminal=u[0])
    system = m.build(native=native)
    options = {"linear_solver": solver, "method": "bdf"}
    first = everything(system, "end", **options)
    for long in long_runs(system, "end", 1e-6, **options).values():
        assert latency(long) < PROMPT
    assert everything(system, "end", **options) == first


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
def test_mechanisms(native: bool) -> None:
    mech = Mechanism("oscillator")
    w, x = mech.parameter("w", 3.0), mech.coordinate("x")
    mech.inertia(x, 1.0)
    mech.force({x: -(w**2) * x})
    mech.initial(mech.mode("free"), {x: 1.0})
    mech.functional("x", terminal=x)
    system = mech.build(ALI3P(), native=native)
    own: dict[str, Any] = {"adapter": "ali3p", "rtol": 1e-4, "atol": 1e-6}
    first = everything(system, "x", **own)
    step = 1e-6
    for run in long_runs(system, "x", step, adapter="ali3p", fixed_step=step).values():
        assert latency(run) < PROMPT
    assert everything(system, "x", **own) == first


@pytest.mark.parametrize(
    ("name", "method", "loop", "entered"),
    [
        ("oscillator", "adams", compiled.BackwardLoop, "begin"),
        ("oscillator", "erk", NativeBackward, "advance"),
        ("circuit", "auto", compiled.BackwardLoop, "begin"),
    ],
)
def test_backward_sweeps(name: str, method: str, loop: Any, entered: str, models: Any, monkeypatch: Any) -> None:
    """Cancelled when the sweep has begun."""
    system = getattr(models, name)().build(eliminate=False)
    functional = {"oscillator": "end", "circuit": "work"}[name]
    first = everything(system, functional)
    begin, ready = getattr(loop, entered), threading.Event()

    def beginning(self: Any, *arguments: Any) -> Any:
        ready.set()
        return begin(self, *arguments)

    monkeypatch.setattr(loop, entered, beginning)
    # the sweep takes half a second, and is cancelled at once: a thread that is woken late still finds it at work
    options = {"max_step": 8e-7, "max_steps": 10**9, "t_eval": [0, 0.3], "method": method, **TIGHT}
    assert latency(lambda: dh.adjoint_gradient(system, (0, 0.3), functional, **options), 0.0, ready=ready) < PROMPT
    monkeypatch.undo()
    assert everything(system, functional) == first


def test_on_the_main_thread(models: Any, built: Any) -> None:
    system = built(models.circuit)
    stop = Cancellation()
    timer = threading.Timer(0.1, stop.cancel)
    run = long_runs(system, "work", 1e-6)["adjoint"]
    timer.start()
    with pytest.raises(Cancelled), stop:
        run()
    timer.join()


def test_before_the_start_and_after_the_end(models: Any, built: Any) -> None:
    system = built(models.circuit)
    first = everything(system, "work")
    stop = Cancellation()
    with stop:
        assert everything(system, "work") == first
    stop.cancel()
    assert everything(system, "work") == first
    with pytest.raises(Cancelled), stop:
        raise AssertionError("entered")


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
def test_another_thread_goes_on(native: bool, models: Any, built: Any) -> None:
    """Two threads with the same system; one is cancelled, the results of the other are right to the bit."""
    system = built(models.circuit, native=native)
    first = everything(system, "work")
    with ThreadPoolExecutor(1) as pool:
        running = [pool.submit(everything, system, "work") for _ in range(30 if native else 3)]
        for run in long_runs(system, "work", 1e-6).values():
            assert latency(run) < 2 * PROMPT
        assert [r.result() for r in running] == [first] * len(running)


# -- many runs ------------------------------------------------------------------------------------------------


def case_of(system: dh.HybridSystem, analysis: Analysis | None, **options: Any) -> CheckedCall:
    span = options.pop("span", (0, 1.2))
    return CheckedCall(system, span, None, analysis, None, None, "sundials", True, False, options, None)


def sets_of(system: dh.HybridSystem, count: int) -> Any:
    return np.linspace(0.95, 1.05, count)[:, None] * system.nominal


def bits(found: Completed) -> list[bytes]:
    out = found.out
    return [array.tobytes() for array in (out.values, out.gradients, out.ends, out.times, out.n_steps, out.done)]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("analysis", [None, "forward", "adjoint"])
def test_many_native_runs(analysis: Analysis | None, workers: int, models: Any, built: Any) -> None:
    """So many that they would take minutes; crews are as before, or new."""
    system = built(models.em)
    case, few = case_of(system, analysis, span=(0, 10), rtol=1e-8), sets_of(system, 6)
    first = carry_out(case, few, workers)
    assert first.reason is None
    assert (first.out.done == 1).all()
    many = sets_of(system, 100_000)
    assert latency(lambda: carry_out(case, many, workers)) < PROMPT
    assert bits(carry_out(case, few, workers)) == bits(first)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("method", ["erk", "bdf"])
def test_a_native_run_of_minutes(method: str, workers: int, models: Any, built: Any) -> None:
    system = built(models.ball)
    case = case_of(system, None, span=(0, 0.4), max_step=1e-9, max_steps=10**9, method=method)
    assert latency(lambda: carry_out(case, sets_of(system, 4), workers)) < PROMPT
    short = case_of(system, None, span=(0, 0.4), method=method)
    assert bits(carry_out(short, sets_of(system, 4), workers)) == bits(carry_out(short, sets_of(system, 4), 1))


@pytest.mark.first(1)
@pytest.mark.parametrize("workers", [2, 1])
def test_many_single_calls(workers: int, models: Any, built: Any) -> None:
    system = built(models.circuit, native=False)
    case, few = case_of(system, "adjoint"), sets_of(system, 4)
    first = carry_out(case, few, workers)
    assert first.reason is not None
    assert latency(lambda: carry_out(case, sets_of(system, 10_000), workers)) < PROMPT
    assert bits(carry_out(case, few, workers)) == bits(first)


def test_carry_out_with_a_cancellation(models: Any, built: Any) -> None:
    """It may be given instead of entered."""
    system, stop = built(models.ball), Cancellation()
    case = case_of(system, "adjoint")
    assert bits(carry_out(case, sets_of(system, 4), 2, stop)) == bits(carry_out(case, sets_of(system, 4), 2))
    stop.cancel()
    with pytest.raises(Cancelled):
        carry_out(case, sets_of(system, 4), 2, stop)


def test_failed_runs_do_not_hide_a_cancellation(models: Any, built: Any) -> None:
    """All runs fail, which `carry_out` records; the cancellation is none of their errors."""
    system = built(models.circuit)
    case = case_of(system, "adjoint", max_steps=2)
    assert len(carry_out(case, sets_of(system, 4), 2).failures) == 4
    assert latency(lambda: carry_out(case, sets_of(system, 50_000), 2)) < PROMPT


# -- threads of the library --------------------------------------------------------------------------------------


def test_fits(models: Any, built: Any) -> None:
    """Searches and experiments are on threads of their own."""
    system = built(models.oscillator)
    experiments = [dh.Experiment({"x": [1.0, 0.5]}, [0.1, 100.0]) for _ in range(2)]
    options: dict[str, Any] = {"max_step": 1e-6, "max_steps": 10**9, "workers": 2}
    assert latency(lambda: dh.fit(system, experiments, "w", **options)) < PROMPT
    bounds = {"w": (1.0, 3.0)}
    assert latency(lambda: dh.fit(system, experiments[:1], "w", starts=4, bounds=bounds, **options)) < PROMPT


@pytest.mark.skipif(os.name != "posix", reason="a shell script as compiler")
def test_waiting_for_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = tmp_path / "slow-cc"
    slow.write_text('#!/bin/sh\ncase "$*" in *--version*) exit 0;; esac\nsleep 4\nexit 1\n')
    slow.chmod(0o700)
    monkeypatch.setattr(compiler, "find_compiler", lambda: (str(slow),))
    monkeypatch.setenv("DAE_HYBRID_CACHE", str(tmp_path / "cache"))
    assert latency(lambda: compiler.compile_source("int dh_never_compiled;")) < PROMPT


# -- at any moment -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.operation)])
def test_at_random_moments(count: int, models: Any, built: Any, monkeypatch: Any) -> None:
    """Nothing is raised after the end of a run, in a finalizer or on another thread, and no thread stays."""
    system = built(models.ball)
    case, sets = case_of(system, "adjoint"), sets_of(system, 40)
    first, of_batch = everything(system, "height"), bits(carry_out(case, sets, 2))
    lost: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    monkeypatch.setattr(threading, "excepthook", lost.append)
    rng, ends = np.random.default_rng(1), {"cancelled": 0, "complete": 0}
    threads = threading.active_count()

    def work(stop: Cancellation, in_batch: bool) -> str:
        try:
            with stop:
                for _ in range(20):
                    if in_batch:
                        carry_out(case, sets, 2)
                    else:
                        everything(system, "height")
        except Cancelled:
            return "cancelled"
        raise_if_cancelled()
        return "complete"

    with ThreadPoolExecutor(1) as pool:
        for i, after in enumerate(rng.uniform(0.0, 0.03, count).tolist()):
            stop = Cancellation()
            future = pool.submit(work, stop, i % 2 == 0)
            time.sleep(after)
            stop.cancel()
            ends[future.result(60)] += 1
            if i % 20 == 0:
                assert pool.submit(everything, system, "height").result(60) == first
        assert pool.submit(everything, system, "height").result(60) == first
    assert ends["cancelled"] > count / 2, ends
    assert bits(carry_out(case, sets, 2)) == of_batch
    gc.collect()
    assert not lost
    assert threading.active_count() <= threads
    for mode in system.modes:
        for idle in mode.equations.cache.values():
            if isinstance(idle, list):  # a pool: no memory is in it twice
                assert len({id(memory) for memory in idle}) == len(idle)
