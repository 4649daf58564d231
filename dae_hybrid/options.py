"""Validated, immutable options of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csc_array

from dae_hybrid.errors import OptionError
from dae_hybrid.layout import Layout
from dae_hybrid.method import AUTO
from dae_hybrid.numeric_input import as_mapping, real_array, shown

SensitivityMethod = Literal["staggered", "simultaneous"]
Simultaneous = Literal["declared", "reversed"]
OnZeno = Literal["raise", "end"]
Keep = Literal["all", "events", "final"]
LinearSolver = Literal["auto", "dense", "band", "sparse", "krylov"]
#: Newton's matrix -> (right-hand side -> approximate solution)
Preconditioner = Callable[[csc_array], Callable[[NDArray[np.float64]], ArrayLike]]
CHOICES = {
    "sensitivity_method": get_args(SensitivityMethod),
    "simultaneous": get_args(Simultaneous),
    "linear_solver": get_args(LinearSolver),
    "on_zeno": get_args(OnZeno),
}
DEFAULT_ATOL = 1e-10
#: squares of step sizes must not underflow (measured: IDAS refuses below 1e-145, CVODES below 1e-165)
SHORTEST_SPAN = 1e-140
#: compiled loops count in integers of 64 bits
UNLIMITED = 2**62
#: reciprocals of tolerances must not overflow
SMALLEST_TOLERANCE = 1e-300


def _positive(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise OptionError(f"{name} must be a positive number, got {value!r}.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not (math.isfinite(number) and number > 0):
        raise OptionError(f"{name} must be finite and positive, got {number!r}.")
    return number


def positive_integer(name: str, value: object) -> int:
    """Check a positive integer.

    Raises
    ------
    OptionError
        It is none; a truth value is none either.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise OptionError(f"{name} must be a positive integer, got {shown(value)}.")
    return int(value)


def _tolerance(name: str, value: object) -> None:
    if _positive(name, value) < SMALLEST_TOLERANCE:
        raise OptionError(f"{name} must be at least {SMALLEST_TOLERANCE:g}, got {value!r}.")


def check_keep(keep: object, t_eval: object) -> None:
    """Check `keep`; with outputs at requested times it must not be "final"."""
    _choice("keep", keep, get_args(Keep))
    if keep == "final" and t_eval is not None:
        raise OptionError(
            "keep='final' keeps no outputs, and t_eval asks for some.",
            remedy="Leave t_eval out, or pass keep='events', which keeps outputs at given times.",
        )


def _choice(name: str, value: object, legal: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in legal:
        raise OptionError(f"{name} must be one of {', '.join(map(repr, legal))}, got {value!r}.")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a run, with SciPy's names where SciPy has one.

    Parameters
    ----------
    rtol : float
        Relative tolerance of states, quadratures and sensitivities.
    atol : float, mapping of str to float, or labelled array
        Absolute tolerance, one for all or by name of variables and functionals (key ``"*"`` for the others); a pandas
        Series with an index of names is read as a mapping.
    method : {"auto", "bdf", "adams", "erk"}
        Integration method. ``"auto"`` uses explicit Runge-Kutta steps for explicit modes that are not stiff and BDF for
        all others, and reconsiders the choice along the run, in both directions. ``"erk"`` and ``"adams"`` are for
        modes without (implicit) algebraic variables; ``"auto"`` and ``"erk"`` solve for up to four of them, in
        Hessenberg index 1, within explicit steps.
    max_step, first_step : float or None
        Largest step, and first step after every start; None lets the integrator choose, with a largest step of a
        hundredth of the run where the system has kinks that are no events. A first step longer than the interval of
        integration is cut; a largest step below the rounding error of time is refused.
    fixed_step : float or None
        Length of the steps, for adapters with fixed steps, at most that of the run and `max_step`; the last step before
        an event or a given time is shorter. None (default) controls the error.
    max_steps : int
        Limit on the steps of one run.
    max_order : int or None
        Largest order; None is the method's maximum (5 for BDF, 12 for Adams). For Runge-Kutta methods (2 to 7, and 9)
        the order itself; None is 7.
    max_events : int
        Limit on the transitions of one run.
    max_transitions_per_instant : int
        Longest chain of transitions at one instant.
    simultaneous : {"declared", "reversed"}
        Order of simultaneous transitions: by declaration with guards before time events, or the reverse. If the order
        matters, derivatives are one-sided, and these are the two sides.
    on_zeno : {"raise", "end"}
        Response to accumulating events: raise `ZenoError`, or end the run at the last event before.
    sensitivity_method : {"staggered", "simultaneous"}
        Corrector of forward sensitivity analysis by CVODES. Modes with (implicit) algebraic variables always use the
        staggered one, because IDAS leaves sensitivities out of its error test otherwise.
    linear_solver : {"auto", "dense", "band", "sparse", "krylov"}
        Linear solver of implicit methods: dense, banded or sparse (SuperLU) factorisation, or GMRES preconditioned by
        an incomplete sparse factorisation. ``"auto"`` takes the cheapest one for the structure of the equations;
        ``statistics`` of the result counts factorisations and solutions unless the solver is dense.
    preconditioner : callable or None
        For ``linear_solver="krylov"``, replaces the incomplete factorisation: it is called with the Newton matrix of
        the current step (SciPy's `csc_array`, in the order of the mode's variables; transposed for an adjoint) and
        returns a function that solves with an approximation of it, such as ``pyamg``'s or
        ``lambda matrix: scipy.sparse.linalg.spilu(matrix).solve``. Called again when the step has changed.
    sensitivity_error_control : bool
        Include sensitivities in the error test (default; SUNDIALS' ``CVodeSetSensErrCon`` and ``IDASetSensErrCon``).
        With False the states alone determine the steps: forward analysis takes fewer steps, and its derivatives are
        not tested. Their local errors, in tolerances, are summed instead: ``statistics["sensitivity_error"]`` is that
        sum, and a `ConditionWarning` is issued if it exceeds a hundred per step, if rtol times the sum exceeds 0.05, or
        if a derivative is close to its absolute tolerance. Needs compiled equations.
    suppress_algebraic : bool
        Leave (implicit) algebraic variables out of the error test. By default they are tested to the accuracy to which
        the tolerances of the state determine them, but no finer than their own. Without the test the states alone
        determine the steps, and guards on faster algebraic variables may be missed.
    adjoint_memory : float
        Memory in bytes for the steps of a run in adjoint analysis, and for records and outputs that the result does not
        keep (``keep=``). Of a run that needs more only checkpoints are stored, and it is recomputed part by part during
        the backward sweep. ``math.inf`` stores everything.
    native_events : bool
        Handle regular transitions in compiled code. With False all transitions are handled in Python: slower, with the
        same results; ``statistics["native_events"]`` counts the native ones.
    """

    rtol: float = 1e-8
    atol: float | Mapping[str, float] = DEFAULT_ATOL
    method: str = AUTO
    max_step: float | None = None
    first_step: float | None = None
    fixed_step: float | None = None
    max_steps: int = 1_000_000
    max_order: int | None = None
    max_events: int = 100_000
    max_transitions_per_instant: int = 100
    simultaneous: Simultaneous = "declared"
    on_zeno: OnZeno = "raise"
    sensitivity_method: SensitivityMethod = "staggered"
    sensitivity_error_control: bool = True
    suppress_algebraic: bool = False
    linear_solver: LinearSolver = "auto"
    preconditioner: Preconditioner | None = None
    adjoint_memory: float = 64e6
    native_events: bool = True

    def __post_init__(self) -> None:
        _tolerance("rtol", self.rtol)
        if self.rtol >= 1.0:
            raise OptionError(f"rtol must be below 1, got {self.rtol!r}.")
        try:
            object.__setattr__(self, "atol", as_mapping(self.atol))
        except ValueError as reason:
            raise OptionError(f"atol {reason}.") from None
        if isinstance(self.atol, Mapping):
            object.__setattr__(self, "atol", dict(self.atol))  # protects against later changes by the caller
            for name, value in self.atol.items():
                _tolerance(f"atol[{name!r}]", value)
        else:
            _tolerance("atol", self.atol)
        if not isinstance(self.method, str):
            raise OptionError(f"method must be a string, got {self.method!r}.")
        for name, legal in CHOICES.items():
            _choice(name, getattr(self, name), legal)
        for name in ("sensitivity_error_control", "suppress_algebraic", "native_events"):
            if not isinstance(getattr(self, name), bool):
                raise OptionError(f"{name} must be True or False, got {getattr(self, name)!r}.")
        if self.preconditioner is not None and not callable(self.preconditioner):
            raise OptionError(f"preconditioner must be callable, got {self.preconditioner!r}.")
        if self.preconditioner is not None and self.linear_solver != "krylov":
            raise OptionError(
                f"linear_solver={self.linear_solver!r} has no use for a preconditioner.",
                remedy="Pass linear_solver='krylov' with it.",
            )
        for name in ("max_step", "first_step", "fixed_step"):
            if getattr(self, name) is not None:
                _positive(name, getattr(self, name))
        if self.adjoint_memory != math.inf:
            _positive("adjoint_memory", self.adjoint_memory)
        counts = ("max_steps", "max_events", "max_transitions_per_instant")
        for name in (*counts, *(("max_order",) if self.max_order is not None else ())):
            object.__setattr__(self, name, min(positive_integer(name, getattr(self, name)), UNLIMITED))

    @property
    def automatic(self) -> bool:
        """Whether the choice of the method is left to the adapter."""
        return self.method == AUTO

    def absolute(self, layout: Layout) -> NDArray[np.float64]:
        """Return the absolute tolerance of every entry of a flat vector."""
        if not isinstance(self.atol, Mapping):
            return np.full(layout.size, float(self.atol))
        values = np.full(layout.size, self.atol.get("*", DEFAULT_ATOL))
        for name in layout.names:
            if name in self.atol:
                values[layout[name]] = self.atol[name]
        return values

    def allowed(self, layout: Layout, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the tolerance of every entry of a flat vector at given values."""
        return self.absolute(layout) + self.rtol * np.abs(values)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Options:
        """Make options from keywords; an unknown one is refused with the list of legal names."""
        legal = {f.name for f in fields(cls)}
        unknown = sorted(set(given) - legal)
        if unknown:
            raise OptionError(
                f"Unknown option {', '.join(map(repr, unknown))}.",
                remedy=f"Legal options: {', '.join(sorted(legal))}.",
            )
        return cls(**given)


def check_time_span(t_span: Any) -> tuple[float, float]:
    """Check a time span: two finite times, the second after the first."""
    try:
        ends = real_array(t_span)
    except ValueError:
        ends = np.zeros(0)
    if ends.shape != (2,):
        raise OptionError(f"t_span must be two numbers (start, end), got {shown(t_span)}.")
    t0, tf = ends.tolist()
    if not (math.isfinite(t0) and math.isfinite(tf)):
        raise OptionError(f"t_span must be finite, got ({t0}, {tf}).")
    if not math.isfinite(tf - t0):
        raise OptionError(f"t_span ({t0}, {tf}) is too long: its length is not a float.")
    if 0 < tf - t0 < SHORTEST_SPAN:
        raise OptionError(f"t_span ({t0}, {tf}) is too short to integrate.", remedy="Choose other units of time.")
    if tf <= t0:
        kind = "empty" if tf == t0 else "reversed"
        raise OptionError(f"t_span ({t0}, {tf}) is {kind}; the end must come after the start.")
    return t0, tf


def check_times(t_eval: ArrayLike | None, span: tuple[float, float]) -> NDArray[np.float64] | None:
    """Check output times: finite, increasing, within the span; None asks for the integrator's own steps."""
    if t_eval is None:
        return None
    try:
        times = np.atleast_1d(real_array(t_eval))
    except ValueError as reason:
        raise OptionError(f"t_eval {reason}.") from None
    if times.ndim != 1 or times.size == 0:
        raise OptionError(f"t_eval must be a non-empty one-dimensional array of times, got shape {times.shape}.")
    if not np.all(np.isfinite(times)):
        first = int(np.flatnonzero(~np.isfinite(times))[0])
        raise OptionError(f"t_eval must be finite, got {times[first]} at index {first}.")
    if np.any(np.diff(times) <= 0):
        first = int(np.flatnonzero(np.diff(times) <= 0)[0])
        raise OptionError(
            f"t_eval must increase strictly, got {times[first]} and then {times[first + 1]} at index {first + 1}."
        )
    if times[0] < span[0] or times[-1] > span[1]:
        raise OptionError(f"t_eval must lie within t_span {span}, got {times[0]} to {times[-1]}.")
    return times
