"""Jobs of a service: ensembles and fits that outlive the connection."""

from __future__ import annotations

import csv
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from io import StringIO
from typing import Any, NamedTuple

from dae_hybrid.client.results import decoded
from dae_hybrid.client.transport import Transport
from dae_hybrid.client.typed_errors import error_of
from dae_hybrid.errors import OptionError, ServiceError
from dae_hybrid.trajectory.datasets import optional

#: states in which a job has ended
ENDED = ("done", "failed", "cancelled")
#: identifiers of jobs, which become part of an address
IDENTIFIER = re.compile(r"[0-9a-f]{32}")
#: attempts to follow the events of a job again, without a new one in between, and the pause before each in seconds
RECONNECTIONS, PAUSE = 5, 1.0


class Event(NamedTuple):
    """An event of a job: its number, from 1, its name, and its data."""

    number: int
    name: str
    data: Any


class Job:
    """A job of a service.

    `state` is what the service says about it; `status` is ``"queued"``, ``"running"``, ``"done"``, ``"failed"`` or
    ``"cancelled"``.
    """

    def __init__(self, transport: Transport, identifier: str) -> None:
        if not isinstance(identifier, str) or not IDENTIFIER.fullmatch(identifier):
            raise ValueError(f"{identifier!r} is no identifier of a job")
        self.id = identifier
        self._transport, self._path = transport, f"/v1/jobs/{identifier}"

    def __repr__(self) -> str:
        return f"<Job {self.id} at {self._transport.url}>"

    @property
    def state(self) -> dict[str, Any]:
        """Status, progress (``done`` and ``failed`` of ``total``), times and warnings, asked for on every access."""
        return self._transport.json(self._path)

    @property
    def status(self) -> str:
        """The status, asked for on every access."""
        return str(self.state.get("status"))

    def events(self, after: int = 0) -> Iterator[Event]:
        """Yield the events of the job as they come, until it has ended, each once; a lost connection is resumed.

        Parameters
        ----------
        after : int
            Number of the last event that is known already.

        Raises
        ------
        ServiceError
            The service cannot be reached, also after `RECONNECTIONS` attempts.
        """
        failures, last = 0, after
        while True:
            try:
                for event in _events(self._transport.lines(f"{self._path}/events", {"Last-Event-ID": str(last)})):
                    failures, last = 0, event.number
                    yield event
                if self.status in ENDED and not self._is_behind(last):
                    return
            except ServiceError as error:
                failures += 1
                is_refused = "status" in error.__dict__  # by the service, which would do it again
                if is_refused or failures > RECONNECTIONS or self._transport.is_closed:
                    raise
            time.sleep(PAUSE)

    def _is_behind(self, last: int) -> bool:
        """Whether there are further events."""
        rest = self._transport.lines(f"{self._path}/events", {"Last-Event-ID": str(last)})
        return next(_events(rest), None) is not None

    def wait(self, progress: Callable[[Event], object] | None = None) -> dict[str, Any]:
        """Wait for the end; return the final state.

        Parameters
        ----------
        progress : callable, optional
            Called with every `Event`.

        Raises
        ------
        DaeHybridError
            The job has failed: its typed error.
        """
        for event in self.events():
            if progress is not None:
                progress(event)
        found = self.state
        if found["status"] == "failed":
            report = found.get("error")
            raise error_of({"detail": found.get("message")} | (report if isinstance(report, dict) else {}), 500)
        return found

    def cancel(self) -> dict[str, Any]:
        """Cancel the job, unless it has ended; return its state. The results of its runs so far remain."""
        if self.status not in ENDED:
            self._transport.json(self._path, method="DELETE")
        return self.state

    def remove(self) -> None:
        """Remove a job that has ended, with its results.

        Raises
        ------
        OptionError
            It has not ended.
        """
        if self.status not in ENDED:
            raise OptionError("Only a job that has ended can be removed.", remedy="Cancel it first, or wait for it.")
        self._transport.text(self._path, method="DELETE")

    def result(self) -> dict[str, Any]:
        """Return the result as the service sends it, null as None.

        Raises
        ------
        ServiceError
            The job has not ended, or has no result.
        """
        return self._transport.json(f"{self._path}/result")

    def to_dataframe(self) -> Any:
        """Return the result as a pandas DataFrame, one row per run of an ensemble. Needs pandas (extra ``[data]``)."""
        pandas = optional("pandas", "to_dataframe()")
        text = self._transport.text(f"{self._path}/result", accept="text/csv")
        # pandas' own reader does not restore every digit by default
        return pandas.DataFrame(decoded(_table, text))


def _table(text: str) -> dict[str, list[Any]]:
    heading, *rows = csv.reader(StringIO(text, newline=""))
    return {name: _column([row[i] for row in rows]) for i, name in enumerate(heading)}


def _column(texts: list[str]) -> list[Any]:
    """Texts as numbers, if all are; an empty one is no number."""
    try:
        return [float(text) if text else float("nan") for text in texts]
    except ValueError:
        return list(texts)


def _events(lines: Iterator[str]) -> Iterator[Event]:
    """Parse server-sent events; comments and unknown fields are ignored."""
    fields: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        if name:
            fields[name] = value.removeprefix(" ")
        elif not line:
            with suppress(KeyError, ValueError):
                yield Event(int(fields["id"]), fields["event"], json.loads(fields["data"]))
            fields = {}


def submitted(transport: Transport, body: Mapping[str, Any]) -> Job:
    """Submit a job.

    Raises
    ------
    OptionError
        An entry of the body is wrong; its path is in `errors`.
    OverloadError
        There are too many jobs.
    """
    answer = transport.json("/v1/jobs", body)
    return decoded(lambda: Job(transport, answer["id"]))
