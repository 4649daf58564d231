"""The derivative of an arrival: what follows a transition, by what was before it.

The unknowns xi of an arrival solve Phi(xi; w-, p, t) = 0, so dxi = -Phi_xi^-1 Phi_(w, p, t), and (y+, m+) follow.
Equations that are too many (a constraint that the reset satisfies by itself) must be satisfied whatever the
parameters: along every admissible perturbation, one that stays on the source's constraints and on the guard. Where
other events have come before at the same instant, that is what they make of one that is admissible before the first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.sparse import csc_array, issparse

from dae_hybrid.errors import ConsistencyError, UnsupportedError
from dae_hybrid.failures import refuse_not_finite
from dae_hybrid.formulation import RANK_TOLERANCE, closed_by_continuity, refuse_multiple_root, solve_linear
from dae_hybrid.integrator import Array
from dae_hybrid.matrices import LARGE, row_maxima, vstack
from dae_hybrid.operators import Operator, below, of, solution
from dae_hybrid.options import Options

if TYPE_CHECKING:
    from dae_hybrid.records import EventRecord
    from dae_hybrid.system import ModeSystem
    from dae_hybrid.transition import TransitionMap

#: states below this share of the largest are zero where only a scale is wanted
NEGLIGIBLE = 1e-3
#: algebraic variables beyond this multiple of what their tolerances are made for are enormous
ENORMOUS = 1e6
#: an equation too many whose derivative is below this share of its terms is satisfied
EXCESS_TOLERANCE = 1e-7


class ArrivalDerivative(NamedTuple):
    """(y+, m+) and xi by (w-, p, t)."""

    jump: Any
    xi: Any


class Reached(NamedTuple):
    """Derivatives where an event fires, by (w-, p) before the first event of its instant.

    `state` is that of w- at fixed time, `tau` that of the time of the event before, None where there is none; `first`
    is the first event and `source` the mode that it left.
    """

    state: Array
    tau: Array | None
    first: EventRecord
    source: ModeSystem


def arrival_derivative(
    transition: TransitionMap,
    source: ModeSystem,
    target: ModeSystem,
    event: EventRecord,
    p: Array,
    by_w: Array,
    when: Array | None,
    flow_minus: Array,
    earlier: Callable[[], Reached] | None,
) -> ArrivalDerivative:
    """The derivative at a recorded event.

    `by_w` is the chain of the source, `when` the derivative of the event time by (w-, p), None where the transition
    only follows another one, `flow_minus` the rates of w-. `earlier` says what events before at the same instant lead
    to.

    Raises
    ------
    ConsistencyError
        The equations of the arrival are singular, or too many and not satisfied by neighbouring arrivals.
    """
    t, x, m = event.time, event.x_minus, event.memory_minus
    xi = event.xi
    linear = transition.kernels["linear"](t, x, m, xi, p)
    what = f"transition '{transition.name}'"
    refuse_not_finite(what, (by_w, *linear[:6]), mode=source.name, transition=transition.name, time=t)
    y_u, y_xi, m_u, m_xi, phi_u, phi_xi, phi_xi_size, z_u, entries = linear
    if isinstance(by_w, Operator) or issparse(phi_xi):
        return _by_products(transition, target, t, by_w, linear)
    right, right_size = -phi_u @ by_w, abs(phi_u) @ abs(by_w)
    # equations without unknowns are conditions on what was before
    bare = (row_maxima(entries) == 0.0) & (row_maxima(phi_xi_size) == 0.0)
    excess, sizes = -right[bare], right_size[bare]
    phi_xi, phi_xi_size, entries, right, right_size = (
        rows[~bare] for rows in (phi_xi, phi_xi_size, entries, right, right_size)
    )
    dxi = np.zeros((xi.size, right.shape[1]))
    if xi.size:
        z = transition.z(target)
        try:
            kept = closed_by_continuity(phi_xi, phi_xi_size, z)
            matrix = np.vstack((phi_xi, kept))
            if not transition.simple:
                refuse_multiple_root(matrix, np.vstack((entries, kept)))
            continuous = kept[:, z] @ z_u @ by_w
            dxi, left, terms = solve_linear(
                matrix, np.vstack((right, continuous)), np.vstack((right_size, abs(continuous)))
            )
        except np.linalg.LinAlgError as reason:
            raise undetermined(transition, target, t, f"{reason}") from None
        if len(matrix) > xi.size:
            excess, sizes = np.vstack((excess, left)), np.vstack((sizes, terms))
    jump = np.vstack((y_u @ by_w + y_xi @ dxi, m_u @ by_w + m_xi @ dxi))
    if transition.conditions:
        by_u = transition.kernels["conditions"](t, x, m, p)[1]
        excess, sizes = np.vstack((excess, by_u @ by_w)), np.vstack((sizes, abs(by_u) @ abs(by_w)))
    others = [i for i in range(len(target.invariants)) if i not in transition.helping]
    if others:
        rows, row_sizes = (values[others] for values in _constraint_rows(target, event, p, jump))
        excess, sizes = np.vstack((excess, rows)), np.vstack((sizes, row_sizes))
    if len(excess):
        reached = None if earlier is None else earlier()
        _refuse_excess(transition, source, target, event, p, excess, sizes, when, flow_minus, reached)
    return ArrivalDerivative(jump, dxi)


def _by_products(
    transition: TransitionMap, target: ModeSystem, t: float, by_w: Any, linear: list[Any]
) -> ArrivalDerivative:
    """The same where there are many algebraic variables, whose derivatives would fill a matrix."""
    y_u, y_xi, m_u, m_xi, phi_u, phi_xi, phi_xi_size, z_u, _ = linear
    z = transition.z(target)
    if transition.helping or target.invariants or not transition.simple:
        raise UnsupportedError(
            f"Derivatives through the reset of transition '{transition.name}', with more than {LARGE} algebraic "
            "variables, are not supported.",
            transition=transition.name,
            mode=target.name,
            remedy="Give an explicit reset, or eliminate the algebraic variables.",
        )
    by_w = by_w if isinstance(by_w, Operator) else of(by_w)
    if not transition.labels:
        return ArrivalDerivative(below(of(y_u) @ by_w, of(m_u) @ by_w), np.zeros((0, by_w.shape[1])))
    try:
        kept = csc_array(closed_by_continuity(phi_xi, phi_xi_size, z))
        decided = row_maxima(phi_xi) > RANK_TOLERANCE * row_maxima(phi_xi_size)
        matrix = vstack((csc_array(phi_xi)[decided], kept))
        dxi = solution(matrix, vstack((csc_array(phi_u)[decided], -(kept[:, z] @ csc_array(z_u))))) @ by_w
    except np.linalg.LinAlgError as reason:
        raise undetermined(transition, target, t, f"{reason}") from None
    y, m = (of(direct) @ by_w + of(through) @ dxi for direct, through in ((y_u, y_xi), (m_u, m_xi)))
    return ArrivalDerivative(below(y, m), dxi)


def undetermined(transition: TransitionMap, target: ModeSystem, t: float, reason: str) -> ConsistencyError:
    """The error where the equations of an arrival are singular."""
    return ConsistencyError(
        f"The equations after the transition do not determine {', '.join(transition.labels)}: {reason}.",
        transition=transition.name,
        mode=target.name,
        time=t,
        variables=transition.labels,
        remedy="Check reset=, memory= and the equations of the target mode: the matrix of SR eq. 4 or 17 is singular. "
        "In an impact, constraints depend on each other there, or what it gives values to follows from them.",
    )


def _constraint_rows(target: ModeSystem, event: EventRecord, p: Array, jump: Array) -> tuple[Array, Array]:
    """The target's constraints after the transition by (w-, p, t), and the size of their terms."""
    ny, n, nm = target.differential.size, target.variables.size, event.memory_plus.size
    k_u = target.kernels["invariants"](event.time, event.x_plus, event.memory_plus, p)[1]
    by_after, direct = np.hstack((k_u[:, :ny], k_u[:, n : n + nm])), k_u[:, n + nm :]
    rows, sizes = by_after @ jump, abs(by_after) @ abs(jump)
    columns = slice(jump.shape[1] - direct.shape[1], None)
    rows[:, columns] += direct
    sizes[:, columns] += abs(direct)
    return rows, sizes


def _refuse_excess(
    transition: TransitionMap,
    source: ModeSystem,
    target: ModeSystem,
    event: EventRecord,
    p: Array,
    excess: Array,
    sizes: Array,
    when: Array | None,
    flow_minus: Array,
    reached: Reached | None,
) -> None:
    """Equations that neighbouring arrivals do not satisfy."""
    nw = flow_minus.size
    drift, drift_size = excess[:, :nw] @ flow_minus + excess[:, -1], sizes[:, :nw] @ abs(flow_minus) + sizes[:, -1]
    rows, sizes, first = excess[:, :-1], sizes[:, :-1], event
    if reached is not None:
        _, tau, first, source = reached
        both = np.vstack((reached.state, np.eye(p.size, reached.state.shape[1], reached.state.shape[1] - p.size)))
        rows, sizes, when = rows @ both, sizes @ abs(both), tau if when is None else when @ both
    # relative changes: derivatives by quantities of any size are compared
    w = np.abs(np.concatenate((first.x_minus[: source.differential.size], first.memory_minus)))
    w = np.maximum(w, NEGLIGIBLE * w.max(initial=0.0))  # a guard may hold a state at zero
    scale = np.concatenate((w, np.abs(p), [1.0]))
    scale = np.where(scale > 0, scale, 1.0)
    if when is None:
        rows, sizes = np.hstack((rows, drift[:, None])), np.hstack((sizes, drift_size[:, None]))
    else:
        rows, sizes = rows + np.outer(drift, when), sizes + np.outer(drift_size, abs(when))
        scale = scale[:-1]
    rows, sizes = rows * scale, sizes * scale
    if source.invariants:
        held = source.onto_constraints(event.time, first.x_minus, first.memory_minus, p)[1]
        if when is None:
            held = np.hstack((held, np.zeros((len(held), 1))))
        held = held * scale
        rows = rows - np.linalg.lstsq(held.T, rows.T, rcond=None)[0].T @ held
    left = abs(rows).max(axis=1, initial=0.0)
    if np.any(left > EXCESS_TOLERANCE * sizes.max(axis=1, initial=0.0)):
        raise ConsistencyError(
            "The values after the transition satisfy the target's constraints at these parameters, but not at others "
            f"(derivative {left.max():.3g}): no derivative exists.",
            transition=transition.name,
            mode=target.name,
            time=event.time,
            variables=target.differential.names,
            remedy="Give a reset that always leads onto the constraint: equations with post(), or project=.",
        )


def refuse_singular_entry(
    mode: ModeSystem, t: float, x: Array, m: Array, p: Array, options: Options, transition: str | None
) -> None:
    """Refuse to enter a mode where the algebraic variables are large only because a matrix vanishes.

    They are then determined by less than the tolerance of the state, and far larger than their own tolerance.
    """
    ny = mode.differential.size
    by_u = mode.kernels["closure_by_u"](t, x, m, p)[0]
    by_y: Any
    try:
        if issparse(by_u):
            by_y = abs(solution(by_u[:, ny : x.size], by_u[:, :ny]))
        else:
            by_y = np.abs(np.linalg.solve(by_u[:, ny : x.size], by_u[:, :ny]))
    except np.linalg.LinAlgError:
        by_y = np.full((x.size - ny, ny), np.inf)
    allowed, z = options.allowed(mode.variables, x), np.abs(x[ny:])
    absolute = options.absolute(mode.variables)
    with np.errstate(invalid="ignore"):
        open_to = by_y @ allowed[:ny]
    lost = ~(open_to <= z) & ~(z <= ENORMOUS * np.maximum(absolute[ny:] / options.rtol, 1.0))
    if np.any(lost | ~np.isfinite(open_to)):
        names = [label for label, bad in zip(mode.algebraic.labels(), lost, strict=True) if bad]
        raise ConsistencyError(
            f"[F_y' | F_z] is singular, to the accuracy of the state, where the mode is entered: it does not determine "
            f"{', '.join(names or mode.algebraic.names)}.",
            transition=transition,
            mode=mode.name,
            time=t,
            variables=names or mode.algebraic.names,
            remedy="The index is higher there (C B vanishes, in index 2): check the mode's equations and the values.",
        )
