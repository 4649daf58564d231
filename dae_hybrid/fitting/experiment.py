"""Experiments: measured values with their times, and the conditions under which they were taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dae_hybrid.errors import ParameterError
from dae_hybrid.interface.parameter_sets import as_columns
from dae_hybrid.numeric_input import real_array, shown
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.options import check_time_span
from dae_hybrid.system.system import HybridSystem, check_built

#: a number for all values, or numbers by variable and functional
Spread = float | Mapping[str, ArrayLike] | None


class Series(NamedTuple):
    """Values of a variable at times, or of a functional; NaN where there is no value.

    `t` is (n_t,), empty for a functional; `values` and `sigma` are (n_t, size), (1, size) for a functional.
    """

    name: str
    t: Array
    values: Array
    sigma: Array


class Experiment:
    """Data of one experiment for `fit`.

    Parameters
    ----------
    data : mapping of str to array
        Measured values by variable, memory or signal: shape (n_t,), or (n_t, size) for a vector. NaN marks a missing
        value. Without `t`, every entry is a pair (times, values).
    t : array, shape (n_t,), optional
        Times of all values, in any order; equal times are replicates.
    functionals : mapping of str to float or array, optional
        Measured values of functionals.
    t_span : (float, float), optional
        Span of the run; by default from 0 to the last time.
    sigma : float or mapping of str to array, optional
        Standard deviations of the values, one number or by name. Covariances then follow from them alone.
    weights : float or mapping of str to array, optional
        Relative weights of the squared residuals; zero leaves a value out. The variance is estimated from the
        residuals. By default all weights are one.
    parameters : mapping, optional
        Values of parameters in this experiment: covariates, doses, settings of inputs.
    x0 : mapping of str to array, optional
        Initial values of differential variables in this experiment, as in `batch`.
    at_events : {"before", "after"}, optional
        Side of an event on which a value measured at its very time lies, such as a sample at the time of a dose. Needed
        if the variable jumps there.
    system : HybridSystem, optional
        System of this experiment, if it has other events or inputs; by default that of the fit. Parameters of the same
        name are the same parameter.
    name : str, optional
        Name in tables and pictures; by default "1", "2", ... in order.

    Raises
    ------
    ParameterError
        Times or values are not numbers, have wrong shapes or are all missing, or a standard deviation or weight is
        not legal.

    Examples
    --------
    >>> import dae_hybrid as dh
    >>> dh.Experiment({"u": [0.1, 0.3], "v": [1.0, float("nan")]}, [1.0, 2.0], sigma=0.05, name="test 1")
    <Experiment 'test 1' from 0 to 2: 3 values of u, v>
    """

    def __init__(
        self,
        data: Mapping[str, Any] | None = None,
        t: ArrayLike | None = None,
        *,
        functionals: Mapping[str, ArrayLike] | None = None,
        t_span: Sequence[float] | None = None,
        sigma: Spread = None,
        weights: Spread = None,
        parameters: Mapping[str, ArrayLike] | None = None,
        x0: Mapping[str, ArrayLike] | None = None,
        at_events: Literal["before", "after"] | None = None,
        system: HybridSystem | None = None,
        name: str | None = None,
    ) -> None:
        data, functionals = _mapping("data", data), _mapping("functionals", functionals)
        self.parameters, self.x0 = _mapping("parameters", parameters), _mapping("x0", x0)
        self.system, self.name, self.at_events = system, name, at_events
        if name is not None and not isinstance(name, str):
            raise ParameterError(f"name must be a string, got {shown(name)}.")
        if system is not None:
            check_built(system)
        if at_events not in (None, "before", "after"):
            raise ParameterError(f"at_events must be 'before' or 'after', got {shown(at_events)}.")
        if sigma is not None and weights is not None:
            raise ParameterError("sigma and weights are both given.", remedy="sigma is absolute, weights are relative.")
        self.has_sigma = sigma is not None
        series = [(key, *_times_and_values(key, value, t)) for key, value in data.items()]
        costs = [(key, np.zeros(0), _numbers(key, value).reshape(1, -1)) for key, value in functionals.items()]
        spread = _Spread("sigma" if self.has_sigma else "weights", sigma if self.has_sigma else weights)
        self.series = tuple(Series(*item, spread.of(item[0], item[2])) for item in series)
        self.functionals = tuple(Series(*item, spread.of(item[0], item[2])) for item in costs)
        spread.refuse_others([*data, *functionals])
        if not self.size:
            raise ParameterError("An experiment needs at least one value that is not missing.")
        times = np.concatenate([np.zeros(0), *(s.t for s in self.series)])
        if t_span is None and (not times.size or times.max() <= 0 or times.min() < 0):
            raise ParameterError(
                "t_span is needed: the times do not give it.", remedy="By default a run goes from 0 to the last time."
            )
        self.t_span = check_time_span((0.0, times.max()) if t_span is None else t_span)
        outside = times[(times < self.t_span[0]) | (times > self.t_span[1])]
        if outside.size:
            raise ParameterError(f"Time {outside[0]:g} is outside t_span = {self.t_span}.")

    @property
    def size(self) -> int:
        """Number of values."""
        return sum(int(is_used(s).sum()) for s in (*self.series, *self.functionals))

    @classmethod
    def from_table(
        cls,
        table: Any,
        data: Mapping[str, str],
        *,
        time: str,
        by: str | None = None,
        sigma: float | Mapping[str, str | float] | None = None,
        weights: float | Mapping[str, str | float] | None = None,
        parameters: Mapping[str, str] | None = None,
        **more: Any,
    ) -> list[Experiment]:
        """Make experiments of a table with one row per time, as in clinical data.

        Parameters
        ----------
        table : DataFrame or mapping of str to array
            Columns of equal length.
        data : mapping of str to str
            Column of every measured variable, by variable.
        time : str
            Column of the times.
        by : str, optional
            Column that names the experiment of a row; by default all rows are one experiment.
        sigma, weights : float or mapping of str to str or float, optional
            As in `Experiment`, with a column or a number for every variable.
        parameters : mapping of str to str, optional
            Column of every parameter that differs between experiments, by parameter. All rows of an experiment have
            the same value, or none (NaN).
        **more
            Other arguments of `Experiment`, common to all.

        Returns
        -------
        list of Experiment
            In order of first appearance, named by the column `by`.

        Raises
        ------
        ParameterError
            A column is missing or has another length, or a parameter changes within an experiment.

        Examples
        --------
        >>> import dae_hybrid as dh
        >>> table = {"id": [1, 1, 2], "t": [1, 2, 1], "c": [8.0, 5.0, 9.0], "dose": [4.0, 4.0, 4.5]}
        >>> experiments = dh.Experiment.from_table(table, {"conc": "c"}, time="t", by="id", parameters={"D": "dose"})
        >>> experiments[1], experiments[1].parameters
        (<Experiment '2' from 0 to 1: 1 value of conc>, {'D': 4.5})
        """
        columns = _Columns(table)
        data, parameters = _mapping("data", data), _mapping("parameters", parameters)
        if refused := {"t", "name"} & set(more):
            raise ParameterError(f"{', '.join(sorted(refused))}: times and names of a table are its columns.")
        spreads = {"sigma": sigma, "weights": weights}
        found = []
        for title, rows in columns.groups(by, len(columns.raw(time))).items():
            fixed = {name: columns.common(column, rows, title) for name, column in parameters.items()}
            own: dict[str, Any] = {
                kind: {n: columns.of(c, rows) if isinstance(c, str) else c for n, c in given.items()}
                if isinstance(given, Mapping)
                else given
                for kind, given in spreads.items()
            }
            try:
                found.append(
                    cls(
                        {name: columns.of(column, rows) for name, column in data.items()},
                        columns.of(time, rows),
                        parameters=fixed,
                        name=None if by is None else title,
                        **own,
                        **more,
                    )
                )
            except ParameterError as reason:
                if by is None:
                    raise
                raise ParameterError(f"Experiment {title}: {reason.message}", remedy=reason.remedy) from None
        return found

    def __repr__(self) -> str:
        names = ", ".join(s.name for s in (*self.series, *self.functionals))
        title = "" if self.name is None else f" '{self.name}'"
        span = f"from {self.t_span[0]:g} to {self.t_span[1]:g}"
        return f"<Experiment{title} {span}: {self.size} value{'s' * (self.size != 1)} of {names}>"


def is_used(series: Series) -> NDArray[np.bool_]:
    """Which values enter a fit: those that are neither missing nor of weight zero, (n_t, size)."""
    return ~np.isnan(series.values) & np.isfinite(series.sigma)


class _Spread:
    """Standard deviations of values, from standard deviations or weights."""

    def __init__(self, what: str, given: Spread) -> None:
        self._what, self._given = what, given

    def of(self, name: str, values: Array) -> Array:
        """Standard deviations of the values of a name; infinite for weight zero."""
        given = self._given.get(name) if isinstance(self._given, Mapping) else self._given
        if given is None and isinstance(self._given, Mapping) and self._what == "sigma":
            raise ParameterError(f"sigma has no entry for '{name}'.", remedy="Give one for every name, or one number.")
        numbers = _numbers(f"{self._what} of '{name}'", 1.0 if given is None else given)
        if numbers.ndim == 1 and numbers.shape == values.shape[:1]:
            if values.shape == (len(numbers), len(numbers)) and len(numbers) > 1:
                raise ParameterError(
                    f"{self._what} of '{name}', {len(numbers)} numbers, may belong to the times or to the entries.",
                    remedy=f"Give shape ({len(numbers)}, 1) for the times, or (1, {len(numbers)}) for the entries.",
                )
            numbers = numbers[:, None]
        try:
            numbers = np.broadcast_to(numbers, values.shape)
        except ValueError:
            raise ParameterError(
                f"{self._what} of '{name}' has shape {numbers.shape}, the values have {values.shape}."
            ) from None
        legal = numbers > 0 if self._what == "sigma" else numbers >= 0
        bad = ~(legal & np.isfinite(numbers)) & ~np.isnan(values)
        if bad.any():
            rule = "positive" if self._what == "sigma" else "zero or more"
            raise ParameterError(f"{self._what} of '{name}' must be finite and {rule}, got {numbers[bad][0]:g}.")
        if self._what == "sigma":
            return numbers
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(1 / np.sqrt(numbers))

    def refuse_others(self, names: Sequence[str]) -> None:
        """Refuse entries for names without data."""
        others = [name for name in self._given if name not in names] if isinstance(self._given, Mapping) else []
        if others:
            raise ParameterError(f"{self._what}: '{others[0]}' has no data.", remedy=f"Data: {', '.join(names)}.")


class _Columns:
    """Columns of a table."""

    def __init__(self, table: Any) -> None:
        self._columns = as_columns(table)
        if not isinstance(self._columns, Mapping):
            raise ParameterError(f"A table has columns by name, got {shown(table)}.")
        lengths = {name: len(np.atleast_1d(column)) for name, column in self._columns.items()}
        if len(set(lengths.values())) > 1:
            raise ParameterError(f"The columns of a table have one length, got {lengths}.")

    def raw(self, name: str) -> NDArray[Any]:
        """A column of any type."""
        if name not in self._columns:
            raise ParameterError(
                f"The table has no column {name!r}.", remedy=f"Columns: {', '.join(map(str, self._columns))}."
            )
        return np.atleast_1d(np.asarray(self._columns[name]))

    def groups(self, by: str | None, count: int) -> dict[str, NDArray[np.intp]]:
        """The rows of every experiment by its name, in order of first appearance."""
        if by is None:
            return {"": np.arange(count)}
        places: dict[Any, list[int]] = {}
        for i, key in enumerate(self.raw(by).tolist()):
            if key is None or key != key:
                raise ParameterError(f"Column {by!r} names no experiment in row {i}.")
            places.setdefault(key, []).append(i)
        titles = [f"{key:.15g}" if isinstance(key, float) else str(key) for key in places]
        if len(set(titles)) < len(titles):
            raise ParameterError(f"Column {by!r} has different values that read alike, such as 1 and '1'.")
        return {title: np.array(rows, np.intp) for title, rows in zip(titles, places.values(), strict=True)}

    def of(self, name: str, rows: NDArray[np.intp]) -> Array:
        """Numbers in the chosen rows of a column."""
        return _numbers(f"column {name!r}", self.raw(name)[rows])

    def common(self, name: str, rows: NDArray[np.intp], experiment: str) -> float:
        """The only number in the chosen rows of a column."""
        values = self.of(name, rows)
        distinct = np.unique(values[~np.isnan(values)])
        if distinct.size != 1:
            raise ParameterError(
                f"Column {name!r} has {distinct.size} values in experiment {experiment}: a parameter has one."
            )
        return float(distinct[0])


def _mapping(what: str, given: Any) -> dict[str, Any]:
    given = {} if given is None else given
    if not isinstance(given, Mapping):
        raise ParameterError(f"{what} must be a mapping of names to values, got {shown(given)}.")
    return dict(given)


def _numbers(what: str, given: Any) -> Array:
    try:
        return real_array(given)
    except ValueError as reason:
        raise ParameterError(f"{what} {reason}.") from None


def _times_and_values(name: str, given: Any, t: ArrayLike | None) -> tuple[Array, Array]:
    """Times (n_t,) and values (n_t, size) of a variable."""
    if t is None:
        if not isinstance(given, Sequence) or len(given) != 2:
            raise ParameterError(f"'{name}' must be a pair (times, values) if t is not given, got {shown(given)}.")
        t, given = given
    times, values = _numbers(f"times of '{name}'", t), _numbers(f"values of '{name}'", given)
    if times.ndim != 1 or values.ndim not in (1, 2) or len(values) != len(times):
        raise ParameterError(f"'{name}': times of shape {times.shape} do not match values of shape {values.shape}.")
    if not np.isfinite(times).all() or np.isinf(values).any():
        raise ParameterError(f"'{name}': times must be finite, and values finite or NaN (missing).")
    return times, values.reshape(len(times), -1)
