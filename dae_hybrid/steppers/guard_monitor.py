"""Guards of a segment, watched from outside the integrator: which one crosses zero first, and where."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.errors import NonFiniteError
from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.numerics.crossings import INSIDE, GuardSample, Pace, Scan, Turns, keeps_away
from dae_hybrid.port.failure_messages import unresolved_guard
from dae_hybrid.port.integrator import SegmentTask
from dae_hybrid.port.segment_rules import completed, kernel
from dae_hybrid.steppers.augmented import SensitivitySystem
from dae_hybrid.steppers.step_walker import StepWalker

#: Newton's iteration for an event time stops at this many roundings; over this share of a step states move by their
#: rates alone
ROUNDINGS, SHORT, CORRECTIONS = 2.0, 1e-7, 8
#: for integrators that look for zeros, what is not one
NEXT_TO_ZERO = 1e-30
#: a determinant is on its way through zero where, at the end of a step, it is this share of what it has been, and its
#: rate takes it there within this share of the time: where algebraic variables are solved for, steps crawl up to it
SINGULAR = 1e-8
#: a guard is well away from zero where it is more than this share of its range from it
NOISE = 1e-6
#: a zero that an integrator reports is this share of the step away at most
NEAR = 1e-3
#: a guard changes sign by a jump where it is more than this share of its value at the end of the step away from zero,
#: and its rate would take it there in no such share of the step
JUMP = 1e-3


class EventPoint(NamedTuple):
    """The consistent point at an event."""

    x: Array
    xdot: Array
    guard: float
    rate: float


class GuardMonitor:
    """The guards of one task; see `SegmentTask` for zero bands and departures. `pace` is that of the mode so far."""

    def __init__(self, task: SegmentTask, system: SensitivitySystem, p: Array, pace: Pace | None = None) -> None:
        e = self.equations = task.equations
        self.system, self.memory, self.p = system, task.memory, p
        self.band, self.departure = task.zero_band.copy(), task.departure
        self.directions = np.array(e.directions)
        self._guards, self._rates = kernel(e, "guards"), kernel(e, "rates")
        self.evaluations, self.pace = 0, Pace(e.n_guards) if pace is None else pace.again()
        self._before = self._before_rates = self._began = np.zeros(0)
        self.turns = Turns(e.n_guards - e.n_singularities)
        self._determinants = slice(e.n_guards - e.n_singularities, None)
        self._largest = np.zeros(e.n_singularities)  # of the determinants
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
        self._refuse((self.band > 0) & (values * self.departure < 0), t)
        self.band[values != 0] = 0.0
        return values

    def _filtered(self, values: Array) -> Array:
        return np.where(np.abs(values) <= self.band, 0.0, values)

    def _refuse(self, returned: NDArray[np.bool_], t: float) -> None:
        if returned.any():
            raise unresolved_guard(int(np.flatnonzero(returned)[0]), mode=self.equations.name, time=t)

    def asking(self, t: float, state: Array) -> Array:
        """The guards as an integrator asks for them: next to zero, on the side to leave to, within their zero band."""
        values = self.raw(t, self.system.variables(state))
        side = np.where(self.departure != 0, self.departure, np.where(values < 0, -1.0, 1.0))
        return np.where(np.abs(values) <= self.band, NEXT_TO_ZERO * side, values)

    def look(self, walk: StepWalker) -> tuple[int, float] | None:
        """The first guard that crossed zero in its direction within the last step, and about when."""
        if not self.directions.size:
            return None
        self._began = self._before
        end = self._glance(walk, walk.t, walk.x)
        start = GuardSample(walk.t0, self._before, self._before_rates)
        if np.any(resting := (self.band > 0) & (end.values == 0)):  # or back at zero, to the last bit
            within = self._glance(walk, walk.t0 + INSIDE * (walk.t - walk.t0)).values
            self.band[resting & (within * self.departure > 0)] = 0.0
            end = self._glance(walk, walk.t, walk.x)
        self.turns.between(start, end)
        scan = self._scan(walk)
        if self.directions.size == self.equations.n_singularities and keeps_away(start, end):
            found = None  # determinants alone: no interpolation for their sake
        else:
            resolved = walk.t - walk.t0 > EPS * abs(walk.t)
            found = scan.first(start, end, self.equations.resolution, self.pace) if resolved else None
            if walk.at_root and (found is None or self._is_root(walk, found[1])):
                found = self._root(walk) or self._unless_back(found)
        found = found or self._singular(walk, end)
        self.band[end.values != 0] = 0.0
        self._note(end)
        return found

    def _singular(self, walk: StepWalker, end: GuardSample) -> tuple[int, float] | None:
        """A determinant that goes through zero where the last step ends, or would if its unknowns did not turn back."""
        size, rate = np.abs(end.values[self._determinants]), np.abs(end.rates[self._determinants])
        self._largest = np.maximum(self._largest, size)
        within = rate * (walk.problem.t_stop - walk.problem.t0)
        found = np.flatnonzero(size <= SINGULAR * np.minimum(self._largest, within))
        return (self.equations.n_guards - self._largest.size + int(found[0]), end.t) if found.size else None

    def look_at_end(self, walk: StepWalker) -> None:
        """Note the guards at the end of the last step, in which they could not be looked at."""
        self._note(self._glance(walk, walk.t, walk.x))

    def _unless_back(self, found: tuple[int, float] | None) -> tuple[int, float] | None:
        """A crossing next to a root whose rate says otherwise: noise, unless the step begins well on the other side."""
        if found is None:
            return None
        side, direction = self._before[found[0]], self.directions[found[0]]
        return found if direction * side <= 0 and abs(side) > NOISE * self.pace.range[found[0]] else None

    def _note(self, end: GuardSample) -> None:
        self._before, self._before_rates = np.where(end.values != 0, end.values, self._before), end.rates

    def _glance(self, walk: StepWalker, t: float, state: Array | None = None) -> GuardSample:
        x = self.system.variables(walk.polynomial().at(t) if state is None else state)
        rates = self._rates(t, x, self.memory, self.p)[0]
        return GuardSample(t, self._filtered(self.raw(t, x)), rates)

    def _scan(self, walk: StepWalker) -> Scan:
        """The guards within the last step."""

        def value(t: float, i: int) -> float:
            return float(self.raw(t, self.system.variables(walk.polynomial().at(t)))[i])

        return Scan(
            self.directions, self.band, self.departure, lambda t: self._glance(walk, t), value, self._refuse,
            self.equations.n_singularities,
        )  # fmt: skip

    def _near(self, walk: StepWalker) -> float:
        """How far away a zero may be that the integrator reports."""
        late = max(abs(walk.problem.t0), abs(walk.problem.t_stop))
        return NEAR * (walk.t - walk.t0) + 1e4 * EPS * late

    def _is_root(self, walk: StepWalker, t: float) -> bool:
        """Whether the zero at t is the one that the integrator has stopped at: it looks for none within a step."""
        return walk.at_root and walk.t - t <= self._near(walk)

    def _root(self, walk: StepWalker) -> tuple[int, float] | None:
        """Which guard it is whose zero the integrator has stopped at; None if it is one to ignore."""
        x = self.system.variables(walk.x)
        values = self.raw(walk.t, x)
        candidates = [
            (abs(values[i]) / (abs(rate) + EPS), i)
            for i, rate in enumerate(self._rates(walk.t, x, self.memory, self.p)[0])
            if not self.band[i] and self._before[i] * self.directions[i] <= 0 and self._before[i] * rate < 0
        ]
        near = self._near(walk)
        close = [(away, i) for away, i in candidates if away <= near]
        if not close:
            return None
        return min(close)[1], walk.t

    def arrive(self, walk: StepWalker, index: int, near: float) -> tuple[int, float, Array, EventPoint]:
        """Go from the start of the last step to the zero of a guard: its number, time, state, and what is there.

        Where the state there says that another guard has crossed zero before, which the polynomial of the step could
        not tell, it is that one.
        """
        t, state, there = self._arrive(walk, index, near)
        for _ in self.directions:
            earlier = self._passed(t, state, index)
            if earlier is None:
                break
            index = earlier
            t, state, there = self._arrive(walk, index, t)
        return index, t, state, there

    def _passed(self, t: float, state: Array, index: int) -> int | None:
        """The guard, but for this one, that has gone farthest beyond zero since the start of the last step, in time."""
        x = self.system.variables(state)
        values, rates = self._filtered(self.raw(t, x)), self._rates(t, x, self.memory, self.p)[0]
        past = (self._began * values < 0) & (self.directions * values >= 0) & (values * rates > 0)
        past[index] = past[self._determinants] = False
        found = np.flatnonzero(past)
        return int(found[np.argmax(values[found] / rates[found])]) if found.size else None

    def _arrive(self, walk: StepWalker, index: int, t: float) -> tuple[float, Array, EventPoint]:
        """Time, state, and what is there, to rounding."""
        h, latest = walk.t - walk.t0, walk.t
        state = walk.x
        if self._is_root(walk, t):
            latest = min(walk.problem.t_stop, walk.t + SHORT * h)
        elif t < latest:
            state = walk.again(t).arrive()
            if self._jumps(self._glance(walk, t), index, h):
                return t, state, self._there(t, state, index)
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
        else:  # where a guard touches zero Newton's iteration goes to and fro: what is there belongs to the last time
            there = self._there(t, state, index)
        return t, state, there

    def _jumps(self, seen: GuardSample, index: int, h: float) -> bool:
        """Whether a guard that changes sign here is far from zero: Newton's iteration would lead to another place."""
        value, rate = abs(float(seen.values[index])), abs(float(seen.rates[index]))
        return value > JUMP * abs(float(self._before[index])) and not value <= rate * JUMP * h

    def _there(self, t: float, state: Array, index: int) -> EventPoint:
        x, xdot = completed(self.equations, t, self.system.variables(state), self.memory, self.p)
        rates = self._rates(t, x, self.memory, self.p)[0]
        return EventPoint(x, xdot, float(self.raw(t, x)[index]), float(rates[index]))
