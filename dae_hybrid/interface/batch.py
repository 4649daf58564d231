"""Many runs of one system: parameter sets and initial values, on all cores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dae_hybrid.codegen.compiler import cores
from dae_hybrid.errors import DaeHybridError, OptionError
from dae_hybrid.interface.api import RunOptions
from dae_hybrid.interface.crews import by_crews, by_single_calls
from dae_hybrid.interface.parameter_sets import Table, as_columns, read_table, side_by_side
from dae_hybrid.interface.prepared_case import Analysis, Case, Single, check_analysis, functional_names
from dae_hybrid.interface.registry import for_call
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.native_batch import DONE, Outcomes
from dae_hybrid.simulation.starts import Starts
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.tables import html, in_short

#: so many runs are shown in a notebook
SHOWN = 10
#: by more parameters than so many times the components of functionals gradient=True is by the adjoint
MANY = 4


def batch(
    system: HybridSystem,
    t_span: Sequence[float],
    *,
    parameters: Table = None,
    x0: Table = None,
    functional: str | Sequence[str] | None = None,
    gradient: Literal["forward", "adjoint", True] | None = None,
    wrt: str | Sequence[str] | None = None,
    t_eval: ArrayLike | None = None,
    workers: int | None = None,
    adapter: str = "sundials",
    strict: bool = True,
    duality: bool | float = False,
    **options: Unpack[RunOptions],
) -> Batch:
    """Carry out a run for every set of parameters and initial values, on all cores.

    Numbers are, to the last bit, those of `simulate`, `forward_sensitivity` or `adjoint_gradient` for each set (adjoint
    gradients with `x0` may differ by rounding). Runs that compiled code carries out from start to end go on without
    Python; all others, and every gradient whose conditions need a closer look, are left to a single call. A run that
    fails does not stop the others.

    Parameters
    ----------
    system, t_span, t_eval, adapter, **options
        As in `simulate`, for all runs.
    parameters : array, shape (N, n_parameters), mapping or DataFrame, optional
        A row for every run, in order of declaration; or by name, shape (N,), or (N, size) of a vector, or one value for
        all runs. What is left out is nominal. A run with a value that is not finite fails by itself.
    x0 : array, shape (N, n), or mapping, optional
        Initial values, in the same forms, of the differential variables to which `HybridModel.initial` gives a value,
        in place of that value. Algebraic variables and memory follow from them. They do not depend on the parameters:
        derivatives are those at fixed initial values. For derivatives by them make them parameters.
    functional : str or sequence of str, optional
        Functionals to report, all by default.
    gradient : {None, "forward", "adjoint", True}
        Which analysis gives gradients, if any; True is the adjoint where there are more than four parameters for every
        component of the functionals.
    wrt : str or sequence of str, optional
        Parameters to differentiate by; all by default.
    workers : int, optional
        Threads; by default as many as there are cores for this process.
    strict, duality
        As in `forward_sensitivity`; with `duality` every gradient is left to a single call.

    Returns
    -------
    Batch
        Arrays with a row for each run, the errors of those that failed, and how many were left to single calls.

    Raises
    ------
    ParameterError
        Wrong names or shapes, of parameters or initial values; no functional to differentiate.
    OptionError, UnsupportedError
        Another argument is wrong, or cannot be honoured.

    Examples
    --------
    >>> import numpy as np
    >>> import dae_hybrid as dh
    >>> from dae_hybrid.problems import hybrid_ode
    >>> found = dh.batch(hybrid_ode.system(), (0, 5), parameters=[[2.9], [3.0]], gradient="adjoint", rtol=1e-10)
    >>> found.functionals["G"].round(4), found.gradient["G"].shape, found.n_events, found.ok
    (array([20.0291, 19.6144]), (2, 1), array([3, 1]), array([ True,  True]))
    """
    system = for_call(system, adapter, options)
    sets = read_table("parameters", parameters, system.parameters, system.nominal)
    starts, values = None, None
    if x0 is not None:
        named = as_columns(x0)
        starts = Starts.of(system, list(named) if isinstance(named, Mapping) else None)
        values = read_table("x0", named, starts.layout, None)
    case = Case(
        system, t_span, functional, _analysis(system, functional, gradient, wrt), wrt, t_eval, adapter, strict, duality,
        options, starts,
    )  # fmt: skip
    given = side_by_side(sets, values)
    threads = _workers(workers)
    out = case.outcomes(len(given))
    by_crews(case, given, out, threads)
    native = int((out.done == DONE).sum())
    failures, outputs = by_single_calls(case, given, out, threads)
    statistics = {
        "runs": len(given), "failed": len(failures), "native": native, "single": len(given) - native, "workers": threads
    }  # fmt: skip
    return Batch(case, given, out, failures, outputs, statistics)


def _analysis(
    system: HybridSystem, functional: str | Sequence[str] | None, gradient: object, wrt: str | Sequence[str] | None
) -> Analysis | None:
    if gradient is not True:
        return check_analysis("gradient", gradient, "None, 'forward', 'adjoint' or True")
    components = sum(
        system.functionals[n].stop - system.functionals[n].start for n in functional_names(system, functional)
    )
    return "adjoint" if len(system.parameter_indices(wrt)) > MANY * components else "forward"


def _workers(given: int | None) -> int:
    if given is None:
        return cores()
    if isinstance(given, bool) or not isinstance(given, int | np.integer) or given < 1:
        raise OptionError(f"workers must be a positive number of threads, got {given!r}.")
    return int(given)


class Batch:
    """What many runs come to, a row for each.

    Attributes
    ----------
    parameters : ndarray, shape (N, n_parameters)
        Of every run.
    functionals : mapping of str to ndarray, shape (N,), or (N, k) of a vector
        Values of the functionals.
    gradient : mapping of str to ndarray, shape (N, n_wrt), or (N, k, n_wrt)
        Their gradients, where they were asked for; `wrt` names the columns.
    values : ndarray, shape (N, n_components)
        The same values in one array, and
    gradients : ndarray, shape (N, n_components, n_wrt)
        the same gradients.
    errors : tuple of DaeHybridError or None
        Why a run has failed; its numbers are NaN.
    native : ndarray of bool, shape (N,)
        Which runs compiled code has carried out, with gradients that need no closer look; the others are single calls.
    n_events, n_steps : ndarray of int, shape (N,)
        Events and steps of the run.
    t : ndarray, shape (n_t,), or None
        Output times: those that were asked for.
    t_end : ndarray, shape (N,)
        When runs have ended.
    final : mapping of str to ndarray, shape (N,), or (N, size) of a vector
        Variables and memories at the end; NaN where the last mode does not have them.
    statistics : mapping of str to int
        ``runs``, ``failed``, ``native`` (carried out by compiled code), ``single`` (by single calls), ``workers``.

    ``batch["u"]`` are the values of a variable or memory at the output times, (N, n_t), or (N, n_t, size) of a vector;
    NaN where the mode does not have it and behind the end of a run. ``len(batch)`` is N, ``batch.ok`` says which runs
    have not failed, ``batch.single(i)`` makes one call of run i.
    """

    def __init__(
        self, case: Case, given: Array, out: Outcomes, errors: Mapping[int, DaeHybridError],
        outputs: Mapping[int, Mapping[str, Array]], statistics: Mapping[str, int],
    ) -> None:  # fmt: skip
        self._case, self._given, self._out, self._singles = case, given, out, outputs
        n_p = case.system.parameters.size
        self.parameters, self.t = given[:, :n_p], case.setup.t_eval
        self.errors: tuple[DaeHybridError | None, ...] = tuple(errors.get(i) for i in range(len(given)))
        self.n_events, self.n_steps, self.t_end = out.n_events, out.n_steps, out.times
        self.native: NDArray[np.bool_] = out.done == DONE
        self.values, self.gradients = out.values[:, case.columns], case.reported(out.gradients)
        labels = case.system.parameters.labels()
        self.wrt: tuple[str, ...] = tuple(labels[i] for i in case.indices)
        self.functionals: Mapping[str, Array] = MappingProxyType(
            {name: _narrow(self.values[:, part], 1) for name, part in case.components.items()}
        )
        self.gradient: Mapping[str, Array] = MappingProxyType(
            {n: _narrow(self.gradients[:, part], 1) for n, part in case.components.items() if case.analysis}
        )
        self.statistics: Mapping[str, int] = MappingProxyType(dict(statistics))

    def __reduce__(self) -> tuple[Any, ...]:
        errors = {i: error for i, error in enumerate(self.errors) if error is not None}
        return Batch, (self._case, self._given, self._out, errors, self._singles, dict(self.statistics))

    def __len__(self) -> int:
        return len(self._given)

    @property
    def ok(self) -> NDArray[np.bool_]:
        """Which runs have not failed, shape (N,)."""
        return np.array([error is None for error in self.errors], dtype=bool)

    @cached_property
    def final(self) -> Mapping[str, Array]:
        """Variables and memories at the end of the runs."""
        return MappingProxyType({name: self._final(name) for name in self._names})

    @property
    def _names(self) -> tuple[str, ...]:
        seen = {name: None for mode in self._case.system.modes for name in mode.variables.names}
        return (*seen, *(name for name in self._case.system.memory.names if self._case.system.signal(name) is None))

    def _width(self, name: str) -> int:
        for layout in (*(mode.variables for mode in self._case.system.modes), self._case.system.memory):
            if name in layout and name in self._names:
                return int(layout[name].stop - layout[name].start)
        raise KeyError(f"No variable {name!r}; there are {', '.join(self._names)}.")

    def _memory_at(self, name: str) -> slice:
        """Where a memory stands in a row of `Outcomes`."""
        memory, width = self._case.system.memory, self._out.ends.shape[1]
        first = width - memory.size
        return slice(first + memory[name].start, first + memory[name].stop)

    def _final(self, name: str) -> Array:
        system, out = self._case.system, self._out
        found = np.full((len(self), self._width(name)), np.nan)
        for mode in system.modes:
            here = (out.modes == mode.index) & self.ok
            if name in mode.variables:
                found[here] = out.ends[here][:, mode.variables[name]]
            elif name in system.memory:
                found[here] = out.ends[here][:, self._memory_at(name)]
        return _narrow(found, 1)

    def __getitem__(self, name: str) -> Array:
        if self.t is None:
            raise OptionError(
                "There are no outputs: no times were asked for.",
                remedy="Pass t_eval=; .final has the values at the end.",
            )
        system, out, width = self._case.system, self._out, self._width(name)
        found = np.full((len(self), self.t.size, width), np.nan)
        for mode in system.modes:
            here = out.output_modes == mode.index
            if name in mode.variables:
                found[here] = self._complete(mode.index, here)[:, mode.variables[name]]
            elif name in system.memory:
                found[here] = out.outputs[here][:, self._memory_at(name)]
        for i, outputs in self._singles.items():
            values = outputs[name].reshape(-1, width)
            found[i, : len(values)] = values
        return _narrow(found, 2)

    def _complete(self, index: int, here: NDArray[np.bool_]) -> Array:
        """x of a mode at these outputs, (n, n_x)."""
        case, rows = self._case, self._out.outputs[here]
        mode, nm = case.system.modes[index], case.system.memory.size
        states = rows[:, : mode.equations.n]
        if mode.plain or not len(rows):
            return rows[:, : mode.variables.size]
        of_run, of_time = np.nonzero(here)
        times, m, p = np.asarray(self.t)[of_time], rows[:, rows.shape[1] - nm :], self.parameters[of_run]
        return np.asarray(mode.solved()(times[None, :], states.T, m.T, p.T)).reshape(mode.variables.size, len(rows)).T

    def single(self, i: int) -> Single:
        """The single call of run i: a `Trajectory`, a `ForwardSensitivity`, or `Gradient` by name of the functional.

        It raises what ``errors[i]`` says.
        """
        n_p = self._case.system.parameters.size
        return self._case.single(self._given[i, :n_p].copy(), self._given[i, n_p:].copy())

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.statistics.items() if name != "runs")
        return f"<Batch of {len(self)} runs of '{self._case.system.name}': {counts}>"

    def _repr_html_(self) -> str:
        names = list(self.functionals)
        rows = [
            [str(i), *(in_short(self.functionals[name][i]) for name in names), str(self.n_events[i]), in_short(t)]
            for i, t in enumerate(self.t_end[:SHOWN])
        ]
        return html(repr(self), [["run", *names, "events", "end"], *rows])


def _narrow(values: Array, axis: int) -> Array:
    """Without an axis of length one."""
    return values.squeeze(axis) if values.shape[axis] == 1 else values
