"""Turn CasADi functions into fast callables: kernels for Python, compiled code for integrators.

A `Kernel` evaluates one CasADi function on flat arrays through its buffer (0.2 microseconds of
overhead instead of 25 for a regular call). `compile_functions` compiles a set of functions into one
shared library, cached for the user under a hash of the functions, compiler, flags and machine.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Self
from weakref import WeakSet

import casadi as ca
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array

from dae_hybrid.codegen.compiler import Compilation, Finished, begin, known, warn_once
from dae_hybrid.codegen.dense_products import by_columns
from dae_hybrid.codegen.split_source import (
    LONG,
    MAX_STATEMENTS,
    OPERATIONS_PER_FILE,
    cut,
    is_long,
    is_straight,
    shared_out,
    statements,
)
from dae_hybrid.errors import UnsupportedError
from dae_hybrid.numerics.arrays import Array

#: largest number of files of a library, and the share of the largest file that is filled on purpose
MOST_FILES, FILLED = 8, 0.8
#: a function in CasADi's C text that describes another one, called `name`
DESCRIPTION = re.compile(
    r"^CASADI_SYMBOL_EXPORT [^\n(]*?(?P<name>\w+?)_(?:checkout|release|incref|decref|n_in|n_out|default_in|name_in|"
    r"name_out|sparsity_in|sparsity_out|work|work_bytes)\((?:[^\n]*\}|.*?\n\})\n+",
    re.MULTILINE | re.DOTALL,
)


class NotPicklable:
    """Mixin for objects tied to compiled code: copied by reference, not picklable."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        raise UnsupportedError(
            f"A {type(self).__name__} cannot be pickled: it carries compiled code.",
            remedy="Pickle the system, or the result of a run, that it belongs to.",
        )


class Kernel(NotPicklable):
    """A CasADi function on flat arrays. Thread-safe.

    Inputs are one-dimensional arrays (or numbers for size one). Outputs are one-dimensional, except
    those listed in `matrices`: they are two-dimensional, and SciPy sparse arrays if they are
    sparse.
    """

    #: the kernel that this one calls with numbers behind the parameters, and the numbers; None for most
    family: tuple[Kernel, Array] | None = None
    _is_inherited = False

    def __init__(self, function: ca.Function, matrices: Sequence[int] = ()) -> None:
        self.function = function
        self.name: str = function.name()
        self._shapes = [(*function.size_out(i), i in matrices) for i in range(function.n_out())]
        counts = [function.nnz_out(i) for i in range(function.n_out())]
        ends = np.cumsum(counts).tolist()
        self._size = ends[-1] if ends else 0
        self._slices = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
        self._patterns: dict[int, tuple[Any, Any]] = {}
        for i in range(function.n_out()):
            if function.sparsity_out(i).is_dense():
                continue
            if i not in matrices:
                raise AssertionError(f"kernel {self.name}: output {i} is not dense")
            pointers, rows = function.sparsity_out(i).get_ccs()
            self._patterns[i] = np.array(rows, dtype=np.int32), np.array(pointers, dtype=np.int32)
        self._idle: list[tuple[list[Array], Array, Any]] = []
        self._many: dict[int, Kernel] = {}
        _kernels.add(self)

    def leave_inherited(self) -> None:
        """In a forked process: evaluate a copy of the function from now on.

        CasADi locks each function while a workspace is taken from it or given back, and functions within it while
        it is evaluated. A lock that another thread of the parent held at the fork is never released in the child.
        Workspaces are not given back either, so they are leaked.
        """
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._idle))
        self._idle, self._many, self._is_inherited = [], {}, True

    def _evaluated(self) -> ca.Function:
        """The function, or this process's copy of it."""
        if self._is_inherited:
            with suppress(RuntimeError):  # a function of the user's in Python has no copy
                self.function = ca.Function.deserialize(self.function.serialize())
            self._is_inherited = False
        return self.function

    def _workspace(self) -> tuple[list[Array], Array, Any]:
        buffer: Any
        buffer, trigger = self._evaluated().buffer()
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
        """Evaluate the function."""
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
        found: list[Any] = [
            results[part] if not matrix or i in self._patterns else results[part].reshape(columns, rows).T
            for i, (part, (rows, columns, matrix)) in enumerate(zip(self._slices, self._shapes, strict=True))
        ]
        for i, pattern in self._patterns.items():
            found[i] = csc_array((found[i], *pattern), shape=self._shapes[i][:2])
        return found

    def many(self, count: int, shared: Sequence[int] = (3,)) -> Kernel:
        """Return the kernel for a number of points, one after the other; the `shared` inputs are those of all.

        It is created once.
        """
        if count not in self._many:
            function = self._evaluated()
            mapped = function if count == 1 else function.map(self.name, "serial", count, list(shared), [])
            self._many[count] = Kernel(mapped)
        return self._many[count]

    def stacked(self, *arguments: Array) -> list[Array]:
        """Return dense outputs, (n_rows, ...), for rows of inputs; a one-dimensional input is shared by all rows."""
        given = [np.atleast_2d(v).T for v in arguments]
        count = max(v.shape[1] for v in given)
        return [
            np.asarray(v).reshape(rows, count, columns).swapaxes(0, 1)
            for v, (rows, columns, _) in zip(self._evaluated().call(given), self._shapes, strict=True)
        ]

    def over(self, *arguments: Array) -> Iterator[list[Array]]:
        """Yield the outputs of `stacked` row by row."""
        for row in zip(*self.stacked(*arguments), strict=True):
            yield [v if matrix else v[:, 0] for v, (_, _, matrix) in zip(row, self._shapes, strict=True)]


#: all that evaluate a function of their own
_kernels: WeakSet[Kernel] = WeakSet()


def _leave_inherited() -> None:
    for kernel in list(_kernels):
        kernel.leave_inherited()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_inherited)


def densified(function: ca.Function, outputs: int | None = None) -> ca.Function:
    """Return the function with dense outputs; only the first `outputs` if given."""
    kind: Any = ca.SX if function.is_a("SXFunction") else ca.MX
    inputs = [kind.sym(function.name_in(i), function.size1_in(i)) for i in range(function.n_in())]
    return ca.Function(function.name(), inputs, [ca.densify(o) for o in function.call(inputs)[:outputs]])


class NativeFunction(NotPicklable):
    """A CasADi function with its sparsity, work sizes and, if compiled, its address."""

    def __init__(self, function: ca.Function, library: ctypes.CDLL | None) -> None:
        self.function = function
        self.name: str = function.name()
        self.library = library
        self.address: int | None = None
        if library is not None:
            self.address = ctypes.cast(getattr(library, self.name), ctypes.c_void_p).value
        self.work_sizes = (function.sz_arg(), function.sz_res(), function.sz_iw(), function.sz_w())
        self._patterns: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}

    def pattern(self, output: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Column pointers and row indices of an output (compressed columns)."""
        known = self._patterns.get(output)
        if known is None:
            column, row = self.function.sparsity_out(output).get_ccs()
            found = np.array(column, dtype=np.int64), np.array(row, dtype=np.int64)
            known = self._patterns.setdefault(output, found)  # one for all threads: memories point at it
        return known


def generate_files(functions: Sequence[ca.Function]) -> list[str]:
    """Generate C text: one file, or several if the code is straight-line or long."""
    files, load = min(os.cpu_count() or 1, MOST_FILES), sum(f.n_instructions() for f in functions)
    if 2 * OPERATIONS_PER_FILE <= load < LONG and files > 1:
        shares = shared_out(functions, min(files, load // OPERATIONS_PER_FILE))
        texts = [generate(share, f"model{i}.c") for i, share in enumerate(shares)]
        if all(map(is_straight, texts)):
            return texts
    text = generate(functions)
    if not is_long(text):
        return [text]
    needed = -(-statements(text) // int(FILLED * MAX_STATEMENTS))
    shares = shared_out(functions, min(max(files, needed), MOST_FILES))
    return [cut(generate(share, f"model{i}.c", in_work_vector=True)) for i, share in enumerate(shares)]


def generate(functions: Sequence[ca.Function], name: str = "model.c", *, in_work_vector: bool = False) -> str:
    """Generate C text; values are kept in variables or in the work vector. The file name prefixes symbols."""
    generator = ca.CodeGenerator(name, {"casadi_int": "long long int", "avoid_stack": in_work_vector})
    for function in functions:
        generator.add(function)
    return _without_descriptions(by_columns(str(generator.dump())), [function.name() for function in functions])


def _without_descriptions(source: str, names: Sequence[str]) -> str:
    """Remove the functions with which CasADi describes each function: nine tenths of the text to compile."""
    own = set(names)

    def kept(found: re.Match[str]) -> str:
        return "" if found["name"] in own else found[0]

    return DESCRIPTION.sub(kept, source)


def compile_functions[Key](
    functions: Mapping[Key, ca.Function], *, native: bool = True
) -> tuple[dict[Key, NativeFunction], str]:
    """Compile functions; return native functions under the same keys, and a note if they are too long to compile.

    The functions have no addresses if `native` is false, if no compiler works, or if compilation would take minutes.
    """
    compilation, note = begin_functions(functions) if native else (Finished(None), "")
    return bound(functions, compilation.result()), note


def begin_functions(functions: Mapping[Any, ca.Function], *, apart: bool = False) -> tuple[Compilation, str]:
    """Start compiling functions, see `begin`; return a note instead of a library if they are too long."""
    if not functions:
        return Finished(None), ""
    identity = identity_of(functions.values())
    if identity and (found := known(identity)) is not None:
        return found, ""
    texts = generate_files(list(functions.values()))
    counts = [statements(text) for text in texts]
    if max(counts) <= MAX_STATEMENTS:
        return begin(*texts, identity=identity, apart=apart), ""
    note = (
        f"The equations are too long to compile, {sum(counts):,} statements of C in {len(texts)} files where "
        f"{MAX_STATEMENTS:,} each are the limit: they run interpreted, slower"
    )
    warn_once(note, ". State long sums and chains with vectors (size=), or pass native=False to build().")
    return Finished(None), note


def identity_of(functions: Iterable[ca.Function]) -> str:
    """Key of the generated C text, cheaper to compute than the text; "" if unknown.

    It consists of the functions, the version of CasADi and the modules that generate the text.
    """
    writers = _writers()
    return "\n".join([writers, *(function.serialize() for function in functions)]) if writers else ""


@cache
def _writers() -> str:
    modules = (Path(__file__).with_name(name) for name in ("kernels.py", "dense_products.py", "split_source.py"))
    try:
        texts = [path.read_text(encoding="utf-8") for path in modules]
    except OSError:
        return ""
    return "\n".join([ca.CasadiMeta.version(), *texts])


def bound[Key](functions: Mapping[Key, ca.Function], library: ctypes.CDLL | None) -> dict[Key, NativeFunction]:
    """Bind functions to their addresses in a library."""
    return {key: NativeFunction(function, library) for key, function in functions.items()}
