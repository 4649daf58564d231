"""Resolution of sensitivities: whether they are well above their absolute tolerances.

The absolute tolerance of a sensitivity is that of the state in units of the parameter, atol/|p|: the effect of a change
of p by its own size is resolved like the state. If p or its effect is very small, that tolerance may be as large as the
sensitivity, and the error test is ineffective. This is decided by the magnitudes of the sensitivities along the run; a
run in which they are too small is repeated with tolerances scaled by these magnitudes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.port.record_table import RECORDS, RecordTable
from dae_hybrid.sensitivity.forward import TangentState
from dae_hybrid.system.linearisation import chain
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.trajectory.trajectory import Trajectory

#: sensitivities are resolved if they exceed this share of 1/rtol absolute tolerances or, if the states have significant
#: digits, this number: by its tolerances a parameter with a smaller effect is nearly idle
RESOLVED_SHARE, RESOLVED_DIGITS = 1e-2, 1e4
#: states that never exceed this number of absolute tolerances have no significant digits
CLEAR_STATES = 1e3
#: resolution of a further attempt if a run that resolves sensitivities to rtol fails, since rounding may be larger
ROUGH_RESOLUTION = 1e-5
#: runs with adapted tolerances, since the first magnitudes may be those of errors
RETRIES = 4
#: limit on the steps of such a run: a multiple of those of the previous run, and a minimum
STEP_LIMIT_FACTOR, MIN_STEP_LIMIT = 5, 2000


def finer(
    trajectory: Trajectory, directions: TangentState, scales: Array, accuracy: float, *, at_times: bool
) -> Array | None:
    """Return scales that resolve the sensitivities of a run to a relative accuracy, (d,); None if they are resolved.

    `scales` are those of the run; `at_times` says that its outputs are at requested times instead of at every step.
    """
    p = trajectory.parameters
    arbitrary = ((directions.directions != 0) & (p[:, None] == 0)).any(axis=0)  # the scale of a parameter of zero is
    enough = np.where(arbitrary, 1.0, RESOLVED_SHARE) / accuracy
    found = _at_end(trajectory, directions) * scales
    if np.all(found >= enough):
        return None
    of_states = 0.0
    for states, sensitivities in _everywhere(trajectory, directions, at_times):
        of_states = max(of_states, float(states))
        found = np.maximum(found, sensitivities * scales)
    if of_states > CLEAR_STATES:
        enough = np.where(arbitrary, enough, np.minimum(enough, RESOLVED_DIGITS))
    short = (found > 0) & (found < enough)
    if short.any():
        short &= found > _rounding(trajectory, directions) * scales
    return np.where(short, scales / np.where(short, found, 1.0) / accuracy, scales) if short.any() else None


def _at_end(trajectory: Trajectory, directions: TangentState) -> Array:
    """Return the sensitivities at the end of a run in absolute tolerances of the states, (d,)."""
    system, options = trajectory.system, trajectory.options
    chosen, of_costs = integrated(system), options.absolute(system.functionals)
    native = trajectory.parts.native_run
    mode = trajectory.final[1] if native is None else native.mode
    own, ny = system.modes[mode], system.modes[mode].differential.size
    last = None if native is None else native.raw.sensitivities
    if last is None:
        states, costs = directions.state[:ny].T, directions.costs
    else:
        n = own.equations.n
        states, costs = last[:, :ny], last[:, n:]
        costs = costs if costs.size else np.zeros((len(last), system.functionals.size))
    found = np.hstack((states / options.absolute(own.differential), (costs / of_costs)[:, chosen]))
    return np.asarray(np.abs(found).max(axis=1, initial=0.0))


def _rounding(trajectory: Trajectory, directions: TangentState) -> Array:
    """Return the rounding errors of sensitivities whose sources cancel, in absolute tolerances of the states, (d,)."""
    p, count = trajectory.parameters, trajectory.parameters.size
    span, largest = trajectory.final[0] - trajectory.t_span[0], np.zeros(directions.count)
    moves = np.abs(directions.event_times).max(axis=0, initial=0.0) if directions.event_times else largest
    for segment in trajectory.segments:
        mode, own = segment.mode, segment.mode.differential
        at = segment.t_start, segment.x_start, segment.memory, p
        sources = chain(mode, *at)[:, -count - 1 : -1] @ directions.directions
        terms = span * (abs(mode.kernels["flow_by_u"](*at)[0][: own.size]) @ abs(sources))
        terms = terms + np.outer(np.abs(segment.xdot_end[: own.size]), moves)
        terms = terms + np.abs(sources[: segment.x_start.size]).max(axis=0, initial=0.0)  # algebraic variables
        weighted = terms / trajectory.options.absolute(own)[:, None]
        largest = np.maximum(largest, weighted.max(axis=0, initial=0.0))
    return np.asarray(EPS * largest)


def _everywhere(trajectory: Trajectory, directions: TangentState, at_times: bool) -> Iterator[tuple[float, Array]]:
    """Yield states and sensitivities (d,) at outputs and events, in absolute tolerances."""
    d, modes, options = directions.count, trajectory.system.modes, trajectory.options

    def largest(mode: int, states: Array, sensitivities: Array) -> tuple[float, Array]:
        own = modes[mode]
        ny, absolute = own.differential.size, options.absolute(own.differential)
        by_direction = (np.abs(sensitivities).max(axis=0, initial=0.0)[:, :ny] / absolute).max(axis=1, initial=0.0)
        return float((np.abs(states).max(axis=0, initial=0.0)[:ny] / absolute).max(initial=0.0)), by_direction

    for part in trajectory.parts.given:
        if isinstance(part, RecordTable):
            for mode, rows in part.rows.items():
                n = modes[mode].equations.n
                yield largest(mode, rows[:, 1 : 1 + n], rows[:, 1 + n :].reshape(len(rows), d, n))
            for event, after in part.events() if at_times else ():
                before = part.state_derivatives(event["before"], event["source"])
                yield largest(event["source"], event["x"][None], before.T[None])
                yield largest(after, event["x_after"][None], part.state_derivatives(event["after"], after).T[None])
        elif not isinstance(part, RECORDS) and part.sensitivity_rows is not None:
            yield largest(part.mode.index, part.states, part.sensitivity_rows)


def integrated(system: HybridSystem) -> NDArray[np.bool_]:
    """Return which components of the functionals have integrands that depend on the state or on parameters."""
    cache = system.graph.cache
    if "integrated" not in cache:
        found = np.zeros(system.functionals.size, bool)
        for mode in system.modes:
            if mode.equations.integrates:
                linearised = mode.equations.functions["linearised"].function
                for i in range(5, 8):  # g_x, g_p and g_m, transposed
                    found[linearised.sparsity_out(i).get_col()] = True
        cache["integrated"] = found
    known: NDArray[np.bool_] = cache["integrated"]
    return known
