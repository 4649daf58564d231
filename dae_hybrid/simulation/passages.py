"""Fast passages of a run: the factor by which it speeds up and slows down again between two events.

Derivatives of an autonomous flow grow with its speed, since x' is one of them. Their error where the run is fast is a
share of rtol of their size there. It remains when the run is slow again, and may then exceed the derivatives themselves
(the jumps of the van der Pol oscillator, up to 1e6 times as fast as the motion between them). The solution itself does
not suffer, because it does not grow.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.method import DENSE_COLUMNS
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.record_table import RecordTable
from dae_hybrid.port.segment_rules import DIGITS_LOST, fewest_steps
from dae_hybrid.trajectory.trajectory import Segment, Trajectory


def fastest_passage(trajectory: Trajectory, *, sampled: bool = False) -> tuple[float, float]:
    """Return the largest factor by which a segment is faster inside than before and after.

    The second value is the relative change of the state there during a rounding error of time, summed over the steps.
    It bounds the accuracy of a fast passage late in a run, whatever the tolerance.

    Segments that cannot lose digits are skipped. `sampled` says that outputs are at requested times instead of at the
    steps.
    """
    rtol, found = trajectory.options.rtol, (1.0, 0.0)
    fewest = fewest_steps(DIGITS_LOST / rtol)
    if trajectory.statistics["steps"] < fewest:
        return found
    for item in trajectory.parts.given:
        if isinstance(item, RecordTable):
            found = max(found, item.passage or table_passage(item, rtol, sampled=sampled))
        elif isinstance(item, Segment):
            t, y = _segment_points(item, sampled=sampled)
            found = max(found, _segment_passage(t, y) if len(t) >= fewest else found)
    return found


def table_passage(table: RecordTable, rtol: float, *, sampled: bool = False) -> tuple[float, float]:
    """Return the fastest passage of a record table, over the segments that may lose digits."""
    found = 1.0, 0.0
    for t, y, lengths in _table_points(table, fewest_steps(DIGITS_LOST / rtol), sampled=sampled):
        ends = np.cumsum(lengths)
        for i in np.flatnonzero(_may_lose_digits(t, y, lengths, rtol)).tolist():
            own = slice(ends[i] - lengths[i], ends[i])
            found = max(found, _segment_passage(t[own], y[own]))
    return found


def _may_lose_digits(t: Array, y: Array, lengths: NDArray[np.int64], rtol: float) -> NDArray[np.bool_]:
    """Return whether the ratio of the largest to the smallest speed allows a passage that loses digits, by segment.

    The points are those of successive segments with these numbers of points.
    """
    if not y.size:
        return np.zeros(lengths.size, bool)
    ends = np.cumsum(lengths)
    begins, segment = ends - lengths, np.repeat(np.arange(lengths.size), lengths)
    size = np.maximum.reduceat(np.abs(y), begins)
    dt, least = np.diff(t), t[ends - 1] - t[begins]
    moves = (dt > 0) & (segment[1:] == segment[:-1])
    with np.errstate(divide="ignore", invalid="ignore"):
        speed = (np.abs(np.diff(y, axis=0)) / np.where(size > 0, size, 1.0)[segment[1:]]).max(axis=1) / dt
        speed = np.maximum(np.where(np.isfinite(speed), speed, 0.0), (1.0 / least)[segment[1:]])
        fastest = np.maximum.reduceat(np.where(moves, speed, 0.0), begins)
        ratio = fastest / np.minimum.reduceat(np.where(moves, speed, np.inf), begins)
    rounding = np.spacing(np.maximum(np.abs(t[begins]), np.abs(t[ends - 1]))) * fastest * lengths
    return np.asarray(np.maximum(rtol, rounding) * ratio > DIGITS_LOST)


def _segment_passage(t: Array, y: Array) -> tuple[float, float]:
    """Return factor and rounding of one segment from its points, (n_t, n_y)."""
    if not y.size:
        return 1.0, 0.0
    dt = np.diff(t)
    moves = dt > 0
    size = np.abs(y).max(axis=0)
    speed = (np.abs(np.diff(y, axis=0)[moves]) / np.where(size > 0, size, 1.0)).max(axis=1) / dt[moves]
    # lower bound: a state that moves by less than its own size within the segment
    speed = np.maximum(np.where(np.isfinite(speed), speed, 0.0), 1.0 / (t[-1] - t[0])) if t[-1] > t[0] else dt[:0]
    rise = speed / np.minimum.accumulate(speed)
    fall = speed / np.minimum.accumulate(speed[::-1])[::-1]
    fastest = speed.max(initial=0.0)
    rounding = float(np.spacing(np.abs(t).max()) * fastest * np.count_nonzero(np.e * speed > fastest))
    return float(np.minimum(rise, fall).max(initial=1.0)), rounding


def _segment_points(segment: Segment, *, sampled: bool) -> tuple[Array, Array]:
    """Return times and differential states of a segment at its steps."""
    first, rows, ny = segment.how.path.first, segment.path, segment.mode.equations.n_differential
    if rows is None and sampled:
        first, rows = DENSE_COLUMNS, segment.steps()
    if rows is None:
        return segment.t, segment.states[:, :ny]
    return rows[:, 0], rows[:, first : first + ny]


def _table_points(
    table: RecordTable, fewest: int, *, sampled: bool
) -> Iterator[tuple[Array, Array, NDArray[np.int64]]]:
    """Yield the same for the segments of a record table by mode, with the numbers of their points.

    Segments of fewer than `fewest` points are left out, and outputs at requested times.
    """
    modes = table.column("mode").astype(int)
    for mode in np.unique(modes).tolist():
        rows, first, mine = table.paths.get(mode), 1, modes == mode
        if rows is not None:
            first = table.methods[mode].path.first
            ends = table.column("path_end")[mine].astype(int)
            begins = np.concatenate(([0], ends[:-1]))
        elif sampled:
            continue
        else:
            rows = table.rows[mode]
            begins, ends = (table.column(name)[mine].astype(int) for name in ("row", "row_end"))
        chosen = ends - begins >= fewest
        if chosen.any():
            begins, lengths = begins[chosen], (ends - begins)[chosen]
            own = np.repeat(begins - (np.cumsum(lengths) - lengths), lengths) + np.arange(lengths.sum())
            ny = table.graph.equations[mode].n_differential
            yield rows[own, 0], rows[own, first : first + ny], lengths
