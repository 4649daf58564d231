"""Workers of an ensemble: threads, processes, a Dask cluster, or any executor of `concurrent.futures`."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import LifoQueue
from threading import Event, Thread
from typing import Any, Protocol, Self, cast

from dae_hybrid.codegen.compiler import cores
from dae_hybrid.ensembles import worker
from dae_hybrid.ensembles.chunk_table import MAX_LOSSES
from dae_hybrid.ensembles.process import WorkerProcess
from dae_hybrid.ensembles.worker import Recipe
from dae_hybrid.errors import EnsembleError, OptionError, WorkerLostError
from dae_hybrid.numeric_input import shown
from dae_hybrid.options import positive_integer
from dae_hybrid.trajectory.datasets import optional

#: an executor, a function that creates one, "threads", "processes", or the address of a Dask scheduler
type ExecutorLike = Executor | Callable[[], Executor] | str | Any
#: seconds between looks at the file that cancels chunks in other processes
POLL_SECONDS = 0.1
#: seconds to wait for a scheduler, and for workers of a cluster that has none
SCHEDULER_SECONDS, WORKERLESS_SECONDS = 30.0, 120.0
REMEDY = "With store=, the same call continues from the chunks that are done, on any executor."
LEGAL = (
    "'threads', 'processes', the address of a Dask scheduler such as 'tcp://host:8786', a distributed.Client or "
    "cluster, a concurrent.futures.Executor, or a function that creates one"
)


class Workers(Protocol):
    """Carries out calls of functions of `worker`, each with a `Recipe` first and a token last.

    `is_exact` says that a worker is lost with one chunk only, which is then the cause.
    """

    is_exact: bool
    is_local: bool  # threads of this process
    width: int  # number of chunks that run at a time

    def submit(self, work: Callable[..., Any], recipe: Recipe, *arguments: Any) -> Future[Any]:
        """Call a function on a worker."""

    def cancel(self, token: str) -> None:
        """Cancel running chunks."""

    def repair(self) -> None:
        """Replace an executor that a lost worker has broken."""

    def check(self) -> None:
        """Raise an `EnsembleError` if nothing will run any more."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class ThreadWorkers:
    """Threads of this process."""

    is_exact, is_local = True, True

    def __init__(self, width: int) -> None:
        self.width = width
        self._pool = ThreadPoolExecutor(width, "ensemble")

    def submit(self, work: Callable[..., Any], recipe: Recipe, *arguments: Any) -> Future[Any]:
        """See `Workers`."""
        return self._pool.submit(work, recipe, *arguments)

    def cancel(self, token: str) -> None:
        """See `Workers`."""
        worker.cancel(token)

    def repair(self) -> None:
        """See `Workers`."""

    def check(self) -> None:
        """See `Workers`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


class ProcessWorkers(ThreadWorkers):
    """Processes of this machine; a thread of this process waits for each."""

    is_local = False

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self._processes = [WorkerProcess() for _ in range(width)]
        self._idle: LifoQueue[WorkerProcess] = LifoQueue()
        for process in self._processes:
            self._idle.put(process)

    def submit(self, work: Callable[..., Any], recipe: Recipe, *arguments: Any) -> Future[Any]:
        """See `Workers`."""
        return self._pool.submit(self._run, work, recipe, *arguments)

    def _run(self, *task: Any) -> Any:
        process = self._idle.get()
        try:
            return process.run(*task)
        finally:
            self._idle.put(process)

    def cancel(self, token: str) -> None:
        """See `Workers`."""
        for process in self._processes:
            process.cancel(token)

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in self._processes:
            process.kill()
        self._pool.shutdown()


class ExecutorWorkers:
    """Any executor. A file whose creation cancels running chunks must be visible to its processes."""

    is_exact = False

    def __init__(self, executor: Executor | Callable[[], Executor], width: int | None, folder: Path | None) -> None:
        self._make = None if isinstance(executor, Executor) else executor
        self._executor = executor if isinstance(executor, Executor) else self._made()
        self.is_local = isinstance(self._executor, ThreadPoolExecutor)
        self.width = width or int(getattr(self._executor, "_max_workers", 0) or cores())
        self._path = (folder or Path(tempfile.gettempdir())) / f".cancel-{uuid.uuid4().hex}"

    def _made(self) -> Executor:
        try:
            found = cast(Callable[[], Executor], self._make)()
        except Exception as reason:
            raise EnsembleError(
                f"The function that creates the executor has failed: {type(reason).__name__}: {reason}.",
                remedy="It is called without arguments.",
            ) from reason
        if not isinstance(found, Executor):
            raise OptionError(f"executor= must create a concurrent.futures.Executor, got {shown(found)}.")
        return found

    def submit(self, work: Callable[..., Any], recipe: Recipe, *arguments: Any) -> Future[Any]:
        """See `Workers`."""
        try:
            if self.is_local:
                return self._executor.submit(work, recipe, *arguments)
            return self._executor.submit(_watched, str(self._path), work, recipe, *arguments)
        except BrokenExecutor as reason:
            return _failed(reason)
        except RuntimeError as reason:
            raise EnsembleError(f"The executor does not take work: {reason}.") from reason

    def cancel(self, token: str) -> None:
        """See `Workers`."""
        if self.is_local:
            worker.cancel(token)
        else:
            with suppress(OSError):  # on a full disk chunks are not stopped, but their results are not used
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._path.touch()

    def repair(self) -> None:
        """See `Workers`."""
        if self._make is None:
            raise EnsembleError(
                "A worker was lost, and the executor with it.",
                remedy="Pass a function that creates the executor, such as lambda: ProcessPoolExecutor(4), so that it "
                "can be replaced; or executor='processes'.",
            )
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._executor = self._made()

    def check(self) -> None:
        """See `Workers`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._make is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def _watched(path: str, work: Callable[..., Any], recipe: Recipe, *arguments: Any) -> Any:
    """Call a function, and cancel its last argument, a token, when a file appears."""
    ended = Event()

    def look() -> None:
        while not ended.wait(POLL_SECONDS):
            if os.path.exists(path):
                worker.cancel(arguments[-1])
                return

    Thread(target=look, daemon=True).start()
    try:
        return work(recipe, *arguments)
    finally:
        ended.set()


def _failed(reason: Exception) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(reason)
    return future


class DaskWorkers:
    """Workers of a Dask cluster, which replaces those that it loses."""

    is_exact, is_local = False, False

    def __init__(self, cluster: Any) -> None:
        distributed = optional("distributed", "An ensemble on a Dask cluster", "ensemble")
        self._is_own = not isinstance(cluster, distributed.Client)
        try:
            self._client = (
                distributed.Client(cluster, timeout=SCHEDULER_SECONDS, set_as_default=False)  # not for other libraries
                if self._is_own
                else cluster
            )
        except (OSError, TimeoutError, ValueError, RuntimeError) as reason:
            raise EnsembleError(f"There is no Dask scheduler at {cluster!r}: {reason}.") from reason
        if self._client.status == "closed":
            raise EnsembleError("The distributed.Client is closed.")
        if self._client.asynchronous:
            raise OptionError("A distributed.Client must not be asynchronous.", remedy="Pass its scheduler's address.")
        self._recipes: dict[str, Any] = {}
        self._patience = SCHEDULER_SECONDS
        self._seen, self.width = time.monotonic(), 1
        self.check()

    def submit(self, work: Callable[..., Any], recipe: Recipe, *arguments: Any) -> Future[Any]:
        """See `Workers`."""
        if recipe.key not in self._recipes:  # a task: unlike scattered data, it is computed again if workers are lost
            self._recipes[recipe.key] = self._client.submit(_same, recipe, pure=False)
        try:
            future = self._client.submit(work, self._recipes[recipe.key], *arguments, pure=False)
        except Exception as reason:
            raise EnsembleError(f"The Dask cluster does not take work: {reason}.") from reason
        return cast(Future[Any], future)

    def cancel(self, token: str) -> None:
        """See `Workers`."""
        with suppress(Exception):  # of a lost connection
            self._asked(lambda: self._client.run(worker.cancel, token))

    def _asked(self, request: Callable[[], Any]) -> Any:
        """Return the answer of the scheduler, which is waited for in vain once only."""
        answer: Future[Any] = Future()

        def ask() -> None:
            try:
                answer.set_result(request())
            except BaseException as reason:
                answer.set_exception(reason)

        Thread(target=ask, daemon=True).start()
        try:
            return answer.result(self._patience)
        except TimeoutError as reason:
            if answer.done():
                raise
            self._patience = POLL_SECONDS
            raise TimeoutError(f"no answer for {SCHEDULER_SECONDS:.0f} s") from reason

    def repair(self) -> None:
        """See `Workers`."""

    def check(self) -> None:
        """See `Workers`."""
        try:
            threads = sum(self._asked(self._client.nthreads).values())
        except Exception as reason:
            raise EnsembleError(f"The connection to the Dask scheduler is lost: {reason}.", remedy=REMEDY) from reason
        self.width = threads or 1
        if threads:
            self._seen = time.monotonic()
        elif time.monotonic() - self._seen > WORKERLESS_SECONDS:
            raise EnsembleError(f"The Dask cluster has had no workers for {WORKERLESS_SECONDS:.0f} s.", remedy=REMEDY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._recipes.clear()
        if self._is_own:
            with suppress(TimeoutError):
                self._asked(self._client.close)


def _same(recipe: Recipe) -> Recipe:
    return recipe


def losses(error: BaseException) -> int:
    """Number of workers lost with a chunk according to its exception; a worker without memory counts as lost."""
    if type(error).__name__ == "KilledWorker":  # Dask has tried several
        return MAX_LOSSES
    return int(isinstance(error, WorkerLostError | BrokenExecutor | MemoryError))


def is_disconnected(error: BaseException) -> bool:
    """Whether an exception of a chunk says that its executor has given it up."""
    return isinstance(error, CancelledError) or type(error).__name__ in ("CancelledError", "FutureCancelledError")


def open_workers(executor: ExecutorLike | None, workers: int | None, folder: Path | None) -> Workers:
    """Return workers of an executor; `folder` is one that all processes can read.

    Raises
    ------
    OptionError
        `executor` is none of the legal values, or `workers` is not a positive integer.
    EnsembleError
        There is no scheduler at an address.
    """
    workers = None if workers is None else positive_integer("workers", workers)
    if executor is None or executor == "threads":
        return ThreadWorkers(workers or cores())
    if executor == "processes":
        return ProcessWorkers(workers or cores())
    distributed = sys.modules.get("distributed")  # imported if one of its objects is passed
    kinds = () if distributed is None else (distributed.Client, distributed.deploy.Cluster)
    if isinstance(executor, kinds) or (isinstance(executor, str) and "://" in executor):
        if workers is not None:
            raise OptionError("workers= is for threads, processes and executors; a Dask cluster has its own.")
        return DaskWorkers(executor)
    if isinstance(executor, Executor) or (callable(executor) and not isinstance(executor, type)):
        return ExecutorWorkers(executor, workers, folder)
    raise OptionError(f"executor must be {LEGAL}, got {shown(executor)}.")
