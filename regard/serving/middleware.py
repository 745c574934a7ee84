"""ASGI middleware for all requests: limits, metrics, access log and security headers."""

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.serving.access import check_host, network_of
from regard.serving.errors import ApiError, internal_error, overloaded
from regard.serving.fair_queue import FairQueue
from regard.serving.messages import Job
from regard.serving.parsing import read_body
from regard.serving.service import Service
from regard.serving.telemetry import log_event

CONTENT_SECURITY_POLICY = (
    b"default-src 'self'; img-src 'self' blob: data:; object-src 'none'; base-uri 'none'; form-action 'self'; "
    b"frame-ancestors 'none'"
)
SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", CONTENT_SECURITY_POLICY),
]
PROBES = frozenset({"/health", "/ready", "/metrics"})
"""Paths that are polled by monitoring systems: exempt from the limit of concurrent requests, and not logged."""
IMAGE_PATHS = frozenset({"/api/classify", "/api/inspect/views"})
IMAGE_PREFIX = "/api/inspect/image"
"""Paths whose bodies may be as large as images: those above, and those with this prefix."""
FILE_PATHS = frozenset({"/translate_file"})
FORM_BYTES = 20_000
"""Size of the form around a document."""
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
NOT_COUNTED = frozenset({"unavailable", "overload"})
"""Reasons of rejected requests that do not count towards the rate limit of a key."""
REQUEST_COST = 100
"""Cost of a request without a body, in bytes of a body, with which `AdmissionGate` orders requests."""


class RequestMiddleware:
    """Outermost layer of the app. It is plain ASGI, so that streams and disconnects pass through unchanged.

    It adds to `Request.state`: `client`, by which clients take turns; `log_fields`, the fields of the log line; and
    `key_holder`, the owner of the API key if there is one.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service
        self._slots, self._gate = RequestSlots(service.limits.concurrent), AdmissionGate()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        request, sender = Request(scope), _ResponseSender(send, self._service)
        request.state.client = network_of(request.client.host) if request.client else ""
        request.state.log_fields, request.state.key_holder = {}, None
        self._service.metrics.in_flight.inc()
        try:
            await self._handle(request, receive, sender)
        except ApiError as error:  # raised before the request reached an endpoint
            await error_response(request, error)(scope, receive, sender)
        except Exception:
            log_event("internal error", logging.ERROR, exc_info=True)
            if sender.has_started:
                raise
            await error_response(request, internal_error())(scope, receive, sender)
        finally:
            self._service.metrics.in_flight.dec()
            self._log(request, sender, time.perf_counter() - started)

    async def _handle(self, request: Request, receive: Receive, sender: "_ResponseSender") -> None:
        """Check the host and read the body, wait for admission, and pass the request on to its endpoint."""
        limits, config, path = self._service.limits, self._service.config, request.scope["path"]
        if config.hosts is not None:
            check_host(request.headers, config.hosts, config.origins)
        max_bytes = limits.image_bytes if path in IMAGE_PATHS or path.startswith(IMAGE_PREFIX) else limits.body_bytes
        if path in FILE_PATHS:
            max_bytes = limits.file_bytes + FORM_BYTES
        receive_body, size = await read_body(request.headers, receive, max_bytes, limits.body_seconds)
        if path not in PROBES:
            await self._gate.enter(request.state.client, size)
            sender.on_start = self._slots.take(request.state.client)
        try:
            await self._app(request.scope, receive_body, sender)
        finally:
            sender.on_start()

    def _log(self, request: Request, sender: "_ResponseSender", seconds: float) -> None:
        """Count and log a request, and return its use of the key if it was rejected for a reason in `NOT_COUNTED`."""
        endpoint = getattr(request.scope.get("route"), "path", "other")
        fields: dict[str, Any] = request.state.log_fields
        metrics, reason = self._service.metrics, fields.get("reason")
        metrics.requests.labels(endpoint, str(sender.status)).inc()
        metrics.seconds.labels(endpoint).observe(seconds)
        if reason is not None:
            metrics.rejects.labels(reason).inc()
        if reason in NOT_COUNTED and request.state.key_holder is not None:
            request.state.key_holder.give_back()
        if endpoint not in PROBES:
            method = request.method if request.method in METHODS else "other"
            about: dict[str, Any] = {"id": sender.id, "method": method, "endpoint": endpoint, "status": sender.status}
            log_event("request", **about, seconds=round(seconds, 4), **fields)


def error_response(request: Request, error: ApiError) -> JSONResponse:
    """Return the response to a request that failed, and log the reason."""
    request.state.log_fields["reason"] = error.reason
    return JSONResponse({"error": error.message}, error.status, error.headers)


class AdmissionGate:
    """Admits a few requests per iteration of the event loop, small ones and those of other clients first.

    An iteration that parsed, tokenised or rejected hundreds of requests would delay all other clients.
    """

    def __init__(self, per_iteration: int = 4) -> None:
        self._per_iteration, self._queue = per_iteration, FairQueue()

    async def enter(self, client: str, size: int) -> None:
        """Wait until a request of a client with a body of `size` bytes is admitted."""
        if not self._queue:
            asyncio.get_running_loop().call_soon(self._admit)
        request = self._queue.add(client, [Job("admit", None, size=REQUEST_COST + size)])
        try:
            await request.jobs[0].result
        finally:
            self._queue.remove(request)  # if it was cancelled

    def _admit(self) -> None:
        for _ in range(self._per_iteration):
            for queued in self._queue.take(max_items=1, max_tokens=0):
                if not queued.result.done():  # otherwise it was cancelled in this iteration
                    queued.result.set_result(None)
        if self._queue:
            asyncio.get_running_loop().call_soon(self._admit)


class RequestSlots:
    """Requests in progress, from the arrival of the body until the response begins.

    Slow clients therefore do not occupy slots. If all slots are occupied, clients with less than their share of them
    are still admitted, so there are at most twice as many requests as slots.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._running: Counter[str] = Counter()

    def take(self, client: str) -> Callable[[], None]:
        """Count a request of a client, and return a function that ends it.

        Raises:
            ApiError: All slots are occupied, and the client has its share of them.
        """
        clients = len(self._running.keys() | {client})
        if self._running.total() >= self._slots and (self._running[client] + 1) * clients > self._slots:
            raise overloaded(f"Slowdown: the server is processing {self._running.total()} requests already", 1)
        self._running[client] += 1
        running = [client]

        def end() -> None:
            if running:
                self._running -= Counter([running.pop()])  # removes clients without requests

        return end


class _ResponseSender:
    """Wraps `send`: adds headers, keeps the status for the log, and calls `on_start` when the response begins."""

    def __init__(self, send: Send, service: Service) -> None:
        self._send, self._service = send, service
        self.id = secrets.token_hex(8)
        self.status, self.has_started = 499, False  # 499: the client disconnected before a response was sent
        self.on_start: Callable[[], None] = lambda: None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.has_started = message["status"], True
            self.on_start()
            message["headers"] = [*message.get("headers", []), *SECURITY_HEADERS, (b"x-request-id", self.id.encode())]
            if self._service.draining:
                message["headers"].append((b"connection", b"close"))
        await self._send(message)
