"""An ensemble in a process of its own, which prints its progress and its costs as lines of JSON.

    python benchmarks/ensemble_client.py '{"count": 1000, "executor": "processes", "workers": 2}'

`executor` may be "batch" for `dh.batch`, "pool" for a `ProcessPoolExecutor`, or what `dh.ensemble` takes. `kill` is the
id of a process that is killed when half of the runs are done, or 0 for a worker process of this one; `stop` ends the
ensemble then.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from threading import Event, Thread
from typing import Any

import numpy as np
import psutil

import dae_hybrid as dh

SPAN = (0.0, 2.0)


def ball() -> dh.HybridSystem:
    """A ball that falls from a height h and bounces with a restitution e."""
    m = dh.HybridModel("ball")
    g, e, h = m.parameter("g", 9.81), m.parameter("e", 0.8), m.parameter("h", 1.0)
    y, v = m.differential("y", unit="m"), m.differential("v", unit="m/s")
    flight = m.mode("flight", ode={y: v, v: -g})
    m.transition(flight, flight, guard=y, direction="falling", reset={v: -e * v}, name="bounce")
    m.initial(flight, {y: h, v: 0.0})
    m.functional("height", terminal=y)
    return m.build()


def table(count: int) -> dict[str, np.ndarray]:
    """Random restitutions and heights."""
    rng = np.random.default_rng(0)
    return {"e": rng.uniform(0.7, 0.9, count), "h": rng.uniform(0.8, 1.2, count)}


class Watch:
    """Prints progress, kills or stops at half, and samples the resident memory."""

    def __init__(self, task: dict[str, Any]) -> None:
        self._task, self._is_over, self._ended = task, False, Event()
        self.done, self.samples = 0, list[tuple[float, int, float]]()
        self._begin = time.monotonic()
        self._thread = Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        process = psutil.Process()
        while True:
            self.samples.append((time.monotonic() - self._begin, self.done, process.memory_info().rss / 2**20))
            if self._ended.wait(self._task.get("sample", 1.0)):
                return

    def __call__(self, report: Any) -> None:
        self.done = report.done
        print(json.dumps({"done": report.done, "seconds": time.monotonic() - self._begin}), flush=True)
        if self._is_over or report.done < report.total / 2:
            return
        self._is_over = True
        if self._task.get("stop"):
            raise StopIteration
        if (pid := self._task.get("kill")) is not None:
            os.kill(pid or psutil.Process().children()[0].pid, signal.SIGKILL)

    def close(self) -> None:
        """End the sampling."""
        self._ended.set()
        self._thread.join()


def pool(workers: int) -> ProcessPoolExecutor:
    """Fresh processes of the standard library."""
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"))


def call(task: dict[str, Any], watch: Watch) -> Any:
    """The ensemble, or the batch with which it is compared."""
    system, executor, workers = ball(), task["executor"], task.get("workers")
    shared: dict[str, Any] = {"parameters": table(task["count"]), "gradient": task.get("gradient"), "workers": workers}
    if executor == "batch":
        return dh.batch(system, SPAN, **shared)
    shared["executor"] = partial(pool, workers) if executor == "pool" else executor
    return dh.ensemble(
        system, SPAN, store=task.get("store"), chunk=task.get("chunk"), progress=watch, **shared
    )  # fmt: skip


def main() -> None:
    """Carry out the task given as JSON."""
    task = json.loads(sys.argv[1])
    dh.batch(ball(), SPAN, workers=1)  # compiles
    watch, begin, cpu = Watch(task), time.monotonic(), time.process_time()
    found = call(task, watch)
    seconds, cpu = time.monotonic() - begin, time.process_time() - cpu
    watch.close()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = {"result": True, "seconds": seconds, "client": cpu, "children": used.ru_utime + used.ru_stime}
    result |= {"memory": watch.samples, "failed": int((~found.ok).sum()), **found.statistics}
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
