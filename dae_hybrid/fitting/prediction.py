"""Predicted values of an experiment as functions of the free parameters, with derivatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dae_hybrid.errors import ParameterError
from dae_hybrid.fitting.experiment import Experiment, Series, is_used
from dae_hybrid.interface.output_map import OutputMap, start_of
from dae_hybrid.interface.prepared import Prepared, Run, prepare
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.system.system import HybridSystem

#: share of the span within which a value is at the very time of an event, and relative size of a jump there
COINCIDENT, JUMP = 1e-11, 1e-6
#: indices of parameters of a system, and of the free parameters there
type Places = tuple[NDArray[np.intp], NDArray[np.intp]]


class Prediction:
    """Values of an experiment as functions of the free parameters q.

    The rows are the values that are not missing: those of the series one after the other, by time and entry, then
    those of the functionals.

    Attributes
    ----------
    name : str
    targets, sigma : ndarray, shape (m,)
        Measured values and their standard deviations.
    """

    def __init__(
        self, experiment: Experiment, name: str, system: HybridSystem, parameters: Array, places: Places,
        wrt: Sequence[str], options: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.experiment, self.name, self.system = experiment, name, system
        self._p, (self._own, self._free) = parameters, places
        series, costs = experiment.series, experiment.functionals
        self.series = (*series, *costs)
        self.used = [is_used(s) for s in self.series]
        self.targets = np.concatenate([s.values[used] for s, used in zip(self.series, self.used, strict=True)])
        self.sigma = np.concatenate([s.sigma[used] for s, used in zip(self.series, self.used, strict=True)])
        self._call = {"wrt": wrt, "x0": experiment.x0 or None, **options}
        times = np.unique(np.concatenate([np.zeros(0), *(s.t for s in series)]))
        self._names = list(dict.fromkeys(s.name for s in series))
        self.outputs = self.output_map(self._names, times, experiment.t_span) if series else None
        self._places = self._in_outputs(times) if self.outputs else np.zeros(0, np.intp)
        self._functionals, start = [s.name for s in costs], start_of(system, self._call["x0"])
        self._started = system if start is None else start[0].system(start[1])
        _check_functionals(system, name, costs)
        self._runs: dict[str | None, Prepared] = {}

    def _in_outputs(self, times: Array) -> NDArray[np.intp]:
        """Indices of the rows of the series among all outputs."""
        assert self.outputs is not None
        n_outputs, columns, found = self.outputs.shape[1], self.outputs.layout, []
        for series, used in zip(self.experiment.series, self.used, strict=False):
            part = columns[series.name]
            if series.values.shape[1] != part.stop - part.start:
                raise ParameterError(
                    f"Experiment {self.name}: '{series.name}' has {part.stop - part.start} entries, its data "
                    f"{series.values.shape[1]}."
                )
            rows = np.searchsorted(times, series.t)[:, None] * n_outputs + np.arange(part.start, part.stop)
            found.append(rows[used])
        return np.concatenate(found)

    @property
    def times(self) -> Array:
        """Times of the rows, shape (m,); NaN for functionals."""
        found = []
        for series, used in zip(self.series, self.used, strict=True):
            t = series.t if series.t.size else np.full(1, np.nan)
            found.append(np.broadcast_to(t[:, None], used.shape)[used])
        return np.concatenate(found)

    def output_map(self, names: str | Sequence[str], t: Array, t_span: Sequence[float]) -> OutputMap:
        """The map to outputs in the conditions of the experiment."""
        return OutputMap(self.system, t_span, t, names, **self._call)

    def settle(self, q: Array) -> None:
        """Choose the side of events at whose very times there are values, from a run.

        Raises
        ------
        ParameterError
            A variable jumps there, and the experiment does not name the side.
        """
        if self.outputs is None:
            return
        run, times = self.outputs.trajectory(self.parameters(q)), self.outputs.t.copy()
        reach = COINCIDENT * (self.outputs.span[1] - self.outputs.span[0])
        events = run.event_table.t
        met = np.array([bool((np.abs(events - t) <= reach).any()) for t in times], dtype=bool)
        if not met.any():
            return
        before, after = (run(times[met], side=side) for side in ("left", "right"))
        jumps = [
            (t, name, before[name][i], after[name][i])
            for name in self._names
            for i, t in enumerate(times[met])
            if not np.allclose(before[name][i], after[name][i], rtol=JUMP, atol=0)
        ]
        if jumps and self.experiment.at_events is None:
            t, name, low, high = jumps[0]
            raise ParameterError(
                f"Experiment {self.name}: '{name}' jumps at t = {t:.12g}, where there is a value: {low:.6g} before, "
                f"{high:.6g} after the event.",
                remedy="at_events='before' or 'after' says on which side values at the very times of events lie.",
            )
        if self.experiment.at_events == "before":
            times[met] -= 10 * reach
            self.outputs = self.output_map(self._names, times, self.experiment.t_span)

    def parameters(self, q: Array) -> Array:
        """All parameters of the system."""
        p = self._p.copy()
        p[self._own] = q[self._free]
        return p

    def values(self, q: Array) -> Array:
        """Predicted values, shape (m,)."""
        p, found = self.parameters(q), [np.zeros(0)]
        if self.outputs is not None:
            found.append(self.outputs.values(p).ravel()[self._places])
        if self._functionals:
            found.append(self._picked(self._run(None, p)))
        return np.concatenate(found)

    def derivatives(self, q: Array) -> tuple[Array, Array]:
        """Predicted values (m,) and their derivatives by q, (m, n), by forward analysis."""
        p, n = self.parameters(q), len(self._own)
        found, slopes = [np.zeros(0)], [np.zeros((0, n))]
        if self.outputs is not None:
            values, by_p = self.outputs.derivatives(p)
            found.append(values.ravel()[self._places])
            slopes.append(by_p.reshape(-1, n)[self._places])
        if self._functionals:
            run = self._run("forward", p)
            found.append(self._picked(run))
            slopes.append(self._gradients(run))
        jacobian = np.zeros((len(self.targets), len(q)))
        jacobian[:, self._free] = np.concatenate(slopes)
        return np.concatenate(found), jacobian

    def along(self, outputs: OutputMap, q: Array, parameters: Mapping[str, ArrayLike] | None) -> tuple[Array, Array]:
        """Outputs with other fixed parameters, and their derivatives by q, (n_t, n_outputs, n)."""
        p, given = self.parameters(q), parameters or {}
        others, labels = self.system.parameter_vector(given), self.system.parameters.labels()
        changed = [i for i, label in enumerate(labels) if label in given or label.partition("[")[0] in given]
        if free := [labels[i] for i in changed if i in self._own]:
            raise ParameterError(f"parameters: '{free[0]}' is a free parameter of the fit.")
        p[changed] = others[changed]
        values, by_p = outputs.derivatives(p)
        found = np.zeros((*values.shape, len(q)))
        found[..., self._free] = by_p
        return values, found

    def pullback(self, q: Array, cotangents: Array) -> Array:
        """Derivative by q of the sum of predicted values times cotangents (m,), by adjoint analysis."""
        p, gradient = self.parameters(q), np.zeros(len(q))
        split = len(self._places)
        if self.outputs is not None:
            seeds = np.zeros(self.outputs.shape)
            np.add.at(seeds.reshape(-1), self._places, cotangents[:split])
            gradient[self._free] += self.outputs.vjp(p, seeds)
        if self._functionals:
            gradient[self._free] += cotangents[split:] @ self._gradients(self._run("adjoint", p))
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
