"""Infinite slopes of equations: roots, powers below one and logarithms where their arguments are zero.

Values are finite there, or integrable, but derivatives are not: an analysis that ends at such a point says which
expression it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import casadi as ca
import numpy as np

from dae_hybrid.codegen.kernels import Kernel
from dae_hybrid.errors import DaeHybridError, NonFiniteError, StepSizeError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.statement.discontinuities import instructions
from dae_hybrid.statement.discontinuous_nodes import bare
from dae_hybrid.statement.lookup import without_look_ups
from dae_hybrid.trajectory.pieces import Motion
from dae_hybrid.trajectory.trajectory import Trajectory

POWERS = (ca.OP_POW, ca.OP_CONSTPOW)
#: share of its largest value along the run below which an argument is zero
ZERO_SHARE = 1e-6


@dataclass(frozen=True, eq=False)
class Slopes:
    """The expressions of a mode whose slopes may be infinite; `lower` turns some into a function of (t, x, m, p)."""

    what: str
    expressions: Sequence[ca.MX]
    lower: Callable[[str, Sequence[tuple[str, ca.MX]]], ca.Function]

    @cached_property
    def nodes(self) -> list[ca.MX]:
        """Roots, powers with an exponent between 0 and 1 or one that varies, and logarithms."""
        symbols = ca.symvar(ca.veccat(*self.expressions))
        found = instructions(symbols, self.expressions, {ca.OP_SQRT, ca.OP_LOG, *POWERS})
        return [node for op, node in found if op not in POWERS or _is_steep(node.dep(1))]

    @cached_property
    def texts(self) -> list[str]:
        """The text of the expression that each entry of `arguments` belongs to."""
        return [without_look_ups(bare(str(node))) for node in self.nodes for _ in range(node.dep(0).numel())]

    @cached_property
    def arguments(self) -> Kernel:
        """(t, x, m, p) -> the arguments, entry by entry."""
        values = ca.veccat(*(ca.densify(node.dep(0)) for node in self.nodes))
        return Kernel(self.lower("slopes", [(self.what, values)]))


def _is_steep(exponent: ca.MX) -> bool:
    return not exponent.is_constant() or bool(np.any((values := exponent.to_DM().full()) > 0) and np.any(values < 1))


def name_slope(error: DaeHybridError, run: Trajectory | None) -> None:
    """Add to the error of a derivative's integration which expression has an infinite slope where it ended."""
    if run is None or error.time is None or not isinstance(error, NonFiniteError | StepSizeError):
        return
    texts = _steep(run, error.time)
    if texts:
        error.message += (
            f" The slope of {texts[0]} is infinite where its argument is zero, as it is here: derivatives cannot be "
            "integrated up to there."
        )
        error.remedy = (
            "Values need no slope: simulate. For derivatives give what stays at zero a mode of its own, and what "
            "passes a finite slope near zero, such as that of u / (u**2 + eps)**0.25 for a root, and see what a "
            "smaller eps changes."
        )


def _steep(run: Trajectory, t: float) -> list[str]:
    """Texts of expressions whose arguments are zero at a time of a run."""
    motion, found = Motion(run), list[str]()
    for index, segment in enumerate(motion.segments):
        slopes = run.system.branches.slopes.get(segment.mode.index)
        if slopes is None or not slopes.nodes or not segment.t_start <= t <= segment.t_end:
            continue

        def at(t: float, x: Array, memory: Array = segment.memory, of: Kernel = slopes.arguments) -> Array:
            return np.abs(of(t, x, memory, run.parameters)[0])

        ends = [at(segment.t_start, segment.x_start), at(segment.t_end, segment.x_end)]
        try:
            here = at(t, motion.at(index, np.array([t]))[0])
        except DaeHybridError:
            here = ends[int(t - segment.t_start > segment.t_end - t)]
        found += [slopes.texts[i] for i in np.flatnonzero(here <= ZERO_SHARE * np.fmax(*ends))]
    return found
