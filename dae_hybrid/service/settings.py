"""Settings of the service: its address, its workers, and the limits of a request."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path

from dae_hybrid.codegen.compiler import cores
from dae_hybrid.errors import OptionError

#: shorter tokens can be guessed
MIN_TOKEN = 16


@dataclass(frozen=True)
class Settings:
    """Settings of the service.

    Parameters
    ----------
    host, port : str, int
        Address. One that other machines can reach needs a token.
    token : str or None
        Token that requests must carry, at least 16 characters.
    workers : int
        Number of worker processes, by default that of the cores.
    queue : int
        Number of requests that may wait for a worker; further ones are answered with 503.
    max_connections : int
        Number of open connections.
    max_body : int
        Size of a request's body in bytes.
    max_outputs : int
        Size of a response in numbers.
    max_steps : int
        Integration steps per run.
    max_seconds : float
        Computing time per request, in seconds.
    max_memory : int
        Memory of a worker process in bytes.
    receive_seconds : float
        Time in which a request must arrive, in seconds; also the interval in which a client must go on reading.
    grace_seconds : float
        Time for running requests after the service was told to stop, in seconds.
    store : Path or None
        Directory of jobs; by default a temporary one, removed at the end.
    dask : str or None
        Address of the Dask scheduler that runs the ensembles of jobs.
    running_jobs, max_jobs : int
        Number of jobs that run at a time, and of all jobs that are kept.
    max_runs, max_values : int
        Number of runs of a job, and of numbers in its results.
    max_job_seconds : float
        Computing time of a job, in seconds.

    Raises
    ------
    OptionError
        The address is reachable by other machines and there is no token, or the token is short.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    workers: int = field(default_factory=cores)
    queue: int = 64
    max_connections: int = 256
    max_body: int = 4_000_000
    max_outputs: int = 1_000_000
    max_steps: int = 1_000_000
    max_seconds: float = 30.0
    max_memory: int = 2_000_000_000
    receive_seconds: float = 20.0
    grace_seconds: float = 30.0
    store: Path | None = None
    dask: str | None = None
    running_jobs: int = 1
    max_jobs: int = 1000
    max_runs: int = 1_000_000
    max_values: int = 100_000_000
    max_job_seconds: float = 3600.0

    def __post_init__(self) -> None:
        limits = [name for name in self.__dataclass_fields__ if name.startswith("max_")]
        for name in ("workers", "queue", "receive_seconds", "running_jobs", *limits):
            if not getattr(self, name) > 0:
                raise OptionError(f"{name} must be positive, got {getattr(self, name)!r}.")
        if not (isinstance(self.port, int) and 0 <= self.port < 2**16):
            raise OptionError(f"port must be between 0 and {2**16 - 1}, got {self.port!r}.")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable()):
            raise OptionError("The token must consist of printable ASCII characters.")
        if self.token is not None and len(self.token) < MIN_TOKEN:
            raise OptionError(
                f"The token has {len(self.token)} characters; at least {MIN_TOKEN} are required.",
                remedy="Create one: python -c 'import secrets; print(secrets.token_urlsafe())'.",
            )
        if self.token is None and not is_loopback(self.host):
            raise OptionError(
                f"The address {self.host} can be reached by other machines, and no token is set.",
                remedy="Give --token-file FILE, or serve on 127.0.0.1 (for others, behind a reverse proxy).",
            )


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only.

    Examples
    --------
    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
