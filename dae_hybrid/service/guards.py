"""What every request passes first: identifier, host, token, limits of the body, log and metrics."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
import uuid

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dae_hybrid.service.log import LOG
from dae_hybrid.service.metrics import Metrics
from dae_hybrid.service.problem_details import CLIENT_GONE, RequestError, answer
from dae_hybrid.service.settings import Settings, is_loopback

#: identifiers of clients that are kept
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
#: a name or an address, and a port
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]*)?")
#: routes that need no token: probes, the description of the routes, and the page, which asks for it
OPEN = re.compile(r"/(healthz|readyz|docs|docs\.css|page/.*)?")
HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cache-control": b"no-store",
}


class Guard:
    """ASGI middleware; it replaces the body by one that has been read completely."""

    def __init__(self, app: ASGIApp, settings: Settings, metrics: Metrics) -> None:
        self._app, self._settings, self._metrics = app, settings, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # no websockets
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        scope["request_id"] = given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        begin, status = time.perf_counter(), 0

        async def reply(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                present = {name for name, _ in message["headers"]}
                further = {name: value for name, value in HEADERS.items() if name not in present}
                further[b"x-request-id"] = scope["request_id"].encode()
                message["headers"] = [*message["headers"], *further.items()]
            await send(message)

        try:
            self._check(scope, headers)
            await self._app(scope, await self._body(headers, receive), reply)
        except RequestError as refusal:
            await answer(Request(scope), refusal)(scope, receive, reply)
        except Exception as error:
            LOG.exception("unexpected error", extra={"request_id": scope["request_id"]})
            if not status:
                await answer(Request(scope), error)(scope, receive, reply)
        finally:
            self._record(scope, status, time.perf_counter() - begin)

    def _check(self, scope: Scope, headers: Headers) -> None:
        settings = self._settings
        if settings.token is None:
            # a page of another site whose name is made to point to this machine
            found = HOST.fullmatch(headers.get("host", "").lower())
            host = "" if found is None else found[1].strip("[]")
            if not is_loopback(host) and host != settings.host.lower():
                raise RequestError(
                    403, f"The service answers to localhost only, got the host {host!r}.", remedy="Set a token."
                )
            return
        if OPEN.fullmatch(scope["path"]):
            return
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not secrets.compare_digest(token.strip().encode(), settings.token.encode()):
            raise RequestError(
                401, "A token is required.", headers={"WWW-Authenticate": "Bearer"},
                remedy="Send the header 'Authorization: Bearer TOKEN'.",
            )  # fmt: skip

    async def _body(self, headers: Headers, receive: Receive) -> Receive:
        limit = self._settings.max_body
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > limit:
            raise _too_large(limit)
        content = bytearray()
        try:
            async with asyncio.timeout(self._settings.receive_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RequestError(CLIENT_GONE, "The client has closed the connection.")
                    content += message.get("body", b"")
                    if len(content) > limit:
                        raise _too_large(limit)
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise RequestError(
                408,
                f"The body did not arrive within {self._settings.receive_seconds:g} s.",
                headers={"Connection": "close"},
            ) from None
        messages: list[Message] = [{"type": "http.request", "body": bytes(content)}]

        async def replay() -> Message:
            return messages.pop() if messages else await receive()

        return replay

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "other")
        self._metrics.requests.labels(route, str(status)).inc()
        self._metrics.seconds.labels(route).observe(seconds)
        client = scope.get("client") or ("", 0)
        LOG.info(
            "request",
            extra={
                "request_id": scope["request_id"],
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "milliseconds": round(1e3 * seconds, 3),
                "client": client[0],
            },
        )


def _too_large(limit: int) -> RequestError:
    # the connection stays open: to close it while the client sends would reset it, and the answer might be lost
    return RequestError(413, f"The body has more than {limit} bytes.")
