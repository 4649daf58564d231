"""Records of a run besides its segments: transitions, knots of signals, measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.numerics.arrays import Array

if TYPE_CHECKING:
    from dae_hybrid.system.system import ModeSystem


@dataclass(frozen=True, slots=True, eq=False)
class EventRecord:
    """One firing of a transition, with the values on both sides.

    Attributes
    ----------
    time : float
    transition, source : str
    target : str or None
        None if the transition ends the run.
    order : int
        0 for the first transition of an instant, 1 for the next, ...
    guard : float
        Value of the guard before the transition, zero to rounding; 0.0 for time events.
    direction : int
        Sign of the guard's rate: 1 rising, -1 falling; 0 for time events.
    rate : float
        Rate of the guard (SR eq. 4); 1.0 for time events.
    rate_scale : float
        Range of the guard over the duration of the run.
    follows : bool
        Whether the transition fired on entry because its guard was past its threshold: its time is that of the
        previous event, independent of its guard.
    count : int
        For ``every=``, the number of elapsed periods; 0 otherwise.
    x_minus, x_plus : ndarray
        (y, z) before and after, in the variables of source and target.
    xdot_minus, xdot_plus : ndarray
        Time derivatives of (y, z).
    memory_minus, memory_plus : ndarray
        Memory before and after.
    unknowns : dict
        Values of the reset's own unknowns, such as impulses, by name.
    earlier : EventRecord or None
        The previous event of the same instant.
    """

    time: float
    index: int
    transition: str
    source: str
    target: str | None
    order: int
    guard: float
    direction: int
    rate: float
    rate_scale: float
    count: int
    follows: bool
    x_minus: Array
    x_plus: Array
    xdot_minus: Array
    xdot_plus: Array
    memory_minus: Array
    memory_plus: Array
    n_differential: tuple[int, int]  # of source and target
    xi: Array  # unknowns of the transition; see `TransitionMap`
    unknowns: Mapping[str, Any]
    certified: bool = False  # its derivatives need no further checks
    earlier: EventRecord | None = None
    returns: bool = False  # motion that was held on a surface has begun to leave it; noticed at this time

    @property
    def state_minus(self) -> Array:
        """Differential state before."""
        return self.x_minus[: self.n_differential[0]]

    @property
    def state_plus(self) -> Array:
        """Differential state after."""
        return self.x_plus[: self.n_differential[1]]

    @property
    def derivative_minus(self) -> Array:
        """Derivative of the differential state before."""
        return self.xdot_minus[: self.n_differential[0]]

    @property
    def derivative_plus(self) -> Array:
        """Derivative of the differential state after."""
        return self.xdot_plus[: self.n_differential[1]]

    @property
    def algebraic_minus(self) -> Array:
        """Algebraic variables before."""
        return self.x_minus[self.n_differential[0] :]

    @property
    def algebraic_plus(self) -> Array:
        """Algebraic variables after."""
        return self.x_plus[self.n_differential[1] :]

    def __repr__(self) -> str:
        return f"<event t={self.time:.12g} '{self.transition}'{f' (order {self.order})' if self.order else ''}>"


@dataclass(frozen=True, slots=True, eq=False)
class KnotRecord:
    """A knot of signals, at which only their coefficients in the memory change.

    `entries` are the positions of all signals in the memory, `intervals` the intervals that begin, by signal.
    """

    time: float
    entries: NDArray[np.int64]
    intervals: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class MeasurementRecord:
    """A measurement: its index in the system, and its point."""

    time: float
    index: int
    mode: ModeSystem
    x: Array
    xdot: Array
    memory: Array
