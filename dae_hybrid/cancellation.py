"""Cancellation of runs from other threads.

Runs ask at short intervals whether they are cancelled: compiled loops every 0.1 s (`interrupted` in
``adapters/sundials/native/model.c``), Python at every step or callback. No exception is injected into a thread, so that
a run stops where its caches stay usable, and nothing is raised after its end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from types import TracebackType
from typing import Self


class Cancelled(BaseException):
    """A run was stopped by `Cancellation.cancel`.

    Like `KeyboardInterrupt` it is no `Exception`: code that handles the failure of a run does not handle it.
    """


class Cancellation:
    """Stop runs from another thread.

    Runs on the thread that has entered it (``with``), and on the threads that these runs start, raise `Cancelled` soon
    after `cancel`, typically within 0.1 s, also in compiled code. Thread-safe; several threads may enter the same
    object, and one thread several objects, any of which stops it. It cannot be reset.

    Raises
    ------
    Cancelled
        From runs in the block, and on entry if already cancelled. Leaving the block raises nothing.

    Notes
    -----
    A cancelled run returns no result. Systems can be used at once for further runs, with the same results as before.

    Not interruptible are single calls of other libraries: a stretch of CasADi's integrators, a factorisation, a
    preconditioner, and 1024 compiled steps of ALI3-P.

    Examples
    --------
    >>> from threading import Timer
    >>> import dae_hybrid as dh
    >>> from dae_hybrid.cancellation import Cancellation, Cancelled
    >>> from dae_hybrid.problems import hybrid_ode
    >>> stop = Cancellation()
    >>> Timer(0.1, stop.cancel).start()
    >>> try:
    ...     with stop:
    ...         dh.simulate(hybrid_ode.system(), (0, 5), max_step=1e-9, max_steps=10**9, t_eval=[0, 5])
    ... except Cancelled:
    ...     print("stopped")
    stopped
    """

    def __init__(self) -> None:
        self._event = threading.Event()

    def cancel(self) -> None:
        """Stop the runs, and those that are still to begin. Returns at once; repeated calls have no effect."""
        self._event.set()

    @property
    def is_cancelled(self) -> bool:
        """Whether `cancel` has been called."""
        return self._event.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is cancelled, at most `timeout` seconds (default: no limit); return `is_cancelled`."""
        return self._event.wait(timeout)

    def __enter__(self) -> Self:
        if self.is_cancelled:
            raise Cancelled
        _entered.set((*_entered.get(), self))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _entered.set(_entered.get()[:-1])

    def __repr__(self) -> str:
        return f"<Cancellation: {'cancelled' if self.is_cancelled else 'not cancelled'}>"


#: the objects that this thread, or this task of asyncio, has entered
_entered: ContextVar[tuple[Cancellation, ...]] = ContextVar("cancellations", default=())


def raise_if_cancelled() -> None:
    """Raise `Cancelled` if a cancellation that this thread has entered is cancelled.

    Examples
    --------
    >>> from dae_hybrid.cancellation import Cancellation, Cancelled, raise_if_cancelled
    >>> raise_if_cancelled()
    >>> with Cancellation() as stop:
    ...     stop.cancel()
    ...     try:
    ...         raise_if_cancelled()
    ...     except Cancelled:
    ...         print("stopped")
    stopped
    """
    for cancellation in _entered.get():
        if cancellation.is_cancelled:
            raise Cancelled


def carried[**P, R](function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that runs on any thread in the context of the present one, as under its cancellations.

    Examples
    --------
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> from dae_hybrid.cancellation import Cancellation, Cancelled, carried, raise_if_cancelled
    >>> with Cancellation() as stop, ThreadPoolExecutor(1) as pool:
    ...     work = carried(raise_if_cancelled)
    ...     stop.cancel()
    ...     isinstance(pool.submit(work).exception(), Cancelled)
    True
    """
    context = copy_context()

    def call(*arguments: P.args, **named: P.kwargs) -> R:
        return context.copy().run(function, *arguments, **named)  # one thread at a time may be in a context

    return call
