"""The integrator and its sessions, which lease solver memories from a pool for one run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np

from dae_hybrid.errors import IntegrationError, StepSizeError, UnsupportedError
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.crossings import Turn
from dae_hybrid.options import LinearSolver, Options
from dae_hybrid.port.integrator import (
    BackwardOutcome,
    BackwardTask,
    Capabilities,
    Equations,
    SegmentOutcome,
    SegmentTask,
    Tolerances,
)
from dae_hybrid.port.native_batch import NativeBatch
from dae_hybrid.port.native_plan import (
    NativeGradient,
    NativeRun,
    RunContext,
    RunRequest,
    SegmentRun,
    TableAdjoint,
    TransitionGraph,
)
from dae_hybrid.port.record_table import RecordTable
from dae_hybrid.port.segment_rules import ADJOINT_ROUNDING_FACTOR, is_short, standing_still

from . import compiled, driver, interpreted
from .adjoint import Adjoint
from .backend import Backend
from .batch import SundialsCrew
from .choice import Choice
from .driver import SENSITIVITY_ERROR, statistics_of
from .forward import Forward
from .header import source
from .library import load
from .memory import taken
from .methods import CHOICE, INTERPRETED, METHODS, NONSTIFF, STIFF, SundialsMethod
from .native_backward import carry_back, table_back
from .native_forward import NativeForward, PausedRun, carry_out, is_native, method_of_runs
from .native_loop import NativeLoop
from .segment_loop import SegmentLoop
from .sweep import DiscreteAdjoint, TableSweep


class SundialsIntegrator:
    """SUNDIALS as an `Integrator` of `dae_hybrid.port.integrator`: CVODES, IDAS and ARKODE.

    Raises `AdapterError` if SUNDIALS cannot be loaded.
    """

    name = "sundials"
    capabilities = Capabilities(
        methods=(CHOICE, *METHODS.values()),
        algebraic=(CHOICE.name, STIFF.name),
        reduced=(NONSTIFF.name,),
        roots=True,
        dense=True,
        forward=True,
        adjoint=True,
        index2=True,
        linear_solvers=get_args(LinearSolver),
        whole=True,
    )

    def __init__(self) -> None:
        load()

    @staticmethod
    def loops() -> str:
        """See `dae_hybrid.port.integrator.HasLoops.loops`."""
        return source()

    def open(
        self,
        options: Options,
        parameters: Array,
        *,
        parameter_directions: Array | None = None,
        scales: Array | None = None,
        wrt: Sequence[int] = (),
    ) -> SundialsSession:
        """See `dae_hybrid.port.integrator.Integrator.open`."""
        return SundialsSession(options, parameters, parameter_directions, scales, tuple(wrt))

    def crew(self, graph: TransitionGraph, fleet: NativeBatch) -> SundialsCrew | str:
        """See `dae_hybrid.port.native_batch.RunsMany.crew`."""
        options = fleet.request.options
        method = method_of_runs(graph, fleet.request)
        if method is None:
            return "a mode is not compiled, has a guard with resolution=, or needs a sparse or iterative linear solver"
        if fleet.request.keep_path and table_back(graph, options) is None:
            return "adjoints of implicit steps; gradient='forward' takes any method"
        return SundialsCrew(graph, fleet, method)


class SundialsSession:
    """One run on one thread."""

    def __init__(
        self, options: Options, parameters: Array, directions: Array | None, scales: Array | None, wrt: tuple[int, ...]
    ) -> None:
        self.options, self.parameters = options, parameters
        self._directions, self._scales, self._wrt = directions, scales, wrt
        self._leased: dict[Any, Any] = {}
        self.counts: Counter[str] = Counter()
        self._base: dict[int, dict[str, int]] = {}
        self._turns: list[tuple[Equations, Turn]] = []
        self._native_loops: dict[int, NativeLoop] = {}
        self.tested: set[int] = set()  # equations with multipliers in the error test
        self._head: PausedRun | None = None  # a paused run, whose memories and tables this session may adopt
        self.choice = Choice(options, parameters)
        self.since_look = 0  # steps since the last check, before a record table that continues in another one

    # -- memories -------------------------------------------------------------------------------------

    def _lease(self, equations: Equations, purpose: tuple[Any, ...]) -> Any:
        own = (id(equations), purpose)
        if own in self._leased:
            return self._leased[own]
        options = self.options
        key = ("sundials", options.linear_solver, *purpose)
        idle = equations.cache.setdefault(key, [])
        backend: Backend = compiled if is_native(equations) else interpreted

        def make() -> Any:
            if purpose[0] == "forward":
                return Forward(equations, options, purpose[1], purpose[2], backend)
            if purpose[0] == "discrete":
                return DiscreteAdjoint(equations, self._wrt, purpose[1])
            return Adjoint(equations, options, purpose[1], self._wrt, backend)

        memory = taken(idle, make)
        if purpose[0] == "discrete":
            pass
        elif purpose[0] == "forward":
            suppress = options.suppress_algebraic or (equations.constrained and id(equations) not in self.tested)
            memory.configure_run(options, self.parameters, self._directions, self._scales, suppress=suppress)
        else:
            memory.configure_run(options, self.parameters)
        memory.pool = idle
        self._base[id(memory)] = memory.model.counters()
        self._leased[own] = memory  # last, because an interrupt may occur at any point
        return memory

    def _discard(self, own: Any) -> None:
        self.turns()
        memory = self._leased.pop(own)
        self._count(memory)
        memory.free()

    def _count(self, memory: Any) -> None:
        self.counts.update(self._since_lease(memory))
        del self._base[id(memory)]

    def _since_lease(self, memory: Any) -> dict[str, int]:
        base = self._base[id(memory)]
        return {name: value - base[name] for name, value in memory.model.counters().items()}

    def close(self) -> None:
        """Return the memories to their pools."""
        head, self._head = self._head, None
        if head is not None:
            head.give_back(list(self._leased.values()))
        while self._leased:  # a memory is lost if an interrupt occurs here
            _, memory = self._leased.popitem()
            memory.model.take_pending()  # kept after the exception that has ended the run
            if memory.pool is not None:
                memory.pool.append(memory)
        while self._native_loops:
            _, loop = self._native_loops.popitem()
            loop.rest()
            if loop.pool is not None:
                loop.pool.append(loop)

    def statistics(self) -> dict[str, int]:
        """Counters, with SciPy's names where it has one."""
        counts = Counter(self.counts)
        for memory in self._leased.values():
            counts.update(self._since_lease(memory))
        more = SENSITIVITY_ERROR, " factorisations", " solutions"
        return statistics_of(counts) | {name: count for name, count in counts.items() if name.endswith(more)}

    def turns(self) -> list[tuple[Equations, Turn]]:
        """See `dae_hybrid.port.integrator.Session.turns`."""
        for (_, purpose), memory in self._leased.items():
            if purpose[0] == "forward":
                self._turns += [(memory.equations, turn) for turn in memory.stepper.take_turns()]
        return self._turns

    # -- forwards -------------------------------------------------------------------------------------

    def run(self, graph: TransitionGraph, request: RunRequest) -> NativeRun | None:
        """See `dae_hybrid.port.integrator.RunsWhole.run`."""
        found, self._head = carry_out(graph, request)
        return found

    def back(
        self,
        graph: TransitionGraph,
        run: NativeRun,
        components: tuple[int, ...],
        wrt: tuple[int, ...],
        *,
        at_events: bool,
    ) -> NativeGradient | None:
        """See `dae_hybrid.port.integrator.RunsWhole.back`."""
        return carry_back(graph, run, components, wrt, at_events=at_events)

    def _adopt(self, task: SegmentTask) -> NativeForward | None:
        """Continue the paused run if this task is its first one."""
        head = self._head
        if head is None or head.adopted or not head.runner.began_with(task):
            return None
        runner, count = head.runner, head.runner.loop.n_directions
        for mode, memory in enumerate(runner.memories):
            self._leased[id(memory.equations), self._forward(memory.method, count)] = memory
            self._base[id(memory)] = runner.counted(mode)
        if self.options.automatic:
            self.choice.resume(runner.visited.values(), runner.stretch, runner.look)
        self._native_loops[count] = runner.loop
        head.adopted = True
        return runner

    def integrate(self, task: SegmentTask) -> SegmentOutcome:
        """See `dae_hybrid.port.integrator.Session.integrate`."""
        passage = self._pass(task, None)
        if passage.outcome is None:
            raise passage.error or AssertionError("neither outcome nor error")
        return passage.outcome

    def run_segments(self, task: SegmentTask, context: RunContext) -> SegmentRun:
        """See `dae_hybrid.port.integrator.Session.run_segments`."""
        if not self._can_run_segments(task, context):
            return self._pass(task, None)
        if context.replayed is not None:
            self.tested |= {id(context.graph.equations[mode]) for mode in context.replayed.tested}
        if context.t_eval is not None:
            task = replace(task, t_eval=context.t_eval, record="steps" if context.t_eval.size else "nothing")
        return self._pass(task, context)

    def _pass(self, task: SegmentTask, context: RunContext | None) -> SegmentRun:
        """Advance a task; if steps become too small, continue from there by another method."""
        self.counts["segments"] += 1
        method = METHODS[task.method] if task.method else self.method_for(task, self.counts["steps"], context)
        if is_short(task.t0, task.t_stop):
            mode = 0 if context is None else context.mode
            return SegmentRun(None, mode, task, standing_still(task, method))
        passage = self._go(task, method, context)
        while isinstance(passage.error, IntegrationError):
            _advise(passage.error, passage.task.equations)
            if not isinstance(passage.error, StepSizeError):
                break
            other = self._other_way(passage.task, passage.error.method)
            if other is None:
                break
            passage = replace(self._go(passage.task, other, None), table=passage.table, mode=passage.mode)
        if passage.outcome is None and passage.error is None:  # paused instead of beginning a segment
            self.counts["segments"] -= 1
        return passage

    def _go(self, task: SegmentTask, method: SundialsMethod, context: RunContext | None) -> SegmentRun:
        loop: NativeLoop | None = None
        runner = None if context is None else self._adopt(task)
        if context is not None:
            count = 0 if task.sensitivities is None else len(task.sensitivities)
            loop = self._marcher(context.graph, count)
        course = SegmentLoop(self, task, method, loop, context, runner)
        try:
            passage = course.run()
        except BaseException:
            for purpose, memory in list(self._leased.items()):
                if memory in course.memories.values():
                    self._discard(purpose)
            raise
        if passage.error is not None:
            self._discard(next(purpose for purpose, memory in self._leased.items() if memory is course.memory))
        return passage

    def _can_run_segments(self, task: SegmentTask, context: RunContext) -> bool:
        if task.record == "dense" or any(e.unwatched for e in context.graph.equations):
            return False
        links = context.graph.links[context.mode]
        return self._head is not None or (any(link is not None for link in links) and driver.driver() is not None)

    def _marcher(self, graph: TransitionGraph, n_directions: int) -> NativeLoop:
        if n_directions not in self._native_loops:
            idle = graph.cache.setdefault(("sundials", n_directions), [])
            loop = self._native_loops[n_directions] = taken(idle, lambda: NativeLoop(graph, n_directions))
            loop.pool = idle
        return self._native_loops[n_directions]

    def _other_way(self, task: SegmentTask, method: SundialsMethod) -> SundialsMethod | None:
        """The method to try after steps became too small, with other changes made; None if there is none.

        Multipliers are excluded from the error test (`constrained`), so that steps are chosen for y alone. If they
        enter nonlinearly, Newton's method may then fail to find them at some tolerances.
        """
        e, key = task.equations, id(task.equations)
        untested = e.constrained and e.implicit and e.index == 1 and not self.options.suppress_algebraic
        if untested and key not in self.tested:
            self.tested.add(key)
            return method
        if task.method or not self.options.automatic or method is STIFF:
            return None
        self.choice.keep_implicit(e)
        return STIFF

    def method_for(self, task: SegmentTask, steps: int, context: RunContext | None = None) -> SundialsMethod:
        """The method for a segment that begins after `steps` steps of the run."""
        e = task.equations
        if self._directions is not None and not (self.options.sensitivity_error_control or is_native(e)):
            raise UnsupportedError(
                "sensitivity_error_control=False needs compiled equations, and these are not.",
                mode=e.name,
                remedy="Install a C compiler, build with native=True, or leave it out.",
            )
        if context is not None and context.replayed is not None:
            return METHODS[context.replayed.methods[context.graph.equations.index(e)].name]
        if not self.options.automatic:
            method = METHODS[self.options.method]
            if method.explicit and not is_native(e):
                raise UnsupportedError(
                    f"method={method.name!r} needs compiled equations, and these are not.",
                    mode=e.name,
                    remedy=f"Install a C compiler, build with native=True, or use method={INTERPRETED.name!r}.",
                )
            return method
        return self.choice.method_for(task, NONSTIFF if is_native(e) else INTERPRETED, steps)

    def forward_memory(self, task: SegmentTask, method: SundialsMethod) -> Forward:
        """The memory for a task, configured for the run."""
        n_directions = 0 if task.sensitivities is None else len(task.sensitivities)
        memory: Forward = self._lease(task.equations, self._forward(method, n_directions))
        return memory

    def _forward(self, method: SundialsMethod, n_directions: int) -> tuple[Any, ...]:
        """The purpose of a forward memory; ARKODE allocates stages for one table."""
        detail = method.table(self.options) or (self.options.sensitivity_method if n_directions else None)
        return "forward", method, n_directions, detail

    # -- backwards ------------------------------------------------------------------------------------

    def backward(self, task: BackwardTask) -> BackwardOutcome:
        """See `dae_hybrid.port.integrator.Session.backward`."""
        self.counts["segments"] += 1
        forward, k = task.forward, len(task.components)
        e, n_wrt = forward.equations, len(self._wrt)
        if is_short(forward.t0, forward.end) or (task.path is not None and not len(task.path)):
            count = 0 if task.t_eval is None else task.t_eval.size
            samples = np.tile(task.adjoints, (count, 1, 1)) if count else np.zeros((0, k, e.n))
            return BackwardOutcome(task.adjoints, np.zeros((k, n_wrt)), np.zeros((k, e.n_memory)), samples)
        method = METHODS[str(forward.method)]
        if method.explicit and task.path is not None and task.t_eval is None:
            found_by_steps = self._back_by_steps(task, method, task.path)
            if found_by_steps is not None:
                return found_by_steps
        kept = None if method.path.exact else task.path
        path = np.ascontiguousarray(self.integrate(forward).rows if kept is None else kept)
        back = STIFF if e.implicit else method.adjoint or method
        found = [self._back(task, back, j, path) for j in range(k)]
        adjoints, integrals = (np.array([result[i] for result in found]) for i in range(2))
        samples = np.stack([result[2] for result in found], axis=1)
        return BackwardOutcome(adjoints, integrals[:, :n_wrt], integrals[:, n_wrt:], samples)

    def _back_by_steps(self, task: BackwardTask, method: SundialsMethod, path: Array) -> BackwardOutcome | None:
        """The exact adjoint of Runge-Kutta steps; None if they cannot resolve it."""
        e, n_wrt = task.forward.equations, len(self._wrt)
        discrete = self._discrete(e, method, task.components, task.tolerances())
        with discrete.model.interruptible():
            flag = discrete.back(path, task.forward.memory, task.adjoints)
        self.counts["steps"] += int(discrete.struct.steps)
        if flag:
            return None
        adjoints, totals = discrete.adjoint.copy(), discrete.totals.copy()
        samples = np.zeros((0, len(adjoints), e.n))
        return BackwardOutcome(adjoints, totals[:, :n_wrt], totals[:, n_wrt:], samples)

    def _discrete(
        self, equations: Equations, method: SundialsMethod, components: tuple[int, ...], tolerances: Tolerances
    ) -> DiscreteAdjoint:
        found: DiscreteAdjoint = self._lease(equations, ("discrete", method.table(self.options), self._wrt))
        found.choose(components, self.parameters, tolerances, self.options.max_steps - self.counts["steps"])
        return found

    def sweep(
        self, table: RecordTable, adjoints: Array, total: Array, components: tuple[int, ...],
        tolerances: Callable[[int], Tolerances], measured: Array, sides: Mapping[int, Array], *, at_events: bool,
    ) -> TableAdjoint | None:  # fmt: skip
        """See `dae_hybrid.port.integrator.Session.sweep`."""
        modes = sorted(table.methods)
        if any(mode not in table.paths for mode in modes):
            return None
        loop = self._marcher(table.graph, table.n_directions)
        loop.look_back(self.parameters, table.begin)
        discrete, integrated = {}, {}
        for mode in modes:
            e, method = table.graph.equations[mode], METHODS[table.methods[mode].name]
            if method.explicit:
                discrete[mode] = self._discrete(e, method, components, tolerances(mode))
                continue
            integrated[mode] = [self._lease(e, ("adjoint", method, self._wrt, j)) for j in range(len(components))]
            for j, memory in enumerate(integrated[mode]):
                memory.use(tolerances(mode), j)
        left = self.options.max_steps - self.counts["steps"]
        precision = self.options.rtol / ADJOINT_ROUNDING_FACTOR
        sweep = TableSweep(loop, table, discrete, integrated, self._wrt, components, at_events=at_events)
        found, steps = sweep.run(adjoints, total, measured, sides, precision, left)
        for mode, memories in integrated.items():
            if found is None:
                for j in range(len(memories)):
                    purpose = ("adjoint", METHODS[table.methods[mode].name], self._wrt, j)
                    self._discard((id(table.graph.equations[mode]), purpose))
        self.counts["steps"] += steps
        self.counts["segments"] += table.count
        return found

    def _back(self, task: BackwardTask, method: SundialsMethod, j: int, path: Array) -> tuple[Array, Array, Array]:
        """The adjoint of one component along a path: its value at t0, its integrals, samples."""
        e = task.forward.equations
        purpose = ("adjoint", method, self._wrt, j)
        memory = self._lease(e, purpose)
        try:
            left = self.options.max_steps - self.counts["steps"]
            with memory.model.interruptible():
                adjoint, integrals, samples, steps = memory.solve(task, j, path, left)
        except BaseException as error:
            self._discard((id(e), purpose))
            if isinstance(error, IntegrationError):
                _advise(error, e)
            raise
        self.counts["steps"] += steps
        return adjoint, integrals, samples


def _advise(error: IntegrationError, equations: Equations) -> None:
    if equations.index == 2:
        error.remedy = (
            "The direct form of index 2 has its limits at tight tolerances: build with index2='reduced' (the default), "
            "or loosen rtol."
        )
