"""Where every request passes: counted, bounded, timed, logged, and sent away with the headers that browsers heed."""

from __future__ import annotations

import json
import secrets
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.serving.errors import Problem, overloaded
from regard.serving.logs import note
from regard.serving.parsing import read_body
from regard.serving.service import Service

HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (
        b"content-security-policy",
        b"default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
]
QUIET = frozenset({"/health", "/ready", "/metrics"})
"""Paths that machines ask for all the time: never turned away, and not logged."""
IMAGES = frozenset({"/api/classify", "/api/inspect/image", "/api/inspect/views"})


class Gate:
    """The outermost part of the app; a plain ASGI middleware, so that streams and departures pass as they are."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service
        self._inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        answer = _Answer(send, self._service)
        scope["regard.facts"] = {}
        self._inside += 1
        self._service.metrics.in_flight.inc()
        try:
            await self._pass(scope, receive, answer)
        except Problem as problem:
            await answer.refuse(problem)
        finally:
            self._inside -= 1
            self._service.metrics.in_flight.dec()
            self._account(scope, answer, time.perf_counter() - began)

    async def _pass(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        limits = self._service.limits
        if scope["path"] not in QUIET and self._inside > limits.concurrent:
            raise overloaded(f"Slowdown: {limits.concurrent} requests are being answered already", 1)
        most = limits.image_bytes if scope["path"] in IMAGES else limits.body_bytes
        body = await read_body(scope, receive, most, limits.body_seconds)
        await self._app(scope, body, answer)

    def _account(self, scope: Scope, answer: _Answer, seconds: float) -> None:
        endpoint = getattr(scope.get("route"), "path", "other")
        metrics = self._service.metrics
        metrics.requests.labels(endpoint, str(answer.status)).inc()
        metrics.seconds.labels(endpoint).observe(seconds)
        facts: dict[str, Any] = scope["regard.facts"]
        reason = facts.pop("reason", answer.reason)
        if reason:
            metrics.rejects.labels(reason).inc()
            facts["reason"] = reason
        if endpoint not in QUIET:
            what = {"id": answer.id, "method": scope["method"], "endpoint": endpoint, "status": answer.status}
            note("request", **what, seconds=round(seconds, 4), **facts)


class _Answer:
    """`send`, with our headers added, and what was sent remembered."""

    def __init__(self, send: Send, service: Service) -> None:
        self._send, self._service = send, service
        self.id = secrets.token_hex(8)
        self.status, self.reason = 499, ""

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", []), *HEADERS, (b"x-request-id", self.id.encode())]
            if self._service.draining:
                message["headers"].append((b"connection", b"close"))
        await self._send(message)

    async def refuse(self, problem: Problem) -> None:
        """Sends a problem that came up before the app was asked."""
        self.reason = problem.reason
        body = json.dumps({"error": problem.sentence}).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body))} | problem.headers
        encoded = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self({"type": "http.response.start", "status": problem.status, "headers": encoded})
        await self({"type": "http.response.body", "body": body})
