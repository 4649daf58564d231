"""The public calls: simulate, forward sensitivities, adjoint gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from dae_hybrid.conditions.amplification import LOOSER, lost_digits
from dae_hybrid.conditions.certify import certify, keeping
from dae_hybrid.conditions.reach import FINER
from dae_hybrid.errors import OptionError
from dae_hybrid.interface.runs import Parameters, RunBuilder
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.options import Keep, LinearSolver, OnZeno, Preconditioner, SensitivityMethod, Simultaneous, check_keep
from dae_hybrid.port.native_plan import Bound
from dae_hybrid.sensitivity.duality import compare, direction
from dae_hybrid.sensitivity.forward import TangentState
from dae_hybrid.sensitivity.results import ForwardSensitivity, Gradient
from dae_hybrid.simulation.automaton import scalar
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.trajectory.trajectory import Trajectory

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
    t_eval: ArrayLike | None = None,
    adapter: str = "sundials",
    keep: Keep = "all",
    **options: Unpack[RunOptions],
) -> Trajectory:
    """Simulate a hybrid system.

    Parameters
    ----------
    system : HybridSystem
        From `HybridModel.build`.
    t_span : (float, float)
        Start and end.
    parameters : mapping, labelled array or array, optional
        Values by name, the others nominal, or all in order of declaration. What has labels (a pandas Series with an
        index of its own, a row of a DataFrame, an xarray DataArray with coordinates, a named tuple) is read as a
        mapping; a Series with the default index is all values in order. See `HybridSystem.parameter_vector`.
    t_eval : array, shape (n_t,), optional
        Output times, increasing; the value at an event is the one after it. By default every step of the
        integrator, with both sides of every event.
    adapter : str
        Integrator library.
    keep : {"all", "events", "final"}
        What the result keeps of the run. ``"all"`` (default): outputs, events, and what dense output ``sol(t)`` is made
        of. ``"events"``: events, and outputs at `t_eval`, if given. ``"final"``: the end (`Trajectory.final`), the
        functionals, the number of events and the statistics; the memory that the run takes does not grow with its
        length. Whatever else the result is asked for it refuses with `NotKeptError`.
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
    return RunBuilder(system, t_span, parameters, t_eval, adapter, options, keep=keep).run()


def forward_sensitivity(
    system: HybridSystem,
    t_span: Sequence[float],
    *,
    wrt: str | Sequence[str] | None = None,
    parameters: Parameters = None,
    t_eval: ArrayLike | None = None,
    adapter: str = "sundials",
    keep: Keep = "all",
    strict: bool = True,
    duality: bool | float = False,
    **options: Unpack[RunOptions],
) -> ForwardSensitivity:
    """Simulate with forward sensitivities: derivatives of states, event times and every functional.

    Parameters
    ----------
    wrt : str or sequence of str, optional
        Parameters to differentiate by; all by default.
    keep : {"all", "events", "final"}
        What the result keeps, see `simulate`: with ``"events"`` the derivatives at events and, with `t_eval`, at
        outputs; with ``"final"`` the gradients. The analysis itself looks at all of the run, and takes the memory.
    strict : bool
        Raise where a condition for the derivatives fails (default): `GrazingError` where a guard touches zero,
        `EventError` where a measurement, a knot, the start or the end of the run falls on an event that moves,
        `ZenoError` where the run was ended by ``on_zeno="end"``, `DualityError`. Otherwise the numbers come with a
        `DerivativeWarning`, and `diagnostics` carries the reasons.
    duality : bool or float
        Compare with adjoint analysis (`dae_hybrid.sensitivity.duality`), one sweep for every functional; a number is
        the difference allowed, relative to the gradient; True is sqrt(rtol).

    Other parameters, returned errors: as in `simulate`. Warns with `DerivativeWarning` where what falls together makes
    derivatives one-sided, and with `ConditionWarning` where perturbations grow so much along the run that the tolerance
    does not determine the derivatives of the functionals, or where rounding and the errors of the states are larger
    than derivatives by a parameter that does next to nothing. Serban and Recuero (2019), eq. 5, 6, 25 to 28.

    Examples
    --------
    >>> import dae_hybrid as dh
    >>> from dae_hybrid.problems import hybrid_ode
    >>> fsa = dh.forward_sensitivity(hybrid_ode.system(), (0, 5), rtol=1e-10, atol=1e-12)
    >>> fsa.gradient["G"].round(6), fsa.event_time_sensitivity[0].round(6)
    (array([-2.311953]), array([0.315708]))
    """
    check_keep(keep, t_eval)
    setup = RunBuilder(system, t_span, parameters, t_eval, adapter, options, "forward")
    allowed, conditions = setup.allowed(duality), setup.conditions(strict=strict)
    indices = system.parameter_indices(wrt)
    directions, witness, v = setup.directions(indices, conditions), None, np.zeros(0)
    if allowed is not None:
        v = direction(setup.p[list(indices)])
        directions = witness = setup.witness(directions.directions, v, conditions)
    trajectory = setup.run(directions)
    with keeping(trajectory):
        gradient = directions.gradient(trajectory)
        checked = {}
        if witness is not None and allowed is not None and system.functionals.names:
            run = setup.run(for_adjoint=True)
            for name in system.functionals.names:
                swept = setup.adjoint(run, name, indices, conditions, marked=True)
                checked[name] = compare(name, swept, witness, gradient @ v, v, allowed)
        parts = system.functionals
        growth = lost_digits(
            trajectory,
            {key: gradient[parts[key]] for key in parts.names},
            indices,
            lambda: setup.looser(LOOSER).forward_gradients(indices),
            sampled=setup.t_eval is not None,
        )
        verdict = certify(
            trajectory,
            conditions,
            lambda: (trajectory, directions),
            checked,
            growth,
            parts.names,
            lambda: setup.looser(FINER).run(),
        )
    return ForwardSensitivity(
        trajectory=left_of(trajectory, keep),
        parameters=_labels(system, indices),
        gradient={name: _shaped(gradient[system.functionals[name]]) for name in system.functionals.names},
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
    t_eval: ArrayLike | None = None,
    adapter: str = "sundials",
    keep: Keep = "all",
    algorithm: Algorithm = "general",
    strict: bool = True,
    duality: bool | float = False,
    **options: Unpack[RunOptions],
) -> Gradient:
    """The gradient of a functional by a backward sweep: its cost does not grow with the number of parameters.

    Parameters
    ----------
    functional : str, optional
        Which functional; may be left out when the model has one.
    wrt : str or sequence of str, optional
        Parameters to differentiate by; all by default.
    keep : {"all", "events", "final"}
        What the result keeps of the run when the sweep is over, see `simulate`. `Gradient.adjoint` needs ``"all"``.
        While it is under way the sweep keeps ``adjoint_memory`` bytes beside that (see `Options`).
    algorithm : {"general", "serban-recuero"}
        ``"serban-recuero"`` is Algorithm 1 of Serban and Recuero (2019) as printed, for systems with memory
        whose states are continuous; anything else it refuses with an `AssumptionError`.
    strict, duality
        As in `forward_sensitivity`; the check costs one forward direction.

    Other parameters, errors and warnings: as in `simulate` and `forward_sensitivity`.

    Examples
    --------
    >>> import dae_hybrid as dh
    >>> from dae_hybrid.problems import hybrid_ode
    >>> asa = dh.adjoint_gradient(hybrid_ode.system(), (0, 5), "G", rtol=1e-10, atol=1e-12)
    >>> asa.gradient.round(6)
    array([-2.311953])
    """
    check_keep(keep, t_eval)
    setup = RunBuilder(system, t_span, parameters, t_eval, adapter, options, "adjoint")
    if algorithm not in ("general", "serban-recuero"):
        raise OptionError(f"algorithm must be 'general' or 'serban-recuero', got {algorithm!r}.")
    allowed, conditions = setup.allowed(duality), setup.conditions(strict=strict)
    name, indices = system.functional_name(functional), system.parameter_indices(wrt)
    if algorithm == "general":
        rows = keep == "final" or (keep == "events" and t_eval is None)
        setup.bound = Bound(setup.options.adjoint_memory, keep == "final", rows)
    trajectory = setup.run(for_adjoint=True)

    def forward() -> tuple[Trajectory, TangentState]:
        directions = setup.directions(indices, conditions)
        return setup.run(directions), directions

    with keeping(trajectory):
        swept = setup.adjoint(trajectory, name, indices, conditions, algorithm, marked=allowed is not None)
        checked = {}
        if allowed is not None:
            witness, total, v = setup.testimony(trajectory, indices, conditions)
            checked[name] = compare(name, swept, witness, total, v, allowed)
        growth = lost_digits(
            trajectory,
            {name: swept.gradient},
            indices,
            lambda: setup.looser(LOOSER).adjoint_gradients(name, indices, algorithm),
            sampled=setup.t_eval is not None,
        )
        verdict = certify(trajectory, conditions, forward, checked, growth, (name,), lambda: setup.looser(FINER).run())
    trajectory.parts.forget_paths()
    left = left_of(trajectory, keep)
    return Gradient(
        functional=name,
        value=trajectory.functionals[name],
        parameters=_labels(system, indices),
        gradient=_shaped(swept.gradient),
        trajectory=left,
        statistics=swept.statistics,
        duality=checked.get(name),
        algorithm=algorithm,
        _verdict=verdict,
        _samples=partial(setup.samples, trajectory, name, indices, conditions) if keep == "all" else None,
    )


def left_of(trajectory: Trajectory, keep: Keep) -> Trajectory:
    """What is kept of a run that has been analysed: what there is to say of its diagnostics, at any rate."""
    if keep == "final":
        _ = trajectory.diagnostics
    return trajectory.thinned(keep)


def _labels(system: HybridSystem, indices: tuple[int, ...]) -> tuple[str, ...]:
    labels = system.parameters.labels()
    return tuple(labels[i] for i in indices)


def _shaped(gradient: Array) -> Array:
    return gradient[0] if len(gradient) == 1 else gradient


__all__ = ["adjoint_gradient", "forward_sensitivity", "scalar", "simulate"]
