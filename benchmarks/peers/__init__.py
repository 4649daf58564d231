"""Peers: modules of this folder with the attributes of `Peer`, run by worker.py in separate processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple, Protocol

#: modules of this folder, in the order of the tables
NAMES = ("ours", "c", "casadi", "diffrax", "pydiffsol", "amici", "scipy", "sundae")
#: measured tasks: a solve, and two ways to the gradient (finite differences count as forward)
TASKS = ("solve", "forward", "adjoint")


class UnsupportedError(Exception):
    """The peer cannot do this; the message is a sentence that says why."""


class Answer(NamedTuple):
    """A result; the gradient of a plain solve and events that a peer does not count are None."""

    value: float
    gradient: list[float] | None = None
    events: int | None = None


class Task(NamedTuple):
    """The timed call, a reader of its result, and a reader of its own time in milliseconds if it measures itself."""

    call: Callable[[], Any]
    read: Callable[[Any], Answer]
    own: Callable[[Any], float] | None = None


class Peer(Protocol):
    """A package, as an expert user of it would use it.

    `rows` names the ways in which it takes a problem, one row of the table each, none if it does not; `prepare` builds
    and compiles one of them for given tolerances and returns what to time by `TASKS`. Both raise `UnsupportedError`
    with the reason where there is nothing to time.
    """

    name: str

    def version(self) -> str:
        """Versions of the package and of its solvers."""

    def rows(self, case: str) -> list[str]:
        """Labels of the rows of a problem."""

    def prepare(self, case: str, row: str, rtol: float, atol: float) -> Mapping[str, Task]:
        """Tasks by name."""


def load(module: str) -> Peer:
    """One of `NAMES`, or any other module that is a peer; an `ImportError` says that it is not installed."""
    peer: Any = import_module(f"peers.{module}" if module in NAMES else module)
    return peer


#: relative steps of central differences over the cube root of rtol: the best for each problem at rtol 1e-8 among
#: 1, 0.3, 0.1, 0.03 and 0.01, a choice that requires the exact gradient
STEPS = {"P1": 0.01, "P2": 0.3, "P3": 0.01, "P4": 0.03}


def differences(solve: Callable[[list[float]], float], case: Any, rtol: float) -> list[float]:
    """Gradient by central differences."""
    gradient = []
    for j, p in enumerate(case.nominal):
        h = STEPS[case.name] * rtol ** (1 / 3) * (abs(p) or 1.0)
        high, low = list(case.nominal), list(case.nominal)
        high[j] += h
        low[j] -= h
        gradient.append((solve(high) - solve(low)) / (high[j] - low[j]))
    return gradient
