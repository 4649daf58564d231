"""The choice of ``method="auto"`` for each mode of a run: on first entry, and again during the run.

Explicit steps h are stable up to r h = `reach`, where r is the rate of the fastest decay. A mode switches to the
implicit method if its steps come close to that bound with enough decay left (`dae_hybrid.port.stiffness`). It switches
back if implicit steps are so short, for accuracy or between events, that explicit steps can be as long.
"""

from __future__ import annotations

from collections.abc import Iterable

from dae_hybrid.numerics.arrays import Array
from dae_hybrid.options import Options
from dae_hybrid.port.integrator import Equations, SegmentTask
from dae_hybrid.port.stiffness import (
    MAX_STIFFNESS_CHECK_STEPS,
    STIFFNESS_CHECK_STEPS,
    accurate_step,
    decay_rate,
    stiff_rate,
)

from .forward import Forward
from .methods import STIFF, SundialsMethod

#: relative to `reach`: r h of explicit steps above which implicit steps are tried, and r h of implicit steps below
#: which explicit steps are. Measured on x' = -r (x - cos t) at rtol 1e-8: the methods cost the same where explicit
#: steps have r h = 0.6 and implicit ones 0.4; these values, 0.77 and 0.39 at order 7, leave a gap
BOUND, FREE = 1 / 6, 1 / 12
#: at other tolerances the break-even rate r hardly changes (3.5 at 1e-4, 6 at 1e-12): the bounds scale with the steps
MEASURED, FINER, LOOSER = 1e-8, 1 / 7, 1 / 12
#: cost of a BDF step relative to an explicit step
CHEAPER = 0.5
#: implicit steps before the first check, when fast transients are over; largest number of steps between checks
SETTLE, SELDOM = 500, 2000


def reach_of(options: Options, nonstiff: SundialsMethod) -> float:
    """Longest stable explicit step times the rate of the fastest decay, at these tolerances."""
    ratio = options.rtol / MEASURED
    return nonstiff.reach(options) * float(ratio ** (FINER if ratio < 1 else LOOSER))


class Choice:
    """The choices within one run. Its callers count the `steps`."""

    def __init__(self, options: Options, parameters: Array) -> None:
        self._options, self._p = options, parameters
        self._methods: dict[int, SundialsMethod] = {}  # chosen method of each set of equations
        self._nonstiff: dict[int, SundialsMethod] = {}  # explicit method of those that have a choice
        self._rates: dict[int, float] = {}  # decay rates at the last check of implicit steps
        self._turned: dict[int, tuple[int, float, float]] = {}  # last change: steps, time, mean step
        self._patience: dict[int, int] = {}  # minimum number of explicit steps after implicit ones
        self._looked, self._interval, self._due = (0, 0.0), STIFFNESS_CHECK_STEPS, STIFFNESS_CHECK_STEPS

    def method_for(self, task: SegmentTask, nonstiff: SundialsMethod, steps: int) -> SundialsMethod:
        """Return the method for a segment; `nonstiff` is the method for nonstiff equations."""
        e, key = task.equations, id(task.equations)
        if key not in self._methods:
            stiff = not nonstiff.takes(e) or self._begins_stiff(task, nonstiff)
            if not self._methods:
                self._looked = steps, task.t0
            self._methods[key] = STIFF if stiff else nonstiff
            if nonstiff.takes(e):
                self._nonstiff[key] = nonstiff
                self._wait(key, steps)
        elif self.left(steps) <= 0:
            self.changes(e, task.t0, task.x0, task.memory, task.t_stop, steps)
        return self._methods[key]

    def _begins_stiff(self, task: SegmentTask, nonstiff: SundialsMethod) -> bool:
        e, here = task.equations, (task.t0, task.x0, task.memory, self._p)
        rate = stiff_rate(e, *here, task.t_stop)
        if not rate:
            return False
        allowed = self._options.allowed(e.variables, task.x0)
        left = task.t_stop - task.t0
        step = min(accurate_step(e, *here, allowed, left), self._options.max_step or left)
        return not rate * step <= BOUND * reach_of(self._options, nonstiff) or not self._arrives(left, step)

    def _arrives(self, left: float, step: float) -> bool:
        """Whether steps of this size reach the end within the step limit; otherwise only growing steps will."""
        return left <= step * self._options.max_steps

    def resume(self, memories: Iterable[Forward], stretch: tuple[float, int, int], look: tuple[int, int]) -> None:
        """Restore the methods of these memories from the last check at a time, after a number of steps."""
        t, taken, _ = stretch
        for memory in memories:
            key = id(memory.equations)
            self._methods[key] = memory.method
            if memory.method is not STIFF:
                self._nonstiff[key] = memory.method
        self._looked, (self._due, self._interval) = (taken, t), look

    def keep_implicit(self, equations: Equations) -> None:
        """Use the implicit method from now on: explicit steps have failed."""
        self._methods[id(equations)] = STIFF
        self._nonstiff.pop(id(equations), None)

    def has(self, equations: Equations) -> bool:
        """Whether there is a choice."""
        return id(equations) in self._nonstiff

    def left(self, steps: int) -> int:
        """Number of steps until the next check."""
        return self._due - steps

    def changes(self, e: Equations, t: float, x: Array, m: Array, t_stop: float, steps: int) -> bool:
        """Check a mode; return whether its method changes here. The new method is then set."""
        key, (before, since) = id(e), self._looked
        step, self._looked = (t - since) / max(steps - before, 1), (steps, t)
        if key in self._nonstiff and self._ought_to_change(e, t, x, m, t_stop, step, steps):
            turns_back = self._methods[key] is STIFF
            if turns_back and key in self._turned:
                begun, then, explicit = self._turned[key]
                fruitless = t - then < CHEAPER * explicit * (steps - begun)
                self._patience[key] = (
                    2 * self._patience.get(key, STIFFNESS_CHECK_STEPS) if fruitless else STIFFNESS_CHECK_STEPS
                )
            self._methods[key] = self._nonstiff[key] if turns_back else STIFF
            self._turned[key] = steps, t, step
            self._wait(key, steps)
            return True
        most = SELDOM if self._methods[key] is STIFF else MAX_STIFFNESS_CHECK_STEPS
        self._interval = min(2 * self._interval, most)
        self._due = steps + self._interval
        return False

    def _wait(self, key: int, steps: int) -> None:
        self._rates.pop(key, None)
        self._interval = SETTLE if self._methods[key] is STIFF else STIFFNESS_CHECK_STEPS
        self._due = steps + self._interval

    def _ought_to_change(
        self, e: Equations, t: float, x: Array, m: Array, t_stop: float, step: float, steps: int
    ) -> bool:
        key = id(e)
        reach = reach_of(self._options, self._nonstiff[key])
        if self._methods[key] is STIFF:
            rate = decay_rate(e, t, x, m, self._p)
            fastest = max(rate, self._rates.get(key, rate))  # at either end of the steps since the last check
            self._rates[key] = rate
            return fastest * step < FREE * reach and self._arrives(t_stop - t, step)
        if key in self._turned and steps - self._turned[key][0] < self._patience.get(key, STIFFNESS_CHECK_STEPS):
            return False
        return stiff_rate(e, t, x, m, self._p, t_stop) * step > BOUND * reach
