"""The choice of ``method="auto"`` for every mode of a run: where it is first entered, and again along the way.

Explicit steps h are stable up to r h = `reach`, where r is the rate of the fastest decay. A mode turns to the implicit
method where its steps come near to that, with enough left to decay (`dae_hybrid.port.stiffness`), and it turns back
where implicit steps are so short, for their accuracy or from event to event, that explicit ones can be as long.
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

#: as shares of `reach`: r h of explicit steps above which implicit ones are worth a try, and r h of implicit steps
#: below which explicit ones are. Measured on x' = -r (x - cos t) at rtol 1e-8: both methods cost the same where
#: explicit steps have r h = 0.6 and implicit ones 0.4; these shares, 0.77 and 0.39 at order 7, leave a gap in between
BOUND, FREE = 1 / 6, 1 / 12
#: at other tolerances the rate r at which the methods cost the same hardly moves (3.5 at 1e-4, 6 at 1e-12): the shares
#: become smaller and larger as steps do there
MEASURED, FINER, LOOSER = 1e-8, 1 / 7, 1 / 12
#: a step of BDF costs as much as this share of an explicit one
CHEAPER = 0.5
#: implicit steps before the first look at them, after which a fast transient is over; and between two looks, at most
SETTLE, SELDOM = 500, 2000


def reach_of(options: Options, nonstiff: SundialsMethod) -> float:
    """The longest stable explicit step times the rate of the fastest decay, at these tolerances."""
    ratio = options.rtol / MEASURED
    return nonstiff.reach(options) * float(ratio ** (FINER if ratio < 1 else LOOSER))


class Choice:
    """Of one run, whose `steps` so far its callers count."""

    def __init__(self, options: Options, parameters: Array) -> None:
        self._options, self._p = options, parameters
        self._methods: dict[int, SundialsMethod] = {}  # all by equations
        self._nonstiff: dict[int, SundialsMethod] = {}  # the explicit method of those that have the choice
        self._rates: dict[int, float] = {}  # of decays, at the last look at implicit steps
        self._turned: dict[int, tuple[int, float, float]] = {}  # when they have changed it: steps, time, mean step
        self._patience: dict[int, int] = {}  # how many explicit steps they take at least, after implicit ones
        self._looked, self._interval, self._due = (0, 0.0), STIFFNESS_CHECK_STEPS, STIFFNESS_CHECK_STEPS

    def method_for(self, task: SegmentTask, nonstiff: SundialsMethod, steps: int) -> SundialsMethod:
        """The method for a segment; `nonstiff` is the one for equations that are not stiff."""
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
        """Whether steps get to the end within their limit; else only those that may grow will do."""
        return left <= step * self._options.max_steps

    def resume(self, memories: Iterable[Forward], stretch: tuple[float, int, int], look: tuple[int, int]) -> None:
        """Go on with the methods of these memories from a look at a time, after some steps."""
        t, taken, _ = stretch
        for memory in memories:
            key = id(memory.equations)
            self._methods[key] = memory.method
            if memory.method is not STIFF:
                self._nonstiff[key] = memory.method
        self._looked, (self._due, self._interval) = (taken, t), look

    def keep_implicit(self, equations: Equations) -> None:
        """Explicit steps have failed."""
        self._methods[id(equations)] = STIFF
        self._nonstiff.pop(id(equations), None)

    def has(self, equations: Equations) -> bool:
        """Whether there is a choice."""
        return id(equations) in self._nonstiff

    def left(self, steps: int) -> int:
        """How many steps there are before the next look."""
        return self._due - steps

    def changes(self, e: Equations, t: float, x: Array, m: Array, t_stop: float, steps: int) -> bool:
        """Look at a mode: whether it changes its method here, which has then been chosen."""
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
            fastest = max(rate, self._rates.get(key, rate))  # at either end of the steps since the last look
            self._rates[key] = rate
            return fastest * step < FREE * reach and self._arrives(t_stop - t, step)
        if key in self._turned and steps - self._turned[key][0] < self._patience.get(key, STIFFNESS_CHECK_STEPS):
            return False
        return stiff_rate(e, t, x, m, self._p, t_stop) * step > BOUND * reach
