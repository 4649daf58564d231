"""Jumps of functions that nobody can look into, found along a run.

Integrators step across such a jump with short steps, and values are right to the tolerance; derivatives of the steps
leave out how the instant of the jump moves. Between points of the path, the values of a smooth function bend less the
closer the points are, those of one that jumps by a constant.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.errors import EventError
from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.numerics.quintics import through_ends
from dae_hybrid.port.segment_rules import kernel
from dae_hybrid.system.derivative_conditions import Conditions
from dae_hybrid.system.watched import Watched
from dae_hybrid.trajectory.pieces import Motion, evaluate
from dae_hybrid.trajectory.trajectory import Segment, Trajectory

#: equal parts of an interval, and the weights of the values at their ends in the two third differences: zero for
#: parabolas, at least as large as a jump; what else bends the function does not cancel the jump in both
PARTS, WEIGHTS = 4, np.array([[1.0, -3.0, 3.0, -1.0, 0.0], [0.0, 1.0, -3.0, 3.0, -1.0]])
#: rounding of the values of a called function, in roundings of their largest magnitude: solvers stop short of it
VALUE_ROUNDINGS = 1e5
#: halvings of an interval, of which the last ones must not make the difference of the values at its ends half as large;
#: at a zero of |u|^a with a > 0.1 they do
HALVINGS, LAST = 52, 10
TINY = float(np.finfo(float).tiny)
#: intervals that are halved at a time: those with the largest bends, if a function is so rough that there are more
MAX_INTERVALS = 4000


@dataclass(frozen=True)
class CalledJump:
    """A jump of a called function's value at a time of a segment."""

    name: str
    time: float
    mode: str
    before: float
    after: float

    def __str__(self) -> str:
        return (
            f"The value of '{self.name}', a function that nobody can look into, jumps from {self.before:.6g} to "
            f"{self.after:.6g} at t = {self.time:.9g} in mode '{self.mode}'."
        )


def called_jumps(run: Trajectory) -> list[CalledJump]:
    """Return the jumps, larger than the accuracy of the run, of functions that the equations of a run call."""
    called, found = run.system.branches.called, list[CalledJump]()
    if not called:
        return found
    motion = Motion(run)
    for index, functions in called.items():
        found += _jumps(motion, index, functions)
    return sorted(found, key=lambda jump: jump.time)


def refuse_called_jumps(run: Trajectory, conditions: Conditions) -> None:
    """Refuse the derivatives of a run across jumps of functions that nobody can look into."""
    for jump in called_jumps(run):
        conditions.fail(
            EventError(
                f"{jump} Derivatives leave out how that instant moves with the parameters.",
                remedy="State a transition there, to a mode whose equations continue the other side, or write the jump "
                "as a relation. If the instant does not depend on the parameters, mark the call by smooth().",
            )
        )


@dataclass
class _Points:
    """Points (t, x, m) in one mode, and the called functions' values there."""

    t: Array
    x: Array
    m: Array
    values: Array

    def of(self, chosen: Any) -> _Points:
        return _Points(*(getattr(self, field.name)[chosen] for field in fields(self)))

    def followed_by(self, other: _Points) -> _Points:
        return _Points(
            *(np.concatenate([getattr(part, field.name) for part in (self, other)]) for field in fields(self))
        )


def path_in(motion: Motion, mode: int) -> tuple[Array, Array, Array, NDArray[np.intp]]:
    """Return points (t, x, m) along the segments in a mode, `PARTS` + 1 per step, and the first point of every step."""
    own = [i for i, s in enumerate(motion.segments) if s.mode.index == mode and s.t_end > s.t_start]
    times = [_within_steps(motion.edges(i)) for i in own]
    if not own:
        return np.zeros(0), np.zeros((0, 0)), np.zeros((0, 0)), np.zeros(0, np.intp)
    begins = np.cumsum([0, *(t.size for t in times[:-1])])
    return (
        np.concatenate(times),
        np.vstack([_path(motion, i, t) for i, t in zip(own, times, strict=True)]),
        np.repeat([motion.segments[i].memory for i in own], [t.size for t in times], axis=0),
        np.concatenate([begin + np.arange(0, t.size - 1, PARTS) for t, begin in zip(times, begins, strict=True)]),
    )


def _jumps(motion: Motion, mode: int, functions: Watched) -> list[CalledJump]:
    """Return the jumps of the functions of one mode along the segments in that mode."""

    def points(t: Array, x: Array, m: Array) -> _Points:
        return _Points(t, x, m, evaluate(functions.values, t, x, m, motion.run.parameters)[0])

    *path, first = path_in(motion, mode)
    if not first.size:
        return []
    every = points(*path)
    finite = np.where(np.isfinite(every.values), every.values, 0.0)
    extent = finite.max(axis=0) - finite.min(axis=0)
    allowed = motion.run.options.rtol * extent + VALUE_ROUNDINGS * EPS * np.abs(finite).max(axis=0)
    five = [every.of(first + k) for k in range(PARTS + 1)]
    differences: list[Array] = []  # of the values at the ends of the intervals now, and of those they are parts of
    for _ in range(HALVINGS):
        with np.errstate(invalid="ignore"):
            bends = np.abs(np.tensordot(WEIGHTS, [part.values for part in five], axes=1)).max(axis=0)
            bent = np.flatnonzero(~(bends <= allowed).all(axis=1))  # or not finite
        if bent.size > MAX_INTERVALS:
            bent = bent[np.argsort((bends[bent] / (allowed + TINY)).max(axis=1))[-MAX_INTERVALS:]]
        if not bent.size:
            return []
        five = [part.of(bent) for part in five]
        differences = [*(d[bent] for d in differences[-LAST:]), np.abs(five[-1].values - five[0].values)]
        middles = [points((a.t + b.t) / 2, (a.x + b.x) / 2, a.m) for a, b in pairwise(five)]
        nine = [part for pair in zip(five, middles, strict=False) for part in pair] + five[-1:]
        five = [nine[k].followed_by(nine[k + PARTS]) for k in range(PARTS + 1)]
        differences = [np.concatenate((d, d)) for d in differences]
    a, b = five[0], five[-1]
    change = np.abs(b.values - a.values)
    name = motion.run.system.modes[mode].name
    stays = (change > differences[0] / 2) & (change > allowed) | ~np.isfinite(change)
    return [
        CalledJump(functions.names[k], float(b.t[i]), name, float(a.values[i, k]), float(b.values[i, k]))
        for i, k in np.argwhere(stays)
    ]


def _within_steps(edges: Array) -> Array:
    """The ends of steps, and the times that divide each into `PARTS`."""
    inner = edges[:-1, None] + np.diff(edges)[:, None] * np.arange(PARTS) / PARTS
    return np.append(inner.ravel(), edges[-1])


def _path(motion: Motion, index: int, times: Array) -> Array:
    """Return x at the `_within_steps` of a segment: by its interpolants, or by cubics through the ends of its steps."""
    segment: Segment = motion.segments[index]
    if not motion.knows_derivatives(segment):
        return motion.at(index, times)
    edges, states, p = motion.edges(index), motion.points(index), motion.run.parameters
    memory = np.repeat(segment.memory[None, :], edges.size, axis=0)
    rates = evaluate(kernel(segment.mode.equations, "flow"), edges, states, memory, p)[0]
    step = np.minimum(np.arange(times.size) // PARTS, edges.size - 2)
    h = np.diff(edges)[step, None]
    share = (times - edges[step]) / h[:, 0]
    found = through_ends(states[step], states[step + 1], rates[step] * h, rates[step + 1] * h, share)
    return motion.at(index, times, found)
