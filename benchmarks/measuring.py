"""Common functions of the benchmarks: CPU time of a call, and tables in pages."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from dae_hybrid.tables import align, markdown


def cpu_ms(run: Callable[[], Any], repeats: int) -> float:
    """Median CPU time of a call, in milliseconds."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(1e3 * (time.process_time() - start))
    return median(times)


def least_ms(run: Callable[[], Any]) -> float:
    """The least CPU time of a warm call, in milliseconds; of calls that take long there is one."""
    found, run_again = math.inf, 5
    while run_again > 0:
        start = time.process_time()
        run()
        spent = 1e3 * (time.process_time() - start)
        found, run_again = min(found, spent), 0 if spent > 2000 else run_again - 1
    return found


def exponent(a: float, b: float, factor: float) -> float:
    """The exponent by which a cost has grown from a to b where the size has by a factor."""
    return math.log(b / a) / math.log(factor)


def show(rows: Sequence[Sequence[str]], page: Path | None, name: str) -> None:
    """Print a table, and put it into a page, if any."""
    print("", *align(rows), sep="\n")
    if page is not None:
        put(page, {name: markdown(rows)})


def put(page: Path, tables: Mapping[str, str]) -> None:
    """Replace what stands between ``<!-- name: begin -->`` and ``<!-- name: end -->`` of a page, for every table."""
    text = page.read_text(encoding="utf-8")
    for name, table in tables.items():
        marked = re.compile(rf"(<!-- {name}: begin[^\n]*-->\n).*?(<!-- {name}: end -->)", re.DOTALL)
        text, count = marked.subn(lambda found, table=table: f"{found[1]}{table.rstrip()}\n{found[2]}", text)
        if count != 1:
            raise ValueError(f"{page.name} has {count} places for the table {name}")
    page.write_text(text, encoding="utf-8")
