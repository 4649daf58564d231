"""Functions that the equations of a mode call and nobody can look into: callbacks, libraries, solvers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import casadi as ca

from dae_hybrid.codegen.kernels import Kernel


@dataclass(frozen=True, eq=False)
class CalledFunctions:
    """The calls of such functions by the nodes of their values, which `lower` turns into a function of (t, x, m, p)."""

    calls: Sequence[tuple[str, ca.MX]]  # name, value
    lower: Callable[[str, Sequence[tuple[str, ca.MX]]], ca.Function]

    @cached_property
    def values(self) -> Kernel:
        """(t, x, m, p) -> the values of all calls, one after the other."""
        what = ", ".join(name for name, _ in self.calls)
        return Kernel(self.lower("called", [(what, ca.veccat(*(ca.densify(value) for _, value in self.calls)))]))

    @cached_property
    def names(self) -> list[str]:
        """The name of the function that each entry of `values` belongs to."""
        return [name for name, value in self.calls for _ in range(value.numel())]
