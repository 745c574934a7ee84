"""Misbehaving clients, malicious input and killed workers do not affect other clients."""

import contextlib
import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from regard import Translator
from tests.serving.server_process import ServerProcess, wait_until

LINE = "We want tea and dogs"


def connect(server: ServerProcess) -> socket.socket:
    url = urlsplit(server.url)
    return socket.create_connection((url.hostname, url.port), timeout=300)


def raw_request(text: str, content_length: int | None = None) -> bytes:
    body = json.dumps({"q": text, "source": "en", "target": "zh"}).encode()
    lines = [
        "POST /translate HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        f"Content-Length: {content_length or len(body)}",
        "\r\n",
    ]
    return "\r\n".join(lines).encode() + body


@pytest.fixture(autouse=True)
def server_survives(server: ServerProcess, translator: Translator) -> Iterator[None]:
    """Check after every test that the same process still translates correctly."""
    pid = server.process.pid
    yield
    assert server.translate(LINE) == translator(LINE)
    assert (server.process.poll(), server.process.pid) == (None, pid)


def test_sentences_of_disconnected_clients_are_dropped(server: ServerProcess) -> None:
    dropped = server.metric("regard_dropped_sentences_total")
    long_text = ". ".join(["I love apples and books and tea and dogs and cats"] * 150)
    with contextlib.ExitStack() as connections:
        for _ in range(4):
            connections.enter_context(connect(server)).sendall(raw_request(long_text))
        wait_until(lambda: server.metric("regard_queue_sentences") > 100, what="a long queue")
    wait_until(lambda: server.metric("regard_dropped_sentences_total") > dropped, what="dropped sentences")
    wait_until(lambda: server.metric("regard_requests_in_flight") == 1, what="only the request of /metrics")
    wait_until(lambda: server.metric("regard_queue_sentences") == 0, what="an empty queue")


def test_clients_that_disconnect_while_sending_are_forgotten(server: ServerProcess) -> None:
    for part in (b"", b"POST", raw_request(LINE)[:40], raw_request(LINE)[:-5]):
        with connect(server) as client:
            client.sendall(part)
    wait_until(lambda: server.metric("regard_requests_in_flight") == 1)


def test_slow_clients_are_disconnected(server: ServerProcess) -> None:  # this server has body_seconds=2
    with connect(server) as slow_body, connect(server) as slow_headers, connect(server) as silent:
        slow_body.sendall(raw_request(LINE)[:-5])
        slow_headers.sendall(b"POST /translate HTTP/1.1\r\nHost: localhost\r\n")
        assert slow_body.recv(1000).startswith(b"HTTP/1.1 408 ")
        assert slow_headers.recv(1000) == b""
        assert silent.recv(1000) == b""
    wait_until(lambda: server.metric("regard_requests_in_flight") == 1, what="only the request of /metrics")


def test_clients_that_do_not_read_are_disconnected(server: ServerProcess) -> None:  # this server has write_seconds=2
    dropped = server.metric("regard_dropped_connections_total", 'reason="slow_response"')
    body = json.dumps({"texts": ["We want tea and dogs " * 8] * 50, "pool": "none"}).encode()
    headers = {"Content-Type": "application/json"}
    response = httpx.post(f"{server.url}/api/embed", content=body, headers=headers, timeout=300)
    assert response.status_code == 200
    assert len(response.content) > 800_000  # eight of them are more than the buffers of the operating system
    head = f"POST /api/embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    request = f"{head}Content-Type: application/json\r\n\r\n".encode() + body
    with contextlib.ExitStack() as connections:
        for _ in range(4):
            connections.enter_context(connect(server)).sendall(request * 8)
        wait_until(
            lambda: server.metric("regard_dropped_connections_total", 'reason="slow_response"') == dropped + 4,
            what="four dropped connections",
        )
        wait_until(lambda: server.metric("regard_requests_in_flight") == 1, what="only the request of /metrics")


def test_large_bodies_are_rejected_without_buffering(server: ServerProcess) -> None:
    response = httpx.post(f"{server.url}/translate", content=bytes(100_000_000), timeout=300)
    assert (response.status_code, list(response.json())) == (413, ["error"])
    with connect(server) as client:
        client.sendall(raw_request("x", content_length=100_000_000))
        assert client.recv(1000).startswith(b"HTTP/1.1 413 ")
    status = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    (peak_kilobytes,) = [int(line.split()[1]) for line in status if line.startswith("VmHWM")]
    assert peak_kilobytes < 400_000


LONG_WORDS = {"letters": "a" * 10_000, "Han": "果" * 600, "emoji": "🙂" * 200, "null": "\x00" * 300}


@pytest.mark.parametrize("word", LONG_WORDS.values(), ids=LONG_WORDS)
def test_long_words_are_split(word: str, server: ServerProcess) -> None:
    body = {"q": word, "source": "en", "target": "zh"}
    response = httpx.post(f"{server.url}/translate", json=body, timeout=110)
    assert response.status_code in (200, 504), response.text


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01" + bytes(200),
        b"A" * 100_000,
        b"GET /\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /translate HTTP/1.1\r\nHost : x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
    ],
)
def test_malformed_or_ambiguous_http_is_rejected(data: bytes, server: ServerProcess) -> None:
    with connect(server) as client:
        client.sendall(data)
        assert client.recv(1000)[:12] in (b"HTTP/1.1 400", b"")


def test_body_with_two_lengths_closes_the_connection(server: ServerProcess) -> None:
    body = raw_request(LINE).partition(b"\r\n\r\n")[2]
    head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connect(server) as client:
        client.sendall(head + f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n" + raw_request(LINE))
        response = b""
        while part := client.recv(10_000):
            response += part
    assert response.startswith(b"HTTP/1.1 400 ")
    assert b"not both" in response
    assert response.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("header", [b"X: y\r\n", b"X" * 1000])
def test_endless_headers_are_rejected(header: bytes, server: ServerProcess) -> None:
    with connect(server) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n")
        with contextlib.suppress(ConnectionError):  # the server may close the connection during the transfer
            client.sendall(header * (2_000_000 // len(header)))
        with contextlib.suppress(ConnectionError):
            assert client.recv(1000)[:12] in (b"HTTP/1.1 431", b"HTTP/1.1 400", b"")


def test_offer_to_upgrade_the_protocol_is_ignored(server: ServerProcess, translator: Translator) -> None:
    headers = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAAP__"}
    body = {"q": LINE, "source": "en", "target": "zh"}
    response = httpx.post(f"{server.url}/translate", json=body, headers=headers)
    assert response.json() == {"translatedText": translator(LINE)}


def test_pipelined_requests_are_answered_in_order(server: ServerProcess, translator: Translator) -> None:
    lines = [LINE, "I love apples", "They see cats"]
    with connect(server) as client:
        client.sendall(b"".join(raw_request(line) for line in lines))
        responses = b""
        while responses.count(b"translatedText") < len(lines):
            responses += client.recv(65_536)
    positions = [responses.index(translator(line).encode()) for line in lines]
    assert positions == sorted(positions)


def test_response_headers_do_not_contain_input(server: ServerProcess) -> None:
    with connect(server) as client:
        client.sendall(b"GET /%0d%0aX-Evil:%201?q=%0d%0aX-Evil:1 HTTP/1.1\r\nHost: localhost\r\nOrigin: evil\r\n\r\n")
        assert b"evil" not in client.recv(10_000).lower()


def test_invalid_requests_do_not_affect_concurrent_ones(server: ServerProcess, translator: Translator) -> None:
    with ThreadPoolExecutor(12) as pool:
        invalid = [pool.submit(httpx.post, f"{server.url}/translate", content=b"\xff") for _ in range(4)]
        valid = [pool.submit(server.translate, LINE) for _ in range(8)]
        assert {response.result().status_code for response in invalid} == {400}
        assert {translation.result() for translation in valid} == {translator(LINE)}


def test_killed_worker_is_restarted_and_no_request_fails(server: ServerProcess, translator: Translator) -> None:
    pid = server.worker_pids[0]  # that of the first model
    texts = [f"{subject} {verb} apples" for subject in ("I", "You", "They", "We") for verb in ("love", "buy", "see")]
    expected = translator(texts)
    with ThreadPoolExecutor(12) as pool:
        translations = [pool.submit(server.translate, text) for text in texts * 4]
        wait_until(lambda: any(translation.done() for translation in translations))
        os.kill(pid, signal.SIGKILL)
        assert [translation.result() for translation in translations] == expected * 4
    wait_until(lambda: httpx.get(f"{server.url}/ready").status_code == 200, what="readiness")
    assert server.translate(texts) == expected
    wait_until(lambda: server.metric("regard_worker_restarts_total") >= 1, what="a restart")
    assert pid not in server.worker_pids


def test_worker_that_cannot_be_restarted_yet_is_restarted_later(server: ServerProcess) -> None:
    """Kill an idle worker while the server cannot open the files that another one needs."""
    pid = server.worker_pids[0]
    with httpx.Client(base_url=server.url, timeout=300) as client:
        assert client.get("/ready").status_code == 200  # opens a connection
        with server.without_free_descriptors():
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda: server.events("worker not restarted"), what="a failed restart")
            assert client.get("/ready").status_code == 503
    assert server.events("worker not restarted")[0]["error"] == "a worker cannot be started (Too many open files)"
    wait_until(lambda: httpx.get(f"{server.url}/ready", timeout=300).status_code == 200, what="readiness")
    assert pid not in server.worker_pids
