"""Watched expressions along a run, as quintic polynomials between the steps of the integrator.

The path of explicit steps consists of points; values and two derivatives along the equations give a quintic between
them. The path of other methods consists of the interpolants of the steps, on which expressions are sampled. Where the
quintic misses the expression it is bisected. Nothing is integrated again but single steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.codegen.kernels import Kernel
from dae_hybrid.errors import EventError
from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.numerics.quintics import (
    DEGREE,
    NODES,
    PROBE,
    basis,
    difference_of_cubics,
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
#: points evaluated per call
POINTS_PER_CALL = 50_000


class Motion:
    """Values of the variables at any time of a run, from the paths of its segments."""

    def __init__(self, run: Trajectory) -> None:
        self.run, self.segments = run, list(run.segments)
        self._interpolants: dict[tuple[int, int], Interpolant] = {}

    @cached_property
    def starts(self) -> Array:
        """Start times of the segments."""
        return np.array([segment.t_start for segment in self.segments])

    def knows_derivatives(self, segment: Segment) -> bool:
        """Whether the path of a segment consists of points, at which derivatives are accurate."""
        return segment.path is not None and segment.how.path.exact

    def edges(self, index: int) -> Array:
        """Return the times of a segment's steps, with its start and its end."""
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

    `begin` and `length` are (N,), `coefficients` (N, n, 6) of `dae_hybrid.numerics.quintics`, `segment` (N,) the
    segments that contain them, and `missed` (N, n) the errors of the quintics.
    """

    begin: Array
    length: Array
    coefficients: Array
    segment: NDArray[np.intp]
    missed: Array

    def of(self, chosen: Any) -> Pieces:
        """Return some of the pieces."""
        return Pieces(*(getattr(self, field.name)[chosen] for field in fields(self)))

    @property
    def end(self) -> Array:
        """Ends of the intervals."""
        return self.begin + self.length


def evaluate(of: Kernel, t: Array, x: Array, m: Array, p: Array) -> list[Array]:
    """Evaluate a kernel at points; return its outputs, (n_points, .)."""
    found: list[list[Array]] = []
    for first in range(0, t.size, POINTS_PER_CALL):
        own = slice(first, first + POINTS_PER_CALL)
        outputs = of.function.call([t[None, own], x[own].T, m[own].T, p[:, None]])
        found.append([np.asarray(v).T for v in outputs])
    return [np.vstack(parts) for parts in zip(*found, strict=True)]


def pieces_of(motion: Motion, peak: Peak) -> Pieces:
    """Return the watched expressions of a peak along a run.

    Raises
    ------
    EventError
        They turn too often within the steps.
    """
    p, n = motion.run.parameters, peak.watched
    by_mode: dict[tuple[int, bool], list[int]] = {}
    for i, segment in enumerate(motion.segments):
        if segment.t_end > segment.t_start:
            by_mode.setdefault((segment.mode.index, motion.knows_derivatives(segment)), []).append(i)
    found: list[Pieces] = []
    for (mode, knows), own in by_mode.items():
        times = [motion.edges(i) for i in own]
        at = times if knows else [_sampled(edges) for edges in times]
        x = [motion.at(i, t, motion.points(i) if knows else None) for i, t in zip(own, at, strict=True)]
        m = [np.tile(motion.segments[i].memory, (t.size, 1)) for i, t in zip(own, at, strict=True)]
        values = evaluate(peak.watch(mode), np.concatenate(at), np.vstack(x), np.vstack(m), p)
        ends = np.cumsum([t.size for t in at])[:-1]
        for i, edges, *parts in zip(own, times, *(np.split(v, ends) for v in values), strict=True):
            h = np.diff(edges)
            if knows:
                coefficients = through_rates(parts[0], parts[1], parts[2], h)
                missed = difference_of_cubics(coefficients) * (MAX_MISS / MAX_BEND)
            else:
                coefficients, missed = _through(parts[0].reshape(h.size, DEGREE + 2, n))
            found.append(Pieces(edges[:-1], h, coefficients, np.full(h.size, i), missed))
    if not found:
        none = np.zeros(0)
        return Pieces(none, none, np.zeros((0, n, DEGREE + 1)), np.zeros(0, np.intp), np.zeros((0, n)))
    return _Bisection(motion, peak, _joined(found)).refined()


def _sampled(edges: Array) -> Array:
    """Return the nodes of all intervals and the position at which each quintic is probed, interval by interval."""
    return np.asarray((edges[:-1, None] + np.diff(edges)[:, None] * np.append(NODES, PROBE)).ravel())


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
    """Replaces the pieces that miss the expressions by shorter ones."""

    def __init__(self, motion: Motion, peak: Peak, whole: Pieces) -> None:
        self.motion, self.peak, self.whole, self.sampled = motion, peak, whole, 0
        ends, options = whole.coefficients[:, :, [0, DEGREE]], motion.run.options
        size = np.abs(ends).max(axis=(0, 2))
        atol = min(float(options.absolute(own.variables).min(initial=np.inf)) for own in motion.run.system.modes)
        least = (MISSED_RTOLS * options.rtol + MISSED_ROUNDINGS * EPS) * size + (atol if np.isfinite(atol) else 0.0)
        self.limit = MAX_MISS * np.ptp(ends, axis=(0, 2)) + least

    def refined(self) -> Pieces:
        """Return pieces that follow the expressions."""
        whole = self.whole
        is_bad = (whole.missed > self.limit).any(axis=1)
        parts = [whole.of(~is_bad)]
        for k in np.flatnonzero(is_bad).tolist():
            parts += self._bisected(int(whole.segment[k]), float(whole.begin[k]), float(whole.length[k]), MAX_DEPTH)
        return _joined(parts) if len(parts) > 1 else whole

    def _bisected(self, index: int, begin: float, length: float, depth: int) -> Iterator[Pieces]:
        self.sampled += 1
        segment = self.motion.segments[index]
        if self.sampled > MAX_SAMPLED:
            raise EventError(
                f"{self.peak.what[0].upper()}{self.peak.what[1:]} turns too often within the steps to be followed.",
                mode=segment.mode.name,
                time=begin,
                remedy="Set max_step to less than the time between its turns.",
            )
        times = begin + length * np.append(NODES, PROBE)
        order = np.argsort(times)
        x = np.empty((times.size, segment.mode.variables.size))
        x[order] = self.motion.at(index, times[order])
        m, p = np.tile(segment.memory, (times.size, 1)), self.motion.run.parameters
        values = evaluate(self.peak.watch(segment.mode.index), times, x, m, p)[0]
        coefficients, missed = _through(values[None])
        shortest = 2 * SHORTEST * EPS * max(abs(begin), abs(begin + length))
        if depth and (missed > self.limit).any() and length > shortest:
            for half in (begin, begin + length / 2):
                yield from self._bisected(index, half, length / 2, depth - 1)
        else:
            yield Pieces(np.array([begin]), np.array([length]), coefficients, np.array([index]), missed)
