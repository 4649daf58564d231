"""Pictures of scans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.interpolate import CubicHermiteSpline

from dae_hybrid.errors import OptionError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.report.plotting import new_figure

if TYPE_CHECKING:
    from dae_hybrid.optimization.scan import Scan

SIZE = (6.4, 4.6)  # inches
#: styles of changes: colour and line style of the vertical line
STYLES = {"jump": ("0.35", "--"), "kink": ("0.35", ":"), "smooth": ("0.8", "-"), "unresolved": ("tab:red", "-.")}
#: dots are drawn for at most so many positions; points of a curve between two changes
MAX_DOTS, CURVE = 200, 40
#: colours of sequences, repeated
COLOURS = 10


def plot_scan(scan: Scan, axes: Any = None) -> Any:
    """Draw value and derivative of a scan in two panels; see `Scan.plot`."""
    if axes is None:
        figure = new_figure(2, sharex=True, size=SIZE)
        panels = list(figure.axes)
    else:
        panels = list(np.ravel(np.array(axes, dtype=object)))
        figure = panels[0].figure
    if len(panels) != 2:
        raise OptionError(f"A scan needs two axes, for value and derivative, got {len(panels)}.")
    colours = {digest: f"C{i % COLOURS}" for i, digest in enumerate(_in_order(scan))}
    for panel, which, column in zip(panels, ("values", "derivatives"), (0, 1), strict=True):
        for digest, at, rows in _pieces(scan):
            panel.plot(at, rows[:, column], color=colours[digest], linewidth=1.4)
        if len(scan) <= MAX_DOTS:
            panel.plot(scan.at, getattr(scan, which), ".", color="0.3", markersize=3)
        for change in scan.changes:
            colour, style = STYLES[change.kind]
            panel.axvline(change.at, color=colour, linestyle=style, linewidth=0.8, zorder=0)
    _mark(panels, scan)
    panels[0].set_ylabel(scan.functional)
    panels[1].set_ylabel("derivative")
    panels[1].set_xlabel(scan.along)
    for kind in dict.fromkeys(change.kind for change in scan.changes):
        colour, style = STYLES[kind]
        panels[0].plot([], [], color=colour, linestyle=style, linewidth=0.8, label=kind)
    if scan.changes:
        panels[0].legend(frameon=False, fontsize="small")
    return figure


def _in_order(scan: Scan) -> list[int]:
    sides = [(p.at, p.digest) for change in scan.changes for p in (change.left, change.right)]
    points = [(s, d) for s, d, v in zip(scan.at, scan.digests.tolist(), scan.values, strict=True) if np.isfinite(v)]
    return list(dict.fromkeys(digest for _, digest in sorted([*sides, *points])))


def _pieces(scan: Scan) -> list[tuple[int, Array, Array]]:
    """Lines with one sequence each: digest, positions, and rows of value and derivative.

    A line between two changes that contains no position of the scan follows from values and derivatives at its ends.
    """
    rows = [
        (s, value, slope, digest)
        for s, value, slope, digest in zip(
            scan.at.tolist(), scan.values.tolist(), scan.derivatives.tolist(), scan.digests.tolist(), strict=True
        )
    ]
    for change in scan.changes:
        for point, slope in zip((change.left, change.right), change.slopes[:, 0].tolist(), strict=True):
            rows.append((point.at, float(point.values[0]), slope, point.digest))
    rows.sort(key=lambda row: row[0])
    pieces: list[list[tuple[float, float, float, int]]] = []
    for row in rows:
        if not np.isfinite(row[1]):
            pieces.append([])
        elif pieces and pieces[-1] and pieces[-1][-1][3] == row[3]:
            pieces[-1].append(row)
        else:
            pieces.append([row])
    found = []
    for piece in filter(None, pieces):
        at, own = np.array([row[0] for row in piece]), np.array([row[1:3] for row in piece])
        if len(piece) > 1 and not np.isin(at, scan.at).any():
            at, own = _curve(at, own)
        found.append((piece[0][3], at, own))
    return found


def _curve(at: Array, rows: Array) -> tuple[Array, Array]:
    """The cubic through values and derivatives, (n, 2); nothing where a derivative is refused."""
    if not np.isfinite(rows).all():
        return at, np.full_like(rows, np.nan)
    cubic, dense = CubicHermiteSpline(at, rows[:, 0], rows[:, 1]), np.linspace(at[0], at[-1], CURVE)
    return dense, np.column_stack([cubic(dense), cubic(dense, 1)])


def _mark(panels: list[Any], scan: Scan) -> None:
    """Mark both sides of jumps, of the value or the derivative, by open circles."""
    for change in scan.changes:
        sides = [change.left.at, change.right.at]
        if change.kind == "jump":
            panels[0].plot(sides, change.values[:, 0], "o", color="0.2", markersize=5, markerfacecolor="white")
        if change.kind in ("jump", "kink"):
            panels[1].plot(sides, change.slopes[:, 0], "o", color="0.2", markersize=5, markerfacecolor="white")
        if change.kind == "kink":
            panels[0].plot([change.at], [change.values[:, 0].mean()], "^", color="0.2", markersize=6)
