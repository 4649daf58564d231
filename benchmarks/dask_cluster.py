"""A Dask cluster of processes on this machine, and a relay that counts what passes between scheduler and client."""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from threading import Thread
from typing import Any, Self

import psutil
from distributed import Client
from distributed.protocol.utils import unpack_frames

MODULES = ("distributed.cli.dask_scheduler", "distributed.cli.dask_worker")


class Cluster:
    """A scheduler and workers of one thread each, in processes of their own."""

    def __init__(self, workers: int) -> None:
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        file = Path(self._folder.name) / "scheduler.json"
        shared = ["--scheduler-file", str(file), "--no-dashboard"]
        commands = [
            [sys.executable, "-m", MODULES[0], *shared, "--host", "127.0.0.1", "--port", "0"],
            [sys.executable, "-m", MODULES[1], *shared, "--nworkers", str(workers), "--nthreads", "1",
             "--local-directory", self._folder.name],
        ]  # fmt: skip
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._processes = [subprocess.Popen(command, **quiet) for command in commands]
        until = time.monotonic() + 60
        while not file.exists() and time.monotonic() < until:
            time.sleep(0.1)
        self._client = Client(scheduler_file=str(file))
        self._client.wait_for_workers(workers, timeout=60)
        self.address = self._client.scheduler.address

    def pid(self) -> int:
        """Process of a worker."""
        return next(iter(self._client.run(os.getpid).values()))

    def cpu(self) -> tuple[float, float]:
        """Seconds of CPU time of the scheduler, and of all processes."""
        scheduler, *others = (self._seconds(process.pid) for process in self._processes)
        return scheduler, scheduler + sum(others)

    @staticmethod
    def _seconds(pid: int) -> float:
        parent, total = psutil.Process(pid), 0.0
        for process in (parent, *parent.children(recursive=True)):
            times = process.cpu_times()
            total += times.user + times.system
        return total

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        for process in reversed(self._processes):
            process.terminate()
            process.wait()
        self._folder.cleanup()


class Relay:
    """Forwards connections to a scheduler and counts messages and bytes, those of the client first."""

    def __init__(self, address: str) -> None:
        self._host, self._port = address.removeprefix("tcp://").rsplit(":", 1)
        self.messages, self.bytes = [0, 0], [0, 0]
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(self._host, int(self._port))
        await asyncio.gather(self._pass(0, reader, up_writer), self._pass(1, up_reader, writer))

    async def _pass(self, side: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                size = await reader.readexactly(8)
                head = await reader.readexactly(struct.unpack("Q", size)[0])
                _, lengths = unpack_frames(head, partial=True)
                parts = [size, head, *[await reader.readexactly(length) for length in lengths]]
                self.messages[side] += 1
                self.bytes[side] += sum(map(len, parts))
                writer.writelines(parts)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
