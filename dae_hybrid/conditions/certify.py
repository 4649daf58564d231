"""Checks that a gradient must pass before it is returned."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache

from dae_hybrid.conditions.branches import undecided_branches
from dae_hybrid.conditions.error_estimate import ErrorEstimate
from dae_hybrid.conditions.one_sided import untold
from dae_hybrid.conditions.peaks import check_peaks
from dae_hybrid.conditions.resting import refuse_resting
from dae_hybrid.conditions.simultaneous import has_coincidences, one_sided_derivatives
from dae_hybrid.conditions.slopes import name_slope
from dae_hybrid.errors import ConditionWarning, DaeHybridError, DerivativeWarning, ZenoError
from dae_hybrid.sensitivity.duality import Duality
from dae_hybrid.sensitivity.forward import TangentState
from dae_hybrid.system.derivative_conditions import Conditions
from dae_hybrid.trajectory.called_jumps import refuse_called_jumps
from dae_hybrid.trajectory.diagnostics import Check, Diagnostics
from dae_hybrid.trajectory.event_accuracy import amplified
from dae_hybrid.trajectory.grazing import refuse_near_misses, refuse_shallow
from dae_hybrid.trajectory.lost_directions import refuse_lost_directions
from dae_hybrid.trajectory.trajectory import Trajectory


@contextmanager
def attach_trajectory(trajectory: Trajectory) -> Iterator[None]:
    """Attach the trajectory to errors of its analysis."""
    try:
        yield
    except DaeHybridError as error:
        name_slope(error, trajectory)
        error.trajectory = error.trajectory or trajectory
        raise


def check_derivative_conditions(
    trajectory: Trajectory,
    conditions: Conditions,
    forward: Callable[[], tuple[Trajectory, TangentState]],
    duality: Mapping[str, Duality],
    growth: tuple[list[str], Check],
    functionals: tuple[str, ...],
    finer: Callable[[], Trajectory],
) -> Diagnostics:
    """Check the conditions that concern a run as a whole; return the results in addition to the run's diagnostics.

    `forward` returns the run with its tangents, `finer` the run that `ErrorEstimate` compares with; both are called
    only if needed. `growth` is the result of `amplification.lost_digits`, `functionals` are those to be differentiated.

    Warns with `DerivativeWarning` if derivatives are one-sided and nobody listens (`one_sided.listening`), or a
    condition failed with ``strict=False``, and with `ConditionWarning` if the growth of perturbations leaves gradients
    undetermined or sensitivities are below their absolute tolerances.
    """
    if trajectory.accumulation is not None:
        conditions.fail(
            ZenoError(
                "The run was ended where events accumulate: the derivative is that of the run up to there.",
                time=trajectory.accumulation,
                remedy="Model what happens at rest as a mode of its own; strict=False gives it all the same.",
            )
        )
    forward = cache(forward)
    refuse_called_jumps(trajectory, conditions)
    refuse_lost_directions(trajectory, conditions)
    refuse_shallow(trajectory, conditions)
    refuse_near_misses(trajectory, conditions)
    refuse_resting(trajectory, conditions, forward, functionals)
    estimate = ErrorEstimate(trajectory, finer)
    if undecided_branches(trajectory, estimate):
        run, directions = forward()  # its events may differ from those of the trajectory
        for found in undecided_branches(run, estimate):
            if found.matters or found.moves(run, directions):
                found.refuse(conditions)
    sided = check_peaks(trajectory.system, conditions, forward, functionals)
    if has_coincidences(trajectory, estimate):
        sided += one_sided_derivatives(*forward(), estimate, functionals)
    for check in duality.values():
        if not check.passed:
            conditions.fail(check.error())
    for sentence in (*untold(sided), *(f"{reason} The gradient is not one." for reason in conditions.failed)):
        warnings.warn(sentence, DerivativeWarning, stacklevel=4)
    lost, grown = growth
    lost = [*conditions.doubts, *lost, *amplified(trajectory)]
    for sentence in lost:
        warnings.warn(sentence, ConditionWarning, stacklevel=4)
    checks = [
        grown,
        Check(
            "conditions",
            not conditions.failed,
            "; ".join(conditions.failed) or "event times and measurements move smoothly",
        ),
        Check(
            "resolution of sensitivities",
            not conditions.doubts,
            "; ".join(conditions.doubts) or "sensitivities stand clear of their absolute tolerances",
        ),
        Check("one-sided derivatives", not sided, f"at {len(sided)} instants" if sided else "none"),
    ]
    checks += [
        Check("duality", check.passed, f"'{name}': forward and adjoint differ by {check.defect:.1e}")
        for name, check in duality.items()
    ]
    return Diagnostics((*sided, *conditions.failed, *lost), tuple(checks))
