"""Uncertainty: samples, Sobol indices, linear propagation and FORM, and the tables and pictures of docs/uncertainty.md.

    python benchmarks/uncertainty.py [--write] [--pictures]

Numbers of runs include those of checks. CPU time of the whole process, on all its threads. Takes about two minutes.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from measuring import show
from scipy import stats
from scipy.optimize import brentq

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
#: the limit state of a bouncing ball: height in m at the end of the span, and standard deviations that are drawn
BALL_SPAN, BALL_LIMIT, DRAWN = (0.0, 2.0), 0.3, 4.0
TIGHT: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-11}


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


def timed(call: Callable[[], Any]) -> tuple[Any, float, float]:
    """A result, and the CPU time and the elapsed time of its call in seconds."""
    cpu, elapsed = time.process_time(), time.perf_counter()
    return call(), time.process_time() - cpu, time.perf_counter() - elapsed


def methods() -> tuple[list[list[str]], dh.MonteCarlo]:
    """Mean, standard deviation and probability of the hysteretic oscillator by every method."""
    inputs, rows = material(0.5), [["method", "runs", "CPU, ms", "mean", "standard deviation", f"P(G > {LIMIT:g})"]]
    system = inputs.system
    call: dict[str, Any] = {"functional": "G", **RUN}

    def add(name: str, runs: int, cpu: float, *found: str) -> None:
        rows.append([name, str(runs), f"{1e3 * cpu:.0f}", *found])

    dh.linear_propagation(system, SPAN, inputs, **call)  # warm
    line, cpu, _ = timed(lambda: dh.linear_propagation(system, SPAN, inputs, **call))
    normal = stats.norm.sf(LIMIT, line.mean, line.std)
    add("linear_propagation", 1, cpu, f"{line.mean:.6f}", f"{line.std:.6f}", f"{normal:.2e} (normal)")
    found, cpu, _ = timed(lambda: dh.form(system, SPAN, inputs, above=LIMIT, **call))
    add("form", found.n_runs, cpu, "", "", f"{found.probability:.2e}")
    around, cpu, _ = timed(lambda: found.importance_sampling(1024))
    add("importance_sampling", 1024, cpu, "", "", with_error(around, "{:.2e}"))
    for n in (1024, 8192):
        sample, cpu, _ = timed(lambda n=n: dh.monte_carlo(system, SPAN, inputs, n, **call))
        add(
            "monte_carlo", n, cpu, with_error(sample.mean, "{:.6f}"), with_error(sample.std, "{:.6f}"),
            with_error(sample.probability(above=LIMIT), "{:.2e}"),
        )  # fmt: skip
    return rows, sample


def executions() -> list[list[str]]:
    """The same sample on threads and processes, with and without a store."""
    inputs, rows = material(0.5), [["runs on", "store", "seconds", "client's CPU, s", "same values"]]
    first = None
    with TemporaryDirectory() as folder:
        for executor, store, name in (
            ("threads", None, "no"), ("processes", None, "no"), ("threads", Path(folder) / "sample", "new"),
            ("threads", Path(folder) / "sample", "complete"),
        ):  # fmt: skip
            found, cpu, elapsed = timed(
                lambda executor=executor, store=store: dh.monte_carlo(
                    inputs.system, SPAN, inputs, 8192, functional="G", executor=executor, workers=2, store=store, **RUN
                )
            )
            first = found if first is None else first
            same = "yes" if np.array_equal(first.values, found.values) else "no"
            rows.append([f"2 {executor}", name, f"{elapsed:.1f}", f"{cpu:.1f}", same])
    return rows


def with_error(estimate: dh.Estimate, form: str) -> str:
    """An estimate and its standard error, if it has one."""
    if np.isnan(estimate.standard_error):
        return f"{estimate.value:g}"
    return f"{form.format(estimate.value)} ± {estimate.standard_error:.0e}"


def errors() -> tuple[list[list[str]], dict[str, list[float]]]:
    """Errors of the mean by sampler and size, in standard deviations, beside the standard errors; and the errors."""
    inputs = material(0.5)
    reference = dh.monte_carlo(inputs.system, SPAN, inputs, REFERENCE, functional="G", seed=99, **RUN)
    mean, std = reference.mean.value, reference.std.value
    rows, curves = [["sampler", *(f"n = {n}" for n in SIZES)]], {}
    for sampler in SAMPLERS:
        found = [
            [dh.monte_carlo(inputs.system, SPAN, inputs, n, functional="G", sampler=sampler, seed=seed, **RUN).mean
             for seed in range(8)]
            for n in SIZES
        ]  # fmt: skip
        true = [np.sqrt(np.mean([((own.value - mean) / std) ** 2 for own in same])) for same in found]
        stated = [np.sqrt(np.mean([(own.standard_error / std) ** 2 for own in same])) for same in found]
        rows.append([sampler, *(f"{a:.1e} ({b:.1e})" for a, b in zip(true, stated, strict=True))])
        curves[sampler] = true
    return rows, curves


def gradients() -> list[list[str]]:
    """Gradients of statistics of a bouncing ball's height, by design parameter and by shifts, and by differences."""
    from random_parameters import ball

    system = ball()
    marginals = {"e": stats.uniform(0.8, 0.15), "g": stats.norm(9.81, 0.05)}
    span, n, common = BALL_SPAN, 1024, {"functional": "height", **TIGHT}
    found = dh.monte_carlo(system, span, dh.Inputs(system, marginals), n, gradient=True, wrt=["h", "e"], **common)

    def value(of: str, h: float, shift: float) -> float:
        moved = dh.Inputs(system, marginals | {"e": stats.uniform(0.8 + shift, 0.15)})
        own = dh.monte_carlo(system, span, moved, n, parameters={"h": h}, **common)
        return (own.cvar(LEVEL) if of == "cvar" else getattr(own, of)).value

    rows, step = [["statistic", "parameter", "gradient", "standard error", "differences", "relative error"]], 1e-6
    for of in ("mean", "std", "cvar"):
        own = found.gradient(of, level=LEVEL if of == "cvar" else None)  # type: ignore[arg-type]
        for i, name in enumerate(("h (design)", "e (shift)")):
            one, two = ((1 + s * step, 0.0) if i == 0 else (1.0, s * step) for s in (1, -1))
            difference = (value(of, *one) - value(of, *two)) / (2 * step)
            error = abs(own.value[i] / difference - 1)
            label = f"CVaR {LEVEL:.0%}" if of == "cvar" else of
            numbers = (f"{own.value[i]:.7f}", f"{own.standard_error[i]:.1e}", f"{difference:.7f}", f"{error:.0e}")
            rows.append([label, name, *numbers])
    return rows


def published() -> list[list[str]]:
    """Published values and ours."""
    from random_parameters import SPAN as UNIT
    from random_parameters import closed_form, ishigami

    rows = [["example", "quantity", "published", "found", "difference", "runs"]]
    system = ishigami()
    circle = stats.uniform(-np.pi, 2 * np.pi)
    indices = dh.sobol_indices(system, UNIT, dh.Inputs(system, dict.fromkeys("xyz", circle)), 4096)
    exact = {"first": (0.3139, 0.4424, 0.0), "total": (0.5576, 0.4424, 0.2437)}
    for which, values in exact.items():
        own, half = getattr(indices, which), getattr(indices, f"{which}_error")
        for i, value in enumerate(values):
            rows.append(
                ["Ishigami", f"{'first-order' if which == 'first' else which} index of x{i + 1}", f"{value:.4f}",
                 f"{own[i]:.4f} ± {half[i]:.4f}", f"{own[i] - value:+.4f}", str(indices.n_runs)]
            )  # fmt: skip
    weights = {"x1": 1, "x2": 2, "x3": 2, "x4": 1, "x5": -5, "x6": -5}
    frame = closed_form(dict.fromkeys(weights, 1.0), lambda **x: sum(w * x[n] for n, w in weights.items()))
    marginals = {name: lognormal(120, 12) for name in weights} | {"x5": lognormal(50, 15), "x6": lognormal(40, 12)}
    found = dh.form(frame, UNIT, dh.Inputs(frame, marginals), below=0.0)
    of_frame = (("index beta", "2.348", f"{found.beta:.4f}"), ("probability", "0.00943", f"{found.probability:.5f}"))
    rows += [["plastic frame", *own, "", str(found.n_runs)] for own in of_frame]
    dependent = closed_form({"x": 1.0, "y": 1.0, "z": 1.0}, lambda x, y, z: 1.7 - y / (1000 * z) - (x / (200 * z)) ** 2)
    uniform = stats.uniform(5 - 0.5 * np.sqrt(3), np.sqrt(3))
    correlated = nataf(
        dependent, {"x": lognormal(500, 100), "y": stats.norm(2000, 400), "z": uniform},
        {("x", "y"): 0.3, ("x", "z"): 0.2, ("y", "z"): 0.2},
    )  # fmt: skip
    found = dh.form(dependent, UNIT, correlated, below=0.0)
    rows.append(["correlated variables", "index beta", "3.7347", f"{found.beta:.4f}", "", str(found.n_runs)])
    return rows


def nataf(system: dh.HybridSystem, marginals: dict[str, Any], pairs: dict[tuple[str, str], float]) -> dh.Inputs:
    """Inputs with correlations of the variables instead of their normal scores."""

    def score(pair: tuple[str, str]) -> float:
        def error(r: float) -> float:
            own = dh.Inputs(system, {name: marginals[name] for name in pair}, {pair: r})
            return float(own.covariance[0, 1] / own.std.prod() - pairs[pair])

        return float(brentq(error, -0.99, 0.99))

    return dh.Inputs(system, marginals, {pair: score(pair) for pair in combinations(marginals, 2)})


def influence() -> tuple[list[list[str]], dh.SobolIndices]:
    """Sobol indices of the hysteretic oscillator beside the shares of linear propagation."""
    inputs = material()
    found = dh.sobol_indices(inputs.system, SPAN, inputs, 1024, functional="G", **RUN)
    line = dh.linear_propagation(inputs.system, SPAN, inputs, functional="G", **RUN)
    rows = [["parameter", "first order", "total", "share, linear_propagation"]]
    for i, name in enumerate(found.names):
        rows.append(
            [name, f"{found.first[i]:.4f} ± {found.first_error[i]:.4f}",
             f"{found.total[i]:.4f} ± {found.total_error[i]:.4f}", f"{line.share[i]:.4f}"]
        )  # fmt: skip
    return rows, found


def limit_state() -> tuple[list[list[str]], dh.Form]:
    """The probability that a ball is above a limit, whose surface is curved, by every method."""
    from random_parameters import ball

    system = ball()
    inputs = dh.Inputs(system, {"e": stats.norm(0.8, 0.02), "h": stats.norm(1, 0.05)})
    call: dict[str, Any] = {"functional": "height", **TIGHT}
    found = dh.form(system, BALL_SPAN, inputs, above=BALL_LIMIT, **call)
    rows = [["method", "runs", f"P(height > {BALL_LIMIT:g} m)"]]
    rows.append(["form", str(found.n_runs), f"{found.probability:.4f}"])
    rows.append(["importance_sampling", "1024", with_error(found.importance_sampling(1024), "{:.4f}")])
    sample = dh.monte_carlo(system, BALL_SPAN, inputs, 8192, **call).probability(above=BALL_LIMIT)
    return [*rows, ["monte_carlo", "8192", with_error(sample, "{:.4f}")]], found


def draw(sample: dh.MonteCarlo, indices: dh.SobolIndices, curves: dict[str, list[float]], found: dh.Form) -> None:
    """The pictures of the page."""
    figure = new_figure(1, 2, size=(9.6, 3.4))
    sample.plot(LEVEL, axes=figure.axes[0])
    figure.axes[0].locator_params(axis="x", nbins=5)
    indices.plot(axes=figure.axes[1])
    save(figure, PICTURES / "oscillator.png", dpi=110)
    figure = new_figure(size=(6.0, 3.6))
    axes = figure.axes[0]
    for (name, values), marker in zip(curves.items(), "os^D", strict=True):
        axes.loglog(SIZES, values, marker=marker, markersize=4, linewidth=1.3, label=name.replace("_", " "))
    axes.set_xticks(SIZES, [str(n) for n in SIZES])
    axes.minorticks_off()
    axes.set_xlabel("runs")
    axes.set_ylabel("error of the mean / standard deviation")
    axes.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, PICTURES / "samplers.png", dpi=110)
    figure = new_figure(size=(6.0, 6.0))
    draw_limit_state(figure.axes[0], found)
    save(figure, PICTURES / "limit_state.png", dpi=110)


def draw_limit_state(axes: Any, found: dh.Form) -> None:
    """Height of the ball over standard normal variables, with limit, design point and its tangent."""
    from random_parameters import ball

    system = ball()
    inputs = dh.Inputs(system, {"e": stats.norm(0.8, 0.02), "h": stats.norm(1, 0.05)})
    ticks = np.linspace(-DRAWN, DRAWN, 161)
    u = np.stack(np.meshgrid(ticks, ticks), axis=-1).reshape(-1, 2)
    runs = dh.batch(system, BALL_SPAN, parameters=inputs.table(u), functional="height", **TIGHT)
    shape = (ticks.size, ticks.size)
    filled = axes.contourf(ticks, ticks, runs.functionals["height"].reshape(shape), levels=16, cmap="Blues")
    axes.figure.colorbar(filled, ax=axes, label="height at t = 2 s, m", pad=0.02, shrink=0.8)
    axes.contour(ticks, ticks, runs.functionals["height"].reshape(shape), levels=[BALL_LIMIT], colors="C3")
    count = runs.n_events.reshape(shape)
    axes.contour(ticks, ticks, count, levels=np.arange(1.5, count.max()), colors="0.25", linestyles=":", linewidths=1)
    along = np.array([-found.alpha[1], found.alpha[0]])
    axes.plot([], [], color="C3", label=f"height = {BALL_LIMIT:g} m")
    axes.axline(found.u, found.u + along, color="C1", linewidth=1.3, label="tangent: the limit of FORM")
    axes.plot(*zip((0, 0), found.u, strict=True), color="black", linewidth=1)
    axes.plot(*found.u, "o", color="black", label=f"design point, beta = {found.beta:.3f}")
    points = inputs.to_normal(inputs.sample(256)[:, list(inputs.indices)])
    axes.plot(*points.T, ".", color="0.35", markersize=2.5, label="256 Sobol points")
    axes.plot([], [], color="0.25", linestyle=":", label="number of bounces changes")
    axes.set(xlim=(-DRAWN, DRAWN), ylim=(-DRAWN, DRAWN), aspect="equal")
    axes.set_xlabel("u of the restitution e")
    axes.set_ylabel("u of the drop height h")
    axes.legend(fontsize="small", loc="upper center", bbox_to_anchor=(0.55, -0.1), ncols=2, frameon=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/uncertainty.md")
    parser.add_argument("--pictures", action="store_true", help="draw the pictures of the page")
    given = parser.parse_args()
    page = PAGE if given.write else None
    warnings.simplefilter("error")
    of_methods, sample = methods()
    show(of_methods, page, "methods")
    show(executions(), page, "executions")
    of_parameters, indices = influence()
    show(of_parameters, page, "influence")
    show(gradients(), page, "gradients")
    show(published(), page, "published")
    of_limit, found = limit_state()
    show(of_limit, page, "limit")
    of_samplers, curves = errors()
    show(of_samplers, page, "samplers")
    if given.pictures:
        draw(sample, indices, curves, found)


if __name__ == "__main__":
    main()
