"""Outputs of a segment: interpolation between the steps, and the rows of its outcome."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dae_hybrid.method import DENSE_COLUMNS
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.step_polynomial import COEFFICIENTS, NODES, end_derivatives
from dae_hybrid.port.integrator import SegmentTask
from dae_hybrid.port.motion import MotionEquations


def between(motion: MotionEquations, t: Array, t0: Array, t1: Array, start: Array, end: Array) -> Array:
    """Values (k, ..., n_x) at times (k) within steps from t0 to t1 (k), from those at their ends (k or 1, ..., n_x).

    Positions and velocities are cubics, with the velocities and accelerations as slopes; others are linear.
    """
    shape = (-1, *[1] * (end.ndim - 1))
    h, s = (t1 - t0).reshape(shape), ((t - t0) / (t1 - t0)).reshape(shape)
    found: Array = start + s * (end - start)
    for at, rate in motion.slopes:
        change = end[..., at] - start[..., at]
        first, last = h * start[..., rate] - change, change - h * end[..., rate]
        found[..., at] += s * (1 - s) * ((1 - s) * first + s * last)
    return found


class Point(NamedTuple):
    """A point of a segment: x (n_x), and dx (d, n_x)."""

    t: float
    x: Array
    dx: Array


class Outputs:
    """The rows of a segment's outcome; see `SegmentOutcome`."""

    def __init__(self, task: SegmentTask, motion: MotionEquations) -> None:
        self.task, self.motion = task, motion
        d = 0 if task.sensitivities is None else len(task.sensitivities)
        n = task.equations.n
        self._width = DENSE_COLUMNS + COEFFICIENTS * n if task.record == "dense" else 1 + n * (1 + d)
        self._rows: list[Array] = []
        self._next = 0  # output time

    def start(self, x: Array, dx: Array) -> None:
        """Add the outputs at the start of the segment; dx (d, n_x)."""
        task = self.task
        if task.record == "steps":
            count = 1 if task.t_eval is None else int(np.count_nonzero(task.t_eval <= task.t0))
            self._next = 0 if task.t_eval is None else count
            self._rows += [np.concatenate(([task.t0], x, dx.ravel()))[None]] * count

    def add(self, before: Point, t: Array, x: Array, dx: Array, *, inclusive: bool) -> None:
        """Add the outputs of k steps: their ends t (k), x (k, n_x) and dx (k, d, n_x), and the point before them.

        `inclusive` says whether an output at the last time is due.
        """
        task = self.task
        if task.record == "dense":
            self._rows.append(self._dense(np.append(before.t, t), np.vstack((before.x, x))))
        elif task.record == "steps" and task.t_eval is None:
            self._append(t, x, dx)
        elif task.record == "steps" and task.t_eval is not None:
            ahead = task.t_eval[self._next :]
            due = ahead[: np.searchsorted(ahead, t[-1], side="right" if inclusive else "left")]
            if due.size:
                ends = np.append(before.t, t)
                i = np.clip(np.searchsorted(ends, due) - 1, 0, t.size - 1)
                found = []
                for first, later in ((before.x, x), (before.dx, dx)):
                    starts = np.where((i == 0).reshape(-1, *[1] * first.ndim), first, later[i - 1])
                    found.append(between(self.motion, due, ends[i], ends[i + 1], starts, later[i]))
                self._append(due, *found)
                self._next += due.size

    def _append(self, t: Array, x: Array, dx: Array) -> None:
        self._rows.append(np.column_stack((t, x, dx.reshape(t.size, -1))))

    def _dense(self, t: Array, x: Array) -> Array:
        """Rows of `Interpolant`: t1, h, order, and the derivatives at t1."""
        h, at = np.diff(t), (NODES + 1) / 2
        values = [between(self.motion, t[:-1] + share * h, t[:-1], t[1:], x[:-1], x[1:]) for share in at[:-1]] + [x[1:]]
        derivatives = np.einsum("ij,jkn->kin", end_derivatives(), values)
        scaled = derivatives / (h[:, None] ** np.arange(COEFFICIENTS))[..., None]
        head = np.column_stack((t[1:], h, np.full(h.size, COEFFICIENTS - 1.0)))
        return np.column_stack((head, scaled.reshape(h.size, -1)))

    def array(self) -> Array:
        """Return all rows."""
        return np.vstack(self._rows) if self._rows else np.zeros((0, self._width))
