"""Detect and locate the first zero crossing of guards between two points of a smooth motion."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
        side = np.sign(start.values)
        with np.errstate(all="ignore"):
            least, place = _smallest(_cubic(start, end, end.t - start.t) * side)
            most = np.maximum(np.abs(start.values), np.abs(end.values))
            near = (side * end.values > 0) & (place > 0) & (place < 1) & (np.abs(least) <= NEAR_MISS_SHARE * most)
        for i in np.flatnonzero(near[: self.n]).tolist():
            self._note(float(abs(least[i]) / most[i]), Turn(i, start.t, end.t))

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
        values = np.array((v0, v, v1))
        self.speed = np.maximum(np.abs(np.diff(values, axis=0)).sum(axis=0) / h, RETAINED_SHARE * self.speed)
        self.range = np.maximum(np.ptp(values, axis=0), RETAINED_SHARE * self.range)

    def often(self, h: float, speed: Array, noise: Array) -> Array:
        """Number of times each guard could traverse its range."""
        way = speed * h
        room = self.range + noise
        found: Array = np.divide(way, room, out=np.zeros_like(way), where=room > 0)
        return found

    def hasten(self, rates: Array) -> None:
        """Update the speeds by trusted rates."""
        self.speed = np.where(np.isfinite(rates), np.maximum(self.speed, np.abs(rates)), self.speed)


@dataclass(frozen=True)
class Scan:
    """Search for crossings of guards along a motion; `sample` evaluates all guards, `value` one guard, unfiltered.

    `band` and `leaving_sign` are those of the task; `refuse` is called with the guards that returned through zero
    within the shortest interval examined. The last `n_singularities` guards are determinants, which must not even touch
    zero.
    """

    directions: NDArray[np.int64]
    band: Array
    leaving_sign: Array
    sample: Callable[[float], GuardSample]
    value: Callable[[float, int], float]
    refuse: Callable[[NDArray[np.bool_], float], None]
    n_singularities: int = 0

    def first(
        self, start: GuardSample, end: GuardSample, resolution: float = np.inf, pace: Pace | None = None
    ) -> tuple[int, float] | None:
        """The first crossing between two samples and its approximate time; updates `pace`."""
        pace, begin = Pace(start.values.size) if pace is None else pace, start.t
        pieces = int(np.ceil((end.t - start.t) / resolution)) if end.t - start.t > resolution else 1
        touched = GUARD_ROUNDING * np.maximum(np.abs(start.values), np.abs(end.values))
        touched[self._determinants] *= DETERMINANT_ROUNDING / GUARD_ROUNDING
        for t in np.linspace(start.t, end.t, pieces + 1)[1:-1].tolist():
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
        zero = np.flatnonzero(seen.values[self._determinants] == 0)
        return (self.directions.size - self.n_singularities + int(zero[0]), seen.t) if zero.size else None

    def _piece(self, start: GuardSample, end: GuardSample, touched: Array, pace: Pace) -> tuple[int, float] | None:
        """As `_between`, with intervals adapted to guards that turn several times."""
        h = end.t - start.t
        if not start.t < start.t + INTERIOR_POSITION * h < end.t:  # rounding only
            return self._between(start, end, touched, BISECTION_DEPTH)
        middle = self._look(start.t + INTERIOR_POSITION * h, touched)
        pace.see(h, start.values, middle.values, end.values)
        rates = np.abs((start.rates, middle.rates, end.rates))
        mean = (rates[0] + 4 * rates[1] + rates[2]) / 6
        mean = np.maximum(mean, (rates.sum(axis=0) - rates.min(axis=0)) / 2)  # one of the rates may be at an extremum
        often = pace.often(h, np.where(np.isfinite(mean), np.maximum(mean, pace.speed), pace.speed), touched)
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
        self.refuse(crowded > MAX_SAMPLES // 2, end.t)  # too fast to be resolved
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
        returned = (start.values == 0) & (self.returned(middle.values) | self.returned(end.values))
        left = middle.values * self.leaving_sign > 0
        with np.errstate(all="ignore"):  # non-finite rates carry no information
            hidden, place = may_cross(start, middle, end, self.band, self._margin(touched))
        if depth and np.any(returned & ~left | hidden):
            found = self._between(start, middle, touched, depth - 1)
            return found if found is not None else self._between(middle.after(start), end, touched, depth - 1)
        self.refuse(returned & ~left, end.t)
        if place > 0:  # at the finest level
            middle = self._look(start.t + place * (end.t - start.t), touched)
            if self._singular(middle) is not None:
                return self._at_singularity(start, middle)
        middle = middle.after(start)
        for a, b in ((start, middle), (middle, end)):
            crossed = self.crossed(a.values, b.values)
            if crossed.size:
                return self.locate(crossed, a, b)
        return None

    def _at_singularity(self, start: GuardSample, end: GuardSample) -> tuple[int, float] | None:
        """The earliest crossing before a sample with a determinant of zero, or that determinant."""
        crossed = self.crossed(start.values, end.values)
        return self.locate(crossed, start, end) if crossed.size else self._singular(end)

    def _look(self, t: float, touched: Array) -> GuardSample:
        """Guards within a step, with rounding replaced by zero, so that a touch is not a crossing."""
        seen = self.sample(t)
        return GuardSample(t, _without(seen.values, touched), seen.rates)

    def _margin(self, touched: Array) -> Array:
        """Distance from zero below which a determinant needs a closer check."""
        margin = np.zeros_like(touched)
        margin[self._determinants] = touched[self._determinants]
        return margin

    def returned(self, values: Array) -> NDArray[np.bool_]:
        """Guards that start at zero and are on the side opposite to their leaving_sign."""
        return (self.band > 0) & (values * self.leaving_sign < 0)

    def crossed(self, before: Array, now: Array) -> NDArray[np.intp]:
        """Guards that have crossed zero in their direction."""
        changed = (np.sign(before) * np.sign(now) < 0) | ((now == 0) & (before != 0) & (self.band == 0))
        return np.flatnonzero(changed & (self.directions * before <= 0))

    def locate(self, crossed: NDArray[np.intp], start: GuardSample, end: GuardSample) -> tuple[int, float]:
        """The earliest of the guards that have crossed, and its approximate time."""
        found = []
        for i in crossed.tolist():

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
    h, side = end.t - start.t, np.sign(start.values)
    with np.errstate(all="ignore"):
        least, _ = _smallest(_cubic(start, end, h) * side)
        nearest = np.minimum(np.abs(start.values), np.abs(end.values))
        return bool(np.all((side * end.values > 0) & (least >= PARABOLA_MARGIN * nearest)))


def _cubic(start: GuardSample, end: GuardSample, h: float) -> Array:
    """Coefficients of the cubics through values and rates at two samples, along the first axis."""
    c = np.array((start.values, h * start.rates, np.zeros_like(start.values), np.zeros_like(start.values)))
    c[2] = 3 * (end.values - start.values) - h * (2 * start.rates + end.rates)
    c[3] = 2 * (start.values - end.values) + h * (start.rates + end.rates)
    return c


def may_cross(
    start: GuardSample, middle: GuardSample, end: GuardSample, band: Array, margin: Array | float = 0.0
) -> tuple[NDArray[np.bool_], float]:
    """Guards that may cross zero twice between two samples, and the relative position where one of them would."""
    c = _cubic(start, end, end.t - start.t)
    off = np.maximum(
        np.abs(
            c[0] + INTERIOR_POSITION * (c[1] + INTERIOR_POSITION * (c[2] + INTERIOR_POSITION * c[3])) - middle.values
        )
        - 2 * band,
        0.0,
    )
    largest = np.abs((start.values, middle.values, end.values)).max(axis=0)
    side = np.sign(start.values)  # products of determinants may overflow
    same = (side * end.values > 0) & (side * middle.values > 0)
    least, place = _smallest(c * side)
    hidden = same & (least <= CUBIC_ERROR_FACTOR * off + margin)
    rough = ~same & (CUBIC_ERROR_FACTOR * off > largest)
    if np.any((start.values * end.values <= 0) & (start.values != 0)):
        back, turn = _turns_back(c, start.values, end.values, CUBIC_ERROR_FACTOR * off)
        place, hidden = np.where(back, turn, place), hidden | back
    where = float(place[np.argmax(hidden)]) if hidden.any() else 0.0
    leaving = (start.values == 0) & (middle.values * end.values > 0)
    if leaving.any():  # c1 + c2 s + c3 s^2 has the sign of a guard that starts at zero
        bent = np.array((c[1], c[2], c[3], np.zeros_like(c[0]))) * np.sign(middle.values)
        leaving &= _smallest(bent)[0] < 0
    return hidden | rough | leaving, where


def _turns_back(c: Array, before: Array, after: Array, off: Array) -> tuple[NDArray[np.bool_], Array]:
    """Cubics that change sign after having crossed and returned, within an error, and the position of that."""
    root = np.sqrt(c[2] ** 2 - 3 * c[1] * c[3])
    one, two = (-c[2] + root) / (3 * c[3]), (-c[2] - root) / (3 * c[3])
    first, second, side = np.minimum(one, two), np.maximum(one, two), np.sign(before)
    over, back = (side * (c[0] + s * (c[1] + s * (c[2] + s * c[3]))) for s in (first, second))
    returns = (after == 0) | (back >= -off) & (second < 1)
    return (before * after <= 0) & (before != 0) & (first > 0) & (first < 1) & (over <= off) & returns, first


def _smallest(c: Array) -> tuple[Array, Array]:
    """Minima of cubics on [0, 1], with coefficients along the first axis, and their positions."""
    root = np.sqrt(c[2] ** 2 - 3 * c[1] * c[3])
    extrema = np.array(((-c[2] + root) / (3 * c[3]), (-c[2] - root) / (3 * c[3]), -c[1] / (2 * c[2])))
    places = np.array((*np.where((extrema > 0) & (extrema < 1), extrema, 0.0), np.ones_like(c[0])))
    values = c[0] + places * (c[1] + places * (c[2] + places * c[3]))
    least = values.argmin(axis=0), np.arange(c.shape[1])
    return values[least], places[least]
