"""Systems compiled in the background, and progress reports of builds."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.adapters.sundials import driver
from dae_hybrid.codegen import compiler as cc
from dae_hybrid.interface.runs import RunBuilder
from dae_hybrid.system.later import MEANWHILE

SPAN, TIGHT = (0, 3), {"rtol": 1e-9, "atol": 1e-12}
HEIGHT = 0.06870746096576572


@pytest.fixture
def gate(monkeypatch: Any, tmp_path: Path) -> Iterator[Callable[..., threading.Event]]:
    """An empty cache, and compilers that wait for an event; it counts them in `gate.begun`."""
    if cc.find_compiler() is None:
        pytest.skip("no compiler")
    loops = driver.driver()  # need not be compiled again
    monkeypatch.setenv("DAE_HYBRID_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cc, "_loaded", {key: library for key, library in cc._loaded.items() if library is loops})
    opened, compile_ = threading.Event(), cc._compile
    opened.begun = 0  # type: ignore[attr-defined]

    def waiting(*arguments: Any, **options: Any) -> bytes:
        opened.begun += 1  # type: ignore[attr-defined]
        assert opened.wait(60)
        return compile_(*arguments, **options)

    monkeypatch.setattr(cc, "_compile", waiting)
    yield opened
    opened.set()
    for compilation in list(cc._workshop.under_way.values()):  # the next test is to find none of them
        compilation.wait()


def height(system: dh.HybridSystem, **options: Any) -> dh.Trajectory:
    sol = dh.simulate(system, SPAN, **TIGHT, **options)
    assert sol.functionals["height"] == pytest.approx(HEIGHT, abs=1e-7)
    return sol


def engine(sol: dh.Trajectory) -> str:
    """Which one carried a run, as its result says."""
    compiled = sol.statistics["native_events"] == len(sol.events)
    assert compiled == (MEANWHILE not in sol.diagnostics.notes)
    return "compiled" if compiled else "interpreted"


def test_runs_change_over_when_the_code_is_there(gate: Any, models: Any) -> None:
    system = models.ball().build(native="later")
    assert not system.native
    assert not system.wait(0.01)
    assert "interpreted" in repr(system)
    assert engine(height(system)) == "interpreted"
    gate.set()
    assert system.wait()
    assert "compiled" in repr(system)
    assert engine(height(system)) == "compiled"
    plain = models.ball().build()
    np.testing.assert_array_equal(height(system).t, height(plain).t)
    assert height(system).functionals["height"] == height(plain).functionals["height"]


def test_a_run_ends_as_it_began(gate: Any, models: Any) -> None:
    """The code comes while a gradient is under way: both its passes are interpreted."""
    system = models.ball().build(native="later")
    seen: list[str] = []
    integrate = RunBuilder.run

    def run(self: Any, *arguments: Any, **options: Any) -> Any:
        found = integrate(self, *arguments, **options)
        gate.set()
        assert system.wait()
        seen.append(engine(found))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunBuilder, "run", run)
        check = dh.check_gradient(system, SPAN, "height", **TIGHT)
    assert set(seen) == {"interpreted"}
    assert len(seen) > 4
    assert check.difference("forward", "adjoint") < 1e-6


def test_prepared_calls_change_over(gate: Any, models: Any) -> None:
    system = models.ball().build(native="later")
    run = dh.prepare(system, SPAN, derivatives="adjoint", **TIGHT)
    before = run()
    assert not before.is_native
    assert not dh.batch(system, SPAN, parameters=[[0.8, 9.81]], **TIGHT).native.any()
    gate.set()
    system.wait()
    after = run()
    assert after.is_native
    assert dh.batch(system, SPAN, parameters=[[0.8, 9.81]], **TIGHT).native.all()
    np.testing.assert_allclose(after.gradient["height"], before.gradient["height"], rtol=1e-6)


@pytest.mark.parametrize("method", ["bdf", "adams"])
def test_one_method_gives_the_same_by_either_engine(method: str, gate: Any, models: Any) -> None:
    system = models.ball().build(native="later")
    ways = []
    for _ in range(2):
        sol = height(system, method=method)
        fsa = dh.forward_sensitivity(system, SPAN, method=method, **TIGHT)
        asa = dh.adjoint_gradient(system, SPAN, method=method, **TIGHT)
        ways.append([[e.time for e in sol.events], fsa.gradient["height"], asa.gradient])
        gate.set()
        assert system.wait()
    for one, other in zip(*ways, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)


def test_a_method_that_needs_the_code_waits_for_it(gate: Any, models: Any) -> None:
    system = models.ball().build(native="later")
    threading.Timer(0.2, gate.set).start()
    assert engine(height(system, method="erk")) == "compiled"


def test_what_is_in_the_cache_is_there_at_once(gate: Any, models: Any) -> None:
    gate.set()
    models.ball().build()
    system = models.ball().build(native="later")
    assert system.later is None
    assert engine(height(system)) == "compiled"


def test_a_library_is_compiled_once(gate: Any, models: Any) -> None:
    first, second = (models.ball().build(native="later") for _ in range(2))
    built: list[dh.HybridSystem] = []
    other = threading.Thread(target=lambda: built.append(models.ball().build()))
    other.start()
    gate.set()
    other.join(60)
    assert all(system.wait() for system in (first, second, *built))
    assert gate.begun == 1
    addresses = {s.current().modes[0].equations.compiled["flow"].address for s in (first, second, *built)}
    assert len(addresses) == 1


def test_threads_share_it(gate: Any, models: Any) -> None:
    system = models.ball().build(native="later")
    found: list[dh.Trajectory] = []
    threads = [threading.Thread(target=lambda: found.append(height(system))) for _ in range(4)]
    for i, thread in enumerate(threads):
        thread.start()
        if i == 1:
            gate.set()
    for thread in threads:
        thread.join(60)
    assert len(found) == 4
    assert len({id(sol.system) for sol in found}) <= 2


def test_copies_share_it_and_a_pickle_begins_anew(gate: Any, models: Any) -> None:
    system = models.ball().build(native="later")
    assert copy.copy(system) is system
    assert copy.deepcopy(system) is system
    again = pickle.loads(pickle.dumps(system))
    assert again is not system
    assert not again.native
    gate.set()
    assert system.wait(60)
    assert again.wait(60)


def test_a_compiler_that_fails_is_said_at_the_next_run(gate: Any, models: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(cc, "_warned", set())

    def fails(*_: Any, **__: Any) -> bytes:
        assert gate.wait(60)
        raise OSError("'cc' returned 1: no good")

    monkeypatch.setattr(cc, "_compile", fails)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        system = models.ball().build(native="later")
        assert engine(height(system)) == "interpreted"
        gate.set()
        assert system.later is not None
        system.later.wait(None)
    with pytest.warns(dh.CompilerWarning, match="no good") as caught:
        sol = height(system)
    assert len(caught) == 1
    assert sol.statistics["native_events"] == 0
    assert not sol.diagnostics.notes  # no compiler is at work any more
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not system.wait()
        height(system)


def test_an_error_that_nobody_expects_is_raised(gate: Any, models: Any, monkeypatch: Any) -> None:
    def fails(*_: Any, **__: Any) -> bytes:
        assert gate.wait(60)
        raise MemoryError("of the thread")

    monkeypatch.setattr(cc, "_compile", fails)
    system = models.ball().build(native="later")
    gate.set()
    assert system.later is not None
    system.later.wait(None)
    with pytest.raises(MemoryError, match="of the thread"):
        dh.simulate(system, SPAN)


BUILD = """
import os, sys, time
import dae_hybrid as dh
m = dh.HybridModel("fall")
y, v, g = m.differential("y"), m.differential("v"), m.parameter("g", 9.81)
flight = m.mode("flight", ode={y: v, v: -g})
m.initial(flight, {y: 1.0, v: 0.0})
m.functional("height", terminal=y)
system = m.build(native="later")
assert not system.native
"""


def in_a_process(tmp_path: Path, text: str, seconds: int) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run a script with a compiler that takes `seconds` before it begins, and does not optimise; return the result and
    the time after its last line.
    """
    real = cc.find_compiler()
    if real is None or os.name != "posix":
        pytest.skip("no compiler, or no shell")
    slow = tmp_path / "slow-cc"
    slow.write_text(
        f'#!/bin/sh\ncase "$*" in *--version*) exit 0;; esac\necho $$ >> {tmp_path}/begun\nsleep {seconds}\n'
        f'exec {" ".join(real)} "$@" -O0\n'
    )
    slow.chmod(0o700)
    script = tmp_path / "script.py"
    script.write_text(BUILD + text + "\nprint(time.time(), flush=True)\n")
    environment = os.environ | {"CC": str(slow), "DAE_HYBRID_CACHE": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-P", script], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done, time.time() - float(done.stdout.split()[-1])


def test_the_interpreter_ends_with_the_compiler_at_work(tmp_path: Path) -> None:
    text = f"while not os.path.exists({str(tmp_path / 'begun')!r}): time.sleep(0.01)"
    done, seconds = in_a_process(tmp_path, text, 300)
    assert seconds < 60
    assert not done.stderr
    assert not list(tmp_path.glob("dae_hybrid-*")), "scratch files are left"
    for pid in (tmp_path / "begun").read_text().split():
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_a_forked_process_compiles_for_itself(tmp_path: Path) -> None:
    text = """
child = os.fork()
if not child:
    assert dh.simulate(system, (0, 0.1)).functionals["height"] > 0
    os._exit(0 if system.wait(100) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert system.wait(100)
"""
    in_a_process(tmp_path, text, 1)


# -- progress ------------------------------------------------------------------------------------------------------


def test_progress_is_reported_part_by_part(models: Any, capsys: Any) -> None:
    parts: list[tuple[str, float]] = []
    models.ball().build(progress=lambda part, seconds: parts.append((part, seconds)))
    assert [part for part, _ in parts] == [
        "equations", "transitions", "start", "functions of the integrator", "C text and compiler",
        "functions at points",
    ]  # fmt: skip
    assert all(seconds >= 0 for _, seconds in parts)
    models.ball().build()
    assert not any(capsys.readouterr())
    models.ball().build(progress=True)
    out, err = capsys.readouterr()
    assert not out
    lines = err.splitlines()
    assert len(lines) == len(parts) + 1
    assert all(line.startswith("build 'ball': ") and line.endswith(" s") for line in lines[:-1])
    assert lines[-1].endswith("s in all")


def test_what_fails_ends_its_line(models: Any, capsys: Any) -> None:
    m = models.ball()
    m.differential("orphan")
    with pytest.raises(dh.ModelError, match="no equation"):
        m.build(progress=True)
    assert capsys.readouterr().err.endswith("failed\n")


@pytest.mark.parametrize("wrong", [{"native": "sooner"}, {"native": 1}, {"progress": "yes"}, {"progress": None}])
def test_other_values_are_refused(wrong: dict[str, Any], models: Any) -> None:
    with pytest.raises(dh.ModelError, match=next(iter(wrong))):
        models.ball().build(**wrong)


@pytest.mark.parametrize("timeout", ["a", float("nan"), -1.0])
def test_a_wait_takes_seconds(models: Any, timeout: Any) -> None:
    with pytest.raises(dh.OptionError, match="number of seconds"):
        models.decay().build(native=False).wait(timeout)
