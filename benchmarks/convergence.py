"""Error against tolerance, every formulation: ``python benchmarks/convergence.py`` writes docs/convergence.md and .png.

State, event times and both gradients of the worked problems with independent reference values, at rtol 1e-4 to 1e-11
(atol a tenth of it, less where variables are small), and the slope of log error over log rtol: 1 means that the error
follows the tolerance.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import dae_hybrid as dh
from dae_hybrid.problems.conformance import CASES, Case, errors, slopes
from dae_hybrid.tables import markdown

RTOLS = 10.0 ** -np.arange(4, 12)
DOCS = Path(__file__).resolve().parent.parent / "docs"


@dataclass(frozen=True)
class Measured:
    """Errors of one case, one row per tolerance: value, event times, forward and adjoint gradient."""

    problem: str
    formulation: str
    errors: np.ndarray

    @property
    def slopes(self) -> np.ndarray:
        """Least-squares slopes of log error over log rtol, without errors that are rounding."""
        return slopes(RTOLS, self.errors)


def measure(case: Case) -> Measured:
    """Run one case at every tolerance."""
    rows = []
    for rtol in RTOLS:
        try:
            found = errors(case, float(rtol), states=False)
        except dh.DaeHybridError as error:  # refused: says so in the table
            print(f"{case.title}, rtol {rtol:.0e}: {error}")
            found = np.full(5, np.nan)
        rows.append(found[[0, 1, 3, 4]])
    return Measured(case.problem, case.formulation, np.array(rows))


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
        print(case.title)
        yield measure(case)


def main() -> None:
    """Measure, write the table and the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=DOCS, help="folder (default: docs)")
    folder = parser.parse_args().output
    cases = list(results())
    text = (
        "# Error against tolerance\n\n"
        "Written by `python benchmarks/convergence.py`. Errors are relative to the largest component of independent "
        "reference values; atol is a tenth of rtol (EM: 1e-4 of it, Menegotto-Pinto: 1e-3). The slope is that of log "
        "error against log rtol from 1e-4 to 1e-11.\n\n"
        f"{table(cases)}\n\n![Errors of gradients against the tolerance](convergence.png)\n"
    )
    (folder / "convergence.md").write_text(text, encoding="utf-8")
    draw(cases, folder / "convergence.png")


if __name__ == "__main__":
    main()
