"""The loop of an ensemble: claim chunks, hand them to workers, write results, and mark chunks as done."""

from __future__ import annotations

import queue
import time
import uuid
import warnings
from collections.abc import Callable, Collection
from concurrent.futures import BrokenExecutor, Future
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from dae_hybrid.cancellation import Cancellation, raise_if_cancelled
from dae_hybrid.ensembles import worker
from dae_hybrid.ensembles.chunk_table import DONE, LEASE, Chunk, ChunkTable
from dae_hybrid.ensembles.failures import FailedRun, report_of
from dae_hybrid.ensembles.layout import ResultLayout
from dae_hybrid.ensembles.results_store import ResultArrays
from dae_hybrid.ensembles.worker import ChunkResult, Recipe, failed_rows
from dae_hybrid.ensembles.workers import REMEDY, Workers, is_disconnected, losses
from dae_hybrid.errors import DaeHybridError, EnsembleError, WorkerLostError
from dae_hybrid.numerics.arrays import Array

#: chunks in flight for each worker, all but one of which wait
CHUNKS_PER_WORKER = 2
#: seconds of work of a chunk; more for many workers, because one client takes 8 ms for the results of each
CHUNK_SECONDS, SECONDS_PER_WORKER = 0.1, 1e-2
#: chunks that each worker should have, largest number of runs, and bytes of the results of a chunk
CHUNKS_EACH, MOST_RUNS, MOST_BYTES = 4, 10_000, 2**24
#: runs that are timed to choose the length of chunks, and the length if their worker is lost
RUNS_TIMED, DEFAULT_RUNS = 32, 16
#: seconds between looks at the cancellation, reports, and checks of the workers, and patience with cancelled chunks
POLL_SECONDS, REPORT_SECONDS, CHECK_SECONDS, PATIENCE = 0.1, 0.2, 5.0, 10.0
#: seconds in which a result must arrive that a worker has
RESULT_SECONDS = 60.0
#: largest part of the time that reports take: of a million chunks each takes 0.3 s
REPORT_SHARE = 0.05


class EnsembleProgress(NamedTuple):
    """State of a running ensemble, passed to a function given as ``progress``.

    Attributes
    ----------
    done, failed, total : int
        Runs that are done, those of them that failed, and all runs.
    lost_workers : int
        Workers lost during this call.
    seconds, remaining : float
        Seconds since the call began, and an estimate of those to its end (NaN at first).
    """

    done: int
    failed: int
    total: int
    lost_workers: int
    seconds: float
    remaining: float

    def in_words(self) -> str:
        """The state on a line."""
        failed = f", {self.failed} failed" if self.failed else ""
        left = f", {self.remaining:.0f} s left" if np.isfinite(self.remaining) else ""
        return f"{self.done} of {self.total} runs{failed}{left}"


class Campaign:
    """Runs of an ensemble on workers, until all are done or the cancellation or `tell` asks for an end."""

    def __init__(
        self, workers: Workers, recipe: Recipe, layout: ResultLayout, given: Array, cancellation: Cancellation,
        tell: Callable[[EnsembleProgress], object] | None = None,
    ) -> None:  # fmt: skip
        self._workers, self._recipe, self._layout, self._given = workers, recipe, layout, given
        self._cancellation, self._token = cancellation, uuid.uuid4().hex
        self._flying: dict[Future[Any], Chunk] = {}
        self._landed: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()
        self._is_alone = False
        self._tell, self._started = tell, 0
        self._begin = self._checked = self._due = time.monotonic()
        self._warned: set[tuple[type[Warning], str]] = set()
        self.lost_workers = 0

    def chunk_length(self) -> int:
        """Number of runs of a chunk, from the time of a few runs on a worker.

        Raises
        ------
        StopIteration
            The ensemble is ended meanwhile.
        """
        width, count = self._workers.width, len(self._given)
        most = min(MOST_RUNS, count // (CHUNKS_EACH * width), MOST_BYTES // self._layout.bytes_per_run)
        if most <= 1:
            return 1
        seconds = max(CHUNK_SECONDS, SECONDS_PER_WORKER * width)
        sample = self._given[np.linspace(0, count - 1, min(RUNS_TIMED, count)).astype(int)]
        future = self._submit(worker.measure, sample, seconds)
        try:
            self._wait()
        except BaseException:
            self._stop([future])
            raise
        found, error = _outcome(future)
        if error is None:
            return int(np.clip(seconds / found, 1, most))
        if not losses(error):
            raise _typed(error)
        if isinstance(error, BrokenExecutor):
            self._repair()
        return min(most, DEFAULT_RUNS)

    def run(self, table: ChunkTable, arrays: ResultArrays) -> None:
        """Carry out the chunks that are not done."""
        self._started, renewed = table.counts()[DONE], time.monotonic()
        try:
            while True:
                self._look()
                self._fill(table)
                if not self._flying and table.counts()[DONE] == len(self._given):
                    break
                self._take(table, arrays)
                if time.monotonic() - renewed > LEASE / 4:
                    table.renew()
                    renewed = time.monotonic()
                self._report(table)
            self._report(table, is_last=True)
        except StopIteration:
            pass
        finally:
            self._end(table)

    def _look(self) -> None:
        """Raise StopIteration, as `tell` may do, or `Cancelled` for a cancellation that this thread has entered."""
        raise_if_cancelled()
        if self._cancellation.is_cancelled:
            raise StopIteration

    def _submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call a function on a worker."""
        future = self._workers.submit(work, self._recipe, *arguments, self._token)
        future.add_done_callback(self._landed.put)
        return future

    def _wait(self) -> None:
        """Wait for a call that is no chunk, while nothing else is in flight."""
        self._look()
        while not self._land():
            self._look()
            self._report()

    def _fill(self, table: ChunkTable) -> None:
        """Hand chunks to the workers; suspects one at a time, when nothing else runs."""
        room = CHUNKS_PER_WORKER * self._workers.width - len(self._flying)
        if self._is_alone or room < max(1, self._workers.width // 2):
            return
        chunks = table.claim(room)
        if not chunks and not self._flying:
            chunks = table.claim_suspect()
            self._is_alone = bool(chunks)
        for chunk in chunks:
            rows = self._given[chunk.first : chunk.last]
            self._flying[self._submit(worker.run_chunk, rows, chunk.first)] = chunk

    def _land(self) -> list[Future[Any]]:
        """Wait a moment for calls that have returned."""
        found: list[Future[Any]] = []
        try:
            found.append(self._landed.get(timeout=POLL_SECONDS))
            while True:
                found.append(self._landed.get_nowait())
        except queue.Empty:
            pass
        if time.monotonic() - self._checked > CHECK_SECONDS:
            self._checked = time.monotonic()
            self._workers.check()
        return found

    def _take(self, table: ChunkTable, arrays: ResultArrays) -> None:
        """Write the results of chunks, mark them as done, and deal with lost workers."""
        results: list[tuple[Chunk, ChunkResult]] = []
        errors: list[tuple[Chunk, BaseException]] = []
        is_broken = False
        while True:
            for future in self._land():
                result, error = _outcome(future)
                chunk = self._flying.pop(future)
                if error is not None:
                    errors.append((chunk, error))
                    is_broken |= isinstance(error, BrokenExecutor)
                elif result is not None:
                    results.append((chunk, result))
            if not (is_broken and self._flying):  # an executor breaks with all it holds
                break
        if not results and not errors:
            return
        held = [(chunk, result) for chunk, result in results if table.holds(chunk)]
        for chunk, result in held:
            arrays.write(chunk.first, result.rows)
            self._warn(result.warnings)
        table.finish([(chunk, result.failures) for chunk, result in held])
        if is_broken:
            self._repair()
        for chunk, error in errors:
            if losses(error):
                self._lose(table, arrays, chunk, error)
        self._is_alone = False
        for _, error in errors:
            if not losses(error):
                raise _typed(error)

    def _repair(self) -> None:
        """Replace a broken executor; chunks are to blame only if the new one can work."""
        self._workers.repair()
        future = self._submit(worker.nothing)
        self._wait()
        _, error = _outcome(future)
        if error is not None:
            raise EnsembleError(
                f"The executor breaks before it runs a chunk: {type(error).__name__}: {error}",
                remedy="See what its workers write to the terminal. Their initializer may fail, or a script that "
                "starts processes may lack 'if __name__ == \"__main__\":'.",
            )

    def _lose(self, table: ChunkTable, arrays: ResultArrays, chunk: Chunk, error: BaseException) -> None:
        """Put a chunk back whose worker was lost, or give it up."""
        self.lost_workers += 1
        text = f"{type(error).__name__}: {str(error).partition('. ')[0]}"
        # memory is shared: another chunk may have taken it
        is_certain = self._is_alone or (self._workers.is_exact and not isinstance(error, MemoryError))
        if not table.lose(chunk, text, losses(error), is_certain=is_certain):
            return
        arrays.write(chunk.first, failed_rows(self._layout, 1))
        reason = WorkerLostError(
            f"The worker was lost each time it ran this parameter set. {text}",
            remedy="Run it by itself in a process that may end: its memory or its compiled code has failed.",
        )
        table.finish([(chunk, [FailedRun(chunk.first, report_of(reason))])])

    def _stop(self, futures: Collection[Future[Any]]) -> None:
        """Cancel calls, and wait for those that run."""
        self._workers.cancel(self._token)
        with suppress(Exception):  # of a lost connection
            for future in futures:
                future.cancel()
        patient_until = time.monotonic() + PATIENCE
        while not all(future.done() for future in futures) and time.monotonic() < patient_until:
            time.sleep(POLL_SECONDS / 10)

    def _end(self, table: ChunkTable) -> None:
        """Cancel what runs, and return the chunks that are not done."""
        try:
            if self._flying:
                self._stop(self._flying)
        finally:
            table.release()

    def _warn(self, found: list[tuple[type[Warning], str]]) -> None:
        """Issue the warnings of other processes, each once."""
        for category, text in found:
            if (category, text) not in self._warned:
                self._warned.add((category, text))
                warnings.warn(text, category, stacklevel=5)

    def _report(self, table: ChunkTable | None = None, *, is_last: bool = False) -> None:
        """Report the state if it is time to."""
        now = time.monotonic()
        if self._tell is None or (now < self._due and not is_last):
            return
        done, failed = (0, 0) if table is None else (table.counts()[DONE], table.n_failures())
        left, seconds, new = len(self._given) - done, now - self._begin, done - self._started
        remaining = left * seconds / new if new else 0.0 if not left else np.nan
        self._tell(EnsembleProgress(done, failed, len(self._given), self.lost_workers, seconds, remaining))
        spent = time.monotonic() - now
        self._due = now + spent + max(REPORT_SECONDS, spent / REPORT_SHARE)


def _outcome(future: Future[Any]) -> tuple[Any, BaseException | None]:
    """Result and error of a call that has returned; Dask fetches the result."""
    try:
        return future.result(RESULT_SECONDS), None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return None, error


def _typed(error: BaseException) -> BaseException:
    """The error of a call that says nothing about its runs."""
    if isinstance(error, DaeHybridError):
        return error
    if is_disconnected(error):
        return EnsembleError(
            "The executor has given up chunks that were handed to it.",
            remedy=REMEDY,
        )
    found = EnsembleError(f"A chunk has failed: {type(error).__name__}: {error}.")
    found.__cause__ = error
    return found
