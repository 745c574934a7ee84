"""The HTTP server: listening and graceful shutdown."""

import logging
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from regard.errors import UserError
from regard.serving.access import ANY, is_loopback
from regard.serving.app import make_app
from regard.serving.config import ServingConfig
from regard.serving.connections import ConnectionPool, reserve_descriptors
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
    address, bound_port = listener.getsockname()[:2]
    service.config = replace(config, hosts=allowed_hosts(address, config.hosts))
    configure_logging()
    pool = ConnectionPool(config.limits, service.metrics, reserve_descriptors(config.limits.connections))
    server = DrainingServer(configure_uvicorn(app, config, pool), service)
    url_host = f"[{address}]" if ":" in address else address
    log_event("listening", url=f"http://{url_host}:{bound_port}")
    server.run(sockets=[listener])
    if service.fatal_error is not None:
        raise UserError(service.fatal_error)
    log_event("stopped")


def configure_uvicorn(app: ASGIApp, config: ServingConfig, pool: ConnectionPool) -> uvicorn.Config:
    """Return the configuration of the HTTP server."""
    return uvicorn.Config(
        app,
        http=pool.protocol(),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(config.proxies),
        forwarded_allow_ips=list(config.proxies),
        timeout_graceful_shutdown=round(config.limits.deadline + SHUTDOWN_GRACE),
    )


def allowed_hosts(address: str, hosts: Sequence[str] | None) -> Sequence[str] | None:
    """Return the names that are checked: the given ones, and by default only local ones on the loopback interface."""
    if hosts and ANY not in hosts:
        return [name.lower() for name in hosts]
    return () if not hosts and is_loopback(address) else None


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address, family=family, backlog=1024)
    except OSError as error:
        reason = error.strerror if isinstance(error, socket.gaierror) else os.strerror(error.errno or 0)
        raise UserError(f"cannot listen on {host} port {port} ({reason}); choose another --host or --port") from None


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
