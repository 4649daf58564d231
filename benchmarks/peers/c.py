"""P2 by hand in C on the SUNDIALS that the library uses: c/em_hysteresis.c, which measures its own CPU time."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from c.build import BuildError, build

from peers import Answer, Task, UnsupportedError

name = "plain C"
FAMILIES = {"CVODES Adams": "cvodes-adams", "CVODES BDF": "cvodes-bdf", "IDAS on the DAE": "idas"}
REPEATS = 50


def version() -> str:
    return f"C on the SUNDIALS of sundials4py {metadata.version('sundials4py')}"


def rows(case: str) -> list[str]:
    if case != "P2":
        raise UnsupportedError("the program is for P2")
    return list(FAMILIES)


def prepare(case: str, row: str, rtol: float, atol: float) -> Mapping[str, Task]:
    assert case == "P2"
    folder = Path(os.environ.get("BENCHMARK_CACHE") or tempfile.mkdtemp())
    try:
        program = build(folder)
    except BuildError as error:
        raise UnsupportedError(str(error)) from error
    command = [str(program), FAMILIES[row]]
    rest = [repr(rtol), repr(atol), str(REPEATS)]

    def task(which: str) -> Task:
        def call() -> Any:
            done = subprocess.run([*command, which, *rest], capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(done.stderr.strip())
            return json.loads(done.stdout)

        def read(reply: Any) -> Answer:
            return Answer(reply["G"], None if which == "forward" else reply["gradient"], reply["events"])

        return Task(call, read, lambda reply: float(reply["cpu_ms"]["median"]))

    return {key: task(which) for key, which in (("solve", "forward"), ("forward", "fsa"), ("adjoint", "asa"))}
