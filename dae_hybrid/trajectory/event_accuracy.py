"""Events whose times are far less accurate than the tolerances suggest.

Steps keep the error of a fast state within its tolerance, but a guard on the derivative of that state sees the error
multiplied by the stiffness: x' = -L (x - u(t)) is known to L times the tolerance of x. The event time is wrong by that
error over the rate of the guard, and so are its derivatives. Errors of slow states, which every run has, are not
reported.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from dae_hybrid.errors import DaeHybridError, EventError
from dae_hybrid.lazily import Lazily
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.record_table import Kind, RecordTable
from dae_hybrid.port.records import EventRecord
from dae_hybrid.port.stiffness import norm_bound, reduced_jacobian, state_jacobian
from dae_hybrid.system.transition_map import GRAZING_RATE_SHARE
from dae_hybrid.trajectory.grazing import MAX_DENSE_SIZE, GuardCrossing, accuracy
from dae_hybrid.trajectory.trajectory import Trajectory

#: an event time with an error above this multiple of rtol times the duration of the run is reported as inaccurate,
INACCURATE_TIME_FACTOR = 30.0
#: if the error decays to this share within that share of the run
DECAYED_SHARE, DECAY_TIME_SHARE = 0.2, 0.1
#: a guard whose observed range is below this share of rate times duration was only ever evaluated at zero
MIN_RANGE_SHARE = 1e-6
#: events checked per transition
EVENTS_CHECKED = 3


def amplified(trajectory: Trajectory) -> list[str]:
    """Return one sentence per transition with inaccurate event times, on the most inaccurate event."""
    options, span = trajectory.options, trajectory.final[0] - trajectory.t_span[0]
    said = []
    for crossings in _sampled(trajectory):
        found = [(_amplification(trajectory, crossing, span), crossing) for crossing in crossings]
        worst, crossing = max(found, key=lambda pair: pair[0])
        if worst > INACCURATE_TIME_FACTOR:
            said.append(
                f"The time t = {crossing.time:.9g} of '{trajectory.system.transitions[crossing.index].name}' is known "
                f"to about {worst * options.rtol * span:.1e} only, {worst:.1e} times what rtol={options.rtol:g} asks "
                "for: the guard multiplies the error of fast states, as one on the derivative of a stiff state does. "
                "Derivatives of the time, and gradients, lose as many digits. State the guard by slow quantities (what "
                "the fast state follows), or tighten rtol and atol by that factor."
            )
    return said


def noisy(trajectory: Trajectory, error: DaeHybridError, last: tuple[float, Array, Array]) -> EventError | None:
    """Return the error of a guard that crosses zero and returns within its own accuracy, otherwise None.

    `last` is the last point of the run: time, x and memory.
    """
    system, options = trajectory.system, trajectory.options
    t, x, m = last
    named = (own for own in system.transitions if own.name == error.transition)
    transition = next(own for own in named if system.modes[own.source].name == error.mode)
    mode, span = system.modes[transition.source], trajectory.t_span[1] - trajectory.t_span[0]
    rate = float(mode.kernels["entry"](t, x, m, trajectory.parameters)[2][mode.guarded.index(transition.index)])
    crossing = GuardCrossing(transition.index, t, rate, 0.0, 0, x, m)
    amplification = _amplification(trajectory, crossing, span)
    if not amplification > INACCURATE_TIME_FACTOR:
        return None
    how = "is not known"
    if math.isfinite(amplification):
        how = f"is known to about {amplification * options.rtol * span:.1e} only"
    return EventError(
        f"The guard goes through zero and back within its accuracy, which is {accuracy(trajectory, crossing):.1e}: it "
        f"multiplies the error of fast states, and the time of its zero {how}.",
        mode=error.mode,
        transition=error.transition,
        time=error.time,
        remedy="State the guard by slow quantities (what the fast state follows), not by the derivative of a stiff "
        "state; or tighten rtol and atol.",
    )


def _sampled(trajectory: Trajectory) -> Iterator[list[GuardCrossing]]:
    """Yield some events of every transition with a guard, without unpacking native records."""
    places: dict[int, list[tuple[int, Callable[[int], GuardCrossing]]]] = {}
    for item in trajectory.parts.given:
        if isinstance(item, RecordTable):
            for kind in item.kinds:
                if kind.guard < len(item.graph.exits[kind.mode]):
                    index = item.graph.exits[kind.mode][kind.guard]
                    places.setdefault(index, []).append((kind.places.size, partial(_crossing, index, item, kind)))
        elif isinstance(item, EventRecord) and item.direction and not item.follows:
            places.setdefault(item.index, []).append((1, partial(_recorded, item)))
    for index, sources in places.items():
        transition = trajectory.system.transitions[index]
        if transition.trigger.is_timed or transition.is_kink:
            continue
        events = Lazily(sources)
        chosen = {(len(events) - 1) * i // (EVENTS_CHECKED - 1) for i in range(EVENTS_CHECKED)}
        yield [events[i] for i in sorted(chosen)]


def _recorded(event: EventRecord, _: int) -> GuardCrossing:
    return GuardCrossing(
        event.index, event.time, event.rate, event.rate_scale, event.count, event.x_minus, event.memory_minus
    )


def _crossing(index: int, table: RecordTable, kind: Kind, i: int) -> GuardCrossing:
    own = [i]
    time, rate, scale = (table.column(name, kind.places[own]).item() for name in ("time", "rate", "rate_scale"))
    return GuardCrossing(index, time, rate, scale, 0, *(table.values(kind, name, own)[0] for name in ("x", "memory")))


def _amplification(trajectory: Trajectory, crossing: GuardCrossing, span: float) -> float:
    """Return the error of an event time in multiples of rtol times the duration; 0 if no fast state causes it.

    If the rate of the guard is noise, its range over the duration replaces it. A guard without a rate has no derivative
    of its time.
    """
    now, rate = accuracy(trajectory, crossing), abs(crossing.rate)
    if rate <= GRAZING_RATE_SHARE * crossing.rate_scale:
        return 0.0
    known = rate if 0 < crossing.rate_scale <= MIN_RANGE_SHARE * rate else crossing.rate_scale
    if now <= INACCURATE_TIME_FACTOR * trajectory.options.rtol * span * min(rate, known):
        return 0.0
    after, fastest = DECAY_TIME_SHARE * span, _fastest(trajectory, crossing)
    if not (1 + after * fastest) * DECAYED_SHARE > 1:
        return 0.0
    if now * fastest > rate:
        rate = min(rate, crossing.rate_scale)
    asked = trajectory.options.rtol * span * rate
    if not (
        math.isfinite(now)
        and now > INACCURATE_TIME_FACTOR * asked
        and accuracy(trajectory, crossing, after) < DECAYED_SHARE * now
    ):
        return 0.0
    return now / asked if asked else math.inf


def _fastest(trajectory: Trajectory, crossing: GuardCrossing) -> float:
    """Bound the fastest decay of perturbations by a norm of the Jacobian; 0 if there is none."""
    system = trajectory.system
    e = system.modes[system.transitions[crossing.index].source].equations
    if not 0 < e.n <= MAX_DENSE_SIZE:
        return 0.0
    x, m = crossing.x_minus[: e.n], crossing.memory_minus
    try:
        jacobian = reduced_jacobian(state_jacobian(e, crossing.time, x, m, trajectory.parameters), e.n_differential)
    except np.linalg.LinAlgError:
        return 0.0
    return norm_bound(jacobian)
