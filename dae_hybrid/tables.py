"""Plain-text and Markdown tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence


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


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table: heading in the first row, first column left-aligned, others right-aligned."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    rule = "|---|" + "---:|" * (len(rows[0]) - 1)
    return "\n".join([lines[0], rule, *lines[1:]])
