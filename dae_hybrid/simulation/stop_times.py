"""Times at which a run stops without a transition: knots of signals and measurements."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.errors import ConsistencyError, EventError, NonFiniteError, OptionError
from dae_hybrid.numerics.algebraic import solve_algebraic
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.options import Options
from dae_hybrid.port.native_plan import Knots
from dae_hybrid.port.segment_rules import same_instant
from dae_hybrid.system.signals import at_knot, coefficients
from dae_hybrid.system.system import HybridSystem, ModeSystem

#: numbers in one list of knots
MAX_KNOT_NUMBERS = 1_000_000


class StopTimes:
    """The stop times of one run."""

    def __init__(self, system: HybridSystem, span: tuple[float, float], parameters: Array) -> None:
        self.system, self.p, self.signals, self.end = system, parameters, system.signals, span[1]
        self.start = span[0]
        for signal in system.signals:
            signal.check(span)
        times = [at_knot(system.signals, measurement.when(parameters), span[0]) for measurement in system.measurements]
        for measurement, t in zip(system.measurements, times, strict=True):
            if not span[0] <= t <= span[1]:
                raise OptionError(
                    f"Functional '{measurement.functional}' is measured at t = {t}, outside the run from {span[0]} to "
                    f"{span[1]}.",
                    remedy="Simulate up to the last measurement, or leave it out of the functional.",
                )
        order = sorted(range(len(times)), key=times.__getitem__)
        self.waiting = [(times[i], i) for i in order]
        self._done = 0
        self.intervals = [signal.interval(span[0]) for signal in system.signals]
        self._listed: Knots | None = None

    def next_knot(self, t: float) -> float:
        """Return the next knot after t."""
        return min((signal.next_knot(t) for signal in self.signals), default=np.inf)

    def next_measurement(self, t: float) -> float:
        """Return the time of the next measurement after t."""
        i = self._done
        while i < len(self.waiting) and self._is_due(i, t):
            i += 1
        return self.waiting[i][0] if i < len(self.waiting) else np.inf

    def _is_due(self, i: int, t: float) -> bool:
        """Whether a measurement is due at t, to rounding."""
        time = self.waiting[i][0]
        return time <= t or same_instant(time, t, self.start)

    def is_due(self, t: float) -> bool:
        """Whether a measurement is due at t, or a knot has not been passed."""
        measured = self._done < len(self.waiting) and self._is_due(self._done, t)
        return measured or self._intervals_at(t) != self.intervals

    def taken(self, count: int, passed: float) -> None:
        """Note that the native loop took `count` measurements and passed all knots up to the time `passed`."""
        self._done += count
        self.intervals = [signal.interval(passed) for signal in self.signals]

    def knots(self, t: float, directions: Array | None) -> Knots:
        """Return the knots of all signals from a time on, at most `MAX_KNOT_NUMBERS` numbers."""
        if self._listed is None or t >= self._listed.until:
            every = np.unique(np.concatenate([signal.data.knots for signal in self.signals]))
            count = 0 if directions is None else directions.shape[1]
            places = self.system.graph.entries
            first = int(np.searchsorted(every, t, side="right"))
            last = first + max(1, MAX_KNOT_NUMBERS // (places.size * (1 + count)))
            until = float(every[last]) if last < every.size else np.inf
            times = every[first:last]
            rows = [signal.intervals(times) + 1 for signal in self.signals]
            pairs = list(zip(self.signals, rows, strict=True))
            values = np.hstack([signal.rows(self.p)[own] for signal, own in pairs])
            changed = np.zeros((times.size, places.size, 0))
            if directions is not None and count:
                changed = np.hstack([signal.rows_along(self.p, directions)[own] for signal, own in pairs])
            self._listed = Knots(times, values, np.ascontiguousarray(np.moveaxis(changed, 2, 1)), until)
        return self._listed

    def knots_within(self, d: int) -> Knots:
        """Return the knots of signals that do not depend on the parameters after the start, for d directions.

        At the end of the run a continuous signal stays in the interval that ends there.
        """
        found = self.knots(self.start, np.zeros((self.p.size, d)))
        last = found.times.size
        if not any(signal.data.kind == "previous" for signal in self.signals):
            last = int(np.searchsorted(found.times, self.end))
        return Knots(found.times[:last], found.values[:last], found.directions[:last], found.until)

    def measurements_at(self, t: float) -> list[int]:
        """Return the measurements due at t, each of them once."""
        found = []
        while self._done < len(self.waiting) and self._is_due(self._done, t):
            found.append(self.waiting[self._done][1])
            self._done += 1
        return found

    def finish(self, t: float) -> None:
        """Refuse a run that ended before its last measurement."""
        if self._done < len(self.waiting):
            when, index = self.waiting[self._done]
            raise EventError(
                f"The run ended at t = {t}, before {self.system.measurements[index].name} was measured at t = {when}.",
                time=t,
                remedy="Leave the measurement out, or change what ends the run.",
            )

    def pass_knots(self, t: float) -> bool:
        """Whether a signal has entered another interval since the last call.

        At the end of the run a continuous signal stays in the interval that ends there, and keeps its rate.
        """
        now = self._intervals_at(t)
        passed, self.intervals = now != self.intervals, now
        return passed

    def _intervals_at(self, t: float) -> list[int]:
        ended = t >= self.end
        return [
            before if ended and signal.data.kind != "previous" else signal.interval(t)
            for signal, before in zip(self.signals, self.intervals, strict=True)
        ]

    def coefficients(self) -> tuple[NDArray[np.int64], Array]:
        """Return positions in the memory and values of all signals in their current intervals."""
        return self.system.graph.entries, coefficients(self.signals, self.intervals, self.p)


def settle(mode: ModeSystem, t: float, x: Array, m: Array, p: Array, options: Options) -> Array:
    """Return x with the algebraic variables solved again after a change of the memory."""
    if not mode.algebraic.size:
        return x
    ny = mode.differential.size

    def system(z: Array) -> tuple[Array, Array, Array]:
        k, by_z, sizes = mode.kernels["closure"](t, np.concatenate((x[:ny], z)), m, p)
        return k, by_z, sizes

    z = solve_algebraic(system, x[ny:], mode=mode.name, variables=mode.algebraic.labels(), time=t)
    settled = np.concatenate((x[:ny], z))
    if not np.all(np.isfinite(settled)):
        raise NonFiniteError("The equations are not finite at a knot of a signal.", mode=mode.name, time=t)
    if mode.invariants:
        landed = mode.land_within(t, settled, m, p, options)
        if landed is None:
            raise ConsistencyError(
                "A signal jumps and takes a constraint with it: the state cannot follow.",
                mode=mode.name,
                time=t,
                variables=mode.differential.names,
                remedy="Use a continuous signal (kind='linear' or 'cubic') in constraints.",
            )
        settled = landed
    return settled
