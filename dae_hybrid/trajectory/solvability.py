"""Conditions for the existence of a run and of its derivatives, as numbers: SR eq. 4, 17 and section 4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dae_hybrid.numerics.algebraic import closed_by_continuity, reciprocal_condition
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.matrices import vstack
from dae_hybrid.tables import align, counted, html

if TYPE_CHECKING:
    from dae_hybrid.port.records import EventRecord
    from dae_hybrid.system.system import ModeSystem
    from dae_hybrid.trajectory.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Solvability:
    """Conditions at one point, the start or a transition.

    Attributes
    ----------
    time : float
    transition : str or None
        None at the start.
    rate : float
        Rate of the guard, D of SR eq. 4; NaN without a guard.
    relative_rate : float
        The rate over the guard's range per duration of the run: a small value means grazing.
    arrival : float
        Condition number of the equations for the values after the transition (of the initial equations at the start),
        the matrices of SR eq. 2, 4, 17; 1 if the values are given explicitly, infinite if the matrix is singular.
    index : float
        Condition number of [F_y' | F_z] of the mode entered, C B in index 2; 1 for an ODE.
    branch : str
        Which root of these equations was taken: that by "continuity" of the algebraic variables, the one that Newton's
        method found from the "values before" the transition (or its ``guess=``), or the one that it found from the
        declared "guess" where the first led to no regular root. Empty at the start, and without equations.
    """

    time: float
    transition: str | None
    rate: float
    relative_rate: float
    arrival: float
    index: float
    branch: str = ""


class SolvabilityReport(tuple[Solvability, ...]):
    """Conditions at the start and at every transition of a run; prints as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<SolvabilityReport of {counted(len(self), 'point')}>"

    def _repr_html_(self) -> str:
        return html(repr(self), self._rows())

    def _rows(self) -> list[list[str]]:
        columns = ("condition of the arrival", "condition of [F_y'|F_z]", "root from")
        rows = [["t", "transition", "rate", "relative rate", *columns]]
        for s in self:
            rates = ["", ""] if np.isnan(s.rate) else [f"{s.rate:.3g}", f"{s.relative_rate:.1e}"]
            conditions = (f"{s.arrival:.1e}", f"{s.index:.1e}")
            rows.append([f"{s.time:.9g}", s.transition or "(start)", *rates, *conditions, s.branch])
        return rows

    def __str__(self) -> str:
        return "\n".join(align(self._rows(), left=(1, 6)))


def solvability(trajectory: Trajectory) -> SolvabilityReport:
    """Evaluate the conditions along a trajectory."""
    system, p = trajectory.system, trajectory.parameters
    start = trajectory.start
    found = [
        Solvability(
            start.t,
            None,
            np.nan,
            np.nan,
            _condition(start.matrix()),
            _index(start.mode, start.t, start.x, start.at.m, p),
        )
    ]
    for event in trajectory.events:
        transition = system.transitions[event.index]
        guarded = not transition.trigger.is_timed
        scale = event.rate_scale or 1.0
        arrival, index, branch = 1.0, 1.0, ""
        if transition.target is not None:
            target = system.modes[transition.target]
            arrival = _arrival(trajectory, event, target)
            index = _index(target, event.time, event.x_plus, event.memory_plus, p)
            branch = transition.origin(target, event, p)
        rate = event.rate if guarded else np.nan
        found.append(Solvability(event.time, event.transition, rate, abs(rate) / scale, arrival, index, branch))
    return SolvabilityReport(found)


def _condition(matrix: Array) -> float:
    reciprocal = reciprocal_condition(matrix)
    return 1 / reciprocal if reciprocal else np.inf


def _index(mode: ModeSystem, t: float, x: Array, m: Array, p: Array) -> float:
    return _condition(mode.kernels["closure"](t, x, m, p)[1])


def _arrival(trajectory: Trajectory, event: EventRecord, target: ModeSystem) -> float:
    transition = trajectory.system.transitions[event.index]
    xi = event.xi
    if not xi.size:
        return 1.0
    after = transition.kernels["after"](event.time, event.x_minus, event.memory_minus, xi, trajectory.parameters)
    try:
        kept = closed_by_continuity(after[3], after[4], transition.z(target))
    except np.linalg.LinAlgError:
        return np.inf
    return _condition(vstack((after[3], kept)))
