"""Algorithm 1 of Serban and Recuero (2019), as printed: adjoint of a system with memory.

At each transition, in reverse order, with the integrals I, J, K of eq. 33 to 35 over the segment after it and the
derivatives of the algebraic equations, solved for z, of the mode before it (line numbers are those of the paper):

    16  lambda <- lambda + I + (J + A) k_y + B
    18  dG/dp  <- dG/dp + (J + A) k_p
    20  B      <- (J + A) k_y*
    21  A      <- (J + A) k_z*

It assumes that states *and state sensitivities* are continuous at transitions and that the initial state does not
depend on the parameters. If a memorised variable still moves at the event, its sensitivity there is s + y' dt/dp, not
s; the printed algorithm omits that term, so such a trajectory is refused. `dae_hybrid.sensitivity.adjoint` has no such
restriction.
"""

from __future__ import annotations

import numpy as np

from dae_hybrid.errors import AssumptionError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.matrices import dense
from dae_hybrid.port.records import EventRecord, KnotRecord, MeasurementRecord
from dae_hybrid.sensitivity.adjoint import AdjointSweep
from dae_hybrid.system.linearisation import TransitionLinearisation, chain
from dae_hybrid.trajectory.trajectory import Segment

#: a drift below this share of the rates involved is rounding, since the event time is exact to rounding
DRIFT_TOLERANCE = 1e-9
GENERAL = "Use algorithm='general', which has no such restriction."


def serban_recuero(sweep: AdjointSweep) -> Array:
    """Return dG/dp by the printed algorithm, shape (k, n_wrt).

    Raises
    ------
    AssumptionError
        The system or this trajectory violates an assumption of the algorithm.
    """
    system, p, wrt = sweep.system, sweep.trajectory.parameters, list(sweep.wrt)
    _check_system(sweep)
    k = len(sweep.components)
    ny = system.modes[0].differential.size
    frozen_y, frozen_z = _memory_maps(sweep)
    lam, total = np.zeros((k, ny)), np.zeros((k, len(wrt)))
    a, b = np.zeros((k, frozen_z.shape[0])), np.zeros((k, ny))
    pending: Array | None = None
    for part in reversed(sweep.trajectory.parts):
        if isinstance(part, Segment):
            outcome = sweep.segment(part, lam)
            lam = outcome.adjoints[:, :ny]
            pending = outcome.memory_integrals if pending is None else pending + outcome.memory_integrals
            total = total + outcome.parameter_integrals
            continue
        assert isinstance(part, EventRecord)  # _check_system refuses the others
        _check_event(part, sweep.linearise(part), ny)
        integrals = np.zeros((k, system.memory.size)) if pending is None else pending
        i, j = integrals @ frozen_y.T, integrals @ frozen_z.T
        mode = system.modes[system.transitions[part.index].source]
        # the rows of z in the chain: the algebraic equations solved for z
        solved = dense(chain(mode, part.time, part.x_minus, part.memory_minus, p))[ny : ny + mode.algebraic.size]
        k_y, k_m, k_p = solved[:, :ny], solved[:, ny : ny + system.memory.size], solved[:, ny + system.memory.size : -1]
        weight = j + a
        lam = lam + i + weight @ k_y + b
        total = total + weight @ k_p[:, wrt]
        b, a = weight @ k_m @ frozen_y.T, weight @ k_m @ frozen_z.T
        pending = None
    return total


def _memory_maps(sweep: AdjointSweep) -> tuple[Array, Array]:
    """Return the selection of y* and z* from the memory: (n_y, n_memory) and (n_z, n_memory), zeros and ones."""
    system = sweep.system
    mode = system.modes[0]
    maps = np.zeros((mode.differential.size, system.memory.size)), np.zeros((mode.algebraic.size, system.memory.size))
    for name in system.memory.names:
        variable = system.frozen[name] or ""
        for layout, matrix in zip((mode.differential, mode.algebraic), maps, strict=True):
            if variable in layout:
                rows = np.arange(layout[variable].start, layout[variable].stop)
                columns = np.arange(system.memory[name].start, system.memory[name].stop)
                matrix[rows, columns] = 1.0
    return maps


def _check_system(sweep: AdjointSweep) -> None:
    system = sweep.system
    modes = {(m.differential, m.algebraic) for m in system.modes}
    if len(modes) != 1:
        raise AssumptionError("Algorithm 1 needs the same variables in every mode.", remedy=GENERAL)
    if not system.memory.size:
        raise AssumptionError("Algorithm 1 is for systems with memory; this one has none.", remedy=GENERAL)
    others = [name for name in system.memory.names if system.frozen.get(name) is None]
    if others:
        raise AssumptionError(f"Algorithm 1 knows memory of states only, not {', '.join(others)}.", remedy=GENERAL)
    if np.any(sweep.trajectory.start.derivatives):
        raise AssumptionError(
            "Algorithm 1 assumes initial values that do not depend on the parameters.", remedy=GENERAL
        )
    if any(isinstance(part, KnotRecord | MeasurementRecord) for part in sweep.trajectory.parts):
        raise AssumptionError("Algorithm 1 knows neither signals nor measurements.", remedy=GENERAL)
    if any(mode.invariants for mode in system.modes):
        raise AssumptionError("Algorithm 1 is for Hessenberg index 1.", remedy=GENERAL)
    by_w, by_p, _ = sweep.terminal()
    if np.any(by_w) or np.any(by_p):
        raise AssumptionError("Algorithm 1 is for integral functionals, without terminal value.", remedy=GENERAL)


def _check_event(event: EventRecord, map_: TransitionLinearisation, ny: int) -> None:
    if map_.cost is not None and np.any(map_.cost):
        raise AssumptionError("Algorithm 1 knows no costs at events.", transition=event.transition, remedy=GENERAL)
    if event.target is None:
        raise AssumptionError("Algorithm 1 assumes a fixed final time.", transition=event.transition, remedy=GENERAL)
    by_w, by_p = dense(map_.R_w), dense(map_.R_p)
    same = np.array_equal(by_w[:ny, :ny], np.eye(ny)) and not np.any(by_w[:ny, ny:])
    if (
        not same
        or np.any(by_p[:ny])
        or np.any(map_.R_t[:ny])
        or not np.array_equal(event.state_minus, event.state_plus)
    ):
        raise AssumptionError(
            "Algorithm 1 assumes continuous states.", transition=event.transition, time=event.time, remedy=GENERAL
        )
    moving = np.abs(by_w) @ np.abs(map_.flow_minus) + np.abs(map_.R_t) + np.abs(map_.flow_plus)
    scale = max(float(moving.max(initial=0.0)), abs(map_.rate))
    g = np.abs(map_.integrand_minus) + np.abs(map_.integrand_plus)
    jump = np.abs(map_.integrand_minus - map_.integrand_plus) > DRIFT_TOLERANCE * np.maximum(g, 1e-300)
    if np.any(np.abs(map_.time_shift) > DRIFT_TOLERANCE * scale) or np.any(jump):
        raise AssumptionError(
            "Algorithm 1 assumes continuous state sensitivities: here the derivatives of the states or the "
            "integrand jump, or a memorised variable moves at the event.",
            transition=event.transition,
            time=event.time,
            remedy=GENERAL,
        )
