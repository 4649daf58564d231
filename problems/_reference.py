"""Reference values of worked problems, with their source and accuracy."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
FOLDER = Path(__file__).parent / "reference"


@dataclass(frozen=True, eq=False)
class Table:
    """Columns of numbers with their source.

    Attributes
    ----------
    columns : dict of ndarray, each of shape (n,)
        Columns by name; ``table["t"]`` is a shortcut.
    source : str
        Author or program.
    accuracy : dict of float
        Largest measured absolute error by column; for other columns see `source`.
    comments : tuple of str
        The comment lines of the file.
    """

    columns: Mapping[str, Array]
    source: str
    accuracy: Mapping[str, float] = field(default_factory=dict)
    comments: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def stack(self, *names: str) -> Array:
        """Columns stacked, shape (n, len(names))."""
        return np.column_stack([self.columns[name] for name in names])

    def take(self, names: Mapping[str, str]) -> Table:
        """A table of some columns with new names; `names` maps new to old names."""
        accuracy = {new: self.accuracy[old] for new, old in names.items() if old in self.accuracy}
        return Table({new: self.columns[old] for new, old in names.items()}, self.source, accuracy, self.comments)


@dataclass(frozen=True, eq=False)
class Measured:
    """A functional, its gradient, events and trajectory from another program, with their measured accuracy.

    Attributes
    ----------
    value, value_accuracy : float
        The functional and its absolute error; NaN if unknown.
    gradient, gradient_accuracy : ndarray, shape (n_p,)
        Its gradient and the absolute error of every component; NaN if unknown.
    events, trajectory, sensitivities : Table
    located : ndarray, shape (n_events,)
        Event times from the program's own event location, before polishing.
    """

    source: str
    value: float
    value_accuracy: float
    gradient: Array
    gradient_accuracy: Array
    events: Table
    trajectory: Table
    sensitivities: Table
    located: Array


@dataclass(frozen=True, eq=False)
class Reference:
    """Reference results of a problem.

    Attributes
    ----------
    functional : str
        Name of the functional.
    value : float
        Its value.
    gradient : ndarray, shape (n_p,)
        Its gradient, parameters in order of declaration.
    event_times : ndarray, shape (n_events,)
    event_time_sensitivity : ndarray, shape (n_events, n_p)
    events, states : Table
        Values at the events, and states and sensitivities at chosen times.
    source : str
        Author and program.
    accuracy : float
        Relative error of all values, besides the rounding to double precision.
    printed : dict
        Numbers with all digits that the paper prints: ``"G"``, and gradients by method.
    ode15s : Measured
        The same problem solved by Octave's ode15s.
    bare : Measured, optional
        The same without polished event times, if available.
    """

    functional: str
    value: float
    gradient: Array
    event_times: Array
    event_time_sensitivity: Array
    events: Table
    states: Table
    source: str
    accuracy: float
    printed: Mapping[str, Any]
    ode15s: Measured
    bare: Measured | None = None


def read_table(path: Path, source: str, accuracy: Mapping[str, float] | None = None) -> Table:
    """Read a CSV file with comment lines ``#`` and one line of names."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comments = tuple(line.removeprefix("#").strip() for line in lines if line.startswith("#"))
    rows = list(csv.reader(line for line in lines if not line.startswith("#")))
    values = np.array([[float(cell) for cell in row] for row in rows[1:]])
    return Table(dict(zip(rows[0], values.T, strict=True)), source, accuracy or {}, comments)


def read_json(path: Path) -> Any:
    """Read a JSON file; numbers written as strings stay strings."""
    return json.loads(path.read_text(encoding="utf-8"))


@dataclass(frozen=True, eq=False)
class Exact:
    """Results of a problem with a closed form, or computed independently to many digits.

    Attributes
    ----------
    values : dict of float or ndarray
        Values by functional, (k,) for a vector.
    gradients : dict of ndarray, each (n_p,) or (k, n_p)
        Gradients by functional, parameters in order of declaration.
    event_times : ndarray, shape (n_events,)
    event_time_sensitivity : ndarray, shape (n_events, n_p)
        NaN if unknown.
    final : dict of float
        Variables at the end of the run.
    source : str
        Author and program.
    accuracy : float
        Relative error of all values, besides the rounding to double precision.
    """

    values: Mapping[str, Any]
    gradients: Mapping[str, Array]
    event_times: Array
    event_time_sensitivity: Array
    final: Mapping[str, float]
    source: str
    accuracy: float


def read_exact(path: Path, source: str, accuracy: float) -> Exact:
    """Read values, numbers or strings, from a JSON file; unknown derivatives of event times are NaN."""
    data = read_json(path)
    times, known = data["event_times"], data["event_time_sensitivity"]
    by_event = known if isinstance(known, dict) else {str(i): row for i, row in enumerate(known, 1)}
    sensitivity = np.full((len(times), len(data["parameters"])), np.nan)
    for place, row in by_event.items():
        sensitivity[int(place) - 1] = np.array(row, dtype=float)
    return Exact(
        values={name: float(value) for name, value in data["values"].items()},
        gradients={name: np.array(row, dtype=float) for name, row in data["gradients"].items()},
        event_times=np.array(times, dtype=float),
        event_time_sensitivity=sensitivity,
        final={name: float(value) for name, value in data.get("final", {}).items()},
        source=source,
        accuracy=accuracy,
    )


def derivatives(function: Callable[[Any], Any], p: Array) -> Array:
    """Derivatives of an array-valued analytic function by complex steps, shape (..., n_p)."""
    return complex_step(lambda q: {"": np.asarray(function(q))}, p)[""].T


def with_derivatives(function: Callable[[Any], Any], p: Any) -> tuple[Array, Array]:
    """Value and derivatives of an array-valued analytic function."""
    p = np.asarray(p, dtype=float)
    return np.real(function(p.astype(complex))), derivatives(function, p)


def complex_step(function: Callable[[Any], Mapping[str, Any]], p: Array) -> dict[str, Array]:
    """Derivatives of every entry of `function(p)`, shape (n_p, ...): exact to rounding for analytic functions."""
    rows: dict[str, list[Any]] = {}
    for i in range(p.size):
        shifted = p.astype(complex)
        shifted[i] += 1e-30j
        for name, value in function(shifted).items():
            rows.setdefault(name, []).append(np.imag(value) / 1e-30)
    return {name: np.array(row) for name, row in rows.items()}
