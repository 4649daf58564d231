"""What a search does where derivatives are one-sided: it takes one side, says so, and does not end there unawares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.conditions.one_sided import listening
from dae_hybrid.errors import DaeHybridError, EventError, OneSidedError
from dae_hybrid.numerics.arrays import Array, unlike_shares
from dae_hybrid.optimization.changes import FARTHEST, FURTHER, OUTWARD, REMAINING_SLOPE, SLOPE_TOLERANCES, WIDTH_SHARE
from dae_hybrid.optimization.scaling import AT_BOUND

#: moves away from a limit are shorter by this factor than others: those decide on which side a point is
INWARD = 1 / 16
#: points that are shown
SHOWN = 3


@dataclass(frozen=True, eq=False)
class OneSided:
    """A point of a search at which derivatives are one-sided.

    Attributes
    ----------
    parameters : dict of str to float
        The point, by label of the parameters.
    taken_at : dict of str to float
        Where values and derivatives were taken: beside the point, within the bounds, or at the point itself if the run
        there decides for a side, within its accuracy.
    reason : str
        What coincides there and when, with the values and derivatives on both sides as far as they are known.
    """

    parameters: dict[str, float]
    taken_at: dict[str, float]
    reason: str

    @property
    def where(self) -> str:
        """The point in words."""
        return ", ".join(f"{name} = {value:.9g}" for name, value in self.parameters.items())

    def refusal(self, value: str, result: Any, remedy: str) -> OneSidedError:
        """The error of a search that ends at the point with a value, and with a result."""
        error = OneSidedError(
            f"The search ends at {self.where} with {value}, where derivatives are one-sided: conditions on them mean "
            f"nothing there. {self.reason}",
            remedy=f"{remedy} `result` of this error is what the search has found.",
        )
        error.result = result
        return error

    @property
    def moved(self) -> dict[str, float]:
        """Distances from the point to `taken_at`; empty if they are the same."""
        return {n: v - self.parameters[n] for n, v in self.taken_at.items() if v != self.parameters[n]}

    def __str__(self) -> str:
        side = ", ".join(f"{name} {distance:+.1e}" for name, distance in self.moved.items())
        return f"one-sided at {self.where}: taken {f'at {side}' if side else 'as the run decides'}. {self.reason}"

    def __repr__(self) -> str:
        return f"<OneSided: {self}>"


def in_lines(found: Sequence[OneSided]) -> list[str]:
    """The first points in words, and the number of others."""
    more = [f"one-sided at {len(found) - SHOWN} further evaluations"] if len(found) > SHOWN else []
    return [str(own) for own in found[:SHOWN]] + more


@dataclass(frozen=True, eq=False)
class Sides:
    """The sides of points q (n,) within limits.

    Attributes
    ----------
    labels : tuple of str
    lower, upper : ndarray, shape (n,)
    size : ndarray, shape (n,)
        Typical magnitudes; zero is replaced by one.
    rtol : float
        Relative tolerance of the runs.
    orders : tuple of int arrays
        Indices of entries of which none may exceed the next.
    """

    labels: tuple[str, ...]
    lower: Array
    upper: Array
    size: Array
    rtol: float
    orders: tuple[NDArray[np.intp], ...] = ()

    def take[T](self, q: Array, run: Callable[[Array], T]) -> tuple[T, Array, OneSided | None]:
        """Run at a point, or beside it if derivatives there are refused as one-sided.

        Returns the result, where it was taken, and a record if derivatives are one-sided. A run that decides for a
        side within its accuracy is taken as it is, unless limits exclude the other side.

        Raises
        ------
        DaeHybridError
            The run fails, or runs beside the point do not have derivatives, either.
        """
        refused, found = None, None
        with listening() as heard:
            try:
                found = run(q)
            except EventError as error:
                if not error.is_one_sided:
                    raise
                refused = error
        if found is not None and not (heard and self.is_at_limit(q)):
            return found, q, self._record(q, q, heard[0]) if heard else None
        reason = str(refused).partition("\n")[0] if refused is not None else heard[0]
        for other in (self._moved(q, step, 1) for step in self._distances()):
            with listening() as heard:
                try:
                    beside = run(other)
                except DaeHybridError as error:
                    error.release()
                    continue
            if not heard:
                return beside, other, self._record(q, other, reason)
        if found is None:
            assert refused is not None
            raise refused
        return found, q, self._record(q, q, reason)

    def _record(self, q: Array, other: Array, reason: str) -> OneSided:
        at, taken = (dict(zip(self.labels, own.tolist(), strict=True)) for own in (q, other))
        return OneSided(at, taken, reason)

    def is_at_limit(self, q: Array) -> bool:
        """Whether a point is at a bound, or at an equality in an order."""
        equal = any((np.diff(q[own]) <= AT_BOUND * self._size(q)[own][1:]).any() for own in self.orders)
        return equal or bool(self._inward(q).any())

    def differ(self, q: Array, rows: Callable[[Array], Array]) -> bool:
        """Whether derivatives at a point, or values, differ on its two sides within the limits.

        They do unless the point is at a limit: at a bound, for instance, that the time of a coincidence is at. `rows`
        returns values and derivatives, (m, 1 + n).
        """
        if not self.is_at_limit(q):
            return True
        scale = np.concatenate(([1.0], self._size(q)))
        for step in self._distances():
            found = []
            with listening() as heard:
                try:
                    for distance in (step, FURTHER * step):
                        one, two = (rows(self._moved(q, distance, sign)) * scale for sign in (1, -1))
                        found.append((np.abs(one - two), np.maximum(np.abs(one), np.abs(two)).max(axis=1)))
                except DaeHybridError as error:
                    error.release()
                    continue
            if heard:
                continue
            (near, size), (far, _) = found
            nothing = SLOPE_TOLERANCES * self.rtol * size[:, None]
            return bool(((near > nothing) & (near > REMAINING_SLOPE * far)).any())
        return True

    # -- points ------------------------------------------------------------------------------------------------

    def _distances(self) -> Iterator[float]:
        """Yield relative distances, from the accuracy of the runs on."""
        for factor in OUTWARD:
            if factor * WIDTH_SHARE * self.rtol <= FARTHEST:
                yield factor * WIDTH_SHARE * self.rtol

    def beside(self, q: Array) -> Array:
        """A point next to q, at which coincidences that are chance have gone."""
        return self._moved(q, FARTHEST, 1)

    def _size(self, q: Array) -> Array:
        size = np.maximum(np.abs(q), np.abs(self.size))
        return np.minimum(np.where(size == 0, 1.0, size), self.upper - self.lower)

    def _inward(self, q: Array, step: float = 0.0) -> Array:
        """Directions away from the bounds that a point is at, or that are not further than a step; 0 for none."""
        reach = max(step, AT_BOUND) * self._size(q)
        return (q - self.lower < reach).astype(float) - (self.upper - q < reach)

    def _moved(self, q: Array, step: float, sign: int) -> Array:
        """A point at a distance, in one of two opposite directions, but within the limits.

        The entries move by different shares of their sizes, so that times that coincide do not move together.
        """
        inward = self._inward(q, step)
        found = q + step * unlike_shares(q.size) * self._size(q) * np.where(inward != 0, INWARD * inward, sign)
        for own in self.orders:
            found[own] = np.sort(found[own])
        return np.clip(found, self.lower, self.upper)
