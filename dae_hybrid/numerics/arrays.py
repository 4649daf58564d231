"""Arrays of numbers, and their rounding unit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
#: unit roundoff, twice
EPS = float(np.finfo(float).eps)
