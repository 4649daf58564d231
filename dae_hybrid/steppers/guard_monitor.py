"""Location of guard crossings outside the integrator: the first guard that crosses zero in a segment, and its time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from dae_hybrid.errors import NonFiniteError
from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.numerics.crossings import INTERIOR_POSITION, GuardSample, Pace, Scan, Turns, keeps_away
from dae_hybrid.numerics.step_polynomial import Step
from dae_hybrid.port.failure_messages import lost_crossing, unresolved_guard
from dae_hybrid.port.integrator import SegmentTask
from dae_hybrid.port.segment_rules import completed, kernel

#: Newton's iteration for an event time: tolerance in rounding errors, share of a step below which states are advanced
#: by their rates alone, and most iterations
TIME_ROUNDINGS, RATE_STEP_SHARE, MAX_CORRECTIONS = 2.0, 1e-7, 8
#: nonzero stand-in for guards inside their zero band, for integrators with root finding
NONZERO = 1e-30
#: a determinant counts as zero if, at the end of a step, it is below this share of its largest value and its rate takes
#: it to zero within this share of the time: steps that solve for algebraic variables approach a singularity slowly
SINGULAR_SHARE = 1e-8
#: a guard above this share of its range is clearly nonzero
NOISE_SHARE = 1e-6
#: largest distance of a zero reported by the integrator from the end of the step, as a share of the step
ROOT_DISTANCE_SHARE = 1e-3
#: a guard jumps if its value at the sign change exceeds this share of its value at the end of the step, and its rate
#: does not lead to zero within this share of the step
DISCONTINUITY_SHARE = 1e-3


class EventPoint(NamedTuple):
    """The consistent point at an event."""

    x: Array
    xdot: Array
    guard: float
    rate: float


class LastStep(Protocol):
    """The last step of an integrator, from `t0` to (t, x)."""

    @property
    def t0(self) -> float:
        """Start of the step."""

    @property
    def t(self) -> float:
        """End of the step."""

    @property
    def x(self) -> Array:
        """The integrator's state there."""

    @property
    def at_root(self) -> bool:
        """Whether the integrator itself has located a zero of a guard at t."""

    @property
    def span(self) -> tuple[float, float]:
        """Start and end of the segment."""

    def polynomial(self) -> Step:
        """Return the step as a polynomial in the integrator's state."""

    def integrated_to(self, t: float) -> Array:
        """Return the state at t, integrated from the start of the step."""

    def rates(self, t: float, x: Array) -> Array:
        """Return the rates of the first entries of the state, the differential ones."""


class GuardMonitor:
    """The guards of one task; see `SegmentTask` for zero bands and leaving signs.

    `variables` returns the variables of the equations from the integrator's state; `pace` is that of the mode so far.
    """

    def __init__(
        self, task: SegmentTask, variables: Callable[[Array], Array], p: Array, pace: Pace | None = None
    ) -> None:
        e = self.equations = task.equations
        self.variables, self.memory, self.p = variables, task.memory, p
        self.band, self.leaving_sign = task.zero_band.copy(), task.leaving_sign
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

    def _evaluated(self, t: float, x: Array) -> Array:
        self.evaluations += 1
        values: Array = self._guards(t, x, self.memory, self.p)[0]
        return values

    def raw(self, t: float, x: Array) -> Array:
        """Return the guards at (y, z)."""
        return self._finite(self._evaluated(t, x), t)

    def _finite(self, values: Array, t: float) -> Array:
        if not np.all(np.isfinite(values)):
            raise NonFiniteError(
                "A guard is NaN or infinite.",
                mode=self.equations.name,
                time=t,
                remedy="Check the guards of the mode near this point.",
            )
        return values

    def values(self, t: float, x: Array) -> Array:
        """Return the guards at the end of a step, zero inside their zero band, and arm those that have left it."""
        values = self._filtered(self.raw(t, x))
        self._refuse(np.flatnonzero((self.band > 0) & (values * self.leaving_sign < 0)).tolist(), t)
        self.band[values != 0] = 0.0
        return values

    @property
    def is_clear(self) -> bool:
        """Whether every guard is nonzero and has left its zero band."""
        return bool(np.all(self.band == 0) and np.all(self._before != 0))

    @property
    def latest(self) -> tuple[Array, Array]:
        """The guards and their rates at the end of the last step."""
        return self._before, self._before_rates

    def resume(self, t: float, x: Array, pace: tuple[Array, Array], largest: Array) -> None:
        """Go on from a later point, after steps in which no guard became zero.

        `pace` is that of the guards there, `largest` are their largest magnitudes on the way.
        """
        if self.directions.size:
            self._before, self._before_rates = self.raw(t, x), self._rates(t, x, self.memory, self.p)[0]
            self.pace.speed, self.pace.range = pace
            self._largest = np.maximum(self._largest, largest[self._determinants])

    def _filtered(self, values: Array) -> Array:
        return np.where(np.abs(values) <= self.band, 0.0, values)

    def _refuse(self, returned: Sequence[int], t: float) -> None:
        if returned:
            raise unresolved_guard(returned[0], mode=self.equations.name, time=t)

    def root_function(self, t: float, state: Array) -> Array:
        """Return the guards for the integrator's root finding: nonzero, with the leaving sign, inside the band."""
        values = self.raw(t, self.variables(state))
        side = np.where(self.leaving_sign != 0, self.leaving_sign, np.where(values < 0, -1.0, 1.0))
        return np.where(np.abs(values) <= self.band, NONZERO * side, values)

    def locate(self, walker: LastStep) -> tuple[int, float] | None:
        """Return the first guard that crossed zero in its direction within the last step, and the approximate time."""
        if np.isinf(self.band).all():  # there are no guards, or those of a replay
            return None
        self._began = self._before
        end = self._sample(walker, walker.t, walker.x)
        start = GuardSample(walker.t0, self._before, self._before_rates)
        if np.any(resting := (self.band > 0) & (end.values == 0)):  # at rest, or exactly back at zero
            within = self._sample(walker, walker.t0 + INTERIOR_POSITION * (walker.t - walker.t0)).values
            self.band[resting & (within * self.leaving_sign > 0)] = 0.0
            end = self._sample(walker, walker.t, walker.x)
        self.turns.between(start, end)
        scan = self._scan(walker)
        if self.directions.size == self.equations.n_singularities and keeps_away(start, end):
            found = None  # determinants alone do not justify an interpolation
        else:
            resolved = walker.t - walker.t0 > EPS * abs(walker.t)
            found = scan.first(start, end, self.equations.resolution, self.pace) if resolved else None
            if walker.at_root and (found is None or self._is_root(walker, found[1])):
                found = self._root(walker) or self._unless_noise(found)
        found = found or self._singular(walker, end)
        self.band[end.values != 0] = 0.0
        self._note(end)
        return found

    def _singular(self, walker: LastStep, end: GuardSample) -> tuple[int, float] | None:
        """Return a determinant that is zero at the end of the last step, or would be if its unknowns did not return."""
        size, rate = np.abs(end.values[self._determinants]), np.abs(end.rates[self._determinants])
        self._largest = np.maximum(self._largest, size)
        within = rate * (walker.span[1] - walker.span[0])
        found = np.flatnonzero(size <= SINGULAR_SHARE * np.minimum(self._largest, within))
        return (self.equations.n_guards - self._largest.size + int(found[0]), end.t) if found.size else None

    def note_end(self, walker: LastStep) -> None:
        """Note the guards at the end of a step within which they could not be evaluated."""
        self._note(self._sample(walker, walker.t, walker.x))

    def _unless_noise(self, found: tuple[int, float] | None) -> tuple[int, float] | None:
        """Return a crossing whose rate has the wrong sign only if the step begins clearly on the other side."""
        if found is None:
            return None
        side, direction = self._before[found[0]], self.directions[found[0]]
        return found if direction * side <= 0 and abs(side) > NOISE_SHARE * self.pace.range[found[0]] else None

    def _note(self, end: GuardSample) -> None:
        self._before, self._before_rates = np.where(end.values != 0, end.values, self._before), end.rates

    def _sample(self, walker: LastStep, t: float, state: Array | None = None) -> GuardSample:
        x = self.variables(walker.polynomial().at(t) if state is None else state)
        rates = self._rates(t, x, self.memory, self.p)[0]
        return GuardSample(t, self._filtered(self.raw(t, x)), rates)

    def _scan(self, walker: LastStep) -> Scan:
        """Return a scan of the guards within the last step."""

        def value(t: float, i: int) -> float:
            values = self._evaluated(t, self.variables(walker.polynomial().at(t)))
            if math.isinf(values[i]):  # between finite ones
                raise lost_crossing((i, float(values[i]), math.inf), pole=True, mode=self.equations.name, time=t)
            return float(self._finite(values, t)[i])

        return Scan(
            self.directions, self.band, self.leaving_sign, lambda t: self._sample(walker, t), value, self._refuse,
            self.equations.n_singularities,
        )  # fmt: skip

    def _root_distance(self, walker: LastStep) -> float:
        """Return the largest distance in time of a zero that the integrator reports."""
        late = max(map(abs, walker.span))
        return ROOT_DISTANCE_SHARE * (walker.t - walker.t0) + 1e4 * EPS * late

    def _is_root(self, walker: LastStep, t: float) -> bool:
        """Whether the zero at t is the one at which the integrator has stopped."""
        return walker.at_root and walker.t - t <= self._root_distance(walker)

    def _root(self, walker: LastStep) -> tuple[int, float] | None:
        """Return the guard at whose zero the integrator has stopped; None if it is to be ignored."""
        x = self.variables(walker.x)
        values = self.raw(walker.t, x)
        candidates = [
            (abs(values[i]) / (abs(rate) + EPS), i)
            for i, rate in enumerate(self._rates(walker.t, x, self.memory, self.p)[0])
            if not self.band[i] and self._before[i] * self.directions[i] <= 0 and self._before[i] * rate < 0
        ]
        near = self._root_distance(walker)
        close = [(away, i) for away, i in candidates if away <= near]
        if not close:
            return None
        return min(close)[1], walker.t

    def integrate_to_zero(self, walker: LastStep, index: int, near: float) -> tuple[int, float, Array, EventPoint]:
        """Integrate from the start of the last step to the zero of a guard: its index, time, state and event point.

        If the state there shows that another guard has crossed zero earlier, which the polynomial of the step did not
        resolve, that guard is returned.
        """
        t, state, point = self._integrate_to_zero(walker, index, near)
        for _ in self.directions:
            earlier = self._earlier_crossing(t, state, index)
            if earlier is None:
                break
            index = earlier
            t, state, point = self._integrate_to_zero(walker, index, t)
        return index, t, state, point

    def _earlier_crossing(self, t: float, state: Array, index: int) -> int | None:
        """Return the other guard that, by its rate, has been beyond zero longest since the start of the last step."""
        x = self.variables(state)
        values, rates = self._filtered(self.raw(t, x)), self._rates(t, x, self.memory, self.p)[0]
        leaves = values * np.sign(rates) > 0  # rates may be infinite
        past = (self._began * values < 0) & (self.directions * values >= 0) & leaves
        past[index] = past[self._determinants] = False
        found = np.flatnonzero(past)
        return int(found[np.argmax(values[found] / rates[found])]) if found.size else None

    def _integrate_to_zero(self, walker: LastStep, index: int, t: float) -> tuple[float, Array, EventPoint]:
        """Return time, state and event point of a zero, to rounding."""
        h, latest = walker.t - walker.t0, walker.t
        state = walker.x
        if self._is_root(walker, t):
            latest = min(walker.span[1], walker.t + RATE_STEP_SHARE * h)
        elif t < latest:
            state = walker.integrated_to(t)
            if self._jumps(self._sample(walker, t), index, h):
                return t, state, self._event_point(t, state, index)
        for _ in range(MAX_CORRECTIONS):
            point = self._event_point(t, state, index)
            dt = -point.guard / point.rate if point.rate else np.inf
            if not TIME_ROUNDINGS * EPS * abs(t) < abs(dt) <= h or not walker.t0 < t + dt <= latest:
                break
            t += dt
            if abs(dt) <= RATE_STEP_SHARE * h:
                rates, state = walker.rates(t, state), state.copy()
                state[: rates.size] += dt * rates
            else:
                state = walker.integrated_to(t)
        else:  # Newton's iteration oscillates at a touching zero: evaluate the point at the last time
            point = self._event_point(t, state, index)
        return t, state, point

    def _jumps(self, seen: GuardSample, index: int, h: float) -> bool:
        """Whether a guard changes sign here by a jump: Newton's iteration would converge elsewhere."""
        value, rate = abs(float(seen.values[index])), abs(float(seen.rates[index]))
        return (
            value > DISCONTINUITY_SHARE * abs(float(self._before[index]))
            and not value <= rate * DISCONTINUITY_SHARE * h
        )

    def _event_point(self, t: float, state: Array, index: int) -> EventPoint:
        x, xdot = completed(self.equations, t, self.variables(state), self.memory, self.p)
        rates = self._rates(t, x, self.memory, self.p)[0]
        return EventPoint(x, xdot, float(self.raw(t, x)[index]), float(rates[index]))
