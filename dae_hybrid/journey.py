"""The part of the port by which an integrator goes through plain transitions by itself.

An integrator with a compiled loop is handed a `Network` of modes with a segment to begin with. It goes on where a
transition is plain: one guard alone crosses, the state after it is given explicitly, and nothing fires or is past its
threshold where the next mode is entered. Whatever is not plain it leaves to the automaton, which goes on from there.
One that has no such loop carries out one segment at a time (`segments.one_segment`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.codegen import NativeFunction
from dae_hybrid.integrator import Array, Equations, SegmentOutcome, SegmentTask

if TYPE_CHECKING:
    from dae_hybrid.errors import DaeHybridError
    from dae_hybrid.leg import Leg


@dataclass(frozen=True, eq=False)
class Link:
    """A transition that an integrator may carry out where it is plain.

    The functions have the inputs ``(t, x, m, p)``, with the integrator's x before, and dense outputs:

    ======== ===========================================================================================
    cross    (y, z) before and its rates, the guards there, their rates and sizes; (y, z) after, the memory after,
             rates, guards, their rates and sizes after; what has to vanish where it `closes`, and the size of its
             terms; z by y after, where the equations after are implicit
    tangent  h by (w, p, t); w after by (w, p, t), at fixed time; rates of w and integrands before, and after; what has
             to vanish where `follows_z`, and the size of its terms. w = (y, m); see `transition`
    ======== ===========================================================================================
    """

    cross: NativeFunction
    tangent: NativeFunction
    target: int
    transition: int
    closes: bool  # z after is what it was before, and has to satisfy the equations
    follows_z: bool  # the memory after depends on z after, which has to be continuous


@dataclass(frozen=True, eq=False)
class Network:
    """All modes' equations, and the links between them: for each mode one for every guard of a transition, or None.

    `guarded` are the transitions of these guards, `sizes` those of (y, z); `directions` and `waits` are by transition.
    """

    equations: tuple[Equations, ...]
    guarded: tuple[tuple[int, ...], ...]
    directions: tuple[int, ...]
    waits: tuple[bool, ...]
    sizes: tuple[int, ...]
    links: tuple[tuple[Link | None, ...], ...]
    kept: dict[Any, Any] = field(default_factory=dict, repr=False)


@dataclass(slots=True)
class Journey:
    """What a run is within and has been through, for an integrator that carries out plain transitions by itself.

    `recent` are the times of the latest events, `ranges` how large each transition's guard has been and `rested`
    whether it has stayed at zero; the integrator goes on with them. With `certify` events are carried out only where
    their derivatives exist, and are marked where nothing about them needs a closer look; `slack` is then the accuracy
    of times relative to what has passed. `start` is the whole (y, z) and its rates, `directions` (d, n_parameters) are
    those of the sensitivities.
    """

    network: Network
    mode: int
    span: tuple[float, float]
    max_events: int
    start: tuple[Array, Array]
    recent: list[float]
    ranges: Array
    rested: NDArray[np.int64]
    directions: Array
    certify: bool = False
    slack: float = 0.0


@dataclass(frozen=True, slots=True)
class Passage:
    """Plain transitions with the segments before them, if any (`leg`), and the segment that came after.

    Of that the mode, the task, and the outcome or the error it ended with.
    """

    leg: Leg | None
    mode: int
    task: SegmentTask
    outcome: SegmentOutcome | None
    error: DaeHybridError | None = None
    method: str = ""


@dataclass(frozen=True, slots=True)
class LegAdjoint:
    """dG/d(y, m) before a leg (k, n_w), its share of dG/dp (k, n_wrt), and both before every event.

    marks (n_events, k, width + n_wrt), the shares counted from the end of the leg; `width` is that of the largest
    (y, m).
    """

    adjoints: Array
    share: Array
    marks: Array
    width: int
