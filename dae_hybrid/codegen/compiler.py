"""The C compiler: turn C texts into loaded libraries, from the cache or compiled in the background.

Each library is built at most once per process. Compilers run as subprocesses, at most one per core; a thread waits
for each of them.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import math
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from dae_hybrid.cancellation import raise_if_cancelled
from dae_hybrid.codegen.cache import keep, load, open_cache, read
from dae_hybrid.codegen.split_source import is_straight
from dae_hybrid.errors import CompilerWarning

FLAGS = ("-O2", "-fno-math-errno", "-fPIC", "-shared")
#: straight-line code runs as fast with less optimisation, with bitwise equal results, and compiles in two thirds of the
#: time (measured with gcc); loops run up to 6 % slower
STRAIGHT = ("-O1", *FLAGS[1:])
#: flags for a library of several files
SEPARATE = ("-O1", "-fno-math-errno", "-fPIC", "-c")
COMPILE_TIMEOUT = 600.0
#: seconds to wait at interpreter exit for compilers that have been killed
EXIT_TIMEOUT = 5.0
#: interval in seconds at which a waiting thread asks for cancellation, and the main thread for signals
SIGNALS = 0.1

_warned: set[str] = set()


def warn_once(what: str, consequence: str) -> None:
    """Issue a warning once per process."""
    subject = what.partition(" (")[0]
    if subject not in _warned:
        warnings.warn(f"{what}{consequence}", CompilerWarning, stacklevel=3)
        _warned.add(subject)


@cache
def find_compiler() -> tuple[str, ...] | None:
    """Return the command of the C compiler: ``$CC``, ``cc``, ``gcc``, ``clang``, the ziglang wheel, or None."""
    if given := os.environ.get("CC", "").strip():
        return _words(given)
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return (path,)
    if find_spec("ziglang") is None:  # the extra [compiler]
        return None
    return (sys.executable, "-m", "ziglang", "cc")


def _words(command: str) -> tuple[str, ...]:
    """Split a command like a shell; a path with spaces may be quoted, or the whole command."""
    if shutil.which(command):
        return (command,)
    try:
        return tuple(shlex.split(command, posix=os.name == "posix"))
    except ValueError:  # unbalanced quotes: the error that follows names the first word
        return tuple(command.split())


@cache
def _compiler_identity(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, errors="replace", timeout=60, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return " ".join(command)
    return " ".join(command) + "\n" + done.stdout


def compiler_version() -> str:
    """The first line that the compiler says of its version; empty without a compiler."""
    command = find_compiler()
    return "" if command is None else _compiler_identity(command).partition("\n")[2].partition("\n")[0]


@cache
def _machine() -> str:
    """Describe the target of "native" tuning; a home directory may be shared by different machines."""
    try:
        first = Path("/proc/cpuinfo").read_text(errors="replace").partition("\n\n")[0].splitlines()
    except OSError:
        return platform.platform() + platform.processor()
    return "\n".join([platform.platform(), *(x for x in first if x.startswith(("model name", "flags", "Features")))])


class _Workshop:
    """The compilers of this process; a child process starts with an empty set."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.slots = threading.BoundedSemaphore(cores())
        self.compilers: dict[subprocess.Popen[bytes], bool] = {}
        self.under_way: dict[str, Compilation] = {}
        self.closed = False

    def close(self) -> None:
        """Kill running compilers at interpreter exit."""
        with self.lock:
            self.closed = True
            for process in list(self.compilers):
                self.kill(process)
            left, deadline = list(self.under_way.values()), time.monotonic() + EXIT_TIMEOUT
        for compilation in left:  # their scratch files are removed as well
            compilation.thread.join(max(0.0, deadline - time.monotonic()))

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a compiler, with its children if it has a process group."""
        with suppress(OSError):
            if self.compilers.get(process) and os.name == "posix":
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()


def cores() -> int:
    """Number of cores available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_loaded: dict[str, ctypes.CDLL] = {}
_workshop = _Workshop()
atexit.register(lambda: _workshop.close())


def _begin_anew() -> None:
    global _workshop
    _workshop = _Workshop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


class Compilation:
    """A library that is loaded, unavailable, or being compiled by a thread.

    Problems are reported when the library is requested.
    """

    thread: threading.Thread

    def __init__(self, key: str, command: Sequence[str], sources: Sequence[str], *, apart: bool) -> None:
        self.key, self._command, self._sources, self._apart = key, command, sources, apart
        self._warnings: list[tuple[str, str]] = []
        self._error: BaseException | None = None
        self._library: ctypes.CDLL | None = None
        self._begin()

    def _begin(self) -> None:
        self._done, self._workshop = threading.Event(), _workshop
        self.thread = threading.Thread(target=self._carry_out, name="dae_hybrid compiler", daemon=True)
        _workshop.under_way[self.key] = self
        self.thread.start()

    def _carry_out(self) -> None:
        try:
            self._library = self._make()
            _loaded[self.key] = self._library
        except (OSError, subprocess.SubprocessError) as reason:
            self._warnings.append((f"The C compiler failed ({reason})", ": models run interpreted, slower."))
        except BaseException as error:  # raised by `result`
            self._error = error
        finally:
            self._workshop.under_way.pop(self.key, None)
            self._done.set()
            self._sources = ()

    def _make(self) -> ctypes.CDLL:
        built = _compile(self._command, self._sources, apart=self._apart)
        directory = _directory(self._warnings.append)
        library = load(built, directory)
        if directory is not None:
            try:
                keep(_entry(directory, self.key), built)
            except OSError as reason:
                self._warnings.append(_of_cache(reason))
        return library

    @property
    def is_done(self) -> bool:
        """Whether the compilation has finished."""
        if self._workshop is not _workshop and not self._done.is_set():  # forked: the thread stayed in the parent
            with _workshop.lock:
                if self._workshop is not _workshop:
                    self._begin()
        return self._done.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the compiler; return whether it has finished."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while not self.is_done and (left := deadline - time.monotonic()) > 0:
            raise_if_cancelled()
            self._done.wait(min(left, SIGNALS))
        return self.is_done

    def result(self) -> ctypes.CDLL | None:
        """Wait for the library and return it; None, after one `CompilerWarning`, if the compiler failed."""
        self.wait()
        if self._error is not None:
            raise self._error
        for warning in self._warnings:
            warn_once(*warning)
        return self._library


class Finished(Compilation):
    """A library that is loaded or unavailable."""

    def __init__(self, library: ctypes.CDLL | None) -> None:
        self._library = library

    is_done = True

    def result(self) -> ctypes.CDLL | None:
        """Return the library."""
        return self._library


def compile_source(*sources: str) -> ctypes.CDLL | None:
    """Compile C texts, one file each, into a shared library and load it, or take it from the cache.

    Returns None, after one `CompilerWarning`, without a working compiler.
    """
    return begin(*sources).result()


def begin(*sources: str, identity: str = "", apart: bool = False) -> Compilation:
    """Start `compile_source` in the background; with `apart`, interrupts of this process do not reach the compiler.

    The cache identifies the library by `identity`, by default the texts. A compilation that is already running is
    shared.
    """
    command = find_compiler()
    if command is None:
        warn_once("No C compiler found", ": models run interpreted, slower. Install gcc or dae-hybrid[compiler].")
        return Finished(None)
    key = _key(command, identity or "\n".join(sources))
    if key in _loaded or _from_cache(key):
        return Finished(_loaded[key])
    with _workshop.lock:
        return _workshop.under_way.get(key) or Compilation(key, command, sources, apart=apart)


def known(identity: str) -> Compilation | None:
    """The library of that identity, None where the cache has none."""
    command = find_compiler()
    key = "" if command is None else _key(command, identity)
    return Finished(_loaded[key]) if key and (key in _loaded or _from_cache(key)) else None


def _key(command: tuple[str, ...], identity: str) -> str:
    whole = "\n".join([identity, _compiler_identity(command), *FLAGS, *STRAIGHT, *SEPARATE, _machine()])
    return hashlib.sha256(whole.encode()).hexdigest()[:40]


def _from_cache(key: str) -> bool:
    """Load the library from the cache, if a valid entry exists."""
    directory = _directory(lambda _: None)
    kept = None if directory is None else read(_entry(directory, key))
    if kept is None:
        return False
    with suppress(OSError):  # valid, but built against other system libraries
        _loaded[key] = load(kept, directory)
    return key in _loaded


def _entry(directory: Path, key: str) -> Path:
    return directory / (key + ".so")


def _directory(tell: Callable[[tuple[str, str]], object]) -> Path | None:
    try:
        return open_cache()
    except (OSError, RuntimeError) as reason:
        tell(_of_cache(reason))
        return None


def _of_cache(reason: Exception) -> tuple[str, str]:
    return (
        f"The cache of compiled models cannot be used ({reason})",
        "; this process compiles its own. Set DAE_HYBRID_CACHE to a writable directory of your own.",
    )


def _compile(command: Sequence[str], sources: Sequence[str], *, apart: bool = False) -> bytes:
    """Build in a scratch directory. Failures raise `OSError` or `subprocess.SubprocessError`."""
    with tempfile.TemporaryDirectory(prefix="dae_hybrid-", ignore_cleanup_errors=True) as scratch:
        texts, built = [Path(scratch) / f"model{i}.c" for i in range(len(sources))], Path(scratch) / "model.so"
        for text, source in zip(texts, sources, strict=True):
            text.write_text(source, encoding="utf-8")
        flags = FLAGS
        if len(texts) > 1:
            objects = [text.with_suffix(".o") for text in texts]
            arguments = ([*SEPARATE, "-o", str(o), str(t)] for t, o in zip(texts, objects, strict=True))
            _run_each(zip(arguments, objects, strict=True), command, apart=apart)
            texts = objects
        elif is_straight(sources[0]):
            flags = STRAIGHT
        _run(command, [*flags, "-o", str(built), *map(str, texts), "-lm"], built, apart=apart)
        return built.read_bytes()


def _run_each(jobs: Iterable[tuple[Sequence[str], Path]], command: Sequence[str], *, apart: bool) -> None:
    """Run compilers in parallel; raise the first failure when all have finished."""
    failures: list[Exception] = []

    def one(arguments: Sequence[str], built: Path) -> None:
        try:
            _run(command, arguments, built, apart=apart)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=one, args=job, daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def _run(command: Sequence[str], arguments: Sequence[str], built: Path, *, apart: bool) -> None:
    shop, group = _workshop, 0 if apart and os.name == "posix" else None
    said = built.with_suffix(".err")  # a pipe would be held open by children of a killed compiler
    with shop.slots, open(said, "wb") as errors:
        with shop.lock:
            if shop.closed:
                raise OSError("the interpreter is at its end")
            process = subprocess.Popen(
                [*command, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
                process_group=group,
            )  # fmt: skip
            shop.compilers[process] = apart
        late = threading.Event()

        def expire() -> None:
            late.set()
            shop.kill(process)

        limit = threading.Timer(COMPILE_TIMEOUT, expire)
        limit.daemon = True
        limit.start()
        try:
            process.wait()  # with a timeout of its own, wait() would poll every 50 ms
        finally:
            limit.cancel()
            del shop.compilers[process]
    if late.is_set():
        raise subprocess.TimeoutExpired([*command, *arguments], COMPILE_TIMEOUT)
    if process.returncode != 0:
        message = said.read_text(errors="replace").strip()[:500]
        raise OSError(f"'{' '.join(command)}' returned {process.returncode}: {message}")
    if not built.is_file():
        raise OSError(f"'{' '.join(command)}' wrote no library")
