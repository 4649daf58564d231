"""CasADi's CVODES and IDAS behind the port: the equations stay expressions, CasADi differentiates and calls them.

CasADi integrates from one time to a grid of others and shows nothing in between, so that the solution is had in
stretches of equal intervals, as long as it can be interpolated between them. Its own event handling is not used.
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

#: intervals of a stretch, how many of them are a step, and points of the polynomial between them
INTERVALS, STEP, WINDOW = 16, 4, 8
GRID = np.arange(1, INTERVALS + 1) / INTERVALS
#: a stretch is right where values at every other time give those in between to this many tolerances, by a polynomial
#: through COARSE of them: all of them then give the solution to well below one
FINE, COARSE = 100.0, 6
#: lengths of stretches change by factors within these; where CasADi fails they are shorter by the smallest, so often
SHRINK, GROW, ATTEMPTS = 0.2, 4.0, 16
#: integrators are kept for so many sets of options
KEPT = 8
#: the first stretch is at least this share of the segment
SHORTEST = 1e-6
#: and this many roundings
RESOLVED = 4 * INTERVALS
#: steps of the solver within an interval, of which few are needed
MOST_STEPS = 1000
#: where a run ends numbers are looked for within this share of the segment
LOOK_AHEAD = 1e-6
#: CasADi has one absolute tolerance: states are scaled for it
ABSOLUTE = 1e-10
#: weights of interpolation through equidistant points, by their number
BARYCENTRIC = {n: np.array([(-1.0) ** j * comb(n - 1, j) for j in range(n)]) for n in (COARSE, WINDOW)}


class CasadiIntegrator(SteppedIntegrator):
    """CasADi's ``cvodes`` for explicit equations and ``idas`` for those with algebraic variables."""

    name = "casadi"
    capabilities: ClassVar[Capabilities] = Capabilities(methods=METHODS, algebraic=ALGEBRAIC)
    nonstiff, stiff = ADAMS.name, BDF.name
    look = 10  # a step here is many steps of CVODES
    for_adjoints = FOR_ADJOINTS

    def start(self, problem: InitialValueProblem) -> _Stepper:
        """See `SteppedIntegrator.start`."""
        return _Stepper(problem)


class _Stepper:
    """Stretch by stretch, handed out in steps."""

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
        return float(np.clip(guess, SHORTEST * span, span))

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
        """The next stretch."""
        p = self._problem
        reason: RuntimeError | None = None
        for _ in range(ATTEMPTS):
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
            self._length = float(length * min(factor, 0.8))
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
        """Whether the rates are not finite a short way ahead, along the tangent."""
        p = self._problem
        ahead = min(max(self._length, LOOK_AHEAD * (p.t_stop - p.t0)), p.t_stop - self.t)
        slope = p.rhs(self.t, self.x)
        slope[p.n_differential :] = 0.0
        for share in (0.0, 1e-3, 0.1, 1.0):
            if not np.all(np.isfinite(p.rhs(self.t + share * ahead, self.x + share * ahead * slope))):
                return True
        return False

    def _error(self, times: Array, values: Array) -> float:
        """How far every other value is from what the others say, in tolerances."""
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
        if len(p.system.kept) > KEPT:  # options are built into integrators: drop those asked for longest ago
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
    """CasADi's integrator of a problem over a stretch, in shares of its length and in scaled states.

    CasADi gives IDA no initial rates: it has IDACalcIC compute them, which fails at values that are consistent to
    rounding already. So where there are algebraic equations x is counted from ``base + share slope``, the tangent at
    the start, and its initial rates are zero.
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
        "regularity_check": True,  # CVODES would look for a step without NaN for ever
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
    """In place of ``sys.stderr``: what some threads write is dropped."""

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
    """Drop what CasADi writes to ``sys.stderr`` in this thread, and only in this one.

    Steps that fail are tried again in shorter ones, and what fails in the end is an error that says so. CasADi has an
    option against the messages of CVODES, but none against those of IDAS.
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
    """Values at times from polynomials through the nearest points (equal intervals, barycentric formula)."""
    last = len(times) - 1
    place = (t - times[0]) * (last / (times[-1] - times[0]))
    first = np.clip(np.floor(place).astype(int) - points // 2 + 1, 0, last + 1 - points)
    away = place[:, None] - (first[:, None] + np.arange(points))
    away[away == 0] = np.finfo(float).tiny
    weights = BARYCENTRIC[points] / away
    weights /= weights.sum(axis=1, keepdims=True)
    return np.asarray(np.einsum("tj,tjn->tn", weights, values[first[:, None] + np.arange(points)]))


def _essence(error: RuntimeError) -> str:
    """What CasADi's message says, without its own place in the source."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1].rpartition(".cpp:")[2].partition(": ")[2] or lines[-1] if lines else ""
