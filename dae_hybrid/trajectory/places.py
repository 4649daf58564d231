"""Points of a run at which an expression is known, and the places that they make of a peak."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.errors import DaeHybridError, GrazingError
from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.numerics.quintics import basis
from dae_hybrid.system.peaks import Peak, Place, Tie, Zero
from dae_hybrid.system.system import ModeSystem
from dae_hybrid.trajectory.edges import Edge, edges_of
from dae_hybrid.trajectory.pieces import Motion, Scan, evaluate, refuse_not_finite
from dae_hybrid.trajectory.trajectory import Trajectory

#: values are equal if they differ by less than this number of tolerances; and equal to rounding, of roundings
TIED_TOLERANCES, TIED_ROUNDINGS = 100.0, 64.0
#: largest error of a time, as a share of the run, at which it has a derivative
MAX_TIME_ERROR = 1e-3
#: iterations of Newton's method for a stationary point or a crossing; change of the time at convergence, in roundings
MAX_ITERATIONS, CONVERGED = 20, 8.0
#: the search for a point extends by this number of lengths of the piece in which it begins
REACH = 2.0
#: a measurement before a knot is at this share of the segment before its end
BEFORE_KNOT = 1e-7


@dataclass
class Point:
    """A point of the run at which an expression is known, with its rates and, if computed, errors."""

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


class Walk:
    """A run with its edges, shared by the searches for all peaks."""

    def __init__(self, run: Trajectory) -> None:
        self.run, self.motion, self.edges = run, Motion(run), edges_of(run)
        self.span = run.final[0] - run.t_span[0]

    def has_motion(self, edge: Edge) -> bool:
        """Whether there is motion on the side of an edge: not before the start, and not after the end."""
        run = self.run
        return edge.kind != "event" or edge.time != (run.t_span[0] if edge.side == "-" else run.final[0])

    def rounding(self, t: float) -> float:
        """Return the change of a time at which searches end."""
        return CONVERGED * EPS * max(abs(t), self.span)


class PlaceFinder:
    """Finds the places of one peak. Subclasses decide which they are."""

    def __init__(self, walk: Walk, index: int, peak: Peak) -> None:
        self.walk, self.index, self.peak = walk, index, peak
        self.run, self.motion, self.edges = walk.run, walk.motion, walk.edges
        self.values, self.rates, self.second = self._at_edges()
        self.scan = Scan(walk.motion, peak, self.values)
        self.sizes = self.scan.sizes
        self.pieces = self.scan.pieces(self.decides)
        self.places: list[Place] = []
        self.ties: list[Tie] = []
        self.failures: list[tuple[str, DaeHybridError]] = []
        self.missing: list[int] = []  # components without a value, of which failures tell

    def decides(self, lower: Array, upper: Array) -> NDArray[np.bool_]:
        """Return the steps that may decide the peak, from bounds of the watched expressions, (N, n)."""
        raise NotImplementedError

    def decide(self, component: int) -> None:
        """Find the places of one component."""
        raise NotImplementedError

    def _at_edges(self) -> tuple[Array, Array, Array]:
        """Return values and rates of the watched expressions at the edges, (n_edges, n)."""
        found = np.zeros((3, len(self.edges), self.peak.watched))
        modes = np.array([edge.mode.index for edge in self.edges])
        for mode in set(modes.tolist()):
            own = np.flatnonzero(modes == mode)
            t, x, m = (np.array([getattr(self.edges[i], name) for i in own]) for name in ("time", "x", "m"))
            found[:, own] = evaluate(self.peak.watch(mode), t, x, m, self.run.parameters)
            refuse_not_finite(self.peak, t, found[0, own])
        return found[0], found[1], found[2]

    @cached_property
    def joins(self) -> NDArray[np.bool_]:
        """Whether each piece continues smoothly in the next one, (N - 1,)."""
        begins = self.pieces.begin[1:]
        return (self.pieces.end[:-1] == begins) & ~np.isin(begins, [edge.time for edge in self.edges])

    # -- points ----------------------------------------------------------------------------------------------

    def point(self, entry: int, segment: int, t: float) -> Point:
        """Return the point of an expression at a time of a segment."""
        own = self.motion.segments[segment]
        x = self.motion.at(segment, np.array([t]))[0]
        values = self.peak.watch(own.mode.index)(t, x, own.memory, self.run.parameters)
        value, rate, second = (float(v[entry]) for v in values)
        return Point(t, own.mode, x, own.memory, value, rate, second)

    def edge_point(self, entry: int, i: int) -> Point:
        """Return the point of an expression at an edge."""
        edge = self.edges[i]
        value, rate, second = (float(v[i, entry]) for v in (self.values, self.rates, self.second))
        return Point(edge.time, edge.mode, edge.x, edge.m, value, rate, second, edge)

    def with_errors(self, entry: int, point: Point) -> Point:
        """Return a point with the errors of its value and of its rate that the tolerances of the run allow."""
        allowed = self.run.options.allowed(point.mode.variables, point.x)
        measure, args = self.peak.measure(point.mode.index), (point.time, point.x, point.m, self.run.parameters)
        weights = self.peak.data(entry, 1.0), self.peak.data(entry, rate=1.0)
        by_value, by_rate = (measure(*args, own)[1][0] for own in weights)
        n = point.x.size
        point.error = float(np.abs(by_value[:n]) @ allowed) + 2 * EPS * float(self.sizes[entry])
        point.rate_error = float(np.abs(by_rate[:n]) @ allowed)
        return point

    def stationary(self, entry: int, k: int, s: float) -> Point:
        """Return the stationary point next to a position in a piece, by Newton's method on the rate."""
        return self._zero(entry, k, s, lambda at: (at.rate, at.second))

    def crossing(self, entry: int, k: int, s: float) -> Point:
        """Return the zero next to a position in a piece, by Newton's method on the value."""
        return self._zero(entry, k, s, lambda at: (at.value, at.rate))

    def _zero(self, entry: int, k: int, s: float, of: Callable[[Point], tuple[float, float]]) -> Point:
        segment, length = int(self.pieces.segment[k]), float(self.pieces.end[k] - self.pieces.begin[k])
        own, t = self.motion.segments[segment], float(self.pieces.begin[k]) + s * length
        low, high = max(own.t_start, t - REACH * length), min(own.t_end, t + REACH * length)
        best = self.point(entry, segment, min(max(t, low), high))
        for _ in range(MAX_ITERATIONS):
            value, slope = of(best)
            if not value or not slope or not np.isfinite(value / slope):
                break
            following = min(max(best.time - value / slope, low), high)
            if abs(following - best.time) <= self.walk.rounding(best.time):
                break
            point = self.point(entry, segment, following)
            if not abs(of(point)[0]) < abs(value):
                break
            best = point
        return best

    # -- places ----------------------------------------------------------------------------------------------

    def measured(
        self, component: int, entry: int, point: Point, data: Array, where: str, zero: Zero | None = None
    ) -> Place:
        """Return the place of a measurement of an expression at a point."""
        return Place(
            self.index, component, point.time, data, self._value(point, data),
            where=f"{where} at t = {point.time:.9g}", size=float(self.sizes[entry]), zero=zero,
        )  # fmt: skip

    def at_edge(
        self, component: int, entry: int, point: Point, weight: float, time_share: float, constant: float = 0.0
    ) -> Place:
        """Return `weight` times the value at an edge, plus `time_share` times its time, plus a constant."""
        edge = point.edge
        assert edge is not None
        if edge.kind == "event":
            data = self.peak.data(entry, weight, constant=constant)
            side = "before" if edge.side == "-" else "after"
            return Place(
                self.index, component, edge.time, data, self._value(point, data) + time_share * edge.time,
                edge.event, edge.side, time_share, f"the state {side} the event at t = {edge.time:.9g}",
                float(self.sizes[entry]),
            )  # fmt: skip
        constant += time_share * edge.time
        data = self.peak.data(entry, weight, constant=constant)
        found = self.measured(component, entry, point, data, f"the {edge.kind}")
        if edge.kind == "knot" and edge.side == "-":  # a measurement at a knot is behind it
            segment = self.motion.segments[edge.segment]
            ahead = BEFORE_KNOT * (segment.t_end - segment.t_start)
            data = self.peak.data(entry, weight, weight * ahead, constant=constant)
            where = f"the state before the knot at t = {edge.time:.9g}"
            return found._replace(time=edge.time - ahead, data=data, where=where)
        return found

    def beside_edge(
        self, component: int, entry: int, point: Point, zero: Zero, weight: float, constant: float = 0.0
    ) -> Place:
        """Return `weight` times the time of a zero beside an edge, plus a constant: another one than the edge's."""
        place, step = self.at_edge(component, entry, point, 0.0, weight, constant), -weight / zero.slope
        own = self.peak.data(entry, rate=step) if zero.of_rate else self.peak.data(entry, step)
        return place._replace(data=place.data + own, where=f"the zero beside {place.where}")

    def _value(self, point: Point, data: Array) -> float:
        args = point.time, point.x, point.m, self.run.parameters
        return float(self.peak.measure(point.mode.index)(*args, data)[0][0])

    def fail(self, t: float, what: str, remedy: str) -> None:
        """Note a condition of derivatives that does not hold."""
        error = GrazingError(f"The expression of {self.peak.what} {what}", time=t, remedy=remedy)
        self.failures.append((self.peak.functional, error))


def values_at(own: Array, s: Any) -> list[float]:
    """Return the values of a quintic at positions."""
    found: list[float] = np.atleast_1d(basis(np.asarray(s, dtype=float)) @ own).tolist()
    return found
