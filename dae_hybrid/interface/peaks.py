"""Calls with functionals that have peaks: a run finds the places that decide them, another one has derivatives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from dae_hybrid.conditions.certify import attach_trajectory
from dae_hybrid.errors import EventError, GrazingError
from dae_hybrid.numerics.arrays import Array, scalar
from dae_hybrid.port.record_table import RecordTable
from dae_hybrid.port.records import MeasurementRecord
from dae_hybrid.port.segment_rules import SAME_INSTANT
from dae_hybrid.system.peaks import Decision, decided
from dae_hybrid.trajectory.peak_search import decision_of
from dae_hybrid.trajectory.trajectory import Trajectory

if TYPE_CHECKING:
    from dae_hybrid.interface.runs import RunBuilder

#: relative change of the slope at a stationary point or a crossing, from one run to the next, that needs no further
#: run, and the same in multiples of rtol
SAME_SLOPE, SAME_SLOPE_RTOLS = 1e-6, 10.0
#: factor of these for a value, whose derivatives the change enters in second order
VALUE_FACTOR = 30.0
#: end of a note on a value that does not exist
ABSENT = " Its value is NaN."
#: largest number of further runs
MAX_ATTEMPTS = 4


def simulated(setup: RunBuilder) -> Trajectory:
    """Carry out the run of a simulation, with the values of its peaks."""
    if not setup.system.peaks:
        return setup.run()
    own = copy(setup)
    own.keep = "all"
    run = own.run(keep_path=True)
    with attach_trajectory(run):
        decision = decision_of(run)
    run.parts.forget_paths()
    values = decision.contributions(setup.system.peaks, setup.system.functionals.size)
    return noted(with_values(run, values), decision).thinned(setup.keep)


def decide_peaks(setup: RunBuilder, functional: str | None = None) -> None:
    """Let the peaks of a call with derivatives be measurements at the places that decide them.

    If only one functional is differentiated, those of the others are numbers.
    """
    if not setup.system.peaks or setup.system.decision is not None:
        return
    own = copy(setup)
    own.keep, own.t_eval = "all", np.zeros(0)
    run = own.run(keep_path=True)
    with attach_trajectory(run):
        decision, system = decision_of(run), setup.system
        if functional is not None:
            decision = decision.of(system.peaks, functional, system.functionals.size)
        setup.undecided, setup.system = system, decided(system, decision)


def places_moved(setup: RunBuilder, run: Trajectory) -> bool:
    """Whether stationary points and crossings of a run with derivatives are elsewhere than in that which decided.

    The times of a sharp peak in two runs differ by more than its width allows. The system of the call then has
    measurements at the times of this run, which is to be repeated.
    """
    system, decision = run.system, run.system.decision
    if decision is None or setup.attempts >= MAX_ATTEMPTS:
        return False
    same = max(SAME_SLOPE, SAME_SLOPE_RTOLS * run.options.rtol)
    places, fixed, changed = list(decision.places), [i for i, p in enumerate(decision.places) if p.event < 0], False
    for record in _records(run):
        k = record.index - system.n_stated
        if not 0 <= k < len(fixed) or (zero := places[fixed[k]].zero) is None:
            continue
        place = places[fixed[k]]
        peak, args = system.peaks[place.peak], (record.time, record.x, record.memory, run.parameters)
        value, slope = zero.seen(peak.watch(record.mode.index)(*args))
        allowed = same * (1.0 if place.data[-1] else VALUE_FACTOR)
        if not slope * zero.slope > 0 or abs(slope - zero.slope) <= allowed * abs(zero.slope):
            continue
        t = min(max(record.time - value / slope, run.t_span[0]), run.final[0])
        apart = abs(t - record.time) > SAME_INSTANT * max(abs(t), t - run.t_span[0])
        places[fixed[k]], changed = place.moved(t, zero.slope if apart else slope), True
    if changed:
        setup.attempts += 1
        setup.system = decided(setup.undecided, decision.with_places(places))
    return changed


def _records(run: Trajectory) -> Iterator[MeasurementRecord]:
    """Yield the measurements of a run."""
    for item in run.parts.given:
        if isinstance(item, RecordTable):
            yield from item.measurements(run.system)
        elif isinstance(item, MeasurementRecord):
            yield item


def noted(run: Trajectory, decision: Decision) -> Trajectory:
    """Return a run with notes on values that do not exist."""
    absent = [error for _, error in decision.failures if not isinstance(error, GrazingError)]
    return replace(run, notes=(*run.notes, *(error.message + ABSENT for error in absent))) if absent else run


def refuse_absent(run: Trajectory, components: Sequence[int]) -> None:
    """Refuse a run without a value of some of these components."""
    if np.isnan(run.integrals[components]).any():
        said = " ".join(note.removesuffix(ABSENT) for note in run.notes if note.endswith(ABSENT))
        error = EventError(said, time=run.final[0], remedy="Simulate longer, or change the level.")
        error.trajectory = run
        raise error


def with_values(run: Trajectory, values: Array) -> Trajectory:
    """Return a run with further contributions to its functionals."""
    parts, known = run.system.functionals, run.functionals
    functionals = {name: scalar(np.atleast_1d(known[name]) + values[parts[name]]) for name in parts.names}
    integrals = run.integrals + values
    integrals.flags.writeable = False
    return replace(run, integrals=integrals, functionals=MappingProxyType(functionals))
