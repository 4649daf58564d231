"""Pickling of results: their numbers, and references to objects of the rebuilt system."""

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
from dae_hybrid.statement.pickling import by_attributes
from dae_hybrid.system.system import HybridSystem


class Portable(NotPicklable):
    """Base of objects that are pickled as part of a result."""

    def _state(self) -> dict[str, Any]:
        """Fields to pickle, without derived attributes."""
        assert is_dataclass(self)
        return {field.name: getattr(self, field.name) for field in fields(self)}


class PortableResult(Portable):
    """Base of results: copied by reference, pickled with the statement of their system."""

    def _owner(self) -> HybridSystem:
        raise NotImplementedError

    def __reduce__(self) -> tuple[Any, ...]:
        system = self._owner()
        return unpacked, (system, packed(self, system))


def _members(system: HybridSystem) -> Iterator[tuple[str, Any]]:
    """Objects of a system that results refer to, with their names in a pickle."""
    yield from (("system", system), ("graph", system.graph), ("initial", system.initial))
    for i, mode in enumerate(system.modes):
        yield from ((f"mode {i}", mode), (f"equations {i}", mode.equations))
    for i, transition in enumerate(system.transitions):
        yield f"transition {i}", transition


def _read_only(given: dict[str, Any]) -> MappingProxyType[str, Any]:
    return MappingProxyType(given)


def _reduced(given: MappingProxyType[str, Any]) -> tuple[Any, ...]:
    return _read_only, (dict(given),)


# `functionals` and `statistics` are copied and sent to other processes without their result
copyreg.pickle(MappingProxyType, _reduced)


def _read_only_array(given: NDArray[Any]) -> NDArray[Any]:
    given.flags.writeable = False
    return given


class _ResultPickler(pickle.Pickler):
    """Pickle a result, with the objects of its system by name."""

    def __init__(self, file: io.BytesIO, system: HybridSystem) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self._names = {id(member): name for name, member in _members(system)}

    def persistent_id(self, obj: Any) -> str | None:
        """Name of an object of the system."""
        if isinstance(obj, TransitionGraph):  # a system with changed initial values may hold that of the model
            return "graph"
        return self._names.get(id(obj))

    def reducer_override(self, obj: Any) -> Any:
        """Reduce results and their parts to their attributes; see `Portable`."""
        if isinstance(obj, Portable):
            return by_attributes(obj, obj._state())
        if isinstance(obj, np.ndarray) and not obj.flags.writeable:
            return _read_only_array, (obj.copy(),)
        return NotImplemented


class _ResultUnpickler(pickle.Unpickler):
    """Unpickle the output of `_ResultPickler`."""

    def __init__(self, file: io.BytesIO, system: HybridSystem) -> None:
        super().__init__(file)
        self._members = dict(_members(system))

    def persistent_load(self, pid: str) -> Any:
        """Object of the system with a name."""
        return self._members[pid]


def packed(result: PortableResult, system: HybridSystem) -> bytes:
    """Pickle a result of a system.

    Raises
    ------
    UnsupportedError
        It holds an object of the caller that pickle refuses, such as a function without a name.
    """
    file = io.BytesIO()
    try:
        _ResultPickler(file, system).dump(result)
    except (pickle.PicklingError, TypeError, AttributeError) as reason:
        raise UnsupportedError(
            f"This {type(result).__name__} cannot be pickled: {reason}.",
            remedy="Pass functions of a module as options (preconditioner=), or pickle numbers: sol['y'], "
            "dict(sol.functionals), gradient.",
        ) from reason
    return file.getvalue()


def unpacked(system: HybridSystem, content: bytes) -> Any:
    """Restore a result, given its rebuilt system."""
    return _ResultUnpickler(io.BytesIO(content), system).load()
