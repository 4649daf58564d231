"""Inputs from data: coefficients of the current interval, held in memory and changed at knots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from scipy.interpolate import CubicSpline

from dae_hybrid.codegen import Kernel
from dae_hybrid.declarations import SignalData
from dae_hybrid.errors import NonFiniteError, OptionError
from dae_hybrid.failures import SUSPECTS, refuse_not_finite
from dae_hybrid.integrator import Array


@dataclass(frozen=True, eq=False)
class SignalTable:
    """A signal's coefficients (knot, c_0, c_1, ...), f = sum of c_k (t - knot)^k, by interval.

    Interval i reaches from knot i to knot i + 1; -1 is before the data and the last one after them.
    """

    data: SignalData
    memory: slice  # where the coefficients are in the memory
    values: Kernel  # p -> values at the knots
    values_by_p: Kernel  # p -> their derivatives
    _runs: dict[tuple[str, bytes], tuple[Array, Array]] = field(default_factory=dict, repr=False)

    def check(self, span: tuple[float, float]) -> None:
        """Refuse a run that leaves the data."""
        first, last = self.data.knots[0], self.data.knots[-1]
        if not self.data.hold and not (first <= span[0] and span[1] <= last):
            raise OptionError(
                f"Signal '{self.data.name}' has data from {first:g} to {last:g}, the run goes from {span[0]:g} to "
                f"{span[1]:g}.",
                remedy="Give data for the whole run, or declare the signal with outside='hold'.",
            )

    def interval(self, t: float) -> int:
        """Index of the interval that starts at or before t."""
        return int(np.searchsorted(self.data.knots, t, side="right")) - 1

    def next_knot(self, t: float) -> float:
        """The next knot after t, infinity after the last."""
        i = self.interval(t) + 1
        return float(self.data.knots[i]) if i < self.data.knots.size else np.inf

    def evaluate(self, memory: Array, t: Array) -> Array:
        """Values at times, with the coefficients of their interval in one memory for all, or in (len(t), n_memory)."""
        knot, *coefficients = memory[..., self.memory].T
        return np.polynomial.polynomial.polyval(t - knot, np.array(coefficients), tensor=False)

    def sensitivities(self, memory: Array, dm: Array, t: Array) -> Array:
        """Derivatives (len(t), d) at these times, from those of the memory (n_memory, d), one for all or by time."""
        of_coefficients = dm[..., self.memory, :][..., 1:, :]
        powers = (t - memory[..., self.memory.start])[:, None] ** np.arange(of_coefficients.shape[-2])
        return np.asarray(np.einsum("tk,...kd->td" if dm.ndim == 2 else "tk,tkd->td", powers, of_coefficients))

    def coefficients(self, interval: int, p: Array) -> Array:
        """(n_coefficients,) of an interval."""
        knots, kind = self.data.knots, self.data.kind
        values, cubic = self._at(p)
        row = np.zeros(self.memory.stop - self.memory.start)
        i = min(max(interval, 0), knots.size - 1)
        row[0], row[1] = knots[i], values[i]
        if 0 <= interval < knots.size - 1:
            if kind == "linear":
                row[2] = (values[i + 1] - values[i]) / (knots[i + 1] - knots[i])
            elif kind == "cubic":
                row[2:] = cubic[i]
        return row

    def derivatives(self, interval: int, p: Array) -> Array:
        """Derivatives of an interval's coefficients, (n_coefficients, n_parameters)."""
        knots, kind, by_p = self.data.knots, self.data.kind, self._by_p(p)
        derivative = np.zeros((self.memory.stop - self.memory.start, p.size))
        i = min(max(interval, 0), knots.size - 1)
        derivative[1] = by_p[i]
        if 0 <= interval < knots.size - 1:
            if kind == "linear":
                derivative[2] = (by_p[i + 1] - by_p[i]) / (knots[i + 1] - knots[i])
            elif kind == "cubic" and by_p.any():
                derivative[2:] = self._splines[i] @ by_p
        return derivative

    def _at(self, p: Array) -> tuple[Array, Array]:
        key = ("values", p.tobytes())
        if key not in self._runs:
            values, cubic = self.values(p)[0], np.zeros((0, 3))
            if not np.all(np.isfinite(values)):
                raise NonFiniteError(
                    f"Values of signal '{self.data.name}' are not finite at these parameters.",
                    variables=[self.data.name],
                    remedy=f"Check the values of the signal for {SUSPECTS}.",
                )
            if self.data.kind == "cubic":
                cubic = np.asarray(CubicSpline(self.data.knots, values).c[2::-1].T)
            self._runs.clear()
            self._runs[key] = (values, cubic)
        return self._runs[key]

    def _by_p(self, p: Array) -> Array:
        key = ("derivatives", p.tobytes())
        if key not in self._runs:
            by_p = self.values_by_p(p)[0]
            refuse_not_finite(f"signal '{self.data.name}'", (by_p,), mode=None, time=None)
            self._runs[key] = (by_p, np.zeros(0))
        return self._runs[key][0]

    @cached_property
    def _splines(self) -> Array:
        """c_1, c_2, c_3 of every interval as linear functions of all values, (n_intervals, 3, n_values)."""
        splines = CubicSpline(self.data.knots, np.eye(self.data.knots.size)).c[2::-1]
        return np.asarray(np.moveaxis(splines, 1, 0))


def coefficients(signals: Sequence[SignalTable], intervals: Sequence[int], p: Array) -> Array:
    """The coefficients of all signals in these intervals, one after the other as they stand in the memory."""
    return np.concatenate([signal.coefficients(i, p) for signal, i in zip(signals, intervals, strict=True)])


def derivatives(signals: Sequence[SignalTable], intervals: Sequence[int], p: Array) -> Array:
    """Their derivatives, (n_coefficients, n_parameters)."""
    return np.vstack([signal.derivatives(i, p) for signal, i in zip(signals, intervals, strict=True)])
