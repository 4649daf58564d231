"""Global error of a run, estimated by a second run at a tenth of its tolerances.

The global error depends on the method and on the system: errors of BDF steps accumulate, and perturbations may grow. It
decides whether an event and another time next to it count as simultaneous.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from dae_hybrid.errors import DaeHybridError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.records import EventRecord, MeasurementRecord
from dae_hybrid.simulation.event_logic import MAX_SIMULTANEITY_RTOLS, SIMULTANEITY_RTOLS
from dae_hybrid.trajectory.grazing import accuracy
from dae_hybrid.trajectory.trajectory import Trajectory

#: tolerances of the second run as a share of those of the run, and safety factor on the difference of the two
SECOND_RUN_SHARE, SAFETY_FACTOR = 0.1, 3.0


class ErrorEstimate:
    """Global error of a run; `again` returns the run at finer tolerances, and is called only if needed."""

    def __init__(self, trajectory: Trajectory, again: Callable[[], Trajectory]) -> None:
        self.run, self._run_finer = trajectory, again

    def event_time_error(self, t: float | Array) -> Array:
        """Return the errors of the event times next to given times; infinite if the events may not exist."""
        times, late = self._event_time_errors
        return np.asarray(late[np.searchsorted(times, t)])

    def state_error(self, t: float) -> float:
        """Return the largest error of the state until the event after t, in tolerances, from SIMULTANEITY_RTOLS on."""
        times, found = self._state_errors
        return float(found[min(int(np.searchsorted(times, t)), len(times) - 1)])

    def final(self) -> tuple[int, float, Array, Array] | None:
        """Return mode, t, x and m at the end of the second run, if there is one."""
        if self._second_run is None:
            return None
        t, mode, x, m = self._second_run.final
        return mode, t, x, m

    def measured(self, i: int) -> tuple[int, float, Array, Array] | None:
        """Return the same at a measurement, by its index in the run."""
        given = () if self._second_run is None else self._second_run.parts
        found = [part for part in given if isinstance(part, MeasurementRecord)][i : i + 1]
        return next(((part.mode.index, part.time, part.x, part.memory) for part in found), None)

    @cached_property
    def _second_run(self) -> Trajectory | None:
        try:
            return self._run_finer()
        except DaeHybridError:
            return None

    @cached_property
    def _common_events(self) -> tuple[Array, Array, int]:
        """Event times of both runs, and the number of leading events that agree."""
        own = self.run.parts
        if self._second_run is None:
            return own.event_times, np.zeros(0), 0
        other = self._second_run.parts
        times, others = own.event_times, other.event_times
        n = min(times.size, others.size)
        differs = np.flatnonzero(own.event_transitions[:n] != other.event_transitions[:n])
        return times, others, int(differs[0]) if differs.size else n

    @cached_property
    def _event_time_errors(self) -> tuple[Array, Array]:
        """Event times; largest error of the four events next to a time, by the number of events before it."""
        times, others, n = self._common_events
        late = np.zeros(times.size + 4)
        late[2 + n : -2] = np.inf
        late[2 : 2 + n] = SAFETY_FACTOR * np.abs(times[:n] - others[:n])
        return times, np.asarray(np.max([late[i : times.size + 1 + i] for i in range(4)], axis=0), dtype=float)

    @cached_property
    def _state_errors(self) -> tuple[Array, Array]:
        run, other = self.run, self._second_run
        if other is None:
            return np.array([run.t_span[0]]), np.array([MAX_SIMULTANEITY_RTOLS])
        times, others, n = self._common_events
        found = [SAFETY_FACTOR * self._difference(*pair) for pair in zip(run.events[:n], other.events[:n], strict=True)]
        (t, mode, x, _), (other_t, other_mode, other_x, _) = run.final, other.final
        if n == times.size == others.size and (t, mode) == (other_t, other_mode):
            found.append(SAFETY_FACTOR * self._in_tolerances(mode, x, other_x))
        else:
            found.append(MAX_SIMULTANEITY_RTOLS)
        at = times[: n + 1] if n < min(times.size, others.size) else np.append(times[:n], t)
        return at, np.clip(np.maximum.accumulate(found), SIMULTANEITY_RTOLS, MAX_SIMULTANEITY_RTOLS)

    def _difference(self, one: EventRecord, two: EventRecord) -> float:
        """Return the difference of an event in two runs: of its guard, or of the state if its time is given."""
        seen = accuracy(self.run, one) if one.direction and not one.follows else 0.0
        if seen:
            return abs(one.time - two.time) * abs(one.rate) / seen
        source = self.run.system.transitions[one.index].source
        return self._in_tolerances(source, one.x_minus, two.x_minus)

    def _in_tolerances(self, mode: int, x: Array, other: Array) -> float:
        layout = self.run.system.modes[mode].differential
        y, z = x[: layout.size], other[: layout.size]
        return float(np.max(np.abs(y - z) / self.run.options.allowed(layout, y), initial=0.0))
