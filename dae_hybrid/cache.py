"""The cache of compiled libraries: private to the user, and checked before anything of it is loaded.

An entry is one file, the library with a seal behind it: a hash of the entry's name and of the library, so that neither
damage nor an entry in the place of another goes unnoticed. What is loaded is a copy of the very bytes that were
checked; what happens to the entry afterwards does not reach this process.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import stat
import struct
import tempfile
import time
from contextlib import suppress
from pathlib import Path

SEAL = hashlib.sha256().digest_size
#: scratch files that a killed process left behind are removed after this many seconds
STALE = 86_400.0
_SCRATCH = "scratch-"
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def cache_directory() -> Path:
    """Where compiled models are kept: ``$DAE_HYBRID_CACHE`` or the user's cache directory."""
    if given := os.environ.get("DAE_HYBRID_CACHE"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dae_hybrid"


def open_cache() -> Path:
    """The cache directory, made where it is missing.

    Raises
    ------
    OSError, RuntimeError
        It cannot be made or found, or is not the user's own.
    """
    directory = cache_directory().absolute()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    if problem := _problem(directory.stat()):
        raise PermissionError(f"{directory} {problem}")
    return directory


def _problem(state: os.stat_result) -> str | None:
    """Why a file or directory is not to be trusted, None where it is."""
    if os.name != "posix":
        return None
    if state.st_uid != os.geteuid():
        return "belongs to another user"
    return "can be written by other users" if state.st_mode & _WRITABLE_BY_OTHERS else None


def _seal(name: str, library: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\0" + library).digest()


def read(entry: Path) -> bytes | None:
    """The library of an entry; None unless it is there, the user's own, and what was written under this name."""
    flags = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
    try:
        with open(os.open(entry, flags), "rb") as file:
            state = os.fstat(file.fileno())
            content = file.read() if stat.S_ISREG(state.st_mode) and not _problem(state) else b""
    except OSError:
        return None
    library, seal = content[:-SEAL], content[-SEAL:]
    return library if seal == _seal(entry.name, library) else None


def keep(entry: Path, library: bytes) -> None:
    """Write an entry: readable by the user only, and there as a whole or not at all."""
    scratch = _write(library + _seal(entry.name, library), entry.parent, ".tmp")
    try:
        scratch.replace(entry)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    _sweep(entry.parent)


def load(library: bytes, directory: Path | None) -> ctypes.CDLL:
    """Load these bytes, by way of a file that is gone again afterwards.

    It is made in `directory`, or where that cannot be written in the folder for temporary files, which may be one that
    nothing can be executed from.
    """
    _check_whole(library)
    if directory is not None:
        with suppress(OSError):
            return _load(library, directory)
    return _load(library, Path(tempfile.gettempdir()))


def _load(library: bytes, directory: Path) -> ctypes.CDLL:
    # never a name that was used before: the dynamic linker would give the library that it knows by that name
    path = _write(library, directory, ".so")
    try:
        return ctypes.CDLL(str(path))
    finally:
        with suppress(OSError):  # a loaded library cannot be removed everywhere
            path.unlink()


def _write(content: bytes, directory: Path, suffix: str) -> Path:
    handle, name = tempfile.mkstemp(suffix, _SCRATCH, directory)
    try:
        with open(handle, "wb") as file:
            file.write(content)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(name)


def _sweep(directory: Path) -> None:
    limit = time.time() - STALE
    for path in directory.glob(f"{_SCRATCH}*"):
        with suppress(OSError):  # somebody else was faster
            if path.stat().st_mtime < limit:
                path.unlink()


def _check_whole(library: bytes) -> None:
    """Refuse a library that ends before what its headers promise: the loader would map it, and the process would die.

    Looks at 64-bit ELF; elsewhere the loader is trusted.
    """
    if library[:5] != b"\x7fELF\x02":
        return
    order = "<" if library[5:6] == b"\x01" else ">"
    try:
        (table,) = struct.unpack_from(f"{order}Q", library, 32)
        size, count = struct.unpack_from(f"{order}HH", library, 54)
        segments = [struct.unpack_from(f"{order}8xQ16xQ", library, table + i * size) for i in range(count)]
    except struct.error:
        segments = [(len(library), 1)]
    if any(start + length > len(library) for start, length in segments):
        raise OSError("the library is cut off")
