"""The HTTP server: listening, timeouts of slow requests, and graceful shutdown."""

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
from regard.serving.service import Service
from regard.serving.telemetry import configure_logging, log_event

SHUTDOWN_GRACE = 5.0
"""Seconds after the deadline of a request for which a shutdown waits for its response."""


def serve(config: ServingConfig, host: str, port: int) -> None:
    """Run the server until SIGTERM or Ctrl-C.

    Raises:
        UserError: The address cannot be used, a model cannot be loaded, or the key file cannot be read.
    """
    service = Service(config)
    app = make_app(service)
    listener = listen(host, port)
    configure_logging()
    # One second later than the body timeout of the middleware, which can send an error response.
    protocol = type("Protocol", (RequestTimeoutProtocol,), {"timeout": config.limits.body_seconds + 1})
    uvicorn_config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=round(config.limits.deadline + SHUTDOWN_GRACE),
    )
    server = DrainingServer(uvicorn_config, service)
    address, bound_port = listener.getsockname()[:2]
    url_host = f"[{address}]" if ":" in address else address
    log_event("listening", url=f"http://{url_host}:{bound_port}")
    server.run(sockets=[listener])
    if service.fatal_error is not None:
        raise UserError(service.fatal_error)
    log_event("stopped")


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family, backlog=1024)
    except OSError as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise UserError(f"cannot listen on {host} port {port} ({reason}); choose another --host or --port") from None


class RequestTimeoutProtocol(H11Protocol):
    """HTTP/1.1 protocol that closes a connection whose next request does not arrive completely in time.

    It uses h11, because httptools does not limit the size of headers and loses the body of a request that offers an
    upgrade to HTTP/2, as Java's HTTP client does.
    """

    timeout = 20.0
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        if self._timer is None:
            self._start_timer()
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._cancel_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self.timeout, self.transport.close)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class DrainingServer(uvicorn.Server):
    """Uvicorn server that shuts down in two steps.

    After SIGTERM or Ctrl-C it still accepts requests for `Limits.drain` seconds, while /ready returns 503 and
    responses close their connections. Then it closes the listening socket and finishes the running requests. A second
    signal stops it immediately.
    """

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._drain_until: float | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self._drain_until is not None:  # second signal
            self.should_exit = self.force_exit = True
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)  # cancelled requests are not errors
            return
        self._service.draining = True
        self._drain_until = time.monotonic() + self._service.limits.drain

    async def on_tick(self, counter: int) -> bool:
        drained = self._drain_until is not None and time.monotonic() >= self._drain_until
        if self._service.fatal_error or drained:
            self.should_exit = True
        return await super().on_tick(counter)
