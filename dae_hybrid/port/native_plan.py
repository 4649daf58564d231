"""The interface of native events and native runs.

An integrator with a compiled loop receives a `TransitionGraph` of the modes and a first segment. It handles an event
natively if the transition is regular: a single guard crosses, the state after it is explicit or the well-determined
solution of equations, and no guard fires or is past its threshold on entry into the next mode; without derivatives one
condition may become true and fire, if its transition is regular, too. All other events are left to the automaton, which
resumes from there. An integrator without such a loop integrates one segment at a time
(`segment_rules.one_segment`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.codegen.kernels import NativeFunction
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.numerics.crossings import Turn
from dae_hybrid.options import Options
from dae_hybrid.port.integrator import Equations, SegmentOutcome, SegmentTask

if TYPE_CHECKING:
    from dae_hybrid.errors import DaeHybridError
    from dae_hybrid.port.point import StatePoint
    from dae_hybrid.port.record_table import RecordTable


@dataclass(frozen=True, eq=False)
class NativeTransition:
    """A transition that the native loop can apply.

    The functions have the inputs ``(t, x, m, p, clock, xi)``, with the integrator's x before and the `unknowns` xi.
    Their outputs are dense, except for w after by (w, p, t):

    ======== ===========================================================================================
    begin    xi with continuous z; otherwise the initial guess of Newton's method
    solve    Phi, by xi with the dependent memory, the sizes of the terms of that and of Phi
    cross    (y, z) before and its rates, the guards there, their rates and sizes; (y, z) after, the memory after,
             rates, guards, their rates and sizes after; z by y after and k_z, if that may be singular; the distance by
             which y is projected onto the constraints after
    tangent  h by (w, p, t); w after by (w, p, t), at fixed time; rates of w and integrands before, and after; the
             `others` of the constraints after by w after, and by (p, t); D of the constraints before, and these by
             (w, p), see `ModeSystem.onto_constraints`. With `slopes`, w after is differentiated at fixed xi, and there
             follow Phi by (w, p, t), w after by xi, and if xi is `simple` continuous z by (w, p, t), otherwise the
             sizes of the terms of Phi by xi, entry by entry
    cost     costs of all functionals, their derivatives by (w, p, t), and with `slopes` by xi, if there are costs
    ======== ===========================================================================================

    w = (y, m); Phi(xi) = 0 are the equations for the state after the transition, see `TransitionMap`.

    The links of a mode's transitions are followed by one for measurements, at which the point is recorded, and one for
    knots, at which the memory of signals changes. They keep the mode, have no `tangent`, and only the first five
    outputs of `cross`; for knots there is `solve` if the integrator has z, which are then the unknowns.
    """

    cross: NativeFunction
    tangent: NativeFunction | None
    target: int
    cost: NativeFunction | None = None
    permit: NativeFunction | None = None  # not 0 if the transition may fire; otherwise that without effect does
    sides: NativeFunction | None = None  # margins of the relations in that condition, and these by (t, x, m, p)
    begin: NativeFunction | None = None
    solve: NativeFunction | None = None
    unknowns: int = 0
    simple: bool = True  # the unknowns are z after only
    slopes: bool = False  # derivatives depend on those of the unknowns
    others: int = 0  # constraints after it that are not among the equations solved
    numbers: Array = field(default_factory=lambda: np.zeros(0))  # a further input, after all others


#: positions after the links of transitions
MEASURES, TURNS = 0, 1


class MeasurementFunctions(NamedTuple):
    """A measurement: a function for every mode in which it is defined, its data, and its components.

    The functions have the inputs ``(t, x, m, p, clock, data)``, with the integrator's x or (y, z), and return the value
    and its derivatives by (y, m, p, t), dense.
    """

    of_mode: tuple[NativeFunction | None, ...]
    data: Array
    components: slice  # of all functionals


@dataclass(frozen=True, eq=False)
class BoundaryFunctions:
    """Functions of the start, the end and the measurements of a run, for native runs.

    The functions have the inputs ``(t, x, m, p)``, with the integrator's x, and dense outputs:

    ====== ==============================================================================================
    origin (y, z), m, rates of (y, z), the guards, their rates and sizes; d(y, m)/dp. Depends on t and p only
    final  (y, z) and its rates, the guards, their rates and sizes; the terminal values of the functionals, their
           derivatives by u = (y, z, m, p, t) and by (y, m, p, t); the contributions of the state to them and to the
           integrands, to first order
    ====== ==============================================================================================

    `mode` is the initial mode; `final` is by mode. Without `origin` its outputs are computed before the run, see
    `InitialMap.numbers`. `moves` returns the derivatives of the times of the first measurements by p, (n_parameters,
    count), up to the last that is not fixed.
    """

    mode: int
    origin: NativeFunction | None
    final: tuple[NativeFunction, ...]
    measured: tuple[MeasurementFunctions, ...] = ()
    moves: NativeFunction | None = None


@dataclass(frozen=True, eq=False)
class TransitionGraph:
    """The equations of all modes, and the links between them.

    For each mode there is a link for every transition, one for measurements and one for knots; any of them may be None.
    `guarded` are the transitions with guards, `timed` those with times, `untaken` those without effect that replace
    others of these, in the order of the links; `sizes` are those of (y, z) and `constraints` the numbers of constraints
    on y, by mode; the others are by transition. `triggers` are the transitions whose triggers they have. Periodic
    transitions with the same non-negative number in `clocks` share a clock. `entries` are the positions of all signals
    in the memory.
    """

    equations: tuple[Equations, ...]
    guarded: tuple[tuple[int, ...], ...]
    timed: tuple[tuple[int, ...], ...]
    untaken: tuple[tuple[int, ...], ...]
    triggers: tuple[int, ...]
    shared: tuple[int, ...]  # number of the statement that it shares with those of other modes, or -1
    clocks: tuple[int, ...]  # negative for a transition with a guard
    directions: tuple[int, ...]
    waits: tuple[bool, ...]
    toggles: tuple[bool, ...]  # changes the side of a relation
    jumps: tuple[bool, ...]  # the guard may jump across zero
    keeps: tuple[bool, ...]  # the guard stays zero after the transition
    becomes: tuple[bool, ...]  # it also fires if another transition makes the guard negative
    fixed: tuple[bool, ...]  # the time of the transition is given, independent of parameters
    sizes: tuple[int, ...]
    constraints: tuple[int, ...]
    links: tuple[tuple[NativeTransition | None, ...], ...]
    entries: NDArray[np.int64]
    shifted: bool = False  # times of measurements depend on parameters
    ends: BoundaryFunctions | None = None  # if runs can start and end natively
    cache: dict[Any, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def links_anything(self) -> bool:
        """Whether there is any link."""
        return any(link is not None for links in self.links for link in links)

    @cached_property
    def measures(self) -> bool:
        """Whether there are links for measurements."""
        return self._has(MEASURES)

    @cached_property
    def turns(self) -> bool:
        """Whether there are links for knots."""
        return self._has(TURNS)

    def _has(self, kind: int) -> bool:
        return any(links[len(own) + kind] is not None for links, own in zip(self.links, self.exits, strict=True))

    @cached_property
    def n_unknowns(self) -> int:
        """Number of unknowns in a record: the most of any transition with unknowns other than z."""
        links = (link for links in self.links for link in links if link is not None)
        return max((link.unknowns for link in links if not link.simple), default=0)

    @cached_property
    def charges(self) -> bool:
        """Whether a linked transition has a cost."""
        return any(link is not None and link.cost is not None for links in self.links for link in links)

    @cached_property
    def exits(self) -> tuple[tuple[int, ...], ...]:
        """The transitions of every mode, in the order of its links."""
        own = zip(self.guarded, self.timed, self.untaken, strict=True)
        return tuple(guarded + timed + untaken for guarded, timed, untaken in own)


class Knots(NamedTuple):
    """Knots of all signals, in order: times (n,), new memory values (n, n_entries), and their derivatives.

    The derivatives are along the directions of the sensitivities, (n, d, n_entries). The list is complete up to
    `until`.
    """

    times: Array
    values: Array
    directions: Array
    until: float


class MemoryBound(NamedTuple):
    """Memory bound of a run in bytes: for paths, and for `records` and `rows` if these count.

    Beyond it only checkpoints are stored, see `dae_hybrid.simulation.checkpoints`.
    """

    size: float = np.inf
    records: bool = False
    rows: bool = False

    def counted(self, records: int, rows: int, paths: int) -> int:
        """Return the bytes that count."""
        return paths + self.records * records + self.rows * rows


#: no limit
UNBOUNDED = MemoryBound()


class Alarms(NamedTuple):
    """Due times of the time events, measurements and knots of a mode, in order: times, links, and counts.

    The count of an `every=` is the number of periods, of a measurement its index, of a knot its index in the list.
    """

    times: Array
    links: NDArray[np.int64]
    counts: NDArray[np.int64]


class Listed(NamedTuple):
    """The alarms of runs by mode, arrays of shape (N, n), or (1, n) if they are the same in all runs.

    They are complete up to `until`, (N,) or (1,); NaN if a time is not finite or a period not positive.
    """

    alarms: tuple[Alarms, ...]
    until: Array


@dataclass(slots=True)
class RunContext:
    """Context of a run for native events.

    `recent` are the times of the latest events, `ranges` the largest magnitudes of each transition's guard and
    `stayed_at_zero` whether it has stayed at zero; the integrator updates them. With `certify` an event is handled
    natively only if its derivatives exist, and is marked if they need no further checks; `slack` is then the accuracy
    of times relative to the elapsed time. `start` is the complete (y, z) and its rates, `directions` (d, n_parameters)
    are those of the sensitivities.

    `alarms` are by mode, including the next one, at the stop time of the first segment; the integrator continues to
    `t_stop`, with outputs at `t_eval` until then.

    If the `bound` is exceeded, the integrator stops after an event or a knot. `replayed` is a record table to be
    recomputed: it is repeated identically, to its end and no further.
    """

    graph: TransitionGraph
    mode: int
    span: tuple[float, float]
    max_events: int
    start: tuple[Array, Array]
    recent: list[float]
    ranges: Array
    stayed_at_zero: NDArray[np.int64]
    directions: Array
    t_stop: float
    t_eval: Array | None = None
    alarms: tuple[Alarms, ...] = ()
    knots: Knots | None = None
    certify: bool = False
    slack: float = 0.0
    bound: MemoryBound = UNBOUNDED
    replayed: RecordTable | None = None


class RunRequest(NamedTuple):
    """Request of a native run.

    `directions` (d, n_parameters) with their `scales` are those of the sensitivities, if any; `t_eval` and `keep_path`
    are as in `SegmentTask`, `certify` and `slack` as in `RunContext`. `alarms` hold the time events and are complete up
    to `t_stop`. If the `bound` is exceeded, the run pauses. `start` are the outputs of a missing
    `BoundaryFunctions.origin`. `waiting` are times and indices of the measurements, in order, `knots` those of signals.
    """

    options: Options
    parameters: Array
    span: tuple[float, float]
    t_eval: Array | None
    directions: Array | None
    scales: Array | None
    certify: bool
    slack: float
    keep_path: bool
    alarms: tuple[Alarms, ...] = ()
    t_stop: float = np.inf
    bound: MemoryBound = UNBOUNDED
    start: Array | None = None
    waiting: Sequence[tuple[float, int]] = ()
    knots: Knots | None = None

    def is_like(self, other: RunRequest) -> bool:
        """Whether the other request differs in the parameters only; False with output times."""
        same = self.options is other.options and self.span == other.span and self.alarms is other.alarms
        same = same and self.keep_path == other.keep_path and self.certify == other.certify
        same = same and self.bound == other.bound and self.knots is other.knots
        if not same or self.t_eval is not None or other.t_eval is not None:
            return False
        if self.directions is None or other.directions is None or self.scales is None or other.scales is None:
            return self.directions is other.directions
        return np.array_equal(self.directions, other.directions) and np.array_equal(self.scales, other.scales)

    def context(
        self, graph: TransitionGraph, mode: int, ranges: Array, stayed_at_zero: NDArray[np.int64]
    ) -> RunContext:
        """Return the context of the start, with arrays that the integrator updates."""
        none = np.zeros(0)
        directions = np.zeros((0, self.parameters.size)) if self.directions is None else self.directions
        return RunContext(
            graph, mode, self.span, self.options.max_events, (none, none), [], ranges, stayed_at_zero, directions,
            min(self.span[1], self.t_stop), self.t_eval, self.alarms, self.knots, certify=self.certify,
            slack=self.slack, bound=self.bound,
        )  # fmt: skip


type NativeSegments = tuple[RecordTable | None, SegmentTask, SegmentOutcome]


class RawRun(Protocol):
    """Data of a native run that the integrator owns."""

    @property
    def sensitivities(self) -> Array | None:
        """Sensitivities of (x, q) at the end, (d, n + k)."""

    def segments(self, start: StatePoint, by_p: Array, end: StatePoint) -> NativeSegments:
        """Return record table, last task and last outcome of the run with this start and end."""

    def forget_paths(self) -> None:
        """Drop the paths, which only an adjoint needs."""


@dataclass(eq=False)
class NativeRun:
    """A run that the native loop completed from start to end.

    `start` and `end` are its end points, `by_p` (n_w, n_parameters) is d(y, m)/dp at the start; `mode` and `t` are
    those of the end. `integrals` are those of the functionals, `values` their values and `gradient` (n_functionals, d)
    their derivatives along the directions. `statistics` are those of a session, `stayed_at_zero` says by transition
    whether its guard stayed at zero (None if no guard did), `is_certified` whether the derivatives of no event need
    further checks. `turns` are as in `Session.turns`, `n_events` is the number of events. `raw` is owned by the
    integrator.
    """

    request: RunRequest
    start: StatePoint
    by_p: Array
    mode: int
    t: float
    end: StatePoint
    integrals: Array
    values: Array
    gradient: Array
    statistics: dict[str, int]
    stayed_at_zero: NDArray[np.int64] | None
    is_certified: bool
    turns: list[tuple[Equations, Turn]]
    n_events: int
    raw: RawRun = field(repr=False)

    @cached_property
    def segments(self) -> NativeSegments:
        """Record table of all segments but the last, if any, and task and outcome of the last one."""
        return self.raw.segments(self.start, self.by_p, self.end)

    def forget_paths(self) -> None:
        """Drop the paths, which only an adjoint needs."""
        self.raw.forget_paths()
        self.__dict__.pop("segments", None)  # refers to the paths, and is recomputed on access


@dataclass(frozen=True, slots=True)
class NativeGradient:
    """The gradient (k, n_wrt) of a native run, and the adjoint before its events.

    adjoint_at_events (n_events, k, width + n_wrt), if requested, holds dG/d(y, m), in `width` columns, and the
    contribution to the gradient from there on.
    """

    gradient: Array
    adjoint_at_events: Array | None
    width: int
    statistics: dict[str, int]


@dataclass(frozen=True, slots=True)
class SegmentRun:
    """Record table of native events, if any, and the segment after them.

    The segment has a mode, a task, and an outcome or an error; it has neither if the integrator stopped at the end of
    the record table.
    """

    table: RecordTable | None
    mode: int
    task: SegmentTask
    outcome: SegmentOutcome | None
    error: DaeHybridError | None = None


@dataclass(frozen=True, slots=True)
class TableAdjoint:
    """dG/d(y, m) before a record table (k, n_w), dG/dp so far (k, n_wrt), and both before every event.

    adjoint_at_events (n_events, k, width + n_wrt) is present if requested; `width` is that of the largest (y, m). At a
    knot it holds the values after it.
    """

    adjoints: Array
    total: Array
    adjoint_at_events: Array | None
    width: int
