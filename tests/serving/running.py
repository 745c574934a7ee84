"""A server as a process of its own, on a free port of the loopback interface."""

import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.conftest import ENVIRONMENT, SHELL

SECONDS = 120.0


def wait_until(true: Callable[[], object], seconds: float = SECONDS, what: str = "it") -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, f"{what} did not come true within {seconds} seconds"
        time.sleep(0.02)


class Running:
    """`regard serve ...`, its address and its log."""

    def __init__(self, *words: object) -> None:
        command = [*SHELL, "serve", *map(str, words), "--port", "0", "--workers", "1", "--threads", "1"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    @property
    def log(self) -> list[dict[str, Any]]:
        """What was logged, as objects."""
        return [json.loads(line) for line in list(self.lines) if line.startswith("{")]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [line for line in self.log if line["event"] == name]

    @property
    def url(self) -> str:
        wait_until(lambda: self.events("listening") or self.process.poll() is not None, what="listening")
        return str(self.events("listening")[0]["url"])

    def until_ready(self) -> "Running":
        wait_until(lambda: self.events("ready") or self.process.poll() is not None, what="ready")
        assert self.process.poll() is None, self.lines
        return self

    @property
    def workers(self) -> list[int]:
        """The processes that own its models."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in children.read_text().split()]

    def translate(self, text: str | list[str], **fields: object) -> Any:
        asked = {"q": text, "source": "en", "target": "zh"} | fields
        answer = httpx.post(f"{self.url}/translate", json=asked, timeout=SECONDS)
        assert answer.status_code == 200, answer.text
        return answer.json()["translatedText"]

    def metric(self, name: str) -> float:
        """The sum of a figure over its labels."""
        lines = httpx.get(f"{self.url}/metrics", timeout=SECONDS).text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.split("{")[0].split(" ")[0] == name)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Asks it to end, and gives its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(SECONDS)
        self._reader.join(10)
        return code
