"""A line on the terminal that says what a slow run is doing."""

from __future__ import annotations

import sys
import threading
import time
from types import TracebackType
from typing import TextIO

DELAY = 1.0  # seconds: a faster run shows nothing
PERIOD = 0.2


class Progress:
    """One line on stderr, shown from the first second on; nothing where stderr is not a terminal.

    A thread draws it, so it moves while a solve (which releases the interpreter) is under way.

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
        """Say what is being done now."""
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
