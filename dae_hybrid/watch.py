"""Guards of a segment, watched from outside the integrator: which one crosses zero first, and where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from dae_hybrid.errors import NonFiniteError
from dae_hybrid.failures import unresolved_guard
from dae_hybrid.integrator import Array, SegmentTask
from dae_hybrid.segments import EPS, completed, kernel
from dae_hybrid.smooth import SensitivitySystem
from dae_hybrid.walk import Walk

#: Newton's iteration for an event time stops at this many roundings; over this share of a step states move by their
#: rates alone
ROUNDINGS, SHORT, CORRECTIONS = 2.0, 1e-7, 8
#: and the search for the zero of an interpolant, which is slow where the guard is flat, after so many steps
MANY = 10_000
#: a step is halved so often to look for guards that cross zero and come back; a cubic is at most this many times as
#: wrong as in its middle
DEPTH, SAFETY = 8, 4.0
#: for integrators that look for zeros, what is not one
NEXT_TO_ZERO = 1e-30
#: a zero that an integrator reports is this share of the step away at most
NEAR = 1e-3


class Arrival(NamedTuple):
    """The consistent point at an event."""

    x: Array
    xdot: Array
    guard: float
    rate: float


@dataclass(frozen=True, slots=True)
class _Glance:
    """The guards at a time, those that have not left their zero band as zero, and their rates."""

    t: float
    values: Array
    rates: Array

    def after(self, earlier: _Glance) -> _Glance:
        """The same, with zeros that had a sign before as that sign."""
        return _Glance(self.t, np.where(self.values != 0, self.values, earlier.values), self.rates)


class Watch:
    """The guards of one task; see `SegmentTask` for zero bands and departures."""

    def __init__(self, task: SegmentTask, system: SensitivitySystem, p: Array, *, asked: bool) -> None:
        e = self.equations = task.equations
        self.system, self.memory, self.p = system, task.memory, p
        self.band, self.departure = task.zero_band.copy(), task.departure
        self.directions = np.array(e.directions)
        self.asked = asked  # whether the integrator looks for their zeros itself
        self._guards, self._rates = kernel(e, "guards"), kernel(e, "rates")
        self.evaluations = 0
        self._before = self._before_rates = np.zeros(0)
        if e.n_guards:
            self._before = self.values(task.t0, task.x0)
            self._before_rates = self._rates(task.t0, task.x0, self.memory, self.p)[0]

    def raw(self, t: float, x: Array) -> Array:
        """Guards at (y, z)."""
        self.evaluations += 1
        values: Array = self._guards(t, x, self.memory, self.p)[0]
        if not np.all(np.isfinite(values)):
            raise NonFiniteError(
                "A guard is NaN or infinite.",
                mode=self.equations.name,
                time=t,
                remedy="Check the guards of the mode near this point.",
            )
        return values

    def values(self, t: float, x: Array) -> Array:
        """Guards at a step's end: zero for those that have not left their zero band; the others are armed now."""
        values = self._filtered(self.raw(t, x))
        self._refuse(self._returned(values), t)
        self.band[values != 0] = 0.0
        return values

    def _filtered(self, values: Array) -> Array:
        return np.where(np.abs(values) <= self.band, 0.0, values)

    def _returned(self, values: Array) -> NDArray[np.bool_]:
        """Guards that start at zero and are on the side to which they do not leave."""
        return (self.band > 0) & (values * self.departure < 0)

    def _left(self, values: Array) -> NDArray[np.bool_]:
        return values * self.departure > 0

    def _refuse(self, returned: NDArray[np.bool_], t: float) -> None:
        if returned.any():
            raise unresolved_guard(int(np.flatnonzero(returned)[0]), mode=self.equations.name, time=t)

    def asking(self, t: float, state: Array) -> Array:
        """The guards as an integrator asks for them: next to zero, on the side to leave to, within their zero band."""
        values = self.raw(t, self.system.variables(state))
        side = np.where(self.departure != 0, self.departure, np.where(values < 0, -1.0, 1.0))
        return np.where(np.abs(values) <= self.band, NEXT_TO_ZERO * side, values)

    def look(self, walk: Walk) -> tuple[int, float] | None:
        """The first guard that crossed zero in its direction within the last step, and about when."""
        if not self.directions.size:
            return None
        end = self._glance(walk, walk.t, walk.x)
        start = _Glance(walk.t0, self._before, self._before_rates)
        if walk.at_root:
            found = self._root(walk)
        elif self.asked:
            self._refuse(self._returned(end.values), walk.t)
            crossed = self._crossed(start.values, end.values)
            found = self._first(walk, crossed, start, end) if crossed.size else None
        else:
            found = self._scan(walk, start, end, DEPTH)
        self.band[end.values != 0] = 0.0
        self._before, self._before_rates = np.where(end.values != 0, end.values, self._before), end.rates
        return found

    def _glance(self, walk: Walk, t: float, state: Array | None = None) -> _Glance:
        x = self.system.variables(walk.polynomial().at(t) if state is None else state)
        rates = self._rates(t, x, self.memory, self.p)[0]
        return _Glance(t, self._filtered(self.raw(t, x)), rates)

    def _scan(self, walk: Walk, start: _Glance, end: _Glance, depth: int) -> tuple[int, float] | None:
        """The first crossing between two glances.

        A guard may cross zero and come back in between. It cannot where the cubic through its values and rates stays
        away from zero by more than it is off in the middle; else both halves are looked at by themselves. They also are
        where a guard that starts at zero has come back through it, until it is seen on the other side.
        """
        middle = self._glance(walk, (start.t + end.t) / 2)
        returned = (start.values == 0) & (self._returned(middle.values) | self._returned(end.values))
        if depth and np.any(returned & ~self._left(middle.values) | self._may_cross(start, middle, end)):
            found = self._scan(walk, start, middle, depth - 1)
            if found is None:
                found = self._scan(walk, middle.after(start), end, depth - 1)
            return found
        self._refuse(returned & ~self._left(middle.values), end.t)
        for a, b in ((start, middle), (middle.after(start), end)):
            crossed = self._crossed(a.values, b.values)
            if crossed.size:
                return self._first(walk, crossed, a, b)
        return None

    @staticmethod
    def _may_cross(start: _Glance, middle: _Glance, end: _Glance) -> NDArray[np.bool_]:
        h = end.t - start.t
        c = np.array((start.values, h * start.rates, np.zeros_like(start.values), np.zeros_like(start.values)))
        c[2] = 3 * (end.values - start.values) - h * (2 * start.rates + end.rates)
        c[3] = 2 * (start.values - end.values) + h * (start.rates + end.rates)
        if not np.all(np.isfinite(c)):  # no finite rates, no cubic
            return np.ones_like(start.values, dtype=bool)
        off = np.abs((c[0] + c[1] / 2 + c[2] / 4 + c[3] / 8) - middle.values)
        largest = np.abs((start.values, middle.values, end.values)).max(axis=0)
        same = (start.values * end.values > 0) & (start.values * middle.values > 0)
        hidden = same & (_smallest(c * np.sign(start.values)) <= SAFETY * off)
        rough = ~same & (SAFETY * off > largest)
        # from zero: c1 + c2 s + c3 s^2 has the sign of the guard
        leaving = (start.values == 0) & (middle.values * end.values > 0)
        bent = np.array((c[1], c[2], c[3], np.zeros_like(c[0]))) * np.sign(middle.values)
        return hidden | rough | (leaving & (_smallest(bent) < 0))

    def _crossed(self, before: Array, now: Array) -> NDArray[np.intp]:
        changed = (before * now < 0) | ((now == 0) & (before != 0) & (self.band == 0))
        return np.flatnonzero(changed & (self.directions * before <= 0))

    def _first(self, walk: Walk, crossed: NDArray[np.intp], start: _Glance, end: _Glance) -> tuple[int, float]:
        step, found = walk.polynomial(), []
        for i in crossed.tolist():

            def guard(t: float, i: int = i) -> float:
                return float(self.raw(t, self.system.variables(step.at(t)))[i])

            t0, t1 = start.t, end.t
            root = t1
            if end.values[i] != 0 and guard(t0) * guard(t1) < 0:
                near = 8 * EPS * max(abs(t0), abs(t1))
                root = float(brentq(guard, t0, t1, xtol=near, rtol=8 * EPS, maxiter=MANY))
            found.append((root, i))
        root, index = min(found)
        return index, root

    def _root(self, walk: Walk) -> tuple[int, float] | None:
        """Which guard it is whose zero the integrator has stopped at; None if it is one to ignore."""
        x = self.system.variables(walk.x)
        values = self.raw(walk.t, x)
        candidates = [
            (abs(values[i]) / (abs(rate) + EPS), i)
            for i, rate in enumerate(self._rates(walk.t, x, self.memory, self.p)[0])
            if not self.band[i] and self._before[i] * self.directions[i] <= 0 and self._before[i] * rate < 0
        ]
        h, late = walk.t - walk.t0, max(abs(walk.problem.t0), abs(walk.problem.t_stop))
        close = [(away, i) for away, i in candidates if away <= NEAR * h + 1e4 * EPS * late]
        if not close:
            return None
        return min(close)[1], walk.t

    def arrive(self, walk: Walk, index: int, t: float) -> tuple[float, Array, Arrival]:
        """Go from the start of the last step to the zero of a guard: time, state, and what is there, to rounding."""
        h, latest = walk.t - walk.t0, walk.t
        state = walk.x
        if walk.at_root:
            latest = min(walk.problem.t_stop, walk.t + SHORT * h)
        elif t < latest:
            state = walk.again(t).arrive()
        n, constants = self.system.n_differential, walk.problem.constants
        for _ in range(CORRECTIONS):
            there = self._there(t, state, index)
            dt = -there.guard / there.rate if there.rate else np.inf
            if not ROUNDINGS * EPS * abs(t) < abs(dt) <= h or not walk.t0 < t + dt <= latest:
                break
            t += dt
            if abs(dt) <= SHORT * h:
                state = state.copy()
                state[:n] += dt * walk.problem.system.kernel(t, state, constants)[0][:n]
            else:
                state = walk.again(t).arrive()
        return t, state, there

    def _there(self, t: float, state: Array, index: int) -> Arrival:
        x, xdot = completed(self.equations, t, self.system.variables(state), self.memory, self.p)
        rates = self._rates(t, x, self.memory, self.p)[0]
        return Arrival(x, xdot, float(self.raw(t, x)[index]), float(rates[index]))


def _smallest(c: Array) -> Array:
    """Smallest values on [0, 1] of cubics, coefficients along the first axis."""
    with np.errstate(all="ignore"):
        root = np.sqrt(c[2] ** 2 - 3 * c[1] * c[3])
        extrema = np.array(((-c[2] + root) / (3 * c[3]), (-c[2] - root) / (3 * c[3]), -c[1] / (2 * c[2])))
    places = np.array((*np.where((extrema > 0) & (extrema < 1), extrema, 0.0), np.ones_like(c[0])))
    values: Array = (c[0] + places * (c[1] + places * (c[2] + places * c[3]))).min(axis=0)
    return values
