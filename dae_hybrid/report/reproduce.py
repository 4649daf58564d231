"""Reproduction of published results: gradients by four methods, compared with printed and exact values.

Any module with ``system()``, ``t_span``, ``reference()``, ``tolerances``, ``difference_step`` and ``figures(result)``
(see `dae_hybrid.problems`) can be reproduced. A module whose results have another shape provides
``reproduce(name, title, stage)`` instead, which returns a `Reproduced`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dae_hybrid.errors import AssumptionError, EventError
from dae_hybrid.interface.api import adjoint_gradient, forward_sensitivity, simulate
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.sensitivity.results import ForwardSensitivity, Gradient
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.tables import align, markdown

#: names of the methods for a gradient in tables
WAYS = {
    "finite_difference": "finite differences",
    "forward": "forward (FSA)",
    "adjoint": "adjoint (ASA)",
    "algorithm_1": "Algorithm 1 (ASA)",
}
#: sixth-order central difference: distance in steps, weight
STENCIL = ((1, 3 / 4), (2, -3 / 20), (3, 1 / 60))
#: tightening of the tolerances for finite differences, which amplify errors; atol stays above rounding
RTOL_FACTOR, ATOL_FACTOR = 1e-2, 1e-1


def finite_differences(
    system: HybridSystem,
    t_span: Sequence[float],
    functional: str,
    step: float,
    *,
    rtol: float,
    atol: float,
    wrt: Sequence[str] | None = None,
    stage: Callable[[str], None] = lambda text: None,
) -> Array:
    """dG/dp by sixth-order central differences, (n_p,) or (k, n_p); independent of all sensitivity analysis.

    Parameters
    ----------
    step : float
        Relative step; absolute for a parameter that is zero.
    rtol, atol : float
        Tolerances of the compared gradient; the runs here use rtol / 100 and atol / 10.
    wrt : sequence of str, optional
        Parameters to differentiate with respect to; all by default.

    Raises
    ------
    EventError
        A step is so large that the run has other transitions, which makes the quotient meaningless.
    """
    nominal, chosen = system.nominal, system.parameter_indices(wrt)
    count, order = 2 * len(STENCIL) * len(chosen), None
    columns, run = [], 0
    for i in chosen:
        h, column = step * (abs(nominal[i]) or 1.0), np.zeros(())
        for distance, weight in STENCIL:
            for sign in (1, -1):
                run += 1
                stage(f"finite differences, run {run} of {count}")
                shifted = nominal.copy()
                shifted[i] += sign * distance * h
                sol = simulate(system, t_span, parameters=shifted, rtol=RTOL_FACTOR * rtol, atol=ATOL_FACTOR * atol)
                seen = [event.transition for event in sol.events]
                order = seen if order is None else order
                if seen != order:
                    name = system.parameters.labels()[i]
                    raise EventError(
                        f"With {name} = {shifted[i]:.12g} the run goes through other transitions.",
                        remedy="Take a smaller step for the finite differences.",
                    )
                column = column + sign * weight / h * np.asarray(sol.functionals[functional])
        columns.append(column)
    return np.stack(columns, axis=-1)


def error(value: float, exact: float) -> float:
    """The error relative to the exact value; absolute if that is zero."""
    return abs(value - exact) / (abs(exact) or 1.0)


@dataclass(frozen=True)
class ReportedEntry:
    """One line of a summary: a number by every method, by the keys of `WAYS`."""

    label: str
    values: Mapping[str, float]
    exact: float
    printed: str = ""
    derivative: bool = True


class Reproduced(Protocol):
    """Reproduced results."""

    @property
    def name(self) -> str:
        """Name of the problem."""

    def table(self) -> str:
        """All results with printed and exact values, for a terminal."""

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and lists."""

    def entries(self) -> list[ReportedEntry]:
        """The lines of a summary."""


@dataclass(frozen=True)
class Row:
    """One number with the exact and the printed value."""

    quantity: str
    way: str
    value: float
    exact: float
    printed: str

    @property
    def error(self) -> float:
        """The error relative to the exact value; absolute if that is zero."""
        return error(self.value, self.exact)


@dataclass(frozen=True, eq=False)
class Reproduction:
    """The results of one problem.

    Attributes
    ----------
    name, title : str
    reference : Any
        Reference results.
    tolerances : dict of float
        rtol and atol of every run except those of the finite differences.
    forward : ForwardSensitivity
    adjoint : Gradient
    gradients : dict of ndarray, each (n_p,)
        Gradients by method: ``"finite_difference"``, ``"forward"``, ``"adjoint"`` and, for systems with memory,
        ``"algorithm_1"``.
    """

    name: str
    title: str
    reference: Any
    tolerances: Mapping[str, float]
    forward: ForwardSensitivity
    adjoint: Gradient
    gradients: Mapping[str, Array]

    @property
    def event_times(self) -> Array:
        """Event times, shape (n_events,)."""
        return np.array([event.time for event in self.adjoint.trajectory.events])

    @property
    def functional_rows(self) -> list[Row]:
        """The functional and every component of its gradient by every method."""
        exact, name = self.reference, self.reference.functional
        printed = exact.printed.get(name, "")
        rows = [
            Row(name, "simulation", float(self.adjoint.value), exact.value, printed),
            Row(name, "with sensitivities", float(self.forward.functionals[name]), exact.value, printed),
        ]
        for i, parameter in enumerate(self.forward.parameters):
            for way, gradient in self.gradients.items():
                # the paper's adjoint gradient is that of Algorithm 1, if the problem has memory
                texts = exact.printed.get("adjoint" if way == "algorithm_1" else way)
                rows.append(
                    Row(
                        f"d{name}/d{parameter}",
                        WAYS[way],
                        float(gradient[i]),
                        float(exact.gradient[i]),
                        texts[i] if texts else "",
                    )
                )
        return rows

    def entries(self) -> list[ReportedEntry]:
        """Entries of the functional and its gradient."""
        exact, name = self.reference, self.reference.functional
        values = {"forward": float(self.forward.functionals[name]), "adjoint": float(self.adjoint.value)}
        found = [ReportedEntry(name, values, exact.value, exact.printed.get(name, ""), derivative=False)]
        printed = exact.printed.get("adjoint", [""] * len(exact.gradient))
        for i, parameter in enumerate(self.forward.parameters):
            values = {way: float(gradient[i]) for way, gradient in self.gradients.items()}
            found.append(ReportedEntry(f"d{name}/d{parameter}", values, float(exact.gradient[i]), printed[i]))
        return found

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and lists."""
        return {
            "G": float(self.adjoint.value),
            "gradient": {way: gradient.tolist() for way, gradient in self.gradients.items()},
            "event_times": self.event_times.tolist(),
            "event_time_sensitivity": self.forward.event_time_sensitivity.tolist(),
        }

    def table(self) -> str:
        """All results with printed and exact values, for a terminal."""
        lines = [
            f"{self.name}: {self.title}",
            f"rtol {self.tolerances['rtol']:g}, atol {self.tolerances['atol']:g}; "
            f"{len(self.event_times)} events; exact values: {self.reference.source}.",
            "Errors are relative to the exact value, absolute where that is zero.",
            "",
        ]
        rows = [["quantity", "way", "computed", "exact", "error", "paper"]]
        last = ""
        for row in self.functional_rows:
            again = row.quantity == last
            rows.append(
                [
                    "" if again else row.quantity,
                    row.way,
                    f"{row.value + 0.0:.12e}",
                    "" if again else f"{row.exact:.12e}",
                    f"{row.error:.1e}",
                    row.printed,
                ]
            )
            last = row.quantity
        lines += [*align(rows, left=(0, 1)), ""]
        lines += align(self._event_rows(), left=())
        return "\n".join(lines)

    def _event_rows(self) -> list[list[str]]:
        exact, computed = self.reference.event_time_sensitivity, self.forward.event_time_sensitivity
        rows = [["i", "t_i", "error"]]
        for parameter in self.forward.parameters:
            rows[0] += [f"dt_i/d{parameter}", "error"]
        for i, (time, true) in enumerate(zip(self.event_times, self.reference.event_times, strict=True)):
            row = [str(i + 1), f"{time:.12f}", f"{error(time, true):.0e}"]
            for value, other in zip(computed[i], exact[i], strict=True):
                row += [f"{value + 0.0:.6e}", f"{error(value, other):.0e}"]
            rows.append(row)
        return rows


def reproduce(name: str, title: str, problem: Any, stage: Callable[[str], None] = lambda text: None) -> Reproduced:
    """Compute a problem's published results.

    Parameters
    ----------
    name, title : str
    problem : module
        See the module docstring.
    stage : callable
        Receives a description of the current step.

    Raises
    ------
    EventError
        The run has a different number of events than the reference, which prevents a comparison.
    """
    if hasattr(problem, "reproduce"):
        own: Reproduced = problem.reproduce(name, title, stage)
        return own
    stage("building")
    system, reference, tolerances = problem.system(), problem.reference(), problem.tolerances
    functional, span = reference.functional, problem.t_span
    stage("forward sensitivities")
    forward = forward_sensitivity(system, span, **tolerances)
    stage("adjoint")
    adjoint = adjoint_gradient(system, span, functional, **tolerances)
    for events in (forward.events, adjoint.trajectory.events):
        if len(events) != len(reference.event_times):
            raise EventError(f"The run has {len(events)} events, the reference {len(reference.event_times)}.")
    gradients = {
        "finite_difference": finite_differences(
            system, span, functional, problem.difference_step, **tolerances, stage=stage
        ),
        "forward": forward.gradient[functional],
        "adjoint": adjoint.gradient,
    }
    stage("Algorithm 1")
    with suppress(AssumptionError):  # the system has no memory, or violates the assumptions of the algorithm
        gradients["algorithm_1"] = adjoint_gradient(
            system, span, functional, algorithm="serban-recuero", **tolerances
        ).gradient
    return Reproduction(name, title, reference, tolerances, forward, adjoint, gradients)


def draw(
    problem: Any, result: Reproduced, folder: Path, stage: Callable[[str], None] = lambda text: None
) -> Iterator[tuple[Path, str]]:
    """Write a problem's figures as PNG and animations as GIF; yield the path and caption of each."""
    from dae_hybrid.report.plotting import Film, save

    stage("figures")
    for stem, caption, figure in problem.figures(result):
        stage(caption)
        if isinstance(figure, Film):
            yield figure.save(folder / f"{stem}.gif"), caption
        else:
            yield save(figure, folder / f"{stem}.png"), caption


def summary(results: Sequence[Reproduced]) -> str:
    """The Markdown table of README.md: nine digits, and the largest error of each column."""
    entries = {result.name: result.entries() for result in results}
    ways = [way for way in WAYS if any(way in entry.values for found in entries.values() for entry in found)]
    rows = [["", "paper", *(WAYS[way] for way in ways), "exact"]]
    for name, found in entries.items():
        for entry in found:
            cells = [_number(entry.values[way]) if way in entry.values else "" for way in ways]
            rows.append([f"{name}: {entry.label}", entry.printed, *cells, _number(entry.exact)])
        worst = []
        for way in ways:
            errors = [error(e.values[way], e.exact) for e in found if e.derivative and way in e.values]
            worst.append(f"{max(errors):.0e}" if errors else "")
        rows.append([f"{name}: largest error of the gradient", "", *worst, ""])
    return markdown(rows)


def _number(value: float) -> str:
    return f"{value + 0.0:.8e}"  # removes the sign of zero
