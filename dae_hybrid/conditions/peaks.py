"""Peaks of a run that several places decide: equal derivatives, or one-sided ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from dae_hybrid.conditions.instants import EQUALITY_RTOL, EQUALITY_RTOLS
from dae_hybrid.errors import EventError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.records import MeasurementRecord
from dae_hybrid.sensitivity.event_sides import side_tangent
from dae_hybrid.sensitivity.forward import TangentState
from dae_hybrid.system.derivative_conditions import Conditions
from dae_hybrid.system.linearisation import chain
from dae_hybrid.system.peaks import Decision, EventSide, Place, Tie
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.tables import in_short
from dae_hybrid.trajectory.trajectory import Trajectory


def check_peaks(
    system: HybridSystem,
    conditions: Conditions,
    forward: Callable[[], tuple[Trajectory, TangentState]],
    functionals: tuple[str, ...],
) -> tuple[str, ...]:
    """Check that the peaks of functionals have derivatives; return warnings of one-sided ones.

    Where places agree to rounding and have different derivatives, the condition fails.
    """
    decision = system.decision
    if decision is None:
        return ()
    for functional, error in decision.failures:
        if functional in functionals:
            conditions.fail(error)
    ties = [tie for tie in decision.ties if system.peaks[tie.chosen.peak].functional in functionals]
    if not ties:
        return ()
    run, directions = forward()
    return tuple(_Ties(run, directions, decision).sentences(ties, conditions))


class _Ties:
    """Derivatives of the places that may decide a peak, along the directions of a run."""

    def __init__(self, run: Trajectory, directions: TangentState, decision: Decision) -> None:
        self.run, self.directions = run, directions
        self.peaks = run.system.peaks
        measured = [place for place in decision.followed if place.event < 0]
        first = run.system.n_stated
        self.states: dict[tuple[int, int, float], tuple[MeasurementRecord, Array]] = {}
        tangents = iter(directions.measured_tangents)
        for part in run.parts:
            if isinstance(part, MeasurementRecord):
                state = next(tangents)
                if part.index >= first:
                    place = measured[part.index - first]
                    self.states[place.peak, place.component, place.time] = part, state

    def sentences(self, ties: list[Tie], conditions: Conditions) -> Iterator[str]:
        """Yield warnings; ties to rounding fail as conditions."""
        for tie in ties:
            peak = self.peaks[tie.chosen.peak]
            said = self._difference(tie)
            if said is None:
                continue
            entry = f", entry {tie.chosen.component}" if peak.size > 1 else ""
            if tie.is_exact:
                conditions.fail_as_one_sided(
                    EventError(
                        f"Several places have the {peak.kind} of functional '{peak.functional}'{entry}: it has only "
                        f"one-sided derivatives, {said}.",
                        time=tie.chosen.time,
                        remedy="Change the parameters a little, or differentiate a smooth functional, such as a norm "
                        "of high order.",
                    )
                )
            else:
                yield (
                    f"Several places have the {peak.kind} of functional '{peak.functional}'{entry} within the accuracy "
                    f"of the run, and it has only one-sided derivatives: {said}. Derivatives are those of the first."
                )

    def _difference(self, tie: Tie) -> str | None:
        """Describe derivatives that differ; None if all agree."""
        one, by_one = tie.chosen, self._tangent(tie.chosen)
        accuracy, p = max(EQUALITY_RTOL, EQUALITY_RTOLS * self.run.options.rtol), np.abs(self.run.parameters)
        scale = np.where(p != 0, p, 1.0) @ np.abs(self.directions.directions)
        for other in tie.rivals:
            by_other = self._tangent(other)
            size = float((np.maximum(np.abs(by_one), np.abs(by_other)) * scale).max(initial=0.0))
            if np.any(np.abs(by_one - by_other) * scale > accuracy * (size + one.size)):
                return f"{in_short(by_one)} by {one.where}, and {in_short(by_other)} by {other.where}"
        return None

    def _tangent(self, place: Place) -> Array:
        """Return the derivatives of a place's value along the directions, (d,)."""
        peak, p, dp = self.peaks[place.peak], self.run.parameters, self.directions.directions
        if place.event >= 0:
            side = EventSide(place.event, place.side, 0, peak.measure, place.data, place.time_share)
            event = self.run.events[place.event]
            around, times = self.directions.sides[place.event], self.directions.event_times[place.event]
            return side_tangent(side, side.point(self.run.system, event, self.run.final[1]), around, times, p, dp)
        record, state = self.states[place.peak, place.component, place.time]
        mode, t, x, m = record.mode, record.time, record.x, record.memory
        by_u = peak.measure(mode.index)(t, x, m, p, place.data)[1]
        return np.asarray(by_u @ np.asarray(chain(mode, t, x, m, p)[:, :-1] @ np.vstack((state, dp))))[0]
