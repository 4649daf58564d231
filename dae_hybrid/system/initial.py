"""The start of a run: consistent initial values and their derivatives (SR eq. 2).

The unknowns are the entries of x0 = (y0, z0) without given values. The equations Phi(x0) = 0 are T0 = 0, the
constraints of index 2 and the mode's K. They may outnumber the unknowns if they agree for all values of the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import issparse

from dae_hybrid.codegen.kernels import Kernel
from dae_hybrid.errors import ConsistencyError, NonFiniteError
from dae_hybrid.layout import Layout
from dae_hybrid.numerics.algebraic import (
    is_isolated,
    is_regular,
    refuse_multiple_root,
    refuse_unsettled_root,
    singular_names,
    solve_algebraic,
    solve_linear,
)
from dae_hybrid.numerics.arrays import Array, all_finite
from dae_hybrid.numerics.matrices import Matrix, dense, vstack
from dae_hybrid.port.failure_messages import SUSPECTS, refuse_not_finite, said
from dae_hybrid.port.point import StatePoint
from dae_hybrid.system.excess import EXCESS_TOLERANCE
from dae_hybrid.system.projection import nearest_point
from dae_hybrid.system.signals import SignalTable
from dae_hybrid.system.system import ModeSystem

#: relative accuracy of a multiple root, the square root of rounding, and of quantities that vanish there
ROUNDED_ROOT, TINIEST = 1e-5, 1e-100
#: relative perturbation of the parameters that tests whether two solutions stay together
MOVED = 1e-3


@dataclass(frozen=True, eq=False)
class InitialMap:
    """Initial values and their derivatives with respect to the parameters.

    ============ =================== =======================================================
    kernel       inputs              outputs
    ============ =================== =======================================================
    start        p                   x0 with given values and guesses, and its derivative
    equations    t, x0, held, p      m0, Phi, Phi_x, sizes of the terms of Phi
    linear       t, x0, held, p      Phi and m0, each by x0, held and p; sizes of the terms of Phi_x
    explicit     t, held, p          x0, m0, where the equations give them one by one
    exact        t, held, p          (y0, m0) by held, p, likewise
    ============ =================== =======================================================

    `held` is the memory with the signals' coefficients at the initial time; its other entries are ignored.
    """

    mode: int
    start: Kernel
    equations: Kernel
    linear: Kernel
    free: tuple[int, ...]  # entries of x0 without given values
    labels: tuple[str, ...]  # labels of the equations
    signals: tuple[SignalTable, ...]
    explicit: Kernel | None = None
    exact: Kernel | None = None
    moved: int = 0  # number of projected unknowns, which come first
    stationary: int = 0  # number of stationarity equations, which come first
    bend: Callable[[], Kernel] | None = None  # create the kernel for derivatives of Phi_x along a direction
    multipliers: int = 0  # number of multipliers of the projection, the last unknowns; they follow x0
    given: Layout = field(default_factory=lambda: Layout(()))  # the variables with given values
    entries: tuple[int, ...] = ()  # their indices in x0
    held: Layout = field(default_factory=lambda: Layout(()))  # the memories with given values
    held_entries: tuple[int, ...] = ()  # their indices in m0
    held_values: Array | None = None
    surplus: tuple[str, ...] = ()  # given variables that the model determines by equations
    #: create `explicit` and `exact` with the given values at some places as an additional input
    explicit_at: Callable[[tuple[int, ...]], tuple[Kernel, Kernel] | None] = lambda _: None

    @property
    def is_replaced(self) -> bool:
        """Whether numbers have replaced given values."""
        return self.held_values is not None or isinstance(self.start, _Fixed)

    def at(self, places: tuple[int, ...], values: Array, held: Array | None = None) -> InitialMap:
        """Replace given values at some places by numbers, which do not depend on the parameters.

        `held` are the values of the memories with given values.
        """
        if not places:
            return replace(self, held_values=held)
        explicit = self.explicit_at(places)
        return replace(
            self,
            held_values=held,
            start=_Fixed(self.start, [self.entries[i] for i in places], values),
            explicit=None if explicit is None else _BoundKernel(explicit[0], values),
            exact=None if explicit is None else _BoundKernel(explicit[1], values),
        )

    def _held(self, n_memory: int, t: float, p: Array) -> Array:
        held = np.zeros(n_memory)
        for signal in self.signals:
            held[signal.memory] = signal.coefficients(signal.interval(t), p)
        if self.held_values is not None:
            held[list(self.held_entries)] = self.held_values
        return held

    def _held_by_p(self, n_memory: int, t: float, p: Array) -> Array:
        by_p = np.zeros((n_memory, p.size))
        for signal in self.signals:
            by_p[signal.memory] = signal.derivatives(signal.interval(t), p)
        return by_p

    def apply(self, mode: ModeSystem, t: float, p: Array) -> StatePoint:
        """Return the initial point, consistent with the mode's equations."""
        x, m = self.values(mode, t, p)
        entry, n = mode.kernels["entry"](t, x, m, p), mode.equations.n
        if not all_finite(entry[0]):
            raise NonFiniteError(
                "The equations are not finite at the initial point" + said(mode.not_finite(t, x[:n], m, p)[0]),
                mode=mode.name,
                time=t,
                remedy=f"Check the equations of the mode, at the initial values, for {SUSPECTS}.",
            )
        return StatePoint(x, m, *entry)

    def numbers(self, mode: ModeSystem, t: float, p: Array, *, differentiate: bool) -> Array:
        """Return the initial point and, if wanted, its derivatives, like `BoundaryFunctions.origin`."""
        at = self.apply(mode, t, p)
        by_p = np.zeros(((mode.differential.size + at.m.size), p.size))
        if differentiate:
            by_p = dense(self.derivatives(mode, t, at.x, p))
        return np.concatenate((*at, by_p.ravel("F")))

    def values(self, mode: ModeSystem, t: float, p: Array) -> tuple[Array, Array]:
        """Return x0 and m0."""
        held = self._held(mode.equations.n_memory, t, p)
        if self.explicit is not None:
            x, m = self.explicit(t, held, p)
            if all_finite(x) and all_finite(m):
                if mode.algebraic.size:
                    _check_index(mode, t, x, m, p, lambda: self._closure_sizes(mode, t, x, held, p))
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
            labels = (*mode.variables.labels(), *(f"projection multiplier {i}" for i in range(self.multipliers)))
            names = [labels[i] for i in free]

            def solve(begin: Array) -> Array:
                return solve_algebraic(system, begin, mode=mode.name, variables=names, time=t, equations=self.labels)

            try:
                found = self._nearest(solve, system, start[free], mode, names, t) if self.moved else solve(start[free])
                self._refuse_curve(mode, t, system, found, names, lambda: self.linear(t, x, held, p)[6][:, free])
                x[free] = found
            except ConsistencyError as error:
                if self.moved:
                    raise
                if self.surplus:
                    given = ", ".join(self.surplus)
                    error.message += f" x0 gives {given}, which the model determines by its equations."
                error.remedy = (
                    "The initial conditions and the mode's equations do not agree, or Newton's method does not find "
                    "the values from where it starts: leave out what follows from other equations, or give guess=."
                )
                raise
        m, whole = self.equations(t, x, held, p)[0], x
        x = x[: mode.variables.size]
        if not np.all(np.isfinite(m)):
            raise _not_finite([f"memory entry {i}" for i in range(m.size)], m, mode, t)
        if mode.algebraic.size:
            _check_index(mode, t, x, m, p, lambda: self._closure_sizes(mode, t, whole, held, p))
        return x, m

    def _closure_sizes(self, mode: ModeSystem, t: float, x: Array, held: Array, p: Array) -> Array:
        """Sizes of the terms of the derivatives of the mode's algebraic equations, the last ones, by z."""
        sizes, nz = self.linear(t, x, held, p)[6], mode.algebraic.size
        return dense(sizes[-nz:, mode.differential.size : mode.variables.size])

    def _nearest(
        self, solve: Any, system: Any, start: Array, mode: ModeSystem, names: Sequence[str], t: float
    ) -> Array:
        """The unknowns at the consistent point nearest to the given values."""

        def fail(reason: str) -> ConsistencyError:
            return ConsistencyError(
                f"The projection of the initial values does not find the nearest consistent point: {reason}.",
                mode=mode.name,
                time=t,
                variables=names[: self.moved],
                remedy="Give initial values nearer to the point that is meant, or name other variables in project=.",
            )

        return nearest_point(
            solve, lambda trial: system(trial)[:2], start,
            count=self.stationary, moved=self.moved, multipliers=self.multipliers, fail=fail,
        )  # fmt: skip

    def _refuse_unsettled(self, t: float, x: Array, held: Array, p: Array, matrix: Array) -> None:
        """See `refuse_unsettled_root`."""
        free = list(self.free)

        def jacobian(values: Array) -> Array:
            trial = x.copy()
            trial[free] = values
            return self.equations(t, trial, held, p)[2][:, free]

        refuse_unsettled_root(matrix, self.equations(t, x, held, p)[3], x[free], jacobian)

    def _refuse_curve(
        self, mode: ModeSystem, t: float, system: Any, values: Array, names: Sequence[str], sizes: Callable[[], Array]
    ) -> None:
        """Refuse values that others next to them could take the place of."""
        matrix = system(values)[1]
        square = matrix.shape[0] == matrix.shape[1] and not issparse(matrix)
        if not square or is_regular(matrix, sizes) or is_isolated(values, matrix, system):
            return
        raise ConsistencyError(
            f"The initial conditions do not determine {', '.join(names)}: "
            f"{singular_names(matrix, self.labels, names)}.",
            mode=mode.name,
            time=t,
            variables=names,
        )

    def _of_double_root(self, t: float, x: Array, held: Array, p: Array, matrix: Array, right: Array) -> Array | None:
        """Derivatives of the unknowns at a double root whose two solutions coincide for all parameters.

        With u and v the null vectors of Phi_x, u^T Phi_x v = 0 replaces the dependent equation. Returns None if the two
        solutions separate.
        """
        free = list(self.free)
        if self.bend is None or self.signals or issparse(matrix) or matrix.shape[0] != matrix.shape[1]:
            return None
        scale = np.abs(matrix).max(axis=1, keepdims=True)
        scale = np.where(scale > ROUNDED_ROOT * scale.max(), scale, scale.max() or 1.0)
        left, sizes, rows = np.linalg.svd(matrix / scale)
        kept = sizes > ROUNDED_ROOT * max(float(sizes.max(initial=0.0)), TINIEST)
        if np.count_nonzero(~kept) != 1 or not kept[:-1].all():
            return None
        u, v = left[:, -1] / scale[:, 0], np.zeros(x.size)
        v[free] = rows[-1]
        scaled = right / scale
        lost = np.abs(left[:, -1] @ scaled)
        if np.any(lost > ROUNDED_ROOT * np.maximum(np.abs(scaled).max(axis=0), 1.0)):
            return None  # a fold: they coincide at these parameters only
        along = rows[:-1].T @ ((left[:, :-1].T @ scaled) / sizes[:-1, None])
        w_x, _, w_p = self.bend()(t, x, held, p, u, v)
        bent = float(w_x[free] @ v[free])
        if not abs(bent) > ROUNDED_ROOT * float(np.abs(w_x[free]) @ np.abs(v[free]) + TINIEST):
            return None
        found = along - np.outer(v[free], (w_x[free] @ along + w_p) / bent)
        rng = np.random.default_rng(1)
        for direction in (*np.eye(p.size), *rng.normal(size=(3, p.size))):
            if self._parts(t, x, held, p, u, found, direction, bent):
                return None
        return found

    def _parts(
        self, t: float, x: Array, held: Array, p: Array, u: Array, found: Array, direction: Array, bent: float
    ) -> bool:
        """Whether two coincident solutions separate when the parameters change in a direction."""
        step = MOVED * max(float(np.abs(p[direction != 0]).max(initial=0.0)), MOVED) / float(np.abs(direction).max())
        free, start = list(self.free), self.start(p)[0]
        left = 0.0
        for side in (step, -step):
            there = x.copy()
            there += self.start(p + side * direction)[0] - start  # the given values
            there[free] = x[free] + side * (found @ direction)
            left += float(u @ self.equations(t, there, held, p + side * direction)[1]) / 2
        # distance between the two solutions, in multiples of v
        apart = np.sqrt(2 * abs(left / bent)) / step
        return bool(apart > np.sqrt(ROUNDED_ROOT) * (1.0 + float(np.abs(found @ direction).max())))

    def _with_multipliers(self, t: float, x: Array, held: Array, p: Array) -> Array:
        """Return x0 followed by the corresponding multipliers of the projection."""
        if not self.multipliers:
            return x
        whole = np.concatenate((x, np.zeros(self.multipliers)))
        _, phi, by_x, _ = self.equations(t, whole, held, p)
        of_multipliers = dense(by_x)[: self.stationary, x.size :]
        whole[x.size :] = np.linalg.lstsq(of_multipliers, -phi[: self.stationary], rcond=None)[0]
        return whole

    def matrix(self, mode: ModeSystem, t: float, x: Array, p: Array) -> Array:
        """The Jacobian of the equations with respect to the unknowns: the matrix below SR eq. 2."""
        x = self._with_multipliers(t, x, self._held(mode.equations.n_memory, t, p), p)
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
        x = self._with_multipliers(t, x, held, p)
        linear, by_p, free = self.linear(t, x, held, p), self.start(p)[1], list(self.free)
        refuse_not_finite("an initial value or equation", (*linear[:6], by_p), mode=mode.name, time=t)
        phi_x, phi_held, phi_p, m_x, m_held, m_p, entries = linear
        if not self.labels and not free:  # no unknowns
            return vstack((by_p[: mode.differential.size], m_x @ by_p + m_held @ held_by_p + m_p))
        by_p = dense(by_p).copy()
        by_p[free] = 0.0
        right = -(phi_p + phi_held @ held_by_p + phi_x @ by_p)
        right_size = abs(phi_p) + abs(phi_held) @ abs(held_by_p) + abs(phi_x) @ abs(by_p)
        try:
            if free:
                refuse_multiple_root(phi_x[:, free], entries[:, free])
                self._refuse_unsettled(t, x, held, p, phi_x[:, free])
            by_p[free], excess, sizes = solve_linear(phi_x[:, free], right, right_size, entries[:, free])
        except np.linalg.LinAlgError as reason:
            found = self._of_double_root(t, x, held, p, phi_x[:, free], right)
            if found is not None:
                by_p[free] = found
                m_by_p = m_x @ by_p + m_held @ held_by_p + m_p
                return np.vstack((by_p[: mode.differential.size], m_by_p))
            labels = mode.variables.labels()
            open_names = [labels[i] for i in free if i < len(labels)]
            raise ConsistencyError(
                f"The initial values {', '.join(open_names)} are not differentiable: {reason}.",
                mode=mode.name,
                time=t,
                variables=mode.variables.names,
                remedy="Where solutions of the equations meet they have no derivative. If the values stay where they "
                "are as the parameters change, give them in m.initial besides the equations, which may then be more "
                "than are needed.",
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


class _BoundKernel(Kernel):
    """A kernel with a fixed last argument."""

    def __init__(self, kernel: Kernel, last: Array) -> None:
        self.function, self.name = kernel.function, kernel.name
        self._kernel, self._last = kernel, last

    def __call__(self, *arguments: Any) -> list[Array]:
        return self._kernel(*arguments, self._last)


class _Fixed(Kernel):
    """`InitialMap.start` with some entries of x0 fixed to numbers."""

    def __init__(self, start: Kernel, entries: list[int], values: Array) -> None:
        self.function, self.name = start.function, start.name
        self._start, self._entries, self._values = start, entries, values

    def __call__(self, *arguments: Any) -> list[Array]:
        x0, by_p = self._start(*arguments)
        by_p = dense(by_p).copy()
        x0[self._entries], by_p[self._entries] = self._values, 0.0
        return [x0, by_p]


@dataclass(frozen=True, eq=False)
class RunStart:
    """The start of a run at parameters p: mode, time and point."""

    map: InitialMap
    mode: ModeSystem
    t: float
    at: StatePoint
    p: Array
    by_p: Matrix | None = None  # the derivatives, if known

    @property
    def x(self) -> Array:
        """(y, z)."""
        return self.at.x

    @cached_property
    def derivatives(self) -> Matrix:
        """d(y0, m0)/dp, shape (n_differential + n_memory, n_parameters); see `InitialMap.derivatives`."""
        return self.map.derivatives(self.mode, self.t, self.x, self.p) if self.by_p is None else self.by_p

    def matrix(self) -> Array:
        """The Jacobian of the initial equations with respect to the unknowns: the matrix below SR eq. 2."""
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


def _check_index(mode: ModeSystem, t: float, x: Array, m: Array, p: Array, sizes: Callable[[], Array]) -> None:
    """Refuse a start at which [F_y' | F_z], or C B in index 2, is numerically singular."""
    _, by_z, _ = mode.kernels["closure"](t, x, m, p)
    if is_regular(by_z, sizes):
        return
    raise ConsistencyError(
        f"[F_y' | F_z] is singular at the initial point: {singular_names(by_z, (), mode.algebraic.labels())}.",
        mode=mode.name,
        time=t,
        variables=mode.algebraic.names,
        remedy="The index is higher than 1 there (higher than 2 with constraints): check the equations and the values.",
    )
