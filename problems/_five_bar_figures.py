"""The figures of Corner, Sandu and Sandu (2019, section 7; 2020, section 4), and an animation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dae_hybrid as dh
from dae_hybrid.mechanics import Reduced, animate, constraint_residuals, draw_mechanism, places
from dae_hybrid.problems import five_bar
from dae_hybrid.problems._five_bar_results import FORMULATIONS, FiveBarReproduction
from dae_hybrid.report import plotting

Array = NDArray[np.float64]
PARAMETERS = five_bar.PARAMETERS[:2]
LABELS = {"L_s1": "$L_{01}$", "L_s2": "$L_{02}$"}
COLORS = ("tab:blue", "tab:red")
DASHED = {"color": "black", "linestyle": (0, (2, 3)), "linewidth": 1.0}
#: relative step of the finite differences; times of the figures
STEP, TIMES = 1e-5, np.linspace(*five_bar.t_span, 2001)
#: finite differences closer to an event than this compare different sides of it
NEAR = 2e-3
#: smallest residual drawn on the logarithmic axis
FLOOR = 1e-16


def draw(result: FiveBarReproduction) -> Iterator[tuple[str, str, Any]]:
    """Yield the stem of the file, the caption and the figure or animation."""
    mech = five_bar.mechanism("elastic", quadratures=True)
    system = mech.build(Reduced(independent=("x2", "y2")))
    fsa = dh.forward_sensitivity(system, five_bar.t_span, wrt=PARAMETERS, **five_bar.tolerances)
    run, difference = fsa.trajectory, _differences(system)
    yield "five_bar_mechanism", "the mechanism at the start (2019 fig. 3a; 2020 fig. 1a)", _mechanism(mech, run)
    yield "five_bar_residuals", "residuals of the constraints (2019 fig. 3b; 2020 fig. 1b)", _residuals()
    yield "five_bar_point2", "position and velocity of point 2 (2019 fig. 4; 2020 fig. 2)", _point(run)
    yield (
        "five_bar_sensitivities",
        "their sensitivities, with finite differences (2019 fig. 5)",
        _sensitivities(fsa, difference, {"y2": "y_2", "vy2": r"\dot y_2"}),
    )
    yield "five_bar_quadratures", "the quadratures z (2019 fig. 6; 2020 fig. 3b to 5b)", _quadratures(run)
    yield (
        "five_bar_quadrature_sensitivities",
        "their sensitivities: direct, adjoint, finite differences (2019 fig. 7; 2020 fig. 3a to 5a)",
        _sensitivities(fsa, difference, {"z1": "z_1", "z2": "z_2", "z3": "z_3"}, result.cases["elastic"].adjoint),
    )
    latch = five_bar.mechanism("latch")
    sol = dh.simulate(five_bar.system("latch"), five_bar.t_span, **five_bar.tolerances)
    yield "five_bar_latch", "the case with a latch", _latch(sol)
    two = next(link.end for link in latch.links if link.end.name == "2")
    yield "five_bar", "the mechanism in motion, with the latch", _film(latch, sol, two)


def _differences(system: dh.HybridSystem) -> dict[str, Array]:
    """Central differences of trajectories at `TIMES`, (n_t, 2) by name; NaN next to events."""
    columns: dict[str, list[Array]] = {}
    near = np.zeros(TIMES.size, dtype=bool)
    for name in PARAMETERS:
        value = float(system.nominal[system.parameter_indices(name)[0]])
        runs = []
        for sign in (1, -1):
            shifted = {name: value * (1 + sign * STEP)}
            runs.append(dh.simulate(system, five_bar.t_span, parameters=shifted, t_eval=TIMES, rtol=1e-12, atol=1e-14))
        for event in runs[0].events:
            near |= np.abs(TIMES - event.time) < NEAR
        for key in ("y2", "vy2", "z1", "z2", "z3"):
            columns.setdefault(key, []).append((runs[0][key] - runs[1][key]) / (2 * STEP * value))
    return {key: np.where(near[:, None], np.nan, np.column_stack(both)) for key, both in columns.items()}


def _mechanism(mech: Any, run: dh.Trajectory) -> Any:
    figure = draw_mechanism(mech, run)
    (axes,) = figure.axes
    axes.axhline(five_bar.GROUND, color="0.5", linewidth=0.8)
    names = {p.name: p for link in mech.links for p in (link.start, link.end)}
    at = places(mech, run, list(names.values()), [0.0])[0]
    for name, (x, y) in zip(names, at, strict=True):
        axes.annotate(name, (x, y), xytext=(6, 5), textcoords="offset points")
    axes.set_ylim(five_bar.GROUND - 0.2)
    axes.set_title("")
    return figure


def _residuals() -> Any:
    figure = plotting.new_figure(2, sharex=True)
    mech = five_bar.mechanism("elastic")
    for label, formulation in FORMULATIONS.items():
        run = dh.simulate(five_bar.system("elastic", formulation), five_bar.t_span, t_eval=TIMES, **five_bar.tolerances)
        for axes, values in zip(figure.axes, constraint_residuals(mech, run), strict=True):
            axes.semilogy(run.t, np.maximum(values, FLOOR), linewidth=0.9, label=label)
    for axes, label in zip(figure.axes, (r"$\max|\Phi|$ [m$^2$]", r"$\max|\Phi_q v|$ [m$^2$/s]"), strict=True):
        axes.set_ylabel(label)
    figure.axes[1].set(xlabel="t [s]", xlim=five_bar.t_span)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), frameon=False, fontsize="small", loc="outside right")
    figure.set_size_inches(plotting.WIDTH + 1.6, figure.get_figheight())
    return figure


def _point(run: dh.Trajectory) -> Any:
    figure = run.plot("y2", "vy2")
    figure.axes[0].axhline(five_bar.GROUND, color="0.5", linewidth=0.8)
    for axes, label in zip(figure.axes, ("$y_2$ [m]", r"$\dot y_2$ [m/s]"), strict=True):
        axes.set_ylabel(label)
    figure.axes[-1].set(xlabel="t [s]", xlim=five_bar.t_span)
    return figure


def _sensitivities(
    fsa: dh.ForwardSensitivity, difference: dict[str, Array], names: dict[str, str], adjoint: dh.Gradient | None = None
) -> Any:
    figure = plotting.new_figure(len(names), sharex=True)
    for i, (axes, (name, symbol)) in enumerate(zip(figure.axes, names.items(), strict=True)):
        plotting.mark_events(axes, [event.time for event in fsa.events])
        t, values = plotting.with_gaps(fsa.trajectory, fsa[name])
        for j, (parameter, color) in enumerate(zip(PARAMETERS, COLORS, strict=True)):
            axes.plot(t, values[:, j], color=color, linewidth=1.2, label=f"by {LABELS[parameter]}, direct")
            axes.plot(TIMES, difference[name][:, j], **DASHED, label="finite differences" if j else None)
            if adjoint is not None:
                axes.plot(five_bar.t_span[1], adjoint.gradient[i, j], "o", color=color, clip_on=False,
                          label="adjoint" if j else None)  # fmt: skip
        axes.set_ylabel(rf"$\mathrm{{d}}{symbol} / \mathrm{{d}}\rho$")
    figure.axes[0].legend(frameon=False, fontsize="small", loc="upper left")
    figure.axes[-1].set(xlabel="t [s]", xlim=five_bar.t_span)
    figure.align_ylabels()
    return figure


def _quadratures(run: dh.Trajectory) -> Any:
    figure = run.plot("z1", "z2", "z3")
    labels = (r"$z_1 = \int \dot y_2$", r"$z_2 = \int \ddot y_2$", r"$z_3 = \int \dot y_2^2 + \ddot y_2^2$")
    for axes, label in zip(figure.axes, labels, strict=True):
        axes.set_ylabel(label)
    figure.axes[-1].set(xlabel="t [s]", xlim=five_bar.t_span)
    figure.align_ylabels()
    return figure


def _latch(sol: dh.Trajectory) -> Any:
    figure = sol.plot("y2", "vx2", "lambda_ground")
    labels = ("$y_2$ [m]", r"$\dot x_2$ [m/s]", r"$\lambda_{ground} = -N$ [N]")
    for axes, label in zip(figure.axes, labels, strict=True):
        axes.set_ylabel(label)
    figure.axes[-1].set(xlabel="t [s]", xlim=five_bar.t_span)
    figure.align_ylabels()
    return figure


def _film(mech: Any, sol: dh.Trajectory, point: Any) -> plotting.Film:
    film = animate(mech, sol, rate=20, speed=0.5, trace=point)
    film.figure.axes[0].axhline(five_bar.GROUND, color="0.5", linewidth=0.8)
    return film
