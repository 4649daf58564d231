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

from dae_hybrid.service.app import create_app
from dae_hybrid.service.log import LOG, JsonFormatter
from dae_hybrid.service.models import ServedModel
from dae_hybrid.service.settings import Settings

#: idle connections are closed after this time, in seconds
KEEP_ALIVE_SECONDS = 10


def _protocol(settings: Settings) -> type[HttpToolsProtocol]:
    class Protocol(HttpToolsProtocol):
        """Closes connections on which no request begins, and those beyond the limit."""

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if len(self.connections) > settings.max_connections:
                transport.close()
                return
            self._impatience = self.loop.call_later(settings.receive_seconds, self._give_up)

        def _give_up(self) -> None:
            if self.cycle is None and not self.transport.is_closing():
                self.transport.close()

        def connection_lost(self, exc: Exception | None) -> None:
            if hasattr(self, "_impatience"):
                self._impatience.cancel()
            super().connection_lost(exc)

    return Protocol


class _Server(uvicorn.Server):
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
    OSError
        The address cannot be used.
    """
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
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises them again when it has ended
        signal.signal(number, lambda *_: None)
    _Server(config).run()
