"""The array type and the rounding unit."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
#: twice the unit roundoff
EPS = float(np.finfo(float).eps)
