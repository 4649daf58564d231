"""Check of forward against adjoint analysis: lambda . S v is constant along the run, across transitions too.

For a direction v of the parameters forward analysis propagates dw = S v and the derivative of the functional so far,
the adjoint sweep propagates L = dG/dw and the contributions to dG/dp from there on. At every point of the run

    L . dw  +  (derivative of G so far)  +  (contributions to dG/dp from there on) . v  =  dG . v

By SR eq. 12, 20 and 36 the left-hand side is constant between transitions, and the maps across a transition are
transposes of each other. One direction and one sweep detect an error in any parameter, and locate it in time: the
direction is one in which all parameters contribute alike to dG . v, so that no derivative hides another one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dae_hybrid.errors import DualityError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.native_plan import NativeRun
from dae_hybrid.port.record_table import RecordTable
from dae_hybrid.port.records import EventRecord
from dae_hybrid.port.segment_rules import same_instant
from dae_hybrid.sensitivity.adjoint import AdjointSweep
from dae_hybrid.sensitivity.event_sides import side_tangents
from dae_hybrid.sensitivity.forward import TangentState
from dae_hybrid.system.derivative_conditions import Conditions
from dae_hybrid.system.initial import RunStart
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.system.transition_map import TransitionMap
from dae_hybrid.trajectory.trajectory import SegmentSensitivities, Trajectory

#: remedy if no error test covered the derivatives
UNTESTED = (
    "Leave sensitivity_error_control on: with sensitivity_error_control=False no error test has seen the derivatives "
    "of forward analysis."
)
#: gradients below this share of the functional, and contributions of single parameters below this share of it or of the
#: largest, are compared on that scale
MIN_GRADIENT_SHARE = 1e-3


class SweepResult(NamedTuple):
    """Result of a backward sweep; `adjoint_at_events()` returns `seen` of `dae_hybrid.sensitivity.adjoint.gradient`."""

    sweep: AdjointSweep
    gradient: Array
    statistics: dict[str, int]
    adjoint_at_events: Callable[[], list[tuple[Array, Array]]]

    @property
    def sizes(self) -> Array:
        """Size of each component: what its states contribute, or its integral."""
        return np.maximum(self.sweep.sizes, np.abs(self.sweep.trajectory.integrals[list(self.sweep.components)]))


class TangentTrace(TangentState):
    """Tangents of a run, with one linear combination recorded before the first event of every instant."""

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

    def reset(self) -> None:
        """See `TangentState`."""
        super().reset()
        self.history: list[tuple[float, Array, Array]] = []  # time, dw, derivative of the functionals so far

    def on_transition(self, transition: TransitionMap, event: EventRecord) -> None:
        """Record the combination, then propagate the derivatives across the transition."""
        if not event.order:
            self.history.append((event.time, self.state @ self.combination, self.combination @ self.costs))
        super().on_transition(transition, event)

    def on_native_run(self, start: RunStart, run: NativeRun) -> Callable[[], SegmentSensitivities]:
        """See `TangentState`; here the run is evaluated at once."""
        further = super().on_native_run(start, run)
        further()
        return further

    def on_native_events(self, table: RecordTable) -> None:
        """See `TangentState`."""
        earlier = self.costs
        super().on_native_events(table)
        measured, taken = iter([*self.measurement_gains(table), (np.inf, earlier)]), np.zeros_like(earlier)
        time, gained = next(measured)
        orders = table.orders[table.is_event].tolist()
        for (event, _), order in zip(table.events(), orders, strict=True):
            if order:
                continue
            while time < event["time"]:
                taken = taken + gained
                time, gained = next(measured)
            before = table.state_derivatives(event["before"], event["source"]) @ self.combination
            costs = earlier
            if table.n_integrals:
                costs = self.initial_gains + event["costs_before"].reshape(self.count, table.n_integrals)
            if event["gained"].size:
                costs = costs + event["gained"].reshape(costs.shape)
            self.history.append((event["time"], before, self.combination @ (costs + taken)))


@dataclass(frozen=True, eq=False)
class Duality:
    """Agreement of forward and adjoint analysis.

    Attributes
    ----------
    functional : str
    defect : float
        Largest difference of dG . v, relative to the terms of the sum.
    allowed : float
        Tolerance for it.
    direction : ndarray, shape (n_p,)
        v: a multiple of every parameter, of either sign.
    forward, adjoint : ndarray, shape (k,)
        dG . v by either analysis.
    times : ndarray, shape (n_events + 2,)
        Start, events and end of the run.
    values : ndarray, shape (n_events + 2, k)
        The left-hand side there (before each event): constant if both are right.
    """

    functional: str
    defect: float
    allowed: float
    direction: Array
    forward: Array
    adjoint: Array
    times: Array
    values: Array
    is_untested: bool = False  # by ``sensitivity_error_control=False``

    def __repr__(self) -> str:
        said = "passed" if self.passed else "FAILED"
        return f"<Duality of '{self.functional}': {said}, difference {self.defect:.1e}, allowed {self.allowed:.1e}>"

    @property
    def passed(self) -> bool:
        """Whether the difference is within the tolerance."""
        return bool(self.defect <= self.allowed)

    @property
    def worst(self) -> tuple[float, float]:
        """The interval from one event, inclusive, to the next over which the value changes most."""
        change = np.abs(np.diff(self.values, axis=0)).max(axis=1, initial=0.0)
        i = int(np.argmax(change)) if np.all(np.isfinite(change)) else 0
        return float(self.times[i]), float(self.times[i + 1])

    def error(self) -> DualityError:
        """Return the error of a failed check."""
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
    """Return a reproducible multiple between 0.5 and 1.5 of every parameter, of either sign."""
    random = np.random.default_rng(which)
    factors = random.uniform(0.5, 1.5, parameters.size) * random.choice([-1.0, 1.0], parameters.size)
    return np.asarray(factors * np.where(parameters != 0, np.abs(parameters), 1.0))


def balanced(swept: SweepResult, parameters: Array, which: int = 0) -> Array:
    """Return a direction in which the parameters, of which a sweep has the derivatives, contribute alike to dG . v.

    Contributions have one sign: in a direction in which they cancel, their errors may do so, too. What is not finite is
    refused by who asked for the gradient.
    """
    v = direction(parameters, which)
    changes = swept.gradient * np.where(parameters != 0, np.abs(parameters), 1.0)
    changes = changes / _scale(swept, changes)
    changes[~np.isfinite(changes)] = 0.0
    largest = changes[np.abs(changes).argmax(axis=0), np.arange(v.size)]
    share = np.where(np.abs(largest) >= MIN_GRADIENT_SHARE, np.abs(largest), 1.0)
    v = np.where(largest != 0, np.copysign(v, largest), v)
    return np.asarray(v * (share.min(initial=np.inf) / share))


def _scale(swept: SweepResult, changes: Array) -> Array:
    """Return the scale of the contributions of single parameters to each component, shape (k, 1)."""
    scale = np.maximum(swept.sizes, np.abs(changes).max(axis=1, initial=0.0))[:, None]
    return np.where(scale > 0, scale, 1.0)


def compare(
    functional: str,
    swept: SweepResult,
    tangent: TangentTrace,
    total: Array,
    v: Array,
    allowed: float,
    gradient: Array | None = None,
) -> Duality:
    """Check one functional: a sweep against the tangent of a run with derivatives `total` (n_functionals).

    v (n_wrt) is the direction of both. A `gradient` (n_functionals, n_wrt) by forward analysis is compared as well.
    """
    run, chosen = swept.sweep.trajectory, list(swept.sweep.components)
    forward, adjoint = total[chosen], swept.gradient @ v
    values, times = [adjoint], [run.t_span[0]]
    adjoints = swept.adjoint_at_events()
    same = len(tangent.history) == len(adjoints)
    if adjoints and same:
        sides = _side_gains(run, tangent)
        for (t, dw, gained), (lam, share) in zip(tangent.history, reversed(adjoints), strict=True):
            same = same and dw.size == lam.shape[1]  # otherwise the two runs took different transitions
            earlier = (own for time, own in sides if time < t and not same_instant(time, t, run.t_span[0]))
            gained = gained + sum(earlier, np.zeros_like(gained))
            values.append(lam @ dw + gained[chosen] + share @ v if same else np.full(len(chosen), np.nan))
            times.append(t)
    scale = np.maximum(np.abs(swept.gradient) @ np.abs(v), MIN_GRADIENT_SHARE * swept.sizes)
    defect = float((np.abs(forward - adjoint) / scale).max())
    if gradient is not None:
        changes = swept.gradient * v
        size, whole = np.abs(changes), _scale(swept, changes)
        size = np.where(size >= MIN_GRADIENT_SHARE * whole, size, whole)
        defect = float((np.abs((gradient[chosen] - swept.gradient) * v) / size).max(initial=defect))
    return Duality(
        functional=functional,
        defect=defect if same or not adjoints else np.inf,
        allowed=allowed,
        direction=v,
        forward=forward,
        adjoint=adjoint,
        times=np.array([*times, run.final[0]]),
        values=np.array([*values, forward]),
        is_untested=not run.options.sensitivity_error_control,
    )


def _side_gains(run: Trajectory, tangent: TangentTrace) -> list[tuple[float, Array]]:
    """Return times and contributions (n_functionals,) of the sides of events that decide peaks."""
    found, sides = list[tuple[float, Array]](), run.system.sides
    if not sides:
        return found
    tangents = side_tangents(run, sides, tangent.sides, tangent.event_times, tangent.directions)
    for side, (component, own) in zip(sides, tangents, strict=True):
        gained = np.zeros(run.system.functionals.size)
        gained[component] = own @ tangent.combination
        found.append((run.events[side.event].time, gained))
    return found
