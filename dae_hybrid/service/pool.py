"""A pool of worker processes that can be killed, and a bounded queue before it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import psutil

from dae_hybrid.ensembles.process import WorkerProcess
from dae_hybrid.errors import DaeHybridError, LimitError, OverloadError, ServiceError, WorkerLostError

#: interval between looks at a running worker, in seconds
LOOK_SECONDS = 0.05
#: time that a cancelled run has to end by itself, in seconds
CANCEL_SECONDS = 1.0
#: share of the limit of memory above which an idle worker is replaced
TIRED = 0.5


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
        self.busy_seconds = 0.0
        self._prepare = prepare
        self._idle: asyncio.Queue[WorkerProcess] = asyncio.Queue()
        self._workers = [WorkerProcess() for _ in range(width)]
        self._threads = ThreadPoolExecutor(2 * width, thread_name_prefix="worker")
        self._renewals: set[asyncio.Task[None]] = set()
        self.ready = 0

    async def start(self) -> Any:
        """Start all processes; return what the first `prepare` returned."""
        found = await asyncio.gather(*(self._renew(worker) for worker in self._workers))
        return found[0]

    async def _renew(self, worker: WorkerProcess) -> Any:
        """Start a process again, if it does not run, and make it ready."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, self._prepare, worker)
        self.ready += 1
        self._idle.put_nowait(worker)
        return found

    async def run(
        self,
        abandoned: Awaitable[Any] | None,
        function: Callable[..., Any],
        *arguments: Any,
        seconds: float | None = None,
    ) -> Any:
        """Call ``function(*arguments, token)`` in a worker.

        Parameters
        ----------
        abandoned : awaitable, optional
            Completes when the result is no longer needed.
        function : callable
            A function of a module. It returns soon after its token was cancelled.
        seconds : float, optional
            Limit of time, that of the pool by default.

        Raises
        ------
        OverloadError
            The queue is full.
        LimitError
            The limit of time or of memory was exceeded.
        WorkerLostError
            The process has ended for another reason.
        AbandonedError
            `abandoned` has completed.
        """
        if self.waiting >= self.queue and self._idle.empty():
            error = OverloadError(f"{self.waiting} requests wait for {self.width} workers.", remedy="Try again later.")
            error.retry_after = max(1, round(self.waiting * self._typical_seconds() / self.width))
            raise error
        gone = None if abandoned is None else asyncio.ensure_future(abandoned)
        try:
            worker = await self._worker(gone)
            return await self._supervised(
                worker, gone, self.seconds if seconds is None else seconds, function, arguments
            )
        finally:
            if gone is not None:
                gone.cancel()

    def _typical_seconds(self) -> float:
        return min(self.seconds, 1.0)

    async def _worker(self, gone: asyncio.Future[Any] | None) -> WorkerProcess:
        """An idle worker, in order of arrival."""
        with suppress(asyncio.QueueEmpty):
            return self._idle.get_nowait()
        self.waiting += 1
        asked = asyncio.ensure_future(self._idle.get())
        try:
            await asyncio.wait({asked} if gone is None else {asked, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done():
                raise AbandonedError("The client has closed the connection.")
            return asked.result()
        except BaseException:
            if asked.done() and not asked.cancelled():  # a worker that was handed over in the meantime
                self._idle.put_nowait(asked.result())
            asked.cancel()
            raise
        finally:
            self.waiting -= 1

    async def _supervised(
        self, worker: WorkerProcess, gone: asyncio.Future[Any] | None, seconds: float, function: Any, arguments: Any
    ) -> Any:
        token, begin = uuid.uuid4().hex, time.monotonic()
        self.running += 1
        loop = asyncio.get_running_loop()
        answer = loop.run_in_executor(self._threads, worker.run, function, *arguments, token)
        reason: DaeHybridError | None = None
        deadline = begin + seconds
        try:
            while not answer.done():
                waits = {answer} if gone is None or gone.done() else {answer, gone}
                await asyncio.wait(waits, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                now = time.monotonic()
                if answer.done():
                    break
                if memory_of(worker) > self.memory:
                    reason = LimitError(
                        f"The request needs more than {self.memory / 1e6:.0f} MB of memory.",
                        remedy="Ask for fewer outputs, or a shorter interval.",
                    )
                    worker.kill()
                elif reason is None and now > deadline:
                    reason = LimitError(
                        f"The request takes more than {seconds:g} s.",
                        remedy="Shorten the interval, loosen the tolerances, or submit a job.",
                    )
                elif reason is None and gone is not None and gone.done():
                    reason = AbandonedError("The client has closed the connection.")
                else:
                    if reason is not None and now > deadline:
                        worker.kill()
                    continue
                worker.cancel(token)
                deadline = now + CANCEL_SECONDS
            try:
                found = answer.result()
            except WorkerLostError:
                if reason is not None:
                    raise reason from None
                raise
            if found is None and reason is not None:
                raise reason
            return found
        except asyncio.CancelledError:  # the service ends
            worker.kill()
            raise
        finally:
            self.running -= 1
            self.busy_seconds += time.monotonic() - begin
            self._return(worker)

    def _return(self, worker: WorkerProcess) -> None:
        """Make a worker available again, after its replacement if it is lost or has grown."""
        if worker.is_running and memory_of(worker) < TIRED * self.memory:
            self._idle.put_nowait(worker)
            return
        worker.kill()
        self.ready -= 1
        self.replaced += 1
        task = asyncio.ensure_future(self._renew(worker))
        self._renewals.add(task)
        task.add_done_callback(self._renewals.discard)

    def close(self) -> None:
        """End all processes."""
        for task in self._renewals:
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
