"""Systems that are interpreted while their code is being compiled."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dae_hybrid.codegen.compiler import Compilation
from dae_hybrid.codegen.kernels import NotPicklable

if TYPE_CHECKING:
    from dae_hybrid.system.system import HybridSystem

MEANWHILE = "Interpreted: the compiler was at work when the call was made."


class Later(NotPicklable):
    """A system that is interpreted until its library and all `others` are compiled. Thread-safe."""

    def __init__(
        self,
        interpreted: HybridSystem,
        library: Compilation,
        others: Sequence[Compilation],
        finish: Callable[[ctypes.CDLL], HybridSystem],
    ) -> None:
        self._now, self._library, self._others = replace(interpreted, note=MEANWHILE), library, tuple(others)
        self._interpreted, self._finish = interpreted, finish
        self._left, self._lock = True, threading.Lock()

    @property
    def is_done(self) -> bool:
        """Whether all compilations have finished."""
        return all(one.is_done for one in (self._library, *self._others))

    def wait(self, timeout: float | None) -> None:
        """Wait for all compilations."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for one in (self._library, *self._others):
            one.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))

    def current(self) -> HybridSystem:
        """Return the system for a call that is made now."""
        if self._left and self.is_done:
            with self._lock:
                if self._left:
                    library = self._library.result()
                    self._now = self._interpreted if library is None else self._finish(library)
                    del self._finish, self._interpreted
                    self._left = False
        return self._now
