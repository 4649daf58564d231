"""Peaks of a system, and the places of a run that decide them.

Which place decides a peak is known after a run. From then on the peak is a measurement at a constant time, or a value
on one side of an event:

- At an interior extremum of w, dG/dp is dw/dp at the fixed time t, because w' = 0 there. With w' not exactly zero the
  measured value ``w - w'^2 / (2 w'')`` is that at the zero of w', to first order in its derivative as well.
- The time of an interior extremum is ``t - w'/w''`` with the constants t and w'': its derivative is
  ``-(dw'/dp) / w''``. The time of a crossing of zero is ``t - w/w'`` likewise.
- On a side of an event w has its total derivative, with that of the time of the event.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from dae_hybrid.codegen.kernels import Kernel
from dae_hybrid.errors import DaeHybridError, EventError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.statement.peaks import EXTREMA
from dae_hybrid.system.linearisation import chain
from dae_hybrid.system.measurement import Measurement

if TYPE_CHECKING:
    from dae_hybrid.port.records import EventRecord
    from dae_hybrid.system.system import HybridSystem, ModeSystem

#: side of an event: before or after it
Side = Literal["-", "+"]


def width(watched: int) -> int:
    """Return the number of data of a measurement of watched expressions.

    They are weights of the expressions, of their rates and of the squares of these, and a constant.
    """
    return 3 * watched + 1


@dataclass(frozen=True, eq=False)
class Peak:
    """A part of a functional that the whole run decides."""

    functional: str
    first: int  # of its components among those of all functionals
    size: int
    kind: str
    watched: int
    values: Callable[[int], Kernel] = field(repr=False)  # mode -> (t, x, m, p) -> watched expressions
    watch: Callable[[int], Kernel] = field(repr=False)  # the same, with first and second rates
    measure: Callable[[int], Kernel] = field(repr=False)  # see `Measurement.of_mode`

    @property
    def what(self) -> str:
        """The peak in words."""
        return f"{self.kind} of functional '{self.functional}'"

    @property
    def nothing(self) -> Array:
        """Data of a measurement without a value."""
        return np.zeros(width(self.watched))

    def data(
        self, entry: int, value: float = 0.0, rate: float = 0.0, square: float = 0.0, constant: float = 0.0
    ) -> Array:
        """Return the data of a measurement of one watched expression."""
        found, n = self.nothing, self.watched
        found[[entry, n + entry, 2 * n + entry]] = value, rate, square
        found[-1] = constant
        return found


#: mode, time, x, its rates and the memory on a side of an event
type SidePoint = tuple[ModeSystem, float, Array, Array, Array]


class Zero(NamedTuple):
    """What vanishes at the time of a place: the rate of a watched expression, or its value at a crossing."""

    entry: int
    of_rate: bool
    slope: float  # its rate there

    def seen(self, values: Sequence[Array]) -> tuple[float, float]:
        """Return its value and its rate from the watched expressions and their rates at a point."""
        first = int(self.of_rate)
        return float(values[first][self.entry]), float(values[first + 1][self.entry])


class Place(NamedTuple):
    """What one place of a run contributes to a component: a measurement at `time`, or a side of an event.

    The value is that of the measurement, and `time_share` times the time of the event.
    """

    peak: int
    component: int  # of the peak
    time: float
    data: Array
    value: float
    event: int = -1  # index among the events of the run; -1 for a fixed time
    side: Side = "-"
    time_share: float = 0.0
    where: str = ""
    size: float = 0.0  # largest magnitude of the expression in the run
    zero: Zero | None = None  # what vanishes at the time, unless that is an end of a smooth part

    def moved(self, t: float, slope: float) -> Place:
        """Return the place with its zero at another time, with another slope."""
        zero = self.zero
        if zero is None:
            raise AssertionError("ends of smooth parts do not move")
        data, n = self.data.copy(), (self.data.size - 1) // 3
        first = zero.entry + n * zero.of_rate
        data[-1] += data[first] * zero.slope * (self.time - t)  # the constant of a time
        data[first] *= zero.slope / slope
        if zero.of_rate:
            data[2 * n + zero.entry] *= zero.slope / slope
        return self._replace(time=t, data=data, zero=zero._replace(slope=slope))

    def weightless(self) -> Place:
        """Return the place without its contribution."""
        return self._replace(data=np.zeros_like(self.data), time_share=0.0)


class Tie(NamedTuple):
    """Places of which each may decide a component, the deciding one first."""

    chosen: Place
    rivals: tuple[Place, ...]
    is_exact: bool  # whether values are equal to rounding


@dataclass(frozen=True, eq=False)
class Decision:
    """The places that decide the peaks of one run.

    `n_events` is the number of its events; `failures` are conditions of derivatives that do not hold, each with its
    functional. `values` (k,) is what peaks without places contribute to all functionals, NaN for a time that does not
    exist.
    """

    places: tuple[Place, ...]
    n_events: int
    ties: tuple[Tie, ...] = ()
    failures: tuple[tuple[str, DaeHybridError], ...] = ()
    values: Array | None = None

    def contributions(self, peaks: Sequence[Peak], size: int) -> Array:
        """Return what the peaks contribute to all functionals, (size,)."""
        found = np.zeros(size) if self.values is None else self.values.copy()
        for place in self.places:
            found[peaks[place.peak].first + place.component] += place.value
        return found

    def with_places(self, places: Sequence[Place]) -> Decision:
        """Return the decision with other places instead, one for each."""
        new = {id(one): other for one, other in zip(self.places, places, strict=True)}
        ties = tuple(tie._replace(chosen=new[id(tie.chosen)]) for tie in self.ties)
        return replace(self, places=tuple(places), ties=ties)

    def of(self, peaks: Sequence[Peak], functional: str, size: int) -> Decision:
        """Return the places of one functional of `size` components in all, with the values of the others."""

        def is_own(place: Place) -> bool:
            return peaks[place.peak].functional == functional

        own, others = ([p for p in self.places if is_own(p) is mine] for mine in (True, False))
        return replace(
            self,
            places=tuple(own),
            ties=tuple(tie for tie in self.ties if is_own(tie.chosen)),
            values=replace(self, places=tuple(others)).contributions(peaks, size),
        )

    @cached_property
    def followed(self) -> list[Place]:
        """The deciding places, and their rivals without weight."""
        return [*self.places, *(rival.weightless() for tie in self.ties for rival in tie.rivals)]


@dataclass(frozen=True, eq=False)
class EventSide:
    """A contribution of one side of an event to a component."""

    event: int
    side: Side
    component: int  # of all functionals
    measure: Callable[[int], Kernel] = field(repr=False)
    data: Array = field(repr=False)
    time_share: float

    def point(self, system: HybridSystem, event: EventRecord, final: int) -> SidePoint:
        """Return the point of this side of its event; `final` is the mode at the end of the run."""
        transition = system.transitions[event.index]
        if self.side == "-":
            return system.modes[transition.source], event.time, event.x_minus, event.xdot_minus, event.memory_minus
        mode = system.modes[final if transition.target is None else transition.target]
        return mode, event.time, event.x_plus, event.xdot_plus, event.memory_plus

    def value(self, mode: ModeSystem, t: float, x: Array, m: Array, p: Array) -> float:
        """Return the contribution."""
        return float(self.measure(mode.index)(t, x, m, p, self.data)[0][0]) + self.time_share * t

    def derivatives(
        self, mode: ModeSystem, t: float, x: Array, xdot: Array, m: Array, p: Array
    ) -> tuple[Array, Array, float]:
        """Return the derivatives by w and by p at the fixed time, and the derivative by the time of the event."""
        by_u = self.measure(mode.index)(t, x, m, p, self.data)[1]
        by = by_u @ chain(mode, t, x, m, p) if mode.algebraic.size else by_u
        n_w = mode.differential.size + m.size
        rate = float(by_u[0, : x.size] @ xdot + by_u[0, -1])
        return np.asarray(by[0, :n_w]), np.asarray(by[0, n_w:-1]), rate + self.time_share


def decided(system: HybridSystem, decision: Decision) -> HybridSystem:
    """Return the system whose peaks are measurements at the places of a decision."""
    measurements, functions, sides = list(system.measurements), [], []
    ends, n = system.graph.ends, len(system.measurements)
    for place in decision.followed:
        peak = system.peaks[place.peak]
        component = peak.first + place.component
        if place.event >= 0:
            sides.append(EventSide(place.event, place.side, component, peak.measure, place.data, place.time_share))
            continue
        part = slice(component, component + 1)
        is_extremum = peak.kind in EXTREMA
        measurements.append(Measurement(peak.functional, part, place.time, peak.measure, place.data, is_extremum))
        if ends is not None:
            template = ends.measured[n + place.peak]
            functions.append(template._replace(data=place.data, components=part))
    if ends is not None:
        ends = None if sides else replace(ends, measured=(*ends.measured[:n], *functions))
    return replace(
        system,
        measurements=tuple(measurements),
        graph=replace(system.graph, ends=ends, cache={}),
        sides=tuple(sides),
        decision=decision,
        remake=lambda: (decided, (system, decision)),
    )


def refuse_other_events(decision: Decision, t: float) -> EventError:
    """Return the error of a run whose events are not those of the run that decided the peaks."""
    return EventError(
        f"The run with derivatives does not have the {decision.n_events} events of the run that decided the peaks.",
        time=t,
        remedy="Tighten rtol and atol, or set max_step or a resolution of the guards: the run is at the edge of "
        "another one.",
    )
