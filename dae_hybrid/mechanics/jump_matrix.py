"""The jump sensitivity matrix of a mechanism in the block structure of Corner, Sandu and Sandu (2020)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import casadi as ca
import numpy as np

from dae_hybrid.errors import OptionError, UnsupportedError
from dae_hybrid.layout import Layout
from dae_hybrid.mechanics.equations import EquationsOfMotion
from dae_hybrid.mechanics.kinematics import Motion, partition_function
from dae_hybrid.mechanics.mechanism import Mechanism
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.trajectory.trajectory import Trajectory

BLOCKS = ("Q_dep", "Q_dof", "V_dep", "V_dof", "Gamma", "Z")


@dataclass(frozen=True, eq=False)
class JumpMatrix:
    """S_eve with its blocks: positions and velocities, dependent and independent, parameters, costs.

    Corner, Sandu and Sandu (2020), eq. 45 and 58 (and 24, without constraints). The columns of dependent velocities are
    zero, because the velocity constraint before the event (eq. 44) is substituted. The blocks contain the terms with
    dt_eve/drho that eq. 54 to 62 as printed lack.

    Attributes
    ----------
    matrix : ndarray, shape (n_rows, n_columns)
    rows, columns : dict of slice
        Ranges of the blocks ``"Q_dep"``, ``"Q_dof"``, ``"V_dep"``, ``"V_dof"``, ``"Gamma"`` and ``"Z"``.
    row_names, column_names : tuple of str
    """

    matrix: Array
    rows: dict[str, slice]
    columns: dict[str, slice]
    row_names: tuple[str, ...]
    column_names: tuple[str, ...]

    def block(self, row: str, column: str) -> Array:
        """One block, such as ``block("V_dof", "Q_dep")``."""
        for given, known in ((row, self.rows), (column, self.columns)):
            if given not in known:
                raise OptionError(f"There is no block {given!r}.", remedy=f"Blocks: {', '.join(known)}.")
        return self.matrix[self.rows[row], self.columns[column]]


def jump_matrix(
    mechanism: Mechanism,
    trajectory: Trajectory,
    event: int,
    *,
    independent: Sequence[Any] | None = None,
    independent_after: Sequence[Any] | None = None,
) -> JumpMatrix:
    """The jump sensitivity matrix of an event of a mechanism.

    Parameters
    ----------
    mechanism : Mechanism
    trajectory : Trajectory
        A run of it, in a formulation whose states are positions and velocities: any but `Reduced`.
    event : int
        Index of the event in ``trajectory.events``.
    independent, independent_after : sequence of coordinates, optional
        Independent coordinates before and after the event. By default pivoting selects them, and after the event the
        same ones are kept if the mode has as many degrees of freedom.

    Raises
    ------
    OptionError
        The event does not exist, or the coordinates are not independent or have the wrong number.
    UnsupportedError
        The run is in reduced coordinates, or has memory or states besides those of the mechanism.
    """
    whole, record = trajectory.jump_sensitivity(event), trajectory.events[event]
    equations = EquationsOfMotion(mechanism)
    names = [*equations.labels, *(n for c in equations.coordinates for n in _entries(c.v))]
    parameters, costs = trajectory.system.parameters.labels(), trajectory.system.functionals.labels()
    if sorted(whole.columns) != sorted((*names, *parameters, *costs)):
        others = sorted(set(whole.columns).symmetric_difference((*names, *parameters, *costs)))
        raise UnsupportedError(
            f"The run's states are not positions and velocities alone: {', '.join(others)}.",
            remedy="Use trajectory.jump_sensitivity(event), whose rows and columns have names.",
        )
    before, after = record.source, record.target or record.source
    n = len(equations.labels)
    point = _Point(equations, trajectory, event)
    sides: list[tuple[list[int], list[int]]] = []
    for mode, chosen in ((before, independent), (after, independent_after)):
        motion = equations.motions[mode]
        if chosen is None and sides and motion.m == equations.motions[before].m:
            sides.append(sides[0])
        else:
            sides.append(_partition(equations, motion, point, mode, chosen))
    blocks = []
    for dependent, free in sides:
        speeds = [names[n + i] for i in range(n)]
        listed = (
            [names[i] for i in dependent], [names[i] for i in free], [speeds[i] for i in dependent],
            [speeds[i] for i in free], list(parameters), list(costs),
        )  # fmt: skip
        blocks.append(dict(zip(BLOCKS, listed, strict=True)))
    columns, rows = ([name for block in b.values() for name in block] for b in blocks)
    matrix = whole.block(rows, columns)
    across, own = (_slices(b) for b in blocks)
    if len(sides[0][0]):
        _substitute(matrix, across, equations.motions[before], point, sides[0])
    return JumpMatrix(matrix, own, across, tuple(rows), tuple(columns))


def _entries(symbol: ca.MX) -> tuple[str, ...]:
    return Layout.of([(symbol.name(), symbol.numel())]).labels()


def _slices(blocks: dict[str, list[str]]) -> dict[str, slice]:
    ends = np.cumsum([0, *map(len, blocks.values())]).tolist()
    return {name: slice(a, b) for name, a, b in zip(blocks, ends[:-1], ends[1:], strict=True)}


class _Point:
    """Positions, velocities and parameters just before an event, for expressions of the mechanism."""

    def __init__(self, equations: EquationsOfMotion, trajectory: Trajectory, event: int) -> None:
        record, mech = trajectory.events[event], equations.mechanism
        mode = next(m for m in trajectory.system.modes if m.name == record.source)
        values = dict(zip(mode.variables.labels(), record.x_minus, strict=True))
        q, v = ([values[name] for c in equations.coordinates for name in _entries(getattr(c, kind))] for kind in "qv")
        declared = mech.of_kind("parameter")
        self.symbols = [mech.time, equations.q, equations.v, *(d.symbol for d in declared)]
        at = trajectory.system.parameters
        self.values = [
            ca.DM(record.time), ca.DM(q), ca.DM(v), *(ca.DM(trajectory.parameters[at[d.name]]) for d in declared)
        ]  # fmt: skip

    def evaluate(self, expression: ca.MX) -> Array:
        """The value of an expression."""
        function = ca.Function("at", self.symbols, [ca.densify(expression)])
        return np.asarray(function.call(self.values)[0], dtype=float)


def _partition(
    equations: EquationsOfMotion, motion: Motion, point: _Point, mode: str, chosen: Sequence[Any] | None
) -> tuple[list[int], list[int]]:
    """Indices of dependent and independent coordinates."""
    if not motion.m:
        free = list(range(motion.n))
    elif chosen is None:
        flat = partition_function(motion.m, motion.n)(point.evaluate(motion.phi_q))[0]
        free = np.flatnonzero(np.asarray(flat).reshape(-1, motion.n, order="F").sum(axis=0)).tolist()
    else:
        owners = [equations.mechanism.coordinate_of(c, "independent").q for c in chosen]
        free = equations.places(ca.vertcat(*owners)) if owners else []
    if len(set(free)) != motion.n - motion.m:
        raise OptionError(
            f"{len(set(free))} independent coordinates are given; mode '{mode}' has {motion.n - motion.m}."
        )
    return [i for i in range(motion.n) if i not in free], free


def _substitute(
    matrix: Array, columns: dict[str, slice], motion: Motion, point: _Point, sides: tuple[list[int], list[int]]
) -> None:
    """Substitute the velocity constraint before the event for dependent velocities (eq. 44, 50 and 51)."""
    dependent, free = sides
    phi_q, by_q = point.evaluate(motion.phi_q), point.evaluate(ca.jacobian(motion.velocity, motion.q))
    parameters = ca.vertcat(*point.symbols[3:]) if point.symbols[3:] else ca.MX(0, 1)
    by_p = point.evaluate(ca.jacobian(motion.velocity, parameters))
    try:
        inverse = np.linalg.inv(phi_q[:, dependent])
    except np.linalg.LinAlgError:
        raise OptionError("The coordinates given as independent do not determine the others.") from None
    through = -matrix[:, columns["V_dep"]] @ inverse
    matrix[:, columns["V_dof"]] += through @ phi_q[:, free]
    matrix[:, columns["Q_dep"]] += through @ by_q[:, dependent]
    matrix[:, columns["Q_dof"]] += through @ by_q[:, free]
    matrix[:, columns["Gamma"]] += through @ by_p
    matrix[:, columns["V_dep"]] = 0.0
