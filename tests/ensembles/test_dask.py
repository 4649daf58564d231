"""Ensembles on a Dask cluster of processes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask
import deadly
import distributed
import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.ensembles import workers

SPAN = (0, 3)
K = np.linspace(0.5, 2.0, 60)


@pytest.fixture(scope="module")
def system() -> dh.HybridSystem:
    return deadly.decay()


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Two workers that are restarted when they end, however often."""
    settings = {"distributed.scheduler.allowed-failures": 0, "distributed.deploy.lost-worker-timeout": "1h"}
    with (
        dask.config.set(settings),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", silence_logs=50) as found,
    ):
        yield found


def test_results_are_those_of_a_batch(system: dh.HybridSystem) -> None:
    with distributed.LocalCluster(n_workers=2, processes=False, dashboard_address=":0", silence_logs=50) as own:
        for executor in (own, own.scheduler_address):
            found = dh.ensemble(system, SPAN, parameters={"k": K}, gradient="forward", executor=executor, chunk=20)
            expected = dh.batch(system, SPAN, parameters={"k": K}, gradient="forward")
            np.testing.assert_array_equal(found.values, expected.values)
            np.testing.assert_array_equal(found.gradients, expected.gradients)


@pytest.mark.operation
def test_results_are_those_of_a_batch_though_a_worker_is_killed(
    system: dh.HybridSystem, cluster: Any, tmp_path: Path
) -> None:
    call = {"parameters": {"k": K}, "gradient": "forward", "max_step": 1e-4}
    killed: list[int] = []

    def tell(state: Any) -> None:
        if state.done and not killed:
            killed.append(next(iter(cluster.workers.values())).pid)
            os.kill(killed[0], signal.SIGKILL)

    expected = dh.batch(system, SPAN, **call)
    found = dh.ensemble(
        system, SPAN, executor=cluster.scheduler_address, progress=tell, chunk=3, store=tmp_path / "store", **call
    )
    assert killed
    assert found.ok.all()
    np.testing.assert_array_equal(found.values, expected.values)
    np.testing.assert_array_equal(found.gradients, expected.gradients)
    with distributed.Client(cluster) as own:
        again = dh.ensemble(system, SPAN, executor=own, chunk=3, **call)
        np.testing.assert_array_equal(again.gradients, expected.gradients)
        with pytest.raises(dh.OptionError, match="a Dask cluster has its own"):
            dh.ensemble(system, SPAN, executor=own, workers=2, **call)


@pytest.mark.operation
def test_a_set_that_kills_workers_is_found(system: dh.HybridSystem, cluster: Any) -> None:
    k = K[:12].copy()
    k[7] = -0.1
    call = {"preconditioner": deadly.preconditioner, **deadly.OPTIONS}
    found = dh.ensemble(system, SPAN, parameters={"k": k}, executor=cluster, chunk=4, **call)
    assert [own.run for own in found.failures] == [7]
    assert isinstance(found.failures[0].error, dh.WorkerLostError)
    others = np.delete(np.arange(12), 7)
    np.testing.assert_array_equal(
        found.values[others], dh.batch(system, SPAN, parameters={"k": k[others]}, **call).values
    )


@pytest.mark.operation
def test_cancellation_reaches_workers_and_a_lost_scheduler_is_told(
    system: dh.HybridSystem, cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "SCHEDULER_SECONDS", 3.0)
    stop = dh.Cancellation()
    lasting = {"max_step": 1e-9, "max_steps": 10**12, "method": "erk"}

    def tell(state: Any) -> None:
        if state.seconds > 3.0:
            stop.cancel()

    found = dh.ensemble(
        system, SPAN, parameters={"k": K}, executor=cluster.scheduler_address, chunk=1, progress=tell,
        cancellation=stop, **lasting,
    )  # fmt: skip
    assert not found.done.any()
    call = {"parameters": {"k": K}, "max_step": 1e-4, "chunk": 1, "store": tmp_path / "store"}

    def close(state: Any) -> None:
        if state.done:
            cluster.close()

    with pytest.raises(dh.EnsembleError) as caught:
        dh.ensemble(system, SPAN, executor=cluster.scheduler_address, progress=close, **call)
    assert caught.value.ensemble is not None
    assert 0 < caught.value.ensemble.done.sum() < 60
    assert dh.ensemble(system, SPAN, **call).complete


def test_a_scheduler_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one on a machine that is stopped: each request would wait for ever."""
    asked: list[str] = []

    def hang(self: Any, *_: Any, **__: Any) -> None:
        asked.append("once")
        threading.Event().wait()

    monkeypatch.setattr(workers, "SCHEDULER_SECONDS", 0.5)
    with distributed.LocalCluster(n_workers=1, processes=False, dashboard_address=":0", silence_logs=50) as own:
        with distributed.Client(own) as client:
            team = workers.DaskWorkers(client)
            with monkeypatch.context() as patch:
                patch.setattr(distributed.Client, "run", hang)
                patch.setattr(distributed.Client, "nthreads", hang)
                team.cancel("token")
                with pytest.raises(dh.EnsembleError, match="is lost: no answer for"):
                    team.check()
        with pytest.raises(dh.EnsembleError, match="closed"):
            workers.DaskWorkers(client)
    assert len(asked) == 2
