"""A change of the sequence of events next to the result of an optimisation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dae_hybrid.errors import DaeHybridError
from dae_hybrid.interface.prepared_case import Analysis
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.optimization.changes import SLOPE_TOLERANCES, Budget, changes_between, tolerances
from dae_hybrid.optimization.evaluations import Evaluation
from dae_hybrid.optimization.line import Line, LinePoint
from dae_hybrid.optimization.result import ChangeAtOptimum
from dae_hybrid.options import Options
from dae_hybrid.system.system import HybridSystem

#: distances, relative to the size of the parameters: evaluations that are considered, and what counts as next to
SEARCHED, NEXT_TO = 0.1, 1e-3
#: least distance of the point beyond the change, and distances of points before it if the final point lies on it
LEAST, BEFORE = 1e-6, (1e-6, 1e-4, 1e-3)
#: limit on the runs of the search
MAX_RUNS = 60


def change_beside(
    system: HybridSystem, t_span: Sequence[float], functionals: Sequence[str], final: Evaluation,
    history: Iterable[Evaluation], indices: Sequence[int], analysis: Analysis, call: Mapping[str, Any],
    options: Options,
) -> ChangeAtOptimum | None:  # fmt: skip
    """Search towards the nearest evaluation with another sequence; None if no change is next to the final point."""
    valid = [own for own in history if own.error is None]
    points = np.array([own.parameters[list(indices)] for own in valid])
    there = final.parameters[list(indices)]
    size = np.maximum(np.abs(there), np.ptp(points[[own.is_iterate for own in valid]], axis=0))
    size[size == 0] = 1.0
    distances = np.abs((points - there) / size).max(axis=1)
    away = distances.copy()
    away[[own.digest == final.digest for own in valid]] = np.inf
    nearest = int(np.argmin(away))
    if not away[nearest] <= SEARCHED:
        return None
    adapter, others = call["adapter"], {name: value for name, value in call.items() if name != "adapter"}
    direction = (valid[nearest].parameters - final.parameters) / away[nearest]
    # the final point is at 1, so that positions are as large as parameters relative to their sizes
    line = Line(system, t_span, functionals, final.parameters - direction, direction, analysis, adapter, others)
    found = _apart(line, min(max(float(away[nearest]), LEAST), NEXT_TO))
    if found is None:
        return None
    scales = tolerances(system, functionals, options, np.abs(found[0].values), np.zeros_like(found[0].values))
    scales = replace(scales, slopes=SLOPE_TOLERANCES * options.rtol * _secants(valid, final, distances, scales.values))
    change = next(changes_between(line, *found, scales, Budget(MAX_RUNS)))
    return ChangeAtOptimum(change, line.parameters(change.at), abs(change.at - 1))


def _secants(valid: Sequence[Evaluation], final: Evaluation, away: Array, noise: Array) -> Array:
    """Largest slopes (k,) from the final point to the evaluations: at an optimum its own vanish, and give no scale."""
    change = np.array([np.abs(own.values - final.values) for own in valid])
    far = away > 0
    return np.asarray((np.maximum(change[far] - noise, 0.0) / away[far, None]).max(axis=0, initial=0.0))


def _apart(line: Line, distance: float) -> tuple[LinePoint, LinePoint] | None:
    """Two points with different sequences: the final one, or one before it if it lies on the change, and one beyond."""
    try:
        beyond = line(1 + distance)
        for before in (0.0, *BEFORE):
            point = line(1 - before)
            if point.digest != beyond.digest:
                return point, beyond
    except DaeHybridError:
        pass
    return None
