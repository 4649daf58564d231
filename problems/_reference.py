"""Reference values of worked problems: numbers, who computed them, and how well."""

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
    """Columns of numbers that somebody computed.

    Attributes
    ----------
    columns : dict of ndarray, each of shape (n,)
        By name; ``table["t"]`` for short.
    source : str
        Who or what computed them.
    accuracy : dict of float
        Largest absolute error by column, where it was measured; of a column that is not here see `source`.
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
        """Columns side by side, shape (n, len(names))."""
        return np.column_stack([self.columns[name] for name in names])

    def take(self, names: Mapping[str, str]) -> Table:
        """Some of the columns under other names: `names` gives the column of every new name."""
        accuracy = {new: self.accuracy[old] for new, old in names.items() if old in self.accuracy}
        return Table({new: self.columns[old] for new, old in names.items()}, self.source, accuracy, self.comments)


@dataclass(frozen=True, eq=False)
class Measured:
    """A functional, its gradient, events and trajectory by another program, with their measured accuracy.

    Attributes
    ----------
    value, value_accuracy : float
        The functional and its absolute error; NaN where nobody recorded it.
    gradient, gradient_accuracy : ndarray, shape (n_p,)
        Its gradient and the absolute error of every component; NaN where nobody recorded it.
    events, trajectory, sensitivities : Table
    located : ndarray, shape (n_events,)
        Event times as the program's own event location gave them, before anybody polished them.
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
    """What a problem's results are compared with.

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
        Who computed them, by what.
    accuracy : float
        Relative error of all of the above; below it there is only the rounding to double precision.
    printed : dict
        Numbers as the paper prints them, every digit of them: ``"G"``, and gradients by method.
    ode15s : Measured
        The same problem by MATLAB's integrator, as Octave has it.
    bare : Measured, optional
        The same as the integrator comes, event times not polished; None where nobody computed it.
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
    """A CSV file with comment lines ``#`` and one line of names."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comments = tuple(line.removeprefix("#").strip() for line in lines if line.startswith("#"))
    rows = list(csv.reader(line for line in lines if not line.startswith("#")))
    values = np.array([[float(cell) for cell in row] for row in rows[1:]])
    return Table(dict(zip(rows[0], values.T, strict=True)), source, accuracy or {}, comments)


def read_json(path: Path) -> Any:
    """A JSON file, numbers that are written as strings left as they are."""
    return json.loads(path.read_text(encoding="utf-8"))


@dataclass(frozen=True, eq=False)
class Exact:
    """Results of a problem with a closed form, or computed independently to many digits.

    Attributes
    ----------
    values : dict of float or ndarray
        By functional, (k,) for a vector.
    gradients : dict of ndarray, each (n_p,) or (k, n_p)
        By functional, parameters in order of declaration.
    event_times : ndarray, shape (n_events,)
    event_time_sensitivity : ndarray, shape (n_events, n_p)
        NaN where nobody has computed it.
    final : dict of float
        Variables at the end of the run.
    source : str
        Who computed them, by what.
    accuracy : float
        Relative error of all of the above; below it there is only the rounding to double precision.
    """

    values: Mapping[str, Any]
    gradients: Mapping[str, Array]
    event_times: Array
    event_time_sensitivity: Array
    final: Mapping[str, float]
    source: str
    accuracy: float


def read_exact(path: Path, source: str, accuracy: float) -> Exact:
    """Values from a JSON file, numbers or strings; derivatives of event times that nobody has computed are NaN."""
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
