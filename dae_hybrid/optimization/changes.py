"""Where the sequence of events changes along a line: location by bisection, and classification."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.conditions.sequences import EventSequence
from dae_hybrid.errors import DaeHybridError
from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.optimization.line import Line, LinePoint
from dae_hybrid.options import Options
from dae_hybrid.system.system import HybridSystem

Kind = Literal["jump", "kink", "smooth", "unresolved"]
#: bisection ends at this share of rtol, relative to the position: the error of the run decides beyond it
WIDTH_SHARE = 0.1
#: tolerances of a value, and multiples of rtol of a derivative, within which the sides agree
VALUE_TOLERANCES, SLOPE_TOLERANCES = 100.0, 1000.0
#: a difference is a jump if this share of it remains when the interval becomes shorter by this factor
REMAINING_SHARE, SHORTER = 0.5, 100.0
#: factors of the width at which derivatives are looked for if they are refused next to the change
OUTWARD = (10.0, 100.0, 1e3, 1e4, 1e5, 1e6)
#: and limit on the distance, relative to the position
FARTHEST = 0.01
#: a difference of such derivatives is a kink if this share of it remains at a distance shorter by this factor
REMAINING_SLOPE, FURTHER = 0.75, 4.0


@dataclass(frozen=True, eq=False)
class Change:
    """A change of the sequence of events along a line.

    Attributes
    ----------
    left, right : LinePoint
        The ends of the interval that contains it.
    kind : {"jump", "kink", "smooth", "unresolved"}
        Whether a value jumps, a derivative jumps, or neither; ``"unresolved"`` if bisection ended early or a derivative
        is refused on a side.
    sequences : (EventSequence, EventSequence)
        Sequences on the left and on the right.
    slopes : ndarray, shape (2, k)
        One-sided derivatives, NaN where refused.
    slopes_at : (float, float)
        Where the derivatives were taken: at the ends of the interval, or further away if they are refused there.
    evaluations : int
        Number of runs that located it.
    reason : str
        Why it is unresolved, else empty.
    """

    left: LinePoint
    right: LinePoint
    kind: Kind
    sequences: tuple[EventSequence, EventSequence]
    slopes: Array
    slopes_at: tuple[float, float]
    evaluations: int
    reason: str = ""

    @property
    def at(self) -> float:
        """Middle of the interval."""
        return (self.left.at + self.right.at) / 2

    @property
    def width(self) -> float:
        """Length of the interval."""
        return self.right.at - self.left.at

    @property
    def values(self) -> Array:
        """Values on both sides, shape (2, k)."""
        return np.array([self.left.values, self.right.values])

    def __repr__(self) -> str:
        one, two = self.sequences
        why = f" ({self.reason})" if self.reason else ""
        return f"<Change at {self.at:.9g}, width {self.width:.1e}: {self.kind}{why}; {one.difference(two)}>"


@dataclass
class Budget:
    """Limit on the number of runs."""

    left: int
    spent: int = field(default=0, init=False)

    def take(self) -> bool:
        """Take one run; returns whether there was one."""
        if self.left <= 0:
            return False
        self.left -= 1
        self.spent += 1
        return True


@dataclass(frozen=True)
class Scales:
    """Allowed differences of values and derivatives, shape (k,) each, rtol, and the width at which bisection ends.

    The width is relative to the position.
    """

    values: Array
    slopes: Array
    rtol: float
    width: float


def tolerances(
    system: HybridSystem, functionals: Sequence[str], options: Options, values: Array, slopes: Array
) -> Scales:
    """Tolerances for functionals with values and derivatives of these sizes, shape (k,) each."""
    layout = system.functionals
    absolute = np.concatenate([options.absolute(layout)[layout[name]] for name in functionals])
    allowed = VALUE_TOLERANCES * (options.rtol * values + absolute)
    return Scales(allowed, SLOPE_TOLERANCES * options.rtol * slopes, options.rtol, WIDTH_SHARE * options.rtol)


def changes_between(line: Line, left: LinePoint, right: LinePoint, scales: Scales, budget: Budget) -> Iterator[Change]:
    """Yield the changes between two points with different sequences, from left to right.

    Changes that cancel each other between two evaluated points are not seen.
    """
    spent, reason = budget.spent, ""
    widths, gaps = [right.at - left.at], [np.abs(right.values - left.values)]
    while widths[-1] > _shortest(left, right, scales.width):
        place = (left.at + right.at) / 2
        if not budget.take():
            reason = "the limit on the number of runs was reached"
            break
        try:
            middle = line(place)
        except DaeHybridError as error:
            reason = f"the run at {place:.9g} failed: {error.message}"
            break
        if middle.digest == right.digest:
            right = middle
        elif middle.digest == left.digest:
            left = middle
        else:
            yield from changes_between(line, left, middle, scales, budget)
            left, spent, widths, gaps = middle, budget.spent, [], []
        widths.append(right.at - left.at)
        gaps.append(np.abs(right.values - left.values))
    yield _judged(line, (left, right), _gaps_before(widths, gaps), scales, reason, budget, spent)


def _shortest(left: LinePoint, right: LinePoint, width: float) -> float:
    size = max(abs(left.at), abs(right.at))
    return max(width, 4 * EPS) * size


def _gaps_before(widths: list[float], gaps: list[Array]) -> Array:
    """Differences of the values across the shortest interval that was `SHORTER` times as long as the last."""
    before = [gap for width, gap in zip(widths, gaps, strict=True) if width >= SHORTER * widths[-1]]
    return before[-1] if before else np.zeros_like(gaps[-1])


def _judged(
    line: Line, sides: tuple[LinePoint, LinePoint], gaps_before: Array, scales: Scales, reason: str, budget: Budget,
    spent: int,
) -> Change:  # fmt: skip
    """Classify a located change."""
    left, right = sides
    width = right.at - left.at
    beside = _beside(line, left, -width, budget), _beside(line, right, width, budget)
    slopes, slopes_at = np.array([point.slopes for point in beside]), (beside[0].at, beside[1].at)
    gap = np.abs(right.values - left.values)
    smooth = width * np.nan_to_num(np.abs(slopes)).max(axis=0)
    jumps = (gap > smooth + scales.values) & (gap >= REMAINING_SHARE * gaps_before)
    known = np.isfinite(slopes).all(axis=0)
    own = SLOPE_TOLERANCES * scales.rtol * np.nan_to_num(np.abs(slopes)).max(axis=0)
    bends = known & (np.abs(slopes[1] - slopes[0]) > np.maximum(scales.slopes, own))
    if bends.any() and slopes_at != (left.at, right.at):
        bends &= _remains(line, sides, beside, budget)
    kind: Kind = "smooth"
    if reason:
        kind = "unresolved"
    elif jumps.any():
        kind = "jump"
    elif bends.any():
        kind = "kink"
    elif not known.all():
        refusals = [side.reason.message for side in sides if side.reason is not None]
        kind, reason = "unresolved", "; ".join(["derivatives are refused beside it", *refusals[:1]])
    sequences = line.sequence(left), line.sequence(right)
    return Change(left, right, kind, sequences, slopes, slopes_at, budget.spent - spent, reason)


def _remains(
    line: Line, sides: tuple[LinePoint, LinePoint], beside: tuple[LinePoint, LinePoint], budget: Budget
) -> NDArray[np.bool_]:
    """Whether the difference of derivatives taken away from a change remains closer to it; true if that is unknown.

    Where a guard touches zero a derivative may have the behaviour of a square root and be continuous.
    """
    further = []
    for side, point in zip(sides, beside, strict=True):
        if point.at == side.at:
            further.append(point)
            continue
        place = side.at + FURTHER * (point.at - side.at)
        try:
            other = line(place) if budget.take() else side
        except DaeHybridError:
            other = side
        further.append(other if other.digest == side.digest else side)
    near, far = (np.abs(two.slopes - one.slopes) for one, two in (beside, further))
    return np.asarray(~(near < REMAINING_SLOPE * far))


def _beside(line: Line, side: LinePoint, step: float, budget: Budget) -> LinePoint:
    """The point nearest to a change on one of its sides that has derivatives."""
    for factor in () if side.has_slopes else OUTWARD:
        place = side.at + factor * step
        if factor * abs(step) > FARTHEST * abs(side.at) or not budget.take():
            break
        try:
            other = line(place)
        except DaeHybridError:
            break
        if other.digest == side.digest and other.has_slopes:
            return other
    return side
