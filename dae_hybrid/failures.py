"""The sentences of failures that every integrator can meet."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dae_hybrid.errors import (
    ConsistencyError,
    DaeHybridError,
    EventError,
    NonFiniteError,
    StepLimitError,
    StepSizeError,
    ZenoError,
)
from dae_hybrid.integrator import Array, SegmentTask

#: steps below this share of the segment get nowhere
STARVED = 1e-12


#: what makes numbers that are not finite
SUSPECTS = "division by zero, logarithms or roots of negative numbers, and overflow"


def refuse_not_finite(
    what: str, values: Sequence[Array], *, mode: str | None, time: float | None, transition: str | None = None
) -> None:
    """Refuse derivatives that are NaN or infinite, where a gradient needs them."""
    if all(np.isfinite(getattr(v, "data", 0.0) if not isinstance(v, np.ndarray) else v).all() for v in values):
        return
    raise NonFiniteError(
        f"The gradient is not finite: {what} has no finite derivative.",
        mode=mode,
        transition=transition,
        time=time,
        remedy="The values may be finite there: look for roots at zero, powers below one, and where branches meet.",
    )


def unresolved_guard(index: int, *, mode: str, time: float) -> ZenoError:
    """A guard went through zero and back within the accuracy of one step."""
    error = ZenoError(
        "The guard left zero and came back through it within one step: events follow faster than the steps.",
        mode=mode,
        time=time,
        remedy="Set max_step, or tolerances that resolve the motion between the events; if the events accumulate, "
        "model what happens at rest as a mode of its own.",
    )
    error.guard = index
    return error


def lost_crossing(crossing: tuple[int, float, float], *, mode: str, time: float) -> EventError:
    """A guard changed sign within a step, but no time was found where it is zero."""
    index, value, rate = crossing
    error = EventError(
        f"A guard changes sign here, but Newton's method found no time where it is zero (value {value:.3g}, rate "
        f"{rate:.3g}).",
        mode=mode,
        time=time,
        remedy="Look for a pole or a jump of the guard; state it so that it crosses zero smoothly, or set max_step.",
    )
    error.guard = index
    return error


def not_finite_equations(*, mode: str, time: float) -> NonFiniteError:
    """The equations have no finite values where a step wants them."""
    return NonFiniteError(
        "The equations give NaN or infinity and smaller steps do not avoid it.",
        mode=mode,
        time=time,
        remedy=f"Check the mode's equations and integrands near this point for {SUSPECTS}.",
    )


def not_finite_derivatives(*, mode: str, time: float) -> NonFiniteError:
    """The derivatives of the equations have no numbers."""
    return NonFiniteError(
        "The derivatives of the equations give NaN or infinity.",
        mode=mode,
        time=time,
        remedy=f"Check the mode's equations and integrands before this point for {SUSPECTS}.",
    )


def unsolved(*, mode: str, time: float, variables: Sequence[str] = ()) -> ConsistencyError:
    """The algebraic variables cannot be found at a point."""
    return ConsistencyError(
        "The algebraic variables could not be solved for.",
        mode=mode,
        time=time,
        variables=variables,
        remedy="Check that the algebraic equations determine them near this point.",
    )


def singular(*, mode: str, time: float, variables: Sequence[str]) -> ConsistencyError:
    """[F_y' | F_z] has become singular on the way."""
    return ConsistencyError(
        f"[F_y' | F_z] becomes singular: {', '.join(variables)} cannot be determined any more.",
        mode=mode,
        time=time,
        variables=variables,
        remedy="The index is higher there: end the mode before by a transition, or check its equations.",
    )


def is_starved(step: float, t: float, task: SegmentTask) -> bool:
    """Whether steps of this length get nowhere."""
    return step < STARVED * max(abs(t), task.t_stop - task.t0)


def starved(step: float, *, mode: str, time: float, not_finite: bool) -> DaeHybridError:
    """Steps get nowhere."""
    if not_finite:
        return not_finite_equations(mode=mode, time=time)
    return StepSizeError(
        f"The step size fell to {step:.3g}." if step else "The steps became too short to get anywhere.",
        mode=mode,
        time=time,
        remedy="Look for a solution that blows up, or a discontinuity that is not a transition.",
    )


def step_limit(max_steps: int, *, mode: str, time: float) -> StepLimitError:
    """The run has used up its steps."""
    return StepLimitError(
        f"The step limit max_steps={max_steps} was reached.",
        mode=mode,
        time=time,
        remedy="Raise max_steps, loosen rtol, or check for fast modes.",
    )
