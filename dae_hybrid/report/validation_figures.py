"""Figure of a validation: differences and errors at the output times, one row of panels for each variable.

For sensitivities it shows the maximum over the parameters, each relative to its largest value. Events are in the tables
only: the variable of a guard is zero there for every program.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dae_hybrid.numerics.arrays import Array
from dae_hybrid.report import plotting
from dae_hybrid.report.validate import Validation

DIFFERENCE = {"linewidth": 1.0, "color": "C0", "label": "ours − ode15s"}
BARE = {"linewidth": 0.9, "color": "C1", "label": "ours − ode15s as it comes"}
THEIRS = {"linestyle": "none", "marker": "o", "markersize": 3.5, "markerfacecolor": "none", "color": "0.25",
          "label": "ode15s − truth", "clip_on": False}  # fmt: skip
OURS = {"linestyle": "none", "marker": "x", "markersize": 3.5, "color": "C3", "label": "ours − truth", "clip_on": False}
#: largest number of markers in a panel
MOST_MARKERS = 60
ROW_HEIGHT = 2.1  # inches
DPI = 110


def draw(found: Validation) -> Any:
    """A matplotlib Figure with states on the left and sensitivities on the right."""
    samples = found.witness.samples["trajectory"]
    names = [name for name in samples.values if name != "mode" and "/" not in name]
    figure = plotting.new_figure(
        len(names), 2, size=(9.0, ROW_HEIGHT * len(names) + 1.0), sharex=True, sharey=False, squeeze=False
    )
    for left, right, name in zip(figure.axes[::2], figure.axes[1::2], names, strict=True):
        derivatives = [other for other in samples.values if other.startswith(f"d{name}/")]
        _panel(left, found, [name], relative=False)
        _panel(right, found, derivatives, relative=True)
        left.set_ylabel(rf"$|\Delta {name}|$")
        right.set_ylabel(rf"$|\Delta\, \partial {name} / \partial p|$")
    figure.axes[0].set_title("states", fontsize="medium")
    figure.axes[1].set_title("sensitivities, relative to their largest values", fontsize="medium")
    for axes in figure.axes[-2:]:
        axes.set_xlabel("time $t$")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False, fontsize="small")
    figure.align_ylabels()
    return figure


def _panel(axes: Any, found: Validation, names: list[str], *, relative: bool) -> None:
    witness, computed = found.witness, found.computed["trajectory"]
    samples, bare = witness.samples["trajectory"], witness.bare.get("trajectory")
    sizes = {name: float(np.abs(samples.values[name]).max()) if relative else 1.0 for name in names}

    def off(one: Mapping[str, Array], other: Mapping[str, Array]) -> Array:
        """Maximum over the quantities; NaN, which breaks the line, at events and for zeros, which have no logarithm."""
        values = np.max([np.abs(one[name] - other[name]) / size for name, size in sizes.items() if size > 0], axis=0)
        values[np.concatenate((witness.rows.before, witness.rows.after))] = np.nan
        return np.where(values > 0, values, np.nan)

    plotting.mark_events(axes, witness.t[witness.rows.before])
    if bare is not None:
        axes.plot(witness.t, off(computed, bare.values), **BARE)
    axes.plot(witness.t, off(computed, samples.values), **DIFFERENCE)
    for one, style in ((samples.values, THEIRS), (computed, OURS)):
        error = off(one, samples.truth)
        known = np.flatnonzero(np.isfinite(error))
        known = known[:: known.size // MOST_MARKERS + 1]
        axes.plot(witness.t[known], error[known], **style)
    axes.set(yscale="log", xlim=(witness.t[0], witness.t[-1]))
