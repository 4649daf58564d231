"""Forward sensitivity analysis: tangents propagated along a run and across its transitions.

Between transitions the adapter integrates SR eq. 5, 18, 25; across them `TransitionLinearisation.forward` applies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property
from typing import Self

import numpy as np

from dae_hybrid.errors import NonFiniteError
from dae_hybrid.lazily import Lazily
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.matrices import column
from dae_hybrid.port.failure_messages import refuse_not_finite
from dae_hybrid.port.integrator import SegmentOutcome, TaskSensitivities
from dae_hybrid.port.native_plan import NativeRun
from dae_hybrid.port.record_table import RecordTable
from dae_hybrid.port.records import EventRecord, KnotRecord, MeasurementRecord
from dae_hybrid.sensitivity.event_sides import side_tangents
from dae_hybrid.system.derivative_conditions import Conditions
from dae_hybrid.system.initial import RunStart
from dae_hybrid.system.linearisation import chain
from dae_hybrid.system.measurement import measured, measured_at_ends
from dae_hybrid.system.system import HybridSystem, ModeSystem
from dae_hybrid.system.transition_map import TransitionMap
from dae_hybrid.trajectory.trajectory import SegmentSensitivities, Trajectory


class TangentState:
    """Derivatives of a run along the columns of `directions` (n_parameters, d).

    It observes the run. `state` is dw = d(y, m), shape (n_w, d); `costs` is the derivative of the functionals so far,
    shape (d, k). `conditions` collects the conditions of the derivatives.
    """

    def __init__(
        self, system: HybridSystem, parameters: Array, directions: Array, start: float, conditions: Conditions
    ) -> None:
        self.system, self.p, self.directions, self.conditions = system, parameters, directions, conditions
        self.t_start = start
        self.reset()

    def reset(self) -> None:
        """Reset to the state before a run."""
        count = self.directions.shape[1]
        self.state = np.zeros((0, count))
        self._gains: list[RecordTable | Array] = []  # contributions that are added to the costs on access
        self._native_gains: list[RecordTable | Array] = []  # those since the last segment, which follow with the next
        self._costs: Array = np.zeros((count, self.system.functionals.size))
        self._at_measurements: list[RecordTable | Array] = []  # dw
        self.initial_gains: Array | float = 0.0  # derivatives of measurements at the start of a native run
        self._at_knots: list[RecordTable | tuple[Array, Array]] = []  # dw before and after every knot
        self._native_run: tuple[RunStart, NativeRun] | None = None  # a native run, evaluated on access
        self._at_events: list[RecordTable | tuple[Array, Array, Array]] = []  # dt, dw before and after
        self._tau: Array | None = None  # dt of the last transition outside compiled code
        self._mode = self.system.modes[self.system.initial.mode]
        self.__dict__.pop("_final_fields", None)

    def fresh_copy(self) -> Self:
        """Return a copy in the state before a run."""
        other = copy(self)
        other.reset()
        return other

    def assign(self, other: TangentState) -> None:
        """Take over the state of another object."""
        self.__dict__.clear()
        self.__dict__.update(other.__dict__)

    @property
    def costs(self) -> Array:
        """Derivatives of the functionals so far, (d, k)."""
        gains, self._gains = self._gains, []
        for item in gains:
            self._costs = self._costs + (self._gained(item) if isinstance(item, RecordTable) else item)
        return self._costs

    @costs.setter
    def costs(self, value: Array) -> None:
        self._costs, self._gains = value, []

    @property
    def count(self) -> int:
        """Number of directions."""
        return int(self.directions.shape[1])

    def on_start(self, start: RunStart) -> None:
        """Set the initial derivatives (SR eq. 2, differentiated)."""
        self.state, self._mode = np.asarray(start.derivatives @ self.directions), start.mode

    def _by_u(self, mode: ModeSystem, t: float, x: Array, m: Array, state: Array) -> Array:
        """Return the derivatives of u = (x, m, p, t) along the directions at fixed t, (n_u, d), from dw."""
        if not mode.algebraic.size:
            found, n_w = np.zeros((len(state) + len(self.directions) + 1, self.count)), len(state)
            found[:n_w], found[n_w:-1] = state, self.directions
            return found
        return np.asarray(chain(mode, t, x, m, self.p)[:, :-1] @ np.vstack((state, self.directions)))

    def segment_fields(self, mode: ModeSystem, t: float, x: Array, m: Array) -> TaskSensitivities:
        """Return the initial sensitivities of a segment."""
        if not self.count:
            return {}
        ny, n = mode.differential.size, mode.equations.n
        if n == ny:
            sensitivities, rates = self.state[:ny].T, None
            return self._fields(sensitivities, rates, ny)
        du = self._by_u(mode, t, x, m, self.state)
        rates = np.zeros((self.count, n))
        rates[:, :ny] = (mode.kernels["flow_by_u"](t, x, m, self.p)[0][:ny] @ du).T
        return self._fields(du[:n].T, rates, ny)

    def _fields(self, sensitivities: Array, rates: Array | None, ny: int) -> TaskSensitivities:
        return {
            "sensitivities": sensitivities,
            "sensitivity_rates": rates,
            "memory_directions": self.state[ny:].T,
            "integral_sensitivities": self.costs,
        }

    def on_segment(self, outcome: SegmentOutcome, x: Array, m: Array) -> SegmentSensitivities:
        """Take over the sensitivities at the end of a segment."""
        if outcome.sensitivities is None or outcome.integral_sensitivities is None:
            return {}
        ny = self._mode.differential.size
        memory = self.state[ny:]
        self.state = np.vstack((outcome.sensitivities[:, :ny].T, memory))
        if self._mode.invariants:
            direction, by_wp = self._mode.onto_constraints(outcome.t, x, m, self.p)
            self.state = self.state - direction @ (by_wp @ np.vstack((self.state, self.directions)))
        self.costs = outcome.integral_sensitivities
        self.on_native_pause()
        n = outcome.x.size
        return {
            "sensitivity_rows": outcome.rows[:, 1 + n :].reshape(len(outcome.rows), self.count, n),
            "memory_sensitivities": memory,
            "directions": self.directions,
        }

    def on_transition(self, transition: TransitionMap, event: EventRecord) -> None:
        """Propagate the derivatives across a transition."""
        map_ = self.system.linearise(event, self.p, self.t_start, self.conditions)
        map_.refuse_not_finite(event)
        before, earlier = self.state, self._tau if event.order else None
        self._tau, self.state, jump = map_.forward(before, self.directions, earlier)
        self._at_events.append((self._tau, before, self.state))
        self.costs = self.costs + jump.T
        self._mode = self._mode if transition.target is None else self.system.modes[transition.target]

    def on_native_events(self, table: RecordTable) -> None:
        """Take over the derivatives that the native loop propagated across its events."""
        self._at_events.append(table)
        self._at_knots.append(table)
        self._at_measurements.append(table)
        self._native_gains.append(table)
        event, mode = table.last
        self.state, self._mode = table.state_derivatives(event["after"], mode), self.system.modes[mode]
        self._tau = event["tau"]
        if table.n_integrals:
            self.costs = event["costs_after"].reshape(self.count, table.n_integrals)

    def on_native_pause(self) -> None:
        """Add the contributions of native events, which otherwise follow with the next segment."""
        self._gains += self._native_gains
        self._native_gains = []

    def _gained(self, table: RecordTable) -> Array:
        """Return the contributions of the events and measurements in a record table, (d, k)."""
        return np.asarray(table.gained_directions + sum(gained for _, gained in self.measurement_gains(table)))

    def measurement_gains(self, table: RecordTable) -> list[tuple[float, Array]]:
        """Return times and contributions (d, k) of the measurements in a record table."""
        records = table.measurements(self.system)
        values = measured(self.system.measurements, records, self.p)
        return [
            (record.time, self._measurement_gain(record, state, by_u))
            for record, state, (_, by_u) in zip(records, table.measured_derivatives(), values, strict=True)
        ]

    def on_native_run(self, start: RunStart, run: NativeRun) -> Callable[[], SegmentSensitivities]:
        """Take over a native run; it is evaluated on access."""
        self._native_run = start, run
        return lambda: self._final_fields

    @cached_property
    def _final_fields(self) -> SegmentSensitivities:
        """Evaluate the native run; further fields of the record of its last segment."""
        if self._native_run is None:
            return {}
        start, run = self._native_run
        table, _, outcome = run.segments
        # objects that became this one may share the lists and have evaluated the run
        self._at_events, self._at_knots, self._at_measurements = [], [], []
        self.costs, (at_start, at_end) = np.zeros_like(self.costs), measured_at_ends(self.system, run)
        self.on_start(start)
        for record in at_start:
            self.on_measurement(record)
        self.initial_gains, self._native_gains = self.costs, [self.costs]
        if table is not None:
            self.on_native_events(table)
        found = self.on_segment(outcome, run.end.x, run.end.m)
        for record in at_end:
            self.on_measurement(record)
        return found

    def _events(self) -> Lazily[tuple[Array, Array, Array]]:
        """dt, dw before and after every event."""
        _ = self._final_fields
        sources = [item.derivatives() if isinstance(item, RecordTable) else [item] for item in self._at_events]
        return Lazily([(len(source), source.__getitem__) for source in sources])

    @property
    def event_times(self) -> Sequence[Array]:
        """dt of every event."""
        events = self._events()
        return Lazily([(len(events), lambda i: events[i][0])])

    @property
    def sides(self) -> Sequence[tuple[Array, Array]]:
        """dw before and after every event."""
        events = self._events()
        return Lazily([(len(events), lambda i: (events[i][1], events[i][2]))])

    @property
    def measured_tangents(self) -> list[Array]:
        """dw at every measurement."""
        _ = self._final_fields
        found: list[Array] = []
        for item in self._at_measurements:
            found += item.measured_derivatives() if isinstance(item, RecordTable) else [item]
        return found

    @property
    def knot_sides(self) -> list[tuple[Array, Array]]:
        """dw before and after every knot."""
        found: list[tuple[Array, Array]] = []
        for item in self._at_knots:
            found += item.knot_sides() if isinstance(item, RecordTable) else [item]
        return found

    def on_knot(self, knot: KnotRecord) -> None:
        """Replace the derivatives of the signals' memory at a knot."""
        ny, before = self._mode.differential.size, self.state
        self.state = before.copy()
        self.state[ny + knot.entries] = self.system.knot_derivatives(knot, self.p) @ self.directions
        self._at_knots.append((before, self.state))

    def on_measurement(self, record: MeasurementRecord) -> None:
        """Add the contribution of a measurement."""
        by_u = self.system.measurements[record.index].value(record, self.p)[1]
        self._gains.append(self._measurement_gain(record, self.state, by_u))
        self._at_measurements.append(self.state)

    def _measurement_gain(self, record: MeasurementRecord, state: Array, by_u: Array) -> Array:
        """Return the contribution of a measurement, (d, k), from dw and its derivatives by u = (x, m, p, t)."""
        measurement, mode = self.system.measurements[record.index], record.mode
        refuse_not_finite(measurement.name, (by_u,), mode=mode.name, time=record.time)
        found = np.zeros((self.count, self.system.functionals.size))
        own = by_u @ self._by_u(mode, record.time, record.x, record.memory, state)
        if measurement.movable:
            own = own + measurement.moved(by_u, record, self.p) @ self.directions
        found[:, measurement.components] = own.T
        return found

    def gradient(self, trajectory: Trajectory) -> Array:
        """Return the derivatives of the functionals, shape (k, d)."""
        if self._native_run is not None:
            return self._native_run[1].gradient.copy()
        t, mode, x, m = trajectory.final
        final = self.system.modes[mode]
        by_u = final.kernels["terminal"](t, x, m, self.p)[1]
        for name in self.system.functionals.names:
            rows = by_u[self.system.functionals[name]]
            refuse_not_finite(f"the terminal value of functional '{name}'", (rows,), mode=final.name, time=t)
        total = np.array(self.costs.T)
        if by_u.any():
            total += by_u @ self._by_u(final, t, x, m, self.state)
            if trajectory.ended_by_event:
                total += np.outer(by_u @ column(chain(final, t, x, m, self.p), -1), self.event_times[-1])
        if self.system.sides:
            around, times = self.sides, self.event_times
            for component, own in side_tangents(trajectory, self.system.sides, around, times, self.directions):
                total[component] += own
        if not np.all(np.isfinite(total)):
            bad = [n for n in self.system.functionals.names if not np.isfinite(total[self.system.functionals[n]]).all()]
            raise NonFiniteError(
                f"The gradient is not finite: of {', '.join(bad)}.", mode=final.name, time=t, variables=bad
            )
        return total
