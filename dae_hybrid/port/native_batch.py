"""The interface of native batches: many runs that differ in numbers only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.codegen.kernels import NativeFunction
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.integrator import Integrator
from dae_hybrid.port.native_plan import Listed, RunRequest, TransitionGraph

type Integers = NDArray[np.int64]


class AlarmLists(Protocol):
    """The time events and measurements of all runs of a batch."""

    def listed(self, p: Array) -> Iterator[tuple[int, int, Listed]]:
        """Yield first run, last run and their alarms for parameters (N, n_p)."""


class NativeBatch(NamedTuple):
    """Runs that differ in their parameters, and in their initial values if given.

    `request` is common to all runs: with `certify` for gradients, with directions if these come from forward analysis,
    and with `keep_path` if they come from the adjoint. `wrt` are the parameters of the gradients, `components` the
    components of each functional. `integrated` says for every component of all functionals whether it has more than a
    terminal value. `origin` is that of `BoundaryFunctions` with `n_start` initial values appended to the parameters.
    Without `certify` gradients are computed whether or not their conditions hold. `timetable` holds the time events, if
    any. `starting` computes the outputs of `origin` for runs (N, n_given) if it is not compiled: (N, n), NaN in runs
    without a start. `sides` are the entries of relations in the memory.
    """

    request: RunRequest
    wrt: tuple[int, ...]
    components: tuple[tuple[int, ...], ...]
    integrated: NDArray[np.bool_]
    origin: NativeFunction | None = None
    n_start: int = 0
    certify: bool = True
    timetable: AlarmLists | None = None
    starting: Callable[[Array], Array] | None = None
    sides: tuple[int, ...] = ()

    @property
    def n_given(self) -> int:
        """Number of parameters and initial values of a run."""
        return self.request.parameters.size + self.n_start


LEFT_OUT, DONE, STEEP = range(3)


class Reason(IntEnum):
    """Reasons to leave a run to a single call; each is followed by the transition concerned, or -1."""

    NO_REASON = 0
    BAD_INPUT = 1
    AT_START = 2
    NOT_COMPILED = 3
    SPECIAL_EVENT = 4
    ACCUMULATING = 5
    TOO_MANY_EVENTS = 6
    TOO_MANY_STEPS = 7
    SLOW_OR_STIFF = 8
    FAILED_STEP = 9
    AT_END = 10
    RESTING = 11
    DOUBTFUL_EVENT = 12
    NEAR_MISS = 13
    BESIDE_START = 14
    BESIDE_TIME = 15
    INACCURATE_TIME = 16
    FAST_PASSAGE = 17
    UNRESOLVED_DIRECTIONS = 18
    FAILED_ADJOINT = 19
    AMPLIFYING = 20
    UNDECIDED_CONDITION = 21
    COARSE_TIMES = 22


#: wording of the reasons
REASONS = {
    Reason.NO_REASON: "stopped",
    Reason.BAD_INPUT: "an input or a time that is not finite, a tick next to the start, a measurement outside the span",
    Reason.AT_START: "the start: inconsistent values, a guard or a special time event that is due, or a stiff mode",
    Reason.NOT_COMPILED: "not compiled",
    Reason.SPECIAL_EVENT: "an event next to another time or guard, or after which a closer look is needed",
    Reason.ACCUMULATING: "events that may accumulate",
    Reason.TOO_MANY_EVENTS: "max_events",
    Reason.TOO_MANY_STEPS: "max_steps",
    Reason.SLOW_OR_STIFF: "a stiff mode, or slow progress",
    Reason.FAILED_STEP: "a failed step",
    Reason.AT_END: "the end: a guard or a special time event is due there",
    Reason.RESTING: "a guard that rests at zero",
    Reason.DOUBTFUL_EVENT: "an event that may touch, or coincide with another time or guard",
    Reason.NEAR_MISS: "a guard that turns next to zero",
    Reason.BESIDE_START: "a guard next to zero at the start",
    Reason.BESIDE_TIME: "an event next to another time or to the end",
    Reason.INACCURATE_TIME: "event times that amplify errors",
    Reason.FAST_PASSAGE: "a fast passage, which may lose digits",
    Reason.UNRESOLVED_DIRECTIONS: "sensitivities next to their tolerances",
    Reason.FAILED_ADJOINT: "an adjoint that needs other steps",
    Reason.AMPLIFYING: "perturbations that grow",
    Reason.UNDECIDED_CONDITION: "a condition next to its threshold",
    Reason.COARSE_TIMES: "times that are too large for the steps",
}


def worded(reason: int, transition: int, names: Sequence[str]) -> str:
    """Word a reason; `names` are those of the transitions."""
    return REASONS[Reason(reason)] + (f" (transition {names[transition]!r})" if transition >= 0 else "")


@dataclass(frozen=True, eq=False, slots=True)
class Outcomes:
    """Results of N runs, a row for each.

    `done` is DONE if the result is that of a single call, and STEEP if a single call would check the growth of
    perturbations (`amplification`). All others are left to single calls.

    `ends` and `outputs` hold (y, z), in outputs only the integrated variables, in the first columns and the memory in
    the last ones; the columns between them are unused.
    """

    done: Integers
    reasons: Integers  # (N, 2), see `Reason`
    n_events: Integers
    n_steps: Integers
    digests: Integers  # of the sequences of events, see `dae_hybrid.conditions.sequences`
    modes: Integers  # the last one
    times: Array  # the last one
    ends: Array  # (N, widest + n_memory)
    values: Array  # (N, n_functionals)
    gradients: Array  # (N, n_components, n_wrt)
    outputs: Array  # (N, n_t, widest + n_memory)
    output_modes: Integers  # (N, n_t)

    @classmethod
    def of(cls, count: int, graph: TransitionGraph, n_t: int, n_components: int, n_wrt: int) -> Self:
        """Allocate the results of `count` runs."""
        width, functionals = max(graph.sizes) + graph.equations[0].n_memory, graph.equations[0].functionals
        return cls(
            done=np.zeros(count, np.int64),
            reasons=np.tile([Reason.NO_REASON, -1], (count, 1)),
            n_events=np.zeros(count, np.int64),
            n_steps=np.zeros(count, np.int64),
            digests=np.zeros(count, np.int64),
            modes=np.full(count, -1, np.int64),
            times=np.full(count, np.nan),
            ends=np.full((count, width), np.nan),
            values=np.full((count, functionals.size), np.nan),
            gradients=np.full((count, n_components, n_wrt), np.nan),
            outputs=np.full((count, n_t, width), np.nan),
            output_modes=np.full((count, n_t), -1, np.int64),
        )


class Crew(Protocol):
    """Integrates runs one after the other, on one thread at a time."""

    def aim(self, given: Array, out: Outcomes) -> None:
        """Set the inputs of the runs, (N, n_given) and contiguous, and their results."""

    def run(self, begin: int, end: int) -> None:
        """Integrate these runs until `stop` is called; runs that are not `done` are left to single calls."""

    def stop(self) -> None:
        """Stop soon; may be called from another thread."""


@runtime_checkable
class RunsMany(Integrator, Protocol):
    """An integrator with native batches: runs, and gradients that need no further checks."""

    def crew(self, graph: TransitionGraph, fleet: NativeBatch) -> Crew | str:
        """Return a crew for the runs, or the reason why they are left to single calls."""
