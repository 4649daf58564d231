"""Worker processes: fresh interpreters that run chunks one after the other and end with their client.

Pickled messages arrive on the standard input of a worker, from the client that started it, and results leave on its
standard output. A fresh interpreter does not run the client's script again, as a spawned process would.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import sys
from contextlib import suppress
from subprocess import PIPE, Popen
from threading import Lock, Thread
from typing import Any, BinaryIO, cast

from dae_hybrid.ensembles.worker import cancel
from dae_hybrid.errors import DaeHybridError, EnsembleError, WorkerLostError

COMMAND = [sys.executable, "-c", "from dae_hybrid.ensembles.process import main; main()"]


class WorkerProcess:
    """A worker process, started with the first task and again after it has ended."""

    def __init__(self) -> None:
        self._process: Popen[bytes] | None = None
        self._lock = Lock()

    def run(self, work: Any, *arguments: Any) -> Any:
        """Call a function there.

        Raises
        ------
        WorkerLostError
            The process has ended before it returned.
        EnsembleError
            The process cannot be started.
        """
        if not self.is_running:
            self._start()
        process = cast(Popen[bytes], self._process)
        try:
            self._send(process, (work, arguments))
            succeeded, answer = self._received(process)
        except (OSError, EOFError):
            raise WorkerLostError(f"A worker process has ended with {_reason(process.wait())}.") from None
        if not succeeded:
            raise answer
        return answer

    @property
    def is_running(self) -> bool:
        """Whether the process has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int | None:
        """Identifier of the process, None before its start."""
        process = self._process
        return None if process is None else process.pid

    def cancel(self, token: str) -> None:
        """Cancel the chunks of a token."""
        if self._process is not None:
            with suppress(OSError, ValueError):
                self._send(self._process, token)

    def kill(self) -> None:
        """End the process."""
        if (process := self._process) is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                with suppress(OSError):
                    cast(BinaryIO, stream).close()
            self._process = None

    def _start(self) -> None:
        self.kill()
        process = self._process = Popen(
            COMMAND, stdin=PIPE, stdout=PIPE, env={**os.environ, "PYTHONPATH": _python_path()}
        )
        try:
            self._received(process)
        except EOFError:
            reason = _reason(process.wait())
            self.kill()
            raise EnsembleError(f"A worker process could not be started: it ended with {reason}.") from None

    @staticmethod
    def _received(process: Popen[bytes]) -> Any:
        """The next message of a process.

        Raises
        ------
        EOFError
            The process has ended, or `kill` on another thread has closed the stream.
        """
        try:
            return pickle.load(cast(BinaryIO, process.stdout))
        except (ValueError, pickle.UnpicklingError) as reason:  # ValueError: of a closed stream
            raise EOFError from reason

    def _send(self, process: Popen[bytes], message: Any) -> None:
        content = pickle.dumps(message)
        with self._lock:  # tasks and cancellations come from different threads
            stream = cast(BinaryIO, process.stdin)
            stream.write(content)
            stream.flush()


def _python_path() -> str:
    """The client's path of imports, without which the worker may not find the modules of a model."""
    return os.pathsep.join(path or os.getcwd() for path in sys.path)


def _reason(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"signal {-code} ({signal.Signals(-code).name})"
    return f"signal {-code}"


def _read(tasks: queue.SimpleQueue[Any], stream: BinaryIO) -> None:
    """Take messages; end the process when the client has ended."""
    while True:
        try:
            message = pickle.load(stream)
        except (EOFError, OSError):
            os._exit(0)
        if isinstance(message, str):
            cancel(message)
        else:
            tasks.put(message)


def main() -> None:
    """Carry out tasks until the client has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the client, which cancels
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a model prints must not be read as a result
    tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
    Thread(target=_read, args=(tasks, os.fdopen(os.dup(0), "rb")), daemon=True).start()
    content = pickle.dumps("ready")
    while True:
        try:
            results.write(content)
            results.flush()
        except BrokenPipeError:  # the client has ended
            os._exit(0)
        work, arguments = tasks.get()
        try:
            content = pickle.dumps((True, work(*arguments)))
        except Exception as error:
            content = pickle.dumps(
                (False, error if isinstance(error, DaeHybridError | MemoryError) else _worded(error))
            )


def _worded(error: Exception) -> EnsembleError:
    return EnsembleError(f"A worker process has failed: {type(error).__name__}: {error}.")
