"""One peer in a process of its own: ``python worker.py PEER`` lists what it does, with a job on top measures it.

Replies are lines of JSON on the standard output, each written as soon as it is known, so that a crash or a time-out
loses only what came after. Whatever the peer prints goes to the standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any

from cases import CASES, FORMS
from peers import TASKS, Task, UnsupportedError, load

#: no further tolerance once a call takes this time, in seconds
LONG = 10.0

Emit = Callable[..., None]


def main(peer: str, job: Mapping[str, Any] | None, emit: Emit) -> None:
    """List or measure."""
    # tools of the peer's environment that its interpreter does not put there, such as AMICI's swig
    os.environ["PATH"] = os.pathsep.join((os.path.dirname(sys.executable), os.environ.get("PATH", "")))
    try:
        module = load(peer)
    except ImportError as error:
        emit(missing=str(error))
        return
    if job is not None:
        measure(module, job, emit)
        return
    rows, unsupported = {}, {}
    for case in (*CASES, *FORMS):
        try:
            rows[case] = module.rows(case)
        except UnsupportedError as error:
            unsupported[case] = str(error)
    emit(name=module.name, version=module.version(), rows=rows, unsupported=unsupported)


def measure(peer: Any, job: Mapping[str, Any], emit: Emit) -> None:
    """Build, then the timings at the first tolerance, then at the others with less patience."""
    (rtol, atol), *others = job["tolerances"]
    start = time.perf_counter()
    tasks = _prepared(peer, job, rtol, atol, emit)
    built = time.perf_counter() - start
    failed = {}
    for key, task in tasks.items():
        start = time.perf_counter()
        _, failed[key] = _guarded(task.call)
        if task.own is None:
            emit(first=key, seconds=time.perf_counter() - start)
    emit(build=built)
    if job["build_only"]:
        return
    for key, task in tasks.items():
        if error := failed[key]:  # later errors may be consequences
            emit(rtol=rtol, atol=atol, task=key, failed=_said(error), unsupported=isinstance(error, UnsupportedError))
        else:
            _timed(key, task, rtol, atol, job["seconds"], emit, least=3)
    done: set[str] = set()
    for rtol, atol in others:
        for key, task in _prepared(peer, job, rtol, atol, emit).items():
            if key not in done and _timed(key, task, rtol, atol, job["seconds"] / 4, emit) > LONG:
                done.add(key)


def _prepared(peer: Any, job: Mapping[str, Any], rtol: float, atol: float, emit: Emit) -> dict[str, Task]:
    try:
        tasks = peer.prepare(job["case"], job["row"], rtol, atol)
    except Exception as error:
        emit(rtol=rtol, atol=atol, task=None, failed=_said(error), unsupported=isinstance(error, UnsupportedError))
        return {}
    return {key: tasks[key] for key in TASKS if key in tasks}


def _guarded(call: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Result or error; a panic of Rust is no `Exception`."""
    try:
        return call(), None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return None, error


def _timed(key: str, task: Task, rtol: float, atol: float, seconds: float, emit: Emit, least: int = 1) -> float:
    """Emit the median CPU time of a warm call, measured for about `seconds`; return the duration of the first."""
    about = {"rtol": rtol, "atol": atol, "task": key}
    start = time.perf_counter()
    result, error = _guarded(task.call)
    if error is None:
        answer, error = _guarded(lambda: task.read(result))
    once = time.perf_counter() - start
    if error is not None:
        emit(**about, failed=_said(error), unsupported=isinstance(error, UnsupportedError))
        return once
    if task.own is not None:
        emit(**about, **answer._asdict(), cpu_ms=task.own(result))
        return once
    bunch = max(1, int(2e-4 / max(once, 1e-7)))  # short calls together: the clock takes its time, too
    times: list[float] = []
    while len(times) < least or (sum(times) * bunch < seconds and len(times) < 200):
        start = time.process_time()
        for _ in range(bunch):
            task.call()
        times.append((time.process_time() - start) / bunch)
    emit(**about, **answer._asdict(), cpu_ms=1e3 * median(times))
    return once


def _said(error: BaseException) -> str:
    """One-line description of an error, without file names."""
    lines = str(error).strip().splitlines() or [""]
    text = lines[-1] if "Error" in lines[0] and len(lines) > 1 else lines[0]
    return f"{type(error).__name__}: {text}"[:200]


if __name__ == "__main__":
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def write(**reply: Any) -> None:
        print(json.dumps(reply), file=replies, flush=True)

    main(sys.argv[1], json.loads(sys.argv[2]) if len(sys.argv) > 2 else None, write)
