"""State at a point of a run."""

from __future__ import annotations

from typing import NamedTuple

from dae_hybrid.numerics.arrays import Array


class StatePoint(NamedTuple):
    """State on entry into a mode, with guards, their rates and the sizes of their terms."""

    x: Array
    m: Array
    xdot: Array
    guards: Array
    rates: Array
    sizes: Array
