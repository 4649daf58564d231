"""Grazing: crossings whose existence or rate depends on the error of the run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.errors import DaeHybridError, EventError, GrazingError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.crossings import Turn
from dae_hybrid.port.records import EventRecord
from dae_hybrid.port.segment_rules import SAME_INSTANT, completed
from dae_hybrid.port.stiffness import reduced_jacobian, state_jacobian
from dae_hybrid.system.derivative_conditions import Conditions
from dae_hybrid.system.system import ModeSystem
from dae_hybrid.system.transition_map import TransitionMap, schedule_state
from dae_hybrid.trajectory.trajectory import Segment, Trajectory

#: a crossing is shallow if the guard stays within this multiple of its accuracy beyond zero
SHALLOW_FACTOR = 100.0
#: backward difference of the guard's rate, as a share of the run
RATE_DIFFERENCE_STEP = 1e-6
#: multiple of the predicted time of the extremum at which the sign of the rate is checked
EXTREMUM_MARGIN = 1.5
#: the unit of time is that in which the guard leaves the shallow range at its rate: times before the event at which the
#: solution is checked, steps per unit beyond the event, and units that are integrated there
TIMES_BEFORE, STEPS_PER_UNIT, UNITS_BEYOND = (0.5, 1.0, 2.0, 4.0), 16, 4
#: samples of a guard around its extremum, and refinements of the interval around the smallest one
SAMPLES, REFINEMENTS = 17, 5
#: a guard is far from zero above the sum of this share of its terms and this number of absolute tolerances
CLOSE_SHARE, FAR_TOLERANCES = 1e-3, 1e3
#: states up to which a dense matrix is factorised for the check
MAX_DENSE_SIZE = 400


def refuse_shallow(trajectory: Trajectory, conditions: Conditions) -> None:
    """Refuse derivatives of event times that another run of the same accuracy might not have."""
    for event in trajectory.uncertified:
        transition = trajectory.system.transitions[event.index]
        if not event.direction or event.follows or transition.is_kink or transition.is_empty:
            continue
        if _comes_to_rest(trajectory, event):
            continue
        depth, turn = _parabola(trajectory, event)
        if depth > SHALLOW_FACTOR * accuracy(trajectory, event):
            continue
        shallow = SHALLOW_FACTOR * accuracy(trajectory, event, turn)
        if depth > shallow or not _turns(trajectory, event, turn, shallow):
            continue
        place: dict[str, Any] = {"transition": event.transition, "mode": event.source, "time": event.time}
        if _crosses(trajectory, event, turn, shallow):
            error: EventError = EventError(
                "The guard crosses zero well, but its rate is that of fast states, which the run does not resolve: "
                "derivatives of the time are wrong by as much.",
                **place,
                remedy="State the guard by slow quantities (what the fast states follow), or tighten rtol and atol.",
            )
        else:
            error = GrazingError(
                f"The guard goes beyond zero by about {depth:.1e}, within the accuracy of the run: whether it crosses "
                "is chance.",
                **place,
                remedy="Tighten rtol and atol, or change the parameters away from the grazing point.",
            )
        conditions.fail(error)


def refuse_singular(trajectory: Trajectory, conditions: Conditions) -> None:
    """Refuse a backward sweep from an event at which the rates have no limit, or come to rest.

    Events that graze are refused as such.
    """
    reason, resting = trajectory.singularity, filter(partial(_comes_to_rest, trajectory), trajectory.uncertified)
    if not reason and (event := next(resting, None)) is not None:
        reason = f"At the event of '{event.transition}', t = {event.time:.9g}, the motion comes to rest on the surface."
    if not reason:
        return
    for event in trajectory.events:
        trajectory.system.linearise(event, trajectory.parameters, trajectory.t_span[0], conditions)
    refuse_shallow(trajectory, conditions)
    conditions.fail(
        EventError(
            f"{reason} A backward sweep would start there, where its coefficients are infinite.",
            remedy="Use forward_sensitivity, whose derivatives are integrated up to that point.",
        )
    )


def _comes_to_rest(trajectory: Trajectory, event: EventRecord) -> bool:
    """See `TransitionMap.comes_to_rest`."""
    system, clock = trajectory.system, schedule_state(trajectory.t_span[0], event.count)
    transition = system.transitions[event.index]
    return transition.comes_to_rest(system.modes[transition.source], event, trajectory.parameters, clock)


def close_to_zero(trajectory: Trajectory, mode: ModeSystem, guards: Array, sizes: Array) -> NDArray[np.bool_]:
    """Return which guards of a mode, with the sizes of their terms, are not far from zero."""
    away = FAR_TOLERANCES * float(max(trajectory.options.absolute(mode.differential), default=0.0))
    return np.asarray(np.abs(guards) <= CLOSE_SHARE * sizes + away)


def refuse_near_misses(trajectory: Trajectory, conditions: Conditions) -> None:
    """Refuse derivatives of a run with a guard's extremum within the accuracy of the run from zero.

    The extremum is within a segment, or where another transition ends it: without that the guard would turn there.
    """
    for segment in _ended(trajectory):
        for index, value in _touched(trajectory, segment):
            _refuse_miss(trajectory.system.transitions[index], segment.mode, segment.t_end, value, conditions)
    for index, turn in trajectory.turns:
        mode = trajectory.system.modes[index]
        transition = trajectory.system.transitions[mode.guarded[turn.guard]]
        if not transition.matters:
            continue
        begin, end = turn.begin, turn.end
        first, last = np.searchsorted(trajectory.parts.starts, (begin, end), side="right")
        for segment in (trajectory.segments[k] for k in range(max(int(first) - 1, 0), int(last))):
            if segment.mode is mode and segment.t_start < end and begin < segment.t_end:
                missed = _missed(trajectory, segment, turn)
                if missed is not None:
                    _refuse_miss(transition, mode, *missed, conditions)


def _ended(trajectory: Trajectory) -> list[Segment]:
    """Return the segments at whose end a guard may touch zero: those before uncertified events, and the last one."""
    times = [event.time for event in trajectory.uncertified if not event.order]
    found = np.unique(trajectory.owners(np.array(times), "left")).tolist() if times else []
    return [*(trajectory.segments[k] for k in found), trajectory.segments[-1]]


def _touched(trajectory: Trajectory, segment: Segment) -> Iterator[tuple[int, float]]:
    """Yield transitions whose guards, to the accuracy of the run, touch zero at the end of a segment, and their values.

    Without the event they would turn there: a guard that settles at zero does not. Those of the transitions that fire
    there go well beyond zero, see `refuse_shallow`; a guard that comes at a rate crosses, see `conditions.ties`.
    """
    system, mode, t, p, m = trajectory.system, segment.mode, segment.t_end, trajectory.parameters, segment.memory
    if not mode.guarded or not t > segment.t_start:
        return
    entry = mode.kernels["entry"]
    _, guards, rates, sizes = entry(t, segment.x_end, m, p)
    close = np.flatnonzero(close_to_zero(trajectory, mode, guards, sizes))
    if not close.size:
        return
    h = RATE_DIFFERENCE_STEP * (trajectory.final[0] - trajectory.t_span[0])
    bends = np.abs(rates - entry(t - h, segment.x_end - h * segment.xdot_end, m, p)[2]) / h
    times, near = trajectory.parts.event_times, SAME_INSTANT * max(abs(t), t - trajectory.t_span[0])
    events = trajectory.events[np.searchsorted(times, t - near) : np.searchsorted(times, t + near, side="right")]
    fired = {system.transitions[event.index].trigger_index for event in events}
    for i in close.tolist():
        index = mode.guarded[i]
        if index in fired or not system.transitions[index].matters:
            continue
        place = GuardCrossing(index, t, 0.0, 0.0, 0, segment.x_end, m)
        shallow = SHALLOW_FACTOR * accuracy(trajectory, place)
        if not abs(guards[i]) <= shallow or not (bends[i] > 0 and rates[i] ** 2 <= 2 * bends[i] * shallow):
            continue
        before = np.abs(_guard_along(segment, i, np.linspace(segment.t_start, t, SAMPLES), p))
        beyond = _guards_beyond(mode, t, segment.x_end, m, p, math.sqrt(2 * shallow / bends[i]))
        if before.max() > shallow and any(abs(values[i]) > shallow for values in beyond):
            yield index, float(guards[i])


def _guard_along(segment: Segment, i: int, times: Array, p: Array) -> Array:
    """Return a guard of a segment's mode at times within it."""
    rows = zip(times.tolist(), segment.dense(times), strict=True)
    return np.array([segment.mode.kernels["entry"](t, x, segment.memory, p)[1][i] for t, x in rows])


def _missed(trajectory: Trajectory, segment: Segment, turn: Turn) -> tuple[float, float] | None:
    """Return time and value of a guard's extremum in a segment if it is within the accuracy of the run from zero.

    A guard that is at zero, to that accuracy, from the start of the segment or until its end is at rest and excluded.
    """
    mode, p, m = segment.mode, trajectory.parameters, segment.memory

    begin, end = max(turn.begin, segment.t_start), min(turn.end, segment.t_end)
    for _ in range(REFINEMENTS):
        times = np.linspace(begin, end, SAMPLES)
        values = _guard_along(segment, turn.guard, times, p)
        if values.min() < 0 < values.max():  # it crosses
            return None
        i = int(np.abs(values).argmin())
        begin, end = times[max(i - 1, 0)], times[min(i + 1, SAMPLES - 1)]
    t, value = float(times[i]), float(values[i])
    x = segment.dense(times[i : i + 1])[0]
    place = GuardCrossing(mode.guarded[turn.guard], t, 0.0, 0.0, 0, x, m)
    shallow = SHALLOW_FACTOR * accuracy(trajectory, place, (turn.end - turn.begin) / 2)
    if not abs(value) <= shallow:
        return None
    sides = (np.linspace(segment.t_start, t, SAMPLES), np.linspace(t, segment.t_end, SAMPLES))
    return (
        (t, value)
        if all(np.abs(_guard_along(segment, turn.guard, side, p)).max() > shallow for side in sides)
        else None
    )


def _refuse_miss(transition: TransitionMap, mode: ModeSystem, t: float, value: float, conditions: Conditions) -> None:
    conditions.fail(
        GrazingError(
            f"The guard turns at {value:.1e} without crossing zero, within the accuracy of the run: whether it "
            "crosses is chance.",
            transition=transition.name,
            mode=mode.name,
            time=t,
            remedy="Tighten rtol and atol, or change the parameters away from the grazing point.",
        )
    )


def _parabola(trajectory: Trajectory, event: EventRecord) -> tuple[float, float]:
    """Return the distance of a guard's extremum from zero and its time after the event.

    Both are those of the parabola through the event with the guard's rate and second derivative.
    """
    h = RATE_DIFFERENCE_STEP * (trajectory.final[0] - trajectory.t_span[0])
    bend = (event.rate - _rate(trajectory, event, -h)) / h if h > 0 else 0.0
    if not bend:
        return float("inf"), float("inf")
    return event.rate**2 / (2 * abs(bend)), -event.rate / bend


def _turns(trajectory: Trajectory, event: EventRecord, turn: float, shallow: float) -> bool:
    """Whether the rate of a guard changes sign at the extremum of its parabola.

    A guard that drops steeply, such as the voltage of an empty battery, has such a large second derivative that its
    parabola was at zero just before, although the guard has come from far away. The tangent of the event is therefore
    evaluated as far as the guard needs, at its rate, to leave the shallow range.
    """
    reach = 2 * shallow / abs(event.rate)
    after = EXTREMUM_MARGIN * turn
    while abs(after) < EXTREMUM_MARGIN * reach:
        if not _rate(trajectory, event, after) * event.rate > 0:
            return True
        after *= 2
    return not _rate(trajectory, event, math.copysign(EXTREMUM_MARGIN * reach, turn)) * event.rate > 0


def _crosses(trajectory: Trajectory, event: EventRecord, turn: float, shallow: float) -> bool:
    """Whether the solution itself takes the guard out of the shallow range.

    Rate and second derivative at the event contain the residual error of fast modes, multiplied by their decay rate and
    its square, which may dominate both. Before the event the recorded solution is used; beyond it the mode is
    integrated by linearly implicit steps, which damp fast modes, as far as its equations are defined.
    """
    mode = trajectory.system.modes[trajectory.system.transitions[event.index].source]
    i, p, m = mode.guarded.index(event.index), trajectory.parameters, event.memory_minus
    reach, side = 2 * shallow / abs(event.rate), math.copysign(1.0, event.rate)
    if turn < 0:
        last = int(trajectory.owners(np.array([event.time]), "left")[0])
        found = (trajectory.segments[k] for k in range(last, -1, -1))
        segment = next((s for s in found if s.t_end == event.time and s.mode is mode), None)
        if segment is None:  # the mode was entered at this instant
            return False
        times = np.maximum(event.time - reach * np.array(TIMES_BEFORE), segment.t_start)
        guards = [mode.kernels["entry"](t, x, m, p)[1][i] for t, x in zip(times, segment.dense(times), strict=True)]
        return bool(min(side * np.array(guards)) < -shallow)
    for values in _guards_beyond(mode, event.time, event.x_minus, m, p, reach):
        if not side * values[i] <= shallow:
            return bool(side * values[i] > shallow)
    return False


def _guards_beyond(mode: ModeSystem, t: float, x: Array, m: Array, p: Array, unit: float) -> Iterator[Array]:
    """Yield the guards of a mode on the way beyond a point, for a few units of time, while its equations are defined.

    The steps are linearly implicit: fast modes are damped. There are none of large modes.
    """
    e, ny, h = mode.equations, mode.differential.size, unit / STEPS_PER_UNIT
    if e.n > MAX_DENSE_SIZE:
        return
    for later in (t + h * np.arange(1, UNITS_BEYOND * STEPS_PER_UNIT + 1)).tolist():
        xdot = mode.kernels["entry"](later, x, m, p)[0]
        try:
            decay = np.eye(ny) - h * reduced_jacobian(state_jacobian(e, later, x[: e.n], m, p), ny)
            moved = x[: e.n].copy()
            moved[:ny] += h * np.linalg.solve(decay, xdot[:ny])
            x = mode.complete(later, *completed(e, later, moved, m, p), m, p)[0]
        except (np.linalg.LinAlgError, DaeHybridError):
            return
        yield mode.kernels["entry"](later, x, m, p)[1]


def _rate(trajectory: Trajectory, event: EventRecord, after: float) -> float:
    """Return the rate of a guard some time after its event, along the tangent there."""
    system = trajectory.system
    mode = system.modes[system.transitions[event.index].source]
    x = event.x_minus + after * event.xdot_minus
    rates = mode.kernels["entry"](event.time + after, x, event.memory_minus, trajectory.parameters)[2]
    return float(rates[mode.guarded.index(event.index)])


@dataclass(frozen=True, slots=True)
class GuardCrossing:
    """An event of a guard, reduced to the data of these checks."""

    index: int
    time: float
    rate: float
    rate_scale: float
    count: int
    x_minus: Array
    memory_minus: Array


def accuracy(trajectory: Trajectory, event: EventRecord | GuardCrossing, after: float = 0.0) -> float:
    """Return the accuracy of a guard by the tolerances of the states, or by their remainder after a time `after`.

    An error that a stiff equation damps before the guard's extremum does not decide whether the guard crosses.
    """
    system = trajectory.system
    transition = system.transitions[event.index]
    mode = system.modes[transition.source]
    start = schedule_state(trajectory.t_span[0], event.count)
    point = (event.time, event.x_minus, event.memory_minus, trajectory.parameters)
    ny = mode.differential.size
    by_y = transition.guard_derivatives(mode, *point, start)[0][:ny]
    allowed = trajectory.options.allowed(mode.differential, event.x_minus[:ny])
    found = float(abs(by_y) @ allowed)
    e = mode.equations
    if after and e.n <= MAX_DENSE_SIZE:
        with suppress(np.linalg.LinAlgError):
            jacobian = state_jacobian(e, event.time, event.x_minus[: e.n], event.memory_minus, trajectory.parameters)
            decay = np.eye(ny) - abs(after) * reduced_jacobian(jacobian, ny)
            left = float(abs(np.linalg.solve(decay.T, by_y)) @ allowed)
            return min(found, left) if math.isfinite(left) else found
    return found
