"""Guards between two points of a smooth motion: which one crosses zero first, and where."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from dae_hybrid.integrator import Array
from dae_hybrid.segments import EPS

#: a step is parted so often to look for guards that cross zero and come back; a cubic is at most this many times as
#: wrong as within
DEPTH, SAFETY = 8, 4.0
#: where in a step it is looked at: the middle may be a zero of its own
INSIDE = 0.43
#: the search for a zero, which is slow where the guard is flat, ends after so many steps
MANY = 10_000
#: rounding of a guard within a step, relative to its values at the ends
NOISE = 1e-13
#: a parabola that is this far from zero and from wrong needs no look, where the step before was no shorter than a share
CALM, GROWN = 0.25, 0.4


@dataclass(frozen=True, slots=True)
class Glance:
    """The guards at a time, those that have not left their zero band as zero, and their rates."""

    t: float
    values: Array
    rates: Array

    def after(self, earlier: Glance) -> Glance:
        """The same, with zeros that had a sign before as that sign."""
        return Glance(self.t, np.where(self.values != 0, self.values, earlier.values), self.rates)


@dataclass(frozen=True)
class Scan:
    """Looks at guards along a motion that `glance` shows at any time; `value` is one guard, not filtered.

    `band` and `departure` are those of the task; `refuse` is called with the guards that came back through zero within
    the shortest stretch looked at, if any did.
    """

    directions: NDArray[np.int64]
    band: Array
    departure: Array
    glance: Callable[[float], Glance]
    value: Callable[[float, int], float]
    refuse: Callable[[NDArray[np.bool_], float], None]

    def first(self, start: Glance, end: Glance, resolution: float = np.inf) -> tuple[int, float] | None:
        """The first crossing between two glances, and about when."""
        pieces = int(np.ceil((end.t - start.t) / resolution)) if end.t - start.t > resolution else 1
        touched = NOISE * np.maximum(np.abs(start.values), np.abs(end.values))
        for t in np.linspace(start.t, end.t, pieces + 1)[1:-1].tolist():
            middle = self.glance(t)
            found = self._between(start, middle, touched, DEPTH)
            if found is not None:
                return found
            start = middle.after(start)
        return self._between(start, end, touched, DEPTH)

    def _between(self, start: Glance, end: Glance, touched: Array, depth: int) -> tuple[int, float] | None:
        """The first crossing between two glances.

        A guard may cross zero and come back in between. It cannot where the cubic through its values and rates stays
        away from zero by more than it is off within; else both parts are looked at by themselves. They also are
        where a guard that starts at zero has come back through it, until it is seen on the other side.
        """
        middle = self._look(start.t + INSIDE * (end.t - start.t), touched)
        returned = (start.values == 0) & (self.returned(middle.values) | self.returned(end.values))
        left = middle.values * self.departure > 0
        with np.errstate(all="ignore"):  # rates that are not finite say nothing
            hidden, place = may_cross(start, middle, end, self.band)
        if depth and np.any(returned & ~left | hidden):
            found = self._between(start, middle, touched, depth - 1)
            return found if found is not None else self._between(middle.after(start), end, touched, depth - 1)
        self.refuse(returned & ~left, end.t)
        if place > 0:  # the last resort
            middle = self._look(start.t + place * (end.t - start.t), touched)
        middle = middle.after(start)
        for a, b in ((start, middle), (middle, end)):
            crossed = self.crossed(a.values, b.values)
            if crossed.size:
                return self.locate(crossed, a, b)
        return None

    def _look(self, t: float, touched: Array) -> Glance:
        """The guards within a step: what is rounding is zero, so that a touch does not cross."""
        seen = self.glance(t)
        return Glance(t, np.where(np.abs(seen.values) <= touched, 0.0, seen.values), seen.rates)

    def returned(self, values: Array) -> NDArray[np.bool_]:
        """Guards that start at zero and are on the side to which they do not leave."""
        return (self.band > 0) & (values * self.departure < 0)

    def crossed(self, before: Array, now: Array) -> NDArray[np.intp]:
        """Guards that have crossed zero in their direction."""
        changed = (before * now < 0) | ((now == 0) & (before != 0) & (self.band == 0))
        return np.flatnonzero(changed & (self.directions * before <= 0))

    def locate(self, crossed: NDArray[np.intp], start: Glance, end: Glance) -> tuple[int, float]:
        """The first of the guards that have crossed, and about when."""
        found = []
        for i in crossed.tolist():

            def guard(t: float, i: int = i) -> float:
                return self.value(t, i)

            t0, t1 = start.t, end.t
            root = t1
            if end.values[i] != 0 and guard(t0) * guard(t1) < 0:
                near = 8 * EPS * max(abs(t0), abs(t1))
                root = float(brentq(guard, t0, t1, xtol=near, rtol=8 * EPS, maxiter=MANY))
            found.append((root, i))
        root, index = min(found)
        return index, root


def is_calm(
    times: Sequence[float], values: Sequence[Sequence[float]], inside: Callable[[float], Sequence[float]]
) -> bool:
    """Whether a step needs no closer look: guards at the last three ends of steps, the latest first.

    A parabola through them is clearly away from zero, and right at one point within the step, where `inside` has them.
    """
    if len(times) < 3:
        return False
    t0, t1, t2 = times
    h = t0 - t1
    if not h > 0:
        return True
    if t1 - t2 < GROWN * h or any(not (a * b > 0 or a == 0 == b) for a, b in zip(values[0], values[1], strict=True)):
        return False
    at = t1 + INSIDE * h
    for v0, v1, v2, v in zip(*values, inside(at), strict=True):
        if v0 == 0 == v1:
            continue
        slope = (v0 - v1) / h
        bend = (slope - (v1 - v2) / (t1 - t2)) / (t0 - t2)

        def parabola(t: float, v0: float = v0, slope: float = slope, bend: float = bend) -> float:
            return v0 + (t - t0) * (slope + bend * (t - t1))

        extremum = (t0 + t1) / 2 - slope / (2 * bend) if bend else t0
        least = nearest = min(abs(v0), abs(v1))
        if t1 < extremum < t0:
            least = min(nearest, math.copysign(1.0, v0) * parabola(extremum))
        if not least - SAFETY * abs(parabola(at) - v) >= CALM * nearest:
            return False
    return True


def may_cross(start: Glance, middle: Glance, end: Glance, band: Array) -> tuple[NDArray[np.bool_], float]:
    """Guards that may cross zero between two glances without showing it there, and at which share one of them would."""
    h = end.t - start.t
    c = np.array((start.values, h * start.rates, np.zeros_like(start.values), np.zeros_like(start.values)))
    c[2] = 3 * (end.values - start.values) - h * (2 * start.rates + end.rates)
    c[3] = 2 * (start.values - end.values) + h * (start.rates + end.rates)
    off = np.maximum(np.abs(c[0] + INSIDE * (c[1] + INSIDE * (c[2] + INSIDE * c[3])) - middle.values) - 2 * band, 0.0)
    largest = np.abs((start.values, middle.values, end.values)).max(axis=0)
    same = (start.values * end.values > 0) & (start.values * middle.values > 0)
    least, place = _smallest(c * np.sign(start.values))
    hidden = same & (least <= SAFETY * off)
    rough = ~same & (SAFETY * off > largest)
    # from zero: c1 + c2 s + c3 s^2 has the sign of the guard
    leaving = (start.values == 0) & (middle.values * end.values > 0)
    bent = np.array((c[1], c[2], c[3], np.zeros_like(c[0]))) * np.sign(middle.values)
    back, turn = _turns_back(c, start.values, end.values, SAFETY * off)
    place, hidden = np.where(back, turn, place), hidden | back
    where = float(place[np.argmax(hidden)]) if hidden.any() else 0.0
    return hidden | rough | (leaving & (_smallest(bent)[0] < 0)), where


def _turns_back(c: Array, before: Array, after: Array, off: Array) -> tuple[NDArray[np.bool_], Array]:
    """Cubics that change sign and have been on the other side and back before, but for an error, and where."""
    root = np.sqrt(c[2] ** 2 - 3 * c[1] * c[3])
    one, two = (-c[2] + root) / (3 * c[3]), (-c[2] - root) / (3 * c[3])
    first, second, side = np.minimum(one, two), np.maximum(one, two), np.sign(before)
    over, back = (side * (c[0] + s * (c[1] + s * (c[2] + s * c[3]))) for s in (first, second))
    returns = (after == 0) | (back >= -off) & (second < 1)
    return (before * after <= 0) & (before != 0) & (first > 0) & (first < 1) & (over <= off) & returns, first


def _smallest(c: Array) -> tuple[Array, Array]:
    """Smallest values on [0, 1] of cubics, coefficients along the first axis, and where they are."""
    root = np.sqrt(c[2] ** 2 - 3 * c[1] * c[3])
    extrema = np.array(((-c[2] + root) / (3 * c[3]), (-c[2] - root) / (3 * c[3]), -c[1] / (2 * c[2])))
    places = np.array((*np.where((extrema > 0) & (extrema < 1), extrema, 0.0), np.ones_like(c[0])))
    values = c[0] + places * (c[1] + places * (c[2] + places * c[3]))
    which = values.argmin(axis=0)[None]
    return np.take_along_axis(values, which, 0)[0], np.take_along_axis(places, which, 0)[0]
