"""Simultaneous transitions, and one-sided derivatives caused by them.

Two simultaneous transitions fire one after the other. A change of the parameters separates their times and may reverse
their order; if the order matters, there are two one-sided derivatives. A guard that is zero on entry into its mode, or
at the start or the end of the run, may be past zero after a change of the parameters, or not reach zero. None of this
matters if the times move together.

Times within the accuracy of the run count as simultaneous here, because their order is chance.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dae_hybrid.conditions.error_estimate import ErrorEstimate
from dae_hybrid.conditions.instants import Point, RunInspector, refuse
from dae_hybrid.conditions.outcomes import TangentComparison
from dae_hybrid.conditions.priorities import has_tied_priorities, refuse_tied_priorities
from dae_hybrid.conditions.ties import is_beside, ties
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.records import EventRecord
from dae_hybrid.sensitivity.forward import TangentState
from dae_hybrid.simulation.firing import Firing
from dae_hybrid.system.derivative_conditions import Conditions
from dae_hybrid.trajectory.trajectory import Trajectory

#: for times that are exactly equal
REVERSED = "; simultaneous='reversed' gives the others"


def has_coincidences(trajectory: Trajectory, estimate: ErrorEstimate) -> bool:
    """Whether any movable times coincide with each other or with an end of the run."""
    inspector = RunInspector(trajectory, estimate)
    if inspector.moving_at_start() or inspector.near(inspector.start):
        return True
    coming = [] if trajectory.ended_by_event else inspector.due_after_end(inspector.end, [])
    if (
        inspector.at_rest(inspector.end)
        or any(firing.transition.movable for firing in coming)
        or is_beside(inspector)
        or inspector.ends_beside_an_event()
    ):
        return True
    if not trajectory.uncertified and (inspector.is_robust or inspector.is_regular.all()):
        return False
    return any(_is_open(inspector, events) for _, events in inspector.unsure())


def _is_open(inspector: RunInspector, events: list[EventRecord]) -> bool:
    """Whether derivatives may depend on what happens at an instant first, or at all."""
    if inspector.move_apart(events, inspector.others(events[0])) or inspector.ceasing_conditions(events[0]):
        return True
    if inspector.at_rest(inspector.before(events[0])) or has_tied_priorities(inspector, events):
        return True
    if inspector.is_first(events) and inspector.system.transitions[events[0].index].movable:
        return True
    return any(
        inspector.undecided_after(event) or inspector.move_apart([event], inspector.near_after(event))
        for event in events
    )


def one_sided_derivatives(
    trajectory: Trajectory, directions: TangentState, estimate: ErrorEstimate, functionals: tuple[str, ...]
) -> tuple[str, ...]:
    """Return warnings of one-sided derivatives along the directions of a run; other cases fail as conditions.

    Of measurements and terminal values only those of the named functionals are checked.
    """
    inspector, found = RunInspector(trajectory, estimate), []
    comparison = TangentComparison(trajectory, directions)
    at_start = trajectory.start.derivatives @ directions.directions
    for index in inspector.moving_at_start(directions.directions):
        if comparison.fires_or_not(inspector, inspector.start, inspector.entered_beside(index), at_start) is not None:
            _refuse_start(inspector, index, directions.conditions)
    found += _near_entry(inspector, comparison, inspector.start, at_start, None, inspector.near(inspector.start))
    for first, events in inspector.unsure():
        if _is_open(inspector, events):
            found += _at_an_instant(inspector, comparison, first, events)
    if inspector.at_rest(inspector.end):
        _refuse_rest(inspector, directions, inspector.end, directions.state)
    found += ties(inspector, comparison, functionals)
    return tuple(dict.fromkeys(found))


def _at_an_instant(
    inspector: RunInspector, comparison: TangentComparison, first: int, events: list[EventRecord]
) -> list[str]:
    conditions = comparison.directions.conditions
    taus = comparison.event_times[first : first + len(events)]
    sides = comparison.sides[first : first + len(events)]
    before, after = sides[0][0], sides[-1][1]
    moving = inspector.is_first(events) and not comparison.moves_together(taus[0], np.zeros_like(taus[0]))
    if (
        moving
        and comparison.fires_or_not(inspector, inspector.before(events[0]), inspector.firing(events[0]), before)
        is not None
    ):
        _refuse_start(inspector, inspector.trigger(events[0]), conditions)
    refuse_tied_priorities(inspector, comparison, events, [side[0] for side in sides])
    others = inspector.others(events[0])
    due = {firing.transition.index for firing in others}
    times = [comparison.time_of(inspector.before(events[0]), other, before) for other in others]
    fired = {inspector.trigger(events[0])}
    for k, (event, tau, earlier) in enumerate(zip(events[1:], taus[1:], taus[:-1], strict=True), start=1):
        # in another mode another transition may be due for the same reason
        known = any(comparison.moves_together(tau, time) for time in (earlier, *times))
        index = inspector.trigger(event)
        open_ = event.order and not event.follows and index not in due and index not in fired
        alone = open_ and not known
        if (
            alone
            and comparison.fires_or_not(inspector, inspector.before(event), inspector.firing(event), sides[k][0])
            is not None
        ):
            _refuse_entry(inspector, index, event.time, conditions)
        fired.add(index)
    _refuse_rest(inspector, comparison.directions, inspector.before(events[0]), before)
    last = events[-1]
    point, undecided = inspector.after(last), inspector.undecided_after(last)
    settled = inspector.settled(due, events, conditions) if undecided else set()
    settled -= {inspector.trigger(last)} - {inspector.trigger(event) for event in events[:-1]}
    for index in [i for i in undecided if i not in settled]:
        moving = inspector.moves(index, *point, after, comparison.directions.directions, taus[-1])
        if (
            moving
            and comparison.fires_or_not(inspector, point, inspector.entered_beside(index), after, taus[-1], events)
            is not None
        ):
            _refuse_entry(inspector, index, last.time, conditions)
    found = []
    for k, event in enumerate(events):
        if k + 1 == len(events) or not events[k + 1].order:
            near = inspector.near_after(event)
            settled = (
                inspector.settled(due, events[: k + 1], conditions) - {inspector.trigger(event)} if near else set()
            )
            near = [firing for firing in near if firing.transition.index not in settled]
            found += _near_entry(
                inspector, comparison, inspector.after(event), sides[k][1], taus[k], near, events[: k + 1]
            )
    for other, time in zip(others, times, strict=True):
        why = (
            None
            if comparison.moves_together(taus[0], time)
            else comparison.order_matters(inspector, events[0], other, before)
        )
        if why is not None:
            names = " and ".join(dict.fromkeys(f"'{name}'" for name in (events[0].transition, other.transition.name)))
            exact = inspector.is_exact(other, inspector.before(events[0]))
            found.append(
                f"Transitions {names} are due at one instant, t = {events[0].time:.12g}, and their order matters: "
                f"{why}. Derivatives are those of the order in which they fired"
                f"{REVERSED if exact else ''}."
            )
    for condition in inspector.ceasing_conditions(events[0]):
        time = comparison.time_of(inspector.before(events[0]), condition, before)
        if comparison.moves_together(taus[0], time):
            continue
        name = condition.transition.name
        why = comparison.holding_matters(inspector, events[0], condition.transition.index, before)
        if why is not None:
            found.append(
                f"The condition of '{name}' ceases to hold where '{events[0].transition}' fires, to the accuracy of "
                f"the run, t = {events[0].time:.12g}, and whether it holds still matters: {why}. Derivatives are those "
                "of what the run did."
            )
    return found


def _near_entry(
    inspector: RunInspector, comparison: TangentComparison, point: Point, state: Array, tau: Array | None,
    near: list[Firing], past: Sequence[EventRecord] = (),
) -> list[str]:  # fmt: skip
    """Return warnings of guards that are zero on entry into a mode, to the accuracy of the run."""
    found = []
    for firing in near:
        if not inspector.moves(firing.transition.index, *point, state, comparison.directions.directions, tau):
            continue
        why = comparison.fires_or_not(inspector, point, firing, state, tau, past)
        if why is not None:
            zero = f"The guard of '{firing.transition.name}' is {firing.guard:.1e}, zero"
            due = f"Transition '{firing.transition.name}' is due"
            found.append(
                f"{due if firing.transition.trigger.is_timed else zero}, to the accuracy of the run, "
                f"where mode '{point[0].name}' is entered at t = {point[1]:.12g}, and moves apart from the entry. "
                f"Where it does not fire and where it does {why}. Derivatives are those of what it did."
            )
    return found


def _refuse_start(inspector: RunInspector, index: int, conditions: Conditions) -> None:
    what = "A guard is zero at the start of the run, to the last bit, and moves with the parameters"
    remedy = "Start the run earlier, or in the mode after the transition."
    refuse(inspector, index, inspector.run.t_span[0], conditions, what, remedy)


def _refuse_rest(inspector: RunInspector, directions: TangentState, point: Point, state: Array) -> None:
    """Refuse guards at rest at zero that leave it to either side with the parameters."""
    for index in inspector.at_rest(point):
        if inspector.moves(index, *point, state, directions.directions, None):
            what = "The guard rests at zero, but leaves it with the parameters"
            remedy = "Change the parameters a little, or give what rests a mode of its own, without the guard."
            refuse(inspector, index, point[1], directions.conditions, what, remedy)


def _refuse_entry(inspector: RunInspector, index: int, t: float, conditions: Conditions) -> None:
    what = "The guard is zero, to the last bit, where its mode is entered, but moves apart from the entry"
    remedy = "Change the parameters a little, or the reset so that it leads to either side of zero."
    refuse(inspector, index, t, conditions, what, remedy)
