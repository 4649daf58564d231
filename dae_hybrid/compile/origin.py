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

#: systems that were made by pickles, as long as they are in use
_made: WeakValueDictionary[str, HybridSystem] = WeakValueDictionary()
_lock = threading.Lock()


class Origin:
    """A model as it was when it was built, and how it was built."""

    def __init__(self, model: HybridModel, options: Mapping[str, Any]) -> None:
        self.model, self.options = copy(model), dict(options)
        self.model.__dict__ |= {key: dict(v) for key, v in model.__dict__.items() if isinstance(v, dict)}

    @cached_property
    def _packed(self) -> tuple[bytes, str]:
        return packed(self.model)

    def reduced(self) -> tuple[Any, ...]:
        """For `__reduce__` of the system."""
        return built_again, (*self._packed, self.options)


def built_again(content: bytes, expressions: str, options: Mapping[str, Any]) -> HybridSystem:
    """The system of a pickle; the same one for all pickles of one system that a process loads."""
    key = hashlib.sha256(content + expressions.encode() + repr(sorted(options.items())).encode()).hexdigest()
    with _lock:
        if (found := _made.get(key)) is None:
            model: HybridModel = unpacked(content, expressions)
            found = _made[key] = model.build(**options)
    return found
