"""Contributions of sides of events, which decide peaks, to values, tangents and adjoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.records import EventRecord
from dae_hybrid.system.peaks import EventSide, Side, SidePoint
from dae_hybrid.trajectory.trajectory import Trajectory


def side_values(run: Trajectory) -> Array:
    """Return the contributions of the sides of events to all functionals, (k,)."""
    found = np.zeros(run.system.functionals.size)
    for side in run.system.sides:
        mode, t, x, _, m = side.point(run.system, run.events[side.event], run.final[1])
        found[side.component] += side.value(mode, t, x, m, run.parameters)
    return found


def side_tangents(
    run: Trajectory,
    sides: tuple[EventSide, ...],
    around: Sequence[tuple[Array, Array]],
    times: Sequence[Array],
    dp: Array,
) -> Iterator[tuple[int, Array]]:
    """Yield the component of each side and the derivatives of its value, (d,).

    `around` are dw before and after every event, `times` the derivatives of the event times, `dp` (n_p, d).
    """
    for side in sides:
        point = side.point(run.system, run.events[side.event], run.final[1])
        yield side.component, side_tangent(side, point, around[side.event], times[side.event], run.parameters, dp)


def side_tangent(
    side: EventSide, point: SidePoint, around: tuple[Array, Array], tau: Array, p: Array, dp: Array
) -> Array:
    """Return the derivatives of the value on a side of an event, (d,), from dw before and after it and dt."""
    by_w, by_p, rate = side.derivatives(*point, p)
    return np.asarray(by_w @ around[side.side == "+"] + by_p @ dp + rate * tau)


class SideGain(NamedTuple):
    """What a side of an event adds to one cost: derivatives by w there, by p, and by the time of the event."""

    side: EventSide
    cost: int
    by_w: Array
    by_p: Array
    by_t: float


def side_gains(run: Trajectory, event: EventRecord, index: int, components: tuple[int, ...]) -> list[SideGain]:
    """Return what the sides of an event, of this index in the run, add to the costs of the components."""
    found = []
    for side in run.system.sides:
        if side.event == index and side.component in components:
            point = side.point(run.system, event, run.final[1])
            found.append(SideGain(side, components.index(side.component), *side.derivatives(*point, run.parameters)))
    return found


def with_gains(gains: list[SideGain], which: Side, adjoint: Array, by_p: Array) -> tuple[Array, Array]:
    """Return dG/dw on a side of an event and dG/dp with the gains there."""
    adjoint, by_p = adjoint.copy(), by_p.copy()
    for gain in gains:
        if gain.side.side == which:
            adjoint[gain.cost] += gain.by_w
            by_p[gain.cost] += gain.by_p
    return adjoint, by_p


def time_gains(gains: list[SideGain], time_cotangent: Array) -> Array:
    """Return dG/dt of an event with the gains of its sides."""
    found = np.array(time_cotangent)
    for gain in gains:
        found[gain.cost] += gain.by_t
    return found
