"""Checkpoints: recompute parts of a long run instead of storing its path.

An adjoint needs the steps of the run in reverse. If they take more memory than allowed, record tables are dropped,
except for the data that are needed of all of them; the task and the context at the start of a table are its
checkpoint. On the way back a dropped table is recomputed from there, and has to agree with the first pass bit by bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from dae_hybrid.errors import CheckpointError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.integrator import OpenSession, SegmentTask
from dae_hybrid.port.native_plan import UNBOUNDED, MemoryBound, RunContext
from dae_hybrid.port.record_table import ALL, Kind, RecordTable

#: record tables of fewer bytes are not dropped: their checkpoints are not much smaller
MIN_DROPPABLE_SIZE = 50_000
#: once record tables are dropped, the bound of each further one, as a share of the bound of the run
BOUND_SHARE = 1 / 8
#: attributes that are recomputed; attributes, columns and parts of records that stay with a dropped table
RECOMPUTED = ("records", "offsets", "rows", "paths")
RETAINED = ("is_event", "is_measurement", "is_segments", "orders", "extents", "memory_extent", "largest", "is_clean")
RETAINED_COLUMNS = {
    "time": float,
    "mode": np.int16,
    "guard": np.int16,
    "rate": float,
    "rate_scale": float,
    "clean": np.bool_,
}
RETAINED_VALUES = ("x", "memory")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Start of a record table; `open_session` opens a session."""

    open_session: OpenSession
    task: SegmentTask
    context: RunContext

    @classmethod
    def of(cls, open_session: OpenSession, task: SegmentTask, context: RunContext) -> Checkpoint:
        """Make a checkpoint with a copy of the context, which the integrator changes."""
        return cls(open_session, task, _copied(context))

    def recompute(self, table: RecordTable, end: bytes) -> RecordTable:
        """Recompute the record table that began here; `end` is its last record."""
        session, found, error = self.open_session(), None, None
        try:
            passage = session.run_segments(self.task, replace(_copied(self.context), replayed=table))
            found, error = passage.table, passage.error
        finally:
            session.close()
        if found is None or found.count != table.count or _end(found) != end:
            raise CheckpointError(
                "A part of the run was carried out again from a checkpoint, and was not the same.",
                time=self.task.t0,
                remedy="Pass adjoint_memory=math.inf, with which nothing is carried out again, and report it.",
            ) from error
        return found


def _copied(context: RunContext) -> RunContext:
    return replace(context, ranges=context.ranges.copy(), stayed_at_zero=context.stayed_at_zero.copy(), bound=UNBOUNDED)


def _end(table: RecordTable) -> bytes:
    return table.records[table.offsets[-1] :].tobytes()


class Ledger:
    """The record tables of a run within a memory bound: the oldest ones are dropped.

    `next` is the bound of the next table, `is_dropping` says whether any were dropped, and `passage` returns the
    fastest passage of a record table.
    """

    def __init__(self, bound: MemoryBound, passage: Callable[[RecordTable], tuple[float, float]]) -> None:
        self.bound, self.next, self.passage, self.is_dropping = bound, bound, passage, False
        self.latest: tuple[int, RecordTable] | None = None  # number and content of the table recomputed last
        self._size, self._count, self._kept = 0, 0, deque[tuple[DroppableTable, int]]()

    def enter(self, table: RecordTable, checkpoint: Checkpoint) -> RecordTable:
        """Enter a record table; return it as one that may be dropped if it is large enough."""
        size = table.size(self.bound)
        if size < MIN_DROPPABLE_SIZE:
            return table
        self._count += 1
        droppable = DroppableTable(table, checkpoint, self, self._count)
        self._kept.append((droppable, size))
        self._size += size
        if self._size > self.bound.size:
            self.is_dropping = True
            self.next = self.bound._replace(size=max(BOUND_SHARE * self.bound.size, MIN_DROPPABLE_SIZE))
        while self._size > self.bound.size:
            oldest, size = self._kept.popleft()
            oldest.drop()
            self._size -= size
        return droppable

    def close(self) -> None:
        """End the run: no further tables are dropped."""
        self._kept.clear()


class DroppableTable(RecordTable):
    """A record table that may be dropped and is then recomputed on access."""

    def __init__(self, table: RecordTable, checkpoint: Checkpoint, ledger: Ledger, number: int) -> None:
        own = {"_checkpoint": checkpoint, "_ledger": ledger, "_number": number, "_count": table.count}
        self.__dict__.update(table.__dict__ | own | {"_columns": {}, "_values": {}, "_passage": None, "_end": None})

    def __getattr__(self, name: str) -> Any:
        if name not in RECOMPUTED:
            raise AttributeError(name)
        return getattr(self.complete(), name)

    @property
    def count(self) -> int:
        """Number of records."""
        return int(self._count)

    @property
    def passage(self) -> tuple[float, float] | None:
        """Fastest passage, if known."""
        found: tuple[float, float] | None = self._passage
        return found

    def release(self) -> None:
        """Release the table after its adjoint: it is dropped if tables of the run are dropped."""
        self._ledger.latest = None
        if self._ledger.is_dropping:
            self.drop()

    def drop(self) -> None:
        """Drop everything but the data that are needed of all record tables."""
        kept = self.__dict__
        if kept["_end"] is not None:
            return
        ledger, known = self._ledger, {name: getattr(self, name) for name in RETAINED}
        bound = ledger.bound
        kept["_no_rows"] = {mode: rows[:0].copy() for mode, rows in self.rows.items()}
        if bound.records:
            kept["_columns"] = {name: self.column(name).astype(kind) for name, kind in RETAINED_COLUMNS.items()}
            kept["_values"] = {
                (kind.mode, kind.guard, name): self.values(kind, name)
                for kind in self.kinds
                for name in RETAINED_VALUES
            }
        if self.paths:
            kept["_passage"] = ledger.passage(self)
        kept["_end"] = _end(self)
        gone = {"paths"} | ({"rows"} if bound.rows else set()) | ({"records", "offsets"} if bound.records else set())
        stays = {f.name for f in fields(RecordTable)} - gone
        for name in [name for name in kept if not (name.startswith("_") or name in stays)]:
            del kept[name]
        kept |= known

    def complete(self) -> RecordTable:
        """Return the complete record table, recomputed if it was dropped."""
        if all(name in self.__dict__ for name in RECOMPUTED):
            return self
        latest = self._ledger.latest
        if latest is None or latest[0] != self._number:
            latest = self._ledger.latest = None  # free one before the next is computed
            latest = self._ledger.latest = self._number, self._checkpoint.recompute(self, self._end)
        return latest[1]

    def column(self, name: str, which: Any = ALL) -> Array:
        """Return one column of the record headers, for all or some records."""
        return self._columns[name][which] if name in self._columns else super().column(name, which)

    def values(self, kind: Kind, name: str, which: Any = ALL) -> Array:
        """Return a part of the records of a kind, or of some of these, (n, size)."""
        known: Array | None = self._values.get((kind.mode, kind.guard, name))
        return super().values(kind, name, which) if known is None else known[which]

    def forget_paths(self) -> None:
        """Drop the paths, which only an adjoint needs."""
        self.__dict__["paths"], self._ledger.latest = {}, None

    def thinned(self, *, outputs: bool) -> RecordTable:
        """Return a copy without paths, and without rows unless these are outputs."""
        kept = {f.name: getattr(self, f.name) for f in fields(RecordTable) if f.name not in ("rows", "paths")}
        rows = self.rows if outputs or self._end is None else self._no_rows
        other = RecordTable(**kept, rows=rows, paths={})
        return other if outputs else other.thinned(outputs=False)
