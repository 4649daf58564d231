"""Central differences of gradients by one parameter: extrapolation, errors, and whether the step is small enough."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.numerics.arrays import Array

#: the points of a parameter, in steps: three distances, both sides of each
STENCIL = (1.0, -1.0, 0.5, -0.5, 0.25, -0.25)
#: at most these shares remain from distance to distance, of the change of the central difference (smooth: a quarter)
#: and of the distance between the two one-sided differences (smooth: a half) ...
CHANGE_LEFT, BEND_LEFT = 0.5, 0.6
#: ... unless they are below this share of the entry, or this multiple of the noise of the gradients
AGREEMENT = 0.05
NOISE = 10.0
#: allowed difference between values and integrals of the gradient, as a share of their variation
DEFECT = 0.01


@dataclass(frozen=True)
class Column:
    """Functionals (c,) and their gradients (c, n) at the points of one parameter, which is entry `own` of the n.

    Attributes
    ----------
    away : ndarray, shape (6,)
        Distances of the points, in the order of `STENCIL`.
    values, gradients : ndarray, shape (1 + 6, c) and (1 + 6, c, n)
        At the given parameters and at the points.
    rtol : float
        Relative tolerance of the runs.
    noise : ndarray, shape (c,)
        Allowed error of the values.
    """

    own: int
    away: Array
    values: Array
    gradients: Array
    rtol: float
    noise: Array

    def _difference(self, level: int) -> Array:
        plus, minus = 2 * level, 2 * level + 1
        return np.asarray((self.gradients[1 + plus] - self.gradients[1 + minus]) / (self.away[plus] - self.away[minus]))

    @property
    def _of_gradients(self) -> Array:
        """Error of a difference at the full step that follows from errors of the gradients by rtol of their size."""
        return np.asarray(self.rtol * np.abs(self.gradients).max(axis=0) / np.abs(self.away).max())

    @property
    def second(self) -> Array:
        """Second derivatives by Richardson extrapolation from the two larger distances, (c, n)."""
        return (4 * self._difference(1) - self._difference(0)) / 3

    def _bend(self, level: int) -> Array:
        """Distance between the one-sided differences; at a kink of the gradient it does not vanish with the step."""
        sides = [
            (self.gradients[1 + point] - self.gradients[0]) / self.away[point] for point in (2 * level, 2 * level + 1)
        ]
        return np.asarray(np.abs(sides[0] - sides[1]))

    @property
    def _changes(self) -> tuple[Array, Array]:
        """Changes of the central difference from the largest distance to the middle one, and to the least."""
        wide, narrow, least = (self._difference(level) for level in range(3))
        return np.abs(narrow - wide), np.abs(least - narrow)

    @property
    def _vanish(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Whether the changes, and the distances between one-sided differences, vanish with the step."""
        before, after = self._changes
        noise = NOISE * 4 * self._of_gradients  # of the differences at the least distance
        return after <= np.maximum(CHANGE_LEFT * before, noise), self._bend(2) <= BEND_LEFT * self._bend(1)

    @property
    def error(self) -> Array:
        """Their estimated errors, (c, n): the variation over the distances and, if need be, the sides, or the noise."""
        change, bend = self._vanish
        sides = np.where(change & bend, 0.0, self._bend(2))
        apart = np.abs(self.second - self._difference(2))
        return np.maximum.reduce([self._changes[0], apart, sides, self._of_gradients])

    @property
    def is_asymptotic(self) -> bool:
        """Whether the points lie so close together that the differences and the error mean something."""
        return self._converges() and self._integrates()

    def _converges(self) -> bool:
        """Whether the differences approach a limit, the same from both sides."""
        share, noise = AGREEMENT * np.abs(self._difference(2)), NOISE * 8 * self._of_gradients
        change, bend = self._vanish
        return bool(
            ((change | (self._changes[1] <= share)) & (bend | (self._bend(2) <= np.maximum(share, noise)))).all()
        )

    def _integrates(self) -> bool:
        """Whether values between the given parameters and a point differ by the integral of the gradient (Simpson)."""
        slopes = self.gradients[:, :, self.own]
        for end, middle in ((0, 2), (1, 3), (2, 4), (3, 5)):
            length, change = self.away[end], self.values[1 + end] - self.values[0]
            integral = length / 6 * (slopes[0] + 4 * slopes[1 + middle] + slopes[1 + end])
            largest = np.abs(slopes[[0, 1 + middle, 1 + end]]).max(axis=0)
            varies = np.maximum(np.abs(change), np.abs(length) * largest)
            if (np.abs(change - integral) > DEFECT * varies + self.noise).any():
                return False
        return True
