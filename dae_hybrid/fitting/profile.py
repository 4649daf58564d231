"""Profile likelihoods: the cost minimised over all parameters but one, along that one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.optimize import least_squares

from dae_hybrid.errors import AssumptionError, ParameterError
from dae_hybrid.fitting import figures
from dae_hybrid.fitting.misfit import Evaluation, Misfit
from dae_hybrid.fitting.search import Track
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.options import positive_integer

if TYPE_CHECKING:
    from dae_hybrid.fitting.result import Fit

#: steps from the estimate to the end of the interval
STEPS = 5
#: a profile goes beyond the interval by this factor of the quantile
BEYOND = 1.1
#: bounds on the change of the step
SHRINK, GROW = 0.25, 4.0
#: step in terms of the parameter where there is no standard error
FIRST_STEP = 0.05
#: longest step of a logarithmic or logistic scale
LONGEST = 1.5
#: failures, each at a quarter of the step before, after which a profile ends
FAILURES = 4
#: largest number of evaluations for an end of the interval, and its relative accuracy there
REFINEMENTS, REFINED = 8, 1e-6
#: decrease of the cost, relative to the variance, by which a fit counts as not converged
IMPROVED = 1e-4


@dataclass(frozen=True, eq=False)
class Profile:
    """Profile likelihood of a parameter.

    Attributes
    ----------
    label : str
    level : float
    values : ndarray, shape (k,)
        Values of the parameter, increasing.
    root : ndarray, shape (k,)
        Signed root of twice the increase of the cost over the variance of a residual; linear in the parameter if the
        model is (Bates and Watts 1988, section 6.1.2).
    parameters : ndarray, shape (k, n)
        All free parameters along the profile.
    interval : (float, float)
        Confidence interval; an end that the profile does not reach is the bound, or infinite; see `reasons`.
    estimate, standard_error : float
    quantile : float
        Value of |root| at the ends of the interval.
    reasons : tuple of str
        Why an end is not reached.
    """

    label: str
    level: float
    values: Array
    root: Array
    parameters: Array = field(repr=False)
    interval: tuple[float, float]
    estimate: float
    standard_error: float
    quantile: float
    reasons: tuple[str, ...]

    def plot(self) -> Any:
        """Draw the profile with its interval and the linear approximation; a matplotlib Figure."""
        return figures.plot_profile(self)

    def __repr__(self) -> str:
        low, high = self.interval
        why = "".join(f"; {reason}" for reason in self.reasons)
        return f"<Profile of {self.label}: {100 * self.level:g} % interval {low:.6g} to {high:.6g}{why}>"


class _Restricted:
    """The cost with one parameter fixed, minimised over the others."""

    def __init__(self, misfit: Misfit, index: int) -> None:
        self._misfit, self._index = misfit, index
        self._others = np.arange(misfit.free.size) != index
        lower, upper = misfit.free.scaled_bounds
        self.bounds = lower[index], upper[index]
        self._bounds = lower[self._others], upper[self._others]

    def minimise(self, value: float, guess: Array) -> Evaluation:
        """Evaluate the minimum with the parameter at a scaled value, from a scaled guess of all."""
        track, full = Track(self._misfit, "forward", 0, None), guess.copy()
        full[self._index] = value

        def at(s: Array) -> Array:
            whole = full.copy()
            whole[self._others] = s
            return whole

        start = np.clip(guess[self._others], *self._bounds)
        first = track.at(at(start))
        if first.error is not None or not start.size:
            return first
        least_squares(
            lambda s: track.residuals(at(s)), start, lambda s: track.jacobian(at(s))[:, self._others],
            bounds=self._bounds, x_scale="jac",
        )  # fmt: skip
        assert track.best is not None
        return track.best


class _Point(NamedTuple):
    """A point of a profile: the scaled value, the root without sign, and all parameters."""

    value: float
    root: float
    q: Array


class _Side:
    """A profile on one side of the estimate, from there outwards."""

    def __init__(self, fit: Fit, index: int, sign: int, level: float, points: int) -> None:
        self._free, self._cost = fit.misfit.free, fit.cost
        self._restricted, self._label, self._sign = _Restricted(fit.misfit, index), fit.labels[index], sign
        self._index = index
        self._limit, self._bound = fit.quantile(level), self._restricted.bounds[sign > 0]
        start, slope = self._free.scaled(fit.estimates)[index], self._free.slope(fit.estimates)[index]
        error = fit.standard_errors[index] / slope if slope > 0 else np.inf
        self._longest = LONGEST if isinstance(self._free.scales[index], str) else np.inf
        step = self._limit / STEPS * error if 0 < error < np.inf else FIRST_STEP * (abs(start) or 1.0)
        self._step = min(step, self._longest)
        # the errors of the runs are no residuals
        exact = (fit.rtol * np.linalg.norm(fit.misfit.targets / fit.misfit.sigma)) ** 2
        self._variance = max(fit.variance, exact / fit.misfit.n_data)
        self.points = [_Point(float(start), 0.0, fit.estimates)]
        self.reason = self._walk(points)
        self.end = float((self._free.upper if sign > 0 else self._free.lower)[index])
        if self.reason is None:
            self.end = float(self._refined().q[index])

    def _walk(self, points: int) -> str | None:
        """Go outwards beyond the interval; return why that is impossible."""
        failed = 0
        while self.points[-1].root < BEYOND * self._limit:
            last = self.points[-1].value
            if last == self._bound or len(self.points) > points:
                break
            value = last + self._sign * self._step
            value = float(min(value, self._bound) if self._sign > 0 else max(value, self._bound))
            found = self._at(value)
            if isinstance(found, str):
                failed += 1
                self._step /= 4
                if failed > FAILURES:
                    return None if self.points[-1].root >= self._limit else found
                continue
            gained = found.root - self.points[-1].root
            self.points.append(found)
            change = self._limit / STEPS / gained if gained > 0 else GROW
            self._step = min(self._step * float(np.clip(change, SHRINK, GROW)), self._longest)
        if self.points[-1].root >= self._limit:
            return None
        what = "upper" if self._sign > 0 else "lower"
        if self.points[-1].value == self._bound:
            return f"the {what} end is beyond the bound of {self._label}"
        return f"the {what} end is not reached by {points} points"

    def _at(self, value: float) -> _Point | str:
        """The point at a scaled value, from an extrapolated guess; a string is the reason of a failure."""
        last = self.points[-1]
        here = self._free.scaled(last.q)
        guess = here
        if len(self.points) > 1:
            before = self.points[-2]
            guess = here + (here - self._free.scaled(before.q)) * (value - last.value) / (last.value - before.value)
        found = self._restricted.minimise(value, guess)
        expected = self._cost + 0.5 * self._variance * (last.root + 2 * self._limit / STEPS) ** 2
        if found.error is not None or found.cost > expected:  # from the last point instead of an extrapolation
            again = self._restricted.minimise(value, here)
            found = again if again.error is None and not again.cost > found.cost else found
        if found.error is not None:
            return f"runs fail beyond {self._label} = {last.q[self._index]:.6g}: {found.error.message}"
        increase = 2 * (found.cost - self._cost) / self._variance
        if increase < -IMPROVED:
            raise AssumptionError(
                f"The profile of '{self._label}' finds a lower cost, {found.cost:.9g} instead of {self._cost:.9g}: the "
                "fit is not at the minimum.",
                remedy=f"Fit again from {dict(zip(self._free.labels, found.q.round(9).tolist(), strict=True))}.",
            )
        return _Point(value, float(np.sqrt(max(increase, 0.0))), found.q)

    def _refined(self) -> _Point:
        """The end of the interval, by the regula falsi."""
        place = next(i for i, point in enumerate(self.points) if point.root >= self._limit)
        low, high = self.points[place - 1], self.points[place]
        for _ in range(REFINEMENTS):
            share = (self._limit - low.root) / (high.root - low.root)
            found = self._at(low.value + share * (high.value - low.value))
            if isinstance(found, str) or abs(found.root - self._limit) <= REFINED * self._limit:
                return high if isinstance(found, str) else found
            low, high = (found, high) if found.root < self._limit else (low, found)
        return high


def profile(fit: Fit, index: int, level: float, points: int) -> Profile:
    """See `Fit.profile`."""
    misfit, label = fit.misfit, fit.labels[index]
    if misfit.loss != "linear":
        raise AssumptionError(f"The cost with loss={misfit.loss!r} is no likelihood: it has no profile.")
    if fit.at_bound[index]:
        raise ParameterError(f"'{label}' is at a bound: it has no profile.")
    points = positive_integer("points", points)
    below, above = (_Side(fit, index, sign, level, points) for sign in (-1, 1))
    rows = [(-p.root, p.q) for p in below.points[:0:-1]] + [(p.root, p.q) for p in above.points]
    parameters = np.array([q for _, q in rows])
    return Profile(
        label=label,
        level=level,
        values=parameters[:, index],
        root=np.array([root for root, _ in rows]),
        parameters=parameters,
        interval=(below.end, above.end),
        estimate=float(fit.estimates[index]),
        standard_error=float(fit.standard_errors[index]),
        quantile=fit.quantile(level),
        reasons=tuple(side.reason for side in (below, above) if side.reason is not None),
    )
