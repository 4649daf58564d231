"""Declare lookup tables: functions of one or two quantities, interpolated between values on a grid."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import casadi as ca
import numpy as np
from numpy.typing import NDArray

from dae_hybrid.errors import ModelError
from dae_hybrid.numeric_input import shown
from dae_hybrid.statement.declarations import Statement
from dae_hybrid.statement.expressions import checked_name, matrix, numbers

Outside = Literal["error", "hold", "linear"]
#: least number of grid points along each axis, by kind
LEAST_POINTS: dict[str, int] = {"linear": 2, "cubic": 4}
OUTSIDE = ("error", "hold", "linear")
#: largest order of a derivative of a table in an expression
MAX_DERIVATIVE = 4
#: beginning of the names of functions that stand for tables in expressions
PREFIX = "dae_hybrid_table_"


@dataclass(frozen=True, eq=False)
class LookupTable(Statement):
    """A function of one or two quantities; calling it with expressions gives an expression.

    Attributes
    ----------
    name : str
    number : int
        Position among the tables of the model.
    grid : tuple of ndarray
        Grid points along each axis.
    values : MX, shape (n,) or (n, m)
        Values on the grid, numbers or expressions in parameters.
    kind : {"linear", "cubic"}
    outside : {"error", "hold", "linear"}
    unit, description : str
    """

    name: str
    number: int
    grid: tuple[NDArray[np.float64], ...]
    values: ca.MX
    kind: str
    outside: str
    unit: str = ""
    description: str = ""

    def __call__(self, *arguments: Any) -> ca.MX:
        """Return the interpolated value at the arguments, entry by entry if they are vectors.

        Raises
        ------
        ModelError
            The number of arguments is not that of the axes, or their sizes differ.
        """
        what = f"argument of table '{self.name}'"
        given = [matrix(what, argument) for argument in arguments]
        shapes = {part.shape for part in given} - {(1, 1)}
        if len(given) != len(self.grid) or len(shapes) > 1:
            sizes = ", ".join(f"{part.shape[0]}x{part.shape[1]}" for part in given)
            raise ModelError(
                f"Table '{self.name}' takes {len(self.grid)} arguments of one size, got {sizes or 'none'}."
            )
        shape = next(iter(shapes), (1, 1))
        function, parts = self.function(), [part if part.shape == shape else ca.repmat(part, *shape) for part in given]
        entries = [function(*(part.nz[i] for part in parts)) for i in range(shape[0] * shape[1])]
        found: ca.MX = entries[0] if shape == (1, 1) else ca.reshape(ca.vertcat(*entries), *shape)
        return found

    def function(self, *orders: int) -> ca.Function:
        """The function that stands for the table, or a derivative, in expressions; its value is that of no point."""
        return _stand_in(self.number, orders or (0,) * len(self.grid), MAX_DERIVATIVE - sum(orders))

    def functions(self) -> dict[str, ca.Function]:
        """The function of the table and those of its derivatives, by their names in model files."""
        axes, found = len(self.grid), {self.name: self.function()}
        for orders in itertools.product(range(MAX_DERIVATIVE + 1), repeat=axes):
            if 0 < sum(orders) <= MAX_DERIVATIVE:
                found[f"{self.name} d{'_'.join(map(str, orders))}"] = self.function(*orders)
        return found


@cache
def _stand_in(number: int, orders: tuple[int, ...], left: int) -> ca.Function:
    """A function whose derivatives are functions of this kind, `left` times."""
    symbols = [ca.MX.sym(axis) for axis, _ in zip("xy", orders, strict=False)]
    names = [symbol.name() for symbol in symbols]
    name = f"{PREFIX}{number}" + (f"_d{'_'.join(map(str, orders))}" if any(orders) else "")
    options: dict[str, Any] = {"never_inline": True}
    if left:
        inner = [
            _stand_in(number, tuple(n + (i == k) for i, n in enumerate(orders)), left - 1) for k in range(len(orders))
        ]
        options |= {"enable_forward": False, "enable_reverse": False, "enable_fd": False}
        options["custom_jacobian"] = ca.Function(
            f"jac_{name}",
            [*symbols, ca.MX.sym("out_f", ca.Sparsity(1, 1))],
            [own(*symbols) for own in inner],
            [*names, "out_f"],
            [f"jac_f_{axis}" for axis in names],
            {"always_inline": True},
        )
    return ca.Function(name, symbols, [np.nan * sum(symbols, ca.MX(0))], names, ["f"], options)


def stands_for(function: ca.Function) -> tuple[int, tuple[int, ...]] | None:
    """The number of the table that a function stands for, and the orders of its derivative (empty for none)."""
    found = re.fullmatch(rf"{PREFIX}(\d+)(?:_d(\d+(?:_\d+)?))?", function.name())
    return None if found is None else (int(found[1]), tuple(map(int, found[2].split("_"))) if found[2] else ())


def is_table(function: ca.Function) -> bool:
    """Whether a function stands for a lookup table, or is part of one."""
    return str(function.name()).startswith(PREFIX)


def lookup_table(
    tables: Mapping[str, LookupTable],
    name: str,
    grid: Any,
    values: Any,
    *,
    kind: str,
    outside: str,
    unit: str,
    description: str,
) -> LookupTable:
    """Check the arguments of `HybridModel.table`; `tables` are those of the model so far."""
    checked_name("table", name)
    if name in tables:
        raise ModelError(f"Table '{name}' is declared twice.")
    if not isinstance(kind, str) or kind not in LEAST_POINTS:
        raise ModelError(f"Table '{name}': kind must be one of {', '.join(LEAST_POINTS)}, got {kind!r}.")
    if not isinstance(outside, str) or outside not in OUTSIDE:
        raise ModelError(f"Table '{name}': outside must be one of {', '.join(OUTSIDE)}, got {outside!r}.")
    axes = _axes(name, grid, kind)
    shape = (axes[0].size, axes[1].size if len(axes) == 2 else 1)
    found = matrix(f"values of table '{name}'", values)
    if len(axes) == 1:
        found = ca.vec(found)
    if found.shape != shape:
        raise ModelError(
            f"Table '{name}' has a grid of {'x'.join(str(a.size) for a in axes)} points and values of shape "
            f"{found.shape[0]}x{found.shape[1]}.",
            remedy="Rows of values belong to points of the first axis, columns to points of the second.",
        )
    return LookupTable(name, len(tables), axes, found, kind, outside, str(unit), str(description))


def _axes(name: str, grid: Any, kind: str) -> tuple[NDArray[np.float64], ...]:
    what = f"grid of table '{name}'"
    pair = isinstance(grid, list | tuple) and len(grid) == 2 and all(np.ndim(axis) == 1 for axis in grid)
    axes = tuple(numbers(what, axis) for axis in grid) if pair else (numbers(what, grid),)
    for axis in axes:
        if axis.size < LEAST_POINTS[kind] or np.any(np.diff(axis) <= 0):
            raise ModelError(
                f"The {what} must increase strictly and, for kind='{kind}', have {LEAST_POINTS[kind]} points or more "
                f"along each axis, got {shown(axis.tolist())}."
            )
    return axes


def without_look_ups(text: str) -> str:
    """Name the grid point next to an argument by words in the text of an expression."""
    while match := re.search(rf"{PREFIX}\d+_nearest\(", text):
        end, depth = match.end(), 1
        while depth and end < len(text):
            depth += (text[end] == "(") - (text[end] == ")")
            end += 1
        text = f"{text[: match.start()]}the nearest grid point{text[end:].removeprefix('{0}')}"
    return text
