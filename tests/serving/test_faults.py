"""Clients that misbehave, inputs that hurt and a worker that is killed: nobody else notices."""

import contextlib
import json
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from regard import Translator
from tests.serving.running import Running, wait_until

LINE = "We want tea and dogs"


def connect(server: Running) -> socket.socket:
    place = urlsplit(server.url)
    return socket.create_connection((place.hostname, place.port), timeout=60)


def request(text: str, length: int | None = None) -> bytes:
    body = json.dumps({"q": text, "source": "en", "target": "zh"}).encode()
    size = length or len(body)
    head = ["POST /translate HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {size}", "\r\n"]
    return "\r\n".join(head).encode() + body


@pytest.fixture(autouse=True)
def well_afterwards(server: Running, offline: Translator) -> object:
    """After every fault the server answers as ever, from the same process."""
    pid = server.process.pid
    yield
    assert server.translate(LINE) == offline(LINE)
    assert (server.process.poll(), server.process.pid) == (None, pid)


def test_clients_that_hang_up_cost_no_work(server: Running) -> None:
    before = server.metric("regard_dropped_sentences_total")
    long = ". ".join(["I love apples and books and tea and dogs and cats"] * 150)
    for _ in range(4):
        with connect(server) as client:
            client.sendall(request(long))
            time.sleep(0.05)  # so that it has arrived
    wait_until(lambda: server.metric("regard_dropped_sentences_total") > before, what="dropping")
    wait_until(lambda: server.metric("regard_requests_in_flight") == 1, what="forgetting")  # the one that asks
    wait_until(lambda: server.metric("regard_queue_sentences") == 0, what="emptying")


def test_a_client_that_hangs_up_within_its_request_is_forgotten(server: Running) -> None:
    for part in (b"", b"POST", request(LINE)[:40], request(LINE)[:-5]):
        with connect(server) as client:
            client.sendall(part)
    wait_until(lambda: server.metric("regard_requests_in_flight") == 1)


def test_slow_senders_are_sent_away(server: Running) -> None:  # who has 2 seconds in this server
    with connect(server) as slow, connect(server) as slower, connect(server) as silent:
        slow.sendall(request(LINE)[:-5])
        slower.sendall(b"POST /translate HTTP/1.1\r\nHost: x\r\n")
        assert slow.recv(1000).startswith(b"HTTP/1.1 408 ")
        assert slower.recv(1000) == b""
        assert silent.recv(1000) == b""


def test_a_hundred_megabytes_are_refused_and_not_kept(server: Running) -> None:
    answer = httpx.post(f"{server.url}/translate", content=bytes(100_000_000), timeout=60)
    assert (answer.status_code, list(answer.json())) == (413, ["error"])
    with connect(server) as client:
        client.sendall(request("x", length=100_000_000))
        assert client.recv(1000).startswith(b"HTTP/1.1 413 ")
    status = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    (peak,) = [int(line.split()[1]) for line in status if line.startswith("VmHWM")]
    assert peak < 400_000  # kilobytes


@pytest.mark.parametrize("word", ["a" * 10_000, "果" * 600, "🙂" * 200, "\x00" * 300])
def test_endless_words_are_cut_and_answered(word: str, server: Running) -> None:
    began = time.monotonic()
    answer = httpx.post(f"{server.url}/translate", json={"q": word, "source": "en", "target": "zh"}, timeout=120)
    assert answer.status_code in (200, 504), answer.text
    assert time.monotonic() - began < 40


@pytest.mark.parametrize(
    "junk",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01" + bytes(200),
        b"A" * 100_000,
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /translate HTTP/1.1\r\nHost : x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: x\r\nX: a\x00b\r\n\r\n",
    ],
)
def test_what_is_no_http_or_could_be_read_in_two_ways_is_refused(junk: bytes, server: Running) -> None:
    with connect(server) as client:
        client.sendall(junk)
        assert client.recv(1000)[:12] in (b"HTTP/1.1 400", b"")


def test_a_body_with_two_lengths_ends_the_connection(server: Running) -> None:
    body = request(LINE).partition(b"\r\n\r\n")[2]
    head = b"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connect(server) as client:
        client.sendall(head + f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n" + request(LINE))
        answers = b""
        while part := client.recv(10_000):
            answers += part
    assert answers.startswith(b"HTTP/1.1 400 ")
    assert b"not both" in answers
    assert answers.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("header", [b"X: y\r\n", b"X" * 1000])
def test_endless_headers_are_refused_and_not_kept(header: bytes, server: Running) -> None:
    with connect(server) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n")
        with contextlib.suppress(ConnectionError):  # it may hang up while this is still being sent
            client.sendall(header * (2_000_000 // len(header)))
        with contextlib.suppress(ConnectionError):
            assert client.recv(1000)[:12] in (b"HTTP/1.1 431", b"HTTP/1.1 400", b"")


def test_a_client_that_offers_another_protocol_is_answered_in_this_one(server: Running, offline: Translator) -> None:
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQAAP__"}
    asked = {"q": LINE, "source": "en", "target": "zh"}
    answer = httpx.post(f"{server.url}/translate", json=asked, headers=offer)
    assert answer.json() == {"translatedText": offline(LINE)}


def test_requests_sent_in_one_breath_are_answered_in_order(server: Running, offline: Translator) -> None:
    lines = [LINE, "I love apples", "They see cats"]
    with connect(server) as client:
        client.sendall(b"".join(request(line) for line in lines))
        answers = b""
        while answers.count(b"translatedText") < len(lines):
            answers += client.recv(65_536)
    places = [answers.index(offline(line).encode()) for line in lines]
    assert places == sorted(places)


def test_a_header_of_the_answer_holds_nothing_that_was_sent(server: Running) -> None:
    with connect(server) as client:
        client.sendall(b"GET /%0d%0aX-Evil:%201?q=%0d%0aX-Evil:1 HTTP/1.1\r\nHost: x\r\nOrigin: evil\r\n\r\n")
        assert b"evil" not in client.recv(10_000).lower()


def test_neighbours_of_a_refused_text_are_answered(server: Running, offline: Translator) -> None:
    with ThreadPoolExecutor(12) as pool:
        bad = [pool.submit(httpx.post, f"{server.url}/translate", content=b"\xff") for _ in range(4)]
        good = [pool.submit(server.translate, LINE) for _ in range(8)]
        assert {one.result().status_code for one in bad} == {400}
        assert {one.result() for one in good} == {offline(LINE)}


def test_a_worker_that_is_killed_is_started_again_and_no_answer_is_lost(server: Running, offline: Translator) -> None:
    ours = server.workers[0]  # the first is that of the first model
    texts = [f"{subject} {verb} apples" for subject in ("I", "You", "They", "We") for verb in ("love", "buy", "see")]
    expected = offline(texts)
    with ThreadPoolExecutor(12) as pool:
        answers = [pool.submit(server.translate, text) for text in texts * 4]
        time.sleep(0.02)
        os.kill(ours, signal.SIGKILL)
        assert [answer.result() for answer in answers] == expected * 4
    wait_until(lambda: httpx.get(f"{server.url}/ready").status_code == 200, what="ready")
    assert server.translate(texts) == expected
    wait_until(lambda: server.metric("regard_worker_restarts_total") >= 1, what="restart")
    assert ours not in server.workers
