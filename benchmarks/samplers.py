"""The tables and the picture of docs/samplers.md: cost of emcee, NumPyro and PyMC on one posterior, and DGSM.

    python benchmarks/samplers.py [--write] [--pictures]

Calls the examples with their defaults; needs emcee, numpyro and pymc. CPU time of the whole process, on all its
threads, warm-up and compilation by JAX and PyTensor included.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
from measuring import show

from dae_hybrid.report.plotting import new_figure, save

ROOT = Path(__file__).resolve().parent.parent
PAGE, PICTURE = ROOT / "docs" / "samplers.md", ROOT / "docs" / "samplers" / "posterior.png"
sys.path.insert(0, str(ROOT / "examples"))
SHOWN = 400  # draws in a panel
MASS = (0.99, 0.9, 0.5)  # of the contours


def effective(draws: np.ndarray) -> np.ndarray:
    """Effective sample sizes of both unknowns, by the integrated autocorrelation times of emcee."""
    from emcee.autocorr import integrated_time

    return draws.shape[0] * draws.shape[1] / integrated_time(draws, quiet=True)


def levels(density: np.ndarray) -> list[float]:
    """Densities whose contours enclose the given masses."""
    falling = np.sort(density.ravel())[::-1]
    enclosed = np.cumsum(falling) / falling.sum()
    return [float(falling[np.searchsorted(enclosed, mass)]) for mass in MASS]


def moments(mean: np.ndarray, sd: np.ndarray) -> list[str]:
    """Mean and standard deviation of each unknown."""
    return [f"{m:.4f} ({s:.4f})" for m, s in zip(mean, sd, strict=True)]


def table(samples, grid, approximation) -> list[list[str]]:
    """A row for each method; errors of means are relative to Monte Carlo standard errors."""
    heading = [
        "method",
        "gradient",
        "runs",
        "failed",
        "CPU, s",
        "CPU per run, ms",
        "effective draws",
        "runs per effective draw",
    ]
    heading += ["CPU per effective draw, ms", "log h: mean (sd)", "logit e: mean (sd)", "errors of means"]
    counts, (mean, covariance) = [str(grid.density.size), str(grid.failures.total())], approximation
    rows = [
        heading,
        ["grid", "no", *counts, *[""] * 5, *moments(grid.mean, grid.sd), ""],
        ["Laplace, `dh.fit`", "yes", *[""] * 7, *moments(mean, np.sqrt(np.diag(covariance))), ""],
    ]
    for sample in samples:
        flat, each = sample.draws.reshape(-1, 2), effective(sample.draws)
        least, off = each.min(), (flat.mean(0) - grid.mean) / (grid.sd / np.sqrt(each))
        gradient = "no" if "stretch" in sample.sampler else "yes"
        cost = [f"{sample.seconds:.1f}", f"{1e3 * sample.seconds / sample.runs:.2f}"]
        cost += [f"{least:.0f}", f"{sample.runs / least:.1f}", f"{1e3 * sample.seconds / least:.1f}"]
        rows.append(
            [sample.sampler, gradient, str(sample.runs), str(sample.failures.total()), *cost,
             *moments(flat.mean(0), flat.std(0)), f"{off[0]:+.1f}, {off[1]:+.1f}"]
        )  # fmt: skip
    return rows


def measures() -> list[list[str]]:
    """Derivative-based measures of the hysteretic oscillator, exact and by SALib, with total Sobol indices."""
    import rank_parameters

    found = rank_parameters.main()
    rows = [["parameter", "v, exact", "v, SALib", "relative error", "bound", "total Sobol index"]]
    for i, name in enumerate(rank_parameters.RANGES):
        v, other = found["exact"][i], found["differences"][i]
        total = f"{found['total'][i]:.4f} ± {found['error'][i]:.4f}"
        rows.append([name, f"{v:.5e}", f"{other:.5e}", f"{other / v - 1:+.1e}", f"{found['bound'][i]:.4f}", total])
    return rows


def draw(samples, grid, approximation) -> None:
    """Draws of each sampler over the contours of the posterior on the grid."""
    figure = new_figure(1, len(samples), size=(11.0, 3.3), sharex=True, sharey=True)
    mean, covariance = approximation
    angle = np.linspace(0, 2 * np.pi, 200)
    ring = (
        mean
        + np.sqrt(-2 * np.log(1 - 0.9))
        * np.column_stack([np.cos(angle), np.sin(angle)])
        @ np.linalg.cholesky(covariance).T
    )
    for axes, sample in zip(figure.axes, samples, strict=True):
        flat = sample.draws.reshape(-1, 2)
        some = np.random.default_rng(0).choice(flat, SHOWN, replace=False)
        axes.plot(*some.T, ".", markersize=2.5, color="C0", alpha=0.5, label="draws")
        axes.contour(*grid.axes, grid.density.T, levels=levels(grid.density), colors="0.2", linewidths=0.9)
        axes.plot([], [], color="0.2", linewidth=0.9, label="grid: 50, 90, 99 %")
        axes.plot(*ring.T, "--", color="C3", linewidth=1.0, label="Laplace: 90 %")
        axes.set_title(sample.sampler, fontsize="medium")
        axes.set(xlabel="log h", xlim=(-0.3, 0.36), ylim=(0.5, 3.4))
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("logit e")
    figure.axes[0].legend(frameon=False, fontsize="small", loc="upper right")
    save(figure, PICTURE, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/samplers.md")
    parser.add_argument("--pictures", action="store_true", help="draw docs/samplers/posterior.png")
    given = parser.parse_args()
    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory() as compiled:
        os.environ["PYTENSOR_FLAGS"] = f"base_compiledir={compiled}"
        import sample_emcee
        import sample_numpyro
        import sample_pymc
        from ball_posterior import ball, laplace, measured, on_grid

        samples = [*sample_emcee.main(), sample_numpyro.main(), sample_pymc.main()]
    data = measured()
    grid, approximation = on_grid(ball(data)), laplace(data)
    show(table(samples, grid, approximation), PAGE if given.write else None, "samplers")
    show(measures(), PAGE if given.write else None, "dgsm")
    if given.pictures:
        PICTURE.parent.mkdir(exist_ok=True)
        draw(samples, grid, approximation)


if __name__ == "__main__":
    main()
