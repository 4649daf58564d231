"""The protocol of an observer, which is notified of every segment, event and measurement of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.integrator import SegmentOutcome, TaskSensitivities

if TYPE_CHECKING:
    from dae_hybrid.port.native_plan import NativeRun
    from dae_hybrid.port.record_table import RecordTable
    from dae_hybrid.port.records import EventRecord, KnotRecord, MeasurementRecord
    from dae_hybrid.system.initial import RunStart
    from dae_hybrid.system.system import ModeSystem
    from dae_hybrid.system.transition_map import TransitionMap
    from dae_hybrid.trajectory.trajectory import SegmentSensitivities


class RunObserver(Protocol):
    """Adds fields to every segment's task and is notified of every outcome and event."""

    def on_start(self, start: RunStart) -> None:
        """Note the start of the run."""

    def segment_fields(self, mode: ModeSystem, t: float, x: Array, m: Array) -> TaskSensitivities:
        """Return further fields of the segment's task."""

    def on_segment(self, outcome: SegmentOutcome, x: Array, m: Array) -> SegmentSensitivities:
        """Note the end of a segment at a consistent point x; return further fields of its record."""

    def on_transition(self, transition: TransitionMap, event: EventRecord) -> None:
        """Note a transition that was applied in Python."""

    def on_native_events(self, table: RecordTable) -> None:
        """Note the events that the native loop handled, with the segments before them."""

    def on_native_pause(self) -> None:
        """Note that the native loop paused after its last event, instead of beginning a segment."""

    def on_native_run(self, start: RunStart, run: NativeRun) -> Callable[[], SegmentSensitivities]:
        """Note a run completed by the native loop; return a function for the further fields of its last segment."""

    def on_knot(self, knot: KnotRecord) -> None:
        """Note a knot of the signals."""

    def on_measurement(self, record: MeasurementRecord) -> None:
        """Note a measurement."""
