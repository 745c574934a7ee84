"""Connections: deadlines for slow clients, and limits on the number of connections and on buffered bytes."""

import asyncio
from collections import Counter
from typing import Literal

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.serving.access import network_of
from regard.serving.config import Limits
from regard.serving.telemetry import Metrics, log_event

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

CHECK_SECONDS = 1.0
"""Interval in which deadlines are checked."""
GRACE_SECONDS = 1.0
"""Time after `Limits.body_seconds` in which the middleware can send an error response."""
RESERVED_DESCRIPTORS = 256
"""File descriptors that connections do not use: for workers, model files and the listening socket."""
DropReason = Literal["slow_request", "slow_response", "connections", "buffer"]


class Connection(H11Protocol):
    """A connection that knows how long it has been waiting for its client, and how much memory it uses.

    It uses h11, because httptools does not limit the size of headers and loses the body of a request that offers an
    upgrade to HTTP/2, as Java's HTTP client does.

    Attributes:
        waiting_since: time at which the current request or the wait for it began.
        answered: whether a request has been answered.
        received: bytes of the current request.
        unsent: bytes of responses that the client had not read when `check` was called.
    """

    pool: "ConnectionPool"
    address = ""
    waiting_since = 0.0
    answered = False
    received = 0
    unsent = 0
    _unsent_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.address = network_of(self.client[0]) if self.client else ""
        self.waiting_since = self._unsent_since = self.loop.time()
        self.pool.add(self)

    def data_received(self, data: bytes) -> None:
        if self.conn.our_state is not h11.DONE:  # otherwise the rest of a rejected request, which is discarded
            if self.answered and not self.received:
                self.waiting_since = self.loop.time()
            self.received += len(data)
            self.pool.buffered += len(data)
        super().data_received(data)
        self.pool.limit_buffer(self)

    def on_response_complete(self) -> None:
        self.pool.buffered -= self.received
        self.received = 0
        self.answered, self.waiting_since = True, self.loop.time()
        super().on_response_complete()

    def resume_writing(self) -> None:
        self._unsent_since = self.loop.time()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self.pool.discard(self)
        super().connection_lost(exc)

    @property
    def waits_for_request(self) -> bool:
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    @property
    def waits_for_client(self) -> bool:
        """Whether the client has to send the rest of a request, or to read the rest of a response."""
        return self.waits_for_request or self.unsent > 0

    def check(self, now: float, limits: Limits) -> DropReason | None:
        """Return why the connection must be dropped, if the client is too slow."""
        unsent = self.transport.get_write_buffer_size()
        if not unsent or unsent < self.unsent:
            self._unsent_since = now
        self.unsent = unsent
        if unsent and now - self._unsent_since > limits.write_seconds:
            return "slow_response"
        if self.waits_for_request and now - self.waiting_since > limits.body_seconds + GRACE_SECONDS:
            return "slow_request"
        return None


class ConnectionPool:
    """All connections of a server.

    If there are too many, one of the address with the most connections is dropped: one that has not been answered yet
    if possible, and the one that has been waiting for its client for the longest time. If too many bytes are buffered,
    the connection with the most bytes is dropped. So a client that causes little load is not affected by others.

    Attributes:
        buffered: bytes of all requests that are not answered yet.
    """

    def __init__(self, limits: Limits, metrics: Metrics, max_connections: int) -> None:
        self._limits, self._metrics, self._max_connections = limits, metrics, max_connections
        self._connections: set[Connection] = set()
        self._check_timer: asyncio.TimerHandle | None = None
        self._unsent = 0
        self.buffered = 0

    def protocol(self) -> type[Connection]:
        """Return the protocol class whose connections belong to this pool."""
        return type("PooledConnection", (Connection,), {"pool": self})

    def add(self, connection: Connection) -> None:
        self._connections.add(connection)
        if self._check_timer is None:
            self._check_timer = connection.loop.call_later(CHECK_SECONDS, self._check, connection.loop)
        if len(self._connections) > self._max_connections:
            sizes = Counter(connection.address for connection in self._connections)
            candidates = [connection for connection in self._connections if connection.waits_for_client]
            self._drop(min(candidates, key=lambda c: (-sizes[c.address], c.answered, c.waiting_since)), "connections")

    def discard(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            self._unsent -= connection.unsent
            self.buffered -= connection.received

    def limit_buffer(self, newest: Connection | None = None) -> None:
        """Drop connections whose clients are slow, or else the newest one, if too many bytes are buffered."""
        while self.buffered + self._unsent > self._limits.buffer_bytes:
            candidates = [connection for connection in self._connections if connection.waits_for_client]
            largest = max(candidates, key=lambda c: c.received + c.unsent, default=newest)
            if largest is None or largest not in self._connections:
                break
            self._drop(largest, "buffer")

    def _check(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        for connection in list(self._connections):
            if (reason := connection.check(now, self._limits)) is not None:
                self._drop(connection, reason)
        self._unsent = sum(connection.unsent for connection in self._connections)
        self.limit_buffer()
        self._check_timer = loop.call_later(CHECK_SECONDS, self._check, loop) if self._connections else None

    def _drop(self, connection: Connection, reason: DropReason) -> None:
        self._metrics.dropped_connections.labels(reason).inc()
        self.discard(connection)
        connection.transport.abort()  # `close` would wait until the client has read everything


def reserve_descriptors(connections: int) -> int:
    """Raise the limit of open files so that there can be this many connections; return the possible number."""
    if resource is None:
        return connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = connections + RESERVED_DESCRIPTORS
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < needed:
            connections = max(1, soft - RESERVED_DESCRIPTORS)
            log_event("fewer connections", connections=connections, advice=f"ulimit -n {needed}")
    return connections
