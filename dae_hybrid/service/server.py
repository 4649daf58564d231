"""The server: uvicorn with limits on connections and slow clients."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Mapping

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from dae_hybrid.errors import ServiceError
from dae_hybrid.service.app import create_app
from dae_hybrid.service.log import LOG, JsonFormatter
from dae_hybrid.service.models import ServedModel
from dae_hybrid.service.settings import Settings

#: idle connections are closed after this time, in seconds
KEEP_ALIVE_SECONDS = 10
#: least rate at which a client reads an answer, in bytes per second
MIN_RATE = 1000


def _protocol(settings: Settings) -> type[HttpToolsProtocol]:
    class Protocol(HttpToolsProtocol):
        """Closes connections whose clients send or read too slowly, and those beyond the limit."""

        _patience: asyncio.TimerHandle | None = None
        _unread = 0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            # asyncio sets it only on sockets that name their protocol, which those of `create_server` do not
            transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if len(self.connections) > settings.max_connections:
                transport.abort()
                return
            self._expect_request()
            self._watch = self.loop.call_later(settings.receive_seconds, self._check_reader)

        def data_received(self, data: bytes) -> None:
            if self.cycle is None or self.cycle.response_complete:
                self._expect_request()
            super().data_received(data)

        def on_headers_complete(self) -> None:
            self._forget_request()
            super().on_headers_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget_request()
            if hasattr(self, "_watch"):
                self._watch.cancel()
            super().connection_lost(exc)

        def _expect_request(self) -> None:
            if self._patience is None:
                self._patience = self.loop.call_later(settings.receive_seconds, self.transport.abort)

        def _forget_request(self) -> None:
            if self._patience is not None:
                self._patience.cancel()
                self._patience = None

        def _check_reader(self) -> None:
            """End a connection whose client has not read enough since the last look."""
            unread = self.transport.get_write_buffer_size()
            if unread and self._unread and unread > self._unread - MIN_RATE * settings.receive_seconds:
                self.transport.abort()
                return
            self._unread = unread
            self._watch = self.loop.call_later(settings.receive_seconds, self._check_reader)

    return Protocol


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the workers first, whose errors are raised; an application that fails is only logged."""
        service = self.config.app.state.service  # type: ignore[union-attr]
        try:
            await service.start()
        except BaseException:
            service.pool.close()
            raise
        await super().startup(sockets)
        host, port = (sockets or [])[0].getsockname()[:2]
        LOG.info(f"running on http://{f'[{host}]' if ':' in host else host}:{port}")

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End streams of events, which would last, and begin to stop jobs; finish the other requests."""
        jobs = getattr(self.config.app.state.service, "jobs", None)  # type: ignore[union-attr]
        if jobs is not None:
            jobs.leave()
        await super().shutdown(sockets)


def serve(settings: Settings, models: Mapping[str, ServedModel]) -> None:
    """Serve models until a signal ends the service (SIGINT or SIGTERM); running requests are finished.

    Raises
    ------
    DaeHybridError
        A model cannot be built.
    ServiceError
        The address cannot be used.
    """
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        listening = socket.create_server(
            (settings.host, settings.port), family=family, backlog=settings.max_connections
        )
    except OSError as reason:
        raise ServiceError(
            f"The service cannot listen on {settings.host}, port {settings.port}: {reason.strerror}."
        ) from None
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for logger in (LOG, logging.getLogger("uvicorn.error")):
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
    app = create_app(settings, models)
    config = uvicorn.Config(
        app, host=settings.host, port=settings.port, http=_protocol(settings), ws="none", lifespan="on",
        log_config=None, access_log=False, server_header=False, timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=round(settings.grace_seconds), backlog=settings.max_connections,
    )  # fmt: skip
    # uvicorn raises the signal again when it has ended
    earlier = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        _Server(config).run([listening])
    finally:
        listening.close()
        for number, own in earlier.items():
            signal.signal(number, own)
