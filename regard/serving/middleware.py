"""ASGI middleware for all requests: limits, metrics, access log and security headers."""

import json
import secrets
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

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


class RequestMiddleware:
    """Outermost layer of the app. It is plain ASGI, so that streams and disconnects pass through unchanged."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service
        self._concurrent = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        sender = _ResponseSender(send, self._service)
        scope["regard.log_fields"] = {}
        self._concurrent += 1
        self._service.metrics.in_flight.inc()
        try:
            await self._handle(scope, receive, sender)
        except ApiError as error:
            await sender.send_error(error)
        finally:
            self._concurrent -= 1
            self._service.metrics.in_flight.dec()
            self._log(scope, sender, time.perf_counter() - started)

    async def _handle(self, scope: Scope, receive: Receive, sender: "_ResponseSender") -> None:
        limits = self._service.limits
        if scope["path"] not in PROBES and self._concurrent > limits.concurrent:
            raise overloaded(f"Slowdown: the server is processing {limits.concurrent} requests already", 1)
        max_bytes = limits.image_bytes if scope["path"] in IMAGE_PATHS else limits.body_bytes
        receive_body = await read_body(scope, receive, max_bytes, limits.body_seconds)
        await self._app(scope, receive_body, sender)

    def _log(self, scope: Scope, sender: "_ResponseSender", seconds: float) -> None:
        endpoint = getattr(scope.get("route"), "path", "other")
        metrics = self._service.metrics
        metrics.requests.labels(endpoint, str(sender.status)).inc()
        metrics.seconds.labels(endpoint).observe(seconds)
        fields: dict[str, Any] = scope["regard.log_fields"]
        reason = fields.pop("reason", sender.reason)
        if reason:
            metrics.rejects.labels(reason).inc()
            fields["reason"] = reason
        if endpoint not in PROBES:
            about = {"id": sender.id, "method": scope["method"], "endpoint": endpoint, "status": sender.status}
            log_event("request", **about, seconds=round(seconds, 4), **fields)


class _ResponseSender:
    """Wraps `send`: adds headers, and keeps the status for the log."""

    def __init__(self, send: Send, service: Service) -> None:
        self._send, self._service = send, service
        self.id = secrets.token_hex(8)
        self.status, self.reason = 499, ""  # 499: the client disconnected before a response was sent

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
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
