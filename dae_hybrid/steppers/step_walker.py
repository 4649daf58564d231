"""Going through an initial value problem with an adapter that only integrates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dae_hybrid.errors import ConsistencyError, NonFiniteError, StepSizeError
from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.numerics.step_polynomial import Step
from dae_hybrid.port.failure_messages import STARVED, not_finite_equations, unsolved
from dae_hybrid.port.stiffness import reduced_jacobian
from dae_hybrid.steppers.initial_value import InitialValueProblem, SteppedIntegrator

#: the polynomial of a step may be off by this many tolerances; where it is not, the step is gone through again in
#: parts, at most this often
INTERPOLATION, REPEATS = 10.0, 8
#: where a polynomial is tested, as shares of the step, and its error there, about, as a share of defect times step
TESTED, PER_DEFECT = (0.2, 0.8), 0.3
#: and where the algebraic equations fail at the end of a step it is shortened, down to this share of the segment
FINEST = 1e-9
#: steps of so few roundings are straight lines: solvers that count time from elsewhere have no values within them
STRAIGHT = 1e4
#: first steps may be below the rounding of the time, but not for so many
STANDING = 1000


class StepWalker:
    """A problem and where the integrator stands in it, algebraic states included.

    `t0`, `x0` are the start of the last step, `t`, `x` its end.
    """

    def __init__(self, integrator: SteppedIntegrator, problem: InitialValueProblem) -> None:
        self.integrator, self.problem = integrator, problem
        whole = bool(integrator.capabilities.algebraic) or problem.system.n == problem.system.n_differential
        self.seen = problem if whole else problem.reduced()
        self.t0 = self.t = problem.t0
        self.x0 = self.x = problem.x0
        self._polynomial: Step | None = None
        # solver libraries may look for ever for a first step without numbers
        if not np.all(np.isfinite(problem.system.kernel(problem.t0, problem.x0, problem.constants)[0])):
            raise not_finite_equations(mode=problem.name, time=problem.t0)
        self._stepper = integrator.start(self.seen)

    @property
    def at_end(self) -> bool:
        """Whether `t_stop` has been reached."""
        return self.t >= self.problem.t_stop

    @property
    def at_root(self) -> bool:
        """Whether the integrator itself has found a zero of a guard at t."""
        return self._stepper.at_root

    def advance(self) -> None:
        """One step; a failure that goes back to NaN says so.

        Where a step ends beyond what the algebraic equations allow, shorter ones follow, up to where they do. Where it
        ends at a point without rates, as solvers may that have not asked for them there, it is begun again as a shorter
        one.
        """
        t, x, p, h = self.t, self.x, self.problem, np.inf
        while True:
            self._step()
            before, h = h, self._stepper.t - t
            try:
                reached = self._whole(self._stepper.t, self._stepper.x)
            except (ConsistencyError, NonFiniteError):
                if h <= FINEST * (p.t_stop - p.t0):
                    raise
                self._begin_again(self._from(t, x, p.t_stop, h / 8).reduced())
                continue
            if np.all(np.isfinite(p.system.kernel(self._stepper.t, reached, p.constants)[0])):
                break
            if not STARVED * (p.t_stop - p.t0) < h < before:
                raise not_finite_equations(mode=p.name, time=t)
            again = replace(self._from(t, x, p.t_stop, p.max_step), first_step=h / 8)
            self._begin_again(again if self.seen.n == p.n else again.reduced())
        self.t0, self.x0, self._polynomial = t, x, None
        self.t, self.x = self._stepper.t, reached
        self.seen.near(self.x)

    def _begin_again(self, seen: InitialValueProblem) -> None:
        self.seen = seen
        self._stepper = self.integrator.start(seen)

    def _step(self) -> None:
        before, t = self.seen.counts["not_finite"], self._stepper.t
        try:
            for _ in range(STANDING):
                self._stepper.step()
                if self._stepper.t > t:
                    break
        except StepSizeError as error:
            if self.seen.counts["not_finite"] == before:
                raise
            raise not_finite_equations(mode=self.problem.name, time=t) from error

    def _whole(self, t: float, x: Array) -> Array:
        full = self.seen.whole(t, x)
        if np.all(np.isfinite(full)):
            return full
        if not np.all(np.isfinite(x)):
            raise not_finite_equations(mode=self.problem.name, time=t)
        raise unsolved(mode=self.problem.name, time=t)

    def polynomial(self) -> Step:
        """The last step as a polynomial."""
        if self._polynomial is None:
            self._polynomial = Step.through(self.t0, self.t, self._values)
        return self._polynomial

    def _values(self, t: Array) -> Array:
        if self.t - self.t0 <= STRAIGHT * EPS * max(abs(self.t0), abs(self.t)):
            return np.linspace(self.x0, self.x, t.size)
        try:
            inside = self._interpolated(t[1:-1])
        except (ConsistencyError, NonFiniteError):
            if self.seen is self.problem:
                raise
            inside = self._walked(t[1:-1])
        finally:
            self.seen.near(self.x)
        return np.array([self.x0, *inside, self.x])

    def _interpolated(self, t: Array) -> list[Array]:
        """States within the last step from the solver's interpolant, which may take stages of its own there."""
        self.seen.between(self.t0, self.x0, self.t, self.x)
        values = self._stepper.at(t)
        rows: list[Array] = []
        for s, x in zip(t[::-1].tolist(), values[::-1], strict=True):
            rows.append(self._whole(s, x))
            self.seen.near(rows[-1])
        return rows[::-1]

    def _walked(self, t: Array) -> list[Array]:
        """The same by going there, where stages are too far apart to follow the algebraic states in."""
        rows, begin, x = [], self.t0, self.x0
        for s in t.tolist():
            x = StepWalker(self.integrator, self._from(begin, x, s, self.problem.max_step)).arrive()
            rows.append(x)
            begin = s
        return rows

    # -- the same way again -----------------------------------------------------------------------------

    def again(self, t_stop: float, max_step: float = np.inf) -> StepWalker:
        """A new walk from the start of the last step."""
        return StepWalker(self.integrator, self._from(self.t0, self.x0, t_stop, min(max_step, self.problem.max_step)))

    def _from(self, t: float, x: Array, t_stop: float, max_step: float) -> InitialValueProblem:
        """The problem from a point on the way."""
        p, n = self.problem, self.problem.system.n_differential
        rates = np.concatenate((p.system.kernel(t, x, p.constants)[0][:n], p.xdot0[n:]))
        return replace(p, t0=t, x0=x, xdot0=rates, t_stop=t_stop, max_step=max_step, first_step=None, guards=None)

    def arrive(self) -> Array:
        """The state at `t_stop`."""
        while not self.at_end:
            self.advance()
        return self.x

    def resolved(self, *, strict: bool) -> list[Step]:
        """The last step as polynomials that are accurate to tolerance, of parts of it where need be.

        Raises
        ------
        StepSizeError
            It cannot be had, and `strict` asks for it.
        """
        return list(self.parts(self.t, strict=strict))

    def parts(self, until: float, *, strict: bool) -> Iterator[Step]:
        """The same one after the other; where there are parts, up to a time."""
        return self._parts(min(self.t, until), REPEATS, strict)

    def states(self, t: Array) -> Array:
        """States at times within the last step, as accurate as can be, shape (len(t), n)."""
        steps = self.resolved(strict=False)
        index = np.minimum(np.searchsorted([s.t1 for s in steps], t), len(steps) - 1)
        return np.array([steps[i].at(float(s)) for i, s in zip(index.tolist(), t, strict=True)])

    def _parts(self, until: float, repeats: int, strict: bool) -> Iterator[Step]:
        error = self.interpolation_error()
        if error <= INTERPOLATION or (not repeats and not strict):
            yield self.polynomial()
            return
        h = until - self.t0
        if not repeats:
            raise StepSizeError(
                f"The solution between steps is known only to {error:.1g} tolerances, however short the steps.",
                mode=self.problem.name,
                time=self.t0,
                remedy="Loosen rtol, or look for a discontinuity that is not a transition.",
            )
        parts = min(8.0, max(2.0, np.ceil((error / INTERPOLATION) ** 0.25)))
        part = self.again(until, h / parts)
        while not part.at_end:
            part.advance()
            yield from part._parts(part.t, repeats - 1, strict)

    def interpolation_error(self) -> float:
        """Error of the polynomial of the last step between its ends, in tolerances.

        Its defect p' - F(t, p), through (I - h/4 F_x)^-1, which takes away what a stiff equation makes of errors in p
        that do no harm (Shampine).
        """
        p = self.problem
        try:
            step = self.polynomial()
        except (ConsistencyError, NonFiniteError):  # too long a step to follow the algebraic states in
            return np.inf
        h, worst, n = self.t - self.t0, 0.0, p.system.n_differential
        for share in TESTED:
            t = self.t0 + share * h
            x = step.at(t)
            defect = step.rate(t)[:n] - p.system.kernel(t, x, p.constants)[0][:n]
            full = p.system.jacobian_kernel(t, x, p.constants)[0]
            try:
                error = np.linalg.solve(np.eye(n) - h / 4 * reduced_jacobian(full, n), defect)
            except np.linalg.LinAlgError:
                return np.inf
            ratio = PER_DEFECT * h * np.abs(error) / (p.absolute[:n] + p.rtol * np.abs(x[:n]))
            if not np.all(np.isfinite(ratio)):
                return np.inf
            worst = max(worst, float(ratio.max(initial=0.0)))
        return worst
