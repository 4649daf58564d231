"""Figures 2 and 3 of Serban and Recuero (2019), section 5.1."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import dae_hybrid as dh
from dae_hybrid.problems import hybrid_ode
from dae_hybrid.report import plotting

REFERENCE = {"linestyle": "none", "marker": "o", "markersize": 3.5, "markerfacecolor": "none", "color": "0.25"}


def draw(forward: dh.ForwardSensitivity, adjoint: dh.Gradient) -> Iterator[tuple[str, str, Any]]:
    """Yield the stem of the file, the caption and the figure."""
    yield "hybrid_ode_fig2", "state and sensitivity (SR fig. 2)", _state_and_sensitivity(forward)
    yield "hybrid_ode_fig3", "adjoint variable (SR fig. 3)", _adjoint(adjoint)


def _state_and_sensitivity(forward: dh.ForwardSensitivity) -> Any:
    figure = plotting.new_figure(2, sharex=True)
    exact = hybrid_ode.reference().states
    for axes, name, values, label in (
        (figure.axes[0], "x", forward.trajectory["x"], "$x$"),
        (figure.axes[1], "s", forward["x"][:, 0], r"$s = \mathrm{d}x/\mathrm{d}p$"),
    ):
        plotting.mark_events(axes, [event.time for event in forward.events])
        axes.plot(*plotting.with_gaps(forward.trajectory, values), linewidth=1.2, label="computed")
        axes.plot(exact["t"], exact[name], label="exact", **REFERENCE)
        axes.set_ylabel(label)
    figure.axes[0].legend(frameon=False, loc="lower right")
    figure.axes[1].set_xlabel("$t$")
    figure.axes[1].set_xlim(hybrid_ode.t_span)
    return figure


def _adjoint(adjoint: dh.Gradient) -> Any:
    figure = plotting.new_figure(size=(plotting.WIDTH, 2.8))
    (axes,) = figure.axes
    exact = hybrid_ode.reference().events
    t, values = plotting.adjoint_lines(adjoint)
    plotting.mark_events(axes, exact["t"])
    # the adjoint of SR eq. 43 is minus dG/dx
    axes.plot(t, -values["x"], linewidth=1.2, label="computed")
    axes.plot(exact["t"], exact["lambda_minus"], label="exact, before and after", **REFERENCE)
    axes.plot(exact["t"], exact["lambda_plus"], **REFERENCE)
    axes.set(xlabel="$t$", ylabel=r"$\lambda$", xlim=hybrid_ode.t_span)
    axes.legend(frameon=False, loc="lower right")
    return figure
