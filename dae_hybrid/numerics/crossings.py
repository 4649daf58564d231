"""Detect and locate the first zero crossing of guards between two points of a smooth motion.

A bound on the cubics through values and rates excludes most guards, all at once. The few that come close to zero are
examined one at a time, as numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from dae_hybrid.numerics.arrays import EPS, Array

#: depth of the bisection of a step that searches for double crossings; safety factor on the error of a cubic, which is
#: measured at an interior point
BISECTION_DEPTH, CUBIC_ERROR_FACTOR = 8, 4.0
#: relative position of the interior point; the midpoint may be a zero by symmetry
INTERIOR_POSITION = 0.43
#: weights of values and, times the interval, rates at its ends in the value of a cubic at the interior point
VALUE_WEIGHT = 3 * INTERIOR_POSITION**2 - 2 * INTERIOR_POSITION**3
RATE_WEIGHTS = INTERIOR_POSITION * (1 - INTERIOR_POSITION) ** 2, INTERIOR_POSITION**2 * (INTERIOR_POSITION - 1)
#: limit on the iterations of the root search, which is slow where the guard is flat
MAX_ROOT_ITERATIONS = 10_000
#: rounding of a guard within a step, relative to its values at the ends
GUARD_ROUNDING = 1e-13
#: the same for a determinant: the equations are singular if it touches zero, as if it crosses
DETERMINANT_ROUNDING = 1e-10
#: a parabola needs no closer check if it stays above this share of the guard's values,
#: and the previous step was at least this multiple of the current one
PARABOLA_MARGIN, MIN_STEP_RATIO = 0.25, 0.4
#: a guard whose rates could take it this many times through its range turns within a step, and is sampled at intervals
#: in which they could take it this many times through; share of speed and range kept from one sample to the next
TURNS_PER_STEP, SAMPLE_SPACING, RETAINED_SHARE = 2.5, 1.5, 0.9
#: rates are trusted if the guard moves at least this share of the distance that they predict,
#: over the time that takes it this share of its range
TRUSTED_RATE_SHARE, TRIAL_RANGE_SHARE = 0.3, 0.1
#: limit on the samples in a step
MAX_SAMPLES = 20_000


#: a turning point below this share of the neighbouring values is a near miss; number of near misses kept
NEAR_MISS_SHARE, MAX_NEAR_MISSES = 0.1, 32


#: coefficients, constant term first
type Cubic = tuple[float, float, float, float]


class Turn(NamedTuple):
    """A near miss: a guard turned close to zero, without crossing it, in this interval."""

    guard: int
    begin: float
    end: float


@dataclass
class Turns:
    """Near misses of the first `n` guards, which exclude determinants; see guards.c."""

    n: int
    found: list[tuple[float, Turn]] = field(default_factory=list)  # (share, near miss)

    def between(self, start: GuardSample, end: GuardSample) -> None:
        """Record near misses between two samples, by the cubics through them."""
        most = np.maximum(np.abs(start.values), np.abs(end.values))
        for i in _close(start, end, NEAR_MISS_SHARE * most):
            c, _, v1 = _oriented(start, end, end, i)
            if i < self.n and c[0] > 0 and v1 > 0:
                least, place = _smallest(*c)
                if 0 < place < 1 and abs(least) <= NEAR_MISS_SHARE * most[i]:
                    self._note(float(abs(least) / most[i]), Turn(i, start.t, end.t))

    def at_end(self, times: Sequence[float], values: Sequence[Sequence[float]]) -> None:
        """Record near misses at the end of the previous step, from guards at the last three step ends, latest first."""
        if len(times) < 3:
            return
        for i, (v0, v1, v2) in enumerate(zip(*(row[: self.n] for row in values), strict=True)):
            most = max(abs(v0), abs(v2))
            if v0 * v2 > 0 and v1 * v0 >= 0 and abs(v1) <= min(abs(v0), abs(v2)) and abs(v1) <= NEAR_MISS_SHARE * most:
                self._note(abs(v1) / most, Turn(i, times[2], times[0]))

    def _note(self, share: float, turn: Turn) -> None:
        self.found.append((share, turn))
        if len(self.found) > MAX_NEAR_MISSES:
            self.found.remove(max(self.found))


@dataclass(frozen=True, slots=True)
class GuardSample:
    """Guards at a time, with zero for those that have not left their zero band, and their rates."""

    t: float
    values: Array
    rates: Array

    def after(self, earlier: GuardSample) -> GuardSample:
        """The same sample, with zeros replaced by the earlier sign."""
        return GuardSample(self.t, np.where(self.values != 0, self.values, earlier.values), self.rates)


class Pace:
    """Speed and range of guards, estimated from three values in each interval; see guards.c."""

    def __init__(self, n: int) -> None:
        self.speed, self.range = np.zeros(n), np.zeros(n)

    def again(self) -> Pace:
        """The estimate after an event in the same mode: speeds only, since a reset may have changed the range."""
        known = Pace(self.speed.size)
        known.speed = np.where(np.isfinite(self.speed), self.speed, 0.0)
        return known

    def see(self, h: float, v0: Array, v: Array, v1: Array) -> None:
        """Update the estimates from values within a time; both decay unless confirmed."""
        one, other = np.abs(v - v0), np.abs(v1 - v)
        self.speed = np.maximum((one + other) / h, RETAINED_SHARE * self.speed)
        self.range = np.maximum(np.maximum(np.maximum(one, other), np.abs(v1 - v0)), RETAINED_SHARE * self.range)

    def often(self, h: float, speed: Array, noise: Array) -> Array:
        """Number of times each guard could traverse its range."""
        room = self.range + noise
        found: Array = np.where(room > 0, speed * h, 0.0) / np.where(room > 0, room, 1.0)
        return found

    def hasten(self, rates: Array) -> None:
        """Update the speeds by trusted rates."""
        self.speed = np.where(np.isfinite(rates), np.maximum(self.speed, np.abs(rates)), self.speed)


@dataclass(frozen=True)
class Scan:
    """Search for crossings of guards along a motion; `sample` evaluates all guards, `value` one guard, unfiltered.

    `band` and `leaving_sign` are those of the task; `refuse` is called with the guards, if any, that returned through
    zero within the shortest interval examined. The last `n_singularities` guards are determinants, which must not even
    touch zero.
    """

    directions: NDArray[np.int64]
    band: Array
    leaving_sign: Array
    sample: Callable[[float], GuardSample]
    value: Callable[[float, int], float]
    refuse: Callable[[Sequence[int], float], None]
    n_singularities: int = 0

    def first(
        self, start: GuardSample, end: GuardSample, resolution: float = np.inf, pace: Pace | None = None
    ) -> tuple[int, float] | None:
        """The first crossing between two samples and its approximate time; updates `pace`."""
        pace, begin = Pace(start.values.size) if pace is None else pace, start.t
        pieces = int(np.ceil((end.t - start.t) / resolution)) if end.t - start.t > resolution else 1
        touched = GUARD_ROUNDING * np.maximum(np.abs(start.values), np.abs(end.values))
        touched[self._determinants] *= DETERMINANT_ROUNDING / GUARD_ROUNDING
        for t in (start.t + np.arange(1, pieces) * ((end.t - start.t) / pieces)).tolist() if pieces > 1 else ():
            middle = self.sample(t)
            found = self._piece(start, middle, touched, pace)
            if found is not None:
                return self._reached(*found, begin)
            start = middle.after(start)
        found = self._piece(start, end, touched, pace)
        if found is not None:
            return self._reached(*found, begin)
        return self._singular(GuardSample(end.t, _without(end.values, touched), end.rates))

    def _reached(self, index: int, t: float, begin: float) -> tuple[int, float]:
        """The crossing; of a guard that is zero to the last bit for a while, the time from which on it is."""
        near, last = 8 * EPS * max(abs(begin), abs(t)), self.directions.size - self.n_singularities
        if index >= last or not t - near > begin or self.value(begin, index) == 0:
            return index, t
        if not self.value(t, index) == 0 == self.value(t - near, index):
            return index, t
        while t - begin > near:
            middle = (begin + t) / 2
            begin, t = (begin, middle) if self.value(middle, index) == 0 else (middle, t)
        return index, t

    @property
    def _determinants(self) -> slice:
        return slice(self.directions.size - self.n_singularities, None)

    def _singular(self, seen: GuardSample) -> tuple[int, float] | None:
        """The first determinant that is zero at a sample."""
        if not self.n_singularities:
            return None
        zero = np.flatnonzero(seen.values[self._determinants] == 0)
        return (self.directions.size - self.n_singularities + int(zero[0]), seen.t) if zero.size else None

    def _piece(self, start: GuardSample, end: GuardSample, touched: Array, pace: Pace) -> tuple[int, float] | None:
        """As `_between`, with intervals adapted to guards that turn several times."""
        h = end.t - start.t
        if not start.t < start.t + INTERIOR_POSITION * h < end.t:  # rounding only
            return self._between(start, end, touched, BISECTION_DEPTH)
        middle = self._look(start.t + INTERIOR_POSITION * h, touched)
        pace.see(h, start.values, middle.values, end.values)
        r0, r, r1 = np.abs(start.rates), np.abs(middle.rates), np.abs(end.rates)
        total = r0 + r + r1
        mean = np.maximum((total + 3 * r) / 6, (total - np.minimum(np.minimum(r0, r), r1)) / 2)  # one may be extreme
        often = pace.often(h, np.maximum(np.where(np.isfinite(mean), mean, 0.0), pace.speed), touched)
        if not often.size or often.max() <= TURNS_PER_STEP:
            return self._between(start, end, touched, BISECTION_DEPTH, middle)
        trusted = self._moves((start, middle, end), int(often.argmax()), pace)
        if trusted:  # a guard that starts at an extremum is as fast as elsewhere in the step
            for seen in (start, middle, end):
                pace.hasten(seen.rates)
        return self._keep_up(start, end, touched, pace, trusted)

    def _moves(self, samples: tuple[GuardSample, GuardSample, GuardSample], i: int, pace: Pace) -> bool:
        """Whether a guard moves at its rates; those of a stiff state may be inaccurate."""
        finite = [g for g in samples if np.isfinite(g.rates[i])]
        fastest = max(finite, key=lambda g: abs(g.rates[i]), default=samples[0])
        rate = abs(float(fastest.rates[i]))
        away = TRIAL_RANGE_SHARE * float(pace.range[i]) / rate if rate > 0 else 0.0
        t = fastest.t - away if fastest is samples[2] else fastest.t + away
        if not 0 < away < (samples[2].t - samples[0].t) / 2:
            return False
        return abs(self.value(t, i) - float(fastest.values[i])) >= TRUSTED_RATE_SHARE * rate * away

    def _keep_up(
        self, start: GuardSample, end: GuardSample, touched: Array, pace: Pace, trusted: bool
    ) -> tuple[int, float] | None:
        rounding = 8 * EPS * max(abs(start.t), abs(end.t))
        shortest, crowded = max((end.t - start.t) / MAX_SAMPLES, rounding), np.zeros(start.values.size, dtype=int)
        while start.t < end.t:
            if trusted:
                pace.hasten(start.rates)
            room = SAMPLE_SPACING * (pace.range + touched + self.band)  # crossings within a zero band do not count
            ones = np.divide(room, pace.speed, out=np.full_like(room, np.inf), where=pace.speed > 0)
            crowded[int(ones.argmin())] += ones.min() < shortest
            away, left = max(float(ones.min()), shortest), end.t - start.t
            piece = (
                end if left <= SAMPLE_SPACING * away or start.t + away >= end.t else self._look(start.t + away, touched)
            )
            middle = self._look(start.t + INTERIOR_POSITION * (piece.t - start.t), touched)
            found = self._between(start, piece, touched, BISECTION_DEPTH, middle)
            if found is not None:
                return found
            pace.see(piece.t - start.t, start.values, middle.values, piece.values)
            if trusted:
                pace.hasten(middle.rates)
                pace.hasten(piece.rates)
            start = piece.after(start)
        self.refuse(np.flatnonzero(crowded > MAX_SAMPLES // 2).tolist(), end.t)  # too fast to be resolved
        return None

    def _between(
        self, start: GuardSample, end: GuardSample, touched: Array, depth: int, middle: GuardSample | None = None
    ) -> tuple[int, float] | None:
        """The first crossing between two samples; `middle` is the one at the interior point, if it is known.

        A guard may cross zero and return in between. This is excluded if the cubic through its values and rates stays
        away from zero by more than the cubic's error at the interior point; otherwise both halves are examined. They
        are also examined if a guard that starts at zero has returned through it, until it is found on the other side.
        """
        if middle is None:
            middle = self._look(start.t + INTERIOR_POSITION * (end.t - start.t), touched)
        if self._singular(middle) is not None:
            return self._at_singularity(start, middle)
        off = CUBIC_ERROR_FACTOR * np.maximum(np.abs(_inside(start, end) - middle.values) - 2 * self.band, 0.0)
        off[self._determinants] += touched[self._determinants]  # they need a closer check
        close: Iterable[int] = _close(start, end, off, middle)
        returned = [i for i in close if start.values[i] == 0 and self._returns(i, middle.values[i], end.values[i])]
        place = _place(_crosses(*_oriented(start, middle, end, i), float(off[i])) for i in close)
        if depth and (returned or place):
            found = self._between(start, middle, touched, depth - 1)
            return found if found is not None else self._between(middle.after(start), end, touched, depth - 1)
        self.refuse(returned, end.t)
        if 0 < place < 1:  # at the finest level
            middle, close = self._look(start.t + place * (end.t - start.t), touched), range(touched.size)
            if self._singular(middle) is not None:
                return self._at_singularity(start, middle)
        middle = middle.after(start)
        for a, b in ((start, middle), (middle, end)):
            crossed = self._crossed(a.values, b.values, close)
            if crossed:
                return self._locate(crossed, a, b)
        return None

    def _at_singularity(self, start: GuardSample, end: GuardSample) -> tuple[int, float] | None:
        """The earliest crossing before a sample with a determinant of zero, or that determinant."""
        crossed = self._crossed(start.values, end.values, range(start.values.size))
        return self._locate(crossed, start, end) if crossed else self._singular(end)

    def _look(self, t: float, touched: Array) -> GuardSample:
        """Guards within a step, with rounding replaced by zero, so that a touch is not a crossing."""
        seen = self.sample(t)
        return GuardSample(t, _without(seen.values, touched), seen.rates)

    def _returns(self, i: int, middle: float, end: float) -> bool:
        """Whether a guard that starts at zero is on the side opposite to its leaving sign, without having left."""
        side = self.leaving_sign[i]
        return bool(self.band[i] > 0 and (middle * side < 0 or end * side < 0) and not middle * side > 0)

    def _crossed(self, before: Array, now: Array, among: Iterable[int]) -> list[int]:
        """Guards that have crossed zero in their direction."""
        found = []
        for i in among:
            v0, v1 = before[i], now[i]
            changed = v0 < 0 < v1 or v1 < 0 < v0 or (v1 == 0 != v0 and self.band[i] == 0)
            if changed and self.directions[i] * v0 <= 0:
                found.append(i)
        return found

    def _locate(self, crossed: list[int], start: GuardSample, end: GuardSample) -> tuple[int, float]:
        """The earliest of the guards that have crossed, and its approximate time."""
        found = []
        for i in crossed:

            def guard(t: float, i: int = i) -> float:
                return self.value(t, i)

            t0, t1 = start.t, end.t
            root = t1
            if end.values[i] != 0 and np.sign(guard(t0)) * np.sign(guard(t1)) < 0:
                near = 8 * EPS * max(abs(t0), abs(t1))
                root = float(brentq(guard, t0, t1, xtol=near, rtol=8 * EPS, maxiter=MAX_ROOT_ITERATIONS))
            found.append((root, i))
        root, index = min(found)
        return index, root


def is_calm(
    times: Sequence[float], values: Sequence[Sequence[float]], inside: Callable[[float], Sequence[float]], pace: Pace
) -> bool:
    """Whether a step needs no closer check, from guards at the last three step ends, latest first.

    The parabola through them stays clearly away from zero and agrees with `inside` at one interior point.
    """
    if len(times) < 3:
        return False
    t0, t1, t2 = times
    h = t0 - t1
    if not h > 0:
        return True
    if t1 - t2 < MIN_STEP_RATIO * h or any(
        not (a * b > 0 or a == 0 == b) for a, b in zip(values[0], values[1], strict=True)
    ):
        return False
    at = t1 + INTERIOR_POSITION * h
    within = inside(at)
    noise = GUARD_ROUNDING * np.maximum(np.abs(values[0]), np.abs(values[1]))
    pace.see(h, np.array(values[1]), np.array(within), np.array(values[0]))
    if np.any(pace.often(h, pace.speed, noise) > TURNS_PER_STEP):
        return False
    for v0, v1, v2, v in zip(*values, within, strict=True):
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
        if not least - CUBIC_ERROR_FACTOR * abs(parabola(at) - v) >= PARABOLA_MARGIN * nearest:
            return False
    return True


def _without(values: Array, touched: Array) -> Array:
    """Replace values that are rounding by zeros."""
    return np.where(np.abs(values) <= touched, 0.0, values)


def keeps_away(start: GuardSample, end: GuardSample) -> bool:
    """Whether cubics through values and rates at two samples stay clearly away from zero."""
    least = PARABOLA_MARGIN * np.minimum(np.abs(start.values), np.abs(end.values))
    for i in _close(start, end, least):
        c, _, v1 = _oriented(start, end, end, i)
        if not (c[0] > 0 and v1 > 0 and math.isfinite(sum(c)) and _smallest(*c)[0] >= least[i]):
            return False
    return True


def _close(start: GuardSample, end: GuardSample, least: Array, middle: GuardSample | None = None) -> list[int]:
    """Guards of which the cubic through two samples, or a sample in between, may fall below a distance from zero.

    A cubic is between the smallest and the largest of its control points.
    """
    side, third = np.sign(start.values), (end.t - start.t) / 3
    with np.errstate(all="ignore"):
        one, other = side * (start.values + third * start.rates), side * (end.values - third * end.rates)
        low = np.minimum(np.minimum(side * start.values, side * end.values), np.minimum(one, other))
        if middle is not None:
            low = np.minimum(low, side * middle.values)
        return np.flatnonzero(~(low > least)).tolist()


def _inside(start: GuardSample, end: GuardSample) -> Array:
    """Cubics through values and rates at two samples, at the interior point."""
    h, (first, last) = end.t - start.t, RATE_WEIGHTS
    with np.errstate(all="ignore"):  # rates that are not finite carry no information
        found: Array = start.values + VALUE_WEIGHT * (end.values - start.values)
        return found + (h * first * start.rates + h * last * end.rates)


def _oriented(start: GuardSample, middle: GuardSample, end: GuardSample, i: int) -> tuple[Cubic, float, float]:
    """The cubic of a guard through two samples, its value in between and at the end.

    With the sign that makes the first of its values positive.
    """
    h, v0, v, v1 = end.t - start.t, float(start.values[i]), float(middle.values[i]), float(end.values[i])
    r0, r1 = h * float(start.rates[i]), h * float(end.rates[i])
    if v0 < 0 or (v0 == 0 and v < 0):
        v0, r0, v, v1, r1 = -v0, -r0, -v, -v1, -r1
    return (v0, r0, 3 * (v1 - v0) - 2 * r0 - r1, 2 * (v0 - v1) + r0 + r1), v, v1


def _place(places: Iterable[float]) -> float:
    """The first place that is known, 1 if none is, 0 if there are none."""
    found = 0.0
    for place in places:
        if 0 < place < 1:
            return place
        found = max(found, place)
    return found


def _crosses(c: Cubic, v: float, v1: float, off: float) -> float:
    """Relative position where an oriented cubic, to an error, may cross zero twice; 0 if nowhere, 1 if not known."""
    v0, c1, c2, c3 = c
    if v0 > 0 and v > 0 and v1 > 0:
        least, place = _smallest(*c)
        return (place or 1.0) if least <= off else 0.0
    if off > max(v0, abs(v), abs(v1)):
        return 1.0
    if v0 > 0:
        return _turns_back(c, v1, off)
    if v * v1 > 0 and _smallest(c1, c2, c3, 0.0)[0] < 0:
        return 1.0  # c1 + c2 s + c3 s^2 has the sign of a guard that starts at zero
    return 0.0


def _horner(c0: float, c1: float, c2: float, c3: float, s: float) -> float:
    return c0 + s * (c1 + s * (c2 + s * c3))


def _extrema(c1: float, c2: float, c3: float) -> list[float]:
    """Positions of the extrema of a cubic in ascending order, without cancellation."""
    square = c2 * c2 - 3 * c1 * c3
    if not square >= 0:
        return []
    q = -(c2 + math.copysign(math.sqrt(square), c2))
    return sorted(a / b for a, b in ((q, 3 * c3), (c1, q)) if b)


def _smallest(c0: float, c1: float, c2: float, c3: float) -> tuple[float, float]:
    """The smallest value of a cubic on [0, 1], and its position."""
    least, place = c0, 0.0
    for s in (*_extrema(c1, c2, c3), 1.0):
        if 0 < s <= 1 and (value := _horner(c0, c1, c2, c3, s)) < least:
            least, place = value, s
    return least, place


def _turns_back(c: Cubic, v1: float, off: float) -> float:
    """Position where a cubic that ends at zero or beyond has crossed it before and returned, to an error; else 0."""
    extrema = _extrema(*c[1:])
    if v1 > 0 or not extrema or not 0 < extrema[0] < 1 or not _horner(*c, extrema[0]) <= off:
        return 0.0
    returns = len(extrema) == 2 and extrema[1] < 1 and _horner(*c, extrema[1]) >= -off
    return extrema[0] if v1 == 0 or returns else 0.0
