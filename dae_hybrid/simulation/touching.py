"""Bounds that are touched but not exceeded.

A bound is violated if it is exceeded by more than the accuracy of the run. A share that reaches 1 at its extremum, or a
variable that starts at its bound, exceeds it by a rounding error or not at all, by chance. The largest excess is
predicted from value, rate and second derivative of the guard; the accuracy follows from the tolerances of the states
and of the variable itself. A crossing too shallow to be told from the error of the run
(`dae_hybrid.trajectory.grazing`) does not count.
"""

from __future__ import annotations

import math

import numpy as np

from dae_hybrid.numerics.arrays import Array
from dae_hybrid.options import Options
from dae_hybrid.port.point import StatePoint
from dae_hybrid.port.segment_rules import kernel
from dae_hybrid.simulation.resting_guards import patterns
from dae_hybrid.system.system import ModeSystem
from dae_hybrid.system.transition_map import TransitionMap
from dae_hybrid.trajectory.grazing import RATE_DIFFERENCE_STEP, SHALLOW_FACTOR


def touched(
    transition: TransitionMap,
    mode: ModeSystem,
    t: float,
    at: StatePoint,
    p: Array,
    options: Options,
    span: tuple[float, float],
) -> float | None:
    """Return the zero band of a bound that is at its threshold and about to leave it inwards, otherwise None."""
    i, inside = mode.guarded.index(transition.index), -transition.direction
    xdot, guards, rates = mode.kernels["entry"](t, at.x, at.m, p)[:3]
    limit = SHALLOW_FACTOR * _accuracy(transition, mode, t, at, p, options)
    if not abs(guards[i]) <= limit:
        return None
    h, left = RATE_DIFFERENCE_STEP * (span[1] - span[0]), span[1] - t
    ahead = mode.kernels["entry"](t + h, at.x + h * xdot, at.m, p)[2][i]
    value, rate, bend = inside * guards[i], inside * rates[i], inside * (ahead - rates[i]) / h
    turn = left  # time of the largest excess
    if rate < 0 < bend:
        turn = min(left, -rate / bend)
    elif rate >= 0 and (bend >= 0 or rate**2 > -2 * bend * limit):  # leaves inwards
        turn = 0.0
    deepest = min(value, value + rate * turn + bend * turn**2 / 2)
    return 2 * limit if -limit <= deepest < math.inf else None


def _accuracy(
    transition: TransitionMap, mode: ModeSystem, t: float, at: StatePoint, p: Array, options: Options
) -> float:
    """Return the accuracy of a bound's guard by the tolerances of its arguments."""
    e = mode.equations
    i, x = mode.guarded.index(transition.index), at.x[: e.n]
    here = kernel(e, "guards")(t, x, at.m, p)[0][i]
    allowed = options.allowed(e.variables, x)
    found = float(np.hypot(*(kernel(e, "guards")(t, x + s * allowed, at.m, p)[0][i] - here for s in patterns(e.n))))
    if transition.bound is not None:
        of_variable = mode.variables[transition.bound.variable]
        own = options.allowed(mode.variables, at.x[: mode.variables.size])[of_variable]
        found = max(found, float(own[transition.bound.entry]))
    return found if math.isfinite(found) else 0.0
