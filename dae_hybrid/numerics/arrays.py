"""The array type, the rounding unit, and tests of small arrays."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
#: twice the unit roundoff
EPS = float(np.finfo(float).eps)
#: the smallest number with all its digits
SMALLEST_NORMAL = float(np.finfo(float).tiny)

#: size up to which plain Python is faster than NumPy
MAX_PYTHON_SIZE = 16


def all_finite(values: Array) -> bool:
    """Whether all entries are finite; fast for short arrays."""
    if values.size <= MAX_PYTHON_SIZE:
        return all(map(math.isfinite, values.tolist()))
    return bool(np.isfinite(values).all())


def unlike_shares(count: int) -> Array:
    """Numbers between 1/2 and 1, (count,), whose differences no symmetry of a problem has.

    They are fractional parts of multiples of the golden ratio, the same in every call.
    """
    return np.asarray(0.5 + 0.5 * (np.arange(1, count + 1) * ((math.sqrt(5.0) - 1.0) / 2.0) % 1.0))


def scalar(values: Array) -> Any:
    """Return a float for one entry; otherwise the array itself, which becomes read-only."""
    values.flags.writeable = False
    return float(values[0]) if values.size == 1 else values


def vanishes(values: Array, sizes: Array, roundings: float) -> bool:
    """Whether every entry is zero within this many roundings of its terms; False for NaN and infinity.

    Terms without a finite size, such as the derivative of a root at zero, require exact zeros.
    """
    limit = roundings * EPS
    if values.size <= MAX_PYTHON_SIZE:
        pairs = zip(values.ravel().tolist(), sizes.ravel().tolist(), strict=True)
        return all(v == 0.0 or (abs(v) <= limit * s and s < math.inf) for v, s in pairs)
    return bool(np.all((values == 0.0) | ((np.abs(values) <= limit * sizes) & (sizes < np.inf))))
