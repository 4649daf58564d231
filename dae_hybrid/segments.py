"""What sessions of all adapters do alike with a segment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dae_hybrid.codegen import Kernel
from dae_hybrid.errors import DaeHybridError
from dae_hybrid.failures import unsolved
from dae_hybrid.integrator import Array, Equations, SegmentOutcome, SegmentTask, Session
from dae_hybrid.journey import Journey, Passage
from dae_hybrid.options import Options

#: a state that is kept on constraints is looked at after this many steps, and brought back where it has left them by
#: this many tolerances (measured on a pendulum: from 1 on the error is that of the integration)
DRIFT_LOOK, DRIFT = 100, 1.0
#: intervals up to this many roundings long are not integrated
SHORTEST = 8
#: Newton's iteration ends at this correction, relative to the size of the terms, or has failed after so many
CONVERGED, SOLVES = 1e-11, 10
#: backward steps may be longer than forward ones by this factor; stretches join steps within a factor
LONGER, SIMILAR = 3.0, 4.0
EPS = float(np.finfo(float).eps)


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


def is_short(t0: float, t1: float) -> bool:
    """Whether an interval is nothing but rounding."""
    return abs(t1 - t0) <= SHORTEST * EPS * max(abs(t0), abs(t1))


def has_drifted(task: SegmentTask, t: float, x: Array, p: Array, options: Options) -> bool:
    """Whether a state has left its constraints by more than the tolerance."""
    e = task.equations
    drift = kernel(e, "drift")(t, x, task.memory, p)[0]
    allowed = options.allowed(e.variables, x)[: e.n_differential]
    return bool(np.any(np.abs(drift) > DRIFT * allowed))


def standing_still(task: SegmentTask, method: str) -> SegmentOutcome:
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


def one_segment(session: Session, task: SegmentTask, journey: Journey) -> Passage:
    """`march` of a session that leaves every transition to others."""
    try:
        return Passage(None, journey.mode, task, session.integrate(task))
    except DaeHybridError as error:
        return Passage(None, journey.mode, task, None, error)


def longest_steps(steps: Array) -> Array:
    """How long a backward step may be that starts within each of the forward steps between these times.

    Where the adjoint stands still, as before an integrand that is a pulse has been met, nothing else keeps the backward
    pass from stepping over what the forward run has resolved, because there the integrals are in the error test. No two
    steps in a row reach farther into shorter steps than twice LONGER of them.
    """
    h = np.diff(steps)
    if h.size < 3:
        return np.full(h.size, np.inf)
    h[-1] = max(h[-1], h[-2])  # cut off by the end
    growth = int(np.argmax(h[1:] < h[:-1])) if np.any(h[1:] < h[:-1]) else h.size - 1
    h[: growth + 1] = h[growth]  # steps grow from nothing at the start, whatever the equations
    half = (steps[1:] - steps[0]) / 2
    return np.asarray(half + np.minimum.accumulate(LONGER * h - half))


def stretches(steps: Array) -> tuple[tuple[float, float], ...]:
    """The same as (time, longest step) from the end down to each time, for stretches of similar steps."""
    limits = longest_steps(steps)
    if not np.all(np.isfinite(limits)):
        return ()
    level = np.floor(np.log(limits) / np.log(SIMILAR))
    first = np.flatnonzero(np.append(True, level[1:] != level[:-1]))
    bounds = np.minimum.reduceat(limits, first)
    return tuple(zip(steps[first][::-1].tolist(), bounds[::-1].tolist(), strict=True))
