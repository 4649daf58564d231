"""The sequence of events of a run: its transitions and measurements in order.

Values and derivatives of a run depend smoothly on parameters as long as the sequence stays the same. Where it changes,
a functional may have a kink or a jump. An event is coded as twice the index of its transition, plus one if its guard
rises; a measurement as -1. Knots of signals and the places of peaks are left out. The sides of relations that are not
events follow.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.conditions.branches import branch_sides
from dae_hybrid.port.record_table import RecordTable
from dae_hybrid.port.records import EventRecord, MeasurementRecord
from dae_hybrid.system.packing import PortableResult
from dae_hybrid.tables import counted

if TYPE_CHECKING:
    from dae_hybrid.system.system import HybridSystem
    from dae_hybrid.trajectory.trajectory import Trajectory

type Codes = NDArray[np.int64]

#: constants of the digest, shared with C
DIGEST_BASIS, DIGEST_FACTOR, DIGEST_SHIFT = 1469598103934665603, 7046029254386353131, 32
_WORD = 2**64
MEASUREMENT, BELOW, ABOVE = -1, -2, -3
#: codes kept of a sequence; the digest covers all
MAX_CODES = 10_000
#: groups of equal events shown at each end of a sequence
MAX_GROUPS = 4


def codes_of(trajectory: Trajectory, *, branches: bool = True) -> Codes:
    """Codes of a run that has its events, (n,).

    The sides at the start of the relations of equations come first. With `branches`, those of relations that are not
    events come last.
    """
    at_start = trajectory.start.at.m[list(relation_entries(trajectory.system))]
    stated = trajectory.system.n_stated
    pieces, ends = [np.where(at_start > 0, ABOVE, BELOW)], (trajectory.t_span[0], trajectory.final[0])
    for item in trajectory.parts.given:
        if isinstance(item, RecordTable):
            pieces.append(_of_table(item, stated))
        elif isinstance(item, EventRecord):
            pieces.append(np.array([2 * item.index + (item.direction > 0)]))
        elif isinstance(item, MeasurementRecord) and item.index < stated and item.time not in ends:
            # those at the ends always come there
            pieces.append(np.array([MEASUREMENT]))
    if branches:
        pieces.append(np.array([ABOVE if side else BELOW for side in branch_sides(trajectory)], dtype=np.int64))
    return np.concatenate(pieces).astype(np.int64)


def relation_entries(system: HybridSystem) -> tuple[int, ...]:
    """Entries in the memory of the relations of equations, in order."""
    return tuple(sorted({t.relation.entry for t in system.transitions if t.relation is not None}))


def _of_table(table: RecordTable, stated: int) -> Codes:
    found = np.full(table.count, MEASUREMENT, np.int64)
    is_guarded = np.array(table.graph.clocks, np.int64)[table.transitions] < 0
    found[table.is_event] = 2 * table.transitions + (is_guarded & (table.column("rate")[table.is_event] > 0))
    return found[table.is_event | (table.is_measurement & (table.column("count") < stated))]


def digest(codes: Codes) -> int:
    """A 64-bit digest of codes; `adapters/sundials/native/batch.c` computes the same."""
    found = DIGEST_BASIS
    for code in codes.tolist():
        found = (found ^ (code % _WORD)) * DIGEST_FACTOR % _WORD
        found ^= found >> DIGEST_SHIFT
    return found - _WORD if found >= _WORD // 2 else found


@dataclass(frozen=True, eq=False)
class EventSequence(PortableResult):
    """The transitions and measurements of a run, in order.

    Sequences are equal if their digests are.

    Attributes
    ----------
    digest : int
        Digest of the whole sequence, see `Run`.
    n_events : int
        Number of transitions.
    codes : ndarray of int, shape (n,)
        At most the first 10,000 codes, see `dae_hybrid.conditions.sequences`.
    is_whole : bool
        Whether `codes` is the whole sequence.
    """

    system: HybridSystem
    digest: int
    n_events: int
    codes: Codes
    is_whole: bool

    @classmethod
    def of(cls, trajectory: Trajectory) -> EventSequence:
        """The sequence of a run."""
        codes = codes_of(trajectory)
        return cls(trajectory.system, digest(codes), trajectory.n_events, codes[:MAX_CODES], codes.size <= MAX_CODES)

    def _owner(self) -> HybridSystem:
        return self.system

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, EventSequence) else NotImplemented

    def __hash__(self) -> int:
        return self.digest

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the transitions and measurements in `codes`."""
        return tuple(self._name(code) for code in self.codes.tolist())

    def _name(self, code: int) -> str:
        if code < 0:
            return {MEASUREMENT: "measurement", BELOW: "relation below", ABOVE: "relation above"}[code]
        transition = self.system.transitions[code // 2]
        if transition.relation is None:
            return transition.name
        return f'"{transition.relation.memory}" changes, {"rising" if code % 2 else "falling"}'

    def difference(self, other: EventSequence) -> str:
        """Where two sequences first differ, in words."""
        n = min(self.codes.size, other.codes.size)
        apart = np.flatnonzero(self.codes[:n] != other.codes[:n])
        place = int(apart[0]) if apart.size else n
        if place == n and not (self.is_whole and other.is_whole):
            return f"beyond event {n}"
        one, two = (own._name(int(own.codes[place])) if place < own.codes.size else "none" for own in (self, other))
        return f"at event {place + 1}: {one} or {two}"

    def __len__(self) -> int:
        return self.n_events

    def __str__(self) -> str:
        groups = [(name, sum(1 for _ in own)) for name, own in groupby(self.names)]
        words = [name if count == 1 else f"{count} x {name}" for name, count in groups]
        if len(words) > 2 * MAX_GROUPS:
            words = [*words[:MAX_GROUPS], "...", *words[-MAX_GROUPS:]]
        return ", ".join(words) + ("" if self.is_whole else ", ...") or "no events"

    def __repr__(self) -> str:
        return f"<EventSequence of {counted(self.n_events, 'event')}: {self}>"
