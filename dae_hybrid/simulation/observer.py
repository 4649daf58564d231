"""What may travel along a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.integrator import SegmentOutcome

if TYPE_CHECKING:
    from dae_hybrid.port.native_plan import NativeRun
    from dae_hybrid.port.record_table import RecordTable
    from dae_hybrid.port.records import EventRecord, KnotRecord, MeasurementRecord
    from dae_hybrid.system.initial import Start
    from dae_hybrid.system.system import ModeSystem
    from dae_hybrid.system.transition_map import TransitionMap


class RunObserver(Protocol):
    """Something that travels along a run: it adds to each segment's task and sees each outcome and event."""

    def start(self, start: Start) -> None:
        """The run starts."""

    def extend(self, mode: ModeSystem, t: float, x: Array, m: Array) -> dict[str, Any]:
        """Further fields of the segment's task."""

    def advance(self, outcome: SegmentOutcome, x: Array, m: Array) -> dict[str, Any]:
        """A segment is done, at a consistent point x; further fields of its record."""

    def cross(self, transition: TransitionMap, event: EventRecord) -> None:
        """A transition has fired."""

    def absorb(self, table: RecordTable) -> None:
        """Transitions have been carried out by the integrator, with the segments before them."""

    def follow(self, start: Start, run: NativeRun) -> Callable[[], dict[str, Any]]:
        """An integrator has carried out the run as a whole; gives the further fields of its last segment's record."""

    def turn(self, knot: KnotRecord) -> None:
        """Signals have passed a knot."""

    def measure(self, record: MeasurementRecord) -> None:
        """A measurement has been taken."""
