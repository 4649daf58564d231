"""The interface of the modules `compiled` and `interpreted`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from dae_hybrid.numerics.arrays import Array
from dae_hybrid.port.integrator import Equations


class SolverModel(Protocol):
    """The callbacks of one set of equations, and the arrays that they read."""

    equations: Equations
    parameters: Array
    memory: Array
    memory_directions: Array
    zero_band: Array
    leaving_sign: Array
    weights: Array

    @property
    def user_data(self) -> int | None:
        """The user data of SUNDIALS."""

    def callback(self, name: str) -> int:
        """Return the address of a callback."""
        ...

    def set_directions(self, directions: Array) -> None:
        """Set parameter directions, (n_directions, n_parameters)."""

    def counters(self) -> dict[str, int]:
        """Return the numbers of calls so far."""
        ...

    def set_path(self, path: Array, component: int) -> None:
        """Set the path that the adjoint follows, and its component."""

    def interruptible(self) -> AbstractContextManager[None]:
        """Handle interrupts during an integration."""
        ...

    def leave(self) -> None:
        """Release the path."""

    def norms(self) -> dict[str, int]:
        """Return replacements of vector operations that select the norm of the error test."""
        ...

    def raise_pending(self) -> None:
        """Raise the first exception that was kept during native work, and forget the others."""

    def take_pending(self) -> BaseException | None:
        """Return and clear it."""

    def reset(self) -> None:
        """Invalidate the cached linearisation."""

    def take_returned(self) -> int | None:
        """Return and clear the guard that returned through zero within one step of leaving it, if any."""


def raise_first(*models: SolverModel) -> None:
    """Raise the first exception kept by models, and forget the others: they would stop a later run."""
    kept = [error for model in models if (error := model.take_pending()) is not None]
    if kept:
        raise kept[0]


class Backend(Protocol):
    """A module that evaluates the equations and advances the solver."""

    @property
    def EquationCallbacks(self) -> Callable[[Equations, str, int, int, tuple[int, ...]], SolverModel]:
        """Class of the callbacks."""

    @property
    def ForwardLoop(self) -> Callable[..., Any]:
        """Class that advances a forward memory."""

    @property
    def BackwardLoop(self) -> Callable[..., Any]:
        """Class that advances an adjoint memory."""
