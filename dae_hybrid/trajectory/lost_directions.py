"""Vectors that vanish along a run although equations divide by their norms: their directions jump there.

Integrators pass such a point with short steps, or without noticing; derivatives leave out what the jump adds.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.errors import EventError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.replay import SegmentReplay
from dae_hybrid.system.derivative_conditions import Conditions
from dae_hybrid.system.watched import Watched
from dae_hybrid.trajectory.called_jumps import PARTS, path_in
from dae_hybrid.trajectory.pieces import Motion, evaluate
from dae_hybrid.trajectory.trajectory import Trajectory

#: a vector may vanish within a step if it is shorter, at one of its ends, than this number of its changes in the step
CLOSE_CHANGES = 2.0
#: a vector shorter than this share of the one before has no direction
ROUNDING_SHARE = 1e-6


def refuse_lost_directions(run: Trajectory, conditions: Conditions) -> None:
    """Refuse the derivatives of a run along which such a vector is zero to the accuracy of the run."""
    if not run.system.branches.directions:
        return
    motion = Motion(run)
    for mode, directions in run.system.branches.directions.items():
        if not _may_vanish(motion, mode, directions):
            continue
        t, x, m, first = path_in(motion, mode)
        values = evaluate(directions.values, t, x, m, run.parameters)[0]
        begin = (first[:, None] + np.arange(PARTS)).ravel()
        for text, part in directions.parts:
            here, step = values[begin, part], values[begin + 1, part] - values[begin, part]
            share, lengths = _nearest_to_zero(here, step), np.linalg.norm(values[:, part], axis=1)
            nearest = np.linalg.norm(here + share[:, None] * step, axis=1)
            short = lengths <= run.options.rtol * lengths.max()
            passes = (nearest <= run.options.rtol * lengths.max()) & ~_arrives(values[:, part], short, begin)
            zero = np.flatnonzero(passes)
            if zero.size:
                i = zero[0]
                conditions.fail(
                    EventError(
                        f"{text} is zero to the accuracy of the run, and equations divide by it: the direction of its "
                        "vector jumps, and derivatives leave that out.",
                        mode=run.system.modes[mode].name,
                        time=float(t[begin[i]] + share[i] * (t[begin[i] + 1] - t[begin[i]])),
                        remedy="If the vector comes to rest, give rest a mode of its own; if it passes zero, divide by "
                        "sqrt(norm**2 + eps**2), or state the motion along its line by one number.",
                    )
                )


def _may_vanish(motion: Motion, mode: int, directions: Watched) -> bool:
    """Whether a vector changes so much in a step that it may vanish in it."""
    for index, segment in enumerate(motion.segments):
        if segment.mode.index != mode or segment.t_end == segment.t_start:
            continue
        how = segment.interpolate
        if isinstance(how, SegmentReplay) and how.task.t_eval is None:  # the outputs are at the steps
            t = np.concatenate(([segment.t_start], segment.t, [segment.t_end]))
            x = np.vstack((segment.x_start, segment.values, segment.x_end))
        else:
            t = motion.edges(index)
            x = motion.at(index, t)
        m = np.repeat(segment.memory[None, :], t.size, axis=0)
        values = evaluate(directions.values, t, x, m, motion.run.parameters)[0]
        for _, part in directions.parts:
            length = np.linalg.norm(values[:, part], axis=1)
            changes = np.linalg.norm(np.diff(values[:, part], axis=0), axis=1)
            if not np.all(np.minimum(length[1:], length[:-1]) > CLOSE_CHANGES * changes):
                return True
    return False


def _arrives(vectors: Array, short: NDArray[np.bool_], begin: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Whether each piece belongs to the end of a segment at which a vector arrives at zero: its event decides then.

    A vector that turns round there has passed zero, unless what it has come to is nothing but rounding.
    """
    found, arrives = np.zeros(begin.size, dtype=bool), False
    for i in range(begin.size - 1, -1, -1):
        here, later = vectors[begin[i]], vectors[begin[i] + 1]
        if i + 1 == begin.size or begin[i + 1] != begin[i] + 1:  # the last piece of a segment
            arrives = bool(short[begin[i] + 1])
        arrives = arrives and bool(here @ later > -ROUNDING_SHARE * (here @ here))
        found[i] = arrives
        arrives = arrives and bool(short[begin[i]])
    return found


def _nearest_to_zero(begin: Array, step: Array) -> Array:
    """Return the share of each step of vectors (n, k) at which a straight line is nearest to zero, (n,)."""
    with np.errstate(invalid="ignore", divide="ignore"):
        share = -(begin * step).sum(axis=1) / (step**2).sum(axis=1)
    return np.clip(np.nan_to_num(share), 0.0, 1.0)
