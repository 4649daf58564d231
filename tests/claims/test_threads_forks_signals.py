"""Company: forks, other processes, threads and interrupts change no bit of any result."""

from __future__ import annotations

import copy
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any
from unittest.mock import patch

import casadi as ca
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.adapters.sundials import compiled, driver, interpreted, native_loop
from dae_hybrid.adapters.sundials.native_backward import NativeBackward
from dae_hybrid.adapters.sundials.native_forward import NativeForward
from dae_hybrid.adapters.sundials.session import SundialsSession
from dae_hybrid.adapters.sundials.signal_handlers import caught
from dae_hybrid.adapters.sundials.sweep import DiscreteAdjoint
from dae_hybrid.codegen.kernels import Kernel

TIGHT = {"rtol": 1e-9, "atol": 1e-12}
CASES = {"ball": "height", "circuit": "work"}
#: a child that takes longer hangs (s)
FOREVER = 120
posix = pytest.mark.skipif(os.name != "posix", reason="forks and signals of POSIX")


def everything(system: dh.HybridSystem, functional: str) -> list[bytes]:
    """All numbers of three analyses, to the bit."""
    sol = dh.simulate(system, (0, 1.2), **TIGHT)
    fsa = dh.forward_sensitivity(system, (0, 1.2), **TIGHT)
    asa = dh.adjoint_gradient(system, (0, 1.2), functional, **TIGHT)
    arrays = [sol.t, *(sol[n] for n in sol.names), sol(0.3)[sol.names[0]], fsa.gradient[functional], asa.gradient]
    return [np.ascontiguousarray(a).tobytes() for a in arrays]


def pair() -> tuple[dh.HybridSystem, dh.HybridSystem]:
    """An ODE on CVODES and a DAE on IDAS, each with a transition."""
    m = dh.HybridModel("company")
    k, q = m.parameter("k", 1.2), m.parameter("q", 2.0)
    y, z = m.differential("y"), m.algebraic("z")
    first = m.mode("first", ode={y: -z}, algebraic=[z - k * y])
    second = m.mode("second", ode={y: -z}, algebraic=[z + z**3 - q * y])
    m.transition(first, second, guard=y - 0.5, direction="falling")
    m.initial(first, {y: 1.0})
    m.functional("G", integrand=z**2)
    dae = m.build(eliminate=False)
    m = dh.HybridModel("company_ode")
    k = m.parameter("k", 2.0)
    y, v = m.differential("y"), m.differential("v")
    first, second = m.mode("first", ode={y: v, v: -(k**2) * y}), m.mode("second", ode={y: v, v: -k * ca.sin(y)})
    m.transition(first, second, guard=y - 0.5, direction="falling")
    m.initial(first, {y: 1.0, v: 0.0})
    m.functional("G", integrand=y**2)
    return m.build(), dae


def numbers(_: Any = None) -> list[list[bytes]]:
    """What a worker process sends back."""
    return [everything(system, "G") for system in pair()]


def fail(_: Any = None) -> None:
    """A run that fails in a worker process."""
    dh.simulate(pair()[1], (0, 1), max_steps=5)


# -- processes --------------------------------------------------------------------------------------------


def forked(work: Callable[[], Any]) -> Any:
    """What `work` gives in a forked child."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(FOREVER)
        try:
            with open(writer, "wb") as file:
                pickle.dump(work(), file)
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        content = file.read()
    assert os.waitpid(pid, 0)[1] == 0
    return pickle.loads(content)


@posix
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("name", list(CASES))
def test_fork_after_solves(name: str, built: Any, models: Any) -> None:
    """The child goes on with the solver memories of its parent, and neither disturbs the other."""
    system = built(getattr(models, name))
    first = everything(system, CASES[name])
    assert forked(lambda: everything(system, CASES[name])) == first
    assert everything(system, CASES[name]) == first
    grandchild = forked(lambda: forked(lambda: everything(system, CASES[name])))
    assert grandchild == first


@posix
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_fork_while_threads_solve(built: Any, models: Any) -> None:
    system = built(models.circuit)
    first = everything(system, "work")
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(everything, system, "work") for _ in range(20)]
        children = [forked(lambda: everything(system, "work")) for _ in range(5)]
        assert children == [first] * 5
        assert [r.result() for r in running] == [first] * 20


@posix
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_fork_while_locks_are_held() -> None:
    """CasADi locks a called function in each call: without a copy, one child in fourteen waited for ever."""
    x = value = ca.MX.sym("x")
    inner = ca.Function("inner", [x], [0.999 * x])
    for _ in range(2000):
        value = inner(value)
    kernel = Kernel(ca.Function("outer", [x], [value]))
    expected, over = kernel(1.0)[0].tolist(), threading.Event()

    def evaluate() -> None:
        while not over.is_set():
            kernel(1.0)

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(evaluate) for _ in range(2)]
        try:
            assert all(forked(lambda: kernel(1.0)[0].tolist()) == expected for _ in range(60))
            assert all(forked(lambda: kernel.many(2, ())([1.0, 1.0])[0].tolist()) == 2 * expected for _ in range(10))
        finally:
            over.set()
        for one in running:
            one.result()


@pytest.mark.first(1, size="operation")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_worker_processes(method: str, monkeypatch: Any) -> None:
    """Each builds for itself; the code comes from the cache, the bits are the same."""
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    monkeypatch.setitem(sys.modules, "test_threads_forks_signals", sys.modules[__name__])
    for function in (numbers, fail):
        monkeypatch.setattr(function, "__module__", "test_threads_forks_signals")
    monkeypatch.setattr(sys, "path", [os.path.dirname(__file__), *sys.path])
    here = numbers()
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(method)) as pool:
        assert list(pool.map(numbers, range(3), timeout=200)) == [here] * 3
        with pytest.raises(dh.StepLimitError, match="max_steps=5") as caught:
            pool.submit(fail).result(timeout=100)
        assert caught.value.mode == "first"
        assert caught.value.remedy
        partial = caught.value.trajectory  # comes with the error
        assert partial is not None
        assert 0 < partial.t[-1] < 1
    assert numbers() == here


def test_what_cannot_be_pickled_says_so(built: Any, models: Any) -> None:
    system = built(models.circuit)
    sol = dh.simulate(system, (0, 1))
    for thing in (system.modes[0], sol.parts[0]):
        with pytest.raises(dh.UnsupportedError, match="cannot be pickled") as caught:
            pickle.dumps(thing)
        assert "Pickle the system, or the result" in str(caught.value.remedy)
        assert type(thing).__name__ in str(caught.value)
        assert copy.copy(thing) is copy.deepcopy(thing) is thing  # nothing of it changes
    event = pickle.loads(pickle.dumps(sol.events[0]))
    assert event.time == sol.events[0].time


def test_errors_are_pickled_with_their_trajectory(built: Any, models: Any) -> None:
    with pytest.raises(dh.StepLimitError) as caught:
        dh.simulate(built(models.circuit), (0, 1), max_steps=5)
    again = pickle.loads(pickle.dumps(caught.value))
    assert caught.value.trajectory is not None
    assert again.trajectory.t.tolist() == caught.value.trajectory.t.tolist()
    assert str(again) == str(caught.value)
    assert (again.mode, again.time, again.remedy) == (caught.value.mode, caught.value.time, caught.value.remedy)


@pytest.mark.parametrize("reason", [TypeError, AttributeError, pickle.PicklingError, dh.UnsupportedError])
def test_errors_are_pickled_even_if_their_trajectory_is_not(reason: type[Exception]) -> None:
    class Partial:
        def __reduce__(self) -> Any:
            raise reason("no")

    error = dh.StepLimitError("Too many.", mode="first", remedy="Fewer.")
    error.trajectory = Partial()
    again = pickle.loads(pickle.dumps(error))
    assert (again.trajectory, again.mode, again.remedy) == (None, "first", "Fewer.")


# -- threads ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
def test_threads_that_solve_and_fail(native: bool, built: Any, models: Any) -> None:
    """Two systems at once, all analyses, every other run fails."""
    systems = [(built(getattr(models, name), native=native), CASES[name]) for name in CASES]
    first = [everything(*case) for case in systems]

    def work(i: int) -> Any:
        system, functional = systems[i % 2]
        if i % 4 < 2:
            return everything(system, functional)
        options: dict[str, Any] = {"max_steps": 2, "max_step": 0.01 + 0.001 * (i % 3)}
        for analysis in (dh.simulate, dh.forward_sensitivity):
            with pytest.raises(dh.StepLimitError):
                analysis(system, (0, 1.2), **options)
        with pytest.raises(dh.StepLimitError):
            dh.adjoint_gradient(system, (0, 1.2), functional, **options)
        return None

    count = 32 if native else 8
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(count))) == [*first, None, None] * (count // 4)


def test_threads_that_are_the_first(models: Any) -> None:
    """Tables that every memory points at are made by several threads at once."""
    right = everything(models.circuit().build(eliminate=False), "work")
    for _ in range(5):
        system = models.circuit().build(eliminate=False)
        driver.api.cache_clear()
        driver.python_api.cache_clear()
        barrier = threading.Barrier(4)

        def work(system: Any = system, barrier: Any = barrier) -> list[bytes]:
            barrier.wait()
            return everything(system, "work")

        with ThreadPoolExecutor(4) as pool:
            assert [f.result() for f in [pool.submit(work) for _ in range(4)]] == [right] * 4


# -- interrupts -------------------------------------------------------------------------------------------

#: seconds from Ctrl-C to KeyboardInterrupt; a tenth is what the driver promises, the rest is the machine's
PROMPT = 2.0


class Alarm(Exception):
    pass


def long_runs(system: dh.HybridSystem, functional: str, step: float) -> dict[str, Callable[[], Any]]:
    """Runs of a minute or more, whatever the machine."""
    options: dict[str, Any] = {"method": "bdf", "max_step": step, "max_steps": 10**9, **TIGHT}
    span = (0, 2e6 * step)
    return {
        "simulate": lambda: dh.simulate(system, span, t_eval=span, **options),
        "forward": lambda: dh.forward_sensitivity(system, span, t_eval=span, **options),
        "adjoint": lambda: dh.adjoint_gradient(system, span, functional, t_eval=span, **options),
    }


LOOPS = (
    compiled.ForwardLoop, native_loop.NativeLoop, compiled.BackwardLoop, interpreted.ForwardLoop,
    interpreted.BackwardLoop, NativeForward, NativeBackward,
)  # fmt: skip


def interrupt(
    run: Callable[[], Any], after: float, error: type[BaseException] = KeyboardInterrupt, *, anywhere: bool = False
) -> float:
    """Seconds from the signal to the exception; sent when integration has gone on for a while, or `anywhere`.

    Anywhere is also in CasADi's conversions and in finalizers, where what a handler raises is lost: Python's limits.
    """
    sent = 0.0

    def send() -> None:
        nonlocal sent
        sent = time.perf_counter()
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(after, send)
    gc.collect()  # memories of the interrupted run before

    def start_and_run() -> None:
        timer.start()  # on a busy machine the signal is there before this returns
        run()

    def starting(advance: Callable[..., Any]) -> Callable[..., Any]:
        def loop(*arguments: Any) -> Any:
            if timer.ident is None and threading.current_thread() is threading.main_thread():
                timer.start()
            return advance(*arguments)

        return loop

    with ExitStack() as stack:
        for loop in () if anywhere else LOOPS:
            stack.enter_context(patch.object(loop, "advance", starting(loop.advance)))
        stack.enter_context(pytest.raises(error))
        (start_and_run if anywhere else run)()
    return time.perf_counter() - sent


@pytest.mark.first(1, size="operation")
@posix
@pytest.mark.parametrize("native", [True, False], ids=["compiled", "interpreted"])
@pytest.mark.parametrize("name", ["ball", "circuit"])
def test_interrupts(name: str, native: bool, models: Any) -> None:
    """In every analysis, at several moments; the next runs are right to the bit, with the same interpreter."""
    system = getattr(models, name)().build(native=native, eliminate=False)
    span, functional = (0, 1.2), CASES[name]
    first = everything(system, functional)
    for run in long_runs(system, functional, 1e-6 if native else 1e-4).values():
        for after in (0.11, 0.37):
            assert interrupt(run, after) < PROMPT
            with pytest.raises(dh.StepLimitError):
                dh.simulate(system, span, max_steps=3)
        assert everything(system, functional) == first


@posix
@pytest.mark.parametrize(
    ("name", "method", "loop", "entered"),
    [
        ("oscillator", "adams", compiled.BackwardLoop, "begin"),
        ("oscillator", "erk", NativeBackward, "advance"),
        ("oscillator", "erk", DiscreteAdjoint, "back"),
        ("circuit", "auto", compiled.BackwardLoop, "begin"),
    ],
)
def test_interrupts_of_a_backward_sweep(
    name: str, method: str, loop: Any, entered: str, models: Any, monkeypatch: Any
) -> None:
    """Sent when the sweep has begun."""
    system = getattr(models, name)().build(eliminate=False)
    functional = {"oscillator": "end", "circuit": "work"}[name]
    first = everything(system, functional)
    if loop is DiscreteAdjoint:
        monkeypatch.setattr(SundialsSession, "run", lambda *given: None)
    begin, sent = getattr(loop, entered), [0.0]

    def send() -> None:
        sent[0] = time.perf_counter()
        os.kill(os.getpid(), signal.SIGINT)

    def beginning(self: Any, *arguments: Any) -> Any:
        threading.Timer(0.05, send).start()
        return begin(self, *arguments)

    monkeypatch.setattr(loop, entered, beginning)
    more = {"max_step": 2e-6, "max_steps": 10**9, "t_eval": [0, 0.3], "method": method, **TIGHT}
    with pytest.raises(KeyboardInterrupt):
        dh.adjoint_gradient(system, (0, 0.3), functional, **more)
    assert time.perf_counter() - sent[0] < PROMPT
    monkeypatch.undo()
    assert everything(system, functional) == first


@posix
def test_handlers_of_the_user(models: Any) -> None:
    """A handler's own exception reaches the caller; a handler that raises nothing leaves the run as it is."""
    system = models.circuit().build(eliminate=False)
    first = everything(system, "work")
    seen = []

    def raising(*_: Any) -> None:
        raise Alarm

    before = signal.signal(signal.SIGINT, raising)
    try:
        runs = long_runs(system, "work", 1e-6)
        for run in runs.values():
            assert interrupt(run, 0.2, Alarm) < PROMPT
        signal.signal(signal.SIGINT, lambda *_: seen.append(time.perf_counter()))
        options: dict[str, Any] = {"max_step": 2e-6, "max_steps": 10**9, "t_eval": [0, 0.3], **TIGHT}
        quiet = dh.adjoint_gradient(system, (0, 0.3), "work", **options).gradient.tobytes()
        timers = [threading.Timer(0.1 * i, os.kill, (os.getpid(), signal.SIGINT)) for i in range(1, 6)]
        for timer in timers:
            timer.start()
        assert dh.adjoint_gradient(system, (0, 0.3), "work", **options).gradient.tobytes() == quiet
        for timer in timers:
            timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen
    assert everything(system, "work") == first


@posix
def test_interrupts_while_threads_solve(models: Any) -> None:
    """The main thread is interrupted; the others go on and are right."""
    system = models.circuit().build(eliminate=False)
    first = everything(system, "work")
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(everything, system, "work") for _ in range(30)]
        for run in long_runs(system, "work", 1e-6).values():
            assert interrupt(run, 0.1) < 2 * PROMPT
        assert [r.result() for r in running] == [first] * 30


#: moments at which interrupts arrive
MOMENTS = pytest.mark.parametrize("count", [4, pytest.param(40, marks=pytest.mark.operation)])


@posix
@MOMENTS
def test_interrupts_between_native_calls(count: int, built: Any, models: Any, monkeypatch: Any) -> None:
    """Many short segments and runs, interrupted at moments that fall anywhere in the Python around them."""
    system = built(models.ball)
    first = everything(system, "height")
    rng = np.random.default_rng(1)
    reported: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)

    def work() -> None:
        count = len(reported)
        for _ in range(200):
            dh.simulate(system, (0, 1.2))
            dh.adjoint_gradient(system, (0, 1.2), "height")
            if len(reported) > count:  # in a finalizer, where Python only reports it
                raise KeyboardInterrupt

    for after in rng.uniform(0.001, 0.03, count):
        assert interrupt(work, float(after), anywhere=True) < PROMPT
        with suppress(dh.StepLimitError):
            dh.simulate(system, (0, 1.2), max_steps=3)
    assert len(reported) < 3, reported
    assert everything(system, "height") == first
    for mode in system.modes:
        for idle in mode.equations.cache.values():
            if isinstance(idle, list):  # a pool: no memory is in it twice
                assert len({id(memory) for memory in idle}) == len(idle)


@posix
@MOMENTS
def test_no_interrupt_is_lost_between_callbacks(count: int, models: Any, monkeypatch: Any) -> None:
    """With interpreted callbacks one may arrive after a callback's call and before its first line."""
    system = models.oscillator().build(native=False)
    run = long_runs(system, "end", 1e-2)["simulate"]
    lost: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    hook = sys.unraisablehook
    for i in range(count):
        assert interrupt(run, 0.01 + 0.028 * i / count) < PROMPT
        assert sys.unraisablehook is hook
    assert not lost


class Interrupting:
    """An object during whose finalizer Ctrl-C arrives."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@posix
def test_an_interrupt_in_a_finalizer_ends_the_run(models: Any, monkeypatch: Any) -> None:
    """Python only reports it; on another thread it remains a report."""
    lost: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    flow, calls = interpreted.EquationCallbacks._flow, [0]

    def collecting(self: Any, t: float, x: Any) -> Any:
        calls[0] += 1
        if calls[0] == 20:
            Interrupting()
        return flow(self, t, x)

    monkeypatch.setattr(interpreted.EquationCallbacks, "_flow", collecting)
    system = models.oscillator().build(native=False)
    with pytest.raises(KeyboardInterrupt):
        dh.simulate(system, (0, 100))
    assert calls[0] == 20
    assert not lost

    class Failing:
        def __del__(self) -> None:
            raise KeyboardInterrupt

    def fail_elsewhere() -> None:
        thread = threading.Thread(target=Failing)
        thread.start()
        thread.join()

    with caught(lambda error: pytest.fail(f"kept {error!r}")):
        fail_elsewhere()
    assert len(lost) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), dh.UnsupportedError("no memory")])
def test_what_stops_the_creation_of_a_memory_reaches_the_caller(
    error: BaseException, models: Any, monkeypatch: Any
) -> None:
    system = models.circuit().build(native=False)
    first = everything(system, "work")

    def stop(*_: Any) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(SundialsSession, "forward_memory", stop)
        with pytest.raises(type(error)) as caught_error:
            dh.simulate(system, (0, 1))
    assert caught_error.value is error
    assert everything(system, "work") == first


# -- memories that are used again ----------------------------------------------------------------------------------


CALLS: tuple[dict[str, Any], ...] = (
    {"rtol": 1e-6, "atol": 1e-9},
    {"rtol": 1e-8, "atol": {"y": 1e-11, "*": 1e-10}},
    {"rtol": 1e-6, "atol": 1e-9, "max_step": 0.05},
    {"rtol": 1e-6, "atol": 1e-9, "first_step": 1e-3},
    {"rtol": 1e-6, "atol": 1e-9, "wrt": "g"},
    {"rtol": 1e-6, "atol": 1e-9, "parameters": {"e": 0.5}},
    {"rtol": 1e-6, "atol": 1e-9, "parameters": {"g": 3.0}, "wrt": ["g", "e"]},
    {"rtol": 1e-6, "atol": 1e-9, "max_order": 5},
    {"rtol": 1e-6, "atol": 1e-9, "method": "bdf"},
    {"rtol": 1e-6, "atol": 1e-9, "method": "bdf", "max_order": 2},
    {"rtol": 1e-6, "atol": 1e-9, "method": "adams", "sensitivity_method": "simultaneous"},
)


def test_what_a_memory_has_been_told_is_forgotten(models: Any) -> None:
    """Calls in any order, failed ones between them, give the bits that they give on a system of their own."""
    system = models.ball().build()

    def bits(on: dh.HybridSystem, options: dict[str, Any]) -> list[bytes]:
        fsa = dh.forward_sensitivity(on, (0, 1.2), **options)
        asa = dh.adjoint_gradient(on, (0, 1.2), "height", **options)
        arrays = (fsa.trajectory.t, fsa.trajectory["y"], fsa.gradient["height"], asa.gradient)
        return [np.ascontiguousarray(a).tobytes() for a in arrays]

    alone = [bits(models.ball().build(), options) for options in CALLS]
    order = np.random.default_rng(1).permutation(3 * len(CALLS)) % len(CALLS)
    for i in order.tolist():
        assert bits(system, CALLS[i]) == alone[i], CALLS[i]
        if i % 3 == 0:
            with pytest.raises(dh.StepLimitError):
                dh.forward_sensitivity(system, (0, 1.2), **CALLS[i] | {"max_steps": 3})
