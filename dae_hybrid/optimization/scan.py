"""Scans: a functional along a line in parameter space, with its kinks and jumps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dae_hybrid.conditions.sequences import EventSequence
from dae_hybrid.errors import DaeHybridError, OptionError, ParameterError, UnsupportedError
from dae_hybrid.interface.api import RunOptions
from dae_hybrid.interface.batch import batch
from dae_hybrid.interface.parameter_sets import ParameterTable
from dae_hybrid.interface.prepared_case import Analysis
from dae_hybrid.interface.runs import Parameters
from dae_hybrid.interface.starts import started
from dae_hybrid.numeric_input import real_array, shown
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.optimization.changes import Budget, Change, Scales, changes_between, tolerances
from dae_hybrid.optimization.line import Line, LinePoint
from dae_hybrid.options import Options
from dae_hybrid.statement.declarations import Mode
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.tables import align, counted, html
from dae_hybrid.trajectory.datasets import optional

#: limit on the runs that locate changes
MAX_RUNS = 2000
#: with more parameters than this along the line, the adjoint is used
MAX_FORWARD = 4
#: rows shown in a table
MAX_ROWS = 20


@dataclass(frozen=True, eq=False)
class Scan:
    """A functional along a line in parameter space.

    Attributes
    ----------
    functional, along : str
        Name of the functional, and the parameter or the direction in words.
    at : ndarray, shape (n,)
        Positions on the line: values of the parameter, or multiples of the direction.
    values, derivatives : ndarray, shape (n,)
        Values of the functional and its derivatives along the line. Both are NaN where a run failed; a derivative is
        NaN where it is refused.
    errors : tuple of DaeHybridError or None
        Why a value or a derivative is missing.
    digests : ndarray of int, shape (n,)
        Digest of the sequence of events at each position, see `Run`; 0 where the run failed.
    changes : tuple of Change
        Changes of the sequence between neighbouring positions, from left to right.
    unlocated : tuple of (float, float)
        Intervals between neighbouring valid positions with different sequences that were not searched: because of
        ``locate=False``, of the limit on the number of runs, or because runs between them failed. An interval on which
        the limit ended a search is in `changes`, as ``"unresolved"``.
    """

    functional: str
    along: str
    at: Array
    values: Array
    derivatives: Array
    errors: tuple[DaeHybridError | None, ...]
    digests: NDArray[np.int64]
    changes: tuple[Change, ...]
    unlocated: tuple[tuple[float, float], ...]
    _line: Line = field(repr=False)

    @property
    def kinks(self) -> tuple[Change, ...]:
        """Changes at which only the derivative jumps."""
        return self._of("kink")

    @property
    def jumps(self) -> tuple[Change, ...]:
        """Changes at which the value jumps."""
        return self._of("jump")

    def _of(self, kind: str) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.kind == kind)

    @cached_property
    def sequences(self) -> tuple[EventSequence | None, ...]:
        """The sequence of events at each position; None where the run failed.

        Every distinct sequence takes one run on first access.
        """
        points = zip(self.at.tolist(), self.digests.tolist(), np.isnan(self.values), strict=True)
        none = np.zeros(0)
        return tuple(
            None if failed else self._line.sequence(LinePoint(s, none, none, digest)) for s, digest, failed in points
        )

    def parameters(self, s: float) -> Array:
        """All parameters at a position, in order of declaration, shape (n_parameters,)."""
        return self._line.parameters(s)

    def to_dataframe(self) -> Any:
        """Return the positions as a pandas DataFrame: position, value, derivative, digest, error, one row each.

        Raises
        ------
        ImportError
            pandas (extra ``[data]``) is not installed.
        """
        columns = {
            self.along: self.at, "value": self.values, "derivative": self.derivatives, "digest": self.digests,
            "error": [None if error is None else error.message for error in self.errors],
        }  # fmt: skip
        return optional("pandas", "to_dataframe()").DataFrame(columns)

    def plot(self, axes: Any = None) -> Any:
        """Draw value and derivative, with a colour for each sequence, and kinks and jumps marked.

        Between two changes without a position between them the value is the cubic through the values and derivatives
        at the changes. Dots mark the positions if there are at most 200.

        Parameters
        ----------
        axes : sequence of two matplotlib Axes, optional
            Axes for the value and the derivative; by default a new figure.

        Returns
        -------
        matplotlib.figure.Figure
            The figure.
        """
        from dae_hybrid.optimization.pictures import plot_scan

        return plot_scan(self, axes)

    def __len__(self) -> int:
        return self.at.size

    def __repr__(self) -> str:
        kinds = [change.kind for change in self.changes]
        found = [counted(kinds.count(kind), kind) for kind in ("jump", "kink") if kind in kinds]
        found += [f"{kinds.count(kind)} {kind}" for kind in ("smooth", "unresolved") if kind in kinds]
        found += [f"{len(self.unlocated)} not located"] if self.unlocated else []
        failed = int(np.isnan(self.values).sum())
        found += [f"{failed} failed"] if failed else []
        return f"<Scan of '{self.functional}' along {self.along}: {', '.join([counted(len(self), 'point'), *found])}>"

    def _rows(self) -> list[list[str]]:
        rows = [[self.along, "change", "value on the left", "on the right", "derivative on the left", "on the right"]]
        for change in self.changes[:MAX_ROWS]:
            numbers = [f"{number[0]:.6g}" for number in (*change.values, *change.slopes)]
            rows.append([f"{change.at:.9g}", change.kind, *numbers])
        return rows

    def _repr_html_(self) -> str:
        return html(repr(self), self._rows())

    def __str__(self) -> str:
        return "\n".join([repr(self), *(align(self._rows(), left=(1,)) if self.changes else [])])


def scan(
    system: HybridSystem,
    t_span: Sequence[float],
    functional: str | None = None,
    *,
    along: str | Mapping[str, ArrayLike],
    values: ArrayLike,
    parameters: Parameters = None,
    x0: ParameterTable = None,
    start_mode: Mode | str | None = None,
    locate: bool = True,
    max_runs: int = MAX_RUNS,
    adapter: str = "sundials",
    **options: Unpack[RunOptions],
) -> Scan:
    """Evaluate a functional and its derivative along a line, and locate the kinks and jumps between the points.

    A functional of a hybrid system is smooth where all runs have the same sequence of transitions and measurements.
    Between neighbours with different sequences the place of the change is located by bisection and classified by the
    values and derivatives on both sides.

    Parameters
    ----------
    system, t_span, x0, start_mode, adapter, **options
        As in `simulate`.
    functional : str, optional
        Name of a scalar functional; optional if the model has only one.
    along : str or mapping of str to float or array
        A parameter, an entry ``"k[1]"`` of a vector or an initial value ``"x(0)"``; or a direction, by parameter.
    values : array, shape (n,)
        Increasing values of the parameter, or multiples of the direction that are added to the parameters.
    parameters : mapping, labelled array or array, optional
        Values of the other parameters, or the origin of the direction, as in `simulate`.
    locate : bool
        Locate changes of the sequence (default).
    max_runs : int
        Limit on the runs that locate changes; intervals that it leaves are in `Scan.unlocated`.

    Returns
    -------
    Scan
        Values, derivatives, sequences and changes. A failed run leaves a gap with its error.

    Raises
    ------
    ParameterError, OptionError
        An argument is invalid.
    UnsupportedError
        The functional is a vector.

    Notes
    -----
    An interval is halved until its length is a tenth of rtol relative to the position, or four roundings. A value jumps
    if its difference exceeds 100 tolerances and does not shrink with the interval; a derivative jumps if its difference
    exceeds 1000 rtol of its size. If a derivative is refused next to a change, as where a guard touches zero, it is
    taken further away (`Change.slopes_at`), at most 1e6 times the length of the last interval or a hundredth of the
    position. Two changes between neighbours that cancel each other are not seen. Knots of signals are not part of the
    sequence: a kink where an event or a measurement that moves with the parameters passes one is not found.

    Examples
    --------
    >>> import numpy as np
    >>> import dae_hybrid as dh
    >>> from dae_hybrid.problems import hybrid_ode
    >>> found = dh.scan(hybrid_ode.system(), (0, 5), "G", along="p", values=np.linspace(2.8, 3.1, 7))
    >>> [(change.kind, round(change.at, 3)) for change in found.changes]
    [('kink', 3.0)]
    """
    system = started(system, x0=x0, start_mode=start_mode, wrt=along if isinstance(along, str | Mapping) else None)
    name, at = system.functional_name(functional), _positions(values)
    if system.functionals[name].stop - system.functionals[name].start != 1:
        raise UnsupportedError(
            f"Functional '{name}' is a vector: a scan takes a scalar.",
            remedy="Declare the component as a functional of its own.",
        )
    if isinstance(max_runs, bool) or not isinstance(max_runs, int | np.integer) or max_runs < 0:
        raise OptionError(f"max_runs must be a number of runs, got {shown(max_runs)}.")
    if not isinstance(locate, bool | np.bool_):
        raise OptionError(f"locate must be True or False, got {shown(locate)}.")
    origin, direction, words = line_through(system, along, system.parameter_vector(parameters))
    analysis: Analysis = "forward" if np.count_nonzero(direction) <= MAX_FORWARD else "adjoint"
    line = Line(system, t_span, [name], origin, direction, analysis, adapter, options)
    points, errors = _points(line, at)
    found = [point for point in points if point is not None]
    size = np.array([[np.abs(p.values).max(), np.nan_to_num(np.abs(p.slopes)).max()] for p in found]).reshape(-1, 2)
    typical = size.max(axis=0, initial=0.0)
    scales = tolerances(system, [name], Options.of(options), typical[:1], typical[1:])
    changes, unlocated = _changes(line, points, scales, int(max_runs) if locate else 0)
    nan = np.nan
    return Scan(
        functional=name,
        along=words,
        at=at,
        values=np.array([nan if p is None else p.values[0] for p in points]),
        derivatives=np.array([nan if p is None else p.slopes[0] for p in points]),
        errors=errors,
        digests=np.array([0 if p is None else p.digest for p in points], dtype=np.int64),
        changes=changes,
        unlocated=unlocated,
        _line=line,
    )


def _positions(values: ArrayLike) -> Array:
    try:
        at = real_array(values)
    except ValueError as reason:
        raise OptionError(f"values {reason}.") from None
    if at.ndim != 1 or not at.size:
        raise OptionError(f"values must be a one-dimensional array of positions, got shape {at.shape}.")
    if not np.isfinite(at).all() or np.any(np.diff(at) <= 0):
        raise OptionError("values must be finite and increase strictly.")
    return at


def line_through(system: HybridSystem, along: object, origin: Array) -> tuple[Array, Array, str]:
    """Origin, direction and wording of a line."""
    direction = np.zeros(origin.size)
    if isinstance(along, str):
        part = _entries(system, along)
        if part.stop - part.start != 1:
            raise ParameterError(
                f"along names the vector '{along}'.",
                remedy=f"Name an entry, such as '{along}[0]', or give a direction.",
            )
        direction[part], origin = 1.0, origin.copy()
        origin[part] = 0.0
        return origin, direction, along
    if not isinstance(along, Mapping):
        raise OptionError(
            f"along must be the name of a parameter or a mapping of names to numbers, got {shown(along)}."
        )
    for name, given in along.items():
        part = _entries(system, name)
        try:
            direction[part] = real_array(given)
        except ValueError as reason:
            raise ParameterError(f"along[{name!r}] does not fit the parameter: {reason}.") from None
    if not direction.any() or not np.isfinite(direction).all():
        raise ParameterError(f"along must be a finite direction other than zero, got {shown(along)}.")
    terms = [f"{d:g} {label}" for d, label in zip(direction, system.parameters.labels(), strict=True) if d]
    return origin, direction, f"({' + '.join(terms)})"


def _entries(system: HybridSystem, name: object) -> slice:
    """The entries of a parameter, or of one entry of a vector."""
    layout = system.parameters
    if isinstance(name, str) and name in layout:
        return layout[name]
    labels = layout.labels()
    if isinstance(name, str) and name in labels:
        return slice(labels.index(name), labels.index(name) + 1)
    raise ParameterError(
        f"along names {shown(name)}, which is not a parameter of '{system.name}'.",
        remedy=f"Parameters: {', '.join(layout.names) or 'none'}.",
    )


def _points(line: Line, at: Array) -> tuple[list[LinePoint | None], tuple[DaeHybridError | None, ...]]:
    """Evaluate all positions; None where the run fails."""
    rows = np.array([line.parameters(s) for s in at.tolist()])
    runs = batch(
        line.system, line.t_span, parameters=rows, functional=line.functionals, gradient=line.analysis, wrt=line.wrt,
        **line.call,
    )  # fmt: skip
    slopes = line.slopes(runs.gradients)
    found: list[LinePoint | None] = []
    for i, (s, error) in enumerate(zip(at.tolist(), runs.errors, strict=True)):
        if error is None:
            found.append(LinePoint(s, runs.values[i], slopes[i], int(runs.digest[i])))
            continue
        try:
            found.append(line.without_slopes(s, error))
        except DaeHybridError:
            found.append(None)
    return found, runs.errors


def _changes(
    line: Line, points: Sequence[LinePoint | None], scales: Scales, runs: int
) -> tuple[tuple[Change, ...], tuple[tuple[float, float], ...]]:
    """Locate the changes between neighbours, and name the intervals that are left."""
    budget, found, left = Budget(runs), list[Change](), list[tuple[float, float]]()
    valid = [(i, point) for i, point in enumerate(points) if point is not None]
    for (i, one), (k, two) in pairwise(valid):
        if one.digest == two.digest:
            continue
        if budget.left and k == i + 1:
            found += changes_between(line, one, two, scales, budget)
        else:
            left.append((one.at, two.at))
    return tuple(found), tuple(left)
