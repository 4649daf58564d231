"""Draw the pictures of docs/recipes.md: ``python benchmarks/recipes.py``.

Runs the code blocks of the page; a picture shows the variables ``shown`` of the run ``sol`` of the block before it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
PAGE = Path(__file__).resolve().parents[1] / "docs" / "recipes.md"


def main() -> None:
    """Draw every picture of the page."""
    names: dict[str, Any] = {}
    text = PAGE.read_text(encoding="utf-8")
    for block, picture in re.findall(r"```python\n(.*?)```|!\[[^\]]*\]\(([^)]+)\)", text, re.DOTALL):
        if block:
            exec(block, names)
            continue
        axes = names["sol"].plot(*names["shown"])
        figure = axes[0].figure if hasattr(axes, "__len__") else axes.figure
        figure.savefig(PAGE.parent / picture, dpi=110, bbox_inches="tight")
        print(PAGE.parent / picture)


if __name__ == "__main__":
    main()
