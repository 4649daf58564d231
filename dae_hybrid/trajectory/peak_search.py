"""The places of a run that decide its peaks: extrema at stationary points, sides of events and ends, and crossings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.errors import DaeHybridError, EventError, GrazingError
from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.numerics.quintics import DEGREE, basis, extrema, roots
from dae_hybrid.port.records import EventRecord, KnotRecord, MeasurementRecord
from dae_hybrid.statement.peaks import TIMES
from dae_hybrid.system.peaks import Decision, Peak, Place, Side, Tie
from dae_hybrid.system.system import ModeSystem
from dae_hybrid.trajectory.pieces import Motion, Pieces, evaluate, pieces_of
from dae_hybrid.trajectory.trajectory import Segment, Trajectory

#: values are equal if they differ by less than this number of tolerances
TIED_TOLERANCES = 100.0
#: and to rounding, if by less than this number of roundings
TIED_ROUNDINGS = 64.0
#: error of quintics, as a share of the range: candidates within it are refined; largest number of them
SEARCH_SHARE, MAX_CANDIDATES = 1e-5, 64
#: largest number of rivals that are followed
MAX_RIVALS = 16
#: iterations of Newton's method for a stationary point or a crossing; change of the time at convergence, in roundings
MAX_ITERATIONS, CONVERGED = 20, 8.0
#: largest error of a time, as a share of the run, at which it has a derivative
MAX_TIME_ERROR = 1e-3
#: a measurement before a knot is at this share of the time since the last step
BEFORE_KNOT = 1e-7
#: stationary points closer than this multiple of the time in which the value changes by its accuracy are one
SAME_POINT = 4.0


class Edge(NamedTuple):
    """An end of a smooth part of the run: the start, the end, or one side of an event or of a knot."""

    kind: str  # start, end, event or knot
    mode: ModeSystem
    time: float
    x: Array
    m: Array
    event: int = -1
    side: Side = "-"
    segment: int = -1  # the segment at it


@dataclass
class Point:
    """A point of the run at which an expression is known, with its rates."""

    time: float
    mode: ModeSystem
    x: Array
    m: Array
    value: float
    rate: float
    second: float
    edge: Edge | None = None
    error: float = 0.0  # of the value
    rate_error: float = 0.0

    @property
    def is_interior(self) -> bool:
        """Whether it is no end of a smooth part."""
        return self.edge is None


def edges_of(run: Trajectory) -> list[Edge]:
    """Return the ends of the smooth parts of a run, in order."""
    found: list[Edge] = []
    before: Segment | None = None
    gap: list[tuple[int, EventRecord | KnotRecord]] = []
    n_events = n_segments = 0
    for part in run.parts:
        if isinstance(part, Segment):
            if part.t_end > part.t_start:
                found += _between(run, before, gap, part, n_segments)
                before, gap = part, []
            n_segments += 1
        elif not isinstance(part, MeasurementRecord):
            gap.append((n_events, part))
            n_events += isinstance(part, EventRecord)
    return found + list(_between(run, before, gap, None, n_segments))


def _between(
    run: Trajectory,
    before: Segment | None,
    gap: list[tuple[int, EventRecord | KnotRecord]],
    after: Segment | None,
    index: int,
) -> Iterator[Edge]:
    """Yield the edges between two segments, of which `index` is the second."""
    system, events = run.system, [(i, part) for i, part in gap if isinstance(part, EventRecord)]
    if events:
        (i, first), (j, last) = events[0], events[-1]
        target = system.transitions[last.index].target
        source = system.modes[system.transitions[first.index].source]
        yield Edge("event", source, first.time, first.x_minus, first.memory_minus, i, "-")
        after_it = system.modes[run.final[1] if target is None else target]
        yield Edge("event", after_it, last.time, last.x_plus, last.memory_plus, j, "+")
        return
    if before is not None and gap:
        yield Edge("knot", before.mode, before.t_end, before.x_end, before.memory, -1, "-", index - 1)
    if before is None:
        at = run.start.at if after is None else None
        mode, t = run.start.mode if after is None else after.mode, run.t_span[0]
        x, m = (at.x, at.m) if at is not None else (after.x_start, after.memory)
        yield Edge("start", mode, t, x, m)
    elif after is None:
        t, mode_index, x, m = run.final
        yield Edge("end", system.modes[mode_index], t, x, m)
    elif gap:
        yield Edge("knot", after.mode, after.t_start, after.x_start, after.memory, -1, "+", index)


class PeakSearch:
    """Finds the places that decide the peaks of a run."""

    def __init__(self, run: Trajectory) -> None:
        self.run, self.motion, self.edges = run, Motion(run), edges_of(run)
        self.span = run.final[0] - run.t_span[0]

    def decision(self) -> Decision:
        """Return the deciding places of all peaks.

        Raises
        ------
        EventError
            A signal never crosses a level, or has not settled at the end of the run.
        """
        places, ties, failures = list[Place](), list[Tie](), list[tuple[str, DaeHybridError]]()
        for i, peak in enumerate(self.run.system.peaks):
            own = _OnePeak(self, i, peak)
            for component in range(peak.size):
                own.decide(component)
            places += own.places
            ties += own.ties
            failures += own.failures
        return Decision(tuple(places), self.run.n_events, tuple(ties), tuple(failures))


class _OnePeak:
    """The search for one peak."""

    def __init__(self, search: PeakSearch, index: int, peak: Peak) -> None:
        self.search, self.index, self.peak = search, index, peak
        self.run, self.motion, self.edges = search.run, search.motion, search.edges
        self.pieces: Pieces = pieces_of(search.motion, peak)
        self.values, self.rates, self.second = self._at_edges()
        self.places: list[Place] = []
        self.ties: list[Tie] = []
        self.failures: list[tuple[str, DaeHybridError]] = []

    def decide(self, component: int) -> None:
        """Find the places of one component."""
        kind = self.peak.kind
        if kind == "rise_time":
            self._rise(component)
        elif kind == "settling_time":
            self._settle(component)
        else:
            self._extremum(component)

    def _at_edges(self) -> tuple[Array, Array, Array]:
        """Return values and rates of the watched expressions at the edges, (n_edges, n)."""
        found = np.zeros((3, len(self.edges), self.peak.watched))
        modes = np.array([edge.mode.index for edge in self.edges])
        for mode in set(modes.tolist()):
            own = np.flatnonzero(modes == mode)
            t, x, m = (np.array([getattr(self.edges[i], name) for i in own]) for name in ("time", "x", "m"))
            found[:, own] = evaluate(self.peak.watch(mode), t, x, m, self.run.parameters)
        return found[0], found[1], found[2]

    # -- points ----------------------------------------------------------------------------------------------

    def _point(self, entry: int, segment: int, t: float) -> Point:
        """Return the point of an expression at a time of a segment."""
        own = self.motion.segments[segment]
        x = self.motion.at(segment, np.array([t]))[0]
        values = self.peak.watch(own.mode.index)(t, x, own.memory, self.run.parameters)
        return Point(t, own.mode, x, own.memory, *(float(v[entry]) for v in values))

    def _edge_point(self, entry: int, i: int) -> Point:
        edge, values = self.edges[i], (self.values, self.rates, self.second)
        return Point(edge.time, edge.mode, edge.x, edge.m, *(float(v[i, entry]) for v in values), edge=edge)

    def _with_errors(self, entry: int, point: Point) -> Point:
        """Return a point with the errors of its value and of its rate that the tolerances of the run allow."""
        allowed = self.run.options.allowed(point.mode.variables, point.x)
        measure, args = self.peak.measure(point.mode.index), (point.time, point.x, point.m, self.run.parameters)
        for name, data in (("error", self.peak.data(entry, 1.0)), ("rate_error", self.peak.data(entry, rate=1.0))):
            by_u = measure(*args, data)[1]
            setattr(point, name, float(np.abs(by_u[0, : point.x.size]) @ allowed))
        point.error += 2 * EPS * abs(point.value)
        return point

    def _stationary(self, entry: int, segment: int, t: float, reach: float) -> Point:
        """Return the stationary point next to a time, by Newton's method on the rate."""
        return self._zero(entry, segment, t, reach, lambda at: (at.rate, at.second))

    def _crossing(self, entry: int, segment: int, t: float, reach: float) -> Point:
        """Return the zero next to a time, by Newton's method on the value."""
        return self._zero(entry, segment, t, reach, lambda at: (at.value, at.rate))

    def _zero(self, entry: int, segment: int, t: float, reach: float, of: Any) -> Point:
        own = self.motion.segments[segment]
        low, high = max(own.t_start, t - reach), min(own.t_end, t + reach)
        best = self._point(entry, segment, t)
        for _ in range(MAX_ITERATIONS):
            value, slope = of(best)
            if not value or not slope or not np.isfinite(value / slope):
                break
            following = min(max(best.time - value / slope, low), high)
            if abs(following - best.time) <= CONVERGED * EPS * max(abs(best.time), self.search.span):
                break
            point = self._point(entry, segment, following)
            if not abs(of(point)[0]) < abs(value):
                break
            best = point
        return best

    # -- extrema ---------------------------------------------------------------------------------------------

    def _extremum(self, component: int) -> None:
        kind = self.peak.kind.removeprefix("time_of_")
        signs = (1, -1) if kind == "maximum_abs" else (-1,) if kind == "minimum" else (1,)
        found = [(sign, point) for sign in signs for point in self._candidates(component, sign)]
        if not found:
            raise AssertionError("a run has a start")
        found.sort(key=lambda pair: -pair[0] * pair[1].value)
        (sign, best), rest = found[0], found[1:]
        best = self._with_errors(component, best)
        places = {id(best): self._extreme_place(component, sign, best, kind)}
        chosen = places[id(best)]
        self.places.append(chosen)
        accuracy = TIED_TOLERANCES * best.error
        tied = [pair for pair in rest if sign * best.value - pair[0] * pair[1].value <= accuracy]
        rivals = [pair for pair in tied if not self._is_same(best, pair[1], accuracy)]
        if not rivals:
            return
        if self.peak.kind in TIMES:
            rivals = [pair for pair in rivals if abs(pair[1].time - best.time) > MAX_TIME_ERROR * self.search.span]
            if rivals:
                self._fail(best.time, f"has two extrema within the accuracy of the run, at t = {best.time:.9g} and "
                    f"t = {rivals[0][1].time:.9g}: its time jumps from one to the other.",
                    "Tighten rtol and atol, or ask for the extremum instead of its time.")
            return
        followed = tuple(self._extreme_place(component, s, self._with_errors(component, p), kind) for s, p in rivals[:MAX_RIVALS])
        rounding = TIED_ROUNDINGS * EPS * abs(best.value)
        exact = any(abs(sign * best.value - s * p.value) <= rounding for s, p in rivals)
        self.ties.append(Tie(chosen, followed, exact))

    def _is_same(self, one: Point, other: Point, accuracy: float) -> bool:
        """Whether two points are the same stationary point."""
        if not (one.is_interior and other.is_interior) or not one.second:
            return False
        return abs(one.time - other.time) <= SAME_POINT * np.sqrt(2 * accuracy / abs(one.second))

    def _candidates(self, entry: int, sign: int) -> list[Point]:
        """Return the largest extrema of an expression times a sign, those within the error of the quintics included."""
        coefficients = sign * self.pieces.coefficients[:, entry]
        at_edges = sign * self.values[:, entry]
        bounds = coefficients.max(axis=1, initial=-np.inf)
        known = np.concatenate((at_edges, coefficients[:, [0, DEGREE]].ravel()))
        largest = float(known.max())
        for k in np.argsort(-bounds)[: MAX_CANDIDATES].tolist():
            if bounds[k] <= largest:
                break
            largest = max([largest, *_values(coefficients[k], extrema(coefficients[k]))])
        margin = SEARCH_SHARE * float(np.ptp(known))
        margin += TIED_TOLERANCES * self.run.options.rtol * float(np.abs(known).max())
        found = [self._edge_point(entry, i) for i in np.flatnonzero(at_edges >= largest - margin).tolist()]
        near = list[tuple[float, int, float]]()
        for k in np.flatnonzero(bounds >= largest - margin).tolist():
            own = coefficients[k]
            places = extrema(own)
            near += [(v, k, s) for v, s in zip(_values(own, places), places.tolist(), strict=True) if v >= largest - margin]
        near += [(float(coefficients[k, DEGREE]), k, 1.0) for k in self._turns(coefficients, largest - margin)]
        near.sort(reverse=True)
        for _, k, s in near[:MAX_CANDIDATES]:
            begin, length = float(self.pieces.begin[k]), float(self.pieces.length[k])
            point = self._stationary(entry, int(self.pieces.segment[k]), begin + s * length, 2 * length)
            if not any(p.is_interior and p.time == point.time for p in found):
                found.append(point)
        return found

    def _turns(self, coefficients: Array, least: float) -> list[int]:
        """Return the pieces at whose ends an expression above a value turns, within a smooth part of the run."""
        if len(coefficients) < 2:
            return []
        rising = coefficients[:-1, DEGREE] >= coefficients[:-1, DEGREE - 1]
        falling = coefficients[1:, 1] <= coefficients[1:, 0]
        turns = rising & falling & (coefficients[:-1, DEGREE] >= least) & self._joins
        return [int(k) for k in np.flatnonzero(turns)]

    @cached_property
    def _joins(self) -> NDArray[np.bool_]:
        """Whether each piece continues smoothly in the next one, (N - 1,)."""
        ends = np.array([edge.time for edge in self.edges])
        begins = self.pieces.begin[1:]
        return ~np.isin(begins, ends)

    def _extreme_place(self, component: int, sign: int, point: Point, kind: str) -> Place:
        """Return the place of an extremum, or of its time."""
        of_time = self.peak.kind in TIMES
        weight = float(sign) if kind == "maximum_abs" else 1.0
        if not point.is_interior:
            return self._at_edge(component, component, point, 0.0 if of_time else weight, 1.0 if of_time else 0.0)
        second = point.second
        error = point.rate_error / abs(second) if second else np.inf
        resolved = error <= MAX_TIME_ERROR * self.search.span
        if of_time and not resolved:
            self._fail(
                point.time,
                "stays at its extremum to the accuracy of the run: the extremum has no time.",
                "Ask for the extremum instead of its time, or tighten rtol and atol.",
            )
        if of_time:
            data = self.peak.data(component, rate=-1 / second if second else 0.0, constant=point.time)
        else:
            data = self.peak.data(component, weight, square=-weight / (2 * second) if resolved else 0.0)
        return self._place(component, point, data, "a stationary point")

    # -- crossings -------------------------------------------------------------------------------------------

    def _rise(self, component: int) -> None:
        """Find the first crossings of both levels."""
        low, high = component, component + self.peak.size
        upward = 1 if self.values[0, low] > self.values[0, high] else -1
        for entry, weight in ((low, -1.0), (high, 1.0)):
            self._first(component, entry, upward, weight)

    def _first(self, component: int, entry: int, sign: int, weight: float) -> None:
        """Find the first time at which an expression times a sign is not negative."""
        coefficients, at_edges = sign * self.pieces.coefficients[:, entry], sign * self.values[:, entry]
        if at_edges[0] >= 0:
            self._crossed(component, entry, self._edge_point(entry, 0), weight)
            return
        jumped = np.flatnonzero(at_edges >= 0)
        limit = self.edges[int(jumped[0])].time if jumped.size else np.inf
        low = self._slack(entry)
        for k in np.flatnonzero(coefficients.max(axis=1, initial=-np.inf) >= -low).tolist():
            if self.pieces.begin[k] >= limit:
                break
            zeros = [s for s in roots(coefficients[k]).tolist() if self._passes(coefficients[k], s, rising=True)]
            zeros += [1.0] * bool(coefficients[k, DEGREE] >= 0 > coefficients[k, DEGREE - 1])
            self._near(entry, k, coefficients[k], zeros[0] if zeros else 1.0, 0.0, low)
            if zeros:
                self._cross(component, entry, k, zeros[0], weight)
                return
        if not jumped.size:
            raise self._never(component, "never reaches its level", "Simulate longer, or change the level.")
        self._crossed(component, entry, self._edge_point(entry, int(jumped[0])), weight)

    def _settle(self, component: int) -> None:
        """Find the last time at which the signal enters its band."""
        start, last = self.run.t_span[0], list[tuple[float, int, int, float]]()
        for entry in (component, component + self.peak.size):
            coefficients = self.pieces.coefficients[:, entry]
            if self.values[-1, entry] > 0:
                raise self._never(component, "is outside its band at the end of the run", "Simulate longer.")
            low, found = self._slack(entry), None
            for k in np.flatnonzero(coefficients.max(axis=1, initial=-np.inf) >= -low)[::-1].tolist():
                own = coefficients[k]
                zeros = [s for s in roots(own).tolist() if self._passes(own, s, rising=False)]
                if own[DEGREE] > 0:
                    zeros.append(1.0)
                self._near(entry, k, own, 0.0, zeros[-1] if zeros else 0.0, low)
                if zeros:
                    found = float(self.pieces.begin[k] + zeros[-1] * self.pieces.length[k]), entry, k, zeros[-1]
                    break
            last += [] if found is None else [found]
        if not last:
            self.places.append(self._place(component, self._edge_point(component, 0), self.peak.data(component), "the start"))
            return
        t, entry, k, s = max(last)
        at_edge = [
            i for i, edge in enumerate(self.edges)
            if edge.side == "+" and edge.kind in ("event", "knot") and abs(edge.time - t) <= SAME_POINT * EPS * max(abs(t), self.search.span)
        ]
        if s == 1.0 and at_edge and self.values[at_edge[0] - 1, entry] > 0:
            self._crossed(component, entry, self._edge_point(entry, at_edge[0]), 1.0, -start)
        else:
            self._cross(component, entry, k, s, 1.0, -start)

    def _slack(self, entry: int) -> float:
        """Return the accuracy of an expression, by its largest magnitude."""
        return TIED_TOLERANCES * self.run.options.rtol * float(np.abs(self.values[:, entry]).max())

    @staticmethod
    def _passes(own: Array, s: float, *, rising: bool) -> bool:
        """Whether a quintic changes sign at a zero in a direction."""
        step = 1e-6
        before, after = _values(own, np.array([max(s - step, 0.0), min(s + step, 1.0)]))
        return after > before if rising else after < before

    def _near(self, entry: int, k: int, own: Array, until: float, since: float, slack: float) -> None:
        """Note an extremum that misses zero by less than the accuracy of the run, in a part of a piece."""
        for s in extrema(own).tolist():
            if since < s < until or (since and s > since):
                (value,) = _values(own, np.array([s]))
                if -slack <= value < 0:
                    t = float(self.pieces.begin[k] + s * self.pieces.length[k])
                    self._fail(t, f"misses its level by {-value:.1e} at t = {t:.9g}, within the accuracy of the run: "
                        "whether it crosses there is chance.", "Tighten rtol and atol, or change the level.")

    def _cross(self, component: int, entry: int, k: int, s: float, weight: float, shift: float = 0.0) -> None:
        """Add the crossing in a piece."""
        begin, length = float(self.pieces.begin[k]), float(self.pieces.length[k])
        point = self._crossing(entry, int(self.pieces.segment[k]), begin + s * length, 2 * length)
        self._crossed(component, entry, point, weight, shift)

    def _crossed(self, component: int, entry: int, point: Point, weight: float, shift: float = 0.0) -> None:
        """Add a crossing at a point: weight times its time plus a shift."""
        if not point.is_interior:
            self.places.append(self._at_edge(component, entry, point, 0.0, weight, weight * shift))
            return
        point = self._with_errors(entry, point)
        beyond = point.rate**2 / (2 * abs(point.second)) if point.second else np.inf
        if beyond <= TIED_TOLERANCES * point.error or not point.rate:
            self._fail(
                point.time,
                f"goes beyond its level by about {beyond:.1e}, within the accuracy of the run: whether it crosses is "
                "chance.",
                "Tighten rtol and atol, or change the level.",
            )
        slope = -weight / point.rate if point.rate else 0.0
        data = self.peak.data(entry, slope, constant=weight * (point.time + shift))
        self.places.append(self._place(component, point, data, "a crossing"))

    # -- places ----------------------------------------------------------------------------------------------

    def _place(self, component: int, point: Point, data: Array, where: str) -> Place:
        """Return a measurement at a point."""
        value = self._measured(point, data)
        return Place(self.index, component, point.time, data, value, where=f"{where} at t = {point.time:.9g}")

    def _at_edge(self, component: int, entry: int, point: Point, weight: float, time_share: float, constant: float = 0.0) -> Place:
        """Return `weight` times the value at an edge plus `time_share` times its time, plus a constant."""
        edge = point.edge
        assert edge is not None
        if edge.kind == "event":
            data = self.peak.data(entry, weight, constant=constant)
            value = self._measured(point, data) + time_share * edge.time
            side = "before" if edge.side == "-" else "after"
            where = f"the state {side} the event at t = {edge.time:.9g}"
            return Place(self.index, component, edge.time, data, value, edge.event, edge.side, time_share, where)
        data = self.peak.data(entry, weight, constant=constant + time_share * edge.time)
        value = self._measured(point, data)
        if edge.kind == "knot" and edge.side == "-":  # a measurement at a knot is behind it
            segment = self.motion.segments[edge.segment]
            ahead = BEFORE_KNOT * (segment.t_end - segment.t_start)
            data = self.peak.data(entry, weight, weight * ahead, constant=constant + time_share * edge.time)
            return Place(self.index, component, edge.time - ahead, data, value, where=f"the state before the knot at t = {edge.time:.9g}")
        return Place(self.index, component, edge.time, data, value, where=f"the {edge.kind} at t = {edge.time:.9g}")

    def _measured(self, point: Point, data: Array) -> float:
        args = point.time, point.x, point.m, self.run.parameters
        return float(self.peak.measure(point.mode.index)(*args, data)[0][0])

    # -- failures --------------------------------------------------------------------------------------------

    def _never(self, component: int, what: str, remedy: str) -> EventError:
        entry = f", entry {component}," if self.peak.size > 1 else ""
        return EventError(f"The signal of {self.peak.what}{entry} {what}.", time=self.run.final[0], remedy=remedy)

    def _fail(self, t: float, what: str, remedy: str) -> None:
        error = GrazingError(f"The expression of {self.peak.what} {what}", time=t, remedy=remedy)
        self.failures.append((self.peak.functional, error))


def _values(own: Array, s: Array) -> list[float]:
    """Return the values of a quintic at positions."""
    found: list[float] = (basis(s) @ own).tolist()
    return found
