"""Adapter of CasADi's CVODES and IDAS. The equations remain expressions, which CasADi differentiates and evaluates.

CasADi integrates to a given grid of times and exposes no internal steps. The solution is therefore computed in
stretches of equal intervals, short enough to be interpolated between grid points. CasADi's event handling is not used.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import comb
from typing import Any, ClassVar

import casadi as ca
import numpy as np

from dae_hybrid.adapters.multistep import ADAMS, ALGEBRAIC, BDF, FOR_ADJOINTS, METHODS
from dae_hybrid.errors import IntegrationError, StepSizeError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.failure_messages import not_finite_equations
from dae_hybrid.port.integrator import Capabilities
from dae_hybrid.steppers.initial_value import InitialValueProblem, SteppedIntegrator

#: intervals of a stretch, intervals of a step, and number of interpolation points
INTERVALS, STEP, WINDOW = 16, 4, 8
GRID = np.arange(1, INTERVALS + 1) / INTERVALS
#: a stretch is accepted if a polynomial through COARSE of every second value reproduces the others to this many
#: tolerances; all values together then give the solution to well below one
FINE, COARSE = 100.0, 6
#: bounds on the factor by which a stretch's length changes; number of retries, with the smallest factor, after failures
SHRINK, GROW, ATTEMPTS = 0.2, 4.0, 16
#: number of option sets for which integrators are cached
MAX_CACHED_INTEGRATORS = 8
#: smallest first stretch, relative to the segment
MIN_FIRST_STRETCH = 1e-6
#: smallest stretch, in roundings of time
RESOLVED = 4 * INTERVALS
#: limit on the solver's steps within an interval
MOST_STEPS = 1000
#: after a failure, non-finite rates are searched for within this share of the segment
LOOK_AHEAD = 1e-6
#: CasADi has a single absolute tolerance: states are scaled to it
ABSOLUTE = 1e-10
#: barycentric weights for equidistant points, by their number
BARYCENTRIC = {n: np.array([(-1.0) ** j * comb(n - 1, j) for j in range(n)]) for n in (COARSE, WINDOW)}


class CasadiIntegrator(SteppedIntegrator):
    """CasADi's ``cvodes`` for explicit equations and ``idas`` for equations with algebraic variables."""

    name = "casadi"
    capabilities: ClassVar[Capabilities] = Capabilities(methods=METHODS, algebraic=ALGEBRAIC)
    nonstiff, stiff = ADAMS.name, BDF.name
    look = 10  # a step of this adapter is many steps of CVODES
    for_adjoints = FOR_ADJOINTS

    def start(self, problem: InitialValueProblem) -> _StretchStepper:
        """See `SteppedIntegrator.start`."""
        return _StretchStepper(problem)


class _StretchStepper:
    """Computes the solution in stretches and returns it in steps."""

    at_root = False

    def __init__(self, problem: InitialValueProblem) -> None:
        self._problem = problem
        self.t: float = problem.t0
        self.x: Array = problem.x0
        self._times, self._values, self._index = np.zeros(1), self.x[None, :], 0
        self._length = self._first_length()

    def _first_length(self) -> float:
        p = self._problem
        if p.first_step is not None:
            return max(p.first_step * INTERVALS, RESOLVED * np.spacing(max(abs(p.t0), abs(p.t_stop))))
        scale = p.absolute + p.rtol * np.abs(p.x0)
        nd = p.n_differential
        size, rate = (np.sqrt(np.mean((v[:nd] / scale[:nd]) ** 2)) if nd else 0.0 for v in (p.x0, p.xdot0))
        span = p.t_stop - p.t0
        guess = INTERVALS * 0.01 * size / rate if rate > 0 and size > 0 else span / 100
        return float(np.clip(guess, MIN_FIRST_STRETCH * span, span))

    def step(self) -> None:
        """See `Stepper.step`."""
        if self._index + 1 >= len(self._times):
            self._stretch()
        self._index += STEP
        self.t, self.x = float(self._times[self._index]), self._values[self._index]

    def at(self, t: Array) -> Array:
        """See `Stepper.at`."""
        return _local(self._times, self._values, t, WINDOW)

    def _stretch(self) -> None:
        """Compute the next stretch."""
        p = self._problem
        reason: RuntimeError | None = None
        for attempt in range(ATTEMPTS):
            left = p.t_stop - self.t
            length = min(self._length, INTERVALS / STEP * p.max_step)
            if left - length <= RESOLVED * np.spacing(max(abs(p.t0), abs(p.t_stop))):  # too short for a stretch
                length = left
            times = self.t + length * np.arange(INTERVALS + 1) / INTERVALS
            if length == left:
                times[-1] = p.t_stop
            if not np.all(np.diff(times) > 0):
                break
            try:
                values = self._integrate(times[0], length)
            except RuntimeError as error:
                if "KeyboardInterrupt" in str(error):
                    raise KeyboardInterrupt from error
                reason, self._length = error, SHRINK * length
                continue
            off = self._error(times, values)
            factor = np.clip(0.9 * (FINE / max(off, 1e-300)) ** (1 / COARSE), SHRINK, GROW)
            if off <= 2 * FINE:
                self._times, self._values, self._index = times, values, 0
                self._length = float(length * factor) if length < left or factor < 1 else self._length
                return
            # the error at a kink falls with the length alone, not with its power
            self._length = float(length * (min(factor, 0.8) if attempt < ATTEMPTS // 4 else SHRINK))
        raise self._failure(reason)

    def _failure(self, reason: RuntimeError | None) -> IntegrationError:
        place: dict[str, Any] = {"mode": self._problem.name, "time": self.t}
        said = "" if reason is None else _essence(reason)
        if "RHSFUNC" in said or "RES_ERR" in said or "not finite" in said or self._meets_no_numbers():
            error: IntegrationError = not_finite_equations(**place)
            error.message += f" ({said})"
            return error
        return StepSizeError(
            f"CasADi's integrator gets no further{': ' + said if said else ''}.",
            **place,
            remedy="Look for a discontinuity that is not a transition, a solution that blows up, or tolerances beyond "
            "double precision.",
        )

    def _meets_no_numbers(self) -> bool:
        """Whether the rates become non-finite a short distance ahead along the tangent."""
        p = self._problem
        ahead = min(max(self._length, LOOK_AHEAD * (p.t_stop - p.t0)), p.t_stop - self.t)
        slope = p.rhs(self.t, self.x)
        slope[p.n_differential :] = 0.0
        for share in (0.0, 1e-3, 0.1, 1.0):
            if not np.all(np.isfinite(p.rhs(self.t + share * ahead, self.x + share * ahead * slope))):
                return True
        return False

    def _error(self, times: Array, values: Array) -> float:
        """Interpolation error of every second value, in tolerances."""
        p = self._problem
        inner = values[1::2]
        off = np.abs(_local(times[::2], values[::2], times[1::2], COARSE) - inner) / (
            p.absolute + p.rtol * np.abs(inner)
        )
        return float(off[:, : p.n_differential].max(initial=0.0))

    def _integrate(self, t0: float, length: float) -> Array:
        p, limited = self._problem, np.isfinite(self._problem.max_step)
        key = ("casadi", p.method, p.rtol, p.max_order, p.suppress_algebraic, limited)
        idle = p.system.kept.setdefault(key, [])
        if len(p.system.kept) > MAX_CACHED_INTEGRATORS:  # of other options: drop the least recently created
            p.system.kept.pop(next(iter(p.system.kept)), None)
        try:
            integrator = idle.pop()
        except IndexError:
            integrator = _integrator(p, limited=bool(limited))
        n, nd = p.n, p.n_differential
        slope, weights = np.zeros(nd), p.absolute / ABSOLUTE
        x0, base = self.x / weights, np.zeros(nd)
        if n > nd:  # see `_integrator`
            self.x = p.consistent(t0, self.x)
            slope, base = length * p.rhs(t0, self.x)[:nd], self.x[:nd]
            weights = (p.absolute + p.rtol * np.abs(self.x)) / ABSOLUTE
            x0 = np.concatenate((np.zeros(nd), self.x[nd:] / weights[nd:]))
        constants = np.concatenate((p.constants, weights, base, slope, [t0, length]))
        with _silence():
            found = integrator(x0=x0[:nd], z0=x0[nd:], p=constants)
        values = np.vstack((self.x, np.vstack((found["xf"], found["zf"])).T * weights))
        values[1:, :nd] += base + GRID[:, None] * slope
        idle.append(integrator)
        if not np.all(np.isfinite(values)):
            p.counts["not_finite"] += 1
            raise RuntimeError("the solution is not finite")
        return values


def _integrator(p: InitialValueProblem, *, limited: bool) -> ca.Function:
    """Create CasADi's integrator for a stretch, in relative time and scaled states.

    CasADi passes no initial rates to IDA: it lets IDACalcIC compute them, which fails at values that already are
    consistent to rounding. With algebraic equations, x is therefore measured from ``base + share slope``, the tangent
    at the start, so that its initial rates are zero.
    """
    n, nd = p.n, p.n_differential
    x, z, share = ca.MX.sym("x", nd), ca.MX.sym("z", n - nd), ca.MX.sym("t")
    c, weights = ca.MX.sym("c", p.constants.size), ca.MX.sym("w", n)
    base, slope = ca.MX.sym("base", nd), ca.MX.sym("slope", nd)
    t0, length = ca.MX.sym("t0"), ca.MX.sym("length")
    state = ca.vertcat(base + share * slope, ca.MX(n - nd, 1)) + ca.vertcat(x, z) * weights
    rates = p.system.flow(t0 + share * length, state, c)
    problem = {
        "t": share,
        "x": x,
        "z": z,
        "p": ca.vertcat(c, weights, base, slope, t0, length),
        "ode": (length * rates[:nd, :] - slope) / weights[:nd, :],
        "alg": rates[nd:, :],
    }
    options: dict[str, Any] = {
        "abstol": ABSOLUTE,
        "reltol": p.rtol,
        "max_num_steps": MOST_STEPS,
        "regularity_check": True,  # otherwise CVODES would search indefinitely for a step without NaN
        "disable_internal_warnings": True,
        "show_eval_warnings": False,
    }
    if p.max_order is not None:
        options["max_multistep_order"] = p.max_order
    if limited:
        options["max_step_size"] = 1.0 / INTERVALS
    if n > nd:
        options |= {"suppress_algebraic": p.suppress_algebraic, "calc_ic": False}
    else:
        options["linear_multistep_method"] = p.method
        options["nonlinear_solver_iteration"] = "functional" if p.method == ADAMS.name else "newton"
    return ca.integrator("segment", "idas" if n > nd else "cvodes", problem, 0.0, GRID.tolist(), options)


class _Silenced:
    """Replacement for ``sys.stderr`` that drops the output of some threads."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.threads: set[int] = set()

    def write(self, text: str) -> int:
        """See `io.TextIOBase.write`."""
        if self.stream is None or threading.get_ident() in self.threads:
            return len(text)
        return int(self.stream.write(text))

    def flush(self) -> None:
        """See `io.IOBase.flush`."""
        if self.stream is not None:
            self.stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


_exchange = threading.Lock()


@contextmanager
def _silence() -> Iterator[None]:
    """Drop CasADi's output to ``sys.stderr`` in this thread only.

    Failed steps are retried with shorter stretches, and a final failure raises an error. CasADi has an option to
    suppress the messages of CVODES, but none for those of IDAS.
    """
    thread = threading.get_ident()
    with _exchange:
        if not isinstance(sys.stderr, _Silenced):
            sys.stderr = _Silenced(sys.stderr)
        silenced = sys.stderr
        silenced.threads.add(thread)
    try:
        yield
    finally:
        with _exchange:
            silenced.threads.discard(thread)
            if not silenced.threads and sys.stderr is silenced:
                sys.stderr = silenced.stream


def _local(times: Array, values: Array, t: Array, points: int) -> Array:
    """Interpolate at times by polynomials through the nearest points (equal intervals, barycentric formula)."""
    last = len(times) - 1
    place = (t - times[0]) * (last / (times[-1] - times[0]))
    first = np.clip(np.floor(place).astype(int) - points // 2 + 1, 0, last + 1 - points)
    away = place[:, None] - (first[:, None] + np.arange(points))
    away[away == 0] = np.finfo(float).tiny
    weights = BARYCENTRIC[points] / away
    weights /= weights.sum(axis=1, keepdims=True)
    return np.asarray(np.einsum("tj,tjn->tn", weights, values[first[:, None] + np.arange(points)]))


def _essence(error: RuntimeError) -> str:
    """CasADi's message without its source location."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rpartition(".cpp:")[2].partition(": ")[2] or lines[-1] if lines else ""
