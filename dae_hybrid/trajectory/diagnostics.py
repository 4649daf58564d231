"""Diagnostics: the notes and checks that come with every result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, overload

import numpy as np

from dae_hybrid.system.transition_map import GRAZING_RATE_SHARE
from dae_hybrid.tables import align, counted, html
from dae_hybrid.trajectory.event_accuracy import amplified

if TYPE_CHECKING:
    from dae_hybrid.trajectory.trajectory import Trajectory

ACCURACY = "accuracy of event times"
#: jumps of called functions that have notes of their own
MAX_JUMPS = 10


@dataclass(frozen=True, slots=True)
class Check:
    """One check: its name, its result, and the figures behind it in words."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Diagnostics(Sequence[str]):
    """Notes on a run, as a sequence, and its checks; prints as a table.

    Attributes
    ----------
    notes : tuple of str
        Observations that are not errors.
    checks : tuple of Check
        The checks and their results.

    Examples
    --------
    >>> import dae_hybrid as dh
    >>> from dae_hybrid.problems import hybrid_ode
    >>> sol = dh.simulate(hybrid_ode.system(), hybrid_ode.t_span, rtol=1e-10)
    >>> sol.diagnostics.passed, len(sol.diagnostics)
    (True, 0)
    """

    notes: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        return self.notes[index]

    def __len__(self) -> int:
        return len(self.notes)

    def check(self, name: str) -> Check:
        """Return the check of that name."""
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(f"No check {name!r}; there are {', '.join(check.name for check in self.checks)}.")

    def __add__(self, other: Diagnostics) -> Diagnostics:
        return Diagnostics((*self.notes, *other.notes), (*self.checks, *other.checks))

    def __repr__(self) -> str:
        said = f"{counted(len(self.checks), 'check')}, {'passed' if self.passed else 'FAILED'}"
        return f"<Diagnostics: {said}; {counted(len(self.notes), 'note')}>"

    def _repr_html_(self) -> str:
        return html(repr(self), [*self._rows(), *(["note", "", note] for note in self.notes)])

    def _rows(self) -> list[list[str]]:
        rows = [[check.name, "passed" if check.passed else "FAILED", check.detail] for check in self.checks]
        return [["check", "result", ""], *rows]

    def __str__(self) -> str:
        table = align(self._rows(), left=(0, 1, 2)) if self.checks else []
        return "\n".join([*table, *(f"note: {note}" for note in self.notes)])


def of_run(trajectory: Trajectory) -> Diagnostics:
    """Return the diagnostics of a simulation."""
    events, modes = trajectory.event_table, trajectory.system.modes
    checks = [Check("run", trajectory.complete, f"to t = {trajectory.final[0]:.9g} of {trajectory.t_span[1]:.9g}")]
    constraints = sum(len(modes[i].invariants) for i in trajectory.parts.modes)
    if constraints:
        checks.append(Check("constraints", True, f"the state was kept on {constraints}, to rounding at both ends"))
    smooth = np.array(
        [not (transition.is_kink or transition.is_empty) for transition in trajectory.system.transitions], dtype=bool
    )
    guarded = np.flatnonzero((events.direction != 0) & ~events.follows & smooth[events.index])
    if guarded.size:
        speeds = np.abs(events.rate) / np.where(events.rate_scale != 0, events.rate_scale, 1.0)
        least = int(guarded[np.argmin(speeds[guarded])])
        detail = f"slowest guard crosses at {speeds[least]:.1e} of its range over the run: '{events.transition[least]}'"
        checks.append(
            Check("transversality", bool(speeds[least] > GRAZING_RATE_SHARE), f"{detail}, t = {events.t[least]:.9g}")
        )
        said = amplified(trajectory)
        detail = said[0] if said else "no guard multiplies errors of fast states"
        checks.append(Check(ACCURACY, not said, detail))
    past = [note for note in trajectory.notes if "past its threshold" in note]
    checks.append(Check("guards on entry", not past, f"{len(past)} past their threshold"))
    together = np.count_nonzero(events.order)
    if together:
        checks.append(Check("simultaneous", True, f"{together} transitions followed another one at the same instant"))
    if len(events):
        zeno = trajectory.accumulation is None
        checks.append(Check("accumulation", zeno, "none seen" if zeno else "events accumulate: the run was ended"))
    jumps = []
    if trajectory.system.branches.called:
        from dae_hybrid.trajectory.called_jumps import called_jumps  # avoids a circular import

        jumps = [str(jump) for jump in called_jumps(trajectory)]
        checks.append(Check("called functions", not jumps, f"{counted(len(jumps), 'jump')} seen"))
        jumps[MAX_JUMPS:] = []
    return Diagnostics((*trajectory.system.notes, *trajectory.notes, *jumps), tuple(checks))
