"""What happens along a run besides smooth motion: transitions, knots of signals, measurements."""

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
    """One firing of a transition, both sides named.

    Attributes
    ----------
    time : float
    transition, source : str
    target : str or None
        None where the transition ends the run.
    order : int
        0 for the first transition of an instant, 1 for the next, ...
    guard : float
        Value of the guard before the transition, zero to rounding; 0.0 for time events.
    direction : int
        Sign of the guard's rate: 1 rising, -1 falling; 0 for time events.
    rate : float
        Rate of the guard (SR eq. 4); 1.0 for time events.
    rate_scale : float
        How fast the guard would move if it went through the range it has had in the time of the run.
    follows : bool
        Whether the transition fired on entry because its guard was past its threshold: its time is that of
        what came before it, whatever its guard says.
    count : int
        For ``every=``, how many periods have passed; 0 otherwise.
    x_minus, x_plus : ndarray
        (y, z) before and after, in the source's and the target's variables.
    xdot_minus, xdot_plus : ndarray
        Their time derivatives.
    memory_minus, memory_plus : ndarray
        Memory before and after.
    unknowns : dict
        Values of the reset's own unknowns, such as impulses, by name.
    earlier : EventRecord or None
        The event before at the same instant.
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
    xi: Array  # what the transition solved for; see `TransitionMap`
    unknowns: Mapping[str, Any]
    certified: bool = False  # nothing about it needs a closer look for derivatives
    earlier: EventRecord | None = None

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
    """A knot of signals: their coefficients in the memory change, nothing else does.

    `entries` are the places of all signals in the memory, `intervals` the intervals that begin, by signal.
    """

    time: float
    entries: NDArray[np.int64]
    intervals: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class MeasurementRecord:
    """A measurement that was taken: which one of the system's, and where."""

    time: float
    index: int
    mode: ModeSystem
    x: Array
    xdot: Array
    memory: Array
