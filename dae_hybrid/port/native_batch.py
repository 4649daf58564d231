"""The part of the port by which an integrator carries out many runs that differ in numbers only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.codegen.kernels import NativeFunction
from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.integrator import Integrator
from dae_hybrid.port.native_plan import RunRequest, TransitionGraph
from dae_hybrid.port.timetable import Timetable

type Integers = NDArray[np.int64]


class NativeBatch(NamedTuple):
    """Runs that differ in their parameters, and in their initial values where these are given.

    `request` is that of any of them: with `certify` where gradients are wanted, with directions where these come from
    forward analysis and with `keep_path` where they come from the adjoint. `wrt` are the parameters of the gradients,
    `components` for every functional which components it has. `integrated` says of every component of all functionals
    whether anything but its terminal value moves it. `origin` is that of `BoundaryFunctions` for parameters with
    `n_start` initial values behind them. Without `certify` gradients are wanted whatever their conditions. Time events
    are due by the `timetable`, where there are any.
    """

    request: RunRequest
    wrt: tuple[int, ...]
    components: tuple[tuple[int, ...], ...]
    integrated: NDArray[np.bool_]
    origin: NativeFunction | None = None
    n_start: int = 0
    certify: bool = True
    timetable: Timetable | None = None

    @property
    def n_given(self) -> int:
        """How many numbers a run is of."""
        return self.request.parameters.size + self.n_start


LEFT_OUT, DONE, STEEP = range(3)


@dataclass(frozen=True, eq=False, slots=True)
class Outcomes:
    """What comes of N runs, a row for each.

    `done` is DONE where that is what a single call returns, and STEEP where a single call would look whether
    perturbations have grown (`amplification`). All others are left to single calls.

    `ends` and `outputs` have (y, z), as far as the integrator integrates it in outputs, from the first column on, and
    the memory in the last ones; what is between them is nothing.
    """

    done: Integers
    n_events: Integers
    n_steps: Integers
    modes: Integers  # the last one
    times: Array  # the last one
    ends: Array  # (N, widest + n_memory)
    values: Array  # (N, n_functionals)
    gradients: Array  # (N, n_components, n_wrt)
    outputs: Array  # (N, n_t, widest + n_memory)
    output_modes: Integers  # (N, n_t)

    @classmethod
    def of(cls, count: int, graph: TransitionGraph, n_t: int, n_components: int, n_wrt: int) -> Self:
        """Room for so many runs."""
        width, functionals = max(graph.sizes) + graph.equations[0].n_memory, graph.equations[0].functionals
        return cls(
            done=np.zeros(count, np.int64),
            n_events=np.zeros(count, np.int64),
            n_steps=np.zeros(count, np.int64),
            modes=np.full(count, -1, np.int64),
            times=np.full(count, np.nan),
            ends=np.full((count, width), np.nan),
            values=np.full((count, functionals.size), np.nan),
            gradients=np.full((count, n_components, n_wrt), np.nan),
            outputs=np.full((count, n_t, width), np.nan),
            output_modes=np.full((count, n_t), -1, np.int64),
        )


class Crew(Protocol):
    """What carries out runs one after the other, on one thread at a time."""

    def aim(self, given: Array, out: Outcomes) -> None:
        """What the runs are of, (N, n_given) and contiguous, and where their outcomes go."""

    def run(self, begin: int, end: int) -> None:
        """Carry out these runs, or those before `stop` is called; what is not `done` then is left to single calls."""

    def stop(self) -> None:
        """Come to an end soon; may be called from another thread."""


@runtime_checkable
class RunsMany(Integrator, Protocol):
    """An integrator that carries out many runs by itself, and their gradients where nothing needs a closer look."""

    def crew(self, graph: TransitionGraph, fleet: NativeBatch) -> Crew | None:
        """What carries them out; None where they are left to single calls."""
