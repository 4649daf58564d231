"""Public functions: `simulate`, `forward_sensitivity`, `adjoint_gradient`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from dae_hybrid.conditions.amplification import lost_digits
from dae_hybrid.conditions.certify import attach_trajectory, check_derivative_conditions
from dae_hybrid.conditions.error_estimate import SECOND_RUN_SHARE
from dae_hybrid.errors import OptionError
from dae_hybrid.interface.parameter_sets import ParameterTable
from dae_hybrid.interface.peaks import decide_peaks, places_moved, simulated
from dae_hybrid.interface.runs import Parameters, RunBuilder
from dae_hybrid.interface.starts import for_call
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.options import Keep, LinearSolver, OnZeno, Preconditioner, SensitivityMethod, Simultaneous, check_keep
from dae_hybrid.port.native_plan import MemoryBound
from dae_hybrid.sensitivity.duality import TangentTrace, compare, direction
from dae_hybrid.sensitivity.forward import TangentState
from dae_hybrid.sensitivity.results import ForwardSensitivity, Gradient
from dae_hybrid.statement.declarations import Mode
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.trajectory.trajectory import Trajectory

Algorithm = Literal["general", "serban-recuero"]


class RunOptions(TypedDict, total=False):
    """Keyword options of every run; see `Options` for their meaning and defaults."""

    rtol: float
    atol: float | Mapping[str, float]
    method: str
    max_step: float | None
    first_step: float | None
    fixed_step: float | None
    max_steps: int
    max_order: int | None
    max_events: int
    max_transitions_per_instant: int
    simultaneous: Simultaneous
    on_zeno: OnZeno
    sensitivity_method: SensitivityMethod
    sensitivity_error_control: bool
    suppress_algebraic: bool
    linear_solver: LinearSolver
    preconditioner: Preconditioner | None
    adjoint_memory: float
    native_events: bool


def simulate(
    system: HybridSystem,
    t_span: Sequence[float],
    *,
    parameters: Parameters = None,
    x0: ParameterTable = None,
    start_mode: Mode | str | None = None,
    t_eval: ArrayLike | None = None,
    adapter: str = "sundials",
    keep: Keep = "all",
    **options: Unpack[RunOptions],
) -> Trajectory:
    """Simulate a hybrid system.

    Parameters
    ----------
    system : HybridSystem
        The built system, from `HybridModel.build`.
    t_span : (float, float)
        Initial and final time, in the model's unit of time.
    parameters : mapping, labelled array or array, optional
        Values by name (others keep their nominal values), or all values in order of declaration. Labelled objects (a
        pandas Series with an index of its own, a row of a DataFrame, an xarray DataArray with coordinates, a named
        tuple) are read as mappings; a Series with the default index gives all values. See
        `HybridSystem.parameter_vector`.
    x0 : mapping of str to float or array, optional
        Initial values of this call, by name of a differential variable or a memory, or of an entry (``"v[2]"``), in
        place of those of the model; see `started`. Derivatives by parameters are those at fixed initial values.
    start_mode : Mode or str, optional
        Initial mode of this call; `x0` gives the values that the model does not state for it.
    t_eval : array, shape (n_t,), optional
        Output times, increasing. An output at the time of an event is the value after the event. By default every step
        of the integrator, with both sides of each event.
    adapter : str
        Name of the adapter; see `adapter_names`.
    keep : {"all", "events", "final"}
        Data kept in the result. ``"all"`` (default): outputs, events, and the data of dense output ``sol(t)``.
        ``"events"``: events, and outputs at `t_eval` if given. ``"final"``: the final point (`Trajectory.final`), the
        functionals, the number of events and the statistics; the memory used does not grow with the length of the run.
        Any other attribute of the result raises `NotKeptError`.
    **options
        rtol, atol, method, max_step, ...; see `Options`.

    Returns
    -------
    Trajectory
        Outputs, events, functionals, diagnostics and statistics of the run.

    Raises
    ------
    ParameterError, OptionError
        An argument is invalid.
    IntegrationError
        The integrator failed; the error's ``trajectory`` holds the partial result.
    ConsistencyError
        No consistent initial or post-transition values exist, or Newton's method does not find them.
    EventError
        Transitions chatter, accumulate or are invalid.

    Examples
    --------
    >>> import dae_hybrid as dh
    >>> from dae_hybrid.problems import em_hysteresis
    >>> sol = dh.simulate(em_hysteresis.system(), (0, 10), rtol=1e-8, atol=1e-12)
    >>> len(sol.events), round(sol.functionals["G"], 5)
    (19, 0.04994)
    """
    system = for_call(system, x0, start_mode)
    return simulated(RunBuilder(system, t_span, parameters, t_eval, adapter, options, keep=keep))


def forward_sensitivity(
    system: HybridSystem,
    t_span: Sequence[float],
    *,
    wrt: str | Sequence[str] | None = None,
    parameters: Parameters = None,
    x0: ParameterTable = None,
    start_mode: Mode | str | None = None,
    t_eval: ArrayLike | None = None,
    adapter: str = "sundials",
    keep: Keep = "all",
    strict: bool = True,
    duality: bool | float = False,
    **options: Unpack[RunOptions],
) -> ForwardSensitivity:
    """Simulate with forward sensitivities: derivatives of states, event times and all functionals.

    Parameters
    ----------
    wrt : str or sequence of str, optional
        Parameters, or entries of vectors (``"k[1]"``), to differentiate by; default all. Initial values are named
        ``"x(0)"``, or ``"v(0)[2]"`` for an entry.
    keep : {"all", "events", "final"}
        Data kept in the result; see `simulate`. ``"events"`` keeps the derivatives at events and, with `t_eval`, at
        outputs; ``"final"`` keeps the gradients. The analysis itself needs the memory of the whole run.
    strict : bool
        Raise if a condition for the derivatives fails (default): `GrazingError` if a guard touches zero, `EventError`
        if a measurement, a knot, the start or the end of the run coincides with an event whose time depends on
        parameters, `ZenoError` if the run was ended by ``on_zeno="end"``, `DualityError`. If False, the numbers are
        returned with a `DerivativeWarning`, and `diagnostics` lists the reasons.
    duality : bool or float
        Compare with adjoint analysis (`dae_hybrid.sensitivity.duality`), one sweep per functional. A number is the
        allowed difference relative to the gradient; True means sqrt(rtol). Default False.

    Returns
    -------
    ForwardSensitivity
        The trajectory, its sensitivities and the gradients of all functionals.

    Raises
    ------
    GrazingError, EventError, ZenoError, DualityError
        See `strict`. Errors of `simulate` apply as well.

    Warns
    -----
    DerivativeWarning
        Coincident events make derivatives one-sided.
    ConditionWarning
        Perturbations grow so much along the run that the tolerance does not determine the derivatives of the
        functionals, or rounding and the errors of the states exceed the derivatives by an insensitive parameter.

    Notes
    -----
    Other parameters are those of `simulate`. The sensitivities solve Serban and Recuero (2019), eq. 5, 6, 25 to 28.

    Examples
    --------
    >>> import dae_hybrid as dh
    >>> from dae_hybrid.problems import hybrid_ode
    >>> fsa = dh.forward_sensitivity(hybrid_ode.system(), (0, 5), rtol=1e-10, atol=1e-12)
    >>> fsa.gradient["G"].round(6), fsa.event_time_sensitivity[0].round(6)
    (array([-2.311953]), array([0.315708]))
    """
    check_keep(keep, t_eval)
    system = for_call(system, x0, start_mode, wrt)
    setup = RunBuilder(system, t_span, parameters, t_eval, adapter, options, "forward")
    allowed, conditions = setup.allowed(duality), setup.conditions(strict=strict)
    decide_peaks(setup)
    indices = system.parameter_indices(wrt)
    v = direction(setup.p[list(indices)])

    def tangents() -> TangentState:
        found = setup.directions(indices, conditions)
        return found if allowed is None else setup.tangent_trace(found.directions, v, conditions)

    directions = tangents()
    trajectory = setup.run(directions)
    while places_moved(setup, trajectory):
        directions = tangents()
        trajectory = setup.run(directions)
    with attach_trajectory(trajectory):
        gradient = directions.gradient(trajectory)
        checked = {}
        if isinstance(directions, TangentTrace) and allowed is not None and system.functionals.names:
            run = setup.run(for_adjoint=True)
            for name in system.functionals.names:
                sweep_result = setup.adjoint(run, name, indices, conditions, at_events=True)
                checked[name] = compare(name, sweep_result, directions, gradient @ v, v, allowed, gradient)
        parts = system.functionals
        growth = lost_digits(
            trajectory,
            {key: gradient[parts[key]] for key in parts.names},
            indices,
            lambda factor: setup.looser(factor).forward_gradients(indices),
            sampled=setup.t_eval is not None,
        )
        verdict = check_derivative_conditions(
            trajectory,
            conditions,
            lambda: (trajectory, directions),
            checked,
            growth,
            parts.names,
            lambda: setup.looser(SECOND_RUN_SHARE).run(),
        )
    return ForwardSensitivity(
        trajectory=left_of(trajectory, keep),
        parameters=_labels(system, indices),
        gradient={key: _shaped(gradient[parts[key]], trajectory, parts[key]) for key in parts.names},
        duality=checked,
        _directions=None if keep == "final" else directions,
        _verdict=verdict,
    )


def adjoint_gradient(
    system: HybridSystem,
    t_span: Sequence[float],
    functional: str | None = None,
    *,
    wrt: str | Sequence[str] | None = None,
    parameters: Parameters = None,
    x0: ParameterTable = None,
    start_mode: Mode | str | None = None,
    t_eval: ArrayLike | None = None,
    adapter: str = "sundials",
    keep: Keep = "all",
    algorithm: Algorithm = "general",
    strict: bool = True,
    duality: bool | float = False,
    **options: Unpack[RunOptions],
) -> Gradient:
    """Compute the gradient of a functional by a backward sweep; its cost does not grow with the number of parameters.

    Parameters
    ----------
    functional : str, optional
        Name of the functional; optional if the model has only one.
    wrt : str or sequence of str, optional
        Parameters, or entries of vectors (``"k[1]"``), to differentiate by; default all. Initial values are named
        ``"x(0)"``, or ``"v(0)[2]"`` for an entry.
    keep : {"all", "events", "final"}
        Data kept in the result after the sweep; see `simulate`. `Gradient.adjoint` needs ``"all"``. During the
        sweep, ``adjoint_memory`` bytes are kept in addition (see `Options`).
    algorithm : {"general", "serban-recuero"}
        ``"serban-recuero"`` is Algorithm 1 of Serban and Recuero (2019) as printed, for systems with memory and
        continuous states; other systems raise an `AssumptionError`.
    strict, duality
        As in `forward_sensitivity`; the duality check costs one forward direction.

    Returns
    -------
    Gradient
        The gradient, shape (n_wrt,), or (k, n_wrt) of a vector functional, with the run and its diagnostics.

    Notes
    -----
    Other parameters, errors and warnings are those of `simulate` and `forward_sensitivity`.

    Examples
    --------
    >>> import dae_hybrid as dh
    >>> from dae_hybrid.problems import hybrid_ode
    >>> asa = dh.adjoint_gradient(hybrid_ode.system(), (0, 5), "G", rtol=1e-10, atol=1e-12)
    >>> asa.gradient.round(6)
    array([-2.311953])
    """
    check_keep(keep, t_eval)
    system = for_call(system, x0, start_mode, wrt)
    setup = RunBuilder(system, t_span, parameters, t_eval, adapter, options, "adjoint")
    if algorithm not in ("general", "serban-recuero"):
        raise OptionError(f"algorithm must be 'general' or 'serban-recuero', got {algorithm!r}.")
    allowed, conditions = setup.allowed(duality), setup.conditions(strict=strict)
    name, indices = system.functional_name(functional), system.parameter_indices(wrt)
    decide_peaks(setup, name)
    if algorithm == "general":
        rows = keep == "final" or (keep == "events" and t_eval is None)
        setup.bound = MemoryBound(setup.options.adjoint_memory, keep == "final", rows)
    trajectory = setup.run(for_adjoint=True)
    while places_moved(setup, trajectory):
        trajectory = setup.run(for_adjoint=True)

    def forward() -> tuple[Trajectory, TangentState]:
        directions = setup.directions(indices, conditions)
        return setup.run(directions), directions

    with attach_trajectory(trajectory):
        sweep_result = setup.adjoint(trajectory, name, indices, conditions, algorithm, at_events=allowed is not None)
        checked = {}
        if allowed is not None:
            trace, total, v = setup.tangent_for_check(trajectory, sweep_result, indices, conditions)
            checked[name] = compare(name, sweep_result, trace, total, v, allowed)
        growth = lost_digits(
            trajectory,
            {name: sweep_result.gradient},
            indices,
            lambda factor: setup.looser(factor).adjoint_gradients(name, indices, algorithm),
            sampled=setup.t_eval is not None,
        )
        verdict = check_derivative_conditions(
            trajectory, conditions, forward, checked, growth, (name,), lambda: setup.looser(SECOND_RUN_SHARE).run()
        )
    trajectory.parts.forget_paths()
    left = left_of(trajectory, keep)
    return Gradient(
        functional=name,
        value=trajectory.functionals[name],
        parameters=_labels(system, indices),
        gradient=_shaped(sweep_result.gradient, trajectory, system.functionals[name]),
        trajectory=left,
        statistics=sweep_result.statistics,
        duality=checked.get(name),
        algorithm=algorithm,
        _verdict=verdict,
        _samples=partial(setup.samples, trajectory, name, indices, conditions) if keep == "all" else None,
    )


def left_of(trajectory: Trajectory, keep: Keep) -> Trajectory:
    """Reduce an analysed run to the parts to be kept; its diagnostics are computed first."""
    if keep == "final":
        _ = trajectory.diagnostics
    return trajectory.thinned(keep)


def _labels(system: HybridSystem, indices: tuple[int, ...]) -> tuple[str, ...]:
    labels = system.parameters.labels()
    return tuple(labels[i] for i in indices)


def _shaped(gradient: Array, trajectory: Trajectory, components: slice) -> Array:
    """Return the gradient of a functional, NaN where its value is."""
    gradient = np.where(np.isnan(trajectory.integrals[components])[:, None], np.nan, gradient)
    return gradient[0] if len(gradient) == 1 else gradient


__all__ = ["adjoint_gradient", "forward_sensitivity", "simulate"]
