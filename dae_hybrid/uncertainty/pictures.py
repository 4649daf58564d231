"""Pictures of samples and of Sobol indices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dae_hybrid.report.plotting import new_figure
from dae_hybrid.uncertainty.statistics import Tail

if TYPE_CHECKING:
    from dae_hybrid.uncertainty.sample import MonteCarlo
    from dae_hybrid.uncertainty.sobol import SobolIndices

SIZE = (6.4, 3.2)  # inches
#: most bars of a histogram, and the width of a bar of indices
MAX_BARS, WIDTH = 80, 0.38


def plot_sample(sample: MonteCarlo, level: float | None, tail: Tail, axes: Any = None) -> Any:
    """Draw a histogram; see `MonteCarlo.plot`."""
    if axes is None:
        axes = new_figure(size=SIZE).axes[0]
    values = sample.values[sample.ok]
    bars = min(len(np.histogram_bin_edges(values, "fd")) - 1, MAX_BARS)
    axes.hist(values, bins=max(bars, 1), color="C0", alpha=0.55, edgecolor="white", linewidth=0.4)
    lines = [(sample.mean, "mean", "0.15", "-")]
    if level is not None:
        q = level if tail == "upper" else 1 - level
        lines += [
            (sample.quantile(q), f"quantile {100 * q:g} %", "C1", "--"),
            (sample.cvar(level, tail), f"CVaR {100 * level:g} %", "C3", "-"),
        ]
    for estimate, name, colour, style in lines:
        axes.axvline(estimate.value, color=colour, linestyle=style, linewidth=1.3, label=name)
    axes.set_xlabel(sample.functional)
    axes.set_ylabel(f"runs of {values.size}")
    axes.legend(frameon=False, fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    return axes.figure


def plot_indices(indices: SobolIndices, axes: Any = None) -> Any:
    """Draw indices as bars; see `SobolIndices.plot`."""
    if axes is None:
        axes = new_figure(size=SIZE).axes[0]
    at = np.arange(len(indices.names))
    columns = (
        (indices.first, indices.first_error, "first order", "C0", -0.5),
        (indices.total, indices.total_error, "total", "C1", 0.5),
    )
    for values, errors, name, colour, side in columns:
        axes.bar(
            at + side * WIDTH, values, WIDTH, yerr=errors, color=colour, alpha=0.75, label=name, capsize=3,
            error_kw={"linewidth": 0.9},
        )  # fmt: skip
    axes.set_xticks(at, indices.names)
    axes.set_ylabel(f"share of the variance of {indices.functional}")
    axes.axhline(0, color="0.3", linewidth=0.8)
    axes.legend(frameon=False, fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)
    return axes.figure
