"""What another program says of a run, in the names of the model, and the truth at the same places.

`dae_hybrid.report.validate` reads it; a problem that another program has solved makes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.numerics.arrays import Array


@dataclass(frozen=True)
class SolutionRows:
    """Rows of a trajectory: those at output times, and those just before and just after the events."""

    grid: NDArray[np.intp]
    before: NDArray[np.intp]
    after: NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Samples:
    """Quantities at places of a run.

    Attributes
    ----------
    places : tuple of str
        ``"t = 0.5"``, ``"event 3, after"``, ``"adjoint"``, ...
    t : ndarray, shape (n,)
        Their times; NaN where there is none.
    values : dict of ndarray, each (n,)
        By quantity: ``"u"``, ``"du/dka"``, ...; NaN where the program says nothing.
    truth : dict of ndarray, each (n,)
        The same by closed form or 20 digits; NaN where nobody computed it.
    recorded : dict of float
        Largest error of the program by quantity, where it is on record.
    allowed : dict of float
        How large our own error may be at the tolerances of the problem module.
    """

    places: tuple[str, ...]
    t: Array
    values: Mapping[str, Array]
    truth: Mapping[str, Array]
    recorded: Mapping[str, float] = field(default_factory=dict)
    allowed: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class ExternalSolution:
    """What another program, such as ode15s, says of a run.

    Attributes
    ----------
    source, truth : str
        Who computed its numbers, and the truth.
    modes : dict of float
        The number it has for every mode.
    t : ndarray, shape (n,)
        Time of every row of its trajectory.
    rows : Rows
        Which of them are output times, and which the two sides of events.
    samples : dict of Samples
        ``"trajectory"``, ``"events"`` and ``"functional"``.
    bare : dict of Samples
        The same with event times as the program gives them, as far as somebody computed it.
    """

    source: str
    truth: str
    modes: Mapping[str, float]
    t: Array
    rows: SolutionRows
    samples: Mapping[str, Samples]
    bare: Mapping[str, Samples]
