"""Crossings whose existence, or rate, only the accuracy of the run decides."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from dae_hybrid.errors import EventError, GrazingError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.crossings import Turn
from dae_hybrid.port.records import EventRecord
from dae_hybrid.port.segment_rules import completed
from dae_hybrid.port.stiffness import reduced_jacobian, state_jacobian
from dae_hybrid.system.derivative_conditions import Conditions
from dae_hybrid.system.system import ModeSystem
from dae_hybrid.system.transition_map import TransitionMap, clock
from dae_hybrid.trajectory.trajectory import Segment, Trajectory

#: a guard that goes no farther beyond zero than so many tolerances may as well not cross
SHALLOW = 100.0
#: its rate is looked at this share of the run before
BEFORE = 1e-6
#: and so many times as far away as a parabola says it turns, to see whether it does
BEYOND = 1.5
#: when the solution is looked at before an event, in times that the guard needs to get beyond what is shallow; in how
#: many steps of such a time it is followed beyond the event, and for how many of them
EARLIER, STEPS, FAR = (0.5, 1.0, 2.0, 4.0), 16, 4
#: a guard that turns is looked at so often in a time, and in the parts of it next to where it is smallest, so often
LOOKS, NARROWER = 17, 5
#: states of which a dense matrix may be factorised for that
MOST = 400


def refuse_shallow(trajectory: Trajectory, conditions: Conditions) -> None:
    """Refuse derivatives of event times that another run as accurate would not have."""
    for event in trajectory.uncertified:
        if not event.direction or event.follows or trajectory.system.transitions[event.index].is_kink:
            continue
        depth, turn = _parabola(trajectory, event)
        if depth > SHALLOW * accuracy(trajectory, event):
            continue
        shallow = SHALLOW * accuracy(trajectory, event, turn)
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
        conditions.refuse(error)


def refuse_near_misses(trajectory: Trajectory, conditions: Conditions) -> None:
    """Refuse derivatives of a run in which a guard turns so close to zero that another run as accurate has an event."""
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


def _missed(trajectory: Trajectory, segment: Segment, turn: Turn) -> tuple[float, float] | None:
    """When, and how far from zero, a guard turns in a segment, if that is within the accuracy of the run.

    Not one that is at zero, to that accuracy, from the start of the segment on, or from there on to its end: it rests.
    """
    mode, p, m = segment.mode, trajectory.parameters, segment.memory

    def guards(times: Array) -> Array:
        rows = zip(times.tolist(), segment.dense(times), strict=True)
        return np.array([mode.kernels["entry"](t, x, m, p)[1][turn.guard] for t, x in rows])

    begin, end = max(turn.begin, segment.t_start), min(turn.end, segment.t_end)
    for _ in range(NARROWER):
        times = np.linspace(begin, end, LOOKS)
        values = guards(times)
        if values.min() < 0 < values.max():  # it crosses
            return None
        i = int(np.abs(values).argmin())
        begin, end = times[max(i - 1, 0)], times[min(i + 1, LOOKS - 1)]
    t, value = float(times[i]), float(values[i])
    x = segment.dense(times[i : i + 1])[0]
    place = Crossing(mode.guarded[turn.guard], t, 0.0, 0.0, 0, x, m)
    shallow = SHALLOW * accuracy(trajectory, place, (turn.end - turn.begin) / 2)
    if not abs(value) <= shallow:
        return None
    sides = (np.linspace(segment.t_start, t, LOOKS), np.linspace(t, segment.t_end, LOOKS))
    return (t, value) if all(np.abs(guards(side)).max() > shallow for side in sides) else None


def _refuse_miss(transition: TransitionMap, mode: ModeSystem, t: float, value: float, conditions: Conditions) -> None:
    conditions.refuse(
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
    """How far a guard gets beyond zero, or had been on this side, and how long after its event it turns.

    By a parabola with its rate and bend.
    """
    h = BEFORE * (trajectory.final[0] - trajectory.t_span[0])
    bend = (event.rate - _rate(trajectory, event, -h)) / h if h > 0 else 0.0
    if not bend:
        return float("inf"), float("inf")
    return event.rate**2 / (2 * abs(bend)), -event.rate / bend


def _turns(trajectory: Trajectory, event: EventRecord, turn: float, shallow: float) -> bool:
    """Whether the rate of a guard changes sign where, by its parabola, the guard turns.

    A guard that falls down a cliff, such as the voltage of an empty battery, bends so sharply that its parabola was at
    zero a moment before, though it has come from far away. It is followed, at the rates of the event, as far as its
    own rate needs to get beyond what is shallow.
    """
    reach = 2 * shallow / abs(event.rate)
    after = BEYOND * turn
    while abs(after) < BEYOND * reach:
        if not _rate(trajectory, event, after) * event.rate > 0:
            return True
        after *= 2
    return not _rate(trajectory, event, math.copysign(BEYOND * reach, turn)) * event.rate > 0


def _crosses(trajectory: Trajectory, event: EventRecord, turn: float, shallow: float) -> bool:
    """Whether the guard was, or gets, farther from zero than what is shallow, by the solution itself.

    Rate and bend at the event have in them what the integrator has left of fast modes, times their pace and its square:
    that may be all there is. Before the event the solution is on record; beyond it the mode goes on in
    linearly implicit steps, which take fast modes away.
    """
    mode = trajectory.system.modes[trajectory.system.transitions[event.index].source]
    i, e, p, m = mode.guarded.index(event.index), mode.equations, trajectory.parameters, event.memory_minus
    reach, side = 2 * shallow / abs(event.rate), math.copysign(1.0, event.rate)
    if turn < 0:
        last = int(trajectory.owners(np.array([event.time]), "left")[0])
        found = (trajectory.segments[k] for k in range(last, -1, -1))
        segment = next(s for s in found if s.t_end == event.time and s.mode is mode)
        times = np.maximum(event.time - reach * np.array(EARLIER), segment.t_start)
        guards = [mode.kernels["entry"](t, x, m, p)[1][i] for t, x in zip(times, segment.dense(times), strict=True)]
        return bool(min(side * np.array(guards)) < -shallow)
    if e.n > MOST:
        return False
    x, ny, h = event.x_minus, mode.differential.size, reach / STEPS
    for t in (event.time + h * np.arange(1, FAR * STEPS + 1)).tolist():
        xdot = mode.kernels["entry"](t, x, m, p)[0]
        try:
            decay = np.eye(ny) - h * reduced_jacobian(state_jacobian(e, t, x[: e.n], m, p), ny)
            moved = x[: e.n].copy()
            moved[:ny] += h * np.linalg.solve(decay, xdot[:ny])
            x = mode.complete(t, *completed(e, t, moved, m, p), m, p)[0]
        except np.linalg.LinAlgError:
            return False
        value = side * mode.kernels["entry"](t, x, m, p)[1][i]
        if not value <= shallow:
            return bool(value > shallow)
    return False


def _rate(trajectory: Trajectory, event: EventRecord, after: float) -> float:
    """Rate of a guard some time after its event, on the tangent there."""
    system = trajectory.system
    mode = system.modes[system.transitions[event.index].source]
    x = event.x_minus + after * event.xdot_minus
    rates = mode.kernels["entry"](event.time + after, x, event.memory_minus, trajectory.parameters)[2]
    return float(rates[mode.guarded.index(event.index)])


@dataclass(frozen=True, slots=True)
class Crossing:
    """An event of a guard, without the records around it."""

    index: int
    time: float
    rate: float
    rate_scale: float
    count: int
    x_minus: Array
    memory_minus: Array


def accuracy(trajectory: Trajectory, event: EventRecord | Crossing, after: float = 0.0) -> float:
    """The tolerance of a guard by those of the states; with a time `after`, by what is left of them by then.

    What a stiff equation takes back before the guard turns does not decide whether it crosses.
    """
    system = trajectory.system
    transition = system.transitions[event.index]
    mode = system.modes[transition.source]
    start = clock(trajectory.t_span[0], event.count)
    point = (event.time, event.x_minus, event.memory_minus, trajectory.parameters)
    ny = mode.differential.size
    by_y = transition.guard_derivatives(mode, *point, start)[0][:ny]
    allowed = trajectory.options.allowed(mode.differential, event.x_minus[:ny])
    found = float(abs(by_y) @ allowed)
    e = mode.equations
    if after and e.n <= MOST:
        with suppress(np.linalg.LinAlgError):
            jacobian = state_jacobian(e, event.time, event.x_minus[: e.n], event.memory_minus, trajectory.parameters)
            decay = np.eye(ny) - abs(after) * reduced_jacobian(jacobian, ny)
            left = float(abs(np.linalg.solve(decay.T, by_y)) @ allowed)
            return min(found, left) if math.isfinite(left) else found
    return found
