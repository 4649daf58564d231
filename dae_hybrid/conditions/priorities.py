"""Priorities that decide the order of an instant, and may decide otherwise in a neighbouring run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from dae_hybrid.conditions.instants import RunInspector
from dae_hybrid.conditions.outcomes import TangentComparison
from dae_hybrid.errors import EventError
from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.port.records import EventRecord
from dae_hybrid.simulation.event_logic import MAX_SIMULTANEITY_RTOLS, ZERO_ROUNDINGS


def refuse_tied_priorities(
    inspector: RunInspector, comparison: TangentComparison, events: Sequence[EventRecord], before: Sequence[Array]
) -> None:
    """Refuse derivatives if priorities order an instant that are equal to the accuracy of the run.

    `before` are the derivatives of the state before each event.
    """
    for one, two, state in zip(events, events[1:], before, strict=False):
        if not _are_tied(inspector, one, two):
            continue
        other = inspector.firing(two)
        if all(firing.transition.index != other.transition.index for firing in inspector.due(inspector.before(one))):
            continue
        why = comparison.order_matters(inspector, one, other, state)
        if why is not None:
            comparison.directions.conditions.fail_as_one_sided(
                EventError(
                    f"The priorities of '{one.transition}' and '{two.transition}' are equal, to the accuracy of the "
                    f"run, where both are due, and change with parameters or state; {why}: there are only one-sided "
                    "derivatives.",
                    transition=one.transition,
                    mode=one.source,
                    time=one.time,
                    remedy="Change the parameters a little, or state priorities that differ.",
                )
            )


def has_tied_priorities(inspector: RunInspector, events: Sequence[EventRecord]) -> bool:
    """Whether priorities that vary are equal, to the accuracy of the run, for successive events of an instant."""
    return any(_are_tied(inspector, one, two) for one, two in pairwise(events))


def _are_tied(inspector: RunInspector, one: EventRecord, two: EventRecord) -> bool:
    own = [inspector.system.transitions[inspector.trigger(event)] for event in (one, two)]
    if own[0].source != own[1].source or not any("priority" in transition.kernels for transition in own):
        return False
    mode, t, x, m = inspector.before(one)
    u = np.concatenate((x, m, inspector.p, [t]))
    value, by_u = 0.0, np.zeros(u.size)
    for transition, sign in zip(own, (1.0, -1.0), strict=True):
        if "priority" in transition.kernels:
            found, slopes = transition.kernels["priority"](t, x, m, inspector.p)
            value, by_u = value + sign * float(found[0]), by_u + sign * slopes[0]
    if not by_u.any():
        return False
    allowed = MAX_SIMULTANEITY_RTOLS * inspector.run.options.allowed(mode.variables, x)
    relative = MAX_SIMULTANEITY_RTOLS * inspector.run.options.rtol
    known = np.abs(by_u[: x.size]) @ allowed + np.abs(by_u[x.size :]) @ np.abs(u[x.size :]) * relative
    return bool(abs(value) <= known + ZERO_ROUNDINGS * EPS * (np.abs(by_u) @ np.abs(u)))
