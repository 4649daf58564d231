"""What sessions of all adapters do alike with a segment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dae_hybrid.codegen.kernels import Kernel
from dae_hybrid.errors import DaeHybridError
from dae_hybrid.method import Method
from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.options import Options
from dae_hybrid.port.failure_messages import unsolved
from dae_hybrid.port.integrator import Equations, SegmentOutcome, SegmentTask, Session
from dae_hybrid.port.native_plan import SegmentRun

#: a state that is kept on constraints is looked at after this many steps, and brought back where it has left them by
#: this many tolerances (measured on a pendulum: from 1 on the error is that of the integration)
DRIFT_LOOK, DRIFT = 100, 1.0
#: intervals up to this many roundings long are not integrated
SHORTEST = 8
#: CVODES and IDAS take times within 100 roundings of the stop time for it (measured: a decay from t = 1e10 on is 10 %
#: wrong over 500 roundings, 1e-4 over 3,000)
UNRESOLVED = 1000
#: Newton's iteration ends at this correction, relative to the size of the terms, or has failed after so many
CONVERGED, SOLVES = 1e-11, 10
#: a guard is compared with what it was this share of the time earlier
POLE = 1e-7
#: a guard is zero, to tolerance, where so many tolerances of the state lead to it; shares of the way there
CLOSE, SHARES = 10.0, (1.0, 1 - 1e-12, 1 - 1e-9, 1 - 1e-6, 1 - 1e-3, 0.0)
#: backward steps may be longer than forward ones by this factor; stretches join steps within a factor
LONGER, SIMILAR = 3.0, 4.0
#: the adjoint that an integration starts with is rounded to this share of rtol
ROUNDED = 256
#: times closer than this share of the run's time scale are one instant
SAME_INSTANT = 4e-15
#: and gradients that differ by more than this share, or by so many rtol, have lost their digits
LOST = 1e-2
#: a passage is at least so many steps long for every e by which it is faster, on either side
PASSAGE_STEPS = 2.0


def fewest_steps(factor: float) -> int:
    """The steps that a segment at least takes which is so many times as fast as both before and after it."""
    return max(3, int(2 * PASSAGE_STEPS * np.log(max(factor, 1.0))))


def kept(e: Equations, key: Any, make: Callable[[], Any]) -> Any:
    """What `make()` gives, made once for these equations."""
    if key not in e.kept:
        e.kept[key] = make()
    return e.kept[key]


def kernel(e: Equations, name: str) -> Kernel:
    """A dense function of the equations as a kernel."""
    found: Kernel = kept(e, ("kernel", name), lambda: Kernel(e.functions[name].function))
    return found


def completed(e: Equations, t: float, x: Array, m: Array, p: Array) -> tuple[Array, Array]:
    """x and x' that satisfy the equations to rounding, near the given x."""
    for _ in range(SOLVES):
        x, xdot, correction = kernel(e, "complete")(t, x, m, p)
        if not (np.all(np.isfinite(x)) and np.all(np.isfinite(xdot))):
            break
        if np.all(correction <= CONVERGED):
            return x, xdot
    raise unsolved(mode=e.name, time=t, variables=e.variables.names)


def is_pole(task: SegmentTask, t: float, x: Array, xdot: Array, crossing: tuple[int, float, float], p: Array) -> bool:
    """Whether a guard that has changed sign is infinite there: a moment earlier it was smaller."""
    index, value, rate = crossing
    if np.isinf(value):
        return True
    moment = POLE * max(abs(t), t - task.t0)
    if not abs(rate) * moment > abs(value) > 0:
        return False
    earlier = kernel(task.equations, "guards")(t - moment, x - moment * xdot, task.memory, p)[0][index]
    return bool(abs(earlier) < abs(value))


def zero_at_the_end(
    task: SegmentTask, t: float, x: Array, p: Array, options: Options, band: Array
) -> tuple[float, Array, Array, tuple[int, float, float]] | None:
    """Where a guard is zero to tolerance at a point that no step leads beyond: time, x, x', and the crossing.

    Equations that have no values beyond the zero of a guard, such as the outflow sqrt(h) of a tank that is left when h
    is zero, bring an integrator ever closer to it, and never there.
    """
    e = task.equations
    try:
        x, xdot = completed(e, t, x, task.memory, p)
    except DaeHybridError:
        return None
    values, rates = (kernel(e, name)(t, x, task.memory, p)[0] for name in ("guards", "rates"))
    allowed = CLOSE * options.allowed(e.variables, x)
    found = None
    for i in range(e.n_guards - e.n_singularities):
        if band[i] or e.directions[i] * values[i] > 0 or not values[i] * rates[i] < 0:
            continue
        dt = -float(values[i] / rates[i])
        if np.all(np.abs(dt * xdot) <= allowed) and (found is None or dt < found[0]):
            found = dt, i
    if found is None:
        return None
    for share in SHARES:  # beyond zero the equations may have no values
        dt = share * found[0]
        with np.errstate(all="ignore"):
            there, rate = kernel(e, "complete")(t + dt, x + dt * xdot, task.memory, p)[:2]
        if np.all(np.isfinite(there)) and np.all(np.isfinite(rate)):
            h, moving = (kernel(e, name)(t + dt, there, task.memory, p)[0][found[1]] for name in ("guards", "rates"))
            if np.isfinite(moving) and moving * rates[found[1]] > 0:
                return t + dt, there, rate, (found[1], float(h), float(moving))
    return None


def is_short(t0: float, t1: float) -> bool:
    """Whether an interval is nothing but rounding."""
    return abs(t1 - t0) <= SHORTEST * EPS * max(abs(t0), abs(t1))


def is_unresolved(t0: float, t1: float) -> bool:
    """Whether an interval is so short for its times that integrators lose digits of it, or do not look at it."""
    return abs(t1 - t0) <= UNRESOLVED * EPS * max(abs(t0), abs(t1))


def has_drifted(task: SegmentTask, t: float, x: Array, p: Array, options: Options) -> bool:
    """Whether a state has left its constraints by more than the tolerance."""
    e = task.equations
    drift = kernel(e, "drift")(t, x, task.memory, p)[0]
    allowed = options.allowed(e.variables, x)[: e.n_differential]
    return bool(np.any(np.abs(drift) > DRIFT * allowed))


def standing_still(task: SegmentTask, method: Method | str) -> SegmentOutcome:
    """A segment that is nothing but rounding."""
    times: list[float] = []
    if task.record == "steps":
        asked = [task.t0, task.t_stop] if task.t_eval is None else task.t_eval.tolist()
        times = [t for t in asked if task.t_eval is None or t < task.t_stop or task.closed_end]
    sensitivities = [] if task.sensitivities is None else task.sensitivities.reshape(-1).tolist()
    rows = np.array([[t, *task.x0, *sensitivities] for t in times]).reshape(
        len(times), 1 + task.x0.size + len(sensitivities)
    )
    return SegmentOutcome(
        t=task.t_stop,
        x=task.x0,
        xdot=task.xdot0,
        crossing=None,
        zero_band=task.zero_band,
        method=method,
        integrals=task.integrals,
        rows=rows,
        sensitivities=task.sensitivities,
        integral_sensitivities=task.integral_sensitivities,
    )


def one_segment(session: Session, task: SegmentTask, mode: int) -> SegmentRun:
    """`march` of a session that leaves every transition to others."""
    try:
        return SegmentRun(None, mode, task, session.integrate(task))
    except DaeHybridError as error:
        return SegmentRun(None, mode, task, None, error)


def longest_steps(steps: Array) -> Array:
    """How long a backward step may be that starts at the end of each of the forward steps between these times.

    Where the adjoint stands still, as before an integrand that is a pulse has been met, nothing else keeps the backward
    pass from stepping over what the forward run has resolved, because there the integrals are in the error test. A
    backward step is at most LONGER times the forward step that it starts in, and longer than that of any step before by
    at most half the time since then.
    """
    h = np.diff(steps)
    if h.size < 3:
        return np.full(h.size, np.inf)
    h[-1] = max(h[-1], h[-2])  # cut off by the end
    grows = h[1:] >= LONGER * h[:-1]
    growth = int(np.argmin(grows)) if not grows.all() else h.size - 1
    h[: growth + 1] = h[growth]  # steps grow from nothing at the start, whatever the equations
    half = (steps[1:] - steps[0]) / 2
    return np.asarray(half + np.minimum.accumulate(LONGER * h - half))


def stretches(steps: Array) -> tuple[tuple[float, float], ...]:
    """The same as (time, longest step) from the end down to each time, for stretches of similar steps."""
    limits = longest_steps(steps)
    if not np.all(np.isfinite(limits)):
        return ()
    least = np.minimum(limits, np.append(limits[0], limits[:-1]))  # from where each step starts
    parts = 1 + np.floor(np.log(limits / least) / np.log(SIMILAR)).astype(int)
    part = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    least = np.repeat(least, parts)
    starts = np.repeat(steps[:-1], parts) + 2 * least * (SIMILAR**part - 1)
    least *= SIMILAR**part
    level = np.floor(np.log(least) / np.log(SIMILAR))
    first = np.flatnonzero(np.append(True, level[1:] != level[:-1]))
    bounds = np.minimum.reduceat(least, first)
    return tuple(zip(starts[first][::-1].tolist(), bounds[::-1].tolist(), strict=True))
