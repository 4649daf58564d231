"""The integrator and its sessions: memories are taken from a pool, used for one run, and given back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np

from dae_hybrid.errors import DaeHybridError, IntegrationError, NonFiniteError, StepSizeError
from dae_hybrid.failures import is_starved, starved, step_limit, unresolved_guard
from dae_hybrid.integrator import (
    Array,
    BackwardOutcome,
    BackwardTask,
    Capabilities,
    Equations,
    SegmentOutcome,
    SegmentTask,
)
from dae_hybrid.options import LinearSolver, Options
from dae_hybrid.segments import DRIFT_LOOK, has_drifted, is_short, standing_still
from dae_hybrid.stiffness import LOOK, is_stiff

from . import driver, interpreted
from .adjoint import Adjoint
from .forward import Forward
from .library import load

#: steps between two looks at whether they get anywhere
BUDGET = 20_000
#: multipliers of index 2 as it stands that are off by this share are not to be trusted
LOOSE = 0.1


class SundialsIntegrator:
    """CVODES and IDAS behind the port of `dae_hybrid.integrator`.

    Raises `AdapterError` where SUNDIALS cannot be loaded.
    """

    name = "sundials"
    capabilities = Capabilities(
        methods=("auto", "bdf", "adams"),
        algebraic=("auto", "bdf"),
        roots=True,
        dense=True,
        forward=True,
        adjoint=True,
        index2=True,
        linear_solvers=get_args(LinearSolver),
    )

    def __init__(self) -> None:
        load()

    def open(
        self,
        options: Options,
        parameters: Array,
        *,
        parameter_directions: Array | None = None,
        scales: Array | None = None,
        wrt: Sequence[int] = (),
    ) -> SundialsSession:
        """See `dae_hybrid.integrator.Integrator.open`."""
        return SundialsSession(options, parameters, parameter_directions, scales, tuple(wrt))


class SundialsSession:
    """One run on one thread."""

    def __init__(
        self, options: Options, parameters: Array, directions: Array | None, scales: Array | None, wrt: tuple[int, ...]
    ) -> None:
        self._options, self._parameters = options, parameters
        self._directions, self._scales, self._wrt = directions, scales, wrt
        self._leased: dict[Any, Any] = {}
        self._counts: Counter[str] = Counter()
        self._base: dict[int, dict[str, int]] = {}
        self._tested: set[int] = set()  # equations whose multipliers are in the error test
        self._auto: dict[int, str] = {}  # what method="auto" has chosen, by equations

    # -- memories -------------------------------------------------------------------------------------

    def _lease(self, equations: Equations, purpose: tuple[Any, ...]) -> Any:
        own = (id(equations), purpose)
        if own in self._leased:
            return self._leased[own]
        options = self._options
        key = ("sundials", options.linear_solver, *purpose)
        idle = equations.kept.setdefault(key, [])
        native = all(f.address is not None for f in equations.functions.values())
        backend: Any = driver if native and driver.driver() is not None else interpreted
        try:
            memory = idle.pop()
        except IndexError:
            if purpose[0] == "forward":
                memory = Forward(equations, options, purpose[1], purpose[2], backend)
            else:
                memory = Adjoint(equations, options, purpose[1], self._wrt, backend)
        if purpose[0] == "forward":
            suppress = options.suppress_algebraic or (equations.constrained and id(equations) not in self._tested)
            memory.configure_run(options, self._parameters, self._directions, self._scales, suppress=suppress)
        else:
            memory.configure_run(options, self._parameters)
        memory.pool = idle
        self._base[id(memory)] = memory.model.counters()
        self._leased[own] = memory  # last: an interrupt may come anywhere
        return memory

    def _discard(self, equations: Equations, purpose: tuple[Any, ...]) -> None:
        memory = self._leased.pop((id(equations), purpose))
        self._count(memory)
        memory.free()

    def _count(self, memory: Any) -> None:
        self._counts.update(self._since_lease(memory))
        del self._base[id(memory)]

    def _since_lease(self, memory: Any) -> dict[str, int]:
        base = self._base[id(memory)]
        return {name: value - base[name] for name, value in memory.model.counters().items()}

    def close(self) -> None:
        """Give the memories back to their pools."""
        while self._leased:  # one that an interrupt meets on its way is given up
            _, memory = self._leased.popitem()
            self._count(memory)
            memory.pool.append(memory)

    def statistics(self) -> dict[str, int]:
        """Counters, in SciPy's names where SciPy has one."""
        counts = Counter(self._counts)
        for memory in self._leased.values():
            counts.update(self._since_lease(memory))
        return {
            "steps": counts["steps"],
            "nfev": counts["flow_calls"],
            "njev": counts["jacobian_calls"],
            "linearisations": counts["linearised_calls"],
            "guard_evaluations": counts["guard_calls"],
            "error_test_failures": counts["error_test_failures"],
            "newton_failures": counts["newton_failures"],
            "segments": counts["segments"],
            **{name: count for name, count in counts.items() if name.endswith((" factorisations", " solutions"))},
        }

    # -- forwards -------------------------------------------------------------------------------------

    def integrate(self, task: SegmentTask) -> SegmentOutcome:
        """See `dae_hybrid.integrator.Session.integrate`."""
        method = task.method or self._method(task)
        try:
            return self._integrate(task, method)
        except IntegrationError as error:
            _advise(error, task.equations)
            if not isinstance(error, StepSizeError):
                raise
            if (other := self._other_way(task, method)) is None:
                raise
        return self._integrate(task, other)

    def _other_way(self, task: SegmentTask, method: str) -> str | None:
        """The method to try where steps have become too small, with what else is changed; None for no other way.

        Multipliers stay out of the error test (`constrained`), and steps are those for y alone: where they enter
        nonlinearly Newton's method may not find them any more, at some tolerances.
        """
        e, key = task.equations, id(task.equations)
        untested = e.constrained and e.implicit and e.index == 1 and not self._options.suppress_algebraic
        if untested and key not in self._tested:
            self._tested.add(key)
            return method
        if task.method or self._options.method != "auto" or method == "bdf":
            return None
        self._auto[key] = "bdf"
        return "bdf"

    def _method(self, task: SegmentTask) -> str:
        """Adams for explicit equations that are not stiff where the segment starts, else BDF."""
        if self._options.method != "auto":
            return self._options.method
        e = task.equations
        if id(e) not in self._auto:
            stiff = e.implicit or is_stiff(e, task.t0, task.x0, task.memory, self._parameters, task.t_stop)
            self._auto[id(e)] = "bdf" if stiff else "adams"
        return self._auto[id(e)]

    def _integrate(self, task: SegmentTask, method: str) -> SegmentOutcome:
        n_directions = 0 if task.sensitivities is None else len(task.sensitivities)
        purpose = ("forward", method, n_directions, self._options.sensitivity_method if n_directions else None)
        memory = self._lease(task.equations, purpose)
        try:
            with memory.model.interruptible():
                outcome = self._run(memory, task, n_directions)
        except BaseException:
            self._discard(task.equations, purpose)
            raise
        return outcome

    def _advance(self, memory: Forward, task: SegmentTask) -> int:
        """Step until something happens; PAUSED at the step limit or where the equations turn out to be stiff."""
        stepper, left = memory.stepper, self._options.max_steps - self._counts["steps"]
        watch = memory.method == "adams" and self._options.method == "auto" and task.method is None
        drifts = task.equations.constrained and task.record != "dense" and task.equations.index == 1
        while left > stepper.steps:
            before, taken = stepper.t, stepper.steps
            budget = DRIFT_LOOK if task.equations.constrained else LOOK if watch else BUDGET
            status = stepper.advance(min(budget, left - stepper.steps))
            if status not in (driver.PAUSED, driver.STALLED):
                return int(status)
            n = task.equations.n
            step = 0.0 if status == driver.STALLED else (stepper.t - before) / (stepper.steps - taken)
            if is_starved(step, stepper.t, task):
                poisoned = memory.model.counters()["not_finite"] > memory.not_finite
                raise starved(step, mode=task.equations.name, time=stepper.t, not_finite=poisoned)
            if task.equations.index == 2:
                stepper.stop()
                _refuse_loose(memory)
            x = memory.x_data[:n]
            if drifts and has_drifted(task, stepper.t, x, self._parameters, self._options):
                return driver.PAUSED
            if watch and is_stiff(task.equations, stepper.t, x, task.memory, self._parameters, task.t_stop):
                self._auto[id(task.equations)] = "bdf"
                return driver.PAUSED
        return driver.PAUSED

    def _run(self, memory: Forward, task: SegmentTask, n_directions: int) -> SegmentOutcome:
        e, stepper = task.equations, memory.stepper
        self._counts["segments"] += 1
        if is_short(task.t0, task.t_stop):
            return standing_still(task, memory.method)
        memory.begin(task)
        try:
            status = self._advance(memory, task)
        except (StepSizeError, NonFiniteError) as error:
            error.rows = stepper.rows()
            raise
        if status == driver.PAUSED and stepper.steps + self._counts["steps"] < self._options.max_steps:
            status = stepper.stop()
        steps, (failed_tests, failed_newton) = stepper.steps, stepper.failures
        counts = self._counts
        counts["steps"] += steps
        counts["error_test_failures"] += failed_tests
        counts["newton_failures"] += failed_newton
        if status == driver.PAUSED or status < 0:
            raise self._failure(memory, status)
        crossing = stepper.crossing if status == driver.FOUND_ROOT else None
        if crossing is not None and e.directions[crossing[0]] * crossing[2] < 0:  # the flow says otherwise
            unresolved = unresolved_guard(crossing[0], mode=e.name, time=stepper.t)
            unresolved.rows = stepper.rows()
            raise unresolved
        _refuse_loose(memory)
        n, completed = e.n, stepper.completed.copy()
        return SegmentOutcome(
            t=stepper.t,
            x=completed[:n],
            xdot=completed[n : 2 * n],
            zero_band=memory.model.zero_band.copy(),
            method=memory.method,
            crossing=crossing,
            integrals=memory.x_data[n:].copy() if e.integrates else task.integrals,
            rows=stepper.rows(),
            sensitivities=np.array([data[:n] for data in memory.s_data]) if n_directions else None,
            integral_sensitivities=_sensitivities(memory, task) if n_directions else None,
        )

    def _failure(self, memory: Forward, status: int) -> DaeHybridError:
        stepper = memory.stepper
        error: DaeHybridError
        if status == driver.PAUSED:
            error = step_limit(self._options.max_steps, mode=memory.equations.name, time=stepper.t)
        else:
            try:
                memory.fail(status, stepper.t)
                raise AssertionError("fail() raises")
            except DaeHybridError as raised:
                error = raised
        if not isinstance(error, NonFiniteError) and memory.model.counters()["not_finite"] > memory.not_finite:
            error.message += " On the way the equations gave NaN or infinity."
        error.rows = stepper.rows()
        return error

    # -- backwards ------------------------------------------------------------------------------------

    def backward(self, task: BackwardTask) -> BackwardOutcome:
        """See `dae_hybrid.integrator.Session.backward`."""
        self._counts["segments"] += 1
        forward, k = task.forward, len(task.components)
        e, n_wrt = forward.equations, len(self._wrt)
        if is_short(forward.t0, forward.end):
            count = 0 if task.t_eval is None else task.t_eval.size
            samples = np.tile(task.adjoints, (count, 1, 1)) if count else np.zeros((0, k, e.n))
            return BackwardOutcome(task.adjoints, np.zeros((k, n_wrt)), np.zeros((k, e.n_memory)), samples)
        path = np.ascontiguousarray(self.integrate(forward).rows)
        found = [self._back(task, j, path) for j in range(k)]
        adjoints, integrals = (np.array([result[i] for result in found]) for i in range(2))
        samples = np.stack([result[2] for result in found], axis=1)
        return BackwardOutcome(adjoints, integrals[:, :n_wrt], integrals[:, n_wrt:], samples)

    def _back(self, task: BackwardTask, j: int, path: Array) -> tuple[Array, Array, Array]:
        """The adjoint of one component along a path: at t0, its integrals, samples."""
        e, method = task.forward.equations, str(task.forward.method)
        purpose = ("adjoint", method, self._wrt, j)
        memory = self._lease(e, purpose)
        try:
            left = self._options.max_steps - self._counts["steps"]
            with memory.model.interruptible():
                adjoint, integrals, samples, steps = memory.solve(task, j, path, left)
        except BaseException as error:
            self._discard(e, purpose)
            if isinstance(error, IntegrationError):
                _advise(error, e)
            raise
        self._counts["steps"] += steps
        return adjoint, integrals, samples


def _advise(error: IntegrationError, equations: Equations) -> None:
    if equations.index == 2:
        error.remedy = (
            "Index 2 as it stands has its limits at tight tolerances: build with index2='reduced' (the default), or "
            "loosen rtol."
        )


def _refuse_loose(memory: Forward) -> None:
    """In index 2 as it stands nothing tests the multipliers as such; see `Forward._free_algebraic`."""
    if memory.equations.index == 2 and not memory.stepper.loose <= LOOSE:
        error = StepSizeError(
            "The multipliers of index 2 have come loose from the equations.",
            mode=memory.equations.name,
            time=memory.stepper.t,
        )
        error.rows = memory.stepper.rows()
        raise error


def _sensitivities(memory: Forward, task: SegmentTask) -> Array | None:
    return (
        np.array([data[task.equations.n :] for data in memory.s_data])
        if task.equations.integrates
        else task.integral_sensitivities
    )
