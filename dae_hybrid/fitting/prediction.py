"""Predicted values of an experiment as functions of the free parameters, with derivatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dae_hybrid.errors import ParameterError
from dae_hybrid.fitting.experiment import Experiment, Series, is_used
from dae_hybrid.interface.output_map import OutputMap
from dae_hybrid.interface.prepared import Prepared, Run, prepare
from dae_hybrid.interface.starts import started
from dae_hybrid.numeric_input import shown
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.system.system import HybridSystem

#: share of the span within which a value is at the very time of an event, and by which values before it are earlier
COINCIDENT, BEFORE = 1e-11, 1e-10
#: relative size of a jump
JUMP = 1e-6
#: indices of parameters of a system, and of the free parameters there
type Places = tuple[NDArray[np.intp], NDArray[np.intp]]


class _Outputs(NamedTuple):
    """Series with common times: their outputs, and the places of their values among these and among the rows."""

    map: OutputMap
    places: NDArray[np.intp]
    rows: NDArray[np.intp]


class Prediction:
    """Values of an experiment as functions of the free parameters q.

    The rows are the values that are not missing: those of the series one after the other, by time and entry, then
    those of the functionals.

    Attributes
    ----------
    name : str
    targets, sigma : ndarray, shape (m,)
        Measured values and their standard deviations.
    free : ndarray of int
        Places of the experiment's own free parameters in q.
    """

    def __init__(
        self, experiment: Experiment, name: str, system: HybridSystem, parameters: Array, places: Places,
        wrt: Sequence[str], options: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.experiment, self.name, self.system = experiment, name, system
        self._p, (self._own, self.free) = parameters, places
        if not wrt:
            raise ParameterError(f"Experiment {name} depends on no free parameter.", remedy="Leave it out.")
        series, costs = experiment.series, experiment.functionals
        self.series = (*series, *costs)
        self.used = [is_used(s) for s in self.series]
        self.targets = np.concatenate([s.values[used] for s, used in zip(self.series, self.used, strict=True)])
        self.sigma = np.concatenate([s.sigma[used] for s, used in zip(self.series, self.used, strict=True)])
        self._call = {"wrt": wrt, "x0": experiment.x0 or None, **options}
        self._functionals = [s.name for s in costs]
        self._started = started(system, x0=experiment.x0 or None)
        _check_functionals(system, name, costs)
        self._runs: dict[str | None, Prepared] = {}
        self._outputs = self._groups()

    def _groups(self) -> list[_Outputs]:
        """Outputs by common times: together those that exist in every mode, the others one by one."""
        ends = np.cumsum([0, *(int(used.sum()) for used in self.used)])
        chosen = [i for i, s in enumerate(self.experiment.series) if self.used[i].any()]
        modes = self.system.modes
        partly = [
            i for i in chosen
            if any(self.series[i].name in m.variables for m in modes)
            and not all(self.series[i].name in m.variables for m in modes)
        ]  # fmt: skip
        everywhere = [i for i in chosen if i not in partly]
        return [self._group(own, ends) for own in ([everywhere] if everywhere else []) + [[i] for i in partly]]

    def _group(self, own: list[int], ends: NDArray[np.intp]) -> _Outputs:
        taken = [self.series[i].t[self.used[i].any(axis=1)] for i in own]
        times, names = np.unique(np.concatenate(taken)), [self.series[i].name for i in own]
        outputs = self.output_map(names, times, self.experiment.t_span)
        places, rows = [], []
        for i in own:
            series, part = self.series[i], outputs.layout[self.series[i].name]
            if series.values.shape[1] != part.stop - part.start:
                raise ParameterError(
                    f"Experiment {self.name}: '{series.name}' has {part.stop - part.start} entries, its data "
                    f"{series.values.shape[1]}."
                )
            row = np.searchsorted(times, series.t)[:, None] * outputs.shape[1] + np.arange(part.start, part.stop)
            places.append(row[self.used[i]])
            rows.append(np.arange(ends[i], ends[i + 1]))
        return _Outputs(outputs, np.concatenate(places), np.concatenate(rows))

    @property
    def times(self) -> Array:
        """Times of the rows, shape (m,); NaN for functionals."""
        found = []
        for series, used in zip(self.series, self.used, strict=True):
            t = series.t if series.t.size else np.full(1, np.nan)
            found.append(np.broadcast_to(t[:, None], used.shape)[used])
        return np.concatenate(found)

    def output_map(self, names: str | Sequence[str], t: Array, t_span: Sequence[float]) -> OutputMap:
        """The map to outputs in the conditions of the experiment, on its side of events."""
        t0, t1 = t_span
        if self.experiment.at_events == "before":
            t = np.maximum(t - BEFORE * (t1 - t0), t0)
        return OutputMap(self.system, t_span, t, names, **self._call)

    def check_sides(self, q: Array, beside: Array | None = None) -> None:
        """Check that no variable jumps at a time of its values, unless the experiment names the side.

        With a point beside q, jumps that do not stay there are chance, and pass.

        Raises
        ------
        ParameterError
            One does.
        """
        if self.experiment.at_events is not None or not self._outputs or not self.system.transitions:
            return
        found = self._jumps(q)
        if found and beside is not None:
            staying = self._jumps(beside)
            found = {place: said for place, said in found.items() if place in staying}
        for said in found.values():
            raise ParameterError(
                said, remedy="at_events='before' or 'after' says on which side values at the very times of events lie."
            )

    def _jumps(self, q: Array) -> dict[tuple[str, float], str]:
        """Descriptions of jumps at times of values, by variable and time."""
        run, jumps = self._outputs[0].map.trajectory(self.parameters(q)), dict[tuple[str, float], str]()
        reach, events = COINCIDENT * (self.experiment.t_span[1] - self.experiment.t_span[0]), run.event_table.t
        for series, used in zip(self.experiment.series, self.used, strict=False):
            times = np.unique(series.t[used.any(axis=1)])
            met = times[np.array([bool((np.abs(events - t) <= reach).any()) for t in times], dtype=bool)]
            before, after = (np.asarray(run(met, side=side)[series.name]) for side in ("left", "right"))
            size = np.abs([*before.ravel(), *after.ravel(), *series.values[used]]).max(initial=0.0)
            apart = np.abs(after - before).max(axis=tuple(range(1, before.ndim)))
            for i in np.flatnonzero(apart > JUMP * size).tolist():
                jumps[series.name, met[i]] = (
                    f"Experiment {self.name}: '{series.name}' jumps at t = {met[i]:.12g}, where there is a value: "
                    f"{before[i]} before, {after[i]} after the event."
                )
        return jumps

    def parameters(self, q: Array) -> Array:
        """All parameters of the system."""
        p = self._p.copy()
        p[self._own] = q[self.free]
        return p

    def values(self, q: Array) -> Array:
        """Predicted values, shape (m,)."""
        p, found = self.parameters(q), np.zeros(len(self.targets))
        for outputs, places, rows in self._outputs:
            found[rows] = outputs.values(p).ravel()[places]
        if self._functionals:
            found[self._last :] = self._picked(self._run(None, p))
        return found

    def derivatives(self, q: Array) -> tuple[Array, Array]:
        """Predicted values (m,) and their derivatives by q[free], (m, n_free), by forward analysis."""
        p, n = self.parameters(q), len(self._own)
        found, slopes = np.zeros(len(self.targets)), np.zeros((len(self.targets), n))
        for outputs, places, rows in self._outputs:
            values, by_p = outputs.derivatives(p)
            found[rows], slopes[rows] = values.ravel()[places], by_p.reshape(-1, n)[places]
        if self._functionals:
            run = self._run("forward", p)
            found[self._last :], slopes[self._last :] = self._picked(run), self._gradients(run)
        return found, slopes

    @property
    def _last(self) -> int:
        """Number of rows of the series; those of the functionals follow."""
        return sum(int(used.sum()) for used in self.used[: len(self.experiment.series)])

    def along(self, outputs: OutputMap, q: Array, parameters: Mapping[str, ArrayLike] | None) -> tuple[Array, Array]:
        """Outputs with other fixed parameters, and their derivatives by q, (n_t, n_outputs, n)."""
        p, given = self.parameters(q), {} if parameters is None else parameters
        if not isinstance(given, Mapping):
            raise ParameterError(f"parameters must be a mapping of names to values, got {shown(parameters)}.")
        others, labels = self.system.parameter_vector(given), self.system.parameters.labels()
        changed = [i for i, label in enumerate(labels) if label in given or label.partition("[")[0] in given]
        if free := [labels[i] for i in changed if i in self._own]:
            raise ParameterError(f"parameters: '{free[0]}' is a free parameter of the fit.")
        p[changed] = others[changed]
        values, by_p = outputs.derivatives(p)
        found = np.zeros((*values.shape, len(q)))
        found[..., self.free] = by_p
        return values, found

    def pullback(self, q: Array, cotangents: Array) -> Array:
        """Derivative by q[free] of the sum of predicted values times cotangents (m,), by adjoint analysis."""
        p, gradient = self.parameters(q), np.zeros(len(self._own))
        for outputs, places, rows in self._outputs:
            seeds = np.zeros(outputs.shape)
            np.add.at(seeds.reshape(-1), places, cotangents[rows])
            gradient += outputs.vjp(p, seeds)
        if self._functionals:
            gradient += cotangents[self._last :] @ self._gradients(self._run("adjoint", p))
        return gradient

    def _run(self, derivatives: Any, p: Array) -> Run:
        """A run for the functionals."""
        if derivatives not in self._runs:
            call = {key: value for key, value in self._call.items() if key != "x0"}
            wrt = call.pop("wrt")
            if derivatives is not None:
                call["wrt"] = wrt
            self._runs[derivatives] = prepare(
                self._started, self.experiment.t_span, functional=self._functionals, derivatives=derivatives, **call
            )
        return self._runs[derivatives](p)

    def _picked(self, run: Run) -> Array:
        return np.concatenate([np.atleast_1d(run.functionals[s.name])[used[0]] for s, used in self._costs()])

    def _gradients(self, run: Run) -> Array:
        return np.concatenate([np.atleast_2d(run.gradient[s.name])[used[0]] for s, used in self._costs()])

    def _costs(self) -> list[tuple[Series, NDArray[np.bool_]]]:
        n = len(self.experiment.series)
        return list(zip(self.series[n:], self.used[n:], strict=True))


def _check_functionals(system: HybridSystem, experiment: str, costs: Sequence[Series]) -> None:
    for cost in costs:
        part = system.functionals[system.functional_name(cost.name)]
        if part.stop - part.start != cost.values.shape[1]:
            raise ParameterError(
                f"Experiment {experiment}: functional '{cost.name}' has {part.stop - part.start} components, its data "
                f"{cost.values.shape[1]}."
            )
