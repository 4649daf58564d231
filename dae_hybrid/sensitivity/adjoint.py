"""Adjoint sensitivity analysis: one backward sweep over the records of a trajectory.

Between transitions it integrates SR eq. 36 (eq. 12 and 20 specialised), with the integrals of eq. 33 to 35 for the
parameters and the memory; across them it applies `TransitionLinearisation.backward`. The adjoint is in state space,
L = dG/d(y, m): SR's lambda in eq. 36, minus its F_ydot^T lambda in eq. 12 and 43. Events are read from the records,
never detected again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.cancellation import raise_if_cancelled
from dae_hybrid.errors import NonFiniteError
from dae_hybrid.layout import Layout
from dae_hybrid.numerics.arrays import EPS, Array, all_finite
from dae_hybrid.options import Options
from dae_hybrid.port.failure_messages import refuse_not_finite
from dae_hybrid.port.integrator import BackwardOutcome, BackwardTask, Session, Tolerances
from dae_hybrid.port.native_plan import NativeGradient, TableAdjoint
from dae_hybrid.port.record_table import RecordTable
from dae_hybrid.port.records import EventRecord, KnotRecord, MeasurementRecord
from dae_hybrid.port.segment_rules import ADJOINT_ROUNDING_FACTOR
from dae_hybrid.sensitivity.event_sides import side_gains, time_gains, with_gains
from dae_hybrid.sensitivity.multipliers import consistent_adjoint, round_relative, stated_adjoint
from dae_hybrid.system.derivative_conditions import Conditions
from dae_hybrid.system.linearisation import TransitionLinearisation, chain
from dae_hybrid.system.measurement import measured
from dae_hybrid.system.system import HybridSystem, ModeSystem
from dae_hybrid.trajectory.trajectory import Part, Segment, Trajectory

EMPTY = np.zeros(0)
#: lower bound on a cost's scale, as a share of its integral
MIN_COST_SHARE = 1e-2
#: smallest relative tolerance of an adjoint: below it integrators would resolve rounding errors
MIN_RTOL = 10 * EPS
#: above this number of segments rtol is tightened, because errors accumulate
SEGMENTS_AT_RTOL = 20
#: segment ends of a record table at which the scale of a cost is evaluated
SAMPLED_SEGMENT_ENDS = 4
#: smallest magnitude of a parameter for scaling
MIN_PARAMETER = 1e-100


@dataclass
class AdjointSweep:
    """Backward sweep over a trajectory: its tolerances and the adjoints of segments, records and transitions."""

    trajectory: Trajectory
    session: Session
    options: Options
    components: tuple[int, ...]
    wrt: tuple[int, ...]
    conditions: Conditions = field(default_factory=Conditions)
    _tolerances: dict[int, Tolerances] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.system: HybridSystem = self.trajectory.system

    # -- tolerances -------------------------------------------------------------------------------------

    @cached_property
    def rtol(self) -> float:
        """Relative tolerance of every segment."""
        return self.options.rtol / max(1.0, self.trajectory.parts.n_segments / SEGMENTS_AT_RTOL)

    @cached_property
    def sizes(self) -> Array:
        """Scale of x . dG/dx for each cost: the contribution of the states to first order."""
        t, mode, x, m = self.trajectory.final
        chosen, p = list(self.components), self.trajectory.parameters
        final = self.system.modes[mode]
        by_u = final.kernels["terminal"](t, x, m, p)[1][chosen]
        size = np.abs(by_u[:, : x.size + m.size]) @ np.concatenate((self._magnitude(final, x), np.abs(m)))
        duration, largest = self.trajectory.t_span[1] - self.trajectory.t_span[0], np.zeros_like(size)
        for own, at, x_end, memory in self._segment_ends():
            g_x = own.kernels["adjoint_point"](at, x_end, memory, p)[1][chosen]
            if not all_finite(g_x.ravel()):
                g_x = np.where(np.isfinite(g_x), g_x, 0.0)
            largest = np.maximum(largest, np.abs(g_x) @ self._magnitude(own, x_end))
        # a run that has settled has small integrands at its ends, although its cost is large
        size = np.maximum(size + duration * largest, MIN_COST_SHARE * np.abs(self.trajectory.integrals[chosen]))
        return np.asarray(np.where(np.isfinite(size) & (size > 0), size, 1.0))

    def _tolerance(self, mode: ModeSystem) -> Tolerances:
        """Return the tolerances of the adjoints and of the integrals in a mode.

        The states' ratio of absolute tolerance to size, at most rtol and above rounding, is applied to dG/dx ~ s/x,
        dG/dp ~ s/p and dG/dm ~ s/m, with s the scale of the cost in `sizes`.
        """
        if mode.index not in self._tolerances:
            layout, sizes = mode.equations.variables, self.sizes[:, None]
            x = self._extent_of(layout)
            finer = self.rtol / self.options.rtol
            floor = np.minimum(np.maximum(finer * self.options.absolute(layout) / x, MIN_RTOL), self.rtol)
            least = floor.min(initial=self.rtol)
            self._tolerances[mode.index] = Tolerances(
                sizes * (floor / x), sizes * (least / self._other_extents), self.rtol
            )
        return self._tolerances[mode.index]

    def _magnitude(self, mode: ModeSystem, x: Array) -> Array:
        """Return |x| at a point, with `_unresolved` for states that never exceed it, or are within their atol there."""
        layout, found = mode.equations.variables, np.abs(x)
        extent, least = self._extent_of(layout), self._unresolved(layout)
        own = found[: extent.size]
        own[:] = np.where((extent == least) | (own <= self.options.absolute(layout)), least, own)
        return found

    def _unresolved(self, layout: Layout) -> Array:
        """Return the scale atol / rtol of states that stay within their absolute tolerance.

        If a symmetry keeps such a state at zero, its own magnitude is a rounding error, and so would be the tolerance
        of its adjoint.
        """
        return self.options.absolute(layout) / self.options.rtol

    def _extent_of(self, layout: Layout) -> Array:
        return np.concatenate([EMPTY, *(self._extent[name] for name in layout.names)])

    @cached_property
    def _other_extents(self) -> Array:
        """Magnitudes of the parameters and the memory."""
        p = np.abs(self.trajectory.parameters[list(self.wrt)])
        return np.concatenate((np.where(p > 0, np.maximum(p, MIN_PARAMETER), 1.0), self._extent_of(self.system.memory)))

    def _segment_ends(self) -> Iterator[tuple[ModeSystem, float, Array, Array]]:
        """Yield mode, time, x and memory at ends of segments; for record tables at a sample of them."""
        for is_table, items in groupby(self.trajectory.parts.given, lambda item: isinstance(item, RecordTable)):
            if not is_table:
                segments = (item for item in items if isinstance(item, Segment))
                yield from ((item.mode, item.t_end, item.x_end, item.memory) for item in segments)
                continue
            tables = [item for item in items if isinstance(item, RecordTable)]
            count = sum(table.count for table in tables)
            stride = -(-count // SAMPLED_SEGMENT_ENDS)
            first = (count - 1) % stride
            for table in tables:
                yield from ((self.system.modes[mode], t, x, m) for mode, t, x, m in table.ends(first, stride))
                first -= table.count

    @cached_property
    def _extent(self) -> dict[str, Array]:
        """Largest magnitude or change of each variable and memory; at least `_unresolved`, one for a memory of zero."""
        extent: dict[str, Array] = {}

        def note(blocks: Layout, values: Array) -> None:
            for name in blocks.names:
                part = values[blocks[name]]
                extent[name] = np.maximum(extent[name], part) if name in extent else part

        for item in self.trajectory.parts.given:
            if isinstance(item, RecordTable):
                for mode in item.methods:
                    note(self.system.modes[mode].equations.variables, item.extents[mode])
                note(self.system.memory, item.memory_extent)
            elif isinstance(item, Segment):
                note(item.mode.equations.variables, item.extent())
                note(self.system.memory, np.abs(item.memory))
        _, final, x, _ = self.trajectory.final
        layout = self.system.modes[final].equations.variables
        for name in layout.names:  # the last mode may have been entered at the end only
            extent.setdefault(name, np.abs(x[layout[name]]))
        for own in self.system.modes:
            layout = own.equations.variables
            absolute, least = self.options.absolute(layout), self._unresolved(layout)
            for name in extent.keys() & set(layout.names):
                part = layout[name]
                extent[name] = np.where(extent[name] > absolute[part], extent[name], least[part])
        return {name: np.where(size > 0, size, 1.0) for name, size in extent.items()}

    # -- parts of the sweep --------------------------------------------------------------------------------

    def terminal(self) -> tuple[Array, Array, Array]:
        """Return dG/dw, dG/dp and dG/dt of the terminal values; dG/dt is zero if the final time is given."""
        t, mode, x, m = self.trajectory.final
        final, p = self.system.modes[mode], self.trajectory.parameters
        by_u = final.kernels["terminal"](t, x, m, p)[1][list(self.components)]
        refuse_not_finite("a terminal value", (by_u,), mode=final.name, time=t)
        n_w = final.differential.size + m.size
        total = by_u @ chain(final, t, x, m, p) if by_u.any() else np.zeros((len(by_u), n_w + p.size + 1))
        time_cotangent = total[:, -1] if self.trajectory.ended_by_event else np.zeros(len(total))
        return total[:, :n_w], total[:, n_w:-1], time_cotangent

    def segment(self, segment: Segment, adjoint: Array, t_eval: Array | None = None) -> BackwardOutcome:
        """Integrate the adjoint of a segment back to its start, from dG/dy (k, n_differential)."""
        mode, n, p = segment.mode, segment.mode.equations.n, self.trajectory.parameters
        start = adjoint
        if not segment.has_discrete_adjoint:
            start = round_relative(adjoint, self.options.rtol / ADJOINT_ROUNDING_FACTOR)
        full, rates = start, np.zeros_like(start)
        t, x, m = segment.t_end, segment.x_end, segment.memory
        if mode.equations.index == 2:
            full, rates, _ = stated_adjoint(mode, t, x, m, start, p, self.components)
        elif n > mode.differential.size:
            full, rates = consistent_adjoint(mode, t, x, m, start, p, self.components)
        outcome = self.session.backward(
            BackwardTask(
                segment.interpolate.replay_task(),
                self.components,
                full[:, :n],
                rates[:, :n],
                lambda: self._tolerance(mode),
                t_eval,
                segment.path,
            )
        )
        if not all(
            all_finite(v.ravel()) for v in (outcome.adjoints, outcome.parameter_integrals, outcome.memory_integrals)
        ):
            raise NonFiniteError("The adjoint is not finite.", mode=mode.name, time=segment.t_start)
        return outcome

    def sweep_events(
        self, table: RecordTable, adjoint: Array, total: Array, first: int, *, at_events: bool
    ) -> TableAdjoint | None:
        """Sweep a record table natively, from dG/dp so far; None if its parts have to be swept one by one.

        `first` is the index of its first event among those of the run.
        """
        sides = self._sides_in(table, first)
        if sides is None:
            return None
        width, records = table.width, table.measurements(self.system)
        gained = np.zeros((len(records), len(self.components), width + len(self.wrt)))
        values = measured(self.system.measurements, records, self.trajectory.parameters)
        for row, record, (_, by_u) in zip(gained, records, values, strict=True):
            by_w, share = self.measurement_adjoint(record, by_u)
            row[:, : by_w.shape[1]], row[:, width:] = by_w, share
        modes = self.system.modes
        found = self.session.sweep(
            table, adjoint, total, self.components, lambda mode: self._tolerance(modes[mode]), gained, sides,
            at_events=at_events or table.knots.size > 0,
        )  # fmt: skip
        return (
            found
            if found is None or found.adjoint_at_events is None or not table.knots.size
            else self._with_knots(table, found, found.adjoint_at_events)
        )

    def _sides_in(self, table: RecordTable, first: int) -> dict[int, Array] | None:
        """Return the contributions after and before events, by record; None if the core has to add them.

        What the time of an event contributes is carried to the state before it.
        """
        found: dict[int, Array] = {}
        for index in sorted({side.event for side in self.system.sides if 0 <= side.event - first < table.n_events}):
            event = self.trajectory.events[index]
            if event.follows:
                return None
            map_, shape = self.linearise(event), (2, len(self.components), table.width + len(self.wrt))
            gained = np.zeros(shape)
            for gain in side_gains(self.trajectory, event, index, self.components):
                own = gained[int(gain.side.side == "-"), gain.cost]
                own[: gain.by_w.size] += gain.by_w
                own[table.width :] += gain.by_p[list(self.wrt)]
                before, share = gain.by_t / map_.rate * map_.h_w, gain.by_t / map_.rate * map_.h_p
                gained[1, gain.cost, : before.size] -= before
                gained[1, gain.cost, table.width :] -= share[list(self.wrt)]
            found[int(np.flatnonzero(table.is_event)[index - first])] = gained
        return found

    def _with_knots(self, table: RecordTable, found: TableAdjoint, adjoints: Array) -> TableAdjoint:
        """Add the contributions of the signals' values at the knots of a record table to dG/dp."""
        p, wrt, knots = self.trajectory.parameters, list(self.wrt), table.knots
        times, gained = table.column("time")[knots], np.zeros((table.count, len(self.components), len(wrt)))
        sizes = np.array([mode.differential.size for mode in self.system.modes])[
            table.column("mode")[knots].astype(int)
        ]
        for signal in self.system.signals:
            if signal.movable:
                by_p = signal.rows_along(p, None)[signal.intervals(times) + 1][:, :, wrt]
                places = sizes[:, None] + np.arange(signal.memory.start, signal.memory.stop)
                gained[knots] += np.einsum("nck,ncp->nkp", adjoints[knots[:, None], :, places], by_p)
        since = np.cumsum(gained[::-1], axis=0)[::-1]
        adjoints = adjoints.copy()
        adjoints[:, :, found.width :] += since
        return replace(found, total=found.total + since[0], adjoint_at_events=adjoints)

    def project_adjoint(self, segment: Segment, adjoint: Array) -> tuple[Array, Array]:
        """Apply the transpose of the projection onto the constraints at the end of a segment; also return its dG/dp.

        In the direct index-2 form lambda is moved to satisfy SR eq. 20b, by the projection above eq. 21.
        """
        mode, t, x, m = segment.mode, segment.t_end, segment.x_end, segment.memory
        if not mode.invariants:
            return adjoint, np.zeros((len(adjoint), len(self.wrt)))
        p, nw = self.trajectory.parameters, adjoint.shape[1]
        direction, by_wp = mode.onto_constraints(t, x, m, p)
        weight = adjoint @ direction
        if mode.equations.index == 2:
            ny = mode.differential.size
            landed = adjoint[:, :ny] - weight @ by_wp[:, :ny]
            weight = weight - stated_adjoint(mode, t, x, m, landed, p, self.components)[2]
        return adjoint - weight @ by_wp[:, :nw], -weight @ by_wp[:, nw:][:, list(self.wrt)]

    def measurement_adjoint(self, record: MeasurementRecord, by_u: Array) -> tuple[Array, Array]:
        """Return the contributions of a measurement to dG/dw and dG/dp from its derivative by u = (x, m, p, t)."""
        p, measurement, wrt = self.trajectory.parameters, self.system.measurements[record.index], list(self.wrt)
        rows = np.zeros((self.system.functionals.size, by_u.shape[1]))
        rows[measurement.components] = by_u
        rows = rows[list(self.components)]
        refuse_not_finite(measurement.name, (rows,), mode=record.mode.name, time=record.time)
        mode = record.mode
        total = rows @ chain(mode, record.time, record.x, record.memory, p) if mode.algebraic.size else rows
        n_w = record.mode.differential.size + record.memory.size
        share = total[:, n_w:-1]
        if measurement.movable:
            share = share + measurement.moved(rows, record, p)
        return total[:, :n_w], share[:, wrt]

    def linearise(self, event: EventRecord) -> TransitionLinearisation:
        """Linearise the transition of a record, for the components of this sweep."""
        run = self.trajectory
        whole = self.system.linearise(event, run.parameters, run.t_span[0], self.conditions)
        chosen = whole if len(self.components) == len(whole.integrand_minus) else whole.select(list(self.components))
        chosen.refuse_not_finite(event)
        return chosen


class _SweepStep(NamedTuple):
    """Result of the sweep over one part of a trajectory or one record table."""

    part: Part | RecordTable
    adjoint: Array  # dG/dw before it
    total: Array  # dG/dp, (k, n_wrt), of this part and all later ones
    samples: Array
    table: TableAdjoint | None = None  # with the adjoint before every event


def adjoint_at_events(table: RecordTable, found: TableAdjoint | NativeGradient) -> list[tuple[Array, Array]]:
    """Return dG/dw before the first event of every instant of a table and dG/dp from there on, the last one first."""
    if found.adjoint_at_events is None:
        raise AssertionError("the adjoint at events was not requested")
    sizes = [e.n_differential + e.n_memory for e in table.graph.equations]
    first = table.orders[table.is_event] == 0
    rows = zip(table.event_headers, found.adjoint_at_events[table.is_event], first.tolist(), strict=True)
    return [(mark[:, : sizes[head.mode]], mark[:, found.width :]) for head, mark, is_first in rows if is_first][::-1]


def _sweep_parts(
    sweep: AdjointSweep, adjoint: Array, total: Array, time_cotangent: Array,
    t_eval: Callable[[Segment], Array | None] | None = None, *, at_events: bool = False,
) -> Iterator[_SweepStep]:  # fmt: skip
    """Sweep the trajectory from its end; `t_eval` returns the sampling times of a segment, decreasing."""
    wrt = list(sweep.wrt)
    parts, sides = [*reversed(sweep.trajectory.parts.given)], {side.event for side in sweep.system.sides}
    left = sweep.trajectory.n_events  # events before the part
    while parts:
        raise_if_cancelled()
        part = parts.pop(0)
        if isinstance(part, RecordTable):
            table, found = part.complete(), None
            first = left - table.n_events
            if t_eval is None and not time_cotangent.any():
                found = sweep.sweep_events(table, adjoint, total, first, at_events=at_events)
            if found is None:
                parts[:0] = reversed(sweep.trajectory.parts.of(part))
            else:
                left = first
                adjoint, total = found.adjoints, found.total
                yield _SweepStep(table, adjoint, total, EMPTY, found)
                part.release()
        elif isinstance(part, Segment):
            adjoint, landing = sweep.project_adjoint(part, adjoint)
            ny = part.mode.differential.size
            outcome = sweep.segment(part, adjoint[:, :ny], None if t_eval is None else t_eval(part))
            adjoint = np.hstack((outcome.adjoints[:, :ny], adjoint[:, ny:] + outcome.memory_integrals))
            total = total + (outcome.parameter_integrals + landing)
            yield _SweepStep(part, adjoint, total, outcome.samples)
        elif isinstance(part, KnotRecord):
            entries = adjoint.shape[1] - sweep.system.memory.size + part.entries
            by_p = sweep.system.knot_derivatives(part, sweep.trajectory.parameters)
            total = total + adjoint[:, entries] @ by_p[:, wrt]
            adjoint = adjoint.copy()
            adjoint[:, entries] = 0.0
            yield _SweepStep(part, adjoint, total, EMPTY)
        elif isinstance(part, MeasurementRecord):
            by_u = sweep.system.measurements[part.index].value(part, sweep.trajectory.parameters)[1]
            gained, share = sweep.measurement_adjoint(part, by_u)
            adjoint, total = adjoint + gained, total + share
            yield _SweepStep(part, adjoint, total, EMPTY)
        else:
            left -= 1
            gains = side_gains(sweep.trajectory, part, left, sweep.components) if left in sides else []
            after, late = with_gains(gains, "+", adjoint, np.zeros((len(adjoint), sweep.trajectory.parameters.size)))
            before, share, time_cotangent = sweep.linearise(part).backward(after, time_gains(gains, time_cotangent))
            adjoint, share = with_gains(gains, "-", before, share + late)
            time_cotangent = (
                time_cotangent if part.order else np.zeros_like(time_cotangent)
            )  # the start of the run does not move
            total = total + share[:, wrt]
            yield _SweepStep(part, adjoint, total, EMPTY)


def gradient(sweep: AdjointSweep, seen: list[tuple[Array, Array]] | None = None) -> Array:
    """Return dG/dp, shape (k, n_wrt).

    For the first event of every instant, from the last to the first, dG/dw before it and the contribution to dG/dp
    from there on are appended to `seen`.
    """
    wrt = list(sweep.wrt)
    adjoint, by_p, time_cotangent = sweep.terminal()
    total = by_p[:, wrt]
    for step in _sweep_parts(sweep, adjoint, total, time_cotangent, at_events=seen is not None):
        if seen is not None and step.table is not None and isinstance(step.part, RecordTable):
            seen += adjoint_at_events(step.part, step.table)
        adjoint, total = step.adjoint, step.total
        if seen is not None and isinstance(step.part, EventRecord) and not step.part.order:
            seen.append((adjoint, total))
    total = total + adjoint @ sweep.trajectory.start.derivatives[:, wrt]
    if not np.all(np.isfinite(total)):
        labels = sweep.trajectory.system.parameters.labels()
        bad = [labels[i] for i, column in zip(wrt, np.atleast_2d(total).T, strict=True) if not all_finite(column)]
        raise NonFiniteError(
            f"The gradient is not finite: by {', '.join(bad)}.", time=sweep.trajectory.t_span[0], variables=bad
        )
    return np.asarray(total)


def samples(sweep: AdjointSweep, times: Array, side: str) -> list[Array]:
    """Return the adjoint at sorted times, each (k, n) in the variables of the active mode."""

    def inside(segment: Segment) -> NDArray[np.intp]:
        return np.flatnonzero((times >= segment.t_start) & (times <= segment.t_end))[::-1]

    def t_eval(segment: Segment) -> Array | None:
        return times[inside(segment)] if inside(segment).size else None

    found: list[Array | None] = [None] * times.size
    adjoint, by_p, time_cotangent = sweep.terminal()
    for part, _, _, sampled, _ in _sweep_parts(sweep, adjoint, by_p[:, list(sweep.wrt)], time_cotangent, t_eval):
        if isinstance(part, Segment):
            ny = part.mode.differential.size
            for index, value in zip(inside(part), sampled, strict=True):
                if found[index] is None or side == "left":
                    found[index] = _completed(part, float(times[index]), value[:, :ny], sweep)
    return [value for value in found if value is not None]


def _completed(segment: Segment, t: float, adjoint: Array, sweep: AdjointSweep) -> Array:
    """Return (lambda, mu) at a time of a segment from lambda."""
    if not segment.mode.algebraic.size:
        return adjoint
    ends = {segment.t_start: segment.x_start, segment.t_end: segment.x_end}
    x = ends[t] if t in ends else segment.dense(np.array([t]))[0]
    p = sweep.trajectory.parameters
    complete = stated_adjoint if segment.mode.invariants else consistent_adjoint
    return complete(segment.mode, t, x, segment.memory, adjoint, p, sweep.components)[0]
