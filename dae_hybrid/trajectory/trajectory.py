"""Results of a simulation: segments, and the trajectory that they form with the event records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dae_hybrid.errors import DaeHybridError, OptionError
from dae_hybrid.layout import IDLE
from dae_hybrid.lazily import Lazily
from dae_hybrid.method import Method
from dae_hybrid.numeric_input import real_array, shown
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.crossings import Turn
from dae_hybrid.options import Keep, Options
from dae_hybrid.port.failure_messages import NO_LIMIT, not_kept
from dae_hybrid.port.record_table import RECORDS, RecordTable
from dae_hybrid.port.records import EventRecord, KnotRecord, MeasurementRecord
from dae_hybrid.port.replay import Interpolant, SegmentReplay
from dae_hybrid.port.segment_rules import SAME_INSTANT
from dae_hybrid.system.packing import Portable, PortableResult
from dae_hybrid.tables import counted, html, in_short
from dae_hybrid.trajectory.datasets import dataset, optional, refuse_reserved
from dae_hybrid.trajectory.event_table import EventTable, entries
from dae_hybrid.trajectory.outputs import Outputs, Places, Points, column, width_of
from dae_hybrid.trajectory.parts import TrajectoryParts

if TYPE_CHECKING:
    from dae_hybrid.system.initial import RunStart
    from dae_hybrid.system.system import HybridSystem, ModeSystem
    from dae_hybrid.trajectory.diagnostics import Diagnostics
    from dae_hybrid.trajectory.jump_sensitivity import JumpSensitivity
    from dae_hybrid.trajectory.solvability import SolvabilityReport

Side = Literal["left", "right"]
#: above these numbers of segments, dense output is computed by another run instead of by their interpolants: with
#: explicit steps, whose interpolants cost several times as much as the steps, and with implicit ones, whose
#: interpolants are stored
MAX_EXPLICIT_SEGMENTS, MAX_IMPLICIT_SEGMENTS = 4, 256


class SegmentSensitivities(TypedDict, total=False):
    """Fields of a `Segment` after forward analysis."""

    sensitivity_rows: Array
    memory_sensitivities: Array
    directions: Array


@dataclass(frozen=True, eq=False)
class Segment(Portable):
    """A smooth part of the trajectory, between two events.

    `t` (n_t,) and `values` (n_t, n_x) are its outputs; x_start, x_end and their rates satisfy the equations of the mode
    to rounding. After forward analysis `sensitivities` (n_t, n_directions, n_x) are the derivatives at the outputs and
    `memory_sensitivities` (n_memory, n_directions) those of the memory.
    """

    mode: ModeSystem
    parameters: Array
    t_start: float
    t_end: float
    x_start: Array
    x_end: Array
    xdot_start: Array
    xdot_end: Array
    memory: Array
    how: Method
    t: Array
    states: Array  # (n_t, .), without eliminated variables
    interpolate: SegmentReplay
    sensitivity_rows: Array | None = None
    memory_sensitivities: Array | None = None
    directions: Array | None = None
    path: Array | None = None  # steps for the adjoint, if stored

    def __repr__(self) -> str:
        return f"<Segment in '{self.mode.name}' from {self.t_start:g} to {self.t_end:g} by {self.method}>"

    def _state(self) -> dict[str, Any]:
        return super()._state() | {"path": None}

    @property
    def method(self) -> str:
        """Name of the integration method."""
        return self.how.name

    @property
    def has_discrete_adjoint(self) -> bool:
        """Whether the adjoint is the exact, discrete one of the steps, not an integrated one."""
        return self.how.retakes_steps or (self.how.path.exact and self.path is not None)

    def extent(self) -> Array:
        """Return the largest magnitude or change of each integrated state, (n,)."""
        n, span = self.mode.equations.n, self.t_end - self.t_start
        ends = (self.x_start[:n], self.x_end[:n], span * self.xdot_start[:n], span * self.xdot_end[:n])
        found: Array = np.abs(ends).max(axis=0)
        if len(self.states):
            found = np.maximum(found, np.abs(self.states).max(axis=0))
        return found

    def first(self, count: int) -> Segment:
        """Return the segment with its first `count` outputs."""
        rows = self.sensitivity_rows
        rows = rows if rows is None else rows[:count]
        return replace(self, t=self.t[:count], states=self.states[:count], sensitivity_rows=rows)

    @cached_property
    def values(self) -> Array:
        """x = (y, z) at the output times, shape (n_t, n_x)."""
        values = self._completed(self.t, self.states)
        values.flags.writeable = False
        return values

    @cached_property
    def sensitivities(self) -> Array | None:
        """dx at the output times, shape (n_t, n_directions, n_x)."""
        if self.sensitivity_rows is None or self.memory_sensitivities is None or self.directions is None:
            return None
        if self.how.final_outputs:
            return self.sensitivity_rows
        return self.mode.complete_sensitivities(
            self.t, self.states, self.sensitivity_rows, self.memory, self.memory_sensitivities,
            self.parameters, self.directions,
        )  # fmt: skip

    @cached_property
    def _interpolant(self) -> Interpolant:
        return self.interpolate()

    def steps(self) -> Array:
        """Return the rows of the interpolant, one per step; see `port.replay`."""
        return self._interpolant.rows

    def dense(self, t: Array) -> Array:
        """Return x at times within the segment, shape (len(t), n_x).

        The interpolant is created on first access, by integrating the segment again.
        """
        return self._completed(t, self.states_at(t))

    def _completed(self, t: Array, states: Array) -> Array:
        return states if self.how.final_outputs else self.mode.complete_rows(t, states, self.memory, self.parameters)

    def states_at(self, t: Array) -> Array:
        """What the integrator integrates, at times within the segment."""
        return self._interpolant(t)

    def points(self, t: Array, places: Places) -> Points:
        """Return `dense` as `Points`; values at the ends are those of the record."""

        def make() -> Array:
            x = self.dense(t)
            x[t == self.t_start], x[t == self.t_end] = self.x_start, self.x_end
            return x

        return Points(self.mode, places, t, np.tile(self.memory, (t.size, 1)), make)


def _distinct(times: Array) -> Array:
    """Return increasing times without repetitions."""
    return times[np.append(True, np.diff(times) > 0)] if times.size else times


type Part = Segment | EventRecord | KnotRecord | MeasurementRecord


def _times(t: ArrayLike) -> Array:
    try:
        times = real_array(t)
    except ValueError as reason:
        raise OptionError(f"Times of dense output {reason}.") from None
    if times.ndim > 1:
        raise OptionError(
            f"Times of dense output must be a number or a one-dimensional array, got shape {times.shape}.",
            remedy="Pass t.ravel(), and reshape what comes back.",
        )
    return times


@dataclass(frozen=True, eq=False)
class Trajectory(PortableResult):
    """A hybrid trajectory. Immutable.

    ``sol.t`` are the output times (both sides of an event unless ``t_eval`` was given), ``sol["u"]`` the values of a
    variable or memory at these times (NaN where the active mode does not have it), ``sol(t)`` dense output,
    ``sol.events`` the event records, ``sol.functionals`` the values of the functionals, ``sol.statistics`` the
    integrator's counters, ``sol.diagnostics`` notes and checks.

    Examples
    --------
    >>> from dae_hybrid.problems import hybrid_ode
    >>> import dae_hybrid as dh
    >>> sol = dh.simulate(hybrid_ode.system(), hybrid_ode.t_span, rtol=1e-10)
    >>> [round(event.time, 6) for event in sol.events]
    [0.219216, 0.275813, 1.266348]
    """

    system: HybridSystem
    t_span: tuple[float, float]
    options: Options = field(repr=False)
    parameters: Array
    parts: TrajectoryParts = field(repr=False)
    integrals: Array
    functionals: Mapping[str, Any]
    statistics: Mapping[str, int]
    notes: tuple[str, ...]
    start: RunStart
    final: tuple[float, int, Array, Array]  # t, mode, x, memory
    turns: tuple[tuple[int, Turn], ...] = field(default=(), repr=False)  # extrema of guards close to zero
    kept: Keep = "all"
    sampled: bool = False  # whether outputs are at requested times
    rerun: Callable[[Array], Trajectory] | None = field(
        default=None, repr=False
    )  # repeats the run with outputs at times
    accumulation: float | None = None  # limit of the event times if it has ended the run
    complete: bool = True

    def _owner(self) -> HybridSystem:
        return self.system

    def _state(self) -> dict[str, Any]:
        made = {"diagnostics": self.__dict__["diagnostics"]} if "diagnostics" in self.__dict__ else {}
        return super()._state() | made  # what keep="final" lets go of cannot be made again

    @property
    def segments(self) -> Lazily[Segment]:
        """The smooth parts, in order of time; each is created on access."""
        self._demand("segments", "all")
        return self.parts.segments

    @property
    def pieces(self) -> Sequence[Segment]:
        """The smooth parts as plots need them, with their ends and outputs."""
        return self.segments

    @property
    def events(self) -> Lazily[EventRecord]:
        """One record per transition, in order, created on access. `event_table` holds them as columns."""
        self._demand("events", "all", "events")
        return self.parts.events

    @property
    def n_events(self) -> int:
        """Number of transitions; known of every run."""
        return self.parts.n_events

    @cached_property
    def event_table(self) -> EventTable:
        """The events as columns, see `EventTable`.

        Examples
        --------
        >>> from dae_hybrid.problems import hybrid_ode
        >>> import dae_hybrid as dh
        >>> sol = dh.simulate(hybrid_ode.system(), hybrid_ode.t_span, rtol=1e-10)
        >>> sol.event_table.t.round(6)
        array([0.219216, 0.275813, 1.266348])
        """
        self._demand("events", "all", "events")
        return EventTable(self.system, self.parts)

    def thinned(self, keep: Keep) -> Trajectory:
        """Return the trajectory reduced to the parts to keep."""
        if keep == "all":
            return self
        parts = self.parts.thinned(events=keep == "events", outputs=self.sampled)
        other = replace(self, parts=parts, kept=keep, rerun=None)
        if "diagnostics" in self.__dict__:
            other.__dict__["diagnostics"] = self.diagnostics
        return other

    def _demand(self, what: str, *enough: Keep) -> None:
        """Refuse access to parts that were not kept."""
        if self.kept not in enough:
            raise not_kept(what, self.kept, *enough)

    @cached_property
    def _outputs(self) -> Outputs:
        if not (self.kept == "events" and self.sampled):
            self._demand("outputs", "all")
        return Outputs(self.system, self.parts, self.parameters)

    @property
    def ended_by_event(self) -> bool:
        """Whether a transition ended the run, so that its final time depends on the parameters."""
        if self.accumulation is not None:
            return self.n_events > 0
        return self.parts.ends_with_event

    @property
    def singularity(self) -> str:
        """The note on an event at which rates have no limit, empty without one."""
        return next((note for note in self.notes if NO_LIMIT in note), "")

    @cached_property
    def uncertified(self) -> tuple[EventRecord, ...]:
        """The events whose derivatives need further checks."""
        return () if self.parts.is_certified else self.parts.uncertified

    def largest(self, mode: ModeSystem) -> Array:
        """Return the largest magnitudes of a mode's variables at outputs and segment ends, (n_x,)."""
        found = np.zeros(mode.variables.size)
        for item in self.parts.given:  # rates times durations are not used: oscillations would be overestimated
            if isinstance(item, RecordTable):
                points = [item.largest[mode.index][None]] if mode.index in item.largest else []
            elif isinstance(item, Segment) and item.mode is mode:
                points = [item.x_start[None], item.x_end[None], item.states]
            else:
                continue
            for x in points:
                n = x.shape[1]
                found[:n] = np.maximum(found[:n], np.abs(x).max(axis=0, initial=0.0))
        return found

    @cached_property
    def diagnostics(self) -> Diagnostics:
        """Notes on the run, and the results of its checks."""
        from dae_hybrid.trajectory.diagnostics import of_run

        self._demand("diagnostics", "all", "events")
        return of_run(self)

    @property
    def output_points(self) -> Sequence[Points]:
        """The outputs by mode."""
        return self._outputs.points

    @property
    def t(self) -> Array:
        """Output times, shape (n_t,)."""
        return self._outputs.t

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all variables, memories and signals, as in ``sol[name]``."""
        seen = {name: None for mode in self.system.modes for name in mode.variables.names if name != IDLE}
        return (*seen, *self.system.memory.names)

    @cached_property
    def modes(self) -> NDArray[np.str_]:
        """Name of the active mode at every output time, shape (n_t,)."""
        return np.array([mode.name for mode in self.system.modes])[self._outputs.modes]

    def held(self, name: str, memory: Array, t: Array) -> Array:
        """Return a memory, or a signal by its coefficients in the memory, at times: (len(t), width)."""
        signal = self.system.signal(name)
        if signal is not None:
            return signal.evaluate(memory, t)[:, None]
        return np.tile(memory[self.system.memory[name]], (len(t), 1))

    def width(self, name: str) -> int:
        """Return the number of entries of a variable, memory or signal."""
        if not isinstance(name, str):
            raise KeyError(f"Names are strings, got {shown(name)}; there are {', '.join(self.names)}.")
        if name not in self.names:
            raise KeyError(f"No variable {name!r}; there are {', '.join(self.names)}.")
        return width_of(self.system, name)

    def __getitem__(self, name: str) -> Array:
        self.width(name)  # checks the name
        return column(self.system, name, self.t.size, self._outputs.points)

    def __call__(self, t: ArrayLike, side: Side = "right") -> dict[str, Array]:
        """Return every variable and memory at the times `t`.

        Parameters
        ----------
        t : float or array, shape (n,)
            Times within the run.
        side : {"right", "left"}
            Value at the time of an event: after it (default) or before it.

        Returns
        -------
        dict of ndarray
            By name: scalars for a scalar `t`; otherwise (n,) for scalars and (n, size) for vectors.

        Raises
        ------
        NotKeptError
            The run had another ``keep`` than ``"all"``.
        OptionError
            A time is outside the run or not a number, the times have more than one dimension, or `side` is neither
            value.
        """
        if not isinstance(side, str) or side not in ("left", "right"):
            raise OptionError(f"side must be 'left' or 'right', got {side!r}.")
        self._demand("steps, which dense output is made of,", "all")
        times = _times(t)
        flat = times.reshape(-1)
        start, end = self.t_span[0], self.final[0]
        if not np.all((flat >= start) & (flat <= end)):
            raise OptionError(f"Dense output is available from {start} to {end}, got {flat.min()} to {flat.max()}.")
        flat, order = np.unique(self.snapped(flat, side), return_inverse=True)
        points = self._points(flat, side)
        order = order.reshape(times.shape)
        return {name: column(self.system, name, flat.size, points)[order] for name in self.names}

    def _points(self, t: Array, side: Side) -> list[Points]:
        """Return points of the run at increasing times."""
        found, (end, mode, x, memory), given = list[Points](), self.final, self.parts.given
        after_event = bool(given) and isinstance(given[-1], RecordTable | RECORDS)
        if t.size and t[-1] == end and (not given or (side == "right" and after_event)):
            t, places = t[:-1], np.array([t.size - 1])
            found.append(Points(self.system.modes[mode], places, np.array([end]), memory[None, :], lambda: x[None, :]))
        owners = self.owners(t, side)
        most = (
            MAX_EXPLICIT_SEGMENTS if all(method.path.exact for method in self.parts.methods) else MAX_IMPLICIT_SEGMENTS
        )
        again = self._outputs_at(t) if np.count_nonzero(np.diff(owners)) >= most else None
        at = np.arange(t.size)
        if again is not None:
            found += again.points
            ends = np.append(self.parts.starts[1:], end)
            at = np.flatnonzero(t == ends[owners]) if side == "left" else at[:0]  # outputs are after an event
        wanted, first = np.unique(owners[at], return_index=True)
        for index, places in zip(wanted.tolist(), np.split(at, first)[1:], strict=True):
            found.append(self.segments[index].points(t[places], places))
        return found

    def _outputs_at(self, t: Array) -> Outputs | None:
        """Return outputs of the same run at these times; None if the run cannot be repeated."""
        with suppress(DaeHybridError):
            other = None if self.rerun is None else self.rerun(t)
            if other is not None and np.array_equal(other.t, t):
                is_same = np.array_equal(_distinct(self.parts.starts), _distinct(other.parts.starts))
                return other._outputs if is_same else None
        return None

    def snapped(self, t: Array, side: Side) -> Array:
        """Return times, with those that equal an event's or a segment's start to rounding set to it."""
        starts = self.parts.starts
        ends = np.append(starts, self.final[0]) if self.ended_by_event or not starts.size else starts
        close = SAME_INSTANT * np.maximum(np.abs(t), t - self.t_span[0])
        if side == "right":
            nearest = ends[np.maximum(np.searchsorted(ends, t + close, side="right") - 1, 0)]
        else:
            nearest = ends[np.minimum(np.searchsorted(ends, t - close), ends.size - 1)]
        return np.where(np.abs(nearest - t) <= close, nearest, t)

    def owners(self, t: Array, side: Side) -> NDArray[np.intp]:
        """Return the segment index of each time; an event belongs to the segment after it, or before it ("left")."""
        starts = self.parts.starts
        return np.clip(np.searchsorted(starts, t, side=side) - 1, 0, len(starts) - 1)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return one column per entry, (n_t,): ``t``, ``mode``, variables and memory; ``x[0]``, ... of a vector."""
        columns: dict[str, NDArray[Any]] = {"t": self.t, "mode": self.modes}
        refuse_reserved(self.names, columns)
        for name in self.names:
            columns |= entries(f"{name}{{}}", self[name])
        return columns

    def to_dataframe(self) -> Any:
        """Return a pandas DataFrame: one row per output time, columns ``t``, ``mode`` and every variable.

        Needs pandas (extra ``[data]``).
        """
        return optional("pandas", "to_dataframe()").DataFrame(self.columns())

    def to_xarray(self) -> Any:
        """An xarray Dataset: every variable, memory and signal along ``t``, with units and descriptions.

        Vectors have a further dimension, ``x_entry`` for a variable x. ``mode`` is a coordinate along ``t``, and the
        attributes have the functionals and the parameters. Needs xarray (extra ``[data]``).

        Raises
        ------
        ImportError
            xarray is not installed.
        """
        return dataset(self, {name: self[name] for name in self.names}, {}, {})

    def solvability(self) -> SolvabilityReport:
        """Evaluate the conditions for a solution and its derivatives at the start and at every transition.

        Examples
        --------
        >>> import dae_hybrid as dh
        >>> from dae_hybrid.problems import hybrid_ode
        >>> sol = dh.simulate(hybrid_ode.system(), hybrid_ode.t_span, rtol=1e-10)
        >>> [round(point.rate, 3) for point in sol.solvability()[1:]]
        [3.167, -5.889, 3.894]
        """
        from dae_hybrid.trajectory.solvability import solvability

        return solvability(self)

    def jump_sensitivity(self, event: int) -> JumpSensitivity:
        """Return the generalised jump sensitivity matrix of an event, by its index in `events`.

        It maps derivatives just before the event to those just after it; its transpose maps adjoints in the opposite
        direction. See `JumpSensitivity`.

        Raises
        ------
        OptionError
            There is no such event.
        EventError
            The event only follows another one, or the guard grazes (`GrazingError`).
        """
        from dae_hybrid.trajectory.jump_sensitivity import jump_sensitivity

        return jump_sensitivity(self, event)

    def plot(self, *names: str, axes: Any = None) -> Any:
        """Plot variables over time, jumps drawn as gaps; see `dae_hybrid.report.plotting.plot_trajectory`."""
        from dae_hybrid.report.plotting import plot_trajectory

        return plot_trajectory(self, *names, axes=axes)

    def __repr__(self) -> str:
        values = ", ".join(f"{name} = {value}" for name, value in self.functionals.items())
        state = "" if self.complete else ", incomplete"
        return (
            f"<Trajectory of '{self.system.name}' from {self.t_span[0]:g} to {self.final[0]:g}: "
            f"{counted(self.parts.n_segments, 'segment')}, {counted(self.n_events, 'event')}"
            f"{f', {values}' if values else ''}{state}>"
        )

    def _repr_html_(self) -> str:
        (_, mode, x, memory), system, rows = self.final, self.system, [["quantity", "value at the end", "unit"]]
        rows += [[f"functional {name}", in_short(value), ""] for name, value in self.functionals.items()]
        for layout, values in ((system.modes[mode].variables, x), (system.memory, memory)):
            for name in (n for n in layout.names if system.signal(n) is None):
                rows.append([name, in_short(values[layout[name]]), system.units.get(name, "")])
        return html(repr(self), rows)
