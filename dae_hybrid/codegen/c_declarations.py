"""Parse declarations in C text: constants, and structs as ctypes classes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from ctypes import Structure, c_double, c_int, c_int64, c_long, c_void_p
from typing import Any

#: scalar types; pointers and functions are addresses
TYPES: Mapping[str, Any] = {"double": c_double, "integer": c_int64, "int": c_int, "long": c_long}
ADDRESSES = ("vector", "casadi_function")


def declarations(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the constants of a C text and its structs, by name.

    Examples
    --------
    >>> from dae_hybrid.codegen.c_declarations import declarations
    >>> constants, structs = declarations("enum { N = 2 }; typedef struct { double x[N], *y; } point;")
    >>> constants["N"], list(structs["point"](x=(1.0, 2.0)).x)
    (2, [1.0, 2.0])
    """
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    constants = _constants(text)
    return constants, _structs(text, constants)


def _constants(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {"DBL_EPSILON": 2.0**-52}
    for defined, value, listed in re.findall(r"#define (\w+) (.+)|enum \{([^}]*)\}", text):
        latest = -1
        for name, given in [(defined, value)] if defined else re.findall(r"(\w+)(?:\s*=\s*([^,]+))?", listed):
            latest = found[name] = eval(given, {}, found) if given else latest + 1
    return found


def _structs(text: str, constants: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for body, name in re.findall(r"typedef struct(?: \w+)? \{([^}]*)\} (\w+);", text):
        fields = [field for line in body.split(";") if line.strip() for field in _fields(line, found, constants)]
        members = {"_fields_": fields, "__slots__": (), "__doc__": f"`{name}` of the C text."}
        found[name] = type(name, (Structure,), members)
    return found


def _fields(line: str, structs: Mapping[str, Any], constants: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a declaration with their ctypes types."""
    if functions := re.findall(r"\(\*(\w+)\)\(", line):
        yield from ((name, c_void_p) for name in functions)
        return
    base, names = re.sub(r"\b(const|struct)\b", " ", line).split(None, 1)
    for declared in names.split(","):
        stars, name, length = re.findall(r"(\**)(\w+)(?:\[(.+)\])?\s*$", declared)[0]
        kind = c_void_p if stars or base in ADDRESSES else TYPES.get(base) or structs[base]
        yield name, kind * eval(length, {}, dict(constants)) if length else kind
