"""Named expressions of a mode whose values are looked at along a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import casadi as ca

from dae_hybrid.codegen.kernels import Kernel


@dataclass(frozen=True, eq=False)
class Watched:
    """Expressions with their names; `lower` turns expressions into a function of (t, x, m, p)."""

    named: Sequence[tuple[str, ca.MX]]
    lower: Callable[[str, Sequence[tuple[str, ca.MX]]], ca.Function]

    @cached_property
    def values(self) -> Kernel:
        """(t, x, m, p) -> the entries of all expressions, one after the other."""
        what = ", ".join(name for name, _ in self.named)
        return Kernel(self.lower("watched", [(what, ca.veccat(*(ca.densify(value) for _, value in self.named)))]))

    @cached_property
    def names(self) -> list[str]:
        """The name of the expression that each entry of `values` belongs to."""
        return [name for name, value in self.named for _ in range(value.numel())]

    @cached_property
    def parts(self) -> list[tuple[str, slice]]:
        """The name of each expression, and its place in `values`."""
        found, begin = list[tuple[str, slice]](), 0
        for name, value in self.named:
            found.append((name, slice(begin, begin + value.numel())))
            begin += value.numel()
        return found
