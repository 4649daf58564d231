"""The first crossing of a level, and the last entry into a band."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.errors import EventError
from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.numerics.quintics import DEGREE, extrema, roots
from dae_hybrid.system.peaks import Place, Tie, Zero
from dae_hybrid.trajectory.edges import Edge
from dae_hybrid.trajectory.places import TIED_ROUNDINGS, TIED_TOLERANCES, PlaceFinder, Point, values_at

#: distance, as a share of a piece, at which the direction of a crossing is looked at
ASIDE = 1e-6


class CrossingFinder(PlaceFinder):
    """Finds rise times and settling times."""

    def decides(self, lower: Array, upper: Array) -> NDArray[np.bool_]:
        """See `PlaceFinder`."""
        slack = TIED_TOLERANCES * self.run.options.rtol * self.sizes
        return np.asarray(((lower <= slack) & (upper >= -slack)).any(axis=1))

    def decide(self, component: int) -> None:
        """See `PlaceFinder`."""
        known = len(self.places), len(self.ties)
        try:
            (self._settle if self.peak.kind == "settling_time" else self._rise)(component)
        except EventError as error:
            del self.places[known[0] :], self.ties[known[1] :]
            self.missing.append(component)
            self.failures.append((self.peak.functional, error))

    # -- the first crossing ----------------------------------------------------------------------------------

    def _rise(self, component: int) -> None:
        """Find the first crossings of both levels."""
        low, high = component, component + self.peak.size
        upward = np.sign(self.values[0, low] - self.values[0, high])
        if not upward:
            raise self._never(component, "has two equal levels", "Give two different levels.")
        for entry, weight in ((low, -1.0), (high, 1.0)):
            self._first(component, entry, int(upward), weight)

    def _first(self, component: int, entry: int, sign: int, weight: float) -> None:
        """Find the first time at which an expression times a sign is not negative."""
        coefficients, at_edges = sign * self.pieces.coefficients[:, entry], sign * self.values[:, entry]
        jumped = np.flatnonzero(at_edges >= 0)
        until = self.edges[int(jumped[0])].time if jumped.size else np.inf
        slack = self._slack(entry)
        for k in np.flatnonzero(coefficients.max(axis=1, initial=-np.inf) >= -slack).tolist():
            if self.pieces.begin[k] >= until:
                continue
            own = coefficients[k]
            zeros = [s for s in roots(own).tolist() if _slope(own, s) > 0]
            zeros += [1.0] * bool(own[DEGREE] >= 0)
            self._note_misses(k, own, slack, until=zeros[0] if zeros else 1.0)
            if zeros and not (zeros[0] == 1.0 and self.pieces.end[k] >= until):
                chosen = self._add(component, self.crossing(entry, k, zeros[0]), entry, weight)
                break
        else:
            if not jumped.size:
                raise self._never(component, "never reaches its level", "Simulate longer, or change the level.")
            chosen = self._add(component, self.edge_point(entry, int(jumped[0])), entry, weight)
        self._note_edges(component, entry, chosen, weight, until=chosen.time)

    # -- the last crossing -----------------------------------------------------------------------------------

    def _settle(self, component: int) -> None:
        """Find the last time at which the signal enters its band, from either side."""
        last = [found for entry in (component, component + self.peak.size) if (found := self._last(component, entry))]
        start = self.run.t_span[0]
        if last:
            point, entry = max(last, key=lambda pair: pair[0].time)
            chosen = self._add(component, point, entry, 1.0, -start)
        else:
            point, data = self.edge_point(component, 0), self.peak.data(component)
            chosen = self._noted(self.measured(component, component, point, data, "the start"))
        for entry in (component, component + self.peak.size):
            chosen = self._note_edges(component, entry, chosen, 1.0, -start, since=chosen.time)

    def _last(self, component: int, entry: int) -> tuple[Point, int] | None:
        """Return the last point at which an expression falls to zero; None if it is never positive."""
        coefficients, at_edges = self.pieces.coefficients[:, entry], self.values[:, entry]
        if at_edges[-1] > 0:
            raise self._never(component, "is outside its band at the end of the run", "Simulate longer.")
        outside = np.flatnonzero(at_edges > 0)
        since = self.edges[int(outside[-1])].time if outside.size else -np.inf
        slack = self._slack(entry)
        for k in np.flatnonzero(coefficients.max(axis=1, initial=-np.inf) >= -slack)[::-1].tolist():
            if self.pieces.end[k] <= since:
                break
            own = coefficients[k]
            zeros = [s for s in roots(own).tolist() if _slope(own, s) < 0]
            zeros += [1.0] * bool(own[DEGREE] > 0)
            self._note_misses(k, own, slack, since=zeros[-1] if zeros else 0.0)
            if zeros:
                return self.crossing(entry, k, zeros[-1]), entry
        # the signal enters the band by a jump behind the last edge outside
        return (self.edge_point(entry, int(outside[-1]) + 1), entry) if outside.size else None

    # -- both ------------------------------------------------------------------------------------------------

    def _slack(self, entry: int) -> float:
        """Return the accuracy of an expression, by its largest magnitude."""
        return TIED_TOLERANCES * self.run.options.rtol * float(self.sizes[entry])

    def _note_misses(self, k: int, own: Array, slack: float, since: float = 0.0, until: float = 1.0) -> None:
        """Note an extremum in a part of a piece that misses zero by less than the accuracy of the run."""
        for s in extrema(own).tolist():
            (value,) = values_at(own, s)
            if since < s < until and -slack <= value < 0:
                t = float(self.pieces.begin[k] + s * self.pieces.length[k])
                self.fail(
                    t,
                    f"misses its level by {-value:.1e} at t = {t:.9g}, within the accuracy of the run: whether it "
                    "crosses there is chance.",
                    "Tighten rtol and atol, or change the level.",
                )

    def _note_edges(
        self, component: int, entry: int, chosen: Place, weight: float, shift: float = 0.0,
        since: float = -np.inf, until: float = np.inf,
    ) -> Place:  # fmt: skip
        """Note a tie where an expression is zero at an edge, within the accuracy of the run, before or after `chosen`.

        Whether it crosses there, or beside it, depends on the parameters, unless it is zero there for all of them.
        Where it goes through zero on both sides it crosses beside the edge. Returns the place that decides.
        """
        near, size = list[tuple[Edge, Point]](), float(self.sizes[entry])
        for i in np.flatnonzero(np.abs(self.values[:, entry]) <= self._slack(entry)).tolist():
            point, edge = self.edge_point(entry, i), self.edges[i]
            if not (since <= point.time <= until and self.walk.has_motion(edge)):
                continue
            if edge.kind == "start":  # known to rounding
                point.error = EPS * size
            else:
                point = self.with_errors(entry, point)
            if abs(point.value) <= TIED_TOLERANCES * point.error:
                near.append((edge, point))
        rates = {(point.time, edge.side): point.rate for edge, point in near}
        rivals = list[Place]()
        for _, point in near:
            zero = Zero(entry, False, point.rate or size / self.walk.span or 1.0)
            rivals.append(self.beside_edge(component, entry, point, zero, weight, weight * shift))
            goes_through = rates.get((point.time, "-"), 0.0) * rates.get((point.time, "+"), 0.0) > 0
            if not goes_through:
                rivals.append(self.at_edge(component, entry, point, 0.0, weight, weight * shift))
            elif chosen.event >= 0 and chosen.time == point.time:  # the edge decides nothing
                self.places.pop()
                chosen = self._noted(rivals[-1])
        if rivals:
            self.ties.append(Tie(chosen, tuple(rivals), True))
        return chosen

    def _add(self, component: int, point: Point, entry: int, weight: float, shift: float = 0.0) -> Place:
        """Add the crossing at a point: `weight` times the sum of its time and `shift`."""
        point = self._at_event(entry, point)
        if not point.is_interior:
            return self._noted(self.at_edge(component, entry, point, 0.0, weight, weight * shift))
        point = self.with_errors(entry, point)
        beyond = point.rate**2 / (2 * abs(point.second)) if point.second else np.inf
        if beyond <= TIED_TOLERANCES * point.error:
            self.fail(
                point.time,
                f"goes beyond its level by about {beyond:.1e}, within the accuracy of the run: whether it crosses is "
                "chance.",
                "Tighten rtol and atol, or change the level.",
            )
        slope = -weight / point.rate if point.rate else 0.0
        data = self.peak.data(entry, slope, constant=weight * (point.time + shift))
        zero = Zero(entry, False, point.rate) if point.rate else None
        return self._noted(self.measured(component, entry, point, data, "a crossing", zero))

    def _at_event(self, entry: int, point: Point) -> Point:
        """Return the side of an event at the time of a crossing, which moves with the event; else the crossing."""
        rounding = TIED_ROUNDINGS * EPS * max(abs(point.time), self.walk.span)
        for i, edge in enumerate(self.edges) if point.is_interior else ():
            if edge.kind == "event" and abs(edge.time - point.time) <= rounding:
                return self.edge_point(entry, i)
        return point

    def _noted(self, place: Place) -> Place:
        """Note a deciding place, which is a time."""
        self.places.append(place._replace(size=self.walk.span))
        return self.places[-1]

    def _never(self, component: int, what: str, remedy: str) -> EventError:
        entry = f", entry {component}," if self.peak.size > 1 else ""
        return EventError(f"The signal of {self.peak.what}{entry} {what}.", time=self.run.final[0], remedy=remedy)


def _slope(own: Array, s: float) -> float:
    """Return the sign of the change of a quintic around a position."""
    before, after = values_at(own, [max(s - ASIDE, 0.0), min(s + ASIDE, 1.0)])
    return float(np.sign(after - before))
