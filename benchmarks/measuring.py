"""What the scripts of this folder share: the CPU time of a call, and tables that are put into pages."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any


def cpu_ms(run: Callable[[], Any], repeats: int) -> float:
    """Median CPU time of a call, in milliseconds."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(1e3 * (time.process_time() - start))
    return median(times)


def put(page: Path, tables: Mapping[str, str]) -> None:
    """Replace what stands between ``<!-- name: begin -->`` and ``<!-- name: end -->`` of a page, for every table."""
    text = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        marked = re.compile(rf"(<!-- {name}: begin[^\n]*-->\n).*?(<!-- {name}: end -->)", re.DOTALL)
        text, count = marked.subn(lambda found, table=table: f"{found[1]}{table.rstrip()}\n{found[2]}", text)
        if count != 1:
            raise ValueError(f"{page.name} has {count} places for the table {name}")
    page.write_text(text, encoding="utf-8")
