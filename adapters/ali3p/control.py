"""The steps of a segment, of a fixed length or controlled by the local error."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dae_hybrid.adapters.ali3p.scheme import MotionStep, Scheme
from dae_hybrid.cancellation import raise_if_cancelled
from dae_hybrid.errors import DaeHybridError, StepSizeError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.options import Options
from dae_hybrid.port.failure_messages import step_limit
from dae_hybrid.port.integrator import SegmentTask

#: a last step that is longer than the others by this share is not divided
LAST_STEP_SHARE = 1e-9
#: step-size control: safety factor, least and largest change, first step as a share of the segment
SAFETY, LEAST_CHANGE, MOST_CHANGE, FIRST_SHARE = 0.9, 0.2, 2.0, 1e-3
#: shortest step under error control, as a share of the segment
MIN_STEP_SHARE = 1e-12


class Progress(NamedTuple):
    """The last point of a walk, its next step and the number of steps."""

    t: float
    start: Array
    x: Array
    h: float
    steps: int


class Walk:
    """The steps of a segment from its start to `end`, and the last point; `budget` is the largest number of steps."""

    def __init__(self, task: SegmentTask, scheme: Scheme, options: Options, end: float, budget: int) -> None:
        self.task, self.scheme, self.options, self.end, self.budget = task, scheme, options, end, budget
        self.t, self.start, self.x = task.t0, scheme.state(task.x0), task.x0
        span = task.t_stop - task.t0
        self.controlled = options.fixed_step is None
        self.longest, self.shortest = options.max_step or np.inf, MIN_STEP_SHARE * span
        #: the next step, unless the end cuts it
        self.h: float = options.fixed_step or options.first_step or FIRST_SHARE * span
        self.count = self.rejected = 0

    @property
    def progress(self) -> Progress:
        """The state of the walk; setting an earlier one takes it back."""
        return Progress(self.t, self.start, self.x, self.h, self.count)

    @progress.setter
    def progress(self, earlier: Progress) -> None:
        self.t, self.start, self.x, self.h, self.count = earlier

    @property
    def arrived(self) -> bool:
        """Whether the end has been reached."""
        return self.t >= self.end

    def step(self) -> MotionStep:
        """Take the next step.

        Raises
        ------
        StepLimitError
            The budget is spent.
        StepSizeError, NonFiniteError, ConsistencyError
            See `Scheme.step`; under error control, only if shorter steps fail too.
        """
        raise_if_cancelled()
        if self.count >= self.budget:
            raise step_limit(self.options.max_steps, mode=self.task.equations.name, time=self.t)
        while True:
            if self.controlled:
                self.h = min(self.h, self.longest)
            last = (self.end - self.t) <= self.h * (1 + LAST_STEP_SHARE)
            following = self.t + self.h if self.controlled else self.task.t0 + (self.count + 1) * self.h
            t = self.end if last else following
            try:
                if self.controlled and last and self.end < self.task.t_stop:  # the event at the end cut a tested step
                    error = self._error(self._uncut())
                    step = self.scheme.step(self.t, t, self.h, self.start, self.x)
                else:
                    step = self.scheme.step(self.t, t, self.h, self.start, self.x)
                    error = self._error(step) if self.controlled else 0.0
            except DaeHybridError:
                if not self.controlled or self.h <= self.shortest:
                    raise
                error = np.inf
            if self.controlled:
                change = SAFETY * error ** (-1 / 3) if error > 0 else MOST_CHANGE
                proposed = min(max(change, LEAST_CHANGE), MOST_CHANGE) * min(self.h, t - self.t)
                if error > 1:
                    self._reject(proposed)
                    continue
                self.h = self.h if last else proposed
            self.t, self.start, self.x = step.t, step.end, step.x
            self.count += 1
            return step

    def _uncut(self) -> MotionStep:
        """The next step as it would be without an event at the end."""
        t, stop = self.t + self.h, self.task.t_stop
        t = stop if stop - self.t <= self.h * (1 + LAST_STEP_SHARE) else t
        return self.scheme.step(self.t, t, self.h, self.start, self.x)

    def _reject(self, proposed: float) -> None:
        self.h = proposed
        self.rejected += 1
        if proposed <= self.shortest:
            raise StepSizeError(
                "The step size fell to its minimum: the error test keeps failing.",
                mode=self.task.equations.name,
                time=self.t,
                remedy="Loosen rtol, or look for a discontinuity that is not an event.",
            )

    def _error(self, step: MotionStep) -> float:
        """Return the estimated local error of positions and velocities, in tolerances (Zienkiewicz and Xie 1991)."""
        n, h, rule, motion = self.scheme.n, step.h, self.scheme.rule, self.scheme.motion
        change = np.abs(step.end[2 * n : 3 * n] - step.start[2 * n : 3 * n])
        allowed = self.options.allowed(self.task.equations.variables, step.x)
        positions = abs(rule.beta - 1 / 6) * h**2 * change / allowed[motion.q]
        velocities = abs(rule.gamma - 0.5) * h * change / allowed[motion.v]
        return float(max(positions.max(initial=0.0), velocities.max(initial=0.0)))
