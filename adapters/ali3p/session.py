"""A run by the index-3 scheme, one segment at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from dae_hybrid.adapters.ali3p.backward import adjoint
from dae_hybrid.adapters.ali3p.control import Walk
from dae_hybrid.adapters.ali3p.scheme import RULES, Scheme
from dae_hybrid.adapters.ali3p.segment import MotionSegment
from dae_hybrid.errors import DaeHybridError
from dae_hybrid.method import AUTO, Method
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.crossings import Pace, Turn
from dae_hybrid.options import Options
from dae_hybrid.port.integrator import BackwardOutcome, BackwardTask, Equations, SegmentOutcome, SegmentTask, Tolerances
from dae_hybrid.port.native_plan import RunContext, SegmentRun, TableAdjoint
from dae_hybrid.port.record_table import RecordTable
from dae_hybrid.port.segment_rules import is_short, one_segment, standing_still
from dae_hybrid.steppers.guard_monitor import GuardMonitor

#: the methods by name
METHODS = {name: Method(name=name, final_outputs=True, retakes_steps=True) for name in RULES}


class Ali3pSession:
    """One run on one thread."""

    def __init__(self, options: Options, parameters: Array, directions: Array | None, wrt: tuple[int, ...]) -> None:
        self.options, self.p, self._wrt = options, parameters, list(wrt)
        self._directions = np.zeros((0, parameters.size)) if directions is None else directions
        self._counts: Counter[str] = Counter()
        self._turns: list[tuple[Equations, Turn]] = []
        self._paces: dict[int, Pace] = {}  # of guards in earlier segments of the run, by equations

    def close(self) -> None:
        """Do nothing: no resources are held between segments."""

    def statistics(self) -> dict[str, int]:
        """Return counters."""
        names = ("steps", "iterations", "factorisations", "error_test_failures", "guard_evaluations", "segments")
        return {name: self._counts[name] for name in names}

    def turns(self) -> list[tuple[Equations, Turn]]:
        """See `dae_hybrid.port.integrator.Session.turns`."""
        return self._turns

    def run_segments(self, task: SegmentTask, context: RunContext) -> SegmentRun:
        """See `dae_hybrid.port.integrator.Session.run_segments`."""
        return one_segment(self, task, context.mode)

    def sweep(
        self, table: RecordTable, adjoints: Array, total: Array, components: tuple[int, ...],
        tolerances: Callable[[int], Tolerances], measured: Array, sides: Mapping[int, Array], *, at_events: bool,
    ) -> TableAdjoint | None:  # fmt: skip
        """See `dae_hybrid.port.integrator.Session.sweep`; this session produces no record tables."""
        del table, adjoints, total, components, tolerances, measured, sides, at_events
        return None

    def _rule(self, task: SegmentTask) -> str:
        """The name of the rule that integrates a task."""
        chosen = task.method or self.options.method
        return next(iter(RULES)) if chosen == AUTO else chosen

    def _walk(self, task: SegmentTask) -> Walk:
        scheme = Scheme(task.equations, self._rule(task), task.memory, self.p)
        return Walk(task, scheme, self.options, task.end, self.options.max_steps - self._counts["steps"])

    def integrate(self, task: SegmentTask) -> SegmentOutcome:
        """See `dae_hybrid.port.integrator.Session.integrate`."""
        self._counts["segments"] += 1
        method = METHODS[self._rule(task)]
        if is_short(task.t0, task.t_stop):
            return standing_still(task, method)
        walk, known = self._walk(task), self._paces.get(id(task.equations))
        monitor = GuardMonitor(task, lambda x: x, self.p, known)
        self._paces[id(task.equations)] = monitor.pace
        segment = MotionSegment(task, walk, monitor, self._directions, method)
        try:
            return segment.outcome()
        except DaeHybridError as error:
            error.rows, error.method = segment.outputs.array(), method
            raise
        finally:
            self._count(walk)
            self._counts["guard_evaluations"] += monitor.evaluations
            self._turns += [(task.equations, turn) for _, turn in monitor.turns.found]

    def _count(self, walk: Walk) -> None:
        self._counts["steps"] += walk.count
        self._counts["error_test_failures"] += walk.rejected
        self._counts["iterations"] += walk.scheme.iterations
        self._counts["factorisations"] += walk.scheme.factorisations

    def backward(self, task: BackwardTask) -> BackwardOutcome:
        """See `dae_hybrid.port.integrator.Session.backward`: the discrete adjoint, with the steps of the run."""
        self._counts["segments"] += 1
        walk = self._walk(task.forward)
        try:
            return adjoint(task, walk, self._wrt)
        finally:
            self._count(walk)
