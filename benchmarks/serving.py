"""Throughput and latency of the server, with and without batching, next to translation without a server.

    python benchmarks/serving.py RUN --src FILE [--clients 64] [--seconds 60] [--memory-requests 20000] [--quick]

Clients on the loopback interface each send lines of FILE and wait for every response, which is compared with the output
of `Translator`. Then further requests are sent while the memory of the server and its workers is monitored. Writes
benchmarks/results/serving.json, unless --quick is given. Fails if a translation differs, if a status is neither 200 nor
429, if memory grows by more than 10 % after the first tenth of the requests and, without --quick, if batching is less
than 3 times as fast as no batching, or the server less than 0.8 times as fast as `Translator`.
"""

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch
from harness import default_threads, environment, save_result

from regard.data.text.readers import read_lines
from regard.data.text.sentences import split_sentences
from regard.pipelines.translator import Translator

MIN_BATCHING_GAIN, MIN_SHARE_OF_OFFLINE, MAX_MEMORY_GROWTH = 3.0, 0.8, 1.1
UNLIMITED = 10**9


@dataclass
class Responses:
    """Statuses, latencies and wrong translations seen by the clients."""

    statuses: Counter[int] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    wrong: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0

    def summary(self) -> dict[str, Any]:
        cuts = quantiles(self.latencies, n=100, method="inclusive") if len(self.latencies) > 1 else [0.0] * 99
        return {
            "requests": self.statuses.total(),
            "statuses": {str(status): number for status, number in sorted(self.statuses.items())},
            "sentences_per_second": round(self.statuses[200] / self.seconds, 2),
            "milliseconds": {f"p{p}": round(1000 * cuts[p - 1], 1) for p in (50, 95, 99)},
            "different_answers": len(self.wrong),
        }


class Server:
    """A `regard serve` process on a free port."""

    def __init__(self, run: Path, *options: str) -> None:
        command = [sys.executable, "-m", "regard", "serve", str(run), "--port", "0", *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            event = json.loads(line)
            if event["event"] == "listening":
                self.port = int(event["url"].rpartition(":")[2])
            if event["event"] == "ready":
                break
        # Discards later log entries, because a full pipe would block the server.
        self._drain = subprocess.Popen(["cat"], stdin=self.process.stderr, stdout=subprocess.DEVNULL)

    def memory(self) -> dict[str, int]:
        """Return the resident memory of the server and of its workers in megabytes."""
        pid = self.process.pid
        workers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return {"server": _resident_mb(pid), "workers": sum(_resident_mb(int(worker)) for worker in workers)}

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self._drain.wait(10)


@contextmanager
def serving(run: Path, *options: str) -> Iterator[Server]:
    server = Server(run, *options)
    try:
        yield server
    finally:
        server.stop()


def _resident_mb(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20


async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: str, pair: tuple[str, str]) -> Any:
    """Send a request and return its status and response; without an HTTP library, to leave the cores to the server."""
    body = json.dumps({"q": text, "source": pair[0], "target": pair[1]}).encode()
    head = "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    header = await reader.readuntil(b"\r\n\r\n")
    length = int(header.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return int(header.split(b" ", 2)[1]), json.loads(await reader.readexactly(length))


@dataclass
class Load:
    """Texts with their expected translations, the language pair, and the number of clients."""

    expected: dict[str, str]
    languages: tuple[str, str]
    clients: int

    def apply(self, server: Server, seconds: float = UNLIMITED, requests: int = UNLIMITED) -> Responses:
        """Send requests for the given time, or the given number of requests."""
        return asyncio.run(self._apply(server, seconds, requests))

    async def _apply(self, server: Server, seconds: float, requests: int) -> Responses:
        responses, indices, texts = Responses(), count(), list(self.expected)
        start = time.perf_counter()

        async def client() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            while time.perf_counter() - start < seconds and (index := next(indices)) < requests:
                text = texts[index % len(texts)]
                sent = time.perf_counter()
                status, response = await send(reader, writer, text, self.languages)
                responses.latencies.append(time.perf_counter() - sent)
                responses.statuses[status] += 1
                if status == 200 and response["translatedText"] != self.expected[text]:
                    responses.wrong.append((text, response["translatedText"]))
            writer.close()

        await asyncio.gather(*(client() for _ in range(self.clients)))
        responses.seconds = time.perf_counter() - start
        return responses

    def measure(self, name: str, server: Server, seconds: float) -> dict[str, Any]:
        """Warm up, apply the load, and print and return a summary."""
        self.apply(server, min(3.0, seconds))
        responses = self.apply(server, seconds)
        for text, translation in responses.wrong[:3]:
            print(f"{name}: {text!r} became {translation!r}, not {self.expected[text]!r}")
        print(f"{name}: {responses.summary()}", flush=True)
        return responses.summary()

    def monitor_memory(self, server: Server, requests: int) -> dict[str, Any]:
        """Return the memory after every tenth of the requests."""
        megabytes = []
        for _ in range(10):
            responses = self.apply(server, requests=requests // 10)
            assert set(responses.statuses) <= {200, 429}, responses.statuses
            assert not responses.wrong, responses.wrong[:3]
            megabytes.append(server.memory())
        return {"requests": requests // 10 * 10, "megabytes": megabytes}


def translate_offline(translator: Translator, texts: list[str]) -> tuple[dict[str, str], float]:
    """Translate without a server; return the translations, and the number of texts per second."""
    splits = [split_sentences(text) for text in texts]
    sentences = [sentence.text for split in splits for sentence in split.sentences]
    translator(sentences[:64])
    start = time.perf_counter()
    translations = iter(translator(sentences))
    joined = [split.join([next(translations) for _ in split.sentences]) for split in splits]
    return dict(zip(texts, joined, strict=True)), len(texts) / (time.perf_counter() - start)


def find_missed(result: dict[str, Any], quick: bool) -> list[str]:
    """Return the criteria that were not met."""
    missed = []
    for name in ("batching", "without_batching"):
        if result[name]["different_answers"]:
            missed.append(f"{name}: {result[name]['different_answers']} translations differ from `Translator`")
        if unexpected := set(result[name]["statuses"]) - {"200", "429"}:
            missed.append(f"{name}: statuses {sorted(unexpected)}")
    for part in ("server", "workers"):
        sizes = [sample[part] for sample in result["memory"]["megabytes"]]
        if sizes[-1] > MAX_MEMORY_GROWTH * sizes[0]:
            missed.append(f"memory of the {part} grew from {sizes[0]} to {sizes[-1]} MB")
    if not quick and result["gain_of_batching"] < MIN_BATCHING_GAIN:
        missed.append(f"batching is {result['gain_of_batching']} times as fast, less than {MIN_BATCHING_GAIN}")
    if not quick and result["share_of_offline"] < MIN_SHARE_OF_OFFLINE:
        share = result["share_of_offline"]
        missed.append(f"the server is {share} times as fast as `Translator`, less than {MIN_SHARE_OF_OFFLINE}")
    return missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--src", type=Path, required=True, help="lines to translate")
    parser.add_argument("--lines", type=int, default=2048, help="maximum number of lines")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--memory-requests", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--quick", action="store_true", help="no result file, and no criteria for speed")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    texts = [line for line in dict.fromkeys(read_lines(arguments.src)) if line.strip()][: arguments.lines]
    translator = Translator.load(arguments.run)
    expected, offline = translate_offline(translator, texts)
    load = Load(expected, translator.languages, arguments.clients)
    with serving(arguments.run) as server:
        batching = load.measure("with batching", server, arguments.seconds)
        memory = load.monitor_memory(server, arguments.memory_requests)
    print(f"memory: {memory}", flush=True)
    offline = max(offline, translate_offline(translator, texts)[1])  # the faster of two, because other load varies
    print(f"without a server: {offline:.1f} texts/s", flush=True)
    with serving(arguments.run, "--limit", "batch_items=1", "--limit", "wait=0") as server:
        without_batching = load.measure("without batching", server, arguments.seconds)
    parameters = sum(parameter.numel() for parameter in translator.model.parameters())
    speed = batching["sentences_per_second"]
    result = {
        "what": f"{arguments.clients} clients on loopback for {arguments.seconds:g} s, one line per request",
        "model": f"{arguments.run.name}, {parameters / 1e6:.1f} M parameters, default search",
        "text": f"{len(texts)} lines of {arguments.src.name}",
        "offline_texts_per_second": round(offline, 2),
        "batching": batching,
        "without_batching": without_batching,
        "gain_of_batching": round(speed / without_batching["sentences_per_second"], 2),
        "share_of_offline": round(speed / offline, 3),
        "memory": memory,
        **environment(),
    }
    print(f"gain of batching {result['gain_of_batching']}, share of offline {result['share_of_offline']}")
    if not arguments.quick:
        save_result(result, "serving")
    if missed := find_missed(result, arguments.quick):
        sys.exit("\n".join(missed))


if __name__ == "__main__":
    main()
