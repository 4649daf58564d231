"""The layout of documents as text: deterministic, made to be read and edited."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

WIDTH = 110
#: tables of named things, whose order counts
NAMED = ("parameters", "variables", "tables", "functions", "clocks", "modes", "equations", "transitions", "functionals")


def toml_text(document: Mapping[str, Any]) -> str:
    """A document as TOML.

    Examples
    --------
    >>> from dae_hybrid.modelfile.layout import toml_text
    >>> print(toml_text({"name": "ball", "parameters": {"g": 9.81}}), end="")
    name = "ball"
    <BLANKLINE>
    [parameters]
    g = 9.81
    """
    lines: list[str] = []
    _section(lines, (), document)
    return "\n".join(lines).strip("\n") + "\n"


def _section(lines: list[str], path: tuple[str, ...], table: Mapping[str, Any]) -> None:
    own, below = dict[str, Any](), dict[str, Any]()
    sections = path == () or (len(path) == 1 and path[0] in NAMED and (path[0] == "modes" or not _all_fit(table)))
    for key, value in table.items():
        is_section = isinstance(value, dict) and "csv" not in value and (sections or not _fits(key, value))
        (below if is_section else own)[key] = value
    if path and (own or not below):
        lines += ["", f"[{'.'.join(map(_key, path))}]"]
    lines += [f"{_key(key)} = {_value(value)}" for key, value in own.items()]
    for key, value in below.items():
        _section(lines, (*path, key), value)


def _all_fit(table: Mapping[str, Any]) -> bool:
    return all(not isinstance(value, dict) or _fits(key, value) for key, value in table.items())


def _fits(key: str, value: Any) -> bool:
    return len(_key(key)) + 3 + len(_inline(value)) <= WIDTH


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _string(key)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _scalar(value: Any) -> str:
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value)


def _inline(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_key(key)} = {_inline(part)}' for key, part in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_inline, value))}]"
    return _scalar(value)


def _value(value: Any, indent: str = "") -> str:
    """A value, lists over several lines where one is too long."""
    text = _inline(value)
    if len(indent) + len(text) <= WIDTH or not isinstance(value, list | Mapping):
        return text
    if isinstance(value, Mapping):  # TOML keeps an inline table on one line, except for lists in it
        return f"{{{', '.join(f'{_key(key)} = {_value(part, indent)}' for key, part in value.items())}}}"
    inner = f"{indent}    "
    return f"[\n{_wrapped([_value(part, inner) for part in value], value, inner)}{indent}]"


def _wrapped(texts: Sequence[str], values: Sequence[Any], indent: str) -> str:
    """Entries of a list: numbers side by side, others one below the other."""
    lines, line = [], ""
    for text, value in zip(texts, values, strict=True):
        side_by_side = isinstance(value, float | int)
        if line and (not side_by_side or len(line) + len(text) + 2 > WIDTH):
            lines.append(line)
            line = ""
        line = f"{line} {text}," if line else f"{indent}{text},"
    return "\n".join([*lines, line]) + "\n"


def json_text(document: Mapping[str, Any]) -> str:
    """A document as JSON; infinite numbers become the strings ``"inf"`` and ``"-inf"``.

    Examples
    --------
    >>> from dae_hybrid.modelfile.layout import json_text
    >>> print(json_text({"name": "ball", "parameters": {"g": 9.81}}), end="")
    {"name": "ball", "parameters": {"g": 9.81}}
    """
    return _json(_finite(document), "") + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_finite(part) for part in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def _json(value: Any, indent: str) -> str:
    text = json.dumps(value, ensure_ascii=False)
    if len(indent) + len(text) <= WIDTH or not isinstance(value, list | Mapping):
        return text
    inner = f"{indent}  "
    if isinstance(value, Mapping):
        parts = [f"{inner}{json.dumps(k, ensure_ascii=False)}: {_json(v, inner)}" for k, v in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{indent}}}"
    body = _wrapped([_json(part, inner) for part in value], value, inner).removesuffix(",\n")
    return f"[\n{body}\n{indent}]"
