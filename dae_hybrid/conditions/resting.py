"""Kinks of equations and integrands at which a run rests.

Passing a kink is harmless, because the integral is continuous across it. If its argument stays at zero, such as that of
`fabs(x - y)` with x = y, and would not do so for other parameters, there are only one-sided derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import casadi as ca
import numpy as np
from numpy.typing import NDArray

from dae_hybrid.codegen.casadi_tools import kind_for
from dae_hybrid.codegen.kernels import Kernel
from dae_hybrid.errors import EventError
from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.port.record_table import RECORDS, RecordTable
from dae_hybrid.port.records import EventRecord, KnotRecord, MeasurementRecord
from dae_hybrid.port.replay import SegmentReplay
from dae_hybrid.simulation.event_logic import SIMULTANEITY_RTOLS, ZERO_ROUNDINGS
from dae_hybrid.statement.discontinuities import Discontinuities
from dae_hybrid.statement.discontinuous_nodes import KINKS, bare
from dae_hybrid.statement.lookup import without_look_ups
from dae_hybrid.system.derivative_conditions import Conditions
from dae_hybrid.system.linearisation import chain

if TYPE_CHECKING:
    from dae_hybrid.sensitivity.forward import TangentState
    from dae_hybrid.system.system import ModeSystem
    from dae_hybrid.trajectory.trajectory import Segment, Trajectory

#: share of a segment during which the argument of a kink must be zero to be at rest; relative size of a zero rate
REST_SHARE, ZERO_RATE = 1e-2, 1e-6
#: sampling times of a segment whose outputs are not at its steps, and numbers in memory at a time
SAMPLES, MAX_NUMBERS = 101, 1_000_000
#: times per segment, among those at which a kink rests, that are examined
TIMES_PER_SEGMENT = 8
#: distance from a kink, as a multiple of the allowed one, at which a state with uncorrected algebraic variables is not
#: at the kink
UNCORRECTED_FACTOR = 100.0
#: sides that differ by less than this number of tolerances are equal
EQUAL_TOLERANCES = 100.0
#: factor of |.|, from max(a, b) = (a + b + |a - b|) / 2
SHARPNESS = {ca.OP_FABS: 1.0, ca.OP_FMAX: 0.5, ca.OP_FMIN: -0.5}


@dataclass(frozen=True, eq=False)
class Kinks:
    """The kinks of the equations and integrands of a mode.

    `flow` are the rates of y, `integrands` those of the functionals, `residuals` the algebraic equations; `by_switches`
    returns them by the memory of their relations, `lower` turns them, with further symbols, into a function of
    (t, x, m, p) and these. Kinks that depend on none of `moving` are constant.
    """

    what: str
    flow: Sequence[ca.MX]
    integrands: Sequence[ca.MX]
    residuals: Sequence[ca.MX]
    by_switches: Callable[[Sequence[ca.MX]], list[ca.MX]]
    lower: Callable[[str, Sequence[tuple[str, ca.MX]], Sequence[ca.MX]], ca.Function]
    moving: Set[int]

    def __bool__(self) -> bool:
        return bool(self._in_symbols[1])

    @cached_property
    def _in_symbols(self) -> tuple[Discontinuities, list[list[_Kink]]]:
        """The rates with symbols in place of kinks, and the kinks by levels of nesting, innermost first."""
        rates = self.by_switches([*self.flow, *self.integrands, *self.residuals])
        found = Discontinuities(self.what, rates, self.moving, clips=True)
        levels: list[list[_Kink]] = []
        while nodes := found.innermost(KINKS):
            symbols = [ca.MX.sym("kink", *node.shape) for node in nodes]
            values = found.restored([node.node for node in nodes if node.node is not None])
            arguments = found.restored([ca.densify(node.sides()[0]) for node in nodes])
            sharpness = [SHARPNESS[node.op] for node in nodes]
            levels.append(list(map(_Kink, symbols, values, arguments, sharpness)))
            found.replace(list(zip(nodes, symbols, strict=True)), moving=True)
        return found, levels

    @cached_property
    def _kinks(self) -> list[_Kink]:
        return [kink for level in self._in_symbols[1] for kink in level]

    @cached_property
    def texts(self) -> list[str]:
        """Every kink as text for messages."""
        values = [kink.value for kink in self._kinks]
        for level in reversed(self._in_symbols[1]):
            values = ca.substitute(values, [kink.symbol for kink in level], [kink.value for kink in level])
        return [without_look_ups(bare(str(value))) for value in values for _ in range(value.numel())]

    @cached_property
    def sharpness(self) -> Array:
        """Half the jump of the slope of every kink."""
        return np.concatenate([np.full(kink.value.numel(), kink.sharpness) for kink in self._kinks])

    @cached_property
    def _lowered(self) -> ca.Function:
        """(t, x, m, p, shifts of kinks) -> flow and integrands, residuals, arguments of kinks."""
        found, levels = self._in_symbols
        columns = [*found.expressions, ca.veccat(*(kink.argument for kink in self._kinks))]
        shifts, begin = ca.MX.sym("shifts", columns[-1].numel()), 0
        shifted: list[tuple[list[ca.MX], list[ca.MX]]] = []
        for level in levels:
            shifted.append(([], []))
            for kink in level:
                end = begin + kink.value.numel()
                shifted[-1][0].append(kink.symbol)
                shifted[-1][1].append(kink.value + ca.reshape(shifts[begin:end], kink.value.shape))
                begin = end
        for symbols, values in reversed(shifted):
            columns = ca.substitute(columns, symbols, values)
        n = len(self.flow) + len(self.integrands)
        rows = [ca.veccat(*columns[:n]), ca.veccat(ca.MX(0, 1), *columns[n:-1]), columns[-1]]
        return self.lower("kinks", [(self.what, row) for row in rows], [shifts])

    def _function(self, name: str, of: Callable[[Any, list[Any], list[Any]], tuple[list[Any], list[Any]]]) -> Any:
        """Return a function of (t, x, m, p) and further inputs, with zero shifts."""
        lowered = self._lowered
        kind = kind_for([lowered])
        inputs = [kind.sym(f"a{i}", lowered.size1_in(i)) for i in range(5)]
        more, outputs = of(kind, inputs, lowered.call(inputs))
        shifted = ca.Function(name, [*inputs, *more], [ca.densify(part) for part in outputs])
        given = [*inputs[:4], *(kind.sym(f"b{i}", *part.shape) for i, part in enumerate(more))]
        return ca.Function(name, given, shifted.call([*given[:4], kind.zeros(inputs[4].numel()), *given[4:]]))

    @cached_property
    def near(self) -> Kernel:
        """(t, x, m, p), tolerances and rates of (t, x, m) -> arguments, their tolerances, rates, and terms of these."""

        def of(kind: Any, inputs: list[Any], outputs: list[Any]) -> tuple[list[Any], list[Any]]:
            point, by_u = ca.vertcat(*inputs[:3]), ca.jacobian(outputs[2], ca.vertcat(*inputs[:4]))
            allowed, rates = kind.sym("allowed", point.numel()), kind.sym("rates", point.numel())
            slopes = by_u[:, : point.numel()]
            rounding = ZERO_ROUNDINGS * EPS * ca.fabs(by_u) @ ca.fabs(ca.vertcat(*inputs[:4]))
            known = SIMULTANEITY_RTOLS * ca.fabs(slopes) @ allowed + rounding
            return [allowed, rates], [outputs[2], known, slopes @ rates, ca.fabs(slopes) @ ca.fabs(rates)]

        return Kernel(self._function("near", of))

    @cached_property
    def slopes(self) -> ca.Function:
        """(t, x, m, p) -> derivatives of arguments by (x, m, p, t)."""

        def of(_: Any, inputs: list[Any], outputs: list[Any]) -> tuple[list[Any], list[Any]]:
            t, x, m, p, _ = inputs
            return [], [ca.jacobian(outputs[2], ca.vertcat(x, m, p, t))]

        return self._function("slopes", of)

    @cached_property
    def weights(self) -> ca.Function:
        """(t, x, m, p), weights of flow and integrands, tolerances of x, weights of residuals -> those of kinks.

        Residuals are in units of their change by the tolerances.
        """

        def of(kind: Any, inputs: list[Any], outputs: list[Any]) -> tuple[list[Any], list[Any]]:
            rates, residuals, _ = outputs
            more = [kind.sym("b", part.numel()) for part in (rates, inputs[1], residuals)]
            allowed = ca.fabs(ca.jacobian(residuals, inputs[1])) @ more[1] + np.finfo(float).tiny
            seed = ca.vertcat(more[0], more[2] / allowed)
            return more, [ca.jtimes(ca.vertcat(rates, residuals), inputs[4], seed, True)]

        return self._function("weights", of)


@dataclass(frozen=True)
class _Kink:
    """A node with the symbol that replaces its value."""

    symbol: ca.MX
    value: ca.MX
    argument: ca.MX
    sharpness: float


@dataclass(frozen=True, eq=False)
class _Rest:
    """Kinks at which a run rests at a time in a segment, with their weights."""

    segment: Segment
    kinks: Kinks
    t: float
    x: Array
    rest: NDArray[np.bool_]
    weights: Array

    def one_sided(self, directions: TangentState, before: Array, after: Array) -> list[str]:
        """Return the texts of the kinks whose sides differ, from derivatives of (y, m) at both ends of the segment."""
        own, p = self.segment, np.abs(directions.p)
        slopes = np.array(self.kinks.slopes(self.t, self.x, own.memory, own.parameters))[self.rest]
        moves = np.abs(slopes @ self._by_p(directions, before, after))
        moves = (moves * (np.where(p != 0, p, 1.0) @ np.abs(directions.directions))).max(axis=1, initial=0.0)
        largest = np.take_along_axis(slopes, np.abs(slopes).argmax(axis=1)[:, None], axis=1)
        _, group = np.unique(np.round(slopes / np.where(largest, largest, 1.0), 9), axis=0, return_inverse=True)
        both = np.bincount(group, self.weights[self.rest])[group]  # those of max(x, y) + min(x, y) cancel
        differ = (moves > 0) & ~(2 * np.abs(both) * moves <= EQUAL_TOLERANCES)
        return [self.kinks.texts[i] for i in np.flatnonzero(self.rest)[differ]]

    def _by_p(self, directions: TangentState, before: Array, after: Array) -> Array:
        """Interpolate derivatives of (x, m, p, t) at the time from those at the segment's ends and outputs."""
        own, n = self.segment, self.x.size
        ends = (own.t_start, own.x_start, before), (own.t_end, own.x_end, after)
        columns = [
            chain(own.mode, t, x, own.memory, own.parameters)[:, :-1] @ np.vstack((state, directions.directions))
            for t, x, state in ends
        ]
        t, found = np.array([own.t_start, *own.t, own.t_end]), columns[0].copy()
        of_x = np.zeros((0, directions.count, n)) if own.sensitivities is None else own.sensitivities
        rows = np.concatenate([columns[0][None, :n].transpose(0, 2, 1), of_x, columns[1][None, :n].transpose(0, 2, 1)])
        k = int(np.clip(np.searchsorted(t, self.t), 1, t.size - 1))
        share = (self.t - t[k - 1]) / (t[k] - t[k - 1]) if t[k] > t[k - 1] else 1.0
        found[:n] = ((1 - share) * rows[k - 1] + share * rows[k]).T
        return found


def refuse_resting(
    trajectory: Trajectory,
    conditions: Conditions,
    forward: Callable[[], tuple[Trajectory, TangentState]],
    functionals: tuple[str, ...],
) -> None:
    """Refuse derivatives of a run that rests at a kink of an equation, or of an integrand of these functionals."""
    kinks = {index: own for index, own in trajectory.system.branches.equations.items() if own}
    if not kinks or not _rests(trajectory, kinks, functionals):
        return
    run, directions = forward()
    rests, states = _rests(run, kinks, functionals), _states(run, directions)
    for rest in rests:
        for text in rest.one_sided(directions, *states[id(rest.segment)])[:1]:
            segment = rest.segment
            conditions.fail_as_one_sided(
                EventError(
                    f"The run rests at the kink of {text}, and leaves it with the parameters: there are only "
                    "one-sided derivatives.",
                    mode=segment.mode.name,
                    time=rest.t,
                    remedy="Change the parameters a little, or leave out of wrt= what moves it. Where the sides meet "
                    "smoothly, mark the expression by smooth().",
                )
            )


def _states(run: Trajectory, directions: TangentState) -> dict[int, tuple[Array, Array]]:
    """Return the derivatives of (y, m) at the start and at the end of every segment."""
    found: dict[int, tuple[Array, Array]] = {}
    crossed, measured, turned = iter(directions.sides), iter(directions.measured_tangents), iter(directions.knot_sides)
    state, segment = np.asarray(run.start.derivatives @ directions.directions), None
    for part in run.parts:
        if isinstance(part, EventRecord):
            before, after = next(crossed)
        elif isinstance(part, MeasurementRecord):
            before = after = next(measured)
        elif isinstance(part, KnotRecord):
            before, after = next(turned)
        else:
            found[id(part)] = state, directions.state
            segment = part
            continue
        if segment is not None:
            found[id(segment)] = found[id(segment)][0], before
        state, segment = after, None
    return found


def _rests(run: Trajectory, kinks: Mapping[int, Kinks], functionals: tuple[str, ...]) -> list[_Rest]:
    """Return the points at which a run rests at kinks that affect it or the functionals."""
    found = []
    for index, own in kinks.items():
        mode = run.system.modes[index]
        for points, segments in _sampled(run, mode, MAX_NUMBERS // len(own.texts)):
            if mode.integrates_all and mode.algebraic.size:
                points = _corrected(run, own, mode, points)
            stays = _stays(run, own, mode, points)
            for i in _some(np.flatnonzero(stays.any(axis=1)), points.owner):
                segment, t, x = segments(int(points.owner[i])), float(points.t[i]), points.x[i]
                weights = _weights(run, own, segment, t, x, functionals)
                rest = stays[i] & (weights != 0)
                if rest.any() and np.any(rest := rest & _stays_beside(run, own, segment, t)):
                    found.append(_Rest(segment, own, t, x, rest, weights))
    return found


class _Points(NamedTuple):
    """Points of segments of one mode, with the memory, the duration and the number of their segments."""

    t: Array
    x: Array
    memory: Array
    duration: Array
    owner: NDArray[np.int64]

    def at(self, which: Any) -> _Points:
        """Some of the points."""
        return _Points(*(part[which] for part in self))


def _some(places: NDArray[np.intp], owners: NDArray[np.int64]) -> list[int]:
    """Select at most TIMES_PER_SEGMENT of these indices in each segment, including the first and the last."""
    groups = np.split(places, np.flatnonzero(np.diff(owners[places])) + 1)
    chosen = (
        group[np.unique(np.linspace(0, group.size - 1, TIMES_PER_SEGMENT).round().astype(int))]
        for group in groups
        if group.size
    )
    return [int(i) for group in chosen for i in group]


def _sampled(run: Trajectory, mode: ModeSystem, most: int) -> Iterator[tuple[_Points, Callable[[int], Segment]]]:
    """Yield about `most` points of segments of a mode at a time, and the segments by their numbers.

    The segments are those of `run.parts`, as in `_states`.
    """
    plain: list[Segment] = []
    for item in run.parts.given:
        if isinstance(item, RecordTable):
            if mode.index not in item.rows:  # it is not entered
                continue
            if item.task.t_eval is None and item.complete() is item:
                points = _of_table(run, item, mode)
                segments = partial(_segment_of, run, item)
                for first in range(0, points.t.size, most):
                    yield points.at(slice(first, first + most)), segments
                continue
            plain += [part for part in run.parts.of(item) if not isinstance(part, RECORDS)]
        elif not isinstance(item, RECORDS):
            plain.append(item)
    own = [segment for segment in plain if segment.mode is mode and segment.t_end > segment.t_start]
    for batch in _batches(own, most):
        yield _joined([_of_segment(run, segment, k) for k, segment in enumerate(batch)]), batch.__getitem__


def _segment_of(run: Trajectory, table: RecordTable, k: int) -> Segment:
    """Return the segment before a record, among the parts of the table."""
    return cast("Segment", run.parts.of(table)[k + int(np.count_nonzero(table.is_segments[:k]))])


def _joined(points: Sequence[_Points]) -> _Points:
    return _Points(*(np.concatenate(parts) for parts in zip(*points, strict=True)))


def _of_table(run: Trajectory, table: RecordTable, mode: ModeSystem) -> _Points:
    """Return the points of the segments of a mode in a record table; see `_of_segment`."""
    count, index, n = table.offsets.size, mode.index, mode.equations.n
    starts, ends = np.zeros((2, count, mode.variables.size))
    memory = np.zeros((count, run.system.memory.size))
    if table.mode == index:
        starts[0] = table.start[0]
    for kind in table.kinds:
        if kind.mode == index:
            ends[kind.places], memory[kind.places] = table.values(kind, "x"), table.values(kind, "memory")
        if kind.target == index:
            which = np.flatnonzero(kind.places + 1 < count)
            starts[kind.places[which] + 1] = table.values(kind, "x_after", which)
    begin, end = table.begins, table.column("time")
    own = np.flatnonzero(table.is_segments & (table.column("mode") == index) & (end > begin))
    rows, (first, last) = table.rows[index], (table.column(name, own).astype(int) for name in ("row", "row_end"))
    sizes = np.maximum(np.minimum(last, len(rows)) - first, 0)
    owner = np.repeat(own, sizes)
    places = np.arange(owner.size) + np.repeat(first - np.cumsum(sizes) + sizes, sizes)
    t, duration = rows[places, 0], end - begin
    gaps = (t - begin[owner]) // (REST_SHARE / 2 * duration[owner])
    kept = np.append(True, (np.diff(owner) != 0) | (np.diff(gaps) != 0))[: owner.size]
    owner, places, t = owner[kept], places[kept], t[kept]
    x = rows[places, 1 : 1 + n]
    if not (mode.integrates_all or table.methods[index].final_outputs):
        x = mode.complete_rows(t, x, memory[owner], run.parameters)
    inside = _Points(t, x, memory[owner], duration[owner], owner)
    sides = [_Points(at[own], of[own], memory[own], duration[own], own) for at, of in ((begin, starts), (end, ends))]
    found = _joined([sides[0], inside, sides[1]])
    return found.at(np.argsort(found.owner, kind="stable"))


def _batches(segments: list[Segment], most: int) -> Iterator[list[Segment]]:
    """Group segments into batches of about `most` points."""
    batch: list[Segment] = []
    count = 0
    for segment in segments:
        batch.append(segment)
        count += segment.t.size + 2
        if count > most:
            yield batch
            batch, count = [], 0
    if batch:
        yield batch


def _of_segment(run: Trajectory, segment: Segment, number: int) -> _Points:
    """Return times in a segment with x there: its steps, or in long segments times close enough to find a rest.

    Algebraic variables that the integrator returns are not corrected.
    """
    rough, t = segment.mode.integrates_all, segment.t
    x, duration = segment.states if rough else segment.values, segment.t_end - segment.t_start
    is_short = duration < REST_SHARE * (run.final[0] - run.t_span[0])
    if not is_short and isinstance(segment.interpolate, SegmentReplay) and segment.interpolate.task.t_eval is not None:
        t = np.linspace(segment.t_start, segment.t_end, SAMPLES)[1:-1]
        x = segment.states_at(t) if rough else segment.dense(t)
    else:  # spacing below the shortest rest
        spacing = REST_SHARE / 2 * duration
        chosen = np.unique((t - segment.t_start) // spacing, return_index=True)[1]
        t, x = t[chosen], x[chosen]
    t = np.concatenate(([segment.t_start], t, [segment.t_end]))
    return _within(segment, t, np.vstack((segment.x_start, x, segment.x_end)), number)


def _within(segment: Segment, t: Array, x: Array, number: int = 0) -> _Points:
    """Return points within a segment."""
    duration = np.full(t.size, segment.t_end - segment.t_start)
    return _Points(t, x, np.tile(segment.memory, (t.size, 1)), duration, np.full(t.size, number))


def _corrected(run: Trajectory, kinks: Kinks, mode: ModeSystem, points: _Points) -> _Points:
    """Select the points that may be at a kink, and correct their algebraic variables (costly)."""
    arguments, known, *_ = _near(run, kinks, mode, points)
    found = points.at((np.abs(arguments) <= UNCORRECTED_FACTOR * known).any(axis=1))
    return found._replace(x=mode.complete_rows(found.t, found.x, found.memory, run.parameters))


def _stays_beside(run: Trajectory, kinks: Kinks, segment: Segment, t: float) -> NDArray[np.bool_]:
    """Return the kinks at which a run is also shortly before or after a time."""
    beside = t + REST_SHARE * (segment.t_end - segment.t_start) * np.array([-1.0, 1.0])
    beside = beside[(segment.t_start <= beside) & (beside <= segment.t_end)]
    points = _within(segment, beside, segment.dense(beside))
    return np.asarray(_stays(run, kinks, segment.mode, points).any(axis=0))


def _stays(run: Trajectory, kinks: Kinks, mode: ModeSystem, points: _Points) -> NDArray[np.bool_]:
    """Return the kinks at which a run stays, by its rates, at points of one mode: (n_times, n_kinks)."""
    arguments, known, *_ = _near(run, kinks, mode, points)
    stays = np.abs(arguments) <= known
    if (at := np.flatnonzero(stays.any(axis=1))).size:  # rates are needed only there
        some = points.at(at)
        (xdot,) = mode.kernels["entry"].stacked(some.t[:, None], some.x, some.memory, run.parameters)[:1]
        rates = np.hstack((np.ones((at.size, 1)), xdot[:, :, 0], np.zeros_like(some.memory)))
        _, _, moving, terms = _near(run, kinks, mode, some, rates)
        stays[at] &= np.abs(moving) <= np.maximum(ZERO_RATE * terms, known[at] / (REST_SHARE * some.duration[:, None]))
    return np.asarray(stays)


def _near(run: Trajectory, kinks: Kinks, mode: ModeSystem, points: _Points, rates: Array | None = None) -> list[Array]:
    """Evaluate `Kinks.near` at every point, (n_times, n_kinks)."""
    t, x, m, *_ = points
    options, count = run.options, len(kinks.texts)
    if not t.size:
        return [np.zeros((0, count))] * 4
    largest = np.maximum(np.abs(x), run.largest(mode))  # a state next to zero has the errors of what it has been
    allowed = np.hstack((np.zeros((t.size, 1)), options.allowed(mode.variables, largest), options.rtol * np.abs(m)))
    moving = np.zeros_like(allowed) if rates is None else rates
    return [v[:, :, 0] for v in kinks.near.stacked(t[:, None], x, m, run.parameters, allowed, moving)]


def _weights(
    run: Trajectory, kinks: Kinks, segment: Segment, t: float, x: Array, functionals: tuple[str, ...]
) -> Array:
    """Return the effect of the kinks' values on a random combination of rates, in tolerances over the segment."""
    system, options, mode = run.system, run.options, segment.mode
    y, chosen = x[: mode.differential.size], np.zeros(system.functionals.size)
    for name in functionals:
        chosen[system.functionals[name]] = 1.0
    known = options.absolute(system.functionals) + options.rtol * np.abs(run.integrals)
    rates = np.concatenate((1 / options.allowed(mode.differential, y), chosen / known))
    rates *= segment.t_end - segment.t_start
    random = np.random.default_rng(0).uniform(0.5, 1.0, rates.size + kinks.weights.size1_in(6))
    more = random[: rates.size] * rates, options.allowed(mode.variables, x), random[rates.size :]
    found = kinks.weights(t, x, segment.memory, run.parameters, *more)
    return np.asarray(kinks.sharpness * np.array(found)[:, 0])
