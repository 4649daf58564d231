"""Prepared calls: arguments are checked once for many calls with different parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, Literal, Unpack

import numpy as np
from numpy.typing import ArrayLike

from dae_hybrid.interface.api import RunOptions
from dae_hybrid.interface.crews import judge_growth, take_over
from dae_hybrid.interface.parameter_sets import ParameterTable
from dae_hybrid.interface.prepared_case import CheckedCall, Single, check_analysis, trajectory_of
from dae_hybrid.interface.runs import Parameters
from dae_hybrid.interface.starts import for_call
from dae_hybrid.numerics.arrays import Array, scalar
from dae_hybrid.port.native_batch import DONE, Crew, Outcomes
from dae_hybrid.statement.declarations import Mode
from dae_hybrid.system.system import HybridSystem, check_built
from dae_hybrid.tables import html, in_short
from dae_hybrid.trajectory.trajectory import Trajectory


def prepare(
    system: HybridSystem,
    t_span: Sequence[float],
    *,
    functional: str | Sequence[str] | None = None,
    derivatives: Literal["forward", "adjoint"] | None = None,
    wrt: str | Sequence[str] | None = None,
    x0: ParameterTable = None,
    start_mode: Mode | str | None = None,
    t_eval: ArrayLike | None = None,
    adapter: str = "sundials",
    strict: bool = True,
    duality: bool | float = False,
    **options: Unpack[RunOptions],
) -> Prepared:
    """Check the arguments of a call once, for many calls with different parameters.

    Results are bitwise equal to those of `simulate`, `forward_sensitivity` or `adjoint_gradient`. Runs that compiled
    code completes have almost no overhead.

    Parameters
    ----------
    functional : str or sequence of str, optional
        Functionals to report; default all.
    derivatives : {None, "forward", "adjoint"}
        Analysis that computes gradients, if any.
    wrt, strict, duality
        As in `forward_sensitivity`.

    Returns
    -------
    Prepared
        A callable that takes parameters, as `simulate` does, and returns a `Run`. It may be shared by threads.

    Notes
    -----
    Other parameters and errors are those of `simulate`.

    Examples
    --------
    >>> import dae_hybrid as dh
    >>> from dae_hybrid.problems import hybrid_ode
    >>> gradient = dh.prepare(hybrid_ode.system(), (0, 5), derivatives="adjoint", rtol=1e-10)
    >>> run = gradient([2.9])
    >>> round(run.value, 4), run.gradient["G"].round(3), run.n_events
    (20.0291, array([-2.312]), 3)
    """
    check_built(system)
    system = for_call(system, x0, start_mode, wrt)
    analysis = check_analysis("derivatives", derivatives, "None, 'forward' or 'adjoint'")

    case = partial(CheckedCall, system, t_span, functional, analysis, wrt, t_eval, adapter, strict, duality, options)
    return Prepared(system, case)


class Prepared:
    """A call with fixed arguments except for the parameters; created by `prepare`."""

    def __init__(self, system: HybridSystem, make: Callable[[], CheckedCall]) -> None:
        self._system, self._make, self._shape = system, make, (system.parameters.size,)
        self._work = _Work(make())

    def __call__(self, parameters: Parameters = None) -> Run:
        """Carry out a run with these parameters.

        Parameters
        ----------
        parameters : mapping, labelled array or array, optional
            As in `simulate`.

        Returns
        -------
        Run
            Functionals, gradients and counts of the run.

        Raises
        ------
        DaeHybridError
            Any error of `simulate`, `forward_sensitivity` or `adjoint_gradient`.
        """
        if type(parameters) is np.ndarray and parameters.dtype == np.float64 and parameters.shape == self._shape:
            p = parameters
        else:
            p = self._system.parameter_vector(parameters)
        work = self._work
        if work.case.system is not self._system.current():  # compiled code has become available
            work = self._work = _Work(self._make())
        return work.run(p)

    def __reduce__(self) -> tuple[Any, ...]:
        return Prepared, (self._system, self._make)

    def __repr__(self) -> str:
        case = self._work.case
        what = {None: "simulation", "forward": "forward analysis", "adjoint": "adjoint analysis"}[case.analysis]
        span = case.setup.span
        return f"<Prepared {what} of '{case.system.name}' from {span[0]:g} to {span[1]:g}>"


class _Work:
    """Native runs of a case; each thread has its own crew."""

    def __init__(self, case: CheckedCall) -> None:
        self.case = case
        self._idle: list[_Seat] = []
        self._is_left = isinstance(case.plan, str)  # whether all runs are left to single calls

    def run(self, p: Array) -> Run:
        """Carry out one run."""
        if self._is_left:
            return self._singly(p)
        try:
            seat = self._idle.pop()
        except IndexError:
            crew = self.case.crew()
            if isinstance(crew, str):
                self._is_left = True
                return self._singly(p)
            seat = _Seat(self.case, crew)
        found = seat.run(p)
        self._idle.append(seat)
        return self._singly(p) if found is None else found

    def _singly(self, p: Array) -> Run:
        single, case = self.case.single(p.copy()), self.case
        out = case.outcomes(1)
        take_over(case, single, 0, out, {})
        return _run_of(case, p, out, single)


class _Seat:
    """A crew with buffers for the result of one run."""

    def __init__(self, case: CheckedCall, crew: Crew) -> None:
        self._case, self._crew, self._out = case, crew, case.outcomes(1)
        self._given = np.zeros((1, case.system.parameters.size))
        crew.aim(self._given, self._out)

    def run(self, p: Array) -> Run | None:
        """Carry out a run; None if it is left to a single call."""
        case, out = self._case, self._out
        self._given[0] = p
        self._crew.run(0, 1)
        if out.done[0] != DONE:
            judge_growth(case, self._given, out, 1)
            if out.done[0] != DONE:
                return None
        return _run_of(case, p, out)


def _run_of(case: CheckedCall, p: Array, out: Outcomes, single: Single | None = None) -> Run:
    """Make a `Run` from the only row of the outcomes."""
    gradients = None if case.analysis is None else case.reported(out.gradients)[0].copy()
    counts = out.n_events.item(), out.n_steps.item()
    return Run(case, p.copy(), out.values[0].copy(), gradients, *counts, out.times.item(), out.digests.item(), single)


class Run:
    """Result of a prepared call.

    Attributes
    ----------
    parameters : ndarray, shape (n_parameters,)
        Parameters of the run.
    n_events, n_steps : int
        Number of events and of steps.
    t_end : float
        Final time.
    digest : int
        Digest of the sequence of events: equal for runs with the same transitions and measurements in the same order.
        With derivatives it contains the sides of relations that are not events, without them it does not: compare
        digests of runs with derivatives, or of runs without.

    Events, outputs, diagnostics and sensitivities of states are available from `single`.
    """

    def __init__(
        self, case: CheckedCall, parameters: Array, values: Array, gradients: Array | None, n_events: int, n_steps: int,
        t_end: float, digest: int, single: Single | None = None,
    ) -> None:  # fmt: skip
        self.parameters, self.n_events, self.n_steps, self.t_end = parameters, n_events, n_steps, t_end
        self.digest = digest
        self._case, self._values, self._gradients = case, values, gradients
        self.is_native = single is None
        """Whether compiled code carried it out by itself."""
        if single is not None:
            self.__dict__["single"] = single

    @property
    def functionals(self) -> Mapping[str, Any]:
        """Values of the functionals: floats, or ndarrays of shape (k,) for vectors."""
        parts = self._case.system.functionals
        return MappingProxyType({name: scalar(self._values[parts[name]]) for name in self._case.names})

    @property
    def value(self) -> Any:
        """Value of the functional, if only one is reported."""
        return self.functionals[self._only]

    @property
    def gradient(self) -> Mapping[str, Array]:
        """Gradients by functional, shape (n_wrt,), or (k, n_wrt) of a vector; empty for a simulation."""
        if self._gradients is None:
            return MappingProxyType({})
        rows = {name: self._gradients[part] for name, part in self._case.components.items()}
        return MappingProxyType({name: own[0] if len(own) == 1 else own for name, own in rows.items()})

    @property
    def _only(self) -> str:
        return self._case.system.functional_name(self._case.names[0] if len(self._case.names) == 1 else None)

    @cached_property
    def single(self) -> Single:
        """The complete result, computed on first access by repeating the run as a single call.

        A `Trajectory`, a `ForwardSensitivity`, or for adjoint analysis a dict of `Gradient` by functional.
        """
        return self._case.single(self.parameters.copy())

    @property
    def trajectory(self) -> Trajectory:
        """The trajectory of `single`."""
        return trajectory_of(self.single)

    def __repr__(self) -> str:
        values = "".join(f", {name} = {value}" for name, value in self.functionals.items())
        return f"<Run of '{self._case.system.name}' to {self.t_end:g}: {self.n_events} events{values}>"

    def _repr_html_(self) -> str:
        values = [[name, in_short(value)] for name, value in self.functionals.items()]
        gradients = [[f"gradient of {name}", in_short(value)] for name, value in self.gradient.items()]
        return html(repr(self), [["", "value"], *values, *gradients])
