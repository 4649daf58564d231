"""Write the results table of README.md and its pictures: ``python docs/update_readme.py``."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from pathlib import Path

from dae_hybrid.cli import main

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- results: begin[^\n]*-->\n).*?(<!-- results: end -->)", re.DOTALL)


def update() -> int:
    """Reproduce everything, then replace what is between the markers and every picture in docs/images."""
    readme, images = ROOT / "README.md", ROOT / "docs" / "images"
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.md"
        code = main(["reproduce", "--all", "--output", folder, "--markdown", str(table)])
        if code:
            return code
        text = readme.read_text(encoding="utf-8")
        new = BLOCK.sub(lambda found: found[1] + table.read_text(encoding="utf-8") + found[2], text)
        readme.write_text(new, encoding="utf-8")
        images.mkdir(exist_ok=True)
        for name in sorted(set(re.findall(r"docs/images/([\w.]+)", text))):
            shutil.copy(Path(folder) / name, images / name)
    return 0


if __name__ == "__main__":
    sys.exit(update())
