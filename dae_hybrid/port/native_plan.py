"""The part of the port by which an integrator goes through plain transitions by itself.

An integrator with a compiled loop is handed a `TransitionGraph` of modes with a segment to begin with. It goes on
where a transition is plain: one guard alone crosses, the state after it is given explicitly or by equations that
determine it beyond doubt, and nothing fires or is past its threshold where the next mode is entered. Whatever is not
plain it leaves to the automaton, which goes on from there. One that has no such loop carries out one segment at a time
(`segment_rules.one_segment`).
"""

from __future__ import annotations

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
    """A transition that an integrator may carry out where it is plain.

    The functions have the inputs ``(t, x, m, p, clock, xi)``, with the integrator's x before and the `unknowns` xi, and
    dense outputs:

    ======== ===========================================================================================
    begin    xi with continuous z; where Newton's method starts else
    solve    Phi, by xi with the memory following, the sizes of the terms of that and of Phi
    cross    (y, z) before and its rates, the guards there, their rates and sizes; (y, z) after, the memory after,
             rates, guards, their rates and sizes after; z by y after, where that could become singular; how far y is
             moved onto the constraints after
    tangent  h by (w, p, t); w after by (w, p, t), at fixed time; rates of w and integrands before, and after; the
             `others` of the constraints after by w after, and by (p, t); D of the constraints before, and these by
             (w, p), see `ModeSystem.onto_constraints`. With `slopes` xi is held for w after, and there follow Phi by
             (w, p, t), w after by xi, and continuous z by (w, p, t) where xi is `simple`, the sizes of the terms of
             Phi by xi, entry by entry, where it is not
    cost     costs of all functionals, their derivatives by (w, p, t), and with `slopes` by xi, where there are any
    ======== ===========================================================================================

    w = (y, m); Phi(xi) = 0 are the equations of the arrival, see `TransitionMap`.

    Behind those of transitions a mode has a link for measurements, where the point is recorded and no more, and one for
    knots, where the memory of signals changes. They lead nowhere, have no `tangent`, and of `cross` the first five
    outputs; for knots there is `solve` where the integrator has z, which are then the unknowns.
    """

    cross: NativeFunction
    tangent: NativeFunction | None
    target: int
    cost: NativeFunction | None = None
    begin: NativeFunction | None = None
    solve: NativeFunction | None = None
    unknowns: int = 0
    simple: bool = True  # they are z after and nothing else
    slopes: bool = False  # derivatives depend on theirs
    others: int = 0  # constraints after it that are not among what is solved
    numbers: Array = field(default_factory=lambda: np.zeros(0))  # a further input, behind all others


#: which of the links behind those of transitions
MEASURES, TURNS = 0, 1


class Measured(NamedTuple):
    """A measurement: its time, a function for every mode that it has a value in, the numbers in it, and of what it is.

    The functions have the inputs ``(t, x, m, p, clock, data)``, with the integrator's x or (y, z), and give the value
    and its derivatives by (y, m, p, t), dense.
    """

    time: float
    of_mode: tuple[NativeFunction | None, ...]
    data: Array
    components: slice  # of all functionals


@dataclass(frozen=True, eq=False)
class BoundaryFunctions:
    """The start and the end of runs, and all measurements, for an integrator that carries runs out by itself.

    The functions have the inputs ``(t, x, m, p)``, with the integrator's x, and dense outputs:

    ====== ==============================================================================================
    origin (y, z), m, rates of (y, z), the guards, their rates and sizes; d(y, m)/dp. Of its inputs t and p count
    final  (y, z) and its rates, the guards, their rates and sizes; the terminal values of the functionals, their
           derivatives by u = (y, z, m, p, t) and by (y, m, p, t); how much of them, and of the integrands, the state
           makes up to first order
    ====== ==============================================================================================

    `mode` is that in which runs begin; `final` is by mode.
    """

    mode: int
    origin: NativeFunction
    final: tuple[NativeFunction, ...]
    measured: tuple[Measured, ...] = ()

    @cached_property
    def waiting(self) -> list[tuple[float, int]]:
        """The times of the measurements in order, and which they are."""
        return sorted((own.time, i) for i, own in enumerate(self.measured))

    def is_measured_within(self, span: tuple[float, float]) -> bool:
        """Whether no measurement is outside of a run."""
        return not self.measured or span[0] <= self.waiting[0][0] <= self.waiting[-1][0] <= span[1]


@dataclass(frozen=True, eq=False)
class TransitionGraph:
    """All modes' equations, and the links between them.

    For each mode there is a link for every transition, one for measurements, one for knots, or None.
    `guarded` are the transitions with guards, `timed` those with times, in the order of the links; `sizes` are those of
    (y, z) and `constraints` those that keep y, of every mode; the others are by transition. What has the same number as
    its `clock`, not negative, ticks together. `entries` are the places of all signals in the memory.
    """

    equations: tuple[Equations, ...]
    guarded: tuple[tuple[int, ...], ...]
    timed: tuple[tuple[int, ...], ...]
    clocks: tuple[int, ...]  # negative where a transition has a guard
    directions: tuple[int, ...]
    waits: tuple[bool, ...]
    toggles: tuple[bool, ...]  # changes the side of a relation
    jumps: tuple[bool, ...]  # the guard may jump across zero
    keeps: tuple[bool, ...]  # its guard is zero after it, too
    sizes: tuple[int, ...]
    constraints: tuple[int, ...]
    links: tuple[tuple[NativeTransition | None, ...], ...]
    entries: NDArray[np.int64]
    ends: BoundaryFunctions | None = None  # where runs begin and end plainly
    kept: dict[Any, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def links_anything(self) -> bool:
        """Whether there is a link."""
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
        """How many unknowns a record has room for: of transitions that have others than z."""
        links = (link for links in self.links for link in links if link is not None)
        return max((link.unknowns for link in links if not link.simple), default=0)

    @cached_property
    def charges(self) -> bool:
        """Whether a transition of a link costs anything."""
        return any(link is not None and link.cost is not None for links in self.links for link in links)

    @cached_property
    def exits(self) -> tuple[tuple[int, ...], ...]:
        """The transitions of the links of every mode."""
        return tuple(guarded + timed for guarded, timed in zip(self.guarded, self.timed, strict=True))


class Knots(NamedTuple):
    """Knots of all signals, in order: times (n,), what they write into the memory (n, n_entries), and its derivatives.

    Those are along the directions of the sensitivities, (n, d, n_entries). They are all up to one at `until`.
    """

    times: Array
    values: Array
    directions: Array
    until: float


class Bound(NamedTuple):
    """How many bytes a run keeps of its way: of paths, and of `records` and `rows` where these count, too.

    Of what goes beyond only checkpoints are kept, see `dae_hybrid.simulation.checkpoints`.
    """

    size: float = np.inf
    records: bool = False
    rows: bool = False

    def counted(self, records: int, rows: int, paths: int) -> int:
        """The bytes that count."""
        return paths + self.records * records + self.rows * rows


#: all is kept
UNBOUNDED = Bound()


class Alarms(NamedTuple):
    """When the time events, measurements and knots of a mode are due, in order: times, links, and counts.

    That of an `every=` is after how many periods, of a measurement which one, of a knot which of those that are listed.
    """

    times: Array
    links: NDArray[np.int64]
    counts: NDArray[np.int64]


@dataclass(slots=True)
class RunContext:
    """What a run is within and has been through, for an integrator that carries out plain transitions by itself.

    `recent` are the times of the latest events, `ranges` how large each transition's guard has been and `rested`
    whether it has stayed at zero; the integrator goes on with them. With `certify` events are carried out only where
    their derivatives exist, and are marked where nothing about them needs a closer look; `slack` is then the accuracy
    of times relative to what has passed. `start` is the whole (y, z) and its rates, `directions` (d, n_parameters) are
    those of the sensitivities.

    `alarms` are by mode, the next of them, at the stop time of the first segment, included; the integrator goes on to
    `t_stop`, with outputs at `t_eval` until then.

    Where more is to be kept than the `bound` the integrator ends with an event, or a knot.
    `again` is a record table that has been gone through before: it is gone through in the same way, to its end and no
    further.
    """

    graph: TransitionGraph
    mode: int
    span: tuple[float, float]
    max_events: int
    start: tuple[Array, Array]
    recent: list[float]
    ranges: Array
    rested: NDArray[np.int64]
    directions: Array
    t_stop: float
    t_eval: Array | None = None
    alarms: tuple[Alarms, ...] = ()
    knots: Knots | None = None
    certify: bool = False
    slack: float = 0.0
    bound: Bound = UNBOUNDED
    again: RecordTable | None = None


class RunRequest(NamedTuple):
    """A whole run to be carried out, of parameters p.

    `directions` (d, n_parameters) with their `scales` are those of the sensitivities, if any; `t_eval` and `keep_path`
    are as in `SegmentTask`, `certify` and `slack` as in `RunContext`. Time events are due by their `alarms`, which are
    complete up to `t_stop`. Where more is to be kept than the `bound` the run pauses.
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
    bound: Bound = UNBOUNDED

    def is_like(self, other: RunRequest) -> bool:
        """Whether the other one differs in nothing but the parameters; with output times none is like another."""
        same = self.options is other.options and self.span == other.span and self.alarms is other.alarms
        same = same and self.keep_path == other.keep_path and self.certify == other.certify
        same = same and self.bound == other.bound
        if not same or self.t_eval is not None or other.t_eval is not None:
            return False
        if self.directions is None or other.directions is None or self.scales is None or other.scales is None:
            return self.directions is other.directions
        return np.array_equal(self.directions, other.directions) and np.array_equal(self.scales, other.scales)

    def context(self, graph: TransitionGraph, mode: int, ranges: Array, rested: NDArray[np.int64]) -> RunContext:
        """The context from the start on, with arrays for what is noted on the way."""
        none = np.zeros(0)
        directions = np.zeros((0, self.parameters.size)) if self.directions is None else self.directions
        return RunContext(
            graph, mode, self.span, self.options.max_events, (none, none), [], ranges, rested, directions,
            min(self.span[1], self.t_stop), self.t_eval, self.alarms, certify=self.certify, slack=self.slack,
            bound=self.bound,
        )  # fmt: skip


type Pieces = tuple[RecordTable | None, SegmentTask, SegmentOutcome]


class RawRun(Protocol):
    """What an integrator keeps of a whole run."""

    @property
    def sensitivities(self) -> Array | None:
        """Those of (x, q) at the end, (d, n + k)."""

    def pieces(self, start: StatePoint, by_p: Array, end: StatePoint) -> Pieces:
        """The segments, of the run that these belong to."""

    def forget_paths(self) -> None:
        """Let go of what only an adjoint needs."""


@dataclass(eq=False)
class NativeRun:
    """A whole run that was plain from its start to its end.

    `start` and `end` are the points there, `by_p` (n_w, n_parameters) is d(y, m)/dp at the start; `mode` and `t` are
    those of the end. `integrals` are those of the functionals, `values` their values and `gradient` (n_functionals, d)
    their derivatives by the directions. `statistics` are those of a session, `rested` says by transition whether its
    guard stayed at zero, if any did, `is_certified` whether no event needs a closer look. `turns` are as in
    `Session.turns`, `n_events` is how many events there were. `left` is the integrator's.
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
    rested: NDArray[np.int64] | None
    is_certified: bool
    turns: list[tuple[Equations, Turn]]
    n_events: int
    left: RawRun = field(repr=False)

    @cached_property
    def pieces(self) -> Pieces:
        """All segments but the last with their events, if any, and the task and the outcome of the last."""
        return self.left.pieces(self.start, self.by_p, self.end)

    def forget_paths(self) -> None:
        """Let go of what only an adjoint needs."""
        self.left.forget_paths()
        self.__dict__.pop("pieces", None)  # they have it too, and can be made again


@dataclass(frozen=True, slots=True)
class NativeGradient:
    """The gradient (k, n_wrt) of a whole run by the parameters that were asked for, and what there was before events.

    marks (n_events, k, width + n_wrt), where they are wanted, hold dG/d(y, m), `width` numbers, and what the run from
    there on has contributed to the gradient.
    """

    gradient: Array
    marks: Array | None
    width: int
    statistics: dict[str, int]


@dataclass(frozen=True, slots=True)
class SegmentRun:
    """Plain transitions with the segments before them, if any (`record table`), and the segment that came after.

    Of that the mode, the task, and the outcome or the error it ended with; neither where the integrator has gone no
    further than the record table.
    """

    table: RecordTable | None
    mode: int
    task: SegmentTask
    outcome: SegmentOutcome | None
    error: DaeHybridError | None = None


@dataclass(frozen=True, slots=True)
class TableAdjoint:
    """dG/d(y, m) before a record table (k, n_w), dG/dp so far (k, n_wrt), and both before every event.

    marks (n_events, k, width + n_wrt), where they are wanted; `width` is that of the largest (y, m). At a knot they are
    what is after it.
    """

    adjoints: Array
    total: Array
    marks: Array | None
    width: int
