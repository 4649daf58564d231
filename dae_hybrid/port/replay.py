"""Dense output: the interpolant of a segment, obtained by integrating the segment again."""

from __future__ import annotations

from dataclasses import dataclass
from math import factorial
from typing import Any

import numpy as np

from dae_hybrid.errors import DaeHybridError
from dae_hybrid.method import DENSE_COLUMNS
from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.port.integrator import OpenSession, SegmentTask
from dae_hybrid.port.segment_rules import same_instant

#: values below zero by no more than this many roundings of their terms, and of the time, are zero: a state that leaves
#: zero must not be below it, where its powers and roots are not defined
PATH_ROUNDINGS = 4.0


@dataclass(frozen=True)
class Interpolant:
    """The integrator's own interpolant: rows of t_n, h, order and the derivatives at t_n, valid on [t_n - h, t_n]."""

    rows: Array
    n: int

    def row(self, t: Any) -> Any:
        """Return the row of each time."""
        return np.minimum(np.searchsorted(self.rows[:, 0], t), len(self.rows) - 1)

    def __call__(self, t: Array) -> Array:
        """Return values at times, shape (len(t), n)."""
        index = self.row(t)
        offset = t - self.rows[index, 0]
        derivatives = self.rows[index, DENSE_COLUMNS:].reshape(len(t), -1, self.n)
        values = _polynomials(derivatives, offset)
        below = values < 0
        if below.any():
            terms = _polynomials(np.abs(derivatives), np.abs(offset))
            if derivatives.shape[1] > 1:
                terms += np.abs(t[:, None] * derivatives[:, 1])
            values[below & (-values <= PATH_ROUNDINGS * EPS * terms)] = 0.0
        return values


def _polynomials(derivatives: Array, offset: Array) -> Array:
    """Values of polynomials with these derivatives (N, order + 1, n) at points, at a distance of each: (N, n)."""
    values = np.zeros((len(offset), derivatives.shape[2]))
    for k in range(derivatives.shape[1] - 1, -1, -1):
        values = values * offset[:, None] + derivatives[:, k] / factorial(k)
    return values


def shortened(rows: Array, n: int, end: float) -> Array:
    """Return the rows of an interpolant up to `end`, the last one expanded about `end`."""
    if not len(rows) or end >= rows[-1, 0]:
        return rows
    rows = rows[: int(np.searchsorted(rows[:, 0], end)) + 1].copy()
    last, order = rows[-1], int(rows[-1, 2])
    derivatives, offset = last[DENSE_COLUMNS:].reshape(-1, n), end - last[0]
    for k in range(order):
        for j in range(k + 1, order + 1):
            derivatives[k] += derivatives[j] * offset ** (j - k) / factorial(j - k)
    last[0], last[1] = end, last[1] + offset
    return rows


@dataclass(frozen=True)
class SegmentReplay:
    """A segment of a run that can be integrated again."""

    open_session: OpenSession
    task: SegmentTask
    t_end: float
    method: str | None

    def replay_task(self) -> SegmentTask:
        """Return the task that takes the same steps and records the interpolant."""
        task = self.task
        return SegmentTask(
            task.equations, task.t0, task.t_stop, task.x0, task.xdot0, task.memory, task.integrals,
            np.full_like(task.zero_band, np.inf), np.zeros_like(task.leaving_sign), "dense", method=self.method,
            until=self.t_end,
        )  # fmt: skip

    def __call__(self) -> Interpolant:
        """Return the interpolant of the segment."""
        task, session = self.replay_task(), self.open_session()
        try:
            rows = session.integrate(task).rows
        except DaeHybridError as error:  # last segment of a failed run: use its steps
            if error.rows is None or not len(error.rows) or not same_instant(error.rows[-1, 0], self.t_end, task.t0):
                raise
            rows = error.rows
        finally:
            session.close()
        if not len(rows):  # a segment of rounding length
            rows = np.concatenate(([self.t_end, self.t_end - task.t0, 0.0], task.x0))[None, :]
        return Interpolant(rows, task.x0.size)
