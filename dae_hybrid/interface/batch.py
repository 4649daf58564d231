"""Batches: many runs of one system, with different parameters and initial values, on all cores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dae_hybrid.codegen.compiler import cores
from dae_hybrid.errors import DaeHybridError, OptionError
from dae_hybrid.interface.api import RunOptions
from dae_hybrid.interface.crews import Completed, carry_out
from dae_hybrid.interface.parameter_sets import ParameterTable, side_by_side
from dae_hybrid.interface.prepared_case import Analysis, CheckedCall, Single, check_analysis, functional_names
from dae_hybrid.interface.registry import for_call
from dae_hybrid.interface.starts import StartChoice
from dae_hybrid.layout import IDLE
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.options import positive_integer
from dae_hybrid.port.native_batch import DONE, Outcomes, worded
from dae_hybrid.statement.declarations import Mode
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.tables import html, in_short

#: number of runs shown in a notebook
MAX_RUNS_SHOWN = 10
#: with more parameters than this multiple of the functionals' components, gradient=True uses the adjoint
ADJOINT_PARAMETER_RATIO = 4


def batch(
    system: HybridSystem,
    t_span: Sequence[float],
    *,
    parameters: ParameterTable = None,
    x0: ParameterTable = None,
    start_mode: Mode | str | None = None,
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
    """Run a system for many sets of parameters and initial values, on all cores.

    Results are bitwise equal to those of `simulate`, `forward_sensitivity` or `adjoint_gradient` for each set (adjoint
    gradients with `x0` may differ by rounding). Runs that compiled code completes need no Python; all others, and all
    gradients whose conditions need a closer check, are made by single calls. A failed run does not stop the others.

    Parameters
    ----------
    system, t_span, t_eval, adapter, **options
        As in `simulate`; common to all runs.
    parameters : array, shape (N, n_parameters), mapping or DataFrame, optional
        One row per run, in order of declaration; or by name or entry (``"K[0,1]"``), shape (N,), (N, size) for a
        vector, or one value for all runs. Missing names take their nominal values. A run with a non-finite value fails;
        the others continue.
    x0 : array, shape (N, n), or mapping, optional
        Initial values, in the same forms, of differential variables and memories, or entries (``"v[2]"``), as in
        `simulate`. An array gives those of all variables with a value in `HybridModel.initial`.
    start_mode : Mode or str, optional
        As in `simulate`.
    functional : str or sequence of str, optional
        Functionals to report; default all.
    gradient : {None, "forward", "adjoint", True}
        Analysis that computes gradients, if any. True selects the adjoint if there are more than four parameters per
        component of the functionals, else forward analysis.
    wrt : str or sequence of str, optional
        Parameters and initial values (``"x(0)"``) to differentiate by; default all parameters.
    workers : int, optional
        Number of threads; default the number of cores available to this process.
    strict, duality
        As in `forward_sensitivity`; with `duality`, every gradient is made by a single call.

    Returns
    -------
    Batch
        Arrays with one row per run, the errors of failed runs, and the number of single calls.

    Raises
    ------
    ParameterError
        Wrong names or shapes of parameters or initial values, or no functional to differentiate.
    OptionError, UnsupportedError
        Another argument is invalid or not supported.

    Examples
    --------
    >>> import numpy as np
    >>> import dae_hybrid as dh
    >>> from dae_hybrid.problems import hybrid_ode
    >>> found = dh.batch(hybrid_ode.system(), (0, 5), parameters=[[2.9], [3.0]], gradient="adjoint", rtol=1e-10)
    >>> found.functionals["G"].round(4), found.gradient["G"].shape, found.n_events, found.ok
    (array([20.0291, 19.6144]), (2, 1), array([3, 1]), array([ True,  True]))
    """
    case, given = checked_table(
        system, t_span, parameters, x0, start_mode, functional=functional, gradient=gradient, wrt=wrt, t_eval=t_eval,
        adapter=adapter, strict=strict, duality=duality, options=options,
    )  # fmt: skip
    threads = cores() if workers is None else positive_integer("workers", workers)
    return Batch.of(case, given, carry_out(case, given, threads), threads)


def checked_table(
    system: HybridSystem, t_span: Sequence[float], parameters: ParameterTable, x0: ParameterTable,
    start_mode: Mode | str | None, *, functional: str | Sequence[str] | None,
    gradient: Literal["forward", "adjoint", True] | None, wrt: str | Sequence[str] | None, t_eval: ArrayLike | None,
    adapter: str, strict: bool, duality: bool | float, options: RunOptions,
) -> tuple[CheckedCall, Array]:  # fmt: skip
    """Check the arguments of many runs; return the call and its inputs, (N, n_given)."""
    system = for_call(system, adapter, options)
    choice = StartChoice.of(system, x0, start_mode, wrt)
    sets, values = choice.tables(parameters, x0)
    system = choice.carrier
    case = CheckedCall(
        system, t_span, functional, _analysis(system, functional, gradient, wrt), wrt, t_eval, adapter, strict, duality,
        options, choice.starts,
    )  # fmt: skip
    return case, side_by_side(sets, values)


def _analysis(
    system: HybridSystem, functional: str | Sequence[str] | None, gradient: object, wrt: str | Sequence[str] | None
) -> Analysis | None:
    if gradient is not True:
        return check_analysis("gradient", gradient, "None, 'forward', 'adjoint' or True")
    components = sum(
        system.functionals[n].stop - system.functionals[n].start for n in functional_names(system, functional)
    )
    return "adjoint" if len(system.parameter_indices(wrt)) > ADJOINT_PARAMETER_RATIO * components else "forward"


class Batch:
    """Results of many runs, one row per run.

    Attributes
    ----------
    parameters : ndarray, shape (N, n_parameters)
        Parameters of each run.
    functionals : mapping of str to ndarray, shape (N,), or (N, k) of a vector
        Values of the functionals.
    gradient : mapping of str to ndarray, shape (N, n_wrt), or (N, k, n_wrt)
        Gradients of the functionals, if requested; `wrt` names the columns.
    values : ndarray, shape (N, n_components)
        Values of all reported functionals in one array.
    gradients : ndarray, shape (N, n_components, n_wrt)
        Their gradients in one array.
    errors : tuple of DaeHybridError or None
        Error of each failed run, else None; the numbers of a failed run are NaN.
    native : ndarray of bool, shape (N,)
        Whether compiled code completed the run and its gradient needs no closer check; the others are single calls.
    reasons : tuple of str or None
        Why each of the others is a single call; None for the native runs.
    n_events, n_steps : ndarray of int, shape (N,)
        Number of events and of steps.
    digest : ndarray of int, shape (N,)
        Digest of each run's sequence of events: equal for runs with the same transitions and measurements in the same
        order; 0 for failed runs. With gradients it contains the sides of relations that are not events, without them it
        does not: compare digests of batches with gradients, or of batches without.
    t : ndarray, shape (n_t,), or None
        Output times `t_eval`.
    t_end : ndarray, shape (N,)
        Final times.
    final : mapping of str to ndarray, shape (N,), or (N, size) of a vector
        Variables and memory at the final times; NaN if the last mode lacks the variable.
    statistics : mapping of str to int
        ``runs``, ``failed``, ``native`` (completed by compiled code), ``single`` (single calls), ``workers``.

    ``batch["u"]`` returns a variable, memory or signal at the output times, (N, n_t), or (N, n_t, size) of a vector;
    NaN if the mode lacks it and after the end of a run. ``len(batch)`` is N, ``batch.ok`` marks the runs that did not
    fail, and ``batch.single(i)`` repeats run i as a single call.
    """

    def __init__(
        self, case: CheckedCall, given: Array, out: Outcomes, errors: Mapping[int, DaeHybridError],
        outputs: Mapping[int, Mapping[str, Array]], statistics: Mapping[str, int], reason: str | None = None,
    ) -> None:  # fmt: skip
        self._case, self._given, self._out, self._singles, self._reason = case, given, out, outputs, reason
        n_p = case.system.parameters.size
        self.parameters, self.t = given[:, :n_p], case.setup.t_eval
        self.errors: tuple[DaeHybridError | None, ...] = tuple(errors.get(i) for i in range(len(given)))
        self.n_events, self.n_steps, self.t_end = out.n_events, out.n_steps, out.times
        self.digest = out.digests
        self.native: NDArray[np.bool_] = out.done == DONE
        self.values, self.gradients = out.values[:, case.columns], case.reported(out.gradients)
        labels = case.system.parameters.labels()
        self.wrt: tuple[str, ...] = tuple(labels[i] for i in case.indices)
        self.functionals: Mapping[str, Array] = MappingProxyType(
            {name: narrow(self.values[:, part], 1) for name, part in case.components.items()}
        )
        self.gradient: Mapping[str, Array] = MappingProxyType(
            {n: narrow(self.gradients[:, part], 1) for n, part in case.components.items() if case.analysis}
        )
        self.statistics: Mapping[str, int] = MappingProxyType(dict(statistics))

    @classmethod
    def of(cls, case: CheckedCall, given: Array, completed: Completed, workers: int) -> Batch:
        """Make a batch of completed runs."""
        out, failures, outputs, reason = completed
        native = int((out.done == DONE).sum())
        counts = {"native": native, "single": len(given) - native, "workers": workers}
        statistics = {"runs": len(given), "failed": len(failures), **counts}
        return cls(case, given, out, failures, outputs, statistics, reason)

    def __reduce__(self) -> tuple[Any, ...]:
        errors = {i: error for i, error in enumerate(self.errors) if error is not None}
        return Batch, (
            self._case, self._given, self._out, errors, self._singles, dict(self.statistics), self._reason
        )  # fmt: skip

    @cached_property
    def reasons(self) -> tuple[str | None, ...]:
        """Why runs are single calls, None for native runs."""
        names = [transition.name for transition in self._case.system.transitions]
        told = zip(self.native.tolist(), self._out.reasons.tolist(), strict=True)
        return tuple(None if native else self._reason or worded(why, at, names) for native, (why, at) in told)

    def __len__(self) -> int:
        return len(self._given)

    @property
    def ok(self) -> NDArray[np.bool_]:
        """Whether each run succeeded, shape (N,)."""
        return np.array([error is None for error in self.errors], dtype=bool)

    @cached_property
    def final(self) -> Mapping[str, Array]:
        """Variables and memory at the final times."""
        return MappingProxyType({name: self._final(name) for name in self._sizes})

    @cached_property
    def _sizes(self) -> Mapping[str, int]:
        return variable_sizes(self._case.system)

    def _width(self, name: str) -> int:
        if name not in self._sizes:
            raise KeyError(f"No variable {name!r}; there are {', '.join(self._sizes)}.")
        return self._sizes[name]

    def _memory_at(self, name: str) -> slice:
        """Position of a memory in a row of `Outcomes`."""
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
        return narrow(found, 1)

    def __getitem__(self, name: str) -> Array:
        if self.t is None:
            raise OptionError(
                "There are no outputs: no times were asked for.",
                remedy="Pass t_eval=; .final has the values at the end.",
            )
        system, out, signal = self._case.system, self._out, self._case.system.signal(name)
        width = 1 if signal is not None else self._width(name)
        found = np.full((len(self), self.t.size, width), np.nan)
        if signal is not None:
            here = out.output_modes >= 0
            memory = out.outputs[here][:, out.outputs.shape[2] - system.memory.size :]
            found[here, 0] = signal.evaluate(memory, self.t[np.nonzero(here)[1]])
        for mode in system.modes:
            here = out.output_modes == mode.index
            if name in mode.variables:
                found[here] = self._complete(mode.index, here)[:, mode.variables[name]]
            elif name in system.memory and signal is None:
                found[here] = out.outputs[here][:, self._memory_at(name)]
        for i, outputs in self._singles.items():
            values = outputs[name].reshape(-1, width)
            found[i, : len(values)] = values
        return narrow(found, 2)

    def _complete(self, index: int, here: NDArray[np.bool_]) -> Array:
        """x of a mode at the selected outputs, (n, n_x)."""
        case, rows = self._case, self._out.outputs[here]
        mode, nm = case.system.modes[index], case.system.memory.size
        states = rows[:, : mode.equations.n]
        if mode.state_is_complete or not len(rows):
            return rows[:, : mode.variables.size]
        of_run, of_time = np.nonzero(here)
        times, m, p = np.asarray(self.t)[of_time], rows[:, rows.shape[1] - nm :], self.parameters[of_run]
        return np.asarray(mode.solved()(times[None, :], states.T, m.T, p.T)).reshape(mode.variables.size, len(rows)).T

    def single(self, i: int) -> Single:
        """Repeat run i as a single call: a `Trajectory`, a `ForwardSensitivity`, or a dict of `Gradient` by functional.

        Raises ``errors[i]`` if the run failed.
        """
        n_p = self._case.system.parameters.size
        return self._case.single(self._given[i, :n_p].copy(), self._given[i, n_p:].copy())

    def __repr__(self) -> str:
        counts = ", ".join(f"{count} {name}" for name, count in self.statistics.items() if name != "runs")
        most = Counter(reason for reason in self.reasons if reason is not None).most_common(1)
        why = "".join(f"; single calls mostly because of: {reason} ({count})" for reason, count in most)
        return f"<Batch of {len(self)} run{'s' * (len(self) != 1)} of '{self._case.system.name}': {counts}{why}>"

    def _repr_html_(self) -> str:
        names = list(self.functionals)
        rows = [
            [
                str(i), *(in_short(self.functionals[name][i]) for name in names), str(self.n_events[i]), in_short(t),
                self.reasons[i] or "",
            ]
            for i, t in enumerate(self.t_end[:MAX_RUNS_SHOWN])
        ]  # fmt: skip
        return html(repr(self), [["run", *names, "events", "end", "single call because of"], *rows])


def variable_sizes(system: HybridSystem) -> dict[str, int]:
    """Sizes of the variables of all modes and of the memory, by name."""
    layouts = [*(mode.variables for mode in system.modes), system.memory]
    sizes = {name: part for layout in layouts for name, part in layout.blocks if name != IDLE}
    return {name: size for name, size in sizes.items() if system.signal(name) is None}


def narrow(values: Array, axis: int) -> Array:
    """Squeeze an axis of length one."""
    return values.squeeze(axis) if values.shape[axis] == 1 else values
