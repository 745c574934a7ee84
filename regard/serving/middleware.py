"""ASGI middleware for all requests: limits, metrics, access log and security headers."""

import json
import secrets
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.serving.access import check_host, network_of
from regard.serving.errors import ApiError, overloaded
from regard.serving.parsing import read_body
from regard.serving.service import Service
from regard.serving.telemetry import log_event

CONTENT_SECURITY_POLICY = (
    b"default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
SECURITY_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"content-security-policy", CONTENT_SECURITY_POLICY),
]
PROBES = frozenset({"/health", "/ready", "/metrics"})
"""Paths that are polled by monitoring systems: exempt from the limit of concurrent requests, and not logged."""
IMAGE_PATHS = frozenset({"/api/classify", "/api/inspect/image", "/api/inspect/views"})
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
NOT_COUNTED = frozenset({"unavailable", "overload"})
"""Reasons of rejected requests that do not count towards the rate limit of a key."""


class RequestMiddleware:
    """Outermost layer of the app. It is plain ASGI, so that streams and disconnects pass through unchanged."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service
        self._slots = RequestSlots(service.limits.concurrent)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        sender = _ResponseSender(send, self._service)
        scope["regard.log_fields"] = {}
        scope["regard.client"] = network_of(scope["client"][0]) if scope.get("client") else ""
        self._service.metrics.in_flight.inc()
        try:
            await self._handle(scope, receive, sender)
        except ApiError as error:
            await sender.send_error(error)
        finally:
            self._service.metrics.in_flight.dec()
            self._log(scope, sender, time.perf_counter() - started)

    async def _handle(self, scope: Scope, receive: Receive, sender: "_ResponseSender") -> None:
        limits, config = self._service.limits, self._service.config
        if config.hosts is not None:
            check_host(dict(scope["headers"]), config.hosts, config.origins)
        max_bytes = limits.image_bytes if scope["path"] in IMAGE_PATHS else limits.body_bytes
        receive_body = await read_body(scope, receive, max_bytes, limits.body_seconds)
        if scope["path"] not in PROBES:
            sender.on_start = self._slots.take(scope["regard.client"])
        try:
            await self._app(scope, receive_body, sender)
        finally:
            sender.on_start()

    def _log(self, scope: Scope, sender: "_ResponseSender", seconds: float) -> None:
        endpoint = getattr(scope.get("route"), "path", "other")
        metrics = self._service.metrics
        metrics.requests.labels(endpoint, str(sender.status)).inc()
        metrics.seconds.labels(endpoint).observe(seconds)
        fields: dict[str, Any] = scope["regard.log_fields"]
        reason = fields.pop("reason", sender.reason)
        if reason in NOT_COUNTED and "regard.key_holder" in scope:
            scope["regard.key_holder"].give_back()
        if reason:
            metrics.rejects.labels(reason).inc()
            fields["reason"] = reason
        if endpoint not in PROBES:
            method = scope["method"] if scope["method"] in METHODS else "other"
            about: dict[str, Any] = {"id": sender.id, "method": method, "endpoint": endpoint, "status": sender.status}
            log_event("request", **about, seconds=round(seconds, 4), **fields)


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
        ends = [client]

        def end() -> None:
            if ends:
                self._running.subtract([ends.pop()])
                if not self._running[client]:
                    del self._running[client]

        return end


class _ResponseSender:
    """Wraps `send`: adds headers, keeps the status for the log, and calls `on_start` when the response begins."""

    def __init__(self, send: Send, service: Service) -> None:
        self._send, self._service = send, service
        self.id = secrets.token_hex(8)
        self.status, self.reason = 499, ""  # 499: the client disconnected before a response was sent
        self.on_start: Callable[[], None] = lambda: None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.on_start()
            message["headers"] = [*message.get("headers", []), *SECURITY_HEADERS, (b"x-request-id", self.id.encode())]
            if self._service.draining:
                message["headers"].append((b"connection", b"close"))
        await self._send(message)

    async def send_error(self, error: ApiError) -> None:
        """Send an error that was raised before the request reached the app."""
        self.reason = error.reason
        body = json.dumps({"error": error.message}).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body))} | error.headers
        encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self({"type": "http.response.start", "status": error.status, "headers": encoded})
        await self({"type": "http.response.body", "body": body})
