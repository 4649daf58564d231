"""Infinite slopes of equations: roots, powers below one and logarithms where their arguments are zero; zero norms.

Values are finite there, or integrable, but derivatives are not: an analysis that ends at such a point says which
expression it is. Where the norm of a vector is zero, its direction jumps: so does a simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property

import casadi as ca
import numpy as np

from dae_hybrid.codegen.kernels import Kernel
from dae_hybrid.errors import DaeHybridError, IntegrationError, NonFiniteError, StepLimitError, StepSizeError
from dae_hybrid.statement.discontinuities import instructions
from dae_hybrid.statement.discontinuous_nodes import bare
from dae_hybrid.statement.lookup import without_look_ups
from dae_hybrid.statement.norms import NORMS, vector_of
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
        """Roots, powers with an exponent between 0 and 1 or one that varies, logarithms, and norms."""
        symbols = ca.symvar(ca.veccat(*self.expressions))
        found = instructions(symbols, self.expressions, {ca.OP_SQRT, ca.OP_LOG, *POWERS, *NORMS})
        steep = [node for op, node in found if op not in POWERS or _is_steep(node.dep(1))]
        return [node for node in steep if node.op() not in NORMS or vector_of(node) is not None]

    @cached_property
    def texts(self) -> list[str]:
        """The text of the expression that each entry of `arguments` belongs to."""
        return [without_look_ups(bare(str(node))) for node in self.nodes for _ in range(_zero(node).numel())]

    @cached_property
    def are_norms(self) -> list[bool]:
        """Whether each entry of `arguments` is a norm."""
        return [_zero(node) is node for node in self.nodes for _ in range(_zero(node).numel())]

    @cached_property
    def arguments(self) -> Kernel:
        """(t, x, m, p) -> the arguments, and the norms, entry by entry."""
        values = ca.veccat(*(ca.densify(_zero(node)) for node in self.nodes))
        return Kernel(self.lower("slopes", [(self.what, values)]))


def _zero(node: ca.MX) -> ca.MX:
    """What is zero where the slope of an expression is infinite, or not defined."""
    return node.dep(0) if vector_of(node) is None else node


def _is_steep(exponent: ca.MX) -> bool:
    return not exponent.is_constant() or bool(np.any((values := exponent.to_DM().full()) > 0) and np.any(values < 1))


def name_slope(error: DaeHybridError, run: Trajectory | None, *, of_derivatives: bool = True) -> None:
    """Add to the error of an integration which expression has an infinite slope, or no direction, where it ended."""
    if run is None or error.time is None or not isinstance(error, NonFiniteError | StepSizeError | StepLimitError):
        return
    try:
        norms, slopes = _steep(run, error.time)
    except (DaeHybridError, RuntimeError):  # what cannot be evaluated must not replace the error
        return
    if norms:
        error.message += f" {norms[0]} is zero here: where it appears as a divisor, the direction of its vector jumps."
        more = (
            "If the vector comes to rest, give rest a mode of its own, entered where the norm is small; if it passes "
            "zero, divide by sqrt(norm**2 + eps**2), and see what a smaller eps changes."
        )
    elif slopes and of_derivatives:
        error.message += (
            f" The slope of {slopes[0]} is infinite where its argument is zero, as it is here: derivatives cannot be "
            "integrated up to there."
        )
        more = (
            "Values need no slope: simulate. For derivatives give what stays at zero a mode of its own, and what "
            "passes a finite slope near zero, such as that of u / (u**2 + eps)**0.25 for a root, and see what a "
            "smaller eps changes."
        )
    else:
        return
    error.remedy = more if error.remedy is None else f"{error.remedy} {more}"


@contextmanager
def named_slopes(*, of_derivatives: bool = True) -> Iterator[None]:
    """Name the slope in errors of a run that carry its part."""
    try:
        yield
    except IntegrationError as error:
        name_slope(error, error.trajectory, of_derivatives=of_derivatives)
        raise


def _steep(run: Trajectory, t: float) -> tuple[list[str], list[str]]:
    """Texts of norms, and of expressions whose arguments are zero, at a time of a run."""
    motion, norms, others = Motion(run), list[str](), list[str]()
    for index, segment in enumerate(motion.segments):
        slopes = run.system.branches.slopes.get(segment.mode.index)
        if slopes is None or not slopes.nodes or not segment.t_start <= t <= segment.t_end:
            continue
        alike = [own for own in motion.segments if own.mode.index == segment.mode.index]
        points = [(s.t_start, s.x_start, s.memory) for s in alike] + [(s.t_end, s.x_end, s.memory) for s in alike]
        sizes = np.abs([slopes.arguments(*point, run.parameters)[0] for point in points])
        times = np.array([segment.t_start, *segment.t, segment.t_end])
        nearest = int(np.abs(times - t).argmin())
        x = [segment.x_start, *segment.values, segment.x_end][nearest]
        if segment.path is not None and times[nearest] != t:  # others would have to be integrated again
            with suppress(DaeHybridError):
                x = motion.at(index, np.array([t]))[0]
        here = np.abs(slopes.arguments(t, x, segment.memory, run.parameters)[0])
        for i in np.flatnonzero(here <= ZERO_SHARE * np.nanmax(sizes, axis=0)).tolist():
            (norms if slopes.are_norms[i] else others).append(slopes.texts[i])
    return norms, others
