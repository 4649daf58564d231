"""Relations evaluated at an instant: in resets, costs, measurements and initial values, and those of constants.

They are not events. If the accuracy of the run does not determine the side of a relation, both sides are evaluated; if
they differ in value or derivative, there are only one-sided derivatives, which are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import casadi as ca
import numpy as np

from dae_hybrid.codegen.casadi_tools import kind_for
from dae_hybrid.codegen.kernels import Kernel, NotPicklable
from dae_hybrid.conditions.error_estimate import SAFETY_FACTOR
from dae_hybrid.errors import EventError
from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.port.records import EventRecord, MeasurementRecord
from dae_hybrid.simulation.event_logic import MAX_SIMULTANEITY_RTOLS, SIMULTANEITY_RTOLS, ZERO_ROUNDINGS
from dae_hybrid.statement.discontinuities import jumps
from dae_hybrid.statement.discontinuous_nodes import bare
from dae_hybrid.statement.lookup import without_look_ups
from dae_hybrid.system.derivative_conditions import Conditions
from dae_hybrid.system.linearisation import chain

if TYPE_CHECKING:
    from dae_hybrid.conditions.error_estimate import ErrorEstimate
    from dae_hybrid.conditions.resting import Kinks
    from dae_hybrid.conditions.slopes import Slopes
    from dae_hybrid.sensitivity.forward import TangentState
    from dae_hybrid.system.system import ModeSystem
    from dae_hybrid.system.watched import Watched
    from dae_hybrid.trajectory.trajectory import Part, Trajectory

#: relative difference below which sides are equal, and relative change below which a relation is constant
SIDE_RTOL, CHANGE_RTOL = 1e-6, 1e-6


@dataclass(frozen=True, eq=False)
class Branches:
    """The relations in expressions that are evaluated at one place.

    `what` describes the place. Relations of `fixed` symbols do not move with the parameters; those of `moving` ones are
    events, or are integrated across. With `kinks`, the kinks among the latter are selected instead of the others.
    """

    what: str
    expressions: Sequence[ca.MX]
    lower: Callable[[str, Sequence[tuple[str, ca.MX]]], ca.Function]  # to a function of (t, x, m, p) and more
    fixed: Set[int]
    moving: Set[int] = frozenset()
    kinks: bool = False

    @cached_property
    def _jumps(self) -> list[Any]:
        found = []
        for entry, node, forced in jumps(self.expressions):
            symbols = {s.__hash__() for s in ca.symvar(ca.veccat(*entry.arguments))}
            moves = not symbols.isdisjoint(self.moving)
            if (moves and entry.is_kink if self.kinks else not moves) and not symbols <= self.fixed:
                found.append((entry, without_look_ups(bare(str(node))), forced))
        return found

    def __bool__(self) -> bool:
        return bool(self._jumps)

    @property
    def count(self) -> int:
        """Number of relations."""
        return len(self._jumps)

    @cached_property
    def margins(self) -> Kernel:
        """(t, x, m, p, ...) -> distances from the thresholds of relations, and their derivatives by (t, x, m, p)."""
        return self._kernel([ca.vertcat(*(entry.sides()[0] for entry, _, _ in self._jumps))])

    @cached_property
    def _values(self) -> Kernel:
        """Map a point to the values on both sides of every relation, and their derivatives by (t, x, m, p)."""
        return self._kernel(
            [ca.veccat(*forced(side)) for entry, _, forced in self._jumps for side in entry.sides()[1:]]
        )

    def _kernel(self, columns: list[ca.MX]) -> Kernel:
        function = self.lower("branches", [(self.what, column) for column in columns])
        kind = kind_for([function])
        point = [kind.sym(f"a{i}", function.size1_in(i)) for i in range(function.n_in())]
        outputs = [ca.densify(value) for value in function.call(point)]
        by_u = [ca.densify(ca.jacobian(value, ca.vertcat(*point[:4]))) for value in outputs]
        return Kernel(ca.Function("branches", point, [*outputs, *by_u]), range(len(outputs), 2 * len(outputs)))

    def sides(self, point: Sequence[Any]) -> list[bool]:
        """Whether each relation is above its threshold."""
        found: list[bool] = (self.margins(*point)[0] > 0).ravel().tolist()
        return found

    def undecided(
        self, point: Sequence[Any], allowed: Array, estimate: ErrorEstimate, reference: ReferencePoint
    ) -> list[tuple[str, Array, bool]]:
        """Return relations at their thresholds, to the accuracy of (t, x, m), whose sides differ.

        Each comes with the derivatives of its distance from the threshold by (t, x, m, p), and whether the values of
        the sides differ. `allowed` are tolerances of (t, x, m); `estimate` is the error of the run in tolerances.
        """
        margins, by_u = self.margins(*point)
        u = np.concatenate([np.atleast_1d(np.asarray(part, dtype=float)) for part in point[:4]])
        with np.errstate(invalid="ignore", over="ignore"):
            tolerances = np.abs(by_u[:, : allowed.size]) @ allowed
            rounding = ZERO_ROUNDINGS * EPS * np.abs(by_u) @ np.abs(u) + np.finfo(float).tiny
            known, away = SIMULTANEITY_RTOLS * tolerances + rounding, np.abs(margins)
            within = np.maximum(
                MAX_SIMULTANEITY_RTOLS * tolerances,
                SIMULTANEITY_RTOLS * np.abs(by_u[:, 1 : 1 + reference.allowed.size]) @ reference.allowed,
            )
            if np.any((away > known) & (away <= within)):
                t, late = float(point[0]), np.abs(by_u[:, 0]) * (allowed[0] > 0)
                known = np.maximum(known, estimate.state_error(t) * tolerances + late * estimate.event_time_error(t))
                other = reference.point()
                if other is not None:
                    known = np.maximum(known, SAFETY_FACTOR * np.abs(margins - self.margins(*other)[0]))
        near = np.flatnonzero(away <= known)
        found = []
        for i in near.tolist():
            values, slopes = self._differ(i, point)
            if values or slopes:
                found.append((self._jumps[i][1], by_u[i], values))
        return found

    def _differ(self, i: int, point: Sequence[Any]) -> tuple[bool, bool]:
        """Return whether the values, and whether their derivatives depend on the side."""
        parts = self._values(*point)
        values, slopes = ((parts[k + 2 * i], parts[k + 2 * i + 1]) for k in (0, len(parts) // 2))
        with np.errstate(invalid="ignore"):
            jump = np.abs(values[0] - values[1]) - SIDE_RTOL * np.maximum(*map(np.abs, values))
            kink = np.abs(slopes[0] - slopes[1]) - SIDE_RTOL * np.maximum(*map(np.abs, slopes))
            rounding = (
                np.abs(kink).max(initial=0.0) * ZERO_ROUNDINGS * EPS * sum(np.abs(part).sum() for part in point[:4])
            )
        return not np.all(jump <= rounding), not np.all(kink <= 0)


@dataclass(frozen=True)
class ReferencePoint:
    """The same point of the second run of `ErrorEstimate`, and tolerances of x at the largest values of the run.

    The error of a state that is close to zero only for a moment is not relative to its value there.
    """

    allowed: Array
    point: Callable[[], tuple[Any, ...] | None]


NO_REFERENCE = ReferencePoint(np.zeros(0), lambda: None)


@dataclass(frozen=True, eq=False)
class BranchTable(NotPicklable):
    """The relations of a system that are not events, by the place of their evaluation.

    `transitions` are by index, with the function for their inputs after (t, x-, m-, p); `permits` are those whose only
    relations are in the condition `when`; `measurements` by index and mode, `ends` and `constants` by mode; `start` is
    that of the initial mode. `guards` are the kinks of guards by transition, `equations` those of equations and
    integrands by mode. `called` are the functions, by mode, that may jump without showing it, `slopes` the
    expressions whose slopes may be infinite, `directions` the vectors by whose norms equations divide.
    """

    transitions: Mapping[int, tuple[Branches, Callable[[EventRecord], list[Any]]]]
    measurements: Mapping[int, Callable[[int], Branches]]
    ends: Mapping[int, Branches]
    constants: Mapping[int, Branches]
    start: Branches | None
    guards: Mapping[int, Branches]
    equations: Mapping[int, Kinks]
    called: Mapping[int, Watched]
    slopes: Mapping[int, Slopes]
    directions: Mapping[int, Watched]
    permits: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        at_instants = self.transitions or self.measurements or self.ends or self.constants or self.start
        return bool(at_instants or self.guards)

    def evaluated(self, trajectory: Trajectory) -> Iterator[tuple[Part, int, int]]:
        """Yield the parts of a run at which relations are evaluated, with how many events and measurements before."""
        return trajectory.parts.chosen(self.constants.keys(), self.transitions.keys() | self.guards.keys())


def undecided_branches(trajectory: Trajectory, estimate: ErrorEstimate) -> list[UndecidedBranch]:
    """Return the relations of a run whose side its accuracy does not determine."""
    table = trajectory.system.branches
    return list(_undecided_branches(trajectory, table, estimate)) if table else []


def branch_sides(trajectory: Trajectory) -> list[bool]:
    """Sides of the relations of a run that are not events, in the order of their evaluation."""
    from dae_hybrid.trajectory.trajectory import Segment  # avoids a circular import

    table, p, found = trajectory.system.branches, trajectory.parameters, list[bool]()
    if not table:
        return found

    def note(branches: Branches | None, *point: Any) -> None:
        if branches:
            found.extend(branches.sides(point))

    start, (t, index, x, m) = trajectory.start, trajectory.final
    note(table.start, start.t, start.x, start.at.m, p)
    for part, *_ in table.evaluated(trajectory):
        if isinstance(part, Segment):
            note(table.constants.get(part.mode.index), part.t_start, part.x_start, part.memory, p)
        elif isinstance(part, EventRecord):
            before = part.time, part.x_minus, part.memory_minus, p
            note(table.guards.get(part.index), *before)
            if part.index in table.transitions:
                branches, more = table.transitions[part.index]
                note(branches, *before, *more(part))
        elif isinstance(part, MeasurementRecord) and part.index in table.measurements:
            note(table.measurements[part.index](part.mode.index), part.time, part.x, part.memory, p)
    note(table.ends.get(index), t, x, m, p)
    return found


@dataclass(frozen=True, eq=False)
class UndecidedBranch:
    """A relation whose side is undetermined, and the number of events before it."""

    what: str
    text: str
    time: float
    mode: ModeSystem
    by_u: Array
    jumps: bool  # the sides differ in values, not only in derivatives
    n_events: int
    at_event: bool

    @property
    def is_constant(self) -> bool:
        """Whether it depends on memory and parameters alone."""
        return not self.by_u[: 1 + self.mode.variables.size].any()

    @property
    def matters(self) -> bool:
        """Whether derivatives are one-sided for any change of the relation with the parameters."""
        return not self.is_constant and (self.jumps or not self.at_event)

    def moves(self, trajectory: Trajectory, directions: TangentState) -> bool:
        """Whether the relation, of memory and parameters or at an event, moves with the parameters."""
        n, ny = 1 + self.mode.variables.size, self.mode.differential.size
        nm = self.by_u.size - n - directions.p.size
        if self.is_constant or not self.at_event:
            if self.n_events:
                state = directions.sides[self.n_events - 1][1]
            else:
                state = trajectory.start.derivatives @ directions.directions
            return bool(np.any(self.by_u[n : n + nm] @ state[ny:] + self.by_u[n + nm :] @ directions.directions))
        event, tau = trajectory.events[self.n_events], directions.event_times[self.n_events]
        state, later = directions.sides[self.n_events][0], np.outer(event.derivative_minus, tau)
        by_w = chain(self.mode, event.time, event.x_minus, event.memory_minus, directions.p)
        by_u = np.concatenate((self.by_u[1:], self.by_u[:1])) @ by_w  # by (w, p, t)
        changes = np.vstack((later, state, directions.directions, tau))  # those of the state cancel each other
        terms = np.concatenate((by_u[:ny], by_u))[:, None] * changes
        return bool(np.any(np.abs(terms.sum(axis=0)) > CHANGE_RTOL * np.abs(terms).sum(axis=0)))

    def refuse(self, conditions: Conditions) -> None:
        """Refuse the derivatives of the run."""
        conditions.fail_as_one_sided(
            EventError(
                f"In {self.what}, {self.text} is where it changes, to the accuracy of the run, and what follows from "
                "either side differs: there are only one-sided derivatives.",
                mode=self.mode.name,
                time=self.time,
                remedy="Change the parameters a little, tighten rtol and atol, or leave parameters that choose a "
                "branch out of wrt=. Where the sides meet smoothly, mark the expression by smooth().",
            )
        )


def _undecided_branches(
    trajectory: Trajectory, table: BranchTable, estimate: ErrorEstimate
) -> Iterator[UndecidedBranch]:
    from dae_hybrid.trajectory.trajectory import Segment  # avoids a circular import

    system, p, options, count = trajectory.system, trajectory.parameters, trajectory.options, 0

    def undecided_at(
        branches: Branches | None,
        mode: ModeSystem,
        *point: Any,
        late: float = 0.0,
        reference: ReferencePoint = NO_REFERENCE,
    ) -> Iterator[UndecidedBranch]:
        if branches is not None:
            of_memory = options.rtol * np.abs(point[2])
            allowed = np.concatenate(([late], options.allowed(mode.variables, point[1]), of_memory))
            for text, by_u, values in branches.undecided(point, allowed, estimate, reference):
                yield UndecidedBranch(branches.what, text, float(point[0]), mode, by_u, values, count, at_event)

    def reference(mode: ModeSystem, point: Callable[[], tuple[int, float, Array, Array] | None]) -> ReferencePoint:
        def same() -> tuple[Any, ...] | None:
            other = point()
            return None if other is None or other[0] != mode.index else (*other[1:], p)

        return ReferencePoint(options.rtol * trajectory.largest(mode), same)

    def known(t: float) -> float:
        return options.rtol * max(abs(t), t - trajectory.t_span[0])

    start, at_event = trajectory.start, False
    yield from undecided_at(table.start, start.mode, start.t, start.x, start.at.m, p)
    for part, n_events, n_measured in table.evaluated(trajectory):
        count = n_events
        if isinstance(part, Segment):
            mode = part.mode
            yield from undecided_at(table.constants.get(mode.index), mode, part.t_start, part.x_start, part.memory, p)
        elif isinstance(part, EventRecord):
            source, at_event = system.modes[system.transitions[part.index].source], True
            yield from undecided_at(table.guards.get(part.index), source, part.time, part.x_minus, part.memory_minus, p)
            if part.index in table.transitions:
                branches, more = table.transitions[part.index]
                late = known(part.time) if part.direction else 0.0
                yield from undecided_at(
                    branches, source, part.time, part.x_minus, part.memory_minus, p, *more(part), late=late
                )
            at_event = False
        elif isinstance(part, MeasurementRecord) and part.index in table.measurements:
            own = table.measurements[part.index](part.mode.index)
            again = reference(part.mode, partial(estimate.measured, n_measured))
            yield from undecided_at(own, part.mode, part.time, part.x, part.memory, p, reference=again)
    count = trajectory.parts.n_events
    t, index, x, m = trajectory.final
    late, end = known(t) if trajectory.ended_by_event else 0.0, table.ends.get(index)
    if end is not None:
        yield from undecided_at(
            end, system.modes[index], t, x, m, p, late=late, reference=reference(system.modes[index], estimate.final)
        )
