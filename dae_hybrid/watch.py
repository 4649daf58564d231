"""Guards of a segment, watched from outside the integrator: which one crosses zero first, and where."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from dae_hybrid.errors import NonFiniteError
from dae_hybrid.failures import unresolved_guard
from dae_hybrid.integrator import Array, SegmentTask
from dae_hybrid.segments import completed, kernel
from dae_hybrid.smooth import SensitivitySystem
from dae_hybrid.steps import node_times
from dae_hybrid.walk import Walk

#: Newton's iteration for an event time stops at this many roundings; over this share of a step states move by their
#: rates alone
ROUNDINGS, SHORT, CORRECTIONS = 2.0, 1e-7, 8
EPS = float(np.finfo(float).eps)


class Arrival(NamedTuple):
    """The consistent point at an event."""

    x: Array
    xdot: Array
    guard: float
    rate: float


class Watch:
    """The guards of one task; see `SegmentTask` for zero bands and departures."""

    def __init__(self, task: SegmentTask, system: SensitivitySystem, p: Array, *, asked: bool) -> None:
        e = self.equations = task.equations
        self.system, self.memory, self.p = system, task.memory, p
        self.band, self.departure = task.zero_band.copy(), task.departure
        self.directions = np.array(e.directions)
        self.asked = asked  # whether the integrator asks for the guards itself and stops at their zeros
        self._guards, self._rates = kernel(e, "guards"), kernel(e, "rates")
        self.evaluations = 0
        self._before = self.values(task.t0, task.x0) if e.n_guards else np.zeros(0)

    def raw(self, t: float, x: Array) -> Array:
        """Guards at (y, z)."""
        self.evaluations += 1
        values: Array = self._guards(t, x, 0.0, self.memory, self.p)[0]
        if not np.all(np.isfinite(values)):
            raise NonFiniteError(
                "A guard is NaN or infinite.",
                mode=self.equations.name,
                time=t,
                remedy="Check the guards of the mode near this point.",
            )
        return values

    def values(self, t: float, x: Array) -> Array:
        """Guards with those that have not left their zero band at zero; the others are armed from now on."""
        values = self.raw(t, x)
        inside = (self.band > 0) & (np.abs(values) <= self.band)
        back = (self.band > 0) & ~inside & (values * self.departure < 0)
        if back.any():
            raise unresolved_guard(int(np.flatnonzero(back)[0]), mode=self.equations.name, time=t)
        self.band[~inside] = 0.0
        values[inside] = 0.0
        return values

    def asking(self, t: float, state: Array) -> Array:
        """The guards as an integrator asks for them."""
        return self.values(t, self.system.variables(state))

    def look(self, walk: Walk) -> tuple[int, float] | None:
        """The first guard that crossed zero in its direction within the last step, and about when."""
        if not self.directions.size:
            return None
        if self.asked:
            times, states = [walk.t], [walk.x]
            if walk.at_root:
                return self._root(walk)
        else:
            step = walk.polynomial()
            times = [*node_times(walk.t0, walk.t)[2::2].tolist(), walk.t]
            states = [*(step.at(t) for t in times[:-1]), walk.x]
        earlier = walk.t0
        for t, state in zip(times, states, strict=True):
            now = self.values(t, self.system.variables(state))
            crossed = self._crossed(self._before, now)
            if crossed.size:
                return self._first(walk, crossed, earlier, t, now)
            self._before = np.where(now != 0, now, self._before)
            earlier = t
        return None

    def _crossed(self, before: Array, now: Array) -> NDArray[np.intp]:
        changed = (before * now < 0) | ((now == 0) & (before != 0) & (self.band == 0))
        return np.flatnonzero(changed & (self.directions * before <= 0))

    def _first(self, walk: Walk, crossed: NDArray[np.intp], t0: float, t1: float, now: Array) -> tuple[int, float]:
        step, found = walk.polynomial(), []
        for i in crossed.tolist():

            def guard(t: float, i: int = i) -> float:
                return float(self.raw(t, self.system.variables(step.at(t)))[i])

            root = t1
            if now[i] != 0 and guard(t0) * guard(t1) < 0:
                root = float(brentq(guard, t0, t1, xtol=8 * EPS * max(abs(t0), abs(t1)), rtol=8 * EPS))
            found.append((root, i))
        root, index = min(found)
        return index, root

    def _root(self, walk: Walk) -> tuple[int, float] | None:
        """Which guard it is whose zero the integrator has stopped at; None if it is one to ignore."""
        x = self.system.variables(walk.x)
        values = self.raw(walk.t, x)
        candidates = [
            (abs(values[i]) / (abs(rate) + EPS), i)
            for i, rate in enumerate(self._rates(walk.t, x, 0.0, self.memory, self.p)[0])
            if not self.band[i] and self._before[i] * self.directions[i] <= 0 and self._before[i] * rate < 0
        ]
        close = [(away, i) for away, i in candidates if away <= 1e-6 * (walk.t - walk.t0) + 1e3 * EPS * abs(walk.t)]
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
        rates = self._rates(t, x, 0.0, self.memory, self.p)[0]
        return Arrival(x, xdot, float(self.raw(t, x)[index]), float(rates[index]))
