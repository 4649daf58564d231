"""A running service, and models for it: ``with running("em_hysteresis") as service: httpx.get(service.url)``.

`running` starts a process of its own, `serving` a thread of this process, where tests change settings as they like.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from subprocess import PIPE, Popen, TimeoutExpired
from tempfile import TemporaryFile
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx
import psutil

import dae_hybrid as dh

if TYPE_CHECKING:
    import pytest

    from dae_hybrid.service.app import Service

#: port 0 lets the system choose
CODE = """
from pathlib import PosixPath, WindowsPath
from dae_hybrid.service.models import served_models
from dae_hybrid.service.server import serve
from dae_hybrid.service.settings import Settings
serve(Settings(**{settings!r}), served_models({models!r}))
"""
#: body of a run of `decay` that takes much longer than any test
SLOW: dict[str, Any] = {"t_span": [0, 1], "max_step": 1e-9, "max_steps": 10**12, "points": 2}


class RunningService(NamedTuple):
    """A service in a process of its own."""

    url: str
    process: Popen[bytes]
    log: Any

    def workers(self) -> list[psutil.Process]:
        """The worker processes."""
        return psutil.Process(self.process.pid).children()

    def text(self) -> str:
        """The log so far."""
        self.log.seek(0)
        return str(self.log.read())

    def stop(self, how: int = signal.SIGTERM, seconds: float = 30) -> int:
        """Send a signal, and wait for the end; return the exit code."""
        self.process.send_signal(how)
        return self.process.wait(seconds)


@contextmanager
def running(*models: str, **settings: Any) -> Iterator[RunningService]:
    """Start a service on a free port of this machine, and stop it at the end."""
    code = CODE.format(settings={"port": 0, "workers": 1, **settings}, models=models)
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    with TemporaryFile("w+") as log:
        process = Popen([sys.executable, "-c", code], stdin=PIPE, stderr=log, env={**os.environ, "PYTHONPATH": path})
        try:
            yield RunningService(_address(process, log), process, log)
        finally:
            if process.poll() is None:
                process.terminate()
                with suppress(TimeoutExpired):
                    process.wait(20)
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


def _address(process: Popen[bytes], log: Any) -> str:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        log.seek(0)
        text = log.read()
        if found := re.search(r'running on (http://[^"]+)"', text):
            assert httpx.get(f"{found[1]}/readyz", timeout=60).status_code == 200
            return found[1]
        if process.poll() is not None:
            raise RuntimeError(f"The service has ended: {text}")
        time.sleep(0.05)
    raise TimeoutError(text)


# -- in this process -------------------------------------------------------------------------------------


class LocalService(NamedTuple):
    """A service in a thread of this process, with worker processes."""

    url: str
    app: Any

    @property
    def service(self) -> Service:
        """What its routes share."""
        found: Service = self.app.state.service
        return found

    @property
    def port(self) -> int:
        """The port at which it listens."""
        return int(self.url.rpartition(":")[2])

    def workers(self) -> list[psutil.Process]:
        """The worker processes of requests."""
        return [psutil.Process(worker.pid) for worker in self.service.pool._workers if worker.pid is not None]

    def change(self, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
        """Change settings until the end of a test."""
        from dae_hybrid.service.evaluation import Limits

        own = self.service
        for name, value in settings.items():
            monkeypatch.setattr(own.settings, name, value)
        for name, setting in (("seconds", "max_seconds"), ("memory", "max_memory"), ("queue", "queue")):
            monkeypatch.setattr(own.pool, name, getattr(own.settings, setting))
        monkeypatch.setattr(own, "limits", Limits(own.settings.max_outputs, own.settings.max_steps))


@contextmanager
def serving(*models: str, **settings: Any) -> Iterator[LocalService]:
    """Serve on a free port of this machine, from a thread of this process."""
    import uvicorn

    from dae_hybrid.service import server
    from dae_hybrid.service.app import create_app
    from dae_hybrid.service.models import served_models
    from dae_hybrid.service.settings import Settings

    class Changeable(Settings):
        __setattr__ = object.__setattr__
        __delattr__ = object.__delattr__

    own = Changeable(**{"port": 0, "workers": 1, **settings})
    app = create_app(own, served_models(models))
    config = uvicorn.Config(
        app, http=server._protocol(own), ws="none", lifespan="on", log_config=None, access_log=False,
        server_header=False, timeout_graceful_shutdown=round(own.grace_seconds),
    )  # fmt: skip
    with socket.create_server((own.host, own.port), backlog=own.max_connections) as listening:
        uvicorn_server = server._Server(config)
        thread = Thread(target=uvicorn_server.run, args=([listening],))
        thread.start()
        while not uvicorn_server.started:
            assert thread.is_alive(), "the service has ended"
            time.sleep(0.01)
        try:
            yield LocalService(f"http://{own.host}:{listening.getsockname()[1]}", app)
        finally:
            uvicorn_server.should_exit = True
            thread.join()


@contextmanager
def logged() -> Iterator[list[dict[str, Any]]]:
    """Lines of the log of services in this process."""
    import json
    import logging

    from dae_hybrid.service.log import LOG, JsonFormatter

    found: list[dict[str, Any]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(json.loads(self.format(record)))

    handler, level = Keep(), LOG.level
    handler.setFormatter(JsonFormatter())
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    try:
        yield found
    finally:
        LOG.setLevel(level)
        LOG.removeHandler(handler)


def jobs_in_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Carry out jobs, and requests, in threads of this process, whose start costs nothing, not in worker processes.

    Returns a function that sets the number of chunks of an ensemble after which chunks wait for their cancellation.
    """
    from dae_hybrid.ensembles import worker
    from dae_hybrid.ensembles.workers import ThreadWorkers, open_workers

    most = float("inf")

    class Threads(ThreadWorkers):
        n_chunks = 0

        def submit(self, work: Any, recipe: Any, *arguments: Any) -> Any:
            return self._pool.submit(self._run, work, recipe, *arguments)

        def _run(self, work: Any, *arguments: Any) -> Any:
            if work is worker.run_chunk:
                self.n_chunks += 1
                if self.n_chunks > most:
                    while not worker.cancellation_of(arguments[-1]).is_cancelled:
                        time.sleep(0.005)
            return work(*arguments)

    class Here:
        is_running, pid = True, None

        def run(self, work: Any, *arguments: Any) -> Any:
            return work(*arguments)

        def cancel(self, token: str) -> None:
            worker.cancel(token)

        def kill(self) -> None:
            """Do nothing."""

    def opened(executor: Any, workers: int | None, folder: Path | None) -> Any:
        return Threads(workers or 1) if executor == "processes" else open_workers(executor, workers, folder)

    def hold(after: float) -> None:
        nonlocal most
        most = after

    monkeypatch.setattr("dae_hybrid.ensembles.ensemble.open_workers", opened)
    for module in ("job_runs", "pool"):
        monkeypatch.setattr(f"dae_hybrid.service.{module}.WorkerProcess", Here)
    return hold


def computing(processes: Callable[[], list[psutil.Process]]) -> Callable[[], bool]:
    """Whether one of these processes computes: it has loaded compiled code, and has computed for 0.5 s since."""
    loaded: dict[int, float] = {}

    def is_computing() -> bool:
        for own in processes():
            with suppress(psutil.Error, OSError):
                seconds = own.cpu_times().user
                if own.pid not in loaded and "dae_hybrid-scratch" in Path(f"/proc/{own.pid}/maps").read_text():
                    loaded[own.pid] = seconds
                if own.pid in loaded and seconds > loaded[own.pid] + 0.5:
                    return True
        return False

    return is_computing


def times_of_results(runs: dh.Ensemble) -> dict[Path, int]:
    """Times of the files of an ensemble's results whose chunks are done."""
    folder, done = runs.path / "results.zarr" / "values" / "c", set(runs._table.blocks_done())
    return {
        file: file.stat().st_mtime_ns
        for file in folder.rglob("*")
        if file.is_file() and int(file.relative_to(folder).parts[0]) in done
    }


# -- models ----------------------------------------------------------------------------------------------


def decay() -> dh.HybridModel:
    """y' = -k y from y0, with the unit of a rate and bounds that no file states."""
    m = dh.HybridModel("decay")
    k, y0 = m.parameter("k", 0.7, unit="1/s", description="rate"), m.parameter("y0", 2.0)
    y = m.differential("y", unit="m")
    m.initial(m.mode("run", ode={y: -k * y}), {y: y0})
    m.functional("end", terminal=y)
    m.functional("area", integrand=y)
    return m


def slower() -> dh.HybridModel:
    """Return another model with the names of `decay`."""
    m = dh.HybridModel("decay")
    k, y0 = m.parameter("k", 0.7), m.parameter("y0", 2.0)
    y = m.differential("y")
    m.initial(m.mode("run", ode={y: -k * y / 2}), {y: y0})
    m.functional("end", terminal=y)
    m.functional("area", integrand=y)
    return m


def grazing() -> dh.HybridModel:
    """y = p - (t - 1)^2 touches the threshold 1 at t = 1 if p = 1."""
    m = dh.HybridModel("grazing")
    p, y = m.parameter("p", 1.0), m.differential("y")
    count = m.differential("count")
    run = m.mode("run", ode={y: -2 * (m.time - 1), count: 0})
    m.transition(run, run, guard=y - 1, direction="rising", reset={count: count + 1}, name="touch")
    m.initial(run, {y: p - 1, count: 0})
    m.functional("count", terminal=count)
    return m


def chain() -> dh.HybridModel:
    """Three masses with stiffnesses in one vector, and the largest displacement of the first as memory."""
    m = dh.HybridModel("chain")
    k = m.parameter("k", [1.0, 2.0, 0.5], unit="N/m", description="stiffnesses")
    x, v = m.differential("x", size=3, unit="m"), m.differential("v", size=3)
    run = m.mode("run", ode={x: v, v: -k * x})
    peak = m.memory("peak", initial=0.0)
    m.transition(run, run, guard=v[0], direction="falling", memory={peak: x[0]}, name="turn")
    m.initial(run, {x: [0.0, 1.0, 2.0], v: [1.0, 0.0, 0.0]})
    m.functional("ends", terminal=x)
    return m


def fails() -> dh.HybridModel:
    """Return a model that cannot be built."""
    m = dh.HybridModel("breaks at build")
    m.differential("y")
    return m
