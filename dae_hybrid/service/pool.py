"""A pool of worker processes that can be killed, and a bounded queue before it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import psutil

from dae_hybrid.ensembles.process import WorkerProcess
from dae_hybrid.errors import DaeHybridError, LimitError, OverloadError, ServiceError
from dae_hybrid.service.log import LOG

#: interval between looks at a running worker, in seconds
LOOK_SECONDS = 0.05
#: time that a cancelled run has to end by itself, in seconds
CANCEL_SECONDS = 1.0
#: time before a refusal: clients that try again at once would take the time of the workers
REFUSAL_SECONDS = 0.25
#: time before another attempt to start a worker, in seconds
RESTART_SECONDS = 1.0
#: share of the limit of memory above which an idle worker is replaced
TIRED = 0.5
#: weight of the last request in the typical time of requests
SMOOTHING = 0.1


class AbandonedError(ServiceError):
    """The client has closed the connection."""


class Pool:
    """Worker processes, each of which carries out one request at a time.

    Parameters
    ----------
    width : int
        Number of processes.
    queue : int
        Number of requests that may wait.
    seconds, memory : float, int
        Limits of time and memory (bytes) per request.
    prepare : callable
        ``prepare(worker)`` makes a fresh process ready, on a thread.
    """

    def __init__(
        self, width: int, queue: int, seconds: float, memory: int, prepare: Callable[[WorkerProcess], Any]
    ) -> None:
        self.width, self.queue, self.seconds, self.memory = width, queue, seconds, memory
        self.waiting = self.running = self.replaced = 0
        self.busy_seconds, self._typical_seconds = 0.0, 0.1
        self._prepare = prepare
        self._idle: asyncio.Queue[WorkerProcess] = asyncio.Queue()
        self._workers = [WorkerProcess() for _ in range(width)]
        self._threads = ThreadPoolExecutor(2 * width, thread_name_prefix="worker")
        self._replacements: set[asyncio.Future[None]] = set()
        self.ready = 0

    async def start(self) -> Any:
        """Start all processes; return what the first `prepare` returned."""
        found = await asyncio.gather(*(self._made_ready(worker) for worker in self._workers))
        return found[0]

    async def _made_ready(self, worker: WorkerProcess) -> Any:
        """Start a process, if it does not run, and prepare it."""
        found = await asyncio.get_running_loop().run_in_executor(self._threads, self._prepare, worker)
        self.ready += 1
        self._idle.put_nowait(worker)
        return found

    async def _replaced(self, worker: WorkerProcess) -> None:
        """End a process and start another one, until it succeeds."""
        self.ready -= 1
        self.replaced += 1
        while True:
            worker.kill()
            try:
                await self._made_ready(worker)
                return
            except DaeHybridError as error:
                LOG.error(f"a worker cannot be started: {error}")
                await asyncio.sleep(RESTART_SECONDS)

    async def run(
        self, abandoned: Callable[[], Awaitable[Any]] | None, function: Callable[..., Any], *arguments: Any
    ) -> Any:
        """Call ``function(*arguments, token)`` in a worker.

        Parameters
        ----------
        abandoned : callable, optional
            Returns an awaitable that completes when the result is no longer needed.
        function : callable
            A function of a module. It returns soon after its token was cancelled.

        Raises
        ------
        OverloadError
            The queue is full.
        LimitError
            The limit of time or of memory was exceeded.
        WorkerLostError
            The process has ended for another reason.
        AbandonedError
            What `abandoned` returned has completed.
        """
        if self.waiting >= self.queue:
            await asyncio.sleep(REFUSAL_SECONDS)
        if self.waiting >= self.queue:
            error = OverloadError(f"{self.waiting} requests wait for {self.width} workers.", remedy="Try again later.")
            error.retry_after = max(1, round(self.waiting * self._typical_seconds / self.width))
            raise error
        gone = None if abandoned is None else asyncio.ensure_future(abandoned())
        try:
            worker = await self._worker(gone)
            return await self._supervised(worker, gone, function, arguments)
        finally:
            if gone is not None:
                gone.cancel()

    async def _worker(self, gone: asyncio.Future[Any] | None) -> WorkerProcess:
        """An idle worker, in order of arrival."""
        if not self.waiting:
            with suppress(asyncio.QueueEmpty):
                return self._idle.get_nowait()
        self.waiting += 1
        asked = asyncio.ensure_future(self._idle.get())
        try:
            await asyncio.wait({asked} if gone is None else {asked, gone}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if not asked.cancel() and not asked.cancelled():  # a worker that was handed over in the meantime
                self._idle.put_nowait(asked.result())
            raise
        finally:
            self.waiting -= 1
        if asked.done():
            return asked.result()
        asked.cancel()
        raise AbandonedError("The client has closed the connection.")

    async def _supervised(
        self, worker: WorkerProcess, gone: asyncio.Future[Any] | None, function: Any, arguments: tuple[Any, ...]
    ) -> Any:
        token, begin, loop = uuid.uuid4().hex, time.monotonic(), asyncio.get_running_loop()
        answer = loop.run_in_executor(self._threads, partial(worker.run, function, *arguments, token))
        self.running += 1
        try:
            stopped = await self._stopped(answer, worker, gone, token)
            if stopped is not None:
                with suppress(DaeHybridError):
                    answer.result()
                raise stopped
            return answer.result()
        except asyncio.CancelledError:  # the service ends
            worker.kill()
            raise
        finally:
            self.running -= 1
            seconds = time.monotonic() - begin
            self.busy_seconds += seconds
            self._typical_seconds += SMOOTHING * (seconds - self._typical_seconds)
            if worker.is_running and memory_of(worker) < TIRED * self.memory:
                self._idle.put_nowait(worker)
            else:
                LOG.warning(f"a worker is replaced: it {'needs much memory' if worker.is_running else 'has ended'}")
                task = asyncio.ensure_future(self._replaced(worker))
                self._replacements.add(task)
                task.add_done_callback(self._replacements.discard)

    async def _stopped(
        self, answer: asyncio.Future[Any], worker: WorkerProcess, gone: asyncio.Future[Any] | None, token: str
    ) -> ServiceError | None:
        """Wait for an answer; return the reason if the run had to be stopped."""
        deadline = time.monotonic() + self.seconds
        waits = {answer} if gone is None else {answer, gone}
        while True:
            await asyncio.wait(waits, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return None
            is_large = memory_of(worker) > self.memory
            if is_large:
                reason: ServiceError = LimitError(
                    f"The request needs more than {self.memory / 1e6:.0f} MB of memory.",
                    remedy="Ask for fewer outputs, or a shorter interval.",
                )
            elif time.monotonic() > deadline:
                reason = LimitError(
                    f"The request takes more than {self.seconds:g} s.",
                    remedy="Shorten the interval, loosen the tolerances, or submit a job.",
                )
            elif gone is not None and gone.done():
                reason = AbandonedError("The client has closed the connection.")
            else:
                continue
            break
        worker.cancel(token)
        await asyncio.wait({answer}, timeout=0.0 if is_large else CANCEL_SECONDS)
        if not answer.done():
            LOG.warning(f"a worker is killed, its run does not stop: {reason}")
            worker.kill()
            await asyncio.wait({answer})
        return reason

    def close(self) -> None:
        """End all processes."""
        for task in self._replacements:
            task.cancel()
        for worker in self._workers:
            worker.kill()
        self._threads.shutdown(wait=False, cancel_futures=True)


def memory_of(worker: WorkerProcess) -> int:
    """Resident memory of a worker in bytes, 0 if it does not run."""
    with suppress(psutil.Error):
        if worker.pid is not None:
            return int(psutil.Process(worker.pid).memory_info().rss)
    return 0
