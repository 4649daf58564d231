"""The map across a transition and its linearisation.

With ``w = (y, m)``, the differential state and the memory, a transition is ``h(w-, p, t) = 0`` for the
event time and ``w+ = R(w-, p, t)``. Total derivatives run through the algebraic equations on both
sides by the implicit function theorem. Then (SR eq. 6 and 28, solved; tau = dt/dp, S = dw/dp)

    D   = h_w wdot- + h_t                                              SR eq. 4
    tau = -(h_w S- + h_p) / D                                          SR eq. 6b, 27
    S+  = R_w (S- + wdot- tau) + R_p + R_t tau - wdot+ tau             SR eq. 6c
    dG  = (g- - g+) tau                                                SR eq. 8

and its transpose, with L = dG/dw,

    c   = L+ . (R_w wdot- + R_t - wdot+) + g- - g+
    L-  = R_w^T L+ - h_w^T c / D,      dG/dp += R_p^T L+ - h_p^T c / D

One object, `TransitionLinearisation`, carries the numbers and goes both ways.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dae_hybrid.codegen import Kernel
from dae_hybrid.errors import ConsistencyError, GrazingError, NonFiniteError
from dae_hybrid.formulation import EPS, RANK_TOLERANCE, RESIDUAL_ROUNDINGS, closed_by_continuity, solve_algebraic
from dae_hybrid.integrator import Array

#: up to this many numbers Python is quicker than NumPy
SHORT = 16
#: a drift within this many roundings of its terms is none
DRIFT_ROUNDINGS = 64.0
#: a guard whose rate is below this share of its range over the time of the run does not cross
GRAZING = 1e-9

if TYPE_CHECKING:
    from dae_hybrid.system import ModeSystem
    from dae_hybrid.trajectory import EventRecord


class Arrival(NamedTuple):
    """A point at which a mode is entered, with the mode's guards there."""

    x: Array
    m: Array
    xdot: Array
    guards: Array
    rates: Array
    sizes: Array


def all_finite(values: Array) -> bool:
    """Whether every entry is finite; quick for short arrays."""
    if values.size <= SHORT:
        return all(map(math.isfinite, values.tolist()))
    return bool(np.isfinite(values).all())


def clock(start: float, count: int) -> Array:
    """What a trigger needs to know of time events: the start of the run and how many periods have passed."""
    return np.array([start, float(count)])


def vanishes(values: Array, sizes: Array, roundings: float) -> bool:
    """Whether every entry is zero to this many roundings of its terms; NaN is not."""
    if values.size <= SHORT:
        limit = roundings * EPS
        return all(abs(v) <= limit * s for v, s in zip(values.ravel().tolist(), sizes.ravel().tolist(), strict=True))
    return bool(np.all(np.abs(values) <= roundings * EPS * sizes))


def chain(mode: ModeSystem, t: float, x: Array, m: Array, p: Array) -> Array:
    """Derivative of u = (y, z, m, p, t) by (w, p, t) = (y, m, p, t) along the mode's algebraic equations.

    Shape (n + n_memory + n_parameters + 1, n_differential + n_memory + n_parameters + 1).
    """
    ny, nz = mode.differential.size, mode.algebraic.size
    size = ny + nz + m.size + p.size + 1
    if nz == 0:
        return np.eye(size)
    by_u = mode.kernels["closure_by_u"](t, x, m, p)[0]
    kept = np.r_[0:ny, ny + nz : size]
    result = np.zeros((size, size - nz))
    result[kept, np.arange(kept.size)] = 1.0
    try:
        result[ny : ny + nz] = -np.linalg.solve(by_u[:, ny : ny + nz], by_u[:, kept])
    except np.linalg.LinAlgError:
        raise ConsistencyError(
            "k_z is singular: the algebraic variables are not differentiable here.",
            mode=mode.name,
            time=t,
            variables=mode.algebraic.names,
        ) from None
    return result


@dataclass(frozen=True)
class TransitionLinearisation:
    """A transition linearised at one of its firings; see the module for the symbols.

    Shapes: h_w (n_w-), h_p (n_p), R_w (n_w+, n_w-), R_p (n_w+, n_p), R_t (n_w+), flow_minus (n_w-),
    flow_plus (n_w+), integrand_minus and integrand_plus (k).
    """

    h_w: Array
    h_p: Array
    rate: float  # D
    R_w: Array
    R_p: Array
    R_t: Array
    flow_minus: Array
    flow_plus: Array
    integrand_minus: Array
    integrand_plus: Array
    follows: bool = False  # the time is that of the event before, not that of the guard

    def select(self, components: list[int]) -> TransitionLinearisation:
        """The same transition for some components of the functionals."""
        return replace(
            self,
            integrand_minus=self.integrand_minus[components],
            integrand_plus=self.integrand_plus[components],
        )

    @property
    def drift(self) -> Array:
        """R_w wdot- + R_t - wdot+: what a shift of the event time does to the state after it."""
        return self.R_w @ self.flow_minus + self.R_t - self.flow_plus

    def forward(self, before: Array, directions: Array, earlier: Array | None = None) -> tuple[Array, Array, Array]:
        """Carry dw across: (n_w-, d) and dp (n_p, d) to tau (d,), dw+ (n_w+, d) and dG (k, d).

        `earlier` is tau of the event before at the same instant, zero where there is none.
        """
        if self.follows:
            tau = np.zeros(directions.shape[1]) if earlier is None else earlier
        else:
            tau = self._time(before, directions)
        after = self.R_w @ before + self.R_p @ directions + self.drift[:, None] * tau
        return tau, after, (self.integrand_minus - self.integrand_plus)[:, None] * tau

    def _time(self, before: Array, directions: Array) -> Array:
        """dt/dp along the directions (SR eq. 27)."""
        return np.asarray((self.h_w @ before + self.h_p @ directions) / -self.rate)

    def backward(self, after: Array, clock: Array) -> tuple[Array, Array, Array]:
        """Carry L = dG/dw back: (k, n_w+) to (k, n_w-), the share of dG/dp (k, n_p), and dG/dt for the event before.

        `clock` (k,) is dG/dt of what reads the time of this event: a terminal value, or an event that follows it.
        """
        c = after @ self.drift + self.integrand_minus - self.integrand_plus + clock
        sizes = abs(after) @ self._drift_size + abs(self.integrand_minus) + abs(self.integrand_plus) + abs(clock)
        c[abs(c) <= DRIFT_ROUNDINGS * EPS * sizes] = 0.0  # nothing but rounding: rates and integrand are continuous
        before, share = after @ self.R_w, after @ self.R_p
        if self.follows:
            return before, share, c
        if c.any():
            weight = (c / self.rate)[:, None]
            before, share = before - weight * self.h_w, share - weight * self.h_p
        return before, share, np.zeros_like(c)

    @property
    def _drift_size(self) -> Array:
        """What the drift is summed from, in magnitude."""
        return np.asarray(abs(self.R_w) @ abs(self.flow_minus) + abs(self.R_t) + abs(self.flow_plus))


@dataclass(frozen=True, eq=False)
class TransitionMap:
    """One transition of the built system.

    ============ ============================================== ===================================
    kernel       inputs                                         outputs
    ============ ============================================== ===================================
    time         p, clock                                       scheduled time (timed only)
    jump         t, x-, m-, p                                   x+, m+ with continuous z, k+ and the size of its
                                                                terms, and the target's `entry` there
    after        t, x-, m-, x+, p                               m+, k+, dk+/dz+ with m+ following,
                                                                sizes of the terms of both
    linear       t, x-, m-, x+, m+, p                           y+_u, m+_u, m+_x+, z+_u, k+_(x, m, p, t)
    tangent      t, x-, m-, x+, m+, p, clock                    the linearisation in one call, for continuous z+:
                                                                h and (y+, m+) by (w-, p, t), y'-, g-, y'+, g+,
                                                                dk+/dz+, the sizes of its terms
    ============ ============================================== ===================================

    `clock` is (start time, count): a periodic transition fires for the count-th time at start + count period.
    """

    name: str
    index: int
    source: int
    target: int | None
    direction: int
    on_entry: str
    kind: str  # "guard", "at" or "every"
    kernels: Mapping[str, Kernel]

    def apply(self, target: ModeSystem, t: float, x: Array, m: Array, p: Array) -> Arrival:
        """The point after the transition, consistent with the target mode (SR eq. 3, 24).

        Algebraic variables are continuous where that is consistent; otherwise they solve the target's
        equations, starting from their old values.
        """
        after, memory, k, k_size, *entry = self.kernels["jump"](t, x, m, p)
        if not vanishes(k, k_size, RESIDUAL_ROUNDINGS):
            ny = target.differential.size
            after = np.concatenate((after[:ny], self._solve(target, t, x, m, after[:ny], after[ny:], p)))
            memory = self.kernels["after"](t, x, m, after, p)[0]
            entry = target.kernels["entry"](t, after, memory, p)
        if not (all_finite(after) and all_finite(memory)):
            raise NonFiniteError("The reset gives NaN or infinity.", transition=self.name, mode=target.name, time=t)
        if not all_finite(entry[0]):
            raise NonFiniteError(
                "The equations are not finite after the transition.", transition=self.name, mode=target.name, time=t
            )
        return Arrival(after, memory, *entry)

    def _solve(self, target: ModeSystem, t: float, x: Array, m: Array, y: Array, z: Array, p: Array) -> Array:
        def equations(trial: Array) -> list[Array]:
            return self.kernels["after"](t, x, m, np.concatenate((y, trial)), p)[1:]

        def system(trial: Array) -> tuple[Array, Array, Array]:
            k, k_z, _, k_size = equations(trial)
            offset = trial - z
            sizes = abs(free) @ (abs(trial) + abs(z))
            return np.concatenate((k, free @ offset)), np.vstack((k_z, free)), np.concatenate((k_size, sizes))

        try:
            free = closed_by_continuity(*equations(z)[1:3])
        except (np.linalg.LinAlgError, ValueError):  # let Newton's method say what is wrong
            free = np.zeros((0, z.size))
        try:
            return solve_algebraic(system, z, mode=target.name, variables=target.algebraic.labels(), time=t)
        except ConsistencyError as error:
            error.transition = self.name
            error.remedy = (
                "Neither the target's algebraic equations nor continuity determine its algebraic variables. "
                "Check reset=, memory= and the equations of the target mode."
            )
            raise

    def linearise(
        self, source: ModeSystem, target: ModeSystem | None, event: EventRecord, p: Array, clock: Array
    ) -> TransitionLinearisation:
        """The linearisation at a recorded event."""
        t, before, m = event.time, event.x_minus, event.memory_minus
        nw, np_ = source.differential.size + m.size, p.size
        out = self.kernels["tangent"](t, before, m, event.x_plus, event.memory_plus, p, clock)
        h, jump, flow_minus, g_minus, flow_plus, g_plus, k_z, k_z_size = out
        if not vanishes(k_z, k_z_size, RANK_TOLERANCE / EPS):
            jump = self._jump_derivative(target, event, p, chain(source, t, before, m, p))  # type: ignore[arg-type]
        rate = float(h[0, :nw] @ flow_minus + h[0, -1])
        self._refuse_grazing(event, rate)
        return TransitionLinearisation(
            h_w=h[0, :nw],
            h_p=h[0, nw : nw + np_],
            rate=rate,
            R_w=jump[:, :nw],
            R_p=jump[:, nw : nw + np_],
            R_t=jump[:, -1],
            flow_minus=flow_minus,
            flow_plus=flow_plus,
            integrand_minus=g_minus,
            integrand_plus=g_plus,
            follows=event.follows,
        )

    def _refuse_grazing(self, event: EventRecord, rate: float) -> None:
        """The event time is differentiable only where the guard crosses zero at a rate (SR eq. 4)."""
        if self.kind != "guard" or event.follows:
            return
        if not math.isfinite(rate) or rate == 0.0 or abs(rate) <= GRAZING * event.rate_scale:
            raise GrazingError(
                f"The guard touches zero instead of crossing it (rate {rate:.3g}): derivatives do not exist there.",
                transition=self.name,
                mode=event.source,
                time=event.time,
                remedy="Change the parameters away from the grazing point, or the guard so that it crosses.",
            )

    def _jump_derivative(self, target: ModeSystem, event: EventRecord, p: Array, by_w: Array) -> Array:
        """d(y+, m+)/d(w-, p, t) with z+ from the target's equations, or from continuity where they leave it open."""
        t, x, m, after = event.time, event.x_minus, event.memory_minus, event.x_plus
        ny, nz = target.differential.size, target.algebraic.size
        y_u, m_u, m_x, z_u, k_u = self.kernels["linear"](t, x, m, after, event.memory_plus, p)
        dy, dm = y_u @ by_w, m_u @ by_w + m_x[:, :ny] @ (y_u @ by_w)
        if nz:
            nm, columns = m.size, by_w.shape[1]
            k_m = k_u[:, ny + nz : ny + nz + nm]
            right = k_u[:, :ny] @ dy + k_m @ dm
            right[:, columns - p.size - 1 :] += k_u[:, ny + nz + nm :]
            _, _, k_z, k_z_size, _ = self.kernels["after"](t, x, m, after, p)
            try:
                free = closed_by_continuity(k_z, k_z_size)
                if len(free) == nz:  # every z satisfies the equations: continuity alone decides
                    return np.vstack((dy, dm + m_x[:, ny:] @ (z_u @ by_w)))
                matrix, right = np.vstack((k_z, free)), np.vstack((-right, free @ (z_u @ by_w)))
                dz, _, rank, _ = np.linalg.lstsq(matrix, right, rcond=None)
            except np.linalg.LinAlgError as reason:
                raise ConsistencyError(
                    f"Cannot decide what determines the algebraic variables after the transition: {reason}.",
                    transition=self.name,
                    mode=target.name,
                    time=t,
                    variables=target.algebraic.names,
                ) from None
            if rank < nz:
                raise ConsistencyError(
                    "Neither the target's equations nor continuity determine the algebraic variables after "
                    "the transition.",
                    transition=self.name,
                    mode=target.name,
                    time=t,
                    variables=target.algebraic.names,
                )
            dm = dm + m_x[:, ny:] @ dz
        return np.vstack((dy, dm))


@dataclass(frozen=True, eq=False)
class InitialMap:
    """Initial values and their derivatives by the parameters.

    `explicit` gives y0, m0, their derivatives by p, and the memory's derivative by z0; a memory of an
    algebraic variable always has an explicit initial value, so y0 and m0 never depend on z0.
    """

    mode: int
    explicit: Kernel  # p -> y0, m0, dy0/dp, dm0/dp

    def apply(self, mode: ModeSystem, t: float, p: Array) -> Arrival:
        """The initial point, consistent with the mode's equations (SR eq. 2)."""
        x, m = self.values(mode, t, p)
        entry = mode.kernels["entry"](t, x, m, p)
        if not all_finite(entry[0]):
            raise NonFiniteError("The equations are not finite at the initial point.", mode=mode.name, time=t)
        return Arrival(x, m, *entry)

    def values(self, mode: ModeSystem, t: float, p: Array) -> tuple[Array, Array]:
        """x0 and m0."""
        y, m = self.explicit(p)[:2]
        if not (np.all(np.isfinite(y)) and np.all(np.isfinite(m))):
            raise NonFiniteError("The initial values are not finite.", mode=mode.name, time=t)
        if not mode.algebraic.size:
            return y, m

        def system(z: Array) -> tuple[Array, Array, Array]:
            k, k_z, size = mode.kernels["closure"](t, np.concatenate((y, z)), m, p)
            return k, k_z, size

        z = solve_algebraic(system, mode.guess, mode=mode.name, variables=mode.algebraic.labels(), time=t)
        return np.concatenate((y, z)), m

    def derivatives(self, p: Array) -> Array:
        """d(y0, m0)/dp, shape (n_differential + n_memory, n_parameters)."""
        _, _, by_p, memory_by_p = self.explicit(p)
        return np.vstack((by_p, memory_by_p))
