"""The part of `mutants.py` that runs within pytest: which tests pass which faults, and which test catches one.

`trace` watches the lines (Python, by `sys.monitoring`) and the functions (C, by a mark that `mutants.py` writes into
them) in which faults are seeded. `judge` collects the tests once and forks for every fault: the child replaces what it
has imported, runs the tests that pass the fault, and ends at the first that fails.
"""

from __future__ import annotations

import ast
import ctypes
import gc
import json
import os
import select
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any
from warnings import catch_warnings, simplefilter

import pytest
from faults import Fault

TOOL = sys.monitoring.PROFILER_ID
MARKS = "dh_passed"  # the array in C


def settings() -> dict[str, Any]:
    """What `mutants.py` asks for."""
    return dict(json.loads(Path(os.environ["DAE_HYBRID_MUTANTS"]).read_text()))


def pytest_configure(config: pytest.Config) -> None:
    """Become the plugin that is asked for."""
    own = settings()
    config.pluginmanager.register({"trace": Trace, "judge": Judge}[own["task"]](own))


# -- which tests pass which faults ---------------------------------------------------------------------------------


class Trace:
    """Notes for every test the faults that it passes, and its duration."""

    def __init__(self, own: dict[str, Any]) -> None:
        self.root, self.out = own["tree"], Path(own["out"])
        self.lines: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        self.marks = 0
        for i, places in enumerate(own["places"]):
            for file, first, last in places:
                for line in range(first, last + 1):
                    self.lines[f"{self.root}/{file}"][line].append(i)
        self.of_mark: dict[int, list[int]] = {int(k): v for k, v in own["marks"].items()}
        self.passed: set[int] = set()
        self.tests: dict[str, dict[str, Any]] = {}
        sys.monitoring.use_tool_id(TOOL, "mutants")
        sys.monitoring.register_callback(TOOL, sys.monitoring.events.LINE, self.line)
        sys.monitoring.set_events(TOOL, sys.monitoring.events.LINE)

    def line(self, code: CodeType, line: int) -> Any:
        """A line is passed."""
        if (lines := self.lines.get(code.co_filename)) and line in lines:
            self.passed.update(lines[line])
        return sys.monitoring.DISABLE

    def libraries(self) -> Iterator[Any]:
        """The marks of every library that is loaded."""
        from dae_hybrid.codegen import compiler

        for library in list(compiler._loaded.values()):
            try:
                yield (ctypes.c_char * 4096).in_dll(library, MARKS)
            except ValueError:
                continue

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """One test."""
        self.passed.clear()
        for marks in self.libraries():
            ctypes.memset(marks, 0, 4096)
        sys.monitoring.restart_events()
        begin = time.perf_counter()
        result = yield
        duration = time.perf_counter() - begin
        for marks in self.libraries():
            for k, faults in self.of_mark.items():
                if marks[k] != b"\0":
                    self.passed.update(faults)
        self.tests[item.nodeid] = {"seconds": duration, "faults": sorted(self.passed)}
        return result

    def pytest_sessionfinish(self) -> None:
        """Every worker writes a file."""
        sys.monitoring.set_events(TOOL, sys.monitoring.events.NO_EVENTS)
        if self.tests:
            self.out.joinpath(f"trace-{os.getpid()}.json").write_text(json.dumps(self.tests))


# -- which test catches a fault --------------------------------------------------------------------------------------


class Judge:
    """Seeds one fault after the other, each in a child of its own."""

    def __init__(self, own: dict[str, Any]) -> None:
        self.own = own
        self.tree, self.out = Path(own["tree"]), Path(own["out"])

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """In place of running all tests."""
        items = {item.nodeid: item for item in session.items}
        for i, content in self.own["faults"]:
            fault = Fault(**{**content, "passed": tuple(content["passed"])})
            chosen = [items[name] for name in self.own["tests"][str(i)] if name in items]
            verdict = self.verdict(fault, chosen, self.own["limits"][str(i)])
            with self.out.open("a") as file:
                file.write(json.dumps({"fault": i, "tests": len(chosen), **verdict}) + "\n")
        return True

    def verdict(self, fault: Fault, items: list[pytest.Item], limit: float) -> dict[str, Any]:
        """Run the tests with the fault."""
        if not items:
            return {"outcome": "not passed", "by": "", "seconds": 0.0}
        path = self.tree / fault.installed
        text, state = path.read_bytes(), path.stat()
        begin = time.monotonic()
        reader, writer = os.pipe()
        path.write_bytes(fault.applied(text))
        try:
            pid = os.fork()
            if pid == 0:
                os.close(reader)
                self.child(fault, text, items, writer)
            os.close(writer)
            said = self.wait(reader, pid, limit)
        finally:
            path.write_bytes(text)
            os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
            os.close(reader)
        outcome, _, by = said.partition(" ")
        if not outcome:
            outcome, by = "caught", "crash"
        return {"outcome": outcome, "by": by, "seconds": round(time.monotonic() - begin, 1)}

    def wait(self, reader: int, pid: int, limit: float) -> str:
        """What the child says before it ends; its children end with it."""
        end, said = time.monotonic() + limit, b""
        while (left := end - time.monotonic()) > 0 and select.select([reader], [], [], left)[0]:
            if not (piece := os.read(reader, 4096)):
                break
            said += piece
            if said.endswith(b"\n"):
                break
        else:
            said = b"caught hang"
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        return said.decode().strip()

    def child(self, fault: Fault, text: bytes, items: list[pytest.Item], writer: int) -> None:
        """Run tests until one fails; never returns."""
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDWR)
        for handle in (0, 1, 2):
            os.dup2(nothing, handle)
        reporter = items[0].config.pluginmanager.getplugin("terminalreporter")
        if reporter is not None:
            reporter._tw._file = open(nothing, "w")  # noqa: SIM115  # until the process ends
        said = "survived"
        sys.dont_write_bytecode, os.environ["PYTHONDONTWRITEBYTECODE"] = True, "1"  # of its children, too
        try:
            seed(fault, self.tree, text)
            session = items[0].session
            for item, following in zip(items, [*items[1:], None], strict=True):
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if session.testsfailed:
                    said = f"caught {item.nodeid}"
                    break
        except Unseedable as reason:
            said = f"invalid {reason}"
        except BaseException as error:
            said = f"caught {type(error).__name__}"
        os.write(writer, f"{said}\n".encode())
        os._exit(0)


class Unseedable(Exception):
    """The fault is no program."""


def seed(fault: Fault, tree: Path, text: bytes) -> None:
    """Replace what has been imported."""
    if fault.file.endswith(".c"):
        _check_c(fault)
        return
    changed, name = fault.applied(text), str(tree / fault.installed)
    if fault.constant:
        _set_constant(fault, changed, text)
        return
    codes: dict[tuple[str, int], CodeType] = {}
    pending = [compile(changed, name, "exec", dont_inherit=True)]
    while pending:
        code = pending.pop()
        codes[code.co_qualname, code.co_firstlineno] = code
        pending += [own for own in code.co_consts if isinstance(own, CodeType)]
    for function in gc.get_objects():
        if isinstance(function, FunctionType) and function.__code__.co_filename == name:
            code = codes.get((function.__code__.co_qualname, function.__code__.co_firstlineno))
            if code is not None and code != function.__code__:
                try:
                    function.__code__ = code
                except ValueError as reason:  # another closure
                    raise Unseedable(reason) from reason


def _set_constant(fault: Fault, changed: bytes, text: bytes) -> None:
    def value(source: bytes) -> Any:
        for node in ast.parse(source).body:
            if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == fault.constant:
                return ast.literal_eval(node.value)
        raise Unseedable(fault.constant)

    before, after = value(text), value(changed)
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("dae_hybrid") and vars(module).get(fault.constant) == before:
            setattr(module, fault.constant, after)


def _check_c(fault: Fault) -> None:
    from dae_hybrid.adapters.ali3p import compiled
    from dae_hybrid.adapters.sundials import header
    from dae_hybrid.codegen import compiler, sparse_lu

    sparse_lu.source.cache_clear()
    with catch_warnings():
        simplefilter("ignore")
        if compiler.compile_source(compiled.source() if "ali3p" in fault.file else header.source()) is None:
            raise Unseedable("it does not compile")
