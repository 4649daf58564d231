"""One step of the index-3 scheme with projections, and the integration rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import lu_factor, lu_solve
from scipy.sparse.linalg import splu

from dae_hybrid.codegen.kernels import Kernel
from dae_hybrid.errors import ConsistencyError, NonFiniteError, StepSizeError
from dae_hybrid.numerics.arrays import EPS, Array, all_finite
from dae_hybrid.numerics.matrices import Matrix, dense
from dae_hybrid.port.integrator import Equations
from dae_hybrid.port.motion import MotionEquations
from dae_hybrid.port.segment_rules import cached, completed

#: Newton's method has converged if the next correction, by its quadratic convergence, is below this share of the
#: positions and of the distance of the step; most iterations
CONVERGED_SHARE, MAX_ITERATIONS = 1e-14, 20
#: corrections below this number of rounding errors are not improved by further iterations
ROUNDINGS = 16.0
#: a last step shorter than this share of the others is explicit: dividing by its square would leave no digits
SHORT_SHARE = 1e-3


class Rule(NamedTuple):
    """The rule ``q = q_n + h v_n + h^2 ((1/2 - beta) b_n + beta b)``, ``v* = v_n + h ((1 - gamma) b_n + gamma b)``.

    ``(1 - alpha_m) b + alpha_m b_n = (1 - alpha_f) a + alpha_f a_n`` relates b to the accelerations a; b = a for
    alpha_m = alpha_f = 0 (Chung and Hulbert 1993; Arnold and Bruls 2007).
    """

    beta: float
    gamma: float
    alpha_m: float = 0.0
    alpha_f: float = 0.0

    def next_auxiliary(self) -> tuple[float, float, float]:
        """Coefficients of a, a_n and b_n in b."""
        return tuple(c / (1 - self.alpha_m) for c in (1 - self.alpha_f, self.alpha_f, -self.alpha_m))  # type: ignore[return-value]


def _trapezoidal(motion: MotionEquations) -> Rule:
    del motion
    return Rule(0.25, 0.5)


def _newmark(motion: MotionEquations) -> Rule:
    return Rule(*motion.newmark)


def _generalized_alpha(motion: MotionEquations) -> Rule:
    rho = motion.spectral_radius
    alpha_m, alpha_f = (2 * rho - 1) / (rho + 1), rho / (rho + 1)
    gamma = 0.5 - alpha_m + alpha_f
    return Rule((gamma + 0.5) ** 2 / 4, gamma, alpha_m, alpha_f)


#: rules by the name of their method
RULES: dict[str, Callable[[MotionEquations], Rule]] = {
    "trapezoidal": _trapezoidal,
    "newmark": _newmark,
    "generalized-alpha": _generalized_alpha,
}


@dataclass(frozen=True, eq=False)
class MotionStep:
    """A step from t - h to t: its start ``s = (q, v, a, b)``, its unknowns Y (see `MotionEquations`), its end."""

    t: float
    h: float
    planned: float  # length without the end of the segment or an event
    start: Array
    unknowns: Array  # none for an explicit step
    end: Array  # (q, v, a, b)
    x: Array  # the variables of the mode at the end


def derivatives(e: Equations) -> Kernel:
    """The kernel `linearised` of the equations; see `Equations`."""
    found: Kernel = cached(e, ("ali3p", "linearised"), lambda: Kernel(e.functions["linearised"].function, range(2, 8)))
    return found


def by_state(e: Equations, t: float, x: Array, m: Array, p: Array) -> tuple[Array, Array, Array]:
    """Derivatives of the algebraic variables at a consistent point by y, p and m."""
    ny = e.n_differential
    by_x, by_p, by_m = (dense(part)[ny:] for part in derivatives(e)(t, x, m, p)[2:5])
    found = -np.linalg.solve(by_x[:, ny:], np.hstack((by_x[:, :ny], by_p, by_m)))
    return found[:, :ny], found[:, ny : ny + p.size], found[:, ny + p.size :]


class Solved:
    """A factorised matrix, dense or sparse."""

    def __init__(self, matrix: Matrix) -> None:
        self._dense = lu_factor(matrix, check_finite=False) if isinstance(matrix, np.ndarray) else None
        self._sparse: Any = None if self._dense is not None else splu(matrix)
        if self._dense is not None and not np.all(np.diag(self._dense[0])):
            raise RuntimeError("Factor is exactly singular")

    def __call__(self, right: Array, *, transposed: bool = False) -> Array:
        """Solve with the matrix or its transpose."""
        if self._dense is not None:
            found: Array = lu_solve(self._dense, right, trans=int(transposed), check_finite=False)
            return found
        return np.asarray(self._sparse.solve(right, trans="T" if transposed else "N"))


class Scheme:
    """The scheme for the equations of one mode, at given memory and parameters."""

    def __init__(self, equations: Equations, method: str, memory: Array, parameters: Array) -> None:
        if equations.motion is None:
            raise AssertionError(f"mode {equations.name} has no equations of motion")
        self.equations, self.motion = equations, equations.motion
        self.memory, self.p = memory, parameters
        self.rule = RULES[method](self.motion)
        self.n, self.m = self.motion.q.size, self.motion.multipliers.size
        self.iterations = self.factorisations = 0

    def state(self, x: Array) -> Array:
        """s at a consistent point."""
        a = x[self.motion.a]
        return np.concatenate((x[self.motion.q], x[self.motion.v], a, a))

    def parts(self, unknowns: Array) -> tuple[Array, ...]:
        """q, mu, v, sigma, a and kappa."""
        n, m = self.n, self.m
        return tuple(np.split(unknowns, np.cumsum([n, m, n, m, n])))

    def arguments(self, t: float, h: float, start: Array, unknowns: Array) -> tuple[Any, ...]:
        """The inputs of the kernels."""
        return t, np.array([h, *self.rule]), start, unknowns, self.memory, self.p

    def step(self, t0: float, t: float, planned: float, start: Array, multipliers: Array) -> MotionStep:
        """Take a step from t0 to t, in place of one of length `planned`.

        Raises
        ------
        StepSizeError, NonFiniteError, ConsistencyError
            Newton's method does not converge; the equations are not finite; the tangent is singular.
        """
        n, h = self.n, t - t0
        q, v, a = start[:n], start[n : 2 * n], start[2 * n : 3 * n]
        if h <= SHORT_SHARE * planned:
            return self._explicit(t, h, planned, start)
        scale = self.rule.beta * h**2
        y = self._newton(t, h, start, np.concatenate((q + h * v + h**2 / 2 * a, scale * multipliers)))
        arguments = self.arguments(t, h, start, y)
        right, matrix = self.motion.velocities(*arguments)
        solve = self._factorised(matrix, t)
        velocities = solve(right)
        arguments = self.arguments(t, h, start, np.concatenate((y, velocities[:n])))
        accelerations = solve(self.motion.accelerations(*arguments)[0])
        unknowns = np.concatenate((y, velocities, accelerations))
        if not all_finite(unknowns):
            raise self._not_finite(t)
        new, old, older = self.rule.next_auxiliary()
        b = new * accelerations[:n] + old * a + older * start[3 * n :]
        end = np.concatenate((y[:n], velocities[:n], accelerations[:n], b))
        x = np.zeros(self.equations.n)
        x[self.motion.q], x[self.motion.v], x[self.motion.a] = end[:n], end[n : 2 * n], end[2 * n : 3 * n]
        x[self.motion.multipliers] = y[n:] / scale + accelerations[n:]
        return MotionStep(t, h, planned, start, unknowns, end, x)

    def _explicit(self, t: float, h: float, planned: float, start: Array) -> MotionStep:
        """A step of second order in positions and velocities, to consistent accelerations and multipliers."""
        n = self.n
        q, v, a = start[:n], start[n : 2 * n], start[2 * n : 3 * n]
        x = np.zeros(self.equations.n)
        x[self.motion.q], x[self.motion.v] = q + h * v + h**2 / 2 * a, v + h * a
        x[self.motion.a] = a
        x = completed(self.equations, t, x, self.memory, self.p)[0]
        return MotionStep(t, h, planned, start, np.zeros(0), self.state(x), x)

    def _newton(self, t: float, h: float, start: Array, y: Array) -> Array:
        n, before = self.n, np.inf
        for _ in range(MAX_ITERATIONS):
            residual, matrix = self.motion.newton(*self.arguments(t, h, start, y))
            if not all_finite(residual):
                raise self._not_finite(t)
            correction = self._factorised(matrix, t)(residual)
            if not all_finite(correction):
                raise self._not_finite(t)
            y = y - correction
            self.iterations += 1
            size = float(np.abs(correction[:n]).max(initial=0.0))
            extent = float(np.abs(y[:n]).max(initial=0.0))
            distance = extent + float(np.abs(y[:n] - start[:n]).max(initial=0.0))
            expected = size * (size / before) ** 2 if np.isfinite(before) else np.inf  # of the next correction
            if size <= ROUNDINGS * EPS * extent or expected <= CONVERGED_SHARE * distance:
                return y
            before = size
        worst = int(np.argmax(np.abs(residual)))
        raise StepSizeError(
            f"Newton's method did not converge in {MAX_ITERATIONS} iterations of a step of length {h:.3g}; the largest "
            f"residual is that of {self.motion.labels[worst]}.",
            mode=self.equations.name,
            time=t,
            variables=[self.motion.labels[worst]],
            remedy="Take a shorter step, or leave fixed_step= out, which controls the error.",
        )

    def _factorised(self, matrix: Matrix, t: float) -> Solved:
        self.factorisations += 1
        values = matrix if isinstance(matrix, np.ndarray) else matrix.data
        if not all_finite(np.ravel(values)):
            raise self._not_finite(t)
        try:
            return Solved(matrix)
        except RuntimeError:
            raise ConsistencyError(
                "The tangent of the equations of motion is singular.",
                mode=self.equations.name,
                time=t,
                variables=self.motion.labels,
                remedy="Constraints depend on each other there, or coordinates have no mass: end the mode before.",
            ) from None

    def _not_finite(self, t: float) -> NonFiniteError:
        return NonFiniteError(
            "The equations of motion give NaN or infinity.",
            mode=self.equations.name,
            time=t,
            remedy="Check forces and constraints near this point, or take shorter steps.",
        )

    # -- derivatives ------------------------------------------------------------------------------------

    def linearised(self, step: MotionStep) -> Linearised | ExplicitLinearised:
        """The derivatives of a step."""
        if not step.unknowns.size:
            return ExplicitLinearised(self, step, *by_state(self.equations, step.t, step.x, self.memory, self.p))
        by_y, by_s, by_p, by_m = self.motion.linearised(*self.arguments(step.t, step.h, step.start, step.unknowns))
        return Linearised(self, step, self._factorised(by_y, step.t), by_s, by_p, by_m)


@dataclass(frozen=True, eq=False)
class Linearised:
    """Derivatives of a step with its length held."""

    scheme: Scheme
    step: MotionStep
    solve: Solved
    by_start: Matrix
    by_p: Matrix
    by_memory: Matrix

    def forward(self, start: Array, p: Array, memory: Array) -> tuple[Array, Array]:
        """ds and dx, (4 n, d) and (n_x, d), at the end, from ds at the start, dp and dm (eq. 14 to 18)."""
        right = self.by_start @ start + self.by_p @ p + self.by_memory @ memory
        dy = -self.solve(np.asarray(right))
        return self.of_end(dy, start)

    def of_end(self, dy: Array, start: Array) -> tuple[Array, Array]:
        """ds and dx at the end from dY and ds at the start."""
        scheme, motion, n, m = self.scheme, self.scheme.motion, self.scheme.n, self.scheme.m
        q, v, a = dy[:n], dy[n + m : 2 * n + m], dy[2 * (n + m) : 3 * n + 2 * m]
        new, old, older = scheme.rule.next_auxiliary()
        x = np.zeros((scheme.equations.n, dy.shape[1]))
        x[motion.q], x[motion.v], x[motion.a] = q, v, a
        x[motion.multipliers] = dy[n : n + m] / (scheme.rule.beta * self.step.h**2) + dy[3 * n + 2 * m :]
        return np.vstack((q, v, a, new * a + old * start[2 * n : 3 * n] + older * start[3 * n :])), x

    def backward(self, end: Array, x: Array) -> tuple[Array, Array, Array]:
        """Cotangents (k, 4 n) of the start, (k, n_p) and (k, n_m), from those of the end and of x there."""
        scheme, motion, n, m = self.scheme, self.scheme.motion, self.scheme.n, self.scheme.m
        new, old, older = scheme.rule.next_auxiliary()
        y = np.zeros((len(end), 3 * (n + m)))
        b = end[:, 3 * n :]
        y[:, :n] = end[:, :n] + x[:, motion.q]
        y[:, n : n + m] = x[:, motion.multipliers] / (scheme.rule.beta * self.step.h**2)
        y[:, 3 * n + 2 * m :] = x[:, motion.multipliers]
        y[:, n + m : 2 * n + m] = end[:, n : 2 * n] + x[:, motion.v]
        y[:, 2 * (n + m) : 3 * n + 2 * m] = end[:, 2 * n : 3 * n] + x[:, motion.a] + new * b
        weight = -self.solve(y.T, transposed=True).T
        start = np.asarray(weight @ self.by_start)
        start[:, 2 * n : 3 * n] += old * b
        start[:, 3 * n :] += older * b
        return start, np.asarray(weight @ self.by_p), np.asarray(weight @ self.by_memory)


@dataclass(frozen=True, eq=False)
class ExplicitLinearised:
    """The same of an explicit step; `by_y`, `by_p` and `by_memory` are the derivatives of z at its end."""

    scheme: Scheme
    step: MotionStep
    by_y: Array
    by_p: Array
    by_memory: Array

    def forward(self, start: Array, p: Array, memory: Array) -> tuple[Array, Array]:
        """See `Linearised.forward`."""
        motion, n, h = self.scheme.motion, self.scheme.n, self.step.h
        q, v, a = start[:n], start[n : 2 * n], start[2 * n : 3 * n]
        x = np.zeros((self.scheme.equations.n, start.shape[1]))
        x[motion.q], x[motion.v] = q + h * v + h**2 / 2 * a, v + h * a
        ny = self.scheme.equations.n_differential
        x[ny:] = self.by_y @ x[:ny] + self.by_p @ p + self.by_memory @ memory
        return np.vstack((x[motion.q], x[motion.v], x[motion.a], x[motion.a])), x

    def backward(self, end: Array, x: Array) -> tuple[Array, Array, Array]:
        """See `Linearised.backward`."""
        motion, n, h, ny = self.scheme.motion, self.scheme.n, self.step.h, self.scheme.equations.n_differential
        of_x = x.copy()
        of_x[:, motion.q] += end[:, :n]
        of_x[:, motion.v] += end[:, n : 2 * n]
        of_x[:, motion.a] += end[:, 2 * n : 3 * n] + end[:, 3 * n :]
        of_z = of_x[:, ny:]
        of_y = of_x[:, :ny] + of_z @ self.by_y
        q, v = of_y[:, motion.q], of_y[:, motion.v]
        start = np.hstack((q, v + h * q, h**2 / 2 * q + h * v, np.zeros_like(q)))
        return start, of_z @ self.by_p, of_z @ self.by_memory
