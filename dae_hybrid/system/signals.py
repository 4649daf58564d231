"""Input signals: coefficients of the current interval, stored in memory and updated at knots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline

from dae_hybrid.codegen.kernels import Kernel
from dae_hybrid.errors import NonFiniteError, OptionError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.failure_messages import SUSPECTS, refuse_not_finite
from dae_hybrid.port.segment_rules import SAME_INSTANT, same_instant
from dae_hybrid.statement.declarations import SignalData


@dataclass(frozen=True, eq=False)
class SignalTable:
    """Coefficients (knot, c_0, c_1, ...) of a signal on each interval, f = sum of c_k (t - knot)^k.

    Interval i extends from knot i to knot i + 1; interval -1 precedes the data, the last one follows them.
    """

    data: SignalData
    memory: slice  # entries of the memory that hold the coefficients
    values: Kernel  # p -> values at the knots
    values_by_p: Kernel  # p -> derivatives of the values
    _kept: dict[str, tuple[Any, Array]] = field(default_factory=dict, repr=False)  # results for the latest parameters

    def check(self, span: tuple[float, float]) -> None:
        """Raise an `OptionError` if the run extends beyond the data."""
        first, last = self.data.knots[0], self.data.knots[-1]
        if not self.data.hold and not (first <= span[0] and span[1] <= last):
            raise OptionError(
                f"Signal '{self.data.name}' has data from {first:g} to {last:g}, the run goes from {span[0]:g} to "
                f"{span[1]:g}.",
                remedy="Give data for the whole run, or declare the signal with outside='hold'.",
            )

    def interval(self, t: float) -> int:
        """Index of the interval that starts at or before t."""
        return int(self.intervals(t))

    def intervals(self, times: Array | float) -> NDArray[np.intp]:
        """Indices of the intervals that contain times."""
        return np.searchsorted(self.data.knots, times, side="right") - 1

    def next_knot(self, t: float) -> float:
        """First knot after t; infinity after the last."""
        i = self.interval(t) + 1
        return float(self.data.knots[i]) if i < self.data.knots.size else np.inf

    def evaluate(self, memory: Array, t: Array) -> Array:
        """Values at times. `memory` is (n_memory,) for one interval, or (len(t), n_memory)."""
        knot, *coefficients = memory[..., self.memory].T
        return np.polynomial.polynomial.polyval(t - knot, np.array(coefficients), tensor=False)

    def sensitivities(self, memory: Array, dm: Array, t: Array) -> Array:
        """Derivatives (len(t), d) at times, from those of the memory: (n_memory, d), or with times as leading axis."""
        of_coefficients = dm[..., self.memory, :][..., 1:, :]
        powers = (t - memory[..., self.memory.start])[:, None] ** np.arange(of_coefficients.shape[-2])
        return np.asarray(np.einsum("tk,...kd->td" if dm.ndim == 2 else "tk,tkd->td", powers, of_coefficients))

    @cached_property
    def movable(self) -> bool:
        """Whether the values depend on the parameters."""
        return bool(self.values.function.jac_sparsity(0, 0).nnz())

    def coefficients(self, interval: int, p: Array) -> Array:
        """Coefficients of an interval, (n_coefficients,)."""
        found: Array = self.rows(p)[interval + 1]
        return found

    def derivatives(self, interval: int, p: Array) -> Array:
        """Derivatives of an interval's coefficients, (n_coefficients, n_parameters)."""
        return self.rows_along(p, None)[interval + 1]

    def rows(self, p: Array) -> Array:
        """Coefficients of all intervals, (n_knots + 1, n_coefficients); the first row belongs to interval -1."""
        key, found = p.tobytes(), self._kept.get("rows")
        if found is None or found[0] != key:
            values = self.values(p)[0]
            if not np.all(np.isfinite(values)):
                raise NonFiniteError(
                    f"Values of signal '{self.data.name}' are not finite at these parameters.",
                    variables=[self.data.name],
                    remedy=f"Check the values of the signal for {SUSPECTS}.",
                )
            rows = self._pieces(values[:, None])[:, :, 0]
            rows[1:, 0], rows[0, 0] = self.data.knots, self.data.knots[0]
            found = self._kept["rows"] = key, rows
        return found[1]

    def rows_along(self, p: Array, directions: Array | None) -> Array:
        """Derivatives of `rows` along directions (n_parameters, d); by all parameters if `directions` is None."""
        if not self.movable:
            count = p.size if directions is None else directions.shape[1]
            return np.broadcast_to(0.0, (self.data.knots.size + 1, self.memory.stop - self.memory.start, count))
        key, found = p.tobytes(), self._kept.get("derivatives")
        if found is None or found[0] != key:
            by_p = self.values_by_p(p)[0]
            refuse_not_finite(f"signal '{self.data.name}'", (by_p,), mode=None, time=None)
            found = self._kept["derivatives"] = key, by_p
        if directions is not None:
            return self._pieces(found[1] @ directions)
        whole = self._kept.get("pieces")
        if whole is None or whole[0] is not found[1]:
            whole = self._kept["pieces"] = found[1], self._pieces(found[1])
        return whole[1]

    def _pieces(self, values: Array) -> Array:
        """`rows` without the knots, (n_knots + 1, n_coefficients, k); linear in values (n_knots, k)."""
        knots, kind, size = self.data.knots, self.data.kind, self.memory.stop - self.memory.start
        found = np.zeros((knots.size + 1, size, values.shape[1]))
        found[0, 1], found[1:, 1] = values[0], values
        if kind == "linear":
            found[1:-1, 2] = np.diff(values, axis=0) / np.diff(knots)[:, None]
        elif kind == "cubic":
            found[1:-1, 2:] = np.moveaxis(CubicSpline(knots, values).c[2::-1], 1, 0)
        return found


def aligned(knots: Sequence[Array]) -> list[Array]:
    """Return the knots of several signals; knots of different signals that are equal to rounding become the same."""
    if not knots:
        return []
    every, of = np.concatenate(knots), np.repeat(np.arange(len(knots)), [own.size for own in knots])
    order = np.argsort(every, kind="stable")
    times, owners = every[order], of[order]
    scale = np.maximum(np.abs(times), times - times[0])
    group = np.cumsum(np.diff(times, prepend=-np.inf) > SAME_INSTANT * scale) - 1
    first = np.searchsorted(group, np.arange(group[-1] + 1))
    pairs, counts = np.unique(np.stack((group, owners)), axis=1, return_counts=True)
    unclear = np.isin(group, pairs[0][counts > 1])  # several knots of one signal
    found = np.empty_like(every)
    found[order] = np.where(unclear, times, times[first][group])
    return np.split(found, np.cumsum([own.size for own in knots])[:-1])


def at_knot(signals: Sequence[SignalTable], t: float, start: float) -> float:
    """Return the knot that equals a time of a run from `start` to rounding, otherwise the time itself."""
    for signal in signals:
        i = signal.interval(t)
        for knot in signal.data.knots[max(i, 0) : i + 2].tolist():
            if same_instant(knot, t, start):
                return float(knot)
    return t


def coefficients(signals: Sequence[SignalTable], intervals: Sequence[int], p: Array) -> Array:
    """Concatenate the coefficients of all signals on the given intervals, in memory order."""
    return np.concatenate([signal.coefficients(i, p) for signal, i in zip(signals, intervals, strict=True)])


def derivatives(signals: Sequence[SignalTable], intervals: Sequence[int], p: Array) -> Array:
    """Derivatives of `coefficients`, (n_coefficients, n_parameters)."""
    return np.vstack([signal.derivatives(i, p) for signal, i in zip(signals, intervals, strict=True)])


def entries(signals: Sequence[SignalTable]) -> NDArray[np.int64]:
    """Memory indices of all signals."""
    return np.concatenate([np.arange(s.memory.start, s.memory.stop) for s in signals]) if signals else np.zeros(0, int)
