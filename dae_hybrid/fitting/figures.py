"""Pictures of fits: data and predictions, residuals, correlations, condition indices, profiles, bands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import ndtri

from dae_hybrid.errors import OptionError
from dae_hybrid.fitting.experiment import Series
from dae_hybrid.report.plotting import new_figure

if TYPE_CHECKING:
    from dae_hybrid.fitting.bands import Bands
    from dae_hybrid.fitting.inference import Conditioning
    from dae_hybrid.fitting.prediction import Prediction
    from dae_hybrid.fitting.profile import Profile
    from dae_hybrid.fitting.result import Fit

#: points of a predicted line
FINE = 200
#: largest number of panels in a row
COLUMNS = 4
PANEL = (3.0, 2.2)  # inches
#: largest number of parameters whose correlations are written into the picture
MAX_WRITTEN = 12
DATA = {"color": "black", "marker": "o", "markersize": 3.5, "linestyle": "none"}
LINE, BAND = "C0", {"color": "C0", "alpha": 0.2, "linewidth": 0}


def _grid(count: int, **options: Any) -> tuple[Any, list[Any]]:
    """A figure with this number of panels; the last ones of the grid are hidden."""
    columns = min(count, COLUMNS)
    rows = -(-count // columns)
    figure = new_figure(rows, columns, size=(PANEL[0] * max(columns, 2), PANEL[1] * rows + 0.4), **options)
    for axes in figure.axes[count:]:
        axes.set_visible(False)
    return figure, list(figure.axes[:count])


def plot_fit(fit: Fit, predictions: Sequence[Prediction], names: Sequence[str], level: float | None) -> Any:
    """See `Fit.plot`."""
    panels = [(p, s) for p in predictions for s in p.experiment.series if not names or s.name in names]
    unknown = [name for name in names if name not in {s.name for _, s in panels}]
    if not panels or unknown:
        raise OptionError(
            f"There are no data of {', '.join(unknown) or 'variables'} over time to plot.",
            remedy=f"Data: {', '.join(sorted({s.name for p in predictions for s in p.experiment.series})) or 'none'}.",
        )
    figure, axes = _grid(len(panels))
    for (prediction, series), panel in zip(panels, axes, strict=True):
        _draw_series(fit, prediction, series, panel, level)
        title = f"{prediction.name}: " if len(predictions) > 1 else ""
        label = prediction.system.labels.get(series.name, series.name)
        panel.set_title(f"{title}{label}" if len(label) < 30 else f"{title}{series.name}", fontsize="small")
        panel.tick_params(labelsize="x-small")
        panel.set_xlabel("t", fontsize="small")
    return figure


def _draw_series(fit: Fit, prediction: Prediction, series: Series, panel: Any, level: float | None) -> None:
    t0, t1 = prediction.experiment.t_span
    times = np.unique(np.concatenate((np.linspace(t0, t1, FINE), series.t)))
    call: dict[str, Any] = {"experiment": prediction.name, "t_span": (t0, t1)}
    if level is None:
        found = prediction.output_map(series.name, times, (t0, t1)).values(prediction.parameters(fit.estimates))
        lines, low, high = found, found, found
    else:
        band = fit.predict(series.name, times, level=level, **call)
        lines, low, high = (
            v.reshape(len(times), -1) for v in (band[series.name], band.lower(series.name), band.upper(series.name))
        )
    for j in range(lines.shape[1]):
        panel.plot(times, lines[:, j], color=f"C{j}", linewidth=1.2)
        if level is not None:
            panel.fill_between(times, low[:, j], high[:, j], **{**BAND, "color": f"C{j}"})
        panel.plot(series.t, series.values[:, j], **{**DATA, "color": "black" if lines.shape[1] == 1 else f"C{j}"})


def plot_residuals(fit: Fit) -> Any:
    """See `Fit.plot_residuals`."""
    figure, (left, right) = _grid(2)
    for prediction in fit.misfit.predictions:
        left.plot(prediction.times, fit.residuals[prediction.name], ".", markersize=4)
    left.axhline(0.0, color="0.6", linewidth=0.8)
    left.set_xlabel("t")
    left.set_ylabel("residual / sigma")
    values = np.sort(np.concatenate(list(fit.residuals.values())))
    quantiles = ndtri((np.arange(len(values)) + 0.5) / len(values))
    right.plot(quantiles, values, ".", color="black", markersize=4)
    right.plot(quantiles, quantiles * np.sqrt(fit.variance), color="0.6", linewidth=0.8)
    right.set_xlabel("normal quantile")
    return figure


def plot_correlation(fit: Fit) -> Any:
    """See `Fit.plot_correlation`."""
    n, correlation = len(fit.labels), fit.correlation
    size = min(2.0 + 0.45 * n, 9.0)
    figure = new_figure(size=(size + 1.0, size))
    axes = figure.axes[0]
    image = axes.imshow(correlation, cmap="RdBu_r", vmin=-1, vmax=1)
    axes.set_xticks(range(n), fit.labels, rotation=90)
    axes.set_yticks(range(n), fit.labels)
    if n <= MAX_WRITTEN:
        for (i, j), value in np.ndenumerate(correlation):
            shade = "white" if abs(value) > 0.6 else "black"
            axes.text(j, i, f"{value:.2f}", ha="center", va="center", fontsize="small", color=shade)
    figure.colorbar(image, shrink=0.8, label="correlation")
    return figure


def plot_conditioning(conditioning: Conditioning) -> Any:
    """See `Conditioning.plot`."""
    n = len(conditioning.labels)
    figure = new_figure(1, 2, size=(3.2 + 2.0 + 0.45 * n, 1.4 + 0.35 * max(n, 3)))
    left, right = figure.axes
    indices = np.where(np.isfinite(conditioning.indices), conditioning.indices, np.nan)
    left.barh(range(n), indices, color=LINE)
    left.set_xscale("log")
    left.set_xlim(left=0.9)
    left.axvline(30.0, color="0.5", linestyle="--", linewidth=0.8)
    left.set_yticks(range(n), [f"{i + 1}" for i in range(n)])
    left.invert_yaxis()
    left.set_xlabel("condition index")
    left.set_ylabel("combination")
    image = right.imshow(conditioning.directions, cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto")
    right.set_xticks(range(n), conditioning.labels, rotation=90)
    right.set_yticks([])
    figure.colorbar(image, label="coefficient")
    return figure


def plot_profile(profile: Profile) -> Any:
    """See `Profile.plot`."""
    figure = new_figure(size=(4.6, 3.2))
    axes = figure.axes[0]
    axes.plot(profile.values, np.abs(profile.root), ".-", color=LINE, linewidth=1.2, label="profile")
    if np.isfinite(profile.standard_error) and profile.standard_error > 0:
        ends = np.array([profile.values[0], profile.estimate, profile.values[-1]])
        linear = np.abs(ends - profile.estimate) / profile.standard_error
        axes.plot(ends, linear, color="0.6", linestyle="--", linewidth=1.0, label="linear approximation")
    axes.axhline(profile.quantile, color="0.5", linewidth=0.8)
    for end in profile.interval:
        if np.isfinite(end):
            axes.axvline(end, color=LINE, linewidth=0.8, linestyle=":")
    axes.set_ylim(0, 1.4 * profile.quantile)
    axes.set_xlabel(profile.label)
    axes.set_ylabel("|signed root|")
    axes.set_title(f"{100 * profile.level:g} % interval: {_interval(profile.interval)}", fontsize="small")
    axes.legend(frameon=False, fontsize="small")
    return figure


def plot_bands(bands: Bands) -> Any:
    """See `Bands.plot`."""
    figure, axes = _grid(len(bands.names))
    for name, panel in zip(bands.names, axes, strict=True):
        values, low, high = (v.reshape(len(bands.t), -1) for v in (bands[name], bands.lower(name), bands.upper(name)))
        for j in range(values.shape[1]):
            panel.plot(bands.t, values[:, j], color=f"C{j}", linewidth=1.2)
            panel.fill_between(bands.t, low[:, j], high[:, j], **{**BAND, "color": f"C{j}"})
        panel.set_ylabel(name)
        panel.set_xlabel("t")
    return figure


def _interval(interval: tuple[float, float]) -> str:
    return " to ".join(f"{end:.4g}" if np.isfinite(end) else "open" for end in interval)
