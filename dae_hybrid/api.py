"""The public calls: simulate, forward sensitivities, adjoint gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from dae_hybrid import adjoint as adjoint_analysis
from dae_hybrid.algorithm1 import serban_recuero
from dae_hybrid.automaton import Automaton, scalar
from dae_hybrid.errors import DaeHybridError, OptionError, UnsupportedError
from dae_hybrid.forward import Directions
from dae_hybrid.integrator import Array, Integrator, Session
from dae_hybrid.options import Options, SensitivityMethod, check_time_span, check_times
from dae_hybrid.registry import Analysis, check_capabilities, find_integrator
from dae_hybrid.results import ForwardSensitivity, Gradient
from dae_hybrid.system import HybridSystem, check_built
from dae_hybrid.trajectory import Side, Trajectory

Parameters = Mapping[str, ArrayLike] | ArrayLike | None
#: tightest tolerance of the direct form of index 2 (measured: below it events on multipliers go astray)
DIRECT_RTOL = 1e-11
Algorithm = Literal["general", "serban-recuero"]


class RunOptions(TypedDict, total=False):
    """Keywords every run takes; see `Options` for their meaning and defaults."""

    rtol: float
    atol: float | Mapping[str, float]
    method: str
    max_step: float | None
    first_step: float | None
    max_steps: int
    max_order: int | None
    max_events: int
    max_transitions_per_instant: int
    sensitivity_method: SensitivityMethod
    suppress_algebraic: bool
    checkpoint_steps: int


class _Setup:
    """Checked arguments of a call."""

    def __init__(
        self, system: HybridSystem, t_span: Sequence[float], parameters: Parameters, t_eval: ArrayLike | None,
        adapter: str, options: Mapping[str, Any], analysis: Analysis = "simulate",
    ) -> None:  # fmt: skip
        check_built(system)
        self.system = system
        self.span = check_time_span(t_span)
        self.t_eval = check_times(t_eval, self.span)
        self.p = system.parameter_vector(parameters)
        self.options = Options.of(options)
        self._check_tolerance_names()
        self._check_index()
        check_capabilities(adapter, system, self.options, analysis)
        self.integrator: Integrator = find_integrator(adapter)

    def _check_index(self) -> None:
        tight = [mode for mode in self.system.modes if mode.equations.index == 2 and self.options.rtol < DIRECT_RTOL]
        if tight:
            raise UnsupportedError(
                f"Index 2 as it stands is not reliable below rtol {DIRECT_RTOL:g}, got {self.options.rtol:g}.",
                mode=tight[0].name,
                remedy="Build with index2='reduced' (the default), or loosen rtol.",
            )

    def _check_tolerance_names(self) -> None:
        if not isinstance(self.options.atol, Mapping):
            return
        known = {"*", *self.system.functionals.names, *(n for m in self.system.modes for n in m.variables.names)}
        unknown = sorted(set(self.options.atol) - known)
        if unknown:
            raise OptionError(
                f"atol names {', '.join(map(repr, unknown))}, which the model does not have.",
                remedy=f"Legal names: {', '.join(sorted(known))}.",
            )

    def open(self, **more: Any) -> Session:
        """A session of this run."""
        return self.integrator.open(self.options, self.p, **more)

    def run(self, directions: Directions | None = None) -> Trajectory:
        """Simulate, carrying directions where given."""
        more: dict[str, Any] = {}
        if directions is not None and directions.count:
            scales = np.abs(directions.directions).T @ np.abs(self.p)
            scales = np.where(scales > 0, np.maximum(scales, adjoint_analysis.SMALLEST), 1.0)
            more = {"parameter_directions": directions.directions.T, "scales": scales}
        session = self.open(**more)
        try:
            return Automaton(
                self.system, session, self.p, self.span, self.t_eval, self.options, directions, self.open
            ).run()
        finally:
            session.close()


def simulate(
    system: HybridSystem,
    t_span: Sequence[float],
    *,
    parameters: Parameters = None,
    t_eval: ArrayLike | None = None,
    adapter: str = "sundials",
    **options: Unpack[RunOptions],
) -> Trajectory:
    """Simulate a hybrid system.

    Parameters
    ----------
    system : HybridSystem
        From `HybridModel.build`.
    t_span : (float, float)
        Start and end.
    parameters : mapping or array, optional
        Values by name, the others nominal, or all in order of declaration.
    t_eval : array, shape (n_t,), optional
        Output times, increasing; the value at an event is the one after it. By default every step of the
        integrator, with both sides of every event.
    adapter : str
        Integrator library.
    **options
        rtol, atol, method, max_step, ...: see `Options`.

    Returns
    -------
    Trajectory

    Raises
    ------
    ParameterError, OptionError
        An argument is wrong.
    IntegrationError
        The integrator could not go on; the error's ``trajectory`` holds what there was.
    ConsistencyError
        No consistent initial or post-transition values.
    EventError
        Chattering, accumulating or invalid transitions.

    Examples
    --------
    >>> import dae_hybrid as dh
    >>> from dae_hybrid.problems import em_hysteresis
    >>> sol = dh.simulate(em_hysteresis.system(), (0, 10), rtol=1e-8, atol=1e-12)
    >>> len(sol.events), round(sol.functionals["G"], 5)
    (19, 0.04994)
    """
    return _Setup(system, t_span, parameters, t_eval, adapter, options).run()


def forward_sensitivity(
    system: HybridSystem,
    t_span: Sequence[float],
    *,
    wrt: str | Sequence[str] | None = None,
    parameters: Parameters = None,
    t_eval: ArrayLike | None = None,
    adapter: str = "sundials",
    **options: Unpack[RunOptions],
) -> ForwardSensitivity:
    """Simulate with forward sensitivities: derivatives of states, event times and every functional.

    Parameters
    ----------
    wrt : str or sequence of str, optional
        Parameters to differentiate by; all by default.

    Other parameters, returned errors: as in `simulate`; besides, `GrazingError` where an event time is
    not differentiable. Serban and Recuero (2019), eq. 5, 6, 25 to 28.

    Examples
    --------
    >>> import dae_hybrid as dh
    >>> from dae_hybrid.problems import hybrid_ode
    >>> fsa = dh.forward_sensitivity(hybrid_ode.system(), (0, 5), rtol=1e-10, atol=1e-12)
    >>> fsa.gradient["G"].round(6), fsa.event_time_sensitivity[0].round(6)
    (array([-2.311953]), array([0.315708]))
    """
    setup = _Setup(system, t_span, parameters, t_eval, adapter, options, "forward")
    indices = list(system.parameter_indices(wrt))
    directions = Directions(system, setup.p, np.eye(system.parameters.size)[:, indices], setup.span[0])
    trajectory = setup.run(directions)
    with _carrying(trajectory):
        gradient = directions.gradient(trajectory)
    count = len(indices)
    return ForwardSensitivity(
        trajectory=trajectory,
        parameters=_labels(system, indices),
        gradient={name: _shaped(gradient[system.functionals[name]]) for name in system.functionals.names},
        event_time_sensitivity=np.array(directions.event_times).reshape(len(trajectory.events), count),
    )


def adjoint_gradient(
    system: HybridSystem,
    t_span: Sequence[float],
    functional: str | None = None,
    *,
    wrt: str | Sequence[str] | None = None,
    parameters: Parameters = None,
    t_eval: ArrayLike | None = None,
    adapter: str = "sundials",
    algorithm: Algorithm = "general",
    **options: Unpack[RunOptions],
) -> Gradient:
    """The gradient of a functional by a backward sweep: its cost does not grow with the number of parameters.

    Parameters
    ----------
    functional : str, optional
        Which functional; may be left out when the model has one.
    wrt : str or sequence of str, optional
        Parameters to differentiate by; all by default.
    algorithm : {"general", "serban-recuero"}
        ``"serban-recuero"`` is Algorithm 1 of Serban and Recuero (2019) as printed, for systems with memory
        whose states are continuous; anything else it refuses with an `AssumptionError`.

    Other parameters and errors: as in `simulate` and `forward_sensitivity`.

    Examples
    --------
    >>> import dae_hybrid as dh
    >>> from dae_hybrid.problems import hybrid_ode
    >>> asa = dh.adjoint_gradient(hybrid_ode.system(), (0, 5), "G", rtol=1e-10, atol=1e-12)
    >>> asa.gradient.round(6)
    array([-2.311953])
    """
    setup = _Setup(system, t_span, parameters, t_eval, adapter, options, "adjoint")
    if algorithm not in ("general", "serban-recuero"):
        raise OptionError(f"algorithm must be 'general' or 'serban-recuero', got {algorithm!r}.")
    name = system.functional_name(functional)
    indices = system.parameter_indices(wrt)
    part = system.functionals[name]
    components = tuple(range(part.start, part.stop))
    trajectory = setup.run()

    def sweep(session: Session) -> adjoint_analysis.Sweep:
        return adjoint_analysis.Sweep(trajectory, session, setup.options, components, indices)

    def samples(times: Array, side: Side) -> list[Array]:
        return _with(setup, indices, lambda session: adjoint_analysis.samples(sweep(session), times, side))

    analysis: Callable[[adjoint_analysis.Sweep], Array] = (
        adjoint_analysis.gradient if algorithm == "general" else serban_recuero
    )
    with _carrying(trajectory):
        gradient, statistics = _with(setup, indices, lambda session: (analysis(sweep(session)), session.statistics()))
    return Gradient(
        functional=name,
        value=trajectory.functionals[name],
        parameters=_labels(system, list(indices)),
        gradient=_shaped(gradient),
        trajectory=trajectory,
        statistics=statistics,
        diagnostics=trajectory.diagnostics,
        algorithm=algorithm,
        _samples=samples,
    )


@contextmanager
def _carrying(trajectory: Trajectory) -> Iterator[None]:
    """Errors of what follows a run carry it."""
    try:
        yield
    except DaeHybridError as error:
        if error.trajectory is None:
            error.trajectory = trajectory
        raise


def _with(setup: _Setup, wrt: tuple[int, ...], use: Callable[[Session], Any]) -> Any:
    session = setup.open(wrt=wrt)
    try:
        return use(session)
    finally:
        session.close()


def _labels(system: HybridSystem, indices: list[int]) -> tuple[str, ...]:
    labels = system.parameters.labels()
    return tuple(labels[i] for i in indices)


def _shaped(gradient: Array) -> Array:
    return gradient[0] if len(gradient) == 1 else gradient


__all__ = ["adjoint_gradient", "forward_sensitivity", "scalar", "simulate"]
