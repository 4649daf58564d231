"""docs/mathematics.md and architecture.md name functions that exist; the code cites the equations of the table."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "mathematics.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMED = sorted(set(re.findall(r"`(\w+/[\w/]+\.(?:py|c)(?:::[\w.]+)?)`", PAGE + ARCHITECTURE)))
TABLE = PAGE[PAGE.index("## 10.") : PAGE.index("## 11.")]
ROWS = re.findall(r"^\| (SR|CSS \d+|LDL) \| ([^|]+) \|[^|]+\| ([^|]+) \|$", TABLE, re.MULTILINE)
#: an equation with an asterisk is carried out without being cited
CITED = [
    (equation, place)
    for _, equations, places in ROWS
    for place in re.findall(r"`([^`]+)`", places)
    for equation in equations.split(", ")
    if not equation.endswith("*")
]
#: equations are listed within this number of characters after "eq."
REACH = 90


@cache
def source(path: str) -> str:
    """The text of a file named on the page."""
    outside = path.startswith(("adapters/", "problems/", "tests/"))
    return (ROOT / path if outside else ROOT / "dae_hybrid" / path).read_text(encoding="utf-8")


@cache
def definition(place: str) -> str:
    """Text of a function, class or module named on the page, with the docstrings of its class and module."""
    path, _, name = place.partition("::")
    text = source(path)
    if not name:
        return text
    if path.endswith(".c"):
        assert re.search(rf"^(?:static )?\w[\w *]*\b{name}\([^;{{]*\) {{", text, re.MULTILINE), place
        return text
    node: ast.AST = ast.parse(text)
    said = [ast.get_docstring(node) or ""]
    for part in name.split("."):
        found = [n for n in node.body if getattr(n, "name", None) == part]  # type: ignore[attr-defined]
        assert found, place
        node = found[-1]
        said.append(ast.get_docstring(node) or "")  # type: ignore[arg-type]
    return "\n".join([*said, ast.get_source_segment(text, node) or ""])


def cites(text: str, equation: str) -> bool:
    """Whether an equation is cited: its number behind "eq.", alone or within a range; other places word by word."""
    if not equation[0].isdigit():
        return equation in text
    for listed in re.findall(rf"eq\.((?:(?!eq\.)[\s\S]){{0,{REACH}}})", text):
        if re.search(rf"\b{equation}\b", listed):
            return True
        for first, last in re.findall(r"\b(\d+) to (\d+)\b", listed):
            if equation.isdigit() and int(first) <= int(equation) <= int(last):
                return True
    return False


@pytest.mark.parametrize("place", NAMED)
def test_functions_named_on_the_page_exist(place: str) -> None:
    assert definition(place)


def test_the_table_is_read_whole() -> None:
    lines = [line for line in TABLE.splitlines() if line.startswith(("| SR", "| CSS", "| LDL"))]
    assert len(ROWS) == len(lines) > 40
    assert all(place in NAMED for _, place in CITED)


@pytest.mark.parametrize(("equation", "place"), CITED)
def test_the_code_cites_the_equation(equation: str, place: str) -> None:
    assert cites(definition(place), equation)
