"""From CasADi functions to fast callables: kernels for Python, compiled code for integrators.

A `Kernel` evaluates one CasADi function on flat arrays through its buffer (0.2 microseconds of
overhead instead of the 25 of a plain call). `compile_functions` turns a set of functions into one
shared library, kept in the user's cache under a hash of its source, compiler and flags.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import casadi as ca
import numpy as np
from numpy.typing import NDArray

from dae_hybrid.errors import CompilerWarning

FLAGS = ("-O2", "-fno-math-errno", "-fPIC", "-shared")
COMPILE_TIMEOUT = 600.0
#: a function of CasADi's C text that says something about another one, which is called `name`
DESCRIPTION = re.compile(
    r"^CASADI_SYMBOL_EXPORT [^\n(]*?(?P<name>\w+?)_(?:checkout|release|incref|decref|n_in|n_out|default_in|name_in|"
    r"name_out|sparsity_in|sparsity_out|work|work_bytes)\((?:[^\n]*\}|.*?\n\})\n+",
    re.MULTILINE | re.DOTALL,
)

Array = NDArray[np.float64]


class Kernel:
    """A CasADi function on flat arrays; safe to call from several threads at once.

    Inputs are one-dimensional arrays (or numbers for size one). Outputs are one-dimensional, except
    those whose indices are in `matrices`: they keep their two dimensions.
    """

    def __init__(self, function: ca.Function, matrices: Sequence[int] = ()) -> None:
        self.function = function
        self.name: str = function.name()
        self._shapes = [(*function.size_out(i), i in matrices) for i in range(function.n_out())]
        ends = np.cumsum([rows * columns for rows, columns, _ in self._shapes]).tolist()
        self._size = ends[-1] if ends else 0
        self._slices = [slice(end - r * c, end) for end, (r, c, _) in zip(ends, self._shapes, strict=True)]
        for i in range(function.n_out()):
            if not function.sparsity_out(i).is_dense():
                raise AssertionError(f"kernel {self.name}: output {i} is not dense")
        self._idle: list[tuple[list[Array], Array, Any]] = []

    def _workspace(self) -> tuple[list[Array], Array, Any]:
        buffer: Any
        buffer, trigger = self.function.buffer()
        inputs = [np.zeros(self.function.nnz_in(i)) for i in range(self.function.n_in())]
        output = np.zeros(self._size)
        for i, array in enumerate(inputs):
            if array.size:
                buffer.set_arg(i, memoryview(array))
        for i, part in enumerate(self._slices):
            if part.start < part.stop:
                buffer.set_res(i, memoryview(output[part]))
        return inputs, output, (trigger, buffer)

    def __call__(self, *arguments: Any) -> list[Array]:
        """Outputs for these inputs."""
        try:
            workspace = self._idle.pop()
        except IndexError:
            workspace = self._workspace()
        inputs, output, (trigger, _) = workspace
        for target, value in zip(inputs, arguments, strict=True):
            target[:] = value
        trigger()
        results = output.copy()
        self._idle.append(workspace)
        return [
            results[part].reshape(columns, rows).T if matrix else results[part]
            for part, (rows, columns, matrix) in zip(self._slices, self._shapes, strict=True)
        ]


def densified(function: ca.Function, outputs: int | None = None) -> ca.Function:
    """The same function with dense outputs; only the first `outputs` where given."""
    kind: Any = ca.SX if function.is_a("SXFunction") else ca.MX
    inputs = [kind.sym(function.name_in(i), function.size1_in(i)) for i in range(function.n_in())]
    return ca.Function(function.name(), inputs, [ca.densify(o) for o in function.call(inputs)[:outputs]])


class NativeFunction:
    """A CasADi function with its sparsity, work sizes and, where compiled, its address."""

    def __init__(self, function: ca.Function, library: ctypes.CDLL | None) -> None:
        self.function = function
        self.name: str = function.name()
        self.library = library
        self.address: int | None = None
        if library is not None:
            self.address = ctypes.cast(getattr(library, self.name), ctypes.c_void_p).value
        self.work_sizes = (function.sz_arg(), function.sz_res(), function.sz_iw(), function.sz_w())

    def pattern(self, output: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Column pointers and row indices of an output (compressed columns)."""
        column, row = self.function.sparsity_out(output).get_ccs()
        return np.array(column, dtype=np.int64), np.array(row, dtype=np.int64)


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, CompilerWarning, stacklevel=3)


@cache
def find_compiler() -> tuple[str, ...] | None:
    """Command of the C compiler: ``$CC``, ``cc``, ``gcc``, ``clang`` or the ziglang wheel; None without one."""
    if given := os.environ.get("CC"):
        return tuple(given.split())
    for name in ("cc", "gcc", "clang"):
        if path := shutil.which(name):
            return (path,)
    if find_spec("ziglang") is None:  # the extra [compiler]
        return None
    return (sys.executable, "-m", "ziglang", "cc")


@cache
def _compiler_identity(command: tuple[str, ...]) -> str:
    try:
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        return " ".join(command)
    return " ".join(command) + "\n" + done.stdout


def cache_directory() -> Path:
    """Where compiled models are kept: ``$DAE_HYBRID_CACHE`` or the user's cache directory."""
    if given := os.environ.get("DAE_HYBRID_CACHE"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dae_hybrid"


@cache
def _private_directory() -> Path:
    """A directory of this process only, for when the cache cannot be written."""
    import atexit

    path = Path(tempfile.mkdtemp(prefix="dae_hybrid-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def _store() -> Path:
    try:
        directory = cache_directory()
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if os.name == "posix" and directory.stat().st_uid != os.getuid():
            raise PermissionError(f"{directory} belongs to another user")
        with tempfile.TemporaryFile(dir=directory):
            pass
    except (OSError, RuntimeError) as reason:
        _warn_once(
            f"The cache of compiled models cannot be written ({reason}); this process compiles its own. "
            "Set DAE_HYBRID_CACHE to a writable directory."
        )
        return _private_directory()
    return directory


def _seal(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _intact(library: Path) -> bool:
    """Whether a cache entry is what was written, whole."""
    try:
        return library.with_suffix(".sha256").read_bytes() == _seal(library.read_bytes())
    except OSError:
        return False


def compile_source(source: str) -> ctypes.CDLL | None:
    """Compile C text into a loaded shared library, or take it from the cache.

    Returns None, after one `CompilerWarning`, when there is no working compiler.
    """
    command = find_compiler()
    if command is None:
        _warn_once("No C compiler found: models run interpreted, slower. Install gcc or dae-hybrid[compiler].")
        return None
    identity = "\n".join([source, _compiler_identity(command), *FLAGS, platform.platform()])
    entry = _store() / (hashlib.sha256(identity.encode()).hexdigest()[:40] + ".so")
    if not _intact(entry):
        failure = _compile(command, source, entry)
        if failure is not None:
            _warn_once(f"The C compiler failed, models run interpreted, slower: {failure}")
            return None
    return ctypes.CDLL(str(entry))


def _compile(command: Sequence[str], source: str, entry: Path) -> str | None:
    """Build in a scratch directory and rename into place; text of the failure or None."""
    try:
        with tempfile.TemporaryDirectory(dir=entry.parent, prefix="build-") as scratch:
            text, built = Path(scratch) / "model.c", Path(scratch) / "model.so"
            text.write_text(source)
            done = subprocess.run(
                [*command, *FLAGS, "-o", str(built), str(text), "-lm"],
                capture_output=True,
                text=True,
                timeout=COMPILE_TIMEOUT,
                check=False,
            )
            if done.returncode != 0:
                return f"'{' '.join(command)}' returned {done.returncode}: {done.stderr.strip()[:500]}"
            if not built.is_file():
                return f"'{' '.join(command)}' wrote no library"
            mark = Path(scratch) / "model.sha256"
            mark.write_bytes(_seal(built.read_bytes()))
            built.replace(entry)
            mark.replace(entry.with_suffix(".sha256"))
    except (OSError, subprocess.SubprocessError) as reason:
        return str(reason)
    return None


def generate(functions: Sequence[ca.Function]) -> str:
    """C text of the functions."""
    generator = ca.CodeGenerator("model.c", {"casadi_int": "long long int"})
    for function in functions:
        generator.add(function)
    return _without_descriptions(str(generator.dump()), [function.name() for function in functions])


def _without_descriptions(source: str, names: Sequence[str]) -> str:
    """C text without what CasADi adds to each function to describe it: nine tenths of what there is to compile."""
    own = set(names)

    def kept(found: re.Match[str]) -> str:
        return "" if found["name"] in own else found[0]

    return DESCRIPTION.sub(kept, source)


def compile_functions[Key](functions: Mapping[Key, ca.Function], *, native: bool = True) -> dict[Key, NativeFunction]:
    """Native functions by the same keys; without addresses when `native` is off or nothing compiles."""
    library = compile_source(generate(list(functions.values()))) if native and functions else None
    return {key: NativeFunction(function, library) for key, function in functions.items()}
