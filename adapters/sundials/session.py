"""The integrator and its sessions: memories are taken from a pool, used for one run, and given back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, get_args

import numpy as np

from dae_hybrid.errors import IntegrationError, StepSizeError, UnsupportedError
from dae_hybrid.fleet import Fleet
from dae_hybrid.integrator import (
    Array,
    BackwardOutcome,
    BackwardTask,
    Capabilities,
    Equations,
    SegmentOutcome,
    SegmentTask,
    Tolerances,
    Turn,
)
from dae_hybrid.journey import Errand, Journey, LegAdjoint, Network, Passage, Straight, StraightAdjoint
from dae_hybrid.leg import Leg
from dae_hybrid.multipliers import ROUNDED
from dae_hybrid.options import LinearSolver, Options
from dae_hybrid.segments import is_short, standing_still
from dae_hybrid.stiffness import is_stiff

from . import compiled, driver, interpreted
from .adjoint import Adjoint
from .batch import Crew
from .course import Course
from .driver import statistics_of
from .forward import Forward
from .library import load
from .march import Marcher
from .plain import Luck, Runner, method_of
from .plain_adjoint import Returner
from .runge_kutta import Table, order_of
from .structure import structure_of
from .sweep import DiscreteAdjoint, LegSweep

#: what ``method="auto"`` takes for explicit equations that are not stiff
EXPLICIT = "erk"


class SundialsIntegrator:
    """CVODES and IDAS behind the port of `dae_hybrid.integrator`.

    Raises `AdapterError` where SUNDIALS cannot be loaded.
    """

    name = "sundials"
    capabilities = Capabilities(
        methods=("auto", "bdf", "adams", "erk"),
        algebraic=("auto", "bdf"),
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

    def run(self, network: Network, errand: Errand) -> Straight | None:
        """See `dae_hybrid.integrator.RunsWhole.run`."""
        options, method = errand.options, _method_of_whole_runs(network, errand.options)
        if method is None:
            return None
        count = 0 if errand.directions is None else len(errand.directions)
        detail = (order_of(options) if method == "erk" else None, options.sensitivity_method if count else None)
        luck: Luck = network.kept.setdefault(("sundials", "luck", method, count > 0), Luck())
        differs = count and any(e.implicit for e in network.equations)  # in roundings: it may not depend on luck
        if not luck.is_in and not differs:
            return None
        idle = network.kept.setdefault(("sundials", "whole", method, count, detail, options.linear_solver), [])
        try:
            runner = idle.pop()
        except IndexError:
            runner = Runner(network, options, method, count)
        found: Straight | None = runner.run(errand)
        if runner.failed:
            for memory in runner.memories:
                memory.free()
        else:
            idle.append(runner)
        luck.note(found is not None)
        return found

    def back(
        self, network: Network, run: Straight, components: tuple[int, ...], wrt: tuple[int, ...]
    ) -> StraightAdjoint | None:
        """See `dae_hybrid.integrator.RunsWhole.back`."""
        options = run.errand.options
        if not _goes_back(network, options):
            return None
        idle = network.kept.setdefault(("sundials", "back", order_of(options), components, wrt), [])
        try:
            returner = idle.pop()
        except IndexError:
            returner = Returner(network, options, wrt, components)
        found: StraightAdjoint | None = returner.run(run.left)
        idle.append(returner)
        return found

    def crew(self, network: Network, fleet: Fleet) -> Crew | None:
        """See `dae_hybrid.fleet.RunsMany.crew`."""
        options = fleet.errand.options
        method = _method_of_whole_runs(network, options)
        if method is None or (fleet.errand.keep_path and not _goes_back(network, options)):
            return None
        return Crew(network, fleet, method)


def _goes_back(network: Network, options: Options) -> bool:
    """Whether adjoints of whole runs are those of explicit steps."""
    return options.method in ("auto", "erk") and not any(e.implicit for e in network.equations)


def _method_of_whole_runs(network: Network, options: Options) -> str | None:
    """The method by which runs are carried out as a whole, None where they cannot be."""
    if network.ends is None or not all(_is_native(e) and not e.unwatched for e in network.equations):
        return None
    method = EXPLICIT if options.method == "auto" else options.method
    newton = [e for e in network.equations if method_of(e, method) == "bdf"]
    return method if all(_is_dense(e, options.linear_solver) for e in newton) else None


def _is_native(equations: Equations) -> bool:
    return bool(equations.compiled) and driver.driver() is not None


def _is_dense(equations: Equations, linear_solver: LinearSolver) -> bool:
    return structure_of(equations, backward=False, wanted=linear_solver).kind == "dense"


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
        self._marchers: dict[int, Marcher] = {}
        self._tested: set[int] = set()  # equations whose multipliers are in the error test
        self.auto: dict[int, str] = {}  # what method="auto" has chosen, by equations

    # -- memories -------------------------------------------------------------------------------------

    def _lease(self, equations: Equations, purpose: tuple[Any, ...]) -> Any:
        own = (id(equations), purpose)
        if own in self._leased:
            return self._leased[own]
        options = self.options
        key = ("sundials", options.linear_solver, *purpose)
        idle = equations.kept.setdefault(key, [])
        backend: Any = compiled if _is_native(equations) else interpreted
        try:
            memory = idle.pop()
        except IndexError:
            if purpose[0] == "forward":
                memory = Forward(equations, options, purpose[1], purpose[2], backend)
            elif purpose[0] == "discrete":
                memory = DiscreteAdjoint(equations, self._wrt, Table.of(order_of(options)))
            else:
                memory = Adjoint(equations, options, purpose[1], self._wrt, backend)
        if purpose[0] == "discrete":
            pass
        elif purpose[0] == "forward":
            suppress = options.suppress_algebraic or (equations.constrained and id(equations) not in self._tested)
            memory.configure_run(options, self.parameters, self._directions, self._scales, suppress=suppress)
        else:
            memory.configure_run(options, self.parameters)
        memory.pool = idle
        self._base[id(memory)] = memory.model.counters()
        self._leased[own] = memory  # last: an interrupt may come anywhere
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
        """Give the memories back to their pools."""
        while self._leased:  # one that an interrupt meets on its way is given up
            _, memory = self._leased.popitem()
            memory.pool.append(memory)
        while self._marchers:
            _, marcher = self._marchers.popitem()
            marcher.pool.append(marcher)

    def statistics(self) -> dict[str, int]:
        """Counters, in SciPy's names where SciPy has one."""
        counts = Counter(self.counts)
        for memory in self._leased.values():
            counts.update(self._since_lease(memory))
        return statistics_of(counts) | {
            name: count for name, count in counts.items() if name.endswith((" factorisations", " solutions"))
        }

    def turns(self) -> list[tuple[Equations, Turn]]:
        """See `dae_hybrid.integrator.Session.turns`."""
        for (_, purpose), memory in self._leased.items():
            if purpose[0] == "forward":
                self._turns += [(memory.equations, turn) for turn in memory.stepper.take_turns()]
        return self._turns

    # -- forwards -------------------------------------------------------------------------------------

    def integrate(self, task: SegmentTask) -> SegmentOutcome:
        """See `dae_hybrid.integrator.Session.integrate`."""
        passage = self._pass(task, None)
        if passage.outcome is None:
            raise passage.error or AssertionError("neither outcome nor error")
        return passage.outcome

    def march(self, task: SegmentTask, journey: Journey) -> Passage:
        """See `dae_hybrid.integrator.Session.march`."""
        if not self._can_march(task, journey):
            return self._pass(task, None)
        if journey.t_eval is not None:
            task = replace(task, t_eval=journey.t_eval, record="steps" if journey.t_eval.size else "nothing")
        return self._pass(task, journey)

    def _pass(self, task: SegmentTask, journey: Journey | None) -> Passage:
        """One way forward; where steps have become too small once more, in another way, from where that began."""
        self.counts["segments"] += 1
        method = task.method or self.method_for(task)
        if is_short(task.t0, task.t_stop):
            mode = 0 if journey is None else journey.mode
            return Passage(None, mode, task, standing_still(task, method))
        passage = self._go(task, method, journey)
        while isinstance(passage.error, IntegrationError):
            _advise(passage.error, passage.task.equations)
            if not isinstance(passage.error, StepSizeError):
                break
            other = self._other_way(passage.task, passage.method)
            if other is None:
                break
            passage = replace(self._go(passage.task, other, None), leg=passage.leg, mode=passage.mode)
        return passage

    def _go(self, task: SegmentTask, method: str, journey: Journey | None) -> Passage:
        marcher: Marcher | None = None
        if journey is not None:
            count = 0 if task.sensitivities is None else len(task.sensitivities)
            marcher = self._marcher(journey.network, count)
        course = Course(self, task, method, marcher, journey)
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

    @staticmethod
    def _can_march(task: SegmentTask, journey: Journey) -> bool:
        links = journey.network.links[journey.mode]
        if task.record == "dense" or any(e.unwatched for e in journey.network.equations):
            return False
        return any(link is not None for link in links) and SundialsSession._ready()

    @staticmethod
    def _ready() -> bool:
        return driver.driver() is not None

    def _marcher(self, network: Network, n_directions: int) -> Marcher:
        if n_directions not in self._marchers:
            idle = network.kept.setdefault(("sundials", n_directions), [])
            try:
                self._marchers[n_directions] = idle.pop()
            except IndexError:
                self._marchers[n_directions] = Marcher(network, n_directions)
            self._marchers[n_directions].pool = idle
        return self._marchers[n_directions]

    def _other_way(self, task: SegmentTask, method: str) -> str | None:
        """The method to try where steps have become too small, with what else is changed; None for no other way.

        Multipliers stay out of the error test (`constrained`), and steps are those for y alone: where they enter
        nonlinearly Newton's method may not find them any more, at some tolerances.
        """
        e, key = task.equations, id(task.equations)
        untested = e.constrained and e.implicit and e.index == 1 and not self.options.suppress_algebraic
        if untested and key not in self._tested:
            self._tested.add(key)
            return method
        if task.method or self.options.method != "auto" or method == "bdf":
            return None
        self.auto[key] = "bdf"
        return "bdf"

    def method_for(self, task: SegmentTask) -> str:
        """Explicit steps for explicit equations that are not stiff where the segment starts, else BDF."""
        e = task.equations
        if self.options.method == "erk" and not _is_native(e):
            raise UnsupportedError(
                "method='erk' needs compiled equations, and these are not.",
                mode=e.name,
                remedy="Install a C compiler, build with native=True, or use method='adams'.",
            )
        if self.options.method != "auto":
            return self.options.method
        if id(e) not in self.auto:
            stiff = e.implicit or is_stiff(e, task.t0, task.x0, task.memory, self.parameters, task.t_stop)
            self.auto[id(e)] = "bdf" if stiff else EXPLICIT if _is_native(e) else "adams"
        return self.auto[id(e)]

    def forward_memory(self, task: SegmentTask, method: str) -> Forward:
        """The memory for a task, ready to begin it."""
        n_directions = 0 if task.sensitivities is None else len(task.sensitivities)
        detail: Any = self.options.sensitivity_method if n_directions else None
        if method == "erk":  # ARKODE makes room for the stages of one table
            detail = order_of(self.options)
        memory: Forward = self._lease(task.equations, ("forward", method, n_directions, detail))
        return memory

    # -- backwards ------------------------------------------------------------------------------------

    def backward(self, task: BackwardTask) -> BackwardOutcome:
        """See `dae_hybrid.integrator.Session.backward`."""
        self.counts["segments"] += 1
        forward, k = task.forward, len(task.components)
        e, n_wrt = forward.equations, len(self._wrt)
        if is_short(forward.t0, forward.end) or (task.path is not None and not len(task.path)):
            count = 0 if task.t_eval is None else task.t_eval.size
            samples = np.tile(task.adjoints, (count, 1, 1)) if count else np.zeros((0, k, e.n))
            return BackwardOutcome(task.adjoints, np.zeros((k, n_wrt)), np.zeros((k, e.n_memory)), samples)
        explicit = str(forward.method) == "erk"
        if explicit and task.path is not None and task.t_eval is None:
            found_by_steps = self._back_by_steps(task, task.path)
            if found_by_steps is not None:
                return found_by_steps
        kept = None if explicit else task.path
        path = np.ascontiguousarray(self.integrate(forward).rows if kept is None else kept)
        found = [self._back(task, j, path) for j in range(k)]
        adjoints, integrals = (np.array([result[i] for result in found]) for i in range(2))
        samples = np.stack([result[2] for result in found], axis=1)
        return BackwardOutcome(adjoints, integrals[:, :n_wrt], integrals[:, n_wrt:], samples)

    def _back_by_steps(self, task: BackwardTask, path: Array) -> BackwardOutcome | None:
        """The exact adjoint of the steps of a Runge-Kutta method; None where they cannot resolve it."""
        e, n_wrt = task.forward.equations, len(self._wrt)
        discrete = self._discrete(e, task.components, task.tolerances())
        with discrete.model.interruptible():
            flag = discrete.back(path, task.forward.memory, task.adjoints)
        self.counts["steps"] += int(discrete.struct.steps)
        if flag:
            return None
        adjoints, totals = discrete.adjoint.copy(), discrete.totals.copy()
        samples = np.zeros((0, len(adjoints), e.n))
        return BackwardOutcome(adjoints, totals[:, :n_wrt], totals[:, n_wrt:], samples)

    def _discrete(self, equations: Equations, components: tuple[int, ...], tolerances: Tolerances) -> DiscreteAdjoint:
        found: DiscreteAdjoint = self._lease(equations, ("discrete", order_of(self.options), self._wrt))
        found.choose(components, self.parameters, tolerances, self.options.max_steps - self.counts["steps"])
        return found

    def sweep(
        self, leg: Leg, adjoints: Array, components: tuple[int, ...], tolerances: Callable[[int], Tolerances],
        measured: Array,
    ) -> LegAdjoint | None:  # fmt: skip
        """See `dae_hybrid.integrator.Session.sweep`."""
        modes = sorted(leg.methods)
        if any(mode not in leg.paths for mode in modes):
            return None
        marcher = self._marcher(leg.network, leg.n_directions)
        marcher.look_back(self.parameters, leg.begin)
        discrete, integrated = {}, {}
        for mode in modes:
            e, method = leg.network.equations[mode], leg.methods[mode]
            if method == "erk":
                discrete[mode] = self._discrete(e, components, tolerances(mode))
                continue
            integrated[mode] = [self._lease(e, ("adjoint", method, self._wrt, j)) for j in range(len(components))]
            for j, memory in enumerate(integrated[mode]):
                memory.use(tolerances(mode), j)
        left = self.options.max_steps - self.counts["steps"]
        precision = self.options.rtol / ROUNDED
        found, steps = LegSweep(marcher, leg, discrete, integrated, self._wrt, components).run(
            adjoints, measured, precision, left
        )
        for mode, memories in integrated.items():
            if found is None:
                for j in range(len(memories)):
                    purpose = ("adjoint", leg.methods[mode], self._wrt, j)
                    self._discard((id(leg.network.equations[mode]), purpose))
        self.counts["steps"] += steps
        self.counts["segments"] += leg.count
        return found

    def _back(self, task: BackwardTask, j: int, path: Array) -> tuple[Array, Array, Array]:
        """The adjoint of one component along a path: at t0, its integrals, samples."""
        e, method = task.forward.equations, str(task.forward.method)
        method = "adams" if method == "erk" else method
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
            "Index 2 as it stands has its limits at tight tolerances: build with index2='reduced' (the default), or "
            "loosen rtol."
        )
