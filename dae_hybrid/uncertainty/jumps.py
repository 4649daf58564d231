"""Changes of the sequence of events within a sample: where a functional jumps, gradients of its statistics are wrong.

The derivative of a mean over a distribution is the mean of the derivatives if the functional is continuous. Across a
jump it has another term, which no derivative of a run contains.

Borders between sequences are crossed by the edges between runs that are neighbours. Without further runs, the gradients
at both ends of an edge bound the jump on it: a continuous functional whose slope is between those of the ends differs
by an amount between theirs. Edges that may contain a jump are then searched by bisection, the most suspicious first,
and some at random.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import KDTree

from dae_hybrid.errors import DaeHybridError
from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.optimization.changes import Budget, Change, changes_between, tolerances
from dae_hybrid.optimization.line import Line
from dae_hybrid.options import Options
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.uncertainty.runs import cheapest

#: runs that are neighbours of one, and directions in which they are near if there are more parameters
NEIGHBOURS, DIRECTIONS = 8, 5
#: edges searched for each pair of sequences; runs for one edge; runs for a sample, the larger of a number and a share
MAX_EDGES, MAX_RUNS, LEAST_RUNS, SHARE_OF_RUNS = 20, 60, 400, 0.25
#: bisection of an edge ends at this share of its length
WIDTH = 1e-5
#: jumps that are together below this share of the standard deviation of the sample are of no account
NEGLIGIBLE = 0.01
#: and so are differences below this multiple of rounding
ROUNDED = 1e3 * EPS


@dataclass(frozen=True, eq=False)
class Search:
    """What a search for changes within a sample has found.

    Attributes
    ----------
    changes : tuple of Change
    pairs : int
        Number of pairs of sequences that are neighbours.
    unexamined : int
        Number of these that were not searched, though the gradients of the runs do not exclude a jump.
    suspicion : (float, float) or None
        Values of two runs of the most suspicious of these, if they differ by more than the gradients explain.
    """

    changes: tuple[Change, ...]
    pairs: int
    unexamined: int
    suspicion: tuple[float, float] | None


@dataclass(frozen=True, eq=False)
class Points:
    """The runs of a sample that have gradients.

    Attributes
    ----------
    u : ndarray, shape (N, k)
        Independent standard normal variables.
    parameters : ndarray, shape (N, n_parameters)
    values : ndarray, shape (N,)
    by_random : ndarray, shape (N, k)
        Gradients by the random parameters.
    indices : tuple of int
        Places of the random parameters among all.
    digest : ndarray of int, shape (N,)
    selected : ndarray of bool, shape (N,)
        Whether the statistic depends on the value.
    """

    u: Array
    parameters: Array
    values: Array
    by_random: Array
    indices: tuple[int, ...]
    digest: NDArray[np.int64]
    selected: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class _Edges:
    """Edges between neighbours with different sequences.

    `pair` numbers the pairs of sequences; the sizes of jumps on an edge are at least `least` and at most `most`.
    """

    ends: NDArray[np.intp]
    pair: NDArray[np.intp]
    least: Array
    most: Array

    @property
    def pairs(self) -> int:
        return int(self.pair.max(initial=-1)) + 1


def changes_in(
    system: HybridSystem, t_span: Sequence[float], functional: str, points: Points, call: Mapping[str, Any]
) -> Search:
    """Search the borders between sequences for jumps and kinks."""
    edges = _edges(points)
    spread = float(points.values.std()) if points.values.size else 0.0
    largest = np.abs(points.values).max(initial=0.0)
    negligible = max(NEGLIGIBLE * spread / max(edges.pairs, 1), ROUNDED * largest)
    is_open = np.zeros(edges.pairs, dtype=bool)  # not explained by gradients
    is_open[edges.pair[edges.most > negligible]] = True
    is_searched = np.zeros(edges.pairs, dtype=bool)
    budget = Budget(max(LEAST_RUNS, int(SHARE_OF_RUNS * points.values.size)))
    found = list[Change]()
    for edge in _in_order(edges, negligible):
        if budget.left < MAX_RUNS:
            break
        i, k = edges.ends[edge]
        changes = _changes_on(
            system, t_span, functional, points.parameters[i], points.parameters[k], negligible, call, budget
        )
        found += changes
        is_searched[edges.pair[edge]] |= bool(changes)
    missed = is_open & ~is_searched
    doubtful = np.flatnonzero(missed[edges.pair] & (edges.least > negligible))
    suspicion = None
    if doubtful.size:
        i, k = edges.ends[doubtful[np.argmax(edges.least[doubtful])]]
        suspicion = float(points.values[i]), float(points.values[k])
    return Search(tuple(found), edges.pairs, int(missed.sum()), suspicion)


def _changes_on(
    system: HybridSystem, t_span: Sequence[float], functional: str, one: Array, two: Array, negligible: float,
    call: Mapping[str, Any], budget: Budget,
) -> list[Change]:  # fmt: skip
    """The changes between two runs; none if they cannot be repeated."""
    adapter, options = call["adapter"], {name: value for name, value in call.items() if name != "adapter"}
    direction = two - one
    analysis = cheapest(int(np.count_nonzero(direction)))
    # from 1 to 2, so that positions are as large as the direction
    line = Line(system, t_span, [functional], one - direction, direction, analysis, adapter, options)
    budget.left -= 2
    try:
        left, right = line(1.0), line(2.0)
    except DaeHybridError:
        return []
    typical = np.abs([left.values, right.values]).max(axis=0)
    slopes = np.nan_to_num(np.abs([left.slopes, right.slopes])).max(axis=0)
    scales = tolerances(system, [functional], Options.of(options), typical, slopes)
    errors = scales.values
    scales = replace(scales, values=np.minimum(errors, negligible), width=max(WIDTH, scales.width))
    if left.digest == right.digest:
        return []
    own = Budget(MAX_RUNS - 2)
    found = list(changes_between(line, left, right, scales, own))
    budget.left -= own.spent
    return [_certain(change, errors) for change in found]


def _certain(change: Change, errors: Array) -> Change:
    """The change; unresolved if its jump may be an error of the integration."""
    gap = np.abs(change.values[1] - change.values[0])
    if change.kind != "jump" or (gap > errors).any():
        return change
    return replace(change, kind="unresolved", reason="the difference is within the error of the integration")


def _in_order(edges: _Edges, negligible: float) -> Iterator[int]:
    """Edges in the order of search: for each pair of sequences alternately the most suspicious and one at random.

    The pairs take turns. Those that gradients explain are last, with one edge.
    """
    is_open = edges.most > negligible
    shuffled = np.random.default_rng(0).permutation(edges.pair.size)
    by_suspicion = np.lexsort((-edges.most, -edges.least, ~is_open))
    turns, last = list[list[int]]([[] for _ in range(MAX_EDGES)]), list[int]()
    own, any_ = (_by_pair(order, edges) for order in (by_suspicion, shuffled[is_open[shuffled]]))
    for suspicious, random in zip(own, any_, strict=True):
        if not random.size:
            last.append(int(suspicious[0]))
            continue
        both = np.column_stack([suspicious[: random.size], random]).ravel().tolist()
        for turn, edge in zip(turns, list(dict.fromkeys(both))[:MAX_EDGES], strict=False):
            turn.append(edge)
    for turn in turns:
        yield from sorted(turn, key=lambda edge: -edges.least[edge])
    yield from last


def _by_pair(order: NDArray[np.intp], edges: _Edges) -> list[NDArray[np.intp]]:
    """The edges of each pair of sequences, in this order."""
    order = order[np.argsort(edges.pair[order], kind="stable")]
    starts = np.searchsorted(edges.pair[order], np.arange(edges.pairs + 1))
    return [order[start:end] for start, end in pairwise(starts.tolist())]


def _edges(points: Points) -> _Edges:
    """The edges that concern the statistic, with bounds on the jumps on them."""
    ends = _neighbours(points.u, points.digest)
    ends = ends[points.selected[ends].any(axis=1)]
    one, two = ends.T
    step = (points.parameters[two] - points.parameters[one])[:, list(points.indices)]
    slopes = np.stack([(points.by_random[end] * step).sum(axis=1) for end in (one, two)])
    excess = (points.values[two] - points.values[one]) - np.sort(slopes, axis=0)  # beyond the least and largest slope
    least = np.maximum(np.maximum(-excess[0], excess[1]), 0.0)
    both = np.sort(points.digest[ends], axis=1)
    pair = np.unique(both, axis=0, return_inverse=True)[1].reshape(-1)
    return _Edges(ends, pair, least, np.abs(excess).max(axis=0))


def _neighbours(u: Array, digest: NDArray[np.int64]) -> NDArray[np.intp]:
    """Pairs of runs, (m, 2), that are neighbours and have different sequences: at least one pair for each sequence."""
    if np.unique(digest).size < 2:
        return np.empty((0, 2), dtype=np.intp)
    if u.shape[1] == 1:
        order = np.argsort(u[:, 0], kind="stable")
        found = np.column_stack([order[:-1], order[1:]])
        return np.sort(found[digest[found[:, 0]] != digest[found[:, 1]]], axis=1)
    near = u if u.shape[1] <= DIRECTIONS else u @ _directions(u, digest)
    nearest = KDTree(near).query(near, min(NEIGHBOURS + 1, len(near)))[1]
    found = np.column_stack([np.repeat(np.arange(len(near)), nearest.shape[1]), nearest.ravel()])
    found = found[digest[found[:, 0]] != digest[found[:, 1]]]
    for alone in np.setdiff1d(digest, digest[found]):
        own, others = np.flatnonzero(digest == alone), np.flatnonzero(digest != alone)
        distances, nearest = KDTree(near[others]).query(near[own])
        i = np.argmin(distances)
        found = np.vstack([found, [own[i], others[nearest[i]]]])
    return np.unique(np.sort(found, axis=1), axis=0)


def _directions(u: Array, digest: NDArray[np.int64]) -> Array:
    """Orthonormal directions, (k, DIRECTIONS), in which the means of the runs of each sequence differ most."""
    sequence = np.unique(digest, return_inverse=True)[1].reshape(-1)
    sums = np.zeros((sequence.max() + 1, u.shape[1]))
    np.add.at(sums, sequence, u - u.mean(axis=0))
    means = sums / np.sqrt(np.bincount(sequence))[:, None]
    return np.asarray(np.linalg.eigh(means.T @ means)[1][:, -DIRECTIONS:])
