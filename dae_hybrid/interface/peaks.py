"""Calls with functionals that have peaks: a run finds the places that decide them, another one has derivatives."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from dae_hybrid.conditions.certify import attach_trajectory
from dae_hybrid.numerics.arrays import Array, scalar
from dae_hybrid.system.peaks import decided
from dae_hybrid.trajectory.peak_search import decision_of
from dae_hybrid.trajectory.trajectory import Trajectory

if TYPE_CHECKING:
    from dae_hybrid.interface.runs import RunBuilder


def simulated(setup: RunBuilder) -> Trajectory:
    """Carry out the run of a simulation, with the values of its peaks."""
    if not setup.system.peaks:
        return setup.run()
    own = copy(setup)
    own.keep = "all"
    run = own.run(keep_path=True)
    with attach_trajectory(run):
        decision = decision_of(run)
    values = np.zeros(setup.system.functionals.size)
    for place in decision.places:
        values[setup.system.peaks[place.peak].first + place.component] += place.value
    run.parts.forget_paths()
    return with_values(run, values).thinned(setup.keep)


def decide_peaks(setup: RunBuilder) -> None:
    """Let the peaks of a call with derivatives be measurements at the places that decide them."""
    if not setup.system.peaks or setup.system.decision is not None:
        return
    own = copy(setup)
    own.keep, own.t_eval = "all", np.zeros(0)
    run = own.run(keep_path=True)
    with attach_trajectory(run):
        setup.system = decided(setup.system, decision_of(run))


def with_values(run: Trajectory, values: Array) -> Trajectory:
    """Return a run with further contributions to its functionals."""
    parts, known = run.system.functionals, run.functionals
    functionals = {name: scalar(np.atleast_1d(known[name]) + values[parts[name]]) for name in parts.names}
    integrals = run.integrals + values
    integrals.flags.writeable = False
    return replace(run, integrals=integrals, functionals=MappingProxyType(functionals))
