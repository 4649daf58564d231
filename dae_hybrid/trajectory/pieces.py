"""Watched expressions along a run, as quintic polynomials between the steps of the integrator.

The path of explicit steps consists of points; values and two derivatives along the equations give a quintic between
them. The path of other methods consists of the interpolants of the steps, on which expressions are sampled. Where the
quintic misses the expression it is bisected. Nothing is integrated again but single steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.codegen.kernels import Kernel
from dae_hybrid.errors import EventError, NonFiniteError
from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.numerics.quintics import (
    DEGREE,
    NODES,
    PROBE,
    basis,
    difference_of_cubics,
    through_ends,
    through_rates,
    through_values,
)
from dae_hybrid.port.replay import Interpolant, SegmentReplay
from dae_hybrid.port.segment_rules import kernel
from dae_hybrid.system.peaks import Peak
from dae_hybrid.trajectory.trajectory import Segment, Trajectory

#: errors of a quintic, as shares of the expression's range in the run, at which it is bisected: of one through values,
#: and the distance of the cubic from one through derivatives
MAX_MISS, MAX_BEND = 1e-6, 1e-2
#: the same as a share of the expression's largest magnitude, in relative tolerances and in roundings
MISSED_RTOLS, MISSED_ROUNDINGS = 1e-2, 1e3
#: limits on the depth of a bisection, and on all intervals that are sampled for it
MAX_DEPTH, MAX_SAMPLED = 16, 20_000
#: intervals shorter than this number of roundings have no interior
SHORTEST = 64
#: long steps are sampled at distances of the run divided by this number
N_SAMPLES = 400
#: share of its bend by which an expression may exceed its values within a step
BEND_SHARE = 2.0
#: numbers of points that are evaluated per call
POINTS_PER_CALL = (256, 32, 4, 1)


class Motion:
    """Values of the variables at any time of a run, from the paths of its segments."""

    def __init__(self, run: Trajectory) -> None:
        self.run, self.segments = run, [part for part in run.parts if isinstance(part, Segment)]
        self._interpolants: dict[tuple[int, int], Interpolant] = {}
        self._edges: dict[int, Array] = {}

    def knows_derivatives(self, segment: Segment) -> bool:
        """Whether the path of a segment consists of points, at which derivatives are accurate."""
        return segment.path is not None and segment.how.path.exact

    def edges(self, index: int) -> Array:
        """Return the times of a segment's steps, with its start and its end."""
        if index not in self._edges:
            self._edges[index] = self._edges_of(index)
        return self._edges[index]

    def _edges_of(self, index: int) -> Array:
        segment = self.segments[index]
        rows = segment.path if self.knows_derivatives(segment) else self._rows(index)
        assert rows is not None
        inner = rows[:, 0]
        shortest = SHORTEST * EPS * max(abs(segment.t_start), abs(segment.t_end))
        inner = inner[(inner > segment.t_start + shortest) & (inner < segment.t_end - shortest)]
        inner = inner[np.diff(inner, prepend=segment.t_start) > shortest]
        return np.concatenate(([segment.t_start], inner, [segment.t_end]))

    def _rows(self, index: int) -> Array:
        """Return the interpolants of a segment's steps."""
        segment = self.segments[index]
        return segment.steps() if segment.path is None else segment.path

    def points(self, index: int) -> Array:
        """Return what the integrator integrates at `edges`, for a path of points."""
        segment, times = self.segments[index], self.edges(index)
        path, n = segment.path, segment.mode.equations.n
        assert path is not None
        found = np.empty((times.size, n))
        found[0], found[-1] = segment.x_start[:n], segment.x_end[:n]
        first = segment.how.path.first
        found[1:-1] = path[np.searchsorted(path[:, 0], times[1:-1]), first : first + n]
        return found

    def states(self, index: int, times: Array) -> Array:
        """Return what the integrator integrates at increasing times within a segment, (len(times), n)."""
        segment = self.segments[index]
        if not self.knows_derivatives(segment):
            if (index, 0) not in self._interpolants:
                self._interpolants[index, 0] = Interpolant(self._rows(index), segment.mode.equations.n)
            return self._interpolants[index, 0](times)
        edges = self.edges(index)
        steps = np.clip(np.searchsorted(edges, times, side="right") - 1, 0, edges.size - 2)
        return np.vstack([self._step(index, int(k), edges)(times[i : i + 1]) for i, k in enumerate(steps)])

    def _step(self, index: int, k: int, edges: Array) -> Interpolant:
        """Integrate one explicit step again, for its interpolant."""
        if (index, 1 + k) not in self._interpolants:
            segment = self.segments[index]
            task, state = segment.interpolate.task, self.points(index)[k]
            rate = kernel(segment.mode.equations, "flow")(edges[k], state, segment.memory, self.run.parameters)[0]
            own = replace(
                task, t0=float(edges[k]), t_stop=float(edges[k + 1]), x0=state, xdot0=rate, first_step=None,
                sensitivities=None, sensitivity_rates=None, memory_directions=None, integral_sensitivities=None,
            )  # fmt: skip
            again = SegmentReplay(segment.interpolate.open_session, own, float(edges[k + 1]), segment.method)
            self._interpolants[index, 1 + k] = again()
        return self._interpolants[index, 1 + k]

    def at(self, index: int, times: Array, states: Array | None = None) -> Array:
        """Return x at times within a segment, (len(times), n_x)."""
        segment = self.segments[index]
        states = self.states(index, times) if states is None else states
        found = states
        if not segment.how.final_outputs:
            found = np.array(segment.mode.complete_rows(times, states, segment.memory, self.run.parameters))
        found[times == segment.t_start], found[times == segment.t_end] = segment.x_start, segment.x_end
        return found


@dataclass
class Pieces:
    """Quintics of the watched expressions over intervals, in order of time.

    `begin` and `end` are (N,), `coefficients` (N, n, 6) of `dae_hybrid.numerics.quintics`, `segment` (N,) the segments
    that contain them, and `missed` (N, n) the errors of the quintics.
    """

    begin: Array
    end: Array
    coefficients: Array
    segment: NDArray[np.intp]
    missed: Array

    @property
    def length(self) -> Array:
        """Lengths of the intervals."""
        return self.end - self.begin

    def of(self, chosen: Any) -> Pieces:
        """Return some of the pieces."""
        return Pieces(*(getattr(self, field.name)[chosen] for field in fields(self)))


class Scan:
    """The watched expressions of a peak along a run: a quintic over each step that may decide something.

    `sizes` (n,) are the largest magnitudes of the expressions and `ranges` (n,) the extents of their values, at the
    ends of steps and at `edges`, the values (n_edges, n) where smooth parts end.
    """

    def __init__(self, motion: Motion, peak: Peak, edges: Array) -> None:
        self.motion, self.peak, self.edges = motion, peak, edges
        by_mode: dict[tuple[int, bool], list[int]] = {}
        for i, segment in enumerate(motion.segments):
            if segment.t_end > segment.t_start:
                by_mode.setdefault((segment.mode.index, motion.knows_derivatives(segment)), []).append(i)
        looks = [
            (self._by_derivatives if knows else self._by_values)(mode, own) for (mode, knows), own in by_mode.items()
        ]
        known = [edges, *(look.values for look in looks)]
        self.low = np.minimum.reduce([v.min(axis=0) for v in known])
        self.high = np.maximum.reduce([v.max(axis=0) for v in known])
        seen = [*known, *(own.samples.values for own in looks if own.samples)]
        low = np.minimum.reduce([v.min(axis=0) for v in seen])
        high = np.maximum.reduce([v.max(axis=0) for v in seen])
        self.sizes = np.maximum(np.abs(low), np.abs(high))
        self.ranges: Array = high - low
        self.looks = looks

    def pieces(self, decides: Callable[[Array, Array], NDArray[np.bool_]]) -> Pieces:
        """Return the pieces that may decide something; `decides(lower, upper)` says which, from bounds (N, n).

        Raises
        ------
        EventError
            The expressions turn too often within steps.
        """
        n = self.peak.watched
        none = np.zeros(0)
        found = [Pieces(none, none, np.zeros((0, n, DEGREE + 1)), np.zeros(0, np.intp), np.zeros((0, n)))]
        for look in self.looks:
            chosen = decides(look.lower, look.upper) | (look.bend > MAX_BEND * self.ranges).any(axis=1)
            if look.quintics is not None:
                whole, parts = self._cut(look, look.quintics)
                found += [look.quintics.of(chosen & whole), parts]
            else:
                found.append(self._sampled(look, np.flatnonzero(chosen)))
        return _Bisection(self.motion, self.peak, _joined(found), self.sizes, self.ranges).refined()

    def _by_derivatives(self, mode: int, own: list[int]) -> _Look:
        """Look at the ends of steps, where derivatives are accurate."""
        motion = self.motion
        times = [motion.edges(i) for i in own]
        x = np.vstack([motion.points(i) for i in own])
        segment = np.repeat(np.array(own, dtype=np.intp), [t.size for t in times])
        t = np.concatenate(times)
        values, rates, second = self._evaluate(self.peak.watch(mode), own, times, t, x)
        h, inner = np.diff(t), segment[1:] == segment[:-1]
        with np.errstate(invalid="ignore"):  # of a rate that is infinite
            coefficients = through_rates(values, rates, second, h)[inner]
        bend = difference_of_cubics(coefficients)
        unknown = ~np.isfinite(coefficients).all(axis=2)
        coefficients[unknown], bend[unknown] = 0.0, np.inf
        quintics = Pieces(t[:-1][inner], t[1:][inner], coefficients, segment[1:][inner], bend * (MAX_MISS / MAX_BEND))
        look = _Look(mode, values, coefficients.min(axis=2), coefficients.max(axis=2), bend, quintics)
        look.samples = self._samples(look, quintics, t, x, segment)
        return look

    def _samples(self, look: _Look, quintics: Pieces, t: Array, x: Array, segment: NDArray[np.intp]) -> _Samples | None:
        """Sample the expressions within long steps, on cubics through the states x at the ends t of steps."""
        counts = (quintics.length * N_SAMPLES / (self.motion.run.final[0] - self.motion.run.t_span[0])).astype(int)
        step = np.repeat(np.arange(counts.size), counts)
        if not step.size:
            return None
        place = np.arange(step.size) - np.repeat(np.cumsum(counts) - counts, counts) + 1
        s, h = place / (counts[step] + 1), quintics.length[step]
        first = np.flatnonzero(segment[1:] == segment[:-1])[step]
        needed, index = np.unique(np.concatenate((first, first + 1)), return_inverse=True)
        a, b = index[: s.size], index[s.size :]
        mode, p = self.motion.run.system.modes[look.mode], self.motion.run.parameters
        m = np.array([self.motion.segments[i].memory for i in segment[needed].tolist()])
        rates = evaluate(kernel(mode.equations, "flow"), t[needed], x[needed], m, p)[0]
        states = through_ends(x[needed[a]], x[needed[b]], rates[a] * h[:, None], rates[b] * h[:, None], s)
        times = quintics.begin[step] + s * h
        full = np.array(mode.complete_rows(times, states, m[a], p))
        values = evaluate(self.peak.values(look.mode), times, full, m[a], p)[0]
        expected = np.einsum("ij,ikj->ik", basis(s), quintics.coefficients[step])
        known = np.isfinite(values)  # others are judged by states that are not approximate
        miss = np.where(known, np.abs(values - expected), np.inf)
        return _Samples(step, place, counts, np.where(known, values, expected), miss)

    def _cut(self, look: _Look, quintics: Pieces) -> tuple[NDArray[np.bool_], Pieces]:
        """Return the steps whose quintics have no sample elsewhere, and the others, cut about such samples."""
        whole, parts, samples = np.ones(quintics.begin.size, dtype=bool), list[tuple[float, float, int]](), look.samples
        if samples is not None:
            off = (samples.miss > MAX_BEND * self.ranges).any(axis=1)
            for k in np.unique(samples.step[off]).tolist():
                whole[k], last = False, int(samples.counts[k]) + 1
                at = samples.place[off & (samples.step == k)]
                cuts = np.unique(np.clip(np.concatenate(([0, last], at - 1, at, at + 1)), 0, last)) / last
                times = quintics.begin[k] + cuts * quintics.length[k]
                times[-1] = quintics.end[k]
                parts += [(a, b, int(quintics.segment[k])) for a, b in itertools.pairwise(times.tolist())]
        begin, end, segment = (np.array(column) for column in zip(*parts, strict=True)) if parts else [np.zeros(0)] * 3
        shape = begin.size, self.peak.watched
        return whole, Pieces(
            begin, end, np.zeros((*shape, DEGREE + 1)), segment.astype(np.intp), np.full(shape, np.inf)
        )

    def _by_values(self, mode: int, own: list[int]) -> _Look:
        """Look at the ends of steps and at one position inside each."""
        motion = self.motion
        edges = [self._split(motion.edges(i)) for i in own]
        times = [np.insert(e, np.arange(1, e.size), e[:-1] + PROBE * np.diff(e)) for e in edges]
        x = np.vstack([motion.states(i, t) for i, t in zip(own, times, strict=True)])
        values = self._evaluate(self.peak.values(mode), own, times, np.concatenate(times), x)[0]
        first = np.concatenate([np.arange(0, t.size - 1, 2) + n for t, n in zip(times, _offsets(times), strict=True)])
        three = np.stack([values[first], values[first + 1], values[first + 2]])
        bend = np.abs(three[1] - (three[0] + PROBE * (three[2] - three[0])))
        lower, upper = three.min(axis=0) - BEND_SHARE * bend, three.max(axis=0) + BEND_SHARE * bend
        begin, end = (np.concatenate([e[part] for e in edges]) for part in (slice(None, -1), slice(1, None)))
        segment = np.repeat(own, [e.size - 1 for e in edges])
        return _Look(mode, values, lower, upper, bend, None, None, begin, end, segment)

    def _split(self, edges: Array) -> Array:
        """Return the ends of steps with further times within long ones."""
        counts = (np.diff(edges) * N_SAMPLES / (self.motion.run.final[0] - self.motion.run.t_span[0])).astype(int) + 1
        step = np.repeat(np.arange(counts.size), counts)
        place = np.arange(step.size) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.append(edges[step] + place / counts[step] * np.diff(edges)[step], edges[-1])

    def _sampled(self, look: _Look, chosen: NDArray[np.intp]) -> Pieces:
        """Return the quintics of some steps, through samples."""
        begin, end, segment = look.begin[chosen], look.end[chosen], look.segment[chosen]
        if not chosen.size:
            return Pieces(
                begin, end, np.zeros((0, self.peak.watched, DEGREE + 1)), segment, np.zeros((0, self.peak.watched))
            )
        t = begin[:, None] + (end - begin)[:, None] * np.append(NODES, PROBE)
        own, first = np.unique(segment, return_index=True)
        times = [part.ravel() for part in np.split(t, first[1:])]
        x = np.vstack([self.motion.states(int(i), at) for i, at in zip(own, times, strict=True)])
        values = self._evaluate(self.peak.values(look.mode), own.tolist(), times, t.ravel(), x)[0]
        coefficients, missed = _through(values.reshape(chosen.size, DEGREE + 2, self.peak.watched))
        return Pieces(begin, end, coefficients, segment, missed)

    def _evaluate(self, of: Kernel, own: list[int], times: list[Array], t: Array, states: Array) -> list[Array]:
        """Evaluate a kernel at times of segments of one mode, from what the integrator integrates there."""
        motion, p = self.motion, self.motion.run.parameters
        segments, sizes = [motion.segments[i] for i in own], [at.size for at in times]
        m = np.repeat(np.array([segment.memory for segment in segments]), sizes, axis=0)
        x = states
        if not segments[0].how.final_outputs:
            x = np.array(segments[0].mode.complete_rows(t, states, m, p))
        ends = np.cumsum(sizes)
        x[ends - 1] = [segment.x_end for segment in segments]
        x[ends - sizes] = [segment.x_start for segment in segments]
        found = evaluate(of, t, x, m, p)
        refuse_not_finite(self.peak, t, found[0])
        return found


class _Samples(NamedTuple):
    """Samples within steps: the step of each, its place among the `counts` of the step, values, and misses (N, n)."""

    step: NDArray[np.intp]
    place: NDArray[np.intp]
    counts: NDArray[np.intp]
    values: Array
    miss: Array


@dataclass
class _Look:
    """A first look at the steps in one mode: values at points, and bounds and bends (N, n) of each step."""

    mode: int
    values: Array
    lower: Array
    upper: Array
    bend: Array
    quintics: Pieces | None  # if known already
    samples: _Samples | None = None
    begin: Array = field(default_factory=lambda: np.zeros(0))
    end: Array = field(default_factory=lambda: np.zeros(0))
    segment: NDArray[np.intp] = field(default_factory=lambda: np.zeros(0, np.intp))


def _offsets(times: list[Array]) -> NDArray[np.intp]:
    """Return the index of the first time of each segment among all."""
    return np.cumsum([0, *(t.size for t in times[:-1])])


def evaluate(of: Kernel, t: Array, x: Array, m: Array, p: Array) -> list[Array]:
    """Evaluate a kernel at points; return its outputs, (n_points, .)."""
    parts, done = list[list[Array]](), 0
    for count in POINTS_PER_CALL:
        while t.size - done >= count:
            rows = slice(done, done + count)
            found = of.many(count)(t[rows], x[rows].ravel(), m[rows].ravel(), p)
            parts.append([v.reshape(count, -1) for v in found])
            done += count
    return [np.vstack(own) for own in zip(*parts, strict=True)]


def refuse_not_finite(peak: Peak, t: Array, values: Array) -> None:
    """Refuse values of watched expressions at times that are NaN or infinite."""
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    if bad.size:
        raise NonFiniteError(
            f"The expression of {peak.what} is NaN or infinite.",
            time=float(t[bad[0]]),
            remedy="Check its divisions, roots and logarithms, and levels or targets that are equal.",
        )


def _through(values: Array) -> tuple[Array, Array]:
    """Coefficients (N, n, 6) through samples (N, 7, n), and the distances from the last one (N, n)."""
    columns = np.swapaxes(values, 1, 2)
    coefficients = through_values(columns[..., :-1])
    return coefficients, np.abs(coefficients @ basis(PROBE) - columns[..., -1])


def _joined(parts: list[Pieces]) -> Pieces:
    """All pieces in order of time."""
    whole = Pieces(*(np.concatenate([getattr(q, field.name) for q in parts]) for field in fields(Pieces)))
    return whole.of(np.lexsort((whole.begin, whole.segment)))


class _Bisection:
    """Replaces the pieces that miss the expressions by shorter ones. `sizes` and `ranges` are those of `Scan`."""

    def __init__(self, motion: Motion, peak: Peak, whole: Pieces, sizes: Array, ranges: Array) -> None:
        self.motion, self.peak, self.whole, self.sampled = motion, peak, whole, 0
        self.ranges = ranges
        options = motion.run.options
        atol = min(float(options.absolute(own.variables).min(initial=np.inf)) for own in motion.run.system.modes)
        least = (MISSED_RTOLS * options.rtol + MISSED_ROUNDINGS * EPS) * sizes + (atol if np.isfinite(atol) else 0.0)
        self.limit = MAX_MISS * ranges + least

    def refined(self) -> Pieces:
        """Return pieces that follow the expressions."""
        whole = self.whole
        is_bad = (whole.missed > self.limit).any(axis=1)
        parts = [whole.of(~is_bad)]
        for k in np.flatnonzero(is_bad).tolist():
            parts += self._bisected(int(whole.segment[k]), float(whole.begin[k]), float(whole.end[k]), MAX_DEPTH)
        return _joined(parts) if len(parts) > 1 else whole

    def _bisected(self, index: int, begin: float, end: float, depth: int) -> Iterator[Pieces]:
        self.sampled += 1
        segment = self.motion.segments[index]
        if self.sampled > MAX_SAMPLED:
            raise EventError(
                f"{self.peak.what[0].upper()}{self.peak.what[1:]} turns too often within the steps to be followed.",
                mode=segment.mode.name,
                time=begin,
                remedy="Set max_step to less than the time between its turns.",
            )
        length = end - begin
        times = begin + length * np.append(NODES, PROBE)
        order = np.argsort(times)
        x = np.empty((times.size, segment.mode.variables.size))
        x[order] = self.motion.at(index, times[order])
        m, p = np.tile(segment.memory, (times.size, 1)), self.motion.run.parameters
        values = evaluate(self.peak.values(segment.mode.index), times, x, m, p)[0]
        refuse_not_finite(self.peak, times, values)
        coefficients, missed = _through(values[None])
        if not depth and (missed > self.ranges).any():
            raise NonFiniteError(
                f"The expression of {self.peak.what} jumps, or goes to infinity, within a step.",
                mode=segment.mode.name,
                time=begin,
                remedy="State a jump by if_else or a table, which become events.",
            )
        shortest = 2 * SHORTEST * EPS * max(abs(begin), abs(end))
        if depth and (missed > self.limit).any() and length > shortest:
            middle = begin + length / 2
            for half in ((begin, middle), (middle, end)):
                yield from self._bisected(index, *half, depth - 1)
        else:
            yield Pieces(np.array([begin]), np.array([end]), coefficients, np.array([index]), missed)
