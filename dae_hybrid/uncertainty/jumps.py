"""Changes of the sequence of events within a sample: where a functional jumps, gradients of its statistics are wrong.

The derivative of a mean over a distribution is the mean of the derivatives if the functional is continuous. Across a
jump it has another term, which no derivative of a run contains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

from dae_hybrid.errors import DaeHybridError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.optimization.changes import Budget, Change, changes_between, tolerances
from dae_hybrid.optimization.line import Line
from dae_hybrid.options import Options
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.uncertainty.runs import Runs, cheapest

#: pairs of neighbours with different sequences that are searched, and limit on the runs for each
MAX_PAIRS, MAX_RUNS = 6, 60


def changes_in(
    system: HybridSystem, t_span: Sequence[float], functional: str, runs: Runs, u: Array,
    selected: NDArray[np.bool_], call: Mapping[str, Any],
) -> tuple[Change, ...]:  # fmt: skip
    """Locate changes of the sequence between the selected runs and their nearest neighbours with another sequence."""
    found = list[Change]()
    adapter, options = call["adapter"], {name: value for name, value in call.items() if name != "adapter"}
    for i, k in _pairs(runs, u, selected):
        one = runs.parameters[i]
        direction = runs.parameters[k] - one
        analysis = cheapest(int(np.count_nonzero(direction)))
        # from 1 to 2, so that positions are as large as the direction
        line = Line(system, t_span, [functional], one - direction, direction, analysis, adapter, options)
        try:
            left, right = line(1.0), line(2.0)
        except DaeHybridError:
            continue
        typical = np.abs([left.values, right.values]).max(axis=0)
        slopes = np.nan_to_num(np.abs([left.slopes, right.slopes])).max(axis=0)
        scales = tolerances(system, [functional], Options.of(options), typical, slopes)
        if left.digest != right.digest:
            found += changes_between(line, left, right, scales, Budget(MAX_RUNS))
    return tuple(found)


def _pairs(runs: Runs, u: Array, selected: NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield pairs of nearest runs with different sequences, one of each sequence among the selected runs."""
    known = runs.has_gradient
    digests, counts = np.unique(runs.digest[known & selected], return_counts=True)
    seen = set[frozenset[int]]()
    for digest in digests[np.argsort(-counts, kind="stable")].tolist():
        own = np.flatnonzero(known & selected & (runs.digest == digest))
        others = np.flatnonzero(known & (runs.digest != digest))
        if not others.size:
            return
        distances, nearest = KDTree(u[others]).query(u[own])
        i = int(np.argmin(distances))
        pair = int(own[i]), int(others[nearest[i]])
        if frozenset(pair) not in seen:
            seen.add(frozenset(pair))
            yield pair
        if len(seen) == MAX_PAIRS:
            return
