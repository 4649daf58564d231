"""Checkpoints: of a long run only what is needed to carry out a part of it again.

An adjoint follows the steps of a run backwards. Of a run with more of them than are to be kept at a time, record
tables are let go of, but for what is asked of all of them; the task and the context that each began with are its
checkpoint. Where the rest is needed the record table is gone through once more, and has to come to the same end to the
last bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from dae_hybrid.errors import CheckpointError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.integrator import SegmentTask
from dae_hybrid.port.native_plan import UNBOUNDED, Bound, RunContext
from dae_hybrid.port.record_table import ALL, Kind, RecordTable

#: record tables of fewer bytes are kept: their checkpoints are not much smaller
LEAST = 50_000
#: of a run of which record tables are let go of, the next ones are as long as this share of the bound allows, and no
#: shorter
SHARE = 1 / 8
#: what is made anew, what is asked of all record tables, and the columns of their records that are
AGAIN = ("records", "offsets", "rows", "paths")
ASKED = ("is_event", "is_measurement", "is_segments", "extents", "memory_extent", "largest", "is_clean")
COLUMNS = {"time": float, "mode": np.int16, "guard": np.int16, "rate": float, "rate_scale": float, "clean": np.bool_}
VALUES = ("x", "memory")


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Where a record table began; `reopen` opens a session."""

    reopen: Any
    task: SegmentTask
    context: RunContext

    @classmethod
    def of(cls, reopen: Any, task: SegmentTask, context: RunContext) -> Checkpoint:
        """Before the context, on which the integrator notes what it sees."""
        return cls(reopen, task, _copied(context))

    def again(self, table: RecordTable, end: bytes) -> RecordTable:
        """The record table that began here, once more; `end` is its last record."""
        session, found, error = self.reopen(), None, None
        try:
            passage = session.march(self.task, replace(_copied(self.context), again=table))
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
    return replace(context, ranges=context.ranges.copy(), rested=context.rested.copy(), bound=UNBOUNDED)


def _end(table: RecordTable) -> bytes:
    return table.records[table.offsets[-1] :].tobytes()


class Ledger:
    """The record tables of a run, of which no more is kept than the bound, the latest ones.

    `next` is the bound of the next one alone, `lets_go` says whether there was more, and `passage` gives the fastest
    passage of a record table.
    """

    def __init__(self, bound: Bound, passage: Callable[[RecordTable], tuple[float, float]]) -> None:
        self.bound, self.next, self.passage, self.lets_go = bound, bound, passage, False
        self.latest: tuple[int, RecordTable] | None = (
            None  # the record table that has been made again, and which one it is
        )
        self._size, self._count, self._kept = 0, 0, deque[tuple[Stretch, int]]()

    def entered(self, table: RecordTable, checkpoint: Checkpoint) -> RecordTable:
        """The record table, from now on one that may be let go of, where it is worth it."""
        size = table.size(self.bound)
        if size < LEAST:
            return table
        self._count += 1
        stretch = Stretch(table, checkpoint, self, self._count)
        self._kept.append((stretch, size))
        self._size += size
        if self._size > self.bound.size:
            self.next, self.lets_go = self.bound._replace(size=max(SHARE * self.bound.size, LEAST)), True
        while self._size > self.bound.size:
            oldest, size = self._kept.popleft()
            oldest.shrink()
            self._size -= size
        return stretch

    def close(self) -> None:
        """The run is over: its record tables are its own."""
        self._kept.clear()


class Stretch(RecordTable):
    """A record table that may be let go of: what has been is made again when it is asked for."""

    def __init__(self, table: RecordTable, checkpoint: Checkpoint, ledger: Ledger, number: int) -> None:
        own = {"_checkpoint": checkpoint, "_ledger": ledger, "_number": number, "_count": table.count}
        self.__dict__.update(table.__dict__ | own | {"_columns": {}, "_values": {}, "_passage": None, "_end": None})

    def __getattr__(self, name: str) -> Any:
        if name not in AGAIN:
            raise AttributeError(name)
        return getattr(self.whole(), name)

    @property
    def count(self) -> int:
        """How many records there are."""
        return int(self._count)

    @property
    def passage(self) -> tuple[float, float] | None:
        """Its fastest passage, where that is known."""
        found: tuple[float, float] | None = self._passage
        return found

    def let_go(self) -> None:
        """Its adjoint has been carried back: of a run of which record tables are let go of, this is the next one."""
        self._ledger.latest = None
        if self._ledger.lets_go:
            self.shrink()

    def shrink(self) -> None:
        """Keep what is asked of all record tables."""
        kept = self.__dict__
        if kept["_end"] is not None:
            return
        ledger, known = self._ledger, {name: getattr(self, name) for name in ASKED}
        bound = ledger.bound
        kept["_no_rows"] = {mode: rows[:0].copy() for mode, rows in self.rows.items()}
        if bound.records:
            kept["_columns"] = {name: self.column(name).astype(kind) for name, kind in COLUMNS.items()}
            kept["_values"] = {
                (kind.mode, kind.guard, name): self.values(kind, name) for kind in self.kinds for name in VALUES
            }
        if self.paths:
            kept["_passage"] = ledger.passage(self)
        kept["_end"] = _end(self)
        gone = {"paths"} | ({"rows"} if bound.rows else set()) | ({"records", "offsets"} if bound.records else set())
        stays = {f.name for f in fields(RecordTable)} - gone
        for name in [name for name in kept if not (name.startswith("_") or name in stays)]:
            del kept[name]
        kept |= known

    def whole(self) -> RecordTable:
        """The record table with all that belongs to it."""
        if all(name in self.__dict__ for name in AGAIN):
            return self
        latest = self._ledger.latest
        if latest is None or latest[0] != self._number:
            latest = self._ledger.latest = None  # two at a time are one too many
            latest = self._ledger.latest = self._number, self._checkpoint.again(self, self._end)
        return latest[1]

    def column(self, name: str, which: Any = ALL) -> Array:
        """One number of the head of every record, or of some."""
        return self._columns[name][which] if name in self._columns else super().column(name, which)

    def values(self, kind: Kind, name: str, which: Any = ALL) -> Array:
        """A part of the records of a kind, or of some of these, (n, size)."""
        known: Array | None = self._values.get((kind.mode, kind.guard, name))
        return super().values(kind, name, which) if known is None else known[which]

    def forget_paths(self) -> None:
        """Let go of what only an adjoint needs."""
        self.__dict__["paths"], self._ledger.latest = {}, None

    def thinned(self, *, outputs: bool) -> RecordTable:
        """The same without paths, and without rows where these are no outputs."""
        kept = {f.name: getattr(self, f.name) for f in fields(RecordTable) if f.name not in ("rows", "paths")}
        rows = self.rows if outputs or self._end is None else self._no_rows
        other = RecordTable(**kept, rows=rows, paths={})
        return other if outputs else other.thinned(outputs=False)
