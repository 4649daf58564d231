"""The map across a transition: event time, values after it, and their linearisation (see `linearisation`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import issparse

from dae_hybrid.codegen.kernels import Kernel
from dae_hybrid.errors import ConsistencyError, DaeHybridError, EventError, GrazingError, NonFiniteError
from dae_hybrid.layout import Layout
from dae_hybrid.numerics.algebraic import (
    RANK_TOLERANCE,
    RESIDUAL_ROUNDINGS,
    closed_by_continuity,
    first_solution,
    solve_algebraic,
)
from dae_hybrid.numerics.arrays import EPS, Array, all_finite, vanishes
from dae_hybrid.numerics.matrices import MAX_DENSE_ROWS, Matrix, column, dense, is_finite, row_maxima, vstack
from dae_hybrid.numerics.operators import of
from dae_hybrid.options import Options
from dae_hybrid.port.failure_messages import SUSPECTS, refuse_not_finite, said
from dae_hybrid.port.point import StatePoint
from dae_hybrid.port.segment_rules import completed
from dae_hybrid.statement.declarations import Relation, VariableBound
from dae_hybrid.statement.triggers import Trigger
from dae_hybrid.system.derivative_conditions import Conditions
from dae_hybrid.system.excess import Reached
from dae_hybrid.system.linearisation import TransitionLinearisation, chain
from dae_hybrid.system.projection import nearest_point
from dae_hybrid.system.reinitialisation import arrival_derivative, refuse_singular_entry, undetermined

#: residuals within this many state tolerances may be zero: errors accumulate along a run
STATE_ERROR_FACTOR = 100.0
#: a guard with a rate below this multiple of its range over the run's duration does not cross
GRAZING_RATE_SHARE = 1e-9
#: a jump of rates that vanishes with a guard, as its root or faster, is below this share of what it was before: the
#: guard has been located to some roundings
VANISHED_SHARE = 16 * EPS**0.5

if TYPE_CHECKING:
    from dae_hybrid.port.records import EventRecord
    from dae_hybrid.system.system import ModeSystem


#: what a record says of motion along the surface of a relation, by the status in its memory
SLIDING = ("is free again", "slides", "leaves to false", "leaves to true")
CLOCK = 2  # (start time, count)


def schedule_state(start: float, count: int) -> Array:
    """Schedule state of a trigger: the start of the run and the number of elapsed periods."""
    return np.array([start, float(count)])


def _cancels(matrix: Matrix, sizes: Matrix) -> bool:
    """Whether every entry of a matrix is zero relative to its terms."""
    if issparse(sizes):
        return bool(row_maxima(matrix).max(initial=0.0) <= RANK_TOLERANCE * row_maxima(sizes).min(initial=np.inf))
    return vanishes(dense(matrix), sizes, RANK_TOLERANCE / EPS)


@dataclass(frozen=True, eq=False)
class TransitionMap:
    """One transition of a built system.

    ============ =================================== =====================================================
    kernel       inputs                              outputs
    ============ =================================== =====================================================
    time         p, clock                            scheduled time (timed only)
    jump         t, x-, m-, p                        x+, m+, xi, Phi and the size of its terms with continuous z+,
                                                     where Newton's method starts else, and the target's `entry`
    after        t, x-, m-, xi, p                    x+, m+, Phi, dPhi/dxi with m+ following, sizes of the terms
                                                     of both
    linear       t, x-, m-, xi, p                    y+, m+ and Phi, each by u- and by xi; sizes of the terms of
                                                     dPhi/dxi; the start of z+ by u-
    when         t, x-, m-, p                        not 0 if the transition may fire (where there is a condition)
    sides        t, x-, m-, p                        margins of the relations in that condition, by (t, x-, m-, p)
    zero side    t, x-, m-, p                        `zero_side` where it depends on the values
    priority     t, x-, m-, p                        order among the transitions of an instant, by u- (where it is
                                                     stated)
    conditions   t, x-, m-, p                        the reset's equations without unknowns, by u-, and the sizes of
                                                     their terms
    cost         t, x-, m-, xi, p                    costs of all functionals, by u-, by xi (where there are any)
    tangent      t, x-, m-, x+, m+, p, clock         h by (w-, p, t); where xi is z+ and z+ is continuous (y+, m+)
                                                     by (w-, p, t); y'-, g-, y'+, g+; where xi is z+ dPhi/dxi and
                                                     the sizes of its terms
    slopes       as `tangent`                        its first two outputs, the second without its zeros
    ============ =================================== =====================================================

    xi are the unknowns of the arrival: the entries `free` of y+, then z+, then the reset's own `unknowns`, then the
    multipliers of a projection; Phi(xi) = 0 are its equations. `clock` is (start time, count): a periodic transition
    fires for the count-th time at start + count * period.
    """

    name: str  # of its statement: the same transition from several modes has one name
    index: int
    source: int
    target: int | None
    direction: int
    on_entry: str
    trigger: Trigger
    kernels: Mapping[str, Kernel]
    free: tuple[int, ...]
    unknowns: Layout
    labels: tuple[str, ...]  # labels of the entries of xi
    simple: bool  # xi is z+ alone
    helping: tuple[int, ...]  # indices of the target's constraints among the equations for xi
    equations: tuple[str, ...]  # labels of the equations for xi
    conditions: tuple[str, ...]  # labels of the reset equations without unknowns
    movable: bool  # whether its time depends on parameters or state
    surface: str = ""  # text of the guard
    projects: bool = False  # whether xi is found by a projection
    refusal: str = ""  # reason why the run cannot continue after it
    clock: str = ""  # identifies periodic transitions that tick together
    bound: VariableBound | None = None  # the bound that is violated there
    becomes: bool = False  # also fires if another transition makes its guard negative
    jumps: bool = False  # its guard may jump across zero when a relation changes
    own_zero_side: int = 0  # see `zero_side`
    relation: Relation | None = None  # the relation whose memory it updates
    keeps: bool = False  # its guard does not depend on anything that it changes
    shared: str = ""  # what it has in common with the same transition from other modes
    overdue: str = ""  # what is wrong if its guard is past its threshold on entry
    owner: int = -1  # the transition that it replaces where the condition of that one does not hold
    otherwise: int = -1  # the transition that replaces it where its condition does not hold

    @property
    def trigger_index(self) -> int:
        """Index of the transition whose trigger it has."""
        return self.index if self.owner < 0 else self.owner

    @property
    def key(self) -> int | str:
        """Identity of the statement: the same transition from another mode has the same one."""
        return self.shared or self.trigger_index

    @property
    def is_empty(self) -> bool:
        """Whether it replaces one whose condition does not hold: nothing changes."""
        return self.owner >= 0

    def holds(self, t: float, x: Array, m: Array, p: Array) -> bool:
        """Whether its condition holds."""
        return self.otherwise < 0 or bool(self._finite("when", t, x, m, p))

    def priority(self, t: float, x: Array, m: Array, p: Array) -> float:
        """Its priority among the transitions of an instant."""
        return self._finite("priority", t, x, m, p) if "priority" in self.kernels else 0.0

    def zero_side(self, t: float, x: Array, m: Array, p: Array) -> int:
        """The side, 1 or -1, to which its guard counts that stays at zero; 0 for a guard that is no condition."""
        if self.relation is not None:
            return self.relation.zero_sides[1 + int(np.sign(m[self.relation.entry]))]
        return int(self._finite("zero side", t, x, m, p)) if "zero side" in self.kernels else self.own_zero_side

    def _finite(self, kernel: str, t: float, x: Array, m: Array, p: Array) -> float:
        value = float(self.kernels[kernel](t, x, m, p)[0][0])
        if not math.isfinite(value):
            raise NonFiniteError(
                f"{kernel}= of the transition is NaN or infinite where it is due.",
                transition=self.name,
                time=t,
                remedy=f"Check its expression for {SUSPECTS}.",
            )
        return value

    @property
    def refuses(self) -> bool:
        """Whether it is a condition of its mode: the run is refused where it fires, after all other transitions."""
        return bool(self.refusal) or self.bound is not None

    @property
    def is_kink(self) -> bool:
        """Whether all rates, and hence derivatives, are continuous where it fires by its own guard."""
        return self.relation is not None and self.relation.is_kink

    @property
    def is_sided(self) -> bool:
        """Whether it fires whenever its guard changes side, by leaving zero as well as by crossing it."""
        return self.relation is not None or self.jumps

    @property
    def matters(self) -> bool:
        """Whether its order relative to other transitions affects derivatives."""
        return not (self.refuses or self.is_kink)

    def title(self, memory: Array) -> str:
        """Name in a record, given the memory after it: ``"x < p" became true``."""
        if self.relation is None:
            return self.name
        relation, value = self.relation, float(memory[self.relation.entry])
        status = 0 if relation.status is None else int(memory[relation.status])
        if status or relation.is_exit:
            return f'"{relation.memory}" {SLIDING[status]}'
        became = f"{value:g}" if not relation.is_condition else "true" if value else "false"
        return f'"{relation.memory}" became {became}'

    def apply(
        self, target: ModeSystem, t: float, x: Array, m: Array, p: Array, options: Options, rates: Array | None = None
    ) -> tuple[StatePoint, Array]:
        """Return the point after the transition, consistent with the target mode (SR eq. 3, 16, 24), and xi.

        Algebraic variables are continuous if that is consistent; otherwise they solve the target's equations: the root
        found from their old values or, if Newton's method finds no regular one, from the guess of the target. `rates`
        are the rates of the target's y before the transition.
        """
        after, memory, xi, phi, phi_size, start, *entry = self.kernels["jump"](t, x, m, p)
        moved = False
        if not vanishes(phi, phi_size, RESIDUAL_ROUNDINGS):
            xi, moved = self._arrive(target, t, x, m, start, xi, p), True
        solved = bool(self.unknowns.size or self.free)
        if moved or solved:
            after, memory, _, by_xi, by_xi_size, _ = self.kernels["after"](t, x, m, xi, p)
            if solved:
                self._refuse_singular(target, t, by_xi, by_xi_size)
        if target.invariants and all_finite(after):
            after, moved = self._on_constraints(target, t, after, memory, p, options, rates), True
        if moved:
            entry = target.kernels["entry"](t, after, memory, p)
        if not (all_finite(after) and all_finite(memory)):
            self._refuse_ambiguous(target, t, memory)
            raise NonFiniteError(
                "The reset gives NaN or infinity.",
                transition=self.name,
                mode=target.name,
                time=t,
                variables=self._not_finite(target, after),
                remedy=f"Check reset= and memory= of the transition for {SUSPECTS}.",
            )
        if target.fragile and all_finite(after):
            refuse_singular_entry(target, t, after, memory, p, options, self.name)
        if not all_finite(entry[0]):
            raise NonFiniteError(
                "The equations are not finite after the transition"
                + said(target.not_finite(t, after[: target.equations.n], memory, p)[0]),
                transition=self.name,
                mode=target.name,
                time=t,
                remedy=f"Check the equations of the mode, at the values that the reset gives, for {SUSPECTS}.",
            )
        return StatePoint(after, memory, *entry), xi

    def _refuse_ambiguous(self, target: ModeSystem, t: float, memory: Array) -> None:
        """Refuse motion along the surface of a relation that is not determined: its status is NaN or infinite."""
        relation = self.relation
        if relation is None or relation.status is None or math.isfinite(memory[relation.status]):
            return
        if math.isinf(memory[relation.status]):
            raise EventError(
                f'The motion comes to rest on the surface of "{relation.memory}" from both sides, where something else '
                "jumps whose value there nothing determines.",
                transition=self.name,
                mode=target.name,
                time=t,
                remedy="State rest as a mode of its own, or what jumps as a relation of another quantity.",
            )
        leaves = relation.is_exit
        raise EventError(
            f'The motion along the surface of "{relation.memory}" is not unique: '
            + ("both sides lead away from it." if leaves else "it slides on another one, and each acts on the other."),
            transition=self.name,
            mode=target.name,
            time=t,
            remedy="Say by a transition to which side it leaves."
            if leaves
            else "State the motion along both as a mode of its own, or the relations as sums.",
        )

    def refuse_unmet(self, source: ModeSystem, t: float, before: StatePoint, p: Array, options: Options) -> None:
        """Refuse to fire if the conditions on pre-transition values do not hold to the accuracy of the state.

        Raises
        ------
        ConsistencyError
            Names the violated conditions, with their values.
        """
        if not self.conditions:
            return
        x = before.x
        values, by_u, sizes = self.kernels["conditions"](t, x, before.m, p)
        by_x = abs(by_u[:, : x.size])
        reach = STATE_ERROR_FACTOR * by_x @ options.allowed(source.variables, x)
        rounding = RESIDUAL_ROUNDINGS * EPS * (sizes + abs(t) * by_x[:, : before.xdot.size] @ abs(before.xdot))
        wrong = ~(np.abs(values) <= np.maximum(reach, rounding))
        if np.any(wrong):
            named = [
                f"{name} ({value:.3g})" for name, value, bad in zip(self.conditions, values, wrong, strict=True) if bad
            ]
            raise ConsistencyError(
                f"Conditions of the transition are not satisfied where it fires: {', '.join(named)}.",
                transition=self.name,
                mode=source.name,
                time=t,
                variables=source.differential.names,
                remedy="Let the transition fire where it holds, by its guard or that of one just before, or give a "
                "reset that leads there.",
            )

    def _refuse_singular(self, target: ModeSystem, t: float, by_xi: Array, by_xi_size: Array) -> None:
        """Refuse singular reset equations: any of their solutions may have been found."""
        if not is_finite(by_xi):
            return
        try:
            closed_by_continuity(by_xi, by_xi_size, self.z(target))
        except np.linalg.LinAlgError as reason:
            raise undetermined(self, target, t, f"{reason}") from None

    @staticmethod
    def _not_finite(target: ModeSystem, x: Array) -> list[str]:
        return [name for name, value in zip(target.variables.labels(), x, strict=True) if not math.isfinite(value)]

    def _on_constraints(
        self, target: ModeSystem, t: float, x: Array, m: Array, p: Array, options: Options, rates: Array | None
    ) -> Array:
        """Return x+ on the target's constraints to rounding; refuse if it misses them by more than the tolerance."""
        landed = target.land_within(t, x, m, p, options, rates)
        if landed is None:
            k = target.kernels["invariants"](t, x, m, p)[0]
            raise ConsistencyError(
                f"The state after the transition does not satisfy {', '.join(target.invariants)} of mode "
                f"'{target.name}': {k}.",
                transition=self.name,
                mode=target.name,
                time=t,
                variables=target.differential.names,
                remedy="Give a reset that leads onto the constraint: equations reset=[...] with post(), or project=.",
            )
        return landed

    def z(self, target: ModeSystem) -> slice:
        """Position of z+ in xi."""
        return slice(len(self.free), len(self.free) + target.algebraic.size)

    def _arrive(
        self, target: ModeSystem, t: float, x: Array, m: Array, start: Array, continuous: Array, p: Array
    ) -> Array:
        """Solve for xi; with a projection, for the nearest point."""

        def solve(begin: Array) -> Array:
            return self._solve(target, t, x, m, begin, continuous, p)

        if not self.projects:
            return first_solution(solve, self.starts(target, start))

        def fail(reason: str) -> ConsistencyError:
            return ConsistencyError(
                f"The projection does not find the nearest point: {reason}.",
                transition=self.name,
                mode=target.name,
                time=t,
                variables=self.labels[: len(self.free)],
                remedy="Move the state towards the point that is meant by reset= before it is projected, name other "
                "variables in project=, or state the reset as equations.",
            )

        def system(trial: Array) -> tuple[Array, Matrix]:
            phi, by_xi = self.kernels["after"](t, x, m, trial, p)[2:4]
            return phi, by_xi

        count = len(self.free)
        return nearest_point(solve, system, start, count=count, moved=count, multipliers=len(self.helping), fail=fail)

    def starts(self, target: ModeSystem, start: Array) -> list[Array]:
        """Where Newton's method may begin for xi: at the values before, or guess=, and at the target's guess of z."""
        guessed = start.copy()
        guessed[self.z(target)] = target.guess
        return [start, guessed]

    def origin(self, target: ModeSystem, event: EventRecord, p: Array) -> str:
        """Which of the roots a record has: that by "continuity", from the "values before", from the "guess", or ""."""
        if self.projects or not event.xi.size:
            return ""
        t, x, m = event.time, event.x_minus, event.memory_minus
        _, _, continuous, phi, phi_size, start, *_ = self.kernels["jump"](t, x, m, p)
        if vanishes(phi, phi_size, RESIDUAL_ROUNDINGS):
            return "continuity"
        try:
            found = self._solve(target, t, x, m, start, continuous, p)
        except ConsistencyError:
            return "guess"
        return "values before" if np.allclose(found, event.xi) else ""

    def _solve(
        self, target: ModeSystem, t: float, x: Array, m: Array, start: Array, continuous: Array, p: Array
    ) -> Array:
        def equations(trial: Array) -> list[Array]:
            return self.kernels["after"](t, x, m, trial, p)[2:]

        def system(trial: Array) -> tuple[Array, Array, Array]:
            phi, by_xi, _, phi_size = equations(trial)
            offset = trial - continuous
            sizes = abs(kept) @ (abs(trial) + abs(continuous))
            return np.concatenate((phi, kept @ offset)), vstack((by_xi, kept)), np.concatenate((phi_size, sizes))

        try:
            _, by_start, by_start_size, _ = equations(start)
            kept = closed_by_continuity(by_start, by_start_size, self.z(target))
        except (np.linalg.LinAlgError, ValueError):  # Newton's method reports the cause
            kept = np.zeros((0, start.size))
        try:
            return solve_algebraic(
                system, start, mode=target.name, variables=self.labels, time=t, equations=self.equations
            )
        except ConsistencyError as error:
            error.transition = self.name
            error.remedy = (
                "The reset, the target's equations and continuity do not determine these values, or Newton's method "
                "does not find them from where it starts: check reset=, memory= and the target's equations, or steer "
                "it with guess=."
            )
            raise

    def named_unknowns(self, target: ModeSystem, xi: Array) -> Mapping[str, Any]:
        """The reset's own unknowns, by name."""
        if not self.unknowns.size:
            return {}
        begin = len(self.free) + target.algebraic.size
        values = xi[begin : begin + self.unknowns.size]
        parts = {name: values[self.unknowns[name]] for name in self.unknowns.names}
        return {name: float(part[0]) if part.size == 1 else part for name, part in parts.items()}

    def guard_derivatives(
        self, source: ModeSystem, t: float, x: Array, m: Array, p: Array, clock: Array
    ) -> tuple[Array, Array, float]:
        """Derivatives of the guard by (y, m) and by p at a point of its mode, and its rate there."""
        tangent, nw = self.kernels["tangent"], source.differential.size + m.size
        after = [np.zeros(tangent.function.nnz_in(i)) for i in (3, 4)]
        h, _, flow, *_ = tangent(t, x, m, *after, p, clock)
        if source.algebraic.size > MAX_DENSE_ROWS:
            h = h @ chain(source, t, x, m, p)
        with np.errstate(invalid="ignore"):  # a derivative that is not finite is refused where it is used
            return h[0, :nw], h[0, nw : nw + p.size], float(h[0, :nw] @ flow + h[0, -1])

    def linearise(
        self,
        source: ModeSystem,
        target: ModeSystem | None,
        event: EventRecord,
        p: Array,
        clock: Array,
        conditions: Conditions,
        earlier: Callable[[], Reached] | None = None,
    ) -> TransitionLinearisation:
        """Linearise at a recorded event; `earlier` is required unless it is the first of its instant."""
        t, before, m = event.time, event.x_minus, event.memory_minus
        nw, np_ = source.differential.size + m.size, p.size
        out: list[Any] = self.kernels["tangent"](t, before, m, event.x_plus, event.memory_plus, p, clock)
        h, jump, flow_minus, g_minus, flow_plus, g_plus, by_xi, by_xi_size = out
        by_w: Matrix | None = None
        if source.algebraic.size > MAX_DENSE_ROWS:
            by_w = chain(source, t, before, m, p)
            h, jump = h @ by_w, of(jump) @ by_w if target is not None and self.simple else jump
        what = f"the trigger of transition '{self.name}'"
        refuse_not_finite(what, (h, flow_minus), mode=event.source, transition=self.name, time=t)
        rate = float(h[0, :nw] @ flow_minus + h[0, -1])
        if self.is_empty or (self.is_kink and not event.follows):
            return self._continuous(h, rate, flow_minus, g_minus, event)
        if self.comes_to_rest(source, event, p, clock):
            return self._continuous(h, rate, flow_minus, g_minus, event)
        self._refuse_grazing(event, rate, conditions)
        cost, dxi = None, np.zeros((0, nw + np_ + 1))
        costs = "cost" in self.kernels
        explicit = self.simple and not costs and _cancels(by_xi, by_xi_size)
        by_w = None if explicit else chain(source, t, before, m, p) if by_w is None else by_w
        if by_w is not None and target is not None:
            when = None if event.follows else -h[0, :-1] / rate
            jump, dxi = arrival_derivative(self, source, target, event, p, by_w, when, flow_minus, earlier)
        if by_w is not None and costs:
            _, by_u, by_xi = self.kernels["cost"](t, before, m, event.xi, p)
            with np.errstate(invalid="ignore"):  # functionals that may not be requested
                cost = by_u @ by_w + by_xi @ dxi
        return TransitionLinearisation(
            h_w=h[0, :nw],
            h_p=h[0, nw : nw + np_],
            rate=rate,
            R_w=jump[:, :nw],
            R_p=jump[:, nw : nw + np_],
            R_t=column(jump, -1),
            flow_minus=flow_minus,
            flow_plus=flow_plus,
            integrand_minus=g_minus,
            integrand_plus=g_plus,
            follows=event.follows,
            cost=cost,
        )

    def _continuous(
        self, h: Array, rate: float, flow: Array, integrand: Array, event: EventRecord
    ) -> TransitionLinearisation:
        """The linearisation of a continuous transition; the event time is fixed if the guard only touches zero."""
        nw = flow.size
        if not self._crosses(event, rate):
            h, rate = np.zeros_like(h), 1.0
        by_p = h[0, nw:-1]
        return TransitionLinearisation(
            h_w=h[0, :nw],
            h_p=by_p,
            rate=rate,
            R_w=np.eye(nw),
            R_p=np.zeros((nw, by_p.size)),
            R_t=np.zeros(nw),
            flow_minus=flow,
            flow_plus=flow,
            integrand_minus=integrand,
            integrand_plus=integrand,
        )

    def comes_to_rest(self, source: ModeSystem, event: EventRecord, p: Array, clock: Array) -> bool:
        """Whether the guard of a relation arrives at zero without a rate, and all jumps of rates vanish with it.

        A tank that empties by itself, h' = -c sqrt(h), arrives as (t* - t)^2: t* has a derivative, which is 0 / 0 here,
        and what does not jump there does not need it. The jumps are compared with those at a point from which the guard
        has come, at its range from zero.
        """
        if self.relation is None or event.follows or self._crosses(event, event.rate):
            return False
        t, e = event.time, source.equations
        by_y = self.guard_derivatives(source, t, event.x_minus, event.memory_minus, p, clock)[0][: e.n_differential]
        steepness = float(by_y @ by_y)
        if not (math.isfinite(steepness) and steepness > 0):
            return False
        moved = event.x_minus.copy()
        moved[: by_y.size] -= self.direction * event.rate_scale * max(abs(t), t - clock[0]) / steepness * by_y

        def jumps(before: Array, after: Array) -> Array:
            found = self.kernels["tangent"](t, before, event.memory_minus, after, event.memory_plus, p, clock)
            return abs(np.concatenate((found[2] - found[4], found[3] - found[5])))

        def completed_at(m: Array) -> Array:
            return source.complete(t, *completed(e, t, moved[: e.n], m, p), m, p)[0]

        try:
            with np.errstate(all="ignore"):
                there = jumps(completed_at(event.memory_minus), completed_at(event.memory_plus))
        except DaeHybridError:  # the mode is not defined there
            return False
        here = jumps(event.x_minus, event.x_plus)
        return bool(np.all((here == 0) | (here <= VANISHED_SHARE * there)))

    @staticmethod
    def _crosses(event: EventRecord, rate: float) -> bool:
        return math.isfinite(rate) and abs(rate) > GRAZING_RATE_SHARE * event.rate_scale

    def _refuse_grazing(self, event: EventRecord, rate: float, conditions: Conditions) -> None:
        """The event time is differentiable only if the guard crosses zero at a nonzero rate (SR eq. 4)."""
        if self.trigger.is_timed or event.follows:
            return
        if rate == 0.0 or not self._crosses(event, rate):
            error = GrazingError(
                f"The guard touches zero instead of crossing it (rate {rate:.3g}): derivatives do not exist there.",
                transition=self.name,
                mode=event.source,
                time=event.time,
                remedy="Change the parameters away from the grazing point, or the guard so that it crosses.",
            )
            if not rate:  # no number can be returned
                raise error
            conditions.fail(error)
