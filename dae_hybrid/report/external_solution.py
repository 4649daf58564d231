"""A solution by another program in the names of the model, and the truth at the same places.

Problems that another program has solved provide it for `dae_hybrid.report.validate`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.numerics.arrays import Array


@dataclass(frozen=True)
class SolutionRows:
    """Row indices of a trajectory: at output times, and just before and just after the events."""

    grid: NDArray[np.intp]
    before: NDArray[np.intp]
    after: NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Samples:
    """Values of quantities at places of a run.

    Attributes
    ----------
    places : tuple of str
        ``"t = 0.5"``, ``"event 3, after"``, ``"adjoint"``, ...
    t : ndarray, shape (n,)
        Their times; NaN for places without a time.
    values : dict of ndarray, each (n,)
        Values by quantity: ``"u"``, ``"du/dka"``, ...; NaN where the program gives none.
    truth : dict of ndarray, each (n,)
        Values of a closed form or to 20 digits; NaN where unknown.
    recorded : dict of float
        Largest recorded error of the program by quantity.
    allowed : dict of float
        Largest allowed error of this library at the tolerances of the problem module.
    """

    places: tuple[str, ...]
    t: Array
    values: Mapping[str, Array]
    truth: Mapping[str, Array]
    recorded: Mapping[str, float] = field(default_factory=dict)
    allowed: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ExternalSolution:
    """A run solved by another program, such as ode15s.

    Attributes
    ----------
    source, truth : str
        Origin of its values, and of the truth.
    modes : dict of float
        Its number of every mode.
    t : ndarray, shape (n,)
        Time of every row of its trajectory.
    rows : SolutionRows
        Rows of the output times, and of the two sides of events.
    samples : dict of Samples
        ``"trajectory"``, ``"events"`` and ``"functional"``.
    bare : dict of Samples
        The same with unpolished event times, where available.
    """

    source: str
    truth: str
    modes: Mapping[str, float]
    t: Array
    rows: SolutionRows
    samples: Mapping[str, Samples]
    bare: Mapping[str, Samples]
