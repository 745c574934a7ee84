"""The server under load: throughput and latency against the same server without batches and against no server at all.

    python benchmarks/serving.py RUN --src FILE [--clients 64] [--seconds 60] [--memory-requests 20000] [--quick]

Clients on the loopback interface each send one line of FILE after another, and wait for each answer. Every answer is
compared with what `Translator` says of the same text without a server. Then, with batches, so many requests more while
the memory of the server and of its workers is watched. Writes benchmarks/results/serving.json, where --quick nothing.
Fails where an answer differs, where anything but 200 or 429 comes back, where memory grows by more than a tenth after
the first tenth of the requests and, but for --quick, where batching is less than 3 times as fast as none, or serving
less than 0.8 times as fast as translating without a server.
"""

import argparse
import asyncio
import datetime
import json
import os
import platform
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

from regard.data.text.readers import read_lines
from regard.data.text.sentences import split_sentences
from regard.evaluation.bench.environment import describe_machine
from regard.pipelines.translator import Translator

RESULTS = Path(__file__).parent / "results" / "serving.json"
LEAST_GAIN, LEAST_SHARE, MOST_GROWTH = 3.0, 0.8, 1.1


@dataclass
class Load:
    """What clients have seen."""

    statuses: Counter[int] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    sentences: int = 0
    wrong: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0

    def summary(self) -> dict[str, Any]:
        cuts = quantiles(self.latencies, n=100, method="inclusive") if len(self.latencies) > 1 else [0.0] * 99
        return {
            "requests": sum(self.statuses.values()),
            "statuses": {str(status): number for status, number in sorted(self.statuses.items())},
            "sentences_per_second": round(self.sentences / self.seconds, 2),
            "milliseconds": {f"p{p}": round(1000 * cuts[p - 1], 1) for p in (50, 95, 99)},
            "different_answers": len(self.wrong),
        }


class Server:
    """`regard serve`, on a free port."""

    def __init__(self, run: Path, *words: str) -> None:
        command = [sys.executable, "-m", "regard", "serve", str(run), "--port", "0"]
        self.process = subprocess.Popen([*command, *words], stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            event = json.loads(line)
            if event["event"] == "listening":
                self.port = int(event["url"].rpartition(":")[2])
            if event["event"] == "ready":
                break
        # Whatever it logs from here on must go somewhere, or it would wait for a reader.
        self._drain = subprocess.Popen(["cat"], stdin=self.process.stderr, stdout=subprocess.DEVNULL)

    def memory(self) -> dict[str, int]:
        """Resident megabytes of the server and of its workers."""
        pid = self.process.pid
        workers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return {"server": _resident(pid), "workers": sum(_resident(int(worker)) for worker in workers)}

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self._drain.wait(10)


@contextmanager
def serving(run: Path, *words: str) -> Iterator[Server]:
    server = Server(run, *words)
    try:
        yield server
    finally:
        server.end()


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 2**20


async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: str, pair: tuple[str, str]) -> Any:
    """One request on an open connection; its status and its answer. By hand, to leave the cores to the server."""
    body = json.dumps({"q": text, "source": pair[0], "target": pair[1]}).encode()
    head = (
        f"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    header = await reader.readuntil(b"\r\n\r\n")
    length = int(header.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return int(header.split(b" ", 2)[1]), json.loads(await reader.readexactly(length))


async def press(
    port: int,
    expected: dict[str, str],
    pair: tuple[str, str],
    clients: int,
    seconds: float,
    most: int,
) -> Load:
    """Lets clients ask until the time is over or so many answers have come."""
    load, numbers, texts = Load(), count(), list(expected)
    began = time.perf_counter()

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while time.perf_counter() - began < seconds and (number := next(numbers)) < most:
            text = texts[number % len(texts)]
            sent = time.perf_counter()
            status, answer = await send(reader, writer, text, pair)
            load.latencies.append(time.perf_counter() - sent)
            load.statuses[status] += 1
            if status == 200:
                load.sentences += 1
                if answer["translatedText"] != expected[text]:
                    load.wrong.append((text, answer["translatedText"]))
        writer.close()

    await asyncio.gather(*(client() for _ in range(clients)))
    load.seconds = time.perf_counter() - began
    return load


def translate_offline(translator: Translator, texts: list[str]) -> tuple[dict[str, str], float]:
    """What the same model says without a server, sentence by sentence, and how many texts a second."""
    splits = [split_sentences(text) for text in texts]
    sentences = [sentence.text for split in splits for sentence in split.sentences]
    translator(sentences[:64])
    began = time.perf_counter()
    found = iter(translator(sentences))
    joined = [split.join([next(found) for _ in split.sentences]) for split in splits]
    return dict(zip(texts, joined, strict=True)), len(texts) / (time.perf_counter() - began)


def watch_memory(server: Server, expected: dict[str, str], pair: tuple[str, str], clients: int, most: int) -> Any:
    """The memory after every tenth of so many requests."""
    seen = []
    for _ in range(10):
        load = asyncio.run(press(server.port, expected, pair, clients, 3600.0, most // 10))
        assert set(load.statuses) <= {200, 429}, load.statuses
        assert not load.wrong, load.wrong[:3]
        seen.append(server.memory())
    return {"requests": most // 10 * 10, "megabytes": seen}


def shortcomings(result: dict[str, Any], quick: bool) -> list[str]:
    found = []
    for name in ("batching", "without_batching"):
        if result[name]["different_answers"]:
            found.append(f"{name}: {result[name]['different_answers']} answers differ from those without a server")
        if odd := set(result[name]["statuses"]) - {"200", "429"}:
            found.append(f"{name}: statuses {sorted(odd)}")
    for part in ("server", "workers"):
        sizes = [one[part] for one in result["memory"]["megabytes"]]
        if sizes[-1] > MOST_GROWTH * sizes[0]:
            found.append(f"memory of the {part} grew from {sizes[0]} to {sizes[-1]} MB")
    if not quick and result["gain_of_batching"] < LEAST_GAIN:
        found.append(f"batching is {result['gain_of_batching']} times as fast as none, less than {LEAST_GAIN}")
    if not quick and result["share_of_offline"] < LEAST_SHARE:
        found.append(f"serving is {result['share_of_offline']} times as fast as no server, less than {LEAST_SHARE}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="The server under load.")
    parser.add_argument("run", type=Path)
    parser.add_argument("--src", type=Path, required=True, help="lines to translate")
    parser.add_argument("--lines", type=int, default=2048, help="how many lines of it")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--memory-requests", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--limit", action="append", default=[], help="passed on to the server with batches")
    parser.add_argument("--quick", action="store_true", help="no result file, and no demands on speed")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    texts = [line for line in dict.fromkeys(read_lines(arguments.src)) if line.strip()][: arguments.lines]
    translator = Translator.load(arguments.run)
    pair = translator.languages
    expected, offline = translate_offline(translator, texts)
    parameters = sum(parameter.numel() for parameter in translator.model.parameters())

    def measure(name: str, server: Server) -> dict[str, Any]:
        asyncio.run(press(server.port, expected, pair, arguments.clients, min(3.0, arguments.seconds), 10**9))
        load = asyncio.run(press(server.port, expected, pair, arguments.clients, arguments.seconds, 10**9))
        for text, answer in load.wrong[:3]:
            print(f"{name}: {text!r} became {answer!r}, not {expected[text]!r}")
        print(f"{name}: {load.summary()}", flush=True)
        return load.summary()

    limits = [word for limit in arguments.limit for word in ("--limit", limit)]
    with serving(arguments.run, *limits) as server:
        batching = measure("with batches", server)
        memory = watch_memory(server, expected, pair, arguments.clients, arguments.memory_requests)
    print(f"memory: {memory}", flush=True)
    offline = max(offline, translate_offline(translator, texts)[1])  # machines are noisy: the better of two
    print(f"without a server: {offline:.1f} texts/s", flush=True)
    with serving(arguments.run, "--limit", "batch_items=1", "--limit", "wait=0") as server:
        alone = measure("without batches", server)
    result = {
        "what": f"{arguments.clients} clients on loopback for {arguments.seconds:g} s, a line a request",
        "model": f"{arguments.run.name}, {parameters / 1e6:.1f} M parameters, default search",
        "text": f"{len(texts)} lines of {arguments.src.name}",
        "offline_texts_per_second": round(offline, 2),
        "batching": batching,
        "without_batching": alone,
        "gain_of_batching": round(batching["sentences_per_second"] / alone["sentences_per_second"], 2),
        "share_of_offline": round(batching["sentences_per_second"] / offline, 3),
        "memory": memory,
        "machine": describe_machine(torch.device("cpu")),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": "python " + " ".join(sys.argv),
    }
    print(f"gain of batching {result['gain_of_batching']}, share of offline {result['share_of_offline']}")
    if not arguments.quick:
        RESULTS.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if short := shortcomings(result, arguments.quick):
        sys.exit("\n".join(short))


if __name__ == "__main__":
    main()
