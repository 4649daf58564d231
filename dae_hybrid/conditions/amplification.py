"""Growth of perturbations: whether the digits of a gradient are determined by the tolerances.

In a chaotic motion errors grow like the derivatives, by e in every Lyapunov time, until the computed run is a different
one: its derivatives are large, exact for that run, and unrelated to the problem. A large derivative alone does not
indicate this (that of y' = y is as large and as well determined as its solution), so that with a large derivative the
analysis is repeated at another tolerance; the digits that agree are determined. The same is done if perturbations grow
within the run and decay again, and the derivatives are not large (see `passages`), or where rates become infinite at an
event. A passage leaves noise of the size of the derivatives behind, and one value in fifty agrees with the next by
chance: there it takes a second repetition to call a gradient determined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from dae_hybrid.errors import DaeHybridError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.segment_rules import DIGITS_LOST
from dae_hybrid.simulation.passages import fastest_passage
from dae_hybrid.trajectory.diagnostics import Check
from dae_hybrid.trajectory.trajectory import Trajectory

#: the analysis is repeated if doubling a parameter changes a functional by this multiple of its size or of its absolute
#: tolerance
LARGE_CHANGE = 5.0
#: factor on the tolerances of the repeated analysis, and on them once more for the second repetition
LOOSER = 2.0
#: relative difference of gradients at a fixed step and at twice that step above which neither is one
COARSE = 0.5
#: smallest significant difference of gradients, in multiples of rtol
DIFFERENCE_RTOLS = 100.0
TIGHTER = "Shorten the run or tighten rtol"
ROUNDED = "Roundings of time add up there, whatever rtol is: shorten the run; forward analysis may lose less"
CHAOS = "; of a chaotic motion neither a long run nor its derivatives can be had"
CHECK = "growth of perturbations"

type Gradients = Mapping[str, Array]


def lost_digits(
    trajectory: Trajectory,
    gradients: Gradients,
    wrt: tuple[int, ...],
    again: Callable[[float], Gradients],
    *,
    sampled: bool = False,
) -> tuple[list[str], Check]:
    """Return warnings on the gradients (k, n_wrt) of a run by functional, and the check.

    `again` recomputes them at a multiple of the tolerances.

    `sampled` says that the outputs of the run are at requested times.
    """
    p = trajectory.parameters[list(wrt)]
    return lost_along(trajectory, gradients, np.where(p != 0, np.abs(p), 1.0), again, sampled=sampled)


def lost_along(
    trajectory: Trajectory,
    gradients: Gradients,
    scale: Array,
    again: Callable[[float], Gradients],
    *,
    sampled: bool = False,
) -> tuple[list[str], Check]:
    """Return the same for derivatives (k, d) along directions; `scale` (d,) of a direction is a large change."""
    largest = max((_relative(trajectory, name, np.abs(g) * scale) for name, g in gradients.items()), default=0.0)
    rtol = trajectory.options.rtol
    grown, remedy = f"derivatives are {largest:.1e} times as large as the functional", TIGHTER + CHAOS
    passage, rounding = fastest_passage(trajectory, sampled=sampled)
    spoils = max(rtol, rounding) * passage > DIGITS_LOST
    if trajectory.singularity:
        grown, remedy = "rates have no limit at an event", TIGHTER
    elif not largest > LARGE_CHANGE:
        if not spoils:
            said = f"a parameter that doubles changes no functional by more than {LARGE_CHANGE:g} times it"
            return [], Check(CHECK, True, said)
        grown = f"it speeds up {passage:.1e} times on the way, and slows down again"
        remedy = TIGHTER if rtol * passage > DIGITS_LOST else ROUNDED
    step = trajectory.options.fixed_step
    asked, coarser = (f"rtol={rtol:g}", "tolerance") if step is None else (f"fixed_step={step:g}", "step")
    for factor in (LOOSER, LOOSER**2) if spoils and step is None else (LOOSER,):
        found, worst, at = [], 0.0, f"at {factor:g} times the {coarser}"
        try:
            other = again(factor)
        except DaeHybridError as error:
            said = (
                f"Perturbations grow along this run ({grown}), and its derivatives cannot be had {at} "
                f"({error.message}): they may not be determined by {asked}."
            )
            return [said], Check(CHECK, False, "nothing to compare with")
        for name, g in gradients.items():
            change = difference(g * scale, other[name] * scale, _absolute(trajectory, name))
            worst = max(worst, change)
            if change > (lost(rtol) if step is None else COARSE):
                found.append(
                    f"The gradient of '{name}' changes by {min(change, 1.0):.0%} of its size {at}: perturbations "
                    f"grow along this run ({grown}), and {asked} does not determine it. {remedy}."
                )
        if found:
            break
    return found, Check(CHECK, not found, f"{at} gradients differ by {worst:.1e}")


def _absolute(trajectory: Trajectory, name: str) -> Array:
    """Return the absolute tolerances of a functional, (k,)."""
    functionals = trajectory.system.functionals
    return trajectory.options.absolute(functionals)[functionals[name]]


def lost(rtol: float) -> float:
    """Return the relative difference above which gradients have lost their digits."""
    return max(DIGITS_LOST, DIFFERENCE_RTOLS * rtol)


def difference(one: Array, other: Array, least: Array) -> float:
    """Return the largest difference of two gradients relative to the larger one; 0 if both are below `least`, (k,)."""
    size = np.maximum(np.abs(one).max(axis=1, initial=0.0), np.abs(other).max(axis=1, initial=0.0))
    change = np.where(size > least, np.abs(one - other).max(axis=1, initial=0.0), 0.0)
    return float(np.max(change / np.maximum(size, least), initial=0.0))


def _relative(trajectory: Trajectory, name: str, changes: Array) -> float:
    """Return the largest change of a functional relative to the terms of its sum."""
    part = trajectory.system.functionals[name]
    made_of = np.maximum(np.abs(np.atleast_1d(trajectory.functionals[name])), _absolute(trajectory, name))
    change = changes.max(axis=1, initial=0.0)
    if np.any(change > LARGE_CHANGE * made_of):
        made_of = np.maximum(made_of, _terminal_sizes(trajectory)[part])  # a terminal value may vanish by chance
    return float(np.max(change / made_of, initial=0.0))


def _terminal_sizes(trajectory: Trajectory) -> Array:
    """Return the magnitudes of the functionals' terminal values, to first order, by the largest states of the run."""
    t, last, x, m = trajectory.final
    final = trajectory.system.modes[last]
    by_u = final.kernels["terminal"](t, x, m, trajectory.parameters)[1]
    return np.asarray(np.abs(by_u[:, : x.size]) @ np.maximum(np.abs(x), trajectory.largest(final)))
