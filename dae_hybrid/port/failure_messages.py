"""Errors and messages of failures that are common to all integrators."""

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
from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.port.integrator import SegmentTask
from dae_hybrid.statement.declarations import VariableBound

#: steps below this share of the segment make no progress
MIN_PROGRESS_SHARE = 1e-12
#: variables named in a message
MAX_NAMED = 10
#: latest transitions in the message on too many events, and the least number of them from which a rate is given
LATEST_TRANSITIONS, MIN_FOR_RATE = 20, 6


#: what to do where the steps become too short
SHORT_STEPS = (
    "Look for a discontinuity that is not a transition, a kink of an integrand, which is an event with "
    "build(kinks='events'), or a solution that blows up."
)
#: usual causes of values that are not finite
SUSPECTS = "division by zero, logarithms or roots of negative numbers, and overflow"
#: of an event whose guard is zero where the equations are not finite, or jump
NO_LIMIT = "the rates have no limit where its guard is zero, so that it is at the last point before"


def said(names: Sequence[str]) -> str:
    """Return the end of a sentence that lists names."""
    return f": {', '.join(names)}." if names else "."


def refuse_not_finite(
    what: str, values: Sequence[Array], *, mode: str | None, time: float | None, transition: str | None = None
) -> None:
    """Refuse derivatives of a gradient that are NaN or infinite."""
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
    """Return the error of a guard that crossed zero and came back within one step."""
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
    """Return the error of a guard with ``on_entry="error"`` that is past its threshold on entry."""
    return GuardPassedError(
        "The guard is past its threshold when its mode is entered.",
        transition=transition,
        mode=mode,
        time=time,
        remedy="Check the transition into this mode, or declare on_entry='wait' or 'fire'.",
    )


def bound_passed(
    bound: VariableBound, value: float, *, mode: str, transition: str, time: float, entering: bool
) -> BoundError:
    """Return the error of an algebraic variable past its bound, on entry into a mode or later."""
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
    """Return the error of a guard that changed sign without a zero: at a pole or by a jump."""
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
    """Return the error of equations that are not finite at the points of a step."""
    return NonFiniteError(
        "The equations give NaN or infinity and smaller steps do not avoid it.",
        mode=mode,
        time=time,
        remedy=f"Check the mode's equations and integrands near this point for {SUSPECTS}.",
    )


def not_finite_derivatives(*, mode: str, time: float) -> NonFiniteError:
    """Return the error of derivatives of the equations that are not finite."""
    return NonFiniteError(
        "The derivatives of the equations give NaN or infinity.",
        mode=mode,
        time=time,
        remedy=f"Check the mode's equations and integrands before this point for {SUSPECTS}.",
    )


def unsolved(*, mode: str, time: float, variables: Sequence[str] = ()) -> ConsistencyError:
    """Return the error of algebraic equations that cannot be solved at a point."""
    return ConsistencyError(
        "The algebraic variables could not be solved for.",
        mode=mode,
        time=time,
        variables=variables,
        remedy="Check that the algebraic equations determine them near this point.",
    )


def singular(*, mode: str, time: float, variables: Sequence[str]) -> ConsistencyError:
    """Return the error of a matrix [F_y' | F_z] that has become singular."""
    named = ", ".join(variables[:MAX_NAMED]) + (
        f" and {len(variables) - MAX_NAMED} others" if len(variables) > MAX_NAMED else ""
    )
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
    """Whether steps of this length make no progress."""
    return step < MIN_PROGRESS_SHARE * max(abs(t), task.t_stop - task.t0)


def starved(step: float, *, mode: str, time: float, not_finite: bool) -> DaeHybridError:
    """Return the error of steps that make no progress."""
    if not_finite:
        return not_finite_equations(mode=mode, time=time)
    return StepSizeError(
        f"The step size fell to {step:.3g}." if step else "The steps became too short to get anywhere.",
        mode=mode,
        time=time,
        remedy=SHORT_STEPS,
    )


def coarse_times(step: float, *, mode: str, time: float) -> StepSizeError:
    """Return the error of a run whose steps are too short for its times."""
    return StepSizeError(
        f"Near t = {time:.9g}, times are {EPS * abs(time):.1e} apart: rounding them loses more of steps of {step:.1e} "
        "than rtol allows.",
        mode=mode,
        time=time,
        remedy="Measure time from the start of the run: state m.time + t0 in place of m.time, and run over "
        "(0, t1 - t0). The steps of adapter='scipy' end at representable times and lose nothing.",
    )


def step_limit(max_steps: int, *, mode: str, time: float) -> StepLimitError:
    """Return the error of a run that has reached `max_steps`."""
    return StepLimitError(
        f"The step limit max_steps={max_steps} was reached.",
        mode=mode,
        time=time,
        remedy="Raise max_steps, loosen rtol, or check for fast modes.",
    )


def event_limit(
    max_events: int, latest: Sequence[tuple[str, float]], transition: str, *, mode: str, time: float
) -> EventError:
    """Return the error of a run that has reached `max_events`; `latest` are names and times of the last ones."""
    message, remedy = f"The run has more than max_events={max_events} transition{'s' * (max_events > 1)}", ""
    if len(latest) >= MIN_FOR_RATE:
        cycle = " -> ".join(dict.fromkeys(name for name, _ in latest))
        message += f", the last ones {cycle} about every {(time - latest[0][1]) / len(latest):.3g} units of time"
        remedy = (
            "; or, where the modes point at each other across a surface and switch ever so often, model the motion "
            "along it as a mode of its own"
        )
    return EventError(f"{message}.", mode=mode, transition=transition, time=time, remedy=f"Raise max_events{remedy}.")


def not_kept(what: str, kept: str, *enough: str) -> NotKeptError:
    """Return the error of a result that the run did not keep; `enough` are the values of `keep` that do."""
    return NotKeptError(
        f"The {what} of this run were not kept: keep={kept!r}.",
        remedy=f"Pass keep={' or '.join(map(repr, enough))} to the call that makes the run.",
    )
