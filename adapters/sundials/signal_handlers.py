"""Exceptions of signal handlers where no `try` of the run catches them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import Any


@contextmanager
def caught(keep: Callable[[Any], bool]) -> Iterator[None]:
    """Run native work that calls back into Python; `keep` returns whether it has taken an exception.

    A handler may run between the call of a callback and its first line, or in a finalizer that garbage collection
    calls. Python reports what it raises there as unraisable and continues. Handlers run on the main thread only.
    An `Exception` in a finalizer is taken for an error of the finalizer.
    """
    if current_thread() is not main_thread():
        yield
        return
    report = sys.unraisablehook

    def listen(lost: Any) -> None:
        here = current_thread() is main_thread()
        of_handler = "ctypes callback" in f"{lost.err_msg}" or not isinstance(lost.exc_value, Exception)
        if not (here and of_handler and keep(lost.exc_value)):
            report(lost)

    sys.unraisablehook = listen
    try:
        yield
    finally:
        sys.unraisablehook = report
