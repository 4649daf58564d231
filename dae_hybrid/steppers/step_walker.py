"""Steps of an adapter that only integrates, with their algebraic states and interpolants."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dae_hybrid.cancellation import raise_if_cancelled
from dae_hybrid.errors import ConsistencyError, NonFiniteError, StepSizeError
from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.numerics.matrices import is_finite
from dae_hybrid.numerics.step_polynomial import Step
from dae_hybrid.port.failure_messages import MIN_PROGRESS_SHARE, not_finite_equations, unsolved
from dae_hybrid.port.stiffness import reduced_jacobian
from dae_hybrid.steppers.initial_value import InitialValueProblem, SteppedIntegrator

#: largest error of a step's polynomial in tolerances; above it the step is repeated in shorter steps, with at most this
#: depth of recursion
MAX_INTERPOLATION_ERROR, MAX_REPEATS = 10.0, 8
#: points of the step at which its polynomial is tested, and estimated error per defect times step
TEST_POINTS, ERROR_PER_DEFECT = (0.2, 0.8), 0.3
#: shortest step, as a share of the segment, if the algebraic equations fail at the end of a step
MIN_STEP_SHARE = 1e-9
#: steps below this number of rounding errors are linear: solvers with another origin of time cannot interpolate them
LINEAR_ROUNDINGS = 1e4
#: successive steps below the rounding error of time that are accepted at the start
MAX_STALLED_STEPS = 1000


class StepWalker:
    """An initial value problem and the current step of its integrator, algebraic states included.

    `t0`, `x0` are the start of the last step, `t`, `x` its end.
    """

    def __init__(self, integrator: SteppedIntegrator, problem: InitialValueProblem) -> None:
        self.integrator, self.problem = integrator, problem
        whole = bool(integrator.capabilities.algebraic) or problem.system.n == problem.system.n_differential
        self.seen = problem if whole else problem.reduced()
        self.t0 = self.t = problem.t0
        self.x0 = self.x = problem.x0
        self._polynomial: Step | None = None
        # solver libraries may search forever for a first step if the equations are not finite
        if not np.all(np.isfinite(problem.system.kernel(problem.t0, problem.x0, problem.constants)[0])):
            raise not_finite_equations(mode=problem.name, time=problem.t0)
        self._stepper = integrator.start(self.seen)

    @property
    def at_end(self) -> bool:
        """Whether `t_stop` has been reached."""
        return self.t >= self.problem.t_stop

    @property
    def span(self) -> tuple[float, float]:
        """Start and end of the problem."""
        return self.problem.t0, self.problem.t_stop

    def rates(self, t: float, x: Array) -> Array:
        """Return the rates of the differential states."""
        p = self.problem
        rates: Array = p.system.kernel(t, x, p.constants)[0][: p.system.n_differential]
        return rates

    @property
    def at_root(self) -> bool:
        """Whether the integrator itself has located a zero of a guard at t."""
        return self._stepper.at_root

    def advance(self) -> None:
        """Advance by one step; failures that are due to NaN are reported as such.

        If the algebraic equations cannot be solved at the end of a step, shorter steps replace it. If the rates at its
        end are not finite, which a solver that has not evaluated them there does not notice, a shorter step replaces
        it.
        """
        t, x, p, h = self.t, self.x, self.problem, np.inf
        while True:
            self._step()
            before, h = h, self._stepper.t - t
            try:
                reached = self._full_state(self._stepper.t, self._stepper.x)
            except (ConsistencyError, NonFiniteError):
                if h <= MIN_STEP_SHARE * (p.t_stop - p.t0):
                    raise
                self._begin_again(self._from(t, x, p.t_stop, h / 8).reduced())
                continue
            if np.all(np.isfinite(p.system.kernel(self._stepper.t, reached, p.constants)[0])):
                break
            if not MIN_PROGRESS_SHARE * (p.t_stop - p.t0) < h < before:
                raise not_finite_equations(mode=p.name, time=t)
            again = replace(self._from(t, x, p.t_stop, p.max_step), first_step=h / 8)
            self._begin_again(again if self.seen.n == p.n else again.reduced())
        self.t0, self.x0, self._polynomial = t, x, None
        self.t, self.x = self._stepper.t, reached
        self.seen.set_guess(self.x)

    def _begin_again(self, seen: InitialValueProblem) -> None:
        self.seen = seen
        self._stepper = self.integrator.start(seen)

    def _step(self) -> None:
        raise_if_cancelled()
        before, t = self.seen.counts["not_finite"], self._stepper.t
        try:
            for _ in range(MAX_STALLED_STEPS):
                self._stepper.step()
                if self._stepper.t > t:
                    break
        except StepSizeError as error:
            if self.seen.counts["not_finite"] == before:
                raise
            raise not_finite_equations(mode=self.problem.name, time=t) from error

    def _full_state(self, t: float, x: Array) -> Array:
        full = self.seen.full_state(t, x)
        if np.all(np.isfinite(full)):
            return full
        if not np.all(np.isfinite(x)):
            raise not_finite_equations(mode=self.problem.name, time=t)
        raise unsolved(mode=self.problem.name, time=t)

    def polynomial(self) -> Step:
        """Return the last step as a polynomial."""
        if self._polynomial is None:
            self._polynomial = Step.through(self.t0, self.t, self._values)
        return self._polynomial

    def _values(self, t: Array) -> Array:
        if self.t - self.t0 <= LINEAR_ROUNDINGS * EPS * max(abs(self.t0), abs(self.t)):
            return np.linspace(self.x0, self.x, t.size)
        try:
            inside = self._interpolated(t[1:-1])
        except (ConsistencyError, NonFiniteError):
            if self.seen is self.problem:
                raise
            inside = self._integrated(t[1:-1])
        finally:
            self.seen.set_guess(self.x)
        return np.array([self.x0, *inside, self.x])

    def _interpolated(self, t: Array) -> list[Array]:
        """Return states within the last step by the solver's interpolant, which may evaluate further stages."""
        self.seen.set_guess_between(self.t0, self.x0, self.t, self.x)
        values = self._stepper.at(t)
        rows: list[Array] = []
        for s, x in zip(t[::-1].tolist(), values[::-1], strict=True):
            rows.append(self._full_state(s, x))
            self.seen.set_guess(rows[-1])
        return rows[::-1]

    def _integrated(self, t: Array) -> list[Array]:
        """Return them by further steps, if the stages are too far apart to solve for the algebraic states."""
        rows, begin, x = [], self.t0, self.x0
        for s in t.tolist():
            x = StepWalker(self.integrator, self._from(begin, x, s, self.problem.max_step)).integrate()
            rows.append(x)
            begin = s
        return rows

    # -- repeated steps ---------------------------------------------------------------------------------

    def restarted(self, t_stop: float, max_step: float = np.inf) -> StepWalker:
        """Return a new walker from the start of the last step."""
        return StepWalker(self.integrator, self._from(self.t0, self.x0, t_stop, min(max_step, self.problem.max_step)))

    def integrated_to(self, t: float) -> Array:
        """Return the state at t, integrated from the start of the last step."""
        return self.restarted(t).integrate()

    def _from(self, t: float, x: Array, t_stop: float, max_step: float) -> InitialValueProblem:
        """Return the problem from an intermediate point."""
        p, n = self.problem, self.problem.system.n_differential
        rates = np.concatenate((p.system.kernel(t, x, p.constants)[0][:n], p.xdot0[n:]))
        return replace(p, t0=t, x0=x, xdot0=rates, t_stop=t_stop, max_step=max_step, first_step=None, guards=None)

    def integrate(self) -> Array:
        """Integrate to `t_stop` and return the state there."""
        while not self.at_end:
            self.advance()
        return self.x

    def resolved(self, *, strict: bool) -> list[Step]:
        """Return the last step as polynomials that are accurate to tolerance, subdivided if necessary.

        Raises
        ------
        StepSizeError
            The accuracy cannot be reached, and `strict` requires it.
        """
        return list(self.parts(self.t, strict=strict))

    def parts(self, until: float, *, strict: bool) -> Iterator[Step]:
        """Yield these polynomials one by one, up to a time if the step is subdivided."""
        return self._parts(min(self.t, until), MAX_REPEATS, strict)

    def states(self, t: Array) -> Array:
        """Return states at times within the last step as accurately as possible, shape (len(t), n)."""
        steps = self.resolved(strict=False)
        index = np.minimum(np.searchsorted([s.t1 for s in steps], t), len(steps) - 1)
        return np.array([steps[i].at(float(s)) for i, s in zip(index.tolist(), t, strict=True)])

    def _parts(self, until: float, repeats: int, strict: bool) -> Iterator[Step]:
        error = self.interpolation_error()
        if error <= MAX_INTERPOLATION_ERROR or (not repeats and not strict):
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
        parts = min(8.0, max(2.0, np.ceil((error / MAX_INTERPOLATION_ERROR) ** 0.25)))
        part = self.restarted(until, h / parts)
        while not part.at_end:
            part.advance()
            yield from part._parts(part.t, repeats - 1, strict)

    def interpolation_error(self) -> float:
        """Return the error of the last step's polynomial between its ends, in tolerances.

        The estimate is the defect p' - F(t, p) multiplied by (I - h/4 F_x)^-1, a filter for harmless errors in p that a
        stiff equation amplifies in the defect (Shampine).
        """
        p = self.problem
        try:
            step = self.polynomial()
        except (ConsistencyError, NonFiniteError):  # the step is too long to solve for the algebraic states
            return np.inf
        h, worst, n = self.t - self.t0, 0.0, p.system.n_differential
        for share in TEST_POINTS:
            t = self.t0 + share * h
            x = step.at(t)
            defect = step.rate(t)[:n] - p.system.kernel(t, x, p.constants)[0][:n]
            try:
                jacobian = reduced_jacobian(p.system.jacobian_kernel(t, x, p.constants)[0], n)
                # where a root is zero the slope is infinite, and no error is amplified
                error = np.linalg.solve(np.eye(n) - h / 4 * jacobian, defect) if is_finite(jacobian) else defect
            except np.linalg.LinAlgError:
                return np.inf
            ratio = ERROR_PER_DEFECT * h * np.abs(error) / (p.absolute[:n] + p.rtol * np.abs(x[:n]))
            if not np.all(np.isfinite(ratio)):
                return np.inf
            worst = max(worst, float(ratio.max(initial=0.0)))
        return worst
