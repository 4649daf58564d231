"""The interface between the core and the integrators.

The core supplies the equations (`Equations`) and requests one smooth segment at a time (`SegmentTask` ->
`SegmentOutcome`, `BackwardTask` -> `BackwardOutcome`) within a `Session`. An adapter implements `Integrator` and
`Session` for one solver library and knows no model, mode or transition.

Equations read ``M x' = F(t, x, m, p)`` with ``M = diag(1, ..., 1, 0, ..., 0)``: the first `n_differential` rows are
differential, the others are ``0 = F_i``. ``m`` is the memory, constant on a segment, ``p`` the parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypedDict, runtime_checkable

import numpy as np

from dae_hybrid.codegen.kernels import NativeFunction
from dae_hybrid.layout import Layout
from dae_hybrid.method import Method
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.crossings import Turn
from dae_hybrid.options import Options
from dae_hybrid.port.motion import MotionEquations

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
    linearised     the outputs of `flow`, and F_x, F_p, F_m and, transposed, g_x, g_p, g_m; these sparse
    guards, rates  the guards and their total time derivatives along the flow (n_guards); the guards of transitions are
                   followed by quantities whose zeros end a run
    complete       x and x' that satisfy the equations to rounding, near the given x, and the last
                   Newton correction of the algebraic part, relative to the size of its terms
    sketch         if a guard needs a consistent point: the guards of transitions at the given x, and the residual of
                   the equations there (for compiled code, as are the next ones)
    settle         x after one Newton correction
    slopes         rates of the guards of transitions at a consistent point
    weigh          W, dense, a column for each of those guards: one correction changes them by -W' times the residual;
                   only if W is not too large
    poles          the quantities after the guards of transitions, and their rates, at the given x
    reduced        x' and g at a consistent point, if the algebraic variables are few and can be solved for within a
                   right-hand side
    pullback       with additional inputs v (n) and e (n_functionals): the outputs of `flow`, and F_x' v + g_x' e,
                   F_p' v + g_p' e, F_m' v + g_m' e, dense; only if products with those matrices are slower. Compiled,
                   it is two functions; see `hoisting.hoisted`
    tangent        with additional inputs dx, dm and dp: F_x dx + F_m dm + F_p dp and the same of g, dense. Compiled,
                   its first input is the `tape`, and it replaces `linearised` if it is cheaper
    drift          the distance of the differential variables from the constraints of the solution (n_differential);
                   only if there are such constraints
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
    index: int = 1  # 2 if only the derivatives of the algebraic rows determine the algebraic variables
    resolution: float = np.inf  # longest time between two evaluations of the guards
    #: the functions as machine code, with a further input c computed by `constants`; empty without a compiler
    compiled: Mapping[str, NativeFunction] = field(default_factory=dict, repr=False)
    algebraic: Layout = field(default_factory=lambda: Layout(()))  # the variables of the algebraic equations
    n_singularities: int = 0  # number of guards, the last ones, that are determinants: a zero of one ends a run
    clipped: bool = False  # whether flow or integrands may begin to move where no guard is zero
    unwatched: bool = False  # whether the algebraic equations may become singular unnoticed by a guard
    constrained: bool = False  # whether the solution stays on constraints of the differential variables alone
    #: positions of the algebraic variables that are known not to be multipliers of constraints
    tested: tuple[int, ...] = ()
    #: coefficients that distinguish modes with the same functions: a further input of compiled code, after c
    numbers: Array = field(default_factory=lambda: np.zeros(0), repr=False)
    #: one step of an index-3 scheme, if the mode was stated as equations of motion for it
    motion: MotionEquations | None = field(default=None, repr=False)
    #: cache for adapters, by keys of their own
    cache: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def n_guards(self) -> int:
        """Number of guards."""
        return len(self.directions)

    @property
    def algebraic_labels(self) -> tuple[str, ...]:
        """Names of the entries of the algebraic variables."""
        return self.algebraic.labels()

    @property
    def implicit(self) -> bool:
        """Whether there are algebraic rows."""
        return self.n > self.n_differential

    @property
    def reducible(self) -> bool:
        """Whether there is a function `reduced`."""
        return "reduced" in self.functions

    @property
    def is_fragile(self) -> bool:
        """Whether the matrix of the algebraic equations could become singular."""
        return self.implicit or self.n_singularities > 0


class TaskSensitivities(TypedDict, total=False):
    """Fields of a `SegmentTask` of forward analysis."""

    sensitivities: Array
    sensitivity_rates: Array | None
    memory_directions: Array
    integral_sensitivities: Array


@dataclass(frozen=True, slots=True)
class SegmentTask:
    """Integrate from (t0, x0) until `t_stop` or until a guard crosses zero in its direction.

    `integrals` are the functionals' integrals so far; error control is relative to the running total.
    `zero_band[i] > 0` marks a guard that starts at zero: it cannot fire before its magnitude has exceeded the
    band, and `leaving_sign[i]` is the sign with which it has to leave (0 if unknown): the opposite sign means that
    it crossed back within a step, which is an error. `sensitivities` (n_directions, n) are start values of
    dx, `memory_directions` (n_directions, n_memory) is constant. Outputs are at `t_eval` (or at every step);
    `closed_end` says whether an output time equal to `t_stop` belongs to this segment. `method`, if given, is the name
    of the method to use. With ``record="dense"`` the steps are those towards `t_stop`, and end with the one that
    reaches `until`. With `keep_path` the outcome contains the path for the adjoint. `first_step` is the first step of
    an explicit method; None lets it choose.
    """

    equations: Equations
    t0: float
    t_stop: float
    x0: Array
    xdot0: Array
    memory: Array
    integrals: Array
    zero_band: Array
    leaving_sign: Array
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
        """End of a repeated segment."""
        return min(self.t_stop, self.until)


@dataclass(frozen=True, slots=True)
class SegmentOutcome:
    """End of a segment: `crossing` is (index, value, rate) of the guard that crossed, None at `t_stop`.

    `zero_band` is positive for guards that have not left zero since the start. An integrator may stop earlier, to
    continue differently with the next task. `method` is the one it used, `next_step` the next step of an explicit one,
    `path` the data for its own `backward`.

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
    """Absolute tolerances of the adjoints (k, n) and of their integrals (k, n_wrt + n_memory), and rtol of both."""

    absolute: Array
    integrals: Array
    rtol: float


@dataclass(frozen=True, slots=True)
class BackwardTask:
    """The adjoint of one segment, one problem per functional component.

    `forward` is the task of the segment, with ``record="dense"`` and its end: integrated again it takes the steps of
    the run, so that the adjoint belongs to the solution of the run and not to another one of equal accuracy. `path` is
    the stored path of the run, if any. `components` (k) are the functional components, `adjoints` (k, n) and
    `adjoint_rates` (k, n) consistent values at the end; `tolerances` returns the tolerances if the adjoint is
    integrated. `t_eval`, decreasing, requests the adjoint at these times.
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
    """Capabilities of an adapter; the core supplies the missing ones, except methods and index 2.

    Parameters
    ----------
    methods : tuple of Method or str
        Legal values of ``method=``; a string stands for a method with defaults.
    roots : bool
        Locates zeros of guards during integration. Otherwise they are located by the core.
    algebraic : tuple of str
        Methods that integrate algebraic equations (Hessenberg index 1 and fully implicit modes). Without any,
        the right-hand side solves for the algebraic variables.
    reduced : tuple of str
        Methods that integrate algebraic equations by solving for the algebraic variables (`Equations.reducible`).
    dense : bool
        Has an interpolant between its steps.
    forward, adjoint : bool
        Has sensitivity analysis of its own. Otherwise it integrates the augmented or the adjoint system.
    index2 : bool
        Integrates index 2 as stated (``build(index2="direct")``). Otherwise such systems are refused.
    linear_solvers : tuple of str
        Legal values of ``linear_solver=``; ``"auto"`` leaves the choice to the adapter.
    whole : bool
        Starts runs by itself, and completes them if possible: its sessions are `RunsWhole`.
    motion : bool
        Integrates equations of motion (`Equations.motion`) and nothing else.
    fixed_steps : bool
        Takes steps of a given length (``fixed_step=``).
    exact_times : bool
        Its steps are the differences of the times at their ends. Those of other integrators add up to more or less, and
        runs in which rounding of the time matters are refused.
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
    motion: bool = False
    fixed_steps: bool = False
    exact_times: bool = False

    @property
    def named(self) -> dict[str, Method]:
        """The methods by name."""
        return {method.name: method for method in map(Method.of, self.methods)}


class Session(Protocol):
    """Integrates segments for one run: one set of parameters, one set of options, one thread."""

    def integrate(self, task: SegmentTask) -> SegmentOutcome:
        """Integrate one segment; a failure is an `IntegrationError` with the `rows` so far."""

    def run_segments(self, task: SegmentTask, context: RunContext) -> SegmentRun:
        """Integrate a segment, and continue through native events as far as possible; one segment is sufficient."""

    def backward(self, task: BackwardTask) -> BackwardOutcome:
        """Integrate the adjoint of one segment."""

    def sweep(
        self, table: RecordTable, adjoints: Array, total: Array, components: tuple[int, ...],
        tolerances: Callable[[int], Tolerances], measured: Array, sides: Mapping[int, Array], *, at_events: bool,
    ) -> TableAdjoint | None:  # fmt: skip
        """Propagate dG/d(y, m), (k, n_w), back through one of its record tables; None leaves that to the core.

        `total` (k, n_wrt) is dG/dp so far, and `at_events` requests the adjoint before every event. `tolerances`
        returns those of a mode; measured (n, k, table.width + n_wrt) are the contributions of the table's measurements
        to dG/d(y, m) and dG/dp, and `sides` those after and before its events (2, k, table.width + n_wrt), by record.
        """

    def statistics(self) -> dict[str, int]:
        """Return the counters of the session."""

    def turns(self) -> list[tuple[Equations, Turn]]:
        """Return extrema of guards close to zero so far: candidates, at most the closest ones."""

    def close(self) -> None:
        """Release the resources of the session."""


@runtime_checkable
class HasLoops(Protocol):
    """An integrator with compiled loops of its own."""

    @staticmethod
    def loops() -> str:
        """Return their C source, which is the same for all models."""


class RunsWhole(Session, Protocol):
    """A session that starts runs by itself and completes them if possible."""

    def run(self, graph: TransitionGraph, request: RunRequest) -> NativeRun | None:
        """Integrate a run, or a part of it: None if it has not reached its end.

        The first call of `run_segments` then resumes at the pause, if the run has begun.
        """

    def back(
        self,
        graph: TransitionGraph,
        run: NativeRun,
        components: tuple[int, ...],
        wrt: tuple[int, ...],
        *,
        at_events: bool,
    ) -> NativeGradient | None:
        """Propagate the adjoint from the end of a run to its start; None leaves that to the core.

        `at_events` requests the adjoint before every event.
        """


#: opens another session of a run, with its options and parameters
type OpenSession = Callable[[], Session]


class Integrator(Protocol):
    """A solver library."""

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
        """Open a session; `parameter_directions` (n_directions, n_parameters) enables sensitivities."""
