"""Requests of one client while others misuse the server: slow senders, slow readers, large requests, killed workers.

    python -m tools.stress_server RUN [--images RUN] [--only NAME ...] [--seconds 10] [--connections 300]

Starts `regard serve` with default limits on the loopback interface. In each scenario, some connections misuse it, and
another client of the same address sends a short sentence, and with `--images` also a small image, again and again.
Prints the latencies of that client and the statuses that the others receive. Fails if one of the client's requests is
rejected, wrong or takes 2 seconds or more.
"""

import argparse
import asyncio
import io
import json
import math
import multiprocessing
import os
import select
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import httpx
from PIL import Image

from tests.serving.server_process import ServerProcess

MAX_SECONDS = 2.0
SENTENCE = "I love apples"
LONG_WORD = "a" * 10_000
CLOSED = select.POLLERR | select.POLLHUP | select.POLLRDHUP


@dataclass
class ClientRequest:
    """A request of the client: its path, its body (an argument of `httpx.post`), and the correct response."""

    path: str
    body: dict[str, Any]
    expected: Any = None


@dataclass
class Observations:
    """What the client and the misusing connections see during a scenario; latencies are those of each path."""

    latencies: dict[str, list[float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    others: Counter[str] = field(default_factory=Counter)

    def __str__(self) -> str:
        times = "; ".join(
            f"{len(seconds)} × {path}: median {median(seconds):.3f} s, maximum {max(seconds):.3f} s"
            for path, seconds in self.latencies.items()
        )
        failures = f"{len(self.failures)} rejected or wrong {dict(Counter(self.failures)) or ''}"
        others = ", ".join(f"{number} × {name}" for name, number in sorted(self.others.items()))
        return f"{times}; {failures}; others: {others or 'none'}"

    @property
    def passed(self) -> bool:
        slowest = [max(seconds) for seconds in self.latencies.values()]
        return bool(slowest) and not self.failures and max(slowest) < MAX_SECONDS


def send_repeatedly(
    url: str, requests: list[ClientRequest], seconds: float
) -> tuple[dict[str, list[float]], list[str]]:
    """Send requests again and again; return the latencies, and the reasons of rejected or wrong responses."""
    latencies: dict[str, list[float]] = {request.path: [] for request in requests}
    failures: list[str] = []
    end = time.monotonic() + seconds
    with httpx.Client(timeout=60) as client:
        while time.monotonic() < end:
            for request in requests:
                started = time.monotonic()
                try:
                    response = client.post(url + request.path, **request.body)
                    if response.status_code != 200 or not is_equal(response.json(), request.expected):
                        failures.append(f"{request.path} status {response.status_code}")
                except httpx.HTTPError as error:
                    failures.append(f"{request.path} {type(error).__name__}")
                latencies[request.path].append(time.monotonic() - started)
                time.sleep(0.05)
    return latencies, failures


def is_equal(answer: Any, expected: Any) -> bool:
    """Compare values of JSON; the rounding of a batch may change the last of the six digits of a probability."""
    if isinstance(answer, float) and isinstance(expected, float):
        return math.isclose(answer, expected, rel_tol=0, abs_tol=1.5e-6)
    if isinstance(answer, list) and isinstance(expected, list):
        return len(answer) == len(expected) and all(map(is_equal, answer, expected))
    if isinstance(answer, dict) and isinstance(expected, dict):
        return answer.keys() == expected.keys() and all(is_equal(answer[key], expected[key]) for key in expected)
    return bool(answer == expected)


def image_request(count: int, side: int) -> dict[str, Any]:
    """Return the body of a request with several square images."""
    file = io.BytesIO()
    Image.new("RGB", (side, side), "red").save(file, "PNG")
    return {"files": [("image", file.getvalue())] * count}


class Stress:
    """A running server, and the ways in which it is misused."""

    def __init__(self, server: ServerProcess, arguments: argparse.Namespace) -> None:
        self.server, self.arguments = server, arguments
        self.url = server.url
        self.processes = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        parts = urlsplit(self.url)
        self.address = (parts.hostname or "", parts.port or 0)
        (first, *_) = httpx.get(f"{self.url}/api/models", timeout=60).json()["models"]
        self.source, self.target = first["source"], first["target"]
        self.client_requests = [ClientRequest("/translate", {"json": self.request(SENTENCE)})]
        if arguments.images:
            self.client_requests.append(ClientRequest("/api/classify", image_request(1, 32)))
        for request in self.client_requests:
            request.expected = httpx.post(self.url + request.path, timeout=60, **request.body).raise_for_status().json()
        self.processes.submit(os.getpid).result()  # starts the process

    def request(self, text: str) -> dict[str, str]:
        return {"q": text, "source": self.source, "target": self.target}

    async def observe(self, misuse: Callable[[Observations], Awaitable[None]]) -> Observations:
        """Send requests of one client during a scenario, from a process that does nothing else."""
        observations = Observations()
        others = asyncio.create_task(misuse(observations))
        await asyncio.sleep(0)  # starts the scenario
        client = asyncio.get_running_loop().run_in_executor(
            self.processes, send_repeatedly, self.url, self.client_requests, self.arguments.seconds
        )
        await asyncio.wait({others, client}, return_when=asyncio.FIRST_COMPLETED)
        if others.done():
            others.result()
        observations.latencies, observations.failures = await client
        others.cancel()
        with suppress(asyncio.CancelledError):
            await others
        return observations

    # Scenarios

    async def quiet(self, observations: Observations) -> None:
        """No other clients."""
        await asyncio.Event().wait()

    async def slow_headers(self, observations: Observations) -> None:
        """Connections that send a part of their headers."""
        await self.hold_connections(b"POST /translate HTTP/1.1\r\nHost: localhost\r\n", observations)

    async def slow_senders(self, observations: Observations) -> None:
        """Connections that send a part of their body."""
        await self.hold_connections(self.raw_request("/translate", self.request(SENTENCE))[:-5], observations)

    async def slow_readers(self, observations: Observations) -> None:
        """Connections that send requests with large responses, and never read them."""
        body = {"texts": ["one two three four five " * 10] * 8, "pool": "none"}
        await self.hold_connections(self.raw_request("/api/embed", body) * 8, observations)

    async def many_sentences(self, observations: Observations) -> None:
        """Clients that send more sentences than allowed, almost as many as allowed, and as many characters."""
        texts = ["Go. " * 2500, "Go. " * 999, ". " * 5000, LONG_WORD]
        await self.send_requests("/translate", [{"json": self.request(text)} for text in texts], 8, observations)

    async def long_words(self, observations: Observations) -> None:
        """Clients that send words of 10,000 letters."""
        await self.send_requests("/translate", [{"json": self.request(LONG_WORD)}], 8, observations)

    async def large_responses(self, observations: Observations) -> None:
        """Clients that request alignments of long sentences."""
        body = {"texts": LONG_WORD, "alignments": True, "n_best": 5}
        await self.send_requests("/api/translate", [{"json": body}], 8, observations)

    async def images(self, observations: Observations) -> None:
        """Clients that send images with more pixels than allowed, and with as many as allowed."""
        requests = [image_request(*sizes) for sizes in ((100, 3000), (4, 5000), (1, 5000), (100, 900))]
        await self.send_requests("/api/classify", requests, 4, observations)

    async def killed_workers(self, observations: Observations) -> None:
        """One worker is killed again and again, busy or idle."""
        async with httpx.AsyncClient(timeout=60) as client:
            while True:
                for worker in self.server.worker_pids:
                    os.kill(worker, signal.SIGKILL)
                    while (status := (await client.get(f"{self.url}/ready")).status_code) == 200:
                        await asyncio.sleep(0.01)
                    while status != 200:
                        status = (await client.get(f"{self.url}/ready")).status_code
                        await asyncio.sleep(0.05)
                    observations.others["restarted"] += 1

    # Misuse

    def raw_request(self, path: str, body: dict[str, object] | dict[str, str]) -> bytes:
        content = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content

    async def hold_connections(self, data: bytes, observations: Observations) -> None:
        """Keep connections open that send some data and then nothing, and read nothing; replace closed ones."""
        async with self.open_connections(data) as sockets:
            while True:
                await asyncio.sleep(0.5)
                poll = select.poll()
                for descriptor in sockets:
                    poll.register(descriptor, CLOSED)
                for descriptor, _ in poll.poll(0):
                    sockets.pop(descriptor).close()
                    observations.others["dropped"] += 1
                    await self.connect(data, sockets)
                observations.others["connections"] = len(sockets)

    @asynccontextmanager
    async def open_connections(self, data: bytes) -> AsyncIterator[dict[int, socket.socket]]:
        sockets: dict[int, socket.socket] = {}
        try:
            for _ in range(self.arguments.connections):
                await self.connect(data, sockets)
            yield sockets
        finally:
            for one in sockets.values():
                one.close()

    async def connect(self, data: bytes, sockets: dict[int, socket.socket]) -> None:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        sockets[connection.fileno()] = connection
        await asyncio.get_running_loop().sock_connect(connection, self.address)
        with suppress(BlockingIOError):
            connection.send(data)

    async def send_requests(
        self, path: str, requests: list[dict[str, object]], clients: int, observations: Observations
    ) -> None:
        """Send requests from several clients, each of which waits for its responses."""

        async def send(index: int) -> None:
            async with httpx.AsyncClient(timeout=120) as client:
                while True:
                    request = requests[index % len(requests)]
                    response = await client.post(self.url + path, **request)  # type: ignore[arg-type]
                    observations.others[f"status {response.status_code}"] += 1
                    index += 1

        await asyncio.gather(*(send(index) for index in range(clients)))


SCENARIOS = ("quiet", "killed_workers", "slow_headers", "slow_senders", "slow_readers")
SCENARIOS += ("many_sentences", "long_words", "large_responses", "images")


def parse_arguments() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="translation model")
    parser.add_argument("--images", type=Path, help="image classifier, which is served next to the translation model")
    parser.add_argument("--only", nargs="+", choices=SCENARIOS, help="scenarios; by default all")
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of a scenario")
    parser.add_argument("--connections", type=int, default=300, help="slow connections")
    return parser.parse_args()


async def main() -> int:
    """Run the scenarios and return the exit code."""
    arguments = parse_arguments()
    runs = [arguments.run] + ([arguments.images] if arguments.images else [])
    server = ServerProcess(*runs, "--workers", 2).wait_until_ready()
    passed = True
    try:
        stress = Stress(server, arguments)
        names = arguments.only or [name for name in SCENARIOS if name != "images" or arguments.images]
        for name in names:
            observations = await stress.observe(getattr(stress, name))
            passed = passed and observations.passed
            print(f"{'passed' if observations.passed else 'FAILED'}  {name}: {observations}", flush=True)
            status = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
            print("       ", *(line.replace("\t", " ") for line in status if line.startswith(("VmRSS", "VmHWM"))))
        if not arguments.images:
            print("skipped images: give an image classifier with --images")
        print("load average:", *os.getloadavg())
    finally:
        server.stop()
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
