"""Directions v/|v| in the equations of a mode, which jump where all entries of v vanish at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import casadi as ca

from dae_hybrid.codegen.kernels import Kernel


@dataclass(frozen=True, eq=False)
class Directions:
    """The vectors by whose norms equations divide; `lower` turns expressions into a function of (t, x, m, p)."""

    vectors: Sequence[tuple[str, ca.MX]]  # text of the norm, vector
    lower: Callable[[str, Sequence[tuple[str, ca.MX]]], ca.Function]

    @cached_property
    def values(self) -> Kernel:
        """(t, x, m, p) -> the entries of all vectors, one after the other."""
        what = ", ".join(text for text, _ in self.vectors)
        return Kernel(self.lower("directions", [(what, ca.veccat(*(ca.densify(v) for _, v in self.vectors)))]))

    @cached_property
    def parts(self) -> list[tuple[str, slice]]:
        """The text of each norm, and the place of its vector in `values`."""
        found, begin = list[tuple[str, slice]](), 0
        for text, vector in self.vectors:
            found.append((text, slice(begin, begin + vector.numel())))
            begin += vector.numel()
        return found
