"""Load on a service: requests per second, latency, and memory at overload.

    python benchmarks/service.py [--seconds 5] [--minutes 10] [--only load overload] [--write]

The service runs in a process of its own with two workers; the clients are coroutines of this process that share the
cores with it. ``--write`` puts the tables into docs/service.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np
import psutil
from measuring import put

import dae_hybrid as dh
from dae_hybrid.problems import em_hysteresis
from dae_hybrid.tables import align

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))
from service import RunningService, running  # noqa: E402

PAGE = ROOT / "docs" / "service.md"
#: requests that are timed, and the same calls of the library
BODIES: dict[str, dict[str, Any]] = {"simulate": {"points": 100}, "gradient": {}}
CALLS: dict[str, Callable[[], Any]] = {
    "simulate": partial(
        dh.simulate, em_hysteresis.system(), (0, 10), t_eval=np.linspace(0, 10, 100), rtol=1e-8, atol=1e-12
    ),
    "gradient": partial(dh.adjoint_gradient, em_hysteresis.system(), (0, 10), rtol=1e-8, atol=1e-12),
}
WORKERS, QUEUE = 2, 32


async def client(port: int, action: str, end: float, seen: list[tuple[int, float]]) -> None:
    """Send requests on one connection, one after the other; collect status and latency."""
    body = json.dumps(BODIES[action]).encode()
    request = (
        f"POST /v1/models/em_hysteresis/{action} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
    while time.perf_counter() < end:
        begin = time.perf_counter()
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(head.partition(b"content-length:")[2].split(b"\r\n")[0]))
        seen.append((int(head.split()[1]), time.perf_counter() - begin))
    writer.close()


async def clients(port: int, action: str, count: int, seconds: float) -> list[tuple[int, float]]:
    """Run clients at the same time."""
    seen: list[tuple[int, float]] = []
    end = time.perf_counter() + seconds
    await asyncio.gather(*(client(port, action, end, seen) for _ in range(count)))
    return seen


def port_of(service: RunningService) -> int:
    """Port of a service."""
    return int(service.url.rpartition(":")[2])


def load(seconds: float) -> list[list[str]]:
    """Throughput and latency of both requests at 1, 8 and 64 clients."""
    rows = [["request", "clients", "per second", "median / ms", "99 % / ms", "solve / ms", "share of the solve"]]
    with running("em_hysteresis", workers=WORKERS, queue=100) as service:
        for action, call in CALLS.items():
            solve = timed(call)
            asyncio.run(clients(port_of(service), action, 2, 1.0))  # warms up
            for count in (1, 8, 64):
                seen = asyncio.run(clients(port_of(service), action, count, seconds))
                assert {status for status, _ in seen} == {200}
                latencies = [latency for _, latency in seen]
                rate = len(seen) / seconds
                share = solve / median(latencies) if count == 1 else solve * rate / WORKERS
                rows.append([
                    action, str(count), f"{rate:.0f}", f"{1e3 * median(latencies):.1f}",
                    f"{1e3 * quantiles(latencies, n=100)[98]:.1f}", f"{1e3 * solve:.2f}", f"{100 * share:.0f} %",
                ])  # fmt: skip
    return rows


def timed(call: Callable[[], Any]) -> float:
    """Median time of a call in this process."""
    times = []
    for _ in range(50):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return median(times)


def overload(minutes: float) -> list[list[str]]:
    """Answers and memory, minute by minute, with 100 clients more than the service admits."""
    rows = [["minute", "answered / s", "refused / s", "service / MB", "workers / MB", "open files"]]
    with running("em_hysteresis", workers=WORKERS, queue=QUEUE) as service:
        process = psutil.Process(service.process.pid)
        for minute in range(round(minutes) + 1):
            if minute:
                seen = asyncio.run(clients(port_of(service), "gradient", WORKERS + QUEUE + 100, 60.0))
                counts = Counter(status for status, _ in seen)
                assert set(counts) <= {200, 503}
                answered, refused = f"{counts[200] / 60:.0f}", f"{counts[503] / 60:.0f}"
            else:
                answered = refused = ""
            workers = sum(child.memory_info().rss for child in process.children()) / 1e6
            memory = process.memory_info().rss / 1e6
            rows.append([str(minute), answered, refused, f"{memory:.0f}", f"{workers:.0f}", str(process.num_fds())])
            print(*rows[-1], flush=True)
    return rows


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="time per row of the first table")
    parser.add_argument("--minutes", type=float, default=10.0, help="time at overload")
    parser.add_argument("--only", nargs="+", choices=("load", "overload"), default=("load", "overload"))
    parser.add_argument("--write", action="store_true", help="put the tables into docs/service.md")
    given = parser.parse_args()
    makers = {"load": lambda: load(given.seconds), "overload": lambda: overload(given.minutes)}
    for name in given.only:
        text = "\n".join(align(makers[name](), left=(0,)))
        print(f"\n{text}", flush=True)
        if given.write:
            put(PAGE, {name: f"```\n{text}\n```"})


if __name__ == "__main__":
    main()
