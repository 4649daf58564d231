"""Output rows of a segment in adapters that only integrate; see `SegmentOutcome.rows`."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dae_hybrid.method import DENSE_COLUMNS
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.step_polynomial import COEFFICIENTS, Step
from dae_hybrid.port.integrator import SegmentTask
from dae_hybrid.steppers.augmented import SensitivitySystem
from dae_hybrid.steppers.step_walker import StepWalker


@dataclass
class OutputRows:
    """Collects the output rows of a segment."""

    task: SegmentTask
    system: SensitivitySystem
    constants: Array
    rows: list[Array] = field(default_factory=list)
    _next: int = 0

    def __post_init__(self) -> None:
        task = self.task
        self.width = 1 + task.equations.n * (1 + (0 if task.sensitivities is None else len(task.sensitivities)))

    def _add(self, t: float, state: Array) -> None:
        self.rows.append(np.concatenate(([t], self.system.outputs(t, state, self.constants)[0])))

    def start(self, state: Array) -> None:
        """Add the start of the segment."""
        if self.task.record != "steps":
            return
        if self.task.t_eval is None:
            self._add(self.task.t0, state)
            return
        for t in self.task.t_eval.tolist():
            if t > self.task.t0:
                break
            self._add(t, state)
            self._next += 1

    def step(self, walker: StepWalker, until: float, *, inclusive: bool) -> None:
        """Add the outputs of a step, or of its part up to a time."""
        if self.task.record == "dense":
            steps = walker.resolved(strict=False)
            self.rows += [Step(s.t0, s.t1, self.system.variables(s.coefficients)).dense_row() for s in steps]
        elif self.task.record == "steps" and self.task.t_eval is not None:
            ahead = self.task.t_eval[self._next :]
            times = ahead[ahead <= until if inclusive else ahead < until]
            for t, state in zip(times.tolist(), walker.states(times) if times.size else (), strict=True):
                self._add(t, state)
            self._next += times.size

    def point(self, t: float, state: Array) -> None:
        """Add the end of a step."""
        if self.task.record == "steps" and self.task.t_eval is None:
            self._add(t, state)

    def array(self) -> Array:
        """Return all rows."""
        width = DENSE_COLUMNS + COEFFICIENTS * self.task.equations.n if self.task.record == "dense" else self.width
        return np.array(self.rows).reshape(len(self.rows), width)
