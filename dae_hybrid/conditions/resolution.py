"""Whether sensitivities stand clear of their absolute tolerances.

The absolute tolerance of a sensitivity is that of the state in units of the parameter, atol/|p|: what a change of p by
its own size does is resolved like the state. Where p is next to nothing, or moves the state by next to nothing, that
tolerance may be as large as the sensitivity, and the error test passes whatever comes. The sizes that sensitivities
have reached along a run tell; a run in which they are too small is carried out again with tolerances by these sizes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.port.record_table import RECORDS, RecordTable
from dae_hybrid.sensitivity.forward import TangentState
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.system.transition_map import chain
from dae_hybrid.trajectory.trajectory import Trajectory

#: a run is not carried out again where sensitivities are this share of 1/rtol of their absolute tolerances, or, where
#: states have digits of their own, so many: a parameter that does less than that is next to idle, by the tolerances
SLACK, DIGITS = 1e-2, 1e4
#: states that are never larger than so many absolute tolerances have no digits of their own
CLEAR = 1e3
#: where a run fails that resolves sensitivities to rtol, as rounding may be larger, one that resolves them to this does
ROUGH = 1e-5
#: runs with other tolerances: the first sizes may be those of errors
RETRIES = 4
#: such a run may take so many times the steps of that before, and so many at any rate
LATITUDE, STEPS = 5, 2000


def finer(
    trajectory: Trajectory, directions: TangentState, scales: Array, accuracy: float, *, at_times: bool
) -> Array | None:
    """Scales that resolve the sensitivities of a run to this share of their size, (d,); None where it has done so.

    `scales` are those of the run; `at_times` says that its outputs are at times that were asked for, and not at every
    step.
    """
    p = trajectory.parameters
    arbitrary = ((directions.directions != 0) & (p[:, None] == 0)).any(axis=0)  # scales, and sizes by them
    enough = np.where(arbitrary, 1.0, SLACK) / accuracy
    found = _at_end(trajectory, directions) * scales
    if np.all(found >= enough):
        return None
    of_states = 0.0
    for states, sensitivities in _everywhere(trajectory, directions, at_times):
        of_states = max(of_states, float(states))
        found = np.maximum(found, sensitivities * scales)
    if of_states > CLEAR:
        enough = np.where(arbitrary, enough, np.minimum(enough, DIGITS))
    short = (found > 0) & (found < enough)
    if short.any():
        short &= found > _rounding(trajectory, directions) * scales
    return np.where(short, scales / np.where(short, found, 1.0) / accuracy, scales) if short.any() else None


def _at_end(trajectory: Trajectory, directions: TangentState) -> Array:
    """How many absolute tolerances of the states the sensitivities at the end of a run are, (d,)."""
    system, options = trajectory.system, trajectory.options
    chosen, of_costs = integrated(system), options.absolute(system.functionals)
    whole = trajectory.parts.whole
    mode = trajectory.final[1] if whole is None else whole.mode
    own, ny = system.modes[mode], system.modes[mode].differential.size
    last = None if whole is None else whole.left.sensitivities
    if last is None:
        states, costs = directions.state[:ny].T, directions.costs
    else:
        n = own.equations.n
        states, costs = last[:, :ny], last[:, n:]
        costs = costs if costs.size else np.zeros((len(last), system.functionals.size))
    found = np.hstack((states / options.absolute(own.differential), (costs / of_costs)[:, chosen]))
    return np.asarray(np.abs(found).max(axis=1, initial=0.0))


def _rounding(trajectory: Trajectory, directions: TangentState) -> Array:
    """Sensitivities in absolute tolerances of the states, (d,), that rounding makes where their sources cancel."""
    p, count = trajectory.parameters, trajectory.parameters.size
    span, largest = trajectory.final[0] - trajectory.t_span[0], np.zeros(directions.count)
    moves = np.abs(directions.event_times).max(axis=0, initial=0.0) if directions.event_times else largest
    for segment in trajectory.segments:
        mode, own = segment.mode, segment.mode.differential
        at = segment.t_start, segment.x_start, segment.memory, p
        sources = chain(mode, *at)[:, -count - 1 : -1] @ directions.directions
        terms = span * (abs(mode.kernels["flow_by_u"](*at)[0][: own.size]) @ abs(sources))
        terms = terms + np.outer(np.abs(segment.xdot_end[: own.size]), moves)
        terms = terms + np.abs(sources[: segment.x_start.size]).max(axis=0, initial=0.0)  # solved for with the states
        weighted = terms / trajectory.options.absolute(own)[:, None]
        largest = np.maximum(largest, weighted.max(axis=0, initial=0.0))
    return np.asarray(EPS * largest)


def _everywhere(trajectory: Trajectory, directions: TangentState, at_times: bool) -> Iterator[tuple[float, Array]]:
    """How many absolute tolerances the states and, (d,), the sensitivities are at outputs and events."""
    d, modes, options = directions.count, trajectory.system.modes, trajectory.options

    def largest(mode: int, states: Array, sensitivities: Array) -> tuple[float, Array]:
        own = modes[mode]
        ny, absolute = own.differential.size, options.absolute(own.differential)
        by_direction = np.abs(sensitivities[:, :, :ny] / absolute).max(axis=(0, 2), initial=0.0)
        return float(np.abs(states[:, :ny] / absolute).max(initial=0.0)), by_direction

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
    """Which components of the functionals have integrands that depend on the state or on parameters."""
    kept = system.graph.kept
    if "integrated" not in kept:
        found = np.zeros(system.functionals.size, bool)
        for mode in system.modes:
            if mode.equations.integrates:
                linearised = mode.equations.functions["linearised"].function
                for i in range(5, 8):  # g_x, g_p and g_m, transposed
                    found[linearised.sparsity_out(i).get_col()] = True
        kept["integrated"] = found
    known: NDArray[np.bool_] = kept["integrated"]
    return known
