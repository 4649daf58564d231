"""Progress reports: a line on the terminal for long runs, and the stages of a build with their times."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from dae_hybrid.errors import OptionError
from dae_hybrid.numeric_input import shown

DELAY = 1.0  # seconds: a faster run shows nothing
PERIOD = 0.2
#: False is silent, True writes to stderr, a function is called with every stage and its seconds
type Report = bool | Callable[[str, float], object]


def check_report(name: str, report: object) -> None:
    """Check the option of a call that reports its progress.

    Raises
    ------
    OptionError
        It is no truth value and no function.
    """
    if not isinstance(report, bool) and not callable(report):
        raise OptionError(f"{name} must be True, False or a function, got {shown(report)}.")


class StageReport:
    """Report the stages of a task, each when it is finished.

    Examples
    --------
    >>> from dae_hybrid.progress import StageReport
    >>> with StageReport("build", lambda part, seconds: print(part)) as parts:
    ...     parts.begin("modes")
    ...     parts.begin("transitions")
    modes
    transitions
    """

    def __init__(self, title: str, report: Report) -> None:
        self._title, self._report = title, report
        self._part: str | None = None
        self._start = self._since = time.perf_counter()

    def begin(self, part: str) -> None:
        """Begin a stage and end the previous one."""
        self._end()
        self._part, self._since = part, time.perf_counter()
        self._write(f"{self._title}: {part} ...")

    def _end(self) -> None:
        part, self._part = self._part, None
        if part is None:
            return
        seconds = time.perf_counter() - self._since
        self._write(f" {seconds:.2f} s\n")
        if callable(self._report):
            self._report(part, seconds)

    def _write(self, text: str) -> None:
        if self._report is True:
            sys.stderr.write(text)
            sys.stderr.flush()

    def __enter__(self) -> StageReport:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._write(" failed\n")
            return
        self._end()
        self._write(f"{self._title}: {time.perf_counter() - self._start:.2f} s in all\n")


class Progress:
    """One line on stderr, shown after the first second; nothing if stderr is not a terminal.

    A thread draws it, so that it is updated during a solve, which releases the interpreter.

    Examples
    --------
    >>> from dae_hybrid.progress import Progress
    >>> with Progress("em_hysteresis") as progress:
    ...     progress.stage("forward sensitivities")
    """

    def __init__(self, title: str, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._title, self._stage, self._width = title, "", 0
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def stage(self, text: str) -> None:
        """Set the current stage."""
        self._stage = text

    def __enter__(self) -> Progress:
        if self._stream.isatty():
            self._thread = threading.Thread(target=self._run, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()
            if self._width:
                self._show("")

    def _run(self) -> None:
        start = time.monotonic()
        wait = DELAY
        while not self._done.wait(wait):
            stage = f": {self._stage}" if self._stage else ""
            self._show(f"{self._title}{stage}, {time.monotonic() - start:.0f} s")
            wait = PERIOD

    def _show(self, text: str) -> None:
        self._stream.write(f"\r{text.ljust(self._width)}")
        if not text:
            self._stream.write("\r")
        self._stream.flush()
        self._width = len(text)


class ProgressReport[S]:
    """Report the states of a task: on a line on the terminal, to a function, or not at all. Thread-safe.

    Parameters
    ----------
    title : str
    report : bool or callable
        True shows a line, a function receives every state.
    in_words : callable
        The text of a state.

    Entering returns the function to call with every state, or None if there is nothing to report.

    Examples
    --------
    >>> from dae_hybrid.progress import ProgressReport
    >>> with ProgressReport("fit", print, str) as tell:
    ...     tell(3)
    3
    """

    def __init__(self, title: str, report: bool | Callable[[S], object], in_words: Callable[[S], str]) -> None:
        self._report, self._in_words, self._lock = report, in_words, threading.Lock()
        self._line = Progress(title) if report is True else None

    def __enter__(self) -> Callable[[S], object] | None:
        if self._line is not None:
            self._line.__enter__()
        return None if self._report is False else self._tell

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._line is not None:
            self._line.__exit__(kind, error, trace)

    def _tell(self, state: S) -> None:
        with self._lock:
            if self._line is not None:
                self._line.stage(self._in_words(state))
            elif callable(self._report):
                self._report(state)
