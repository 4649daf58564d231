"""Adapter of scikits-odes: CVODE and IDA with root finding, and callbacks in Python.

It has no sensitivity analysis and no access to the interpolant, but its normal mode returns values within the
last step. scikits-odes 3.1 rounds options for SUNDIALS to single precision and accepts no stop time
below zero. Time is therefore measured from the start; if the stop time is not a single-precision number, a second
solver with its own time origin continues from the one before it. To install it, run
``python -m dae_hybrid.adapters.install_scikits_odes``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from threading import Lock
from typing import Any, ClassVar

import numpy as np

from dae_hybrid.adapters.multistep import ADAMS, ALGEBRAIC, BDF, FOR_ADJOINTS, METHODS
from dae_hybrid.errors import AdapterError, IntegrationError, NonFiniteError, StepSizeError, UnsupportedError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.failure_messages import SHORT_STEPS
from dae_hybrid.port.integrator import Capabilities
from dae_hybrid.port.segment_rules import is_short
from dae_hybrid.steppers.initial_value import InitialValueProblem, SteppedIntegrator

#: return codes of callbacks
DONE, RECOVERABLE, FATAL = 0, 1, -1
REACHED_STOP, FOUND_ROOT = 1, 2
#: intervals below this share of the problem are remainders of the stop time's rounding
REMAINDER = 1e-6
ENVIRONMENT = Lock()


class ScikitsOdesIntegrator(SteppedIntegrator):
    """CVODE for explicit equations and IDA for equations with algebraic variables, through scikits-odes.

    Raises `AdapterError` if scikits-odes is not installed.
    """

    name = "scikits-odes"
    capabilities: ClassVar[Capabilities] = Capabilities(methods=METHODS, algebraic=ALGEBRAIC, roots=True, dense=True)
    nonstiff, stiff = ADAMS.name, BDF.name
    for_adjoints = FOR_ADJOINTS

    def __init__(self) -> None:
        try:
            self._cvode = import_module("scikits_odes_sundials.cvode").CVODE
            self._ida = import_module("scikits_odes_sundials.ida").IDA
        except ImportError as reason:
            raise AdapterError(
                f"scikits-odes cannot be used: {reason}.",
                remedy="Install it with `python -m dae_hybrid.adapters.install_scikits_odes`.",
            ) from reason

    def start(self, problem: InitialValueProblem) -> _SundialsOdesStepper:
        """See `SteppedIntegrator.start`."""
        return _SundialsOdesStepper(problem, self._ida if problem.n > problem.n_differential else self._cvode)


class _SundialsOdesStepper:
    """A solver of scikits-odes in one-step mode."""

    def __init__(self, problem: InitialValueProblem, kind: Any) -> None:
        p = self._problem = problem
        self._implicit = p.n > p.n_differential
        self._pending: BaseException | None = None
        self._mass = (np.arange(p.n) < p.n_differential).astype(float)
        self._frozen: Array | None = None
        self._last_guards = np.zeros(0)
        self.t: float = p.t0
        self.x: Array = p.x0
        self.at_root = False
        self._kind, self._xdot = kind, p.xdot0
        self._begin()

    def _begin(self) -> None:
        """Create a solver from the current point to the stop time, or to just before it."""
        p, span = self._problem, self._problem.t_stop - self.t
        self._end, self._anchor = p.t_stop, (self.t, 0.0)
        self._stop = _rounded_down(span)
        if not (self._stop > 0 and np.isfinite(self._stop)):
            raise UnsupportedError(
                f"scikits-odes cannot integrate over {span:.3g} units of time: its options are single precision.",
                mode=p.name,
                time=self.t,
                remedy="Choose other units of time, or use adapter='sundials'.",
            )
        if self._stop < span and span < REMAINDER * (p.t_stop - p.t0):
            self._stop = 2.0 ** np.ceil(np.log2(span))
            self._anchor = (p.t_stop, self._stop)
        elif self._stop < span:
            self._end = self.t + self._stop
        options: dict[str, Any] = {
            "old_api": False,
            "one_step_compute": True,
            "rtol": p.rtol,
            "atol": p.absolute,
            "tstop": self._stop,
            "order": p.max_order or 0,
            "max_step_size": p.max_step if np.isfinite(p.max_step) else 0.0,
            "first_step_size": min(p.first_step, span) if p.first_step else 0.0,
            "err_handler": _silent,
        }
        if self._implicit:
            options["algebraic_vars_idx"] = list(range(p.n_differential, p.n))
            options["exclude_algvar_from_error"] = p.suppress_algebraic
        else:
            options["lmm_type"] = p.method
            options["nonlinsolver"] = "fixedpoint" if p.method == ADAMS.name else "newton"
        if p.method != ADAMS.name:
            options["jacfn"] = self._ida_jacobian() if self._implicit else self._cvode_jacobian()
        if p.guards is not None:
            count = p.guards(p.t0, p.x0).size
            options |= {"rootfn": self._ida_roots() if self._implicit else self._cvode_roots(), "nr_rootfns": count}
        self._solver = self._kind(self._residual() if self._implicit else self._rates(), **options)
        start = (self.x, self._xdot) if self._implicit else (self.x,)
        with _without_warnings():
            self._checked(self._solver.init_step(self._inner(self.t), *start))

    def _inner(self, t: float) -> float:
        """Convert time to the solver's time."""
        return float(self._anchor[1] + (t - self._anchor[0]))

    def _outer(self, t: float) -> float:
        """Convert the solver's time to time."""
        return float(self._anchor[0] + (t - self._anchor[1]))

    # -- callbacks: functions, because the number of arguments decides how they are called ---------------------

    def _safely(self, evaluate: Callable[[], Array], out: Array, *, fatal: bool = False) -> int:
        """Evaluate into an array; on an exception, keep it and tell SUNDIALS to stop."""
        if self._pending is not None:
            return FATAL
        try:
            out[...] = evaluate()
        except BaseException as error:
            self._pending = error
            return FATAL
        return DONE if np.all(np.isfinite(out)) else FATAL if fatal else RECOVERABLE

    def _rates(self) -> Callable[..., int]:
        p = self._problem
        return lambda t, x, out: self._safely(lambda: p.rhs(self._outer(t), x), out)

    def _residual(self) -> Callable[..., int]:
        p = self._problem
        return lambda t, x, xdot, out: self._safely(lambda: p.rhs(self._outer(t), x) - self._mass * xdot, out)

    def _cvode_jacobian(self) -> Callable[..., int]:
        p = self._problem
        return lambda t, x, fx, out: self._safely(lambda: p.jacobian(self._outer(t), x), out)

    def _ida_jacobian(self) -> Callable[..., int]:
        p = self._problem
        return lambda t, x, xdot, r, cj, out: self._safely(
            lambda: p.jacobian(self._outer(t), x) - cj * np.diag(self._mass), out
        )

    def _cvode_roots(self) -> Callable[..., int]:
        return lambda t, x, out: self._safely(lambda: self._guards(t, x), out, fatal=True)

    def _ida_roots(self) -> Callable[..., int]:
        return lambda t, x, xdot, out: self._safely(lambda: self._guards(t, x), out, fatal=True)

    def _guards(self, t: float, x: Array) -> Array:
        """Guards; while values within the last step are requested, those at its end, so that SUNDIALS finds no root."""
        if self._frozen is not None:
            return self._frozen
        guards = self._problem.guards
        if guards is None:
            raise AssertionError("there are no guards")
        self._last_guards = guards(self._outer(t), x.copy())
        return self._last_guards

    # -- steps ----------------------------------------------------------------------------------------------

    def _checked(self, found: Any) -> Any:
        if self._pending is not None:
            pending, self._pending = self._pending, None
            raise pending
        flag = int(found.flag)
        if flag >= 0:
            return found
        name = getattr(found.flag, "name", str(flag))
        place: dict[str, Any] = {"mode": self._problem.name, "time": self.t}
        if name in ("ERR_FAILURE", "CONV_FAILURE", "ERR_FAIL", "CONV_FAIL", "TOO_MUCH_ACC"):
            raise StepSizeError(
                f"The step size became too small ({name}).",
                **place,
                remedy=SHORT_STEPS,
            )
        if "RHS" in name or "RES" in name or "RTFUNC" in name:
            raise NonFiniteError(
                f"The equations give NaN or infinity ({name}).",
                **place,
                remedy="Check the mode's equations and guards near this point.",
            )
        raise IntegrationError(f"scikits-odes returned {name}: {found.message}", **place)

    def step(self) -> None:
        """See `Stepper.step`."""
        p = self._problem
        if self.t == self._end:
            if is_short(self.t, p.t_stop):
                self.t, self._end = p.t_stop, p.t_stop
                return
            self._begin()
        found = self._checked(self._solver.step(self._stop))
        flag = int(found.flag)
        self.at_root = flag == FOUND_ROOT
        self.x = found.values.y.copy()
        if self._implicit:
            self._xdot = found.values.ydot.copy()
        self.t = self._end if flag == REACHED_STOP else self._outer(found.values.t)

    def at(self, t: Array) -> Array:
        """See `Stepper.at`."""
        self._frozen = self._last_guards.copy()
        self._solver.set_options(one_step_compute=False)
        try:
            return np.array([self._value(self._inner(float(s))) for s in t])
        finally:
            self._frozen = None
            self._solver.set_options(one_step_compute=True)

    def _value(self, t: float) -> Array:
        for _ in range(2):  # a root that was returned may be returned once more
            found = self._checked(self._solver.step(t)).values
            if found.t == t:
                value: Array = found.y.copy()
                return value
        raise IntegrationError(
            "scikits-odes gives no values within its last step.", mode=self._problem.name, time=self.t
        )


def _rounded_down(span: float) -> float:
    with np.errstate(all="ignore"):
        single = np.float32(span)
        return float(single if float(single) <= span else np.nextafter(single, np.float32(0)))


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Suppress warnings on standard output of SUNDIALS objects created here; the error handler does not see them."""
    variable = "SUNLOGGER_WARNING_FILENAME"
    with ENVIRONMENT:
        before = os.environ.get(variable)
        os.environ[variable] = ""
        try:
            yield
        finally:
            if before is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = before


def _silent(*_: Any) -> None:
    """Error handler: SUNDIALS' return codes carry the information."""
