"""Outputs of a run as columns, completed in one vectorised pass per mode."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.record_table import RECORDS, RecordTable

if TYPE_CHECKING:
    from dae_hybrid.layout import Layout
    from dae_hybrid.system.system import HybridSystem, ModeSystem
    from dae_hybrid.trajectory.parts import TrajectoryParts
    from dae_hybrid.trajectory.trajectory import Segment

type Places = NDArray[np.intp]
#: rows in one mode: positions among all rows, t, states of the integrator, memory, derivatives (n, d, .) of the states
#: and (n, n_memory, d) of the memory
type Rows = tuple[Places, Array, Array, Array, Array, Array]


@dataclass(frozen=True)
class Points:
    """Points in one mode: positions among all points, times (n,), memory (n, n_memory), function for x (n, n_x)."""

    mode: ModeSystem
    places: Places
    t: Array
    memory: Array
    make: Callable[[], Array] = field(repr=False)
    derivatives: tuple[Array, Array, Array] | None = field(default=None, repr=False)  # of outputs; see `sensitivities`
    final: bool = False  # whether the outputs of the integrator are x and its derivatives; see `Method`

    @cached_property
    def x(self) -> Array:
        """(y, z), shape (n, n_x)."""
        return self.make()

    def sensitivities(self, parameters: Array, directions: Array) -> Array:
        """Return dx along the directions, shape (n, d, n_x)."""
        if self.derivatives is None:
            raise AssertionError("only outputs have derivatives")
        states, rows, dm = self.derivatives
        if self.final:
            return rows
        return self.mode.complete_sensitivities(self.t, states, rows, self.memory, dm, parameters, directions)


def by_name(name: str, width: int, size: int, parts: Iterable[tuple[Layout, Places, Callable[[], Array]]]) -> Array:
    """Assemble a column, (size,) or (size, width), from parts; NaN where the last part does not have the name.

    A part consists of a layout, positions in the column, and a function for the values there, (n, layout.size).
    """
    found = np.full((size, width), np.nan)
    for layout, places, values in parts:
        found[places] = values()[:, layout[name]] if name in layout else np.nan
    return found[:, 0] if width == 1 else found


def column(system: HybridSystem, name: str, size: int, points: Sequence[Points]) -> Array:
    """Return a variable, memory or signal at all points; NaN where the mode does not have it."""
    signal = system.signal(name)
    if signal is None:
        memory, held = system.memory, name in system.memory
        parts = (
            (memory if held else p.mode.variables, p.places, lambda p=p: p.memory if held else p.x) for p in points
        )
        return by_name(name, width_of(system, name), size, parts)
    found = np.full(size, np.nan)
    for p in points:
        found[p.places] = signal.evaluate(p.memory, p.t)
    return found


def width_of(system: HybridSystem, name: str) -> int:
    """Return the number of entries of a variable, memory or signal."""
    if system.signal(name) is not None:
        return 1
    layouts = (*(mode.variables for mode in system.modes), system.memory)
    return next(layout[name].stop - layout[name].start for layout in layouts if name in layout)


class Outputs:
    """All outputs of a run: times `t` (n_t,), indices of the modes `modes` (n_t,), and `points`."""

    def __init__(self, system: HybridSystem, parts: TrajectoryParts, parameters: Array) -> None:
        rows: defaultdict[int, list[Rows]] = defaultdict(list)
        size, final = 0, set[int]()
        for item in parts.given:
            if isinstance(item, RecordTable):
                for mode, own in _rows_of(item, size):
                    rows[mode].append(own)
                size += item.n_rows
            elif not isinstance(item, RECORDS) and len(item.t):
                rows[item.mode.index].append(_rows_in(item, size))
                final |= {item.mode.index} if item.how.final_outputs else set()
                size += len(item.t)
        self.points: list[Points] = []
        self.t, self.modes = np.zeros(size), np.zeros(size, np.intp)
        for mode, pieces in rows.items():
            d = min(piece[4].shape[1] for piece in pieces)  # outputs of a failed segment have no derivatives
            pieces = [(*piece[:4], piece[4][:, :d], piece[5][:, :, :d]) for piece in pieces]
            places, t, states, memory, ds, dm = (np.concatenate(part) for part in zip(*pieces, strict=True))
            complete = (
                states.view
                if mode in final
                else partial(system.modes[mode].complete_rows, t, states, memory, parameters)
            )
            points = Points(system.modes[mode], places, t, memory, complete, (states, ds, dm), mode in final)
            self.points.append(points)
            self.t[places], self.modes[places] = t, mode
        self.t.flags.writeable = False


def _rows_in(segment: Segment, first: int) -> Rows:
    """Return the rows of a segment; `first` is the position of its first one."""
    n, ds, dm = len(segment.t), segment.sensitivity_rows, segment.memory_sensitivities
    ds = np.zeros((n, 0, segment.states.shape[1])) if ds is None else ds
    dm = np.zeros((segment.memory.size, ds.shape[1])) if dm is None else dm
    memory, dm = np.tile(segment.memory, (n, 1)), np.tile(dm, (n, 1, 1))
    return first + np.arange(n), segment.t, segment.states, memory, ds, dm


def _rows_of(table: RecordTable, first: int) -> Iterable[tuple[int, Rows]]:
    """Yield the rows of a record table by mode; `first` is the position of its first one."""
    begins = table.column("row").astype(np.intp)
    counts = table.column("row_end").astype(np.intp) - begins
    ahead, modes = first + np.cumsum(counts) - counts, table.column("mode")
    for mode, rows in table.rows.items():
        own = np.flatnonzero((modes == mode) & (counts > 0))
        if own.size:
            some, n = counts[own], table.graph.equations[mode].n
            rows = rows[: int(begins[own[-1]] + some[-1])]
            places = np.repeat(ahead[own] - begins[own], some) + np.arange(len(rows))
            memory, dm = (np.repeat(v[own], some, axis=0) for v in (table.memory, table.memory_derivatives))
            ds = rows[:, 1 + n :].reshape(len(rows), table.n_directions, n)
            yield mode, (places, rows[:, 0], rows[:, 1 : 1 + n], memory, ds, dm)
