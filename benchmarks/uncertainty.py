"""Uncertainty: samples, Sobol indices, linear propagation and FORM, and the tables and pictures of docs/uncertainty.md.

    python benchmarks/uncertainty.py [--write] [--pictures]

Numbers of runs include those of checks. CPU time of the whole process, on all its threads.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from measuring import show
from scipy import stats

import dae_hybrid as dh
from dae_hybrid.problems import em_hysteresis
from dae_hybrid.report.plotting import new_figure, save

ROOT = Path(__file__).resolve().parent.parent
PAGE, PICTURES = ROOT / "docs" / "uncertainty.md", ROOT / "docs" / "uncertainty"
sys.path.insert(0, str(ROOT / "tests" / "support"))
RUN: dict[str, Any] = {"rtol": 1e-6, "atol": 1e-10}
SPAN = em_hysteresis.t_span
LIMIT, LEVEL = 0.055, 0.95
SAMPLERS = ("random", "latin_hypercube", "halton", "sobol")
SIZES = (256, 1024, 4096)
REFERENCE = 32768


def material(correlation: float = 0.0) -> dh.Inputs:
    """Random stiffnesses and decay rate of the hysteretic material."""
    system = em_hysteresis.system()
    marginals = {
        "ka": stats.norm(32 * np.pi**2, 0.05 * 32 * np.pi**2),
        "kb": stats.lognorm(0.05, scale=np.pi**2),
        "alpha": stats.norm(205, 20),
    }
    return dh.Inputs(system, marginals, {("ka", "kb"): correlation} if correlation else None)


def lognormal(mean: float, std: float) -> Any:
    """A lognormal distribution by its mean and standard deviation."""
    s = np.sqrt(np.log1p((std / mean) ** 2))
    return stats.lognorm(s, scale=mean / np.sqrt(1 + (std / mean) ** 2))


def methods() -> tuple[list[list[str]], dh.MonteCarlo]:
    """Mean, standard deviation and probability of the hysteretic oscillator by every method."""
    inputs, rows = material(0.5), [["method", "runs", "CPU, ms", "mean", "std", f"P(G > {LIMIT:g})"]]
    system = inputs.system
    dh.linear_propagation(system, SPAN, inputs, functional="G", **RUN)  # warm
    start = time.process_time()
    line = dh.linear_propagation(system, SPAN, inputs, functional="G", **RUN)
    spent = time.process_time() - start
    first_order = stats.norm.sf(LIMIT, line.mean, line.std)
    rows.append(
        ["linear propagation", "1", f"{1e3 * spent:.1f}", f"{line.mean:.6f}", f"{line.std:.6f}", f"{first_order:.2e}"]
    )
    start = time.process_time()
    found = dh.form(system, SPAN, inputs, functional="G", above=LIMIT, **RUN)
    spent = time.process_time() - start
    rows.append(["FORM", str(found.n_runs), f"{1e3 * spent:.1f}", "", "", f"{found.probability:.2e}"])
    start = time.process_time()
    around = found.importance_sampling(1024)
    spent = time.process_time() - start
    rows.append(["importance sampling", "1024", f"{1e3 * spent:.0f}", "", "", with_error(around, "{:.2e}")])
    start = time.process_time()
    sample = dh.monte_carlo(system, SPAN, inputs, 8192, functional="G", **RUN)
    spent = time.process_time() - start
    rows.append(
        [
            "monte_carlo, Sobol points", "8192", f"{1e3 * spent:.0f}", with_error(sample.mean, "{:.6f}"),
            with_error(sample.std, "{:.6f}"), with_error(sample.probability(above=LIMIT), "{:.2e}"),
        ]
    )  # fmt: skip
    return rows, sample


def with_error(estimate: dh.Estimate, form: str) -> str:
    """An estimate and its standard error."""
    return f"{form.format(estimate.value)} ± {estimate.standard_error:.0e}"


def errors() -> tuple[list[list[str]], dict[str, list[float]]]:
    """Standard errors of the mean by sampler and size, in standard deviations; and the errors themselves."""
    inputs = material(0.5)
    reference = dh.monte_carlo(inputs.system, SPAN, inputs, REFERENCE, functional="G", seed=99, **RUN)
    mean, std = reference.mean.value, reference.std.value
    rows, curves = [["points", *(f"n = {n}, error" for n in SIZES), *(f"n = {n}, said" for n in SIZES)]], {}
    for sampler in SAMPLERS:
        found = [
            [dh.monte_carlo(inputs.system, SPAN, inputs, n, functional="G", sampler=sampler, seed=seed, **RUN).mean
             for seed in range(8)]
            for n in SIZES
        ]  # fmt: skip
        true = [np.sqrt(np.mean([((own.value - mean) / std) ** 2 for own in same])) for same in found]
        said = [np.sqrt(np.mean([(own.standard_error / std) ** 2 for own in same])) for same in found]
        rows.append([sampler, *(f"{value:.1e}" for value in (*true, *said))])
        curves[sampler] = true
    return rows, curves


def gradients() -> list[list[str]]:
    """Gradients of statistics of a bouncing ball's height, by design parameter and by shifts, and by differences."""
    from random_parameters import ball

    system, tight = ball(), {"rtol": 1e-9, "atol": 1e-11}
    marginals = {"e": stats.uniform(0.8, 0.15), "g": stats.norm(9.81, 0.05)}
    span, n, common = (0.0, 2.0), 1024, {"functional": "height", **tight}
    found = dh.monte_carlo(system, span, dh.Inputs(system, marginals), n, gradient=True, wrt=["h", "e"], **common)

    def value(of: str, h: float, shift: float) -> float:
        moved = dh.Inputs(system, marginals | {"e": stats.uniform(0.8 + shift, 0.15)})
        own = dh.monte_carlo(system, span, moved, n, parameters={"h": h}, **common)
        return (own.cvar(LEVEL) if of == "cvar" else getattr(own, of)).value

    rows, step = [["statistic", "parameter", "gradient", "standard error", "differences", "relative error"]], 1e-6
    for of in ("mean", "std", "cvar"):
        own = found.gradient(of, level=LEVEL if of == "cvar" else None)  # type: ignore[arg-type]
        for i, name in enumerate(("h, drop height (design)", "e, restitution (shift)")):
            one, two = ((1 + s * step, 0.0) if i == 0 else (1.0, s * step) for s in (1, -1))
            difference = (value(of, *one) - value(of, *two)) / (2 * step)
            error = abs(own.value[i] / difference - 1)
            label = f"CVaR {LEVEL:.0%}" if of == "cvar" else of
            rows.append(
                [
                    label,
                    name,
                    f"{own.value[i]:.7f}",
                    f"{own.standard_error[i]:.1e}",
                    f"{difference:.7f}",
                    f"{error:.0e}",
                ]
            )
    return rows


def published() -> list[list[str]]:
    """Published values and ours."""
    from random_parameters import SPAN as UNIT
    from random_parameters import closed_form, ishigami

    rows = [["example", "quantity", "published", "found", "runs"]]
    system = ishigami()
    circle = stats.uniform(-np.pi, 2 * np.pi)
    indices = dh.sobol_indices(system, UNIT, dh.Inputs(system, dict.fromkeys("xyz", circle)), 4096)
    exact = {"first": (0.3139, 0.4424, 0.0), "total": (0.5576, 0.4424, 0.2437)}
    for which, values in exact.items():
        own, half = getattr(indices, which), getattr(indices, f"{which}_error")
        for i, value in enumerate(values):
            rows.append(
                ["Ishigami", f"{which} x{i + 1}", f"{value:.4f}", f"{own[i]:.4f} ± {half[i]:.4f}", str(indices.n_runs)]
            )
    weights = {"x1": 1, "x2": 2, "x3": 2, "x4": 1, "x5": -5, "x6": -5}
    frame = closed_form(dict.fromkeys(weights, 1.0), lambda **x: sum(w * x[n] for n, w in weights.items()))
    marginals = {name: lognormal(120, 12) for name in weights} | {"x5": lognormal(50, 15), "x6": lognormal(40, 12)}
    found = dh.form(frame, UNIT, dh.Inputs(frame, marginals), below=0.0)
    rows.append(["plastic frame", "beta", "2.348", f"{found.beta:.4f}", str(found.n_runs)])
    rows.append(["plastic frame", "P, first order", "9.43e-03", f"{found.probability:.2e}", str(found.n_runs)])
    return rows


def influence() -> tuple[list[list[str]], dh.SobolIndices]:
    """Sobol indices of the hysteretic oscillator beside the shares of linear propagation."""
    inputs = material()
    found = dh.sobol_indices(inputs.system, SPAN, inputs, 1024, functional="G", **RUN)
    line = dh.linear_propagation(inputs.system, SPAN, inputs, functional="G", **RUN)
    rows = [["parameter", "first order", "total", "share, linear"]]
    for i, name in enumerate(found.names):
        rows.append(
            [name, f"{found.first[i]:.4f} ± {found.first_error[i]:.4f}",
             f"{found.total[i]:.4f} ± {found.total_error[i]:.4f}", f"{line.share[i]:.4f}"]
        )  # fmt: skip
    return rows, found


def draw(sample: dh.MonteCarlo, indices: dh.SobolIndices, curves: dict[str, list[float]]) -> None:
    """The pictures of the page."""
    figure = new_figure(1, 2, size=(9.6, 3.4))
    sample.plot(LEVEL, axes=figure.axes[0])
    figure.axes[0].set_xlabel("G")
    indices.plot(axes=figure.axes[1])
    save(figure, PICTURES / "oscillator.png", dpi=110)
    figure = new_figure(size=(6.0, 3.4))
    axes = figure.axes[0]
    for (name, values), marker in zip(curves.items(), "os^D", strict=True):
        axes.loglog(SIZES, values, marker=marker, markersize=4, linewidth=1.3, label=name.replace("_", " "))
    axes.set_xticks(SIZES, [str(n) for n in SIZES])
    axes.minorticks_off()
    axes.set_xlabel("runs")
    axes.set_ylabel("error of the mean / standard deviation")
    axes.legend(frameon=False, fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, PICTURES / "samplers.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/uncertainty.md")
    parser.add_argument("--pictures", action="store_true", help="draw the pictures of the page")
    given = parser.parse_args()
    page = PAGE if given.write else None
    warnings.simplefilter("error")
    of_methods, sample = methods()
    show(of_methods, page, "methods")
    of_parameters, indices = influence()
    show(of_parameters, page, "influence")
    show(gradients(), page, "gradients")
    show(published(), page, "published")
    of_samplers, curves = errors()
    show(of_samplers, page, "samplers")
    if given.pictures:
        draw(sample, indices, curves)


if __name__ == "__main__":
    main()
