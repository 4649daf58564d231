"""Excess equations of an arrival: no derivative exists unless neighbouring arrivals satisfy them too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.sparse import csc_array

from dae_hybrid.errors import ConsistencyError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.matrices import hstack, onto_null_space
from dae_hybrid.numerics.operators import Operator, of

if TYPE_CHECKING:
    from dae_hybrid.port.records import EventRecord
    from dae_hybrid.system.system import ModeSystem
    from dae_hybrid.system.transition_map import TransitionMap

#: states below this multiple of the largest take their scale from it
NEGLIGIBLE = 1e-3
#: an excess equation is satisfied if its derivative is below this share of its terms: parameters may change by a
#: hundredth before its residual exceeds that of `algebraic.RESIDUAL_ROUNDINGS`
EXCESS_TOLERANCE = 1e-10
#: number of random directions for testing derivatives given as operators
COMBINATIONS = 4


class Excess(NamedTuple):
    """Derivatives of excess equations by (w-, p, t), as matrices or operators, and the sizes of their terms."""

    rows: Any
    sizes: Any


class Reached(NamedTuple):
    """Derivatives where an event fires, by (w-, p) before the first event of its instant.

    `state` is the derivative of w- at fixed time, `tau` that of the time of the preceding event, None for the first;
    `first` is the first event and `source` the mode that it left.
    """

    state: Array
    tau: Array | None
    first: EventRecord
    source: ModeSystem


def constraint_rows(target: ModeSystem, event: EventRecord, p: Array, jump: Any, which: list[int]) -> Excess:
    """Selected constraints of the target after the transition; `jump` is the derivative of (y+, m+) by (w-, p, t)."""
    ny, n, nm = target.differential.size, target.variables.size, event.memory_plus.size
    k_u = target.kernels["invariants"](event.time, event.x_plus, event.memory_plus, p)[1][which]
    many = isinstance(jump, Operator)
    k_u = csc_array(k_u) if many else k_u
    by_after, by_p = hstack((k_u[:, :ny], k_u[:, n : n + nm])), k_u[:, n + nm :]
    nothing = np.zeros((len(which), jump.shape[1] - by_p.shape[1]))
    direct = hstack((csc_array(nothing.shape) if many else nothing, by_p))
    if many:
        return Excess(of(by_after) @ jump + of(direct), of(abs(by_after)) @ abs(jump) + of(abs(direct)))
    return Excess(by_after @ jump + direct, abs(by_after) @ abs(jump) + abs(direct))


def refuse_excess(
    transition: TransitionMap,
    source: ModeSystem,
    target: ModeSystem,
    event: EventRecord,
    p: Array,
    excess: list[Excess],
    when: Array | None,
    flow_minus: Array,
    reached: Reached | None,
) -> None:
    """Refuse excess equations that neighbouring arrivals do not satisfy.

    For matrices every column is tested. For operators a few random combinations of all columns are tested, which detect
    a violation with probability one.

    Raises
    ------
    ConsistencyError
        Reports the largest derivative.
    """
    first = event if reached is None else reached.first
    source = source if reached is None else reached.source
    # scale the perturbations, so that derivatives by quantities of different magnitude are comparable
    w = np.abs(np.concatenate((first.x_minus[: source.differential.size], first.memory_minus)))
    w = np.maximum(w, NEGLIGIBLE * w.max(initial=0.0))  # a guard may hold a state at zero
    moves = when is not None or reached is not None  # otherwise time is a direction of its own
    scale = np.concatenate((w, np.abs(p), [] if moves else [1.0]))
    scale = np.where(scale > 0, scale, 1.0)
    if any(isinstance(part.rows, Operator) for part in excess):
        given = np.random.default_rng(0).normal(size=(scale.size, COMBINATIONS))
    else:
        given = np.eye(scale.size)
    admissible = given
    if source.invariants:
        held = source.constraint_slopes(event.time, first.x_minus, first.memory_minus, p)
        known = held.shape[1]
        admissible = given.copy()
        admissible[:known] = onto_null_space(held * scale[:known], given[:known])
    scale = scale[:, None]
    along = _where_it_fires(admissible * scale, p.size, when, flow_minus, reached)
    size = None if when is None else abs(when)
    if reached is not None:
        reached = reached._replace(state=abs(reached.state), tau=None if reached.tau is None else abs(reached.tau))
    terms = _where_it_fires(abs(given) * scale, p.size, size, abs(flow_minus), reached)
    left = abs(np.vstack([part.rows @ along for part in excess])).max(axis=1, initial=0.0)
    sizes = np.vstack([part.sizes @ terms for part in excess]).max(axis=1, initial=0.0)
    if np.any(left > EXCESS_TOLERANCE * sizes):
        raise ConsistencyError(
            "The values after the transition satisfy the target's constraints at these parameters, but not at others "
            f"(derivative {left.max():.3g}): no derivative exists.",
            transition=transition.name,
            mode=target.name,
            time=event.time,
            variables=target.differential.names,
            remedy="Give a reset that always leads onto the constraint: equations with post(), or project=.",
        )


def _where_it_fires(given: Array, n_p: int, when: Array | None, flow: Array, reached: Reached | None) -> Array:
    """Changes of (w-, p, t) at the event, from changes of (w, p) or (w, p, t) before the first event of its instant.

    The change of w- is taken along the run: it includes the effect of the change of time.
    """
    if reached is None:
        state, by_p, tau = given[: flow.size], given[flow.size : flow.size + n_p], given[-1]
    else:
        assert reached.tau is not None
        state, by_p, tau = reached.state @ given, given[given.shape[0] - n_p :], reached.tau @ given
    shift = tau if when is None else when @ np.vstack((state, by_p))
    return np.vstack((state + np.outer(flow, shift), by_p, shift))
