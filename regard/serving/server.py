"""The HTTP server: it listens, hurries slow clients, and drains before it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from types import FrameType

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.errors import UserError
from regard.serving.app import make_app
from regard.serving.config import ServingConfig
from regard.serving.logs import note, set_up_logs
from regard.serving.service import Service

GRACE = 5.0
"""Seconds beyond the deadline of a request that a draining server waits for its answer."""


def serve(offer: ServingConfig, host: str, port: int) -> None:
    """Serves until it is asked to end.

    Raises:
        UserError: nothing can listen there, a model cannot be loaded, or the file of keys cannot be read.
    """
    service = Service(offer)
    app = make_app(service)
    listener = listen(host, port)
    set_up_logs()
    hurried = type("Hurried", (Hurried,), {"seconds": offer.limits.body_seconds + 1})  # the app can say it is late
    config = uvicorn.Config(
        app,
        http=hurried,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=round(offer.limits.deadline + GRACE),
    )
    server = Server(config, service)
    address, bound = listener.getsockname()[:2]
    shown = f"[{address}]" if ":" in address else address
    note("listening", url=f"http://{shown}:{bound}")
    server.run(sockets=[listener])
    if service.fatal is not None:
        raise UserError(service.fatal)
    note("ended")


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens there.

    Raises:
        UserError: it cannot.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family, backlog=1024)
    except OSError as error:
        why = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise UserError(f"cannot listen on {host} port {port} ({why}); choose another --host or --port") from None


class Hurried(H11Protocol):
    """Closes a connection on which a request takes too long to arrive, headers or body, or does not begin.

    On h11, for httptools knows no end of headers and loses the body of a request that offers HTTP/2, as Java's do.
    """

    seconds = 20.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._hurry()

    def data_received(self, data: bytes) -> None:
        if self._timer is None:
            self._hurry()
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._relax()

    def connection_lost(self, exc: Exception | None) -> None:
        self._relax()
        super().connection_lost(exc)

    def _hurry(self) -> None:
        self._timer = self.loop.call_later(self.seconds, self.transport.close)

    def _relax(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Server(uvicorn.Server):
    """Uvicorn that drains in two steps.

    After SIGTERM or Ctrl-C requests are still taken for a moment, while /ready says no and answers tell clients to
    close their connections; then no connection is taken any more, and what is being answered is answered.
    """

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._end: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._end is not None:  # asked twice
            self.should_exit = self.force_exit = True
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # what is cut short now is no mistake
            return
        self._service.draining = True
        self._end = time.monotonic() + self._service.limits.drain

    async def on_tick(self, counter: int) -> bool:
        if self._service.fatal or (self._end is not None and time.monotonic() >= self._end):
            self.should_exit = True
        return await super().on_tick(counter)
