"""Crossings so shallow that the accuracy of the run decides whether there is one."""

from __future__ import annotations

from dae_hybrid.conditions import Conditions
from dae_hybrid.errors import GrazingError
from dae_hybrid.records import EventRecord
from dae_hybrid.trajectory import Trajectory
from dae_hybrid.transition import clock

#: a guard that goes no farther beyond zero than so many tolerances may as well not cross
SHALLOW = 100.0
#: its rate is looked at this share of the run before
BEFORE = 1e-6


def refuse_shallow(trajectory: Trajectory, conditions: Conditions) -> None:
    """Refuse derivatives of event times that another run as accurate would not have."""
    for event in trajectory.uncertified:
        if not event.direction or event.follows:
            continue
        depth = _depth(trajectory, event)
        if depth <= SHALLOW * _accuracy(trajectory, event):
            conditions.refuse(
                GrazingError(
                    f"The guard goes beyond zero by about {depth:.1e}, within the accuracy of the run: whether it "
                    "crosses is chance.",
                    transition=event.transition,
                    mode=event.source,
                    time=event.time,
                    remedy="Tighten rtol and atol, or change the parameters away from the grazing point.",
                )
            )


def _depth(trajectory: Trajectory, event: EventRecord) -> float:
    """How far a guard gets beyond zero, or had been on this side, by a parabola with its rate and bend."""
    system, t = trajectory.system, event.time
    mode = system.modes[system.transitions[event.index].source]
    h = BEFORE * (trajectory.final[0] - trajectory.t_span[0])
    before = (t - h, event.x_minus - h * event.xdot_minus, event.memory_minus, trajectory.parameters)
    rate = float(mode.kernels["entry"](*before)[2][mode.guarded.index(event.index)])
    bend = abs(event.rate - rate) / h if h > 0 else 0.0
    return event.rate**2 / (2 * bend) if bend > 0 else float("inf")


def _accuracy(trajectory: Trajectory, event: EventRecord) -> float:
    """The tolerance of a guard by those of the states."""
    system = trajectory.system
    transition = system.transitions[event.index]
    mode = system.modes[transition.source]
    start = clock(trajectory.t_span[0], event.count)
    point = (event.time, event.x_minus, event.memory_minus, trajectory.parameters)
    by_w = transition.guard_derivatives(mode, *point, start)[0]
    ny = mode.differential.size
    return float(abs(by_w[:ny]) @ trajectory.options.allowed(mode.differential, event.x_minus[:ny]))
