"""Reader of the ode15s data in ``reference/serban_recuero``; the README there describes their origin."""

from __future__ import annotations

import numpy as np

from dae_hybrid.problems._reference import FOLDER, Array, Measured, Table, read_table
from dae_hybrid.report.external_solution import SolutionRows

DATA = FOLDER / "serban_recuero"
PROGRAM = "ode15s of GNU Octave 7.3 (its integrator is SUNDIALS IDA), RelTol 1e-8, AbsTol 1e-12"
POLISHED = "restarted at every event, event times polished by Newton's method"
BARE = "restarted at every event, event times as its Events gives them"


def rows(table: Table) -> SolutionRows:
    """Rows of output times and events; an event consists of two rows with the same time."""
    before = np.flatnonzero(np.diff(table["t"]) == 0)
    grid = np.setdiff1d(np.arange(len(table)), np.concatenate((before, before + 1)))
    return SolutionRows(grid, before, before + 1)


def read_hybrid_ode() -> Measured:
    """Section 5.1. Columns of ``trajectory``: t, x, s = dx/dp, q, dq_dp, mode."""
    source = f"{PROGRAM}, {POLISHED}; octave/hyb51.m"
    trajectory = read_table(DATA / "octave51_traj.csv", source, {"x": 4.9e-8, "s": 6.6e-8})
    events = read_table(DATA / "octave51_events.csv", source, {"t_i": 6.8e-9, "dt_dp": 2.7e-11})
    return Measured(
        source=source,
        value=trajectory["q"][-1],
        value_accuracy=6.4e-9,
        gradient=trajectory["dq_dp"][-1:],
        gradient_accuracy=np.array([6.8e-10]),
        events=events,
        trajectory=trajectory,
        sensitivities=trajectory,
        located=_located(events),
    )


def read_em_hysteresis(*, polished: bool = True) -> Measured:
    """Section 5.2. Columns of ``sensitivities``: t, du_dka, ..., dz_dbeta, mode.

    Parameters
    ----------
    polished : bool
        Without: the run whose event times are those of ode15s itself, of which no accuracy was recorded.
    """
    source = f"{PROGRAM}, {POLISHED if polished else BARE}; octave/em52.m{'' if polished else ' nopolish'}"
    suffix = "" if polished else "_nopolish"
    trajectory = read_table(DATA / f"octave52_traj{suffix}.csv", source)
    sensitivities = read_table(DATA / f"octave52_sens{suffix}.csv", source)
    events = read_table(DATA / f"octave52_events{suffix}.csv", source)
    gradient = _numbers(sensitivities.comments[0].split("dG/dp = ")[1])
    value_accuracy, gradient_accuracy = np.nan, np.full(gradient.size, np.nan)
    if polished:
        value_accuracy, gradient_accuracy = 1.19e-8, np.abs(gradient) * np.array([5.8e-7, 2.9e-7, 8.6e-6, 0.0])
        trajectory = _with(trajectory, {"u": 1.8e-8, "v": 7.4e-8, "z": 4.8e-7})
        sensitivities = _with(sensitivities, _relative(sensitivities, 4.2e-7))
        events = _with(events, {"t_i": 1.5e-8, "u": 1.2e-8, "z": 1.1e-7, **_relative(events, 2.3e-7)})
    return Measured(
        source=source,
        value=float(trajectory.comments[-1].removeprefix("G=")),
        value_accuracy=value_accuracy,
        gradient=gradient,
        gradient_accuracy=gradient_accuracy,
        events=events,
        trajectory=trajectory,
        sensitivities=sensitivities,
        located=_located(events),
    )


def _numbers(text: str) -> Array:
    return np.array([float(number) for number in text.split()])


def _located(events: Table) -> Array:
    return _numbers(events.comments[0].split("before polishing: ")[1])


def _relative(table: Table, accuracy: float) -> dict[str, float]:
    """Absolute accuracy of the derivatives, measured relative to the largest entry of each column."""
    return {name: accuracy * float(np.abs(values).max()) for name, values in table.columns.items() if "_d" in name}


def _with(table: Table, accuracy: dict[str, float]) -> Table:
    return Table(table.columns, table.source, accuracy, table.comments)
