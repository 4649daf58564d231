"""The places of a run that decide its peaks."""

from __future__ import annotations

import numpy as np

from dae_hybrid.errors import DaeHybridError
from dae_hybrid.statement.peaks import CROSSINGS
from dae_hybrid.system.peaks import Decision, Place, Tie
from dae_hybrid.trajectory.extrema import ExtremumFinder
from dae_hybrid.trajectory.level_crossings import CrossingFinder
from dae_hybrid.trajectory.places import Walk
from dae_hybrid.trajectory.trajectory import Trajectory


def decision_of(run: Trajectory) -> Decision:
    """Return the places that decide all peaks of a run whose path was kept.

    Raises
    ------
    EventError
        An expression turns too often to be followed.
    NonFiniteError
        It is NaN or infinite.
    """
    walk, values = Walk(run), np.zeros(run.system.functionals.size)
    places, ties, failures = list[Place](), list[Tie](), list[tuple[str, DaeHybridError]]()
    for i, peak in enumerate(run.system.peaks):
        finder = (CrossingFinder if peak.kind in CROSSINGS else ExtremumFinder)(walk, i, peak)
        for component in range(peak.size):
            finder.decide(component)
        places += finder.places
        ties += finder.ties
        failures += finder.failures
        values[[peak.first + component for component in finder.missing]] = np.nan
    return Decision(tuple(places), run.n_events, tuple(ties), tuple(failures), values if values.any() else None)
