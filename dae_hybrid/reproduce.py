"""Published results, computed again: the gradient four ways beside the paper's numbers and exact ones.

Knows no problem: whatever module offers ``system()``, ``t_span``, ``reference()``, ``tolerances``,
``difference_step`` and ``figures(forward, adjoint)`` (see `dae_hybrid.problems`) can be reproduced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from dae_hybrid.api import adjoint_gradient, forward_sensitivity, simulate
from dae_hybrid.errors import AssumptionError, EventError
from dae_hybrid.integrator import Array
from dae_hybrid.results import ForwardSensitivity, Gradient
from dae_hybrid.system import HybridSystem
from dae_hybrid.tables import align, markdown

#: what each way to a gradient is called in tables
WAYS = {
    "finite_difference": "finite differences",
    "forward": "forward (FSA)",
    "adjoint": "adjoint (ASA)",
    "algorithm_1": "Algorithm 1 (ASA)",
}
#: sixth-order central difference: distance in steps, weight
STENCIL = ((1, 3 / 4), (2, -3 / 20), (3, 1 / 60))
#: how much tighter the runs of finite differences are, whose errors the quotient enlarges; atol stays above rounding
RTOL_FACTOR, ATOL_FACTOR = 1e-2, 1e-1


def finite_differences(
    system: HybridSystem,
    t_span: Sequence[float],
    functional: str,
    step: float,
    *,
    rtol: float,
    atol: float,
    stage: Callable[[str], None] = lambda text: None,
) -> Array:
    """dG/dp by sixth-order central differences, shape (n_p,); independent of every sensitivity code.

    Parameters
    ----------
    step : float
        Relative step; absolute where a parameter is zero.
    rtol, atol : float
        Of the gradient this is compared with; the runs here are tighter, rtol a hundred and atol ten times.

    Raises
    ------
    EventError
        A step is so large that the run goes through other transitions: then the quotient means nothing.
    """
    nominal = system.nominal
    count, order = 2 * len(STENCIL) * nominal.size, None
    gradient, run = np.zeros(nominal.size), 0
    for i, value in enumerate(nominal):
        h = step * (abs(value) or 1.0)
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
                gradient[i] += sign * weight / h * sol.functionals[functional]
    return gradient


def error(value: float, exact: float) -> float:
    """Relative to the exact value; absolute where that is zero."""
    return abs(value - exact) / (abs(exact) or 1.0)


@dataclass(frozen=True)
class Row:
    """One number beside the exact one and the paper's."""

    quantity: str
    way: str
    value: float
    exact: float
    printed: str

    @property
    def error(self) -> float:
        """Relative to the exact value; absolute where that is zero."""
        return error(self.value, self.exact)


@dataclass(frozen=True, eq=False)
class Reproduction:
    """The results of one problem.

    Attributes
    ----------
    name, title : str
    reference : Any
        What the results are compared with.
    tolerances : dict of float
        rtol and atol of every run but those of the finite differences.
    forward : ForwardSensitivity
    adjoint : Gradient
    gradients : dict of ndarray, each (n_p,)
        By way: ``"finite_difference"``, ``"forward"``, ``"adjoint"`` and, for systems with memory,
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
        """The functional and every component of its gradient, every way."""
        exact, name = self.reference, self.reference.functional
        printed = exact.printed.get(name, "")
        rows = [
            Row(name, "simulation", float(self.adjoint.value), exact.value, printed),
            Row(name, "with sensitivities", float(self.forward.functionals[name]), exact.value, printed),
        ]
        for i, parameter in enumerate(self.forward.parameters):
            for way, gradient in self.gradients.items():
                # the paper's adjoint gradient is by its Algorithm 1; a problem without memory has just one
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

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and lists."""
        return {
            "G": float(self.adjoint.value),
            "gradient": {way: gradient.tolist() for way, gradient in self.gradients.items()},
            "event_times": self.event_times.tolist(),
            "event_time_sensitivity": self.forward.event_time_sensitivity.tolist(),
        }

    def table(self) -> str:
        """Everything beside the paper's numbers and the exact ones, for a terminal."""
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


def reproduce(name: str, title: str, problem: Any, stage: Callable[[str], None] = lambda text: None) -> Reproduction:
    """Compute a problem's published results.

    Parameters
    ----------
    name, title : str
    problem : module
        See the head of this module.
    stage : callable
        Told in words what is being done.

    Raises
    ------
    EventError
        The run went through another number of events than the reference: nothing can be compared.
    """
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
    with suppress(AssumptionError):  # a system without memory, or one the printed algorithm does not cover
        gradients["algorithm_1"] = adjoint_gradient(
            system, span, functional, algorithm="serban-recuero", **tolerances
        ).gradient
    return Reproduction(name, title, reference, tolerances, forward, adjoint, gradients)


def draw(
    problem: Any, result: Reproduction, folder: Path, stage: Callable[[str], None] = lambda text: None
) -> Iterator[tuple[Path, str]]:
    """Draw a problem's figures as PNG into a folder; path and caption of one after the other."""
    from dae_hybrid.plotting import save

    stage("figures")
    for stem, caption, figure in problem.figures(result.forward, result.adjoint):
        stage(caption)
        yield save(figure, folder / f"{stem}.png"), caption


def summary(results: Sequence[Reproduction]) -> str:
    """The results as one Markdown table, as README.md has it: nine digits, and the largest error of each column."""
    ways = list(dict.fromkeys(chain.from_iterable(result.gradients for result in results)))
    rows = [["", "paper", *(WAYS[way] for way in ways), "exact"]]
    for result in results:
        exact, name = result.reference, result.reference.functional
        values = {"forward": result.forward.functionals[name], "adjoint": result.adjoint.value}
        cells = [_number(values[way]) if way in values else "" for way in ways]
        rows.append([f"{result.name}: {name}", exact.printed.get(name, ""), *cells, _number(exact.value)])
        for i, parameter in enumerate(result.forward.parameters):
            printed = exact.printed.get("adjoint", [""] * len(exact.gradient))[i]
            cells = [_number(result.gradients[way][i]) if way in result.gradients else "" for way in ways]
            rows.append([f"{result.name}: d{name}/d{parameter}", printed, *cells, _number(exact.gradient[i])])
        worst = [
            f"{max(map(error, result.gradients[way], exact.gradient)):.0e}" if way in result.gradients else ""
            for way in ways
        ]
        rows.append([f"{result.name}: largest error of the gradient", "", *worst, ""])
    return markdown(rows)


def _number(value: float) -> str:
    return f"{value + 0.0:.8e}"  # a zero has no sign
