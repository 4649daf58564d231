"""The largest or smallest value of an expression in a run: at a stationary point, or at an end of a smooth part."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.numerics.quintics import DEGREE, extrema, parts_of
from dae_hybrid.statement.peaks import TIMES
from dae_hybrid.system.derivative_conditions import Conditions
from dae_hybrid.system.peaks import EventSide, Place, Tie, Zero
from dae_hybrid.trajectory.edges import Edge
from dae_hybrid.trajectory.places import MAX_TIME_ERROR, TIED_ROUNDINGS, TIED_TOLERANCES, PlaceFinder, Point, values_at

#: error of quintics, as a share of the range: candidates within it are refined; largest number of them
SEARCH_SHARE, MAX_CANDIDATES = 1e-5, 32
#: the same for an expression that stays within its accuracy
MAX_STILL = 2
#: largest number of rivals that are followed; of more, such as the maxima of a periodic motion, some over all the run
MAX_RIVALS = 6
#: stationary points closer than this multiple of the time in which the value changes by its accuracy are one
SAME_POINT = 4.0
#: the rate at an extremum may be this multiple of its error
MOVING_ERRORS = 100.0
#: relative difference below which derivatives on both sides of an event are equal
SAME_SIDES = 1e-6


class ExtremumFinder(PlaceFinder):
    """Finds the places of maxima, minima, and their times."""

    @property
    def signs(self) -> tuple[int, ...]:
        """Signs with which the expressions are to be large."""
        kind = self.peak.kind.removeprefix("time_of_")
        return (1, -1) if kind == "maximum_abs" else (-1,) if kind == "minimum" else (1,)

    def decides(self, lower: Array, upper: Array) -> NDArray[np.bool_]:
        """See `PlaceFinder`."""
        known = {1: self.scan.high, -1: -self.scan.low}
        largest = np.maximum.reduce([known[sign] for sign in self.signs])
        bounds = np.maximum.reduce([upper if sign > 0 else -lower for sign in self.signs])
        return np.asarray((bounds >= largest - self._margin).any(axis=1))

    @cached_property
    def _margin(self) -> Array:
        """Difference from the extremum below which a point is refined, (n,)."""
        return SEARCH_SHARE * self.scan.ranges + TIED_TOLERANCES * self.run.options.rtol * self.sizes

    def decide(self, component: int) -> None:
        """See `PlaceFinder`."""
        of_time = self.peak.kind in TIMES
        found, largest = list[tuple[int, Point]](), -np.inf
        for sign in self.signs:
            found += [(sign, point) for point in self._candidates(component, sign, largest)]
            largest = max((s * point.value for s, point in found), default=-np.inf)
        found.sort(key=lambda pair: -pair[0] * pair[1].value)
        if of_time:
            self._prefer_turns(found)
        sign, best = found[0]
        best = self.with_errors(component, best)
        accuracy = TIED_TOLERANCES * best.error
        chosen = self._place(component, sign, best)
        self.places.append(chosen)
        close = [(s, point) for s, point in found if sign * best.value - s * point.value <= accuracy]
        rivals = [(s, point) for s, point in close[1:] if not self._is_same(component, best, point, accuracy)]
        if of_time:
            here = MAX_TIME_ERROR * self.walk.span
            near = [(s, point) for s, point in close if abs(point.time - best.time) <= here]
            self._note_turns_at_edges(component, near)
            rivals = [(s, point) for s, point in rivals if abs(point.time - best.time) > here]
            if rivals:
                self.fail(
                    best.time,
                    f"has two extrema within the accuracy of the run, at t = {best.time:.9g} and at "
                    f"t = {rivals[0][1].time:.9g}: the time jumps from one to the other.",
                    "Ask for the extremum instead of its time, or tighten rtol and atol.",
                )
        elif rivals:
            rounding = TIED_ROUNDINGS * EPS * abs(best.value)
            exact = any(sign * best.value - s * point.value <= rounding for s, point in rivals)
            rivals.sort(key=lambda pair: pair[1].time)
            some = np.unique(np.linspace(0, len(rivals) - 1, MAX_RIVALS).astype(int)).tolist()
            others = (self._place(component, s, self.with_errors(component, p)) for s, p in (rivals[i] for i in some))
            self.ties.append(Tie(chosen, tuple(others), exact))

    def _prefer_turns(self, found: list[tuple[int, Point]]) -> None:
        """Prefer a stationary point to an edge beside it that has the same value to rounding."""
        sign, best = found[0]
        for i, (s, point) in enumerate(found):
            rounding = TIED_ROUNDINGS * EPS * max(abs(point.time), self.walk.span)  # of its time
            is_equal = sign * best.value - s * point.value <= TIED_ROUNDINGS * EPS * abs(best.value)
            is_near = rounding < abs(point.time - best.time) <= MAX_TIME_ERROR * self.walk.span
            if point.is_interior and is_equal and is_near and abs(point.rate) < rounding * -s * point.second:
                found.insert(0, found.pop(i))
                break

    def _note_turns_at_edges(self, component: int, points: list[tuple[int, Point]]) -> None:
        """Let the time of an extremum be a tie where a stationary point is at an edge, within the accuracy of the run.

        Their times are different functions of the parameters, unless the edge is where the expression turns. Where it
        turns on both sides of an event or of a knot, the edge decides nothing.
        """
        edges, besides, exact = list[Place](), dict[str, Place](), False
        for sign, given in points:
            if given.edge is None or sign * given.second >= 0 or not self.walk.has_motion(given.edge):
                continue
            point = self.with_errors(component, given)
            rounding = TIED_ROUNDINGS * EPS * max(abs(point.time), self.walk.span) * abs(point.second)
            if abs(point.rate) <= MOVING_ERRORS * point.rate_error + rounding:
                exact |= abs(point.rate) <= rounding
                zero = Zero(component, True, point.second)
                edges.append(self._place(component, sign, point))
                besides[given.edge.side] = self.beside_edge(component, component, point, zero, 1.0)
        if len(besides) == 2 and not points[0][1].is_interior:
            self.places[-1] = besides["+"]._replace(size=self.walk.span)
            edges = []
        if besides:
            self.ties.append(Tie(self.places[-1], (*edges, *besides.values()), exact))

    def _candidates(self, entry: int, sign: int, least: float) -> list[Point]:
        """Return the largest extrema of an expression times a sign, those within the error of the quintics included.

        None are smaller than `least` by more than that.
        """
        coefficients, at_edges = sign * self.pieces.coefficients[:, entry], sign * self.values[:, entry]
        bounds = coefficients.max(axis=1, initial=-np.inf)
        largest = max(least, float(self.scan.high[entry] if sign > 0 else -self.scan.low[entry]))
        margin, high = float(self._margin[entry]), np.flatnonzero(bounds >= largest)
        parts = parts_of(coefficients[high])
        largest = max(largest, float(parts[..., [0, DEGREE]].max(initial=-np.inf)))
        bounds[high] = parts.max(axis=(1, 2))
        for k in high[np.argsort(-bounds[high])].tolist():
            if bounds[k] <= largest:
                break
            largest = max([largest, *values_at(coefficients[k], extrema(coefficients[k]))])
        near = [(float(coefficients[k, DEGREE]), k, 1.0) for k in self._turns(coefficients, largest - margin)]
        for k in np.flatnonzero(bounds >= largest - margin).tolist():
            places = extrema(coefficients[k])
            values = values_at(coefficients[k], places)
            near += [(v, k, s) for v, s in zip(values, places.tolist(), strict=True) if v >= largest - margin]
        near.sort(reverse=True)
        if self.scan.ranges[entry] <= margin:  # it does not move, to the accuracy of the run
            del near[MAX_STILL:]
        found = [self.edge_point(entry, i) for i in np.flatnonzero(at_edges >= largest - margin).tolist()]
        if not (near or found) and least == -np.inf:  # the end of a step, where polynomials of two steps do not meet
            near = [(largest, int(coefficients[:, DEGREE].argmax()), 1.0)]
        for _, k, s in near[:MAX_CANDIDATES]:
            point = self.stationary(entry, k, s)
            is_lowest = sign * point.second > 0 and len(found) > 0
            if not is_lowest and not any(p.is_interior and p.time == point.time for p in found):
                found.append(point)
        return found

    def _turns(self, coefficients: Array, least: float) -> list[int]:
        """Return the pieces at whose ends an expression above a value turns, within a smooth part of the run."""
        if len(coefficients) < 2:
            return []
        rising = coefficients[:-1, DEGREE] >= coefficients[:-1, DEGREE - 1]
        falling = coefficients[1:, 1] <= coefficients[1:, 0]
        turns = rising & falling & (coefficients[:-1, DEGREE] >= least) & self.joins
        return [int(k) for k in np.flatnonzero(turns)]

    def _is_same(self, entry: int, one: Point, other: Point, accuracy: float) -> bool:
        """Whether two points are the same stationary point, or sides of an event at which derivatives are equal."""
        if one.edge is not None and other.edge is not None:
            return self._is_one_event(entry, *sorted((one.edge, other.edge), key=lambda edge: edge.side == "+"))
        if one.edge is not None or other.edge is not None or not one.second:
            return False
        return abs(one.time - other.time) <= SAME_POINT * np.sqrt(2 * accuracy / abs(one.second))

    def _is_one_event(self, entry: int, before: Edge, after: Edge) -> bool:
        """Whether edges are the sides of one event, and derivatives after it, carried back, are those before it."""
        if not (before.kind == after.kind == "event" and before.event == after.event and before.side != after.side):
            return False
        event = self.run.events[before.event]
        if event.follows or event.order:
            return False
        p, system, data = self.run.parameters, self.run.system, self.peak.data(entry, 1.0)
        sides = (EventSide(before.event, side, 0, self.peak.measure, data, 0.0) for side in ("-", "+"))
        (before_w, before_p, before_t), (after_w, after_p, after_t) = (
            side.derivatives(*side.point(system, event, self.run.final[1]), p) for side in sides
        )
        map_ = system.linearise(event, p, self.run.t_span[0], Conditions(strict=False))
        if not map_.rate:
            return False
        moved = (after_w @ map_.time_shift + after_t - before_t) / map_.rate
        by_w = (after_w[None] @ map_.R_w)[0] - moved * map_.h_w - before_w
        by_p = (after_w[None] @ map_.R_p)[0] + after_p - moved * map_.h_p - before_p
        scale = max(
            float(np.abs(before_w).max(initial=0.0)),
            abs(before_t / map_.rate) * float(np.abs(map_.h_w).max(initial=0.0)),
        )
        return bool(max(np.abs(by_w).max(initial=0.0), np.abs(by_p).max(initial=0.0)) <= SAME_SIDES * scale)

    @staticmethod
    def _gain(point: Point) -> float:
        """Return by how much the extremum of the parabola at a point exceeds its value."""
        return point.rate**2 / (2 * abs(point.second)) if point.second else np.inf

    def _place(self, component: int, sign: int, point: Point) -> Place:
        """Return the place of an extremum, or of its time."""
        of_time, weight = self.peak.kind in TIMES, float(sign) if "abs" in self.peak.kind else 1.0
        if not point.is_interior:
            place = self.at_edge(component, component, point, 0.0 if of_time else weight, 1.0 if of_time else 0.0)
            return place._replace(size=self.walk.span) if of_time else place
        second, where = point.second, "a stationary point"
        if abs(point.rate) > MOVING_ERRORS * point.rate_error and self._gain(point) > TIED_TOLERANCES * point.error:
            self.fail(
                point.time,
                f"has its extremum at t = {point.time:.9g} with a rate of {point.rate:.3g}: it has a kink there.",
                "State the kink by if_else, fmin, fmax or a table, which become events.",
            )
        is_resolved = point.rate_error <= MAX_TIME_ERROR * self.walk.span * abs(second) and second != 0
        zero = Zero(component, True, second) if is_resolved else None
        if not of_time:
            square = -weight / (2 * second) if is_resolved else 0.0
            return self.measured(
                component, component, point, self.peak.data(component, weight, square=square), where, zero
            )
        if not is_resolved:
            self.fail(
                point.time,
                "stays at its extremum to the accuracy of the run: the extremum has no time.",
                "Ask for the extremum instead of its time, or tighten rtol and atol.",
            )
        rate = -1 / second if is_resolved else 0.0
        return self.measured(
            component, component, point, self.peak.data(component, rate=rate, constant=point.time), where, zero
        )
