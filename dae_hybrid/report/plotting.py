"""Plots of trajectories. Needs matplotlib (extra ``[plot]``), which is imported with the first plot.

Figures are `matplotlib.figure.Figure` objects without pyplot: there is no global list of figures, no window opens, and
no display is needed. ``figure.savefig("run.png")`` writes a figure, and notebooks show it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.errors import DaeHybridError, OptionError
from dae_hybrid.numerics.arrays import Array

if TYPE_CHECKING:
    from dae_hybrid.sensitivity.results import Gradient
    from dae_hybrid.trajectory.trajectory import Segment, Trajectory

#: style of event times
EVENT_LINE = {"color": "0.75", "linewidth": 0.6, "zorder": 0}
#: largest number of events that are drawn as lines
MOST_EVENT_LINES = 200
#: smallest number of points of a line along a run
FINE = 1000
WIDTH, PANEL_HEIGHT = 6.4, 1.9  # inches


class PlotError(DaeHybridError, ImportError):
    """matplotlib is not installed."""


def new_figure(rows: int = 1, columns: int = 1, *, size: tuple[float, float] | None = None, **options: Any) -> Any:
    """A matplotlib Figure with a grid of axes, without pyplot.

    Parameters
    ----------
    rows, columns : int
        Numbers of axes; ``figure.axes`` contains them row by row.
    size : (float, float), optional
        Width and height in inches.
    **options
        Passed to `matplotlib.figure.Figure.subplots`, such as ``sharex=True``.

    Raises
    ------
    PlotError
        matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as reason:
        raise PlotError(
            "Pictures need matplotlib, which is not installed.",
            remedy='Install it by: pip install "dae-hybrid[plot]"',
        ) from reason
    figure = Figure(figsize=size or (WIDTH * columns, PANEL_HEIGHT * rows + 0.6), layout="constrained")
    figure.subplots(rows, columns, **options)
    return figure


def save(figure: Any, path: str | Path, *, dpi: int = 150) -> Path:
    """Write a figure to a file in the format of its suffix; create missing folders.

    Raises
    ------
    OptionError
        matplotlib does not support the format.
    """
    path = checked_picture(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # without matplotlib's version, the same figure gives the same file
    plain = {"metadata": {"Software": None}} if path.suffix.lower() == ".png" else {}
    figure.savefig(path, dpi=dpi, **plain)
    return path


def checked_picture(path: str | Path) -> Path:
    """Check the suffix of a picture; return its path.

    Raises
    ------
    OptionError
        matplotlib does not support the format.
    """
    path, legal = Path(path), new_figure(1, 1).canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in legal:
        raise OptionError(
            f"A picture cannot be written to {str(path)!r}: its suffix names no known format.",
            remedy=f"Legal suffixes: {', '.join(f'.{kind}' for kind in sorted(legal))}.",
        )
    return path


@dataclass(frozen=True, eq=False)
class Film:
    """An animation: a figure that is redrawn for every frame.

    Attributes
    ----------
    figure : matplotlib.figure.Figure
    update : callable
        Draws a frame, given by number, into the figure.
    frames : int
    rate : float
        Frames per second.
    """

    figure: Any
    update: Callable[[int], Any]
    frames: int
    rate: float

    def save(self, path: str | Path, *, dpi: int = 72) -> Path:
        """Write an animated GIF; create missing folders.

        Raises
        ------
        OptionError
            The suffix is not ``.gif``.
        """
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from PIL import Image  # a dependency of matplotlib

        path = Path(path)
        if path.suffix.lower() != ".gif":
            raise OptionError(f"A film cannot be written to {str(path)!r}: its suffix must be .gif.")
        path.parent.mkdir(parents=True, exist_ok=True)
        self.figure.set_dpi(dpi)
        canvas, images = FigureCanvasAgg(self.figure), []
        for frame in range(self.frames):
            self.update(frame)
            canvas.draw()
            picture = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
            images.append(picture.quantize(colors=32, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE))
        images[0].save(
            path, save_all=True, append_images=images[1:], duration=round(1000 / self.rate), loop=0, optimize=True
        )
        return path


def with_gaps(trajectory: Trajectory, values: Array) -> tuple[Array, Array]:
    """Output times and values with NaN between segments, so that a line breaks where the run jumps.

    Parameters
    ----------
    trajectory : Trajectory
    values : ndarray, shape (n_t, ...)
        Values at its output times, such as ``trajectory["u"]`` or a sensitivity.

    Returns
    -------
    t : ndarray, shape (n,)
    values : ndarray, shape (n, ...)
        With one row of NaN after every segment except the last.
    """
    ends = np.cumsum([len(segment.t) for segment in trajectory.pieces])[:-1]
    return np.insert(trajectory.t, ends, np.nan), np.insert(values, ends, np.nan, axis=0)


def adjoint_lines(
    gradient: Gradient, t_start: float | None = None, t_end: float | None = None, *, points: int = 60
) -> tuple[Array, dict[str, Array]]:
    """Adjoint variables along a run, with NaN between segments, so that lines break at jumps.

    Parameters
    ----------
    gradient : Gradient
        Result of `adjoint_gradient`.
    t_start, t_end : float, optional
        Part of the run; the whole run by default.
    points : int
        Number of points in every segment, including both ends.

    Returns
    -------
    t : ndarray, shape (n,)
    values : dict of ndarray, by variable
        Values of `Gradient.adjoint` at `t`; NaN at the breaks.
    """
    run = gradient.trajectory
    first = run.t_span[0] if t_start is None else t_start
    last = run.final[0] if t_end is None else t_end
    spans = [(max(s.t_start, first), min(s.t_end, last)) for s in run.segments]
    grids = [np.linspace(a, b, points) for a, b in spans if b > a]
    ends = [float(grid[-1]) for grid in grids]
    inner = gradient.adjoint(np.concatenate([grid[:-1] for grid in grids]))
    outer = gradient.adjoint(np.array(ends), side="left")  # the end of a segment is before the event
    t = np.concatenate([np.append(grid, np.nan) for grid in grids])[:-1]
    values = {}
    for name, inside in inner.items():
        rows = inside.reshape(len(grids), points - 1, *inside.shape[1:])
        breaks = np.full_like(outer[name], np.nan)
        whole = np.concatenate((rows, outer[name][:, None], breaks[:, None]), axis=1)
        values[name] = whole.reshape(-1, *inside.shape[1:])[:-1]
    return t, values


def mark_events(axes: Any, times: Any) -> None:
    """Draw thin vertical lines at event times, unless there are more than `MOST_EVENT_LINES`."""
    distinct = np.unique(np.asarray(times, dtype=float))
    if distinct.size <= MOST_EVENT_LINES:
        for time in distinct:
            axes.axvline(time, **EVENT_LINE)


def plot_trajectory(trajectory: Trajectory, *names: str, axes: Any = None) -> Any:
    """Draw variables over time, one panel each, with jumps as gaps and event times as thin lines.

    Parameters
    ----------
    trajectory : Trajectory
        Result of `simulate`; without ``t_eval`` it contains both sides of every event.
    *names : str
        Variables and memory; all variables by default.
    axes : matplotlib Axes or sequence of them, optional
        Axes to draw in: one for all names, or one for each. By default a new figure.

    Returns
    -------
    matplotlib.figure.Figure
        The figure.

    Raises
    ------
    PlotError
        matplotlib is not installed.
    OptionError
        A name is unknown, or the number of axes does not match the names.

    Examples
    --------
    >>> import dae_hybrid as dh
    >>> from dae_hybrid.problems import em_hysteresis
    >>> sol = dh.simulate(em_hysteresis.system(), (0, 3))
    >>> figure = sol.plot("u", "z")  # plot_trajectory(sol, "u", "z")
    >>> [panel.get_ylabel() for panel in figure.axes]
    ['u', 'z']
    """
    names = names or tuple(name for name in trajectory.names if name not in trajectory.system.memory)
    unknown = [name for name in names if name not in trajectory.names]
    if unknown:
        raise OptionError(
            f"There is no variable {', '.join(map(repr, unknown))} to plot.",
            remedy=f"Variables: {', '.join(trajectory.names)}.",
        )
    if axes is None:
        figure = new_figure(len(names), sharex=True)
        panels = list(figure.axes)
        panels[-1].set_xlabel("t")
    else:
        panels = list(np.ravel(np.array(axes, dtype=object)))
        if len(panels) not in (1, len(names)):
            raise OptionError(f"{len(panels)} axes for {len(names)} variables: give one for all, or one for each.")
        figure = panels[0].figure
    together = len(panels) == 1 and len(names) > 1
    for panel in panels:
        mark_events(panel, [event.time for event in trajectory.events])
    for name, panel in zip(names, panels * len(names) if together else panels, strict=False):
        _draw(panel, trajectory, name, legend=together)
        if not together:
            panel.set_ylabel(trajectory.system.labels.get(name, name))
    for panel in panels:
        if panel.get_legend_handles_labels()[1]:
            panel.legend(frameon=False, fontsize="small")
    return figure


def line(trajectory: Trajectory, name: str) -> tuple[Array, Array]:
    """A variable, memory or signal as a line that breaks where the run jumps.

    Dense output fills long steps, so that the line is as smooth as the solution.

    Returns
    -------
    t : ndarray, shape (n,)
        Outputs, both ends of every segment, and points between; NaN between segments.
    values : ndarray, shape (n, size)
    """
    memory, times, values = trajectory.system.memory, [np.zeros(0)], [np.zeros((0, trajectory.width(name)))]
    longest = (trajectory.final[0] - trajectory.t_span[0]) / FINE
    for segment in trajectory.pieces:
        # t_eval rarely contains event times: without the ends, continuous variables would have gaps, too
        t = np.concatenate(([segment.t_start], segment.t, [segment.t_end]))
        layout = segment.mode.variables
        if name in layout:
            x = np.vstack((segment.x_start, segment.values, segment.x_end))[:, layout[name]]
            if trajectory.complete and trajectory.kept == "all" and np.diff(t).max() > longest:
                t, x = _filled_in(segment, t, x, layout[name], longest)
        elif name in memory:
            t, _ = _between(t, longest)
            x = trajectory.held(name, segment.memory, t)
        else:
            x = np.full((len(t), trajectory.width(name)), np.nan)
        times += [t, np.array([np.nan])]
        values += [x, np.full((1, x.shape[1]), np.nan)]
    return np.concatenate(times), np.concatenate(values)


def _between(t: Array, longest: float) -> tuple[Array, NDArray[np.intp]]:
    """Refine times so that none are farther apart than `longest`; also the indices of the given times."""
    counts = np.maximum(np.ceil(np.diff(t) / longest), 1).astype(int) if longest > 0 else np.ones(len(t) - 1, int)
    pieces = [np.linspace(a, b, n, endpoint=False) for a, b, n in zip(t[:-1], t[1:], counts.tolist(), strict=True)]
    return np.concatenate((*pieces, t[-1:])), np.append(0, np.cumsum(counts))


def _filled_in(segment: Segment, t: Array, x: Array, part: slice, longest: float) -> tuple[Array, Array]:
    fine, known = _between(t, longest)
    values = segment.dense(fine)[:, part]
    values[known] = x
    return fine, values


def _draw(axes: Any, trajectory: Trajectory, name: str, *, legend: bool) -> None:
    t, values = line(trajectory, name)
    label = trajectory.system.labels.get(name, name)
    for i, column in enumerate(values.T):
        entry = f"[{i}]" if len(values.T) > 1 else ""
        # a panel with one variable has the label at its axis
        text = f"{label if legend else name}{entry}" if legend or entry else None
        axes.plot(t, column, linewidth=1.2, label=text)
