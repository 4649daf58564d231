"""The port between the mathematics and the integrators.

The core states what is to be integrated (`Equations`) and asks for one smooth segment after the other
(`SegmentTask` -> `SegmentOutcome`, `BackwardTask` -> `BackwardOutcome`) within a `Session`. An adapter
implements `Integrator` and `Session` for one solver library and knows no model, mode or transition.

Equations read ``M x' = F(t, x, m, p)`` with ``M = diag(1, ..., 1, 0, ..., 0)``: the first
`n_differential` rows are differential, the others are ``0 = F_i``. ``m`` is the memory, constant on a
segment, ``p`` the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from dae_hybrid.codegen.kernels import NativeFunction
from dae_hybrid.layout import Layout
from dae_hybrid.method import Method
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.crossings import Turn
from dae_hybrid.options import Options

if TYPE_CHECKING:
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

Record = Literal["nothing", "steps", "dense"]


@dataclass(frozen=True, eq=False)
class Equations:
    """The smooth equations of one mode, as functions with the inputs ``(t, x, m, p)``.

    `functions` holds, by name (sparse outputs in compressed columns):

    ============== =========================================================================
    flow           F, dense (n), and the integrands g, dense (n_functionals)
    jacobian       F_x and, transposed, g_x; sparse
    linearised     what `flow` gives, and F_x, F_p, F_m and, transposed, g_x, g_p, g_m; these sparse
    guards, rates  the guards and their total time derivatives along the flow (n_guards); behind the guards of
                   transitions stand quantities whose zeros end a run
    complete       x and x' that satisfy the equations to rounding, near the given x, and the last
                   Newton correction of the algebraic part, relative to the size of its terms
    sketch         where a guard needs a consistent point: the guards of transitions at x as it stands, and by how much
                   it misses the equations (for compiled code, as are the next ones)
    settle         x after one Newton correction
    slopes         rates of the guards of transitions at a consistent point
    weigh          W, dense, a column for each of those guards: one correction changes them by -W' times what x misses;
                   where W is not too large
    poles          the quantities behind the guards of transitions, and their rates, at x as it stands
    reduced        x' and g at a consistent point, where the algebraic variables are few and can be solved for within a
                   right-hand side
    pullback       with inputs v (n) and e (n_functionals) behind the others: what `flow` gives, and F_x' v + g_x' e,
                   F_p' v + g_p' e, F_m' v + g_m' e, dense; only where products with those matrices take longer.
                   Compiled, it is two functions; see `hoisting.hoisted`
    tangent        with inputs dx, dm and dp behind the others: F_x dx + F_m dm + F_p dp and the same of g, dense.
                   Compiled, it takes the `tape` first, and is there instead of `linearised` where it is cheaper
    drift          how far the differential variables are from the constraints that the solution stays on
                   (n_differential); only where there are such constraints
    ============== =========================================================================
    """

    name: str
    n: int
    n_differential: int
    n_memory: int
    n_parameters: int
    directions: tuple[int, ...]
    functions: Mapping[str, NativeFunction]
    variables: Layout
    functionals: Layout
    integrates: bool  # whether any functional has an integrand
    index: int = 1  # 2 where the algebraic rows do not determine the algebraic variables but their derivatives do
    resolution: float = np.inf  # longest time between two looks at the guards
    #: the same as machine code, with a further input c that `constants` gives from these; empty where nothing compiles
    compiled: Mapping[str, NativeFunction] = field(default_factory=dict, repr=False)
    algebraic: Layout = field(default_factory=lambda: Layout(()))  # the variables that algebraic equations determine
    n_singularities: int = 0  # how many of the guards, the last ones, are determinants: a zero of one ends a run
    unwatched: bool = False  # whether the algebraic equations may become singular without a guard that says so
    constrained: bool = False  # whether the solution stays on constraints of the differential variables alone
    #: places of the algebraic variables that are known to be no multipliers of constraints
    tested: tuple[int, ...] = ()
    #: in which they differ from those that share their functions: a further input of what is compiled, behind c
    numbers: Array = field(default_factory=lambda: np.zeros(0), repr=False)
    #: where an adapter keeps what it built for these equations, by a key of its own
    kept: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def n_guards(self) -> int:
        """Number of guards."""
        return len(self.directions)

    @property
    def algebraic_labels(self) -> tuple[str, ...]:
        """Names of what algebraic equations determine."""
        return self.algebraic.labels()

    @property
    def implicit(self) -> bool:
        """Whether there are algebraic rows."""
        return self.n > self.n_differential

    @property
    def reducible(self) -> bool:
        """Whether `reduced` is there."""
        return "reduced" in self.functions

    @property
    def is_fragile(self) -> bool:
        """Whether the matrix of the algebraic equations could become singular."""
        return self.implicit or self.n_singularities > 0


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """Integrate from (t0, x0) until `t_stop` or until a guard crosses zero in its direction.

    `integrals` are the functionals' integrals so far; error control is relative to the running total.
    `zero_band[i] > 0` marks a guard that starts at zero: it cannot fire before its magnitude has exceeded the
    band, and `departure[i]` is the sign it has to leave with (0 where unknown): leaving with the other one means
    that it crossed back within a step, which is an error. `sensitivities` (n_directions, n) are start values of
    dx, `memory_directions` (n_directions, n_memory) is constant. Output goes to `t_eval` (or every step);
    `closed_end` says whether an output time equal to `t_stop` belongs to this segment. `method` fixes the method
    by its name where it is given. With ``record="dense"`` the steps are those towards `t_stop`, and end with the one
    that reaches `until`. With `keep_path` the outcome has what the adjoint follows. `first_step` is where an explicit
    method begins, if it is not to look for one itself.
    """

    equations: Equations
    t0: float
    t_stop: float
    x0: Array
    xdot0: Array
    memory: Array
    integrals: Array
    zero_band: Array
    departure: Array
    record: Record = "steps"
    t_eval: Array | None = None
    closed_end: bool = False
    sensitivities: Array | None = None
    sensitivity_rates: Array | None = None
    memory_directions: Array | None = None
    integral_sensitivities: Array | None = None
    method: str | None = None
    until: float = np.inf
    first_step: float | None = None
    keep_path: bool = False

    @property
    def end(self) -> float:
        """Where the segment ends that is integrated again."""
        return min(self.t_stop, self.until)


@dataclass(frozen=True, slots=True)
class SegmentOutcome:
    """Where a segment ended: `crossing` is (index, value, rate) of the guard that crossed, None at `t_stop`.

    `zero_band` is positive for guards that have not left zero since the start.
    An integrator may stop earlier, to go on in another way with the next task. `method` is the one it used,
    `next_step` the step that an explicit one would have gone on with, `path` what its own `backward` can follow.

    x and x' satisfy the equations to rounding. `rows` holds one row per output: t, x and then, with
    sensitivities, dx for every direction; for ``record="dense"`` see `Interpolant`.
    """

    t: float
    x: Array
    xdot: Array
    crossing: tuple[int, float, float] | None
    zero_band: Array
    method: Method | str
    integrals: Array
    rows: Array
    sensitivities: Array | None = None
    integral_sensitivities: Array | None = None
    next_step: float | None = None
    path: Array | None = None


class Tolerances(NamedTuple):
    """Of the adjoints (k, n) and of their integrals (k, n_wrt + n_memory), absolute, and of both relative."""

    absolute: Array
    integrals: Array
    rtol: float


@dataclass(frozen=True, slots=True)
class BackwardTask:
    """The adjoint of one segment, one problem per functional component.

    `forward` is the segment itself, with ``record="dense"`` and its end: integrated again it takes the steps of the
    run, and the adjoint follows the solution of the run, not another one that is as accurate. `path` is what the run
    kept of that, if anything. `components` (k) are the functional components, `adjoints` (k, n) and `adjoint_rates`
    (k, n) consistent values at the end; `tolerances` gives those of an integration. `t_eval`, decreasing, asks for the
    adjoint at these times.
    """

    forward: SegmentTask
    components: tuple[int, ...]
    adjoints: Array
    adjoint_rates: Array
    tolerances: Callable[[], Tolerances]
    t_eval: Array | None = None
    path: Array | None = None


@dataclass(frozen=True, slots=True)
class BackwardOutcome:
    """Adjoints dG/dy at `t0` and the integrals of SR eq. 33 to 35 over the segment.

    adjoints (k, n_differential), parameter_integrals (k, n_wrt), memory_integrals (k, n_memory),
    samples (len(t_eval), k, n_differential).
    """

    adjoints: Array
    parameter_integrals: Array
    memory_integrals: Array
    samples: Array


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an adapter does itself; what it does not do comes from the core, but for methods and the index.

    Parameters
    ----------
    methods : tuple of Method or str
        What ``method=`` may name; of one that is given as a string nothing else is known.
    roots : bool
        Finds zeros of guards while it integrates. Else they are located from outside.
    algebraic : tuple of str
        Those methods that integrate algebraic equations (Hessenberg index 1 and fully implicit modes). Without any,
        they are solved for within the right-hand side.
    reduced : tuple of str
        Those that integrate some of them by solving for the algebraic variables (`Equations.reducible`).
    dense : bool
        Has an interpolant between its steps.
    forward, adjoint : bool
        Has sensitivity analysis of its own. Else it is handed the augmented or adjoint system as another problem.
    index2 : bool
        Integrates index 2 as it stands (``build(index2="direct")``). Else such systems are refused.
    linear_solvers : tuple of str
        Values of ``linear_solver=`` that it takes; ``"auto"`` leaves the choice to the adapter.
    whole : bool
        Begins runs by itself, and carries them to their end where it can: its sessions are `RunsWhole`.
    """

    methods: tuple[Method | str, ...]
    roots: bool = False
    algebraic: tuple[str, ...] = ()
    reduced: tuple[str, ...] = ()
    dense: bool = False
    forward: bool = False
    adjoint: bool = False
    index2: bool = False
    linear_solvers: tuple[str, ...] = ("auto",)
    whole: bool = False

    @property
    def named(self) -> dict[str, Method]:
        """The methods by their names."""
        return {method.name: method for method in map(Method.of, self.methods)}


class Session(Protocol):
    """Integrates segments for one run: one set of parameters, one set of options, one thread."""

    def integrate(self, task: SegmentTask) -> SegmentOutcome:
        """Carry out one segment; a failure is an `IntegrationError` with the `rows` so far."""

    def march(self, task: SegmentTask, context: RunContext) -> SegmentRun:
        """Carry out a segment, and go on through plain transitions as far as it can; just one segment will do."""

    def backward(self, task: BackwardTask) -> BackwardOutcome:
        """Carry out the adjoint of one segment."""

    def sweep(
        self, table: RecordTable, adjoints: Array, total: Array, components: tuple[int, ...],
        tolerances: Callable[[int], Tolerances], measured: Array, *, marked: bool,
    ) -> TableAdjoint | None:  # fmt: skip
        """Carry dG/d(y, m), (k, n_w), back through a record table of its own; None where that is left to the core.

        `total` (k, n_wrt) is dG/dp so far, and `marked` says whether marks are wanted. `tolerances` gives those of an
        integration in a mode; measured (n, k, record table.width + n_wrt) is what the measurements of the record table
        add to dG/d(y, m) and to dG/dp.
        """

    def statistics(self) -> dict[str, int]:
        """Counters of the session so far."""

    def turns(self) -> list[tuple[Equations, Turn]]:
        """Where guards have turned next to zero so far: candidates, the closest ones where there are many."""

    def close(self) -> None:
        """Give back what the session holds."""


@runtime_checkable
class HasLoops(Protocol):
    """What drives compiled equations with compiled loops of its own."""

    @staticmethod
    def loops() -> str:
        """Their C text, which no model changes."""


class RunsWhole(Session, Protocol):
    """A session that begins runs by itself, and comes to their end where it can."""

    def run(self, graph: TransitionGraph, request: RunRequest) -> NativeRun | None:
        """Carry out a run, or a part of it: None where it has not come to its end.

        The first call of `march` then goes on from where it has paused, if it has begun.
        """

    def back(
        self,
        graph: TransitionGraph,
        run: NativeRun,
        components: tuple[int, ...],
        wrt: tuple[int, ...],
        *,
        marked: bool,
    ) -> NativeGradient | None:
        """Carry the adjoint back from the end of a run to its start; None where that is left to the core.

        `marked` says whether marks are wanted.
        """


class Integrator(Protocol):
    """A solver library behind the port."""

    name: str
    capabilities: Capabilities

    def open(
        self,
        options: Options,
        parameters: Array,
        *,
        parameter_directions: Array | None = None,
        scales: Array | None = None,
        wrt: Sequence[int] = (),
    ) -> Session:
        """Open a session; `parameter_directions` (n_directions, n_parameters) switches sensitivities on."""
