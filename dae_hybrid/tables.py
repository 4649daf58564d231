"""Plain-text and Markdown tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape

import numpy as np
from numpy.typing import ArrayLike


def align(rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> list[str]:
    """Return the lines of a table with aligned columns, the first row underlined.

    Parameters
    ----------
    rows : sequence of rows of str
        All of the same length; the first is the heading.
    left : collection of int
        Left-aligned columns; the others are right-aligned.

    Examples
    --------
    >>> from dae_hybrid.tables import align
    >>> for line in align([["name", "value"], ["G", "1.5"]]):
    ...     print(line)
    name  value
    ----  -----
    G       1.5
    """
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]


def html(heading: str, rows: Sequence[Sequence[str]]) -> str:
    """A table in HTML under a heading, for notebooks; the first row has the names of the columns.

    Examples
    --------
    >>> from dae_hybrid.tables import html
    >>> html("<G>", [["name"], ["x < 1"]])
    '<table><caption>&lt;G&gt;</caption><tr><th>name</th></tr><tr><td>x &lt; 1</td></tr></table>'
    """
    lines = [
        "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)
        for tag, row in zip(("th", *("td",) * (len(rows) - 1)), rows, strict=True)
    ]
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><caption>{escape(heading)}</caption>{body}</table>"


def in_short(value: ArrayLike) -> str:
    """A number with six digits, or the first and last ones of several."""
    return np.array2string(np.squeeze(value), threshold=6, formatter={"float_kind": "{:.6g}".format})


def counted(count: int, what: str) -> str:
    """A number of things in words: "1 mode", "2 modes"."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table: heading in the first row, first column left-aligned, others right-aligned."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    rule = "|---|" + "---:|" * (len(rows[0]) - 1)
    return "\n".join([lines[0], rule, *lines[1:]])
