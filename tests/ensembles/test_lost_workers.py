"""Workers that are killed: nothing is lost, and parameters that kill them are found."""

from __future__ import annotations

import os
import signal
import subprocess
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from subprocess import PIPE
from typing import Any

import deadly
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.ensembles import process, worker, workers
from dae_hybrid.errors import WorkerLostError

SPAN = (0, 3)
COUNT, KILLERS = 24, (5,)
DEADLY = {"preconditioner": deadly.preconditioner, **deadly.OPTIONS}


def parameters() -> dict[str, np.ndarray]:
    k = np.linspace(0.5, 2.0, COUNT)
    k[list(KILLERS)] = -0.1
    return {"k": k}


def harmless() -> dict[str, np.ndarray]:
    return {"k": np.delete(parameters()["k"], KILLERS)}


@pytest.fixture(scope="module")
def system() -> dh.HybridSystem:
    return deadly.decay()


@pytest.fixture(scope="module")
def expected(system: dh.HybridSystem) -> np.ndarray:
    """Values, NaN for the runs that kill."""
    values = np.full((COUNT, 1), np.nan)
    values[np.delete(np.arange(COUNT), KILLERS)] = dh.batch(system, SPAN, parameters=harmless(), **DEADLY).values
    return values


def check(found: dh.Ensemble, expected: np.ndarray) -> None:
    assert found.complete
    assert [own.run for own in found.failures] == list(KILLERS)
    for own in found.failures:
        assert isinstance(own.error, dh.WorkerLostError)
        assert own.parameters == {"k": -0.1}
    np.testing.assert_array_equal(found.values, expected)


@pytest.mark.operation
def test_a_set_that_kills_its_process_is_found_and_runs_again_if_asked(
    system: dh.HybridSystem, expected: np.ndarray, tmp_path: Path, monkeypatch
) -> None:
    lost = []
    found = dh.ensemble(
        system, SPAN, parameters=parameters(), executor="processes", workers=2, chunk=8, store=tmp_path / "store",
        progress=lambda state: lost.append(state.lost_workers), **DEADLY,
    )  # fmt: skip
    check(found, expected)
    assert "SIGKILL" in found.failures[0].error.message
    assert lost[-1] == 2 + 3  # twice by eight runs, then by four, two, and one
    check(dh.Ensemble.open(tmp_path / "store"), expected)
    call = {"parameters": parameters(), "store": tmp_path / "store", **DEADLY}
    check(dh.ensemble(system, SPAN, **call), expected)
    monkeypatch.setattr(deadly.os, "kill", lambda *_: None)  # a machine on which nothing dies
    again = dh.ensemble(system, SPAN, retry_lost=True, **call)
    assert again.ok.all()
    assert np.isfinite(again.values).all()
    assert not again.failures


@pytest.mark.operation
def test_a_set_that_kills_a_pool_is_found(system: dh.HybridSystem, expected: np.ndarray) -> None:
    """The chunk to blame is unknown, because the pool breaks with all that it holds."""
    pool = partial(ProcessPoolExecutor, 2, get_context("forkserver"))
    given = {"k": parameters()["k"][:12]}
    check(dh.ensemble(system, SPAN, parameters=given, executor=pool, chunk=4, **DEADLY), expected[:12])


def test_an_executor_that_never_works_is_refused(system: dh.HybridSystem, tmp_path: Path) -> None:
    """No set of parameters is to blame, in the store neither."""
    pool = partial(ProcessPoolExecutor, 1, get_context("forkserver"), deadly.unlicensed)
    call = {"parameters": {"k": [0.5, 1.0]}, "chunk": 1, "store": tmp_path / "store", **DEADLY}
    with pytest.raises(dh.EnsembleError, match="breaks before it runs a chunk: BrokenProcessPool") as caught:
        dh.ensemble(system, SPAN, executor=pool, **call)
    assert caught.value.ensemble is not None
    assert caught.value.ensemble.statistics["lost"] == 0
    assert dh.ensemble(system, SPAN, **call).ok.all()


def test_a_worker_without_memory_counts_as_lost(system: dh.HybridSystem, monkeypatch) -> None:
    """A chunk runs again; a run that never has enough memory is given up."""
    carry_out, short, reports = worker.carry_out, [3], []

    def limited(case: Any, given: np.ndarray, *others: Any) -> Any:
        if short[0] or (given[:, 0] > 1.9).any():
            short[0] = max(0, short[0] - 1)
            raise MemoryError("Unable to allocate 1 GiB")
        return carry_out(case, given, *others)

    monkeypatch.setattr(worker, "carry_out", limited)
    call = {"parameters": harmless(), "chunk": 8, "workers": 1, **DEADLY}
    found = dh.ensemble(system, SPAN, progress=reports.append, **call)
    assert reports[-1].lost_workers > 3
    assert [own.run for own in found.failures] == np.flatnonzero(harmless()["k"] > 1.9).tolist()
    for own in found.failures:
        assert isinstance(own.error, dh.WorkerLostError)
        assert "Unable to allocate" in own.error.message


def test_an_executor_that_cannot_be_replaced_is_given_up(system: dh.HybridSystem, tmp_path: Path) -> None:
    call = {"parameters": parameters(), "chunk": 4, "store": tmp_path / "store", **DEADLY}
    with (
        ProcessPoolExecutor(1, get_context("spawn")) as pool,
        pytest.raises(dh.EnsembleError, match="a function that creates") as caught,
    ):
        dh.ensemble(system, SPAN, executor=pool, **call)
    assert caught.value.ensemble is not None
    assert 0 < caught.value.ensemble.done.sum() < COUNT


def test_a_process_killed_by_others_costs_one_chunk(system: dh.HybridSystem, monkeypatch) -> None:
    """Every process is killed once, while it runs a chunk."""
    started: list[process.WorkerProcess] = []
    run = process.WorkerProcess.run

    def killed_once(self: process.WorkerProcess, *task: object) -> object:
        if self._process is not None and self not in started:
            started.append(self)
            os.kill(self._process.pid, signal.SIGKILL)
        return run(self, *task)

    call = {"parameters": harmless(), "chunk": 4, **DEADLY}
    whole = dh.ensemble(system, SPAN, **call)
    lost: list[int] = []
    with monkeypatch.context() as patch:
        patch.setattr(workers.WorkerProcess, "run", killed_once)
        found = dh.ensemble(
            system,
            SPAN,
            executor="processes",
            workers=1,
            progress=lambda state: lost.append(state.lost_workers),
            **call,
        )
    assert started
    assert found.complete
    assert not found.failures
    np.testing.assert_array_equal(found.values, whole.values)


def test_processes_that_cannot_start_are_told(system: dh.HybridSystem, monkeypatch) -> None:
    monkeypatch.setattr(process, "COMMAND", [process.sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(dh.EnsembleError, match="could not be started: it ended with exit code 3"):
        dh.ensemble(system, SPAN, parameters=harmless(), executor="processes")


def test_processes_end_with_their_client(system: dh.HybridSystem) -> None:
    own = process.WorkerProcess()
    assert own.run(os.getpid) != os.getpid()
    child = own._process
    assert child is not None
    assert child.stdin is not None
    child.stdin.close()  # as the system does when a client is killed
    assert child.wait(10.0) == 0
    own.kill()


def test_a_process_whose_client_is_killed_while_it_starts_is_silent() -> None:
    with subprocess.Popen(process.COMMAND, stdin=PIPE, stdout=PIPE, stderr=PIPE) as own:
        own.stdout.close()
        assert own.stderr.read() == b""
        assert own.wait(30.0) == 0


def test_what_a_worker_prints_is_no_result() -> None:
    own = process.WorkerProcess()
    assert own.run(deadly.noisy) == "result"
    own.kill()


class KilledOnTheWay:
    """The stream of a worker that another thread kills while its answer is read."""

    def __init__(self, own: process.WorkerProcess, stream: Any) -> None:
        self.own, self.stream, self.close = own, stream, stream.close

    def readline(self) -> bytes:
        return self.read(-1)

    def read(self, size: int) -> bytes:
        self.own.kill()
        return self.stream.read(size)


def test_a_worker_that_is_killed_while_its_answer_is_read_is_lost() -> None:
    """Reading from a stream that is closed meanwhile raises ValueError, which the service took for its own failure."""
    own = process.WorkerProcess()
    assert own.run(abs, -1) == 1
    running: Any = own._process
    running.stdout = KilledOnTheWay(own, running.stdout)
    with pytest.raises(WorkerLostError, match="SIGKILL"):
        own.run(abs, -2)
    assert not own.is_running
