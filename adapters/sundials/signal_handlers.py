"""Exceptions of signal handlers that run when a callback begins, before any `try` in it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import Any


@contextmanager
def caught(keep: Callable[[Any], bool]) -> Iterator[None]:
    """Run native work that calls back into Python; `keep` returns whether it has taken an exception.

    A handler may run between the call of a callback and its first line, where no `try` catches the exception: ctypes
    reports it as unraisable and continues. Handlers run on the main thread only.
    """
    here = current_thread() is main_thread()
    report = sys.unraisablehook

    def listen(lost: Any) -> None:
        if "ctypes callback" not in f"{lost.err_msg}" or not keep(lost.exc_value):
            report(lost)

    if here:
        sys.unraisablehook = listen
    try:
        yield
    finally:
        if here:
            sys.unraisablehook = report
