"""Parse declarations.h: its constants, and its structs as ctypes classes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from ctypes import Structure, c_double, c_int, c_int64, c_long, c_void_p
from importlib.resources import files
from typing import Any

from dae_hybrid.interface.native_constants import as_c

#: parts of the C text, joined in this order
PARTS = (
    "declarations.h", "model.c", "callbacks.c", "sparse.c", "linear.c", "staggered.c", "runge_kutta.c", "guards.c",
    "steps.c", "arrival.c", "resting_guards.c", "event_loop.c", "sweep.c", "stiffness.c", "native_run.c",
    "conditions.c", "batch.c",
)  # fmt: skip
#: scalar types; pointers and functions are addresses
TYPES: Mapping[str, Any] = {"double": c_double, "integer": c_int64, "int": c_int, "long": c_long}
ADDRESSES = ("vector", "casadi_function")


def source() -> str:
    """Return the C text: the generated constants followed by the parts."""
    return "\n".join((as_c(), *map(_text, PARTS)))


def _text(part: str) -> str:
    return files("dae_hybrid.adapters.sundials").joinpath("native", part).read_text()


def _constants(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {"DBL_EPSILON": 2.0**-52}
    for defined, value, listed in re.findall(r"#define (\w+) (.+)|enum \{([^}]*)\}", text):
        latest = -1
        for name, given in [(defined, value)] if defined else re.findall(r"(\w+)(?:\s*=\s*([^,]+))?", listed):
            latest = found[name] = eval(given, {}, found) if given else latest + 1
    return found


def _structs(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for body, name in re.findall(r"typedef struct(?: \w+)? \{([^}]*)\} (\w+);", text):
        fields = [field for line in body.split(";") if line.strip() for field in _fields(line, found)]
        found[name] = type(
            name, (Structure,), {"_fields_": fields, "__slots__": (), "__doc__": f"`{name}` of declarations.h."}
        )
    return found


def _fields(line: str, structs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a declaration with their ctypes types."""
    if functions := re.findall(r"\(\*(\w+)\)\(", line):
        yield from ((name, c_void_p) for name in functions)
        return
    base, names = re.sub(r"\b(const|struct)\b", " ", line).split(None, 1)
    for declared in names.split(","):
        stars, name, length = re.findall(r"(\**)(\w+)(?:\[(.+)\])?\s*$", declared)[0]
        kind = c_void_p if stars or base in ADDRESSES else TYPES.get(base) or structs[base]
        yield name, kind * eval(length, {}, dict(CONSTANTS)) if length else kind


_DECLARED = re.sub(r"/\*.*?\*/", "", as_c() + _text(PARTS[0]), flags=re.DOTALL)
CONSTANTS: Mapping[str, Any] = _constants(_DECLARED)
STRUCTS: Mapping[str, Any] = _structs(_DECLARED)
