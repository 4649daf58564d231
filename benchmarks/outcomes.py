"""Measured results against exact values."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from math import log
from pathlib import Path
from typing import Any

#: an answer is wrong if its error exceeds WRONG relative tolerances or LARGE, or if it missed an event
WRONG, LARGE = 1e4, 0.1
#: tolerances of the tables
RTOL, ATOL = 1e-8, 1e-12
GRADIENTS = ("forward", "adjoint")
#: the name of this library among the packages
OURS = "dae_hybrid"
#: the accuracy at which times are compared
TARGET = 1e-6


@dataclass(frozen=True)
class Point:
    """One task at one tolerance: errors and CPU time, or how it failed."""

    task: str
    rtol: float
    cpu_ms: float = float("nan")
    value_error: float = float("nan")
    gradient_error: float = float("nan")
    events: int | None = None
    events_missed: bool = False
    failed: str = ""
    unsupported: bool = False

    @property
    def error(self) -> float:
        """Error of the gradient if there is one, otherwise of the value."""
        return self.value_error if self.task == "solve" else self.gradient_error

    @property
    def wrong(self) -> bool:
        """Neither right nor failed."""
        return not self.failed and (self.events_missed or not self.error <= min(WRONG * self.rtol, LARGE))

    @property
    def right(self) -> bool:
        """To be reckoned with."""
        return not self.failed and not self.wrong


@dataclass
class Way:
    """One row: a package that takes a problem in one way.

    `build` has the seconds until everything has been called once, the first time and again, with what that left in
    caches; `note` says what became of the process if it did not come to its end.
    """

    package: str
    case: str
    row: str
    points: list[Point] = field(default_factory=list)
    build: dict[str, float] = field(default_factory=dict)
    note: str = ""

    @property
    def label(self) -> str:
        """Package and row."""
        return f"{self.package} {self.row}"

    def at(self, task: str, rtol: float = RTOL) -> Point | None:
        """The point of a task at a tolerance; a failure before the first task counts for all tasks."""
        found = [p for p in self.points if p.task in (task, "") and p.rtol == rtol]
        return found[0] if found else None

    def curve(self, task: str) -> list[Point]:
        """Points of a task that did not fail, by tolerance."""
        return sorted((p for p in self.points if p.task == task and not p.failed), key=lambda p: -p.rtol)


@dataclass
class Package:
    """Metadata of a peer; `missing` is the reason why it could not be loaded."""

    module: str
    name: str = ""
    version: str = ""
    rows: dict[str, list[str]] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)
    missing: str = ""


@dataclass
class Results:
    """A run."""

    machine: dict[str, str]
    packages: list[Package] = field(default_factory=list)
    ways: list[Way] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    strip: str = ""

    def of(self, case: str) -> list[Way]:
        """Ways of one problem, in order."""
        return [way for way in self.ways if way.case == case]

    def save(self, path: Path) -> None:
        """As JSON."""
        path.write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")

    @staticmethod
    def load(path: Path) -> Results:
        """From JSON."""
        data = json.loads(path.read_text(encoding="utf-8"))
        ways = [Way(**{**way, "points": [Point(**p) for p in way["points"]]}) for way in data["ways"]]
        packages = [Package(**package) for package in data["packages"]]
        return Results(data["machine"], packages, ways, data["left_out"], data["strip"])


def point(reply: Mapping[str, Any], exact: tuple[float, Sequence[float], int]) -> Point:
    """From a reply of the worker."""
    task = reply["task"] or ""
    if "failed" in reply:
        return Point(task, reply["rtol"], failed=reply["failed"], unsupported=reply["unsupported"])
    value, gradient, events = exact
    return Point(
        task,
        reply["rtol"],
        cpu_ms=reply["cpu_ms"],
        value_error=abs(reply["value"] / value - 1),
        gradient_error=float("nan") if reply["gradient"] is None else gradient_error(reply["gradient"], gradient),
        events=reply["events"],
        events_missed=reply["events"] not in (None, events),
    )


def gradient_error(found: Sequence[float], exact: Sequence[float]) -> float:
    """Largest relative error of a component; relative to the largest component where the exact one is zero."""
    if len(found) != len(exact):
        return float("inf")
    scale = max(abs(g) for g in exact)
    errors = [abs(f - g) / (abs(g) or scale) for f, g in zip(found, exact, strict=True)]
    return float("nan") if any(e != e for e in errors) else max(errors)


def time_to(points: Sequence[Point], target: float) -> float | None:
    """Least CPU time in milliseconds for an error of at most `target`, from the points of a curve.

    Between two neighbouring tolerances the logarithm of time is linear in that of error.
    """
    found = [p.cpu_ms for p in points if not p.events_missed and p.error <= target]
    for loose, tight in pairwise(points):
        if tight.error <= target < loose.error and tight.error > 0 and not (loose.events_missed or tight.events_missed):
            share = log(target / loose.error) / log(tight.error / loose.error)
            found.append(loose.cpu_ms * (tight.cpu_ms / loose.cpu_ms) ** share)
    return min(found, default=None)


def soonest(ways: Iterable[Way], tasks: Sequence[str], target: float) -> tuple[Way, float] | None:
    """The way that comes to an error first, and its time."""
    times = [(way, time_to(way.curve(task), target)) for way in ways for task in tasks]
    found = [(way, time) for way, time in times if time is not None]
    return min(found, key=lambda pair: pair[1]) if found else None


def fastest(ways: Iterable[Way], tasks: Sequence[str], *, right: bool = True) -> tuple[Way, Point] | None:
    """The way and the point of the least time at the tolerance of the tables, of those that are right or wrong."""
    found = [
        (way, p)
        for way in ways
        for task in tasks
        if (p := way.at(task)) is not None and (p.right if right else p.wrong)
    ]
    return min(found, key=lambda pair: pair[1].cpu_ms) if found else None
