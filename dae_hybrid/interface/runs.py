"""A call with checked arguments, and the runs it consists of: simulation, tangents, adjoint sweeps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dae_hybrid.conditions.certify import attach_trajectory
from dae_hybrid.conditions.resolution import MIN_STEP_LIMIT, RETRIES, ROUGH_RESOLUTION, STEP_LIMIT_FACTOR, finer
from dae_hybrid.conditions.slopes import named_slopes
from dae_hybrid.errors import (
    DaeHybridError,
    IntegrationError,
    OptionError,
    StepLimitError,
    UnsupportedError,
)
from dae_hybrid.interface.peaks import noted, with_values
from dae_hybrid.interface.registry import Analysis, check_capabilities, find_integrator, for_call, registered
from dae_hybrid.numerics.arrays import EPS, Array
from dae_hybrid.options import Keep, Options, check_keep, check_time_span, check_times
from dae_hybrid.port.failure_messages import MIN_PROGRESS_SHARE, coarse_times
from dae_hybrid.port.integrator import Integrator, RunsWhole, Session
from dae_hybrid.port.native_plan import UNBOUNDED, Alarms, BoundaryFunctions, Knots, RunRequest
from dae_hybrid.port.segment_rules import LOST_SHARE, are_coarse, is_unresolved, kernel
from dae_hybrid.sensitivity import adjoint as adjoint_analysis
from dae_hybrid.sensitivity.algorithm1 import serban_recuero
from dae_hybrid.sensitivity.duality import SweepResult, TangentTrace, balanced
from dae_hybrid.sensitivity.event_sides import side_values
from dae_hybrid.sensitivity.forward import TangentState
from dae_hybrid.simulation.automaton import LEAST_STEPS, Automaton
from dae_hybrid.simulation.event_logic import SIMULTANEITY_RTOLS
from dae_hybrid.simulation.native_run import trajectory_of
from dae_hybrid.simulation.stop_times import StopTimes
from dae_hybrid.system.derivative_conditions import Conditions
from dae_hybrid.system.peaks import Decision, refuse_other_events
from dae_hybrid.system.schedule import Schedule
from dae_hybrid.system.system import HybridSystem
from dae_hybrid.trajectory.grazing import refuse_singular
from dae_hybrid.trajectory.trajectory import Side, Trajectory

Parameters = Mapping[str, ArrayLike] | ArrayLike | None
#: tightest rtol of the direct form of index 2 (measured: below it events on multipliers are missed)
DIRECT_RTOL = 1e-11
#: limit on the evaluations of a guard in a run, from its resolution
MAX_GUARD_EVALUATIONS = 1e8
#: average untested local error of sensitivities per step, in tolerances, that needs no note
UNTESTED_ERROR = 100
#: or relative to the size of the sensitivities over the run
UNTESTED_SHARE = 0.05
#: largest ratio of the check's steps to the run's steps before another direction is tried; number of directions
MAX_CHECK_STEP_RATIO, CHECK_DIRECTIONS = 20, 4
#: upper limit on rtol when tolerances are loosened
LOOSEST = 0.5
#: types of option values that can be compared
PLAIN = (str, int, float, np.number, np.bool_)
#: limit on the checked sets of options cached with a system
MAX_CACHED_OPTIONS = 100


class RunBuilder:
    """Checked arguments of a call, and the runs it consists of."""

    def __init__(
        self, system: HybridSystem, t_span: Sequence[float], parameters: Parameters, t_eval: ArrayLike | None,
        adapter: str, options: Mapping[str, Any], analysis: Analysis = "simulate", keep: Keep = "all",
    ) -> None:  # fmt: skip
        self.system, self.keep, self.bound = for_call(system, adapter, options), keep, UNBOUNDED
        self.undecided, self.attempts = self.system, 0  # the system before its peaks were decided, runs that moved them
        check_keep(keep, t_eval)
        self.span = check_time_span(t_span)
        self.t_eval = check_times(t_eval, self.span)
        self.p = self.system.parameter_vector(parameters)
        self._choose(adapter, options, analysis)
        self._adapter = adapter
        _ = self.integrator

    @cached_property
    def integrator(self) -> Integrator:
        """The integrator of the adapter."""
        return find_integrator(self._adapter)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "integrator"}

    def _choose(self, adapter: str, given: Mapping[str, Any], analysis: Analysis) -> None:
        """Set the options, checked against system and adapter; checked options are cached for the next call."""
        known: dict[Any, Options] = self.system.graph.cache.setdefault("checked", {})
        key = (registered(adapter), self.span, analysis, *((name, type(v), v) for name, v in given.items()))
        plain = isinstance(adapter, str) and all(
            value is None or isinstance(value, PLAIN) or callable(value) for value in given.values()
        )
        with suppress(TypeError):  # tolerances by name are not hashable, nor are invalid options
            if plain and key in known:
                self.options = known[key]
                return
        self.options = Options.of(given)
        self._check_tolerance_names()
        self._check_index()
        self._check_resolution()
        self._set_max_step()
        self._check_fixed_step()
        check_capabilities(adapter, self.system, self.options, analysis)
        if len(known) >= MAX_CACHED_OPTIONS:
            known.clear()
        with suppress(TypeError):
            if plain:
                known[key] = self.options

    def _check_index(self) -> None:
        tight = [mode for mode in self.system.modes if mode.equations.index == 2 and self.options.rtol < DIRECT_RTOL]
        if tight:
            raise UnsupportedError(
                f"The direct form of index 2 is not reliable below rtol {DIRECT_RTOL:g}, got {self.options.rtol:g}.",
                mode=tight[0].name,
                remedy="Build with index2='reduced' (the default), or loosen rtol.",
            )

    def _check_resolution(self) -> None:
        finest, duration = min(mode.equations.resolution for mode in self.system.modes), self.span[1] - self.span[0]
        if duration > MAX_GUARD_EVALUATIONS * finest:
            raise OptionError(
                f"A guard with resolution={finest:g} would be looked at {duration / finest:.0e} times in a run of "
                f"length {duration:g}; the limit is {MAX_GUARD_EVALUATIONS:.0e}.",
                remedy="Declare a coarser resolution: the shortest time for which the guard may stay on one side.",
            )

    def _set_max_step(self) -> None:
        """Refuse a limit below rounding, and limit the steps of modes with clips, behind which motion begins unseen."""
        length, largest = self.span[1] - self.span[0], self.options.max_step
        shortest = MIN_PROGRESS_SHARE * max(abs(self.span[0]), length)
        if largest is not None and largest < shortest:
            raise OptionError(
                f"max_step={largest:g} is lost in the rounding of a run from {self.span[0]:g} to {self.span[1]:g}.",
                remedy=f"Choose {shortest:.1g} or more.",
            )
        if largest is None and self.options.fixed_step is None and any(m.equations.clipped for m in self.system.modes):
            self.options = replace(self.options, max_step=max(length / LEAST_STEPS, shortest))

    def _check_fixed_step(self) -> None:
        step, length, largest = self.options.fixed_step, self.span[1] - self.span[0], self.options.max_step
        if step is not None and step > length:
            raise OptionError(f"fixed_step={step:g} is longer than the run from {self.span[0]:g} to {self.span[1]:g}.")
        if step is not None and largest is not None and step > largest:
            raise OptionError(f"fixed_step={step:g} is longer than max_step={largest:g}.")

    def _check_tolerance_names(self) -> None:
        if not isinstance(self.options.atol, Mapping):
            return
        known = {"*", *self.system.functionals.names, *(n for m in self.system.modes for n in m.variables.names)}
        unknown = sorted(set(self.options.atol) - known)
        if unknown:
            raise OptionError(
                f"atol names {', '.join(map(repr, unknown))}, which the model does not have.",
                remedy=f"Legal names: {', '.join(sorted(known))}.",
            )

    def open(self, **more: Any) -> Session:
        """Open a session for this run."""
        return self.integrator.open(self.options, self.p, **more)

    def run(
        self, directions: TangentState | None = None, max_steps: int | None = None, *, for_adjoint: bool = False,
        keep_path: bool = False,
    ) -> Trajectory:  # fmt: skip
        """Simulate; propagate tangents if `directions` is given, or keep the path, for the adjoint or without it."""
        if directions is None or not directions.count:
            with named_slopes(of_derivatives=False):
                return self._run(directions, max_steps, for_adjoint=for_adjoint, keep_path=keep_path)
        scales = self.scales(directions.directions)
        with named_slopes():
            found = self._run(directions, max_steps, scales, for_adjoint=for_adjoint)
        if not self.options.sensitivity_error_control:
            directions.conditions.doubts += self._untested(found, directions, scales)
            return found
        accuracy = self.options.rtol
        for _ in range(RETRIES):
            better = finer(found, directions, scales, accuracy, at_times=self.t_eval is not None)
            if better is None:
                break
            trial, most = directions.fresh_copy(), max_steps or self.options.max_steps
            try:
                again = self._run(
                    trial, min(most, MIN_STEP_LIMIT + STEP_LIMIT_FACTOR * found.statistics["steps"]), better
                )
            except IntegrationError as error:
                if accuracy >= ROUGH_RESOLUTION:
                    directions.conditions.doubts.append(self._unresolved(directions, better > scales, scales, error))
                    break
                accuracy = ROUGH_RESOLUTION
            else:
                found, scales = replace(again, options=found.options), better
                directions.assign(trial)
        return found

    def _untested(self, run: Trajectory, directions: TangentState, scales: Array) -> list[str]:
        """Notes on sensitivities that were excluded from the error test."""
        steps, rtol = run.statistics["steps"], self.options.rtol
        error = run.statistics.get("sensitivity_error")
        if error is None and steps:
            raise UnsupportedError(
                f"Adapter {self.integrator.name!r} does not report the errors of sensitivities that it does not test.",
                remedy="Leave sensitivity_error_control out.",
            )
        said = []
        if error is not None and (error > UNTESTED_ERROR * steps or error * rtol > UNTESTED_SHARE):
            said.append(
                "Sensitivities are left out of the error test, and their local errors are "
                f"{error / steps:.1e} tolerances in a step on average: derivatives may be off by {error * rtol:.1e} of "
                "their size. Leave sensitivity_error_control on, or tighten rtol."
            )
        better = finer(run, directions, scales, rtol, at_times=self.t_eval is not None)
        if better is not None:
            said.append(
                f"The derivatives by {self._names(directions, better > scales)} are next to their absolute tolerances, "
                "and have been left out of the error test: they may have no digits. Leave sensitivity_error_control on."
            )
        return said

    def _names(self, directions: TangentState, chosen: NDArray[np.bool_]) -> str:
        """Labels of the parameters that some of the directions change."""
        labels = self.system.parameters.labels()
        return ", ".join(labels[i] for i in np.flatnonzero(directions.directions[:, chosen].any(axis=1)))

    def _unresolved(
        self, directions: TangentState, short: NDArray[np.bool_], scales: Array, error: IntegrationError
    ) -> str:
        """Note on directions whose sensitivities no run resolves."""
        return (
            f"The derivatives by {self._names(directions, short)} are not resolved: the states change by no more than "
            f"their absolute tolerance when these parameters change by "
            f"{', '.join(f'{s:.1e}' for s in scales[short])}, and a run at finer tolerances failed ({error.message})."
        )

    def _run(
        self, directions: TangentState | None, max_steps: int | None, scales: Array | None = None, *,
        for_adjoint: bool = False, keep_path: bool = False,
    ) -> Trajectory:  # fmt: skip
        more: dict[str, Any] = {}
        if directions is not None and scales is not None:
            more = {"parameter_directions": directions.directions.T, "scales": scales}
        options = self.options if max_steps is None else replace(self.options, max_steps=max_steps)
        t_eval = np.zeros(0) if self.t_eval is None and self.keep != "all" else self.t_eval
        certify, found = for_adjoint or directions is not None, None
        session = self.integrator.open(options, self.p, **more)
        # derivatives are checked by the steps of one long segment, which outputs at given times do not contain
        keep_path = keep_path or for_adjoint or (bool(more) and t_eval is not None and not self.system.transitions)
        schedule = Schedule(self.system, self.span[0], self.p, self.span[1])
        try:
            if self.keep != "final":
                found = self._whole(
                    session, options, directions, t_eval, schedule, certify=certify, keep_path=keep_path, **more
                )
            if found is not None:
                found = found.thinned(self.keep)
            else:
                found = Automaton(
                    self.system, session, self.p, self.span, t_eval, options, directions, self.open, schedule,
                    certify=certify, keep_path=keep_path, keep=self.keep,
                    bound=self.bound if directions is None else UNBOUNDED,
                ).run()  # fmt: skip
        finally:
            session.close()

        if not self.integrator.capabilities.exact_times:
            with attach_trajectory(found):
                self._refuse_coarse_times(found, options)
        if self.system.decision is not None:
            found = self._with_peaks(found, self.system.decision)
        if self.keep != "all":
            return found
        blank = None if directions is None else directions.fresh_copy()
        return replace(found, rerun=partial(self._rerun, blank, max_steps, scales))

    def _refuse_coarse_times(self, run: Trajectory, options: Options) -> None:
        """Raise `StepSizeError` if rounding of the time is an error of the steps, and of the state at the end."""
        begin, (end, place, x, m), steps = self.span[0], run.final, run.statistics["steps"]
        if not are_coarse(begin, end, steps, options.rtol):
            return
        mode = self.system.modes[place]
        e, ny = mode.equations, mode.differential.size
        rates = kernel(e, "complete")(end, x[: e.n], m, self.p)[1][:ny]
        if np.any(np.abs(rates) * EPS * abs(begin) > LOST_SHARE * options.allowed(mode.differential, x[:ny])):
            raise coarse_times((end - begin) / steps, mode=mode.name, time=begin)

    def _with_peaks(self, run: Trajectory, decision: Decision) -> Trajectory:
        """Return the run of a system with decided peaks, with the values of those that are not measurements."""
        if self.system.sides and run.n_events != decision.n_events:
            raise refuse_other_events(decision, run.final[0])
        values = side_values(run) if decision.values is None else side_values(run) + decision.values
        return noted(with_values(run, values), decision) if values.any() else run

    def _rerun(
        self, directions: TangentState | None, max_steps: int | None, scales: Array | None, t: Array
    ) -> Trajectory:
        """Repeat the run with outputs at other times."""
        other = copy(self)
        other.t_eval = t
        return other._run(None if directions is None else directions.fresh_copy(), max_steps, scales)

    def _whole(
        self, session: Session, options: Options, directions: TangentState | None, t_eval: Array | None,
        schedule: Schedule, *, certify: bool, keep_path: bool,
        parameter_directions: Array | None = None, scales: Array | None = None,
    ) -> Trajectory | None:  # fmt: skip
        """Carry out a native run; None if the integrator cannot complete it."""
        request = self.request(
            options, certify=certify, keep_path=keep_path,
            directions=parameter_directions, scales=scales, t_eval=t_eval, schedule=schedule,
        )  # fmt: skip
        if request is not None and cast(BoundaryFunctions, self.system.graph.ends).origin is None:
            initial = self.system.initial
            mode = self.system.modes[initial.mode]
            try:
                request = request._replace(start=initial.numbers(mode, self.span[0], self.p, differentiate=certify))
            except DaeHybridError:
                return None
        found = None if request is None else cast(RunsWhole, session).run(self.system.graph, request)
        return None if found is None else trajectory_of(self.system, found, directions, self.open)

    def request(
        self, options: Options, *, certify: bool, keep_path: bool, t_eval: Array | None,
        directions: Array | None = None, scales: Array | None = None, schedule: Schedule | None = None,
    ) -> RunRequest | None:  # fmt: skip
        """Make the request for a native run; None if the run is not eligible."""
        able, ends = self.integrator.capabilities.whole and options.native_events, self.system.graph.ends
        able = able and (directions is None or options.sensitivity_error_control)
        if not able or ends is None or is_unresolved(*self.span):
            return None
        alarms, until, waiting, knots = tuple[Alarms, ...](), np.inf, list[tuple[float, int]](), None
        if schedule is not None and (any(self.system.graph.timed) or ends.measured or self.system.signals):
            try:
                waiting, knots = self._stops(ends, 0 if directions is None else len(directions))
                alarms, until = self._alarms(schedule, ends, waiting, knots)
            except DaeHybridError:  # of the run, or of a mode that may never be entered
                return None
        slack = SIMULTANEITY_RTOLS * options.rtol if certify else 0.0
        return RunRequest(
            options, self.p, self.span, t_eval, directions, scales, certify, slack, keep_path, alarms, until,
            self.bound if directions is None else UNBOUNDED, None, waiting, knots,
        )  # fmt: skip

    def _stops(self, ends: BoundaryFunctions, d: int) -> tuple[list[tuple[float, int]], Knots | None]:
        """Measurements and knots in a native run, in order; cached for the next run unless they move."""
        cache, key = self.system.graph.cache, (self.span, d)
        known, found = cache.get("stops", (None, None))
        if found is None or known != key or ends.moves is not None:
            stops = StopTimes(self.system, self.span, self.p)
            found = stops.waiting, stops.knots_within(d) if self.system.signals else None
            cache["stops"] = key, found
        return cast(tuple[list[tuple[float, int]], Knots | None], found)

    def _alarms(
        self, schedule: Schedule, ends: BoundaryFunctions, waiting: list[tuple[float, int]], knots: Knots | None
    ) -> tuple[tuple[Alarms, ...], float]:
        """Due times in a native run; cached for the next run if they are fixed measurements and knots only."""
        graph = self.system.graph
        if any(graph.timed) or ends.moves is not None:
            return schedule.alarms(self.span[0], waiting, knots)
        of, found = graph.cache.get("measured", (None, None))
        if found is None or of is not waiting:
            found = schedule.alarms(self.span[0], waiting, knots)
            graph.cache["measured"] = waiting, found
        return cast(tuple[tuple[Alarms, ...], float], found)

    def scales(self, directions: Array) -> Array:
        """Scale of each direction relative to the parameters: |p_i| for a unit direction of p_i."""
        size = np.where(self.p != 0, np.maximum(np.abs(self.p), adjoint_analysis.MIN_PARAMETER), 1.0)
        share = (np.abs(directions) / size[:, None]).max(axis=0, initial=0.0)
        return np.asarray(1.0 / np.where(share > 0, share, 1.0))

    def allowed(self, duality: bool | float) -> float | None:
        """Tolerance of the duality check, None if it is off."""
        if duality is False:
            return None
        if duality is True:
            return float(np.sqrt(self.options.rtol))
        if isinstance(duality, bool) or not isinstance(duality, int | float) or not 0 < duality < 1e300:
            raise OptionError(f"duality must be True, False or a positive number, got {duality!r}.")
        return float(duality)

    def directions(self, indices: tuple[int, ...], conditions: Conditions) -> TangentState:
        """One tangent direction per parameter."""
        return TangentState(self.system, self.p, self.columns(indices), self.span[0], conditions)

    def conditions(self, *, strict: bool) -> Conditions:
        """Conditions of the derivatives in this call."""
        if not isinstance(strict, bool):
            raise OptionError(f"strict must be True or False, got {strict!r}.")
        return Conditions(strict=strict)

    def columns(self, indices: tuple[int, ...]) -> Array:
        """Unit directions of the parameters, (n_parameters, n_wrt)."""
        return np.eye(self.system.parameters.size)[:, list(indices)]

    def tangent_trace(self, columns: Array, combination: Array, conditions: Conditions) -> TangentTrace:
        """Tangents that record one combination of themselves for a duality check."""
        return TangentTrace(self.system, self.p, columns, self.span[0], conditions, combination)

    def tangent_for_check(
        self, run: Trajectory, swept: SweepResult, indices: tuple[int, ...], conditions: Conditions
    ) -> tuple[TangentTrace, Array, Array]:
        """Return tangents along a run in one direction, the derivatives of the functionals, and the direction.

        All parameters contribute alike to the derivative of what was swept in that direction.

        IDA may fail to follow a combination of sensitivities although it follows others, and take a thousand times as
        many steps (measured on a throw with an energy as algebraic variable): another direction is then tried.
        """
        patience = min(self.options.max_steps, 1000 + MAX_CHECK_STEP_RATIO * run.statistics["steps"])
        for which in range(CHECK_DIRECTIONS):
            last = which == CHECK_DIRECTIONS - 1
            v = balanced(swept, self.p[list(indices)], which)
            trace = self.tangent_trace(self.columns(indices) @ v[:, None], np.ones(1), conditions)
            try:
                along = self.run(trace, max_steps=self.options.max_steps if last else patience)
            except StepLimitError:
                if last:
                    raise
            else:
                return trace, trace.gradient(along)[:, 0], v
        raise AssertionError("the last direction is returned or raises")

    def sweep(
        self, run: Trajectory, session: Session, name: str, wrt: tuple[int, ...], conditions: Conditions
    ) -> adjoint_analysis.AdjointSweep:
        """Prepare a backward sweep over a run."""
        part = self.system.functionals[name]
        components = tuple(range(part.start, part.stop))
        return adjoint_analysis.AdjointSweep(run, session, self.options, components, wrt, conditions)

    def samples(
        self, run: Trajectory, name: str, wrt: tuple[int, ...], conditions: Conditions, times: Array, side: Side
    ) -> list[Array]:
        """The adjoint of a functional at increasing times, by another sweep over a run."""

        def use(session: Session) -> list[Array]:
            return adjoint_analysis.samples(self.sweep(run, session, name, wrt, conditions), times, side)

        found: list[Array] = self.use(use, wrt)
        return found

    def adjoint(
        self, run: Trajectory, name: str, wrt: tuple[int, ...], conditions: Conditions, algorithm: str = "general", *,
        at_events: bool = False,
    ) -> SweepResult:  # fmt: skip
        """Compute a gradient by a backward sweep; `at_events` records the adjoint before each event."""
        refuse_singular(run, conditions)

        def use(session: Session) -> SweepResult:
            sweep = self.sweep(run, session, name, wrt, conditions)
            whole = self._back(sweep, session, at_events=at_events) if algorithm == "general" else None
            if whole is not None:
                return whole
            seen: list[tuple[Array, Array]] = []
            if algorithm == "general":
                gradient = adjoint_analysis.gradient(sweep, seen if at_events else None)
            else:
                gradient = serban_recuero(sweep)
            return SweepResult(sweep, gradient, session.statistics(), lambda: seen)

        found: SweepResult = self.use(use, wrt)
        return found

    def looser(self, factor: float) -> RunBuilder:
        """The same call with tolerances multiplied by `factor`, and fixed steps doubled or halved."""
        other, atol = copy(self), self.options.atol
        atol = {key: factor * a for key, a in atol.items()} if isinstance(atol, Mapping) else factor * atol
        step = None if self.options.fixed_step is None else self.options.fixed_step * (2.0 if factor > 1 else 0.5)
        other.options = replace(self.options, rtol=min(factor * self.options.rtol, LOOSEST), atol=atol, fixed_step=step)
        other.bound = self.bound._replace(records=True, rows=True)  # they are not needed
        return other

    def forward_gradients(self, wrt: tuple[int, ...]) -> dict[str, Array]:
        """Gradients (k, n_wrt) of all functionals by forward analysis, not subject to conditions."""
        directions = self.directions(wrt, Conditions(strict=False))
        gradient, parts = directions.gradient(self.run(directions)), self.system.functionals
        return {name: gradient[parts[name]] for name in parts.names}

    def adjoint_gradients(self, name: str, wrt: tuple[int, ...], algorithm: str) -> dict[str, Array]:
        """Gradient (k, n_wrt) of one functional by adjoint analysis, not subject to conditions."""
        run = self.run(for_adjoint=True)
        return {name: self.adjoint(run, name, wrt, Conditions(strict=False), algorithm).gradient}

    def _back(self, sweep: adjoint_analysis.AdjointSweep, session: Session, *, at_events: bool) -> SweepResult | None:
        """Carry out the sweep natively; None if the run was not native or the integrator cannot complete it."""
        run = sweep.trajectory.parts.native_run
        if run is None or not run.request.keep_path:
            return None
        found = cast(RunsWhole, session).back(self.system.graph, run, sweep.components, sweep.wrt, at_events=at_events)
        if found is None:
            return None

        def adjoint_at_events() -> list[tuple[Array, Array]]:
            table, _, _ = run.segments
            return [] if table is None else adjoint_analysis.adjoint_at_events(table, found)

        return SweepResult(sweep, found.gradient, found.statistics, adjoint_at_events)

    def use(self, use: Callable[[Session], Any], wrt: tuple[int, ...]) -> Any:
        """Call a function with a session, which is closed afterwards."""
        session = self.open(wrt=wrt)
        try:
            return use(session)
        finally:
            session.close()
