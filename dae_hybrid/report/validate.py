"""Comparison of trajectories, event tables, sensitivities and functionals with ode15s and with the truth.

Any module with ``system()``, ``t_span``, ``reference()``, ``tolerances`` and ``witness(reference)`` (see
`dae_hybrid.problems`) can be validated. A difference is explained if it does not exceed the recorded error of ode15s
plus the allowed error of this library, and if neither error, where the truth is known, exceeds its own bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dae_hybrid.errors import DaeHybridError, EventError
from dae_hybrid.interface.api import adjoint_gradient, forward_sensitivity, simulate
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.report.external_solution import ExternalSolution, Samples, SolutionRows
from dae_hybrid.sensitivity.results import ForwardSensitivity, Gradient
from dae_hybrid.trajectory.trajectory import Trajectory

#: allowance for recorded errors, which have two digits
ROUNDING = 1.02
#: allowed error in rtol of the largest value at tolerances looser than those of the problem module: errors far below
#: the tolerance do not grow in proportion to it
LEAST = 10.0


class ValidationError(DaeHybridError, ArithmeticError):
    """The errors of the two programs do not explain a difference."""


@dataclass(frozen=True)
class Largest:
    """The largest entry of a difference, and its place.

    Attributes
    ----------
    size : float
    place : str
        ``"t = 0.5"``, ``"event 3, after"``, ``"adjoint"``.
    time : float
        NaN for places without a time.
    """

    size: float
    place: str
    time: float


@dataclass(frozen=True)
class Comparison:
    """One quantity of a run, compared with ode15s.

    Attributes
    ----------
    block, quantity : str
        ``"trajectory"``, ``"events"`` or ``"functional"``; ``"u"``, ``"du/dka"``, ``"t"``, ...
    size : float
        Its largest absolute value, of the truth if known at all places, otherwise of ode15s.
    points, known : int
        Number of compared places, and number of these at which the truth is known.
    difference : Largest
        Largest value of ours - ode15s.
    theirs, ours : Largest or None
        Errors of ode15s and of this library where the truth is known.
    recorded : float or None
        Recorded error of ode15s.
    allowed : float or None
        Allowed error of this library at the tolerances of the run.
    """

    block: str
    quantity: str
    size: float
    points: int
    known: int
    difference: Largest
    theirs: Largest | None
    ours: Largest | None
    recorded: float | None
    allowed: float | None

    @property
    def explained(self) -> bool | None:
        """Whether the two errors explain the difference; None if no error is recorded."""
        return None if self.recorded is None or self.allowed is None else not self.objections

    @property
    def objections(self) -> list[str]:
        """The violated bounds, with the place."""
        if self.recorded is None or self.allowed is None:
            return []
        checks = (
            ("ours - ode15s", self.difference, self.recorded + self.allowed),
            ("ode15s - truth", self.theirs, ROUNDING * self.recorded),
            ("ours - truth", self.ours, self.allowed),
        )
        # NaN violates a bound, too
        return [
            f"{self.quantity} ({self.block}): {what} is {found.size:.2g} at {found.place}, more than {limit:.2g}"
            for what, found, limit in checks
            if found is not None and not found.size <= limit
        ]


@dataclass(frozen=True, eq=False)
class Validation:
    """The comparison for one problem.

    Attributes
    ----------
    name, title, adapter : str
    tolerances : dict of float
    witness : ExternalSolution
        The solution by ode15s, and the truth.
    computed : dict of dict of ndarray
        Our values at the same places, by block and quantity.
    comparisons : tuple of Comparison
        Comparisons with ode15s with polished event times.
    bare : tuple of Comparison
        Comparisons with ode15s with interpolated event times, without a verdict.
    """

    name: str
    title: str
    adapter: str
    tolerances: Mapping[str, float]
    witness: ExternalSolution
    computed: Mapping[str, Mapping[str, Array]]
    comparisons: tuple[Comparison, ...]
    bare: tuple[Comparison, ...]

    @property
    def objections(self) -> list[str]:
        """Differences that the errors of the two programs do not explain."""
        return [f"{self.name}: {text}" for comparison in self.comparisons for text in comparison.objections]


def validate(
    name: str,
    title: str,
    problem: Any,
    *,
    rtol: float | None = None,
    atol: float | None = None,
    adapter: str = "sundials",
    stage: Callable[[str], None] = lambda text: None,
) -> Validation:
    """Compare a problem's results with those of ode15s.

    Parameters
    ----------
    name, title : str
    problem : module
        See the module docstring.
    rtol, atol : float, optional
        By default the tolerances of the problem module. With looser ones the allowed error grows in proportion,
        and is at least ten times rtol of the largest value.
    adapter : str
        Name of the adapter.
    stage : callable
        Receives a description of the current step.

    Raises
    ------
    EventError
        The run has a different number of events than that of ode15s, which prevents a comparison.

    Examples
    --------
    >>> from dae_hybrid import problems
    >>> from dae_hybrid.report.validate import validate
    >>> found = validate("hybrid_ode", "a hybrid ODE", problems.load("hybrid_ode"))
    >>> len(found.comparisons), found.objections
    (10, [])
    """
    reference = problem.reference()
    witness: ExternalSolution = problem.witness(reference)
    nominal = problem.tolerances
    tolerances = {"rtol": nominal["rtol"] if rtol is None else rtol, "atol": nominal["atol"] if atol is None else atol}
    looser = max(1.0, *(tolerances[key] / nominal[key] for key in tolerances))
    least = LEAST * tolerances["rtol"] if looser > 1 else 0.0
    computed = compute(problem, reference.functional, witness, tolerances, adapter, stage)
    return Validation(
        name=name,
        title=title,
        adapter=adapter,
        tolerances=tolerances,
        witness=witness,
        computed=computed,
        comparisons=tuple(_compare(witness.samples, computed, looser, least)),
        bare=tuple(replace(found, recorded=None) for found in _compare(witness.bare, computed, looser, least)),
    )


# -- our results --------------------------------------------------------------------------------------


def compute(
    problem: Any,
    functional: str,
    witness: ExternalSolution,
    tolerances: Mapping[str, float],
    adapter: str,
    stage: Callable[[str], None] = lambda text: None,
) -> dict[str, dict[str, Array]]:
    """Our results at the places of the external solution, by block and quantity."""
    stage("building")
    system, span, times = problem.system(), problem.t_span, witness.t[witness.rows.grid]
    options: dict[str, Any] = {"adapter": adapter, **tolerances}
    stage("simulating")
    plain = simulate(system, span, t_eval=times, **options)
    stage("forward sensitivities")
    forward = forward_sensitivity(system, span, t_eval=times, **options)
    # without t_eval, which gives both sides of every event
    sides = forward_sensitivity(system, span, **options)
    stage("adjoint")
    adjoint = adjoint_gradient(system, span, functional, **options)
    for run in (plain, forward.trajectory, sides.trajectory, adjoint.trajectory):
        if len(run.events) != len(witness.rows.before):
            raise EventError(f"The run has {len(run.events)} events, that of ode15s {len(witness.rows.before)}.")
    return {
        "trajectory": _along(plain, forward, sides, witness),
        "events": _at_events(sides, witness.modes),
        "functional": _functional(functional, plain, sides, adjoint),
    }


def _variables(run: Trajectory) -> list[str]:
    return [name for name in run.names if name not in run.system.memory]


def _rows(rows: SolutionRows, inside: Array, before: Sequence[Any], after: Sequence[Any]) -> Array:
    values = np.full((sum(map(len, (rows.grid, rows.before, rows.after))), *inside.shape[1:]), np.nan)
    values[rows.grid], values[rows.before], values[rows.after] = inside, before, after
    return values


def _along(plain: Trajectory, forward: ForwardSensitivity, sides: ForwardSensitivity, witness: ExternalSolution) -> Any:
    earlier, later = sides.trajectory.segments[:-1], sides.trajectory.segments[1:]
    found: dict[str, Array] = {}
    for name in _variables(plain):
        found[name] = _rows(
            witness.rows,
            plain[name],
            [segment.x_end[segment.mode.variables[name]][0] for segment in earlier],
            [segment.x_start[segment.mode.variables[name]][0] for segment in later],
        )
        derivatives = _rows(
            witness.rows,
            forward[name],
            [segment.sensitivities[-1][:, segment.mode.variables[name]][:, 0] for segment in earlier],  # type: ignore[index]
            [segment.sensitivities[0][:, segment.mode.variables[name]][:, 0] for segment in later],  # type: ignore[index]
        )
        found |= {f"d{name}/d{p}": column for p, column in zip(forward.parameters, derivatives.T, strict=True)}
    modes = witness.modes
    found["mode"] = _rows(
        witness.rows,
        np.array([modes[name] for name in plain.modes]),
        [modes[segment.mode.name] for segment in earlier],
        [modes[segment.mode.name] for segment in later],
    )
    return found


def _at_events(sides: ForwardSensitivity, modes: Mapping[str, float]) -> dict[str, Array]:
    events, segments = sides.events, sides.trajectory.segments
    found = {"t": np.array([event.time for event in events])}
    for name in _variables(sides.trajectory):
        places = [segment.mode.variables[name] for segment in segments[:-1]]
        found[name] = np.array([event.x_minus[at][0] for event, at in zip(events, places, strict=True)])
    for p, column in zip(sides.parameters, sides.event_time_sensitivity.T, strict=True):
        found[f"dt/d{p}"] = column
    found["mode before"] = np.array([modes[event.source] for event in events])
    found["mode after"] = np.array([np.nan if e.target is None else modes[e.target] for e in events])
    return found


def _functional(name: str, plain: Trajectory, sides: ForwardSensitivity, adjoint: Gradient) -> dict[str, Array]:
    found = {name: np.array([plain.functionals[name], sides.functionals[name], adjoint.value])}
    for p, one, other in zip(sides.parameters, sides.gradient[name], adjoint.gradient, strict=True):
        found[f"d{name}/d{p}"] = np.array([np.nan, one, other])
    return found


# -- comparing --------------------------------------------------------------------------------------


def _compare(
    samples: Mapping[str, Samples], computed: Mapping[str, Mapping[str, Array]], looser: float, least: float
) -> list[Comparison]:
    return [
        compare(block, quantity, here, computed[block][quantity], looser, least)
        for block, here in samples.items()
        for quantity in here.values
    ]


def compare(
    block: str, quantity: str, samples: Samples, computed: Array, looser: float = 1.0, least: float = 0.0
) -> Comparison:
    """Compare one quantity with ode15s, and both with the truth.

    Parameters
    ----------
    samples : Samples
        Values of ode15s, and the truth.
    computed : ndarray, shape (n,)
        Our values at the same places. NaN where ode15s has a number is an unexplained difference.
    looser : float
        Factor of the allowed error over that at the tolerances of the problem module.
    least : float
        Smallest allowed error, relative to the largest value.
    """
    values, truth = samples.values[quantity], samples.truth[quantity]
    compared, known = np.isfinite(values), np.isfinite(values) & np.isfinite(truth)
    allowed, scale = samples.allowed.get(quantity), truth if known.sum() == compared.sum() else values
    size = float(np.abs(scale[compared]).max())
    return Comparison(
        block=block,
        quantity=quantity,
        size=size,
        points=int(compared.sum()),
        known=int(known.sum()),
        difference=_largest(samples, computed - values, compared),
        theirs=_largest(samples, values - truth, known) if known.any() else None,
        ours=_largest(samples, computed - truth, known) if known.any() else None,
        recorded=samples.recorded.get(quantity),
        allowed=None if allowed is None else max(looser * allowed, least * size if allowed else 0.0),
    )


def _largest(samples: Samples, difference: Array, where: Any) -> Largest:
    indices = np.flatnonzero(where)
    row = indices[np.argmax(np.abs(difference[indices]))]  # the first NaN, if any
    return Largest(float(abs(difference[row])), samples.places[row], float(samples.t[row]))
