"""The table of an ensemble's chunks: which are done, which are running, and which runs failed."""

from __future__ import annotations

import json
import os
import socket
import sqlite3
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from dae_hybrid.ensembles.failures import FailedRun
from dae_hybrid.ensembles.results_store import REMEDY, REMOVE
from dae_hybrid.errors import StoreError, WorkerLostError

#: seconds after which another client may take over the chunks of one that is no longer heard of
LEASE = 60.0
#: losses of a worker after which a chunk is halved, and a single run given up
MAX_LOSSES = 2
#: seconds to wait for another client's transaction
TIMEOUT = 60.0
#: states of a chunk; a suspect may have killed a worker, and runs while nothing else does
WAITING, RUNNING, SUSPECT, DONE = "waiting", "running", "suspect", "done"
#: owners of claims whose campaigns run in this process
_running: set[str] = set()
SCHEMA = """
create table chunks (
    first integer primary key, last integer not null, block integer not null, state text not null,
    attempts integer not null default 0, error text, owner text, lease real
);
create index by_state on chunks (state, block);
create table failures (run integer primary key, report text not null);
"""
#: last run, sum of the lengths of chunks, and number of chunks that do not begin where another ends or have no state
CHECK = """
select max(last), sum(last - first), sum(first != before or state not in (?, ?, ?, ?))
from (select first, last, state, lag(last, 1, 0) over (order by first) as before from chunks)
"""


class Chunk(NamedTuple):
    """Runs ``first`` to ``last - 1``, and the number of workers lost with them."""

    first: int
    last: int
    attempts: int

    @property
    def n_runs(self) -> int:
        """Number of runs."""
        return self.last - self.first


class ChunkTable:
    """A SQLite table of chunks, shared by the clients of one machine.

    A client claims chunks for the time of a lease, which it renews. Chunks of a client that has ended, or whose lease
    has expired, may be claimed by others. Two clients never work on parts of one block, the runs of one file.
    """

    def __init__(self, path: Path | None, *, is_read_only: bool = False) -> None:
        self._name = "memory" if path is None else str(path)
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        with self._told():
            self._db = sqlite3.connect(
                _address(path, is_read_only), uri=True, timeout=TIMEOUT, isolation_level=None, check_same_thread=False
            )
            self.close = weakref.finalize(self, self._db.close)
            if path is not None and not is_read_only:  # commits survive a killed process
                self._db.execute("pragma journal_mode=wal")
                self._db.execute("pragma synchronous=normal")

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_memory, (self._db.serialize(),)

    def lay_out(self, count: int, chunk: int) -> None:
        """Create the chunks of `count` runs."""
        rows = ((first, min(first + chunk, count), i, WAITING) for i, first in enumerate(range(0, count, chunk)))
        with self._told():
            self._db.executescript(SCHEMA)
        with self._transaction() as db:
            db.executemany("insert into chunks (first, last, block, state) values (?, ?, ?, ?)", rows)

    def check(self, count: int) -> None:
        """Check that the chunks are those of `count` runs.

        Raises
        ------
        StoreError
            The table is damaged.
        """
        with self._told():
            rows = self._db.execute(CHECK, (WAITING, RUNNING, SUSPECT, DONE)).fetchone()
            self._db.execute("select run, report from failures limit 1")
        if rows != (count, count, 0):
            raise StoreError(
                f"The table of chunks {self._name!r} is damaged: its chunks are not those of {count} runs.",
                remedy=REMOVE,
            )

    def blocks_done(self) -> list[int]:
        """Blocks with chunks that are done."""
        with self._told():
            return [
                block for (block,) in self._db.execute("select distinct block from chunks where state = ?", (DONE,))
            ]

    # -- repetitions ----------------------------------------------------------------------------------------

    def repeat(self, blocks: Sequence[int], clear: Callable[[int, int], None]) -> None:
        """Let the chunks of some blocks that are done wait again; `clear` empties the rows of their runs."""
        with self._transaction() as db:
            for block in blocks:
                done = db.execute("select first, last, block from chunks where block = ? and state = ?", (block, DONE))
                self._repeat(db, done.fetchall(), clear)

    def retry_lost(self, clear: Callable[[int, int], None]) -> None:
        """Let the runs wait again that were given up because their workers were lost; `clear` empties their rows."""
        with self._transaction() as db:
            lost = db.execute(
                "select first, last, block from chunks join failures on run = first "
                "where state = ? and json_extract(report, '$.kind') = ?",
                (DONE, WorkerLostError.__name__),
            )
            self._repeat(db, lost.fetchall(), clear)

    def _repeat(
        self, db: sqlite3.Connection, chunks: Sequence[tuple[int, int, int]], clear: Callable[[int, int], None]
    ) -> None:
        """Let chunks wait; others cannot claim one meanwhile, and a block that one of them writes is not cleared."""
        self._release_abandoned(db)
        for first, last, block in chunks:
            db.execute("delete from failures where run >= ? and run < ?", (first, last))
            db.execute("update chunks set state = ?, attempts = 0, error = null where first = ?", (WAITING, first))
            if not db.execute("select 1 from chunks where state = ? and block = ?", (RUNNING, block)).fetchone():
                clear(first, last)

    # -- claims ---------------------------------------------------------------------------------------------

    def claim(self, most: int) -> list[Chunk]:
        """Claim chunks that wait, or that belong to a client that has ended."""
        return self._claim(WAITING, most)

    def claim_suspect(self) -> list[Chunk]:
        """Claim a chunk that may have killed a worker."""
        return self._claim(SUSPECT, 1)

    def _claim(self, state: str, most: int) -> list[Chunk]:
        _running.add(self.owner)
        with self._transaction() as db:
            self._release_abandoned(db)
            rows = db.execute(
                "select first, last, attempts from chunks c where state = ? and not exists (select 1 from chunks o "
                "where o.state = ? and o.block = c.block and o.owner != ?) order by block, first limit ?",
                (state, RUNNING, self.owner, most),
            ).fetchall()
            lease = time.time() + LEASE
            db.executemany(
                "update chunks set state = ?, owner = ?, lease = ? where first = ?",
                ((RUNNING, self.owner, lease, first) for first, *_ in rows),
            )
        return [Chunk(*row) for row in rows]

    def _release_abandoned(self, db: sqlite3.Connection) -> None:
        owners = db.execute(
            "select owner, min(lease) from chunks where state = ? and owner != ? group by owner", (RUNNING, self.owner)
        ).fetchall()
        for owner, lease in owners:
            if lease < time.time() or _has_ended(owner):
                db.execute(
                    "update chunks set state = ?, owner = null where state = ? and owner = ?", (WAITING, RUNNING, owner)
                )

    def renew(self) -> None:
        """Extend the leases of this client."""
        with self._transaction() as db:
            db.execute(
                "update chunks set lease = ? where state = ? and owner = ?", (time.time() + LEASE, RUNNING, self.owner)
            )

    def release(self) -> None:
        """Return all running chunks of this client, which ends; others may claim them even if this fails."""
        _running.discard(self.owner)
        with self._transaction() as db:
            db.execute(
                "update chunks set state = ?, owner = null where state = ? and owner = ?",
                (WAITING, RUNNING, self.owner),
            )

    def holds(self, chunk: Chunk) -> bool:
        """Whether a chunk still belongs to this client."""
        with self._told():
            found = self._db.execute(
                "select 1 from chunks where first = ? and last = ? and state = ? and owner = ?",
                (chunk.first, chunk.last, RUNNING, self.owner),
            ).fetchone()
        return found is not None

    # -- outcomes -------------------------------------------------------------------------------------------

    def finish(self, chunks: Sequence[tuple[Chunk, Sequence[FailedRun]]]) -> None:
        """Mark chunks as done whose results are written, and store the errors of their runs."""
        with self._transaction() as db:
            for chunk, failures in chunks:
                self._store(db, failures)
                db.execute(
                    "update chunks set state = ?, owner = null where first = ? and last = ? and owner = ?",
                    (DONE, chunk.first, chunk.last, self.owner),
                )

    def lose(self, chunk: Chunk, error: str, losses: int, *, is_certain: bool) -> bool:
        """Record that workers were lost with a chunk; return whether its single run is to be given up.

        After `MAX_LOSSES` the chunk is halved. A single run is given up if it is certain that nothing else was the
        cause; otherwise it becomes a suspect, to be run alone. A chunk that another client has taken over stays so.
        """
        if not self.holds(chunk):
            return False
        attempts = chunk.attempts + losses
        is_over, is_single = attempts >= MAX_LOSSES, chunk.n_runs == 1
        if is_over and is_single and is_certain:
            return True
        state, last = SUSPECT if is_over and is_single else WAITING, chunk.last
        if is_over and not is_single:
            last, attempts = (chunk.first + chunk.last) // 2, MAX_LOSSES - 1  # the next loss of a half is its last
        with self._transaction() as db:
            db.execute(
                "update chunks set last = ?, state = ?, attempts = ?, error = ?, owner = null where first = ?",
                (last, state, attempts, error, chunk.first),
            )
            if last < chunk.last:
                db.execute(
                    "insert into chunks (first, last, block, state, attempts, error) "
                    "select ?, ?, block, ?, ?, ? from chunks where first = ?",
                    (last, chunk.last, state, attempts, error, chunk.first),
                )
        return False

    def _store(self, db: sqlite3.Connection, failures: Sequence[FailedRun]) -> None:
        db.executemany(
            "insert or replace into failures values (?, ?)", ((own.run, json.dumps(own.report)) for own in failures)
        )

    # -- queries --------------------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Number of runs in chunks of each state."""
        with self._told():
            found = self._db.execute("select state, sum(last - first) from chunks group by state").fetchall()
        return {WAITING: 0, RUNNING: 0, SUSPECT: 0, DONE: 0} | dict(found)

    def chunks(self) -> list[tuple[int, int, str, int, str | None]]:
        """First run, last run, state, losses and last error of all chunks."""
        with self._told():
            return self._db.execute("select first, last, state, attempts, error from chunks order by first").fetchall()

    def n_failures(self) -> int:
        """Number of failed runs."""
        with self._told():
            return int(self._db.execute("select count(*) from failures").fetchone()[0])

    def failed_runs(self) -> list[int]:
        """Numbers of the failed runs, in order."""
        with self._told():
            return [run for (run,) in self._db.execute("select run from failures order by run")]

    def failures_among(self, first: int, last: int) -> list[FailedRun]:
        """Failed runs of the runs ``first`` to ``last - 1``."""
        with self._told():
            found = self._db.execute(
                "select run, report from failures where run >= ? and run < ?", (first, last)
            ).fetchall()
        return [FailedRun(run, json.loads(report)) for run, report in found]

    # -- the database ---------------------------------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._told():
            try:
                self._db.execute("begin immediate")
                yield self._db
                self._db.execute("commit")
            except BaseException:  # also Ctrl-C while another client's transaction is waited for
                if self._db.in_transaction:  # not after an error for which SQLite has rolled back
                    self._db.execute("rollback")
                raise

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as reason:
            is_damaged = not isinstance(reason, sqlite3.OperationalError) or "no such" in str(reason)
            raise StoreError(
                f"The table of chunks {self._name!r} cannot be read or written: {reason}.",
                remedy=REMOVE if is_damaged else REMEDY,
            ) from reason


def _in_memory(content: bytes) -> ChunkTable:
    table = ChunkTable(None)
    table._db.deserialize(content)
    return table


def _address(path: Path | None, is_read_only: bool) -> str:
    if path is None:
        return "file::memory:"
    address = f"{path.as_uri()}?mode={'ro' if is_read_only else 'rwc'}"
    # a log of commits is shared by a file beside the table, which SQLite cannot create in a read-only folder
    has_log = path.with_name(f"{path.name}-wal").exists()
    return address if has_log or not is_read_only or os.access(path.parent, os.W_OK) else f"{address}&immutable=1"


def _has_ended(owner: str) -> bool:
    """Whether a client was a process of this machine, or a call in this process, that has ended."""
    host, pid, _ = owner.rsplit(":", 2)
    if host != socket.gethostname():
        return False
    if int(pid) == os.getpid():
        return owner not in _running
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
