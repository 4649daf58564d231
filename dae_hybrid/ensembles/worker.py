"""The work of a worker: one chunk of runs, in whatever thread or process."""

from __future__ import annotations

import os
import pickle
import socket
import time
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from threading import Lock, get_ident
from typing import Any, NamedTuple

import numpy as np

from dae_hybrid.cancellation import Cancellation, Cancelled
from dae_hybrid.ensembles.failures import FailedRun, report_of
from dae_hybrid.ensembles.identity import versions
from dae_hybrid.ensembles.layout import FAILED, STATUS, ResultLayout
from dae_hybrid.errors import EnsembleError, UnsupportedError
from dae_hybrid.interface.batch import Batch
from dae_hybrid.interface.crews import carry_out
from dae_hybrid.interface.prepared_case import CheckedCall
from dae_hybrid.numerics.arrays import Array

#: cases that a worker process keeps, and cancelled tokens that it remembers
MOST_CASES, MOST_TOKENS = 4, 1000

_cases: OrderedDict[str, tuple[CheckedCall, ResultLayout]] = OrderedDict()
_cancellations: OrderedDict[str, Cancellation] = OrderedDict()
_lock = Lock()


class Recipe(NamedTuple):
    """The call of an ensemble, as it is sent to workers.

    `content` is a pickle, or the call itself for the threads of the client's own process.
    """

    key: str
    client: str
    content: bytes | tuple[CheckedCall, ResultLayout]
    versions: Mapping[str, str]
    native: bool

    @classmethod
    def of(cls, key: str, case: CheckedCall, layout: ResultLayout, *, is_sent: bool) -> Recipe:
        """Return the recipe of a call.

        Raises
        ------
        UnsupportedError
            It is sent to other processes and cannot be pickled.
        """
        content: bytes | tuple[CheckedCall, ResultLayout] = (case, layout)
        if is_sent:
            try:
                content = pickle.dumps(content)
            except (pickle.PicklingError, TypeError, AttributeError, UnsupportedError) as reason:
                raise UnsupportedError(
                    f"This call cannot be sent to other processes: {reason}",
                    remedy="Put models and functions into modules that workers can import, or use executor='threads'.",
                ) from reason
        return cls(key, _this_process(), content, versions(), case.system.native)


class ChunkResult(NamedTuple):
    """Results of a chunk: rows of the arrays, the errors of failed runs, and warnings with their categories."""

    rows: dict[str, Array]
    failures: list[FailedRun]
    warnings: list[tuple[type[Warning], str]]
    seconds: float


def run_chunk(recipe: Recipe, given: Array, first: int, token: str) -> ChunkResult | None:
    """Carry out runs from number `first` on; None if the token was cancelled.

    Raises
    ------
    EnsembleError
        The call cannot be restored here, or results would differ from those of the client.
    """
    cancellation = cancellation_of(token)
    begin = time.perf_counter()
    with _collected(recipe) as seen:
        case, layout = _restored(recipe)
        try:
            rows, failures = _carry_out(case, layout, given, first, cancellation)
        except Cancelled:
            return None
    return ChunkResult(rows, failures, seen, time.perf_counter() - begin)


def measure(recipe: Recipe, given: Array, seconds: float, token: str) -> float | None:
    """Return the time of a run in seconds, from as many of the runs as `seconds` allow; None if cancelled."""
    if run_chunk(recipe, given[:1], 0, token) is None:  # the first run compiles and allocates
        return None
    begin, done = time.perf_counter(), 0
    while done < len(given) and time.perf_counter() - begin < seconds:
        more = min(len(given) - done, max(1, done))
        if run_chunk(recipe, given[done : done + more], 0, token) is None:
            return None
        done += more
    return (time.perf_counter() - begin) / done


def nothing(recipe: Recipe, token: str) -> None:
    """Return: the worker works."""


def cancel(token: str) -> None:
    """Cancel the chunks of a token, those that run here and those that come."""
    cancellation_of(token).cancel()


def cancellation_of(token: str) -> Cancellation:
    """Return the cancellation of a token, also if it has been cancelled before."""
    with _lock:
        found = _cancellations.setdefault(token, Cancellation())
        _cancellations.move_to_end(token)
        while len(_cancellations) > MOST_TOKENS:
            _cancellations.popitem(last=False)
        return found


def _this_process() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


def _restored(recipe: Recipe) -> tuple[CheckedCall, ResultLayout]:
    if not isinstance(recipe.content, bytes):
        return recipe.content
    with _lock:
        if recipe.key not in _cases:
            _cases[recipe.key] = _unpickled(recipe, recipe.content)
        _cases.move_to_end(recipe.key)
        while len(_cases) > MOST_CASES:
            _cases.popitem(last=False)
        return _cases[recipe.key]


def _unpickled(recipe: Recipe, content: bytes) -> tuple[CheckedCall, ResultLayout]:
    here = versions()
    if differing := [name for name, text in recipe.versions.items() if here.get(name) != text]:
        own = ", ".join(f"{name} {here.get(name)} instead of {recipe.versions[name]}" for name in differing)
        raise EnsembleError(
            f"A worker has other versions than the client: {own}.", remedy="Install the same versions on all machines."
        )
    try:
        case, layout = pickle.loads(content)
    except Exception as reason:
        raise EnsembleError(
            f"A worker cannot restore the call of the ensemble: {type(reason).__name__}: {reason}.",
            remedy="Workers must be able to import the modules, and to find the adapters, that the call needs.",
        ) from reason
    if case.system.native != recipe.native:
        raise EnsembleError(
            "A worker has no compiled code, or the client has none: results would differ in the last digits.",
            remedy="Install a C compiler on every machine, or build the model with native=False.",
        )
    return case, layout


def _carry_out(
    case: CheckedCall, layout: ResultLayout, given: Array, first: int, cancellation: Cancellation
) -> tuple[dict[str, Array], list[FailedRun]]:
    """Return rows and failures; an exception of the model's own code concerns the run in which it is raised."""
    try:
        found = Batch.of(case, given, carry_out(case, given, 1, cancellation), 1)
    except MemoryError:  # concerns the worker, which counts as lost
        raise
    except Exception as error:
        if len(given) > 1:
            parts = [_carry_out(case, layout, row[None], first + i, cancellation) for i, row in enumerate(given)]
            rows = {name: np.concatenate([own[name] for own, _ in parts]) for name in parts[0][0]}
            return rows, [failure for _, failures in parts for failure in failures]
        return failed_rows(layout, 1), [FailedRun(first, report_of(error))]
    failures = [FailedRun(first + i, report_of(e)) for i, e in enumerate(found.errors) if e is not None]
    return layout.rows(found), failures


def failed_rows(layout: ResultLayout, count: int) -> dict[str, Array]:
    """Rows of runs without results."""
    rows = layout.empty_rows(count)
    rows["counts"][:, STATUS] = FAILED
    return rows


@contextmanager
def _collected(recipe: Recipe) -> Iterator[list[tuple[type[Warning], str]]]:
    """Collect the warnings of this thread in a process that is not the client's, whose user would not see them."""
    found: list[tuple[type[Warning], str]] = []
    if recipe.client == _this_process():
        yield found
        return
    with collected_warnings() as seen:
        yield found
    found += seen


@contextmanager
def collected_warnings() -> Iterator[dict[tuple[type[Warning], str], None]]:
    """Collect the warnings of this thread, each once."""
    seen: dict[tuple[type[Warning], str], None] = {}
    _collector.begin(seen)
    try:
        yield seen
    finally:
        _collector.end()


class _Collector:
    """Sort the warnings of a process by thread while any thread collects them.

    The state of the module `warnings` belongs to the process: threads share one `warnings.catch_warnings`.
    """

    def __init__(self) -> None:
        self._threads: dict[int, dict[tuple[type[Warning], str], None]] = {}
        self._restore = ExitStack()

    def begin(self, seen: dict[tuple[type[Warning], str], None]) -> None:
        """Collect the warnings of this thread."""
        with _lock:
            if not self._threads:
                self._restore.enter_context(warnings.catch_warnings())
                warnings.simplefilter("always")
                self._show, warnings.showwarning = warnings.showwarning, self._take
            self._threads[get_ident()] = seen

    def end(self) -> None:
        """Leave the warnings of this thread to the process."""
        with _lock:
            del self._threads[get_ident()]
            if not self._threads:
                self._restore.close()

    def _take(self, message: Warning | str, category: type[Warning], *where: Any, **named: Any) -> None:
        if (seen := self._threads.get(get_ident())) is not None:
            seen[category, str(message)] = None
        else:
            self._show(message, category, *where, **named)


_collector = _Collector()
