"""The start of a run: consistent values and their derivatives (SR eq. 2).

The unknowns are what is not given of x0 = (y0, z0). The equations Phi(x0) = 0 are T0 = 0, the constraints of index 2
and the mode's K. There may be more equations than unknowns where they agree, at every value of the parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dae_hybrid.arrival import EXCESS_TOLERANCE
from dae_hybrid.codegen import Kernel
from dae_hybrid.errors import ConsistencyError, NonFiniteError
from dae_hybrid.failures import SUSPECTS, refuse_not_finite
from dae_hybrid.formulation import (
    RANK_TOLERANCE,
    reciprocal_condition,
    refuse_multiple_root,
    singular_names,
    solve_algebraic,
    solve_linear,
)
from dae_hybrid.integrator import Array
from dae_hybrid.matrices import Matrix, dense, vstack
from dae_hybrid.signals import SignalTable
from dae_hybrid.system import ModeSystem
from dae_hybrid.transition import Arrival, all_finite


@dataclass(frozen=True, eq=False)
class InitialMap:
    """Initial values and their derivatives by the parameters.

    ============ =================== =======================================================
    kernel       inputs              outputs
    ============ =================== =======================================================
    start        p                   x0 with given values and guesses, and its derivative
    equations    t, x0, held, p      m0, Phi, Phi_x, sizes of the terms of Phi
    linear       t, x0, held, p      Phi and m0, each by x0, held and p; sizes of the terms of Phi_x
    explicit     t, held, p          x0, m0, where the equations give them one by one
    exact        t, held, p          (y0, m0) by held, p, likewise
    ============ =================== =======================================================

    `held` is the memory with the coefficients of signals at the initial time; its other entries are not used.
    """

    mode: int
    start: Kernel
    equations: Kernel
    linear: Kernel
    free: tuple[int, ...]  # entries of x0 that are not given
    labels: tuple[str, ...]  # of the equations
    signals: tuple[SignalTable, ...]
    explicit: Kernel | None = None
    exact: Kernel | None = None

    def _held(self, n_memory: int, t: float, p: Array) -> Array:
        held = np.zeros(n_memory)
        for signal in self.signals:
            held[signal.memory] = signal.coefficients(signal.interval(t), p)
        return held

    def _held_by_p(self, n_memory: int, t: float, p: Array) -> Array:
        by_p = np.zeros((n_memory, p.size))
        for signal in self.signals:
            by_p[signal.memory] = signal.derivatives(signal.interval(t), p)
        return by_p

    def apply(self, mode: ModeSystem, t: float, p: Array) -> Arrival:
        """The initial point, consistent with the mode's equations."""
        x, m = self.values(mode, t, p)
        entry = mode.kernels["entry"](t, x, m, p)
        if not all_finite(entry[0]):
            raise NonFiniteError(
                "The equations are not finite at the initial point.",
                mode=mode.name,
                time=t,
                remedy=f"Check the equations of the mode, at the initial values, for {SUSPECTS}.",
            )
        return Arrival(x, m, *entry)

    def values(self, mode: ModeSystem, t: float, p: Array) -> tuple[Array, Array]:
        """x0 and m0."""
        held = self._held(mode.equations.n_memory, t, p)
        if self.explicit is not None:
            x, m = self.explicit(t, held, p)
            if all_finite(x) and all_finite(m):
                if mode.algebraic.size:
                    _check_index(mode, t, x, m, p)
                return x, m
        start = self.start(p)[0]
        if not np.all(np.isfinite(start)):
            raise _not_finite(mode.variables.labels(), start, mode, t)

        x, free = start.copy(), list(self.free)

        def system(trial: Array) -> tuple[Array, Array, Array]:
            x[free] = trial
            _, phi, by_x, sizes = self.equations(t, x, held, p)
            return phi, by_x[:, free], sizes

        if self.labels:
            labels = mode.variables.labels()
            names = [labels[i] for i in free]
            try:
                x[free] = solve_algebraic(
                    system, start[free], mode=mode.name, variables=names, time=t, equations=self.labels
                )
            except ConsistencyError as error:
                error.remedy = (
                    "The initial conditions and the mode's equations do not agree, or Newton's method does not find "
                    "the values from where it starts: leave out what follows from other equations, or give guess=."
                )
                raise
        m = self.equations(t, x, held, p)[0]
        if not np.all(np.isfinite(m)):
            raise _not_finite([f"memory entry {i}" for i in range(m.size)], m, mode, t)
        if mode.algebraic.size:
            _check_index(mode, t, x, m, p)
        return x, m

    def matrix(self, mode: ModeSystem, t: float, x: Array, p: Array) -> Array:
        """The derivative of the equations by what is not given: the matrix below SR eq. 2."""
        by_x = self.equations(t, x, self._held(mode.equations.n_memory, t, p), p)[2]
        return by_x[:, list(self.free)]

    def derivatives(self, mode: ModeSystem, t: float, x: Array, p: Array) -> Matrix:
        """d(y0, m0)/dp, shape (n_differential + n_memory, n_parameters)."""
        held = self._held(mode.equations.n_memory, t, p)
        held_by_p = self._held_by_p(mode.equations.n_memory, t, p)
        if self.exact is not None:
            w_held, w_p = self.exact(t, held, p)
            refuse_not_finite("an initial value or equation", (w_held, w_p), mode=mode.name, time=t)
            return w_p + w_held @ held_by_p if self.signals else w_p
        linear, by_p, free = self.linear(t, x, held, p), self.start(p)[1], list(self.free)
        refuse_not_finite("an initial value or equation", (*linear[:6], by_p), mode=mode.name, time=t)
        phi_x, phi_held, phi_p, m_x, m_held, m_p, entries = linear
        if not self.labels and not free:  # everything is given
            return vstack((by_p[: mode.differential.size], m_x @ by_p + m_held @ held_by_p + m_p))
        by_p = dense(by_p).copy()
        by_p[free] = 0.0
        right = -(phi_p + phi_held @ held_by_p + phi_x @ by_p)
        right_size = abs(phi_p) + abs(phi_held) @ abs(held_by_p) + abs(phi_x) @ abs(by_p)
        try:
            if free:
                refuse_multiple_root(phi_x[:, free], entries[:, free])
            by_p[free], excess, sizes = solve_linear(phi_x[:, free], right, right_size)
        except np.linalg.LinAlgError as reason:
            open_names = [mode.variables.labels()[i] for i in free]
            raise ConsistencyError(
                f"The initial values {', '.join(open_names)} are not differentiable: {reason}.",
                mode=mode.name,
                time=t,
                variables=mode.variables.names,
            ) from None
        off = np.any(np.abs(excess) > EXCESS_TOLERANCE * sizes, axis=1)
        if np.any(off):
            raise ConsistencyError(
                "The initial conditions agree at these parameters, but not at others: no derivative exists. In "
                f"conflict: {', '.join(label for label, bad in zip(self.labels, off, strict=True) if bad)}.",
                mode=mode.name,
                time=t,
                variables=mode.variables.names,
                remedy="Leave out the initial values that follow from the constraints.",
            )
        m_by_p = m_x @ by_p + m_held @ held_by_p + m_p
        return np.vstack((by_p[: mode.differential.size], m_by_p))


@dataclass(frozen=True, eq=False)
class Start:
    """Where a run starts: mode, time and point, for the parameters p."""

    map: InitialMap
    mode: ModeSystem
    t: float
    at: Arrival
    p: Array
    by_p: Matrix | None = None  # the derivatives, where they are known

    @property
    def x(self) -> Array:
        """(y, z)."""
        return self.at.x

    @cached_property
    def derivatives(self) -> Matrix:
        """d(y0, m0)/dp, shape (n_differential + n_memory, n_parameters); see `InitialMap.derivatives`."""
        return self.map.derivatives(self.mode, self.t, self.x, self.p) if self.by_p is None else self.by_p

    def matrix(self) -> Array:
        """The derivative of the initial equations by what is not given: the matrix below SR eq. 2."""
        return self.map.matrix(self.mode, self.t, self.x, self.p)


def _not_finite(names: Sequence[str], values: Array, mode: ModeSystem, t: float) -> NonFiniteError:
    bad = [name for name, value in zip(names, values, strict=True) if not np.isfinite(value)]
    return NonFiniteError(
        f"The initial values are not finite: {', '.join(bad)}.",
        mode=mode.name,
        time=t,
        variables=bad,
        remedy=f"Check m.initial and the initial= of memory, at these parameters, for {SUSPECTS}.",
    )


def _check_index(mode: ModeSystem, t: float, x: Array, m: Array, p: Array) -> None:
    """Refuse a start at which [F_y' | F_z], or C B in index 2, is numerically singular."""
    _, by_z, _ = mode.kernels["closure"](t, x, m, p)
    if reciprocal_condition(by_z) > RANK_TOLERANCE:
        return
    raise ConsistencyError(
        f"[F_y' | F_z] is singular at the initial point: {singular_names(by_z, (), mode.algebraic.labels())}.",
        mode=mode.name,
        time=t,
        variables=mode.algebraic.names,
        remedy="The index is higher than 1 there (higher than 2 with constraints): check the equations and the values.",
    )
