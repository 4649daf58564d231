"""A point of a run."""

from __future__ import annotations

from typing import NamedTuple

from dae_hybrid.numerics.arrays import Array


class StatePoint(NamedTuple):
    """A point at which a mode is entered, with the mode's guards there."""

    x: Array
    m: Array
    xdot: Array
    guards: Array
    rates: Array
    sizes: Array
