"""Functions that interpolate lookup tables.

A cubic table is the sum of nodal values and slopes times the polynomials of Hermite's interpolation on the cell that
contains x; in two dimensions, of products of these. The slopes are those of the not-a-knot spline, so that first and
second derivatives are continuous. They follow from the values by a tridiagonal system, outside the look-up.

A linear table is, with the grid point g nearest to x and d = x - g, the value there plus the mean of the slopes beside
it times d plus half of their difference times abs(d). The kink is thus an `fabs` like any other, which conditions on
derivatives know. Where kinks become events, the cell is a memory, and the value is that of its hats.

An evaluation costs a search along each axis and up to 16 products, whatever the size of the table.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import casadi as ca
import numpy as np
from numpy.typing import NDArray

from dae_hybrid.statement.lookup import PREFIX, LookupTable


def coefficients(table: LookupTable) -> ca.MX:
    """Blocks of the size of the grid in one column: values first, then slopes, or means and half jumps of slopes."""
    how = _slopes if table.kind == "cubic" else _sides
    blocks = [table.values, *how(table.grid[0], table.values)]
    if len(table.grid) > 1:
        along_y = [[block.T for block in how(table.grid[1], block.T)] for block in blocks]
        blocks += [own[k] for k in range(len(along_y[0])) for own in along_y]
    column = ca.veccat(*blocks)
    return ca.MX(ca.evalf(column)) if column.is_constant() or not ca.symvar(column) else column


def _slopes(grid: NDArray[np.float64], columns: ca.MX) -> list[ca.MX]:
    """Slopes of the splines through each column."""
    function = spline_slopes(grid)
    if columns.is_constant():
        return [ca.MX(function(columns.to_DM()))]
    return [ca.horzcat(*(function(column) for column in ca.horzsplit(columns)))]


def _sides(grid: NDArray[np.float64], columns: ca.MX) -> list[ca.MX]:
    """Means and half differences of the slopes of the cells beside each grid point; the outer cells extend."""
    n = grid.size
    slopes = ca.DM(n - 1, n)
    for i, h in enumerate(np.diff(grid)):
        slopes[i, i], slopes[i, i + 1] = -1 / h, 1 / h
    below, above = (slopes[np.clip(np.arange(n) + k, 0, n - 2).tolist(), :] for k in (-1, 0))
    return [ca.mtimes(ca.sparsify((above + sign * below) / 2), columns) for sign in (1, -1)]


def spline_slopes(grid: NDArray[np.float64]) -> ca.Function:
    """Return the slopes of the not-a-knot spline at its knots as a function of the values there, by elimination."""
    n, h = grid.size, np.diff(grid)
    v = ca.SX.sym("v", n)
    d = [(v[i + 1] - v[i]) / h[i] for i in range(n - 1)]
    first, last = grid[2] - grid[0], grid[-1] - grid[-3]
    lower, diagonal, upper = np.zeros(n), np.zeros(n), np.zeros(n)
    lower[1:-1], upper[1:-1], diagonal[1:-1] = h[1:], h[:-1], 2 * (h[:-1] + h[1:])
    diagonal[0], upper[0], diagonal[-1], lower[-1] = h[1], first, h[-2], last
    right = [((h[0] + 2 * first) * h[1] * d[0] + h[0] ** 2 * d[1]) / first]
    right += [3 * (h[i] * d[i - 1] + h[i - 1] * d[i]) for i in range(1, n - 1)]
    right += [(h[-1] ** 2 * d[-2] + (2 * last + h[-1]) * h[-2] * d[-1]) / last]
    for i in range(1, n):
        factor = lower[i] / diagonal[i - 1]
        diagonal[i] -= factor * upper[i - 1]
        right[i] -= factor * right[i - 1]
    slopes = [right[-1] / diagonal[-1]]
    for i in range(n - 2, -1, -1):
        slopes.append((right[i] - upper[i] * slopes[-1]) / diagonal[i])
    return ca.Function(f"{PREFIX}slopes", [v], [ca.vertcat(*slopes[::-1])])


def in_cells(table: LookupTable, name: str, *, searched: bool, orders: tuple[int, ...] = ()) -> ca.Function:
    """Return the value on a cell, or its derivative of some orders, as a function of x, y and `coefficients`.

    The arguments are x and y. If the cells are not searched, their numbers are further arguments after x and y. A cubic
    table with ``outside="linear"`` continues by its tangents.
    """
    count = len(table.grid)
    x, c = [ca.MX.sym("xy"[k]) for k in range(count)], _coefficient_symbol(table)
    if not searched:
        cells = [ca.MX.sym(f"cell{k}") for k in range(count)]
        return ca.Function(name, [*x, *cells, c], [_on_cell(table, x, cells, c)])
    value = _on_cell(table, x, _cells(table, x), c)
    if table.outside == "linear":
        slopes = [ca.jacobian(value, symbol) for symbol in x]
        inner = [clipped(axis, symbol) for axis, symbol in zip(table.grid, x, strict=True)]
        value, *slopes = ca.substitute([value, *slopes], x, inner)
        value = value + sum(slope * (a - b) for slope, a, b in zip(slopes, x, inner, strict=True))
    for symbol, order in zip(x, orders, strict=False):
        for _ in range(order):
            value = ca.jacobian(value, symbol)
    return ca.Function(name, [*x, c], [value])


def nearest(table: LookupTable, name: str) -> ca.Function:
    """Return the nearest grid point and the coefficients there as a function of x, y and `coefficients`."""
    x, c = [ca.MX.sym("xy"[k]) for k in range(len(table.grid))], _coefficient_symbol(table)
    places = []
    for axis, symbol in zip(table.grid, x, strict=True):
        ends = np.r_[axis[0] - 1.0, (axis[:-1] + axis[1:]) / 2, axis[-1] + 1.0]
        places.append(_search(ends, symbol))
    points = [ca.MX(ca.DM(axis))[place] for axis, place in zip(table.grid, places, strict=True)]
    place = places[0] if len(x) == 1 else places[0] + table.grid[0].size * places[1]
    size = table.values.numel()
    found = [c[place + k * size] for k in range(c.numel() // size)]
    return ca.Function(name, [*x, c], [ca.vertcat(*points), ca.vertcat(*found)])


def defined(table: LookupTable, name: str) -> ca.Function:
    """Return zero on the grid, and no number outside, as a function of x, y."""
    x, value = [ca.MX.sym("xy"[k]) for k in range(len(table.grid))], ca.MX(0)
    for axis, symbol, by in zip(table.grid, x, margins(table), strict=True):
        value = value + ca.if_else(ca.logic_or(symbol < axis[0] - by, symbol > axis[-1] + by), np.nan, 0.0)
    return ca.Function(name, x, [value])


@cache
def position(axis: tuple[float, ...], name: str) -> ca.Function:
    """Return the number of the cell that contains x plus the fraction below x; constant away from the grid."""
    ends = 2 * axis[0] - axis[1], 2 * axis[-1] - axis[-2]
    points, places = np.array([ends[0], *axis, ends[1]]), np.array([-0.5, *range(len(axis)), len(axis) - 0.5])
    x = ca.MX.sym("x")
    inner = clipped(points, x)
    i, slope = _search(points, inner), np.diff(places) / np.diff(points)
    start, rate, first = (ca.MX(ca.DM(column))[i] for column in (places[:-1], slope, points[:-1]))
    return ca.Function(name, [x], [start + rate * (inner - first)])


def clipped(axis: NDArray[np.float64], x: ca.MX) -> ca.MX:
    """The argument, or the end of the axis beyond which it lies."""
    return ca.fmin(ca.fmax(x, axis[0]), axis[-1])


def margins(table: LookupTable) -> list[float]:
    """How far beyond the ends of each axis an argument may be by rounding."""
    return [1e-9 * float(axis[-1] - axis[0]) for axis in table.grid]


def _search(points: NDArray[np.float64], x: ca.MX) -> ca.MX:
    """Number of the interval of the points that contains x, or of the outer one."""
    return ca.low(ca.DM(points), x, {"lookup_mode": "binary"})


def _coefficient_symbol(table: LookupTable) -> ca.MX:
    blocks = (2 if table.kind == "cubic" else 3) ** len(table.grid)
    return ca.MX.sym("c", blocks * table.values.numel())


def _cells(table: LookupTable, x: list[ca.MX]) -> list[ca.MX]:
    return [_search(axis, symbol) for axis, symbol in zip(table.grid, x, strict=True)]


def _on_cell(table: LookupTable, x: list[ca.MX], cells: list[ca.MX], c: ca.MX) -> Any:
    basis = [_basis(axis, at, cell, table.kind) for axis, at, cell in zip(table.grid, x, cells, strict=True)]
    nx, block, per_axis = table.grid[0].size, table.values.numel(), 2 if table.kind == "cubic" else 3
    if len(basis) == 1:
        return sum(p * c[cells[0] + (corner + slope * block)] for (corner, slope), p in basis[0].items())
    return sum(
        p * q * c[cells[0] + nx * cells[1] + (i + nx * j + (k + per_axis * m) * block)]
        for (i, k), p in basis[0].items()
        for (j, m), q in basis[1].items()
    )


def _basis(axis: NDArray[np.float64], x: ca.MX, cell: ca.MX, kind: str) -> dict[tuple[int, int], Any]:
    """Polynomials of one cell by (corner, 0 for a value and 1 for a slope)."""
    h = ca.MX(ca.DM(np.diff(axis)))[cell]
    s = (x - ca.MX(ca.DM(axis[:-1]))[cell]) / h
    if kind == "linear":
        return {(0, 0): 1 - s, (1, 0): s}
    return {
        (0, 0): (1 + 2 * s) * (1 - s) ** 2, (0, 1): h * s * (1 - s) ** 2,
        (1, 0): s**2 * (3 - 2 * s), (1, 1): h * s**2 * (s - 1),
    }  # fmt: skip
