"""Connections of slow and of many clients, with virtual time and without sockets."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("fastapi")

import uvicorn
from uvicorn.server import ServerState

from regard.serving import connections
from regard.serving.config import Limits
from regard.serving.connections import Connection, ConnectionPool, reserve_descriptors
from regard.serving.telemetry import Metrics
from tests.asynchronous import VirtualClock

BODY = b"POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n"
COMPLETE = BODY + b"0123456789"


class FakeTransport:
    """A transport whose `unsent` bytes the client has not read."""

    def __init__(self, address: str) -> None:
        self._peer = (address, 1)
        self.unsent, self.aborted = 0, False
        self.written = b""

    def get_extra_info(self, name: str) -> Any:
        return self._peer if name == "peername" else None

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.aborted = True

    close = abort

    def is_closing(self) -> bool:
        return self.aborted

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Clients:
    """Connections to an app that answers only after `release` is set, and rejects bodies with `too large` at once."""

    def __init__(self, **limits: Any) -> None:
        settings = Limits(**limits)
        self.metrics = Metrics()
        self.release = asyncio.Event()
        self.pool = ConnectionPool(settings, self.metrics, settings.connections)
        self._config = uvicorn.Config(self._app, http=self.pool.protocol(), log_config=None, interface="asgi3")
        self._state = ServerState()

    async def _app(
        self, scope: Any, receive: Callable[[], Awaitable[Any]], send: Callable[..., Awaitable[None]]
    ) -> None:
        message: dict[str, Any] = {"more_body": scope["path"] == "/slow"}
        while message.get("more_body") and message.get("type") != "http.disconnect":
            message = await receive()
        if scope["path"] == "/slow":
            await self.release.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    def connect(self, data: bytes = b"", address: str = "10.0.0.1") -> tuple[Connection, FakeTransport]:
        loop = asyncio.get_running_loop()
        connection = self.pool.protocol()(self._config, self._state, {}, loop)
        transport = FakeTransport(address)
        connection.connection_made(transport)  # type: ignore[arg-type]
        if data:
            connection.data_received(data)
        return connection, transport

    def dropped(self, reason: str) -> float:
        return float(self.metrics.dropped_connections.labels(reason)._value.get())


async def until_dropped(transport: FakeTransport, max_seconds: float = 100) -> float | None:
    """Return the time at which a connection is dropped, to the second, or None."""
    loop = asyncio.get_running_loop()
    end = loop.time() + max_seconds
    while not transport.aborted and loop.time() < end:
        await asyncio.sleep(0.1)
    return round(loop.time()) if transport.aborted else None


@pytest.mark.parametrize("data", [b"", b"POST /translate HTTP/1.1\r\nHost:", BODY, BODY + b"01234"])
def test_incomplete_requests_are_dropped_after_their_deadline(data: bytes) -> None:
    async def main() -> tuple[float | None, float]:
        clients = Clients(body_seconds=20)
        _, transport = clients.connect(data)
        return await until_dropped(transport), clients.dropped("slow_request")

    assert VirtualClock().run(main()) == (22, 1)  # the middleware sends an error response before


def test_single_bytes_do_not_extend_the_deadline() -> None:
    async def main() -> float | None:
        connection, transport = Clients(body_seconds=20).connect(BODY)
        for _ in range(9):
            await asyncio.sleep(2)
            connection.data_received(b"x")
        return await until_dropped(transport)

    assert VirtualClock().run(main()) == 22


def test_request_in_progress_is_not_dropped() -> None:
    async def main() -> float | None:
        _, transport = Clients(body_seconds=20).connect(COMPLETE)
        return await until_dropped(transport)

    assert VirtualClock().run(main()) is None


def test_deadline_of_the_next_request_begins_with_its_first_byte() -> None:
    async def main() -> tuple[bytes, float | None]:
        clients = Clients(body_seconds=20)
        connection, transport = clients.connect(COMPLETE)
        await asyncio.sleep(50)
        clients.release.set()
        await asyncio.sleep(3)  # less than the keep-alive timeout
        connection.data_received(BODY)
        return transport.written[-2:], await until_dropped(transport)

    assert VirtualClock().run(main()) == (b"ok", 75)


def test_unread_response_is_dropped_unless_the_client_makes_progress() -> None:
    async def main() -> list[float | None]:
        clients = Clients(write_seconds=20)
        (_, stuck), (_, progressing), (resumed_connection, resumed) = (clients.connect(COMPLETE) for _ in range(3))
        stuck.unsent = progressing.unsent = resumed.unsent = 100_000
        for _ in range(15):
            await asyncio.sleep(2)
            progressing.unsent -= 1000
            resumed_connection.resume_writing()  # the buffer was read and filled again
        times = [await until_dropped(transport, 1) for transport in (stuck, progressing, resumed)]
        progressing.unsent = 0
        return [stuck.aborted and clients.dropped("slow_response"), *times[1:], await until_dropped(progressing)]

    assert VirtualClock().run(main()) == [1, None, None, None]


def test_address_with_the_most_connections_loses_its_slowest_one() -> None:
    async def main() -> tuple[list[bool], float]:
        clients = Clients(connections=5)
        other = clients.connect(BODY, "10.0.0.2")  # the oldest connection, but not of the same address
        answered = clients.connect(COMPLETE)
        clients.release.set()
        await asyncio.sleep(1)
        clients.release.clear()
        in_progress = clients.connect(COMPLETE)
        await asyncio.sleep(1)
        slow = clients.connect(BODY)
        await asyncio.sleep(1)
        later = clients.connect(BODY)
        newest = clients.connect(b"", "10.0.0.2")
        all_of_them = (other, answered, in_progress, slow, later, newest)
        return [transport.aborted for _, transport in all_of_them], clients.dropped("connections")

    assert VirtualClock().run(main()) == ([False, False, False, True, False, False], 1)


def test_new_client_is_served_while_another_holds_all_connections() -> None:
    async def main() -> int:
        clients = Clients(connections=10)
        for _ in range(30):
            clients.connect(BODY)
        _, transport = clients.connect(COMPLETE, "10.0.0.2")
        clients.release.set()
        await asyncio.sleep(1)
        assert transport.written.endswith(b"ok")
        return int(clients.dropped("connections"))

    assert VirtualClock().run(main()) == 21


def test_full_buffer_drops_the_largest_incomplete_request() -> None:
    async def main() -> list[bool]:
        clients = Clients(buffer_bytes=4000)
        head = b"POST /slow HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n"
        small, large, _ = (clients.connect(head + bytes(size)) for size in (100, 2000, 1000))
        assert not large[1].aborted
        newest = clients.connect(head + bytes(1000))
        complete = clients.connect(COMPLETE)
        assert clients.pool.buffered < 4000
        return [transport.aborted for _, transport in (small, large, newest, complete)]

    assert VirtualClock().run(main()) == [False, True, False, False]


def test_unread_responses_count_towards_the_buffer() -> None:
    async def main() -> list[bool]:
        clients = Clients(buffer_bytes=4000)
        (_, small), (_, large), _ = (clients.connect(COMPLETE) for _ in range(3))
        small.unsent, large.unsent = 1000, 3000
        await asyncio.sleep(2)
        return [small.aborted, large.aborted]

    assert VirtualClock().run(main()) == [False, True]


def test_closed_connections_and_answered_requests_free_the_buffer() -> None:
    async def main() -> int:
        clients = Clients()
        (closed, _), _ = clients.connect(BODY), clients.connect(COMPLETE)
        assert clients.pool.buffered == len(BODY) + len(COMPLETE)
        closed.connection_lost(None)
        clients.release.set()
        await asyncio.sleep(1)
        return clients.pool.buffered

    assert VirtualClock().run(main()) == 0


def test_rest_of_a_rejected_request_is_discarded_until_its_deadline() -> None:
    async def main() -> tuple[int, float | None]:
        clients = Clients(body_seconds=20)
        connection, transport = clients.connect(BODY.replace(b"/slow", b"/rejected").replace(b"10", b"1000000"))
        for _ in range(30):
            await asyncio.sleep(1)
            if not transport.aborted:
                connection.data_received(bytes(1000))
        return clients.pool.buffered, await until_dropped(transport)

    buffered, dropped_at = VirtualClock().run(main())
    assert (buffered, dropped_at) == (0, 30)


@pytest.mark.parametrize(
    ("soft", "hard", "possible", "new_soft"),
    [
        (20_000, 20_000, 1024, 20_000),
        (256, 20_000, 1024, 1280),
        (256, -1, 1024, 1280),
        (1000, 1024, 768, 1024),
        (100, 100, 1, 100),
        (-1, -1, 1024, -1),
    ],
)
def test_limit_of_open_files_is_raised_if_possible(
    soft: int, hard: int, possible: int, new_soft: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Resource:
        RLIMIT_NOFILE, RLIM_INFINITY = 7, -1
        limits = (soft, hard)

        def getrlimit(self, which: int) -> tuple[int, int]:
            return self.limits

        def setrlimit(self, which: int, limits: tuple[int, int]) -> None:
            self.limits = limits

    resource = Resource()
    monkeypatch.setattr(connections, "resource", resource)
    assert reserve_descriptors(1024) == possible
    assert resource.limits == (new_soft, hard)


def test_nothing_is_dropped_if_only_requests_in_progress_fill_the_buffer() -> None:
    async def main() -> list[bool]:
        clients = Clients(buffer_bytes=100)
        made = [clients.connect(COMPLETE) for _ in range(3)]
        await asyncio.sleep(1)
        clients.pool.limit_buffer()
        return [transport.aborted for _, transport in made[:1]]

    assert VirtualClock().run(main()) == [False]


def test_number_of_connections_is_not_reduced_where_open_files_have_no_known_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "resource", None)
    assert reserve_descriptors(1024) == 1024
