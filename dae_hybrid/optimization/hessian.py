"""Hessians of functionals, by central differences of adjoint gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple, Unpack

import numpy as np

from dae_hybrid.conditions.sequences import EventSequence
from dae_hybrid.errors import AssumptionError, DaeHybridError, EventError, OptionError, ParameterError
from dae_hybrid.interface.api import RunOptions
from dae_hybrid.interface.batch import Batch, batch
from dae_hybrid.interface.parameter_sets import ParameterTable
from dae_hybrid.interface.prepared_case import trajectory_of
from dae_hybrid.interface.runs import Parameters
from dae_hybrid.interface.starts import for_call
from dae_hybrid.numeric_input import shown
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.optimization.changes import tolerances
from dae_hybrid.optimization.differences import STENCIL, Column
from dae_hybrid.options import Options
from dae_hybrid.statement.declarations import Mode
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.tables import align, html

STEP_EXPONENT = 0.25
#: a step that is too large is divided by this number, at most so many times
SHORTER, SHORTENINGS = 8.0, 6
#: rows shown in a table
MAX_ROWS = 20


@dataclass(frozen=True, eq=False)
class Hessian:
    """Second derivatives of a functional.

    For a vector functional with k components all arrays have a first axis of length k.

    Attributes
    ----------
    functional : str
        Name of the functional.
    parameters : tuple of str
        Labels of the parameters, n of them.
    value : float or ndarray, shape (k,)
        Value of the functional.
    gradient : ndarray, shape (n,) or (k, n)
        Its gradient, by adjoint analysis.
    matrix : ndarray, shape (n, n) or (k, n, n)
        The symmetric part of the differences.
    error : ndarray, same shape as `matrix`
        Estimated error of each entry; see `hessian`.
    asymmetry : float
        Largest difference between an entry and its transpose before symmetrisation, relative to the largest entry.
    steps : ndarray, shape (n,)
        Steps of the differences.
    sequence : EventSequence
        Events of all runs of the stencil.
    """

    functional: str
    parameters: tuple[str, ...]
    value: Any
    gradient: Array
    matrix: Array
    error: Array
    asymmetry: float
    steps: Array
    sequence: EventSequence

    @property
    def eigenvalues(self) -> Array:
        """Eigenvalues of `matrix` in increasing order, shape (n,) or (k, n)."""
        return np.linalg.eigvalsh(self.matrix)

    @property
    def eigenvalue_error(self) -> Any:
        """Bound on the error of every eigenvalue that follows from `error`, float or shape (k,)."""
        return np.linalg.norm(self.error, axis=(-2, -1))  # Weyl's inequality, with the Frobenius norm

    def __repr__(self) -> str:
        largest = np.abs(self.error).max(initial=0.0)
        return (
            f"<Hessian of '{self.functional}' by {len(self.parameters)} parameters: largest error {largest:.1e}, "
            f"asymmetry {self.asymmetry:.1e}>"
        )

    def _rows(self) -> list[list[str]]:
        k = self.error.shape[0] if self.error.ndim == 3 else 0
        matrices, errors = (own if k else own[None] for own in (self.matrix, self.error))
        rows = [["second derivative by", "", "value", "error"]]
        for c, (matrix, error) in enumerate(zip(matrices, errors, strict=True)):
            name = f"{self.functional}[{c}]" if k else self.functional
            for i, one in enumerate(self.parameters):
                for j, other in enumerate(self.parameters[: i + 1]):
                    rows.append([f"{name}: {one}", other, f"{matrix[i, j]: .9e}", f"{error[i, j]:.1e}"])
        return rows

    def _repr_html_(self) -> str:
        return html(repr(self), self._rows()[: MAX_ROWS + 1])

    def __str__(self) -> str:
        rows = self._rows()
        more = [f"... {len(rows) - 1} entries"] if len(rows) > MAX_ROWS + 1 else []
        return "\n".join([*align(rows[: MAX_ROWS + 1], left=(0, 1)), *more])


def hessian(
    system: HybridSystem,
    t_span: Sequence[float],
    functional: str | None = None,
    *,
    wrt: str | Sequence[str] | None = None,
    parameters: Parameters = None,
    x0: ParameterTable = None,
    start_mode: Mode | str | None = None,
    step: float | Mapping[str, float] | None = None,
    adapter: str = "sundials",
    **options: Unpack[RunOptions],
) -> Hessian:
    """Compute second derivatives of a functional by central differences of its adjoint gradient.

    Six gradients for each of n parameters are computed in a batch, on all cores, and combined by Richardson
    extrapolation: H = (4 D(h/2) - D(h)) / 3, with D(h) the central difference of the gradients at distance h. D(h/4)
    and the values of the functional show whether h is small enough; otherwise it is divided by 8, at most six times.

    Parameters
    ----------
    system, t_span, parameters, x0, start_mode, adapter, **options
        As in `adjoint_gradient`.
    functional : str, optional
        Name of the functional; optional if the model has only one.
    wrt : str or sequence of str, optional
        Parameters and initial values (``"x(0)"``) to differentiate by; default all parameters.
    step : float or mapping of str to float, optional
        Step h relative to each parameter (absolute for a parameter equal to zero), or absolute steps by name, with the
        default for the others. The default is rtol^(1/4); see Notes. `Hessian.steps` are the steps used.

    Returns
    -------
    Hessian
        The matrix with an estimated error of each entry, the gradient and the value.

    Raises
    ------
    EventError
        The sequence of events (`EventSequence`), or their order, changes within the stencil of a parameter. The message
        names the parameter and both sequences.
    AssumptionError
        The differences of a parameter approach no limit, or contradict the values of the functional, at all steps.
    DaeHybridError
        A run fails, or its gradient is refused; the message names the point of the stencil.
    OptionError, ParameterError
        An argument is invalid.

    Notes
    -----
    The error of a gradient is about rtol of its size, and varies from run to run with the steps of the integrator.
    Extrapolation leaves a truncation error of order h^4, hence an error of about rtol / h + h^4 relative to the
    derivatives, which is least for h = rtol^(1/5). The smaller default rtol^(1/4) costs less than a factor of four in
    accuracy above rtol = 1e-12 and is less likely to reach another sequence of events.

    A step is small enough if two tests pass, each to a share of the quantity or to the noise of the runs. From h/2 to
    h/4 the change of D falls to less than a half (theory: a quarter) and the distance between the one-sided differences
    to less than 0.6 (theory: a half): a step longer than the scale on which a gradient varies, or a kink of a gradient,
    fails. The values at distances h, h/2 and 0 differ by the integral of the gradient.

    `Hessian.error` is the largest of these numbers, for each entry and its transpose: ``|D(h/2) - D(h)|``, the usual
    estimate by the lower order, which is much larger than the truncation error of H; ``|H - D(h/4)|``; rtol times the
    largest gradient divided by h, for the variation of the gradients from run to run; rtol of the entry; and half the
    asymmetry, which compares rows with columns, from different runs. Where the differences do not converge beyond their
    agreement, the distance between the one-sided differences is another.

    The tests see six points. They do not see a feature of the functional between these, such as a narrow peak, nor one
    below the noise. An error of the integrator that is the same in all runs is not visible in differences: compare with
    a result at another `rtol` where it matters. Knots of signals are not part of the sequence of events. Where an event
    or a measurement that moves with the parameters passes one, second derivatives jump or do not exist: steps are
    shortened until the stencil is on one side, and at the knot the result is refused or has an error as large as the
    jump.

    Examples
    --------
    >>> import dae_hybrid as dh
    >>> from dae_hybrid.problems import em_hysteresis
    >>> found = dh.hessian(em_hysteresis.system(), (0, 10), "G", wrt=["ka", "kb"], rtol=1e-10, atol=1e-13)
    >>> found.matrix.shape, found.asymmetry < 1e-4, bool((found.error < 1e-4 * abs(found.matrix).max()).all())
    ((2, 2), True, True)
    """
    system = for_call(system, x0, start_mode, wrt)
    p, indices = system.parameter_vector(parameters), system.parameter_indices(wrt)
    name = system.functional_name(functional)
    labels = tuple(system.parameters.labels()[i] for i in indices)
    steps = _steps(system, step, p, indices, Options.of(options).rtol)
    call = {"functional": name, "gradient": "adjoint", "wrt": wrt, "adapter": adapter, **options}
    task = _Task(system, t_span, name, p, indices, labels, call, Options.of(options))
    columns: list[Column | None] = [None] * len(indices)
    runs = _differentiate(task, steps, columns)
    second, error = (
        np.stack([getattr(own, what) for own in columns], axis=1) if columns else np.zeros((len(runs.values[0]), 0, 0))
        for what in ("second", "error")
    )
    matrix, error, asymmetry = _judged(second, error, task.options.rtol)
    single = len(matrix) == 1
    return Hessian(
        functional=name,
        parameters=labels,
        value=runs.functionals[name][0],
        gradient=runs.gradients[0, 0] if single else runs.gradients[0],
        matrix=matrix[0] if single else matrix,
        error=error[0] if single else error,
        asymmetry=asymmetry,
        steps=steps,
        sequence=EventSequence.of(trajectory_of(runs.single(0))),
    )


class _Task(NamedTuple):
    """What is differentiated, by which parameters, and where."""

    system: HybridSystem
    t_span: Sequence[float]
    functional: str
    p: Array
    indices: Sequence[int]
    labels: Sequence[str]
    call: Mapping[str, Any]
    options: Options


def _differentiate(task: _Task, steps: Array, columns: list[Column | None]) -> Batch:
    """Fill the columns; steps that are too large are shortened in place. Returns the last runs."""
    chosen = list(range(len(steps)))
    for _ in range(1 + SHORTENINGS):
        runs, found = _columns(task, steps, chosen)
        for k, column in zip(chosen, found, strict=True):
            columns[k] = column
        chosen = [k for k, column in zip(chosen, found, strict=True) if not column.is_asymptotic]
        lost = [k for k in chosen if task.p[task.indices[k]] + steps[k] / SHORTER / 4 == task.p[task.indices[k]]]
        if not chosen:
            return runs
        if lost:
            break
        steps[chosen] /= SHORTER
    k = chosen[0]
    raise AssumptionError(
        f"The gradient of '{task.functional}' by {task.labels[k]} does not vary smoothly around "
        f"{task.p[task.indices[k]]:.9g}: differences at distances down to {steps[k] / 4:.1e} approach no limit, or "
        "contradict the values of the functional. A relation, a knot of a signal that an event or a measurement "
        "passes, or errors of the runs can be the reason.",
        remedy="Choose tighter tolerances, pass step=, or look at the surroundings with dh.scan.",
    )


def _columns(task: _Task, steps: Array, chosen: Sequence[int]) -> tuple[Batch, list[Column]]:
    """Run the stencils of the chosen parameters."""
    m, stencil = len(STENCIL), np.array(STENCIL)
    points = np.tile(task.p, (1 + m * len(chosen), 1))
    places = [slice(1 + m * row, 1 + m * (row + 1)) for row in range(len(chosen))]
    for place, k in zip(places, chosen, strict=True):
        points[place, task.indices[k]] += steps[k] * stencil
    runs = batch(task.system, task.t_span, parameters=points, **task.call)
    own = [task.indices[k] for k in chosen]
    _raise_errors(runs, task, own)
    _refuse_changes(runs, task, own)
    noise = tolerances(
        task.system, [task.functional], task.options, np.abs(runs.values).max(axis=0), np.zeros(runs.values.shape[1])
    ).values
    found = []
    for place, k in zip(places, chosen, strict=True):
        rows, i = [0, *range(place.start, place.stop)], task.indices[k]
        away = points[place, i] - task.p[i]  # rounded, thus not the multiples of the step
        found.append(Column(k, away, runs.values[rows], runs.gradients[rows], task.options.rtol, noise))
    return runs, found


def _judged(found: Array, error: Array, rtol: float) -> tuple[Array, Array, float]:
    """Symmetric parts of matrices (k, n, n), errors of their entries, and the largest relative asymmetry."""
    transposed = found.swapaxes(1, 2)
    matrix, apart = (found + transposed) / 2, np.abs(found - transposed)
    error = np.maximum(np.maximum(error, error.swapaxes(1, 2)), np.maximum(apart / 2, rtol * np.abs(matrix)))
    largest = np.abs(matrix).max(axis=(1, 2), initial=0.0)
    relative = apart.max(axis=(1, 2), initial=0.0) / np.where(largest > 0, largest, 1.0)
    return matrix, error, float(relative.max(initial=0.0))


def _steps(system: HybridSystem, step: object, p: Array, indices: Sequence[int], rtol: float) -> Array:
    """Absolute steps of the parameters, (n,)."""
    sizes = np.where(p != 0, np.abs(p), 1.0)
    found, relative = np.zeros(p.size), rtol**STEP_EXPONENT
    if isinstance(step, Mapping):
        found = relative * sizes
        for name, own in step.items():
            if name not in system.parameters:
                raise ParameterError(
                    f"step names {name!r}, which is not a parameter of '{system.name}'.",
                    remedy=f"Parameters: {', '.join(system.parameters.names) or 'none'}.",
                )
            found[system.parameters[name]] = _positive(f"step[{name!r}]", own, np.inf)
    else:
        found = (relative if step is None else _positive("step", step, 1.0)) * sizes
    chosen = found[list(indices)]
    lost = [i for i, h in zip(indices, chosen, strict=True) if p[i] + h / 4 == p[i]]
    if lost:
        name = system.parameters.labels()[lost[0]]
        raise OptionError(f"The step {found[lost[0]]:g} of {name} is lost in the rounding of {p[lost[0]]:g}.")
    return np.asarray(chosen)


def _positive(what: str, given: object, below: float) -> float:
    is_number = isinstance(given, int | float | np.number) and not isinstance(given, bool | np.bool_)
    if not is_number or not 0 < float(given) < below:  # type: ignore[arg-type]
        legal = f"a number between 0 and {below:g}" if np.isfinite(below) else "a positive number"
        raise OptionError(f"{what} must be {legal}, got {shown(given)}.")
    return float(given)  # type: ignore[arg-type]


def _point(i: int, runs: Batch, task: _Task, own: Sequence[int]) -> str:
    """The point of a run in words."""
    entry = own[(i - 1) // len(STENCIL)]
    return f"{task.labels[list(task.indices).index(entry)]} = {runs.parameters[i, entry]:.9g}"


def _raise_errors(runs: Batch, task: _Task, own: Sequence[int]) -> None:
    for i, error in enumerate(runs.errors):
        if error is None:
            continue
        if i:
            raise _placed(error, _point(i, runs, task, own)) from error
        raise error


def _placed(error: DaeHybridError, point: str) -> DaeHybridError:
    """The same error with the point of the stencil in its message."""
    other = copy(error)
    other.message = f"The stencil of the Hessian contains {point}, where a gradient fails: {error.message}"
    other.args = (other.message,)
    return other


def _refuse_changes(runs: Batch, task: _Task, own: Sequence[int]) -> None:
    changed = np.flatnonzero(runs.digest != runs.digest[0])
    if not changed.size:
        return
    i = int(changed[0])
    one, two = (EventSequence.of(trajectory_of(runs.single(k))) for k in (0, i))
    is_order = one.is_whole and two.is_whole and sorted(one.codes.tolist()) == sorted(two.codes.tolist())
    what = "order" if is_order else "sequence"
    why = (
        "The functional may have a second derivative if these events do not act on each other, but differences across "
        "the change do not show it."
        if is_order
        else "Differences across the change are no second derivatives."
    )
    remedy = (
        "Pass a smaller step=, or move the parameters away from the change: differentiate where the events do not "
        "coincide, or by a parameter that moves them together."
        if is_order
        else "Pass a smaller step=, or move the parameters away from the change; dh.scan locates it."
    )
    raise EventError(
        f"The {what} of events changes within the stencil of the Hessian, between the given parameters and "
        f"{_point(i, runs, task, own)} ({one.difference(two)}). Sequences: {one}; and {two}. {why}",
        remedy=remedy,
    )
