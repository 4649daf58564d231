"""The published results of the five-bar mechanism, recomputed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dae_hybrid as dh
from dae_hybrid.mechanics import Index1, Index2, Penalty, Reduced, constraint_residuals
from dae_hybrid.problems import five_bar
from dae_hybrid.problems._reference import Exact
from dae_hybrid.report.reproduce import WAYS, ReportedEntry, finite_differences
from dae_hybrid.tables import align

Array = NDArray[np.float64]
#: functional and parameters of every reproduced case
WANTED: dict[five_bar.Case, tuple[str, tuple[str, ...]]] = {
    "smooth": ("psi", five_bar.PARAMETERS),
    "elastic": ("z", five_bar.PARAMETERS[:2]),
    "latch": ("psi", five_bar.PARAMETERS),
}
#: relative step of finite differences; nine impacts make the costs sensitive to the lengths
STEPS: dict[five_bar.Case, float] = {"smooth": 2e-4, "elastic": 2e-5, "latch": 5e-5}
#: absolute tolerance of finite differences, times ten
TIGHT = 1e-12
#: formulations whose residuals are reported
FORMULATIONS = {
    "reduced coordinates": Reduced(),
    "index 2 (GGL)": Index2(),
    "index 1": Index1(),
    "index 1, stabilised": Index1(omega=10.0),
    "penalty, alpha = 1e7": Penalty(alpha=1e7),
}


@dataclass(frozen=True, eq=False)
class CaseResult:
    """One case: forward analysis, one adjoint sweep for all components, finite differences."""

    functional: str
    forward: dh.ForwardSensitivity
    adjoint: dh.Gradient
    difference: Array
    reference: Exact
    columns: tuple[int, ...]  # columns of the reference's gradients

    @property
    def exact(self) -> Array:
        """The reference gradient, (k, n_p)."""
        return self.reference.gradients[self.functional][:, list(self.columns)]

    @property
    def gradients(self) -> dict[str, Array]:
        """The gradients by method, each (k, n_p)."""
        forward = self.forward.gradient[self.functional]
        return {"finite_difference": self.difference, "forward": forward, "adjoint": self.adjoint.gradient}

    @property
    def event_times(self) -> Array:
        """Event times, (n_events,)."""
        return np.array([event.time for event in self.forward.events])


@dataclass(frozen=True, eq=False)
class FiveBarReproduction:
    """All cases; `residuals` are the largest of positions and velocities in the elastic case, by formulation."""

    name: str
    title: str
    cases: Mapping[str, CaseResult]
    residuals: Mapping[str, tuple[float, float]]

    def as_json(self) -> dict[str, Any]:
        """Plain numbers and lists."""
        found: dict[str, Any] = {}
        for case, result in self.cases.items():
            gradient: Any = result.gradients["forward"].tolist()
            if case == "elastic":
                gradient = {way: result.gradients[way].tolist() for way in ("forward", "adjoint")}
            found[case] = {"value": np.asarray(result.adjoint.value).tolist(), "gradient": gradient}
            if result.event_times.size:
                found[case]["event_times"] = result.event_times.tolist()
        return found

    def entries(self) -> list[ReportedEntry]:
        """Entries of the elastic case, the subject of the papers."""
        result, found = self.cases["elastic"], []
        values = {
            "forward": result.forward.functionals[result.functional],
            "adjoint": result.adjoint.value,
        }
        exact = result.reference.values[result.functional]
        for i in range(3):
            both = {way: float(value[i]) for way, value in values.items()}
            found.append(ReportedEntry(f"z{i + 1}", both, float(exact[i]), derivative=False))
        for i in range(3):
            for j, parameter in enumerate(result.forward.parameters):
                every = {way: float(gradient[i, j]) for way, gradient in result.gradients.items()}
                found.append(ReportedEntry(f"dz{i + 1}/d{parameter}", every, float(result.exact[i, j])))
        return found

    def table(self) -> str:
        """All results with exact and printed values."""
        options = five_bar.tolerances
        lines = [
            f"{self.name}: {self.title}",
            f"rtol {options['rtol']:g}, atol {options['atol']:g}; exact values: quadruple precision.",
            "Errors are relative to the exact value.",
        ]
        for case, result in self.cases.items():
            lines += ["", f"{case}: {len(result.event_times)} events", *align(self._rows(case, result), left=(0, 1))]
            if result.event_times.size:
                off = np.abs(result.event_times - result.reference.event_times).max()
                lines.append(f"event times: largest error {off:.0e}")
        lines += ["", "elastic: largest residuals of the constraints at all outputs"]
        rows = [["formulation", "positions", "velocities"]]
        rows += [[name, f"{q:.0e}", f"{v:.0e}"] for name, (q, v) in self.residuals.items()]
        return "\n".join([*lines, *align(rows, left=(0,))])

    def _rows(self, case: str, result: CaseResult) -> list[list[str]]:
        rows = [["quantity", "way", "computed", "exact", "error", "paper"]]
        printed = five_bar.printed() if case == "smooth" else {}
        exact = result.reference.values[result.functional]
        for i, value in enumerate(np.asarray(result.adjoint.value)):
            name = f"{result.functional}{i + 1}"
            error = f"{abs(value / exact[i] - 1):.0e}"
            rows.append([name, "simulation", f"{value:.12e}", f"{exact[i]:.12e}", error, ""])
            for j, parameter in enumerate(result.forward.parameters):
                texts = printed.get(name)
                for k, (way, gradient) in enumerate(result.gradients.items()):
                    rows.append(
                        [
                            f"d{name}/d{parameter}" * (k == 0),
                            WAYS[way],
                            f"{gradient[i, j]:.12e}",
                            f"{result.exact[i, j]:.12e}" if k == 0 else "",
                            f"{abs(gradient[i, j] / result.exact[i, j] - 1):.0e}",
                            texts[j] if texts and k == 0 else "",
                        ]
                    )
        return rows


def _beneath(stage: Callable[[str], None], case: str, text: str) -> None:
    stage(f"{case}: {text}")


def compute(name: str, title: str, stage: Callable[[str], None]) -> FiveBarReproduction:
    """Simulate and differentiate every case."""
    cases = {}
    for case, (functional, wrt) in WANTED.items():
        stage(f"{case}: building")
        system, options = five_bar.system(case), five_bar.tolerances
        stage(f"{case}: forward sensitivities")
        forward = dh.forward_sensitivity(system, five_bar.t_span, wrt=wrt, **options)
        stage(f"{case}: adjoint")
        adjoint = dh.adjoint_gradient(system, five_bar.t_span, functional, wrt=wrt, **options)
        difference = finite_differences(
            system, five_bar.t_span, functional, STEPS[case], wrt=wrt, rtol=options["rtol"], atol=TIGHT,
            stage=partial(_beneath, stage, case),
        )  # fmt: skip
        columns = system.parameter_indices(wrt)
        cases[str(case)] = CaseResult(functional, forward, adjoint, difference, five_bar.reference(case), columns)
    residuals = {}
    for label, formulation in FORMULATIONS.items():
        stage(f"residuals, {label}")
        run = dh.simulate(five_bar.system("elastic", formulation), five_bar.t_span, **five_bar.tolerances)
        positions, velocities = constraint_residuals(five_bar.mechanism("elastic"), run)
        residuals[label] = (float(positions.max()), float(velocities.max()))
    return FiveBarReproduction(name, title, cases, residuals)
