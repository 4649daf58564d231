"""The derivative of an arrival: the point after a transition by the point before it.

The unknowns xi of an arrival solve Phi(xi; w-, p, t) = 0, so dxi = -Phi_xi^-1 Phi_(w, p, t), and (y+, m+) follow.
Redundant equations, such as a constraint that the reset satisfies by itself, must hold for all parameters: along every
admissible perturbation, one that stays on the source's constraints and on the guard. After earlier events at the same
instant, this is the image of a perturbation that is admissible before the first of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.sparse import csc_array, issparse

from dae_hybrid.errors import ConsistencyError
from dae_hybrid.numerics.algebraic import RANK_TOLERANCE, closed_by_continuity, refuse_multiple_root, solve_linear
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.matrices import dense, independent_rows, row_maxima, vstack
from dae_hybrid.numerics.operators import Operator, below, of, solution
from dae_hybrid.options import Options
from dae_hybrid.port.failure_messages import refuse_not_finite
from dae_hybrid.system.excess import Excess, Reached, constraint_rows, refuse_excess

if TYPE_CHECKING:
    from dae_hybrid.port.records import EventRecord
    from dae_hybrid.system.system import ModeSystem
    from dae_hybrid.system.transition_map import TransitionMap

#: multiple of their tolerance scale beyond which algebraic variables indicate a singular matrix
MAX_ALGEBRAIC_RATIO = 1e6


class ArrivalDerivative(NamedTuple):
    """Derivatives of (y+, m+) and xi by (w-, p, t)."""

    jump: Any
    xi: Any


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
    """Return the derivative at a recorded event.

    `by_w` is the chain of the source, `when` the derivative of the event time by (w-, p), None for a transition that
    follows another one, `flow_minus` the rates of w-. `earlier` returns the derivatives reached through preceding
    events at the same instant.

    Raises
    ------
    ConsistencyError
        The equations of the arrival are singular, or redundant and violated by neighbouring arrivals.
    """
    t, x, m = event.time, event.x_minus, event.memory_minus
    xi = event.xi
    linear = transition.kernels["linear"](t, x, m, xi, p)
    what = f"transition '{transition.name}'"
    refuse_not_finite(what, (by_w, *linear[:6]), mode=source.name, transition=transition.name, time=t)
    jump: Any
    dxi: Any
    if isinstance(by_w, Operator) or any(map(issparse, (by_w, *linear))):
        jump, dxi, excess = _by_products(
            transition, target, t, by_w if isinstance(by_w, Operator) else of(by_w), linear
        )
    else:
        jump, dxi, excess = _by_entries(transition, target, t, by_w, linear)
    if transition.conditions:
        by_u = transition.kernels["conditions"](t, x, m, p)[1]
        excess.append(Excess(by_u @ by_w, abs(by_u) @ abs(by_w)))
    others = [i for i in range(len(target.invariants)) if i not in transition.helping]
    if others:
        excess.append(constraint_rows(target, event, p, jump, others))
    if any(part.rows.shape[0] for part in excess):
        reached = None if earlier is None else earlier()
        refuse_excess(transition, source, target, event, p, excess, when, flow_minus, reached)
    return ArrivalDerivative(jump, dxi)


def _by_entries(
    transition: TransitionMap, target: ModeSystem, t: float, by_w: Array, linear: list[Any]
) -> tuple[Array, Array, list[Excess]]:
    """Derivatives of (y+, m+) and xi by (w-, p, t), and the redundant equations."""
    y_u, y_xi, m_u, m_xi, phi_u, phi_xi, phi_xi_size, z_u, entries = linear
    right, right_size = -phi_u @ by_w, abs(phi_u) @ abs(by_w)
    # equations without unknowns are conditions on pre-transition values
    bare = (row_maxima(entries) == 0.0) & (row_maxima(phi_xi_size) == 0.0)
    excess = [Excess(-right[bare], right_size[bare])]
    phi_xi, phi_xi_size, entries, right, right_size = (
        rows[~bare] for rows in (phi_xi, phi_xi_size, entries, right, right_size)
    )
    count = phi_xi.shape[1]
    dxi = np.zeros((count, right.shape[1]))
    if count:
        z = transition.z(target)
        try:
            kept = closed_by_continuity(phi_xi, phi_xi_size, z)
            matrix = np.vstack((phi_xi, kept))
            if not transition.simple:
                refuse_multiple_root(matrix, np.vstack((entries, kept)))
            continuous = kept[:, z] @ z_u @ by_w
            dxi, left, terms = solve_linear(
                matrix, np.vstack((right, continuous)), np.vstack((right_size, abs(continuous))),
                np.vstack((phi_xi_size, kept)),
            )  # fmt: skip
        except np.linalg.LinAlgError as reason:
            raise undetermined(transition, target, t, f"{reason}") from None
        if len(matrix) > count:
            excess.append(Excess(left, terms))
    return np.vstack((y_u @ by_w + y_xi @ dxi, m_u @ by_w + m_xi @ dxi)), dxi, excess


def _by_products(
    transition: TransitionMap, target: ModeSystem, t: float, by_w: Operator, linear: list[Any]
) -> tuple[Operator, Operator, list[Excess]]:
    """`_by_entries` for many unknowns, with dense derivatives: one sparse factorisation, and operators."""
    y_u, y_xi, m_u, m_xi, phi_u, phi_xi, phi_xi_size, z_u, entries = linear
    few = not (transition.simple or issparse(phi_xi))
    z, phi_u, phi_xi, phi_xi_size = transition.z(target), csc_array(phi_u), csc_array(phi_xi), csc_array(phi_xi_size)
    dxi, excess = of(np.zeros((0, by_w.shape[1]))), [Excess(of(phi_u) @ by_w, of(abs(phi_u)) @ abs(by_w))]
    if transition.labels:
        try:
            kept = csc_array(closed_by_continuity(phi_xi, phi_xi_size, z))
            matrix, right = vstack((phi_xi, kept)), vstack((phi_u, -(kept[:, z] @ csc_array(z_u))))
            decided = row_maxima(phi_xi) > RANK_TOLERANCE * row_maxima(phi_xi_size)
            candidates = np.flatnonzero(np.concatenate((decided, np.ones(kept.shape[0], dtype=bool))))
            rows = candidates[independent_rows(matrix[candidates])]
            if few:
                refuse_multiple_root(dense(matrix[rows]), np.vstack((entries, dense(kept)))[rows])
            dxi = solution(matrix[rows], right[rows]) @ by_w
        except np.linalg.LinAlgError as reason:
            raise undetermined(transition, target, t, f"{reason}") from None
        rest = np.setdiff1d(np.arange(matrix.shape[0]), rows)
        sizes = vstack((phi_xi_size, abs(kept)))
        excess = [
            Excess(
                of(right[rest]) @ by_w + of(matrix[rest]) @ dxi,
                of(abs(right[rest])) @ abs(by_w) + of(sizes[rest]) @ abs(dxi),
            )
        ]
    y, m = (of(direct) @ by_w + of(through) @ dxi for direct, through in ((y_u, y_xi), (m_u, m_xi)))
    return below(y, m), dxi, excess


def undetermined(transition: TransitionMap, target: ModeSystem, t: float, reason: str) -> ConsistencyError:
    """The error for singular equations of an arrival."""
    return ConsistencyError(
        f"The equations after the transition do not determine {', '.join(transition.labels)}: {reason}.",
        transition=transition.name,
        mode=target.name,
        time=t,
        variables=transition.labels,
        remedy="Check reset=, memory= and the equations of the target mode: the matrix of SR eq. 4 or 17 is singular. "
        "In an impact, constraints depend on each other there, or what it gives values to follows from them.",
    )


def refuse_singular_entry(
    mode: ModeSystem, t: float, x: Array, m: Array, p: Array, options: Options, transition: str | None
) -> None:
    """Refuse to enter a mode where algebraic variables are large only because a matrix is nearly singular.

    The tolerance of the state then does not determine them, and they exceed their own tolerance scale by far.
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
    lost = ~(open_to <= z) & ~(z <= MAX_ALGEBRAIC_RATIO * np.maximum(absolute[ny:] / options.rtol, 1.0))
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
