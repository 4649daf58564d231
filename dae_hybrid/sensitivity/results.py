"""Results of forward and adjoint analysis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dae_hybrid.numeric_input import real_array
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.failure_messages import not_kept
from dae_hybrid.port.records import EventRecord
from dae_hybrid.sensitivity.duality import Duality
from dae_hybrid.sensitivity.forward import TangentState
from dae_hybrid.system.packing import PortableResult
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.system.transition_map import GRAZING_RATE_SHARE
from dae_hybrid.tables import html, in_short
from dae_hybrid.trajectory.datasets import dataset, optional
from dae_hybrid.trajectory.diagnostics import Diagnostics
from dae_hybrid.trajectory.event_table import entries
from dae_hybrid.trajectory.trajectory import Side, Trajectory


@dataclass(frozen=True, eq=False)
class EventSensitivity:
    """Derivatives on both sides of an event.

    Attributes
    ----------
    time : ndarray, shape (n_p,)
        dt_i/dp (SR eq. 6b, 27).
    state_minus, state_plus : ndarray, shape (n_y, n_p)
        Derivatives of the differential state at the fixed time of the event, before and after it (SR eq. 6c): the two
        one-sided derivatives of an output or a measurement at that time.
    memory_minus, memory_plus : ndarray, shape (n_memory, n_p)
        Derivatives of the memory.
    """

    time: Array
    state_minus: Array
    state_plus: Array
    memory_minus: Array
    memory_plus: Array

    def __repr__(self) -> str:
        return f"<EventSensitivity dt/dp = {_in_a_line(self.time)}>"


class Along(NamedTuple):
    """Picklable part of the `TangentState` of a run."""

    directions: Array
    event_times: list[Array]
    sides: list[tuple[Array, Array]]


@dataclass(frozen=True, eq=False)
class ForwardSensitivity(PortableResult):
    """Forward sensitivities of a run.

    Attributes
    ----------
    trajectory : Trajectory
        The run itself, integrated together with the sensitivities.
    parameters : tuple of str
        Names of the parameters, one per column below.
    gradient : dict of ndarray
        dG/dp by functional: (n_p,), or (k, n_p) for a vector functional.
    event_time_sensitivity : ndarray, shape (n_events, n_p)
        dt_i/dp (SR eq. 6b, 27); NaN where motion that was held on a surface begins to leave it, or a guard has no rate.
    event_sensitivities : tuple of EventSensitivity
        Derivatives on both sides of every event.
    duality : dict of Duality
        The duality check of every functional, if requested.
    diagnostics : Diagnostics
        Notes and checks.

    ``fsa["u"]`` is du/dp at the output times ``fsa.t``: (n_t, n_p), or (n_t, size, n_p) for a vector.
    """

    trajectory: Trajectory
    parameters: tuple[str, ...]
    gradient: Mapping[str, Array]
    duality: Mapping[str, Duality]
    _directions: TangentState | Along | None = field(repr=False)
    _verdict: Diagnostics = field(repr=False)

    def _owner(self) -> HybridSystem:
        return self.trajectory.system

    def _state(self) -> dict[str, Any]:
        along = self._directions
        kept = None if along is None else Along(along.directions, list(along.event_times), list(along.sides))
        return super()._state() | {"_directions": kept}

    @property
    def _along(self) -> TangentState | Along:
        if self._directions is None:
            raise not_kept("derivatives at events", "final", "all", "events")
        return self._directions

    @cached_property
    def _completed(self) -> list[Array]:
        """dx at the outputs, one array (n, n_p, n_x) per item of `Trajectory.output_points`."""
        run, directions = self.trajectory, self._along.directions
        return [p.sensitivities(run.parameters, directions) for p in run.output_points]

    @cached_property
    def event_time_sensitivity(self) -> Array:
        """dt_i/dp (SR eq. 6b, 27), shape (n_events, n_p); NaN where the guard has no rate."""
        times, events = self._along.event_times, self.trajectory.event_table
        found = np.array(times).reshape(len(times), len(self.parameters))
        for i in np.flatnonzero(events.follows & (events.order == 0)).tolist():
            if self.events[i].returns:
                found[i] = np.nan
        found[~events.follows & (np.abs(events.rate) <= GRAZING_RATE_SHARE * events.rate_scale)] = np.nan
        return found

    @cached_property
    def event_sensitivities(self) -> tuple[EventSensitivity, ...]:
        """Derivatives on both sides of every event."""
        found, along = [], self._along
        for event, tau, (before, after) in zip(self.events, along.event_times, along.sides, strict=True):
            minus, plus = event.n_differential
            found.append(EventSensitivity(tau, before[:minus], after[:plus], before[minus:], after[plus:]))
        return tuple(found)

    @cached_property
    def diagnostics(self) -> Diagnostics:
        """Notes and checks."""
        return self.trajectory.diagnostics + self._verdict

    @property
    def t(self) -> Array:
        """Output times, shape (n_t,)."""
        return self.trajectory.t

    @property
    def functionals(self) -> Mapping[str, Any]:
        """Values of the functionals."""
        return self.trajectory.functionals

    @property
    def events(self) -> Sequence[EventRecord]:
        """Event records of the run; `trajectory.event_table` holds them as columns."""
        return self.trajectory.events

    def __getitem__(self, name: str) -> Array:
        run = self.trajectory
        width, system, count = run.width(name), run.system, len(self.parameters)
        points, signal, memory = run.output_points, system.signal(name), system.memory
        found = np.full((run.t.size, width, count), np.nan)
        for i, p in enumerate(points) if count else ():
            if name in p.mode.variables:
                found[p.places] = np.swapaxes(self._completed[i][:, :, p.mode.variables[name]], 1, 2)
            elif signal is not None and p.derivatives is not None:
                found[p.places, 0] = signal.sensitivities(p.memory, p.derivatives[2], p.t)
            elif name in memory and p.derivatives is not None:
                found[p.places] = p.derivatives[2][:, memory[name]]
        return found[:, 0, :] if width == 1 else found

    def __repr__(self) -> str:
        lines = [f"dG/dp of '{name}': {_in_a_line(value)}" for name, value in self.gradient.items()]
        return f"<ForwardSensitivity by {', '.join(self.parameters)}; {'; '.join(lines)}>"

    def _repr_html_(self) -> str:
        return _shown(f"<{type(self).__name__} of '{self.trajectory.system.name}'>", self.parameters, self.gradient)

    def columns(self) -> dict[str, NDArray[Any]]:
        """One column per entry and parameter, each (n_t,): ``t``, ``mode``, and ``dx/dp`` of every variable."""
        columns: dict[str, NDArray[Any]] = {"t": self.t, "mode": self.trajectory.modes}
        for name in self.trajectory.names:
            values = self[name]
            for i, parameter in enumerate(self.parameters):
                columns |= entries(f"d{name}{{}}/d{parameter}", values[..., i])
        return columns

    def to_dataframe(self) -> Any:
        """A pandas DataFrame of `columns`, one row per output time. Needs pandas (extra ``[data]``)."""
        return optional("pandas", "to_dataframe()").DataFrame(self.columns())

    def to_xarray(self) -> Any:
        """An xarray Dataset: derivatives of every variable, memory and signal along ``t`` and ``parameter``.

        Vectors have a further dimension, ``x_entry`` for a variable x. ``gradient(G)`` of a functional G lies along
        ``parameter`` (and ``G_component`` of a vector), ``event_time`` along ``event`` and ``parameter``; the
        coordinate ``parameter_unit`` has the units of the parameters. Needs xarray (extra ``[data]``).

        Raises
        ------
        ImportError
            xarray is not installed.
        """
        values = {name: self[name] for name in self.trajectory.names}
        further: dict[str, tuple[tuple[str, ...], Array]] = {
            f"gradient({name})": ((*([f"{name}_component"] if g.ndim > 1 else []), "parameter"), g)
            for name, g in self.gradient.items()
        }
        further["event_time"] = ("event", "parameter"), self.event_time_sensitivity
        return dataset(self.trajectory, values, {"parameter": self.parameters}, further, derivatives=True)


@dataclass(frozen=True, eq=False)
class Gradient(PortableResult):
    """The gradient of one functional by adjoint analysis.

    Attributes
    ----------
    functional : str
    value : float or ndarray, shape (k,)
        Value of the functional.
    parameters : tuple of str
        Names of the parameters, one per column of the gradient.
    gradient : ndarray, shape (n_p,) or (k, n_p)
    trajectory : Trajectory
        The forward run.
    statistics : dict of int
        Counters of the backward sweep.
    duality : Duality or None
        The duality check, if requested.
    diagnostics : Diagnostics
        Notes and checks.
    """

    functional: str
    value: Any
    parameters: tuple[str, ...]
    gradient: Array
    trajectory: Trajectory
    statistics: Mapping[str, int]
    duality: Duality | None
    algorithm: str
    _verdict: Diagnostics = field(repr=False)
    _samples: Callable[[Array, Side], list[Array]] | None = field(repr=False)

    def _owner(self) -> HybridSystem:
        return self.trajectory.system

    @cached_property
    def diagnostics(self) -> Diagnostics:
        """Notes and checks."""
        return self.trajectory.diagnostics + self._verdict

    def adjoint(self, t: ArrayLike, side: Side = "right") -> dict[str, Array]:
        """Return the adjoint variables at times `t`, by another backward sweep.

        For differential variables this is dG/dy, the derivative of the functional with respect to the state at that
        time (lambda in SR eq. 36; SR eq. 43 has the opposite sign); for algebraic variables it is mu of eq. 36b.

        Parameters
        ----------
        t : float or array, shape (n,)
            Times within the run.
        side : {"right", "left"}
            Value at the time of an event: after it (default) or before it.

        Returns
        -------
        dict of ndarray
            By name: (n,) for scalars, (n, size) for vectors, with a trailing axis k for a vector functional;
            without the leading axis for a scalar `t`. NaN if the active mode does not have the variable.

        Raises
        ------
        NotKeptError
            The gradient was computed with another ``keep`` than ``"all"``.
        """
        if self._samples is None:
            raise not_kept("steps, which the adjoint follows,", self.trajectory.kept, "all")
        self.trajectory(t, side)  # checks the times and the side
        times = real_array(t)
        flat, order = np.unique(self.trajectory.snapped(times.reshape(-1), side), return_inverse=True)
        found = self._samples(flat, side)
        system, k = self.trajectory.system, np.size(self.value)
        owners = [self.trajectory.segments[i].mode for i in self.trajectory.owners(flat, side)]
        result: dict[str, Array] = {}
        for name in (n for n in self.trajectory.names if n not in system.memory):
            width = self.trajectory.width(name)
            values = np.full((flat.size, width, k), np.nan)
            for i, (mode, sample) in enumerate(zip(owners, found, strict=True)):
                layout = mode.variables
                if name in layout:
                    values[i] = sample[:, layout[name]].T
            values = values[order.reshape(-1)]
            if np.ndim(self.value) == 0:
                values = values[:, :, 0]
            values = values[:, 0] if width == 1 else values
            result[name] = values[0] if times.ndim == 0 else values
        return result

    def __repr__(self) -> str:
        by, gradient = ", ".join(self.parameters), _in_a_line(self.gradient)
        return f"<Gradient of '{self.functional}' = {self.value} by {by}: {gradient}>"

    def _repr_html_(self) -> str:
        heading = f"<Gradient of '{self.functional}' = {in_short(self.value)}>"
        return _shown(heading, self.parameters, {self.functional: self.gradient})


def _in_a_line(values: Array) -> str:
    return " ".join(str(values).split())


def _shown(heading: str, parameters: Sequence[str], gradients: Mapping[str, Array]) -> str:
    """Gradients as a table in HTML, a row for every component."""
    rows = [["", *(f"d/d{name}" for name in parameters)]]
    for name, gradient in gradients.items():
        for i, row in enumerate(np.atleast_2d(gradient)):
            rows.append([f"{name}[{i}]" if gradient.ndim > 1 else name, *map(in_short, row)])
    return html(heading, rows)
