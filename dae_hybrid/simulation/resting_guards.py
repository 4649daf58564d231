"""Guards that are at rest at zero when a mode is entered: lift-off, the end of sticking.

A contact holds a distance and its rate at zero, and opens when its force has vanished: the distance has a triple zero
where the next mode begins. Its value and rate there are noise: rounding if the state is projected onto the constraint,
the tolerance of the run if it is not. Noise must not trigger the guard, neither at once nor in the first steps, where a
cubic is smaller than the error of the integrator. Such a guard is armed once it has left zero by more than the accuracy
of the state, to the side given by its second or third derivative.

Zero to the accuracy of the state is decided by perturbing the state by its tolerances.

A body may also be at rest at the start of the run, such as a load in equilibrium on its spring. The guard is zero, and
its rate is a difference of equal forces, zero to their rounding. It is armed once it has left zero by more than the
accuracy of the state, on either side.

A guard whose rate is zero to the last bit, too, stays at zero, or leaves it by a higher derivative (`leaving_signs`). A
guard that a decaying state brings to zero comes to rest there during a segment; rounding moves it across (`settled`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.options import Options
from dae_hybrid.port.point import StatePoint
from dae_hybrid.port.segment_rules import kernel
from dae_hybrid.port.stiffness import reduced_jacobian, state_jacobian
from dae_hybrid.system.system import ModeSystem
from dae_hybrid.system.transition_map import STATE_ERROR_FACTOR, TransitionMap

#: a guard has left zero at this multiple of the change by the tolerances of the state
DEPARTURE_FACTOR = 10.0
#: finite-difference steps of the second and the third derivative of a guard, as shares of the time since the last event
SECOND_DERIVATIVE_STEP, THIRD_DERIVATIVE_STEP = 1e-6, 1e-4
#: a derivative by differences counts if it is larger than this multiple of its change when the steps are doubled, by
#: which one that is zero quadruples
TRUNCATION = 3.0
#: times, as shares of the duration of the run, at which it is seen to which side a guard leaves zero: the first, the
#: ratio of successive ones, and their number
FIRST_LOOK, LOOK_RATIO, LOOKS = 1e-6, 10**0.5, 9
#: lengths of the implicit steps by which it is seen whether a guard stays at zero; states up to which they are taken
SETTLING_LOOKS, SETTLING_RATIO, MAX_DENSE_SIZE = 10, 10.0, 400
#: relative perturbation that measures the terms of a rate; roundings of its terms, or of time, within which it is zero
TERMS_STEP, RATE_ROUNDINGS = 2.0**-26, 256.0


def patterns(n: int) -> tuple[Array, Array]:
    """Return two directions of perturbation; a term of one variable changes by 1 in norm, so that none cancels."""
    angles = 1.0 + 2.4 * np.arange(n)
    return np.cos(angles), np.sin(angles)


def at_rest(
    transitions: Mapping[int, TransitionMap],
    mode: ModeSystem,
    t: float,
    at: StatePoint,
    p: Array,
    options: Options,
    past: float,
) -> dict[int, tuple[float, float]]:
    """Return zero band and leaving sign of every guard that is at rest at zero when its mode is entered.

    Parameters
    ----------
    transitions : mapping of int to TransitionMap
        Candidates, by position among the guards of the mode.
    past : float
        Time since the previous event.

    A guard whose second or third derivative moves it to its firing side is excluded, unless it decides the side of a
    relation.
    """
    if not transitions or not past > 0:
        return {}
    e = mode.equations
    x = at.x[: e.n]
    moves = [side * options.allowed(e.variables, x) for side in patterns(e.n)]

    def guards(x: Array) -> Array:
        return kernel(e, "guards")(t, x, at.m, p)[0]

    def rates(x: Array, t: float = t) -> Array:
        return kernel(e, "rates")(t, x, at.m, p)[0]

    def bends(x: Array, t: float = t, past: float = past) -> Array:
        x, xdot, _ = kernel(e, "complete")(t, x, at.m, p)
        h = SECOND_DERIVATIVE_STEP * past
        later, earlier = (kernel(e, "rates")(t + s, x + s * xdot, at.m, p)[0] for s in (h, -h))
        return np.asarray(later - earlier) / (2 * h)

    def twists(x: Array, past: float = past) -> Array:
        x, xdot, _ = kernel(e, "complete")(t, x, at.m, p)
        h = THIRD_DERIVATIVE_STEP * past
        return np.asarray(bends(x + h * xdot, t + h, past) - bends(x - h * xdot, t - h, past)) / (2 * h)

    def known(of: Callable[[Array], Array]) -> tuple[Array, Array]:
        """Return a quantity of every guard and its change by the tolerances of the state."""
        here = of(x)
        with np.errstate(invalid="ignore"):  # a value that is not finite is not zero
            return here, np.hypot(*(of(x + move) - here for move in moves))

    value, reach = known(guards)
    candidates = [i for i in transitions if abs(value[i]) <= STATE_ERROR_FACTOR * reach[i]]
    if candidates:
        rate, of_rate = known(rates)
        with np.errstate(invalid="ignore"):
            by_time = abs(rates(x, t + RATE_ROUNDINGS * EPS * max(abs(t), past)) - rate)
        candidates = [i for i in candidates if abs(rate[i]) <= STATE_ERROR_FACTOR * of_rate[i] + by_time[i]]
    if not candidates:
        return {}
    found = {}
    (bend, of_bend), (twist, of_twist) = known(bends), known(twists)
    rounding = EPS / options.rtol * of_rate / (SECOND_DERIVATIVE_STEP * past)
    of_twist = of_twist + rounding / (THIRD_DERIVATIVE_STEP * past)
    time_error = max(SECOND_DERIVATIVE_STEP, options.rtol) * past
    of_bend = of_bend + rounding + time_error * abs(twist)
    with np.errstate(invalid="ignore"):
        coarse = TRUNCATION * np.abs(bends(x, past=2 * past) - bend)
        coarser = TRUNCATION * np.abs(twists(x, past=2 * past) - twist)
    for i in candidates:
        away = 0.0
        if abs(bend[i]) > STATE_ERROR_FACTOR * of_bend[i] + coarse[i]:
            away = np.sign(bend[i])
        elif abs(twist[i]) > STATE_ERROR_FACTOR * of_twist[i] + coarser[i]:
            away = np.sign(twist[i])
        if away and (transitions[i].direction * away <= 0 or transitions[i].is_sided):
            found[i] = float(max(DEPARTURE_FACTOR * reach[i], 2 * abs(value[i]))), float(away)
    return found


def _by_tolerances(
    mode: ModeSystem, quantity: str, t: float, at: StatePoint, p: Array, options: Options
) -> tuple[Array, Array]:
    """Return the guards at a point, or their rates, and their changes by the tolerances of the state."""
    e = mode.equations
    x, guards = at.x[: e.n], kernel(e, quantity)
    here = guards(t, x, at.m, p)[0]
    moves = [guards(t, x + side * options.allowed(e.variables, x), at.m, p)[0] for side in patterns(e.n)]
    return here, np.hypot(*(move - here for move in moves))


def settled(
    mode: ModeSystem, index: int, t: float, at: StatePoint, p: Array, options: Options, duration: float, largest: float,
    *, back: bool,
) -> float | None:  # fmt: skip
    """Return the zero band of a guard that has come to rest at zero, to the accuracy of the state, else None.

    Neither its value nor what the motion makes of it until the end of the run is more than that accuracy, but its
    `largest` magnitude was: one that never exceeds it is noise. `back` says that it crosses against its direction: then
    what its rate makes of it is enough.
    """
    e = mode.equations
    guards, reaches = _by_tolerances(mode, "guards", t, at, p, options)
    rates, of_rates = _by_tolerances(mode, "rates", t, at, p, options)
    here, reach, rate = float(guards[index]), float(reaches[index]), float(rates[index])
    known = STATE_ERROR_FACTOR * reach
    if not reach > 0 or not abs(here) <= known:
        return None
    if not (back and abs(rate) * duration <= known):
        if not (abs(rate) <= STATE_ERROR_FACTOR * of_rates[index] and known < largest) or e.n > MAX_DENSE_SIZE:
            return None
        if not _is_linear(mode, index, t, at, p, options):
            return None
        if not _stays(mode, index, t, at, p, duration, DEPARTURE_FACTOR * reach):
            return None
    return max(DEPARTURE_FACTOR * reach, 2 * abs(here))


def _is_linear(mode: ModeSystem, index: int, t: float, at: StatePoint, p: Array, options: Options) -> bool:
    """Whether the rate of a guard is linear in the state about a point, to half of its change.

    That of a tank that empties by itself, h' = -sqrt(h), is not, or is not even defined: such a guard reaches zero.
    """
    e = mode.equations
    x = at.x[: e.n]
    with np.errstate(all="ignore"):
        for side in patterns(e.n):
            move = DEPARTURE_FACTOR * side * options.allowed(e.variables, x)
            here, above, below = (kernel(e, "rates")(t, y, at.m, p)[0][index] for y in (x, x + move, x - move))
            if not abs(above + below - 2 * here) <= abs(above - below) / 2:
                return False
    return True


def _stays(mode: ModeSystem, index: int, t: float, at: StatePoint, p: Array, duration: float, band: float) -> bool:
    """Whether the linearised motion keeps a guard within a band about zero until the end of the run.

    The rate of a state that decays fast is its error times the rate of the decay. Linearly implicit steps of all
    lengths damp it; a motion that goes on, such as that of the value that the state follows, remains.
    """
    e, ny, moment = mode.equations, mode.differential.size, FIRST_LOOK * duration
    x = at.x[: e.n]

    def motion(t: float) -> tuple[Array, float]:
        xdot = kernel(e, "complete")(t, x, at.m, p)[1]
        return xdot[:ny], float(kernel(e, "guards")(t, x, at.m, p)[0][index])

    with np.errstate(all="ignore"):
        (xdot, here), (later, there) = motion(t), motion(t + moment)
        jacobian = reduced_jacobian(state_jacobian(e, t, x, at.m, p), ny)
        for look in range(SETTLING_LOOKS):
            h = duration * SETTLING_RATIO**-look
            moved, rates = x.copy(), h * xdot + h**2 * (later - xdot) / moment
            try:
                moved[:ny] += np.linalg.solve(np.eye(ny) - h * jacobian, rates)
            except np.linalg.LinAlgError:
                return False
            value = kernel(e, "guards")(t, kernel(e, "complete")(t, moved, at.m, p)[0], at.m, p)[0][index]
            if not abs(value + h * (there - here) / moment) <= band:
                return False
    return True


def leaving_signs(
    mode: ModeSystem, t: float, at: StatePoint, p: Array, options: Options, duration: float
) -> tuple[Array, Array]:
    """Return the signs of the guards shortly after a point, 0 for one that stays, and their bands of zero by accuracy.

    The signs are found by explicit steps along the motion. A sign counts if it is seen at two successive times, the
    first such: it is that of the first derivative that is not zero. Until a guard that leaves so slowly has left the
    band, errors of the state are larger than it is.
    """
    e = mode.equations
    x, memory, begin = at.x[: e.n], at.m, t
    found, before = np.zeros(len(mode.guarded)), np.zeros(len(mode.guarded))
    for look in range(LOOKS):
        h, rates = begin + FIRST_LOOK * LOOK_RATIO**look * duration - t, list[Array]()
        with np.errstate(all="ignore"):
            for weight in (0.0, 0.5, 0.5, 1.0):  # the classical method of fourth order
                moved = x + weight * h * rates[-1] if rates else x
                rates.append(kernel(e, "complete")(t + weight * h, moved, memory, p)[1])
            t, x = t + h, x + h * np.average(rates, axis=0, weights=(1, 2, 2, 1))
            whole, _ = mode.complete(t, x, rates[-1], memory, p)
            _, guards, _, sizes = mode.kernels["entry"](t, whole, memory, p)
            signs = np.where(np.abs(guards) > RATE_ROUNDINGS * EPS * sizes, np.sign(guards), 0.0)
        signs[~np.isfinite(guards)] = 0.0
        found = np.where((found == 0) & (signs == before), signs, found)
        before = signs
    return found, DEPARTURE_FACTOR * _by_tolerances(mode, "guards", begin, at, p, options)[1]


def still_at_start(
    mode: ModeSystem, t: float, at: StatePoint, p: Array, options: Options, duration: float
) -> dict[int, float]:
    """Return zero bands of the guards that are at rest at the start of a run, by position among those of the mode.

    Guard and rate are zero to the rounding of their terms. Guards whose rate is zero to the last bit are excluded:
    nothing moves them.
    """
    zero = np.isfinite(at.sizes) & np.isfinite(at.rates) & (np.abs(at.guards) <= RATE_ROUNDINGS * EPS * at.sizes)
    if not np.any(zero & (at.rates != 0)):
        return {}
    e = mode.equations
    x, sizes = at.x[: e.n], (e.n, at.m.size, p.size, 1)
    terms = np.zeros(len(mode.guarded))
    with np.errstate(invalid="ignore"):  # a value that is not finite is not at rest
        for pattern in patterns(sum(sizes)):
            by_x, by_m, by_p, by_t = np.split(1.0 + TERMS_STEP * pattern, np.cumsum(sizes)[:-1])
            moved = kernel(e, "rates")(t * by_t[0], x * by_x, at.m * by_m, p * by_p)[0][: terms.size]
            terms = np.hypot(terms, (moved - at.rates) / TERMS_STEP)
        places = np.flatnonzero(zero & (at.rates != 0) & (np.abs(at.rates) <= RATE_ROUNDINGS * EPS * terms))
    if not places.size:
        return {}
    _, reach = _by_tolerances(mode, "guards", t, at, p, options)
    bands = np.maximum(DEPARTURE_FACTOR * reach, RATE_ROUNDINGS * EPS * terms * duration)
    return {i: float(bands[i]) for i in places.tolist()}
