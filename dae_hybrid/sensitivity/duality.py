"""Forward and adjoint analysis as each other's witness: lambda . S v is constant, across transitions too.

For a direction v of the parameters forward analysis carries dw = S v and what the functional has gained so far, the
adjoint sweep carries L = dG/dw and what the parameters have contributed since. At every point of the run

    L . dw  +  (gained so far)  +  (shares of dG/dp from there on) . v  =  dG . v

(SR eq. 12, 20, 36 are made so that the left-hand side does not change between transitions, and the maps across a
transition are transposes of each other.) One direction and one sweep see an error in any parameter, and where it
arises.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dae_hybrid.errors import DualityError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.native_plan import NativeRun
from dae_hybrid.port.record_table import RecordTable
from dae_hybrid.port.records import EventRecord
from dae_hybrid.sensitivity.adjoint import AdjointSweep
from dae_hybrid.sensitivity.forward import TangentState
from dae_hybrid.system.derivative_conditions import Conditions
from dae_hybrid.system.initial import Start
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.system.transition_map import TransitionMap

#: gradients below this share of the functional are compared on its scale
SMALL = 1e-3
#: remedy where no error test has seen the derivatives
UNTESTED = (
    "Leave sensitivity_error_control on: with sensitivity_error_control=False no error test has seen the derivatives "
    "of forward analysis."
)


class Swept(NamedTuple):
    """What a backward sweep gives; `marks()` are what `dae_hybrid.sensitivity.adjoint.gradient` has seen."""

    sweep: AdjointSweep
    gradient: Array
    statistics: dict[str, int]
    marks: Callable[[], list[tuple[Array, Array]]]


class TangentTrace(TangentState):
    """Directions along a run, and one combination of them as it was before the first event of every instant."""

    def __init__(
        self,
        system: HybridSystem,
        parameters: Array,
        directions: Array,
        start: float,
        conditions: Conditions,
        combination: Array,
    ) -> None:
        super().__init__(system, parameters, directions, start, conditions)
        self.combination = combination

    def begin(self) -> None:
        """See `TangentState`."""
        super().begin()
        self.seen: list[tuple[float, Array, Array]] = []  # time, dw, gained so far

    def cross(self, transition: TransitionMap, event: EventRecord) -> None:
        """Carry the derivatives across a transition."""
        if not event.order:
            self.seen.append((event.time, self.state @ self.combination, self.combination @ self.costs))
        super().cross(transition, event)

    def follow(self, start: Start, run: NativeRun) -> Callable[[], dict[str, Any]]:
        """See `TangentState`; here the run is gone through at once."""
        further = super().follow(start, run)
        further()
        return further

    def absorb(self, table: RecordTable) -> None:
        """See `TangentState`."""
        earlier = self.costs
        super().absorb(table)
        measured, taken = iter([*self.gains, (np.inf, earlier)]), np.zeros_like(earlier)
        time, gained = next(measured)
        for event, _ in table.events():
            while time < event["time"]:
                taken = taken + gained
                time, gained = next(measured)
            before = table.state_derivatives(event["before"], event["source"]) @ self.combination
            costs = earlier
            if table.n_integrals:
                costs = self.given + event["costs_before"].reshape(self.count, table.n_integrals)
            if event["gained"].size:
                costs = costs + event["gained"].reshape(costs.shape)
            self.seen.append((event["time"], before, self.combination @ (costs + taken)))


@dataclass(frozen=True, eq=False)
class Duality:
    """How far forward and adjoint analysis agree.

    Attributes
    ----------
    functional : str
    defect : float
        Largest difference of dG . v, relative to the terms it is summed from.
    allowed : float
        What it may be.
    direction : ndarray, shape (n_p,)
        v: a multiple between 0.5 and 1.5 of every parameter, of either sign.
    forward, adjoint : ndarray, shape (k,)
        dG . v by both.
    times : ndarray, shape (n_events + 2,)
        Start, events and end of the run.
    values : ndarray, shape (n_events + 2, k)
        The left-hand side there (before each event): constant where everything is right.
    """

    functional: str
    defect: float
    allowed: float
    direction: Array = field(repr=False)
    forward: Array = field(repr=False)
    adjoint: Array = field(repr=False)
    times: Array = field(repr=False)
    values: Array = field(repr=False)
    is_untested: bool = field(default=False, repr=False)  # by ``sensitivity_error_control=False``

    @property
    def passed(self) -> bool:
        """Whether the difference is within what is allowed."""
        return bool(self.defect <= self.allowed)

    @property
    def worst(self) -> tuple[float, float]:
        """The stretch from one event, it included, to the next over which the value changes most."""
        change = np.abs(np.diff(self.values, axis=0)).max(axis=1, initial=0.0)
        i = int(np.argmax(change)) if np.all(np.isfinite(change)) else 0
        return float(self.times[i]), float(self.times[i + 1])

    def error(self) -> DualityError:
        """The error of a check that has failed."""
        start, end = self.worst
        if not np.isfinite(self.defect):
            return DualityError(
                f"The runs of forward and adjoint analysis of '{self.functional}' went through different transitions.",
                time=start,
                remedy=UNTESTED
                if self.is_untested
                else "Tighten rtol and atol, or set max_step or a resolution of the guards: the run is at the edge "
                "of another one, or a crossing was missed.",
            )
        return DualityError(
            f"Forward and adjoint analysis of '{self.functional}' differ by {self.defect:.2e} of their size, allowed "
            f"{self.allowed:.0e}; most of it arises from t = {start:.9g}, with what happens there, up to {end:.9g}.",
            time=start,
            remedy=UNTESTED
            if self.is_untested
            else "Tighten rtol and atol: the run is more sensitive there than they resolve. If the difference stays, "
            "compare with finite differences (check_gradient) and report it.",
        )


def direction(parameters: Array, which: int = 0) -> Array:
    """A multiple between 0.5 and 1.5 of every parameter, of either sign; the same ones every time."""
    random = np.random.default_rng(which)
    factors = random.uniform(0.5, 1.5, parameters.size) * random.choice([-1.0, 1.0], parameters.size)
    return np.asarray(factors * np.where(parameters != 0, np.abs(parameters), 1.0))


def compare(functional: str, swept: Swept, witness: TangentTrace, total: Array, v: Array, allowed: float) -> Duality:
    """The check of one functional: a sweep, and a witness that has gone along the run with `total` (n_functionals).

    v (n_wrt) is the direction of both.
    """
    run, chosen = swept.sweep.trajectory, list(swept.sweep.components)
    forward, adjoint = total[chosen], swept.gradient @ v
    values, times = [adjoint], [run.t_span[0]]
    marks = swept.marks()
    same = len(witness.seen) == len(marks)
    if marks and same:
        for (t, dw, gained), (lam, share) in zip(witness.seen, reversed(marks), strict=True):
            same = same and dw.size == lam.shape[1]  # else the two runs took different transitions
            values.append(lam @ dw + gained[chosen] + share @ v if same else np.full(len(chosen), np.nan))
            times.append(t)
    scale = np.maximum(np.abs(swept.gradient) @ np.abs(v), SMALL * swept.sweep.sizes)
    defect = float((np.abs(forward - adjoint) / scale).max())
    return Duality(
        functional=functional,
        defect=defect if same or not marks else np.inf,
        allowed=allowed,
        direction=v,
        forward=forward,
        adjoint=adjoint,
        times=np.array([*times, run.final[0]]),
        values=np.array([*values, forward]),
        is_untested=not run.options.sensitivity_error_control,
    )
