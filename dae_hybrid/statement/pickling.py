"""Pickling of models: expressions by CasADi's serialiser, everything else by pickle."""

from __future__ import annotations

import copyreg
import io
import pickle
from typing import Any

import casadi as ca

from dae_hybrid.errors import UnsupportedError
from dae_hybrid.statement.declarations import Statement

REMEDY = (
    "State the model in a function of a module, call that function in each worker process, and send parameters there "
    "and results back."
)
#: classes of functions that are code of this process or of a library, not expressions
FOREIGN = ("Callback", "External", "Importer")


def by_attributes(obj: Any, attributes: dict[str, Any]) -> tuple[Any, ...]:
    """Reduce an object to attributes, past its own `__reduce__`."""
    return copyreg.__newobj__, (type(obj),), attributes  # type: ignore[attr-defined]  # missing in the stubs


class _StatementPickler(pickle.Pickler):
    """Pickle statements without their expressions, and list these."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.expressions: list[ca.MX] = []
        self._places: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        """Index of an expression in the list."""
        if not isinstance(obj, ca.MX):
            return None
        key = obj.__hash__()
        if key not in self._places:
            self._places[key] = len(self.expressions)
            self.expressions.append(obj)
        return self._places[key]

    def reducer_override(self, obj: Any) -> Any:
        """Reduce parts of a statement to their attributes."""
        return by_attributes(obj, obj.__dict__) if isinstance(obj, Statement) else NotImplemented


class _StatementUnpickler(pickle.Unpickler):
    """Unpickle the output of `_StatementPickler`."""

    def __init__(self, file: io.BytesIO, expressions: list[ca.MX]) -> None:
        super().__init__(file)
        self._expressions = expressions

    def persistent_load(self, pid: int) -> ca.MX:
        """Expression at an index."""
        return self._expressions[pid]


def packed(statement: Statement) -> tuple[bytes, str]:
    """Pickle a statement: its attributes, and its expressions.

    Raises
    ------
    UnsupportedError
        It calls functions of Python or of a shared library, or holds an object that pickle refuses.
    """
    what, file = type(statement).__name__, io.BytesIO()
    writer, serializer = _StatementPickler(file), ca.StringSerializer()
    try:
        writer.dump(statement)
    except (pickle.PicklingError, TypeError, AttributeError) as reason:
        raise UnsupportedError(f"This {what} cannot be pickled: {reason}.", remedy=REMEDY) from reason
    _refuse_foreign(what, writer.expressions)
    serializer.pack(writer.expressions)
    return file.getvalue(), serializer.encode()


def unpacked(content: bytes, expressions: str) -> Any:
    """Restore a statement with fresh symbols."""
    return _StatementUnpickler(io.BytesIO(content), ca.StringDeserializer(expressions).unpack()).load()


def _refuse_foreign(what: str, expressions: list[ca.MX]) -> None:
    """Refuse functions that CasADi cannot serialise."""
    column = ca.veccat(ca.MX(0, 1), *expressions)
    called = ca.Function("statement", ca.symvar(column), [column]).find_functions()
    foreign = sorted({f.name() for f in called if any(kind in f.class_name() for kind in FOREIGN)})
    if foreign:
        raise UnsupportedError(
            f"This {what} cannot be pickled: it calls {', '.join(foreign)}, which is code outside of its expressions.",
            remedy=REMEDY,
        )
