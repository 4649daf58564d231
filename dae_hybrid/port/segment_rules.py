"""Rules for segments that the sessions of all adapters share."""

from __future__ import annotations

import math
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

#: steps between checks of the constraints, and the drift, in tolerances, above which the state is projected onto them
#: (measured on a pendulum: from 1 on the error is that of the integration)
DRIFT_CHECK_STEPS, MAX_DRIFT = 100, 1.0
#: longest interval, in rounding errors, that is not integrated
MIN_INTERVAL_ROUNDINGS = 8
#: CVODES and IDAS treat times within 100 rounding errors of the stop time as the stop time (measured: a decay from
#: t = 1e10 on is 10 % wrong over 500 rounding errors, 1e-4 over 3,000)
UNRESOLVED = 1000
#: an integrator that adds its steps up loses what is below the resolution of time; it may be this multiple of rtol, as
#: a share of a step, or what the state changes in that time this number of tolerances (measured on oscillations from
#: 1e6 and 1.7e9 on: up to 10 the error is that of the steps, at 300 it is 15 times as large)
LOST_SHARE = 10.0
#: Newton's iteration: correction at convergence, relative to the size of the terms, and most iterations
NEWTON_TOLERANCE, MAX_NEWTON_ITERATIONS = 1e-11, 10
#: backward difference of a guard in the test for a pole, as a share of the time
POLE_STEP = 1e-7
#: a guard is zero to tolerance if a change of the state by this number of tolerances makes it zero; shares of the
#: distance to the zero that are tried
ZERO_TOLERANCES, ZERO_SHARES = 10.0, (1.0, 1 - 1e-12, 1 - 1e-9, 1 - 1e-6, 1 - 1e-3, 0.0)
#: largest ratio of backward to forward steps; ratio of steps within a stretch
MAX_STEP_RATIO, STRETCH_RATIO = 3.0, 4.0
#: the initial adjoint of a segment is rounded to rtol over this number
ADJOINT_ROUNDING_FACTOR = 256
#: times closer than this share of the run's time scale are simultaneous
SAME_INSTANT = 4e-15
#: gradients with a relative error above this share, or above its multiple of rtol, have lost their digits
DIGITS_LOST = 1e-2
#: least number of steps, on either side of a passage, per factor of e in speed
PASSAGE_STEPS = 2.0


def same_instant(one: float, other: float, start: float) -> bool:
    """Whether two times of a run that began at `start` are equal to rounding."""
    later = max(one, other)
    return later < np.inf and abs(one - other) <= SAME_INSTANT * max(abs(later), later - start)


def fewest_steps(factor: float) -> int:
    """Return the least number of steps of a segment that is faster inside than at both ends by a factor."""
    return max(3, int(2 * PASSAGE_STEPS * np.log(max(factor, 1.0))))


def cached(e: Equations, key: Any, make: Callable[[], Any]) -> Any:
    """Return `make()`, computed once for these equations."""
    if key not in e.cache:
        e.cache[key] = make()
    return e.cache[key]


def kernel(e: Equations, name: str) -> Kernel:
    """Return a dense function of the equations as a kernel."""
    found: Kernel = cached(e, ("kernel", name), lambda: Kernel(e.functions[name].function))
    return found


def completed(e: Equations, t: float, x: Array, m: Array, p: Array) -> tuple[Array, Array]:
    """Return x and x' that satisfy the equations to rounding, near the given x."""
    for _ in range(MAX_NEWTON_ITERATIONS):
        x, xdot, correction = kernel(e, "complete")(t, x, m, p)
        if not (np.all(np.isfinite(x)) and np.all(np.isfinite(xdot))):
            break
        if np.all(correction <= NEWTON_TOLERANCE):
            return x, xdot
    raise unsolved(mode=e.name, time=t, variables=e.variables.names)


def is_pole(task: SegmentTask, t: float, x: Array, xdot: Array, crossing: tuple[int, float, float], p: Array) -> bool:
    """Whether a guard changes sign at a pole: its magnitude was smaller shortly before."""
    index, value, rate = crossing
    if np.isinf(value):
        return True
    moment = POLE_STEP * max(abs(t), t - task.t0)
    if not abs(rate) * moment > abs(value) > 0:
        return False
    earlier = kernel(task.equations, "guards")(t - moment, x - moment * xdot, task.memory, p)[0][index]
    return bool(abs(earlier) < abs(value))


def zero_at_the_end(
    task: SegmentTask, t: float, x: Array, p: Array, options: Options, band: Array
) -> tuple[float, Array, Array, tuple[int, float, float]] | None:
    """Return the zero of a guard, to tolerance, next to the last point: time, x, x' and the crossing.

    If the equations are not finite beyond the zero of a guard, such as the outflow sqrt(h) of a tank whose mode is left
    at h = 0, an integrator approaches the zero without reaching it. If the rate is not finite or has no limit there, as
    of h' = -1/sqrt(h), the crossing is the last point: values and derivatives are those of one point, at which the
    derivatives of the state have been integrated.
    """
    e = task.equations
    try:
        x, xdot = completed(e, t, x, task.memory, p)
    except DaeHybridError:
        return None
    values, rates = (kernel(e, name)(t, x, task.memory, p)[0] for name in ("guards", "rates"))
    allowed = ZERO_TOLERANCES * options.allowed(e.variables, x)
    found = None
    for i in range(e.n_guards - e.n_singularities):
        if band[i] or e.directions[i] * values[i] > 0 or not values[i] * rates[i] < 0:
            continue
        dt = -float(values[i] / rates[i])
        if np.all(np.abs(dt * xdot) <= allowed) and (found is None or dt < found[0]):
            found = dt, i
    if found is None:
        return None
    for share in ZERO_SHARES:  # beyond the zero the equations may not be finite
        dt = share * found[0]
        with np.errstate(all="ignore"):
            there, rate = kernel(e, "complete")(t + dt, x + dt * xdot, task.memory, p)[:2]
        if np.all(np.isfinite(there)) and np.all(np.isfinite(rate)):
            h, moving = (kernel(e, name)(t + dt, there, task.memory, p)[0][found[1]] for name in ("guards", "rates"))
            is_onward = np.isfinite(moving) and moving * rates[found[1]] > 0
            if is_onward and has_limit((xdot, rates[found[1]]), (rate, moving), options.rtol):
                return t + dt, there, rate, (found[1], float(h), float(moving))
    return None


def has_limit(
    before: tuple[Array, float], at_zero: tuple[Array, float], rtol: float, *, vanishes: bool = True,
    negligible: float = 0.0,
) -> bool:  # fmt: skip
    """Whether the rates, of the state and of a guard, at its zero are a limit of those before.

    They agree to the square root of rtol, so that derivatives of one point can be used at the other, to a difference in
    norm that is `negligible`, or (`vanishes`) that of the guard is as small as that.
    """
    (xdot, rate), (other, moving) = before, at_zero
    shrinks = vanishes and 0 <= moving * math.copysign(1.0, rate) <= math.sqrt(rtol) * abs(rate)
    return shrinks or bool(np.linalg.norm(other - xdot) <= math.sqrt(rtol) * np.linalg.norm(xdot) + negligible)


def is_short(t0: float, t1: float) -> bool:
    """Whether an interval has the length of a few rounding errors."""
    return abs(t1 - t0) <= MIN_INTERVAL_ROUNDINGS * EPS * max(abs(t0), abs(t1))


def is_unresolved(t0: float, t1: float) -> bool:
    """Whether an interval is so short, relative to its times, that integrators lose digits of it or skip it."""
    return abs(t1 - t0) <= UNRESOLVED * EPS * max(abs(t0), abs(t1))


def are_coarse(t0: float, t1: float, steps: int, rtol: float) -> bool:
    """Whether the times of a run are too large for the sum of its steps."""
    return steps > 0 and EPS * abs(t0) * steps > LOST_SHARE * rtol * (t1 - t0)


def has_drifted(task: SegmentTask, t: float, x: Array, p: Array, options: Options) -> bool:
    """Whether a state has left its constraints by more than the tolerance."""
    e = task.equations
    drift = kernel(e, "drift")(t, x, task.memory, p)[0]
    allowed = options.allowed(e.variables, x)[: e.n_differential]
    return bool(np.any(np.abs(drift) > MAX_DRIFT * allowed))


def standing_still(task: SegmentTask, method: Method | str) -> SegmentOutcome:
    """Return the outcome of a segment of rounding length, which is not integrated."""
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
    """Return one segment: `run_segments` of a session without native events."""
    try:
        return SegmentRun(None, mode, task, session.integrate(task))
    except DaeHybridError as error:
        return SegmentRun(None, mode, task, None, error)


def longest_steps(steps: Array) -> Array:
    """Return the largest backward step from the end of each forward step; `steps` are the times of the forward steps.

    Where the adjoint is constant, as in the backward sweep before it meets an integrand that is a pulse, nothing else
    keeps the backward integration from stepping over details that the forward run has resolved, because only there the
    integrals are in the error test. A backward step is at most MAX_STEP_RATIO times the forward step in which it
    starts, and exceeds that of any earlier step by at most half the time since then.
    """
    h = np.diff(steps)
    if h.size < 3:
        return np.full(h.size, np.inf)
    h[-1] = max(h[-1], h[-2])  # cut off by the end
    grows = h[1:] >= MAX_STEP_RATIO * h[:-1]
    growth = int(np.argmin(grows)) if not grows.all() else h.size - 1
    h[: growth + 1] = h[growth]  # steps grow from nothing at the start, whatever the equations
    half = (steps[1:] - steps[0]) / 2
    return np.asarray(half + np.minimum.accumulate(MAX_STEP_RATIO * h - half))


def stretches(steps: Array) -> tuple[tuple[float, float], ...]:
    """Return these limits as (time, longest step) from the end down to each time, for stretches of similar steps."""
    limits = longest_steps(steps)
    if not np.all(np.isfinite(limits)):
        return ()
    least = np.minimum(limits, np.append(limits[0], limits[:-1]))  # from where each step starts
    parts = 1 + np.floor(np.log(limits / least) / np.log(STRETCH_RATIO)).astype(int)
    part = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    least = np.repeat(least, parts)
    starts = np.repeat(steps[:-1], parts) + 2 * least * (STRETCH_RATIO**part - 1)
    least *= STRETCH_RATIO**part
    level = np.floor(np.log(least) / np.log(STRETCH_RATIO))
    first = np.flatnonzero(np.append(True, level[1:] != level[:-1]))
    bounds = np.minimum.reduceat(least, first)
    return tuple(zip(starts[first][::-1].tolist(), bounds[::-1].tolist(), strict=True))
