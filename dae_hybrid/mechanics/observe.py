"""Derived results of a run of a mechanism: positions of points, residuals of constraints, drawings, animations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import casadi as ca
import numpy as np
from numpy.typing import ArrayLike, NDArray

from dae_hybrid.errors import OptionError
from dae_hybrid.mechanics.bodies import WrittenOut
from dae_hybrid.mechanics.equations import EquationsOfMotion
from dae_hybrid.mechanics.mechanism import Mechanism
from dae_hybrid.mechanics.planar import Point
from dae_hybrid.numeric_input import real_array
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.report import plotting
from dae_hybrid.trajectory.trajectory import Side, Trajectory

BAR = {"color": "tab:blue", "linewidth": 3.0, "solid_capstyle": "round"}
SPRING = {"color": "tab:orange", "linewidth": 1.0, "linestyle": "--"}
JOINT = {"color": "black", "marker": "o", "markersize": 4.0, "linestyle": "none"}


def constraint_residuals(mechanism: Mechanism, trajectory: Trajectory) -> tuple[Array, Array]:
    """Residuals of the constraints of a run at the output times.

    Returns
    -------
    positions, velocities : ndarray, each of shape (n_t,)
        The largest ``|Phi|`` and ``|Phi_q v + Phi_t|`` in the active mode; 0 in modes without constraints.

    Examples
    --------
    >>> import dae_hybrid as dh
    >>> from dae_hybrid.mechanics import constraint_residuals
    >>> from dae_hybrid.problems import pendulum_with_stop
    >>> sol = dh.simulate(pendulum_with_stop.system(), (0, 5))
    >>> positions, velocities = constraint_residuals(pendulum_with_stop.mechanism(), sol)
    >>> bool(positions.max() < 1e-14)
    True
    """
    equations = EquationsOfMotion(mechanism)
    found = [np.zeros(trajectory.t.size), np.zeros(trajectory.t.size)]
    for mode, motion in equations.motions.items():
        here = np.flatnonzero(trajectory.modes == mode)
        if not (motion.m and here.size):
            continue
        symbols, values = _values(mechanism, trajectory, here)
        function = ca.Function("residuals", symbols, [motion.phi, motion.velocity])
        for result, rows in zip(found, function.map(here.size)(*values), strict=True):
            result[here] = np.abs(np.asarray(rows)).max(axis=0)
    return found[0], found[1]


def _values(mechanism: Mechanism, trajectory: Trajectory, rows: NDArray[np.intp]) -> tuple[list[ca.MX], list[Any]]:
    """Symbols of positions, velocities, memory, parameters and time, and their values at output times."""
    symbols, values = [mechanism.time], [trajectory.t[None, rows]]
    for d in mechanism.declarations.values():
        if d.kind in ("differential", "algebraic") and d.name in trajectory.names:
            symbols.append(d.symbol)
            values.append(trajectory[d.name][rows].reshape(rows.size, -1).T)
    owners = np.repeat(np.arange(len(trajectory.segments)), [len(segment.t) for segment in trajectory.segments])
    return _with_constants(mechanism, trajectory, symbols, values, owners[rows])


def _with_constants(
    mechanism: Mechanism, trajectory: Trajectory, symbols: list[ca.MX], values: list[Any], owners: Any
) -> tuple[list[ca.MX], list[Any]]:
    """Symbols and values, extended by memory, signals and parameters; `owners` are the segments of the columns."""
    held, layout = trajectory.system.memory, trajectory.system.parameters
    for d in mechanism.of_kind("memory"):
        symbols.append(d.symbol)
        values.append(np.column_stack([trajectory.segments[i].memory[held[d.name]] for i in owners]))
    for d in mechanism.of_kind("parameter"):
        symbols.append(d.symbol)
        values.append(np.tile(trajectory.parameters[layout[d.name]][:, None], len(owners)))
    return symbols, values


def places(mechanism: Mechanism, trajectory: Trajectory, points: Sequence[Point], t: ArrayLike) -> Array:
    """Positions of planar points, free or on the ground, at given times.

    Returns
    -------
    ndarray, shape (n_t, n_points, 2)
    """
    side: Side = "right"
    trajectory(t, side)  # checks the times
    times = np.atleast_1d(real_array(t))
    at, order = trajectory(times, side), np.unique(times, return_inverse=True)
    owners = np.asarray(trajectory.owners(order[0], side))[order[1].reshape(-1)]
    known = [c for c in mechanism.coordinates.values() if c.name in at]
    symbols = [mechanism.time, *(c.q for c in known)]
    values = [times[None, :], *(at[c.name].reshape(times.size, -1).T for c in known)]
    symbols, values = _with_constants(mechanism, trajectory, symbols, values, owners)
    positions = WrittenOut(mechanism.bodies.values())([ca.vertcat(*(p.position for p in points))])
    function = ca.Function("places", symbols, positions)
    found = np.asarray(function.map(times.size)(*values))
    return found.T.reshape(times.size, len(points), 2)


def draw_mechanism(mechanism: Mechanism, trajectory: Trajectory, t: float = 0.0, *, axes: Any = None) -> Any:
    """Draw the bars, springs and joints of a planar mechanism at a given time.

    Parameters
    ----------
    t : float
    axes : matplotlib Axes, optional
        Axes to draw in; a new figure by default.

    Returns
    -------
    matplotlib.figure.Figure

    Raises
    ------
    OptionError
        The mechanism has no bars or springs to draw.
    PlotError
        matplotlib is not installed.
    """
    scene = _Scene(mechanism, trajectory, np.array([t], dtype=float), axes)
    scene.show(0)
    return scene.axes.figure


def animate(
    mechanism: Mechanism,
    trajectory: Trajectory,
    *,
    rate: float = 20.0,
    speed: float = 1.0,
    trace: Point | None = None,
    axes: Any = None,
) -> plotting.Film:
    """An animation of a planar mechanism; ``animate(...).save("run.gif")`` writes it.

    Parameters
    ----------
    rate : float
        Frames per second.
    speed : float
        Time of the run per second of the animation.
    trace : Point, optional
        Point whose path is drawn.

    Raises
    ------
    OptionError
        The mechanism has no bars or springs, or `rate` or `speed` are not positive.
    """
    if not (rate > 0 and speed > 0):
        raise OptionError(f"rate and speed must be positive, got {rate!r} and {speed!r}.")
    first, last = trajectory.t_span[0], trajectory.final[0]
    count = max(2, round((last - first) / speed * rate) + 1)
    scene = _Scene(mechanism, trajectory, np.linspace(first, last, count), axes, trace)
    return plotting.Film(scene.axes.figure, scene.show, count, rate)


class _Scene:
    """The lines of a mechanism at several times."""

    def __init__(
        self, mechanism: Mechanism, trajectory: Trajectory, t: Array, axes: Any, trace: Point | None = None
    ) -> None:
        links = mechanism.links
        if not links:
            raise OptionError("There is nothing to draw: the mechanism has no bars or springs.")
        points = list({id(p): p for link in links for p in (link.start, link.end)}.values())
        order = {id(p): i for i, p in enumerate(points)}
        self.t, self.pairs = t, [(order[id(link.start)], order[id(link.end)]) for link in links]
        self.at = places(mechanism, trajectory, points, t)
        self.axes = plotting.new_figure(size=(4.2, 4.2)).axes[0] if axes is None else axes
        self.path = None if trace is None else places(mechanism, trajectory, [trace], t)[:, 0]
        (self.traced,) = self.axes.plot([], [], color="0.6", linewidth=0.8)
        self.lines = [self.axes.plot([], [], **(BAR if link.kind == "bar" else SPRING))[0] for link in links]
        (self.joints,) = self.axes.plot([], [], **JOINT)
        low, high = self.at.min(axis=(0, 1)), self.at.max(axis=(0, 1))
        margin = 0.1 * (high - low).max() + 1e-9
        self.axes.set(
            xlim=(low[0] - margin, high[0] + margin), ylim=(low[1] - margin, high[1] + margin), aspect="equal"
        )
        self.axes.set(xlabel="x", ylabel="y")

    def show(self, frame: int) -> None:
        """Draw one frame."""
        at = self.at[frame]
        for line, (start, end) in zip(self.lines, self.pairs, strict=True):
            line.set_data(at[[start, end], 0], at[[start, end], 1])
        self.joints.set_data(at[:, 0], at[:, 1])
        if self.path is not None:
            self.traced.set_data(*self.path[: frame + 1].T)
        self.axes.set_title(f"t = {self.t[frame]:.2f}", fontsize="medium")
