"""Results as bytes: their numbers, and references to what their system has when it is built again."""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dae_hybrid.codegen.kernels import NotPicklable
from dae_hybrid.errors import UnsupportedError
from dae_hybrid.port.native_plan import TransitionGraph
from dae_hybrid.system.system import HybridSystem


class Portable(NotPicklable):
    """What is made of a run of a system: it can be pickled as part of a result."""

    def _state(self) -> dict[str, Any]:
        """The attributes that a pickle carries: the fields, and not what is made of them."""
        assert is_dataclass(self)
        return {field.name: getattr(self, field.name) for field in fields(self)}


class PortableResult(Portable):
    """What a call returns; copies share it, and a pickle carries it with the statement of its system."""

    def _owner(self) -> HybridSystem:
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        system = self._owner()
        return unpacked, (system, packed(self, system))


def _members(system: HybridSystem) -> Iterator[tuple[str, Any]]:
    """What results refer to, by the names that stand for it in a pickle."""
    yield from (("system", system), ("graph", system.graph), ("initial", system.initial))
    for i, mode in enumerate(system.modes):
        yield from ((f"mode {i}", mode), (f"equations {i}", mode.equations))
    for i, transition in enumerate(system.transitions):
        yield f"transition {i}", transition


def _read_only(given: dict[str, Any]) -> MappingProxyType[str, Any]:
    return MappingProxyType(given)


def _read_only_array(given: NDArray[Any]) -> NDArray[Any]:
    given.flags.writeable = False
    return given


class _Writer(pickle.Pickler):
    """Writes what belongs to a result."""

    def __init__(self, file: io.BytesIO, system: HybridSystem) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._names = {id(member): name for name, member in _members(system)}

    def persistent_id(self, obj: Any) -> str | None:
        """The name of a member of the system."""
        if isinstance(obj, TransitionGraph):  # of a system with other initial values it may be that of the model
            return "graph"
        return self._names.get(id(obj))

    def reducer_override(self, obj: Any) -> Any:
        """Results and their parts by their attributes; see `Portable`."""
        if isinstance(obj, Portable):
            return copyreg.__newobj__, (type(obj),), obj._state()  # type: ignore[attr-defined]
        if isinstance(obj, MappingProxyType):
            return _read_only, (dict(obj),)
        if isinstance(obj, np.ndarray) and not obj.flags.writeable:
            return _read_only_array, (obj.copy(),)
        return NotImplemented


class _Reader(pickle.Unpickler):
    """Reads what `_Writer` has written."""

    def __init__(self, file: io.BytesIO, system: HybridSystem) -> None:
        super().__init__(file)
        self._members = dict(_members(system))

    def persistent_load(self, pid: str) -> Any:
        """The member of that name."""
        return self._members[pid]


def packed(result: PortableResult, system: HybridSystem) -> bytes:
    """A result of a system.

    Raises
    ------
    UnsupportedError
        It holds an object of the caller that pickle refuses, such as a function without a name.
    """
    file = io.BytesIO()
    try:
        _Writer(file, system).dump(result)
    except (pickle.PicklingError, TypeError, AttributeError) as reason:
        raise UnsupportedError(
            f"This {type(result).__name__} cannot be pickled: {reason}.",
            remedy="Pass functions of a module as options (preconditioner=), or pickle numbers: sol['y'], "
            "dict(sol.functionals), gradient.",
        ) from reason
    return file.getvalue()


def unpacked(system: HybridSystem, content: bytes) -> Any:
    """The result again, of a system that was built again."""
    return _Reader(io.BytesIO(content), system).load()
