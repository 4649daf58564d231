"""The generalised jump sensitivity matrix of an event, which maps derivatives before it to those after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dae_hybrid.errors import EventError, OptionError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.matrices import dense
from dae_hybrid.port.records import EventRecord
from dae_hybrid.system.derivative_conditions import Conditions
from dae_hybrid.tables import html, in_short

if TYPE_CHECKING:
    from dae_hybrid.trajectory.trajectory import Trajectory


@dataclass(frozen=True, eq=False)
class JumpSensitivity:
    """Matrix S_eve: X+ = S_eve X-, lambda- = S_eve^T lambda+ (Corner, Sandu and Sandu 2020, Def. 5 and Theorem 1).

    X stacks the derivatives of the differential state, of the memory, of the parameters (Gamma, the identity) and of
    the functionals accumulated so far (Z); rows belong to the mode after the event, columns to the mode before it.

    Attributes
    ----------
    event : EventRecord
    matrix : ndarray, shape (n_rows, n_columns)
    rows, columns : tuple of str
        Variable, memory, parameter or functional of each row and column.
    time : ndarray, shape (n_columns,)
        Derivative of t_eve by X-: ``dt/drho = time @ X-`` (SR eq. 27; Corner, Sandu and Sandu 2020, eq. 24b).

    Examples
    --------
    >>> import dae_hybrid as dh
    >>> from dae_hybrid.problems import hybrid_ode
    >>> sol = dh.simulate(hybrid_ode.system(), hybrid_ode.t_span, rtol=1e-10)
    >>> jump = sol.jump_sensitivity(0)
    >>> jump.rows, jump.matrix.shape
    (('x', 'p', 'G'), (3, 3))
    >>> round(float(jump.block("x", "p")[0, 0]), 4)  # what the state's sensitivity gains by dt/dp
    -1.6457
    """

    event: EventRecord
    matrix: Array
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    time: Array

    def __repr__(self) -> str:
        return f"<JumpSensitivity at {self.event!r}: {len(self.rows)} by {len(self.columns)}>"

    def _repr_html_(self) -> str:
        rows = [[name, *map(in_short, row)] for name, row in zip(self.rows, self.matrix, strict=True)]
        return html(repr(self), [["", *self.columns], *rows])

    def block(self, rows: str | Sequence[str], columns: str | Sequence[str]) -> Array:
        """Return the submatrix of named rows and columns.

        Raises
        ------
        OptionError
            A name is not in `rows` or `columns`.
        """
        return self.matrix[np.ix_(_find(self.rows, rows, "row"), _find(self.columns, columns, "column"))]


def _find(known: tuple[str, ...], wanted: str | Sequence[str], what: str) -> list[int]:
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise OptionError(
            f"There is no {what} {', '.join(map(repr, unknown))}.", remedy=f"There are {', '.join(known)}."
        )
    return [known.index(name) for name in names]


def jump_sensitivity(trajectory: Trajectory, index: int) -> JumpSensitivity:
    """See `Trajectory.jump_sensitivity`."""
    events, system = trajectory.events, trajectory.system
    if isinstance(index, bool) or not isinstance(index, int | np.integer) or not -len(events) <= index < len(events):
        raise OptionError(f"There is no event {index!r}.", remedy=f"The run has {len(events)}, counted from 0.")
    event = events[index]
    if event.follows:
        raise EventError(
            "This event fires at the time of the previous one and has no matrix of its own.",
            transition=event.transition,
            time=event.time,
            remedy="Ask for the event before it at the same instant.",
        )
    map_ = system.linearise(event, trajectory.parameters, trajectory.t_span[0], Conditions())
    map_.refuse_not_finite(event)
    nw, n_p, k = map_.flow_minus.size, trajectory.parameters.size, system.functionals.size
    directions = np.hstack((np.eye(nw + n_p), np.zeros((nw + n_p, k))))
    tau, after, gained = map_.forward(directions[:nw], directions[nw:])
    columns = np.eye(nw + n_p + k)
    matrix = np.vstack((dense(after), columns[nw : nw + n_p], gained + columns[nw + n_p :]))
    modes = {mode.name: mode for mode in system.modes}
    source = modes[event.source]
    target = source if event.target is None else modes[event.target]
    common = (*system.memory.labels(), *system.parameters.labels(), *system.functionals.labels())
    return JumpSensitivity(
        event, matrix, (*target.differential.labels(), *common), (*source.differential.labels(), *common), tau
    )
