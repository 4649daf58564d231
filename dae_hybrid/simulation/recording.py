"""The parts that a run has recorded: segments, events, knots, measurements and native record tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np

from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.failure_messages import LATEST_TRANSITIONS
from dae_hybrid.port.native_plan import MemoryBound
from dae_hybrid.port.record_table import RecordTable
from dae_hybrid.port.records import EventRecord, KnotRecord
from dae_hybrid.simulation.checkpoints import Checkpoint, Ledger
from dae_hybrid.simulation.passages import table_passage
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.trajectory.trajectory import Part, Segment


class Recording:
    """Parts of a run in order, and the number of output times that they contain.

    Large record tables are dropped beyond the memory bound (`Ledger`) and recomputed on access.
    """

    def __init__(self, system: HybridSystem, t_eval: Array | None, bound: MemoryBound, rtol: float) -> None:
        self.system, self.t_eval = system, t_eval
        self.parts: list[Part | RecordTable] = []
        self.ledger = Ledger(bound, lambda table: table_passage(table, rtol))
        self.n_outputs = 0
        self._dropped = Counter[str]()  # numbers of the parts that were dropped

    def add(self, part: Part) -> None:
        """Record a part."""
        if isinstance(part, Segment):
            self.n_outputs += len(part.t)
        self.parts.append(part)

    def add_table(self, table: RecordTable, checkpoint: Checkpoint | None) -> None:
        """Record native events; those with a checkpoint may be dropped."""
        for array in (*table.rows.values(), *table.start, table.task.memory):
            array.flags.writeable = False
        self.n_outputs += table.n_rows
        self.parts.append(table if checkpoint is None else self.ledger.enter(table, checkpoint))

    def outputs_until(self, t: float) -> Array | None:
        """Return the remaining output times up to a time."""
        if self.t_eval is None:
            return None
        return np.ascontiguousarray(self.t_eval[self.n_outputs : np.searchsorted(self.t_eval, t, side="right")])

    def remove_outputs(self, is_now: Callable[[float], bool]) -> None:
        """Remove outputs that precede an event or a knot by rounding only: they belong to the state after it."""
        if self.t_eval is None:
            return
        for i in range(len(self.parts) - 1, -1, -1):
            part = self.parts[i]
            if isinstance(part, Segment):
                kept = len(part.t)
                while kept and is_now(part.t[kept - 1]):
                    kept -= 1
                self.n_outputs -= len(part.t) - kept
                self.parts[i] = part.first(kept)
            if isinstance(part, RecordTable) or (isinstance(part, Segment) and not is_now(part.t_start)):
                return

    def drop_old(self) -> None:
        """Drop all parts but the latest."""
        for part in self.parts[:-LATEST_TRANSITIONS]:
            if isinstance(part, RecordTable):
                self._dropped.update(segments=part.count, events=part.n_events, native=part.n_events)
            else:
                self._dropped.update(segments=isinstance(part, Segment), events=isinstance(part, EventRecord))
        del self.parts[:-LATEST_TRANSITIONS]

    @property
    def has_segments(self) -> bool:
        """Whether any segment is recorded."""
        return any(isinstance(part, Segment | RecordTable) for part in self.parts)

    @property
    def dropped(self) -> tuple[int, int]:
        """Numbers of segments and of events that were dropped."""
        return self._dropped["segments"], self._dropped["events"]

    @property
    def n_native(self) -> int:
        """Number of native events."""
        tables = (part for part in self.parts if isinstance(part, RecordTable))
        return self._dropped["native"] + sum(table.n_events for table in tables)

    @property
    def latest_event(self) -> EventRecord | None:
        """The latest event, or None if a knot or native events have followed it."""
        for part in reversed(self.parts):
            if isinstance(part, EventRecord | KnotRecord | RecordTable):
                return part if isinstance(part, EventRecord) else None
        return None

    def latest_transitions(self) -> list[tuple[str, float]]:
        """Return names and times of the latest transitions, native or not."""
        found: list[tuple[str, float]] = []
        for part in reversed(self.parts):
            if isinstance(part, EventRecord):
                found.append((part.transition, part.time))
            elif isinstance(part, RecordTable):
                latest = zip(
                    part.transitions[-LATEST_TRANSITIONS:], part.times[-LATEST_TRANSITIONS:].tolist(), strict=True
                )
                found += [(self.system.transitions[index].name, time) for index, time in reversed(list(latest))]
            if len(found) >= LATEST_TRANSITIONS:
                break
        return found[LATEST_TRANSITIONS - 1 :: -1] if len(found) >= LATEST_TRANSITIONS else found[::-1]
