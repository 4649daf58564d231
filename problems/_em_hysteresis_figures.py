"""Figures 5 to 8 of Serban and Recuero (2019), section 5.2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import dae_hybrid as dh
from dae_hybrid.problems import em_hysteresis
from dae_hybrid.report import plotting

REFERENCE = {"linestyle": "none", "marker": "o", "markersize": 3.5, "markerfacecolor": "none", "color": "0.25"}
SYMBOLS = {"ka": "k_a", "kb": "k_b", "alpha": r"\alpha", "beta": r"\beta"}
STATES = {"u": "displacement $u$", "v": "velocity $v$", "z": "stress $z$"}


def draw(forward: dh.ForwardSensitivity, adjoint: dh.Gradient) -> Iterator[tuple[str, str, Any]]:
    """Yield the stem of the file, the caption and the figure."""
    run = adjoint.trajectory
    yield "em_hysteresis_fig5", "state trajectories (SR fig. 5)", _states(run)
    yield "em_hysteresis_fig6", "hysteresis loops and reversals (SR fig. 6)", _loops(run)
    yield "em_hysteresis_fig7", "sensitivities, t in [0, 4] (SR fig. 7)", _sensitivities(forward)
    yield "em_hysteresis_fig8", "adjoint variable lambda_1, t in [6, 8] (SR fig. 8)", _adjoint(adjoint)


def _states(run: dh.Trajectory) -> Any:
    figure = plotting.new_figure(3, sharex=True)
    exact = em_hysteresis.reference().states
    for axes, (name, label) in zip(figure.axes, STATES.items(), strict=True):
        run.plot(name, axes=axes)
        axes.plot(exact["t"], exact[name], label="20-digit reference", **REFERENCE)
        axes.set_ylabel(label)
    figure.axes[0].legend(frameon=False, loc="upper left")
    figure.axes[-1].set(xlabel="time $t$", xlim=em_hysteresis.t_span)
    figure.align_ylabels()
    return figure


def _loops(run: dh.Trajectory) -> Any:
    figure = plotting.new_figure(size=(plotting.WIDTH, 4.2))
    (axes,) = figure.axes
    axes.plot(*(plotting.line(run, name)[1] for name in "uz"), linewidth=1.0)
    reversals = [event.x_minus for event in run.events]
    u, _, z = zip(*reversals, strict=True)
    axes.plot(u, z, label="reversals", **(REFERENCE | {"markerfacecolor": "white"}))
    for i in range(3, len(run.events)):  # the first three overlap near the origin
        side = 1 if u[i] > 0 else -1  # labels outside of the loops
        axes.annotate(
            str(i + 1),
            (u[i], z[i]),
            xytext=(-3 * side, 3 * side),
            textcoords="offset points",
            fontsize=7,
            horizontalalignment="right" if side > 0 else "left",
            verticalalignment="bottom" if side > 0 else "top",
        )
    axes.set(xlabel=STATES["u"], ylabel=STATES["z"])
    axes.margins(0.07)
    axes.legend(frameon=False, loc="upper left")
    return figure


def _sensitivities(forward: dh.ForwardSensitivity) -> Any:
    end = 4.0
    runs = {name: plotting.with_gaps(forward.trajectory, forward[name]) for name in STATES}
    # derivatives with respect to beta are zero: the title says so instead of a panel
    largest = np.max([np.nanmax(np.abs(values), axis=0) for _, values in runs.values()], axis=0)
    columns = np.flatnonzero(largest).tolist()
    figure = plotting.new_figure(len(STATES), len(columns), size=(8.0, 5.0), sharex=True)
    panels = iter(figure.axes)
    for name, (t, values) in runs.items():
        shown = ~(t > end)  # keeps NaN, which breaks the line
        for j in columns:
            axes = next(panels)
            plotting.mark_events(axes, [event.time for event in forward.events if event.time <= end])
            axes.plot(t[shown], values[shown, j], linewidth=1.1)
            axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0), useMathText=True)
            axes.set_ylabel(rf"$\partial {name} / \partial {SYMBOLS[forward.parameters[j]]}$", labelpad=2)
            axes.set_xlim(0.0, end)
    for axes in figure.axes[-len(columns) :]:
        axes.set_xlabel("time $t$")
    zero = [SYMBOLS[name] for j, name in enumerate(forward.parameters) if j not in columns]
    if zero:
        figure.suptitle(f"Sensitivities; those with respect to ${', '.join(zero)}$ are zero", fontsize="medium")
    figure.align_ylabels()
    return figure


def _adjoint(adjoint: dh.Gradient) -> Any:
    start, end = 6.0, 8.0
    figure = plotting.new_figure(size=(plotting.WIDTH, 2.8))
    (axes,) = figure.axes
    t, values = plotting.adjoint_lines(adjoint, start, end)
    times = [event.time for event in adjoint.trajectory.events if start <= event.time <= end]
    plotting.mark_events(axes, times)
    axes.plot(t, values["u"], linewidth=1.2)
    before, after = (adjoint.adjoint(times, side)["u"] for side in ("left", "right"))
    for time, low, high in zip(times, before, after, strict=True):
        axes.plot([time, time], [low, high], linewidth=0.8, linestyle=(0, (2, 2)), color="0.25")
    axes.plot(times, before, label="before and after a reversal", **(REFERENCE | {"markerfacecolor": "white"}))
    axes.plot(times, after, **(REFERENCE | {"markerfacecolor": "white"}))
    axes.set(xlabel="time $t$", ylabel=r"$\lambda_1$", xlim=(start, end), xticks=np.arange(start, end + 0.1, 0.5))
    axes.legend(frameon=False, loc="upper right")
    return figure
