"""The mode loop: integrate, locate, apply, reinitialise, record. No sensitivity code."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from dae_hybrid.errors import DaeHybridError, EventError, NonFiniteError
from dae_hybrid.events import Entry, Instant
from dae_hybrid.integrator import Array, SegmentOutcome, SegmentTask, Session
from dae_hybrid.options import Options
from dae_hybrid.system import HybridSystem, ModeSystem
from dae_hybrid.trajectory import EventRecord, Interpolant, Segment, Trajectory
from dae_hybrid.transition import TransitionMap

NONE: frozenset[int] = frozenset()


class Companion(Protocol):
    """Something that travels along a run: it adds to each segment's task and sees each outcome and event."""

    def start(self, mode: ModeSystem, t: float, x: Array, m: Array) -> None:
        """The run starts."""

    def extend(self, mode: ModeSystem, t: float, x: Array, m: Array) -> dict[str, Any]:
        """Further fields of the segment's task."""

    def advance(self, outcome: SegmentOutcome) -> dict[str, Any]:
        """A segment is done; further fields of its record."""

    def cross(self, transition: TransitionMap, event: EventRecord) -> None:
        """A transition has fired."""


class Automaton:
    """One run of a system. Holds the state of the run between segments."""

    def __init__(
        self,
        system: HybridSystem,
        session: Session,
        parameters: Array,
        t_span: tuple[float, float],
        t_eval: Array | None,
        options: Options,
        companion: Companion | None,
        reopen: Any,
    ) -> None:
        self.system, self.session, self.p = system, session, parameters
        self.span, self.t_eval, self.options, self.companion = t_span, t_eval, options, companion
        self.reopen = reopen
        self.instant = Instant(system, t_span, options.max_transitions_per_instant)
        self.parts: list[Segment | EventRecord] = []
        self.integrals = np.zeros(system.functionals.size)
        self.t = t_span[0]
        self.mode = system.modes[system.initial.mode]
        self.x, self.m = np.zeros(0), np.zeros(0)
        self.n_events = 0

    def run(self) -> Trajectory:
        """Run to the end; an error carries the trajectory up to it."""
        try:
            self.x, self.m = self.system.initial.values(self.mode, self.t, self.p)
            if self.companion is not None:
                self.companion.start(self.mode, self.t, self.x, self.m)
            self._loop()
            self._last_output()
        except DaeHybridError as error:
            error.trajectory = self._trajectory(complete=False)
            raise
        return self._trajectory(complete=True)

    def _loop(self) -> None:
        end, crossed = self.span[1], NONE
        while True:
            entry = self.instant.enter(self.mode, self.t, self.x, self.m, self.p, crossed)
            if entry.fires is not None:
                if self._fire(entry.fires, entry.xdot, entry.guard, entry.rate, 0):
                    return
                continue
            due, timed, count = self.instant.due(self.mode, self.t, self.p)
            if timed is not None and due <= self.t:
                if self._fire(timed, entry.xdot, 0.0, 1.0, count):
                    return
                continue
            if self.t >= end:
                return
            outcome = self._segment(min(end, due), due, entry)
            crossed = NONE if outcome.guard is None else frozenset(self.mode.guarded)
            if outcome.guard is None:
                continue
            fired = self.system.transitions[self.mode.guarded[outcome.guard]]
            _, h, rate, _ = self.mode.kernels["entry"](self.t, self.x, self.m, self.p)
            if self._fire(fired, outcome.xdot, float(h[outcome.guard]), float(rate[outcome.guard]), 0):
                return

    def _segment(self, t_stop: float, due: float, entry: Entry) -> SegmentOutcome:
        mode, start, x, m = self.mode, self.t, self.x, self.m
        self.instant.leave()
        more = {} if self.companion is None else self.companion.extend(mode, start, x, m)
        t_eval = None
        closed = t_stop >= self.span[1] and due > t_stop
        if self.t_eval is not None:
            first = np.searchsorted(self.t_eval, start, side="left")
            last = np.searchsorted(self.t_eval, t_stop, side="right")
            t_eval = np.ascontiguousarray(self.t_eval[first:last])
        record = "nothing" if t_eval is not None and not t_eval.size else "steps"
        task = SegmentTask(
            mode.equations, start, t_stop, x, entry.xdot, m, self.integrals, entry.zero_band,
            record, t_eval, closed, **more,
        )  # fmt: skip
        try:
            outcome = self.session.integrate(task)
        except DaeHybridError as error:
            rows = getattr(error, "rows", None)
            if rows is not None and len(rows):
                self._record(task, float(rows[-1, 0]), rows[-1, 1 : 1 + x.size], entry.xdot, rows, {})
            error.mode = error.mode or mode.name
            raise
        self.t, self.x, self.integrals = outcome.t, outcome.x, outcome.integrals
        kept = {} if self.companion is None else self.companion.advance(outcome)
        self._record(task, outcome.t, outcome.x, outcome.xdot, outcome.rows, kept)
        return outcome

    def _record(self, task: SegmentTask, t: float, x: Array, xdot: Array, rows: Array, kept: dict[str, Any]) -> None:
        n = x.size
        self.parts.append(
            Segment(
                self.mode.index,
                task.t0,
                t,
                task.x0,
                x,
                task.xdot0,
                xdot,
                task.memory,
                rows[:, 0],
                rows[:, 1 : 1 + n],
                _Redo(self.reopen, task, t),
                **kept,
            )  # fmt: skip
        )

    def _last_output(self) -> None:
        """An output time at the very end, where a transition fired: the value after it."""
        done = sum(len(part.t) for part in self.parts if isinstance(part, Segment))
        if self.t_eval is None or done >= self.t_eval.size or self.t_eval[done] != self.t:
            return
        entry = self.instant.enter(self.mode, self.t, self.x, self.m, self.p, NONE)
        more = {} if self.companion is None else self.companion.extend(self.mode, self.t, self.x, self.m)
        task = SegmentTask(
            self.mode.equations, self.t, self.t, self.x, entry.xdot, self.m, self.integrals, entry.zero_band, **more
        )
        outcome = self.session.integrate(task)
        kept = {} if self.companion is None else self.companion.advance(outcome)
        kept = {name: rows[:1] if name == "sensitivities" else rows for name, rows in kept.items()}
        self._record(task, self.t, self.x, entry.xdot, outcome.rows[:1], kept)

    def _fire(self, transition: TransitionMap, xdot: Array, guard: float, rate: float, count: int) -> bool:
        """Apply a transition and record it; whether the run ends."""
        t, source = self.t, self.mode
        if transition.kind == "every":
            self.instant.counts[transition.index] = count
        order = self.instant.fired(transition, t)
        self.n_events += 1
        if self.n_events > self.options.max_events:
            raise EventError(
                f"More than max_events={self.options.max_events} transitions.",
                transition=transition.name,
                time=t,
                remedy="Raise max_events, or check the guards for chattering.",
            )
        if transition.target is None:
            target, x, m, xdot_plus = source, self.x, self.m, xdot
        else:
            target = self.system.modes[transition.target]
            x, m = transition.apply(target, t, self.x, self.m, self.p)
            xdot_plus = target.kernels["entry"](t, x, m, self.p)[0]
            if not np.all(np.isfinite(xdot_plus)):
                raise NonFiniteError(
                    "The equations are not finite after the transition.",
                    transition=transition.name,
                    mode=target.name,
                    time=t,
                )
        event = EventRecord(
            time=t, index=transition.index, transition=transition.name, source=source.name,
            target=None if transition.target is None else target.name, order=order, guard=guard,
            direction=0 if transition.kind != "guard" else (1 if rate > 0 else -1), rate=rate, count=count,
            x_minus=self.x, x_plus=x, xdot_minus=xdot, xdot_plus=xdot_plus, memory_minus=self.m, memory_plus=m,
            n_differential=(source.differential.size, target.differential.size),
        )  # fmt: skip
        self.parts.append(event)
        if self.companion is not None:
            self.companion.cross(transition, event)
        self.mode, self.x, self.m = target, x, m
        return transition.target is None

    def _trajectory(self, *, complete: bool) -> Trajectory:
        values = self.integrals.copy()
        if complete:
            values = values + self.mode.kernels["terminal"](self.t, self.x, self.m, self.p)[0]
            if not np.all(np.isfinite(values)):
                names = [
                    n
                    for n in self.system.functionals.names
                    if not np.all(np.isfinite(values[self.system.functionals[n]]))
                ]
                error = NonFiniteError(
                    "A functional is NaN or infinite.", variables=names, time=self.t, mode=self.mode.name
                )
                error.trajectory = self._trajectory(complete=False)
                raise error
        functionals = {name: scalar(values[self.system.functionals[name]]) for name in self.system.functionals.names}
        return Trajectory(
            self.system, self.span, self.p, tuple(self.parts), self.integrals, functionals if complete else {},
            self.session.statistics(), self.instant.diagnostics(), (self.t, self.mode.index, self.x, self.m), complete,
        )  # fmt: skip


def scalar(values: Array) -> Any:
    """A float for one entry, the array otherwise."""
    return float(values[0]) if values.size == 1 else values


class _Redo:
    """Makes the dense interpolant of a segment by integrating it again."""

    def __init__(self, reopen: Any, task: SegmentTask, t_end: float) -> None:
        self.reopen, self.task, self.t_end = reopen, task, t_end

    def __call__(self, segment: Segment) -> Interpolant:
        task = self.task
        again = SegmentTask(
            task.equations, task.t0, self.t_end, task.x0, task.xdot0, task.memory, task.integrals,
            np.full_like(task.zero_band, np.inf), "dense",
        )  # fmt: skip
        session = self.reopen()
        try:
            rows = session.integrate(again).rows
        finally:
            session.close()
        if not len(rows):
            rows = np.concatenate(([self.t_end, self.t_end - task.t0, 0.0], segment.x_end))[None, :]
        return Interpolant(rows, segment.x_end.size)
