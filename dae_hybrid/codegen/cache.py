"""The cache of compiled libraries: private to the user, and verified before anything is loaded.

The user's directory may contain other files. The cache reads, writes and deletes only in its own subdirectory, which it
identifies by a marker file written on creation.

An entry is one file: the library followed by a seal, which is a hash of the entry's name and of the library. Damaged
and misplaced entries are thus detected. A copy of the verified bytes is loaded; later changes to the entry do not
affect this process.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import stat
import struct
import tempfile
import time
from contextlib import suppress
from pathlib import Path

SEAL = hashlib.sha256().digest_size
#: subdirectory of `cache_directory` that belongs to the cache, and its marker file
FOLDER, MARKER = "compiled-models", ".dae_hybrid"
_MARK = b"Compiled models of dae_hybrid. This folder may be deleted as a whole.\n"
#: age in seconds after which scratch files of killed processes are removed
STALE = 86_400.0
_SCRATCH = "dae_hybrid-scratch-"
_OWN_SCRATCH = re.compile(re.escape(_SCRATCH) + r"\w+\.(so|tmp)", re.ASCII)
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def cache_directory() -> Path:
    """Return the parent of the cache's directory: ``$DAE_HYBRID_CACHE`` or the user's cache directory."""
    if given := os.environ.get("DAE_HYBRID_CACHE"):
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "dae_hybrid"


def open_cache() -> Path:
    """Return the cache's own directory inside `cache_directory`; create and mark it if missing.

    Raises
    ------
    OSError, RuntimeError
        It cannot be created or found, is not owned by the user, or was not created by the cache.
    """
    parent = cache_directory().absolute()
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    directory = parent / FOLDER
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    for path, state in ((parent, parent.stat()), (directory, directory.lstat())):
        if not stat.S_ISDIR(state.st_mode):
            raise NotADirectoryError(f"{path} is not a directory")
        if problem := _problem(state):
            raise PermissionError(f"{path} {problem}")
    _mark(directory)
    return directory


def _mark(directory: Path) -> None:
    """Mark an empty directory as the cache's; refuse one that has files but no marker."""
    if _is_marked(directory):
        return
    if next(directory.iterdir(), None) is None:
        with suppress(FileExistsError):  # another process was faster
            (directory / MARKER).touch(mode=0o600, exist_ok=False)
            with suppress(OSError):  # the file's name is the marker; its text is for readers
                (directory / MARKER).write_bytes(_MARK)
    if not _is_marked(directory):
        raise FileExistsError(f"{directory} was not made by dae_hybrid: it holds files, but not its marker {MARKER}")


def _is_marked(directory: Path) -> bool:
    try:
        state = (directory / MARKER).lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(state.st_mode) and not _problem(state)


def _problem(state: os.stat_result) -> str | None:
    """Reason why a file or directory is not trusted, or None."""
    if os.name != "posix":
        return None
    if state.st_uid != os.geteuid():
        return "belongs to another user"
    return "can be written by other users" if state.st_mode & _WRITABLE_BY_OTHERS else None


def _seal(name: str, library: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\0" + library).digest()


def read(entry: Path) -> bytes | None:
    """Return the library of an entry; None if it is missing, not owned by the user, or fails verification."""
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
    """Write an entry atomically, readable by the user only."""
    scratch = _write(library + _seal(entry.name, library), entry.parent, ".tmp")
    try:
        scratch.replace(entry)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    _sweep(entry.parent)


def load(library: bytes, directory: Path | None) -> ctypes.CDLL:
    """Load a library from memory, through a temporary file.

    The file is created in `directory`, or if that is not writable in the directory for temporary files, which may be
    mounted noexec.
    """
    _check_whole(library)
    if directory is not None:
        with suppress(OSError):
            return _load(library, directory)
    return _load(library, Path(tempfile.gettempdir()))


def _load(library: bytes, directory: Path) -> ctypes.CDLL:
    # never reuse a name: the dynamic linker returns the library it has loaded under that name
    path = _write(library, directory, ".so")
    try:
        return ctypes.CDLL(str(path))
    finally:
        with suppress(OSError):  # some systems cannot remove a loaded library
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
    """Delete the cache's scratch files left behind by killed processes."""
    limit = time.time() - STALE
    for path in directory.iterdir():
        if not _OWN_SCRATCH.fullmatch(path.name):
            continue
        with suppress(OSError):  # another process was faster
            state = path.lstat()
            if stat.S_ISREG(state.st_mode) and not _problem(state) and state.st_mtime < limit:
                path.unlink()


def _check_whole(library: bytes) -> None:
    """Refuse a truncated library, which the loader would map and then crash the process.

    Checks 64-bit ELF; other formats are left to the loader.
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
