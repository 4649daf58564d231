"""The sentences of failures that every integrator can meet."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dae_hybrid.errors import (
    BoundError,
    ConsistencyError,
    DaeHybridError,
    EventError,
    GuardPassedError,
    NonFiniteError,
    NotKeptError,
    StepLimitError,
    StepSizeError,
    ZenoError,
)
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.integrator import SegmentTask
from dae_hybrid.statement.declarations import Bound

#: steps below this share of the segment get nowhere
STARVED = 1e-12
#: up to so many variables are named in a sentence
NAMED = 10
#: of so many of the last transitions a run that has too many is told the pace, from so many on
LATEST, PACED = 20, 6


#: what makes numbers that are not finite
SUSPECTS = "division by zero, logarithms or roots of negative numbers, and overflow"


def said(names: Sequence[str]) -> str:
    """The end of a sentence that says which."""
    return f": {', '.join(names)}." if names else "."


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


def guard_passed(transition: str, mode: str, time: float) -> GuardPassedError:
    """A guard that is an invariant of its mode is past its threshold on entry."""
    return GuardPassedError(
        "The guard is past its threshold when its mode is entered.",
        transition=transition,
        mode=mode,
        time=time,
        remedy="Check the transition into this mode, or declare on_entry='wait' or 'fire'.",
    )


def bound_passed(bound: Bound, value: float, *, mode: str, transition: str, time: float, entering: bool) -> BoundError:
    """An algebraic variable is past its bound, on entry into a mode or where it gets there."""
    value += 0.0  # not -0
    side = "lower" if bound.is_lower else "upper"
    if entering:
        what = f"{bound.label} = {value:.9g} is past its {side} bound {bound.limit:g} where the mode is entered"
        remedy = (
            f"There mode '{mode}' does not describe the system: enter it elsewhere, or state a transition out of it "
            "with on_entry='fire' that leaves it at once."
        )
    else:
        what = f"{bound.label} = {value:.9g} passes its {side} bound {bound.limit:g}"
        remedy = (
            f"Beyond it mode '{mode}' does not describe the system: state a transition out of it that fires there, "
            f"with a guard on {bound.label} or on what takes it across."
        )
    error = BoundError(
        f"{what} (bounds are {bound.lower:g} and {bound.upper:g}).",
        mode=mode,
        transition=transition,
        time=time,
        variables=[bound.label],
        remedy=remedy,
    )
    error.value, error.bounds = value, (bound.lower, bound.upper)
    return error


def lost_crossing(crossing: tuple[int, float, float], *, pole: bool, mode: str, time: float) -> EventError:
    """A guard changed sign within a step without a zero: through infinity, or in a jump."""
    index, value, rate = crossing
    what = "A guard changes sign here, but Newton's method found no time where it is zero"
    remedy = "Look for a jump of the guard; state it so that it crosses zero smoothly, or set max_step."
    if pole:
        what = "The guard has a pole here: it changes sign through infinity, not through zero"
        remedy = (
            "Multiply the guard by its denominator, which has to keep one sign, or give the transition a guard that is "
            "zero where it is to fire."
        )
    error = EventError(f"{what} (value {value:.3g}, rate {rate:.3g}).", mode=mode, time=time, remedy=remedy)
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
    named = ", ".join(variables[:NAMED]) + (f" and {len(variables) - NAMED} others" if len(variables) > NAMED else "")
    return ConsistencyError(
        f"[F_y' | F_z] becomes singular: {named} cannot be determined any more.",
        mode=mode,
        time=time,
        variables=variables,
        remedy="The index is higher there, or solutions of the equations meet, so that they do not say which one is to "
        "be followed: end the mode before by a transition, or state the equations so that they determine these "
        "variables there, too (z = sin(x) / x continued by its limit, for x z = sin(x)).",
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


def event_limit(
    max_events: int, latest: Sequence[tuple[str, float]], transition: str, *, mode: str, time: float
) -> EventError:
    """The run has used up its transitions; `latest` are names and times of the last ones."""
    message, remedy = f"The run has more than max_events={max_events} transition{'s' * (max_events > 1)}", ""
    if len(latest) >= PACED:
        cycle = " -> ".join(dict.fromkeys(name for name, _ in latest))
        message += f", the last ones {cycle} about every {(time - latest[0][1]) / len(latest):.3g} units of time"
        remedy = (
            "; or, where the modes point at each other across a surface and switch ever so often, model the motion "
            "along it as a mode of its own"
        )
    return EventError(f"{message}.", mode=mode, transition=transition, time=time, remedy=f"Raise max_events{remedy}.")


def not_kept(what: str, kept: str, *enough: str) -> NotKeptError:
    """A result was asked for what a run was told not to keep; `enough` are the values of `keep` that have it."""
    return NotKeptError(
        f"The {what} of this run were not kept: keep={kept!r}.",
        remedy=f"Pass keep={' or '.join(map(repr, enough))} to the call that makes the run.",
    )
