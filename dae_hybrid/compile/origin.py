"""The statement of a system and the arguments of `build`, which a pickle carries in place of the system."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from copy import copy
from functools import cached_property
from typing import Any
from weakref import WeakValueDictionary

from dae_hybrid.statement.model import HybridModel
from dae_hybrid.statement.pickling import packed, unpacked
from dae_hybrid.system.system import HybridSystem

#: systems restored from pickles, held weakly
_made: WeakValueDictionary[str, HybridSystem] = WeakValueDictionary()
_lock = threading.Lock()


class Origin:
    """A model at the time of its build, and the arguments of `build`."""

    def __init__(self, model: HybridModel, options: Mapping[str, Any]) -> None:
        self.model, self.options = copy(model), dict(options)
        self.model.__dict__ |= {key: dict(v) for key, v in model.__dict__.items() if isinstance(v, dict)}

    @cached_property
    def _packed(self) -> tuple[bytes, str]:
        return packed(self.model)

    def __call__(self) -> tuple[Any, ...]:
        """Value of `__reduce__` of the system."""
        return built_again, (*self._packed, self.options)


def built_again(content: bytes, expressions: str, options: Mapping[str, Any]) -> HybridSystem:
    """Restore the system of a pickle; all pickles of one system loaded by a process share one."""
    key = hashlib.sha256(content + expressions.encode() + repr(sorted(options.items())).encode()).hexdigest()
    with _lock:
        if (found := _made.get(key)) is None:
            model: HybridModel = unpacked(content, expressions)
            found = _made[key] = model.build(**options)
    return found
