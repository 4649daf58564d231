"""Error against tolerance, every formulation: ``python benchmarks/convergence.py`` writes docs/convergence.md and .png.

State, event times and both gradients of the worked problems with independent reference values, at rtol 1e-4 to 1e-11
(atol a tenth of it), and the slope of log error over log rtol: 1 means that the error follows the tolerance.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import dae_hybrid as dh
from dae_hybrid.problems import load
from dae_hybrid.tables import markdown

RTOLS = 10.0 ** -np.arange(4, 12)
DOCS = Path(__file__).resolve().parent.parent / "docs"

#: problem, functional, what is measured, how it is built
CASES = [
    ("hybrid_ode", "G", "ODE", {}),
    ("em_hysteresis", "G", "Hessenberg index 1, z eliminated", {}),
    ("em_hysteresis", "G", "Hessenberg index 1, as DAE", {"eliminate": False}),
    ("rocket", "load", "implicit, derivatives eliminated", {}),
    ("rocket", "load", "implicit, as DAE", {"eliminate": False}),
    ("ball_on_rope", "K", "ODE and index 2 reduced, eliminated", {}),
    ("ball_on_rope", "K", "ODE and index 2 reduced, as DAE", {"eliminate": False}),
    ("ball_on_rope", "K", "ODE and index 2 direct", {"index2": "direct"}),
    ("menegotto_pinto", "energy", "ODE with memory and signal", {}),
]


@dataclass(frozen=True)
class Measured:
    """Errors of one case, one row per tolerance: value, event times, forward and adjoint gradient."""

    problem: str
    formulation: str
    errors: np.ndarray
    steps: np.ndarray

    @property
    def slopes(self) -> np.ndarray:
        """Least-squares slope of log error over log rtol, without errors that are rounding."""
        found = []
        for column in self.errors.T:
            good = column > 1e-14
            enough = good.sum() > 2
            found.append(np.polyfit(np.log(RTOLS[good]), np.log(column[good]), 1)[0] if enough else np.nan)
        return np.array(found)


def relative(value: Any, exact: Any) -> float:
    """Largest error relative to the largest component."""
    scale = np.abs(exact).max(initial=0.0)
    return float(np.abs(np.asarray(value) - exact).max(initial=0.0) / scale) if scale else 0.0


def measure(name: str, functional: str, formulation: str, form: dict[str, Any]) -> Measured:
    """Run one case at every tolerance."""
    problem = load(name)
    system, reference = problem.model().build(**form), problem.reference()
    value = reference.value if hasattr(reference, "value") else reference.values[functional]
    gradient = reference.gradient if hasattr(reference, "gradient") else reference.gradients[functional]
    rows, steps = [], []
    for rtol in RTOLS:
        atol = 1e-4 * rtol if name == "em_hysteresis" else 0.1 * rtol
        options = {"rtol": float(rtol), "atol": float(atol)}
        try:
            fsa = dh.forward_sensitivity(system, problem.t_span, **options)
            asa = dh.adjoint_gradient(system, problem.t_span, functional, **options)
        except dh.DaeHybridError as error:  # refused: says so in the table
            print(f"{name}, {formulation}, rtol {rtol:.0e}: {error}")
            rows.append([np.nan] * 4)
            steps.append(0)
            continue
        times = np.array([event.time for event in fsa.events])
        same = times.size == reference.event_times.size
        rows.append(
            [
                relative(fsa.functionals[functional], value),
                relative(times, reference.event_times) if same else np.nan,
                relative(fsa.gradient[functional], gradient),
                relative(asa.gradient, gradient),
            ]
        )
        steps.append(asa.trajectory.statistics["steps"])
    return Measured(name, formulation, np.array(rows), np.array(steps))


def table(cases: list[Measured]) -> str:
    """Errors at three tolerances and the slopes."""
    shown = [int(np.argmin(np.abs(np.log10(RTOLS) - exponent))) for exponent in (-6, -8, -10)]
    heads = ["value", "event times", "FSA", "ASA"]
    rows = [["problem, formulation", "error of", *(f"rtol {RTOLS[i]:.0e}" for i in shown), "slope"]]
    for case in cases:
        for j, head in enumerate(heads):
            label = f"{case.problem}: {case.formulation}" if j == 0 else ""
            slope = case.slopes[j]
            cells = (f"{case.errors[i, j]:.0e}" for i in shown)
            rows.append([label, head, *cells, "exact" if np.isnan(slope) else f"{slope:.2f}"])
    return markdown(rows)


def draw(cases: list[Measured], path: Path) -> None:
    """Errors of both gradients over the tolerance."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    for column, title, axes in zip((2, 3), ("forward (FSA)", "adjoint (ASA)"), figure.subplots(1, 2), strict=True):
        for case in cases:
            axes.loglog(RTOLS, case.errors[:, column], marker="o", markersize=3, linewidth=1)
        axes.loglog(RTOLS, RTOLS, color="black", linestyle=":", linewidth=1)
        axes.set(title=f"error of the gradient, {title}", xlabel="rtol")
        axes.grid(alpha=0.3)
    labels = [f"{case.problem}: {case.formulation}" for case in cases]
    figure.legend([*labels, "rtol"], loc="outside lower center", ncols=2, fontsize=7, frameon=False)
    figure.savefig(path, dpi=110)


def results() -> Iterator[Measured]:
    """One case after the other."""
    for case in CASES:
        print(f"{case[0]}: {case[2]}")
        yield measure(*case)


def main() -> None:
    """Measure, write the table and the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=DOCS, help="folder (default: docs)")
    folder = parser.parse_args().output
    cases = list(results())
    text = (
        "# Error against tolerance\n\n"
        "Written by `python benchmarks/convergence.py`. Errors are relative to the largest component of independent "
        "reference values; atol is a tenth of rtol (EM: 1e-4 of it). The slope is that of log error over log rtol from "
        "1e-4 to 1e-11.\n\n"
        f"{table(cases)}\n\n![Errors of gradients over the tolerance](convergence.png)\n"
    )
    (folder / "convergence.md").write_text(text, encoding="utf-8")
    draw(cases, folder / "convergence.png")


if __name__ == "__main__":
    main()
