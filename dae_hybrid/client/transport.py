"""Requests to a service: token, retries, and failures as typed errors."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any
from urllib.parse import urlsplit
from weakref import WeakSet

from dae_hybrid.client.typed_errors import error_of
from dae_hybrid.errors import DaeHybridError, OptionError, OverloadError, ServiceError
from dae_hybrid.service.settings import is_loopback
from dae_hybrid.trajectory.datasets import optional

JSON = "application/json"
#: statuses of answers without an error
GOOD = (200, 202, 204)
#: attempts of a request while the service is overloaded
ATTEMPTS = 4
#: longest pause before another attempt, in seconds, whatever the service asks for
LONGEST_PAUSE = 30.0
#: longest time to open a connection, in seconds
CONNECT_SECONDS = 10.0
#: size of an answer
MAX_BYTES = 1_000_000_000
#: longest silence of a stream of events, in seconds; the service sends comments more often
STREAM_SECONDS = 60.0
#: characters of an unexpected answer that a message shows
SHOWN = 200


class Transport:
    """Connections to one service; threads may share it.

    Parameters
    ----------
    url : str
        Address of the service.
    token : str or None
        Token, sent with every request.
    timeout : float
        Longest time until an answer is complete, in seconds.

    Raises
    ------
    OptionError
        The address or the timeout is not valid.
    ImportError
        httpx is not installed.
    """

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        try:
            parts = urlsplit(url)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname)
        except (ValueError, AttributeError, TypeError):
            is_address = False
        if "@" in str(url):  # is not repeated in a message
            raise OptionError("The address must not have a user name or a password.", remedy="Pass token=.")
        if not is_address:
            raise OptionError(f"The address of a service is http://HOST:PORT or https://HOST, got {url!r}.")
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < float("inf"):
            raise OptionError(f"timeout must be a positive number of seconds, got {timeout!r}.")
        if token is not None and not (isinstance(token, str) and token.isascii() and token.isprintable() and token):
            raise OptionError("The token must be a text of printable ASCII characters.")
        self._httpx = optional("httpx", "A client of the service", "client")
        self.url, self.timeout, self.is_closed = url.rstrip("/"), timeout, False
        self._streams: WeakSet[Any] = WeakSet()
        self._lock = Lock()
        self._client = self._httpx.Client(
            base_url=self.url,
            headers={"Accept-Encoding": "identity"} | ({} if token is None else {"Authorization": f"Bearer {token}"}),
            trust_env=not is_loopback(str(parts.hostname)),  # a proxy would receive the token of this machine
            timeout=self._httpx.Timeout(timeout, connect=min(CONNECT_SECONDS, timeout)),
        )

    def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Remember the connections, so that `close` can interrupt a request."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            with self._lock:
                self._streams.add(info["return_value"])

    def text(
        self, path: str, body: Mapping[str, Any] | None = None, *, method: str | None = None, accept: str = JSON
    ) -> str:
        """Return the text of an answer: of GET, or of POST with a body, unless `method` is given."""
        return str(self._answer(path, body, method, {"Accept": accept}).text)

    def json(self, path: str, body: Mapping[str, Any] | None = None, *, method: str | None = None) -> dict[str, Any]:
        """Return an answer in JSON: of GET, or of POST with a body, unless `method` is given.

        Raises
        ------
        ServiceError
            The service cannot be reached, does not answer in time, or answers something else.
        OverloadError
            It is overloaded, also after `ATTEMPTS` attempts.
        DaeHybridError
            The typed error of the run.
        """
        answer = self._answer(path, body, method, {"Accept": JSON})
        found = _parsed(answer)
        if not isinstance(found, dict):
            raise self._nonsense(answer)
        return found

    def lines(self, path: str, headers: Mapping[str, str]) -> Iterator[str]:
        """Yield the lines of an answer as they come."""
        with self._failures():
            request = self._client.build_request(
                "GET", path, headers={**headers, "Accept": "text/event-stream"}, extensions={"trace": self._trace},
                timeout=self._httpx.Timeout(max(self.timeout, STREAM_SECONDS), connect=CONNECT_SECONDS),
            )  # fmt: skip
            answer = self._client.send(request, stream=True)
            try:
                if answer.status_code not in GOOD:
                    raise self._error(self._complete(answer))
                yield from answer.iter_lines()
            finally:
                answer.close()

    def _answer(self, path: str, body: Mapping[str, Any] | None, method: str | None, headers: Mapping[str, str]) -> Any:
        for attempt in range(ATTEMPTS):
            with self._failures():
                request = self._client.build_request(
                    method or ("GET" if body is None else "POST"), path, json=body, headers=headers,
                    extensions={"trace": self._trace},
                )  # fmt: skip
                answer = self._read(request)
            if answer.status_code != 503:
                break
            if attempt + 1 < ATTEMPTS:
                time.sleep(min(_retry_after(answer), LONGEST_PAUSE))
        if answer.status_code in GOOD:
            return answer
        raise self._error(answer)

    def _read(self, request: Any) -> Any:
        """Send a request and read its answer."""
        return self._complete(self._client.send(request, stream=True))

    def _complete(self, answer: Any) -> Any:
        """Read an answer, of limited size and in limited time."""
        httpx, end, content, size = self._httpx, time.monotonic() + self.timeout, [], 0
        request = answer.request
        try:
            for piece in answer.iter_raw():
                content.append(piece)
                size += len(piece)
                if size > MAX_BYTES:
                    raise ServiceError(f"The answer of {self.url} has more than {MAX_BYTES / 1e6:.0f} MB.")
                if time.monotonic() > end:
                    raise httpx.ReadTimeout("the answer is too slow", request=request)
        finally:
            answer.close()
        if answer.headers.get("content-encoding", "identity") != "identity":
            raise ServiceError(f"{self.url} answers in an encoding that was not asked for.")
        return httpx.Response(answer.status_code, headers=answer.headers, content=b"".join(content), request=request)

    def _error(self, answer: Any) -> DaeHybridError:
        """The typed error of an answer."""
        problem = _parsed(answer)
        if not isinstance(problem, dict) or "problem+json" not in answer.headers.get("content-type", ""):
            return self._nonsense(answer)
        error = error_of(problem, answer.status_code)
        if answer.status_code == 503 and not isinstance(error, OverloadError):
            error = OverloadError(error.message, remedy=error.remedy)
        if isinstance(error, OverloadError):
            error.retry_after = _retry_after(answer)
        if answer.status_code == 401:
            error.remedy = "Pass the token of the service: connect(url, token=...)."
        return error

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Failures of the connection as typed errors."""
        if self.is_closed:
            raise ServiceError("The client is closed.", remedy="Connect again.")
        httpx = self._httpx
        try:
            yield
        except httpx.TimeoutException as reason:
            raise ServiceError(
                f"The service at {self.url} did not answer within {self.timeout:g} s.",
                remedy="Pass a longer timeout= to connect, or ask for a shorter run.",
            ) from reason
        except DaeHybridError:  # some are RuntimeErrors, as those of a closed client are
            raise
        except (httpx.HTTPError, httpx.InvalidURL, OSError, RuntimeError) as reason:
            if self.is_closed:
                raise ServiceError("The client was closed during the request.") from reason
            raise ServiceError(
                f"The service at {self.url} cannot be reached: {reason}.",
                remedy="Start it (dae-hybrid serve MODEL), or check the address.",
            ) from reason

    def _nonsense(self, answer: Any) -> ServiceError:
        text = answer.text[:SHOWN]
        return ServiceError(
            f"{self.url} does not answer as a service of dae_hybrid: status {answer.status_code}, {text!r}.",
            remedy="Check the address, and a proxy before the service.",
        )

    def close(self) -> None:
        """Close all connections; the service cancels the requests that run."""
        self.is_closed = True
        with self._lock:
            streams = list(self._streams)
        for stream in streams:
            connection = stream.get_extra_info("socket")
            with suppress(OSError, AttributeError):
                connection.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for an answer
        self._client.close()


def _parsed(answer: Any) -> Any:
    """The JSON of an answer, None if it is not valid."""
    with suppress(ValueError, RecursionError):
        return answer.json()
    return None


def _retry_after(answer: Any) -> int:
    """Seconds to wait before another attempt; 1 if the service does not say."""
    text = answer.headers.get("retry-after", "")
    return max(1, int(text)) if text.isdecimal() and len(text) < 10 else 1
