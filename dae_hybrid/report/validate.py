"""Our trajectories, event tables, sensitivities and functionals beside those of ode15s, and both beside the truth.

Knows no problem: whatever module offers ``system()``, ``t_span``, ``reference()``, ``tolerances`` and
``witness(reference)`` (see `dae_hybrid.problems`) can be validated. A difference counts as explained when it is no
larger than the error of ode15s that is on record plus what our own error may be, and when neither error, where the
truth is known, is larger than that.
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

#: errors are on record with two digits
ROUNDING = 1.02
#: at looser tolerances than those of the problem module our error may always be this many rtol of the largest value: an
#: error far below the tolerance, which some are there, does not grow in proportion
LEAST = 10.0


class ValidationError(DaeHybridError, ArithmeticError):
    """Differences that the errors of the two programs do not explain."""


@dataclass(frozen=True)
class Largest:
    """The largest entry of a difference, and where it occurs.

    Attributes
    ----------
    size : float
    place : str
        ``"t = 0.5"``, ``"event 3, after"``, ``"adjoint"``.
    time : float
        NaN where the place has none.
    """

    size: float
    place: str
    time: float


@dataclass(frozen=True)
class Comparison:
    """One quantity of a run, ours beside that of ode15s.

    Attributes
    ----------
    block, quantity : str
        ``"trajectory"``, ``"events"`` or ``"functional"``; ``"u"``, ``"du/dka"``, ``"t"``, ...
    size : float
        Its largest absolute value: the truth where that is known at all places, else that of ode15s.
    points, known : int
        Places at which it is compared, and at how many of these the truth is known.
    difference : Largest
        Of ours - ode15s.
    theirs, ours : Largest or None
        Error of ode15s and of ours where the truth is known.
    recorded : float or None
        Error of ode15s on record.
    allowed : float or None
        How large our error may be at the tolerances of the run.
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
        """Whether the two errors explain the difference; None where no error is on record."""
        return None if self.recorded is None or self.allowed is None else not self.objections

    @property
    def objections(self) -> list[str]:
        """What speaks against it, with the place."""
        if self.recorded is None or self.allowed is None:
            return []
        checks = (
            ("ours - ode15s", self.difference, self.recorded + self.allowed),
            ("ode15s - truth", self.theirs, ROUNDING * self.recorded),
            ("ours - truth", self.ours, self.allowed),
        )
        # written so that NaN is an objection
        return [
            f"{self.quantity} ({self.block}): {what} is {found.size:.2g} at {found.place}, more than {limit:.2g}"
            for what, found, limit in checks
            if found is not None and not found.size <= limit
        ]


@dataclass(frozen=True, eq=False)
class Validation:
    """What was found for one problem.

    Attributes
    ----------
    name, title, adapter : str
    tolerances : dict of float
    witness : Witness
        What ode15s says, and the truth.
    computed : dict of dict of ndarray
        What we say, at the same places: by block, then by quantity.
    comparisons : tuple of Comparison
        With ode15s, event times polished.
    bare : tuple of Comparison
        With ode15s as it comes, for which there is no verdict.
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
        """What the errors of the two programs do not explain."""
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
        See the head of this module.
    rtol, atol : float, optional
        By default the tolerances of the problem module. With looser ones our error may be larger in proportion,
        and ten times rtol of the largest value in any case.
    adapter : str
        Integrator library.
    stage : callable
        Told in words what is being done.

    Raises
    ------
    EventError
        The run has another number of events than that of ode15s: nothing can be compared.

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


# -- what we say ------------------------------------------------------------------------------------


def compute(
    problem: Any,
    functional: str,
    witness: ExternalSolution,
    tolerances: Mapping[str, float],
    adapter: str,
    stage: Callable[[str], None] = lambda text: None,
) -> dict[str, dict[str, Array]]:
    """Our own results at the places of the witness, by block and quantity."""
    stage("building")
    system, span, times = problem.system(), problem.t_span, witness.t[witness.rows.grid]
    options: dict[str, Any] = {"adapter": adapter, **tolerances}
    stage("simulating")
    plain = simulate(system, span, t_eval=times, **options)
    stage("forward sensitivities")
    forward = forward_sensitivity(system, span, t_eval=times, **options)
    # without t_eval, because that has both sides of every event
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
    """One quantity, ours beside that of ode15s and both beside the truth.

    Parameters
    ----------
    samples : Samples
        What ode15s says, and the truth.
    computed : ndarray, shape (n,)
        What we say, at the same places. NaN where ode15s has a number is a difference that nothing explains.
    looser : float
        By how much our error may be larger than at the tolerances of the problem module.
    least : float
        What it may be in any case, relative to the largest value.
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
    row = indices[np.argmax(np.abs(difference[indices]))]  # the first NaN, where there is one
    return Largest(float(abs(difference[row])), samples.places[row], float(samples.t[row]))
