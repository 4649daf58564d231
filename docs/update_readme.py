"""Write the tables of README.md and docs/adapters.md and the pictures: ``python docs/update_readme.py``."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path

from dae_hybrid.cli import main
from dae_hybrid.interface.registry import BUILT_IN, capability_table
from dae_hybrid.tables import markdown

ROOT = Path(__file__).resolve().parent.parent
CAPABILITIES = re.compile(r"(<!-- capabilities: begin[^\n]*-->\n).*?(<!-- capabilities: end -->)", re.DOTALL)
BLOCK = re.compile(r"(<!-- results: begin[^\n]*-->\n).*?(<!-- results: end -->)", re.DOTALL)


def update_capabilities() -> None:
    """Replace the table of docs/adapters.md by the declared capabilities."""
    page = ROOT / "docs" / "adapters.md"
    heading, *rows = capability_table()
    table = markdown([heading, *(row for row in rows if row[0] in BUILT_IN)])
    text = page.read_text(encoding="utf-8")
    page.write_text(CAPABILITIES.sub(lambda found: f"{found[1]}{table}\n{found[2]}", text), encoding="utf-8")


def update() -> int:
    """Reproduce all results, then replace the text between the markers and the pictures of the pages."""
    update_capabilities()
    readme, images = ROOT / "README.md", ROOT / "docs" / "images"
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.md"
        code = main(["reproduce", "--all", "--output", folder, "--markdown", str(table)])
        if code:
            return code
        text = readme.read_text(encoding="utf-8")
        new = BLOCK.sub(lambda found: found[1] + table.read_text(encoding="utf-8") + found[2], text)
        readme.write_text(new, encoding="utf-8")
        mechanics = (ROOT / "docs" / "mechanics.md").read_text(encoding="utf-8")
        shown = {
            images: re.findall(r"docs/images/([\w.]+)", text),
            ROOT / "docs" / "mechanics": re.findall(r"\(mechanics/([\w.]+)\)", mechanics),
        }
        for place, pictures in shown.items():
            place.mkdir(exist_ok=True)
            for name in sorted(set(pictures)):
                shutil.copy(Path(folder) / name, place / name)
    return 0


if __name__ == "__main__":
    sys.exit(update())
