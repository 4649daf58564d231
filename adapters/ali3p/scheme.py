"""One step of the index-3 scheme with projections, and the integration rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import lu_factor, lu_solve
from scipy.sparse.linalg import splu

from dae_hybrid.codegen.kernels import Kernel
from dae_hybrid.errors import ConsistencyError, NonFiniteError, StepSizeError
from dae_hybrid.layout import Layout
from dae_hybrid.numerics.arrays import EPS, Array, all_finite
from dae_hybrid.numerics.matrices import Matrix, dense
from dae_hybrid.port.failure_messages import said
from dae_hybrid.port.integrator import Equations
from dae_hybrid.port.motion import MotionEquations, unknowns
from dae_hybrid.port.segment_rules import cached, completed

#: Newton's method has converged if the next correction, by its quadratic convergence, is below this share of the
#: positions and of the distance of the step; most iterations
CONVERGED_SHARE, MAX_ITERATIONS = 1e-14, 20
#: corrections below this number of rounding errors are not improved by further iterations
ROUNDINGS = 16.0
#: constraints with a residual above this share of the largest one are named if a step does not converge
BROKEN_SHARE = 0.1
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

    @property
    def size(self) -> int:
        """Bytes of the arrays."""
        return self.start.nbytes + self.unknowns.nbytes + self.end.nbytes + self.x.nbytes


def derivatives(e: Equations) -> Kernel:
    """The kernel `linearised` of the equations; see `Equations`."""
    found: Kernel = cached(e, ("ali3p", "linearised"), lambda: Kernel(e.functions["linearised"].function, range(2, 8)))
    return found


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


class AlgebraicDerivatives:
    """Derivatives of the algebraic variables z at a consistent point, by y, p and m."""

    def __init__(self, e: Equations, t: float, x: Array, m: Array, p: Array) -> None:
        ny, by_x, by_p, by_m = e.n_differential, *derivatives(e)(t, x, m, p)[2:5]
        self._by = [part[ny:] for part in (by_x[:, :ny], by_p, by_m)]
        by_z = by_x[ny:, ny:]
        self._solve = Solved(by_z if isinstance(by_z, np.ndarray) else by_z.tocsc())

    def forward(self, y: Array, p: Array, memory: Array) -> Array:
        """dz, (n_z, d), from dy, dp and dm."""
        right = [np.asarray(part @ d) for part, d in zip(self._by, (y, p, memory), strict=True)]
        return -self._solve(sum(right[1:], right[0]))

    def backward(self, of_z: Array) -> tuple[Array, Array, Array]:
        """Cotangents of y, p and m, (k, .) each, from those of z."""
        weight = -self._solve(of_z.T, transposed=True).T
        by_y, by_p, by_m = (np.asarray(weight @ part) for part in self._by)
        return by_y, by_p, by_m


class Integrands:
    """The integrands of the functionals in a mode, at given memory and parameters."""

    def __init__(self, equations: Equations, memory: Array, parameters: Array) -> None:
        if equations.motion is None:
            raise AssertionError(f"mode {equations.name} has no equations of motion")
        self._e, self._kernel, self._m, self._p = equations, equations.motion.kernel, memory, parameters

    def along(self, t: float, x: Array, dx: Array, dp: Array, dm: Array) -> tuple[Array, Array]:
        """g (k) and its derivatives (d, k) along directions dx (d, n_x), dp and dm."""
        k = self._e.functionals.size
        if not self._e.integrates:
            return np.zeros(k), np.zeros((len(dx), k))
        g, *slopes = self._kernel("integrand_slopes" if len(dx) else "integrand")(t, x, self._m, self._p)
        if not all_finite(g):
            labels = self._e.functionals.labels()
            bad = [f"the integrand of {name}" for name, v in zip(labels, g, strict=True) if not np.isfinite(v)]
            raise NonFiniteError(
                f"NaN or infinity{said(bad)}", mode=self._e.name, time=t, remedy="Check it near this point."
            )
        if not len(dx):
            return g, np.zeros((0, k))
        return g, sum((d @ dense(by) for d, by in zip((dx, dp, dm), slopes, strict=True)), np.zeros((len(dx), k)))

    def slopes(self, t: float, x: Array, components: Sequence[int]) -> list[Array]:
        """g_x, g_p and g_m of some functional components, (k, .) each."""
        if not self._e.integrates:
            return [np.zeros((len(components), size)) for size in (x.size, self._p.size, self._m.size)]
        slopes = self._kernel("integrand_slopes")(t, x, self._m, self._p)[1:]
        return [dense(by).T[list(components)] for by in slopes]


class Scheme:
    """The scheme for the equations of one mode, at given memory and parameters."""

    def __init__(self, equations: Equations, method: str, memory: Array, parameters: Array) -> None:
        if equations.motion is None:
            raise AssertionError(f"mode {equations.name} has no equations of motion")
        self.equations, self.motion = equations, equations.motion
        self.memory, self.p = memory, parameters
        self.rule = RULES[method](self.motion)
        motion = self.motion
        self.n, self.m = motion.q.size, motion.multipliers.size
        #: places of the unknowns of a step
        self.at = Layout.of(unknowns(self.n, self.m, motion.inner[0].size).items())
        poses, twists, rates, wrenches = motion.inner
        #: places of variables at the end of a step, and of their values in the unknowns
        self.results = [
            *((motion.q, "q"), (motion.v, "v"), (motion.a, "a"), (motion.multipliers, "kappa")),
            *((poses, "X"), (twists, "U"), (rates, "A"), (wrenches, "K")),
        ]
        #: variables to which unknowns over beta h^2 are added
        self.added = [(motion.multipliers, "mu"), (wrenches, "R")]
        self.iterations = self.factorisations = 0

    def state(self, x: Array) -> Array:
        """s, (..., 4 n), at consistent points (..., n_x)."""
        a = x[..., self.motion.a]
        return np.concatenate((x[..., self.motion.q], x[..., self.motion.v], a, a), axis=-1)

    def placed(self, start: Array) -> Array:
        """Variables x with those of s, and zeros for the others."""
        x, n = np.zeros(self.equations.n), self.n
        x[self.motion.q], x[self.motion.v], x[self.motion.a] = start[:n], start[n : 2 * n], start[2 * n : 3 * n]
        return x

    def of_state(self, of_s: Array) -> Array:
        """The transpose of `state`: cotangents (k, n_x) from (k, 4 n)."""
        x, n = np.zeros((len(of_s), self.equations.n)), self.n
        x[:, self.motion.q], x[:, self.motion.v] = of_s[:, :n], of_s[:, n : 2 * n]
        x[:, self.motion.a] = of_s[:, 2 * n : 3 * n] + of_s[:, 3 * n :]
        return x

    def arguments(self, t: float, h: float, start: Array, unknowns: Array) -> tuple[Any, ...]:
        """The inputs of the kernels."""
        return t, np.array([h, *self.rule]), start, unknowns, self.memory, self.p

    def variables(self, h: float, unknowns: Array) -> Array:
        """The variables x at the end of a step, (n_x, ...)."""
        x = np.zeros((self.equations.n, *unknowns.shape[1:]))
        for places, name in self.results:
            x[places] = unknowns[self.at[name]]
        for places, name in self.added:
            x[places] += unknowns[self.at[name]] / (self.rule.beta * h**2)
        return x

    def of_unknowns(self, h: float, of_x: Array) -> Array:
        """The transpose of `variables`: cotangents (k, n_Y) from (k, n_x)."""
        found = np.zeros((len(of_x), self.at.size))
        for places, name in self.results:
            found[:, self.at[name]] = of_x[:, places]
        for places, name in self.added:
            found[:, self.at[name]] = of_x[:, places] / (self.rule.beta * h**2)
        return found

    def step(self, t0: float, t: float, planned: float, start: Array, x0: Array) -> MotionStep:
        """Take a step from t0 to t, in place of one of length `planned`; x0 are the variables at t0.

        Raises
        ------
        StepSizeError, NonFiniteError, ConsistencyError
            Newton's method does not converge; the equations are not finite; the tangent is singular.
        """
        h = t - t0
        if h <= SHORT_SHARE * planned:
            return self._explicit(t, h, planned, start, x0)
        y = self._newton(t, h, start, self._predicted(h, start, x0))
        right, base, matrix = self.motion.kernel("velocities")(*self.arguments(t, h, start, y))
        solve = self._factorised(matrix, t)
        y = np.concatenate((y, base + solve(right)))
        right, base, at_old = self.motion.kernel("accelerations")(*self.arguments(t, h, start, y))
        y = np.concatenate((y, base + solve(right), at_old))
        if not all_finite(y):
            raise self._not_finite(t)
        return MotionStep(t, h, planned, start, y, self.end(y, start), self.variables(h, y))

    def end(self, unknowns: Array, start: Array) -> Array:
        """s at the end of a step, (4 n, ...), from its unknowns and s at its start."""
        n = self.n
        q, v, a = (unknowns[self.at[name]] for name in "qva")
        new, old, older = self.rule.next_auxiliary()
        return np.concatenate((q, v, a, new * a + old * start[2 * n : 3 * n] + older * start[3 * n :]))

    def _predicted(self, h: float, start: Array, x: Array) -> Array:
        """The first guess of Newton's method."""
        n, scale = self.n, self.rule.beta * h**2
        q, v, a = start[:n], start[n : 2 * n], start[2 * n : 3 * n]
        poses, twists, rates, wrenches = (x[places] for places in self.motion.inner)
        multipliers = scale * x[self.motion.multipliers]
        inner = (poses + h * twists + h**2 / 2 * rates, h * (twists + h * rates), scale * rates, scale * wrenches)
        return np.concatenate((q + h * v + h**2 / 2 * a, multipliers, *inner))

    def _explicit(self, t: float, h: float, planned: float, start: Array, x0: Array) -> MotionStep:
        """A step of second order in positions and velocities, to consistent accelerations and multipliers."""
        n = self.n
        q, v, a = start[:n], start[n : 2 * n], start[2 * n : 3 * n]
        x = x0.copy()
        x[self.motion.q], x[self.motion.v] = q + h * v + h**2 / 2 * a, v + h * a
        x[self.motion.a] = a
        x = completed(self.equations, t, x, self.memory, self.p)[0]
        return MotionStep(t, h, planned, start, np.zeros(0), self.state(x), x)

    def _newton(self, t: float, h: float, start: Array, y: Array) -> Array:
        n, before = self.n, np.inf
        for _ in range(MAX_ITERATIONS):
            residual, matrix = self.motion.kernel("newton")(*self.arguments(t, h, start, y))
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
        labels, off = self.motion.labels, np.abs(residual)
        worst = labels[int(np.argmax(off))]
        constraints = off[n : n + self.m]
        broken = [labels[n + i] for i in np.flatnonzero(constraints > BROKEN_SHARE * constraints.max(initial=0.0))]
        raise StepSizeError(
            f"Newton's method did not converge in {MAX_ITERATIONS} iterations of a step of length {h:.3g}; the largest "
            f"residual is that of {worst}"
            + (f", and the constraints furthest from zero are those of {', '.join(broken)}." if broken else "."),
            mode=self.equations.name,
            time=t,
            variables=list(dict.fromkeys([worst, *broken])),
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
            return ExplicitLinearised(
                self, step, AlgebraicDerivatives(self.equations, step.t, step.x, self.memory, self.p)
            )
        kernel, at = self.motion.kernel, self.at
        *start, unknowns, m, p = self.arguments(step.t, step.h, step.start, step.unknowns)
        positions = slice(0, at["v"].start)
        velocities, accelerations = slice(positions.stop, at["a"].start), slice(at["a"].start, at["A1"].start)
        tangent, projection = (kernel(name)(*start, unknowns[positions], m, p)[-1] for name in ("newton", "velocities"))
        coupling, *others = kernel("linearised")(*start, unknowns, m, p)
        newton, projected = (self._factorised(matrix, step.t) for matrix in (tangent, projection))
        blocks = [(positions, newton), (velocities, projected), (accelerations, projected)]
        if velocities.stop - velocities.start > self.n + self.m:  # inner variables
            rates = slice(at["A1"].start, at.size)
            own = coupling[rates, rates]
            blocks.insert(2, (rates, self._factorised(own if isinstance(own, np.ndarray) else own.tocsc(), step.t)))
        return Linearised(self, step, BlockTriangular(blocks, coupling), *others)


class BlockTriangular:
    """Factors of a matrix that is lower triangular in blocks, listed in the order in which they are solved.

    `coupling` holds its entries outside the blocks; those inside are ignored.
    """

    def __init__(self, blocks: Sequence[tuple[slice, Solved]], coupling: Matrix) -> None:
        self._blocks = [
            (block, solve, [(later, coupling[later, block]) for later, _ in blocks[i + 1 :]])
            for i, (block, solve) in enumerate(blocks)
        ]

    def __call__(self, right: Array, *, transposed: bool = False) -> Array:
        """Solve with the matrix or its transpose."""
        y = right.copy()
        for block, solve, below in reversed(self._blocks) if transposed else self._blocks:
            if transposed:
                for later, part in below:
                    y[block] -= part.T @ y[later]
            y[block] = solve(y[block], transposed=transposed)
            if not transposed:
                for later, part in below:
                    y[later] -= part @ y[block]
        return y


@dataclass(frozen=True, eq=False)
class Linearised:
    """Derivatives of a step with its length held."""

    scheme: Scheme
    step: MotionStep
    solve: BlockTriangular
    by_start: Matrix
    by_p: Matrix
    by_memory: Matrix

    def forward(self, start: Array, p: Array, memory: Array) -> tuple[Array, Array]:
        """ds and dx, (4 n, d) and (n_x, d), at the end, from ds at the start, dp and dm (eq. 14 to 18)."""
        right = self.by_start @ start + self.by_p @ p + self.by_memory @ memory
        dy = -self.solve(np.asarray(right))
        return self.scheme.end(dy, start), self.scheme.variables(self.step.h, dy)

    def backward(self, end: Array, x: Array) -> tuple[Array, Array, Array]:
        """Cotangents (k, 4 n) of the start, (k, n_p) and (k, n_m), from those of the end and of x there."""
        scheme, n = self.scheme, self.scheme.n
        new, old, older = scheme.rule.next_auxiliary()
        y, b = scheme.of_unknowns(self.step.h, x), end[:, 3 * n :]
        y[:, scheme.at["q"]] += end[:, :n]
        y[:, scheme.at["v"]] += end[:, n : 2 * n]
        y[:, scheme.at["a"]] += end[:, 2 * n : 3 * n] + new * b
        weight = -self.solve(y.T, transposed=True).T
        start = np.asarray(weight @ self.by_start)
        start[:, 2 * n : 3 * n] += old * b
        start[:, 3 * n :] += older * b
        return start, np.asarray(weight @ self.by_p), np.asarray(weight @ self.by_memory)


@dataclass(frozen=True, eq=False)
class ExplicitLinearised:
    """The same of an explicit step."""

    scheme: Scheme
    step: MotionStep
    at_end: AlgebraicDerivatives

    def forward(self, start: Array, p: Array, memory: Array) -> tuple[Array, Array]:
        """See `Linearised.forward`."""
        motion, n, h = self.scheme.motion, self.scheme.n, self.step.h
        q, v, a = start[:n], start[n : 2 * n], start[2 * n : 3 * n]
        x = np.zeros((self.scheme.equations.n, start.shape[1]))
        x[motion.q], x[motion.v] = q + h * v + h**2 / 2 * a, v + h * a
        ny = self.scheme.equations.n_differential
        x[ny:] = self.at_end.forward(x[:ny], p, memory)
        return np.vstack((x[motion.q], x[motion.v], x[motion.a], x[motion.a])), x

    def backward(self, end: Array, x: Array) -> tuple[Array, Array, Array]:
        """See `Linearised.backward`."""
        motion, n, h, ny = self.scheme.motion, self.scheme.n, self.step.h, self.scheme.equations.n_differential
        of_x = x.copy()
        of_x[:, motion.q] += end[:, :n]
        of_x[:, motion.v] += end[:, n : 2 * n]
        of_x[:, motion.a] += end[:, 2 * n : 3 * n] + end[:, 3 * n :]
        by_y, by_p, by_m = self.at_end.backward(of_x[:, ny:])
        of_y = of_x[:, :ny] + by_y
        q, v = of_y[:, motion.q], of_y[:, motion.v]
        start = np.hstack((q, v + h * q, h**2 / 2 * q + h * v, np.zeros_like(q)))
        return start, by_p, by_m
