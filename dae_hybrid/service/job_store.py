"""The directory of jobs: a folder for each, and a lock, which one server holds.

A folder has the request, the status, numbered events, and the results: a store of `ensemble`, or those of a fit.
"""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from dae_hybrid.errors import StoreError
from dae_hybrid.service.encoding import json_bytes

REQUEST, STATUS, EVENTS, RESULT, RUNS, PROGRESS = (
    "request.json", "status.json", "events.jsonl", "result.json", "runs", "progress.json",
)  # fmt: skip
LOCK = "lock.sqlite"
#: names of folders of jobs
IDENTIFIER = re.compile(r"[0-9a-f]{32}")
#: bytes of events that are read at a time
PIECE = 65_536


class JobFolder:
    """Folder of a job."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.n_events = 0

    def write(self, name: str, content: Any) -> None:
        """Write a file of JSON, which takes the place of an earlier one when it is complete."""
        draft = self.path / f".{name}"
        with draft.open("wb") as file:
            file.write(json_bytes(content))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path / name)

    def read(self, name: str) -> Any:
        """Read a file of JSON.

        Raises
        ------
        OSError
            It cannot be read.
        ValueError
            It is not JSON.
        """
        return orjson.loads((self.path / name).read_bytes())

    def append(self, event: str, data: Any) -> None:
        """Append an event; its number is that of its line."""
        line = json_bytes({"event": event, "data": data}) + b"\n"
        with (self.path / EVENTS).open("ab", buffering=0) as file:
            file.write(line)
        self.n_events += 1

    def events(self, offset: int) -> tuple[list[Any], int]:
        """Events from an offset in bytes on, some of them, and the offset after them."""
        with (self.path / EVENTS).open("rb") as file:
            file.seek(offset)
            content = file.read(PIECE)
            if b"\n" not in content:
                content += file.readline()
        content = content[: content.rfind(b"\n") + 1]
        return [orjson.loads(line) for line in content.splitlines()], offset + len(content)

    def mend_events(self) -> Any:
        """Remove what follows the last complete event, and count the events; return the last one, or None."""
        path, end, last = self.path / EVENTS, 0, None
        self.n_events = 0
        path.touch()
        with path.open("rb") as file:
            for line in file:
                with suppress(orjson.JSONDecodeError):
                    found = orjson.loads(line)
                    if line.endswith(b"\n") and isinstance(found, dict) and set(found) == {"event", "data"}:
                        end, last = end + len(line), found
                        self.n_events += 1
                        continue
                break
        if path.stat().st_size > end:
            os.truncate(path, end)
        return last


class JobStore:
    """The directory of jobs.

    Parameters
    ----------
    path : Path or None
        Directory, created if it does not exist; None for a temporary one, which `close` removes.

    Raises
    ------
    StoreError
        Another server uses the directory, or it cannot be written.
    """

    def __init__(self, path: Path | None) -> None:
        self.is_temporary = path is None
        self.path = Path(tempfile.mkdtemp(prefix="dae_hybrid_jobs_")) if path is None else path.expanduser().absolute()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = sqlite3.connect(self.path / LOCK, timeout=0.0, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as reason:
            raise StoreError(f"The store of jobs {str(self.path)!r} cannot be written: {reason}.") from reason
        try:
            # SQLite holds a lock of the file system, which ends with the process
            self._lock.execute("begin exclusive")
        except sqlite3.Error as reason:
            self._lock.close()
            raise StoreError(
                f"The store of jobs {str(self.path)!r} is in use by another server, or cannot be written: {reason}.",
                remedy="Stop that server, or give another --store.",
            ) from reason
        for draft in self.path.glob(".job-*"):  # creations and removals that did not end
            shutil.rmtree(draft, ignore_errors=True)

    def folders(self) -> Iterator[JobFolder]:
        """The folders of jobs."""
        for path in sorted(self.path.iterdir()):
            if IDENTIFIER.fullmatch(path.name) and path.is_dir():
                yield JobFolder(path)

    def create(self, request: Any, status: Any) -> JobFolder:
        """Create the folder of a job, with its request and its status, or nothing."""
        identifier = uuid.uuid4().hex
        draft = JobFolder(self.path / f".job-{identifier}")
        try:
            draft.path.mkdir()
            draft.write(REQUEST, request)
            draft.write(STATUS, status)
            (draft.path / EVENTS).touch()
            draft.path.rename(self.path / identifier)
        except OSError as reason:
            shutil.rmtree(draft.path, ignore_errors=True)
            raise StoreError(f"The job cannot be stored: {reason}.") from reason
        _synchronise(self.path)
        return JobFolder(self.path / identifier)

    def remove(self, folder: JobFolder) -> None:
        """Remove the folder of a job."""
        hidden = self.path / f".job-{folder.path.name}"
        try:
            folder.path.rename(hidden)
        except OSError as reason:
            raise StoreError(f"The job cannot be removed: {reason}.") from reason
        shutil.rmtree(hidden, ignore_errors=True)

    def close(self) -> None:
        """Leave the directory to another server, or remove a temporary one."""
        self._lock.close()
        if self.is_temporary:
            shutil.rmtree(self.path, ignore_errors=True)


def _synchronise(path: Path) -> None:
    """Let the entries of a directory reach the disk; not every system can."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
