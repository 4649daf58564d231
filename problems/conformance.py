"""The conformance suite: the worked problems with an adapter, compared with independent reference values.

``dae-hybrid conformance NAME`` runs it from the command line. In the tests of your own adapter::

    from dae_hybrid.problems.conformance import conformance

    def test_my_adapter():
        conformance("my-adapter").check()
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

import dae_hybrid as dh
from dae_hybrid.errors import DaeHybridError, UnsupportedError
from dae_hybrid.interface.registry import find_integrator
from dae_hybrid.problems import load
from dae_hybrid.system.system import HybridSystem

#: largest allowed error, in relative tolerances of the largest component (after up to 20 events and their resets)
MULTIPLE = 300.0
#: smallest slope of log error against log rtol for errors above FLOOR; errors that stay below CLOSE rtol conform with
#: any slope
SLOPE, FLOOR, CLOSE = 0.5, 1e-13, 10.0
RTOL = 1e-8
#: tolerances for the slope
RTOLS = (1e-5, 1e-6, 1e-7, 1e-8, 1e-9)
#: atol as a share of rtol, for problems with small variables
SMALL = {"em_hysteresis": 1e-4, "menegotto_pinto": 1e-3}
#: seconds after which a timing is not repeated
ENOUGH = 2.0
QUANTITIES = ("value", "event times", "states", "forward gradient", "adjoint gradient")
ANALYSES = ("simulate", "forward", "adjoint")


class ConformanceError(DaeHybridError, AssertionError):
    """An adapter is less accurate than its tolerances require."""


@dataclass(frozen=True)
class Case:
    """A problem in one formulation."""

    problem: str
    functional: str
    formulation: str
    form: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def title(self) -> str:
        """Problem and formulation."""
        return f"{self.problem}: {self.formulation}"

    @property
    def system(self) -> HybridSystem:
        """The built system, cached."""
        return _built(self.problem, tuple(self.form.items()))

    def options(self, rtol: float) -> dict[str, Any]:
        """Tolerances: atol is a tenth of rtol, or less for small displacements or strains."""
        return {"rtol": rtol, "atol": rtol * SMALL.get(self.problem, 0.1)}


@cache
def _built(problem: str, form: tuple[tuple[str, Any], ...]) -> HybridSystem:
    return load(problem).model().build(**dict(form))


CASES = (
    Case("hybrid_ode", "G", "ODE"),
    Case("em_hysteresis", "G", "Hessenberg index 1, z eliminated"),
    Case("em_hysteresis", "G", "Hessenberg index 1, as DAE", {"eliminate": False}),
    Case("rocket", "load", "implicit, derivatives eliminated"),
    Case("rocket", "load", "implicit, as DAE", {"eliminate": False}),
    Case("ball_on_rope", "K", "ODE and index 2 reduced, eliminated"),
    Case("ball_on_rope", "K", "ODE and index 2 reduced, as DAE", {"eliminate": False}),
    Case("ball_on_rope", "K", "ODE and index 2 direct", {"index2": "direct"}),
    Case("menegotto_pinto", "energy", "ODE with memory and signal"),
)


def relative(value: Any, exact: Any) -> float:
    """Largest error relative to the largest component."""
    scale = np.abs(exact).max(initial=0.0)
    return float(np.abs(np.asarray(value) - exact).max(initial=0.0) / scale) if scale else 0.0


def errors(case: Case, rtol: float, *, adapter: str = "sundials", states: bool = True) -> np.ndarray:
    """Relative errors of one case: `QUANTITIES`, in that order; states are NaN if not requested."""
    problem, options = load(case.problem), case.options(rtol)
    reference, span = problem.reference(), problem.t_span
    value = reference.value if hasattr(reference, "value") else reference.values[case.functional]
    gradient = reference.gradient if hasattr(reference, "gradient") else reference.gradients[case.functional]
    fsa = dh.forward_sensitivity(case.system, span, adapter=adapter, **options)
    asa = dh.adjoint_gradient(case.system, span, case.functional, adapter=adapter, **options)
    times = np.array([event.time for event in asa.trajectory.events])
    same = times.size == reference.event_times.size == len(fsa.events)
    return np.array(
        [
            relative(asa.value, value),
            relative(times, reference.event_times) if same else np.inf,
            _state_error(case, reference, adapter, options) if states else np.nan,
            relative(fsa.gradient[case.functional], gradient),
            relative(asa.gradient, gradient),
        ]
    )


def _state_error(case: Case, reference: Any, adapter: str, options: dict[str, Any]) -> float:
    """The error of the states at the reference's output times, or at the end if it has none."""
    span = load(case.problem).t_span
    if not hasattr(reference, "states"):
        sol = dh.simulate(case.system, span, adapter=adapter, **options)
        last = {name: sol[name][-1] for name in reference.final if name in sol.names}
        return max((relative(value, reference.final[name]) for name, value in last.items()), default=0.0)
    t = reference.states["t"]
    sol = dh.simulate(case.system, span, adapter=adapter, t_eval=t, **options)
    names = [name for name in sol.names if name in reference.states.columns]
    return max(relative(sol[name], reference.states[name]) for name in names)


# -- the suite ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    """One case with one adapter.

    Attributes
    ----------
    case : Case
    adapter : str
    errors : ndarray, shape (5,)
        Relative errors at `rtol`, in the order of `QUANTITIES`.
    slopes : ndarray, shape (5,)
        Slope of log error against log rtol; NaN for rounding errors or if not measured.
    worst : ndarray, shape (5,)
        Largest of the errors behind the slopes, in units of their rtol.
    seconds : ndarray, shape (3,)
        CPU time of `ANALYSES`, the best of three.
    refused, failed : str
        Reason for which the adapter refuses the case, or error of a failed run; empty otherwise.
    rtol : float
    """

    case: Case
    adapter: str
    errors: np.ndarray
    slopes: np.ndarray
    worst: np.ndarray
    seconds: np.ndarray
    refused: str
    rtol: float
    failed: str = ""

    @property
    def objections(self) -> list[str]:
        """The violated criteria."""
        if self.refused:
            return []
        if self.failed:
            return [f"{self.case.title}: {self.failed}"]
        found = [
            f"{self.case.title}: error of the {name} is {error / self.rtol:.3g} rtol, more than {MULTIPLE:g}"
            for name, error in zip(QUANTITIES, self.errors, strict=True)
            if not error <= MULTIPLE * self.rtol  # written so that NaN is an objection
        ]
        return found + [
            f"{self.case.title}: the error of the {name} falls with a slope of {slope:.2f}, less than {SLOPE}"
            for name, slope, worst in zip(QUANTITIES, self.slopes, self.worst, strict=True)
            if slope < SLOPE and worst > CLOSE
        ]


@dataclass(frozen=True)
class Conformance:
    """The results of the suite."""

    results: tuple[Result, ...]

    @property
    def objections(self) -> list[str]:
        """The violated criteria, by adapter and case."""
        return [f"{r.adapter}: {text}" for r in self.results for text in r.objections]

    def check(self) -> None:
        """Raise a `ConformanceError` that names all violated criteria."""
        if self.objections:
            raise ConformanceError("\n".join(["The adapter does not conform.", *self.objections]))


def conformance(
    *adapters: str,
    cases: Sequence[Case] = CASES,
    rtol: float = RTOL,
    rtols: Sequence[float] = RTOLS,
    timed: bool = False,
    report: Callable[[str], None] = lambda line: None,
) -> Conformance:
    """Run the suite.

    Parameters
    ----------
    *adapters : str
        Names of adapters; costs are relative to the first one.
    cases : sequence of Case
        Problems and their formulations.
    rtol : float
        Tolerance for the errors.
    rtols : sequence of float
        Tolerances for the slopes; empty to skip them.
    timed : bool
        Whether to measure the cost.
    report : callable
        Receives a line about the current step.

    Raises
    ------
    OptionError, AdapterError
        The adapter does not exist, or cannot be used here.

    Examples
    --------
    >>> from dae_hybrid.problems.conformance import CASES, conformance
    >>> found = conformance("scipy", cases=CASES[:1], rtols=())
    >>> found.objections
    []
    """
    for adapter in adapters:
        find_integrator(adapter)
    return Conformance(tuple(_results(adapters, cases, rtol, rtols, timed, report)))


def _results(
    adapters: Sequence[str], cases: Sequence[Case], rtol: float, rtols: Sequence[float], timed: bool, report: Any
) -> Iterator[Result]:
    unknown = np.full(len(QUANTITIES), np.nan)
    for case in cases:
        for adapter in adapters:
            report(f"{case.title}, {adapter}")
            seconds = np.full(len(ANALYSES), np.nan)
            try:
                found = errors(case, rtol, adapter=adapter)
                slopes, worst = _slopes(case, adapter, rtols) if rtols else (unknown, unknown)
                if timed:
                    seconds = _seconds(case, adapter, rtol)
            except UnsupportedError as reason:
                yield Result(case, adapter, unknown, unknown, unknown, seconds, reason.message, rtol)
                continue
            except DaeHybridError as reason:
                said = f"{type(reason).__name__}: {reason.message}"
                yield Result(case, adapter, unknown, unknown, unknown, seconds, "", rtol, said)
                continue
            yield Result(case, adapter, found, slopes, worst, seconds, "", rtol)


def _slopes(case: Case, adapter: str, rtols: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array([errors(case, rtol, adapter=adapter, states=False) for rtol in rtols])
    return slopes(np.array(rtols), table), (table / np.array(rtols)[:, None]).max(axis=0)


def slopes(rtols: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Least-squares slopes of log error against log rtol for every column, without rounding errors."""
    found = []
    for column in table.T:
        good = column > FLOOR
        found.append(np.polyfit(np.log(rtols[good]), np.log(column[good]), 1)[0] if good.sum() > 2 else np.nan)
    return np.array(found)


def _seconds(case: Case, adapter: str, rtol: float) -> np.ndarray:
    """CPU time of the analyses, the best of up to three."""
    span, options = load(case.problem).t_span, case.options(rtol)
    calls: list[Callable[[], Any]] = [
        lambda: dh.simulate(case.system, span, adapter=adapter, **options),
        lambda: dh.forward_sensitivity(case.system, span, adapter=adapter, **options),
        lambda: dh.adjoint_gradient(case.system, span, case.functional, adapter=adapter, **options),
    ]
    best = []
    for call in calls:
        times: list[float] = []
        while len(times) < 3 and sum(times) < ENOUGH:
            start = time.process_time()
            call()
            times.append(time.process_time() - start)
        best.append(min(times))
    return np.array(best)
